"""Levers that refuse some requests so that the others are served: what a gateway, an engine's queue limit and clients
that come back later do for a fleet that does not recover.

>>> shed(given), short_queue(given)
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
    key = "max_num_queued_reqs"
    engines = next(f.metadata["engines"] for f in fields(EngineConfig) if f.name == key)
    if given.resolved.engine.semantics not in engines:
        return f"a queue limit is of semantics = {' or '.join(engines)}"
    if given.resolved.engine.max_num_queued_reqs is not None:
        return "the queue has a limit"
    return [*(_limited(given, most) for most in QUEUES), *_with_retries(given)]


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
