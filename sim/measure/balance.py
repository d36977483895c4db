"""How evenly a router loads its replicas.

>>> balance(rec, inside, computed_tokens)["jain"]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.measure.columns import blocks
from sim.recording import Recording, Routed

STARVED = 0.1
"""Of the mean of all replicas: one with less work is called starved."""
ENOUGH = 20
"""Requests a replica from which on a router is judged by them."""
EVEN = 0.9
"""Jain's index from which on nothing is said of it."""


def balance(rec: Recording, counted: np.ndarray, computed_tokens: np.ndarray) -> dict[str, Any]:
    """jain: (sum x)^2 / (n sum x^2) of the tokens that replicas computed for the counted requests, 1 when all have as
    many, 1/n when one has all (Jain, Chiu and Hawe, 1984); most_share and least_share: of all of them; starved:
    replicas with less than a tenth of the mean, None where the requests are too few to tell or a replica was down for
    a while, as in a fleet that scales.

    counted: int64 [m], rows that a replica served; computed_tokens: int64 [n requests], prompt tokens not cached and
    outputs."""
    n = len(rec.steps)
    work, requests = np.zeros(n), np.zeros(n, np.int64)
    for part in blocks(len(counted)):
        rows = counted[part]
        work += np.bincount(rec.replica[rows], weights=computed_tokens[rows], minlength=n)  # whole numbers: exact
        requests += np.bincount(rec.replica[rows], minlength=n)
    total = float(work.sum())
    if not total:
        return {"jain": None, "most_share": None, "least_share": None, "starved": None, "requests": [0] * n}
    untold = len(counted) < ENOUGH * n or any(held != [(0.0, rec.end_s)] for held in rec.held_s or ())
    return {
        "jain": total**2 / (n * float((work * work).sum())),
        "most_share": float(work.max()) / total,
        "least_share": float(work.min()) / total,
        "starved": None if untold else int((work < STARVED * total / n).sum()),
        "requests": requests.tolist(),
    }


def passed_over(routed: Routed, rows: np.ndarray) -> dict[str, Any]:
    """Of the requests `rows`, int64 [m]: how many were routed with a choice; of those how many went to a replica with a
    shorter match than another's, by how many tokens on average, and at how many of these fewer waited there."""
    chosen = rows[routed.other_match_tokens[rows] >= 0]
    short = routed.other_match_tokens[chosen] - routed.match_tokens[chosen]
    over = chosen[short > 0]
    return {
        "requests": len(chosen),
        "shorter_match": len(over),
        "tokens_short": float(short[short > 0].mean()) if len(over) else None,
        "fewer_waiting": int((routed.waiting_there[over] < routed.other_waiting[over]).sum()),
    }
