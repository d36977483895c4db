"""A request while it is in the system."""

from __future__ import annotations

from typing import Any

from sim.kvcache.chains import Path


class Request:
    """computed = tokens whose KV exists; known = prompt + outputs sampled so far.

    While it decodes, `base = steps - computed` is constant and stands for both counts.
    """

    __slots__ = (
        "admission",
        "ahead",
        "arrival_s",
        "base",
        "computed",
        "decoding",
        "done_before",
        "entered",
        "finished",
        "gap_from",
        "generated",
        "handles",
        "held",
        "id",
        "lora",
        "order",
        "output",
        "path",
        "path_index",
        "preempted_at",
        "prefetched",
        "priority",
        "private",
        "prompt",
        "ready_s",
        "resumed_at",
        "writing",
    )

    def __init__(
        self, id: int, prompt: int, output: int, arrival_s: float, path: Path, priority: int = 0, lora: int = -1
    ) -> None:
        self.id = id
        self.prompt = prompt
        self.output = output
        self.arrival_s = arrival_s
        self.priority = priority
        self.lora = lora
        self.path = path
        self.path_index = self.held = self.entered = self.private = self.admission = 0  # the cache's book-keeping
        self.handles: list[Any] = []
        self.writing: list[Any] = []
        self.computed = 0  # while prefilling
        self.generated = 0  # outputs sampled before the present prefill
        self.decoding = False
        self.finished = False  # asynchronous scheduling: its last output is sampled, and not yet known
        self.base = 0
        self.ahead = 0  # 1 between being scheduled in running order and the end of that schedule
        self.order = 0  # position in the running order
        self.done_before = 0  # tokens computed before it was preempted
        self.resumed_at = -1  # tokens found in cache at this re-admission, until what it recomputes is booked
        self.preempted_at = -1.0
        self.ready_s = 0.0  # when what it loads from cache tiers has arrived
        self.prefetched: list[tuple[int, int, int]] | None = (
            None  # (tier, lo, hi) loaded while it waited; None: not tried
        )
        self.gap_from = -1  # step of its last token, when it was left out of a step or preempted

    @property
    def known(self) -> int:
        return self.prompt + self.generated

    @property
    def last_step(self) -> int:
        """Decoding: the step count at which its last output is sampled."""
        return self.base + self.prompt + self.output - 1

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Smaller is served earlier under priority scheduling."""
        return (self.priority, self.arrival_s, self.id)
