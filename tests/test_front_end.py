"""The API server as a queue (sim.front_end), and the time that a closed loop's client takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcast.config import scenario_from_doc
from kvcast.present import summary_text
from kvcast.studies import request_lives
from sim.alone import alone
from sim.front_end import FrontEnd
from sim.recording import COMPLETED
from sim.scenario import EngineParams
from sim.simulate import run
from tests.fuzz import unequal
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError
from workloads.load import load


def params(**keys: object) -> EngineParams:
    return EngineParams(kv_blocks=10_000, **keys)  # type: ignore[arg-type]


def burst(**engine: object) -> object:
    """1,000 prompts of 128 tokens at once, four output tokens each, as a public run of a load generator had it."""
    layer = {"name": "m", "scope": "dynamic", "tokens": {"value": 128}}
    one = {"name": "x", "share": 1, "layers": [layer], "output": {"value": 4}, "turns": {"value": 1}}
    return scenario_from_doc(
        {
            "workload": {"concurrency": 1000, "requests": 1000, "class": [one]},
            "model": {"name": "llama-3.1-8b"},
            "engine": engine,
        }
    )


# -- theory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "rate"), [(0.5, 40.0), (0.8, 40.0), (0.9, 7.0)])
def test_the_wait_of_poisson_arrivals_is_that_of_an_m_d_1_queue(load: float, rate: float) -> None:
    """Pollaczek-Khinchine: load / (2 rate (1 - load)) seconds on average."""
    front = FrontEnd(params(frontend_requests_per_s=rate, frontend_s=0.25))
    arrivals_s = np.random.default_rng(3).exponential(1 / (load * rate), 200_000).cumsum()
    waits_s = [front.receives(now_s, 100) - now_s - 0.25 for now_s in arrivals_s.tolist()]
    assert np.mean(waits_s) == pytest.approx(load / (2 * rate * (1 - load)), rel=0.05)


def test_workers_share_a_queue() -> None:
    """M/D/2 at load 0.8, each wait by the recursion of Kiefer and Wolfowitz on the same arrivals."""
    rate, rng = 10.0, np.random.default_rng(5)
    arrivals_s = rng.exponential(1 / (0.8 * 2 * rate), 50_000).cumsum()
    front = FrontEnd(params(frontend_requests_per_s=rate, frontend_workers=2))
    found = np.array([front.receives(now_s, 1) - now_s for now_s in arrivals_s.tolist()])
    left, waits = np.zeros(2), []
    for gap in np.diff(arrivals_s, prepend=arrivals_s[0]):
        left = np.sort(np.maximum(left - gap, 0))
        waits.append(left[0])
        left[0] += 1 / rate
    assert found == pytest.approx(np.array(waits), abs=1e-6)


# -- exact times -------------------------------------------------------------------------------------------------------


def test_a_request_takes_its_turn_and_then_its_own_time() -> None:
    """Turns of 2 s; then 3 s and a quarter of one for each of four prompt tokens. One alone takes 4 s."""
    slow = params(frontend_requests_per_s=0.5, frontend_s=3.0, frontend_us_per_prompt_token=250_000.0)
    rec = run(plain([0, 0, 0, 9], [4] * 4, [1] * 4), slow, UnitSteps())
    assert rec.frontend_s is not None
    assert rec.frontend_s.tolist() == [4, 6, 8, 4]
    assert rec.admit_s.tolist() == [4, 6, 8, 13]
    assert rec.first_token_s.tolist() == [5, 7, 9, 14]


def test_two_workers_take_two_turns_at_once_and_each_replica_has_its_own() -> None:
    work, turn = plain([0] * 4, [4] * 4, [1] * 4), {"frontend_requests_per_s": 0.5}
    two_workers = run(work, params(**turn, frontend_workers=2), UnitSteps())
    two_replicas = run(work, params(**turn), UnitSteps(), replicas=2)
    assert two_workers.frontend_s.tolist() == two_replicas.frontend_s.tolist() == [0, 0, 2, 2]


def test_output_tokens_pass_through_it() -> None:
    """Half a second a token. Both prompts' first tokens end at 1 and have left at 2; the next ones end at 2, 3 and
    leave at 3, 4. The third request comes at 2.5 and finds the server busy until 3."""
    work = plain([0, 0, 2.5], [4] * 3, [3, 3, 1])
    rec = run(work, params(frontend_us_per_output_token=500_000.0), UnitSteps())
    assert rec.sent_s is not None
    assert rec.frontend_s is not None
    assert rec.first_token_s.tolist() == [2, 2, 4.5]
    assert rec.finish_s.tolist() == [4, 4, 4.5]
    assert rec.frontend_s.tolist() == [0, 0, 0.5]
    assert rec.steps[0].end_s.tolist() == [1, 2, 3, 4]
    assert rec.sent_s[0].tolist() == [2, 3, 4, 4.5]


def test_a_server_that_sends_too_slowly_is_a_queue_of_tokens() -> None:
    """Two streams, a token each second, and the server takes 0.75 s a token: the n-th step's leave at 1 + 1.5 n."""
    rec = run(plain([0, 0], [4, 4], [40, 40]), params(frontend_us_per_output_token=750_000.0), UnitSteps())
    assert rec.sent_s is not None
    assert rec.sent_s[0] == pytest.approx(1 + 1.5 * np.arange(1, 41))


def test_a_closed_loop_goes_on_when_the_answer_has_left() -> None:
    work = plain([0, np.nan], [4, 4], [2, 2], after=np.array([-1, 0]), delay_s=np.array([0, 1.0]))
    rec = run(work, params(frontend_us_per_output_token=500_000.0), UnitSteps())
    assert (rec.finish_s[0], rec.arrival_s[1]) == (2.5, 3.5)


def test_the_clock_stops_before_a_token_has_left() -> None:
    rec = run(plain([0], [4], [3]), params(frontend_us_per_output_token=5e6), UnitSteps(), horizon_s=4.0)
    assert np.isnan([rec.first_token_s[0], rec.finish_s[0]]).all()
    assert rec.status[0] != COMPLETED


def test_without_its_keys_there_is_none() -> None:
    rec = run(plain([0], [4], [3]), params(), UnitSteps())
    assert FrontEnd.of(params()) is rec.frontend_s is rec.sent_s is None


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_stepping_and_fast_forward_are_the_same(semantics: str) -> None:
    keys = {"frontend_requests_per_s": 90.0, "frontend_us_per_output_token": 3000.0, "frontend_s": 0.01}
    delayed = 0
    for seed in range(12):
        work = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed % 2])
        few = EngineParams(kv_blocks=60, block_size=4, semantics=semantics, frontend_workers=1 + seed % 3, **keys)
        given = {"replicas": 1 + seed % 2, "seed": seed, "horizon_s": 2.0 if seed % 5 == 0 else None}
        one, other = (run(work, few, LinearSteps(), fast_forward=f, **given) for f in (True, False))
        assert next(unequal(one, other), "") == ""
        done = one.status == COMPLETED
        assert one.sent_s is not None
        for steps, sent_s in zip(one.steps, one.sent_s, strict=True):
            assert (sent_s >= steps.end_s).all()
            assert (np.diff(sent_s) >= 0).all()
            delayed += int((sent_s > steps.end_s + 0.003 * 20).sum())
        assert (one.finish_s >= one.first_token_s)[done].all()
    assert delayed > 100


def test_alone_is_what_a_simulation_of_requests_far_apart_says() -> None:
    keys = {"frontend_s": 0.1, "frontend_us_per_prompt_token": 500.0, "frontend_us_per_output_token": 900.0}
    work = plain([0, 100, 200], [40, 3000, 9], [5, 20, 1])
    rec = run(work, params(**keys), LinearSteps())
    times = alone(work, params(**keys), LinearSteps(), np.zeros(3, np.int64))
    assert times["ttft_s"] == pytest.approx(rec.first_token_s - rec.arrival_s)
    assert times["e2e_s"] == pytest.approx(rec.finish_s - rec.arrival_s)


# -- a public run ------------------------------------------------------------------------------------------------------


def test_a_burst_comes_through_at_the_rate_of_the_server_whatever_the_gpu() -> None:
    """About 40 requests a second, with 14.0 ms and 2.2 us a prompt token; without it the GPU alone decides."""
    from kvcast.api import simulate

    keys = {"frontend_ms": 14.0, "frontend_us_per_prompt_token": 2.2, "frontend_requests_per_s": 40.0}
    rates = []
    for profile in ("h200-llama-3.1-8b-aic", "roofline:b200"):
        scenario = burst(**keys)
        scenario = replace(scenario, hardware=replace(scenario.hardware, profile=profile))  # type: ignore[type-var,attr-defined]
        summary = simulate(scenario).summary  # type: ignore[arg-type]
        rates.append(summary["request_throughput"])
        assert summary["front_end"]["mean_ms"] == pytest.approx(14 + 0.2816 + 999 / 2 / 40 * 1e3)
        assert summary["front_end"]["mean_send_ms"] == 0
        assert "in front of the engine: mean 12.5" in summary_text.front_end_line(summary)
    assert rates == pytest.approx([40, 40], rel=0.01)
    assert simulate(burst()).summary["request_throughput"] > 200  # type: ignore[arg-type]


def test_it_is_a_phase_of_a_request_s_life() -> None:
    rec = run(plain([0, 0], [4] * 2, [2] * 2), params(frontend_requests_per_s=0.5), UnitSteps(), record_life=True)
    assert rec.life is not None
    assert [what for what, start_s, end_s, _ in rec.life[1] if end_s > start_s] == ["frontend", "prefill", "decode"]
    assert rec.life[1][0][1:3] == (0, 2)
    row = {"class_id": 0, "replica": 0, "prompt_tokens": 4, "hit_tokens": 0, "output_tokens": 2, "preemptions": 0}
    times = {"arrival_s": 0, "frontend_s": 2, "admit_s": 2.5, "first_token_s": 3, "finish_s": 4, "preempted_s": 0}
    columns = {name: np.array([value]) for name, value in {**row, **times, "recomputed_tokens": 0}.items()}
    (life,) = request_lives.coarse(columns, ["all"], [0])
    assert life.phases[:2] == (("frontend", 0, 2, 0), ("queued", 2, 2.5, 0))


# -- a client's own time -----------------------------------------------------------------------------------------------


def test_a_client_takes_its_time_between_an_answer_and_the_next_request() -> None:
    """Three sessions one after another: four steps each, then 1.5 s."""
    work = replace(plain([np.nan] * 3, [4] * 3, [4] * 3), concurrency=1, turnaround_s=1.5)
    rec = run(work, params(), UnitSteps())
    assert rec.arrival_s.tolist() == [0, 5.5, 11]


def test_turns_of_a_session_wait_for_it_too() -> None:
    one = burst().workload.class_[0]  # type: ignore[attr-defined]
    config = replace(burst().workload, concurrency=2, requests=40, turnaround_s=0.25)  # type: ignore[attr-defined]
    turns = replace(one, turns=replace(one.turns, value=4), think=replace(one.turns, value=2.0), share=1.0)
    work = load(replace(config, class_=(turns,)))
    assert set(work.column("delay_s")[work.column("after") >= 0]) == {2.25}
    assert work.turnaround_s == 0.25
    with pytest.raises(InputError, match=r"turnaround_s = 0\.25, expected requests that wait for an answer"):
        load(replace(config, concurrency=None, rate=1.0, duration_s=20.0, requests=None, loop="open"))
