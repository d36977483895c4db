"""Jobs of the dashboard: found again, cancelled, failed in one line, and kept within bounds."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcast import system, text
from kvcast.jobs import memory, opened, runner, tidy
from kvcast.jobs.runner import CANCELLED, Job, Runner, without_paths
from kvcast.store.runs import load_run
from workloads.errors import InputError

SMALL = "name = 'small'\n[workload]\npreset = 'demo'\nduration_s = 20.0\n[run]\nwarmup_s = 0\n"
LONG = SMALL.replace("20.0", "20000.0")


@pytest.fixture(scope="module", autouse=True)
def same_code():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "code_version", lambda: "under test")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def shared(folder):
    return Runner(folder)


@pytest.fixture(scope="module")
def small(shared):
    job = shared.submit(SMALL)
    job.wait()
    assert job.done, job.failure()
    return job


def test_equal_scenarios_share_a_run_and_another_server_finds_it(shared, small, folder):
    assert shared.submit(SMALL) is small
    again = Runner(folder).submit(SMALL)
    assert again.done
    assert again.thread is None, "nothing was started"
    assert again.document() == load_run(small.folder).summary == json.loads((small.folder / "summary.json").read_text())


def test_a_run_is_found_by_its_key_and_nothing_else_is(small, folder):
    other = Runner(folder)
    found = other.find(small.key)
    assert found is not None
    assert found.scenario_toml == SMALL
    for key in (
        "",
        "0" * 24,
        "../" + small.key,
        f"uploads/{small.key}",
        small.key + "/",
        small.key.upper(),
        "..",
        "/etc/passwd",
    ):
        assert other.find(key) is None, key


def test_commands_of_a_scenario_are_jobs_of_their_own(shared, small):
    assert shared.existing(SMALL, "estimate") is None
    job = shared.submit(SMALL, "estimate")
    job.wait()
    assert job.done, job.failure()
    assert job.key != small.key
    assert job.document()["requests"] == small.document()["arrived"]
    assert shared.existing(SMALL, "estimate") is job
    compared = shared.submit(SMALL, "compare", "--vary", "cluster.replicas=1,2")
    compared.wait()
    assert len(compared.document()["variants"]) == 2


def test_a_failed_job_says_why_in_one_line_and_is_tried_again(shared):
    wrong = SMALL.replace("demo", "dmeo")
    job = shared.submit(wrong)
    job.wait()
    assert not job.done
    assert job.failure().startswith("[workload] preset = 'dmeo', expected one of")
    assert "\n" not in job.failure()
    assert not job.folder.exists(), "nothing half-written"
    assert shared.submit(wrong) is not job


def test_progress_is_told_and_cancel_stops_the_process(shared):
    job = shared.submit(LONG)
    told = []
    while job.running and (not told or told[-1].done <= 0.0):
        told += [job.progress] if job.progress else []
        time.sleep(0.02)
    assert 0 < told[-1].done < 1
    assert "simulat" in told[-1].says
    process = job.process
    shared.cancel(job)
    job.wait()
    assert (job.done, job.failure()) == (False, CANCELLED)
    assert process.poll() is not None
    assert shared.submit(LONG) is not job, "it can be started again"
    shared.close()


def test_a_command_ends_when_nobody_waits_for_it_any_more(folder):
    """A server that was killed leaves no runs behind."""
    progress = folder / "orphan.progress"
    (folder / "orphan.toml").write_text(LONG)
    argv = [sys.executable, "-m", "kvcast", "run", str(folder / "orphan.toml"), "--json"]
    start = (
        f"import os, subprocess, time; print(subprocess.Popen({argv!r}, stdout=subprocess.DEVNULL).pid)\nwhile not"
        f" os.path.exists({str(progress)!r}): time.sleep(0.01)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, text.PROGRESS_FILE: str(progress)},
        capture_output=True,
        text=True,
        check=True,
    )
    left = Path(f"/proc/{int(parent.stdout)}/cmdline")
    until = time.monotonic() + 60
    while left.exists() and b"orphan" in left.read_bytes():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert json.loads(progress.read_text())["done"] < 0.3, "long before its end"


def test_jobs_wait_for_a_free_processor_in_their_own_time(folder, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    crowded = Runner(folder / "crowded")
    jobs = [crowded.submit(LONG.replace("small", f"long {i}")) for i in range(3)]
    try:
        while not any(job.process for job in jobs):
            time.sleep(0.01)
        assert sum(job.process is not None for job in jobs) == 1
        waiting = next(job for job in jobs if job.process is None)
        assert waiting.progress.says == "waiting for a free processor"
        estimate = crowded.submit(SMALL, "estimate")
        estimate.wait()
        assert estimate.done, "an estimate does not wait behind a run"
        crowded.cancel(waiting)
        waiting.wait()
        assert waiting.failure() == CANCELLED
        monkeypatch.setattr(runner, "MAX_WAITING", 1)
        with pytest.raises(InputError, match="the server is busy"):
            crowded.submit(LONG.replace("small", "one more"))
    finally:
        crowded.close()


def test_two_servers_may_ask_the_same_at_once(folder):
    jobs = [Runner(folder / "both").submit(SMALL, "estimate") for _ in range(2)]
    for job in jobs:
        job.wait()
        assert job.done, job.failure()
    assert {f.name.split(".", 1)[1] for f in (folder / "both").iterdir() if f.is_file()} <= {
        "toml",
        "json",
        "log",
        "progress",
    }


def test_what_takes_too_long_is_stopped(folder, monkeypatch):
    monkeypatch.setattr(runner, "LIMIT_S", 0.2)
    job = Runner(folder / "late").submit(LONG)
    job.wait()
    assert job.failure().startswith("stopped after 0.2 s")


def test_a_question_that_is_ended_keeps_what_it_had_found(folder, monkeypatch):
    """The limit comes while the question works: what it knew by then is there, also after a restart, and it is asked
    again as it would have been."""
    says = '{"stage": "candidate", "row": 1}\n{"stage": "headl'  # the second is being written

    def works(*arguments, job, **streams):
        program = "import os, time; open(os.sys.argv[1], 'w').write(os.sys.argv[2]); time.sleep(600)"
        return subprocess.Popen([sys.executable, "-c", program, job.file(".told"), says], start_new_session=True)

    monkeypatch.setattr(runner, "_kvcast", works)
    first = Runner(folder / "ended")
    job = first.ask(["--users=3"])
    while not job.told:
        time.sleep(0.01)
    assert job.running
    assert not job.ended
    monkeypatch.setattr(runner, "LIMIT_S", 0)
    job.wait()
    assert job.failure() == "stopped after 0 s: started again, it goes on from what it has simulated"
    assert job.ended == job.failure()
    assert [one["stage"] for one in job.told] == ["candidate", runner.ENDED]
    later = Runner(folder / "ended")
    assert later.asked(["--users=3"]).ended == later.find_asked(job.key).ended == job.ended
    again = later.ask(["--users=3"])
    again.wait()
    assert again is not job
    assert not Job(folder / "ended" / ("0" * 24), ("ask",)).ended, "of one that nobody asked"


@pytest.mark.skipif(not system.PROCESSES.is_dir(), reason="memory of other processes is known on Linux")
def test_what_holds_more_than_the_machine_has_is_stopped(folder, monkeypatch):
    monkeypatch.setattr(system, "machine_bytes", lambda: 50 << 20)
    job = Runner(folder / "big").submit(LONG)
    job.wait()
    assert job.failure() == "stopped: all runs here may hold 0.0 GiB of memory, and this one held the most"


def test_of_all_that_hold_too_much_the_one_that_holds_most_ends(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "memory_bytes", {1: 300, 2: 500}.get)
    monkeypatch.setattr(system, "machine_bytes", lambda: 1000)
    shared = memory.Memory()
    assert not shared.beyond("small", 1)
    assert not shared.beyond("large", 2), "800 of 800"
    shared.most_bytes -= 1
    assert not shared.beyond("small", 1)
    assert shared.beyond("large", 2)
    shared.ended("small")
    assert not shared.beyond("large", 2)


def test_a_container_has_the_memory_of_its_limit(monkeypatch, tmp_path):
    whole = system.machine_bytes()
    limits = [tmp_path / name for name in ("none", "word", "number")]
    limits[1].write_text("max\n")
    monkeypatch.setattr(system, "CONTAINER_LIMITS", limits)
    assert system.machine_bytes() >= whole > 0
    limits[2].write_text("1048576\n")
    assert system.machine_bytes() == 1 << 20


def test_the_oldest_jobs_are_forgotten_and_nothing_else(folder, monkeypatch):
    monkeypatch.setattr(tidy, "KEEP_JOBS", 1)
    root = folder / "few"
    few = Runner(root)
    first = few.submit(SMALL, "estimate")
    first.wait()
    (root / "notes.toml").write_text("mine")
    for name in ("a", "b"):
        few.submit(SMALL.replace("small", name), "estimate").wait()
        time.sleep(0.02)
    assert not first.file(".json").exists()
    assert few.existing(SMALL, "estimate") is None
    assert (root / "notes.toml").exists()


def aged(path, days, content="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    then = 2e9 - 86_400 * days
    os.utime(path, (then, then))
    return path


def test_jobs_and_uploads_go_by_age_and_size(tmp_path, monkeypatch):
    monkeypatch.setattr(tidy, "KEEP_BYTES", 1000)
    old, kept, running, large = (letter * 24 for letter in "abcd")
    used, unused, fresh = (digit * 24 for digit in "123")
    for key, days, content in (
        (old, 31, ""),
        (kept, 29, f'trace = "/srv/uploads/{used}/t.jsonl"'),
        (running, 99, ""),
        (large, 29.5, "x" * 2000),
    ):
        aged(tmp_path / f"{key}.toml", days, content)
        aged(tmp_path / key / "run.json", days)
    for name, days in ((used, 40), (unused, 40), (fresh, 0)):
        aged(tmp_path / "uploads" / name / "t.jsonl", days, "x" * 600)
    aged(tmp_path / "notes.toml", 400)
    assert tidy.tidy(tmp_path, {running}, now_s=2e9) == [large, old], "by size; by age"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{kept}.toml", kept, f"{running}.toml", running, "notes.toml", "uploads"}
    assert {path.name for path in (tmp_path / "uploads").iterdir()} == {used, fresh}


def test_a_run_of_the_command_line_is_a_finished_job(folder, tmp_path):
    from kvcast.cli import main

    (tmp_path / "small.toml").write_text(SMALL)
    assert main(["run", str(tmp_path / "small.toml"), "--no-baseline", "--out", str(tmp_path / "plan/runs/7")]) == 0
    (tmp_path / "plan/plan.json").write_text('{"answer": {"run": "7"}}')
    server = Runner(folder / "opened")
    ran, planned = tmp_path / "plan/runs/7", tmp_path / "plan"
    keys = opened.opened(server, [ran, planned])
    assert keys[str(ran)] == keys[str(planned)]
    job = server.find(keys[str(ran)])
    assert job.done
    assert job.document() == json.loads((ran / "summary.json").read_text())
    assert opened.opened(server, [ran]) == {str(ran): job.key}, "opened again, the same"
    (tmp_path / "plan/plan.json").write_text('{"answer": null}')
    for wrong in (planned, tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="expected a run folder"):
            opened.opened(server, [wrong])


def test_uploads_stay_in_their_folder_and_within_bounds(shared, folder):
    for name in (
        "../../up.jsonl",
        "/etc/up.jsonl",
        "a/../b.jsonl",
        ".hidden.jsonl",
        "x" * 300 + ".jsonl",
        "a\nb.jsonl",
        "..\\up.jsonl",
    ):
        path = shared.keep_upload(name, b"{}")
        assert path.resolve().is_relative_to((folder / "uploads").resolve())
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", path.name)
    with pytest.raises(InputError, match="expected a name that ends in"):
        shared.keep_upload("run.py", b"print()")
    with pytest.raises(InputError, match="at most 64 MiB"):
        shared.keep_upload("big.jsonl", bytes(runner.UPLOAD_LIMIT_BYTES + 1))


def test_no_line_names_a_folder_of_the_server():
    folder = Path("/srv/kvcast/runs/uploads/0123")
    assert without_paths(f"{folder}/t.jsonl, row 3: bad; see {folder.parent}/x", folder) == "t.jsonl, row 3: bad; see x"
    upload = f"uploads/{24 * 'a'}/t.jsonl"
    assert (
        without_paths(f"{os.path.relpath(folder)}/{upload}, row 3: bad", folder)
        == without_paths(f"{folder}/{upload}, row 3: bad", folder)
        == "t.jsonl, row 3: bad"
    )


def test_a_damaged_progress_file_is_no_progress(folder):
    job = Job(folder / ("a" * 24), process=object())
    for content in ("", "{", "[]", '{"done": "x"}'):
        job.file(".progress").write_text(content)
        assert job.progress is None
