"""What a fleet costs at the load it is planned for.

The one idea: a fleet is paid by the hour whatever it does, so the price of a request or a token is that of an hour over
what an hour of the nominal load brings; a lighter or fuller window of one run changes nothing.

    >>> money(fleet)["usd_per_request"]
"""

from __future__ import annotations

import numpy as np

HOURS_A_MONTH = 730.0
PER_MILLION = tuple(f"usd_per_million_{tokens}_tokens" for tokens in ("input", "output", "total"))
KEYS = ("usd_per_month", "usd_per_request", *PER_MILLION)


def money(
    usd_per_hour: float | None, offered_per_s: float | None, prompt_tokens: np.ndarray, output_tokens: np.ndarray
) -> dict[str, float | None]:
    """Dollars at the nominal load; None without a price or a rate. prompt_tokens, output_tokens: of requests of that
    load [n]."""
    found: dict[str, float | None] = dict.fromkeys(KEYS)
    if usd_per_hour is None:
        return found
    found["usd_per_month"] = usd_per_hour * HOURS_A_MONTH
    if not offered_per_s or not len(prompt_tokens):
        return found
    request = usd_per_hour / 3600 / offered_per_s
    tokens = {"input": float(prompt_tokens.mean()), "output": float(output_tokens.mean())}
    tokens["total"] = sum(tokens.values())
    return {
        **found,
        "usd_per_request": request,
        **{f"usd_per_million_{name}_tokens": 1e6 * request / mean for name, mean in tokens.items() if mean},
    }
