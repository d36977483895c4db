"""What all pages share: the sidebar, the run on show, and how a command is started, followed and read.

The one idea: every number comes from a job of the command line. `begin` draws the sidebar and gives a page what is on
show; `result` gives it one command's answer, or draws the button, the progress or the reason why there is none.

    def show(page: Page) -> None:
        job = shell.result(page, st.container(), "compare", "--vary", "cache.policy=lru,lfu", "--json", label="Compare")
        if job is not None:
            st.dataframe(job.document()["variants"])
"""
from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.pages import inputs, results
from kvcast.pages.inputs import Asked
from kvcast.pages.runner import Job, Runner
from kvcast.runs import Run, load_run
from workloads.errors import InputError

POLL_S = 0.5


@dataclass(frozen=True)
class Page:
    """What a page is given."""

    runner: Runner
    asked: Asked  #: what the sidebar and the Workload page say now
    shown_toml: str  #: the scenario of the run on show
    run: Run | None  #: that run; None before the first one is there
    baseline: Run | None  #: the run the reader pinned, to compare with


@st.cache_resource
def runner_of(root: str) -> Runner:
    return Runner(Path(root))


@st.cache_resource(max_entries=8, show_spinner=False)
def run_of(folder: str, written_ns: int) -> Run:
    return load_run(folder)


def loaded(job: Job | None) -> Run | None:
    """The run folder of a finished job."""
    return None if job is None or not job.done else run_of(str(job.folder), (job.folder / "run.json").stat().st_mtime_ns)


def begin() -> Page:
    """Draw the sidebar and find out what is on show. Once in every pass, before the page."""
    runner = runner_of(os.environ.get("KVCAST_RUNS", "runs/dashboard"))
    state = st.session_state
    if "base" not in state:
        inputs.adopt(inputs.demo())
    with st.sidebar:
        pressed = st.button("Run", type="primary", width="stretch", help="simulate these settings")
        asked = inputs.ask(runner)
    if "pending" not in state:
        state.update(job=None, pending=None, problem="", pinned=None)
        start(runner, asked.toml or Asked(inputs.demo()).toml)
    if pressed and asked.scenario is not None:
        start(runner, asked.toml)
    _settle()
    job: Job | None = state["job"]
    return Page(runner, asked, job.scenario_toml if job else "", loaded(job), loaded(state["pinned"]))


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


def status(page: Page) -> None:
    """What stands above every page: the run in progress, or why there is none, or that the settings are other ones now."""
    state = st.session_state
    pending: Job | None = state["pending"]
    if pending is not None:
        follow(page.runner, pending)
    elif page.asked.problem:
        st.error(results.plain(page.asked.problem), icon=":material/error:")
    elif state["problem"]:
        st.error(results.plain(state["problem"]), icon=":material/error:")
    elif page.shown_toml and page.asked.toml != page.shown_toml:
        st.info("The settings have changed since this run. Press **Run** to simulate them.", icon=":material/edit:")


def result(page: Page, place: Any, *command: str, label: str) -> Job | None:
    """The finished job of a command on the scenario on show; until then None, after drawing in `place` the button that
    starts it (label), its progress with Cancel, or the one line about why it failed."""
    if not page.shown_toml:
        return None
    job = page.runner.existing(page.shown_toml, *command)
    if job is not None and job.done:
        return job
    with place:
        if job is not None and job.running:
            follow(page.runner, job)
            return None
        if job is not None:
            st.error(results.plain(job.failure()), icon=":material/error:")
        if st.button(label, key=f"start {label} {' '.join(command)}"):
            try:
                page.runner.submit(page.shown_toml, *command)
                st.rerun()
            except InputError as error:
                st.error(results.plain(str(error)), icon=":material/error:")
    return None


def until_done(job: Job | None, draw: Callable[[], None]) -> None:
    """Draw, again and again while the job runs, and the whole page once more when it has ended."""
    running = job is not None and job.running

    @st.fragment(run_every=POLL_S if running else None)
    def part() -> None:
        if running and job is not None and not job.running:
            st.rerun()
        draw()

    part()


def follow(runner: Runner, job: Job) -> None:
    """Progress, time left and Cancel of a running job; the page is drawn anew when it ends, and does not wait for it."""
    until_done(job, functools.partial(_progress, runner, job))


def _progress(runner: Runner, job: Job) -> None:
    progress = job.progress
    done, says = (progress.done, progress.says) if progress else (0.0, "starting")
    left = f", about {text.seconds(progress.left_s)} left" if progress and progress.left_s is not None else ""
    bar, stop = st.columns([6, 1], vertical_alignment="center")
    bar.progress(done, results.plain(f"{says} ({100 * done:.0f} %{left})"))
    if stop.button("Cancel", key=f"cancel {job.key}", width="stretch"):
        runner.cancel(job)
        job.wait()
        st.rerun()
