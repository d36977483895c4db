"""The answer: verdict, headline numbers, plots, what the cache is worth, how to reproduce it.

The one idea: everything is read from the run folder, so the page and `summary.json` cannot disagree.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.pages.terms import TERMS
from kvcast.pages.verdict import MET, MISSED, UNSTABLE, fleet_of, growth, verdict
from kvcast.runs import Run
from kvcast.summary_text import EXTRAPOLATED_LIMIT

Document = Mapping[str, Any]
MARK = "▲"  # a number that rests on extrapolated step times


def plain(words: str) -> str:
    """The words with nothing that Markdown would act on: names come from mixes and traces."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>$~:-])", r"\\\1", words)


def show(run: Run) -> None:
    """The verdict first, then what it rests on."""
    document = run.summary
    _verdict(run)
    _headline(document)
    _plots(run)
    _worth(document)
    _classes(document)
    with st.expander(f"Notes ({len(document['notes'])})"):
        for note in document["notes"]:
            st.text(note)


def _verdict(run: Run) -> None:
    found = verdict(run.summary, run.scenario.slo)
    box, icon = {MET: (st.success, ":material/check_circle:"), MISSED: (st.error, ":material/cancel:"), UNSTABLE: (st.error, ":material/trending_up:")}.get(found.state, (st.info, ":material/info:"))
    reasons = "  \n".join(plain(reason[:1].upper() + reason[1:]) for reason in found.reasons)
    box(f"**{plain(found.sentence)}**  \n{reasons}", icon=icon)
    if found.caution:
        st.warning(plain(f"{found.caution[:1].upper()}{found.caution[1:]}."), icon=":material/warning:")
    s = run.summary
    cache = f"prefix cache {run.scenario.cache.policy}" if run.scenario.cache.enabled else "prefix cache off"
    st.caption(plain(
        f"{s['name']}: {text.count(s['arrived'])} requests on {run.scenario.model.name}, {run.scenario.cluster.router}, {cache}, {s['engine_semantics']}, seed {s['seed']}. "
        f"Simulated time on step times: {text.percent(s['coverage']['measured'])} measured, {text.percent(s['coverage']['interpolated'])} interpolated, "
        f"{text.percent(s['coverage']['extrapolated'])} extrapolated{f' {MARK}' if s['coverage']['extrapolated'] >= 0.0005 else ''}"
    ), help=TERMS["extrapolated"])  # fmt: skip


def _headline(s: Document) -> None:
    metric = functools.partial(_metric, f" {MARK}" if s["coverage"]["extrapolated"] > EXTRAPOLATED_LIMIT else "")
    row = _four_places()
    metric(row[0], "Within limits", text.percent(s["attainment"]), TERMS["attainment"], _target(s))
    if s["stable"] is False:
        metric(row[1], "Backlog growth (requests/s)", growth(s["backlog_growth_per_s"]), TERMS["backlog"], "over the second half")
        metric(row[2], "Backlog growth (tokens/s)", growth(s["backlog_growth_tokens_per_s"]), TERMS["backlog"], "over the second half")
    else:
        metric(row[1], "TTFT, p99", text.milliseconds(s["p99_ttft_ms"]), TERMS["ttft"], f"p50 {text.milliseconds(s['p50_ttft_ms'])}")
        metric(row[2], "TPOT, p99", text.milliseconds(s["p99_tpot_ms"]), TERMS["tpot"], f"p50 {text.milliseconds(s['p50_tpot_ms'])}")
    cost = s["cost"]
    if cost["usd_per_million_output_tokens"] is not None:
        metric(row[3], "Cost / M tokens out", text.usd(cost["usd_per_million_output_tokens"]), TERMS["cost"], f"{text.usd(cost['gpu_hour_usd'])} a GPU-hour")
    else:
        metric(row[3], "GPU-h / M tokens out", f"{cost['gpu_hours_per_million_output_tokens'] or float('nan'):.3g}", TERMS["gpu_hours"], "no price set")
    row = _four_places()
    metric(row[0], "Output tokens/s", text.count(s["output_throughput"]), TERMS["throughput"], f"{s['request_throughput'] or 0:.3g} requests/s")
    hit_help = f"{TERMS['hit_rate']} Counting rule: {s['counting_rule']}. Ceiling: {TERMS['ceiling']}"
    hit_help += f" With one cache for the fleet the ceiling is {text.percent(s['reuse_ceiling_fleet'])}."
    ceiling = f"ceiling {text.percent(s['reuse_ceiling_replica'])}"
    metric(row[1], f"Hit rate (block {s['block_size']})", text.percent(s["prefix_hit_rate"]), hit_help, ceiling)
    metric(row[2], "KV in use, peak", text.percent(s["kv_usage_peak"]), f"{TERMS['kv']} Mean {text.percent(s['kv_usage_mean'])}. Preemptions: {TERMS['preemptions']}", f"{text.count(s['preemptions'])} preemptions")
    metric(row[3], "GPU-hours", f"{s['gpu_hours']:.3g}", TERMS["gpu_hours"], f"{fleet_of(s)} for {text.seconds(s['duration'])}")


def _four_places() -> list[Any]:
    """Four in a row, or two where the page is narrow."""
    left, right = (column.container(horizontal=True) for column in st.columns(2))
    return [left, left, right, right]


def _target(s: Document) -> str:
    return "no target set" if s["attainment_target"] is None else f"target {text.percent(s['attainment_target'])}"


def _metric(mark: str, place: Any, label: str, value: str, help_text: str, below: str = "") -> None:
    place.metric(label, value if value == text.UNKNOWN else value + mark, below or None, delta_color="off", delta_arrow="off", help=plain(help_text), border=True)


def _plots(run: Run) -> None:
    s, drawn, timeline = run.summary, run.aggregates, run.tables["timeline"]
    finite = "Unstable: these distributions only say how long this run was." if s["stable"] is False else ""
    left, right = st.columns(2)
    _plot(left, figures.latency_cdf(s, drawn, "ttft"), TERMS["ttft"], finite)
    _plot(right, figures.latency_cdf(s, drawn, "tpot"), TERMS["tpot"], finite)
    left, right = st.columns(2)
    _plot(left, figures.kv_occupancy(s, timeline), TERMS["kv"])
    _plot(right, figures.hit_rate(s, timeline), TERMS["hit_rate"], f"Counting rule: {s['counting_rule']}.")
    left, right = st.columns(2)
    _plot(left, figures.queue(timeline), TERMS["queue"])
    _plot(right, figures.miss_causes(s), TERMS["causes"], f"Block size {s['block_size']}.")
    _plot(st.container(), figures.request_life(figures.lives_of(s, drawn)), TERMS["life"])


def _plot(place: Any, figure: Any, help_text: str, caption: str = "") -> None:
    """The figure under a heading that carries its definition; the heading is the figure's own title."""
    place.markdown(f"**{plain(figure.layout.title.text)}**", help=plain(help_text))
    figure.update_layout(title=None, margin={"t": 30})
    place.plotly_chart(figure, width="stretch", config={"displaylogo": False, "displayModeBar": False})
    if caption:
        place.caption(plain(caption))


# -- tables ------------------------------------------------------------------------------------------------------------


def _worth(s: Document) -> None:
    """Tokens, FLOPs, time and money side by side: they are different numbers."""
    w = s["cache_worth"]
    if not w["twin"]:
        return
    st.subheader("What the prefix cache is worth", help=TERMS["worth"])
    prompt, flops = s["prompt_tokens"], s["prefill_flops"]
    rows = [
        ("prefilled tokens", text.scaled(prompt), text.scaled(prompt - w["prefill_tokens_saved"]), w["prefill_tokens_saved_share"]),
        ("prefill FLOPs", text.scaled(flops), text.scaled(None if flops is None else flops - w["prefill_flops_saved"]), w["prefill_flops_saved_share"]),
        *(_pair(name, w[key], form) for name, key, form in (
            ("TTFT, mean", "mean_ttft_ms", text.milliseconds), ("TTFT, p99", "p99_ttft_ms", text.milliseconds), ("E2E, mean", "mean_e2el_ms", text.milliseconds),
            ("busy GPU time", "gpu_busy_s", text.seconds), ("cost", "cost_usd", text.usd), ("within limits", "attainment", text.percent))),
    ]  # fmt: skip
    st.dataframe([{"": name, "cache off": off, "cache on": on, "saved": text.percent(saved) if saved is not None else ""} for name, off, on, saved in rows], hide_index=True, width="stretch")
    if False in w["stable"].values():
        st.caption(plain("At least one of the two runs is unstable: its times only say how long it was."))


def _pair(name: str, pair: Document, form: Any) -> tuple[str, str, str, float | None]:
    return name, form(pair["off"]), form(pair["on"]), pair.get("saved_share")


def _classes(s: Document) -> None:
    st.subheader("By class")
    hide = s["stable"] is False
    rows = [
        {
            "class": name, "arrived": text.count(row["arrived"]), "completed": text.count(row["completed"]), "within limits": text.percent(row["attainment"]),
            f"hit rate (block {s['block_size']})": text.percent(row["prefix_hit_rate"]), "ceiling": text.percent(row["reuse_ceiling_replica"]),
            **{f"{label} {stat}": text.UNKNOWN if hide else text.milliseconds(row["latency_ms"][key][stat]) for label, key in (("TTFT", "ttft"), ("TPOT", "tpot")) for stat in ("p50", "p99")},
            "GPU-hours": f"{row['gpu_hours']:.3g}", "a request": text.usd(row["usd_per_request"]),
        }
        for name, row in s["classes"].items()
    ]  # fmt: skip
    st.dataframe(rows, hide_index=True, width="stretch")


def assumptions(run: Run) -> None:
    """Everything the numbers rest on: the resolved engine, the memory arithmetic, the profile."""
    s = run.summary
    st.subheader("Engine")
    rows = [{"setting": key, "value": str(value), "from": s["engine_origins"].get(key, "given")} for key, value in s["engine"].items()]
    st.dataframe(rows, hide_index=True, width="stretch")
    st.subheader("KV memory of a replica")
    st.code("\n".join(s["kv_arithmetic"]) or f"{s['kv_blocks']:,} blocks, as given", language=None)
    st.subheader("Step times")
    profile = s["profile_provenance"]
    st.text(f"{profile['id']}: {profile['label']}\n{profile['content_hash']}")
    st.dataframe([{"": key, "provenance": str(value)} for key, value in profile["provenance"].items()], hide_index=True, width="stretch")


def reproduce(run: Run, scenario_toml: str) -> None:
    """The command line that gives the same numbers, and what it reads and writes."""
    st.subheader("Reproduce")
    st.code("kvcast run scenario.toml --out my-run", language="bash")
    left, middle, right = st.columns(3)
    left.download_button("scenario.toml", portable(scenario_toml), "scenario.toml", "application/toml", width="stretch")
    middle.download_button("summary.json", (run.folder / "summary.json").read_bytes(), "summary.json", "application/json", width="stretch")
    requests = run.folder / "requests.parquet"
    right.download_button("requests.parquet", requests.read_bytes(), "requests.parquet", "application/octet-stream", width="stretch")
    if run.scenario.workload.trace:
        st.caption("Put the uploaded trace beside scenario.toml.")


def portable(scenario_toml: str) -> str:
    """The scenario with its trace named by file name only: no path of the server leaves it."""
    return re.sub(r'^trace = ".*/([^/"]+)"$', r'trace = "\1"', scenario_toml, flags=re.MULTILINE)
