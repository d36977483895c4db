"""What all places to simulate have in common, without a cluster: tests/test_clusters.py has real ones."""

import socket
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace

import pytest

from kvcast import InputError, load_scenario, sweep, workers
from kvcast.cli import main
from kvcast.pools import places
from kvcast.pools.places import TRIES, Here, Pool, answer
from kvcast.store import elsewhere, workload_folder
from kvcast.store.simulations import Lab, _one
from tests.test_clusters import SMALL, bytes_of


class LostError(Exception):
    pass


class Losing(Pool):
    """Whose workers are lost in the first so many calls."""

    said, lost = "a cluster", (LostError,)

    def __init__(self, losses: int) -> None:
        self.losses, self.begun = losses, 0

    def submit(self, function, *arguments):
        future: Future = Future()
        self.begun += 1
        if self.begun <= self.losses:
            future.set_exception(LostError("the machine is off. Call its owner."))
        else:
            future.set_result(function(*arguments))
        return future


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_a_lost_workers_call_is_made_again_and_a_line_says_so(capsys):
    pool = Losing(2)
    assert dict(pool.finished(divmod, [(7, 2), (9, 4), (8, 3)])) == {0: (3, 1), 1: (2, 1), 2: (2, 2)}
    assert pool.begun == 5
    line = "kvcast: a cluster: a worker was lost (the machine is off); its run is begun again\n"
    assert capsys.readouterr().err == 2 * line


def test_a_call_that_loses_every_worker_is_given_up(capsys):
    pool = Losing(TRIES)
    with pytest.raises(InputError, match=r"begun 4 times and each time its worker was lost \(the machine is off\)"):
        list(pool.finished(divmod, [(7, 2)]))
    assert pool.begun == TRIES


def test_a_worker_compares_the_code_before_it_reads_the_call():
    with pytest.raises(InputError, match=r"another kvcast \(code \w{12}, here ffffffffffff\); expected the same"):
        answer("f" * 64, b"not a pickle", None)


def test_a_worker_compares_profile_and_model(small, tmp_path):
    task = Lab(tmp_path / "lab").task(load_scenario(small))
    with pytest.raises(InputError, match=r"has another profile or model of this name; expected the same files on"):
        _one(replace(task, resolved="another"), workload_folder.load(task.workload))
    assert not task.run.exists()


class Elsewhere(Here):
    said, shares_files = "a cluster", False


@pytest.mark.parametrize("sees", [True, False])
def test_runs_come_back_from_workers_that_do_not_see_the_folder(small, tmp_path, monkeypatch, sees):
    written = []
    monkeypatch.setattr(
        elsewhere, "replace_file", lambda path, content: (written.append(path.name), path.write_bytes(content))
    )
    if not sees:
        monkeypatch.setattr(elsewhere, "_mark", lambda _: nullcontext(tmp_path / "a file that nobody made"))
    sweep(small, {"cache.policy": ["lru"]}, tmp_path / "there", jobs=Elsewhere())
    sweep(small, {"cache.policy": ["lru"]}, tmp_path / "here")
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "here")
    assert bool(written) == (not sees)
    assert sees or written[-1] == "run.json"  # which says that the others are there


def test_the_mark_goes_and_so_does_one_that_a_killed_caller_left(tmp_path):
    (tmp_path / ".seen-left").touch()
    with elsewhere._mark(tmp_path) as mark:
        assert list(tmp_path.iterdir()) == [mark]
        with elsewhere._mark(tmp_path) as another:
            assert mark.exists()
            assert another != mark
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_never_seen_here_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere, "VISIBLE_S", 0.0)
    with pytest.raises(InputError, match=r"a cluster wrote it, and it is not seen here"):
        elsewhere._await(tmp_path / "runs" / "ab", Elsewhere())


def test_an_address_where_nothing_listens_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"--address {address}: nothing answers there \(.*refused\)"):
            places.reachable(address, "tcp://10.0.0.1:8786")
    for wrong in ("nowhere", "tcp://10.0.0.1", "http://[1", "10.0.0.1:99999999"):
        with pytest.raises(InputError, match=r"expected HOST:PORT, such as tcp://10"):
            places.reachable(wrong, "tcp://10.0.0.1:8786")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--backend", "dask"], "--backend dask: expected the --address of a running cluster with it"),
        (["--address", "tcp://a:1"], "--address tcp://a:1: expected --backend dask or ray with it"),
        (["--backend", "ray", "--address", "a:1", "--jobs", "3"], "a cluster has its own number of workers"),
        (["--jobs", "0"], "--jobs 0: expected 1 or more"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(small, tmp_path, capsys, flags, said):
    assert main(["sweep", str(small), "--vary", "cache.policy=lru", "--out", str(tmp_path / "s"), *flags]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_an_unknown_backend_says_what_there_is():
    with pytest.raises(InputError, match=r"--backend rai: no such backend \(did you mean ray\?\)"):
        workers("rai", "a:1")
