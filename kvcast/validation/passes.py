"""Whole prefill and decode passes of the atlas against the package its tables come from.

The one idea: the atlas holds the package's measured rows, so a pass it adds up must be the package's own, within what
levelling and interpolating between shapes cost. The set passes when on every GPU, backend and phase the mean absolute
error is at most 3 % and no pass is more than 10 % off. Host time and launch floor are left out: the package has none.
Prefills over a cached prefix are printed and not judged: kvcast never lets them fall below the same prefill without one
or below reading their KV once, the package does. Left out, with their counts: prefills beyond the longest measured
prompt, where the package holds the last rate and kvcast goes on with the pairs of tokens, and decodes beyond the
contexts measured at their batch size (most need more memory than the GPU has), where each has its own form.

The same for two models in no table (tools/export_passes.py): Qwen2.5-72B, whose feed-forward is 29,568 wide, and one
9,216 wide that nobody has, at 4 and 8 GPUs. Their mean errors are held to the error that the atlas states for such a
step. Nothing was tuned on them; of the recorded passes, those of Llama-3.1-8B on an H200 gave PREFILL_CALL_S.

    kvcast validate passes --data DIR
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.atlas.errors import by_phase
from calibrate.atlas.steps import atlas_step_time, points
from calibrate.atlas.tables import load
from calibrate.layout import Layout
from calibrate.model_spec import ModelSpec
from calibrate.models import resolve_model
from calibrate.sources.tables import TableStepTime
from calibrate.step import EXTRAPOLATED, StepTime
from kvcast.validation import Outcome, required

MEAN, WORST = 0.03, 0.10
LONGEST = 16_384
"""Longest prompt whose attention was measured, tokens."""
EXPLAINED = {
    ("b200", "vllm", "decode"): "its fp8 products of one token take 2.2 times those of two (B300 2.5, GB200 2.7: vLLM's"
    " kernel does not suit one row), and single counts twice their neighbours; kvcast levels both",
    ("a100", "trtllm", "decode"): "its decodes of grouped heads beat the memory by up to 1.7 times, as if KV were half;"
    " kvcast refuses the table and takes vLLM's",
}
"""Where kvcast deliberately differs from the package's rows, so that the limits say nothing."""
PREFIX = "prefill over a prefix"
ONE_FP8 = "decode of one sequence"
"""Of models in no table, in fp8 on a B200, apart from the other decodes: the levelled product of one token."""
BACKENDS = ("vllm", "sglang", "trtllm")


UNMEASURED = Path(__file__).parent / "unmeasured_passes.csv"
WIDE = ModelSpec("wide-9216", 60, 9216, 72, 8, 128, 24576, 128_256, 32_768)


class Pass(NamedTuple):
    """One whole pass, what the atlas says and what the package says."""

    case: str
    atlas_s: float
    package_s: float
    extrapolated: bool

    @property
    def error(self) -> float:
        return self.atlas_s / self.package_s - 1


def run(data_dir: Path, **_: object) -> Outcome:
    """Compares every prefill and decode pass of the backends the atlas holds."""
    folder = required(required(data_dir / "measured") / "aic_tables")
    groups: dict[tuple[str, str, str], list[Pass]] = defaultdict(list)
    sources: dict[tuple[str, ...], StepTime] = {}
    beyond = {"prefill": 0, "decode": 0}
    for phase in ("prefill", "decode"):
        with required(folder / f"{phase}_ms.csv").open(newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                if row["backend"] not in BACKENDS:
                    continue
                key = (row["model"], row["gpu"], row["tp"], row["quant"], row["backend"])
                source = sources.get(key) or sources.setdefault(key, _source(*key))
                found = _pass(source, phase, row)
                if found.extrapolated:
                    beyond[phase] += 1
                else:
                    over = phase if row.get("cached_prefix", "0") == "0" else PREFIX
                    groups[row["gpu"].removesuffix("_sxm"), row["backend"], over].append(found)
    lines, figures, passed = [], {}, True
    for (gpu, backend, phase), passes in sorted(groups.items()):
        errors = [abs(p.error) for p in passes]
        worst = max(passes, key=lambda p: abs(p.error))
        mean = sum(errors) / len(errors)
        within = mean <= MEAN and abs(worst.error) <= WORST
        why = EXPLAINED.get((gpu, backend, phase), "") or ("a formula of our own" if phase == PREFIX else "")
        passed = passed and (within or bool(why))
        figures[f"{gpu} {backend} {phase}"] = {
            "passes": len(passes),
            "mean": mean,
            "worst": worst.error,
            "case": worst.case,
            "judged": not why,
        }
        lines.append(
            f"{gpu} {backend} {phase}: mean error {mean:.1%}, worst {worst.error:+.1%} ({worst.case}),"
            f" {len(passes)} passes" + ("" if within else f"; beyond 3 % or 10 %{': ' + why if why else ''}")
        )
    lines.append(f"left out beyond what was measured: {beyond['prefill']} prefills, {beyond['decode']} decodes")
    told, unmeasured, stated = unmeasured_models()
    lines, figures, passed = [*lines, *told], {**figures, **unmeasured}, passed and stated
    apart = [name for name, f in figures.items() if not f["judged"]]
    lines.append(
        f"passes {'within' if passed else 'not within'} 3 % on average and 10 % at worst;"
        f" not judged: {', '.join(apart)}"
    )
    return Outcome("passes", passed, lines, figures)


def unmeasured_models() -> tuple[list[str], dict[str, Any], bool]:
    """(lines, figures, whether every judged mean is within the error that the atlas states) of models in no table."""
    groups: dict[tuple[str, str, str, str], list[tuple[Pass, float]]] = defaultdict(list)
    known: dict[tuple[str, ...], tuple[StepTime, dict[str, tuple[float, str]]]] = {}
    with UNMEASURED.open(newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            key = (row["model"], row["gpu"], row["tp"], row["quant"], row["backend"])
            if key not in known:
                model = WIDE if row["model"] == WIDE.name else resolve_model(row["model"])
                atlas, layout = load(row["gpu"].removesuffix("_sxm")), Layout(int(row["tp"]))
                table = points(atlas, model, row["quant"], row["quant"], layout, row["backend"], as_tabled=True)
                known[key] = TableStepTime(table), by_phase(table)
            source, errors = known[key]
            one = _pass(source, row["phase"], {**row, "latency_ms": row["ms"]})
            gpu = row["gpu"].removesuffix("_sxm")
            alone = (gpu, row["quant"], row["phase"], row["batch"]) == ("b200", "fp8", "decode", "1")
            phase = ONE_FP8 if alone else row["phase"]
            groups[row["model"], gpu, row["quant"], phase].append((one, errors[row["phase"]][0]))
    lines: list[str] = []
    figures: dict[str, Any] = {}
    passed = True
    for (name, gpu, quant, phase), compared in sorted(groups.items()):
        mean = sum(abs(one.error) for one, _ in compared) / len(compared)
        worst, limit = (
            max((one for one, _ in compared), key=lambda one: abs(one.error)),
            max(error for _, error in compared),
        )
        why = EXPLAINED[gpu, "vllm", "decode"] if phase == ONE_FP8 else ""
        passed = passed and (mean <= limit or bool(why))
        case = f"{name} {gpu} {quant} {phase}"
        figures[case] = {
            "passes": len(compared),
            "mean": mean,
            "worst": worst.error,
            "stated": limit,
            "judged": not why,
        }
        lines.append(
            f"{case}, in no table: mean error {mean:.1%} of {limit:.1%} stated, worst {worst.error:+.1%}"
            f" ({worst.case}), {len(compared)} passes" + (f"; beyond: {why}" if why else "")
        )
    return lines, figures, passed


def _pass(source: StepTime, phase: str, row: dict[str, Any]) -> Pass:
    shape: tuple[Any, ...]
    batch, package_s = int(row["batch"]), float(row["latency_ms"]) / 1e3
    if phase == "prefill":
        new, cached = int(row["new_tokens"]), int(row["cached_prefix"])
        shape, what = ([(new, cached)] * batch, 0, 0, 0, batch), f"{new} new over {cached}"
        outside = new + cached > LONGEST
    else:
        context = int(row["context"])
        shape, what, outside = ([], batch, batch * context, context, batch), f"{context}", False
    seconds, cover = source.step(*shape)
    case = f"{row['model']} {row['quant']} TP{row['tp']}, {batch} x {what}"
    return Pass(case, seconds, package_s, outside or cover == EXTRAPOLATED)


def _source(model: str, gpu: str, tp: str, quant: str, backend: str) -> StepTime:
    return atlas_step_time(gpu, resolve_model(model), quant, quant, Layout(int(tp)), backend=backend, as_tabled=True)
