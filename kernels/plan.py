"""Cuts a batch into work items before anything runs on the GPU: numpy only, no device, no synchronisation.

A work item is a few queries of one sequence against one interval of its keys, for every KV head. Prefill cuts a prompt
into tiles of queries, decode has one query a sequence; either is cut along its keys too when that finishes sooner, and
a second kernel merges the parts. Because an item names its own interval, one 64k context beside thirty-one of 512 costs
no more programs than its tokens need.

    plan = plan_decode([65536] + [512] * 31, group=4, kv_heads=8, config=config_for("sm_90", "decode", 128), sms=132)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.configs import Config

# Columns of `items` and `merges`; the kernels read them by position.
ITEM = ("seq", "token", "queries", "position", "kv_start", "kv_end", "slot", "unused")
MERGE = ("token", "queries", "slot", "splits")

# Costs in units of one key tile, for choosing splits only: starting a program, writing and reading back one part, and
# the merge kernel.
START_TILES = 2.0
PART_TILES = {"decode": 0.25, "prefill": 6.0}
MERGE_TILES = 3.0
MAX_WAVES = 4  # splits never ask for more than this many waves of programs: it bounds the partial results


@dataclass(frozen=True)
class Plan:
    """Work of one attention call. Sequence i has query_lens[i] new tokens after cached_lens[i] tokens already in its
    cache."""

    op: str
    query_lens: np.ndarray  # (seqs,) new tokens, whose K and V are already written
    cached_lens: np.ndarray  # (seqs,) tokens before them
    items: np.ndarray  # (n, 8) int32, columns ITEM, longest first
    merges: np.ndarray  # (m, 4) int32, columns MERGE
    slots: int  # partial results written
    rows: int  # rows of one partial result: queries of a tile x group
    group: int
    kv_heads: int
    config: Config


def plan_prefill(
    query_lens: Sequence[int],
    cached_lens: Sequence[int],
    *,
    group: int,
    kv_heads: int,
    config: Config,
    sms: int,
    splits: int | None = None,
) -> Plan:
    """Tiles of block_m // group queries; along the keys into `splits` parts (None: chosen from the work and `sms`
    multiprocessors)."""
    query, cached = _lengths("query_lens", query_lens, 0), _lengths("cached_lens", cached_lens, 0)
    if query.shape != cached.shape:
        raise ValueError(f"query_lens has {query.size} sequences, cached_lens {cached.size}")
    step = config.block_m // group
    if step == 0:
        raise ValueError(f"{group} query heads per KV head do not fit a tile of {config.block_m} rows")
    tiles = -(-query // step)
    seq = np.repeat(np.arange(query.size), tiles)
    first = (np.arange(seq.size) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * step
    token = (np.cumsum(query) - query)[seq] + first
    queries = np.minimum(step, query[seq] - first)
    return _cut(
        "prefill", query, cached, seq, token, queries, cached[seq] + first, group, kv_heads, config, sms, splits
    )


def plan_decode(
    context_lens: Sequence[int], *, group: int, kv_heads: int, config: Config, sms: int, splits: int | None = None
) -> Plan:
    """One query a sequence, at position context_len - 1 (the context counts the new token, whose K and V are already
    written).

    A context of 0 is an empty place in the batch: no work, its output row is left alone.
    """
    context = _lengths("context_lens", context_lens, 0)
    if group > config.block_m:
        raise ValueError(f"{group} query heads per KV head do not fit a tile of {config.block_m} rows")
    seq = np.flatnonzero(context)
    one = np.ones(seq.size, np.int64)
    query = (context > 0).astype(np.int64)
    return _cut(
        "decode",
        query,
        np.maximum(context - 1, 0),
        seq,
        seq,
        one,
        context[seq] - 1,
        group,
        kv_heads,
        config,
        sms,
        splits,
    )


def capacity(batch: int, *, kv_heads: int, config: Config, sms: int) -> tuple[int, int]:
    """(items, slots) that no decode plan of up to `batch` sequences exceeds: what a CUDA graph allocates once."""
    parts = batch + MAX_WAVES * -(-sms * config.per_sm // kv_heads)
    return parts, parts


def chosen_chunk(tiles: np.ndarray, kv_heads: int, places: int, part_tiles: float) -> int:
    """Key tiles per item that finish soonest on `places` concurrent programs. `tiles` (n,): key tiles of each uncut
    item.

    Each candidate's time is the mean of its lower bound (all places busy) and its upper bound (whole waves of the
    longest item), plus the merge. Memory-bound work ends between the two: a wave that is not full gets more of the
    bandwidth."""
    if tiles.size == 0:
        return 1
    total = int(tiles.sum()) * kv_heads
    longest = int(tiles.max())
    candidates = {longest} | {max(1, -(-total // (places * waves))) for waves in range(1, MAX_WAVES + 1)}
    best, chosen = float("inf"), longest
    for chunk in sorted((c for c in candidates if c <= longest), reverse=True):
        parts = -(-tiles // chunk)
        programs = int(parts.sum()) * kv_heads
        split = int(parts[parts > 1].sum()) * kv_heads
        each = float((-(-tiles // parts)).max()) + START_TILES
        lower = max(each, (total + START_TILES * programs) / places)
        upper = -(-programs // places) * each
        time = (lower + upper) / 2 + (MERGE_TILES + 2 * part_tiles * split / places if split else 0.0)
        if time < best:
            best, chosen = time, chunk
    return chosen


def _cut(op, query, cached, seq, token, queries, position, group, kv_heads, config, sms, splits) -> Plan:
    """Cut items (one row each of seq, token, queries, position) along their keys, longest first."""
    kv_end = position + queries
    tiles = -(-kv_end // config.block_n)
    if splits is None:
        chunk = chosen_chunk(tiles, kv_heads, sms * config.per_sm, PART_TILES[op])
        parts = -(-tiles // chunk)
    else:
        parts = np.minimum(tiles, splits)
    order = np.repeat(np.arange(seq.size), parts)
    part = np.arange(order.size) - np.repeat(np.cumsum(parts) - parts, parts)
    # Parts of an item differ by at most one tile and start on a tile, so a tile never straddles two parts.
    start = (part * tiles[order] // np.maximum(parts[order], 1)) * config.block_n
    end = np.minimum(((part + 1) * tiles[order] // np.maximum(parts[order], 1)) * config.block_n, kv_end[order])
    cut = parts[order] > 1
    slot = np.where(cut, np.cumsum(cut) - 1, -1)
    items = np.stack(
        [seq[order], token[order], queries[order], position[order], start, end, slot, np.zeros_like(slot)], axis=1
    )
    items = items[np.argsort(start - end, kind="stable")].astype(np.int32)
    several = np.flatnonzero(parts > 1)
    first = (np.cumsum(np.where(parts > 1, parts, 0)) - parts)[several]
    merges = np.stack([token[several], queries[several], first, parts[several]], axis=1).astype(np.int32)
    rows = (config.block_m // group) * group if op == "prefill" else group
    return Plan(op, query, cached, items, merges, int(cut.sum()), rows, group, kv_heads, config)


def _lengths(name: str, values: Sequence[int], least: int) -> np.ndarray:
    array = np.asarray(values, dtype=np.int64)
    if array.ndim != 1:
        raise ValueError(f"{name} has {array.ndim} dimensions, expected one length per sequence")
    if array.size and array.min() < least:
        raise ValueError(f"{name}[{int(array.argmin())}] is {int(array.min())}, expected at least {least}")
    return array
