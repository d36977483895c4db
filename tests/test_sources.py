"""Other people's measurements: Vidur's tables (made here in their layout) and KV blocks from engine logs."""

import csv

import pytest

from calibrate.kv_logs import log_lines, read_kv_log
from calibrate.latency import step_time
from calibrate.models import resolve_model
from calibrate.resolve import resolve_profile
from kvcast.cli import main
from kvcast.planner.launch_log import read_log
from workloads.errors import InputError

LLAMA2 = resolve_model("llama-2-7b")
SHAPE = {"n_head": 32, "n_kv_head": 32, "n_embd": 4096, "n_expanded_embd": 11008, "vocab_size": 32000}


def write(path, rows):
    columns = list(dict.fromkeys(k for row in rows for k in row))
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def vidur(tmp_path):
    folder = tmp_path / "compute" / "a100" / "meta-llama" / "Llama-2-7b-hf"
    folder.mkdir(parents=True)
    mlp = []
    for tp in (1, 2):
        for tokens in (1, 64, 1024, 4096):
            times = {
                f"time_stats.{op}.median": (0.01 + tokens * 1e-4) / tp
                for op in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
            }
            times |= {
                "time_stats.input_layernorm.median": 0.002,
                "time_stats.emb.median": 0.005,
                "time_stats.add.median": 0.001,
            }
            mlp.append({**SHAPE, "num_tokens": tokens, "num_tensor_parallel_workers": tp, **times})
    attention = []
    for tp in (1, 2):
        common = {
            "n_embd": 4096,
            "n_q_head": 32,
            "n_kv_head": 32,
            "num_tensor_parallel_workers": tp,
            "block_size": 16,
            "attention_backend": "FLASHINFER",
        }
        for chunk in (64, 1024):
            for cached in (0, 2048):
                attention.append(
                    {
                        **common,
                        "batch_size": 1,
                        "prefill_chunk_size": chunk,
                        "kv_cache_size": cached,
                        "is_prefill": "True",
                        "time_stats.attn_prefill.median": chunk * (cached + chunk / 2) * 1e-6,
                        "time_stats.attn_kv_cache_save.median": 0.003,
                    }
                )
        for batch in (1, 32):
            for cached in (127, 2047):
                attention.append(
                    {
                        **common,
                        "batch_size": batch,
                        "prefill_chunk_size": 0,
                        "kv_cache_size": cached,
                        "is_prefill": "False",
                        "time_stats.attn_decode.median": 0.01 + batch * (cached + 1) * 1e-6,
                        "time_stats.attn_kv_cache_save.median": 0.003,
                    }
                )
    write(folder / "mlp.csv", mlp)
    write(folder / "attention.csv", attention)
    return folder


def test_vidur_tables_are_medians_of_one_layer_in_milliseconds(vidur):
    profile = resolve_profile(str(vidur), LLAMA2, "fp16")
    assert (profile.model, profile.device["name"], profile.tensor_parallel) == ("llama-2-7b", "a100", 1)
    assert "no LM head" in profile.provenance["notes"][0]
    assert "not measured by kvcast" in profile.label
    (head,) = profile.points["per_sequence"]
    assert head["basis"] == "estimated by kvcast"
    assert head["us"][0] == pytest.approx(2 * 32000 * 4096 / (0.75 * 2.039e12) * 1e6)
    seconds, _ = step_time(profile, LLAMA2, "fp16").step([(1024, 2048)], 0, 0, 0, 0)
    by_hand_ms = 32 * (4 * (0.01 + 0.1024) + 0.002 + 0.001 + 1024 * 2560e-6 + 0.003) + 0.005
    assert seconds * 1e3 == pytest.approx(by_hand_ms, rel=1e-6)
    seconds, _ = step_time(profile, LLAMA2, "fp16").step([], 32, 32 * 2048, 2048, 0)
    by_hand_ms = 32 * (4 * (0.01 + 32 * 1e-4) + 0.002 + 0.001 + 0.01 + 32 * 2048e-6 + 0.003) + 0.005
    assert seconds * 1e3 == pytest.approx(by_hand_ms, rel=1e-6)


def test_vidur_tables_of_a_width_or_a_model_that_is_not_there(vidur):
    two, four = (resolve_profile(str(vidur), LLAMA2, "fp16", tp) for tp in (2, 4))
    basis = {o["name"]: o["basis"] for o in two.points["rests_on"]}
    assert (basis["gate_up"], basis["full_decode"]) == ("own/gemm measured shape", "own/decode measured shape")
    assert (basis["all_reduce"], basis["lm_head"]) == ("vllm/all_reduce measured", "own/gemm between measured shapes")
    assert "the others rest on atlas:a100" in four.label
    rows = list(csv.DictReader((vidur / "mlp.csv").open()))
    write(vidur / "mlp.csv", [{**r, "n_embd": "5000"} for r in rows])
    with pytest.raises(InputError, match=r"mlp.csv, row 2: no bundled dense model has .*n_embd 5000"):
        resolve_profile(str(vidur), LLAMA2, "fp16")
    write(vidur / "mlp.csv", [{k: v for k, v in r.items() if k != "num_tokens"} for r in rows])
    with pytest.raises(InputError, match=r"mlp.csv, row 1: no column 'num_tokens' among .*, expected num_tokens"):
        resolve_profile(str(vidur), LLAMA2, "fp16")


def test_vidurs_all_reduces_are_of_one_node_and_in_bytes(vidur):
    sizes = {2048: 0.010, 2**20: 0.050}
    rows = [
        {
            "num_workers": 2,
            "size": size,
            "devices_per_node": nodes,
            "rank": rank,
            "time_stats.all_reduce.median": ms * factor,
        }
        for size, ms in sizes.items()
        for nodes, factor in ((2, 1.0), (1, 9.0))
        for rank in (0, 1)
    ]
    write(vidur / "all_reduce.csv", rows)
    profile = resolve_profile(str(vidur), LLAMA2, "fp16", 2)
    found = next(o for o in profile.points["dense"] if o["name"] == "all_reduce")
    assert found["basis"] == "own/all_reduce measured"
    tokens = 2**20 / (2 * LLAMA2.hidden)
    assert found["us"][found["tokens"].index(tokens)] == pytest.approx(50.0)


def reshaped(folder, name, **shape):
    """The tables of that folder with other shape columns, in a folder of that name."""
    other = folder.parent / name
    folder.rename(other)
    write(other / "mlp.csv", [{**r, **shape} for r in csv.DictReader((other / "mlp.csv").open())])
    return str(other)


def test_a_padded_vocabulary_is_the_model_and_is_said(vidur, capsys):
    """Vidur's own Llama-2-7b tables have vocab_size 32768, its default."""
    folder = reshaped(vidur, "Llama-2-7b-hf", vocab_size=32768)
    profile = resolve_profile(folder, LLAMA2, "fp16")
    assert profile.model == "llama-2-7b"
    assert profile.provenance["notes"][2:] == [
        "vocab_size 32768 is taken for llama-2-7b's 32000, padded; the LM head is estimated for 32000."
    ]
    assert main(["profile", "show", folder, "--model", "llama-2-7b", "--dtype", "fp16"]) == 0
    assert "vocab_size 32768 is taken for" in capsys.readouterr().out
    for vocab in (31999, 33601):
        with pytest.raises(InputError, match=f"no bundled dense model has .*vocab_size {vocab}"):
            resolve_profile(reshaped(vidur.parent / "Llama-2-7b-hf", "Llama-2-7b-hf", vocab_size=vocab), LLAMA2, "fp16")


def test_a_model_of_the_same_layers_under_another_name_is_said(vidur):
    folder = reshaped(vidur, "Meta-Llama-3-8B", n_kv_head=8, n_expanded_embd=14336, vocab_size=128256)
    profile = resolve_profile(folder, resolve_model("llama-3.1-8b"), "fp16")
    assert profile.provenance["notes"][2:] == [
        "The tables in Meta-Llama-3-8B name no model; they have the layer shapes of llama-3.1-8b, whose 32 layers are"
        " assumed."
    ]


def test_dense_tables_are_not_taken_for_a_mixture_of_the_same_shapes(vidur):
    """Mistral 7B and Mixtral 8x7B agree in every shape column."""
    with pytest.raises(InputError, match="no bundled dense model has"):
        resolve_profile(
            reshaped(vidur, "Mistral-7B", n_kv_head=8, n_expanded_embd=14336, vocab_size=32000),
            resolve_model("mixtral-8x7b"),
            "fp16",
        )


@pytest.mark.parametrize(
    ("text", "engine", "blocks", "block_size"),
    [
        ("INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 2,042,016 tokens\n", "vllm", 127_626, 16),
        ("INFO ... # GPU blocks: 127626, # CPU blocks: 2048\n", "vllm", 127_626, 16),
        (
            (
                "non-default args: {'block_size': 32}\nGPU KV cache size: 178,880 tokens, Maximum concurrency for 4,096"
                " tokens per request: 43.67x\n"
            ),
            "vllm",
            5590,
            32,
        ),
        (
            (
                "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 367404, K size: 8.23 GB, V size: 8.23"
                " GB\nmax_total_num_tokens=367404, chunked_prefill_size=8192\n"
            ),
            "sglang",
            367_404,
            1,
        ),
        (
            "server_args=ServerArgs(page_size=64)\nmax_total_num_tokens=2086558, chunked_prefill_size=8192\n",
            "sglang",
            32_602,
            64,
        ),
        ("GPU KV cache size: 1,600 tokens\nrestarted\nGPU KV cache size: 3,200 tokens\n", "vllm", 200, 16),
    ],
)
def test_kv_blocks_from_start_up_logs(tmp_path, text, engine, blocks, block_size):
    path = tmp_path / "server.log"
    path.write_text(text)
    log = read_kv_log(path)
    assert (log.engine, log.blocks, log.block_size) == (engine, blocks, block_size)
    assert f"engine.kv_blocks={blocks}" in log_lines(log)[1]
    assert ("does not name" in log_lines(log)[0]) == ("_size" not in text.split("chunked")[0].replace("cache_size", ""))


def test_a_hybrid_models_log_says_how_many_tokens_hold(tmp_path):
    """Qwen3.5-27B: 64 layers count as if all kept every token, 16 do; 33.04 x 32,768 = 1,082,654 tokens hold."""
    path = tmp_path / "server.log"
    path.write_text(
        "INFO [interface.py:210] Setting attention block size to 784 tokens to ensure that attention page size is >="
        " mamba page size.\nINFO [kv_cache_utils.py:1319] GPU KV cache size: 290,864 tokens\n"
        "INFO [kv_cache_utils.py:1324] Maximum concurrency for 32,768 tokens per request: 33.04x\n"
    )
    log = read_kv_log(path)
    assert (log.blocks, log.block_size, log.printed, log.replicas) == (1_082_654 // 784, 784, 290_864, ())
    text = " ".join(log_lines(log))
    assert "hybrid: the 290,864 tokens printed" in text
    assert "33.04 x 32,768 = 1,082,654 tokens hold" in text
    assert "does not name" not in text


def test_several_engines_in_one_log_are_as_many_replicas(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(
        "(EngineCore_DP0 pid=1) GPU KV cache size: 476,000 tokens\n"
        "(EngineCore_DP1 pid=2) GPU KV cache size: 470,016 tokens\n"
    )
    log = read_kv_log(path)
    assert (log.replicas, log.tokens) == ((476_000, 470_016), 470_016)
    assert log_lines(log)[1] == "--set engine.kv_blocks=29376 --set engine.block_size=16 --set cluster.replicas=2"
    assert "2 engines, as many replicas: 476,000, 470,016 tokens" in log_lines(log)[2]
    launch = read_log(path)
    assert {"cluster.replicas=2", "engine.kv_blocks=29376"} <= set(launch.sets)


def test_a_log_without_a_cache_size_is_one_clear_line(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="no line with a KV cache size"):
        read_kv_log(path)
    with pytest.raises(InputError, match="cannot read"):
        read_kv_log(tmp_path / "none.log")
    path.write_text("GPU KV cache size: 10 tokens\n")
    with pytest.raises(InputError, match="less than one block of 16"):
        read_kv_log(path)
