"""The Resilience page: a shock of the run on show, and what the fleet does when it is disturbed.

The one idea: a shock is a part of the scenario, so setting one makes another run, marked on every plot over time; the
questions of `kvcast resilience` are asked of the scenario without it, each by a button of its own.

    show(page)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.config import scenario_from_doc
from kvcast.pages import shell
from kvcast.pages.apply import adopt
from kvcast.pages.results import plain, plot
from kvcast.pages.shell import Page, of_a_run
from kvcast.present import resilience_text
from kvcast.present.terms import TERMS
from kvcast.present.verdict_text import disturbed
from kvcast.scenario.steady import begins_early
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from kvcast.studies import shocked
from sim.measure.regime import METASTABLE, STABLE
from sim.scenario import BURST, LONG_PROMPTS, REPLICA_DOWN, SHOCKS, SLOW, Scenario, Shock
from workloads.errors import InputError

Document = Mapping[str, Any]
PARTS = ("sweep", "collapse", "shocks", "remedies")
SIZES = {BURST: "times the load", SLOW: "times the step time", LONG_PROMPTS: "tokens of a prompt"}


@of_a_run
def show(page: Page, run: Run) -> None:
    scenario = scenario_from_doc(tomllib.loads(page.shown_toml))
    _shock_of_a_run(page, run, scenario)
    if not begins_early(replace(scenario, shock=())):
        st.info("More is asked of a mix in steady state only: without warmup_s, and not of a trace.")
        return
    calm = replace(page, shown_toml=dumps(replace(scenario, shock=())))
    _branches(calm)
    _held(calm)
    _remedies(calm)


def command(*parts: str) -> tuple[str, ...]:
    """`kvcast resilience`, with these parts only."""
    return ("resilience", *(f"--no-{part}" for part in PARTS if part not in parts), "--json")


# -- one shock ---------------------------------------------------------------------------------------------------------


def _shock_of_a_run(page: Page, run: Run, scenario: Scenario) -> None:
    st.header("A shock", help=plain(TERMS["shock"]))
    try:
        asked = _ask(scenario)
    except InputError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    with st.container(horizontal=True):
        disturbed_too = replace(scenario, shock=(asked,))
        st.button("Run with this shock", type="primary", on_click=adopt, args=(page, disturbed_too))
        if scenario.shock:
            st.button("Run without", on_click=adopt, args=(page, replace(scenario, shock=())))
    shocks = run.summary.get("shocks", ())
    if not shocks:
        st.caption("Nothing happens to the fleet in the run on show.")
        return
    st.markdown(f"**{plain(sentence(run.summary))}**")
    st.dataframe(as_rows(shocked.HEADER, shocked.rows_of(shocks)), hide_index=True, width="stretch")
    left, right = st.columns(2)
    timeline = run.tables["timeline"]
    told = "Orange: the shock; the dashed green line: back at the target."
    plot(left, figures.marked(figures.queue(timeline), run.summary), TERMS["queue"], told)
    plot(right, figures.marked(figures.hit_rate(run.summary, timeline), run.summary), TERMS["hit_rate"], told)


def _ask(scenario: Scenario) -> Shock:
    """The shock that the fields say; at first the one of the scenario, or the standard burst."""
    first = (
        scenario.shock[0] if scenario.shock else Shock(BURST, 300.0, scenario.plan.burst_s, scenario.plan.burst_size)
    )
    kinds = [kind for kind in SHOCKS if kind != REPLICA_DOWN or scenario.cluster.replicas > 1]
    kinds = [kind for kind in kinds if not scenario.pool or kind in (BURST, LONG_PROMPTS)]  # all that pools can do
    what, at, lasts, much = st.columns(4, vertical_alignment="bottom")
    place = kinds.index(first.kind) if first.kind in kinds else 0
    kind = what.selectbox("Kind", kinds, place, key="resilience.kind", persist_state="session")
    at_s = 60 * at.number_input(
        "Minutes after the warm-up", 0.0, 1e4, first.at_s / 60, 1.0, key="resilience.at", persist_state="session"
    )
    lasts_s = 60 * lasts.number_input(
        "Lasts (minutes)",
        0.1,
        1e4,
        max(first.duration_s / 60, 0.1),
        1.0,
        key="resilience.lasts",
        persist_state="session",
    )
    size = None
    if kind in SIZES:
        usual = first.how_much if kind == first.kind else Shock(kind).how_much
        key = f"resilience.size {kind}"
        size = much.number_input(f"Size ({SIZES[kind]})", 1.01, 1e6, usual, key=key, persist_state="session")
    return Shock(kind, at_s, lasts_s, size)


def sentence(s: Document) -> str:
    """What the run shows of its load, in a sentence."""
    if s.get("regime") in (METASTABLE, STABLE):
        told = disturbed(dict(s))
        return f"{s['regime'].capitalize()}: {told}."
    return "; ".join(shocked.back(row) for row in s["shocks"]) + "."


# -- the questions of kvcast resilience --------------------------------------------------------------------------------


def _branches(calm: Page) -> None:
    st.header("Load up and down", help=plain(TERMS["branches"]))
    job = shell.result(calm, st.container(), *command("sweep"), label="Raise the load in steps, then lower it")
    if job is not None:
        made = job.document()
        told = resilience_text.states(made["sweep"])
        plot(st.container(), figures.branches(made), TERMS["branches"], f"{told[:1].upper()}{told[1:]}.")


def _held(calm: Page) -> None:
    st.header("Does it hold, and come back?", help=plain(TERMS["regime"]))
    job = shell.result(
        calm, st.container(), *command("collapse", "shocks"), label="Wait for a collapse, and try every kind of shock"
    )
    if job is None:
        return
    made = job.document()
    if told := resilience_text.regime(made):
        st.markdown(f"**{plain(told[:1].upper() + told[1:])}.**")
    for line in resilience_text.collapses(made):
        st.caption(plain(f"{line[:1].upper()}{line[1:]}."))
    rows = as_rows(resilience_text.SHOCK_COLUMNS, resilience_text.shock_rows(made))
    st.dataframe(rows, hide_index=True, width="stretch")
    st.caption(plain(f"Seeds that are back at the target within {text.seconds(made['within_s'])}."))


def _remedies(calm: Page) -> None:
    st.header("What brings it back?", help=plain(TERMS["remedies"]))
    job = shell.result(calm, st.container(), *command("remedies"), label="Try every change after the burst")
    if job is None:
        return
    made = job.document()
    if made["remedies"]["level"] is None:
        st.markdown("None is needed: it comes back from twice its load too.")
        return
    told = resilience_text.from_where(made)
    st.markdown(plain(f"{told[:1].upper()}{told[1:]}:"))
    rows = as_rows(resilience_text.REMEDY_COLUMNS, resilience_text.remedy_rows(made["remedies"]))
    st.dataframe(rows, hide_index=True, width="stretch")


def as_rows(header: Sequence[str], cells: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip((name or "when" for name in header), row, strict=True)) for row in cells]
