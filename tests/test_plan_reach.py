"""How far a fleet is looked at, and what the words about it may claim."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvcast import api, plan
from kvcast.config import scenario_from_doc
from kvcast.planner.binds import _binds
from kvcast.planner.load import DOUBLING, FARTHEST, Loads, with_load
from kvcast.planner.words import as_text
from sim.measure.verdict import Interval
from sim.scenario import SloConfig

CHAT = {
    "name": "chat",
    "share": 1,
    "turns": {"kind": "geometric", "mean": 3, "high": 6},
    "think": {"value": 2.0},
    "layers": [
        {
            "name": "message",
            "scope": "dynamic",
            "tokens": {"kind": "lognormal", "median": 900, "p90": 2500, "high": 8000},
        }
    ],
    "output": {"value": 120},
}


def closed(requests: int = 300, concurrency: int = 20, **slo: float):
    return scenario_from_doc(
        {
            "workload": {"loop": "concurrency", "concurrency": concurrency, "requests": requests, "class": [CHAT]},
            "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
            "slo": {"e2e_s": 12.0, "attainment": 0.8, **slo},
        }
    )


def test_more_sessions_at_once_are_not_served_from_the_same_few_sessions():
    asked = closed()
    assert with_load(asked, 2.0).workload.requests == 600
    made = plan(asked, fixed=True, binding=False, advice=False, n_plus_1=False)
    capacity = made["capacity"]
    for load, holds in ((capacity["slo_capacity_per_s"], True), (capacity["breaks_at_per_s"], False), (400, False)):
        summary = api.simulate(with_load(asked, load / 20)).summary
        assert (summary["attainment"] >= 0.8 and summary["stable"] is not False) == holds


@pytest.mark.parametrize(
    ("users", "sessions", "farthest"),
    [(2, 2, round(0.32 * DOUBLING)), (10, 20, DOUBLING), (10, 5, 0), (10, 10_000, FARTHEST)],
)
def test_no_load_is_looked_at_that_a_trace_has_no_sessions_for(users, sessions, farthest):
    asked = closed()
    trace = replace(
        asked,
        workload=replace(asked.workload, trace="some.jsonl", users=users, concurrency=None, class_=(), requests=None),
    )
    loads = Loads(SimpleNamespace(sessions=lambda _: sessions), trace)
    assert loads.farthest == pytest.approx(farthest, abs=1)
    assert sessions < users or round(users * 2 ** (loads.farthest / DOUBLING)) <= sessions


def test_the_capacitys_upper_end_is_what_misses_with_half_an_interval_more():
    """A fleet whose share falls by a hundredth a step from 0.95 at step 5 on, known to +- 0.025: 0.92 is the first that
    surely misses 0.95."""
    steps: dict[int, int] = {}

    def judge(trials, seed=None):
        for trial in trials:
            share = 0.95 - max(steps[trial.scenario.workload.concurrency] - 5, 0) / 100
            yield SimpleNamespace(
                trial=trial,
                attains=share >= 0.95,
                meets=share - 0.025 >= 0.95,
                stable=True,
                attainment=Interval(share, share - 0.025, share + 0.02),
                offered_per_s=1.0,
            )

    trials = SimpleNamespace(judge=judge, sessions=lambda _: 10**6, seeds=(0,), drawn=lambda _: False)
    loads = Loads(trials, with_load(closed(attainment=0.95), 50.0))
    steps.update({loads.trial(s).scenario.workload.concurrency: s for s in range(-FARTHEST, FARTHEST + 1)})
    loads.at(list(range(12)))
    found = loads.capacity()
    assert (found.most, found.held, found.low, found.high) == (5, 5, None, 8)


def test_a_target_that_every_load_meets_has_a_bound_for_a_headroom_and_nothing_that_binds():
    asked = closed(requests=40, concurrency=4, e2e_s=1000.0)
    bounded = replace(asked, workload=replace(asked.workload, duration_s=15.0))
    made = plan(bounded, fixed=True, n_plus_1=False)
    assert made["capacity"]["breaks_at_per_s"] is None
    assert made["binding"]["resource"] is None
    text = as_text(made)
    assert "headroom at least" in text
    assert "SLO capacity, undisturbed: at least" in text
    assert "nothing binds" in text


def test_what_binds_claims_no_more_than_the_intervals_carry():
    def row(resource, gain):
        return {"resource": resource, "gain": gain, "attainment": 0.9 + gain, "gain_low": 0.001, "gain_high": 0.1}

    base = SimpleNamespace(attainment=SimpleNamespace(mean=0.9), stable=None)
    rows = [row("compute", 0.024), row("memory bandwidth", 0.022), row("KV capacity", 0.0), row("replicas", 0.05)]
    assert _binds(rows, ["memory bandwidth"], base, "3 requests/s") == (
        "compute",
        ["memory bandwidth"],
        (
            "at 3 requests/s, 20 % more compute raises attainment from 90.0 % to 92.4 %; memory bandwidth cannot be"
            " told apart from it"
        ),
    )
    assert _binds(rows, [], base, "3 requests/s")[2].endswith("more than any other resource")
    base.stable = False
    assert "the backlog grows" in _binds([row("compute", 0.0)], [], base, "3 requests/s")[2]


def test_free_gpus_are_still_counted():
    chat = {key: value for key, value in CHAT.items() if key != "share"}
    free = scenario_from_doc(
        {
            "workload": {"duration_s": 30.0, "class": [{**chat, "rate": 5.0}]},
            "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
            "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.85},
            "cost": {"gpu_hour_usd": 0.0},
        }
    )
    alone = {
        "most": 12,
        "growth": None,
        **dict.fromkeys(("capacity", "binding", "advice", "n_plus_1", "recover"), False),
    }
    wanted = plan(replace(free, cost=replace(free.cost, gpu_hour_usd=2.0)), **alone)["answer"]["replicas"]
    assert wanted is not None
    made = plan(free, ["cost.gpu_hour_usd=1,0"], **alone)
    assert (made["answer"]["replicas"], made["answer"]["values"], made["answer"]["usd_per_hour"]) == (
        wanted,
        {"cost.gpu_hour_usd": "0"},
        0.0,
    )


def test_a_limit_that_nobody_missed_is_no_reason():
    asked = replace(closed(requests=12, concurrency=4, e2e_s=1000.0), slo=SloConfig(e2e_s=1000.0, attainment=0.95))
    words = plan(asked, most=1, capacity=False, binding=False, advice=False, growth=None)["verdict"]
    assert "more seeds or a longer workload would tell" in words
    assert "missed" not in words
