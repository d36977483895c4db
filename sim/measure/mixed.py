"""A fleet of replicas that are not alike, measured: what each [[pool]] did, what it cost, and who pays for it.

The one idea: a pool's replicas lie side by side, so every number of a pool is that of its rows and its places. A
request pays for the replica that it was on; what a pool idles is shared by those who used it, and by everybody where
the pools are alike and open to all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sim.measure import metrics
from sim.measure.balance import balance
from sim.measure.cost import busy_gpu_s
from sim.measure.judged import usd_of_class
from sim.measure.metrics import Window
from sim.measure.numbers import MEANS_ONLY
from sim.recording import COMPLETED, Recording
from sim.scenario import PoolConfig, Scenario
from workloads import portable
from workloads.columns import Workload

LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}


def rows_of(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A summary's row of each kind of replica: of a [[pool]], or of what prefills and what decodes; empty where all are
    alike."""
    apart = summary.get("disaggregation")
    return (summary.get("pools") or []) if apart is None else apart["pools"]


def kv_blocks_of_fleet(summary: Mapping[str, Any]) -> int:
    """KV blocks of all replicas together."""
    rows: list[Mapping[str, Any]] = [*rows_of(summary)] or [summary]
    return sum(row["kv_blocks"] * row["replicas"] for row in rows)


def places(scenario: Scenario) -> list[slice]:
    """Where the replicas of each pool lie among those of the fleet."""
    return [slice(a, b) for a, b in pairwise(accumulate((pool.replicas for pool in scenario.pool), initial=0))]


def pool_of(scenario: Scenario, replica: np.ndarray) -> np.ndarray:
    """int64 [n]: the pool of each replica number, of -1 the last one."""
    return np.repeat(np.arange(len(scenario.pool)), [pool.replicas for pool in scenario.pool])[replica]


def alike(scenario: Scenario) -> bool:
    """Whether all pools are the same and open to every request: one fleet, however it is written."""
    first = scenario.pool[0]
    pinned = any(one.pool or one.model for one in scenario.workload.class_)
    return not pinned and all(replace(p, name=first.name, replicas=first.replicas) == first for p in scenario.pool)


def gpu_seconds(rec: Recording, computed: np.ndarray, scenario: Scenario) -> np.ndarray:
    """sim.measure.cost.busy_gpu_s of every pool's own replicas, float64 [n]; computed: int64 [n], prompt tokens."""
    gpus = np.array(scenario.gpus_of_pools, float)[pool_of(scenario, rec.replica)]
    return busy_gpu_s(rec, computed, 1.0) * gpus


def paid(gpu_s: np.ndarray, inside: np.ndarray, rec: Recording, scenario: Scenario, window: Window) -> np.ndarray:
    """gpu_s with the idle time of each pool on those who used it, float64 [n]. A pool that nobody used is left to be
    shared by all."""
    if alike(scenario):
        return gpu_s
    out, of, counts = gpu_s.copy(), pool_of(scenario, rec.replica), inside & (rec.replica >= 0)
    for k, (pool, gpus) in enumerate(zip(scenario.pool, scenario.gpus_of_pools, strict=True)):
        mine = counts & (of == k)
        busy = portable.total(gpu_s[mine])
        if busy > 0:
            out[mine] *= pool.replicas * gpus * window.seconds / busy
    return out


def hour_prices(rec: Recording, scenario: Scenario, gpu_hours: np.ndarray) -> list[float | None]:
    """USD that the requests of each pool pay for one of their GPU-hours, float64 [n]: the pool's price, and where
    nobody used a pool, whose hours all share, a part of what it cost. None where a price is not known."""
    prices, gpus = [pool.gpu_hour_usd for pool in scenario.pool], scenario.gpus_of_pools
    held = [pool.replicas * n for pool, n in zip(scenario.pool, gpus, strict=True)]
    of = pool_of(scenario, rec.replica)
    idle = [k for k in range(len(held)) if not portable.total(gpu_hours[of == k])]
    if not idle or len(set(prices)) == 1:
        return prices
    if any(prices[k] is None for k in idle):
        return [None] * len(prices)
    spread = sum(held[k] * (prices[k] or 0.0) for k in idle) / sum(held)
    share = 1 - sum(held[k] for k in idle) / sum(held)
    return [None if price is None else price * share + spread for price in prices]


def dearness(rec: Recording, scenario: Scenario, gpu_hours: np.ndarray) -> np.ndarray | float:
    """What each request pays for a GPU-hour over the fleet's mean price, float64 [n]; 1 where none or one is known."""
    prices = hour_prices(rec, scenario, gpu_hours)
    mean = scenario.cost.gpu_hour_usd
    if not mean or len(set(prices)) == 1:
        return 1.0
    return np.array(prices, float)[pool_of(scenario, rec.replica)] / mean


def price_classes(
    classes: dict[str, dict[str, Any]],
    class_id: np.ndarray,
    inside: np.ndarray,
    dear_hours: np.ndarray,
    scenario: Scenario,
) -> None:
    """What a request of each class costs where its requests were (changes `classes`). dear_hours: float64 [n],
    GPU-hours times `dearness`."""
    for c, row in enumerate(classes.values()):
        hours = portable.total(dear_hours[inside & (class_id == c)])
        row["usd_per_request"] = usd_of_class(hours, row["arrived"], scenario.cost.gpu_hour_usd)


def busy_gpus_s(rec: Recording, window: Window, scenario: Scenario) -> float:
    """GPU-seconds of the steps of all pools in the window."""
    each = zip(places(scenario), scenario.gpus_of_pools, strict=True)
    return sum(metrics.step_shares(rec.steps[place], window)["busy_s"] * gpus for place, gpus in each)


def jain(values: Sequence[float]) -> float | None:
    """(sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe, 1984); None where all are 0."""
    squares = sum(x * x for x in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def summary(
    rec: Recording,
    workload: Workload,
    scenario: Scenario,
    window: Window,
    times: Mapping[str, np.ndarray],
    inside: np.ndarray,
    counted: np.ndarray,
    work: np.ndarray,
    gpu_hours: np.ndarray,
    told: str,
) -> dict[str, Any]:
    """summary["pools"]: a row for each pool, and how evenly busy they are.

    times: seconds by request (sim.measure.metrics.per_request). inside: bool [n], the window's arrivals; counted: int64
    [m], those admitted; work: int64 [n], tokens computed for each; gpu_hours: float64 [n], idle time included; told:
    which latencies may be (sim.measure.numbers.latency_of)."""
    of, hour_usd = pool_of(scenario, rec.replica), hour_prices(rec, scenario, gpu_hours)
    rows = []
    for k, (pool, place) in enumerate(zip(scenario.pool, places(scenario), strict=True)):
        mine = inside & (of == k) & (rec.replica >= 0)
        here = counted[mine[counted]]
        done = mine & (rec.status == COMPLETED)
        rows.append(
            {
                **_what(pool, scenario, scenario.gpus_of_pools[k]),
                "requests": int(mine.sum()),
                "completed": int(done.sum()),
                "latency_ms": {
                    name: _told(metrics.describe(times[column][done] * 1e3), told) for name, column in LATENCIES.items()
                },
                **_hits(rec, workload, here),
                **_load(rec, place, window),
                **_even(rec, place, here, work),
                **_cost(pool, scenario.gpus_of_pools[k], window, gpu_hours[mine], int(mine.sum()), hour_usd[k]),
            }
        )
    return {"pools": rows, "jain_of_busy": jain([row["busy_share"] or 0.0 for row in rows])}


def _told(latency: dict[str, float | None], told: str) -> dict[str, float | None]:
    """Percentiles and spread are None where only means are told."""
    return {stat: None if told == MEANS_ONLY and stat != "mean" else value for stat, value in latency.items()}


def _what(pool: PoolConfig, scenario: Scenario, gpus: int) -> dict[str, Any]:
    model = replace(scenario.model, **pool.model)
    return {
        "pool": pool.name,
        "model": model.config or model.name,
        "profile": replace(scenario.hardware, **pool.hardware).profile,
        "replicas": pool.replicas,
        "gpus_per_replica": gpus,
    }


def _hits(rec: Recording, workload: Workload, here: np.ndarray) -> dict[str, Any]:
    prompt, hit = int(workload.prompt_tokens[here].sum()), int(rec.hit_tokens[here].sum())
    return {"prompt_tokens": prompt, "prefix_hit_tokens": hit, "prefix_hit_rate": hit / prompt if prompt else None}


def _load(rec: Recording, place: slice, window: Window) -> dict[str, Any]:
    steps, samples, blocks = rec.steps[place], rec.samples[place], rec.kv_blocks_of[place]
    shares, seconds = metrics.step_shares(steps, window), window.seconds * len(steps)

    def mean(column: str) -> float:
        return sum(metrics.time_mean(one, column, window) for one in samples)

    peaks = [one.blocks_in_use.max() / size for one, size in zip(samples, blocks, strict=True) if len(one.t_s)]
    return {
        "busy_share": shares["busy_s"] / seconds if seconds > 0 else None,
        "tokens_per_step_mean": shares["tokens_per_step"],
        "running_mean": mean("running"),
        "waiting_mean": mean("waiting"),
        "kv_blocks": int(blocks[0]),
        "kv_usage_mean": mean("blocks_in_use") / int(blocks.sum()),
        "kv_usage_peak": float(max(peaks, default=0.0)),
    }


def _even(rec: Recording, place: slice, here: np.ndarray, work: np.ndarray) -> dict[str, Any]:
    """How evenly its replicas are loaded."""
    own = replace(rec, replica=rec.replica - place.start, steps=rec.steps[place])
    found = balance(own, here, work)
    return {name: found[name] for name in ("jain", "starved")}


def _cost(
    pool: PoolConfig, gpus: int, window: Window, hours: np.ndarray, requests: int, hour_usd: float | None
) -> dict[str, Any]:
    """What its GPUs cost; a request: what those who were there pay, `hour_usd` for each of their hours."""
    held, price = pool.replicas * gpus * window.seconds / 3600, pool.gpu_hour_usd
    paid_usd = None if hour_usd is None else hour_usd * portable.total(hours)
    return {
        "gpu_hours": held,
        "gpu_hour_usd": price,
        "usd": None if price is None else price * held,
        "usd_per_request": paid_usd / requests if requests and paid_usd is not None else None,
    }
