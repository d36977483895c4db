"""OpenTelemetry spans with GenAI attributes: OTLP JSON (one object, or one a line, as a collector writes) and spans a
line.

The one idea: only an inference span is a request, and each request once. Spans of agents, tools and embeddings have
no tokens of their own; an inference span inside another one (an engine's inside its client's) is the same request.
Attributes are a list of key and value, or an object; `gen_ai.usage.input_tokens` includes what was cached. Times are
nanoseconds since 1970 (also as texts), or dates. `gen_ai.conversation.id` or the trace groups requests.

From the semantic conventions (those of today, and before 1.27: prompt_tokens, completion_tokens; OpenLLMetry's and
OpenInference's names) and the names that vLLM and SGLang give their own spans.

    >>> from workloads.readers import otel
    >>> workload = otel.read("traces.json")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from workloads.readers.calls import FAILED, Call, CallLog, Record, Timing, between, first, names_in
from workloads.readers.common import Rows
from workloads.readers.head import Head

PROMPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",
)
OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "llm.token_count.completion",
)
CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_tokens",
    "llm.token_count.prompt_details.cache_read",
)
INFERENCE = {"chat", "text_completion", "generate_content", "completion", "llm", "messages", "responses"}
"""Operations that are an inference; a span that names none is one when it has tokens."""
RESOURCES = ("resourceSpans", "resource_spans", "batches")
"""Lists of an OTLP object; Tempo answers with the last."""
START = ("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time")
END = ("endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time")
TRACE = ("traceId", "trace_id", "context.trace_id")
SPAN = ("spanId", "span_id", "context.span_id")
PARENT = ("parentSpanId", "parent_span_id", "parent_id")


def _recognised(head: Head) -> str | None:
    for name in RESOURCES[:2]:
        if name in head.keys:
            return f"its objects have {name}"
    names = names_in(head, "spans", "batches")
    if "attributes" in names and names & set(START) and names & {*TRACE, *SPAN, "context"}:
        return f"its rows have attributes, {min(names & set(START))} and {min(names & {*TRACE, *SPAN, 'context'})}"
    return None


def _records(rows: Rows) -> Iterator[Record]:
    """Spans, each with its attributes as an object and why it is no request of its own ("" for one that is)."""
    spans: list[Record] = []
    for record in rows.records():
        spans += _spans(record)
    rows.read = 0  # what was read are objects of spans; the spans are the rows
    for span in spans:
        span["attributes"] = _attributes(span.get("attributes"))
    parents = {_id(span): (_id(span)[0], str(first(span, *PARENT))) for span in spans}
    counted = {_id(span): span for span in spans if _is_inference(span) and _has_tokens(span)}
    around = {above for span in counted for above in _above(span, parents)}
    sums = {one for one, span in counted.items() if one in around and not _operation(span)}
    for span in spans:
        span["no_request"] = (
            "it is no inference span"
            if not _is_inference(span)
            else "it adds up the inference spans inside it"
            if _id(span) in sums
            else "it is inside another inference span, the same request"
            if any(above in counted and above not in sums for above in _above(_id(span), parents))
            else ""
        )
    return rows.each(spans, "span")


def _spans(record: Any) -> Iterator[Record]:
    """The spans of an OTLP object, of an object of spans, or the span itself."""
    groups = first(record, *RESOURCES)
    if groups is None:
        yield from record["spans"] if type(record.get("spans")) is list else [record]
        return
    for group in _objects(groups):
        for scope in _objects(first(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")):
            yield from _objects(scope.get("spans"))


def _objects(values: Any) -> Iterable[Record]:
    return [value for value in values if type(value) is dict] if type(values) is list else []


def _attributes(values: Any) -> Record:
    """Attributes by key; OTLP writes a list, whose values say their type."""
    if type(values) is dict:
        return values
    found: Record = {}
    for item in _objects(values):
        value = item.get("value")
        found[str(item.get("key"))] = next(iter(value.values()), None) if type(value) is dict else value
    return found


def _id(span: Record) -> tuple[str, str]:
    """(trace, span); a span without an id is like no other."""
    return str(first(span, *TRACE)), str(first(span, *SPAN) or id(span))


def _operation(span: Record) -> str:
    """What a span says it does; "" where it does not."""
    kinds = ("gen_ai.operation.name", "llm.request.type", "openinference.span.kind")
    return str(first(span["attributes"], *kinds) or "").lower()


def _is_inference(span: Record) -> bool:
    operation = _operation(span)
    return operation in INFERENCE if operation else _has_tokens(span)


def _has_tokens(span: Record) -> bool:
    return first(span["attributes"], *OUTPUT) is not None and first(span["attributes"], *PROMPT) is not None


def _above(span: Any, parents: dict[Any, Any]) -> Iterator[Any]:
    """The spans that a span lies within, from its parent up; a circle ends."""
    seen = {span}
    while (span := parents.get(span)) and span not in seen:
        yield span
        seen.add(span)


def _call(span: Record) -> Call | str:
    if span["no_request"]:
        return str(span["no_request"])
    status = first(span, "status.code", "status.status_code", "status")
    if str(status).upper().removeprefix("STATUS_CODE_") in ("2", "ERROR"):
        return FAILED
    attributes = span["attributes"]
    return Call(
        first(attributes, *PROMPT),
        first(attributes, *OUTPUT),
        first(span, *START),
        group=first(attributes, "gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
        session=first(attributes, "gen_ai.conversation.id", "session.id") or first(span, *TRACE),
        cached=first(attributes, *CACHED),
    )


def _timing(span: Record) -> Timing:
    """vLLM's and SGLang's own seconds where the span has them, else from its start to its end."""
    attributes = span["attributes"]
    e2e_s = first(attributes, "gen_ai.latency.e2e")
    return Timing(
        first(attributes, "gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk"),
        between(first(span, *START), first(span, *END), 1e9) if e2e_s is None else e2e_s,
    )


LOG = CallLog(
    names=Call(PROMPT[0], OUTPUT[0], START[0], session="gen_ai.conversation.id, or the trace,"),
    recognised=_recognised,
    records=_records,
    call=_call,
    unit="ns",
    timing=_timing,
)
looks_like, read = LOG.looks_like, LOG.read
