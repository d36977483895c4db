"""The run on show: its verdict, four numbers, plots, tables, and how to reproduce it.

The one idea: everything is read from the run folder, so the page and `summary.json` cannot disagree.

    box(verdict(run.summary, run.scenario)); numbers(run, None); plots(run); tables(run)
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from kvcast import figures, text
from kvcast.pages.edit.chart import draw
from kvcast.pages.edit.plain import plain
from kvcast.planner import words
from kvcast.present import mixed_text, pools_text
from kvcast.present.numbers import MARK as MARK
from kvcast.present.numbers import Number, four
from kvcast.present.numbers import mark_of_share as mark_of_share
from kvcast.present.terms import TERMS
from kvcast.present.verdict import MET, MISSED, OPEN, Verdict, fleet_of, share_of
from kvcast.store import parquet
from kvcast.store.runs import Run

Document = Mapping[str, Any]


def box(found: Verdict, place: Any = st) -> None:
    """A verdict: its state as colour, icon and words; under it, not in a colour of a state, what makes it doubtful."""
    shown, icon = {
        MET: (place.success, ":material/check_circle:"),
        MISSED: (place.error, ":material/cancel:"),
        OPEN: (place.warning, ":material/help:"),
    }.get(found.state, (place.info, ":material/info:"))
    reasons = (
        f"  \n:small[{plain('. '.join(_capital(reason.rstrip('.')) for reason in found.reasons))}.]"
        if found.reasons
        else ""
    )
    shown(f"**{plain(found.headline)}** {plain(found.sentence)}{reasons}", icon=icon)
    if found.caution:
        place.markdown(f":orange[:material/warning:] {plain(_capital(found.caution))}.")


def _capital(told: str) -> str:
    return told[:1].upper() + told[1:]


# -- numbers -----------------------------------------------------------------------------------------------------------


def numbers(run: Run, baseline: Run | None) -> Any:
    """Four numbers with intervals, and the change against the pinned baseline; then the smaller ones in a line, which
    has room for more."""
    mark = mark_of(run.summary)
    for place, number in zip(_four_places(), _four(_name(run), _name(baseline), run, baseline), strict=True):
        _card(place, number, mark)
    return _smaller(run.summary, mark)


@st.cache_data(max_entries=64, show_spinner=False)
def _four(name: str, baseline_name: str, _run: Run, _baseline: Run | None) -> list[Number]:
    return four(_run, _baseline)


def _name(run: Run | None) -> str:
    """What a run is kept under: its folder, when that was written, and what it is judged by."""
    if run is None:
        return ""
    return f"{run.folder} {run.info['written_at']} {run.scenario.slo} {run.scenario.cost.gpu_hour_usd}"


def mark_of(s: Document) -> str:
    return mark_of_share(s["coverage"]["extrapolated"])


def _four_places() -> list[Any]:
    """Four in a row, or two where the page is narrow."""
    left, right = (column.container(horizontal=True, height="stretch") for column in st.columns(2))
    return [left, left, right, right]


def _card(place: Any, number: Number, mark: str) -> None:
    """The change is green or red only where it is shown to be one, and says its direction in a sign."""
    colour = {True: "green", False: "red", None: "gray"}[number.better]
    marked = mark if number.rests_on_steps and number.value != text.UNKNOWN else ""
    with place.container(border=True, width="stretch", height="stretch", gap="xxsmall"):
        st.metric(
            number.label,
            number.value,
            help=plain(" ".join([TERMS[number.term], TERMS["interval"], *([TERMS["extrapolated"]] if mark else [])])),
        )
        if number.interval or marked:  # beside the value the mark would cut it off where the page is narrow
            st.caption(plain(f"{number.interval}{marked}"))
        if number.change:
            st.markdown(f":{colour}[{plain(number.change)}] :small[:gray[vs baseline]]", help=plain(TERMS["change"]))
        st.caption(plain(number.below))


def _smaller(s: Document, mark: str) -> Any:
    hit = (
        f"{TERMS['hit_rate']} Counting rule: {s['counting_rule']}. Ceiling: {TERMS['ceiling']} With one cache for the"
        f" fleet the ceiling is {text.percent(s['reuse_ceiling_fleet'])}."
    )
    kv = f"{TERMS['kv']} Mean {text.percent(s['kv_usage_mean'])}. Preemptions: {TERMS['preemptions']}"
    steps = ", ".join(f"{text.percent(share)} {kind}" for kind, share in s["coverage"].items() if share >= 0.0005)
    parts = (
        (
            f"{text.count(s['output_throughput'])}{mark} output tokens/s",
            f"{TERMS['throughput']} {s['request_throughput'] or 0:.3g} requests/s.",
        ),
        (
            f"hit rate {text.percent(s['prefix_hit_rate'])}, ceiling {text.percent(s['reuse_ceiling_replica'])}"
            if s["prefix_identity"]
            else "hit rate unknown: the workload says nothing about shared text",
            f"{hit} Block size {s['block_size']}.",
        ),
        (f"KV peak {text.percent(s['kv_usage_peak'])}, {text.count(s['preemptions'])} preemptions", kv),
        (f"{s['gpu_hours']:.3g} GPU-hours", f"{TERMS['gpu_hours']} {fleet_of(s)} for {text.seconds(s['duration'])}."),
        (f"step times {steps}{mark}", TERMS["extrapolated"]),
    )
    line = st.container(horizontal=True, gap="small", vertical_alignment="center")
    for told, help_text in parts:
        line.caption(plain(told), help=plain(help_text), width="content")
    return line


# -- plots -------------------------------------------------------------------------------------------------------------


def plots(run: Run) -> None:
    """An unstable run shows its queue first: that is what is wrong with it."""
    s = run.summary
    finite = "Unstable: these distributions only say how long this run was." if s["stable"] is False else ""
    drawn = _drawn(run)
    captions = {"ttft": finite, "tpot": finite, "hit_rate": f"Counting rule: {s['counting_rule']}."}
    rows: list[tuple[str, ...]] = [("ttft", "tpot"), ("ttft_time", "tpot_time"), ("kv", "hit_rate")]
    rows += [("queue", "replica_load"), *([("fleet",)] if "fleet" in drawn else [])]
    for row in [rows[3], *rows[:3], *rows[4:]] if finite else rows:
        for place, term in zip(st.columns(2), row, strict=False):
            plot(place, drawn[term], TERMS[term], captions.get(term, ""))


def _drawn(run: Run) -> dict[str, Any]:
    """The figures by their term."""
    measured = f"{run.folder} {run.info['written_at']} {run.summary.get('shocks')}"  # whose ends limits decide
    return _judged(_name(run), run) | _measured(measured, run)


@st.cache_data(max_entries=16, show_spinner=False)
def _judged(name: str, _run: Run) -> dict[str, Any]:
    """Those that show limits, targets or what they decide."""
    return {one: figures.latency_cdf(_run.summary, _run.aggregates, one) for one in ("ttft", "tpot")}


@st.cache_data(max_entries=16, show_spinner=False)
def _measured(name: str, _run: Run) -> dict[str, Any]:
    """Those that no limit or price changes. Kept: with a million requests, reading columns takes longer than a change
    of settings may."""
    s, timeline, requests = _run.summary, _run.tables["timeline"], _run.tables["requests"]
    over_time = {
        "kv": figures.kv_occupancy(s, timeline),
        "hit_rate": figures.hit_rate(s, timeline),
        "queue": figures.queue(timeline),
        **({"fleet": figures.replicas_over_time(timeline)} if "fleet" in s else {}),
        **{f"{one}_time": figures.latency_over_time(requests, one) for one in ("ttft", "tpot")},
    }
    return {
        **{term: figures.marked(one, s) for term, one in over_time.items()},
        "replica_load": figures.replica_load(s, requests),
    }


def plot(place: Any, figure: Any, help_text: str, caption: str = "") -> None:
    """The figure under a heading that carries its definition; the heading is the figure's own title."""
    place.markdown(f"**{plain(figure.layout.title.text)}**", help=plain(help_text))
    draw(place, figure)
    if caption:
        place.caption(plain(caption))


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(run: Run) -> None:
    s = run.summary
    _classes(s)
    _worth(s)
    if s.get("pools"):
        st.header("Pools of the fleet")
        for header, rows in (
            (mixed_text.LOAD_HEADER, mixed_text.load_rows(s)),
            (mixed_text.USE_HEADER, mixed_text.use_rows(s)),
        ):
            st.dataframe(_as_rows(header, rows), hide_index=True, width="stretch")
        st.caption(plain(mixed_text.between(s)))
    if found := s.get("disaggregation"):
        st.header("Prefill and decode")
        st.dataframe(_as_rows(pools_text.HEADER, pools_text.rows_of(found)), hide_index=True, width="stretch")
        st.caption(plain(pools_text.parts(found)))
    with st.expander(f"Notes ({len(s['notes'])})"):
        for note in s["notes"]:
            st.text(note)


def _as_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(header, row, strict=True)) for row in rows]


def verdict_rows(rows: Sequence[Document]) -> list[dict[str, str]]:
    """The classes of a verdict's document: what each attains against its target."""
    return [
        {
            "class": row["name"],
            "verdict": row["verdict"],
            "within limits (95 %)": share_of(row["attainment"]),
            "target": words.share(row["target"]),
            "requests": text.count(row["requests"]),
            "most often missed": words.NAMES.get(row["worst"], "none"),
        }
        for row in rows
    ]


def _classes(s: Document) -> None:
    st.header("By class", help=TERMS["verdict"])
    st.dataframe(class_rows(s), hide_index=True, width="stretch")


def class_rows(s: Document) -> list[dict[str, str]]:
    """A row for each class of a run."""
    hide, known = s["stable"] is False, s["prefix_identity"]
    judged = {row["class"]: row for row in verdict_rows(s["verdict"]["classes"] if s["verdict"] else ())}
    return [
        {
            "class": name,
            **{
                key: judged.get(name, {}).get(key, otherwise)
                for key, otherwise in (
                    ("verdict", ""),
                    ("within limits (95 %)", text.percent(row["attainment"])),
                    ("target", ""),
                )
            },
            "arrived": text.count(row["arrived"]),
            "completed": text.count(row["completed"]),
            f"hit rate (block {s['block_size']})": text.hit_rate(row["prefix_hit_rate"], known),
            "ceiling": text.hit_rate(row["reuse_ceiling_replica"], known),
            **{
                f"{label} {stat}": text.UNKNOWN if hide else text.milliseconds(row["latency_ms"][key][stat])
                for label, key in (("TTFT", "ttft"), ("TPOT", "tpot"))
                for stat in ("p50", "p99")
            },
            "GPU-hours": f"{row['gpu_hours']:.3g}",
            "a request": text.usd(row["usd_per_request"]),
        }
        for name, row in s["classes"].items()
    ]


def _worth(s: Document) -> None:
    """Tokens, FLOPs, time and money side by side: they are different numbers."""
    w = s["cache_worth"]
    if not w["twin"]:
        return
    st.header("What the prefix cache is worth", help=TERMS["worth"])
    prompt, flops = s["prompt_tokens"], s["prefill_flops"]
    rows = [
        (
            "prefilled tokens",
            text.scaled(prompt),
            text.scaled(prompt - w["prefill_tokens_saved"]),
            w["prefill_tokens_saved_share"],
        ),
        (
            "prefill FLOPs",
            text.scaled(flops),
            text.scaled(None if flops is None else flops - w["prefill_flops_saved"]),
            w["prefill_flops_saved_share"],
        ),
        *(
            _pair(name, w[key], form)
            for name, key, form in (
                ("TTFT, mean", "mean_ttft_ms", text.milliseconds),
                ("TTFT, p99", "p99_ttft_ms", text.milliseconds),
                ("E2E, mean", "mean_e2el_ms", text.milliseconds),
                ("busy GPU time", "gpu_busy_s", text.seconds),
                ("cost", "cost_usd", text.usd),
                ("within limits", "attainment", text.percent),
            )
        ),
    ]
    st.dataframe(
        [
            {
                "number": name,
                "cache off": off,
                "cache on": on,
                "saved": text.percent(saved) if saved is not None else "",
            }
            for name, off, on, saved in rows
        ],
        hide_index=True,
        width="stretch",
    )
    if False in w["stable"].values():
        st.caption(plain("At least one of the two runs is unstable: its times only say how long it was."))


def _pair(name: str, pair: Document, form: Any) -> tuple[str, str, str, float | None]:
    return name, form(pair["off"]), form(pair["on"]), pair.get("saved_share")


def assumptions(run: Run) -> None:
    """Everything the numbers rest on: the resolved engine, the memory arithmetic, the profile."""
    s = run.summary
    st.header("Engine")
    rows = [
        {"setting": key, "value": str(value), "from": s["engine_origins"].get(key, "given")}
        for key, value in s["engine"].items()
    ]
    st.dataframe(rows, hide_index=True, width="stretch")
    st.header("KV memory of a replica")
    st.code("\n".join(s["kv_arithmetic"]) or f"{s['kv_blocks']:,} blocks, as given", language=None)
    st.header("Step times")
    profile = s["profile_provenance"]
    st.text(f"{profile['id']}: {profile['label']}\n{profile['content_hash']}")
    st.dataframe(
        [{"field": key, "provenance": str(value)} for key, value in profile["provenance"].items()],
        hide_index=True,
        width="stretch",
    )


# -- to take away ------------------------------------------------------------------------------------------------------


def reproduce(run: Run, scenario_toml: str) -> None:
    """The command line that gives the same numbers, and what it reads and writes."""
    st.code("kvcast run scenario.toml --out my-run", language="bash")
    requests = run.tables["requests"]
    files: tuple[tuple[str, str, Callable[[], Any]], ...] = (
        ("scenario.toml", "application/toml", lambda: portable(scenario_toml)),
        ("summary.json", "application/json", lambda: text.to_json(run.summary) + "\n"),
        ("requests.parquet", "application/octet-stream", lambda: as_parquet(requests)),
        ("requests.csv", "text/csv", lambda: as_csv(requests)),
        ("report.html", "text/html", lambda: as_html(run)),
    )
    row = st.container(horizontal=True)  # wraps where it is narrow: no name is cut
    for name, mime, content in files:
        row.download_button(name, content, name, mime, on_click="ignore", key=f"plan.{name}")
    if run.scenario.workload.trace:
        st.caption("Put the uploaded trace beside scenario.toml.")


def as_html(run: Run) -> str:
    """The page that `kvcast report` writes."""
    from kvcast.present.html_report import of_run

    return of_run(run)


def as_parquet(columns: Mapping[str, np.ndarray]) -> bytes:
    """The file that a run folder has of these columns."""
    with tempfile.TemporaryDirectory() as folder:
        parquet.write(path := Path(folder) / "table.parquet", columns)
        return path.read_bytes()


def as_csv(columns: Mapping[str, np.ndarray]) -> bytes:
    """Columns as CSV, made when it is asked for."""
    import io

    import pyarrow as pa
    import pyarrow.csv

    out = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(dict(columns)), out)
    return out.getvalue()


def portable(scenario_toml: str) -> str:
    """The scenario with its trace and config.json named by file name only: no path of the server leaves it."""
    return re.sub(r'^(trace|config) = ".*/([^/"]+)"$', r'\1 = "\2"', scenario_toml, flags=re.MULTILINE)
