"""The answer in one sentence: what the fleet on show does with the load, and what the plan found.

The one idea: the state decides what may be said. An unstable run has a growth instead of percentiles; a share has its
interval; without limits or a target there is no verdict.

    >>> verdict(load_run("runs/demo").summary, scenario.slo, (0.989, 0.995)).sentence
    >>> planned(plan).sentence
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcast import text
from kvcast.planner import words
from kvcast.planner.document import slo_of
from kvcast.summary_text import EXTRAPOLATED_LIMIT
from sim.scenario import SloConfig

MET, MISSED, UNSTABLE, UNKNOWN = "met", "missed", "unstable", "unknown"
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    state: str  #: MET, MISSED, UNSTABLE or UNKNOWN
    headline: str  #: the state in two or three words
    sentence: str
    reasons: tuple[str, ...] = ()  #: what it rests on
    caution: str = ""  #: what makes it doubtful; empty when nothing does


def verdict(document: Document, slo: SloConfig, ends: tuple[float, float] | None = None) -> Verdict:
    """The verdict of a run folder's document. slo: the scenario's limits, for the words. ends: of the attainment's 95 % interval."""
    fleet, caution = fleet_of(document), _caution(document)
    if document["stable"] is False:
        sentence = f"{fleet} cannot keep up: the backlog grows by {growth(document['backlog_growth_per_s'])} requests/s ({growth(document['backlog_growth_tokens_per_s'])} tokens/s)."
        reasons: tuple[str, ...] = (document["stable_reason"], "Latency only says how long this run was, so no percentiles are shown.")
        return Verdict(UNSTABLE, "Unstable.", sentence, reasons, _joined(caution))
    stability = f"stable: {document['stable_reason']}" if document["stable"] else f"stability unknown: {document['stable_reason']}"
    reached, target = document["attainment"], document["attainment_target"]
    if reached is None:
        return Verdict(UNKNOWN, "No limits are set.", f"{fleet}: set a limit on TTFT or TPOT in the sidebar for a verdict.", (stability,), _joined(caution))
    share = f"{fleet}: {_share(reached, ends)} of requests meet {words.limits(slo_of(slo))}"
    reasons = (*_worst_class(document), stability)
    if target is None:
        return Verdict(UNKNOWN, "No target is set.", f"{share}.", reasons, _joined(caution))
    if ends is not None and ends[0] < target <= ends[1]:
        caution = [f"the target lies within the interval, {text.percent(ends[0])} to {text.percent(ends[1])}: a longer run, or a plan with several seeds, decides", *caution]
    state, headline = (MET, "Meets the target.") if reached >= target else (MISSED, "Misses the target.")
    return Verdict(state, headline, f"{share} (target {_target(target)}).", reasons, _joined(caution))


def planned(plan: Document) -> Verdict:
    """The verdict of `kvcast plan`'s document, in its own words: the fewest GPUs, what binds, how far the load may grow, what to do next."""
    answer = plan["answer"]
    sentence = f"{_typeset(words.verdict(dict(plan)))}."
    state, headline = (MET, "Fewest GPUs:") if answer["feasible"] else (MISSED, "No fleet meets the target:")
    return Verdict(state, headline, sentence, (*_size(answer), _made_of(plan)), _joined(plan["caution"]))


def _size(answer: Document) -> tuple[str, ...]:
    """What the fleet costs and what else the plan chose."""
    if not answer["feasible"]:
        return ()
    chosen = f"; {answer['label']}" if answer["values"] else ""
    price = "" if answer["usd_per_hour"] is None else f", {text.usd(answer['usd_per_hour'])} an hour"
    return (f"{answer['gpu_hours_per_day']:,.0f} GPU-hours a day{price}{chosen}",)


def _made_of(plan: Document) -> str:
    ran, seeds = plan["simulations"], len(plan["seeds"])
    rejected = [f"{words.NAMES.get(key, key)} {count}" for key, count in plan["rejected_by"].items() if count]
    return (
        f"{len(plan['candidates'])} candidates on the same arrivals, {seeds} seed{'s' if seeds != 1 else ''}"
        f"{', rejected by ' + ', '.join(rejected) if rejected else ''}; {ran['distinct']:,} simulations, {ran['stopped_early']:,} of them stopped early"
    )


def _typeset(sentence: str) -> str:
    return sentence.replace("+-", "±").replace(" x ", " × ")


# -- words -------------------------------------------------------------------------------------------------------------


def fleet_of(document: Document) -> str:
    """ "2 × H200-SXM" or "2 replicas of 4 × H100-SXM-80GB", of a run's document."""
    replicas, gpus, gpu = document["replicas"], document["tensor_parallel"], document["profile_provenance"]["device"]["name"]
    return f"{replicas} × {gpu}" if gpus == 1 else f"{replicas} replica{'s' if replicas > 1 else ''} of {gpus} × {gpu}"


def points(half: float) -> str:
    """Half of an interval of a share, with a digit that is not zero."""
    return f"{100 * half:.1f} %" if half >= 0.001 or half == 0 else f"{100 * half:.1g} %"


def _share(mean: float, ends: tuple[float, float] | None) -> str:
    """ "99.2 % ± 0.3 %": the longer side."""
    return text.percent(mean) if ends is None else f"{text.percent(mean)} ± {points(max(mean - ends[0], ends[1] - mean))}"


def _target(target: float) -> str:
    return f"{100 * target:.4g} %"


def growth(value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"


def _worst_class(document: Document) -> tuple[str, ...]:
    """Which class does worst, when there are several."""
    rows = [(row["attainment"], name) for name, row in document["classes"].items() if row["attainment"] is not None]
    return (f"worst class: {min(rows)[1]}, {text.percent(min(rows)[0])}",) if len(rows) > 1 else ()


def _caution(document: Document) -> list[str]:
    share = document["coverage"]["extrapolated"]
    censored = document["arrived"] - document["completed"] if document["censored"] else 0
    parts = [f"{text.percent(share)} of simulated time is extrapolated: outside what the profile was made from"] if share > EXTRAPOLATED_LIMIT else []
    parts += [f"{text.count(censored)} of {text.count(document['arrived'])} arrivals did not complete and are in no latency figure"] if censored else []
    lost = document["not_arrived"]
    parts += [f"{text.count(lost)} more requests never arrived: their sessions ended before (a prompt longer than the context ends one), or the run did"] if lost else []
    if document["profile_provenance"]["kind"] == "roofline":
        parts.append("step times are a roofline estimate (±30 %), nothing measured")
    return parts


def _joined(parts: Any) -> str:
    return "; ".join(parts)
