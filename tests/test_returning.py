"""What lets a smaller fleet come back after its burst, of a plan whose answer is larger for the burst alone."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvcast import api, plan
from kvcast.asking import card
from kvcast.config import override, scenario_from_doc
from kvcast.planner import advise
from kvcast.planner import returning as asked
from kvcast.planner.load import Capacity
from kvcast.planner.trials import AfterShock
from kvcast.planner.words import as_text
from kvcast.present import html_plan
from kvcast.scenario.toml import dumps
from kvcast.studies.change import Change
from sim.scenario import Scenario
from tests.test_shocks import NARROW, document

TERMS = {"burst_size": 10.0, "burst_s": 60.0, "recover_within_s": 120.0}


def test_a_plan_larger_for_its_burst_says_what_makes_it_smaller() -> None:
    """Checked by runs with the burst written out: the advised fleet is back on every seed, the same fleet without the
    change on none of them within the time."""
    doc = document(plan=TERMS, engine=NARROW)
    off = dict.fromkeys(("n_plus_1", "model_error", "undisturbed"), False)
    made = plan(scenario_from_doc(doc), most=4, seeds=2, growth=None, **off)
    assert (made["answer"]["replicas"], made["recovery"]["holds_replicas"]) == (2, 1)
    (row,) = made["advice"]
    assert row["words"].startswith("sequences at once 20 -> 64: 1 GPU instead of 2, back after")
    assert row["set"] == ["engine.max_num_seqs=64", "cluster.replicas=1"]
    assert (row["before"]["gpus"], row["after"]["gpus"]) == (2, 1)
    assert made["verdict"].endswith("next: sequences at once 20 -> 64")
    assert "binding: recovery" in made["verdict"]
    assert made["binding"]["changes"] == []
    assert "routers not tried: 2 replicas meet already" in as_text(made)
    assert "+20 % of" not in as_text(made)
    assert row["words"].partition(": ")[2] in html_plan.of_plan(made)
    for sets, back in ((row["set"], True), (["cluster.replicas=1"], False)):
        fleet = scenario_from_doc(override(tomllib.loads(made["scenario"]), sets))
        for seed in (0, 1):
            assert is_back(fleet, seed) == back


def is_back(fleet: Scenario, seed: int) -> bool:
    at_s = fleet.run.warmup_s + 300.0
    ends_s = at_s + TERMS["burst_s"] + TERMS["recover_within_s"] + 600.0
    sets = [
        f'shock=[{{ kind = "burst", at_s = 300.0, duration_s = {TERMS["burst_s"]}, size = {TERMS["burst_size"]} }}]',
        f"workload.duration_s={ends_s}",
        f"run.duration_s={ends_s}",
        f"seed={seed}",
    ]
    (row,) = api.simulate(scenario_from_doc(override(tomllib.loads(dumps(fleet)), sets))).summary["shocks"]
    return row["recovered_s"] is not None and row["recovered_s"] <= TERMS["recover_within_s"]


def change(name: str, costs: str, replicas: int) -> Change:
    scenario = scenario_from_doc(document())
    cluster = replace(scenario.cluster, replicas=replicas)
    return Change(name, (f"{name}=1",), replace(scenario, name=name, cluster=cluster), costs=costs)


class Trials:
    """soon: seconds after which a sample of each change is back; meets: those that are settled as an answer."""

    def __init__(self, soon: dict[str, float | None], meets: set[str]) -> None:
        self.soon, self.meets, self.settled = soon, meets, []

    def cannot_run(self, scenario: Scenario) -> str | None:
        return "no such engine" if self.soon[scenario.name] == -1 else None

    def after_shocks(self, runs):
        assert all(one.plan.recover_within_s == 600.0 and not to_the_end for one, _, to_the_end in runs)
        return [AfterShock(self.soon[one.name], 0.0) for one, _, _ in runs]

    def settle(self, trial):
        self.settled.append(trial.scenario.name)
        meets = trial.scenario.name in self.meets
        return SimpleNamespace(meets=meets, attainment=SimpleNamespace(mean=0.97))


@pytest.mark.parametrize(
    ("soon", "falls", "meets", "settled", "best"),
    [
        ({"host": 5.0, "free": 500.0, "late": None}, (), {"host", "free"}, ["free"], "free"),  # the cheapest first
        ({"host": 5.0, "free": 500.0, "late": None}, ("free",), {"host", "free"}, ["host"], "host"),
        ({"host": 5.0, "free": 500.0, "late": None}, (), {"host"}, ["free", "host"], "host"),
        ({"host": None, "free": -1, "late": None}, (), {"host"}, [], None),
    ],
)
def test_the_cheapest_that_is_back_and_meets_is_the_advice(soon, falls, meets, settled, best, monkeypatch) -> None:
    costs = {"host": "hardware", "free": "free", "late": "free"}
    monkeypatch.setattr(asked, "changes", lambda _, one: [change(n, c, one.cluster.replicas) for n, c in costs.items()])
    monkeypatch.setattr(asked, "without_changes", lambda *_: {})
    monkeypatch.setattr(asked, "sampled", lambda trial: trial)
    trials, winner = Trials(soon, meets), change("answer", "free", 3).scenario
    recovery = SimpleNamespace(
        held=1, seeds=(0, 1, 2), times_s=lambda one: [1.0, None] if one.name in falls else [1.0, 7.0, 0.0]
    )
    capacity = Capacity(2.0, "requests/s", 4, 3, 2, 5, {})
    made = asked.returning(trials, winner, recovery, capacity)
    assert trials.settled == settled
    assert [row["change"] for row in made["advice"]] == ([best] if best else [])
    assert [row["back_s"] for row in made["tried"]] == [None if s == -1 else s for s in soon.values()]
    assert all(row["back_s"] == 7.0 and row["after"]["replicas"] == 1 for row in made["advice"])


def test_a_router_that_was_settled_with_fewer_gpus_is_advice_too(monkeypatch) -> None:
    monkeypatch.setattr(asked, "changes", lambda *_: [])
    monkeypatch.setattr(asked, "without_changes", lambda *_: {})
    best = {
        "change": "router",
        "set": ["cluster.router=session-hash"],
        "scenario": dumps(change("r", "free", 2).scenario),
    }
    best["attainment"] = {"mean": 0.99, "low": 0.98, "high": 1.0}
    capacity = Capacity(2.0, "requests/s", 4, 3, 2, 5, {})
    recovery, winner = SimpleNamespace(held=2, seeds=(0,)), change("answer", "free", 3).scenario
    (row,) = asked.returning(Trials({}, set()), winner, recovery, capacity, best)["advice"]
    assert row["words"] == "router: 2 GPUs instead of 3, back after the burst"
    assert row["set"] == ["cluster.router=session-hash", "cluster.replicas=2"]


@pytest.mark.parametrize(("first", "n", "found"), [(1, 3, 3), (5, 3, 5), (9, 3, 6), (1, None, None), (1, 6, 6)])
def test_a_smaller_fleet_of_advice_must_come_back_too(first, n, found) -> None:
    """Of the six replicas of the answer."""
    asked_of: list[int] = []

    def back(fleet: Scenario) -> bool:
        asked_of.append(fleet.cluster.replicas)
        return fleet.cluster.replicas >= first

    assert advise._back(change("free", "free", 6), n, 6, back) == found
    assert asked_of == list(range(n or 6, min(found or 6, 5) + 1))


@pytest.mark.parametrize(
    ("resource", "breaks", "users"), [("recovery", 6.0, 150), ("compute", 6.0, 300), (None, None, 150)]
)
def test_users_at_which_a_burst_is_too_much_are_those_that_give_way(resource, breaks, users) -> None:
    """100 users are 2 requests/s; the fleet comes back from 3 and holds 5."""
    plan = {
        "answer": {"feasible": True},
        "capacity": {"slo_capacity_per_s": 5.0, "breaks_at_per_s": breaks, "offered_rate_per_s": 2.0},
        "binding": {"resource": resource, "rivals": [], "words": ""},
        "recovery": {"recoverable_per_s": 3.0},
    }
    found = card.gives_way(plan, 100.0)
    assert found is not None
    assert (found["users"], found["next_gpu_users"], found["because"]) == (users, 150, "recovery")
    assert found["resource"] == (resource or "recovery")
    assert not found["at_least"]
