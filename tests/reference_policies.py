"""Per-block references of the policies that ask who used a block, and when: ttl, quota, tlru, priority, workload.

Written from docs/policies.md alone; slow and plain: every block keeps its own story, every victim is found by looking
at all candidates, what is learned is counted again from the list of all that happened. Compared in tests.fuzz_policies.
Time is that of the last admission or release (a preemption is one), as the policies say. A duplicate's pin is no use;
its release is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.reference_cache import Block, RankedPool


@dataclass(frozen=True)
class About:
    """What is known of requests, by id, and the policy's parameters."""

    block_size: int
    class_id: list[int]
    class_names: tuple[str, ...]
    tenant_id: list[int]
    tenant_names: tuple[str, ...]
    priority: list[int]
    prompt: list[int]
    output: list[int]
    params: dict[str, Any]


class StoryPool(RankedPool):
    """`user` and `clock_s` are set by the engine before each call; `now` stands between admissions and releases."""

    def __init__(self, num_blocks: int, about: About):
        super().__init__(num_blocks, "")
        self.num_blocks, self.about = num_blocks, about
        self.user, self.clock_s, self.now = 0, 0.0, 0.0
        self.story: dict[Block, Any] = {}

    def touch(self, blocks: list[Block]) -> None:
        self.now = self.clock_s
        super().touch(blocks)

    def release(self, blocks: list[Block]) -> None:
        self.now = self.clock_s
        super().release(blocks)

    def _evicted(self, block: Block) -> None:
        del self.story[block]

    @staticmethod
    def _oldest(candidates: list[Block]) -> Block:
        return min(candidates, key=lambda block: block.release)


class Priority(StoryPool):
    """story: the most urgent of its users."""

    def _inserted(self, block: Block) -> None:
        self.story[block] = self.about.priority[self.user]

    def _hit(self, block: Block) -> None:
        self.story[block] = min(self.story[block], self.about.priority[self.user])

    def _freed(self, block: Block) -> None:
        pass

    def _victim(self, candidates: list[Block]) -> Block:
        least = max(self.story[block] for block in candidates)
        return self._oldest([block for block in candidates if self.story[block] == least])


class Ttl(StoryPool):
    """story: [retention, when it expires]."""

    def _retention(self) -> float:
        name = self.about.class_names[self.about.class_id[self.user]]
        return self.about.params.get("classes", {}).get(name, self.about.params.get("ttl_s", 300.0))

    def _inserted(self, block: Block) -> None:
        self.story[block] = [self._retention(), 0.0]

    def _hit(self, block: Block) -> None:
        self.story[block][0] = self._longer(self.story[block][0], self._retention())

    def _longer(self, a: float, b: float) -> float:
        return max(a, b)

    def _freed(self, block: Block) -> None:
        self.story[block][1] = self.now + self.story[block][0]

    def _victim(self, candidates: list[Block]) -> Block:
        expired = [block for block in candidates if self.story[block][1] <= self.now]
        return self._first_expired(expired) if expired else self._oldest(candidates)

    def _first_expired(self, expired: list[Block]) -> Block:
        return min(expired, key=lambda block: (self.story[block][1], block.release))


class Quota(StoryPool):
    """story: [tenant, whether it has been released once]."""

    def _quota(self, tenant: int) -> int:
        name = self.about.tenant_names[tenant]
        return int(self.about.params.get("shares", {}).get(name, 1 / len(self.about.tenant_names)) * self.num_blocks)

    def _inserted(self, block: Block) -> None:
        self.story[block] = [self.about.tenant_id[self.user], False]

    def _hit(self, block: Block) -> None:
        pass

    def _freed(self, block: Block) -> None:
        self.story[block][1] = True

    def _held(self, tenant: int) -> int:
        return sum(owner == tenant and counted for owner, counted in self.story.values())

    def _victim(self, candidates: list[Block]) -> Block:
        over = [block for block in candidates if self._held(self.story[block][0]) > self._quota(self.story[block][0])]
        return self._oldest(over or candidates)


class Tlru(StoryPool):
    """story: leading blocks of the conversation that are worth keeping."""

    def _inserted(self, block: Block) -> None:
        self.story[block] = 0

    def _hit(self, block: Block) -> None:
        pass

    def _freed(self, block: Block) -> None:
        a = self.about
        tokens = self._length() + a.params.get("next_prompt_tokens", 256) - a.params.get("threshold_tokens", 2048)
        self.story[block] = max(0, -(-tokens // a.block_size))

    def _length(self) -> int:
        return self.about.prompt[self.user] + self.about.output[self.user]

    def _victim(self, candidates: list[Block]) -> Block:
        spare = [block for block in candidates if block.depth >= self.story[block]]
        return self._oldest(spare or candidates)


class Workload(StoryPool):
    """story: [class of the last user, released when, or None while it is used]."""

    def __init__(self, num_blocks: int, about: About):
        super().__init__(num_blocks, about)
        self.spans: list[tuple[int, int, bool]] = []  # class, age bin, whether a use ended it

    @staticmethod
    def _bin(age_s: float) -> int:
        """0 below one second, then 1, 2-3, 4-7, ... seconds."""
        seconds, bin = int(age_s), 0
        while seconds:
            seconds, bin = seconds // 2, bin + 1
        return min(bin, 23)

    def _end(self, block: Block, used: bool) -> None:
        kind, since = self.story[block]
        self.spans.append((kind, self._bin(self.now - since), used))

    def _inserted(self, block: Block) -> None:
        self.story[block] = [self.about.class_id[self.user], None]

    def _hit(self, block: Block) -> None:
        if self.story[block][1] is not None:
            self._end(block, True)
        self.story[block] = [self._last_user(block), None]

    def _last_user(self, block: Block) -> int:
        return self.about.class_id[self.user]

    def _freed(self, block: Block) -> None:
        self.story[block][1] = self.now

    def _evicted(self, block: Block) -> None:
        self._end(block, False)
        super()._evicted(block)

    def _chance(self, kind: int, age_s: float) -> float:
        lost, spans = 1.0, [(bin, used) for k, bin, used in self.spans if k == kind]
        for bin in range(self._bin(age_s), 24):
            reached = sum(b >= bin for b, _ in spans)
            used = sum(b == bin and u for b, u in spans)
            lost *= 1 - used / reached if reached else 1.0
        return 1 - lost

    def _victim(self, candidates: list[Block]) -> Block:
        oldest = [
            self._oldest([b for b in candidates if self.story[b][0] == kind])
            for kind in {self.story[b][0] for b in candidates}
        ]
        return min(oldest, key=self._worth)

    def _worth(self, block: Block) -> tuple:
        kind, since = self.story[block]
        return self._chance(kind, self.now - since), block.release


POOLS: dict[str, type[StoryPool]] = {
    "priority": Priority,
    "ttl": Ttl,
    "quota": Quota,
    "tlru": Tlru,
    "workload": Workload,
}


# ---- planted faults
# ---------------------------------------------------------------------------------------------------


def _evicted_uncounted(pool: Workload, block: Block) -> None:
    del pool.story[block]


def _tie_newest(pool: Workload, block: Block) -> tuple:
    chance, release = _worth(pool, block)
    return chance, -release


_worth = Workload._worth
FAULTS: dict[str, tuple[str, type, str, Any]] = {
    "workload: evictions not counted": ("workload", Workload, "_evicted", _evicted_uncounted),
    "workload: the class of the first user": (
        "workload",
        Workload,
        "_last_user",
        lambda pool, block: pool.story[block][0],
    ),
    "workload: ties by the newest": ("workload", Workload, "_worth", _tie_newest),
    "workload: uses count as evictions": ("workload", Workload, "_hit", lambda pool, block: _used_unseen(pool, block)),
    "ttl: mixed classes keep the shortest": ("ttl", Ttl, "_longer", lambda pool, a, b: min(a, b)),
    "ttl: the oldest use among the expired": (
        "ttl",
        Ttl,
        "_first_expired",
        lambda pool, expired: pool._oldest(expired),
    ),
    "ttl: retention starts when a block is inserted": (
        "ttl",
        Ttl,
        "_freed",
        lambda pool, block: _expire_once(pool, block),
    ),
    "quota: a block is its last user's": ("quota", Quota, "_hit", lambda pool, block: _take_over(pool, block)),
    "quota: blocks count when they enter": (
        "quota",
        Quota,
        "_inserted",
        lambda pool, block: pool.story.update({block: [pool.about.tenant_id[pool.user], True]}),
    ),
    "quota: over at the quota": ("quota", Quota, "_quota", lambda pool, tenant: _quota(pool, tenant) - 1),
    "tlru: the prompt without its answer": ("tlru", Tlru, "_length", lambda pool: pool.about.prompt[pool.user]),
    "tlru: one block more": ("tlru", Tlru, "_freed", lambda pool, block: _one_more(pool, block)),
    "priority: the last user's": (
        "priority",
        Priority,
        "_hit",
        lambda pool, block: pool.story.update({block: pool.about.priority[pool.user]}),
    ),
    "priority: a hit changes nothing": ("priority", Priority, "_hit", lambda pool, block: None),
}
"""What is wrong -> (policy, class, method, the faulty method). Planted in the reference: nothing in the simulator can
disarm them."""
_quota, _freed = Quota._quota, Tlru._freed


def _used_unseen(pool: Workload, block: Block) -> None:
    if pool.story[block][1] is not None:
        pool._end(block, False)
    pool.story[block] = [pool._last_user(block), None]


def _expire_once(pool: Ttl, block: Block) -> None:
    if not pool.story[block][1]:
        pool.story[block][1] = pool.now + pool.story[block][0]


def _take_over(pool: Quota, block: Block) -> None:
    pool.story[block][0] = pool.about.tenant_id[pool.user]


def _one_more(pool: Tlru, block: Block) -> None:
    _freed(pool, block)
    pool.story[block] += 1
