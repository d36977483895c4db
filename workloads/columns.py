"""A workload: requests as numpy columns over one static prefix tree.

The one idea: every prompt, whether it came from a trace's block hashes or from a layered mix, is a path in one
*prefix tree* of token runs. Two requests share exactly the tokens of the nodes their paths share, so no token
values or hashes are needed after loading, and ten million requests fit in columns.

Path of request r: the root-to-`leaf[r]` chain of tree nodes, then (if `prompt + output` reaches beyond
`tree.end[leaf[r]]`) a *private tail* that no other request can share and that is not stored in the tree.
The path covers prompt **and output** tokens: a later turn that contains an earlier answer simply has that
answer's node on its path. `prompt_tokens[r]` may therefore fall inside a node.

    >>> from workloads.columns import Workload      # built by workloads.readers and workloads.mix
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

SCOPES = ("unknown", "global", "project", "session", "dynamic")
"""Reuse scopes of a layer; the position is the code stored in `layer_scopes`."""


@dataclass(frozen=True)
class PrefixTree:
    """Static tree of token runs; read-only and shared by all replicas and policies.

    Node i covers the absolute token positions [start, end) of every prompt that passes through it, where
    start = end[parent[i]] and 0 for roots. A root has parent -1 and end 0; every isolation domain (tenant salt,
    LoRA) is its own root. A parent's id is smaller than its children's.
    """

    parent: np.ndarray  #: int32 [n_nodes]
    end: np.ndarray  #: int64 [n_nodes], tokens
    layer: np.ndarray  #: int16 [n_nodes], index into Workload.layer_names
    twin: np.ndarray | None = None  #: int32 [n_nodes]; id of the node this one would be without tenant isolation
    content: np.ndarray | None = (
        None  #: int64 [n_nodes]; identity of the node's own text whatever precedes it; -1 unknown
    )

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def start(self) -> np.ndarray:
        """int64 [n_nodes]: first token position of every node."""
        return np.where(self.parent < 0, 0, self.end[self.parent])

    def check(self) -> None:
        """Raise ValueError on an impossible tree."""
        n = len(self.parent)
        if len(self.end) != n or len(self.layer) != n:
            raise ValueError(f"tree columns differ in length: parent {n}, end {len(self.end)}, layer {len(self.layer)}")
        inner = self.parent >= 0
        if np.any(self.parent >= np.arange(n)):
            raise ValueError("tree: a parent must come before its child")
        if np.any(self.end[~inner] != 0):
            raise ValueError("tree: a root must end at token 0")
        if np.any(self.end[inner] <= self.end[self.parent[inner]]):
            raise ValueError("tree: a node must hold at least one token")


@dataclass(frozen=True)
class Workload:
    """Requests in file (or generation) order. Row index = request id, the tie-breaker everywhere."""

    tree: PrefixTree
    arrival_s: np.ndarray  #: float64 [n], seconds from the start; NaN when released by another request (`after`)
    prompt_tokens: np.ndarray  #: int64 [n], >= 1
    output_tokens: np.ndarray  #: int64 [n], >= 1, the true output length
    leaf: np.ndarray  #: int32 [n], deepest shared tree node of the path (a root when nothing is shared)
    max_tokens: np.ndarray | None = None  #: int64 [n], what the client asked for; None = equal to output_tokens
    class_id: np.ndarray | None = None  #: int16 [n] into class_names; None = all 0
    tenant_id: np.ndarray | None = None  #: int32 [n] into tenant_names; None = all 0
    session_id: np.ndarray | None = None  #: int64 [n]; None = every request its own session
    turn: np.ndarray | None = None  #: int32 [n], 0-based position in the session
    priority: np.ndarray | None = None  #: int32 [n], lower = served earlier (vLLM)
    lora: np.ndarray | None = None  #: int32 [n], adapter id, -1 none (isolation itself is a root of the tree)
    after: np.ndarray | None = None  #: int64 [n], request whose completion releases this one; -1 = by arrival_s
    delay_s: np.ndarray | None = None  #: float64 [n], think or tool time between that completion and this arrival
    tail_layer: np.ndarray | None = None  #: int16 [n], layer of the private tail's prompt tokens
    class_names: tuple[str, ...] = ("all",)
    class_slo: tuple[str, ...] = ("",)  #: SLO class of each class; "" = the default SLO
    tenant_names: tuple[str, ...] = ("",)
    layer_names: tuple[str, ...] = ("prompt",)
    layer_scopes: tuple[int, ...] = (0,)  #: code into SCOPES, one per layer
    concurrency: int | None = (
        None  #: fixed-concurrency closed loop: this many sessions active at once; arrival_s is then ignored
    )
    paced: bool = False  #: of a fixed concurrency: a session begins no earlier than its first arrival_s
    turnaround_s: float = 0.0  #: of a fixed concurrency: seconds between a session's end and the next in its place
    prefix_identity: bool = (
        True  #: False: the source says nothing about shared text; every hit rate is 0 and labelled so
    )
    hash_block_tokens: int | None = None  #: block size of the trace's own hashes, None for mixes
    source: str = ""  #: what it was read or generated from, with a content hash when it is a file
    notes: tuple[str, ...] = field(
        default=()
    )  #: reading report: rows read = requests + skipped (by reason), quirks met

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def column(self, name: str) -> np.ndarray:
        """An optional column with its default filled in (shape [n])."""
        value = getattr(self, name)
        if value is not None:
            return value
        n = len(self)
        defaults = {
            "max_tokens": lambda: self.output_tokens,
            "class_id": lambda: np.zeros(n, np.int16),
            "tenant_id": lambda: np.zeros(n, np.int32),
            "session_id": lambda: np.arange(n, dtype=np.int64),
            "turn": lambda: np.zeros(n, np.int32),
            "priority": lambda: np.zeros(n, np.int32),
            "lora": lambda: np.full(n, -1, np.int32),
            "after": lambda: np.full(n, -1, np.int64),
            "delay_s": lambda: np.zeros(n, np.float64),
            "tail_layer": lambda: np.zeros(n, np.int16),
        }
        return defaults[name]()

    def check(self) -> None:
        """Raise ValueError naming the first impossible row and field."""
        self.tree.check()
        n = len(self)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray) and len(value) != n:
                raise ValueError(f"column {f.name} has {len(value)} rows, expected {n}")

        def first(bad: np.ndarray, name: str, expected: str) -> None:
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                raise ValueError(f"request {row}: {name} = {getattr(self, name)[row]}, expected {expected}")

        after = self.column("after")
        first(self.prompt_tokens < 1, "prompt_tokens", "at least 1")
        first(self.output_tokens < 1, "output_tokens", "at least 1")
        first((self.leaf < 0) | (self.leaf >= len(self.tree)), "leaf", f"a node id below {len(self.tree)}")
        first(
            self.tree.end[self.leaf] > self.prompt_tokens + self.output_tokens,
            "leaf",
            "a node that ends within prompt + output",
        )
        if self.after is not None:
            first(after >= np.arange(n), "after", "an earlier request")
        if self.concurrency is None or self.paced:
            first(~np.isfinite(self.arrival_s) & (after < 0), "arrival_s", "a finite time")
        first(np.isfinite(self.arrival_s) & (self.arrival_s < 0), "arrival_s", "a time >= 0")
        if len(self.layer_names) != len(self.layer_scopes):
            raise ValueError("layer_names and layer_scopes differ in length")

    def with_notes(self, *lines: str) -> Workload:
        return replace(self, notes=self.notes + lines)
