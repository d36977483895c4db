"""Recorded engine cases (schema kvoracle/1) as a workload and engine parameters.

The one idea: a case counts in scheduler steps, so its arrival steps become seconds; with a step time of one second
the number of a step is the clock at its start, and an idle engine's jump to the next arrival needs no special rule.

    >>> workload, params = to_workload(read_case(Path("v09_shared_small.json")))
    >>> params["kv_blocks"], params["block_size"]
    (120, 16)

A prompt is a list of segments: ["s", name, n] are the first n tokens of a text, ["o", r, n] the first n output tokens
of request r, whether r has generated them yet or not. Cache salt and LoRA adapter are separate roots of the tree."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces
from workloads.readers.archive import MAX_DOCUMENT
from workloads.readers.values import NOT_JSON, why_not_json

SCHEMA = "kvoracle/1"

_PARAMS = {
    "num_blocks": "kv_blocks",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive": "long_prefill_token_threshold_adaptive",
    "max_num_active_seqs": "max_num_active_seqs",
    "prefill_schedule_interval": "prefill_schedule_interval",
    "policy": "scheduler_policy",
    "watermark": "watermark",
    "scheduler_reserve_full_isl": "reserve_full_isl",
    "max_loras": "max_loras",
    "async_scheduling": "async_scheduling",
    "calls_ahead": "calls_ahead",
    "preemption_victim": "preemption_victim",
    "enable_prefix_caching": "caching",
    "cache_policy": "policy",
}
"""Case config key -> field of sim.scenario.EngineParams."""

_SGLANG_PARAMS = {
    "page_size": "block_size",
    "max_context": "max_model_len",
    "max_running": "max_num_seqs",
    "eviction_policy": "policy",
    "schedule_policy": "schedule_policy",
    "chunked_prefill_size": "chunked_prefill_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "conservativeness": "schedule_conservativeness",
    "recv_interval": "scheduler_recv_interval",
    "priority_scheduling": "priority_scheduling",
    "retraction_policy": "retraction_policy",
    "mixed_chunk": "mixed_chunk",
    "calls_ahead": "calls_ahead",
    "init_new_token_ratio": "init_new_token_ratio",
    "min_new_token_ratio_factor": "min_new_token_ratio_factor",
    "ratio_decay_steps": "new_token_ratio_decay_steps",
    "retract_decode_steps": "retract_decode_steps",
    "clip_max_new_tokens": "clip_max_new_tokens",
}
"""The same for SGLang; what needs more than a new name is in `_sglang_params`."""
_SGLANG_OTHERS = ("capacity_tokens", "disable_cache", "use_priority", "overlap")

_FEATURES = ("sliding_window", "swa_only", "prefix_match_unit", "mamba_cache_mode")
"""Keys that name whole features; whoever replays a case decides on them."""
_GROUPED = ("kv_cache_groups", "prefix_cache_retention_interval")
_DRAFTS = ("speculative",)
_PLANNED = ("layers", "scheduler_block_size", "hash_block_size", "_shape", "lora")
"""What the groups were made of, and what follows from them."""
_KINDS_OF_GROUP = {"full": "full", "sliding_window": "window", "chunked_local": "chunked", "mamba": "state"}
DENSE = -1
"""A retention interval of null."""


def read_case(path: Path) -> dict[str, Any]:
    """One case file, plain JSON or .xz; InputError when it is not a case."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            text = file.read(MAX_DOCUMENT + 1)
    except (lzma.LZMAError, EOFError) as problem:
        raise InputError(f"{path}: not a whole .xz file ({problem}), expected an engine case") from None
    if len(text) > MAX_DOCUMENT:
        raise InputError(f"{path}: more than {MAX_DOCUMENT >> 20} MiB unpacked, expected an engine case")
    try:
        case = json.loads(text)
    except NOT_JSON as problem:
        raise InputError(f"{path}: not readable as JSON ({why_not_json(problem)}), expected an engine case") from None
    schema = case.get("schema") if isinstance(case, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path}: schema = {schema!r}, expected {SCHEMA!r}")
    missing = [key for key in ("case", "engine", "config", "requests", "expected") if key not in case]
    if missing:
        raise InputError(f"{path}: field {missing[0]!r} is missing, expected an engine case")
    return case


_NEEDED = ("num_blocks", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
_SGLANG_NEEDED = ("capacity_tokens", "page_size", "max_running", "chunked_prefill_size")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**53


def _number(value: Any, below: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < below


_Kind = tuple[Callable[[Any], bool], str]
_COUNT: _Kind = (lambda v: _whole(v, 1), "a whole number of 1 or more")
_FROM_0: _Kind = (lambda v: _whole(v, 0), "a whole number of 0 or more")
_FLAG: _Kind = (lambda v: isinstance(v, bool), "true or false")
_NAME: _Kind = (lambda v: isinstance(v, str), "a string")
_SHARE: _Kind = (lambda v: _number(v, 1.0), "0 or more and below 1")
_FINITE: _Kind = (_number, "a number of 0 or more")
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(
        (
            *_NEEDED,
            "capacity_tokens",
            "page_size",
            "max_running",
            "max_context",
            "max_prefill_tokens",
            "ratio_decay_steps",
            "max_num_active_seqs",
            "prefill_schedule_interval",
            "recv_interval",
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        ("long_prefill_token_threshold", "max_loras", "retract_decode_steps", "clip_max_new_tokens"), _FROM_0
    ),
    **dict.fromkeys(
        ("policy", "cache_policy", "preemption_victim", "eviction_policy", "schedule_policy", "retraction_policy"),
        _NAME,
    ),
    **dict.fromkeys(("scheduler_reserve_full_isl", "async_scheduling", "calls_ahead", "enable_prefix_caching"), _FLAG),
    **dict.fromkeys(("priority_scheduling", "use_priority", "disable_cache", "overlap", "mixed_chunk"), _FLAG),
    "long_prefill_token_threshold_adaptive": _FLAG,
    "watermark": _SHARE,
    "chunked_prefill_size": (lambda v: _whole(v, -1), "a whole number, 0 or -1 for no chunks"),
    **dict.fromkeys(("conservativeness", "init_new_token_ratio", "min_new_token_ratio_factor"), _FINITE),
}
"""What the value of a config key must be; null stands for the engine's default."""
_FIELDS: dict[str, _Kind] = {
    "id": _FROM_0,
    "arrival_step": (_number, "a number of 0 or more"),
    "max_tokens": _COUNT,
    "priority": (lambda v: v is None or (_whole(v, -(2**31)) and v < 2**31), "a whole number of 32 bits"),
    "cache_salt": (lambda v: v is None or isinstance(v, str | int), "a string or a number"),
}
"""The same for the fields of a request."""
_REQUEST = (
    "id",
    "arrival_step",
    "segments",
    "max_tokens",
    "priority",
    "cache_salt",
    "lora",
    "session",
    "turn",
    "accepted",
)


LOWEST_PRIORITY = -(2**63)
"""What SGLang gives a request without a priority where it schedules by priority."""


def unknown_settings(case: dict[str, Any]) -> list[str]:
    """Config keys that no field of EngineParams stands for, and request fields that are not read."""
    known = (
        (*_SGLANG_PARAMS, *_SGLANG_OTHERS)
        if case["engine"] == "sglang"
        else (*_PARAMS, *_FEATURES, *_GROUPED, *_DRAFTS, *_PLANNED)
    )
    config = [f"config {key}" for key in case["config"] if key not in known]
    return config + sorted({f"request field {key}" for r in case["requests"] for key in r if key not in _REQUEST})


def to_workload(case: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """(workload, keyword arguments of EngineParams); request order is id order, arrival steps are seconds."""
    sglang = case.get("engine") == "sglang"
    _check(case, _SGLANG_NEEDED if sglang else _NEEDED)
    config = {key: value for key, value in case["config"].items() if value is not None}
    with_priority = config.get("use_priority", True)
    unset = LOWEST_PRIORITY if sglang and config.get("priority_scheduling") else 0
    requests = sorted(case["requests"], key=lambda r: r["id"])
    adapter = [None if r.get("lora") is None else json.dumps(r["lora"], sort_keys=True) for r in requests]
    tree, leaf = from_pieces(
        [_path(r) for r in requests], [(r.get("cache_salt"), name) for r, name in zip(requests, adapter, strict=True)]
    )
    number = {name: i for i, name in enumerate(sorted(set(adapter) - {None}, key=str))}
    workload = Workload(
        tree=tree,
        arrival_s=np.array([r["arrival_step"] for r in requests], np.float64),
        prompt_tokens=np.array([sum(n for _, _, n in r["segments"]) for r in requests], np.int64),
        output_tokens=np.array([r["max_tokens"] for r in requests], np.int64),
        leaf=leaf,
        priority=np.array([_or(r.get("priority"), unset) if with_priority else 0 for r in requests], np.int64),
        lora=np.array([number.get(name, -1) for name in adapter], np.int32),
        source=f"engine case {case.get('case', '')}".strip(),
    )
    counted: dict[str, Any] = {"calls_ahead": False}  # an arrival step is the call that sees it
    if sglang:
        return workload, counted | _sglang_params(config)
    counted |= _groups(case) | _speculation(case)
    counted["async_scheduling"] = False  # recorded were synchronous schedulers, but where a case says otherwise
    return workload, counted | {_PARAMS[key]: value for key, value in config.items() if key in _PARAMS}


def _groups(case: dict[str, Any]) -> dict[str, Any]:
    """The KV groups of a case, (kind, block size, window, layers) each. A case of before there were any names its
    window alone, and was recorded dense."""
    config = case["config"]
    if config.get("sliding_window") and not config.get("kv_cache_groups"):
        sizes = {"block_size": config["block_size"]}
        groups = [{"type": "sliding_window", "sliding_window": config["sliding_window"], **sizes}]
        groups += [] if config.get("swa_only") else [{"type": "full", **sizes}]
        interval = config.get("prefix_cache_retention_interval")
    else:
        groups, interval = config.get("kv_cache_groups") or [], config.get("prefix_cache_retention_interval", 0)
    if not groups:
        return {}
    return {
        "kv_groups": tuple(_group(case, g) for g in groups),
        "prefix_cache_retention_interval": _or(interval, DENSE),
    }


def _speculation(case: dict[str, Any]) -> dict[str, Any]:
    """Method and acceptances of a case's drafts; what was accepted of each are the draws of seed 0."""
    drafts = case["config"].get("speculative")
    if drafts is None:
        return {}
    shares = drafts.get("acceptance") if isinstance(drafts, dict) else None
    if not isinstance(shares, list) or not all(isinstance(a, int | float) and 0 <= a <= 1 for a in shares):
        expected = "an object with method and acceptance, a list of numbers from 0 to 1"
        raise InputError(
            f"{case.get('case', 'engine case')}: config speculative: {str(drafts)[:60]}, expected {expected}"
        )
    return {"speculative": (str(drafts.get("method")), tuple(shares))}


def _group(case: dict[str, Any], g: Any) -> tuple[str, int, int, int]:
    kind = _KINDS_OF_GROUP.get(str(g.get("type"))) if isinstance(g, dict) else None
    window = _or(g.get("sliding_window"), g.get("attention_chunk_size") or 0) if kind else 0
    if kind is None or not _whole(g.get("block_size"), 1) or not _whole(window, int(kind in ("window", "chunked"))):
        expected = f"an object with a type ({', '.join(_KINDS_OF_GROUP)}), its block_size and window"
        raise InputError(
            f"{case.get('case', 'engine case')}: config kv_cache_groups: {str(g)[:60]}, expected {expected}"
        )
    return kind, g["block_size"], window, g.get("layers", 0)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _sglang_params(config: dict[str, Any]) -> dict[str, Any]:
    return {
        **{_SGLANG_PARAMS[key]: value for key, value in config.items() if key in _SGLANG_PARAMS},
        "semantics": "sglang",
        "chunked_prefill_size": max(0, config["chunked_prefill_size"]),  # -1, as SGLang says no chunks
        "kv_blocks": config["capacity_tokens"] // config["page_size"],
        "caching": not config.get("disable_cache", False),
        "overlap_schedule": config.get("overlap", False),  # a case says so; its engine's own default is true
    }


def _check(case: dict[str, Any], needed: tuple[str, ...]) -> None:
    """InputError naming the first field that is missing, or is not what it must be."""
    name, config, requests = case.get("case", "engine case"), case["config"], case["requests"]
    if not isinstance(config, dict):
        raise InputError(f"{name}: config is no object, expected the engine's settings")
    for key in (*needed, *config):
        fits, expected = _KINDS.get(key, (None, ""))
        value = config.get(key)
        if fits is not None and not (fits(value) or (value is None and key not in needed)):
            raise InputError(f"{name}: config {key} = {value!r}, expected {expected}")
    if not isinstance(requests, list) or not requests:
        raise InputError(f"{name}: requests is empty or no list, expected at least one")
    output: dict[Any, int] = {}
    for position, request in enumerate(requests):
        where = f"{name}: request {position}"
        if not isinstance(request, dict):
            raise InputError(f"{where}: {str(request)[:40]!r}, expected an object")
        for key in _REQUEST[:4]:
            if key not in request:
                raise InputError(f"{where}: field {key!r} is missing")
        for key, (fits, expected) in _FIELDS.items():
            if key in request and not fits(request[key]):
                raise InputError(f"{where}: {key} = {request[key]!r}, expected {expected}")
        if request["id"] in output:
            raise InputError(f"{where}: id = {request['id']} is there twice, expected each once")
        output[request["id"]] = request["max_tokens"]
    for position, request in enumerate(requests):
        segments = request["segments"]
        if not isinstance(segments, list) or not segments:
            raise InputError(f"{name}: request {position}: segments is empty or no list, expected at least one")
        for segment in segments:
            if not _is_segment(segment, output):
                expected = '["s", text, tokens] or ["o", request of this case, at most its max_tokens]'
                raise InputError(f"{name}: request {position}: segment {str(segment)[:60]}, expected {expected}")


def _is_segment(segment: Any, output: dict[Any, int]) -> bool:
    if not (
        isinstance(segment, list) and len(segment) == 3 and isinstance(segment[1], str | int) and _whole(segment[2], 1)
    ):
        return False
    return segment[0] == "s" or (segment[0] == "o" and segment[2] <= output.get(segment[1], 0))


def _path(request: dict[str, Any]) -> list[tuple[tuple[str, int], int, int]]:
    """Pieces (text, offset, length) of prompt and output."""
    prompt = [((kind, which), 0, length) for kind, which, length in request["segments"]]
    return [*prompt, (("o", request["id"]), 0, request["max_tokens"])]
