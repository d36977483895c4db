"""Routers: the least loaded replica, found without looking at all of them.

python -m pytest tests/test_router.py
"""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from sim.fleet.router import LeastLoaded
from sim.scenario import EngineParams
from sim.simulate import run
from tests.worlds import LinearSteps, random_workload
from workloads.columns import PrefixTree, Workload

ENGINES = {
    "vllm": {"max_num_batched_tokens": 40},
    "by priority": {"scheduler_policy": "priority", "max_num_batched_tokens": 40},
    "asynchronous": {"async_scheduling": True},
    "sglang": {"semantics": "sglang", "schedule_policy": "fcfs"},
    "behind a front end": {"max_num_batched_tokens": 40, "frontend_s": 0.3},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_least_loaded_is_the_least_of_all(engine: str) -> None:
    """Pins, preemptions, stretches and finishes: every choice is the minimum over all replicas, ties to the lowest
    index."""
    choose, looked, chosen, preempted = LeastLoaded.choose, 0, 0, 0

    def checked(self, request, replicas):
        nonlocal looked, chosen
        least = min(replicas, key=lambda replica: (replica.load_tokens(), replica.index))
        with patch.object(
            type(replicas[0]), "load_tokens", autospec=True, side_effect=type(replicas[0]).load_tokens
        ) as look:
            found = choose(self, request, replicas)
        looked, chosen = looked + look.call_count, chosen + 1
        assert found is least
        return found

    with patch.object(LeastLoaded, "choose", checked):
        for seed in range(8):
            params = EngineParams(kv_blocks=40, block_size=4, max_num_seqs=8, **ENGINES[engine])
            workload = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed // 4])
            preempted += int(run(workload, params, LinearSteps(), replicas=6, router="least-loaded").preemptions.sum())
    assert chosen > 300
    assert looked < 6 * chosen
    assert preempted > 0 or engine == "sglang"  # it keeps room for what its requests will generate


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
@pytest.mark.parametrize("router", ["least-loaded", "session-affinity"])
def test_what_is_in_the_front_end_counts_as_load(router: str, semantics: str) -> None:
    """28 requests at once: seven to each replica, and a 5 ms front end delays every one of them by just that."""
    n = 28
    tree = PrefixTree(parent=np.array([-1]), end=np.array([0]), layer=np.array([0]))
    workload = Workload(tree, np.zeros(n), np.full(n, 8000), np.full(n, 200), leaf=np.zeros(n, np.int32))
    ttft_s = {}
    for frontend_s in (0.0, 0.005):
        params = EngineParams(kv_blocks=60_000, frontend_s=frontend_s, semantics=semantics)
        recording = run(workload, params, LinearSteps(), replicas=4, router=router)
        assert np.bincount(recording.replica).tolist() == [7, 7, 7, 7]
        ttft_s[frontend_s] = recording.first_token_s - recording.arrival_s
    assert ttft_s[0.005] == pytest.approx(ttft_s[0.0] + 0.005)


def test_a_session_stays_where_it_began() -> None:
    """Later turns go to the first one's replica, the first to the least loaded, and the history is hit there."""
    hits = {}
    for router in ("session-affinity", "round-robin"):
        hit = 0
        for seed in range(6):
            workload = random_workload(seed, closed=True, rate=50.0)
            recording = run(
                workload, EngineParams(kv_blocks=400, block_size=4), LinearSteps(), replicas=3, router=router
            )
            session = workload.column("session_id")
            if router == "session-affinity":
                homes = {(int(s), int(r)) for s, r in zip(session, recording.replica, strict=True) if r >= 0}
                assert len(homes) == len({s for s, _ in homes}) > 3
                assert len({replica for _, replica in homes}) == 3
            hit += int(recording.hit_tokens.sum())
        hits[router] = hit
    assert hits["session-affinity"] > hits["round-robin"]


def test_without_sessions_affinity_is_least_loaded() -> None:
    workload = random_workload(3, rate=100.0)
    workload = replace(workload, session_id=None, after=None, delay_s=None, turn=None)
    params = EngineParams(kv_blocks=60, block_size=4, max_num_seqs=8)
    one, other = (
        run(workload, params, LinearSteps(), replicas=4, router=router)
        for router in ("session-affinity", "least-loaded")
    )
    assert one.replica.tolist() == other.replica.tolist()
    assert len(set(one.replica.tolist())) == 4
