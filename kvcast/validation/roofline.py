"""The roofline against tables of measured operators, GPU by GPU.

The one idea: the roofline promises +-30 % on a GPU nobody calibrated, so it is held against every GPU somebody did. The
set passes when on every GPU the mean absolute error over its prefill steps, and over its decode steps, is at most 30 %;
the bias and the worst step are printed too (single steps are up to twice off). The tables hold no host time and no
front end; the roofline's defaults do.

    kvcast validate roofline --data DIR
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.latency import StepTime, step_time
from calibrate.models import ModelSpec, resolve_model
from calibrate.resolve import resolve_profile
from calibrate.sources.roofline import roofline_profile
from kvcast.validation import Outcome, required

LIMIT = 0.30
KERNEL_TABLES = {"rtx-4090": "rtx4090_llama-3.1-8b", "rtx-pro-6000": "rtxpro6000_llama-3.1-8b"}


class Step(NamedTuple):
    """One whole step and what the tables say it takes."""

    gpu: str
    phase: str
    case: str  #: model, precision and width
    estimate_s: float
    table_s: float

    @property
    def error(self) -> float:
        return self.estimate_s / self.table_s - 1


def run(data_dir: Path, **_: object) -> Outcome:
    """Compares every prefill and decode step of the vLLM tables; passed when each phase of each GPU is within 30 % by
    the rule above."""
    measured = required(data_dir / "measured")
    steps = [*_aic_steps(required(measured / "aic_tables")), *_kernel_steps(measured)]
    by_gpu: dict[str, dict[str, list[Step]]] = defaultdict(lambda: defaultdict(list))
    for step in steps:
        by_gpu[step.gpu][step.phase].append(step)
    lines: list[str] = []
    figures: dict[str, Any] = {}
    passed = True
    for gpu, phases in sorted(by_gpu.items()):
        summaries = {phase: _summary(rows) for phase, rows in sorted(phases.items())}
        figures[gpu] = summaries
        passed = passed and all(s["mean_abs_error"] <= LIMIT for s in summaries.values())
        lines += [f"{gpu} {phase}: {_phrase(summary)}" for phase, summary in summaries.items()]
    verdict = "within 30 %" if passed else "not within 30 %"
    lines.append(
        f"roofline {verdict} of the tables: mean absolute error per GPU and phase, {len(steps)} steps on {len(by_gpu)}"
        " GPUs"
    )
    return Outcome("roofline", passed, lines, figures)


def _summary(steps: list[Step]) -> dict[str, Any]:
    errors = [s.error for s in steps]
    worst = max(steps, key=lambda s: abs(s.error))
    return {
        "steps": len(steps),
        "mean_abs_error": sum(abs(e) for e in errors) / len(errors),
        "bias": sum(errors) / len(errors),
        "worst_error": worst.error,
        "worst_case": worst.case,
    }


def _phrase(f: dict[str, Any]) -> str:
    over = "; beyond 30 %" if f["mean_abs_error"] > LIMIT else ""
    return (
        f"mean error {f['mean_abs_error']:.1%}, bias {f['bias']:+.1%}, worst {f['worst_error']:+.0%}"
        f" ({f['worst_case']}), {f['steps']} steps{over}"
    )


def _aic_steps(folder: Path) -> Iterator[Step]:
    """Prefill and decode steps of the vLLM rows; their fp8 rows use an fp8 KV cache as well."""
    sources: dict[tuple[str, ...], StepTime] = {}
    for name in ("prefill_ms.csv", "decode_ms.csv"):
        with required(folder / name).open(newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                if row["backend"] != "vllm":
                    continue
                key = (row["model"], row["gpu"], row["tp"], row["quant"])
                source = sources.get(key) or sources.setdefault(key, _aic_source(*key))
                gpu, case = row["gpu"].removesuffix("_sxm"), f"{row['model']} {row['quant']} TP{row['tp']}"
                batch, table_s = int(row["batch"]), float(row["latency_ms"]) / 1e3
                if name.startswith("prefill"):
                    new, cached = int(row["new_tokens"]), int(row["cached_prefix"])
                    seconds = source.step([(new, cached)] * batch, 0, 0, 0, batch)[0]
                    yield Step(gpu, "prefill", f"{case}, {batch} x {new} new over {cached}", seconds, table_s)
                else:
                    context = int(row["context"])
                    seconds = source.step([], batch, batch * context, context, batch)[0]
                    yield Step(gpu, "decode", f"{case}, {batch} x {context}", seconds, table_s)


def _aic_source(model: str, gpu: str, tp: str, quant: str) -> StepTime:
    shapes = resolve_model(model)
    profile = roofline_profile(gpu.removesuffix("_sxm"), quant, int(tp), kv_dtype=quant)
    return step_time(profile, shapes, quant, int(tp))


def _kernel_steps(measured: Path) -> Iterator[Step]:
    """Steps of the two cards whose kernels were timed one layer at a time, at shapes inside their grids."""
    model: ModelSpec = resolve_model("llama-3.1-8b")
    for gpu, folder in KERNEL_TABLES.items():
        table = step_time(resolve_profile(str(required(measured / folder / "kernels")), model), model)
        estimate = step_time(roofline_profile(gpu), model)
        prefills = [
            ([(new, cached)], 0, 0, 0, 1) for new in (128, 256, 512, 1024, 2048) for cached in (0, 512, 2048, 8192)
        ]
        decodes = [
            (batch, context)
            for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
            for context in (512, 1024, 2048, 4096, 8192, 16384)
        ]
        for shape in prefills:
            new, cached = shape[0][0]
            yield Step(
                gpu,
                "prefill",
                f"{model.name} bf16 TP1, 1 x {new} new over {cached}",
                estimate.step(*shape)[0],
                table.step(*shape)[0],
            )
        for batch, context in decodes:
            estimate_s, table_s = (
                source.step([], batch, batch * context, context, batch)[0] for source in (estimate, table)
            )
            yield Step(gpu, "decode", f"{model.name} bf16 TP1, {batch} x {context}", estimate_s, table_s)
