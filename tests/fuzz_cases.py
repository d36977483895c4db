"""Random cases for tests.fuzz, and the shrinking of one that fails.

A case is a dict of schema kvoracle/1 without `expected`, plus `timed`: whether steps take one second or an uneven time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Case = dict[str, Any]


def random_case(seed: int, index: int, policies: tuple[str, ...] = ("lru",)) -> Case:
    """One adversarial case: small pools, shared and repeated prompts, outputs asked for before they exist."""
    rng = random.Random(f"{seed}/{index}")
    block = rng.choice([1, 1, 2, 3, 4, 4, 5, 8, 8, 16, 16, rng.randint(1, 16)])
    n = rng.randint(2, 6) if rng.random() < 0.3 else rng.randint(4, 24)
    unit = rng.choice([1, block, block, 2 * block])  # prompts are often multiples of the block
    lengths = [max(1, unit * rng.randint(1, 6) + rng.choice([0, 0, 0, 1, -1, rng.randint(0, block)])) for _ in range(6)]
    requests: list[Case] = []
    for _ in range(n):
        requests.append(
            {
                "segments": segments(rng, requests, lengths),
                "max_tokens": rng.choice([1, 1, 2, block, rng.randint(1, 3 * block), rng.randint(1, 24)]),
            }
        )
    if rng.random() < 0.04:  # longer than the simulator plans ahead
        rng.choice(requests)["max_tokens"] = rng.randint(500, 1400)
    set_arrivals(rng, requests)
    set_identities(rng, requests)
    sizes = [sum(s[2] for s in r["segments"]) + r["max_tokens"] for r in requests]
    timed = rng.random() < 0.5
    config = _config(rng, block, sizes) | {"cache_policy": rng.choice(policies)}
    return {
        "schema": "kvoracle/1",
        "case": f"random {seed}/{index}",
        "engine": "vllm",
        "timed": timed,
        "config": config | _options(random.Random(f"options {seed}/{index}"), config["max_num_seqs"]),
        "requests": requests,
    }


def segments(rng: random.Random, earlier: list[Case], lengths: list[int]) -> list[list]:
    """A prompt: shared texts, a repeat, or another request's conversation continued (part of its output, or all)."""
    own = ["s", 1000 + len(earlier), rng.choice(lengths)]
    kind = rng.random()
    if earlier and kind < 0.15:
        return [list(s) for s in rng.choice(earlier)["segments"]]
    if earlier and kind < 0.45:
        r = rng.randrange(len(earlier))
        length = rng.choice([earlier[r]["max_tokens"], rng.randint(1, earlier[r]["max_tokens"])])
        tail = rng.choice([[], [own], [["s", 5, rng.choice(lengths)]]])
        return [*([list(s) for s in earlier[r]["segments"]]), ["o", r, length], *tail]
    shared = [["s", rng.randint(1, 3), rng.choice(lengths)] for _ in range(rng.randint(1, 2))]
    return shared if kind < 0.6 else [*shared, own]


def set_arrivals(rng: random.Random, requests: list[Case]) -> None:
    """In id order, mostly; ids are given afterwards, so a prompt may ask for outputs of a request that comes later."""
    span = rng.choice([0, 3, 20, 60, 200])
    steps = [rng.choice([0, rng.randint(0, span), rng.randint(0, span)]) for _ in requests]
    for i, (r, step) in enumerate(zip(requests, steps if rng.random() < 0.3 else sorted(steps), strict=True)):
        r.update(id=i, arrival_step=step)


def set_identities(rng: random.Random, requests: list[Case]) -> None:
    salts, loras = rng.random() < 0.2, rng.random() < 0.25
    priorities = rng.choice([1, 2, 4])
    for r in requests:
        r["priority"] = rng.randrange(priorities)
        if salts and rng.random() < 0.7:
            r["cache_salt"] = rng.choice(["a", "b"])
        if loras and rng.random() < 0.7:
            r["lora"] = rng.choice(["a", "b", "c"])


def _config(rng: random.Random, block: int, sizes: list[int]) -> Case:
    largest = max(-(-(size - 1) // block) for size in sizes)
    if rng.random() < 0.15:  # several prefills at once that compete for blocks and for the budget
        threshold = rng.randint(2, 2 * block + 2)
        return (
            _CONTEST
            | _modes(rng)
            | {
                "block_size": block,
                "num_blocks": largest + rng.randint(0, 2),
                "max_model_len": max(sizes),
                "long_prefill_token_threshold": threshold,
                "max_num_batched_tokens": threshold * rng.randint(2, 3) + rng.randint(0, 2),
            }
        )
    slack = rng.choice([0, 0, 1, 2, largest, 3 * largest, 20 * largest])
    refuses = rng.random() < 0.08
    return {
        "block_size": block,
        "num_blocks": max(1, largest // 2 if refuses else largest + rng.randint(0, slack)),
        "max_model_len": (
            sorted(sizes)[len(sizes) // 2] if rng.random() < 0.05 else max(sizes) + rng.choice([0, 0, 1000])
        ),
        "max_num_batched_tokens": rng.choice([rng.randint(1, 6), rng.randint(4, 40), rng.randint(4, 40), 2048]),
        "max_num_seqs": rng.choice([rng.randint(1, 4), rng.randint(2, 10), 64]),
        "long_prefill_token_threshold": rng.choice([0, 0, rng.randint(1, 2 * block + 1)]),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.05, 0.1, 0.3]),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "enable_prefix_caching": rng.random() < 0.93,
        "max_loras": rng.choice([0, 1, 2]),
        **_modes(rng),
    }


def _options(rng: random.Random, most: int) -> Case:
    """Options that few set, from a stream of their own: the cases are otherwise those of before they were known."""
    return {
        "long_prefill_token_threshold_adaptive": rng.random() < 0.3,
        "max_num_active_seqs": rng.choice([None, None, None, 1, min(2, most)]),
        "prefill_schedule_interval": rng.choice([1, 1, 1, 1, 2, 3, 5]),
    }


def _modes(rng: random.Random) -> Case:
    return {
        "async_scheduling": rng.random() < 0.4,
        "calls_ahead": rng.random() < 0.5,
        "preemption_victim": "lcf" if rng.random() < 0.25 else "fcfs",
    }


_CONTEST: Case = {"max_num_seqs": 64, "policy": "priority", "scheduler_reserve_full_isl": False}


# ---- shrinking -------------------------------------------------------------------------------------------------------


def shrink(case: Case, fails: Callable[[Case], bool], attempts: int = 3000) -> Case:
    """The smallest case found that still fails: greedy, each accepted change starts the list of changes again."""
    budget = attempts
    improved = True
    while improved and budget > 0:
        improved = False
        for candidate in _smaller(case):
            budget -= 1
            if fails(candidate):
                case, improved = candidate, True
                break
            if budget <= 0:
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    requests = case["requests"]
    for size in (len(requests) // 2, len(requests) // 4, 1):
        for start in range(0, len(requests), size) if 0 < size < len(requests) else ():
            yield case | {"requests": _without(requests, set(range(start, start + size)))}
    if case.get("timed"):
        yield case | {"timed": False}
    sglang = case["engine"] == "sglang"
    for key, plain in (PLAIN_SGLANG if sglang else PLAIN_VLLM).items():
        if case["config"].get(key, plain) != plain:
            yield case | {"config": case["config"] | {key: plain}}
    for key in ("page_size", "capacity_tokens") if sglang else ("block_size", "num_blocks"):
        for value in sorted({case["config"][key] // 2, case["config"][key] - 1} - {0}):
            yield case | {"config": case["config"] | {key: value}}
    for i, r in enumerate(requests):
        for smaller in _smaller_request(r):
            yield case | {"requests": [*requests[:i], smaller, *requests[i + 1 :]]}


PLAIN_VLLM: Case = {
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
    "max_loras": 0,
    "enable_prefix_caching": True,
    "async_scheduling": False,
    "calls_ahead": False,
    "preemption_victim": "fcfs",
    "long_prefill_token_threshold_adaptive": False,
    "max_num_active_seqs": None,
    "prefill_schedule_interval": 1,
    "scheduler_reserve_full_isl": True,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 100_000,
}
PLAIN_SGLANG: Case = {
    "eviction_policy": "lru",
    "schedule_policy": "fcfs",
    "max_context": 100_000,
    "chunked_prefill_size": 2048,
    "max_prefill_tokens": 16384,
    "max_running": 64,
    "priority_scheduling": False,
    "retraction_policy": "length",
    "conservativeness": 1.0,
    "ratio_decay_steps": 600,
    "retract_decode_steps": 20,
    "clip_max_new_tokens": 4096,
    "disable_cache": False,
    "use_priority": True,
    "overlap": False,
    "calls_ahead": False,
    "mixed_chunk": False,
    "recv_interval": 1,
}


def _smaller_request(r: Case) -> Iterator[Case]:
    for key in ("cache_salt", "lora"):
        if key in r:
            yield {k: v for k, v in r.items() if k != key}
    if r["priority"]:
        yield r | {"priority": 0}
    for value in sorted({0, r["arrival_step"] // 2, r["arrival_step"] - 1}):
        if 0 <= value < r["arrival_step"]:
            yield r | {"arrival_step": value}
    for value in sorted({1, r["max_tokens"] // 2, r["max_tokens"] - 1}):
        if 1 <= value < r["max_tokens"]:
            yield r | {"max_tokens": value}
    segments = r["segments"]
    for j, (kind, which, length) in enumerate(segments):
        if len(segments) > 1:
            yield r | {"segments": segments[:j] + segments[j + 1 :]}
        for value in sorted({1, length // 2, length - 1}):
            if 1 <= value < length:
                yield r | {"segments": [*segments[:j], [kind, which, value], *segments[j + 1 :]]}


def _without(requests: list[Case], dropped: set[int]) -> list[Case]:
    """Requests renumbered; output of a dropped request becomes a plain text of its own."""
    kept = [r for r in requests if r["id"] not in dropped]
    new = {r["id"]: i for i, r in enumerate(kept)}

    def segment(s: list) -> list:
        return s if s[0] == "s" else ["o", new[s[1]], s[2]] if s[1] in new else ["s", 5000 + s[1], s[2]]

    return [r | {"id": new[r["id"]], "segments": [segment(s) for s in r["segments"]]} for r in kept]
