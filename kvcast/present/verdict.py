"""The answer in one sentence: what the fleet on show does with the load, and what the plan found.

The one idea: the words are `sim.measure.verdict`'s, as summary.json and plan.json have them; nothing is judged here.
Only without limits or a target is there no verdict.

    >>> run = load_run("runs/demo"); verdict(run.summary, run.scenario).sentence
    >>> planned(plan).sentence
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from kvcast import text
from kvcast.planner import words
from kvcast.planner.document import slo_of
from kvcast.present.verdict_text import EXTRAPOLATED_LIMIT, disturbed, undisturbed
from kvcast.trust.model_error import as_words
from sim.measure import mixed
from sim.measure.regime import METASTABLE, STABLE
from sim.measure.verdict import INTERVAL, MEETS, MISSES, NOBODY, NOT_SHOWN, POOLED
from sim.scenario import Scenario

MET, MISSED, OPEN, UNKNOWN = "met", "missed", "not-shown", "unknown"
STATES = {MEETS: (MET, "Meets the target."), MISSES: (MISSED, "Misses the target."), NOT_SHOWN: (OPEN, "Not shown.")}
Document = Mapping[str, Any]
UPLOAD = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True)
class Verdict:
    state: str  #: MET, MISSED, OPEN (not shown) or UNKNOWN (nothing to judge by)
    headline: str  #: the state in two or three words
    sentence: str
    reasons: tuple[str, ...] = ()  #: what it rests on
    caution: str = ""  #: what makes it doubtful; empty when nothing does


def verdict(document: Document, scenario: Scenario) -> Verdict:
    """The verdict of a run folder's document. scenario: the run's, for its limits in words."""
    fleet, judged, caution = fleet_of(document), document["verdict"], _joined(_caution(document))
    stability = _stability(document)
    if document.get("regime") == METASTABLE:
        told = (*_so_far(judged, scenario), stability)
        return Verdict(MISSED, "Metastable.", f"{fleet}: {disturbed(dict(document))}.", told, caution)
    if document["stable"] is False:
        state, headline = (MISSED, "Unstable.") if judged is None else STATES[judged["word"]]
        return Verdict(
            state,
            headline,
            f"{fleet} cannot keep up: {_drowns(document)}.",
            (*_so_far(judged, scenario), stability),
            caution,
        )
    if document["attainment"] is None and judged is None:
        return Verdict(
            UNKNOWN,
            "No limits are set.",
            f"{fleet}: set a limit on TTFT or TPOT in the sidebar for a verdict.",
            (stability,),
            caution,
        )
    limits = words.limits(slo_of(scenario.slo))
    if judged is None:
        return Verdict(
            UNKNOWN,
            "No target is set.",
            f"{fleet}: {text.percent(document['attainment'])} of requests meet {limits}.",
            (stability,),
            caution,
        )
    return Verdict(
        *STATES[judged["word"]],
        f"{fleet}: {_judged(judged, limits)}.",
        (*_pooled(judged), *_model_error(document), stability, _rests_on(scenario)),
        caution,
    )


def _judged(judged: Document, limits: str) -> str:
    """The share of all requests, or of each class where there are several, against the target; and what the deciding
    class fails by."""
    rows, reason = judged["classes"], judged["reason"]
    failed = f"{judged['class']}: " if judged["class"] else ""
    if not rows:
        return "no request arrived in the window"
    told = f"{_shares(rows)} of requests within {limits}, {_targets(rows)}"
    if judged["word"] == MEETS:
        return told
    if reason == NOBODY:
        return f"{told}; {failed}no request arrived in the window"
    missed = f"{words.NAMES[reason]} is missed most often" if reason in words.NAMES else ""
    if judged["word"] == MISSES:
        return f"{told}; {failed}{missed}" if missed else told
    return f"{told}; {failed}the interval holds the target, so one run does not tell" + (
        f" ({missed})" if missed else ""
    )


def _model_error(document: Document) -> tuple[str, ...]:
    """The verdict at slower and faster step times, where the run was made with them."""
    error = document.get("model_error")
    return (as_words(error),) if error else ()


def _so_far(judged: Document | None, scenario: Scenario) -> tuple[str, ...]:
    """What an unstable run got through."""
    return (
        (f"until the end of this run {_judged(judged, words.limits(slo_of(scenario.slo)))}",)
        if judged and judged["classes"]
        else ()
    )


def _pooled(judged: Document) -> tuple[str, ...]:
    return (
        ("all classes together, as [slo] attained_by asks",)
        if any(row["name"] == POOLED for row in judged["classes"])
        else ()
    )


def _shares(rows: Sequence[Document]) -> str:
    return (
        share_of(rows[0]["attainment"])
        if len(rows) == 1
        else ", ".join(f"{row['name']} {share_of(row['attainment'])}" for row in rows)
    )


def _targets(rows: Sequence[Document]) -> str:
    wanted = {row["target"] for row in rows}
    return (
        f"target {words.share(rows[0]['target'])}"
        if len(wanted) == 1
        else "targets: " + ", ".join(f"{row['name']} {words.share(row['target'])}" for row in rows)
    )


def share_of(found: Document | None) -> str:
    """ "99.8 % (99.7 to 99.9 %)", of a share with the ends of its interval."""
    return (
        text.UNKNOWN
        if found is None or found["mean"] is None
        else f"{text.percent(found['mean'])} ({ends_of(found['low'], found['high'])})"
    )


def ends_of(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {text.percent(high)}"


def why_not(row: Document) -> str:
    """What a class or a candidate failed by, in a word or two: a limit, the interval, the backlog."""
    reason = row["rejected_by"] or ""
    told = {INTERVAL: "its interval holds the target"}.get(reason, words.NAMES.get(reason, reason))
    return f"{row['class']}: {told}" if row["class"] else told


# -- a plan ------------------------------------------------------------------------------------------------------------


def planned(plan: Document) -> Verdict:
    """The verdict of `kvcast plan`'s document, in its own words: the fewest GPUs, what binds, how far the load may
    grow, what to do next."""
    answer, decides = plan["answer"], deciding(plan)
    state = MET if answer["feasible"] else OPEN if decides is not None and decides["verdict"] == NOT_SHOWN else MISSED
    headline = {
        MET: "Fewest GPUs:",
        OPEN: "No fleet is shown to meet the target:",
        MISSED: "No fleet meets the target:",
    }[state]
    size = [line for line in _typeset(words.size(dict(plan))).splitlines() if answer["feasible"]]
    return Verdict(
        state,
        headline,
        f"{_typeset(words.verdict(dict(plan)))}.",
        (*size, *settled(plan), _made_of(plan)),
        _joined(plan["caution"]),
    )


def deciding(plan: Document) -> Document | None:
    """The candidate that the answer rests on: the chosen one, or where none meets the one that came closest."""
    answer, tried = plan["answer"], [row for row in plan["candidates"] if row["gpus"]]
    if answer["replicas"] is not None:
        return next(
            (row for row in tried if (row["label"], row["replicas"]) == (answer["label"], answer["replicas"])), None
        )
    return words.closest(tried) if tried else None


def layout_rows(plan: Document) -> list[dict[str, str]]:
    """Other GPUs and widths, by one run each."""
    return [
        {
            "GPU": row["gpu"],
            "profile": row["profile"],
            "GPUs each": text.count(row["tensor_parallel"]),
            "replicas": text.count(row["replicas"]),
            "GPUs": text.count(row["gpus"]),
            "within limits, one run": share_of(row["attainment"]),
            "verdict": f"{row['verdict'] or 'no run'}{' (' + row['class'] + ')' if row['class'] else ''}",
        }
        for row in (plan["why"] or {"layouts": ()})["layouts"]
    ]


def settled(plan: Document) -> tuple[str, ...]:
    """How sure the answer is, and what it was judged by."""
    return (
        (f"at {text.percent(plan['confidence'], 0)} confidence: {_typeset(plan['method'])}",)
        if plan["answer"]["replicas"] is not None
        else ()
    )


def _made_of(plan: Document) -> str:
    ran = plan["simulations"]
    left = [f"{words.NAMES.get(key, key)} {count}" for key, count in plan["rejected_by"].items() if count]
    return (
        f"{len(plan['candidates'])} candidates{', not chosen: ' + ', '.join(left) if left else ''}; {ran['distinct']:,}"
        f" simulations, {ran['stopped_early']:,} of them stopped early"
    )


def _typeset(sentence: str) -> str:
    return sentence.replace("+-", "±").replace(" x ", " × ")


# -- words -------------------------------------------------------------------------------------------------------------


def fleet_of(document: Document) -> str:
    """ "2 × H200-SXM" or "2 replicas of 4 × H100-SXM-80GB", of a run's document; of several kinds of replicas those of
    each."""
    replicas, gpu = document["replicas"], document["profile_provenance"]["device"]["name"]
    of = document["profile_provenance"]["device"].get("of", {})
    rows = [(row["replicas"], row["gpus_per_replica"], of.get(row["pool"], gpu)) for row in mixed.rows_of(document)]
    told = " + ".join(_some(*row) for row in rows or [(replicas, document["gpus_per_replica"], gpu)])
    held = document.get("fleet")
    held = None if held is None or held["fewest"] == replicas else held
    most = "" if held is None else "up to "
    return f"{most}{told}" + ("" if held is None else f", {held['held']:.3g} held")


def _some(replicas: int, gpus: int, gpu: str) -> str:
    """Replicas that are alike, and their GPUs."""
    return f"{replicas} × {gpu}" if gpus == 1 else f"{replicas} replica{'s' if replicas > 1 else ''} of {gpus} × {gpu}"


def model_of(scenario: Scenario) -> str:
    """The model's name; of a config.json its folder's beside it, unless that is a hash's of an upload."""
    model = scenario.model
    if model.config is None:
        return model.name
    *_, folder, name = ("", *PurePath(model.config).parts)
    return name if not folder or UPLOAD.fullmatch(folder) else f"{folder}/{name}"


def points(half: float) -> str:
    """Half of an interval of a share, with a digit that is not zero."""
    return f"{100 * half:.1f} %" if half >= 0.001 or half == 0 else f"{100 * half:.1g} %"


def growth(value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"


def _lost(document: Document) -> list[str]:
    """Requests that no replica can serve end their sessions. Later turns that had not come when the window ended are
    not lost."""
    rejected, never = document["rejected"], document["lost_with_session"]
    refused, shed, abandoned = rejected["queue_full"], rejected.get("shed", 0), document.get("abandoned", 0)
    ended = document["session_truncated"] + sum(rejected.values()) - refused - shed
    reasons = [f"{text.count(ended)} requests were longer than the context or the KV memory"] if ended else []
    reasons += [f"{text.count(refused)} requests were refused because the queue was full (HTTP 503)"] if refused else []
    reasons += [f"{text.count(shed)} requests were refused by the gateway (shed_over)"] if shed else []
    reasons += [f"{text.count(abandoned)} requests were given up by their clients"] if abandoned else []
    if not reasons and not never:
        return []
    return [
        f"{' and '.join(reasons) or 'requests were turned away'} and ended their sessions, so {text.count(never)} more"
        " never came: the load was lighter than the workload says"
    ]


def _drowns(document: Document) -> str:
    return (
        f"the backlog grows by {growth(document['backlog_growth_per_s'])} requests/s"
        f" ({growth(document['backlog_growth_tokens_per_s'])} tokens/s)"
    )


def _stability(document: Document) -> str:
    reason = document["stable_reason"]
    if document["stable"] is False:
        return f"{reason}; latency only says how long this run was, so no percentiles are shown"
    if document.get("regime") == STABLE:
        return f"stable: {disturbed(dict(document))}; {reason}"
    return f"{'stable' + undisturbed(dict(document)) if document['stable'] else 'stability unknown'}: {reason}"


def _rests_on(scenario: Scenario) -> str:
    if scenario.workload.trace is not None:
        return "one run of a recorded trace: its interval comes from batches of requests in order of arrival"
    return "one run: a sketch; a plan settles it over independent runs"


def _caution(document: Document) -> list[str]:
    share = document["coverage"]["extrapolated"]
    censored = document["arrived"] - document["completed"] if document["censored"] else 0
    parts = (
        [f"{text.percent(share)} of simulated time is extrapolated: outside what the profile was made from"]
        if share > EXTRAPOLATED_LIMIT
        else []
    )
    parts += (
        [
            f"{text.count(censored)} of {text.count(document['arrived'])} arrivals did not complete and are in no"
            " latency figure"
        ]
        if censored
        else []
    )
    parts += _lost(document)
    if document["profile_provenance"]["kind"] == "roofline":
        parts.append("step times are a roofline estimate (±30 %), nothing measured")
    return parts


def _joined(parts: Any) -> str:
    return "; ".join(parts)
