"""Grouped GEMM of a mixture of experts: every token times its expert's matrix, tokens sorted by expert.

    out = grouped_gemm(x, w, offsets)

How many tokens an expert got is known only on the GPU, so the grid is the most tiles there can be and each program
finds its expert from the offsets: no synchronisation, and a CUDA graph replays with any routing. The reference is
kernels.reference.grouped_gemm."""

from kernels.attention import arch_of
from kernels.backend import FUSE, check_dtype, tl, torch, triton
from kernels.configs import Config, config_for


@triton.jit
def grouped_gemm_kernel(
    x,
    w,
    offsets,
    out,
    columns,
    depth,
    stride_xm,
    stride_we,
    stride_wn,
    stride_om,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    column = tl.program_id(0)
    tile = tl.program_id(1)
    lane = tl.arange(0, EXPERTS_PAD)
    begin = tl.load(offsets + lane, mask=lane < EXPERTS, other=0)
    end = tl.load(offsets + lane + 1, mask=lane < EXPERTS, other=0)
    tiles = (end - begin + BLOCK_M - 1) // BLOCK_M
    last = tl.cumsum(tiles, 0)
    if tile >= tl.sum(tiles, 0):
        return
    expert = tl.sum((last <= tile).to(tl.int32), 0)
    mine = lane == expert
    row = tl.sum(tl.where(mine, begin, 0), 0) + (tile - tl.sum(tl.where(mine, last - tiles, 0), 0)) * BLOCK_M
    row_end = tl.sum(tl.where(mine, end, 0), 0)

    offs_m = row + tl.arange(0, BLOCK_M)
    offs_n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    live_m = (offs_m < row_end)[:, None]
    live_n = (offs_n < columns)[None, :]
    at_x = x + offs_m.to(tl.int64)[:, None] * stride_xm + offs_k[None, :]
    at_w = w + expert.to(tl.int64) * stride_we + offs_n.to(tl.int64)[None, :] * stride_wn + offs_k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, depth, BLOCK_K):
        live_k = k + offs_k < depth
        a = tl.load(at_x + k, mask=live_m & live_k[None, :], other=0.0)
        b = tl.load(at_w + k, mask=live_n & live_k[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
    at = out + offs_m.to(tl.int64)[:, None] * stride_om + offs_n[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=live_m & live_n)


def grouped_gemm(x, w, offsets, out=None, config: Config | None = None) -> "torch.Tensor":
    """out[t] = w[e] x[t] for the tokens t of expert e, offsets[e] <= t < offsets[e + 1].

    x (tokens, depth) sorted by expert; w (experts, columns, depth), the layout of a linear layer's weight; offsets
    (experts + 1,) int32 on the device; out (tokens, columns). Rows from offsets[-1] on (padding of a fixed-size batch)
    are not written."""
    check_dtype("x", x)
    tokens, depth = x.shape
    experts, columns, _ = w.shape
    if w.shape[2] != depth or offsets.shape != (experts + 1,) or offsets.dtype != torch.int32 or w.dtype != x.dtype:
        raise ValueError(
            f"x {tuple(x.shape)}, w {tuple(w.shape)}, offsets {tuple(offsets.shape)} {offsets.dtype} do not fit"
            " together"
        )
    if x.stride(1) != 1 or w.stride(2) != 1:
        raise ValueError("the last dimension of x and w must be contiguous")
    out = x.new_empty(tokens, columns) if out is None else out
    config = config or config_for(arch_of(x.device), "moe")
    tiles = min(tokens, tokens // config.block_m + experts)
    if tiles:
        grouped_gemm_kernel[(triton.cdiv(columns, config.block_n), tiles)](
            x,
            w,
            offsets,
            out,
            columns,
            depth,
            x.stride(0),
            w.stride(0),
            w.stride(1),
            out.stride(0),
            EXPERTS=experts,
            EXPERTS_PAD=triton.next_power_of_2(experts),
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k,
            num_warps=config.warps,
            num_stages=config.stages,
            **FUSE,
        )
    return out
