"""What a row of a chat API's log, of its batch input or of a data set holds: messages, an answer, counts, a failure.

The one idea: the same things lie at few places under few names; whoever reads a row asks for them here.

    >>> found_in({"body": {"messages": [{"role": "user", "content": "Hi"}]}}).messages
    [{'role': 'user', 'content': 'Hi'}]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from workloads.limits import MAX_TOKENS
from workloads.readers.head import Head
from workloads.readers.values import number

PLACES = (
    ("conversations",),
    ("conversation",),
    ("messages",),
    ("chat_messages",),
    ("items",),
    ("body", "messages"),
    ("params", "messages"),
    ("request", "messages"),
    ("request", "body", "messages"),
    ("body", "input"),
    ("request", "body", "input"),
    ("body", "prompt"),
    ("prompt",),
)
"""Where a row has its list of messages, or the text of the only one."""
SETTINGS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "custom_id",
    "temperature",
    "stream",
    "output_length",
)
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "output_tokens", "output_length")
CONVERSATION = ("conversation_id", "conversation_hash", "session_id", "thread_id", "chat_id")
ANSWERS = ("response", "completion")
COUNTS = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))


class Found(NamedTuple):
    """A row's messages, and the object that they are a field of."""

    messages: list[Any]
    around: dict[str, Any]


def found_in(record: dict[str, Any]) -> Found | None:
    """The list of messages of a row, None without one."""
    if type(record.get("mapping")) is dict:
        return Found(_branch(record["mapping"], record.get("current_node")), record)
    for path in (*PLACES, ("input",)) if "output_length" in record else PLACES:  # LMCache's agentic traces
        around: Any = record
        for name in path[:-1]:
            around = around.get(name) if type(around) is dict else None
        listed = around.get(path[-1]) if type(around) is dict else None
        if type(listed) is str and path[-1] in ("input", "prompt"):
            listed = [{"role": "user", "content": listed}]
        if type(listed) is list and all(type(entry) is dict for entry in listed):
            return Found(listed, around)
    return None


def _branch(nodes: dict[str, Any], last: Any) -> list[Any]:
    """The messages from the root of ChatGPT's tree to its current node; what was said on other branches is left out."""
    found: list[Any] = []
    seen: set[Any] = set()
    while type(last) is str and last not in seen and type(nodes.get(last)) is dict:
        seen.add(last)
        if type(nodes[last].get("message")) is dict:
            found.append(nodes[last]["message"])
        last = nodes[last].get("parent")
    return found[::-1]


def first_found(head: Head) -> Found | None:
    """The messages of the first row that has any which say who speaks; the rows where they are messages."""
    for found in map(found_in, head.rows):
        if found is not None and found.messages and {"role", "from", "author", "sender"} & set(found.messages[0]):
            return found
    spoken = head.rows and all(map(speaks, head.rows)) and not all(map(_is_response, head.rows))
    return Found(head.rows, {}) if spoken else None


def _is_response(record: dict[str, Any]) -> bool:
    """Whether a row that is a message is all of an API's answer, with its counts: rows of those are no conversation."""
    return record.get("role") == "assistant" and type(record.get("usage")) is dict


def speaks(record: dict[str, Any]) -> bool:
    """Whether a row is a message."""
    return any(
        type(record.get(role)) is str and said in record for role, said in (("role", "content"), ("from", "value"))
    )


def conversation_of(record: dict[str, Any]) -> str:
    """Which conversation a row that is a message belongs to; "" where no field says it."""
    return next((f"{name} {record[name]}" for name in CONVERSATION if record.get(name) is not None), "")


def answer_of(record: dict[str, Any]) -> Any:
    """What a log keeps of an answer beside the messages; the row itself where that is in it."""
    answer = next((record[name] for name in ANSWERS if record.get(name) is not None), record)
    if type(answer) is dict and answer is not record and type(answer.get("body")) is dict:
        return answer["body"]
    return answer


def usage_of(record: dict[str, Any]) -> tuple[int, int] | None:
    """(tokens of the prompt, tokens of the answer) as a row counts them."""
    answer = answer_of(record)
    for around in (record, answer if type(answer) is dict else {}):
        usage = around.get("usage", around)  # a flat log has the counts in the row itself
        if type(usage) is dict:
            prompt, output = (_count(usage, names) for names in COUNTS)
            if prompt and output:
                return prompt, output
    return None


def _count(usage: dict[str, Any], names: tuple[str, ...]) -> int:
    """The token count that a usage has under one of `names`; 0 for none."""
    value = number(next((usage[name] for name in names if usage.get(name) is not None), None))
    return int(value) if value == value and 0 < value <= MAX_TOKENS and value == int(value) else 0


def failed(record: dict[str, Any]) -> bool:
    """Whether a row is of a request that got no answer but an error."""
    answer = record.get("response")
    status = answer.get("status_code") if type(answer) is dict else record.get("status_code")
    return bool(record.get("error")) or (type(status) is int and status >= 400)


def is_request(settings: dict[str, Any]) -> bool:
    """Whether a row holds what a request asks for, not a conversation."""
    return any(settings.get(name) is not None for name in SETTINGS)
