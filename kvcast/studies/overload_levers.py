"""Levers for a fleet that does not recover: a gateway or an engine that refuses some requests so that the others are
served, clients that come back later, admission that leaves a share of the memory to idle prefixes, and an engine that
serves those first whose prompts are cached.

>>> shed(given), short_queue(given), cached_first(given)
"""

from __future__ import annotations

from dataclasses import fields

from kvcast.studies.change import Change, Given, Made
from sim.scenario import EngineConfig

OVER = 4
"""Requests waiting per replica from which on a gateway sheds."""
QUEUES = (64, 128)
"""Requests in an engine from which on it refuses more."""
RETRIES, BACKOFF_S = 5, 0.5
RESERVES = (0.25, 0.5)
"""Shares of the KV memory that admission leaves to idle prefixes."""
FIRST_COME, CACHED_FIRST = "fcfs", "lpm"
ORDERS = {"scheduler_policy": "a vLLM that orders by it: an experiment, it has no flag for that", "schedule_policy": ""}
"""Keys of [engine] that order the waiting, by engine, and what CACHED_FIRST asks for there."""
REFUSALS = "some requests are refused (see turned away)"
COME_BACK = "some requests are refused, and clients that wait before they try again"


def shed(given: Given) -> Made:
    """The gateway refuses the least important; first turns before later ones, too."""
    if given.scenario.cluster.shed_over is not None:
        return "the gateway sheds already"
    words = f"the gateway refuses from {OVER} waiting a replica on (shed_over)"
    return [
        given.change(words, {"cluster.shed_over": OVER}, REFUSALS),
        given.change(
            f"{words}, first turns before later ones (sessions_first)",
            {"cluster.shed_over": OVER, "cluster.sessions_first": True},
            REFUSALS,
        ),
    ]


def short_queue(given: Given) -> Made:
    """The engine refuses what would wait too long; clients wait for nothing, or try again."""
    engines = _engines_with("max_num_queued_reqs")
    if given.resolved.engine.semantics not in engines:
        return f"a queue limit is of semantics = {' or '.join(engines)}"
    if given.resolved.engine.max_num_queued_reqs is not None:
        return "the queue has a limit"
    return [*(_limited(given, most) for most in QUEUES), *_with_retries(given)]


def reserve(given: Given) -> Made:
    """A request is admitted only where so much stays free or idle: what sessions between their turns have cached."""
    engines = _engines_with("watermark")
    if given.resolved.engine.semantics not in engines:
        return f"a watermark is of semantics = {' or '.join(engines)}"
    if not given.scenario.cache.enabled:
        return "the prefix cache is off"
    return [
        given.change(
            f"{100 * share:.0f} % of the KV memory left to idle prefixes (watermark)", {"engine.watermark": share}
        )
        for share in RESERVES
        if share > given.resolved.engine.watermark
    ] or "it leaves as much already"


def cached_first(given: Given) -> Made:
    """Of those that wait the one with the longest cached prefix goes first."""
    engine = given.resolved.engine
    key = next((one for one in ORDERS if engine.semantics in _engines_with(one)), None)
    if key is None:
        engines = [name for one in ORDERS for name in _engines_with(one)]
        return f"an order by cached prefix is of semantics = {' or '.join(engines)}"
    if getattr(engine, key) != FIRST_COME:
        return f"{key} = {getattr(engine, key)!r} already"
    if not given.scenario.cache.enabled:
        return "the prefix cache is off"
    words = f"of the waiting the longest cached prefix first ({key})"
    return [given.change(words, {f"engine.{key}": CACHED_FIRST}, ORDERS[key])]


def _engines_with(key: str) -> tuple[str, ...]:
    return next(f.metadata["engines"] for f in fields(EngineConfig) if f.name == key)


def _limited(given: Given, most: int) -> Change:
    return given.change(
        f"the engine refuses from {most} requests on (max_num_queued_reqs)",
        {"engine.max_num_queued_reqs": most},
        REFUSALS,
    )


def _with_retries(given: Given) -> list[Change]:
    if given.scenario.client.retries:
        return []
    most = QUEUES[0]
    return [
        given.change(
            f"the same from {most} on, and clients try again {RETRIES} times after {BACKOFF_S:g} s and more",
            {"engine.max_num_queued_reqs": most, "client.retries": RETRIES, "client.backoff_s": BACKOFF_S},
            COME_BACK,
        )
    ]
