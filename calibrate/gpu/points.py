"""Which points a calibration measures, most valuable first.

The one idea: every axis has levels, coarse to fine, and a point's level is its axes' finest. Level 0 alone makes a
usable profile; every further level only sharpens it. So a budget that runs out costs precision, never the profile.

    python -c "from calibrate.models import resolve_model as m; from calibrate.gpu.points import GPU, plan;
    print(len(plan(m('llama-3.1-8b'), GPU)))"
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from calibrate.models import ModelSpec
from calibrate.operators import GROUPS, Point, attention_shape, features, step_operators

Levels = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Grid:
    """Axis values by level, and what is too large for the device."""

    tokens: Levels
    rows: Levels
    new: Levels
    cached: Levels
    batch: Levels
    context: Levels
    seqs: Levels
    copy_bytes: tuple[int, ...]
    matmul: tuple[int, ...]
    max_kv_tokens: int  #: KV tokens of one attention point
    max_gflop: float  #: of one call
    launches: bool = (
        False  #: kernels are launched apart from the host's other work, so launching a step has a time of its own
    )

    def holds(self, point: Point) -> bool:
        s = point.shape
        kv = (
            s.get("seqs", 1) * (s.get("new", 0) + s.get("cached", 0))
            + (s.get("batch", 1) - 1) * s.get("context", 0)
            + s.get("longest", s.get("context", 0))
        )
        work = sum(v for k, v in features(point, 2).items() if k.endswith("gflop"))
        return kv <= self.max_kv_tokens and work <= self.max_gflop


GPU = Grid(
    tokens=(
        (1, 16, 128, 1024, 8192),
        (8, 32, 64, 256, 512, 2048, 4096),
        (2, 4, 24, 48, 96, 192, 384, 768, 1536, 3072, 6144, 12288, 16384),
    ),
    rows=((1, 64, 512), (8, 16, 32, 128, 256), (1024,)),
    new=((16, 512, 2048, 8192), (128, 1024, 4096), (64, 256, 16384)),
    cached=((0, 4096, 32768), (1024, 8192, 131072), (512, 2048, 16384, 65536, 262144)),
    batch=((1, 16, 64, 256), (8, 32, 128, 512), (2, 4, 13, 14, 24, 48, 96, 192)),
    context=((256, 2048, 16384), (1024, 4096, 65536), (512, 8192, 32768, 131072, 262144)),
    seqs=((1,), (8, 64)),
    copy_bytes=(2**30,),
    matmul=(8192, 4096),
    max_kv_tokens=2**20,
    max_gflop=2e4,
    launches=True,
)
CPU = Grid(
    tokens=((1, 8, 64, 256), (2, 4, 16, 32, 128, 512), (24, 48, 96, 192, 384)),
    rows=((1, 16, 64), (4, 32), (8, 128)),
    new=((16, 64, 256), (32, 128, 512), (1,)),
    cached=((0, 256, 1024), (128, 512, 2048), (64, 768)),
    batch=((1, 4, 16, 64), (2, 8, 32), (12, 24, 48)),
    context=((16, 256, 1024), (64, 128, 512, 2048), (32, 768)),
    seqs=((1,), (4,)),
    copy_bytes=(2**26,),
    matmul=(512, 1024),
    max_kv_tokens=2**15,
    max_gflop=20.0,
)


def plan(
    model: ModelSpec,
    grid: Grid,
    tps: Sequence[int] = (1,),
    groups: Collection[str] = tuple(GROUPS),
    weights: str = "bf16",
    gpus: int = 1,
) -> list[Point]:
    """All points in measuring order, without repeats. groups: keys of GROUPS; weights: of a layer's matrix multiplies;
    gpus: that the device has, all-reduces being measured between 2, 4, .. of them."""
    seen: set[str] = set()
    points = []
    left_out = {op for group, ops in GROUPS.items() if group not in groups for op in ops}
    for point in _ordered(model, grid, tps, weights, gpus):
        if point.op not in left_out and point.key not in seen and grid.holds(point):
            seen.add(point.key)
            points.append(point)
    return points


def anchors(model: ModelSpec, grid: Grid, weights: str = "bf16") -> list[Point]:
    """Points measured again at the end of a session: a drift of the clocks shows in them."""
    attention = attention_shape(model)
    matrix = next(o for o in step_operators(model) if o.op in ("gemm", "moe"))
    largest = matrix.point(grid.tokens[0][-1])
    if weights == "fp8" and largest.op == "gemm":
        largest = Point("gemm", {**largest.shape, "fp8": 1})
    return [
        largest,
        Point("prefill", {**attention, "new": grid.new[0][1], "cached": 0, "seqs": 1}),
        Point(
            "decode",
            {**attention, "batch": grid.batch[0][2], "context": grid.context[0][1], "longest": grid.context[0][1]},
        ),
    ]


def _ordered(model: ModelSpec, grid: Grid, tps: Sequence[int], weights: str, gpus: int) -> Iterator[Point]:
    yield from (Point("copy", {"bytes": n}) for n in grid.copy_bytes)
    yield from (Point("matmul", {"m": n, "n": n, "k": n}) for n in grid.matmul)
    yield Point("node_gap", {})
    yield from anchors(model, grid, weights)
    for level in range(3):
        for tp in tps:
            yield from _attention(model, grid, tp, level)
            yield from _dense(model, grid, tp, level, weights)
        yield from _all_reduces(model, grid, gpus, level)
        yield from _whole(grid, level)


def _dense(model: ModelSpec, grid: Grid, tp: int, level: int, weights: str) -> Iterator[Point]:
    """The LM head and the embedding are in 16 bits whatever the layers' weights are in; experts in fp8 are not
    measured."""
    for operator in step_operators(model, tp):
        axis = grid.rows if operator.per_row else grid.tokens
        for count in axis[level]:
            point = operator.point(count)
            if weights != "fp8" or point.op not in ("gemm", "moe") or operator.per_row:
                yield point
            elif point.op == "gemm":
                yield Point("gemm", {**point.shape, "fp8": 1})


def _all_reduces(model: ModelSpec, grid: Grid, gpus: int, level: int) -> Iterator[Point]:
    """Of the hidden state of a step's tokens, between 2, 4, .. GPUs."""
    width = 2
    while width <= gpus:
        yield from (
            Point("all_reduce", {"gpus": width, "elements": model.hidden * count}) for count in grid.tokens[level]
        )
        width *= 2


def _attention(model: ModelSpec, grid: Grid, tp: int, level: int) -> Iterator[Point]:
    shape = attention_shape(model, tp)
    for new, cached in _at(level, grid.new, grid.cached):
        yield Point("prefill", {**shape, "new": new, "cached": cached, "seqs": 1})
    for batch, context in _at(level, grid.batch, grid.context):
        yield Point("decode", {**shape, "batch": batch, "context": context, "longest": context})
    if level != 1:
        return
    for batch, context in product(grid.batch[0][1:], grid.context[0][:2]):  # one sequence far longer than the rest
        for factor in (4, 16):
            yield Point("decode", {**shape, "batch": batch, "context": context, "longest": context * factor})
    for new, cached in product(grid.new[0][:2], grid.cached[0][:2]):
        for seqs in grid.seqs[1]:
            yield Point("prefill", {**shape, "new": new, "cached": cached, "seqs": seqs})
    for new, cached in product(grid.new[0][1:3], grid.cached[0][:2]):
        for batch, context in product(grid.batch[0][1:3], grid.context[0][:2]):
            yield Point(
                "mixed",
                {
                    **shape,
                    "new": new,
                    "cached": cached,
                    "seqs": 1,
                    "batch": batch,
                    "context": context,
                    "longest": context,
                },
            )


def _whole(grid: Grid, level: int) -> Iterator[Point]:
    """Host time of a step, launch time of an uncaptured one, and memory."""
    yield from (Point("host", {"seqs": n}) for n in grid.rows[level])
    if level == 0:
        if grid.launches:
            yield Point("launch", {"tokens": grid.tokens[0][1]})
        yield from (Point("activation", {"tokens": n}, "bytes") for n in grid.tokens[0])
        yield Point("kv_capacity", {}, "blocks")


def _at(level: int, *axes: Levels) -> Iterator[tuple[int, ...]]:
    """Combinations whose finest axis is at `level`."""
    for picks in product(*[[(at, value) for at in range(level + 1) for value in axis[at]] for axis in axes]):
        if max(at for at, _ in picks) == level:
            yield tuple(value for _, value in picks)
