"""What the Plan page asks: what may vary, over how many seeds, and the command that answers it.

>>> command(axes_of(scenario, {"gpus": ["h200", "b200"]}))
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from calibrate.resolve import profile_of_gpu
from kvcast.config import override, scenario_from_doc
from kvcast.pages import address
from kvcast.pages.edit import choices, inputs
from kvcast.pages.edit.variants import PLANNED as KEYS
from kvcast.pages.edit.variants import written
from kvcast.pages.edit.widgets import hint, optional
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from kvcast.planner import Options
from kvcast.scenario.fitting import model_of
from kvcast.scenario.gpu_prices import gpu_of
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from sim.scenario import DTYPES, KV_DTYPES, CostConfig, HardwareConfig, ModelConfig, Scenario
from workloads.errors import InputError

Document = Mapping[str, Any]

Axes = Mapping[str, Sequence[Any]]
SEEDS = (1, 3, 5, 10)
DEFAULT_SEEDS = Options().seeds
AFFINITY = "session-affinity"
WIDER = (1, 2, 4, 8)
"""GPUs a replica to try when no fleet of the given ones will do."""


def has_turns(run: Run) -> bool:
    """Whether a session of the run has more than one request."""
    return bool((run.tables["sessions"]["requests"] > 1).any())


def plan_also(page: Page, seeds: int = DEFAULT_SEEDS, **more: Sequence[Any]) -> None:
    """Let the plan choose among more (gpus, widths, routers, ...: as `Chosen` has them) as well, and ask for it."""
    state, scenario = st.session_state, with_settings(page.shown_toml)
    for name, values in more.items():
        state[f"plan.{name}"] = [*dict.fromkeys([*(state.get(f"plan.{name}") or ()), *values])]
    axes = axes_of(scenario, {name: state.get(f"plan.{name}") or () for name in KEYS})
    try:
        page.runner.submit(start_of(page.shown_toml, axes, state["prices"]), *command(axes, seeds))
    except InputError as error:
        st.toast(plain(str(error)))


def ask_seeds() -> int:
    """Draw how many runs settle the answer."""
    chosen = st.segmented_control(
        "Seeds",
        SEEDS,
        default=DEFAULT_SEEDS,
        key="plan.seeds",
        persist_state="session",
        help="independent runs that settle the answer, and once more as many where those leave it open; 1: a sketch",
    )
    return int(chosen or DEFAULT_SEEDS)


def ask_axes(scenario: Scenario) -> Axes:
    """Draw the choices. What the scenario has is always among them, so an empty choice leaves it as it is."""
    from sim.fleet.router import ROUTERS

    known, own = choices.gpus(), gpu_of(scenario)
    kept: Any = {"persist_state": "session", "placeholder": "as it is"}
    options: dict[str, tuple[str, list[Any], str]] = {
        "gpus": ("GPUs", list(known), "beside the sidebar's; each brings the best that is known of it"),
        "widths": (
            "Tensor parallel",
            choices.values_of(choices.layout()[0]),
            "GPUs of a replica; what does not fit is listed as such",
        ),
        **{
            f.name: (choices.label_of(f.name), choices.values_of(f), str(f.metadata["help"]))
            for f in choices.layout()
            if f.name != "tensor_parallel"
        },
        "dtypes": ("Weights", [*DTYPES], hint(ModelConfig, "dtype")),
        "kv_dtypes": ("KV cache", [*KV_DTYPES], hint(ModelConfig, "kv_dtype")),
        "policies": ("Prefix cache", inputs.policies(), ""),
        "routers": ("Router", list(ROUTERS), ""),
    }
    for name, (_, values, _) in options.items():
        address.chosen(f"plan.{name}", values)
    chosen = {
        name: st.multiselect(
            label,
            values,
            key=f"plan.{name}",
            help=told or None,
            format_func=lambda value, gpus=known if name == "gpus" else {}: str(gpus.get(value, value)),
            **kept,
        )
        for name, (label, values, told) in options.items()
    }
    _ask_prices([gpu for gpu in dict.fromkeys([own, *chosen["gpus"]]) if gpu])
    return axes_of(scenario, chosen)


def _ask_prices(gpus: Sequence[str]) -> None:
    """A price for each GPU that may be chosen: the cheapest fleet is then by money. The list is the session's one; the
    sidebar shows its entry of the chosen GPU."""
    state = st.session_state
    if len(gpus) < 2:
        return
    st.markdown("**$ a GPU-hour** :gray[yours; without one for each GPU, fleets are compared by GPUs]")
    for place, gpu in zip(st.columns(len(gpus)), gpus, strict=True):
        key = f"plan.price.{gpu}"
        usd = state["prices"].get(gpu)
        optional(
            place, gpu, 0.0, None, usd, key, step=0.1, placeholder="none", on_change=choices.give_price, args=(gpu, key)
        )


def axes_of(scenario: Scenario, chosen: Mapping[str, Sequence[Any]]) -> Axes:
    """Key -> values, for each key with more than one: the chosen ones and the scenario's own, sorted, so that the
    plan's answer, once it is the scenario, asks for the same plan. Where model or layout vary, the GPU goes by its name
    and brings what is known of it, whatever profile the scenario has."""
    hardware, model, own = scenario.hardware, scenario.model, gpu_of(scenario)
    mine: dict[str, Any] = {
        **{f.name: getattr(hardware, f.name) for f in choices.layout()},
        "gpus": own,
        "widths": hardware.tensor_parallel,
        "dtypes": model.dtype,
        "kv_dtypes": model.kv_dtype or model_of(scenario).kv_dtype(model.dtype),
        "policies": scenario.cache.policy,
        "routers": scenario.cluster.router,
    }
    values = {
        KEYS[name]: sorted({mine[name], *found})
        for name, found in chosen.items()
        if found and (name != "policies" or scenario.cache.enabled)
    }
    axes: dict[str, Sequence[Any]] = {key: found for key, found in values.items() if len(found) > 1}
    if own and hardware.gpu is None and any(key.split(".")[0] in ("hardware", "model") for key in axes):
        axes.setdefault("hardware.gpu", [own])
    return {key: axes[key] for key in KEYS.values() if key in axes}


def command(axes: Axes, seeds: int = DEFAULT_SEEDS, fixed: bool = False) -> tuple[str, ...]:
    varied = (word for key, values in axes.items() for word in ("--vary", f"{key}={','.join(map(written, values))}"))
    return (
        "plan",
        *varied,
        *(("--seeds", str(seeds)) if seeds != DEFAULT_SEEDS else ()),
        *(("--fixed",) if fixed else ()),
    )


def start_of(scenario_toml: str, axes: Axes, prices: Mapping[str, float] | None = None) -> str:
    """The scenario that a plan begins with: whatever it may choose itself has one and the same value, so it is found
    again from its own answer. prices: of GPUs; where several vary, the list goes with it."""
    start = with_settings(
        scenario_toml, ["cluster.replicas=1", *(f"{key}={written(values[0])}" for key, values in axes.items())]
    )
    if len(axes.get("hardware.gpu", ())) > 1:
        start = replace(start, cost=CostConfig(prices=dict(sorted((prices or {}).items()))))
    return dumps(start)


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
    prices = with_settings(plan["scenario"]).cost.prices
    found = replace(found, cost=CostConfig(prices=prices)) if prices else found
    return None if _by_name(found) == _by_name(with_settings(page.shown_toml)) else found


def _by_name(scenario: Scenario) -> Scenario:
    """The same scenario with its GPU by name, where that brings the profile it has; without prices, which decide
    nothing of a fleet that is chosen already."""
    scenario, gpu = replace(scenario, cost=CostConfig()), gpu_of(scenario)
    if scenario.hardware.gpu is not None or gpu is None:
        return scenario
    given, model = scenario.model, model_of(scenario)
    kv_dtype = given.kv_dtype or model.kv_dtype(given.dtype)
    dtype, tp = model.weight_dtype(given.dtype), scenario.hardware.tensor_parallel
    best = profile_of_gpu(gpu, model, dtype, tp, kv_dtype, scenario.engine.semantics)
    hardware = replace(scenario.hardware, gpu=gpu, profile=HardwareConfig.profile)
    return replace(scenario, hardware=hardware) if best == scenario.hardware.profile else scenario


def with_settings(toml: str, settings: Sequence[str] = ()) -> Scenario:
    return scenario_from_doc(override(tomllib.loads(toml), settings))


def command_line(asked: Sequence[str]) -> str:
    """The command that finds this plan from the scenario on show."""
    return shlex.join(["kvcast", "plan", "scenario.toml", *asked[1:], "--out", "my-plan"])
