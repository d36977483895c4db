"""A step in which memory or budget binds: vLLM's walk over the running requests, and whom it preempts.

The one idea: who is preempted depends on the order of the walk, so here nothing is aggregated: each running request in
turn takes what it asks for, and while that does not fit somebody is preempted (ENGINE_SEMANTICS 2a, rules 7-11).
Decodes that get nothing stay out of the step, and their `base` is shifted by one at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.request import Request
from sim.vllm import in_flight

if TYPE_CHECKING:
    from sim.vllm.scheduler import VllmScheduler


def advance_in_order(s: VllmScheduler) -> None:
    """Schedule the running requests one after the other."""
    s.decoded = s.decoded_base = 0
    for r in list(s.running):
        if s.budget <= 0:
            break
        if r not in s.running or r.ready_s > s.now_s or r.finished or (s.deferring and not r.decoding):
            continue  # preempted on the way, or loading, ending, or not now
        tokens = 1 if r.decoding else s.chunk(r.known - r.computed)
        if _make_room(s, r, tokens):
            s.budget -= tokens
            _advance(s, r, tokens)
    if s.decoded or s.chunks or not s.preempted:
        end_walk(s)


def _make_room(s: VllmScheduler, r: Request, tokens: int) -> bool:
    """Preempt until `tokens` more of r fit; False when r itself had to go."""
    while True:
        computed = s.steps - r.base if r.decoding else r.computed
        held = -(-computed // s.b) if r.decoding else r.held
        if -(-(computed + tokens) // s.b) - held <= s.cache.free:
            return True
        victim = chosen(s)
        take_back(s, victim)
        preempt(s, victim)
        if victim is r:
            return False


def chosen(s: VllmScheduler) -> Request:
    """Whom to preempt: the last admitted, the least urgent, or who loses the fewest computed tokens (vLLM PR 53723)."""
    if s.p.preemption_victim == "lcf":
        given = dict(s.chunks)
        return min(s.running, key=lambda r: s.steps - r.base if r.decoding else r.computed - given.get(r, 0))
    if s.by_priority:
        return max(s.running, key=lambda r: r.urgency)
    return next(reversed(s.running))


def _advance(s: VllmScheduler, r: Request, tokens: int) -> None:
    if not r.decoding:
        s.carries_prompts = True
        s.allocate(r, tokens)
        return
    if (s.steps - r.base) % s.b == 0:
        s.cache.take(1)
    r.ahead = 1
    if s.cache.lag and r.gap_from >= 0:
        s.cache.enter_to(r, (s.steps + 1 - r.base) // s.b)  # it was left out: none of its outputs is in flight
    elif r in s.cache.overlapped:
        s.cache.enter_generated(r)
    s.decoded += 1
    s.decoded_base += r.base


def take_back(s: VllmScheduler, victim: Request) -> None:
    """Return to the budget what this step had already given a victim (nothing when it is the last admitted)."""
    if victim.ahead:
        s.decoded -= 1
        s.decoded_base -= victim.base
        s.budget += 1
        return
    for i, (r, tokens) in enumerate(s.chunks):
        if r is victim:
            del s.chunks[i]
            r.computed -= tokens
            s.budget += tokens
            return


def preempt(s: VllmScheduler, r: Request) -> None:
    """Recompute preemption: blocks are freed (and stay cached), outputs are kept, the request goes first in the
    queue."""
    s.log.preemptions[r.id] += 1
    s.preempted.append(r.id)
    s.changed = True
    if r.finished:
        in_flight.let_go(s, r)
        s.waiting.put_back(r)  # until its last output is known
        return
    stop(s, r)
    s.waiting_tokens += r.known
    r.ahead = r.computed = 0
    r.preempted_at = s.now_s
    s.waiting.put_back(r)


def stop(s: VllmScheduler, r: Request) -> None:
    """A running request leaves the batch and frees its blocks."""
    computed = s.steps - r.base if r.decoding else r.computed
    if r.decoding:
        _stop_decoding(s, r, computed)
    else:
        s.cache.release(r)
        (s.loading if r.ready_s > s.now_s else s.prefills).remove(r)
    s.leave_batch(r)
    if s.fair is not None:
        s.fair.served(r, r.generated)
    s.running_tokens -= r.known
    s.log.recomputed(r, computed)
    r.done_before = max(r.done_before, computed)


def _stop_decoding(s: VllmScheduler, r: Request, computed: int) -> None:
    s.cache.release(s.synced(r))
    s.decodes.leave(r)
    r.generated = computed - r.prompt + 1
    if r.gap_from < 0:
        r.gap_from = s.steps - 1
    r.decoding = False


def end_walk(s: VllmScheduler) -> None:
    """Decodes left out of the step are shifted by one, the others have advanced."""
    decodes = [r for r in s.running if r.decoding]
    s.left_out = [r for r in decodes if not r.ahead]
    for r in s.left_out:  # before any base moves: the order of entry depends on it
        s.cache.enter_generated(r)
        if r.gap_from < 0:
            r.gap_from = s.steps - 1
    for r in s.left_out:
        s.decodes.leave(r)
        s.decodes.join(r, r.base + 1)
    s.steps = s.cache.steps = s.steps + 1
    for r in decodes:
        if r.ahead and r.gap_from >= 0:
            s.log.gap(r.id, r.gap_from, s.steps - 1)
            r.gap_from = -1
        r.ahead = 0
