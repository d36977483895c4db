"""How a batch is cut into work items: every key of every query exactly once, no more parts than a CUDA graph has room
for."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.configs import SHARED_LIMIT, TABLE, Config, config_for, cuda_arch
from kernels.plan import ITEM, Plan, capacity, plan_decode, plan_prefill

DECODE, PREFILL = config_for("sm_90", "decode", 128), config_for("sm_90", "prefill", 128)
H200 = {"group": 4, "kv_heads": 8, "sms": 132}
heads = st.fixed_dictionaries(
    {
        "group": st.sampled_from([1, 4, 7, 8]),
        "kv_heads": st.sampled_from([1, 2, 8]),
        "sms": st.sampled_from([1, 4, 132]),
    }
)
parts = st.sampled_from([None, 1, 2, 5])


def check_cover(plan: Plan) -> None:
    """Parts of each query tile meet without gap or overlap, and the merges name exactly the parts that were cut."""
    intervals, slots = defaultdict(list), {}
    for row in plan.items:
        item = dict(zip(ITEM, row.tolist(), strict=True))
        intervals[item["seq"], item["token"], item["queries"], item["position"]].append(
            (item["kv_start"], item["kv_end"], item["slot"])
        )
        assert item["kv_start"] % plan.config.block_n == 0
        assert item["kv_start"] < item["kv_end"]
        assert item["queries"] * plan.group <= max(plan.rows, plan.group)
    queries = defaultdict(int)
    for (seq, token, count, position), found in intervals.items():
        found.sort()
        assert [s for s, _, _ in found] == [0, *(e for _, e, _ in found[:-1])]
        assert found[-1][1] == position + count
        queries[seq] += count
        numbers = [slot for _, _, slot in found]
        if len(found) == 1:
            assert numbers == [-1]
        else:
            slots[token] = (count, numbers)
    assert queries == {seq: n for seq, n in enumerate(plan.query_lens.tolist()) if n}
    merged = {token: (count, list(range(first, first + many))) for token, count, first, many in plan.merges.tolist()}
    assert merged == slots
    assert sorted(n for _, numbers in slots.values() for n in numbers) == list(range(plan.slots))
    lengths = plan.items[:, 5] - plan.items[:, 4]
    assert (np.diff(lengths) <= 0).all()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3000)), min_size=1, max_size=6), heads, parts)
def test_prefill_covers_every_key_once(lengths, kwargs, splits) -> None:
    new, cached = zip(*lengths, strict=True)
    plan = plan_prefill(new, cached, config=PREFILL, splits=splits, **kwargs)
    check_cover(plan)
    tiles = plan.items[:, [1, 2, 3]]
    starts = np.cumsum(new) - np.array(new)
    for seq, row in zip(plan.items[:, 0], tiles, strict=True):
        assert row[0] - starts[seq] == row[2] - cached[seq]  # a tile's first row and its position agree


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=40), heads, parts)
def test_decode_covers_every_key_once_within_capacity(contexts, kwargs, splits) -> None:
    plan = plan_decode(contexts, config=DECODE, splits=splits, **kwargs)
    check_cover(plan)
    if splits is None:
        items, slots = capacity(len(contexts), kv_heads=kwargs["kv_heads"], config=DECODE, sms=kwargs["sms"])
        assert len(plan.items) <= items
        assert plan.slots <= slots
        assert len(plan.merges) <= slots // 2


def test_equal_long_contexts_that_fill_the_gpu_are_not_cut() -> None:
    plan = plan_decode([4096] * 64, config=DECODE, **H200)
    assert (len(plan.items), plan.slots) == (64, 0)


def test_a_few_short_contexts_are_cut_to_fill_the_gpu() -> None:
    plan = plan_decode([1024] * 16, config=DECODE, **H200)
    assert 132 <= len(plan.items) * 8 <= 4 * 132 * DECODE.per_sm
    assert plan.slots == len(plan.items)


def test_one_long_context_is_cut_and_its_short_neighbours_are_not() -> None:
    plan = plan_decode([65536] + [512] * 31, config=DECODE, **H200)
    lengths = plan.items[:, 5] - plan.items[:, 4]
    assert [row[0] for row in plan.merges.tolist()] == [0]
    fair = (65536 + 31 * 512) * 8 / (132 * DECODE.per_sm)
    assert lengths.max() <= 1.5 * fair
    assert len(plan.items) == plan.slots + 31


def test_a_short_prompt_over_a_long_prefix_is_cut_along_its_keys() -> None:
    plan = plan_prefill([16], [131_072], config=PREFILL, **H200)
    assert len(plan.items) * 8 >= 132
    assert plan_prefill([8192], [0], config=PREFILL, **H200).slots == 0


def test_bad_input_names_the_value() -> None:
    with pytest.raises(ValueError, match=r"context_lens\[1\] is -3"):
        plan_decode([4, -3], config=DECODE, **H200)
    with pytest.raises(ValueError, match="2 sequences, cached_lens 1"):
        plan_prefill([4, 3], [0], config=PREFILL, **H200)
    with pytest.raises(ValueError, match="32 query heads per KV head do not fit a tile of 16 rows"):
        plan_decode([4], config=DECODE, group=32, kv_heads=1, sms=132)


def test_every_generation_has_every_row() -> None:
    for arch in (*SHARED_LIMIT, "interpreter"):
        for op in ("prefill", "decode"):
            assert all(isinstance(config_for(arch, op, d), Config) for d in (64, 128, 256))
        assert config_for(arch, "moe").block_k > 0
    assert set(TABLE) == {*SHARED_LIMIT, "interpreter"}
    assert [cuda_arch(8, 9), cuda_arch(9, 0), cuda_arch(10, 3), cuda_arch(12, 0)] == [
        "sm_80",
        "sm_90",
        "sm_100",
        "sm_80",
    ]
    with pytest.raises(KeyError, match="head size 96"):
        config_for("sm_90", "prefill", 96)
    with pytest.raises(KeyError, match=r"7\.5 is not supported"):
        cuda_arch(7, 5)
