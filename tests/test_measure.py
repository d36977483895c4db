"""Measuring: the file is the state, whatever ends a run; the plan's order; what the measuring half imports."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.assemble import from_points, profile_of
from calibrate.fake import FakeDevice
from calibrate.gpu.measure import measure, outcome_lines
from calibrate.gpu.points import CPU, GPU, anchors, plan
from calibrate.gpu.session import DeviceLostError, OutOfMemoryError
from calibrate.latency import step_time
from calibrate.models import resolve_model
from calibrate.operators import Point, features, step_operators, supported
from calibrate.points_file import read_points
from kvcast.cli import main
from tests.conftest import require_kernel_tools
from workloads.errors import InputError

TINY = resolve_model("tiny")
ROOT = Path(__file__).parent.parent


class Clock:
    """Every point takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Stepping(FakeDevice):
    """A fake device on that clock; `ends` says at which point what is raised."""

    def __init__(self, clock, ends=None, **options):
        super().__init__(**options)
        self.clock, self.ends, self.asked = clock, ends or {}, []

    def measure(self, point):
        self.clock.now += 1.0
        self.asked.append(point.key)
        if len(self.asked) - 1 in self.ends:
            raise self.ends[len(self.asked) - 1]
        return super().measure(point)


def session(path, budget_s=1e6, ends=None, resume=True, retry_failed=False, **options):
    clock = Clock()
    device = Stepping(clock, ends, **options)
    return (
        measure(
            device,
            TINY,
            CPU,
            path,
            dtype="fp32",
            budget_s=budget_s,
            resume=resume,
            retry_failed=retry_failed,
            clock=clock,
        ),
        device,
    )


def test_a_run_in_pieces_measures_the_same_points_as_one(tmp_path):
    whole, _ = session(tmp_path / "whole.jsonl")
    assert whole.stopped == ""
    assert whole.done == whole.planned == len(plan(TINY, CPU))
    for _ in range(20):
        last, _ = session(tmp_path / "pieces.jsonl", budget_s=30.0)
    assert last.stopped == ""
    one, other = (read_points(tmp_path / f"{name}.jsonl")[1] for name in ("whole", "pieces"))
    assert {k: r["value"] for k, r in one.items()} == {k: r["value"] for k, r in other.items()}


def test_a_lost_gpu_whose_memory_cannot_be_given_back_ends_the_session_cleanly(tmp_path):
    """Every call fails once the GPU is gone, the release between points among them."""
    require_kernel_tools(__name__)
    from calibrate.gpu.devices import CpuCalibration

    class Gone(CpuCalibration):
        timed, says = 0, "CUDA error: unspecified launch failure"

        def time(self, calls):
            self.timed += 1
            if self.timed > 5:
                raise RuntimeError(self.says)
            return super().time(calls)

        def release(self):
            if self.timed > 5:
                raise RuntimeError(self.says + " (empty_cache)")

    path = tmp_path / "points.jsonl"
    outcome = measure(Gone(TINY), TINY, CPU, path, dtype="fp32", budget_s=60)
    assert outcome.stopped == "device lost"
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["op"], last["stopped"]) == ("end", "device lost")
    assert len(read_points(path)[1]) == 5


@pytest.mark.parametrize(
    ("says", "alive", "meant"),
    [
        ("CUDA error: an illegal memory access was encountered", True, DeviceLostError),
        ("Triton Error [CUDA]: an illegal memory access was encountered", False, DeviceLostError),
        ("Triton Error [CUDA]: invalid argument", True, RuntimeError),
        ("CUDA error: invalid configuration argument", True, RuntimeError),
        ("CUDA error: invalid configuration argument", False, DeviceLostError),
        ("CUDA error: out of memory", True, OutOfMemoryError),
        (
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
            True,
            OutOfMemoryError,
        ),
    ],
)
def test_what_an_error_of_the_device_means(says, alive, meant):
    require_kernel_tools(__name__)
    from calibrate.gpu.devices import CpuCalibration

    class Failing(CpuCalibration):
        def time(self, calls):
            raise RuntimeError(says)

        def wait(self):
            if not alive:
                raise RuntimeError("gone")

    with pytest.raises(meant, match=says[-20:]) as raised:
        Failing(TINY).measure(Point("gemm", {"m": 2, "n": 8, "k": 8}))
    assert type(raised.value) is meant


def test_a_kill_in_the_middle_of_a_line_loses_that_line_only(tmp_path):
    path = tmp_path / "points.jsonl"
    session(path, budget_s=40.0)
    data = path.read_bytes()
    path.write_bytes(data + b'{"op":"gemm","shape":{"m":')
    before = set(read_points(path)[1])
    assert len(before) >= 35
    outcome, device = session(path)
    assert outcome.stopped == ""
    assert not before & set(device.asked[: -len(anchors(TINY, CPU))]), "nothing is measured twice but the anchors"
    assert set(read_points(path)[1]) == {p.key for p in plan(TINY, CPU)}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), DeviceLostError("the bus"), OSError(28, "No space left on device")]
)
def test_what_was_measured_stays_when_a_run_ends_badly(tmp_path, error):
    path = tmp_path / "points.jsonl"
    if isinstance(error, OSError):
        with pytest.raises(OSError, match="No space left"):
            session(path, ends={12: error})
    else:
        outcome, _ = session(path, ends={12: error})
        assert outcome.stopped == ("device lost" if isinstance(error, DeviceLostError) else "interrupted")
        assert "--resume goes on" in outcome_lines(outcome, path)[0]
    assert len(read_points(path)[1]) == 12
    outcome, _ = session(path)
    assert outcome.done == outcome.planned


def test_a_disk_that_fills_up_keeps_what_was_measured(tmp_path):
    path = tmp_path / "points.jsonl"
    session(path, budget_s=10)
    command = (
        f'ulimit -f {path.stat().st_size // 1024 + 4}; exec {sys.executable} -c "import signal;'
        " signal.signal(signal.SIGXFSZ, signal.SIG_IGN); import sys; from tests.test_measure import resumed;"
        f' sys.exit(resumed({str(path)!r}))"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (2, "[Errno 27] File too large")
    assert len(read_points(path)[1]) > 10
    assert session(path)[0].stopped == ""


def limited(bytes_per_file: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A kvcast of its own whose files may not grow beyond that, as on a disk that is full."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f" resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_per_file},) * 2); from kvcast.cli import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_the_command_says_how_to_go_on_after_a_full_disk(tmp_path):
    out = tmp_path / "p.json"
    command = ["calibrate", "--model", "tiny", "--device", "fake", "--out", str(out)]
    done = limited(20_000, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"kvcast: {tmp_path / 'p.points.jsonl'}: File too large; the points measured so far are in it: make room,"
        " then --resume goes on\n"
    )
    assert len(read_points(tmp_path / "p.points.jsonl")[1]) > 50
    done = limited(100_000, *command, "--resume")  # holds points and profile, not the page
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        f"File too large; the measured points are kept in {tmp_path / 'p.points.jsonl'}: --resume fits them again\n"
    )
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p.json", "p.points.jsonl"], (
        "no page that is cut off, nothing left beside it"
    )
    assert main([*command, "--resume"]) == 0
    page = (tmp_path / "p.html").read_text()
    assert main(["calibrate", *command[1:], "--points", str(tmp_path / "p.points.jsonl")]) == 0
    done = limited(100_000, *command, "--points", str(tmp_path / "p.points.jsonl"))
    assert f"--points {tmp_path / 'p.points.jsonl'} fits them again" in done.stderr
    assert len((tmp_path / "p.html").read_text()) == len(page), "the old page stays whole"


def resumed(path: str) -> int:
    """A run in a process of its own, whose files may not grow."""
    try:
        session(Path(path))
    except OSError as e:
        print(e, file=sys.stderr)
        return 2
    return 0


def test_a_point_that_does_not_fit_is_recorded_and_the_run_goes_on(tmp_path):
    path = tmp_path / "points.jsonl"
    outcome, _ = session(path, ends={20: OutOfMemoryError("40 GiB asked")})
    assert list(outcome.failed.values()) == ["out of memory: 40 GiB asked"]
    assert outcome.done == outcome.planned
    assert [r["error"] for r in read_points(path)[1].values() if "error" in r] == ["out of memory: 40 GiB asked"]
    assert any(
        line.startswith("1 points failed (out of memory: 40 GiB asked), such as ")
        for line in outcome_lines(outcome, path)
    )


class OutOfResources(Exception):  # noqa: N818 (Triton's name)
    """As Triton's: neither a RuntimeError nor an OSError."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Triton Error [CUDA]: out of resource: shared memory\nmore"),
        OutOfResources("out of resource: shared memory"),
        ValueError("no such tile"),
    ],
)
def test_any_other_error_is_of_its_point_and_is_met_again_only_when_asked(tmp_path, error):
    path = tmp_path / "points.jsonl"
    outcome, device = session(path, ends={40: error})
    failed = device.asked[40]
    assert (outcome.stopped, outcome.done) == ("", outcome.planned)
    assert list(outcome.failed) == [failed]
    assert read_points(path)[1][failed]["error"] == " ".join(f"{type(error).__name__}: {error}".split())
    assert any(
        line.startswith("1 points failed (") and "--retry-failed" in line for line in outcome_lines(outcome, path)
    )
    assert failed in "\n".join(from_points(path).failures())
    outcome, device = session(path)
    assert failed not in device.asked, "--resume does not meet it again"
    assert list(outcome.failed) == [failed]
    outcome, device = session(path, retry_failed=True)
    assert device.asked[0] == failed
    assert outcome.failed == {}
    assert "value" in read_points(path)[1][failed]
    assert from_points(path).failures() == []


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (DeviceLostError("the bus"), "device lost"),
        (OutOfMemoryError("x"), ""),
        (KeyboardInterrupt(), "interrupted"),
        (RuntimeError("x"), ""),
    ],
)
def test_whatever_happens_while_the_anchors_are_measured_again_the_session_gets_its_end(tmp_path, error, stopped):
    path = tmp_path / "points.jsonl"
    outcome, _ = session(path, ends={len(plan(TINY, CPU)) + 1: error})
    assert (outcome.stopped, outcome.done) == (stopped, outcome.planned)
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["op"], last["stopped"]) == ("end", stopped)
    assert last["drift"] == outcome.drift
    assert len(outcome.drift) == (1 if stopped else 2), "the second of three anchors"
    assert session(path)[0].stopped == ""


def test_drift_of_the_anchors_is_flagged(tmp_path):
    class Warming(Stepping):
        def measure(self, point):
            slower = 1.05 if len(self.asked) >= len(plan(TINY, CPU)) else 1.0
            return [v * slower for v in super().measure(point)]

    clock = Clock()
    outcome = measure(
        Warming(clock, noise=0.0), TINY, CPU, tmp_path / "p.jsonl", dtype="fp32", budget_s=1e6, clock=clock
    )
    assert len(outcome.drift) == 3
    assert all(change == pytest.approx(0.05, abs=1e-3) for change in outcome.drift.values())
    assert sum("DRIFT" in line for line in outcome_lines(outcome, Path("p"))) == 3
    assert any(line.startswith("DRIFT +5.0 %") for line in from_points(tmp_path / "p.jsonl").drifts())


def test_drift_is_seen_across_sessions(tmp_path):
    """Anchors measured in an earlier session are compared with what they took then."""

    class Slow(Stepping):
        def measure(self, point):
            return [v * 1.3 for v in super().measure(point)]

    path = tmp_path / "points.jsonl"
    session(path, budget_s=60, noise=0.0)
    clock = Clock()
    outcome = measure(Slow(clock, noise=0.0), TINY, CPU, path, dtype="fp32", budget_s=1e6, resume=True, clock=clock)
    assert list(outcome.drift.values()) == pytest.approx([0.3] * 3, abs=1e-3)
    assert sum("DRIFT" in line for line in outcome_lines(outcome, path)) == 3
    assert sum(line.startswith("DRIFT +30.0 %") for line in from_points(path).drifts()) == 3


def test_a_file_of_another_run_is_not_added_to(tmp_path):
    path = tmp_path / "points.jsonl"
    session(path, budget_s=10)
    with pytest.raises(InputError, match="exists; expected --resume"):
        session(path, resume=False)
    with pytest.raises(InputError, match="field dtype is 'fp32'; this run has 'bf16'"):
        measure(FakeDevice(), TINY, CPU, path, dtype="bf16", resume=True)
    path.write_text("hello\n")
    with pytest.raises(InputError, match="line 1: not a JSON row"):
        session(path)


def test_progress_counts_up_and_time_left_counts_down(tmp_path):
    seen = []
    clock = Clock()
    measure(
        Stepping(clock),
        TINY,
        CPU,
        tmp_path / "p.jsonl",
        dtype="fp32",
        budget_s=50.0,
        clock=clock,
        show=lambda *a: seen.append(a),
    )
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert [left for _, _, left in seen] == sorted((left for _, _, left in seen), reverse=True)


@pytest.mark.parametrize(("grid", "model"), [(CPU, "tiny"), (GPU, "llama-3.1-8b"), (GPU, "qwen3-30b-a3b")])
def test_the_first_level_alone_makes_a_usable_profile(tmp_path, grid, model):
    spec = resolve_model(model)
    points = plan(spec, grid)
    first = next(i for i, p in enumerate(points) if p.op == "kv_capacity") + 1
    assert first < 0.45 * len(points)
    clock = Clock()
    measure(Stepping(clock), spec, grid, tmp_path / "p.jsonl", dtype="bf16", budget_s=(first + 0.5) / 0.97, clock=clock)
    steps = step_time(profile_of(from_points(tmp_path / "p.jsonl"), spec, 1, "x"), spec)
    seconds = [steps.step([(n, 100)], 10, 5000, 900, 11)[0] for n in (10, 500, 5000)]
    assert 0 < seconds[0] < seconds[1] < seconds[2]


def test_every_slice_of_a_tensor_parallel_width_is_planned():
    llama = resolve_model("llama-3.1-8b")
    keys = {p.key for p in plan(llama, GPU, (1, 4))}
    assert Point("gemm", {"m": 1024, "n": 28672 // 4, "k": 4096}).key in keys
    assert (
        Point("decode", {"heads": 8, "kv_heads": 2, "head_dim": 128, "batch": 16, "context": 2048, "longest": 2048}).key
        in keys
    )
    assert len(keys) == len(plan(llama, GPU, (1, 4))), "no point twice"
    with pytest.raises(InputError, match="tensor_parallel 3: expected a divisor"):
        step_operators(llama, 3)


def test_models_that_the_kernels_do_not_compute_are_refused():
    with pytest.raises(InputError, match="sliding windows"):
        supported(replace(TINY, sliding_layers=2, window=128))
    with pytest.raises(InputError, match="latent attention"):
        supported(resolve_model("deepseek-v3"))


def test_features_by_hand():
    assert features(Point("gemm", {"m": 10, "n": 1000, "k": 500}), 2) == pytest.approx(
        {"gflop": 0.01, "mb": 2e-6 * (500_000 + 5000 + 10_000)}
    )
    heads = {"heads": 4, "kv_heads": 2, "head_dim": 64}
    f = features(Point("prefill", {**heads, "new": 3, "cached": 5, "seqs": 2}), 2)
    assert f == pytest.approx({"gflop": 4e-9 * 256 * 2 * (6 + 7 + 8), "tokens": 6, "mb": 2e-6 * 2 * 128 * 16})
    f = features(Point("decode", {**heads, "batch": 3, "context": 10, "longest": 50}), 2)
    assert f == pytest.approx({"mb": 2e-6 * 2 * 128 * 70, "seqs": 3, "longest": 50})


def test_the_measuring_half_needs_torch_triton_and_numpy_only():
    blocked = ("pandas", "scipy", "pydantic", "pyarrow", "plotly", "simpy", "rich", "streamlit", "joblib")
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nimport calibrate.gpu.measure,"
        " calibrate.gpu.points, calibrate.operators, calibrate.gpu.serving, calibrate.gpu.paging,"
        " calibrate.fake\ntry:\n    import torch\nexcept ImportError:\n    sys.exit()\nimport calibrate.gpu.engine,"
        " calibrate.gpu.mixes, calibrate.gpu.devices, calibrate.gpu.cuda, calibrate.gpu.graphs,"
        " calibrate.gpu.live_bytes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_rows_carry_the_median_the_spread_and_how_many(tmp_path):
    session(tmp_path / "p.jsonl", budget_s=5)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows[0]["op"] == "header"
    assert rows[1]["op"] == "session"
    gemm = next(r for r in rows if r["op"] == "gemm")
    assert gemm["unit"] == "us"
    assert gemm["samples"] == 7
    assert 0 < gemm["iqr"] < 0.1 * gemm["value"]
    assert rows[-1]["op"] == "end"


def test_a_killed_process_resumes_to_the_same_points(tmp_path):
    """SIGKILL in the middle, then --resume: the points of an unbroken run, each once."""
    path = tmp_path / "killed.jsonl"
    command = [sys.executable, "-m", "calibrate.gpu.measure", "--model", "tiny", "--device", "fake", "--out", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < 60):
        time.sleep(0.005)
    process.kill()
    process.wait()
    before = len(read_points(path)[1])
    assert 50 < before < len(plan(TINY, GPU)), "killed half-way"
    subprocess.run([*command, "--resume"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    keys = [Point(r["op"], r["shape"]).key for r in rows if "shape" in r]
    assert len(keys) == len(set(keys))
    assert set(keys) == {p.key for p in plan(TINY, GPU)}
