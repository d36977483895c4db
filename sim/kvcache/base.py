"""What every block cache shares: the counts of free memory, and the entry of generated blocks when somebody looks.

The one idea: the cache is *state on the prefix tree*. A node owns the blocks whose last token falls in it; a request's
path is a short list of (node id, end block), so a 100k-token prompt costs a few visits, not thousands. Blocks are
numbered along the path: block k holds tokens [k * block_size, (k + 1) * block_size).

Memory is three counts: in use (referenced), `idle` (cached, unreferenced, may be evicted) and `blank` (holds nothing
worth keeping, always taken first). `free = blank + idle` is what an allocation may take.

What a decode generates enters late: requests register as writers of the shared nodes on their path, and whoever visits
a node first enters what its writers have computed by now, in the order the engine did (`flush`)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, Protocol

from sim.kvcache.ceilings import Coming, Seen, UnderWay
from sim.kvcache.chains import Path, end_block
from sim.kvcache.policies.base import Asking


class Holder(Asking, Protocol):
    """What a cache reads and writes on a request that holds blocks."""

    path_index: int  # node the next block to enter falls in, or an earlier one
    held: int  # blocks it references, partial one included
    private: int  # its own copies of blocks that were cached already
    handles: list[Any]
    decoding: bool
    base: int  # while decoding: computed tokens = steps + ahead - base
    ahead: int  # 1 between being scheduled in running order and the end of that schedule
    order: int  # position in the running order
    writing: list[Any]  # nodes it still enters blocks into


class Lower(Protocol):
    """What lies below a cache and is told which blocks come and go: `sim.kvcache.tiers.Tiers`."""

    def evicted(self, node: int, lo: int, hi: int) -> None: ...

    def entered(self, node: int, lo: int, hi: int) -> None: ...

    def released(self, path: Path, end: int) -> None: ...


class BlockCache:
    """Counts, ceilings and lazy entry; subclasses keep the runs (`lookup`, `acquire`, `_place`, `release`,
    `_evict`)."""

    def __init__(self, total_blocks: int, block_size: int, n_shared: int, fleet_seen: dict[int, int]) -> None:
        self.total = total_blocks
        self.block_size = block_size
        self.blank = total_blocks
        self.idle = 0
        self.evicted = 0  # blocks, since the start
        self.taken = 0  # likewise
        self.steps = 0  # engine steps started; the scheduler advances it
        self.now_s = 0.0  # the replica sets it
        self.turn = 0  # likewise: the last replica that has had its turn at this time
        self.nodes: dict[int, Any] = {}
        self.overlapped: set[Holder] = (
            set()
        )  # decodes about to compute blocks that are cached already; must not be entered late
        self._n_shared = n_shared
        self.seen = Seen(n_shared, fleet_seen)
        self.replica = 0
        self.under_way: UnderWay | None = None  # shared by all replicas, when there are several
        self.lower: Lower | None = None  # cache tiers, told what happens here
        self.lag = 0  # 1 when a block enters only with the step after the one that fills it (asynchronous scheduling)

    @property
    def free(self) -> int:
        return self.blank + self.idle

    # -- to be provided ---------------------------------------------------------------------------------------------
    def lookup(self, path: Path, limit: int) -> tuple[int, int, list[Any]]:
        """(hit blocks, of which idle, handles) of the longest cached start of `path`, at most `limit` blocks. Pins
        nothing."""
        raise NotImplementedError

    def acquire(self, request: Holder, handles: list[Any]) -> None:
        """Pin what `lookup` found. Paired with `release`."""
        raise NotImplementedError

    def release(self, request: Holder) -> None:
        """Unpin everything the request holds; full blocks stay cached, its partial block becomes blank."""
        raise NotImplementedError

    def _place(self, request: Holder, node: Any, lo: int, hi: int) -> None:
        raise NotImplementedError

    def _evict(self, n: int) -> None:
        raise NotImplementedError

    def _new_node(self, request: Holder, index: int) -> Any:
        raise NotImplementedError

    def _drop_if_empty(self, node: Any) -> None:
        raise NotImplementedError

    # -- memory -----------------------------------------------------------------------------------------------------
    def take(self, n: int) -> None:
        """Take n free blocks: blank ones first, then evict. The caller has checked `n <= free`."""
        self.taken += n
        if n <= self.blank:
            self.blank -= n
            return
        short = n - self.blank
        self.blank = 0
        self.idle -= short
        self.evicted += short
        self._evict(short)

    # -- entry ------------------------------------------------------------------------------------------------------
    def enter(self, request: Holder, hi: int, flush: bool = True) -> None:
        """Put the request's full blocks up to `hi` into the cache (they already hold memory).

        What others write on its nodes comes first; flush=False: the caller has put them all in order.
        """
        lo = request.entered
        path = request.path
        i = request.path_index
        while lo < hi:
            node_id, node_hi = path[i]
            if node_hi <= lo:
                i += 1
                continue
            node = self.nodes.get(node_id) or self._new_node(request, i)
            if flush and node.writers:
                self.flush(node)
            end = node_hi if node_hi < hi else hi
            request.path_index = i
            self._place(request, node, lo, end)
            request.entered = end
            if self.lower is not None:
                self.lower.entered(node_id, lo, end)
            self.seen.enter(node_id, end)
            lo = end

    # -- late entry -------------------------------------------------------------------------------------------------
    def start_writing(self, request: Holder) -> None:
        """Register on the shared nodes the request will still enter blocks into, so that whoever visits them flushes
        first."""
        entered = request.entered
        for i in range(len(request.path) - 1, -1, -1):
            node_id, node_hi = request.path[i]
            if node_hi <= entered:
                break
            if node_id < self._n_shared:
                node = self.nodes.get(node_id) or self._new_node(request, i)
                node.writers.append(request)
                request.writing.append(node)

    def stop_writing(self, request: Holder) -> None:
        for node in request.writing:
            node.writers.remove(request)
            self._drop_if_empty(node)
        request.writing.clear()

    def finish_writing(self, request: Holder) -> None:
        """Begin to let go: enter what is left to enter, and tell the tiers what is let go."""
        self.enter_generated(request)
        self.stop_writing(request)
        if self.lower is not None:
            self.lower.released(request.path, request.entered)

    def begin_decode(self, request: Holder) -> None:
        """The request has left prefill."""

    def pending(self, request: Holder) -> int:
        """Full blocks computed so far by a decoding request: those beyond `entered` are still to be entered."""
        if not request.decoding:
            return request.entered
        return (self.steps + request.ahead - request.base - self.lag) // self.block_size

    def enter_generated(self, request: Holder) -> None:
        """Enter what a decoding request has generated since (before it finishes, is preempted, or is shifted)."""
        self.enter_to(request, self.pending(request))

    def enter_to(self, request: Holder, hi: int) -> None:
        """Enter the blocks of a request up to `hi`, after what others on its nodes have generated."""
        if hi <= request.entered:
            return
        for node in tuple(request.writing):
            self.flush(node)
        self.enter(request, hi)

    def flush(self, node: Any) -> None:
        """Enter the generated blocks of every request writing to `node`, in the order the engine entered them."""
        behind = [w for w in node.writers if w.entered < self.pending(w)]
        if not behind:
            return
        group = self._entangled(behind)
        if len(group) == 1:
            self.enter(group[0], self.pending(group[0]), flush=False)
            return
        b = self.block_size
        blocks = [(w.base + (k + 1) * b, w.order, k, w) for w in group for k in range(w.entered, self.pending(w))]
        for _, _, k, w in sorted(blocks, key=lambda entry: entry[:3]):
            self.enter(w, k + 1, flush=False)

    def _entangled(self, behind: list[Holder]) -> list[Holder]:
        """Everybody behind who shares a node with one of them, or with one who does."""
        group: dict[Holder, None] = {}
        todo = behind
        while todo:
            w = todo.pop()
            group[w] = None
            for other in (o for n in w.writing for o in n.writers):
                if other not in group and other.entered < self.pending(other):
                    todo.append(other)
        return list(group)

    def has_way_clear(self, request: Holder) -> bool:
        """Whether nothing lies, and nobody else writes, on the rest of its path: when exactly it enters a block makes
        no difference here."""
        return all(node.hi <= request.entered and len(node.writers) == 1 for node in request.writing)

    def being_written(self, path: Path) -> bool:
        """Whether some running request may still enter blocks on this path."""
        for node_id, hi in path:
            node = self.nodes.get(node_id)
            if node is not None and node.writers and any(w.entered < hi for w in node.writers):
                return True
        return False

    # -- ceilings ---------------------------------------------------------------------------------------------------
    def announce(self, request: Holder, computed: int, tokens: int, ends_s: array[float]) -> None:
        """A stretch of prefill steps begins; `arrived` follows at its end."""
        if self.under_way is not None:
            beyond = [
                (node_id, hi)
                for node_id, hi in request.path[request.path_index :]
                if hi > request.entered and node_id < self._n_shared
            ]
            self.under_way.begin(beyond, Coming(self.replica, computed, tokens, ends_s))

    def arrived(self) -> None:
        """All that was announced has entered."""
        if self.under_way is not None:
            self.under_way.end(self.replica)

    def ceilings(self, path: Path, hit: int, limit: int) -> tuple[int, int]:
        """Hit blocks had this replica, and had all replicas as one cache, never evicted anything; at least `hit`."""
        beyond = path[bisect_right(path, hit, key=end_block) :]
        for node_id, _ in beyond:
            node = self.nodes.get(node_id)
            if node is not None and node.writers:
                self.flush(node)
            if self.under_way is not None and (
                depth := self.under_way.depth(node_id, self.now_s, self.turn, self.block_size)
            ):
                self.seen.enter_elsewhere(node_id, depth)
        return self.seen.ceilings(beyond, hit, limit)
