"""Times whole engine steps of chosen shapes: prefill chunks over cached prefixes and decodes of unequal contexts in one
step.

The one idea: the engine's state is set up as if it had come to that step, with random token ids over a random KV cache,
so the real scheduler, batch and forward pass run. Shapes are drawn off the calibration grid: they test what a
simulation interpolates.

    python -m calibrate.gpu.mixes --model tiny --device cpu --out recording
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrate.gpu.engine import Engine, build
from calibrate.gpu.serving import Limits, Request, Scheduler
from calibrate.models import resolve_model
from workloads.errors import InputError

Mix = dict[str, Any]
"""{"chunks": [[new, cached], ...], "contexts": [context of each decode, the token computed now included]}"""
RUNS = 7


def example_mixes(count: int, kv_tokens: int, max_tokens: int, max_seqs: int, seed: int = 0) -> list[Mix]:
    """Shapes in turn: decodes alone, prefill alone, both; odd sizes, within the cache and the token budget."""
    rng = np.random.default_rng(seed)
    mixes: list[Mix] = []
    while len(mixes) < count:
        kind = len(mixes) % 3
        chunks = (
            []
            if kind == 0
            else [
                [int(rng.integers(5, max_tokens // 2)), int(rng.integers(0, 2) * rng.integers(1, kv_tokens // 8))]
                for _ in range(int(rng.integers(1, 4)))
            ]
        )
        contexts = [] if kind == 1 else _contexts(rng, int(rng.integers(1, max_seqs)), kv_tokens)
        new = sum(n for n, _ in chunks) + len(contexts)
        kv = sum(n + c for n, c in chunks) + sum(contexts)
        if new <= max_tokens and kv < 0.9 * kv_tokens and len(chunks) + len(contexts) <= max_seqs:
            mixes.append({"chunks": chunks, "contexts": contexts})
    return mixes


def _contexts(rng: np.random.Generator, count: int, kv_tokens: int) -> list[int]:
    """Unequal contexts: lognormal around a random median."""
    median = np.exp(rng.uniform(np.log(20), np.log(kv_tokens / 4 / count + 21)))
    return np.clip(rng.lognormal(np.log(median), 0.8, count), 2, kv_tokens // 2).astype(int).tolist()


def shape_of(mix: Mix) -> dict[str, Any]:
    """What a StepTime takes, by name; every chunk ends its prompt, so every sequence samples a token."""
    contexts = mix["contexts"]
    return {
        "chunks": mix["chunks"],
        "n_decode": len(contexts),
        "sum_context": sum(contexts),
        "max_context": max(contexts, default=0),
        "sampled": len(contexts) + len(mix["chunks"]),
    }


def time_mix(engine: Engine, mix: Mix, clock: Callable[[], float], runs: int = RUNS) -> list[float]:
    """Seconds of each of `runs` steps of this shape."""
    engine.limits = replace(engine.limits, caching=False)
    samples = []
    for _ in range(runs):
        engine.scheduler = placed(engine.limits, mix, engine.decoder.model.vocab)
        start = clock()
        engine.step()
        samples.append(clock() - start)
    engine.scheduler = Scheduler(engine.limits)
    return samples


def placed(limits: Limits, mix: Mix, vocab: int, seed: int = 0) -> Scheduler:
    """A scheduler whose next step has this shape; every request has token ids of its own, drawn from the vocabulary."""
    scheduler, rng = Scheduler(limits), np.random.default_rng(seed)
    rows = [(cached + new, cached, False) for new, cached in mix["chunks"]] + [
        (context, context - 1, True) for context in mix["contexts"]
    ]
    for i, (known, computed, decoding) in enumerate(rows):
        request = Request(i, rng.integers(0, vocab, known).tolist(), 2, computed=computed, decoding=decoding)
        request.blocks = scheduler.pool.take(-(-computed // limits.block_size))
        scheduler.running.append(request)
    return scheduler


def record(
    engine: Engine,
    mixes: Sequence[Mix],
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
    stop_s: float = float("inf"),
) -> int:
    """Times the mixes until the clock says stop_s; appends them to FOLDER/iterations.jsonl. Returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    done = 0
    with (folder / "iterations.jsonl").open("w", encoding="utf-8") as f, torch.inference_mode():
        time_mix(engine, mixes[0], clock, 2)  # warm
        for mix in mixes:
            if time.perf_counter() >= stop_s:
                break
            time_mix(engine, mix, clock, 1)  # compiles, on a GPU
            samples = time_mix(engine, mix, clock)
            f.write(
                json.dumps({**shape_of(mix), "seconds": [round(s, 7) for s in samples]}, separators=(",", ":")) + "\n"
            )
            f.flush()
            done += 1
    return done


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.gpu.mixes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default=None)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--kv-blocks", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=48)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = parser.parse_args(argv)
    limits = Limits(args.kv_blocks, 16, args.max_num_seqs, args.max_num_batched_tokens)
    try:
        if args.device == "cpu":
            torch.set_num_threads(1)
        engine = build(
            resolve_model(args.model),
            args.device,
            args.dtype or ("fp32" if args.device == "cpu" else "bf16"),
            limits,
            max_positions=args.kv_blocks * 16,
        )
        mixes = example_mixes(args.count, args.kv_blocks * 16, args.max_num_batched_tokens, args.max_num_seqs)
        done = record(engine, mixes, args.out, time.thread_time if args.device == "cpu" else time.perf_counter)
    except (InputError, ValueError, OSError) as e:
        print(f"calibrate.gpu.mixes: {e}", file=sys.stderr)
        return 2
    print(f"{done} steps of mixed shapes in {args.out / 'iterations.jsonl'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
