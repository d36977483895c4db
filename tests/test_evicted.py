"""Hits and causes by class, tenant, scope and time, and evicted tokens split by the optimum: every sum is exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import api, load_run, save_run
from kvcast.api import Result
from kvcast.cli import main
from sim.measure.causes import CAUSES
from sim.measure.evicted import PARTS
from sim.measure.timeline import interval_ends, interval_of
from sim.scenario import CacheConfig, EngineConfig
from tests.recordings import recording, steps
from tests.test_access import layered
from tests.test_cli import SMALL


@pytest.fixture(scope="module")
def result() -> Result:
    given = replace(layered(EngineConfig(kv_blocks=260)), cache=CacheConfig(policy="fifo"))
    return api.run(api.prepare(given), record_cache=True)


def test_the_parts_of_evicted_add_up_for_every_request_class_tenant_and_scope(result: Result) -> None:
    report = result.report
    columns, summary = report.requests, report.summary
    policy, memory, given_up = (
        columns[name] for name in ("evicted_policy_tokens", "evicted_memory_tokens", "given_up_tokens")
    )
    np.testing.assert_array_equal(policy + memory, columns["miss_evicted_tokens"])
    assert ((policy == 0) | (given_up == 0)).all()
    inside = columns["in_window"] & ~np.isnan(columns["admit_s"])
    total = summary["evicted_split"]
    assert [total[part] for part in PARTS] == [int(c[inside].sum()) for c in (policy, memory, given_up)]
    assert min(total["policy"], total["memory"]) > 0
    assert total["policy"] + total["memory"] == summary["miss_tokens"]["evicted"]
    assert total["optimum_hit_tokens"] - summary["prefix_hit_tokens"] == total["policy"] - total["given_up"]
    assert total["gap"] == 0
    for rows in (report.classes, report.tenants):
        assert {part: sum(row["evicted_split"][part] for row in rows.values()) for part in PARTS} == {
            part: total[part] for part in PARTS
        }
        assert all(
            row["evicted_split"]["policy"] + row["evicted_split"]["memory"] == row["miss_tokens"]["evicted"]
            for row in rows.values()
        )
    assert {part: sum(scopes.values()) for part, scopes in total["by_scope"].items()} == {
        part: total[part] for part in PARTS
    }
    for row in report.classes.values():
        by_scope, evicted = row["evicted_split"]["by_scope"], row["tokens_by_scope"]["evicted"]
        assert {s: by_scope["policy"].get(s, 0) + by_scope["memory"].get(s, 0) for s in evicted} == evicted


def test_the_cache_table_sums_to_the_summary_along_every_column(result: Result, tmp_path: Path) -> None:
    report = result.report
    cache = load_run(save_run(tmp_path / "run", result)).tables["cache"]
    fate, tokens = cache["fate"], cache["tokens"]
    assert tokens.sum() == report.summary["prompt_tokens"]
    assert (tokens > 0).all()
    split = {"evicted_policy", "evicted_memory"}
    assert set(fate) <= {"hit", *CAUSES} - {"evicted"} | split
    assert tokens[np.isin(fate, list(split))].sum() == report.summary["miss_tokens"]["evicted"]
    for name, row in report.classes.items():
        mine = cache["class"] == name
        assert tokens[mine].sum() == row["prompt_tokens"]
        for scope, hit in row["tokens_by_scope"]["hit"].items():
            assert tokens[mine & (fate == "hit") & (cache["scope"] == scope)].sum() == hit
    columns = report.requests
    inside = np.flatnonzero(columns["in_window"] & ~np.isnan(columns["admit_s"]))
    ends_s = report.timeline["t_s"]
    of = ends_s[interval_of(ends_s, columns["admit_s"][inside])]
    for t_s in np.unique(of):
        assert tokens[cache["t_s"] == t_s].sum() == columns["prompt_tokens"][inside][of == t_s].sum()
        assert (
            tokens[(cache["t_s"] == t_s) & (fate == "cold")].sum()
            == columns["miss_cold_tokens"][inside][of == t_s].sum()
        )


def test_the_timeline_has_hits_and_causes_of_everybody_admitted(result: Result) -> None:
    timeline, columns = result.report.timeline, result.report.requests
    for name in ("hit_tokens", "evicted_policy_tokens", *(f"miss_{cause}_tokens" for cause in CAUSES)):
        assert timeline[name].sum() == columns[name].sum(), name
    fates = timeline["hit_tokens"] + sum(timeline[f"miss_{cause}_tokens"] for cause in CAUSES)
    np.testing.assert_array_equal(fates, timeline["prompt_tokens"])


def test_without_the_record_nothing_is_split_and_nothing_else_differs(result: Result) -> None:
    plain = api.run(api.prepare(result.scenario)).report
    assert plain.summary["evicted_split"] is None
    assert "evicted_policy_tokens" not in plain.requests
    assert {**plain.summary, "evicted_split": 0} == {**result.report.summary, "evicted_split": 0}
    off = api.run(api.without_cache(api.prepare(result.scenario)), record_cache=True).report
    assert off.summary["evicted_split"] is None
    assert off.summary["miss_tokens"]["cache_off"] > 0


def test_the_command_says_so_and_refuses_where_there_is_no_optimum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    small = ["run", str(path), "--no-baseline", "--set", "engine.kv_blocks=100", "--optimum"]
    assert main([*small, "--out", str(tmp_path / "run")]) == 0
    out, split = capsys.readouterr().out, load_run(tmp_path / "run").summary["evicted_split"]
    assert (
        "of those of the optimum for this schedule (hit tokens, pinned blocks as they were, proved gap 0.00 %)"
        in " ".join(out.split())
    )
    assert split["policy"] + split["memory"] > 0
    for wrong, part in (
        (["--set", "cache.enabled=false"], "expected the prefix cache on"),
        (["--set", "engine.semantics=sglang"], "vLLM's semantics only"),
        (["--warm-cache", "none.npz"], "--optimum with --warm-cache"),
    ):
        assert main([*small, *wrong]) == 2
        err = capsys.readouterr().err
        assert part in err
        assert err.startswith(f"kvcast: {path}: ")
        assert err.count("\n") == 1


def test_an_interval_begins_at_its_first_moment_and_the_last_holds_the_end() -> None:
    rec = recording([0.0], [steps([0.5, 4.0], [0.5, 3.5])], finish_s=np.array([4.0]))
    ends_s = interval_ends(rec)
    assert (ends_s[0], ends_s[-1], len(ends_s)) == (0.01, 4.0, 400)
    assert interval_of(ends_s, np.array([0.0, 0.0099, 0.01, 3.999, 4.0])).tolist() == [0, 0, 1, 399, 399]
