"""What a workload asks for, in numbers: lengths, arrivals, sessions, shared text and its reuse ceiling.

The one idea: everything here follows from the columns and the tree; nothing is simulated. Who wants the hit rate
against capacity hands in the function that replays a cache.

    >>> print(as_text(describe(read("conversation_trace.jsonl"), block_size=512)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workloads.columns import SCOPES, Workload
from workloads.reuse import Reuse, distinct_blocks, infinite_cache, reuse_gaps_s
from workloads.transform import in_time_order

COUNTING_RULE = (
    "full blocks only, hit tokens <= input - 1, an earlier request leaves prompt + output - 1 tokens, nothing in"
    " flight, requests"
)
WINDOW_S = 60.0  #: window of the peak rate

HitRateCurve = Callable[[Workload, int, Sequence[int]], dict[str, list[float]]]
"""(workload, block size, capacities in blocks) -> hit ratio in tokens at each capacity, by policy."""


def describe(
    workload: Workload,
    block_size: int | None = None,
    capacities: Sequence[int] = (),
    hit_rate_curve: HitRateCurve | None = None,
) -> dict[str, Any]:
    """A document of plain numbers. `block_size`: tokens a block, by default the trace's own or 16."""
    block = block_size or workload.hash_block_tokens or 16
    workload, order = in_time_order(workload)
    reuse = infinite_cache(workload, block)
    document = {
        "source": workload.source,
        "notes": list(workload.notes),
        "requests": len(workload),
        "prompt_tokens": _statistics(workload.prompt_tokens),
        "output_tokens": _statistics(workload.output_tokens),
        "arrivals": _arrivals(workload),
        "sessions": _sessions(workload),
        "classes": _classes(workload, reuse),
        "reuse": {"counting_rule": f"{COUNTING_RULE} {order}", **_reuse(workload, reuse, block)},
    }
    if hit_rate_curve is not None and capacities:
        document["hit_rate_by_capacity"] = {
            "requests_taken": order,
            "capacity_blocks": list(capacities),
            **hit_rate_curve(workload, block, capacities),
        }
    return document


def _statistics(values: np.ndarray) -> dict[str, Any]:
    """total (of whole numbers), mean, p50, p90, p99, max; the percentiles are values that occur."""
    if not len(values):
        return {}
    p50, p90, p99 = np.percentile(values, (50, 90, 99), method="inverted_cdf").tolist()
    total = {"total": int(values.sum())} if values.dtype.kind in "iu" else {}
    return {**total, "mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": values.max().item()}


def _arrivals(workload: Workload) -> dict[str, Any]:
    """Rate, spread of gaps, peak and ties of recorded arrivals; closed-loop requests are only counted."""
    if workload.concurrency is not None:
        return {
            "loop": f"closed, {workload.concurrency} sessions at once",
            "recorded": 0,
            "released_by_completion": len(workload),
        }
    times = np.sort(workload.arrival_s[np.isfinite(workload.arrival_s)])
    if not len(times):
        return {"loop": "none: the source holds no times", "recorded": 0}
    gaps, span = np.diff(times), float(times[-1] - times[0]) if len(times) else 0.0
    result: dict[str, Any] = {
        "loop": "open" if len(times) == len(workload) else "closed, next turn = completion + think time",
        "recorded": len(times),
        "released_by_completion": len(workload) - len(times),
        "span_s": span,
        "ties": int((gaps == 0).sum()),
    }
    if span > 0:
        counts = np.bincount(((times - times[0]) // WINDOW_S).astype(np.int64))
        rate = len(gaps) / span
        result |= {
            "rate_per_s": rate,
            "gap_cv": float(gaps.std() / gaps.mean()),
            "peak_to_mean_60s": float(counts.max() / WINDOW_S / rate) if span >= WINDOW_S else None,
        }
    return result


def _sessions(workload: Workload) -> dict[str, Any] | None:
    """Sessions, their turns and the delays between them; None for a workload of independent requests."""
    if workload.session_id is None:
        return None
    turns = np.unique(workload.session_id, return_counts=True)[1]
    result = {"sessions": len(turns), "turns": _statistics(turns)}
    if workload.after is not None and np.any(workload.after >= 0):
        result["delay_s"] = _statistics(workload.column("delay_s")[workload.after >= 0])
    return result


def _classes(workload: Workload, reuse: Reuse) -> dict[str, Any]:
    """Requests, mean lengths and reuse ceiling of every class."""
    class_id, result = workload.column("class_id"), {}
    for i, name in enumerate(workload.class_names):
        mine = class_id == i
        if mine.any():
            prompt = workload.prompt_tokens[mine]
            result[name] = {
                "requests": int(mine.sum()),
                "prompt_tokens_mean": float(prompt.mean()),
                "output_tokens_mean": float(workload.output_tokens[mine].mean()),
                "reuse_ceiling": float(reuse.hit_tokens[mine].sum() / prompt.sum()),
            }
    return result


def _reuse(workload: Workload, reuse: Reuse, block: int) -> dict[str, Any]:
    """Distinct blocks, reuse ceiling, its share by scope, depth, and seconds between uses."""
    total = int(workload.prompt_tokens.sum())
    blocks, distinct = distinct_blocks(workload, block)
    hit = reuse.hit_tokens > 0
    by_scope = reuse.hit_by_scope.sum(axis=0)
    result: dict[str, Any] = {
        "block_size": block,
        "prefix_identity": workload.prefix_identity,
        "blocks": blocks,
        "distinct_blocks": distinct,
        "reuse_ceiling": float(reuse.hit_tokens.sum() / total),
        "reuse_ceiling_by_scope": {SCOPES[i]: float(tokens / total) for i, tokens in enumerate(by_scope) if tokens},
        "requests_with_a_hit": float(hit.mean()),
        "hit_depth_tokens": _statistics(reuse.hit_tokens[hit]),
        "shared_but_below_one_block": int(((reuse.shared_tokens > 0) & ~hit).sum()),
    }
    if not workload.prefix_identity:
        result["why_zero"] = (
            "the source recorded no prefix identity: the hit rate is 0 because nothing is known to be shared"
        )
        return result
    gaps = reuse_gaps_s(workload, reuse)
    if gaps is None:
        result["reuse_gap_s"] = None
        result["why_no_gaps"] = (
            "arrivals are decided by completions, so the time between uses is known only after a simulation"
        )
    elif len(gaps[0]):
        p50, p90 = np.percentile(gaps[0], (50, 90), weights=gaps[1], method="inverted_cdf")
        result["reuse_gap_s"] = {"p50": float(p50), "p90": float(p90), "weighted_by": "reused tokens"}
    return result


# ---- text ----


def as_text(document: dict[str, Any]) -> str:
    """The document as lines for a terminal, its numbers rounded for reading."""
    lines = [
        f"source: {document['source']}",
        *[f"  {note}" for note in document["notes"]],
        f"requests: {document['requests']:,}",
    ]
    for name, unit in (("prompt_tokens", "prompt tokens"), ("output_tokens", "output tokens")):
        lines.append(f"{unit}: {_spread(document[name])}")
    lines += [f"arrivals: {_pairs(document['arrivals'])}"]
    if document["sessions"]:
        sessions = document["sessions"]
        lines.append(f"sessions: {sessions['sessions']:,}; turns {_spread(sessions['turns'])}")
        if "delay_s" in sessions:
            lines.append(f"think and tool times (s): {_spread(sessions['delay_s'])}")
    if len(document["classes"]) > 1:
        lines += [f"class {name}: {_pairs(row)}" for name, row in document["classes"].items()]
    return "\n".join([*lines, *_reuse_lines(document["reuse"]), *_curve_lines(document)])


def _reuse_lines(reuse: dict[str, Any]) -> list[str]:
    scopes = ", ".join(f"{scope} {share:.4f}" for scope, share in reuse["reuse_ceiling_by_scope"].items())
    lines = [
        (
            f"blocks of {reuse['block_size']} tokens: {reuse['blocks']:,} in all prompts, {reuse['distinct_blocks']:,}"
            " distinct"
        ),
        f"reuse ceiling (infinite cache): {reuse['reuse_ceiling']:.4f} of prompt tokens"
        + (f" ({scopes})" if scopes else ""),
        f"counting rule: {reuse['counting_rule']}",
    ]
    if "why_zero" in reuse:
        return [*lines, reuse["why_zero"]]
    lines.append(
        f"requests with a hit: {reuse['requests_with_a_hit']:.1%}; hit tokens of those:"
        f" {_spread(reuse['hit_depth_tokens'])}"
    )
    if reuse["shared_but_below_one_block"]:
        lines.append(f"shared something, but less than one block: {reuse['shared_but_below_one_block']:,} requests")
    if "why_no_gaps" in reuse:
        lines.append(f"time between uses: {reuse['why_no_gaps']}")
    elif reuse.get("reuse_gap_s"):
        lines.append(
            f"time between uses of shared text (token-weighted): p50 {reuse['reuse_gap_s']['p50']:.4g} s, p90"
            f" {reuse['reuse_gap_s']['p90']:.4g} s"
        )
    return lines


def _curve_lines(document: dict[str, Any]) -> list[str]:
    curve = document.get("hit_rate_by_capacity")
    if not curve:
        return []
    policies = {name: rates for name, rates in curve.items() if name not in ("requests_taken", "capacity_blocks")}
    return [f"hit rate against capacity, requests taken {curve['requests_taken']}, no time and nothing in flight:"] + [
        f"  {policy}: "
        + ", ".join(f"{c:,} blocks {r:.4f}" for c, r in zip(curve["capacity_blocks"], rates, strict=True))
        for policy, rates in policies.items()
    ]


def _spread(statistics: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in statistics.items()) if statistics else "none"


def _pairs(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in row.items() if value is not None)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
