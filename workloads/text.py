"""Messages of conversations as token runs of one prefix tree: counted, compared, and not kept.

The one idea: a message is (what precedes it, its role, its text). Whoever says the same after the same is one branch;
messages that begin alike after the same share as many tokens as their texts do, found by sorting them side by side.

    >>> messages = Messages(Estimate(4.0))
    >>> system = messages.add(ROOT, "system", "You are a helpful assistant.", layer=0)
    >>> branches, text = messages.branches(message_tokens=4)
    >>> branches.end[text[system]]                                    # 4 + 28 / 4
    11

The texts live in memory while a file is read, each once, and nowhere else: what is left is a tree of lengths.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from workloads.branches import ROOT, Branches
from workloads.errors import InputError

DIGEST = 16  #: bytes of a text's digest


class Counter(Protocol):
    """Texts -> bodies: bytes that are compared, and counted in tokens."""

    note: str  #: how tokens are counted, in words
    one_body: bool  #: whether several texts may have one body

    def body(self, text: str) -> bytes: ...

    def tokens(self, body: bytes) -> int:
        """Tokens of a whole body."""
        ...

    def tokens_in(self, common: bytes) -> int:
        """Whole tokens of the longest beginning that two bodies share."""
        ...


class Estimate:
    """Tokens as characters / `chars_per_token`, a message's last one begun. Bodies are UTF-8."""

    one_body = False

    def __init__(self, chars_per_token: float, why: str = "chars_per_token; or name a tokenizer") -> None:
        self.chars_per_token = chars_per_token
        self.note = f"tokens: estimated as characters / {chars_per_token:.4g} ({why})"

    def body(self, text: str) -> bytes:
        return text.encode("utf-8", "surrogatepass")

    def tokens(self, body: bytes) -> int:
        return -int(-characters(body) // self.chars_per_token)

    def tokens_in(self, common: bytes) -> int:
        return int(characters(common) // self.chars_per_token)


def characters(text: bytes) -> int:
    """Whole characters of UTF-8 that may be cut within its last one."""
    if text.isascii():
        return len(text)
    count = int(np.count_nonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80))
    last = next(i for i in range(1, 5) if (text[-i] & 0xC0) != 0x80)  # bytes from where the last one begins
    first = text[-last]
    return count - (last < (1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4))


class Encoder(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any: ...


class Tokens:
    """Tokens as a tokenizer makes them, message by message. Bodies are token ids, 4 bytes each."""

    one_body = True

    def __init__(self, tokenizer: Encoder, name: str) -> None:
        self._tokenizer = tokenizer
        self.note = f"tokens: counted by the tokenizer {name}, message by message"

    def body(self, text: str) -> bytes:
        clean = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text to it
        ids = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return np.array(ids, ">u4").tobytes()

    def tokens(self, body: bytes) -> int:
        return len(body) // 4

    def tokens_in(self, common: bytes) -> int:
        return len(common) // 4


def counter(tokenizer: str | Path | None, chars_per_token: float) -> Counter:
    """By the file tokenizer.json that the user names, else an estimate. Nothing is fetched."""
    if tokenizer is None:
        return Estimate(chars_per_token)
    made, name = tokenizer_of(tokenizer, "[workload] tokenizer"), Path(tokenizer)
    return Tokens(made, "tokenizer.json" if name.is_dir() else name.name)


def tokenizer_of(tokenizer: str | Path, key: str = "--tokenizer") -> Any:
    """The `tokenizers.Tokenizer` of a file, or of the tokenizer.json in a folder; `key`: what names it."""
    path = Path(tokenizer)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{key} = {str(tokenizer)!r}: no such file, expected a local tokenizer.json")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError(
            f"{key}: the package tokenizers is not installed, expected `pip install kvcast[text]`, or"
            " chars_per_token for an estimate"
        ) from None
    try:
        made = Tokenizer.from_file(str(path))
        made.no_truncation()
        made.no_padding()
    except Exception as problem:  # the package raises bare Exceptions
        why = str(problem).splitlines()[0][:120] if str(problem) else type(problem).__name__
        raise InputError(f"{path}: not a tokenizer ({why}), expected a tokenizer.json") from None
    return made


class Messages:
    """The tree of all messages of all conversations; a message is a number, ROOT what comes before the first."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.size = 0  #: bytes of distinct text that are held
        self._bodies: list[bytes] = []
        self._known: dict[bytes, int] = {}  # digest of a text, or of a body -> the body's number
        self._speaker: dict[Hashable, int] = {}  # role -> its number
        self._number: dict[int, int] = {}  # (before, role, body) in one number -> message
        self._before, self._role, self._body, self._layer = (array("q") for _ in range(4))

    def add(self, before: int, role: Hashable, text: str, layer: int) -> int:
        """The message that says `text` after `before`; the same one for the same."""
        body, who = self._numbered(text), self._speaker.setdefault(role, len(self._speaker))
        key = (before + 1 << 80) + (who << 40) + body
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self._before)
            self._before.append(before)
            self._role.append(who)
            self._body.append(body)
            self._layer.append(layer)
        return found

    def _numbered(self, text: str) -> int:
        said = text.encode("utf-8", "surrogatepass")
        key = said if len(said) < DIGEST else blake2b(said, digest_size=DIGEST).digest()
        found = self._known.get(key)
        if found is None:
            body, found = self.counter.body(text), len(self._bodies)
            if self.counter.one_body:
                found = self._known.setdefault(blake2b(body, digest_size=DIGEST, person=b"body").digest(), found)
            self._known[key] = found
            if found == len(self._bodies):
                self._bodies.append(body)
                self.size += len(body)
        return found

    def body(self, message: int) -> bytes:
        return self._bodies[self._body[message]]

    def lengths(self, of: Callable[[bytes], int]) -> dict[int, tuple[int, int]]:
        """(sum of `of` over the bodies, messages) up to and with each message, and ROOT."""
        found, each = {ROOT: (0, 0)}, [of(body) for body in self._bodies]
        for message, (before, body) in enumerate(zip(self._before, self._body, strict=True)):
            total, count = found[before]
            found[message] = total + each[body], count + 1
        return found

    def branches(self, message_tokens: int) -> tuple[Branches, list[int]]:
        """(the messages as texts that hang on one another, each one's text). A message is `message_tokens` for its
        markers and the tokens of its body; those of one role after one text share what their bodies have in common.
        Once, at the end."""
        branches, text = Branches(), [0] * len(self._before)
        tokens = [self.counter.tokens(body) for body in self._bodies]
        alike: dict[tuple[int, int], list[int]] = {}
        self._known.clear()
        self._number.clear()
        for message, (before, role, body) in enumerate(zip(self._before, self._role, self._body, strict=True)):
            on, begin = (text[before], branches.end[text[before]]) if before != ROOT else (ROOT, 0)
            text[message] = branches.add(on, begin, begin + message_tokens + tokens[body], self._layer[message])
            alike.setdefault((before, role), []).append(message)
        for (before, _), messages in alike.items():
            if len(messages) == 1:
                continue
            begin = message_tokens + (branches.end[text[before]] if before != ROOT else 0)
            ordered = sorted((self.body(message), text[message]) for message in messages)
            for (a, left), (b, right) in pairwise(ordered):
                branches.move(right, left, begin + self.counter.tokens_in(a[: common_prefix(a, b)]))
        return branches, text


def common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix of two byte strings, in time proportional to it."""
    low, step = 0, 64
    while low + step <= min(len(a), len(b)) and a[low : low + step] == b[low : low + step]:
        low, step = low + step, step * 2
    while step:  # they differ, or one ends, within the next `step`
        if low + step <= min(len(a), len(b)) and a[low : low + step] == b[low : low + step]:
            low += step
        step //= 2
    return low
