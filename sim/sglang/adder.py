"""What one prefill batch of SGLang may still take: memory now, memory until its requests end, input and chunk tokens.

The one idea: the reserve for running requests is a float sum in running order, scaled by `new_token_ratio`. Its last
bits matter only when a comparison is near a tie, so an integer sum decides and the exact sum is folded only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.sglang.node import RadixRequest
from sim.sglang.radix import RadixCache

CONTINUE, NO_TOKEN, OTHER = range(3)
"""After an admission or a rejection: go on, memory is short, or the batch has all it may have."""
NEAR = 1e-3
UNLIMITED = 1 << 62


class Adder:
    """One pass. Tokens throughout; `chunk` and `input` are what is left of the budgets."""

    def __init__(
        self,
        cache: RadixCache,
        page: int,
        chunk: int,
        most_input: int,
        to_come: int,
        ratio: float,
        fold: Callable[[], Iterable[int]],
        riding: int = 0,
    ) -> None:
        self.cache = cache
        self.page = page
        self.chunked = chunk > 0
        self.chunk = (chunk if chunk > 0 else UNLIMITED) - riding
        self.input = most_input - riding
        self.batch: list[tuple[RadixRequest, int]] = []
        self._to_come = to_come  # tokens that running requests may still generate
        self._ratio = ratio
        self._fold = fold  # the same one by one, in running order
        self._reserved = [riding]  # decodes that take a token each in this step
        self._reserved_sum = riding
        self._reserved_now = riding

    def take(self, r: RadixRequest, extend: int, decode: int) -> None:
        """`extend` tokens of r enter the batch, `decode` more are reserved for it."""
        page = self.page
        pages = -(-extend // page) * page
        self.batch.append((r, extend))
        self._reserved.append(pages + page + decode)
        self._reserved_sum += pages + page + decode
        self._reserved_now += pages + page
        self.input -= pages
        self.chunk -= pages

    def state(self) -> int:
        if not self.room_above(0) or (self.cache.blank + self.cache.idle) * self.page <= self._reserved_now:
            return NO_TOKEN
        return OTHER if self.spent() else CONTINUE

    def spent(self) -> bool:
        """Whether no more prompt tokens may enter the batch."""
        return self.input <= 0 or self.chunk <= 0

    def room_above(self, tokens: int) -> bool:
        """Whether more than `tokens` are left when everything admitted and running has ended."""
        room = self._room()
        return room > tokens if abs(room - tokens) > NEAR else self._exact_room() > tokens

    def whole_room(self) -> int:
        """The room rounded towards zero."""
        room = self._room()
        return int(room) if abs(room - round(room)) > NEAR else int(self._exact_room())

    def _room(self) -> float:
        return (self.cache.blank + self.cache.idle) * self.page - self._reserved_sum - self._to_come * self._ratio

    def _exact_room(self) -> float:
        reserved = 0.0  # plain additions: `sum` rounds differently from Python 3.12 on
        for tokens in self._fold():
            reserved += tokens * self._ratio
        for tokens in self._reserved:
            reserved += tokens
        return (self.cache.blank + self.cache.idle) * self.page - reserved
