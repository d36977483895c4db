"""The [[pool]] tables in the sidebar: a fleet of different GPUs, a few fields for each pool, add and remove.

The one idea: the session holds the pools as a scenario has them ("pools", empty where all replicas are alike), and a
field's callback replaces one of them, so that what a pool has beside its fields (keys of engine and model) stays.

    fleet = draw(scenario) if st.session_state["pools"] else offer(scenario)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import streamlit as st

from kvcast.jobs.link import WIDTHS
from kvcast.pages.edit import choices
from kvcast.pages.edit.plain import plain
from kvcast.pages.edit.widgets import about, hint, optional
from kvcast.scenario.gpu_prices import gpu_of
from kvcast.scenario.mixed import EITHER, OF_ONE_GPU, pool_scenario
from kvcast.scenario.toml import literal_of
from sim.scenario import CostConfig, HardwareConfig, PoolConfig, Scenario

POOLS, VERSION = "pools", "pools.version"
SHOWN = ("gpu", "profile", "tensor_parallel")
"""Keys of a pool's hardware that have a field."""
TOLD = 4
ADD = "Add another GPU"
POOLS_ARE = (
    "Replicas of different GPUs. A pool has the settings of the rest of the page, with its own GPU, width, number and"
    " price; KV memory follows from its GPU."
)


def adopt(scenario: Scenario) -> None:
    """Make the fields say what the scenario says."""
    _become(scenario.pool)


def _become(pools: tuple[PoolConfig, ...]) -> None:
    state = st.session_state
    state[POOLS], state[VERSION] = pools, state.get(VERSION, 0) + 1  # fields start afresh


def cluster_replicas(base: Scenario) -> int:
    """[cluster] replicas beside pools, which have their own: as given where that is their sum, else none."""
    total = sum(pool.replicas for pool in st.session_state[POOLS])
    return base.cluster.replicas if base.cluster.replicas == total else 1


# -- the fields --------------------------------------------------------------------------------------------------------


def draw(scenario: Scenario) -> None:
    """The fields of every pool, and below each what its step times rest on or what is wrong with it. scenario: the
    settings so far, with these pools."""
    st.markdown("**Pools** :gray[behind one router]", help=POOLS_ARE)
    for i in range(len(scenario.pool)):
        _pool(scenario, i)
    st.button(ADD, key="pools.add", width="stretch", on_click=_added, help="one more pool behind the same router")


def offer(scenario: Scenario) -> None:
    """The button that makes a fleet of replicas that are alike one with pools. scenario: the settings so far."""
    st.button(
        ADD,
        key="pools.add",
        width="stretch",
        on_click=_begin,
        args=(scenario,),
        help="a fleet of different GPUs behind one router: these replicas become its first pool",
    )


def _pool(scenario: Scenario, i: int) -> None:
    pool = scenario.pool[i]
    alone, version = pool_scenario(scenario, pool), st.session_state[VERSION]
    key = f"pool.{version}.{i}"

    def set_(field: str, change: Callable[[PoolConfig, Any], PoolConfig]) -> Callable[[], None]:
        return lambda: _edited(version, i, change, st.session_state[f"{key}.{field}"])

    box = st.container(border=True, gap="xsmall")
    name, gpu = box.columns(2, gap="xsmall")
    name.text_input("Pool", pool.name, 60, key=f"{key}.name", on_change=set_("name", _named), help=_hint("name"))
    known, own = choices.gpus(), gpu_of(alone)
    gpu.selectbox(
        "GPU",
        known,
        list(known).index(own) if own in known else None,
        key=f"{key}.gpu",
        on_change=set_("gpu", _on_gpu),
        help=hint(HardwareConfig, "gpu"),
        placeholder=alone.hardware.profile,
    )
    width, replicas = box.columns(2, gap="xsmall", vertical_alignment="bottom")
    price, remove = box.columns(2, gap="xsmall", vertical_alignment="bottom")
    wide, limit = alone.hardware.tensor_parallel, about(HardwareConfig, "tensor_parallel")["limit"]
    widths = sorted({wide, *(one for one in WIDTHS if one in limit)})
    width.selectbox(
        choices.label_of("tensor_parallel"),
        widths,
        widths.index(wide),
        key=f"{key}.tensor_parallel",
        on_change=set_("tensor_parallel", _wide),
        help=hint(HardwareConfig, "tensor_parallel"),
    )
    replicas.number_input(
        "Replicas",
        1,
        512,
        pool.replicas,
        key=f"{key}.replicas",
        on_change=set_("replicas", _many),
        help=_hint("replicas"),
    )
    optional(
        price,
        "$ an hour",
        0.0,
        None,
        alone.cost.gpu_hour_usd,
        f"{key}.price",
        step=0.1,
        format="%g",
        placeholder="none",
        on_change=lambda: _priced(version, i, own, st.session_state[f"{key}.price"]),
        help="of one GPU; pools of one GPU share its price, unless the scenario gave a pool one of its own",
    )
    remove.button("Remove", key=f"{key}.remove", on_click=_removed, args=(scenario, i), width="stretch")
    if not pool.name or pool.name in [other.name for other in scenario.pool[:i]]:
        box.caption(":red[expected a name of its own for each pool]")
    if more := beside(pool):
        box.caption(plain(f"also {more}"))
    choices.tell(alone, box)


def beside(pool: PoolConfig) -> str:
    """What a pool has that no field shows."""
    own = {"hardware": pool.hardware, "model": pool.model, "engine": pool.engine}
    told = [
        f"{section}.{key} = {literal_of(value)}"
        for section, table in own.items()
        for key, value in table.items()
        if section != "hardware" or key not in SHOWN
    ]
    more = f" and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return f"{', '.join(told[:TOLD])}{more}"


def _hint(name: str) -> str:
    return hint(PoolConfig, name)


# -- the edits ---------------------------------------------------------------------------------------------------------


def _edited(version: int, i: int, change: Callable[[PoolConfig, Any], PoolConfig], value: Any) -> None:
    """A field's callback. version: of the pools that it was drawn for; a browser that is late changes nothing."""
    state = st.session_state
    if version == state[VERSION] and value is not None:
        pools = state[POOLS]
        after = change(pools[i], value)
        state[POOLS] = (*pools[:i], after, *pools[i + 1 :])
        if change is _on_gpu:  # the other fields are of another GPU now
            state[VERSION] += 1


def _named(pool: PoolConfig, name: str) -> PoolConfig:
    return replace(pool, name=name.strip())


def _many(pool: PoolConfig, replicas: int) -> PoolConfig:
    return replace(pool, replicas=replicas)


def _wide(pool: PoolConfig, width: int) -> PoolConfig:
    return replace(pool, hardware={**pool.hardware, "tensor_parallel": width})


def _on_gpu(pool: PoolConfig, gpu: str) -> PoolConfig:
    """The pool on another GPU, without what was of the one before; its price is the list's."""
    of_one = (*OF_ONE_GPU["hardware"], *EITHER["hardware"])
    kept = {key: value for key, value in pool.hardware.items() if key not in of_one}
    engine = {key: value for key, value in pool.engine.items() if key not in OF_ONE_GPU["engine"]}
    name = gpu if pool.name in choices.gpus() else pool.name
    return replace(pool, name=name, hardware={"gpu": gpu, **kept}, engine=engine, gpu_hour_usd=None)


def _priced(version: int, i: int, gpu: str | None, usd: float | None) -> None:
    """A price stays with its GPU, in the list; with the pool where it has one of its own, or a profile of one's own."""
    state = st.session_state
    if version != state[VERSION]:
        return
    pools = state[POOLS]
    if gpu is None or pools[i].gpu_hour_usd is not None:
        state[POOLS] = (*pools[:i], replace(pools[i], gpu_hour_usd=usd), *pools[i + 1 :])
    elif usd is not None:
        state["prices"] = {**state["prices"], gpu: usd}
    else:
        state["prices"] = {name: price for name, price in state["prices"].items() if name != gpu}
    state[VERSION] += 1  # others of this GPU show it too


def _begin(scenario: Scenario) -> None:
    """The replicas become the first pool, with all that is of their GPU; beside it one of another GPU."""
    state, hardware = st.session_state, scenario.hardware
    own = {f.name: value for f in fields(hardware) if (value := getattr(hardware, f.name)) != f.default}
    blocks = scenario.engine.kv_blocks
    gpu = gpu_of(scenario)
    first = PoolConfig(
        gpu or "first",
        scenario.cluster.replicas,
        own if "gpu" in own else {"profile": hardware.profile, **own},
        engine={} if blocks is None else {"kv_blocks": blocks},
    )
    state["base"] = replace(state["base"], hardware=HardwareConfig(), cost=CostConfig())
    state["kv_blocks"] = None
    _become((first,))
    _added()


def _added() -> None:
    """One more pool, of the first GPU of the list that none has; where all are there, the first again."""
    pools = st.session_state[POOLS]
    taken = {word for pool in pools for word in (pool.name, pool.hardware.get("gpu"))}
    gpu = next((one for one in choices.gpus() if one not in taken), None)
    first = next(iter(choices.gpus()))
    _become((*pools, PoolConfig(gpu or f"pool-{len(pools) + 1}", 1, {"gpu": gpu or first})))


def _removed(scenario: Scenario, i: int) -> None:
    """The others stay; a single one is a fleet of replicas that are alike."""
    pools = scenario.pool
    left = (*pools[:i], *pools[i + 1 :])
    if len(left) > 1:
        _become(left)
        return
    state, pool = st.session_state, (left or pools)[0]
    alone = pool_scenario(scenario, pool)
    usd, gpu = alone.cost.gpu_hour_usd, gpu_of(alone)
    prices = {**state["prices"], **({gpu: usd} if gpu is not None and usd is not None else {})}
    state["base"] = replace(state["base"], hardware=alone.hardware, engine=alone.engine, pool=())
    choices.adopt(replace(alone, cost=CostConfig(prices=prices)))
    state["replicas"], state["kv_blocks"] = pool.replicas, alone.engine.kv_blocks
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization"):
        state[name] = getattr(alone.engine, name)
    _become(())
