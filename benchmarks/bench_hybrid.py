"""What several KV groups cost and change: CPU per request by context length, and hits with and without them.

    python benchmarks/bench_hybrid.py --cost                 # CPU microseconds a request
    KVCAST_DATA=... python benchmarks/bench_hybrid.py        # hits on the recorded workloads (docs/hybrid.md)

The cost is that of the simulation loop alone: sessions of five turns, each 200 tokens longer, on one replica whose pool
holds 40 of them. The hits are those of the recorded workloads' requests, with steps of one second and the recorded
settings; layers half full and half with a window of 256 tokens, or all with one, in a pool of as many blocks.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.kv_groups import KvGroup
from kvcast.validation.engine_cases import UnitStep
from sim.scenario import EngineParams
from sim.simulate import run
from workloads.columns import Workload
from workloads.prefix_tree import from_pieces
from workloads.readers.engine_case import read_case, to_workload

FULL, WINDOW = KvGroup("full", 16), KvGroup("window", 16, 256)
MODELS = {
    "full": (),
    "full + window": (FULL, WINDOW),
    "5 windows + full": (KvGroup("window", 16, 1024),) * 5 + (FULL,),
    "window": (WINDOW,),
    "3 chunked + full": (KvGroup("chunked", 16, 8192),) * 3 + (FULL,),
    "3 states + full": (KvGroup("state", 784),) * 3 + (KvGroup("full", 784),),
}
RECORDED = {"shared": "v30_500_shared.json", "600 chat": "v32_600_chat.json", "salt 2000": "v35_2000_salt.json"}
TURNS = 5


def sessions(n: int, context: int, output: int = 100) -> Workload:
    """n requests in sessions of TURNS, each turn 200 tokens longer than the one before and its answer."""
    pieces, arrival, prompt = [], [], []
    for r in range(n):
        session, turn = divmod(r, TURNS)
        tokens = context + turn * (200 + output)
        pieces.append([(f"session {session}", 0, tokens), (f"answer {r}", 0, output)])
        arrival.append(session // 8 * 400.0 + turn * 400.0 / TURNS / 4 + session % 8 * 0.5)
        prompt.append(tokens)
    order = np.argsort(np.array(arrival), kind="stable")
    tree, leaf = from_pieces([pieces[i] for i in order], [None] * n)
    return Workload(
        tree=tree,
        arrival_s=np.array(arrival)[order],
        prompt_tokens=np.array(prompt, np.int64)[order],
        output_tokens=np.full(n, output, np.int64),
        leaf=leaf,
        source="bench_hybrid",
    )


class FastStep(UnitStep):
    """Ten milliseconds a step."""

    def step(self, *args: Any) -> tuple[float, int]:
        return 0.01, 0

    def decode_stretch(self, n: int, sum_context: int, max_context: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full(k, 0.01), np.zeros(k, np.int8)


def cost() -> None:
    print(f"{'layers':18} {'interval':>8}" + "".join(f"{c:>10,}" for c in (1000, 10_000, 100_000)) + "   us a request")
    for name, groups in MODELS.items():
        for interval in (0, -1) if any(g.kind in ("window", "state") for g in groups) else (0,):
            cells = []
            for context in (1000, 10_000, 100_000):
                n = 2000
                workload = sessions(n, context)
                blocks = 40 * sum(-(-context * 2 // g.block_size) for g in groups or (FULL,))
                params = EngineParams(
                    kv_blocks=blocks,
                    max_model_len=200_000,
                    block_size=groups[0].block_size if groups else 16,
                    kv_groups=groups,
                    prefix_cache_retention_interval=interval,
                )
                start = time.process_time()
                run(workload, params, FastStep())
                cells.append((time.process_time() - start) / n * 1e6)
            print(f"{name:18} {interval:8}" + "".join(f"{cell:10,.0f}" for cell in cells), flush=True)


def effect(folder: Path) -> None:
    print(f"{'workload':10} {'layers':14} {'interval':>8} {'hit %':>7} {'steps':>6} {'preempted':>9}")
    for title, file in RECORDED.items():
        case = read_case(folder / file)
        workload, plain = to_workload(case)
        for name in ("full", "full + window", "window"):
            for interval in (0, -1) if MODELS[name] else (0,):
                b = plain["block_size"]
                groups = tuple(replace_block(g, b) for g in MODELS[name])
                log: list[tuple] = []
                given = replace(EngineParams(**plain), kv_groups=groups, prefix_cache_retention_interval=interval)
                rec = run(workload, given, UnitStep(), step_log=log)
                share = rec.hit_tokens.sum() / workload.prompt_tokens.sum()
                print(f"{title:10} {name:14} {interval:8} {share:7.2%} {len(log):6} {rec.preemptions.sum():9}")


def replace_block(group: KvGroup, block_size: int) -> KvGroup:
    return group._replace(block_size=block_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    if args.cost:
        cost()
    else:
        effect(Path(os.environ["KVCAST_DATA"]) / "engine_cases_v2")


if __name__ == "__main__":
    main()
