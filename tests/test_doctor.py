"""Damaged folders: never a bug of kvcast, never believed; what is kept is simulated again, and `kvcast doctor` says
where.

python -m pytest tests/test_doctor.py
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcast.cli import main
from kvcast.store import simulations, workload_folder
from workloads.files import replace_file, replacing

SCENARIO = """
name = "small"
[workload]
rate = 20.0
duration_s = 3
[[workload.class]]
name = "a"
share = 1.0
output = {value=5}
[[workload.class.layers]]
name = "m"
scope = "dynamic"
tokens = {value=100}
[model]
name = "llama-3.1-8b"
[hardware]
gpu = "h200"
[run]
warmup_s = 0
duration_s = 3
"""

DAMAGE: dict[str, Callable[[Path], object]] = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "other JSON": lambda path: path.write_text('[1, {"a": null}]'),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, a run and a sweep."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "S.toml").write_text(SCENARIO)
    assert main(["run", str(folder / "S.toml"), "--out", str(folder / "run")]) == 0
    assert (
        main(["sweep", str(folder / "S.toml"), "--vary", "cache.policy=lru,lfu", "--out", str(folder / "sweep")]) == 0
    )
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def forget() -> None:
    """What another process would not know."""
    simulations._whole.clear()
    workload_folder._whole.clear()


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_run_is_one_line(copy: Path, how: str, capsys: pytest.CaptureFixture) -> None:
    run = copy / "run"
    assert main(["doctor", str(run)]) == 0
    for path in sorted(run.iterdir()):
        kept = path.read_bytes()
        DAMAGE[how](path)
        capsys.readouterr()
        assert main(["report", str(run), "--html", str(copy / "x.html")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert main(["doctor", str(run)]) == 1
        assert str(run) in capsys.readouterr().out
        _restored(path, kept)
    assert main(["doctor", str(run)]) == 0


def test_a_damaged_sweep_is_simulated_again(copy: Path, capsys: pytest.CaptureFixture) -> None:
    """Every file of a run and of the workload, damaged in one way after the other; doctor sees each in every way."""
    sweep, asked = copy / "sweep", ["sweep", str(copy / "S.toml"), "--vary", "cache.policy=lru,lfu"]
    before = {path: path.read_bytes() for path in sweep.glob("runs/*/summary.json")}
    table = (sweep / "sweep.parquet").read_bytes()
    whole = sorted(path.relative_to(sweep) for path in sweep.rglob("*") if path.is_file())
    names = [path for part in ("runs", "workload") for path in sorted(next((sweep / part).iterdir()).iterdir())]
    for turn, path in enumerate(names):
        kept, ways = path.read_bytes(), ("half", "zeros", "a folder")
        for way in ways[turn % 3 :] + ways[: turn % 3]:
            _restored(path, kept)
            DAMAGE[way](path)
            assert len(told(sweep, capsys)) == 1
        assert main([*asked, "--out", str(sweep)]) == 0
        assert {path: path.read_bytes() for path in before} == before
    assert (sweep / "sweep.parquet").read_bytes() == table
    assert sorted(path.relative_to(sweep) for path in sweep.rglob("*") if path.is_file()) == whole
    assert told(sweep, capsys) == []


def _restored(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)


def told(folder: Path, capsys: pytest.CaptureFixture) -> list[str]:
    """What doctor finds wrong with a folder."""
    capsys.readouterr()
    forget()
    code = main(["doctor", str(folder), "--json"])
    found = [one["wrong"] for one in json.loads(capsys.readouterr().out)["damaged"]]
    assert code == bool(found)
    return found


def test_a_killed_sweep_is_not_finished(copy: Path, capsys: pytest.CaptureFixture) -> None:
    sweep, asked = copy / "sweep", ["sweep", str(copy / "S.toml"), "--out", str(copy / "sweep"), "--vary"]
    (sweep / "sweep.parquet").unlink()
    assert told(sweep, capsys) == ["not finished: 2 of 2 runs, no sweep.parquet"]
    run = next((sweep / "runs").iterdir())
    shutil.rmtree(run)
    assert told(sweep, capsys) == ["not finished: 1 of 2 runs, no sweep.parquet"]
    assert main([*asked, "cache.policy=lru,lfu"]) == 0
    assert told(sweep, capsys) == []
    shutil.rmtree(run)
    assert told(sweep, capsys) == ["not finished: 1 of 2 runs"]
    assert main([*asked, "cache.policy=lru,lfu"]) == 0
    table = (sweep / "sweep.parquet").read_bytes()
    assert main([*asked, "cache.policy=lru,lfu,fifo"]) == 0
    (sweep / "sweep.parquet").write_bytes(table)  # as a kill in the larger grid leaves it
    assert told(sweep, capsys) == ["not finished: 3 of 3 runs, sweep.parquet is of an earlier grid"]
    for part in ("runs", "workload"):
        shutil.rmtree(sweep / part)
    (sweep / "sweep.parquet").unlink()
    (sweep / "sweep.json").write_text('{"format": 1, "vary": ["cache.policy=lru,lfu"], "seeds": 1}')  # killed at once
    assert told(sweep, capsys) == ["not finished: no sweep.parquet"]


def test_a_killed_plan_is_not_finished(copy: Path, capsys: pytest.CaptureFixture) -> None:
    plan = copy / "plan"
    plan.mkdir()
    shutil.move(copy / "sweep" / "runs", plan / "runs")
    assert told(plan, capsys) == ["not finished: no plan.json or resilience.json"]
    assert main(["doctor", str(plan)]) == 1
    assert "give the same command again" in capsys.readouterr().out
    for answer in ("plan.json", "resilience.json"):
        (plan / answer).write_text("{}")
        assert told(plan, capsys) == []
        (plan / answer).unlink()


def test_what_is_no_folder_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert main(["doctor", str(folder)]) == 2
        assert capsys.readouterr().err.startswith(f"kvcast: {folder}: ")


def test_what_a_killed_writer_left_is_said(copy: Path, capsys: pytest.CaptureFixture) -> None:
    (copy / "sweep" / "runs" / ".0123.abcdefgh.new").mkdir()
    assert main(["doctor", str(copy / "sweep"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["wrong"] for one in told["damaged"]] == ["left by a killed writer"]


def test_a_report_does_not_replace_a_runs_files(copy: Path, capsys: pytest.CaptureFixture) -> None:
    before = (copy / "run" / "summary.json").read_bytes()
    assert main(["report", str(copy / "run"), "--html", str(copy / "run" / "summary.json")]) == 2
    assert (copy / "run" / "summary.json").read_bytes() == before


def fails(path: Path) -> None:
    with replacing(path) as partial:
        partial.write_bytes(b"tw")
        raise OSError(28, "No space left on device")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"one")
    with pytest.raises(OSError, match=r"a\.json"):
        fails(path)
    assert path.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    old = tmp_path / ".a.json.01234567.part"
    old.write_bytes(b"left")
    os.utime(old, (0, 0))
    before = os.umask(0o027)
    try:
        replace_file(path, b"two")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
