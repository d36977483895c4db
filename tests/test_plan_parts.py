"""The planner's parts by themselves: searches, intervals, early stops, 20 % more of a resource, the oracle router."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from calibrate.faster import RESOURCES, faster
from calibrate.sources.roofline import gpu_key
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.planner.candidates import Combination
from kvcast.planner.fleet import TIES, Fleet
from kvcast.planner.load import knee
from kvcast.planner.outcomes import _different
from kvcast.studies.levers import ADVICE, changes
from kvcast.studies.search import Found, fewest, scan, together
from sim.fleet.hopeless import Hopeless, may_arrive
from sim.measure.verdict import Interval, interval, requests_needed, wilson
from sim.recording import NOT_ARRIVED, STATUS
from sim.scenario import EngineParams, RunConfig, SloConfig
from sim.simulate import run
from tests.fuzz import unequal
from tests.worlds import UnitSteps, plain
from workloads.errors import InputError


def answered(search, meets) -> tuple[Found, list[int]]:
    asked: list[int] = []

    def judge(questions):
        asked.extend(n for ns in questions.values() for n in ns)
        return {key: [meets(n) for n in ns] for key, ns in questions.items()}

    return together({"one": search}, judge)["one"], asked


@pytest.mark.parametrize(("guess", "stride"), list(itertools.product((1, 2, 7, 20, 64), (1, 4))))
def test_the_fewest_is_found_from_any_guess_and_both_neighbours_were_judged(guess, stride):
    for need in range(1, 65):
        found, asked = answered(fewest(guess, 64, stride=stride), lambda n, need=need: n >= need)
        assert found.fewest == need
        assert need in asked
        assert need == 1 or need - 1 in asked
        assert len(asked) == len(set(asked)) <= 14


def test_nothing_meets():
    found, asked = answered(fewest(5, 40), lambda n: False)
    assert found == Found(None, 41)
    assert 40 in asked


def test_a_search_ends_when_its_answer_would_no_longer_matter():
    found, asked = answered(fewest(3, 64, worth=lambda n: n <= 6), lambda n: n >= 30)
    assert found.given_up
    assert found.fewest is None
    assert found.at_least > 6
    assert max(asked) < 30


def test_a_scan_finds_the_first_of_any_response():
    meets = {2, 5, 6}
    assert answered(scan(8), lambda n: n in meets)[0] == Found(2, 2)


def test_searches_advance_in_rounds_that_do_not_depend_on_who_answers():
    rounds = []

    def judge(asked):
        rounds.append({key: list(ns) for key, ns in asked.items()})
        return {key: [n >= {"a": 3, "b": 9}[key] for n in ns] for key, ns in asked.items()}

    found = together({"a": fewest(3, 64), "b": fewest(3, 64)}, judge)
    assert {key: one.fewest for key, one in found.items()} == {"a": 3, "b": 9}
    assert set(rounds[0]) == {"a", "b"}


# -- many combinations -------------------------------------------------------------------------------------------------


def searched(needs: list[int], prices: list[float], requests: int = 1, every: bool = False) -> Fleet:
    """A fleet whose combination i needs needs[i] replicas at prices[i] a GPU-hour, and attains more the higher its
    number."""
    base = scenario()
    combinations = [
        Combination({"n": str(i)}, replace(base, name=str(i), cost=replace(base.cost, gpu_hour_usd=price)))
        for i, price in enumerate(prices)
    ]

    def judge(trials):
        found = []
        for trial in trials:
            i, n = int(trial.scenario.name), trial.scenario.cluster.replicas
            found.append(
                SimpleNamespace(
                    meets=n >= needs[i],
                    attains=n >= needs[i],
                    served=n / needs[i],
                    attainment=Interval(0.0, i / 1000, 1.0),
                )
            )
        return found

    trials = SimpleNamespace(
        judge=judge,
        settle=lambda trial: judge([trial])[0],
        refusal=lambda asked: None,
        seeds=(0,),
        workload=lambda asked: range(requests),
    )
    fleet = Fleet(trials, combinations, 64, every)
    fleet._guess = lambda i: 6
    fleet.search()
    return fleet


@pytest.mark.parametrize("seed", range(8))
def test_of_a_hundred_combinations_the_cheapest_wins_and_few_are_simulated_more_than_once(seed):
    rng = random.Random(seed)
    needs, prices = [rng.randint(2, 12) for _ in range(100)], [rng.choice((1.0, 1.0, 1.5, 2.0)) for _ in range(100)]
    best = min(need * price for need, price in zip(needs, prices, strict=True))
    fleet, every = searched(needs, prices), searched(needs, prices, every=True)
    assert fleet.cost(fleet.winner, fleet.replicas) == every.cost(every.winner, every.replicas) == best
    assert fleet.winner == every.winner, "of the same cost the one that attains most"
    assert len(fleet.judged) < 220 < len(every.judged)
    for i, found in fleet.found.items():
        assert found.fewest == needs[i] or (
            needs[i] * prices[i] > best and fleet.why_given_up(i).endswith("dearer than the best fleet")
        )


def test_fewer_replicas_are_no_reason_where_they_cost_more():
    fleet = searched([12, 3, 5], [1.0, 3.0, 1.5])
    assert [fleet.found[i].fewest for i in range(3)] == [12, 3, 5]
    assert fleet.winner == 2, "5 at $1.50 an hour, neither 3 at $3 nor 12 at $1"


def test_runs_in_which_every_request_fares_alike_are_one():
    def outcome(ttft_s: float):
        columns = {name: np.array([1.0, np.nan, ttft_s]) for name in ("ttft_s", "tpot_s", "e2e_s")}
        return SimpleNamespace(good=np.ones(3, bool), sample=SimpleNamespace(columns=columns))

    alike = [outcome(2.0), outcome(2.0), outcome(2.0)]
    assert _different(alike) == alike[:1]
    one_differs = [*alike[:2], outcome(2.5)]
    assert _different(one_differs) == one_differs


def test_ties_are_compared_for_a_budget_of_requests_and_the_others_say_so():
    fleet = searched([5] * 100, [1.0] * 100, requests=TIES // 10)
    compared = [i for i, found in fleet.found.items() if found.fewest == 5]
    assert len(compared) == 11
    left = [fleet.why_given_up(i) for i in fleet.found if i not in compared]
    assert left == ["5 replicas or more: at best as dear as the best fleet, not compared with it (--every does)"] * 89
    assert fleet.notes == [
        "89 combinations may do at the same cost and were not compared with the best: --every compares all"
    ]
    assert sorted(n for _, n in fleet.judged).count(4) == 100, "all were asked whether they do with less"


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_wilson_and_the_requests_a_target_needs():
    low, high = wilson(95, 100, 0.95)
    assert (round(low, 4), round(high, 4)) == (0.8882, 0.9785)  # the textbook's example of 95 of 100
    for target in (0.9, 0.95, 0.999):
        n = requests_needed(target, 0.95)
        assert wilson(n, n, 0.95)[0] >= target > wilson(n - 1, n - 1, 0.95)[0]


def test_no_miss_is_no_certainty():
    found = interval([np.ones(200, bool)], 0.95)
    assert found.mean == 1.0
    assert 0.97 < found.low < 0.99


def test_misses_in_a_row_make_the_interval_wide():
    rng = np.random.default_rng(0)
    scattered, in_a_row = rng.random(2000) > 0.05, np.arange(2000) >= 100
    assert interval([in_a_row], 0.95).low < interval([scattered], 0.95).low - 0.02


def test_intervals_of_independent_requests_hold_the_truth():
    rng = np.random.default_rng(1)
    held = sum(
        found.low <= 0.95 <= found.high for found in (interval([rng.random(1000) < 0.95], 0.95) for _ in range(300))
    )
    assert held >= 0.93 * 300


def test_from_five_seeds_on_the_seeds_are_the_observations():
    seeds = [np.arange(400) >= misses for misses in (0, 40, 0, 40, 20, 20)]
    spread = interval(seeds, 0.95)
    alike = interval([np.arange(400) % 20 != 0] * 6, 0.95)
    assert spread.mean == pytest.approx(alike.mean)
    assert spread.half > 2 * alike.half


def test_the_knee_is_where_goodput_stops_rising():
    rows = [{"rate_per_s": r, "goodput_per_s": g} for r, g in ((1, 1), (2, 2), (3, 2.95), (4, 3.0), (5, 1.0))]
    assert knee(rows) == 3
    assert knee(rows[:4]) is None


# -- early stop --------------------------------------------------------------------------------------------------------


def scenario(**sections):
    """A minute of a chat, with sections changed; a key that is None is left out."""
    workload = {
        "duration_s": 60.0,
        "class": [
            {
                "name": "chat",
                "rate": 6.0,
                "turns": {"kind": "geometric", "mean": 3, "high": 6},
                "think": {"value": 4.0},
                "layers": [
                    {"name": "system", "scope": "global", "tokens": {"value": 800}},
                    {
                        "name": "message",
                        "scope": "dynamic",
                        "tokens": {"kind": "lognormal", "median": 600, "p90": 3000, "high": 9000},
                    },
                ],
                "turn_input": {"value": 200},
                "output": {"kind": "lognormal", "median": 150, "p90": 400, "high": 900},
            }
        ],
    }
    doc = {"workload": workload, "run": {"warmup_s": 0.0}, "slo": {"ttft_s": 0.4, "tpot_s": 0.02, "attainment": 0.95}}
    for name, values in sections.items():
        doc[name] = {key: value for key, value in {**doc.get(name, {}), **values}.items() if value is not None}
    return scenario_from_doc(doc)


CASES = [
    {},
    {"slo": {"ttft_s": 0.05}},
    {"slo": {"tpot_s": 0.007}},
    {"slo": {"e2e_s": 1.5}},
    {"engine": {"kv_blocks": 900}},
    {"engine": {"semantics": "sglang", "block_size": 1, "kv_blocks": 20_000}},
    {"engine": {"max_model_len": 2500}},
    {"run": {"warmup_s": 10.0, "duration_s": 50.0}},
    {
        "workload": {"loop": "concurrency", "concurrency": 60, "requests": 800, "duration_s": None},
        "run": {"warmup_s": 0.0},
    },
]


@pytest.mark.parametrize("sections", CASES, ids=[str(case)[:60] for case in CASES])
def test_a_run_that_is_stopped_would_have_missed_and_one_that_is_not_is_the_same_run(sections):
    asked = scenario(**sections)
    prepared = api.prepare(asked)
    full = api.run(prepared)
    requests = full.report.requests
    missed = int((requests["in_window"] & ~requests["good"]).sum())
    run = prepared.scenario.run
    assert int(requests["in_window"].sum()) <= may_arrive(prepared.workload, run).sum()
    for allowed in sorted({0, missed // 2, max(missed - 1, 0), missed, missed + 1}):
        hopeless = Hopeless(prepared.workload, asked.slo, run, allowed)
        recording = api.record(prepared, hopeless=hopeless)
        if hopeless.stopped_s is None:
            assert next(unequal(recording, api.record(prepared)), "") == ""
        else:
            assert hopeless.missed["any"] <= missed
            assert missed > allowed


class Recounted(Hopeless):
    """Beside each look the same count from scratch, request by request."""

    looks = 0

    def look(self, now_s, log, replicas):
        super().look(now_s, log, replicas)
        self.looks += 1
        for r, output in enumerate(self._output.tolist()):
            arrival_s, refused = log.arrival_s[r], STATUS[log.status[r]].startswith("rejected")
            counted = log.status[r] != NOT_ARRIVED and (self._run.warmup_s or 0.0) <= arrival_s <= (
                self._run.duration_s or np.inf
            )
            told_s = replicas[log.replica[r]].record.told_s
            first_s = told_s(log.first_step[r]) if log.first_step[r] >= 0 else None
            until_s = told_s(log.last_step[r]) if log.last_step[r] >= 0 else now_s
            waited = {
                "ttft_s": (now_s if first_s is None else first_s) - arrival_s,
                "e2e_s": until_s - arrival_s,
                "tpot_s": 0.0 if first_s is None or output == 1 else (until_s - first_s) / (output - 1),
            }
            missed = {name: counted and bool(refused or waited[name] > self._limit[name][r]) for name in waited}
            assert self._counted[r] == counted
            assert {name: bool(self._missed[name][r]) for name in missed} == missed
            assert self._missed["any"][r] == any(missed.values())
            if counted and (refused or log.last_step[r] >= 0):
                assert r not in self._open, "what is settled is not read again"


@pytest.mark.parametrize("sections", CASES, ids=[str(case)[:60] for case in CASES])
def test_a_look_counts_what_a_count_from_scratch_does(sections):
    asked = scenario(**sections, cluster={"replicas": 2})
    prepared = api.prepare(asked)
    hopeless = Recounted(prepared.workload, asked.slo, prepared.scenario.run, len(prepared.workload))
    hopeless.every = 60
    api.record(prepared, hopeless=hopeless)
    assert hopeless.looks > 10


@pytest.mark.parametrize("allowed", [0, None])
def test_what_is_missed_in_the_warm_up_stops_nothing(allowed):
    """Twenty at once before one seat, of which fifteen wait longer than 5 s; from 50 s on everybody is alone."""
    w = plain([*[0.0] * 20, *range(60, 160, 10)], [4] * 30, [1] * 30)
    for warmup_s, stops in ((50.0, False), (0.0, True)):
        hopeless = Hopeless(w, SloConfig(ttft_s=5.0, attainment=0.9), RunConfig(warmup_s=warmup_s), allowed)
        hopeless.every = 1
        run(w, EngineParams(kv_blocks=100, max_num_seqs=1), UnitSteps(), hopeless=hopeless)
        assert (hopeless.stopped_s is not None) == stops


def test_an_overload_is_stopped_long_before_its_end():
    asked = scenario(workload={"rate_scale": 8.0})
    prepared = api.prepare(asked)
    hopeless = Hopeless(prepared.workload, asked.slo, prepared.scenario.run, int(0.05 * len(prepared.workload)))
    stopped = api.record(prepared, hopeless=hopeless)
    assert hopeless.stopped_s is not None
    assert np.isfinite(stopped.finish_s).mean() < 0.7


# -- what is tried -----------------------------------------------------------------------------------------------------


def test_smaller_blocks_are_as_many_more_of_them():
    asked = scenario(engine={"block_size": 64, "kv_blocks": 1000})
    (one,) = (change for change in changes(ADVICE, asked) if change.words.startswith("block size 64 -> 16,"))
    assert one.sets == ("engine.block_size=16", "engine.kv_blocks=4000")
    assert (one.scenario.engine.block_size, one.scenario.engine.kv_blocks) == (16, 4000)


# -- 20 % more, and an oracle ------------------------------------------------------------------------------------------


def test_a_faster_gpu_is_never_slower_and_steps_are_stretches_to_the_last_bit():
    prepared = api.prepare(scenario())
    resolved = prepared.resolved
    rng = random.Random(0)
    for resource in RESOURCES:
        plus = faster(prepared.step_time, resolved.profile, resolved.model, "bf16", resource)
        gains = []
        for _ in range(50):
            n = rng.randint(1, 200)
            longest = rng.randint(10, 20_000)
            total = longest + sum(rng.randint(1, longest) for _ in range(n - 1))
            times, _ = plus.decode_stretch(n, total, longest, 7)
            stepped = [plus.step([], n, total + i * n, longest + i, n)[0] for i in range(7)]
            assert times.tolist() == stepped
            gains.append(prepared.step_time.step([], n, total, longest, n)[0] / stepped[0])
        assert all(1.0 <= gain <= 1.2 + 1e-9 for gain in gains)
        chunk = plus.step([(4096, 0)], 0, 0, 0, 1)[0] / prepared.step_time.step([(4096, 0)], 0, 0, 0, 1)[0]
        assert (chunk < 0.87) if resource == "compute" else (chunk > 0.95)
        assert max(gains) > (1.1 if resource == "memory bandwidth" else 0.99)


def test_a_gpu_without_a_roofline_is_one_clear_line():
    assert gpu_key("NVIDIA H200") == "h200"
    assert gpu_key("RTX PRO 6000 Blackwell") == "rtx-pro-6000"
    with pytest.raises(InputError, match="is not among the GPUs with a roofline"):
        gpu_key("fake device")


def test_the_oracle_hits_more_and_is_repeatable():
    asked = scenario(cluster={"replicas": 4, "router": "round-robin"})
    prepared = api.prepare(asked)
    plain = api.run(prepared).report.summary
    oracle = api.run(prepared, oracle=True).report
    assert oracle.summary["prefix_hit_rate"] > plain["prefix_hit_rate"] + 0.05
    assert oracle.summary["attainment"] >= plain["attainment"] - 0.002
    assert next(unequal(api.record(prepared, oracle=True), api.record(prepared, oracle=True)), "") == ""
