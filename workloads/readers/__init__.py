"""Trace readers: `read(path)` recognises the format from the content, says why, and returns a Workload.

The one idea: a format is one small module with `looks_like(head) -> reason or None` and `read(path, **options) ->
Workload`.

    >>> from workloads.readers import read
    >>> workload = read("conversation_trace.jsonl")          # or read(path, format="mooncake")
    >>> print("\\n".join(workload.notes))
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from workloads.columns import Workload
from workloads.errors import InputError, on_one_line
from workloads.readers import (
    agent_summary,
    aiperf,
    aiperf_inputs,
    aiperf_payloads,
    azure,
    bailian,
    bench_serving,
    blis,
    burstgpt,
    claude_code,
    codex,
    dynamo,
    guidellm,
    inference_perf,
    langfuse,
    litellm,
    llmservingsim,
    mapped,
    messages,
    mooncake,
    openai_batch,
    otel,
    servegen,
    sharegpt,
    splitwise,
    token_ids,
    tracelab,
    vidur,
    weka,
)
from workloads.readers.head import Head
from workloads.readers.refusal import refusal


class Format(Protocol):
    """What a reader is: a module, or an object as `calls.CallLog`."""

    @property
    def looks_like(self) -> Callable[[Head], str | None]: ...

    @property
    def read(self) -> Callable[..., Workload]: ...


FORMATS: dict[str, Format] = {
    "mooncake": mooncake,
    "bailian": bailian,
    "dynamo": dynamo,
    "agent-summary": agent_summary,
    "servegen": servegen,
    "claude-code": claude_code,
    "codex": codex,
    "weka": weka,
    "tracelab": tracelab,
    "azure": azure,
    "burstgpt": burstgpt,
    "vidur": vidur,
    "splitwise": splitwise,
    "llmservingsim": llmservingsim,
    "token-ids": token_ids,
    "vllm-bench": bench_serving.VLLM,
    "sglang-bench": bench_serving.SGLANG,
    "guidellm": guidellm,
    "aiperf": aiperf,
    "aiperf-inputs": aiperf_inputs,
    "aiperf-payloads": aiperf_payloads,
    "inference-perf": inference_perf,
    "blis": blis,
    "litellm": litellm,
    "langfuse": langfuse,
    "otel": otel,
    "sharegpt": sharegpt,
    "messages": messages,
    "openai-batch": openai_batch,
    "table": mapped,
}
"""Format name -> its module; the order is the order in which sniffing asks."""


def read(path: str | Path, format: str | None = None, **options: Any) -> Workload:
    """Read a trace. Without `format` it is recognised from the content; the first note says which and why."""
    if format is None and options.get("columns"):
        format, reason = "table", "columns were named"
    elif format is None:
        format, reason = sniff(path)
    elif format in FORMATS:
        reason = "it was asked for"
    else:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        raise InputError(
            f"{path}: format {format!r} is unknown, expected {_names()}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    reader = FORMATS[format].read
    known = options_of(format)
    for name in options:
        if name not in known:
            raise InputError(
                f"{path}: option {name!r} does not exist for format {format}, expected {', '.join(known) or 'none'}"
            )
    workload = reader(path, **options)
    return _with_first_note(workload, f"format: {format} because {reason}")


def options_of(format: str) -> list[str]:
    """Names of the options that a format's reader takes."""
    return list(inspect.signature(FORMATS[format].read).parameters)[1:]


def sniff(path: str | Path) -> tuple[str, str]:
    """(format, reason) from the first rows of a file; InputError when nothing fits."""
    head = Head(Path(path))
    for name, module in FORMATS.items():
        reason = module.looks_like(head)
        if reason:
            return name, reason
    if head.problem and not head.rows and not head.columns:
        raise head.problem
    raise InputError(f"{path}: {on_one_line(refusal(head))}")


def _names() -> str:
    return ", ".join(FORMATS)


def _with_first_note(workload: Workload, line: str) -> Workload:
    from dataclasses import replace

    return replace(workload, notes=(line, *workload.notes))
