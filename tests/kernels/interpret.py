"""Runs kernels in triton's interpreter and compares them with the fp64 references. A worker of test_interpreted.py.

    TRITON_INTERPRET=1 python -m tests.kernels.interpret < case-ids.json

Interpreting is decided when the jit decorator runs, so this is always a process of its own. Caches hold NaN wherever no
sequence has a token, blocks of a sequence are scattered, and rows that no query owns must still be NaN afterwards."""

import time
from dataclasses import replace
from typing import NamedTuple

import torch

from kernels import checks, reference
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


def attention(run: Run, generator: torch.Generator) -> Outcome:
    b, heads = run.block_size, KV_HEADS * run.group
    config = config_for("interpreter", run.op, run.head_dim)
    if run.op == "prefill" and run.group > 1:  # interpreting costs the same for any tile size
        config = replace(config, block_m=64 if run.group == 4 else 128)
    common = {"group": run.group, "kv_heads": KV_HEADS, "config": config, "sms": 4, "splits": run.splits}
    if run.op == "prefill":
        lengths, cached = prefill_lengths(run)
        plan = plan_prefill(lengths, cached, **common)
        totals, rows = [n + c for n, c in zip(lengths, cached, strict=True)], sum(lengths)
    else:
        totals = {
            "equal": [2 * b + 3] * 4,
            "skewed": [300, 1, 5, 17],
            "edges": [1, b - 1, b, b + 1, 0, 3 * b],
            "long": [1100, 0, 450],
        }[run.shape]
        plan = plan_decode(totals, **common)
        rows = len(totals)
    *caches, table = checks.poisoned_batch(
        totals, b, KV_HEADS, run.head_dim, getattr(torch, run.dtype), "cpu", generator.initial_seed(), run.layout
    )
    q = torch.randn(rows + 3, heads, run.head_dim, generator=generator).to(caches[0].dtype)
    out = torch.full_like(q, torch.nan)
    (prefill_attention if run.op == "prefill" else decode_attention)(
        q, *caches, table, Work(plan, "cpu", run.head_dim), out
    )
    expected = reference.attention(q, *caches, table, plan)
    filled = int(expected.isfinite().all(-1).any(-1).sum())
    assert filled == plan.query_lens.sum(), f"the reference filled {filled} rows"
    return Outcome(*checks.compare(out.flatten(1), expected.flatten(1)), len(plan.items) * KV_HEADS, 0.0)


def prefill_lengths(run: Run) -> tuple[list[int], list[int]]:
    """(new, cached) tokens: around a block's edges, beside prefixes of none, whole and broken blocks."""
    b = run.block_size
    if run.shape == "long":
        return [90, 1], [130, 0]
    if (
        run.splits and run.splits > 1
    ):  # the merge runs a program per row, each as dear as a tile: fewer queries, longer prefixes
        cached = {"fresh": [0] * 3, "cached": [b, 3 * b - 2, 2 * b + 1], "mixed": [0, 3 * b + 2, 70]}
        return [1, 5, b + 1 if b == 16 else 7], cached[run.shape]
    return [1, b - 1, b, b + 1, 37], {
        "fresh": [0] * 5,
        "cached": [b, 1, 2 * b, b - 1, b + 5],
        "mixed": [0, 70, 0, 1, 0],
    }[run.shape]


def rope(run: Run, generator: torch.Generator) -> Outcome:
    tokens, heads, d, dtype = 9, KV_HEADS * run.group, run.head_dim, getattr(torch, run.dtype)
    qkv = torch.randn(tokens, (heads + 2 * KV_HEADS) * d, generator=generator).to(dtype)
    q, k, v = (x.view(tokens, -1, d) for x in qkv.split([heads * d, KV_HEADS * d, KV_HEADS * d], dim=1))
    slots = torch.randperm(4 * run.block_size, generator=generator)[:tokens]
    slots[::4] = -1
    positions = torch.randint(0, 200, (tokens,), generator=generator)
    cos, sin = reference.rope_tables(200, d)
    caches = [checks.empty_cache(4, run.block_size, KV_HEADS, d, dtype, "cpu", run.layout) for _ in range(2)]
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
    counts = {
        "even": [16] * 4,
        "skewed": [70, 1, 0, 2, 3],
        "empty": [0, 0, 33, 0],
        "padded": [5, 40, 6],
        "ragged": [31, 32, 33],
    }[run.shape]
    extra = 11 if run.shape == "padded" else 0
    tokens, columns, depth, dtype = sum(counts) + extra, 72, 80, getattr(torch, run.dtype)
    x = torch.randn(tokens, depth, generator=generator).to(dtype)
    x[sum(counts) :] = torch.nan
    w = torch.randn(len(counts), columns, depth, generator=generator).to(dtype)
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    out = torch.full((tokens, columns), torch.nan, dtype=dtype)
    grouped_gemm(x, w, offsets, out)
    return Outcome(*checks.compare(out, reference.grouped_gemm(x, w, offsets)), tokens, 0.0)


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
