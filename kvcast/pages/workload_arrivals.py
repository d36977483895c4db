"""The Workload page's arrivals: when sessions begin, over a day or by a rate.

>>> arrivals_of(config, resolved)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast.figures.workload import arrivals
from kvcast.pages import mix
from kvcast.pages.edit import inputs, layers, preview
from kvcast.pages.edit.chart import draw
from kvcast.pages.edit.mix_edit import edit
from kvcast.pages.edit.plain import plain
from sim.scenario import Scenario
from workloads.config import Arrival, MixClass, WorkloadConfig
from workloads.demand import WORKING_DAY
from workloads.errors import InputError

ARRIVALS = {
    "poisson": "independent",
    "gamma": "bursty or even",
    "onoff": "bursts, silences",
    "diurnal": "a day's curve",
    "trace": "recorded times",
}


def arrivals_of(config: WorkloadConfig, resolved: Scenario | None) -> None:
    c = layers.of(config, st.session_state["workload.class"])
    st.markdown("**Arrivals** :gray[of sessions; what is drawn is what the run will see]")
    left, right = st.columns([2, 3])
    with left:
        _arrival(c)
    with right:
        _drawn(resolved)


def _drawn(resolved: Scenario | None) -> None:
    """The run's arrivals, with the part that is not judged."""
    if resolved is None:
        return
    if resolved.workload.concurrency is not None:
        st.caption(
            "At a fixed concurrency a session begins when another one ends: there are no arrival times before the run."
        )
        return
    what = (
        st.segmented_control(
            "Count",
            ["requests", "sessions"],
            default="requests",
            key="workload.count",
            required=True,
            label_visibility="collapsed",
        )
        or "requests"
    )
    drawn = preview.arrivals(resolved.workload, what == "sessions", resolved.seed)
    draw(st, arrivals(drawn, what, resolved.run.warmup_s or 0.0, resolved.run.duration_s), key="workload.arrivals")
    if what != "sessions":
        st.caption("Later turns at their session's start plus think times, as if answers took no time.")


def _arrival(c: MixClass) -> None:
    key = f"workload.arrival.{st.session_state['workload.version']}.{c.name}"
    kinds = [kind for kind in ARRIVALS if kind != "trace" or c.arrival.kind == "trace"]

    def set_(**values: Any) -> None:
        edit(_with_arrival, c.name, values, key=key)

    st.selectbox(
        plain(f"{c.name} arrives as"),
        kinds,
        kinds.index(c.arrival.kind),
        key=f"{key}.kind",
        format_func=lambda kind: f"{kind}: {ARRIVALS[kind]}",
        on_change=lambda: edit(_as_kind, c.name, st.session_state[f"{key}.kind"], key=key),
    )
    fields = {
        "gamma": (("cv", "CV of the gaps"),),
        "onoff": (("on_s", "burst, mean (s)"), ("off_s", "silence, mean (s)")),
        "diurnal": (("period_s", "period (s)"),),
    }
    for name, label in fields.get(c.arrival.kind, ()):
        st.number_input(
            label,
            0.001,
            1e9,
            float(getattr(c.arrival, name)),
            key=f"{key}.{name}",
            help=inputs.hint(Arrival, name),
            on_change=lambda name=name: set_(**{name: st.session_state[f"{key}.{name}"]}),
        )
    if c.arrival.kind == "diurnal":
        st.text_input(
            "relative rate over one period",
            " ".join(f"{v:g}" for v in c.arrival.curve),
            key=f"{key}.curve",
            help=inputs.hint(Arrival, "curve"),
            on_change=lambda: edit(_with_curve, c.name, st.session_state[f"{key}.curve"], key=key),
        )


def _with_arrival(config: WorkloadConfig, name: str, values: dict[str, Any]) -> WorkloadConfig:
    return mix.with_class(config, name, arrival=replace(layers.of(config, name).arrival, **values))


def _as_kind(config: WorkloadConfig, name: str, kind: str) -> WorkloadConfig:
    starts: dict[str, dict[str, Any]] = {
        "gamma": {"cv": 2.0},
        "onoff": {"on_s": 20.0, "off_s": 40.0},
        "diurnal": {"curve": WORKING_DAY},
    }
    return mix.with_class(config, name, arrival=Arrival(kind=kind, **starts.get(kind, {})))


def _with_curve(config: WorkloadConfig, name: str, cell: str) -> WorkloadConfig:
    try:
        curve = tuple(float(word) for word in cell.replace(",", " ").split())
    except ValueError:
        raise InputError(f"{name}: curve = {cell[:60]!r}, expected numbers separated by spaces") from None
    return _with_arrival(config, name, {"curve": curve})
