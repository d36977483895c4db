"""Conversations with their text: each answer is a request whose prompt is everything said before it.

The one idea: a prompt is the path of its messages in one tree of all conversations (`workloads.text`): what turns and
conversations share is what they say alike, to the token.

    >>> from workloads.readers import sharegpt, messages       # the files; this module is what both do

A row that ends with an answer, or a ShareGPT row, is a conversation. A row with its answer beside the messages (a log),
or without an answer but with a request's settings (batch input), is one request whose earlier answers are history; in
batch input the answer's length is `max_tokens` unless `answer_tokens` is set. Where rows count their tokens themselves,
requests are as long as counted, and positions in the text, which decide what is shared, are at the characters per token
that fit all counts of the file: one number, so that prompts stay prefixes of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workloads.branches import ROOT
from workloads.columns import SCOPES, Workload
from workloads.config import CHARACTERS
from workloads.limits import MAX_TOKENS
from workloads.readers.chat_rows import (
    LIMITS,
    Found,
    answer_of,
    conversation_of,
    failed,
    found_in,
    is_request,
    speaks,
    unwrapped,
    usage_of,
)
from workloads.readers.private import PrivateRows
from workloads.readers.spoken import LAYERS, Message, Speech, time_of, written
from workloads.text import Estimate, Messages, characters, counter

BESIDE = {"tools": "tools", "functions": "tools", "system": "system", "instructions": "system"}
MAX_TEXT = 1 << 30  #: bytes of distinct text in memory at once
UNANSWERED = "no answer in the conversation"
FITS = "which fits the file's own counts"


class Asked(NamedTuple):
    """A request, by its messages."""

    row: int  #: in the file
    before: int  #: the last message of its prompt
    end: int  #: its answer, or `before` where that is not in the file
    output: int | None  #: tokens to answer, where the text of the answer does not say it
    recorded: tuple[int, int] | None  #: tokens of prompt and answer that the file counts itself
    session: int
    turn: int
    layer: int
    sent: Any  #: recorded times, None without
    done: Any


class Talk:
    """Collects requests while conversations are read."""

    def __init__(self, rows: PrivateRows, messages: Messages, answer_tokens: int | None = None) -> None:
        self.rows, self.tree, self.answer_tokens = rows, messages, answer_tokens
        self.speech = Speech()
        self.asked: list[Asked] = []
        self.conversations = self.unanswered = self.limits = 0

    # ---- one row ----

    def add(self, record: dict[str, Any], first_turn_only: bool = False) -> None:
        found = found_in(record)
        if found is None or not found.messages:
            self.rows.skip("no list of messages" if found is None else "no messages")
            return
        said = [*self._head(found, record), *(self._message(i, entry) for i, entry in enumerate(found.messages))]
        answer = self._response(record)
        if first_turn_only:
            ends = [i for i, message in enumerate(said) if i and message.role == "assistant"]
            said, answer = (said[: ends[0] + 1], []) if ends else (said, answer)
        if self.tree.size > MAX_TEXT:
            self.rows.fail("messages", self.tree.size, f"at most {MAX_TEXT} bytes of distinct text: split the file")
        settings, usage = {**record, **found.around}, usage_of(record)
        start, begin = time_of(record), len(self.asked)
        if failed(record):
            self.rows.skip("failed")
            return
        if answer or (
            said[-1].role != "assistant" and (is_request(settings) or all(m.role != "assistant" for m in said))
        ):
            self._single(said, answer, settings, usage, start)
        else:
            self._conversation(said, usage, start)
        self.conversations += len(self.asked) > begin

    def _head(self, found: Found, record: dict[str, Any]) -> list[Message]:
        """What a prompt begins with beside its messages: tools, then a system text."""
        head: list[Message] = []
        for around in (found.around, record) if found.around is not record else (record,):
            for name, role in BESIDE.items():
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
        answer = answer_of(record)
        if type(answer) is str:
            return [self._message(-1, {"role": "assistant", "content": answer})]
        if type(answer) is list and all(type(entry) is dict for entry in answer):
            return [self._message(-1, {"role": "assistant", **entry}) for entry in answer]
        choices = answer.get("choices") if type(answer) is dict else None
        if type(choices) is not list or not choices or type(choices[0]) is not dict:
            return []
        message = choices[0].get("message")
        return [self._message(-1, {"role": "assistant", **message})] if type(message) is dict else []

    def _single(
        self,
        said: list[Message],
        answer: list[Message],
        settings: dict[str, Any],
        usage: tuple[int, int] | None,
        start: Any,
    ) -> None:
        """One request, whose earlier answers are history."""
        output = None
        if not answer and usage is None:
            output = self._limit(settings)
            if output is None:
                self.rows.skip("no answer, and no max_tokens: set answer_tokens, the output tokens of such a request")
                return
        before = end = ROOT
        for message in said:
            before = end = self._said(before, message)
        for message in answer:
            end = self._said(end, message, aside=True)
        if answer and usage is None and not self.tree.body(end):
            self.rows.skip("an empty answer")
            return
        self._ask(before, end, output, usage, 0, said[-1], None, start)

    def _limit(self, settings: dict[str, Any]) -> int | None:
        """The output tokens of a request without an answer."""
        limit = next((settings[name] for name in LIMITS if settings.get(name) is not None), None)
        tokens = self.answer_tokens if self.answer_tokens is not None else limit
        if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS):
            self.rows.fail("max_tokens", tokens, f"a whole number from 1 to {MAX_TOKENS}")
        self.limits += tokens is not None
        return tokens

    def _conversation(self, said: list[Message], usage: tuple[int, int] | None, start: Any) -> None:
        """Every answer is a request; `usage` is known for the only one."""
        answers = sum(m.role == "assistant" for m in said[1:])
        at, turn = ROOT, 0
        for before, message in zip([None, *said], said, strict=False):
            after = self._said(at, message)
            if message.role == "assistant" and before is None:
                self.rows.skip("an answer with nothing before it")
            elif message.role == "assistant":
                own = self._said(at, message, aside=True) if message.aside else after
                if self.tree.body(own):
                    self._ask(at, own, None, usage if answers == 1 else None, turn, before, message.time, start)
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

    def _ask(
        self,
        before: int,
        end: int,
        output: int | None,
        usage: tuple[int, int] | None,
        turn: int,
        last: Message | None,
        done: Any,
        start: Any,
    ) -> None:
        sent = last.time if last is not None and last.time is not None else start if turn == 0 else None
        layer = LAYERS.index(last.role if last is not None else "user")
        self.rows.keep()
        self.asked.append(Asked(self.rows.row, before, end, output, usage, self.conversations, turn, layer, sent, done))

    # ---- columns ----

    def workload(self, message_tokens: int) -> Workload:
        rows, asked, n = self.rows, self.asked, len(self.asked)
        self._fit(message_tokens)
        branches, text = self.tree.branches(message_tokens)
        depth = np.array([branches.end[text[a.before]] + message_tokens for a in asked], np.int64)
        ends = np.array([branches.end[text[a.end]] for a in asked], np.int64)
        prompt, output = depth.copy(), np.maximum(ends - depth, 0)
        for i, a in enumerate(asked):
            if a.recorded is not None:
                prompt[i], output[i] = a.recorded
            elif a.output is not None:
                output[i] = a.output
        ends = np.minimum(ends, prompt + output)
        read = [branches.add(text[a.end], end, end) for a, end in zip(asked, ends.tolist(), strict=True)]
        arrival_s, delay_s = self._times()
        rows.read = n + sum(rows.skipped.values())
        notes = rows.report(n)
        tree, leaf = branches.tree(read)
        first = np.array([a.turn == 0 for a in asked], bool)
        return Workload(
            tree=tree,
            leaf=leaf,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            after=np.where(first, -1, np.arange(n) - 1),
            delay_s=delay_s,
            session_id=np.array([a.session for a in asked], np.int64),
            turn=np.array([a.turn for a in asked], np.int32),
            tail_layer=np.array([a.layer for a in asked], np.int16),
            layer_names=LAYERS,
            layer_scopes=tuple(SCOPES.index("global" if name in ("tools", "system") else "session") for name in LAYERS),
            source=rows.source(),
            notes=notes,
        )

    def _fit(self, message_tokens: int) -> None:
        """Say how tokens are counted; with counts of the file's own an estimate takes the characters per token that
        they imply, so that positions in a text are those of the counts."""
        counted = [a for a in self.asked if a.recorded is not None]
        if counted and isinstance(self.tree.counter, Estimate):
            lengths = self.tree.lengths(characters)
            chars = sum(lengths[a.end][0] for a in counted)
            markers = message_tokens * sum(lengths[a.before][1] + 1 for a in counted)
            tokens = sum(sum(a.recorded) for a in counted if a.recorded) - markers
            if tokens > 0 and chars:
                self.tree.counter = Estimate(min(max(chars / tokens, CHARACTERS.low), CHARACTERS.high), FITS)
        if counted:
            self.rows.note(f"tokens: the file's own counts for {len(counted)} of {len(self.asked)} requests (usage)")
        self.rows.note(
            f"{self.tree.counter.note}, and {message_tokens} for the role markers of a message (message_tokens)"
        )

    def _times(self) -> tuple[np.ndarray, np.ndarray]:
        """(arrival_s: recorded for first turns where all have a time, else NaN; delay_s after the answer before)."""
        asked, n = self.asked, len(self.asked)
        heads = [i for i, a in enumerate(asked) if a.turn == 0]
        untimed = sum(asked[i].sent is None for i in heads)
        delay_s = np.zeros(n)
        if untimed or not n:
            if untimed < len(heads):
                self.rows.note(f"times: {untimed} of {len(heads)} conversations have none, so none is used")
            return self.rows.no_times(n), delay_s
        links = [i for i, a in enumerate(asked) if a.turn and None not in (a.sent, asked[i - 1].done)]
        at = [*heads, *links, *(i - 1 for i in links)]
        values = [asked[i].sent for i in heads + links] + [asked[i - 1].done for i in links]
        seconds = self.rows.clock("timestamp", values, 1, [asked[i].row for i in at])
        arrival_s = np.full(n, np.nan)
        arrival_s[heads] = seconds[: len(heads)] - seconds[: len(heads)].min(initial=np.inf)
        sent, done = np.split(seconds[len(heads) :], 2)
        delay_s[links] = np.maximum(sent - done, 0)
        if len(heads) < n:
            self.rows.note(
                f"think times: {len(links)} from the times of answers and of what follows them;"
                f" {n - len(heads) - len(links)} unknown and {int((sent < done).sum())} before their answer are taken"
                " as 0 s"
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
    records: Callable[[PrivateRows], Iterable[dict[str, Any]]] = unwrapped,
) -> Workload:
    """All conversations of a file, as closed loops: the next turn follows its answer. records: where they lie in it."""
    rows = PrivateRows(path, timestamp_unit)
    count = counter(tokenizer, chars_per_token)
    talk = Talk(rows, Messages(count), answer_tokens)
    said: dict[str, list[dict[str, Any]]] = {}  # rows that are messages, by conversation
    for record in records(rows):
        if speaks(record) and found_in(record) is None:
            said.setdefault(conversation_of(record), []).append(record)
        else:
            talk.add(record, first_turn_only)
    for messages in said.values():
        talk.add({"messages": messages}, first_turn_only)
    rows.note(
        f"conversations: {talk.conversations} with {talk.speech.count['messages']} messages; an answer is a request,"
        " everything before it its prompt"
        + (", the first answer of each (first_turn_only)" if first_turn_only else "")
        + (f"; {talk.unanswered} end unanswered" if talk.unanswered else "")
    )
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
    return talk.workload(message_tokens)
