"""The phrases that every part of a plan in words is made of: shares, limits, loads, fleets.

>>> share(0.95), gpus(2)
"""

from __future__ import annotations

from typing import Any

from kvcast import text

PERIOD = "the whole period"
DOES_NOT_FIT = "does not fit"  #: the verdict on a combination that the memory of its GPUs does not hold
"""Why a fleet that meets in the worst hour misses."""

FRAGILE, RECOVERY = "holds", "does not recover"
"""A fleet that holds its load and does not come back after the plan's burst, and why that is no answer."""

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


def sketch(answer: dict[str, Any]) -> str:
    return " (one run)" if answer["runs"] == 1 else f" ({answer['runs']} runs)"


def fleet(made: dict[str, Any]) -> str:
    """6 x H200-SXM, or 3 replicas of 2 x H200-SXM."""
    answer = made["answer"]
    device = made["device"] or "GPU"
    return (
        f"{answer['gpus']} x {device}"
        if answer["gpus_per_replica"] == 1
        else (
            f"{answer['replicas']} replica{'s' if answer['replicas'] != 1 else ''} of {answer['gpus_per_replica']} x"
            f" {device}"
        )
    ) + split(answer)


def split(row: dict[str, Any]) -> str:
    """How many of a fleet's replicas prefill and decode, where they are apart."""
    prefills = row.get("prefill_replicas")
    return f" ({prefills} prefill, {row['replicas'] - prefills} decode)" if prefills else ""


def share(value: float) -> str:
    """A share that somebody chose, as it was chosen."""
    return f"{100 * value:.6g} %"


def interval_share(found: dict[str, Any]) -> str:
    """A share with its interval: the longer side, or both ends where they are far from alike."""
    down, up = found["mean"] - found["low"], found["high"] - found["mean"]
    if max(down, up) > 0.01 and max(down, up) > 2 * min(down, up):
        return f"{100 * found['mean']:.1f} % ({100 * found['low']:.1f} to {100 * found['high']:.1f})"
    return f"{100 * found['mean']:.1f} % +- {100 * max(down, up):.1f} %"


def limits(slo: dict[str, Any]) -> str:
    """TTFT <= 500 ms and TPOT <= 40 ms, per SLO class where they differ."""

    def of(one: dict[str, float | None]) -> str:
        return " and ".join(f"{NAMES[key]} <= {text.seconds(value)}" for key, value in one.items() if value is not None)

    default = of(slo["limits"])
    named = [f"{name}: {of(one) or 'no limit'}" for name, one in slo["classes"].items()]
    return (
        "; ".join([*([default] if default else []), *named])
        if not named
        else f"their limits ({'; '.join([*([default] if default else []), *named])})"
    )


def load(value: float | None, unit: str) -> str:
    if value is None:
        return text.UNKNOWN
    return f"{number(value, unit)} {unit}"


def number(value: float | None, unit: str) -> str:
    return (
        text.UNKNOWN if value is None else f"{value:.3g}" if unit == "requests/s" and value < 1000 else f"{value:,.0f}"
    )


def at_least(made: dict[str, Any]) -> str:
    """Before the load that a fleet recovers from, where every load that was looked at is held and recovered from."""
    recovery, capacity = made["recovery"], made["capacity"]
    if not recovery or not capacity or recovery["recoverable_per_s"] is None:
        return ""
    open_ended = capacity["breaks_at_per_s"] is None
    return "at least " if open_ended and recovery["recoverable_per_s"] >= capacity["slo_capacity_per_s"] else ""


def burst(recovery: dict[str, Any]) -> str:
    """The burst that a plan asks about: 10 minutes at 2 times the load."""
    return f"{text.seconds(recovery['burst_s'])} at {recovery['burst_size']:g} times the load"


def larger(made: dict[str, Any]) -> bool:
    """Whether the answer has more replicas than hold its load, so that it comes back after a burst."""
    recovery = made["recovery"]
    return bool(recovery and recovery["recovers"] and recovery["holds_replicas"] < made["answer"]["replicas"])


def gpus(n: int) -> str:
    return f"{n} GPU" if n == 1 else f"{n} GPUs"


def replicas(n: int) -> str:
    return "replica" if n == 1 else "replicas"
