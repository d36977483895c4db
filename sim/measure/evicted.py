"""Evicted tokens of a run, split against the optimum of its own schedule: by request, and by scope and any grouping.

The one idea: with hit depth k, the optimum's depth k* and the ceiling K the parts are stretches of the prompt, as
causes are:

    policy     from k to k* where k* is deeper: the optimum kept them
    memory     from the deeper of both to K: the optimum lost them too
    given_up   from k* to k where k is deeper: hit, though the optimum gave them up (a part of the hits, not of the
    misses)

so policy + memory = evicted, and the optimum's hits - the run's = policy - given_up, exactly, for every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.optimum.schedule import Optimum, schedule_optimum, split_evicted
from sim.paths import ScopeCount
from sim.recording import Recording
from workloads.columns import Workload

PARTS = ("policy", "memory", "given_up")


@dataclass(frozen=True)
class Evicted:
    optimum: Optimum
    tokens: dict[str, np.ndarray]  #: part -> int64 [n requests]
    by_scope: dict[str, np.ndarray]  #: part -> int64 [groups, len(SCOPES)], summed over the rows of each group

    def sums(self, rows: np.ndarray) -> dict[str, int]:
        """Tokens of these requests by part."""
        return {part: int(column[rows].sum()) for part, column in self.tokens.items()}

    def summary(self, rows: np.ndarray) -> dict[str, Any]:
        """The parts of these requests, and what they are measured by."""
        best = self.optimum
        return {
            **self.sums(rows),
            "optimum_hit_tokens": int(best.hit_tokens[rows].sum()),
            "optimum": best.name,
            "rule": best.rule,
            "objective": best.objective,
            "gap": best.gap,
            "checkpoints": best.checkpoints,
        }


def evicted_parts(rec: Recording, workload: Workload, rows: np.ndarray, group: np.ndarray, n_groups: int) -> Evicted:
    """Parts of every request of a run that kept its cache events; by scope over `rows` (admitted requests, int64 [m])
    by group [m]."""
    optimum = schedule_optimum(workload, rec)
    hit, best, ceiling = rec.hit_tokens, optimum.hit_tokens, rec.ceiling_replica_tokens
    split = split_evicted(hit, best, ceiling)
    count = ScopeCount(workload, n_groups)
    at_hit, at_best, at_both, at_ceiling = (
        count(rows, group, depth[rows]) for depth in (hit, np.minimum(hit, best), np.maximum(hit, best), ceiling)
    )
    by_scope = {"policy": at_both - at_hit, "memory": at_ceiling - at_both, "given_up": at_hit - at_best}
    return Evicted(optimum, {"policy": split.policy, "memory": split.memory, "given_up": split.gave_up}, by_scope)
