"""Fast-forward: how many steps from here have the same batch, and taking them at once.

The one idea: while nobody can be admitted, nobody finishes and memory suffices, a step differs from the one before it
only by a token of context for each decode, and by the same number of tokens of one prompt. The replica times such a
stretch and makes it one event.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.vllm.scheduler import VllmScheduler


def plan(s: VllmScheduler, most: int) -> int:
    """How many steps, the one just decided included, run with this batch and no shortage of memory: 1 to `most`."""
    decodes = s.decodes
    if s.p.prefill_schedule_interval > 1:  # what one of them may hold depends on its number
        return 1
    if decodes.n:
        most = min(most, decodes.next_finish() - s.steps + 1)
    if most == 1:
        return 1
    if s.chunks:
        return prefill_stretch(s, most)
    if not s.steady or not decodes.n:
        return 1
    return 1 + decodes.steps_that_fit(s.steps, most - 1, s.cache.free)


def prefill_stretch(s: VllmScheduler, most: int) -> int:
    """The same with chunks of one prompt that take all the budget the decodes leave: nobody else is admitted
    meanwhile."""
    r, tokens = s.chunks[-1]
    if r.known - r.computed <= tokens or not _takes_all_alone(s) or not s.cache.has_way_clear(r):
        return 1
    k = min(most - 1, (r.known - r.computed - 1) // tokens)
    while s.decodes.blocks_over(s.steps, k) + s.blocks_to(r, r.computed + k * tokens) > s.cache.free:
        k -= 1
    return 1 + k


def _takes_all_alone(s: VllmScheduler) -> bool:
    """Whether the last request of the batch is the only one in prefill, has all the rest of the budget, and nothing
    else goes on."""
    r, tokens = s.chunks[-1]
    if tokens + s.decodes.n != s.p.max_num_batched_tokens or s.decoded != s.decodes.n:
        return False
    if (
        s.prefills != [r]
        or next(reversed(s.running)) is not r
        or s.p.long_prefill_token_threshold
        or s.loader is not None
    ):
        return False
    return not (s.left_out or s.cache.overlapped)


def announce(s: VllmScheduler, ends_s: array[float]) -> None:
    """A stretch has begun whose steps end then. What other replicas may ask of it before it is over is said now."""
    for r, tokens in s.chunks:
        s.cache.announce(r, r.computed, tokens, ends_s)


def take(s: VllmScheduler, k: int) -> None:
    """k more steps of the present stretch."""
    need = s.decodes.blocks_over(s.steps, k)
    if need:
        s.cache.take(need)
    s.steps = s.cache.steps = s.steps + k
    s.running_tokens += s.decodes.n * k
    for r, tokens in s.chunks:
        s.cache.arrived()
        s.fill(r, k * tokens)
        if r.preempted_at < 0:
            s.log.prefill_chunks[r.id] += k
