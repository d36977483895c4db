"""A plan in a sentence: fleet, attainment, what binds, how far it reaches, what to do next; or what came closest.

>>> verdict(plan("examples/demo.toml"))
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from kvcast import text
from kvcast.planner.words.fewer import answers
from kvcast.planner.words.phrases import (
    NAMES,
    PERIOD,
    RECOVERY,
    at_least,
    burst,
    fleet,
    interval_share,
    limits,
    load,
    replicas,
    share,
    sketch,
)
from kvcast.trust.model_error import as_words
from sim.measure.verdict import INTERVAL

FLAT, SEVERAL = 0.005, 3  #: attainments this close, of at least so many fleet sizes, are the same


def verdict(made: dict[str, Any]) -> str:
    """One sentence: fleet, attainment with its interval, what binds, how far it reaches, what to do next."""
    answer, wanted = made["answer"], share(made["slo"]["attainment"])
    if answer["reason"] == PERIOD:
        return (
            f"{fleet(made)} misses: it meets in the worst hour of the mix's clock and not over its whole period,"
            f" {interval_share(made['period']['attainment'])} of requests within {limits(made['slo'])}, target {wanted}"
        )
    if answer["reason"] == RECOVERY:
        return (
            f"{fleet(made)} is metastable: it holds its load until disturbed and misses: after"
            f" {burst(made['recovery'])} it is not back at its target within"
            f" {text.seconds(made['recovery']['within_s'])} ({_back(made['recovery'])}); undisturbed"
            f" {_classes(made)} of requests within {limits(made['slo'])}, target {wanted}"
        )
    if not answer["feasible"]:
        return _infeasible(made)
    parts = [
        (
            f"{fleet(made)} {_meets(made)}: {_classes(made)} of requests within {limits(made['slo'])}, target"
            f" {wanted}{sketch(answer)}"
        ),
        *([as_words(made["model_error"])] if made["model_error"] else []),
    ]
    if made["binding"] is not None and made["binding"]["resource"] is not None:
        rivals = made["binding"].get("rivals") or []
        parts.append(
            f"binding: {' or '.join([made['binding']['resource'], *rivals])}" + (" (not told apart)" if rivals else "")
        )
    capacity, recovery = made["capacity"], made["recovery"]
    if recovery is not None and recovery["headroom"] is not None:
        parts.append(
            f"headroom {at_least(made)}{100 * recovery['headroom']:.0f} %"
            f"{_surely(capacity, recovery['headroom'])}: recovers up to"
            f" {load(recovery['recoverable_per_s'], capacity['unit'])}{_band(recovery, capacity)}"
        )
    elif capacity is not None and capacity["headroom"] is not None:
        least = "at least " if capacity["breaks_at_per_s"] is None else ""
        parts.append(
            f"headroom {least}{100 * capacity['headroom']:.0f} %{_surely(capacity, capacity['headroom'])}"
            + ("" if least else f": holds up to {load(capacity['slo_capacity_per_s'], capacity['unit'])}")
        )
    if made["advice"]:
        parts.append(f"next: {made['advice'][0]['change']}")
    return "; ".join(parts)


def _meets(made: dict[str, Any]) -> str:
    """Meets, and comes back after a burst where that was asked; else whether it lives on its cache."""
    if made["recovery"] is not None:
        return "meets and recovers"
    return "meets while undisturbed" if lives_on_its_cache(made) else "meets"


def _back(recovery: dict[str, Any]) -> str:
    """By seed, up to the first that was not back."""
    return ", ".join(
        f"seed {seed}: {'not back' if back is None else f'back after {text.seconds(back)}'}"
        for seed, back in zip(recovery["seeds"], recovery["recovered_s"], strict=False)
    )


def _band(recovery: dict[str, Any], capacity: dict[str, Any]) -> str:
    """The loads above those it recovers from that it holds until it is disturbed."""
    holds, open_ended = capacity["slo_capacity_per_s"], capacity["breaks_at_per_s"] is None
    if holds <= recovery["recoverable_per_s"]:
        return ", the highest load that was looked at" if open_ended else ", all that it holds"
    least = "at least " if open_ended else ""
    return f", metastable (holds until disturbed) up to {least}{load(holds, capacity['unit'])}"


def _surely(capacity: dict[str, Any], headroom: float) -> str:
    """The headroom to the highest load that surely meets, where that is less."""
    low = capacity["low"]
    sure = None if not low else 1 - capacity["offered_rate_per_s"] / low
    return (
        ""
        if sure is None or sure <= 0 or round(100 * sure) >= round(100 * headroom)
        else f" ({100 * sure:.0f} % surely)"
    )


def lives_on_its_cache(made: dict[str, Any]) -> bool:
    """Whether the fleet that meets would not do so with its caches empty."""
    return made["without_cache"] is not None and not made["without_cache"]["attains"]


def _classes(made: dict[str, Any]) -> str:
    """The share of all requests, or of each class where there are several."""
    rows = [row for row in made["answer"]["classes"] if row["attainment"] is not None]
    if len(rows) < 2:
        return interval_share(rows[0]["attainment"] if rows else made["answer"]["attainment"])
    return ", ".join(f"{row['name']} {interval_share(row['attainment'])}" for row in rows)


def _infeasible(made: dict[str, Any]) -> str:
    tried = [row for row in made["candidates"] if row["runs"]]
    if not tried:
        return f"nothing here can run: {made['candidates'][0]['reason']}"
    best = closest(tried)
    found, name, target = _farthest(best)
    most = max(row["replicas"] for row in tried)
    reached = (
        f"at best {interval_share(found)}{f' of {name}' if name else ''} with {best['replicas']}"
        f" {replicas(best['replicas'])}"
        if found["mean"] is not None
        else "every one of them was hopeless"
    )
    if found["mean"] is not None and found["low"] < target <= found["mean"]:
        reached += (
            ", and the lower end of that is below the target:"
            f" {'a longer workload' if len(made['seeds']) > best['runs'] else 'more seeds or a longer workload'} would"
            " tell"
        )
    missed = (
        f", most often missed: {NAMES[best['rejected_by']]}"
        if best["rejected_by"] in NAMES
        else f", {best['rejected_by']}"
        if best["rejected_by"] not in (None, INTERVAL)
        else ""
    )
    fixed = made["answer"]["gpus"] is not None
    who = fleet(made) if fixed else f"not even {most} {replicas(most)}"
    verb = (
        ("is not shown to meet" if made["answer"]["word"] == "not shown" else "misses")
        if fixed
        else "meets"
        if most == 1
        else "meet"
    )
    return (
        f"{who} {verb} {limits(made['slo'])} for {share(made['slo']['attainment'])} of the requests at"
        f" {text.percent(made['confidence'], 0)} confidence: {reached}{missed}{'' if fixed else _flat(tried, best)}"
        + "".join(f"; {one}" for one in answers(made))
    )


def closest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """The candidate that comes closest to the target."""
    return max(tried, key=lambda row: (_margin(row), row["attainment"]["mean"] or -1.0, -row["gpus"]))


def _farthest(row: dict[str, Any]) -> tuple[dict[str, Any], str, float]:
    """Attainment, name and target of a candidate's class that is farthest below its target; without a name where there
    is only one."""
    known = [one for one in row["classes"] if one["attainment"] is not None]
    if not known:
        return row["attainment"], "", 1.0
    worst = min(known, key=lambda one: one["attainment"]["mean"] - one["target"])
    return worst["attainment"], worst["name"] if len(row["classes"]) > 1 else "", worst["target"]


def _margin(row: dict[str, Any]) -> float:
    found, _, target = _farthest(row)
    return -2.0 if found["mean"] is None else found["mean"] - target


def plateau(margins: Mapping[int, float | None]) -> tuple[int, int] | None:
    """(fewest, most) replicas of a combination, at least SEVERAL sizes and the most twice the fewest, from which on
    larger fleets attain no more, to FLAT; None where it may still rise. margins: by replicas, of the class that is
    farthest below its target; None is not known."""
    sizes = sorted(margins, reverse=True)
    if not sizes or (top := margins[sizes[0]]) is None:
        return None

    def as_much(margin: float | None) -> bool:
        return margin is not None and margin >= top - FLAT

    same = list(takewhile(lambda n: as_much(margins[n]), sizes))
    return (same[-1], same[0]) if len(same) >= SEVERAL and same[0] >= 2 * same[-1] else None


def _flat(tried: list[dict[str, Any]], best: dict[str, Any]) -> str:
    """That more replicas bring nothing, where the best combination attains about the same or more at several sizes
    below its largest."""
    rows = {row["replicas"]: row for row in tried if row["label"] == best["label"]}
    known = {n: _farthest(row)[0]["mean"] is not None and row["stable"] is not False for n, row in rows.items()}
    found = plateau({n: _margin(row) if known[n] else None for n, row in rows.items()})
    if found is None:
        return ""
    shares = [_farthest(row)[0]["mean"] for n, row in rows.items() if found[0] <= n <= found[1]]
    attained = (
        f"{text.percent(min(shares))} to {text.percent(max(shares))}"
        if max(shares) - min(shares) > FLAT
        else "the same"
    )
    return f"; {found[0]} to {found[1]} replicas attain {attained}, so more of them bring nothing"
