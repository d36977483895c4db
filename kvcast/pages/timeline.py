"""The Timeline page: a window of the run, the requests in it, and what each of them waited for.

The one idea: jump to where it hurt (the slowest first token, the first preemption, the longest queue); what the run
folder knows is drawn at once, in whole phases, and a button simulates the window again with every prefill chunk and
interruption.

    show(page)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st

from kvcast import figures, text
from kvcast.pages import shell
from kvcast.pages.results import plain, plot
from kvcast.pages.shell import Page, of_a_run
from kvcast.present.terms import TERMS
from kvcast.store.runs import Run
from kvcast.studies import request_lives
from kvcast.studies.request_lives import Jump, Life

Document = Mapping[str, Any]
LABEL = "Simulate this window chunk by chunk"
LEAST_S = 0.1


@of_a_run
def show(page: Page, run: Run) -> None:
    requests = run.tables["requests"]
    if not len(requests["request"]):
        st.info("No request arrived in this run.", icon=":material/info:")
        return
    end_s = length_of(run)
    places = places_of(str(run.folder), run.info["written_at"], run)
    _jump(places)
    start_s, stop_s = _window(run, end_s, places)
    st.markdown(f"**{plain(sentence(requests, start_s, stop_s))}**")
    _counts(run, start_s, stop_s)
    _lives(page, run, start_s, stop_s)


def sentence(requests: Mapping[str, Any], start_s: float, stop_s: float) -> str:
    """What stands out in the window: how many requests, the worst wait, how many were thrown out."""
    here = request_lives.present(requests, start_s, stop_s)
    if not len(here):
        return f"Between {start_s:,.4g} and {stop_s:,.4g} s no request was in the system."
    told = f"Between {start_s:,.6g} and {stop_s:,.6g} s {len(here):,} requests were in the system"
    ttft_s = requests["ttft_s"][here]
    if (ttft_s >= 0).any():
        worst = here[int(np.nanargmax(ttft_s))]
        told += (
            f"; the slowest first token took {text.seconds(float(np.nanmax(ttft_s)))} (request {worst},"
            f" {text.seconds(float(requests['queue_s'][worst]))} of it queued)"
        )
    preempted = int((requests["preemptions"][here] > 0).sum())
    return told + (f"; {preempted:,} of them were preempted." if preempted else ".")


def length_of(run: Run) -> float:
    """When the run ended, seconds; at least a second, so that there is a window to choose."""
    timeline = run.tables["timeline"]["t_s"]
    return max(float(timeline[-1]) if len(timeline) else 0.0, 1.0)


@st.cache_data(max_entries=16, show_spinner=False)
def places_of(folder: str, written_at: str, _run: Run) -> list[Jump]:
    places = request_lives.jumps(_run.tables["requests"], length_of(_run))
    return places + [_shock(one, length_of(_run)) for one in request_lives.shocks_of(_run.summary)]


def _shock(one: Document, end_s: float) -> Jump:
    """A window from a quarter of a shock before it to as much after it."""
    room = max((one["end_s"] - one["start_s"]) / 4, 15.0)
    told = f"{one['kind']} from {one['start_s']:,.0f} to {one['end_s']:,.0f} s"
    return Jump(f"Shock: {one['kind']}", told, max(one["start_s"] - room, 0.0), min(one["end_s"] + room, end_s))


# -- the window --------------------------------------------------------------------------------------------------------


def _jump(places: Sequence[Jump]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("**Jump to**", width="content", help=plain(TERMS["jump"]))
        for place in places:
            st.button(
                place.label,
                key=f"timeline.to {place.label}",
                on_click=_go,
                args=(place.start_s, place.end_s),
                help=plain(place.words),
            )
    if not any(place.label == "First preemption" for place in places):
        st.caption("No request was preempted in this run.")


def _go(start_s: float, end_s: float) -> None:
    st.session_state["timeline.from"], st.session_state["timeline.to"] = (
        round(start_s, 3),
        round(max(end_s, start_s + LEAST_S), 3),
    )


def _window(run: Run, end_s: float, places: Sequence[Jump]) -> tuple[float, float]:
    """From and to, two numbers; of another run they start at its slowest request."""
    state = st.session_state
    if state.get("timeline.run") != str(run.folder):
        state["timeline.run"] = str(run.folder)
        first = places[0] if places else Jump("", "", 0.0, min(30.0, end_s))
        _go(first.start_s, first.end_s)
    left, right, moves = st.columns([2, 2, 3], vertical_alignment="bottom")
    moves = moves.container(horizontal=True, gap="small")  # in one row on a phone too
    start_s = left.number_input(
        "From (s)",
        0.0,
        end_s,
        step=1.0,
        key="timeline.from",
        format="%.3f",
        persist_state="session",
        help=f"the run is {end_s:,.1f} s long",
    )
    stop_s = right.number_input(
        "To (s)", 0.0, end_s + 1.0, step=1.0, key="timeline.to", format="%.3f", persist_state="session"
    )
    stop_s = max(stop_s, start_s + LEAST_S)
    wide = stop_s - start_s
    for icon, words, a, b in (
        ("chevron_left", "one window earlier", start_s - wide, start_s),
        ("chevron_right", "one window later", stop_s, stop_s + wide),
        ("zoom_in", "half as wide", start_s + wide / 4, stop_s - wide / 4),
        ("zoom_out", "twice as wide", start_s - wide / 2, stop_s + wide / 2),
    ):
        moves.button(
            "",
            key=f"timeline.{icon}",
            icon=f":material/{icon}:",
            on_click=_go,
            args=_inside(a, b, end_s),
            width="stretch",
            help=words,
        )
    return start_s, stop_s


def _inside(start_s: float, stop_s: float, end_s: float) -> tuple[float, float]:
    """The window moved into the run."""
    wide = min(max(stop_s - start_s, LEAST_S), end_s)
    start_s = min(max(start_s, 0.0), end_s - wide)
    return start_s, start_s + wide


# -- what happened -----------------------------------------------------------------------------------------------------


def _counts(run: Run, start_s: float, stop_s: float) -> None:
    s = run.summary
    found = request_lives.counts(run.tables["requests"], s["replicas"], start_s, stop_s)
    left, right = st.columns(2)
    clipped = [start_s, stop_s]
    drawn = figures.marked(figures.in_system(found), s).update_xaxes(range=clipped)
    shocks = ", ".join(one["kind"] for one in request_lives.shocks_in(request_lives.shocks_of(s), start_s, stop_s))
    plot(left, drawn, TERMS["queue"], f"Red: {shocks}." if shocks else "")
    around = figures.window_of(run.tables["timeline"], start_s, stop_s)
    memory = figures.marked(figures.kv_occupancy(s, around), s)
    memory.update_xaxes(range=clipped, title="time of the run (s)")
    plot(
        right,
        memory,
        TERMS["kv"],
        "The run folder keeps 400 points of the whole run." if len(around["t_s"]) < 20 else "",
    )
    if s["replicas"] > 1:
        plot(st.container(), figures.by_replica(found), TERMS["by_replica"])


def _lives(page: Page, run: Run, start_s: float, stop_s: float) -> None:
    requests = run.tables["requests"]
    here = len(request_lives.present(requests, start_s, stop_s))
    command = ("timeline", "--window", f"{start_s:.3f},{stop_s:.3f}")
    place = st.container()
    job = shell.result(page, st.container(), *command, label=LABEL)
    if job is not None:
        shown, how = request_lives.from_document(job.document()), "Simulated again, chunk by chunk."
    else:
        shown = request_lives.coarse(
            requests, list(run.summary["classes"]), request_lives.chosen(requests, start_s, stop_s)
        )
        how = "From the run folder: prefill is first schedule to first token; time spent preempted is drawn at the end."
    if not shown:
        place.info("No request was in the system in this window.", icon=":material/info:")
        return
    told = f"{here:,} requests were in the system" + (
        f"; shown are {len(shown)}: those preempted, then those that waited longest for their first token."
        if len(shown) < here
        else "."
    )
    plot(place, figures.lives(shown, start_s, stop_s), TERMS["lives"], f"{told} {how}")
    st.dataframe(rows_of(shown), hide_index=True, width="stretch")
    name = f"trace-{start_s:.0f}-{stop_s:.0f}s.json"
    st.download_button(
        "Chrome trace",
        json.dumps(request_lives.chrome_trace(shown, request_lives.shocks_of(run.summary))),
        name,
        "application/json",
        help="open it in chrome://tracing or Perfetto: a process a replica, a row a request",
    )


def rows_of(shown: Sequence[Life]) -> list[dict[str, Any]]:
    """A row a request: where its time went."""

    def spent(life: Life, what: str) -> str:
        seconds = sum(stop - start for name, start, stop, _ in life.phases if name == what)
        return text.seconds(seconds) if seconds else ""

    phases = [what for what in figures.PHASES if any(p[0] == what for life in shown for p in life.phases)]
    return [
        {
            "request": life.request,
            "class": life.class_name,
            "replica": life.replica,
            "prompt": f"{life.prompt_tokens:,}",
            "from cache": f"{life.hit_tokens:,}",
            "output": f"{life.output_tokens:,}",
            "arrival": f"{life.phases[0][1]:,.3f} s" if life.phases else "",
            **{what: spent(life, what) for what in phases},
            "preemptions": life.preemptions,
        }
        for life in shown
    ]
