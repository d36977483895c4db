"""The replay on runs against a per-block reference, and that reference against published golden counts."""

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.validation.golden_cache import ALL_IDS, CAPACITIES, FULL_BLOCKS_LRU
from sim.kvcache.replay import POLICIES, hit_rate_curve, replay
from sim.kvcache.rows import RULES
from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError
from workloads.readers import read

# ---- a per-block reference: prompts are lists of block ids, equal ids are the same block
# ------------------------------


def reference_depths(prompts: list[list], policy: str, capacity: int | None) -> list[int]:
    """Leading resident blocks of every prompt, block by block, straight from the rule's words."""
    cache: OrderedDict = OrderedDict()  # block -> uses, in touch order (fifo: insertion order)
    depths = []
    for blocks in prompts:
        depths.append(next((i for i, block in enumerate(blocks) if block not in cache), len(blocks)))
        for block in reversed(blocks):
            uses = cache.get(block, 0)
            cache[block] = uses + 1
            if uses and policy != "fifo":
                cache.move_to_end(block)
        excess = 0 if capacity is None else max(0, len(cache) - capacity)
        order = sorted(cache, key=cache.__getitem__) if policy == "lfu" and excess else cache  # a stable sort
        for block in [block for block, _ in zip(order, range(excess), strict=False)]:
            del cache[block]
    return depths


def fast_lfu_depths(prompts: list[list], capacity: int | None) -> list[int]:
    """The same for lfu with one bucket of blocks per use count: quick enough for a whole trace."""
    uses: dict = {}
    buckets: dict[int, OrderedDict] = {}
    depths = []
    for blocks in prompts:
        depths.append(next((i for i, block in enumerate(blocks) if block not in uses), len(blocks)))
        for block in reversed(blocks):
            n = uses.get(block, 0)
            if n:
                del buckets[n][block]
            uses[block] = n + 1
            buckets.setdefault(n + 1, OrderedDict())[block] = None
        fewest = 1
        while capacity is not None and len(uses) > capacity:
            while not buckets.get(fewest):
                fewest += 1
            block, _ = buckets[fewest].popitem(last=False)
            del uses[block]
    return depths


def prompt_blocks(workload: Workload, rule: str, block: int) -> list[list]:
    """Each prompt as block ids; a block's id is every (owner, position) of the prompt up to its end."""
    start, out = workload.tree.start, []
    for row, (leaf, prompt) in enumerate(zip(workload.leaf.tolist(), workload.prompt_tokens.tolist(), strict=True)):
        owner = [-1 - row] * max(prompt, int(workload.tree.end[leaf]))
        while leaf >= 0:
            owner[start[leaf] : workload.tree.end[leaf]] = [leaf] * int(workload.tree.end[leaf] - start[leaf])
            leaf = int(workload.tree.parent[leaf])
        ends = list(range(block, prompt + 1, block))
        if rule == "all-ids" and prompt % block:
            ends.append(prompt)
        out.append([tuple(owner[:end]) for end in ends])
    return out


# ---- tiny worlds
# ------------------------------------------------------------------------------------------------------


def world(parent: list[int], end: list[int], requests: list[tuple[int, int]], **columns) -> Workload:
    """A workload from tree columns and (leaf, prompt tokens) pairs."""
    leaf = np.array([leaf for leaf, _ in requests], np.int32)
    prompt = np.array([prompt for _, prompt in requests], np.int64)
    tree = PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16))
    output = np.maximum(1, tree.end[leaf] - prompt)
    workload = Workload(tree, np.zeros(len(requests)), prompt, output, leaf, **columns)
    workload.check()
    return workload


ARTICLE = world(
    [-1, 0, 1], [0, 2000, 7000], [(2, 7000), (1, 5000), (2, 7150)]
)  # A, B, C: system 2,000, A's question 5,000


@pytest.mark.parametrize(("block", "hits"), [(1, [0, 2000, 7000]), (16, [0, 2000, 6992]), (128, [0, 1920, 6912])])
def test_block_size_changes_the_hit(block: int, hits: list[int]) -> None:
    result = replay(ARTICLE, "lru", None, "full-blocks", block)
    assert (result.depth_blocks * block).tolist() == hits
    assert result.hit_tokens == sum(hits)
    assert result.prompt_tokens == 19150


def test_an_exact_repeat_keeps_its_last_token_to_compute() -> None:
    twice = world([-1, 0], [0, 256], [(1, 256), (1, 256)])
    assert replay(twice, "lru", None, "full-blocks", 128).depth_blocks.tolist() == [0, 1]
    assert replay(twice, "lru", None, "all-ids", 128).depth_blocks.tolist() == [0, 2]


def test_a_partial_tail_hits_only_its_equal() -> None:
    tails = world([-1, 0], [0, 40], [(1, 24), (1, 24), (1, 23), (1, 40)])
    result = replay(tails, "lru", None, "all-ids", 16)
    assert result.depth_blocks.tolist() == [0, 2, 1, 1]
    assert result.hit_tokens == 24 + 16 + 16
    assert result.total_blocks == 9


def test_lru_drops_the_deepest_block_first() -> None:
    """A chain of three in three blocks, one more is needed: the third goes and the chain's next request hits two."""
    chain = world([-1, 0, 0], [0, 3, 1], [(1, 3), (2, 1), (1, 4)])
    assert replay(chain, "lru", 3, "full-blocks", 1).depth_blocks.tolist() == [0, 0, 2]


def test_policies_differ_on_a_hot_prompt_and_a_scan() -> None:
    """Hot prompt twice, then a scan as big as the cache, then hot again: only lfu still has it."""
    hot = world([-1, 0], [0, 2], [(1, 2), (1, 2)] + [(0, 1)] * 4 + [(1, 2)])
    last = {policy: int(replay(hot, policy, 4, "all-ids", 1).depth_blocks[-1]) for policy in POLICIES}
    assert last == {"lru": 0, "fifo": 0, "lfu": 2}


def test_fifo_can_lose_a_parent_before_its_child() -> None:
    """Head inserted first leaves first: its child stays behind, and cannot be hit until the head is back."""
    requests = [(1, 1), (2, 2), (0, 1), (2, 2), (2, 2)]
    grown = world([-1, 0, 1], [0, 1, 2], requests)
    assert replay(grown, "fifo", 2, "all-ids", 1).depth_blocks.tolist() == [0, 1, 0, 0, 1]
    assert reference_depths(prompt_blocks(grown, "all-ids", 1), "fifo", 2) == [0, 1, 0, 0, 1]


def test_no_prefix_identity_never_hits() -> None:
    private = world([-1], [0], [(0, 5), (0, 5)], prefix_identity=False)
    row = hit_rate_curve(private, [None], "lru", "all-ids", 1)[0]
    assert row["hit_ratio_tokens"] == 0
    assert row["prefix_identity"] is False


def test_curve_rows_carry_rule_and_block_size() -> None:
    rows = hit_rate_curve(ARTICLE, [100, 1000, None], "lru", "full-blocks", 16)
    assert [row["capacity_tokens"] for row in rows] == [1600, 16000, None]
    assert {(row["rule"], row["block_size"]) for row in rows} == {("full-blocks", 16)}
    ratios = [row["hit_ratio_tokens"] for row in rows]
    assert ratios == sorted(ratios)
    assert ratios[-1] == (2000 + 6992) / 19150


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("lur", 1, "all-ids", 16),
            (
                "policy = 'lur', expected one of lru, fifo, lfu; other policies need the rule leaf-first (did you mean"
                " lru?)"
            ),
        ),
        (("lru", 1, "R1", 16), "rule = 'R1', expected one of all-ids, full-blocks, leaf-first"),
        (
            ("lru", 0, "all-ids", 16),
            "capacity_blocks = 0, expected a whole number of at least 1, or None for an unlimited cache",
        ),
        (
            ("lru", 1e4, "all-ids", 16),
            "capacity_blocks = 10000.0, expected a whole number of at least 1, or None for an unlimited cache",
        ),
        (("lru", 1, "all-ids", 0), "block_size = 0, expected a whole number of tokens, at least 1"),
        (
            ("lru", 1, "all-ids", None),
            "block_size is missing, and this workload has no block size of its own: give one in tokens",
        ),
    ],
)
def test_bad_arguments_say_what_was_expected(arguments: tuple, line: str) -> None:
    with pytest.raises(InputError) as error:
        replay(ARTICLE, *arguments)
    assert str(error.value) == line


# ---- runs equal blocks
# ------------------------------------------------------------------------------------------------


def random_world(seed: int, n_nodes: int, n_requests: int) -> Workload:
    """Two isolation domains; a few kinds of prompt, repeated, that end inside nodes, at their ends or in private
    tails."""
    rng = np.random.default_rng(seed)
    parent, end = [-1, -1], [0, 0]
    for _ in range(n_nodes):
        parent.append(int(rng.integers(len(parent))))
        end.append(end[parent[-1]] + int(rng.integers(1, 40)))
    leaves = rng.integers(len(parent), size=int(rng.integers(1, 9))).tolist()
    common = int(rng.integers(1, max(end) + 20))  # a length that prompts of different leaves have in common
    kinds = [(leaf, common if rng.random() < 0.3 else int(rng.integers(1, end[leaf] + 20))) for leaf in leaves]
    return world(parent, end, [kinds[i] for i in rng.integers(len(kinds), size=n_requests)])


@given(
    st.builds(random_world, st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 60)),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(RULES),
    st.integers(1, 16),
    st.floats(0, 1),
)
@settings(max_examples=1500, deadline=None)
def test_runs_equal_blocks(workload: Workload, policy: str, rule: str, block: int, share: float) -> None:
    """Every request's depth, at a capacity from one block to all the blocks there are."""
    prompts = prompt_blocks(workload, rule, block)
    capacity = 1 + int(share * len({b for blocks in prompts for b in blocks}))
    expected = np.array(reference_depths(prompts, policy, capacity))
    if policy == "lfu":
        assert fast_lfu_depths(prompts, capacity) == expected.tolist()
    if rule == "full-blocks":
        expected = np.minimum(expected, (workload.prompt_tokens - 1) // block)
    result = replay(workload, policy, capacity, rule, block)
    assert result.depth_blocks.tolist() == expected.tolist()
    assert result.hit_blocks == expected.sum()
    assert result.total_blocks == sum(map(len, prompts))
    assert result.hit_tokens == np.minimum(expected * block, workload.prompt_tokens).sum()


# ---- golden counts on the Mooncake traces
# -----------------------------------------------------------------------------

R2_LRU = [(trace, capacity, *ratios) for trace, rows in FULL_BLOCKS_LRU.items() for capacity, ratios in rows.items()]
TRACES = ("conversation", "synthetic")


def trace_path(data: Path, name: str) -> Path:
    return data / "traces" / "mooncake" / f"{name}_trace.jsonl"


def trace_blocks(data: Path, name: str, full_only: bool = False) -> list[list[int]]:
    """The trace's own hash ids, straight from its lines (chained hashes: an id names the whole prefix)."""
    rows = [json.loads(line) for line in trace_path(data, name).read_text().splitlines()]
    return [row["hash_ids"][: row["input_length"] // 512] if full_only else row["hash_ids"] for row in rows]


def whole_trace_depths(prompts: list[list[int]], policy: str, capacity: int | None) -> np.ndarray:
    depths = fast_lfu_depths(prompts, capacity) if policy == "lfu" else reference_depths(prompts, policy, capacity)
    return np.array(depths)


@pytest.fixture(scope="module")
def traces() -> dict[str, Workload]:
    return {}


@pytest.fixture
def load(data_dir: Path, traces: dict[str, Workload]):
    def trace(name: str) -> Workload:
        if name not in traces:
            traces[name] = read(trace_path(data_dir, name), "mooncake")
        return traces[name]

    return trace


@pytest.mark.parametrize(("name", "policy"), ALL_IDS)
def test_golden_hits_all_ids(name: str, policy: str, load, data_dir: Path) -> None:
    """Published ratios to four digits, by reference and by runs, which agree on every request."""
    prompts = trace_blocks(data_dir, name)
    total = sum(map(len, prompts))
    for capacity, golden in zip(CAPACITIES, ALL_IDS[name, policy], strict=True):
        expected = whole_trace_depths(prompts, policy, capacity)
        assert round(expected.sum() / total, 4) == golden
        result = replay(load(name), policy, capacity, "all-ids")
        assert result.total_blocks == total
        assert np.array_equal(result.depth_blocks, expected), capacity


@pytest.mark.parametrize(("name", "capacity", "blocks", "tokens"), R2_LRU)
def test_golden_hits_full_blocks(
    name: str, capacity: int | None, blocks: float, tokens: float, load, data_dir: Path
) -> None:
    prompts = trace_blocks(data_dir, name, full_only=True)
    workload = load(name)
    expected = np.minimum(whole_trace_depths(prompts, "lru", capacity), (workload.prompt_tokens - 1) // 512)
    total = sum(map(len, prompts))
    assert (round(expected.sum() / total, 4), round(expected.sum() * 512 / workload.prompt_tokens.sum(), 4)) == (
        blocks,
        tokens,
    )
    result = replay(workload, "lru", capacity, "full-blocks")
    assert result.total_blocks == total
    assert np.array_equal(result.depth_blocks, expected)
    assert round(result.hit_ratio_tokens, 4) == tokens


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TRACES)
def test_full_blocks_under_every_policy(name: str, policy: str, load, data_dir: Path) -> None:
    """No published figures beyond LRU: runs equal the (golden-proven) reference on every request."""
    prompts = trace_blocks(data_dir, name, full_only=True)
    workload = load(name)
    for capacity in (1_000, 10_000):
        expected = np.minimum(whole_trace_depths(prompts, policy, capacity), (workload.prompt_tokens - 1) // 512)
        assert np.array_equal(replay(workload, policy, capacity, "full-blocks").depth_blocks, expected), capacity


def test_ceiling_at_block_16(load) -> None:
    assert round(replay(load("conversation"), "lru", None, "full-blocks", 16).hit_ratio_tokens, 4) == 0.3736
    assert round(replay(load("synthetic"), "lru", None, "full-blocks", 16).hit_ratio_tokens, 4) == 0.6512


@pytest.mark.parametrize("policy", POLICIES)
def test_block_16_of_a_trace_equals_the_reference(policy: str, load, data_dir: Path) -> None:
    """The first 1,500 requests as 16-token blocks (32 in each of the trace's own), one capacity below the longest
    prompt."""
    workload = load("conversation")
    prompts = [
        [ids[i // 32] * 32 + i % 32 for i in range(prompt // 16)]
        for ids, prompt in zip(
            trace_blocks(data_dir, "conversation")[:1500], workload.prompt_tokens.tolist(), strict=False
        )
    ]
    first = replace(
        workload,
        **{name: getattr(workload, name)[:1500] for name in ("arrival_s", "prompt_tokens", "output_tokens", "leaf")},
    )
    for capacity in (4_500, 100_000):
        expected = np.minimum(whole_trace_depths(prompts, policy, capacity), (first.prompt_tokens - 1) // 16)
        assert np.array_equal(replay(first, policy, capacity, "full-blocks", 16).depth_blocks, expected), capacity
