"""LiteLLM's spend logs (LiteLLM_SpendLogs) as CSV or JSON: one row a call through the gateway.

The one idea: a call that no model answered is no load. Failures, calls that are no generation (embeddings, images,
speech) and those that LiteLLM's own response cache answered are skipped and counted. `metadata` is an object, or its
JSON in a text; it holds how many prompt tokens the provider took from its cache. Times are dates; models are classes.

From the documentation and the table's schema; the shared case is a CSV of five calls.

    >>> from workloads.readers import litellm
    >>> workload = litellm.read("spend_logs.csv")
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from workloads.readers.calls import FAILED, Call, CallLog, Record, Timing, between, entries, first, names_in
from workloads.readers.common import Rows
from workloads.readers.head import Head

NAMES = ("startTime", "prompt_tokens", "completion_tokens")
OTHERS = {"spend", "call_type", "api_key", "request_id", "cache_hit", "model_group"}
"""Fields of which a spend log has some, beside its times and counts."""
NO_GENERATION = re.compile("embedding|rerank|transcription|speech|image|moderation|ocr|search|mcp")
CACHED = (
    "metadata.usage_object.prompt_tokens_details.cached_tokens",
    "metadata.usage_object.cache_read_input_tokens",
    "metadata.additional_usage_values.cache_read_input_tokens",
    "metadata.additional_usage_values.prompt_tokens_details.cached_tokens",
)
"""Where `metadata` says what the provider took from its cache."""


def _recognised(head: Head) -> str | None:
    names = names_in(head, "data")
    if set(NAMES) <= names and len(OTHERS & names) > 1:
        return f"its rows have {', '.join((*NAMES, *sorted(OTHERS & names)[:2]))}"
    return None


def _records(rows: Rows) -> Iterator[Record]:
    return entries(rows, "data")


def _call(record: Record) -> Call | str:
    has_more = record.get("metadata") not in (None, {}, "", "{}")
    status = record.get("status") or (first(record, "metadata.status") if has_more else "")
    if str(status or "").lower() in ("failure", "failed", "error"):
        return FAILED
    if NO_GENERATION.search(str(record.get("call_type") or "")):
        return "its call_type is no generation"
    if str(record.get("cache_hit")).lower() in ("true", "1", "t"):
        return "LiteLLM's own cache answered it, and no model"
    return Call(
        record.get("prompt_tokens"),
        record.get("completion_tokens"),
        record.get("startTime"),
        group=first(record, "model_group", "model"),
        session=record.get("session_id"),
        cached=first(record, *CACHED) if has_more else None,
    )


def _timing(record: Record) -> Timing:
    """Without streaming, LiteLLM writes the end as the time of the first token: that is no TTFT."""
    start, streamed, end = (record.get(name) for name in ("startTime", "completionStartTime", "endTime"))
    return Timing(between(start, streamed) if streamed != end else None, between(start, end))


LOG = CallLog(
    names=Call("prompt_tokens", "completion_tokens", "startTime", session="session_id"),
    recognised=_recognised,
    records=_records,
    call=_call,
    timing=_timing,
)
looks_like, read = LOG.looks_like, LOG.read
