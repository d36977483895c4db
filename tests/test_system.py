"""A system without flock, resource and process groups: everything works, less guarded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcast.store.runs import load_run
from workloads import files

ROOT = Path(__file__).resolve().parent.parent
LACKING = """
import os, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
del os.killpg
"""
"""What Windows lacks, said when Python starts."""


@pytest.fixture
def lacking(tmp_path):
    """The environment of a process that finds none of it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LACKING)
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}


def run(environment, *argv):
    done = subprocess.run([sys.executable, *argv], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_is_written_replaced_and_read(lacking, tmp_path):
    assert (
        run(
            lacking, "-c", "import kvcast.system, workloads.files; print(workloads.files.fcntl, kvcast.system.resource)"
        )
        == "None None\n"
    )
    command = ("-m", "kvcast", "run", "examples/demo.toml", "--set", "workload.duration_s=20", "--out")
    for _ in range(2):
        run(lacking, *command, str(tmp_path / "run"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "site"]
    assert load_run(tmp_path / "run").summary["completed"] > 0


def test_a_sweep_and_a_job_of_the_dashboard_work_and_can_be_stopped(lacking, tmp_path):
    folder = str(tmp_path / "sweep")
    grid = ("--vary", "cache.policy=lru,fifo", "--set", "workload.duration_s=20", "--jobs", "2", "--out", folder)
    run(lacking, "-m", "kvcast", "sweep", "examples/demo.toml", *grid)
    said = run(
        lacking,
        "-c",
        "import sys, time; from pathlib import Path; from kvcast.jobs.runner import Runner\n"
        "runner = Runner(Path(sys.argv[1]))\n"
        "toml = Path('examples/demo.toml').read_text()\n"
        "short = runner.submit(toml, 'run', '--set', 'workload.duration_s=20'); short.wait()\n"
        "long = runner.submit(toml, 'run', '--set', 'workload.duration_s=20000')\n"
        "while long.process is None: time.sleep(0.01)\n"
        "runner.cancel(long); long.wait(); print(short.done, long.failure(), long.process.poll() is not None)",
        str(tmp_path / "jobs"),
    )
    assert said == "True cancelled True\n"


def test_what_cannot_be_told_to_be_left_over_stays(monkeypatch, tmp_path):
    """Where nobody can see whether a folder has a writer, it is taken to have one."""
    assert not files.is_locked(tmp_path)
    with files.locked(tmp_path):
        assert files.is_locked(tmp_path)
    assert not files.is_locked(tmp_path)
    monkeypatch.setattr(files, "fcntl", None)
    assert files.is_locked(tmp_path)
    with files.locked(tmp_path):
        pass
