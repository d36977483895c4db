"""A run, or a plan, as one self-contained HTML page: verdict, numbers, plots, assumptions, provenance, glossary.

The one idea: everything is read from the run folder (or plan.json), with the words and figures of the dashboard, so the
page, the dashboard and summary.json cannot disagree; the same folder gives the same bytes.

    >>> Path("report.html").write_text(of_folder(Path("runs/demo")), encoding="utf-8")
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast import figures, text
from kvcast.planner.words import NAMES, command_of, load, number, share, why
from kvcast.present import html_page, verdict
from kvcast.present.numbers import four
from kvcast.present.summary_text import EXTRAPOLATED_LIMIT, fates, limits
from kvcast.present.terms import TERMS
from kvcast.scenario.steady import is_mix
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run, load_run
from kvcast.trust import accuracy
from sim.scenario import Scenario
from workloads.errors import InputError

Document = Mapping[str, Any]
MOST_CLASSES = 12
MOST_CANDIDATES = 20
GLOSSARY = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("Within limits (attainment)", "attainment"),
    ("Meets, misses, not shown", "verdict"),
    ("Interval", "interval"),
    ("Hit rate", "hit_rate"),
    ("Ceiling", "ceiling"),
    ("KV in use", "kv"),
    ("GPU-hours", "gpu_hours"),
    ("Cost", "cost"),
    ("Unstable, backlog growth", "backlog"),
    ("Throughput", "throughput"),
    ("Causes of missed tokens", "causes"),
    ("Preemptions", "preemptions"),
    ("Extrapolated", "extrapolated"),
)


def of_folder(folder: Path) -> str:
    """The page of a run folder or of a plan's folder. Raises InputError where it is neither."""
    if (folder / "plan.json").is_file():
        try:
            plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        except ValueError as problem:
            raise InputError(f"{folder / 'plan.json'}: not JSON: {problem}") from None
        return of_plan(plan, _answer_run(folder, plan))
    return of_run(load_run(folder))


# -- a run -------------------------------------------------------------------------------------------------------------


def of_run(run: Run) -> str:
    s = run.summary
    found = verdict.verdict(s, run.scenario)
    name = s["name"] or "kvcast run"
    parts = [
        html_page.heading(
            name,
            f"{text.count(s['arrived'])} requests ({s['workload']}) on {run.scenario.model.name}; simulated, not"
            f" measured, with kvcast {run.info['kvcast']} on {run.info['written_at'][:10]}",
        ),
        html_page.banner(found.state, found.headline, found.sentence, found.reasons, found.caution),
        _cards(s, four(run)),
        html_page.section("Verdict by class", _judged(s["verdict"]["classes"] if s["verdict"] else ())),
        html_page.section("Latency", _latency(run)),
        html_page.section("Prefix cache", _cache(run)),
        html_page.section("Fleet over time", _fleet(run)),
        html_page.section("By class", _by_class(s)),
        *_assumptions(run),
        *_provenance(s, run.scenario, "kvcast run scenario.toml --out my-run"),
    ]
    return html_page.page(f"{name} - kvcast report", parts)


def _judged(rows: Sequence[Document]) -> str:
    """The classes of a verdict's document, each against its target."""
    told = [
        [
            row["name"],
            row["verdict"],
            verdict.share_of(row["attainment"]),
            share(row["target"]),
            text.count(row["requests"]),
            NAMES.get(row["worst"], "none"),
        ]
        for row in rows
    ]
    return html_page.table(
        ("class", "verdict", "within limits (95 %)", "target", "requests", "most often missed"), told
    )


def _cards(s: Document, numbers: list[Any]) -> str:
    mark = " ▲" if s["coverage"]["extrapolated"] > EXTRAPOLATED_LIMIT else ""
    shown = [
        html_page.card(
            n.label,
            n.value + (mark if n.rests_on_steps and n.value != text.UNKNOWN else ""),
            TERMS[n.term],
            (n.below, n.interval),
        )
        for n in numbers
    ]
    ceiling = (
        "nothing is known to be shared"
        if not s["prefix_identity"]
        else f"ceiling {text.percent(s['reuse_ceiling_replica'])}; {s['counting_rule']}, block {s['block_size']}"
    )
    shown += [
        html_page.card(
            "Output tokens/s",
            text.count(s["output_throughput"]) + mark,
            TERMS["throughput"],
            (f"{s['request_throughput'] or 0:.3g} requests/s",),
        ),
        html_page.card("Prefix hit rate", text.percent(s["prefix_hit_rate"]), TERMS["hit_rate"], (ceiling,)),
        html_page.card(
            "KV in use, peak",
            text.percent(s["kv_usage_peak"]),
            TERMS["kv"],
            (f"mean {text.percent(s['kv_usage_mean'])}", f"{text.count(s['preemptions'])} preemptions"),
        ),
        html_page.card(
            "GPU-hours",
            f"{s['gpu_hours']:.3g}",
            TERMS["gpu_hours"],
            (f"{verdict.fleet_of(s)} for {text.seconds(s['duration'])}",),
        ),
    ]
    return html_page.cards(shown)


def _latency(run: Run) -> str:
    s = _fewer_classes(run.summary)
    caption = "Unstable: these distributions only say how long this run was." if s["stable"] is False else ""
    drawn = [
        html_page.figure(figures.latency_cdf(s, run.aggregates, metric), metric, TERMS[metric], caption)
        for metric in ("ttft", "tpot")
    ]
    slowest = figures.lives_of(run.summary, run.aggregates)
    drawn += (
        [
            html_page.figure(
                figures.request_life(slowest),
                "life",
                TERMS["life"],
                "The completed requests that waited longest for their first token.",
            )
        ]
        if slowest
        else []
    )
    drawn.append(_over_time(s, figures.queue(run.tables["timeline"]), "queue", "queue"))
    return html_page.figures(drawn)


def _cache(run: Run) -> str:
    s = run.summary
    if not s["prefix_identity"]:
        return html_page.paragraph(
            "The workload says nothing about shared text: every hit rate is 0 because it is unknown, not because"
            " nothing is shared."
        )
    drawn = [
        html_page.figure(figures.miss_causes(_fewer_classes(s)), "causes", TERMS["causes"]),
        _over_time(
            s, figures.hit_rate(s, run.tables["timeline"]), "hits", "hit_rate", f"Counting rule: {s['counting_rule']}."
        ),
    ]
    return html_page.figures(drawn) + _worth(s)


def _over_time(s: Document, drawn: Any, name: str, term: str, caption: str = "") -> str:
    """A figure over the run's clock, whose warm-up is in grey."""
    begins_s = s["window"]["start_s"]
    told = [caption] if caption else []
    told += [f"Grey: the first {text.minutes(begins_s)}, a warm-up that is not judged."] if begins_s else []
    return html_page.figure(figures.unjudged(drawn, begins_s), name, TERMS[term], " ".join(told))


def _worth(s: Document) -> str:
    """The run beside its twin without cache."""
    w = s["cache_worth"]
    if not w["twin"]:
        return ""
    prompt, flops = s["prompt_tokens"], s["prefill_flops"]
    flops_on = None if flops is None else flops - w["prefill_flops_saved"]
    forms = (
        ("TTFT, mean", "mean_ttft_ms", text.milliseconds),
        ("TTFT, p99", "p99_ttft_ms", text.milliseconds),
        ("E2E, mean", "mean_e2el_ms", text.milliseconds),
        ("busy GPU time", "gpu_busy_s", text.seconds),
        ("cost", "cost_usd", text.usd),
        ("within limits", "attainment", text.percent),
    )
    rows = [
        (
            "prefilled tokens",
            text.scaled(prompt),
            text.scaled(prompt - w["prefill_tokens_saved"]),
            text.percent(w["prefill_tokens_saved_share"]),
        ),
        ("prefill FLOPs", text.scaled(flops), text.scaled(flops_on), text.percent(w["prefill_flops_saved_share"])),
        *(
            (
                label,
                form(w[key]["off"]),
                form(w[key]["on"]),
                text.percent(w[key]["saved_share"]) if w[key].get("saved_share") is not None else "",
            )
            for label, key, form in forms
        ),
    ]
    unstable = (
        "At least one of the two is unstable: its times only say how long it was."
        if False in w["stable"].values()
        else ""
    )
    return (
        f"<h3>{html_page.term('What the prefix cache is worth', TERMS['worth'])}</h3>"
        + html_page.table(("", "cache off", "cache on", "saved"), rows)
        + html_page.paragraph(unstable, soft=True)
    )


def _fleet(run: Run) -> str:
    s, timeline = run.summary, run.tables["timeline"]
    return html_page.figures(
        [
            _over_time(s, figures.kv_occupancy(s, timeline), "kv", "kv"),
            html_page.figure(
                figures.replica_load(s, run.tables["requests"]),
                "replicas",
                "Tokens that each replica worked on: prompt tokens computed, and output tokens; those from the cache"
                " cost nothing.",
            ),
        ]
    )


def _by_class(s: Document) -> str:
    hide = s["stable"] is False
    rows = [
        [
            name,
            text.count(row["arrived"]),
            text.percent(row["attainment"]),
            text.percent(row["prefix_hit_rate"]),
            *(
                text.UNKNOWN if hide else text.milliseconds(row["latency_ms"][key][stat])
                for key in ("ttft", "tpot")
                for stat in ("p50", "p99")
            ),
            f"{row['gpu_hours']:.3g}",
            text.usd(row["usd_per_request"]),
        ]
        for name, row in _fewer_classes(s)["classes"].items()
    ]
    left = len(s["classes"]) - len(rows)
    header = (
        "class",
        "arrived",
        "within limits",
        "hit rate",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "TPOT p99",
        "GPU-hours",
        "USD a request",
    )
    return html_page.table(header, rows) + html_page.paragraph(
        f"and {left} classes with fewer requests" if left else "", soft=True
    )


def _fewer_classes(s: Document) -> Document:
    """The document with its largest classes only, in their order."""
    largest = sorted(s["classes"], key=lambda name: -s["classes"][name]["arrived"])[:MOST_CLASSES]
    return {**s, "classes": {name: row for name, row in s["classes"].items() if name in largest}}


# -- what it rests on --------------------------------------------------------------------------------------------------


def _assumptions(run: Run) -> list[str]:
    s, scenario = run.summary, run.scenario
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    told = [
        ("workload", s["workload"]),
        ("requests", f"{text.count(s['arrived'])} arrived: {fates(dict(s), is_mix(scenario))}"),
        ("limits", limits(scenario.slo)),
        ("model", f"{scenario.model.name}, weights {scenario.model.dtype}, KV {scenario.model.kv_dtype}"),
        ("fleet", f"{verdict.fleet_of(s)}, {scenario.cluster.router} routing, {cache}"),
        ("engine", s["engine_semantics"]),
        ("seed", str(s["seed"])),
        *(
            (
                key.replace("_", " "),
                f"{value:,} ({s['engine_origins'].get(key, 'given')})" if isinstance(value, int) else str(value),
            )
            for key, value in s["engine"].items()
        ),
    ]
    return [
        html_page.section(
            "Assumptions",
            html_page.table(("", "this run"), told, words=True),
            "<h3>KV memory of a replica</h3>",
            html_page.code("\n".join(s["kv_arithmetic"]) or f"{s['kv_blocks']:,} blocks, as given"),
            "<h3>Notes</h3>",
            html_page.lines(s["notes"]),
        )
    ]


def _provenance(s: Document, scenario: Scenario, command: str) -> list[str]:
    profile = s["profile_provenance"]
    rows = [("profile", f"{profile['id']}: {profile['label']}"), ("content hash", profile["content_hash"])]
    rows += [
        (key.replace("_", " "), " ".join(value) if isinstance(value, list) else str(value))
        for key, value in profile["provenance"].items()
    ]
    return [
        html_page.section(
            "Step times: where they come from, how accurate they are",
            html_page.table(("", "provenance"), rows, words=True),
            html_page.lines(accuracy.statement(profile, s["coverage"])),
        ),
        html_page.section("Glossary", html_page.glossary((label, TERMS[key]) for label, key in GLOSSARY)),
        html_page.section(
            "Reproduce",
            html_page.code(command),
            html_page.paragraph("with this as scenario.toml:"),
            html_page.code(_portable(dumps(scenario))),
        ),
    ]


def _portable(scenario_toml: str) -> str:
    """The scenario with files named by their last part: a page travels, this machine's folders do not."""
    return re.sub(r'^((?:trace|config|profile) = ").*/([^/"]+")$', r"\1\2", scenario_toml.strip(), flags=re.MULTILINE)


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
        html_page.section("Every class", _judged((verdict.deciding(plan) or {"classes": ()})["classes"])),
        html_page.section("Why nothing meets it", _why(plan)),
        html_page.section("What to do next", _advice(plan)),
        html_page.section("Load, cost and what binds", _load(plan)),
        html_page.section("Candidates", _candidates(plan)),
        html_page.section("Launch", _launch(plan)),
        html_page.section("Notes", html_page.lines(plan["notes"] or ())),
        *(_assumptions(run) if run else []),
        *(
            _provenance(run.summary, run.scenario, "kvcast plan scenario.toml")
            if run
            else [html_page.section("Scenario", html_page.code(_portable(plan["scenario"])))]
        ),
    ]
    return html_page.page(f"{name} - kvcast plan", parts)


def _plan_cards(plan: Document) -> str:
    answer, capacity, spare = plan["answer"], plan["capacity"] or {}, plan["n_plus_1"] or {}
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
        shown.append(
            html_page.card(
                "SLO capacity",
                f"{least}{load(capacity['slo_capacity_per_s'], unit)}",
                "Highest load at which the target is still met, found by search.",
                (
                    (
                        f"offered {number(capacity['offered_rate_per_s'], unit)}; headroom"
                        f" {least}{text.percent(capacity['headroom'], 0)}"
                    ),
                ),
            )
        )
    if spare:
        down = "none is left" if spare["attainment_one_down"] is None else text.percent(spare["attainment_one_down"])
        survives = (
            "enough"
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
                (survives,),
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
    return html_page.table(("change", "what it does, simulated"), rows, words=True)


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
    return html_page.figures(drawn) + _growth(plan["growth"] or ())


def _growth(rows: Sequence[Document]) -> str:
    """The fleet at larger loads, with the first advice beside it where that was looked at."""

    def size(found: Document) -> list[str]:
        return [text.count(found["replicas"]), text.count(found["gpus"]), text.usd(found["usd_per_hour"])]

    advised = any(row["advised"] for row in rows)
    header = (
        "growth",
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


def _answer_run(folder: Path, plan: Document) -> Run | None:
    """The run of the plan's answer, where the plan kept it."""
    name = (plan.get("answer") or {}).get("run")
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    for place in (folder / name, folder / "runs" / name):
        if (place / "run.json").is_file():
            return load_run(place)
    return None
