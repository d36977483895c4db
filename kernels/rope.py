"""Rotary embedding of q and k and the write of k and v into the paged cache, in one pass over the projections.

    rope_and_write(q, k, v, k_cache, v_cache, cos, sin, positions, slots)

Rotation in halves (GPT-NeoX order, Su et al. 2021): (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), computed in fp32.
The reference with the same arguments is kernels.reference.rope_and_write.
"""

from kernels.backend import FUSE, check_dtype, tl, torch, triton

HEADS = 8  # heads per program: enough independent loads in flight, few enough to fill a GPU at small batches


@triton.jit
def rope_kernel(
    q,
    k,
    v,
    k_cache,
    v_cache,
    cos,
    sin,
    positions,
    slots,
    stride_qt,
    stride_kt,
    stride_vt,
    stride_kb,
    stride_ks,
    stride_kh,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Grid (tokens, blocks of q heads + blocks of KV heads)."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    half = tl.arange(0, HEAD_DIM // 2)
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * (HEAD_DIM // 2) + half)[None, :]
    s = tl.load(sin + position * (HEAD_DIM // 2) + half)[None, :]
    q_blocks: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    if block < q_blocks:
        head = block * HEADS + tl.arange(0, HEADS)
        live = (head < Q_HEADS)[:, None]
        at = q + token * stride_qt + head[:, None] * HEAD_DIM + half[None, :]
        x1 = tl.load(at, mask=live, other=0.0).to(tl.float32)
        x2 = tl.load(at + HEAD_DIM // 2, mask=live, other=0.0).to(tl.float32)
        tl.store(at, (x1 * c - x2 * s).to(q.dtype.element_ty), mask=live)
        tl.store(at + HEAD_DIM // 2, (x2 * c + x1 * s).to(q.dtype.element_ty), mask=live)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            head = (block - q_blocks) * HEADS + tl.arange(0, HEADS)
            live = (head < KV_HEADS)[:, None]
            at = k + token * stride_kt + head[:, None] * HEAD_DIM + half[None, :]
            x1 = tl.load(at, mask=live, other=0.0).to(tl.float32)
            x2 = tl.load(at + HEAD_DIM // 2, mask=live, other=0.0).to(tl.float32)
            row = (slot // BLOCK_SIZE).to(tl.int64) * stride_kb + (slot % BLOCK_SIZE) * stride_ks
            to = row + head[:, None] * stride_kh + half[None, :]
            tl.store(k_cache + to, (x1 * c - x2 * s).to(k_cache.dtype.element_ty), mask=live)
            tl.store(k_cache + to + HEAD_DIM // 2, (x2 * c + x1 * s).to(k_cache.dtype.element_ty), mask=live)
            at = v + token * stride_vt + head[:, None] * HEAD_DIM + half[None, :]
            tl.store(v_cache + to, tl.load(at, mask=live, other=0.0), mask=live)
            tl.store(v_cache + to + HEAD_DIM // 2, tl.load(at + HEAD_DIM // 2, mask=live, other=0.0), mask=live)


def rope_and_write(q, k, v, k_cache, v_cache, cos, sin, positions, slots) -> None:
    """Rotate q in place; write rotated k, and v, into the caches.

    q (tokens, heads, head size), k, v (tokens, KV heads, head size): views of one projection are fine, heads of a token
    contiguous; caches (blocks, block size, KV heads, head size); cos, sin (positions, head size / 2) fp32; positions
    (tokens,) int; slots (tokens,) int64, block * block size + offset, or -1 for a token that is not written."""
    check_dtype("q", q)
    tokens, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if any(x.stride(1) != head_dim or x.stride(2) != 1 for x in (q, k, v)):
        raise ValueError("q, k and v must have the heads of a token contiguous")
    if (
        k.shape != v.shape
        or k_cache.shape != v_cache.shape
        or k_cache.stride() != v_cache.stride()
        or k_cache.stride(3) != 1
    ):
        raise ValueError("k and v, and their caches, must agree in shape and strides, head size contiguous")
    if (
        cos.shape != sin.shape
        or cos.shape[1] != head_dim // 2
        or cos.dtype != torch.float32
        or not (cos.is_contiguous() and sin.is_contiguous())
    ):
        raise ValueError(
            f"cos and sin must be contiguous fp32 (positions, {head_dim // 2}), cos is {tuple(cos.shape)} {cos.dtype}"
        )
    if tokens == 0:
        return
    grid = (tokens, triton.cdiv(q_heads, HEADS) + triton.cdiv(kv_heads, HEADS))
    rope_kernel[grid](
        q,
        k,
        v,
        k_cache,
        v_cache,
        cos,
        sin,
        positions,
        slots,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=k_cache.shape[1],
        HEADS=HEADS,
        num_warps=4,
        **FUSE,
    )
