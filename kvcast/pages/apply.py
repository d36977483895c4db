"""Changes that a page found, made in the sidebar and run.

>>> apply_change(page, change)
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from kvcast.pages import shell
from kvcast.pages.edit import inputs, settings
from kvcast.pages.plan_question import KEYS, Axes, Document, with_settings
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from sim.scenario import Scenario
from workloads.errors import InputError
from workloads.mix import resolve


def apply_change(page: Page, change: Document) -> None:
    """Make the sidebar say the scenario on show with a change of the plan's advice, and run it."""
    try:
        adopt(page, _with_classes_of(with_settings(page.shown_toml, change["set"]), with_settings(change["scenario"])))
    except InputError as error:
        st.toast(plain(str(error)))


def _with_classes_of(scenario: Scenario, changed: Scenario) -> Scenario:
    """A preset's classes have no key to set: where the change has others, its mix."""
    if scenario.workload.trace is not None:
        return scenario
    mine, theirs = resolve(scenario.workload), resolve(changed.workload)
    return (
        scenario
        if mine.class_ == theirs.class_
        else replace(scenario, workload=replace(mine, preset=None, class_=theirs.class_))
    )


def use(page: Page, scenario: Scenario, axes: Axes) -> None:
    """Adopt the plan's answer; the choices stay what they were, so the plan stays in sight."""
    for name, key in KEYS.items():
        st.session_state[f"plan.{name}"] = [*axes.get(key, ())]
    adopt(page, scenario)


def adopt(page: Page, scenario: Scenario) -> None:
    settings.adopt(scenario, scenario.workload.trace or "")
    shell.start(page.runner, inputs.Asked(scenario).toml)
