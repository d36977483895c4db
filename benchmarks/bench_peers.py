"""The same work in kvcast and in other simulators: python benchmarks/bench_peers.py --aisimulate PYTHON [--write PAGE]

The one idea: the same requests, engine settings, KV blocks and step times in both, so that what differs is a rule. Each
simulator runs in a process of its own, by turns; CPU seconds and peak memory are of the whole process. A peer that is
not there is named in a line with what would install it.

    python -m venv peers
    peers/bin/pip install ai-dynamo-runtime==1.6.1
    python benchmarks/bench_peers.py --aisimulate peers/bin/python --export     # records the set of `kvcast validate`
    python benchmarks/bench_peers.py --aisimulate peers/bin/python --write docs/peers.md

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
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import kvcast  # noqa: E402
from benchmarks import peer_worlds  # noqa: E402
from kvcast.validation import aisimulate  # noqa: E402
from kvcast.validation.aisimulate import (  # noqa: E402
    BLOCK,
    HERE,
    KV_TOKEN_BYTES,
    TRACE_BLOCK,
    Case,
    Request,
    means_ms,
    read_trace,
    trace_figures,
    write_trace,
)
from sim.fleet.router import find as find_router  # noqa: E402

TRACE = "conversation_trace.jsonl"
H200: dict[str, Any] = {"kv_blocks": 57_631, "max_num_seqs": 1024}
"""What kvcast works out for Llama-3.1-8B on one H200, as vLLM has it by default."""
USED = ("cpu_s", "wall_s", "peak_mib")
TRACES = (
    Case("Mooncake, 1 replica", **H200),
    Case("Mooncake, 8 replicas", **H200, replicas=8),
    Case("Mooncake, 8 replicas, KV router", **H200, replicas=8, router="dynamo-kv"),
    Case("Mooncake, 8 replicas, SGLang", **H200, engine="sglang", replicas=8),
    Case("Mooncake, 4 prefill and 4 decode replicas", **H200, replicas=8, prefill_replicas=4),
    Case("the same, transfers in no time", **H200, replicas=8, prefill_replicas=4, gb_per_s=1e5),
)
WORLDS = (*map(peer_worlds.vllm, range(8)), *map(peer_worlds.short, range(8)), *map(peer_worlds.sglang, range(6)))


# ---- AISimulate ------------------------------------------------------------------------------------------------------


class AISimulate:
    name = "AISimulate"
    missing = "AISimulate: not run, expected --aisimulate PYTHON of a venv with ai-dynamo-runtime 1.6.1 (see --help)"

    def __init__(self, python: str) -> None:
        self.python = python

    def job(self, case: Case, trace: Path, block_tokens: int, each: bool) -> dict[str, Any]:
        """What peer_aisimulate.py is asked for."""
        options: dict[str, Any] = {"router_mode": "kv_router" if case.router == "dynamo-kv" else "round_robin"}
        engine = engine_of(case)
        if case.prefill_replicas:
            options |= {
                "num_prefill_workers": case.prefill_replicas,
                "num_decode_workers": case.replicas - case.prefill_replicas,
            }
            engines = {f"{role}_engine_args": engine | {"worker_type": role} for role in ("prefill", "decode")}
        else:
            options["num_workers"] = case.replicas
            engines = {"extra_engine_args": engine}
        return {"trace": str(trace), "block_tokens": block_tokens, "each": each, "options": options, "engines": engines}

    def run(self, case: Case, trace: Path, block_tokens: int, each: bool = True) -> dict[str, Any]:
        """Its answer, with CPU seconds, wall seconds and peak MiB of its process."""
        with tempfile.TemporaryDirectory() as folder:
            job, out = Path(folder, "job.json"), Path(folder, "out.json")
            job.write_text(json.dumps(self.job(case, trace, block_tokens, each)), encoding="utf-8")
            used = process([self.python, str(ROOT / "benchmarks" / "peer_aisimulate.py"), str(job), str(out)])
            return json.loads(out.read_text(encoding="utf-8")) | used

    def figures(self, case: Case, trace: Path) -> dict[str, Any]:
        """As `trace_figures` of kvcast's run; of a router that draws among ties, which it does anew each time, the
        means of three runs."""
        runs = [self._figures(case, trace) for _ in range(3 if find_router(case.router).draws else 1)]
        return {key: type(runs[0][key])(sum(run[key] for run in runs) / len(runs)) for key in runs[0]}

    def _figures(self, case: Case, trace: Path) -> dict[str, Any]:
        rows = self.run(case, trace, TRACE_BLOCK)["requests"]
        times = {
            "arrival": np.array([row["arrival_time_ms"] for row in rows]),
            "first": np.array([row["first_token_ms"] for row in rows]),
            "last": np.array([row["last_token_ms"] for row in rows]),
            "tokens": np.array([row["output_length"] for row in rows]),
        }
        return {
            **means_ms(**times),
            "hit_tokens": sum(row["hit_tokens"] for row in rows),
            "preemptions": sum(row["readmissions"] for row in rows),
        }


def engine_of(case: Case) -> dict[str, Any]:
    """A case's engine as the peer's configuration."""
    return {
        "backend": case.engine,
        "num_gpu_blocks": case.kv_blocks,
        "block_size": case.block_size,
        "max_num_seqs": case.max_num_seqs,
        "max_num_batched_tokens": case.max_num_batched_tokens,
        "enable_prefix_caching": case.caching,
        "timing_model": {"type": "polynomial"},
        "kv_transfer_bytes_per_token": KV_TOKEN_BYTES,
        "kv_transfer_bandwidth": case.gb_per_s,
        "sglang": {"schedule_policy": "fifo", "chunked_prefill_size": case.max_num_batched_tokens},
    }


def process(command: list[str]) -> dict[str, float]:
    """Run it: user + system CPU seconds, wall seconds and peak resident MiB. SystemExit when it fails."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        pid = os.posix_spawn(
            command[0],
            command,
            {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""},
            file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)],
        )
        _, status, usage = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(status):
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read().decode(errors='replace')[-2000:]}")
    mib = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.perf_counter() - started, "peak_mib": mib}


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


def simulate_one(case: Case, trace: Path) -> dict[str, Any]:
    """kvcast's whole work on a case: read, simulate, means."""
    workload = read_trace(trace, TRACE_BLOCK)
    return trace_figures(case.simulate(workload), workload)


def timed(peer: AISimulate, trace: Path, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Medians of both simulators on every case of the trace, by turns."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for i, case in enumerate(TRACES):
        runs: dict[str, list[dict[str, float]]] = {"kvcast": [], peer.name: []}
        for _ in range(rounds):
            runs["kvcast"].append(process([sys.executable, str(Path(__file__).resolve()), "--one", str(i)]))
            runs[peer.name].append({key: peer.run(case, trace, TRACE_BLOCK, each=False)[key] for key in USED})
        found[case.name] = {who: {key: median(run[key] for run in of) for key in USED} for who, of in runs.items()}
        print(case.name, json.dumps(found[case.name]), flush=True)
    return found


def write_page(peer: AISimulate, trace: Path, rounds: int, path: Path) -> None:
    """Put what is measured between the page's marks; the rest of it is written by hand."""
    scored = aisimulate.run(trace.parents[2])
    text = filled(path.read_text(encoding="utf-8"), "agreement", [f"- {line}" for line in scored.lines])
    text = filled(text, "times", times(timed(peer, trace, rounds), rounds))
    path.write_text(text, encoding="utf-8")


def filled(text: str, mark: str, lines: Iterable[str]) -> str:
    """A page with these lines between <!-- mark --> and <!-- /mark -->."""
    before, rest = text.split(f"<!-- {mark} -->\n")
    after = rest.split(f"<!-- /{mark} -->\n")[1]
    return "".join([before, f"<!-- {mark} -->\n", *(f"{line}\n" for line in lines), f"<!-- /{mark} -->\n", after])


def times(found: Mapping[str, Mapping[str, Mapping[str, float]]], rounds: int) -> list[str]:
    """The table of CPU time and memory, and what it was measured on."""
    rows = []
    for name, of in found.items():
        ours, theirs = of["kvcast"], of[AISimulate.name]
        used = [f"{one['cpu_s']:.2f} | {one['peak_mib']:,.0f} MiB" for one in (ours, theirs)]
        ratios = [f"{theirs[key] / ours[key]:.1f}" for key in ("cpu_s", "wall_s")]
        rows.append(f"| {' | '.join([name, *used, *ratios])} |")
    source = aisimulate.Recorded().told["source"]["name"]
    return [
        f"Whole processes from their start to the means, by turns, medians of {rounds} rounds"
        f" ({date.today().isoformat()}: {machine()}, other work beside; Python {platform.python_version()}, kvcast"
        f" {kvcast.__version__} ({kvcast.core}), {source}). Without the cache-off twin of `kvcast run`. The formula"
        " costs less than operator tables do, on both sides.",
        "",
        "| | kvcast, CPU-s | peak | AISimulate, CPU-s | peak | times the CPU | times the wall time |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aisimulate", metavar="PYTHON", help="of a venv with ai-dynamo-runtime")
    parser.add_argument("--export", action="store_true", help="record kvcast validate's set")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="measure, compare and write docs/peers.md")
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="runs of each simulator (default: 3)")
    parser.add_argument("--one", metavar="CASE", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    trace = Path(os.environ.get("KVCAST_DATA") or parser.error("KVCAST_DATA is not set"), "traces", "mooncake", TRACE)
    if args.one is not None:
        print(json.dumps(simulate_one(TRACES[args.one], trace)))
        return
    if not args.aisimulate:
        raise SystemExit(AISimulate.missing)
    peer = AISimulate(args.aisimulate)
    if args.export:
        export(peer, trace, HERE)
    if args.write:
        write_page(peer, trace, args.rounds, args.write)


if __name__ == "__main__":
    main()
