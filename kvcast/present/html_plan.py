"""A plan as one HTML page.

>>> of_plan(json.loads(Path("plans/demo/plan.json").read_text()))
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kvcast import figures, text
from kvcast.planner.words import burst, command_of, load, number, sentences, why
from kvcast.planner.words.phrases import at_least
from kvcast.present import html_page, verdict
from kvcast.present.html_basis import Document, assumptions, portable, provenance
from kvcast.present.html_run import judged
from kvcast.present.terms import TERMS
from kvcast.store.runs import Run

MOST_CANDIDATES = 20


# -- a plan ------------------------------------------------------------------------------------------------------------


def of_plan(plan: Document, run: Run | None = None) -> str:
    """run: that of the plan's answer, for what it rests on."""
    found = verdict.planned(plan)
    name = plan["name"] or "kvcast plan"
    parts = [
        html_page.heading(
            f"Capacity plan: {name}",
            "simulated, not measured"
            + (f", with kvcast {run.info['kvcast']} on {run.info['written_at'][:10]}" if run else ""),
        ),
        html_page.banner(found.state, found.headline, found.sentence, found.reasons, found.caution),
        _plan_cards(plan),
        html_page.section("Every class", judged((verdict.deciding(plan) or {"classes": ()})["classes"])),
        html_page.section("Why nothing meets it", _why(plan)),
        html_page.section("What to do next", _advice(plan)),
        html_page.section("Load, cost and what binds", _load(plan)),
        html_page.section("Candidates", _candidates(plan)),
        html_page.section("Launch", _launch(plan)),
        html_page.section("Notes", html_page.lines(plan["notes"] or ())),
        *(assumptions(run) if run else []),
        *(
            provenance(run.summary, run.scenario, "kvcast plan scenario.toml")
            if run
            else [html_page.section("Scenario", html_page.code(portable(plan["scenario"])))]
        ),
    ]
    return html_page.page(f"{name} - kvcast plan", parts)


def _failure(plan: Document) -> list[str]:
    """What the failure itself does, where the plan has asked."""
    row = plan.get("failure")
    return [f"{text.percent(row['attainment_during'])} while it starts, {text.seconds(row['down_s'])}"] if row else []


def _plan_cards(plan: Document) -> str:
    answer, capacity, spare = plan["answer"], plan["capacity"] or {}, plan["n_plus_1"] or {}
    recovery = plan.get("recovery")  # a plan of an earlier version has none
    if not answer["feasible"]:
        return ""
    reached = answer["attainment"] or {}
    shown = [
        html_page.card(
            "GPUs",
            text.count(answer["gpus"]),
            "",
            (f"{text.count(answer['replicas'])} × {answer['gpus_per_replica']}", answer["label"]),
        ),
        html_page.card(
            "Within limits",
            text.percent(reached.get("mean")),
            TERMS["attainment"],
            (
                (
                    f"{text.percent(reached.get('low'))} to {text.percent(min(reached.get('high') or 1.0, 1.0))}"
                    f" ({text.percent(plan['confidence'], 0)})"
                ),
            ),
        ),
        html_page.card(
            "GPU-hours a day",
            text.count(answer["gpu_hours_per_day"]),
            TERMS["gpu_hours"],
            (f"{text.usd(answer['usd_per_hour'])} an hour" if answer["usd_per_hour"] is not None else "no price set",),
        ),
    ]
    if capacity.get("slo_capacity_per_s") is not None:
        least, unit = "at least " if capacity["breaks_at_per_s"] is None else "", capacity["unit"]
        headroom = "" if recovery else f"; headroom {least}{text.percent(capacity['headroom'], 0)}"
        shown.append(
            html_page.card(
                "SLO capacity",
                f"{least}{load(capacity['slo_capacity_per_s'], unit)}",
                "Highest load at which the target is still met, found by search.",
                (f"offered {number(capacity['offered_rate_per_s'], unit)}{headroom}",),
            )
        )
    if recovery is not None:
        up_to = recovery["recoverable_per_s"]
        shown.append(
            html_page.card(
                "recoverable capacity",
                f"{at_least(dict(plan))}{load(up_to, capacity['unit'])}"
                if capacity and up_to
                else "yes"
                if recovery["recovers"]
                else "no",
                "Highest load from which the fleet is back at its target in time after a burst.",
                (
                    f"after {burst(recovery)}, within {text.seconds(recovery['within_s'])}",
                    f"headroom {text.percent(recovery['headroom'], 0)}",
                ),
            )
        )
    if spare:
        down = "none is left" if spare["attainment_one_down"] is None else text.percent(spare["attainment_one_down"])
        survives = (
            f"enough{', undisturbed' if recovery is not None else ''}"
            if spare["enough"]
            else (
                f"not enough: plan {spare['replicas']} replicas"
                if spare["replicas"]
                else "not enough, and no fleet that was looked at is"
            )
        )
        shown.append(
            html_page.card(
                "With one replica down",
                down,
                "Requests within limits when the same load meets one replica fewer.",
                (survives, *_failure(plan)),
            )
        )
    return html_page.cards(shown)


def _why(plan: Document) -> str:
    rows = verdict.layout_rows(plan)
    _, *told = why(dict(plan)).splitlines() or [""]
    return html_page.lines(line.removeprefix("- ") for line in told) + (
        html_page.table(list(rows[0]), [list(row.values()) for row in rows], words=True) if rows else ""
    )


def _advice(plan: Document) -> str:
    rows = [(row["change"], row["words"].removeprefix(f"{row['change']}: ")) for row in plan["advice"] or ()]
    others = [f"{line[:1].upper()}{line[1:]}." for line in sentences(dict(plan))]
    what = f"what it does, simulated{'; loads held are undisturbed' if plan['recovery'] else ''}"
    return html_page.table(("change", what), rows, words=True) + html_page.lines(others)


def _launch(plan: Document) -> str:
    launch = plan["answer"]["launch"]
    if launch is None:
        return ""
    engine, command = command_of(launch)
    return f"<h3>{engine}</h3>" + html_page.code(shlex.join(command)) + html_page.lines(launch["notes"])


def _load(plan: Document) -> str:
    drawn = []
    if plan["rates"]:
        drawn += [
            html_page.figure(
                figures.goodput_by_rate(plan), "goodput", "Good requests per second against the offered rate."
            ),
            html_page.figure(figures.latency_by_rate(plan), "latency", f"{TERMS['ttft']} {TERMS['tpot']}"),
        ]
    if plan["binding"] and plan["binding"]["changes"]:
        drawn.append(
            html_page.figure(
                figures.binding(plan),
                "binding",
                "The resource whose +20 % raises attainment most when simulated again.",
                plan["binding"]["words"] or "",
            )
        )
    if any(c["ttft_ms_p99"] is not None for c in plan["candidates"]):
        drawn.append(
            html_page.figure(figures.candidates(plan), "candidates", "Every fleet that was tried and has a latency.")
        )
    if plan["growth"]:
        drawn.append(html_page.figure(figures.growth(plan), "growth", TERMS["growth"]))
    return html_page.figures(drawn) + _growth(plan["growth"] or (), asked_to_recover=plan.get("recovery") is not None)


def _growth(rows: Sequence[Document], asked_to_recover: bool) -> str:
    """The fleet at larger loads, with the first advice beside it where that was looked at. asked_to_recover: the
    answer is, from a burst, which none of these is."""

    def size(found: Document) -> list[str]:
        return [text.count(found["replicas"]), text.count(found["gpus"]), text.usd(found["usd_per_hour"])]

    advised = any(row["advised"] for row in rows)
    header = (
        "growth, undisturbed" if asked_to_recover else "growth",
        "replicas",
        "GPUs",
        "USD an hour",
        *(("with the first advice: replicas", "GPUs", "USD an hour") if advised else ()),
    )
    return html_page.table(
        header,
        [[f"{row['factor']:g} times the load", *size(row), *(size(row["advised"]) if advised else ())] for row in rows],
    )


def _candidates(plan: Document) -> str:
    found = plan["candidates"]
    rows = [
        [
            c["label"] or "as asked",
            text.count(c["replicas"]),
            text.count(c["gpus"]),
            text.usd(c["usd_per_hour"]),
            verdict.share_of(c["attainment"]),
            *(
                text.UNKNOWN if c["stable"] is False else text.milliseconds(c[key])
                for key in ("ttft_ms_p99", "tpot_ms_p99")
            ),
            c["verdict"],
            c["reason"] or verdict.why_not(c),
        ]
        for c in found[:MOST_CANDIDATES]
    ]
    left = f"and {len(found) - len(rows)} more in plan.json" if len(found) > len(rows) else ""
    header = (
        "candidate",
        "replicas",
        "GPUs",
        "USD an hour",
        "within limits (95 %)",
        "TTFT p99",
        "TPOT p99",
        "verdict",
        "why",
    )
    return html_page.table(header, rows) + html_page.paragraph(left, soft=True)
