"""Are the kernels right on this device: the first thing a GPU run shows.

    python -m kernels.checks                                    # on a GPU: about a minute, most of it compiling
    TRITON_INTERPRET=1 python -m kernels.checks --device cpu    # a rehearsal with short sequences

Every kernel against its fp64 reference, on caches that hold NaN wherever no sequence has a token. How fast they are:
kernels/rates.py."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels import reference
from kernels.attention import Work, arch_of, default_config, sm_count
from kernels.backend import torch
from kernels.decode import decode_attention
from kernels.moe import grouped_gemm
from kernels.plan import capacity, plan_decode, plan_prefill
from kernels.prefill import prefill_attention
from kernels.rope import rope_and_write

TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 5e-3}


@dataclass(frozen=True)
class Check:
    """One comparison with the reference. error: largest relative error of a row (inf when any is NaN)."""

    case: str
    dtype: str
    error: float
    untouched: bool  # rows that no query owns kept their NaN
    seconds: float
    failure: str = ""  # why there is nothing to compare: the first line of the error the kernel raised

    @property
    def passed(self) -> bool:
        return not self.failure and self.error <= TOLERANCE[self.dtype] and self.untouched


def empty_cache(
    blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: Any, device: Any, layout: str = "nhd"
) -> "torch.Tensor":
    """All NaN, shape (blocks, block size, KV heads, head size); layout "hnd" lies in memory as (block, head, slot)."""
    if layout == "nhd":
        return torch.full((blocks, block_size, kv_heads, head_dim), math.nan, dtype=dtype, device=device)
    return torch.full((blocks, kv_heads, block_size, head_dim), math.nan, dtype=dtype, device=device).transpose(1, 2)


def poisoned_batch(
    lengths: list[int],
    block_size: int,
    kv_heads: int,
    head_dim: int,
    dtype: Any,
    device: Any,
    seed: int,
    layout: str = "nhd",
) -> tuple[Any, Any, Any]:
    """k_cache, v_cache, block_table: random where a sequence has a token, NaN elsewhere, blocks scattered; unused table
    entries name a NaN block."""
    generator = torch.Generator(device).manual_seed(seed)
    needed = [-(-n // block_size) for n in lengths]
    blocks = sum(needed) + 2
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed))
    table = torch.full((len(lengths), max(needed) + 1), int(order[-1]), dtype=torch.int32)
    k_cache, v_cache = (empty_cache(blocks, block_size, kv_heads, head_dim, dtype, device, layout) for _ in range(2))
    taken = 0
    for seq, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        mine = order[taken : taken + count]
        taken += count
        table[seq, :count] = mine.int()
        position = torch.arange(length)
        where = (mine[position // block_size].to(device), (position % block_size).to(device))
        for cache in (k_cache, v_cache):
            cache[where] = torch.randn(length, kv_heads, head_dim, generator=generator, device=device).to(dtype)
    return k_cache, v_cache, table.to(device)


def check_on_device(device: Any = "cuda", budget_s: float = 60.0) -> list[Check]:
    """One Check per case, most telling first, until the budget is spent; as_text counts those not reached.

    On the CPU (interpreter) the same cases run with short sequences, in fp32 and fp16, since the interpreter's bf16 is
    wrong."""
    small = torch.device(device).type == "cpu"
    begin = time.monotonic()
    rows: list[Check] = []
    for name, dtype, run in _checks(device, small):
        if time.monotonic() - begin > budget_s:
            break
        started = time.monotonic()
        error, untouched, failure = math.inf, True, ""
        try:
            error, untouched = run()
        except (
            Exception
        ) as e:  # one kernel that does not compile or launch must not hide how the others do; it counts as failed
            failure = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:120]}"
        rows.append(Check(name, dtype, error, untouched, time.monotonic() - started, failure))
    return rows


def planned_checks(device: Any) -> int:
    """How many checks a run without a time limit makes."""
    return sum(1 for _ in _checks(device, torch.device(device).type == "cpu"))


def _checks(device: Any, small: bool) -> Iterator[tuple[str, str, Callable[[], tuple[float, bool]]]]:
    # (head size, block size, query heads, KV heads): Llama-3 8B and then every other kernel first, then every size met
    # with different partners. Most of a check's time is compiling, so fp16, which differs only in the instruction's
    # name, runs on every third shape.
    shapes = [
        (128, 16, 32, 8),
        (64, 32, 14, 2),
        (256, 64, 8, 1),
        (128, 64, 28, 4),
        (64, 16, 8, 8),
        (256, 16, 16, 4),
        (128, 32, 64, 8),
    ]
    last = "float16" if small else "bfloat16"
    for n, shape in enumerate([(128, 16, 4, 1), (64, 32, 14, 2)] if small else shapes):
        for dtype in ("float32", "float16") if small else ("bfloat16", "float16") if n % 3 == 0 else ("bfloat16",):
            for op in ("prefill", "decode"):
                yield (
                    f"{op} d{shape[0]} block {shape[1]} heads {shape[2]}/{shape[3]}",
                    dtype,
                    partial(_attention, device, shape, dtype, op, small),
                )
        if n == 0:
            yield "decode table reused with other contexts (CUDA graph on a GPU)", last, lambda: _replayed(device, last)
            yield "rotary embedding and KV write", last, lambda: _rope(device, last)
            yield "grouped GEMM", last, lambda: _moe(device, last, small)


def _attention(device: Any, shape: tuple, dtype: str, op: str, small: bool) -> tuple[float, bool]:
    head_dim, b, heads, kv_heads = shape
    common: dict[str, Any] = {
        "group": heads // kv_heads,
        "kv_heads": kv_heads,
        "config": default_config(device, op, head_dim),
        "sms": sm_count(device),
    }
    if op == "prefill":
        new, cached = ([1, b + 1], [b, 0]) if small else ([1, b - 1, b, b + 1, 700, 3], [0, 3 * b, 5, 0, 900, 40_000])
        plan, totals, rows = (
            plan_prefill(new, cached, **common),
            [n + c for n, c in zip(new, cached, strict=True)],
            sum(new),
        )
    else:
        totals = [1, b + 1, 0, 70] if small else [1, b - 1, b, b + 1, 0, 70_000, *[517] * 12]
        plan, rows = plan_decode(totals, **common), len(totals)
    caches = poisoned_batch(totals, b, kv_heads, head_dim, getattr(torch, dtype), device, seed=len(totals) + b)
    q = torch.randn(rows + 3, heads, head_dim, device=device).to(caches[0].dtype)
    out = torch.full_like(q, math.nan)
    (prefill_attention if op == "prefill" else decode_attention)(q, *caches, Work(plan, device, head_dim), out)
    expected = reference.attention(q, *caches, plan)
    filled = int(expected.isfinite().all(-1).any(-1).sum())
    if filled != plan.query_lens.sum():
        raise RuntimeError(f"the reference filled {filled} rows of {plan.query_lens.sum()}")
    return compare(out.flatten(1), expected.flatten(1))  # a row is a token: all its heads


def compare(out: "torch.Tensor", expected: "torch.Tensor") -> tuple[float, bool]:
    """(largest relative error of a row the reference filled, whether all other rows are still NaN)."""
    owned = expected.isfinite().all(-1)
    return reference.relative_error(out[owned], expected[owned]), bool(out[~owned].isnan().all())


def _replayed(device: Any, dtype: str) -> tuple[float, bool]:
    """One Work, two steps: on a GPU the second step replays the graph captured from the first."""
    head_dim, b, group, kv_heads = 128, 16, 4, 2
    first, second = [40, 3, 90, 0], [41, 0, 1, 300]
    config, sms = default_config(device, "decode", head_dim), sm_count(device)
    common: dict[str, Any] = {"group": group, "kv_heads": kv_heads, "config": config, "sms": sms}
    items, slots = capacity(len(first), kv_heads=kv_heads, config=config, sms=sms)
    caches = poisoned_batch(second, b, kv_heads, head_dim, getattr(torch, dtype), device, seed=1)
    caches[0].nan_to_num_(0.5)  # the first step's contexts reach places that the second does not own
    caches[1].nan_to_num_(0.5)
    q = torch.randn(len(first), group * kv_heads, head_dim, device=device).to(caches[0].dtype)
    out = torch.full_like(q, math.nan)
    work = Work(plan_decode(first, **common), device, head_dim, items=items, slots=slots)
    step = replayable(lambda: decode_attention(q, *caches, work, out), device)
    out.fill_(math.nan)
    plan = plan_decode(second, **common)
    work.load(plan)
    step()
    return compare(out.flatten(1), reference.attention(q, *caches, plan).flatten(1))


def _rope(device: Any, dtype: str) -> tuple[float, bool]:
    tokens, heads, kv_heads, head_dim, b = 33, 12, 3, 128, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, device=device).to(getattr(torch, dtype))
    q, k, v = (
        x.view(tokens, -1, head_dim)
        for x in qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    )
    slots = torch.randperm(5 * b)[:tokens].to(device)
    slots[::4] = -1
    positions = torch.randint(0, 500, (tokens,), device=device)
    cos, sin = reference.rope_tables(500, head_dim, device=device)
    k_cache, v_cache = (empty_cache(5, b, kv_heads, head_dim, q.dtype, device) for _ in range(2))
    want_q, want_k, want_v = q.double(), k_cache.double(), v_cache.double()
    reference.rope_and_write(want_q, k, v, want_k, want_v, cos, sin, positions, slots)
    rope_and_write(q, k, v, k_cache, v_cache, cos, sin, positions, slots)
    results = [compare(*pair) for pair in ((q, want_q), (k_cache, want_k), (v_cache, want_v))]
    return max(error for error, _ in results), all(untouched for _, untouched in results)


def _moe(device: Any, dtype: str, small: bool) -> tuple[float, bool]:
    counts, columns, depth = ([3, 0, 40], 72, 80) if small else ([700, 0, 1, 33, 128, 129, 5, 64], 1024, 2048)
    used = sum(counts)
    x = torch.randn(used + 7, depth, device=device).to(getattr(torch, dtype))
    w = torch.randn(len(counts), columns, depth, device=device).to(x.dtype)
    offsets = torch.tensor([0, *counts]).cumsum(0).int().to(device)
    out = torch.full((used + 7, columns), math.nan, dtype=x.dtype, device=device)
    grouped_gemm(x, w, offsets, out)
    return compare(out, reference.grouped_gemm(x, w, offsets))


def replayable(call: Callable[[], Any], device: Any, times: int = 1) -> Callable[[], Any]:
    """`call` run `times` times: captured in a CUDA graph on a GPU (after a warm-up that compiles), called directly
    elsewhere."""
    if torch.device(device).type != "cuda":
        return lambda: [call() for _ in range(times)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def as_text(checks: list[Check], planned: int) -> str:
    """One line per check, failures marked."""
    lines = [
        f"checks: {sum(c.passed for c in checks)} of {len(checks)} passed, {planned - len(checks)} not reached within"
        " the budget"
    ]
    lines += [
        f"  {'ok  ' if c.passed else 'FAIL'} {c.case:62s} {c.dtype:9s} error {c.error:.1e} (limit"
        f" {TOLERANCE[c.dtype]:.0e}) {c.seconds:.1f} s"
        + ("" if c.untouched else "  WROTE ROWS IT DOES NOT OWN")
        + (f"  {c.failure}" if c.failure else "")
        for c in checks
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    device = arguments[arguments.index("--device") + 1] if "--device" in arguments else "cuda"
    print(f"device {device}, kernel configs of {arch_of(device)}", flush=True)
    checks = check_on_device(device)
    print(as_text(checks, planned_checks(device)))
    return 0 if all(c.passed for c in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
