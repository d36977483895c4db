"""API-priced caching: one bill worked out by hand, a reference that keeps every entry, and what must hold for any
prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.studies.api_price import COMPONENTS, NO_CACHING, Prices, Retention, price
from sim.kvcache.replay import replay
from tests.worlds import random_workload
from workloads.columns import Workload
from workloads.prefix_tree import from_pieces
from workloads.transform import picked

PRICES = Prices(input_usd_per_mtok=3.0, output_usd_per_mtok=15.0, read_multiplier=0.1, minimum_tokens=1024)
FIVE_MINUTES, ONE_HOUR = Retention("5 minutes", 300, 1.25), Retention("1 hour", 3600, 2.0)
FOREVER = Retention("forever", np.inf, 1.0)


def conversation() -> Workload:
    """A system prompt of 2,000 tokens (layer 0) and two sessions on it, and a short prompt of other text."""
    rows = [  # sent at, system, session text, its prompt tokens, output
        (0.0, "system", "A", 500, 100),
        (200.0, "system", "A", 1000, 200),  # 500 + the answer of 100 + 400 new
        (501.0, "system", "A", 1500, 50),  # 301 s after the last use
        (600.0, "system", "B", 100, 10),
        (601.0, None, "C", 800, 20),  # below the minimum
    ]
    paths = [
        [*([(system, 0, 2000)] if system else []), (text, 0, tokens + output)]
        for _, system, text, tokens, output in rows
    ]
    tree, leaf = from_pieces(paths, layers=[[0, 1][-len(path) :] for path in paths])
    return Workload(
        tree=tree,
        leaf=leaf,
        arrival_s=np.array([row[0] for row in rows]),
        tail_layer=np.ones(5, np.int16),
        prompt_tokens=np.array([row[3] + (2000 if row[1] else 0) for row in rows]),
        output_tokens=np.array([row[4] for row in rows]),
        layer_names=("system", "session"),
        layer_scopes=(1, 3),
    )


def test_a_bill_worked_out_by_hand() -> None:
    workload = conversation()
    bill = price(workload, workload.arrival_s, PRICES, FIVE_MINUTES)
    assert bill.hit_tokens.tolist() == [
        0,
        2500,
        0,
        2000,
        0,
    ]  # turn 2 comes a second too late, but it brings the system prompt back for B
    assert bill.write_tokens.tolist() == [2500, 500, 3500, 100, 0]
    assert bill.uncached_tokens.tolist() == [0, 0, 0, 0, 800]
    usd = {name: bill.usd[name].sum() for name in COMPONENTS}
    assert usd == pytest.approx(
        {"uncached": 800 * 3e-6, "write": 6600 * 3.75e-6, "read": 4500 * 0.3e-6, "output": 380 * 15e-6}
    )
    assert bill.total_usd.sum() == pytest.approx(0.0342)


def test_an_hours_retention_keeps_the_lapsed_turn_and_costs_more_to_write() -> None:
    workload = conversation()
    bill = price(workload, workload.arrival_s, PRICES, ONE_HOUR)
    assert bill.hit_tokens.tolist() == [0, 2500, 3000, 2000, 0]
    assert bill.write_tokens.tolist() == [2500, 500, 500, 100, 0]
    assert bill.total_usd.sum() == pytest.approx(0.0024 + 3600 * 6e-6 + 7500 * 0.3e-6 + 0.0057)
    assert price(workload, workload.arrival_s, PRICES, NO_CACHING).total_usd.sum() == pytest.approx(
        11_900 * 3e-6 + 0.0057
    )


def test_the_end_of_the_retention_still_counts_and_a_use_prolongs_it() -> None:
    workload = conversation()
    on_time = np.array([0.0, 300.0, 600.0, 900.0, np.nan])
    bill = price(workload, on_time, PRICES, FIVE_MINUTES)
    assert bill.hit_tokens.tolist() == [0, 2500, 3000, 2000, 0]
    assert bill.output_tokens.tolist() == [100, 200, 50, 10, 0]  # never sent: costs nothing
    assert bill.total_usd[4] == 0


def test_breakpoints_decide_what_is_written() -> None:
    workload = conversation()
    only_layers = price(workload, workload.arrival_s, replace(PRICES, prompt_end=False), FOREVER)
    assert only_layers.hit_tokens.tolist() == [0, 2000, 2000, 2000, 0]
    assert only_layers.write_tokens.tolist() == [2000, 0, 0, 0, 0]
    only_end = price(workload, workload.arrival_s, replace(PRICES, max_breakpoints=1), FOREVER)
    assert only_end.hit_tokens.tolist() == [0, 2500, 3000, 0, 0]  # B finds no entry that ends with the system prompt
    every_1024 = price(workload, workload.arrival_s, replace(PRICES, breakpoints=1024), FOREVER)
    assert every_1024.hit_tokens.tolist() == [0, 2048, 2048, 1024, 0]
    assert every_1024.write_tokens.tolist() == [2048, 0, 1024, 1024, 0]
    for bad in (
        replace(PRICES, breakpoints=0),
        replace(PRICES, breakpoints="turns"),
        replace(PRICES, max_breakpoints=0),
    ):
        with pytest.raises(ValueError, match="expected"):
            price(workload, workload.arrival_s, bad, FOREVER)


# ---- any workload ----

WORLDS = st.builds(random_workload, st.integers(0, 10_000))


def every_entry(workload: Workload, block: int, minimum: int, seconds: float) -> list[int]:
    """Hits by keeping each cached prefix on its own: (node that holds its last token, depth) -> last use."""
    tree, used, hits = workload.tree, {}, np.zeros(len(workload), int)
    for r in np.argsort(workload.arrival_s, kind="stable").tolist():
        keys = []
        for depth in range(block, int(workload.prompt_tokens[r]) + 1, block):
            node = int(workload.leaf[r])
            if tree.end[node] < depth:
                node = -1 - r  # private
            while node >= 0 and tree.parent[node] >= 0 and tree.end[tree.parent[node]] >= depth:
                node = int(tree.parent[node])
            if depth >= minimum:
                keys.append((node, depth))
        live = [
            depth
            for node, depth in keys
            if (node, depth) in used and workload.arrival_s[r] - used[node, depth] <= seconds
        ]
        hits[r] = max(live, default=0)
        used |= dict.fromkeys(keys, float(workload.arrival_s[r]))
    return hits.tolist()


@settings(max_examples=100, deadline=None)
@given(WORLDS, st.integers(1, 9), st.integers(0, 40), st.sampled_from([0.0, 0.3, 1.0, 3.0]))
def test_runs_of_blocks_behave_as_single_entries(workload: Workload, block: int, minimum: int, seconds: float) -> None:
    prices = replace(PRICES, breakpoints=block, minimum_tokens=minimum)
    bill = price(workload, workload.arrival_s, prices, Retention("", seconds, 1.0))
    assert bill.hit_tokens.tolist() == every_entry(workload, block, minimum, seconds)


@settings(max_examples=50, deadline=None)
@given(WORLDS, st.integers(1, 9))
def test_forever_and_free_writes_is_the_ceiling(workload: Workload, block: int) -> None:
    workload = picked(workload, np.argsort(workload.arrival_s, kind="stable"))
    bill = price(workload, workload.arrival_s, replace(PRICES, breakpoints=block, minimum_tokens=0), FOREVER)
    ceiling = replay(workload, "lru", None, "full-blocks", block).depth_blocks * block
    assert np.minimum(bill.hit_tokens, (workload.prompt_tokens - 1) // block * block).tolist() == ceiling.tolist()
    saved = price(workload, workload.arrival_s, PRICES, NO_CACHING).total_usd.sum() - bill.total_usd.sum()
    assert saved == pytest.approx(bill.hit_tokens.sum() * 2.7e-6)


@settings(max_examples=50, deadline=None)
@given(WORLDS, st.sampled_from(["layers", 1, 7]), st.integers(0, 9))
def test_tokens_reconcile_order_is_time_and_longer_retention_reads_no_less(
    workload: Workload, breakpoints: str | int, seed: int
) -> None:
    prices = replace(PRICES, breakpoints=breakpoints, minimum_tokens=5)
    at_s = workload.arrival_s + np.arange(len(workload)) * 1e-6  # no ties
    short, long = (price(workload, at_s, prices, Retention("", seconds, 1.25)) for seconds in (0.5, 2.0))
    for bill in (short, long):
        assert (bill.hit_tokens + bill.write_tokens + bill.uncached_tokens == workload.prompt_tokens).all()
        assert min(bill.write_tokens.min(), bill.uncached_tokens.min()) >= 0
    assert (long.hit_tokens >= short.hit_tokens).all()
    shuffled = np.random.default_rng(seed).permutation(len(workload))
    assert (
        price(picked(workload, shuffled), at_s[shuffled], prices, ONE_HOUR).total_usd.tolist()
        == price(workload, at_s, prices, ONE_HOUR).total_usd[shuffled].tolist()
    )
