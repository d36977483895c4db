"""Every family of docs/models.md runs: a small workload on a GPU by name, in a layout that holds the model."""

from __future__ import annotations

import pytest

from kvcast import simulate
from kvcast.config import scenario_from_doc

FAMILIES = {
    "Llama": ("llama-3.1-8b", "h100", 1),
    "Llama 4": ("llama-4-scout", "h200", 2),
    "Qwen2.5": ("hf:Qwen/Qwen2.5-14B-Instruct-AWQ", "l40s", 1),
    "Qwen3": ("hf:Qwen/Qwen3-32B-FP8", "h100", 1),
    "Qwen3, experts": ("hf:Qwen/Qwen3-235B-A22B-FP8", "h200", 4),
    "Qwen3-Next": ("qwen3-next-80b-a3b", "b200", 2),
    "Qwen3.5": ("qwen3.5-35b-a3b", "h200", 1),
    "DeepSeek": ("deepseek-v3", "h200", 8),
    "DeepSeek, sparse": ("deepseek-v3.2", "h200", 8),
    "Kimi": ("kimi-k2.5", "h200", 8),
    "GLM-4.5": ("glm-4.5-air", "b200", 2),
    "GLM-5": ("hf:zai-org/GLM-5-FP8", "b200", 8),
    "gpt-oss": ("gpt-oss-120b", "h100", 2),
    "MiniMax": ("minimax-m2.5", "h100", 4),
    "Mistral": ("mistral-small-24b", "a100", 1),
    "Mixtral": ("mixtral-8x7b", "h200", 2),
    "Gemma 2": ("gemma-2-9b", "l40s", 1),
    "Gemma 3": ("gemma-3-27b", "h100", 1),
    "Phi": ("phi-4", "h100", 1),
    "Nemotron 3": ("nemotron-3-nano-30b-a3b", "h200", 1),
    "Nemotron Super": ("llama-3.3-nemotron-super-49b", "h200", 2),
    "a card with a data sheet only": ("llama-3.1-8b", "mi300x", 1),
}
LAYER = {"name": "prompt", "scope": "dynamic", "tokens": {"value": 1000}}
MIX = {"requests": 8, "class": [{"name": "chat", "rate": 4.0, "layers": [LAYER], "output": {"value": 16}}]}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_every_family_runs_on_a_gpu_by_name(family):
    name, gpu, width = FAMILIES[family]
    scenario = scenario_from_doc(
        {
            "workload": MIX,
            "model": {"name": name},
            "hardware": {"gpu": gpu, "tensor_parallel": width},
            "run": {"warmup_s": 0.0},
            "engine": {"max_model_len": 4096},
        }
    )
    summary = simulate(scenario).summary
    assert summary["completed"] == summary["arrived"] == 8
    assert 0.5 < summary["mean_tpot_ms"] < 100, "a token takes about as long as its weights take to read"
    assert 2 < summary["mean_ttft_ms"] < 2000
