"""From the [workload] section to a Workload: read or build it, then cut, sample, speed up and link it.

The one idea: every step is a function Workload -> Workload that says in a note what it did.

    >>> load(WorkloadConfig(trace="${KVCAST_DATA}/traces/mooncake/conversation_trace.jsonl"), seed=0, base_dir=Path("."))
"""  # noqa: E501

from __future__ import annotations

import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from workloads.clock import check_clock
from workloads.columns import Workload
from workloads.config import POOLED, WorkloadConfig
from workloads.dists import stream
from workloads.errors import InputError, unprintable
from workloads.limits import check_values
from workloads.readers import FORMATS, options_of, read
from workloads.readers import sniff as sniff_format
from workloads.transform import (
    in_turns_for_users,
    is_untimed,
    jittered,
    kept,
    open_loop,
    sample_sessions,
    scaled,
    tick_s,
    time_slice,
    with_concurrency,
    with_turnaround,
)

OF_TEXT = ("tokenizer", "chars_per_token", "message_tokens", "first_turn_only", "answer_tokens")
"""Keys of traces that hold what was said."""


def load(config: WorkloadConfig, seed: int = 0, base_dir: str | Path = ".", untimed: bool = False) -> Workload:
    """The workload that `config` describes; trace paths are relative to `base_dir`, the scenario's folder. untimed:
    whether a trace without times may stay so (arrival_s NaN), as for whoever only counts what is in it."""
    workload = replace(_loaded(config, seed, base_dir), paced=config.paced)
    if not untimed and workload.concurrency is None and is_untimed(workload):
        raise InputError(
            f"[workload] trace: {Path(config.trace or '').name} holds no times, expected when its requests arrive:"
            ' loop = "concurrency" with concurrency = N, or rate = requests per second'
        )
    return with_turnaround(workload, config.turnaround_s) if config.turnaround_s else workload


def _loaded(config: WorkloadConfig, seed: int, base_dir: str | Path) -> Workload:
    if config.trace is None:
        from workloads import mix

        return mix.build(config, seed)
    if config.preset is not None or config.class_:
        raise InputError("[workload]: trace is set together with preset or class, expected exactly one of them")
    _check(config)
    workload = _timed(_read(config, base_dir, seed), config, seed)
    _check_names(workload)
    return check_clock(shaped(workload, config, seed))


def _check_names(workload: Workload) -> None:
    """Names are printed: one with a line break or a terminal's command in it is refused."""
    for what, names in (
        ("class", workload.class_names),
        ("tenant", workload.tenant_names),
        ("layer", workload.layer_names),
    ):
        if wrong := unprintable("".join(names)):
            name = next(name for name in names if wrong in name)
            raise InputError(
                f"[workload] trace: the {what} name {name[:80]!r}, expected text without control characters, not"
                f" {wrong!r}"
            )
    if POOLED in workload.class_names:
        raise InputError(
            f"[workload] trace: a class named {POOLED!r}, expected another name: it is what verdicts call all classes"
            " together"
        )


def trace_path(text: str, base_dir: str | Path) -> Path:
    """Where a trace is: `file_path` of it."""
    return file_path(text, base_dir, "trace")


def file_path(text: str, base_dir: str | Path, key: str) -> Path:
    """`text`, the value of `key`, with ${VARIABLES} and ~ expanded, relative to `base_dir`; within the current folder
    as it is typed there."""
    for name in re.findall(r"\$\{(\w+)\}|\$(\w+)", text):
        variable = name[0] or name[1]
        if variable not in os.environ:
            raise InputError(
                f"[workload] {key} = {text!r}: the environment variable {variable} is not set, expected the folder it"
                " stands for"
            )
    try:
        path = Path(base_dir) / Path(os.path.expandvars(text)).expanduser()
    except RuntimeError as problem:  # ~name of nobody
        raise InputError(f"[workload] {key} = {text!r}: {problem}, expected a path") from None
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def _check(config: WorkloadConfig) -> None:
    """Refuse values that no trace can be shaped by."""
    check_values(config, "[workload]")
    if config.columns is not None:
        check_values(config.columns, "[workload.columns]")
    bad = [
        (
            config.end_s is not None and config.end_s <= config.start_s,
            "end_s",
            config.end_s,
            f"a time after start_s = {config.start_s:g}",
        ),
        (config.demand is not None, "demand", "a table", "a mix with it: a trace has its own times"),
        (config.skip_ended_s > 0, "skip_ended_s", config.skip_ended_s, "a mix with it"),
        (
            config.loop == "concurrency" and config.concurrency is None,
            "concurrency",
            None,
            "a number of sessions for loop = concurrency",
        ),
        (
            config.loop != "concurrency" and config.concurrency is not None,
            "concurrency",
            config.concurrency,
            "loop = concurrency with it",
        ),
        (
            config.loop == "sessions" and config.think == "original",
            "think",
            config.think,
            "think-only or scaled for loop = sessions",
        ),
        (
            config.users is not None and (config.loop in ("open", "concurrency") or config.think == "original"),
            "users",
            config.users,
            "loop = sessions and think-only or scaled think times: users run sessions one after another",
        ),
        (config.duration_s is not None, "duration_s", config.duration_s, "end_s for a trace"),
    ]
    for wrong, name, value, expected in bad:
        if wrong:
            raise InputError(f"[workload] {name} = {value!r}, expected {expected}")


def _read(config: WorkloadConfig, base_dir: str | Path, seed: int) -> Workload:
    """Read the trace; options of one format only are passed to that format."""
    path = trace_path(config.trace or "", base_dir)
    if config.format is not None:
        name, reason = config.format, ""
    elif config.columns is not None:
        name, reason = "table", "[workload.columns] says what its columns are"
    else:
        name, reason = sniff_format(path)
    options = _options(config, name, seed, base_dir)
    if name == "weka":
        think = "original" if config.loop == "open" else config.think
        workload = read(path, name, think=think, think_scale=config.think_scale, share_tools=config.share_tools)
    else:
        workload = read(path, name, **options)
        if config.think == "scaled" and workload.delay_s is not None:
            workload = replace(workload, delay_s=workload.delay_s * config.think_scale).with_notes(
                f"think times x {config.think_scale:g}"
            )
    if config.rate is not None and "rate" not in options_of(name) and not is_untimed(workload):
        raise InputError(f"[workload] rate = {config.rate!r}, expected rate_scale for a trace that has times")
    if reason:
        workload = replace(workload, notes=(f"format: {name} because {reason}", *workload.notes[1:]))
    return workload


def _options(config: WorkloadConfig, format: str, seed: int, base_dir: str | Path) -> dict[str, Any]:
    """What the section says beyond shaping, for the formats that take it."""
    known = options_of(format) if format in FORMATS else []
    for key, instead in (
        ("folder", "none: only ServeGen archives have folders of clients"),
        ("columns", f"none: the format {format} knows its columns; format = 'table' reads any"),
        (
            "block_tokens",
            "none: only a trace whose rows have block ids of one size takes it (mooncake, bailian, table)",
        ),
        ("turns", "none: only Mooncake rows are written both ways"),
        ("timestamp_unit", f"none: the format {format} has times of one unit only"),
        ("share_tools", "a weka trace or the logs of an agent with it, not the format " + format),
        *((name, f"conversations with text, not the format {format}") for name in OF_TEXT),
    ):
        if getattr(config, key) != getattr(WorkloadConfig, key) and key not in known:
            raise InputError(f"[workload] {key} = {getattr(config, key)!r}, expected {instead}")
    named = config.columns
    given = {
        "columns": {f.name.rstrip("_"): getattr(named, f.name) for f in fields(named)} if named else None,
        "timestamp_unit": config.timestamp_unit or "",
        "rate": config.rate,
        "folder": config.folder,
        "block_tokens": config.block_tokens,
        "turns": config.turns,
        "start_s": config.start_s,
        "end_s": config.end_s,
        "seed": seed,
        "share_tools": config.share_tools,
        **{name: getattr(config, name) for name in OF_TEXT},
    }
    if config.tokenizer is not None:
        given["tokenizer"] = file_path(config.tokenizer, base_dir, "tokenizer")
    given["requests"] = config.requests if config.sample == 1 else None  # a sample is taken first
    return {name: value for name, value in given.items() if name in known}


def _timed(workload: Workload, config: WorkloadConfig, seed: int) -> Workload:
    """A trace without times: its sessions (or requests) arrive at `rate`, or are dealt to `users`; others as they
    are."""
    if not is_untimed(workload):
        return workload
    if config.start_s or config.end_s is not None:
        raise InputError("[workload] start_s, end_s: expected none of them, since the trace has no times")
    workload = _turns_in_turn(workload)
    heads = np.flatnonzero(workload.column("after") < 0)
    arrival_s = workload.arrival_s.copy()
    if config.rate is not None:
        arrival_s[heads] = np.cumsum(stream(seed, "trace", "arrivals").standard_exponential(len(heads))) / config.rate
        what = "requests" if len(heads) == len(workload) else "sessions"
        return replace(workload, arrival_s=arrival_s).with_notes(
            f"rate: {what} arrive as a Poisson process, {config.rate:g} a second, seed {seed}, in file order"
        )
    if config.users is not None:
        arrival_s[heads] = 0.0
    return replace(workload, arrival_s=arrival_s)


def _turns_in_turn(workload: Workload) -> Workload:
    """Requests of one session without times follow one another: all at once they would be turns nobody took."""
    if workload.session_id is None:
        return workload
    after, first = workload.column("after").copy(), workload.column("after") < 0
    order = np.argsort(workload.session_id, kind="stable")
    same = np.diff(workload.session_id[order]) == 0
    before = np.full(len(workload), -1, np.int64)
    before[order[1:][same]] = order[:-1][same]
    linked = first & (before >= 0)
    if not linked.any():
        return workload
    after[linked] = before[linked]
    place, turn = np.arange(len(order)), np.zeros(len(workload), np.int32)
    turn[order] = place - np.maximum.accumulate(np.where(np.append(True, ~same), place, 0))
    return replace(workload, after=after, delay_s=workload.column("delay_s"), turn=turn).with_notes(
        f"sessions: {int(linked.sum())} requests follow the answer before them in their session at once, since neither"
        " times nor delays are known"
    )


def shaped(workload: Workload, config: WorkloadConfig, seed: int) -> Workload:
    """Apply the section's slice, sample, limit, jitter, scale and loop, in this order.

    As recorded, a trace replays to the tick. At another rate its ticks are spread first: a burst of them all would be
    an artefact."""
    spread = config.rate_scale != 1 and not is_untimed(workload)
    quantum_s = config.jitter_s or (tick_s(workload) if spread else 0.0)  # the tick of the whole recording
    if config.start_s or config.end_s is not None:
        workload = time_slice(workload, config.start_s, config.end_s)
    if config.sample < 1:
        workload = sample_sessions(workload, config.sample, seed)
    if config.requests is not None and config.requests < len(workload):
        workload = kept(workload, np.arange(len(workload)) < config.requests, f"first {config.requests} requests")
    if quantum_s:
        workload = jittered(workload, quantum_s, seed)
    if quantum_s and not config.jitter_s:
        workload = workload.with_notes(
            f"rate_scale: recorded in ticks of {quantum_s:g} s, so arrivals were spread over them first (jitter_s sets"
            " another span)"
        )
    if config.rate_scale != 1:
        workload = scaled(workload, config.rate_scale)
    if config.loop == "sessions" and workload.after is None:
        raise InputError(
            "[workload] loop = 'sessions', expected a trace whose requests follow one another (this one has arrival"
            " times only)"
        )
    if config.loop == "open":
        workload = open_loop(workload)
    if config.users is not None:
        workload = in_turns_for_users(workload, config.users)
    if config.concurrency is not None:
        workload = with_concurrency(workload, config.concurrency)
    return workload
