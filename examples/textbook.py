"""Three prompts and a prefix cache: how many tokens each has to compute, and what the block size does to it.

A = system prompt (2,000 tokens) + Python code (5,000); B = system prompt + JavaScript code (3,000); C = A's whole
prompt + a question (150). They arrive one after another. An engine caches whole blocks only, so say the block size
beside every hit rate.

    $ python examples/textbook.py
"""

from __future__ import annotations

import numpy as np

from kvcast import EngineParams, Workload, from_pieces, load_step_time, run

SYSTEM, PYTHON, JAVASCRIPT, QUESTION = (
    ("system", 0, 2000),
    ("python", 0, 5000),
    ("javascript", 0, 3000),
    ("question", 0, 150),
)
PROMPTS = {"A": [SYSTEM, PYTHON], "B": [SYSTEM, JAVASCRIPT], "C": [SYSTEM, PYTHON, QUESTION]}


def textbook_workload(gap_s: float = 60.0) -> Workload:
    """The three prompts, `gap_s` apart, one output token each."""
    tree, leaf = from_pieces(list(PROMPTS.values()))
    return Workload(
        tree=tree,
        leaf=leaf,
        arrival_s=np.arange(3) * gap_s,
        output_tokens=np.ones(3, np.int64),
        prompt_tokens=np.array([sum(length for _, _, length in pieces) for pieces in PROMPTS.values()]),
    )


def new_tokens(block_size: int) -> list[int]:
    """Prompt tokens A, B and C have to compute."""
    workload = textbook_workload()
    params = EngineParams(kv_blocks=1_000_000 // block_size, block_size=block_size)
    recording = run(workload, params, load_step_time("h200-llama-3.1-8b-aic"))
    return (workload.prompt_tokens - recording.hit_tokens).astype(int).tolist()


def main() -> None:
    print("block size" + "".join(f"{name:>8}" for name in PROMPTS) + "   new prompt tokens")
    for block_size in (1, 16, 128):
        print(f"{block_size:10d}" + "".join(f"{n:8,d}" for n in new_tokens(block_size)))


if __name__ == "__main__":
    main()
