"""Stable, unstable or too short to tell: queues whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim.measure.report import build_report
from sim.measure.stability import BATCHES, T_975, T_9995, Stability, assess, assess_fleet, in_system
from sim.scenario import EngineParams, Scenario
from sim.simulate import run
from tests.worlds import UnitSteps, plain
from workloads.config import WorkloadConfig


def single_server(arrival: np.ndarray, service: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start of service and departure of a first-come queue (Lindley), vectorised."""
    done = service.cumsum()
    free = np.maximum.accumulate(arrival - (done - service))
    return free + done - service, free + done


def queue(rho: float, n: int, seed: int, service: str = "D") -> Stability:
    rng = np.random.default_rng(seed)
    arrival = rng.exponential(1 / rho, n).cumsum()
    work = np.ones(n) if service == "D" else rng.exponential(1.0, n)
    start, finish = single_server(arrival, work)
    return assess(arrival, start, finish, np.maximum(1, (1000 * work).astype(int)), 0.0, float(arrival[-1]))


def test_md1_at_095_is_stable_and_at_105_unstable() -> None:
    calls = {rho: [queue(rho, 20_000, seed).stable for seed in range(60)] for rho in (0.95, 1.05)}
    assert calls[0.95].count(False) == 0
    assert calls[0.95].count(True) >= 57
    assert calls[1.05].count(True) == 0
    assert calls[1.05].count(False) >= 57


@pytest.mark.parametrize("n", [1_000, 5_000, 20_000])
def test_no_length_makes_a_wrong_call_common(n: int) -> None:
    assert sum(queue(0.95, n, s).stable is False for s in range(60)) <= 2
    assert sum(queue(1.05, n, s).stable is True for s in range(60)) <= 2


def test_random_service_times() -> None:
    calls = {rho: [queue(rho, 40_000, seed, "M").stable for seed in range(30)] for rho in (0.9, 1.1)}
    assert calls[0.9].count(True) == 30
    assert calls[1.1].count(False) == 30


def test_a_backlog_grows_by_what_is_not_served() -> None:
    judged = queue(1.5, 20_000, 1)
    assert judged.stable is False
    assert judged.growth_requests_per_s == pytest.approx(0.5, rel=0.1)
    assert judged.share == pytest.approx(1 / 3, rel=0.1)


def test_a_finite_trace_that_drains_is_judged_by_its_arrivals() -> None:
    arrival = np.linspace(0, 1000, 2000)  # twice what the server can do; it is all served in the end
    start, finish = single_server(arrival, np.ones(2000))
    assert finish[-1] == pytest.approx(2000)
    assert assess(arrival, start, finish, np.ones(2000), 0.0, 1000.0).stable is False


def test_a_short_run_whose_queue_keeps_emptying_is_stable() -> None:
    judged = [queue(0.3, 500, seed) for seed in range(40)]
    assert sum(j.stable is True for j in judged) >= 38
    assert any("kept emptying" in j.reason for j in judged)
    assert sum(queue(1.05, 500, seed).stable is True for seed in range(100)) <= 3


def test_short_runs_are_not_judged() -> None:
    assert queue(0.5, 150, 0).stable is None
    assert "needed to tell" in queue(0.5, 150, 0).reason
    everything_at_once = np.zeros(500)
    start, finish = single_server(everything_at_once, np.ones(500))
    assert assess(everything_at_once, start, finish, np.ones(500), 0.0, 0.0).stable is None


def test_a_batch_that_is_still_filling_is_not_called_overload() -> None:
    """Nobody waits, but every request stays longer than the window."""
    arrival = np.linspace(0, 100, 4000)
    judged = assess(arrival, arrival, arrival + 500, np.ones(4000), 0.0, 100.0)
    assert judged.stable is None
    assert "running, not queued" in judged.reason


def test_a_rising_load_that_is_served_is_stable() -> None:
    rng = np.random.default_rng(0)
    arrival = np.sort(1000 * np.sqrt(rng.random(20_000)))  # the rate doubles over the second half
    assert assess(arrival, arrival, arrival + rng.exponential(1.0, 20_000), np.ones(20_000), 0.0, 1000.0).stable is True


def test_unfinished_requests_are_in_the_system() -> None:
    arrival = np.linspace(0, 1000, 4000)
    start, finish = single_server(arrival, np.full(4000, 0.5))
    late = finish > 1000
    judged = assess(
        arrival, np.where(start > 1000, np.nan, start), np.where(late, np.nan, finish), np.ones(4000), 0.0, 1000.0
    )
    assert judged.stable is False


def test_in_system_counts_between_enter_and_leave() -> None:
    enter, leave = np.array([0.0, 1.0, 2.0, np.nan]), np.array([1.0, np.nan, 3.0, np.nan])
    assert in_system(np.array([0.0, 1.0, 2.0, 3.0]), enter, leave, np.array([1.0, 10.0, 100.0, 1000.0])).tolist() == [
        1,
        10,
        110,
        10,
    ]


def test_one_drowning_replica_of_many_is_seen() -> None:
    rng = np.random.default_rng(4)
    arrival, start, finish, replica = [], [], [], []
    for r in range(40):
        rho = 1.2 if r == 7 else 0.8
        mine = np.sort(rng.uniform(0, 4000, int(4000 * rho)))
        begun, done = single_server(mine, np.ones(len(mine)))
        arrival.append(mine), start.append(begun), finish.append(done), replica.append(np.full(len(mine), r))
    columns = [np.concatenate(c) for c in (arrival, start, finish)]
    of = np.concatenate(replica)
    judged = assess_fleet(*columns, np.ones(len(of)), of, 0.0, 4000.0)
    assert judged.stable is False
    assert judged.reason.startswith("replica 7: ")
    others = of != 7
    assert (
        assess_fleet(*[c[others] for c in columns], np.ones(int(others.sum())), of[others], 0.0, 4000.0).stable is True
    )


def fleet_of_queues(seed: int, rho: float = 0.95, replicas: int = 8, each: int = 600) -> Stability:
    """As many M/M/1 queues side by side, each with arrivals of its own."""
    rng = np.random.default_rng(seed)
    columns = []
    for r in range(replicas):
        arrival, work = rng.exponential(1 / rho, each).cumsum(), rng.exponential(1.0, each)
        tokens = np.maximum(1, (1000 * work).astype(int))
        columns.append((arrival, *single_server(arrival, work), tokens, np.full(each, r)))
    arrival, start, finish, tokens, of = (np.concatenate(c) for c in zip(*columns, strict=True))
    end_s = min(float(c[0][-1]) for c in columns)
    return assess_fleet(arrival, start, finish, tokens, of, 0.0, end_s)


def test_one_of_many_stable_replicas_is_hardly_ever_called_overloaded() -> None:
    """With a 95 % interval for each of the eight, 8 of the 200 would be."""
    calls = [fleet_of_queues(seed) for seed in range(200)]
    assert sum(judged.stable is False for judged in calls) <= 2


def test_the_interval_is_students_of_the_batches() -> None:
    """Two batches in turn in which 10 come and nobody leaves, and in which 10 come and all 20 leave at its end."""
    assert tuple(round(float(stats.t.ppf(p, BATCHES - 1)), 3) for p in (0.975, 0.9995)) == (T_975, T_9995)
    arrival = np.arange(1, 401) / 10 - 0.05  # 400 in 40 s: the second half is 20 batches of 1 s and 10 arrivals
    finish = np.ceil(arrival / 2) * 2 - 0.01
    judged = assess(arrival, arrival, finish, np.ones(400), 0.0, 40.0)
    assert judged.share == 0.0
    spread = np.tile([10.0, -10.0], 10).std(ddof=1)
    assert judged.share_high == pytest.approx(T_975 * spread * np.sqrt(20) / 200)


def overloaded_sessions(loop: str = "auto", **columns):
    """600 two-turn sessions in 60 s on an engine that serves one request a second; what the report says of it."""
    n = 1200
    after = np.where(np.arange(n) % 2, np.arange(n) - 1, -1)
    arrival_s = np.where(after < 0, np.arange(n) * 0.05, np.nan) if loop == "auto" else np.where(after < 0, 0.0, np.nan)
    workload = plain(
        arrival_s, [10] * n, [1] * n, after=after, delay_s=np.full(n, 1.0), session_id=np.arange(n) // 2, **columns
    )
    recording = run(workload, EngineParams(kv_blocks=100, max_num_seqs=1), UnitSteps())
    return build_report(recording, workload, Scenario(WorkloadConfig())).summary


def test_sessions_are_judged_while_new_ones_arrive():
    """Later turns go on arriving long after the last session began: that is drain, and must not make an overload look
    stable."""
    assert overloaded_sessions()["stable"] is False


@pytest.mark.parametrize("columns", [{}, {"concurrency": 4}])
def test_a_fixed_number_of_users_is_bounded(columns):
    summary = overloaded_sessions("users", **columns)
    assert summary["stable"] is True
    assert "closed loop" in summary["stable_reason"]
