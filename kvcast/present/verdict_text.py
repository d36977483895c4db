"""A run's verdict in lines: whether it meets, of all and of each class, how sure that is, and within which limits.

>>> print(headline(judged, attainment))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.api import Result
from kvcast.scenario.steady import is_mix
from kvcast.studies.shocked import when
from kvcast.trust.model_error import as_words
from kvcast.trust.pooled import servers_of_all
from sim.measure.regime import METASTABLE, STABLE, last_of
from sim.measure.verdict import CONFIDENCE, INTERVAL, UNSTABLE
from sim.scenario import Scenario, SloClass, SloConfig

EXTRAPOLATED_LIMIT = 0.2
"""Above this share of simulated time outside the measured range, the result says so in its verdict."""

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


def verdict(result: Result) -> str:
    """The answer a planner can act on, what it is judged on, and what makes it doubtful."""
    s, slo = result.report.summary, result.scenario.slo
    judged = s["verdict"]
    lines = [f"{headline(judged, s['attainment'])} ({limits(slo)})" if judged else _no_target(s, slo)]
    if judged and len(judged["classes"]) > 1:
        lines.append(class_verdicts(judged))
    lines.append(load_line(result))
    if s["model_error"] is not None:
        lines.append(as_words(s["model_error"]))
    if judged:
        lines.append(sketch_line(result.scenario))
    lines.append(stability(s))
    coverage = s["coverage"]
    shares = ", ".join(f"{text.percent(coverage[key])} {key}" for key in ("measured", "interpolated", "extrapolated"))
    outside = coverage["extrapolated"]
    warning = (
        f"  <- {'MUCH' if outside > EXTRAPOLATED_LIMIT else 'part'} of this is outside what was measured"
        if outside >= 0.01
        else ""
    )
    lines.append(f"simulated time rests on step times {shares}{warning}")
    lines.append(servers_of_all(result.resolved)["words"])
    return "\n".join(lines)


def stability(s: dict[str, Any]) -> str:
    """What the run shows of its load: unstable, metastable or stable (sim.measure.regime), and what of its backlog."""
    reason = s["stable_reason"]
    if (found := s.get("regime")) in (METASTABLE, STABLE):
        word = found.upper() if found == METASTABLE else found
        return f"{word}: {disturbed(s)} ({reason})"
    if s["stable"] is False:
        return f"UNSTABLE: the backlog grows by {s['backlog_growth_per_s']:.3g} requests/s ({reason})"
    return f"stability: {reason}" if s["stable"] is None else f"stable{undisturbed(s)}: {reason}"


def disturbed(s: dict[str, Any]) -> str:
    """Held until disturbed, or back after it: of a run with shocks whose regime is known."""
    last = last_of(s["shocks"])
    if s["regime"] == METASTABLE:
        return (
            f"the load is held until disturbed: not back at the target within {text.seconds(last['seen_s'])} after the"
            f" {last['kind']}"
        )
    return f"the load is held, and the fleet back at the target {when(last)} the {last['kind']}"


def undisturbed(s: dict[str, Any]) -> str:
    """Of a fleet with an open load that hits its cache: nothing is known of what it does once it is disturbed."""
    open_load, hits = s["backlog_growth_per_s"] is not None, s.get("prefix_hit_rate") or 0.0
    return " while undisturbed" if open_load and hits > 0 and not s.get("shocks") else ""


def headline(judged: dict[str, Any], attainment: float | None) -> str:
    """summary["verdict"] in a line: the word, what failed, the share with its interval. attainment: of all arrivals."""
    word, rows = judged["word"], judged["classes"]
    told = {
        "meets": "MEETS the target",
        "misses": "MISSES the target",
        "not shown": "NOT SHOWN that it meets the target",
    }[word]
    if not rows or attainment is None:
        return f"{told}: {reason(judged['reason'])}"
    failed = next((row for row in rows if row["name"] == judged["class"]), rows[0])
    if len(rows) == 1 or judged["class"]:
        who = f"{failed['name']}, " if judged["class"] else ""
        why = f"{who}{reason(judged['reason'])}: " if judged["reason"] else ""
        return (
            f"{told}: {why}{share(failed['attainment'])} of {'its' if who else 'all'} arrivals within limits,"
            f" {text.percent(failed['target'])} wanted"
        )
    why = f"{reason(judged['reason'])}, though every" if judged["reason"] else "every"
    return f"{told}: {why} class reaches its target, {text.percent(attainment)} of all arrivals are within limits"


def reason(why: str) -> str:
    """What failed, of a verdict document."""
    return {
        "ttft_s": "most often TTFT",
        "tpot_s": "most often TPOT",
        "e2e_s": "most often E2E",
        UNSTABLE: "the backlog grows",
        INTERVAL: "only the interval reaches below",
    }.get(why, why)


def share(found: dict[str, float] | None) -> str:
    """97.2 % (95 % interval 95.0 to 98.1 %)."""
    return (
        text.UNKNOWN
        if found is None
        else f"{text.percent(found['mean'])} ({text.percent(CONFIDENCE, 0)} interval {between(found)})"
    )


def between(found: dict[str, float]) -> str:
    """The ends of an interval of a share."""
    return f"{100 * found['low']:.1f} to {100 * found['high']:.1f} %"


def class_verdicts(judged: dict[str, Any]) -> str:
    """A row for every class that has a limit."""
    rows = [
        [
            row["name"],
            row["verdict"],
            "" if row["worst"] is None else NAMES[row["worst"]],
            text.percent(row["target"]),
            *(
                [text.UNKNOWN] * 2
                if row["attainment"] is None
                else [text.percent(row["attainment"]["mean"]), between(row["attainment"])]
            ),
            text.count(row["requests"]),
        ]
        for row in judged["classes"]
    ]
    return text.table(
        [
            "class",
            "verdict",
            "most missed",
            "wanted",
            "within limits",
            f"{text.percent(CONFIDENCE, 0)} interval",
            "requests",
        ],
        rows,
        left=3,
    )


def sketch_line(scenario: Scenario) -> str:
    """How far one run can be trusted."""
    if is_mix(scenario):
        return "one run: a sketch; kvcast plan --fixed settles it over independent runs"
    return "one run of a recording: its interval comes from stretches of it, and speaks of this traffic"


def _no_target(s: dict[str, Any], slo: SloConfig) -> str:
    if s["attainment"] is None:
        return "no verdict: [slo] sets no limit"
    return f"attainment {text.percent(s['attainment'])} of arrivals within limits ({limits(slo)}; no target set)"


def limits(slo: SloConfig) -> str:
    """The limits in words: those of each SLO class, then the default ones."""
    parts = []
    everyone = SloClass(slo.ttft_s, slo.tpot_s, slo.e2e_s)
    for name, one in [*slo.classes.items(), ("", everyone)]:
        text_of = ", ".join(
            f"{what} <= {text.seconds(limit)}"
            for key, what in NAMES.items()
            if (limit := getattr(one, key)) is not None
        )
        if text_of:
            parts.append(f"{name}: {text_of}" if name else text_of)
    return "; ".join(parts) or "no limits"


def load_line(result: Result) -> str:
    """The load that is judged, and when."""
    s = result.report.summary
    window, offered = s["window"], s["offered_per_s"]
    what = "nominal" if is_mix(result.scenario) else "the trace's mean"
    rate = "a closed loop offers no rate" if offered is None else f"offered {offered:.3g} requests/s ({what})"
    warm = f" after a warm-up of {window['start_s']:,.0f} s" if window["start_s"] else ""
    return f"{rate}, judged from {window['start_s']:,.0f} to {window['end_s']:,.0f} s{warm}"
