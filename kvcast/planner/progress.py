"""What a plan knows by now, and how far it is: its stages have shares of the whole, and within a stage nobody knows
how many rounds a search takes.

The one idea: every round of simulations is taken for half of what is left of its stage, or of the part of it that has
begun, so the share never goes back. What is known is told as it becomes known, the answer before what else is asked.

A `tell` is given documents whose "stage" says what they are, in this order:

    {"stage": "candidate", "row": ...}   a fleet was judged: a row as those of the plan's "candidates"; once more where
                                         a fleet is settled, with its interval. Any number of them
    {"stage": "headline", "plan": ...}   the fleet, its verdict and its cost are settled: the whole document, with null
                                         for what is looked at later
    {"stage": "reach", "plan": ...}      and how far the fleet reaches
    {"stage": "done", "plan": ...}       all of it, as `plan` returns it

    >>> progress = Progress(["fewest replicas", "what binds"]); progress.begin("fewest replicas"); progress(3, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvcast import text

CANDIDATE, HEADLINE, REACH, DONE = "candidate", "headline", "reach", "done"
Tell = Callable[[dict[str, Any]], None]


def untold(document: dict[str, Any]) -> None:
    """A `tell` for those who wait for the whole."""


FLEET, RECOVERY, LOAD, BINDING, ROUTERS, ADVICE, GROWTH = (
    "the fewest replicas",
    "whether it comes back after a burst",
    "how far the fleet reaches",
    "what binds",
    "who needs fewer GPUs",
    "what would help",
    "a larger load",
)
SHARES = {FLEET: 0.18, RECOVERY: 0.18, LOAD: 0.31, BINDING: 0.07, ROUTERS: 0.1, ADVICE: 0.11, GROWTH: 0.05}
"""Of the CPU time of a plan, by experience."""


class Progress:
    """An `on_done` of the lab that tells the share of the whole plan."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._whole = sum(SHARES[stage] for stage in stages)
        self._stage, self._begun, self._rounds, self._part = stages[0], 0.0, 0, (0, 1)

    def begin(self, stage: str) -> None:
        if stage != self._stage:
            self._begun += SHARES[self._stage] / self._whole
        self._stage = stage
        self.part(0, 1)

    def part(self, part: int, parts: int) -> None:
        """One of the parts that the stage has begins now."""
        self._rounds, self._part = 0, (part, parts)

    def __call__(self, done: int, todo: int) -> None:
        part, parts = self._part
        within = (part + 1 - 0.5 ** (self._rounds + done / todo)) / parts
        self._rounds += done == todo
        text.progress_share(
            min(self._begun + SHARES[self._stage] / self._whole * within, 0.999),
            1.0,
            f"{self._stage}: {done:,} of {todo:,} simulations of a round",
        )
