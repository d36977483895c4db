"""Messages as the files of chat APIs and of fine-tuning hold them -> (role, text) in one spelling.

The one idea: a message is a role and one text. Lists of parts are joined, tool calls are their name and arguments, an
image is its digest: whatever the model reads is in the text, so texts that differ anywhere differ here.

    >>> one = Speech().message({"from": "human", "value": "Hello"})
    >>> one.role, one.text
    ('user', 'Hello')
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import blake2b
from typing import Any, NamedTuple

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "tool_response": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Spellings -> role."""
LAYERS = ("tools", "system", "user", "assistant", "tool", "other")
PICTURES = ("image", "image_url", "input_image", "audio", "input_audio", "video", "video_url", "file", "document")
ASIDE = ("reasoning_content", "reasoning", "thinking")
SPEAKER, SAID = ("role", "from", "author", "sender", "type"), ("content", "value", "text")
TIMES = ("timestamp", "created_at", "create_time", "created", "time", "ts", "tstamp")
DEPTH = 32  #: of parts within parts


class Message(NamedTuple):
    role: str  #: one of LAYERS
    name: str  #: the role as the file spells it: another spelling is another text
    text: str
    aside: str  #: reasoning that later prompts do not repeat
    time: Any  #: None where the file has none


class Speech:
    """Reads messages and counts what is special about them."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def message(self, entry: dict[str, Any]) -> Message:
        """ValueError (field, value, expected) for what is no message."""
        name, content = _first(entry, SPEAKER), _first(entry, SAID)
        if type(name) is dict:
            name = name.get("role")
        if type(name) is not str:
            raise ValueError("role", name, "text like user or assistant")
        role = ROLES.get(name) or ROLES.get(name.lower(), "other")
        self.count["messages"] += 1
        if len(entry) == 2 and type(content) is str and role != "other":
            self.count["tool results"] += role == "tool"
            return Message(role, role, content, "", None)
        self.count["unknown roles"] += role == "other"
        aside: list[str] = []
        parts = self._parts("" if content is None else content, aside, 0) + self._calls(entry)
        aside += [entry[key] for key in ASIDE if type(entry.get(key)) is str]
        self.count["tool results"] += role == "tool"
        self.count["reasoning"] += bool(aside)
        return Message(role, role if role != "other" else name, "".join(parts), "".join(aside), time_of(entry))

    def _parts(self, content: Any, aside: list[str], depth: int) -> list[str]:
        if type(content) is str:
            return [content]
        if type(content) is dict:
            content = [content]
        if type(content) is not list or depth > DEPTH:
            raise ValueError("content", content, "text, a list of parts, or null")
        return [text for part in content for text in self._part(part, aside, depth)]

    def _part(self, part: Any, aside: list[str], depth: int) -> list[str]:
        if part is None or type(part) is str:
            return [part or ""]
        if type(part) is not dict:
            raise ValueError("content", part, "parts that are text or objects")
        kind = part.get("type")
        if kind in PICTURES or (type(kind) is not str and any(name in part for name in PICTURES)):
            self.count["images and files"] += 1
            return [f"[{blake2b(_written(part).encode('utf-8', 'replace'), digest_size=8).hexdigest()}]"]
        if kind in ("thinking", "redacted_thinking", "reasoning"):
            aside.append(str(part.get("thinking") or part.get("text") or part.get("data") or ""))
            return []
        if kind in ("tool_use", "function_call"):
            self.count["tool calls"] += 1
            return [f"{part.get('name', '')}{_written(part.get('input', part.get('arguments', '')))}"]
        self.count["tool results"] += kind in ("tool_result", "function_call_output")
        for name in ("text", "parts", "content", "output", "refusal"):
            if part.get(name) is not None:
                return self._parts(part[name], aside, depth + 1)
        if "text" in part or "content" in part:
            return []
        return [_written(part)]

    def _calls(self, entry: dict[str, Any]) -> list[str]:
        calls = entry.get("tool_calls") or ([entry["function_call"]] if entry.get("function_call") else [])
        if type(calls) is not list:
            raise ValueError("tool_calls", calls, "a list")
        self.count["tool calls"] += len(calls)
        texts = []
        for call in calls:
            called = call.get("function", call) if type(call) is dict else call
            if type(called) is dict:
                called = f"{called.get('name', '')}{_written(called.get('arguments', ''))}"
            texts.append(_written(called))
        return texts

    def notes(self) -> list[str]:
        """What of the messages is counted in a way that one should know."""
        count, lines = self.count, []
        if count["images and files"]:
            lines.append(
                f"images and files: {count['images and files']}, told apart by digest, but their own tokens are not"
                " counted (a placeholder of 18 characters stands for each)"
            )
        if count["tool calls"] or count["tool results"]:
            lines.append(
                f"tools: {count['tool calls']} calls (name and arguments are text of the answer),"
                f" {count['tool results']} results"
            )
        if count["reasoning"]:
            lines.append(
                f"reasoning: {count['reasoning']} answers have it; it is output, and later prompts are taken not to"
                " repeat it"
            )
        if count["unknown roles"]:
            lines.append(
                f"roles: {count['unknown roles']} messages of unknown roles are part of the prompts after them"
            )
        return lines


def time_of(entry: dict[str, Any]) -> Any:
    """The entry's time as the file has it; None without."""
    return _first(entry, TIMES)


def _first(entry: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if entry.get(name) is not None:
            return entry[name]
    return None


def _written(value: Any) -> str:
    return value if type(value) is str else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


written = _written
