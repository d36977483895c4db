"""What a mix will ask for, before it is simulated: sizes, rates, reusable tokens, and what an order of layers costs.

>>> order_cost(load_preset("coding-agent").class_[0])["lines"]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from workloads import dists
from workloads.check import class_rates
from workloads.columns import SCOPES, Workload
from workloads.config import Layer, MixClass, WorkloadConfig
from workloads.mix import build, resolve

WARNING = "Reordering changes what the model reads, and with it the answers: compare quality before adopting an order."


def reusable_tokens(workload: Workload) -> np.ndarray:
    """Prompt tokens of every request that an unlimited cache holds when requests come one by one in row order, int64
    [n].

    Token-exact (block size 1): the deepest node of the request's path that an earlier request's path has, at most all
    but the prompt's last token, which an engine always computes. No engine hits more in that order.
    """
    tree, n = workload.tree, len(workload)
    first = np.full(len(tree), n, np.int64)  # first request on each node
    np.minimum.at(first, workload.leaf, np.arange(n))
    seen, parent = first.tolist(), tree.parent.tolist()
    for node in range(len(seen) - 1, 0, -1):  # a parent's id is smaller than its children's
        up = parent[node]
        if up >= 0 and seen[node] < seen[up]:
            seen[up] = seen[node]
    first = np.array(seen)
    at, rows = workload.leaf.copy(), np.arange(n)
    while len(rows):  # climb from every leaf to the first node that somebody had before
        rows = rows[(first[at[rows]] >= rows) & (tree.parent[at[rows]] >= 0)]
        at[rows] = tree.parent[at[rows]]
    return np.where(first[at] < np.arange(n), np.minimum(tree.end[at], workload.prompt_tokens - 1), 0)


def estimate(config: WorkloadConfig) -> list[dict[str, Any]]:
    """One row a class, in closed form from the distributions (no sampling, churn ignored).

    Means over requests: a session of T turns reads its layers T times and its history T (T - 1) / 2 exchanges.
    """
    config = resolve(config)
    rows = []
    for c, rate in zip(config.class_, class_rates(config), strict=True):
        turns, turns_squared = dists.moments(c.turns)
        output = dists.moments(c.output)[0]
        opening = sum(dists.moments(layer.tokens)[0] for layer in c.layers)
        new_input = dists.moments(c.turn_input or c.layers[-1].tokens)[0]
        later = (turns_squared - turns) / 2 / turns  # earlier exchanges in an average prompt
        message = dists.moments(c.layers[-1].tokens)[0] if c.layers[-1].scope == "dynamic" else 0.0
        prompt = opening + later * (new_input + output)
        rows.append(
            {
                "class": c.name,
                "sessions_per_s": None if c.arrival.kind == "trace" else rate,
                "requests_per_session": turns,
                "requests_per_s": None if c.arrival.kind == "trace" else rate * turns,
                "first_prompt_tokens": opening,
                "layer_tokens": opening - message,
                "prompt_tokens": prompt,
                "output_tokens": output,
            }
        )
    return rows


def order_cost(mix_class: MixClass, rate: float = 1.0, requests: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Reusable prompt tokens of the class's layer order against the order global, project, session, dynamic.

    Both orders are generated with the same texts, sessions and lengths (`requests` of them; `rate` in sessions per
    second matters only to texts that change with the clock) and read by an unlimited cache, so churn, popularity and
    history count. `lines` says it in words.
    """
    best = replace(mix_class, layers=best_order(mix_class.layers))
    reusable, prompt = _reuse(mix_class, rate, requests, seed)
    best_reusable, _ = _reuse(best, rate, requests, seed) if best != mix_class else (reusable, prompt)
    order, best_names = ([layer.name for layer in c.layers] for c in (mix_class, best))
    lines = [
        f"{mix_class.name}: of {prompt:,.0f} prompt tokens a request, an unlimited cache can reuse {reusable:,.0f} with"
        f" the layers as ordered ({', '.join(order)})"
    ]
    if best == mix_class:
        lines.append("this is already the order global, project, session, dynamic")
    else:
        lines.append(
            f"in the order {', '.join(best_names)} it could reuse {best_reusable:,.0f}: this order costs up to"
            f" {best_reusable - reusable:,.0f} tokens of prefill a request"
        )
        lines.append(WARNING)
    after, recomputed, moved_reusable = after_history(mix_class), 0.0, best_reusable
    if after is not None:
        moved_reusable, moved_prompt = _reuse(after, rate, requests, seed)
        recomputed = (prompt - reusable) - (moved_prompt - moved_reusable)
        lines.append(
            f"{', '.join(layer.name for layer in before_history(mix_class))}: a dynamic layer before the history breaks"
            f" it too: after the history, inside the message, {recomputed:,.0f} tokens less are computed a request"
        )
    return {
        "class": mix_class.name,
        "order": order,
        "best_order": best_names,
        "prompt_tokens_per_request": prompt,
        "reusable_tokens_per_request": reusable,
        "best_reusable_tokens_per_request": best_reusable,
        "lost_tokens_per_request": best_reusable - reusable,
        "after_history_reusable_tokens_per_request": moved_reusable,
        "lost_before_history_tokens_per_request": recomputed,
        "lines": lines,
    }


def order_notes(config: WorkloadConfig, seed: int = 0) -> list[str]:
    """What the layer order costs, for each class of a mix whose order is not the best one."""
    if config.trace is not None:
        return []
    costly = [c for c in resolve(config).class_ if best_order(c.layers) != c.layers]
    return [": ".join(order_cost(c, seed=seed)["lines"]) for c in costly]


def best_order(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Widest reuse first; layers of one scope keep their order, and the one that changes least often goes first."""

    def rank(layer: Layer) -> tuple[int, bool, float]:
        ticks = [t for t in (layer.redeploy_s, layer.timestamp_s) if t]
        return SCOPES.index(layer.scope), layer.shuffle > 1 or bool(ticks), -min(ticks, default=0.0)

    return tuple(sorted(layers, key=rank))


def before_history(c: MixClass) -> list[Layer]:
    """The dynamic layers that later turns read before their history even in the best order: all but the message."""
    head = best_order(c.layers)[:-1] if dists.can_exceed(c.turns, 1) else ()
    return [layer for layer in head if layer.scope == "dynamic"]


def after_history(c: MixClass) -> MixClass | None:
    """The class in its best order with what is new in every request inside the message, which stands after the
    history; None where nothing new stands before it.

    The message of every turn grows by the layers' mean tokens and keeps its shape; later turns read the earlier ones
    again, as history.
    """
    moved = before_history(c)
    if not moved:
        return None
    more = sum(dists.moments(layer.tokens)[0] for layer in moved)
    *head, message = best_order(c.layers)
    kept = (layer for layer in head if layer not in moved)
    return replace(
        c,
        layers=(*kept, replace(message, tokens=dists.longer(message.tokens, more))),
        turn_input=None if c.turn_input is None else dists.longer(c.turn_input, more),
    )


def _reuse(c: MixClass, rate: float, requests: int, seed: int) -> tuple[float, float]:
    """Mean reusable and prompt tokens a request."""
    alone = replace(c, share=None, rate=None if c.arrival.kind == "trace" else rate)
    w = build(WorkloadConfig(class_=(alone,), requests=requests, loop="open"), seed)
    return float(reusable_tokens(w).mean()), float(w.prompt_tokens.mean())
