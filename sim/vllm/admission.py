"""Admission: waiting requests join the batch in order while budget, places and memory last (ENGINE_SEMANTICS 2a, rules
6-10).

The one idea: a request is looked up in the cache, and only when all it must have fits are its hits pinned. The head
that does not fit is remembered with what it needs, so that it is not looked up again before that can have changed; nor
is the longest cached prefix among the waiting (lpm), which then keeps its place at the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.request import Request
from sim.vllm.waiting import LongestPrefixQueue

if TYPE_CHECKING:
    from sim.vllm.scheduler import VllmScheduler

LATER = -1
"""Instead of tokens: a request leaves the queue and joins the batch in a later step (sim.vllm.pools)."""


def admit(s: VllmScheduler) -> None:
    """Until one does not fit. One whose LoRA adapter finds no slot is passed by."""
    if not len(s.waiting):
        s.left_waiting &= s.deferring
        s.steady = _nobody_joins(s)
        return
    skipped: list[Request] = []
    if s.fair is not None and s.budget > 0 and len(s.running) < s.most_running and len(s.waiting):
        s.fair.bring_up_to_date(s.running, s.steps)
    while s.budget > 0 and len(s.running) < s.most_running and len(s.waiting):
        r = s.waiting.head()
        if r is s.blocked and _still_blocked(s):
            break
        if isinstance(s.waiting, LongestPrefixQueue):
            r = s.waiting.promote(lambda one: s.cache.lookup(one.path, (one.known - 1) // s.b)[0])
        if finds_no_lora_slot(s, r):
            skipped.append(s.waiting.pop())
            continue
        tokens = s.fit(r)
        if not tokens:
            break
        s.waiting.pop()
        if tokens != LATER:
            start(s, r, tokens)
    if not s.deferring:
        s.left_waiting = len(s.waiting) > 0
    for r in reversed(skipped):
        s.waiting.put_back(r)
    s.steady = not skipped and _nobody_joins(s)


def _still_blocked(s: VllmScheduler) -> bool:
    """The head's need cannot have shrunk to what is free: nobody computes what it asks for."""
    return bool(s.running) and not s.blocked_written and s.p.reserve_full_isl and s.cache.free < s.blocked_need


def finds_no_lora_slot(s: VllmScheduler, r: Request) -> bool:
    return r.lora >= 0 and 0 < s.p.max_loras <= len(s.loras) and r.lora not in s.loras


def fit(s: VllmScheduler, r: Request) -> int:
    """Look r up and pin its hits when it fits: the tokens of its first chunk, 0 when it does not fit."""
    cache, b = s.cache, s.b
    known = r.known
    limit = (known - 1) // b
    hit, idle, handles = cache.lookup(r.path, limit)
    load = s.loader.plan(r, hit, limit, s.now_s) if s.loader is not None else None
    start = hit + load.total if load is not None else hit
    if s.deferring and known - start * b > 1:
        return 0
    tokens = s.first_chunk(known, start * b)
    if not tokens:
        return 0
    upto = s.reach(start * b + tokens)
    if s.p.reserve_full_isl and upto < known:
        upto = known
    need = -(-upto // b) - hit + idle + (s.watermark if s.running else 0)
    if need > cache.free:
        block(s, r, need, idle)
        return 0
    s.blocked = None
    record_hit(s, r, start, limit)
    cache.acquire(r, handles)
    if s.loader is not None:
        s.loader.load(r, hit, load, s.now_s)
    r.computed = start * b
    return tokens


def block(s: VllmScheduler, r: Request, need: int, idle: int) -> None:
    """Remember the head of the queue, which does not fit, with the blocks that it needs; idle: those of its hits."""
    s.blocked = r
    s.blocked_need = need - idle  # an idle block that it hits may go, and a pinned copy take its place
    s.blocked_written = s.cache.being_written(r.path)


def record_hit(s: VllmScheduler, r: Request, hit: int, limit: int) -> None:
    if r.preempted_at >= 0:
        s.log.hit_again(r, hit * s.b)
    else:
        own, fleet = s.cache.ceilings(r.path, hit, limit)
        s.log.hit(r, hit * s.b, own * s.b, fleet * s.b)


def start(s: VllmScheduler, r: Request, tokens: int) -> None:
    """Give r a place in the batch, and its first chunk unless it loads."""
    s.log.admitted(r, s.now_s)
    if s.fair is not None:
        s.fair.admitted(r)
    r.order = s.admitted
    s.admitted += 1
    s.running[r] = None
    known = r.known
    s.running_tokens += known
    s.waiting_tokens -= known
    if r.lora >= 0:
        s.loras[r.lora] = s.loras.get(r.lora, 0) + 1
        if s.adapters is not None:
            s.stall_s += s.adapters.use(r.lora, s.loras)
    s.changed = True
    if r.ready_s > s.now_s:
        s.loading.append(r)
    else:
        s.prefills.append(r)
        s.carries_prompts |= known - r.computed > 1
        s.budget -= tokens
        s.allocate(r, tokens)
    s.cache.start_writing(r)


def _nobody_joins(s: VllmScheduler) -> bool:
    """Whether the same decodes, and nothing else, run until somebody finishes or arrives."""
    if s.chunks or s.prefills or s.left_out or s.cache.overlapped:
        return False
    if not len(s.waiting):
        return True
    if s.ending:  # they let go before the next step is decided
        return False
    if len(s.running) >= s.most_running:
        return True
    if s.reorders:  # who is looked up changes
        return False
    # a load takes all its blocks at once, and what can be loaded changes; so does a fair share
    changes = s.loader or s.p.long_prefill_token_threshold_adaptive
    same_need = s.p.reserve_full_isl or not changes
    return same_need and s.blocked is s.waiting.head() and not s.blocked_written
