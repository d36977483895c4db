"""The command line when it is stopped, when its output has nowhere to go, and when it is wrong: a line and an exit
code."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcast import cli
from kvcast.cli import main
from kvcast.config import apply_overrides, place_of, read_toml
from tests.test_cli import ROOT, SMALL
from workloads.errors import InputError


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


@pytest.fixture
def long(tmp_path: Path) -> str:
    """Minutes of work."""
    path = tmp_path / "long.toml"
    path.write_text(SMALL.replace("rate = 4\nduration_s = 20", "rate = 4\nduration_s = 200000"))
    return str(path)


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of sh with $K standing for the command."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "K": f"{sys.executable} -m kvcast", **environment}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env, cwd=ROOT)


# -- stopped -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen]:
    """kvcast in a session of its own that heeds Ctrl-C whatever this shell ignores; nothing of it outlives the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcast", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used: on a busy machine the time by the clock says nothing."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_s", [0.15, 1.5])
def test_a_signal_is_one_line_and_leaves_nothing(number, after_s, long, tmp_path):
    with started("run", long, "--out", str(tmp_path / "out")) as process:
        while cpu_s(process.pid) < after_s:
            time.sleep(0.02)
        process.send_signal(number)
        err = process.communicate(timeout=60)[1]
    if after_s > 1:
        assert (process.returncode, err) == (128 + number, "kvcast: stopped\n")
    else:  # Python itself may still be starting
        assert process.returncode in (128 + number, -number, 1), err
        assert "internal error" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long.toml"]


def test_a_signal_ends_the_processes_of_compare(long):
    with started("compare", long, "--vary", "cache.policy=lru,lfu", "--jobs", "2") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not children.read_text():  # the first of them: the others are only starting
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(0.2)
        workers = children.read_text().split()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the workers too
        assert process.communicate(timeout=60)[1] == "kvcast: stopped\n"
        assert process.returncode == 130
    while any(Path(f"/proc/{worker}").exists() for worker in workers):  # the one that counts the others is the last
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["ask", "plan", "resilience", "sweep"])
def test_a_stop_says_what_is_kept(name, small, tmp_path, monkeypatch, capsys):
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"kvcast.commands.{name}.run", stop)
    out = tmp_path / "kept"
    what = ["--users", "5"] if name == "ask" else [small]
    vary = ["--vary", "cache.policy=lru,lfu"] if name == "sweep" else []

    def said(*out: str) -> str:
        assert main([name, *what, *vary, *out]) == 130
        return capsys.readouterr().err

    if name != "sweep":
        assert said() == "kvcast: stopped; nothing is kept without --out\n"
    (out / "runs" / ".half").mkdir(parents=True)
    assert said("--out", str(out)) == f"kvcast: stopped; nothing is finished yet in {out}\n"
    (out / "runs" / "0123").mkdir()
    assert said("--out", str(out)) == f"kvcast: stopped; what is finished is kept in {out}: the same command goes on\n"


def test_the_handlers_of_a_caller_come_back(small, capsys):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert main(["run", small, "--no-baseline", "--json"]) == 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_thread_may_call_the_command(small, capsys):
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["run", small, "--no-baseline", "--json"])))
    thread.start()
    thread.join()
    assert codes == [0]


# -- output that goes nowhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["profile list", "run --help", "run --keys", "profile list --json"])
def test_a_full_disk_under_stdout_is_one_line(arguments):
    done = shell(f"$K {arguments} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "kvcast: the output cannot be written: No space left on device\n")


def test_a_closed_stdout_is_one_line_before_any_work(long):
    done = shell(f"$K run {long} >&-")
    assert (done.returncode, done.stderr) == (
        2,
        "kvcast: standard output is closed; expected somewhere to print the result\n",
    )


def test_without_stderr_a_message_does_not_end_up_in_the_output(small):
    for to in ("2>&-", "2>/dev/full"):
        done = shell(f"$K run none.toml {to}")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
        done = shell(f"$K run {small} --json --no-baseline {to}")
        assert done.returncode == 0
        assert json.loads(done.stdout)["completed"] > 0


def test_a_reader_that_leaves_is_no_error():
    done = shell("$K profile list | head -1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_the_character_gets_an_escape(small):
    done = shell(f"$K compare {small} --vary cache.policy=lru,lfu --seeds 2", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xb1" in done.stdout


def test_a_full_disk_under_a_run_folder_is_one_line(small, tmp_path, monkeypatch, capsys):
    from kvcast.store import runs

    def full(*_: object) -> None:
        raise OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(runs.parquet, "write", full)
    assert main(["run", small, "--no-baseline", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"kvcast: {tmp_path / 'out'}: No space left on device\n"


# -- bugs --------------------------------------------------------------------------------------------------------------


def test_a_bug_is_one_line_and_exit_code_70(small, monkeypatch, capsys):
    from kvcast import api

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(api, "prepare", broken)
    assert main(["run", small]) == cli.BUG == 70
    err = capsys.readouterr().err
    assert (
        err
        == "kvcast: internal error: ZeroDivisionError: division by zero (this is a bug; run with KVCAST_TRACEBACK=1 for"
        " the traceback)\n"
    )
    monkeypatch.setenv("KVCAST_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["run", small])


def test_too_little_memory_is_no_bug(small, monkeypatch, capsys):
    from kvcast import api

    def hungry(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr(api, "prepare", hungry)
    assert main(["run", small]) == 2
    assert capsys.readouterr().err.startswith("kvcast: not enough memory: Unable to allocate 7.28 TiB; expected")


# -- what a command refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["compare", "{small}", "--vary", "cluster.replicas=1,2", "--vary", "cluster.replicas=3,4"],
            "change the same key",
        ),
        (
            ["compare", "{small}", "--vary", "cluster={replicas=1},{replicas=2}", "--vary", "cluster.replicas=3,4"],
            "change the same key",
        ),
        (
            ["compare", "{small}", "--vary", "workload.class.chat.share=1,2", "--vary", "workload.class.0.share=3,4"],
            "change the same key",
        ),
        (["compare", "{small}", "--vary", "slo.ttft_s=1,1.0"], "a value is there twice"),
        (
            ["compare", "{small}", "--vary", "cache.policy=lru,lfu", "--seeds", "100000"],
            "--seeds 100000: expected 1 or more and at most 10,000",
        ),
        (["run", "{small}", "--out", ""], "argument --out: expected the name of what to write"),
        (["run", "{small}", "--out", "/dev/null"], "/dev/null: is not a folder"),
        (["run", "{small}", "--out", "/proc/none/run"], "/proc"),
        (["run", "{small}", "--horizon", ""], "[run] horizon_s"),
        (
            ["run", "{small}", "--check", "--set", "slo.ttft_s=", "--set", "slo.attainment=0.9"],
            "an attainment target and no limit to attain",
        ),
        (
            ["run", "{small}", "--set", "run.warmup_s=90", "--set", "run.horizon_s=100"],
            "{small}: [run] warmup_s = 90: expected a time before the run ends",
        ),
        (["run", "{small}", "--set", "slo.classes.gold.ttft_s=1"], "{small}: [slo.classes.gold] applies to no request"),
        (
            ["run", "{small}", "--set", "workload.class.chat.turns.value=0"],
            "{small}: [[workload.class]] 'chat': turns.value = 0.0",
        ),
        (["run", "{small}", "--set", "model.name=llama"], "{small}: model 'llama' is not bundled"),
        (["run", "{small}", "--set", "hardware.profile=/etc/passwd"], "{small}: /etc/passwd: not a JSON profile"),
        (["run", "{small}", "--set", "model.config=/etc/passwd"], "{small}: /etc/passwd: not a JSON model config"),
        (
            ["compare", "{small}", "--vary", "workload.class.chat.turns.value=0,1"],
            "{small}: [[workload.class]] 'chat': turns.value = 0.0",
        ),
        (["workload", "describe", "demo", "--seed", "-1"], "argument --seed: -1: expected a whole number from 0"),
        (
            ["workload", "describe", "demo", "--block-size", "0"],
            "argument --block-size: 0: expected a whole number from 1 to 1,000,000",
        ),
        (
            ["workload", "describe", "demo", "--capacity-blocks", "1" + "0" * 23],
            "expected 1 or more and at most 1,000,000,000,000",
        ),
        (["workload", "describe", "{trace}", "--seed", "1"], "is a trace, in which nothing is drawn"),
        (["workload", "convert", "{small}", "--out", "/dev/full"], "/dev/full: is not a regular file"),
        (["workload", "convert", "{small}", "--out", ""], "argument --out: expected the name of what to write"),
        (["cache", ""], "argument TRACE: expected the name of what to read"),
        (["workload", "describe", ""], "argument FILE: expected the name of what to read"),
        (["run", ""], "argument SCENARIO.toml: expected the name of what to read"),
        (["run", "/dev/zero"], "/dev/zero: more than 64 MiB; expected a scenario file"),
        (["demo", "--replicas", ""], "argument --replicas: : expected a whole number from 1 to 100,000"),
        (["demo", "--replicas", "1,x"], "argument --replicas: x: expected a whole number from 1 to 100,000"),
        (["dashboard", "--port", "70000"], "argument --port: 70000: expected a whole number from 1 to 65,535"),
        (
            ["profile", "show", "--model", "llama-2-7b", "--tensor-parallel", "0"],
            "argument --tensor-parallel: 0: expected a whole number from 1 to 1,024",
        ),
        (
            ["profile", "show", "--model", "llama-2-7b", "--context", "0"],
            "argument --context: 0: expected a whole number from 1",
        ),
        (
            ["profile", "kv-log", "{trace}", "--block-size", "0"],
            "argument --block-size: 0: expected a whole number from 1",
        ),
        (["cache", "{trace}", "--block-size", "0"], "argument --block-size: 0: expected a whole number from 1"),
        (["cache", "{trace}", "--block-size", "9" * 23], "expected a whole number from 1 to 1,000,000"),
        (["cache", "{trace}", "--capacity-blocks", "0"], "--capacity-blocks 0: expected 1 or more"),
        (["cache", "{trace}", "--depth-weight", "nan"], "--depth-weight: nan: expected a number from 0 to 1e6"),
    ],
)
def test_refused_in_one_line(arguments, expected, small, tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}))
    try:
        code = main(
            [a.format(small=small, trace=trace) if a.startswith(("{small}", "{trace}")) else a for a in arguments]
        )
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected.replace("{small}", small) in err
    assert Path("/dev/full").is_char_device()


def test_a_run_in_which_all_are_refused_or_none_arrives_says_so(small, capsys):
    path = Path(small)
    path.write_text(
        '[workload]\nduration_s = 9\n[[workload.class]]\nname = "one"\narrival = { kind = "trace", times_s = [0]'
        ' }\noutput = { value = 5 }\nlayers = [ { name = "m", tokens = { value = 50 } } ]\n[engine]\nmax_model_len'
        " = 1\n"
    )
    assert main(["run", small, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["arrived"] == sum(document["rejected"].values()) == 1
    assert document["duration"] == 0
    assert document["request_throughput"] is None
    path.write_text(SMALL)
    assert main(["run", small, "--json", "--no-baseline", "--set", "run.duration_s=1e-9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["arrived"], document["stable"]) == (0, None)
    assert document["not_arrived"] > 0
    checked = ["run", small, "--no-baseline", "--check", "--set", "slo.attainment=0.9", "--set", "run.duration_s=1e-9"]
    assert main(checked) == 1
    assert capsys.readouterr().err == "kvcast: NOT SHOWN that it meets the target: no request arrived\n"


def test_more_concurrency_than_sessions_is_all_sessions_at_once(small, capsys):
    documents = []
    for sessions in ("80", "1000000000"):  # there are 27
        fixed = [
            "workload.rate=",
            "workload.requests=80",
            "workload.duration_s=",
            "workload.loop=concurrency",
            f"workload.concurrency={sessions}",
        ]
        assert main(["run", small, "--json", "--no-baseline", *(part for one in fixed for part in ("--set", one))]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["completed"] == documents[0]["arrived"] > 0
    assert documents[0]["mean_ttft_ms"] == documents[1]["mean_ttft_ms"]


def test_the_place_of_a_key(small):
    doc = read_toml(small)
    assert (
        place_of(doc, "workload.class.chat.share")
        == place_of(doc, "workload.class.0.share")
        == ("workload", "class", "0", "share")
    )
    assert place_of(doc, "cluster.replicas") == ("cluster", "replicas")
    with pytest.raises(InputError, match="no entry 'cat'"):
        apply_overrides(doc, ["workload.class.cat.share=1"])
    assert place_of(doc, "workload.class.cat.share") == ("workload", "class", "cat", "share")


def test_a_seed_on_the_command_line_wins_over_the_scenarios_own(small, capsys):
    documents = []
    for seed in ([], ["--seed", "0"], ["--seed", "5"]):
        assert main(["workload", "describe", small, "--json", *seed]) == 0
        documents.append(capsys.readouterr().out)
    assert documents[0] == documents[1] != documents[2]
