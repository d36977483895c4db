"""What plans got wrong, with the right answers: a class that is sacrificed, a trough taken for the day, seeds of a
recorded trace, a ramp taken for the load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcast import api, plan
from kvcast.config import load_scenario, scenario_from_doc
from kvcast.planner.document import over_the_period
from kvcast.planner.words import verdict
from workloads import mix, steady

ROOT = Path(__file__).resolve().parent.parent
ALONE = {
    "capacity": False,
    "binding": False,
    "advice": False,
    "growth": None,
    "n_plus_1": False,
    "model_error": False,
    "undisturbed": False,
}


def one_class(name: str, rate: float, slo_class: str = "", **more) -> dict:
    return {
        "name": name,
        "rate": rate,
        "output": {"value": 50},
        "slo_class": slo_class,
        "layers": [{"name": "m", "scope": "dynamic", "tokens": {"value": 500}}],
        **more,
    }


def sacrificed(**slo) -> dict:
    return {
        "workload": {"requests": 2000, "class": [one_class("chat", 5.0, "chat"), one_class("premium", 0.3, "premium")]},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"profile": "h200-llama-3.1-8b-aic"},
        "slo": {"attainment": 0.9, "classes": {"chat": {"ttft_s": 0.5}, "premium": {"ttft_s": 0.001}}, **slo},
    }


def test_a_class_that_can_never_meet_its_limit_is_not_outvoted():
    made = plan(scenario_from_doc(sacrificed()), most=2, seeds=2, **ALONE)
    assert not made["answer"]["feasible"]
    row = made["candidates"][0]
    assert (row["verdict"], row["class"], row["rejected_by"]) == ("misses", "premium", "ttft_s")
    by_name = {one["name"]: one for one in row["classes"]}
    assert by_name["premium"]["attainment"]["mean"] == 0.0
    assert by_name["chat"]["verdict"] == "meets"
    assert row["attainment"]["mean"] > 0.9, "all requests pooled would hide it"
    assert "premium" in made["verdict"]
    pooled = plan(scenario_from_doc(sacrificed(attained_by="pooled")), most=2, seeds=2, **ALONE)
    assert pooled["answer"]["feasible"]
    assert pooled["answer"]["replicas"] == 1


def test_a_class_may_have_a_target_of_its_own():
    doc = sacrificed()
    doc["slo"]["classes"]["premium"]["attainment"] = 0.000001
    made = plan(scenario_from_doc(doc), most=1, seeds=1, **ALONE)
    assert {one["name"]: one["target"] for one in made["candidates"][0]["classes"]} == {
        "chat": 0.9,
        "premium": 0.000001,
    }
    assert made["candidates"][0]["verdict"] in ("misses", "not shown"), "an interval from 0 on does not show even that"


def test_a_mix_that_follows_the_clock_is_planned_for_its_worst_hour():
    """A day of an hour: its trough, which is asked for, has a fifth of the mean."""
    curve = {"kind": "diurnal", "curve": [0.2, 0.2, 2.6, 1.0], "period_s": 3600.0}
    doc = {
        "workload": {"duration_s": 900.0, "class": [one_class("chat", 8.0, arrival=curve, output={"value": 400})]},
        "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
        "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.95},
    }
    trough = scenario_from_doc(doc)
    assert steady.busiest(mix.resolve(trough.workload), 900.0) == 1800.0
    made = plan(trough, most=8, seeds=2, **ALONE)
    period = made["period"]
    assert period["attains"]
    assert made["answer"]["offered_per_s"] == pytest.approx(8.0), "the hour is the whole period here"
    assert any("the plan is not for that window" in line for line in made["caution"])
    failing = {**period, "attains": False, "attainment": {"mean": 0.3, "low": 0.2, "high": 0.4}}
    answer = over_the_period(made["answer"], failing)
    assert (answer["feasible"], answer["word"]) == (False, "misses"), "the hour alone does not decide"
    assert "not over its whole period" in verdict({**made, "answer": answer, "period": failing})
    assert over_the_period(made["answer"], period) == made["answer"]
    alone = plan(scenario_from_doc({**doc, "run": {"warmup_s": 60.0, "duration_s": 900.0}}), most=8, seeds=2, **ALONE)
    assert alone["period"] is None
    assert alone["answer"]["offered_per_s"] == pytest.approx(1.6)
    assert alone["answer"]["replicas"] < made["answer"]["replicas"], "the trough needs fewer"


def test_seeds_of_a_recorded_trace_are_one_run(data_dir):
    trace = data_dir / "traces" / "azure" / "AzureLLMInferenceTrace_code.csv"
    doc = {
        "workload": {"trace": str(trace), "format": "azure", "requests": 3000},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"profile": "a100-llama-3.1-8b-aic"},
        "cluster": {"replicas": 8, "router": "least-loaded"},
        "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.95},
    }
    five, one = (plan(scenario_from_doc(doc), fixed=True, seeds=seeds, **ALONE) for seeds in (5, 1))
    assert five["answer"]["runs"] == 1
    assert five["answer"]["attainment"] == one["answer"]["attainment"]
    assert five["answer"]["word"] == one["answer"]["word"]
    assert five["answer"]["by_seed"] is None
    assert "nothing is drawn" in five["method"]


def test_the_demo_is_judged_at_its_nominal_load_in_steady_state():
    asked = load_scenario(ROOT / "examples" / "demo.toml", ["cluster.replicas=1"])
    cut = api.windowed(asked)
    assert cut.run.warmup_s >= 5 * max(steady.session_s(c, 0.007) for c in mix.resolve(asked.workload).class_)
    assert cut.run.duration_s - cut.run.warmup_s >= max(1200, 2 * cut.run.warmup_s - 2)
    report = api.simulate(cut)
    assert report.summary["offered_per_s"] == pytest.approx(5.4866, abs=1e-3)
    assert report.summary["cost"]["at_offered"]["usd_per_million_output_tokens"] == pytest.approx(0.91, abs=0.03)
    assert report.summary["verdict"]["word"] == "meets"


def test_at_one_and_a_half_times_the_load_one_gpu_misses_the_demos_target():
    """A ramp judged as the load said one, 99.8 %."""
    made = plan(ROOT / "examples" / "demo.toml", overrides=["workload.rate_scale=1.6"], most=4, seeds=2, **ALONE)
    assert made["answer"]["replicas"] in (2, 3)
    below = next(row for row in made["candidates"] if row["replicas"] == 1)
    assert below["verdict"] == "misses"


@pytest.mark.parametrize(("ttft_s", "code"), [(5.0, 0), (0.0001, 1)])
def test_the_exit_code_says_whether_a_fleet_was_found(tmp_path, ttft_s, code):
    from kvcast.scenario.toml import dumps

    doc = sacrificed()
    doc["slo"] = {"attainment": 0.9, "ttft_s": ttft_s, "classes": {}}
    doc["workload"]["requests"] = 1500
    (tmp_path / "s.toml").write_text(dumps(scenario_from_doc(doc)))
    off = [
        f"--no-{name}" for name in ("capacity", "binding", "advice", "growth", "n-plus-1", "model-error", "undisturbed")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", "plan", str(tmp_path / "s.toml"), "--max-replicas", "1", "--seeds", "1", *off],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
