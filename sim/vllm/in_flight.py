"""Asynchronous scheduling: a step is decided before the outputs of the one before it are known (ENGINE_SEMANTICS 2a,
rule 12).

The one idea: a count of tokens is no secret, so only two things come a step later. A finished request keeps its blocks
and its place (`ending`) while one more step is decided, and a block that its last token has filled enters the cache
with the next one (BlockCache.lag)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.request import Request

if TYPE_CHECKING:
    from sim.vllm.scheduler import VllmScheduler


def finish(s: VllmScheduler, r: Request) -> None:
    """It has sampled its last output; the next step is decided before anybody knows."""
    s.cache.enter_generated(r)
    s.cache.overlapped.discard(r)
    r.computed = r.prompt + r.output - 1
    r.finished, r.decoding = True, False
    s.ending.append(r)


def learn(s: VllmScheduler) -> None:
    """The outputs of the step before the one just decided become known, in running order."""
    for r in sorted((*s.ending, *s.left_out), key=lambda r: r.order):
        if r in s.running:
            s.cache.enter_to(r, (r.computed if r.finished else s.steps - r.base) // s.b)
            if r.finished:
                let_go(s, r)
        elif r.finished:  # preempted meanwhile
            s.waiting.remove(r)
    s.ending.clear()


def let_go(s: VllmScheduler, r: Request) -> None:
    """A finished request leaves after the step was decided."""
    s.free(r)
    s.leave_batch(r)
    s.freed = True
