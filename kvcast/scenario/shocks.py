"""The shocks of a scenario as numbers: those of load become sessions more in its workload.

The one idea: a shock's time counts from the end of the warm-up, which is known when the window is; what it adds to the
load is then written into [workload] surge, so that whoever makes the requests needs nothing else.

    >>> with_surges(resolve(scenario).scenario).workload.surge
"""

from __future__ import annotations

from dataclasses import replace

from kvcast.scenario.steady import is_mix
from sim.measure.shocks import span_s
from sim.scenario import BURST, LONG_PROMPTS, Scenario, Shock, SloClass
from workloads.config import Dist, Layer, MixClass, Surge
from workloads.errors import InputError

STORM_OUTPUT = 200
"""Tokens of the answer to a job of long prompts."""


def with_surges(scenario: Scenario) -> Scenario:
    """The scenario, its window in numbers, with what its shocks add to the load. The jobs of a storm have no limits:
    what they do to others is the question."""
    begins_s, ends_s = scenario.run.warmup_s or 0.0, scenario.run.duration_s
    for shock in scenario.shock:
        if ends_s is not None and begins_s + shock.at_s >= ends_s:
            raise InputError(
                f"[[shock]] {shock.kind}: at_s = {shock.at_s:g}, expected a time within the window, which ends"
                f" {ends_s - begins_s:g} s after the warm-up"
            )
    loads = [shock for shock in scenario.shock if shock.kind in (BURST, LONG_PROMPTS)]
    if not loads and not scenario.workload.surge:
        return scenario
    if not is_mix(scenario):
        raise InputError(
            f"[[shock]] kind = {loads[0].kind!r}: expected a mix with it, a trace has no sessions more to draw from"
        )
    surges = tuple(_surge(shock, place, begins_s) for place, shock in enumerate(scenario.shock, 1) if shock in loads)
    exempt = {surge.storm.slo_class: SloClass() for surge in surges if surge.storm is not None}
    return replace(
        scenario,
        workload=replace(scenario.workload, surge=surges),
        slo=replace(scenario.slo, classes={**scenario.slo.classes, **exempt}),
    )


def _surge(shock: Shock, place: int, begins_s: float) -> Surge:
    start_s, stop_s = span_s(shock, begins_s)
    name = f"shock {place}"
    if shock.kind == BURST:
        if shock.how_much <= 1:
            raise InputError(f"[[shock]] burst: size = {shock.size:g}, expected above 1: times the load")
        return Surge(name, start_s, stop_s - start_s, more=shock.how_much - 1, of=shock.of)
    text = Layer(name="job", scope="dynamic", tokens=Dist(value=float(round(shock.how_much))))
    storm = MixClass(
        name=f"long prompts ({name})",
        rate=shock.rate,
        layers=(text,),
        output=Dist(value=float(STORM_OUTPUT)),
        slo_class=f"long prompts ({name})",
    )
    return Surge(name, start_s, stop_s - start_s, storm=storm)
