"""What `kvcast fit-server` found, in words.

>>> print(describe(fitted.document()))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.fitted.written import ends, said


def describe(found: dict[str, Any]) -> str:
    runs = found["runs"]
    parts = [f"{run['result']}: {run['fitted']} of {run['requests']} requests fitted" for run in runs]
    lines = ["; ".join(parts), *dict.fromkeys(note for run in runs for note in run["notes"]), ""]
    rows = [
        [row["key"], row["words"], said(row["before"]), said(row["value"]), ends(row), row["unit"]]
        for row in found["parameters"]
    ]
    rows += [[key, "", "", said(value), "its least", ""] for key, value in found["at_least"].items()]
    if rows:
        lines.append(text.table(["key", "what it is", "before", "fitted", "95 % interval", "unit"], rows, left=2))
    else:
        lines.append("nothing is fitted: the data decide no parameter")
    lines += ["", "left as they are"] if found["refused"] else []
    lines += [f"  {key}: {why}" for key, why in found["refused"].items()]
    lines += ["", "held out (no request of it was fitted)", errors(found["held_out"])]
    lines += watched(found["watched"]) if "watched" in found else []
    if rows and not found["improves"]:
        lines += ["", "the half that was not fitted is met no better: the scenario stays as it is, nothing is written"]
    return "\n".join(lines)


def errors(rows: list[dict[str, Any]]) -> str:
    """The table of errors before and after."""
    several = len({row["run"] for row in rows}) > 1
    table = [
        [
            f"{row['run'] + ' ' if several else ''}{row['metric'].removesuffix('_s').upper()} {row['stat']}",
            text.seconds(row["measured_s"]),
            signed(row["before"]),
            signed(row["after"]),
            f"{signed(row['after_interval'][0])} to {signed(row['after_interval'][1])}",
        ]
        for row in rows
    ]
    return text.table(["", "measured", "error before", "error after", "95 % of after"], table, left=1)


def watched(found: dict[str, Any]) -> list[str]:
    """What the server said of itself meanwhile."""
    hits = {who: "unknown" if rate is None else text.percent(rate) for who, rate in found["hit_rate"].items()}
    how = "time between output tokens" if found["by_gaps"] else "requests running over output tokens a second"
    table = [
        [
            f"{row['running']:,.1f}",
            f"{row['waiting']:,.1f}",
            text.seconds(row["measured_s"]),
            signed(row["before"]),
            signed(row["after"]),
        ]
        for row in found["curve"]
    ]
    head = ["running", "waiting", "measured", "error before", "error after"]
    return [
        "",
        f"{found['source']}: hit rate {hits['measured']}, simulated {hits['simulated']}",
        f"{how}, by the batch (nothing is fitted to it)",
        *([text.table(head, table)] if table else []),
        *found["notes"],
    ]


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
