"""Prefill and decode on different replicas: the [disaggregation] section."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.layout import NODE_GPUS
from workloads.limits import GB_PER_S, MAX_COUNT, MAX_KV_BLOCKS, MAX_REPLICAS, MAX_US, MS, TOKENS, from_0, from_1, key

AT_ARRIVAL, AFTER_PREFILL = "at-arrival", "after-prefill"


@dataclass(frozen=True)
class DisaggregationConfig:
    """Prefill and decode on different replicas (docs/disaggregation.md)."""

    prefill_replicas: int = key(
        0,
        "of cluster.replicas, how many only prefill; the others decode what those have computed; 0: every replica does"
        " both",
        from_0(MAX_REPLICAS),
    )
    prefill_router: str | None = key(
        None,
        "who chooses among them, a router as of [cluster], whose router then chooses among the others; default: the"
        " same one",
    )
    prefill_tensor_parallel: int | None = key(
        None, "hardware.tensor_parallel of a replica that prefills; default: the same", from_1(NODE_GPUS)
    )
    prefill_profile: str | None = key(
        None,
        "hardware.profile of a replica that prefills; default: the same, or with hardware.gpu what is there for its"
        " tensor_parallel",
    )
    prefill_max_num_batched_tokens: int | None = key(
        None, "engine.max_num_batched_tokens of a replica that prefills; default: the same", TOKENS
    )
    prefill_kv_blocks: int | None = key(
        None,
        "engine.kv_blocks of a replica that prefills; default: the same, or where its GPUs differ what fits in their"
        " memory",
        from_1(MAX_KV_BLOCKS),
    )
    decode_chosen: str = key(
        AT_ARRIVAL,
        "when the decode replica of a request is chosen: at-arrival (as llm-d and vLLM's proxies) or after-prefill (as"
        " Dynamo)",
        choices=(AT_ARRIVAL, AFTER_PREFILL),
    )
    local_below: int = key(
        0,
        "the chosen decode replica computes a prompt itself that has fewer uncached tokens there; 0: never (with"
        " at-arrival; llm-d's threshold)",
        from_0(MAX_COUNT),
    )
    bandwidth_gb_per_s: float = key(
        50.0,
        "of each GPU's own NIC, GB/s (1e9 bytes): 50 is 400 Gbit/s used in full, as measured tuned; 14 was measured"
        " untuned",
        GB_PER_S,
    )
    latency_ms: float = key(0.5, "of every transfer, beside its bytes, milliseconds", MS)
    descriptor_us: float = key(
        4.0, "the reading replica's NIC, for each layer of each KV block, microseconds", from_0(MAX_US)
    )
    layerwise: bool = key(
        False, "layers are sent while the prompt is computed; false: all of them after it (vLLM's NIXL connector)"
    )
    handoff_ms: float = key(
        0.0, "from the end of a prefill until its request is with the decode replica (the proxy), milliseconds", MS
    )

    @property
    def on(self) -> bool:
        return self.prefill_replicas > 0
