"""A key of a scenario: its default, and beside it what it means, may be, and who reads it.

The one idea: a key is said once, as a dataclass field made by `key`. The checks, the pages and docs/scenario.md read
the field's metadata, so that a new key needs no second place.

Ranges are wide enough for any real deployment and narrow enough for the columns a value ends up in. Simulated time is a
float in seconds: up to 1e9 s (32 years) neighbouring floats are 0.1 microseconds apart; from about 1e14 s on they are
further apart than a decode step, which would then take no time.

    >>> from_1(1000).words, 0 in from_1(1000)
    ('1 or more and at most 1,000', False)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from workloads.errors import InputError, did_you_mean

MAX_SECONDS = 1e9  #: the latest time of a run, and the longest wait
MAX_MS = 1e6
MAX_US = 1e9
MAX_TOKENS = MAX_COUNT = 1_000_000_000  #: of one prompt or answer, and of whatever is counted
MAX_BLOCK_SIZE = 10**6
MAX_KV_BLOCKS = 10**12  #: times the largest block still fits 64 bits
MAX_REPLICAS = 100_000
MAX_GPUS = 1024  #: of one replica
MAX_STAGES = 64  #: of one pipeline
MAX_WORKERS = 1024  #: of the API server of one replica
MAX_SEED = 2**64 - 1
SLOWEST, FASTEST = 1e-9, 1e9
WITHIN = f"at most {MAX_SECONDS:g} s (32 years)"
NOT_EMPTY = "a name or a path, not an empty text"


@dataclass(frozen=True)
class Limit:
    """The numbers from `low` to `high`, both among them (and 0 with `or_0`), and how an error line says so."""

    low: float
    high: float
    words: str
    or_0: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high or (self.or_0 and value == 0)


def above_0(most: float) -> Limit:
    return Limit(math.nextafter(0.0, 1.0), most, f"above 0 and at most {most:,g}")


def from_0(most: float) -> Limit:
    return Limit(0, most, f"0 or more and at most {_plain(most)}")


def from_1(most: int) -> Limit:
    return Limit(1, most, f"1 or more and at most {_plain(most)}")


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,g}"


SECONDS, FROM_SECOND_0, MS = above_0(MAX_SECONDS), from_0(MAX_SECONDS), from_0(MAX_MS)
COUNT, TOKENS, TOKENS_OR_NONE = from_1(MAX_COUNT), from_1(MAX_TOKENS), from_0(MAX_TOKENS)
TOKENS_OR_DENSE = Limit(-1, MAX_TOKENS, f"-1, or 0 or more and at most {_plain(MAX_TOKENS)}")
RATE = Limit(SLOWEST, FASTEST, f"above 0, from {SLOWEST:g} to {FASTEST:g}")
GB_PER_S = Limit(SLOWEST, 1e6, f"above 0, from {SLOWEST:g} to 1e+06")
GB_PER_S_OR_NONE = Limit(SLOWEST, math.inf, f"0 or from {SLOWEST:g} on, or inf", or_0=True)
FACTOR = Limit(0.01, 100, "from 0.01 to 100")
SHARE = above_0(1)
BELOW_1 = Limit(0, math.nextafter(1.0, 0.0), "0 or more and below 1")


def key(
    default: Any = MISSING,
    help: str = "",
    limit: Limit | None = None,
    *,
    choices: Sequence[str] = (),
    engine: str | tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is a key of a scenario.

    default: none when the key must be given. limit, choices: what a value may be. engine: the only semantics that have
    the key, one or more.
    """
    engines = (engine,) if isinstance(engine, str) else engine
    about = {
        "help": f"{', '.join(engines)}: {help}" if engines else help,
        "limit": limit,
        "choices": tuple(choices),
        "engines": engines,
    }
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=about)
    return field(default=default, metadata=about)


def expectation(f: Field[Any], value: Any) -> str:
    """What a key's value should have been; "" when it may be this one. None was not given, and passes."""
    limit, choices = f.metadata.get("limit"), f.metadata.get("choices", ())
    if value is None or (limit and value in limit):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if limit:
        return str(limit.words)
    if choices and value not in choices:
        return f"{_one_of(choices)}{did_you_mean(value, choices)}"
    return NOT_EMPTY if value == "" and f.default != "" else ""


def _one_of(choices: Sequence[str]) -> str:
    return " or ".join(choices) if len(choices) < 3 else f"one of {', '.join(choices)}"


def check_values(node: Any, where: str) -> None:
    """Raise InputError for the first key of a section whose value is out of its range or choices."""
    for f in fields(node):
        value = getattr(node, f.name)
        if expected := expectation(f, value):
            raise InputError(f"{where} {f.name} = {value!r}, expected {expected}")


def within(where: str, value: Any, limit: Limit) -> Any:
    """The value itself; InputError when it is not within the limit. None passes: it was not given."""
    if value is not None and value not in limit:
        raise InputError(f"{where} {value}: expected {limit.words}")
    return value
