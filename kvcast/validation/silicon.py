"""silicon: closed-loop runs that others measured, each simulated from the facts of its protocol.

The one idea: the rules (silicon.toml) turn a row into a scenario, the scenario is simulated, and the means of TTFT and
TPOT are held against the row's; nothing is fitted, every row is counted, and what cannot be answered has its reason.

    kvcast validate silicon --jobs 2                      # the installed aiconfigurator-core's file
    kvcast validate silicon --data silicon_sample.csv --sample 40
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from kvcast.validation import Outcome
from kvcast.validation.silicon_rows import Row, find, read
from kvcast.validation.silicon_rules import Rules, rules
from workloads.errors import InputError

METRICS = ("ttft", "tpot")
CHUNK = 8
"""Rows that a process takes at once, of one model and GPU as far as it goes: they share the atlas's tables."""


@dataclass(frozen=True)
class Scored:
    """A row and its simulation."""

    row: Row
    ttft_s: float
    tpot_s: float
    kv_share: float  #: KV of all places with whole prompts and answers, over what the replica holds
    preempted: int

    def error(self, metric: str) -> float:
        """Simulated over measured, minus 1."""
        return float(getattr(self, f"{metric}_s") / getattr(self.row, f"{metric}_s") - 1)


@dataclass(frozen=True)
class Refused:
    """A row that could not be simulated, and why."""

    row: Row
    why: str


def run(data: Path | None, **options: Any) -> Outcome:
    """Score every row that one replica can answer; `passed` when every group with a goal meets it."""
    file = rules()
    rows, unread = read(find(data), file.models)
    rows = sampled([file.told(row) for row in rows], options.get("sample"))
    scored, refused = split(answers(rows, int(options.get("jobs") or 1)))
    reasons = Counter(one.why for one in unread) + Counter(one.why for one in refused)
    lines = [f"{len(scored):,} rows scored, {sum(reasons.values()):,} not:"]
    lines += [f"  {n:,} {why}" for why, n in reasons.most_common()]
    by_group = [(group, [one for one in scored if group.holds(one.row)]) for group in file.groups]
    by_key: dict[str, list[Scored]] = {}
    for one in sorted(scored, key=lambda one: one.row.key):
        by_key.setdefault(one.row.key, []).append(one)
    lines += [HEAD, *(told(group.name, found, group.goal) for group, found in by_group if found)]
    for half, held in (("looked at", False), ("held back", True)):
        parts = [(g, [one for one in found if one.row.held_back == held]) for g, found in by_group]
        lines += [HEAD, *(told(f"{group.name}, {half}", found, {}) for group, found in parts if found)]
    lines += [HEAD, *(told(key, found, {}) for key, found in by_key.items())]
    missed = [group.name for group, found in by_group if found and not meets(found, group.goal)]
    lines.append(f"goals missed: {', '.join(missed)}" if missed else "every group meets its goal")
    figures = {
        "rows": len(scored),
        "not_scored": dict(reasons.most_common()),
        "groups": {g.name: {**summary(found), "goal": dict(g.goal)} for g, found in by_group if found},
        "halves": {group.name: halves(found) for group, found in by_group if found},
        "by_model_gpu_backend": {key: summary(found) for key, found in by_key.items()},
        "scored": [_figures(one) for one in scored],
        "refused": [{"id": one.row.id, "why": one.why} for one in refused],
    }
    return Outcome("silicon", not missed, lines, figures)


HEAD = f"{'':44s}     n   TTFT: mean median   bias   TPOT: mean median   bias"


def told(name: str, found: Sequence[Scored], goal: dict[str, float] | Any) -> str:
    """A line of the table: mean and median of the absolute error, and the signed mean."""
    parts = [f"{name:44s} {len(found):5,d}"]
    for metric in METRICS:
        mean, middle, bias = (summary(found)[metric][what] for what in ("mean", "median", "bias"))
        parts.append(f"  {100 * mean:9.1f} {100 * middle:6.1f} {100 * bias:+6.1f}")
    if goal:
        parts.append(f"   goal {100 * goal['ttft']:.0f} / {100 * goal['tpot']:.0f}")
        parts.append("" if meets(found, goal) else ", missed")
    return "".join(parts)


def summary(found: Sequence[Scored]) -> dict[str, Any]:
    """n, and of each metric mean and median of the absolute relative error, and the mean of the signed one."""
    made: dict[str, Any] = {"n": len(found), "kv_binding": sum(one.kv_share > 1 for one in found)}
    for metric in METRICS:
        errors = [one.error(metric) for one in found]
        size = [abs(error) for error in errors]
        made[metric] = {"mean": fmean(size), "median": median(size), "bias": fmean(errors)}
    return made


def halves(found: Sequence[Scored]) -> dict[str, Any]:
    """The summary of the rows whose residuals may be looked at, and of those that are only scored."""
    parts = {"looked_at": False, "held_back": True}
    return {
        name: summary(part)
        for name, held in parts.items()
        if (part := [one for one in found if one.row.held_back == held])
    }


def meets(found: Sequence[Scored], goal: Any) -> bool:
    made = summary(found)
    return all(made[metric]["mean"] <= limit for metric, limit in goal.items())


def sampled(rows: Sequence[Row], n: int | None) -> list[Row]:
    """n rows of all, the same ones every time."""
    if n is not None and n < 1:
        raise InputError(f"validate silicon: --sample {n}: expected 1 or more rows")
    return list(rows) if n is None or n >= len(rows) else random.Random(0).sample(list(rows), n)


def split(found: Sequence[Scored | Refused]) -> tuple[list[Scored], list[Refused]]:
    return [x for x in found if isinstance(x, Scored)], [x for x in found if isinstance(x, Refused)]


def answers(rows: Sequence[Row], jobs: int) -> list[Scored | Refused]:
    """Every row simulated or refused, by model, GPU and width."""
    ordered = sorted(rows, key=lambda row: (row.key, row.precision, row.tp, row.dp, row.ep, row.id))
    if jobs < 2:
        return [answer(row) for row in ordered]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(answer, ordered, chunksize=CHUNK))


def answer(row: Row) -> Scored | Refused:
    """Simulate one row."""
    from kvcast import api
    from kvcast.config import scenario_from_doc
    from sim.measure.metrics import per_request

    file: Rules = rules()
    try:
        prepared = api.prepare(scenario_from_doc(file.scenario(row), row.id))
        recording = api.record(prepared)
    except InputError as error:
        return Refused(row, _short(str(error), row))
    times = per_request(recording, prepared.workload)
    if (unfinished := int((recording.status != 0).sum())) > 0:
        return Refused(row, f"{unfinished} requests refused by the engine: longer than its step or its memory")
    held = prepared.resolved.params.kv_tokens * row.dp
    return Scored(
        row,
        float(np.mean(times["ttft_s"])),
        float(np.nanmean(times["tpot_s"])),
        row.concurrency * (row.isl + row.osl) / held,
        int(recording.preemptions.sum()),
    )


def _short(words: str, row: Row) -> str:
    """A reason that rows share: without the row's own name."""
    return words.replace(f"{row.id}: ", "").split(" (")[0][:160]


def _figures(one: Scored) -> dict[str, Any]:
    errors = {f"{metric}_error": one.error(metric) for metric in METRICS}
    mine = {"simulated_ttft_s": one.ttft_s, "simulated_tpot_s": one.tpot_s, "kv_share": one.kv_share}
    return {
        **asdict(one.row),
        "moe": one.row.moe,
        "held_back": one.row.held_back,
        **mine,
        "preempted": one.preempted,
        **errors,
    }


def by_words(found: Sequence[Scored]) -> Iterator[str]:
    """A line for each row, worst TTFT first."""
    for one in sorted(found, key=lambda one: -abs(one.error("ttft"))):
        yield f"{one.row.words}: TTFT {one.error('ttft'):+.0%}, TPOT {one.error('tpot'):+.0%}, KV {one.kv_share:.2f}"
