"""Run folders: equal runs are equal bytes, what is read is what was written, and nothing half-written is left."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import Scenario, WorkloadConfig, api, load_run, runs, save_run
from sim.scenario import CostConfig, EngineConfig, SloConfig
from workloads.config import Dist, Layer, MixClass
from workloads.errors import InputError

DETERMINISTIC = ("scenario.toml", "summary.json", "requests.parquet", "cache.parquet", "timeline.parquet", "sessions.parquet", "steps.parquet")


def small_scenario(seed: int = 3) -> Scenario:
    chat = MixClass(
        name="chat", share=1.0, output=Dist("uniform", low=5, high=40), turns=Dist(value=3), turn_input=Dist(value=50),
        think=Dist("exponential", mean=2.0),
        layers=(Layer("system", "global", Dist(value=300)), Layer("user", "dynamic", Dist("uniform", low=20, high=200))),
    )  # fmt: skip
    return Scenario(
        workload=WorkloadConfig(class_=(chat,), rate=3.0, duration_s=20.0), seed=seed, name="small",
        engine=EngineConfig(kv_blocks=2000), slo=SloConfig(ttft_s=1.0, attainment=0.9), cost=CostConfig(gpu_hour_usd=2.5),
    )  # fmt: skip


@pytest.fixture(scope="module")
def result():
    return api.run(api.prepare(small_scenario()))


def test_what_is_read_is_what_was_written(result, tmp_path):
    save_run(tmp_path / "run", result, steps=True)
    run = load_run(tmp_path / "run")
    assert run.scenario == result.scenario
    assert run.summary["prefix_hit_rate"] == result.report.summary["prefix_hit_rate"]
    for name, column in result.report.requests.items():
        np.testing.assert_array_equal(run.tables["requests"][name], column, err_msg=name)
    assert len(run.tables["steps"]["end_s"]) == len(result.report.steps[0].end_s)
    cache = run.tables["cache"]
    assert cache["tokens"].sum() == run.summary["prompt_tokens"]  # every prompt token is a hit or has one cause
    assert cache["tokens"][cache["fate"] == "hit"].sum() == run.summary["prefix_hit_tokens"]


def test_same_scenario_and_seed_same_bytes_and_another_seed_others(result, tmp_path):
    for name, scenario in (("a", small_scenario()), ("b", small_scenario()), ("c", small_scenario(seed=4))):
        prepared = api.prepare(scenario)
        save_run(tmp_path / name, api.run(prepared), api.run(api.without_cache(prepared)), steps=True)
    for name in DETERMINISTIC:
        a, b, c = (tmp_path.joinpath(run, name).read_bytes() for run in "abc")
        assert a == b, name
        assert a != c, name


def test_a_run_folders_own_scenario_runs_again_to_the_same_requests(result, tmp_path):
    save_run(tmp_path / "run", result)
    again = api.run(api.prepare(load_run(tmp_path / "run").scenario))
    for name, column in result.report.requests.items():
        np.testing.assert_array_equal(again.report.requests[name], column, err_msg=name)


def test_an_earlier_run_is_replaced_and_anything_else_is_left_alone(result, tmp_path):
    save_run(tmp_path / "run", result, steps=True)
    save_run(tmp_path / "run", result)
    assert not (tmp_path / "run" / "steps.parquet").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds something else than a run"):
        save_run(tmp_path / "mine", result)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "run"]


def test_nothing_half_written_is_left_after_a_failure(result, tmp_path, monkeypatch):
    def broken(path: Path, columns: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(runs, "_write_parquet", broken)
    with pytest.raises(OSError, match="No space left"):
        save_run(tmp_path / "run", result)
    assert list(tmp_path.iterdir()) == []


def test_damaged_folders_are_one_clear_line(result, tmp_path):
    with pytest.raises(InputError, match=r"run\.json: no such file"):
        load_run(tmp_path)
    save_run(tmp_path / "run", result)
    (tmp_path / "run" / "requests.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"requests\.parquet: cannot be read as Parquet"):
        load_run(tmp_path / "run")
    save_run(tmp_path / "run", result)
    (tmp_path / "run" / "summary.json").write_text('{"a": ')
    with pytest.raises(InputError, match=r"summary\.json: not JSON"):
        load_run(tmp_path / "run")


def test_an_explicit_block_count_is_kept_and_compared_with_what_fits():
    scenario = replace(small_scenario(), engine=EngineConfig(kv_blocks=10_000_000))
    resolved = api.resolve(scenario)
    assert resolved.scenario.engine.kv_blocks == 10_000_000
    assert resolved.origins["kv_blocks"] == "given"
    assert "more than the 57,429 that fit" in resolved.kv_lines[0]
    assert api.resolve(replace(scenario, engine=EngineConfig())).scenario.engine.kv_blocks == 57_429
