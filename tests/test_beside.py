"""A call beside this process: the same answer wherever it is made."""

import os
import subprocess
import sys
from select import select as wait
from time import sleep

import pytest

from kvcast.pools import beside as made
from kvcast.pools.beside import beside


@pytest.mark.parametrize("free", [True, False])
def test_the_answer_is_the_same_beside_and_here(monkeypatch, free):
    monkeypatch.setattr(made, "core_free", lambda: free)
    here = os.getpid()
    with beside(lambda: (os.getpid() != here, {"a": [1.5]})) as asked:
        assert asked() == (free, {"a": [1.5]})


def test_what_ends_without_an_answer_is_asked_here(monkeypatch):
    """A child that is killed, and one whose call fails: the error is the one that the call raises here."""
    monkeypatch.setattr(made, "core_free", lambda: True)
    here = os.getpid()
    with beside(lambda: here if os.getpid() == here else os._exit(3)) as asked:
        assert asked() == here
    with pytest.raises(ZeroDivisionError), beside(lambda: 1 // 0) as asked:
        asked()


def test_a_body_that_fails_ends_what_runs_beside_it(monkeypatch):
    """Only the copy holds the pipe's other end, so its end is read where the copy is gone."""
    monkeypatch.setattr(made, "core_free", lambda: True)
    read, write = os.pipe()

    def failing() -> None:
        with beside(lambda: (os.write(write, b"begun"), sleep(60))):
            os.close(write)
            assert os.read(read, 9) == b"begun"
            raise InterruptedError

    with pytest.raises(InterruptedError):
        failing()
    assert wait([read], [], [], 0)[0], "it is still there"
    assert os.read(read, 9) == b""
    os.close(read)


def test_a_run_and_its_twin_are_the_same_beside_and_one_after_the_other(monkeypatch, capsys, tmp_path):
    from kvcast.cli import main

    (tmp_path / "s.toml").write_text(
        'seed = 1\n[workload]\npreset = "demo"\nduration_s = 20\n[model]\nname = "llama-3.1-8b"\n'
        '[hardware]\ngpu = "h200"\n[run]\nwarmup_s = 0\n[slo]\nttft_s = 2\n'
    )
    said = []
    for free in (True, False):
        monkeypatch.setattr(made, "core_free", lambda free=free: free)
        assert main(["run", str(tmp_path / "s.toml"), "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert '"cache_worth": {' in said[0]


LONG = """
import os, time
from kvcast.pools.beside import copies

def work(i):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)

list(copies(2)(work, range(2)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux alone")
def test_copies_end_with_a_process_that_is_killed() -> None:
    """Their end of the pipe closes with them, so reading it to its end waits for nothing else."""
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() != b"" for _ in range(2)] == [True, True]
        parent.kill()
        assert wait([parent.stdout], [], [], 30)[0], "a copy is still there"
        assert parent.stdout.read() == b""
