"""Runs kernels in triton's interpreter and compares them with the fp64 references. A worker of test_interpreted.py.

    TRITON_INTERPRET=1 python -m tests.kernels.interpret < case-ids.json

Interpreting is decided when the jit decorator runs, so this is always a process of its own. Caches hold NaN wherever no sequence has a
token, blocks of a sequence are scattered, and rows that no query owns must still be NaN afterwards.
"""
import time
from dataclasses import replace
from typing import NamedTuple

import torch

from kernels import reference
from kernels.attention import Work
from kernels.backend import INTERPRETED
from kernels.configs import config_for
from kernels.decode import decode_attention
from kernels.moe import grouped_gemm
from kernels.plan import plan_decode, plan_prefill
from kernels.prefill import prefill_attention
from kernels.rope import rope_and_write
from tests.kernels.cases import Run, interpreted

KV_HEADS = 2


class Outcome(NamedTuple):
    error: float  # largest relative error of a row
    untouched: bool  # rows and cache places that nobody owns kept their NaN
    programs: int
    seconds: float


def empty_cache(run: Run, blocks: int) -> torch.Tensor:
    """All NaN, shape (blocks, block size, KV heads, head size), in the memory order asked for."""
    dtype = getattr(torch, run.dtype)
    if run.layout == "nhd":
        return torch.full((blocks, run.block_size, KV_HEADS, run.head_dim), torch.nan, dtype=dtype)
    return torch.full((blocks, KV_HEADS, run.block_size, run.head_dim), torch.nan, dtype=dtype).transpose(1, 2)


def filled_cache(run: Run, lengths: list[int], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """k_cache, v_cache, block_table: random where a sequence has a token, NaN elsewhere; unused table entries name an all-NaN block."""
    needed = [-(-n // run.block_size) for n in lengths]
    blocks = sum(needed) + 2
    order = torch.randperm(blocks, generator=generator).tolist()
    poison = order.pop()
    table = torch.full((len(lengths), max(needed) + 1), poison, dtype=torch.int32)
    k_cache, v_cache = empty_cache(run, blocks), empty_cache(run, blocks)
    for seq, length in enumerate(lengths):
        for place in range(needed[seq]):
            block = order.pop()
            table[seq, place] = block
            live = min(run.block_size, length - place * run.block_size)
            for cache in (k_cache, v_cache):
                cache[block, :live] = torch.randn(live, KV_HEADS, run.head_dim, generator=generator).to(cache.dtype)
    return k_cache, v_cache, table


def attention(run: Run, generator: torch.Generator) -> Outcome:
    b, heads = run.block_size, KV_HEADS * run.group
    config = config_for("interpreter", run.op, run.head_dim)
    if run.op == "prefill" and run.group > 1:  # interpreting costs the same for any tile size
        config = replace(config, block_m=64 if run.group == 4 else 128)
    common = {"group": run.group, "kv_heads": KV_HEADS, "config": config, "sms": 4, "splits": run.splits}
    if run.op == "prefill":
        lengths = [1, b - 1, b, b + 1, 37]
        cached = {"fresh": [0] * 5, "cached": [b, 1, 2 * b, b - 1, b + 5], "mixed": [0, 70, 0, 1, 0]}[run.shape]
        plan = plan_prefill(lengths, cached, **common)
        totals, rows = [n + c for n, c in zip(lengths, cached, strict=True)], sum(lengths)
    else:
        totals = {"equal": [2 * b + 3] * 4, "skewed": [300, 1, 5, 17], "edges": [1, b - 1, b, b + 1, 0, 3 * b]}[run.shape]
        plan = plan_decode(totals, **common)
        rows = len(totals)
    k_cache, v_cache, table = filled_cache(run, totals, generator)
    q = torch.randn(rows + 3, heads, run.head_dim, generator=generator).to(k_cache.dtype)
    out = torch.full_like(q, torch.nan)
    (prefill_attention if run.op == "prefill" else decode_attention)(q, k_cache, v_cache, table, Work(plan, "cpu", run.head_dim), out)
    expected = reference.attention(q, k_cache, v_cache, table, plan)
    owned = expected.isfinite().all(-1)
    assert int(owned.any(-1).sum()) == (plan.query_lens.sum() if run.op == "prefill" else len([t for t in totals if t]))
    return Outcome(reference.relative_error(out[owned], expected[owned]), bool(out[~owned].isnan().all()), len(plan.items) * KV_HEADS, 0.0)


def rope(run: Run, generator: torch.Generator) -> Outcome:
    tokens, heads, d, dtype = 9, KV_HEADS * run.group, run.head_dim, getattr(torch, run.dtype)
    qkv = torch.randn(tokens, (heads + 2 * KV_HEADS) * d, generator=generator).to(dtype)
    q, k, v = (x.view(tokens, -1, d) for x in qkv.split([heads * d, KV_HEADS * d, KV_HEADS * d], dim=1))
    slots = torch.randperm(4 * run.block_size, generator=generator)[:tokens]
    slots[::4] = -1
    positions = torch.randint(0, 200, (tokens,), generator=generator)
    cos, sin = reference.rope_tables(200, d)
    caches = [empty_cache(run, 4) for _ in range(2)]
    expected = [x.double() for x in (q, *caches)]
    reference.rope_and_write(expected[0], k, v, *expected[1:], cos, sin, positions, slots)
    rope_and_write(q, k, v, *caches, cos, sin, positions, slots)
    errors = [reference.relative_error(q, expected[0])]
    untouched = True
    for cache, want in zip(caches, expected[1:], strict=True):
        written = want.isfinite()
        untouched &= bool((cache.isfinite() == written).all())
        errors.append(reference.relative_error(cache[written].view(-1, d), want[written].view(-1, d)))
    return Outcome(max(errors), untouched, tokens, 0.0)


def moe(run: Run, generator: torch.Generator) -> Outcome:
    counts = {"even": [16] * 4, "skewed": [70, 1, 0, 2, 3], "empty": [0, 0, 33, 0], "padded": [5, 40, 6], "ragged": [31, 32, 33]}[run.shape]
    extra = 11 if run.shape == "padded" else 0
    tokens, columns, depth, dtype = sum(counts) + extra, 72, 80, getattr(torch, run.dtype)
    x = torch.randn(tokens, depth, generator=generator).to(dtype)
    x[sum(counts) :] = torch.nan
    w = torch.randn(len(counts), columns, depth, generator=generator).to(dtype)
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    out = torch.full((tokens, columns), torch.nan, dtype=dtype)
    grouped_gemm(x, w, offsets, out)
    used = sum(counts)
    error = reference.relative_error(out[:used], reference.grouped_gemm(x, w, offsets)[:used])
    return Outcome(error, bool(out[used:].isnan().all()), tokens, 0.0)


def execute(run: Run) -> Outcome:
    begin = time.process_time()
    generator = torch.Generator().manual_seed(int.from_bytes(run.id.encode(), "little") % 2**31)
    outcome = {"prefill": attention, "decode": attention, "rope": rope, "moe": moe}[run.op](run, generator)
    return outcome._replace(seconds=time.process_time() - begin)


def main() -> None:
    from tests.kernels.workers import serve

    assert INTERPRETED, "set TRITON_INTERPRET=1 before starting python"
    torch.set_num_threads(1)
    cases = {run.id: run for everything in (False, True) for run in interpreted(everything)}
    serve(lambda case_id: execute(cases[case_id])._asdict())


if __name__ == "__main__":
    main()
