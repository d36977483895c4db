"""Speculative decoding: exact worlds for acceptance 0 and 1, the closed form between them, conservation, cost at load."""

from dataclasses import replace
from itertools import accumulate
from operator import mul

import numpy as np
import pytest

from sim.measure import metrics
from sim.recording import COMPLETED
from sim.scenario import EngineParams, Speculation
from sim.simulate import run
from sim.vllm.acceptance import Acceptances, expected_tokens
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload

SYNC = {"async_scheduling": False, "block_size": 4}


def params(acceptance, method="eagle", **keys) -> EngineParams:
    return EngineParams(
        kv_blocks=keys.pop("kv_blocks", 10_000), **{**SYNC, **keys}, speculative=Speculation(method, acceptance)
    )


def emptied(fleet) -> list:
    return [(r.scheduler.cache.free, r.scheduler.cache.total, len(r.scheduler.running)) for r in fleet]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_acceptance_0_is_the_plain_schedule_with_dearer_steps(asynchronous):
    work = random_workload(3, rate=2000.0)
    given = params((0.0, 0.5), method="mtp", async_scheduling=asynchronous, calls_ahead=False)
    plainly = run(work, replace(given, speculative=None), UnitSteps())
    drafted = run(work, given, UnitSteps())
    for column in ("first_step", "last_step", "hit_tokens", "finish_s", "prefill_chunks"):
        assert np.array_equal(getattr(drafted, column), getattr(plainly, column)), column
    assert drafted.steps[0].n_decode.sum() == 3 * plainly.steps[0].n_decode.sum()
    assert drafted.verified.acceptance_length == 1.0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("output", [1, 2, 5, 8, 9, 20])
def test_acceptance_1_gives_every_drafted_token(output, asynchronous):
    given = params((1.0, 1.0, 1.0), async_scheduling=asynchronous)
    rec = run(plain([0.0], [10], [output]), given, UnitSteps())
    steps = -(-(output - 1) // 4)  # the prefill gives the first
    assert rec.last_step[0] == steps
    ghost = asynchronous and output > 2  # decided before anybody knew that it had ended
    assert rec.steps[0].n_decode.tolist() == [0] + [4] * (steps + ghost)
    assert rec.verified.emitted[0].tolist()[: steps + 1] == [1] + [min(4, output - 1 - 4 * i) for i in range(steps)]
    assert rec.verified.emitted[0].sum() == output


def test_the_draws_have_the_distribution_and_depend_on_nothing_but_request_and_token():
    shares, n = (0.8, 0.6, 0.5), 200_000
    draws = Acceptances(shares, seed=7)
    counts = np.bincount([draws.accepted(r, t) for r in range(400) for t in range(500)], minlength=4)
    at_least = [1.0, *accumulate(shares, mul), 0.0]
    expected = -np.diff(at_least)
    assert np.abs(counts / n - expected).max() < 5 * np.sqrt(0.25 / n)
    assert expected_tokens(shares) == pytest.approx(1 + 0.8 + 0.48 + 0.24)
    assert expected_tokens(shares) == pytest.approx(1 + (counts * np.arange(4)).sum() / n, abs=0.01)
    again = Acceptances(shares, seed=7)
    assert [again.accepted(9, t) for t in (5, 3, 4)] == [draws.accepted(9, t) for t in (5, 3, 4)]
    other = Acceptances(shares, seed=8)
    assert [other.accepted(9, t) for t in range(50)] != [draws.accepted(9, t) for t in range(50)]


def test_a_request_accepts_the_same_whatever_the_schedule():
    work = random_workload(5, n=40)
    given = params((0.7, 0.7))
    alone = run(work, replace(given, max_num_seqs=1), UnitSteps()).verified
    together = run(work, replace(given, async_scheduling=True), LinearSteps(), replicas=2).verified
    assert (alone.drafts, alone.accepted) == (together.drafts, together.accepted)
    assert (
        run(work, given, LinearSteps()).finish_s.tolist()
        == run(work, given, LinearSteps(), fast_forward=False).finish_s.tolist()
    )


def test_tpot_at_low_load_is_the_step_time_over_the_expected_tokens():
    shares, n = (0.8, 0.7, 0.6), 60
    work = plain(np.arange(n) * 1000.0, [64] * n, [601] * n)
    rec = run(work, params(shares), UnitSteps())
    tpot = metrics.per_request(rec, work)["tpot_s"]
    assert tpot.mean() == pytest.approx(1 / expected_tokens(shares), rel=0.01)
    assert rec.verified.acceptance_length == pytest.approx(expected_tokens(shares), rel=0.01)
    gaps = metrics.describe_weighted(metrics.gap_values(rec), metrics.gap_counts(rec, rec.status == COMPLETED))
    assert gaps["mean"] == gaps["p99"] == 1.0  # the tokens of a step come as one: one gap, as vllm bench serve has it


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "keys", [{}, {"scheduler_policy": "priority"}, {"preemption_victim": "lcf"}, {"policy": "lfu"}, {"caching": False}]
)
def test_all_tokens_come_and_all_memory_comes_back_through_preemptions(keys, asynchronous):
    work = random_workload(11, n=80, closed=True, rate=500.0)
    ends: list = []
    given = params(
        (0.6, 0.5, 0.9),
        kv_blocks=90,
        max_model_len=300,
        max_num_batched_tokens=48,
        async_scheduling=asynchronous,
        **keys,
    )
    rows: list = []
    rec = run(work, given, LinearSteps(), on_end=lambda fleet: ends.extend(emptied(fleet)), step_log=rows)
    done = rec.status == COMPLETED
    assert done.sum() > 60
    assert rec.preemptions.sum() > 0
    assert sum(e.sum() for e in rec.verified.emitted) == work.output_tokens[done].sum()
    assert ends == [(90, 90, 0)]
    assert max(sum(n for _, n in row[2]) for row in rows) <= 48
    window, _ = metrics.window_of(rec, 0.0, None)
    assert metrics.tokens_emitted(rec, window) == work.output_tokens[done].sum()


def test_blocks_are_held_for_every_verified_token_and_the_drafters_beyond():
    """Prompt 8, blocks of 4: the first verification reaches 8 + 4 tokens, an eagle drafter's slots 3 more."""
    for method, held in (("eagle", 4), ("ngram", 3)):
        rows: list = []
        run(plain([0.0], [8], [3]), params((0.0,) * 3, method=method), UnitSteps(), step_log=rows)
        assert 10_000 - rows[1][6] == held


def test_the_budget_counts_every_verified_token():
    rec = run(plain([0.0] * 5, [4] * 5, [9] * 5), params((0.0, 0.0), max_num_batched_tokens=20), UnitSteps())
    assert rec.steps[0].n_decode.max() == 15
    rec = run(plain([0.0] * 5, [4] * 5, [9] * 5), params((1.0, 1.0), max_num_batched_tokens=10), UnitSteps())
    steps = rec.steps[0]
    assert (steps.n_decode + steps.prefill_tokens).max() == 10
