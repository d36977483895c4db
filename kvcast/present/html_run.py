"""A run as one HTML page.

>>> of_run(load_run(Path("runs/demo")))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcast import figures, text
from kvcast.planner.words import NAMES, share
from kvcast.present import html_page, measured_text, mixed_text, pools_text, verdict
from kvcast.present.html_basis import Document, assumptions, provenance
from kvcast.present.numbers import four
from kvcast.present.terms import TERMS
from kvcast.present.verdict_text import EXTRAPOLATED_LIMIT
from kvcast.store.runs import Run
from kvcast.studies import shocked

MOST_CLASSES = 12


# -- a run -------------------------------------------------------------------------------------------------------------


def of_run(run: Run) -> str:
    s = run.summary
    found = verdict.verdict(s, run.scenario)
    name = s["name"] or "kvcast run"
    parts = [
        html_page.heading(
            name,
            f"{text.count(s['arrived'])} requests ({s['workload']}) on {verdict.model_of(run.scenario)}; simulated, not"
            f" measured, with kvcast {run.info['kvcast']} on {run.info['written_at'][:10]}",
        ),
        html_page.banner(found.state, found.headline, found.sentence, found.reasons, found.caution),
        _cards(s, four(run)),
        html_page.section("Measured and simulated", _measured(s)),
        html_page.section("Verdict by class", judged(s["verdict"]["classes"] if s["verdict"] else ())),
        *([html_page.section("Shocks", _shocks(s["shocks"]))] if s.get("shocks") else []),
        html_page.section("Latency", _latency(run)),
        *([html_page.section("Prefill and decode", _pools(s["disaggregation"]))] if s.get("disaggregation") else []),
        *([html_page.section("Pools of the fleet", _kinds(s))] if s.get("pools") else []),
        html_page.section("Prefix cache", _cache(run)),
        html_page.section("Fleet over time", _fleet(run)),
        html_page.section("By class", _by_class(s)),
        *assumptions(run),
        *provenance(s, run.scenario, "kvcast run scenario.toml --out my-run"),
    ]
    return html_page.page(f"{name} - kvcast report", parts)


def _measured(s: Document) -> str:
    """Beside a benchmark's result, where the run was held against one."""
    compared = s.get("measured")
    if not compared:
        return ""
    said = " ".join([f"Measured: {compared['source']} ({compared['format']}).", *compared["notes"]])
    return html_page.table(measured_text.HEADER, measured_text.rows(compared)) + html_page.paragraph(said)


def judged(rows: Sequence[Document]) -> str:
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
    mark = " †" if s["coverage"]["extrapolated"] > EXTRAPOLATED_LIMIT else ""
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


def _kinds(s: Document) -> str:
    """What each [[pool]] did and cost."""
    tables = ((mixed_text.LOAD_HEADER, mixed_text.load_rows(s)), (mixed_text.USE_HEADER, mixed_text.use_rows(s)))
    return "".join(html_page.table(*one) for one in tables) + html_page.paragraph(mixed_text.between(s))


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
    """A figure over the run's clock, whose warm-up is in grey and whose shocks are in orange."""
    begins_s = s["window"]["start_s"]
    told = [caption] if caption else []
    told += [f"Grey: the first {text.minutes(begins_s)}, a warm-up that is not judged."] if begins_s else []
    told += ["Orange: shocks; the dashed green line: back at the target."] if s.get("shocks") else []
    return html_page.figure(figures.marked(drawn, s), name, TERMS[term], " ".join(told))


def _shocks(shocks: Sequence[Document]) -> str:
    """What each shock did, and when the fleet was back."""
    told = "".join(html_page.paragraph(f"{shocked.back(row)}.") for row in shocks)
    return html_page.table(shocked.HEADER, shocked.rows_of(shocks)) + told


def _pools(found: Document) -> str:
    """What each pool did, and what a first token waited for between them."""
    return html_page.table(pools_text.HEADER, pools_text.rows_of(found)) + html_page.paragraph(
        f"{pools_text.parts(found)}."
    )


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
    changes = [_over_time(s, figures.replicas_over_time(timeline), "replicas-held", "fleet")] if "fleet" in s else []
    return html_page.figures(
        [
            *changes,
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
            text.hit_rate(row["prefix_hit_rate"], s["prefix_identity"]),
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
