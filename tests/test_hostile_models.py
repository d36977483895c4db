"""Every field of a config.json replaced by what it should never be: one line that names it, or an explained model."""

from __future__ import annotations

import json
import math

import pytest

from calibrate.models import BUNDLED, model_from_config, resolve_model
from workloads.errors import InputError

MODELS = sorted(
    {frozenset(json.loads(path.read_text())): path.stem for path in sorted(BUNDLED.glob("*.json"))}.values()
)
"""A bundled model of every set of fields."""
WRONG = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        math.nan,
        math.inf,
        10**10,
        10**400,
        "",
        "x",
        "128",
        [],
        [1, 2],
        [None],
        [[1]],
        {},
    ),
    *(["full_attention"], {"a": 1}, "\x1b[31m\n" * 40),
)
NOT_READ = {"source", "hf"}
FLAGS = {"tie_word_embeddings", "attention_bias", "attn_output_gate", "use_qk_norm", "use_sliding_window"}
OPTIONAL = {
    *(
        "num_key_value_heads",
        "head_dim",
        "quantization_config",
        "sliding_window",
        "attention_chunk_size",
        "rope_scaling",
    ),
    *("indexer_types", "mamba_ssm_dtype", "mamba_ssm_cache_dtype", "torch_dtype", "sliding_window_pattern"),
    *("layer_types", "no_rope_layers", "decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"),
}
COUNTS = {"num_hidden_layers", "layers_block_type"}
"""Of the one, lists of another length are told; without the other, the one is missing."""
MAY_BE_0 = {
    *("n_shared_experts", "first_k_dense_replace", "q_lora_rank", "shared_expert_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "sliding_window", "attention_chunk_size", "moe_latent_size"),
    *("decoder_sparse_step", "moe_layer_freq"),
}


def explained(field: str, value: object) -> bool:
    """Whether a model may be read, and differ, with this value: a flag's other value, or a part that it has not."""
    if type(value) is bool:
        return field in FLAGS
    if value is None:
        return field in OPTIONAL | FLAGS | MAY_BE_0
    return (field in MAY_BE_0 and type(value) is int and value == 0) or (field, value) == ("rope_scaling", {})


def config_of(name: str) -> dict:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = json.loads((BUNDLED / f"{name}.json").read_text())
    return {"torch_dtype": "bfloat16", "rope_scaling": rope, **config}


def line_of(config: dict) -> str | None:
    """The error line for a config, or None for one that is read and whose sizes are numbers."""
    try:
        model = model_from_config(config, "t", "config.json")
    except InputError as error:
        return str(error)
    assert 0 < model.active_parameters <= model.parameters < 1e30
    assert 0 < model.weight_bytes("bf16") < 1e30
    assert 0 < model.kv_bytes_per_token("bf16") < 1e30
    assert 0 < model.max_context < 1e10
    return None


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_value_is_one_line_or_an_explained_model(name: str) -> None:
    config = config_of(name)
    good = model_from_config(config, "t", "config.json")
    for field in config.keys() - NOT_READ:
        for value in WRONG:
            changed = {**config, field: value}
            line = line_of(changed)
            if line is None:
                same = model_from_config(changed, "t", "config.json") == good
                assert same or explained(field, value), f"{field} = {value!r:.40} is read as another model"
                continue
            assert line.startswith("config.json: "), line
            assert field in line or field in COUNTS, f"{field} = {value!r:.40}: {line}"
            assert line.isprintable(), f"{field}: {line!r:.200}"
            assert len(line) < 700


QUANTIZED = {
    "fp8": {"weight_block_size": [128, 128], "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]},
    "gptq": {"bits": 4, "group_size": 128, "sym": True, "dynamic": {}},
    "awq": {"bits": 4, "group_size": 64, "zero_point": True, "modules_to_not_convert": []},
    "bitsandbytes": {"load_in_4bit": True, "load_in_8bit": False, "llm_int8_skip_modules": ["lm_head"]},
    "modelopt": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"], "group_size": 16},
    "compressed-tensors": {
        "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    },
    "torchao": {"quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}}},
    "quark": {
        "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
        "exclude": ["lm_head"],
    },
    "auto-round": {"bits": 4, "group_size": 128, "sym": True},
}
MINE = {"exclude", "ignore", "exclude_modules", "modules_to_not_convert", "llm_int8_skip_modules", "kv_cache_scheme"}


@pytest.mark.parametrize("method", QUANTIZED)
def test_a_wrong_value_of_a_quantization_is_one_line_or_no_other_model(method: str) -> None:
    """Whatever stands in a field, and one level below: sizes that are numbers, or one line."""
    config = json.loads((BUNDLED / "qwen3-8b.json").read_text())
    given = {"quant_method": method, **QUANTIZED[method]}
    assert line_of({**config, "quantization_config": given}) is None
    for field in given:
        for value in WRONG:
            nested = [{**given, field: value}]
            if isinstance(given[field], dict):
                nested += [{**given, field: {**given[field], key: value}} for key in given[field]]
            for changed in nested:
                line = line_of({**config, "quantization_config": changed})
                if line is not None:
                    assert line.startswith("config.json: "), line
                    assert "quantization" in line, line
                    assert line.isprintable(), f"{line!r:.200}"
                    assert len(line) < 700
                elif field == "quant_method" and value is not None:
                    raise AssertionError(f"quant_method = {value!r:.40} is read")


# -- what a quantization says of each part ----------------------------------------------------------------------------

INT4_128 = 0.5 + 2 / 128
MIXED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "experts": {
            "targets": ["re:.*mlp\\.experts\\..*"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"},
            "input_activations": {"num_bits": 4, "type": "float"},
        },
        "rest": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
        },
    },
    "ignore": ["lm_head", "re:.*mlp\\.gate$"],
}


def precision(name: str, quantization: dict):
    config = json.loads((BUNDLED / f"{name}.json").read_text())
    return model_from_config({**config, "quantization_config": quantization}, "t", "config.json").quantization


def test_groups_of_targets_give_each_part_its_own_type() -> None:
    found = precision("qwen3-30b-a3b", MIXED)
    assert (found.name, found.experts, found.attention) == ("nvfp4", 0.5625, 1)
    assert (found.type_of("experts"), found.type_of("attention")) == ("nvfp4", "fp8")
    turned = {**MIXED, "config_groups": dict(reversed(MIXED["config_groups"].items()))}
    assert precision("qwen3-30b-a3b", turned) == found, "names come before the class Linear, in whatever order"


def test_a_part_that_some_layers_leave_alone_weighs_what_it_weighs() -> None:
    """Of 36 layers the first and the last two keep their feed-forward in 16 bits."""
    ignore = [f"model.layers.{i}.mlp.down_proj" for i in (0, 34, 35)]
    found = precision("qwen3-8b", {"quant_method": "fp8", "ignored_layers": ignore})
    assert found.mlp == pytest.approx((33 * 1 + 3 * 2) / 36)
    assert (found.attention, found.type_of("mlp")) == (1, "fp8")
    most = [f"model.layers.{i}.mlp.down_proj" for i in range(30)]
    left = precision("qwen3-8b", {"quant_method": "fp8", "ignored_layers": most})
    assert (left.type_of("mlp"), left.type_of("attention")) == ("bf16", "fp8")


def test_attention_is_asked_for_in_the_layers_that_have_it() -> None:
    """A list by layer of a hybrid model names self_attn only where there is one."""
    full = [i for i in range(40) if (i + 1) % 4 == 0]
    ignore = [f"model.language_model.layers.{i}.self_attn.q_proj" for i in full]
    found = precision("qwen3.5-35b-a3b", {"quant_method": "fp8", "modules_to_not_convert": ignore})
    assert (found.attention, found.linear, found.experts) == (2, 1, 1)


ACTIVATIONS = {"num_bits": 8, "type": "float", "dynamic": True}


@pytest.mark.parametrize(
    ("config", "name", "size"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4", 0.5),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "dynamic": {"-:.*self_attn.*": {}}}, "int8", 1 + 3 / 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, "int4", INT4_128),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4", INT4_128),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp4"}, "mxfp4", 0.53125),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": False},
            "int4",
            0.5 + 4 / 64,
        ),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}},
            "int4",
            0.5 + 2.5 / 32,
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig"}},
            },
            "fp8",
            1,
        ),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}, "int8", 1),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8", 1),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            "mxfp4",
            0.53125,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8_block", 1),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64}, "int4", 0.5 + 2.5 / 64),
        (
            {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": ACTIVATIONS}}},
            "int8",
            1,
        ),
        (
            {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": ACTIVATIONS}}},
            "fp8",
            1,
        ),
        ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": None}}}, "int8", 1),
        ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}}}, "fp8_block", 1),
    ],
)
def test_methods_as_they_are_published(config: dict, name: str, size: float) -> None:
    found = precision("qwen3-8b", config)
    assert (found.name, found.mlp) == (name, pytest.approx(size))
    assert found.attention == (2 if "dynamic" in config else found.mlp)


def test_exceptions_by_module() -> None:
    """What gptq's dynamic, auto-round's extra_config, modelopt's layers and quark's patterns say of one part."""
    wide = {"bits": 8, "group_size": 128}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"+:.*\.mlp\..*": wide}}
    assert precision("qwen3-8b", gptq).mlp == pytest.approx(1 + 3 / 128)
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"bits": 16} for i in range(36) for p in "qkvo"}
    rounds = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": layers}
    assert (precision("qwen3-8b", rounds).attention, precision("qwen3-8b", rounds).mlp) == (2, pytest.approx(INT4_128))
    named = {f"model.layers.{i}.mlp.{p}_proj": {"quant_algo": "FP8"} for i in range(36) for p in ("gate", "up", "down")}
    modelopt = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    assert (precision("qwen3-8b", modelopt).attention, precision("qwen3-8b", modelopt).mlp) == (2, 1)
    quark = {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp4"}},
        "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
    }
    found = precision("qwen3-8b", quark)
    assert (found.type_of("mlp"), found.type_of("attention"), found.attention) == ("mxfp4", "fp8", 1)


def test_layers_of_several_types_and_a_quantized_head() -> None:
    """As a hybrid model is published: fp8 attention, nvfp4 weights without activations elsewhere, the LM head too."""
    layers: dict[str, dict] = {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    for i in range(40):
        base = f"model.language_model.layers.{i}"
        layers[f"{base}.mlp.experts"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        layers[f"{base}.mlp.shared_expert.gate_proj"] = {"quant_algo": "UNQUANTIZED"}
        full = (i + 1) % 4 == 0
        layers[f"{base}.self_attn.q_proj" if full else f"{base}.linear_attn.out_proj"] = {"quant_algo": "FP8"}
    given = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": ["mtp*"]}
    found = precision("qwen3.5-35b-a3b", given)
    assert (found.name, found.experts, found.attention, found.linear, found.shared) == ("int4", 0.5625, 1, 1, 2)
    assert (found.type_of("attention"), found.type_of("shared"), found.head) == ("fp8", "bf16", 0.5625)
    config = json.loads((BUNDLED / "qwen3.5-35b-a3b.json").read_text())
    model = model_from_config({**config, "quantization_config": given}, "t")
    assert model.weights("bf16")["head"] == model.vocab * model.hidden * 0.5625
    assert model.weights("bf16")["embedding"] == model.vocab * model.hidden * 2
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
    inside = {**gptq, "modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]}
    assert (precision("qwen3-8b", inside).attention, precision("qwen3-8b", inside).mlp < 1) == (2, True)
    assert precision("qwen3-8b", gptq).head == pytest.approx(0.5 + 2.5 / 128)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"quant_method": "gguf"}, "quantization 'gguf'"),
        ({"quant_method": "hqq"}, "quantization 'hqq'"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits is 3"),
        ({"config_groups": {"g": {"targets": ["Embedding"], "weights": {"num_bits": 8}}}}, "config_groups.g.targets"),
        ({"config_groups": {"g": {"weights": {"num_bits": 4}}}, "format": "marlin-24"}, "quantization_config.format"),
        ({"quant_method": "modelopt", "quant_algo": "W2A16"}, "quantization_config.quant_algo is 'W2A16'"),
        ({"quant_method": "torchao", "quant_type": "uintx_weight_only"}, "quantization_config.quant_type"),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int3"}}},
            "quantization_config.global_quant_config.weight.dtype is 'int3'",
        ),
    ],
)
def test_what_is_not_understood_says_what_to_set_instead(config: dict, field: str) -> None:
    with pytest.raises(InputError, match=r"model\.dtype and hardware\.weights_gib say it instead") as error:
        precision("qwen3-8b", config)
    assert field in str(error.value)


@pytest.mark.parametrize("block", [128, [128], [128, 0], ["128", "128"], [128, 128, 128], [[128, 128]]])
def test_a_block_is_two_sizes(block: object) -> None:
    line = line_of(
        {**config_of("qwen3-8b"), "quantization_config": {"quant_method": "fp8", "weight_block_size": block}}
    )
    assert line is not None
    assert "weight_block_size" in line
    assert "two whole numbers" in line


def test_a_pattern_that_is_no_regular_expression_is_one_line() -> None:
    line = line_of({**config_of("qwen3-8b"), "quantization_config": {"quant_method": "fp8", "ignore": ["re:*mlp("]}})
    assert line is not None
    assert "pattern 're:*mlp(' is no regular expression" in line


def test_long_lists_by_layer_are_read_fast_enough() -> None:
    """61 layers of a list that names every module: 3,000 names, each asked for in its own layer only."""
    modules = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    ignore = [f"model.layers.{i}.self_attn.{m}" for i in range(61) for m in modules] * 10
    found = precision("deepseek-v3", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore})
    assert (found.attention, found.experts, found.mlp) == (2, 0.5625, 0.5625)


# -- where a decoder's fields stand, and lists by layer ----------------------------------------------------------------


def test_a_decoder_two_levels_down_is_read() -> None:
    inner = json.loads((BUNDLED / "qwen3-8b.json").read_text())
    plain = model_from_config(inner, "t")
    outer = {"model_type": "omni", "thinker_config": {"model_type": "omni_thinker", "text_config": inner}}
    assert model_from_config(outer, "t") == plain
    fp8 = {"quant_method": "fp8"}
    assert model_from_config({**outer, "quantization_config": fp8}, "t").weight_dtype("bf16") == "fp8"
    assert line_of({"text_config": {"text_config": {"text_config": {"text_config": inner}}}}) is not None


def test_a_list_by_layer_is_read_where_layers_differ() -> None:
    base = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 10}
    base |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    model = model_from_config({**base, "num_key_value_heads": [1, 4], "intermediate_size": [16, 32]}, "t")
    assert [(g.attention.kv_heads, g.mlp.inter) for g in model.layer_groups] == [(1, 16), (4, 32)]
    assert model.kv_bytes_per_token("bf16") == (1 + 4) * 2 * 2 * 2
    assert model_from_config({**base, "num_key_value_heads": [2, 2]}, "t") == model_from_config(base, "t")
    assert "num_key_value_heads has 1 entries" in (line_of({**base, "num_key_value_heads": [2]}) or "")
    assert "intermediate_size[1] is 1.5" in (line_of({**base, "intermediate_size": [16, 1.5]}) or "")


@pytest.mark.parametrize("dtype", ["float64", "int8", "float8_e4m3fn", "", 16, ["bfloat16"], "auto-ish"])
def test_a_type_of_weights_that_nobody_serves_is_refused(dtype: object) -> None:
    for key in ("torch_dtype", "dtype"):
        line = line_of({**config_of("qwen3-8b"), key: dtype})
        assert line is not None
        assert f"field {key} is" in line
    assert line_of({**config_of("qwen3-8b"), "torch_dtype": "torch.float16"}) is None


def test_a_quantization_beside_the_config_counts(tmp_path) -> None:
    config = json.loads((BUNDLED / "qwen3-8b.json").read_text())
    for name, given, size in (
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": True}, 0.5 + 2.5 / 128),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}, 0.5 + 2.5 / 64),
    ):
        folder = tmp_path / name.split(".")[0]
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / name).write_text(json.dumps(given))
        assert resolve_model(str(folder)).quantization.mlp == pytest.approx(size)


def test_another_file_of_a_model_says_what_it_is() -> None:
    mlx = {**config_of("qwen3-8b"), "quantization": {"group_size": 64, "bits": 4}}
    assert "field quantization is MLX's" in (line_of(mlx) or "")
    assert "Mistral's own params.json" in (line_of({"dim": 4096, "n_layers": 32, "n_heads": 32}) or "")


def test_files_of_weights_say_what_to_give_instead(tmp_path) -> None:
    for name in ("m.gguf", "model.safetensors"):
        (tmp_path / name).write_bytes(b"GGUF\x03")
        with pytest.raises(InputError, match=r"a file of weights; expected the config\.json of its model"):
            resolve_model(str(tmp_path / name))


@pytest.mark.parametrize("half", ["attention", "ffn"])
def test_a_wrong_value_in_a_block_of_a_thinned_out_model_is_one_line(half: str) -> None:
    config = config_of("llama-3.3-nemotron-super-49b")
    at = next(i for i, block in enumerate(config["block_configs"]) if not block[half]["no_op"])
    block = config["block_configs"][at]
    for field in block[half]:
        for value in WRONG:
            blocks = list(config["block_configs"])
            blocks[at] = {**block, half: {**block[half], field: value}}
            line = line_of({**config, "block_configs": blocks})
            fine = type(value) is bool if field == "no_op" else value == block[half][field]
            fine = fine or (field == "ffn_mult" and type(value) in (int, float) and 0 < value < 1000)
            assert line is None or f"block_configs[{at}]" in line, line
            assert fine or line is not None or not value, f"{field} = {value!r:.40} is read"
