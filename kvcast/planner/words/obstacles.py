"""Why no fleet meets, in words: what its requests take alone, what limits are within reach, what other GPUs make of it.

>>> why(plan("examples/demo.toml"))
"""

from __future__ import annotations

import math
from typing import Any

from kvcast import text
from kvcast.planner.words.phrases import NAMES, gpus, interval_share, replicas, share
from sim.measure.verdict import POOLED


def why(made: dict[str, Any]) -> str:
    """What stands in the way of every fleet, what limits are within reach, and what other GPUs make of it."""
    found = made["why"]
    if found is None:
        return ""
    missed = {row["class"] for row in found["nearest"]}
    rows = [row for row in found["alone"] if not missed or row["class"] in missed or POOLED in missed]
    lines = [_alone(row) for row in rows if row["over_cold"] > 0] or [
        "- alone on an idle replica every request is within its limits: they miss because they wait for each other"
    ]
    label = f" ({found['label']})" if made["candidates"][0]["values"] else ""
    lines += [
        f"- nearest: with {row['replicas']} {replicas(row['replicas'])}{label} {_nearest(row)}"
        for row in found["nearest"]
    ]
    lines += [f"- {found['no_larger']}"] if found.get("no_larger") else []
    return "\n".join(["what stands in the way:", *lines, f"- {_elsewhere(found)}"])


def _alone(row: dict[str, Any]) -> str:
    limit, one = f"{NAMES[row['limit']]} <= {text.seconds(row['limit_s'])}", row["example"]
    cached = "the same" if row["over_cached"] == row["over_cold"] else text.percent(row["over_cached"])
    size = (
        ""
        if one is None
        else f"a prompt of {one['prompt_tokens']:,} tokens"
        + ("" if row["limit"] == "ttft_s" else f" and {one['output_tokens']:,} of output")
    )
    example = "" if one is None else f" ({size} takes {text.seconds(one['alone_s'])})"
    refused = f"; {text.percent(row['refused'])} are too long to be served at all" if row["refused"] else ""
    return (
        f"- {row['class']}, {limit}: alone on an idle replica {text.percent(row['over_cold'])} of its requests are over"
        f" it with nothing cached{example}, {cached} with all that can be reused in the cache{refused}"
    )


def _nearest(row: dict[str, Any]) -> str:
    reached = f"{text.percent(row['attainment'])} of {row['class']} are within their limits"
    if row["needs_s"] is not None:
        return (
            f"{reached}, and {share(row['target'])} would be at {NAMES[row['limit']]} <="
            f" {text.seconds(_up(row['needs_s']))}"
        )
    if row["factor"] is not None:
        return f"{reached}, and {share(row['target'])} would be with limits {_up(row['factor']):,.12g} times as long"
    return (
        f"{reached}: the fleet does not keep up, so no limit is long enough"
        if row["keeps_up"] is False
        else f"{reached}, and fewer than {share(row['target'])} complete at all"
    )


def _up(value: float) -> float:
    """Three significant digits that a limit can be set to."""
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return math.ceil(value * 10**digits - 1e-9) / 10**digits


def _elsewhere(found: dict[str, Any]) -> str:
    """Whether another GPU or width attains the target, and the first that does: of the fewest GPUs, the plan's own
    before others."""
    tried = [row for row in found["layouts"] if row["verdict"] is not None]
    if not tried:
        return "no other width or bundled GPU of this model can start"
    first = min((row for row in tried if row["attains"]), key=lambda row: row["gpus"], default=None)
    if first is None:
        return f"none of {len(tried)} other layouts of about {gpus(found['gpus'])} attains the target in one run"
    who, verb = (
        f"{first['replicas']} {replicas(first['replicas'])} of {first['tensor_parallel']} x {first['gpu']}",
        ("attains" if first["replicas"] == 1 else "attain"),
    )
    return (
        f"of {len(tried)} other layouts of about {gpus(found['gpus'])}, {who} {verb} the target in one run: plan with"
        f" --set hardware.profile={first['profile']} --set hardware.tensor_parallel={first['tensor_parallel']}"
    )


def layouts(made: dict[str, Any]) -> str:
    rows = [] if made["why"] is None else made["why"]["layouts"]
    cells = [
        [
            row["gpu"],
            row["profile"],
            str(row["tensor_parallel"]),
            str(row["replicas"]),
            str(row["gpus"]),
            interval_share(row["attainment"]) if row["verdict"] else text.UNKNOWN,
            (row["verdict"] or "no run") + (f" ({row['class']})" if row["class"] else ""),
        ]
        for row in rows
    ]
    return (
        text.table(["GPU", "profile", "TP", "replicas", "GPUs", "attainment", "one run"], cells, left=2)
        if cells
        else ""
    )
