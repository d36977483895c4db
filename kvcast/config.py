"""Scenario files: TOML in, one frozen Scenario out, and back.

The one idea: `sim.scenario` and `workloads.config` define every key once; pydantic checks types and unknown keys against
those classes, `LIMITS` and `CHOICES` below check values, and whatever is wrong becomes one line that names the file,
section, key, value and what was expected.

    >>> from kvcast.config import load_scenario, dumps
    >>> print(dumps(load_scenario("examples/demo.toml", ["cache.policy=lfu"])))
"""
from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

from sim.scenario import EngineConfig, Scenario
from workloads.config import WorkloadConfig
from workloads.errors import InputError

Limit = tuple[Callable[[Any], bool], str]
POSITIVE: Limit = (lambda v: v > 0, "above 0")
NOT_NEGATIVE: Limit = (lambda v: v >= 0, "0 or more")
COUNT: Limit = (lambda v: v >= 1, "1 or more")
SHARE: Limit = (lambda v: 0 < v <= 1, "above 0 and at most 1")

LIMITS: dict[str, Limit] = {
    "seed": NOT_NEGATIVE,
    "run.warmup_s": NOT_NEGATIVE,
    "run.duration_s": POSITIVE,
    "run.horizon_s": POSITIVE,
    "workload.rate": POSITIVE,
    "workload.duration_s": POSITIVE,
    "workload.requests": COUNT,
    "workload.rate_scale": POSITIVE,
    "workload.start_s": NOT_NEGATIVE,
    "workload.end_s": POSITIVE,
    "workload.sample": SHARE,
    "workload.jitter_s": NOT_NEGATIVE,
    "workload.concurrency": COUNT,
    "workload.users": COUNT,
    "workload.think_scale": NOT_NEGATIVE,
    "hardware.tensor_parallel": COUNT,
    "engine.block_size": COUNT,
    "engine.kv_blocks": COUNT,
    "engine.gpu_memory_utilization": SHARE,
    "engine.max_model_len": COUNT,
    "engine.max_num_seqs": COUNT,
    "engine.max_num_batched_tokens": COUNT,
    "engine.long_prefill_token_threshold": NOT_NEGATIVE,
    "engine.watermark": (lambda v: 0 <= v < 1, "0 or more and below 1"),
    "engine.max_loras": NOT_NEGATIVE,
    "engine.chunked_prefill_size": NOT_NEGATIVE,
    "engine.max_prefill_tokens": COUNT,
    "engine.schedule_conservativeness": NOT_NEGATIVE,
    "engine.step_overhead_ms": NOT_NEGATIVE,
    "engine.frontend_ms": NOT_NEGATIVE,
    "cluster.replicas": COUNT,
    "slo.ttft_s": POSITIVE,
    "slo.tpot_s": POSITIVE,
    "slo.e2e_s": POSITIVE,
    "slo.attainment": SHARE,
    "cost.gpu_hour_usd": NOT_NEGATIVE,
}
CHOICES: dict[str, tuple[str, ...]] = {
    "engine.semantics": ("vllm", "sglang"),
    "engine.schedule_policy": ("fcfs", "lpm", "lof", "dfs-weight"),
    "engine.retraction_policy": ("length", "priority"),
    "engine.scheduler_policy": ("fcfs", "priority"),
    "model.dtype": ("bf16", "fp16", "fp8", "fp32"),
    "model.kv_dtype": ("bf16", "fp16", "fp8", "fp32"),
    "workload.loop": ("auto", "open", "sessions", "concurrency"),
    "workload.think": ("think-only", "original", "scaled"),
}
ONLY: dict[str, tuple[str, ...]] = {
    "vllm": ("max_num_batched_tokens", "long_prefill_token_threshold", "scheduler_policy", "watermark", "reserve_full_isl", "max_loras"),
    "sglang": (
        "chunked_prefill_size", "max_prefill_tokens", "schedule_policy", "schedule_conservativeness", "priority_scheduling", "retraction_policy",
    ),
}  # fmt: skip
"""Keys of [engine] that one engine has and the other does not read."""
FILE_KEYS = ("workload.trace", "workload.preset", "model.config", "hardware.profile")
"""Keys that may name a file."""


def load_scenario(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """The scenario in a TOML file, with `--set`-style overrides ("cache.policy=lfu") applied."""
    return scenario_from_doc(load_doc(path, overrides), str(path))


def load_doc(path: str | Path, overrides: Iterable[str] = ()) -> dict:
    """The tables of a scenario file with overrides applied and paths made absolute: the file's paths are taken from its
    own folder, an override's from the current one."""
    doc = _absolute_paths(read_toml(path), Path(path).parent)
    return _absolute_paths(apply_overrides(doc, overrides), Path.cwd())


def read_toml(path: str | Path) -> dict:
    """The tables of a scenario file. Raises InputError when it is not one."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'cannot be read').lower()}; expected a scenario file (TOML)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def _absolute_paths(doc: dict, base: Path) -> dict:
    """The same tables, with each name of an existing file (it has a / or a suffix) made absolute."""
    for key in FILE_KEYS:
        section, name = key.split(".")
        value = doc[section].get(name) if isinstance(doc.get(section), dict) else None
        if isinstance(value, str) and ("/" in value or "." in value) and (base / value).exists():
            doc[section][name] = str((base / value).resolve())
    return doc


def scenario_from_doc(doc: dict, source: str = "scenario") -> Scenario:
    """A checked Scenario from TOML tables; `source` is the file named in messages."""
    scenario = _validate(doc, source)
    check(scenario, source)
    return scenario


def check(scenario: Scenario, source: str = "scenario") -> None:
    """Raise InputError for the first value that makes no sense; types are the caller's to get right."""
    for problem in _value_problems(scenario):
        raise InputError(f"{source}: {problem}")


# -- overrides ---------------------------------------------------------------------------------------------------------


def apply_overrides(doc: dict, overrides: Iterable[str]) -> dict:
    """A copy of the tables with every "a.b=value" applied; "a.b=" removes the key.

    The value is a TOML literal; what is none is taken as a bare string (cache.policy=lfu). An entry of a list of tables
    is addressed by its name or position: workload.class.chat.rate=2.
    """
    doc = deepcopy(doc)
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise InputError(f"--set {text}: expected section.key=value, such as cache.policy=lfu")
        _assign(doc, key.strip(), value.strip(), text)
    return doc


def literal(text: str) -> Any:
    """A TOML value, or the text itself when it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _assign(doc: dict, key: str, value: str, text: str) -> None:
    *parents, last = key.split(".")
    table: Any = doc
    for name in parents:
        table = _entry(table, name, text) if isinstance(table, list) else table.setdefault(name, {})
        if not isinstance(table, dict | list):
            raise InputError(f"--set {text}: {name} is a value, not a section")
    if isinstance(table, list):
        raise InputError(f"--set {text}: expected the name of an entry and one of its keys after {parents[-1]}")
    if value:
        table[last] = literal(value)
    else:
        table.pop(last, None)


def _entry(tables: list, name: str, text: str) -> dict:
    """The entry of a list of tables with this name or position."""
    for index, entry in enumerate(tables):
        if isinstance(entry, dict) and (entry.get("name") == name or str(index) == name):
            return entry
    names = [str(entry.get("name", i)) for i, entry in enumerate(tables) if isinstance(entry, dict)]
    raise InputError(f"--set {text}: no entry {name!r}{hint(name, names)}")


# -- checks ------------------------------------------------------------------------------------------------------------


def hint(name: str, known: Iterable[str], what: str = "known") -> str:
    """ " (did you mean lru?)", or the list of what is known."""
    known = list(known)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else f" ({what}: {', '.join(sorted(known))})"


def _validate(doc: dict, source: str) -> Scenario:
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # slow to import: only when a file is read

    if isinstance(doc.get("workload"), dict):
        workload = doc["workload"]
        if "class_" in workload:
            raise InputError(f"{source}: [workload] has no key 'class_' (did you mean class?)")
        doc = {**doc, "workload": {("class_" if k == "class" else k): v for k, v in workload.items()}}
    # The tuple is there because pydantic takes a config for what is around a standard dataclass, not for the class itself.
    adapter = TypeAdapter(tuple[Scenario], config=ConfigDict(extra="forbid", strict=True))
    try:
        return adapter.validate_json(json.dumps([doc], default=str))[0]
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problems.sort(key=lambda p: p["type"] != "unexpected_keyword_argument")  # a misspelt key explains a missing one
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"{source}: {_explain(problems[0], doc)}{more}") from None


def _explain(problem: Any, doc: dict) -> str:
    """One line for one pydantic error."""
    *parents, key = problem["loc"][1:]
    section = _section(parents, doc)
    if problem["type"] == "unexpected_keyword_argument":
        keys = [f.name.rstrip("_") for f in fields(_class_at(parents))]
        return f"{section or 'the file'} has no key {key!r}{hint(str(key), keys, 'it has')}"
    where = f"{section} {key}".strip()
    if problem["type"] == "missing":
        return f"{where} is missing"
    expected = problem["msg"].removeprefix("Input should be ").replace("an object", "a table").replace("a valid integer", "an integer").replace("valid ", "")
    return f"{where} = {json.dumps(problem['input'], default=str)[:80]}: expected {expected}"


def _section(location: Sequence[Any], doc: Any) -> str:
    """[workload.class.chat] for ("workload", "class_", 0); entries of a list go by their names where they have one."""
    names = []
    for part in location:
        doc = doc[part]
        named = isinstance(part, int) and isinstance(doc, dict) and doc.get("name")
        names.append(str(named or part).rstrip("_"))
    return f"[{'.'.join(names)}]" if names else ""


def _class_at(location: Sequence[Any]) -> type:
    """The dataclass that the tables at this place are checked against."""
    current: Any = Scenario
    for part in location:
        hints = get_type_hints(current)
        if part in hints:  # otherwise a position in a list or a name in a dict of tables of the same class
            current = _inner_class(hints[part])
    return current


def _inner_class(hint: Any) -> type:
    """The one dataclass in X, X | None, tuple[X, ...] or dict[str, X]."""
    return hint if isinstance(hint, type) and is_dataclass(hint) else next(_inner_class(a) for a in get_args(hint) if is_dataclass(a) or get_args(a))


def _value_problems(scenario: Scenario) -> Iterator[str]:
    for key, value in _leaves(scenario):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{_name(key)} = {value}: expected a finite number"
        elif value is not None and key in LIMITS and not LIMITS[key][0](value):
            yield f"{_name(key)} = {value}: expected {LIMITS[key][1]}"
        elif value is not None and key in CHOICES and value not in CHOICES[key]:
            yield f"{_name(key)} = {value!r}: expected {' or '.join(CHOICES[key])}{_did_you_mean(value, CHOICES[key])}"
    for name, limits in scenario.slo.classes.items():
        for f in fields(limits):
            value = getattr(limits, f.name)
            if value is not None and not value > 0:
                yield f"[slo.classes.{name}] {f.name} = {value}: expected above 0"
    if scenario.run.duration_s is not None and scenario.run.duration_s <= scenario.run.warmup_s:
        yield f"[run] duration_s = {scenario.run.duration_s}: expected a time after warmup_s = {scenario.run.warmup_s}"
    yield from _workload_problems(scenario.workload)
    yield from _name_problems(scenario)


def _did_you_mean(value: str, known: Sequence[str]) -> str:
    close = get_close_matches(value, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _workload_problems(workload: WorkloadConfig) -> Iterator[str]:
    given = [name for name, value in (("preset", workload.preset), ("trace", workload.trace), ("class", workload.class_)) if value]
    if len(given) != 1:
        yield f"[workload] has {' and '.join(given) or 'none of preset, trace and class'}: expected exactly one of preset, trace and class"
    if workload.loop == "concurrency" and workload.concurrency is None:
        yield "[workload] concurrency is missing: expected a number of sessions, since loop = \"concurrency\""
    if workload.end_s is not None and workload.end_s <= workload.start_s:
        yield f"[workload] end_s = {workload.end_s}: expected a time after start_s = {workload.start_s}"


def _name_problems(scenario: Scenario) -> Iterator[str]:
    from sim.router import ROUTERS

    router, known = scenario.cluster.router, tuple(ROUTERS)
    if router not in known:
        yield f"[cluster] router = {router!r}: expected one of {', '.join(known)}{_did_you_mean(router, known)}"
    yield from _semantics_problems(scenario.engine)
    yield from _policy_problems(scenario)


def _semantics_problems(engine: EngineConfig) -> Iterator[str]:
    """Keys that the chosen engine would not read: a value without effect would be a wrong answer."""
    other = "vllm" if engine.semantics == "sglang" else "sglang"
    for key in ONLY[other]:
        value, default = getattr(engine, key), getattr(EngineConfig, key)
        if value != default:
            yield f"[engine] {key} = {value!r}: only semantics = {other!r} has it"
    if engine.semantics == "sglang":
        chunk = engine.chunked_prefill_size
        if chunk and chunk < engine.block_size:
            yield f"[engine] chunked_prefill_size = {chunk}: expected at least block_size = {engine.block_size}, or 0"
        if engine.priority_scheduling and engine.schedule_policy not in ("fcfs", "lof"):
            yield f"[engine] priority_scheduling = true: expected schedule_policy fcfs or lof with it, not {engine.schedule_policy}"


def _policy_problems(scenario: Scenario) -> Iterator[str]:
    from sim import sglang
    from sim.kvcache.policies import check as check_policy
    from sim.simulate import POLICY_NAMES

    policy, params = scenario.cache.policy, scenario.cache.policy_params
    if scenario.engine.semantics == "sglang" and policy not in sglang.POLICIES:
        yield f"[cache] policy = {policy!r}: expected one of {', '.join(sglang.POLICIES)} with semantics = 'sglang'{_did_you_mean(policy, tuple(sglang.POLICIES))}"
    elif policy not in POLICY_NAMES and ":" not in policy:
        yield f"[cache] policy = {policy!r}: expected one of {', '.join(POLICY_NAMES)}, or module:Class for your own{_did_you_mean(policy, POLICY_NAMES)}"
    elif policy == "clairvoyant" or scenario.engine.semantics != "vllm":
        for key in params:
            yield f"[cache] policy_params has no key {key!r} for {policy} here: it has no parameters"
    else:
        try:
            check_policy(policy, params)
        except InputError as error:
            yield str(error)


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of the sections as ("engine.block_size", 16); mix classes are the workload loader's to check."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{f.name}.")
        elif not isinstance(value, dict | tuple):
            yield prefix + f.name, value


def _name(key: str) -> str:
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}" if section else name
