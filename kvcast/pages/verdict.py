"""A run's verdict in one sentence, from its document: met, missed, unstable, or not asked for.

The one idea: the state decides what may be shown. An unstable run has a growth instead of percentiles.

    >>> verdict(load_run("runs/demo").summary, scenario.slo).sentence
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcast import text
from kvcast.summary_text import EXTRAPOLATED_LIMIT, limits
from sim.scenario import SloConfig

MET, MISSED, UNSTABLE, UNKNOWN = "met", "missed", "unstable", "unknown"


@dataclass(frozen=True)
class Verdict:
    state: str  #: MET, MISSED, UNSTABLE or UNKNOWN
    sentence: str
    reasons: tuple[str, ...]  #: what it rests on
    caution: str  #: what makes it doubtful; empty when nothing does


def verdict(document: Mapping[str, Any], slo: SloConfig) -> Verdict:
    """The verdict of a run folder's document. slo: the scenario's limits, for the words."""
    fleet = fleet_of(document)
    if document["stable"] is False:
        sentence = (
            f"Unstable: {fleet} cannot keep up. The backlog grows by {growth(document['backlog_growth_per_s'])} requests/s "
            f"({growth(document['backlog_growth_tokens_per_s'])} tokens/s)."
        )
        reasons = (document["stable_reason"], "Latency only says how long this run was, so no percentiles are shown.")
        return Verdict(UNSTABLE, sentence, reasons, _caution(document))
    stability = f"stable: {document['stable_reason']}" if document["stable"] else f"stability unknown: {document['stable_reason']}"
    reached, target = document["attainment"], document["attainment_target"]
    if reached is None:
        return Verdict(UNKNOWN, f"{fleet}: no limits are set, so there is no verdict.", ("Set TTFT or TPOT limits in the sidebar.", stability), _caution(document))
    share = f"{text.percent(reached)} of requests are within their limits"
    asked = f"limits: {limits(slo)}{_worst_class(document)}"
    if target is None:
        return Verdict(UNKNOWN, f"{fleet}: {share}. No target is set, so there is no verdict.", (asked, stability), _caution(document))
    met = reached >= target
    sentence = f"{fleet} {'meets' if met else 'misses'} the target: {share}, {text.percent(target)} wanted."
    return Verdict(MET if met else MISSED, sentence, (asked, stability), _caution(document))


def fleet_of(document: Mapping[str, Any]) -> str:
    """ "2 × H200-SXM" or "2 replicas of 4 × H100-SXM-80GB"."""
    replicas, gpus, gpu = document["replicas"], document["tensor_parallel"], document["profile_provenance"]["device"]["name"]
    return f"{replicas} × {gpu}" if gpus == 1 else f"{replicas} replica{'s' if replicas > 1 else ''} of {gpus} × {gpu}"


def growth(value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"


def _worst_class(document: Mapping[str, Any]) -> str:
    """Which class does worst, when there are several."""
    rows = [(row["attainment"], name) for name, row in document["classes"].items() if row["attainment"] is not None]
    return f" (worst: {min(rows)[1]}, {text.percent(min(rows)[0])})" if len(rows) > 1 else ""


def _caution(document: Mapping[str, Any]) -> str:
    share = document["coverage"]["extrapolated"]
    censored = document["arrived"] - document["completed"] if document["censored"] else 0
    parts = [f"{text.percent(share)} of simulated time is extrapolated: outside what the profile was made from"] if share > EXTRAPOLATED_LIMIT else []
    parts += [f"{text.count(censored)} of {text.count(document['arrived'])} arrivals did not complete and are in no latency figure"] if censored else []
    if document["profile_provenance"]["kind"] == "roofline":
        parts.append("step times are a roofline estimate (±30 %), nothing measured")
    return "; ".join(parts)
