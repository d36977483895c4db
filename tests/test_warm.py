"""A run that begins with a saved cache serves its arrivals as the run over everything does, and refuses another world's
cache."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from kvcast.cli import main
from sim.fleet.warm import saved
from sim.kvcache.policies import POLICIES, Policy, World
from sim.scenario import EngineParams, TierParams
from sim.simulate import run
from tests.worlds import LinearSteps, random_workload
from workloads.columns import Workload

GAP_S = 1000.0


def two_parts(seed: int, n: int = 80, closed: bool = False) -> tuple[Workload, np.ndarray]:
    """A workload with a long silence in the middle, and which requests come after it."""
    workload = random_workload(seed, n=n, closed=closed)
    root = np.arange(n)
    after = workload.column("after")
    for r in range(n):
        if after[r] >= 0:
            root[r] = root[after[r]]
    late = workload.arrival_s > np.nanmedian(workload.arrival_s)
    return replace(workload, arrival_s=workload.arrival_s + GAP_S * late), late[root]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("kv_blocks", [40, 80, 400])
def test_saving_and_going_on_is_one_run(replicas, closed, kv_blocks):
    params = EngineParams(kv_blocks=kv_blocks, block_size=4, max_num_seqs=8, max_num_batched_tokens=64)
    evicted = 0
    for seed in range(6):
        workload, late = two_parts(seed, closed=closed)
        whole = run(workload, params, LinearSteps(), replicas=replicas)
        states = []
        first = run(
            workload,
            params,
            LinearSteps(),
            replicas=replicas,
            until_arrival_s=GAP_S - 1,
            on_end=lambda r, kept=states: kept.append(saved(r, GAP_S - 1)),
        )
        second = run(workload, params, LinearSteps(), replicas=replicas, warm=states[0])
        for name in (
            "hit_tokens",
            "ceiling_replica_tokens",
            "ceiling_fleet_tokens",
            "replica",
            "status",
            "preemptions",
        ):
            np.testing.assert_array_equal(
                getattr(second, name)[late], getattr(whole, name)[late], err_msg=f"{seed} {name}"
            )
            np.testing.assert_array_equal(
                getattr(first, name)[~late], getattr(whole, name)[~late], err_msg=f"{seed} {name}"
            )
        np.testing.assert_array_equal(second.finish_s[late], whole.finish_s[late])
        assert first.evicted_blocks + second.evicted_blocks == whole.evicted_blocks
        evicted += second.evicted_blocks
        cold = run(workload, params, LinearSteps(), replicas=replicas, warm=saved_empty(states[0]))
        if kv_blocks == 400 and not closed:
            assert cold.hit_tokens[late].sum() < second.hit_tokens[late].sum()  # it matters what it began with
    assert evicted > 0 or kv_blocks == 400


def saved_empty(state):
    return replace(state, runs=state.runs[:0], seen=state.seen[:0])


class Remembers(Policy):
    """A user's own, with a memory of plain values: what it evicted goes later when it comes back."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.gone: dict[tuple[int, int], int] = {}

    def on_insert(self, run, request) -> None:
        run.state = self.gone.get((run.node_id, run.lo), 0)

    def on_evict(self, run, n: int) -> None:
        for block in range(run.hi - n, run.hi):
            self.gone[run.node_id, block] = self.gone.get((run.node_id, block), 0) + 1

    def split(self, node_id: int, lo: int, hi: int, request) -> int:
        return lo + 1

    def key(self, run):
        return run.state, run.released


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
@pytest.mark.parametrize("policy", [*POLICIES, "tests.test_warm:Remembers", "sim.kvcache.policies.by_key:Lfu"])
def test_every_policy_goes_on_as_if_nothing_had_happened(policy, semantics):
    """Closed loops on two replicas, through a file's bytes: every admission, hit and time of the second part."""
    evicted = 0
    for seed in range(5):
        rng = random.Random(seed)
        blocks, page = (rng.choice([40, 60, 100]), 4) if semantics == "vllm" else (rng.choice([60, 80, 120]), 4)
        params = EngineParams(
            kv_blocks=blocks,
            block_size=page,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            policy=policy,
            semantics=semantics,
            chunked_prefill_size=rng.choice([32, 64]),
            schedule_policy=rng.choice(["fcfs", "lpm", "lof"]),
            schedule_conservativeness=0.3,
        )
        workload, late = two_parts(seed, closed=seed % 2 == 0)
        options = {"replicas": 2, "seed": seed}
        whole = run(workload, params, LinearSteps(), **options)
        states = []
        first = run(
            workload,
            params,
            LinearSteps(),
            **options,
            until_arrival_s=GAP_S - 1,
            on_end=lambda r, kept=states: kept.append(saved(r, GAP_S - 1)),
        )
        second = run(workload, params, LinearSteps(), **options, warm=states[0])
        for name in (
            "hit_tokens",
            "ceiling_replica_tokens",
            "ceiling_fleet_tokens",
            "replica",
            "status",
            "preemptions",
            "admit_s",
            "finish_s",
        ):
            np.testing.assert_array_equal(
                getattr(second, name)[late], getattr(whole, name)[late], err_msg=f"{seed} {name}"
            )
        assert first.evicted_blocks + second.evicted_blocks == whole.evicted_blocks
        evicted += second.evicted_blocks
    assert evicted > 100


def test_the_restored_cache_is_sound():
    params = EngineParams(kv_blocks=60, block_size=2, max_num_seqs=8, max_num_batched_tokens=64)
    workload, _ = two_parts(3)
    states, again = [], []
    run(workload, params, LinearSteps(), until_arrival_s=500, on_end=lambda r: states.append(saved(r, 500)))
    run(
        workload,
        params,
        LinearSteps(),
        until_arrival_s=501,
        warm=states[0],
        on_end=lambda r: (r[0].scheduler.cache.check(), again.append(saved(r, 500))),
    )
    np.testing.assert_array_equal(
        np.sort(states[0].runs, axis=0), np.sort(again[0].runs, axis=0)
    )  # nothing arrived: it comes back as it was


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "mru", "tlru", "s3fifo", "arc", "wtinylfu", "random"])
def test_what_is_restored_is_saved_again_to_the_last_bit(policy, semantics):
    """Nothing arrives in between: nodes, states, counters, SGLang's clock, reserve and passes."""
    params = EngineParams(
        kv_blocks=60,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        policy=policy,
        semantics=semantics,
        chunked_prefill_size=32,
    )
    workload, _ = two_parts(3)
    states = []
    run(workload, params, LinearSteps(), until_arrival_s=500, on_end=lambda r: states.append(saved(r, 500)))
    run(
        workload,
        params,
        LinearSteps(),
        until_arrival_s=501,
        warm=states[0],
        on_end=lambda r: states.append(saved(r, 500)),
    )
    for name in ("seen", "trees"):
        np.testing.assert_array_equal(getattr(states[1], name), getattr(states[0], name))
    if semantics == "sglang":
        (kept,) = json.loads(states[0].trees.tobytes())
        assert kept["passes" if policy == "lru" else "clock"] > 10
        assert kept["ratio"] != [0.7, 0]


class Opaque(Policy):
    """Keeps what no file can hold."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.memory = object()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"policy": "clairvoyant"}, "no cache that can be saved"),
        ({"caching": False}, "no cache that can be saved"),
        ({"policy": "tests.test_warm:Opaque"}, "policy Opaque keeps object in memory, which cannot be saved"),
        ({"tiers": (TierParams("dram", 50, 1e9),)}, "tiers below it cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused(change, expected):
    workload, _ = two_parts(1)
    params = EngineParams(kv_blocks=60, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, **change)
    with pytest.raises(ValueError, match=expected):
        run(workload, params, LinearSteps(), on_end=lambda r: saved(r, 1.0))


@pytest.mark.parametrize("change", [{}, {"policy": "lfu"}, {"semantics": "sglang"}])
def test_running_requests_are_refused(change):
    workload, _ = two_parts(1)
    params = EngineParams(kv_blocks=60, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, **change)
    with pytest.raises(ValueError, match="still running"):
        run(workload, params, LinearSteps(), horizon_s=0.5, on_end=lambda r: saved(r, 1.0))


# -- the command line --------------------------------------------------------------------------------------------------

TRACE = """
[workload]
trace = "trace.jsonl"
format = "mooncake"
[engine]
kv_blocks = 700
"""


@pytest.fixture
def scenario(tmp_path):
    """Half of the requests come in the first minute, half after ten: a first part that is long over."""
    rng = np.random.default_rng(4)
    rows = []
    for i in range(200):
        at_ms = int(i * 500 + (600_000 if i >= 100 else 0))
        rows.append(
            {
                "timestamp": at_ms,
                "input_length": 1024,
                "output_length": 20,
                "hash_ids": [int(rng.integers(6)), 1000 + i],
            }
        )
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "s.toml"
    path.write_text(TRACE)
    return path


@pytest.mark.parametrize(
    "more", [[], ["cache.policy=arc"], ["engine.semantics=sglang"], ["engine.semantics=sglang", "cache.policy=s3fifo"]]
)
def test_the_command_saves_and_goes_on(scenario, tmp_path, capsys, more):
    cache, run_of = (
        str(tmp_path / "warm.npz"),
        ["run", str(scenario), "--no-baseline", "--json", *(word for key in more for word in ("--set", key))],
    )
    assert main([*run_of, "--set", "run.warmup_s=300"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main([*run_of, "--set", "run.duration_s=300", "--save-cache", cache]) == 0
    capsys.readouterr()
    assert main([*run_of, "--warm-cache", cache]) == 0
    warm = json.loads(capsys.readouterr().out)
    assert warm["arrived"] == whole["arrived"] == 100
    for key in ("prefix_hit_tokens", "mean_ttft_ms", "p99_ttft_ms", "gpu_hours", "stable"):
        assert warm[key] == whole[key], key
    assert any("begun with the cache of warm.npz" in note for note in warm["notes"])


def test_a_cache_with_tiers_is_refused_before_its_run(scenario, tmp_path, capsys):
    tier = 'cache.tiers=[{ name = "host", bandwidth_gb_per_s = 50.0, capacity_gib = 1.0 }]'
    asked = ["run", str(scenario), "--set", "run.duration_s=300", "--set", tier]
    assert main([*asked, "--save-cache", str(tmp_path / "warm.npz")]) == 2
    (line,) = (one for one in capsys.readouterr().err.splitlines() if "--save-cache" in one)
    assert "a cache with tiers below it cannot be saved; expected no cache.tiers" in line
    assert not list(tmp_path.glob("*.npz"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("engine.kv_blocks=701", "other kv blocks 700, here 701"),
        ("engine.block_size=32", "other block size"),
        ("cluster.replicas=2", "other replicas"),
        ("cache.policy=lfu", "other policy"),
        ("engine.semantics=sglang", "other semantics"),
        ("workload.requests=150", "other requests; expected the same"),
        ("cache.enabled=false", "other caching"),
    ],
)
def test_another_world_is_refused(scenario, tmp_path, capsys, changed, expected):
    cache = str(tmp_path / "warm.npz")
    assert main(["run", str(scenario), "--no-baseline", "--set", "run.duration_s=300", "--save-cache", cache]) == 0
    assert main(["run", str(scenario), "--set", changed, "--warm-cache", cache]) == 2
    assert expected in capsys.readouterr().err


def test_a_mix_that_its_window_cuts_says_so(tmp_path, capsys):
    """Without a length of its own a mix is as long as the run that saved: other requests than those of a longer one."""
    mix, cache = tmp_path / "s.toml", str(tmp_path / "warm.npz")
    mix.write_text('[workload]\npreset = "demo"\n[run]\nwarmup_s = 5\nduration_s = 30\n[hardware]\ngpu = "h200"\n')
    assert main(["run", str(mix), "--no-baseline", "--set", "run.duration_s=20", "--save-cache", cache]) == 0
    assert main(["run", str(mix), "--warm-cache", cache]) == 2
    assert "which in a mix without [workload] duration_s and requests run.duration_s decides" in capsys.readouterr().err


def test_files_that_are_no_saved_cache_are_refused_and_kept(scenario, tmp_path, capsys):
    other = tmp_path / "other.npz"
    other.write_text("mine")
    assert main(["run", str(scenario), "--warm-cache", str(other)]) == 2
    assert "not a saved cache" in capsys.readouterr().err
    assert main(["run", str(scenario), "--set", "run.duration_s=300", "--save-cache", str(other)]) == 2
    assert other.read_text() == "mine"
    capsys.readouterr()
    assert main(["run", str(scenario), "--save-cache", str(tmp_path / "w.npz")]) == 2
    assert "run.duration_s is not set" in capsys.readouterr().err
    assert (
        main(
            [
                "run",
                str(scenario),
                "--set",
                "cache.policy=clairvoyant",
                "--set",
                "run.duration_s=300",
                "--save-cache",
                str(tmp_path / "w.npz"),
            ]
        )
        == 2
    )
    assert "whose policy is clairvoyant" in capsys.readouterr().err
    assert not (tmp_path / "w.npz").exists()
