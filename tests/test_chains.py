"""What makes long sessions fast: chains of tree nodes and stretches of prefill steps. Nothing but speed may depend on
them.

python -m pytest tests/test_chains.py
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest

from sim.kvcache.ceilings import Coming, UnderWay
from sim.kvcache.chains import Paths
from sim.kvcache.policies import POLICIES
from sim.recording import COMPLETED
from sim.scenario import EngineParams
from sim.simulate import run
from sim.vllm import stretches
from sim.vllm.scheduler import VllmScheduler
from tests.fuzz import unequal
from tests.fuzz_policies import nodes_alone
from tests.worlds import LinearSteps, random_workload
from workloads.columns import PrefixTree, Workload


def sessions(seed: int, n_sessions: int = 8, turns: int = 9) -> Workload:
    """Two system prompts, sessions of many turns on them: a node for each turn's input and one for its answer, some
    answers dropped.

    Some turns are asked before the last answer is there, so that an answer is prefilled and generated at once.
    """
    rng = np.random.default_rng(seed)
    parent, end = [-1, 0, 0], [0, 37, 64]
    rows: list[tuple[int, int, int, int, float]] = []  # prompt, output, leaf, after, delay
    session = []
    for s in range(n_sessions):
        at, before = int(rng.integers(1, 3)), -1
        for _ in range(int(rng.integers(1, turns))):
            parent.append(at)
            end.append(end[at] + int(rng.integers(1, 40)))
            at, output = len(parent) - 1, int(rng.integers(1, 20))
            prompt, total = end[at], end[at] + output
            kept = output - int(rng.integers(0, 2))  # with or without the last token
            if rng.random() < 0.7 and kept:
                parent.append(at)
                end.append(prompt + kept)
                at = len(parent) - 1
            rows.append(
                (prompt, total - prompt, at, before if rng.random() < 0.8 else -1, float(rng.exponential(0.05)))
            )
            before = len(rows) - 1
            session.append(s)
    prompt, output, leaf, after, delay_s = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    workload = Workload(
        PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16)),
        np.where(after >= 0, np.nan, np.round(np.sort(rng.exponential(1.0, n)), 2)),
        prompt.astype(np.int64),
        output.astype(np.int64),
        leaf.astype(np.int32),
        session_id=np.array(session),
        after=after.astype(np.int64),
        delay_s=delay_s,
    )
    workload.check()
    return workload


def test_a_session_is_one_chain() -> None:
    """Root, a system prompt of 10 tokens, three turns of a session and another session; blocks of 4."""
    tree = PrefixTree(np.array([-1, 0, 1, 2, 3, 1], np.int32), np.array([0, 10, 21, 30, 43, 17]), np.zeros(6, np.int16))
    ends = np.array([21, 30, 43, 17])
    workload = Workload(tree, np.zeros(4), ends - 1, np.ones(4, np.int64), np.array([2, 3, 4, 5], np.int32))
    paths = Paths(workload, 4)
    assert [paths.build(r) for r in range(4)] == [
        [(1, 2), (2, 5)],
        [(1, 2), (2, 7)],
        [(1, 2), (2, 10)],
        [(1, 2), (5, 4)],
    ]
    with_tail = dataclasses.replace(
        workload, output_tokens=np.array([1, 4, 1, 1])
    )  # request 1 ends in blocks of its own, beside turn 3
    assert [Paths(with_tail, 4).build(r) for r in (1, 2)] == [[(1, 2), (2, 7), (7, 8)], [(1, 2), (2, 7), (4, 10)]]
    assert Paths(workload, 4, chains=False).build(2) == [(1, 2), (2, 5), (3, 7), (4, 10)]


@pytest.mark.parametrize("policy", POLICIES)
def test_chains_change_nothing(policy: str) -> None:
    evicted = 0
    for seed in range(6):
        workload = sessions(seed) if seed % 2 else random_workload(seed, closed=True)
        params = EngineParams(
            block_size=(1, 4, 7)[seed % 3],
            kv_blocks=(500, 130, 80)[seed % 3],
            policy=policy,
            max_num_seqs=8,
            max_num_batched_tokens=48,
        )
        chained = run(workload, params, LinearSteps(), replicas=1 + seed % 2)
        with nodes_alone():
            alone = run(workload, params, LinearSteps(), replicas=1 + seed % 2)
        assert next(unequal(alone, chained), "") == ""
        evicted += chained.evicted_blocks
    assert evicted > 500


# ---- prefill stretches
# ------------------------------------------------------------------------------------------------


def stretched(policy: str, seeds: int = 10) -> int:
    """Stepping equals fast-forward on sessions whose prompts need many steps; the stretches of prefill steps there
    were."""
    several, plan = 0, stretches.prefill_stretch

    def counted(scheduler: VllmScheduler, most: int) -> int:
        nonlocal several
        k = plan(scheduler, most)
        several += k > 1
        return k

    with patch.object(stretches, "prefill_stretch", counted):
        for seed in range(seeds):
            workload = sessions(seed, turns=14)
            params = EngineParams(
                block_size=(1, 4, 7)[seed % 3],
                kv_blocks=(600, 170, 90)[seed % 3],
                policy=policy,
                max_num_seqs=8,
                max_num_batched_tokens=13,
                async_scheduling=seed // 2 % 2 > 0,
            )
            options = {
                "replicas": 1 + seed % 3,
                "router": ("least-loaded", "round-robin")[seed % 2],
                "horizon_s": 1.7 if seed == 4 else None,
            }
            a, b = (
                run(workload, params, LinearSteps(), fast_forward=f, record_life=True, **options) for f in (False, True)
            )
            assert next(unequal(a, b), "") == "", seed
    return several


@pytest.mark.parametrize("policy", POLICIES)
def test_prefill_stretches_change_nothing(policy: str) -> None:
    assert stretched(policy) > 50


def _too_far(scheduler: VllmScheduler, most: int) -> int:
    (r, tokens), *_ = scheduler.chunks
    return 1 + min(most - 1, max(0, r.known - r.computed - 1) // tokens)


class _NoTails:
    """A workload that does not say who ends in blocks of its own."""

    def __init__(self, workload: Workload) -> None:
        self.tree, self.leaf = workload.tree, workload.leaf
        self.prompt_tokens = self.output_tokens = np.zeros(len(workload), np.int64)


def _chains_beside_tails(faulty: Callable) -> None:
    with patch("sim.kvcache.chains.first_of_chain", faulty):
        for seed in range(40):
            workload = random_workload(seed, closed=True)
            params = EngineParams(block_size=4, kv_blocks=60, policy="fifo", max_num_seqs=8, max_num_batched_tokens=48)
            chained = run(workload, params, LinearSteps())
            with nodes_alone():
                assert next(unequal(run(workload, params, LinearSteps()), chained), "") == ""


def one_session(turns: int) -> Workload:
    """One session whose every prompt is all that was said before and 30 tokens more; answers of 20 tokens."""
    turn = np.arange(turns)
    end = np.append(0, np.arange(1, 2 * turns + 1) * 25 + np.tile([5, 0], turns))
    return Workload(
        PrefixTree(np.arange(-1, 2 * turns, dtype=np.int32), end, np.zeros(2 * turns + 1, np.int16)),
        np.where(turn > 0, np.nan, 0.0),
        50 * turn + 30,
        np.full(turns, 20),
        (2 * turn + 2).astype(np.int32),
        session_id=np.zeros(turns, np.int64),
        after=turn - 1,
        delay_s=np.full(turns, 0.5),
    )


@pytest.mark.parametrize("keys", [{}, {"semantics": "trtllm"}], ids=["vllm", "trtllm"])
def test_a_session_of_many_turns_costs_as_much_a_turn(keys: dict) -> None:
    """Counted in calls of Python functions; with LRU. A policy that knows every turn's blocks apart, and SGLang's tree
    with a node for every turn, visit them all."""
    calls = []
    for turns in (60, 120):
        workload = one_session(turns)
        workload.check()
        params = EngineParams(kv_blocks=1000, block_size=16, **keys)
        count = 0

        def counted(frame, event, _) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            rec = run(workload, params, LinearSteps())
        finally:
            sys.setprofile(None)
        assert (rec.status == COMPLETED).all()
        assert rec.hit_tokens[-1] > 45 * turns
        calls.append(count)
    assert calls[1] < 2.2 * calls[0]


def test_planted_faults_are_noticed() -> None:
    faults = [
        (stretches, "prefill_stretch", _too_far),  # whatever else is in the step, and in memory
        (UnderWay, "depth", lambda *args: 0),  # other replicas see the blocks when the stretch is over
        (Coming, "depth", lambda self, *args: 1 << 40),  # or all of them when it begins
    ]
    for target, name, faulty in faults:
        with (
            patch.object(target, name, faulty),
            pytest.raises((AssertionError, AttributeError, IndexError, ValueError)),
        ):
            stretched("lru", 30)
    from sim.kvcache.chains import first_of_chain

    with pytest.raises((AssertionError, IndexError, ValueError)):
        _chains_beside_tails(lambda workload, block: first_of_chain(_NoTails(workload), block))  # type: ignore[arg-type]
