"""The dashboard: choose a workload, a model and a fleet; run; read the verdict first.

The one idea: this file only lays out. Inputs become a scenario, `kvcast run` simulates it in a subprocess, and what is
shown is read from its run folder.

    kvcast dashboard        (or: streamlit run app.py)
"""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import streamlit as st

from kvcast.pages import inputs, results
from kvcast.pages.runner import Job, Runner
from kvcast.runs import Run, load_run
from workloads.errors import InputError


@st.cache_resource
def runner_of(root: str) -> Runner:
    return Runner(Path(root))


@st.cache_resource(max_entries=8, show_spinner=False)
def run_of(folder: str) -> Run:
    return load_run(folder)


def main() -> None:
    st.set_page_config("kvcast", layout="wide")
    runner = runner_of(os.environ.get("KVCAST_RUNS", "runs/dashboard"))
    with st.sidebar:
        st.title("kvcast")
        pressed = st.button("Run", type="primary", width="stretch", help="simulate these settings")
    answer, mix, assumed = st.tabs(["Answer", "Workload mix", "Assumptions"])
    asked = st.session_state.asked = inputs.ask(runner, mix)
    if "shown" not in st.session_state:
        show(runner, inputs.Asked(inputs.demo()).toml)
    if pressed and asked.scenario is not None:
        show(runner, asked.toml)
    with answer:
        note, waiting = st.empty(), st.empty()  # always there, so that nothing below moves
        if asked.problem:
            note.error(results.plain(asked.problem), icon=":material/error:")
        elif asked.toml != st.session_state.shown:
            note.info("The settings have changed since this run. Press **Run** to simulate them.", icon=":material/edit:")
        run = finished(runner, waiting)
        if run is not None:
            results.show(run)
            results.reproduce(run, st.session_state.shown)
    with assumed:
        if run is not None:
            results.assumptions(run)


def show(runner: Runner, scenario_toml: str) -> None:
    """Make the scenario the one this session looks at; the one before stays for when the run is cancelled."""
    st.session_state.before = st.session_state.get("shown", scenario_toml), st.session_state.get("job")
    try:
        st.session_state.shown, st.session_state.job = scenario_toml, runner.submit(scenario_toml)
    except InputError as error:
        st.session_state.shown, st.session_state.job = st.session_state.before
        st.toast(results.plain(str(error)))


def finished(runner: Runner, place: Any) -> Run | None:
    """The session's run, once it is there; None after saying why it is not."""
    job: Job | None = st.session_state.job
    if job is None:
        place.warning("The server is busy with other runs. Press **Run** in a moment.")
        return None
    if job.running:
        with place.container(horizontal=True), st.spinner("simulating", show_time=True):
            st.button("Cancel", on_click=cancelled, args=(runner, job))
            job.wait()  # in this session's thread; touching a widget draws the page anew, which waits again
        place.empty()
    if not job.done:
        place.error(results.plain(job.failure()), icon=":material/error:")
        return None
    return run_of(str(job.folder))


def cancelled(runner: Runner, job: Job) -> None:
    runner.cancel(job)
    st.session_state.shown, st.session_state.job = st.session_state.before


main()
