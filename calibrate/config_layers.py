"""Attention and feed-forward of each layer, from the fields that families call them by.

The one idea: a family is one function for its attention and one for its feed-forward, each with an entry a layer; a few
whose layers have one half only, or a shape of their own, have one function for both.

    >>> gqa(Reader({"num_attention_heads": 32, "hidden_size": 4096, "model_type": "llama"}, "here"), 2)[0].head_dim
    128
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calibrate.config_fields import DTYPES, Reader, short
from calibrate.layer_groups import Attention, Mlp
from workloads.errors import InputError

# -- attention, one entry a layer -------------------------------------------------------------------------------------


def _heads(read: Reader) -> Attention:
    return _shared_heads(read, read.count("num_key_value_heads", read.count("num_attention_heads")))


def _shared_heads(read: Reader, kv_heads: int) -> Attention:
    heads, hidden = read.count("num_attention_heads"), read.count("hidden_size")
    if heads % kv_heads:
        raise read.wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads = {heads}")
    key = next((k for k in ("attention_head_dim", "head_dim") if read.config.get(k) is not None), None)
    if key is None and hidden % heads:
        raise read.wrong("num_attention_heads", heads, f"a divisor of hidden_size = {hidden} without a head_dim")
    return Attention("full", heads, kv_heads, hidden // heads if key is None else read.count(key))


def gqa(read: Reader, layers: int) -> list[Attention]:
    """Full attention, or a sliding window in the layers that `layer_types` or the older per-family rules name."""
    heads = read.count("num_attention_heads")
    full = [_shared_heads(read, kv_heads) for kv_heads in read.per_layer("num_key_value_heads", layers, heads)]
    for kind in read.listed("attn_type_list", layers) or ():
        if kind != 1:
            raise InputError(
                f"{read.where}: field attn_type_list has {short(kind)}; expected 1, full attention, in all layers"
            )
    sliding = _sliding(read, layers)
    if not any(sliding):
        return full
    window = read.count("sliding_window")
    return [replace(a, kind="window", window=window) if slides else a for a, slides in zip(full, sliding, strict=True)]


SPARSE = ("deepseek_v32", "glm_moe_dsa")
"""Families whose latent attention always has an indexer."""
ONE_WIDTH = ("mixtral", "gpt_oss", "minimax_m2")
"""Families with experts only, whose width is the intermediate_size."""
QWEN_WINDOWS = (
    *("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
    *("qwen3", "qwen3_vl_text", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text", "mimo"),
)
"""Families whose window begins at layer `max_window_layers`."""


def _sliding(read: Reader, layers: int) -> list[bool]:
    config, kind = read.config, read.kind
    kinds = read.listed("layer_types", layers)
    if kinds is not None:
        _known_kinds(read, kinds, ("full_attention", "sliding_attention"))
        return [k == "sliding_attention" for k in kinds]
    if read.optional("sliding_window") is None or not read.flag("use_sliding_window", True):
        return [False] * layers
    if kind in ("gemma2", "gpt_oss"):
        return [i % 2 == 0 for i in range(layers)]
    if kind == "gemma3_text":
        every = read.count("sliding_window_pattern", 6)
        return [(i + 1) % every != 0 for i in range(layers)]
    if kind in QWEN_WINDOWS:
        if "max_window_layers" not in config:
            return [False] * layers
        first = read.count("max_window_layers")
        return [i >= first for i in range(layers)]
    narrower = read.count("sliding_window") < read.count("max_position_embeddings")
    return [narrower] * layers


def _known_kinds(read: Reader, kinds: list[Any], known: tuple[str, ...], field: str = "layer_types") -> None:
    unknown = next((kind for kind in kinds if not isinstance(kind, str) or kind not in known), None)
    if unknown is not None or None in kinds:
        raise InputError(f"{read.where}: field {field} has {short(unknown)}; expected {' or '.join(known)}")


def chunked(read: Reader, layers: int) -> list[Attention]:
    """Llama 4: chunks of local attention, and full attention where there is no rotary embedding (every fourth)."""
    full = _heads(read)
    if read.optional("attention_chunk_size") is None:
        return [full] * layers
    chunk = Attention("chunked", full.heads, full.kv_heads, full.head_dim, read.count("attention_chunk_size"))
    kinds = read.listed("layer_types", layers)
    if kinds is not None:
        _known_kinds(read, kinds, ("full_attention", "chunked_attention"))
        local = [k == "chunked_attention" for k in kinds]
    else:
        rotary = None if read.config.get("no_rope_layers") == [] else read.listed("no_rope_layers", layers)
        every = read.count("no_rope_layer_interval", 4)
        local = [bool(r) for r in rotary] if rotary else [(i + 1) % every != 0 for i in range(layers)]
    return [chunk if one else full for one in local]


def mla(read: Reader, layers: int) -> list[Attention]:
    """One latent for all heads; with `index_topk` an indexer picks the tokens that are attended."""
    fields = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    shapes: dict[str, Any] = {field: read.count(field) for field in fields}
    shapes |= {"q_lora_rank": read.at_least_0("q_lora_rank"), "kv_heads": 1}
    shapes["head_dim"] = shapes["kv_lora_rank"] + shapes["qk_rope_head_dim"]
    heads = read.count("num_attention_heads")
    if read.kind not in SPARSE and read.optional("index_topk") is None:
        return [Attention("mla", heads, **shapes)] * layers
    shapes["index_topk"] = read.count("index_topk")
    shared = Attention("mla", heads, **shapes)
    own = Attention(
        "mla", heads, index_heads=read.count("index_n_heads"), index_dim=read.count("index_head_dim"), **shapes
    )
    indexers = read.listed("indexer_types", layers) or ["full"] * layers
    _known_kinds(read, indexers, ("full", "shared"), "indexer_types")
    return [shared if kind == "shared" else own for kind in indexers]


def gdn(read: Reader, layers: int) -> list[Attention]:
    """Gated DeltaNet, and full attention with an output gate in every `full_attention_interval`-th layer."""
    plain = _heads(read)
    gate = read.flag("attn_output_gate", True)
    full = Attention("full", plain.heads, plain.kv_heads, plain.head_dim, gated=gate)
    linear = Attention(
        "linear",
        heads=read.count("linear_num_value_heads"),
        kv_heads=read.count("linear_num_key_heads"),
        head_dim=read.count("linear_value_head_dim"),
        state_dim=read.count("linear_key_head_dim"),
        conv=read.count("linear_conv_kernel_dim"),
        mixer="gdn",
        state_item_bytes=_state_bytes(read, "mamba_ssm_dtype"),
    )
    kinds = read.listed("layer_types", layers)
    if kinds is None:
        every = read.count("full_attention_interval", 4)
        return [linear if (i + 1) % every else full for i in range(layers)]
    _known_kinds(read, kinds, ("full_attention", "linear_attention"))
    return [linear if kind == "linear_attention" else full for kind in kinds]


# -- feed-forward, one entry a layer ----------------------------------------------------------------------------------


def dense(read: Reader, layers: int) -> list[Mlp]:
    gated = read.kind != "nemotron"
    return [Mlp("dense", width, gated=gated) for width in read.per_layer("intermediate_size", layers)]


def moe(read: Reader, layers: int) -> list[Mlp]:
    """Experts under the names the families use, and which layers have them."""
    config = read.config
    one_width = read.optional("moe_intermediate_size") is None and read.kind in ONE_WIDTH
    width = read.count("intermediate_size" if one_width else "moe_intermediate_size")
    shared = next(
        filter(None, map(read.at_least_0, ("shared_expert_intermediate_size", "shared_intermediate_size"))), 0
    )
    shared = shared or width * read.at_least_0("n_shared_experts")
    sparse = _experts(read, width, shared)
    without = config.get("mlp_only_layers")
    if without is not None and (not isinstance(without, list) or any(type(i) is not int for i in without)):
        raise read.wrong("mlp_only_layers", without, "a list of layer numbers")
    first, every = read.at_least_0("first_k_dense_replace"), 1
    stepped = next((k for k in ("decoder_sparse_step", "moe_layer_freq") if read.optional(k) is not None), None)
    if stepped is not None:
        every = read.count(stepped)
    offset = 1 if "decoder_sparse_step" in config else 0
    has = [i >= first and i not in (without or ()) and (i + offset) % every == 0 for i in range(layers)]
    kinds = read.listed("mlp_layer_types", layers)
    if kinds is not None:
        _known_kinds(read, kinds, ("dense", "sparse"), "mlp_layer_types")
        has = [kind == "sparse" for kind in kinds]
    if all(has):
        return [sparse] * layers
    if not any(has):
        by = next(
            k for k in ("mlp_layer_types", stepped, "first_k_dense_replace", "mlp_only_layers") if k and config.get(k)
        )
        raise read.wrong(by, config[by], f"experts in at least one of {layers} layers")
    plain = Mlp("dense", read.count("intermediate_size"))
    return [sparse if one else plain for one in has]


def _experts(read: Reader, width: int, shared: int, **more: Any) -> Mlp:
    experts = read.first("num_experts", "num_local_experts", "n_routed_experts")
    topk = read.count("num_experts_per_tok")
    if topk > experts:
        raise InputError(f"{read.where}: field num_experts_per_tok is {topk}; expected at most the {experts} experts")
    return Mlp("moe", experts=experts, topk=topk, expert_inter=width, shared_inter=shared, **more)


def moe_if_experts(read: Reader, layers: int) -> list[Mlp]:
    experts = read.optional("n_routed_experts") or read.optional("num_experts")
    stated = experts or read.optional("num_experts_per_tok") or read.optional("moe_intermediate_size")
    return (moe if stated else dense)(read, layers)


def llama4_moe(read: Reader, layers: int) -> list[Mlp]:
    """Every `interleave_moe_layer_step`-th layer: experts and a shared one of the same width; the others have their own
    width, which must be there where they are."""
    width = read.count("intermediate_size")
    sparse, every = _experts(read, width, width), read.count("interleave_moe_layer_step", 1)
    if every > layers:
        raise read.wrong("interleave_moe_layer_step", every, f"experts in at least one of {layers} layers")
    plain = Mlp("dense", read.count("intermediate_size_mlp", width if every == 1 else None))
    return [plain if (i + 1) % every else sparse for i in range(layers)]


# -- families whose layers have one half only, or a shape of their own -------------------------------------------------

Halves = tuple[list[Attention], list[Mlp]]
_MIXERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
NO_ATTENTION, NO_MLP = Attention("none"), Mlp("none")


def nemotron_h(read: Reader, layers: int) -> Halves:
    """One mixer a layer: M a Mamba2 state, * attention, - a feed-forward, E experts; later files write them out."""
    written = read.listed("layers_block_type", layers) or []
    _known_kinds(read, written, tuple(_MIXERS), "layers_block_type")
    pattern = read.listed("hybrid_override_pattern", layers) or [_MIXERS[kind] for kind in written]
    mixers: dict[str, tuple[Attention, Mlp]] = {}
    if "*" in pattern:
        mixers["*"] = (_heads(read), NO_MLP)
    if "-" in pattern:
        mixers["-"] = (NO_ATTENTION, Mlp("dense", read.count("intermediate_size"), gated=False))
    if "M" in pattern:
        mixers["M"] = (_mamba2(read), NO_MLP)
    if "E" in pattern:
        shared = read.at_least_0("moe_shared_expert_intermediate_size") * read.at_least_0("n_shared_experts")
        width, latent = read.count("moe_intermediate_size"), read.at_least_0("moe_latent_size")
        mixers["E"] = (NO_ATTENTION, _experts(read, width, shared, gated=False, latent=latent))
    unknown = sorted({str(c) for c in pattern} - set(mixers))
    if unknown or not pattern:
        raise InputError(
            f"{read.where}: field hybrid_override_pattern has {unknown[0] if unknown else pattern!r}; expected M, *, -"
            " and E"
        )
    return [mixers[c][0] for c in pattern], [mixers[c][1] for c in pattern]


def _mamba2(read: Reader) -> Attention:
    return Attention(
        "linear",
        heads=read.count("mamba_num_heads"),
        kv_heads=read.count("n_groups"),
        head_dim=read.count("mamba_head_dim"),
        state_dim=read.count("ssm_state_size"),
        conv=read.count("conv_kernel"),
        mixer="mamba2",
        state_item_bytes=_state_bytes(read, "mamba_ssm_cache_dtype"),
    )


def _state_bytes(read: Reader, key: str) -> int:
    """Bytes of an element of a state that an engine keeps in this type."""
    return 4 if read.choice(key, DTYPES) == "float32" else 2


def nemotron_nas(read: Reader, layers: int) -> Halves:
    """Layers that a search thinned out one by one: `block_configs` has the width of each half, or that it is gone."""
    heads, hidden = read.count("num_attention_heads"), read.count("hidden_size")
    blocks = read.listed("block_configs", layers)
    if blocks is None:
        raise read.wrong("block_configs", None, "one entry a layer")
    if hidden % heads:
        raise read.wrong("num_attention_heads", heads, f"a divisor of hidden_size = {hidden}")
    attentions, mlps = [], []
    for i, block in enumerate(blocks):
        where = f"block_configs[{i}]"
        attention, ffn = _half(read, block, "attention", where), _half(read, block, "ffn", where)
        if ffn.get("replace_with_linear") or attention.get("replace_with_linear") or attention.get("window_length"):
            raise InputError(f"{read.where}: field {where} replaces a half by another kind of layer")
        attentions.append(NO_ATTENTION if attention["no_op"] else _grouped(read, attention, heads, hidden, where))
        mlps.append(NO_MLP if ffn["no_op"] else Mlp("dense", _multiplied(read, ffn, hidden, where)))
    return attentions, mlps


def _half(read: Reader, block: Any, name: str, where: str) -> dict[str, Any]:
    half = block.get(name) if isinstance(block, dict) else None
    if not isinstance(half, dict) or type(half.get("no_op")) is not bool:
        raise InputError(
            f"{read.where}: field {where} is not understood ({short(block)}); expected attention and ffn with no_op,"
            " n_heads_in_group and ffn_mult"
        )
    return half


def _grouped(read: Reader, attention: dict[str, Any], heads: int, hidden: int, where: str) -> Attention:
    size: Any = attention.get("n_heads_in_group")
    if type(size) is not int or size < 1 or heads % size:
        raise read.wrong(f"{where}.attention.n_heads_in_group", size, f"a divisor of num_attention_heads = {heads}")
    return Attention("full", heads, heads // size, hidden // heads)


def _multiplied(read: Reader, ffn: dict[str, Any], hidden: int, where: str) -> int:
    factor: Any = ffn.get("ffn_mult")
    if type(factor) not in (int, float) or not 0 < factor < 1000:
        raise read.wrong(f"{where}.ffn.ffn_mult", factor, "a number above 0 and below 1,000")
    return _to_256(int(2 * factor * hidden / 3))


def _to_256(width: int) -> int:
    return -(-width // 256) * 256
