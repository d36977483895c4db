"""Start-up logs of vLLM, SGLang and TensorRT-LLM, read into scenario keys.

The one idea: a log prints the arguments that an engine was started with, what it made of them, and its KV cache; all
three become flags and keys as a launch command's do.

    >>> read_log(Path("server.log")).sets
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.planner.flag_names import SGLANG, SWITCH, TRTLLM, VLLM, kinds, no_effect
from kvcast.planner.flags import QUANTIZED, READ, SGLANG_OFF
from kvcast.planner.launch import Launch, sorted_flags
from workloads.errors import InputError

VLLM_ARGUMENTS = re.compile(r"non-default args: (\{.*?\})\s*$", re.MULTILINE)
VLLM_CONFIG = re.compile(r"Initializing an? (?:V(\d) )?LLM engine \(v([^)]*)\) with config: (.*)$", re.MULTILINE)
VLLM_BUDGET = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
SGLANG_ARGUMENTS = re.compile(r"server_args=(ServerArgs\(.*\))\s*$", re.MULTILINE)
SGLANG_RESOLVED = re.compile(r"max_total_num_tokens=\d+, (chunked_prefill_size=.*)$", re.MULTILINE)
TRTLLM_LINE = re.compile(r"TRTGptModel (maxBatchSize|maxNumTokens|maxSequenceLen|maxNumSequences): (\d+)")
TRTLLM_POLICY = re.compile(r"Capacity Scheduler Policy: (GUARANTEED_NO_EVICT|MAX_UTILIZATION)")
BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([\w ]+?) backend")
GRAPH_SIZES = re.compile(r"cudagraph_capture_sizes['\"]?\s*[:=]\s*\[([\d, ]+)\]")
"""What engines print at their start. vLLM 0.6 to 0.33, SGLang 0.4 to 0.5, TensorRT-LLM's C++ runtime."""


def read_log(path: Path) -> Launch:
    """The launch arguments that a start-up log prints, what the engine made of them, and its KV cache; of the last
    start in the log."""
    from calibrate.kv_logs import log_lines, read_kv_log

    try:
        content = re.sub(r"\x1b\[[\d;]*m", "", path.read_text(encoding="utf-8", errors="replace"))  # colours
    except OSError as error:
        raise InputError(
            f"--from-log {path}: cannot be read ({error.strerror}); expected the start-up log of vLLM or SGLang"
        ) from None
    kv, why = None, ""
    try:
        kv = read_kv_log(path)
    except InputError as error:
        why = str(error)
    launch = _arguments(content)
    if launch is None and kv is None:
        raise InputError(
            f"--from-log {path}: neither launch arguments ('non-default args: {{...}}' of vLLM,"
            " 'server_args=ServerArgs(...)' of SGLang) nor a KV cache size in it"
        )
    if launch is None and kv is not None:
        launch = sorted_flags(kv.engine, _trtllm(content)) if kv.engine == TRTLLM else Launch(kv.engine, [])
        launch.sets = launch.sets or [f"engine.semantics={kv.engine}"]
        launch.notes += ["the log does not show the launch arguments: only its KV cache is taken over"][
            : len(launch.sets) == 1
        ]
    assert launch is not None
    launch.notes += _seen(content)
    if kv is None:
        launch.notes.append(why)
        return launch
    named = next((one for one in reversed(launch.sets) if one.startswith("engine.block_size=")), None)
    size = int(named.partition("=")[2]) if named and kv.assumed_block_size else kv.block_size
    memory = ("engine.block_size=", "engine.kv_blocks=", "hardware.overhead_gib=")  # the log says what came of it
    launch.sets = [one for one in launch.sets if not one.startswith(memory)]
    launch.sets += [f"engine.block_size={size}", f"engine.kv_blocks={kv.tokens // size}"]
    launch.logged_tokens, launch.kv_bytes = kv.printed or kv.tokens, 0
    ranks = any(one.startswith("hardware.attention_dp=") for one in launch.sets)  # then its engines are one replica's
    if kv.replicas and not ranks:
        launch.sets = [one for one in launch.sets if not one.startswith("cluster.replicas=")]
        launch.sets.append(f"cluster.replicas={len(kv.replicas)}")
    launch.notes += log_lines(replace(kv, ragged=0) if named else kv)[2:]
    return launch


def _arguments(content: str) -> Launch | None:
    """Of the last start whose arguments are printed."""
    found = [(match.start(), engine, match) for engine, pattern in PRINTED if (match := _last(pattern, content))]
    if not found:
        return None
    _, engine, match = max(found, key=lambda one: one[0])
    return _of_sglang(content, match) if engine == SGLANG else _of_vllm(content)


PRINTED = ((VLLM, VLLM_ARGUMENTS), (VLLM, VLLM_CONFIG), (SGLANG, SGLANG_ARGUMENTS))


def _last(pattern: re.Pattern[str], content: str) -> re.Match[str] | None:
    return next(reversed(list(pattern.finditer(content))), None)


def _of_vllm(content: str) -> Launch:
    """The arguments that differ from the defaults, and of what the engine made of all of them the rest."""
    given, made = _last(VLLM_ARGUMENTS, content), _last(VLLM_CONFIG, content)
    flags = _as_flags(_dictionary(given[1]).items(), every_false=True) if given else []
    known = {flag.replace("--no-", "--") for flag, _ in flags}
    resolved = [one for one in (_of_config(made[3]) if made else []) if one[0].replace("--no-", "--") not in known]
    budget = _last(VLLM_BUDGET, content)
    if budget and "--max-num-batched-tokens" not in known:
        resolved.append(("--max-num-batched-tokens", budget[1]))
    launch = sorted_flags(VLLM, [*resolved, *flags])
    if given and not flags:
        launch.notes.append("the launch arguments in the log could not be read: only its KV cache is taken over")
    if made:
        old = made[1] == "0" or made[2].startswith(("0.4", "0.5", "0.6"))
        launch.notes.append(
            f"vLLM {made[2]}" + (": its V0 engine, whose scheduler is not the one that is simulated" if old else "")
        )
    return launch


def _of_config(text: str) -> list[tuple[str, str | None]]:
    """Flags of a printed engine config: what is as a scenario has it anyway is left out."""
    plain = re.findall(r"(?<![\w.'\"(])(\w+)=('[^']*'|[\w./-]+)(?=[,\s]|$)", re.sub(r"\([^()]*\)", "", text))
    values = {name: value.strip("'") for name, value in reversed(plain)}  # the first of a name
    flags: list[tuple[str, str | None]] = [
        (flag, values[name].removeprefix("torch."))
        for name, flag, off in RESOLVED
        if name in values and values[name] not in off
    ]
    for name, flag in (("enable_prefix_caching", "enable-prefix-caching"), *CHUNKED):
        if name in values and not (flag == CHUNKED[0][1] and values[name] == "True"):
            flags.append((f"--{'' if values[name] == 'True' else 'no-'}{flag}", None))
    flags += [("--enforce-eager", None)] if values.get("enforce_eager") == "True" else []
    drafted = re.search(r"speculative_config=SpeculativeConfig\((.*?)\)", text)
    if drafted:
        told = dict(re.findall(r"(\w+)='?([^',)]*)'?", drafted[1]))
        tokens = str(told.get("num_spec_tokens", told.get("num_speculative_tokens", "0")))
        draft = {"method": told.get("method"), "model": told.get("model", told.get("draft_model"))}
        flags.append(
            (
                "--speculative-config",
                json.dumps({**draft, "num_speculative_tokens": int(tokens) if tokens.isdigit() else 0}),
            )
        )
    quantized = values.get("quantization") in QUANTIZED or str(values.get("quantization")).startswith("fp8")
    return [
        one for one in flags if one[0] != "--quantization" or quantized
    ]  # else the checkpoint's own, as its name says


RESOLVED = (
    ("model", "--model", ()),
    ("dtype", "--dtype", ("auto",)),
    ("max_seq_len", "--max-model-len", ("None",)),
    ("tensor_parallel_size", "--tensor-parallel-size", ("1",)),
    ("pipeline_parallel_size", "--pipeline-parallel-size", ("1",)),
    ("data_parallel_size", "--data-parallel-size", ("1",)),
    ("decode_context_parallel_size", "--decode-context-parallel-size", ("1",)),
    ("quantization", "--quantization", ("None",)),
    ("kv_cache_dtype", "--kv-cache-dtype", ("auto",)),
    ("num_scheduler_steps", "--num-scheduler-steps", ("1",)),
)
"""Name in vLLM's engine config, flag, values that say nothing."""
CHUNKED = (("chunked_prefill_enabled", "enable-chunked-prefill"), ("enable_chunked_prefill", "enable-chunked-prefill"))


def _of_sglang(content: str, given: re.Match[str]) -> Launch:
    launch = sorted_flags(SGLANG, [one for one in _as_flags(_call(given[1])) if _told(*one)])
    made = _last(SGLANG_RESOLVED, content)
    if made and made.start() > given.start():
        for name, value in re.findall(r"(\w+)=(-?\d+)", made[1]):
            key = SCHEDULED.get(name)
            launch.sets = [one for one in launch.sets if key is None or not one.startswith(f"{key}=")]
            launch.sets += [f"{key}={max(int(value), 0)}"] if key else []
    launch.notes.append(
        "SGLang's log prints every argument, defaults too: of those that kvcast does not simulate, the switched on"
        " are listed"
    )
    return launch


SCHEDULED = {
    "chunked_prefill_size": "engine.chunked_prefill_size",
    "max_prefill_tokens": "engine.max_prefill_tokens",
    "max_running_requests": "engine.max_num_seqs",
    "context_len": "engine.max_model_len",
}
"""What SGLang's scheduler prints of itself, of one rank -> the key."""


def _trtllm(content: str) -> list[tuple[str, str | None]]:
    names = {"maxBatchSize": "--max-batch-size", "maxNumTokens": "--max-num-tokens", "maxSequenceLen": "--max-seq-len"}
    flags: list[tuple[str, str | None]] = [
        (names[name], value) for name, value in TRTLLM_LINE.findall(content) if name in names
    ]
    policy = _last(TRTLLM_POLICY, content)
    return flags + ([("--scheduler-config.capacity-scheduler-policy", policy[1])] if policy else [])


def _seen(content: str) -> list[str]:
    """What a log says that is no key of a scenario."""
    notes = []
    backend, graphs = _last(BACKEND, content), _last(GRAPH_SIZES, content)
    if backend:
        notes.append(f"attention backend {backend[1]}: not taken over, the profile says what kernels take")
    if graphs:
        sizes = [int(size) for size in graphs[1].replace(" ", "").split(",") if size]
        notes.append(f"CUDA graphs for {len(sizes)} batch sizes up to {max(sizes)}: not taken over")
    return notes


def _told(flag: str, value: str | None) -> bool:
    """Whether an argument of SGLang's log says something: it is read, or it switches on what is not simulated."""
    off = value is not None and value == SGLANG_OFF.get(flag)
    if flag in READ[SGLANG] or flag in SGLANG_OFF:
        return not off
    return value is None and kinds(SGLANG).get(flag) == SWITCH and not no_effect(flag)


def _as_flags(arguments: Iterable[tuple[str, Any]], every_false: bool = False) -> list[tuple[str, str | None]]:
    """Arguments as flags; what is None was not given, and what is False neither, unless only what differs from the
    defaults is printed."""
    flags: list[tuple[str, str | None]] = []
    for name, value in arguments:
        flag = f"--{name.replace('_', '-')}"
        if value is None or name == "model_tag" or (value is False and not every_false):
            continue
        if value is False:
            flags.append((f"--no-{flag[2:]}", None))
        else:
            flags.append((flag, None if value is True else _shown(value)))
    return flags


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _dictionary(source: str) -> dict[str, Any]:
    """The literal values of a printed dict; an object's own print is kept as text. Nothing is evaluated."""
    node = _parsed(source)
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return {str(key.value): _literal(value) for key, value in pairs if isinstance(key, ast.Constant)}


def _call(source: str) -> list[tuple[str, Any]]:
    """The arguments of a printed call; when an object's print is among them, those that are plain."""
    node = _parsed(source)
    if isinstance(node, ast.Call):
        return [(keyword.arg, _literal(keyword.value)) for keyword in node.keywords if keyword.arg]
    plain = re.findall(r"(?<=[(\s])(\w+)=('[^']*'|-?\d+(?:\.\d+)?|True|False|None)(?=[,)])", source)
    return [(name, ast.literal_eval(value)) for name, value in plain]


def _parsed(source: str) -> ast.expr | None:
    """The expression, if need be with prints such as <Mode.NONE: 0> as texts; None when it is none."""
    for text in (source, re.sub(r"<[^<>]*>", lambda found: repr(found[0]), source)):
        try:
            return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return ast.unparse(node)
