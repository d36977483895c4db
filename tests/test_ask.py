"""kvcast ask: uses that fit their model, users and requests as one load, and cards that are a plan's answer."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import api, ask, load_scenario, plan
from kvcast.asking import answering, words
from kvcast.asking.bound import bounds, chosen
from kvcast.asking.card import gives_way
from kvcast.asking.question import Asked, Question
from kvcast.asking.uses import USES, sized
from kvcast.cli import main
from kvcast.planner.words import sentence
from kvcast.planner.words.phrases import at_least
from sim.recording import COMPLETED
from workloads import dists, mix
from workloads.errors import InputError

SHORT = ("run.warmup_s=120", "run.duration_s=420", "workload.duration_s=420")
SMALL = {"gpu": "l4", "tp": (1,), "price": 0.8, "settings": SHORT, "ttft_s": 3.0, "tpot_s": 0.1}
QUICK = {"seeds": 2, "recover": False}


# -- uses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("context", [32_768, 131_072])
def test_a_use_is_sized_to_the_context(name, context):
    found = sized(USES[name], context)
    workload = mix.build(replace(found.mix, requests=3000), 0)
    tokens = workload.prompt_tokens + workload.output_tokens
    over = tokens > found.context
    sessions = workload.session_id if workload.session_id is not None else np.arange(len(workload))
    assert found.context <= context
    assert len(np.unique(sessions[over])) <= 0.02 * len(np.unique(sessions))


def test_compaction_keeps_all_turns_and_all_of_the_users_time():
    use = USES["coding-agent"]
    long, short = sized(use, 10_000_000, 16_000), sized(use, 65_536, 16_000)
    assert long.use.context == long.context
    assert short.compacted_at < long.compacted_at
    turns = dists.moments(use.class_.turns)[0]
    for one in (long, short):
        assert one.turns * one.parts == pytest.approx(turns, rel=0.01)
    assert short.user_s * short.parts == pytest.approx(long.user_s * long.parts, rel=0.12)  # texts are cut shorter


def test_sizes_are_medians_that_keep_their_shape():
    c = sized(USES["chat"], 131_072, system=16_000, new_tokens=500, answer=300).mix.class_[0]
    assert [(one.name, one.tokens.value) for one in c.layers if one.scope == "global"] == [("system", 16_000.0)]
    assert (c.turn_input.median, c.turn_input.p90) == (500.0, 4000.0)
    assert c.output.median == pytest.approx(300)
    assert c.output.p90 / c.output.median == pytest.approx(424 / 129)


def test_what_does_not_fit_the_context_is_one_line():
    with pytest.raises(InputError, match=r"--use coding-agent: 16,000 tokens .* context of 8,192 tokens; expected"):
        sized(USES["coding-agent"], 8192, 16_000)


# -- the load ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", USES)
def test_a_load_is_the_same_in_users_sessions_and_requests(name):
    users = Asked(Question(use=name, users=120))
    rate = users.rate
    rps = Asked(Question(use=name, rps=rate * users.sized.turns))
    day = Asked(Question(use=name, sessions_a_day=rate / users.sized.parts * 6 * 3600, hours=6))
    assert users.users(rate) == pytest.approx(120)
    assert rps.rate == pytest.approx(rate)
    assert day.rate == pytest.approx(rate)


def test_so_many_users_are_at_work_at_once():
    """Little's law against a simulation: sessions in progress, by the run's own times."""
    begins_s, ends_s = 1650.0, 4000.0
    window = (f"run.warmup_s={begins_s}", f"run.duration_s={ends_s}", f"workload.duration_s={ends_s}")
    asked = Asked(Question(use="chat", users=60, settings=window))
    found = api.simulate(asked.scenario(asked.rate)).requests
    done = found["status"] == COMPLETED
    first = np.full(found["session_id"].max() + 1, np.inf)
    last = np.full(len(first), -np.inf)
    np.minimum.at(first, found["session_id"][done], found["arrival_s"][done])
    np.maximum.at(last, found["session_id"][done], (found["arrival_s"] + found["e2e_s"])[done])
    inside = np.minimum(last, ends_s) - np.maximum(first, begins_s)
    assert inside[inside > 0].sum() / (ends_s - begins_s) == pytest.approx(60, rel=0.15)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({}, "expected a load"),
        ({"users": 3, "rps": 1}, "--users and --rps: expected one of them"),
        ({"users": 3, "gpus": 8}, "--gpus asks how many users"),
        ({"users": -1}, "--users -1: expected above 0"),
        ({"users": float("nan")}, "--users nan: expected above 0"),
        ({"users": 3, "use": "caht"}, "--use caht: expected one of .*did you mean chat"),
        ({"users": 3, "weights": "fp9"}, "--weights fp9: expected one of"),
        ({"users": 3, "tp": (3,)}, "--tp 3: expected one of 1, 2, 4, 8"),
        ({"users": 3, "new_tokens": 0}, "--input 0: expected"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line(asked, line):
    with pytest.raises(InputError, match=line):
        Question(**asked)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-3.3-70b", "hf:meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("hf:meta-llama/Llama-3.3-70B-Instruct", "hf:meta-llama/Llama-3.3-70B-Instruct"),
    ],
)
def test_a_model_by_the_name_people_use(name, found):
    assert Asked(Question(users=1, model=name)).scenario(1.0).model.name == found


# -- the first bound ---------------------------------------------------------------------------------------------------


def test_the_first_bound_is_told_before_anything_is_simulated(monkeypatch):
    told = []

    def refused(*_, **__):
        assert told
        raise RuntimeError("the plan begins")

    monkeypatch.setattr(answering, "plan", refused)
    with pytest.raises(RuntimeError, match="the plan begins"):
        ask(users=300, use="coding-agent", system=16_000, model="llama-3.3-70b", weights="fp8", tell=told.append)
    (document,) = told
    found = document["first"]
    assert document["stage"] == "bound"
    assert 1 not in found["widths"]  # its KV memory holds two of these sessions
    assert found["cold_ttft_s"] > 1.0 > found["reach_ttft_s"]
    assert "first bound" in words.told(document)


def test_widths_are_those_that_fit_and_may_do():
    asked = Asked(Question(users=10, model="llama-3.1-70b"))
    found = {one.width: one for one in bounds(asked)}
    assert found[1].reason
    assert not found[4].reason
    assert all(one.width in (2, 4, 8) for one in chosen(asked, [*found.values()]))
    eight = Asked(Question(gpus=4, model="llama-3.1-70b"))
    assert all(one.width in (2, 4) for one in chosen(eight, bounds(eight)))


def test_limits_that_no_idle_replica_meets_are_said_at_once():
    asked = Asked(Question(users=10, use="coding-agent", ttft_s=0.01))
    found = bounds(asked)
    told = answering.card.first(asked, found, chosen(asked, found))
    assert not told["possible"]
    assert "no fleet of these will do" in words.first(told)


# -- cards -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(card, folder, what was told) of a small question that needs more than one GPU."""
    folder, told = tmp_path_factory.mktemp("ask"), []
    card = ask(users=60, out=folder, tell=lambda document: told.append(json.dumps(document)), **SMALL, **QUICK)
    return card, folder, [json.loads(one) for one in told]


def attained(scenario, seeds) -> float:
    reports = [api.simulate(replace(scenario, seed=seed)) for seed in seeds]
    good = sum(one.summary["attainment"] * one.summary["arrived"] for one in reports)
    return good / sum(one.summary["arrived"] for one in reports)


def test_the_count_is_what_brute_force_finds_on_fresh_seeds(found):
    card, folder, _ = found
    scenario = load_scenario(folder / "scenario.toml")
    n = card["answer"]["replicas"]
    assert card["answer"]["feasible"]
    assert n > 1
    at = [attained(replace(scenario, cluster=replace(scenario.cluster, replicas=k)), (11, 12)) for k in (n - 1, n)]
    assert at[0] < 0.95 <= at[1]


def test_the_card_is_the_plan_of_the_scenario_underneath(found):
    card, folder, _ = found
    again = plan(folder / "scenario.toml", out=folder, growth=None, **QUICK)  # one width: nothing to vary
    assert again["simulations"]["run"] == 0
    assert again["answer"] == card["plan"]["answer"]
    assert "--no-recover" in shlex.split(card["command"])


def test_what_is_known_is_told_in_its_order(found):
    card, _, told = found
    stages = [one["stage"] for one in told]
    candidates = [one for one in told if one["stage"] == "candidate"]
    headline, reach, done = told[-3:]
    assert stages == ["bound", *["candidate"] * len(candidates), "headline", "reach", "done"]
    assert {(one["row"]["replicas"], one["users"]) for one in candidates} >= {(card["answer"]["replicas"], 60.0)}
    assert {one["row"]["runs"] for one in candidates} >= {1, QUICK["seeds"]}
    assert done["card"] == json.loads(json.dumps(card))
    same = ("question", "load", "answer", "command", "scenario")
    assert {key: headline["card"][key] for key in same} == {key: done["card"][key] for key in same}
    assert headline["card"]["gives_way"] is headline["card"]["one_down"] is None
    assert reach["card"]["gives_way"]["next_gpu_users"] == card["gives_way"]["next_gpu_users"]
    assert headline["card"]["plan"]["simulations"]["distinct"] < card["plan"]["simulations"]["distinct"]
    assert all(words.told(one) for one in told[:-2])


def test_money_and_users_are_the_plans(found):
    card, *_ = found
    answer, capacity = card["answer"], card["plan"]["capacity"]
    assert card["first"]["gpus"] <= answer["gpus"]
    assert answer["usd_per_month"] == pytest.approx(0.8 * answer["gpus"] * 730)
    assert answer["usd_per_user"] == pytest.approx(answer["usd_per_month"] / 60)
    factor = 60 / capacity["offered_rate_per_s"]
    assert card["gives_way"]["next_gpu_users"] == int(factor * capacity["slo_capacity_per_s"] + 1e-9)
    assert card["gives_way"]["users"] > card["gives_way"]["next_gpu_users"] >= 60


def test_the_card_in_words(found):
    card, *_ = found
    told = words.as_text(card)
    answer = card["answer"]
    assert f"60 users on {answer['gpus']} x " in told
    assert "a user and month" in told
    assert f"Gives way first: {card['gives_way']['resource'] or 'no single resource'}" in told
    assert "One replica down:" in told
    assert "taken: " in told
    assert "model" not in card["question"]["title"]
    assert all(len(line) <= 100 for line in told.splitlines())
    json.dumps(card)


def test_no_answer_has_a_way_out_that_is_one():
    card = ask(users=20, **{**SMALL, "ttft_s": 0.1}, most=2, **QUICK)
    assert not card["answer"]["feasible"]
    assert card["answer"]["gpus"]
    row = next(one for one in card["way_out"] if one["kind"] == "limit")
    assert row["usd_per_month"] == pytest.approx(0.8 * row["gpus"] * 730)
    assert row["flags"][0] == "--ttft"
    again = ask(users=20, **{**SMALL, "ttft_s": float(row["flags"][1].rstrip("s"))}, most=2, **QUICK)
    assert again["answer"]["attainment"]["mean"] >= 0.95  # so short a window cannot show it
    told = words.as_text(card)
    assert "NO FLEET MEETS THIS" in told
    assert shlex.join(row["flags"]) in told


def test_how_many_users_some_gpus_serve(tmp_path):
    card = ask(gpus=2, out=tmp_path, **SMALL, **QUICK)
    users = card["answer"]["users"]
    assert card["answer"]["feasible"]
    assert (card["answer"]["gpus"], card["asked"]) == (2, "users")
    scenario = load_scenario(tmp_path / "scenario.toml")
    more = replace(scenario, workload=replace(scenario.workload, rate_scale=3.0))
    assert attained(scenario, (11, 12, 13)) >= 0.95
    assert attained(more, (11, 12, 13)) < 0.85
    assert Asked(Question(gpus=2, **SMALL)).users(scenario.workload.rate) == pytest.approx(users, rel=1e-4)
    assert f"2 x {card['answer']['device']}" in words.as_text(card)


def test_a_load_that_it_does_not_come_back_from_gives_way_though_none_breaks_it():
    """Held at every load of the search (640/s at most) but back after a burst from 40/s at most: that is a limit."""
    reached = {"slo_capacity_per_s": 640.0, "breaks_at_per_s": None, "offered_rate_per_s": 20.0, "unit": "requests/s"}
    made = {"capacity": reached, "binding": None, "answer": {"feasible": True}}
    spare = {"replicas": 2, "attainment_one_down": 0.99, "enough": True, "verdict": None}
    for recovers, told, least in (
        (40.0, "Gives way at 120 users. Next GPU needed above 120 users (it would not come back from a burst).", False),
        (640.0, "Nothing gives way up to 1,920 users, the most that were looked at.", True),
    ):
        plan = {**made, "recovery": {"recoverable_per_s": recovers}}
        found = gives_way(plan, 60.0)
        card = {"gives_way": found, "answer": {"usd_per_month_per_replica": None}, "one_down": spare, "plan": plan}
        assert (words.gives_way(card), found["at_least"]) == ([told], least)
        assert at_least(plan) == ("at least " if least else "")
        assert sentence._band(plan["recovery"], reached) == (
            ", the highest load that was looked at"
            if least
            else ", metastable (holds until disturbed) up to at least 640 requests/s"
        )
        assert words.one_down(card) == ["One replica down: still meets (99.0 %), undisturbed."]
    rows = {"helps": [{"users": 90}], "plan": {"candidates": [], **plan}}
    assert words.helps_by(rows) == "one run each; what it holds is undisturbed"
    assert words.helps_by({**rows, "helps": [{"users": None}]}) == "one run each"
    assert words.helps_by({**rows, "plan": {**rows["plan"], "recovery": None}}) == "one run each"
    assert not at_least({**plan, "capacity": {**reached, "breaks_at_per_s": 700.0}})


# -- the command -------------------------------------------------------------------------------------------------------


def test_toml_is_a_scenario_that_loads(capsys, tmp_path):
    assert main(shlex.split("ask --users 40 --use rag --gpu h200 --ttft 800ms --tpot 50ms --for 99% --toml")) == 0
    path = Path(tmp_path, "s.toml")
    path.write_text(capsys.readouterr().out)
    scenario = load_scenario(path)
    assert (scenario.slo.ttft_s, scenario.slo.tpot_s, scenario.slo.attainment) == (0.8, 0.05, 0.99)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ask", "expected a load"),
        ("ask --users 4 --ttft soon", "expected seconds, such as"),
        ("ask --users 4 --gpu h2000", "did you mean h200"),
        ("ask --users 4 --model llama-9", "is not bundled"),
        ("ask --users 4 --tp x", "expected GPUs a replica"),
        ("ask --users 4 --model llama-3.1-70b --tp 1 --toml", "does not fit"),
        ("ask --gpus 1 --model llama-3.1-405b", "--gpus 1"),
        ("ask --users 4 --set engine.nonsense=3", "nonsense"),
    ],
)
def test_bad_input_is_one_line(line, told, capsys):
    try:
        code = main(shlex.split(line))
    except SystemExit as stopped:
        code = stopped.code
    found = capsys.readouterr()
    assert code == 2
    assert told in found.err
    assert len(found.err.splitlines()) == 1
    assert not found.out
