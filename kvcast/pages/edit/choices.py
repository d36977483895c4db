"""Model, precision, GPU, layout and price: choices of their own, each of which leaves the others as they are.

The one idea: a GPU is chosen by name and brings the best that is known of it; a profile is chosen only by whoever wants
another one. What a choice takes away is said where it was made: which profile no longer fits, which model does not.

    section, standing = hardware(replace(base, model=model(base, runner)))
"""

from __future__ import annotations

import re
from dataclasses import Field, fields, replace
from typing import Any

import streamlit as st

from calibrate.memory import DoesNotFitError
from calibrate.models import PREFIX
from kvcast.jobs import allowed
from kvcast.jobs.link import WIDTHS
from kvcast.jobs.runner import Runner
from kvcast.pages.edit.widgets import hint, number, select
from kvcast.scenario.gpu_prices import gpu_of
from sim.scenario import (
    DTYPES,
    KV_DTYPES,
    AutoscaleConfig,
    CostConfig,
    HardwareConfig,
    ModelConfig,
    RunConfig,
    Scenario,
)
from workloads.config import WorkloadConfig
from workloads.errors import InputError

CONFIG = "a config.json"
BEST = "the best that is known"
OWN = "default"
ELSE = "is of another model, precision, width or GPU: step times from the best that is known"
NOT_LAYOUT = ("profile", "gpu", "weights_gib", "overhead_gib")
"""Keys of [hardware] that say something else than how a replica is spread over GPUs."""
SHORT = 8
"""Characters of a value that half of the sidebar shows whole."""
LABELS = {"tensor_parallel": "Tensor parallel"}
UPLOADED_FILE = re.compile(r"\S*/uploads/[0-9a-f]{24}/")
KEYS = ("model", "dtype", "kv_dtype", "gpu", "profile", "price")


def layout() -> list[Field[Any]]:
    """The keys of a layout, whatever they are."""
    return [f for f in fields(HardwareConfig) if f.name not in NOT_LAYOUT]


@st.cache_data
def models() -> list[str]:
    """Bundled models, config.json files named where the dashboard was started, and published checkpoints."""
    from calibrate.models import bundled_models, published_names

    return [*bundled_models(), *allowed.models(), CONFIG, *(f"{PREFIX}{name}" for name in published_names())]


@st.cache_data
def gpus() -> dict[str, str]:
    """GPU -> what the list says: its name, memory and what is known of it."""
    from calibrate.atlas.tables import bundled_gpus, load
    from calibrate.resolve import known_gpus
    from calibrate.sources.roofline import GPUS

    measured, found = bundled_gpus(), {}
    for gpu in known_gpus():
        header = load(gpu).header if gpu in measured else None
        name, memory = (header["name"], header["memory_gib"]) if header else (GPUS[gpu].name, GPUS[gpu].memory_gib)
        found[gpu] = f"{name}, {memory:.0f} GiB{'' if header else ' (data sheet, ±30 %)'}"
    first = ("h100", "h200", "b200")  # what most planners ask for
    return {gpu: found[gpu] for gpu in sorted(found, key=lambda gpu: (gpu not in first, -float(gpu in measured), gpu))}


def gpu_named(gpu: str) -> str:
    """A GPU's name as the list has it."""
    from calibrate.resolve import gpu_name

    return gpu_name(gpu)


# -- what a scenario says ----------------------------------------------------------------------------------------------


def adopt(scenario: Scenario) -> None:
    """Make the widgets say what the scenario says."""
    state, given = st.session_state, scenario.model
    state["model.config"] = given.config or ""
    named = {name.lower(): name for name in models()}
    state["model"] = named.get((given.config or given.name).lower(), CONFIG)
    state["dtype"], state["kv_dtype"] = given.dtype, given.kv_dtype or OWN
    gpu = gpu_of(scenario)
    state["gpu"] = gpu or next(iter(gpus()))
    state["profile"] = BEST if scenario.hardware.gpu is not None else scenario.hardware.profile
    for f in layout():
        state[f"layout.{f.name}"] = getattr(scenario.hardware, f.name)
    state["prices"] = prices_of(scenario)
    state["price"], state["priced"] = state["prices"].get(state["gpu"]), state["gpu"]
    state["lost"] = ""


def prices_of(scenario: Scenario) -> dict[str, float]:
    """GPU -> USD an hour, as the scenario says; where every pool says its own, its mean is nobody's."""
    own, listed = scenario.cost.gpu_hour_usd, {**scenario.cost.prices}
    if own is not None and not (scenario.pool and all(pool.gpu_hour_usd is not None for pool in scenario.pool)):
        listed.setdefault(gpu_of(scenario) or next(iter(gpus())), own)
    return listed


def keys() -> list[str]:
    """The session's keys that the widgets hold."""
    return [*KEYS, *(f"layout.{f.name}" for f in layout())]


# -- the widgets -------------------------------------------------------------------------------------------------------


def model(base: Scenario, runner: Runner) -> ModelConfig:
    """The [model] section."""
    choice = select(
        st, "Model", models(), "model", help=f"{hint(ModelConfig, 'name')}. Type to search.", on_change=_changed
    )
    if choice == CONFIG:
        st.file_uploader(
            "config.json",
            key="model.upload",
            type="json",
            on_change=_uploaded,
            args=(runner,),
            max_upload_size=1,
            help="of any model of the families in docs/models.md, as Hugging Face publishes it",
        )
    left, right = st.columns(2)
    dtype = select(left, "Weights", DTYPES, "dtype", help=hint(ModelConfig, "dtype"), on_change=_changed)
    kv = select(
        right, "KV cache", [OWN, *KV_DTYPES], "kv_dtype", help=hint(ModelConfig, "kv_dtype"), on_change=_changed
    )
    return replace(
        base.model,
        name=choice if choice not in (CONFIG, *allowed.models()) else ModelConfig.name,
        config=_config(choice),
        dtype=dtype,
        kv_dtype=None if kv == OWN else kv,
    )


def hardware(base: Scenario) -> tuple[HardwareConfig, Any]:
    """The [hardware] section of replicas that are alike, and a place to `tell` what they rest on. base: has the model
    that is asked for."""
    known, state = gpus(), st.session_state
    gpu = select(
        st, "GPU", list(known), "gpu", format_func=known.get, help=hint(HardwareConfig, "gpu"), on_change=_changed
    )
    spread = _layout()
    kept = {name: getattr(base.hardware, name) for name in ("weights_gib", "overhead_gib")}
    profile = _profile(replace(base, hardware=HardwareConfig(**kept, **spread)), gpu)
    source = {"gpu": gpu} if profile == BEST else {"profile": profile}
    if state["lost"]:
        st.caption(f":orange[{state['lost']}]")
    return HardwareConfig(**kept, **spread, **source), st.empty()


def missing() -> bool:
    """Whether a config.json is still to be uploaded."""
    return bool(st.session_state["model"] == CONFIG and not st.session_state["model.config"])


def _config(choice: str) -> str | None:
    if choice in allowed.models():
        return choice
    return (st.session_state["model.config"] or None) if choice == CONFIG else None


def _uploaded(runner: Runner) -> None:
    """Keep the uploaded config.json; none when it was taken away."""
    state = st.session_state
    upload, state["model.config"] = state["model.upload"], ""
    if upload is not None:
        state["model.config"] = str(runner.keep_upload("config.json", upload.getvalue()))


def _layout() -> dict[str, Any]:
    """A widget for every key of the layout: which there are, and what they mean, the schema says."""
    found, places, wide = {}, st.columns(2), st.container()  # a narrow sidebar must not cut a label or a value
    halves = [f.name for f in layout() if not isinstance(f.default, bool) and _longest(f) <= SHORT]
    for f in layout():
        place = places[halves.index(f.name) % 2] if f.name in halves else wide
        key = f"layout.{f.name}"
        label, told = label_of(f.name), str(f.metadata["help"])
        if isinstance(f.default, bool):
            found[f.name] = place.checkbox(label, st.session_state[key], key=key, help=told, on_change=_changed)
        else:
            options = list(dict.fromkeys([*values_of(f), st.session_state[key]]))
            found[f.name] = select(place, label, options, key, help=told, on_change=_changed)
    return found


def _longest(f: Field[Any]) -> int:
    return max((len(str(value)) for value in values_of(f)), default=0)


def label_of(name: str) -> str:
    return LABELS.get(name, name.replace("_", " ").capitalize())


def values_of(f: Field[Any]) -> list[Any]:
    """What a key of the layout may be, as far as a page offers it."""
    if isinstance(f.default, bool):
        return [False, True]
    limit = f.metadata["limit"]
    return list(f.metadata["choices"]) or [width for width in WIDTHS if not limit or width in limit]


def _profile(asked: Scenario, gpu: str) -> str:
    """Where step times come from: the best that is known of the GPU, or any one thing that is known of it. One that is
    of something else gives way, and that is said; here and not after the choice, because a browser that has not drawn
    this list yet may tell the value that it had."""
    state, profile = st.session_state, st.session_state["profile"]
    if profile != BEST and not (profile in profiles_of(gpu) and fits(asked, profile)):
        state["profile"] = BEST
        state["lost"] = "; ".join(filter(None, [state["lost"], f"{profile} {ELSE}"]))
    with st.expander("Step times"):
        known = [BEST, *profiles_of(gpu)]
        return str(select(st, "From", known, "profile", help=hint(HardwareConfig, "profile"), on_change=_changed))


@st.cache_data
def profiles_of(gpu: str) -> list[str]:
    """All that may be named of a GPU: its bundled profiles, its atlas by engine, its data sheet."""
    from calibrate.atlas.tables import bundled_gpus, load, spec_of
    from calibrate.profile import bundled_profile, bundled_profiles
    from calibrate.sources.roofline import GPUS, gpu_key

    whole = [name for name in bundled_profiles() if gpu_key(str(bundled_profile(name).device["name"])) == gpu]
    atlas = load(gpu).backends if gpu in bundled_gpus() else ()
    measured = [spec_of(gpu, backend) for backend in atlas]
    return [*whole, *sorted(measured), *([f"roofline:{gpu}"] if gpu in GPUS else [])]


# -- what a choice takes away ------------------------------------------------------------------------------------------


def _changed() -> None:
    """After a choice: the price is the chosen GPU's own."""
    state = st.session_state
    gpu, state["lost"] = state["gpu"], ""
    if gpu == state["priced"]:
        return
    state["prices"] = {**state["prices"], **({} if state["price"] is None else {state["priced"]: state["price"]})}
    had, state["price"], state["priced"] = state["price"], state["prices"].get(gpu), gpu
    if had is not None and state["price"] is None:
        state["lost"] = f"no price for {gpu} yet: its runs have GPU-hours only"


def fits(asked: Scenario, profile: str) -> bool:
    """Whether a profile is of the scenario's model, precision and layout, whether or not its GPU has the memory."""
    _, wrong = _resolved(_alone(replace(asked, hardware=replace(asked.hardware, profile=profile))))
    return wrong is None or isinstance(wrong, DoesNotFitError)


# -- what they stand on ------------------------------------------------------------------------------------------------


def tell(scenario: Scenario, place: Any) -> None:
    """Say what the step times rest on and how much KV fits, or why the choices do not go together."""
    words, wrong = _resolved(_alone(scenario))
    place.caption(words if wrong is None else f":red[{_said(wrong)}]")


def _said(wrong: InputError) -> str:
    line = UPLOADED_FILE.sub("", str(wrong).removeprefix("scenario: "))
    if isinstance(wrong, DoesNotFitError) and "; " in line:
        line = f"{line.partition(': ')[0]}: {line.rpartition('; ')[2]}"
    return line


def _alone(scenario: Scenario) -> Scenario:
    """One replica with a workload of no account: what is asked has nothing to do with it."""
    one = replace(scenario.cluster, replicas=1)
    return replace(
        scenario,
        workload=WorkloadConfig(preset="chat"),
        run=RunConfig(0.0, 1.0),
        cluster=one,
        shock=(),
        autoscale=AutoscaleConfig(),
    )


@st.cache_data(max_entries=256)
def _resolved(scenario: Scenario) -> tuple[str, InputError | None]:
    """What a scenario rests on in words, and what is wrong with it."""
    from kvcast import resolve

    try:
        resolved = resolve(scenario)
    except InputError as error:
        return "", error
    engine, given = resolved.scenario.engine, resolved.scenario.model
    tokens = (engine.kv_blocks or 0) * engine.block_size
    types = f"{given.dtype} weights, {given.kv_dtype} KV"
    basis = f"{resolved.profile.id}: {_basis(resolved.profile)}"
    return f"{basis}; {types}, memory for {tokens:,} tokens a replica", None


def _basis(profile: Any) -> str:
    if profile.kind == "roofline":
        return "data sheet alone, right within about 30 %"
    if profile.kind != "atlas":
        return "a profile of the whole model"
    errors = [float(one["error"]) for one in profile.points["rests_on"] if "share of bandwidth" not in one["basis"]]
    return f"measured operators, each expected within {100 * max(errors):.0f} %"


# -- money -------------------------------------------------------------------------------------------------------------


def cost(place: Any) -> CostConfig:
    """The [cost] section: the chosen GPU's price, and those of the others where there are any."""
    state = st.session_state
    price = number(
        place,
        f"$ an hour, {state['gpu']}",
        0.0,
        None,
        "price",
        step=0.1,
        help="yours, of one GPU of the kind chosen above; empty: GPU-hours only. A price stays with its GPU.",
        placeholder="none",
    )
    listed = {gpu: usd for gpu, usd in state["prices"].items() if gpu != state["gpu"]}
    if price is not None:
        listed[state["gpu"]] = price
    state["prices"] = listed
    return cost_of(listed, state["gpu"])


def cost_of_pools(base: Scenario) -> CostConfig:
    """The [cost] section of a fleet with pools: as it was given, or the list of prices by GPU that it became."""
    listed = st.session_state["prices"]
    return base.cost if listed == prices_of(base) else CostConfig(prices=dict(sorted(listed.items())))


def give_price(gpu: str, key: str) -> None:
    """Put the price that a field of the session holds into the list, and into the sidebar where it is its GPU's."""
    state = st.session_state
    listed = {name: usd for name, usd in state["prices"].items() if name != gpu}
    state["prices"] = listed if state[key] is None else {**listed, gpu: state[key]}
    if gpu == state["gpu"]:
        state["price"] = state[key]


def cost_of(prices: dict[str, float], gpu: str) -> CostConfig:
    """One price is the scenario's own GPU's; several are a list."""
    if set(prices) <= {gpu}:
        return CostConfig(prices.get(gpu))
    return CostConfig(prices=dict(sorted(prices.items())))
