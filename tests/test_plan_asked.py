"""kvcast plan: what can be asked of it, and what cannot be planned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcast import plan
from kvcast.planner import Options, check_slo
from kvcast.planner.words import as_text
from kvcast.planner.words.beyond import made_of
from tests.plan_cases import ALONE, CASES, CHAT, SEEDS, scenario
from workloads.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def test_a_fleet_that_is_larger_than_it_need_be_is_not_told_that_changes_make_it_smaller():
    """The unchanged fleet needs fewer GPUs too: a change is worth the difference to that."""
    made = plan(
        scenario(cluster={"replicas": 9}), fixed=True, binding=False, n_plus_1=False, model_error=False, seeds=SEEDS
    )
    needed = plan(scenario(), most=12, **ALONE)["answer"]["replicas"]
    assert needed < 9
    for row in made["advice"]:
        assert row["before"]["replicas"] <= needed
        assert f"instead of {row['before']['gpus']}" in row["words"] or "holds" in row["words"]


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


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else than a plan"):
        plan(scenario(), out=tmp_path, **ALONE)


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


@pytest.mark.parametrize(
    ("runs", "seeds"), [(5, "3, 4, 5, 6, 7"), (10, "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"), (None, "3, 4, 5, 6, 7")]
)
def test_the_words_name_every_seed_that_the_answer_ran_with(runs: int | None, seeds: str) -> None:
    done = {"run": None, "reused": 0, "cpu_s": 0.0, "distinct": 12, "stopped_early": 0}
    made = {"confidence": 0.95, "method": "so", "seeds": [3, 4, 5, 6, 7], "simulations": done, "notes": []}
    assert made_of({**made, "answer": runs and {"runs": runs}}).splitlines()[0].endswith(f"so; seeds {seeds}")
