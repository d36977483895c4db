"""Paged split-KV decode: one new token a sequence, contexts as unequal as they come, grouped-query heads.

    plan = plan_decode([65536] + [512] * 31, group=4, kv_heads=8, config=default_config("cuda", "decode", 128), sms=132)
    out = decode_attention(q, k_cache, v_cache, block_table, Work(plan, "cuda", 128))

Long contexts are cut into parts of about equal length over the whole GPU and merged; short ones are not cut and skip
the merge. For a CUDA graph make the Work with items and slots from plan.capacity and call work.load(plan) before each
replay. The reference with the same arguments is kernels.reference.attention."""

from kernels.attention import Work, launch
from kernels.backend import torch


def decode_attention(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    block_table: "torch.Tensor",
    work: Work,
    out: "torch.Tensor | None" = None,
    scale: float | None = None,
) -> "torch.Tensor":
    """softmax(q k^T scale) v over the whole context of each sequence.

    q, out (sequences, heads, head size); the rest as in prefill_attention. The context of sequence s is context_lens[s]
    positions, the new token's own included. Rows of sequences with context 0 are not written."""
    if work.plan.op != "decode":
        raise ValueError(f"decode_attention was given a {work.plan.op} plan")
    return launch(q, k_cache, v_cache, block_table, work, out, scale)
