"""What a run would say, before it is run: the estimate of the Workload page, and the reading report of a trace.

The one idea: a job of the command line (`kvcast estimate`, `kvcast workload describe`) starts by itself with every
change, in the place of the one before; what it said last stays, marked, until it has said something new.

    show(page)
"""

from __future__ import annotations

import functools
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.pages import judging, shell
from kvcast.pages.edit import inputs
from kvcast.pages.results import mark_of_share, plain
from kvcast.pages.shell import Page
from kvcast.present.terms import TERMS
from workloads.errors import InputError

ESTIMATE = (
    "A real simulation of at most 2,000 of the run's requests, at its own rates: two stretches, the first third of each"
    " as a warm-up. On the bundled mixes its goodput is within 15 % of the whole run's, on fleets that keep up; a p99"
    " is rougher."
)
AGAINST = (
    "Last run: the estimate of the settings of the run on show, of the same sample, so that the two differ by what was"
    " changed and not by how rough an estimate is."
)
GOODPUT = (
    "Requests per second that meet every limit of their SLO class; without limits, requests per second that complete."
)


def show(page: Page) -> None:
    """What a run would say, from a sample of it; starts by itself with every edit, in the place of the one before."""
    state, job = st.session_state, None
    if page.asked.scenario is not None and page.asked.scenario.pool:
        st.caption("Estimated for replicas that are alike only; this fleet has pools: press Run.")
        return
    base = _of_last_run(page)
    if page.asked.scenario is not None:
        before = state.get("workload.estimating")
        try:
            job = page.runner.submit(page.asked.toml, "estimate")
        except InputError as error:
            st.caption(plain(str(error)))
        if before is not None and before not in (job, base):
            page.runner.cancel(before)
        state["workload.estimating"] = job
    with st.container(border=True):
        shell.until_done(job if job is not None and job.running else base, functools.partial(_estimated, job, base))


def _of_last_run(page: Page) -> Any:
    """The estimate of the run on show, which the settings' own is held against: like with like, on the same arrivals.
    None where they are the same."""
    if not page.shown_toml or page.shown_toml == page.asked.toml or judging.scenario_of(page.shown_toml).pool:
        return None
    try:
        return page.runner.submit(page.shown_toml, "estimate")
    except InputError:
        return None


def _estimated(job: Any, base: Any) -> None:
    """The estimate's numbers, each with its change against the last full run's settings; those of the edit before,
    marked, until the new ones are there."""
    state = st.session_state
    if job is not None and job.done and state.get("workload.estimate_key") != job.key:
        state["workload.estimate"], state["workload.estimate_key"] = job.document(), job.key
    found, before = state.get("workload.estimate"), base.document() if base is not None and base.done else None
    if job is not None and not job.running and not job.done and job.failure():
        st.error(plain(job.failure()), icon=":material/error:")
    waiting = job is None or not job.done
    if found is None:
        st.caption("Estimating..." if job is not None else "No estimate yet.")
        return
    of = (
        f"the whole run, {text.count(found['requests'])} requests"
        if found["sampled"] == found["requests"]
        else f"{text.count(found['sampled'])} of {text.count(found['requests'])} requests"
    )
    title = (
        "estimating anew; these are the numbers before the edit"
        if waiting
        else f"from {of}; press Run for the whole"
        if "of" in of
        else f"from {of}"
    )
    st.markdown(f"**Estimate** :gray[{plain(title)}]", help=ESTIMATE)
    if found["overloaded"]:
        st.error(
            plain(
                f"Overloaded: this fleet cannot keep up with {found['offered_per_s']:.3g} requests/s. Add replicas, or"
                " lower the load."
            ),
            icon=":material/trending_up:",
        )
        return
    row, mark = st.container(horizontal=True), mark_of_share(found["extrapolated"])
    for label, key, form, good, help_text in METRICS:
        value, old = found[key], (before or {}).get(key)
        if value is None:
            continue
        changed = None if old is None or form(old) == form(value) else f"last run: {form(old)}"
        colour: Any = "off" if changed is None else "green" if (value > old) == good else "red"
        doubtful = mark if key != "prefix_hit_rate" else ""
        row.metric(
            label,
            form(value) + doubtful,
            changed,
            delta_color=colour,
            delta_arrow="off" if changed is None else "up" if value > old else "down",
            help=plain(
                " ".join([help_text, *([TERMS["extrapolated"]] if doubtful else []), *([AGAINST] if changed else [])])
            ),
        )


def _rate(value: float) -> str:
    return f"{value:.3g}/s"


METRICS = (  # label, key, form, whether more is better, definition
    ("Goodput", "goodput_per_s", _rate, True, GOODPUT),
    ("Within limits", "attainment", text.percent, True, TERMS["attainment"]),
    ("TTFT, p99", "p99_ttft_ms", text.milliseconds, False, TERMS["ttft"]),
    ("TPOT, p99", "p99_tpot_ms", text.milliseconds, False, TERMS["tpot"]),
    ("Hit rate", "prefix_hit_rate", text.percent, True, TERMS["hit_rate"]),
    ("Cost / M tokens out", "usd_per_million_output_tokens", text.usd, False, TERMS["cost"]),
    ("Cost / M tokens in", "usd_per_million_input_tokens", text.usd, False, TERMS["cost"]),
    ("Cost / M tokens, all", "usd_per_million_total_tokens", text.usd, False, TERMS["cost"]),
)


def trace(page: Page) -> None:
    """The reading report of the uploaded trace."""
    path = st.session_state["workload.trace"]
    if not path:
        st.info(
            "Upload a trace in the sidebar: Mooncake JSONL, Weka sessions, ServeGen clients, Azure, BurstGPT, Vidur or"
            " splitwise CSV, token ids. The format is recognised from the content.",
            icon=":material/upload_file:",
        )
        return
    job = inputs.reading(page.runner, path)
    if not job.done or page.asked.problem == inputs.READING:  # its progress, or what is wrong, stands above the page
        return
    document = job.document()
    st.header("Reading report")
    for line in document["notes"]:
        st.text(line)
    rows = [
        {"": name, **{stat: text.count(row[stat]) for stat in ("mean", "p50", "p90", "p99", "max")}}
        for name, row in (("prompt tokens", document["prompt_tokens"]), ("output tokens", document["output_tokens"]))
    ]
    st.dataframe(rows, hide_index=True, width="stretch")
    reuse = document["reuse"]
    st.caption(
        plain(
            f"{text.count(document['requests'])} requests; reusable prefix {text.percent(reuse['reuse_ceiling'])} of"
            f" the prompt tokens (block size {reuse['block_size']}; {reuse['counting_rule']})"
            if reuse["prefix_identity"]
            else (
                f"{text.count(document['requests'])} requests; the trace says nothing about shared text, so every hit"
                " rate will be 0 because it is unknown"
            )
        )
    )
    show(page)
