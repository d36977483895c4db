"""The access log: against a walk of every prompt token by token, and its sums against the summary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import Scenario, WorkloadConfig, api, load_run, save_run
from kvcast.cli import main
from sim.measure.access import accesses, names
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, EngineParams, RunConfig
from sim.simulate import run
from tests.test_cli import SMALL
from tests.worlds import LinearSteps, random_workload
from workloads.columns import SCOPES, PrefixTree, Workload
from workloads.config import Dist, Layer, MixClass


def log_of(workload: Workload, requests: dict[str, np.ndarray], **options: int) -> dict[str, np.ndarray]:
    batches = list(accesses(workload, requests, **options))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def token_by_token(workload: Workload, requests: dict[str, np.ndarray]) -> list[tuple]:
    """Rows (time, request, node, depth, tokens, hit, next use), from the owner of every single token."""
    tree, admit_s = workload.tree, requests["admit_s"]

    def owners(r: int) -> list[int]:
        path, node = [], int(workload.leaf[r])
        while node >= 0:
            path.append(node)
            node = int(tree.parent[node])
        found = [node for node in reversed(path) for _ in range(int(tree.end[node] - tree.start[node]))]
        return (found + [len(tree) + r] * int(workload.prompt_tokens[r]))[: int(workload.prompt_tokens[r])]

    order = sorted(np.flatnonzero(~np.isnan(admit_s)), key=lambda r: (admit_s[r], r))
    texts = {r: owners(r) for r in order}
    rows = []
    for place, r in enumerate(order):
        tokens = texts[r]
        for node in dict.fromkeys(tokens):
            start, n = tokens.index(node), tokens.count(node)
            later = [admit_s[q] for q in order[place + 1 :] if len(texts[q]) > start and texts[q][start] == node]
            hit = sum(start <= t < requests["hit_tokens"][r] for t in range(start, start + n))
            rows.append((admit_s[r], r, node, start, n, hit, later[0] if later else np.nan))
    return rows


@pytest.mark.parametrize("batch_rows", [1, 40, 1 << 18])
def test_every_row_is_the_one_of_its_tokens(batch_rows: int) -> None:
    workload = random_workload(5, n=60, closed=True)
    rec = run(workload, EngineParams(kv_blocks=40, block_size=4, max_num_seqs=6), LinearSteps(), replicas=2)
    requests = {
        "admit_s": rec.admit_s,
        "replica": rec.replica,
        "hit_tokens": rec.hit_tokens,
        "in_window": np.ones(60, bool),
    }
    log = log_of(workload, requests, batch_rows=batch_rows)
    expected = token_by_token(workload, requests)
    columns = ("time_s", "request", "node", "depth_tokens", "tokens", "hit_tokens", "next_use_s")
    assert rec.hit_tokens.sum() > 0
    for i, name in enumerate(columns):
        np.testing.assert_array_equal(log[name], np.array([row[i] for row in expected]), err_msg=name)
    np.testing.assert_array_equal(log["replica"], rec.replica[log["request"]])
    assert np.isnan(log["next_use_s"]).any()
    assert not np.isnan(log["next_use_s"]).all()


def test_batches_hold_no_more_rows_than_asked_for_and_one_request() -> None:
    workload = random_workload(6, n=200)
    requests = {
        "admit_s": workload.arrival_s,
        "replica": np.zeros(200),
        "hit_tokens": np.zeros(200, np.int64),
        "in_window": np.ones(200, bool),
    }
    sizes = [len(batch["request"]) for batch in accesses(workload, requests, batch_rows=30)]
    assert max(sizes) <= 30 + 40  # a path of the world has fewer nodes than 40
    assert len(sizes) > 10


def test_a_run_that_admits_nobody_has_an_empty_log() -> None:
    workload = random_workload(7, n=5)
    requests = {
        "admit_s": np.full(5, np.nan),
        "replica": np.full(5, -1),
        "hit_tokens": np.zeros(5, np.int64),
        "in_window": np.ones(5, bool),
    }
    (batch,) = accesses(workload, requests)
    assert {len(column) for column in batch.values()} == {0}


def test_an_answer_on_a_shared_path_is_no_access_of_its_own_request() -> None:
    """A prompt of 30 tokens whose answer is 10 more of the node; the next prompt has all 40 and 5 of its own."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 40], np.int64), np.zeros(2, np.int16))
    workload = Workload(tree, np.array([0.0, 9.0]), np.array([30, 45]), np.array([10, 1]), np.array([1, 1], np.int32))
    requests = {
        "admit_s": workload.arrival_s,
        "replica": np.zeros(2),
        "hit_tokens": np.array([0, 32]),
        "in_window": np.ones(2, bool),
    }
    log = log_of(workload, requests)
    assert log["tokens"].tolist() == [30, 40, 5]
    assert log["hit_tokens"].tolist() == [0, 32, 0]
    assert log["next_use_s"][0] == 9.0
    assert np.isnan(log["next_use_s"][1:]).all()
    assert log["node"].tolist() == [1, 1, len(tree) + 1]


# ---- runs ----


def layered(engine: EngineConfig) -> Scenario:
    turns = {"turns": Dist(value=3), "turn_input": Dist(value=50), "think": Dist("exponential", mean=1.0)}
    layers = (
        Layer("system", "global", Dist(value=300)),
        Layer("document", "project", Dist(value=400), items=6),
        Layer("user", "dynamic", Dist("uniform", low=20, high=200)),
    )
    chat = MixClass(
        name="chat",
        share=0.6,
        output=Dist("uniform", low=5, high=40),
        layers=layers,
        tenants=3,
        isolation=True,
        **turns,
    )
    job = MixClass(name="job", share=0.4, output=Dist(value=4), layers=layers[1:], **{**turns, "turns": Dist(value=1)})
    return Scenario(
        workload=WorkloadConfig(class_=(chat, job), rate=6.0, duration_s=30.0),
        engine=engine,
        cluster=ClusterConfig(replicas=2),
        run=RunConfig(warmup_s=5.0),
        cache=CacheConfig(policy="lfu"),
    )


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_sums_over_the_file_are_the_summarys(semantics: str, tmp_path: Path) -> None:
    prepared = api.prepare(layered(EngineConfig(kv_blocks=300, semantics=semantics)))
    result = api.run(prepared)
    tables = load_run(save_run(tmp_path / "run", result, access_of=prepared.workload)).tables
    log, summary = tables["access"], result.report.summary
    inside = log["in_window"]
    assert 0 < inside.sum() < len(inside)
    assert log["tokens"][inside].sum() == summary["prompt_tokens"]
    assert log["hit_tokens"][inside].sum() == summary["prefix_hit_tokens"] > 0
    missed = (log["tokens"] - log["hit_tokens"])[inside].sum()
    assert missed == sum(count or 0 for count in summary["miss_tokens"].values()) > 0
    for name, row in result.report.classes.items():
        mine = inside & (log["class"] == name)
        assert log["hit_tokens"][mine].sum() == row["prefix_hit_tokens"]
        for scope in set(log["scope"][mine]):
            assert log["hit_tokens"][mine & (log["scope"] == scope)].sum() == row["tokens_by_scope"]["hit"].get(
                scope, 0
            )
    for name, row in result.report.tenants.items():
        assert log["hit_tokens"][inside & (log["tenant"] == name)].sum() == row["prefix_hit_tokens"]
    assert set(log["layer"]) <= set(names(prepared.workload)["layer"])
    assert set(log["scope"]) <= set(SCOPES)


def test_the_command_writes_it_and_wants_a_folder_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    assert main(["run", str(path), "--no-baseline", "--access-log", "--steps", "--out", str(tmp_path / "run")]) == 0
    run = load_run(tmp_path / "run")
    assert run.tables["access"]["tokens"].sum() == run.summary["prompt_tokens"]
    stepped = run.tables["steps"]
    assert stepped["n_sampled"].sum() == run.summary["total_output_tokens"]
    assert (stepped["sum_context"] >= stepped["n_decode"]).all()
    for flag in ("--access-log", "--steps"):
        assert main(["run", str(path), flag]) == 2
        assert f"{flag}: expected --out with it" in capsys.readouterr().err
    assert main(["run", str(path), "--no-baseline", "--out", str(tmp_path / "run")]) == 0
    assert "access" not in load_run(tmp_path / "run").tables


def test_ties_in_time_are_in_order_of_requests() -> None:
    workload = replace(random_workload(8, n=30), arrival_s=np.zeros(30))
    requests = {
        "admit_s": np.zeros(30),
        "replica": np.zeros(30),
        "hit_tokens": np.zeros(30, np.int64),
        "in_window": np.ones(30, bool),
    }
    assert (np.diff(log_of(workload, requests)["request"]) >= 0).all()
