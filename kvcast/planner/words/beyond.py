"""What is told beyond the answer: how far it reaches, what binds, what helps, growth, the launch command, its making.

>>> print(reach(plan("examples/demo.toml")))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.planner.flags import READ
from kvcast.planner.words.phrases import at_least, burst, larger, load, number, replicas


def command_of(launch: dict[str, Any]) -> tuple[str, list[str]]:
    """The engine that a plan starts, and its command line."""
    return next((engine, launch[engine]) for engine in READ if launch.get(engine))


def reach(made: dict[str, Any]) -> str:
    capacity = made["capacity"]
    if capacity is None:
        return ""
    unit = capacity["unit"]
    if capacity["slo_capacity_per_s"] is None:
        return f"SLO capacity: below a 32nd of the offered load ({load(capacity['offered_rate_per_s'], unit)})"
    least = "at least " if capacity["breaks_at_per_s"] is None else ""
    between = (
        f" (from {load(capacity['low'], unit)}; no higher load was looked at)"
        if least
        else f" (from {load(capacity['low'], unit)} to {load(capacity['high'], unit)})"
    )
    knee = (
        ""
        if made["knee_per_s"] is None
        else f"; knee of goodput at {made['knee_per_s']:.3g} requests/s: more load brings no more good answers"
    )
    lines = [
        *_recoverable(made, unit),
        f"SLO capacity, undisturbed: {least}{load(capacity['slo_capacity_per_s'], unit)}{between}, offered"
        f" {load(capacity['offered_rate_per_s'], unit)}{knee}",
    ]
    cells = [
        [
            number(row["load"], unit),
            text.percent(row["attainment"]),
            f"{row['goodput_per_s']:.3g}" if row["goodput_per_s"] is not None else text.UNKNOWN,
            text.milliseconds(row["ttft_ms_p50"]),
            text.milliseconds(row["ttft_ms_p99"]),
            text.milliseconds(row["tpot_ms_p99"]),
            {None: "?", True: "yes", False: "NO"}[row["stable"]],
        ]
        for row in made["rates"]
    ]
    return "\n".join(
        [
            *lines,
            text.table([unit, "attainment", "goodput/s", "TTFT p50", "TTFT p99", "TPOT p99", "stable"], cells, left=0),
        ]
    )


def _recoverable(made: dict[str, Any], unit: str) -> list[str]:
    """What the standard burst does to the chosen fleet."""
    recovery = made["recovery"]
    if recovery is None:
        return []
    within = f"within {text.seconds(recovery['within_s'])}"
    more = (
        f"; {recovery['holds_replicas']} {replicas(recovery['holds_replicas'])} would hold the load until disturbed"
        if larger(made)
        else ""
    )
    times = [back for back in recovery["recovered_s"] if back is not None]
    if not recovery["recovers"]:
        return [f"after {burst(recovery)} it is not back at its target {within}"]
    took = f"back after {text.seconds(max(times))} at most, on seeds {', '.join(map(str, recovery['seeds']))}"
    reach = recovery["recoverable_per_s"]
    up_to = (
        ""
        if reach is None
        else f"recoverable capacity: {at_least(made)}{load(reach, unit)}, back at the target {within} of "
    )
    return [f"{up_to}{burst(recovery)} (at the offered load {took}){more}"]


def binding(made: dict[str, Any]) -> str:
    if made["binding"] is None:
        return ""
    rows = made["binding"]["changes"]
    cells = [
        [row["resource"], text.percent(row["attainment"]), f"{100 * row['gain']:+.1f} pp", _range(row)]
        for row in rows
        if row["gain"] is not None
    ]
    left_out = [f"{row['resource']} ({row['reason']})" for row in rows if row["gain"] is None and row["reason"]]
    lines = [f"what binds: {made['binding']['words']}"]
    if cells:
        lines.append(text.table(["+20 % of", "attainment", "gain", "95 % interval"], cells))
    return "\n".join([*lines, *([f"not tried: {'; '.join(left_out)}"] if left_out else [])])


def _range(row: dict[str, Any]) -> str:
    return text.UNKNOWN if row["gain_low"] is None else f"{100 * row['gain_low']:+.1f} to {100 * row['gain_high']:+.1f}"


def advice(made: dict[str, Any]) -> str:
    if made["advice"] is None:
        return ""
    back = larger(made)
    tried = sum(row["reason"] is None if back else row["gain"] is not None for row in made["tried"])
    if not made["advice"]:
        helps = "brings a smaller fleet back soon after the burst" if back else "helps"
        return f"advice: none of {tried} changes that were simulated {helps}"
    calm = "; what they hold is undisturbed" if made["recovery"] else ""
    lines = [
        f"what lets a smaller fleet come back after the burst, of {tried} changes that were simulated:"
        if back
        else f"changes that help most, of {tried} that were simulated (by one run each, with and without{calm}):"
    ]
    for place, row in enumerate(made["advice"], 1):
        lines.append(f"{place}. {row['words']}" + "".join(f"\n   --set '{one}'" for one in row["set"]))
    return "\n".join(lines)


def more(made: dict[str, Any]) -> str:
    lines = []
    rows = made["growth"] or []
    if rows:
        advised = any(row["advised"] for row in rows)
        cells = [
            [f"{row['factor']:g}x", *_grown(row), *(_grown(row["advised"] or {}) if advised else [])] for row in rows
        ]
        header = ["load", "replicas", "GPUs", "$/h", *(["replicas", "GPUs", "$/h"] if advised else [])]
        lines.append(
            "at larger loads,"
            f" undisturbed{', as it is and with ' + next(row['advised']['change'] for row in rows if row['advised']) if advised else ''}:\n{text.table(header, cells, left=1)}"  # noqa: E501
        )
    spare = made["n_plus_1"]
    if spare is not None:
        down = (
            "nothing is left"
            if spare["attainment_one_down"] is None
            else f"attainment {text.percent(spare['attainment_one_down'])}"
        )
        survives = "" if spare["replicas"] is None else f"; {spare['replicas']} replicas survive the loss of one"
        told = failure(made)
        itself = "" if told else " (the failure itself: kvcast resilience, or a [[shock]])"
        lines.append(
            f"one replica down: {down}{' (still meets)' if spare['enough'] else ''}{survives}; in the steady"
            f" state{itself}"
        )
        lines += [told] if told else []
    return "\n".join(lines)


def failure(made: dict[str, Any]) -> str:
    """What a failure itself does to the answer; "" where that was not asked, or of a plan of an earlier version."""
    row = made.get("failure")
    if not row:
        return ""
    back = (
        f"not back at its target within {text.seconds(row['within_s'])}"
        if row["recovered_s"] is None
        else f"at its target again {text.seconds(row['recovered_s'])} after it is back"
        if row["recovered_s"]
        else "at its target again as soon as it is back"
    )
    return (
        f"one replica fails, and is back, cold, after {text.seconds(row['down_s'])}: attainment"
        f" {text.percent(row['attainment_during'])} meanwhile (before: {text.percent(row['attainment_before'])});"
        f" {back}"
    )


def _grown(row: dict[str, Any]) -> list[str]:
    return [text.count(row.get("replicas")), text.count(row.get("gpus")), text.usd(row.get("usd_per_hour"))]


def launch(made: dict[str, Any]) -> str:
    import shlex

    launch = made["answer"]["launch"]
    if launch is None:
        return ""
    _, command = command_of(launch)
    return "\n".join(
        [f"launch, {launch['words']}:", "  " + shlex.join(command), *(f"  note: {note}" for note in launch["notes"])]
    )


def launched(made: dict[str, Any]) -> str:
    """What became of the flags of --from-launch or --from-log."""
    given = made["launched"]
    if given is None:
        return ""
    told = (
        ("taken over", "set"),
        ("without effect on timing and cache", "no_effect"),
        ("NOT simulated", "not_modelled"),
        ("UNKNOWN, not taken over", "unknown"),
    )
    return "\n".join(
        [f"{given['engine']} flags {what}: {', '.join(given[key])}" for what, key in told if given[key]]
        + given["notes"]
    )


def _seeds_run(made: dict[str, Any]) -> list[int]:
    """The seeds of the answer: as many more follow the given ones where those left it open (Trials.settle)."""
    given = list(made["seeds"])
    runs = (made["answer"] and made["answer"]["runs"]) or 0  # None where nothing was settled
    return [*given, *range(given[-1] + 1, given[-1] + 1 + runs - len(given))]


def made_of(made: dict[str, Any]) -> str:
    done = made["simulations"]
    run = "" if done["run"] is None else f" ({done['reused']} were there already), {done['cpu_s']:.0f} CPU-s"
    lines = [
        f"attainment at {text.percent(made['confidence'], 0)} confidence: {made['method']}; seeds"
        f" {', '.join(map(str, _seeds_run(made)))}"
    ]
    lines.append(
        f"{done['distinct']} simulations, {done['stopped_early']} of them stopped early because the target was out of"
        f" reach{run}"
    )
    return "\n".join([*lines, *(f"note: {note}" for note in made["notes"])])
