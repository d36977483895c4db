"""What all pages share: the sidebar, the run on show, and how a command is started, followed and read.

The one idea: every number comes from a job of the command line. `begin` draws the sidebar and gives a page what is on
show; `result` gives it one command's answer, or draws the button, the progress or the reason why there is none.

    @of_a_run
    def show(page: Page, run: Run) -> None:
        job = shell.result(page, st.container(), "compare", "--vary", "cache.policy=lru,lfu", "--json", label="Compare")
        if job is not None:
            st.dataframe(job.document()["variants"])
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from kvcast.config import scenario_from_doc
from kvcast.jobs import link
from kvcast.jobs.runner import CANCELLED, Job, Runner, without_paths
from kvcast.pages import address, ask_words, judging, results, share
from kvcast.pages.edit import inputs, settings
from kvcast.pages.edit.inputs import Asked
from kvcast.store.runs import Run, load_run
from sim.scenario import Scenario
from workloads.errors import InputError

POLL_S = 0.5
ALIKE_ONLY = ("cache", "explain", "optimum", "resilience", "value")
"""Commands that answer for one kind of replica."""
OF_ALIKE = "Answered for replicas that are alike only; the fleet on show has pools."
CHANGES_TOLD = 4
LAYOUT = (
    "<style>.stMainBlockContainer { padding: 4rem 2.5rem 2rem; } .stSidebar .stVerticalBlock { gap: 0.6rem; }"
    " .unseen { position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%); }"
    " .stElementContainer:has(.unseen) { position: absolute; }"
    " [data-testid=stBaseButton-primary]:enabled { background: #a8243a; border-color: #a8243a; color: white; }"
    " .stPlotlyChart :is(.xaxislayer-above, .yaxislayer-above, .g-xtitle, .g-ytitle, .cbaxis, .cbtitle,"
    " .annotation-text-g) text"
    " { fill: currentColor !important; }"  # the axes' words: a plot's own grey stands out too little
    " @media (max-width: 1100px) { [data-testid=stMetricValue] { font-size: 1.4rem; } }"
    " @media (max-width: 640px) {"
    " .stMainBlockContainer { padding: 4rem 1rem 2rem; } }"
    " .stMultiSelect [data-tag] { background: #a8243a; color: white; }</style>"
)
"""Less empty space around a page of numbers than Streamlit leaves around a text; what is said to a screen reader takes
none."""


@dataclass(frozen=True)
class Page:
    """What a page is given."""

    runner: Runner
    asked: Asked  #: what the sidebar and the Workload page say now
    shown_toml: str  #: the scenario of the run on show, with the limits and the price that are asked for now
    simulated_toml: str  #: the same, as it was simulated
    run: Run | None  #: that run, judged by them; None before the first one is there
    baseline: Run | None  #: the run the reader pinned, to compare with, judged by them too


@st.cache_resource
def runner_of(root: str) -> Runner:
    """The server's runner, shared by its sessions."""
    return Runner(Path(root))


def the_runner() -> Runner:
    return runner_of(os.environ.get("KVCAST_RUNS", "runs/dashboard"))


@st.cache_resource(max_entries=8, show_spinner=False)
def run_of(folder: str, written_ns: int) -> Run:
    return load_run(folder)


def loaded(job: Job | None) -> Run | None:
    """The run folder of a finished job."""
    return (
        None if job is None or not job.done else run_of(str(job.folder), (job.folder / "run.json").stat().st_mtime_ns)
    )


def of_a_run(show: Callable[[Page, Run], None]) -> Callable[[Page], None]:
    """Makes `show(page, run)` the `show(page)` of a page that is about the run on show, and says so before there is
    one."""

    @functools.wraps(show)
    def shown(page: Page) -> None:
        if page.run is None:
            st.info("The first run is being simulated.", icon=":material/hourglass_empty:")
        else:
            show(page, page.run)

    return shown


def begin(turned: bool) -> Page:
    """Draw the sidebar and find out what is on show. Once in every pass, before the page. turned: whether another page
    was drawn before; the navigation's links have no parameters, and the settings stay."""
    job: Job | None
    runner = the_runner()
    state = st.session_state
    linked = not turned or bool(st.query_params)
    first = "base" not in state or (linked and address.gone_back(state.get("kept", {})))
    if first:
        _open(runner)
    st.html(LAYOUT)
    with st.sidebar:
        pressed = st.button("Run", type="primary", width="stretch", help="simulate these settings")
        asked = inputs.ask(runner)
    if (pressed and asked.scenario is not None) or (state["job"] is state["pending"] is None and not state["problem"]):
        start(runner, asked.toml or Asked(settings.demo()).toml)
    elif (
        first
        and state["pending"] is None
        and (job := runner.existing(asked.toml)) is not None
        and (job.running or job.done)
    ):
        state["pending"] = job  # whoever reloads in the middle of a run follows it further
    _settle()
    job, pinned = state["job"], state["pinned"]
    run, toml = judging.shown(asked.scenario, job.scenario_toml if job else "", loaded(job))
    baseline, _ = judging.shown(asked.scenario, pinned.scenario_toml if pinned else "", loaded(pinned))
    page = Page(runner, asked, toml, job.scenario_toml if job else "", run, baseline)
    _share(page)
    return page


def is_of_settings(params: Mapping[str, str]) -> bool:
    """Whether a link's parameters are a scenario's or a run's, and not a question's."""
    if set(params) == {link.JOB}:
        return the_runner().find(params[link.JOB]) is not None
    return not ask_words.is_question(params)


def fresh() -> None:
    """Nothing is on show in this session: whatever its settings say is run next."""
    st.session_state.update(job=None, pending=None, problem="", pinned=None)


def _open(runner: Runner) -> None:
    """A new session says what its link says: settings, the run on show, or the bundled example."""
    state, params = st.session_state, st.query_params.to_dict()
    state["problem"] = ""
    for key in ("job", "pending", "pinned"):  # who goes back keeps what is on show until the address names another
        state.setdefault(key, None)
    address.take(runner, params)
    job = runner.find(params.pop(link.JOB, ""))
    try:
        if params:
            settings.adopt(link.scenario_of(params, settings.demo(), inputs.policies()))
        elif job is not None:
            scenario = scenario_from_doc(tomllib.loads(job.scenario_toml), "the run on show")
            settings.adopt(scenario, scenario.workload.trace or "")
        else:
            settings.adopt(settings.demo())
    except InputError as error:
        settings.adopt(settings.demo())
        state["problem"] = str(error)
    if job is not None:
        state["job" if job.done else "pending"] = job


def _share(page: Page) -> None:
    """Keep the browser's address a link to what is on show, and offer every other way out and in."""
    scenario = page.asked.scenario
    with st.sidebar.popover(share.LABEL, width="stretch"):
        share.runs()
        if scenario is not None:
            params, why_not = _link(page, scenario)
            params |= address.given()
            address.written(params)
            share.link_to("to these settings", params, why_not)
            share.command("the same summary.json, byte for byte", link.command(scenario, settings.demo()))
            st.download_button(
                "Download scenario.toml",
                results.portable(page.asked.toml),
                "scenario.toml",
                "application/toml",
                width="stretch",
                on_click="ignore",
            )
        share.load("scenario.upload", lambda problem: st.session_state.update(problem=problem))


def _link(page: Page, scenario: Scenario) -> tuple[dict[str, str], str]:
    """(the link's parameters, why they are not the settings). The run on show is named where the settings do not name
    it already."""
    job: Job | None = st.session_state["job"]
    key = {link.JOB: job.key} if job is not None and page.asked.toml != job.scenario_toml else {}
    try:
        found = link.query(scenario, settings.demo())
        # a job alone means its own settings: the example's, beside another run, are told by one that is as it was
        return found | ({link.SEED: str(scenario.seed)} if key and not found else {}) | key, ""
    except InputError as error:
        return ({link.JOB: job.key} if job is not None else {}), str(error)


def start(runner: Runner, scenario_toml: str) -> None:
    """Simulate the scenario for this session; what is on show stays until it is there."""
    state = st.session_state
    state["problem"] = ""
    try:
        state["pending"] = runner.submit(scenario_toml)
    except InputError as error:
        state["problem"] = str(error)


def _settle() -> None:
    """Put a finished run on show; keep the one line of a failed one."""
    state = st.session_state
    pending: Job | None = state["pending"]
    if pending is None or pending.running:
        return
    state["pending"] = None
    if pending.done:
        state["job"] = pending
    else:
        state["problem"] = pending.failure()


def heading(name: str) -> None:
    """The page's one h1, for a screen reader: the navigation above shows the eye where it is."""
    st.html(f'<h1 class="unseen">{name}</h1>')


def status(page: Page) -> None:
    """What stands above every page: the run in progress, or why there is none, or that the settings are other ones
    now."""
    state = st.session_state
    pending: Job | None = state["pending"]
    if pending is not None:
        follow(page.runner, pending)
    elif page.asked.problem == inputs.READING:
        follow(page.runner, inputs.reading(page.runner, state["workload.trace"]))
    elif page.asked.problem:
        st.error(results.plain(page.asked.problem), icon=":material/error:")
    elif state["problem"]:
        st.error(results.plain(f"{_stated(state['problem'])}{_of_what(page)}"), icon=":material/error:")
    elif page.shown_toml and not settings.alike(page.asked.toml, page.shown_toml):
        st.info(
            "The settings have changed since this run. Press **Run** to simulate them."
            f" {results.plain(_changed(page))}",
            icon=":material/edit:",
        )


def _stated(problem: str) -> str:
    return "Cancelled" if problem == CANCELLED else problem.rstrip(".")


def _of_what(page: Page) -> str:
    """Whose the results below are when a run did not come to its end."""
    if page.run is None:
        return ". There is no finished run to show yet."
    if page.asked.scenario is None or settings.alike(page.asked.toml, page.shown_toml):
        return "."
    return f". The results below are of the last finished run. {_changed(page)}"


def _changed(page: Page) -> str:
    """What the settings have that the run on show has not: "Changed: cluster.replicas 2 -> 3."."""
    if page.asked.scenario is None:
        return ""
    changes = link.changes(page.asked.scenario, judging.scenario_of(page.shown_toml))
    told = [f"{key} {before} → {now}" if before else f"{key} {now}" for key, before, now in changes[:CHANGES_TOLD]]
    more = len(changes) - len(told)
    line = f"Changed: {', '.join(told)}{f' and {more} more' if more else ''}." if told else ""
    return without_paths(line, page.runner.root)


def result(page: Page, place: Any, *command: str, label: str) -> Job | None:
    """The finished job of a command on the scenario on show; until then None, after drawing in `place` the button that
    starts it (label), its progress with Cancel, or the one line about why it failed."""
    if not page.shown_toml:
        return None
    if command[0] in ALIKE_ONLY and judging.scenario_of(page.shown_toml).pool:
        place.caption(OF_ALIKE)
        return None
    job = page.runner.existing(page.shown_toml, *command)
    running = job is not None and job.running  # asked once, and first: it may end any moment
    if job is not None and not running and job.done:
        return job
    with place:
        if job is not None and running:
            follow(page.runner, job)
            return None
        if job is not None and (told := _ended(job, label)):
            st.error(results.plain(told), icon=":material/error:")
        if st.button(label, key=f"start {label} {' '.join(command)}"):
            try:
                page.runner.submit(page.shown_toml, *command)
                st.rerun()
            except InputError as error:
                st.error(results.plain(str(error)), icon=":material/error:")
    return None


def _ended(job: Job, label: str) -> str:
    """Why a job has no answer, and what that leaves; nothing of what another session cancelled."""
    if job.failure() != CANCELLED:
        return job.failure()
    if job.key not in st.session_state.get("cancelled", ()):
        return ""
    return f"Cancelled: “{label}” has no answer yet. All else on this page is of the run on show."


def until_done(job: Job | None, draw: Callable[[], None]) -> None:
    """Draw, again and again while the job runs, and the whole page once more when it has ended."""
    _polled(job, draw, job is not None and job.running)


def follow(runner: Runner, job: Job) -> None:
    """Progress, time left and Cancel of a job that was running a moment ago; the page is drawn anew when it ends, and
    does not wait for it. One follower to a container: Streamlit tells fragments apart by where they stand."""
    _polled(job, functools.partial(progress, runner, job), True)


def _polled(job: Job | None, draw: Callable[[], None], running: bool) -> None:
    """running: what the page knows. A job that has ended since is found out by the first poll."""
    # a poll comes from a browser that has the page; drawing anew before that would drop what it has not been sent
    polled = False

    @st.fragment(run_every=POLL_S if running else None)
    def part() -> None:
        nonlocal polled
        if polled and running and job is not None and not job.running:
            st.rerun()
        polled = True
        draw()

    part()


def progress(runner: Runner, job: Job) -> None:
    """How far the job is, and its Cancel."""
    told = job.progress
    done, says = (told.done, told.says) if told else (0.0, "starting")
    left = f", about {_rough(told.left_s)} left" if told and told.left_s is not None else ""
    row = st.container(horizontal=True, vertical_alignment="center")
    row.progress(done, results.plain(f"{says} ({100 * done:.0f} %{left})"))
    if row.button("Cancel", key=f"cancel {job.key}", width="content"):
        runner.cancel(job)
        st.session_state["cancelled"] = {*st.session_state.get("cancelled", ()), job.key}
        job.wait()
        st.rerun()


def _rough(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{max(seconds, 1):.0f} s"
