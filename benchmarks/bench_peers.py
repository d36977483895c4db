"""The same work in kvcast and in other simulators: python benchmarks/bench_peers.py --aisimulate PYTHON --vidur PYTHON

The one idea: the same requests, engine settings, KV blocks and step times in both, so that what differs is a rule. Each
simulator runs in a process of its own, by turns; CPU seconds and peak memory are of the whole process. A peer that is
not there is named in a line with what would install it.

    python -m venv peers && peers/bin/pip install ai-dynamo-runtime==1.6.1
    peers/bin/pip install kvcache-simulator==0.1.3
    python -m venv vidur && vidur/bin/pip install vidur==0.0.26
    python benchmarks/bench_peers.py --aisimulate peers/bin/python --export     # records the set of `kvcast validate`
    python benchmarks/bench_peers.py --aisimulate peers/bin/python --kvcache peers/bin/python \\
        --vidur vidur/bin/python --write docs/peers.md

KVCAST_DATA names the reference data folder: its Mooncake conversation trace is the work.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import kvcast  # noqa: E402
from benchmarks import peer_cache, peer_work, peer_worlds  # noqa: E402
from benchmarks.peer_processes import AISimulate, KvCacheSimulator, Vidur, process  # noqa: E402
from kvcast.validation import aisimulate  # noqa: E402
from kvcast.validation.aisimulate import BLOCK, HERE, TRACE_BLOCK, Case, Request, read_trace, trace_figures, write_trace  # noqa: E402

TRACE = "conversation_trace.jsonl"
H200: dict[str, Any] = {"kv_blocks": 57_631, "max_num_seqs": 1024}
"""What kvcast works out for Llama-3.1-8B on one H200, as vLLM has it by default."""
Used = dict[str, dict[str, float]]
"""Of each simulator CPU seconds, wall seconds and peak MiB."""
TRACES = (
    Case("Mooncake, 1 replica", **H200),
    Case("Mooncake, 8 replicas", **H200, replicas=8),
    Case("Mooncake, 8 replicas, KV router", **H200, replicas=8, router="dynamo-kv"),
    Case("Mooncake, 8 replicas, SGLang", **H200, engine="sglang", replicas=8),
    Case("Mooncake, 4 prefill and 4 decode replicas", **H200, replicas=8, prefill_replicas=4),
    Case("the same, transfers in no time", **H200, replicas=8, prefill_replicas=4, gb_per_s=1e5),
)
ALL = (*TRACES, peer_worlds.SHORT_ANSWERS)
SUMMARY = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2e_latency_ms")
"""The peer's names of our means."""
WORLDS = (*map(peer_worlds.vllm, range(8)), *map(peer_worlds.short, range(8)), *map(peer_worlds.sglang, range(6)))


# ---- the set of kvcast validate --------------------------------------------------------------------------------------

NOTICE = """\
# What an independent simulator, AISimulate, says of the requests of aisimulate.csv and of a public trace, for
# `kvcast validate aisimulate`. Its output, none of its code (it is Apache-2.0, as the trace is). Written by
# `python benchmarks/bench_peers.py --aisimulate PYTHON --export`, which records all of it again; not edited by hand.
"""


def export(peer: AISimulate, trace: Path, folder: Path) -> None:
    """Record the worlds and the trace's figures: aisimulate.toml and aisimulate.csv."""
    told, rows = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for case, requests in WORLDS:
            path = Path(scratch, f"{case.name}.jsonl")
            write_trace(requests, path)
            said = peer.run(case, path, BLOCK)
            rows += [peer_worlds.answered(*pair) for pair in zip(requests, said["requests"], strict=True)]
            told.append(case)
            print(f"{case.name}: {len(requests)} requests", flush=True)
    tables = [(case, peer.figures(case, trace)) for case in TRACES]
    lines = [
        NOTICE,
        "[source]",
        f'name = "AISimulate 0.13 (ai-dynamo-runtime {said["version"]})"',
        f'recorded = "{date.today().isoformat()}"',
        f'machine = "{machine()}"',
        f'trace = "{trace.name}"',
        *(line for case in told for line in ("", "[[world]]", *settings(case))),
        *(line for case, found in tables for line in ("", "[[trace]]", *settings(case), *values(found))),
    ]
    (folder / "aisimulate.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (folder / "aisimulate.csv").open("w", encoding="utf-8", newline="") as file:
        file.write("# Of aisimulate.toml's worlds: requests, and the times, hits and readmissions in AISimulate.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Request)])
        writer.writerows([list(asdict(row).values()) for row in rows])


def settings(case: Case) -> list[str]:
    """What of a case is not a default, in TOML."""
    return values({f.name: getattr(case, f.name) for f in fields(Case) if getattr(case, f.name) != f.default})


def values(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in table.items()]


def machine() -> str:
    """Processor and cores, as the figures' readers need them."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = next(line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


# ---- time and memory, and the page -----------------------------------------------------------------------------------


def simulate_one(case: Case, trace: Path, block_tokens: int) -> dict[str, Any]:
    """kvcast's whole work on a case: read, simulate, means."""
    workload = read_trace(trace, block_tokens)
    return trace_figures(case.simulate(workload), workload)


def by_turns(names: tuple[str, str], runs: Sequence[Callable[[], Mapping[str, float]]], rounds: int) -> Used:
    """Medians of what two simulators use, run one after the other."""
    found = [[run() for run in runs] for _ in range(rounds)]
    return {
        who: {key: median(pair[i][key] for pair in found) for key in ("cpu_s", "wall_s", "peak_mib")}
        for i, who in enumerate(names)
    }


def one(what: str, trace: Path | None = None, block_tokens: int = 0) -> Callable[[], dict[str, float]]:
    """kvcast's process on a case by its number in `ALL`, or on `peer_work`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", what]
    return lambda: process(command if trace is None else [*command, str(trace), str(block_tokens)])


def aisimulate_section(peer: AISimulate, trace: Path, rounds: int) -> dict[str, list[str]]:
    """What stands between the page's marks of AISimulate."""
    scored, used = aisimulate.run(trace.parents[2]), {}
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "short.jsonl")
        write_trace(peer_worlds.short_answers(), short)
        for i, case in enumerate(ALL):
            work = (trace, TRACE_BLOCK) if i < len(TRACES) else (short, BLOCK)
            runs = (one(str(i), *work), partial(peer.run, case, *work, each=False))
            used[case.name] = by_turns(("kvcast", peer.name), runs, rounds)
            print(case.name, json.dumps(used[case.name]), flush=True)
        ours = simulate_one(ALL[-1], short, BLOCK)
        summary = peer.run(ALL[-1], short, BLOCK, each=False)["summary"]
    theirs = {key: summary[name] for key, name in zip(aisimulate.MEANS, SUMMARY, strict=True)}
    means = [f"{key[:-3].upper()} {ours[key]:,.6f} and {theirs[key]:,.6f} ms" for key in aisimulate.MEANS]
    lines = [f"- {line}" for line in scored.lines[:-1]]
    lines.append(f"- {ALL[-1].name} (not recorded): {', '.join(means)}")
    source = aisimulate.Recorded().told["source"]["name"]
    return {"agreement": lines, "times": times(used, peer.name, source, rounds)}


def vidur_section(peer: Vidur, rounds: int) -> dict[str, list[str]]:
    """What stands between the page's marks of Vidur."""
    said = peer.run()
    found = peer_work.compared(peer_work.simulate(), said)
    used = by_turns(("kvcast", peer.name), (one("vidur"), peer.run), rounds)
    print(peer.name, json.dumps(found), json.dumps(used), flush=True)
    means = [
        f"{who}: {', '.join(f'{key[:-3].upper()} {found[who][key]:,.3f} ms' for key in aisimulate.MEANS)}"
        for who in ("kvcast", peer.name)
    ]
    agreed = f"{found['equal']:,} of {peer_work.REQUESTS:,} requests have their first and last token at the same times"
    agreed += ", to the microsecond."
    table = times({"4,096 requests": used}, peer.name, f"{peer.name} {said['version']}", rounds)
    return {"vidur": [f"{agreed} {'; '.join(means)}.", "", *table]}


def cache_section(peer: KvCacheSimulator, trace: Path, rounds: int) -> dict[str, list[str]]:
    """What stands between the page's marks of kvcache-simulator."""
    found = peer_cache.compared(read_trace(trace, TRACE_BLOCK), peer.run(trace))
    kvcast_run = partial(process, peer_cache.of_kvcast(sys.executable, trace))
    used = by_turns(("kvcast", peer.name), (kvcast_run, partial(peer.run, trace)), rounds)
    print(peer.name, json.dumps(found), json.dumps(used), flush=True)
    agreed = [
        f"{policy.upper()}: hit tokens equal at {of['equal']} of {of['of']} capacities, at most {of['points']:.2f}"
        " points of the hit rate apart"
        for policy, of in found.items()
    ]
    table = times({"Mooncake, 9 capacities, 2 policies": used}, peer.name, f"{peer.name} 0.1.3", rounds)
    return {"cache": [f"{'; '.join(agreed)}.", "", *table]}


def write_page(sections: Mapping[str, Iterable[str]], path: Path) -> None:
    """Put what is measured between the page's marks; the rest of it is written by hand."""
    text = path.read_text(encoding="utf-8")
    for mark, lines in sections.items():
        text = filled(text, mark, lines)
    path.write_text(text, encoding="utf-8")


def filled(text: str, mark: str, lines: Iterable[str]) -> str:
    """A page with these lines between <!-- mark --> and <!-- /mark -->."""
    before, rest = text.split(f"<!-- {mark} -->\n")
    after = rest.split(f"<!-- /{mark} -->\n")[1]
    return "".join([before, f"<!-- {mark} -->\n", *(f"{line}\n" for line in lines), f"<!-- /{mark} -->\n", after])


def times(found: Mapping[str, Used], peer: str, version: str, rounds: int) -> list[str]:
    """The table of CPU time and memory, and what it was measured on."""
    rows = []
    for name, of in found.items():
        used = [f"{of[who]['cpu_s']:.2f} | {of[who]['peak_mib']:,.0f} MiB" for who in ("kvcast", peer)]
        ratios = [f"{of[peer][key] / of['kvcast'][key]:.1f}" for key in ("cpu_s", "wall_s")]
        rows.append(f"| {' | '.join([name, *used, *ratios])} |")
    return [
        f"Whole processes from their start to the means, by turns, medians of {rounds} rounds"
        f" ({date.today().isoformat()}: {machine()}, other work beside; Python {platform.python_version()}, kvcast"
        f" {kvcast.__version__} ({kvcast.core}), {version}).",
        "",
        f"| | kvcast, CPU-s | peak | {peer}, CPU-s | peak | times the CPU | times the wall time |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aisimulate", metavar="PYTHON", help="of a venv with ai-dynamo-runtime")
    parser.add_argument("--vidur", metavar="PYTHON", help="of a venv with vidur")
    parser.add_argument("--kvcache", metavar="PYTHON", help="of a venv with kvcache-simulator")
    parser.add_argument("--export", action="store_true", help="record kvcast validate's set")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="measure, compare and fill in docs/peers.md")
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="runs of each simulator (default: 3)")
    parser.add_argument("--one", nargs="+", metavar="CASE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        if args.one == ["vidur"]:
            found = peer_work.simulate()
        else:
            found = simulate_one(ALL[int(args.one[0])], Path(args.one[1]), int(args.one[2]))
        print({key: value for key, value in found.items() if key in aisimulate.MEANS})
        return
    trace = Path(os.environ.get("KVCAST_DATA") or parser.error("KVCAST_DATA is not set"), "traces", "mooncake", TRACE)
    peers = ((args.aisimulate, AISimulate), (args.vidur, Vidur), (args.kvcache, KvCacheSimulator))
    for given, peer in peers:
        if not given:
            print(peer.missing, file=sys.stderr)
    if args.aisimulate and args.export:
        export(AISimulate(args.aisimulate), trace, HERE)
    if args.write:
        sections = aisimulate_section(AISimulate(args.aisimulate), trace, args.rounds) if args.aisimulate else {}
        sections |= vidur_section(Vidur(args.vidur), args.rounds) if args.vidur else {}
        sections |= cache_section(KvCacheSimulator(args.kvcache), trace, args.rounds) if args.kvcache else {}
        write_page(sections, args.write)


if __name__ == "__main__":
    main()
