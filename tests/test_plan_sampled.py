"""A sample of a fleet stands for the whole: which part it is, that its shares are the fleet's, and what it decides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kvcast import api, plan
from kvcast.planner import recovery
from kvcast.planner import sampled as sampling
from kvcast.planner.fleet import Fleet
from kvcast.planner.reaching import _promising, recoverable
from kvcast.planner.sampled import ENOUGH, brief, sampled
from kvcast.planner.trials import Trial, Trials
from kvcast.store.simulations import Lab
from kvcast.studies.search import Found
from sim.measure.verdict import MEETS, MISSES, ClassVerdict, Interval
from sim.scenario import BURST, Shock
from tests.plan_cases import ALONE, CHAT, scenario
from tests.test_plan_reach import closed
from workloads import mix
from workloads.steady import requests_per_s

QUESTION = {**CHAT, "turns": {"value": 1}, "rate": 24.0}


def fleet(replicas: int, lasts_s: float, question: dict = QUESTION, **sections):
    """Single questions to a fleet whose router throws dice: replicas that have nothing to do with one another."""
    end_s = 60.0 + lasts_s
    asked = scenario(
        workload={"class": [question], "duration_s": end_s},
        run={"warmup_s": 60.0, "duration_s": end_s},
        cluster={"router": "random"},
        **sections,
    )
    return replace(asked, cluster=replace(asked.cluster, replicas=replicas))


def test_a_sample_has_its_share_of_replicas_and_load_for_half_as_long():
    whole = fleet(12, lasts_s=1000.0)
    one = sampled(Trial(whole, full=True, keep=True))
    sample = one.scenario
    rate = requests_per_s(mix.resolve(sample.workload))
    assert (sample.cluster.replicas, one.share) == (3, 3 / 12)
    assert rate == pytest.approx(24.0 * one.share)
    assert (sample.run.warmup_s, sample.run.duration_s) == (30.0, 530.0)
    assert ENOUGH <= rate * 500.0 < 1.5 * ENOUGH
    assert (one.full, one.keep) == (True, False)


def test_a_sample_has_enough_of_the_smallest_class():
    rare = {**QUESTION, "name": "rare", "rate": 0.6}
    whole = fleet(12, lasts_s=1000.0)
    two = replace(whole, workload=scenario(workload={"class": [QUESTION, rare], "duration_s": 1060.0}).workload)
    share = sampled(Trial(two)).share
    assert share == pytest.approx(4 / 12)  # 0.6 / s x 500 s x 4 / 12 = 100


def test_replicas_around_one_store_are_asked_all_together():
    """A few of them would fill it and ask it as a few."""
    tier = {"name": "store", "capacity_gib": 64, "bandwidth_gb_per_s": 20}
    of = {shared: fleet(12, 1000.0, cache={"tiers": [tier | {"shared": shared}]}) for shared in (False, True)}
    assert [sampled(Trial(of[shared])).scenario.cluster.replicas for shared in (False, True)] == [3, 12]


@pytest.mark.parametrize(
    "asked",
    [
        fleet(12, lasts_s=20.0),
        closed(),
        replace(fleet(12, lasts_s=1000.0), shock=(Shock(BURST, 300.0, 60.0, 2.0),)),
        fleet(12, lasts_s=1000.0, question={**QUESTION, "arrival": {"kind": "onoff", "on_s": 5.0, "off_s": 5.0}}),
    ],
    ids=["too short", "closed loop", "shock", "bursts"],
)
def test_what_has_no_part_like_it_is_simulated_whole(asked):
    trial = Trial(asked)
    assert sampled(trial) is trial
    assert brief(trial).scenario.cluster.replicas == asked.cluster.replicas


def test_samples_attain_what_the_whole_fleet_does(monkeypatch):
    """Replicas that a random router deals to are independent: the share of good requests is the same in law."""
    monkeypatch.setattr(sampling, "ENOUGH", 300)
    whole = fleet(6, lasts_s=200.0, question={**QUESTION, "rate": 11.0})
    part = sampled(Trial(whole)).scenario
    assert part.cluster.replicas == 2
    ours, theirs = ([_attained(replace(one, seed=s)) for s in range(4)] for one in (part, whole))
    assert 0.5 < np.mean(theirs) < 0.99
    assert abs(np.mean(ours) - np.mean(theirs)) < 3 * np.hypot(np.std(ours, ddof=1), np.std(theirs, ddof=1)) / 2
    half = replace(part, cluster=replace(part.cluster, replicas=part.cluster.replicas - 1))
    assert np.mean(theirs) - _attained(half) > 0.1, "the load is the replicas' own share"


def _attained(one) -> float:
    return float(api.simulate(one).summary["attainment"])


def test_a_search_looks_at_samples_and_the_answer_is_settled_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(sampling, "ENOUGH", 300)
    asked = fleet(1, lasts_s=200.0, question={**QUESTION, "rate": 9.0})
    made = plan(asked, most=12, out=tmp_path, **{**ALONE, "seeds": 2})
    answer, rows = made["answer"], {row["replicas"]: row for row in made["candidates"]}
    settled = rows[answer["replicas"]]
    assert (settled["sample"], settled["runs"]) == (None, answer["runs"])
    assert settled["run"] is not None
    samples = [row for row in rows.values() if row["sample"]]
    assert samples
    for row in samples:
        assert row["sample"]["share"] == pytest.approx(row["sample"]["replicas"] / row["replicas"])
        if row["goodput_per_s"] is not None:
            assert row["goodput_per_s"] == pytest.approx(row["attainment"]["mean"] * 9.0, rel=0.01)


# -- what is settled, and how often ------------------------------------------------------------------------------------


def trials_of(tmp_path, seeds: int = 5) -> Trials:
    return Trials(Lab(tmp_path), list(range(seeds)), 0.95)


@pytest.mark.parametrize(("attains", "runs"), [((False, False), 2), ((False, True), 5), ((True, False), 5)])
def test_a_fleet_that_misses_in_both_of_its_first_runs_is_asked_no_more(attains, runs, tmp_path, monkeypatch):
    trials = trials_of(tmp_path)
    monkeypatch.setattr(trials, "drawn", lambda _: True)
    monkeypatch.setattr(trials, "_task", lambda trial, seed: seed)
    monkeypatch.setattr(trials, "_simulate", lambda tasks: None)

    def judged(trial, tasks, confidence):
        good = [attains[seed] if seed < len(attains) else True for seed in tasks]
        return SimpleNamespace(attains=all(good), verdict=MISSES, runs=tuple(tasks))

    monkeypatch.setattr(trials, "_judged", judged)
    assert len(trials.settle(Trial(scenario())).runs) == runs
    assert len(trials.settle(Trial(scenario(), full=True)).runs) == 5


@pytest.mark.parametrize(("attains", "few"), [((False, False, False), True), ((False, True, False), False)])
def test_one_replica_less_is_settled_unless_three_samples_miss(attains, few):
    found = Fleet.__new__(Fleet)
    told = []
    found.trials = SimpleNamespace(missed=lambda trial, runs: None if any(attains[:runs]) else runs)
    found.settled, found.judged, found._on_judged = {}, {}, lambda i, n: told.append((i, n))
    found._trial = lambda i, n: Trial(scenario(), share=0.5)
    assert found._too_few(0, 3) == few
    assert (found.judged, told) == (({(0, 3): 3}, [(0, 3)]) if few else ({}, []))
    found._trial = lambda i, n: Trial(scenario())
    assert not found._too_few(0, 3), "the whole fleet is settled"


@pytest.mark.parametrize(("half", "share", "promising"), [(0.008, 1.0, True), (0.02, 1.0, False), (0.02, 0.2, True)])
def test_a_load_is_worth_settling_where_the_whole_fleet_would_show_it(half, share, promising):
    row = ClassVerdict("all", 0.95, 1000, Interval(0.96, 0.96 - half, 0.97), MEETS, None)
    asked = scenario()
    one = SimpleNamespace(trial=Trial(asked, share=share), attains=True, judged=SimpleNamespace(classes=(row,)))
    assert _promising(one, asked) == promising
    longer = replace(asked, run=replace(asked.run, duration_s=1000.0))
    assert _promising(one, longer)


@pytest.mark.parametrize("back", [1, 0, -1, -5, -20])
def test_the_highest_load_that_comes_back_is_found_in_few_long_runs(back):
    asked = []

    def recovers(step, seeds):
        asked.append((step, seeds))
        return step <= (back if seeds == 1 else back - 2)

    assert recoverable(recovers, 1) == back - 2
    assert sum(step > back for step, seeds in asked if seeds == 1) <= 8, "21 one by one"
    assert {step for step, seeds in asked if seeds > 1} == {back, back - 1, back - 2}


@pytest.mark.parametrize("edge", range(14))
@pytest.mark.parametrize("late", [0.0, 0.5, 1.0], ids=["at once", "late by its load", "in time only"])
def test_the_highest_load_that_is_back_is_found_however_long_it_takes(edge, late):
    """Asked in a few runs, of which few do not come back."""
    asked = []

    def back_s(step):
        asked.append(step)
        return late * 60.0 * step / max(edge, 1) if step <= edge else None

    assert recovery.highest_back(back_s, 13, 9, 60.0) == edge
    assert len(asked) == len(set(asked)) <= 6
    assert sum(step > edge for step in asked) <= 4


def test_the_next_load_asked_is_far_above_one_that_is_back_soon_and_near_one_that_is_back_late():
    for took_s, following in ((0.0, 13), (30.0, 11), (60.0, 10), (None, 4)):
        asked = []
        recovery.highest_back(lambda step: asked.append(step) or took_s, 13, 9, 60.0)  # noqa: B023
        assert asked[:2] == [9, following]


@pytest.mark.parametrize(
    ("edges", "holes", "found"),
    [((9, 9, 9), (), 9), ((9, 4, 6), (), 4), ((5, 9, 9), (), 5), ((9, 9, 0), (), 0), ((9, 9, 5), ((0, 5),), 4)],
    ids=["all it holds", "the second", "the first", "only its own load", "not from one below an edge"],
)
def test_the_load_that_every_seed_comes_back_from(edges, holes, found, monkeypatch):
    """Each seed comes back from all steps up to its edge, but for holes: (seed, step)."""
    asked = []

    def back_s(step, seed):
        asked.append((step, seed))
        return 1.0 if step <= edges[seed] and (seed, step) not in holes else None

    monkeypatch.setattr(recovery, "recovered_s", lambda trials, step, seed, to_the_end=False: back_s(step, seed))
    judged = recovery.Recovery(SimpleNamespace(trials=SimpleNamespace(seeds=(0, 1, 2, 3))), back_s=[0.0])
    monkeypatch.setattr(recovery, "all_of", lambda step: step)
    part = lambda step: SimpleNamespace(scenario=step)  # noqa: E731
    loads = SimpleNamespace(whole=lambda step: step, trial=part, scenario=scenario())
    assert judged.capacity(loads, SimpleNamespace(held=9)) == found
    assert len({one for one in asked if one[0] > edges[one[1]]}) <= 8, "runs that do not come back"
    assert found < 9 or len(set(asked)) == 4, "one that is back at once a little below is asked at all it holds next"
    assert all(0 < step <= 9 for step, _ in asked), "it comes back from the load it has, and holds no more than 9"


def test_every_replica_is_asked_after_the_warm_up_of_a_sample():
    eight, two = fleet(8, 1200.0), fleet(2, 1200.0)
    asked, sample = recovery.all_of(Trial(eight)), sampled(Trial(eight)).scenario
    assert asked.cluster.replicas == 8 > sample.cluster.replicas
    assert asked.workload.rate_scale == eight.workload.rate_scale
    assert asked.run.warmup_s == sample.run.warmup_s < eight.run.warmup_s
    assert recovery.all_of(Trial(two)) == sampled(Trial(two)).scenario, "a sample that has all of them"


def test_the_last_seed_is_asked_of_every_replica(monkeypatch):
    """Of the load that it recovers from: a sample of the fleet, and for the last seed all of it."""
    asked = []
    monkeypatch.setattr(
        recovery, "recovered_s", lambda trials, part, seed, to_the_end: asked.append((seed, part, to_the_end)) or 0.0
    )
    monkeypatch.setattr(recovery, "all_of", lambda trial: f"all at {trial}")
    judged = recovery.Recovery(SimpleNamespace(trials=SimpleNamespace(seeds=(0, 1, 2, 3))), back_s=[0.0])
    part = lambda step: SimpleNamespace(scenario=f"a sample at {step}")  # noqa: E731
    loads = SimpleNamespace(whole=lambda step: step, trial=part, scenario=scenario())
    assert judged.capacity(loads, SimpleNamespace(held=3)) == 3
    assert [one for one in asked if one[0] == 2] == [(2, "all at 3", True)] * 2
    assert {(seed, part, end) for seed, part, end in asked if seed < 2} == {
        (0, "a sample at 1", False),
        (0, "a sample at 3", False),
        (1, "a sample at 3", False),
    }


class Asked:
    """A fleet whose search found one replica, and what is asked of it. It comes back with `back` replicas or more, and
    meets its target with `meets`."""

    most, winner = 8, 0

    def __init__(self, back: int, meets: int, held: bool) -> None:
        self.found, self.back, self.held, self.did = {0: Found(1, 1)}, back, held, []
        self.trials = SimpleNamespace(seeds=(0, 1, 2))
        self.answer = SimpleNamespace(meets=True)
        self._meets = meets

    @property
    def replicas(self) -> int:
        return self.found[0].fewest

    def cost(self, i: int, n: int) -> int:
        return n

    def whole(self, i: int, n: int) -> SimpleNamespace:
        return SimpleNamespace(scenario=n)

    def holds(self, i: int, n: int) -> bool:
        self.did.append(f"{n} holds?")
        return self.held

    def settle(self) -> None:
        self.did.append("settled")
        self.found[0] = Found(self._meets, self._meets)

    def answer_with(self, i: int, n: int) -> None:
        self.found[0] = Found(n, n)
        self.did.append(f"the answer is {n}")


@pytest.mark.parametrize(
    ("asked", "held", "fragile", "did"),
    [
        (Asked(3, 1, True), 1, {1, 2}, ["1 holds?", "the answer is 3"]),
        (Asked(3, 2, False), 2, {2}, ["1 holds?", "settled", "the answer is 3"]),
        (Asked(1, 1, True), 1, set(), ["settled", "the answer is 1"]),
        (Asked(9, 1, True), 1, set(range(1, 9)), ["1 holds?", "the answer is 1"]),
    ],
    ids=["falls and holds", "falls and does not hold", "is back", "no fleet is back"],
)
def test_what_falls_in_its_first_burst_and_holds_until_then_is_not_settled(asked, held, fragile, did, monkeypatch):
    """The larger one that comes back is; what does not hold by a second run is settled as ever."""
    monkeypatch.setattr(recovery, "recovered_s", lambda trials, n, *_: 5.0 if n >= asked.back else None)
    judged = recovery.Recovery(asked)
    monkeypatch.setattr(judged, "times_s", lambda n: [5.0] if n >= asked.back else [None])
    judged.enlarge()
    assert (judged.held, asked.did) == (held, did)
    assert {n for _, n in judged.fragile} <= fragile
    assert held in {n for _, n in judged.fragile} or asked.back == held
    assert judged.recovers == (asked.back < 9)


@pytest.mark.parametrize(("seeds", "second"), [((4, 5, 6), 5), ((4,), 4)])
@pytest.mark.parametrize("attains", [True, False])
def test_a_fleet_holds_until_disturbed_where_a_second_run_of_all_of_it_says_so(seeds, second, attains):
    found, asked = Fleet.__new__(Fleet), []
    one = SimpleNamespace(attains=attains)
    found.trials = SimpleNamespace(seeds=seeds, judge=lambda trials, seed: asked.append((trials, seed)) or [one])
    found.judged, found._on_judged = {}, lambda i, n: None
    found.whole = lambda i, n: (i, n)
    assert found.holds(0, 2) == attains
    assert asked == [([(0, 2)], second)]
    assert found.judged == ({(0, 2): one} if attains else {})
