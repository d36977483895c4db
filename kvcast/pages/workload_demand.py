"""The Workload page's load over the day: a named day or hours of one's own, drawn, with the part that is judged.

The one idea: a demand multiplies what every class asks for; the session's mix holds it, and an edit of the table or of
a field makes another mix.

    demand_of(config, resolved)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import streamlit as st

from kvcast.figures.workload import demand as drawn_demand
from kvcast.pages.edit import inputs
from kvcast.pages.edit.chart import draw
from kvcast.pages.edit.mix_edit import edit
from kvcast.pages.edit.plain import plain
from sim.scenario import Scenario
from workloads import demand
from workloads.check import class_rates
from workloads.config import Demand, WorkloadConfig
from workloads.errors import InputError

CONSTANT, OWN = "constant", "by the hour"
KINDS = (CONSTANT, *demand.SHAPES, OWN)
TABLE_ROWS = 96
"""Slots that a table shows; a curve of more comes from a file."""
HOUR_S = 3600.0


def demand_of(config: WorkloadConfig, resolved: Scenario | None) -> None:
    """The load over time, and its fields where it has one."""
    st.markdown("**Load over the day** :gray[times each class's own rate; the same sessions at other times]")
    version = st.session_state["workload.version"]
    kind, hour = st.columns(2)
    key = f"workload.demand.{version}.kind"
    kind.selectbox(
        "Load over time",
        KINDS,
        KINDS.index(_kind(config.demand)),
        key=key,
        help=inputs.hint(WorkloadConfig, "demand"),
        on_change=lambda: edit(_as_kind, st.session_state[key], key=key),
    )
    if config.demand is None:
        return
    begin = f"workload.demand.{version}.start"
    hour.number_input(
        "Begins at hour",
        0.0,
        None,
        config.start_s / HOUR_S,
        key=begin,
        step=1.0,
        format="%g",
        help="the curve's time when what is judged begins; how long it is judged is Length, above",
        on_change=lambda: edit(_begun, st.session_state[begin], key=begin),
    )
    try:
        curve, period_s = demand.curve_of(config.demand)
    except InputError as error:
        st.caption(f":red[{plain(str(error))}]")
        return
    own = config.demand.factors and len(curve) <= TABLE_ROWS
    left, right = st.columns([2, 5]) if own else (None, st.container())
    if left is not None:
        with left:
            _table(curve, period_s, version)
    with right:
        window = _window(resolved)
        draw(st, drawn_demand(curve, period_s, window), key="workload.demand.plot")
        st.caption(plain(in_words(curve, period_s, sum(class_rates(config)) * st.session_state["rate_scale"])))


def _kind(given: Demand | None) -> str:
    return CONSTANT if given is None else given.shape or OWN


def _window(resolved: Scenario | None) -> tuple[float, float] | None:
    """What is judged, seconds of the curve's clock."""
    if resolved is None:
        return None
    ends = [end for end in (resolved.run.duration_s, resolved.workload.duration_s) if end is not None]
    begins_s = resolved.workload.start_s
    return (begins_s + (resolved.run.warmup_s or 0.0), begins_s + min(ends)) if ends else None


def in_words(curve: Sequence[float], period_s: float, rate: float) -> str:
    """The peak, the least and the mean of the curve. rate: sessions/s where it is 1."""
    slot_s = period_s / len(curve)

    def when(i: int) -> str:
        return f"{_clock(i * slot_s)} to {_clock((i + 1) * slot_s)}"

    highest, lowest = int(np.argmax(curve)), int(np.argmin(curve))
    peak, least = curve[highest], curve[lowest]
    return (
        f"Peak: {peak:.3g} times the mix's own rate, {rate * peak:.3g} sessions/s, from {when(highest)}. Least:"
        f" {least:.3g} times, from {when(lowest)}. Mean: {float(np.mean(curve)):.3g} times."
    )


def _clock(at_s: float) -> str:
    minutes = round(at_s / 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


# -- the table ---------------------------------------------------------------------------------------------------------


def _table(curve: Sequence[float], period_s: float, version: int) -> None:
    import pandas as pd

    key = f"workload.demand.{version}.table"
    slot_s = period_s / len(curve)
    rows = pd.DataFrame({"from": [_clock(i * slot_s) for i in range(len(curve))], "times": list(curve)})
    st.data_editor(
        rows,
        key=key,
        hide_index=True,
        height=300,
        width="stretch",
        disabled=["from"],
        column_config={"times": st.column_config.NumberColumn("× rate", min_value=0.0, format="%g", required=True)},
        on_change=lambda: edit(edited, st.session_state[key], key=key),
    )


def edited(config: WorkloadConfig, change: Mapping[str, Any]) -> WorkloadConfig:
    """The mix after an edit of the table, as the editor's state has it."""
    assert config.demand is not None
    factors = list(config.demand.factors)
    for row, cells in change.get("edited_rows", {}).items():
        factors[int(row)] = float(cells["times"])
    return replace(config, demand=replace(config.demand, factors=tuple(factors)))


def _as_kind(config: WorkloadConfig, kind: str) -> WorkloadConfig:
    """Hours of one's own begin as what was there; a constant load begins at no hour."""
    if kind == CONSTANT:
        return replace(config, demand=None, start_s=0.0)
    if kind != OWN:
        return replace(config, demand=Demand(shape=kind))
    curve = (1.0,) * 24 if config.demand is None else demand.curve_of(config.demand)[0]
    return replace(config, demand=Demand(factors=tuple(curve)))


def _begun(config: WorkloadConfig, hour: float | None) -> WorkloadConfig:
    return replace(config, start_s=(hour or 0.0) * HOUR_S)
