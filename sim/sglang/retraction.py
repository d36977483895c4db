"""Retraction: when the decodes find no pages, some leave the batch with all they have computed (docs/sglang.md).

The one idea: fewest outputs first, until the rest has its pages and room for a few steps; what admission expects of
running requests (`new_token_ratio`) is set anew from those that stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.sglang.node import RadixRequest
from sim.sglang.result import drop_unread

if TYPE_CHECKING:
    from sim.sglang.scheduler import SGLangScheduler


def retract(s: SGLangScheduler, now_s: float) -> None:
    """Take requests out of the batch until the rest has its pages; their KV is dropped."""
    batch, b, keep_ahead = s.batch, s.b, s.p.retract_decode_steps
    order = sorted(batch.members, key=lambda r: _rank(s, r), reverse=True)
    pages = batch.pages()
    first = True
    while len(order) > 1 and (first or not _fits(s, pages)):
        first = False
        r = order.pop()
        pages -= batch.computed(r) % b == 0
        _drop(s, r, now_s)
        s.cache.make_room(-(-len(order) * keep_ahead // b))
    s.full = False
    batch.rearrange(order)
    s.new_token_ratio.set_after_retraction(
        sum(batch.outputs(r) for r in order), sum(r.asked for r in order), keep_ahead * len(order)
    )
    s.changed = True


def _rank(s: SGLangScheduler, r: RadixRequest) -> tuple[int, ...]:
    """The smallest is retracted first."""
    outputs = s.batch.outputs(r)
    return (r.priority, outputs, -r.prompt) if s.p.retraction_policy == "priority" else (outputs, -r.prompt)


def _fits(s: SGLangScheduler, pages: int) -> bool:
    s.cache.make_room(pages)
    return s.cache.blank >= pages


def _drop(s: SGLangScheduler, r: RadixRequest, now_s: float) -> None:
    """r waits again, with the outputs that were read and without its KV."""
    r.generated = s.batch.outputs(r)
    s.running_tokens -= s.batch.computed(r) + 1
    drop_unread(s, r)
    s.batch.remove(r)
    s.let_go(r)
    r.done_before = max(r.done_before, r.computed)
    r.computed = r.inserted = 0
    r.preempted_at = now_s
    del s.running[r]
    s.waiting_tokens += r.known
    s.waiting.put_last(r)
    s.log.preemptions[r.id] += 1
    s.preempted.append(r.id)
