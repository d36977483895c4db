"""Which eviction policy, at which capacity, and does it show in TTFT? Every policy against the optimum and the ceiling.

For every workload, capacity and policy a timed run gives hit rate and mean TTFT; the optimum for the run's order of
admissions bounds what any eviction could hit, and the ceiling is a cache that never evicts. `clairvoyant` knows the
future and is still a policy, not the bound. Every policy is compared with LRU request by request, with a 95 % interval,
so that a difference within the noise is called that.

    python examples/compare_eviction.py --out /tmp/eviction                                        # bundled mix, a
        minute
    KVCAST_DATA=/path/to/data python examples/compare_eviction.py --full --out /tmp/eviction       # four workloads,
        some 6 CPU minutes
    python examples/compare_eviction.py --redraw /tmp/eviction/eviction.json --out docs/img        # the figure again,
        from its numbers

Writes eviction.svg (the figure), eviction.json (every number) and eviction.md (the table of docs/results/eviction.md),
and prints every row. With --full the whole of a Mooncake trace goes to one replica, ten times slower, so that one cache
sees it; coding-agent sessions (one in ten) run closed-loop."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kvcast import InputError, api, build_report, load_scenario, order_optimum, text, together
from kvcast.store import workload_folder
from kvcast.studies import differences, intervals
from sim.kvcache.policies import POLICIES as OF_THE_ENGINE

if __package__:
    from examples.line_charts import Line, Panel, save
else:
    from line_charts import Line, Panel, save

HERE = Path(__file__).resolve().parent
POLICIES = (*OF_THE_ENGINE, "clairvoyant")
MOONCAKE = ("workload.rate_scale=0.1", "cluster.replicas=1")
SYNTHETIC = "workload.trace=${KVCAST_DATA}/traces/mooncake/synthetic_trace.jsonl"


class Setting(NamedTuple):
    file: str
    overrides: tuple[str, ...]
    kv_blocks: tuple[int, ...]  #: per replica
    shown: int  #: of these, the one in the table


BUNDLED = {
    "chat and coding agents": Setting(
        "demo.toml", ("workload.duration_s=180", "cluster.replicas=1"), (8_000, 16_000, 32_000), 8_000
    )
}
FULL = {
    "Mooncake conversation": Setting("mooncake.toml", MOONCAKE, (20_000, 40_000, 80_000, 160_000, 320_000), 160_000),
    "Mooncake synthetic": Setting(
        "mooncake.toml", (*MOONCAKE, SYNTHETIC), (20_000, 40_000, 80_000, 160_000, 320_000), 80_000
    ),
    "coding agents, 16 users": Setting(
        "claude_code.toml", ("workload.users=16", "cluster.replicas=2"), (20_000, 40_000, 80_000), 40_000
    ),
    "coding agents, 64 users": Setting(
        "claude_code.toml", ("workload.users=64", "cluster.replicas=8"), (20_000, 40_000, 80_000), 40_000
    ),
}
WORKLOADS = BUNDLED | FULL

COLOURS = {
    "#0072B2": ("lru", "fifo", "tlru", "priority", "ttl", "quota", "workload"),
    "#E69F00": ("lfu", "slru", "lruk", "sieve", "wtinylfu"),
    "#009E73": ("s3fifo", "arc", "gdsf"),
    "#8c8c8c": ("mru", "filo"),
    "#CC79A7": ("random",),
    "#D55E00": ("clairvoyant",),
}
"""Recency, frequency, both, most recent first, chance, the future. Within a family dashes tell the policies apart."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 1")


def measure(scenario: Any, workload: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run: its numbers, and its requests' columns for the comparison."""
    prepared = api.prepare(scenario, workload_folder.load(workload))
    rec = api.record(prepared, record_cache=True)
    report = build_report(rec, prepared.workload, prepared.scenario)
    summary, best = report.summary, order_optimum(prepared.workload, rec)
    prompt, hit = int(prepared.workload.prompt_tokens[rec.admit_s == rec.admit_s].sum()), int(rec.hit_tokens.sum())
    numbers = {
        "policy": scenario.cache.policy,
        "kv_blocks": scenario.engine.kv_blocks,
        "block_size": rec.block_size,
        "requests": summary["arrived"],
        "hit_rate": hit / prompt,
        "optimum": best.bound_tokens / prompt,
        "share": best.share(hit),
        "share_of_optimum": hit / best.bound_tokens if best.bound_tokens else None,
        "ceiling": int(rec.ceiling_replica_tokens.sum()) / prompt,
        "mean_ttft_ms": summary["mean_ttft_ms"],
        "p99_ttft_ms": summary["p99_ttft_ms"],
        "stable": summary["stable"],
    }
    return numbers, {
        "summary": summary,
        "requests": {name: report.requests[name] for name in intervals.KEPT if name in report.requests},
    }


def measured(name: str, jobs: int) -> list[dict[str, Any]]:
    """Rows of one workload: every policy at every capacity, with its difference from the first policy."""
    from joblib import Parallel, delayed

    setting = WORKLOADS[name]
    base = load_scenario(HERE / setting.file, setting.overrides)
    grid = [
        replace(base, engine=replace(base.engine, kv_blocks=blocks), cache=replace(base.cache, policy=policy))
        for blocks in setting.kv_blocks
        for policy in POLICIES
    ]
    grid = together(grid)
    with tempfile.TemporaryDirectory() as folder:
        workload_folder.save(api.load_workload(grid[0].workload, base.seed), Path(folder) / "workload")
        done = Parallel(n_jobs=jobs)(delayed(measure)(scenario, Path(folder) / "workload") for scenario in grid)
    rows = []
    for at in range(0, len(done), len(POLICIES)):
        group = done[at : at + len(POLICIES)]
        found = differences.differences(
            [[kept["summary"]] for _, kept in group], [kept["requests"] for _, kept in group]
        )
        for (numbers, _), against, told in zip(group, found.rows, differences.as_rows(found), strict=True):
            verdicts = {key: differences.verdict(key, against[key]) for key in ("prefix_hit_rate", "mean_ttft_ms")}
            rows.append(
                {
                    "workload": name,
                    **numbers,
                    "against": POLICIES[0],
                    "method": found.method,
                    "verdicts": verdicts,
                    "differences": told,
                }
            )
    return rows


# -- told --------------------------------------------------------------------------------------------------------------


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    header = [
        "workload",
        "KV blocks",
        "policy",
        "hit rate",
        "of the optimum",
        "optimum",
        "ceiling",
        "TTFT mean",
        "hits, against LRU",
        "TTFT, against LRU",
    ]
    cells = [
        [
            row["workload"],
            text.count(row["kv_blocks"]),
            row["policy"],
            text.percent(row["hit_rate"]),
            text.percent(row["share_of_optimum"]),
            text.percent(row["optimum"]),
            text.percent(row["ceiling"]),
            text.milliseconds(row["mean_ttft_ms"]),
            *(
                "" if row["policy"] == row["against"] else row["verdicts"][key]
                for key in ("prefix_hit_rate", "mean_ttft_ms")
            ),
        ]
        for row in rows
    ]
    told = (
        "share of hit tokens of the optimum for this order, a prompt resident while it is admitted; hits are full"
        " blocks at first admission"
    )
    spans = "hit rates and optima are of the whole run, TTFT and differences of its window"
    return "\n".join([text.table(header, cells, left=1), "", f"{told}; {spans}; block size {rows[0]['block_size']}"])


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """One capacity of each workload, a policy a line (policies with equal runs share one): hit rate (share of the
    optimum), mean TTFT, and both against LRU ± half the 95 % interval."""
    names = list(dict.fromkeys(row["workload"] for row in rows))
    shown = {
        name: {
            row["policy"]: row for row in rows if row["workload"] == name and row["kv_blocks"] == WORKLOADS[name].shown
        }
        for name in names
    }
    lines = [
        "| policy | " + " | ".join(f"{name}, {WORKLOADS[name].shown:,} blocks" for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    alike: dict[tuple, list[str]] = {}
    for policy in POLICIES:
        alike.setdefault(
            tuple((shown[name][policy]["hit_rate"], shown[name][policy]["mean_ttft_ms"]) for name in names), []
        ).append(policy)
    for policies in alike.values():
        lines.append(
            f"| {', '.join(f'`{policy}`' for policy in policies)} | "
            + " | ".join(_cell(shown[name][policies[0]]) for name in names)
            + " |"
        )
    bounds = [
        f"{text.percent(first['optimum'])} (ceiling {text.percent(first['ceiling'])})"
        for first in (shown[name][POLICIES[0]] for name in names)
    ]
    return "\n".join([*lines, "| optimum for LRU's order | " + " | ".join(bounds) + " |"])


def _cell(row: dict[str, Any]) -> str:
    hits = f"{text.percent(row['hit_rate'])} ({text.percent(row['share_of_optimum'], 0)})"
    ttft = text.milliseconds(row["mean_ttft_ms"])
    if row["policy"] == row["against"]:
        return f"{hits}; {ttft}"
    return f"{hits} {_against(row, 'prefix_hit_rate', 100, 1)}; {ttft} {_against(row, 'mean_ttft_ms', 1, 0)}"


def _against(row: dict[str, Any], key: str, scale: float, digits: int) -> str:
    """Difference from LRU ± half its interval, in bold when the interval leaves zero out."""
    told = row["differences"][key]
    if told["difference"] is None or told["interval_95"] is None:
        return f"({told['note'] or text.UNKNOWN})"
    found = f"{scale * told['difference']:+.{digits}f} ± {scale * told['interval_95']:.{digits}f}"
    return f"**{found}**" if told["shown"] else found


def figure(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Hit rate above, mean TTFT below, over KV memory; a column for each workload."""
    names = list(dict.fromkeys(row["workload"] for row in rows))
    above, below = [], []
    for name in names:
        of = {
            policy: [row for row in rows if (row["workload"], row["policy"]) == (name, policy)] for policy in POLICIES
        }
        first = of[POLICIES[0]]
        blocks = [row["kv_blocks"] for row in first]
        bounds = [
            Line("ceiling", blocks, [100 * row["ceiling"] for row in first], "black", "1 3"),
            Line("optimum for LRU's order", blocks, [100 * row["optimum"] for row in first], "black"),
        ]
        hits, times = [], []
        for colour, family in COLOURS.items():
            for dash, policy in zip(DASHES, family, strict=False):
                of_it = of[policy]
                hits.append(
                    Line(
                        policy,
                        blocks,
                        [100 * row["hit_rate"] for row in of_it],
                        colour,
                        dash,
                        [_shown(row, "prefix_hit_rate") for row in of_it],
                    )
                )
                times.append(
                    Line(
                        policy,
                        blocks,
                        [row["mean_ttft_ms"] for row in of_it],
                        colour,
                        dash,
                        [_shown(row, "mean_ttft_ms") for row in of_it],
                    )
                )
        above.append(Panel(name, "", "hit rate, % of prompt tokens", bounds + hits))
        below.append(Panel("", "KV blocks a replica", "mean TTFT, ms", times, log=True))
    save(path, [above, below], ("full disc: differs from LRU,", "95 % interval without zero"))


def _shown(row: dict[str, Any], key: str) -> bool:
    return bool(row["differences"][key]["shown"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for eviction.svg, eviction.json and eviction.md"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--full",
        action="store_true",
        help="the four workloads of docs/results/eviction.md, from KVCAST_DATA, instead of the bundled mix",
    )
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only this one; may be repeated")
    parser.add_argument(
        "--redraw",
        type=Path,
        metavar="JSON",
        help="simulate nothing: figure and table from the numbers of an earlier run",
    )
    args = parser.parse_args(argv)
    rows = [] if args.redraw is None else json.loads(args.redraw.read_text(encoding="utf-8"))
    for name in () if args.redraw else args.workload or (FULL if args.full else BUNDLED):
        rows += measured(name, args.jobs)
        text.progress(f"{name}: {len(rows)} runs")
    args.out.mkdir(parents=True, exist_ok=True)
    figure(args.out / "eviction.svg", rows)
    (args.out / "eviction.md").write_text(as_markdown(rows) + "\n", encoding="utf-8")
    if args.redraw is None:
        (args.out / "eviction.json").write_text(text.to_json(rows) + "\n", encoding="utf-8")
        print(as_table(rows))
    print(f"\nfigure: {args.out / 'eviction.svg'}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"compare_eviction: {error}") from None
