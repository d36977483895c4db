"""Random cases with several KV groups for tests.fuzz: windows, chunks and states beside full attention, or alone."""

from __future__ import annotations

import random
from math import lcm

from tests.fuzz_cases import Case
from tests.fuzz_cases import random_case as plain_case


def random_case(seed: int, index: int) -> Case:
    """A case of tests.fuzz_cases, served by a model whose layers keep different things."""
    case = plain_case(seed, index)
    rng = random.Random(f"hybrid {seed}/{index}")
    config = case["config"]
    groups = random_groups(rng, config["block_size"])
    sizes = [sum(s[2] for s in r["segments"]) + r["max_tokens"] for r in case["requests"]]
    least = sum(-(-max(sizes) // g["block_size"]) + 2 for g in groups)
    config |= {
        "cache_policy": "lru",
        "kv_cache_groups": groups,
        "prefix_cache_retention_interval": rng.choice([0, 0, None, interval(rng, groups)]),
        "num_blocks": max(config["num_blocks"], least + rng.randint(0, 3) * rng.choice([0, 1, least])),
    }
    if rng.random() < 0.3:  # less than a whole request in every group: windows let it through
        config["num_blocks"] = max(2, least - rng.randint(1, max(1, least // 2)))
    if any(g["type"] == "mamba" for g in groups):
        config["mamba_cache_mode"] = "align"
    return case | {"case": f"random hybrid {seed}/{index}", "config": config}


def interval(rng: random.Random, groups: list[Case]) -> int:
    """Tokens between kept ends; states are kept at whole blocks only."""
    aligned = lcm(*(g["block_size"] for g in groups))
    return aligned * rng.randint(1, 4) if groups[-1]["type"] == "mamba" or rng.random() < 0.7 else rng.randint(1, 40)


def random_groups(rng: random.Random, b: int) -> list[Case]:
    """Groups as vLLM's planner makes them: full first, all of a kind alike, blocks of one size or two."""
    shape = rng.choice(["swa", "hyb", "hyb", "hyb", "two", "cla", "mam", "full"])
    full = {"type": "full", "block_size": b * rng.choice([1, 1, 1, 2])}
    window = {"type": "sliding_window", "block_size": b, "sliding_window": rng.randint(2, 6 * b + 2)}
    if full["block_size"] == b and rng.random() < 0.2:
        window["block_size"] = 2 * b
    if shape == "swa":
        return [window]
    if shape == "full":
        return [full] * 2
    if shape == "cla":
        chunk = {"type": "chunked_local", "block_size": b, "attention_chunk_size": b * rng.randint(1, 6)}
        return [full | {"block_size": b}] * rng.randint(0, 1) + [chunk] * rng.choice([1, 1, 3])
    if shape == "mam":
        return [full | {"block_size": b}] + [{"type": "mamba", "block_size": b}] * rng.randint(1, 3)
    if shape == "two":
        other = window | {"sliding_window": rng.randint(2, 6 * b + 2)}
        return [*([full] * rng.randint(0, 1)), window, other]
    return [full] * rng.randint(1, 2) + [window] * rng.choice([1, 1, 2, 5])
