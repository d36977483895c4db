"""What a disturbed fleet does, in words, tables and one plot.

>>> print(as_text(resilience(load_scenario("examples/demo.toml"), Path("runs"))))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcast import text
from sim.measure.regime import METASTABLE, STABLE
from sim.measure.verdict import UNSTABLE

GAP = 0.2
"""Branches are apart where the ways up and down attain so differently at one load."""


def as_text(made: dict[str, Any]) -> str:
    parts = [heading(made), regime(made), sweep(made), collapse(made), shocks(made), remedies(made)]
    return "\n\n".join(part for part in parts if part)


def heading(made: dict[str, Any]) -> str:
    n = made["replicas"]
    head = f"{made['name'] or 'scenario'}: {n} {'replica' if n == 1 else 'replicas'}, seeds {_list(made['seeds'])}"
    left = f"not used, every question has a window of its own: {_list(made['not_used'])}" if made["not_used"] else ""
    return f"{head}\n{left}" if left else head


def regime(made: dict[str, Any]) -> str:
    """Stable, metastable or unstable at the scenario's own load."""
    if made["regime"] is None:
        return ""
    burst = f"{text.seconds(made['burst']['lasts_s'])} at {made['burst']['size']:g} times the load"
    told = {
        STABLE: f"it holds its load, and is back after {burst}",
        METASTABLE: f"it holds its load until disturbed, by {burst} or by itself",
        UNSTABLE: "half of its runs or more collapse by themselves",
    }[made["regime"]]
    return f"at its own load {made['regime'].upper()}: {told}"


def apart(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Loads at which the fleet attains much less on the way down than on the way up."""
    up = {row["level"]: row["attainment"] for row in rows if row["way"] == "up"}
    down = {row["level"]: row["attainment"] for row in rows if row["way"] == "down"}
    return [level for level, value in down.items() if value is not None and (up[level] or 0.0) - value > GAP]


def sweep(made: dict[str, Any]) -> str:
    rows = made["sweep"]
    if rows is None:
        return ""
    cells = [
        [
            f"{row['level']:g} x",
            row["way"],
            text.percent(row["attainment"]),
            text.percent(row["hit_rate"]),
            text.UNKNOWN if row["waiting"] is None else f"{row['waiting']:,.1f}",
        ]
        for row in rows
    ]
    table = text.table(["load", "way", "attainment", "hit rate", "waiting"], cells, left=2)
    return text.wrapped(f"load up and down, ten minutes each: {states(rows)}") + f"\n{table}"


def states(rows: Sequence[dict[str, Any]]) -> str:
    """Whether what the fleet attains depends on where its load came from. rows: the document's "sweep"."""
    levels = sorted(apart(rows))
    return (
        f"at {_list([f'{level:g}' for level in levels])} times the load what it attains depends on where it came from:"
        " a second state, or a queue that is still draining"
        if levels
        else "one state at every load: it attains the same on the way up and down"
    )


def collapse(made: dict[str, Any]) -> str:
    return "" if made["collapse"] is None else text.wrapped("by itself: " + "; ".join(collapses(made)))


def collapses(made: dict[str, Any]) -> list[str]:
    """Of each load, how many runs collapse without a shock, and the mean time to it."""
    lines = []
    for row in made["collapse"]:
        told = f"at {row['level']:g} times the load {row['collapsed']} of {row['runs']} runs collapse"
        within = f" within {row['hours']:g} hours"
        if row["collapsed"]:
            told += f"{within}; mean time to a collapse {text.minutes(row['mean_s'])}"
            told += f" (95 % interval {text.minutes(row['mean_low_s'])} to {text.minutes(row['mean_high_s'])})"
        else:
            told += f"{within}: a mean time above {text.minutes(row['mean_low_s'])}, at 97.5 % confidence"
        lines.append(told)
    return lines


SHOCK_COLUMNS = ("shock", "lasts", "seeds", "after")
REMEDY_COLUMNS = ("change", "seeds", "slowest", "turned away", "costs")


def shock_rows(made: dict[str, Any]) -> list[list[str]]:
    """A row a shock, under SHOCK_COLUMNS: how many seeds are back, and after how long by seed."""
    return [
        [_named(row), text.seconds(row["lasts_s"]), f"{_back(row['back_s'])} of {len(row['back_s'])}", _times(row)]
        for row in made["shocks"]
    ]


def remedy_rows(found: dict[str, Any]) -> list[list[str]]:
    """A row a change, under REMEDY_COLUMNS, the best first. found: the document's "remedies"."""
    return [
        [
            row["change"],
            "cannot run" if row["back_s"] is None else f"{row['back']} of {len(row['back_s'])}",
            text.UNKNOWN if row["slowest_s"] is None else text.seconds(row["slowest_s"]),
            text.percent(row["turned_away"]),
            row["costs"],
        ]
        for row in found["rows"]
    ]


def shocks(made: dict[str, Any]) -> str:
    if made["shocks"] is None:
        return ""
    within = text.seconds(made["within_s"])
    return f"back at the target within {within}:\n" + text.table(list(SHOCK_COLUMNS), shock_rows(made))


def remedies(made: dict[str, Any]) -> str:
    found = made["remedies"]
    if found is None:
        return ""
    if found["level"] is None:
        return "remedies: none needed, it comes back from twice its load too"
    return text.wrapped(f"{from_where(made)}:") + "\n" + text.table(list(REMEDY_COLUMNS), remedy_rows(found))


def from_where(made: dict[str, Any]) -> str:
    """The load and the burst that remedies are tried at."""
    return (
        f"what brings it back after {text.seconds(made['burst']['lasts_s'])} at {made['burst']['size']:g} times a load"
        f" of {made['remedies']['level']:.2f} times its own, from which it does not come back"
    )


def as_html(made: dict[str, Any]) -> str:
    """A page with the plot and the tables."""
    import html

    from kvcast.figures.resilience import branches

    plot = "" if made["sweep"] is None else branches(made).to_html(full_html=False, include_plotlyjs=True)
    told = html.escape(as_text(made))
    name = html.escape(made["name"] or "kvcast resilience")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title></head>'
        '<body style="font-family: sans-serif; max-width: 60em; margin: 2em auto">'
        f"{plot}<pre>{told}</pre></body></html>"
    )


def _named(row: dict[str, Any]) -> str:
    size = row["size"]
    return row["kind"] if size is None else f"{row['kind']} x {size:g}" if size < 1000 else f"{row['kind']} {size:,.0f}"


def _back(times: Sequence[float | None]) -> int:
    return sum(time is not None for time in times)


def _times(row: dict[str, Any]) -> str:
    return _list([text.UNKNOWN if one is None else text.seconds(one) for one in row["back_s"]])


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
