"""Admission: a prefill batch from the chunked request and the waiting, in order until one does not fit
(docs/sglang.md).

The one idea: a request is looked up and locked, and taken when memory would last until everything running has ended,
with what it is expected to generate (sim.sglang.adder)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.sglang.adder import CONTINUE, NO_TOKEN, OTHER, Adder
from sim.sglang.node import RadixRequest

if TYPE_CHECKING:
    from sim.sglang.scheduler import SGLangScheduler


def admit(s: SGLangScheduler, now_s: float) -> list[tuple[RadixRequest, int]]:
    """The prefill batch of this step, with each one's tokens; empty when none can be formed."""
    waiting, most, running = s.waiting, s.p.max_num_seqs, len(s.batch.members)
    if (s.full or not waiting.queue) and s.chunked is None:
        return []
    if running >= most and s.chunked is None:
        s.full = True
        return []
    waiting.arrange()
    adder = _adder(s)
    chunked, s.chunked = s.chunked, None
    if chunked is not None:
        _go_on(s, adder, chunked)
    state = OTHER if adder.spent() else CONTINUE  # by a chunk that goes on, or decodes that ride along
    while state == CONTINUE and waiting.queue:
        if running + len(adder.batch) >= most:
            s.full = True
            break
        r = waiting.at(0)
        admitted = len(adder.batch)
        state = _try(s, adder, r)
        if len(adder.batch) > admitted:
            waiting.pop()
            _start(s, r, now_s)
        if state == NO_TOKEN:
            s.full = True
    return adder.batch


def _adder(s: SGLangScheduler) -> Adder:
    batch, p = s.batch, s.p
    return Adder(
        s.cache,
        s.b,
        p.chunked_prefill_size,
        p.max_prefill_tokens,
        batch.to_come(),
        s.new_token_ratio.value(),
        batch.each_to_come,
        riding=len(batch.members) if s.mixes else 0,
    )


def _go_on(s: SGLangScheduler, adder: Adder, r: RadixRequest) -> None:
    """The next chunk of the request in the middle of its prompt."""
    limit = min(adder.chunk, adder.whole_room())
    if limit <= 0:
        limit = adder.chunk  # it must go on, or its memory would never come back
    remaining = r.known - r.computed
    if remaining > limit:
        s.chunked = r
        adder.take(r, limit, 0)
    else:
        adder.take(r, remaining, min(r.asked, s.p.clip_max_new_tokens))


def _try(s: SGLangScheduler, adder: Adder, r: RadixRequest) -> int:
    """Look r up and add it to the batch if it fits, cut to a chunk if it must be."""
    cache, b, clip = s.cache, s.b, s.p.clip_max_new_tokens
    limit = (r.known - 1) // b
    node = cache.match(r.path, limit) if cache.caching else cache.root
    hit = node.hi * b
    extend = r.known - hit
    cache.lock(node)  # what it would hit cannot be evicted for it
    if not adder.room_above(extend + min(r.asked - r.generated, clip) + b):
        cache.unlock(node)
        return NO_TOKEN
    if not adder.chunked and adder.batch and -(-extend // b) * b >= adder.input:
        cache.unlock(node)
        return OTHER
    decode = min(r.asked, clip)
    if -(-extend // b) * b > adder.chunk:
        extend, decode = adder.chunk // b * b, 0
        if extend <= 0:
            cache.unlock(node)
            return OTHER
        s.chunked = r
    _record_hit(s, r, node.hi, limit)
    r.node, r.held, r.computed = node, node.hi, hit
    cache.admit(r)
    adder.take(r, extend, decode)
    return adder.state()


def _record_hit(s: SGLangScheduler, r: RadixRequest, hit: int, limit: int) -> None:
    if r.preempted_at >= 0:
        s.log.hit_again(r, hit * s.b)
    else:
        own, fleet = s.cache.ceilings(r.path, limit)
        s.log.hit(r, hit * s.b, own * s.b, fleet * s.b)


def _start(s: SGLangScheduler, r: RadixRequest, now_s: float) -> None:
    s.log.admitted(r, now_s)
    s.running[r] = None
    s.running_tokens += r.known
    s.waiting_tokens -= r.known
    s.changed = True
