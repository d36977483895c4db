"""What a fleet of several kinds of replicas has ([[pool]] tables, or prefill and decode apart), said together: where
they differ, by kind.

>>> engine_of_all(resolved, ("max_num_seqs",))["max_num_seqs"]
'fast 1,024, old 64'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvcast import text
from kvcast.trust.evidence import speaks_for

if TYPE_CHECKING:
    from kvcast.scenario.resolve import Resolved


def by_pool(resolved: Resolved, value: Callable[[Resolved], Any]) -> Any:
    """The value of all kinds of replicas where it is the same, else in words by kind."""
    each = [value(kind) for kind in resolved.each]
    if all(one == each[0] for one in each):
        return each[0]
    named = zip(resolved.names, each, strict=True)
    return ", ".join(f"{name} {text.count(one) if isinstance(one, int) else one}" for name, one in named)


def engine_of_all(resolved: Resolved, keys: Sequence[str]) -> dict[str, Any]:
    """The values of [engine] keys."""
    return {key: by_pool(resolved, _engine_key(key)) for key in keys}


def origins_of_all(resolved: Resolved) -> dict[str, str]:
    """Where they come from."""
    return {key: by_pool(resolved, _origin(key)) for key in resolved.origins}


def _engine_key(key: str) -> Callable[[Resolved], Any]:
    return lambda kind: getattr(kind.scenario.engine, key)


def _origin(key: str) -> Callable[[Resolved], Any]:
    return lambda kind: kind.origins[key]


def kv_lines_of_all(resolved: Resolved) -> list[str]:
    """The arithmetic of the KV capacity of each kind."""
    if all(kind.kv_lines == resolved.kv_lines for kind in resolved.each):
        return list(resolved.kv_lines)
    named = zip(resolved.names, resolved.each, strict=True)
    return [line for name, kind in named for line in (_heading(name), *kind.kv_lines)]


def lines_of_pool(summary: Mapping[str, Any], pool: int) -> list[str]:
    """Those of `kv_lines_of_all` that are of the pool of this number."""
    lines, headings = summary["kv_arithmetic"], [_heading(row["pool"]) for row in summary["pools"]]
    if headings[pool] not in lines:  # all alike
        return list(lines)
    own = list(lines[lines.index(headings[pool]) + 1 :])
    end = next((i for i, line in enumerate(own) if line in headings), len(own))
    return own[:end]


def _heading(pool: str) -> str:
    return f"pool {pool}:"


def provenance_of_all(resolved: Resolved) -> dict[str, Any]:
    """`DeviceProfile.describe` of the fleet's profiles together; kind "roofline" where any is one, and the device `of`
    each kind of replica by name."""
    first = resolved.each[0].profile.describe()
    profiles = list({kind.profile.content_hash: kind.profile for kind in resolved.each}.values())
    if len(profiles) == 1:
        return first
    kinds = [profile.kind for profile in profiles]
    return {
        **first,
        **{key: joined([str(p.describe()[key]) for p in profiles]) for key in ("id", "label", "content_hash")},
        "kind": "roofline" if "roofline" in kinds else kinds[0],
        "device": {
            **first["device"],
            "name": joined([str(p.device["name"]) for p in profiles]),
            "of": {
                name: str(kind.profile.device["name"]) for name, kind in zip(resolved.names, resolved.each, strict=True)
            },
        },
        "model": joined([str(p.model) for p in profiles]),
        "provenance": {
            f"{profile.id}: {key}": value for profile in profiles for key, value in profile.provenance.items()
        },
    }


def servers_of_all(resolved: Resolved) -> dict[str, Any]:
    """`Evidence.as_document` of the fleet; where pools differ in words by pool, and in no numbers."""
    each = [speaks_for(kind).as_document() for kind in resolved.each]
    if all(one == each[0] for one in each):
        return each[0]
    words = by_pool(resolved, lambda kind: speaks_for(kind).words.removeprefix("measured servers: "))
    return {
        **each[0],
        "nearness": "",
        "runs": 0,
        "of": (),
        "ttft": {},
        "tpot": {},
        "words": f"measured servers: {words}",
    }


def joined(values: Sequence[str]) -> str:
    """Without repetition."""
    return " + ".join(dict.fromkeys(values))
