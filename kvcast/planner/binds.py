"""What binds a fleet: +20 % of each resource, on the same requests, a little beyond the load it holds.

The one idea: what binds is the resource whose +20 % raises attainment most there, where no other surely does as much.

    >>> binding(loads, found)["resource"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calibrate.faster import HOST, INTERCONNECT, RESOURCES, SHARE, compared, has_host_time
from calibrate.profile import DeviceProfile
from kvcast import api, text
from kvcast.planner.load import Capacity, Loads, with_load
from kvcast.planner.trials import Judged, Trial, Trials
from kvcast.planner.whatif import LEAST_GAIN, gained, load_words, stress, try_all
from kvcast.scenario.resolve import HOST_KEYS, Resolved
from sim.engines import engine_of
from sim.scenario import Scenario
from workloads.errors import InputError

KV, REPLICAS, ROUTING = "KV capacity", "replicas", "routing"
RECOVERY = "recovery"
"""What binds a fleet that is larger than its load asks for, so that it comes back after a burst."""
MORE = {
    ROUTING: "a router that knows every cache",
    INTERCONNECT: "a 20 % faster interconnect",
    HOST: "a 20 % faster host",
}
"""What is not "20 % more" of something."""
FRONT = ("frontend_ms", "frontend_us_per_prompt_token", "frontend_us_per_output_token")
HOST_TIMES = (*HOST_KEYS, "step_overhead_ms", *FRONT)
"""Of [engine]: what a faster host divides."""
LEAST_PART = 0.25
"""Of what +20 % replicas gain: a resource that gains less does not bind alone."""


# -- what binds --------------------------------------------------------------------------------------------------------


def binding(loads: Loads, found: Capacity) -> dict[str, Any]:
    """+20 % of each resource at the stress load, each with the attainment it gains and that gain's 95 % interval.

    estimate: the step times are a roofline's ratio times the profile's (calibrate.faster), not anything measured.
    """
    at = stress(loads, found)
    step, base, sample = at.step, at.base, loads.sample(at.step)
    asked = [
        (name, one if isinstance(one, str) else replace(one, share=sample.share))
        for name, one in _resources(sample.scenario)
    ]
    tried = try_all(loads.trials, [trial for _, trial in asked], base, [resource != REPLICAS for resource, _ in asked])
    rows = [
        {"resource": resource, **gain, "reason": reason, "estimate": resource in RESOURCES}
        for (resource, _), (gain, reason, _) in zip(asked, tried, strict=True)
    ]
    load = found.load(step)
    bound: str | None = None
    rivals: list[str] = []
    if found.endless:
        words = (
            f"at {load_words(load, found.unit)}, the highest load that was looked at, the target is still met: nothing"
            " binds"
        )
    else:
        bound, rivals, words = _binds(
            rows, _alike(loads.trials, rows, [one for *_, one in tried]), base, load_words(load, found.unit)
        )
    return {
        "resource": bound,
        "rivals": rivals,
        "words": words,
        "load": load,
        "unit": found.unit,
        "rate_per_s": base.offered_per_s,
        "attainment": base.attainment.mean if base.attainment else None,
        "share": SHARE,
        "changes": rows,
    }


def recovery_binds(found: Capacity, recovery: dict[str, Any]) -> dict[str, Any]:
    """Of a fleet that is larger than its load asks for: it gives way to a burst long before its load is too much, and
    more of a resource at that load would say nothing of it. recovery: of the plan's document."""
    held, reach = found.load(found.held), recovery["recoverable_per_s"]
    more = "" if held is None else f", and holds {load_words(held, found.unit)} undisturbed"
    at = "its load" if reach is None else f"{load_words(reach, found.unit)} at most"
    return {
        "resource": RECOVERY,
        "rivals": [],
        "words": f"recovery from a burst: the fleet comes back at {at}{more}",
        "load": reach,
        "unit": found.unit,
        "rate_per_s": None,
        "attainment": None,
        "share": SHARE,
        "changes": [],
    }


def _resources(scenario: Scenario) -> list[tuple[str, Trial | str]]:
    resolved = api.resolve(scenario)
    more_kv = replace(
        scenario,
        engine=replace(scenario.engine, kv_blocks=round((resolved.scenario.engine.kv_blocks or 0) * (1 + SHARE))),
    )
    oracle: Trial | str = Trial(scenario, "oracle", full=True)
    if scenario.disaggregation.on:
        oracle = "the oracle router knows one pool of replicas"
    elif scenario.cluster.replicas == 1:
        oracle = "one replica: nothing to route"
    elif scenario.hardware.attention_dp > 1:
        oracle = "the oracle router knows one cache a replica, not those of attention_dp ranks"
    elif not engine_of(scenario.engine).has_oracle:
        oracle = "the oracle router reads vLLM's caches only"
    return [
        *((resource, _faster(scenario, resolved.profile, resource)) for resource in (*RESOURCES, INTERCONNECT)),
        (HOST, _sooner(scenario, resolved)),
        (KV, Trial(more_kv, full=True)),
        (REPLICAS, Trial(with_load(scenario, 1 / (1 + SHARE)), full=True)),
        (ROUTING, oracle),
    ]


def _faster(scenario: Scenario, profile: DeviceProfile, resource: str) -> Trial | str:
    try:
        compared(profile, scenario.model.dtype, resource)
    except InputError as error:
        return str(error)
    return Trial(scenario, resource, full=True)


def _sooner(scenario: Scenario, resolved: Resolved) -> Trial | str:
    """Host time divided by 1.2: that of [engine], and what the profile's own step times contain."""
    inside, rate = has_host_time(resolved.profile), scenario.engine.frontend_requests_per_s
    times = {key: getattr(resolved.scenario.engine, key) for key in HOST_TIMES}
    if not (inside or rate or any(times.values())):
        return f"no host time in this scenario: {', '.join(HOST_TIMES)} are 0"
    sooner = {key: value / (1 + SHARE) for key, value in times.items()}
    engine = replace(scenario.engine, **sooner, frontend_requests_per_s=rate and rate * (1 + SHARE))
    return Trial(replace(scenario, engine=engine), HOST if inside else "", full=True)


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The single resource that gains most."""
    return max(
        (row for row in rows if row["gain"] is not None and row["resource"] != REPLICAS),
        key=lambda row: row["gain"],
        default=None,
    )


def _alike(trials: Trials, rows: Sequence[dict[str, Any]], judged: Sequence[Judged | None]) -> list[str]:
    """Resources that gain something, and that the best one is not surely ahead of: over the same requests, the 95 %
    interval of the difference between the two reaches zero."""
    best = _best(rows)
    known = {
        row["resource"]: one
        for row, one in zip(rows, judged, strict=True)
        if one is not None and row["resource"] != REPLICAS and (row["gain"] or 0.0) > 0
    }
    if best is None or best["resource"] not in known:
        return []
    ahead = {
        name: gained(trials, known[best["resource"]], one) for name, one in known.items() if name != best["resource"]
    }
    return [name for name, by in ahead.items() if by.mean is None or by.half is None or by.mean - by.half <= 0]


def _binds(
    rows: Sequence[dict[str, Any]], alike: Sequence[str], base: Judged, load: str
) -> tuple[str | None, list[str], str]:
    replicas, best = (
        next((row for row in rows if row["resource"] == REPLICAS and row["gain"] is not None), None),
        _best(rows),
    )
    before = f"attainment from {text.percent(base.attainment.mean if base.attainment else None)}"
    if best is not None and best["gain"] >= max(LEAST_GAIN, LEAST_PART * (replicas["gain"] if replicas else 0.0)):
        more = MORE.get(best["resource"], f"20 % more {best['resource']}")
        apart = f"; {' and '.join(alike)} cannot be told apart from it" if alike else ", more than any other resource"
        return (
            best["resource"],
            list(alike),
            f"at {load}, {more} raises {before} to {text.percent(best['attainment'])}{apart}{_doubt(best)}",
        )
    if replicas is not None and replicas["gain"] >= LEAST_GAIN:
        return (
            REPLICAS,
            [],
            (
                f"at {load}, 20 % more replicas raise {before} to {text.percent(replicas['attainment'])}; no single"
                f" resource does nearly as much{_doubt(replicas)}"
            ),
        )
    grows = (
        ": the backlog grows there, and the run ends before that makes enough requests late"
        if base.stable is False
        else ""
    )
    return None, [], f"at {load}, 20 % more of any resource does not raise {before}{grows}"


def _doubt(row: dict[str, Any]) -> str:
    """A gain that one seed cannot show is said to be so."""
    return "" if row["gain_low"] is not None and row["gain_low"] > 0 else " (more seeds are needed to be sure)"
