"""A sweep equals its runs one by one, shares one loaded workload, and goes on after a kill with what it finished."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvcast import InputError, api, load_run, load_scenario, simulate, sweep, text
from kvcast.cli import main
from kvcast.store import workload_folder
from kvcast.studies import sweeps
from kvcast.studies.compare import axes

ROOT = Path(__file__).resolve().parent.parent
SMALL = """
[workload]
rate = {rate}
duration_s = {duration_s}
[[workload.class]]
name = "chat"
share = 1.0
layers = [{{name = "system", scope = "project", items = 40, tokens = {{value = 400}}}}, {{name = "user", tokens = {{kind = "uniform", low = 50, high = 500}}}}]
output = {{kind = "uniform", low = 5, high = 30}}
turns = {{value = 2}}
think = {{value = 3}}
[engine]
kv_blocks = 400
"""  # noqa: E501
VARY = {"cache.policy": ["lru", "lfu"], "engine.kv_blocks": [400, 1000]}


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL.format(rate=4.0, duration_s=20.0))
    return path


def test_a_sweep_is_its_runs_one_by_one(small, tmp_path):
    done = sweep(small, VARY, tmp_path / "s", seeds=2, jobs=2)
    assert len(done.results) == 8
    for i, result in enumerate(done.results):
        alone = simulate(result.variant.scenario).summary
        for key in ("prefix_hit_tokens", "mean_ttft_ms", "p99_ttft_ms", "gpu_hours"):
            assert done.table[key][i] == alone[key], (result.variant.label, key)
    table = pq.read_table(tmp_path / "s" / "sweep.parquet")
    assert table.num_rows == 8
    assert table["engine.kv_blocks"].to_pylist() == [400, 1000] * 4
    assert table["cache.policy"].to_pylist() == ["lru", "lru", "lfu", "lfu"] * 2
    assert table["seed"].to_pylist() == [0] * 4 + [1] * 4
    assert len(set(table["workload_key"].to_pylist())) == 2  # one for each seed
    assert len(list((tmp_path / "s" / "workload").iterdir())) == 2
    assert (
        load_run(tmp_path / "s" / "runs" / table["run"][0].as_py()).summary["prefix_hit_rate"]
        == table["prefix_hit_rate"][0].as_py()
    )


def test_finished_runs_are_not_run_again_and_a_grid_may_grow(small, tmp_path):
    first = sweep(small, {"cache.policy": ["lru"]}, tmp_path / "s")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / "runs").glob("*/run.json")}
    assert (first.reused, len(stamps)) == (0, 1)
    again = sweep(small, {"cache.policy": ["lru", "lfu"]}, tmp_path / "s")
    assert again.reused == 1
    assert len(again.results) == 2
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_a_damaged_run_is_simulated_again(small, tmp_path):
    sweep(small, {"cache.policy": ["lru"]}, tmp_path / "s")
    (summary,) = (tmp_path / "s" / "runs").glob("*/summary.json")
    whole = summary.read_text()
    summary.write_text(whole[:100])
    assert sweep(small, {"cache.policy": ["lru"]}, tmp_path / "s").reused == 0
    assert summary.read_text() == whole


def test_a_changed_scenario_or_trace_is_another_run(small, tmp_path):
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2]}
    trace.write_text(json.dumps(row) + "\n")
    scenario = tmp_path / "trace.toml"
    scenario.write_text('[workload]\ntrace = "trace.jsonl"\nformat = "mooncake"\n[engine]\nkv_blocks = 500\n')
    assert sweep(scenario, {"cache.policy": ["lru"]}, tmp_path / "s").reused == 0
    assert sweep(scenario, {"cache.policy": ["lru"]}, tmp_path / "s").reused == 1
    with pytest.raises(InputError, match=r"a sweep of another scenario; expected a new folder"):
        sweep(scenario, {"cache.policy": ["lru"]}, tmp_path / "s", overrides=["engine.max_num_seqs=7"])
    with pytest.raises(InputError, match=r"a sweep over cache\.policy, not over engine\.max_num_seqs; expected a new"):
        sweep(scenario, {"engine.max_num_seqs": [7]}, tmp_path / "s")
    trace.write_text((json.dumps(row) + "\n") * 2)
    done = sweep(scenario, {"cache.policy": ["lru"]}, tmp_path / "s")
    assert done.reused == 0
    assert done.table["arrived"][0] == 2


def test_it_goes_on_after_a_kill(tmp_path):
    """SIGKILL when some runs are done: they stay, no half of one does, and the rest follows."""
    scenario, out = tmp_path / "s.toml", tmp_path / "s"
    scenario.write_text(SMALL.format(rate=20.0, duration_s=60.0))
    command = [
        sys.executable,
        "-m",
        "kvcast",
        "sweep",
        str(scenario),
        "--vary",
        "engine.kv_blocks=300,400,500,600,700,800,900,1000",
        "--jobs",
        "1",
        "--out",
        str(out),
    ]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(out.glob("runs/[!.]*/run.json"))) < 2:
        assert running.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    finished = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/[!.]*/run.json")}
    assert 2 <= len(finished) < 8
    assert not (out / "sweep.parquet").exists()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"8 runs ({len(finished)} were there already)" in done.stdout
    assert all((out / "runs" / name / "run.json").stat().st_mtime_ns == stamp for name, stamp in finished.items())
    assert pq.read_table(out / "sweep.parquet").num_rows == 8
    assert len(list((out / "runs").iterdir())) == 8  # nothing half written is left


def test_a_workload_through_a_memory_map_is_the_same(small, tmp_path):
    scenario = load_scenario(small)
    workload = api.load_workload(scenario.workload, 0)
    workload_folder.save(workload, tmp_path / "w")
    other = workload_folder.load(tmp_path / "w")
    other.check()
    for f in fields(workload):
        a, b = getattr(workload, f.name), getattr(other, f.name)
        if f.name != "tree":
            np.testing.assert_array_equal(a, b, err_msg=f.name)
            assert type(a) is type(b), f.name
    assert (workload.class_names, workload.notes) == (other.class_names, other.notes)
    assert isinstance(other.prompt_tokens.base, np.memmap)
    assert not other.prompt_tokens.flags.writeable
    np.testing.assert_array_equal(workload.tree.parent, other.tree.parent)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("lru, lfu", ["lru", "lfu"]),
        ("[],[{name = 'a,b', capacity_gib = 4}]", ["[]", "[{name = 'a,b', capacity_gib = 4}]"]),
        ("{h200 = 4, a100 = 1},{}", ["{h200 = 4, a100 = 1}", "{}"]),
        ("it's,theirs", ["it's", "theirs"]),
    ],
)
def test_commas_inside_a_value_are_its_own(values, expected):
    assert axes({}, [f"cache.tiers={values}"]) == {"cache.tiers": expected}


@pytest.mark.parametrize(
    ("vary", "expected"), [({"cache.policy": ["lru", "lfuu"]}, "lfuu"), ({"cache.polic": ["lru"]}, "polic")]
)
def test_what_is_wrong_is_said_before_anything_runs(small, tmp_path, vary, expected):
    with pytest.raises(InputError, match=expected):
        sweep(small, vary, tmp_path / "s")
    assert not (tmp_path / "s" / "runs").exists()


def test_a_folder_with_something_else_is_left_alone(small, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert main(["sweep", str(small), "--vary", "cache.policy=lru", "--out", str(tmp_path / "mine")]) == 2
    assert "something else than a sweep" in capsys.readouterr().err


def test_the_command_prints_the_grid_and_the_differences(small, tmp_path, capsys):
    command = ["sweep", str(small), "--vary", "cache.enabled=true,false", "--out", str(tmp_path / "s"), "--differences"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "2 runs (0 were there already)" in printed
    assert "hit rate" in printed
    assert "batch means" in printed
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["variants"]) == 2


def test_unknown_numbers_are_nan_and_text_is_text():
    assert sweeps._column([1, 2]).dtype == np.int64
    assert np.isnan(sweeps._column([1.5, None])[1])
    assert sweeps._column([True, False]).dtype == bool
    assert list(sweeps._column(["lru", 2])) == ["lru", "2"]


DEADLY = """
import os, signal
from sim.kvcache.policies import Policy

class Deadly(Policy):
    def __init__(self, world):
        super().__init__(world)
        if os.getpid() != {parent}:
            os.kill(os.getpid(), signal.SIGKILL)

    def key(self, run):
        return run.released
"""


def test_a_killed_process_is_one_line_and_what_is_done_stays(small, tmp_path, monkeypatch, capsys):
    (tmp_path / "deadly_policy.py").write_text(DEADLY.format(parent=os.getpid()))
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["sweep", str(small), "--jobs", "2", "--out", str(tmp_path / "s"), "--vary"]
    assert main([*command, "cache.policy=lru,lfu"]) == 0
    assert main([*command, "cache.policy=lru,lfu,deadly_policy:Deadly,fifo"]) == 2
    assert "a process was killed" in capsys.readouterr().err
    assert len([path for path in (tmp_path / "s" / "runs").iterdir() if (path / "run.json").exists()]) >= 2


OWN = """
from sim.kvcache.policies import Policy

class Mine(Policy):
    def key(self, run):
        return ({sign}run.released,)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_edited_policy_is_another_policy_in_the_same_session(small, tmp_path, monkeypatch, jobs):
    """LRU turned into MRU in the file: nothing stale is reused, and what runs is what the file says."""
    monkeypatch.syspath_prepend(str(tmp_path))
    own, name = tmp_path / f"edited_policy_{jobs}.py", f"edited_policy_{jobs}:Mine"
    vary = {"cache.policy": [name], "engine.kv_blocks": [400, 500]}
    hits = {}
    for kind, sign in (("lru", " "), ("mru", "-")):  # the same size and, as likely as not, the same second
        own.write_text(OWN.format(sign=sign))
        done = sweep(small, vary, tmp_path / "s", jobs=jobs)
        assert done.reused == 0
        assert sweep(small, vary, tmp_path / "s", jobs=jobs).reused == 2
        hits[kind] = done.table["prefix_hit_tokens"].tolist()
        named = sweep(
            small, {**vary, "cache.policy": [kind if kind == "mru" else "ttl"]}, tmp_path / "s"
        )  # one retention: ttl is LRU
        assert hits[kind] == named.table["prefix_hit_tokens"].tolist()
    assert hits["lru"] != hits["mru"]
    own.write_text("def broken(")
    with pytest.raises(InputError, match="SyntaxError"):
        sweep(small, vary, tmp_path / "s", jobs=jobs)


def test_what_a_killed_writer_of_a_workload_left_is_removed(small, tmp_path):
    """The folder of a dead process goes, that of a live one and what is not ours stay."""
    scenario = load_scenario(small)
    workload = api.load_workload(scenario.workload, 0)
    script = (
        "import sys, signal; from pathlib import Path; from kvcast import api, load_scenario\nfrom"
        " kvcast.store import workload_folder\nw = api.load_workload(load_scenario(sys.argv[1]).workload, 0)\nsave ="
        " workload_folder._save\nworkload_folder._save = lambda *a: (save(*a), print('writing', flush=True),"
        " signal.pause())\nworkload_folder.save(w, Path(sys.argv[2]))\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(small), str(tmp_path / "w" / "KEY")], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"writing\n"
        (tmp_path / "w" / ".KEY.thesis").mkdir()
        (tmp_path / "w" / ".KEY.thesis" / "thesis.tex").write_text("x")
        workload_folder.save(workload, tmp_path / "w" / "KEY")
        (left,) = [p for p in (tmp_path / "w").glob(".KEY.*") if p.name != ".KEY.thesis"]  # it is still at work
    finally:
        writer.kill()
        writer.wait()
    os.rename(tmp_path / "w" / "KEY", tmp_path / "w" / "gone")
    workload_folder.save(workload, tmp_path / "w" / "KEY")
    assert sorted(p.name for p in (tmp_path / "w").iterdir()) == [".KEY.thesis", "KEY", "gone"]
    assert not left.exists()


def test_processes_of_a_comparison_share_one_loaded_workload(small, monkeypatch, tmp_path):
    from kvcast import config
    from kvcast.studies import compare

    loaded = []
    load = api.load_workload
    monkeypatch.setattr(api, "load_workload", lambda *given: (loaded.append(os.getpid()), load(*given))[1])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    variants = compare.variants(config.load_doc(small), ["cache.policy=lru,lfu,fifo"], seeds=2)
    together = compare.simulate_all(variants, jobs=2)
    assert loaded == [os.getpid()] * 2  # one for each seed, and none in a worker
    assert not list(tmp_path.glob("kvcast-*"))
    alone = compare.simulate_all(variants)
    assert text.to_json(compare.as_document(together)) == text.to_json(compare.as_document(alone))
