"""kvcast plan: which of several combinations is chosen, and why not the others; other seeds choose the same."""

from __future__ import annotations

import pytest

from kvcast import plan
from kvcast.planner.candidates import combinations
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
    from kvcast.planner.fleet import Fleet
    from kvcast.studies.search import Found

    fleet = Fleet.__new__(Fleet)
    fleet.most, fleet.notes, fleet.winner, fleet.judged = 20, [], 0, {}
    fleet.found = {0: Found(6, 6)}
    meets = {3, 4, 6, 7}
    fleet._judge = lambda asked: {i: [n in meets for n in ns] for i, ns in asked.items()}
    fleet._sure = lambda i, n: True
    fleet._check_neighbours(0)
    assert fleet.replicas == 3
    assert "does not rise steadily" in fleet.notes[0]
