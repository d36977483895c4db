"""What was measured beside what was simulated, as rows of a table: for people and for the HTML report.

>>> print(as_text(summary["measured"]))
"""

from __future__ import annotations

from typing import Any

from kvcast import text

HEADER = ("", "measured", "simulated", "error")


def rows(compared: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(name, measured, simulated, signed error) of every figure that was measured."""
    return [
        (
            f"{row['name']}, {row['unit']}" if row["unit"] else row["name"],
            figure(row["measured"]),
            figure(row["simulated"]),
            text.UNKNOWN if row["error"] is None else f"{100 * row['error']:+.1f} %",
        )
        for row in compared["rows"]
    ]


def figure(value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_text(compared: dict[str, Any]) -> str:
    lines = [f"against {compared['source']} ({compared['format']}):", text.table(HEADER, rows(compared))]
    return "\n".join([*lines, *compared["notes"]])
