"""Eviction policies on worlds small enough to know: libCacheSim's miss counts, hand-worked caches, and how one is
chosen.

python -m pytest tests/test_policies.py          # in the engine: tests/test_policy_runs.py
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from examples.my_policy import test_long_prompts_go_first  # noqa: F401  (the template's own test)
from kvcast.cli import main
from sim.kvcache.leaf_first import Visit, serve
from sim.kvcache.policies import POLICIES, Policy, Run, World, check, find, make
from sim.kvcache.policies.by_key import Gdsf
from sim.kvcache.policies.s3fifo import S3Fifo
from sim.kvcache.ranked import RankedCache
from sim.scenario import EngineParams
from sim.simulate import run
from tests import fuzz, fuzz_policies
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from tools.libcachesim_goldens import CAPACITIES, TRACES
from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces
from workloads.readers.engine_case import to_workload

ONE = plain([0.0], [1], [1])


def objects(policy: Policy, capacity: int) -> RankedCache:
    """A cache of single blocks that share nothing."""
    return RankedCache(capacity, 1, 1 << 40, {}, policy)


def ask(cache: RankedCache, obj: int, request: int = 0, at_s: float = 0.0) -> bool:
    """Ask for one object and let go of it; whether it was a hit."""
    cache.now_s = at_s
    hit = serve(cache, Visit(request, [(obj, 1)]), 1, 1)
    cache.check()
    return bool(hit)


def resident(cache: RankedCache) -> str:
    """Objects a, b, c... that are cached."""
    return "".join(sorted(chr(node) for node, held in cache.nodes.items() if held.runs))


def after(policy: str, capacity: int, asked: str, **params: object) -> str:
    cache = objects(make(policy, World(ONE, capacity, 1), params), capacity)
    for obj in asked:
        ask(cache, ord(obj))
    return resident(cache)


# ---- libCacheSim -----------------------------------------------------------------------------------------------------

GOLDEN = {
    ("lru", "zipf"): [12253, 7480],
    ("lru", "scans"): [14403, 9515],
    ("fifo", "zipf"): [13139, 8501],
    ("fifo", "scans"): [14606, 10436],
    ("lfu", "zipf"): [10407, 6519],
    ("lfu", "scans"): [17831, 15926],
    ("s3fifo", "zipf"): [10057, 6443],
    ("s3fifo", "scans"): [13004, 10793],
    ("sieve", "zipf"): [10274, 6505],
    ("sieve", "scans"): [13219, 11313],
    ("arc", "zipf"): [10323, 6724],
    ("arc", "scans"): [12933, 9420],
    ("lruk", "zipf"): [10347, 6519],
    ("lruk", "scans"): [17010, 15926],
    ("gdsf", "zipf"): [10993, 6718],
    ("gdsf", "scans"): [13995, 9893],
}
"""Misses of libCacheSim 0.3.5 at CAPACITIES: tools/libcachesim_goldens.py printed them."""


class LibraryGdsf(Gdsf):
    """All objects cost the same, and a new one starts from the clock before its own eviction moved it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, depth_tokens=1e30)

    def on_admit(self, request: Visit) -> None:
        self.before = self.clock

    def on_release(self, run: Run, request: Visit) -> None:
        run.state = (run.state[0], self.before)


LIBRARY = {"s3fifo": partial(S3Fifo, start_up="libcachesim"), "gdsf": LibraryGdsf}
"""Where the library's choice differs from our default; everything else of the class is as shipped."""


def misses(policy: Policy, trace: list[int], capacity: int) -> int:
    cache = objects(policy, capacity)
    return sum(1 - serve(cache, Visit(0, [(obj, 1)]), 1, 1) for obj in trace)


@pytest.mark.parametrize(("policy", "trace"), GOLDEN)
def test_misses_of_libcachesim(policy: str, trace: str) -> None:
    kind = LIBRARY.get(policy, POLICIES[policy])
    found = [misses(kind(World(ONE, capacity, 1)), TRACES[trace](), capacity) for capacity in CAPACITIES]
    assert found == GOLDEN[policy, trace]


def test_wtinylfu_beside_libcachesim() -> None:
    """Not the same policy there (a sketch, and a window that empties at every eviction), so only close, and better."""
    library = {("zipf", 100): 10002, ("zipf", 400): 6364, ("scans", 100): 14253, ("scans", 400): 12033}
    for (trace, capacity), theirs in library.items():
        ours = misses(make("wtinylfu", World(ONE, capacity, 1)), TRACES[trace](), capacity)
        assert 0.9 * theirs < ours < 1.01 * theirs, (trace, capacity, ours)


# ---- worlds worked out by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "capacity", "asked", "left"),
    [
        ("lru", 3, "abcad", "acd"),  # b was used longest ago
        ("mru", 3, "abcad", "bcd"),  # a was used last
        ("fifo", 3, "abcad", "bcd"),  # a came first, its hit changes nothing
        ("filo", 3, "abcad", "abd"),  # c came last
        ("lfu", 3, "aabbcd", "abd"),  # c was used once
        ("lfu", 3, "aabbccda", "abc"),  # all twice: a, the oldest, goes for d, and d, used once, for a
        ("slru", 3, "aaabbcd", "abd"),  # c is the only one on probation
        ("slru", 2, "aaabbc", "bc"),  # both protected: a longest ago, its third use counts for nothing
        ("lruk", 3, "aabcbd", "abd"),  # c alone has one use
        ("lruk", 2, "aabbac", "bc"),  # the last use but one: a's was the 2nd request, b's the 3rd
        ("gdsf", 2, "aabc", "ac"),  # b is worth 1, a 2; the clock is now 1
        ("gdsf", 2, "aabcdef", "ef"),  # each eviction moves the clock: c 2 ties with a 2, which is older and goes
        ("sieve", 3, "abcad", "acd"),  # a is spared and loses its mark, b goes
        ("sieve", 3, "abcade", "ade"),  # the hand goes on from b: c
        ("s3fifo", 10, "aaabcdefghijk", "acdefghijk"),  # a used twice since: to main; b goes
        ("s3fifo", 10, "abcdefghijkal", "adefghijkl"),  # a is remembered: straight to main, and b and c go before it
        ("arc", 2, "aabc", "ac"),  # the once list holds more than its target 0
        ("arc", 2, "aabcb", "bc"),  # b comes back: target 1, the once list (c) is not above it, so a goes
        ("wtinylfu", 4, "aabbccde", "abce"),  # d, asked for once, is not admitted against a
        ("wtinylfu", 4, "abcddded", "abde"),  # d is protected, a and b have moved on, c is not admitted against a
        ("wtinylfu", 4, "abcdede", "bcde"),  # when e comes again d, asked for twice, is admitted against a
    ],
)
def test_by_hand(policy: str, capacity: int, asked: str, left: str) -> None:
    assert after(policy, capacity, asked) == left


def test_arc_takes_one_block_where_the_once_list_is_as_long_as_it_should_be() -> None:
    """The b that is asked for last was given up by the again list: the once list, a, is at its target 2 and loses one
    block, and is then below it, so c, used again, loses the other."""
    cache = objects(make("arc", World(ONE, 4, 1)), 4)
    for request, (obj, blocks) in enumerate([("b", 3), ("c", 2), ("b", 3), ("c", 2), ("a", 3), ("b", 3)]):
        serve(cache, Visit(request, [(ord(obj), blocks)]), blocks, blocks)
        cache.check()
    assert {chr(node): held.hi for node, held in cache.nodes.items() if held.runs} == {"a": 1, "b": 3}


def sequence(columns: dict, **more: object) -> Workload:
    """Requests for single blocks in a workload with these columns."""
    n = len(next(iter(columns.values())))
    return plain(
        np.arange(n, dtype=float),
        np.ones(n, int),
        np.ones(n, int),
        **{k: np.asarray(v) for k, v in columns.items()},
        **more,
    )


def ask_all(
    workload: Workload, policy: str, capacity: int, asked: str, at_s: list[float] | None = None, **params: object
) -> str:
    """Ask for `asked`, request i for the i-th letter; what is cached then."""
    cache = objects(make(policy, World(workload, capacity, 1), params), capacity)
    for i, obj in enumerate(asked):
        ask(cache, ord(obj), i, at_s[i] if at_s else float(i))
    return resident(cache)


def test_priority_keeps_what_an_urgent_request_used() -> None:
    workload = sequence({"priority": [0, 5, 9, 5]})
    assert ask_all(workload, "priority", 2, "abc") == "ac"  # b, priority 5, may wait longer than a's 0
    assert ask_all(workload, "priority", 2, "abca") == "ac"
    assert ask_all(sequence({"priority": [5, 5, 0, 9]}), "priority", 2, "abac") == "ac"  # a was also used with 0


def test_ttl_evicts_what_expired_first() -> None:
    """Chat keeps 300 s, agents 3,600 s: at 400 s the chat's b has expired, though agent a was used longer ago."""
    workload = sequence({"class_id": [0, 1, 1, 1]}, class_names=("agent", "chat"), class_slo=("", ""))
    assert ask_all(workload, "ttl", 2, "abc", [0.0, 50.0, 400.0], classes={"agent": 3600}) == "ac"
    assert ask_all(workload, "ttl", 2, "abc", [0.0, 50.0, 300.0], classes={"agent": 3600}) == "bc"  # nobody has: LRU
    assert ask_all(workload, "ttl", 2, "abc", [0.0, 50.0, 349.9], classes={"agent": 3600}) == "bc"
    assert ask_all(workload, "ttl", 2, "abc", [0.0, 50.0, 350.0], classes={"agent": 3600}) == "ac"  # at its very end
    assert (
        ask_all(workload, "ttl", 2, "abbc", [0.0, 50.0, 300.0, 400.0], classes={"agent": 3600}) == "bc"
    )  # a use starts it again
    with pytest.raises(InputError, match="no workload class is called 'agents'"):
        make("ttl", World(workload, 2, 1), {"classes": {"agents": 1}})


def test_quota_takes_from_the_tenant_above_its_share() -> None:
    workload = sequence({"tenant_id": [0, 1, 1, 1, 0]}, tenant_names=("small", "large"))
    assert ask_all(workload, "quota", 4, "abcde") == "acde"  # large holds 3 of its 2: b, not the older a
    assert ask_all(workload, "quota", 4, "abcde", shares={"large": 0.75}) == "bcde"  # nobody is above: LRU
    with pytest.raises(InputError, match="no tenant is called 'medium'"):
        make("quota", World(workload, 4, 1), {"shares": {"medium": 1}})


def test_workload_keeps_the_class_that_comes_back() -> None:
    """Chats (class 1) are used again after a second, batch jobs (class 0) never: the older chat stays."""
    classes = [1, 1, 1, 0, 0, 1, 0, 0]
    workload = sequence({"class_id": classes}, class_names=("batch", "chat"), class_slo=("", ""))
    policy = make("workload", World(workload, 2, 1))
    cache = objects(policy, 2)
    for i, (obj, at_s) in enumerate(zip("aaabc", [0.0, 1.5, 3.0, 3.5, 4.5], strict=True)):
        ask(cache, ord(obj), i, at_s)
    assert resident(cache) == "ac"  # LRU would drop a
    assert (policy.chance(0, 0.0), policy.chance(1, 0.0)) == (
        0.0,
        1.0,
    )  # two spans of chat, both used; one of batch, evicted
    assert policy.chance(1, 5.0) == 0.0  # no chat has come back after so long


def chains(prompts: list[list[str]], output: int = 1, **columns: object) -> Workload:
    """Prompts as lists of blocks of one token, on a tree of single tokens."""
    parent, end, node, leaves = [-1], [0], {}, []
    for prompt in prompts:
        at = 0
        for token in prompt:
            if (at, token) not in node:
                node[at, token] = len(parent)
                parent.append(at)
                end.append(end[at] + 1)
            at = node[at, token]
        leaves.append(at)
    tree = PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16))
    n = len(prompts)
    return Workload(
        tree,
        np.arange(n, dtype=float),
        np.array([len(p) for p in prompts]),
        np.full(n, output),
        np.array(leaves, np.int32),
        **columns,
    )


def test_tlru_gives_up_what_the_next_turn_can_recompute() -> None:
    """Next prompt 1, threshold 4: of a conversation of 4 + 1 tokens the first 2 are worth keeping, so the tails of both
    go before the older one's first half."""
    workload = chains([list("abcd"), list("wxyz"), list("qrs")])
    assert held(workload, "lru", 8) == [1, 4, 3]
    assert held(workload, "tlru", 8, threshold_tokens=4, next_prompt_tokens=1) == [2, 3, 3]


def test_gdsf_keeps_deep_blocks() -> None:
    """A chain of 3 and a later single block, all used once: by cost 1 + depth the single one goes, LRU takes the
    chain's end."""
    workload = chains([list("abc"), list("x"), list("y")])
    assert held(workload, "gdsf", 4, depth_tokens=1.0) == [3, 1]
    assert held(workload, "lru", 4) == [2, 1, 1]


def held(workload: Workload, policy: str, capacity: int, **params: object) -> list[int]:
    """Blocks cached per prompt's first block, in order of first appearance."""
    cache = RankedCache(capacity, 1, len(workload.tree), {}, make(policy, World(workload, capacity, 1), params))
    paths: Counter = Counter()
    for i, prompt in enumerate(workload.prompt_tokens):
        path = [(node, depth + 1) for depth, node in enumerate(climb(workload.tree, workload.leaf[i]))]
        serve(cache, Visit(i, path), int(prompt), int(prompt))
        cache.check()
    for node in cache.nodes.values():
        if node.runs:
            paths[climb(workload.tree, node.id)[0]] += 1
    return [paths[first] for first in sorted(paths)]


def climb(tree: PrefixTree, node: int) -> list[int]:
    """Nodes from the first block down to `node`."""
    path = []
    while node > 0:
        path.append(int(node))
        node = int(tree.parent[node])
    return path[::-1]


def test_random_is_uniform_over_leaves() -> None:
    """3 leaves, the newest a moment old: each goes in a third of the cases (4 sigma)."""
    gone: Counter = Counter()
    for seed in range(3000):
        world = World(ONE, 3, 1, random.Random(seed))
        cache = objects(make("random", world), 3)
        for obj in "abcdabc":  # some evictions before the one that counts
            ask(cache, ord(obj))
        before = resident(cache)
        ask(cache, ord("z"))
        gone[before.index((set(before) - set(resident(cache))).pop())] += 1
    assert all(abs(n - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for n in gone.values()), gone


def hot_prompt_and_a_scan() -> Workload:
    """vllm 40268: ten questions on one system prompt of 40 tokens, a burst of ten documents of 30, the prompt again."""
    hot, documents = (
        [[("system", 0, 40), (f"question {i}", 0, 4)] for i in range(11)],
        [[(f"document {i}", 0, 30)] for i in range(10)],
    )
    prompts = [*hot[:10], *documents, hot[10]]
    tree, leaf = from_pieces(prompts)
    tokens = np.array([sum(length for _, _, length in pieces) for pieces in prompts])
    n = len(prompts)
    return Workload(
        tree=tree, leaf=leaf, arrival_s=np.arange(n) * 50.0, prompt_tokens=tokens, output_tokens=np.ones(n, np.int64)
    )


@pytest.mark.parametrize(
    ("policy", "hit"),
    [
        ("lru", 0),
        ("fifo", 0),
        ("priority", 0),
        ("ttl", 0),
        ("quota", 0),
        ("workload", 0),
        ("lfu", 40),
        ("slru", 40),
        ("lruk", 40),
        ("sieve", 40),
        ("arc", 40),
        ("s3fifo", 40),
        ("wtinylfu", 40),
        ("gdsf", 40),
    ],
)
def test_vllm_40268_what_is_hot_survives_a_scan(policy: str, hit: int) -> None:
    """100 tokens of memory: recency loses the prompt, frequency keeps it."""
    recording = run(hot_prompt_and_a_scan(), EngineParams(kv_blocks=25, block_size=4, policy=policy), UnitSteps())
    assert recording.hit_tokens[-1] == hit


@pytest.mark.parametrize("policy", ["lfu", "slru", "lruk", "gdsf"])
def test_sglang_18843_a_counter_that_never_moves_is_noticed(policy: str) -> None:
    """Counting policies differ from LRU while they count, and are LRU once they do not."""
    workload = hot_prompt_and_a_scan()
    asked = EngineParams(kv_blocks=25, block_size=4)
    lru, counting = (run(workload, replace(asked, policy=p), UnitSteps()).hit_tokens.tolist() for p in ("lru", policy))
    assert counting != lru
    with patch.object(find(policy), "on_hit", lambda self, block_run, request: None):
        assert run(workload, replace(asked, policy=policy), UnitSteps()).hit_tokens.tolist() == lru


def test_sglang_24075_a_burst_promotes_a_one_off_prefix() -> None:
    """50 requests at once for a prefix nobody wants again: SLRU protects it against what is used once, one after the
    other."""
    burst, later = (
        [[("one off", 0, 40), (f"tail {i}", 0, 4)] for i in range(50)],
        [[(f"page {i}", 0, 60)] for i in (0, 1, 0, 1, 0, 1)],
    )
    tree, leaf = from_pieces([*burst, *later])
    arrival_s = np.array([0.0] * 50 + [100.0 * (i + 1) for i in range(6)])
    tokens = np.array([44] * 50 + [60] * 6)
    workload = Workload(
        tree=tree, leaf=leaf, arrival_s=arrival_s, prompt_tokens=tokens, output_tokens=np.ones(56, np.int64)
    )
    hits = {
        p: run(workload, EngineParams(kv_blocks=30, block_size=4, policy=p), UnitSteps()).hit_tokens[52:].tolist()
        for p in ("lru", "slru")
    }
    assert hits == {"lru": [56, 56, 56, 56], "slru": [20, 20, 20, 20]}


# ---- choosing one
# ------------------------------------------------------------------------------------------------------


class Newest(Policy):
    """Somebody's own."""

    def __init__(self, world: World, sign: int = -1) -> None:
        super().__init__(world)
        self.sign = sign

    def key(self, run: Run) -> tuple:
        return (self.sign * run.released,)


def test_own_class() -> None:
    name = f"{__name__}:Newest"
    assert after(name, 3, "abcad") == after("mru", 3, "abcad")
    assert after(name, 3, "abcad", sign=1) == after("lru", 3, "abcad")
    workload = random_workload(5)
    own, mru = (
        run(workload, EngineParams(kv_blocks=60, block_size=4, policy=policy), LinearSteps())
        for policy in (name, "mru")
    )
    assert own.hit_tokens.tolist() == mru.hit_tokens.tolist()
    assert own.evicted_blocks == mru.evicted_blocks > 0


class TakesNothing(Policy):
    def span(self, run: Run) -> int:
        return 0


class SparesForEver(Policy):
    def second_chance(self, run: Run) -> bool:
        return True

    def spare(self, runs: list[Run]) -> None:
        pass


class CutsNowhere(Policy):
    def split(self, node_id: int, lo: int, hi: int, request) -> int:
        return lo


@pytest.mark.parametrize(
    ("own", "semantics", "says"),
    [
        (TakesNothing, "vllm", "TakesNothing: span returned 0"),
        (SparesForEver, "vllm", "SparesForEver: spare changed nothing"),
        (SparesForEver, "sglang", "SparesForEver: spare changed nothing"),
        (CutsNowhere, "vllm", "CutsNowhere: split returned 0"),
    ],
)
def test_own_class_that_would_never_end_is_refused(own: type[Policy], semantics: str, says: str) -> None:
    params = EngineParams(kv_blocks=70, block_size=4, policy=f"{__name__}:{own.__name__}", semantics=semantics)
    with pytest.raises(InputError, match=says):
        run(random_workload(5), params, LinearSteps())


@pytest.mark.parametrize(("text", "says"), [("def (", "SyntaxError"), ("raise RuntimeError('no')", "RuntimeError: no")])
def test_own_class_in_a_module_that_does_not_load_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    (tmp_path / "broken_own.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=f"'broken_own:X': {says}"):
        find("broken_own:X")


def test_the_two_start_up_rules_of_s3fifo() -> None:
    """Room for ten, a small queue of one. The paper's: all ten are in the small queue, k drops a, l drops b.
    libCacheSim's: until the first eviction only a is, the rest is in the main queue; k drops a, and l drops k, which
    has come into the small queue."""
    assert after("s3fifo", 10, "abcdefghijkl", start_up="paper") == after("s3fifo", 10, "abcdefghijkl") == "cdefghijkl"
    assert after("s3fifo", 10, "abcdefghijkl", start_up="libcachesim") == "bcdefghijl"


def test_an_endless_ghost_queue_is_refused() -> None:
    with pytest.raises(InputError, match="ghost_share = inf"):
        make("s3fifo", World(random_workload(5), 10, 4), {"ghost_share": float("inf")})


def test_own_class_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A file in the current folder, and prompts a, b, c, a of three blocks and a part of one in a cache of eight: c
    takes two blocks, from a under LRU and from b when the newest goes first."""
    (tmp_path / "own_policy.py").write_text(
        "from sim.kvcache.policies import Policy\n\n\nclass Newest(Policy):\n    def key(self, run):\n        return"
        " (-run.released,)\n"
    )
    rows = [
        {"timestamp": i, "input_length": 2000, "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [1, 2, 3, 4]])
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert (
        main(
            [
                "cache",
                "trace.jsonl",
                "--policy",
                "lru,own_policy:Newest",
                "--rule",
                "leaf-first",
                "--capacity-blocks",
                "8",
                "--json",
            ]
        )
        == 0
    )
    assert [row["hit_blocks"] for row in json.loads(capsys.readouterr().out)] == [1, 3]
    assert (
        main(
            ["cache", "trace.jsonl", "--policy", "own_policy:Oldest", "--rule", "leaf-first", "--capacity-blocks", "6"]
        )
        == 2
    )
    assert "module 'own_policy' has no attribute 'Oldest'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "params", "line"),
    [
        ("lfuu", {}, "[cache] policy = 'lfuu': expected one of lru, lfu"),
        ("lruk", {"q": 3}, "[cache] policy_params has no key 'q' for lruk: it has k"),
        ("lfu", {"k": 3}, "[cache] policy_params has no key 'k' for lfu: it has no parameters"),
        ("nowhere:Class", {}, "[cache] policy = 'nowhere:Class': No module named 'nowhere'"),
        ("os:path", {}, "[cache] policy = 'os:path': expected a class derived from sim.kvcache.policies.Policy"),
        (
            "s3fifo",
            {"small_share": 2.0},
            "[cache] policy_params of s3fifo: small_share = 2.0, expected 0 or more and below 1",
        ),
        (
            "s3fifo",
            {"start_up": "main"},
            "[cache] policy_params of s3fifo: start_up = 'main', expected one of paper, libcachesim",
        ),
        ("s3fifo", {"start_up": 1}, "[cache] policy_params of s3fifo: start_up = 1, expected a text"),
        ("lruk", {"k": "two"}, "[cache] policy_params of lruk: k = 'two', expected a whole number"),
        ("lruk", {"k": 0}, "[cache] policy_params of lruk: k = 0, expected 1 or more"),
        ("gdsf", {"depth_tokens": 0}, "[cache] policy_params of gdsf: depth_tokens = 0, expected above 0"),
    ],
)
def test_what_is_wrong_in_one_line(policy: str, params: dict, line: str) -> None:
    with pytest.raises(InputError) as error:
        make(policy, World(ONE, 10, 1), params)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_every_policy_says_what_it_does() -> None:
    for name, kind in POLICIES.items():
        assert kind.__doc__, name
        check(name, {})
        assert f"| `{name}` |" in POLICIES_PAGE, f"docs/policies.md does not describe {name}"


POLICIES_PAGE = (Path(__file__).parent.parent / "docs" / "policies.md").read_text()


# ---- per-block references
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", fuzz_policies.REFERENCES)
def test_policies_equal_their_per_block_reference(policy: str) -> None:
    for index in range(30):
        assert fuzz_policies.difference(policy, 11, index)[0] == "", (policy, index)


def test_blocks_that_a_preempted_request_was_to_bring_back_are_forgotten() -> None:
    """Preempted before it has inserted any of them: at its next admission their names are gone (random case 0/30,
    shrunk)."""
    prompts = [
        (0, 2, [[1, 48]], 1),
        (0, 3, [[1, 48]], 1),
        (0, 0, [[3, 8], [3, 48]], 8),
        (0, 2, [[1, 48], [9, 1]], 1),
        (0, 0, [[1, 24], [10, 16], [11, 33]], 1),
        (0, 2, [[2, 48], [12, 33]], 15),
        (0, 0, [[2, 48], [12, 33], [13, 45]], 8),
        (1, 1, [[3, 32], [2, 33], [14, 24]], 2),
        (1, 0, [[2, 33]], 1),
    ]
    requests = [
        {
            "id": i,
            "arrival_step": at,
            "priority": priority,
            "segments": [["s", *text] for text in texts],
            "max_tokens": output,
        }
        for i, (at, priority, texts, output) in enumerate(prompts)
    ]
    config = {
        "block_size": 8,
        "num_blocks": 18,
        "max_model_len": 1000,
        "max_num_batched_tokens": 11,
        "max_num_seqs": 64,
        "policy": "priority",
        "scheduler_reserve_full_isl": False,
        "async_scheduling": True,
    }
    case = fuzz.timed({"engine": "vllm", "timed": True, "config": config, "requests": requests})
    workload, params = to_workload(case)
    asked = EngineParams(**params, policy="s3fifo", policy_params={"small_share": 0.0, "main_uses": 1})
    log: list[tuple] = []
    recording = run(workload, asked, fuzz.LinearTime(), step_log=log)
    assert recording.preemptions.sum() > 0
    assert (
        next(fuzz.vllm_differences(fuzz_policies.run_reference("s3fifo", case, workload, asked), recording, log), "")
        == ""
    )


@pytest.mark.parametrize("fault", fuzz_policies.FAULTS)
def test_faults_planted_in_the_references_are_noticed(fault: str) -> None:
    assert fuzz_policies.cases_until_noticed(fault) is not None
