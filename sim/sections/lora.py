"""LoRA adapters on the replicas: the [lora] section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from workloads.limits import GB_PER_S, MAX_COUNT, MAX_US, from_0, key


@dataclass(frozen=True)
class LoraConfig:
    """What an adapter weighs and how it comes to the GPUs (docs/tenants.md); classes name theirs, engine.max_loras is
    how many run at once."""

    adapter_mib: float = key(
        0.0,
        "an adapter's weights as the engine keeps them, MiB over all GPUs of a replica: each of engine.max_loras slots"
        " takes as much of the KV memory; 0: adapters weigh nothing and are there at once",
        from_0(1e6),
    )
    host_gb_per_s: float = key(25.0, "from host memory into a slot, GB/s; the step waits", GB_PER_S)
    max_cpu_loras: int = key(
        0, "adapters that host memory holds, the least recently used go; 0: all of them", from_0(MAX_COUNT)
    )
    disk_gb_per_s: float = key(
        0.5, "from disk into host memory, GB/s; the step waits (0.5: as [autoscale] load_gb_per_s)", GB_PER_S
    )
    token_us: float = key(
        0.0,
        "what adapters add to every step for each of its tokens, microseconds; not measured here, so 0",
        from_0(MAX_US),
    )


class Adapters(NamedTuple):
    """The same as a replica reads it."""

    load_s: float  #: from host memory into a slot
    disk_s: float  #: from disk into host memory
    slots: int  #: 0: any number
    in_host: int  #: 0: any number


def adapters_of(config: LoraConfig, max_loras: int) -> Adapters | None:
    """None where adapters are there at once."""
    size = config.adapter_mib * 2**20
    if not size:
        return None
    times = size / (config.host_gb_per_s * 1e9), size / (config.disk_gb_per_s * 1e9)
    return Adapters(*times, max_loras, config.max_cpu_loras)
