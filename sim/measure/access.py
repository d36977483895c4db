"""Every run of prompt tokens that was looked up in a cache: who, when, which text, how much of it hit, when it is next
asked for.

The one idea: a first admission looks up its prompt, which is a path in the prefix tree, so its accesses are the nodes
of that path and the hit tells how far they were there. Next uses come from the end, so the log is a stream of column
batches that needs four bytes a row beside the batch in hand.

    time_s         admission; rows go by time, then request, then depth
    replica        that looked
    request        row of the workload
    node           of the prefix tree; a prompt's own tail, which nobody can share, is len(tree) + request
    depth_tokens   tokens of the prompt before this run
    tokens         tokens of the run
    hit_tokens     its first tokens that were served from cache; the rest of the run missed
    next_use_s     next admission, on any replica, of a request with this run's first token in its prompt; NaN never
                   again
    class, tenant, layer, scope   codes into `NAMES`
    in_window      counted in the summary, whose hit and miss tokens are sums over these rows

Hits of later admissions, after a preemption, are in no hit rate and not here. Answers are no accesses; where one is
part of a later prompt, that prompt's row is.

    >>> for batch in accesses(workload, report.requests): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sim.paths import nodes_beyond, path_sums
from workloads.columns import SCOPES, Workload

BATCH_ROWS = 1 << 18
"""A batch ends with the request that reaches this many rows."""


def names(workload: Workload) -> dict[str, tuple[str, ...]]:
    """What the codes of each coded column stand for."""
    return {
        "class": workload.class_names,
        "tenant": workload.tenant_names,
        "layer": workload.layer_names,
        "scope": SCOPES,
    }


def accesses(
    workload: Workload, requests: Mapping[str, np.ndarray], batch_rows: int = BATCH_ROWS
) -> Iterator[dict[str, np.ndarray]]:
    """Batches of the columns above. requests: the `requests` table of the run's report (admit_s, replica, hit_tokens,
    in_window)."""
    paths = _Prompts(workload)
    admitted = np.flatnonzero(~np.isnan(requests["admit_s"]))
    order = admitted[np.argsort(requests["admit_s"][admitted], kind="stable")]
    batches = _batches(workload, order, batch_rows)
    scope_of = np.asarray(workload.layer_scopes, np.int8)
    coded = {"class": workload.column("class_id"), "tenant": workload.column("tenant_id")}
    for begin, end, following in zip(batches[:-1], batches[1:], _next_uses(paths, order, batches), strict=True):
        index, node, start, tokens = paths.runs(order[begin:end])
        request = order[begin:end][index]
        time_s = requests["admit_s"][request]
        next_s = np.full(len(request), np.nan)
        again = following >= 0
        next_s[again] = requests["admit_s"][order[following[again]]]
        layer = paths.layer(request, node)
        yield {
            "time_s": time_s,
            "replica": requests["replica"][request],
            "request": request,
            "node": node,
            "depth_tokens": start,
            "tokens": tokens,
            "hit_tokens": np.clip(requests["hit_tokens"][request] - start, 0, tokens),
            "next_use_s": next_s,
            **{name: column[request] for name, column in coded.items()},
            "layer": layer,
            "scope": scope_of[layer],
            "in_window": requests["in_window"][request],
        }


class _Prompts:
    """The runs of prompts: nodes of the tree, and what lies beyond it."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.tree, self.start = workload, workload.tree, workload.tree.start
        self.tail_layer = workload.column("tail_layer")

    def runs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(index into rows, node, first token, tokens) of every run of the rows' prompts, in order of rows and
        depth."""
        prompt, leaf = self.workload.prompt_tokens[rows], self.workload.leaf[rows]
        found = list(nodes_beyond(self.tree, leaf, np.zeros(len(rows), np.int64)))
        tail = np.flatnonzero(prompt > self.tree.end[leaf])
        index = np.concatenate([*(i for i, _ in found), tail])
        node = np.concatenate([*(n for _, n in found), len(self.tree) + rows[tail]]).astype(np.int64)
        start = np.concatenate([*(self.start[n] for _, n in found), self.tree.end[leaf[tail]]])
        end = np.minimum(np.concatenate([*(self.tree.end[n] for _, n in found), prompt[tail]]), prompt[index])
        order = np.lexsort((start, index))
        order = order[start[order] < end[order]]  # a prompt may end before the path: its answer goes on
        return index[order], node[order], start[order], (end - start)[order]

    def layer(self, request: np.ndarray, node: np.ndarray) -> np.ndarray:
        shared = node < len(self.tree)
        return np.where(shared, self.tree.layer[np.where(shared, node, 0)], self.tail_layer[request])


def _batches(workload: Workload, order: np.ndarray, batch_rows: int) -> np.ndarray:
    """Ends of consecutive stretches of `order`, from 0: each with at most about `batch_rows` runs."""
    nodes = path_sums(workload.tree, [np.ones(len(workload.tree), np.int64)])[0]
    rows = np.cumsum(nodes[workload.leaf[order]] + 1)
    return np.concatenate([[0], np.flatnonzero(np.diff(rows // batch_rows)) + 1, [len(order)]]).astype(np.int64)


def _next_uses(paths: _Prompts, order: np.ndarray, batches: np.ndarray) -> list[np.ndarray]:
    """Per batch int32: position in `order` of the next request that goes through each run's node, -1 without."""
    soonest = np.full(len(paths.tree), -1, np.int32)
    found = []
    for begin, end in zip(batches[-2::-1], batches[:0:-1], strict=True):
        index, node, _, _ = paths.runs(order[begin:end])
        shared = np.flatnonzero(node < len(paths.tree))
        by_node = shared[np.argsort(node[shared], kind="stable")]  # runs of a node stay in order of time
        of, position = node[by_node], (begin + index[by_node]).astype(np.int32)
        last, first = np.append(of[1:] != of[:-1], True)[: len(of)], np.append(True, of[1:] != of[:-1])[: len(of)]
        following = np.append(position[1:], -1).astype(np.int32)[: len(of)]
        following[last] = soonest[of[last]]
        soonest[of[first]] = position[first]
        all_of = np.full(len(node), -1, np.int32)
        all_of[by_node] = following
        found.append(all_of)
    return found[::-1]
