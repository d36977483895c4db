"""What a recorded time means: its unit and why, the reading it gives, and when that is a question, not an answer.

The one idea: nobody sees from a number whether it is seconds or milliseconds. A format says it, or the user; where what
follows (a fraction of a tick, a date, a rate that no server sees) speaks against it, both readings are shown and asked.

    >>> question("timestamp", np.array([0.93, 1.64, 2.5]), "ms", "the format's documentation")
    "timestamp in ms (the format's documentation) ... set [workload] timestamp_unit ..."
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from workloads.readers.values import as_float, number

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks of a second, by unit."""
NAMED = {"s": ("_s", "_sec", "_seconds"), "ms": ("_ms",), "us": ("_us",), "ns": ("_ns",)}
"""Ends of fields that name their unit."""
ASKED, NAME, UNDOCUMENTED = "timestamp_unit", "its name", "as a table's times are unless it says otherwise"
"""Why a unit is what it is, beside a format's documentation."""
DATES = "they are dates of {} in no other unit"
FEW = 10  #: requests; fewer say nothing about a rate
MAX_RATE, MIN_SPAN_S = 1000.0, 1.0  #: requests per second on average, and the span of a file, that are none of a server
MAX_GAP_S, MAX_SPAN_S = 300.0, 2 * 365.25 * 86400  #: on average, read as seconds; of a whole file
MAX_BROKEN_GAP_S = 10.0  #: on average: times with fractions that are as far apart may be milliseconds
EPOCH_S = (978_307_200, 4_102_444_800)  #: seconds since 1970 of the years 2001 to 2099

_WALL = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?\s*", re.ASCII
)
_START = datetime(1970, 1, 1, tzinfo=UTC)


# ---- times of day ----


def wall_clock_ns(value: Any) -> int | None:
    """Nanoseconds since 1970 of a date and time (ISO 8601, or with a blank); without a zone it is taken as UTC. None
    for anything else."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _START
        return since // timedelta(microseconds=1) * 1000
    match = _WALL.fullmatch(value) if type(value) is str else None
    if match is None:
        return None
    zone = match[4] or "Z"
    try:
        whole = datetime.fromisoformat(f"{match[1]}T{match[2]}{'+00:00' if zone[0] in 'ZUG' else zone}")
    except ValueError:
        return None
    since = whole - _START
    return (since.days * 86400 + since.seconds) * 10**9 + int(((match[3] or "") + "0" * 9)[:9])


def is_wall_clock(values: Sequence[Any]) -> bool:
    """Whether a column is of times of day: the first value that is no number is one."""
    return wall_clock_ns(next((value for value in values if math.isnan(as_float(number(value)))), None)) is not None


# ---- units ----


def unit_of(field: str, values: Sequence[Any], column: np.ndarray, own: str, asked: str, why: str) -> tuple[str, str]:
    """(unit, why) of a column: what was asked for, what its name says, or the format's own."""
    if asked:
        return asked, ASKED
    by_name = next((unit for unit, ends in NAMED.items() if field.lower().endswith(ends)), "")
    if by_name and (by_name == own or why == UNDOCUMENTED):
        return by_name, NAME
    if all(type(value) is str and len(value) == 19 and value.isdigit() for value in values):
        return "ns", "texts of 19 digits are nanoseconds since 1970"
    date = _date_unit(column) if why == UNDOCUMENTED else ""
    return (date, DATES.format(_day(column, date).year)) if date else (own, why)


def question(field: str, column: np.ndarray, unit: str, why: str) -> str:
    """What is asked about the unit of a column [n] (finite, >= 0); "" when nothing speaks against it."""
    if not len(column) or why == ASKED:
        return ""
    doubt, other = _doubt(column, unit, why)
    if not doubt:
        return ""
    return (
        f"{field} as {unit} ({why}): {reading(column, unit)}, but {doubt}; as {other}: {reading(column, other)}; set"
        f" [workload] timestamp_unit (--timestamp-unit) to {unit!r} or {other!r}"
    )


def _doubt(column: np.ndarray, unit: str, why: str) -> tuple[str, str]:
    """(what speaks against a unit, the unit that it speaks for); ("", "") for nothing."""
    span_s = _span_s(column, unit)
    rate = (len(column) - 1) / span_s if span_s else 0.0
    date, broken = _date_unit(column), column[column % 1 != 0]
    if why != NAME and date not in ("", unit):
        return f"{column.min():.10g} is {_day(column, date)} as {date} since 1970", date
    if why != NAME and unit != "s" and len(broken):
        return f"{broken[0]:.10g} is no whole number of {unit}", _likely(column, unit)
    if why == UNDOCUMENTED and (rival := _rival(column, bool(len(broken)))):
        return f"it does not say so and {rival} is as likely", rival
    if len(column) < FEW or not span_s:
        return "", ""
    if span_s > MAX_SPAN_S:
        return "no trace is as long", _likely(column, unit)
    if rate > MAX_RATE:
        return "no server sees as many", _likely(column, unit)
    if why != NAME and span_s < MIN_SPAN_S:  # a burst of a second, in a unit that the name says
        return "that is less than a second", _likely(column, unit)
    if unit == "s" and rate < 1 / MAX_GAP_S:
        return "no server has as few", _likely(column, unit)
    return "", ""


def _date_unit(column: np.ndarray) -> str:
    """The unit in which all of a column are dates since 1970, of the years 2001 to 2099; "" for none."""
    low, high = float(column.min()), float(column.max())
    return next((u for u, ticks in PER_SECOND.items() if EPOCH_S[0] * ticks <= low <= high <= EPOCH_S[1] * ticks), "")


def _day(column: np.ndarray, unit: str) -> date:
    return datetime.fromtimestamp(float(column.min()) / PER_SECOND[unit], UTC).date()


def _rival(column: np.ndarray, broken: bool) -> str:
    """The unit finer than a second that reads like a server's too; "" for none. Fractions speak for seconds, unless
    those are far apart."""
    if broken and _span_s(column, "s") < MAX_BROKEN_GAP_S * len(column):
        return ""
    for unit in ("ms", "us", "ns"):
        span_s = _span_s(column, unit)
        if span_s >= MIN_SPAN_S and (len(column) - 1) / span_s <= MAX_RATE:
            return unit
    return ""


def _span_s(column: np.ndarray, unit: str) -> float:
    return float(column.max() - column.min()) / PER_SECOND[unit]


def _likely(column: np.ndarray, unit: str) -> str:
    """The unit, other than `unit`, whose reading is most like a server's: nearest to a request a second."""
    span_s = _span_s(column, "s")
    others = [u for u in PER_SECOND if u != unit]
    if not span_s:
        return others[0]
    return min(others, key=lambda u: abs(math.log10(PER_SECOND[u] * len(column) / span_s)))


def reading(column: np.ndarray, unit: str) -> str:
    """ "1,911 requests/s over 1.05 s" """
    return _paced(len(column), _span_s(column, unit))


def pace(elapsed_s: np.ndarray) -> str:
    """The reading in a note, from seconds [n]; "" where there is no span."""
    finite = elapsed_s[np.isfinite(elapsed_s)]
    span_s = float(finite.max() - finite.min()) if len(finite) else 0.0
    return f": {_paced(len(finite), span_s)}" if span_s else ""


def _paced(n: int, span_s: float) -> str:
    if not span_s:
        return f"{n:,} requests at once"
    return f"{_round((n - 1) / span_s)} requests/s over {_round(span_s)} s"


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
