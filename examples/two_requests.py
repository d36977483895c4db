"""Where two requests spend their lives: 20,000 tokens in and 50 out lives in prefill; 100 in and 2,000 out in decode.

$ python examples/two_requests.py
"""

from __future__ import annotations

import numpy as np

from kvcast import EngineParams, PrefixTree, Workload, load_step_time, run

REQUESTS = {"document question": (20_000, 50), "long answer": (100, 2_000)}
"""Label -> (prompt tokens, output tokens)."""


def lives() -> dict[str, dict[str, float]]:
    """Seconds each request spends queued, in prefill and in decode, served alone one after the other."""
    prompt, output = (np.array(column) for column in zip(*REQUESTS.values(), strict=True))
    nothing_shared = PrefixTree(parent=np.array([-1]), end=np.array([0]), layer=np.array([0]))
    workload = Workload(nothing_shared, np.array([0.0, 600.0]), prompt, output, leaf=np.zeros(2, np.int32))
    recording = run(workload, EngineParams(kv_blocks=20_000), load_step_time("h200-llama-3.1-8b-aic"), record_life=True)
    assert recording.life is not None
    out = {}
    for label, life in zip(REQUESTS, recording.life, strict=True):
        spent: dict[str, float] = {}
        for phase, start_s, end_s, _ in life:
            spent[phase] = spent.get(phase, 0.0) + end_s - start_s
        out[label] = spent
    return out


def main() -> None:
    for label, spent in lives().items():
        whole = sum(spent.values())
        phases = ", ".join(
            f"{phase} {seconds:.3f} s ({100 * seconds / whole:.0f} %)" for phase, seconds in spent.items()
        )
        print(f"{label}: {REQUESTS[label][0]:,} tokens in, {REQUESTS[label][1]:,} out: {phases}")


if __name__ == "__main__":
    main()
