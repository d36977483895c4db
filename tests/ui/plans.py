"""A plan document, made by hand to the schema of docs/plan.md: small, with every part there."""

from __future__ import annotations

import copy
from typing import Any

RATES = [  # requests/s, share good, TTFT p50 and p99, TPOT p50 and p99 (ms)
    (1.5, 1.0, 16.0, 210.0, 5.0, 7.0),
    (3.0, 0.999, 22.0, 390.0, 5.9, 9.5),
    (6.0, 0.985, 60.0, 640.0, 8.0, 15.0),
    (7.4, 0.95, 110.0, 980.0, 10.0, 22.0),
    (9.0, 0.70, 400.0, 2600.0, 16.0, 31.0),
    (12.0, 0.31, None, None, None, None),
]


def share(mean: float, half: float = 0.002) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


def judged(name: str, mean: float, verdict: str, worst: str | None = None, target: float = 0.95) -> dict[str, Any]:
    """A class of a verdict."""
    return {
        "name": name,
        "target": target,
        "requests": 6000,
        "attainment": share(mean),
        "verdict": verdict,
        "worst": worst,
    }


def candidate(
    label: str,
    values: dict[str, Any],
    replicas: int,
    attainment: float,
    ttft: float | None,
    verdict: str,
    rejected_by: str | None = None,
    reason: str | None = None,
    gpus_each: int = 1,
) -> dict[str, Any]:
    gpus, unstable = replicas * gpus_each, rejected_by == "unstable"
    return {
        "label": label,
        "values": values,
        "replicas": replicas,
        "gpus": gpus,
        "usd_per_hour": 4.0 * gpus,
        "attainment": share(attainment),
        "per_slo": {"ttft_s": attainment, "tpot_s": None if unstable else 0.999, "e2e_s": None},
        "stable": not unstable,
        "verdict": verdict,
        "rejected_by": rejected_by,
        "class": "chat" if rejected_by == "ttft_s" else None,
        "runs": 1,
        "classes": [
            judged("chat", attainment, verdict, rejected_by if rejected_by == "ttft_s" else None),
            judged("coding-agent", 0.9995, "meets"),
        ],
        "reason": reason,
        "extrapolated": 0.3 if label.endswith("lfu") else 0.006,
        "goodput_per_s": 3.0 * attainment,
        "ttft_ms_p99": ttft,
        "tpot_ms_p99": ttft and ttft / 40,
        "run": None,
    }


def advised(change: str, sets: list[str], holds: float, replicas: int = 2) -> dict[str, Any]:
    side = {"attainment": 0.94, "load": 7.7, "capacity": 7.4, "replicas": 2, "gpus": 2}
    return {
        "change": change,
        "set": sets,
        "asks_for": "",
        "costs": "free",
        "attainment": 0.968,
        "gain": 0.028,
        "gain_low": 0.01,
        "gain_high": 0.04,
        "reason": None,
        "scenario": '[workload]\npreset = "demo"\n',
        "before": side,
        "after": {**side, "capacity": holds, "replicas": replicas, "gpus": replicas},
        "saves": True,
        "words": f"{change}: holds {holds:g} requests/s instead of 7.4 requests/s",
    }


def gain(resource: str, by: float) -> dict[str, Any]:
    return {
        "resource": resource,
        "attainment": 0.94 + by,
        "gain": by,
        "gain_low": by - 0.01,
        "gain_high": by + 0.01,
        "reason": None,
        "estimate": resource in ("compute", "memory bandwidth"),
    }


LRU, LFU = {"cache.policy": "lru"}, {"cache.policy": "lfu"}
PLAN: dict[str, Any] = {
    "name": "demo: chat + coding agent",
    "verdict": "",
    "scenario": '[hardware]\nprofile = "h200-llama-3.1-8b-aic"\n',
    "slo": {
        "limits": {"ttft_s": None, "tpot_s": None, "e2e_s": None},
        "attainment": 0.95,
        "attained_by": "classes",
        "targets": {},
        "classes": {
            "chat": {"ttft_s": 0.5, "tpot_s": 0.03, "e2e_s": None},
            "agent": {"ttft_s": 2.0, "tpot_s": 0.03, "e2e_s": None},
        },
    },
    "confidence": 0.95,
    "device": "H200-SXM",
    "seeds": [0, 1, 2, 3, 4],
    "method": "5 independent runs, the wider of their spread and of 20 batches, never narrower than Wilson's interval",
    "answer": {
        "feasible": True,
        "replicas": 2,
        "gpus": 2,
        "gpus_per_replica": 1,
        "gpu_hours_per_day": 48.0,
        "usd_per_hour": 8.0,
        "label": "cache.policy=lru",
        "values": LRU,
        "attainment": share(0.999),
        "goodput_per_s": 3.0,
        "run": "162",
        "router": "round-robin",
        "word": "meets",
        "reason": None,
        "class": None,
        "runs": 5,
        "by_seed": {"runs": 5, "same": 4, "fewer": 1, "more": 0},
        "classes": [judged("chat", 0.9988, "meets", "ttft_s"), judged("coding-agent", 0.9995, "meets")],
        "offered_per_s": 3.0,
        "usd_per_month": 5840.0,
        "usd_per_request": 0.00074,
        "usd_per_million_input_tokens": 0.2,
        "usd_per_million_output_tokens": 2.0,
        "usd_per_million_total_tokens": 0.18,
        "launch": {
            "vllm": ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--block-size", "16"],
            "sglang": None,
            "words": "vLLM 0.33",
            "notes": ["the router is yours to run"],
        },
    },
    "why": None,
    "candidates": [
        candidate("cache.policy=lru", LRU, 1, 0.91, 1900.0, "misses", "ttft_s", None),
        {**candidate("cache.policy=lru", LRU, 2, 0.999, 395.0, "meets"), "runs": 5, "run": "162"},
        candidate("cache.policy=lru", LRU, 3, 1.0, 240.0, "meets"),
        candidate("cache.policy=lfu", LFU, 1, 0.3, 60_000.0, "misses", "unstable"),
        candidate("cache.policy=lfu", LFU, 2, 0.998, 410.0, "meets"),
    ],
    "rejected_by": {"ttft_s": 1, "tpot_s": 0, "e2e_s": 0, "unstable": 1},
    "simulations": {"distinct": 35, "run": 31, "reused": 4, "stopped_early": 6, "cpu_s": 22.5},
    "capacity": {
        "unit": "requests/s",
        "offered_rate_per_s": 3.0,
        "slo_capacity_per_s": 7.4,
        "low": 7.2,
        "high": 7.6,
        "headroom": 0.595,
        "breaks_at_per_s": 7.4,
    },
    "rates": [
        {
            "rate_per_s": r,
            "load": r,
            "goodput_per_s": r * a,
            "attainment": a,
            "attainment_low": max(a - 0.02, 0),
            "attainment_high": min(a + 0.02, 1),
            "ttft_ms_p50": t50,
            "ttft_ms_p99": t99,
            "tpot_ms_p50": p50,
            "tpot_ms_p99": p99,
            "stable": t50 is not None,
            "run": "a",
        }
        for r, a, t50, t99, p50, p99 in RATES
    ],
    "knee_per_s": 8.1,
    "binding": {
        "resource": "compute",
        "words": (
            "at 7.4 requests/s, 20 % more compute raises attainment from 94.0 % to 97.5 %, more than any other resource"
        ),
        "load": 7.4,
        "unit": "requests/s",
        "attainment": 0.94,
        "changes": [
            gain("compute", 0.035),
            gain("memory bandwidth", 0.011),
            gain("KV capacity", 0.0),
            gain("replicas", 0.02),
            {
                **gain("routing", 0.0),
                "attainment": None,
                "gain": None,
                "gain_low": None,
                "gain_high": None,
                "reason": "nothing to route",
            },
        ],
    },
    "advice": [
        advised("router round-robin -> session-affinity", ["cluster.router=session-affinity"], 8.8),
        advised("eviction policy lru -> lfu", ["cache.policy=lfu"], 7.7),
    ],
    "tried": [],
    "not_tried": {},
    "period": None,
    "without_cache": None,
    "recovery": None,
    "model_error": {
        "share": 0.1,
        "source": "held-out points",
        **{
            side: {
                "verdict": "meets",
                "attains": True,
                "attainment": share(mean),
                "classes": [judged("chat", mean, "meets")],
                "ttft_ms_p99": 400.0,
                "tpot_ms_p99": 9.0,
            }
            for side, mean in (("slower", 0.992), ("faster", 0.9995))
        },
    },
    "growth": [
        {
            "factor": factor,
            "replicas": n,
            "gpus": n,
            "usd_per_hour": 4.0 * n,
            "advised": {
                "change": "router round-robin -> session-affinity",
                "replicas": less,
                "gpus": less,
                "usd_per_hour": 4.0 * less,
            },
        }
        for factor, n, less in ((2.0, 4, 3), (3.0, 7, 5))
    ],
    "n_plus_1": {"replicas": 3, "attainment_one_down": 0.91, "enough": False},
    "launched": None,
    "caution": [],
    "notes": [],
}


WHY: dict[str, Any] = {  # of a plan that nothing meets
    "label": "as it is",
    "replicas": 8,
    "gpus": 16,
    "alone": [
        {
            "class": "rag",
            "requests": 3000,
            "limit": "ttft_s",
            "limit_s": 4.0,
            "over_cold": 0.964,
            "over_cached": 0.046,
            "example": {"prompt_tokens": 29877, "output_tokens": 200, "alone_s": 5.91},
            "refused": 0.0,
        }
    ],
    "nearest": [
        {
            "class": "rag",
            "target": 0.95,
            "attainment": 0.704,
            "replicas": 8,
            "limit": "ttft_s",
            "limit_s": 4.0,
            "needs_s": 8.07,
            "factor": 2.02,
            "keeps_up": True,
        }
    ],
    "layouts": [
        {
            "gpu": "H200-SXM",
            "profile": "h200-llama-3.1-70b-tp4-aic",
            "tensor_parallel": 4,
            "replicas": 4,
            "gpus": 16,
            "verdict": "meets",
            "class": "",
            "attains": True,
            "attainment": share(0.99),
        },
        {
            "gpu": "H200-SXM",
            "profile": "roofline:h200",
            "tensor_parallel": 1,
            "replicas": 16,
            "gpus": 16,
            "verdict": None,
            "class": "",
            "attains": False,
            "attainment": {"mean": None, "low": None, "high": None},
        },
    ],
}


def plan(**changes: Any) -> dict[str, Any]:
    """A copy of PLAN with top-level keys changed."""
    return {**copy.deepcopy(PLAN), **changes}
