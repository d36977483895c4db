"""What a comparison may say: every variant against the first one, value by value, with an interval or the reason for
none.

The one idea: a difference is that of the two values the summaries give, and depends on these two runs alone. Seeds are
independent, so with several of them the seeds' differences are the observations; with one, the requests of the run are,
in batches. `kvcast.studies.intervals` has the statistics, docs/comparisons.md the formulas.

    >>> found = differences([[one.summary for one in group] for group in groups], [group[0].requests for group in groups])
    >>> print(as_table(("cache.policy",), [("lru",), ("lfu",)], found))
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcast import text
from kvcast.studies import intervals
from kvcast.studies.intervals import Columns, Difference

Summary = Mapping[str, Any]


def _points(value: float | None) -> str:
    return text.UNKNOWN if value is None else f"{100 * value:.2f} pp"


def _gpu_seconds(value: float | None) -> str:
    return text.UNKNOWN if value is None else f"{value:.4g}"


VALUES: dict[str, tuple[str, Callable[[float | None], str], str]] = {
    "attainment": ("attainment", _points, "higher"),
    "prefix_hit_rate": ("hit rate", _points, "higher"),
    "mean_ttft_ms": ("TTFT mean", text.milliseconds, "lower"),
    "p99_ttft_ms": ("TTFT p99", text.milliseconds, "lower"),
    "mean_tpot_ms": ("TPOT mean", text.milliseconds, "lower"),
    "mean_e2el_ms": ("E2E mean", text.milliseconds, "lower"),
    "gpu_s_per_request": ("GPU-s/request", _gpu_seconds, "lower"),
    "usd_per_request": ("cost/request", text.usd, "lower"),
}
"""Value -> heading, how a difference is printed, and which direction is better."""


@dataclass(frozen=True)
class Differences:
    method: str  #: what the observations are
    rows: tuple[dict[str, Difference], ...]  #: one per variant, in order; the first is against itself


def value(summary: Summary, key: str) -> float | None:
    """A value of VALUES from a summary."""
    if key == "gpu_s_per_request":
        return summary["gpu_hours"] * 3600 / summary["arrived"] if summary.get("arrived") else None
    if key == "usd_per_request":
        return summary["cost"]["usd_per_request"]
    return summary.get(key)


def differences(summaries: Sequence[Sequence[Summary]], requests: Sequence[Columns | None]) -> Differences:
    """summaries: per variant, one per seed, the same seeds in the same order. requests: per variant, its only seed's
    requests."""
    seeds = len(summaries[0])
    if seeds > 1:
        rows = tuple({key: _over_seeds(group, summaries[0], key) for key in VALUES} for group in summaries)
        return Differences(f"{seeds} seeds, differences paired by seed (replications)", rows)
    return _over_requests([group[0] for group in summaries], requests)


def _over_seeds(group: Sequence[Summary], first: Sequence[Summary], key: str) -> Difference:
    if key.endswith("_ms") and any(map(_drowns, (*group, *first))):
        return Difference(None, note="unstable")
    return intervals.replications([difference(a, b, key) for a, b in zip(group, first, strict=True)])


def difference(summary: Summary, first: Summary, key: str) -> float | None:
    """A value of VALUES minus the first variant's. An unstable run's latency has none: it says how long the run was."""
    a, b = value(summary, key), value(first, key)
    unknown = a is None or b is None or (key.endswith("_ms") and (_drowns(summary) or _drowns(first)))
    return None if unknown else a - b  # type: ignore[operator]


def _drowns(summary: Summary) -> bool:
    return summary.get("stable") is False


def _over_requests(summaries: Sequence[Summary], requests: Sequence[Columns | None]) -> Differences:
    if requests[0] is None:
        return Differences("one seed, requests not kept", tuple({} for _ in summaries))
    start_s = summaries[0]["window"]["start_s"]
    rule = f", before run.warmup_s = {start_s:g} s left out" if start_s else ""
    rows = tuple(
        _pair(summary, run, summaries[0], requests[0]) for summary, run in zip(summaries, requests, strict=True)
    )
    return Differences(f"one seed: batch means of the same requests in order of arrival{rule}", rows)


def _pair(summary: Summary, run: Columns | None, first: Summary, its_run: Columns) -> dict[str, Difference]:
    """A run against the first, whatever else is compared: the centres are the differences of the summaries' values."""
    if _drowns(summary) or _drowns(first):
        return {key: Difference(None, note="unstable") for key in VALUES}  # no steady state to compare
    if run is None or not intervals.same_requests(run, its_run):
        return {
            key: Difference(
                difference(summary, first, key), note="other requests than the first variant's: use --seeds"
            )
            for key in VALUES
        }
    found = _priced(intervals.request_differences(run, its_run), run, its_run, summary, first)
    return {
        key: one if one.mean is None else replace(one, mean=difference(summary, first, key))
        for key, one in found.items()
    }


def _priced(
    found: dict[str, Difference], run: Columns, its_run: Columns, summary: Summary, first: Summary
) -> dict[str, Difference]:
    """With that of the cost: every run's GPU-seconds at its own price."""
    prices = [one["cost"]["gpu_hour_usd"] for one in (summary, first)]
    if None in prices:
        return {**found, "usd_per_request": Difference(None, note="no price")}
    ours, theirs = (
        {**one, "gpu_hours": one["gpu_hours"] * (price / 3600)}
        for one, price in zip((run, its_run), prices, strict=True)
    )
    paid = intervals.request_differences(ours, theirs, only=("gpu_s_per_request",))
    return {**found, "usd_per_request": paid["gpu_s_per_request"]}


# -- told --------------------------------------------------------------------------------------------------------------


def as_rows(found: Differences) -> list[dict[str, dict[str, Any]]]:
    """JSON-able, one per variant: difference, half-width of its 95 % interval, whether zero is outside, observations,
    note."""
    return [
        {
            key: {
                "difference": d.mean,
                "interval_95": d.half,
                "shown": d.shown,
                "observations": d.batches,
                "note": d.note,
            }
            for key, d in row.items()
        }
        for row in found.rows
    ]


def verdict(key: str, difference: Difference) -> str:
    if difference.mean is None or difference.half is None:
        return difference.note or text.UNKNOWN
    if not difference.shown:
        words = "no difference shown"
    else:
        words = "better" if (difference.mean > 0) == (VALUES[key][2] == "higher") else "worse"
    return f"{words} ({difference.note})" if difference.note else words


def as_table(keys: Sequence[str], labels: Sequence[Sequence[str]], found: Differences) -> str:
    """Every variant but the first, a line for each value."""
    rows = []
    for label, row in list(zip(labels, found.rows, strict=True))[1:]:
        for key, (heading, show, _) in VALUES.items():
            difference = row.get(key, Difference(None))
            if difference.mean is None and difference.note in ("no price", "undefined", "not known for every seed"):
                continue
            half = difference.half
            ends = (
                text.UNKNOWN
                if difference.mean is None or half is None
                else f"{show(difference.mean - half)} to {show(difference.mean + half)}"
            )
            size = f"{difference.batches}" if half is not None else text.UNKNOWN
            rows.append([*label, heading, verdict(key, difference), show(difference.mean), ends, size])
            label = [""] * len(label)
    lines = [
        f"against the first variant, {found.method}:",
        text.table(
            [*keys, "value", "verdict", "difference", "95 % interval", "observations"], rows, left=len(keys) + 2
        ),
    ]
    count = sum(d.half is not None for row in found.rows[1:] for d in row.values())
    if count > 1:
        lines.append(
            f"each interval holds the truth 95 times in 100: of these {count}, {0.05 * count:.1f} are expected to miss"
        )
    return "\n".join(lines)
