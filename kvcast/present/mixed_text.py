"""A fleet of replicas that are not alike, in words: what each [[pool]] did and cost.

>>> print(mixed_lines(result.report.summary))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcast import text

LOAD_HEADER = ("pool", "replicas x GPUs", "requests", "TTFT mean", "TTFT p99", "TPOT mean", "E2E mean", "hit rate")
USE_HEADER = ("pool", "busy", "running", "KV in use", "at the peak", "Jain within", "GPU-hours", "cost", "a request")


def mixed_lines(s: Mapping[str, Any]) -> str:
    """Empty where all replicas are alike."""
    if not s.get("pools"):
        return ""
    return "\n".join(
        [text.table(list(LOAD_HEADER), load_rows(s)), "", text.table(list(USE_HEADER), use_rows(s)), between(s)]
    )


def load_rows(s: Mapping[str, Any]) -> list[list[str]]:
    """A row of LOAD_HEADER for each pool."""
    return [
        [
            row["pool"],
            f"{row['replicas']} x {row['gpus_per_replica']} {row['profile']}",
            text.count(row["requests"]),
            text.milliseconds(row["latency_ms"]["ttft"]["mean"]),
            text.milliseconds(row["latency_ms"]["ttft"]["p99"]),
            text.milliseconds(row["latency_ms"]["tpot"]["mean"]),
            text.milliseconds(row["latency_ms"]["e2el"]["mean"]),
            text.hit_rate(row["prefix_hit_rate"], s["prefix_identity"]),
        ]
        for row in s["pools"]
    ]


def use_rows(s: Mapping[str, Any]) -> list[list[str]]:
    """A row of USE_HEADER for each pool."""
    return [
        [
            row["pool"],
            text.percent(row["busy_share"]),
            f"{row['running_mean']:,.3g}",
            text.percent(row["kv_usage_mean"]),
            text.percent(row["kv_usage_peak"]),
            text.UNKNOWN if row["jain"] is None else f"{row['jain']:.2f}",
            f"{row['gpu_hours']:.4g}",
            text.UNKNOWN if row["usd"] is None else text.usd(row["usd"]),
            text.UNKNOWN if row["usd_per_request"] is None else text.usd(row["usd_per_request"]),
        ]
        for row in s["pools"]
    ]


def between(s: Mapping[str, Any]) -> str:
    """How evenly busy the pools are."""
    even = s["jain_of_busy"]
    said = "" if even is None else f"how busy the pools are: Jain's index {even:.2f} between them; "
    return f"{said}within: of the tokens that a pool's replicas computed"
