"""The pool under all groups: vLLM's free list of runs, with a table of blocks for every request and group.

The one idea: a block without a hash has no identity, so what a request holds in a group is two numbers (from where, to
where) and the few runs of it that are hashed; the rest is a count. Runs of all groups stand in one free list, in which
a node of group g is the node `id * groups + g`. A request that gives back blocks behind its window gives back runs, so
nothing here costs by the length of a context."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from calibrate.kv_groups import FULL, STATE
from sim.kvcache.chains import Path, end_block
from sim.kvcache.groups import lookup
from sim.kvcache.groups.rules import GroupRules, Span
from sim.kvcache.release_order import Node, ReleaseOrderCache, Run

Piece = tuple[Run, int, int]
"""Blocks [lo, hi) of a run."""


class Table:
    """What a request holds in one group: blocks [start, end), of which `handles` pin the hashed ones."""

    __slots__ = ("end", "handles", "hashed", "last", "path", "path_index", "pinned", "rules", "start", "states")

    def __init__(self, rules: GroupRules, path: Path) -> None:
        self.rules = rules
        self.path = path
        self.clear()

    def clear(self) -> None:
        self.start = self.end = self.hashed = self.pinned = self.path_index = 0
        self.handles: list[tuple[Run, int]] = []
        self.states: set[int] = set()  # STATE: of [start, end) only these are held without a hash
        self.last = -1  # STATE: the last block before the previous allocation

    def private(self) -> int:
        """Blocks held without a hash."""
        return len(self.states) if self.rules.kind == STATE else self.end - self.start - self.pinned

    def wanted(self, tokens: int) -> int:
        """New blocks for so many tokens in all."""
        more = self.rules.blocks(tokens) - self.end
        return 0 if more <= 0 else 1 if self.rules.kind == STATE else more


class Holder(Protocol):
    """What a cache reads and writes on a request that holds blocks."""

    path: Path  # in blocks of `aligned` tokens, of no group
    path_index: int
    entered: int  # blocks of that size, hashed as far as their groups keep them
    prompt: int
    junction: int  # where its last look-up found a prefix that only some groups have, tokens
    tables: list[Table]


class Found:
    """A look-up: tokens hit, and what of it must be pinned in each group."""

    def __init__(self, tokens: int, longest: int, pieces: list[list[Piece]]) -> None:
        self.tokens = tokens
        self.longest = longest
        self.pieces = pieces


class HybridCache(ReleaseOrderCache):
    """The prefix cache of several groups, exact in its free list."""

    def __init__(
        self, total_blocks: int, rules: Sequence[GroupRules], n_shared: int, fleet_seen: dict[int, int], caching: bool
    ) -> None:
        self.rules = rules
        super().__init__(total_blocks, rules[0].aligned, n_shared, fleet_seen)
        self.caching = caching
        self._shared_keys = n_shared * len(rules)
        kinds: dict[tuple, list[GroupRules]] = {}
        for r in sorted(rules, key=lambda r: r.kind != FULL):
            kinds.setdefault(r.spec, []).append(r)
        self.kinds = list(kinds.values())
        self.ever: dict[int, list[Span]] = {}  # what was hashed, had nothing been evicted
        self.new_states: set[tuple[int, int] | Run] = set()  # hashed in this call: (node, block), a younger copy itself

    def key(self, node: int, group: int) -> int:
        return node * len(self.rules) + group

    # -- look up ----------------------------------------------------------------------------------------------------
    def spans(self, node_id: int) -> list[Span]:
        """What is cached of a node."""
        node = self.nodes.get(node_id)
        if node is None:
            return []
        spans = [(run.lo, run.hi) for run in node.main]
        for block in node.extra:  # younger copies: most lie where an older one does
            _add(spans, block, block + 1)
        return spans

    def kept(self, node_id: int) -> Sequence[Span]:
        """What was ever hashed of a node."""
        return self.ever.get(node_id, ())

    def find(self, paths: Sequence[Path], known: int) -> Found:
        """What a request of so many known tokens hits. Pins nothing."""
        if not self.caching:
            return Found(0, 0, [[] for _ in self.rules])
        tokens, longest = lookup.find(self.kinds, paths, self.spans, known - 1)
        pieces = [
            list(self._pieces(path, min(r.skipped(tokens), tokens // r.b), -(-tokens // r.b))) if tokens else []
            for r, path in zip(self.rules, paths, strict=True)
        ]
        return Found(tokens, longest, pieces)

    def would_have(self, paths: Sequence[Path], known: int) -> int:
        """Tokens hit had nothing ever been evicted here."""
        return lookup.find(self.kinds, paths, self.kept, known - 1)[0] if self.caching else 0

    def _pieces(self, path: Path, lo: int, hi: int) -> Iterator[Piece]:
        """The oldest copies of the blocks [lo, hi) of a path, as far as they are cached."""
        for node_id, end in path:
            node = self.nodes.get(node_id)
            while node is not None and lo < min(end, hi):
                run = node.covering(lo)
                if run is None:
                    return
                upto = min(run.hi, end, hi)
                yield run, lo, upto
                lo = upto

    def need(self, tables: Sequence[Table], found: Found, tokens: int, caps: Sequence[int] | None) -> int:
        """Free blocks that a request takes which has nothing yet, for so many tokens in all."""
        need = 0
        for table, pieces in zip(tables, found.pieces, strict=True):
            r = table.rules
            most = r.blocks(tokens)
            if caps is not None and r.kind != STATE:
                most = min(most, caps[r.index])
            more = max(most - max(r.skipped(found.tokens), -(-found.tokens // r.b)), 0)
            need += min(more, 1) if r.kind == STATE else more
            need += sum(hi - lo for run, lo, hi in pieces if not run.refs)
        return need

    def same_step(self, found: Found) -> bool:
        """Whether it hits a state that is not computed before this step's end."""
        new = self.new_states
        return bool(new) and any(
            (run.node.id, hi - 1) in new or run in new for pieces in found.pieces for run, _, hi in pieces[-1:]
        )

    # -- hold -------------------------------------------------------------------------------------------------------
    def pin(self, request: Holder, found: Found) -> None:
        """Hold what was found. Paired with `release`."""
        for table, pieces in zip(request.tables, found.pieces, strict=True):
            table.end = table.hashed = -(-found.tokens // table.rules.b)
            table.start = min(table.rules.skipped(found.tokens), table.end)
            for run, lo, hi in pieces:
                self._pin(table, run, lo, hi)

    def _pin(self, table: Table, run: Run, lo: int, hi: int) -> None:
        if run.lo < lo:
            self._split(run, lo)
            run = run.deeper  # type: ignore[assignment]
        if hi < run.hi:
            self._split(run, hi)
        if not run.refs:
            run.prev.next = run.next
            run.next.prev = run.prev
            self.idle -= hi - lo
        run.refs += 1
        table.handles.append((run, hi))
        table.pinned += hi - lo

    def grow(self, tables: Sequence[Table], tokens: int) -> None:
        """Take the blocks for so many tokens in all; the caller has checked that they are free."""
        for table in tables:
            more = table.wanted(tokens)
            if not more:
                continue
            self.take(more)
            if table.rules.kind == STATE:
                table.last = table.end - 1
                table.end = -(-tokens // table.rules.b)
                table.states.add(table.end - 1)
            else:
                table.end += more

    def retire(self, tables: Sequence[Table], tokens: int) -> None:
        """Give back what nobody looks at once so many tokens are processed."""
        for table in tables:
            r = table.rules
            if r.kind == FULL:
                continue
            skipped = min(r.skipped(tokens), table.end)
            if skipped > table.start:
                self._drop(table, table.start, skipped)
                table.start = skipped
            if r.kind == STATE and table.start <= table.last < -(-tokens // r.b) - 1:
                self._drop(table, table.last, table.last + 1)

    def _drop(self, table: Table, lo: int, hi: int) -> None:
        """Let go of the blocks [lo, hi) of a table, the deepest first; those without a hash become blank."""
        gone, kept = [], []
        for first, end in table.handles:
            if end <= lo or first.lo >= hi:
                kept.append((first, end))
                continue
            for run in _runs(first, end):
                if run.lo < lo < run.hi:
                    self._split(run, lo)
                    kept.append((run, lo))
                    run = run.deeper  # type: ignore[assignment]
                if run.lo < hi < run.hi:
                    self._split(run, hi)
                    gone.append(run)
                    run = run.deeper  # type: ignore[assignment]
                (gone if lo <= run.lo < hi else kept).append(run if lo <= run.lo < hi else (run, run.hi))  # type: ignore[arg-type]
        table.handles = kept
        pinned = sum(run.hi - run.lo for run in gone)
        table.pinned -= pinned
        if table.rules.kind == STATE:
            blank = [block for block in table.states if lo <= block < hi]
            table.states.difference_update(blank)
            self.blank += len(blank)
        else:
            self.blank += hi - lo - pinned
        before = self._queue.prev
        for run in reversed(gone):
            self._unpin(run, before)

    def release(self, request: Any) -> None:
        """Let go of all tables, group by group, each from its last block to its first."""
        for table in request.tables:
            self.blank += table.private()
            before = self._queue.prev
            for first, end in reversed(table.handles):
                for run in reversed(_runs(first, end)):
                    self._unpin(run, before)
            table.clear()
        request.path_index = 0
        if request.entered:
            self._note(request, request.entered, self.seen.enter)
        request.held = request.entered = request.path_index = 0

    # -- hash -------------------------------------------------------------------------------------------------------
    def enter_tokens(self, request: Holder, tokens: int, generated: bool = False) -> None:
        """The request's blocks up to so many computed tokens enter the cache, as far as their group keeps them. What is
        generated counts for other replicas' ceilings once it is let go: until then a stretch of steps is one event."""
        aligned = tokens // self.block_size
        if aligned <= request.entered:
            return
        self._note(request, aligned, self.seen.enter_here if generated else self.seen.enter)
        if not self.caching:
            return
        marks = (request.prompt - 1, request.junction)
        for table in request.tables:
            hi = aligned * self.block_size // table.rules.b
            if hi > table.hashed:
                for lo, end in table.rules.kept(max(table.hashed, table.start), hi, marks):
                    self._enter(table, lo, end)
                table.hashed = hi

    def _note(self, request: Holder, hi: int, enter: Callable[[int, int], None]) -> None:
        """For the ceilings, which know of no groups."""
        path, i = request.path, request.path_index
        while True:
            node, end = path[i]
            enter(node, min(end, hi))
            if end >= hi:
                break
            i += 1
        request.path_index, request.entered = i, hi

    def _enter(self, table: Table, lo: int, hi: int) -> None:
        if table.rules.kind == STATE:
            for block in sorted(block for block in table.states if lo <= block < hi):
                table.states.remove(block)
                self._enter_span(table, block, block + 1)
                run, _ = table.handles[-1]
                self.new_states.add(run if run.extra else (run.node.id, block))
        else:
            self._enter_span(table, lo, hi)

    def _enter_span(self, table: Table, lo: int, hi: int) -> None:
        path, i = table.path, table.path_index
        table.pinned += hi - lo
        while lo < hi:
            key, below = path[i]
            if below <= lo:
                i += 1
                continue
            node = self.nodes.get(key)
            if node is None:
                node = self.nodes[key] = Node(key)
            end = min(below, hi)
            self._place(table, node, lo, end)  # type: ignore[arg-type]
            if key < self._shared_keys:
                _add(self.ever.setdefault(key, []), lo, end)
            table.path_index = i
            lo = end

    # -- what the engine tells a cache whose requests enter late ------------------------------------------------------
    def enter_to(self, request: Any, hi: int) -> None:
        self.enter_tokens(request, hi * self.block_size, generated=True)

    def enter_generated(self, request: Any) -> None:
        """Blocks enter when they are taken, none later."""

    def start_writing(self, request: Any) -> None:
        """Nobody enters late."""

    def being_written(self, path: Path) -> bool:
        return False

    def ceilings(self, path: Path, hit: int, limit: int) -> tuple[int, int]:
        own, fleet = self.seen.ceilings(path[bisect_right(path, hit, key=end_block) :], hit, limit)
        return own, max(own, fleet)


def _runs(first: Run, end: int) -> list[Run]:
    """A handle's runs, shallow to deep: others may have split it."""
    runs = [first]
    while runs[-1].hi < end:
        runs.append(runs[-1].deeper)  # type: ignore[arg-type]
    return runs


def _add(spans: list[Span], lo: int, hi: int) -> None:
    """Add [lo, hi) to spans that are ascending and apart."""
    if not spans or spans[-1][1] < lo:
        spans.append((lo, hi))
        return
    i = bisect_left(spans, lo, key=end_block)
    j = i
    while j < len(spans) and spans[j][0] <= hi:
        lo, hi = min(lo, spans[j][0]), max(hi, spans[j][1])
        j += 1
    spans[i:j] = [(lo, hi)]
