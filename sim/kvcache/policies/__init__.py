"""Eviction policies by their id: add a class to a module here and one line to `POLICIES`, and it is on the command line
(`cache.policy`), in `kvcast cache` and in the dashboard.

    >>> make("lfu", World(workload, capacity_blocks=25_000, block_size=16))
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sim.kvcache.policies.arc import Arc
from sim.kvcache.policies.base import Policy, Run, World
from sim.kvcache.policies.by_class import Quota, Ttl, WorkloadAware
from sim.kvcache.policies.by_key import Fifo, Filo, Gdsf, Lfu, Lru, LruK, Mru, Priority, Random, Slru, Tlru
from sim.kvcache.policies.own import watched
from sim.kvcache.policies.s3fifo import S3Fifo
from sim.kvcache.policies.sieve import Sieve
from sim.kvcache.policies.wtinylfu import WTinyLfu
from sim.own import find as find_class
from sim.own import name_of as name_of_class
from workloads.errors import InputError

POLICIES: dict[str, type[Policy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "mru": Mru,
    "filo": Filo,
    "slru": Slru,
    "priority": Priority,
    "tlru": Tlru,
    "s3fifo": S3Fifo,
    "sieve": Sieve,
    "arc": Arc,
    "lruk": LruK,
    "wtinylfu": WTinyLfu,
    "gdsf": Gdsf,
    "ttl": Ttl,
    "quota": Quota,
    "workload": WorkloadAware,
    "random": Random,
}

__all__ = ["POLICIES", "Policy", "Run", "World", "check", "find", "make", "name_of"]


def name_of(policy: Any) -> str:
    """The id of a policy given by name or as a class: module:Class for a user's own. Raises InputError for anything
    else."""
    return name_of_class(policy, Policy, POLICIES, "[cache] policy")


def find(policy: str | type[Policy]) -> type[Policy]:
    """The class of a policy id, or of "module:Class" for a user's own, as Python would import it now. Raises
    InputError."""
    return find_class(policy, Policy, POLICIES, "[cache] policy")


def check(name: str, params: Mapping[str, Any]) -> None:
    """Raise InputError for a policy that does not exist, a parameter it does not have, or one of another type."""
    known = dict(list(inspect.signature(find(name)).parameters.items())[1:])
    for key, value in params.items():
        if key not in known:
            raise InputError(
                f"[cache] policy_params has no key {key!r} for {name}: it has {', '.join(known) or 'no parameters'}"
            )
        for kind, types, expected in (
            ("int", int, "a whole number"),
            ("float", int | float, "a number"),
            ("str", str, "a text"),
            ("Mapping", Mapping, "a table"),
        ):
            if str(known[key].annotation).startswith(kind) and (
                isinstance(value, bool) or not isinstance(value, types)
            ):
                raise InputError(f"[cache] policy_params of {name}: {key} = {value!r}, expected {expected}")


def make(name: str, world: World, params: Mapping[str, Any] | None = None) -> Policy:
    """A policy for one replica. Raises InputError for an unknown name or parameter, or a value the policy refuses."""
    params = dict(params or {})
    check(name, params)
    kind = find(name)
    if name not in POLICIES:
        return watched(kind)(world, **params)
    try:
        return kind(world, **params)
    except (TypeError, ValueError) as error:
        raise InputError(f"[cache] policy_params of {name}: {error}") from None
