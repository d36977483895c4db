"""Calls that must be refused, each with one line naming the value. A worker of test_interpreted.py.

TRITON_INTERPRET=1 python -m tests.kernels.refusals
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from kernels.attention import Work, arch_of
from kernels.configs import config_for
from kernels.decode import decode_attention
from kernels.moe import grouped_gemm
from kernels.plan import plan_decode, plan_prefill
from kernels.prefill import prefill_attention

CONFIG = config_for("interpreter", "decode", 64)
COMMON = {"group": 4, "kv_heads": 2, "config": CONFIG, "sms": 4}


def decode(
    dtype=torch.float16,
    head_dim=64,
    block_size=16,
    table=torch.int32,
    heads=8,
    plan=None,
    call=decode_attention,
    rows=1,
):
    work = Work(plan or plan_decode([3], **COMMON), "cpu", head_dim)
    cache = torch.zeros(2, block_size, 2, head_dim, dtype=dtype)
    call(torch.zeros(rows, heads, head_dim, dtype=dtype), cache, cache.clone(), torch.zeros(1, 1, dtype=table), work)


def mixed_dtypes() -> None:
    cache = torch.zeros(2, 16, 2, 64)
    decode_attention(
        torch.zeros(1, 8, 64, dtype=torch.float16),
        cache,
        cache,
        torch.zeros(1, 1, dtype=torch.int32),
        Work(plan_decode([3], **COMMON), "cpu", 64),
    )


def reload(plan) -> None:
    Work(plan_decode([3], **COMMON), "cpu", 64).load(plan)


REFUSALS: dict[str, Callable[[], None]] = {
    "bf16": partial(decode, dtype=torch.bfloat16),
    "mixed dtypes": mixed_dtypes,
    "head size": partial(decode, head_dim=96),
    "block size": partial(decode, block_size=48),
    "table dtype": partial(decode, table=torch.int64),
    "rows of q": partial(decode, plan=plan_decode([3, 4], **COMMON)),
    "rows of the table": partial(decode, plan=plan_decode([3, 4], **COMMON), rows=2),
    "width of the table": partial(decode, plan=plan_decode([17], **COMMON)),
    "heads": partial(decode, heads=6),
    "decode plan to prefill": partial(decode, call=prefill_attention),
    "prefill plan to decode": partial(decode, plan=plan_prefill([1], [2], **COMMON)),
    "work too small": partial(reload, plan_decode([500, 500, 500], **COMMON)),
    "other heads": partial(reload, plan_decode([3], **{**COMMON, "group": 2})),
    "other config": partial(reload, plan_decode([3], **{**COMMON, "config": replace(CONFIG, block_n=16)})),
    "offsets": lambda: grouped_gemm(torch.zeros(4, 32), torch.zeros(2, 8, 32), torch.zeros(2, dtype=torch.int32)),
    "device": lambda: arch_of("meta"),
}


def main() -> None:
    said = {}
    for name, call in REFUSALS.items():
        try:
            call()
            said[name] = "accepted"
        except (TypeError, ValueError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
