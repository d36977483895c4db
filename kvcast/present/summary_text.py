"""A run in words: the verdict first, then the numbers it rests on, then what to know about them.

>>> from kvcast import api, load_scenario
>>> from kvcast.present import summary_text
>>> print(summary_text.describe(api.run(api.prepare(load_scenario("examples/demo.toml")))))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.api import Result
from kvcast.present import measured_text
from kvcast.present.cache_text import cache_lines, fates, worth_table
from kvcast.present.mixed_text import mixed_lines
from kvcast.present.pools_text import pool_lines
from kvcast.present.verdict_text import headline, limits, load_line, verdict
from kvcast.scenario.autoscale import scaling_lines
from kvcast.scenario.resolve import HOST_KEYS, Resolved
from kvcast.scenario.steady import is_mix
from kvcast.studies import scaled, shocked
from kvcast.trust.pooled import joined
from sim.measure.balance import EVEN
from sim.measure.mixed import rows_of
from sim.measure.numbers import MEANS_ONLY, OVERLOADED_TRACE

__all__ = [
    "cache_lines",
    "cost_line",
    "describe",
    "engine_lines",
    "heading",
    "headline",
    "limits",
    "load_line",
    "worth_table",
]


def describe(result: Result, baseline: Result | None = None) -> str:
    """Everything `kvcast run` prints. `baseline`: the same run with the prefix cache off."""
    parts = [heading(result), verdict(result), shock_lines(result), latency_table(result), pool_lines(result)]
    parts += [mixed_lines(result.report.summary), cache_lines(result)]
    if compared := result.report.summary.get("measured"):
        parts.insert(1, measured_text.as_text(compared))
    if baseline is not None:
        parts.append(worth_table(result, baseline))
    parts += [cost_line(result), engine_lines(result), class_lines(result), notes(result)]
    return text.wrapped("\n\n".join(part for part in parts if part))


def heading(result: Result) -> str:
    scenario, s = result.scenario, result.report.summary
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    gpus = f" x {s['gpus_per_replica']:g} GPUs" if s["gpus_per_replica"] > 1 else ""
    if len({row["gpus_per_replica"] for row in rows_of(s)}) > 1:
        gpus = f" on {scenario.gpus} GPUs"
    elif not scenario.hardware.layout.plain:
        gpus += f" ({s['layout']})"
    kinds = result.resolved.each
    profiles = {kind.profile.content_hash: kind.profile for kind in kinds}.values()
    lines = [
        (
            f"{scenario.name or 'scenario'}: {joined([kind.model.name for kind in kinds])} on"
            f" {joined([str(profile.device['name']) for profile in profiles])}"
        ),
        *(f"step times: {profile.id} ({profile.content_hash[:19]}), {profile.label}" for profile in profiles),
        (
            f"{s['replicas']} {'replica' if s['replicas'] == 1 else 'replicas'}{gpus}{_split(s)}{scaled.of(s)},"
            f" {scenario.cluster.router},"
            f" {cache}, {s['engine_semantics']}, seed {s['seed']}{_uneven(s)}{_tenants(s)}"
        ),
        f"{text.count(s['arrived'])} requests arrived in the window: {fates(s, is_mix(scenario))}",
    ]
    return "\n".join(lines)


def _split(s: dict[str, Any]) -> str:
    """How many of the replicas only prefill, where some do."""
    found = s.get("disaggregation")
    return f" ({found['pools'][0]['replicas']} prefill, {found['pools'][1]['replicas']} decode)" if found else ""


def _uneven(s: dict[str, Any]) -> str:
    """How uneven the replicas' work is, where it is."""
    found = s.get("balance")
    if found is None or found["jain"] is None or found["jain"] >= EVEN:
        return ""
    return f"; work uneven: Jain's index {found['jain']:.2f}, the busiest replica has {found['most_share']:.0%}"


def _tenants(s: dict[str, Any]) -> str:
    """How even the service of tenants was by the time the last request came, where it was not: one may have asked for
    less."""
    found = s.get("fairness")
    if found is None or found["jain"] is None or found["jain"] >= EVEN:
        return ""
    return f"; service of the {found['tenants']} tenants: Jain's index {found['jain']:.2f}"


def shock_lines(result: Result) -> str:
    """What each shock did, and when the fleet was back."""
    rows = result.report.summary.get("shocks", [])
    table = text.table(list(shocked.HEADER), shocked.rows_of(rows), left=2)
    return "\n".join([table, *map(shocked.back, rows)]) if rows else ""


def latency_table(result: Result) -> str:
    names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E", "queue": "queue"}
    stats = ("mean", "p50", "p90", "p95", "p99")
    s, latency = result.report.summary, result.report.latency
    rates = (
        f"{s['request_throughput'] or 0:.3g} requests/s, {text.count(s['output_throughput'])} output tokens/s,"
        f" {text.count(s['total_token_throughput'])} tokens/s in all over {text.seconds(s['duration'])}"
    )
    if s["latency_of"] == MEANS_ONLY:
        means = ", ".join(f"{names[key]} {text.milliseconds(latency[key]['mean'])}" for key in ("ttft", "tpot", "e2el"))
        return (
            f"no latency percentiles: they would grow with the length of the run (means of this one: {means})\n{rates}"
        )
    if s["latency_of"] == OVERLOADED_TRACE:
        rates = (
            "the trace ends with a growing backlog: these latencies are of its own requests, a longer trace would have"
            f" longer ones\n{rates}"
        )
    rows = [[name, *(text.milliseconds(latency[key][stat]) for stat in stats)] for key, name in names.items()]
    return text.table(["latency", *stats], rows) + "\n" + front_end_line(s) + rates


def front_end_line(s: dict[str, Any]) -> str:
    """What of these latencies the API server is, where it takes any time."""
    front = s.get("front_end")
    if front is None or front["mean_ms"] is None:
        return ""
    behind = f"; first tokens leave it {text.milliseconds(front['mean_send_ms'])} after their step"
    return (
        f"of TTFT and queue, in front of the engine: mean {text.milliseconds(front['mean_ms'])}, p99"
        f" {text.milliseconds(front['p99_ms'])}{behind if front['mean_send_ms'] else ''}\n"
    )


def at_offered(s: dict[str, Any]) -> str:
    """The cost at a mix's nominal load, before that of the window, in which more or less came."""
    bill = s["cost"].get("at_offered")
    if bill is None:
        return ""
    month = "" if bill["usd_per_month"] is None else f", {text.usd(bill['usd_per_month'])} a month"
    return (
        f"at the offered {s['offered_per_s']:.3g} requests/s: {text.per_million(bill, 'usd', text.usd)},"
        f" {text.usd(bill['usd_per_request'])} a request{month}\nin this window: "
    )


def cost_line(result: Result) -> str:
    s = result.report.summary
    cost = s["cost"]
    line = f"{s['gpu_hours']:.4g} GPU-hours{scaled.beside_static(s)}"
    if cost["usd"] is None:
        return f"{line}, {text.per_million(cost, 'gpu_hours', text.hours)} (set [cost] gpu_hour_usd for money)"
    return (
        f"{at_offered(s)}{line}; at {text.usd(cost['gpu_hour_usd'])} a GPU-hour {text.usd(cost['usd'])}:"
        f" {text.per_million(cost, 'usd', text.usd)}, {text.usd(cost['usd_per_request'])} a request,"
        f" {text.usd(cost['usd_per_session'])} a session"
    )


def engine_lines(result: Result) -> str:
    resolved = result.resolved
    told = [_engine_lines(kind) for kind in resolved.each]
    if not resolved.kinds and all(lines == told[0] for lines in told):
        return "\n".join(["engine: " + told[0][0], *told[0][1:]])
    named = zip(resolved.names, told, strict=True)
    return "\n".join(line for name, (first, *rest) in named for line in (f"engine of pool {name}: {first}", *rest))


def _engine_lines(kind: Resolved) -> list[str]:
    """What the engine of replicas that are alike was given, and where from."""
    engine = kind.scenario.engine
    origins = {key: origin for key, origin in kind.origins.items() if key not in HOST_KEYS}
    values = ", ".join(f"{key} {text.count(getattr(engine, key))} ({origin})" for key, origin in origins.items())
    return [f"{values}, block_size {engine.block_size}", kind.host_line, *scaling_lines(kind), *kind.kv_lines]


def class_lines(result: Result) -> str:
    classes = result.report.classes
    if len(classes) < 2:
        return ""
    rows = [
        [
            name,
            text.count(c["arrived"]),
            text.percent(c["attainment"]),
            text.hit_rate(c["prefix_hit_rate"], result.report.summary["prefix_identity"]),
            text.milliseconds(c["latency_ms"]["ttft"]["mean"]),
            text.milliseconds(c["latency_ms"]["ttft"]["p99"]),
            text.milliseconds(c["latency_ms"]["tpot"]["mean"]),
            f"{c['gpu_hours']:.3g}",
        ]
        for name, c in classes.items()
    ]
    return text.table(
        ["class", "arrived", "attainment", "hit rate", "TTFT mean", "TTFT p99", "TPOT mean", "GPU-hours"], rows
    )


def notes(result: Result) -> str:
    return "\n".join(f"note: {line}" for line in result.report.notes)
