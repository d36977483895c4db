"""The best ratio of prefill to decode replicas against theory: python benchmarks/bench_disaggregation.py [--markdown]

Eight H200 with Llama 3.1 8B, 32 sequences at once on each, requests of one size that share nothing, as many users as
keep both pools busy. For each size every split of the eight is run, all of them in one pool too.

Theory is a balance: P prefill replicas serve at most P / (seconds of a prompt) requests a second, D decode replicas
D x 32 / (steps of an answer x seconds of a step of 32), or what their NICs read if that is less, and the fleet the
smaller of the two.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from workloads.columns import PrefixTree, Workload  # noqa: E402

if TYPE_CHECKING:
    from kvcast.api import Prepared

GPUS, SEQS = 8, 32
SIZES = ((8000, 60), (4000, 120), (4000, 250), (2000, 250), (1000, 500))
"""(prompt, output) tokens."""
SETTLED = (0.3, 0.9)
"""Shares of the requests between whose ends a rate is counted: both pools are full."""


def users(requests: int, prompt: int, output: int, at_once: int) -> Workload:
    """A closed loop of `at_once` users, each of whom asks again at once."""
    root = PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16))
    n, none = requests, np.zeros(requests, np.int32)
    same = Workload(root, np.zeros(n), np.full(n, prompt), np.full(n, output), none, session_id=np.arange(n))
    return replace(same, concurrency=at_once)


def prepared(prefill_replicas: int, prompt: int, output: int, **more: Any) -> Prepared:
    """The fleet, `prefill_replicas` of which only prefill, and its users."""
    from kvcast import api, scenario_from_doc

    at_once = 2 * GPUS * SEQS
    doc = {
        "workload": {"preset": "chat", "requests": 10},  # takes the place of these requests
        "run": {"warmup_s": 0},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"gpu": "h200"},
        "engine": {"max_num_seqs": SEQS},
        "cluster": {"replicas": GPUS, "router": "least-loaded"},
        "disaggregation": {"prefill_replicas": prefill_replicas, "decode_chosen": "after-prefill", **more},
    }
    made = api.prepare(scenario_from_doc(doc, "study"))
    return replace(made, workload=users(4 * at_once, prompt, output, at_once))


def simulated(prefill_replicas: int, prompt: int, output: int, **more: Any) -> dict[str, float]:
    """Requests a second once both pools are full, and the time per output token."""
    from kvcast import api

    rec = api.record(prepared(prefill_replicas, prompt, output, **more))
    ends = np.sort(rec.finish_s)
    from_, to = (int(share * len(ends)) for share in SETTLED)
    tpot_ms = 1e3 * (rec.finish_s - rec.first_token_s) / (output - 1)
    return {
        "requests_per_s": (to - from_) / float(ends[to] - ends[from_]),
        "tpot_ms": float(tpot_ms.mean()),
        "tpot_p99_ms": float(np.percentile(tpot_ms, 99)),
    }


def theory(prompt: int, output: int) -> tuple[float, float, float]:
    """Requests a second of a prefill replica, of one that decodes, and of a decode replica's NIC."""
    from kvcast.scenario.disaggregation import pools_of

    made = prepared(1, prompt, output)
    pools = pools_of(made.resolved)
    assert pools is not None
    prefill_s, left, chunks, prompts = 0.0, pools.params.max_num_batched_tokens, [], 64
    for _ in range(prompts):  # as many prompts as it takes fill every step
        done = 0
        while done < prompt:
            new = min(prompt - done, left)
            chunks.append((new, done))
            done, left = done + new, left - new
            if not left:
                prefill_s += pools.step_time.step(chunks, 0, 0, 0, 1)[0]
                left, chunks = pools.params.max_num_batched_tokens, []
    prefill_s += pools.step_time.step(chunks, 0, 0, 0, 1)[0] if chunks else 0.0
    context = prompt + output // 2
    step_s = made.step_time.step([], SEQS, SEQS * context, context, SEQS)[0]
    blocks = -(-prompt // made.resolved.params.block_size)
    link = pools.link
    read_s = blocks * (link.layers * link.descriptor_s + link.block_bytes / link.decode_bytes_s)
    decode_per_s = SEQS / ((output + 1) * step_s)  # its place is free a step after the last token
    return prompts / prefill_s, decode_per_s, 1 / read_s


def study(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[dict[str, Any]]:
    """A row for each size: what theory and the simulation say of every split."""
    rows = []
    for prompt, output in sizes:
        prefill_per_s, batch_per_s, nic_per_s = theory(prompt, output)
        decode_per_s = min(batch_per_s, nic_per_s)
        splits = range(1, GPUS)
        found = {p: simulated(p, prompt, output) for p in splits}
        said = {p: min(p * prefill_per_s, (GPUS - p) * decode_per_s) for p in splits}
        rows.append(
            {
                "prompt": prompt,
                "output": output,
                "balance": GPUS * decode_per_s / (prefill_per_s + decode_per_s),
                "by_nic": nic_per_s < batch_per_s,
                "theory": said,
                "simulated": found,
                "whole": simulated(0, prompt, output),
            }
        )
    return rows


def best(rates: dict[int, float]) -> int:
    return max(rates, key=lambda split: rates[split])


HEADER = (
    "prompt:output",
    f"balance, of {GPUS}",
    "best split: theory, simulated",
    *(f"{p}:{GPUS - p}" for p in range(1, GPUS)),
    "one pool",
    "TPOT mean (p99), ms: best split",
    "one pool",
)


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Rows of a table; of every split requests a second, and what theory says."""
    lines = []
    for row in rows:
        rates = {p: one["requests_per_s"] for p, one in row["simulated"].items()}
        top, whole = row["simulated"][best(rates)], row["whole"]
        cells = [
            f"{row['prompt']:,}:{row['output']}",
            f"{row['balance']:.1f}{' (NIC)' if row['by_nic'] else ''}",
            f"{best(row['theory'])}, {best(rates)}",
            *(f"{rates[p]:.1f} ({row['theory'][p]:.1f})" for p in rates),
            f"{whole['requests_per_s']:.1f}",
            *(f"{one['tpot_ms']:.1f} ({one['tpot_p99_ms']:.1f})" for one in (top, whole)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


MEASURED = {"8 prefill + 2 x TP4 decode": "2.36 and 2.78 s (p95 3.38), TPOT 5.7 ms", "16 x TP1": "6.7 s (p95 10.2)"}
"""End-to-end seconds of gpt-oss-120b on 16 H200 in llm-d's guide (2026): 5,000 tokens in, 250 out, 45 a second."""


def published(block_size: int, requests: int = 2700) -> dict[str, dict[str, float]]:
    """The guide's two fleets, simulated: seconds and milliseconds of the requests after the first quarter."""
    from kvcast import api, scenario_from_doc

    root = PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16))
    n, none = requests, np.zeros(requests, np.int32)
    work = Workload(root, np.arange(n) / 45, np.full(n, 5000), np.full(n, 250), none)
    apart = {"prefill_replicas": 8, "prefill_tensor_parallel": 1}
    found = {}
    for name, width, replicas, pools in zip(MEASURED, (4, 1), (10, 16), (apart, {}), strict=True):
        doc = {
            "workload": {"preset": "chat", "requests": 10},  # takes the place of these requests
            "run": {"warmup_s": 0},
            "model": {"name": "gpt-oss-120b"},
            "hardware": {"gpu": "h200", "tensor_parallel": width},
            "engine": {"block_size": block_size, "disable_hybrid_kv_cache_manager": True},
            "cluster": {"replicas": replicas, "router": "least-loaded"},
            "disaggregation": pools,
        }
        rec = api.record(replace(api.prepare(scenario_from_doc(doc, "study")), workload=work))
        late = slice(n // 4, None)
        e2e_s = (rec.finish_s - rec.arrival_s)[late]
        found[name] = {
            "e2e_s": float(e2e_s.mean()),
            "e2e_p95_s": float(np.percentile(e2e_s, 95)),
            "ttft_s": float((rec.first_token_s - rec.arrival_s)[late].mean()),
            "tpot_ms": float(1e3 * (rec.finish_s - rec.first_token_s)[late].mean() / 249),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=int, nargs="*", metavar="BLOCK_SIZE", help="the guide's fleets instead")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="the first so many")
    args = parser.parse_args()
    for block_size in args.published or ():
        for name, row in published(block_size).items():
            print(
                f"blocks of {block_size}: {name}: E2E {row['e2e_s']:.2f} s (p95 {row['e2e_p95_s']:.2f}),"
                f" TTFT {row['ttft_s']:.2f} s, TPOT {row['tpot_ms']:.1f} ms; measured E2E {MEASURED[name]}"
            )
    if args.published:
        return
    print(f"| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|")
    for size in SIZES[: args.sizes]:
        print(as_markdown(study((size,))), flush=True)


if __name__ == "__main__":
    main()
