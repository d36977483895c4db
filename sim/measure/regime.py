"""Is a load held, and held only until something happens? One definition and three words for every answer.

The one idea: two facts decide. Is the load held while nothing happens, and is the fleet back at its target within the
stated time after a shock?

    unstable      it is not held
    metastable    it is held until disturbed: after the shock the fleet is not back
    stable        it is held, and the fleet is back

Without both facts there is no word: of a run in which nothing happened only `unstable` can be known.

    >>> regime(holds=True, back=False)
    'metastable'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.measure.shocks import MINUTE_S
from sim.measure.verdict import UNSTABLE

STABLE, METASTABLE = "stable", "metastable"
REGIMES = (STABLE, METASTABLE, UNSTABLE)


def regime(holds: bool | None, back: bool | None) -> str | None:
    """holds: the load, undisturbed; back: at the target within the stated time after a shock; None: not known."""
    if holds is False:
        return UNSTABLE
    if not holds or back is None:
        return None
    return STABLE if back else METASTABLE


def of_run(
    stable: bool | None, shocks: Sequence[Mapping[str, Any]], within_s: float, fell: Mapping[str, Any] | None = None
) -> str | None:
    """Of one run. stable: whether its backlog did not grow (sim.measure.stability); shocks: rows of
    sim.measure.shocks.told; fell: of sim.measure.collapse.

    With shocks the arrivals before the first of them say whether the load is held, and the last to end whether the
    fleet is back: their backlog may grow because it is not. A run that fell by itself may be either."""
    if not shocks:
        return UNSTABLE if stable is False and fell is None else None
    first = min(shocks, key=lambda row: row["at_s"])
    return regime(first["held_before"], back_of(last_of(shocks), within_s))


def last_of(shocks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The shock that is over last: until then there is nothing to be back from."""
    return max(shocks, key=lambda row: row["at_s"] + row["lasts_s"])


def back_of(row: Mapping[str, Any], within_s: float) -> bool | None:
    """Whether the fleet was back after a shock; None where the window ends before it had the time it is given."""
    if row["recovered_s"] is not None:
        return True
    return False if row["seen_s"] >= within_s - MINUTE_S else None


def of_runs(collapsed: int, attained: int, runs: int, back: Sequence[float | None] | None) -> str | None:
    """Of a load over independent runs: how many of them collapsed by themselves, how many attained the target, and
    after how many seconds each was back from a shock.

    A load under which half collapse is not held; one under which some do is held until then; one that no more than half
    attain the target at may be too much for its limits, whatever the queue does: no word."""
    if 2 * collapsed >= runs > 0:
        return UNSTABLE
    if collapsed:
        return METASTABLE
    return regime(True if 2 * attained > runs else None, None if back is None else None not in back)
