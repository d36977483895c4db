"""The answer in one sentence: what the fleet on show does with the load, and what the plan found.

The one idea: the state decides what may be said. An unstable run has a growth instead of percentiles; a share has its
interval; without limits or a target there is no verdict.

    >>> verdict(load_run("runs/demo").summary, scenario.slo, (0.989, 0.995)).sentence
    >>> planned(plan).sentence
"""
from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcast import text
from kvcast.summary_text import EXTRAPOLATED_LIMIT
from sim.scenario import SloClass, SloConfig

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
    share = f"{fleet}: {_share(reached, ends)} of requests {met(slo)}"
    reasons = (*_worst_class(document), stability)
    if target is None:
        return Verdict(UNKNOWN, "No target is set.", f"{share}.", reasons, _joined(caution))
    if ends is not None and ends[0] < target <= ends[1]:
        caution = [f"the target lies within the interval, {text.percent(ends[0])} to {text.percent(ends[1])}: a longer run, or a plan with several seeds, decides", *caution]
    state, headline = (MET, "Meets the target.") if reached >= target else (MISSED, "Misses the target.")
    return Verdict(state, headline, f"{share} (target {_target(target)}).", reasons, _joined(caution))


def planned(plan: Document) -> Verdict:
    """The verdict of `kvcast plan`'s document: the fewest GPUs, what binds, how far the load may grow, what to do next."""
    answer, target = plan["answer"], plan["slo"]["attainment"]
    tried = len(plan["candidates"])
    if not answer["feasible"]:
        told = f"None of the {tried} candidates has {_target(target)} of requests within their limits. {rejections(plan)}"
        return Verdict(MISSED, "No fleet meets the target.", told.strip(), (_seeds(plan),), _plan_caution(plan))
    parts = [f"{answer_fleet(plan)}{_price(answer)}: {_share(answer['attainment']['mean'], _ends(answer['attainment']))} of requests {_met_of(plan['slo'])} (target {_target(target)})"]
    if plan["binding"]:
        parts.append(f"binding: {plan['binding']['resource']}" if plan["binding"]["resource"] else "nothing binds")
    parts += _room(plan["capacity"])
    if plan["advice"]:
        parts.append(f"next: {plan['advice'][0]['words'].rstrip('.')}")
    return Verdict(MET, "Fewest GPUs:", "; ".join(parts) + ".", (_seeds(plan),), _plan_caution(plan))


def _room(capacity: Document | None) -> list[str]:
    if not capacity or capacity["headroom"] is None:
        return []
    broken = capacity["breaks_at_per_s"]
    return [f"headroom {text.percent(capacity['headroom'], 0)}" + (f", breaks at {broken:.3g} requests/s" if broken is not None else "")]


def rejections(plan: Document) -> str:
    """ "TTFT rejected 12, TPOT 3." """
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
    told = [f"{names.get(key, key.replace('_', ' '))} rejected {count}" for key, count in (plan["rejected_by"] or {}).items() if count]
    return f"{', '.join(told)}." if told else ""


def _seeds(plan: Document) -> str:
    ran = plan["simulations"]
    seeds = f"{len(plan['seeds'])} seed{'s' if len(plan['seeds']) != 1 else ''}"
    early = f", {ran['stopped_early']:,} of them stopped early" if ran["stopped_early"] else ""
    return f"{len(plan['candidates'])} candidates on the same arrivals, {seeds}; {ran['distinct']:,} simulations{early}. {rejections(plan)}".strip()


def _plan_caution(plan: Document) -> str:
    return _joined(plan["caution"] or [])


# -- fleets ------------------------------------------------------------------------------------------------------------


def fleet_of(document: Document) -> str:
    """ "2 × H200-SXM" or "2 replicas of 4 × H100-SXM-80GB", of a run's document."""
    return fleet(document["replicas"], document["tensor_parallel"], document["profile_provenance"]["device"]["name"])


def answer_fleet(plan: Document) -> str:
    """The same of a plan's answer, with what else the plan chose."""
    answer = plan["answer"]
    profile = tomllib.loads(plan["scenario"])["hardware"]["profile"]
    chosen = [f"{key.rsplit('.', 1)[-1].replace('_', ' ')} {value}" for key, value in answer["values"].items() if key not in ("hardware.profile", "hardware.tensor_parallel", "cluster.replicas")]
    return fleet(answer["replicas"], answer["gpus_per_replica"], gpu_name(profile)) + (f" with {', '.join(chosen)}" if chosen else "")


def fleet(replicas: int, gpus: int, gpu: str) -> str:
    return f"{replicas} × {gpu}" if gpus == 1 else f"{replicas} replica{'s' if replicas > 1 else ''} of {gpus} × {gpu}"


@functools.lru_cache(maxsize=64)
def gpu_name(profile: str) -> str:
    """The GPU of a bundled profile, or of a roofline; the profile's own name where it is neither."""
    from calibrate.profile import BUNDLED, load_profile

    kind, _, name = profile.partition(":")
    if kind == "roofline":
        return f"{name} (roofline)"
    path = BUNDLED / f"{profile}.json"
    return load_profile(path).device["name"] if path.is_file() else profile


# -- words -------------------------------------------------------------------------------------------------------------


def met(slo: SloConfig) -> str:
    """ "meet TTFT <= 500 ms and TPOT <= 40 ms", or by class."""
    everyone = SloClass(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, e2e_s=slo.e2e_s)
    parts = [(name, _limit_words(one.ttft_s, one.tpot_s, one.e2e_s)) for name, one in [*slo.classes.items(), ("", everyone)]]
    parts = [(name, words) for name, words in parts if words]
    if len(parts) == 1 and not parts[0][0]:
        return f"meet {parts[0][1]}"
    return "meet " + "; ".join(f"{words} ({name or 'the others'})" for name, words in parts)


def _met_of(slo: Document) -> str:
    keys = ("ttft_s", "tpot_s", "e2e_s")
    classes = {name: SloClass(**{key: limits.get(key) for key in keys}) for name, limits in (slo["classes"] or {}).items()}
    return met(SloConfig(**{key: (slo["limits"] or {}).get(key) for key in keys}, classes=classes))


def _limit_words(ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> str:
    return " and ".join(f"{what} <= {_round_seconds(limit)}" for what, limit in (("TTFT", ttft_s), ("TPOT", tpot_s), ("E2E", e2e_s)) if limit is not None)


def _round_seconds(limit_s: float) -> str:
    """A limit as it was typed: 500 ms, 30 ms, 2 s."""
    return f"{limit_s * 1e3:.4g} ms" if limit_s < 1 else f"{limit_s:.4g} s"


def points(half: float) -> str:
    """Half of an interval of a share, with a digit that is not zero."""
    return f"{100 * half:.1f} %" if half >= 0.001 or half == 0 else f"{100 * half:.1g} %"


def _share(mean: float, ends: tuple[float, float] | None) -> str:
    """ "99.2 % ± 0.3 %"; an interval that is not even is told by its ends."""
    if ends is None:
        return text.percent(mean)
    below, above = mean - ends[0], ends[1] - mean
    if abs(below - above) < 5e-4:
        return f"{text.percent(mean)} ± {points(max(below, above))}"
    return f"{text.percent(mean)} ({text.percent(ends[0])} to {text.percent(ends[1])})"


def _ends(found: Document) -> tuple[float, float] | None:
    return None if found["low"] is None or found["high"] is None else (found["low"], found["high"])


def _target(target: float | None) -> str:
    return "none" if target is None else f"{100 * target:.4g} %"


def _price(answer: Document) -> str:
    return "" if answer["usd_per_hour"] is None else f", {text.usd(answer['usd_per_hour'])} an hour"


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
    if document["profile_provenance"]["kind"] == "roofline":
        parts.append("step times are a roofline estimate (±30 %), nothing measured")
    return parts


def _joined(parts: Any) -> str:
    return "; ".join(parts)
