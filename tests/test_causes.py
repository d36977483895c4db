"""Where every prompt token went: exact tiny worlds, and sums and depths against a walk request by request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.measure.causes import CAUSES, Causes, miss_causes
from sim.measure.report import build_report
from sim.recording import Recording
from sim.scenario import CacheConfig
from tests.recordings import recording, scenario, steps, workload
from workloads.columns import SCOPES, PrefixTree, Workload

LAYERS: dict[str, Any] = {"layer_names": ("tools", "project", "chat", "clock"), "layer_scopes": (1, 2, 3, 4)}


def tree(
    parent: list[int], end: list[int], layer: list[int], twin: list[int] | None = None, content: list[int] | None = None
) -> PrefixTree:
    return PrefixTree(
        np.array(parent, np.int32),
        np.array(end, np.int64),
        np.array(layer, np.int16),
        None if twin is None else np.array(twin, np.int32),
        None if content is None else np.array(content, np.int64),
    )


def served(
    n: int,
    block: int,
    hit: list[int] | None = None,
    replica_ceiling: list[int] | None = None,
    fleet: list[int] | None = None,
    admit: list[float] | None = None,
    finish: list[float] | None = None,
) -> Recording:
    hit = hit or [0] * n
    replica_ceiling = replica_ceiling or hit
    admit = admit or [float(i) for i in range(n)]
    return recording(
        admit,
        [steps(np.array([100.0]))],
        admit_s=admit,
        finish_s=finish or [t + 50.0 for t in admit],
        hit_tokens=hit,
        ceiling_replica_tokens=replica_ceiling,
        ceiling_fleet_tokens=fleet or replica_ceiling,
        block_size=block,
    )


def causes_of(rec: Recording, work: Workload, caching: bool = True) -> Causes:
    every = np.arange(len(work))
    found = miss_causes(rec, work, every, every, len(work), caching)
    total = rec.hit_tokens + sum(found.tokens.values())
    assert total.tolist() == work.prompt_tokens.tolist()
    assert all((column >= 0).all() for column in found.tokens.values())
    for cause in CAUSES:
        assert found.by_scope[cause].sum(axis=1).tolist() == found.tokens[cause].tolist(), cause
        assert (found.by_scope[cause] >= 0).all(), cause
    assert found.by_scope["hit"].sum(axis=1).tolist() == rec.hit_tokens.tolist()
    return found


def nonzero(found: Causes, request: int) -> dict[str, int]:
    return {c: int(v[request]) for c, v in found.tokens.items() if v[request]}


def test_every_stretch_of_one_prompt() -> None:
    work = workload([50], [5], [1], tree([-1, 0], [0, 40], [0, 0]), **LAYERS)
    rec = served(1, 8, hit=[8], replica_ceiling=[24], fleet=[32])
    found = causes_of(rec, work)
    # 6 full blocks of 8; the last token can never be a hit, so 49 // 8 * 8 = 48
    assert nonzero(found, 0) == {"evicted": 16, "other_replica": 8, "cold": 16, "partial_block": 2}


def test_the_last_token_of_a_full_block_is_a_partial_block() -> None:
    work = workload([32], [5], [1], tree([-1, 0], [0, 32], [0, 0]), **LAYERS)
    assert nonzero(causes_of(served(1, 16), work), 0) == {"cold": 16, "partial_block": 16}


def test_a_cache_that_is_off_evicts_nothing() -> None:
    work = workload([50, 50], [5, 5], [1, 1], tree([-1, 0], [0, 40], [0, 0]), **LAYERS)
    rec = served(2, 8, replica_ceiling=[0, 40])
    assert nonzero(causes_of(rec, work, caching=False), 1) == {"cache_off": 40, "cold": 8, "partial_block": 2}
    assert nonzero(causes_of(rec, work), 1) == {"evicted": 40, "cold": 8, "partial_block": 2}
    assert build_report(rec, work, scenario(cache=CacheConfig(enabled=False))).summary["miss_tokens"]["cache_off"] == 40


def test_another_tenants_text() -> None:
    # two roots; node 3 under the second is what node 1 is under the first
    t = tree([-1, -1, 0, 1, 3], [0, 0, 20, 20, 30], [0, 0, 0, 0, 1], twin=[0, 0, 2, 2, 4])
    work = workload([20, 40, 40], [1, 1, 1], [2, 4, 4], t, **LAYERS)
    found = causes_of(served(3, 4, fleet=[0, 0, 28]), work)
    assert nonzero(found, 0) == {"cold": 16, "partial_block": 4}
    assert nonzero(found, 1) == {"other_tenant": 20, "cold": 16, "partial_block": 4}
    assert nonzero(found, 2) == {
        "other_replica": 28,
        "cold": 6,
        "partial_block": 6,
    }  # 2 shared tokens end in a block of other text
    assert found.by_scope["other_tenant"][1].tolist() == [0, 20, 0, 0, 0]


def test_shared_text_that_ends_inside_a_block() -> None:
    # a 1,000-token layer and private messages: 62 blocks of 16 are shared, the layer's last 8 tokens share a block with
    # the message
    t = tree([-1, 0], [0, 1000], [0, 0], content=[-1, 5])
    work = workload([1100, 1100], [1, 1], [1, 1], t, **LAYERS)
    found = causes_of(served(2, 16, hit=[0, 992]), work)
    assert nonzero(found, 1) == {"partial_block": 8 + 12, "cold": 88}
    assert found.shared_partial.tolist() == [0, 8]
    assert build_report(served(2, 16, hit=[0, 992]), work, scenario()).summary["shared_partial_block_tokens"] == 8


def test_text_that_follows_a_changed_layer() -> None:
    # a clock of 4 tokens, then the same 20-token project text under both clocks
    t = tree([-1, 0, 1, 0, 3], [0, 4, 24, 4, 24], [3, 3, 1, 3, 1], content=[-1, 7, 8, 9, 8])
    work = workload([30, 30], [1, 1], [2, 4], t, tail_layer=np.array([2, 2], np.int16), **LAYERS)
    found = causes_of(served(2, 1), work)
    assert nonzero(found, 0) == {"cold": 29, "partial_block": 1}
    assert nonzero(found, 1) == {"changed_earlier": 20, "cold": 9, "partial_block": 1}
    assert found.changed_layer.tolist() == [-1, 3]  # the clock
    assert found.by_scope["changed_earlier"][1][SCOPES.index("project")] == 20
    report = build_report(served(2, 1), work, scenario())
    assert report.classes["all"]["changed_layers"] == {"clock": 20}
    assert report.summary["miss_tokens"]["changed_earlier"] == 20


def test_what_a_trace_cannot_say_is_none_and_cold() -> None:
    work = workload([32], [5], [1], tree([-1, 0], [0, 32], [0, 0]), **LAYERS)
    report = build_report(served(1, 16), work, scenario())
    assert report.summary["miss_tokens"]["changed_earlier"] is None
    assert report.summary["miss_tokens"]["other_tenant"] == 0  # one root: nobody is isolated
    assert any("changed_earlier is not determinable" in note for note in report.notes)


def test_a_prompt_admitted_while_the_same_text_is_half_prefilled() -> None:
    work = workload([100, 100], [1, 1], [1, 1], tree([-1, 0], [0, 96], [0, 0]), **LAYERS)
    found = causes_of(served(2, 16, hit=[0, 32]), work)  # 32 tokens were in, 64 under way
    assert nonzero(found, 1) == {"in_flight": 64, "partial_block": 4}


def test_generated_text_counts_from_the_finish_without_its_last_token() -> None:
    # turn 1: prompt 10 and 6 generated tokens in one node; turn 2 continues it
    t = tree([-1, 0, 1], [0, 16, 20], [2, 2, 2])
    work = workload([10, 20], [6, 1], [1, 2], t, **LAYERS)
    early = causes_of(served(2, 1, admit=[0.0, 1.0], finish=[5.0, 9.0]), work)
    assert nonzero(early, 1) == {"cold": 19, "partial_block": 1}
    late = causes_of(served(2, 1, admit=[0.0, 5.0], finish=[5.0, 9.0]), work)
    assert nonzero(late, 1) == {"in_flight": 15, "cold": 4, "partial_block": 1}


def test_impossible_depths_are_refused() -> None:
    work = workload([50], [5], [1], tree([-1, 0], [0, 40], [0, 0]), **LAYERS)
    with pytest.raises(ValueError, match="request 0: expected hit <= replica ceiling"):
        miss_causes(served(1, 8, hit=[16], replica_ceiling=[8]), work, np.arange(1), np.zeros(1, np.int64), 1)


def test_reuse_depth_by_scope_and_class() -> None:
    t = tree([-1, 0, 1, 2], [0, 10, 30, 60], [0, 0, 1, 2])
    work = workload(
        [70, 70, 70],
        [5, 5, 5],
        [3, 3, 3],
        t,
        class_id=np.array([0, 1, 1], np.int16),
        class_names=("a", "b"),
        class_slo=("", ""),
        **LAYERS,
    )
    report = build_report(served(3, 5, hit=[0, 25, 60]), work, scenario())
    assert report.summary["hit_tokens"] == {
        "by_scope": {"global": 20, "project": 35, "session": 30},
        "by_class": {"a": 0, "b": 85},
    }
    assert report.classes["b"]["tokens_by_scope"]["hit"] == {"global": 20, "project": 35, "session": 30}
    assert report.classes["b"]["hit_tokens_per_request"]["p50"] == 42.5
    assert report.classes["b"]["prefix_hit_rate"] == pytest.approx(85 / 140)
    assert report.summary["reuse_ceiling_replica"] == pytest.approx(85 / 210)


def test_sums_per_tenant() -> None:
    t = tree([-1, -1, 0, 1], [0, 0, 20, 20], [0, 0, 0, 0], twin=[0, 0, 2, 2])
    work = workload(
        [20, 20], [1, 1], [2, 3], t, tenant_id=np.array([0, 1], np.int32), tenant_names=("acme", "blue"), **LAYERS
    )
    report = build_report(served(2, 4), work, scenario())
    assert report.tenants["acme"]["miss_tokens"]["other_tenant"] == 0
    assert report.tenants["blue"]["miss_tokens"]["other_tenant"] == 16
    assert report.tenants["blue"]["prefix_hit_rate"] == 0.0


@pytest.mark.parametrize("seed", range(30))
def test_equals_a_walk_request_by_request(seed: int) -> None:
    """A random tree with twins and contents; hits and ceilings at random depths that the same walk allows."""
    rng = np.random.default_rng(seed)
    block = int(rng.integers(1, 6))
    half, n = 12, 25
    parent, end = [-1], [0]
    for _ in range(half):
        up = int(rng.integers(0, len(parent)))
        parent.append(up)
        end.append(end[up] + int(rng.integers(1, 9)))
    size = len(parent)  # the same tree a second time, for another tenant
    both = parent + [p if p < 0 else p + size for p in parent]
    content = rng.integers(-1, 6, 2 * size).tolist()
    t = tree(both, end + end, rng.integers(0, 4, 2 * size).tolist(), twin=[*range(size), *range(size)], content=content)
    leaf = rng.integers(0, 2 * size, n)
    output = rng.integers(1, 8, n)
    prompt = np.maximum(t.end[leaf] - rng.integers(0, 2, n) * (output - 1), 1) + rng.integers(0, 6, n)
    output = np.maximum(output, t.end[leaf] - prompt)
    admit = np.sort(rng.integers(0, 40, n).astype(float))
    finish = admit + rng.integers(1, 10, n)
    work = workload(
        prompt.tolist(), output.tolist(), leaf.tolist(), t, tail_layer=rng.integers(0, 4, n).astype(np.int16), **LAYERS
    )

    def path(node: int) -> list[int]:
        return ([] if both[node] < 0 else path(both[node])) + [node]

    def seen(r: int, canonical: bool) -> int:
        """Tokens of r's path that lie in nodes an earlier request went through, whole."""
        deepest = 0
        for earlier in range(n):
            for node in path(leaf[earlier]):
                generated = t.end[node] > prompt[earlier]
                if (
                    not ((admit[r] >= finish[earlier]) if generated else (admit[earlier], earlier) < (admit[r], r))
                    or earlier == r
                ):
                    continue
                whole = int(t.end[node]) - int(t.end[node] == prompt[earlier] + output[earlier])
                mine = [k % size if canonical else k for k in path(leaf[r])]
                if (node % size if canonical else node) in mine:
                    deepest = max(deepest, whole)
        return deepest

    full = (prompt - 1) // block * block
    own = np.array([min(seen(r, False) // block * block, full[r]) for r in range(n)])
    canonical = np.array([min(seen(r, True) // block * block, full[r]) for r in range(n)])
    replica = own // block * rng.integers(0, 2, n) * block
    hit = replica // block // 2 * block
    found = causes_of(
        served(n, block, hit.tolist(), replica.tolist(), own.tolist(), admit.tolist(), finish.tolist()), work
    )
    assert found.tokens["in_flight"].sum() == 0
    assert found.tokens["other_tenant"].tolist() == (canonical - own).tolist()
    assert found.tokens["other_replica"].tolist() == (own - replica).tolist()
    text = np.array([min(max(seen(r, False), seen(r, True)), prompt[r]) for r in range(n)])
    within = np.clip(text, canonical, full) - canonical  # of a block that goes on with other text
    assert found.shared_partial.tolist() == (within + np.maximum(text - full, 0)).tolist()
    assert (found.shared_partial <= found.tokens["partial_block"]).all()
