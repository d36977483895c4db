"""Variable-length causal prefill over a paged KV cache with a cached prefix, grouped-query heads.

    plan = plan_prefill([2048, 77], [8192, 0], group=4, kv_heads=8, config=default_config("cuda", "prefill", 128),
    sms=132) out = prefill_attention(q, k_cache, v_cache, block_table, Work(plan, "cuda", 128))

The K and V of the new tokens are already in the cache (kernels/rope.py writes them), so new and cached keys are read
the same way. The reference with the same arguments is kernels.reference.attention."""

from kernels.attention import Work, launch
from kernels.backend import torch


def prefill_attention(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    block_table: "torch.Tensor",
    work: Work,
    out: "torch.Tensor | None" = None,
    scale: float | None = None,
) -> "torch.Tensor":
    """softmax(q k^T scale, causal) v for every new token.

    q, out (tokens, heads, head size), the sequences' new tokens one after another; k_cache, v_cache (blocks, block
    size, KV heads, head size), any strides but a contiguous last dimension; block_table (sequences, blocks) int32.
    scale: 1/sqrt(head size) when None. Position i of sequence s lies in block block_table[s, i // block size]. Query j
    of s attends to positions 0 .. cached_lens[s] + j."""
    if work.plan.op != "prefill":
        raise ValueError(f"prefill_attention was given a {work.plan.op} plan")
    return launch(q, k_cache, v_cache, block_table, work, out, scale)
