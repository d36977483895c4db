"""Where every prompt token went: a hit, or one cause of missing it; per request the sums are exact.

The one idea: a prompt's causes are consecutive stretches of it, so a few depths per request say everything:

    0 .. hit .. kept .. replica ceiling .. fleet ceiling .. under way .. another tenant's .. last full block .. prompt
      hit  evicted window        other replica    in flight     other tenant     changed or cold     partial block

Kept is what would be hit with endless memory: layers with a window or a state keep less than every block, and there the
rest up to the replica's ceiling is `window`.

Shared text rarely ends with a block: its last tokens, whose block goes on with other text, are `partial_block` too, and
`shared_partial` says how many of that cause's tokens an earlier request had computed: with blocks of one token all but
a prompt's last would hit. Only `changed_earlier` is not a stretch: it is the nodes beyond the last depth whose own text
was seen before at another place. Tokens computed again after a preemption are beyond the prompt's count: they are
reported apart (`recomputed_tokens`).

    python -m pytest tests/test_causes.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.paths import ScopeCount, nodes_beyond
from sim.recording import Recording
from workloads.columns import SCOPES, Workload

CAUSES = (
    "partial_block",
    "in_flight",
    "other_replica",
    "window",
    "evicted",
    "cache_off",
    "other_tenant",
    "changed_earlier",
    "cold",
)
NEVER = np.int32(np.iinfo(np.int32).max)
AT_ONCE = 1 << 20
"""Visits of nodes worked out together: only a bound on memory."""


@dataclass(frozen=True)
class Causes:
    """Every array is int64. Rows are all requests; those never admitted are zero everywhere."""

    tokens: dict[str, np.ndarray]  #: cause -> [n]
    shared_partial: (
        np.ndarray
    )  #: [n], of partial_block: tokens shared with an earlier request, but not as a whole block
    rows: np.ndarray  #: the requests that count in by_scope
    by_scope: dict[str, np.ndarray]  #: cause, and "hit" -> [groups, len(SCOPES)], summed over the rows of each group
    changed_layer: np.ndarray  #: [n], layer whose change cost the changed_earlier tokens; -1 none
    determinable: dict[str, bool]  #: False: the workload does not say, and the tokens are in `cold`


def miss_causes(
    rec: Recording, workload: Workload, rows: np.ndarray, group: np.ndarray, n_groups: int, caching: bool = True
) -> Causes:
    """Causes of every admitted request; tokens by scope summed over `rows` (admitted requests, int64 [m]) by group [m].

    Raises ValueError when hit <= replica ceiling <= fleet ceiling <= last full block does not hold for a request.
    """
    block = rec.block_size
    admitted = ~np.isnan(rec.admit_s)
    prompt, hit, replica, fleet, window = (
        np.where(admitted, c, 0).astype(np.int32)  # depths in a prompt: half the memory of a large run
        for c in (
            workload.prompt_tokens,
            rec.hit_tokens,
            rec.ceiling_replica_tokens,
            rec.ceiling_fleet_tokens,
            rec.window_tokens,
        )
    )
    full = np.where(admitted, (prompt - 1) // block * block, 0).astype(np.int32)
    _check_order(hit, replica, fleet, full)
    kept = np.maximum(hit, replica - window)
    del window

    history = _History(rec, workload, fleet, admitted)
    own_text, twin = history.depth_seen(None), workload.tree.twin
    any_text = own_text if twin is None else np.maximum(own_text, history.depth_seen(twin))
    under_way, _ = _reach(own_text, fleet, full, block)
    tenant, text = _reach(any_text, under_way, full, block)
    changed, changed_layer, parts = history.changed_earlier(text, full)
    del history
    shared_partial = (text - tenant + np.maximum(np.minimum(any_text, prompt) - full, 0)).astype(np.int64)
    del own_text, any_text

    zero = np.zeros_like(prompt)
    stretch = {
        "hit": [(zero, hit)],
        "in_flight": [(fleet, under_way)],
        "other_replica": [(replica, fleet)],
        "partial_block": [(full, prompt), (tenant, text)],
        "window": [(kept if caching else replica, replica)],
        "evicted": [(hit, kept if caching else hit)],
        "cache_off": [(hit, hit if caching else replica)],
        "other_tenant": [(under_way, tenant)],
        "cold": [(text, full)],
    }
    count = _Remembered(ScopeCount(workload, rows, group, n_groups), rows)
    by_scope = {name: sum(count(b) - count(a) for a, b in spans) for name, spans in stretch.items()}
    by_scope["changed_earlier"] = _grouped(parts, rows, group, n_groups, len(workload))
    by_scope["cold"] = by_scope["cold"] - by_scope["changed_earlier"]
    del count

    tokens: dict[str, Any] = {
        name: np.sum([b - a for a, b in spans], axis=0, dtype=np.int64)
        for name, spans in stretch.items()
        if name != "hit"
    }
    tokens["changed_earlier"] = changed
    tokens["cold"] -= changed
    one_root = int((workload.tree.parent < 0).sum()) <= 1
    determinable = {
        "other_tenant": workload.tree.twin is not None or one_root,
        "changed_earlier": workload.tree.content is not None,
    }
    return Causes({c: tokens[c] for c in CAUSES}, shared_partial, rows, by_scope, changed_layer, determinable)


def _check_order(hit: np.ndarray, replica: np.ndarray, fleet: np.ndarray, full: np.ndarray) -> None:
    bad = np.flatnonzero((hit < 0) | (hit > replica) | (replica > fleet) | (fleet > full))
    if len(bad):
        r = int(bad[0])
        raise ValueError(
            f"request {r}: expected hit <= replica ceiling <= fleet ceiling <= full blocks of the prompt, "
            f"got {hit[r]}, {replica[r]}, {fleet[r]}, {full[r]} tokens ({len(bad)} such requests)"
        )


def _reach(depth: np.ndarray, at_least: np.ndarray, at_most: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(last full block within `depth`, depth itself), both between at_least and at_most."""
    text = np.maximum(np.minimum(depth, at_most), at_least)
    return np.maximum(text // block * block, at_least), text


def _grouped(parts: tuple[np.ndarray, ...], rows: np.ndarray, group: np.ndarray, n_groups: int, n: int) -> np.ndarray:
    """int64 [groups, scopes] of (request, scope, tokens) parts; requests outside `rows` do not count."""
    request, scope, tokens = parts
    group_of = np.full(n, -1, np.int64)
    group_of[rows] = group
    counted = group_of[request] >= 0
    sums = np.zeros((n_groups, len(SCOPES)), np.int64)
    np.add.at(sums, (group_of[request[counted]], scope[counted]), tokens[counted])
    return sums


class _Remembered:
    """Scope counts of depths seen before are not counted again: with one replica most of the depths are one column."""

    def __init__(self, count: ScopeCount, rows: np.ndarray) -> None:
        self.count, self.rows = count, rows
        self.known: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, depth: np.ndarray) -> np.ndarray:
        for other, sums in self.known:
            if np.array_equal(depth, other):
                return sums
        self.known.append((depth, self.count(depth[self.rows])))
        return self.known[-1][1]


class _History:
    """What earlier-admitted requests had put anywhere, counted in whole tree nodes.

    Only nodes beyond a request's fleet ceiling matter: whatever lies above it was there, and whoever brings a text
    first has it beyond its own ceiling. Order is admission, ties by request id; a node with output tokens in it counts
    from its request's finish, without the last token, whose KV is never computed.
    """

    def __init__(self, rec: Recording, workload: Workload, ceiling: np.ndarray, admitted: np.ndarray) -> None:
        tree = self.tree = workload.tree
        self.n, self.workload = len(workload), workload
        order = np.flatnonzero(admitted)[np.argsort(rec.admit_s[admitted], kind="stable")]
        self.rank = np.full(self.n, -1, np.int32)
        self.rank[order] = np.arange(len(order))
        levels = nodes_beyond(tree, np.where(admitted, workload.leaf, 0), np.where(admitted, ceiling, NEVER))
        beyond = [(rows.astype(np.int32), nodes) for rows, nodes in levels]
        self.rows, self.nodes = (
            np.concatenate([np.empty(0, np.int32), *(level[i] for level in beyond)]) for i in (0, 1)
        )
        del beyond
        admitted_s = rec.admit_s[order]
        self.whole_path = np.empty(len(self.rows), bool)
        self.since = np.empty(len(self.rows), np.int32)
        for part in self._parts():
            rows, end = self.rows[part], tree.end[self.nodes[part]]
            prompt, finish_s = workload.prompt_tokens[rows], rec.finish_s[rows]
            in_prompt = end <= prompt
            self.whole_path[part] = ~in_prompt & (end == prompt + workload.output_tokens[rows])
            finish = np.searchsorted(admitted_s, finish_s, side="left") - 1  # NaN sorts last: never
            self.since[part] = np.where(in_prompt, self.rank[rows], np.where(np.isnan(finish_s), NEVER, finish))

    def _parts(self) -> Iterator[slice]:
        return (slice(at, at + AT_ONCE) for at in range(0, len(self.rows), AT_ONCE))

    def depth_seen(self, twin: np.ndarray | None) -> np.ndarray:
        """Deepest token of each path that lies at the end of a node an earlier request went through: int32 [n]."""
        whole, short = np.full(len(self.tree), NEVER), np.full(len(self.tree), NEVER)
        for part in self._parts():
            node, is_path = self._twins(part, twin), self.whole_path[part]
            np.minimum.at(whole, node[~is_path], self.since[part][~is_path])
            np.minimum.at(short, node[is_path], self.since[part][is_path])
        depth = np.zeros(self.n, np.int32)
        for part in self._parts():
            node, rows, end = self._twins(part, twin), self.rows[part], self.tree.end[self.nodes[part]]
            mine = self.rank[rows]
            reach = np.where(whole[node] < mine, end, np.where(short[node] < mine, end - 1, 0))
            np.maximum.at(depth, rows, reach.astype(np.int32))
        return depth

    def _twins(self, part: slice, twin: np.ndarray | None) -> np.ndarray:
        return self.nodes[part] if twin is None else twin[self.nodes[part]]

    def changed_earlier(
        self, known: np.ndarray, full: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        """Text seen before, but after other text: tokens [n], guilty layer [n], and its parts (request, scope, tokens).

        The guilty layer is that of the first node beyond `known`: from there on the prompt differs.
        """
        tree, layer, tokens = self.tree, np.full(self.n, -1, np.int64), np.zeros(self.n, np.int64)
        none = np.empty(0, np.int64)
        if tree.content is None:
            return tokens, layer, (none, none, none)
        texts, text_id = np.unique(tree.content, return_inverse=True)
        text_id = text_id.astype(np.int32)
        first = np.full(len(texts), NEVER)
        for part in self._parts():
            np.minimum.at(first, text_id[self.nodes[part]], self.since[part])
        found = []
        for part in self._parts():
            rows, nodes = self.rows[part], self.nodes[part]
            start, end = np.where(tree.parent[nodes] < 0, 0, tree.end[tree.parent[nodes]]), tree.end[nodes]
            low, high = np.maximum(start, known[rows]), np.minimum(end, full[rows])
            again = (tree.content[nodes] >= 0) & (first[text_id[nodes]] < self.rank[rows]) & (high > low)
            found.append((rows[again], nodes[again], (high - low)[again]))
            parting = (start <= known[rows]) & (known[rows] < end)
            layer[rows[parting]] = tree.layer[nodes[parting]]
        request, node, amount = (
            (np.concatenate([none, *column]) for column in zip(*found, strict=True)) if found else (none,) * 3
        )
        tokens += np.bincount(request, weights=amount, minlength=self.n).astype(np.int64)
        layer[tokens == 0] = -1
        scope = np.asarray(self.workload.layer_scopes, np.int64)[tree.layer[node]]
        return tokens, layer, (request, scope, amount)
