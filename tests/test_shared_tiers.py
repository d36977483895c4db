"""Cache tiers that all replicas share: worlds by hand, theory, and that one replica's store is its own tier.

python -m pytest tests/test_shared_tiers.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast import api
from kvcast.config import load_scenario, scenario_from_doc
from kvcast.planner.command import launch_of
from kvcast.present import summary_text
from sim.fleet.mixed import Kind, Mixed
from sim.kvcache.store import Shelf, Store
from sim.recording import COMPLETED, Recording, TierUse
from sim.scenario import EngineParams, TierParams
from sim.simulate import run
from tests.test_engine import same
from tests.test_tiers import checked, families, random_params
from tests.worlds import LinearSteps, random_workload
from workloads.columns import Workload
from workloads.errors import InputError

SLOW = LinearSteps(overhead_s=1.0, decode_s=0, context_s=0, longest_s=0, prefill_s=1.0, deep_s=0)
"""A second a step and a second a prompt token: a prompt of 9 tokens takes 10 s, its last token alone 2 s."""
STORE = TierParams("store", 100, 4.0, 0.5, block_bytes=4, write="write-through", shared=True)


def fleet(w: Workload, store: TierParams = STORE, replicas: int = 2, kv_blocks: int = 100, **options) -> Recording:
    params = EngineParams(kv_blocks=kv_blocks, block_size=4, tiers=(store,), async_scheduling=False)
    return run(w, params, SLOW, replicas=replicas, **options)


def at(times_s: list[float], prompts: list[tuple[int, int]]) -> Workload:
    return replace(families(prompts, gap_s=0.0), arrival_s=np.array(times_s))


def used(r: Recording) -> TierUse:
    (use,) = r.tiers
    return use


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_what_one_replica_computed_another_loads() -> None:
    """A (9 tokens, 2 full blocks) is computed on replica 0 until 10 s; B, the same prompt, comes to replica 1 at 20 s:
    two blocks of 4 bytes at 4 bytes/s and half a second are there at 22.5 s, and a step of one token takes 2 s."""
    r = fleet(at([0.0, 20.0], [(0, 9), (0, 9)]))
    assert r.replica.tolist() == [0, 1]
    assert r.hit_tokens.tolist() == [0, 8]
    assert r.tier_hit_tokens[:, 0].tolist() == [0, 8]
    assert r.admit_s.tolist() == [0.0, 20.0]
    assert r.load_s.tolist() == [0.0, 2.5]
    assert r.first_token_s.tolist() == [10.0, 24.5]
    assert (r.ceiling_replica_tokens[1], r.ceiling_fleet_tokens[1]) == (8, 8)
    assert (used(r).written_blocks, used(r).loaded_blocks, used(r).stored_blocks) == (2, 2, 2)
    own = fleet(at([0.0, 20.0], [(0, 9), (0, 9)]), replace(STORE, shared=False))
    assert own.hit_tokens.tolist() == [0, 0]


def test_what_is_still_being_computed_is_not_there() -> None:
    """At 5 s replica 0 is at A's step until 10 s: replica 1 computes B itself; at 10 s it is there."""
    early = fleet(at([0.0, 5.0], [(0, 9), (0, 9)]))
    assert early.hit_tokens.tolist() == [0, 0]
    assert early.first_token_s.tolist() == [10.0, 15.0]
    assert fleet(at([0.0, 10.0], [(0, 9), (0, 9)])).hit_tokens.tolist() == [0, 8]


def test_on_evict_the_store_has_what_replicas_gave_away() -> None:
    """Replica 0 (7 blocks) gives A's two away for C's; B on replica 1 takes them out of the store, D on replica 0 finds
    none there and none at home."""
    w = at([0.0, 20.0, 30.0, 70.0, 100.0], [(0, 9), (3, 4), (1, 25), (0, 9), (0, 9)])
    r = fleet(w, replace(STORE, write="on-evict"), kv_blocks=7)
    assert r.replica.tolist() == [0, 1, 0, 1, 0]
    assert r.tier_hit_tokens[:, 0].tolist() == [0, 0, 0, 8, 0]
    assert used(r).loaded_blocks == 2


def test_loads_take_turns_at_the_store() -> None:
    """Replicas 1 and 2 load A at once, 8 bytes each at 4 bytes/s together: there at 22 and at 24 s; with a link of
    their own of 2 bytes/s and a store without limit both at 24 s."""
    w = at([0.0, 20.0, 20.0], [(0, 9)] * 3)
    together = fleet(w, replace(STORE, bandwidth_bytes_s=inf, latency_s=0.0, total_bytes_s=4.0), replicas=3)
    assert together.load_s.tolist() == [0.0, 2.0, 4.0]
    assert together.first_token_s.tolist() == [10.0, 24.0, 26.0]
    assert (used(together).store_waited_s, used(together).store_busy_s, used(together).loads) == (2.0, 4.0, 2)
    apart = fleet(w, replace(STORE, bandwidth_bytes_s=2.0, latency_s=0.0), replicas=3)
    assert apart.load_s.tolist() == [0.0, 4.0, 4.0]
    assert used(apart).store_waited_s == 0.0


def test_the_slower_of_store_and_link_is_the_load() -> None:
    for link, total, load_s in ((4.0, 2.0, 4.0), (2.0, 4.0, 4.0), (8.0, 8.0, 1.0)):
        store = replace(STORE, bandwidth_bytes_s=link, latency_s=0.0, total_bytes_s=total)
        r = fleet(at([0.0, 20.0], [(0, 9)] * 2), store)
        assert r.load_s[1] == load_s


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_store_that_gives_nothing_is_no_store(prefetch: bool) -> None:
    w, store = random_workload(3), replace(STORE, prefetch=prefetch)
    none = fleet(w, replace(store, total_bytes_s=0.0), kv_blocks=40)
    without = run(w, EngineParams(kv_blocks=40, block_size=4, async_scheduling=False), SLOW, replicas=2)
    assert used(none).loads == 0
    assert np.array_equal(none.finish_s, without.finish_s, equal_nan=True)


def test_the_store_outlives_a_replica_and_not_what_it_was_computing() -> None:
    """Replica 0 fails at 15 s: A's blocks, computed until 10 s, are in the store. Failed at 5 s they never were: A
    begins again on replica 1, and is hit in its own memory."""

    def failing(at_s: float):
        def process(fleet):
            yield fleet.sleep(at_s)
            fleet.replicas[0].fail()

        return process

    late = fleet(at([0.0, 20.0], [(0, 9), (0, 9)]), processes=[failing(15.0)])
    assert late.tier_hit_tokens[:, 0].tolist() == [0, 8]
    early = fleet(at([0.0, 20.0], [(0, 9), (0, 9)]), processes=[failing(5.0)])
    assert early.first_token_s.tolist() == [15.0, 22.0]
    assert early.hit_tokens.tolist() == [0, 8]
    assert early.tier_hit_tokens[:, 0].tolist() == [0, 0]
    assert (used(early).written_blocks, used(early).dropped_blocks) == (4, 0)  # twice two, of which two were lost


def test_pools_share_a_store() -> None:
    """Computed by the fast pool, loaded by the slow one, which waits less than it would compute."""
    params = EngineParams(kv_blocks=100, block_size=4, tiers=(STORE,), async_scheduling=False)
    kinds = [Kind("a", 1, params, SLOW), Kind("b", 1, replace(params, kv_blocks=50), SLOW)]
    r = run(at([0.0, 20.0], [(0, 9)] * 2), params, SLOW, replicas=2, mixed=Mixed(kinds))
    assert r.tier_hit_tokens[:, 0].tolist() == [0, 8]


# -- theory ------------------------------------------------------------------------------------------------------------


def test_loads_at_a_store_wait_as_in_md1() -> None:
    """Loads of one second each from eight replicas with links without limit: each wait is Lindley's, their mean rho /
    (2 (1 - rho))."""
    rho, n, means = 0.8, 3_000, []
    for seed in range(8):
        rng = np.random.default_rng([seed, 19])
        store = Store(replace(STORE, bandwidth_bytes_s=inf, latency_s=0.0, total_bytes_s=4.0))
        shelves = [Shelf(store, i) for i in range(8)]
        arrivals, waits, lindley = rng.exponential(1 / rho, n).cumsum(), [], [0.0]
        for now_s, shelf in zip(arrivals.tolist(), rng.choice(shelves, n), strict=True):
            waits.append(shelf.ready_s(1, now_s) - now_s - 1.0)
            shelf.load(1, now_s)
        for gap in np.diff(arrivals).tolist():
            lindley.append(max(0.0, lindley[-1] + 1.0 - gap))
        np.testing.assert_allclose(waits, lindley, atol=1e-6)
        means.append(float(np.mean(waits[n // 10 :])))
        assert sum(shelf.use().store_waited_s for shelf in shelves) == pytest.approx(sum(waits))
    half_width = 3.499 * np.std(means, ddof=1) / np.sqrt(len(means))  # Student's t, 7 degrees of freedom, 99 %
    assert abs(np.mean(means) - rho / (2 * (1 - rho))) < half_width < 0.25 * 2.0


# -- properties --------------------------------------------------------------------------------------------------------


def as_own(r: Recording) -> Recording:
    """With the tiers told as a replica's own."""
    own = {"shared": False, "total_bytes_s": inf, "store_busy_s": 0.0, "store_waited_s": 0.0, "loads": 0}
    return replace(r, tiers=[replace(use, **own) for use in r.tiers])


def shared(params: EngineParams, total_bytes_s: float = inf) -> EngineParams:
    tiers = tuple(replace(tier, shared=True, total_bytes_s=total_bytes_s) for tier in params.tiers)
    return replace(params, tiers=tiers)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9))
def test_one_replica_with_a_store_has_a_tier_of_its_own(seed: int) -> None:
    rng = random.Random(seed)
    w = random_workload(seed, n=40, closed=rng.random() < 0.5, rate=rng.choice([20.0, 1000.0]))
    params = random_params(rng)
    one = checked(w, params, fast_forward=False)
    same(one, as_own(checked(w, shared(params))))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9))
def test_random_fleets_with_a_store(seed: int) -> None:
    """Every block written is there, was taken out or dropped (`checked`, after every step); hits stay below what an
    endless cache of the fleet would have; nobody is lost; and it is the same again."""
    rng = random.Random(seed)
    w = random_workload(seed, n=40, closed=rng.random() < 0.5, rate=rng.choice([20.0, 1000.0]))
    params = shared(random_params(rng), rng.choice([inf, 1e3, 1.0]))
    options = {"replicas": rng.choice([2, 3]), "router": rng.choice(["round-robin", "least-loaded"])}
    r = checked(w, params, **options)
    same(r, checked(w, params, **options))
    assert (r.status[r.replica >= 0] == COMPLETED).all()
    assert (r.hit_tokens <= r.ceiling_replica_tokens).all()
    assert (r.ceiling_replica_tokens <= r.ceiling_fleet_tokens).all()
    assert r.tier_hit_tokens is not None
    assert (r.tier_hit_tokens.sum(axis=1) <= r.hit_tokens).all()
    for use in r.tiers:
        assert use.stored_blocks <= use.capacity_blocks
        assert use.written_blocks >= use.stored_blocks + use.dropped_blocks
        if use.total_bytes_s < inf:
            assert use.store_busy_s == pytest.approx(use.loaded_blocks * use.block_bytes / use.total_bytes_s)


# -- scenarios ---------------------------------------------------------------------------------------------------------

PROJECTS = {"name": "text", "scope": "project", "items": 20, "tokens": {"value": 4000}}
DOC = {
    "workload": {"class": [{"name": "a", "rate": 4.0, "layers": [PROJECTS], "output": {"value": 20}}], "requests": 80},
    "run": {"warmup_s": 2.0},
    "cluster": {"replicas": 3},
    "cache": {"tiers": [{"name": "dram", "capacity_gib": 4, "bandwidth_gb_per_s": 40, "write": "write-through"}]},
}


def scenario(**store):
    kept = {"name": "store", "capacity_gib": 200, "bandwidth_gb_per_s": 20, "write": "write-through", "shared": True}
    return scenario_from_doc({**DOC, "cache": {"tiers": [*DOC["cache"]["tiers"], kept | store]}})


def test_a_store_is_worth_more_than_tiers_apart() -> None:
    result = api.run(api.prepare(scenario(total_bandwidth_gb_per_s=50)))
    s = result.report.summary
    row = s["tiers"][2]
    assert (row["name"], row["shared"]) == ("store", True)
    assert row["capacity_blocks"] == 200 * 2**30 // (131072 * 16)
    assert 0 < row["hit_tokens"] <= s["prefix_hit_tokens"]
    assert 0 < row["store_busy_share"] < 1
    assert "one for all" in summary_text.describe(result)
    own = api.simulate(scenario(shared=False)).summary
    assert s["prefix_hit_rate"] > own["prefix_hit_rate"] + 0.1
    assert "shared" not in own["tiers"][2]


def test_a_launch_command_has_no_memory_for_the_store() -> None:
    """--kv-offloading-size is a replica's own host memory: the store's 200 GiB are not it."""
    made = launch_of(scenario())
    assert made["vllm"][made["vllm"].index("--kv-offloading-size") + 1] == "4"
    assert "the shared store store is a service of its own: this command runs without it" in made["notes"]
    blocks = {"name": "dram", "capacity_blocks": 99, "bandwidth_gb_per_s": 40}
    made = launch_of(scenario_from_doc({**DOC, "cache": {"tiers": [blocks]}}))
    assert "--kv-offloading-size" not in made["vllm"]
    assert "--kv-offloading-size is left out: it takes GiB, the cache tier's size is given in blocks" in made["notes"]


def test_the_example_runs() -> None:
    short = ["workload.duration_s=60", "run.warmup_s=20"]
    s = api.simulate(load_scenario("examples/shared_store.toml", short)).summary
    assert s["completed"] == s["arrived"]
    assert s["tiers"][1]["hit_tokens"] > 0


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"shared": False, "total_bandwidth_gb_per_s": 5}, "total_bandwidth_gb_per_s = 5: expected shared = true"),
        ({"total_bandwidth_gb_per_s": -1}, "total_bandwidth_gb_per_s = -1"),
        ({"total_bandwidth_gb_per_s": 1e-320}, "total_bandwidth_gb_per_s = .*: expected 0 or from 1e-09 on, or inf"),
        ({"name": "dram"}, "expected a name of its own"),
    ],
)
def test_what_makes_no_sense_is_one_line(store: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        api.resolve(scenario(**store))


def test_nothing_of_ones_own_lies_behind_a_store() -> None:
    tiers = [{"name": "s", "capacity_gib": 9, "bandwidth_gb_per_s": 1, "shared": True}, DOC["cache"]["tiers"][0]]
    with pytest.raises(InputError, match=r"\[cache.tiers.dram\] shared = false behind a shared one"):
        scenario_from_doc({**DOC, "cache": {"tiers": tiers}})


def test_pools_of_two_models_have_no_store_together() -> None:
    pools = [{"name": "a", "hardware": {"gpu": "h200"}}, {"name": "b", "model": {"kv_dtype": "fp8"}}]
    given = {**DOC, "cluster": {}, "pool": pools, "cache": {"tiers": [{**DOC["cache"]["tiers"][0], "shared": True}]}}
    with pytest.raises(InputError, match="expected pools of one model, KV type and tensor_parallel"):
        api.simulate(scenario_from_doc(given))
