"""Eviction policies in the engine: runs against single blocks, stepping, the books, and faults that must be noticed.

python -m pytest tests/test_policy_runs.py
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.kvcache.leaf_first import Visit, leaf_first, serve
from sim.kvcache.policies import POLICIES, Run, World, make
from sim.kvcache.policies.arc import Arc
from sim.kvcache.policies.by_class import Quota
from sim.kvcache.policies.by_key import Gdsf, Lfu, Tlru
from sim.kvcache.policies.ghosts import Ghosts
from sim.kvcache.policies.s3fifo import S3Fifo
from sim.kvcache.policies.sieve import Sieve
from sim.kvcache.ranked import Node, RankedCache
from sim.recording import Recording
from sim.scenario import EngineParams
from sim.simulate import run
from tests import fuzz, fuzz_policies, reference_cache
from tests import test_policies as small_worlds
from tests.fuzz import unequal
from tests.fuzz_policies import SINGLE, by_blocks, nodes_alone
from tests.worlds import LinearSteps, UnitSteps, random_workload
from workloads.columns import Workload
from workloads.readers import read

# ---- runs against single blocks, and runs of the engine
# -----------------------------------------------------------------


def mixed(seed: int, closed: bool = False, longest: int = 60, n: int = 60) -> Workload:
    """A random workload with classes and tenants."""
    rng = np.random.default_rng(seed)
    workload = random_workload(seed, n=n, closed=closed, longest=longest)
    return dataclasses.replace(
        workload,
        class_id=rng.integers(0, 3, n).astype(np.int16),
        tenant_id=rng.integers(0, 3, n).astype(np.int32),
        class_names=("a", "b", "c"),
        class_slo=("", "", ""),
        tenant_names=("x", "y", "z"),
    )


PARAMS = {
    "ttl": {"ttl_s": 0.7, "classes": {"b": 2.5}},
    "tlru": {"threshold_tokens": 40, "next_prompt_tokens": 10},
    "gdsf": {"depth_tokens": 50.0},
}
"""So that these tiny worlds reach what the policy is about."""


@pytest.mark.parametrize("policy", SINGLE)
def test_runs_are_single_blocks(policy: str) -> None:
    evicted = 0
    for seed in range(12):
        block = (1, 2, 4, 5)[seed % 4]
        workload = mixed(seed, longest=80)
        capacity = (200, 330, 500, 800)[seed // 4] // block
        whole = leaf_first(workload, policy, capacity, block, PARAMS.get(policy))
        with nodes_alone():
            single = leaf_first(by_blocks(workload, block), policy, capacity, block, PARAMS.get(policy))
        assert whole.depth_blocks.tolist() == single.depth_blocks.tolist(), seed
        evicted += whole.hit_blocks < leaf_first(workload, "lru", None, block).hit_blocks
    assert evicted > 6


def test_random_cases() -> None:
    """A short `python -m tests.fuzz_policies`."""
    for index in range(180):
        policy = list(POLICIES)[index % len(POLICIES)]
        assert fuzz_policies.difference(policy, 3, index)[0] == "", (policy, index)


def engine(policy: str, **more: object) -> EngineParams:
    return EngineParams(block_size=4, policy=policy, policy_params=PARAMS.get(policy, {}), **({"kv_blocks": 60} | more))


def same(a: Recording, b: Recording) -> None:
    for name in ("hit_tokens", "admit_s", "first_token_s", "finish_s", "preemptions", "readmission_hit_tokens"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.evicted_blocks == b.evicted_blocks


@pytest.mark.parametrize("policy", SINGLE)
def test_runs_are_single_blocks_under_load(policy: str) -> None:
    """The engine on both trees: pins, chunks, preemptions, generated blocks."""
    for seed in range(4):
        workload = mixed(seed, closed=seed % 2 == 1)
        params = engine(policy, max_num_seqs=8, max_num_batched_tokens=64)
        whole = run(workload, params, LinearSteps())
        with nodes_alone():
            single = run(by_blocks(workload, 4), params, LinearSteps())
        same(whole, single)
        assert whole.evicted_blocks > 50


@pytest.mark.parametrize("policy", POLICIES)
def test_fast_forward_is_stepping(policy: str) -> None:
    for seed in range(4):
        workload = mixed(100 + seed, closed=seed % 2 == 0)
        params = engine(policy, max_num_seqs=8)
        stepped, forwarded = (run(workload, params, LinearSteps(), replicas=2, fast_forward=f) for f in (False, True))
        assert next(unequal(stepped, forwarded), "") == ""


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("ttl", "workload", "random")])
def test_one_request_at_a_time_is_the_replay(policy: str) -> None:
    """The engine with one running sequence, and the leaf-first replay (which has another clock and random stream)."""
    workload = dataclasses.replace(mixed(7), arrival_s=np.arange(60.0) * 100)
    timed = run(workload, engine(policy, max_num_seqs=1), UnitSteps())
    replayed = leaf_first(workload, policy, 60, 4, PARAMS.get(policy))
    assert timed.hit_tokens.tolist() == (replayed.depth_blocks * 4).tolist()
    assert timed.evicted_blocks > 50


class SteepGdsf(Gdsf):
    """The second block is half as dear again as the first, and so on."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.per_block = 0.5


@pytest.mark.parametrize("policy", ["sim.kvcache.policies.by_key:Lru", "fifo", "mru", "filo", "slru", "lruk", "gdsf"])
def test_key_policies_equal_the_reference(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random cases, timed and not, against a cache of single blocks that scans all of them (lfu:
    tests/test_fuzz.py)."""
    monkeypatch.setitem(POLICIES, "gdsf", SteepGdsf)
    monkeypatch.setattr(reference_cache, "BLOCK_COST", 0.5)
    done, _, failing = fuzz.fuzz(6_000, seed=1, policies=(policy,))
    assert failing is None, fuzz.first_difference(failing)
    assert done >= 6_000


def test_a_stretch_cut_short_does_not_move_the_clock() -> None:
    """Random case 1/4, shrunk: a run ended at the time a stretch would have ended had nobody arrived."""
    requests = [
        {"id": 0, "arrival_step": 0, "priority": 0, "segments": [["s", 1, 11]], "max_tokens": 6},
        {"id": 1, "arrival_step": 1, "priority": 0, "segments": [["s", 1, 11], ["o", 0, 3]], "max_tokens": 1},
    ]
    config = {
        "max_num_seqs": 64,
        "policy": "fcfs",
        "block_size": 1,
        "num_blocks": 16,
        "max_model_len": 1000,
        "max_num_batched_tokens": 2048,
        "cache_policy": "fifo",
    }
    assert (
        fuzz.first_difference(
            {"case": "a cut", "engine": "vllm", "timed": True, "config": config, "requests": requests}
        )
        == ""
    )


# ---- the books, and faults that must be noticed
# ------------------------------------------------------------------------


COUNTED = {
    "s3fifo": lambda state: None if state[1] is None else state[0],
    "wtinylfu": lambda state: None if state[1] is None else state[0],
    "arc": lambda state: state[0] if state[1] else None,
    "quota": lambda state: state[0] if state[1] else None,
}
"""The segment a block's state says it counts in, None before its first release."""


@pytest.mark.parametrize("policy", COUNTED)
def test_segments_count_the_blocks_they_hold(policy: str) -> None:
    workload = mixed(3, n=120)
    replicas: list = []
    run(workload, engine(policy), LinearSteps(), horizon_s=4.0, on_end=replicas.extend)
    cache = replicas[0].scheduler.cache
    cache.check()
    held: Counter = Counter()
    for node in cache.nodes.values():
        for piece in node.runs:
            held[COUNTED[policy](piece.state)] += len(piece)
    assert held.total() > 20
    assert list(cache.policy.blocks) == [held[segment] for segment in range(len(cache.policy.blocks))]


def test_nothing_grows_with_the_number_of_requests() -> None:
    """20,000 requests for a few objects: heaps, names of evicted blocks and counts stay as small as what they
    describe."""
    trace = small_worlds.TRACES["zipf"]()
    for policy in ("lfu", "s3fifo", "arc", "wtinylfu"):
        cache = small_worlds.objects(make(policy, World(small_worlds.ONE, 400, 1)), 400)
        for obj in trace:
            serve(cache, Visit(0, [(obj % 450, 1)]), 1, 1)
        assert sum(map(len, cache._heaps.values())) < 4000
        for ghosts in [cache.policy.ghosts] if policy == "s3fifo" else cache.policy.ghosts if policy == "arc" else []:
            held = [hi - lo for pieces in ghosts._by_node.values() for _, intervals in pieces for lo, hi in intervals]
            assert sum(held) == ghosts.blocks <= 450
            assert len(ghosts._queue) < 3000


def test_names_are_forgotten_by_age() -> None:
    """Blocks 5 to 9 of an eviction came back; 8 and 9 are evicted again, and are younger than all that was left."""
    ghosts = Ghosts()
    ghosts.add(1, 0, 20)
    assert ghosts.take(1, 5, 10) == [(5, 10)]
    ghosts.add(1, 8, 10)
    left = []
    while ghosts.blocks:
        ghosts.trim(ghosts.blocks - 1)
        left.append(ghosts.blocks)
    assert left == list(range(16, -1, -1))
    ghosts = Ghosts()
    ghosts.add(1, 0, 20)
    ghosts.take(1, 5, 10)
    ghosts.add(1, 8, 10)
    ghosts.trim(2)
    assert ghosts.take(1, 0, 20) == [(8, 10)]
    assert not ghosts.blocks
    assert not ghosts._by_node


def test_a_turn_visits_no_turn_before_it() -> None:
    """What a turn of a session does to its runs does not grow with the turns before, each of another history."""

    class Counting(list):
        """Runs of a node; how often one was looked at."""

        looked = 0

        def __getitem__(self, at: Any) -> Any:
            Counting.looked += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator:
            Counting.looked += len(self)
            return super().__iter__()

    for policy in ("fifo", "filo", "lfu", "slru", "s3fifo", "sieve", "quota", "lru", "mru"):
        cache = small_worlds.objects(make(policy, World(small_worlds.ONE, 4000, 1)), 4000)
        looked = []
        for turn in range(1, 1201):
            Counting.looked = 0
            serve(cache, Visit(0, [(7, 3 * turn)]), 3 * turn, 3 * turn - 1)
            node = cache.nodes[7]
            node.runs = Counting(node.runs) if turn == 1 else node.runs
            looked.append(Counting.looked)
        assert max(looked[-100:]) <= max(looked[100:200]) + 20, policy  # a search halves what it searches
        assert node.hi == 3600
        cache.check()


def golden(policy: str) -> None:
    for trace in small_worlds.TRACES:
        small_worlds.test_misses_of_libcachesim(policy, trace)


FAULTS = {
    "a counter that never moves": (Lfu, "on_hit", lambda self, run, request: None, lambda: golden("lfu")),
    "a wrong tie": (Lfu, "key", lambda self, run: (run.state, -run.released), lambda: golden("lfu")),
    "a queue that remembers nothing": (Ghosts, "add", lambda self, node_id, lo, hi: None, lambda: golden("s3fifo")),
    "names that are never forgotten": (Ghosts, "trim", lambda self, capacity: None, lambda: golden("s3fifo")),
    "no second chance": (Sieve, "second_chance", lambda self, run: False, lambda: golden("sieve")),
    "a border that never moves": (
        Arc,
        "on_admit",
        lambda self, request: self.recall(request, *self.ghosts),
        lambda: golden("arc"),
    ),
    "a share tested once a visit": (
        S3Fifo,
        "span",
        lambda self, run: len(run),
        lambda: test_runs_are_single_blocks("s3fifo"),
    ),
    "a quota tested once a visit": (
        Quota,
        "span",
        lambda self, run: len(run),
        lambda: test_runs_are_single_blocks("quota"),
    ),
    "a second chance for one run alone": (
        RankedCache,
        "_chain",
        staticmethod(lambda leaf: leaf.runs[-1:]),
        lambda: test_runs_are_single_blocks("sieve"),
    ),
    "a tail taken beyond what is safe": (
        Tlru,
        "span",
        lambda self, run: len(run),
        lambda: test_runs_are_single_blocks("tlru"),
    ),
    "runs joined whatever their state": (
        RankedCache,
        "_join",
        staticmethod(lambda node: _join_all(node)),
        lambda: test_runs_are_single_blocks("lruk"),
    ),
    "a leaf joined whatever its state": (
        RankedCache,
        "_deepest",
        lambda self, node: _join_idle(self, node),
        lambda: test_runs_are_single_blocks("lfu"),
    ),
    "hits that are not handed on": (
        RankedCache,
        "told",
        lambda self, node, i: _keep_hits(self, node, i),
        lambda: test_runs_are_single_blocks("lfu"),
    ),
    "a release that is not handed on": (
        RankedCache,
        "told",
        lambda self, node, i: _keep_release(self, node, i),
        lambda: test_runs_are_single_blocks_under_load("lfu"),
    ),
    "a cut that halves what ends there": (
        Node,
        "ending",
        lambda self, at: _cut_shallow(self, at),
        lambda: test_runs_are_single_blocks_under_load("lfu"),
    ),
    "a parent that is no leaf when its child goes": (
        RankedCache,
        "_trim",
        lambda self, node, run: _trim_no_parent(self, node, run),
        lambda: test_runs_are_single_blocks("fifo"),
    ),
    "a clock that stands still": (
        RankedCache,
        "release",
        lambda self, request: _release_at_zero(self, request),
        small_worlds.test_ttl_evicts_what_expired_first,
    ),
    "nobody above the quota": (
        Quota,
        "victim",
        lambda self, heads: min(heads, key=heads.__getitem__),
        small_worlds.test_quota_takes_from_the_tenant_above_its_share,
    ),
}
"""What is wrong -> (class, method, the faulty method, the test that must fail)."""


def _join_all(node: object) -> None:
    runs = node.runs  # type: ignore[attr-defined]
    for i in range(len(runs) - 1, 0, -1):
        if runs[i - 1].hi not in node.pins:
            runs[i - 1].hi = runs[i].hi
            del runs[i]


def _join_idle(cache: RankedCache, node: Node) -> Run:
    while len(node.runs) > 1 and node.runs[-2].lo >= node.pinned:
        node.runs[-2].hi = node.runs.pop().hi
    return cache.told(node, len(node.runs) - 1)


_told, _ending = RankedCache.told, Node.ending


def _keep_hits(cache: RankedCache, node: Node, i: int) -> Run:
    before = node.runs[i - 1].uncounted
    told = _told(cache, node, i)
    node.runs[i - 1].uncounted = before if i else 0
    return told


def _keep_release(cache: RankedCache, node: Node, i: int) -> Run:
    before = node.runs[i - 1].released
    told = _told(cache, node, i)
    node.runs[i - 1].released = before
    return told


def _cut_shallow(node: Node, at: int) -> int:
    """The deep half loses the hits that ended at its end."""
    i = _ending(node, at)
    if i + 1 < len(node.runs) and node.runs[i + 1].lo == at:
        node.runs[i].uncounted += node.runs[i + 1].uncounted
        node.runs[i + 1].uncounted = 0
    return i


def _trim_no_parent(cache: RankedCache, node: object, run: Run) -> None:
    if run.hi == run.lo:
        node.runs.pop()  # type: ignore[attr-defined]
    if node.runs:  # type: ignore[attr-defined]
        cache._offer(node)  # type: ignore[arg-type]


_release = RankedCache.release


def _release_at_zero(cache: RankedCache, request: Visit) -> None:
    cache.now_s = 0.0
    _release(cache, request)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name, faulty, test = FAULTS[fault]
    monkeypatch.setattr(kind, name, faulty)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        test()


def test_mooncake(data_dir: Path) -> None:
    """The whole conversation trace at block 16, answers entered."""
    workload = read(str(data_dir / "traces" / "mooncake" / "conversation_trace.jsonl"), "mooncake")
    expected = {
        "lru": (0.1451, 0.3342),
        "fifo": (0.1451, 0.3342),
        "lfu": (0.1018, 0.2869),
        "slru": (0.1018, 0.2869),
        "sieve": (0.1018, 0.2869),
        "s3fifo": (0.1606, 0.3236),
    }
    found = {
        p: tuple(round(leaf_first(workload, p, c, 16).hit_ratio_tokens, 4) for c in (200_000, 1_000_000))
        for p in expected
    }
    assert found == expected
    library = [
        round(leaf_first(workload, "s3fifo", c, 16, {"start_up": "libcachesim"}).hit_ratio_tokens, 4)
        for c in (200_000, 1_000_000)
    ]
    assert library == [0.1638, 0.2577]
