"""What the model's own error makes of a verdict: the same run with all steps as much slower, or faster, as the profile
may be off.

The one idea: an interval of the sample says how sure a share is if the step times are right; near saturation a step
error of a few per cent is worth more than that, so both stand beside each other and neither is hidden in the other.

    >>> model_error(api.prepare(scenario))["slower"]["attains"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from calibrate.scaled import Scaled as ScaledSteps
from kvcast import api, text
from kvcast.trust.step_error import step_error
from sim.measure.judged import Columns, good_of
from sim.measure.metrics import limits_of
from sim.measure.sketch import sketch
from sim.measure.verdict import Verdict, judge, named_limits, sample_in
from sim.scenario import SloClass, SloConfig

if TYPE_CHECKING:
    from calibrate.latency import StepTime
    from kvcast.api import Resolved

SIDES = (("slower", 1, "longer"), ("faster", -1, "shorter"))


@dataclass(frozen=True)
class Scaled:
    """The run at both ends of its profile's error, before anybody judges it."""

    share: float
    source: str
    columns: Mapping[str, Columns]  #: side -> sim.measure.sketch's
    stable: Mapping[str, bool | None]  #: side -> whether its backlog did not grow


def model_error(prepared: api.Prepared, **options: Any) -> dict[str, Any]:
    """JSON-able: share and source of the profile's error, and the verdict at both ends. Options are those of
    `api.record`."""
    slo = prepared.scenario.slo
    return judged(scaled(prepared, **options), named_limits(prepared.workload, limits_of(prepared.workload, slo)), slo)


def scaled(prepared: api.Prepared, **options: Any) -> Scaled:
    """Simulate both ends."""
    errors = {of.profile.content_hash: step_error(of.profile) for of in prepared.resolved.each}
    error, columns, stable = max(errors.values(), key=lambda found: found.share), {}, {}
    for side, sign, _ in SIDES:
        one = api.with_steps(prepared, partial(_slower, {key: sign * found.share for key, found in errors.items()}))
        columns[side], summary = sketch(api.record(one, **options), one.workload, one.scenario, None)
        stable[side] = summary["stable"]
    return Scaled(error.share, error.source, columns, stable)


def _slower(by: Mapping[str, float], of: Resolved, step_time: StepTime) -> StepTime:
    """Steps that take longer by their profile's share, given by its hash."""
    return ScaledSteps(step_time, 1 + by[of.profile.content_hash])


def judged(runs: Scaled, classes: Sequence[tuple[str, SloClass]], slo: SloConfig) -> dict[str, Any]:
    """The document of `model_error`. classes: (name, limits) by class_id."""
    found: dict[str, Any] = {"share": runs.share, "source": runs.source}
    for side, _, _ in SIDES:
        told = judge([sample_in(_with_good(runs.columns[side], classes), classes)], slo, runs.stable[side])
        found[side] = {
            "verdict": told.word,
            "attains": attains(told, runs.stable[side]),
            "stable": runs.stable[side],
            "classes": [one.as_document() for one in told.classes],
        }
    return found


def _with_good(columns: Columns, classes: Sequence[tuple[str, SloClass]]) -> Columns:
    return {**columns, "good": good_of(columns, classes)}


def attains(judged: Verdict, stable: bool | None) -> bool:
    """Whether every class's share itself reaches its target, sure or not."""
    return (
        bool(judged.classes)
        and stable is not False
        and all(row.attainment is not None and row.attainment.mean >= row.target for row in judged.classes)
    )


def as_words(error: dict[str, Any]) -> str:
    """model error: 99.8 % of chat with step times 2.4 % longer and 99.9 % of chat with step times 2.4 % shorter."""
    ends = [f"{_worst(error[side])} with step times {text.percent(error['share'])} {words}" for side, _, words in SIDES]
    agree = error["slower"]["attains"] == error["faster"]["attains"]
    return f"model error, of one run: {' and '.join(ends)}" + (
        "" if agree else ", so it depends on the step times whether it meets"
    )


def _worst(one: dict[str, Any]) -> str:
    """The lowest share of a class against its target."""
    rows = [row for row in one["classes"] if row["attainment"] is not None]
    if not rows:
        most = one.get("attainment", {}).get("high")
        return text.UNKNOWN if most is None else f"at most {text.percent(most)}"
    worst = min(rows, key=lambda row: row["attainment"]["mean"] - row["target"])
    return f"{text.percent(worst['attainment']['mean'])}{' of ' + worst['name'] if len(rows) > 1 else ''}"
