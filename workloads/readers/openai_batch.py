"""The output of a batch of OpenAI or Anthropic (JSON lines): `custom_id`, and a response with the usage of the request.

The one idea: a batch has no arrivals. `created` in a body is when the answer was made, which says how fast the
provider was and not when a request came, so the requests run at a fixed concurrency or at a rate. The input of a
batch is read as conversations are (`messages`); one without messages has nothing to read.

From OpenAI's documentation (bodies of chat completions: `prompt_tokens`, and of responses: `input_tokens`) and
Anthropic's (`result.message.usage`, whose `input_tokens` are those that were not cached).

    >>> from workloads.readers import openai_batch
    >>> workload = openai_batch.read("batch_6789_output.jsonl")
"""

from __future__ import annotations

from collections.abc import Iterator

from workloads.readers.calls import FAILED, Call, CallLog, NoRequestsError, Record, first
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.paths import at
from workloads.readers.values import number

BODY = "response.body"


def _recognised(head: Head) -> str | None:
    if "custom_id" not in head.keys:
        return None
    for name in ("response", "result"):
        if name in head.keys:
            return f"its rows have custom_id and {name}"
    return "its rows have custom_id without a response" if {"body", "params"} & head.keys else None


def _records(rows: Rows) -> Iterator[Record]:
    for record in rows.records():
        if not {"response", "result", "error"} & set(record):
            raise NoRequestsError(
                f"{rows.path}: the input of a batch: texts without token counts, which are no trace; the"
                " batch's output file has the usage of every request"
            )
        yield record


def _call(record: Record) -> Call | str:
    if "result" in record:
        return _message(record)
    status = at(record, "response.status_code")
    if record.get("error") or (status is not None and status != 200):
        return FAILED
    return Call(
        first(record, f"{BODY}.usage.prompt_tokens", f"{BODY}.usage.input_tokens"),
        first(record, f"{BODY}.usage.completion_tokens", f"{BODY}.usage.output_tokens"),
        group=at(record, f"{BODY}.model"),
        cached=first(
            record,
            f"{BODY}.usage.prompt_tokens_details.cached_tokens",
            f"{BODY}.usage.input_tokens_details.cached_tokens",
        ),
    )


def _message(record: Record) -> Call | str:
    """Anthropic's."""
    if at(record, "result.type") != "succeeded":
        return FAILED
    usage = at(record, "result.message.usage")
    usage = {name: number(value) for name, value in usage.items()} if type(usage) is dict else {}
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    prompt = sum(usage[name] for name in parts if usage.get(name, 0) > 0)
    model, read = at(record, "result.message.model"), usage.get("cache_read_input_tokens")
    return Call(prompt, usage.get("output_tokens"), group=model, cached=read)


LOG = CallLog(
    names=Call("usage.prompt_tokens", "usage.completion_tokens", "time"),
    recognised=_recognised,
    records=_records,
    call=_call,
)
looks_like, read = LOG.looks_like, LOG.read
