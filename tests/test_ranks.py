"""Attention data-parallel ranks: one replica whose schedulers step together. Tiny worlds by hand, then random ones.

python -m pytest tests/test_ranks.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.engine import Cache, Scheduler
from sim.engines import ENGINES
from sim.recording import COMPLETED, UNFINISHED
from sim.scenario import EngineParams, TierParams
from sim.simulate import run
from tests.test_engines import members
from tests.test_fleet import same, shaken
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces


class Together(LinearSteps):
    """The slowest rank's own step, and 1e-5 s for every token of all ranks."""

    def __init__(self, ranks: int, token_s: float = 1e-5, **terms):
        super().__init__(**terms)
        self.ranks, self.token_s = ranks, token_s

    def together(self, shapes):
        each = [self.step(*shape) for shape in shapes]
        tokens = sum(shape[1] + sum(new for new, _ in shape[0]) for shape in shapes)
        return max(seconds for seconds, _ in each) + self.token_s * tokens, max(code for _, code in each)

    def together_stretch(self, shapes, k):
        each = [self.decode_stretch(*shape[1:4], k) for shape in shapes]
        tokens = sum(shape[1] for shape in shapes)
        seconds = np.maximum.reduce([seconds for seconds, _ in each]) + self.token_s * tokens
        return seconds, np.maximum.reduce([codes for _, codes in each])


class UnitTogether(UnitSteps):
    """Every step of all ranks takes one second."""

    def __init__(self, ranks: int):
        self.ranks = ranks

    def together(self, shapes):
        return 1.0, 0

    def together_stretch(self, shapes, k):
        return self.decode_stretch(0, 0, 0, k)


def params(semantics: str = "vllm", ranks: int = 2, **given) -> EngineParams:
    """Scheduling a step ahead only where it is asked for."""
    plain_vllm = {"kv_blocks": 100, "block_size": 4, "async_scheduling": False}
    return EngineParams(**{**plain_vllm, "semantics": semantics, "ranks": ranks, **given})


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_rank_waits_for_the_slowest() -> None:
    """Rank 0 prefills 1,000 tokens while rank 1 decodes: both steps end together, whenever rank 1 could have been
    done."""
    times = Together(
        2, overhead_s=1.0, decode_s=0.0, context_s=0.0, longest_s=0.0, prefill_s=0.01, deep_s=0.0, token_s=0
    )
    rec = run(plain([0, 0], [1000, 10], [1, 3]), params(kv_blocks=400), times)
    assert rec.first_token_s.tolist() == [11.0, 11.0]
    assert rec.finish_s.tolist() == [11.0, 13.0]  # then two decodes alone
    assert len(rec.steps) == 1
    assert rec.steps[0].end_s.tolist() == [11.0, 12.0, 13.0]


def test_experts_see_the_tokens_of_all_ranks() -> None:
    times = Together(
        2, overhead_s=1.0, decode_s=0.0, context_s=0.0, longest_s=0.0, prefill_s=0.0, deep_s=0.0, token_s=0.5
    )
    rec = run(plain([0, 0], [4, 6], [2, 2]), params(), times)
    assert rec.first_token_s.tolist() == [6.0, 6.0]  # 1 + (4 + 6) / 2
    assert rec.finish_s.tolist() == [8.0, 8.0]


@pytest.mark.parametrize(
    ("given", "admitted_s"),
    [
        ({}, 6.0),
        ({"semantics": "sglang", "overlap_schedule": False}, 6.0),
        ({"semantics": "sglang"}, 7.0),
        ({"async_scheduling": True}, 7.0),
    ],
    ids=str,
)
def test_an_arrival_at_an_idle_rank_joins_at_the_next_step(given, admitted_s: float) -> None:
    """A long stretch of decodes on one rank is cut for it, also when the idle rank's last step was a prefill. Decided
    ahead, the next step has no place for it any more."""
    work = plain([0, 0, 5.5], [4, 4, 4], [50, 1, 2])
    rec = run(work, params(**given), UnitTogether(2))
    assert rec.finish_s[1] == 1.0
    assert (rec.admit_s[2], rec.first_token_s[2]) == (admitted_s, admitted_s + 1)
    assert rec.finish_s[2] == admitted_s + 2


def test_each_rank_has_a_cache_of_its_own() -> None:
    """The same prompt again hits on the rank that has it, not on the other; blocks are as many on each."""
    tree, leaf = from_pieces([[("p", 0, 40)]] * 3)
    work = replace(plain([0, 10, 20], [40] * 3, [1] * 3), tree=tree, leaf=leaf)
    in_turn = run(work, params("sglang", block_size=1, kv_blocks=50), UnitTogether(2))
    assert in_turn.hit_tokens.tolist() == [0, 0, 39]
    by_load = run(work, params(kv_blocks=12), UnitTogether(2))
    assert by_load.hit_tokens.tolist() == [0, 36, 36]  # an idle engine gives all to its first rank
    assert by_load.kv_blocks == 24
    assert in_turn.ceiling_fleet_tokens.tolist() == [0, 39, 39]


def test_requests_go_to_the_rank_with_the_fewest() -> None:
    """A waiting one counts four times: two run on rank 0 and one waits for rank 1's next step, so the last goes to rank
    0, which is full."""
    work = plain([0, 0, 0, 0, 1.5, 1.6], [4] * 6, [9, 1, 9, 1, 2, 2])
    rec = run(work, params(max_num_seqs=2), UnitTogether(2))
    assert rec.admit_s.tolist() == [0.0, 0.0, 0.0, 0.0, 2.0, 9.0]


# -- against replicas, and stepping ----------------------------------------------------------------------------------

KINDS = {
    "vllm": {"async_scheduling": False},
    "vllm, one block at a time": {"kv_blocks": 26, "max_num_seqs": 4, "async_scheduling": False},
    "asynchronous": {"async_scheduling": True, "kv_blocks": 30},
    "sglang": {"semantics": "sglang", "block_size": 1, "kv_blocks": 150, "chunked_prefill_size": 16},
    "tier": {"tiers": (TierParams("ram", 200, 1e6, 0.001, 4096),), "kv_blocks": 40},
}


def _asked(kind: str, **given) -> EngineParams:
    return EngineParams(**{"kv_blocks": 60, "block_size": 4, "max_num_seqs": 8, **KINDS[kind], **given})


@pytest.mark.parametrize("kind", KINDS)
def test_stepping_or_not_is_the_same(kind: str) -> None:
    preempted = hits = 0
    for seed in range(6):
        work = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed % 3 // 2])
        asked = _asked(kind, ranks=3)
        fast, again, stepped = (
            run(work, asked, Together(3), replicas=2, fast_forward=fast) for fast in (True, True, False)
        )
        for other in (again, stepped):
            for name in ("admit_s", "first_token_s", "finish_s", "hit_tokens", "status", "preemptions", "replica"):
                one, two = getattr(fast, name), getattr(other, name)
                assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), (name, seed)
            for one, two in zip(fast.steps, other.steps, strict=True):
                assert np.array_equal(one.end_s, two.end_s)
        served = fast.status == COMPLETED
        assert not (fast.status == UNFINISHED).any()
        assert (fast.finish_s > fast.arrival_s)[served].all()
        preempted, hits = preempted + int(fast.preemptions.sum()), hits + int(fast.hit_tokens.sum())
    assert hits > 0
    assert preempted > 0 or kind not in ("vllm, one block at a time", "asynchronous")


@pytest.mark.parametrize("kind", ["vllm", "vllm, one block at a time", "sglang"])
def test_without_waiting_for_each_other_ranks_are_replicas(kind: str, monkeypatch) -> None:
    """Steps of one second and arrivals at whole seconds: in lock-step nobody waits, so ranks in turn are replicas in
    turn."""
    engine = ENGINES[_asked(kind).semantics]
    monkeypatch.setitem(ENGINES, _asked(kind).semantics, replace(engine, ranks_in_turn=True))
    for seed in range(4):
        drawn = random_workload(seed)
        work = replace(drawn, arrival_s=np.floor(drawn.arrival_s * 20))
        ranks = run(work, _asked(kind, ranks=3), UnitTogether(3))
        replicas = run(work, _asked(kind), UnitSteps(), replicas=3)
        for name in ("admit_s", "first_token_s", "finish_s", "hit_tokens", "preemptions", "ceiling_replica_tokens"):
            one, two = getattr(ranks, name), getattr(replicas, name)
            assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), (name, seed)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tier"])
def test_a_replica_with_ranks_may_fail_and_drain(kind: str) -> None:
    for seed in range(4):
        work = random_workload(seed, closed=seed % 2 == 1)
        given = {"replicas": 2, "router": "least-loaded", "horizon_s": 600.0, "processes": [shaken(seed)]}
        rec, stepped = (
            run(work, _asked(kind, ranks=2), Together(2), **given, fast_forward=fast) for fast in (True, False)
        )
        same(rec, stepped)
        assert not (rec.status == UNFINISHED).any()


def test_a_tier_in_parts_is_the_whole_tier_of_its_replica() -> None:
    """Room and bandwidth are those of all ranks together, and the link's busy time is a share of one link."""
    work, tier = random_workload(0, rate=200.0), TierParams("ram", 200, 1e9, 0.0, 4096)
    use = run(work, _asked("tier", ranks=2, tiers=(tier,)), Together(2), replicas=3).tiers[0]
    assert (use.capacity_blocks, use.bandwidth_bytes_s) == (400, 2e9)
    assert use.loaded_bytes == use.loaded_blocks * 4096 > 0
    assert use.link_busy_s == pytest.approx(use.loaded_bytes / use.bandwidth_bytes_s)


def test_the_step_log_tells_of_all_ranks() -> None:
    rows: list[tuple] = []
    run(plain([0, 0], [4, 6], [2, 2]), params(), UnitTogether(2), step_log=rows)
    assert rows[0] == (0, 0.0, [(0, 4), (1, 6)], [], 3, 0, 197, 2, 0)
    assert [row[1:3] for row in rows] == [(0.0, [(0, 4), (1, 6)]), (1.0, [(0, 1), (1, 1)])]


@pytest.mark.parametrize(
    ("given", "step_time", "says"),
    [
        ({"record_cache": True}, Together(2), "attention_dp = 2 with an optimum"),
        ({"oracle": True}, Together(2), "attention_dp = 2 with an optimum, an oracle"),
        ({}, LinearSteps(), "expected step times of that many ranks together"),
        ({}, Together(4), "attention_dp = 2: expected step times of that many ranks"),
    ],
)
def test_what_ranks_cannot_do_is_refused(given, step_time, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run(plain([0], [4], [2]), params(), step_time, **given)


def test_ranks_have_all_that_a_scheduler_has() -> None:
    replicas: list = []
    run(random_workload(0), params(), Together(2), on_end=replicas.extend)
    scheduler = replicas[0].scheduler
    assert [name for name in members(Scheduler) if not hasattr(scheduler, name)] == []
    assert [name for name in members(Cache) if not hasattr(scheduler.cache, name)] == []
