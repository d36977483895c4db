"""Retraction: when the decodes find no pages, some leave the batch with all they have computed (docs/sglang.md).

The one idea: fewest outputs first, until the rest has its pages and room for a few steps; what admission expects of
running requests (`new_token_ratio`) is set anew from those that stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.sglang.node import RadixRequest

if TYPE_CHECKING:
    from sim.sglang.scheduler import SGLangScheduler


def retract(s: SGLangScheduler, now_s: float) -> None:
    """Take requests out of the batch until the rest has its pages; their KV is dropped."""
    steps, b, keep_ahead = s.decode_steps, s.b, s.p.retract_decode_steps
    order = sorted(s.decoding, key=lambda r: _rank(s, r), reverse=True)
    pages = sum((steps - r.base) % b == 0 for r in order)
    first = True
    while len(order) > 1 and (first or not _fits(s, pages)):
        first = False
        r = order.pop()
        pages -= (steps - r.base) % b == 0
        _drop(s, r, now_s)
        s.cache.make_room(-(-len(order) * keep_ahead // b))
    s.full = False
    s.rearrange(order)
    s.new_token_ratio.set_after_retraction(
        sum(_sampled(s, r) for r in order), sum(r.asked for r in order), keep_ahead * len(order)
    )
    s.changed = True


def _sampled(s: SGLangScheduler, r: RadixRequest) -> int:
    """Outputs of a decode so far."""
    return s.decode_steps - r.base - r.prompt + 1


def _rank(s: SGLangScheduler, r: RadixRequest) -> tuple[int, ...]:
    """The smallest is retracted first."""
    return (
        (r.priority, _sampled(s, r), -r.prompt) if s.p.retraction_policy == "priority" else (_sampled(s, r), -r.prompt)
    )


def _fits(s: SGLangScheduler, pages: int) -> bool:
    s.cache.make_room(pages)
    return s.cache.blank >= pages


def _drop(s: SGLangScheduler, r: RadixRequest, now_s: float) -> None:
    """r waits again, with its outputs and without its KV."""
    s.leave(r)
    s.let_go(r)
    r.generated = r.computed - r.prompt + 1
    r.done_before = max(r.done_before, r.computed)
    r.computed = r.inserted = 0
    r.preempted_at = now_s
    if r.gap_from < 0:
        r.gap_from = s.last_decode
    else:
        s.joined.remove(r)
    del s.running[r]
    s.running_tokens -= r.known
    s.waiting_tokens += r.known
    s.waiting.put_last(r)
    s.log.preemptions[r.id] += 1
    s.preempted.append(r.id)
