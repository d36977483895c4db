"""kvcast plan: which of several combinations is chosen, and why not the others; other seeds choose the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvcast import plan
from kvcast.planner.candidates import combinations
from kvcast.planner.fleet import Fleet
from kvcast.planner.words import plateau
from kvcast.studies.search import Found
from tests.plan_cases import ALONE, CHAT, FEWER, brute_force, document, scenario


@pytest.mark.parametrize(
    "sections",
    [
        {
            "workload": {"class": [{**CHAT, "turns": {"value": 1}, "rate": 12.0}]},
            "engine": {"async_scheduling": True},
            "slo": {"attainment": 0.9},
        }
    ],
    ids=["one turn"],
)
def test_three_seeds_give_the_same_answer(sections):
    answers = [plan(scenario(seed=seed, **sections), most=12, **ALONE)["answer"]["replicas"] for seed in (0, 100, 200)]
    assert answers[0] is not None
    assert answers == [answers[0]] * 3


def test_the_cheapest_combination_wins_and_every_other_is_explained():
    vary = [
        "cluster.router=round-robin,least-loaded",
        "hardware.profile=l40s-llama-3.1-8b-aic,a100-llama-3.1-8b-aic,roofline:nonsense",
        "cache.policy=lru,nothing",
    ]
    asked = scenario(workload=FEWER)
    made = plan(asked, vary, most=12, **ALONE)
    every = plan(asked, vary, most=12, every=True, **ALONE)
    assert made["answer"]["replicas"] == every["answer"]["replicas"]
    assert made["answer"]["values"] == every["answer"]["values"]
    assert made["answer"]["replicas"] == brute_force(made, 12)
    met = [row for row in every["candidates"] if row["verdict"] == "meets"]
    assert made["answer"]["replicas"] == min(row["replicas"] for row in met if row["runs"] > 1)
    cannot = [row for row in made["candidates"] if row["verdict"] == "cannot run"]
    assert len(cannot) == 8
    assert all("nonsense" in row["reason"] or "nothing" in row["reason"] for row in cannot)
    assert {row["label"] for row in made["candidates"]} == {one.label for one in combinations(document(), vary)}
    assert made["simulations"]["distinct"] <= every["simulations"]["distinct"]


def test_a_dearer_gpu_is_given_up_once_it_can_only_be_dearer():
    made = plan(scenario(), ["cost.gpu_hour_usd=1,1000"], most=12, **ALONE)
    pruned = [row for row in made["candidates"] if row["verdict"] == "pruned"]
    assert [row["values"]["cost.gpu_hour_usd"] for row in pruned] == ["1000"]
    assert "dearer" in pruned[0]["reason"]


def test_no_fleet_meets():
    made = plan(scenario(slo={"ttft_s": 0.001}), most=3, capacity=True)
    assert not made["answer"]["feasible"]
    assert made["answer"]["replicas"] is None
    assert made["capacity"] is None
    assert made["advice"] is None
    assert made["rejected_by"]["ttft_s"] == len(made["candidates"])
    assert "TTFT" in made["verdict"]


def test_more_replicas_can_hold_fewer_requests_in_time():
    """A made-up response that does not rise: the neighbours give it away, and every smaller fleet is looked at."""
    fleet = Fleet.__new__(Fleet)
    fleet.most, fleet.notes, fleet.winner, fleet.judged = 20, [], 0, {}
    fleet.found = {0: Found(6, 6)}
    meets = {3, 4, 6, 7}
    fleet._judge = lambda asked: {i: [n in meets for n in ns] for i, ns in asked.items()}
    fleet._sure = lambda i, n: True
    fleet._check_neighbours(0)
    assert fleet.replicas == 3
    assert "does not rise steadily" in fleet.notes[0]


def settled_fleet(attained, most: int = 64):
    """A fleet of one combination that attains attained(n) with n replicas, of which 95 % are asked for, and is shown to
    meet from 96 % on; a run says what is, and the fleets that were settled are noted."""
    fleet = Fleet.__new__(Fleet)
    fleet.most, fleet.winner, fleet.judged, fleet.settled, fleet.flat = most, 0, {}, {}, {}
    fleet.cost, fleet.asked = lambda i, n: float(n), []
    fleet._judge = lambda asked: {i: [attained(n) >= 0.95 for n in ns] for i, ns in asked.items()}
    fleet._too_few = lambda i, n: attained(n) < 0.95
    fleet._best_cost = lambda: 1.0
    fleet.combinations = [SimpleNamespace(gpus_per_replica=1)]

    def settle(i, n, full=False):
        fleet.asked.append(n)
        mean = attained(n)
        one = SimpleNamespace(meets=mean >= 0.96, margin=mean - 0.95, attainment=SimpleNamespace(low=mean))
        fleet.judged[i, n] = fleet.settled[i, n] = one
        return one

    fleet._settle_one = settle
    fleet.judged |= {(0, n): SimpleNamespace(attainment=None) for n in range(1, most + 1)}
    return fleet


def test_no_larger_fleet_is_looked_for_where_attainment_no_longer_rises():
    """Just above the target from 4 replicas on, and never surely: four fleets are settled, not sixty."""
    fleet = settled_fleet(lambda n: 0.9 if n < 4 else 0.954)
    fleet.found = {0: Found(4, 4)}
    fleet.settle()
    assert fleet.asked == [4, 5, 7, 11]
    assert (fleet.winner, fleet.flat) == (None, {0: (4, 11)})
    assert fleet.why_given_up(0) == "attainment does not rise from 4 to 11 replicas, settled: no larger fleet was"


@pytest.mark.parametrize(("rises", "needed"), [(0.002, 8), (0.001, 13)])
def test_where_it_rises_the_fewest_replicas_that_meet_are_found(rises, needed):
    """By a replica each, from 4 on that attain the target and are not sure to."""
    fleet = settled_fleet(lambda n: round(0.95 + rises * (n - 3), 6))
    fleet.found = {0: Found(4, 4)}
    fleet.settle()
    assert (fleet.replicas, fleet.flat) == (needed, {})
    assert fleet.asked[:4] == [4, 5, 7, 11], "strides double"


def test_the_largest_fleet_that_is_allowed_is_looked_at():
    fleet = settled_fleet(lambda n: 0.96 if n == 6 else 0.955, most=6)
    fleet.found = {0: Found(4, 4)}
    fleet.settle()
    assert (fleet.replicas, fleet.asked[:3]) == (6, [4, 5, 6])


def test_of_a_plateau_only_what_is_known_counts():
    assert plateau({4: 0.0, 5: 0.001, 8: 0.002}) == (4, 8)
    assert plateau({4: 0.0, 5: 0.001, 7: 0.002}) is None, "not twice as many"
    assert plateau({4: -0.006, 5: 0.001, 8: 0.0}) is None, "two sizes"
    assert plateau({4: 0.0, 5: 0.001, 8: None}) is None, "not known"
    assert plateau({4: 0.0, 5: None, 8: 0.0}) is None
    assert plateau({}) is None
