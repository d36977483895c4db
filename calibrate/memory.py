"""KV capacity: how many cache blocks fit beside the weights.

The one idea: what an engine measures at start-up, added up part by part. Per GPU: utilization x memory - weights -
overhead, divided by the bytes of a block. The overhead is

    runtime      CUDA context, libraries and captured graphs: 0.25 GiB
    NCCL         buffers of two or more GPUs: 0.33 to 0.38 GiB
    peak         of the profiling step, the larger of a forward pass of max_num_batched_tokens (the widest layer: gate,
                 up and their product, and three copies of the hidden state; 16 bits) and of sampling
    sampling     of the LM head's rows: 16- and 32-bit logits, sorted values and their indices, probabilities, masks: 28
                 bytes per row and word of the vocabulary, of as many rows as sequences may run; start-up logs of dense
                 models show 256 rows at most
    workspaces   of quantized experts, allocated for a chunk of 32,768 tokens whatever the step: their columns, what
                 each returns and the sum; their logs show the sampling of all rows beside it (vLLM 0.9 to 0.15)

`hardware.weights_gib` and `hardware.overhead_gib` replace the two sums for whoever knows better.

    python -c "from calibrate.memory import context_lines as f; from calibrate.models import resolve_model as m;
    print(*f(m('llama-2-7b'), 10**6), sep='\\n')"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from calibrate import kv_groups
from calibrate.layer_groups import LayerGroup
from calibrate.layout import HIGH_THROUGHPUT, LOW_LATENCY, NODE_GPUS, Layout, as_layout
from calibrate.models import ModelSpec
from calibrate.profile import DeviceProfile
from calibrate.resolve import engine_defaults
from workloads.errors import InputError

GIB = 2**30
WIDTHS = (1, 2, 4, 8)
"""GPUs of a replica that are tried."""
RUNTIME_GIB = 0.25
NCCL_GIB = {1: 0.0, 2: 0.334, 4: 0.383, 8: 0.383}
DEEPEP_GIB, DEEPEP_TOKENS = 1.0, 256
"""DeepEP's buffer of the high-throughput kernels as vLLM allocates it, and tokens of a rank in one low-latency call."""
LOGIT_BYTES = 28
SAMPLED_ROWS = 256
EXPERT_CHUNK = 32_768
SMALL_CARD_GIB = 32
CHUNKS_ARE_FULL = (
    "caution: vLLM versions of 2025 take chunked layers as full attention unless"
    " VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is 1; if yours does, set"
    " engine.disable_hybrid_kv_cache_manager = true"
)


class DoesNotFitError(InputError):
    """A model, or one request of the length asked for, that the memory of its GPUs does not hold."""


@dataclass(frozen=True)
class KvCapacity:
    """KV cache of one replica; every rank holds the same number of blocks."""

    blocks: int
    tokens: int
    lines: tuple[str, ...]  #: the arithmetic, for people


@dataclass(frozen=True)
class GpuMemory:
    """What decides the memory of one GPU of a replica. None: the engine's default, or the arithmetic of this module."""

    profile: DeviceProfile
    model: ModelSpec
    dtype: str
    kv_dtype: str
    tp: int | Layout  #: of a replica: its tensor-parallel width, or its whole layout
    utilization: float
    block_size: int
    batched_tokens: int = 0  #: 0: the engine's default
    max_num_seqs: int | None = None
    weights_gib: float | None = None
    overhead_gib: float | None = None
    hybrid: bool = False  #: layers with a window, chunk or state in KV groups of their own, not all as full ones
    cached: bool = True  #: a prefix cache keeps states
    draft_weights: int = 0  #: bytes of what drafts for speculative decoding
    draft_kv: int = 0  #: bytes of its KV for every token
    adapters: int = 0  #: bytes of the slots for LoRA adapters
    steps: int = 1  #: that may be under way of one request: two with asynchronous scheduling
    of_the_rest: bool = False  #: utilization is KV's share of what weights and overhead leave (TensorRT-LLM)

    @property
    def layout(self) -> Layout:
        return as_layout(self.tp)

    @property
    def usable(self) -> int:
        """Bytes that the engine may use."""
        share = 1 if self.of_the_rest else Fraction(self.utilization)
        return int(share * Fraction(self.profile.memory_gib) * GIB)

    @property
    def weights(self) -> int:
        if self.weights_gib is not None:
            return int(self.weights_gib * GIB)
        return self.model.weight_bytes(self.dtype, self.layout) + self.draft_weights

    @property
    def overhead(self) -> int:
        return sum(self.overheads().values())

    def overheads(self) -> dict[str, int]:
        """Bytes by part: runtime, NCCL, peak of the profiling step, workspaces of quantized experts."""
        if self.overhead_gib is not None:
            given = {"given": int(self.overhead_gib * GIB), "LoRA slots": self.adapters}
            return {name: size for name, size in given.items() if size or name == "given"}
        parts = {"runtime": int(RUNTIME_GIB * GIB), "NCCL": self._buffers()}
        parts["profiling step"] = max(self._forward(), self._sampling())
        parts["expert workspaces"] = self._workspaces()
        parts["LoRA slots"] = self.adapters
        return {name: size for name, size in parts.items() if size}

    def _buffers(self) -> int:
        """Of collectives within the ranks of a stage, of sends between stages, and of DeepEP."""
        layout, gib = self.layout, NCCL_GIB[min(n for n in NCCL_GIB if n >= min(self.layout.expert_ranks, NODE_GPUS))]
        if layout.pipeline_parallel > 1:
            gib += NCCL_GIB[2]
        if layout.all_to_all == HIGH_THROUGHPUT:
            gib += DEEPEP_GIB
        elif layout.all_to_all == LOW_LATENCY:  # two buffers that send and receive a whole batch for every expert
            gib += 4 * max(g.mlp.experts for g in self.model.layer_groups) * DEEPEP_TOKENS * self.model.hidden * 2 / GIB
        return int(gib * GIB)

    @property
    def _tokens(self) -> int:
        return self.batched_tokens or engine_defaults(self.profile)[0]

    @property
    def quantized_experts(self) -> bool:
        by = self.model.precision(self.dtype)
        return bool(self.model.experts) and by.experts < by.wide

    def _forward(self) -> int:
        widest = max(self._width(group) for group in self.model.layer_groups)
        return 2 * self._tokens * (widest + 3 * self.model.hidden)

    def _width(self, group: LayerGroup) -> int:
        """Columns of a token's activations in one layer of one rank: its feed-forward, and what comes back of each of
        its experts."""
        mlp = group.mlp
        return -(-mlp.width() // self.layout.tensor_parallel) + mlp.topk * (mlp.latent or self.model.hidden)

    def _sampling(self) -> int:
        rows = self.max_num_seqs or engine_defaults(self.profile)[1]
        return LOGIT_BYTES * self.model.vocab * (rows if self.quantized_experts else min(rows, SAMPLED_ROWS))

    def _workspaces(self) -> int:
        if not self.quantized_experts:
            return 0
        mlps = [group.mlp for group in self.model.layer_groups if group.mlp.experts]
        returned = max(mlp.latent or self.model.hidden for mlp in mlps)
        slices = self.layout.expert_slices
        widest = max(mlp.topk * (-(-3 * mlp.expert_inter // slices) + returned) for mlp in mlps)
        return 2 * EXPERT_CHUNK * (widest + returned)

    @property
    def free(self) -> int:
        """Bytes left for KV; below zero: the weights do not fit."""
        rest = self.usable - self.weights - self.overhead
        return int(rest * Fraction(self.utilization)) if self.of_the_rest and rest > 0 else rest

    @property
    def bytes_per_token(self) -> int:
        return self.model.kv_bytes_per_token(self.kv_dtype, self.layout) + self.draft_kv

    @property
    def pool(self) -> kv_groups.Packed | None:
        """The KV groups; None where all layers are taken as full ones."""
        if not self.hybrid:
            return None
        item = 1 if self.kv_dtype == "fp8" else 2 if self.kv_dtype != "fp32" else 4
        return kv_groups.groups_of(
            self.model.layer_groups, item, self.layout.tensor_parallel, self.block_size, self.cached
        )

    @property
    def block_bytes(self) -> int:
        """Of one block on one GPU."""
        return self.pool.block_bytes if self.pool else self.block_size * self.bytes_per_token

    def tokens(self, blocks: int) -> int:
        """Tokens of so many blocks, as the engine prints them."""
        return kv_groups.token_count(self.pool.groups, blocks) if self.pool else blocks * self.block_size

    def longest(self, blocks: int) -> int:
        """As `longest_request`."""
        if self.pool:
            return kv_groups.longest_request(
                self.pool.groups, blocks, self.steps * self._tokens, self.model.max_context
            )
        return longest_request(self.model, blocks, self.block_size, self.batched_tokens)

    def needs(self, tokens: int) -> int:
        """Blocks that one request of so many tokens must find."""
        if self.pool:
            return kv_groups.request_blocks(self.pool.groups, tokens, self.steps * self._tokens)
        return -(-tokens // self.block_size)

    def blocks(self, length: int | None = None) -> int:
        """Whole blocks that fit, of all KV groups together where there are any. Without them linear-attention layers
        take a state per sequence: one, and one more for every `length` tokens (default: the model's context)."""
        if self.pool:
            return max(0, self.free // self.pool.block_bytes)
        free, state = self.free, self.model.state_bytes(self.layout)
        if state:
            length = length or self.model.max_context
            free = min(free - state, free * length * self.bytes_per_token // (length * self.bytes_per_token + state))
        return max(0, free // (self.block_size * self.bytes_per_token))

    def at(self, tp: int) -> GpuMemory:
        """With so many GPUs to a layer, whatever weights_gib says of another width."""
        return replace(self, tp=replace(self.layout, tensor_parallel=tp), weights_gib=None)

    def runs_at(self, tp: int) -> bool:
        try:
            self.model.check(replace(self.layout, tensor_parallel=tp))
        except InputError:
            return False
        return True


def kv_capacity(
    profile: DeviceProfile,
    model: ModelSpec,
    dtype: str,
    kv_dtype: str,
    tp: int | Layout,
    utilization: float,
    max_num_batched_tokens: int,
    block_size: int,
    request: int = 1,
    max_num_seqs: int | None = None,
    weights_gib: float | None = None,
    overhead_gib: float | None = None,
) -> KvCapacity:
    """Blocks that fit: floor((utilization x memory - weights - overhead) / (block_size x KV bytes per token)), per
    rank.

    Layers with a window or chunk count as full ones, as in the token count vLLM prints. weights_gib, overhead_gib: of
    one GPU, instead of the arithmetic. DoesNotFitError when not one block fits, with the least tensor_parallel that
    holds the weights and one request of `request` tokens."""
    memory = GpuMemory(
        profile,
        model,
        dtype,
        kv_dtype,
        tp,
        utilization,
        block_size,
        max_num_batched_tokens,
        max_num_seqs,
        weights_gib,
        overhead_gib,
    )
    return capacity(memory, request)


def capacity(memory: GpuMemory, request: int = 1) -> KvCapacity:
    """As `kv_capacity`."""
    if not 0 < memory.utilization <= 1:
        raise InputError(f"gpu_memory_utilization is {memory.utilization}; expected a share above 0 and at most 1")
    layout = memory.layout
    memory.model.check(layout)
    profile, model = memory.profile, memory.model
    blocks = memory.blocks(request if request > 1 else None)
    lines = [
        _usable_words(memory) + (f", on each of {layout.gpus} GPUs" if layout.gpus > 1 else ""),
        f"- {memory.weights / GIB:.2f} GiB weights ({_weights_words(memory)})",
        f"- {memory.overhead / GIB:.2f} GiB overhead ({_overhead_words(memory)})",
        (f"x {memory.utilization:g} " if memory.of_the_rest else "")
        + f"= {memory.free / GIB:.2f} GiB for KV at {kv_formula(model, memory.kv_dtype, layout)}"
        + (f", and {memory.draft_kv:,} B for drafting" if memory.draft_kv else ""),
        *_blocks_words(memory, blocks),
        *_cautions(memory),
    ]
    if blocks == 0:
        found = wider(memory, request)
        instead = (
            f"it fits at tensor_parallel {found[0]}, with KV memory for {found[1]:,} tokens"
            if found
            else f"it does not fit at any tensor_parallel up to {WIDTHS[-1]} either"
        )
        raise DoesNotFitError(
            f"{model.name} in {memory.dtype} does not fit {profile.device['name']} at {layout}: "
            + "; ".join([*lines[:4], instead])
        )
    return KvCapacity(blocks, memory.tokens(blocks), tuple(lines))


def _usable_words(memory: GpuMemory) -> str:
    whole = f"{memory.profile.memory_gib:g} GiB ({memory.profile.device['name']})"
    if memory.of_the_rest:
        return whole
    return f"{memory.utilization:g} x {whole} = {memory.usable / GIB:.2f} GiB the engine may use"


def _blocks_words(memory: GpuMemory, blocks: int) -> list[str]:
    if memory.pool is None:
        ranks = memory.layout.attention_dp
        each_rank = f", on each of {ranks} attention_dp ranks" if ranks > 1 else ""
        tokens = blocks * memory.block_size
        return [f"= {blocks:,} blocks of {memory.block_size} tokens = {tokens:,} tokens{each_rank}"]
    groups, each = memory.pool
    counts: dict[str, int] = {}
    for group in groups:
        what = f"{group.kind} {group.window}" if group.window else group.kind
        counts[what] = counts.get(what, 0) + 1
    kinds = " + ".join(f"{n} {what}" for what, n in counts.items())
    size = max(group.layers for group in groups)
    return [
        f"= {blocks:,} blocks of {each:,} B ({size} layers each), shared by {len(groups)} KV groups ({kinds})",
        f"= {memory.tokens(blocks):,} tokens as vLLM prints them, as if every group kept every token",
    ]


def _weights_words(memory: GpuMemory) -> str:
    if memory.weights_gib is not None:
        return "given"
    by = memory.model.precision(memory.dtype)
    kept = by.name in ("bf16", "fp16", "fp32") or all(
        by.type_of(part) == by.name for part in ("attention", "mlp", "experts")
    )
    dtype = memory.dtype if memory.dtype == by.dtype else by.name
    return (
        f"{memory.model.parameters / 1e9:.2f}B parameters, {dtype}{'' if kept else ' in part'}"
        + (f", {_share_words(memory.layout)}" if memory.layout.gpus > 1 else "")
        + (f"; {memory.draft_weights / GIB:.2f} GiB of them drafts" if memory.draft_weights else "")
    )


def _share_words(layout: Layout) -> str:
    if layout.attention_dp == 1:
        return f"1/{layout.gpus} each"
    own = f"the rest 1/{layout.tensor_parallel}" if layout.tensor_parallel > 1 else "the rest whole"
    return f"experts 1/{layout.expert_ranks} each, {own}"


def _overhead_words(memory: GpuMemory) -> str:
    parts = memory.overheads()
    return "given" if "given" in parts else ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())


def longest_request(model: ModelSpec, blocks: int, block_size: int, max_num_batched_tokens: int) -> int:
    """The largest max_model_len with which vLLM starts: KV of one such request fits into the blocks of an otherwise
    empty replica.

    A full layer keeps all of its tokens, so blocks x block_size without others. A sliding layer keeps at most its
    window and one step, and one block more for where it begins (vLLM's SlidingWindowSpec), a chunked one its chunk and
    one step; they leave the rest to the full ones."""
    keeping = [group for group in model.layer_groups if group.attention.kv_bytes(1)]
    limited = [group for group in keeping if group.attention.window]
    if not limited:
        return blocks * block_size
    full = sum(group.count for group in keeping if not group.attention.window)
    left = sum(group.count for group in keeping) * blocks
    for group in limited:
        a = group.attention
        first = a.window - 1 if a.kind == "window" else a.window
        left -= group.count * (-(-(first + max_num_batched_tokens) // block_size) + (a.kind == "window"))
    if left >= 0 and not full:
        return model.max_context
    return max(blocks - 1, left // full if full else 0, 1) * block_size


def least_width(
    profile: DeviceProfile,
    model: ModelSpec,
    dtype: str,
    kv_dtype: str,
    tp: int,
    utilization: float,
    block_size: int,
    max_num_batched_tokens: int,
    request: int,
    max_num_seqs: int | None = None,
) -> tuple[int, int] | None:
    """(GPUs of a replica, its KV tokens) of the least of WIDTHS above tp that holds the weights and one request of so
    many tokens; None when none does."""
    memory = GpuMemory(
        profile, model, dtype, kv_dtype, tp, utilization, block_size, max_num_batched_tokens, max_num_seqs
    )
    return wider(memory, request)


def wider(memory: GpuMemory, request: int) -> tuple[int, int] | None:
    """As `least_width`."""
    layout = memory.layout
    most = NODE_GPUS // layout.attention_dp
    for tp in (tp for tp in WIDTHS if layout.tensor_parallel < tp <= most and memory.runs_at(tp)):
        wide = memory.at(tp)
        blocks = wide.blocks(request if request > 1 else None)
        if blocks and wide.longest(blocks) >= request:
            return tp, wide.tokens(blocks)
    return None


def kv_formula(model: ModelSpec, kv_dtype: str, width: int | Layout = 1) -> str:
    """KV bytes per token per rank, written out."""
    layout = as_layout(width)
    tp, stages = layout.tensor_parallel, layout.pipeline_parallel
    per_token, item = (
        model.kv_bytes_per_token(kv_dtype, layout),
        1 if kv_dtype == "fp8" else 2 if kv_dtype != "fp32" else 4,
    )
    counts: dict[str, int] = {}
    for group in model.layer_groups:
        a = group.attention
        if a.kind == "mla":
            index = f" + {a.index_dim} + 4 B index" if a.index_heads else ""
            words = f"({a.kv_lora_rank} + {a.qk_rope_head_dim}) latent x {item} B{index}"
        elif a.kv_bytes(1):
            words = f"{-(-a.kv_heads // tp)} KV heads x {a.head_dim} x {item} B"
        else:
            continue
        counts[words] = counts.get(words, 0) + group.count
    terms = [("" if "latent" in words else "2 x ") + f"{count} layers x {words}" for words, count in counts.items()]
    state = model.state_bytes(layout)
    total = " + ".join(terms) if stages == 1 else f"({' + '.join(terms)}), one of {stages} stages"
    return f"{total} = {per_token:,} B a token" + (
        f", and {state / 2**20:.1f} MiB of state a sequence" if state else ""
    )


def state_block_size(model: ModelSpec, kv_dtype: str, tp: int = 1, multiple: int = 16) -> int:
    """Tokens of the block that vLLM chooses for a model with linear-attention layers, so that a block of its attention
    layers is at least a state: 784 for Qwen3.5-27B. 0 for other models."""
    states = [group.attention.state_bytes(tp) for group in model.layer_groups]
    item = 1 if kv_dtype == "fp8" else 2
    tokens = [group.attention.kv_bytes(item, tp) for group in model.layer_groups]
    if not any(states):
        return 0
    return -(-max(states) // (multiple * max(tokens))) * multiple


def _cautions(memory: GpuMemory) -> list[str]:
    model, cautions = memory.model, []
    if memory.profile.memory_gib < SMALL_CARD_GIB:
        cautions.append(
            "caution: on a small card an error of half a GiB in the overhead is a large share of the KV cache; set"
            " engine.kv_blocks from your engine's log"
        )
    if memory.quantized_experts and memory.overhead_gib is None:
        cautions.append(
            "caution: start-up logs of quantized mixtures of experts lie up to 10 % from this arithmetic; set"
            " engine.kv_blocks from your engine's log"
        )
    limited = sum(group.count for group in model.layer_groups if group.attention.window)
    if memory.hybrid:
        chunked = memory.pool and any(group.kind == kv_groups.CHUNKED for group in memory.pool.groups)
        return [*cautions, *([CHUNKS_ARE_FULL] if chunked else [])]
    if limited:
        kind = "sliding-window" if model.sliding_layers else "chunked"
        cautions.append(f"caution: {limited} {kind} layers are counted as full ones, as in vLLM's own token count")
    size = state_block_size(model, memory.kv_dtype, memory.layout.tensor_parallel)
    if size > memory.block_size:
        cautions.append(
            f"caution: vLLM takes blocks of {size} tokens for this model, as large as a state of its linear-attention"
            f" layers; set engine.block_size = {size}"
        )
    return cautions


def explicit_blocks_warning(blocks: int, capacity: KvCapacity) -> str | None:
    """A line when a given block count cannot fit by this arithmetic; the count itself is kept as given."""
    if blocks <= capacity.blocks:
        return None
    share = blocks / capacity.blocks - 1
    return (
        f"engine.kv_blocks = {blocks:,} is {share:.0%} more than the {capacity.blocks:,} that fit by the arithmetic;"
        " kept as given"
    )


def context_lines(model: ModelSpec, tokens: int, kv_dtype: str = "bf16", tp: int = 1) -> list[str]:
    """The KV arithmetic of one sequence of `tokens` tokens, for `kvcast profile show --model M --context N`."""
    total = model.kv_bytes(tokens, kv_dtype, tp)
    lines = [
        kv_formula(model, kv_dtype, tp) + (" and rank" if tp > 1 else ""),
        f"{tokens:,} tokens: {total / GIB:,.0f} GiB" + (" per rank" if tp > 1 else ""),
    ]
    limits = {(g.attention.kind, g.attention.window): 0 for g in model.layer_groups if g.attention.window}
    for group in model.layer_groups:
        if group.attention.window:
            limits[group.attention.kind, group.attention.window] += group.count
    for (kind, window), count in limits.items():
        words = f"the last {window:,} tokens" if kind == "window" else f"their chunk of {window:,} tokens"
        lines.insert(1, f"{count} of {model.layers} layers keep {words} only")
    if tokens > model.max_context:
        lines.append(f"beyond the model's own context of {model.max_context:,} tokens")
    return lines


def longest_context(
    profile: DeviceProfile,
    model: ModelSpec,
    dtype: str,
    kv_dtype: str,
    tp: int,
    utilization: float = 0.92,
    block_size: int = 16,
) -> int:
    """Tokens of KV that fit on the profile's GPUs, 0 when the weights alone do not, or the layout is impossible."""
    memory = GpuMemory(profile, model, dtype, kv_dtype, tp, utilization, block_size)
    return memory.blocks() * block_size if memory.runs_at(tp) else 0
