"""The run on show under the limits, the target and the price that stand in the fields now: arithmetic on its columns.

The one idea: whatever only changes [slo] and [cost] needs no simulation, so the page shows at once what a run with it
would say; the fields above the verdict are the sidebar's own, near to what they change.

    run, toml = shown(asked, job.scenario_toml, run)
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast.config import scenario_from_doc
from kvcast.pages import address
from kvcast.pages.edit.plain import plain
from kvcast.pages.edit.settings import limits_of
from kvcast.pages.edit.widgets import hint, optional
from kvcast.scenario.gpu_prices import gpu_of, priced
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from kvcast.studies.judged_anew import judged_anew
from sim.scenario import CostConfig, Scenario, SloConfig
from workloads.errors import InputError
from workloads.mix import resolve

INSTANT = "Limits, target and price change this verdict at once: no simulation looks at them."
INSTANT_LIMITS = "Limits and target change this verdict at once: no simulation looks at them."
FIELD_WIDTH = 140


@st.cache_data(max_entries=64, show_spinner=False)
def scenario_of(toml: str) -> Scenario:
    return scenario_from_doc(tomllib.loads(toml), "the run on show")


@st.cache_resource(max_entries=16, show_spinner=False)
def _anew(name: str, slo: SloConfig, usd: float | None, _run: Run) -> Run:
    return judged_anew(_run, slo, usd)


def under(asked: Scenario | None, given: Scenario) -> Scenario:
    """A run's scenario with the limits, target and price that are asked for now, where they can be of it: limits of the
    same workload's classes, the price of the same GPU. Pools have a price each, which a new run asks for."""
    if asked is None or not _same(asked, given):
        return given
    return replace(given, slo=asked.slo, cost=asked.cost if _one_price(asked, given) else given.cost)


def _one_price(asked: Scenario, given: Scenario) -> bool:
    """Whether both have replicas of one GPU, and the same one."""
    return not asked.pool and not given.pool and gpu_of(asked) == gpu_of(given)


def _same(asked: Scenario, given: Scenario) -> bool:
    """Whether both have one workload: a mix by its preset's name, or written out."""
    ours, theirs = asked.workload, given.workload
    if ours == theirs or ours.trace is not None or theirs.trace is not None:
        return ours == theirs
    return replace(resolve(ours), preset=None) == replace(resolve(theirs), preset=None)


def shown(asked: Scenario | None, toml: str, run: Run | None) -> tuple[Run | None, str]:
    """The run, judged by what is asked for now, and the scenario that says so; as they are where nothing differs."""
    if run is None or not toml:
        return run, toml
    given = scenario_of(toml)
    now = under(asked, given)
    if now == given:
        return run, toml
    name = f"{run.folder} {run.info['written_at']}"
    usd = run.scenario.cost.gpu_hour_usd if given.pool else priced(now).cost.gpu_hour_usd
    try:
        return _anew(name, now.slo, usd, run), dumps(now)
    except InputError:  # limits of nobody: what the settings say of it, Run tells
        return run, toml


# -- the fields above the verdict --------------------------------------------------------------------------------------


def fields(asked: Scenario | None, toml: str) -> None:
    """Target, limits and price beside the verdict that they make: the sidebar's fields once more."""
    if asked is None or not toml or not _same(asked, scenario_of(toml)):
        return
    state = st.session_state
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="small")
    _field(row, "Target (%)", "target", 0.1, 100.0, 1.0, hint(SloConfig, "attainment"))
    names = [name for name, _ in limits_of(asked.slo)]
    own = [name for name in names if name]
    for name in [*own, ""] if own else [""]:
        for metric in ("ttft", "tpot"):
            key = f"slo.{name}.{metric}"
            if key in state and (name or not own or state[key] is not None):
                label = f"{metric.upper()} ms{', ' + (name or 'others') if own else ''}"
                _field(row, plain(label), key, 0.001, None, 10.0, hint(SloConfig, f"{metric}_s"))
    one_price = _one_price(asked, scenario_of(toml))
    if one_price:
        _field(row, plain(f"USD per {state['gpu']} hour"), "price", 0.0, None, 0.1, hint(CostConfig, "gpu_hour_usd"))
    st.caption(INSTANT if one_price else INSTANT_LIMITS)


def _field(place: Any, label: str, key: str, least: float, most: float | None, step: float, told: str) -> None:
    """A number field of the main page that is the sidebar's field `key` once more."""
    state, mine = st.session_state, f"judged.{key}"

    def changed() -> None:
        if not address.gone_back({}):  # Back twice: this field is as the page before had it, nobody has touched it
            state[key] = state[mine]

    optional(
        place,
        label,
        least,
        most,
        state[key],
        mine,
        step=step,
        format="%g",
        placeholder="none",
        help=told,
        width=FIELD_WIDTH,
        on_change=changed,
    )
