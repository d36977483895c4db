"""Clients that give up and try again, and a gateway that refuses: worlds worked out by hand, and what is conserved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.recording import ABANDONED, COMPLETED, NOT_ARRIVED, QUEUE_FULL, SHED, UNFINISHED
from sim.scenario import ClientConfig, EngineParams
from sim.simulate import run
from tests.fuzz import unequal
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError


def params(**more) -> EngineParams:
    return EngineParams(**({"kv_blocks": 1000, "block_size": 4, "async_scheduling": False} | more))


def client(**more) -> ClientConfig:
    return ClientConfig(**({"backoff_s": 0.0} | more))


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        {"timeout_s": 0.3, "first_token_timeout_s": 0.12, "retries": 2, "backoff_s": 0.05},
        {"first_token_timeout_s": 0.15, "retries": 1},
        {"timeout_s": 0.12},
    ],
    ids=str,
)
def test_nothing_is_lost_and_what_is_computed_is_useful_or_wasted(kind: dict, ahead: bool, semantics: str) -> None:
    gave_up = wasted = 0
    for seed in range(8):
        w = random_workload(seed, closed=seed % 2 == 0, rate=60.0)
        blocks = int((w.prompt_tokens + w.output_tokens).max()) // 4 + (60 if seed % 3 else 12)
        engine = {"async_scheduling": ahead} if semantics == "vllm" else {"overlap_schedule": ahead}
        if semantics == "vllm" and seed % 2:
            engine["max_num_queued_reqs"] = 12
        if semantics == "vllm" and seed % 4 == 3:
            engine["scheduler_policy"] = "priority"
        p = EngineParams(
            kv_blocks=blocks,
            block_size=4,
            semantics=semantics,
            max_num_batched_tokens=40,
            chunked_prefill_size=40,
            **engine,
        )
        world = {"replicas": 1 + seed % 2, "router": "least-loaded", "seed": seed, "client": client(**kind)}
        ends: list = []
        fast = run(w, p, LinearSteps(), on_end=ends.extend, **world)
        assert next(unequal(fast, run(w, p, LinearSteps(), fast_forward=False, **world)), "") == ""
        fate = np.bincount(fast.status, minlength=10)
        arrived = int((~np.isnan(fast.arrival_s)).sum())
        assert arrived == fate[COMPLETED] + fate[QUEUE_FULL] + fate[ABANDONED]
        assert fate[UNFINISHED] == 0
        for replica in ends:
            cache = replica.scheduler.cache
            assert cache.blank + cache.idle == cache.total
            assert (replica.scheduler.running_tokens, replica.scheduler.waiting_tokens) == (0, 0)
            assert replica.empty
        use = fast.clients
        assert use is not None
        assert (use.attempts[~np.isnan(fast.arrival_s)] >= 1).all()
        assert (use.attempts <= 1 + world["client"].retries).all()
        over = use.refusals + use.timeouts
        done = fast.status == COMPLETED
        assert (use.attempts[done] == over[done] + 1).all()
        gone = (fast.status == ABANDONED) | (fast.status == QUEUE_FULL)
        assert (use.attempts[gone] == over[gone]).all()
        computed = sum(int(s.n_decode.sum() + s.prefill_tokens.sum()) for s in fast.steps)
        useful = (w.prompt_tokens + w.output_tokens - 1 - fast.hit_tokens + fast.recomputed_tokens)[done].sum()
        assert computed == useful + use.wasted_tokens.sum()
        gave_up, wasted = gave_up + int(use.timeouts.sum()), wasted + int(use.wasted_tokens.sum())
    assert gave_up > 20
    assert wasted > 100
