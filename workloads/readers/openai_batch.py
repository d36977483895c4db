"""The output of an OpenAI batch (JSON lines): `custom_id` and `response`, whose body has the usage of the request.

The one idea: a batch has no arrivals. `created` in a body is when the answer was made, which says how fast the
provider was and not when a request came, so the requests run at a fixed concurrency or at a rate. The input of a
batch has texts and no counts: it is named and not read.

From OpenAI's documentation; bodies of chat completions (`prompt_tokens`) and of responses (`input_tokens`).

    >>> from workloads.readers import openai_batch
    >>> workload = openai_batch.read("batch_6789_output.jsonl")
"""

from __future__ import annotations

from collections.abc import Iterator

from workloads.readers.calls import FAILED, Call, CallLog, NoRequestsError, Record, at, first
from workloads.readers.common import Rows
from workloads.readers.head import Head

BODY = "response.body"


def _recognised(head: Head) -> str | None:
    if "custom_id" not in head.keys:
        return None
    if "response" in head.keys:
        return "its rows have custom_id and response"
    return "its rows have custom_id, url and body" if {"url", "body"} <= head.keys else None


def _records(rows: Rows) -> Iterator[Record]:
    for record in rows.records():
        if "response" not in record and "body" in record:
            raise NoRequestsError(
                f"{rows.path}: the input of an OpenAI batch: texts without token counts, which are no trace; the"
                " batch's output file has the usage of every request"
            )
        yield record


def _call(record: Record) -> Call | str:
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


LOG = CallLog(
    names=Call("usage.prompt_tokens", "usage.completion_tokens", "time"),
    recognised=_recognised,
    records=_records,
    call=_call,
)
looks_like, read = LOG.looks_like, LOG.read
