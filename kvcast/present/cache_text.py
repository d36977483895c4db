"""A run's prefix cache in lines: hits by tier and scope, what was evicted, where the rest went, what it is worth.

>>> print(cache_lines(result))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.api import Result
from sim.measure import mixed
from sim.measure.report import worth_of


def fates(s: dict[str, Any], is_mix: bool = False) -> str:
    """completed + rejected + truncated + aborted + unfinished = arrived. is_mix: sessions go on before and after its
    window."""
    counts = {
        "completed": s["completed"],
        **{f"rejected ({why.replace('_', ' ')})": n for why, n in s["rejected"].items()},
        "cut with their session": s["session_truncated"],
        "aborted": s["aborted"],
        "abandoned by their clients": s.get("abandoned", 0),
        "unfinished": s["unfinished"],
    }
    told = ", ".join(f"{text.count(n)} {what}" for what, n in counts.items() if n or what == "completed")
    cut = ", or were cut with their session" if s["session_truncated"] or any(s["rejected"].values()) else ""
    others = {
        "came before it, in the warm-up" if is_mix and s["window"]["start_s"] else "outside the measured window": s[
            "outside_window"
        ],
        (
            f"would come after it (sessions go on){cut}"
            if is_mix
            else "never arrived (their session ended before, or the run did)"
        ): s["not_arrived"],
    }
    return told + "".join(f"; {text.count(n)} more {what}" for what, n in others.items() if n)


def _blocks(s: dict[str, Any]) -> str:
    """KV blocks of a replica, of every pool where they differ."""
    each = dict.fromkeys(row["kv_blocks"] for row in mixed.rows_of(s) or [s])
    return " or ".join(text.count(blocks) for blocks in each)


def cache_lines(result: Result) -> str:
    s = result.report.summary
    lines = [
        *hit_lines(s),
        *tier_lines(s),
        (
            f"KV cache: {_blocks(s)} blocks per replica, {text.percent(s['kv_usage_mean'])} in use on"
            f" average, {text.percent(s['kv_usage_peak'])} at the peak; {text.count(s['preemptions'])} preemptions,"
            f" {text.count(s['recomputed_tokens'])} tokens computed again"
        ),
    ]
    prompt = s["prompt_tokens"] or 1
    misses = {cause.replace("_", " "): n for cause, n in s["miss_tokens"].items() if n}
    if misses:
        lines.append(
            "missed prompt tokens: "
            + ", ".join(
                f"{cause} {text.percent(n / prompt)}" for cause, n in sorted(misses.items(), key=lambda kv: -kv[1])
            )
        )
    return "\n".join([*lines, *evicted_lines(s), *step_lines(s)])


def evicted_lines(s: dict[str, Any]) -> list[str]:
    """Why tokens were evicted, and the hits as a share of the optimum's, when that was asked for."""
    split, prompt = s["evicted_split"], s["prompt_tokens"] or 1
    if split is None:
        return []
    share = (
        text.percent(s["prefix_hit_tokens"] / split["optimum_hit_tokens"])
        if split["optimum_hit_tokens"]
        else text.UNKNOWN
    )
    return [
        (
            f"  evicted by the policy's choice {text.percent(split['policy'] / prompt)}, for want of memory"
            f" {text.percent(split['memory'] / prompt)}; hit though the optimum gave them up"
            f" {text.percent(split['given_up'] / prompt)}"
        ),
        (
            f"  hits are {share} of those of the {split['optimum']} ({split['objective']}, {split['rule']}, proved gap"
            f" {text.percent(split['gap'], 2)})"
        ),
    ]


def hit_lines(s: dict[str, Any]) -> list[str]:
    """The hit rate as a share of its ceilings, and how it is counted."""
    if not s["prefix_identity"]:
        return ["prefix hit rate unknown: the workload says nothing about shared text, so nothing can hit"]
    lines = [
        f"prefix hit rate {text.percent(s['prefix_hit_rate'])} (block size {s['block_size']}; {s['counting_rule']})"
    ]
    for key, memory in (
        ("reuse_ceiling_replica", "endless memory per replica"),
        ("reuse_ceiling_fleet", "one endless cache shared by all"),
    ):
        ceiling = s[key]
        share = text.percent(s["prefix_hit_rate"] / ceiling, 0) if ceiling else text.UNKNOWN
        lines.append(f"  ceiling {text.percent(ceiling)} with {memory}: {share} of it is hit")
    return lines


def tier_lines(s: dict[str, Any]) -> list[str]:
    """Hits by cache tier, when there are any tiers."""
    if not s.get("tiers"):
        return []
    prompt, (gpu, *below) = s["prompt_tokens"] or 1, s["tiers"]
    lines = [
        f"  hits by tier: {gpu['name']} {text.percent(gpu['hit_tokens'] / prompt)}"
        + "".join(f", {t['name']} {text.percent(t['hit_tokens'] / prompt)}" for t in below)
        + f"; {text.count(gpu['requests_that_waited_for_loads'])} requests waited for loads"
        + (f", {text.milliseconds(gpu['mean_load_ms'])} on average" if gpu["mean_load_ms"] else "")
    ]
    for t in below:
        lines.append(
            f"  {t['name']}: {t['loaded_bytes'] / 1e9:,.1f} GB loaded, its link {text.percent(t['link_busy_share'])}"
            f" busy; {t['written_bytes'] / 1e9:,.1f} GB written ({text.percent(t['write_share'])} of its bandwidth);"
            f" {_stored(t, s['replicas'])} blocks at the end" + (_store(t) if t.get("shared") else "")
        )
    return lines


def _stored(t: dict[str, Any], replicas: int) -> str:
    """Blocks in a tier, of how many it has room for; replicas that differ have no one capacity."""
    stored, each = text.count(t["stored_blocks"]), t["capacity_blocks"]
    return stored if each is None else f"{stored} of {text.count(each * (1 if t.get('shared') else replicas))}"


def _store(t: dict[str, Any]) -> str:
    """A tier that all replicas share: how long loads waited for it."""
    wait = text.UNKNOWN if t["mean_store_wait_ms"] is None else text.milliseconds(t["mean_store_wait_ms"])
    return f"; one for all: {text.percent(t['store_busy_share'])} busy, a load waited {wait} for its turn on average"


def worth_table(result: Result, baseline: Result) -> str:
    """What the cache saved, side by side: tokens, FLOPs, time and money are different numbers."""
    w = worth_of(result.report, baseline.report)
    saved = w["prefill_tokens_saved"]
    prompt = result.report.summary["prompt_tokens"]
    flops = result.report.summary["prefill_flops"]
    flops_on = None if flops is None else flops - w["prefill_flops_saved"]
    rows = [
        [
            "prefill tokens",
            text.scaled(prompt),
            text.scaled(prompt - saved),
            text.percent(w["prefill_tokens_saved_share"]),
        ],
        ["prefill FLOPs", text.scaled(flops), text.scaled(flops_on), text.percent(w["prefill_flops_saved_share"])],
        _worth_row("mean TTFT", w["mean_ttft_ms"], text.milliseconds),
        _worth_row("median TTFT", w["p50_ttft_ms"], text.milliseconds),
        _worth_row("p99 TTFT", w["p99_ttft_ms"], text.milliseconds),
        _worth_row("mean E2E", w["mean_e2el_ms"], text.milliseconds),
        _worth_row("busy GPU time", w["gpu_busy_s"], text.seconds),
        _worth_row("GPU-hours", w["gpu_hours"], lambda v: f"{v:.3g}"),
    ]
    if w["cost_usd"]["on"] is not None:
        rows.append(_worth_row("cost", w["cost_usd"], text.usd))
    if w["attainment"]["on"] is not None:
        rows.append(["attainment", text.percent(w["attainment"]["off"]), text.percent(w["attainment"]["on"]), ""])
    stability = {True: "yes", False: "NO", None: "?"}
    rows.append(["stable", stability[w["stable"]["off"]], stability[w["stable"]["on"]], ""])
    table = text.table(["what the cache saved", "cache off", "cache on", "saved"], rows)
    unstable = [name for name in ("off", "on") if w["stable"][name] is False]
    return table + (
        f"\ntimes with the cache {' and '.join(unstable)} only say how long the run was: its backlog grew without end"
        if unstable
        else ""
    )


def _worth_row(name: str, pair: dict[str, Any], show: Any) -> list[str]:
    return [
        name,
        show(pair["off"]) if pair["off"] is not None else text.UNKNOWN,
        show(pair["on"]) if pair["on"] is not None else text.UNKNOWN,
        text.percent(pair["saved_share"]),
    ]


def step_lines(s: dict[str, Any]) -> list[str]:
    """What a step is like, and how much of the GPU it uses."""
    line = (
        f"steps: {s['decode_batch_mean']:.3g} decodes and {text.count(s['tokens_per_step_mean'])} tokens in one,"
        " weighted by their time"
    )
    if s["mfu"] is not None:
        line += (
            f"; MFU {text.percent(s['mfu'])}, MBU {text.percent(s['mbu'])} of the data sheet's peaks"
            f" ({s['peaks']['device']})"
        )
    lines = [line] if s["gpu_busy_s"] else []
    spec = s.get("speculation")
    if spec is not None and spec["mean_acceptance_length"] is not None:
        lines.append(
            f"speculative decoding: mean acceptance length {spec['mean_acceptance_length']:.3f},"
            f" {text.percent(spec['draft_acceptance_rate'])} of {spec['draft_tokens']:,} drafted tokens accepted"
        )
    return lines
