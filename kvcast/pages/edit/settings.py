"""The session's scenario: the keys of Streamlit's session state that the widgets of the sidebar and the Workload page
show.

The one idea: `adopt` makes every widget say what a scenario says, wherever that comes from: the bundled example, a
link, an uploaded file, an advice that is applied.

    adopt(demo()); st.session_state["replicas"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import streamlit as st

from kvcast.jobs import allowed
from kvcast.jobs import demo as demo_module
from kvcast.pages.edit import choices, pools, scaling
from sim.scenario import Scenario, SloClass, SloConfig
from workloads.config import WorkloadConfig

DEMO = "demo"
TRACE = "a trace"
UPLOAD = "upload a file"
CACHE_OFF = "off"
ENGINE = {  # key: (label, what stands in an empty field)
    "block_size": ("Block size (tokens)", None),
    "kv_blocks": ("KV blocks each", "what fits"),
    "max_num_seqs": ("Max sequences", "engine's"),
    "max_num_batched_tokens": ("Tokens per step", "engine's"),
    "max_model_len": ("Longest sequence", "model's"),
    "gpu_memory_utilization": ("Memory share", None),
}


@st.cache_data
def demo() -> Scenario:
    """The bundled example, which the first open shows."""
    return demo_module.scenario()


def adopt(scenario: Scenario, trace: str = "") -> None:
    """Make every widget say what the scenario says. trace: the stored upload it reads, as `Runner.keep_upload` named
    it."""
    state = st.session_state
    state["base"], state["kept"] = scenario, {}
    mix_of(scenario.workload)
    state["workload.trace"], state["workload.named"] = trace, allowed.trace_name(trace) or UPLOAD
    state["rate_scale"] = float(scenario.workload.rate_scale)
    choices.adopt(scenario)
    pools.adopt(scenario)
    scaling.adopt(scenario)
    state["replicas"], state["router"] = scenario.cluster.replicas, scenario.cluster.router
    state["policy"] = scenario.cache.policy if scenario.cache.enabled else CACHE_OFF
    for name in ENGINE:
        state[name] = getattr(scenario.engine, name)
    for key in [key for key in state if str(key).startswith("slo.")]:  # of classes that the scenario has no limits for
        state[key] = None
    for name, limit in limits_of(scenario.slo):
        state[f"slo.{name}.ttft"], state[f"slo.{name}.tpot"] = to_ms(limit.ttft_s), to_ms(limit.tpot_s)
    state["target"] = None if scenario.slo.attainment is None else round(100 * scenario.slo.attainment, 6)


def mix_of(workload: WorkloadConfig) -> None:
    """Make the Workload page's mix the one of a [workload] section (its rate_scale has a widget of its own)."""
    from workloads.mix import tables

    state = st.session_state
    if workload.trace is None:
        state["workload.mix"] = replace(tables(replace(workload, rate_scale=1.0)), preset=None)
    state["workload"] = TRACE if workload.trace else workload.preset or preset_like(state["workload.mix"])
    for counter in ("workload.version", "workload.layers"):  # table and fields start afresh
        state[counter] = state.get(counter, 0) + 1
    state["workload.problem"] = ""


@st.cache_data(max_entries=64, show_spinner=False)
def alike(one: str, other: str) -> bool:
    """Whether two scenarios' texts simulate the same: a mix by its preset's name, or written out, under any label."""
    return one == other or _unnamed(one) == _unnamed(other)


def _unnamed(scenario_toml: str) -> Scenario:
    from kvcast.config import scenario_from_doc
    from workloads.mix import resolve

    scenario = scenario_from_doc(tomllib.loads(scenario_toml), "settings")
    workload = scenario.workload
    if workload.trace is None:
        workload = replace(resolve(workload), preset=None)
    return replace(scenario, name="", workload=workload)


def preset_like(config: WorkloadConfig) -> str:
    """The preset that a mix is, or was edited from as far as its first class's name tells."""
    from workloads.toml import list_presets, load_preset

    names = [c.name for c in config.class_]
    alike = [name for name in list_presets() if load_preset(name).class_[0].name in names]
    return next((name for name in alike if mix_is(config, name)), alike[0] if alike else DEMO)


def mix_is(config: WorkloadConfig, preset: str) -> bool:
    """Whether the mix is the preset, untouched."""
    from kvcast.pages.mix import same
    from workloads.toml import load_preset

    return same(config, load_preset(preset))


def limits_of(slo: SloConfig) -> Iterator[tuple[str, SloClass]]:
    """(SLO class, limits); "" is everyone."""
    yield "", SloClass(slo.ttft_s, slo.tpot_s, slo.e2e_s)
    yield from slo.classes.items()


def to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)


def to_s(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1e3, 9)
