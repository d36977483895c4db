"""What a reader must know to read a report's numbers, in lines."""

from __future__ import annotations

from typing import Any

from sim.fleet.router import find as find_router
from sim.measure import judged
from sim.measure.causes import Causes
from sim.measure.metrics import Window
from sim.measure.numbers import MEANS_ONLY, OVERLOADED_TRACE
from sim.recording import UNVERIFIED
from sim.scenario import Scenario
from workloads.columns import Workload

MANY = 0.01
"""Share of the arrivals that must be told when it was rejected."""


def notes(
    summary: dict[str, Any], workload: Workload, window: Window, scenario: Scenario, causes: Causes
) -> tuple[str, ...]:
    notes = []
    span = f"{window.start_s:g} to {window.end_s:.6g} s"
    tail = window.end_s - window.last_arrival_s
    if window.drained:
        notes.append(f"rates are over {span}, the whole run after warm-up; its last {tail:.6g} s had no arrivals")
    else:
        notes.append(f"rates are over {span}; tokens count when they are computed")
    if summary["latency_of"] == MEANS_ONLY:
        notes.append(
            "unstable: percentiles are None in the summary, and means say how long the run was as much as how fast the"
            " fleet is"
        )
    if summary["latency_of"] == OVERLOADED_TRACE:
        notes.append(
            "the trace ends with a growing backlog: its latencies are those of its own requests, a longer trace would"
            " have longer ones"
        )
    if summary["stable"] is None:
        notes.append(f"stability unknown: {summary['stable_reason']}")
    if summary.get("retries"):
        notes.append(
            f"replicas failed: {summary['retries']} times a request lost all that was computed for it and began again;"
            " its times count from its arrival, its hits and tokens are of its last attempt"
        )
    too_long = summary["rejected"]["too_long"]
    if too_long > MANY * summary["arrived"]:
        notes.append(
            f"{too_long} of {summary['arrived']} arrivals were rejected as too long: beyond max_model_len, or, with an"
            " engine that computes prompts whole, beyond the tokens of a step. They are no load, so the others look"
            " faster than they would be"
        )
    if summary.get("clients"):
        c = summary["clients"]
        notes.append(
            f"clients: {c['attempts']} attempts for {summary['arrived']} arrivals, {c['refusals']} refused,"
            f" {c['timeouts']} given up, {c['retries']} retries; {c['wasted_tokens']} tokens were computed for nobody"
            f" ({c['wasted_share'] or 0:.1%}). Times count from the first attempt, hits and tokens are of the last"
        )
    if summary["censored"]:
        missing = summary["arrived"] - summary["completed"]
        notes.append(
            f"censored: {missing} of {summary['arrived']} arrivals did not complete and are in no latency statistic"
        )
    if summary["single_token_outputs"]:
        notes.append(
            f"{summary['single_token_outputs']} requests have one output token: no TPOT, counted as meeting its limit"
        )
    if (summary.get("balance") or {}).get("starved"):
        b, router = summary["balance"], scenario.cluster.router
        notes.append(
            f"starvation: {b['starved']} of {summary['replicas']} replicas had less than a tenth of the mean of the"
            f" work, the busiest {b['most_share']:.0%} of all; router {router!r} sends it so"
        )
    for pool in summary.get("pools", ()) if "balance" not in summary else ():
        if pool["starved"]:
            notes.append(
                f"starvation in pool {pool['pool']}: {pool['starved']} of {pool['replicas']} replicas had less than a"
                f" tenth of the mean of its work; router {scenario.cluster.router!r} sends it so"
            )
    if "routing" in summary:
        notes.append(_routing(summary["routing"]))
    elif scenario.run.explain_routing:
        notes.append(f"routing is not explained: router {scenario.cluster.router!r} looks for no prefixes")
    late_s, router = scenario.cluster.kv_event_delay_ms / 1e3, scenario.cluster.router
    if late_s >= window.end_s and find_router(router).reads_caches:
        notes.append(
            f"no KV event reached router {router!r} in this run ([cluster] kv_event_delay_ms): to it every cache was"
            " empty"
        )
    for tier in summary.get("tiers", [])[1:]:
        if tier["write_share"] is None or tier["write_share"] > 1:
            notes.append(
                f"cache tier {tier['name']}: more was written to it than its bandwidth takes in that time; writes are"
                " assumed to keep up, so its hits are too many"
            )
    if "speculation" in summary:
        notes.append(
            "speculative decoding: acceptances are the scenario's, whatever the text; MFU and MBU are not known with it"
        )
    if "disaggregation" in summary:
        notes.append(
            "prefill and decode apart: schedulers are the engine's, transfers as [disaggregation] says (no measured"
            " fleet checks them); the first token is the decode replica's"
        )
    if UNVERIFIED in summary["engine_semantics"]:
        notes.append(
            f"{summary['engine_semantics']}: its rules are those of its public source and documentation; no recorded"
            " case of the engine checks them"
        )
    if not workload.prefix_identity:
        notes.append(
            "the workload says nothing about shared text: every hit rate is 0 because it is unknown, not because"
            " nothing is shared"
        )
    if scenario.hardware.layout.caution:
        notes.append(scenario.hardware.layout.caution)
    if summary["step_flops"] is not None and summary["peaks"] is None:
        notes.append("MFU and MBU unknown: no data-sheet peaks for this profile's device and type")
    for cause, known in causes.determinable.items():
        if not known:
            notes.append(f"{cause} is not determinable for this workload: such tokens are counted as cold")
    return (*notes, *judged.notes(summary, workload.class_slo, scenario.slo))


def _routing(r: dict[str, Any]) -> str:
    if not r["requests"]:
        return "routing: no request had two replicas to choose from"
    share = r["shorter_match"] / r["requests"]
    said = (
        f"routing: {r['shorter_match']} of {r['requests']} requests ({share:.1%}) went to a replica with a shorter"
        " match than another's"
    )
    if not r["shorter_match"]:
        return said
    return (
        f"{said}, {r['tokens_short']:.0f} tokens shorter on average; for {r['fewer_waiting']} of them fewer requests"
        " waited there"
    )
