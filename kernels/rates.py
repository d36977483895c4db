"""How fast the attention kernels are on this device, as percent of ceilings measured in the same run.

    python -m kernels.rates [--candidates]                     # on a GPU: under a minute; then tiles that might be
                                                               better than the table's
    TRITON_INTERPRET=1 python -m kernels.rates --device cpu    # a rehearsal at a tiny size, whose times say nothing

The ceilings are a bf16 matmul and a device copy. Beside each rate stands torch's own scaled_dot_product_attention on
the same work, over a contiguous cache. Calls run in CUDA graphs of ten or more over rotating buffers larger than three
times the L2 cache, on random data."""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kernels.attention import Work, arch_of, default_config, sm_count
from kernels.backend import torch
from kernels.checks import replayable
from kernels.configs import CANDIDATES
from kernels.decode import decode_attention
from kernels.plan import plan_decode, plan_prefill
from kernels.prefill import prefill_attention


@dataclass(frozen=True)
class Rate:
    """One timing. floor and target: percent of the ceiling, or microseconds a call when `ceiling` is "us"."""

    case: str
    ceiling: str  # "matmul", "copy" or "us"
    us: float  # median of a call
    iqr_us: float
    percent: float | None
    torch_us: float | None  # scaled_dot_product_attention, same run
    torch_note: str  # which call that was, or why there is none
    floor: float
    target: float
    rehearsal: bool = False  # interpreted: the times say nothing about any GPU
    failure: str = ""  # why there is no time: the first line of the error the kernel raised

    @property
    def verdict(self) -> str:
        if self.failure:
            return f"FAILED, {self.failure}"
        if self.rehearsal:
            return "rehearsal, no figure"
        good = self.percent if self.percent is not None else -self.us
        floor, target = (self.floor, self.target) if self.percent is not None else (-self.floor, -self.target)
        return "target" if good >= target else "floor" if good >= floor else "BELOW FLOOR"


def random_batch(
    lengths: list[int], block_size: int, kv_heads: int, head_dim: int, dtype: Any, device: Any
) -> tuple[Any, Any, Any]:
    """k_cache, v_cache, block_table for timing: random everywhere, blocks scattered."""
    needed = [-(-n // block_size) for n in lengths]
    order = torch.randperm(sum(needed), dtype=torch.int32)
    table = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
    for seq, blocks in enumerate(order.split(needed)):
        table[seq, : len(blocks)] = blocks
    k_cache, v_cache = (
        torch.randn(sum(needed), block_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(2)
    )
    return k_cache, v_cache, table.to(device)


def time_calls(calls: list[Callable[[], Any]], device: Any, replays: int = 7) -> tuple[float, float]:
    """(median, inter-quartile range) in microseconds of one call. `calls` work on different buffers and take turns, 10
    or more to a graph."""
    if torch.device(device).type != "cuda":
        begin = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begin) * 1e6 / len(calls), 0.0
    turns = -(-10 // len(calls))
    for call in calls:  # compiles, and grows torch's workspaces, before the capture
        call()
    replay = replayable(lambda: [call() for call in calls], device, turns)
    replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (turns * len(calls)))
    low, median, high = statistics.quantiles(times, n=4)
    return median, high - low


def ceilings(device: Any, small: bool = False) -> dict[str, float]:
    """{"matmul": FLOP/s of a square bf16 product, "copy": bytes/s read plus written of a device copy}, random data."""
    n, size = (64, 1 << 16) if small else (8192, 1 << 30)
    dtype = torch.float32 if small else torch.bfloat16
    pairs = [
        (torch.randn(n, n, dtype=dtype, device=device), torch.randn(n, n, dtype=dtype, device=device)) for _ in range(2)
    ]
    out = torch.empty(n, n, dtype=dtype, device=device)
    matmul_us, _ = time_calls([partial(torch.matmul, a, b, out=out) for a, b in pairs], device)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    copy_us, _ = time_calls([lambda: copy.copy_(source)], device)
    return {"matmul": 2 * n**3 / matmul_us * 1e6, "copy": 2 * size / copy_us * 1e6}


@dataclass(frozen=True)
class Workload:
    """One row of the table of floors and targets: new tokens after cached ones, per sequence."""

    case: str
    op: str
    new: list[int]
    cached: list[int]
    ceiling: str
    floor: float
    target: float


WORKLOADS = (
    Workload("prefill 8k new tokens, causal", "prefill", [8192], [0], "matmul", 40, 55),
    Workload("prefill 2k new + 8k cached", "prefill", [2048], [8192], "matmul", 40, 55),
    Workload("decode batch 64, context 4k", "decode", [1] * 64, [4095] * 64, "copy", 75, 88),
    Workload("decode batch 16, context 1k", "decode", [1] * 16, [1023] * 16, "copy", 35, 50),
    Workload("decode skewed (1 x 64k + 31 x 512)", "decode", [1] * 32, [65535] + [511] * 31, "copy", 50, 70),
    Workload("decode call in a CUDA graph (batch 1, context 256)", "decode", [1], [255], "us", 25, 15),
)
GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 8, 128, 16


def rates_on_device(device: Any = "cuda", budget_s: float = 60.0) -> tuple[dict[str, float], list[Rate]]:
    """(ceilings, one Rate per workload reached within the budget)."""
    small = torch.device(device).type == "cpu"
    begin = time.monotonic()
    tops = ceilings(device, small)
    rows = []
    for work in WORKLOADS:
        if time.monotonic() - begin > budget_s:
            break
        try:
            rows.append(_rate(tiny(work) if small else work, tops, device, None, small))
        except Exception as e:  # one kernel that does not run must not hide how fast the others are; its row says so
            why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:120]}"
            rows.append(
                Rate(work.case, work.ceiling, math.nan, math.nan, None, None, "", work.floor, work.target, small, why)
            )
    return tops, rows


def tiny(work: Workload) -> Workload:
    """The workload cut to what the interpreter does in a second."""
    return replace(work, new=[min(n, 40) for n in work.new[:2]], cached=[min(n, 50) for n in work.cached[:2]])


def candidate_rates(tops: dict[str, float], device: Any = "cuda", budget_s: float = 60.0) -> list[tuple[str, Rate]]:
    """(config, Rate) of configs.CANDIDATES for this device on the workloads of their op: what to put into the table,
    decided by measuring."""
    begin = time.monotonic()
    rows: list[tuple[str, Rate]] = []
    small = torch.device(device).type == "cpu"
    for (op, head_dim), configs in CANDIDATES.get(arch_of(device), {}).items():
        for config in configs if head_dim == HEAD_DIM else ():
            for work in (w for w in WORKLOADS if w.op == op and w.ceiling != "us"):
                if time.monotonic() - begin > budget_s:
                    return rows
                rows.append((config.as_text(), _rate(tiny(work) if small else work, tops, device, config, small)))
    return rows


def _rate(work: Workload, tops: dict[str, float], device: Any, config: Any, small: bool) -> Rate:
    dtype = torch.float16 if small else torch.bfloat16
    totals = [n + c for n, c in zip(work.new, work.cached, strict=True)]
    kv_heads = 1 if small else KV_HEADS
    heads = GROUP * kv_heads
    kv_bytes = 2 * sum(totals) * kv_heads * HEAD_DIM * dtype.itemsize
    flops = 4 * heads * HEAD_DIM * sum(n * c + n * (n + 1) // 2 for n, c in zip(work.new, work.cached, strict=True))
    common: dict[str, Any] = {
        "group": GROUP,
        "kv_heads": kv_heads,
        "config": config or default_config(device, work.op, HEAD_DIM),
        "sms": sm_count(device),
    }
    plan = plan_prefill(work.new, work.cached, **common) if work.op == "prefill" else plan_decode(totals, **common)
    attend = prefill_attention if work.op == "prefill" else decode_attention
    ours: list[Callable[[], Any]] = []
    theirs: list[Callable[[], Any]] = []
    note = ""
    torch_us: float | None
    for _ in range(_buffers(kv_bytes, device)):
        caches = random_batch(totals, BLOCK_SIZE, kv_heads, HEAD_DIM, dtype, device)
        q = torch.randn(sum(work.new), heads, HEAD_DIM, dtype=dtype, device=device)
        out = torch.empty_like(q)
        ours.append(partial(attend, q, *caches, Work(plan, device, HEAD_DIM), out))
    us, iqr_us = time_calls(ours, device)
    ours.clear()
    for _ in range(_buffers(kv_bytes, device)):
        call, note = torch_attention(work.new, totals, kv_heads, dtype, device)
        theirs.append(call)
    try:
        torch_us, _ = time_calls(theirs, device)
    except RuntimeError as error:  # a torch without a fitting kernel: the row says so
        torch_us, note = None, f"torch: {str(error).splitlines()[0][:80]}"
    amount = {"matmul": flops, "copy": kv_bytes, "us": 0}[work.ceiling]
    percent = 100 * amount / us * 1e6 / tops[work.ceiling] if amount and not small else None
    return Rate(work.case, work.ceiling, us, iqr_us, percent, torch_us, note, work.floor, work.target, small)


def _buffers(set_bytes: int, device: Any) -> int:
    """Sets of buffers that together exceed three times the L2 cache (at most 16)."""
    if torch.device(device).type != "cuda":
        return 1
    return max(1, min(16, math.ceil(3 * torch.cuda.get_device_properties(device).L2_cache_size / set_bytes)))


def torch_attention(
    new: list[int], totals: list[int], kv_heads: int, dtype: Any, device: Any
) -> tuple[Callable[[], Any], str]:
    """torch's attention for the same work on contiguous caches: one call per distinct length. Returns (call, what it
    is)."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    calls: list[Callable[[], Any]] = []
    for length in sorted(set(totals)):
        batch, queries = totals.count(length), new[totals.index(length)]
        q = torch.randn(batch, GROUP * kv_heads, queries, HEAD_DIM, dtype=dtype, device=device)
        k, v = (torch.randn(batch, kv_heads, length, HEAD_DIM, dtype=dtype, device=device) for _ in range(2))
        if queries == 1:
            calls.append(partial(scaled_dot_product_attention, q, k, v, enable_gqa=True))
        elif queries == length:
            calls.append(partial(scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True))
        else:
            # A causal bias reaches the flash kernel only with as many KV heads as query heads.
            k, v = (x.repeat_interleave(GROUP, dim=1) for x in (k, v))
            calls.append(partial(scaled_dot_product_attention, q, k, v, attn_mask=causal_lower_right(queries, length)))
    return (
        lambda: [call() for call in calls],
        f"torch sdpa, {len(calls)} call{'s' if len(calls) > 1 else ''}, contiguous KV",
    )


def as_text(tops: dict[str, float], rates: list[Rate]) -> str:
    """The ceilings and one line per rate, for a terminal or a report."""
    lines = [
        f"ceilings: matmul {tops['matmul'] / 1e12:.1f} TFLOP/s, copy {tops['copy'] / 1e12:.3f} TB/s; {len(rates)} of"
        f" {len(WORKLOADS)} cases"
    ]
    if any(r.rehearsal for r in rates):
        lines = [
            f"REHEARSAL: {len(rates)} of {len(WORKLOADS)} cases ran at a tiny size; no time here says anything about"
            " a GPU"
        ]
    for r in rates:
        share = f"{r.percent:5.1f} % of {r.ceiling}" if r.percent is not None else "per call"
        other = f"{r.torch_us:9.1f} us" if r.torch_us is not None else "not run"
        lines.append(
            f"  {r.case:52s} {r.us:9.1f} us (iqr {r.iqr_us:.1f})  {share:17s} floor {r.floor:g} target {r.target:g}:"
            f" {r.verdict}; {other} {r.torch_note}"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    device = arguments[arguments.index("--device") + 1] if "--device" in arguments else "cuda"
    print(f"device {device}, kernel configs of {arch_of(device)}", flush=True)
    tops, rates = rates_on_device(device)
    print(as_text(tops, rates), flush=True)
    if "--candidates" in arguments:
        for config, rate in candidate_rates(tops, device):
            share = f"{rate.percent:5.1f} % of {rate.ceiling}" if rate.percent is not None else rate.verdict
            print(f"  {config:18s} {rate.case:40s} {rate.us:9.1f} us  {share}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
