"""Records what an installed vLLM does with given requests, step by step, as cases that kvcast replays (kvoracle/1).

The engine's own scheduler and KV cache manager run on the CPU, without weights: a step's "model" returns the tokens
that the case says. So the next version of the engine is checked by whoever has it installed. Two Pythons take part, the
one that has kvcast and the one that has vLLM; the second needs nothing of kvcast but this file:

    python -m tools.record_engine_cases requests examples/demo.toml --first 80 --set engine.kv_blocks=600 --out asked
    VLLM_PYTHON tools/record_engine_cases.py record asked --out recorded
    kvcast validate engine-cases --cases recorded

`record CASES --compare` records cases that say what they expect once more, and says which differ. `make engine-check`
does both. Nothing is downloaded. What was run: vLLM 0.33.0, synchronous and asynchronous; full attention, sliding
windows, chunked-local attention and their mixtures (a case's `kv_cache_groups`): all 119 such cases of the reference
data come out as they were recorded elsewhere (docs/engines.md). Mamba states and KV connectors are not recorded. SGLang
was not run and has no recorder here.

Speculative decoding: a case's config says `"speculative": {"method", "tokens", "acceptance", "lookahead"}`, each of its
requests "accepted", the drafted tokens accepted behind its first 0, 1, ... outputs. The drafter is vLLM's n-gram one,
whose drafts are made up here, with `lookahead` slots beyond the verified tokens as EAGLE has them; what EAGLE changes
in look-ups is not recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

SCHEMA = "kvoracle/1"
SEGMENT = 100_000  # a text's token i is its number times this, plus i
OUTPUTS = 1 << 40  # the first output token of request r is this plus r times SEGMENT
COLUMNS = [
    "step",
    "scheduled[[id,tokens]]",
    "preempted_ids",
    "blocks_allocated",
    "blocks_evicted",
    "free_blocks_after",
    "running",
    "waiting",
]
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 1 << 24,
    "torch_dtype": "float16",
}
"""Any model with full attention; nothing of it runs."""
NOT_RECORDED = ("sliding_window", "swa_only", "mamba_cache_mode", "preemption_victim", "cache_policy")


NEWER = ("long_prefill_token_threshold_adaptive", "max_num_active_seqs", "prefill_schedule_interval")
"""Scheduler options that older versions do not have: given only where a case says something of them."""
DEFAULTS = {"long_prefill_token_threshold_adaptive": False, "prefill_schedule_interval": 1}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    requests = commands.add_parser("requests", help="write the first requests of a scenario (needs kvcast)")
    requests.add_argument("scenario", type=Path)
    requests.add_argument("--first", type=int, default=60, help="how many of its requests (default 60)")
    requests.add_argument("--step-ms", type=float, default=20.0, help="time that a step stands for (default 20)")
    requests.add_argument("--set", metavar="a.b=VALUE", action="append", default=[], dest="overrides")
    requests.add_argument("--name", help="of the case; default: the scenario's file name")
    recording = commands.add_parser("record", help="record what the engine does with them (needs vLLM)")
    recording.add_argument("cases", type=Path, help="a case, or a folder of them")
    recording.add_argument(
        "--compare", action="store_true", help="say which differ from what they expect, write nothing"
    )
    for one, folder in ((requests, "asked"), (recording, "recorded")):
        one.add_argument("--out", type=Path, default=Path(folder), help=f"folder to write to (default {folder})")
    args = parser.parse_args(argv)
    if args.command == "requests":
        _write(args.out, requests_of(args))
        return 0
    try:
        import vllm
    except ImportError:
        print("vllm is not installed for this Python: run with one that has it", file=sys.stderr)
        return 2
    cases = _read(args.cases)
    if args.compare:
        return _compare(cases, vllm.__version__)
    for case in cases:
        _write(args.out, record(case, vllm.__version__))
    return 0


def _write(folder: Path, case: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{case['case']}.json"
    file.write_text(json.dumps(case) + "\n", encoding="utf-8")
    print(f"wrote {file}: {len(case['requests'])} requests", flush=True)


def _read(path: Path) -> list[dict[str, Any]]:
    """The cases of vLLM that can be recorded here."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    cases = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    mine = [case for case in cases if case["engine"] == "vllm" and not any(map(case["config"].get, NOT_RECORDED))]
    print(f"{len(mine)} of {len(cases)} cases are vLLM's and can be recorded", file=sys.stderr)
    return mine


def _compare(cases: list[dict[str, Any]], version: str) -> int:
    differ = 0
    for case in cases:
        lines = differences(record(case, version)["expected"], case["expected"])
        differ += bool(lines)
        for line in lines[:3] or ["the same"]:
            print(f"{case['case']}: {line}", flush=True)
    print(f"{len(cases)} cases recorded with vllm {version}, {differ} differ from what they expect")
    return int(differ > 0)


# -- what to record ----------------------------------------------------------------------------------------------------


def requests_of(args: argparse.Namespace) -> dict[str, Any]:
    """A case, with nothing expected yet, of the scenario's engine and the first requests that it serves; arrivals in
    whole steps, later turns at their nominal start."""
    from kvcast import api, load_scenario
    from workloads.transform import nominal_start_s

    prepared = api.prepare(load_scenario(args.scenario, args.overrides))
    params, workload = prepared.resolved.params, prepared.workload
    if params.semantics != "vllm" or params.tiers or params.policy != "lru":
        raise SystemExit("expected a scenario of vLLM's own scheduler and cache: semantics vllm, policy lru, no tiers")
    starts_s, rows = nominal_start_s(workload), chosen(workload, params, args.first)
    segments = segments_of(workload, rows)
    requests = [
        {
            "id": i,
            "arrival_step": int(starts_s[row] * 1e3 / args.step_ms),
            "segments": segments[i],
            "max_tokens": int(workload.output_tokens[row]),
            "priority": int(workload.column("priority")[row]),
        }
        for i, row in enumerate(rows)
    ]
    config = {
        key: value
        for key, name in CONFIG.items()
        if (value := getattr(params, name)) not in (None, DEFAULTS.get(key, ()))
    }
    case = {"case": args.name or args.scenario.stem, "engine": "vllm", "config": config, "requests": requests}
    return {"schema": SCHEMA, **case}


def chosen(workload: Any, params: Any, first: int) -> list[int]:
    """The first rows by nominal start that the engine serves."""
    from workloads.transform import nominal_start_s

    tokens = workload.prompt_tokens + workload.output_tokens
    served = tokens <= min(params.max_model_len, params.kv_blocks * params.block_size)
    return [row for row in nominal_start_s(workload).argsort(kind="stable").tolist() if served[row]][:first]


CONFIG = {
    "block_size": "block_size",
    "num_blocks": "kv_blocks",
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "policy": "scheduler_policy",
    "watermark": "watermark",
    "scheduler_reserve_full_isl": "reserve_full_isl",
    "enable_prefix_caching": "caching",
    "async_scheduling": "async_scheduling",
    "long_prefill_token_threshold_adaptive": "long_prefill_token_threshold_adaptive",
    "max_num_active_seqs": "max_num_active_seqs",
    "prefill_schedule_interval": "prefill_schedule_interval",
}
"""Key of a case's config -> field of EngineParams."""


def segments_of(workload: Any, rows: list[int]) -> list[list[list[Any]]]:
    """The prompts of these rows of a workload as segments: texts of the prefix tree, and outputs of earlier rows."""
    tree = workload.tree
    names: dict[tuple[Any, int], int] = {}
    said: dict[Any, tuple[int, int]] = {}  # a token on the tree -> (request, place among its outputs)
    found = []
    for i, row in enumerate(rows):
        prompt, output = int(workload.prompt_tokens[row]), int(workload.output_tokens[row])
        tokens = _tokens(tree, int(workload.leaf[row]), prompt + output, row)
        segments: list[list[Any]] = []
        at = 0
        while at < prompt:
            begin, (text, offset) = at, tokens[at]
            who, place = said.get((text, offset), (-1, -1))
            at += 1
            if place == 0:
                while at < prompt and said.get(tokens[at]) == (who, at - begin):
                    at += 1
                segments.append(["o", who, at - begin])
                continue
            while (
                at < prompt
                and tokens[at] == (text, offset + at - begin)
                and said.get(tokens[at], (0, 1))[1] != 0
                and at - begin < SEGMENT
            ):
                at += 1
            segments.append(["s", names.setdefault((text, offset), len(names)), at - begin])
        for place, token in enumerate(tokens[prompt : prompt + output]):
            said.setdefault(token, (i, place))
        found.append(segments)
    return found


def _tokens(tree: Any, leaf: int, length: int, row: int) -> list[tuple[Any, int]]:
    """(text, place in it) of each token of a request's prompt and output."""
    path, node = [], leaf
    while node >= 0:
        path.append(node)
        node = int(tree.parent[node])
    tokens: list[tuple[Any, int]] = []
    for node in reversed(path):
        start = len(tokens)
        tokens += [(node, place) for place in range(max(0, min(int(tree.end[node]), length) - start))]
    return tokens + [(("own", row), place) for place in range(length - len(tokens))]


# -- recording ---------------------------------------------------------------------------------------------------------


class Recorder:
    """vLLM's scheduler with a clock of steps, and counts of what its block pool gives and takes."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.scheduler = scheduler_of(config, folder)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.allocated = self.evicted = 0
        self.preempted: list[str] = []
        self._count()

    def _count(self) -> None:
        pool, scheduler = self.pool, self.scheduler
        give, evict, preempt = pool.get_new_blocks, pool._maybe_evict_cached_block, scheduler._preempt_request

        def get_new_blocks(n: int, *rest: Any, **more: Any) -> Any:
            self.allocated += n
            return give(n, *rest, **more)

        def evicts(block: Any) -> bool:
            gone = evict(block)
            self.evicted += gone
            return gone

        def preempts(request: Any, *rest: Any, **more: Any) -> Any:
            self.preempted.append(request.request_id)
            return preempt(request, *rest, **more)

        pool.get_new_blocks, pool._maybe_evict_cached_block = get_new_blocks, evicts
        scheduler._preempt_request = preempts


def scheduler_of(config: dict[str, Any], folder: Path) -> Any:
    """vLLM's scheduler for a case's config, on any machine."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    caching, asynchronous = config.get("enable_prefix_caching", True), bool(config.get("async_scheduling", False))
    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float16", max_model_len=config["max_model_len"]
    )
    drafts = config.get("speculative")
    scheduling = SchedulerConfig(
        max_model_len=config["max_model_len"],
        is_encoder_decoder=False,
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
        policy=config.get("policy", "fcfs"),
        watermark=config.get("watermark", 0.0),
        scheduler_reserve_full_isl=config.get("scheduler_reserve_full_isl", True),
        async_scheduling=asynchronous and not drafts,  # of a drafter that needs no model vLLM takes only the other one
        enable_chunked_prefill=True,
        **{key: config[key] for key in NEWER if key in config},
    )
    cache = CacheConfig(block_size=config["block_size"], enable_prefix_caching=caching)
    blocks = config["num_blocks"] + 1  # one is the null block
    cache.num_gpu_blocks = blocks
    more = {}
    if config.get("max_loras"):
        from vllm.config import LoRAConfig

        more["lora_config"] = LoRAConfig(max_loras=config["max_loras"], lora_dtype="float16")
    if drafts:
        from vllm.config import ParallelConfig, SpeculativeConfig

        more["speculative_config"] = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=drafts["tokens"],
            prompt_lookup_max=3,
            prompt_lookup_min=1,
            target_model_config=model,
            target_parallel_config=ParallelConfig(),
        )
    whole = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=scheduling,
        device_config=DeviceConfig(device="cpu"),
        **more,
    )
    groups = config.get("kv_cache_groups") or [{"type": "full", "block_size": config["block_size"]}]
    specs = [_spec(group, torch.float32) for group in groups]
    scheduling.async_scheduling = asynchronous
    scheduler = (AsyncScheduler if asynchronous else Scheduler)(
        vllm_config=whole,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)],
            prefix_cache_retention_interval=config.get("prefix_cache_retention_interval"),
            hash_block_size=config.get("hash_block_size"),
        ),
        structured_output_manager=StructuredOutputManager(whole),
        block_size=config.get("scheduler_block_size", config["block_size"]),
        hash_block_size=config.get("hash_block_size"),
        log_stats=True,
    )
    if drafts:
        scheduler.num_lookahead_tokens = drafts["lookahead"]
    return scheduler


def _spec(group: dict[str, Any], dtype: Any) -> Any:
    """vLLM's description of a KV cache group."""
    from vllm.v1 import kv_cache_interface as kinds

    size = {"block_size": group["block_size"], "num_kv_heads": 1, "head_size": 1, "dtype": dtype}
    if group["type"] == "full":
        return kinds.FullAttentionSpec(**size)
    if group["type"] == "sliding_window":
        return kinds.SlidingWindowSpec(**size, sliding_window=group["sliding_window"])
    if group["type"] == "chunked_local":
        return kinds.ChunkedLocalAttentionSpec(**size, attention_chunk_size=group["attention_chunk_size"])
    raise ValueError(f"KV cache group of type {group['type']!r}: expected full, sliding_window or chunked_local")


def record(case: dict[str, Any], version: str) -> dict[str, Any]:
    """The case with what this engine does. Deterministic."""
    with tempfile.TemporaryDirectory() as folder:
        expected = _run(case, Path(folder))
    keep = {key: case[key] for key in ("note",) if key in case}
    return {
        "schema": SCHEMA,
        "case": case["case"],
        **keep,
        "engine": "vllm",
        "engine_version": version,
        "config": case["config"],
        "requests": case["requests"],
        "expected": expected,
    }


def _run(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    recorder = Recorder(case["config"], folder)
    scheduler, asynchronous = recorder.scheduler, bool(case["config"].get("async_scheduling", False))
    rows = {request["id"]: _row(request) for request in case["requests"]}
    coming = deque(sorted(case["requests"], key=lambda r: (r["arrival_step"], r["id"])))
    requests = {request["id"]: request for request in case["requests"]}
    hash_size = case["config"].get("hash_block_size") or case["config"]["block_size"]
    hashes: dict[Any, list[int]] = {}
    steps: list[list[Any]] = []
    stats = {
        "requests": 0,
        "queries": 0,
        "hits": 0,
        "preempted_requests": 0,
        "preempted_queries": 0,
        "preempted_hits": 0,
    }
    in_flight: deque[tuple[int, Any, set[str]]] = deque()
    step = idle = 0
    running: set[str] = set()
    while coming or scheduler.has_requests() or in_flight:
        if not scheduler.has_requests() and not in_flight:
            step = max(step, coming[0]["arrival_step"])
        while coming and coming[0]["arrival_step"] <= step:
            scheduler.add_request(_request(coming.popleft(), requests, hash_size))
        before = recorder.allocated, recorder.evicted
        recorder.preempted = []
        output = scheduler.schedule()
        some = output.total_num_scheduled_tokens > 0
        _tell_admissions(scheduler, output, running, rows, step)
        for preempted in recorder.preempted:
            rows[int(preempted)]["preemptions"] += 1
        running = {request.request_id for request in scheduler.running}
        if some:
            steps.append(
                [
                    step,
                    [
                        [int(r.request_id), n]
                        for r in scheduler.running
                        if (n := output.num_scheduled_tokens.get(r.request_id))
                    ],
                    [int(r) for r in recorder.preempted],
                    recorder.allocated - before[0],
                    recorder.evicted - before[1],
                    recorder.pool.get_num_free_blocks(),
                    len(scheduler.running),
                    len(scheduler.waiting) + len(getattr(scheduler, "skipped_waiting", ())),
                ]
            )
        _count_stats(scheduler, stats)
        in_flight.append((step, output, _samples(scheduler, output)))
        while in_flight and (not asynchronous or len(in_flight) > 1 or not some):
            _update(scheduler, *in_flight.popleft(), rows, hashes, requests)
            if case["config"].get("speculative") and not asynchronous:
                _draft(scheduler, case["config"]["speculative"]["tokens"])
        step += some
        idle = 0 if some else idle + 1
        if idle > len(rows) + 10:
            raise RuntimeError(f"{case['case']}: nothing is scheduled at step {step}, yet requests are there")
        if not some and not scheduler.has_requests() and coming:
            step = max(step, coming[0]["arrival_step"])
    return _expected(rows, steps, stats, recorder, hashes, case)


def _row(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": request["id"],
        "prompt_tokens": sum(segment[2] for segment in request["segments"]),
        "output_tokens": 0,
        "first_admission_cached_tokens": 0,
        "all_admission_cached_tokens": [],
        "preemptions": 0,
        "admit_step": None,
        "first_token_step": None,
        "finish_step": None,
    }


def _request(asked: dict[str, Any], requests: dict[int, dict[str, Any]], hash_size: int) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    tokens: list[int] = []
    for kind, name, n in asked["segments"]:
        first = name * SEGMENT if kind == "s" else OUTPUTS + name * SEGMENT
        tokens += range(first, first + n)
    lora = None
    if asked.get("lora") is not None:
        from vllm.lora.request import LoRARequest

        name, path = asked["lora"] if isinstance(asked["lora"], list) else (str(asked["lora"]), str(asked["lora"]))
        lora = LoRARequest(
            lora_name=name, lora_int_id=1 + _loras(requests).index(json.dumps(asked["lora"])), lora_path=path
        )
    salt = asked.get("cache_salt")
    return Request(
        request_id=str(asked["id"]),
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=asked["max_tokens"], ignore_eos=True),
        pooling_params=None,
        arrival_time=asked["arrival_step"] + asked["id"] * 1e-6,  # of those that come together the first has the least
        lora_request=lora,
        cache_salt=None if salt is None else str(salt),
        priority=asked.get("priority", 0) or 0,
        block_hasher=get_request_block_hasher(hash_size, sha256),
    )


def _loras(requests: dict[int, dict[str, Any]]) -> list[str]:
    return sorted({json.dumps(r["lora"]) for r in requests.values() if r.get("lora") is not None})


def _tell_admissions(
    scheduler: Any, output: Any, running: set[str], rows: dict[int, dict[str, Any]], step: int
) -> None:
    """Who is in this step and was not running: for the first time, or again."""
    for name, tokens in output.num_scheduled_tokens.items():
        preempted = rows[int(name)]["preemptions"]
        row = rows[int(name)]
        if name not in running or len(row["all_admission_cached_tokens"]) <= preempted - 1:
            cached = scheduler.requests[name].num_computed_tokens - tokens
            row["all_admission_cached_tokens"].append(cached)
            if row["admit_step"] is None:
                row["admit_step"], row["first_admission_cached_tokens"] = step, cached


def _samples(scheduler: Any, output: Any) -> set[str]:
    """Whose scheduled tokens reach the last one known: they sample."""
    return {name for name in output.num_scheduled_tokens if not scheduler.requests[name].is_prefill_chunk}


def _update(
    scheduler: Any,
    step: int,
    output: Any,
    sampled: set[str],
    rows: dict[int, dict[str, Any]],
    hashes: dict,
    requests: dict[int, dict[str, Any]],
) -> None:
    """The step's tokens are known: the engine takes them, and lets go of who has finished."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    if not names:
        return
    before = {name: scheduler.requests.get(name) for name in names}
    held = {name: request.num_output_tokens for name, request in before.items() if request is not None}
    tokens = [
        _given(name, held[name], output, requests[int(name)]) if name in sampled and name in held else []
        for name in names
    ]
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
        ),
    )
    for name, request in before.items():
        if request is None:
            continue
        row = rows[int(name)]
        if request.num_output_tokens > held[name]:
            row["output_tokens"] = request.num_output_tokens
            if row["first_token_step"] is None:
                row["first_token_step"] = step
            if request.is_finished():
                row["finish_step"] = step
        for place, value in enumerate(request.block_hashes):
            hashes.setdefault(value, [int(name), place])


def _given(name: str, held: int, output: Any, request: dict[str, Any]) -> list[int]:
    """What a request's sampling gives: its next token, and those of its draft that are accepted. Of one that has just
    been admitted the rows behind its last token are no draft."""
    admitted = {one.req_id for one in output.scheduled_new_reqs} | set(output.scheduled_cached_reqs.resumed_req_ids)
    drafted = 0 if name in admitted else len(output.scheduled_spec_decode_tokens.get(name, ()))
    accepted = min(request["accepted"][held], drafted) if drafted else 0
    first = OUTPUTS + int(name) * SEGMENT + held
    return list(range(first, first + 1 + accepted))


def _draft(scheduler: Any, tokens: int) -> None:
    """Drafts for the next step of everybody that decodes."""
    from vllm.v1.outputs import DraftTokenIds

    decodes = [r.request_id for r in scheduler.running if not r.is_prefill_chunk]
    scheduler.update_draft_token_ids(DraftTokenIds(decodes, [[0] * tokens for _ in decodes]))


def _count_stats(scheduler: Any, stats: dict[str, int]) -> None:
    """vLLM's own counts of look-ups and hits."""
    told = scheduler.kv_cache_manager.make_prefix_cache_stats()
    if told is not None:
        for key in stats:
            stats[key] += getattr(told, key)


def _expected(
    rows: dict[int, dict[str, Any]],
    steps: list[list[Any]],
    stats: dict[str, int],
    recorder: Recorder,
    hashes: dict[Any, list[int]],
    case: dict[str, Any],
) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

    queue = recorder.pool.free_block_queue.get_all_free_blocks()
    several = len(case["config"].get("kv_cache_groups") or ()) > 1
    hash_size = case["config"].get("hash_block_size") or case["config"]["block_size"]
    named: list[list[int] | None] = []
    for block in queue:
        if block.block_hash is None:
            named.append(None)
            continue
        request, place = hashes[get_block_hash(block.block_hash)]
        group = [(place + 1) * hash_size, get_group_id(block.block_hash)]
        named.append([request, *group] if several else [request, place])
    cached = [tuple(name) for name in named if name is not None]
    summary = {
        "finished": sum(row["finish_step"] is not None for row in rows.values()),
        "n": len(rows),
        "steps": len(steps),
        "total_scheduled_tokens": sum(tokens for row in steps for _, tokens in row[1]),
        "evicted_blocks": recorder.evicted,
        "allocated_blocks": recorder.allocated,
        "final_cached_blocks": len(cached),
        "final_unique_cached_hashes": len(set(cached)),
        "final_free_blocks": recorder.pool.get_num_free_blocks(),
        "preemptions": sum(row["preemptions"] for row in rows.values()),
        "stats": stats,
    }
    if len(queue) <= 2000:
        summary["final_free_queue"] = named
    return {"requests": [rows[i] for i in sorted(rows)], "steps_columns": COLUMNS, "steps": steps, "summary": summary}


def differences(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    """What two recordings of one case have different, in words."""
    lines = []
    for a, b in zip(got["steps"], want["steps"], strict=False):
        if a != b:
            lines.append(f"step {b[0]}: expected {b}, got {a}")
            break
    if len(got["steps"]) != len(want["steps"]):
        lines.append(f"{len(got['steps'])} steps, expected {len(want['steps'])}")
    for a, b in zip(got["requests"], want["requests"], strict=True):
        wrong = [key for key in b if key in a and a[key] != b[key]]
        if wrong:
            lines.append(f"request {b['id']}: " + ", ".join(f"{key} expected {b[key]}, got {a[key]}" for key in wrong))
            break
    for key, value in want["summary"].items():
        mine = got["summary"].get(key, value)
        if key != "final_free_queue" and mine != value:
            lines.append(f"{key} expected {value}, got {mine}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
