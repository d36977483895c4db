"""A device profile from a folder of operator tables in LLMServingSim's profiler layout.

The one idea: their tables are times of one layer, so the layers of the model multiply them; embedding, final norm, LM
head and sampler run once a step. Files: dense.csv (layer, tokens, time_us), attention.csv (prefill_chunk, kv_prefill,
n_decode, kv_decode, time_us), per_sequence.csv (layer, sequences, time_us), skew.csv (unequal contexts, optional) and
meta.yaml.

    kvcast run scenario.toml --set hardware.profile=path/to/kernels
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.models import ModelSpec, bundled_models, resolve_model
from calibrate.profile import DeviceProfile
from calibrate.sources.roofline import GPUS
from workloads.errors import InputError
from workloads.table import NUMBER, TEXT, WHOLE, read_table

ONCE = {"embedding", "final_layernorm"}
TWICE = {"layernorm"}
"""Once a step, and twice in every layer (before attention and before the feed-forward part)."""

HOST_INSIDE = "layers timed inside the engine, launches and sampler with them"
"""A recorded vLLM run of such a card takes as long as its tables (`kvcast validate vllm-rtx4090`: +1 %); with 0.6 ms a
step and 15 us a sequence more it would take 5 % longer."""


def profile_from_folder(folder: Path) -> DeviceProfile:
    """Reads the tables into a profile; InputError names file, row and field."""
    meta = _read_meta(folder / "meta.yaml")
    model = _model(meta, folder)
    attention = _Attention(folder / "attention.csv", model.layers)
    points: dict[str, Any] = {
        "dense": _operators(folder / "dense.csv", "tokens", "tokens", model.layers),
        "per_sequence": _operators(folder / "per_sequence.csv", "sequences", "rows", 0),
        "prefill_attention": attention.prefill(),
        "decode_attention": attention.decode(),
        "mixed_attention": attention.mixed(),
        "step_overhead_us": 0.0,
        "host_inside": HOST_INSIDE,
    }
    if (folder / "skew.csv").exists():
        points["skew"] = _skew(folder / "skew.csv")
    gpu = str(meta.get("gpu", "unknown GPU"))
    return DeviceProfile(
        id=f"{folder.parent.name}/{folder.name}" if folder.name == "kernels" else folder.name,
        kind="tables",
        label=f"operator tables of {gpu}, vLLM {meta.get('vllm_version', '?')}, not measured by kvcast",
        device={"name": gpu, "memory_gib": _memory_gib(gpu, folder)},
        model=model.name,
        dtype=str(meta.get("variant", "bf16")),
        kv_dtype=str(meta.get("variant", "bf16")),
        tensor_parallel=int(meta.get("tensor_parallel_size", "1")),
        points=points,
        provenance={
            "source": "LLMServingSim profiler tables",
            "licence": "see the folder's origin",
            "version": f"vLLM {meta.get('vllm_version', '?')}",
            "date": str(meta.get("profiled_at", "unknown")),
            "kernels": f"vLLM {meta.get('vllm_version', '?')}",
            "notes": [],
        },
    )


def _read_meta(path: Path) -> dict[str, str]:
    """The scalar `key: value` lines of meta.yaml, nested keys by their last name; the first mention of a key wins."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError(
            f"{path}: cannot read ({e.strerror}); expected a folder of operator tables with meta.yaml"
        ) from None
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        if colon and value.strip():
            found.setdefault(key.strip(), value.strip().strip("'\""))
    return found


def _model(meta: dict[str, str], folder: Path) -> ModelSpec:
    name = meta.get("model", "").split("/")[-1].lower().removeprefix("meta-")
    if name not in bundled_models():
        raise InputError(
            f"{folder / 'meta.yaml'}: field model is {meta.get('model')!r}; expected one of"
            f" {', '.join(bundled_models())}"
        )
    return resolve_model(name)


def _memory_gib(gpu: str, folder: Path) -> float:
    plain = gpu.lower().replace("-", " ")
    for key, spec in GPUS.items():
        if key.replace("-", " ") in plain:
            return spec.memory_gib
    raise InputError(
        f"{folder / 'meta.yaml'}: field gpu is {gpu!r}; expected one of {', '.join(GPUS)} (its memory must be known)"
    )


def _operators(path: Path, axis: str, name: str, layers: int) -> list[dict[str, Any]]:
    """One entry per operator; layers = 0 for tables whose operators run once a step."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for row in read_table(path, {"layer": TEXT, axis: WHOLE, "time_us": NUMBER}):
        series[row["layer"]][row[axis]] = row["time_us"]
    operators = []
    for layer, points in series.items():
        repeat = 1 if layers == 0 or layer in ONCE else 2 * layers if layer in TWICE else layers
        at = sorted(points)
        operators.append(
            {"name": layer, "repeat": repeat, "basis": "measured", name: at, "us": [points[x] for x in at]}
        )
    return operators


class _Attention:
    """attention.csv as three tables: prefill alone, decode alone, both in one call."""

    COLUMNS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")

    def __init__(self, path: Path, layers: int):
        self.layers = layers
        rows = read_table(path, {**dict.fromkeys(self.COLUMNS, WHOLE), "time_us": NUMBER})
        self.us: dict[tuple[int, ...], float] = {tuple(row[c] for c in self.COLUMNS): row["time_us"] for row in rows}
        self.path = path

    def prefill(self) -> dict[str, Any]:
        keys = [k for k in self.us if k[0] and not k[2]]
        return self._grid(keys, ("new", "cached"), (0, 1), lambda n, c: (n, c, 0, 0))

    def decode(self) -> dict[str, Any]:
        keys = [k for k in self.us if not k[0] and k[2]]
        return self._grid(keys, ("batch", "context"), (2, 3), lambda b, c: (0, 0, b, c))

    def mixed(self) -> dict[str, Any]:
        keys = [k for k in self.us if k[0] and k[2]]
        return self._grid(keys, ("new", "cached", "batch", "context"), (0, 1, 2, 3), lambda *key: key)

    def _grid(self, keys: list[Any], names: tuple[str, ...], columns: tuple[int, ...], place: Any) -> dict[str, Any]:
        """Nested lists over the sorted values of the axes, null where a point was not measured."""
        if not keys:
            raise InputError(f"{self.path}: no rows with {' and '.join(names)}; expected measured attention times")
        axes = [sorted({k[c] for k in keys}) for c in columns]

        def nest(prefix: tuple[int, ...]) -> Any:
            if len(prefix) == len(axes):
                return self.us.get(place(*prefix))
            return [nest((*prefix, value)) for value in axes[len(prefix)]]

        return {"repeat": self.layers, **dict(zip(names, axes, strict=True)), "us": nest(()), "basis": "measured"}


def _skew(path: Path) -> dict[str, Any]:
    """alpha: the share of the way from t(mean context) to t(longest context), least squares of the relative error.

    Pure decode has one alpha. Per batch size it jumps with the waves of the kernel (RTX 4090: 0.03 at 16 sequences,
    0.15 at 32, 0.08 at 64), which says nothing about the sizes between; the recorded batches are the worst case of one
    length four times the rest. A mixed call does not split long contexts, so its alpha falls steadily with the batch
    size and is kept by size."""
    times = ("t_mean_us", "t_max_us", "t_skew_us")
    pure: list[tuple[float, ...]] = []
    mixed: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for row in read_table(path, {"regime": TEXT, "n": WHOLE, **dict.fromkeys(times, NUMBER)}):
        (pure if row["regime"] == "pure" else mixed[row["n"]]).append(tuple(row[c] for c in times))
    if not pure:
        raise InputError(f"{path}: no row with regime pure; expected unequal contexts of decode batches")
    alpha = _alpha(np.array(pure))
    skew: dict[str, Any] = {"batch": [1, 2], "alpha": [alpha, alpha]}
    if len(mixed) >= 2:
        skew["mixed_batch"] = sorted(mixed)
        skew["mixed_alpha"] = [_alpha(np.array(mixed[n])) for n in sorted(mixed)]
    return skew


def _alpha(rows: np.ndarray) -> float:
    """Weighted least squares of (t_skew - t_mean) / t_skew on (t_max - t_mean) / t_skew, kept within 0 and 1. rows: [n,
    3]."""
    mean, top, skewed = rows.T
    x, y = (top - mean) / skewed, (skewed - mean) / skewed
    return float(min(max((x * y).sum() / max((x * x).sum(), 1e-12), 0.0), 1.0))
