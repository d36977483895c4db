"""Whole prefill and decode passes of the atlas against the package its tables come from.

The one idea: the atlas holds the package's measured rows, so a pass it adds up must be the package's own, within what
levelling and interpolating between shapes cost. The set passes when on every GPU, backend and phase the mean absolute
error is at most 3 % and no pass is more than 10 % off. Host time and launch floor are left out: the package has none.
Prefills over a cached prefix are printed and not judged: kvcast never lets them fall below the same prefill without one
or below reading their KV once, the package does. Left out, with their counts: prefills beyond the longest measured
prompt, where the package holds the last rate and kvcast goes on with the pairs of tokens, and decodes beyond the
contexts measured at their batch size (most need more memory than the GPU has), where each has its own form.

    kvcast validate passes --data DIR
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.atlas.steps import atlas_step_time
from calibrate.layout import Layout
from calibrate.models import resolve_model
from calibrate.step import EXTRAPOLATED, StepTime
from kvcast.validation import Outcome, required

MEAN, WORST = 0.03, 0.10
LONGEST = 16_384
"""Longest prompt whose attention was measured, tokens."""
EXPLAINED = {
    (
        "b200",
        "vllm",
        "decode",
    ): "its table has fp8 products of one token at 2.5 times those of two, and single counts at twice"
    " their neighbours; kvcast levels them"
}
"""Where kvcast deliberately differs from the package's rows, so that the limits say nothing."""
PREFIX = "prefill over a prefix"
BACKENDS = ("vllm", "sglang")


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
    apart = [name for name, f in figures.items() if not f["judged"]]
    lines.append(
        f"passes {'within' if passed else 'not within'} 3 % on average and 10 % at worst;"
        f" not judged: {', '.join(apart)}"
    )
    return Outcome("passes", passed, lines, figures)


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
    return atlas_step_time(gpu, resolve_model(model), quant, quant, Layout(int(tp)), backend=backend)
