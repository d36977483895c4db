"""Model shapes against published totals, KV arithmetic, FLOPs by hand, and refusals."""

import json

import numpy as np
import pytest

from calibrate.models import (
    UNDERSTOOD,
    bundled_models,
    flops,
    load_model,
    model_from_config,
    resolve_model,
    windowed_pairs,
)
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
BY_NAME = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12}
FAMILIES = {
    "llama": (80, 8, 128, {}, 327_680, 0),  # Llama-3.1-70B
    "mistral": (32, 8, 128, {"sliding_window": 4096}, 131_072, 32),  # Mistral-7B-v0.1
    "qwen2": (28, 4, 128, OFF, 57_344, 0),  # Qwen2.5-7B
    "qwen3": (36, 8, 128, OFF, 147_456, 0),  # Qwen3-8B
    "phi3": (32, 32, 96, {"sliding_window": 2047}, 393_216, 32),  # Phi-3-mini-4k
    "gemma2": (42, 8, 256, {"sliding_window": 4096}, 344_064, 21),  # Gemma-2-9b: every other layer
    "gemma3_text": (62, 16, 128, {"sliding_window": 1024}, 507_904, 52),  # Gemma-3-27b: five of six
    "mimo": (36, 8, 128, OFF, 147_456, 0),  # MiMo-7B
    "mixtral": (32, 8, 128, {"num_local_experts": 8}, 131_072, 0),  # Mixtral-8x7B
    "qwen2_moe": (24, 16, 128, {"num_experts": 60, "max_window_layers": 21, **OFF}, 196_608, 0),  # Qwen1.5-MoE-A2.7B
    "qwen3_moe": (48, 4, 128, {"num_experts": 128}, 98_304, 0),  # Qwen3-30B-A3B
    "gpt_oss": (24, 8, 64, {"num_local_experts": 32, **BY_NAME}, 49_152, 12),  # gpt-oss-20b
    "deepseek_v2": (60, 128, 192, {**DEEPSEEK_V3, "n_routed_experts": 160}, 69_120, 0),
    "deepseek_v3": (61, 128, 192, DEEPSEEK_V3, 70_272, 0),
    "kimi_k2": (61, 64, 192, {**DEEPSEEK_V3, "n_routed_experts": 384}, 70_272, 0),
}
"""One published model of every family: layers, KV heads, head size, what else decides -> bytes of KV a token in 16
bits, layers that slide."""


@pytest.mark.parametrize("family", UNDERSTOOD)
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
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization 'mxfp4' is not understood"),
    ],
)
def test_what_is_not_understood_is_refused(change, message):
    with pytest.raises(InputError, match=r"config\.json: ") as error:
        model_from_config({**TINY, **change}, "t", "config.json")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


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
