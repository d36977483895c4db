"""aiperf's and genai-perf's inputs.json: sessions of payloads, each the request of one turn as it will be sent.

The one idea: a payload has texts and no token counts, so it is read as a chat API's request is (`messages.py`): prompts
share what they say alike. When they are sent is not in the file.

Held against a file that aiperf 0.13.0 wrote.

    >>> from workloads.readers import aiperf_inputs
    >>> workload = aiperf_inputs.read("artifacts/inputs.json", answer_tokens=128)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.columns import Workload
from workloads.readers.calls import names_in
from workloads.readers.conversation import read_conversations
from workloads.readers.head import Head
from workloads.readers.private import PrivateRows


def looks_like(head: Head) -> str | None:
    names = names_in(head, "data")
    return "its object has sessions of payloads" if {"data", "session_id", "payloads"} <= names else None


def read(
    path: str | Path,
    tokenizer: str | None = None,
    chars_per_token: float = 4.0,
    message_tokens: int = 4,
    answer_tokens: int | None = None,
) -> Workload:
    """Requests in file order, without times; the options are those of `messages.read`."""
    return read_conversations(
        path,
        tokenizer=tokenizer,
        chars_per_token=chars_per_token,
        message_tokens=message_tokens,
        answer_tokens=answer_tokens,
        timestamp_unit="",
        records=_payloads,
    )


def _payloads(rows: PrivateRows) -> Iterator[dict[str, Any]]:
    found: list[Any] = []
    for session in list(rows.each(rows.document().get("data"), "data")):
        payloads = session.get("payloads")
        if type(payloads) is not list:
            rows.fail("payloads", payloads, "a list of requests")
        found += payloads
    rows.read = 0  # the sessions were counted; the payloads are the rows
    yield from rows.each(found, "payload")
