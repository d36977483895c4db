"""What requests would have hit had the fleet had one cache, when its replicas run one after the other.

The one idea: each replica notes when its cache got deeper where others ask, and what it could not know itself; the
notes of all, read in the order of time (at one time in that of replicas), answer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from sim.fleet.clock import Clock
from sim.kvcache.ceilings import Coming, UnderWay, depth_of
from sim.kvcache.chains import Path, Paths, end_block
from sim.log import RequestLog
from sim.request import Request

AT_ONCE = 1 << 16
"""Notes that are read together: only a bound on memory."""


Notes = tuple[array, array, array]
"""When, who and which block, of each note."""


class Histories:
    """Notes of all replicas, each written while it runs alone."""

    def __init__(self, asked_of: np.ndarray, block_size: int) -> None:
        """asked_of: bool [nodes], those of `crossed`; whoever is above such a node is one too."""
        self._asked_of = asked_of.tobytes()
        self._block_size = block_size
        self._begin_notes()
        self.clock = Clock()
        self.seen: dict[int, int] = {}

    def _begin_notes(self) -> None:
        self._time_s = array("d")
        self._who = array("i")  # a chain that got deeper, or -1 - the request that asks
        self._block = array("i")  # how deep, or how deep it reaches where only its own replica enters

    def taken(self) -> Notes:
        """All notes so far, which begin anew (mutates)."""
        notes = self._time_s, self._who, self._block
        self._begin_notes()
        return notes

    def add(self, notes: Notes) -> None:
        """Those of the replicas that come next."""
        if not self._time_s:
            self._time_s, self._who, self._block = notes
            return
        time_s, who, block = notes
        self._time_s.extend(time_s)
        self._who.extend(who)
        self._block.extend(block)

    def begin(self, clock: Clock) -> dict[int, int]:
        """The next replica begins: what it keeps of its cache's past, as if it were the fleet."""
        self.clock, self.seen = clock, _Noted(self)
        return self.seen

    def is_asked_of(self, chain: int) -> bool:
        return chain < len(self._asked_of) and self._asked_of[chain] != 0

    def note(self, time_s: float, who: int, block: int) -> None:
        self._time_s.append(time_s)
        self._who.append(who)
        self._block.append(block)

    def ask(self, r: Request, ceiling_tokens: int) -> None:
        """A request is admitted that would have hit so much in this replica's past."""
        b, path = self._block_size, r.path
        own, limit = ceiling_tokens // b, (r.prompt - 1) // b
        if own >= limit:
            return
        at = bisect_right(path, own, key=end_block)
        if at == len(path) or not self.is_asked_of(path[at][0]):
            return
        while at < len(path) and self.is_asked_of(path[at][0]):
            at += 1
        beyond = depth_of(self.seen, path[at:], path[at - 1][1], limit)
        self.note(self.clock.now, -1 - r.id, beyond)

    def answer(self, paths: Paths, log: RequestLog) -> None:
        """Write into the log what each request that asked would have hit of all replicas' pasts."""
        b, fleet = self._block_size, dict[int, int]()
        order = np.argsort(np.frombuffer(self._time_s), kind="stable") if self._time_s else np.empty(0, np.int64)
        for begin in range(0, len(order), AT_ONCE):
            for i in order[begin : begin + AT_ONCE].tolist():
                who, block = self._who[i], self._block[i]
                if who >= 0:
                    if fleet.get(who, 0) < block:
                        fleet[who] = block
                    continue
                r = -1 - who
                own, limit = log.ceiling_fleet_tokens[r] // b, (log.prompt[r] - 1) // b
                log.ceiling_fleet_tokens[r] = self._reached(fleet, paths.build(r), own, block, limit) * b

    def _reached(self, fleet: dict[int, int], path: Path, own: int, beyond: int, limit: int) -> int:
        best = own
        for chain, hi in path:
            if hi <= own:
                continue
            if not self.is_asked_of(chain):
                return max(best, beyond)
            depth = fleet.get(chain, 0)
            best = max(best, min(depth, hi, limit))
            if depth < hi or best == limit:
                break
        return best


class _Noted(dict[int, int]):
    """Deepest block ever entered of each chain on one replica."""

    def __init__(self, histories: Histories) -> None:
        super().__init__()
        self._histories = histories

    def __setitem__(self, chain: int, block: int) -> None:
        super().__setitem__(chain, block)
        if self._histories.is_asked_of(chain):
            self._histories.note(self._histories.clock.now, chain, block)


class Announced(UnderWay):
    """Stretches of prefill steps of a replica that runs alone: noted when they are over, with the ends of their
    steps."""

    def __init__(self, histories: Histories, block_size: int) -> None:
        super().__init__()
        self._histories, self._block_size = histories, block_size
        self._present: tuple[Path, Coming] | None = None

    def begin(self, path: Path, coming: Coming) -> None:
        self._present = path, coming

    def end(self, replica: int) -> None:
        assert self._present is not None
        path, coming = self._present
        self._present = None
        asked = [(chain, hi) for chain, hi in path if self._histories.is_asked_of(chain)]
        for later, end_s in enumerate(coming.ends_s[:-1] if asked else (), 1):
            block = (coming.computed + later * coming.tokens) // self._block_size
            for chain, hi in asked:
                self._histories.note(end_s, chain, min(hi, block))

    def drop(self, replica: int) -> None:
        self._present = None

    def depth(self, node_id: int, now_s: float, turn: int, block_size: int) -> int:
        return 0  # its own stretch is over whenever it looks
