"""A fleet in two pools, in words: what each did, and what a first token waited for between them.

>>> print(pool_lines(result))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcast import text
from kvcast.api import Result
from sim.measure.pools import PARTS

WORDS = {
    "queue": "prefill queue",
    "prefill": "prefill",
    "decode_queue": "decode queue",
    "transfer": "transfer",
    "first_step": "first decode step",
}

HEADER = ("pool", "replicas x GPUs", "requests", "busy", "tokens in a step", "KV in use", "at the peak", "NIC busy")


def pool_lines(result: Result) -> str:
    """Empty where every replica does both."""
    found = result.report.summary.get("disaggregation")
    if found is None:
        return ""
    return "\n".join([text.table(list(HEADER), rows_of(found)), parts(found), _transfers(result, found)])


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """A row of HEADER for each pool."""
    return [
        [
            pool["pool"],
            f"{pool['replicas']} x {pool['gpus_per_replica']}",
            text.count(pool["requests"]),
            text.percent(pool["busy_share"]),
            f"{pool['tokens_per_step_mean']:,.{0 if pool['tokens_per_step_mean'] >= 10 else 2}f}",
            text.percent(pool["kv_usage_mean"]),
            text.percent(pool["kv_usage_peak"]),
            text.percent(pool["nic_busy_share"]),
        ]
        for pool in found["pools"]
    ]


def parts(found: Mapping[str, Any]) -> str:
    """What a first token waited for."""
    each = found["ttft_parts_ms"]
    means = ", ".join(
        f"{WORDS[name]} {text.milliseconds(each[name]['mean'])} (p99 {text.milliseconds(each[name]['p99'])})"
        for name in PARTS
    )
    here = found["computed_where_decoded"]
    return f"TTFT is {means}" + (f"; {text.count(here)} requests were prefilled where they decode" if here else "")


def _transfers(result: Result, found: Mapping[str, Any]) -> str:
    keys = result.scenario.disaggregation
    return (
        f"transfers: {found['read_bytes'] / 1e9:,.4g} GB of KV read, {text.count(found['decode_hit_tokens'])} prompt"
        f" tokens were on the decode replica already; {keys.bandwidth_gb_per_s:g} GB/s a GPU, {keys.latency_ms:g} ms"
        f" and {keys.descriptor_us:g} us a block and layer{', layer by layer' if keys.layerwise else ''}"
    )
