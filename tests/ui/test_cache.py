"""The Cache page: what was missed, what brings it back, how far policies are from the optimum; its figures and its
flows."""

import json
import tomllib

import numpy as np
import pytest

from kvcast import api, cli, figures, text
from kvcast.config import scenario_from_doc
from kvcast.jobs import runner
from kvcast.pages import apply, cache, shell
from kvcast.pages.edit import inputs, settings
from kvcast.scenario.toml import dumps
from kvcast.store.runs import load_run
from kvcast.studies.levers import changes
from tests.ui.conftest import Session


@pytest.fixture(scope="module")
def open_run(folder):
    """The demo's run, as the first open shows it."""
    shown = Session("cache").at.session_state.job
    return load_run(shown.folder)


def answered(folder, toml, command, document):
    """The document as the finished answer of a command."""
    key = runner.key_of(toml, command)
    (folder / f"{key}.json").write_text(json.dumps(document))
    (folder / f"{key}.toml").write_text(toml)


def shown_toml(session):
    return session.at.session_state.job.scenario_toml


# -- the page ----------------------------------------------------------------------------------------------------------


def test_what_was_hit_and_missed_is_what_the_run_folder_says(folder, open_run):
    s = open_run.summary
    words = Session("cache").words()
    assert f"{text.percent(s['prefix_hit_rate'])} of the prompt tokens came from the cache" in words
    assert (
        f"({text.percent(s['reuse_ceiling_replica'])}); one cache for the fleet could give"
        f" {text.percent(s['reuse_ceiling_fleet'])}" in words
    )
    assert (
        f"cold {text.percent(s['miss_tokens']['cold'] / s['prompt_tokens'])}, other replica"
        f" {text.percent(s['miss_tokens']['other_replica'] / s['prompt_tokens'])}" in words
    )
    assert "Simulate the changes that could" in Session("cache").buttons()


def test_a_change_that_helps_can_be_applied_and_is_run(folder, open_run):
    session = Session("cache")
    before = {
        key: open_run.summary[key]
        for key in (
            "prefix_hit_rate",
            "prefix_hit_tokens",
            "mean_ttft_ms",
            "p99_ttft_ms",
            "attainment",
            "stable",
            "gpu_hours",
            "preemptions",
        )
    }
    after = {**before, "prefix_hit_rate": 0.78, "p99_ttft_ms": 321.0}
    known = changes("other_replica", open_run.scenario, open_run.scenario)
    rows = [
        {
            "change": known[0].words,
            "set": list(known[0].sets),
            "scenario": dumps(known[0].scenario),
            "asks_for": "",
            "recovered_tokens": 12300,
            "after": after,
            "helps": True,
            "verdict": "helps: much",
        },
        {
            "change": known[1].words,
            "set": list(known[1].sets),
            "scenario": dumps(known[1].scenario),
            "asks_for": "",
            "recovered_tokens": -5,
            "after": after,
            "helps": False,
            "verdict": "does not help: no",
        },
    ]
    prompt = open_run.summary["prompt_tokens"]
    document = {
        "before": before,
        "prompt_tokens": prompt,
        "miss_tokens": {"cold": 10},
        "not_recoverable": ["cold"],
        "causes": [{"cause": "other_replica", "tokens": prompt // 10, "changes": rows}],
    }
    answered(folder, shown_toml(session), ("explain",), document)
    session.settle(session.at.run())
    words = session.words()
    assert "+12.30 k" in words
    assert "321 ms" in words
    assert "does not help" in words
    assert any(e.label.replace("\\", "").startswith("other replica: ") for e in session.at.expander)
    assert [b.key for b in session.at.button if b.label == "Apply"] == ["cache.apply.other_replica.0"]
    session.press("Apply")
    assert session.at.session_state["router"] == known[0].scenario.cluster.router
    assert load_run(session.at.session_state.job.folder).scenario.cluster.router == session.at.session_state["router"]


def test_the_curves_are_those_of_the_command_line(folder, open_run, tmp_path, capsys):
    session = Session("cache").press("Replay the requests through caches of many sizes")
    command = ("cache", "--rule", "leaf-first", "--policy", "gdsf,lru,s3fifo,optimal", "--capacity-blocks", "auto")
    job = shell.runner_of(str(folder)).existing(shown_toml(session), *command)
    assert job is not None, "the button started this command"
    job.wait()
    assert job.done, job.failure()
    session.settle(session.at.run())
    assert "With " in session.words()
    rows = job.document()
    by_size = {
        policy: {r["capacity_blocks"]: r["hit_ratio_tokens"] for r in rows if r["policy"] == policy}
        for policy in ("lru", "gdsf", "s3fifo", "optimal")
    }
    assert all(
        by_size["optimal"][size] >= by_size[policy][size] - 1e-12 for policy in by_size for size in by_size["optimal"]
    )
    figure = figures.hit_by_capacity(rows, cache.block_bytes(open_run), cache.marks_of(open_run))
    lru = next(trace for trace in figure.data if trace.name == "lru")
    assert list(lru.y) == [100 * by_size["lru"][size] for size in sorted(size for size in by_size["lru"] if size)]
    (tmp_path / "s.toml").write_text(shown_toml(session))
    capsys.readouterr()
    assert (
        cli.main(["cache", str(tmp_path / "s.toml"), "--rule", "leaf-first", "--capacity-blocks", "1000", "--json"])
        == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["block_size"], row["policy"], row["capacity_blocks"]) == (16, "lru", 1000)
    scenario = scenario_from_doc(tomllib.loads(shown_toml(session)))
    assert row["prompt_tokens"] == api.load_workload(scenario.workload, scenario.seed).prompt_tokens.sum()


def test_the_order_of_the_prompt_has_its_cost(folder):
    session = Session("cache")
    row, *_ = [frame.value for frame in session.at.dataframe if "lost by the order" in frame.value.columns]
    assert list(row["class"]) == ["chat", "coding-agent"]
    assert set(row["best order"]) == {"the same"}
    assert (row["reusable"] > 0).all()


def test_a_mix_that_shares_nothing_says_so_in_numbers(folder):
    session = Session("cache")
    session.at.selectbox(key="workload").set_value("chat").run()
    session.press("Run")
    assert "says nothing about shared text" not in session.words()  # a mix knows its texts, even when nothing is shared
    assert "0.0 % of the prompt tokens came from the cache" in session.words()


# -- applying ----------------------------------------------------------------------------------------------------------


def test_every_change_that_explain_tries_can_be_applied_and_changes_nothing_else(folder, monkeypatch):
    shown, adopted = inputs.Asked(settings.demo()).toml, []
    monkeypatch.setattr(apply, "adopt", lambda page, scenario: adopted.append(scenario))
    page = shell.Page(shell.runner_of(str(folder)), inputs.Asked(settings.demo()), shown, shown, None, None)
    given = scenario_from_doc(tomllib.loads(shown))
    run = api.resolve(api.windowed(given)).scenario
    for cause in ("other_replica", "evicted_policy", "evicted_memory", "partial_block"):
        for change in changes(cause, run, run):
            adopted.clear()
            apply.apply_change(page, {"set": change.sets, "scenario": dumps(change.scenario)})
            (applied,) = adopted
            assert applied != given
            assert applied.engine.max_num_seqs is None, "what the engine filled in stays open"
            assert applied.run == given.run, "the run's window is not the reader's"
            assert scenario_from_doc(tomllib.loads(inputs.Asked(applied).toml)) == applied


# -- figures -----------------------------------------------------------------------------------------------------------


def test_tokens_by_scope_sum_to_all_of_them(open_run):
    table = open_run.tables["cache"]
    figure = figures.tokens_by_scope(table)
    assert sum(sum(trace.customdata) for trace in figure.data) == table["tokens"].sum()
    assert sum(sum(trace.x) for trace in figure.data) == pytest.approx(100)
    chat = figures.tokens_by_scope(table, "chat")
    assert sum(sum(trace.customdata) for trace in chat.data) == table["tokens"][table["class"] == "chat"].sum()


def test_misses_over_time_sum_to_the_prompt_tokens(open_run):
    figure = figures.misses_over_time(open_run.tables["timeline"])
    assert sum(np.sum(trace.y) for trace in figure.data) == pytest.approx(
        open_run.tables["timeline"]["prompt_tokens"].sum()
    )
    assert all(len(trace.x) <= 40 for trace in figure.data)


def test_memory_and_its_worth():
    points = [{"cache": False, "kv_gib_per_gpu": 112.0, "gpus": 3, "prefix_hit_rate": 0.0, "mean_ttft_ms": 90.0}] + [
        {"cache": True, "kv_gib_per_gpu": gib, "gpus": gpus, "prefix_hit_rate": 0.5, "mean_ttft_ms": 40.0}
        for gib, gpus in ((7.0, 3), (56.0, 2), (112.0, 1))
    ]
    zero, curve = figures.value_of_memory({"points": points}).data
    assert list(zero.y) == [3, 3]
    assert list(curve.y) == [3, 2, 1]
    unreached = figures.value_of_memory({"points": [{**points[0], "gpus": None}, *points[1:]]}).data
    assert len(unreached) == 1
