"""Names of the launch flags: what an engine's own parser takes a word for.

The one idea: engine_flags.json holds every flag of vLLM 0.6 to 0.33 and SGLang 0.4 to 0.5 and how many words follow it
(`python -m tools.engine_flags` reads them from the engines' sources), so that a shortened flag is the one that argparse
would take, a switch swallows no word, and a flag that is in no table here is still known to be the engine's.

    >>> whole("vllm", "--max-num-b")
    '--max-num-batched-tokens'
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from workloads.errors import InputError

VLLM, SGLANG, TRTLLM = "vllm", "sglang", "trtllm"
SWITCH, ONE, LIST = "switch", "one", "list"
FILE = Path(__file__).with_name("engine_flags.json")
OPPOSITES = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
"""vLLM (0.33) takes either for the other's --no- form."""

TRTLLM_SWITCHES = frozenset({"--enable-chunked-prefill", "--trust-remote-code", "--log-requests"})


@cache
def _read() -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Engine -> (flag -> kind of its newest version, the same of flags that only older ones have)."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    return {engine: (_kinds(known["newest"]), _kinds(known["older"])) for engine, known in document.items()}


def _kinds(by_kind: dict[str, list[str]]) -> dict[str, str]:
    return {flag: kind for kind, flags in by_kind.items() for flag in flags}


def kinds(engine: str) -> dict[str, str]:
    """Flag -> switch, one (word follows) or list, of all versions; empty for TensorRT-LLM."""
    newest, older = _read().get(engine, ({}, {}))
    return {**older, **newest}


def kind_of(engine: str, flag: str) -> str | None:
    """How many words follow a flag; None where that is not known."""
    if engine == TRTLLM:
        return SWITCH if flag in TRTLLM_SWITCHES else None
    return kinds(engine).get(flag)


def spelled(flag: str) -> str:
    """With dashes for underscores, up to the first dot: what follows it are keys of a JSON value."""
    name, dot, keys = flag.partition(".")
    return (name.replace("_", "-") if name.startswith("--") else name) + dot + keys


def whole(engine: str, flag: str) -> str:
    """The flag that a parser would take this for: itself where it is known, the only one that begins like it, else
    itself. InputError where several begin like it."""
    newest, older = _read().get(engine, ({}, {}))
    if flag in newest or flag in older or not flag.startswith("--") or len(flag) < 4:
        return flag
    if engine == VLLM:
        for ours, theirs in OPPOSITES:
            other = theirs + flag.removeprefix(ours)
            if flag.startswith(ours) and newest.get(other) == SWITCH:
                return f"--no-{other[2:]}"
    for known in (newest, older):
        longer = sorted(name for name in known if name.startswith(flag))
        if len(longer) > 1:
            raise InputError(
                f"--from-launch: {flag} is short for several flags of {engine} ({', '.join(longer[:6])}"
                f"{', ...' if len(longer) > 6 else ''}); expected the whole name of one"
            )
        if longer:
            return longer[0]
    return flag


# -- flags without effect ----------------------------------------------------------------------------------------------

NO_EFFECT_KINDS = re.compile(
    "--(no-)?(" + "|".join(
        (
            # how it is reached, and what it writes down
            r"host|port|uds|grpc|.*-port|.*grpc-.*|.*http2?-.*|enable-http2|(admin-)?api-key|ssl-.*|enable-ssl-refresh",
            r"allow-credentials|allowed-.*|(fastapi-)?root-path|middleware|uvicorn-.*|h11-.*|disable-fastapi-docs",
            r"enable-offline-docs|enable-request-id-headers|sse-keep-alive-interval|headless|shutdown-timeout|warmups",
            r"(.*-)?log(s|ging)?(-.*)?|disable-access-log-for-endpoints|max-log-len|aggregate-engine-logging|show-.*",
            r"enable-log-.*|decode-log-interval|log-level.*|crash-dump-folder|debug-tensor-.*|.*watchdog.*|collect-.*",
            r".*metrics?(-.*)?|otlp-.*|enable-trace|trace-modules|kv-events-config|bucket-.*|.*-buckets|jit-monitor-.*",
            r"enable-request-time-stats-logging|enable-cache-report|enable-prompt-tokens-details|enable-.*-nvtx-.*",
            r"enable-server-load-tracking|enable-force-include-usage|enable-tokenizer-info-endpoint|print-iter-log",
            # how text becomes tokens and back
            r"tokenizer|tokenizer-(path|mode|revision|backend|pool-.*)|skip-tokenizer-init|.*-parser(-plugin)?",
            r"(default-)?chat-template.*|hf-chat-template-name|completion-template|trust-.*|tool-.*|response-role",
            r"enable-auto-tool-choice|exclude-tools-.*|return-tokens-as-token-ids|(override-)?generation-config",
            r"preferred-sampling-params|sampling-defaults|stream-response-.*|anthropic-.*|reasoning-effort-map",
            r"(guided-decoding|grammar)-backend|constrained-json-.*|max-logprobs|logprobs-mode|allowed-media-domains",
            r"(code-)?revision|served-model-name|model-tag|hf-token|hf-config-path|config-format|config|runner|task",
            r"convert|enable-response-store|return-(input|output)-ids|incremental-streaming-output|cohere-.*",
            # how the weights arrive, and on which device
            r"load-format|download-dir|safetensors-.*|model-loader-.*|ignore-patterns|use-tqdm-on-load|model-checksum",
            r"pt-load-map-location|weight-loader-.*|max-parallel-loading-workers|delete-ckpt-after-loading",
            r"startup-weight-load-mode|checkpoint-engine-.*|weight-version|remote-instance-.*|weight-(cache|transfer)-.*",
            r"device|device-ids|base-gpu-id|gpu-id-step|master-.*|node-rank|dist-.*|nccl-.*|numa-.*|seed|random-seed",
            r"distributed-.*|cpu-distributed-timeout-seconds|gpus-per-node|worker-use-ray|use-ray|use-v2-block-manager",
            r"skip-server-warmup|gc-.*|enable-gc-.*|file-storage-path|backend|num-postprocess-workers",
            r"disable-frontend-multiprocessing|data-parallel-(address|rpc-port|backend|rank|start-rank|size-local)",
            r"fail-on-environ-validation|fail-fast-on-attention-window-too-large|enable-chunked-prefill|stream-output",
        )
    ) + ")"
)  # fmt: skip
"""Flags that change neither times nor the cache. What an engine has beside these and the flags that are read is not
modelled."""


PLACES = frozenset({"-r", "-dpn", "-dpr", "-dpl", "-dpa", "-dpp", "-dpb"})
"""vLLM's short names of where a rank is and how it is reached."""


def no_effect(flag: str) -> bool:
    """Whether a flag changes nothing that is simulated."""
    if flag in PLACES:
        return True
    return flag != "--no-enable-chunked-prefill" and NO_EFFECT_KINDS.fullmatch(flag) is not None
