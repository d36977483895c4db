"""The decoding requests of a replica, as aggregates.

The one idea: decodes advance together, one token a step, so `base = steps - computed` is constant for each of them.
Counters indexed by base answer in O(1) what a loop over the batch would: blocks needed next step (a request needs one
when its computed tokens are a multiple of the block size), sum and maximum of contexts, who finishes when.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from sim.request import Request

R = TypeVar("R", bound=Request)


class Decodes(Generic[R]):
    """Set of decoding requests of one replica; `join` and `leave` come in pairs."""

    def __init__(self, block_size: int) -> None:
        self.n = 0
        self.sum_base = 0
        self.finishing: dict[int, list[R]] = {}  # step count -> requests whose last token it samples
        self._b = block_size
        self._residue = [0] * block_size  # requests by base modulo block size
        self._bases: list[tuple[int, int, R]] = []  # heap; entries of requests that left or moved are skipped
        self._finishes: list[int] = []  # heap of keys of `finishing`, some gone

    def join(self, r: R, base: int) -> None:
        r.base = base
        self.n += 1
        self.sum_base += base
        self._residue[base % self._b] += 1
        heapq.heappush(self._bases, (base, r.order, r))
        last = r.last_step
        if last in self.finishing:
            self.finishing[last].append(r)
        else:
            self.finishing[last] = [r]
            heapq.heappush(self._finishes, last)

    def leave(self, r: R) -> None:
        self.n -= 1
        self.sum_base -= r.base
        self._residue[r.base % self._b] -= 1
        bucket = self.finishing.get(r.last_step, [])
        if r in bucket:  # absent when it is finishing now
            bucket.remove(r)
            if not bucket:
                del self.finishing[r.last_step]

    def blocks_at(self, steps: int) -> int:
        """Blocks the next step needs after `steps` steps."""
        return self._residue[steps % self._b]

    def blocks_over(self, steps: int, k: int) -> int:
        """Blocks the next k steps need."""
        rounds, rest = divmod(k, self._b)
        first = steps % self._b
        over = max(first + rest - self._b, 0)
        return rounds * self.n + sum(self._residue[first : first + rest]) + sum(self._residue[:over])

    def steps_that_fit(self, steps: int, most: int, free: int) -> int:
        """How many of the next `most` steps find their blocks among `free`."""
        if (most // self._b + 1) * self.n <= free:
            return most
        rounds = free // self.n  # whole turns through the residues take n blocks each
        fit, free = min(most, rounds * self._b), free - rounds * self.n
        while fit < most:
            free -= self._residue[(steps + fit) % self._b]
            if free < 0:
                break
            fit += 1
        return fit

    def next_finish(self) -> int:
        """Step count of the next finish; there must be a decoding request."""
        heap = self._finishes
        while heap[0] not in self.finishing:
            heapq.heappop(heap)
        return heap[0]

    def min_base(self) -> int:
        """Smallest base: the longest context is `steps - min_base()`."""
        heap = self._bases
        while True:
            base, _, r = heap[0]
            if r.decoding and r.base == base:
                return base
            heapq.heappop(heap)
