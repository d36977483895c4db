"""What a router believes a replica holds: prompts it has sent there, the oldest forgotten when they are too many.

The one idea: a prompt is a path of runs in the workload's prefix tree, so an index is a number of tokens for each run,
not a table of hashes; it forgets from the deep end of the run that was longest not asked for, as an LRU of blocks does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from workloads.columns import Workload


class Paths:
    """Runs of a request's prompt in the prefix tree, from the root: (node, its first token, its last token + 1)."""

    def __init__(self, workload: Workload) -> None:
        self._parent, self._end = workload.tree.parent.tolist(), workload.tree.end.tolist()
        self._leaf, self._prompt = workload.leaf.data, workload.prompt_tokens.data

    def of(self, request: int) -> list[tuple[int, int, int]]:
        prompt, node, runs = self._prompt[request], self._leaf[request], []
        while self._parent[node] >= 0:
            start = self._end[self._parent[node]]
            if start < prompt:
                runs.append((node, start, min(self._end[node], prompt)))
            node = self._parent[node]
        runs.append((node, 0, 0))  # the root: prompts of two isolation domains share nothing
        runs.reverse()
        return runs


class PrefixIndex:
    """Of one replica. capacity: tokens it remembers; None: all."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.size = 0
        self._held: OrderedDict[int, tuple[int, int]] = (
            OrderedDict()
        )  # node -> tokens (from, to), longest unasked first

    def matched(self, runs: Sequence[tuple[int, int, int]]) -> int:
        """Tokens of the longest start of a prompt that it remembers."""
        tokens = 0
        for node, _, end in runs:
            held = self._held.get(node)
            if held is None:
                break
            tokens = min(held[1], end)
            if tokens < end:
                break
        return tokens

    def insert(self, runs: Sequence[tuple[int, int, int]], most: int | None = None) -> None:
        """Remember a prompt, of at most its first so many tokens."""
        kept = [(node, start, end if most is None else min(end, most)) for node, start, end in runs]
        for node, start, end in reversed([run for run in kept if run[2] > run[1] or run[0] == runs[0][0]]):
            before = self._held.pop(node, (start, start))
            self._held[node] = start, max(before[1], end)
            self.size += self._held[node][1] - before[1]
        while self.capacity is not None and self.size > self.capacity:
            self._forget(self.size - self.capacity)

    def _forget(self, tokens: int) -> None:
        node, (start, end) = next(iter(self._held.items()))
        tokens = min(tokens, end - start)
        self.size -= tokens
        if end - tokens > start:
            self._held[node] = start, end - tokens
        else:
            del self._held[node]
