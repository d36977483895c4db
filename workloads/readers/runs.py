"""Rows of nested runs: a chain, an agent or a tool that counts again the tokens of the calls inside it.

The one idea: a run whose tokens are exactly those of the runs that name it as their parent is their sum, not a request.

    >>> sums_of_others(["a", "b", "c"], ["", "a", "a"], [30, 10, 20], [3, 1, 2])
    [True, False, False]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workloads.readers.values import number

OWN = ("run_id", "span_id", "context.span_id", "spanId", "call_id", "id")
PARENT = ("parent_run_id", "parent_id", "parent_span_id", "parentSpanId", "parentRunId", "parentObservationId")


def links(fields: Iterable[str]) -> tuple[str, str] | None:
    """The fields of a run's own name and of its parent's, where rows have both."""
    have = set(fields)
    own, parent = (next((name for name in names if name in have), "") for names in (OWN, PARENT))
    return (own, parent) if own and parent else None


def kind(row: Mapping[str, Any]) -> str:
    """Why a run is no call of a model, by LangSmith's `run_type`; "" for one that is, and for any other row."""
    said = row.get("run_type")
    return f"run_type = {said[:20]}" if isinstance(said, str) and said.lower() not in ("", "llm") else ""


def sums_of_others(
    own: Sequence[Any], parent: Sequence[Any], prompt: Sequence[Any], output: Sequence[Any]
) -> list[bool]:
    """Per run [n]: whether its tokens are the sums of its children's, prompt and output both."""
    inside: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, tokens, answered in zip(parent, prompt, output, strict=True):
        if isinstance(name, str | int) and name != "":
            inside[name][0] += number(tokens)
            inside[name][1] += number(answered)
    counts = zip(own, prompt, output, strict=True)
    return [
        isinstance(name, str | int) and name in inside and inside[name] == [number(tokens), number(answered)]
        for name, tokens, answered in counts
    ]
