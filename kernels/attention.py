"""The attention kernel that prefill and decode share, and the merge of parts cut along the keys.

One program takes one work item (kernels/plan.py) for one KV head. Its rows are the item's queries times the query heads
of that KV head, so every K and V element is read once for the whole group. Keys that all rows may see run in a loop
without any mask; only the last few tiles, where the causal diagonal and the end of the cache lie, test positions.
Softmax is online in base 2 (Milakov and Gimelshein 2018; Dao et al. 2022): m_i running maximum, l_i running sum, acc
running weighted sum of values.

    out = prefill_attention(q, k_cache, v_cache, block_table, Work(plan, q.device, head_dim=128))
"""

import math

from kernels.backend import FUSE, INTERPRETED, check_dtype, tl, torch, triton
from kernels.configs import BLOCK_SIZES, HEAD_DIMS, Config, cuda_arch
from kernels.plan import ITEM, MERGE, Plan

NO_KEY = tl.constexpr(
    -1.0e38
)  # running maximum before any key: finite, so that a row without keys in a part gives 0, not NaN


@triton.jit
def _blocks(table, start_n, kv_end, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Block ids of the tile at start_n: one where the tile lies in one block, else one per key. Beyond kv_end the table
    is not read."""
    if BLOCK_SIZE % BLOCK_N == 0:
        return tl.load(table + start_n // BLOCK_SIZE, mask=start_n < kv_end, other=0)
    else:
        offs_n = start_n + tl.arange(0, BLOCK_N)
        return tl.load(table + offs_n // BLOCK_SIZE, mask=offs_n < kv_end, other=0)


@triton.jit
def _attend(
    acc,
    l_i,
    m_i,
    q,
    k_cache,
    v_cache,
    block,
    start_n,
    position,
    kv_end,
    qk_scale,
    stride_kb,
    stride_ks,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Fold the keys [start_n, start_n + BLOCK_N), which lie in `block`, into (acc, l_i, m_i)."""
    offs_n = start_n + tl.arange(0, BLOCK_N)
    valid = offs_n < kv_end
    row = block.to(tl.int64) * stride_kb + (offs_n % BLOCK_SIZE) * stride_ks
    at = row[:, None] + tl.arange(0, HEAD_DIM)[None, :]
    if MASKED:
        k = tl.load(k_cache + at, mask=valid[:, None], other=0.0)
    else:
        k = tl.load(k_cache + at)
    qk = tl.dot(q, tl.trans(k))
    if MASKED:
        qk = tl.where(valid[None, :] & (offs_n[None, :] <= position[:, None]), qk, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
    p = tl.math.exp2(qk * qk_scale - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    if MASKED:
        v = tl.load(v_cache + at, mask=valid[:, None], other=0.0)
    else:
        v = tl.load(v_cache + at)
    acc = tl.dot(p.to(v.dtype), v, acc)
    return acc, l_i, m_new


@triton.jit(do_not_specialize=["stride_bt"])
def attention_kernel(
    q,
    k_cache,
    v_cache,
    block_table,
    items,
    out,
    part_acc,
    part_lse,
    qk_scale,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_ks,
    stride_kh,
    stride_bt,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    pid = tl.program_id(0)
    kv_head = pid % KV_HEADS
    item = items + (pid // KV_HEADS) * 8
    queries = tl.load(item + 2)
    if queries == 0:  # an unused place of a table sized for a CUDA graph
        return
    seq = tl.load(item + 0).to(tl.int64)
    token = tl.load(item + 1)
    first = tl.load(item + 3)
    kv_start = tl.load(item + 4)
    kv_end = tl.load(item + 5)
    slot = tl.load(item + 6)

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    query = offs_m // GROUP
    head = kv_head * GROUP + offs_m % GROUP
    live = query < queries
    position = first + query
    row_q = (token + query).to(tl.int64) * stride_qt + head * stride_qh
    q_tile = tl.load(q + row_q[:, None] + offs_d[None, :], mask=live[:, None], other=0.0)

    k_head = k_cache + kv_head.to(tl.int64) * stride_kh
    v_head = v_cache + kv_head.to(tl.int64) * stride_kh
    table = block_table + seq * stride_bt
    m_i = tl.full([BLOCK_M], NO_KEY, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    # Every row sees the keys up to the first row's position. Block ids are read a tile ahead, so that loads of K and V
    # never wait for them.
    seen = tl.minimum(kv_end, first + 1)
    split = kv_start + tl.maximum(seen - kv_start, 0) // BLOCK_N * BLOCK_N
    block = _blocks(table, kv_start, kv_end, BLOCK_SIZE, BLOCK_N)
    for start_n in range(kv_start, split, BLOCK_N):
        ahead = _blocks(table, start_n + BLOCK_N, kv_end, BLOCK_SIZE, BLOCK_N)
        acc, l_i, m_i = _attend(
            acc,
            l_i,
            m_i,
            q_tile,
            k_head,
            v_head,
            block,
            start_n,
            position,
            kv_end,
            qk_scale,
            stride_kb,
            stride_ks,
            HEAD_DIM,
            BLOCK_SIZE,
            BLOCK_N,
            False,
        )
        block = ahead
    for start_n in range(split, kv_end, BLOCK_N):
        ahead = _blocks(table, start_n + BLOCK_N, kv_end, BLOCK_SIZE, BLOCK_N)
        acc, l_i, m_i = _attend(
            acc,
            l_i,
            m_i,
            q_tile,
            k_head,
            v_head,
            block,
            start_n,
            position,
            kv_end,
            qk_scale,
            stride_kb,
            stride_ks,
            HEAD_DIM,
            BLOCK_SIZE,
            BLOCK_N,
            True,
        )
        block = ahead

    acc = acc / tl.where(l_i > 0, l_i, 1.0)[:, None]
    if slot < 0:
        row_o = (token + query).to(tl.int64) * stride_ot + head * stride_oh
        tl.store(out + row_o[:, None] + offs_d[None, :], acc.to(out.dtype.element_ty), mask=live[:, None])
    else:
        row_p = (slot * KV_HEADS + kv_head).to(tl.int64) * ROWS + offs_m
        tl.store(part_acc + row_p[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=live[:, None])
        tl.store(part_lse + row_p, m_i + tl.math.log2(l_i), mask=live)


@triton.jit
def merge_kernel(
    part_acc,
    part_lse,
    merges,
    out,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """One program per (merge, row, KV head): the parts of one output row, weighted by 2 ** (lse - largest lse)."""
    pid = tl.program_id(0)
    kv_head = pid % KV_HEADS
    row = pid // KV_HEADS % ROWS
    merge = merges + pid // (KV_HEADS * ROWS) * 4
    token = tl.load(merge + 0)
    queries = tl.load(merge + 1)
    slot = tl.load(merge + 2)
    splits = tl.load(merge + 3)
    if row // GROUP >= queries:
        return
    offs_d = tl.arange(0, HEAD_DIM)
    m_i = tl.full([1], NO_KEY, tl.float32)
    l_i = tl.zeros([1], tl.float32)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for start in range(0, splits, BLOCK_S):
        part = start + tl.arange(0, BLOCK_S)
        at = ((slot + part) * KV_HEADS + kv_head).to(tl.int64) * ROWS + row
        lse = tl.load(part_lse + at, mask=part < splits, other=float("-inf"))
        values = tl.load(part_acc + at[:, None] * HEAD_DIM + offs_d[None, :], mask=(part < splits)[:, None], other=0.0)
        m_new = tl.maximum(m_i, tl.max(lse, 0))
        alpha = tl.math.exp2(m_i - m_new)
        weight = tl.math.exp2(lse - m_new)
        l_i = l_i * alpha + tl.sum(weight, 0)
        acc = acc * alpha + tl.sum(values * weight[:, None], 0)
        m_i = m_new
    acc = acc / l_i
    head = kv_head * GROUP + row % GROUP
    at_out = (token + row // GROUP).to(tl.int64) * stride_ot + head * stride_oh
    tl.store(out + at_out + offs_d, acc.to(out.dtype.element_ty))


class Work:
    """A plan's tables and partial results on a device: made once, used by every layer of a step.

    `load` copies the next step's plan into the same tensors (asynchronously, from pinned memory on a GPU), so a CUDA
    graph that captured a call replays with new work; `items` and `slots` are then the most that a later plan needs
    (plan.capacity)."""

    def __init__(
        self,
        plan: Plan,
        device: "torch.device | str",
        head_dim: int,
        *,
        items: int | None = None,
        slots: int | None = None,
    ) -> None:
        self.items_max = max(len(plan.items) if items is None else items, 1)
        self.slots_max = plan.slots if slots is None else slots
        fixed = items is not None
        self.merges_max = self.slots_max // 2 if fixed else len(plan.merges)
        device = torch.device(device)
        tables = self.items_max * len(ITEM) + self.merges_max * len(MERGE)
        self._host = torch.zeros(tables, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(tables, dtype=torch.int32, device=device)
        cut = self.items_max * len(ITEM)
        self.items = self._device[:cut].view(-1, len(ITEM))
        self.merges = self._device[cut:].view(-1, len(MERGE))
        parts = max(self.slots_max, 1) * plan.kv_heads * plan.rows
        self.part_acc = torch.empty(parts, head_dim, dtype=torch.float32, device=device)
        self.part_lse = torch.empty(parts, dtype=torch.float32, device=device)
        self.head_dim = head_dim
        self.plan = plan
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.load(plan)

    def load(self, plan: Plan) -> None:
        """Take over `plan`; it must be of the same op, heads and config, and fit the tables."""
        same = ("op", "rows", "group", "kv_heads", "config")
        for name in same:
            if getattr(plan, name) != getattr(self.plan, name):
                raise ValueError(
                    f"plan.{name} is {getattr(plan, name)}, this work was made for {getattr(self.plan, name)}"
                )
        for name, need, have in (
            ("items", len(plan.items), self.items_max),
            ("slots", plan.slots, self.slots_max),
            ("merges", len(plan.merges), self.merges_max),
        ):
            if need > have:
                raise ValueError(f"plan needs {need} {name}, this work has room for {have}")
        cut = self.items_max * len(ITEM)
        if self._copied is not None:  # the pinned tables may still be on their way from the last load
            self._copied.synchronize()
        host = self._host.numpy()
        host[:] = 0
        host[: plan.items.size] = plan.items.ravel()
        host[cut : cut + plan.merges.size] = plan.merges.ravel()
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self.plan = plan
        total = plan.query_lens + plan.cached_lens
        self.tokens = len(total) if plan.op == "decode" else int(plan.query_lens.sum())  # rows of q
        self.longest = int(total.max(initial=0))  # positions that a row of block_table must reach


def launch(q, k_cache, v_cache, block_table, work: Work, out=None, scale: float | None = None) -> "torch.Tensor":
    """Run `work` on the current stream; no host synchronisation, no allocation when `out` is given. Shapes in
    kernels/prefill.py."""
    plan, config = work.plan, work.plan.config
    _check(q, k_cache, v_cache, block_table, work)
    out = torch.empty_like(q) if out is None else out
    scale = 1.0 / math.sqrt(work.head_dim) if scale is None else scale
    block_size = k_cache.shape[1]
    attention_kernel[(work.items_max * plan.kv_heads,)](
        q,
        k_cache,
        v_cache,
        block_table,
        work.items,
        out,
        work.part_acc,
        work.part_lse,
        scale * math.log2(math.e),
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_table.stride(0),
        out.stride(0),
        out.stride(1),
        GROUP=plan.group,
        KV_HEADS=plan.kv_heads,
        HEAD_DIM=work.head_dim,
        BLOCK_SIZE=block_size,
        ROWS=plan.rows,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        num_warps=config.warps,
        num_stages=config.stages,
        **FUSE,
    )
    if work.merges_max:
        merge_kernel[(work.merges_max * plan.rows * plan.kv_heads,)](
            work.part_acc,
            work.part_lse,
            work.merges,
            out,
            out.stride(0),
            out.stride(1),
            GROUP=plan.group,
            KV_HEADS=plan.kv_heads,
            HEAD_DIM=work.head_dim,
            ROWS=plan.rows,
            BLOCK_S=merge_width(work.head_dim),
            num_warps=2,
            **FUSE,
        )
    return out


def merge_width(head_dim: int) -> int:
    """Parts that a merge program reads at once: 8 KiB of them, so that their loads are in flight together."""
    return 2048 // head_dim


def arch_of(device: "torch.device | str") -> str:
    """The config table's row for a device."""
    device = torch.device(device)
    if device.type == "cpu" and INTERPRETED:
        return "interpreter"
    if device.type != "cuda":
        raise ValueError(f"kernels run on a GPU (or, with TRITON_INTERPRET=1, on the CPU), not on {device}")
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    return cuda_arch(*torch.cuda.get_device_capability(device))


def sm_count(device: "torch.device | str") -> int:
    """Multiprocessors of a device (4 in the interpreter, so that small tests are cut into parts)."""
    device = torch.device(device)
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _check(q, k_cache, v_cache, block_table, work: Work) -> None:
    plan = work.plan
    check_dtype("q", q)
    if not q.dtype == k_cache.dtype == v_cache.dtype:
        raise TypeError(f"q is {q.dtype}, k_cache {k_cache.dtype}, v_cache {v_cache.dtype}: expected one dtype")
    if k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride():
        raise ValueError(
            f"k_cache {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)} differ in shape or strides"
        )
    if q.ndim != 3 or q.shape[1:] != (plan.kv_heads * plan.group, work.head_dim):
        raise ValueError(f"q is {tuple(q.shape)}, expected (tokens, {plan.kv_heads * plan.group}, {work.head_dim})")
    if k_cache.ndim != 4 or k_cache.shape[2:] != (plan.kv_heads, work.head_dim):
        raise ValueError(
            f"k_cache is {tuple(k_cache.shape)}, expected (blocks, block size, {plan.kv_heads}, {work.head_dim})"
        )
    if work.head_dim not in HEAD_DIMS or k_cache.shape[1] not in BLOCK_SIZES:
        raise ValueError(
            f"head size {work.head_dim} and block size {k_cache.shape[1]}: expected one of {HEAD_DIMS} and of"
            f" {BLOCK_SIZES}"
        )
    if q.stride(2) != 1 or k_cache.stride(3) != 1 or block_table.stride(1) != 1:
        raise ValueError("the last dimension of q, the caches and block_table must be contiguous")
    if q.shape[0] < work.tokens:
        raise ValueError(f"q has {q.shape[0]} rows, the plan {work.tokens}")
    if block_table.shape[0] < len(plan.query_lens) or block_table.shape[1] * k_cache.shape[1] < work.longest:
        raise ValueError(
            f"block_table is {tuple(block_table.shape)} of blocks of {k_cache.shape[1]}, expected"
            f" {len(plan.query_lens)} rows of {work.longest} positions"
        )
    if block_table.dtype != torch.int32:
        raise TypeError(f"block_table is {block_table.dtype}, expected int32")


def default_config(device: "torch.device | str", op: str, head_dim: int) -> Config:
    from kernels.configs import config_for

    return config_for(arch_of(device), op, head_dim)
