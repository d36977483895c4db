"""The seam of an eviction policy: a few hooks that colour cached blocks, and one question: which leaf goes first?

The one idea: the cache owns the blocks, a policy owns one value on them, `run.state`. Blocks [lo, hi) with one history
are one `Run`; runs are split and joined freely, so a state is immutable and compared with ==. When memory is short, the
cache asks among the *leaves*: idle blocks with nothing cached below them, which alone may go without a hole.

    class Lfu(Policy):
        \"\"\"Fewest uses go first, ties by the oldest release.\"\"\"

        def on_insert(self, run, request):
            run.state = 1

        def on_hit(self, run, request):
            run.state += 1

        def key(self, run):
            return run.state, run.released

Rules that keep a run exact. `on_insert` may come late for generated blocks: it sets the state from the request and
nothing that changes meanwhile; counting starts when they are let go of. `key` and `group` depend on the run alone while
it is a leaf; only `victim` compares with the rest of the world. Where a run ends (`run.hi`) changes as its blocks go: a
user's own policy that asks for it is asked again for every block (`own.steady`), one of ours sees to it with `span` or
a key that does not grow. Where it begins is the cache's affair. The time is `now_s`, the last admission or release
here."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from workloads.columns import Workload

Key = tuple[Any, ...]


class Run:
    """Blocks [lo, hi) of a node, or a chain of nodes, that have shared one history."""

    __slots__ = ("hi", "lo", "node_id", "released", "state", "uncounted")

    def __init__(self, node_id: int, lo: int, hi: int, released: int = 0, state: Any = None) -> None:
        self.node_id = node_id
        self.lo = lo
        self.hi = hi
        self.released = released  # number of the release that took its last pin
        self.state = state  # the policy's
        self.uncounted = 0  # the cache's: hits that end here and are in no state yet

    def __len__(self) -> int:
        return self.hi - self.lo


class Asking(Protocol):
    """What a policy may read of a request. Its row in the workload is `id`."""

    id: int
    admission: int  # number of its present admission on this replica, from 1
    path: list[tuple[int, int]]  # (node id, end block), shallow to deep
    entered: int  # leading blocks in the cache


@dataclass(frozen=True)
class World:
    """What a policy knows from the start."""

    workload: Workload
    capacity_blocks: int
    block_size: int  #: tokens
    rng: random.Random = field(default_factory=lambda: random.Random(0))  #: this replica's own stream


def expect(ok: bool, name: str, value: Any, expected: str) -> None:
    """Raise ValueError for a parameter whose value makes no sense."""
    if not ok:
        raise ValueError(f"{name} = {value!r}, expected {expected}")


class Policy:
    """Least recently used leaf first, until a subclass says otherwise. Keyword arguments of `__init__` are its
    parameters."""

    by_node = False
    """Whether `node_id` must name a tree node, as for frequencies by node. Otherwise it names a chain: nodes that
    nothing parts, by the first (`sim.kvcache.chains`)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now_s = 0.0  # set by the cache at every admission and release

    # -- what happens to blocks: set run.state ----------------------------------------------------------------------
    def on_admit(self, request: Asking) -> None:
        """A request is admitted: its hits (`request.entered` blocks) are about to be pinned, nothing is evicted yet."""

    def on_insert(self, run: Run, request: Asking) -> None:
        """New blocks enter, pinned by their request."""

    def on_hit(self, run: Run, request: Asking) -> None:
        """An admission found them in the cache and pins them. A policy to which only the number of hits matters says
        `after_hits` instead."""
        run.state = self.after_hits(run.state, 1)

    def after_hits(self, state: Any, n: int) -> Any:
        """What n hits make of a state. While `on_hit` is left alone they are counted when somebody looks, so that a
        turn of a long session visits none of the turns before it."""
        return state

    def on_first_release(self, run: Run, request: Asking) -> None:
        """Their last pin is gone for the first time. `run.state` may still lack hits that `after_hits` will count."""

    def on_release(self, run: Run, request: Asking) -> None:
        """Their last pin is gone; `run.released` is set. Visits all that a request lets go of: where the first time
        alone matters, `on_first_release` is quicker."""

    def on_evict(self, run: Run, n: int) -> None:
        """The deepest n blocks of a leaf leave; `run.hi` is still what it was."""

    # -- which leaf goes first --------------------------------------------------------------------------------------
    def key(self, run: Run) -> Key:
        """Order of a leaf inside its group; the smallest goes first. No two leaves may have equal keys."""
        return (run.released,)

    def group(self, run: Run) -> Any:
        """Leaves are kept in groups, each ordered by `key`."""
        return 0

    def victim(self, heads: Mapping[Any, Key]) -> Any:
        """The group that loses its head, given the smallest key of every group that has a leaf."""
        return min(heads, key=heads.__getitem__)

    def span(self, run: Run) -> int:
        """How many of a chosen leaf's blocks may go before the policy wants to be asked again."""
        return len(run)

    def second_chance(self, run: Run) -> bool:
        """Whether a chosen leaf is spared; then `spare` must change where it stands."""
        return False

    def spare(self, runs: list[Run]) -> None:
        """A spared leaf, deepest first, with its ancestors up to the first that is pinned, shared or in another
        state."""
        raise NotImplementedError

    # -- for the cache: blocks that come back -----------------------------------------------------------------------
    def split(self, node_id: int, lo: int, hi: int, request: Asking) -> int:
        """Where an insertion of [lo, hi) must be cut since its blocks differ: the end of the first part."""
        return hi
