"""OpenAI messages: rows {"messages": [{"role", "content", "tool_calls"}, ...], "tools"}, or batch input around them.

Rows {"prompt", "completion"} of texts are conversations of one turn.

The one idea: as for ShareGPT; a row of a request without its answer (batch input) is one request, and says with
`max_tokens` how long its answer may be.

    >>> from workloads.readers import messages
    >>> workload = messages.read("chats.jsonl", chars_per_token=4.2)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads.columns import Workload
from workloads.readers.conversation import found_in, read_conversations
from workloads.readers.head import Head


def looks_like(head: Head) -> str | None:
    found = found_in(head.first)
    if found is not None and "prompt" not in head.first and _speaks(found.messages):
        return "its rows have a list of messages"
    if type(head.first.get("prompt")) is str and {"completion", "response", "output_tokens", "max_tokens"} & head.keys:
        return "its rows have prompt texts"
    if {"messages", "role", "content"} <= head.keys:
        return "its rows have messages of role and content"
    return None


def _speaks(messages: list[Any]) -> bool:
    return not messages or {"role", "content"} <= set(messages[0])


def read(
    path: str | Path,
    tokenizer: str | None = None,
    chars_per_token: float = 4.0,
    message_tokens: int = 4,
    first_turn_only: bool = False,
    answer_tokens: int | None = None,
    timestamp_unit: str = "",
) -> Workload:
    """Conversations and requests in file order. `tokenizer`: a local tokenizer.json; without it tokens are characters /
    `chars_per_token`. `message_tokens`: for the role markers of a message. `answer_tokens`: output tokens of requests
    without an answer in the file."""
    return read_conversations(
        path,
        tokenizer=tokenizer,
        chars_per_token=chars_per_token,
        message_tokens=message_tokens,
        first_turn_only=first_turn_only,
        answer_tokens=answer_tokens,
        timestamp_unit=timestamp_unit,
    )
