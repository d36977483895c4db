"""Chains of tree nodes: what they join, and that nothing but speed depends on them.

    python -m pytest tests/test_chains.py
"""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sim.kvcache.base import Paths
from sim.kvcache.policies import POLICIES
from sim.scenario import EngineParams
from sim.simulate import run
from tests.fuzz import unequal
from tests.fuzz_policies import nodes_alone
from tests.worlds import LinearSteps, random_workload
from workloads.columns import PrefixTree, Workload


def sessions(seed: int, n_sessions: int = 8, turns: int = 9) -> Workload:
    """Two system prompts, sessions of many turns on them: a node for each turn's input and one for its answer, some answers dropped.

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
            rows.append((prompt, total - prompt, at, before if rng.random() < 0.8 else -1, float(rng.exponential(0.05))))
            before = len(rows) - 1
            session.append(s)
    prompt, output, leaf, after, delay_s = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    workload = Workload(
        PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16)),
        np.where(after >= 0, np.nan, np.round(np.sort(rng.exponential(1.0, n)), 2)), prompt.astype(np.int64), output.astype(np.int64),
        leaf.astype(np.int32), session_id=np.array(session), after=after.astype(np.int64), delay_s=delay_s,
    )  # fmt: skip
    workload.check()
    return workload


def test_a_session_is_one_chain() -> None:
    """Root, a system prompt of 10 tokens, three turns of a session and another session; blocks of 4."""
    tree = PrefixTree(np.array([-1, 0, 1, 2, 3, 1], np.int32), np.array([0, 10, 21, 30, 43, 17]), np.zeros(6, np.int16))
    ends = np.array([21, 30, 43, 17])
    workload = Workload(tree, np.zeros(4), ends - 1, np.ones(4, np.int64), np.array([2, 3, 4, 5], np.int32))
    paths = Paths(workload, 4)
    assert [paths.build(r) for r in range(4)] == [[(1, 2), (2, 5)], [(1, 2), (2, 7)], [(1, 2), (2, 10)], [(1, 2), (5, 4)]]
    with_tail = dataclasses.replace(workload, output_tokens=np.array([1, 4, 1, 1]))  # request 1 ends in blocks of its own, beside turn 3
    assert [Paths(with_tail, 4).build(r) for r in (1, 2)] == [[(1, 2), (2, 7), (7, 8)], [(1, 2), (2, 7), (4, 10)]]
    assert Paths(workload, 4, chains=False).build(2) == [(1, 2), (2, 5), (3, 7), (4, 10)]


@pytest.mark.parametrize("policy", POLICIES)
def test_chains_change_nothing(policy: str) -> None:
    evicted = 0
    for seed in range(6):
        workload = sessions(seed) if seed % 2 else random_workload(seed, closed=True)
        params = EngineParams(block_size=(1, 4, 7)[seed % 3], kv_blocks=(500, 130, 80)[seed % 3], policy=policy, max_num_seqs=8, max_num_batched_tokens=48)
        chained = run(workload, params, LinearSteps(), replicas=1 + seed % 2)
        with nodes_alone():
            alone = run(workload, params, LinearSteps(), replicas=1 + seed % 2)
        assert next(unequal(alone, chained), "") == ""
        evicted += chained.evicted_blocks
    assert evicted > 500
