"""Model shapes against published totals, KV arithmetic, FLOPs by hand, and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.layer_groups import layer_groups
from calibrate.layout import Layout
from calibrate.memory import kv_capacity, state_block_size
from calibrate.model_config import UNDERSTOOD
from calibrate.models import (
    BUNDLED,
    bundled_models,
    flops,
    hugging_face_names,
    load_model,
    model_from_config,
    published_names,
    resolve_model,
    source_of,
    windowed_pairs,
)
from calibrate.sources.roofline import roofline_profile
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.present import model_matrix, models_page
from workloads.errors import InputError

PUBLISHED_BILLIONS = {
    "llama-2-7b": (6.74, 6.74),
    "llama-3.1-8b": (8.03, 8.03),
    "llama-3.1-70b": (70.6, 70.6),
    "qwen3-8b": (8.19, 8.19),
    "qwen3-32b": (32.8, 32.8),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-coder-30b-a3b": (30.5, 3.3),
    "mixtral-8x7b": (46.7, 12.9),
    "codellama-34b": (33.74, 33.74),
    "deepseek-v3": (671.0, 37.5),
    "deepseek-v3.2": (671.9, 38.4),  # and its indexers
    "gemma-2-27b": (27.23, 27.23),
    "gemma-2-9b": (9.24, 9.24),
    "gemma-3-12b": (11.77, 11.77),  # text part
    "gemma-3-27b": (27.01, 27.01),  # text part
    "glm-4.5": (352.8, 33.0),  # 355 with its draft layer
    "glm-4.5-air": (106.9, 13.2),
    "glm-4.6": (352.8, 33.0),
    "glm-5": (744.0, 41.0),
    "glm-5.2": (743.4, 41.25),  # GLM-5 without the indexers that 57 of its layers share with another: 0.5 B
    "gpt-oss-120b": (116.8, 5.7),  # OpenAI counts 5.1 active without embeddings
    "gpt-oss-20b": (20.9, 4.2),
    "kimi-k2": (1026.0, 32.9),
    "kimi-k2.5": (1026.0, 32.9),
    "llama-3.1-405b": (405.9, 405.9),
    "llama-3.2-1b": (1.236, 1.236),
    "llama-3.2-3b": (3.21, 3.21),
    "llama-3.3-nemotron-super-49b": (49.87, 49.87),
    "llama-4-maverick": (400.7, 17.2),  # text part
    "llama-4-scout": (107.8, 17.2),  # text part
    "minimax-m2.5": (228.7, 11.0),
    "ministral-8b": (8.02, 8.02),
    "mistral-7b-v0.3": (7.25, 7.25),
    "mistral-nemo-12b": (12.25, 12.25),
    "mistral-small-24b": (23.57, 23.57),
    "mixtral-8x22b": (140.6, 39.1),
    "nemotron-3-nano-30b-a3b": (31.6, 3.6),
    "nemotron-3-super-120b-a12b": (120.6, 12.7),
    "nemotron-3-ultra-550b-a55b": (550.0, 55.0),
    "nemotron-h-56b": (56.3, 56.3),
    "phi-3-mini": (3.82, 3.82),
    "phi-4": (14.66, 14.66),
    "phi-4-mini": (3.836, 3.836),
    "qwen2.5-7b": (7.62, 7.62),
    "qwen2.5-14b": (14.77, 14.77),
    "qwen2.5-32b": (32.76, 32.76),
    "qwen2.5-72b": (72.7, 72.7),
    "qwen3-0.6b": (0.596, 0.596),
    "qwen3-1.7b": (1.72, 1.72),
    "qwen3-4b": (4.02, 4.02),
    "qwen3-14b": (14.77, 14.77),
    "qwen3-235b-a22b": (235.1, 22.2),
    "qwen3-coder-480b-a35b": (480.2, 35.5),
    "qwen3-next-80b-a3b": (79.7, 3.9),
    "qwen3.5-27b": (26.9, 26.9),
    "qwen3.5-35b-a3b": (34.7, 3.45),
    "qwen3.5-122b-a10b": (122.1, 9.8),
    "qwen3.5-397b-a17b": (396.4, 17.4),
}

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
}
GLM_5 = {**DEEPSEEK_V3, "model_type": "glm_moe_dsa", "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}
TINY = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED_BILLIONS))
def test_parameters_match_the_published_totals(name):
    model, (total, active) = resolve_model(name), PUBLISHED_BILLIONS[name]
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.002)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_every_bundled_model_has_a_published_total():
    assert set(bundled_models()) - {"tiny"} == set(PUBLISHED_BILLIONS), (
        "tiny is a made-up model that a CPU can calibrate in a minute"
    )


def test_deepseek_v3_latent_attention_and_shared_experts():
    model = model_from_config(DEEPSEEK_V3, "deepseek-v3")
    assert model.parameters / 1e9 == pytest.approx(671.0, rel=0.001)
    assert model.active_parameters / 1e9 == pytest.approx(37.5, rel=0.005)
    assert model.kv_bytes_per_token("bf16") == 61 * (512 + 64) * 2
    assert model.kv_bytes_per_token("bf16", tp=8) == model.kv_bytes_per_token("bf16"), "the latent is on every rank"


def test_kv_bytes_per_token():
    assert resolve_model("llama-2-7b").kv_bytes_per_token("fp16") == 2 * 32 * 32 * 128 * 2
    model = resolve_model("llama-3.1-70b")
    assert model.kv_bytes_per_token("bf16") == 2 * 80 * 8 * 128 * 2
    assert model.kv_bytes_per_token("bf16", tp=4) == 2 * 80 * 2 * 128 * 2
    assert model.kv_bytes_per_token("bf16", tp=16) == 2 * 80 * 1 * 128 * 2, "a KV head cannot be split"
    assert model.kv_bytes_per_token("fp8") * 2 == model.kv_bytes_per_token("bf16")


OFF = {"use_sliding_window": False, "sliding_window": 32768}  # a window in the file that no layer uses
WIDTH = {"moe_intermediate_size": 768}
BY_NAME = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12}
FAMILIES = {
    "llama": (80, 8, 128, {}, 327_680, 0),  # Llama-3.1-70B
    "mistral": (32, 8, 128, {"sliding_window": 4096, "max_position_embeddings": 32768}, 131_072, 32),  # Mistral-7B-v0.1
    "qwen2": (28, 4, 128, OFF, 57_344, 0),  # Qwen2.5-7B
    **dict.fromkeys(  # Qwen2.5-VL-7B, whose files keep the decoder's fields at the top or one level down
        ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        (28, 4, 128, OFF, 57_344, 0),
    ),
    "qwen3": (36, 8, 128, OFF, 147_456, 0),  # Qwen3-8B
    "qwen3_vl_text": (36, 8, 128, {}, 147_456, 0),  # Qwen3-VL-8B
    "ministral3": (34, 8, 128, {}, 139_264, 0),  # Ministral-3-8B
    "nemotron": (32, 8, 128, {}, 131_072, 0),  # Minitron-4B
    "phi3": (32, 32, 96, {"sliding_window": 2047, "max_position_embeddings": 4096}, 393_216, 32),  # Phi-3-mini-4k
    "gemma2": (42, 8, 256, {"sliding_window": 4096}, 344_064, 21),  # Gemma-2-9b: every other layer
    "gemma3_text": (62, 16, 128, {"sliding_window": 1024}, 507_904, 52),  # Gemma-3-27b: five of six
    "mimo": (36, 8, 128, OFF, 147_456, 0),  # MiMo-7B
    "mixtral": (32, 8, 128, {"num_local_experts": 8}, 131_072, 0),  # Mixtral-8x7B
    "qwen2_moe": (
        24,
        16,
        128,
        {"num_experts": 60, "max_window_layers": 21, **WIDTH, **OFF},
        196_608,
        0,
    ),  # Qwen1.5-MoE-A2.7B
    "qwen3_moe": (48, 4, 128, {"num_experts": 128, **WIDTH}, 98_304, 0),  # Qwen3-30B-A3B
    "qwen3_omni_moe_text": (48, 4, 128, {"num_experts": 128, **WIDTH}, 98_304, 0),  # Qwen3-Omni-30B-A3B
    "qwen3_vl_moe_text": (48, 4, 128, {"num_experts": 128, **WIDTH}, 98_304, 0),  # Qwen3-VL-30B-A3B
    "gpt_oss": (24, 8, 64, {"num_local_experts": 32, **BY_NAME}, 49_152, 12),  # gpt-oss-20b
    "deepseek_v2": (60, 128, 192, {**DEEPSEEK_V3, "n_routed_experts": 160}, 69_120, 0),
    "deepseek_v3": (61, 128, 192, DEEPSEEK_V3, 70_272, 0),
    "kimi_k2": (61, 64, 192, {**DEEPSEEK_V3, "n_routed_experts": 384}, 70_272, 0),
}
"""One published model of every family: layers, KV heads, head size, what else decides -> bytes of KV a token in 16
bits, layers that slide."""


def test_every_family_has_a_published_model_above_or_a_bundled_one():
    bundled = [json.loads(path.read_text()) for path in BUNDLED.glob("*.json")]
    assert set(FAMILIES) | {config["model_type"] for config in bundled} >= set(UNDERSTOOD)


@pytest.mark.parametrize("family", FAMILIES)
def test_kv_bytes_of_one_published_model_of_every_family(family):
    layers, kv_heads, head_dim, more, a_token, sliding = FAMILIES[family]
    shapes = {"num_hidden_layers": layers, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    config = {**TINY, "num_attention_heads": 32, "num_experts_per_tok": 2, **more, **shapes, "model_type": family}
    model = model_from_config(config, family)
    assert model.kv_bytes_per_token("bf16") == a_token
    assert (model.sliding_layers, model.window) == (sliding, config["sliding_window"] if sliding else 0)
    kept = 100_000 * (layers - sliding) + model.window * sliding
    assert model.kv_bytes(100_000, "bf16") * layers == a_token * kept


def test_of_an_odd_number_of_gemma2_layers_the_first_and_the_last_slide():
    model = model_from_config({**TINY, "model_type": "gemma2", "num_hidden_layers": 3, "sliding_window": 16}, "t")
    assert model.sliding_layers == 2


def test_weights_of_llama_8b_as_vllm_logs_them():
    model = resolve_model("llama-3.1-8b")
    assert model.weight_bytes("bf16") / 2**30 == pytest.approx(14.99, rel=0.003)
    assert model.weight_bytes("bf16", tp=2) / 2**30 == pytest.approx(7.51, rel=0.005)
    assert model.weight_bytes("fp8") / 2**30 == pytest.approx(8.46, rel=0.001), (
        "fp8 checkpoints keep embeddings and LM head in 16 bits"
    )


def test_coder_reads_262k():
    assert resolve_model("qwen3-coder-30b-a3b").max_context == 262144


def test_sliding_window_layers_keep_the_window():
    model = model_from_config(
        {**TINY, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}, "t"
    )
    a_layer = 2 * 2 * 2 * 2
    assert model.kv_bytes(100, "bf16") == a_layer * (100 + 16)
    assert model.kv_bytes(10, "bf16") == a_layer * 20


@pytest.mark.parametrize(
    ("new", "cached", "window"), [(5, 0, 3), (5, 2, 3), (5, 9, 3), (2, 0, 8), (0, 4, 3), (7, 6, 8)]
)
def test_windowed_pairs_is_the_sum_over_tokens(new, cached, window):
    expected = sum(min(cached + i, window) for i in range(1, new + 1))
    assert windowed_pairs(np.array(float(new)), np.array(float(cached)), window) == expected


def test_flops_by_hand():
    model = model_from_config(TINY, "t")
    projections, feed_forward = 8 * (4 * 2 + 2 * 2 + 2 * 2) + 4 * 2 * 8, 3 * 8 * 16
    linear = 2 * 2 * (projections + feed_forward)  # 2 FLOPs a weight, 2 layers
    assert model.linear_flops_per_token == linear
    pairs = 3 * 5 + 6  # 3 new tokens over 5 cached ones, and 1 + 2 + 3 among themselves
    assert flops(model, 3, 5) == 3 * linear + 2 * 4 * 4 * 2 * pairs + 2 * 10 * 8
    assert flops(model, np.array([3, 0]), np.array([5, 8])).tolist() == [flops(model, 3, 5), 0.0]


def test_caching_saves_fewer_flops_than_tokens_when_the_suffix_attends_far():
    model = resolve_model("llama-3.1-8b")
    saved = 1 - float(flops(model, 50_000, 50_000)) / float(flops(model, 100_000, 0))
    assert 0.3 < saved < 0.5


def test_moe_flops_count_active_experts_only():
    model = resolve_model("mixtral-8x7b")
    assert model.linear_flops_per_token == pytest.approx(
        2 * (model.active_parameters - 2 * model.vocab * model.hidden), rel=1e-3
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba2"}, "model_type 'mamba2' is not understood"),
        ({"model_type": None}, "model_type None is not understood"),
        ({"linear_attn_config": {"heads": 2}}, "linear_attn_config means linear attention"),
        ({"cross_attention_layers": [1]}, "cross_attention_layers means cross attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types has 'linear_attention'"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; expected num_hidden_layers = 2"),
        ({"num_hidden_layers": "2"}, "field num_hidden_layers is '2'; expected a positive whole number"),
        ({"vocab_size": None}, "field vocab_size is missing"),
        ({"hidden_size": -8}, "field hidden_size is -8"),
        ({"is_encoder_decoder": True}, "only decoder-only"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantization 'aqlm' is not understood"),
        ({"quantization_config": "fp8"}, "field quantization_config is 'fp8'; expected an object"),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 3}},
            "field quantization_config.bits is 3; expected 4 or 8 bits",
        ),
        (
            {"quantization_config": {"quant_algo": "W4A8"}},
            "field quantization_config.quant_algo is 'W4A8'; expected one of FP8",
        ),
        ({"layer_types": 5}, "field layer_types is 5; expected one entry a layer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of num_attention_heads = 4"),
        ({"tie_word_embeddings": "no"}, "field tie_word_embeddings is 'no'; expected true or false"),
        ({"num_hidden_layers": 10**9}, "expected at most 10,000"),
        ({"text_config": 3}, "field text_config is 3"),
        ({"index_topk": 64}, "index_topk means a sparse-attention indexer, which is not understood in llama"),
        ({"attention_chunk_size": 64}, "attention_chunk_size means chunked local attention"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "*X"}, "hybrid_override_pattern has 'X'"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "--"}, "no layer keeps KV"),
        ({"model_type": "nemotron-nas", "block_configs": [{}, {}]}, "block_configs[0] is not understood"),
        (
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": None},
            "field max_window_layers is missing",
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok is 5; expected at most the 4 experts",
        ),
        ({"num_local_experts": 8}, "num_local_experts means experts, which is not understood in llama"),
        ({"model_type": "qwen3", "num_experts": 128}, "num_experts means experts, which is not understood in qwen3"),
        ({"kv_lora_rank": 512}, "kv_lora_rank means latent attention, which is not understood in llama"),
        ({"v_head_dim": 1}, "v_head_dim means values of another width than keys"),
        ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern means window layers of another shape"),
        ({"compress_ratios": [0, 4]}, "compress_ratios means a compressed KV cache"),
        ({"model_type": "minimax_m2", "attn_type_list": [1, 0]}, "attn_type_list has 0; expected 1, full attention"),
        (
            {**GLM_5, "num_hidden_layers": 2, "mlp_layer_types": ["dense", "gated"]},
            "mlp_layer_types has 'gated'; expected dense or sparse",
        ),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "rwkv"]}, "field layers_block_type has 'rwkv'"),
        (
            {"rope_scaling": {"rope_type": "spiral", "factor": 2}},
            "rope_scaling has rope_type 'spiral'; expected one of",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "rope_scaling has factor '4'; expected a number above 0"),
        ({"rope_scaling": "yarn"}, "field rope_scaling is 'yarn'; expected an object"),
        ({"llm_config": "qwen2"}, "field llm_config is 'qwen2'; expected the fields of the text model"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*attn.*": {"bits": 2}}}},
            "field quantization_config.dynamic.+:.*attn.*.bits is 2; expected 4 or 8 bits",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "sparsity_config": {"format": "bitmask"}}},
            "field quantization_config.sparsity_config = {'format': 'bitmask'} is not understood",
        ),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}},
            "field quantization_config.quantized_layers is None; expected an object",
        ),
    ],
)
def test_what_is_not_understood_is_refused(change, message):
    with pytest.raises(InputError, match=r"config\.json: ") as error:
        model_from_config({**TINY, **change}, "t", "config.json")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 32768),
        ({"rope_type": "default"}, 32768),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "yarn", "factor": 4.0}, 131072),
        ({"type": "dynamic", "factor": 2.0}, 65536),
        ({"full_attention": {"rope_type": "proportional"}, "sliding_attention": {"rope_type": "default"}}, 32768),
    ],
)
def test_the_context_is_as_long_as_the_engine_derives_it(scaling, context):
    config = {**TINY, "max_position_embeddings": 32768, "rope_scaling": scaling}
    assert model_from_config(config, "t").max_context == context
    assert model_from_config(
        {**TINY, "max_position_embeddings": 32768, "rope_parameters": scaling}, "t"
    ).max_context == (context)


def test_a_scaling_that_the_file_counts_already_is_not_counted_twice():
    """DeepSeek-V3: 40 x 4,096 is its max_position_embeddings; Gemma 3's own value has its factor of 8 in it."""
    deepseek = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    assert model_from_config({**DEEPSEEK_V3, "rope_scaling": deepseek}, "t").max_context == 163840
    gemma = {"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "sliding_window": 1024}
    gemma |= {
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    published = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **gemma}, "vision_config": {}}
    read = model_from_config(published, "t")
    assert read.head_dim == 256, (
        "not hidden_size / num_attention_heads = 240: the family's own, which the file leaves out"
    )
    assert replace(read, name="gemma-3-12b") == resolve_model("gemma-3-12b")


def test_a_decoder_inside_another_model_is_read():
    inner = {**TINY, "model_type": "qwen2"}
    plain = model_from_config(inner, "t")
    for wrapper in ("text_config", "llm_config", "language_config"):
        outer = {"model_type": "something_vl", wrapper: inner, "vision_config": {"hidden_size": 64}}
        assert model_from_config(outer, "t") == plain
    tied = {"model_type": "something_vl", "tie_word_embeddings": True, "text_config": {**inner}}
    tied["text_config"].pop("tie_word_embeddings", None)
    assert model_from_config(tied, "t").tied_embeddings
    assert model_from_config({**TINY, "num_nextn_predict_layers": 1}, "t") == model_from_config(TINY, "t")


def test_layers_written_out_are_the_layers_of_the_pattern():
    kinds = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    config = json.loads((BUNDLED / "nemotron-3-nano-30b-a3b.json").read_text())
    pattern = config.pop("hybrid_override_pattern")
    written = {**config, "layers_block_type": [kinds[one] for one in pattern]}
    written.pop("num_hidden_layers")
    read = model_from_config(written, "nemotron-3-nano-30b-a3b")
    assert read == resolve_model("nemotron-3-nano-30b-a3b")


def test_experts_by_a_list_of_layers_are_those_by_a_count():
    config = {**TINY, **GLM_5, "num_hidden_layers": 2}
    listed = {**config, "first_k_dense_replace": 0, "mlp_layer_types": ["dense", "sparse"]}
    assert model_from_config(listed, "t") == model_from_config({**config, "first_k_dense_replace": 1}, "t")


def test_a_published_name_brings_what_its_file_has_of_its_own():
    assert resolve_model("hf:Qwen/Qwen2.5-14B").max_context == 131072
    assert resolve_model("hf:Qwen/Qwen2.5-14B-Instruct").max_context == 32768
    minimax = resolve_model("hf:MiniMaxAI/MiniMax-M2.7")
    assert (minimax.max_context, minimax.quantization.name) == (204800, "fp8_block")
    assert "MiniMaxAI/MiniMax-M2.7" in published_names()


def test_every_bundled_shape_says_what_it_was_held_against():
    assert {source_of(name) for name in bundled_models()} <= {
        "config.json in aiconfigurator-core 0.12",
        "copies of its config.json in public repositories",
        "the published number of parameters",
        "made up",
    }


def test_names_paths_and_typos(tmp_path):
    assert resolve_model("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b"
    with pytest.raises(InputError, match=r"did you mean llama-3.1-8b\?"):
        resolve_model("lama-3.1-8b")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    assert load_model(path) == resolve_model(str(tmp_path))
    path.write_text('{"model_type": ')
    with pytest.raises(InputError, match="not a JSON model config"):
        load_model(path)
    with pytest.raises(InputError, match="cannot read"):
        resolve_model(str(tmp_path / "absent.json"))


# -- layers ------------------------------------------------------------------------------------------------------------


def shape_of(name):
    return [(g.count, g.attention.kind, g.attention.window, g.mlp.kind) for g in layer_groups(resolve_model(name))]


def test_layer_groups_of_every_kind():
    assert shape_of("qwen3-8b") == [(36, "full", 0, "dense")]
    assert shape_of("mixtral-8x7b") == [(32, "full", 0, "moe")]
    assert shape_of("gpt-oss-120b") == [(18, "full", 0, "moe"), (18, "window", 128, "moe")]
    assert shape_of("deepseek-v3") == [(3, "mla", 0, "dense"), (58, "mla", 0, "moe")]
    assert shape_of("llama-4-maverick") == [
        (24, "chunked", 8192, "dense"),
        (12, "chunked", 8192, "moe"),
        (12, "full", 0, "moe"),
    ]
    assert shape_of("qwen3.5-27b") == [(48, "linear", 0, "dense"), (16, "full", 0, "dense")]
    assert shape_of("nemotron-3-nano-30b-a3b") == [
        (23, "linear", 0, "none"),
        (23, "none", 0, "moe"),
        (6, "full", 0, "none"),
    ]


@pytest.mark.parametrize("name", bundled_models())
def test_groups_add_up_to_the_layers(name):
    model = resolve_model(name)
    assert sum(g.count for g in layer_groups(model)) == model.layers
    assert model.layers * model.layer_kv_bytes("bf16") == pytest.approx(model.kv_bytes_per_token("bf16"))
    if model.quantization is None:
        assert model.weight_bytes("bf16") == 2 * model.parameters


def test_a_group_says_what_an_operator_needs():
    dense, moe = layer_groups(resolve_model("deepseek-v3"))
    a = moe.attention
    assert (a.heads, a.kv_lora_rank, a.qk_rope_head_dim, a.v_head_dim) == (128, 512, 64, 128)
    assert (moe.mlp.experts, moe.mlp.topk, moe.mlp.expert_inter, moe.mlp.shared_inter) == (256, 8, 2048, 2048)
    assert dense.mlp.inter == 18432


def test_constant_state_of_linear_attention():
    """vLLM sets Qwen3.5-27B's block to 784 tokens so that a block of attention is at least a state (start-up log)."""
    model = resolve_model("qwen3.5-27b")
    a_layer = 3 * (48 * 128 + 2 * 16 * 128) * 2 + 48 * 128 * 128 * 4
    assert model.state_bytes() == 48 * a_layer
    assert model.kv_bytes_per_token("bf16") == 16 * 2 * 4 * 256 * 2
    assert model.kv_bytes(1000, "bf16") == 48 * a_layer + 1000 * 16 * 4096
    assert state_block_size(model, "bf16") == 784
    assert state_block_size(resolve_model("qwen3-8b"), "bf16") == 0


def test_chunked_layers_keep_their_chunk_and_see_it_only():
    model = resolve_model("llama-4-scout")
    a_token = 2 * 8 * 128 * 2
    assert model.kv_bytes(100_000, "bf16") == a_token * (12 * 100_000 + 36 * 8192)
    (reach,) = [r for r in model.reaches() if r.chunk]
    for new, cached in ((5, 0), (9000, 100), (20_000, 8192), (1, 8192)):
        seen = sum((cached + i) % 8192 + 1 for i in range(new))
        assert reach.pairs(float(new), float(cached)) == seen


def test_sparse_attention_sees_the_best_tokens_and_its_indexer_all():
    latent, indexer = resolve_model("deepseek-v3.2").reaches()
    assert latent.window == 2048
    assert indexer.window == 0
    assert latent.key_bytes == 576 * 2
    assert indexer.key_bytes == 128 + 4
    assert resolve_model("deepseek-v3.2").kv_bytes_per_token("bf16") == 61 * (576 * 2 + 132)


# -- precision ---------------------------------------------------------------------------------------------------------


def quantized(config, **shapes):
    return model_from_config({**TINY, **shapes, "quantization_config": config}, "t").quantization


MOE_SHAPES = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "name", "size"),
    [
        ({"quant_method": "fp8"}, "fp8", 1),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 1),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 1),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4", 0.5 + 2.5 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5625),
        ({"producer": {}, "quantization": {"quant_algo": "FP8"}}, "fp8", 1),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 0.515625),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            1,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            },
            "int4",
            0.5625,
        ),
    ],
)
def test_precision_of_published_checkpoints(config, name, size):
    found = quantized(config)
    assert (found.name, found.attention, found.mlp, found.wide) == (name, size, size, 2)


def test_parts_that_a_checkpoint_leaves_alone():
    ignore = ["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head"]
    found = quantized({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore}, **MOE_SHAPES)
    assert (found.attention, found.experts, found.shared) == (2, 0.5625, 2)
    assert (found.type_of("attention"), found.type_of("experts")) == ("bf16", "nvfp4")
    router_only = {"quant_method": "fp8", "modules_to_not_convert": ["gate", "model.layers.1.mlp.gate"]}
    assert quantized(router_only).mlp == 1, "gate is the router, not gate_proj"
    by_name = {"quant_method": "fp8", "ignored_layers": ["model.layers.1.self_attn.q_proj"]}
    assert quantized(by_name).attention == 1.5, "of two layers one is left"
    mxfp4 = quantized({"quant_method": "mxfp4"}, **MOE_SHAPES)
    assert (mxfp4.attention, mxfp4.experts * 8) == (2, 4.25)


def test_the_kv_type_is_the_checkpoints_when_it_says_so():
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    model = model_from_config({**TINY, "quantization_config": scheme}, "t")
    assert model.kv_dtype("bf16") == "fp8"
    assert resolve_model("qwen3-8b").kv_dtype("fp8") == "bf16"
    assert resolve_model("qwen3-8b").kv_dtype("fp16") == "fp16"
    with pytest.raises(InputError, match="KV cache quantization 'int4' is not understood"):
        model_from_config({**TINY, "quantization_config": {**scheme, "kv_cache_quant_algo": "int4"}}, "t")


def test_modelopt_keeps_its_quantization_beside_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert resolve_model(str(tmp_path)).weight_dtype("bf16") == "nvfp4"
    (tmp_path / "tiny_config.json").write_text(json.dumps(TINY))
    assert resolve_model(str(tmp_path / "tiny_config.json")).weight_dtype("bf16") == "bf16", "another model's"
    (tmp_path / "tiny_hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert resolve_model(str(tmp_path / "tiny_config.json")).weight_dtype("bf16") == "fp8"


def test_an_fp8_checkpoint_by_path_counts_as_fp8_without_being_told(tmp_path):
    """Row 03 of the reported inputs: 31.96 GiB of weights and 161,344 tokens on an H100, by its own overhead."""
    config = json.loads((BUNDLED / "qwen3-32b.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    resolved = api.resolve(
        scenario_from_doc(
            {
                "workload": {"preset": "chat", "requests": 10},
                "model": {"config": str(path)},
                "hardware": {"profile": "roofline:h100"},
            }
        )
    )
    assert resolved.scenario.model.dtype == "fp8"
    assert resolved.memory.weights / 2**30 == pytest.approx(31.96, abs=0.01)
    engine = resolved.scenario.engine
    assert engine.kv_blocks * engine.block_size == pytest.approx(161_344, rel=0.01)


def test_gpt_oss_runs_on_an_h100():
    model = resolve_model("hf:openai/gpt-oss-120b")
    assert 60 <= model.weight_bytes("bf16") / 2**30 <= 65
    assert kv_capacity(roofline_profile("h100", "mxfp4"), model, "mxfp4", "bf16", 1, 0.92, 8192, 16).tokens > 10_000


def test_a_type_by_name_takes_all_of_a_model():
    model = resolve_model("qwen3-32b")
    assert model.weight_bytes("nvfp4") < model.weight_bytes("int4") * 1.1 < model.weight_bytes("fp8")
    with pytest.raises(InputError, match="dtype 'fp7': expected one of bf16"):
        model.weight_bytes("fp7")
    assert resolve_model("deepseek-v3").weight_dtype("bf16") == "fp8"


# -- names and layouts -------------------------------------------------------------------------------------------------


def test_hugging_face_names_of_bundled_models():
    assert resolve_model("hf:Qwen/Qwen3-32B").quantization is None
    fp8 = resolve_model("hf:Qwen/Qwen3-32B-FP8")
    assert (fp8.name, fp8.weight_dtype("bf16")) == ("qwen3-32b", "fp8")
    assert resolve_model("hf:meta-llama/Llama-3.3-70B-Instruct").name == "llama-3.1-70b"
    assert resolve_model("hf:deepseek-ai/DeepSeek-R1").quantization.name == "fp8_block"
    with pytest.raises(InputError, match="model 'hf:nobody/nothing' is not bundled"):
        resolve_model("hf:nobody/nothing")
    assert len(bundled_models()) > 30
    for name, (key, _) in hugging_face_names().items():
        assert resolve_model(f"hf:{name}").name == key


def test_widths_that_no_engine_makes_are_refused():
    qwen = resolve_model("qwen2.5-7b")  # 28 heads, 4 KV heads
    for tp in (1, 2, 4):
        qwen.check(Layout(tp))
    with pytest.raises(InputError, match=r"tensor_parallel 8: expected a divisor of qwen2\.5-7b's 28 heads"):
        qwen.check(Layout(8))
    with pytest.raises(InputError, match=r"a divisor or a multiple of phi-4's 10 KV heads"):
        resolve_model("phi-4").check(Layout(4))
    with pytest.raises(InputError, match="expected a divisor of mixtral-8x7b's 8"):
        resolve_model("mixtral-8x7b").check(Layout(16, expert_parallel=True))


def test_weights_per_gpu_by_part():
    model, h = resolve_model("qwen3-235b-a22b"), 4096
    one, eight = model.weights("bf16"), model.weights("bf16", Layout(8))
    assert eight["experts"] == one["experts"] / 8
    assert eight["router"] == one["router"]
    q_and_o, kv = 2 * h * 64 * 128, 2 * h * 4 * 128
    assert one["attention"] == 94 * (q_and_o + kv) * 2
    assert eight["attention"] == 94 * (q_and_o / 8 + kv / 4) * 2, "4 KV heads on 8 ranks: two copies of each"
    data = model.weights("bf16", Layout(1, attention_dp=8, expert_parallel=True))
    assert data["experts"] == eight["experts"]
    assert data["attention"] == one["attention"]
    stages = resolve_model("llama-3.1-70b").weights("bf16", Layout(1, pipeline_parallel=4))
    assert stages["mlp"] == 20 * 3 * 8192 * 28672 * 2
    assert stages["head"] == 0


PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text()
MATRIX = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition(model_matrix.HEADER)[2].splitlines()
    if line.startswith("| ")
]
"""The page's table of GPUs: head, then a row a model. Whole it takes ten seconds, so a sample is made again."""


def test_the_page_of_models_is_current():
    sizes, _, gpus = PAGE.partition(model_matrix.HEADER)
    assert sizes == models_page.shapes(), "run: kvcast profile models --markdown > docs/models.md"
    _, _, cells = gpus.partition("|---|")
    assert len(cells.splitlines()) == 1 + len(models_page.bundled())


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt-oss-120b", "qwen3-235b-a22b", "kimi-k2.5", "phi-3-mini", "glm-5"]
)
def test_the_page_says_which_gpu_holds_which_model(name):
    found = model_matrix.rows([name], model_matrix.gpus())
    assert MATRIX[0] == model_matrix.columns(model_matrix.gpus())
    assert model_matrix.table(found) == [row for row in MATRIX if row[0] == name], (
        "run: kvcast profile models --markdown > docs/models.md"
    )


def test_nearly_every_model_has_measured_operators_on_the_gpus_that_are_bought():
    """Of all bundled models on H100, H200 and B200: a cell is answerable when it has step times or does not fit."""
    places = [MATRIX[0].index(gpu) for gpu in ("h100", "h200", "b200")]
    cells = {(row[0], place): row[place] for row in MATRIX[1:] for place in places}
    assert len(cells) == 3 * len(models_page.bundled()) >= 3 * 50
    runs = [text for text in cells.values() if text != "no"]
    from_operators = [text for text in runs if "roofline" not in text and "no step times" not in text]
    assert len(from_operators) >= 0.97 * len(runs)
    assert len(runs) >= 0.85 * len(cells), "the others do not fit eight GPUs"
    sparse = {
        name
        for name in models_page.bundled()
        if any(group.attention.index_heads for group in layer_groups(resolve_model(name)))
    }
    assert {name for (name, _), text in cells.items() if "roofline" in text} <= sparse, "an indexer has no price yet"


def test_a_cell_is_the_fewest_gpus_that_hold_the_model():
    """70.55 B parameters in bf16 are 131.4 GiB: one H200 has 128.6 GiB to use, one B200 164; two H100 have 145.7."""
    assert [model_matrix.cell("llama-3.1-70b", gpu).width for gpu in ("h100", "h200", "b200", "l40s")] == [2, 2, 1, 4]
    assert model_matrix.cell("llama-3.1-70b", "h200", "fp8").width == 1
    assert model_matrix.cell("qwen2.5-72b", "h100", "fp8").width == 2, "one holds the weights and 2,752 tokens"
    assert model_matrix.cell("deepseek-v3", "h100") == model_matrix.Cell(None, "does not fit")
    assert model_matrix.cell("llama-3.1-8b", "h200").word == "measured"
    assert model_matrix.cell("llama-3.1-8b", "rtx-4090").word == "roofline"
