"""Launch commands in all their spellings, scripts and manifests, and what logs print beside the KV cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcast.config import apply_overrides, scenario_from_doc
from kvcast.planner.flag_names import kinds, no_effect, whole
from kvcast.planner.flags import READ
from kvcast.planner.launch import read_command
from kvcast.planner.launch_log import read_log
from workloads.errors import InputError

VLLM = "vllm serve Qwen/Qwen3-8B"


def sets_of(command: str) -> list[str]:
    return [one for one in read_command(command).sets if not one.startswith(("engine.semantics=", "model.name="))]


@pytest.mark.parametrize(
    ("flags", "sets"),
    [
        ("--max-num-b 4096 --tensor 2", ["engine.max_num_batched_tokens=4096", "hardware.tensor_parallel=2"]),
        ("--max_num_seqs=64 --max-num-seqs 128", ["engine.max_num_seqs=128"]),
        ("--disable-prefix-caching", ["cache.enabled=false"]),
        ("--no-enable-prefix-caching", ["cache.enabled=false"]),
        ("--quantization awq --dtype half", ["model.dtype=int4"]),
        ("-q fp8_per_block", ["model.dtype=fp8_block"]),
        (
            "--speculative-config.method ngram --speculative_config.num_speculative_tokens 3",
            ["speculative.method=ngram", "speculative.tokens=3"],
        ),
        ("--spec-method eagle3 --spec-model a/b --spec-tokens 2", ["speculative.method=eagle", "speculative.tokens=2"]),
        (
            "--speculative-model [ngram] --num-speculative-tokens 5",
            ["speculative.method=ngram", "speculative.tokens=5"],
        ),
        ("--device-memory-utilization 0.8 -asc 4", ["engine.gpu_memory_utilization=0.8", "engine.frontend_workers=4"]),
        ("--max-model-len auto", []),
    ],
)
def test_a_flag_is_read_however_it_is_spelled(flags, sets):
    assert sets_of(f"{VLLM} {flags}") == sets


def test_an_abbreviation_is_taken_as_argparse_takes_it():
    assert whole("vllm", "--gpu-mem") == "--gpu-memory-utilization"
    assert whole("sglang", "--dp") == "--dp-size"
    assert whole("vllm", "--made-up") == "--made-up"
    with pytest.raises(
        InputError, match=r"--max-num is short for several flags of vllm \(--max-num-active-seqs, --max"
    ):
        read_command(f"{VLLM} --max-num 3")


def test_every_flag_of_both_engines_ends_in_a_list_that_is_not_unknown():
    """870 flags, those of the engines' own sources, each with a value where it takes one."""
    for engine, command in (("vllm", VLLM), ("sglang", "python -m sglang.launch_server --model-path Qwen/Qwen3-8B")):
        flags = [flag for flag in kinds(engine) if flag != "--config"]
        words = [
            flag if kind == "switch" else f"{flag} 1" for flag, kind in kinds(engine).items() if flag != "--config"
        ]
        found = read_command(f"{command} {' '.join(words)}")
        assert not found.unknown
        told = {one.split()[0] for one in found.no_effect + found.not_modelled}
        assert {f for f in flags if no_effect(f)} <= told | set(READ[engine])
        assert len(found.not_modelled) == len(set(found.not_modelled))


def test_kv_memory_in_bytes_becomes_blocks_of_the_model():
    found = read_command(f"{VLLM} --kv-cache-memory-bytes 20g --kv-offloading-size 64")
    assert found.kv_bytes == 20 * 10**9
    doc = {"workload": {"preset": "demo", "duration_s": 60.0}, "hardware": {"profile": "roofline:h200"}}
    found.fit(apply_overrides(doc, found.sets), "scenario")
    # 36 layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes = 147,456 bytes a token
    assert f"engine.kv_blocks={20 * 10**9 // (16 * 147_456)}" in found.sets
    assert any("bandwidth_gb_per_s" in note for note in found.notes)
    assert scenario_from_doc(apply_overrides(doc, found.sets)).engine.kv_blocks == 8477


SCRIPT = """#!/bin/bash
set -e
export VLLM_LOGGING_LEVEL=DEBUG  # loud
export VLLM_ATTENTION_BACKEND=FLASHINFER
MODEL=Qwen/Qwen3-32B
vllm serve $MODEL \\
  --tensor-parallel-size ${TP:-4} --api-key sk-secret \\
  --max-num-seqs 64 > server.log 2>&1 &
curl localhost:8000/health
"""


def test_a_script_is_read_with_its_variables_and_without_its_secrets(tmp_path):
    (tmp_path / "serve.sh").write_text(SCRIPT)
    found = read_command(str(tmp_path / "serve.sh"))
    assert found.sets[1:] == ["model.name=qwen3-32b", "hardware.tensor_parallel=4", "engine.max_num_seqs=64"]
    assert found.no_effect == ["--api-key", "VLLM_LOGGING_LEVEL"]
    assert found.not_modelled == ["VLLM_ATTENTION_BACKEND=FLASHINFER"]
    assert "secret" not in json.dumps(found.as_document())
    unset = read_command("vllm serve Qwen/Qwen3-8B -tp $TP")
    assert unset.unknown == ["-tp $TP"]


@pytest.mark.parametrize(
    "command",
    [
        "docker pull vllm/vllm-openai:v0.33.0\ndocker run --gpus 2 -e A=b vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3-8B -tp 2",
        "docker run --gpus '\"device=0,1\"' vllm/vllm-openai Qwen/Qwen3-8B -tp 2",
        "podman run x bash -lc 'cd /app && vllm serve Qwen/Qwen3-8B -tp 2 | tee log'",
        "nohup python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B -tp 2 &",
        "srun -N1 /opt/venv/bin/vllm serve Qwen/Qwen3-8B -tp 2",
        "docker run --entrypoint vllm my/image serve Qwen/Qwen3-8B -tp 2",
        'FROM vllm/vllm-openai\nENTRYPOINT ["vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2"]\n',
        "[Service]\nExecStart=/opt/venv/bin/vllm serve Qwen/Qwen3-8B -tp 2\nRestart=always\n",
        "python3 -m dynamo.vllm --model Qwen/Qwen3-8B -tp 2",
    ],
)
def test_whatever_stands_in_front_the_engine_is_found(command):
    found = read_command(command)
    assert found.sets == ["engine.semantics=vllm", "model.name=qwen3-8b", "hardware.tensor_parallel=2"]
    assert not found.notes


def test_an_options_file_beside_the_script_is_read_and_the_command_wins(tmp_path):
    (tmp_path / "opts.yaml").write_text(
        "max-num-seqs: 32\nmax_model_len: 8192\nenable-prefix-caching: false\nspeculative-config:\n  method: ngram\n"
        "  num_speculative_tokens: 4\nserved-model-name: [a, b]\nenforce-eager: true\n"
    )
    (tmp_path / "run.sh").write_text(f"{VLLM} --config opts.yaml --max-num-seqs 64\n")
    found = read_command(str(tmp_path / "run.sh"))
    assert set(found.sets[1:]) == {
        "engine.max_model_len=8192",
        "cache.enabled=false",
        "model.name=qwen3-8b",
        "engine.max_num_seqs=64",
        "speculative.method=ngram",
        "speculative.tokens=4",
    }
    assert (found.no_effect, found.not_modelled) == (["--served-model-name a b"], ["--enforce-eager"])
    missing = read_command(f"{VLLM} --config nowhere.yaml")
    assert any("nowhere.yaml: this options file is not here" in note for note in missing.notes)


COMPOSE = """
services:
  gateway: {image: nginx}
  engine:
    image: vllm/vllm-openai:latest
    command: --model Qwen/Qwen3-8B --tensor-parallel-size ${TP:-2}
    environment: ["HF_TOKEN=secret", VLLM_USE_V1=0]
    deploy:
      replicas: 3
      resources: {reservations: {devices: [{driver: nvidia, count: 4, capabilities: [gpu]}]}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      containers:
      - name: engine
        image: anything
        command: ["/bin/sh", "-c"]
        args: ["exec vllm serve $(MODEL) --tensor-parallel-size 2"]
        env: [{name: MODEL, value: Qwen/Qwen3-8B}, {name: VLLM_USE_V1, value: "0"}]
        resources: {limits: {nvidia.com/gpu: "4"}}
---
kind: Service
spec: {ports: []}
"""
HELM = """
servingEngineSpec:
  modelSpec:
  - name: engine
    modelURL: Qwen/Qwen3-8B
    replicaCount: 3
    requestGPU: 4
    env: [{name: VLLM_USE_V1, value: "0"}]
    vllmConfig: {tensorParallelSize: 2, extraArgs: []}
"""
CHART = """
replicaCount: 3
image: {repository: vllm/vllm-openai, command: [vllm, serve, Qwen/Qwen3-8B, --tensor-parallel-size, "2"]}
env: [{name: VLLM_USE_V1, value: "0"}]
resources: {requests: {nvidia.com/gpu: 4}}
"""


KSERVE = """
kind: InferenceService
spec:
  predictor:
    minReplicas: 3
    model:
      modelFormat: {name: huggingface}
      storageUri: hf://Qwen/Qwen3-8B
      args: [--tensor-parallel-size=2]
      env: [{name: VLLM_USE_V1, value: "0"}]
      resources: {limits: {nvidia.com/gpu: "4"}}
"""


@pytest.mark.parametrize(
    "manifest", [COMPOSE, DEPLOYMENT, HELM, CHART, KSERVE], ids=["compose", "k8s", "stack", "chart", "kserve"]
)
def test_a_manifest_gives_the_engine_its_replicas_and_gpus(tmp_path, manifest):
    found = read_command(manifest)
    assert set(found.sets[1:]) == {"model.name=qwen3-8b", "hardware.tensor_parallel=2", "cluster.replicas=3"}
    assert found.not_modelled == ["VLLM_USE_V1=0"]
    assert "its container has 4 GPUs, the engine uses 2" in found.notes
    assert "secret" not in json.dumps(found.as_document())


def test_what_is_no_manifest_is_one_line():
    for text, said in (("services:\n  a: [b\n", "not YAML, line 3"), ("kind: Service\nspec: {}\n", "expected 'vllm")):
        with pytest.raises(InputError, match=said):
            read_command(text)


# -- logs --------------------------------------------------------------------------------------------------------------

V0 = """INFO 12-20 10:00:00 llm_engine.py:234] Initializing an LLM engine (v0.6.6) with config: model='Qwen/Qwen3-8B', speculative_config=None, tokenizer='Qwen/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=32768, load_format=auto, tensor_parallel_size=2, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=fp8, num_scheduler_steps=8, enable_prefix_caching=False, chunked_prefill_enabled=True, compilation_config={"cudagraph_capture_sizes":[256,128,1]}, use_cached_outputs=True,
INFO 12-20 10:00:10 selector.py:120] Using Flash Attention backend.
INFO 12-20 10:00:20 distributed_gpu_executor.py:57] # GPU blocks: 30425, # CPU blocks: 2048
"""
V1 = """\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 11-20 10:18:36 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'max_num_seqs': 64, 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 3}, 'max_model_len': 8192}\x1b[0m
(EngineCore_DP0 pid=12) INFO 11-20 10:19:20 [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3), dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, enable_prefix_caching=True, enable_chunked_prefill=True
(EngineCore_DP0 pid=12) INFO Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=12) INFO GPU KV cache size: 890,112 tokens, Maximum concurrency for 8,192 tokens per request: 108.66x
"""
SGLANG = """[2026-03-21 03:31:56] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, dp_size=2, mem_fraction_static=0.85, page_size=64, chunked_prefill_size=None, speculative_dflash_block_size=16, enable_torch_compile=True)
[2026-03-21 03:32:20 DP0 TP0] KV Cache is allocated. #tokens: 439424, K size: 26.84 GB, V size: 26.84 GB
engine-1  | [2026-03-21 03:32:20 DP1 TP0] KV Cache is allocated. #tokens: 439296, K size: 26.84 GB, V size: 26.84 GB
[2026-03-21 03:32:21 DP0 TP0] max_total_num_tokens=439424, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=8.50 GB
engine-1  | [2026-03-21 03:32:21 DP1 TP0] max_total_num_tokens=439296, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=8.50 GB
"""
TRTLLM = """[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 64
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 8192
[TensorRT-LLM][INFO] Capacity Scheduler Policy: MAX_UTILIZATION
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 65 [window size=2051], tokens per block=32, primary blocks=116617, secondary blocks=0
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 78.30 GiB for max tokens in paged KV cache (3731744).
"""


def log(tmp_path: Path, text: str):
    (tmp_path / "server.log").write_text(text)
    return read_log(tmp_path / "server.log")


def test_a_v0_log_has_only_the_engines_config(tmp_path):
    found = log(tmp_path, V0)
    assert found.sets == [
        "engine.semantics=vllm",
        "model.name=qwen3-8b",
        "model.dtype=bf16",
        "engine.max_model_len=32768",
        "hardware.tensor_parallel=2",
        "model.kv_dtype=fp8",
        "cache.enabled=false",
        "engine.block_size=16",
        "engine.kv_blocks=30425",
    ]
    assert found.not_modelled == ["--num-scheduler-steps 8"]
    said = " ".join(found.notes)
    assert "vLLM 0.6.6: its V0 engine" in said
    assert "attention backend Flash Attention" in said
    assert "CUDA graphs for 3 batch sizes up to 256" in said


def test_a_v1_log_has_arguments_and_what_became_of_the_others(tmp_path):
    found = log(tmp_path, V1)
    assert set(found.sets[1:]) == {
        "model.name=qwen3-8b",
        "model.dtype=bf16",
        "cache.enabled=true",
        "engine.max_num_batched_tokens=8192",
        "engine.max_num_seqs=64",
        "speculative.method=ngram",
        "speculative.tokens=3",
        "engine.max_model_len=8192",
        "engine.block_size=16",
        "engine.kv_blocks=55632",
    }
    assert not found.not_modelled + found.unknown
    assert "vLLM 0.19.0" in found.notes


def test_a_log_of_sglang_has_what_its_scheduler_runs_with_and_each_replica(tmp_path):
    found = log(tmp_path, SGLANG)
    assert set(found.sets[1:]) == {
        "model.name=qwen3-8b",
        "hardware.tensor_parallel=1",
        "engine.gpu_memory_utilization=0.85",
        "engine.chunked_prefill_size=8192",
        "engine.max_prefill_tokens=16384",
        "engine.max_num_seqs=2048",
        "engine.max_model_len=40960",
        "engine.block_size=64",
        f"engine.kv_blocks={439_296 // 64}",
        "cluster.replicas=2",
    }
    assert found.not_modelled == ["--enable-torch-compile"]


def test_a_log_of_tensorrt_llm_has_its_cache_and_limits(tmp_path):
    found = log(tmp_path, TRTLLM)
    assert found.sets == [
        "engine.semantics=trtllm",
        "engine.max_num_seqs=64",
        "engine.max_num_batched_tokens=8192",
        "engine.capacity_policy=max-utilization",
        "engine.block_size=32",
        "engine.kv_blocks=116617",
    ]


def test_ranks_of_one_engine_have_the_least_of_their_sizes(tmp_path):
    found = log(
        tmp_path,
        "non-default args: {'model': 'Qwen/Qwen3-8B', 'tensor_parallel_size': 2}\n"
        "GPU KV cache size: 480,000 tokens\nMaximum concurrency for 8,192 tokens per request: 58.59x\n"
        "GPU KV cache size: 470,016 tokens\nMaximum concurrency for 8,192 tokens per request: 57.38x\n"
        "GPU KV cache size: 479,984 tokens\nMaximum concurrency for 8,192 tokens per request: 58.59x\n",
    )
    assert f"engine.kv_blocks={470_016 // 16}" in found.sets
    assert "cluster.replicas" not in " ".join(found.sets)


def test_engines_are_told_apart_as_each_version_names_them(tmp_path):
    for first, second in (("EngineCore_0", "EngineCore_1"), ("DPEngineCoreActor_DP0", "DPEngineCoreActor_DP1")):
        found = log(
            tmp_path,
            f"({first} pid=1) GPU KV cache size: 480,000 tokens\n({second} pid=2) GPU KV cache size: 470,016 tokens\n",
        )
        assert "cluster.replicas=2" in found.sets
        assert f"engine.kv_blocks={470_016 // 16}" in found.sets


def test_a_block_size_that_the_engine_sets_itself_wins_over_the_argument(tmp_path):
    found = log(
        tmp_path,
        "non-default args: {'model': 'Qwen/Qwen3.5-27B', 'block_size': 16}\n"
        "Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.\n"
        "GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x\n",
    )
    assert "engine.block_size=784" in found.sets
    assert f"engine.kv_blocks={1_082_654 // 784}" in found.sets


@pytest.mark.parametrize(
    ("command", "version"),
    [
        ("services: {a: {image: 'vllm/vllm-openai:v0.11.0', command: [--model, Qwen/Qwen3-8B]}}", "vLLM 0.11.0"),
        ("image: {repository: vllm/vllm-openai, tag: v0.11.0-cu129, command: [vllm, serve, x]}", "vLLM 0.11.0"),
        ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B", "vLLM 0.11.0"),
        ("docker run h:5000/lmsysorg/sglang:v0.5.3 python -m sglang.launch_server --model-path x", "SGLang 0.5.3"),
        ("docker run lmsysorg/sglang:v0.5.3 bash -c 'python -m sglang.launch_server --model-path x'", "SGLang 0.5.3"),
        ("docker run vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3-8B", None),
        ("docker run vllm/vllm-openai:latest --model Qwen/Qwen3-8B", None),
        ("vllm serve Qwen/Qwen3-8B", None),
        ("image: ghcr.io/llm-d/llm-d:v0.2.0\ncommand: [vllm, serve, x]", None),
    ],
)
def test_an_image_of_another_version_is_said(command, version):
    found = [note for note in read_command(command).notes if "simulated are the rules of" in note]
    name = (version or "").split(" ")[0]
    ours = {"vLLM": "0.33.0", "SGLang": "0.5.23"}
    assert found == (
        [f"its image has {version}; simulated are the rules of {name} {ours[name]}, which may differ"]
        if version
        else []
    )
