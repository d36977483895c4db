"""kvcast plan against brute force, with several seeds, killed and resumed, and with what cannot be planned."""

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
from kvcast.planner import Options, check_slo
from kvcast.planner.candidates import combinations
from kvcast.planner.load import with_load
from kvcast.planner.words import as_text
from sim.measure.sketch import sketch
from sim.measure.verdict import judge, sample_of
from sim.recording import COMPLETED
from sim.scenario import SloClass
from workloads import mix
from workloads.errors import InputError
from workloads.steady import requests_per_s

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 3
ALONE = {
    "seeds": SEEDS,
    "capacity": False,
    "binding": False,
    "advice": False,
    "growth": None,
    "n_plus_1": False,
    "model_error": False,
    "undisturbed": False,
}
"""Only the fewest replicas."""
CHAT = {
    "name": "chat",
    "rate": 5.0,
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


def document(**sections) -> dict:
    doc = {
        "name": "chat",
        "workload": {"duration_s": 90.0, "class": [CHAT]},
        "run": {"warmup_s": 40.0, "duration_s": 90.0},
        "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.95},
        "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
        "cost": {"gpu_hour_usd": 1.5},
    }
    for name, values in sections.items():
        doc[name] = (
            {key: value for key, value in {**doc.get(name, {}), **values}.items() if value is not None}
            if isinstance(values, dict)
            else values
        )
    return doc


def scenario(**sections):
    return scenario_from_doc(document(**sections))


def settled(asked, n: int, seeds: int) -> str:
    """The word for n replicas, from runs of `seeds` seeds and, where they leave it open, as many again."""
    fleet = replace(asked, cluster=replace(asked.cluster, replicas=n))
    samples, drowning = [], 0
    for i in range(2 * seeds):
        prepared = api.prepare(replace(fleet, seed=asked.seed + i))
        columns, summary = sketch(api.record(prepared), prepared.workload, prepared.scenario, None)
        names = [
            (name, SloClass(asked.slo.ttft_s, asked.slo.tpot_s, asked.slo.e2e_s))
            for name in prepared.workload.class_names
        ]
        samples.append(
            sample_of(
                {**columns, "completed": columns["status"] == COMPLETED},
                columns["arrival_s"],
                columns["in_window"],
                names,
            )
        )
        drowning += summary["stable"] is False
        if i == seeds - 1 and (word := judge(samples, asked.slo, 2 * drowning < seeds, 0.975).word) != "not shown":
            return word
    return judge(samples, asked.slo, drowning < seeds, 0.975).word


def brute_force(made, most: int, seeds: int = SEEDS) -> int | None:
    """The fewest replicas of a plan's scenario: every count simulated to its end, one after the other."""
    asked = scenario_from_doc(tomllib.loads(made["scenario"]))
    return next((n for n in range(1, most + 1) if settled(asked, n, seeds) == "meets"), None)


CASES = {
    "sessions": {},
    "an open loop": {"workload": {"loop": "open"}},
    "sessions at once": {
        "workload": {"loop": "concurrency", "concurrency": 60, "requests": 700, "duration_s": None},
        "run": {"warmup_s": None, "duration_s": None},
    },
    "little memory": {"engine": {"kv_blocks": 2500}, "cluster": {"router": "least-loaded"}},
    "SGLang": {"engine": {"semantics": "sglang", "block_size": 1}},
    "E2E only, from a ramp of its own": {
        "slo": {"ttft_s": None, "tpot_s": None, "e2e_s": 10.0},
        "workload": {"duration_s": 40.0, "class": [{**CHAT, "output": {"value": 150}}]},
        "run": {"warmup_s": None, "duration_s": None},
    },
    "no cache": {"cache": {"enabled": False}, "cluster": {"router": "random"}},
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_what_brute_force_finds(case):
    made = plan(scenario(**CASES[case]), most=12, **ALONE)
    assert made["answer"]["replicas"] == brute_force(made, 12) > 1
    answer = made["answer"]
    assert answer["word"] == "meets"
    below = [row for row in made["candidates"] if row["replicas"] == answer["replicas"] - 1]
    assert below
    assert below[0]["verdict"] != "meets"


@pytest.mark.parametrize(
    "sections",
    [{"workload": {"class": [{**CHAT, "turns": {"value": 1}, "rate": 12.0}]}, "slo": {"attainment": 0.9}}],
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
    made = plan(scenario(), vary, most=12, **ALONE)
    every = plan(scenario(), vary, most=12, every=True, **ALONE)
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
    fleet._check_neighbours(0)
    assert fleet.replicas == 3
    assert "does not rise steadily" in fleet.notes[0]


# -- how far, what binds, what helps -----------------------------------------------------------------------------------


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
        "advice",
        "tried",
        "not_tried",
        "period",
        "model_error",
        "without_cache",
        "growth",
        "n_plus_1",
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
            "advice",
            "growth",
            "n_plus_1",
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
    assert (
        sum(answer["by_seed"][key] for key in ("same", "fewer", "more")) == answer["by_seed"]["runs"] == answer["runs"]
    )
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
    assert made["n_plus_1"] == {"replicas": n + 1, "attainment_one_down": below["attainment"]["mean"], "enough": False}


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


def test_a_fleet_that_is_larger_than_it_need_be_is_not_told_that_changes_make_it_smaller():
    """The unchanged fleet needs fewer GPUs too: a change is worth the difference to that."""
    made = plan(
        scenario(cluster={"replicas": 9}), fixed=True, binding=False, n_plus_1=False, model_error=False, seeds=1
    )
    needed = plan(scenario(), most=12, **{**ALONE, "seeds": 1})["answer"]["replicas"]
    for row in made["advice"]:
        assert row["before"]["replicas"] <= needed < 9
        assert f"instead of {row['before']['gpus']}" in row["words"] or "holds" in row["words"]


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


def test_sessions_at_once_are_the_load_of_a_closed_loop():
    made = plan(
        scenario(**CASES["sessions at once"]), most=12, advice=False, binding=False, growth=None, n_plus_1=False
    )
    capacity = made["capacity"]
    assert capacity["unit"] == "sessions at once"
    assert capacity["offered_rate_per_s"] == 60
    assert capacity["slo_capacity_per_s"] == int(capacity["slo_capacity_per_s"]) >= 60


def test_a_fixed_fleet_is_judged_as_it_is():
    made = plan(scenario(cluster={"replicas": 2}), fixed=True, binding=False, advice=False, n_plus_1=False)
    assert made["answer"]["replicas"] == 2
    assert not made["answer"]["feasible"]
    assert made["capacity"]["headroom"] < 0
    assert made["growth"] is None


# -- folders -----------------------------------------------------------------------------------------------------------


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


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else than a plan"):
        plan(scenario(), out=tmp_path, **ALONE)


# -- what cannot be planned --------------------------------------------------------------------------------------------


def test_there_is_no_hidden_slo():
    with pytest.raises(InputError, match="attainment is missing"):
        check_slo(scenario(slo={"attainment": None}))
    with pytest.raises(InputError, match="no limit to attain"):
        plan(scenario(slo={"ttft_s": None, "tpot_s": None}))
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", "plan", "examples/demo.toml", "--set", "slo.attainment="],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "attainment is missing" in done.stderr


@pytest.mark.parametrize(
    ("vary", "line"),
    [
        ("cluster.replicas=1,2", "that is what the plan looks for"),
        ("engine.nothing=1,2", "has no key 'nothing'"),
        ("cache.policy=", "expected section.key=value"),
    ],
)
def test_a_wrong_axis_is_one_line(vary, line):
    with pytest.raises(InputError, match=line):
        plan(scenario(), [vary], **ALONE)


def test_nothing_that_can_run_is_one_line():
    with pytest.raises(InputError, match="is for llama"):
        plan(scenario(hardware={"tensor_parallel": 8}), **ALONE)


def test_too_few_requests_for_the_target_are_said_to_be():
    made = plan(scenario(slo={"ttft_s": 30.0, "tpot_s": 1.0, "attainment": 0.999}), most=2, **ALONE)
    assert not made["answer"]["feasible"]
    assert any("cannot show 99.9" in line for line in made["caution"])


def test_what_is_no_load_is_said_to_be():
    """Sessions that outgrow the context; a window too short for a mix."""
    long = {**CHAT, "turns": {"value": 8}, "think": {"value": 20.0}}
    made = plan(
        scenario(
            workload={"class": [long], "rate_scale": 0.2}, engine={"max_model_len": 2500}, slo={"attainment": 0.3}
        ),
        most=3,
        **ALONE,
    )
    short, cut = (
        next(line for line in made["caution"] if words in line) for words in ("the mix is watched for", "not served")
    )
    assert short.startswith("the mix is watched for 50.0 s; without")
    assert "(2,500 tokens)" in cut
    assert "the plan is for the others" in cut
    assert all(f"caution: {line[:40]}" in as_text(made) for line in (short, cut))
    fine = plan(scenario(slo={"attainment": 0.3}), most=3, **ALONE)
    assert not any("not served" in line for line in fine["caution"]), "sessions that the window's end cuts lose nothing"


def test_progress_never_goes_back(monkeypatch):
    from kvcast import text

    told = []
    monkeypatch.setattr(text, "progress_share", lambda done, total, words: told.append(done / total))
    plan(scenario(workload={"duration_s": 10.0}), ["cluster.router=round-robin,least-loaded"], most=12, advice=False)
    assert len(told) > 10
    assert told == sorted(told)
    assert told[-1] < 1


def test_options_are_the_flags():
    from kvcast.cli import build_parser

    args = build_parser().parse_args(["plan", "x.toml"])
    assert (args.seeds, args.confidence, args.max_replicas, args.growth, args.jobs) == (
        Options.seeds,
        Options.confidence,
        Options.most,
        Options.growth,
        Options.jobs,
    )
