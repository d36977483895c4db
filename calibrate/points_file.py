"""The file that a measurement leaves: JSON lines, a header first, then a line per point as it came.

The one idea: it is all that passes from the GPU to the fit, so both read it here and neither knows the other.

    >>> header, points, sessions = read_points(Path("points.jsonl"))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrate.operators import Point
from workloads.errors import InputError

SCHEMA = 1
DRIFT = 0.03
"""Change of an anchor since it was first measured that is flagged."""


def read_points(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """(header, point rows by key, session and end rows) of a points file. A last line cut short by a kill is ignored.

    InputError when the file is not one, or a line before the last is broken.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise InputError(f"{path}: cannot read the points ({e.strerror})") from None
    rows = []
    for i, line in enumerate(lines[:-1], 1):  # what follows the last newline is unfinished
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or ("shape" in row and not (isinstance(row["shape"], dict) and "op" in row)):
                raise ValueError
            rows.append(row)
        except (ValueError, RecursionError):
            raise InputError(f"{path}, line {i}: not a JSON row; expected a points file of kvcast calibrate") from None
    if not rows or rows[0].get("op") != "header" or rows[0].get("schema") != SCHEMA:
        raise InputError(f"{path}: expected a points file of kvcast calibrate, schema {SCHEMA}")
    points = {Point(r["op"], r["shape"]).key: r for r in rows if "shape" in r}
    return rows[0], points, [r for r in rows[1:] if "shape" not in r]


def failed_lines(failed: dict[str, str]) -> list[str]:
    """A line per message: how many points have no time, and why."""
    lines = []
    for message in sorted(set(failed.values())):
        keys = sorted(k for k, m in failed.items() if m == message)
        lines.append(
            f"{len(keys)} points failed ({message}), such as {keys[0]}: --resume --retry-failed tries them again"
        )
    return lines
