"""The dashboard: choose a workload, a model and a fleet; run; read the verdict first.

The one idea: this file only lays out. Inputs become a scenario, `kvcast run` simulates it in a subprocess, and what is
shown is read from its run folder.

    kvcast dashboard        (or: streamlit run app.py)
"""
from __future__ import annotations

import os
from pathlib import Path

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
    st.set_page_config("kvcast", page_icon="📦", layout="wide")
    runner = runner_of(os.environ.get("KVCAST_RUNS", "runs/dashboard"))
    with st.sidebar:
        st.title("kvcast")
        pressed = st.button("Run", type="primary", width="stretch", help="simulate these settings")
    answer, mix, assumed = st.tabs(["Answer", "Workload mix", "Assumptions"])
    asked = inputs.ask(runner, mix)
    if "shown" not in st.session_state:
        st.session_state.shown = inputs.Asked(inputs.demo()).toml
    if pressed and asked.scenario is not None:
        st.session_state.shown = asked.toml
    with answer:
        if asked.problem:
            st.error(results.plain(asked.problem), icon="✋")
        elif asked.toml != st.session_state.shown:
            st.info("The settings have changed since this run. Press **Run** to simulate them.", icon="✏️")
        run = finished(runner, st.session_state.shown, retry=pressed)
        if run is not None:
            results.show(run)
            results.reproduce(run, st.session_state.shown)
    with assumed:
        if run is not None:
            results.assumptions(run)


def finished(runner: Runner, scenario_toml: str, retry: bool) -> Run | None:
    """The scenario's run, once it is there; None after saying why it is not."""
    try:
        job = runner.submit(scenario_toml, retry)
    except InputError as error:
        st.warning(results.plain(str(error)))
        return None
    if job.running:
        wait(runner, job)
    if not job.done:
        st.error(results.plain(job.failure()), icon="✋")
        return None
    st.session_state.last = scenario_toml
    return run_of(str(job.folder))


def wait(runner: Runner, job: Job) -> None:
    """Until the subprocess ends. Touching a widget redraws the page, which waits again; the run itself goes on."""
    place = st.empty()
    with place.container(horizontal=True), st.spinner("simulating", show_time=True):
        st.button("Cancel", on_click=_cancelled, args=(runner, job))
        job.wait()
    place.empty()


def _cancelled(runner: Runner, job: Job) -> None:
    runner.cancel(job)
    st.session_state.shown = st.session_state.get("last", st.session_state.shown)


main()
