"""Messages of conversations as token runs of one prefix tree: counted, compared, and not kept.

The one idea: a message is (what precedes it, its role, its text). Whoever says the same after the same is one branch;
messages that begin alike after the same share as many tokens as their texts do, found by sorting them side by side.

    >>> messages = Messages(Estimate(4.0), message_tokens=4)
    >>> system = messages.add(ROOT, "system", "You are a helpful assistant.", layer=0)
    >>> messages.end(system)                                          # 4 + 28 / 4
    11

The texts live in memory while a file is read, each once, and nowhere else: what is left is a tree of lengths.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from workloads.branches import ROOT, Branches
from workloads.columns import PrefixTree
from workloads.errors import InputError


class Body(NamedTuple):
    """A text as it is compared: bytes in `width`-byte units (characters or token ids), and its tokens."""

    units: bytes
    tokens: int


class Counter(Protocol):
    """Texts -> bodies, and how many whole tokens a common beginning is."""

    note: str  #: how tokens are counted, in words

    def body(self, text: str) -> Body: ...

    def tokens_in(self, common: bytes) -> int:
        """Whole tokens of the longest beginning that two bodies share."""
        ...


class Estimate:
    """Tokens as characters / `chars_per_token`, a message's last one begun. Bodies are UTF-8."""

    def __init__(self, chars_per_token: float) -> None:
        self.chars_per_token = chars_per_token
        self.note = f"tokens: estimated as characters / {chars_per_token:g} (chars_per_token; or name a tokenizer)"

    def body(self, text: str) -> Body:
        return Body(text.encode("utf-8", "surrogatepass"), -int(-len(text) // self.chars_per_token))

    def tokens_in(self, common: bytes) -> int:
        return int(_characters(common) // self.chars_per_token)


def _characters(text: bytes) -> int:
    """Whole characters of UTF-8 that may be cut within its last one."""
    octets = np.frombuffer(text, np.uint8)
    begins = np.flatnonzero((octets & 0xC0) != 0x80)
    if not len(begins):
        return 0
    last = int(octets[begins[-1]])
    width = 1 if last < 0x80 else 2 if last < 0xE0 else 3 if last < 0xF0 else 4
    return len(begins) - (len(text) - int(begins[-1]) < width)


class Encoder(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any: ...


class Tokens:
    """Tokens as a tokenizer makes them, message by message. Bodies are token ids, 4 bytes each."""

    def __init__(self, tokenizer: Encoder, name: str) -> None:
        self._tokenizer = tokenizer
        self.note = f"tokens: counted by the tokenizer {name}, message by message"

    def body(self, text: str) -> Body:
        clean = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text to it
        ids = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return Body(np.array(ids, ">u4").tobytes(), len(ids))

    def tokens_in(self, common: bytes) -> int:
        return len(common) // 4


def counter(tokenizer: str | Path | None, chars_per_token: float) -> Counter:
    """By the file tokenizer.json that the user names, else an estimate. Nothing is fetched."""
    if tokenizer is None:
        return Estimate(chars_per_token)
    path = Path(tokenizer)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"[workload] tokenizer = {str(tokenizer)!r}: no such file, expected a local tokenizer.json")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError(
            "[workload] tokenizer: the package tokenizers is not installed, expected `pip install kvcast[text]`, or"
            " chars_per_token for an estimate"
        ) from None
    try:
        made = Tokenizer.from_file(str(path))
        made.no_truncation()
        made.no_padding()
    except Exception as problem:  # the package raises bare Exceptions
        why = str(problem).splitlines()[0][:120] if str(problem) else type(problem).__name__
        raise InputError(f"{path}: not a tokenizer ({why}), expected a tokenizer.json") from None
    return Tokens(made, path.name)


class Messages:
    """The tree of all messages of all conversations."""

    def __init__(self, counter: Counter, message_tokens: int) -> None:
        self._counter, self._message_tokens = counter, message_tokens
        self._branches = Branches()
        self._bodies: list[Body] = []
        self._known: dict[bytes, int] = {}  # digest of a text, or of a body's units -> its body
        self.size = 0  #: bytes of distinct text that are held
        self._number: dict[tuple[int, Hashable, int], int] = {}  # (before, role, body) -> message
        self._alike: dict[tuple[int, Hashable], list[tuple[int, int]]] = {}  # (before, role) -> [(body, message)]

    def tokens(self, text: str) -> int:
        """Tokens of a text alone."""
        return self._bodies[self._body(text)].tokens

    def end(self, message: int) -> int:
        """Tokens up to the end of `message`, all before it included."""
        return 0 if message == ROOT else self._branches.end[message]

    def add(self, before: int, role: Hashable, text: str, layer: int) -> int:
        """The message that says `text` after `before` (ROOT: first); the same one for the same."""
        body = self._body(text)
        found = self._number.get((before, role, body))
        if found is None:
            begin = self.end(before)
            found = self._branches.add(before, begin, begin + self._message_tokens + self._bodies[body].tokens, layer)
            self._number[before, role, body] = found
            if found != before:
                self._alike.setdefault((before, role), []).append((body, found))
        return found

    def _body(self, text: str) -> int:
        key = _digest(text.encode("utf-8", "surrogatepass"))
        found = self._known.get(key)
        if found is None:
            body = self._counter.body(text)
            found = self._known[key] = self._known.setdefault(_digest(body.units, b"units"), len(self._bodies))
            if found == len(self._bodies):
                self._bodies.append(body)
                self.size += len(body.units)
        return found

    def tree(self, read: Sequence[int]) -> tuple[PrefixTree, np.ndarray]:
        """(tree, leaf int32 [n]) of requests that each read up to the end of one message. Call it once, at the end."""
        for (before, _role), alike in self._alike.items():
            if len(alike) > 1:
                self._side_by_side(self.end(before) + self._message_tokens, alike)
        self._alike.clear()
        self._bodies.clear()
        return self._branches.tree(read)

    def _side_by_side(self, begin: int, alike: list[tuple[int, int]]) -> None:
        """Let messages of one role after one text share what their bodies have in common."""
        ordered = sorted((self._bodies[body].units, message) for body, message in alike)
        for (a, left), (b, right) in pairwise(ordered):
            self._branches.move(right, left, begin + self._counter.tokens_in(a[: common_prefix(a, b)]))


def _digest(text: bytes, kind: bytes = b"") -> bytes:
    return blake2b(text, digest_size=16, person=kind).digest()


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
