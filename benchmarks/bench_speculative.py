"""What speculative decoding gains at low load and costs at high load: the tables of docs/speculative.md.

    python benchmarks/bench_speculative.py

Closed loop: `batch` requests of 512 prompt and 256 output tokens run at any time, eight turns of them, on one H200 with
llama-3.1-8b. Acceptances are those of the columns, not measured ones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from kvcast import Scenario, WorkloadConfig
from kvcast.scenario.resolve import resolve
from sim.measure import metrics
from sim.scenario import EngineConfig, SpeculativeConfig
from sim.simulate import run
from sim.vllm.acceptance import expected_tokens
from workloads.columns import PrefixTree, Workload

BATCHES = (1, 8, 32, 128, 512)
PROMPT, OUTPUT, TURNS = 512, 256, 8
NONE = SpeculativeConfig()
VARIANTS = {
    "plain": NONE,
    "ngram, 0.4": SpeculativeConfig("ngram", 3, 0.4),
    "eagle, 0.6": SpeculativeConfig("eagle", 3, 0.6),
    "eagle, 0.8": SpeculativeConfig("eagle", 3, 0.8),
    "draft llama-3.2-1b, 0.8": SpeculativeConfig("draft", 3, 0.8, draft_model="llama-3.2-1b"),
}


def requests(n: int) -> Workload:
    root = PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16))
    lengths = (np.full(n, PROMPT, np.int64), np.full(n, OUTPUT, np.int64))
    return Workload(root, np.zeros(n), *lengths, np.zeros(n, np.int32), source="bench_speculative")


def measured(speculative: SpeculativeConfig, batch: int) -> tuple[float, float]:
    """(output tokens a second, mean TPOT in ms)"""
    given = Scenario(
        workload=WorkloadConfig(preset="chat", rate=1.0, duration_s=60.0),
        engine=EngineConfig(max_num_seqs=batch),
        speculative=speculative,
    )
    resolved = resolve(given)
    work = requests(batch * TURNS)
    rec = run(work, replace(resolved.params, caching=False), resolved.engine_step_time())
    tpot_s = metrics.per_request(rec, work)["tpot_s"]
    return work.output_tokens.sum() / rec.end_s, float(tpot_s.mean()) * 1e3


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| running | " + " | ".join(VARIANTS) + " |\n|---|" + "---|" * len(VARIANTS))
    for batch in BATCHES:
        cells, (plain, _) = [], measured(NONE, batch)
        for config in VARIANTS.values():
            rate, tpot_ms = measured(config, batch)
            cells.append(f"{rate:,.0f} tok/s, {tpot_ms:.2f} ms" + (f" ({rate / plain:.2f})" if config != NONE else ""))
        print(f"| {batch} | " + " | ".join(cells) + " |")
    for name, config in VARIANTS.items():
        found = config.resolved()
        if found is not None:
            print(f"{name}: {expected_tokens(found.acceptance):.2f} tokens a verification expected")


if __name__ == "__main__":
    main()
