"""Does a step take the sum of its operators? Times both on the CPU, taking turns, so that drift of the machine hits
them alike.

The one idea: in every round the whole forward pass runs once, then every operator of it as often as it runs there,
layer by layer on tensors of its own; medians over the rounds are compared. What is left is what a step holds besides
its operators.

    python -m calibrate.gpu.composition --model tiny --runs 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import torch

from calibrate.gpu.decoder import Decoder
from calibrate.gpu.devices import CpuCalibration
from calibrate.gpu.engine import batch_of
from calibrate.gpu.mixes import Mix, placed
from calibrate.gpu.serving import Limits
from calibrate.models import ModelSpec, resolve_model
from calibrate.operators import Point, attention_shape, step_operators

EACH, MEAN = 0.20, 0.10
"""Largest error of a shape, and of the mean over shapes."""
SHAPES: tuple[Mix, ...] = (
    {"chunks": [], "contexts": [200]},
    {"chunks": [], "contexts": [500] * 4},
    {"chunks": [], "contexts": [150] * 16},
    {"chunks": [], "contexts": [1500, 90, 90, 90, 90, 90, 90, 90]},
    {"chunks": [[32, 0]], "contexts": []},
    {"chunks": [[200, 0]], "contexts": []},
    {"chunks": [[64, 600]], "contexts": []},
    {"chunks": [[48, 300]], "contexts": [250] * 6},
)


def step_points(model: ModelSpec, mix: Mix) -> list[tuple[Point, int]]:
    """Every operator of a step of this shape, and how often it runs."""
    chunks, contexts = mix["chunks"], mix["contexts"]
    tokens, rows = sum(n for n, _ in chunks) + len(contexts), len(chunks) + len(contexts)
    points = [(o.point(rows if o.per_row else tokens), o.repeat) for o in step_operators(model)]
    shape = attention_shape(model)
    points += [
        (Point("prefill", {**shape, "new": new, "cached": cached, "seqs": 1}), model.layers) for new, cached in chunks
    ]
    if contexts:
        points.append(
            (
                Point("decode", {**shape, "batch": len(contexts), "context": contexts[-1], "longest": contexts[0]}),
                model.layers,
            )
        )
    return points


def compare(
    device: CpuCalibration, model: ModelSpec, shapes: Sequence[Mix] = SHAPES, rounds: int = 9
) -> list[tuple[float, float]]:
    """(seconds of the forward pass, seconds of its operators) of every shape."""
    limits = Limits(kv_blocks=1024, max_num_seqs=64, max_num_batched_tokens=1024, caching=False)
    decoder = Decoder(model, device.backend, "cpu", device.torch_dtype, limits.kv_blocks, max_positions=4096)
    results = []
    with torch.inference_mode():
        for mix in shapes:
            batch = batch_of(placed(limits, mix, model.vocab).schedule(), limits.block_size, "cpu")
            operators = [(device.calls(point), repeat) for point, repeat in step_points(model, mix)]
            order = [
                calls[layer % len(calls)]
                for layer in range(2 * model.layers)
                for calls, repeat in operators
                if layer < repeat
            ]
            whole, parts = [], []
            for i in range(rounds + 1):
                took = device.one(partial(decoder.forward, batch))
                each = sum(device.one(call) for call in order)
                if i:  # the first round warms up
                    whole.append(took)
                    parts.append(each)
            total = statistics.median(parts)
            results.append((statistics.median(whole) * 1e-6, total * 1e-6))
    return results


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.gpu.composition",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args(argv)
    model = resolve_model(args.model)
    device = CpuCalibration(model, args.dtype, sweep=False)
    passed = True
    for run in range(args.runs):
        pairs = compare(device, model)
        errors = [parts / whole - 1 for whole, parts in pairs]
        mean = sum(abs(e) for e in errors) / len(errors)
        passed &= mean <= MEAN and max(abs(e) for e in errors) <= EACH
        print(f"run {run + 1}: mean error {100 * mean:.1f} %, worst {100 * max(abs(e) for e in errors):.1f} %")
        for mix, (whole, parts), error in zip(SHAPES, pairs, errors, strict=True):
            print(
                f"  chunks {mix['chunks']}, {len(mix['contexts'])} decodes: forward {1e3 * whole:.2f} ms, operators"
                f" {1e3 * parts:.2f} ms, {100 * error:+.1f} %"
            )
    print(
        f"{'passed' if passed else 'FAILED'}: each shape within {100 * EACH:.0f} %, mean within {100 * MEAN:.0f} %,"
        f" {args.runs} runs"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
