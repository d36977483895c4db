"""Routers: the least loaded replica, found without looking at all of them; routers of a user's own.

python -m pytest tests/test_router.py
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from kvcast import InputError, Router, load_scenario, simulate, sweep
from kvcast.cli import main
from kvcast.studies.drawn import drawn
from sim.fleet.router import ROUTERS, find, meanings, name_of
from sim.fleet.routers.load import LeastLoaded
from sim.scenario import ClusterConfig, EngineParams
from sim.simulate import run
from tests.test_fleet import at, fails, starts
from tests.worlds import LinearSteps, random_workload
from workloads.columns import PrefixTree, Workload

ENGINES = {
    "vllm": {"max_num_batched_tokens": 40},
    "by priority": {"scheduler_policy": "priority", "max_num_batched_tokens": 40},
    "asynchronous": {"async_scheduling": True},
    "sglang": {"semantics": "sglang", "schedule_policy": "fcfs"},
    "behind a front end": {"max_num_batched_tokens": 40, "frontend_s": 0.3},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_least_loaded_is_the_least_of_all(engine: str) -> None:
    """Pins, preemptions, stretches and finishes: every choice is the minimum over all replicas, ties to the lowest
    index."""
    choose, looked, chosen, preempted = LeastLoaded.choose, 0, 0, 0

    def checked(self, request, replicas):
        nonlocal looked, chosen
        least = min(replicas, key=lambda replica: (replica.load_tokens(), replica.index))
        with patch.object(
            type(replicas[0]), "load_tokens", autospec=True, side_effect=type(replicas[0]).load_tokens
        ) as look:
            found = choose(self, request, replicas)
        looked, chosen = looked + look.call_count, chosen + 1
        assert found is least
        return found

    with patch.object(LeastLoaded, "choose", checked):
        for seed in range(8):
            params = EngineParams(kv_blocks=40, block_size=4, max_num_seqs=8, **ENGINES[engine])
            workload = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed // 4])
            preempted += int(run(workload, params, LinearSteps(), replicas=6, router="least-loaded").preemptions.sum())
    assert chosen > 300
    assert looked < 6 * chosen
    assert preempted > 0 or engine == "sglang"  # it keeps room for what its requests will generate


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
@pytest.mark.parametrize("router", ["least-loaded", "session-affinity"])
def test_what_is_in_the_front_end_counts_as_load(router: str, semantics: str) -> None:
    """28 requests at once: seven to each replica, and a 5 ms front end delays every one of them by just that."""
    n = 28
    tree = PrefixTree(parent=np.array([-1]), end=np.array([0]), layer=np.array([0]))
    workload = Workload(tree, np.zeros(n), np.full(n, 8000), np.full(n, 200), leaf=np.zeros(n, np.int32))
    ttft_s = {}
    for frontend_s in (0.0, 0.005):
        params = EngineParams(kv_blocks=60_000, frontend_s=frontend_s, semantics=semantics)
        recording = run(workload, params, LinearSteps(), replicas=4, router=router)
        assert np.bincount(recording.replica).tolist() == [7, 7, 7, 7]
        ttft_s[frontend_s] = recording.first_token_s - recording.arrival_s
    assert ttft_s[0.005] == pytest.approx(ttft_s[0.0] + 0.005)


def test_a_session_stays_where_it_began() -> None:
    """Later turns go to the first one's replica, the first to the least loaded, and the history is hit there."""
    hits = {}
    for router in ("session-affinity", "round-robin"):
        hit = 0
        for seed in range(6):
            workload = random_workload(seed, closed=True, rate=50.0)
            recording = run(
                workload, EngineParams(kv_blocks=400, block_size=4), LinearSteps(), replicas=3, router=router
            )
            session = workload.column("session_id")
            if router == "session-affinity":
                homes = {(int(s), int(r)) for s, r in zip(session, recording.replica, strict=True) if r >= 0}
                assert len(homes) == len({s for s, _ in homes}) > 3
                assert len({replica for _, replica in homes}) == 3
            hit += int(recording.hit_tokens.sum())
        hits[router] = hit
    assert hits["session-affinity"] > hits["round-robin"]


def test_without_sessions_affinity_is_least_loaded() -> None:
    workload = random_workload(3, rate=100.0)
    workload = replace(workload, session_id=None, after=None, delay_s=None, turn=None)
    params = EngineParams(kv_blocks=60, block_size=4, max_num_seqs=8)
    one, other = (
        run(workload, params, LinearSteps(), replicas=4, router=router)
        for router in ("session-affinity", "least-loaded")
    )
    assert one.replica.tolist() == other.replica.tolist()
    assert len(set(one.replica.tolist())) == 4


# -- routers of a user's own -------------------------------------------------------------------------------------------

WRONG = {
    "init": (
        "    def __init__(self, rng, workload):\n        raise KeyError('x')",
        "__init__: raised KeyError: 'x' (own_router.py, line 5)",
    ),
    "no super": (
        "    def __init__(self, rng, workload):\n        pass",
        "__init__: expected it to call super().__init__(rng, workload)",
    ),
    "no choose": ("    pass", "choose: raised NotImplementedError: every router has its own"),
    "nothing": (
        "    def choose(self, request, replicas):\n        pass",
        "choose: returned None, expected one of its replicas, each of which takes requests",
    ),
    "a number": (
        "    def choose(self, request, replicas):\n        return 0",
        "choose: returned 0, expected one of its replicas",
    ),
    "a copy": (
        "    def choose(self, request, replicas):\n        import copy\n        return copy.copy(replicas[0])",
        "choose: returned replica 0 (up), expected one of its replicas",
    ),
    "one that is down": (
        "    first = None\n    def choose(self, request, replicas):\n        self.first = self.first or replicas[0]\n"
        "        return self.first",
        "choose: returned replica 0 (down), expected one of its replicas",
    ),
    "arity": ("    def choose(self, request):\n        return 0", "choose: "),
    "too far": (
        "    def choose(self, request, replicas):\n        return replicas[9]",
        "choose: raised IndexError: tuple index out of range (own_router.py, line 5)",
    ),
    "exit": (
        "    def choose(self, request, replicas):\n        import sys\n        sys.exit(0)",
        "choose: raised SystemExit: 0 (own_router.py, line 6)",
    ),
    "finished": (
        "    def choose(self, request, replicas):\n        return replicas[0]\n"
        "    def finished(self, request, replica):\n        raise RuntimeError('two\\nlines')",
        "finished: raised RuntimeError: two lines (own_router.py, line 7)",
    ),
    "resized": (
        "    def choose(self, request, replicas):\n        return replicas[0]\n"
        "    def resized(self, replicas):\n        replicas.sort()",
        "resized: raised AttributeError: 'tuple' object has no attribute 'sort' (own_router.py, line 7)",
    ),
}


class ByLength(Router):
    """Prompts above 30 tokens go to the last replica, the others to any of the rest."""

    def choose(self, request, replicas):
        if self.workload.prompt_tokens[request] > 30 or len(replicas) == 1:
            return replicas[-1]
        return replicas[int(self.rng.integers(len(replicas) - 1))]


class Turns(Router):
    """Round-robin, counted anew."""

    count = 0

    def choose(self, request, replicas):
        self.count += 1
        return replicas[(self.count - 1) % len(replicas)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a router Mine whose class body is given, and forgets it after the test."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(body: str) -> str:
        (tmp_path / "own_router.py").write_text(f"from kvcast import Router\n\nclass Mine(Router):\n{body}\n")
        return "own_router:Mine"

    yield write
    sys.modules.pop("own_router", None)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_names_the_class_and_the_method(own, wrong: str) -> None:
    body, line = WRONG[wrong]
    with pytest.raises(InputError) as error:
        run(
            random_workload(5),
            EngineParams(kv_blocks=400, block_size=4),
            LinearSteps(),
            replicas=2,
            router=own(body),
            processes=[at((0.5, fails(0)), (0.9, starts(0)))],
        )
    assert str(error.value).startswith(f"cluster.router Mine: {line}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("router", "says"),
    [
        ("least-load", f"expected one of {', '.join(ROUTERS)}, or module:Class for your own (did"),
        ("no_such:Router", "No module named 'no_such'; expected module:Class that Python can import"),
        ("tests.worlds:LinearSteps", "expected a class derived from sim.fleet.routers.Router"),
        (LinearSteps, "expected a name, module:Class, or a class derived from sim.fleet.routers.Router"),
        (type("Inside", (Router,), {"__qualname__": "f.<locals>.Inside"}), "a class made inside a function"),
    ],
)
def test_what_is_no_router_is_one_line(router, says: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(InputError) as error:
        find(router)
    assert str(error.value).startswith("[cluster] router = ")
    assert says in str(error.value)
    if isinstance(router, str):
        assert main(["run", "examples/demo.toml", "--set", f"cluster.router={router}"]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_an_own_router_sees_the_workload_and_draws_from_the_routing_stream(semantics: str) -> None:
    work = random_workload(3, rate=100.0)
    params = EngineParams(kv_blocks=400, block_size=4, semantics=semantics)
    one, again, other = (
        run(work, params, LinearSteps(), replicas=4, router=f"{__name__}:ByLength", seed=seed) for seed in (0, 0, 1)
    )
    long = (work.prompt_tokens > 30) & (one.replica >= 0)
    assert set(one.replica[long]) == {3}
    assert set(one.replica[~long & (one.replica >= 0)]) == {0, 1, 2}
    assert one.replica.tolist() == again.replica.tolist() != other.replica.tolist()


def test_an_own_router_is_taken_wherever_a_name_is(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """simulate, run, compare and sweep; a class stands for its name, and the name is in files."""
    name = f"{__name__}:Turns"
    assert ClusterConfig(router=Turns) == ClusterConfig(router=name)
    assert [name_of(kind) for kind in ROUTERS.values()] == list(ROUTERS)
    sets = ["workload.duration_s=10", "run.warmup_s=0", "cluster.replicas=2", "engine.kv_blocks=4000"]
    scenario = load_scenario("examples/demo.toml", sets)
    mine, known = (
        simulate(replace(scenario, cluster=replace(scenario.cluster, router=router)))
        for router in (Turns, "round-robin")
    )
    assert mine.summary == known.summary
    assert mine.requests["replica"].tolist() == known.requests["replica"].tolist()
    done = sweep(scenario, {"cluster.router": [Turns, "round-robin"]}, tmp_path / "s")
    assert done.table["cluster.router"].tolist() == [name, "round-robin"]
    assert len(set(done.table["mean_ttft_ms"].tolist())) == 1
    flags = [word for one in sets for word in ("--set", one)]
    assert main(["compare", "examples/demo.toml", *flags, "--vary", f"cluster.router=round-robin,{name}"]) == 0
    assert name in capsys.readouterr().out
    assert main(["run", "examples/demo.toml", *flags, "--set", f"cluster.router={name}", "--no-baseline"]) == 0
    assert f"2 replicas, {name}" in capsys.readouterr().out
    assert drawn(replace(scenario, cluster=ClusterConfig(router=name)), lambda seed: random_workload(0))


def test_help_and_docs_say_what_each_class_says() -> None:
    page = (Path(__file__).parent.parent / "docs" / "fleet.md").read_text()
    help = next(f for f in fields(ClusterConfig) if f.name == "router").metadata["help"]
    assert list(meanings()) == list(ROUTERS)
    for name, what in meanings().items():
        assert f"| `{name}` | {what} |" in page, f"docs/fleet.md: expected the row | `{name}` | {what} |"
        assert f"{name}: {what[0].lower()}{what[1:-1]}; " in help
