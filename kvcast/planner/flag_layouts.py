"""Layout flags of vLLM and SGLang that mean something only together, or by the model.

The one idea: `--data-parallel-size` is attention data-parallel ranks of one engine where the model has experts (vLLM)
or where DP attention is on (SGLang), else replicas; SGLang's tensor-parallel size and limits are of all ranks.

>>> settled(VLLM, ["model.name=deepseek-v3", f"{RANKS}=8"])
(['model.name=deepseek-v3', 'hardware.attention_dp=8'], [])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvcast.planner.flags import A2A, DEEPEP, DEEPEP_MODES, DP_ATTENTION, EP_SIZE, RANKS, SGLANG, TRTLLM, VLLM
from workloads.errors import InputError

DIVIDED = ("engine.max_num_seqs", "engine.chunked_prefill_size")
"""What SGLang shares out to its ranks."""


def settled(engine: str, sets: Sequence[str]) -> tuple[list[str], list[str]]:
    """(scenario keys with the layout's in place of what stood for them, flags that are not modelled)."""
    given = dict(one.split("=", 1) for one in sets)
    together = _has_experts(given) if engine == VLLM else given.get(DP_ATTENTION) == "true"
    ranks = int(given.get(RANKS, 1)) if together else 1
    kept: list[str] = []
    if engine == TRTLLM and together:  # one GPU an attention rank
        ranks = int(given.get("hardware.tensor_parallel", 1))
        kept.append(f"hardware.attention_dp={ranks}")
    for one in sets:
        key, value = one.split("=", 1)
        if key == RANKS:
            kept.append(f"hardware.attention_dp={ranks}" if together else f"cluster.replicas={value}")
        elif engine != VLLM and ranks > 1 and key == "hardware.tensor_parallel" and int(value) % ranks == 0:
            kept.append(f"{key}={int(value) // ranks}")
        elif engine == SGLANG and ranks > 1 and key in DIVIDED and int(value):
            kept.append(f"{key}={max(int(value) // ranks, 1)}")
        elif key not in (DP_ATTENTION, A2A, DEEPEP, EP_SIZE):
            kept.append(one)
    return (kept, []) if engine == VLLM else _experts(given, kept)


def _experts(given: dict[str, str], kept: list[str]) -> tuple[list[str], list[str]]:
    """Expert-parallel size and all-to-all, as SGLang and TensorRT-LLM have them."""
    wrong: list[str] = []
    if EP_SIZE in given:
        if given[EP_SIZE] == given.get("hardware.tensor_parallel", "1"):  # as asked: of all ranks
            kept.append("hardware.expert_parallel=true")
        else:
            wrong.append(f"--ep-size {given[EP_SIZE]}")
    backend, mode = given.get(A2A, "none"), given.get(DEEPEP, "auto")
    ours = next((name for name, theirs in DEEPEP_MODES.items() if theirs == mode), None)
    if backend == "deepep" and ours:
        kept.append(f"hardware.all_to_all={ours}")
    elif backend != "none":
        wrong.append(f"--moe-a2a-backend {backend}" + (f" --deepep-mode {mode}" if backend == "deepep" else ""))
    return kept, wrong


def _has_experts(given: dict[str, str]) -> bool:
    """Whether the command's model is a mixture of experts; one that is not known here counts as dense."""
    from calibrate.models import bundled_model, load_model_at

    if not {"model.config", "model.name"} & given.keys():
        return False
    try:
        path = given.get("model.config")
        model = load_model_at(Path(path)) if path else bundled_model(given.get("model.name", ""))
    except InputError:
        return False
    return any(group.mlp.experts for group in model.layer_groups)
