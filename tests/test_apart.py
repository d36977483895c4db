"""Replicas simulated one after the other against the same on one clock: equal to the last bit.

python -m pytest tests/test_apart.py
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from kvcast import api, load_scenario, text
from kvcast.pools.beside import copies, cores_free
from sim.fleet import apart
from sim.fleet.hopeless import Hopeless
from sim.recording import Recording
from sim.scenario import ClientConfig, EngineParams, RunConfig, SloConfig, Speculation, TierParams
from sim.simulate import run
from tests.worlds import LinearSteps, UnitSteps, random_workload
from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError

linux = pytest.mark.skipif(sys.platform != "linux", reason="a process is copied where the system can")
STEPS = ("end_s", "duration_s", "coverage", "n_decode", "prefill_tokens")
SAMPLES = ("t_s", "blocks_in_use", "blocks_cached_idle", "running", "waiting")


def same(one: Recording, other: Recording) -> None:
    """Every column of both; the gaps in whatever order replicas have told of them."""
    for name in (field.name for field in fields(Recording) if not field.name.startswith("gaps_")):
        a, b = getattr(one, name), getattr(other, name)
        if name in ("steps", "samples"):
            assert len(a) == len(b)
            for mine, its in zip(a, b, strict=True):
                for column in STEPS if name == "steps" else SAMPLES:
                    assert np.array_equal(getattr(mine, column), getattr(its, column)), (name, column)
                assert name == "samples" or mine.work == its.work
        elif name == "sent_s" and a is not None:
            assert all(np.array_equal(mine, its) for mine, its in zip(a, b, strict=True))
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, name
            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name
        elif name == "verified" and a is not None:
            assert (a.rows, a.drafts, a.accepted) == (b.rows, b.drafts, b.accepted)
            assert all(np.array_equal(mine, its) for mine, its in zip(a.emitted, b.emitted, strict=True))
        else:
            assert a == b, name
    gaps = [
        sorted(zip(rec.gaps_request.tolist(), rec.gaps_from_step.tolist(), rec.gaps_to_step.tolist(), strict=True))
        for rec in (one, other)
    ]
    assert gaps[0] == gaps[1]


def world(seed: int) -> dict:
    """Arguments of a run that may be taken apart."""
    rng = random.Random(seed)
    semantics = rng.choice(["vllm", "vllm", "sglang", "trtllm"])
    router = rng.choice(["session-hash", "session-hash", "round-robin", "random"])
    block = rng.choice([1, 4, 16]) if semantics != "trtllm" else 4
    keys: dict = {
        "kv_blocks": rng.choice([60, 200, 1000]) * 16 // block,
        "block_size": block,
        "semantics": semantics,
        "caching": rng.random() < 0.85,
        "policy": rng.choice(["lru", "lru", "lfu", "fifo", "slru", "random"]),
        "max_num_batched_tokens": rng.choice([16, 64, 2048]),
        "max_num_seqs": rng.choice([2, 8, 16]),
        "max_model_len": rng.choice([120, 10**6]),
        "step_overhead_s": rng.choice([0.0, 0.001]),
        "async_scheduling": rng.random() < 0.5,
        "overlap_schedule": rng.random() < 0.5,
    }
    if semantics == "vllm" and keys["caching"] and rng.random() < 0.3:
        keys["tiers"] = (TierParams("dram", 500, 1e9, block_bytes=2**16),)
    elif semantics == "vllm" and rng.random() < 0.2:
        keys["speculative"] = Speculation("eagle", (0.7, 0.5, 0.3))
    if rng.random() < 0.3:
        keys |= {"frontend_s": 0.01, "frontend_us_per_output_token": rng.choice([0.0, 200.0])}
    closed = router == "session-hash" and rng.random() < 0.7
    workload = random_workload(seed, 90, closed, longest=rng.choice([20, 60]), rate=rng.choice([1.0, 20.0, 100.0]))
    return {
        "workload": within_sessions(workload) if closed else workload,
        "params": EngineParams(**keys),
        "step_time": rng.choice([UnitSteps(), LinearSteps()]),
        "replicas": rng.choice([2, 3, 7]),
        "router": router,
        "seed": seed,
        "horizon_s": rng.choice([None, None, 1.5, 40.0]),
        "until_arrival_s": rng.choice([None, None, 0.7]),
        "record_life": rng.random() < 0.3,
    }


def within_sessions(workload):
    """Whoever waits for another is of its session."""
    session = np.arange(len(workload))
    for i, before in enumerate(workload.after.tolist()):
        if before >= 0:
            session[i] = session[before]
    return replace(workload, session_id=session)


def both(given: dict) -> tuple[Recording, Recording, int]:
    """The run apart and together, and how many replicas were simulated alone."""
    alone = []
    begin = apart.Histories.begin

    def counted(self, clock):
        alone.append(clock)
        return begin(self, clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart.Histories, "begin", counted)
        one = run(**given)
        n = len(alone)
        other = run(**given, apart=False)
    assert len(alone) == n
    return one, other, n


@pytest.mark.parametrize("seed", range(30))
def test_apart_is_together(seed: int) -> None:
    given = world(seed)
    one, other, alone = both(given)
    assert alone == given["replicas"]
    same(one, other)


@linux
@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_in_copies_of_this_process_is_together(seed: int) -> None:
    given = {**world(seed), "record_life": False}
    one, other = run(**given, copies=copies(2)), run(**given, apart=False)
    same(one, other)
    assert (one.notes, one.gaps_request.tolist()) == (other.notes, run(**given).gaps_request.tolist())


FLEET: dict = {
    "workload": random_workload(4, 1500, rate=100.0),
    "params": EngineParams(kv_blocks=2000),
    "step_time": LinearSteps(),
    "replicas": 3,
    "router": "session-hash",
}


@linux
def test_copies_are_at_work_and_their_progress_is_told() -> None:
    told: list[float] = []
    here = run(**FLEET, copies=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart, "_chunk", chunk_elsewhere(os.getpid(), apart._chunk))
        rec = run(**FLEET, copies=copies(2), on_clock=lambda now_s, share: told.append(share))
    same(rec, here)
    assert len(told) == 3
    assert told == sorted(told)
    assert told[-1] == pytest.approx(((rec.status == 0).sum() + len(rec.status)) / (2 * len(rec.status)))


def chunk_elsewhere(here: int, chunk: Callable, otherwise: Callable[[], object] = lambda: None) -> Callable:
    def checked(*given: Any) -> Any:
        assert os.getpid() != here
        if given[-1].start == 1:
            otherwise()
        return chunk(*given)

    return checked


@linux
def test_a_copy_that_is_killed_is_one_line_and_what_goes_wrong_in_one_is_raised_here() -> None:
    def fails() -> None:
        raise ValueError("no such thing")

    before = set(multiprocessing.active_children())  # of other tests
    for otherwise, error, words in (
        (lambda: os.kill(os.getpid(), signal.SIGKILL), InputError, r"part of the fleet was ended \(by signal 9\); exp"),
        (fails, ValueError, "no such thing"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(apart, "_chunk", chunk_elsewhere(os.getpid(), apart._chunk, otherwise))
            with pytest.raises(error, match=words):
                run(**FLEET, copies=copies(2))
        until_s = time.monotonic() + 60
        while set(multiprocessing.active_children()) - before:  # ended, and on a busy machine not gone yet
            assert time.monotonic() < until_s
            time.sleep(0.05)


def test_one_core_needs_no_copies() -> None:
    assert copies(1) is None
    assert cores_free() >= 1


SESSIONS = within_sessions(random_workload(4, 90, closed=True))
WHOLE = {
    "somebody waits for an answer from elsewhere": {"workload": random_workload(4, 90, closed=True)},
    "turns are dealt as answers come": {
        "router": "round-robin",
        "workload": within_sessions(random_workload(4, 90, closed=True)),
    },
    "a number of users": {"workload": replace(random_workload(4, 90), concurrency=5)},
    "a router that looks at replicas": {"router": "least-loaded"},
    "a router that may pass sessions on": {"router": "session-hash-bounded"},
    "a gateway that counts who waits": {"shed_over": 1},
    "clients that give up": {"client": ClientConfig(timeout_s=0.5)},
    "a process beside it": {"processes": [lambda fleet: (fleet.sleep(1.0) for _ in range(3))]},
    "a policy that knows the future": {"params": EngineParams(kv_blocks=200, policy="clairvoyant")},
    "events of caches": {"record_cache": True},
    "a log of steps": {"step_log": []},
    "somebody who wants the replicas": {"on_end": lambda replicas: None},
    "somebody who may stop it": {"hopeless": Hopeless(random_workload(4, 90), SloConfig(), RunConfig())},
    "a router that knows everything": {"oracle": True},
}


@pytest.mark.parametrize("why", WHOLE)
def test_what_looks_at_all_of_a_fleet_has_it_on_one_clock(why: str) -> None:
    given = {
        "workload": random_workload(4, 90),
        "params": EngineParams(kv_blocks=200),
        "step_time": LinearSteps(),
        "replicas": 3,
        "router": "session-hash",
    }
    assert both(given)[2] == 3
    assert both({**given, **WHOLE[why]})[2] == 0


def test_what_one_prefill_enters_meanwhile_another_replica_could_have_hit() -> None:
    """A prompt of 64 tokens, 4 a step, goes to the first replica at 0; at 5.5 the same one comes to the second, where
    the fleet has the 24 tokens of the six steps that have begun by then. Later it has all but the last block."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 64]), np.zeros(2, np.int16))
    ones = np.ones(4, np.int64)
    workload = Workload(
        tree, np.array([0.0, 5.5, 20.0, 40.0]), 64 * ones, ones, np.ones(4, np.int32), session_id=np.arange(4)
    )
    params = EngineParams(kv_blocks=100, block_size=4, max_num_batched_tokens=4, async_scheduling=False)
    for router, seed in (("round-robin", 0), ("session-hash", 0)):
        given = {"workload": workload, "params": params, "step_time": UnitSteps(), "replicas": 2, "router": router}
        one, other, alone = both({**given, "seed": seed})
        assert alone == 2
        same(one, other)
    rec = run(workload, params, UnitSteps(), replicas=2)
    assert rec.ceiling_fleet_tokens.tolist() == [0, 24, 60, 60]
    assert rec.ceiling_replica_tokens.tolist() == [0, 0, 60, 60]


def test_progress_goes_from_none_to_all_over_all_replicas() -> None:
    told: list[float] = []
    run(
        random_workload(4, 1500, rate=100.0),
        EngineParams(kv_blocks=2000),
        LinearSteps(),
        replicas=3,
        router="session-hash",
        on_clock=lambda now_s, share: told.append(share),
    )
    assert told == [pytest.approx(500 * (i + 1) / 3000) for i in range(len(told))]
    assert len(told) >= 5


def test_a_report_is_the_same_to_the_byte() -> None:
    given = load_scenario("examples/demo.toml")
    cluster = replace(given.cluster, replicas=4, router="session-hash")
    given = replace(given, cluster=cluster, run=replace(given.run, warmup_s=60.0, duration_s=300.0))
    prepared = api.prepare(given)
    one, other = (api.measure(prepared, api.record(prepared, apart=apart)) for apart in (True, False))
    assert text.to_json(api.as_document(one)) == text.to_json(api.as_document(other))
    for table in ("requests", "timeline", "cache", "sessions"):
        mine, its = getattr(one.report, table), getattr(other.report, table)
        assert [(name, column.tolist()) for name, column in mine.items() if column.dtype.kind != "f"] == [
            (name, column.tolist()) for name, column in its.items() if column.dtype.kind != "f"
        ]
        assert all(column.tobytes() == its[name].tobytes() for name, column in mine.items() if column.dtype != object)
