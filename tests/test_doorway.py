"""Limits of the queue: who is turned away with HTTP 503, and that nobody is lost or counted twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvcast import load_scenario, simulate
from kvcast.cli import main
from sim.recording import COMPLETED, NOT_ARRIVED, QUEUE_FULL, UNFINISHED
from sim.scenario import EngineParams
from sim.simulate import run
from tests.fuzz import unequal
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError


def params(**more) -> EngineParams:
    return EngineParams(**({"kv_blocks": 1000, "block_size": 4, "async_scheduling": False} | more))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_waiting_and_running_requests_count_and_one_that_ends_makes_room(asynchronous: bool) -> None:
    """One place to run, two on the replica: the third is refused; so is the next at once, and not after the first has
    ended at 3 s."""
    w = plain([0.0, 0.1, 0.2, 2.9, 3.1], [4] * 5, [3] * 5)
    r = run(w, params(max_num_queued_reqs=2, max_num_seqs=1, async_scheduling=asynchronous), UnitSteps())
    assert r.status.tolist() == [COMPLETED, COMPLETED, QUEUE_FULL, QUEUE_FULL, COMPLETED]
    assert np.isnan(r.first_token_s[2:4]).all()
    assert (r.replica[2:4] == -1).all()


def test_prompts_count_whole_until_their_first_token_and_the_one_that_asks_does_not() -> None:
    """A prompt of 100 in chunks of 10 has its first token at 10 s. Until then it counts, a limit of 100 is reached and
    of 101 is not, however long the next one is; then nothing counts, though it still decodes."""
    w = plain([0.0, 9.5, 10.5], [100, 500, 500], [50, 1, 1])
    held = {"max_num_batched_tokens": 10, "max_num_seqs": 1}
    assert run(w, params(max_num_queued_tokens=100, **held), UnitSteps()).status.tolist() == [
        COMPLETED,
        QUEUE_FULL,
        COMPLETED,
    ]
    r = run(w, params(max_num_queued_tokens=101, **held), UnitSteps())
    assert r.status.tolist() == [COMPLETED, COMPLETED, QUEUE_FULL]  # the second one waits, with its 500


def test_it_is_asked_before_the_front_end_and_behind_it_and_counts_behind_it() -> None:
    """Three at once pass the first look and one of them the second; one that comes later not even the first."""
    w = plain([0.0, 0.0, 0.0, 0.7], [4] * 4, [9] * 4)
    r = run(w, params(max_num_queued_reqs=1, frontend_s=0.5), UnitSteps())
    assert r.status.tolist() == [COMPLETED, QUEUE_FULL, QUEUE_FULL, QUEUE_FULL]
    assert r.admit_s[0] == 0.5


def test_a_session_ends_at_a_refusal_and_its_place_is_given_on() -> None:
    w = plain(
        [0.0, np.nan, 0.0, np.nan],
        [4] * 4,
        [5] * 4,
        after=np.array([-1, 0, -1, 2]),
        session_id=np.array([0, 0, 1, 1]),
        delay_s=np.ones(4),
    )
    r = run(w, params(max_num_queued_reqs=1), UnitSteps())
    assert r.status.tolist() == [COMPLETED, COMPLETED, QUEUE_FULL, NOT_ARRIVED]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "limit",
    [
        {"max_num_queued_reqs": 3},
        {"max_num_queued_tokens": 60},
        {"max_num_queued_reqs": 5, "max_num_queued_tokens": 90},
    ],
    ids=str,
)
def test_arrived_is_finished_refused_and_unfinished_and_stepping_agrees(limit: dict, asynchronous: bool) -> None:
    refused = 0
    for seed in range(6):
        w = random_workload(seed, closed=seed % 2 == 0, rate=60.0)
        blocks = int((w.prompt_tokens + w.output_tokens).max()) // 4 + 8
        p = params(kv_blocks=blocks, max_num_batched_tokens=40, async_scheduling=asynchronous, **limit)
        world = {"replicas": 1 + seed % 3, "router": "least-loaded", "seed": seed, "horizon_s": 1.5}
        fast = run(w, p, LinearSteps(), **world)
        assert next(unequal(fast, run(w, p, LinearSteps(), fast_forward=False, **world)), "") == ""
        fate = np.bincount(fast.status, minlength=8)
        arrived = int((~np.isnan(fast.arrival_s)).sum())
        assert arrived == fate[COMPLETED] + fate[QUEUE_FULL] + fate[UNFINISHED]
        never = fast.status == NOT_ARRIVED  # a turn whose session was refused, or not released by the horizon
        assert np.isnan(fast.finish_s[never | (fast.status == QUEUE_FULL)]).all()
        refused += int(fate[QUEUE_FULL])
    assert refused > 20


REFUSING = """
[workload]
rate = 40.0
requests = 400
[[workload.class]]
name = "a"
share = 1.0
layers = [{ name = "prompt", scope = "dynamic", tokens = { value = 8000 } }]
output = { value = 20 }
[run]
warmup_s = 0
duration_s = 10.0
[slo]
ttft_s = 60.0
attainment = 0.95
[engine]
max_num_queued_tokens = 50_000
"""


def test_the_refused_are_told_and_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forty prompts a second, more than a GPU serves: many are refused, and all of those miss the target."""
    file = tmp_path / "s.toml"
    file.write_text(REFUSING)
    summary = simulate(load_scenario(file)).summary
    refused = summary["rejected"]["queue_full"]
    assert refused > summary["arrived"] / 4
    assert summary["arrived"] == summary["completed"] + refused
    assert summary["attainment"] == summary["completed"] / summary["arrived"]
    assert main(["run", str(file), "--no-baseline"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{refused} rejected (queue full)" in told


def test_fewer_run_than_have_places_and_more_is_refused_as_a_setting() -> None:
    w = plain([0.0] * 4, [4] * 4, [4] * 4)
    assert run(w, params(max_num_active_seqs=2), UnitSteps()).admit_s.tolist() == [0.0, 0.0, 4.0, 4.0]
    with pytest.raises(InputError, match="max_num_active_seqs = 9: expected at most max_num_seqs = 8"):
        run(w, params(max_num_active_seqs=9, max_num_seqs=8), UnitSteps())


def test_a_fair_share_raises_the_threshold() -> None:
    """Budget 32, threshold 4: four prompts have 8 each, and the last two to be there 16."""
    w = plain([0.0] * 4, [8, 8, 40, 40], [1] * 4)
    log: list = []
    sizes = {"max_num_batched_tokens": 32, "long_prefill_token_threshold": 4}
    run(w, params(long_prefill_token_threshold_adaptive=True, **sizes), UnitSteps(), step_log=log)
    assert [[n for _, n in tokens] for _, _, tokens, *_ in log] == [[8, 8, 8, 8], [16, 16], [16, 16]]


def test_a_fair_share_shrinks_as_others_come_and_lets_the_head_in() -> None:
    """At 5 s half of 64 tokens are 8 blocks, and 6 are free; once four are there at 9 s a quarter needs 4."""
    w = plain([0.0, 4.5, 8.5, 8.6], [4, 36, 4, 4], [20, 1, 1, 1])
    p = params(
        kv_blocks=9,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=4,
        long_prefill_token_threshold_adaptive=True,
        reserve_full_isl=False,
    )
    r = run(w, p, UnitSteps())
    assert r.admit_s[1] == 9.0
    assert next(unequal(r, run(w, p, UnitSteps(), fast_forward=False)), "") == ""


def test_prompts_wait_for_every_third_step_while_anybody_decodes() -> None:
    """Request 0 decodes from step 1 on; request 1, there at 1 s, is computed in steps 3 and 6, its 12 tokens in two
    chunks, not in 4 and 5."""
    w = plain([0.0, 1.0], [4, 12], [12, 1])
    log: list = []
    run(w, params(prefill_schedule_interval=3, max_num_batched_tokens=9), UnitSteps(), step_log=log)
    assert [step for step, (_, _, tokens, *_) in enumerate(log) if any(who == 1 for who, _ in tokens)] == [3, 6]


def test_prompts_wait_again_once_nobody_is_left_waiting() -> None:
    """The same; request 1 takes step 3 and leaves request 2 waiting, whose prompt the next step computes; of request 3,
    there at 4.5 s, step 7 does."""
    w = plain([0.0, 1.0, 1.0, 4.5], [4, 8, 8, 8], [12, 1, 1, 1])
    log: list = []
    run(w, params(prefill_schedule_interval=3, max_num_batched_tokens=9), UnitSteps(), step_log=log)
    steps = {who: step for step, (_, _, tokens, *_) in enumerate(log) for who, _ in tokens if who}
    assert steps == {1: 3, 2: 4, 3: 7}
