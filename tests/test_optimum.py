"""The optimum against exhaustive search on tiny worlds, published golden counts, and certificates that must not lie."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvcast.cli import main
from sim.kvcache.replay import replay
from sim.optimum.check import CertificateError, check, feasible
from sim.optimum.curve import optimum_curve
from sim.optimum.hits import most_hits
from sim.optimum.items import CAPACITY_RULES, Items, blocks_needed, must_insert, touches
from sim.optimum.prices import Work
from sim.optimum.work import block_work, most_work, price_bound, work_of
from tests.reference_optimum import as_workload, best_by_search, order_of, tiny
from workloads.errors import InputError
from workloads.readers import read


@pytest.mark.parametrize("rule", ["bypass", "must-insert"])
def test_sweep_is_the_best_of_all_states(rule: str) -> None:
    """2,000 tight instances: exhaustive search over any states and over leaf-first ones = sweep = certificate."""
    rng = np.random.default_rng(7)
    tight = several = cut = tried = 0
    while tight < 2000:
        tried += 1
        parent, leaves = tiny(rng)
        capacity = int(rng.integers(1, 5))
        workload = as_workload(parent, leaves, 1, np.zeros(len(leaves), np.int64))
        items, slots = CAPACITY_RULES[rule](touches(workload, "all-ids", 1), capacity)
        best = most_hits(items, slots)
        if best.hits == int(items.amount.sum()):
            continue  # nothing had to be dropped
        tight += 1
        several += len(best.checkpoints) > 1
        orders = [order_of(parent, leaf) for leaf in leaves]
        cut += max(map(len, orders)) > capacity
        limits = [len(order) for order in orders]
        loose = best_by_search(parent, orders, limits, capacity, rule, strict=False)
        strict = best_by_search(parent, orders, limits, capacity, rule, strict=True)
        assert loose == strict == best.hits == check(items, slots, best.kept, best.checkpoints), (
            parent,
            leaves,
            capacity,
        )
    assert several > 100
    assert cut > 500, (tight, several, cut, tried)


@pytest.mark.parametrize("rule", ["bypass", "must-insert"])
def test_the_last_block_of_a_prompt_is_no_hit(rule: str) -> None:
    """Full-blocks rule, prompts that are whole blocks among others: the search over all states agrees."""
    rng = np.random.default_rng(8)
    tight = 0
    while tight < 300:
        parent, leaves = tiny(rng)
        capacity = int(rng.integers(1, 5))
        extra = rng.integers(0, 2, len(leaves))
        items, slots = CAPACITY_RULES[rule](touches(as_workload(parent, leaves, 2, extra), "full-blocks", 2), capacity)
        best = most_hits(items, slots)
        if not len(best.checkpoints):
            continue
        tight += 1
        orders = [order_of(parent, leaf) for leaf in leaves]
        limits = [len(order) - (not more) for order, more in zip(orders, extra, strict=True)]
        found = best_by_search(parent, orders, limits, capacity, rule, strict=False)
        assert found == best.hits == check(items, slots, best.kept, best.checkpoints), (parent, leaves, capacity)


@pytest.mark.parametrize("rule", ["bypass", "must-insert"])
def test_work_bound_and_schedule_enclose_the_best_of_all_states(rule: str) -> None:
    rng = np.random.default_rng(10)
    tight = binding = 0
    while tight < 300:
        parent, leaves = tiny(rng)
        capacity, slope = int(rng.integers(1, 6)), float(rng.choice([0.1, 1.0, 3.0]))
        items, slots = CAPACITY_RULES[rule](
            touches(as_workload(parent, leaves, 1, np.zeros(len(leaves), np.int64)), "all-ids", 1), capacity
        )
        most = most_hits(items, slots)
        if not len(most.checkpoints):
            continue
        tight += 1
        result = most_work(items, slots, Work(slope), most.checkpoints)
        feasible(items, slots, result.kept)
        orders = [order_of(parent, leaf) for leaf in leaves]
        best = best_by_search(
            parent, orders, [len(order) for order in orders], capacity, rule, strict=False, slope=slope
        )
        assert result.saved <= best + 1e-9
        assert best <= result.bound + 1e-9
        assert work_of(items, Work(slope), most.kept) <= best + 1e-9
        binding += best > work_of(items, Work(slope), most.kept) + 1e-9
        some = np.sort(rng.choice(len(slots), size=2, replace=False))
        assert best <= price_bound(items, slots, Work(slope), some, rng.random(2) * 3) + 1e-9  # any prices bound it
    assert binding > 5  # the most hits are not the most work


# ---- golden counts
# ----------------------------------------------------------------------------------------------------

GOLDEN = {
    ("conversation", "bypass"): {1_000: 55_019, 3_000: 84_953, 10_000: 105_710, 30_000: 105_710, 100_000: 105_710},
    ("conversation", "must-insert"): {200: 15_387, 1_000: 51_705, 3_000: 84_121, 10_000: 105_710, 30_000: 105_710},
    ("synthetic", "bypass"): {1_000: 33_728, 3_000: 54_438, 10_000: 75_316, 30_000: 77_953, 100_000: 77_953},
    ("synthetic", "must-insert"): {200: 9_099, 1_000: 32_803, 3_000: 54_085, 10_000: 75_241, 30_000: 77_953},
}
"""Hit blocks by capacity, rule all-ids, 512-token blocks; counted by others, block by block."""
CHECKPOINTS = {"conversation": {1_000: 30, 3_000: 9, 10_000: 0}, "synthetic": {1_000: 17, 3_000: 7, 10_000: 1}}
NEEDED = {
    ("conversation", "bypass"): 8_138,
    ("conversation", "must-insert"): 8_199,
    ("synthetic", "bypass"): 12_637,
    ("synthetic", "must-insert"): 12_712,
}
BLOCK_16 = {
    ("conversation", "bypass"): {1_000: 0.1945, 3_000: 0.3003, 10_000: 0.3736, 30_000: 0.3736},
    ("conversation", "must-insert"): {1_000: 0.1828, 3_000: 0.2974, 10_000: 0.3736, 30_000: 0.3736},
    ("synthetic", "bypass"): {1_000: 0.2820, 3_000: 0.4552, 10_000: 0.6293, 30_000: 0.6512},
    ("synthetic", "must-insert"): {1_000: 0.2744, 3_000: 0.4522, 10_000: 0.6287, 30_000: 0.6512},
}
"""Hit tokens / prompt tokens at 16-token blocks, rule full-blocks, capacity in units of 32 blocks."""


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_golden(data_dir: Path, trace: str) -> None:
    workload = read(data_dir / "traces" / "mooncake" / f"{trace}_trace.jsonl", "mooncake")
    ids, full = touches(workload, "all-ids", 512), touches(workload, "full-blocks", 16)
    for rule in CAPACITY_RULES:
        unlimited = replay(workload, "lru", None, "all-ids")
        for capacity, hits in GOLDEN[trace, rule].items():
            items, slots = CAPACITY_RULES[rule](ids, capacity)
            best = most_hits(items, slots)
            assert best.hits == hits == check(items, slots, best.kept, best.checkpoints)
            assert np.all(best.depth <= unlimited.depth_blocks)
            if rule == "must-insert" and capacity in CHECKPOINTS[trace]:
                assert len(best.checkpoints) == CHECKPOINTS[trace][capacity]
        assert blocks_needed(*CAPACITY_RULES[rule](ids, 10**6), 10**6) == NEEDED[trace, rule]
        for capacity, ratio in BLOCK_16[trace, rule].items():
            items, slots = CAPACITY_RULES[rule](full, 32 * capacity)
            best = most_hits(items, slots)
            assert round(best.hits * 16 / workload.prompt_tokens.sum(), 4) == ratio
            assert best.hits == check(items, slots, best.kept, best.checkpoints)


WORK = {
    ("conversation", 60): {1_000: (0.476, 0.991), 3_000: (0.792, 0.9979)},
    ("conversation", 6): {1_000: (0.485, 0.982), 3_000: (0.821, 0.9975)},
    ("synthetic", 60): {1_000: (0.448, 0.991), 3_000: (0.723, 0.998), 10_000: (0.973, 0.9998)},
}
"""By 1 / depth weight and capacity: bound as a share of the ceiling, schedule as a share of the bound (at least)."""


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_gap_of_prefill_work(data_dir: Path, trace: str) -> None:
    workload = read(data_dir / "traces" / "mooncake" / f"{trace}_trace.jsonl", "mooncake")
    used = touches(workload, "all-ids", 512)
    for (name, inverse), rows in WORK.items():
        work = block_work(512, 1 / inverse)
        ceiling = work.of(used.lo, used.hi).sum()
        for capacity, (bound, reached) in rows.items() if name == trace else ():
            items, slots = must_insert(used, capacity)
            result = most_work(items, slots, work, most_hits(items, slots).checkpoints)
            feasible(items, slots, result.kept)
            assert result.bound / ceiling == pytest.approx(bound, abs=1e-3)
            assert reached <= 1 - result.gap <= 1
            assert inverse == 6 or result.gap <= 0.01


def test_memory_needed_is_the_smallest_that_drops_nothing() -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        parent, leaves = tiny(rng)
        used = touches(as_workload(parent, leaves, 1, np.zeros(len(leaves), np.int64)), "all-ids", 1)
        for rule in CAPACITY_RULES.values():
            needed = blocks_needed(*rule(used, 100), 100)
            ceiling = int((used.hi - used.lo).sum())
            assert most_hits(*rule(used, needed)).hits == ceiling
            assert needed == 0 or most_hits(*rule(used, needed - 1)).hits < ceiling


# ---- the checker catches what is wrong
# --------------------------------------------------------------------------------


def one_shared_slot() -> tuple[Items, np.ndarray]:
    """Two items of two blocks each cross one slot with room for two."""
    columns = ([0, 1], [0, 0], [2, 2], [0, 0], [1, 1])
    request, lo, hi, start, end = (np.array(column) for column in columns)
    return Items(request, lo, hi, start, end, np.zeros(2, np.int64)), np.array([2])


@pytest.mark.parametrize(
    ("kept", "checkpoints", "says"),
    [
        ([2, 2], [0], "blocks kept"),
        ([3, 0], [0], "between 0"),
        ([2, 0], [0, 0], "twice"),
        ([2, 0], [5], "expected slots"),
    ],
)
def test_a_false_certificate_is_refused(kept: list[int], checkpoints: list[int], says: str) -> None:
    items, slots = one_shared_slot()
    with pytest.raises(CertificateError, match=says):
        check(items, slots, np.array(kept), np.array(checkpoints))


def test_a_child_without_its_parent_is_refused() -> None:
    items = Items(*(np.array(c) for c in ([0, 0], [0, 1], [1, 2], [0, 1], [2, 2])), np.zeros(1, np.int64))
    with pytest.raises(CertificateError, match="parent"):
        check(items, np.array([2, 2]), np.array([0, 1]), np.array([], np.int64))


def test_a_wrong_tie_or_a_worse_choice_is_not_called_optimal() -> None:
    """Dropping what is needed soonest instead: the checker's bound stays above it."""
    columns = (
        [0, 1, 2],
        [0, 0, 0],
        [1, 1, 1],
        [0, 1, 0],
        [1, 2, 2],
    )  # two short items, and a long one across both slots
    request, lo, hi, start, end = (np.array(column) for column in columns)
    items, slots = Items(request, lo, hi, start, end, np.zeros(3, np.int64)), np.array([1, 1])
    best = most_hits(items, slots)
    assert best.kept.tolist() == [1, 1, 0]
    assert check(items, slots, best.kept, best.checkpoints) == 2
    assert check(items, slots, np.array([0, 0, 1]), best.checkpoints) == 2  # possible, proven not to be the best


# ---- rows and the command
# ---------------------------------------------------------------------------------------------


def test_cache_command_prints_the_optimum_and_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hot prompt between two scans: in three blocks LRU hits nothing, the optimum keeps the hot one."""
    trace = tmp_path / "trace.jsonl"
    prompts = [[1, 2], [3, 4, 5], [1, 2], [6, 7, 8], [1, 2]]
    rows = [
        {"timestamp": i, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate(prompts)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        main(
            [
                "cache",
                str(trace),
                "--policy",
                "lru,optimal",
                "--capacity-blocks",
                "3",
                "--rule",
                "all-ids",
                "--depth-weight",
                "1",
            ]
        )
        == 0
    )
    lru, hits, work = json.loads(capsys.readouterr().out)
    assert (lru["hit_blocks"], hits["hit_blocks"], work["hit_blocks"]) == (0, 4, 4)
    assert (hits["objective"], hits["capacity_rule"], hits["proved_gap"]) == ("hit tokens", "bypass", 0.0)
    assert work["work_ratio"] == pytest.approx(2 * (1 + 2) / (3 * (1 + 2) + 2 * (1 + 2 + 3)))
    assert lru["optimum_shares"][0] == "0.0 % of the optimum (hit tokens, bypass, proved gap 0.00 %)"
    assert lru["optimum_shares"][1].startswith(
        "0.0 % of the optimum (prefill work, depth weight 1, bypass, proved gap "
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"capacity_rule": "by-pass"}, "bypass"),
        ({"depth_weight": -1.0}, "depth weight"),
        ({"block_size": 0}, "block_size"),
        ({"rule": "ids"}, "all-ids"),
    ],
)
def test_bad_options_are_one_line(options: dict, says: str) -> None:
    workload = as_workload([0, 0], [1, 1], 4, np.zeros(2, np.int64))
    with pytest.raises(InputError, match=says):
        optimum_curve(workload, [3], **({"rule": "all-ids", "block_size": 4} | options))
