"""A change planted in every value that a recorded case expects: the comparison must notice it, or it is named here as
implied by what the comparison looks at.

    KVCAST_DATA=... python -m tests.planted_cases               # every kind of value of every case, at three places
    KVCAST_DATA=... python -m tests.planted_cases --places 0    # at every place (hours)

The one idea: a case is replayed once, and only what it expects is changed, one value at a time. A kind is the name of a
value without its place in a list, such as `steps.*.free blocks`. The last element of every list is left out, too. Exit
code 1 when a change is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvcast.validation import engine_cases
from workloads.errors import InputError
from workloads.readers.engine_case import read_case

Place = tuple[str | int, ...]
NOTICED, IMPLIED, MISSED = "noticed", "implied", "missed"
GONE = object()
"""Stands for a list's last element."""

_TREE = "summary.final_tree"
_ROOT = "the root, which every tree has"
_SAME_BLOCK = "another request with the same text names the same block"
IMPLIED_KINDS = {
    "steps_columns": "names of columns: what they hold is compared",
    f"{_TREE}.*.first token": "a token's value: whose prompts and how many tokens a node holds decide it",
}
"""Kinds that nothing needs to compare, and why."""
_TREE_COLUMNS = ("parent", "tokens", "first token", "hits", "priority", "access", "creation", "lock")


def places_of(expected: dict[str, Any], columns: tuple[str, ...]) -> dict[str, list[Place]]:
    """Every value by its kind, and every list that can be cut short."""
    found: dict[str, list[Place]] = {}
    for place, value in _leaves(expected):
        kind = _kind(place, columns) + (".[last]" if value is GONE else "")
        found.setdefault(kind, []).append(place)
    return found


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*place, i))
        if value and (isinstance(place[-1], str) or (place[0] == "steps" and len(place) == 3)):
            yield place, GONE  # no pair and no row, whose length is fixed
    else:
        yield place, value


def _kind(place: Place, columns: tuple[str, ...]) -> str:
    """steps.*.COLUMN, requests.*.FIELD, summary.final_tree.*.COLUMN and so on."""
    names = [str(part) if isinstance(part, str) else "*" for part in place]
    if place[0] == "steps" and len(place) > 2:
        names[2] = columns[int(place[2])]
    if place[:2] == ("summary", "final_tree") and len(place) > 3:
        names[3] = _TREE_COLUMNS[int(place[3])]
    if place[0] == "steps_columns":
        return "steps_columns"
    return ".".join(names)


def _others(value: Any, kind: str) -> list[Any]:
    """Values that are not the same, of which one must be noticed: of a logical time, of which only the order is
    compared, one before and one after all others."""
    if kind.endswith("[last]"):
        return [value[:-1]]
    if kind.endswith((".access", ".creation")):
        return [-1, 10**12]
    if isinstance(value, str):
        return [{"P": "D", "D": "P"}.get(value, value + "?")]
    return [[0, 0] if value is None else value + 1]


def fate_of(case: dict[str, Any], did: engine_cases.Replay, kind: str, place: Place) -> str:
    """Plant one change, compare, and take it back."""
    *above, last = place
    holder = case["expected"]
    for part in above:
        holder = holder[part]
    before = holder[last]
    for other in _others(before, kind):
        holder[last] = other
        try:
            if any(True for _ in engine_cases.compare(case, did)):
                return NOTICED
        except InputError:
            return NOTICED
        finally:
            holder[last] = before
    return IMPLIED if implied(case, did, kind, place) else MISSED


def implied(case: dict[str, Any], did: engine_cases.Replay, kind: str, place: Place) -> str:
    """Why nothing needs to notice this one; empty when something must."""
    if kind.removesuffix(".[last]") in IMPLIED_KINDS:
        return IMPLIED_KINDS[kind.removesuffix(".[last]")]
    summary = case["expected"]["summary"]
    only_root = len(summary.get("final_tree", ())) == 1 and place[1:] == ("final_tree",)
    if only_root or place[:3] == ("summary", "final_tree", 0):
        return _ROOT
    if place[1] == "final_free_queue" and len(place) == 4:
        named = summary["final_free_queue"][place[2]]
        other = [part + (i == place[3]) for i, part in enumerate(named)]
        return _SAME_BLOCK if _block(case, did, named) == _block(case, did, other) else ""
    return ""


def _block(case: dict[str, Any], did: engine_cases.Replay, named: list[int]) -> tuple[int, int] | None:
    ids = sorted(request["id"] for request in case["requests"])
    if named[0] not in ids:
        return None
    path = did.scheduler.paths.build(ids.index(named[0]))
    return next(((node, named[1]) for node, end in path if named[1] < end), None)


def plant(case: dict[str, Any], each: int, rng: random.Random | None = None) -> Iterator[tuple[str, str, str]]:
    """(kind, fate, why if implied) of `each` places of every kind, spread evenly (0: all), or drawn by `rng`."""
    did = engine_cases.replay(case)
    assert not list(engine_cases.compare(case, did)), case["case"]
    for kind, places in places_of(case["expected"], engine_cases.REPLAYED[case["engine"]].columns).items():
        for place in _some(places, each, rng):
            fate = fate_of(case, did, kind, place)
            yield kind, fate, implied(case, did, kind, place) if fate == IMPLIED else ""


def _some(places: list[Place], each: int, rng: random.Random | None) -> list[Place]:
    if not 0 < each < len(places):
        return places
    if rng is not None:
        return rng.sample(places, each)
    return [places[i * (len(places) - 1) // max(each - 1, 1)] for i in range(each)]


def cases(data_dir: Path, most_bytes: float = float("inf")) -> Iterator[dict[str, Any]]:
    """Those that are compared, in files of at most so many bytes."""
    for path in sorted((data_dir / "engine_cases_v2").glob("*.json*")):
        case = read_case(path) if path.stat().st_size <= most_bytes else None
        if case and not engine_cases.not_simulated(case):
            yield case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=3, help="of every kind in every case; 0: all")
    args = parser.parse_args()
    fates: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in cases(Path(os.environ["KVCAST_DATA"])):
        for kind, fate, why in plant(case, args.places):
            fates[fate] += 1
            if fate == MISSED:
                missed[f"{case['engine']} {kind}"] += 1
            if fate == IMPLIED:
                reasons[why] += 1
    for what, n in sorted(missed.items()):
        print(f"MISSED {n} times: {what}")
    for why, n in sorted(reasons.items()):
        print(f"implied {n} times: {why}")
    print(f"{fates.total()} planted: {', '.join(f'{fates[fate]} {fate}' for fate in (NOTICED, IMPLIED, MISSED))}")
    return int(fates[MISSED] > 0)


if __name__ == "__main__":
    sys.exit(main())
