"""OpenAI messages: rows {"messages": [{"role", "content", "tool_calls"}, ...], "tools"}, or batch input around them.

Rows {"prompt", "completion"} of texts are conversations of one turn.

The one idea: as for ShareGPT; a row of a request without its answer (batch input) is one request, and says with
`max_tokens` how long its answer may be.

    >>> from workloads.readers import messages
    >>> workload = messages.read("chats.jsonl", chars_per_token=4.2)
"""

from __future__ import annotations

from pathlib import Path

from workloads.columns import Workload
from workloads.readers.chat_rows import first_found
from workloads.readers.conversation import read_conversations
from workloads.readers.head import Head


def looks_like(head: Head) -> str | None:
    if first_found(head) is None:
        return None
    if any(type(row.get("prompt")) is str for row in head.rows):
        texts = head.keys & {"completion", "response", "output_tokens", "max_tokens"}
        return f"its rows have prompt and {min(texts)}" if texts else None
    return "its rows have lists of messages"


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
