"""Operator rows as the atlas holds its own tables, and which GPU's atlas they lie over.

The one idea: rows of one's own become the same tables, so that the same code prices both. Where no atlas states a
device's peaks, the best that any of its own rows reached is one.

    python -c "from calibrate.atlas.own_tables import gpu_of; print(gpu_of('NVIDIA H200'))"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrate.atlas.price import causal_pairs
from calibrate.atlas.tables import Atlas, Table, bundled_gpus
from calibrate.precision import WEIGHT_BYTES
from calibrate.rows import SHAPES, TEXTS, OperatorRows, Rows
from calibrate.sources.roofline import GPUS

US = 1e-6
OWN = "own"
OTHER_BOARDS = ("pcie", "nvl", "mig", "laptop", "workstation", "max-q")
"""Boards that share a name with one in the atlas and not its clocks, memory or links."""
SAME = {"fp16": "bfloat16", "float16": "bfloat16", "bf16": "bfloat16"}
LAID_OUT = {
    "gemm": ("gemm", ("m",)),
    "prefill": ("prefill", ("batch_size", "isl")),
    "prefixes": ("prefill", ("isl", "step")),
    "decode": ("decode", ("batch_size", "step")),
    "moe": ("moe", ("num_tokens",)),
    "all_reduce": ("all_reduce", ("message_size",)),
    "elementwise": ("elementwise", ("num_tokens",)),
}
"""Table as the atlas lays it out -> (operator, axes)."""


def gpu_of(device: str) -> str | None:
    """The atlas that a device's rows lie over, None where there is none or the board is another one."""
    words = re.sub(r"[^a-z0-9]+", "-", device.lower())
    if any(board in words for board in OTHER_BOARDS):
        return None
    return next((gpu for gpu in bundled_gpus() if re.search(rf"(^|-){gpu}($|-)", words)), None)


# ---- rows as tables --------------------------------------------------------------------------------------------------


def tables(rows: Rows) -> dict[str, Table]:
    """The rows as the atlas holds its own."""
    found = {}
    for name, (operator, axes) in LAID_OUT.items():
        kept = (
            [row for row in rows.operators[operator].rows if _on_grid(name, row)] if operator in rows.operators else []
        )
        if kept:
            found[f"{OWN}/{name}"] = _table(name, kept, SHAPES[operator], axes)
    return found


def _on_grid(name: str, row: Mapping[str, Any]) -> bool:
    """Whether a row lies on the table's two axes: prompts over an empty cache, one prompt over a prefix, decodes of
    equal contexts."""
    if name == "prefill":
        return bool(row["step"] == 0)
    if name == "prefixes":
        return bool(row["batch_size"] == 1)
    return bool(row["longest"] == row["step"]) if name == "decode" else True


def _table(name: str, rows: Sequence[Mapping[str, Any]], shape: tuple[str, ...], axes: tuple[str, ...]) -> Table:
    labels = {c: tuple(sorted({plain(row[c]) for row in rows})) for c in shape if c in TEXTS}
    values = [np.unique([row[axis] for row in rows]) for axis in axes]
    place = {key: i for i, key in enumerate(sorted({_key(row, shape, labels) for row in rows}))}
    seconds = np.full((len(place), *map(len, values)), np.nan)
    for row in rows:
        at = tuple(int(np.searchsorted(x, row[axis])) for x, axis in zip(values, axes, strict=True))
        seconds[(place[_key(row, shape, labels)], *at)] = row["us"] * US
    keys = np.array(list(place), dtype=np.int64).reshape(len(place), len(shape))
    return Table(f"{OWN}/{name}", shape, labels, tuple(zip(axes, values, strict=True)), keys, seconds)


def plain(text: str) -> str:
    return SAME.get(text, text)


def _key(row: Mapping[str, Any], shape: tuple[str, ...], labels: Mapping[str, tuple[str, ...]]) -> tuple[int, ...]:
    return tuple(labels[c].index(plain(row[c])) if c in labels else int(row[c]) for c in shape)


class _OwnAtlas(Atlas):
    """An atlas of rows alone, whichever operators they are of."""

    @property
    def backends(self) -> list[str]:
        return [OWN]


def atlas_of(rows: Rows, header: Mapping[str, Any]) -> Atlas:
    own = tables(rows)
    about = {
        name: {"constant": {}, "version": version_of(rows.operators[LAID_OUT[name.split("/")[1]][0]])} for name in own
    }
    atlas = _OwnAtlas(rows.name, {**header, "name": rows.device["name"], "tables": about}, rows.content_hash, {})
    atlas._tables.update(own)
    return atlas


def version_of(found: OperatorRows) -> str:
    return str(found.about.get("version", "unknown"))


# ---- the hardware's bound, where no atlas states it ------------------------------------------------------------------


def header_of(rows: Rows) -> dict[str, Any]:
    """Peaks of a GPU without an atlas: of its data sheet where that is known, and never below what its own rows reach,
    so that no measured time is held to a bound it beat."""
    words = re.sub(r"[^a-z0-9]+", "-", str(rows.device["name"]).lower())
    spec = next((GPUS[key] for key in sorted(GPUS, key=len, reverse=True) if key in words), None)
    flops, bandwidth = _reached(rows)
    flops = {"bf16": max(flops["bf16"], spec.bf16_flops if spec else 0.0), "fp8": max(flops.values())}
    bandwidth = max(bandwidth, spec.bandwidth if spec else 0.0)
    elementwise = {"launch_s": 3e-6, "bandwidth": 0.8 * bandwidth}
    link = {"bandwidth": spec.link_bandwidth if spec else 1.0, "gpus": 1}
    return {"flops": flops, "bandwidth": bandwidth, "elementwise": elementwise, "link": link}


def _reached(rows: Rows) -> tuple[dict[str, float], float]:
    """Highest FLOP/s by matrix units and highest bytes/s of any row."""
    flops, bandwidth = {"bf16": 1.0, "fp8": 1.0}, 1.0
    for row in rows_of(rows, "gemm"):
        units = "fp8" if row["gemm_dtype"].startswith("fp8") else "bf16"
        flops[units] = max(flops[units], 2.0 * row["m"] * row["n"] * row["k"] / (row["us"] * US))
        size = WEIGHT_BYTES[{"bfloat16": "bf16"}.get(plain(row["gemm_dtype"]), "fp8")]
        bandwidth = max(bandwidth, size * row["n"] * row["k"] / (row["us"] * US))
    for row in rows_of(rows, "prefill"):
        pairs = row["batch_size"] * float(causal_pairs(row["isl"], row["step"], row["window_size"]))
        flops["bf16"] = max(flops["bf16"], 4.0 * row["num_heads"] * row["head_dim"] * pairs / (row["us"] * US))
    for row in rows_of(rows, "decode"):
        seen = (row["batch_size"] - 1) * (row["step"] + 1) + row["longest"] + 1
        if not row["window_size"]:
            size = 1.0 if row["kv_cache_dtype"] == "fp8" else 2.0
            moved = 2.0 * size * row["num_key_value_heads"] * row["head_dim"] * seen
            bandwidth = max(bandwidth, moved / (row["us"] * US))
    return flops, bandwidth


def rows_of(rows: Rows, operator: str) -> Sequence[Mapping[str, Any]]:
    return rows.operators[operator].rows if operator in rows.operators else ()
