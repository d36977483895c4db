"""Per-block references of the policies that keep queues or remember what they evicted: sieve, s3fifo, arc, wtinylfu.

As tests.reference_policies: slow and plain, real lists of single blocks, every decision made again for every block.
`keys` are the hashes of each request's blocks, prompt and answer: what an admission asks for, and brings back."""

from __future__ import annotations

from typing import Any

from tests.reference_cache import Block
from tests.reference_policies import About, StoryPool


class QueuePool(StoryPool):
    """`batch` numbers what joins a queue together: the blocks of one release, deepest first, or what one second chance
    moves."""

    def __init__(self, num_blocks: int, about: About):
        super().__init__(num_blocks, about)
        self.batch = 0
        self.keys: list[list[int]] = []
        self.back: dict[int, set[int]] = {}  # request -> hashes that it brings back

    def share(self, name: str, default: float) -> int:
        return int(self.about.params.get(name, default) * self.num_blocks)

    def touch(self, blocks: list[Block]) -> None:
        self._admitted(self.keys[self.user], len(blocks))
        super().touch(blocks)

    def _admitted(self, keys: list[int], hits: int) -> None:
        pass

    def release(self, blocks: list[Block]) -> None:
        self.batch += 1
        super().release(blocks)
        self.back.pop(self.user, None)

    def recall(self, names: list[int], keys: list[int]) -> int:
        """Take out of `names` what the request asks for and does not hit."""
        found = [key for key in names if key in set(keys)]
        names[:] = [key for key in names if key not in set(keys)]
        self.back.setdefault(self.user, set()).update(found)
        return len(found)

    def chain(self, leaf: Block) -> list[Block]:
        """The leaf and its ancestors while each is unpinned, the only child, and has the leaf's story."""
        chain = [leaf]
        while (
            (above := chain[-1].parent)
            and above.refs == 0
            and above.children == 1
            and self.story[above] == self.story[leaf]
        ):
            chain.append(above)
        return chain


class Sieve(QueuePool):
    """story: [place in the queue or None, visited]; a place is (batch, -depth)."""

    hand = newest = (-1, 0)

    def _inserted(self, block: Block) -> None:
        self.story[block] = [None, False]

    def _hit(self, block: Block) -> None:
        self.story[block][1] = True

    def _freed(self, block: Block) -> None:
        if self.story[block][0] is None:
            self.story[block][0] = self.batch
            self.newest = max(self.newest, self._place(block))

    def _place(self, block: Block) -> tuple[int, int]:
        return self.story[block][0], -block.depth

    def _victim(self, candidates: list[Block]) -> Block:
        while True:
            ahead = [block for block in candidates if self._place(block) > self.hand]
            block = min(ahead or candidates, key=self._place)
            if not self.story[block][1]:
                return block
            chain = self.chain(block)
            for spared in chain:
                self.story[spared] = [self.story[spared][0], False]
            self.hand = self._place(chain[-1])

    def _evicted(self, block: Block) -> None:
        self.hand = self._place(block)
        if self.hand == self.newest:
            self.hand = (-1, 0)
        super()._evicted(block)


class S3Fifo(QueuePool):
    """story: [queue, batch or None, uses]."""

    def __init__(self, num_blocks: int, about: About):
        super().__init__(num_blocks, about)
        self.queues: dict[str, list[Block]] = {"small": [], "main": []}
        self.names: list[int] = []
        self.walking = False  # the small queue is walked until something of it goes
        self.joins_main = False

    def release(self, blocks: list[Block]) -> None:
        self.joins_main = self.about.params.get("start_up") == "libcachesim" and self._overflows()
        super().release(blocks)

    def _overflows(self) -> bool:
        return not self.evicted and self._small_is_over()

    def _admitted(self, keys: list[int], hits: int) -> None:
        self.recall(self.names, keys[hits:])

    def _inserted(self, block: Block) -> None:
        self.story[block] = ["main" if block.key in self.back.get(self.user, ()) else "small", None, 0]

    def _hit(self, block: Block) -> None:
        self.story[block][2] = min(3, self.story[block][2] + 1)

    def _freed(self, block: Block) -> None:
        if self.story[block][1] is None:
            self.story[block][1] = self.batch
            if self.joins_main:
                self.story[block][0] = "main"
            self.queues[self.story[block][0]].append(block)

    def _small_is_over(self) -> bool:
        return len(self.queues["small"]) >= self.share("small_share", 0.1)

    def _uses_wanted(self, queue: str) -> int:
        return self.about.params.get("main_uses", 2) if queue == "small" else 1

    def _victim(self, candidates: list[Block]) -> Block:
        while True:
            small, main = ([b for b in self.queues[name] if b in set(candidates)] for name in ("small", "main"))
            queue = "small" if not main or (small and (self._small_is_over() or self.walking)) else "main"
            block = (small if queue == "small" else main)[0]
            if self.story[block][2] < self._uses_wanted(queue):
                return block
            self.walking |= queue == "small"
            self.batch += 1
            for spared in self.chain(block):
                self.queues[queue].remove(spared)
                self.queues["main"].append(spared)
                self.story[spared] = ["main", self.batch, 0 if queue == "small" else self.story[spared][2] - 1]

    def _evicted(self, block: Block) -> None:
        self.walking = False
        queue = self.story[block][0]
        self.queues[queue].remove(block)
        if queue == "small":
            assert block.key is not None
            self.names.append(block.key)
            del self.names[: max(0, len(self.names) - self.share("ghost_share", 0.9))]
        super()._evicted(block)


class Arc(QueuePool):
    """story: [list, counted]."""

    def __init__(self, num_blocks: int, about: About):
        super().__init__(num_blocks, about)
        self.names: dict[str, list[int]] = {"once": [], "again": []}
        self.target = 0.0
        self.missed_again = False

    def _admitted(self, keys: list[int], hits: int) -> None:
        once, again = (max(1, len(self.names[name])) for name in ("once", "again"))
        from_once, from_again = (self.recall(self.names[name], keys[hits:]) for name in ("once", "again"))
        self.target = min(self.num_blocks, self.target + from_once * self._pull(again, once))
        self.target = max(0.0, self.target - from_again * self._pull(once, again))
        self.missed_again = from_again > 0

    def _pull(self, other: int, own: int) -> float:
        return max(1.0, other / own)

    def _inserted(self, block: Block) -> None:
        self.story[block] = ["again" if block.key in self.back.get(self.user, ()) else "once", False]

    def _hit(self, block: Block) -> None:
        self.story[block][0] = "again"

    def _freed(self, block: Block) -> None:
        self.story[block][1] = True
        once, again = self._count("once"), self._count("again")
        gave_once, gave_again = self.names["once"], self.names["again"]
        del gave_once[: max(0, len(gave_once) - max(0, self.num_blocks - once))]
        del gave_again[: max(0, len(gave_again) - max(0, 2 * self.num_blocks - once - again - len(gave_once)))]

    def _count(self, name: str) -> int:
        return sum(which == name and counted for which, counted in self.story.values())

    def _victim(self, candidates: list[Block]) -> Block:
        once, again = ([b for b in candidates if self.story[b][0] == name] for name in ("once", "again"))
        size = self._count("once")
        over = size > self.target or (self.missed_again and size == self.target)
        return self._oldest(once if not again or (over and once) else again)

    def _evicted(self, block: Block) -> None:
        assert block.key is not None
        self.names[self.story[block][0]].append(block.key)
        super()._evicted(block)


class WTinyLfu(QueuePool):
    """story: [segment, batch or None]; of one batch the deepest block is the oldest."""

    def __init__(self, num_blocks: int, about: About):
        super().__init__(num_blocks, about)
        self.window = max(1, self.share("window_share", 0.01))
        self.main = num_blocks - self.window
        self.protected = int(about.params.get("protected_share", 0.8) * self.main)
        self.asked = 0
        self.frequency: dict[int, int] = {}
        self.overfull = False

    def _admitted(self, keys: list[int], hits: int) -> None:
        self.overfull = self._count("window") > self.window
        for key in keys:
            self.frequency[key] = self.frequency.get(key, 0) + 1
        self.asked += len(keys)
        if self.asked >= self.about.params.get("sample", 10) * self.num_blocks:
            self.asked //= 2
            self.frequency = {key: n // 2 for key, n in self.frequency.items()}

    def _count(self, *segments: str) -> int:
        return sum(segment in segments and batch is not None for segment, batch in self.story.values())

    def _inserted(self, block: Block) -> None:
        self.story[block] = ["window", None]

    def _hit(self, block: Block) -> None:
        segment, batch = self.story[block]
        if segment == "probation" or (segment == "window" and self.overfull and batch is not None):
            self.story[block][0] = "protected"

    def _freed(self, block: Block) -> None:
        self.story[block][1] = self.batch

    def _first(self, candidates: list[Block], segment: str) -> Block | None:
        found = [block for block in candidates if self.story[block][0] == segment]
        return min(found, key=lambda block: (self.story[block][1], -block.depth)) if found else None

    def _victim(self, candidates: list[Block]) -> Block:
        while True:
            window, probation, protected = (
                self._first(candidates, segment) for segment in ("window", "probation", "protected")
            )
            if protected and self._count("protected") > self.protected:
                self._to_probation(protected)
                continue
            rest = probation or protected
            if window is None or (rest and self._count("window") < self.window):
                assert rest
                return rest
            room = self._count("probation", "protected") < self.main
            if not room and not (rest and self._asked_for(window) > self._asked_for(rest)):
                return window
            self._to_probation(window)

    def _asked_for(self, block: Block) -> int:
        assert block.key is not None
        return self.frequency.get(block.key, 0)

    def _to_probation(self, block: Block) -> None:
        self.batch += 1
        for moved in self.chain(block):
            self.story[moved] = ["probation", self.batch]


POOLS: dict[str, type[QueuePool]] = {"sieve": Sieve, "s3fifo": S3Fifo, "arc": Arc, "wtinylfu": WTinyLfu}


# ---- planted faults
# ---------------------------------------------------------------------------------------------------


def _all_again(pool: Arc, block: Block) -> None:
    pool.story[block] = ["once", False]


def _alone(pool: QueuePool, leaf: Block) -> list[Block]:
    return [leaf]


FAULTS: dict[str, tuple[str, type, str, Any]] = {
    "sieve: a hit leaves no mark": ("sieve", Sieve, "_hit", lambda pool, block: None),
    "sieve: second chances for single blocks": ("sieve", Sieve, "chain", _alone),
    "s3fifo: used once is enough": ("s3fifo", S3Fifo, "_uses_wanted", lambda pool, queue: 1),
    "s3fifo: the small queue may hold its share and one more": (
        "s3fifo",
        S3Fifo,
        "_small_is_over",
        lambda pool: len(pool.queues["small"]) > pool.share("small_share", 0.1),
    ),
    "s3fifo: the small queue overflows for ever": ("s3fifo", S3Fifo, "_overflows", lambda pool: pool._small_is_over()),
    "s3fifo: second chances for single blocks": ("s3fifo", S3Fifo, "chain", _alone),
    "s3fifo: names stay when their blocks come back": (
        "s3fifo",
        S3Fifo,
        "_admitted",
        lambda pool, keys, hits: pool.back.setdefault(pool.user, set()).update(set(keys[hits:]) & set(pool.names)),
    ),
    "arc: what comes back counts as once": ("arc", Arc, "_inserted", _all_again),
    "arc: the border moves by one": ("arc", Arc, "_pull", lambda pool, other, own: 1.0),
    "wtinylfu: the window's leaf always wins": (
        "wtinylfu",
        WTinyLfu,
        "_asked_for",
        lambda pool, block: pool.story[block][0] == "window",
    ),
    "wtinylfu: single blocks move": ("wtinylfu", WTinyLfu, "chain", _alone),
}
"""As in tests.reference_policies."""
