"""kvcast plan: one whole plan, each part against simulations of its own; its document and folder; killed, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kvcast import api, plan
from kvcast.config import load_scenario, scenario_from_doc
from kvcast.planner.load import with_load
from tests.plan_cases import ALONE, CHAT, SEEDS, scenario
from workloads import mix
from workloads.steady import requests_per_s

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a whole plan, its document and its scenario's file."""
    from kvcast.scenario.toml import dumps

    place = tmp_path_factory.mktemp("plan")
    (place / "chat.toml").write_text(dumps(scenario()))
    return place / "chat", plan(place / "chat.toml", out=place / "chat", most=12, seeds=SEEDS)


def test_every_key_of_the_document_is_there(whole):
    _, made = whole
    assert list(made) == [
        "name",
        "verdict",
        "device",
        "scenario",
        "slo",
        "confidence",
        "method",
        "seeds",
        "answer",
        "why",
        "candidates",
        "rejected_by",
        "capacity",
        "rates",
        "knee_per_s",
        "binding",
        "routers",
        "splits",
        "advice",
        "tried",
        "not_tried",
        "recovery",
        "period",
        "model_error",
        "without_cache",
        "growth",
        "n_plus_1",
        "failure",
        "launched",
        "caution",
        "notes",
        "simulations",
    ]
    bare = plan(scenario(), most=12, **ALONE)
    assert set(bare) == set(made)
    assert all(
        bare[key] is None
        for key in (
            "capacity",
            "rates",
            "knee_per_s",
            "binding",
            "routers",
            "splits",
            "advice",
            "growth",
            "n_plus_1",
            "failure",
            "launched",
            "model_error",
            "without_cache",
            "period",
            "why",
        )
    )


def chosen(made):
    """The scenario of a plan's answer."""
    return scenario_from_doc(tomllib.loads(made["scenario"]))


def test_the_capacity_is_the_highest_load_that_attains(whole):
    _, made = whole
    capacity, rates = made["capacity"], made["rates"]
    assert capacity["offered_rate_per_s"] == pytest.approx(requests_per_s(mix.resolve(chosen(made).workload))), (
        "the nominal load, not what came"
    )
    assert capacity["offered_rate_per_s"] <= capacity["slo_capacity_per_s"] < capacity["breaks_at_per_s"]
    assert capacity["headroom"] == pytest.approx(1 - capacity["offered_rate_per_s"] / capacity["slo_capacity_per_s"])
    for load, holds in ((capacity["slo_capacity_per_s"], True), (capacity["breaks_at_per_s"], False)):
        runs = [
            api.simulate(replace(with_load(chosen(made), load / capacity["offered_rate_per_s"]), seed=seed)).summary
            for seed in (0, 1)
        ]
        assert all(run["attainment"] >= 0.95 and run["stable"] is not False for run in runs) == holds
    loads = [row["load"] for row in rates]
    assert loads == sorted(set(loads))
    assert min(loads) < 0.4 * capacity["slo_capacity_per_s"]
    assert max(loads) > 1.2 * capacity["slo_capacity_per_s"]
    assert all(row["goodput_per_s"] == pytest.approx(row["attainment"] * row["rate_per_s"]) for row in rates)


def test_the_answer_has_a_run_to_look_into_and_says_how_often_it_changes(whole):
    folder, made = whole
    answer = made["answer"]
    kept = json.loads((folder / "runs" / answer["run"] / "summary.json").read_text())
    assert kept["verdict"]["classes"][0]["name"] == answer["classes"][0]["name"] == "chat"
    assert answer["runs"] in (SEEDS, 2 * SEEDS)
    less = next(row for row in made["candidates"] if row["replicas"] == answer["replicas"] - 1)
    said = answer["by_seed"]
    assert sum(said[key] for key in ("same", "fewer", "more")) == said["runs"] == min(answer["runs"], less["runs"])
    assert answer["usd_per_request"] == pytest.approx(answer["usd_per_hour"] / 3600 / answer["offered_per_s"])
    million = {kind: answer[f"usd_per_million_{kind}_tokens"] for kind in ("input", "output", "total")}
    assert 1 / million["total"] == pytest.approx(1 / million["input"] + 1 / million["output"])


def test_the_models_own_error_is_two_runs_at_scaled_step_times(whole):
    _, made = whole
    error = made["model_error"]
    prepared = api.prepare(chosen(made))
    for side, factor in (("slower", float(f"{1 + error['share']:g}")), ("faster", float(f"{1 - error['share']:g}"))):
        assert (
            api.run(api.at_step_times(prepared, factor)).report.summary["attainment"]
            == error[side]["attainment"]["mean"]
        )
    assert error["slower"]["attainment"]["mean"] < error["faster"]["attainment"]["mean"]
    assert "model error" in made["verdict"]


def test_a_fleet_that_lives_on_its_cache_is_said_to_meet_while_undisturbed(whole):
    _, made = whole
    off = api.simulate(replace(chosen(made), cache=replace(chosen(made).cache, enabled=False))).summary
    assert made["without_cache"]["attains"] == (off["attainment"] >= 0.95 and off["stable"] is not False)
    assert (
        ("meets while undisturbed" in made["verdict"])
        == (not made["without_cache"]["attains"])
        == any("keeps them cold" in line for line in made["caution"])
    )


def test_growth_is_a_curve_of_simulated_fleets(whole):
    _, made = whole
    n = made["answer"]["replicas"]
    assert [row["factor"] for row in made["growth"]] == [2.0, 3.0]
    for row in made["growth"]:
        assert n < row["replicas"] <= row["factor"] * n + 2
        assert row["advised"] is None or row["advised"]["replicas"] <= row["replicas"]
    below = next(row for row in made["candidates"] if row["replicas"] == n - 1)
    assert below["verdict"] != "meets"
    down = made["n_plus_1"]
    assert (down["replicas"], down["enough"]) == (n + 1, False)
    assert down["attainment_one_down"] == below["attainment"]["mean"] or below["attainment"]["mean"] is None
    least = below["attainment"]["low"] or down["attainment_one_down"]
    assert down["verdict"] == below["verdict"]
    assert least < 0.95, "its mean may be above, when it is left open"


def test_advice_saves_something_against_the_same_fleet_without_it(whole):
    folder, made = whole
    assert 1 <= len(made["advice"]) <= 3
    assert len(list(folder.glob("advice-*.toml"))) == len(made["advice"])
    for place, row in enumerate(made["advice"], 1):
        fewer = row["after"]["gpus"] is not None and row["after"]["gpus"] < row["before"]["gpus"]
        assert fewer or row["after"]["capacity"] > row["before"]["capacity"]
        assert row["before"]["capacity"] >= made["capacity"]["slo_capacity_per_s"], (
            "one run each, with and without; the headline asks a second"
        )
        changed = load_scenario(folder / f"advice-{place}.toml")
        held = with_load(changed, row["after"]["capacity"] / made["capacity"]["offered_rate_per_s"])
        assert api.simulate(held).summary["attainment"] >= 0.95
        if fewer:
            smaller = replace(changed, cluster=replace(changed.cluster, replicas=row["after"]["replicas"]))
            assert api.simulate(smaller).summary["attainment"] >= 0.95


def test_memory_gains_where_it_is_short_and_compute_where_prompts_are_all(whole):
    options = {"most": 12, "advice": False, "growth": None, "model_error": False, "n_plus_1": False, "seeds": 1}
    starved = plan(scenario(engine={"kv_blocks": 2000}), **options)
    gains = {row["resource"]: row["gain"] for row in starved["binding"]["changes"]}
    assert {row["resource"] for row in starved["binding"]["changes"] if row["estimate"]} >= {
        "compute",
        "memory bandwidth",
    }
    plenty = {row["resource"]: row["gain"] for row in whole[1]["binding"]["changes"]}
    assert starved["binding"]["resource"] in ("KV capacity", "routing")
    assert gains["KV capacity"] > max(0.02, 3 * plenty["KV capacity"], gains["compute"])
    prefill = scenario(
        slo={"ttft_s": 1.2, "tpot_s": None},
        workload={"class": [{**CHAT, "turns": {"value": 1}, "output": {"value": 2}}], "duration_s": 140.0},
        run={"duration_s": 140.0},
    )
    made = plan(prefill, **options)
    gains = {row["resource"]: row["gain"] for row in made["binding"]["changes"]}
    assert gains["compute"] > 0.01
    assert gains["compute"] > 3 * max(gains["memory bandwidth"], gains["KV capacity"])


def test_a_killed_plan_goes_on_and_says_the_same_to_the_byte(whole, tmp_path):
    folder, made = whole
    command = [
        sys.executable,
        "-m",
        "kvcast",
        "plan",
        str(folder.with_suffix(".toml")),
        "--max-replicas",
        "12",
        "--seeds",
        str(SEEDS),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [*command, "--jobs", "2"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 300
    while (
        len(list(tmp_path.glob("out/sketches/*/sketch.json"))) < 3
        and started.poll() is None
        and time.monotonic() < until
    ):
        time.sleep(0.02)
    assert started.poll() is None, "it ended before it could be killed"
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (tmp_path / "out" / "plan.json").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    again = json.loads(done.stdout)
    assert again["simulations"]["reused"] >= 3
    assert again["answer"] == made["answer"]
    assert (tmp_path / "out" / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()


def test_the_same_plan_again_simulates_nothing(whole):
    folder, made = whole
    kept = (folder / "plan.json").read_bytes()
    again = plan(folder.with_suffix(".toml"), out=folder, most=12, seeds=SEEDS)
    assert again["simulations"]["run"] == 0
    assert (folder / "plan.json").read_bytes() == kept
    assert {**again, "simulations": None} == {**made, "simulations": None}
