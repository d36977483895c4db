"""Sweeps, comparisons and plans on real clusters of two workers, one of them killed in the middle: the same bytes as
one process. `make test-clusters` installs what they need."""

import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import pytest

from kvcast import sweep, workers
from kvcast.cli import main
from kvcast.pools import places
from kvcast.store import elsewhere
from tests.conftest import NO_CLUSTER

ROOT = Path(__file__).resolve().parent.parent
SMALL = """
seed = 3
[workload]
rate = 4.0
duration_s = 20.0
[[workload.class]]
name = "chat"
share = 1.0
layers = [
    {name = "system", scope = "project", items = 40, tokens = {value = 400}},
    {name = "user", tokens = {kind = "uniform", low = 50, high = 500}},
]
output = {kind = "uniform", low = 5, high = 30}
turns = {value = 2}
think = {value = 3}
[engine]
kv_blocks = 400
[slo]
ttft_s = 1.0
attainment = 0.9
"""
KILLS_ONE = """
import os, signal
from pathlib import Path
from sim.kvcache.policies import Policy

class Once(Policy):
    \"\"\"Its first run is the last thing that its worker does.\"\"\"

    def __init__(self, world):
        super().__init__(world)
        try:
            Path({flag!r}).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def key(self, run):
        return run.released
"""
GRID = ["cache.policy=lru,kills_one:Once", "engine.kv_blocks=400,1000"]

NOT_ASKED = ("capacity", "binding", "advice", "growth", "n-plus-1", "model-error", "recover", "undisturbed")


@contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """A scheduler and two workers in processes of their own."""
    if not os.environ.get("KVCAST_CLUSTERS"):
        pytest.skip(f"{NO_CLUSTER}KVCAST_CLUSTERS is not set (make test-clusters)")
    distributed = pytest.importorskip("distributed", reason=f"{NO_CLUSTER}dask")
    options = {"threads_per_worker": 1, "dashboard_address": None, "local_directory": str(folder / "dask")}
    with (  # a busy machine starts them slowly
        pytest.importorskip("dask").config.set({"distributed.comm.timeouts.connect": "180s"}),
        distributed.LocalCluster(n_workers=2, death_timeout=180, **options) as cluster,
    ):
        yield cluster.scheduler_address


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """A head with two workers, started by its command."""
    pytest.importorskip("ray", reason=f"{NO_CLUSTER}ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats"]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # a socket's path has at most 107 characters
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--temp-dir={short}"]
        said = folder / "ray.txt"
        with said.open("w") as out:
            head = subprocess.Popen([*command, *options, *quiet], stdout=out, stderr=out)
        try:
            until_s = time.monotonic() + 180
            while "Ray runtime started" not in said.read_text():
                assert head.poll() is None, said.read_text()
                assert time.monotonic() < until_s, said.read_text()
                time.sleep(0.1)
            yield address
        finally:
            head.terminate()
            head.wait()


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """The folder of the user's own policy."""
    own = tmp_path_factory.mktemp("own")
    (own / "kills_one.py").write_text(KILLS_ONE.format(flag=str(own / "flag")))
    return own


@pytest.fixture(scope="module", params=[dask_cluster, ray_cluster])
def cluster(request, own) -> Iterator[tuple[str, str]]:
    """("dask" or "ray", address) of a running cluster whose workers import this kvcast, and the user's policy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(own))))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.syspath_prepend(str(own))
        with request.param(own) as address:
            backend = request.param.__name__.removesuffix("_cluster")
            with workers(backend, address):  # a session has one connection to Ray, which all tests use
                yield backend, address


@pytest.fixture(scope="module")
def small(own):
    path = own / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def alone(own, small):
    """Of one process: the bytes of the sweep, and what the commands of `asked` print."""
    (own / "flag").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(own))
        sweep(small, GRID, own / "alone")
        return bytes_of(own / "alone"), [printed(command) for command in asked(small)]


def asked(small: Path) -> list[list[str]]:
    plan = ["plan", str(small), "--seeds", "2", "--max-replicas", "2", *(f"--no-{part}" for part in NOT_ASKED)]
    return [["compare", str(small), "--vary", "cache.policy=lru,lfu", "--json"], [*plan, "--json"]]


def printed(command: list[str]) -> list[str]:
    """The lines of the document but for the time it took."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(command) == 0
    return [line for line in out.getvalue().splitlines() if '"cpu_s"' not in line]


@pytest.fixture
def flag(own):
    """There once a worker was killed."""
    (own / "flag").unlink(missing_ok=True)
    return own / "flag"


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Of every file of a sweep that equal sweeps have in common."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("sees", [True, False])
def test_a_sweep_has_the_bytes_of_one_process_though_a_worker_was_killed(
    cluster, alone, flag, small, tmp_path, monkeypatch, capsys, sees
):
    """sees: whether the workers find the caller's folder."""
    if not sees:
        monkeypatch.setattr(elsewhere, "_mark", lambda _: nullcontext(tmp_path / "a file that nobody made"))
    with workers(*cluster) as there:
        sweep(small, GRID, tmp_path / "there", jobs=there)
        assert flag.exists()
        said = capsys.readouterr().err.splitlines()
        told = [line for line in said if line.endswith(("what it had begun is begun again", "its run is begun again"))]
        assert len(told) == 1, said
        assert all(line.startswith("kvcast: ") for line in said), said  # a slow start: no worker is there, waiting
        assert sweep(small, GRID, tmp_path / "there", jobs=there).reused == 4
    assert bytes_of(tmp_path / "there") == alone[0]


def test_a_comparison_and_a_plan_are_those_of_one_process(cluster, alone, small):
    on = ["--backend", cluster[0], "--address", cluster[1]]
    assert [printed([*command, *on]) for command in asked(small)] == alone[1]


def test_a_worker_with_another_kvcast_is_one_line(cluster, small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(places, "everything", lambda: "f" * 64)  # here; a worker looks at its files
    backend, address = cluster
    command = ["sweep", str(small), "--vary", "cache.policy=lru", "--out", str(tmp_path / "s")]
    assert main([*command, "--backend", backend, "--address", address]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvcast: worker ")
    assert "here ffffffffffff); expected the same version on every worker" in err
    assert err.count("\n") == 1
