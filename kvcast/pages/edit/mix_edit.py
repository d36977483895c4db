"""One edit of the session's mix, made by a widget's callback.

The one idea: the mix is replaced by the mix after the edit, or, where that is none, one line says so.

    >>> edit(mix.with_class_value, "chat", key=key, rate=2.0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from kvcast.pages.edit import inputs
from workloads.config import WorkloadConfig
from workloads.errors import InputError


def edit(
    change: Callable[..., WorkloadConfig], *args: Any, redraw: str = "table", key: str = "", **values: Any
) -> None:
    """Replace the mix by `change(mix, ...)`; a widget's callback. redraw: table, or layers too, whose widgets then
    start afresh.

    key: the widget's. One that was drawn for an earlier mix, and whose browser is late to tell its value, changes
    nothing."""
    state = st.session_state
    counter = "workload.layers" if key.startswith("workload.layer.") else "workload.version"
    if key and key.split(".")[2] != str(state[counter]):
        return
    try:
        after = change(state["workload.mix"], *args, **values)
        inputs.check_mix(after)
    except InputError as error:
        state["workload.problem"] = str(error).removeprefix("settings: ")
        return
    state["workload.mix"], state["workload.problem"] = after, ""
    state["workload.version"] += 1
    state["workload.layers"] += redraw == "layers"
