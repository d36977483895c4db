"""Decode where memory ends: more parts than one merge reads, blocks beyond 2**31 elements, a table before a page that
nobody may read. A worker of test_interpreted.py.

TRITON_INTERPRET=1 python -m tests.kernels.edges parts|far|guarded
"""

import ctypes
import mmap
import sys
from collections.abc import Callable

import torch

from kernels import checks, reference
from kernels.attention import Work, merge_width
from kernels.backend import INTERPRETED
from kernels.configs import config_for
from kernels.decode import decode_attention
from kernels.plan import plan_decode

HEAD_DIM, BLOCK, KV_HEADS, GROUP = 128, 16, 2, 4


def decode(
    k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, contexts: list[int], splits: int
) -> float:
    """The largest relative error of a row."""
    config = config_for("interpreter", "decode", HEAD_DIM)
    plan = plan_decode(contexts, group=GROUP, kv_heads=KV_HEADS, config=config, sms=4, splits=splits)
    q = torch.randn(len(contexts), KV_HEADS * GROUP, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    q = q.to(k_cache.dtype)
    out = decode_attention(q, k_cache, v_cache, table, Work(plan, "cpu", HEAD_DIM))
    error, _ = checks.compare(out.flatten(1), reference.attention(q, k_cache, v_cache, table, plan).flatten(1))
    return error


def parts() -> float:
    """More parts of one row than a merge program reads at once, and half as many again."""
    many = merge_width(HEAD_DIM) * 3 // 2
    contexts = [32 * many, 32 * merge_width(HEAD_DIM) + 1]
    *caches, table = checks.poisoned_batch(contexts, BLOCK, KV_HEADS, HEAD_DIM, torch.float32, "cpu", 0)
    return decode(*caches, table, contexts, splits=many)


def far() -> float:
    """Blocks 2**30 elements apart in 8 GiB of which few pages are ever touched: block 3 begins beyond 2**31 elements.

    An offset cut to 32 bits is 2**32 elements lower, which is 2**30 before block 0: in the same memory, and empty."""
    apart = 2**30
    memory = torch.empty(4 * apart + 2 * BLOCK * KV_HEADS * HEAD_DIM, dtype=torch.float16)
    shape, strides = (4, BLOCK, KV_HEADS, HEAD_DIM), (apart, KV_HEADS * HEAD_DIM, HEAD_DIM, 1)
    size = BLOCK * KV_HEADS * HEAD_DIM
    k_cache, v_cache = (memory.as_strided(shape, strides, apart + n * size) for n in range(2))
    table = torch.tensor([[0, 3, 2]], dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)
    for cache in (k_cache, v_cache):
        memory.as_strided(shape, strides, cache.storage_offset() - apart)[0] = (
            0.0  # where block 3 must not be looked for
        )
        for block in (0, 2, 3):
            cache[block] = torch.randn(BLOCK, KV_HEADS, HEAD_DIM, generator=generator).half()
    return decode(k_cache, v_cache, table, [3 * BLOCK], splits=1)


def guarded() -> float:
    """The block table's last entry is the last word of a page, and the next page may not be read."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    whole = torch.frombuffer(pages, dtype=torch.int32)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(whole.data_ptr() + page), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    error = 0.0
    for block, context in ((16, 48), (32, 64), (64, 70)):  # tiles of 32 keys: several blocks in one, one, half a block
        *caches, table = checks.poisoned_batch([context], block, KV_HEADS, HEAD_DIM, torch.float32, "cpu", 0)
        width = -(-context // block)
        at_the_end = whole[page // 4 - width : page // 4].view(1, width)
        at_the_end.copy_(table[:, :width])
        error = max(error, decode(*caches, at_the_end, [context], splits=1))
    return error


EDGES: dict[str, Callable[[], float]] = {"parts": parts, "far": far, "guarded": guarded}


def main() -> None:
    assert INTERPRETED, "set TRITON_INTERPRET=1 before starting python"
    torch.set_num_threads(1)
    print(EDGES[sys.argv[1]]())


if __name__ == "__main__":
    main()
