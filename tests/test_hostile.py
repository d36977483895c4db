"""A sample of `make hostile` (tests.hostile), and the kinds of fault that it found, one by one.

python -m pytest tests/test_hostile.py
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvcast import system, text
from kvcast.__main__ import main as started
from kvcast.cli import main
from kvcast.scenario.checks import check
from kvcast.studies import compare
from sim.scenario import Scenario
from tests import hostile
from tests.hostile_cases import cases
from tests.hostile_kills import attack
from tests.hostile_world import SCENARIO, TRACE, make_world
from workloads.config import Arrival, Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.files import replacing
from workloads.limits import MAX_SECONDS
from workloads.load import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("hostile") / "world")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a scenario and a trace."""
    (tmp_path / "S.toml").write_text(SCENARIO)
    (tmp_path / "T.jsonl").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line_of(argv: list[str], capsys: pytest.CaptureFixture) -> str:
    """What a command that is refused says, on one line."""
    try:
        code: object = main(argv)
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr()
    assert (code, said.err.count("\n"), said.out) == (2, 1, ""), said
    return said.err


def test_a_sample_of_the_cases(world: Path) -> None:
    every = cases(world, seed=0)
    assert len(every) > 2000
    assert {case.kind for case in every} == {"keys", "texts", "flags", "paths", "folders", "lines"}
    quick = [case for case in every if "fifo" not in case.line()]
    assert hostile.run(random.Random(1).sample(quick, 40), world, say=False) == {}


def test_the_harness_sees_what_it_looks_for(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug, a hang, an escape, a second line and a file that is left."""
    case = next(case for case in cases(world, seed=0) if case.kind == "keys")

    def ends(with_: object) -> list[str]:
        monkeypatch.setattr(hostile, "kvcast", with_)
        return list(hostile.faults(case, hostile.attack(case, world)))

    monkeypatch.setattr(hostile, "WALL_S", 0.3)
    assert ends(lambda argv: 70) == ["exit code 70, expected 0 or 1 or 2"] or case.codes == {2}
    assert ends(lambda argv: threading.Event().wait()) == ["no end within 0 s"]
    assert ends(lambda argv: print("\x1b[2J", file=sys.stderr) or 2) == ["stderr has '\\x1b'"]
    assert ends(lambda argv: print("a\nb", file=sys.stderr) or 2) == ["2 lines on stderr, expected 1"]
    assert ends(lambda argv: Path("x").write_text("") or print("no", file=sys.stderr) or 2) == ["left ['x']"]


@pytest.mark.parametrize("name", ["run", "sweep"])
def test_kills(name: str) -> None:
    hits, wrong = attack(name, 2, random.Random(3))
    assert (hits, wrong) == (2, [])


# -- kinds of fault ----------------------------------------------------------------------------------------------------


def test_a_grid_of_millions_is_refused_with_its_count(here: Path, capsys: pytest.CaptureFixture) -> None:
    axes = [f"engine.{key}={','.join(map(str, range(1, 201)))}" for key in ("kv_blocks", "max_num_seqs")]
    argv = ["sweep", "S.toml", *(word for axis in axes for word in ("--vary", axis)), "--seeds", "1000", "--out", "s"]
    assert "40,000,000 runs (200 of engine.kv_blocks x 200 of engine.max_num_seqs, 1,000 seeds)" in line_of(
        argv, capsys
    )
    assert not (here / "s").exists()
    with pytest.raises(InputError, match="there twice"):
        compare.axes({}, ["engine.kv_blocks=100,2,100.0"])


@pytest.mark.parametrize(
    "argv", [["run", "pipe"], ["profile", "kv-log", "pipe"], ["run", "S.toml", "--prices", "pipe"]]
)
def test_a_named_pipe_is_refused(argv: list[str], here: Path, capsys: pytest.CaptureFixture) -> None:
    os.mkfifo("pipe")
    assert "pipe: a named pipe, expected a file" in line_of(argv, capsys)


def test_a_pipe_of_the_shell_is_read(here: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, SCENARIO.replace("warmup_s = 0", "warmup_s = nan").encode())
    os.close(writing)
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", "run", f"/dev/fd/{reading}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        pass_fds=[reading],
    )
    os.close(reading)
    assert "warmup_s = nan" in done.stderr


def test_a_pipe_is_written_where_somebody_reads(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "PIPE_S", 0.1)
    system.refuse_dead_pipes()
    os.mkfifo("pipe")
    with pytest.raises(InputError, match="nobody reads from"), replacing(Path("pipe")) as path:
        path.write_text("whole")
    assert path.name == "pipe"
    monkeypatch.setattr(system, "PIPE_S", 60.0)
    with subprocess.Popen(["head", "-c", "5", "pipe"], stdout=subprocess.PIPE) as reader:
        with replacing(Path("pipe")) as path:
            path.write_text("whole")
        assert reader.communicate()[0] == b"whole"


@pytest.mark.parametrize("name", ["red\x1b[31m", "two\nlines", "bell\x07", "c1\x9b2J", "caf\udce9"])
def test_names_command_no_terminal(name: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    for suffix, source in ((".toml", "S.toml"), (".jsonl", "T.jsonl")):
        Path(name + suffix).write_bytes(Path(source).read_bytes())
    for argv in (
        ["run", f"{name}.toml", "--no-baseline", "--no-model-error", "--out", f"{name}.run"],
        ["report", f"{name}.run", "--html", f"{name}.html"],
        ["doctor", f"{name}.run"],
        ["workload", "convert", f"{name}.jsonl", "--out", f"{name}.out"],
        ["profile", "show", name],
        [name],
    ):
        with contextlib.suppress(SystemExit):  # argparse's way to say 2
            assert main(argv) == (2 if argv[0] == "profile" else 0)
        said = capsys.readouterr()
        assert not hostile.CONTROL.search(said.out + said.err), (argv, said)


def test_what_a_stream_lets_through(capsys: pytest.CaptureFixture) -> None:
    out, err = text.Harmless(sys.stdout, "stdout"), text.Harmless(sys.stderr, "stderr")
    assert out.write("a\tb\nc\x1b[K\rd\x9b\u2028") == 12
    err.write("\r\x1b[K50 %\r\x1b[2J")
    said = capsys.readouterr()
    assert said.out == "a\tb\nc\\u001b[K\\u000dd\\u009b\\u2028"
    assert said.err == "\r\x1b[K50 %\r\\u001b[2J"


def test_a_number_that_is_none_is_refused_even_where_nothing_reads_it() -> None:
    """cv is for gamma arrivals: the limits of a kind do not see it."""
    layer = Layer("m", tokens=Dist(value=10.0))
    idle = MixClass("a", rate=1.0, arrival=Arrival(cv=float("nan")), layers=(layer,), output=Dist(value=5.0))
    with pytest.raises(InputError, match=r"class\[0\]\.arrival\.cv = nan: expected a finite number"):
        check(Scenario(WorkloadConfig(duration_s=10.0, class_=(idle,))))


@pytest.mark.parametrize("ramp_to", [0.0, 1e-320, float("inf"), -1.0])
@pytest.mark.filterwarnings("error")
def test_a_ramp_to_nothing_is_refused(ramp_to: float) -> None:
    layer = Layer("m", tokens=Dist(value=10.0))
    ramp = MixClass("a", rate=1.0, arrival=Arrival(ramp_to=ramp_to), layers=(layer,), output=Dist(value=5.0))
    with pytest.raises(InputError, match="ramp_to"):
        load(WorkloadConfig(requests=10, class_=(ramp,)), 0)
    assert ramp_to < MAX_SECONDS or ramp_to == float("inf")


def test_deep_and_long_json_is_one_line(here: Path, capsys: pytest.CaptureFixture) -> None:
    for content in ('{"a": ' * 5000 + "1" + "}" * 5000, '{"a": ' + "9" * 5000 + "}"):
        Path("p.json").write_text(content)
        assert line_of(["profile", "show", "p.json"], capsys).startswith("kvcast: p.json: not a JSON profile")
        Path("points.jsonl").write_text(content + "\n")
        assert "points.jsonl, line 1" in line_of(["calibrate", "--points", "points.jsonl", "--out", "o"], capsys)


def test_links_that_lead_to_themselves(here: Path, capsys: pytest.CaptureFixture) -> None:
    Path("loop").symlink_to("loop")
    assert "a link to itself" in line_of(["run", "S.toml", "--out", "loop"], capsys)
    for path in (".", "/"):
        with pytest.raises(IsADirectoryError), replacing(Path(path)):
            pass


def test_what_a_killed_writer_left_goes_at_once(here: Path) -> None:
    """Its lock is free; that of a living writer is not."""
    with replacing(Path("a")) as living:
        living.write_text("living")
        Path(".a.01234567.part").write_text("half")
        with replacing(Path("a")) as other:
            other.write_text("other")
        assert sorted(path.name for path in here.glob(".a*")) == [living.name]
    assert Path("a").read_text() == "living"


def test_limits_hold_in_the_harness(world: Path) -> None:
    """The child's limits are its own."""
    case = next(case for case in cases(world, seed=0) if case.kind == "lines")
    before = resource.getrlimit(resource.RLIMIT_AS)
    hostile.attack(case, world)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("argv", [["--version"], ["profile", "list"], ["run", "S.toml"], ["run", "/nowhere.toml"]])
def test_a_deleted_folder(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"rmdir ../gone; exec {sys.executable} -m kvcast {' '.join(argv)}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path / "gone",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if argv[0] == "run":
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    else:
        assert (done.returncode, done.stderr) == (0, ""), done


def test_ctrl_c_while_modules_are_loaded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kvcast.cli")
    monkeypatch.setattr(sys, "meta_path", [type("Stopping", (), {"find_spec": stop})()])
    assert started() == 130
    assert capsys.readouterr().err == "kvcast: stopped\n"
