"""What a run takes of this machine is said before it begins, and refused where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvcast import InputError, api, load_scenario
from kvcast.cli import main
from kvcast.studies import own_cost
from kvcast.system import available_bytes
from sim.scenario import Shock


@pytest.fixture(scope="module")
def prepared() -> api.Prepared:
    scenario = load_scenario("examples/demo.toml")
    return api.prepare(replace(scenario, run=replace(scenario.run, warmup_s=60.0, duration_s=660.0)))


def test_memory_goes_with_the_requests_and_their_steps(prepared: api.Prepared, monkeypatch: Any) -> None:
    whole = own_cost.own_cost(prepared)
    assert whole.requests == len(prepared.workload)
    replicas = prepared.scenario.cluster.replicas
    caches = min(whole.requests * own_cost.CACHE_REQUEST_BYTES, replicas * own_cost.CACHE_BYTES)
    caches += replicas * own_cost.RECORD_BYTES
    steps = (whole.peak_bytes - own_cost.BASE_BYTES - caches) / whole.requests - own_cost.REQUEST_BYTES
    recorded = sum(len(steps) for steps in api.record(prepared).steps)
    assert steps == pytest.approx(own_cost.STEP_BYTES * recorded / whole.requests, rel=0.25)
    monkeypatch.setattr(own_cost, "PACKS_FROM", 0)
    assert own_cost.own_cost(prepared).peak_bytes < whole.peak_bytes


def test_what_a_simulation_takes_to_begin_is_no_cost_of_each_request(prepared: api.Prepared, monkeypatch: Any) -> None:
    parts = []

    def recorded(given: api.Prepared, resolved: Any, part: Any) -> Any:
        parts.append(len(part))
        return recording, 5.0 if len(part) == 1 else 5.0 + 0.01 * len(part)

    recording = api.record(prepared)
    monkeypatch.setattr(own_cost, "_recorded", recorded)
    cost = own_cost.own_cost(prepared)
    assert parts[0] == 1
    assert cost.cpu_s == pytest.approx(own_cost.REPORT_S + 5.0 + 0.01 * cost.requests * 1.25)


def test_a_fleet_is_told_by_some_of_its_replicas(prepared: api.Prepared, monkeypatch: Any) -> None:
    """Where they may be simulated apart, the caches of one are there at a time."""
    monkeypatch.setattr(own_cost, "PIECE", 50)
    scenario = prepared.scenario
    peaks = {}
    for router in ("session-hash", "session-affinity"):
        cluster = replace(scenario.cluster, replicas=8, router=router)
        fleet = api.prepare(replace(scenario, cluster=cluster), prepared.workload)
        some, few = own_cost._of_some_replicas(fleet.workload, 8)
        assert few == max(1, 4 * 50 * 8 // (5 * len(prepared.workload)))
        assert len(some) == pytest.approx(len(prepared.workload) * few / 8, rel=0.3)
        first = some.column("turn") == 0
        assert (first == (some.column("after") < 0)).all()  # sessions are whole
        peaks[router] = own_cost.own_cost(fleet).peak_bytes
    one = min(len(prepared.workload) * own_cost.CACHE_REQUEST_BYTES / 8, own_cost.CACHE_BYTES)
    assert peaks["session-affinity"] - peaks["session-hash"] == pytest.approx(7 * one, rel=0.25)


def test_a_fleet_that_a_shock_hits_is_not_told_by_some_of_it(prepared: api.Prepared, monkeypatch: Any) -> None:
    """And it is on one clock, with the caches of all."""
    monkeypatch.setattr(own_cost, "PIECE", 50)
    given = replace(prepared.scenario, cluster=replace(prepared.scenario.cluster, replicas=8, router="session-hash"))
    shocked = replace(given, shock=(Shock(kind="replica-down", at_s=5.0, duration_s=20.0),))
    peaks = [own_cost.own_cost(api.prepare(one, prepared.workload)).peak_bytes for one in (given, shocked)]
    assert peaks[1] - peaks[0] > 6 * min(
        len(prepared.workload) * own_cost.CACHE_REQUEST_BYTES / 8, own_cost.CACHE_BYTES
    )


def test_what_this_machine_cannot_hold_is_refused_before_it_begins(prepared: api.Prepared, monkeypatch: Any) -> None:
    assert own_cost.check_memory(prepared) is None  # a small run is not asked
    monkeypatch.setattr(own_cost, "LARGE", 1)
    cost = own_cost.check_memory(prepared)
    assert cost is not None
    assert "WARNING" not in own_cost.words(cost)
    monkeypatch.setattr(own_cost, "available_bytes", lambda: cost.peak_bytes)
    assert own_cost.words(cost).endswith("MiB are free")
    monkeypatch.setattr(own_cost, "available_bytes", lambda: 1 << 20)
    with pytest.raises(InputError, match=r"requests: simulating them takes about 0\.1 GiB, and 0\.0 GiB are free here"):
        own_cost.check_memory(prepared)


def test_estimate_says_it(capsys: pytest.CaptureFixture) -> None:
    flags = ["examples/demo.toml", "--set", "run.duration_s=600", "--set", "run.warmup_s=60"]
    assert main(["estimate", *flags, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["own"]) == {"cpu_s", "peak_bytes"}
    assert main(["estimate", *flags]) == 0
    assert "of CPU time and" in capsys.readouterr().out


def test_what_is_free_is_known_here() -> None:
    found = available_bytes()
    assert found is None or found > 1 << 20
