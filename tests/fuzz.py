"""Random cases: the per-block reference and the real simulator must agree in everything, to the last bit of every time.

    python -m tests.fuzz --ops 1000000 --seed 0      # exit 1 and a shrunk case as JSON at the first difference
    python -m tests.fuzz --replay CASE.json          # one case again
    python -m tests.fuzz --faults                    # every planted fault must be noticed

Each random case is replayed by the simulator step by step and with fast-forward, half of the cases with steps of one second and half
with step times that depend on every argument. An operation is a look-up of a waiting request, a block allocated, or one
request scheduled in one step, as counted by the reference.
"""
from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from sim.recording import STATUS, Recording
from sim.router import ROUTERS
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from tests import reference_cache as cache
from tests import reference_vllm as reference
from workloads.readers.engine_case import to_workload

Case = dict[str, Any]
Params = Any


class LinearTime:
    """Seconds that depend on every argument, in awkward fractions; scalar and vector forms do the same operations."""

    def step(self, chunks: Any, n_decode: int, sum_context: int, max_context: int, n_sampled: int) -> tuple[float, int]:
        seconds = 0.013 + 0.0037 * n_decode + 0.00029 * sum_context + 0.00017 * max_context + 0.0011 * n_sampled
        for new, cached in chunks:
            seconds = seconds + 0.0007 * new + 0.0000031 * (new * cached)
        return seconds, 0

    def decode_stretch(self, n_decode: int, sum_context: int, max_context: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        i = np.arange(k)
        seconds = 0.013 + 0.0037 * n_decode + 0.00029 * (sum_context + i * n_decode) + 0.00017 * (max_context + i) + 0.0011 * n_decode
        return seconds, np.zeros(k, np.int8)


class UnitTime:
    """One second a step: equal clocks mean equal step numbers."""

    def step(self, chunks: Any, n_decode: int, sum_context: int, max_context: int, n_sampled: int) -> tuple[float, int]:
        return 1.0, 0

    def decode_stretch(self, n_decode: int, sum_context: int, max_context: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(k), np.zeros(k, np.int8)


# ---- random cases ---------------------------------------------------------------------------------------------------


def random_case(seed: int, index: int, policies: tuple[str, ...] = ("lru",)) -> Case:
    """One adversarial case: small pools, shared and repeated prompts, outputs asked for before they exist."""
    rng = random.Random(f"{seed}/{index}")
    block = rng.choice([1, 1, 2, 3, 4, 4, 5, 8, 8, 16, 16, rng.randint(1, 16)])
    n = rng.randint(2, 6) if rng.random() < 0.3 else rng.randint(4, 24)
    unit = rng.choice([1, block, block, 2 * block])  # prompts are often multiples of the block
    lengths = [max(1, unit * rng.randint(1, 6) + rng.choice([0, 0, 0, 1, -1, rng.randint(0, block)])) for _ in range(6)]
    requests: list[Case] = []
    for _ in range(n):
        requests.append({"segments": _segments(rng, requests, lengths), "max_tokens": rng.choice([1, 1, 2, block, rng.randint(1, 3 * block), rng.randint(1, 24)])})
    _set_arrivals(rng, requests)
    _set_identities(rng, requests)
    sizes = [sum(s[2] for s in r["segments"]) + r["max_tokens"] for r in requests]
    return {
        "schema": "kvoracle/1", "case": f"random {seed}/{index}", "engine": "vllm", "timed": rng.random() < 0.5,
        "config": _config(rng, block, sizes) | {"cache_policy": rng.choice(policies)}, "requests": requests,
    }  # fmt: skip


def _segments(rng: random.Random, earlier: list[Case], lengths: list[int]) -> list[list]:
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


def _set_arrivals(rng: random.Random, requests: list[Case]) -> None:
    """In id order, mostly; ids are given afterwards, so a prompt may ask for outputs of a request that comes later."""
    span = rng.choice([0, 3, 20, 60, 200])
    steps = [rng.choice([0, rng.randint(0, span), rng.randint(0, span)]) for _ in requests]
    for i, (r, step) in enumerate(zip(requests, steps if rng.random() < 0.3 else sorted(steps), strict=True)):
        r.update(id=i, arrival_step=step)


def _set_identities(rng: random.Random, requests: list[Case]) -> None:
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
        return _CONTEST | {
            "block_size": block, "num_blocks": largest + rng.randint(0, 2), "max_model_len": max(sizes),
            "long_prefill_token_threshold": threshold, "max_num_batched_tokens": threshold * rng.randint(2, 3) + rng.randint(0, 2),
        }  # fmt: skip
    slack = rng.choice([0, 0, 1, 2, largest, 3 * largest, 20 * largest])
    refuses = rng.random() < 0.08
    return {
        "block_size": block,
        "num_blocks": max(1, largest // 2 if refuses else largest + rng.randint(0, slack)),
        "max_model_len": sorted(sizes)[len(sizes) // 2] if rng.random() < 0.05 else max(sizes) + rng.choice([0, 0, 1000]),
        "max_num_batched_tokens": rng.choice([rng.randint(1, 6), rng.randint(4, 40), rng.randint(4, 40), 2048]),
        "max_num_seqs": rng.choice([rng.randint(1, 4), rng.randint(2, 10), 64]),
        "long_prefill_token_threshold": rng.choice([0, 0, rng.randint(1, 2 * block + 1)]),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.05, 0.1, 0.3]),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "enable_prefix_caching": rng.random() < 0.93,
        "max_loras": rng.choice([0, 1, 2]),
    }


_CONTEST: Case = {"max_num_seqs": 64, "policy": "priority", "scheduler_reserve_full_isl": False}

# ---- both sides, and what must be equal -----------------------------------------------------------------------------


def timed(case: Case) -> Case:
    """Arrivals of a timed case, in seconds: off the step grid, some in the middle of a step."""
    if not case.get("timed"):
        return case
    scale = 0.0373
    return case | {"requests": [r | {"arrival_step": r["arrival_step"] * scale} for r in case["requests"]]}


def run_reference(case: Case) -> reference.Engine:
    return reference.Engine(timed(case), LinearTime() if case.get("timed") else UnitTime(), check=True).run()


def run_simulator(case: Case, fast_forward: bool) -> tuple[Recording, list[tuple] | None]:
    """What the simulator recorded, and its step log when it steps one by one (scheduler calls that scheduled nothing left out)."""
    workload, params = to_workload(timed(case))
    step_time = LinearTime() if case.get("timed") else UnitTime()
    if fast_forward:
        return simulate(workload, EngineParams(**params), step_time), None
    log: list[tuple] = []
    recording = simulate(workload, EngineParams(**params), step_time, fast_forward=False, step_log=log)
    return recording, [row for row in log if row[2]]


def operations(engine: reference.Engine) -> int:
    return engine.lookups + engine.pool.allocated + sum(len(step.scheduled) for step in engine.steps)


def first_difference(case: Case) -> str:
    """Empty when reference, stepping and fast-forward agree; otherwise the first difference, in words."""
    return compare(case, run_reference(case))


def compare(case: Case, engine: reference.Engine) -> str:
    recordings = []
    for mode, fast_forward in (("step by step", False), ("fast-forward", True)):
        try:
            recording, log = run_simulator(case, fast_forward)
        except Exception as error:  # a crash is a finding like any other, to be shrunk and shown
            return f"{mode}: {type(error).__name__}: {error}"
        for line in (*_step_lines(engine, log), *_request_lines(engine, recording), *_total_lines(engine, recording)):
            return f"{mode}: {line}"
        recordings.append(recording)
    return next(unequal(*recordings), "")


def asks_early(case: Case, engine: reference.Engine) -> bool:
    """Whether a prompt holds outputs of a request that has not finished when the prompt is admitted."""
    asked = [(engine.requests[r["id"]], engine.requests[s[1]]) for r in case["requests"] for s in r["segments"] if s[0] == "o"]
    return any(a.admit_s < b.finish_s for a, b in asked if not a.rejected)


def fleet_difference(case: Case, seed: int, horizon: bool = False) -> str:
    """Stepping against fast-forward where the reference does not reach: several replicas, routers, closed loops, a horizon."""
    rng = random.Random(f"fleet {seed}/{case['case']}")
    workload, params = to_workload(timed(case))
    n = len(workload)
    after = np.array([rng.randrange(i) if i and rng.random() < 0.4 else -1 for i in range(n)], np.int64)
    workload = replace(workload, after=after, delay_s=np.array([rng.choice([0.0, 0.25, 3.0]) for _ in range(n)]))
    options = {
        "replicas": rng.randint(1, 3), "router": rng.choice(list(ROUTERS)), "seed": seed,
        "horizon_s": rng.uniform(0.0, 20.0) if horizon else None,
    }  # fmt: skip
    engine = EngineParams(**params, step_overhead_s=rng.choice([0.0, 0.0017]), frontend_s=rng.choice([0.0, 0.011]))
    stepped, forwarded = (simulate(workload, engine, LinearTime(), fast_forward=f, **options) for f in (False, True))
    return next((f"{options}: {line}" for line in unequal(stepped, forwarded)), "")


def unequal(stepped: Any, forwarded: Any, name: str = "recording") -> Iterator[str]:
    """Fields of two recordings that are not bit-identical."""
    if isinstance(stepped, np.ndarray):
        if not np.array_equal(stepped, forwarded, equal_nan=stepped.dtype.kind == "f"):
            yield f"{name}: stepping {stepped.tolist()}, fast-forward {forwarded.tolist()}"
    elif is_dataclass(stepped):
        for field in fields(stepped):
            yield from unequal(getattr(stepped, field.name), getattr(forwarded, field.name), f"{name}.{field.name}")
    elif isinstance(stepped, list) and len(stepped) == len(forwarded):
        for i, (a, b) in enumerate(zip(stepped, forwarded, strict=True)):
            yield from unequal(a, b, f"{name}[{i}]")
    elif stepped != forwarded:
        yield f"{name}: stepping {stepped!r}, fast-forward {forwarded!r}"


def _step_lines(engine: reference.Engine, log: list[tuple] | None) -> Iterator[str]:
    if log is None:
        return
    for step, (_, start_s, scheduled, preempted, *counts) in zip(engine.steps, log, strict=False):
        got = [start_s, [list(pair) for pair in scheduled], list(preempted), *counts]
        if got != step.row():
            yield f"step {step.start}: reference {step.row()}, simulator {got}"
            return
    if len(log) != len(engine.steps):
        yield f"reference has {len(engine.steps)} steps, simulator {len(log)}"


def _request_lines(engine: reference.Engine, rec: Recording) -> Iterator[str]:
    for row, r in enumerate(engine.requests):
        status = STATUS[int(rec.status[row])]
        if r.rejected:
            if not status.startswith("rejected"):
                yield f"request {row}: reference refuses it, simulator: {status}"
            continue
        want = {
            "status": "completed", "hit_tokens": r.cached[0], "readmission_hit_tokens": sum(r.cached[1:]),
            "ceiling_replica_tokens": r.ceiling, "preemptions": r.preemptions, "admit_s": r.admit_s,
            "first_token_s": r.first_token_s, "finish_s": r.finish_s, "prefill_chunks": r.chunks,
            "recomputed_tokens": r.recomputed, "preempted_s": r.preempted_s, "first_step": r.token_steps[0], "last_step": r.token_steps[-1],
        }  # fmt: skip
        if r.first_admission_cut_short:
            del want["prefill_chunks"]
        if not engine.caching:
            del want["ceiling_replica_tokens"]
        if r.preemptions > 1:
            del want["recomputed_tokens"]
        got = {name: getattr(rec, name)[row].item() for name in want} | {"status": status}
        for name in want:
            if got[name] != want[name]:
                yield f"request {row}: {name}: reference {want[name]!r}, simulator {got[name]!r}"


def _total_lines(engine: reference.Engine, rec: Recording) -> Iterator[str]:
    if rec.evicted_blocks != engine.pool.evicted:
        yield f"evicted blocks: reference {engine.pool.evicted}, simulator {rec.evicted_blocks}"
    gaps = sorted(zip(rec.gaps_request.tolist(), rec.gaps_from_step.tolist(), rec.gaps_to_step.tolist(), strict=True))
    if gaps != engine.gaps():
        yield f"gaps: reference {engine.gaps()}, simulator {gaps}"
    steps = rec.steps[0]
    columns = {
        "end_s": [s.end for s in engine.steps],
        "duration_s": [s.end - s.start for s in engine.steps],
        "n_decode": [s.n_decode for s in engine.steps],
        "prefill_tokens": [s.prefill_tokens for s in engine.steps],
    }
    for name, want in columns.items():
        if getattr(steps, name).tolist() != want:
            yield f"steps.{name}: reference {want}, simulator {getattr(steps, name).tolist()}"


# ---- shrinking ------------------------------------------------------------------------------------------------------


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
    for key, plain in _PLAIN_CONFIG.items():
        if case["config"].get(key, plain) != plain:
            yield case | {"config": case["config"] | {key: plain}}
    for key in ("block_size", "num_blocks"):
        for value in sorted({case["config"][key] // 2, case["config"][key] - 1} - {0}):
            yield case | {"config": case["config"] | {key: value}}
    for i, r in enumerate(requests):
        for smaller in _smaller_request(r):
            yield case | {"requests": [*requests[:i], smaller, *requests[i + 1 :]]}


_PLAIN_CONFIG: Case = {
    "policy": "fcfs", "long_prefill_token_threshold": 0, "watermark": 0.0, "max_loras": 0, "enable_prefix_caching": True,
    "scheduler_reserve_full_isl": True, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 100_000,
}  # fmt: skip


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


# ---- planted faults -------------------------------------------------------------------------------------------------


def _release_forward(pool: cache.FreeListPool, blocks: list[cache.Block]) -> None:
    _release(pool, blocks[::-1])


def _release_partial_last(pool: cache.FreeListPool, blocks: list[cache.Block]) -> None:
    for block in reversed(blocks):
        block.refs -= 1
        if block.refs == 0:
            pool.free[block] = None


def _enter_no_duplicates(pool: cache.FreeListPool, blocks: list[cache.Block], i: int, key: int, admission: int) -> None:
    if key not in pool.cached:
        _enter_block(pool, blocks, i, key, admission)


def _enter_computed(engine: reference.Engine, r: reference.Request, tokens: int) -> None:
    _enter(engine, r, min(tokens, r.computed))


def _requeue_last(engine: reference.Engine, r: reference.Request) -> None:
    engine.waiting.append(r)


def _lookup_whole(engine: reference.Engine, r: reference.Request) -> int:
    """One block too far, where the tokens still leave one to compute."""
    return min(r.known // engine.block_size, (r.known - 1) // engine.block_size + (r.known > engine.block_size))


def _returned_nothing(engine: reference.Engine, step: reference.Step, victim: reference.Request) -> int:
    del step.scheduled[victim.id]
    return 0


def _limit_also_alone(engine: reference.Engine) -> int:
    return engine.threshold or engine.max_model_len


def _needed_without_hits(engine: reference.Engine, tokens: int, hits: list[cache.Block]) -> int:
    return engine._blocks_for(tokens) - len(hits)


def _contexts_before(engine: reference.Engine, step: reference.Step) -> list[int]:
    return [r.computed - 1 for r in engine.running if r.id in step.scheduled and not r.prefilling]


def _contexts_with_victims(engine: reference.Engine, step: reference.Step) -> list[int]:
    return [*_contexts(engine, step), *[engine.requests[i].known for i in step.preempted]]


def _unsalted(hasher: cache.Hasher, tokens: list[int], block_size: int, salt: str | None, lora: str | None) -> list[int]:
    return _chain(hasher, tokens, block_size, None, lora)


def _untyped(hasher: cache.Hasher, tokens: list[int], block_size: int, salt: str | None, lora: str | None) -> list[int]:
    return _chain(hasher, tokens, block_size, salt or lora, None)


_release, _enter_block = cache.FreeListPool.release, cache.FreeListPool.enter
_enter, _contexts, _chain = reference.Engine._enter, reference.Engine._contexts, cache.Hasher.chain

FAULTS: dict[str, tuple[type, str, Any]] = {
    "blocks freed in forward order": (cache.FreeListPool, "release", _release_forward),
    "partial blocks freed to the tail": (cache.FreeListPool, "release", _release_partial_last),
    "newest copy of a hash used first": (cache.FreeListPool, "_copy", lambda pool, key: pool.cached[key][-1]),
    "duplicates not entered": (cache.FreeListPool, "enter", _enter_no_duplicates),
    "hashes entered after the step": (reference.Engine, "_enter", _enter_computed),
    "look-up may cover the whole prompt": (reference.Engine, "_lookup_limit", _lookup_whole),
    "no watermark": (reference.Engine, "_reserve", lambda engine: 0),
    "watermark on an idle engine": (reference.Engine, "_reserve", lambda engine: engine.watermark),
    "unreferenced hits not counted as needed": (reference.Engine, "_needed", _needed_without_hits),
    "preempted to the end of waiting": (reference.Engine, "_requeue", _requeue_last),
    "admission after a preemption": (reference.Engine, "_may_admit", lambda engine, step: True),
    "victim always the last running": (reference.Engine, "_victim", lambda engine: engine.running[-1]),
    "a victim's tokens do not return to the budget": (reference.Engine, "_returned", _returned_nothing),
    "threshold also for a lone request": (reference.Engine, "_chunk_limit", _limit_also_alone),
    "contexts without the token being computed": (reference.Engine, "_contexts", _contexts_before),
    "preempted contexts count in the step's time": (reference.Engine, "_contexts", _contexts_with_victims),
    "salt ignored": (cache.Hasher, "chain", _unsalted),
    "a LoRA named as a salt shares its blocks": (cache.Hasher, "chain", _untyped),
}
"""Planted in the reference, so that a change inside the simulator cannot disarm them."""


def cases_until_noticed(fault: str, seed: int = 0, limit: int = 3000) -> int | None:
    """Number of random cases until the planted fault shows; None when it never did."""
    target, name, faulty = FAULTS[fault]
    for index in range(limit):
        case = random_case(seed, index)
        with patch.object(target, name, faulty):
            try:
                engine = run_reference(case)
            except (AssertionError, KeyError, RuntimeError):  # the fault broke the reference's own bookkeeping
                return index + 1
        if compare(case, engine):
            return index + 1
    return None


# ---- the command ----------------------------------------------------------------------------------------------------


def fuzz(ops: int, seed: int, policies: tuple[str, ...] = ("lru",), early: bool = True) -> tuple[int, int, Case | None]:
    """(operations, cases, first differing case or None). early=False leaves out cases that ask for outputs too early."""
    done = cases = index = 0
    while done < ops:
        case = random_case(seed, index, policies)
        engine = run_reference(case)
        index += 1
        if not early and asks_early(case, engine):
            continue
        done, cases = done + operations(engine), cases + 1
        if compare(case, engine):
            return done, cases, case
    return done, cases, None


def _report(case: Case) -> int:
    small = shrink(case, lambda c: bool(first_difference(c)))
    print(json.dumps(small))
    print(first_difference(small), file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="random cases against a per-block reference")
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", default="lru", help="cache policies to draw from, separated by commas")
    parser.add_argument("--faults", action="store_true", help="check that every planted fault is noticed")
    parser.add_argument("--replay", type=Path, metavar="CASE.json")
    args = parser.parse_args()
    if args.replay:
        found = first_difference(json.loads(args.replay.read_text()))
        print(found or "equal")
        return bool(found)
    if args.faults:
        noticed = {fault: cases_until_noticed(fault, args.seed) for fault in FAULTS}
        print("\n".join(f"{fault}: {'noticed after ' + str(n) + ' cases' if n else 'NOT NOTICED'}" for fault, n in noticed.items()))
        return None in noticed.values()
    done, cases, failing = fuzz(args.ops, args.seed, tuple(args.policies.split(",")))
    print(f"{done} operations in {cases} random cases: {'a difference' if failing else 'no difference'}", file=sys.stderr)
    return _report(failing) if failing else 0


if __name__ == "__main__":
    sys.exit(main())
