"""Simulate the bundled chat + coding-agent mix on one H200 type: prefix cache off, LRU and LFU, at two replica counts.

Prints the verdict and what the cache is worth, and writes one run folder per variant.

  kvcast demo --out runs/demo
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import kvcast
from kvcast.commands import output, replica_counts

SCENARIO = Path(kvcast.__file__).parent.parent / "examples" / "demo.toml"
CACHES = {"off": ["cache.enabled=false"], "lru": ["cache.policy=lru"], "lfu": ["cache.policy=lfu"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=output, default=Path("runs/demo"), help="folder of run folders (default runs/demo)"
    )
    parser.add_argument(
        "--replicas",
        metavar="N,...",
        type=replica_counts,
        default=[1, 2],
        help="replica counts, separated by commas (default 1,2)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from kvcast.store import runs
    from kvcast.studies.windows import together

    asked = {
        (replicas, cache): config.load_scenario(SCENARIO, [f"cluster.replicas={replicas}", *overrides])
        for replicas in map(str, args.replicas)
        for cache, overrides in CACHES.items()
    }
    scenarios = dict(zip(asked, together(list(asked.values())), strict=True))
    workload, results = None, {}
    for (replicas, cache), scenario in scenarios.items():
        workload = api.load_workload(scenario.workload, scenario.seed) if workload is None else workload
        text.progress(f"{replicas} replicas, cache {cache}")
        results[replicas, cache] = api.run(api.prepare(scenario, workload))
    for (replicas, cache), result in results.items():
        baseline = None if cache == "off" else results[replicas, "off"]
        runs.save_run(args.out / f"{replicas}-replicas-{cache}", result, baseline)
    if args.json:
        print(text.to_json({f"{r}-replicas-{c}": api.as_document(result) for (r, c), result in results.items()}))
    else:
        print(_story(results, args.out))
    return 0


def _story(results: dict[tuple[str, str], Any], out: Path) -> str:
    from kvcast import text
    from kvcast.present import summary_text

    replicas, _ = list(results)[-1]
    result, off = results[replicas, "lru"], results[replicas, "off"]
    slo = result.scenario.slo
    lines = [
        summary_text.heading(result),
        "",
        f"target: {text.percent(slo.attainment, 0)} of requests within {summary_text.limits(slo)}",
        summary_text.load_line(result),
        "",
        _table(results),
        "",
        _verdict(results),
        "one run of each: a sketch; kvcast plan settles it over independent runs",
        "",
        f"prefix cache, LRU, {replicas} replicas:",
        summary_text.cache_lines(result),
        "",
        summary_text.worth_table(result, off),
        "",
        summary_text.cost_line(result),
        summary_text.engine_lines(result),
        "",
        f"run folders: {out}/",
        "open the dashboard: make dashboard (or kvcast dashboard)",
    ]
    return "\n".join(lines)


def _table(results: dict[tuple[str, str], Any]) -> str:
    from kvcast import text

    rows = []
    for (replicas, cache), result in results.items():
        s, latency = result.report.summary, result.report.latency
        rows.append(
            [
                replicas,
                cache,
                text.percent(s["attainment"]),
                _word(s),
                text.percent(s["prefix_hit_rate"]),
                text.percent(s["reuse_ceiling_replica"]),
                text.milliseconds(latency["ttft"]["mean"]),
                text.milliseconds(latency["ttft"]["p99"]),
                text.milliseconds(latency["tpot"]["mean"]),
                f"{s['gpu_hours']:.3g}",
                text.usd(s["cost"]["usd"]),
                text.percent(s["coverage"]["extrapolated"]),
            ]
        )
    header = [
        "replicas",
        "cache",
        "attainment",
        "verdict",
        "hit rate",
        "ceiling",
        "TTFT mean",
        "TTFT p99",
        "TPOT mean",
        "GPU-hours",
        "cost",
        "extrapolated",
    ]
    return text.table(header, rows, left=2)


def _word(s: dict[str, Any]) -> str:
    return s["verdict"]["word"] + (", unstable" if s["stable"] is False else "")


def _verdict(results: dict[tuple[str, str], Any]) -> str:
    """The smallest fleet that meets the target, with and without a cache."""
    smallest = {cache: _smallest(results, cache) for cache in CACHES}
    with_cache = min((n for cache, n in smallest.items() if cache != "off" and n is not None), default=None)
    without = smallest["off"]
    tried = _replicas(max(int(replicas) for replicas, _ in results))
    if with_cache is None:
        return f"verdict: not even {tried} meet the target"
    if without is None:
        return (
            f"verdict: with the prefix cache {_replicas(with_cache)} {_meet(with_cache)} the target; without it not"
            f" even {tried} do"
        )
    if without > with_cache:
        return (
            f"verdict: with the prefix cache {_replicas(with_cache)} {_meet(with_cache)} the target; without it"
            f" {without} are needed"
        )
    return f"verdict: {_replicas(with_cache)} {_meet(with_cache)} the target with or without the prefix cache"


def _replicas(n: int) -> str:
    return f"{n} replica{'s' if n > 1 else ''}"


def _meet(n: int) -> str:
    return "meet" if n > 1 else "meets"


def _smallest(results: dict[tuple[str, str], Any], cache: str) -> int | None:
    from sim.measure.verdict import MEETS

    counts = [int(r) for (r, c), result in results.items() if c == cache and _word(result.report.summary) == MEETS]
    return min(counts, default=None)
