"""Why a simulation differs from what was measured, in words.

>>> print(describe(difference(resolved, [run])))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.fitted.written import said
from kvcast.present.fitted_text import signed

SHOWN = 4  #: candidates
ALIKE = 0.1  #: of what two of them remove


def describe(found: dict[str, Any]) -> str:
    lines = [f"{found['requests']:,} requests of {', '.join(found['runs'])}, simulated as they were sent", ""]
    rows = [
        [
            name.removesuffix("_s").upper(),
            text.seconds(row["measured_s"]),
            signed(row["error"]),
            signed(row["fitted_error"]),
        ]
        for name, row in found["means"].items()
    ]
    lines.append(text.table(["mean", "measured", "error", "error, all fitted"], rows, left=1))
    counted = ("hit tokens", "preemptions")
    rows = [
        [part, *(text.seconds(row[name]) for name in ("simulated", "fitted")), _more(row)]
        for part, row in found["parts"].items()
        if part not in counted
    ]
    rows += [
        [f"{part} a request", *(f"{found['parts'][part][name]:.3g}" for name in ("simulated", "fitted")), ""]
        for part in counted
    ]
    lines += ["", text.table(["mean time of a request", "simulated", "all fitted", "difference"], rows, left=1), ""]
    if found["by_chance"]:
        lines.append("the difference is no larger than what chance does to a run: there is no parameter to name")
        return "\n".join(lines)
    first, second = found["candidates"][:2]
    lines.append(f"most of the difference is one parameter's: {_removes(first)}")
    if second["removes"] > first["removes"] - ALIKE:
        lines.append(f"this load hardly tells it from another one: {_removes(second)}")
    rows = [
        [row["key"], row["part"], f"{said(row['from'])} -> {said(row['to'])}", text.percent(row["removes"], 0)]
        for row in found["candidates"][:SHOWN]
    ]
    lines += ["", text.table(["alone", "part", "moved", "removes"], rows, left=3)]
    lines += [f"not looked at: {key}: {why}" for key, why in found["left_out"].items()]
    return "\n".join(lines)


def _removes(row: dict[str, Any]) -> str:
    errors = ", ".join(
        f"{metric.removesuffix('_s').upper()} {signed(error)}" for metric, error in row["errors"].items()
    )
    moved = f"{row['key']} {said(row['from'])} -> {said(row['to'])}{' ' * bool(row['unit'])}{row['unit']}"
    return (
        f"{moved} ({row['words']}) removes {text.percent(row['removes'], 0)} of it; errors of the means then: {errors}"
    )


def _more(row: dict[str, float]) -> str:
    more = row["fitted"] - row["simulated"]
    return f"{'-' if more < 0 else '+'}{text.seconds(abs(more))}"
