"""Values of charts that write an engine's flags themselves: llm-d's, the vLLM production stack's, KServe's;
compose's device lists; and logs whose tokens fit no default block. Rows of our own in the charts' shapes."""

from __future__ import annotations

import pytest

from calibrate.kv_logs import log_lines, read_kv_log
from kvcast.planner.launch import read_command
from kvcast.planner.launch_log import read_log

LLM_D = """
modelArtifacts:
  uri: "hf://Qwen/Qwen3-32B"
  name: "Qwen/Qwen3-32B"
decode:
  create: true
  replicas: 2
  parallelism: {tensor: 4, data: 1}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d:v0.2.0
    modelCommand: vllmServe
    args: ["--block-size", "128", "--max-model-len", "32000"]
    resources: {limits: {nvidia.com/gpu: "4"}}
prefill:
  create: PREFILL
  replicas: 8
  parallelism: {tensor: 1}
  containers:
  - name: vllm
    modelCommand: vllmServe
    args: ["--block-size", "64"]
"""


def test_llm_ds_values_name_the_model_and_the_layout_beside_the_container():
    launch = read_command(LLM_D.replace("PREFILL", "false"))
    assert launch.sets == [
        "engine.semantics=vllm",
        "model.name=qwen3-32b",
        "hardware.tensor_parallel=4",
        "engine.block_size=128",
        "engine.max_model_len=32000",
        "cluster.replicas=2",
    ]
    assert launch.notes == ["from decode.containers.vllm"], "prefill is switched off, the GPUs are those of the layout"
    assert "2 engines are started there" in " ".join(read_command(LLM_D.replace("PREFILL", "true")).notes)


def test_the_production_stacks_lmcache_is_not_dropped():
    values = """
servingEngineSpec:
  modelSpec:
  - name: llama3
    modelURL: meta-llama/Llama-3.1-8B-Instruct
    replicaCount: 4
    vllmConfig: {maxModelLen: 16384}
    lmcacheConfig: {enabled: ENABLED, cpuOffloadingBufferSize: "20"}
"""
    told = read_command(values.replace("ENABLED", "true")).not_modelled
    assert len(told) == 1
    assert told[0].startswith("--kv-transfer-config")
    assert '"cpuOffloadingBufferSize": "20"' in told[0]
    assert read_command(values.replace("ENABLED", "false")).not_modelled == []


def test_kserves_hugging_face_server_names_its_model_as_an_argument():
    launch = read_command("""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: [--model_name=llama3, --model_id=meta-llama/Llama-3.1-8B-Instruct, --tensor-parallel-size=2]
""")
    assert launch.sets == ["engine.semantics=vllm", "model.name=llama-3.1-8b", "hardware.tensor_parallel=2"]
    assert launch.unknown == []


def test_one_text_of_device_ids_is_as_many_gpus():
    compose = """
services:
  vllm:
    image: vllm/vllm-openai:latest
    command: --model Qwen/Qwen3-8B --tensor-parallel-size 2
    deploy: {resources: {reservations: {devices: [{capabilities: [gpu], device_ids: IDS}]}}}
"""
    assert read_command(compose.replace("IDS", "['0,1']")).notes == ["from services.vllm"]
    assert read_command(compose.replace("IDS", "['0', '1']")).notes == ["from services.vllm"]
    assert "its container has 3 GPUs, the engine uses 2" in read_command(compose.replace("IDS", "['0,1', '5']")).notes


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("GPU KV cache size: 619,479 tokens\n", True),
        ("GPU KV cache size: 364,816 tokens\n", False),
        ("Setting attention block size to 7 tokens\nGPU KV cache size: 619,479 tokens\n", False),
        ("# GPU blocks: 1381\n", False),
        ("KV Cache is allocated. #tokens: 60001, KV size: 0.13 GB\n", False),
    ],
)
def test_tokens_that_are_no_whole_blocks_of_the_default_size_are_said(tmp_path, log, said):
    path = tmp_path / "server.log"
    path.write_text(log)
    assert ("are no multiple of 16" in " ".join(log_lines(read_kv_log(path)))) == said
    assert ("are no multiple of 16" in " ".join(read_log(path).notes)) == said
    assert "no multiple" not in " ".join(log_lines(read_kv_log(path, 7)))
