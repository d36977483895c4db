"""Random cases: the per-block reference and the real simulator must agree in everything, to the last bit of every time.

    python -m tests.fuzz --ops 1000000 --seed 0      # exit 1 and a shrunk case as JSON at the first difference
    python -m tests.fuzz --engine sglang             # the same for SGLang's semantics (tests.fuzz_sglang)
    python -m tests.fuzz --engine hybrid             # for vLLM's with several KV groups (tests.fuzz_hybrid)
    python -m tests.fuzz --replay CASE.json          # one case again
    python -m tests.fuzz --faults                    # every planted fault must be noticed

Each random case is replayed by the simulator step by step and with fast-forward, half of the cases with steps of one
second and half with step times that depend on every argument. An operation is a look-up of a waiting request, a block
allocated, or one request scheduled in one step, as counted by the reference."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from kvcast.validation.engine_cases import UnitStep
from sim.fleet.router import ROUTERS
from sim.recording import STATUS, Recording
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from tests import fuzz_hybrid, fuzz_sglang
from tests import reference_hybrid as hybrid_reference
from tests import reference_sglang as sglang_reference
from tests import reference_vllm as reference
from tests.fuzz_cases import Case, random_case, shrink
from tests.fuzz_faults import FAULTS
from workloads.readers.engine_case import to_workload


class LinearTime:
    """Seconds that depend on every argument, in awkward fractions; scalar and vector forms do the same operations."""

    def step(self, chunks: Any, n_decode: int, sum_context: int, max_context: int, n_sampled: int) -> tuple[float, int]:
        seconds = 0.013 + 0.0037 * n_decode + 0.00029 * sum_context + 0.00017 * max_context + 0.0011 * n_sampled
        for new, cached in chunks:
            seconds = seconds + 0.0007 * new + 0.0000031 * (new * cached)
        return seconds, 0

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        i = np.arange(k)
        seconds = (
            0.013
            + 0.0037 * n_decode
            + 0.00029 * (sum_context + i * n_decode)
            + 0.00017 * (max_context + i)
            + 0.0011 * n_decode
        )
        return seconds, np.zeros(k, np.int8)


# ---- both sides, and what must be equal -----------------------------------------------------------------------------


def timed(case: Case) -> Case:
    """Arrivals of a timed case, in seconds: off the step grid, some in the middle of a step."""
    if not case.get("timed"):
        return case
    scale = 0.0373
    return case | {"requests": [r | {"arrival_step": r["arrival_step"] * scale} for r in case["requests"]]}


def run_reference(case: Case) -> Any:
    hybrid = hybrid_reference.Engine if "kv_cache_groups" in case["config"] else reference.Engine
    engine = sglang_reference.Engine if case["engine"] == "sglang" else hybrid
    return engine(timed(case), LinearTime() if case.get("timed") else UnitStep(), check=True).run()


def run_simulator(case: Case, fast_forward: bool) -> tuple[Recording, list[tuple] | None]:
    """What the simulator recorded, and its step log when it steps one by one."""
    workload, params = to_workload(timed(case))
    if any("asked" in r for r in case["requests"]):
        workload = replace(
            workload, max_tokens=np.array([r.get("asked", r["max_tokens"]) for r in case["requests"]], np.int64)
        )
    step_time = LinearTime() if case.get("timed") else UnitStep()
    if fast_forward:
        return simulate(workload, EngineParams(**params), step_time), None
    log: list[tuple] = []
    recording = simulate(workload, EngineParams(**params), step_time, fast_forward=False, step_log=log)
    return recording, log


def operations(engine: Any) -> int:
    if isinstance(engine, sglang_reference.Engine):
        return fuzz_sglang.operations(engine)
    return engine.lookups + engine.pool.allocated + sum(len(step.scheduled) for step in engine.steps)


def first_difference(case: Case) -> str:
    """Empty when reference, stepping and fast-forward agree; otherwise the first difference, in words."""
    return compare(case, run_reference(case))


def differs(case: Case) -> bool:
    """Whether there is a difference to be shrunk: a case that shrinking has made impossible is none."""
    found = first_difference(case)
    return bool(found) and "InputError" not in found


def compare(case: Case, engine: Any) -> str:
    """The first difference between what the reference did and two runs of the simulator, in words."""
    sglang = case["engine"] == "sglang"
    if sglang and engine.out_of_memory:
        return next(fuzz_sglang.does_not_stop(lambda ff=ff: run_simulator(case, ff) for ff in (False, True)), "")
    recordings = []
    for mode, fast_forward in (("step by step", False), ("fast-forward", True)):
        try:
            with fuzz_sglang.watched() as schedulers:
                recording, log = run_simulator(case, fast_forward)
        except Exception as error:  # a crash is a finding like any other, to be shrunk and shown
            return f"{mode}: {type(error).__name__}: {error}"
        if sglang:
            lines = fuzz_sglang.differences(engine, recording, log, schedulers[0].cache.rows(engine.page))
        else:
            lines = vllm_differences(engine, recording, log)
        for line in lines:
            return f"{mode}: {line}"
        recordings.append(recording)
    stepped, forwarded = recordings
    return next(unequal(stepped, forwarded), "")


def fleet_difference(case: Case, seed: int) -> str:
    """Stepping against fast-forward where the reference does not reach: several replicas, routers, closed loops, a
    horizon."""
    rng = random.Random(f"fleet {seed}/{case['case']}")
    workload, params = to_workload(timed(case))
    n = len(workload)
    after = np.array([rng.randrange(i) if i and rng.random() < 0.4 else -1 for i in range(n)], np.int64)
    workload = replace(workload, after=after, delay_s=np.array([rng.choice([0.0, 0.25, 3.0]) for _ in range(n)]))
    options: dict[str, Any] = {
        "replicas": rng.randint(1, 3),
        "router": rng.choice(list(ROUTERS)),
        "seed": seed,
        "horizon_s": rng.uniform(0.0, 20.0) if rng.random() < 0.3 else None,
    }
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


def vllm_differences(engine: reference.Engine, recording: Recording, log: list[tuple] | None) -> Iterator[str]:
    """Reference against one run of the simulator, in words."""
    yield from _step_lines(engine, log)
    yield from _request_lines(engine, recording)
    yield from _total_lines(engine, recording)


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
            "status": "completed",
            "hit_tokens": r.cached[0],
            "readmission_hit_tokens": sum(r.cached[1:]),
            "ceiling_replica_tokens": r.ceiling,
            "preemptions": r.preemptions,
            "admit_s": r.admit_s,
            "first_token_s": r.first_token_s,
            "finish_s": r.finish_s,
            "prefill_chunks": r.chunks,
            "recomputed_tokens": r.recomputed,
            "preempted_s": r.preempted_s,
            "first_step": r.token_steps[0],
            "last_step": r.token_steps[-1],
        }
        got = {name: getattr(rec, name)[row].item() for name in want} | {"status": status}
        if isinstance(engine, hybrid_reference.Engine):
            want["window_tokens"] = engine.lost_to_windows[r.id]
            got["window_tokens"] = int(rec.window_tokens[row])
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


def cases_until_noticed(fault: str, seed: int = 0, limit: int = 3000) -> int | None:
    """Number of random cases until the planted fault shows; None when it never did."""
    sglang = fault not in FAULTS
    target, name, faulty = fuzz_sglang.FAULTS[fault] if sglang else FAULTS[fault]
    for index in range(limit):
        case = fuzz_sglang.random_case(seed, index) if sglang else random_case(seed, index)
        with patch.object(target, name, faulty):
            try:
                engine = run_reference(case)
            except (AssertionError, KeyError, RuntimeError):  # the fault broke the reference's own bookkeeping
                return index + 1
        if compare(case, engine):
            return index + 1
    return None


# ---- the command ----------------------------------------------------------------------------------------------------


CASES = {"vllm": random_case, "sglang": fuzz_sglang.random_case, "hybrid": fuzz_hybrid.random_case}


def fuzz(
    ops: int, seed: int, policies: tuple[str, ...] = (), engine_name: str = "vllm"
) -> tuple[int, int, Case | None]:
    """(operations, cases, first differing case or None)."""
    make = CASES[engine_name]
    done = cases = index = 0
    while done < ops:
        case = make(seed, index, policies) if policies else make(seed, index)
        index += 1
        try:
            engine = run_reference(case)
        except reference.StuckError:
            continue  # a pool in which the real engine would wait for ever
        done, cases = done + operations(engine), cases + 1
        if compare(case, engine):
            return done, cases, case
    return done, cases, None


def _report(case: Case) -> int:
    small = shrink(case, differs)
    print(json.dumps(small))
    print(first_difference(small), file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="random cases against a per-block reference")
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=tuple(CASES), default="vllm")
    parser.add_argument(
        "--policies", default="", help="cache policies to draw from, separated by commas (default: lru; sglang: all)"
    )
    parser.add_argument("--faults", action="store_true", help="check that every planted fault is noticed")
    parser.add_argument("--replay", type=Path, metavar="CASE.json")
    args = parser.parse_args()
    if args.replay:
        found = first_difference(json.loads(args.replay.read_text()))
        print(found or "equal")
        return bool(found)
    if args.faults:
        noticed = {
            fault: cases_until_noticed(fault, args.seed)
            for fault in (fuzz_sglang.FAULTS if args.engine == "sglang" else FAULTS)
        }
        print(
            "\n".join(
                f"{fault}: {'noticed after ' + str(n) + ' cases' if n else 'NOT NOTICED'}"
                for fault, n in noticed.items()
            )
        )
        return None in noticed.values()
    done, cases, failing = fuzz(args.ops, args.seed, tuple(filter(None, args.policies.split(","))), args.engine)
    print(
        f"{done} operations in {cases} random cases: {'a difference' if failing else 'no difference'}", file=sys.stderr
    )
    return _report(failing) if failing else 0


if __name__ == "__main__":
    sys.exit(main())
