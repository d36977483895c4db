"""Policies that are not SGLang's own on SGLang's radix tree, and its T-LRU.

python -m pytest tests/test_sglang_policies.py
"""

from __future__ import annotations

import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.cli import main
from sim import engine, sglang
from sim.kvcache.policies import POLICIES, World
from sim.recording import Recording
from sim.scenario import EngineParams
from sim.sglang.node import tail_optimized
from sim.sglang.radix import RadixCache
from sim.sglang.ranked import RankedRadixCache
from sim.sglang.scheduler import SGLangScheduler
from sim.simulate import run
from tests.test_engine import same
from tests.worlds import LinearSteps, UnitSteps, random_workload
from workloads.columns import PrefixTree, Workload

CLASSES = [f"{found.__module__}:{found.__name__}" for found in POLICIES.values()]
"""Every policy by its class, so that none is taken for SGLang's own of that name."""


def sglang_params(rng: random.Random, policy: str) -> EngineParams:
    page = rng.choice([1, 4, 4, 16])
    return EngineParams(
        kv_blocks=rng.choice([160, 220, 400]) // page,
        block_size=page,
        semantics="sglang",
        policy=policy,
        chunked_prefill_size=rng.choice([0, 32, 64]),
        max_num_seqs=rng.choice([2, 5, 100]),
        schedule_policy=rng.choice(["fcfs", "fcfs", "lpm", "lof"]),
        schedule_conservativeness=rng.choice([0.05, 1.0]),
        step_overhead_s=rng.choice([0.0, 0.0017]),
    )


def scanned(self: RankedRadixCache) -> object:
    """The leaf the heaps give, after a look at every unlocked leaf of the tree."""
    leaves = [node for node in self.nodes() if not node.lock and not node.children]
    heads: dict = {}
    for leaf in leaves:
        run = self._as_run(leaf)
        group, key = self.policy.group(run), self.policy.key(run)
        heads[group] = min(heads.get(group, (key, leaf)), (key, leaf), key=lambda head: head[0])
    victim = self.policy.victim({group: key for group, (key, _) in heads.items()})
    node = chosen(self)
    assert node is heads[victim][1]
    return node


chosen, complete = RankedRadixCache._chosen, SGLangScheduler.complete


def checked(workload: Workload, params: EngineParams, **options) -> Recording:
    def completed(self: SGLangScheduler) -> list[int]:
        finished = complete(self)
        self.check()
        return finished

    with patch.object(SGLangScheduler, "complete", completed), patch.object(RankedRadixCache, "_chosen", scanned):
        return run(workload, params, LinearSteps(), **options)


@pytest.mark.parametrize("policy", CLASSES)
def test_the_victim_is_the_best_of_all_leaves_and_fast_forward_is_stepping(policy: str) -> None:
    evicted = retracted = 0
    for seed in range(12):
        rng = random.Random(seed)
        params = sglang_params(rng, policy)
        workload = random_workload(seed, n=50, closed=rng.random() < 0.5, rate=rng.choice([20.0, 200.0]))
        options = {"replicas": rng.choice([1, 1, 2]), "seed": seed}
        stepped = checked(workload, params, **options, fast_forward=False)
        same(stepped, checked(workload, params, **options))
        assert (stepped.hit_tokens <= stepped.ceiling_replica_tokens).all()
        evicted, retracted = evicted + stepped.evicted_blocks, retracted + int(stepped.preemptions.sum())
    assert evicted > 500
    assert retracted > 0


def single_pages(seed: int, n: int = 1500) -> Workload:
    """Skewed requests for one of 60 pages of 4 tokens, each with a fifth token of its own, one after the other."""
    rng = np.random.default_rng(seed)
    leaf = 1 + (rng.zipf(1.2, n) % 60)
    tree = PrefixTree(np.array([-1] + [0] * 60, np.int32), np.array([0] + [4] * 60), np.zeros(61, np.int16))
    classes = {
        "class_id": (leaf % 2).astype(np.int32),
        "class_names": ("a", "b"),
        "tenant_id": (leaf % 3).astype(np.int32),
        "tenant_names": ("x", "y", "z"),
    }
    return Workload(
        tree,
        np.arange(n) * 10.0,
        np.full(n, 5),
        np.full(n, 1),
        leaf.astype(np.int32),
        priority=rng.integers(0, 3, n).astype(np.int32),
        **classes,
    )


@pytest.mark.parametrize("policy", [*CLASSES, "tests.test_sglang_policies:Lifo"])
def test_on_single_pages_it_is_the_policy_of_the_block_cache(policy: str, monkeypatch) -> None:
    """Which equals libCacheSim's where that has it (tests/test_policies.py). SGLang asks for a page more than it takes,
    so it has one more."""
    workload = single_pages(3)
    monkeypatch.setattr(
        engine, "World", lambda w, capacity, size, rng: World(w, 20, size, rng)
    )  # shares of one capacity
    vllm = run(workload, EngineParams(kv_blocks=20, block_size=4, policy=policy), UnitSteps())
    radix = run(workload, EngineParams(kv_blocks=21, block_size=4, policy=policy, semantics="sglang"), UnitSteps())
    np.testing.assert_array_equal(radix.hit_tokens, vllm.hit_tokens)
    assert 0.1 < radix.hit_tokens.sum() / (4 * len(workload)) < 0.99
    assert radix.evicted_blocks > 100


class Lifo(POLICIES["filo"]):
    """A user's own."""


def test_a_planted_fault_is_noticed(monkeypatch) -> None:
    """A hit without a word to the policy."""
    with (
        patch.object(RankedRadixCache, "admit", lambda self, r: setattr(r, "admission", next(self._admissions))),
        pytest.raises(AssertionError),
    ):
        test_on_single_pages_it_is_the_policy_of_the_block_cache("sieve", monkeypatch)


# -- T-LRU as SGLang has it --------------------------------------------------------------------------------------------


def two_conversations(threshold_tokens: int, next_prompt_tokens: int = 0) -> list[tuple[int, int]]:
    """The older has 30 tokens in two leaves' lengths, the younger 10: (lo, hi) in the order they go."""
    cache = RadixCache(100, "tlru", 9, {}, rank=tail_optimized(1, threshold_tokens, next_prompt_tokens))
    older, younger = [(1, 10), (2, 30)], [(3, 10)]
    gone = []
    for path, whole in ((older, 10), (older, 30), (younger, 10)):
        before, node = cache.insert(path, whole, 0, 0)
        cache.blank -= whole - before
        cache.lock(node)
        cache.unlock(node)
    drop = cache._drop
    cache._drop = lambda leaf: (gone.append((leaf.lo, leaf.hi)), drop(leaf))[1]  # type: ignore[method-assign]
    cache.make_room(100)
    return gone


def test_tlru_takes_what_the_next_turn_can_do_without() -> None:
    """Of 30 tokens the first 30 + next - threshold are needed; a leaf that begins beyond goes first, by last access."""
    assert two_conversations(0) == [(10, 30), (0, 10), (0, 10)]  # everything is needed: LRU, leaf by leaf
    assert two_conversations(15) == [(0, 10), (10, 30), (0, 10)]  # 15 of the older are needed, nothing of the younger
    assert two_conversations(25) == [(10, 30), (0, 10), (0, 10)]  # 5 are: its tail is free, and older
    assert two_conversations(15, next_prompt_tokens=10) == [(10, 30), (0, 10), (0, 10)]  # 25, and 5 of the younger


def test_tlru_remembers_the_longest_insertion() -> None:
    """The tail is gone, and what is left is still needed for a conversation of 30 tokens: the younger one goes before
    it."""
    cache = RadixCache(100, "tlru", 9, {}, rank=tail_optimized(1, 25, 0))
    for path, whole in (([(1, 10), (2, 30)], 10), ([(1, 10), (2, 30)], 30), ([(3, 10)], 10)):
        before, node = cache.insert(path, whole, 0, 0)
        cache.blank -= whole - before
        cache.lock(node)
        cache.unlock(node)
    cache.make_room(80)
    assert [node.history for node in cache.nodes()] == [30, 10] or [node.history for node in cache.nodes()] == [10, 30]
    cache.make_room(90)
    assert [(node.history, node.hi) for node in cache.nodes()] == [(30, 10)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_tlru_takes_the_best_of_all_leaves(seed: int) -> None:
    rng = random.Random(seed)
    params = sglang_params(rng, "tlru")
    params = EngineParams(
        **{
            **vars(params),
            "policy_params": {"threshold_tokens": rng.choice([0, 20, 60]), "next_prompt_tokens": rng.choice([0, 10])},
        }
    )
    drop = RadixCache._drop

    def dropped(self: RadixCache, leaf) -> None:
        leaves = [node for node in self.nodes() if not node.lock and not node.children]
        assert self._rank(leaf) == min(map(self._rank, leaves))
        drop(self, leaf)

    with patch.object(RadixCache, "_drop", dropped):
        workload = random_workload(seed, n=50, rate=200.0)
        same(run(workload, params, LinearSteps(), fast_forward=False), run(workload, params, LinearSteps()))


# -- the front door ----------------------------------------------------------------------------------------------------


def test_from_a_scenario_file(tmp_path, capsys) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[workload]\npreset = "demo"\nduration_s = 20\n[engine]\nsemantics = "sglang"\nkv_blocks = 60000\nblock_size'
        " = 1\n"
    )
    command = ["run", str(path), "--no-baseline", "--set"]
    assert main([*command, "cache.policy=arc"]) == 0
    assert main([*command, "cache.policy=tests.test_sglang_policies:Lifo"]) == 0
    assert main([*command, "cache.policy=tlru", "--set", "cache.policy_params.threshold_tokens=4000"]) == 0
    assert main([*command, "cache.policy=ttl", "--set", "cache.policy_params.ttl_s=30"]) == 0
    for wrong, says in (
        (["cache.policy=lru", "--set", "cache.policy_params.k=2"], "lru as SGLang has it has no parameters"),
        (["cache.policy=arc", "--set", "cache.policy_params.k=2"], "policy_params has no key 'k' for arc"),
        (
            ["cache.policy=tlru", "--set", "cache.policy_params.threshold_tokens=-1"],
            "[cache] policy_params of tlru: threshold_tokens = -1, expected 0 or more",
        ),
        (
            ["cache.policy=tlru", "--set", "cache.policy_params.next_prompt_tokens=-1"],
            "next_prompt_tokens = -1, expected 0 or more",
        ),
        (["cache.policy=clairvoyant"], "expected another with engine.semantics = 'sglang'"),
        (["cache.policy=optimal"], "expected engine.semantics = 'vllm' with it"),
    ):
        capsys.readouterr()
        assert main([*command, *wrong]) == 2
        assert says in capsys.readouterr().err


def test_every_name_is_one_kind_or_the_other() -> None:
    for name in POLICIES:
        sglang.check_policy(name, {})
    assert set(sglang.OWN) < set(POLICIES)
