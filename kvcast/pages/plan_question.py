"""What the Plan page asks: what may vary, over how many seeds, and the command that answers it.

>>> command(axes_of(scenario, gpus, widths, policies, routers))
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvcast.config import override, scenario_from_doc
from kvcast.pages.edit import inputs, settings
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from kvcast.planner import Options
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from sim.scenario import Scenario
from workloads.errors import InputError

Document = Mapping[str, Any]

Axes = Mapping[str, Sequence[Any]]
FIND, REACH = "Find the fewest GPUs", "How far does this fleet reach?"
SEEDS = (1, 3, 5, 10)
DEFAULT_SEEDS = Options().seeds
AFFINITY = "session-affinity"
WIDER = (1, 2, 4, 8)
"""GPUs a replica to try when no fleet of the given ones will do."""


def wider(run: Run) -> str | None:
    """The label of the roofline of the run's GPU, whose width is free; None where there is none for its model and
    dtype."""
    from calibrate.sources.roofline import GPUS

    device, model = run.summary["profile_provenance"]["device"]["name"], run.scenario.model
    profiles = [f"roofline:{name}" for name, spec in GPUS.items() if spec.name == device]
    return next(
        (
            label
            for label, (profile, dtype, _) in settings.hardware(model.name).items()
            if profile in profiles and dtype == model.dtype
        ),
        None,
    )


def has_turns(run: Run) -> bool:
    """Whether a session of the run has more than one request."""
    return bool((run.tables["sessions"]["requests"] > 1).any())


def plan_also(page: Page, seeds: int = DEFAULT_SEEDS, **more: Sequence[Any]) -> None:
    """Let the plan choose among more (gpus: labels, widths, routers) as well, and ask for it."""
    state, scenario = st.session_state, with_settings(page.shown_toml)
    for name, values in more.items():
        state[f"plan.{name}"] = [*dict.fromkeys([*(state.get(f"plan.{name}") or ()), *values])]
    gpus, chosen = (
        settings.hardware(scenario.model.name),
        {name: state.get(f"plan.{name}") or () for name in ("gpus", "widths", "policies", "routers")},
    )
    axes = axes_of(
        scenario,
        [gpus[label] for label in chosen["gpus"] if label in gpus],
        chosen["widths"],
        chosen["policies"],
        chosen["routers"],
    )
    try:
        page.runner.submit(start_of(page.shown_toml, axes), *command(axes, seeds))
    except InputError as error:
        st.toast(plain(str(error)))


def ask_axes(scenario: Scenario) -> Axes:
    """Draw the choices. What the scenario has is always among them, so an empty choice leaves it as it is."""
    from sim.fleet.router import ROUTERS

    gpus = {
        label: found
        for label, found in settings.hardware(scenario.model.name).items()
        if found[1] == scenario.model.dtype
    }
    kept: Any = {"persist_state": "session", "placeholder": "as it is"}
    chosen = st.multiselect(
        "GPUs",
        list(gpus),
        key="plan.gpus",
        help="profiles of this model, measured or roofline, beside the sidebar's",
        **kept,
    )
    widths = st.pills(
        "GPUs each",
        inputs.WIDTHS,
        selection_mode="multi",
        key="plan.widths",
        persist_state="session",
        help="of roofline GPUs; a measured profile has its own",
    )
    policies = st.multiselect("Prefix cache", inputs.policies(), key="plan.policies", **kept)
    routers = st.multiselect("Router", list(ROUTERS), key="plan.routers", **kept)
    return axes_of(scenario, [gpus[label] for label in chosen if label in gpus], widths, policies, routers)


def axes_of(
    scenario: Scenario,
    gpus: Sequence[tuple[str, str, int]],
    widths: Sequence[int],
    policies: Sequence[str],
    routers: Sequence[str],
) -> Axes:
    """Key -> values, for each key with more than one: the chosen ones and the scenario's own, sorted, so that the
    plan's answer, once it is the scenario, asks for the same plan."""
    hardware = scenario.hardware
    fixed = [width for profile, _, width in gpus if not profile.startswith("roofline:")]
    free = (
        widths if any(p.startswith("roofline:") for p in (hardware.profile, *(profile for profile, *_ in gpus))) else ()
    )
    values: dict[str, set[Any]] = {
        "hardware.profile": {hardware.profile, *(profile for profile, *_ in gpus)},
        "hardware.tensor_parallel": {hardware.tensor_parallel, *fixed, *free},
        "cache.policy": {scenario.cache.policy, *policies} if scenario.cache.enabled else set(),
        "cluster.router": {scenario.cluster.router, *routers},
    }
    return {key: sorted(found) for key, found in values.items() if len(found) > 1}


def command(axes: Axes, seeds: int = DEFAULT_SEEDS, fixed: bool = False) -> tuple[str, ...]:
    varied = (word for key, values in axes.items() for word in ("--vary", f"{key}={','.join(map(str, values))}"))
    return (
        "plan",
        *varied,
        *(("--seeds", str(seeds)) if seeds != DEFAULT_SEEDS else ()),
        *(("--fixed",) if fixed else ()),
    )


def start_of(scenario_toml: str, axes: Axes) -> str:
    """The scenario that a plan begins with: whatever it may choose itself has one and the same value, so it is found
    again from its own answer."""
    return dumps(
        with_settings(scenario_toml, ["cluster.replicas=1", *(f"{key}={values[0]}" for key, values in axes.items())])
    )


def winner(page: Page, plan: Document) -> Scenario | None:
    """The scenario on show with the plan's answer; None when there is none, or when it is the one on show. The plan's
    own scenario has its window in numbers."""
    answered = plan["answer"]
    if not answered["feasible"]:
        return None
    found = with_settings(
        page.shown_toml,
        [f"cluster.replicas={answered['replicas']}", *(f"{key}={value}" for key, value in answered["values"].items())],
    )
    return None if found == with_settings(page.shown_toml) else found


def with_settings(toml: str, settings: Sequence[str] = ()) -> Scenario:
    return scenario_from_doc(override(tomllib.loads(toml), settings))


def command_line(asked: Sequence[str]) -> str:
    """The command that finds this plan from the scenario on show."""
    return shlex.join(["kvcast", "plan", "scenario.toml", *asked[1:], "--out", "my-plan"])
