"""The engine made degenerate (one sequence at a time) is a single-server queue, whose answers are known.

A request of one output token holds the engine for one step; its prompt length encodes its service time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from calibrate.latency import MEASURED
from sim.fleet.autoscaler import autoscaler
from sim.fleet.router import ROUTERS, Router
from sim.fleet.shocks import processes_of
from sim.measure.metrics import time_mean, window_of
from sim.measure.report import build_report
from sim.recording import Recording
from sim.scenario import AutoscaleConfig, EngineParams, Shock
from sim.simulate import run
from tests.recordings import scenario, workload
from workloads.columns import Workload

TOKEN_S = 1e-3
SERVER = EngineParams(
    kv_blocks=1_000, block_size=16, max_num_seqs=1, max_num_batched_tokens=16_000, max_model_len=16_000, caching=False
)


class PerToken:
    """A step takes TOKEN_S for every new prompt token, and nothing for a decode."""

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        return TOKEN_S * sum(new for new, _ in chunks), MEASURED

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(k), np.full(k, MEASURED, np.int8)


def single_server(
    rho: float, service_tokens: np.ndarray, seed: int, mean_service_s: float = 1.0
) -> tuple[Recording, Workload]:
    """Poisson arrivals at rho / mean_service_s; service_tokens int64 [n]."""
    rng = np.random.default_rng([seed, 1])
    n = len(service_tokens)
    gaps = rng.exponential(mean_service_s / rho, n)
    work = replace(workload(service_tokens.tolist(), [1] * n), arrival_s=gaps.cumsum())
    return run(work, SERVER, PerToken()), work


def exponential_tokens(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 2]).exponential(1000.0, n).astype(np.int64).clip(1, 15_000)


def test_each_wait_is_lindleys() -> None:
    rec, work = single_server(0.8, exponential_tokens(3_000, 7), seed=1)
    service = TOKEN_S * work.prompt_tokens
    wait = np.zeros(len(work))
    for i in range(1, len(work)):
        wait[i] = max(0.0, wait[i - 1] + service[i - 1] - (work.arrival_s[i] - work.arrival_s[i - 1]))
    assert rec.admit_s - rec.arrival_s == pytest.approx(wait, abs=1e-6)
    assert rec.finish_s - rec.admit_s == pytest.approx(service, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "second_moment"),
    [("deterministic", 1.0), ("two-point", 0.9 * 0.5**2 + 0.1 * 5.5**2), ("exponential", 2.0)],
)
def test_mg1_mean_wait_is_pollaczek_khinchines(shape: str, second_moment: float) -> None:
    """W = rate x E[S^2] / (2 (1 - rho)), E[S] = 1 s here, within the 99 % interval over independent runs after
    warm-up."""
    rho, n, means = 0.7, 4_000, []
    for seed in range(12):
        draw = np.random.default_rng([seed, 2])
        tokens = {
            "deterministic": np.full(n, 1000),
            "two-point": draw.choice([500, 5500], n, p=[0.9, 0.1]),
            "exponential": exponential_tokens(n, seed),
        }[shape]
        rec, _ = single_server(rho, tokens, seed)
        means.append(float((rec.admit_s - rec.arrival_s)[n // 10 :].mean()))
    theory = rho * second_moment / (2 * (1 - rho))
    half_width = 3.106 * np.std(means, ddof=1) / np.sqrt(len(means))  # Student's t, 11 degrees of freedom
    assert abs(np.mean(means) - theory) < half_width
    assert half_width < 0.25 * theory


def test_littles_law_holds_exactly() -> None:
    rec, work = single_server(0.9, exponential_tokens(2_000, 3), seed=5)
    window, inside = window_of(rec, 0.0, None)
    assert inside.all()
    samples = rec.samples[0]
    sojourn, service = float((rec.finish_s - rec.arrival_s).sum()), float((rec.finish_s - rec.admit_s).sum())
    assert time_mean(samples, "running", window) * window.seconds == pytest.approx(service, rel=1e-9)
    events = np.concatenate([rec.arrival_s, rec.finish_s])
    order = np.argsort(events, kind="stable")
    number = np.repeat([1, -1], len(work))[order].cumsum()  # N(t) after each event
    assert float(np.diff(events[order]) @ number[:-1]) == pytest.approx(sojourn, rel=1e-9)
    summary = build_report(rec, work, scenario()).summary
    assert summary["busy_share"] == pytest.approx(TOKEN_S * work.prompt_tokens.sum() / window.seconds)
    assert summary["in_system_mean"] == pytest.approx(
        summary["request_throughput"] * summary["mean_e2el_ms"] / 1e3, rel=1e-9
    )
    assert summary["waiting_mean"] == pytest.approx(
        summary["request_throughput"] * summary["mean_queue_ms"] / 1e3, rel=1e-6
    )


@pytest.mark.parametrize(("rho", "stable"), [(0.95, True), (1.05, False)])
def test_md1_stability(rho: float, stable: bool) -> None:
    for seed in range(2):
        rec, work = single_server(rho, np.full(20_000, 1000), seed)
        summary = build_report(rec, work, scenario()).summary
        assert summary["stable"] is stable, summary["stable_reason"]
        assert (summary["p99_ttft_ms"] is None) is not stable
        assert not summary["backlog_growth_per_s"] > 0.02 if stable else summary["backlog_growth_per_s"] > 0.02


# -- fleets ----------------------------------------------------------------------------------------------------------


class LeastWork(Router):
    """To the replica that is free first: as one queue for all, first come first served."""

    def __init__(self, rng, workload) -> None:
        super().__init__(rng, workload)
        self.free_s: dict[int, float] = {}

    def choose(self, request, replicas):
        first = min(replicas, key=lambda one: (self.free_s.get(one.index, 0.0), one.index))
        begins_s = max(self.free_s.get(first.index, 0.0), first.now_s)
        self.free_s[first.index] = begins_s + TOKEN_S * float(self.workload.prompt_tokens[request])
        return first


def waits_of(c: int, rho: float, n: int, seed: int) -> tuple[np.ndarray, Workload]:
    """Seconds each request waits in M/M/c of c replicas, E[S] = 1 s."""
    gaps = np.random.default_rng([seed, 1]).exponential(1 / (c * rho), n)
    work = replace(workload(exponential_tokens(n, seed).tolist(), [1] * n), arrival_s=gaps.cumsum())
    rec = run(work, SERVER, PerToken(), replicas=c, router="least-work")
    return rec.admit_s - rec.arrival_s, work


def erlang_c(c: int, rho: float) -> float:
    """The share that waits in M/M/c."""
    load = c * rho
    last = load**c / math.factorial(c) / (1 - rho)
    return last / (sum(load**k / math.factorial(k) for k in range(c)) + last)


def test_a_fleet_with_one_queue_is_mmc(monkeypatch) -> None:
    """Each wait is Kiefer and Wolfowitz's, their mean Erlang's: C / (c (1 - rho)), E[S] = 1 s."""
    monkeypatch.setitem(ROUTERS, "least-work", LeastWork)
    c, rho, n, means = 3, 0.75, 4_000, []
    for seed in range(10):
        wait_s, work = waits_of(c, rho, n, seed)
        means.append(wait_s[n // 10 :].mean())
        if seed == 0:
            free_s, expected = [0.0] * c, []
            for at_s, tokens in zip(work.arrival_s.tolist(), work.prompt_tokens.tolist(), strict=True):
                free_s.sort()
                begins_s = max(free_s[0], at_s)
                expected.append(begins_s - at_s)
                free_s[0] = begins_s + TOKEN_S * tokens
            assert wait_s == pytest.approx(expected, abs=1e-6)
    theory = erlang_c(c, rho) / (c * (1 - rho))
    half_width = 3.250 * np.std(means, ddof=1) / np.sqrt(len(means))  # Student's t, 9 degrees of freedom, 99 %
    assert abs(np.mean(means) - theory) < half_width
    assert half_width < 0.25 * theory


class Shared:
    """A step takes SHARE_S for every request in it: they share the GPU, token by token."""

    def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
        return SHARE_S * (len(chunks) + n_decode), MEASURED

    def decode_stretch(self, n_decode, sum_context, max_context, k):
        return np.full(k, SHARE_S * n_decode), np.full(k, MEASURED, np.int8)


SHARE_S = 0.01


@pytest.mark.parametrize("shape", ["deterministic", "two-point"])
def test_replicas_that_share_their_time_are_mg1_ps(shape: str) -> None:
    """E[T] = E[S] / (1 - rho) whatever the shape, on two replicas with half of the arrivals each, E[S] = 1 s; and half
    a step of the rho / (1 - rho) who are there, whose end a new one waits for."""
    rho, n, means = 0.6, 1_500, []
    whole = EngineParams(kv_blocks=100_000, block_size=16, max_num_seqs=1_000, async_scheduling=False, caching=False)
    for seed in range(8):
        draw = np.random.default_rng([seed, 7])
        tokens = np.full(n, 100) if shape == "deterministic" else draw.choice([50, 550], n, p=[0.9, 0.1])
        gaps = draw.exponential(1 / (2 * rho), n)
        work = replace(workload([1] * n, tokens.tolist()), arrival_s=gaps.cumsum())
        rec = run(work, whole, Shared(), replicas=2, router="random", seed=seed)
        means.append(float((rec.finish_s - rec.arrival_s)[n // 10 : -n // 10].mean()))
    theory = 1 / (1 - rho) + SHARE_S * rho / (1 - rho) / 2
    half_width = 3.499 * np.std(means, ddof=1) / np.sqrt(len(means))  # Student's t, 7 degrees of freedom, 99 %
    assert abs(np.mean(means) - theory) < half_width + SHARE_S * 2
    assert half_width < 0.3 * theory


def test_littles_law_holds_in_a_fleet_that_changes() -> None:
    """Requests that begin again count from their arrival: the number there is what it is, whoever has them."""
    n = 1_500
    gaps = np.random.default_rng(3).exponential(0.4, n)
    work = replace(workload(exponential_tokens(n, 3).tolist(), [1] * n), arrival_s=gaps.cumsum())
    scales = AutoscaleConfig(rule="hpa", target=1.5, start_s=3.0, period_s=2.0, scrape_s=1.0, down_wait_s=10.0)
    shocks = [
        Shock("spot-loss", 50.0, 400.0, losses_per_hour=60.0, notice_s=0.0, away_s=20.0),
        Shock("rolling-restart", 300.0, 100.0, notice_s=1.0, load_s=1.0),
    ]
    processes = [autoscaler(scales), *processes_of(shocks, 0.0, 1)]
    rec = run(work, SERVER, PerToken(), replicas=6, router="least-loaded", processes=processes)
    assert rec.retries.sum() > 3
    assert len(rec.held_s[5]) > 3
    summary = build_report(rec, work, scenario()).summary
    assert summary["completed"] == n
    assert summary["in_system_mean"] == pytest.approx(
        summary["request_throughput"] * summary["mean_e2el_ms"] / 1e3, rel=1e-9
    )


@pytest.mark.parametrize("threshold", [0, 16])
def test_every_token_of_a_preempting_fleet_is_counted_once(threshold: int) -> None:
    """Steps from first to last token, less the silent ones of the listed gaps, are the request's output tokens."""
    rng = np.random.default_rng(threshold)
    n = 300
    work = replace(
        workload(rng.integers(1, 300, n).tolist(), rng.integers(1, 200, n).tolist()), arrival_s=np.sort(rng.random(n))
    )
    tight = EngineParams(
        kv_blocks=120,
        block_size=4,
        max_num_seqs=30,
        max_num_batched_tokens=64,
        max_model_len=600,
        long_prefill_token_threshold=threshold,
    )
    rec = run(work, tight, PerToken(), replicas=2, router="least-loaded")
    done = rec.status == 0
    emitted = np.where(done, rec.last_step - rec.first_step + 1, 0)
    np.subtract.at(emitted, rec.gaps_request, rec.gaps_to_step - rec.gaps_from_step - 1)
    assert emitted[done].tolist() == work.output_tokens[done].tolist()
    report = build_report(rec, work, scenario())
    assert report.summary["preemptions"] > 50
    assert report.summary["output_throughput"] * report.summary["duration"] == pytest.approx(
        work.output_tokens[done].sum()
    )
    gaps = report.latency["itl"]["mean"]
    assert gaps == pytest.approx(
        1e3 * (rec.finish_s - rec.first_token_s)[done].sum() / (work.output_tokens[done] - 1).sum()
    )
