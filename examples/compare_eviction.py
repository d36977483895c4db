"""Which eviction policy, at which capacity, and does it show in TTFT? Every policy against the optimum, on four workloads.

For every workload, capacity and policy a timed run gives hit rate and mean TTFT; the optimum for the run's order of
admissions bounds what any eviction could hit. `clairvoyant` knows the future and is still a policy, not the bound. Every
policy is also compared with LRU request by request, so that a difference within the noise is called that.

    KVCAST_DATA=/path/to/data python examples/compare_eviction.py --out /tmp/eviction --jobs 2     # five to six CPU minutes
    KVCAST_DATA=/path/to/data python examples/compare_eviction.py --out /tmp/eviction --quick      # some seconds: a look at the shape

Writes eviction.html (figure) and eviction.json (every number), and prints the table of docs/comparisons.md. The whole of a
Mooncake trace goes to one replica, ten times slower, so that one cache sees it; coding-agent sessions run closed-loop.
"""
from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast import InputError, api, differences, intervals, load_scenario, shared, text

HERE = Path(__file__).resolve().parent
POLICIES = ("lru", "lfu", "fifo", "slru", "s3fifo", "sieve", "arc", "lruk", "wtinylfu", "gdsf", "random", "clairvoyant")
MOONCAKE = ("workload.rate_scale=0.1", "cluster.replicas=1")
SYNTHETIC = "workload.trace=${KVCAST_DATA}/traces/mooncake/synthetic_trace.jsonl"
WORKLOADS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "Mooncake conversation": ("mooncake.toml", MOONCAKE, (20_000, 40_000, 80_000, 160_000, 320_000)),
    "Mooncake synthetic": ("mooncake.toml", (*MOONCAKE, SYNTHETIC), (20_000, 40_000, 80_000, 160_000, 320_000)),
    "coding agents, 16 users": ("claude_code.toml", ("workload.users=16", "cluster.replicas=2"), (20_000, 40_000, 80_000)),
    "coding agents, 64 users": ("claude_code.toml", ("workload.users=64", "cluster.replicas=8"), (20_000, 40_000, 80_000)),
}
"""Name -> scenario file, overrides, KV blocks per replica."""


def measure(scenario: Any, workload: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run: its numbers, and its requests' columns for the comparison."""
    from sim.optimum.schedule import order_optimum
    from sim.report import build_report

    prepared = api.prepare(scenario, shared.load(workload))
    rec = api.record(prepared, record_cache=True)
    report = build_report(rec, prepared.workload, prepared.scenario)
    summary, best = report.summary, order_optimum(prepared.workload, rec)
    prompt = int(prepared.workload.prompt_tokens[rec.admit_s == rec.admit_s].sum())
    numbers = {
        "policy": scenario.cache.policy, "kv_blocks": scenario.engine.kv_blocks, "block_size": rec.block_size, "requests": summary["arrived"],
        "hit_rate": int(rec.hit_tokens.sum()) / prompt, "optimum": best.bound_tokens / prompt, "share": best.share(int(rec.hit_tokens.sum())),
        "share_of_optimum": int(rec.hit_tokens.sum()) / best.bound_tokens if best.bound_tokens else None,
        "ceiling": int(rec.ceiling_replica_tokens.sum()) / prompt, "mean_ttft_ms": summary["mean_ttft_ms"], "p99_ttft_ms": summary["p99_ttft_ms"],
        "stable": summary["stable"],
    }  # fmt: skip
    return numbers, {"summary": summary, "requests": {name: report.requests[name] for name in intervals.KEPT if name in report.requests}}


def measured(name: str, policies: Sequence[str], capacities: Sequence[int], overrides: Sequence[str], jobs: int) -> list[dict[str, Any]]:
    """Rows of one workload: every policy at every capacity, with its verdict against the first policy."""
    from joblib import Parallel, delayed

    file, own, _ = WORKLOADS[name]
    base = load_scenario(HERE / file, [*own, *overrides])
    grid = [
        replace(base, engine=replace(base.engine, kv_blocks=blocks), cache=replace(base.cache, policy=policy))
        for blocks in capacities for policy in policies
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        shared.save(api.load_workload(base.workload, base.seed), Path(folder) / "workload")
        done = Parallel(n_jobs=jobs)(delayed(measure)(scenario, Path(folder) / "workload") for scenario in grid)
    rows = []
    for at in range(0, len(done), len(policies)):
        group = done[at : at + len(policies)]
        found = differences.differences([[kept["summary"]] for _, kept in group], [kept["requests"] for _, kept in group])
        for (numbers, _), against, told in zip(group, found.rows, differences.as_rows(found), strict=True):
            verdicts = {key: differences.verdict(key, against[key]) for key in ("prefix_hit_rate", "mean_ttft_ms")}
            rows.append({"workload": name, **numbers, "against": policies[0], "method": found.method, "verdicts": verdicts, "differences": told})
    return rows


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["workload", "KV blocks", "policy", "hit rate", "of the optimum", "optimum", "ceiling", "TTFT mean", "hits, against LRU", "TTFT, against LRU"]
    cells = [
        [
            row["workload"], text.count(row["kv_blocks"]), row["policy"], text.percent(row["hit_rate"]), text.percent(row["share_of_optimum"]),
            text.percent(row["optimum"]), text.percent(row["ceiling"]), text.milliseconds(row["mean_ttft_ms"]),
            *("" if row["policy"] == row["against"] else row["verdicts"][key] for key in ("prefix_hit_rate", "mean_ttft_ms")),
        ]
        for row in rows
    ]  # fmt: skip
    told = "share of hit tokens of the optimum for this order, a prompt resident while it is admitted; hits are full blocks at first admission"
    return "\n".join([text.table(header, cells, left=1), "", f"{told}; block size {rows[0]['block_size']}"])


def figure(rows: Sequence[dict[str, Any]]) -> Any:
    """Hit rate above, mean TTFT below, over KV memory; a column for each workload."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(row["workload"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    fig = make_subplots(rows=2, cols=len(names), column_titles=names, vertical_spacing=0.12)
    colours = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8c8c8c")
    for column, name in enumerate(names, start=1):
        of = {policy: [row for row in rows if (row["workload"], row["policy"]) == (name, policy)] for policy in policies}
        first = of[policies[0]]
        blocks = [row["kv_blocks"] for row in first]
        for label, key, dash in (("optimum for LRU's order", "optimum", "solid"), ("ceiling", "ceiling", "dot")):
            fig.add_scatter(x=blocks, y=[100 * row[key] for row in first], name=label, legendgroup=label, showlegend=column == 1,
                            line={"color": "black", "dash": dash}, row=1, col=column)  # fmt: skip
        for i, policy in enumerate(policies):
            line = {"color": colours[i % len(colours)], "dash": ("solid", "dash")[i // len(colours) % 2]}
            shared_options = {"x": blocks, "legendgroup": policy, "name": policy, "line": line, "mode": "lines+markers"}
            fig.add_scatter(y=[100 * row["hit_rate"] for row in of[policy]], showlegend=column == 1, row=1, col=column, **shared_options)
            fig.add_scatter(y=[row["mean_ttft_ms"] for row in of[policy]], showlegend=False, row=2, col=column, **shared_options)
    fig.update_xaxes(type="log", title_text="KV blocks a replica", row=2)
    fig.update_xaxes(type="log", row=1)
    fig.update_yaxes(title_text="hit rate, % of prompt tokens", row=1, col=1)
    fig.update_yaxes(title_text="mean TTFT, ms", row=2, col=1)
    return fig.update_layout(height=800, width=380 * len(names) + 200, template="plotly_white")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for eviction.html and eviction.json")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="LRU, LFU and clairvoyant at two capacities, on the start of the Mooncake traces")
    args = parser.parse_args(argv)
    rows = []
    for name in args.workload or list(WORKLOADS)[: 2 if args.quick else None]:
        policies, capacities, overrides = POLICIES, WORKLOADS[name][2], ()
        if args.quick:
            policies, capacities, overrides = ("lru", "lfu", "clairvoyant"), capacities[:3:2], ("workload.requests=1000",)
        rows += measured(name, policies, capacities, overrides, args.jobs)
        text.progress(f"{name}: {len(rows)} runs")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "eviction.json").write_text(text.to_json(rows) + "\n", encoding="utf-8")
    figure(rows).write_html(args.out / "eviction.html", include_plotlyjs="cdn")
    print(as_table(rows))
    print(f"\nfigure: {args.out / 'eviction.html'}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"compare_eviction: {error}") from None
