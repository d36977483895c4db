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
from functools import partial
from typing import NamedTuple

import numpy as np

from sim.measure.columns import Columns, blocks, dense
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
FATES = (
    "hit",
    "in_flight",
    "other_replica",
    "partial_block",
    "window",
    "evicted",
    "cache_off",
    "other_tenant",
    "cold",
    "changed_earlier",
)
"""In the order in which tables have them."""
NEVER = np.int32(np.iinfo(np.int32).max)


class Known(NamedTuple):
    """Depths in prompts that a recording says, tokens, int32 [m]; 0 of requests that were never admitted."""

    hit: np.ndarray
    kept: np.ndarray
    replica: np.ndarray
    fleet: np.ndarray
    full: np.ndarray
    prompt: np.ndarray


class Found(NamedTuple):
    """Depths in prompts that the history says, beyond those that the recording does: tokens, int32 [m]."""

    under_way: np.ndarray
    tenant: np.ndarray
    text: np.ndarray


@dataclass(frozen=True)
class Recorded:
    """What a recording says of where prompts were found."""

    rec: Recording
    workload: Workload

    def known(self, part: slice) -> Known:
        """Of a block of requests."""
        rec, block = self.rec, self.rec.block_size
        admitted = ~np.isnan(rec.admit_s[part])
        prompt, hit, replica, fleet, window = (
            np.where(admitted, column[part], 0).astype(np.int32)
            for column in (
                self.workload.prompt_tokens,
                rec.hit_tokens,
                rec.ceiling_replica_tokens,
                rec.ceiling_fleet_tokens,
                rec.window_tokens,
            )
        )
        full = np.where(admitted, (prompt - 1) // block * block, 0).astype(np.int32)
        return Known(hit, np.maximum(hit, replica - window), replica, fleet, full, prompt)


@dataclass(frozen=True)
class Causes:
    """Rows are all requests; those never admitted are zero everywhere."""

    tokens: Columns  #: cause -> int64 [n], made whenever asked for
    shared_partial: np.ndarray  #: int32 [n], of partial_block: shared with an earlier request, not as a whole block
    rows: np.ndarray  #: the requests that count in by_scope
    by_scope: dict[str, np.ndarray]  #: cause, and "hit" -> [groups, len(SCOPES)], summed over the rows of each group
    changed_layer: np.ndarray  #: int16 [n], layer whose change cost the changed_earlier tokens; -1 none
    determinable: dict[str, bool]  #: False: the workload does not say, and the tokens are in `cold`

    def total(self, cause: str) -> int:
        """Tokens of the requests that count in by_scope."""
        return int(self.by_scope[cause].sum())


@dataclass(frozen=True)
class Depths:
    """All that tokens by cause follow from: nine columns would be a third of what a large run takes."""

    recorded: Recorded
    found: Found  #: int32 [n]
    changed: np.ndarray  #: int32 [n], tokens of changed_earlier
    caching: bool

    def tokens(self, cause: str, part: slice) -> np.ndarray:
        """int64 [part]"""
        changed = self.changed[part]
        if cause == "changed_earlier":
            return changed.astype(np.int64)
        tokens, (first, _, _) = np.empty(len(changed), np.int64), part.indices(len(self.changed))
        for at in blocks(len(tokens)):
            here = slice(first + at.start, first + at.stop)
            found = Found(*(column[here] for column in self.found))
            spans = stretches(self.recorded.known(here), found, self.caching)[cause]
            tokens[at] = np.sum([b - a for a, b in spans], axis=0, dtype=np.int64)
        return tokens - changed if cause == "cold" else tokens


def stretches(known: Known, found: Found, caching: bool) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Of "hit" and every cause but `changed_earlier`, which is in `cold` here: from and to which tokens, [m] each."""
    hit, kept, replica, fleet, full, prompt = known
    under_way, tenant, text = found
    return {
        "hit": [(np.zeros_like(hit), hit)],
        "in_flight": [(fleet, under_way)],
        "other_replica": [(replica, fleet)],
        "partial_block": [(full, prompt), (tenant, text)],
        "window": [(kept if caching else replica, replica)],
        "evicted": [(hit, kept if caching else hit)],
        "cache_off": [(hit, hit if caching else replica)],
        "other_tenant": [(under_way, tenant)],
        "cold": [(text, full)],
    }


def miss_causes(
    rec: Recording, workload: Workload, rows: np.ndarray, group: np.ndarray, n_groups: int, caching: bool = True
) -> Causes:
    """Causes of every admitted request; tokens by scope summed over `rows` (admitted requests, int [m], ascending) by
    group [m].

    Raises ValueError when hit <= replica ceiling <= fleet ceiling <= last full block does not hold for a request.
    """
    n, recorded = len(workload), Recorded(rec, workload)
    _check_order(recorded, n)
    history, scopes = _History(rec, workload), ScopeCount(workload, n_groups)
    found = Found(*(np.zeros(n, np.int32) for _ in Found._fields))
    changed, shared_partial, layer = np.zeros(n, np.int32), np.zeros(n, np.int32), np.full(n, -1, np.int16)
    by_scope = {name: np.zeros((n_groups, len(SCOPES)), np.int64) for name in FATES}
    for part in blocks(n):
        known, visits = recorded.known(part), history.visits(part)
        own_text, any_text = history.depths_seen(part, visits)
        under_way, _ = _reach(own_text, known.fleet, known.full, rec.block_size)
        tenant, text = _reach(any_text, under_way, known.full, rec.block_size)
        here = Found(under_way, tenant, text)
        for column, values in zip(found, here, strict=True):
            column[part] = values
        shared_partial[part] = text - tenant + np.maximum(np.minimum(any_text, known.prompt) - known.full, 0)
        changed[part], layer[part], again = history.changed_earlier(part, visits, text, known.full)
        mine = slice(*np.searchsorted(rows, (part.start, part.stop)))
        count = _Remembered(scopes, rows[mine], group[mine], part.start)
        for name, spans in stretches(known, here, caching).items():
            by_scope[name] += sum(count(b) - count(a) for a, b in spans)
        _add_by_scope(by_scope["changed_earlier"], again, rows[mine] - part.start, group[mine], part.stop - part.start)
    by_scope["cold"] -= by_scope["changed_earlier"]
    tree = workload.tree
    determinable = {
        "other_tenant": tree.twin is not None or int((tree.parent < 0).sum()) <= 1,
        "changed_earlier": tree.content is not None,
    }
    depths = Depths(recorded, found, changed, caching)
    tokens = Columns({cause: partial(depths.tokens, cause) for cause in CAUSES})
    return Causes(tokens, shared_partial, rows, by_scope, layer, determinable)


def _check_order(recorded: Recorded, n: int) -> None:
    count, first = 0, ""
    for part in blocks(n):
        hit, _, replica, fleet, full, _ = recorded.known(part)
        bad = np.flatnonzero((hit < 0) | (hit > replica) | (replica > fleet) | (fleet > full))
        if len(bad) and not count:
            r = int(bad[0])
            first = f"{part.start + r}: expected hit <= replica ceiling <= fleet ceiling <= full blocks of the prompt,"
            first += f" got {hit[r]}, {replica[r]}, {fleet[r]}, {full[r]} tokens"
        count += len(bad)
    if count:
        raise ValueError(f"request {first} ({count} such requests)")


def _reach(depth: np.ndarray, at_least: np.ndarray, at_most: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(last full block within `depth`, depth itself), both between at_least and at_most."""
    text = np.maximum(np.minimum(depth, at_most), at_least)
    return np.maximum(text // block * block, at_least), text


def _add_by_scope(sums: np.ndarray, parts: tuple[np.ndarray, ...], rows: np.ndarray, group: np.ndarray, n: int) -> None:
    """Add to int64 [groups, scopes] the (request, scope, tokens) parts of n requests; those outside `rows` do not
    count."""
    request, scope, tokens = parts
    group_of = np.full(n, -1, np.int64)
    group_of[rows] = group
    counted = group_of[request] >= 0
    np.add.at(sums, (group_of[request[counted]], scope[counted]), tokens[counted])


class _Remembered:
    """Scope counts of depths seen before are not counted again: with one replica most of the depths are one column."""

    def __init__(self, count: ScopeCount, rows: np.ndarray, group: np.ndarray, first: int) -> None:
        """rows, group: of the block of requests that begins with `first`."""
        self.count, self.rows, self.group, self.first = count, rows, group, first
        self.known: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, depth: np.ndarray) -> np.ndarray:
        for other, sums in self.known:
            if np.array_equal(depth, other):
                return sums
        self.known.append((depth, self.count(self.rows, self.group, depth[self.rows - self.first])))
        return self.known[-1][1]


class Visits(NamedTuple):
    """Nodes of paths that lie beyond their request's fleet ceiling, of a block of requests: [visits] each."""

    rows: np.ndarray  #: int32, places in the block
    nodes: np.ndarray  #: int32
    since: np.ndarray  #: int32, rank of the admission from which on the node is there
    whole_path: np.ndarray  #: bool, it ends where its request's path does: without the last token


class _History:
    """What earlier-admitted requests had put anywhere, counted in whole tree nodes.

    Only nodes beyond a request's fleet ceiling matter: whatever lies above it was there, and whoever brings a text
    first has it beyond its own ceiling. Order is admission, ties by request id; a node with output tokens in it counts
    from its request's finish, without the last token, whose KV is never computed.
    """

    def __init__(self, rec: Recording, workload: Workload) -> None:
        tree, n = workload.tree, len(workload)
        self.rec, self.workload, self.tree = rec, workload, tree
        admitted = np.flatnonzero(~np.isnan(rec.admit_s)).astype(np.int32)
        order = admitted[np.argsort(rec.admit_s[admitted], kind="stable")]
        admitted_s = rec.admit_s[order]
        self.rank, self.finished = np.full(n, -1, np.int32), np.empty(n, np.int32)
        self.rank[order] = np.arange(len(order), dtype=np.int32)
        for part in blocks(n):
            finish_s = rec.finish_s[part]  # NaN sorts last: never
            before = np.searchsorted(admitted_s, finish_s, side="left") - 1
            self.finished[part] = np.where(np.isnan(finish_s), NEVER, before)
        del admitted, order, admitted_s
        twins = [None] if tree.twin is None else [None, tree.twin]
        self.seen = [(twin, np.full(len(tree), NEVER), np.full(len(tree), NEVER)) for twin in twins]
        self.text = None if tree.content is None else dense(tree.content + 1)  # 0: unknown
        self.first = np.full(0 if self.text is None else int(self.text.max(initial=0)) + 1, NEVER)
        for part in blocks(n):
            self._note(self.visits(part))

    def _note(self, visits: Visits) -> None:
        for twin, whole, short in self.seen:
            node, is_path = _twins(visits.nodes, twin), visits.whole_path
            np.minimum.at(whole, node[~is_path], visits.since[~is_path])
            np.minimum.at(short, node[is_path], visits.since[is_path])
        if self.text is not None:
            np.minimum.at(self.first, self.text[visits.nodes], visits.since)

    def visits(self, part: slice) -> Visits:
        """Of a block of requests."""
        tree, workload = self.tree, self.workload
        admitted = self.rank[part] >= 0
        depth = np.where(admitted, self.rec.ceiling_fleet_tokens[part], NEVER)
        levels = list(nodes_beyond(tree, np.where(admitted, workload.leaf[part], 0), depth))
        empty = (np.empty(0, np.int32), np.empty(0, np.int32))
        rows, nodes = (np.concatenate(column).astype(np.int32) for column in zip(empty, *levels, strict=True))
        end, prompt = tree.end[nodes], workload.prompt_tokens[part][rows]
        in_prompt = end <= prompt
        whole_path = ~in_prompt & (end == prompt + workload.output_tokens[part][rows])
        since = np.where(in_prompt, self.rank[part][rows], self.finished[part][rows])
        return Visits(rows, nodes, since, whole_path)

    def depths_seen(self, part: slice, visits: Visits) -> tuple[np.ndarray, np.ndarray]:
        """Deepest token of each path of a block of requests that lies at the end of a node an earlier request went
        through, or one that is the same text of any tenant: int32 [block] both."""
        mine, end = self.rank[part][visits.rows], self.tree.end[visits.nodes]
        depths = []
        for twin, whole, short in self.seen:
            node, depth = _twins(visits.nodes, twin), np.zeros(part.stop - part.start, np.int32)
            reach = np.where(whole[node] < mine, end, np.where(short[node] < mine, end - 1, 0))
            np.maximum.at(depth, visits.rows, reach.astype(np.int32))
            depths.append(depth)
        return depths[0], np.maximum(depths[0], depths[-1])

    def changed_earlier(
        self, part: slice, visits: Visits, known: np.ndarray, full: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        """Text seen before, but after other text, of a block of requests: tokens [block], guilty layer [block], and its
        parts (place in the block, scope, tokens).

        The guilty layer is that of the first node beyond `known`: from there on the prompt differs.
        """
        tree, (rows, nodes, _, _) = self.tree, visits
        tokens, layer = np.zeros(len(known), np.int64), np.full(len(known), -1, np.int16)
        if self.text is None:
            none = np.empty(0, np.int64)
            return tokens, layer, (none, none, none)
        start, end = np.where(tree.parent[nodes] < 0, 0, tree.end[tree.parent[nodes]]), tree.end[nodes]
        low, high = np.maximum(start, known[rows]), np.minimum(end, full[rows])
        again = (self.text[nodes] > 0) & (self.first[self.text[nodes]] < self.rank[part][rows]) & (high > low)
        parting = (start <= known[rows]) & (known[rows] < end)
        layer[rows[parting]] = tree.layer[nodes[parting]]
        amount = (high - low)[again]
        np.add.at(tokens, rows[again], amount)
        layer[tokens == 0] = -1
        scope = np.asarray(self.workload.layer_scopes, np.int64)[tree.layer[nodes[again]]]
        return tokens, layer, (rows[again], scope, amount)


def _twins(nodes: np.ndarray, twin: np.ndarray | None) -> np.ndarray:
    return nodes if twin is None else twin[nodes]
