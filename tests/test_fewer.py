"""Routers and splits that need fewer GPUs than a plan's answer: what is asked, who is followed down, who is settled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvcast.config import load_doc
from kvcast.planner import Options
from kvcast.planner.candidates import combinations
from kvcast.planner.fewer import TRIES, fewer
from kvcast.planner.fleet import Fleet
from kvcast.planner.trials import Trials
from kvcast.planner.words.fewer import answers, sentence
from kvcast.planner.words.fewer import fewer as told
from kvcast.scenario.toml import dumps
from kvcast.store.simulations import Lab
from kvcast.studies.levers import ROUTER, SPLIT, changes, without_changes
from sim.measure.verdict import Interval
from sim.scenario import PlanConfig
from tests.plan_cases import scenario
from workloads.errors import InputError

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {"least-loaded": 8, "session-affinity": 5, "session-hash": 6, "llm-d-approx": 9, "llm-d-precise": 5}
"""Replicas that each router needs in the world of `Table`."""


class Table:
    """Trials of a world in which a router holds with the replicas it needs; settled runs ask for `more` than samples
    do."""

    def __init__(self, needs: dict[str, int], more: int = 0) -> None:
        self.needs, self.more = needs, more
        self.judged: list[tuple[str, int]] = []
        self.settled: list[tuple[str, int]] = []

    def cannot_run(self, scenario):
        return "no such gateway" if scenario.cluster.router not in self.needs else None

    def judge(self, trials):
        places = [(one.scenario.cluster.router, one.scenario.cluster.replicas) for one in trials]
        self.judged += places
        return [self._one(router, n, 0) for router, n in places]

    def settle(self, trial):
        place = (trial.scenario.cluster.router, trial.scenario.cluster.replicas)
        self.settled.append(place)
        return self._one(*place, self.more)

    def _one(self, router, n, more):
        holds = n >= self.needs[router] + more
        attainment = Interval(0.97, 0.96, 0.98) if holds else None
        return SimpleNamespace(attains=holds, meets=holds, attainment=attainment, at_most=0.94, runs=(1, 2, 3))


def found(needs, n=8, more=0, meets=True, recovery=None, answered=True):
    trials = Table(needs, more)
    answer = SimpleNamespace(meets=meets) if answered else None
    base = scenario(cluster={"replicas": n})
    return fewer(SimpleNamespace(trials=trials, answer=answer, replicas=n), base, ROUTER, recovery), trials


def test_the_router_that_needs_fewest_is_settled_and_the_first_of_equals_is_it() -> None:
    made, trials = found(NEEDS)
    assert (made["best"]["set"], made["best"]["replicas"], made["best"]["saves_gpus"]) == (
        ["cluster.router=session-affinity"],
        5,
        3,
    )
    assert made["best"]["saves_usd_per_hour"] == 3 * 1.5
    assert trials.settled == [("session-affinity", 5)]
    rows = {row["set"][0].partition("=")[2]: (row["replicas"], row["or_more"]) for row in made["tried"]}
    assert rows["session-affinity"] == rows["llm-d-precise"] == (5, False)
    assert rows["llm-d-approx"] == (None, False), "it does not hold with the fleet that was found"
    assert rows["least-loaded"][1] or rows["least-loaded"] == (8, False)
    assert not {("session-affinity", m) for m in (1, 2)} & set(trials.judged), "no fleet below one that misses is asked"
    with_all = {router for router, m in trials.judged if m == 8}
    assert with_all == set(NEEDS), "everybody is asked with the fleet that was found"


def test_whoever_needs_more_than_the_best_so_far_is_given_up() -> None:
    made, trials = found({**dict.fromkeys(NEEDS, 60), "session-hash": 4}, n=64)
    row = next(row for row in made["tried"] if row["set"] == ["cluster.router=session-affinity"])
    assert row["or_more"]
    assert row["replicas"] > made["best"]["replicas"] == 4
    assert len([m for router, m in trials.judged if router == "session-affinity"]) == 5, "not to its end"


@pytest.mark.parametrize(("more", "best"), [(1, 6), (2, 7), (3, None)])
def test_a_sample_may_promise_too_little_and_the_next_size_is_then_settled(more: int, best: int | None) -> None:
    made, trials = found({**dict.fromkeys(NEEDS, 9), "session-affinity": 5}, more=more)
    assert (made["best"] and made["best"]["replicas"]) == best
    assert trials.settled == [("session-affinity", m) for m in range(5, min(5 + more, 7) + 1)]
    assert len(trials.settled) <= TRIES


def test_an_answer_that_is_none_is_made_one_by_as_many_replicas() -> None:
    assert found(dict.fromkeys(NEEDS, 8))[0]["best"] is None, "as many are no saving"
    made, _ = found(dict.fromkeys(NEEDS, 8), meets=False)
    assert (made["best"]["replicas"], made["best"]["saves_gpus"]) == (8, 0)


def test_the_smaller_fleet_must_come_back_after_the_burst_too() -> None:
    recovery = SimpleNamespace(
        recovers=True, times_s=lambda one: [3.0 if one.cluster.replicas >= 7 else None, 0.0, 1.0]
    )
    made, trials = found({**dict.fromkeys(NEEDS, 9), "session-affinity": 5}, recovery=recovery)
    assert (made["best"]["replicas"], made["best"]["recovers"]) == (7, True)
    assert [m for _, m in trials.settled] == [7], "what does not come back is not settled"


def test_a_search_that_found_no_fleet_is_told_who_would_by_samples() -> None:
    made, trials = found({**dict.fromkeys(NEEDS, 9), "session-hash": 6}, answered=False)
    assert made["best"] is None
    assert not trials.settled
    plan = {"answer": {"replicas": None, "feasible": False}, "routers": made}
    assert answers(plan) == ["router round-robin -> session-hash: 6 GPUs by one run of each, plan with it to be sure"]
    assert answers({**plan, "routers": found(dict.fromkeys(NEEDS, 9), answered=False)[0]}) == []


def test_the_words_of_a_saving_and_of_none() -> None:
    plan = {"answer": {"replicas": 8, "feasible": True}, "routers": found(NEEDS)[0]}
    assert sentence(plan, "routers") == (
        "router round-robin -> session-affinity: 5 GPUs instead of 8 (5 replicas; 97.0 % +- 1.0 % within their limits,"
        " 3 runs)"
    )
    assert "below 94 %" in told(plan, "routers")
    plan["routers"] = found(dict.fromkeys(NEEDS, 8))[0]
    assert sentence(plan, "routers") == "of 5 other routers none is shown to meet with fewer than 8 GPUs"
    assert told({"answer": plan["answer"]}, "routers") == "", "a plan of an earlier version has none"
    plan["routers"] = found(NEEDS, n=1)[0]
    assert told(plan, "routers") == "routers not tried: one replica: nothing to route"


def test_a_router_that_cannot_run_is_a_row_with_its_reason() -> None:
    needs = {name: n for name, n in NEEDS.items() if name != "llm-d-precise"}
    row = next(row for row in found(needs)[0]["tried"] if row["set"] == ["cluster.router=llm-d-precise"])
    assert (row["reason"], row["attains"], row["replicas"]) == ("no such gateway", None, None)


def test_the_routers_are_those_of_the_scenario_that_its_engine_can_have() -> None:
    def names(**sections):
        return [one.scenario.cluster.router for one in changes(ROUTER, scenario(cluster={"replicas": 4}, **sections))]

    assert names() == list(PlanConfig().routers)
    assert names(plan={"routers": ["round-robin", "dynamo-kv", "dynamo-kv"]}) == ["dynamo-kv"]
    assert names(plan={"routers": []}) == []
    assert names(engine={"semantics": "sglang"}) == list(PlanConfig().routers)[:-1], "its caches do not say"
    with pytest.raises(InputError, match=r"\[plan\] routers = 'least-load': expected some of .*least-loaded"):
        scenario(plan={"routers": ["least-load"]})
    with pytest.raises(InputError, match="expected some of"):
        scenario(plan={"routers": ["os:system"]})


def test_routers_that_were_switched_off_stay_so_in_a_file() -> None:
    off = scenario(plan={"routers": []})
    assert "routers = []" in dumps(off)
    assert "routers" not in dumps(replace(off, plan=PlanConfig(recover=False))).partition("[plan]")[0]


@pytest.mark.parametrize(
    ("n", "own", "splits"),
    [(8, 0, [1, 2, 3, 4, 5, 6, 7]), (8, 3, [1, 2, 4, 5, 6, 7]), (3, 0, [1, 2]), (16, 4, [2, 6, 8, 10, 12, 14])],
)
def test_splits_are_eighths_of_the_fleet_with_at_least_one_replica_a_side(n: int, own: int, splits: list[int]) -> None:
    given = scenario(cluster={"replicas": n}, disaggregation={"prefill_replicas": own})
    assert [one.scenario.disaggregation.prefill_replicas for one in changes(SPLIT, given)] == splits


def test_a_split_that_is_not_simulated_with_what_the_scenario_has_is_not_tried() -> None:
    tier = {"name": "host", "capacity_gib": 8.0, "bandwidth_gb_per_s": 20.0}
    given = scenario(cluster={"replicas": 4}, cache={"tiers": [tier]})
    assert changes(SPLIT, given) == []
    assert "with [cache] tiers: not simulated together" in without_changes(SPLIT, given)["split"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A fleet of long session prefixes, which a router that keeps sessions serves with a replica less."""
    cut = ["workload.duration_s=60.0", "run.warmup_s=20.0", "run.duration_s=60.0", 'plan.routers=["session-affinity"]']
    doc = load_doc(EXAMPLES / "plan_routers.toml", cut)
    with Trials(Lab(tmp_path_factory.mktemp("fewer")), (0, 1, 2), 0.95) as trials:
        fleet = Fleet(trials, combinations(doc, []), most=8)
        fleet.search()
        yield fleet, fleet.combinations[0].with_replicas(fleet.replicas)


def test_sessions_kept_on_their_replica_save_a_replica_for_real(planned) -> None:
    fleet, winner = planned
    made = fewer(fleet, winner, ROUTER, None)
    assert made["best"]["replicas"] < fleet.replicas == made["replicas"]
    assert made["best"]["attainment"]["low"] >= 0.95, "the lower end of its interval meets"


def test_a_split_is_simulated_with_the_same_gpus(planned) -> None:
    fleet, winner = planned
    made = fewer(fleet, winner, SPLIT, None)
    assert [row["reason"] for row in made["tried"]] == [None] * len(made["tried"])
    assert len(made["tried"]) == winner.cluster.replicas - 1
    assert Options().advice, "both are part of the advice, and left out with it"
