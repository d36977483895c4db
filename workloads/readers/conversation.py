"""Conversations with their text: each answer is a request whose prompt is everything said before it.

The one idea: a prompt is the path of its messages in one tree of all conversations (`workloads.text`): what turns and
conversations share is what they say alike, to the token.

    >>> from workloads.readers import sharegpt, messages       # the files; this module is what both do

A row that ends with an answer, or a ShareGPT row, is a conversation. One that ends otherwise and holds a request's
settings (OpenAI's batch input) is one request, whose earlier answers are history; its answer's length is `max_tokens`
unless `answer_tokens` is set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workloads.branches import ROOT
from workloads.columns import SCOPES, Workload
from workloads.readers.head import Head
from workloads.readers.private import PrivateRows
from workloads.readers.spoken import LAYERS, Message, Speech, time_of, written
from workloads.text import Messages, counter

PLACES = (
    ("conversations",),
    ("conversation",),
    ("messages",),
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
SETTINGS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "custom_id", "temperature", "stream")
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "output_tokens")
ANSWERS = ("response", "completion")
MAX_TEXT = 1 << 30  #: bytes of distinct text in memory at once
UNANSWERED = "no answer in the conversation"


class Found(NamedTuple):
    """A row's messages, and the object that they are a field of."""

    messages: list[Any]
    around: dict[str, Any]


def found_in(record: dict[str, Any]) -> Found | None:
    """The list of messages of a row, None without one."""
    for path in PLACES:
        around: Any = record
        for name in path[:-1]:
            around = around.get(name) if type(around) is dict else None
        listed = around.get(path[-1]) if type(around) is dict else None
        if type(listed) is str and path[-1] in ("input", "prompt"):
            listed = [{"role": "user", "content": listed}]
        if type(listed) is list and all(type(entry) is dict for entry in listed):
            return Found(listed, around)
    return None


def first_found(head: Head) -> Found | None:
    """The messages of the first row that has any which say who speaks."""
    for found in map(found_in, head.rows):
        if found is not None and found.messages and {"role", "from"} & set(found.messages[0]):
            return found
    return None


class Talk:
    """Collects requests as columns while conversations are read."""

    def __init__(self, rows: PrivateRows, messages: Messages, message_tokens: int, answer_tokens: int | None) -> None:
        self.rows, self.tree, self.message_tokens = rows, messages, message_tokens
        self.answer_tokens = answer_tokens
        self.speech = Speech()
        self.prompt: list[int] = []
        self.output: list[int] = []
        self.read: list[int] = []  # the message that each request ends with
        self.after: list[int] = []
        self.session: list[int] = []
        self.turn: list[int] = []
        self.layer: list[int] = []
        self.sent: list[Any] = []  # recorded times, None without
        self.done: list[Any] = []
        self.conversations = 0
        self.unanswered = 0
        self.limits = 0

    # ---- one row ----

    def add(self, record: dict[str, Any], first_turn_only: bool) -> None:
        found = found_in(record)
        if found is None:
            self.rows.skip("no list of messages")
            return
        if not found.messages:
            self.rows.skip("no messages")
            return
        said = [*self._head(found, record), *(self._message(i, entry) for i, entry in enumerate(found.messages))]
        said += self._response(record)
        if first_turn_only:
            ends = [i for i, message in enumerate(said) if i and message.role == "assistant"]
            said = said[: ends[0] + 1] if ends else said
        begin = len(self.prompt)
        settings = {**record, **found.around}
        if said[-1].role != "assistant" and self._is_request(settings, said):
            self._open(said, settings)
        else:
            self._conversation(said)
        if self.tree.size > MAX_TEXT:
            self.rows.fail(
                "messages", self.tree.size, f"at most {MAX_TEXT} bytes of distinct text up to here: split the file"
            )
        if len(self.prompt) > begin:
            self.conversations += 1
            if self.sent[begin] is None:
                self.sent[begin] = time_of(record)

    def _head(self, found: Found, record: dict[str, Any]) -> list[Message]:
        """What a prompt begins with beside its messages: tools, then a system text."""
        head: list[Message] = []
        for around in (found.around, record) if found.around is not record else (record,):
            for name, role in (
                ("tools", "tools"),
                ("functions", "tools"),
                ("system", "system"),
                ("instructions", "system"),
            ):
                value = around.get(name)
                if value and type(value) in (str, list, dict) and all(m.role != role for m in head):
                    head.append(Message(role, role, written(value), "", None))
        return sorted(head, key=lambda m: LAYERS.index(m.role))

    def _message(self, number: int, entry: dict[str, Any]) -> Message:
        try:
            return self.speech.message(entry)
        except ValueError as wrong:
            field, value, expected = wrong.args if len(wrong.args) == 3 else ("content", "", "parts that JSON can hold")
            self.rows.fail(f"messages[{number}].{field}", value, expected)
        except RecursionError:
            self.rows.fail(f"messages[{number}]", entry, "parts within parts, not so deep")

    def _response(self, record: dict[str, Any]) -> list[Message]:
        """The answer that a log keeps beside its messages."""
        answer: Any = next((record[name] for name in ANSWERS if record.get(name) is not None), record)
        if type(answer) is dict and answer is not record and type(answer.get("body")) is dict:
            answer = answer["body"]
        if type(answer) is list and all(type(entry) is dict for entry in answer):
            return [self._message(-1, entry) for entry in answer]
        if type(answer) is str:
            return [self._message(-1, {"role": "assistant", "content": answer})]
        choices = answer.get("choices") if type(answer) is dict else None
        if type(choices) is not list or not choices or type(choices[0]) is not dict:
            return []
        message = choices[0].get("message")
        return [self._message(-1, {"role": "assistant", **message})] if type(message) is dict else []

    @staticmethod
    def _is_request(settings: dict[str, Any], said: list[Message]) -> bool:
        return any(settings.get(name) is not None for name in SETTINGS) or all(m.role != "assistant" for m in said)

    def _open(self, said: list[Message], settings: dict[str, Any]) -> None:
        """One request whose answer is not in the file."""
        limit = next((settings[name] for name in LIMITS if settings.get(name) is not None), None)
        tokens = self.answer_tokens if self.answer_tokens is not None else limit
        if tokens is None:
            self.rows.skip("no answer, and no max_tokens: set answer_tokens, the output tokens of such a request")
            return
        if type(tokens) is not int or not 1 <= tokens <= 10**9:
            self.rows.fail("max_tokens", tokens, "a whole number from 1 to 1e9")
        self.limits += 1
        at = ROOT
        for message in said:
            at = self._said(at, message)
        self._request(at, at, tokens, said[-1], None, 0)

    def _conversation(self, said: list[Message]) -> None:
        at, turn, last = ROOT, 0, None
        for before, message in zip([None, *said], said, strict=False):
            after = self._said(at, message)
            if message.role == "assistant" and before is None:
                self.rows.skip("an answer with nothing before it")
            elif message.role == "assistant":
                own = self._said(at, message, aside=True)
                tokens = self.tree.tokens(message.aside + message.text)
                if tokens:
                    last = self._request(at, own, tokens, before, message.time, turn, last)
                    turn += 1
                else:
                    self.rows.skip("an empty answer")
            at = after
        if not turn:
            self.rows.skip(UNANSWERED)
        elif said[-1].role != "assistant":
            self.unanswered += 1

    def _said(self, at: int, message: Message, aside: bool = False) -> int:
        text = message.aside + message.text if aside else message.text
        return self.tree.add(at, message.name, text, LAYERS.index(message.role))

    def _request(
        self, before: int, end: int, output: int, asked: Message | None, done: Any, turn: int, after: int | None = None
    ) -> int:
        """Number of a new request: it reads up to the message `before` and the markers of an answer."""
        self.rows.keep()
        self.prompt.append(self.tree.end(before) + self.message_tokens)
        self.output.append(output)
        self.read.append(end)
        self.after.append(-1 if after is None else after)
        self.session.append(self.conversations)
        self.turn.append(turn)
        self.layer.append(LAYERS.index(asked.role if asked else "user"))
        self.sent.append(asked.time if asked else None)
        self.done.append(done)
        return len(self.prompt) - 1

    # ---- columns ----

    def workload(self) -> Workload:
        rows, n = self.rows, len(self.prompt)
        rows.read = n + sum(rows.skipped.values())
        arrival_s, delay_s = self._times(n)
        notes = rows.report(n)
        tree, leaf = self.tree.tree(self.read)
        return Workload(
            tree=tree,
            leaf=leaf,
            arrival_s=arrival_s,
            prompt_tokens=np.array(self.prompt, np.int64),
            output_tokens=np.array(self.output, np.int64),
            after=np.array(self.after, np.int64),
            delay_s=delay_s,
            session_id=np.array(self.session, np.int64),
            turn=np.array(self.turn, np.int32),
            tail_layer=np.array(self.layer, np.int16),
            layer_names=LAYERS,
            layer_scopes=tuple(SCOPES.index("global" if name in ("tools", "system") else "session") for name in LAYERS),
            source=rows.source(),
            notes=notes,
        )

    def _times(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """(arrival_s: recorded for heads where all have a time, else NaN; delay_s after the answer before)."""
        heads = [i for i in range(n) if self.after[i] < 0]
        timed = [i for i in heads if self.sent[i] is not None]
        delay_s = np.zeros(n)
        if len(timed) < len(heads) or not n:
            if timed:
                self.rows.note(
                    f"times: {len(heads) - len(timed)} of {len(heads)} conversations have none, so none is used"
                )
            return self.rows.no_times(n), delay_s
        links = [i for i in range(n) if self.after[i] >= 0 and None not in (self.sent[i], self.done[self.after[i]])]
        at = [*heads, *links, *(self.after[i] for i in links)]
        values = [self.sent[i] for i in heads + links] + [self.done[self.after[i]] for i in links]
        seconds = self.rows.clock("timestamp", values, 1, [self.rows.number[i] for i in at])
        arrival_s = np.full(n, np.nan)
        arrival_s[heads] = seconds[: len(heads)] - seconds[: len(heads)].min(initial=np.inf)
        sent, done = np.split(seconds[len(heads) :], 2)
        delay_s[links] = np.maximum(sent - done, 0)
        unknown = n - len(heads) - len(links)
        self.rows.note(
            f"think times: {len(links)} from the times of answers and of what follows them, {unknown} unknown and taken"
            f" as 0 s, {int((sent < done).sum())} before their answer and taken as 0 s"
        )
        return arrival_s, delay_s


def read_conversations(
    path: str | Path,
    *,
    tokenizer: str | None,
    chars_per_token: float,
    message_tokens: int,
    timestamp_unit: str,
    first_turn_only: bool = False,
    answer_tokens: int | None = None,
) -> Workload:
    """All conversations of a file, as closed loops: the next turn follows its answer."""
    rows = PrivateRows(path, timestamp_unit)
    count = counter(tokenizer, chars_per_token)
    talk = Talk(rows, Messages(count, message_tokens), message_tokens, answer_tokens)
    for record in rows.records():
        talk.add(record, first_turn_only)
    rows.note(
        f"conversations: {talk.conversations} with {talk.speech.count['messages']} messages; an answer is a request,"
        " everything before it its prompt"
        + (", the first answer of each (first_turn_only)" if first_turn_only else "")
        + (f"; {talk.unanswered} end unanswered" if talk.unanswered else "")
    )
    rows.note(f"{count.note}, and {message_tokens} for the role markers of a message (message_tokens)")
    rows.note("shared text: what prompts say alike from their beginning, compared text by text; no text is kept")
    if talk.limits:
        what = (
            "answer_tokens"
            if answer_tokens is not None
            else "their max_tokens, an upper bound (answer_tokens sets another)"
        )
        rows.note(f"answers: {talk.limits} requests have none in the file; their output is {what}")
    for line in talk.speech.notes():
        rows.note(line)
    return talk.workload()
