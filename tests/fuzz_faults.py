"""Deliberate faults: each a small change of one method of the reference that a random test must notice.

Planted in the reference, so that a change inside the simulator cannot disarm them.
"""

from __future__ import annotations

from typing import Any

from tests import reference_cache as cache
from tests import reference_vllm as reference


def _release_forward(pool: cache.FreeListPool, blocks: list[cache.Block]) -> None:
    _release(pool, blocks[::-1])


def _release_partial_last(pool: cache.FreeListPool, blocks: list[cache.Block]) -> None:
    for block in reversed(blocks):
        block.refs -= 1
        if block.refs == 0:
            pool.free[block] = None


def _enter_no_duplicates(pool: cache.FreeListPool, blocks: list[cache.Block], i: int, key: int, admission: int) -> None:
    if key not in pool.cached:
        _enter_block(pool, blocks, i, key, admission)


def _enter_computed(engine: reference.Engine, r: reference.Request, tokens: int) -> None:
    _enter(engine, r, min(tokens, r.computed))


def _requeue_last(engine: reference.Engine, r: reference.Request) -> None:
    engine.waiting.append(r)


def _lookup_whole(engine: reference.Engine, r: reference.Request) -> int:
    """One block too far, where the tokens still leave one to compute."""
    return min(r.known // engine.block_size, (r.known - 1) // engine.block_size + (r.known > engine.block_size))


def _returned_nothing(engine: reference.Engine, step: reference.Step, victim: reference.Request) -> int:
    del step.scheduled[victim.id]
    return 0


def _limit_also_alone(engine: reference.Engine) -> int:
    return engine.threshold or engine.max_model_len


def _needed_without_hits(engine: reference.Engine, tokens: int, hits: list[cache.Block]) -> int:
    return engine._blocks_for(tokens) - len(hits)


def _contexts_before(engine: reference.Engine, step: reference.Step) -> list[int]:
    return [r.computed - 1 for r in engine.running if r.id in step.scheduled and not r.prefilling]


def _contexts_with_victims(engine: reference.Engine, step: reference.Step) -> list[int]:
    return [*_contexts(engine, step), *[engine.requests[i].known for i in step.preempted]]


def _unsalted(
    hasher: cache.Hasher, tokens: list[int], block_size: int, salt: str | None, lora: str | None
) -> list[int]:
    return _chain(hasher, tokens, block_size, None, lora)


def _untyped(hasher: cache.Hasher, tokens: list[int], block_size: int, salt: str | None, lora: str | None) -> list[int]:
    return _chain(hasher, tokens, block_size, salt or lora, None)


def _least_known(engine: reference.Engine) -> reference.Request:
    return min(engine.running, key=lambda v: v.known) if engine.least_computed else _victim(engine)


def _last_of_the_least(engine: reference.Engine) -> reference.Request:
    return min(reversed(engine.running), key=lambda v: v.computed) if engine.least_computed else _victim(engine)


def _unfair(engine: reference.Engine) -> int:
    return engine.threshold if engine.threshold and len(engine.running) + len(engine.waiting) > 1 else 10**9


def _share_of_running(engine: reference.Engine) -> int:
    limit = _chunk_limit(engine)
    share = engine.token_budget // max(len(engine.running), 1)
    return max(engine.threshold, share) if engine.fair_share and limit < engine.max_model_len else limit


def _defers_anyway(engine: reference.Engine) -> bool:
    engine.left_waiting = False
    return _defers(engine)


_chunk_limit, _defers = reference.Engine._chunk_limit, reference.Engine._defers
_victim = reference.Engine._victim
_release, _enter_block = cache.FreeListPool.release, cache.FreeListPool.enter
_enter, _contexts, _chain = reference.Engine._enter, reference.Engine._contexts, cache.Hasher.chain

FAULTS: dict[str, tuple[type, str, Any]] = {
    "blocks freed in forward order": (cache.FreeListPool, "release", _release_forward),
    "partial blocks freed to the tail": (cache.FreeListPool, "release", _release_partial_last),
    "newest copy of a hash used first": (cache.FreeListPool, "_copy", lambda pool, key: pool.cached[key][-1]),
    "duplicates not entered": (cache.FreeListPool, "enter", _enter_no_duplicates),
    "hashes entered after the step": (reference.Engine, "_enter", _enter_computed),
    "look-up may cover the whole prompt": (reference.Engine, "_lookup_limit", _lookup_whole),
    "no watermark": (reference.Engine, "_reserve", lambda engine: 0),
    "watermark on an idle engine": (reference.Engine, "_reserve", lambda engine: engine.watermark),
    "unreferenced hits not counted as needed": (reference.Engine, "_needed", _needed_without_hits),
    "preempted to the end of waiting": (reference.Engine, "_requeue", _requeue_last),
    "admission after a preemption": (reference.Engine, "_may_admit", lambda engine, step: True),
    "victim always the last running": (reference.Engine, "_victim", lambda engine: engine.running[-1]),
    "a victim's tokens do not return to the budget": (reference.Engine, "_returned", _returned_nothing),
    "threshold also for a lone request": (reference.Engine, "_chunk_limit", _limit_also_alone),
    "contexts without the token being computed": (reference.Engine, "_contexts", _contexts_before),
    "preempted contexts count in the step's time": (reference.Engine, "_contexts", _contexts_with_victims),
    "salt ignored": (cache.Hasher, "chain", _unsalted),
    "a LoRA named as a salt shares its blocks": (cache.Hasher, "chain", _untyped),
    "asynchronous: outputs in flight are known": (
        reference.Engine,
        "_tokens_known",
        lambda engine, r: r.known + r.in_flight,
    ),
    "asynchronous: a last output is scheduled once more": (
        reference.Engine,
        "_last_in_flight",
        lambda engine, r: False,
    ),
    "asynchronous: blocks enter with the next step only": (reference.Engine, "_enter_known", lambda engine, r: None),
    "asynchronous: an arrival is seen by the call already made": (
        reference.Engine,
        "_seen_until",
        lambda engine: engine.now,
    ),
    "asynchronous: who ends gives its LoRA's place away": (
        reference.Engine,
        "_loras",
        lambda engine, step: {r.lora for r in engine.running if r.lora is not None and r.id in step.scheduled},
    ),
    "no fair share": (reference.Engine, "_chunk_limit", _unfair),
    "a fair share of those running": (reference.Engine, "_chunk_limit", _share_of_running),
    "prompts are never deferred": (reference.Engine, "_defers", lambda engine: False),
    "prompts are deferred though requests were left waiting": (reference.Engine, "_defers", _defers_anyway),
    "as many run as have places": (reference.Engine, "_places", lambda engine: engine.max_num_seqs),
    "lcf counts known tokens": (reference.Engine, "_victim", _least_known),
    "lcf takes the last of equals": (reference.Engine, "_victim", _last_of_the_least),
}
"""What is wrong -> (class, method, the faulty method)."""
