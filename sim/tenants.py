"""What a tenant is served, and its share: for the queue that is fair to tenants (sim.vllm.fair) and for who judges it.

>>> weights_of(("chat/0", "chat/1"), {"chat": 2.0})
[2.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workloads.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from workloads.columns import Workload

INPUT, OUTPUT = 1.0, 2.0
"""What a token counts, as published."""


def tenants_of(workload: Workload) -> tuple[np.ndarray, tuple[str, ...]]:
    """(of each request, int [n]; names): the workload's tenants, or where it has one its classes."""
    if len(workload.tenant_names) > 1:
        return workload.column("tenant_id"), workload.tenant_names
    return workload.column("class_id"), workload.class_names


def weights_of(tenants: Sequence[str], weights: Mapping[str, float]) -> list[float]:
    """The weight of each tenant, by its name (chat/0) or its class's (chat); 1 of those without. Raises InputError for
    a name that is neither."""
    named = {*tenants, *filter(None, (name.rpartition("/")[0] for name in tenants))}
    for name in weights:
        if name not in named:
            raise InputError(
                f"[engine] tenant_weights: {name!r} is no tenant of the workload; expected one of"
                f" {', '.join(sorted(named)[:20]) or 'its tenants, of which it has none'}"
                f"{did_you_mean(name, sorted(named))}"
            )
    return [weights.get(name, weights.get(name.rpartition("/")[0], 1.0)) for name in tenants]
