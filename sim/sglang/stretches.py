"""Fast-forward: how many decode steps from here have the same batch, and taking them at once.

The one idea: while nobody can be admitted, nobody finishes and a page for everybody is free, a step differs from the
one before it only by a token of context for each decode. That its outputs are read a step later changes nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.sglang.scheduler import SGLangScheduler


def plan(s: SGLangScheduler, most: int) -> int:
    """How many steps, the one just decided included, run with this batch and without eviction: 1 to `most`."""
    if not s.steady or not s.decoded:
        return 1
    steps, decodes = s.batch.steps, s.batch.decodes
    if s.waiting.unread:
        most = min(most, s.waiting.decodes_until_look())
    k = min(most, decodes.next_finish() - steps + 1) - 1
    spare = s.cache.blank - s.decoded  # a step wants a page for everybody before it starts
    if k <= 0 or spare < 0:
        return 1
    return 2 + decodes.steps_that_fit(steps, k - 1, spare)


def take(s: SGLangScheduler, k: int) -> None:
    """k more steps of the present stretch."""
    batch = s.batch
    need = batch.decodes.blocks_over(batch.steps, k)
    if need:
        s.cache.take(need)
    s.steps += k
    batch.steps += k
    s.waiting.skip(k)
    s.new_token_ratio.decay(k)
    s.decode_before, s.last_decode = s.steps - 2, s.steps - 1
    s.result.first = []  # of the last step nobody's decode is the first
    s.running_tokens += batch.decodes.n * k
