"""The Workload page: edit the mix and see at once what it does; or read what an uploaded trace holds.

The one idea: the session holds one mix, and every widget's callback replaces it by the mix after one edit (`mix`,
`layers`), so whatever is drawn below is the edited mix, and a bad edit is one line that leaves the mix as it was.

    show(page)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import api
from kvcast.pages import estimated, mix
from kvcast.pages.edit import inputs, preview, settings
from kvcast.pages.edit.mix_edit import edit
from kvcast.pages.edit.widgets import optional
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from kvcast.pages.workload_arrivals import arrivals_of
from kvcast.pages.workload_classes import WORDS, one_class
from kvcast.pages.workload_demand import demand_of
from sim.scenario import Scenario
from workloads.config import WorkloadConfig
from workloads.errors import InputError


def show(page: Page) -> None:
    if st.session_state["workload"] == settings.TRACE:
        estimated.trace(page)
        return
    estimated.show(page)
    config: WorkloadConfig = st.session_state["workload.mix"]
    resolved = _resolved(page)
    _classes(config)
    _length(config, resolved)
    for words in preview.too_long(config, page.asked.scenario):
        st.warning(plain(words), icon=":material/warning:")
    one_class(config)
    demand_of(config, resolved)
    arrivals_of(config, resolved)


def _resolved(page: Page) -> Scenario | None:
    """What the run will be, its window in numbers; None while the settings are no scenario."""
    try:
        return None if page.asked.scenario is None else api.resolve(page.asked.scenario).scenario
    except InputError:
        return None  # said where the run is asked for


def _classes(config: WorkloadConfig) -> None:
    state = st.session_state
    key = f"workload.table.{state['workload.version']}"
    head, add = st.columns([3, 1], vertical_alignment="bottom")
    head.markdown(
        "**Classes** :gray[a class is a kind of session; double-click a cell to change it, add or delete rows]"
    )
    with add.popover("Add a preset", width="stretch"):
        _add_preset()
    kinds: dict[str, Any] = {
        "rate": st.column_config.NumberColumn(format="%.4g", min_value=0.0),
        "tool_share": st.column_config.NumberColumn(min_value=0.0, max_value=1.0),
        "tenants": st.column_config.NumberColumn(min_value=1, step=1),
        "isolation": st.column_config.CheckboxColumn(),
    }
    columns: dict[str, Any] = {}
    for name, (label, help_text) in mix.CLASS_COLUMNS.items():
        columns[name] = dict(kinds.get(name) or st.column_config.TextColumn()) | {"label": label, "help": help_text}
    st.data_editor(
        _frame(mix.class_rows(config)),
        key=key,
        num_rows="dynamic",
        hide_index=True,
        column_config=columns,
        width="stretch",
        on_change=_table_edited,
        args=(key,),
    )


def _length(config: WorkloadConfig, resolved: Scenario | None) -> None:
    """How long the mix is watched, in requests or seconds; empty: as long as it takes to judge it. Under it, what that
    is."""
    left, right = st.columns(2)
    for place, name, label, least in (
        (left, "requests", "Length (requests, about)", 1),
        (right, "duration_s", "Length (s)", 1.0),
    ):
        key = f"workload.{name}.{st.session_state['workload.version']}"
        optional(
            place,
            label,
            least,
            None,
            getattr(config, name),
            key,
            help=f"{WORDS['length']} {_capital(inputs.hint(WorkloadConfig, name))}.",
            placeholder="long enough to judge",
            on_change=lambda name=name, key=key: edit(_bounded, name, st.session_state[key], key=key),
        )
    if resolved is not None:
        st.caption(plain(_capital(preview.judged(resolved))), help=WORDS["judged"])


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _table_edited(key: str) -> None:
    """The class table's callback: its edits, as the editor's state has them."""
    edit(mix.edited, st.session_state[key], redraw="layers", key=key)


def _bounded(config: WorkloadConfig, name: str, value: Any) -> WorkloadConfig:
    return replace(config, **{name: value})


def _add_preset() -> None:
    from workloads.toml import list_presets, load_preset

    st.selectbox(
        "Preset", list_presets(), key="workload.add", help="its classes, beside those that are there, at its own rate"
    )
    st.button(
        "Add its classes",
        on_click=lambda: edit(mix.with_preset, load_preset(st.session_state["workload.add"]), redraw="layers"),
        width="stretch",
    )


def _frame(rows: list[mix.Row]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)
