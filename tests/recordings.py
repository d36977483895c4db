"""Small hand-made Recordings for tests of what is computed from them."""

from __future__ import annotations

import numpy as np

from sim.recording import COMPLETED, Recording, Samples, Steps
from sim.scenario import Scenario
from workloads.columns import PrefixTree, Workload
from workloads.config import WorkloadConfig

ROOT_ONLY = PrefixTree(np.array([-1], np.int32), np.array([0], np.int64), np.array([0], np.int16))


def scenario(**sections: object) -> Scenario:
    return Scenario(workload=WorkloadConfig(), **sections)  # type: ignore[arg-type]


def workload(
    prompt: list[int], output: list[int], leaf: list[int] | None = None, tree: PrefixTree = ROOT_ONLY, **columns: object
) -> Workload:
    n = len(prompt)
    made = Workload(
        tree=tree,
        arrival_s=np.zeros(n),
        prompt_tokens=np.array(prompt, np.int64),
        output_tokens=np.array(output, np.int64),
        leaf=np.array(leaf if leaf is not None else [0] * n, np.int32),
        **columns,
    )  # type: ignore[arg-type]
    made.check()
    return made


def steps(
    end_s: np.ndarray,
    duration_s: np.ndarray | None = None,
    n_decode: np.ndarray | None = None,
    prefill_tokens: np.ndarray | None = None,
    coverage: np.ndarray | None = None,
) -> Steps:
    n = len(end_s)
    whole = np.diff(np.concatenate([[0.0], end_s]))
    return Steps(
        np.asarray(end_s, float),
        whole if duration_s is None else duration_s,
        np.zeros(n, np.int8) if coverage is None else coverage,
        np.zeros(n, np.int32) if n_decode is None else n_decode,
        np.zeros(n, np.int32) if prefill_tokens is None else prefill_tokens,
    )


def recording(arrival_s: object, all_steps: list[Steps], **columns: object) -> Recording:
    """Completed requests on replica 0 with no hits, unless `columns` says otherwise."""
    arrival = np.asarray(arrival_s, float)
    n = len(arrival)
    zeros = {
        name: np.zeros(n, np.int64)
        for name in (
            "hit_tokens",
            "ceiling_replica_tokens",
            "ceiling_fleet_tokens",
            "window_tokens",
            "readmission_hit_tokens",
            "preemptions",
            "recomputed_tokens",
        )
    }
    none = np.empty(0, np.int64)
    base: dict[str, object] = {
        "admit_s": arrival,
        "first_token_s": arrival,
        "finish_s": arrival,
        "status": np.full(n, COMPLETED, np.int8),
        "replica": np.zeros(n, np.int32),
        **zeros,
        "preempted_s": np.zeros(n),
        "prefill_chunks": np.ones(n, np.int64),
        "first_step": np.full(n, -1),
        "last_step": np.full(n, -1),
        "gaps_request": none,
        "gaps_from_step": none,
        "gaps_to_step": none,
        "samples": [Samples(np.empty(0), none, none, none.astype(np.int32), none.astype(np.int32)) for _ in all_steps],
        "end_s": max([float(s.end_s[-1]) for s in all_steps if len(s.end_s)], default=0.0),
        "kv_blocks": 100,
        "block_size": 16,
        "evicted_blocks": 0,
        "engine_semantics": "test",
    }
    base.update({k: np.asarray(v) if isinstance(v, list) and k != "samples" else v for k, v in columns.items()})
    return Recording(arrival_s=arrival, steps=all_steps, **base)  # type: ignore[arg-type]
