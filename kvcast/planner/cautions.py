"""What a reader of a plan must know before acting on it.

>>> cautions(fleet, loads)
"""

from __future__ import annotations

import math
from typing import Any

from kvcast import api, text
from kvcast.api import Resolved
from kvcast.planner.fleet import Fleet
from kvcast.planner.load import closed_load, unit_of
from kvcast.planner.shorter import enough_s
from kvcast.planner.trials import Judged
from kvcast.scenario.gpu_prices import gpu_of
from sim.engines import engine_of
from sim.measure.verdict import requests_needed
from sim.recording import UNVERIFIED
from sim.scenario import Scenario
from workloads import mix, steady
from workloads.errors import InputError

PART, MUCH = 0.01, 0.05
SHORT = 0.5


def cautions(fleet: Fleet, winner: Scenario) -> list[str]:
    lines = []
    try:
        resolved = api.resolve(winner)
    except InputError:
        return []
    if resolved.profile.kind == "roofline":
        lines.append(
            f"{resolved.profile.id}: no step time was measured on this GPU; a roofline is right within about 30 %, and"
            " so is the number of GPUs"
        )
    lines += [resolved.layout.caution] if resolved.layout.caution else []
    version = engine_of(resolved.scenario.engine).version
    if UNVERIFIED in version:
        lines.append(f"{version}: no recorded case of the engine checks its rules; measure before you buy by them")
    lines += [line.removeprefix("caution: ") for line in resolved.kv_lines if line.startswith("caution: ")]
    answer = fleet.answer
    if answer is not None:
        outside = answer.extrapolated or 0.0
        if outside >= PART and resolved.profile.kind != "roofline":
            lines.append(
                f"{text.percent(outside)} of the chosen fleet's simulated time rests on step times beyond what was"
                f" measured{': ' if outside >= MUCH else ''}{'do not rely on it without a measurement' if outside >= MUCH else ''}"  # noqa: E501
            )
        if answer.stable is None and answer.summaries:
            lines.append(f"stability of the chosen fleet is not certain: {answer.summaries[0]['stable_reason']}")
        if any(summary["censored"] for summary in answer.summaries):
            lines.append(
                "more than 0.1 % of the arrivals did not complete: percentiles leave them out, attainment counts them"
                " as missed"
            )
    return (
        lines
        + _unpriced(fleet)
        + _too_short(winner)
        + _not_served(fleet, resolved)
        + _too_few(fleet, winner)
        + _too_few_sessions(fleet, winner)
    )


def _unpriced(fleet: Fleet) -> list[str]:
    """Fleets of several GPUs that are compared by their number."""
    known: dict[str, float | None] = {}
    for i in fleet.runnable:
        one = fleet.combinations[i]
        known[gpu_of(one.with_replicas(1)) or "a profile of your own"] = one.usd_per_gpu_hour
    without = [gpu for gpu, usd in known.items() if usd is None]
    if len(known) < 2 or not without:
        return []
    return [
        f"no price for {', '.join(without)}: fleets are compared by GPUs, not by money; give one for each GPU in"
        " [cost.prices] or with --prices FILE"
    ]


def _too_short(winner: Scenario) -> list[str]:
    """A mix that is watched for less long than it takes to judge it."""
    if winner.workload.trace is not None or winner.run.warmup_s is None or winner.run.duration_s is None:
        return []
    config = mix.resolve(winner.workload)
    if not steady.stationary(config) or steady.period_s(config):
        return []
    watched_s, needed_s = winner.run.duration_s - winner.run.warmup_s, min(steady.window_s(config), enough_s(config))
    if watched_s >= SHORT * needed_s:
        return []
    return [
        f"the mix is watched for {text.seconds(watched_s)}; without [workload] duration_s and requests it is for"
        f" {text.seconds(needed_s)}, as long as it takes for its sessions and its smallest class"
    ]


def growth_cautions(rows: list[dict[str, Any]] | None, replicas: int | None) -> list[str]:
    """A fleet that grows faster than its load: more of the same is not the answer there."""
    if not rows or replicas is None:
        return []
    faster = next(
        (row for row in rows if row["replicas"] and row["replicas"] > math.ceil(replicas * row["factor"])), None
    )
    return (
        []
        if faster is None
        else [
            f"at {faster['factor']:g} times the load {faster['replicas']} replicas are needed, more than"
            f" {faster['factor']:g} times as many: the fleet grows faster than its load"
        ]
    )


def period_cautions(period: dict[str, Any] | None) -> list[str]:
    """What else is to be known of a mix that follows the clock."""
    if period is None:
        return []
    hour, whole = f"hour {period['worst_from_s'] / 3600:.3g}", f"{period['period_s'] / 3600:g} hours"
    lines = [
        f"the mix follows the clock: the fleet is for its worst hour, from {hour} of {whole}"
        f" ({period['worst_offered_per_s']:.3g} requests/s; the mean is {period['offered_per_s']:.3g})"
    ]
    lines += [f"{period['asked']}; the plan is not for that window"] if period["asked"] else []
    return (
        lines
        if period["attains"]
        else [
            *lines,
            (
                "over the whole period it does not attain the target"
                f" ({text.percent(period['attainment']['mean'] or period['attainment']['high'])} of the requests)"
            ),
        ]
    )


def cache_cautions(without: dict[str, Any] | None, recovery: dict[str, Any] | None) -> list[str]:
    """A fleet that lives on its prefix cache: what a disturbance may do, where no burst was tried."""
    if without is None or without["attains"] or recovery is not None:
        return []
    return [
        "with its prefix cache off this fleet does not attain the target at this load: it meets while undisturbed. A"
        " burst, a restart or a lost replica can leave it with cold caches and a queue that keeps them cold; that was"
        " not simulated here"
    ]


def _not_served(fleet: Fleet, resolved: Resolved) -> list[str]:
    """Requests of the chosen fleet's runs (without one, of those that came closest) that were no load: they never came,
    or were too long.

    From one in a hundred on; where the KV memory is what makes them too long, from the first.
    """
    judged = fleet.answer or max(fleet.judged.values(), key=_attained, default=None)
    summaries = judged.summaries if judged else ()
    ended = resolved.scenario.run.duration_s is not None  # sessions that the window's end cuts are no loss
    never, cut = (
        sum(summary[key] for summary in summaries)
        for key in ("lost_with_session" if ended else "not_arrived", "session_truncated")
    )
    long, small, full = (
        sum(summary["rejected"][key] for summary in summaries) for key in ("too_long", "kv_too_small", "queue_full")
    )
    shed = sum(summary["rejected"].get("shed", 0) for summary in summaries)
    abandoned = sum(summary.get("abandoned", 0) for summary in summaries)
    everyone = never + sum(summary["arrived"] + summary["outside_window"] for summary in summaries)
    lost = never + cut + long + small + full + shed + abandoned
    if not everyone or (lost < PART * everyone and not small and not (resolved.lowered and long + cut)):
        return []
    engine, context = resolved.scenario.engine, resolved.model.max_context
    limit = (
        f"what fits in the KV memory ({engine.max_model_len:,} tokens; the model's context is {context:,})"
        if resolved.lowered
        else f"the context ({engine.max_model_len:,} tokens)"
    )
    parts = (
        (never, "never arrived because their session or the run ended before"),
        (long, f"were rejected as too long for {limit}"),
        (
            small,
            (
                f"were rejected because the KV memory ({resolved.memory.tokens(engine.kv_blocks or 0):,} tokens) is too"
                " small for them"
            ),
        ),
        (full, "were refused (HTTP 503) by max_num_queued_reqs or max_num_queued_tokens"),
        (shed, "were refused by the gateway (cluster.shed_over)"),
        (abandoned, "were given up by their clients ([client])"),
        (cut, f"ended their session because its prompt outgrew {limit}"),
    )
    return [
        f"{lost:,} of {everyone:,} requests ({text.percent(lost / everyone)}) were not served, and the plan is for the"
        f" others: {', '.join(f'{n:,} {what}' for n, what in parts if n)}"
    ]


def _attained(one: Judged) -> float:
    return one.attainment.mean if one.attainment and one.summaries else -1.0


def _too_few_sessions(fleet: Fleet, winner: Scenario) -> list[str]:
    """A closed loop cannot have more sessions at once than there are."""
    wanted, unit = closed_load(winner), unit_of(winner)
    if wanted is None or fleet.winner is None:
        return []
    sessions = fleet.trials.sessions(winner)
    if sessions < wanted:
        return [
            f"the workload has {sessions:,} sessions for {wanted:,} {unit}: never more than {sessions:,} run at once,"
            " and the plan is for those"
        ]
    bounded = winner.workload.trace is not None or winner.workload.duration_s is not None
    return (
        [
            f"the workload has {sessions:,} sessions for {wanted:,} {unit}: no higher load than {sessions:,} can be"
            " looked at"
        ]
        if bounded and sessions < 2 * wanted
        else []
    )


def _too_few(fleet: Fleet, winner: Scenario) -> list[str]:
    """A target that so few requests cannot show, even if all were good."""
    target, trials = winner.slo.attainment or 0.0, fleet.trials
    arrived = max((sum(summary["arrived"] for summary in one.summaries) for one in fleet.judged.values()), default=0)
    if target == 1:
        return ["a target of 100 % can be missed but never be shown: it counts as met when no simulated request missed"]
    needed = requests_needed(target, trials.confidence)
    if 0 < arrived < needed:
        return [
            f"{arrived:,} requests cannot show {text.percent(target, 2)} at {text.percent(trials.confidence, 0)}"
            f" confidence, even if all are good: {needed:,} are needed; use --seeds or a longer workload"
        ]
    return []
