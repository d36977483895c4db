"""What a run would say, from at most 2,000 of its requests: an answer in a second.

A stretch of the run's window is simulated at its own rates, the first 60 % of it as a warm-up. Its goodput is within 15
% of the whole run's on the bundled mixes (docs/dashboard.md has the table); a fleet that cannot keep up is said to be
overloaded, without a goodput. It says "about": for a verdict, run the whole (kvcast run) or settle it (kvcast plan
--fixed).

  kvcast estimate examples/demo.toml --set workload.preset=rag --set slo.classes= --set slo.ttft_s=1
"""

from __future__ import annotations

import argparse
from typing import Any

from kvcast.commands import whole_number


def requests(text: str) -> int:
    """The value of --requests."""
    return whole_number(text, 100, 1_000_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument(
        "--requests", metavar="N", type=requests, default=2000, help="how many are simulated at most (default 2000)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from kvcast.studies import estimate, own_cost

    scenario = config.load_scenario(args.scenario, args.overrides)
    with config.naming(args.scenario):
        found = estimate.estimate(scenario, args.requests)
        own = own_cost.own_cost(api.prepare(scenario))
    if args.json:
        print(text.to_json({**found, "own": {"cpu_s": own.cpu_s, "peak_bytes": own.peak_bytes}}))
    else:
        print(f"{as_text(found)}\n{own_cost.words(own)}; kvcast run adds its twin with the cache off (--no-baseline)")
    return 0


def as_text(found: dict[str, Any]) -> str:
    from kvcast import text

    of = (
        f"from {text.count(found['sampled'])} of {text.count(found['requests'])} requests,"
        f" {text.count(found['measured'])} measured"
    )
    hits = (
        f"prefix hit rate (block size {found['block_size']}): {text.percent(found['prefix_hit_rate'])}, with one"
        f" endless cache {text.percent(found['reuse_ceiling_fleet'])}"
    )
    rate = "" if found["offered_per_s"] is None else f"{found['offered_per_s']:.3g} requests/s"
    if found["overloaded"]:
        return f"overloaded: the fleet cannot keep up with the {rate} that are offered ({of})\n{hits}"
    goodput = "-" if found["goodput_per_s"] is None else f"{found['goodput_per_s']:.3g} requests/s"
    lines = [
        f"goodput: about {goodput}{f' of {rate} offered' if rate else ''} ({of})",
        _attained(found),
        *(
            f"{name.upper()}: p50 {text.milliseconds(found[f'p50_{name}_ms'])}, p99"
            f" {text.milliseconds(found[f'p99_{name}_ms'])}"
            for name in ("ttft", "tpot")
        ),
        hits,
        *(
            []
            if found["usd_per_million_total_tokens"] is None
            else [f"cost: {text.per_million(found, 'usd', text.usd)}"]
        ),
        f"step times: {text.percent(found['extrapolated'])} of simulated time is extrapolated",
    ]
    return "\n".join(lines)


def _attained(found: dict[str, Any]) -> str:
    """The share within limits, and how far so few requests go towards a verdict."""
    from kvcast import text
    from kvcast.present.verdict_text import between, class_verdicts, reason

    if not found["limited"]:
        return "no limits are set: every completed request counts"
    judged, about = found["verdict"], f"within limits: about {text.percent(found['attainment'])}"
    if judged is None:
        return f"{about} (no target is set)"
    why = ", ".join(part for part in (judged["class"], reason(judged["reason"])) if part)
    interval = f" ({between(judged['classes'][0]['attainment'])})" if len(judged["classes"]) == 1 else ""
    line = (
        f"{about}{interval}; so few requests say: {judged['word']}{f' ({why})' if why else ''}. A sketch: kvcast run"
        " judges the whole window"
    )
    return f"{line}\n{class_verdicts(judged)}" if len(judged["classes"]) > 1 else line
