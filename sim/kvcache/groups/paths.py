"""Paths of requests through the prefix tree in the blocks of every KV group."""

from __future__ import annotations

from collections.abc import Sequence

from sim.kvcache.chains import Path, Paths
from sim.kvcache.groups.rules import GroupRules
from workloads.columns import Workload


class GroupPaths:
    """Paths of requests in the blocks of every group, with node numbers of the groups' own; shared by all replicas."""

    def __init__(self, workload: Workload, rules: Sequence[GroupRules]) -> None:
        self._rules = rules
        self._of = {r.b: Paths(workload, r.b) for r in rules}

    def build(self, request: int) -> list[Path]:
        plain = {b: paths.build(request) for b, paths in self._of.items()}
        n = len(self._rules)
        return [[(node * n + r.index, end) for node, end in plain[r.b]] for r in self._rules]
