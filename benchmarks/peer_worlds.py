"""Small random worlds for two simulators: settings and requests, by a number.

The one idea: prompts begin with some of a few shared prefixes, so that caches hit, and memory, batch and token budget
are drawn small, so that everything is short of something.

>>> case, requests = vllm(3)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvcast.validation.aisimulate import BLOCK, Case, Request

REQUESTS = 40
PREFIXES = 4


def vllm(seed: int) -> tuple[Case, list[Request]]:
    """Room for most of what runs: nobody, or hardly anybody, is preempted."""
    rng = np.random.default_rng(seed)
    case = Case(
        name=f"vllm-{seed}",
        kv_blocks=int(rng.choice([70, 90, 150, 1000])),
        max_num_seqs=int(rng.choice([4, 8])),
        max_num_batched_tokens=int(rng.choice([64, 256, 2048])),
        caching=bool(rng.random() < 0.75),
        replicas=int(rng.choice([1, 1, 3])),
    )
    return case, requests(case.name, rng)


def short(seed: int) -> tuple[Case, list[Request]]:
    """Too little memory for what runs: who is preempted, and when it is back."""
    rng = np.random.default_rng(1000 + seed)
    case = Case(
        name=f"short-{seed}",
        kv_blocks=int(rng.choice([40, 60, 70])),
        max_num_seqs=int(rng.choice([4, 8, 256])),
        max_num_batched_tokens=int(rng.choice([64, 256, 2048])),
        caching=bool(rng.random() < 0.5),
    )
    return case, requests(case.name, rng)


def sglang(seed: int) -> tuple[Case, list[Request]]:
    """Room for all that runs."""
    rng = np.random.default_rng(2000 + seed)
    block = int(rng.choice([1, BLOCK]))
    case = Case(
        name=f"sglang-{seed}",
        engine="sglang",
        kv_blocks=1000 * BLOCK // block,
        block_size=block,
        max_num_seqs=int(rng.choice([4, 8])),
        max_num_batched_tokens=int(rng.choice([64, 256, 2048])),
    )
    return case, requests(case.name, rng)


def requests(world: str, rng: np.random.Generator) -> list[Request]:
    """No two at the same time: which of them is first would be each simulator's own affair."""
    blocks = rng.integers(1, 12, PREFIXES)
    found, arrival_ms = [], 0
    for _ in range(REQUESTS):
        arrival_ms += int(rng.integers(1, 20))
        prompt, output, prefix = int(rng.integers(10, 400)), int(rng.integers(1, 60)), int(rng.integers(PREFIXES))
        shared = min(int(blocks[prefix]), prompt // BLOCK) if rng.random() < 0.7 else 0
        found.append(Request(world, arrival_ms, prompt, output, prefix if shared else 0, shared))
    return found


def answered(request: Request, row: dict) -> Request:
    """With what the peer said of it."""
    return replace(
        request,
        replica=row["replica"],
        first_token_ms=round(row["first_token_ms"], 6),
        last_token_ms=round(row["last_token_ms"], 6),
        hit_tokens=row["hit_tokens"],
        readmissions=row["readmissions"],
    )


SHORT_ANSWERS = Case("40,000 short answers, 8 replicas", kv_blocks=57_631, max_num_seqs=1024, replicas=8)


def short_answers() -> list[Request]:
    """Where a simulator spends its time on requests and not on steps: 40,000 prompts that begin with one of four long
    prefixes, and answers of a few tokens, on eight replicas."""
    rng = np.random.default_rng(3000)
    n, blocks = 40_000, 120
    arrival_ms = np.cumsum(rng.integers(1, 24, n)).tolist()
    own, outputs = rng.integers(20, 200, n).tolist(), rng.integers(4, 40, n).tolist()
    prefixes = rng.integers(0, PREFIXES, n).tolist()
    rows = zip(arrival_ms, own, outputs, prefixes, strict=True)
    return [Request("short answers", at, blocks * BLOCK + new, out, prefix, blocks) for at, new, out, prefix in rows]
