"""Routers: the least loaded replica, found without looking at all of them.

    python -m pytest tests/test_router.py
"""
from __future__ import annotations

from unittest.mock import patch

import pytest

from sim.router import LeastLoaded
from sim.scenario import EngineParams
from sim.simulate import run
from tests.worlds import LinearSteps, random_workload

ENGINES = {
    "vllm": {"max_num_batched_tokens": 40}, "by priority": {"scheduler_policy": "priority", "max_num_batched_tokens": 40},
    "asynchronous": {"async_scheduling": True}, "sglang": {"semantics": "sglang", "schedule_policy": "fcfs"},
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_least_loaded_is_the_least_of_all(engine: str) -> None:
    """Pins, preemptions, stretches and finishes: every choice is the minimum over all replicas, ties to the lowest index."""
    choose, looked, chosen, preempted = LeastLoaded.choose, 0, 0, 0

    def checked(self, request, replicas):
        nonlocal looked, chosen
        least = min(replicas, key=lambda replica: (replica.load_tokens(), replica.index))
        with patch.object(type(replicas[0]), "load_tokens", autospec=True, side_effect=type(replicas[0]).load_tokens) as look:
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
