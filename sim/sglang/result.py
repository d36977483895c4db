"""The result of a step: its outputs, and what the engine does once it has read them.

The one idea: SGLang's plain loop reads a result before it plans the next step, the overlap schedule after. So what a
result changes waits in one object: sampled tokens, prompts that enter the cache, memory of who has finished. A request
that is retracted in between is taken out of it (docs/sglang.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.sglang.node import RadixRequest

if TYPE_CHECKING:
    from sim.sglang.scheduler import SGLangScheduler


class Result:
    """Of one step, by its index."""

    __slots__ = ("ended", "first", "prefilled", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.prefilled: list[tuple[RadixRequest, int]] = []  # that sampled, and the tokens computed of each
        self.first: list[RadixRequest] = []  # decode for the first time since their prefill
        self.ended: list[RadixRequest] = []  # decodes that have sampled their last output


def read(s: SGLangScheduler, result: Result) -> None:
    """What a step has sampled becomes known, in the order of its batch."""
    for r, computed in result.prefilled:
        if r.finished:
            _finish(s, r)
        else:
            sampled(s, r, computed, result.step)
            s.store(r, computed)
    for r in result.ended:
        _finish(s, r)


def sampled(s: SGLangScheduler, r: RadixRequest, computed: int, step: int) -> None:
    """A prefill reached its last known token: one more output."""
    s.log.recomputed(r, computed)
    if s.log.first_step[r.id] < 0:
        s.log.first_step[r.id] = step
    else:
        s.log.gaps.extend((r.id, r.gap_from, step))
    r.gap_from = step


def _finish(s: SGLangScheduler, r: RadixRequest) -> None:
    """What r has computed stays in the cache; it frees its memory and leaves."""
    s.store(r, r.computed)
    s.let_go(r)
    del s.running[r]
    s.changed = True
    s.somebody_left = True
    if r in s.batch.members:  # not if it was left out of a step in the meantime, or ended by its prefill
        s.batch.remove(r)


def drop_unread(s: SGLangScheduler, r: RadixRequest) -> None:
    """r is retracted: whose last output is in flight loses it. `gap_from` becomes the step of the last one it has."""
    lost = s.batch.unread_outputs(r)
    if r in s.joined:  # it has not decoded since its prefill
        s.joined.remove(r)
        if lost:
            s.log.recomputed(r, s.batch.computed(r))
            s.unread.prefilled = [row for row in s.unread.prefilled if row[0] is not r]
    elif lost and r in s.unread.first:
        r.gap_from = s.log.take_back_gap(r.id)
    else:
        r.gap_from = s.decode_before if lost else s.last_decode


def leave(s: SGLangScheduler, r: RadixRequest) -> None:
    """Nobody wants the rest of r any more, between two steps: what it has computed stays in the cache."""
    computed = s.batch.computed(r)
    if r in s.batch.members:
        s.running_tokens -= computed + 1
        s.batch.remove(r)
    else:
        s.running_tokens -= r.known
    if r is s.chunked:
        s.chunked = None
    for those in (s.joined, s._prefilled):
        if r in those:
            those.remove(r)
    s.result.prefilled = [row for row in s.result.prefilled if row[0] is not r]
    s.log.recomputed(r, computed)
    r.done_before = max(r.done_before, computed)
    s.store(r, computed)
    s.let_go(r)
    del s.running[r]
    s.somebody_left = True
