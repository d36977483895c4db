"""Cache tiers: tiny worlds with every number known, and the limits in which a tier is something simpler.

python -m pytest tests/test_tiers.py
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcast import api, load_scenario
from kvcast.present import summary_text
from kvcast.scenario import toml
from sim.fleet.replica import Replica
from sim.kvcache.tiers import RANKS, Tier, Tiers
from sim.recording import Recording
from sim.scenario import EngineParams, TierParams
from sim.simulate import run
from sim.vllm import preemption
from sim.vllm.scheduler import VllmScheduler
from tests.test_engine import same
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError

ENGINE_COLUMNS = (
    "arrival_s",
    "admit_s",
    "first_token_s",
    "finish_s",
    "hit_tokens",
    "ceiling_replica_tokens",
    "preemptions",
    "prefill_chunks",
    "first_step",
    "last_step",
)


def free_tier(blocks: int, **more) -> TierParams:
    return TierParams("dram", blocks, inf, **more)


def families(prompts: list[tuple[int, int]], gap_s: float, output: int = 1) -> Workload:
    """Requests (family, prompt tokens), one every gap_s; a family's prompts share their blocks of 4, the rest is each
    one's own."""
    parent, end, leaf = [-1], [0], {}
    for family in sorted({f for f, _ in prompts}):
        above = 0
        for blocks in sorted({n // 4 for f, n in prompts if f == family}):
            parent.append(above)
            end.append(4 * blocks)
            above = leaf[family, blocks] = len(parent) - 1
    tree = PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16))
    tokens, leaves = np.array([n for _, n in prompts]), np.array([leaf[f, n // 4] for f, n in prompts], np.int32)
    return Workload(tree, np.arange(len(prompts)) * gap_s, tokens, np.full(len(prompts), output), leaves)


def equal_engine(a: Recording, b: Recording) -> None:
    for column in ENGINE_COLUMNS:
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column), err_msg=column)
    for p, q in zip(a.steps, b.steps, strict=True):
        np.testing.assert_array_equal(p.end_s, q.end_s)
        np.testing.assert_array_equal(p.prefill_tokens, q.prefill_tokens)


# -- tiny worlds -------------------------------------------------------------------------------------------------------


def test_load_delays_only_its_own_request() -> None:
    """0 (9 tokens) is pushed out by 1 and 2; 3 asks for it again while 4 and 5 come: it loads 2 blocks of 4 in 7.5
    s."""
    w = families([(0, 9), (1, 21), (2, 21), (0, 9), (3, 5), (4, 5)], gap_s=10.0, output=2)
    w = replace(w, arrival_s=np.array([0.0, 20.0, 60.0, 100.0, 100.0, 101.0]))
    slow = LinearSteps(overhead_s=1.0, decode_s=0, context_s=0, longest_s=0, prefill_s=1.0, deep_s=0)
    log: list = []
    tiers = (TierParams("dram", 20, 4.0, 5.5, block_bytes=4),)
    params = EngineParams(kv_blocks=8, block_size=4, tiers=tiers, async_scheduling=False)
    r = run(w, params, slow, step_log=log)
    assert [(start, tokens) for _, start, tokens, *_ in log if start >= 100 and tokens] == [
        (100.0, [(4, 5)]),
        (106.0, [(4, 1), (5, 5)]),
        (112.0, [(3, 1), (5, 1)]),
        (114.0, [(3, 1)]),
    ]
    assert r.hit_tokens.tolist() == [0, 0, 0, 8, 0, 0]
    assert r.tier_hit_tokens.tolist() == [[0], [0], [0], [8], [0], [0]]
    assert r.load_s.tolist() == [0, 0, 0, 7.5, 0, 0]
    assert r.admit_s[3] == 100.0
    life = run(w, params, slow, record_life=True).life
    assert life is not None
    assert [phase[:3] for phase in life[3]] == [
        ("queued", 100.0, 100.0),
        ("loading", 100.0, 107.5),
        ("prefill", 112.0, 114.0),
        ("decode", 114.0, 115.0),
    ]
    (use,) = r.tiers
    assert (use.loaded_blocks, use.link_busy_s) == (2, 7.5)


def test_nothing_to_do_but_wait_for_a_load() -> None:
    """The engine idles until the transfer is done, or until somebody else comes."""
    w = families([(0, 9), (1, 21), (0, 9), (2, 5)], gap_s=40.0)
    w = replace(w, arrival_s=np.array([0.0, 40.0, 80.0, 81.0]))
    slow = LinearSteps(overhead_s=1.0, decode_s=0, context_s=0, longest_s=0, prefill_s=1.0, deep_s=0)
    params = EngineParams(kv_blocks=6, block_size=4, tiers=(TierParams("dram", 20, 4.0, 5.0, block_bytes=4),))
    r = run(w, params, slow)
    assert r.tier_hit_tokens[:, 0].tolist() == [0, 0, 8, 0]
    assert r.admit_s.tolist() == [0.0, 40.0, 80.0, 81.0]
    assert r.first_token_s[2:].tolist() == [89.0, 87.0]  # arrives at 87, when 3's step ends
    alone = run(replace(w, arrival_s=np.array([0.0, 40.0, 80.0, 95.0])), params, slow)
    assert alone.first_token_s[2] == 89.0  # 80 + 7 s transfer + one step of one token
    assert alone.load_s[2] == 7.0


def test_one_transfer_at_a_time_and_sharing_one_under_way() -> None:
    """0 and 1 were pushed out; asked for together they queue for the link; a second request for 0 waits for the same
    load."""
    w = families([(0, 101), (1, 101), (2, 101), (3, 101), (0, 101), (1, 101), (0, 101)], gap_s=1000.0)
    w = replace(w, arrival_s=np.array([0.0, 1000, 2000, 3000, 4000, 4000, 4000]))
    slow = LinearSteps(overhead_s=0.5, decode_s=0, context_s=0, longest_s=0, prefill_s=1.0, deep_s=0)
    params = EngineParams(kv_blocks=60, block_size=4, tiers=(TierParams("dram", 200, 100.0, 0.0, block_bytes=4),))
    r = run(w, params, slow)
    assert r.load_s[4:].tolist() == [1.0, 2.0, 1.0]
    assert r.tier_hit_tokens[4:, 0].tolist() == [100, 100, 0]
    assert r.hit_tokens[4:].tolist() == [100, 100, 100]
    assert r.tiers[0].link_busy_s == 2.0


def test_a_hit_waits_for_what_it_hits_and_not_for_what_comes_behind_it() -> None:
    """Blocks 6 to 9 of node 7, and node 8 below it, are on their way: who hits 6 blocks has them now."""
    tiers = Tiers(
        (TierParams("dram", 20, 4.0, 5.0, block_bytes=4),), lambda cached, known: 100.0 * (known - cached), block_size=4
    )
    path = [(7, 10), (8, 12)]
    tiers.evicted(7, 6, 10)
    tiers.evicted(8, 10, 12)
    load = tiers.plan(path, 6, 10, 48, now_s=1.0)
    assert load is not None
    assert load.parts == [(0, 7, 6, 10)]
    tiers.fetch(load, 1.0)
    assert [tiers.hits_ready_s(path, hit, 2.0) for hit in (0, 6, 7, 10)] == [2.0, 2.0, 10.0, 10.0]  # 5 + 16 B at 4 B/s
    tiers.fetch(tiers.plan(path, 10, 12, 52, now_s=2.0), 2.0)
    assert [tiers.hits_ready_s(path, hit, 3.0) for hit in (6, 10, 11)] == [3.0, 10.0, 17.0]
    assert tiers.hits_ready_s(path, 12, 17.0) == 17.0


def test_prefetch_overlaps_the_wait_for_a_seat() -> None:
    """One seat, taken for 100 s: with prefetch the transfer is over when it is free."""
    w = families([(0, 101), (1, 101), (2, 101), (3, 4), (0, 101)], gap_s=1000.0)
    w = replace(w, arrival_s=np.array([0.0, 1000, 2000, 3000, 3001]), output_tokens=np.array([1, 1, 1, 100, 1]))
    got = {}
    for prefetch in (False, True):
        tier = TierParams("dram", 200, 10.0, 0.0, block_bytes=4, prefetch=prefetch)
        r = run(w, EngineParams(kv_blocks=60, block_size=4, max_num_seqs=1, tiers=(tier,)), _seconds(1.0))
        got[prefetch] = (r.admit_s[4], r.load_s[4], r.first_token_s[4], r.tier_hit_tokens[4, 0])
    assert got == {False: (3103.0, 10.0, 3114.0, 100), True: (3103.0, 0.0, 3104.0, 68)}  # 32 were in GPU memory still


def _seconds(prefill_s: float) -> LinearSteps:
    """Steps of a second; a prefill token takes none in a step but computing again is dear: 100 s at 10 GB/s beats
    it."""

    class Steps(UnitSteps):
        def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
            return 1.0 + prefill_s * sum(max(0, new - 1) for new, _ in chunks), 0

    return Steps()  # type: ignore[return-value]


def test_second_tier_gets_what_falls_from_the_first() -> None:
    w = families([(0, 9), (1, 9), (2, 9), (3, 9), (0, 9)], gap_s=10.0)
    tiers = (free_tier(2), replace(free_tier(2), name="ssd"))
    r = run(w, EngineParams(kv_blocks=6, block_size=4, tiers=tiers), UnitSteps())
    assert r.tier_hit_tokens[4].tolist() == [4, 4]
    assert [(t.name, t.loaded_blocks) for t in r.tiers] == [("dram", 1), ("ssd", 1)]


def test_write_through_keeps_a_copy_and_on_evict_does_not() -> None:
    """What is in GPU memory takes room in a write-through tier: of two families one is still there, of three none."""
    w = families([(f, 9) for f in (0, 1, 2, 3, 0)], gap_s=10.0)
    hits = {}
    for write in ("on-evict", "write-through"):
        r = run(w, EngineParams(kv_blocks=6, block_size=4, tiers=(free_tier(6, write=write),)), UnitSteps())
        hits[write] = (r.hit_tokens[4], r.tiers[0].written_blocks)
    assert hits == {"on-evict": (8, 5), "write-through": (0, 10)}


@pytest.mark.parametrize(
    ("policy", "hit"), [("lru", 0), ("lfu", 8), ("fifo", 0), ("mru", 8), ("filo", 8), ("slru", 8), ("lruk", 8)]
)
def test_policy_of_a_write_through_tier(policy: str, hit: int) -> None:
    """0 was used three times, then three newcomers come to a tier for two: who counts uses keeps 0, who drops the
    latest too."""
    w = families([(f, 9) for f in (0, 0, 0, 1, 2, 3, 0)], gap_s=10.0)
    r = run(
        w,
        EngineParams(kv_blocks=3, block_size=4, tiers=(free_tier(4, write="write-through", policy=policy),)),
        UnitSteps(),
    )
    assert r.hit_tokens[6] == hit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"semantics": "sglang"}, "semantics"),
        ({"caching": False}, "enabled"),
        ({"policy": "clairvoyant"}, "clairvoyant"),
    ],
)
def test_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(
            plain([0.0], [9], [1]),
            EngineParams(kv_blocks=8, block_size=4, tiers=(free_tier(4),), **change),
            UnitSteps(),
        )


# -- one tier against single blocks ------------------------------------------------------------------------------------


class BlockTier:
    """The same, block by block: a dict of ranks, and the smallest (rank, -block) goes."""

    def __init__(self, params: TierParams) -> None:
        self.room, self.rank = params.blocks, RANKS[params.policy]
        self.ranks: dict[tuple[int, int], object] = {}
        self.stamp, self.last = -1, (False, -1)

    def put(self, node: int, lo: int, hi: int, entering: bool) -> list[tuple[int, int]]:
        gone = []
        for block in range(lo, hi) if entering else range(hi - 1, lo - 1, -1):
            self.stamp += self.last != (entering, block)  # what continues the last block shares its stamp
            self.last = (entering, block + 1 if entering else block - 1)
            self.ranks[node, block] = self.rank(self.ranks.get((node, block)), self.stamp)
            gone += [] if entering else self.shed()
        return gone + self.shed()

    def shed(self) -> list[tuple[int, int]]:
        gone = []
        while len(self.ranks) > self.room:
            gone.append(min(self.ranks, key=lambda at: (self.ranks[at], -at[1])))
            del self.ranks[gone[-1]]
        return gone

    def touch(self, path: list[tuple[int, int]], end: int) -> None:
        self.stamp, self.last, lo = self.stamp + 1, (False, -1), 0
        for node, hi in path:
            for at in [(node, block) for block in range(lo, min(hi, end)) if (node, block) in self.ranks]:
                self.ranks[at] = self.rank(self.ranks[at], self.stamp)
            lo = min(hi, end)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(list(RANKS)), st.sampled_from(["on-evict", "write-through"]))
def test_a_tier_equals_single_blocks(seed: int, policy: str, write: str) -> None:
    """Node n owns blocks [10 n, 10 n + 10); paths are its nodes in order."""
    rng = random.Random(seed)
    params = TierParams("dram", rng.choice([1, 4, 9, 15, 40]), 1.0, policy=policy, write=write)
    tier, blocks = Tier(params), BlockTier(params)
    for _ in range(80):
        node = rng.randrange(4)
        lo, hi = sorted(rng.sample(range(10 * node, 10 * node + 11), 2))
        kind = rng.choice(["put", "put", "put", "remove", "touch"])
        if kind == "put":
            entering = write == "write-through" and rng.random() < 0.7
            gone = [(n, b) for n, a, z in tier.put(node, lo, hi, entering) for b in range(z - 1, a - 1, -1)]
            assert gone == blocks.put(node, lo, hi, entering)
        elif kind == "remove":
            tier.remove(node, lo, hi)
            for block in range(lo, hi):
                blocks.ranks.pop((node, block), None)
        elif write == "write-through":
            path, end = [(n, 10 * n + 10) for n in range(node + 1)], rng.randrange(1, 10 * node + 11)
            tier.touch(path, end)
            blocks.touch(path, end)
        tier.check()
        assert tier.used == len(blocks.ranks)
        for block in range(10 * node, 10 * node + 10):
            stored = next((b for b in range(block, 10 * node + 10) if (node, b) not in blocks.ranks), 10 * node + 10)
            assert tier.reach(node, block, 10 * node + 10) == stored


# -- the front door ----------------------------------------------------------------------------------------------------

SCENARIO = """
[workload]
preset = "coding-agent"
rate = 0.5
duration_s = 30
[run]
warmup_s = 0
[engine]
kv_blocks = 4000
[[cache.tiers]]
name = "dram"
capacity_gib = 16
bandwidth_gb_per_s = 50
[[cache.tiers]]
name = "ssd"
capacity_blocks = 20000
bandwidth_gb_per_s = 4
latency_s = 0.001
prefetch = true
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiers.toml"
    path.write_text(SCENARIO)
    return path


def test_a_scenario_with_tiers(scenario: Path) -> None:
    """Hits by tier add up, in the summary, the columns and the words; the resolved file is the same scenario."""
    result = api.run(api.prepare(load_scenario(scenario)))
    dram, ssd = result.resolved.params.tiers
    assert (dram.blocks, dram.block_bytes, dram.bandwidth_bytes_s) == (16 * 2**30 // (16 * 131072), 16 * 131072, 50e9)
    assert (ssd.blocks, ssd.latency_s, ssd.prefetch) == (20000, 0.001, True)
    s, columns = result.report.summary, result.report.requests
    assert [t["name"] for t in s["tiers"]] == ["gpu", "dram", "ssd"]
    assert sum(t["hit_tokens"] for t in s["tiers"]) == s["prefix_hit_tokens"]
    assert s["tiers"][1]["hit_tokens"] == columns["tier_dram_hit_tokens"].sum() > 0
    assert s["tiers"][1]["loaded_bytes"] % dram.block_bytes == 0
    assert 0 < s["tiers"][1]["link_busy_share"] < 1
    assert (columns["load_s"] > 0).sum() == s["tiers"][0]["requests_that_waited_for_loads"] > 0
    assert "hits by tier: gpu" in summary_text.describe(result)
    (scenario.parent / "again.toml").write_text(toml.dumps(result.scenario))
    assert load_scenario(scenario.parent / "again.toml") == result.scenario
    off = api.run(api.without_cache(api.prepare(load_scenario(scenario))))
    assert "tiers" not in off.report.summary
    assert "load_s" not in off.report.requests


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "cache.tiers.dram.capacity_blocks=5",
            "[cache.tiers.dram] has capacity_gib and capacity_blocks: expected exactly one",
        ),
        ("cache.tiers.ssd.capacity_blocks=", "[cache.tiers.ssd] has neither capacity_gib nor capacity_blocks"),
        ("cache.tiers.ssd.name=dram", "expected a name of its own for each tier"),
        ("cache.tiers.ssd.bandwidth_gb_per_s=-1", "[cache.tiers.ssd] bandwidth_gb_per_s = -1"),
        ("cache.tiers.ssd.bandwidth_gb_per_s=", "[cache.tiers.ssd] bandwidth_gb_per_s is missing"),
        (
            "cache.tiers.ssd.bandwidth_gbps=8",
            "[cache.tiers.ssd] has no key 'bandwidth_gbps' (did you mean bandwidth_gb_per_s?)",
        ),
        ("cache.tiers.ssd.write=write-thru", "(did you mean write-through?)"),
        (
            "cache.tiers.dram.capacity_gib=0.0001",
            "[cache.tiers.dram] capacity_gib: expected room for one block of 2,097,152 bytes",
        ),
        ("engine.semantics=sglang", "expected semantics = 'vllm' with them"),
        ("cache.policy=clairvoyant", "clairvoyant"),
        (
            "cache.tiers.dram.bandwidth_gb_per_s=nan",
            "[cache.tiers.dram] bandwidth_gb_per_s = nan: expected a finite number",
        ),
        ("cache.tiers.dram.latency_s=inf", "[cache.tiers.dram] latency_s = inf: expected a finite number"),
        ("cache.tiers.dram.policy=slur", "(did you mean slru?)"),
        ("cache.tiers.nvme.capacity_gib=5", "no entry 'nvme' (known: dram, ssd)"),
    ],
)
def test_what_is_wrong_with_a_tier_is_one_line(scenario: Path, override: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        api.resolve(load_scenario(scenario, [override]))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_tier_that_is_not_there_is_a_line_that_says_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    path.write_text(SCENARIO.partition("[[cache.tiers]]")[0])
    with pytest.raises(InputError) as error:
        load_scenario(path, ["cache.tiers.dram.capacity_gib=16"])
    assert "the scenario has no [[cache.tiers]]; expected --set 'cache.tiers=[" in str(error.value)
    made = str(error.value).split("'")[1]
    scenario = load_scenario(path, [made, "cache.tiers.dram.bandwidth_gb_per_s=inf"])
    assert [(tier.name, tier.capacity_gib, tier.bandwidth_gb_per_s) for tier in scenario.cache.tiers] == [
        ("dram", 256, inf)
    ]


def test_a_link_without_a_limit_in_a_scenario_file(scenario: Path) -> None:
    """inf is a bandwidth: nobody waits, and the scenario and its summary are files again."""
    result = api.run(
        api.prepare(
            load_scenario(
                scenario,
                [
                    "cache.tiers.dram.bandwidth_gb_per_s=inf",
                    "cache.tiers=",
                    'cache.tiers=[{name = "dram", capacity_blocks = 9000, bandwidth_gb_per_s = inf}]',
                ],
            )
        )
    )
    assert result.resolved.params.tiers[0].bandwidth_bytes_s == inf
    assert result.report.requests["load_s"].max() == 0
    (dram,) = result.report.summary["tiers"][1:]
    assert dram["loaded_bytes"] > 0
    assert (dram["link_busy_share"], dram["write_share"]) == (0.0, 0.0)
    (scenario.parent / "again.toml").write_text(toml.dumps(result.scenario))
    assert load_scenario(scenario.parent / "again.toml") == result.scenario
    assert "dram: " in summary_text.describe(result)


# -- exact limits ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_free_link_is_one_bigger_cache(seed: int, two: bool) -> None:
    """Exact where blocks in use always fit GPU memory and no block is computed twice while a copy is cached."""
    rng = random.Random(seed)
    prompts = [(rng.randrange(12), rng.randrange(1, 15) * 4 + rng.randrange(1, 4)) for _ in range(80)]
    w = families(prompts, gap_s=1.0)
    hbm, below = 16, rng.randrange(2, 60)  # the longest request takes 15 blocks and is alone
    split = rng.randrange(1, below)
    tiers = (free_tier(split), free_tier(below - split)) if two else (free_tier(below),)
    params = EngineParams(kv_blocks=hbm, block_size=4)
    tiered = run(w, replace(params, tiers=tiers), LinearSteps(), fast_forward=rng.random() < 0.5)
    bigger = run(w, replace(params, kv_blocks=hbm + below), LinearSteps())
    equal_engine(tiered, bigger)
    assert tiered.tiers[-1].dropped_blocks == bigger.evicted_blocks
    assert tiered.load_s.max() == 0


def test_a_free_link_is_one_bigger_cache_with_overlapping_requests() -> None:
    """Decodes overlap; every answer and tail is private and prompts are no whole blocks, so nothing is computed
    twice."""
    loaded = 0
    for seed in range(30):
        rng = random.Random(seed)
        prompts = [(rng.randrange(30), rng.randrange(1, 15) * 4 + rng.randrange(1, 4)) for _ in range(150)]
        w = families(prompts, gap_s=0.02, output=6)
        below = rng.randrange(20, 150)
        params = EngineParams(kv_blocks=150, block_size=4)
        assert run(w, replace(params, caching=False), LinearSteps()).samples[0].blocks_in_use.max() < 135
        tiered = run(w, replace(params, tiers=(free_tier(below),)), LinearSteps())
        equal_engine(tiered, run(w, replace(params, kv_blocks=150 + below), LinearSteps()))
        loaded += tiered.tiers[0].loaded_blocks
    assert loaded > 1000


def test_a_free_link_is_one_bigger_cache_on_mooncake(data_dir: Path) -> None:
    prepared = api.prepare(load_scenario(Path(__file__).parent.parent / "examples" / "mooncake.toml"))
    params, below = prepared.resolved.params, 400_000
    tiered = run(prepared.workload, replace(params, tiers=(free_tier(below),)), prepared.step_time, replicas=4)
    equal_engine(
        tiered,
        run(prepared.workload, replace(params, kv_blocks=params.kv_blocks + below), prepared.step_time, replicas=4),
    )
    assert tiered.tiers[0].loaded_blocks > 500_000


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["on-evict", "write-through"]),
    st.sampled_from([(0.0, 0.0), (1e9, inf)]),
    st.booleans(),
)
def test_a_link_without_bandwidth_is_no_tier(seed: int, write: str, link: tuple[float, float], prefetch: bool) -> None:
    w = random_workload(seed, closed=seed % 2 == 0)
    params = EngineParams(
        kv_blocks=40, block_size=4, max_num_batched_tokens=32, max_num_seqs=4, policy="lru" if seed % 3 else "lfu"
    )
    tier = TierParams("dram", 100, *link, block_bytes=4, write=write, prefetch=prefetch)
    tiered, none = run(w, replace(params, tiers=(tier,)), LinearSteps()), run(w, params, LinearSteps())
    same(replace(tiered, tiers=[], tier_hit_tokens=None, load_s=None), none)
    assert tiered.tiers[0].loaded_blocks == 0


@pytest.mark.parametrize(("latency_s", "bandwidth"), [(0.02, 4e6), (0.2, 1.2e6), (0.0, 0.9e6), (1.0, 2e6)])
def test_transfer_is_chosen_from_where_the_costs_cross(latency_s: float, bandwidth: float) -> None:
    """Recomputing n tokens costs n p + n (n - 1) / 2 deep (one token a chunk), loading latency + n bytes /
    bandwidth."""
    p, deep, block, size = 2e-5, 2e-7, 4, 64.0  # bytes per block

    class PerToken(LinearSteps):
        def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
            return sum(new * p + deep * (new * cached + new * (new - 1) / 2) for new, cached in chunks), 0

    def chosen(blocks: int) -> bool:
        n = blocks * block + 1
        w = families([(0, n), (1, n), (0, n)], gap_s=1e4)
        params = EngineParams(
            kv_blocks=blocks + 1,
            block_size=block,
            max_num_batched_tokens=2 * n,
            tiers=(TierParams("dram", 4 * blocks, bandwidth, latency_s, block_bytes=64),),
        )
        return run(w, params, PerToken()).tier_hit_tokens[2, 0] > 0

    a, b = deep / 2, p - deep / 2 - size / block / bandwidth  # a n^2 + b n = latency
    crossing = (-b + (b * b + 4 * a * latency_s) ** 0.5) / (2 * a)
    at = first_true(chosen, 1, 4000)
    assert abs(at - crossing / block) <= 1
    assert all(chosen(n) for n in range(at, at + 40, 7))
    assert not any(chosen(n) for n in range(max(1, at - 40), at, 7))


def first_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest argument for which a monotone predicate holds."""
    assert holds(high)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


# -- random worlds -----------------------------------------------------------------------------------------------------


def _keeps_a_copy(self: Tier, node: int, lo: int, hi: int) -> None:
    pass


def _many_transfers_at_once(self: Tier, blocks: int, now_s: float) -> float:
    return now_s + self.transfer_s(blocks)


def _shallow_first(self: Tier, node: int, lo: int, hi: int, entering: bool = False) -> list[tuple[int, int, int]]:
    return [gone for block in range(lo, hi) for gone in put(self, node, block, block + 1)]


def _computed_at_once(self: VllmScheduler, now_s: float) -> None:
    for r in self.loading:
        r.ready_s = now_s
    take_in(self, now_s)


put, take_in = Tier.put, VllmScheduler._take_in
FAULTS = {
    "a loaded block stays below": (Tier, "remove", _keeps_a_copy),
    "many transfers at once": (Tier, "ready_s", _many_transfers_at_once),
    "shallow blocks go first": (Tier, "put", _shallow_first),
    "nobody waits for a load": (VllmScheduler, "_take_in", _computed_at_once),
    "no load is waited for twice": (Tiers, "hits_ready_s", lambda self, path, hit, now_s: now_s),
    "a stretch runs over an arrival": (Replica, "_time_steps", None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed(fault: str) -> None:
    target, name, faulty = FAULTS[fault]
    if faulty is None:
        faulty = _blind(Replica._time_steps)
    with patch.object(target, name, faulty), pytest.raises(AssertionError):
        _some_of_the_tests()


def _some_of_the_tests() -> None:
    test_load_delays_only_its_own_request()
    test_one_transfer_at_a_time_and_sharing_one_under_way()
    test_a_free_link_is_one_bigger_cache_with_overlapping_requests()
    steps = LinearSteps(prefill_s=2e-4, deep_s=1e-6)
    for seed in range(40):
        w, params = random_workload(seed, rate=100.0), random_params(random.Random(seed))
        same(run(w, params, steps, fast_forward=False), run(w, params, steps))


def _blind(time_steps: Callable[[Replica, float], None]) -> Callable[[Replica, float], None]:
    """A replica that plans its stretches as if nothing were being loaded."""

    def planned(self: Replica, start_s: float) -> None:
        loading, self.scheduler.loading = self.scheduler.loading, []
        time_steps(self, start_s)
        self.scheduler.loading = loading

    return planned


def random_tiers(rng: random.Random) -> tuple[TierParams, ...]:
    return tuple(
        TierParams(
            f"tier{k}",
            rng.choice([1, 5, 30, 200]),
            rng.choice([0.0, 2e5, 2e6, 2e7, inf]),
            rng.choice([0.0, 0.0, 1e-4, 3e-3]),
            block_bytes=rng.choice([100, 1000]),
            write=rng.choice(["on-evict", "on-evict", "write-through"]),
            policy=rng.choice(["lru", "lru", "fifo", "lfu", "mru", "filo", "slru", "lruk"]),
            prefetch=rng.random() < 0.5,
        )
        for k in range(rng.choice([1, 1, 2, 3]))
    )


def random_params(rng: random.Random) -> EngineParams:
    return EngineParams(
        kv_blocks=rng.choice([36, 60, 120]),
        block_size=rng.choice([1, 4, 16]) if rng.random() < 0.3 else 4,
        max_num_batched_tokens=rng.choice([8, 32, 512]),
        max_num_seqs=rng.choice([1, 3, 100]),
        scheduler_policy=rng.choice(["fcfs", "fcfs", "priority"]),
        reserve_full_isl=rng.random() < 0.7,
        watermark=rng.choice([0.0, 0.0, 0.1]),
        long_prefill_token_threshold=rng.choice([0, 0, 6]),
        policy=rng.choice(["lru", "lru", "lfu", "s3fifo"]),
        step_overhead_s=rng.choice([0.0, 0.0017]),
        frontend_s=rng.choice([0.0, 0.011]),
        tiers=random_tiers(rng),
    )


def checked(w: Workload, params: EngineParams, **options) -> Recording:
    """A run whose caches and tiers are checked after every schedule."""
    schedule = VllmScheduler.schedule

    def scheduled(self: VllmScheduler, now_s: float) -> bool:
        some = schedule(self, now_s)
        self.cache.check()  # type: ignore[attr-defined]
        self.tiers.check()  # type: ignore[union-attr]
        assert set(self.loading) == {r for r in self.running if r.ready_s > now_s}
        assert self.prefills == [r for r in self.running if not r.decoding and r.ready_s <= now_s]
        return some

    with patch.object(VllmScheduler, "schedule", scheduled):
        return run(w, params, LinearSteps(prefill_s=2e-4, deep_s=1e-6), **options)


@settings(max_examples=120, deadline=None)
@example(779)  # a blocked head that finds more below while it waits, admitted by its first chunk's memory
@example(452895551)  # blocks of answers that nobody has looked for when the clock stops
@given(st.integers(0, 10**9))
def test_fast_forward_equals_stepping(seed: int) -> None:
    rng = random.Random(seed)
    w = random_workload(seed, n=rng.choice([30, 60]), closed=rng.random() < 0.5, rate=rng.choice([20.0, 100.0, 1000.0]))
    options = {
        "replicas": rng.choice([1, 1, 2]),
        "router": rng.choice(["round-robin", "least-loaded"]),
        "horizon_s": rng.choice([None, None, 0.7]),
    }
    params = random_params(rng)
    same(checked(w, params, **options, fast_forward=False), checked(w, params, **options))


def test_random_worlds_reach_the_corners() -> None:
    """A random test proves nothing about what it never does."""
    seen: set[str] = set()
    preempt, move = preemption.preempt, Replica._next_ready_s

    def preempted(scheduler: VllmScheduler, r) -> None:
        seen.update({"preempted while loading"} if r.ready_s > scheduler.now_s else ())
        preempt(scheduler, r)

    def waited(self: Replica) -> float:
        seen.add("stretch with a load under way" if len(self._ends) else "nothing to do but wait")
        return move(self)

    with patch.object(preemption, "preempt", preempted), patch.object(Replica, "_next_ready_s", waited):
        for seed in range(150):
            rng = random.Random(seed)
            w = random_workload(seed, n=60, closed=rng.random() < 0.5, rate=rng.choice([20.0, 100.0, 1000.0]))
            r = checked(w, random_params(rng))
            seen |= {
                name
                for name, happened in {
                    "loaded": r.tier_hit_tokens.sum(),
                    "from two tiers": (r.tier_hit_tokens > 0).all(axis=1).any() and len(r.tiers) > 1,
                    "partly from below": (
                        ((r.tier_hit_tokens.sum(1) > 0) & (r.tier_hit_tokens.sum(1) < r.hit_tokens)).any()
                    ),
                    "dropped": any(t.dropped_blocks for t in r.tiers),
                    "waited": (r.load_s > 0).any(),
                    "preempted": r.preemptions.sum(),
                    "loaded again after a preemption": (
                        sum(t.loaded_blocks for t in r.tiers) * r.block_size > r.tier_hit_tokens.sum() > 0
                        and r.readmission_hit_tokens.any()
                    ),
                }.items()
                if happened
            }
            assert (r.tier_hit_tokens.sum(1) <= r.hit_tokens).all()
            assert (r.hit_tokens <= r.ceiling_replica_tokens).all()
            assert (r.status == 0).all() or (r.status >= 0).all()
    assert len(seen) == 10, seen
