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
NEVER = np.iinfo(np.int64).max


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
    prompt = np.where(admitted, workload.prompt_tokens, 0)
    hit, replica, fleet, window = (
        np.where(admitted, c, 0).astype(np.int64)
        for c in (rec.hit_tokens, rec.ceiling_replica_tokens, rec.ceiling_fleet_tokens, rec.window_tokens)
    )
    full = np.where(admitted, (prompt - 1) // block * block, 0)
    _check_order(hit, replica, fleet, full)
    kept = np.maximum(hit, replica - window)

    history = _History(rec, workload, fleet, admitted)
    own_text, twin = history.depth_seen(None), workload.tree.twin
    any_text = own_text if twin is None else np.maximum(own_text, history.depth_seen(twin))
    under_way, _ = _reach(own_text, fleet, full, block)
    tenant, text = _reach(any_text, under_way, full, block)
    changed, changed_layer, parts = history.changed_earlier(text, full)
    shared_partial = text - tenant + np.maximum(np.minimum(any_text, prompt) - full, 0)

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
    tokens: dict[str, Any] = {name: sum(b - a for a, b in spans) for name, spans in stretch.items() if name != "hit"}
    tokens["changed_earlier"] = changed
    tokens["cold"] = tokens["cold"] - changed

    count = _Remembered(ScopeCount(workload, rows, group, n_groups), rows)
    by_scope = {name: sum(count(b) - count(a) for a, b in spans) for name, spans in stretch.items()}
    by_scope["changed_earlier"] = _grouped(parts, rows, group, n_groups, len(workload))
    by_scope["cold"] = by_scope["cold"] - by_scope["changed_earlier"]
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
        self.rank = np.full(self.n, -1, np.int64)
        self.rank[order] = np.arange(len(order))
        beyond = list(nodes_beyond(tree, np.where(admitted, workload.leaf, 0), np.where(admitted, ceiling, NEVER)))
        self.rows = np.concatenate([r for r, _ in beyond]) if beyond else np.empty(0, np.int64)
        self.nodes = np.concatenate([k for _, k in beyond]) if beyond else np.empty(0, np.int64)
        end = tree.end[self.nodes]
        in_prompt = end <= workload.prompt_tokens[self.rows]
        self.whole_path = ~in_prompt & (end == (workload.prompt_tokens + workload.output_tokens)[self.rows])
        finish = np.searchsorted(rec.admit_s[order], rec.finish_s[self.rows], side="left") - 1  # NaN sorts last: never
        self.since = np.where(
            in_prompt, self.rank[self.rows], np.where(np.isnan(rec.finish_s[self.rows]), NEVER, finish)
        )

    def depth_seen(self, twin: np.ndarray | None) -> np.ndarray:
        """Deepest token of each path that lies at the end of a node an earlier request went through."""
        node = self.nodes if twin is None else twin[self.nodes]
        size = len(self.tree)
        whole, short = np.full(size, NEVER), np.full(size, NEVER)
        np.minimum.at(whole, node[~self.whole_path], self.since[~self.whole_path])
        np.minimum.at(short, node[self.whole_path], self.since[self.whole_path])
        mine = self.rank[self.rows]
        end = self.tree.end[self.nodes]
        reach = np.where(whole[node] < mine, end, np.where(short[node] < mine, end - 1, 0))
        depth = np.zeros(self.n, np.int64)
        np.maximum.at(depth, self.rows, reach)
        return depth

    def changed_earlier(
        self, known: np.ndarray, full: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        """Text seen before, but after other text: tokens [n], guilty layer [n], and its parts (request, scope, tokens).

        The guilty layer is that of the first node beyond `known`: from there on the prompt differs.
        """
        layer = np.full(self.n, -1, np.int64)
        if self.tree.content is None:
            none = np.empty(0, np.int64)
            return np.zeros(self.n, np.int64), layer, (none, none, none)
        text = self.tree.content[self.nodes]
        _, text_id = np.unique(text, return_inverse=True)
        first = np.full(int(text_id.max(initial=-1)) + 1, NEVER)
        np.minimum.at(first, text_id, self.since)
        start, end = self.tree.start[self.nodes], self.tree.end[self.nodes]
        low, high = np.maximum(start, known[self.rows]), np.minimum(end, full[self.rows])
        again = (text >= 0) & (first[text_id] < self.rank[self.rows]) & (high > low)
        request, amount = self.rows[again], (high - low)[again]
        tokens = np.bincount(request, weights=amount, minlength=self.n).astype(np.int64)
        parting = (start <= known[self.rows]) & (known[self.rows] < end)
        layer[self.rows[parting]] = self.tree.layer[self.nodes[parting]]
        layer[tokens == 0] = -1
        scope = np.asarray(self.workload.layer_scopes, np.int64)[self.tree.layer[self.nodes[again]]]
        return tokens, layer, (request, scope, amount)
