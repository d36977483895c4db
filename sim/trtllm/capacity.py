"""Which requests TensorRT-LLM lets into a step by KV memory: its capacity scheduler policies.

The one idea: both walk the active requests in the order in which they came. The guarantee counts what everybody will
ever need, so nobody is stopped again; maximum utilization counts the next step only, and pauses from the end of the
list when that does not fit.

A request whose first block that is not cached is what an earlier one computes is passed by: it will hit it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sim.request import Request

if TYPE_CHECKING:
    from sim.trtllm.scheduler import TrtllmScheduler

GUARANTEED, UTILIZATION = "guaranteed-no-evict", "max-utilization"


class Fitting(NamedTuple):
    """A request that has a prompt to compute, and memory for it."""

    request: Request
    hit: int  #: blocks that it would begin with now


def guaranteed_no_evict(s: TrtllmScheduler) -> list[Fitting]:
    """Prompts that may run, those under way first: until one whose tokens to the last one asked for do not all have a
    place."""
    spare, coming = s.cache.free - s.reserved, s.coming()
    fitting = [Fitting(r, 0) for r in s.prefills]
    for r in s.pending:
        hit, idle, new = s.look_up(r)
        if s.awaits(new, coming):
            continue
        need = s.total_blocks(r) - hit + idle
        if need > spare:
            s.blocked = r
            break
        spare -= need
        fitting.append(Fitting(r, hit))
    return fitting


def max_utilization(s: TrtllmScheduler) -> list[Fitting]:
    """The same by the blocks of the next step alone; who has started and does not fit is paused, the last one first."""
    if not s.pending and s.decodes.blocks_at(s.steps) <= s.cache.free:
        return [Fitting(r, 0) for r in s.prefills]
    active = sorted([*(r for r in s.running if not r.finished), *s.pending], key=lambda r: r.order)
    taken, fitting, coming = 0, [], s.coming()
    at, end = 0, len(active)
    while at < end:
        r = active[at]
        hit = 0
        if r in s.running:
            need = int(r.decoding and (s.steps - r.base) % s.b == 0)
        else:
            hit, idle, new = s.look_up(r)
            if s.awaits(new, coming):
                at += 1
                continue
            need = -(-r.known // s.b) - hit + idle
        if taken + need <= s.cache.free:
            taken += need
            at += 1
            if not r.decoding:
                fitting.append(Fitting(r, hit))
            continue
        victim = next((i for i in range(end - 1, at - 1, -1) if active[i] in s.running), None)
        if victim is None:
            s.blocked = r
            break
        s.pause(active[victim])
        end = victim
    return fitting


CAPACITY: dict[str, Callable[[TrtllmScheduler], list[Fitting]]] = {
    GUARANTEED: guaranteed_no_evict,
    UTILIZATION: max_utilization,
}
"""engine.capacity_policy -> its walk."""
