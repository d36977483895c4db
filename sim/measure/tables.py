"""A run's tables: its requests, and its numbers per class, tenant, tier, scope and time by the same definitions."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.measure.causes import CAUSES, Causes
from sim.measure.columns import Columns, summed_by
from sim.measure.held import replicas_held
from sim.measure.judged import Limits, attainment, usd_of_class
from sim.measure.metrics import has_limit
from sim.recording import ABANDONED, COMPLETED, Recording, TierUse, by_replica, same
from workloads import portable
from workloads.columns import SCOPES, Workload

if TYPE_CHECKING:
    from sim.measure.evicted import Evicted


def requests_table(
    rec: Recording,
    workload: Workload,
    times: Columns,
    fates: Columns,
    gpu_hours: np.ndarray,
    inside: np.ndarray,
    good: np.ndarray | None,
) -> Columns:
    """[n] columns for requests.parquet."""
    ids = {name: workload.column(name) for name in ("class_id", "tenant_id", "session_id", "turn")}
    kept = (
        "status",
        "replica",
        "arrival_s",
        "admit_s",
        "first_token_s",
        "finish_s",
        "hit_tokens",
        "ceiling_replica_tokens",
        "ceiling_fleet_tokens",
        "readmission_hit_tokens",
        "preemptions",
        "preempted_s",
        "recomputed_tokens",
        "prefill_chunks",
    )
    columns = {
        "request": partial(_numbers, len(workload)),
        **ids,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        **{name: getattr(rec, name) for name in kept},
        **times.given(),
        **_tier_columns(rec),
        **({} if rec.frontend_s is None else {"frontend_s": rec.frontend_s}),
        **({} if rec.retries is None else {"retries": rec.retries}),
        **({} if rec.handed is None else {name: getattr(rec.handed, name) for name in HANDED}),
        **_client_columns(rec),
        **_routed_columns(rec),
        **fates.given(),
        "gpu_hours": gpu_hours,
        "in_window": inside,
        **({} if good is None else {"good": good}),
    }
    return Columns(columns)


def _numbers(n: int, part: slice) -> np.ndarray:
    return np.arange(*part.indices(n))


def fate_columns(causes: Causes, evicted: Evicted | None) -> Columns:
    """Missed tokens by cause, int64 [n]; with an optimum what `evicted` is made of as well, and the hits it gave up."""
    columns = {f"miss_{cause}_tokens": how for cause, how in causes.tokens.given().items()}
    if evicted is not None:
        split = evicted.tokens
        columns |= {
            "evicted_policy_tokens": split["policy"],
            "evicted_memory_tokens": split["memory"],
            "given_up_tokens": split["given_up"],
        }
    return Columns(columns)


def _tier_columns(rec: Recording) -> dict[str, np.ndarray]:
    if rec.tier_hit_tokens is None or rec.load_s is None:
        return {}
    return {
        "load_s": rec.load_s,
        **{f"tier_{use.name}_hit_tokens": rec.tier_hit_tokens[:, i] for i, use in enumerate(rec.tiers)},
    }


def class_table(
    rec: Recording,
    workload: Workload,
    causes: Causes,
    evicted: Evicted | None,
    inside: np.ndarray,
    good: np.ndarray,
    limits: Limits,
    latency: list[dict[str, Any]],
    gpu_hours: np.ndarray,
    usd_per_hour: float | None,
) -> dict[str, dict[str, Any]]:
    """One row per workload class. latency: one table per class, or a single one when there is one class."""
    class_id = workload.column("class_id")
    scope_class = class_id[causes.rows]
    by_scope = _over_time(causes.by_scope, len(workload.class_names))
    split_by_scope = {} if evicted is None else _over_time(evicted.by_scope, len(workload.class_names))
    rows = {}
    for c, name in enumerate(workload.class_names):
        mine = inside & (class_id == c)
        arrived, hours = int(mine.sum()), portable.total(gpu_hours[mine])
        counted = causes.rows[scope_class == c]
        hit = rec.hit_tokens[counted]
        missed = {cause: int(by_scope[cause][c].sum()) for cause in CAUSES}
        rows[name] = {
            "arrived": arrived,
            "completed": int((mine & (rec.status == COMPLETED)).sum()),
            "slo_class": limits[c][0],
            "attainment": attainment(good, mine) if has_limit(limits[c][1]) else None,
            **_reuse(rec, workload, missed, counted),
            "hit_tokens_per_request": {
                f"p{p}": float(np.percentile(hit, p)) if len(hit) else None for p in (10, 50, 90)
            },
            "requests_with_hit_share": float((hit > 0).mean()) if len(hit) else None,
            "tokens_by_scope": {cause: _named(table[c]) for cause, table in by_scope.items()},
            "evicted_split": (
                None
                if evicted is None
                else {
                    **evicted.sums(counted),
                    "by_scope": {part: _named(table[c]) for part, table in split_by_scope.items()},
                }
            ),
            "changed_layers": _changed_layers(workload, causes, counted),
            "preemptions": int(rec.preemptions[mine].sum()),
            "recomputed_tokens": int(rec.recomputed_tokens[mine].sum()),
            "gpu_hours": hours,
            "usd_per_request": usd_of_class(hours, arrived, usd_per_hour),
            "latency_ms": latency[c],
        }
    return rows


def _over_time(by_scope: dict[str, np.ndarray], n_classes: int) -> dict[str, np.ndarray]:
    """Groups are intervals within classes: int64 [classes, scopes] of each table."""
    return {name: table.reshape(n_classes or 1, -1, len(SCOPES)).sum(axis=1) for name, table in by_scope.items()}


def _named(by_scope: np.ndarray) -> dict[str, int]:
    return {SCOPES[s]: int(v) for s, v in enumerate(by_scope) if v}


def cache_table(
    workload: Workload, ends_s: np.ndarray, causes: Causes, evicted: Evicted | None
) -> dict[str, np.ndarray]:
    """Prompt tokens by class, interval of admission (its end), scope and fate; rows without tokens are left out.

    Fates are "hit" and the causes; with an optimum "evicted" is "evicted_policy" and "evicted_memory". Sums over any of
    them are exact."""
    tables = dict(causes.by_scope)
    if evicted is not None:
        del tables["evicted"]
        tables |= {f"evicted_{part}": evicted.by_scope[part] for part in ("policy", "memory")}
    n = len(ends_s)
    found = [
        (np.full(len(group), f), group, scope, table[group, scope])
        for f, table in enumerate(tables.values())
        for group, scope in [np.nonzero(table)]
    ]
    fate, group, scope, tokens = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.lexsort((fate, scope, group))
    words = [np.array(names, dtype=object) for names in (workload.class_names or ("",), SCOPES, tuple(tables))]
    return {
        "class": words[0][(group // n)[order]],
        "t_s": ends_s[(group % n)[order]],
        "scope": words[1][scope[order]],
        "fate": words[2][fate[order]],
        "tokens": tokens[order],
    }


def tier_table(rec: Recording, counted: np.ndarray) -> list[dict[str, Any]]:
    """Hits of the counted requests by where they were, GPU memory first; transfers and link time are those of the whole
    run."""
    assert rec.tier_hit_tokens is not None
    assert rec.load_s is not None
    below = rec.tier_hit_tokens[counted].sum(axis=0)
    waited_s = rec.load_s[counted]
    link_s = rec.end_s * replicas_held(rec, 0.0, rec.end_s)
    rows: list[dict[str, Any]] = [
        {
            "name": "gpu",
            "hit_tokens": int(rec.hit_tokens[counted].sum() - below.sum()),
            "capacity_blocks": same(rec.kv_blocks_of.tolist()),
            "requests_that_waited_for_loads": int((waited_s > 0).sum()),
            "mean_load_ms": 1e3 * portable.mean(waited_s[waited_s > 0]) if (waited_s > 0).any() else None,
        }
    ]
    for use, hit in zip(rec.tiers, below, strict=True):
        capacity = min(use.bandwidth_bytes_s * link_s, use.total_bytes_s * rec.end_s)
        rows.append(
            {
                "name": use.name,
                "hit_tokens": int(hit),
                "capacity_blocks": use.capacity_blocks,
                "stored_blocks": use.stored_blocks,
                "dropped_blocks": use.dropped_blocks,
                "loaded_bytes": use.loaded_bytes,
                "written_bytes": use.written_bytes,
                "link_busy_share": use.link_busy_s / link_s if link_s else None,
                "write_share": 0.0 if not use.written_bytes else use.written_bytes / capacity if capacity else None,
                **(_store(use, rec.end_s) if use.shared else {}),
            }
        )
    return rows


def _store(use: TierUse, end_s: float) -> dict[str, Any]:
    """What a tier that all replicas share has beside: its loads and their wait for it."""
    return {
        "shared": True,
        "loads": use.loads,
        "store_busy_share": use.store_busy_s / end_s if end_s else None,
        "mean_store_wait_ms": 1e3 * use.store_waited_s / use.loads if use.loads else None,
    }


def front_end_row(rec: Recording, done: np.ndarray) -> dict[str, float | None]:
    """What the completed requests of the window (bool [n]) spent in front of their engine, and their first tokens
    behind it."""
    assert rec.frontend_s is not None
    before_ms, behind_ms = rec.frontend_s[done] * 1e3, np.zeros(int(done.sum()))
    if rec.sent_s is not None:
        ends_s = np.full(len(done), np.nan)
        for steps, rows in zip(rec.steps, by_replica(rec.replica, len(rec.steps)), strict=True):
            mine = rows[done[rows]]
            ends_s[mine] = steps.end_s[rec.first_step[mine]]
        behind_ms = (rec.first_token_s[done] - ends_s[done]) * 1e3
    some = bool(len(before_ms))
    return {
        "mean_ms": portable.mean(before_ms) if some else None,
        "p99_ms": float(np.percentile(before_ms, 99)) if some else None,
        "mean_send_ms": portable.mean(behind_ms) if some else None,
        "p99_send_ms": float(np.percentile(behind_ms, 99)) if some else None,
    }


def _routed_columns(rec: Recording) -> dict[str, np.ndarray]:
    """Why each request is where it is, int64 [n] each."""
    return {} if rec.routed is None else {f.name: getattr(rec.routed, f.name) for f in fields(rec.routed)}


HANDED = ("prefill_replica", "prefilled_s", "read_s", "ready_s", "read_blocks", "decode_hit_tokens")
CLIENT_COUNTS = ("attempts", "refusals", "timeouts", "wasted_tokens")


def _client_columns(rec: Recording) -> dict[str, np.ndarray]:
    return {} if rec.clients is None else {name: getattr(rec.clients, name) for name in CLIENT_COUNTS}


def clients_row(rec: Recording, workload: Workload, inside: np.ndarray) -> dict[str, Any]:
    """What the clients of the window's arrivals (bool [n]) did, over all their attempts.

    wasted_share: of the tokens computed for the completed and the abandoned attempts, those of the abandoned."""
    assert rec.clients is not None
    row: dict[str, Any] = {name: int(column[inside].sum()) for name, column in _client_columns(rec).items()}
    row["retries"] = int(np.maximum(rec.clients.attempts[inside] - 1, 0).sum())
    done = inside & (rec.status == COMPLETED)
    computed = workload.prompt_tokens + workload.output_tokens - 1 - rec.hit_tokens + rec.recomputed_tokens
    useful = int(computed[done].sum())
    row["wasted_share"] = (
        row["wasted_tokens"] / (useful + row["wasted_tokens"]) if useful + row["wasted_tokens"] else None
    )
    row["abandoned"] = int((rec.status[inside] == ABANDONED).sum())
    return row


def tenant_table(
    rec: Recording, workload: Workload, causes: Causes, evicted: Evicted | None, inside: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Reuse per tenant; empty with a single tenant."""
    if len(workload.tenant_names) < 2:
        return {}
    tenant, n = workload.column("tenant_id"), len(workload.tenant_names)
    counted = np.full(len(tenant), -1, tenant.dtype)
    counted[causes.rows] = tenant[causes.rows]

    def total(column: np.ndarray) -> np.ndarray:
        return summed_by(counted, column, n)

    arrived = np.bincount(tenant[inside], minlength=n)
    prompt, hit = total(workload.prompt_tokens), total(rec.hit_tokens)
    miss = {c: total(causes.tokens[c]) for c in CAUSES}
    split = None if evicted is None else {part: total(column) for part, column in evicted.tokens.items()}
    return {
        name: {
            "arrived": int(arrived[t]),
            "prompt_tokens": int(prompt[t]),
            "prefix_hit_tokens": int(hit[t]),
            "prefix_hit_rate": float(hit[t] / prompt[t]) if prompt[t] else None,
            "miss_tokens": {c: int(miss[c][t]) for c in CAUSES},
            "evicted_split": None if split is None else {part: int(tokens[t]) for part, tokens in split.items()},
        }
        for t, name in enumerate(workload.tenant_names)
    }


def _reuse(rec: Recording, workload: Workload, missed: dict[str, int], rows: np.ndarray) -> dict[str, Any]:
    prompt = int(workload.prompt_tokens[rows].sum())

    def rate(column: np.ndarray) -> float | None:
        return float(column[rows].sum()) / prompt if prompt else None

    return {
        "prompt_tokens": prompt,
        "prefix_hit_tokens": int(rec.hit_tokens[rows].sum()),
        "prefix_hit_rate": rate(rec.hit_tokens),
        "reuse_ceiling_replica": rate(rec.ceiling_replica_tokens),
        "reuse_ceiling_fleet": rate(rec.ceiling_fleet_tokens),
        "miss_tokens": missed,
    }


def _changed_layers(workload: Workload, causes: Causes, rows: np.ndarray) -> dict[str, int]:
    """Tokens that would have hit had the named layer not changed before them."""
    layer = causes.changed_layer[rows]
    tokens = np.bincount(
        layer[layer >= 0],
        weights=causes.tokens["changed_earlier"][rows][layer >= 0],
        minlength=len(workload.layer_names),
    )
    return {workload.layer_names[i]: int(v) for i, v in enumerate(tokens) if v}
