"""Clients that give up and try again, and a gateway that refuses: worlds worked out by hand, and what is conserved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import load_scenario, simulate
from kvcast.cli import main
from sim.measure.collapse import fall_of
from sim.recording import ABANDONED, COMPLETED, QUEUE_FULL, SHED, UNFINISHED
from sim.scenario import ClientConfig, EngineParams, Speculation
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


def test_a_client_gives_up_by_hand() -> None:
    """One place to run, the first answer takes 5 s. The second request is given up at 3.25 s while it waits, leaves the
    queue at the end of that step, and is there again; it begins at 5 s and is given up 6 s after 4 s."""
    w = plain([0.0, 0.0, 8.5], [4, 4, 4], [5, 9, 2])
    kind = client(timeout_s=6.0, first_token_timeout_s=3.25)
    once = run(w, params(max_num_seqs=1), UnitSteps(), client=kind)
    assert once.status.tolist() == [COMPLETED, ABANDONED, COMPLETED]
    assert (once.admit_s[2], once.finish_s[2]) == (8.5, 10.5)
    r = run(w, params(max_num_seqs=1), UnitSteps(), client=replace(kind, retries=1))
    assert r.clients is not None
    assert (r.clients.attempts.tolist(), r.clients.timeouts.tolist()) == ([1, 2, 1], [0, 2, 0])
    assert r.status.tolist() == [COMPLETED, ABANDONED, COMPLETED]
    assert r.clients.wasted_tokens.tolist() == [0, 4 + 4, 0]  # steps from 5 to 10 s
    assert (r.clients.abandoned_s[1], r.admit_s[2], r.finish_s[2]) == (10.0, 10.0, 12.0)
    assert np.isnan(r.first_token_s[1])


def test_the_engine_lets_go_at_the_end_of_the_step() -> None:
    w = plain([0.0, 3.0], [4, 4], [9, 1])
    r = run(w, params(max_num_seqs=1), UnitSteps(), client=client(timeout_s=4.5))
    assert r.clients is not None
    assert (r.clients.abandoned_s[0], r.admit_s[1]) == (4.5, 5.0)
    later = run(w, params(max_num_seqs=1, async_scheduling=True), UnitSteps(), client=client(timeout_s=4.5))
    assert later.admit_s[1] == 6.0  # the step after is decided already


def test_latency_counts_from_the_first_attempt_and_pauses_grow() -> None:
    """Refused at 0.1 s and after a pause of 1 s, less a part; the first is over when the second pause has."""
    w = plain([0.0, 0.1], [4, 4], [2, 1])
    limits = params(max_num_queued_reqs=1)
    r = run(w, limits, UnitSteps(), client=client(retries=3, backoff_s=1.0), seed=5)
    assert r.clients is not None
    assert (r.status.tolist(), r.clients.refusals.tolist(), r.arrival_s[1]) == ([COMPLETED] * 2, [0, 2], 0.1)
    assert 0.1 + 0.75 * 3 < r.admit_s[1] < 0.1 + 3
    assert run(w, limits, UnitSteps(), client=client(retries=3, backoff_s=1.0), seed=6).admit_s[1] != r.admit_s[1]
    short = run(w, limits, UnitSteps(), client=client(retries=3, backoff_s=1.0, max_backoff_s=0.1))
    assert short.status.tolist() == [COMPLETED, QUEUE_FULL]


def test_the_least_important_are_refused_first_and_sessions_that_go_on_last() -> None:
    """One runs, and they wait in order: the unimportant are refused from one waiting on, the important from two on."""
    w = plain([0.0, 0.1, 0.2, 0.3, 0.4], [4] * 5, [9] * 5, priority=np.array([0, 7, 7, 0, 0], np.int32))
    r = run(w, params(max_num_seqs=1), UnitSteps(), shed_over=1)
    assert r.status.tolist() == [COMPLETED, COMPLETED, SHED, COMPLETED, SHED]
    turns = {"session_id": np.array([0, 1, 2, 3, 3]), "turn": np.array([0, 0, 0, 0, 1])}
    w = plain([0.0, 0.1, 0.2, 0.3, 0.4], [4] * 5, [9] * 5, **turns)
    for first, last in ((False, SHED), (True, COMPLETED)):
        r = run(w, params(max_num_seqs=1), UnitSteps(), shed_over=1, sessions_first=first)
        assert r.status.tolist() == [COMPLETED, COMPLETED, SHED, SHED, last]


def overloaded(seconds: float = 60.0) -> tuple:
    """One at a time, an answer in 0.1 s, and 15 requests a second for a while."""
    rng = np.random.default_rng(0)
    arrival_s = np.cumsum(rng.exponential(1 / 15, int(15 * seconds)))
    w = plain(arrival_s, [4] * len(arrival_s), [10] * len(arrival_s))
    return w, params(max_num_seqs=1), LinearSteps(0.01, 0, 0, 0, 0, 0)


def test_retries_without_a_pause_make_an_overload_worse_and_a_limit_keeps_the_served_fast() -> None:
    w, p, steps = overloaded()

    def told(limit: int | None = None, **kind) -> tuple[float, float, float, float]:
        r = run(w, replace(p, max_num_queued_reqs=limit), steps, client=ClientConfig(**kind))
        assert r.clients is not None
        done = r.status == COMPLETED
        e2e_s = np.quantile((r.finish_s - r.arrival_s)[done], 0.95)
        wasted = r.clients.wasted_tokens.sum() / sum(s.n_decode.sum() + s.prefill_tokens.sum() for s in r.steps)
        return float(done.mean()), r.clients.attempts.sum() / len(w), float(wasted), float(e2e_s)

    patient, once = told(retries=1), told(timeout_s=1.0)
    storm, calm = (told(timeout_s=1.0, retries=5, backoff_s=pause, max_backoff_s=8.0) for pause in (0.0, 4.0))
    limited = told(limit=5)
    assert patient[3] > 20.0  # everybody waits, in the end half a minute
    assert once[2] > 0.3  # who is served last has waited most, and gives up in the middle of it
    assert storm[1] > 1.5 * once[1]  # attempts
    assert storm[0] <= once[0] + 0.02  # and no more answers in that time than without them
    assert storm[2] > calm[2]
    assert limited[3] < 0.75
    assert limited[2] == 0
    assert limited[0] > once[0]  # nothing is computed in vain: more are served


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"semantics": "trtllm"}, r"\[client\] timeouts with \[engine\] semantics = 'trtllm': expected semantics ="),
        ({"frontend_us_per_output_token": 5.0}, r"\[client\] timeouts with \[engine\] frontend_us_per_output_token"),
        ({"speculative": Speculation("ngram", (0.5, 0.5))}, r"\[client\] timeouts with \[speculative\]: expected"),
        ({"policy": "clairvoyant"}, r"\[client\] with an optimum or cache.policy = 'clairvoyant'"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(given: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run(plain([0.0], [4], [4]), params(**given), UnitSteps(), client=client(timeout_s=1.0))


def test_a_run_that_fell_says_when() -> None:
    n = 1000
    arrival_s, classes = np.arange(n, dtype=float), np.zeros(n, np.int64)
    rng = np.random.default_rng(0)
    held = rng.random(n) < 0.99
    groups = [("chat", 0.95, [0])]
    fallen = np.where(arrival_s < 600, held, rng.random(n) < 0.1)
    fell = fall_of(arrival_s, fallen, classes, groups)
    assert fell is not None
    assert (fell["at_s"], fell["before"] > 0.95, fell["after"] < 0.2) == (600.0, True, True)
    assert fall_of(arrival_s, held, classes, groups) is None
    assert fall_of(arrival_s, np.where((arrival_s > 400) & (arrival_s < 700), False, held), classes, groups) is None
    assert fall_of(arrival_s, rng.random(n) < 0.5, classes, groups) is None  # it never held
    assert sum(fall_of(arrival_s, rng.random(n) < 0.95, classes, groups) is not None for _ in range(30)) == 0


SCENARIO = """
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
ttft_s = 1.0
attainment = 0.95
[client]
first_token_timeout_s = 1.5
retries = 1
[[shock]]
kind = "cache-lost"
at_s = 5
duration_s = 0
"""


def test_what_clients_did_is_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SCENARIO)
    report = simulate(load_scenario(file))
    s, requests = report.summary, report.requests
    c = s["clients"]
    assert s["arrived"] == s["completed"] + s["abandoned"] + sum(s["rejected"].values()) + s["unfinished"]
    assert c["abandoned"] == s["abandoned"] > 50
    assert c["attempts"] == s["arrived"] + c["retries"] == requests["attempts"].sum()
    assert c["timeouts"] == s["abandoned"] + c["retries"]
    assert 0 < c["wasted_share"] < 1
    assert s["waiting_mean"] >= 0
    assert s["shocks"][0]["after"]["waiting"] < s["abandoned"]  # who has given up does not wait for ever
    assert s["attainment"] < s["completed"] / s["arrived"] < 0.9
    assert f"clients: {c['attempts']} attempts for {s['arrived']} arrivals" in " ".join(report.notes)
    assert main(["run", str(file), "--no-baseline"]) == 0
    assert f"{s['abandoned']} abandoned by their clients" in " ".join(capsys.readouterr().out.split())


def test_a_level_without_a_limit_is_refused_as_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SCENARIO + "[cluster]\nsessions_first = true\n")
    assert main(["run", str(file)]) == 2
    assert "[cluster] sessions_first = true: expected shed_over with it" in capsys.readouterr().err
