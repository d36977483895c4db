"""A real, small serving engine: continuous batching over the paged cache, replaying a workload in real time and
recording it.

The one idea: it records and judges nothing. `requests.jsonl`, `steps.jsonl` and `meta.json` say what happened when;
`kvcast validate engine --record FOLDER` simulates the same arrivals and compares. Needs torch, triton and numpy only.

    python -m calibrate.gpu.engine --model tiny --device cpu --out recording
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from calibrate.gpu.backends import backend_for
from calibrate.gpu.bench import DTYPES
from calibrate.gpu.decoder import Batch, Decoder
from calibrate.gpu.serving import Limits, Request, Scheduler, Step
from calibrate.models import ModelSpec, resolve_model
from workloads.errors import InputError


class Computes(Protocol):
    """What an engine needs of a decoder."""

    device: str
    model: ModelSpec

    def forward(self, batch: Batch) -> tuple[Any, Any]:
        """(tokens, logits) of the sampled rows."""
        ...


class Engine:
    """A decoder and a scheduler."""

    def __init__(self, decoder: Computes, limits: Limits):
        self.decoder, self.limits = decoder, limits
        self.scheduler = Scheduler(limits)
        self.forward: Callable[[Batch], tuple[Any, Any]] = decoder.forward

    def step(self) -> tuple[Step, list[Request], list[Request], Any]:
        """One step: (what was computed, who got a token, who finished, logits of those who got one)."""
        step = self.scheduler.schedule()
        if not step.chunks and not step.decodes:  # a request preempted itself and is admitted again at once
            preempted, step = step.preempted, self.scheduler.schedule()
            step.preempted = preempted + step.preempted
        tokens, logits = self.forward(batch_of(step, self.limits.block_size, self.decoder.device))
        return step, *self.scheduler.complete(step, tokens.tolist()), logits


def batch_of(step: Step, block_size: int, device: str) -> Batch:
    """The tensors of a step: prefill chunks first, then decodes."""
    ids: list[int] = []
    rows: list[int] = []
    spans = [(r, first, new) for r, first, new in step.chunks] + [(r, r.computed - 1, 1) for r in step.decodes]
    positions, slots = [], []
    for request, first, new in spans:
        ids += request.tokens(first, first + new)
        at = np.arange(first, first + new)
        positions.append(at)
        slots.append(np.asarray(request.blocks)[at // block_size] * block_size + at % block_size)
        if first + new == request.known:
            rows.append(len(ids) - 1)
    tables = np.zeros((len(spans), max(len(r.blocks) for r, _, _ in spans)), np.int32)
    for i, (request, _, _) in enumerate(spans):
        tables[i, : len(request.blocks)] = request.blocks
    put = lambda array, dtype: torch.from_numpy(np.asarray(array, dtype)).to(device, non_blocking=True)  # noqa: E731
    return Batch(
        put(ids, np.int64),
        put(np.concatenate(positions), np.int64),
        put(np.concatenate(slots), np.int64),
        put(tables, np.int32),
        [new for _, _, new in step.chunks],
        [first for _, first, _ in step.chunks],
        [r.computed for r in step.decodes],
        put(rows, np.int64),
    )


class BusyClock:
    """CPU time of this thread, plus the idle spells that `sleep` skips: real execution times on a machine that others
    share."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.thread_time() + self._skipped

    def sleep(self, seconds: float) -> None:
        self._skipped += seconds


# ---- replay ------------------------------------------------------------------------------------------------------


def replay(
    engine: Engine,
    arrivals: Sequence[dict[str, Any]],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, list]:
    """Serves requests as they arrive; returns {"requests": rows, "steps": rows}, times in seconds from the start.

    arrivals: {"arrival_s", "prompt" (token ids), "max_tokens"}, by arrival. A request's clock starts at its arrival
    time, also when the engine was busy then."""
    rows = [{"id": i, "arrival_s": a["arrival_s"], "token_s": []} for i, a in enumerate(arrivals)]
    steps: list[dict[str, Any]] = []
    next_up, start = 0, clock()
    while next_up < len(arrivals) or engine.scheduler.busy:
        now = clock() - start
        while next_up < len(arrivals) and arrivals[next_up]["arrival_s"] <= now:
            a = arrivals[next_up]
            engine.scheduler.submit(Request(next_up, list(a["prompt"]), a["max_tokens"]))
            next_up += 1
        if not engine.scheduler.busy:
            sleep(max(0.0, arrivals[next_up]["arrival_s"] - (clock() - start)))
            continue
        began = clock() - start
        step, sampled, finished, _ = engine.step()
        ended = clock() - start
        _record(rows, steps, step, sampled, finished, began, ended)
    return {"requests": rows, "steps": steps}


def _record(
    rows: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    step: Step,
    sampled: list[Request],
    finished: list[Request],
    began: float,
    ended: float,
) -> None:
    for request in sampled:
        rows[request.id]["token_s"].append(round(ended, 7))
    for request in finished:
        rows[request.id] |= {"hit_tokens": request.hit_tokens, "preemptions": request.preemptions}
    contexts = [r.computed for r in step.decodes]
    steps.append(
        {
            "start_s": round(began, 7),
            "end_s": round(ended, 7),
            "chunks": [[new, first] for _, first, new in step.chunks],
            "n_decode": len(contexts),
            "sum_context": sum(contexts),
            "max_context": max(contexts, default=0),
            "sampled": len(sampled),
            "preempted": step.preempted,
        }
    )


def write_recording(
    folder: Path, meta: dict[str, Any], arrivals: Sequence[dict[str, Any]], recorded: dict[str, list]
) -> None:
    """meta.json, requests.jsonl (also a workload in the token-ids format) and steps.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    requests = [
        {
            **row,
            "input_tok_ids": list(a["prompt"]),
            "output_toks": a["max_tokens"],
            "arrival_time_ns": round(a["arrival_s"] * 1e9),
        }
        for row, a in zip(recorded["requests"], arrivals, strict=True)
    ]
    for name, rows in (("requests", requests), ("steps", recorded["steps"])):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8"
        )


def example_arrivals(
    count: int, rate: float, vocab: int, system: int, own: tuple[int, int], output: tuple[int, int], seed: int = 0
) -> list[dict[str, Any]]:
    """Poisson arrivals; every prompt is one of three shared system prompts and a tail of its own."""
    rng = np.random.default_rng(seed)
    shared = [rng.integers(0, vocab, system).tolist() for _ in range(3)]
    at_s = np.cumsum(rng.exponential(1 / rate, count)) if rate > 0 else np.zeros(count)
    return [
        {
            "arrival_s": round(float(t), 6),
            "prompt": shared[int(rng.integers(3))] + rng.integers(0, vocab, int(rng.integers(*own))).tolist(),
            "max_tokens": int(rng.integers(*output)),
        }
        for t in at_s
    ]


# ---- command line ------------------------------------------------------------------------------------------------


def build(model: ModelSpec, device: str, dtype: str, limits: Limits, max_positions: int | None = None) -> Engine:
    """An engine of this model with random weights; on a GPU its decode steps are captured."""
    return engine_of(
        Decoder(
            model,
            backend_for(device),
            device,
            DTYPES[dtype],
            limits.kv_blocks,
            limits.block_size,
            max_positions=max_positions,
        ),
        limits,
    )


def engine_of(decoder: Decoder, limits: Limits, **graphs: Any) -> Engine:
    """An engine around a decoder. Decode steps are captured on a GPU, or where `graphs` (arguments of GraphedDecode)
    says how."""
    engine = Engine(decoder, limits)
    if graphs.get("capture") or decoder.device == "cuda":
        from calibrate.gpu.graphs import GraphedDecode

        graphed = GraphedDecode(decoder, limits, **graphs)
        with torch.inference_mode():
            graphed.capture_all()
        engine.forward = graphed.forward
    return engine


def warm_up(engine: Engine, arrivals: Sequence[dict[str, Any]]) -> None:
    """Runs a few requests once, so that compilation and first allocations are not in the recording; the cache is empty
    after."""
    with torch.inference_mode():
        replay(engine, [{**a, "arrival_s": 0.0, "max_tokens": min(a["max_tokens"], 4)} for a in arrivals[:8]])
    engine.scheduler = Scheduler(engine.limits)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.gpu.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--dtype", choices=("bf16", "fp16", "fp32"), default=None, help="default: bf16 on a GPU, fp32 on a CPU"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the recording goes")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second; 0: all at once")
    parser.add_argument("--system-tokens", type=int, default=256, help="tokens of each shared system prompt")
    parser.add_argument("--own-tokens", type=int, nargs=2, default=(16, 200), help="range of a prompt's own tokens")
    parser.add_argument("--output-tokens", type=int, nargs=2, default=(8, 64), help="range of output tokens")
    parser.add_argument("--kv-blocks", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clock",
        choices=("wall", "busy"),
        default="wall",
        help="busy: CPU time of the thread, idle spells skipped (a CPU that others share)",
    )
    args = parser.parse_args(argv)
    try:
        print("\n".join(record(args)))
    except (InputError, ValueError, OSError) as e:
        print(f"calibrate.gpu.engine: {e}", file=sys.stderr)
        return 2
    return 0


def record(args: argparse.Namespace) -> list[str]:
    """Replays the example workload and writes the recording; lines for people."""
    if args.device == "cpu":
        torch.set_num_threads(1)
    model, dtype = resolve_model(args.model), args.dtype or ("fp32" if args.device == "cpu" else "bf16")
    limits = Limits(args.kv_blocks, 16, args.max_num_seqs, args.max_num_batched_tokens)
    arrivals = example_arrivals(
        args.requests,
        args.rate,
        model.vocab,
        args.system_tokens,
        tuple(args.own_tokens),
        tuple(args.output_tokens),
        args.seed,
    )
    longest = max(len(a["prompt"]) + a["max_tokens"] for a in arrivals)
    engine = build(model, args.device, dtype, limits, max_positions=longest + 16)
    warm_up(engine, arrivals)
    clock = BusyClock()
    with torch.inference_mode():
        recorded = replay(engine, arrivals, clock, clock.sleep) if args.clock == "busy" else replay(engine, arrivals)
    meta = {
        "model": args.model,
        "dtype": dtype,
        "device": args.device,
        "kv_blocks": limits.kv_blocks,
        "block_size": limits.block_size,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "caching": limits.caching,
        "clock": args.clock,
        "torch": torch.__version__,
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_recording(args.out, meta, arrivals, recorded)
    ttft = [r["token_s"][0] - r["arrival_s"] for r in recorded["requests"]]
    return [
        f"{len(recorded['requests'])} requests in {recorded['steps'][-1]['end_s']:.1f} s, {len(recorded['steps'])}"
        f" steps, median TTFT {1e3 * float(np.median(ttft)):.1f} ms: {args.out}"
    ]


if __name__ == "__main__":
    sys.exit(main())
