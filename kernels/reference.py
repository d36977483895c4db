"""Plain torch references of the kernels, one sequence and one head group at a time, in fp64 unless told otherwise.

    from kernels import reference
    expected = reference.attention(q, k_cache, v_cache, block_table, plan)

Same arguments as the kernels, results in the dtype of the computation. They need torch only: no triton, no GPU.
`attention` serves prefill and decode: decode is a prefill of one new token.
"""

import math
from itertools import pairwise
from typing import Any

import torch


def attention(
    q, k_cache, v_cache, block_table, work: Any, out=None, scale: float | None = None, *, dtype=torch.float64
) -> torch.Tensor:
    """softmax(q k^T scale, causal) v; shapes as in prefill_attention. `work` is a Work or a Plan: only its lengths are
    read.

    Rows that belong to no query stay NaN (or what `out` held).
    """
    plan = getattr(work, "plan", work)
    out = torch.full(q.shape, math.nan, dtype=dtype, device=q.device) if out is None else out
    group = q.shape[1] // k_cache.shape[2]
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else scale
    # A decode batch keeps a row for each sequence, also for an empty one; a prefill's rows follow one another.
    first = range(len(plan.query_lens)) if plan.op == "decode" else plan.query_lens.cumsum() - plan.query_lens
    for seq, (token, new, cached) in enumerate(
        zip(first, plan.query_lens.tolist(), plan.cached_lens.tolist(), strict=True)
    ):
        if new == 0:
            continue
        k = gather(k_cache, block_table[seq], cached + new).to(dtype)  # (keys, KV heads, head size)
        v = gather(v_cache, block_table[seq], cached + new).to(dtype)
        rows = slice(int(token), int(token) + new)
        position = cached + torch.arange(new, device=q.device)
        allowed = torch.arange(cached + new, device=q.device)[None, :] <= position[:, None]  # (queries, keys)
        for kv_head in range(k.shape[1]):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            s = torch.einsum("qhd,kd->hqk", q[rows, heads].to(dtype), k[:, kv_head]) * scale
            p = s.masked_fill(~allowed, -math.inf).softmax(-1)
            out[rows, heads] = torch.einsum("hqk,kd->qhd", p, v[:, kv_head]).to(out.dtype)
    return out


def gather(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` positions of one sequence, (length, KV heads, head size), from a paged cache."""
    position = torch.arange(length, device=cache.device)
    block_size = cache.shape[1]
    return cache[blocks[position // block_size].long(), position % block_size]


def rope_and_write(q, k, v, k_cache, v_cache, cos, sin, positions, slots, *, dtype=torch.float64) -> None:
    """Rotate q in place; write rotated k, and v, into the caches. Arguments as in kernels.rope.rope_and_write."""
    c, s = cos[positions.long()].to(dtype)[:, None, :], sin[positions.long()].to(dtype)[:, None, :]
    written = slots >= 0
    at = slots[written].long()
    block, offset = at // k_cache.shape[1], at % k_cache.shape[1]
    k_cache[block, offset] = rotate(k.to(dtype), c, s)[written].to(k_cache.dtype)
    v_cache[block, offset] = v[written].to(v_cache.dtype)
    q.copy_(rotate(q.to(dtype), c, s).to(q.dtype))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in halves: x (tokens, heads, head size), cos and sin (tokens, 1, head size / 2)."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def rope_tables(
    positions: int, head_dim: int, theta: float = 500_000.0, device: "torch.device | str" = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (positions, head_dim / 2) fp32 of angles position * theta ** (-2 i / head_dim), computed in fp64 (Su
    et al. 2021)."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    return angle.cos().float().to(device), angle.sin().float().to(device)


def grouped_gemm(x, w, offsets, out=None, *, dtype=torch.float64) -> torch.Tensor:
    """out[t] = w[e] x[t] for the tokens of expert e. Arguments as in kernels.moe.grouped_gemm."""
    out = torch.full((x.shape[0], w.shape[1]), math.nan, dtype=dtype, device=x.device) if out is None else out
    bounds = offsets.tolist()
    for expert, (begin, end) in enumerate(pairwise(bounds)):
        out[begin:end] = (x[begin:end].to(dtype) @ w[expert].to(dtype).T).to(out.dtype)
    return out


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest over the rows of ||out - expected|| / ||expected||, a row being the last dimension; NaN or inf anywhere
    gives inf."""
    out, expected = out.to(torch.float64), expected.to(torch.float64)
    if not torch.isfinite(out).all():
        return math.inf
    difference = (out - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-300)
    return float(difference.max()) if difference.numel() else 0.0
