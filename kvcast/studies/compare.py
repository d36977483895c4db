"""Variants of a scenario on the same arrivals.

The one idea: variants that share a workload section and a seed share one window and one loaded workload, so within a
seed everything but the varied keys is equal and differences are paired.

    >>> from kvcast import config
    >>> from kvcast.studies import compare
    >>> variants = compare.variants(config.load_doc("examples/demo.toml"), ["cache.policy=lru,lfu"], seeds=3)
    >>> print(compare.as_table(compare.simulate_all(variants)))
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import text
from kvcast.config import literal, override, place_of, scenario_from_doc
from kvcast.scenario.gpu_prices import priced
from kvcast.studies import intervals, scaled
from kvcast.studies.differences import Differences, as_rows, difference, value
from kvcast.studies.differences import as_table as difference_table
from kvcast.studies.differences import differences as all_differences
from kvcast.studies.replications import (
    NOT_DRAWN,
    Refused,
    Result,
    Variant,
    alike,
    kept,
    limits_in,
    simulate_all,
    that_fit,
)
from kvcast.studies.shocked import COMPARED, compared, stable_word
from sim.measure.verdict import all_stable, judge, sample_in
from sim.scenario import Scenario
from workloads.errors import InputError

__all__ = [
    "COLUMNS",
    "NOT_DRAWN",
    "Result",
    "Variant",
    "against_first",
    "alike",
    "as_document",
    "as_table",
    "axes",
    "differences",
    "groups",
    "interval",
    "judged",
    "kept",
    "limits_in",
    "once",
    "shock_table",
    "simulate_all",
    "that_fit",
    "variants",
]

DOES_NOT_FIT = "does not fit"
MAX_RUNS = 10_000  #: of one grid: every combination, times the seeds
COLUMNS: dict[str, tuple[str, Any]] = {
    "attainment": ("attainment", text.percent),
    "prefix_hit_rate": ("hit rate", text.percent),
    "mean_ttft_ms": ("TTFT mean", text.milliseconds),
    "p99_ttft_ms": ("TTFT p99", text.milliseconds),
    "mean_tpot_ms": ("TPOT mean", text.milliseconds),
    "mean_e2el_ms": ("E2E mean", text.milliseconds),
    "output_throughput": ("output tok/s", text.count),
    "preemptions": ("preemptions", text.count),
    "gpu_s_per_request": ("GPU-s/request", lambda v: text.UNKNOWN if v is None else f"{v:.4g}"),
    "gpu_hours": ("GPU-hours", text.hours),
}
"""summary.json keys shown side by side -> heading and how to print them."""


def given_in(doc: dict, source: str) -> Scenario | None:
    """The scenario of these tables, whose own price they hold; None where they are none before something is varied."""
    try:
        return scenario_from_doc(doc, source)
    except InputError:
        return None


def variants(doc: dict, vary: Sequence[str], seeds: int = 1, source: str = "scenario") -> list[Variant]:
    """Every combination of the values in `vary` ("a.b=v1,v2"), for each seed from the scenario's own upwards.

    All variants of a seed are consecutive. Raises InputError for a key or value that is wrong.
    """
    varied = axes(doc, vary, seeds)
    keys = tuple(varied)
    own = None if "cost.gpu_hour_usd" in keys else given_in(doc, source)
    first = scenario_from_doc(doc, source).seed if "seed" in doc else 0
    out = []
    for seed in range(first, first + seeds):
        for combination in itertools.product(*varied.values()):
            overrides = [f"seed={seed}", *(f"{key}={value}" for key, value in zip(keys, combination, strict=True))]
            scenario = scenario_from_doc(override(doc, overrides), source)
            out.append(Variant(combination, keys, priced(scenario, own)))
    return out


def axes(doc: dict, vary: Sequence[str], seeds: int = 1) -> dict[str, list[str]]:
    """Varied key -> its values, of "a.b=v1,v2". Raises InputError for an axis that is wrong, or more than MAX_RUNS; the
    values are not looked at."""
    parted = [_axis(axis) for axis in vary]
    runs = seeds * math.prod(len(values) for _, values in parted)
    if runs > MAX_RUNS:
        raise InputError(
            f"--vary: {runs:,} runs ({' x '.join(f'{len(values):,} of {key}' for key, values in parted)}, {seeds:,}"
            f" {'seed' if seeds == 1 else 'seeds'}), expected at most {MAX_RUNS:,}"
        )
    _check_distinct(doc, [key for key, _ in parted])
    return dict(parted)


def _axis(axis: str) -> tuple[str, list[str]]:
    key, separator, values = axis.partition("=")
    listed = _listed(values)
    if not separator or not all(listed):
        raise InputError(f"--vary {axis}: expected section.key=value,value, such as cache.policy=lru,lfu")
    if len(set(map(_as_key, listed))) < len(listed):
        raise InputError(f"--vary {axis}: a value is there twice")
    if key.strip() == "seed":
        raise InputError(f"--vary {axis}: use --seeds N, which keeps the seeds of a variant together")
    return key.strip(), listed


def _listed(values: str) -> list[str]:
    """The values between commas; one inside of an array or a table, or of a text in it, is its own."""
    depth, parts = 0, [""]
    for piece in re.findall(r""""[^"]*"|'[^']*'|.""", values) if {"[", "{"} & {*values} else values:
        depth += (piece in "[{") - (piece in "]}")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def _as_key(text: str) -> Any:
    """What equal values have in common, however they are written: 1 and 1.0."""
    read = literal(text)
    return repr(read) if isinstance(read, list | dict) else read


def _check_distinct(doc: dict, keys: Sequence[str]) -> None:
    """Two --vary of one key, or of a table and a key in it: the second would undo the first and the labels would
    lie."""
    places = {key: place_of(doc, key) for key in keys}
    for (i, a), (j, b) in itertools.combinations(enumerate(keys), 2):
        shorter = min(len(places[a]), len(places[b]))
        if places[a][:shorter] == places[b][:shorter]:
            raise InputError(
                f"--vary {a} and --vary {b} (numbers {i + 1} and {j + 1}) change the same key; expected all its values"
                " in one --vary"
            )


# -- results -----------------------------------------------------------------------------------------------------------


def groups(results: Iterable[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Results by variant, each with one result per seed."""
    out: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        out.setdefault(result.variant.label, []).append(result)
    return out


def once(results: Sequence[Result]) -> list[Result]:
    """One result of each variant when every variant's seeds gave equal runs: that they draw nothing may show only in
    the end."""
    grouped = groups(results)
    if all(map(_equal, grouped.values())):
        return [
            replace(group[0], variant=replace(group[0].variant, drawn=False)) if len(group) > 1 else group[0]
            for group in grouped.values()
        ]
    return list(results)


def _equal(group: Sequence[Result]) -> bool:
    """Whether the runs are one run; True of a single one."""
    first, *others = (one.requests for one in group)
    return all(
        first is not None
        and other is not None
        and all(np.array_equal(first[name], other[name], equal_nan=True) for name in ("arrival_s", "ttft_s", "e2e_s"))
        for other in others
    )


def judged(group: Sequence[Result]) -> dict[str, Any] | None:
    """The verdict over a variant's seeds together, as summary["verdict"]; None without a target or a limit."""
    if len(group) == 1 or group[0].summary["verdict"] is None:
        return group[0].summary["verdict"]
    samples = [sample_in(one.requests or {}, one.limits) for one in group]
    return judge(
        samples, group[0].variant.scenario.slo, all_stable([one.summary["stable"] for one in group])
    ).as_document()


def interval(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and half-width of its 95 % interval (Student's t over seeds); None for what is not known."""
    found = intervals.replications(values)
    return found.mean, found.half


def against_first(grouped: Mapping[tuple[str, ...], Sequence[Result]]) -> Differences:
    return all_differences(
        [[r.summary for r in group] for group in grouped.values()], [group[0].requests for group in grouped.values()]
    )


def differences(group: Sequence[Result], first: Sequence[Result], key: str) -> list[float | None]:
    """Paired differences of a summary value to the first variant, seed by seed."""
    return [difference(a.summary, b.summary, key) for a, b in zip(group, first, strict=True)]


def as_document(results: Sequence[Result], refused: Refused | None = None) -> dict[str, Any]:
    """refused: the variants that do not fit, of `that_fit`."""
    results = once(results)
    grouped = groups(results)
    first = next(iter(grouped.values()))
    rows, found = [], against_first(grouped)
    for group, row_differences in zip(grouped.values(), as_rows(found), strict=True):
        keys = group[0].variant.keys
        row: dict[str, Any] = {
            "variant": dict(zip(keys, group[0].variant.label, strict=True)),
            "seeds": [r.summary["seed"] for r in group],
            "verdict": judged(group),
        }
        for key in COLUMNS:
            row[key], row[f"{key}_interval_95"] = interval([value(r.summary, key) for r in group])
            told = row_differences.get(key)
            row[f"{key}_vs_first"], row[f"{key}_vs_first_interval_95"] = (
                interval(differences(group, first, key)) if told is None else (told["difference"], told["interval_95"])
            )
        rows.append({**row, "vs_first": row_differences, "summaries": [r.summary for r in group]})
    keys = results[0].variant.keys
    not_run = [{"variant": dict(zip(keys, label, strict=True)), "why": why} for label, why in (refused or {}).items()]
    return {"method": found.method, "drawn": results[0].variant.drawn, "variants": rows, "does_not_fit": not_run}


def as_table(results: Sequence[Result], against_the_first: bool = True, refused: Refused | None = None) -> str:
    """refused: the variants that do not fit, of `that_fit`."""
    results = once(results)
    grouped = groups(results)
    keys = results[0].variant.keys
    header = [*keys, "verdict", *(heading for heading, _ in COLUMNS.values()), "stable"]
    rows = []
    for label, group in grouped.items():
        cells = [
            _with_interval(*interval([value(r.summary, key) for r in group]), show)
            for key, (_, show) in COLUMNS.items()
        ]
        rows.append([*label, _word(group), *cells, _stable(group)])
    rows += [[*label, DOES_NOT_FIT, *[""] * (len(COLUMNS) + 1)] for label in refused or ()]
    lines = [text.table(header, rows, left=len(keys) + 1)]
    lines += [text.wrapped(f"{', '.join(label)}: {DOES_NOT_FIT}: {why}") for label, why in (refused or {}).items()]
    lines += [line for table in (shock_table(grouped), fleet_table(grouped)) if table for line in ("", table)]
    seeds = len(next(iter(grouped.values())))
    if seeds > 1:
        lines += ["", f"mean over {seeds} seeds ± half its 95 % interval; verdict over all of them"]
    elif results[0].summary["verdict"]:
        lines += ["", "verdict of one run: a sketch" if results[0].variant.drawn else NOT_DRAWN]
    if len(grouped) > 1 and against_the_first:
        lines += ["", difference_table(keys, list(grouped), against_first(grouped))]
    if any(r.summary.get("stable") is False for r in results):
        lines += [
            "",
            (
                "the latency of an unstable variant says how long its run was as much as how fast it is: differences to"
                " it are not told"
            ),
        ]
    summary = results[0].summary
    lines += [
        "",
        (
            f"hit rates: rule {summary.get('counting_rule')}, block size {summary.get('block_size')}; {len(grouped)}"
            " variants on the same arrivals"
        ),
    ]
    return "\n".join(lines)


def shock_table(grouped: Mapping[tuple[str, ...], Sequence[Result]]) -> str:
    """What each variant's shocks did, and whether it was back; empty without any."""
    keys = next(iter(grouped.values()))[0].variant.keys
    rows = [[*label, *row] for label, group in grouped.items() for row in compared([r.summary for r in group])]
    told = "shocks: attainment before, during and after; hit rate and number waiting after; runs back at the target"
    return text.wrapped(told) + "\n" + text.table([*keys, *COMPARED], rows, left=len(keys) + 1) if rows else ""


def fleet_table(grouped: Mapping[tuple[str, ...], Sequence[Result]]) -> str:
    """What each variant's fleet has held, and its GPU-hours and cost beside the first one's; empty where none
    changes."""
    keys = next(iter(grouped.values()))[0].variant.keys
    held = scaled.rows_of([[r.summary for r in group] for group in grouped.values()])
    rows = [[*label, *row] for label, row in zip(grouped, held, strict=False)]
    return text.wrapped(scaled.TOLD) + "\n" + text.table([*keys, *scaled.HEADER], rows, left=len(keys)) if rows else ""


def _with_interval(mean: float | None, half: float | None, show: Any) -> str:
    return show(mean) if half is None else text.plus_minus(show(mean), half, show)


def _word(group: Sequence[Result]) -> str:
    found = judged(group)
    return text.UNKNOWN if found is None else found["word"] + (f" ({found['class']})" if found["class"] else "")


def _stable(group: Sequence[Result]) -> str:
    return "/".join(dict.fromkeys(stable_word(r.summary) for r in group))
