"""The engine on worlds small enough to know every number, and fast-forward against stepping on random ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.decodes import Decodes
from sim.fleet.replica import Replica
from sim.recording import COMPLETED, KV_TOO_SMALL, SESSION_TRUNCATED, TOO_LONG, UNFINISHED, Recording
from sim.request import Request
from sim.scenario import EngineParams
from sim.simulate import run
from sim.vllm.scheduler import VllmScheduler
from sim.vllm.waiting import LongestPrefixQueue
from tests.fuzz import fleet_difference, unequal
from tests.fuzz_cases import random_case
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.columns import PrefixTree, Workload


def same(a: Recording, b: Recording) -> None:
    """Every column, step and sample equal to the last bit."""
    assert next(unequal(a, b), "") == ""


def test_the_blocks_of_steps_to_come_are_those_of_each():
    decodes: Decodes[Request] = Decodes(4)
    for i, base in enumerate((-12, -8, -7, -5)):
        decodes.join(Request(i, 40, 5, 0.0, []), base)
    for steps in range(9):
        for k in range(11):
            assert decodes.blocks_over(steps, k) == sum(decodes.blocks_at(steps + i) for i in range(k))


def textbook() -> Workload:
    """A = system 2,000 + Python 5,000; B = system + JavaScript 3,000; C = A's prompt + question 150; one after the
    other."""
    tree = PrefixTree(
        np.array([-1, 0, 1, 1], np.int32), np.array([0, 2000, 7000, 5000], np.int64), np.zeros(4, np.int16)
    )
    return Workload(
        tree,
        np.array([0.0, 100, 200]),
        np.array([7000, 5000, 7150]),
        np.ones(3, np.int64),
        np.array([2, 3, 2], np.int32),
    )


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("block", "new"), [(1, [7000, 3000, 150]), (16, [7000, 3000, 158]), (128, [7000, 3080, 238])])
def test_textbook(block: int, new: list[int], asynchronous: bool) -> None:
    params = EngineParams(kv_blocks=40_000 // block, block_size=block, async_scheduling=asynchronous)
    r = run(textbook(), params, UnitSteps())
    assert (textbook().prompt_tokens - r.hit_tokens).tolist() == new


@pytest.mark.parametrize("asynchronous", [False, True])
def test_lives_have_no_holes_and_end_at_the_finish(asynchronous: bool) -> None:
    """Under preemption, of which asynchronous scheduling knows a kind that is admitted again at once."""
    preempted = 0
    for seed in range(12):
        w = random_workload(seed, rate=500.0)
        blocks = int(-(-(w.prompt_tokens + w.output_tokens).max() // 4)) + 8
        r = run(
            w,
            EngineParams(kv_blocks=blocks, block_size=4, async_scheduling=asynchronous),
            LinearSteps(),
            record_life=True,
        )
        preempted += int(r.preemptions.sum())
        assert r.life is not None
        for life, finish_s in zip(r.life, r.finish_s, strict=True):
            assert (life[0][0], life[-1][2]) == ("queued", finish_s)
            assert all(a[2] == b[1] for a, b in pairwise(life) if a[0] != "prefill")
    assert preempted > 100


def test_two_requests_exact_log() -> None:
    """Budget 8, block 4: prefill of 10 takes two chunks, then the newcomer joins; ends are whole seconds."""
    w = plain([0.0, 1.5], [10, 3], [3, 2])
    log: list = []
    params = EngineParams(kv_blocks=10, block_size=4, max_num_batched_tokens=8, async_scheduling=False)
    r = run(w, params, UnitSteps(), step_log=log)
    assert [(start, tokens) for _, start, tokens, *_ in log] == [
        (0.0, [(0, 8)]),
        (1.0, [(0, 2)]),
        (2.0, [(0, 1), (1, 3)]),
        (3.0, [(0, 1), (1, 1)]),
    ]
    assert r.first_token_s.tolist() == [2.0, 3.0]
    assert r.finish_s.tolist() == [4.0, 4.0]
    assert r.admit_s.tolist() == [0.0, 2.0]


def test_two_requests_exact_log_asynchronous() -> None:
    """The same: the newcomer of 1.5 finds the step [2, 3) decided, and joins at 3."""
    w = plain([0.0, 1.5], [10, 3], [3, 2])
    log: list = []
    params = EngineParams(kv_blocks=10, block_size=4, max_num_batched_tokens=8)
    r = run(w, params, UnitSteps(), step_log=log)
    assert [(start, tokens) for _, start, tokens, *_ in log] == [
        (0.0, [(0, 8)]),
        (1.0, [(0, 2)]),
        (2.0, [(0, 1)]),
        (3.0, [(0, 1), (1, 3)]),
        (4.0, [(1, 1)]),
    ]
    assert [waiting for *_, waiting in log] == [0, 0, 0, 0, 0]  # the engine had not seen it
    assert r.first_token_s.tolist() == [2.0, 4.0]
    assert r.finish_s.tolist() == [4.0, 5.0]
    assert r.admit_s.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(("ahead", "first_token_s"), [(None, 4.0), (False, 4.0), (True, 5.0)])
def test_asynchronous_an_arrival_waits_for_a_step_already_decided(ahead: bool | None, first_token_s: float) -> None:
    """It arrives in the step [2, 3): the next one, [3, 4), was decided when that began. Where the engine idles nobody
    waits."""
    w = plain([0.0, 2.5, 50.0], [3, 3, 3], [10, 2, 2])
    params = EngineParams(kv_blocks=20, block_size=4, async_scheduling=ahead is not None, calls_ahead=bool(ahead))
    r = run(w, params, UnitSteps())
    assert r.first_token_s.tolist() == [1.0, first_token_s, 51.0]
    same(r, run(w, params, UnitSteps(), fast_forward=False))


@pytest.mark.parametrize(("asynchronous", "admit_s"), [(False, [0.0, 4.0]), (True, [0.0, 5.0])])
def test_asynchronous_the_finished_leave_a_step_later(asynchronous: bool, admit_s: list[float]) -> None:
    """Two places, one of them of a request that ends in the step [3, 4): who waits for it is not in the next one
    yet."""
    w = plain([0.0, 0.0, 1.0], [4, 4, 4], [9, 4, 1])
    params = EngineParams(kv_blocks=5, block_size=4, async_scheduling=asynchronous, calls_ahead=False, max_num_seqs=2)
    r = run(w, params, UnitSteps())
    assert r.finish_s[1] == 4.0  # its client knows as soon as ever
    assert [r.admit_s[0], r.admit_s[2]] == admit_s


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_cannot_change_is_one_event(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten chunks of a prompt, of which the last may share its step with others, then 299 decodes: three events, with
    asynchronous scheduling too. A second request that ends on the way, nobody waiting, cuts the decodes once."""
    stretches: list[int] = []
    complete = Replica._complete

    def counted(self: Replica) -> None:
        stretches.append(len(self._ends))
        complete(self)

    monkeypatch.setattr(Replica, "_complete", counted)
    params = EngineParams(kv_blocks=100, max_num_batched_tokens=100, async_scheduling=asynchronous)
    run(plain([0.0], [1000], [300]), params, UnitSteps())
    assert stretches == [9, 1, 299]
    stretches.clear()
    run(plain([0.0, 0.0], [50, 50], [300, 200]), params, UnitSteps())
    assert stretches == [1, 199, 100]


def test_asynchronous_fleets_fast_forward_as_they_step() -> None:
    """Every step, sample, finish time and hit, to the last bit."""
    for index in range(120):
        case = random_case(11, index, policies=("lru", "lru", "lfu"))
        case["config"].update(async_scheduling=True, calls_ahead=index % 4 > 0)
        assert fleet_difference(case, seed=index) == "", case


def test_asynchronous_an_arrival_at_the_start_of_a_stretch_is_in_its_second_step() -> None:
    """Request 2 follows request 0 at once: it comes when the step in which that ended is over, and the next decided."""
    w = plain([0.0, 0.0, np.nan], [3, 3, 3], [4, 30, 2], after=np.array([-1, -1, 0]), delay_s=np.zeros(3))
    params = EngineParams(kv_blocks=20, block_size=4, async_scheduling=True)
    r = run(w, params, UnitSteps())
    assert (r.arrival_s[2], r.admit_s[2]) == (4.0, 5.0)
    same(r, run(w, params, UnitSteps(), fast_forward=False))


def test_life_of_a_preempted_request() -> None:
    """Two requests outgrow four blocks of 4: the later one gives way, is recomputed, and its life says so."""
    w = plain([0.0, 0.0], [7, 7], [6, 4])
    r = run(w, EngineParams(kv_blocks=4, block_size=4, caching=False), UnitSteps(), record_life=True)
    assert r.preemptions.tolist() == [0, 1]
    assert r.life is not None
    assert [(p, a, b) for p, a, b, _ in r.life[1]] == [
        ("queued", 0.0, 0.0),
        ("prefill", 0.0, 1.0),
        ("decode", 1.0, 2.0),
        ("preempted", 2.0, 6.0),
        ("prefill", 6.0, 7.0),
        ("decode", 7.0, 8.0),
    ]
    assert r.recomputed_tokens.tolist() == [0, 8]
    assert r.finish_s.tolist() == [6.0, 8.0]


def test_turned_away_is_counted_and_ends_the_session() -> None:
    w = plain(
        [0.0, np.nan, np.nan, np.nan, 0.0, 0.0],
        [10, 90, 5, 5, 500, 60],
        [2] * 6,
        after=np.array([-1, 0, 1, 2, -1, -1]),
        session_id=np.array([0, 0, 0, 7, 1, 2]),
        delay_s=np.ones(6),
    )
    r = run(w, EngineParams(kv_blocks=10, block_size=4, max_model_len=64), UnitSteps())
    assert r.status.tolist() == [
        COMPLETED,
        SESSION_TRUNCATED,
        2,
        COMPLETED,
        TOO_LONG,
        KV_TOO_SMALL,
    ]  # the next session goes on
    assert np.isnan(r.arrival_s[2])


def test_horizon_leaves_unfinished() -> None:
    r = run(plain([0.0, 1.0], [4, 4], [50, 50]), EngineParams(kv_blocks=100, block_size=4), UnitSteps(), horizon_s=20.0)
    assert r.status.tolist() == [UNFINISHED, UNFINISHED]
    assert r.end_s == 20.0


def test_closed_loop_generated_tokens_hit() -> None:
    """Turn 2 = turn 1 (100) + its answer (50) + 50 new: at block size 1 all but the last generated token are cached."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 150], np.int64), np.zeros(2, np.int16))
    w = Workload(
        tree,
        np.array([0.0, np.nan]),
        np.array([100, 200]),
        np.array([50, 10]),
        np.array([1, 1], np.int32),
        after=np.array([-1, 0]),
        delay_s=np.array([0.0, 3.0]),
        session_id=np.zeros(2, np.int64),
    )
    r = run(w, EngineParams(kv_blocks=1000, block_size=1), UnitSteps())
    assert r.hit_tokens.tolist() == [0, 149]
    assert r.arrival_s[1] == r.finish_s[0] + 3.0


def test_fixed_concurrency_keeps_n_sessions_active() -> None:
    w = plain(np.zeros(9), [4] * 9, [5] * 9, concurrency=3)
    r = run(w, EngineParams(kv_blocks=100, block_size=4), UnitSteps())
    assert r.arrival_s.tolist() == [0, 0, 0, 5, 5, 5, 10, 10, 10]


def test_least_loaded_spreads_by_tokens() -> None:
    w = plain([0.0, 0.1, 0.2, 0.3], [1000, 10, 10, 10], [5] * 4)
    r = run(w, EngineParams(kv_blocks=1000), UnitSteps(), replicas=2, router="least-loaded")
    assert r.replica.tolist() == [0, 1, 1, 1]


def test_a_replicas_ceiling_is_its_own_and_the_fleets_that_of_all() -> None:
    """One prompt of two full blocks and a token, on each of two replicas in turn."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 9], np.int64), np.zeros(2, np.int16))
    w = Workload(tree, np.arange(3) * 100.0, np.full(3, 9), np.ones(3, np.int64), np.ones(3, np.int32))
    r = run(w, EngineParams(kv_blocks=10, block_size=4), UnitSteps(), replicas=2, router="round-robin")
    assert r.replica.tolist() == [0, 1, 0]
    assert r.hit_tokens.tolist() == r.ceiling_replica_tokens.tolist() == [0, 0, 8]
    assert r.ceiling_fleet_tokens.tolist() == [0, 8, 8]


def test_lfu_keeps_what_lru_loses() -> None:
    """A hot prompt asked for twice, then a scan that fills the cache: LRU has lost the hot prompt, LFU has not."""
    prompts = [16, 16, 40, 40, 16]
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 16], np.int64), np.zeros(2, np.int16))
    w = Workload(
        tree, np.arange(5) * 50.0, np.array(prompts), np.ones(5, np.int64), np.array([1, 1, 0, 0, 1], np.int32)
    )
    hits = {
        p: run(w, EngineParams(kv_blocks=13, block_size=4, policy=p), UnitSteps()).hit_tokens.tolist()
        for p in ("lru", "lfu")
    }
    assert hits == {"lru": [0, 12, 0, 0, 0], "lfu": [0, 12, 0, 0, 12]}


def test_same_seed_same_bytes_and_no_interference() -> None:
    a, b = random_workload(1), random_workload(2)
    params = EngineParams(kv_blocks=40, block_size=4)
    first = run(a, params, LinearSteps(), replicas=3, router="random", seed=5)
    run(b, params, LinearSteps(), replicas=3, router="random", seed=6)
    same(first, run(a, params, LinearSteps(), replicas=3, router="random", seed=5))
    other = run(a, params, LinearSteps(), replicas=3, router="random", seed=6)
    assert (first.replica != other.replica).any()


LPM_JOINS = {"seed": 937650, "block": 2, "replicas": 1, "policy": "lru", "router": "round-robin", "blocks": 32}
LPM_JOINS |= {"closed": True, "seqs": 2, "budget": 6, "threshold": 0, "caching": True, "order": "lpm", "rate": 2.0}


@example(**LPM_JOINS, reserve=True, asynchronous=True, victim="fcfs")  # who arrives in a stretch may be the next
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    block=st.sampled_from([1, 2, 3, 4, 7, 16]),
    replicas=st.integers(1, 3),
    policy=st.sampled_from(["lru", "lfu"]),
    router=st.sampled_from(["round-robin", "random", "least-loaded"]),
    blocks=st.integers(0, 60),
    closed=st.booleans(),
    seqs=st.integers(1, 12),
    budget=st.integers(4, 80),
    threshold=st.sampled_from([0, 0, 5]),
    caching=st.booleans(),
    order=st.sampled_from(["fcfs", "priority", "lpm", "vtc"]),
    reserve=st.booleans(),
    rate=st.sampled_from([2.0, 20.0, 200.0]),
    asynchronous=st.booleans(),
    victim=st.sampled_from(["fcfs", "fcfs", "lcf"]),
)
def test_fast_forward_is_stepping(
    seed,
    block,
    replicas,
    policy,
    router,
    blocks,
    closed,
    seqs,
    budget,
    threshold,
    caching,
    order,
    reserve,
    rate,
    asynchronous,
    victim,
):
    """Random scenarios, tight memory and budgets included: identical to the last bit, and the books balance."""
    w = random_workload(seed, closed=closed, rate=rate)
    w = replace(w, tenant_id=w.priority, tenant_names=("a", "b", "c"))
    need = int(-(-(w.prompt_tokens + w.output_tokens).max() // block))
    params = EngineParams(
        kv_blocks=need + blocks,
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        scheduler_policy=order,
        caching=caching,
        policy=policy,
        reserve_full_isl=reserve,
        max_model_len=10**6,
        async_scheduling=asynchronous,
        preemption_victim=victim,
    )
    fast = run(w, params, LinearSteps(), replicas=replicas, router=router, seed=seed)
    same(fast, run(w, params, LinearSteps(), replicas=replicas, router=router, seed=seed, fast_forward=False))
    assert (fast.status == COMPLETED).all()
    assert (fast.hit_tokens <= fast.ceiling_replica_tokens).all()
    assert (fast.ceiling_replica_tokens <= fast.ceiling_fleet_tokens).all()
    assert (fast.ceiling_fleet_tokens <= w.prompt_tokens - 1).all()
    assert (fast.first_token_s <= fast.finish_s).all()
    assert (fast.admit_s < fast.first_token_s).all()
    for steps in fast.steps:
        assert (steps.duration_s > 0).all()
    no_preemption = fast.preemptions.sum() == 0
    if no_preemption:
        computed = sum(int(s.n_decode.sum()) + int(s.prefill_tokens.sum()) for s in fast.steps)
        assert computed == int((w.prompt_tokens - fast.hit_tokens + w.output_tokens - 1).sum())


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_books_balance_after_every_step(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run and count of the cache after every step, under preemption."""
    checked = []
    complete = VllmScheduler.complete

    def complete_and_check(self: VllmScheduler) -> list[int]:
        done = complete(self)
        self.cache.check()  # type: ignore[attr-defined]
        checked.append(self.cache.idle)
        return done

    monkeypatch.setattr(VllmScheduler, "complete", complete_and_check)
    preempted = 0
    for seed in range(8):
        w = random_workload(seed, rate=500.0)
        need = int(-(-(w.prompt_tokens + w.output_tokens).max() // 4))
        r = run(w, EngineParams(kv_blocks=need + 8, block_size=4, policy=policy), LinearSteps(), fast_forward=False)
        preempted += int(r.preemptions.sum())
    assert preempted > 0
    assert max(checked) > 0


def test_the_longest_cached_prefix_goes_first() -> None:
    """One at a time: the third request begins as the first did, and passes the second."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 8], np.int64), np.zeros(2, np.int16))
    leaf, tokens = np.array([1, 0, 1], np.int32), np.array([9, 9, 9], np.int64)
    w = Workload(tree, np.array([0.0, 0.1, 0.2]), tokens, np.array([3, 3, 3], np.int64), leaf)
    order = {}
    for rule in ("fcfs", "lpm"):
        params = EngineParams(kv_blocks=40, block_size=4, max_num_seqs=1, scheduler_policy=rule)
        order[rule] = np.argsort(run(w, params, UnitSteps()).admit_s).tolist()
    assert order == {"fcfs": [0, 1, 2], "lpm": [0, 2, 1]}


def test_the_longest_prefix_is_looked_for_among_the_first_of_the_waiting() -> None:
    def queue() -> LongestPrefixQueue:
        waiting = LongestPrefixQueue(lambda i: SimpleNamespace(id=i))  # type: ignore[arg-type,return-value]
        for i in range(200):
            waiting.add(i)
        return waiting

    for best, head in ((0, 0), (100, 100), (127, 127), (128, 0)):
        waiting = queue()
        assert waiting.promote(lambda r, best=best: int(r.id == best)).id == head
        assert waiting.ids() == [head, *(i for i in range(200) if i != head)]
