"""KV capacity: how many cache blocks fit beside the weights.

The one idea: utilization x memory - weights - overhead, per rank, divided by the bytes of a block. The overhead
(activations, CUDA context, captured graphs) is one constant, 1.5 GiB: on 33 public vLLM logs it lands within 2.2 % on
dense H100 points. It fails, and the arithmetic says so, for quantised mixture-of-experts models (8.5 GiB seen), steps
of more than 20k batched tokens (the activation peak grows with them) and cards below 32 GiB (a fixed error is a large
share there).

    python -c "from calibrate.memory import context_lines as f; from calibrate.models import resolve_model as m;
    print(*f(m('llama-2-7b'), 10**6), sep='\\n')"
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from calibrate.models import ModelSpec
from calibrate.profile import DeviceProfile
from workloads.errors import InputError

GIB = 2**30
WIDTHS = (1, 2, 4, 8)
"""GPUs of a replica that are tried."""
OVERHEAD_GIB = 1.5
QUANTISED_MOE_OVERHEAD_GIB = 8.5
LARGE_STEP_TOKENS = 20_000
SMALL_CARD_GIB = 32


@dataclass(frozen=True)
class KvCapacity:
    """KV cache of one replica; every rank holds the same number of blocks."""

    blocks: int
    tokens: int
    lines: tuple[str, ...]  #: the arithmetic, for people


def kv_capacity(
    profile: DeviceProfile,
    model: ModelSpec,
    dtype: str,
    kv_dtype: str,
    tp: int,
    utilization: float,
    max_num_batched_tokens: int,
    block_size: int,
    request: int = 1,
) -> KvCapacity:
    """Blocks that fit: floor((utilization x memory - weights - overhead) / (block_size x KV bytes per token)), per
    rank.

    Sliding-window layers count as full ones, as in the token count vLLM prints. InputError when not one block fits,
    with the least tensor_parallel that holds the weights and one request of `request` tokens."""
    if not 0 < utilization <= 1:
        raise InputError(f"gpu_memory_utilization is {utilization}; expected a share above 0 and at most 1")
    weights = model.weight_bytes(dtype, tp)
    usable, free = _memory(profile, model, dtype, tp, utilization)
    blocks = _blocks(profile, model, dtype, kv_dtype, tp, utilization, block_size)
    lines = [
        f"{utilization:g} x {profile.memory_gib:g} GiB ({profile.device['name']}) = {usable / GIB:.2f} GiB the engine"
        " may use" + (f", on each of {tp} GPUs" if tp > 1 else ""),
        (
            f"- {weights / GIB:.2f} GiB weights ({model.parameters / 1e9:.2f}B parameters,"
            f" {dtype}{f', 1/{tp} each' if tp > 1 else ''})"
        ),
        f"- {OVERHEAD_GIB:g} GiB overhead (activations, CUDA context, graphs: one constant)",
        f"= {free / GIB:.2f} GiB for KV at {kv_formula(model, kv_dtype, tp)}",
        f"= {blocks:,} blocks of {block_size} tokens = {blocks * block_size:,} tokens",
        *_cautions(profile, model, dtype, max_num_batched_tokens),
    ]
    if blocks == 0:
        found = least_width(
            profile, model, dtype, kv_dtype, tp, utilization, block_size, max_num_batched_tokens, request
        )
        wider = (
            f"it fits at tensor_parallel {found[0]}, with KV memory for {found[1]:,} tokens"
            if found
            else f"it does not fit at any tensor_parallel up to {WIDTHS[-1]} either"
        )
        raise InputError(
            f"{model.name} in {dtype} does not fit {profile.device['name']} at tensor_parallel {tp}: "
            + "; ".join([*lines[:4], wider])
        )
    return KvCapacity(blocks, blocks * block_size, tuple(lines))


def _memory(profile: DeviceProfile, model: ModelSpec, dtype: str, tp: int, utilization: float) -> tuple[int, int]:
    """Bytes of a rank that the engine may use, and what of them is left for KV (below zero: the weights do not fit)."""
    usable = int(Fraction(utilization) * Fraction(profile.memory_gib) * GIB)
    return usable, usable - model.weight_bytes(dtype, tp) - int(OVERHEAD_GIB * GIB)


def _blocks(
    profile: DeviceProfile, model: ModelSpec, dtype: str, kv_dtype: str, tp: int, utilization: float, block_size: int
) -> int:
    return max(
        0, _memory(profile, model, dtype, tp, utilization)[1] // (block_size * model.kv_bytes_per_token(kv_dtype, tp))
    )


def longest_request(model: ModelSpec, blocks: int, block_size: int, max_num_batched_tokens: int) -> int:
    """The largest max_model_len with which vLLM starts: KV of one such request fits into the blocks of an otherwise
    empty replica.

    A full layer keeps all of its tokens, so blocks x block_size without sliding layers. A sliding layer keeps at most
    its window and one step (vLLM's SlidingWindowSpec, one block more for where it begins), and leaves the rest to the
    full ones."""
    if not model.sliding_layers:
        return blocks * block_size
    window = -(-(model.window - 1 + max_num_batched_tokens) // block_size) + 1
    left = model.layers * blocks - model.sliding_layers * window
    if left >= 0 and not model.full_layers:
        return model.max_context
    return max(blocks - 1, left // model.full_layers if model.full_layers else 0, 1) * block_size


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
) -> tuple[int, int] | None:
    """(GPUs of a replica, its KV tokens) of the least of WIDTHS above tp that holds the weights and one request of so
    many tokens; None when none does."""
    for width in (width for width in WIDTHS if width > tp):
        blocks = _blocks(profile, model, dtype, kv_dtype, width, utilization, block_size)
        if longest_request(model, blocks, block_size, max_num_batched_tokens) >= request:
            return width, blocks * block_size
    return None


def kv_formula(model: ModelSpec, kv_dtype: str, tp: int = 1) -> str:
    """KV bytes per token per rank, written out."""
    per_token, width = model.kv_bytes_per_token(kv_dtype, tp), model.layer_kv_bytes(kv_dtype, 1)
    if model.is_mla:
        return (
            f"{model.layers} layers x ({model.kv_lora_rank} + {model.qk_rope_head_dim}) latent, {width} B a layer ="
            f" {per_token:,} B a token"
        )
    heads = -(-model.kv_heads // tp)
    size = width // (2 * model.kv_heads * model.head_dim)
    return f"2 x {model.layers} layers x {heads} KV heads x {model.head_dim} x {size} B = {per_token:,} B a token"


def _cautions(profile: DeviceProfile, model: ModelSpec, dtype: str, batched_tokens: int) -> list[str]:
    cautions = []
    if model.experts and dtype == "fp8":
        cautions.append(
            f"caution: quantised mixture-of-experts engines were seen to take {QUANTISED_MOE_OVERHEAD_GIB} GiB, not"
            f" {OVERHEAD_GIB}; set engine.kv_blocks from your engine's log"
        )
    if batched_tokens > LARGE_STEP_TOKENS:
        cautions.append(
            f"caution: {batched_tokens:,} batched tokens raise the activation peak above the {OVERHEAD_GIB} GiB"
            " constant; set engine.kv_blocks from your engine's log"
        )
    if profile.memory_gib < SMALL_CARD_GIB:
        cautions.append(
            "caution: on a small card an error of half a GiB in the overhead is a large share of the KV cache; set"
            " engine.kv_blocks from your engine's log"
        )
    if model.sliding_layers:
        cautions.append(
            f"caution: {model.sliding_layers} sliding-window layers are counted as full ones, as in vLLM's own token"
            " count"
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
    if model.sliding_layers:
        lines.insert(1, f"{model.sliding_layers} of {model.layers} layers keep the last {model.window:,} tokens only")
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
    """Tokens of KV that fit on the profile's GPUs, 0 when the weights alone do not."""
    return _blocks(profile, model, dtype, kv_dtype, tp, utilization, block_size) * block_size
