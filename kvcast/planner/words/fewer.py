"""Routers and splits in words: which of them needs fewer GPUs than the answer.

>>> print(fewer(plan("examples/demo.toml"), "routers"))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.planner.words.phrases import gpus, interval_share, replicas, share

KINDS = {"routers": "router", "splits": "split"}
"""Key of the document -> what one of them is called."""


def fewer(made: dict[str, Any], key: str) -> str:
    """A sentence, and a line for each that was tried; "" where none was asked for, or by a plan of an earlier
    version."""
    found = made.get(key)
    if not found:
        return ""
    if not found["tried"]:
        return f"{key} not tried: {found['not_tried']}"
    cells = [
        [row["change"], _here(row), *(_fewest(row, name) for name in ("replicas", "gpus"))] for row in found["tried"]
    ]
    header = [f"{KINDS[key]}, by one run each", f"with {gpus(found['gpus'])}", "replicas", "GPUs"]
    return f"{sentence(made, key)}\n{text.table(header, cells)}"


def answers(made: dict[str, Any]) -> list[str]:
    """Of a plan without an answer: the router and the split that make one."""
    found = [key for key in KINDS if made.get(key)]
    return [sentence(made, key) for key in found if made[key]["best"] or _promising(made[key]["tried"])]


def sentences(made: dict[str, Any]) -> list[str]:
    """A sentence for each kind that was tried."""
    return [sentence(made, key) for key in KINDS if made.get(key) and made[key]["tried"]]


def sentence(made: dict[str, Any], key: str) -> str:
    found, kind = made[key], KINDS[key]
    best, tried = found["best"], sum(row["reason"] is None for row in found["tried"])
    promising = _promising(found["tried"])
    if best is None and made["answer"]["replicas"] is None and promising is not None:
        return f"{promising['change']}: {gpus(promising['gpus'])} by one run of each, plan with it to be sure"
    if best is None:
        fewer_than = "fewer than " if made["answer"]["feasible"] else ""
        return f"of {tried} other {kind}s none is shown to meet with {fewer_than}{gpus(found['gpus'])}"
    saved = f" instead of {found['gpus']}" if best["saves_gpus"] else ""
    return (
        f"{best['change']}: {gpus(best['gpus'])}{saved}"
        f" ({best['replicas']} {replicas(best['replicas'])}; {interval_share(best['attainment'])} within their limits,"
        f" {best['runs']} {'run' if best['runs'] == 1 else 'runs'}{', back after the burst' * best['recovers']})"
    )


def _promising(tried: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The one whose samples need the fewest GPUs."""
    holding = [row for row in tried if row["gpus"] is not None and not row["or_more"]]
    return min(holding, key=lambda row: row["gpus"], default=None)


def _fewest(row: dict[str, Any], name: str) -> str:
    return text.count(row[name]) + " or more" * row["or_more"]


def _here(row: dict[str, Any]) -> str:
    if row["reason"] is not None:
        return str(row["reason"])
    found = row["attainment"]
    if found["mean"] is None:
        return f"below {share(round(found['high'], 3))}" if found["high"] is not None else "hopeless"
    return text.percent(found["mean"])
