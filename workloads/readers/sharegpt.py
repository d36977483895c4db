"""ShareGPT JSON: rows {"id", "conversations": [{"from": "human", "value": ...}, ...]}, as an array or a line each.

The one idea: an answer is a request whose prompt is everything before it; `first_turn_only` takes the first question
and answer alone, as vLLM's benchmark does (which also leaves out the very short and the very long).

    >>> from workloads.readers import sharegpt
    >>> workload = sharegpt.read("ShareGPT_V3.json", tokenizer="tokenizer.json")
"""

from __future__ import annotations

from pathlib import Path

from workloads.columns import Workload
from workloads.readers.chat_rows import first_found
from workloads.readers.conversation import read_conversations
from workloads.readers.head import Head


def looks_like(head: Head) -> str | None:
    found = first_found(head)
    if found is None or not ("conversations" in head.keys or "from" in found.messages[0]):
        return None
    return "its rows have conversations: lists of messages"


def read(
    path: str | Path,
    tokenizer: str | None = None,
    chars_per_token: float = 4.0,
    message_tokens: int = 4,
    first_turn_only: bool = False,
    timestamp_unit: str = "",
) -> Workload:
    """Conversations in file order. `tokenizer`: a local tokenizer.json; without it tokens are characters /
    `chars_per_token`. `message_tokens`: for the role markers of a message."""
    return read_conversations(
        path,
        tokenizer=tokenizer,
        chars_per_token=chars_per_token,
        message_tokens=message_tokens,
        first_turn_only=first_turn_only,
        timestamp_unit=timestamp_unit,
    )
