"""How far the atlas errs at shapes nobody measured: every measured shape left out once and predicted from the others.

The one idea: any model is priced between measured shapes, so this error is the one its step times carry. Goals, means
over a GPU's shapes: 4 % for bf16 and fp8 matrix multiplies, 8 % for block-scaled fp8, 6 % for attention, 10 % for
experts and latent attention. The set passes when the median over GPUs of vLLM's tables meets them; each GPU that does
not is marked. Experts of a type that fewer than five models were measured in (mxfp4: gpt-oss's two on one kernel and,
on some GPUs, a third on another) are printed and not judged: a model left out takes its kernel along. What leaving them
out costs is what their prices state. TensorRT-LLM's tables are printed and not judged either: its decode kernel changes
with the heads a KV head serves (one, up to 16, up to 32, more), and a head count left out at such a border is far off.

    kvcast validate atlas
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from calibrate.atlas.heldout import HeldOut, expert_models, held_out
from calibrate.atlas.tables import bundled_gpus, load
from kvcast.validation import Outcome

GOALS = {"gemm": 0.04, "prefill": 0.06, "decode": 0.06, "moe": 0.10, "mla_prefill": 0.10, "mla_decode": 0.10}
GEMM_GOALS = {"fp8_block": 0.08, "nvfp4": 0.08}
BACKEND, ALSO = "vllm", ("trtllm",)
FEWEST = 5
"""Measured models from which on leaving one out says how the others are compared."""


def run(data_dir: Path | None = None, **_: object) -> Outcome:
    """Leaves out every shape of vLLM's and TensorRT-LLM's tables on every bundled GPU; needs no recorded data."""
    del data_dir
    lines, figures = [], {}
    means: dict[tuple[str, str], list[float]] = defaultdict(list)
    models: dict[str, int] = defaultdict(int)
    for gpu in bundled_gpus():
        for dtype, count in expert_models(load(gpu), BACKEND).items():
            models[dtype] = max(models[dtype], count)
        for found in held_out(load(gpu), BACKEND):
            means[found.operator, found.dtype].append(found.mean)
            figures[f"{gpu} {found.operator} {found.dtype}"] = {"mean": found.mean, "p90": found.p90}
            over = f"; beyond {goal(found):.0%}" if found.mean > goal(found) else ""
            lines.append(
                f"{gpu} {found.operator} {found.dtype}: mean {found.mean:.1%}, 90 % within {found.p90:.1%},"
                f" {found.shapes} shapes{over}"
            )
    printed, more = _printed()
    lines, figures = lines + printed, figures | more
    missed: list[str] = []
    apart: list[str] = []
    for (operator, dtype), values in means.items():
        middle, limit = median(values), goal(HeldOut(operator, dtype, 0, 0.0, 0.0))
        few = operator == "moe" and models[dtype] < FEWEST
        why = f"; not judged: {models[dtype]} models measured, not all on one kernel" if few else ""
        lines.append(f"{operator} {dtype}: median over {len(values)} GPUs {middle:.1%}, goal {limit:.0%}{why}")
        missed += [f"{operator} {dtype}"] if middle > limit and not few else []
        apart += [f"{operator} {dtype}"] if few else []
    met = f"held-out goals missed by {', '.join(missed)}" if missed else "held-out goals met"
    lines.append(met + (f"; not judged: {', '.join(apart)}" if apart else ""))
    return Outcome("atlas", not missed, lines, figures)


def _printed() -> tuple[list[str], dict[str, Any]]:
    """(lines, figures) of the backends that are not judged: medians over the GPUs."""
    figures: dict[str, Any] = {}
    for backend in ALSO:
        for gpu in bundled_gpus():
            for found in held_out(load(gpu), backend):
                figures[f"{gpu} {backend} {found.operator} {found.dtype}"] = {"mean": found.mean, "p90": found.p90}
    means: dict[str, list[float]] = defaultdict(list)
    for name, one in figures.items():
        means[name.split(" ", 1)[1]].append(one["mean"])
    return [
        f"{name}: median over {len(values)} GPUs {median(values):.1%}, printed only" for name, values in means.items()
    ], figures


def goal(found: HeldOut) -> float:
    """The mean error an operator may have."""
    return GEMM_GOALS.get(found.dtype, GOALS["gemm"]) if found.operator == "gemm" else GOALS[found.operator]
