"""The four numbers of a run, each with its 95 % interval and its change against a pinned baseline.

The one idea: a number is the summary's own; the requests it was made of, in batches, say how far chance could move it
(`kvcast.studies.intervals`), and paired with the baseline's requests, whether a change is more than chance.

    >>> [(n.label, n.value, n.interval) for n in four(load_run("runs/demo"))]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvcast import text
from kvcast.planner.words import share as share_words
from kvcast.present.verdict import ends_of, growth, points
from kvcast.store.runs import Run
from kvcast.studies import intervals
from kvcast.studies.intervals import Columns, Difference
from sim.measure.verdict import CONFIDENCE, Interval
from sim.measure.verdict import interval as share_interval

Document = Mapping[str, Any]


MARK = "†"  # a number that rests on extrapolated step times; a triangle would read as "rising"
MARKED_SHARE = 0.01


def mark_of_share(extrapolated: float | None) -> str:
    """The mark of numbers that rest on more than 1 % extrapolated simulated time."""
    return f" {MARK}" if (extrapolated or 0.0) >= MARKED_SHARE else ""


@dataclass(frozen=True)
class Number:
    label: str
    value: str
    term: str  #: its definition's name in pages.terms
    below: str = ""  #: what it is read beside: the median, the target
    interval: str = ""  #: its 95 % interval, or why there is none
    change: str = ""  #: against the baseline; empty without one
    better: bool | None = None  #: whether the change is for the better; None: no difference shown, or no interval
    rests_on_steps: bool = True  #: made of simulated time, so doubtful where step times are extrapolated


@dataclass(frozen=True)
class Kind:
    """What a number is of requests, and how it is told."""

    of: Callable[[Columns, np.ndarray], float]  #: (columns, rows) -> value
    per_batch: int  #: fewest requests of a batch
    show: Callable[[float | None], str]
    show_half: Callable[[float], str]
    higher_is_better: bool


def _p99(column: str) -> Callable[[Columns, np.ndarray], float]:
    def of(run: Columns, rows: np.ndarray) -> float:
        values = run[column][rows]
        values = values[~np.isnan(values)]
        return float(np.percentile(values, 99)) * 1e3 if len(values) else math.nan

    return of


def _gpu_hours_per_million(run: Columns, rows: np.ndarray) -> float:
    """Finished requests alone have output tokens to pay for: the fleet's hours over what they emitted."""
    tokens = run["output_tokens"][rows][run["status"][rows] == 0].sum()
    return float(np.nansum(run["gpu_hours"][rows]) / tokens * 1e6) if tokens else math.nan


ATTAINMENT = Kind(intervals.STATISTICS["attainment"][0], intervals.PER_BATCH, text.percent, points, True)
TTFT = Kind(_p99("ttft_s"), 100, text.milliseconds, text.milliseconds, False)
TPOT = Kind(_p99("tpot_s"), 100, text.milliseconds, text.milliseconds, False)
GPU_HOURS = Kind(_gpu_hours_per_million, intervals.PER_BATCH, text.hours, text.hours, False)


def four(run: Run, baseline: Run | None = None) -> list[Number]:
    """Within limits, TTFT, TPOT, cost; an unstable run has its backlog's growth instead of latency."""
    s = run.summary
    share = replace(
        _number(run, baseline, ATTAINMENT, "attainment", "Within limits", "attainment", _target(s)),
        interval=_ends(attained(run)),
    )
    if s["stable"] is False:
        rows = [
            ("Backlog growth (requests/s)", "backlog_growth_per_s"),
            ("Backlog growth (tokens/s)", "backlog_growth_tokens_per_s"),
        ]
        middle = [Number(label, growth(s[key]), "backlog", "over the second half") for label, key in rows]
    else:
        middle = [
            _number(
                run, baseline, TTFT, "p99_ttft_ms", "TTFT, p99", "ttft", f"p50 {text.milliseconds(s['p50_ttft_ms'])}"
            ),
            _number(
                run, baseline, TPOT, "p99_tpot_ms", "TPOT, p99", "tpot", f"p50 {text.milliseconds(s['p50_tpot_ms'])}"
            ),
        ]
    return [share, *middle, _cost(run, baseline)]


def attained(run: Run) -> Interval | None:
    """The share of all requests within their limits with its interval, as verdicts make it: never blind, even where no
    request missed."""
    requests = run.tables["requests"]
    if run.summary["attainment"] is None:
        return None
    return share_interval([requests["good"][intervals.arrival_order([requests])]], CONFIDENCE)


def _ends(found: Interval | None) -> str:
    return "" if found is None else f"{ends_of(found.low, found.high)} (95 %)"


def _target(s: Document) -> str:
    """Every class has its own share to reach, so this one, of all of them, does not decide where there are several."""
    if s["attainment_target"] is None or s["verdict"] is None:
        return "no target set"
    targets = {row["target"] for row in s["verdict"]["classes"]} or {s["attainment_target"]}
    wanted = " or ".join(share_words(one) for one in sorted(targets))
    return f"of all; every class needs {wanted}" if len(s["verdict"]["classes"]) > 1 else f"target {wanted}"


def _cost(run: Run, baseline: Run | None) -> Number:
    """USD where there is a price: GPU-hours times it, so the interval is theirs."""
    cost = run.summary["cost"]
    price = cost["gpu_hour_usd"]
    if price is None:
        return _number(
            run,
            baseline,
            GPU_HOURS,
            "gpu_hours_per_million_output_tokens",
            "GPU-h / M tokens",
            "gpu_hours",
            "output; no price set",
        )
    kind = Kind(
        lambda columns, rows: price * _gpu_hours_per_million(columns, rows),
        intervals.PER_BATCH,
        text.usd,
        text.usd,
        False,
    )
    same_price = baseline if baseline is not None and baseline.summary["cost"]["gpu_hour_usd"] == price else None
    bill = cost.get("at_offered")
    nominal = f"; at the offered load {text.usd(bill['usd_per_million_output_tokens'])}" if bill else ""
    return _number(
        run,
        same_price,
        kind,
        "usd_per_million_output_tokens",
        "Cost / M tokens",
        "cost",
        f"output{nominal}; {text.usd(cost.get('usd_per_million_input_tokens'))} input,"
        f" {text.usd(cost.get('usd_per_million_total_tokens'))} all; {text.usd(price)} a GPU-hour",
    )


def _number(run: Run, baseline: Run | None, kind: Kind, key: str, label: str, term: str, below: str) -> Number:
    value = _value(run, key)
    found = Difference(None) if value is None else interval(run, kind)
    told = _told(found, value, kind)
    if baseline is None:
        return Number(label, kind.show(value), term, below, told)
    change, better = _change(run, baseline, kind, key)
    return Number(label, kind.show(value), term, below, told, change, better)


def _value(run: Run, key: str) -> float | None:
    return run.summary[key] if key in run.summary else run.summary["cost"][key]


def interval(run: Run, kind: Kind) -> Difference:
    """Of one run: by sectioning its requests in order of arrival; nothing is cut, so the centre is the summary's
    value."""
    requests = run.tables["requests"]
    rows = intervals.arrival_order([requests])
    return intervals.paired(lambda picked: kind.of(requests, rows[picked]), len(rows), kind.per_batch)


def _told(found: Difference, value: float | None, kind: Kind) -> str:
    if value is None:
        return ""
    if not found.half:  # no interval, or batches without any spread, which says nothing of chance
        return f"no interval: {found.note or 'all batches are alike'}"
    return f"± {kind.show_half(found.half)} (95 %)"


def _change(run: Run, baseline: Run, kind: Kind, key: str) -> tuple[str, bool | None]:
    """The change against the baseline in words, and whether it is for the better where it is shown to be one."""
    value, before = _value(run, key), _value(baseline, key)
    if value is None or before is None or False in (run.summary["stable"], baseline.summary["stable"]):
        return "not comparable", None
    n = _shared(run.tables["requests"], baseline.tables["requests"])
    ours, theirs = ({name: one.tables["requests"][name][:n] for name in PAIRED} for one in (run, baseline))
    whole = n == max(len(one.tables["requests"]["request"]) for one in (run, baseline))
    if whole and value == before:
        return "no change", None
    rows = intervals.arrival_order([theirs, ours])
    found = (
        intervals.paired(
            lambda picked: kind.of(ours, rows[picked]) - kind.of(theirs, rows[picked]), len(rows), kind.per_batch
        )
        if len(rows)
        else Difference(None)
    )
    change = value - before if whole or found.mean is None else found.mean
    sign = "+" if change >= 0 else "−"
    told = (
        f"{sign}{kind.show(abs(change))}"
        if kind is not ATTAINMENT
        else f"{sign}{points(abs(change)).replace(' %', ' pp')}"
    )
    if not len(rows):
        return f"{told} (other requests)", None
    if found.half is None:
        return f"{told} (no interval)", None
    if not found.shown:
        return "no difference shown", None
    half = points(found.half).replace(" %", " pp") if kind is ATTAINMENT else kind.show_half(found.half)
    return (
        f"{told} ± {half}" + ("" if whole else f" (the {len(rows):,} requests that both judge)"),
        (change > 0) == kind.higher_is_better,
    )


PAIRED = ("in_window", "arrival_s", "good", "status", "ttft_s", "tpot_s", "output_tokens", "gpu_hours")
"""Columns that numbers and their pairing are made of."""


def _shared(ours: Columns, theirs: Columns) -> int:
    """How many requests, from the first on, two runs have in common: a larger fleet's caches fill more slowly, so it is
    judged a little later in the same arrivals."""
    n = min(len(ours["request"]), len(theirs["request"]))
    differ = np.flatnonzero(
        (ours["prompt_tokens"][:n] != theirs["prompt_tokens"][:n])
        | (ours["output_tokens"][:n] != theirs["output_tokens"][:n])
    )
    return int(differ[0]) if len(differ) else n
