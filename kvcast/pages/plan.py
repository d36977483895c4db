"""The Plan page: can this fleet carry the load, what are the fewest GPUs that can, and what is each number made of?

The one idea: the verdict first, in a sentence for the fleet on show and one for the plan; then four numbers, then
plots, then the tables behind them.

    show(page)
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.jobs import demo
from kvcast.jobs.runner import Job, Runner
from kvcast.pages import answer, judging, kept, mixes, results, shell
from kvcast.pages.address import FIND, REACH
from kvcast.pages.apply import apply_change, use
from kvcast.pages.plan_files import plan_files
from kvcast.pages.plan_question import (
    AFFINITY,
    WIDER,
    Axes,
    Document,
    ask_axes,
    ask_seeds,
    command,
    has_turns,
    plan_also,
    start_of,
    winner,
    with_settings,
)
from kvcast.pages.results import plain
from kvcast.pages.shell import Page, of_a_run
from kvcast.planner.load import closed_load, unit_of
from kvcast.present.terms import TERMS
from kvcast.present.verdict import MET, OPEN, Verdict, deciding, model_of, planned, verdict
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from sim.scenario import Scenario

SEARCH = (
    "The verdict above is of these limits already. Which fleet meets them, and what it costs, is a search over"
    " simulations: a plan of other limits does not answer it, so ask for a new one."
)
SCALES = (
    "a plan looks for a fleet that does not change, and this one scales. Ask it with the rule none; the Compare page"
    " holds rules and fixed fleets side by side."
)
LOST_TO_ROUTING = 0.05
"""Share of the prompt tokens that are cached on another replica, from which it is said to matter."""


def prepare(runner: Runner) -> Job:
    """The bundled example's plan, in the background: it takes a minute, and the first page shows how far it is."""
    return runner.submit(start_of(dumps(demo.scenario()), {}), *command({}))


@of_a_run
def show(page: Page, run: Run) -> None:
    apply = functools.partial(apply_change, page)
    st.markdown(plain(question(run)))
    judging.fields(page.asked.scenario, page.shown_toml)
    results.box(verdict(run.summary, run.scenario))
    job = _plan(page, run)
    found = job.document() if job else None
    _pin(page, run, results.numbers(run, page.baseline))
    if found:
        answer.classes(found)
        answer.why(found)
        if found["rates"]:
            st.header(plain(f"How far {_planned(found)} reaches"))
        answer.plots(found)
        answer.advice(found, apply)
    st.header(plain(f"The fleet on show: {results.fleet_of(run.summary)}"))  # the plan's may be another one
    results.plots(run)
    if found:
        answer.candidates(found)
        answer.growth(found)
        answer.spare(found)
        answer.launch(found)
    results.tables(run)
    with st.expander("What the numbers rest on"):
        results.assumptions(run)
    st.header("Take it away")
    results.reproduce(run, page.shown_toml)
    if job:
        plan_files(job)


def _planned(found: Document) -> str:
    """The fleet that a plan's figures are of."""
    one = deciding(found)
    if one is None:
        return "a fleet"
    return f"the plan's fleet of {one['replicas']} {'replica' if one['replicas'] == 1 else 'replicas'}"


def question(run: Run) -> str:
    s, scenario = run.summary, run.scenario
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    return (
        f"{s['name']}: {_load(s, scenario)} of {model_of(scenario)}, {scenario.cluster.router} router, {cache},"
        f" {s['engine_semantics']}, seed {s['seed']}"
    )


def _load(s: Document, scenario: Scenario) -> str:
    """What is offered, and the requests of the window that is judged."""
    closed, window = closed_load(scenario), s["window"]
    if closed is not None:
        offered = f"{closed:,} {unit_of(scenario)}"
    else:
        offered = "one burst" if s["offered_per_s"] is None else f"{s['offered_per_s']:.3g} requests/s"
    warmed = f" after {text.minutes(window['start_s'])} of warm-up" if window["start_s"] else ""
    return f"{offered} ({text.count(s['arrived'])} came in {text.minutes(s['duration'])}{warmed})"


# -- the plan ----------------------------------------------------------------------------------------------------------


def _plan(page: Page, run: Run) -> Job | None:
    """The plan's sentence, or the button that asks for it; what is asked and what may vary stand beside."""
    if run.scenario.slo.attainment is None or run.summary["attainment"] is None:
        st.caption(plain(f"{FIND}: set limits and a target in the sidebar, and run."))
        return None
    if run.scenario.pool:
        mixes.plan_of(page)
        return None
    if run.scenario.autoscale.scales:
        st.caption(f"{FIND}: {SCALES}")
        return None
    sentence, below = st.container(), st.container(horizontal=True, vertical_alignment="center")
    with below.popover(
        "What may vary, seeds",
        help=(
            "what a plan may choose beside the number of replicas, and over how many independent runs it settles its"
            " answer"
        ),
    ):
        fixed = (
            st.segmented_control(
                "Question",
                (FIND, REACH),
                default=FIND,
                key="plan.question",
                label_visibility="collapsed",
                persist_state="session",
            )
            == REACH
        )
        axes = {} if fixed else ask_axes(with_settings(page.shown_toml))
        seeds = ask_seeds()
    start = page.shown_toml if fixed else start_of(page.shown_toml, axes, st.session_state["prices"])
    job = shell.result(
        replace(page, shown_toml=start),
        below.container(width="stretch"),
        *command(axes, seeds, fixed),
        label=REACH if fixed else FIND,
    )
    if job is None:
        if page.shown_toml != page.simulated_toml:
            st.caption(SEARCH)
        return None
    found = job.document()
    other = winner(page, found)
    results.box(_told(found, other is not None, fixed), sentence)
    if fixed:
        return job
    if other is not None:
        below.button(
            "Use this fleet",
            key="plan.use",
            on_click=use,
            args=(page, other, axes),
            help="set the sidebar to the plan's answer and run it",
        )
    if not found["answer"]["feasible"]:
        _infeasible(page, run, axes, seeds, below)
    return job


def _told(found: Document, another: bool, fixed: bool) -> Verdict:
    told = planned(found)
    if fixed:
        return replace(
            told,
            headline={MET: "This fleet is enough:", OPEN: "This fleet is not shown to be enough:"}.get(
                told.state, "This fleet is too small:"
            ),
        )
    return told if another or told.state != MET else replace(told, headline="This is the fewest:")


def _infeasible(page: Page, run: Run, axes: Axes, seeds: int, place: Any) -> None:
    """Why more replicas may not help, and what may: fewer, wider ones, or sessions that stay where their history is
    cached."""
    if "hardware.tensor_parallel" not in axes:
        place.button(
            "Try wider replicas",
            key="plan.wider",
            on_click=plan_also,
            args=(page, seeds),
            kwargs={"widths": WIDER},
            help=plain(
                f"plan again with {', '.join(map(str, WIDER))} GPUs a replica, their step times from the best that is"
                " known of this GPU"
            ),
        )
    if has_turns(run) and run.scenario.cluster.router != AFFINITY and "cluster.router" not in axes:
        place.button(
            "Keep sessions on their replica",
            key="plan.affinity",
            on_click=plan_also,
            args=(page, seeds),
            kwargs={"routers": (AFFINITY,)},
            help=plain(
                f"plan again with the router {AFFINITY} too: a session's later requests go where its history is cached"
            ),
        )
    s = run.summary
    hit, ceiling = s["prefix_hit_rate"], s["reuse_ceiling_fleet"]
    if hit is not None and ceiling is not None and ceiling - hit > LOST_TO_ROUTING:
        st.caption(
            plain(
                f"{text.percent(hit)} of the prompt tokens came from the cache, {text.percent(ceiling)} would with one"
                " endless cache for the fleet: each replica computes what another has cached, so more replicas may not"
                " help; fewer, wider ones share more."
            )
        )


# -- the baseline ------------------------------------------------------------------------------------------------------


def _pin(page: Page, run: Run, place: Any) -> None:
    """Pin the run on show, or say what is pinned and let it go."""
    state = st.session_state
    with place:
        kept.button(page.shown_toml)
        if page.baseline is not None:
            s = page.baseline.summary
            words = (
                "this run"
                if page.baseline.folder == run.folder
                else (
                    f"{s['name']}, {results.fleet_of(s)}, {page.baseline.scenario.cache.policy},"
                    f" {page.baseline.scenario.cluster.router}"
                )
            )
            st.caption(plain(f"Baseline: {words}"), width="content")
            st.button("Unpin", key="plan.unpin", on_click=lambda: state.update(pinned=None), type="tertiary")
        if page.baseline is None or page.baseline.folder != run.folder:
            st.button(
                "Pin as baseline" if page.baseline is None else "Pin this run instead",
                key="plan.pin",
                on_click=lambda: state.update(pinned=state["job"]),
                type="tertiary",
                icon=":material/push_pin:",
                help=plain(TERMS["change"]),
            )
