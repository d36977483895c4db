"""A run in words: the verdict first, then the numbers it rests on, then what to know about them.

>>> from kvcast import api, load_scenario
>>> from kvcast.present import summary_text
>>> print(summary_text.describe(api.run(api.prepare(load_scenario("examples/demo.toml")))))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.api import Result
from kvcast.scenario.steady import is_mix
from kvcast.trust.model_error import as_words
from sim.measure.report import MEANS_ONLY, OVERLOADED_TRACE, worth_of
from sim.measure.verdict import CONFIDENCE, INTERVAL, UNSTABLE
from sim.scenario import Scenario, SloClass, SloConfig

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
EXTRAPOLATED_LIMIT = 0.2
"""Above this share of simulated time outside the measured range, the result says so in its verdict."""


def describe(result: Result, baseline: Result | None = None) -> str:
    """Everything `kvcast run` prints. `baseline`: the same run with the prefix cache off."""
    parts = [heading(result), verdict(result), latency_table(result), cache_lines(result)]
    if baseline is not None:
        parts.append(worth_table(result, baseline))
    parts += [cost_line(result), engine_lines(result), class_lines(result), notes(result)]
    return text.wrapped("\n\n".join(part for part in parts if part))


def heading(result: Result) -> str:
    scenario, s = result.scenario, result.report.summary
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    gpus = f" x {s['tensor_parallel']} GPUs" if s["tensor_parallel"] > 1 else ""
    profile = result.resolved.profile
    lines = [
        f"{scenario.name or 'scenario'}: {result.resolved.model.name} on {profile.device['name']}",
        f"step times: {profile.id} ({s['profile_hash'][:19]}), {profile.label}",
        (
            f"{s['replicas']} {'replica' if s['replicas'] == 1 else 'replicas'}{gpus}, {scenario.cluster.router},"
            f" {cache}, {s['engine_semantics']}, seed {s['seed']}"
        ),
        f"{text.count(s['arrived'])} requests arrived in the window: {fates(s, is_mix(scenario))}",
    ]
    return "\n".join(lines)


def fates(s: dict[str, Any], is_mix: bool = False) -> str:
    """completed + rejected + truncated + aborted + unfinished = arrived. is_mix: sessions go on before and after its
    window."""
    counts = {
        "completed": s["completed"],
        **{f"rejected ({why.replace('_', ' ')})": n for why, n in s["rejected"].items()},
        "cut with their session": s["session_truncated"],
        "aborted": s["aborted"],
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


def verdict(result: Result) -> str:
    """The answer a planner can act on, what it is judged on, and what makes it doubtful."""
    s, slo = result.report.summary, result.scenario.slo
    judged = s["verdict"]
    lines = [f"{headline(judged, s['attainment'])} ({limits(slo)})" if judged else _no_target(s, slo)]
    if judged and len(judged["classes"]) > 1:
        lines.append(class_verdicts(judged))
    lines.append(load_line(result))
    if s["model_error"] is not None:
        lines.append(as_words(s["model_error"]))
    if judged:
        lines.append(sketch_line(result.scenario))
    if s["stable"] is False:
        growth = s["backlog_growth_per_s"]
        lines.append(f"UNSTABLE: the backlog grows by {growth:.3g} requests/s ({s['stable_reason']})")
    elif s["stable"] is None:
        lines.append(f"stability: {s['stable_reason']}")
    else:
        lines.append(f"stable: {s['stable_reason']}")
    coverage = s["coverage"]
    shares = ", ".join(f"{text.percent(coverage[key])} {key}" for key in ("measured", "interpolated", "extrapolated"))
    outside = coverage["extrapolated"]
    warning = (
        f"  <- {'MUCH' if outside > EXTRAPOLATED_LIMIT else 'part'} of this is outside what was measured"
        if outside >= 0.01
        else ""
    )
    lines.append(f"simulated time rests on step times {shares}{warning}")
    return "\n".join(lines)


def headline(judged: dict[str, Any], attainment: float | None) -> str:
    """summary["verdict"] in a line: the word, what failed, the share with its interval. attainment: of all arrivals."""
    word, rows = judged["word"], judged["classes"]
    told = {
        "meets": "MEETS the target",
        "misses": "MISSES the target",
        "not shown": "NOT SHOWN that it meets the target",
    }[word]
    if not rows or attainment is None:
        return f"{told}: {reason(judged['reason'])}"
    failed = next((row for row in rows if row["name"] == judged["class"]), rows[0])
    if len(rows) == 1 or judged["class"]:
        who = f"{failed['name']}, " if judged["class"] else ""
        why = f"{who}{reason(judged['reason'])}: " if judged["reason"] else ""
        return (
            f"{told}: {why}{share(failed['attainment'])} of {'its' if who else 'all'} arrivals within limits,"
            f" {text.percent(failed['target'])} wanted"
        )
    why = f"{reason(judged['reason'])}, though every" if judged["reason"] else "every"
    return f"{told}: {why} class reaches its target, {text.percent(attainment)} of all arrivals are within limits"


def reason(why: str) -> str:
    """What failed, of a verdict document."""
    return {
        "ttft_s": "most often TTFT",
        "tpot_s": "most often TPOT",
        "e2e_s": "most often E2E",
        UNSTABLE: "the backlog grows",
        INTERVAL: "only the interval reaches below",
    }.get(why, why)


def share(found: dict[str, float] | None) -> str:
    """97.2 % (95 % interval 95.0 to 98.1 %)."""
    return (
        text.UNKNOWN
        if found is None
        else f"{text.percent(found['mean'])} ({text.percent(CONFIDENCE, 0)} interval {between(found)})"
    )


def between(found: dict[str, float]) -> str:
    """The ends of an interval of a share."""
    return f"{100 * found['low']:.1f} to {100 * found['high']:.1f} %"


def class_verdicts(judged: dict[str, Any]) -> str:
    """A row for every class that has a limit."""
    rows = [
        [
            row["name"],
            row["verdict"],
            "" if row["worst"] is None else NAMES[row["worst"]],
            text.percent(row["target"]),
            *(
                [text.UNKNOWN] * 2
                if row["attainment"] is None
                else [text.percent(row["attainment"]["mean"]), between(row["attainment"])]
            ),
            text.count(row["requests"]),
        ]
        for row in judged["classes"]
    ]
    return text.table(
        [
            "class",
            "verdict",
            "most missed",
            "wanted",
            "within limits",
            f"{text.percent(CONFIDENCE, 0)} interval",
            "requests",
        ],
        rows,
        left=3,
    )


def load_line(result: Result) -> str:
    """The load that is judged, and when."""
    s = result.report.summary
    window, offered = s["window"], s["offered_per_s"]
    what = "nominal" if is_mix(result.scenario) else "the trace's mean"
    rate = "a closed loop offers no rate" if offered is None else f"offered {offered:.3g} requests/s ({what})"
    warm = f" after a warm-up of {window['start_s']:,.0f} s" if window["start_s"] else ""
    return f"{rate}, judged from {window['start_s']:,.0f} to {window['end_s']:,.0f} s{warm}"


def sketch_line(scenario: Scenario) -> str:
    """How far one run can be trusted."""
    if is_mix(scenario):
        return "one run: a sketch; kvcast plan --fixed settles it over independent runs"
    return "one run of a recording: its interval comes from stretches of it, and speaks of this traffic"


def _no_target(s: dict[str, Any], slo: SloConfig) -> str:
    if s["attainment"] is None:
        return "no verdict: [slo] sets no limit"
    return f"attainment {text.percent(s['attainment'])} of arrivals within limits ({limits(slo)}; no target set)"


def limits(slo: SloConfig) -> str:
    """The limits in words: those of each SLO class, then the default ones."""
    parts = []
    everyone = SloClass(slo.ttft_s, slo.tpot_s, slo.e2e_s)
    for name, one in [*slo.classes.items(), ("", everyone)]:
        text_of = ", ".join(
            f"{what} <= {text.seconds(limit)}"
            for key, what in NAMES.items()
            if (limit := getattr(one, key)) is not None
        )
        if text_of:
            parts.append(f"{name}: {text_of}" if name else text_of)
    return "; ".join(parts) or "no limits"


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
    return text.table(["latency", *stats], rows) + "\n" + rates


def cache_lines(result: Result) -> str:
    s = result.report.summary
    lines = [
        *hit_lines(s),
        *tier_lines(s),
        (
            f"KV cache: {text.count(s['kv_blocks'])} blocks per replica, {text.percent(s['kv_usage_mean'])} in use on"
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
    return [line] if s["gpu_busy_s"] else []


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
            f" {text.count(t['stored_blocks'])} of {text.count(t['capacity_blocks'] * s['replicas'])} blocks at the end"
        )
    return lines


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


def at_offered(s: dict[str, Any]) -> str:
    """The cost at a mix's nominal load, before that of the window, in which more or less came."""
    bill = s["cost"].get("at_offered")
    if bill is None:
        return ""
    return (
        f"at the offered {s['offered_per_s']:.3g} requests/s: {text.per_million(bill, 'usd', text.usd)},"
        f" {text.usd(bill['usd_per_request'])} a request, {text.usd(bill['usd_per_month'])} a month\nin this window: "
    )


def cost_line(result: Result) -> str:
    s = result.report.summary
    cost = s["cost"]
    line = f"{s['gpu_hours']:.4g} GPU-hours"
    if cost["usd"] is None:
        return f"{line}, {text.per_million(cost, 'gpu_hours', text.hours)} (set [cost] gpu_hour_usd for money)"
    return (
        f"{at_offered(s)}{line}; at {text.usd(cost['gpu_hour_usd'])} a GPU-hour {text.usd(cost['usd'])}:"
        f" {text.per_million(cost, 'usd', text.usd)}, {text.usd(cost['usd_per_request'])} a request,"
        f" {text.usd(cost['usd_per_session'])} a session"
    )


def engine_lines(result: Result) -> str:
    engine = result.scenario.engine
    origins = result.resolved.origins
    values = ", ".join(f"{key} {text.count(getattr(engine, key))} ({origin})" for key, origin in origins.items())
    return "\n".join([f"engine: {values}, block_size {engine.block_size}", *result.resolved.kv_lines])


def class_lines(result: Result) -> str:
    classes = result.report.classes
    if len(classes) < 2:
        return ""
    rows = [
        [
            name,
            text.count(c["arrived"]),
            text.percent(c["attainment"]),
            text.percent(c["prefix_hit_rate"]),
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
