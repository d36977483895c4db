"""Run folders: equal runs are equal bytes, what is read is what was written, and nothing half-written is left."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from kvcast import Scenario, WorkloadConfig, api, load_run, save_run
from kvcast.store import aggregates, runs
from sim.scenario import CostConfig, EngineConfig, SloConfig
from workloads.config import Dist, Layer, MixClass
from workloads.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
DETERMINISTIC = (
    "scenario.toml",
    "summary.json",
    "aggregates.json",
    "access.parquet",
    "requests.parquet",
    "cache.parquet",
    "timeline.parquet",
    "sessions.parquet",
    "steps.parquet",
)


def small_scenario(seed: int = 3) -> Scenario:
    chat = MixClass(
        name="chat",
        share=1.0,
        output=Dist("uniform", low=5, high=40),
        turns=Dist(value=3),
        turn_input=Dist(value=50),
        think=Dist("exponential", mean=2.0),
        layers=(
            Layer("system", "global", Dist(value=300)),
            Layer("user", "dynamic", Dist("uniform", low=20, high=200)),
        ),
    )
    return Scenario(
        workload=WorkloadConfig(class_=(chat,), rate=3.0, duration_s=20.0),
        seed=seed,
        name="small",
        engine=EngineConfig(kv_blocks=2000),
        slo=SloConfig(ttft_s=1.0, attainment=0.9),
        cost=CostConfig(gpu_hour_usd=2.5),
    )


@pytest.fixture(scope="module")
def result():
    return api.run(api.prepare(small_scenario()))


def test_steps_are_written_a_group_of_replicas_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "AT_ONCE", 100)
    given = small_scenario()
    result = api.run(api.prepare(replace(given, cluster=replace(given.cluster, replicas=3))))
    save_run(tmp_path / "run", result, steps=True)
    table, steps = load_run(tmp_path / "run").tables["steps"], result.report.steps
    for name in ("end_s", "coverage", "n_decode", "prefill_tokens"):
        assert table[name].tolist() == [value for one in steps for value in getattr(one, name).tolist()]
    assert table["sum_context"].tolist() == [value for one in steps for value in one.work.sum_context.tolist()]
    assert table["replica"].tolist() == [i for i, one in enumerate(steps) for _ in range(len(one))]
    assert pyarrow.parquet.ParquetFile(tmp_path / "run" / "steps.parquet").num_row_groups > 1


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
        save_run(
            tmp_path / name,
            api.run(prepared),
            api.run(api.without_cache(prepared)),
            steps=True,
            access_of=prepared.workload,
        )
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

    monkeypatch.setattr(runs.parquet, "write", broken)
    with pytest.raises(OSError, match="No space left"):
        save_run(tmp_path / "run", result)
    assert list(tmp_path.iterdir()) == []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("stopped_at", [1, 2])
def test_an_interrupt_between_the_renames_loses_no_run(result, tmp_path, monkeypatch, stopped_at):
    save_run(tmp_path / "run", result, steps=True)
    rename, calls = os.rename, []

    def interrupted(source: object, target: object) -> None:
        calls.append(source)
        if len(calls) == stopped_at:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(runs.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_run(tmp_path / "run", result)
    assert names(tmp_path) == ["run"]
    # stopped before anything moved, the old run stays; after, the new one, finished, takes the name
    assert (tmp_path / "run" / "steps.parquet").exists() == (stopped_at == 1)
    assert load_run(tmp_path / "run").scenario == result.scenario


def test_what_a_killed_writer_left_is_put_right_by_the_next_load_or_save(result, tmp_path):
    def left(name: str) -> Path:
        return save_run(tmp_path / "elsewhere", result).rename(tmp_path / name)

    left(".run.abcdefg1.old")
    newer = left(".run.abcdefg2.new")
    mtime = (newer / "run.json").stat().st_mtime_ns
    half = tmp_path / ".run.abcdefg3.new"
    half.mkdir()
    (half / "scenario.toml").write_text("seed")
    (tmp_path / ".run.abcdefg4.old").mkdir()
    (tmp_path / ".run.abcdefg4.old" / "mine.txt").touch()  # not what a run holds: not ours to remove
    other = left(".run.b.abcdefg5.old")  # of the run named run.b
    assert not (tmp_path / "run").exists()
    assert load_run(tmp_path / "run").scenario == result.scenario
    assert names(tmp_path) == [".run.abcdefg4.old", other.name, "run"]
    assert (tmp_path / "run" / "run.json").stat().st_mtime_ns >= mtime
    half.mkdir()
    save_run(tmp_path / "run", result)
    assert names(tmp_path) == [".run.abcdefg4.old", other.name, "run"]


WRITER = """
import sys
from kvcast import api
from kvcast.store import runs
from tests.test_runs import small_scenario
result = api.run(api.prepare(small_scenario()))
print("ready", flush=True)
sys.stdin.readline()
for _ in range({times}):
    runs.save_run(sys.argv[1], result)
"""


def writer(folder: Path, times: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER.format(times=times), str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


def test_several_processes_write_one_folder_and_the_last_one_wins(tmp_path):
    writers = [writer(tmp_path / "run", "8") for _ in range(3)]
    for process in writers:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    errors = [process.communicate()[1].decode() for process in writers]
    assert errors == ["", "", ""]
    assert names(tmp_path) == ["run"]
    load_run(tmp_path / "run")


def test_a_writer_killed_at_any_moment_leaves_a_run_or_one_that_comes_back(result, tmp_path):
    process = writer(tmp_path / "run", "10**9")
    save_run(tmp_path / "run", result)
    process.stdin.write(b"go\n")
    process.stdin.flush()
    while not any(name.endswith(".new") for name in names(tmp_path)):
        pass
    save_run(tmp_path / "run", result)  # beside a live writer, whose half-written folder is left alone
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.communicate()[1] == b""
    load_run(tmp_path / "run")
    save_run(tmp_path / "run", result)
    assert names(tmp_path) == ["run"]


def test_a_full_disk_names_the_folder(result, tmp_path, monkeypatch):
    def full(path: Path, columns: object) -> None:
        raise OSError(28, "Error writing bytes to file")  # as pyarrow has it: no file name

    monkeypatch.setattr(runs.parquet, "write", full)
    with pytest.raises(OSError, match="No space left") as error:
        save_run(tmp_path / "run", result)
    assert error.value.filename == str((tmp_path / "run").resolve())


def test_files_beside_a_run_are_not_deleted_with_it(result, tmp_path):
    save_run(tmp_path / "run", result)
    (tmp_path / "run" / "notes.md").write_text("what I saw")
    with pytest.raises(InputError, match=r"holds notes\.md beside a run"):
        save_run(tmp_path / "run", result)
    assert (tmp_path / "run" / "notes.md").read_text() == "what I saw"


def test_a_device_is_not_a_folder(result):
    with pytest.raises(InputError, match="/dev/null: is not a folder"):
        save_run("/dev/null", result)


def test_damaged_folders_are_one_clear_line(result, tmp_path):
    with pytest.raises(InputError, match=r"run\.json: no such file"):
        load_run(tmp_path)
    save_run(tmp_path / "run", result)
    (tmp_path / "run" / "requests.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"requests\.parquet: 4 bytes where [\d,]+ were written"):
        load_run(tmp_path / "run")
    save_run(tmp_path / "run", result)
    (tmp_path / "run" / "summary.json").write_text('{"a": ')
    with pytest.raises(InputError, match=r"summary\.json: 6 bytes where"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(("key", "value"), [("kvcast", None), ("written_at", 7), ("written_at", "today")])
def test_a_run_says_what_wrote_it_and_when(key, value, result, tmp_path):
    told = save_run(tmp_path / "run", result) / "run.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"run\.json: {key} = {value!r}, expected"):
        load_run(tmp_path / "run")


def test_an_explicit_block_count_is_kept_and_compared_with_what_fits():
    scenario = replace(small_scenario(), engine=EngineConfig(kv_blocks=10_000_000))
    resolved = api.resolve(scenario)
    assert resolved.scenario.engine.kv_blocks == 10_000_000
    assert resolved.origins["kv_blocks"] == "given"
    assert "more than the 57,631 that fit" in resolved.kv_lines[0]
    assert api.resolve(replace(scenario, engine=EngineConfig())).scenario.engine.kv_blocks == 57_631


# -- reading back what is asked for ------------------------------------------------------------------------------------


def test_a_column_is_read_when_it_is_asked_for_and_once(result, tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    save_run(tmp_path / "run", result)
    read_table, asked = pq.read_table, []

    def noted(file: Any, columns: list[str]) -> object:
        asked.append((Path(file.name).name, *columns))
        return read_table(file, columns=columns)

    monkeypatch.setattr(pq, "read_table", noted)
    requests = load_run(tmp_path / "run").tables["requests"]
    assert "ttft_s" in requests
    assert set(requests) == set(result.report.requests)
    assert not asked
    assert requests["ttft_s"] is requests["ttft_s"]
    assert asked == [("requests.parquet", "ttft_s")]
    with pytest.raises(KeyError):
        requests["no_such_column"]


def test_aggregates_are_the_runs_quantiles_and_slowest_requests(result, tmp_path):
    drawn, requests = load_run(save_run(tmp_path / "run", result)).aggregates, result.report.requests
    done = requests["in_window"] & (requests["status"] == 0)
    for metric, column in aggregates.LATENCIES.items():
        values = np.sort(requests[column][done & ~np.isnan(requests[column])] * 1e3)
        curve = drawn["latency_ms"][metric]["chat"]
        assert len(curve["ms"]) <= aggregates.CURVE_POINTS
        assert (curve["ms"][0], curve["ms"][-1], curve["percent"][-1]) == (values[0], values[-1], 100.0)
        below = np.searchsorted(values, curve["ms"], side="right") / len(values) * 100
        assert (below >= np.array(curve["percent"]) - 1e-9).all()
    slowest = np.sort(requests["ttft_s"][done])[::-1][: aggregates.SLOWEST]
    assert [row["ttft_s"] for row in drawn["slowest"]] == slowest.tolist()
    first = drawn["slowest"][0]
    assert first["prompt_tokens"] == requests["prompt_tokens"][first["request"]]


def test_a_curve_has_the_same_points_for_any_number_of_values_and_keeps_the_tail():
    values = np.random.default_rng(0).exponential(1.0, 100_000)
    curve = aggregates.curve(values)
    assert len(curve["ms"]) <= aggregates.CURVE_POINTS
    for percent in (50.0, 99.0, 99.9):
        at = np.interp(percent, curve["percent"], curve["ms"])
        assert at == pytest.approx(np.percentile(values, percent), rel=0.02)
    assert curve["percent"][-2] > 99.99
    few = aggregates.curve(np.array([3.0, 1.0, 2.0]))
    assert few["ms"].tolist() == [1.0, 2.0, 3.0]
    assert few["percent"].tolist() == [100 / 3, 200 / 3, 100.0]
