"""Launch commands and start-up logs, read into scenario keys; and the command of a plan, which reads back as the same
engine."""

from __future__ import annotations

import shlex

import pytest

from kvcast import api, plan
from kvcast.config import apply_overrides, scenario_from_doc
from kvcast.planner.command import launch_of
from kvcast.planner.flag_names import kinds, no_effect
from kvcast.planner.flags import NOT_MODELLED, READ
from kvcast.planner.launch import read_command
from kvcast.planner.launch_log import read_log
from kvcast.scenario.fitting import fitting_profile
from workloads.errors import InputError

BASE = {
    "workload": {"preset": "demo", "duration_s": 60.0},
    "hardware": {"profile": "h200-llama-3.1-8b-aic"},
    "slo": {"attainment": 0.9, "ttft_s": 2.0, "attained_by": "pooled"},
    "model": {"name": "llama-3.1-8b"},
}
MOE = ("model.name=qwen3-30b-a3b", "hardware.profile=atlas:h200")


def test_every_flag_of_a_command_ends_in_one_list():
    found = read_command(
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n -tp 2 --max-model-len 16k"
        " --max-num-batched-tokens=4K --enforce-eager --served-model-name a b --port 8000 --no-enable-prefix-caching"
        " --made-up 3 --kv-cache-dtype fp8_e4m3 --gpu_memory_utilization 0.9 --quantization gptq"
    )
    assert found.engine == "vllm"
    assert found.sets == [
        "engine.semantics=vllm",
        "model.name=llama-3.1-8b",
        "hardware.tensor_parallel=2",
        "engine.max_model_len=16000",
        "engine.max_num_batched_tokens=4096",
        "cache.enabled=false",
        "model.kv_dtype=fp8",
        "engine.gpu_memory_utilization=0.9",
    ]
    assert found.no_effect == ["--served-model-name a b", "--port 8000"]
    assert found.not_modelled == ["--enforce-eager", "--quantization gptq"]
    assert found.unknown == ["--made-up 3"]
    assert any("--made-up" in line for line in found.cautions())


def test_sglang_has_its_own_flags_and_a_page_of_one():
    found = read_command(
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --chunked-prefill-size -1"
        " --radix-eviction-policy lfu --mem-fraction-static 0.8 --disable-overlap-schedule --enable-mixed-chunk"
    )
    assert found.sets == [
        "engine.semantics=sglang",
        "engine.block_size=1",
        "model.name=qwen3-32b",
        "hardware.tensor_parallel=2",
        "engine.chunked_prefill_size=0",
        "cache.policy=lfu",
        "engine.gpu_memory_utilization=0.8",
        "hardware.overhead_gib=0",
        "engine.overlap_schedule=false",
        "engine.mixed_chunk=true",
    ]
    assert found.not_modelled == []


@pytest.mark.parametrize(
    "command",
    [
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.33.0 --model x --dtype auto",
        "python -m vllm.entrypoints.openai.api_server --model x --dtype auto",
    ],
)
def test_other_ways_to_start_vllm(command):
    found = read_command(command)
    assert "model.name=x" in found.sets
    assert found.no_effect == ["--dtype auto"]


@pytest.mark.parametrize(
    ("command", "sets"),
    [
        ("vllm serve --max-num-seqs 128 Qwen/Qwen3-8B", ["engine.max_num_seqs=128", "model.name=qwen3-8b"]),
        ("vllm serve --enable-prefix-caching Qwen/Qwen3-8B", ["cache.enabled=true", "model.name=qwen3-8b"]),
        ("vllm serve Qwen/Qwen3-8B -tp 2 2>&1 | tee server.log", ["model.name=qwen3-8b", "hardware.tensor_parallel=2"]),
        ("vllm serve Qwen/Qwen3-8B -tp 2 # two cards", ["model.name=qwen3-8b", "hardware.tensor_parallel=2"]),
        ("vllm serve RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", ["model.name=llama-3.1-8b", "model.dtype=fp8"]),
        ("vllm serve Qwen/Qwen3-8B --quantization fp8 --dtype bfloat16", ["model.name=qwen3-8b", "model.dtype=fp8"]),
    ],
)
def test_the_model_and_its_precision_are_found_wherever_they_stand(command, sets):
    found = read_command(command)
    assert found.sets[1:] == sets
    assert not found.unknown
    assert not found.not_modelled


@pytest.mark.parametrize("command", ["", "ollama run llama3", "vllm serve 'unfinished", "vllm bench serve --model x"])
def test_what_is_no_launch_command_is_one_line(command):
    with pytest.raises(InputError, match="--from-launch"):
        read_command(command)


def test_every_flag_that_is_read_is_the_engines_own():
    """Names of tools.engine_flags, from the sources of vLLM 0.6.6 to 0.33 and SGLang 0.4.6 to 0.5.23."""
    for engine in ("vllm", "sglang"):
        known = kinds(engine)
        assert len(known) > 400
        assert not {flag for flag in READ[engine] if flag not in known and not abbreviated(engine, flag)}
    elsewhere = {"--enable-chunked-prefill", "--dtype", "--model"}
    for engine in READ:
        assert not {flag for flag in READ[engine] if no_effect(flag)} - elsewhere
    assert not {flag for flag in NOT_MODELLED if no_effect(flag)}


def abbreviated(engine, flag):
    return flag in ("--tp", "--dp", "--max-loras", "--model", "--router-policy") or flag.startswith("--no-")


VLLM_LOG = """INFO 11-20 10:18:36 [utils.py:233] non-default args: {'model_tag': 'meta-llama/Llama-3.1-8B-Instruct', 'host': '0.0.0.0', 'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 16384, 'enable_prefix_caching': False, 'max_num_seqs': 128, 'lora_modules': [LoRAModulePath(name='a', path='b')]}
(EngineCore_DP0 pid=12) INFO 11-20 10:19:20 [kv_cache_utils.py:1229] GPU KV cache size: 890,112 tokens
"""
SGLANG_LOG = """[2026-03-21 03:31:56] server_args=ServerArgs(model_path='qwen/Qwen3-32B', tokenizer_path='qwen/Qwen3-32B', trust_remote_code=False, context_length=None, tp_size=2, chunked_prefill_size=4096, schedule_policy='lpm', disable_radix_cache=False, page_size=16, mm=<object at 0x1>)
[2026-03-21 03:32:20] KV Cache is allocated. #tokens: 439452, K size: 26.84 GB, V size: 26.84 GB
"""


def test_a_log_gives_the_arguments_and_the_kv_cache(tmp_path):
    (tmp_path / "vllm.log").write_text(VLLM_LOG)
    found = read_log(tmp_path / "vllm.log")
    assert found.sets == [
        "engine.semantics=vllm",
        "model.name=llama-3.1-8b",
        "engine.max_model_len=16384",
        "cache.enabled=false",
        "engine.max_num_seqs=128",
        "engine.block_size=16",
        "engine.kv_blocks=55632",
    ]
    assert found.not_modelled == ["--lora-modules [LoRAModulePath(name='a', path='b')]"]
    (tmp_path / "sglang.log").write_text(SGLANG_LOG.replace("mm=<object at 0x1>", "port=30000"))
    found = read_log(tmp_path / "sglang.log")
    assert found.sets[1:] == [
        "model.name=qwen3-32b",
        "hardware.tensor_parallel=2",
        "engine.chunked_prefill_size=4096",
        "engine.schedule_policy=lpm",
        "engine.block_size=16",
        "engine.kv_blocks=27465",
    ]


def test_an_object_in_the_arguments_is_passed_over_and_nothing_is_evaluated(tmp_path):
    (tmp_path / "sglang.log").write_text(
        SGLANG_LOG.replace("<object at 0x1>", "<object at 0x1>, x=__import__('os').system('touch /tmp/evaluated')")
    )
    found = read_log(tmp_path / "sglang.log")
    assert found.sets[1:] == [
        "model.name=qwen3-32b",
        "hardware.tensor_parallel=2",
        "engine.chunked_prefill_size=4096",
        "engine.schedule_policy=lpm",
        "engine.block_size=16",
        "engine.kv_blocks=27465",
    ]
    (tmp_path / "empty.log").write_text("nothing here\n")
    with pytest.raises(InputError, match="neither launch arguments"):
        read_log(tmp_path / "empty.log")


def test_what_a_log_switches_off_and_prints_as_an_object_is_named(tmp_path):
    (tmp_path / "vllm.log").write_text(
        """non-default args: {'model': 'Qwen/Qwen3-8B', 'enable_chunked_prefill': False, 'enforce_eager': False, 'async_scheduling': False, 'compilation_config': {'mode': <CompilationMode.NONE: 0>}, 'max_num_seqs': 64}\n"""
    )
    found = read_log(tmp_path / "vllm.log")
    assert found.sets == [
        "engine.semantics=vllm",
        "model.name=qwen3-8b",
        "engine.async_scheduling=false",
        "engine.max_num_seqs=64",
    ]
    assert found.not_modelled[0] == "--no-enable-chunked-prefill"
    assert found.not_modelled[1].startswith("--compilation-config")
    assert found.no_effect == ["--no-enforce-eager"]
    (tmp_path / "sglang.log").write_text(
        "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', speculative_algorithm='EAGLE', enable_mixed_chunk=True,"
        " pp_size=1, ep_size=2, mem_fraction_static=0.8)\n"
    )
    assert read_log(tmp_path / "sglang.log").not_modelled == ["--speculative-algorithm EAGLE", "--ep-size 2"]
    assert "engine.mixed_chunk=true" in read_log(tmp_path / "sglang.log").sets


def test_an_engine_that_was_simulated_without_its_default_is_started_without_it():
    def command(*sets):
        written = launch_of(scenario_from_doc(apply_overrides(BASE, sets)))
        return written["vllm"] or written["sglang"]

    assert not [flag for flag in command() if "async" in flag]
    assert "--async-scheduling" not in command("engine.async_scheduling=true")  # vLLM's own default
    assert "--no-async-scheduling" in command("engine.async_scheduling=false")
    sglang = "engine.semantics=sglang"
    assert not {"--disable-overlap-schedule", "--enable-mixed-chunk"} & set(command(sglang))
    assert "--disable-overlap-schedule" in command(sglang, "engine.overlap_schedule=false")
    assert "--enable-mixed-chunk" in command(sglang, "engine.mixed_chunk=true")
    assert "slru" in command("engine.semantics=sglang", "cache.policy=slru")
    assert "gdsf" not in command("engine.semantics=sglang", "cache.policy=gdsf")


@pytest.mark.parametrize(
    "sets",
    [
        ["engine.async_scheduling=true"],
        ["engine.async_scheduling=false"],
        [
            "engine.long_prefill_token_threshold=512",
            "engine.long_prefill_token_threshold_adaptive=true",
            "engine.max_num_active_seqs=64",
            "engine.prefill_schedule_interval=4",
            "engine.max_num_queued_reqs=500",
            "engine.max_num_queued_tokens=200000",
        ],
        ["engine.max_num_seqs=100", "model.kv_dtype=bf16", "cache.enabled=false", "engine.scheduler_policy=priority"],
        [
            "engine.kv_blocks=5000",
            "engine.block_size=32",
            "engine.long_prefill_token_threshold=1024",
            "engine.reserve_full_isl=false",
            "engine.watermark=0.01",
        ],
        [
            "engine.semantics=sglang",
            "engine.block_size=1",
            "engine.schedule_policy=lpm",
            "engine.chunked_prefill_size=0",
        ],
        ["engine.semantics=sglang", "engine.overlap_schedule=false", "engine.mixed_chunk=true"],
        ["hardware.profile=roofline:h200", "model.kv_dtype=fp8", "hardware.tensor_parallel=2", "model.dtype=fp8"],
        [*MOE, "hardware.tensor_parallel=2", "hardware.attention_dp=4", "hardware.expert_parallel=true"],
        [*MOE, "hardware.attention_dp=2", "hardware.expert_parallel=true", "hardware.all_to_all=deepep_low_latency"],
        [*MOE, "hardware.tensor_parallel=2", "hardware.pipeline_parallel=3"],
        [
            *MOE,
            "engine.semantics=sglang",
            "engine.block_size=1",
            "hardware.tensor_parallel=2",
            "hardware.attention_dp=2",
            "hardware.expert_parallel=true",
            "hardware.all_to_all=deepep_high_throughput",
        ],
        [*MOE, "engine.semantics=sglang", "hardware.tensor_parallel=2", "hardware.pipeline_parallel=2"],
    ],
)
def test_the_command_of_a_plan_reads_back_as_the_same_engine(sets):
    scenario = scenario_from_doc(apply_overrides(BASE, sets))
    written = launch_of(scenario)
    argv = written["vllm"] or written["sglang"]
    read = read_command(shlex.join(argv))
    assert not read.unknown and not read.not_modelled  # noqa: PT018
    again = scenario_from_doc(apply_overrides(BASE, [*read.sets, f"hardware.profile={scenario.hardware.profile}"]))
    first, second = (api.resolve(one) for one in (scenario, again))
    assert first.params == second.params
    assert first.scenario.model == second.scenario.model
    assert first.layout == second.layout


def test_a_layout_is_read_by_the_model_and_by_all_flags_together():
    def layout(command: str) -> list[str]:
        sets = read_command(command).sets
        return [one for one in sets if one.startswith(("hardware.", "cluster.", "engine.max_num_seqs"))]

    moe, dense = "vllm serve Qwen/Qwen3-30B-A3B", "vllm serve Qwen/Qwen3-8B"
    assert layout(f"{moe} -dp 4 -ep -tp 2") == [
        "hardware.attention_dp=4",
        "hardware.expert_parallel=true",
        "hardware.tensor_parallel=2",
    ]
    assert layout(f"{dense} -dp 4 -pp 2") == ["cluster.replicas=4", "hardware.pipeline_parallel=2"]
    sglang = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8 --dp 4 --max-running-requests 400"
    assert layout(sglang) == ["hardware.tensor_parallel=8", "cluster.replicas=4", "engine.max_num_seqs=400"]
    assert layout(f"{sglang} --enable-dp-attention --ep-size 8") == [
        "hardware.tensor_parallel=2",
        "hardware.attention_dp=4",
        "engine.max_num_seqs=100",
        "hardware.expert_parallel=true",
    ]
    assert read_command(f"{sglang} --ep-size 4 --moe-a2a-backend deepep").not_modelled == [
        "--ep-size 4",
        "--moe-a2a-backend deepep --deepep-mode auto",
    ]
    assert read_command(f"{moe} --all2all-backend pplx").not_modelled == ["--all2all-backend pplx"]


@pytest.mark.parametrize(
    ("model", "key"), [("Qwen/Qwen3-30B-A3B", "hardware.attention_dp=2"), ("Qwen/Qwen3-8B", "cluster.replicas=2")]
)
def test_engines_of_one_log_are_ranks_of_a_mixture_and_replicas_of_a_dense_model(tmp_path, model, key):
    (tmp_path / "vllm.log").write_text(
        f"non-default args: {{'model': '{model}', 'data_parallel_size': 2}}\n"
        "(EngineCore_DP0 pid=1) GPU KV cache size: 476,000 tokens\n"
        "(EngineCore_DP1 pid=2) GPU KV cache size: 470,016 tokens\n"
    )
    sets = read_log(tmp_path / "vllm.log").sets
    assert {one for one in sets if one.startswith(("hardware.", "cluster."))} == {key}
    assert "engine.kv_blocks=29376" in sets


def test_the_gpus_of_a_plan_follow_the_layout():
    asked = [*MOE, "hardware.tensor_parallel=2", "hardware.attention_dp=2", "cluster.replicas=3"]
    written = launch_of(scenario_from_doc(apply_overrides(BASE, asked)))
    assert written["words"].startswith("3 of these of 4 GPUs")


def test_a_profile_that_fits_the_command_is_taken():
    doc = apply_overrides(BASE, ["model.name=qwen3-32b", "hardware.tensor_parallel=2"])
    assert fitting_profile(scenario_from_doc(doc)) == "h200-qwen3-32b-tp2-aic"
    assert fitting_profile(scenario_from_doc(BASE)) is None
    stages = apply_overrides(BASE, ["hardware.pipeline_parallel=2"])
    assert fitting_profile(scenario_from_doc(stages)) == "atlas:h200"
    assert fitting_profile(scenario_from_doc(apply_overrides(BASE, ["model.kv_dtype=fp8"]))) == "atlas:h200"


def test_a_plan_from_a_log_says_what_it_took_over(tmp_path):
    (tmp_path / "vllm.log").write_text(VLLM_LOG)
    from kvcast.planner.words import as_text

    made = plan(
        scenario_from_doc(BASE),
        launch=read_log(tmp_path / "vllm.log"),
        most=3,
        capacity=False,
        binding=False,
        advice=False,
        growth=None,
    )
    assert made["launched"]["set"][-1] == "engine.kv_blocks=55632"
    assert any("55,632 given, kvcast's own arithmetic says" in note for note in made["launched"]["notes"])
    assert "--num-gpu-blocks-override" in made["answer"]["launch"]["vllm"]
    assert "NOT simulated: --lora-modules" in as_text(made)


def test_adapters_are_switched_on_and_what_they_weigh_is_not_known_from_flags():
    sets = ["engine.max_loras=4", "lora.max_cpu_loras=32", "lora.adapter_mib=50"]
    argv = launch_of(scenario_from_doc(apply_overrides(BASE, sets)))["vllm"]
    assert [
        *[word for word in argv if word == "--enable-lora"],
        *argv[argv.index("--max-loras") : argv.index("--max-loras") + 4],
    ] == ["--enable-lora", "--max-loras", "4", "--max-cpu-loras", "32"]
    read = read_command(shlex.join(argv))
    assert {"engine.max_loras=4", "lora.max_cpu_loras=32"} <= set(read.sets)
    assert read.not_modelled == ["--enable-lora"]
