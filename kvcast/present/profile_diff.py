"""What differs between two profiles of any kind: operators, parts of a step and whole steps.

The one idea: two calibrations are compared at the points that both measured; anything else by what it says of one
model, operator by operator where both have tables, and by the parts of a step whatever a time rests on.

    kvcast profile diff monday.json friday.json
    kvcast profile diff mine atlas:h200 --model qwen3-8b
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrate.forms import AXES, kernel_of
from calibrate.latency import step_time
from calibrate.models import ModelSpec
from calibrate.profile import DeviceProfile
from calibrate.sources.tables import sum_of_lines
from kvcast import text
from kvcast.present.profile_report import is_calibrated

MOVED = 0.03
STEPS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("prefill 512", ([(512, 0)], 0, 0, 0, 1)),
    ("prefill 4096", ([(4096, 0)], 0, 0, 0, 1)),
    ("prefill 512 over 8192 cached", ([(512, 8192)], 0, 0, 0, 1)),
    ("decode 1 x 1024", ([], 1, 1024, 1024, 1)),
    ("decode 32 x 2048", ([], 32, 65536, 2048, 32)),
    ("decode 128 x 4096", ([], 128, 524288, 4096, 128)),
    ("mixed 512 new + 32 x 2048", ([(512, 0)], 32, 65536, 2048, 33)),
)

TOKENS, ROWS = (1, 16, 64, 256, 1024, 4096), (1, 32, 256)
SAME = {
    "qkv": ("qkv_gemm", "qkv_proj", "attn_pre_proj"),
    "attention_out": ("proj_gemm", "o_proj", "attn_post_proj"),
    "gate_up": ("gate_ffn1_gemm", "gate_up_proj", "mlp_up_proj", "up"),
    "down": ("ffn2_gemm", "down_proj", "mlp_down_proj"),
    "norm": (
        *("final_norm", "add_norm_1", "add_norm_2", "layernorm", "final_layernorm"),
        *("input_layernorm", "post_attention_layernorm", "add"),
    ),
    "activation": ("silu_mul", "act_gate", "act_fn", "mlp_act"),
    "rope_kv_write": ("rotary_emb", "attn_rope", "attn_kv_cache_save"),
    "embedding": ("emb",),
    "experts": ("moe", "router"),
    "all_reduce": ("embedding_ar", "ar_1", "ar_2"),
}
"""One operator by its names in profiles of different origin; what one has in parts is added up."""
_NAMED = {name: operator for operator, names in SAME.items() for name in names}


def diff(a: DeviceProfile, b: DeviceProfile, model: ModelSpec | None = None) -> dict[str, Any]:
    """Changes from a to b as shares, positive where b is slower: by operator, by part of a step and by whole step.
    model: what both say the time of; without it operators alone, at the points that both measured."""
    known = model is not None and a.tensor_parallel == b.tensor_parallel and a.model in (None, b.model, model.name)
    raw = (is_calibrated(a) and is_calibrated(b)) or not known
    return {
        "operators": _operator_changes(a, b) if raw else _group_changes(a, b),
        "steps": _step_changes(a, b, model) if model is not None and known else [],
        "same_points": a.content_hash == b.content_hash,
    }


def _group_changes(a: DeviceProfile, b: DeviceProfile) -> list[dict[str, Any]]:
    """Operators of a whole step along tokens and rows, those that both have tables of."""
    ours, theirs = _groups(a), _groups(b)
    if not ours or not theirs:
        return []
    return _changes(a, ours, b, theirs)


def _groups(profile: DeviceProfile) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for part, axis, points in (("dense", "tokens", TOKENS), ("per_sequence", "rows", ROWS)):
        by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for operator in profile.points.get(part, []):
            name = operator["name"].removeprefix("shared_")
            by_name[_NAMED.get(name, name)].append(operator)
        for name, operators in by_name.items():
            line = sum_of_lines(operators, axis)
            found[name] = {f"{axis} {x}": line.at(x) for x in points if x <= max(o[axis][-1] for o in operators)}
    return found


def _operator_changes(a: DeviceProfile, b: DeviceProfile) -> list[dict[str, Any]]:
    return _changes(a, _times(a), b, _times(b))


def _changes(
    a: DeviceProfile, ours: dict[str, dict[str, float]], b: DeviceProfile, theirs: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """Median and largest change of every operator at the points of both, the largest movers first."""
    rows: list[dict[str, Any]] = []
    for name in ours:
        shared = sorted(ours[name].keys() & theirs.get(name, {}).keys())
        changes = [theirs[name][k] / ours[name][k] - 1 for k in shared if ours[name][k] > 0]
        if changes:
            worst = max(range(len(changes)), key=lambda i: abs(changes[i]))
            rows.append(
                {
                    "operator": name,
                    "points": len(changes),
                    "median": float(np.median(changes)),
                    "worst": changes[worst],
                    "worst_at": shared[worst],
                }
            )
    only: list[dict[str, Any]] = [
        {"operator": n, "points": 0, "median": None, "worst": None, "worst_at": f"only in {p.id}"}
        for p, x, y in ((a, ours, theirs), (b, theirs, ours))
        for n in x
        if n not in y
    ]
    return sorted(rows, key=lambda r: -abs(r["median"])) + only


def _times(profile: DeviceProfile) -> dict[str, dict[str, float]]:
    """Microseconds by operator and point: raw points of a calibration, else the tables."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    points = profile.points
    if is_calibrated(profile):
        for op, shape, us, _ in points["raw"]:
            name = op + ("".join(f" {k}={v}" for k, v in kernel_of(op, shape)) if op in AXES else "")
            found[name][json.dumps({k: shape[k] for k in AXES[op] if k in shape} if op in AXES else shape)] = us
        return found
    for part, axis in (("dense", "tokens"), ("all_ranks", "tokens"), ("per_sequence", "rows")):
        for o in points.get(part, []):
            found[o["name"]] = {f"{axis} {x}": us * o["repeat"] for x, us in zip(o[axis], o["us"], strict=True)}
    for part, names in (("prefill_attention", ("new", "cached")), ("decode_attention", ("batch", "context"))):
        t = points.get(part)
        if t:
            found[part] = {
                f"{names[0]} {x}, {names[1]} {y}": t["us"][i][j] * t["repeat"]
                for i, x in enumerate(t[names[0]])
                for j, y in enumerate(t[names[1]])
                if t["us"][i][j] is not None
            }
    return found


def _step_changes(a: DeviceProfile, b: DeviceProfile, model: ModelSpec) -> list[dict[str, Any]]:
    """Whole steps, and the change of each of their parts that takes time in both."""
    one, two = (step_time(p, model, p.dtype, p.tensor_parallel) for p in (a, b))
    rows = []
    for name, shape in STEPS:
        before, after = one.step(*shape)[0], two.step(*shape)[0]
        parts = _parts(one, two, shape)
        rows.append({"step": name, "a_s": before, "b_s": after, "change": after / before - 1, "parts": parts})
    return rows


def _parts(one: Any, two: Any, shape: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Of sources that add a step up by part; {} of others."""
    if not (hasattr(one, "parts") and hasattr(two, "parts")):
        return {}
    before, after = one.parts(*shape), two.parts(*shape)
    return {part: {"a_s": before[part], "b_s": after[part]} for part in before}


PARTS = ("dense", "attention", "sampling", "overhead")


def _moved(step: dict[str, Any], part: str) -> str:
    """How much of the step's time a part moved it by."""
    if part not in step["parts"]:
        return "-"
    return f"{100 * (step['parts'][part]['b_s'] - step['parts'][part]['a_s']) / step['a_s']:+.1f} %"


def diff_lines(a: DeviceProfile, b: DeviceProfile, changes: dict[str, Any]) -> list[str]:
    """For people: the largest movers first."""
    lines = [
        f"from {a.id} ({a.content_hash[:19]}, {a.device['name']}) to {b.id} ({b.content_hash[:19]}, {b.device['name']})"
    ]
    if changes["same_points"]:
        return [*lines, "the same points: nothing moved"]
    if changes["steps"]:
        lines += [
            "",
            text.table(
                ["step", "from", "to", "change", *PARTS],
                [
                    [s["step"], text.seconds(s["a_s"]), text.seconds(s["b_s"]), f"{100 * s['change']:+.1f} %"]
                    + [_moved(s, part) for part in PARTS]
                    for s in changes["steps"]
                ],
            ),
        ]
    else:
        lines.append("whole steps are not compared: the profiles are of different models or widths")
    if not changes["operators"]:
        return [*lines, "", "operators are not compared: one of the two has no table of them"]
    rows = []
    for r in changes["operators"]:
        if r["median"] is None:
            rows.append([r["operator"], "-", "-", "-", r["worst_at"]])
        else:
            mark = "moved" if abs(r["median"]) > MOVED else ""
            rows.append(
                [
                    r["operator"],
                    str(r["points"]),
                    f"{100 * r['median']:+.1f} %",
                    f"{100 * r['worst']:+.1f} % at {r['worst_at']}",
                    mark,
                ]
            )
    return [*lines, "", text.table(["operator", "points in both", "median", "largest change", ""], rows)]
