"""The optimum of a timed run: against exhaustive search, against what the engine hit, and as the clairvoyant policy
hits it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kvcast.cli import main
from sim.kvcache.clairvoyant import NO_USE, Forecast
from sim.kvcache.observed import ACQUIRE, RELEASE
from sim.kvcache.policies import POLICIES
from sim.optimum.check import check, feasible
from sim.optimum.hits import most_hits
from sim.optimum.schedule import order_optimum, schedule_optimum, schedule_problem, split_evicted
from sim.recording import Recording
from sim.scenario import EngineParams
from sim.simulate import run
from tests.reference_optimum import as_workload, best_pinned, leading, order_of, tiny
from tests.worlds import LinearSteps, UnitSteps, random_workload
from workloads.columns import PrefixTree, Workload

ROOT = Path(__file__).resolve().parent.parent


def random_stays(rng: np.random.Generator, n: int) -> list[tuple[bool, int]]:
    """Acquisitions in row order, each followed some events later by its release."""
    events: list[tuple[bool, int]] = []
    running: list[int] = []
    for request in range(n):
        while running and rng.random() < 0.6:
            events.append((False, running.pop(int(rng.integers(len(running))))))
        events.append((True, request))
        running.append(request)
    return events


def by_hand(
    orders: list[list[int]], events: list[tuple[bool, int]], in_use: list[int], capacity: int
) -> SimpleNamespace:
    """What a run with these events would have recorded; ceilings from what was entered before."""
    seen, ceiling = 0, []
    for order in orders:
        ceiling.append(2 * leading(order, seen))
        seen |= sum(1 << block for block in order)
    table = [
        (ACQUIRE if a else RELEASE, r, 0 if a else len(orders[r]), used)
        for (a, r), used in zip(events, in_use, strict=True)
    ]
    return SimpleNamespace(
        cache_events=[np.array(table, np.int64)],
        kv_blocks=capacity,
        block_size=2,
        ceiling_replica_tokens=np.array(ceiling),
        hit_tokens=np.array(ceiling),
    )


def test_pinned_sweep_is_the_best_of_all_states() -> None:
    """2,000 tight instances: exhaustive search over any states and over leaf-first ones = sweep = certificate."""
    rng = np.random.default_rng(11)
    tight = several = 0
    while tight < 2000:
        parent, leaves = tiny(rng)
        orders = [order_of(parent, leaf) for leaf in leaves]
        events = random_stays(rng, len(leaves))
        in_use, holders = [], []
        for acquires, request in events:
            held = len({block for holder in holders for block in orders[holder]})
            in_use.append(held + int(rng.integers(0, 2)))
            (holders.append if acquires else holders.remove)(request)
        capacity = max(in_use) + int(rng.integers(0, 2))
        rec = by_hand(orders, events, in_use, capacity)
        problem = schedule_problem(as_workload(parent, leaves, 2, np.ones(len(leaves), np.int64)), rec, 0)
        best = most_hits(problem.items, problem.capacity)
        if not len(best.checkpoints):
            continue
        tight += 1
        several += len(best.checkpoints) > 1
        loose = best_pinned(orders, events, in_use, capacity)
        strict = best_pinned(orders, events, in_use, capacity, parent)
        assert loose == strict == best.hits == check(problem.items, problem.capacity, best.kept, best.checkpoints), (
            parent,
            leaves,
            events,
        )
    assert several > 100


def world(rng: np.random.Generator, **columns) -> tuple[Workload, EngineParams]:
    seed, block = int(rng.integers(10**6)), int(rng.choice([1, 2, 3, 4, 7, 16]))
    workload = random_workload(seed, rate=float(rng.choice([2.0, 20.0, 200.0])), **columns)
    need = int(-(-(workload.prompt_tokens + workload.output_tokens).max() // block))
    size = {"kv_blocks": need + int(rng.integers(0, 60)), "block_size": block}
    return workload, EngineParams(
        **size, max_num_seqs=int(rng.integers(1, 12)), max_num_batched_tokens=int(rng.integers(4, 200))
    )


def hits_of(problem, rec: Recording) -> np.ndarray:
    """The run's own hits as a schedule of the problem's items."""
    first = np.zeros(len(problem.rows), bool)
    first[np.unique(problem.rows, return_index=True)[1]] = True
    depth = np.where(first, rec.hit_tokens[problem.rows] // rec.block_size, 0)
    return np.clip(depth[problem.items.request] - problem.items.lo, 0, problem.items.amount)


def test_what_the_engine_hit_is_one_of_the_schedules() -> None:
    """Random worlds with preemptions, priorities, thresholds, every policy, steps decided ahead, fleets and horizons:
    its hits fit the items' capacity."""
    rng = np.random.default_rng(12)
    below = preempted = 0
    policies = ["lru", "clairvoyant", *POLICIES]
    for number in range(150):
        workload, params = world(rng, closed=bool(rng.integers(2)))
        params = replace(
            params,
            policy=policies[number % len(policies)],
            async_scheduling=bool(rng.integers(2)),
            preemption_victim=str(rng.choice(["fcfs", "fcfs", "lcf"])),
            long_prefill_token_threshold=int(rng.choice([0, 0, 5])),
            scheduler_policy=str(rng.choice(["fcfs", "fcfs", "priority"])),
            reserve_full_isl=bool(rng.integers(2)),
        )
        replicas, horizon_s = int(rng.integers(1, 4)), float(rng.choice([np.inf, np.inf, 2.0]))
        rec = run(
            workload,
            params,
            LinearSteps(),
            replicas=replicas,
            record_cache=True,
            horizon_s=horizon_s if horizon_s < np.inf else None,
        )
        for replica in range(replicas):
            problem = schedule_problem(workload, rec, replica)
            feasible(problem.items, problem.capacity, hits_of(problem, rec))
        best = schedule_optimum(workload, rec)
        assert best.gap == 0
        assert np.all(best.hit_tokens <= rec.ceiling_replica_tokens)
        below += rec.hit_tokens.sum() < best.bound_tokens
        preempted += rec.preemptions.sum() > 0
        if not params.long_prefill_token_threshold and params.scheduler_policy == "fcfs":
            assert order_optimum(workload, rec).bound_tokens >= best.bound_tokens
        split = split_evicted(rec.hit_tokens, best.hit_tokens, rec.ceiling_replica_tokens)
        np.testing.assert_array_equal(rec.hit_tokens + split.policy + split.memory, rec.ceiling_replica_tokens)
        assert best.bound_tokens - rec.hit_tokens.sum() == split.policy.sum() - split.gave_up.sum()
    assert below > 50
    assert preempted > 30


def test_clairvoyant_hits_the_optimum_of_its_schedule() -> None:
    """One replica, first come first served: exactly, when nobody generates what is cached already; never more
    otherwise."""
    rng = np.random.default_rng(13)
    equal = tight = 0
    for _ in range(150):
        workload, params = world(rng, n=80)
        workload = replace(
            workload,
            leaf=np.where(workload.tree.end[workload.leaf] <= workload.prompt_tokens, workload.leaf, 0).astype(
                np.int32
            ),
        )
        rec = run(workload, replace(params, policy="clairvoyant"), LinearSteps(), record_cache=True)
        if rec.preemptions.any():
            continue
        best = schedule_optimum(workload, rec)
        assert best.bound_tokens == rec.hit_tokens.sum()
        equal += 1
        tight += best.checkpoints > 0
    assert equal > 40
    assert tight > 25


def test_clairvoyant_fleets_may_skip_over_decode_steps() -> None:
    """What one replica admits changes what another should keep: stretches taken at once give the same run to the last
    bit."""
    rng = np.random.default_rng(16)
    evicted = 0
    for _ in range(40):
        workload, params = world(rng, closed=bool(rng.integers(2)))
        once, stepping = (
            run(
                workload,
                replace(params, policy="clairvoyant"),
                LinearSteps(),
                replicas=3,
                router="least-loaded",
                fast_forward=fast,
            )
            for fast in (True, False)
        )
        np.testing.assert_array_equal(once.hit_tokens, stepping.hit_tokens)
        np.testing.assert_array_equal(once.finish_s, stepping.finish_s)
        evicted += once.evicted_blocks
    assert evicted > 1000


def test_forecast_knows_where_the_next_use_of_a_run_changes() -> None:
    """One text of 40 tokens, blocks of 4: asked for up to 18, then up to 40 with the answer beyond 29, then whole."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 40], np.int64), np.zeros(2, np.int16))
    prompt, output = np.array([18, 29, 41]), np.array([22, 12, 1])
    workload = Workload(tree, np.array([0.0, 1, 2]), prompt, output, np.array([1, 1, 1], np.int32))
    forecast = Forecast(workload, EngineParams(kv_blocks=100, block_size=4))
    me, other = object(), object()

    def next_use(hi: int, seen_s: float = 0.0) -> tuple[int, int]:
        return forecast.next_use(1, hi, 0, me, seen_s)[:2]

    assert next_use(4) == (0, 0)  # the first request hits blocks 0 to 3
    assert next_use(9) == (NO_USE, 4)  # and computes 4 to 8 again
    forecast.admit(0, me, 5.0)
    assert next_use(7) == (1, 0)
    assert next_use(10) == (NO_USE, 7)
    forecast.admit(1, other, 6.0)
    assert next_use(7, seen_s=6.0) == (1, 0)  # not heard of yet
    assert next_use(10, seen_s=6.5) == (2, 0)
    forecast.admit(2, me, 7.0)
    assert next_use(10, seen_s=6.5) == (NO_USE, 0)


def test_forecast_cuts_off_the_block_that_the_next_request_leaves_incomplete() -> None:
    """The last token of an answer is never computed: the last of its 10 blocks is wanted by the request after it."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 40], np.int64), np.zeros(2, np.int16))
    workload = Workload(tree, np.array([0.0, 1]), np.array([18, 41]), np.array([22, 1]), np.array([1, 1], np.int32))
    workload.check()
    assert Forecast(workload, EngineParams(kv_blocks=100, block_size=4)).next_use(1, 10, 0, object(), 0.0)[:2] == (1, 9)


def test_order_optimum_holds_for_every_policy_and_counts_no_memory_for_answers_to_come() -> None:
    """An answer of 12 blocks is generated after a prompt of 15 has come and gone in a cache of 20; the next turn hits
    it."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 49], np.int64), np.zeros(2, np.int16))
    workload = Workload(
        tree, np.array([0.0, 1.5, 60.0]), np.array([8, 60, 53]), np.array([41, 1, 1]), np.array([1, 0, 1], np.int32)
    )
    bounds = set()
    for policy in ("lru", "lfu", "clairvoyant"):
        rec = run(workload, EngineParams(kv_blocks=20, block_size=4, policy=policy), UnitSteps(), record_cache=True)
        assert rec.hit_tokens.tolist() == [0, 0, 48]
        bounds.add(order_optimum(workload, rec).bound_tokens)
    assert bounds == {48}


def test_recording_the_cache_changes_nothing() -> None:
    workload, params = world(np.random.default_rng(14), closed=True)
    with_record, without = (run(workload, params, LinearSteps(), replicas=2, record_cache=on) for on in (True, False))
    for column in ("finish_s", "hit_tokens", "preemptions"):
        np.testing.assert_array_equal(getattr(with_record, column), getattr(without, column))
    with pytest.raises(ValueError, match="record_cache"):
        schedule_optimum(workload, without)


def test_a_share_says_what_it_is_a_share_of() -> None:
    workload, params = world(np.random.default_rng(15))
    rec = run(workload, params, LinearSteps(), record_cache=True)
    text = schedule_optimum(workload, rec).share(float(rec.hit_tokens.sum()))
    assert "of the optimum for this schedule (hit tokens, pinned blocks as they were, proved gap 0.00 %)" in text


def test_split_evicted_by_hand() -> None:
    """Depths hit 2, 5, 0; optimum 4, 3, 0; ceiling 6, 6, 4."""
    split = split_evicted(np.array([2, 5, 0]), np.array([4, 3, 0]), np.array([6, 6, 4]))
    assert split.policy.tolist() == [2, 0, 0]
    assert split.memory.tolist() == [2, 1, 4]
    assert split.gave_up.tolist() == [0, 2, 0]
    with pytest.raises(ValueError, match="request 1: hit 5"):
        split_evicted(np.array([2, 5]), np.array([4, 3]), np.array([6, 4]))


def test_command_prints_references_and_the_split(capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "--set",
        "run.duration_s=120",
        "--set",
        "engine.kv_blocks=2000",
        "--set",
        "cluster.replicas=1",
        "--set",
        "workload.loop=open",
    ]
    assert (
        main(
            [
                "optimum",
                str(ROOT / "examples" / "demo.toml"),
                "--policy",
                "lru,clairvoyant",
                "--depth-weight",
                "0.0167",
                "--json",
                *small,
            ]
        )
        == 0
    )
    lru, clairvoyant = json.loads(capsys.readouterr().out)
    assert lru["hit_tokens"] < clairvoyant["hit_tokens"] <= clairvoyant["schedule_optimum_tokens"]
    for row in (lru, clairvoyant):
        assert (
            row["hit_tokens"] + row["evicted_policy_tokens"] + row["evicted_memory_tokens"]
            == row["ceiling_replica_tokens"]
        )
        assert row["schedule_optimum_tokens"] <= row["order_optimum_tokens"]
        assert "prefill work, depth weight 0.0167" in row["prefill_work_share"]
