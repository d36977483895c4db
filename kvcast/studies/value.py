"""Is the cache worth the memory it takes? GPUs needed for the same attainment, over GiB of KV memory, cache off as
zero.

The one idea: fewer prefilled tokens are not proportionally less time, and time is not GPUs, so for every KV size the
fewest replicas that meet the scenario's target are found by simulation, once with the cache and, as the zero, without
it in all of the memory. All of them serve the same requests in one window. One run says whether a fleet meets
(sim.measure.verdict).

    >>> from kvcast import load_scenario
    >>> from kvcast.studies import value
    >>> curve = value.curve(load_scenario("examples/demo.toml"), [2000, 8000])
    >>> print(value.as_table(curve))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from calibrate.memory import GIB
from kvcast import api, text
from kvcast.studies import search
from kvcast.studies.work import guess_replicas
from sim.engines import engine_of
from sim.measure.verdict import MEETS
from sim.scenario import Scenario
from workloads.errors import InputError

if TYPE_CHECKING:
    from workloads.columns import Workload

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""KV sizes when none are given, relative to the scenario's own."""


@dataclass(frozen=True)
class Point:
    """One KV size. Values of the run with the fewest replicas; None when not even `most` replicas meet the target."""

    cached: bool
    kv_blocks: int
    kv_gib: float  #: per GPU
    replicas: int | None
    gpus: int | None
    usd_per_hour: float | None
    summary: dict[str, Any] | None


@dataclass(frozen=True)
class Curve:
    target: float
    most: int  #: replicas tried at most
    zero: Point  #: cache off, the largest of the KV sizes
    points: tuple[Point, ...]  #: cache on, by KV size


def curve(scenario: Scenario, kv_blocks: Sequence[int] | None = None, most: int = 64) -> Curve:
    """Simulate; raises InputError when the scenario has no target to hold. kv_blocks: per replica; default: shares of
    its own that hold a max_model_len that was given."""
    if scenario.slo.attainment is None:
        raise InputError(
            "[slo] attainment is missing: equal attainment needs a target, such as --set slo.attainment=0.95"
        )
    memory, whole = (resolved := api.resolve(scenario)).memory, resolved.scenario.engine.kv_blocks or 0
    given = scenario.engine.max_model_len
    least = memory.needs(given) if given and engine_of(scenario.engine).whole_context else 0
    sizes = sorted(kv_blocks or {max(int(whole * share), 1) for share in SHARES if whole * share >= least})
    scenario = _windowed(scenario, sizes)
    workload = api.load_workload(scenario.workload, scenario.seed)
    zero = _point(scenario, workload, sizes[-1], False, scenario.cluster.replicas, most)
    points: list[Point] = []
    for blocks in reversed(sizes):
        guess = next((p.replicas for p in reversed(points) if p.replicas), zero.replicas or scenario.cluster.replicas)
        points.append(_point(scenario, workload, blocks, True, guess, most))
    return Curve(scenario.slo.attainment or 0.0, most, zero, tuple(reversed(points)))


def _windowed(scenario: Scenario, sizes: Sequence[int]) -> Scenario:
    """With the window of the fleet whose caches take longest to fill: about as many replicas as the load needs, the
    most memory each."""
    largest = _sized(scenario, sizes[-1], True)
    guess = guess_replicas(largest, api.prepare(largest).workload)
    cut = api.windowed(
        replace(largest, cluster=replace(largest.cluster, replicas=max(guess, scenario.cluster.replicas)))
    )
    return replace(scenario, workload=cut.workload, run=cut.run)


def _sized(scenario: Scenario, blocks: int, cached: bool) -> Scenario:
    return replace(
        scenario, engine=replace(scenario.engine, kv_blocks=blocks), cache=replace(scenario.cache, enabled=cached)
    )


def _point(scenario: Scenario, workload: Workload, blocks: int, cached: bool, guess: int, most: int) -> Point:
    sized = _sized(scenario, blocks, cached)
    summaries: dict[int, dict[str, Any]] = {}

    def meets(replicas: int) -> bool:
        text.progress(f"{blocks:,} KV blocks, cache {'on' if cached else 'off'}: {replicas} replicas")
        one = replace(sized, cluster=replace(sized.cluster, replicas=replicas))
        summary = summaries[replicas] = api.run(api.prepare(one, workload)).report.summary
        if summary["verdict"] is None:
            raise InputError("[slo] has an attainment target and no limit to attain; expected one, such as slo.ttft_s")
        return summary["verdict"]["word"] == MEETS

    replicas = fewest(meets, min(max(guess, 1), most), most)
    resolved = api.resolve(sized)
    price = scenario.cost.gpu_hour_usd
    gpus = None if replicas is None else replicas * scenario.hardware.gpus
    return Point(
        cached,
        blocks,
        blocks * resolved.memory.block_bytes / GIB,
        replicas,
        gpus,
        None if gpus is None or price is None else gpus * price,
        None if replicas is None else summaries[replicas],
    )


def fewest(meets: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The smallest n of 1..most with meets(n) and not meets(n - 1), looked for around `guess`; None when meets(most) is
    false."""
    return search.together({0: search.fewest(guess, most)}, lambda asked: {0: [meets(n) for n in asked[0]]})[0].fewest


def as_document(found: Curve) -> dict[str, Any]:
    def row(point: Point) -> dict[str, Any]:
        kept = (
            "attainment",
            "prefix_hit_rate",
            "mean_ttft_ms",
            "p99_ttft_ms",
            "gpu_busy_s",
            "prefill_flops",
            "prefill_flops_saved",
        )
        summary = point.summary or {}
        return {
            "cache": point.cached,
            "kv_blocks": point.kv_blocks,
            "kv_gib_per_gpu": point.kv_gib,
            "replicas": point.replicas,
            "gpus": point.gpus,
            "gpus_saved": _saved(found.zero.gpus, point.gpus),
            "usd_per_hour": point.usd_per_hour,
            "usd_per_hour_saved": _saved(found.zero.usd_per_hour, point.usd_per_hour),
            **{key: summary.get(key) for key in kept},
        }

    return {
        "attainment_target": found.target,
        "most_replicas": found.most,
        "points": [row(found.zero), *map(row, found.points)],
        "verdict": verdict(found),
    }


def _saved(zero: float | None, here: float | None) -> float | None:
    return None if zero is None or here is None else zero - here


def verdict(found: Curve) -> str:
    """The answer in a sentence or two."""
    zero, reached = found.zero, [p for p in found.points if p.gpus is not None]
    if not reached:
        return f"not even {found.most} replicas meet the target at any of these KV sizes"
    best = min(reached, key=lambda p: (p.gpus or 0, p.kv_gib))
    with_cache = (
        f"with the cache {best.gpus} GPU{'s meet' if best.gpus != 1 else ' meets'} {text.percent(found.target)}, from"
        f" {best.kv_gib:.3g} GiB of KV a GPU on"
    )
    if zero.gpus is None:
        return f"{with_cache}; without it not even {found.most} replicas do"
    saved = zero.gpus - (best.gpus or 0)
    if saved <= 0:
        return f"the cache saves no whole GPU here: {zero.gpus} without it, {best.gpus} with it"
    usd = (
        ""
        if zero.usd_per_hour is None or best.usd_per_hour is None
        else f", {text.usd(zero.usd_per_hour - best.usd_per_hour)} an hour"
    )
    rest = (
        ""
        if best.kv_gib == found.points[-1].kv_gib
        else f"; KV memory beyond {best.kv_gib:.3g} GiB saves no further GPU"
    )
    return f"{with_cache}, without it {zero.gpus}: it saves {saved} GPU{'s' if saved != 1 else ''}{usd}{rest}"


def as_table(found: Curve) -> str:
    header = [
        "cache",
        "KV blocks",
        "KV GiB/GPU",
        "GPUs",
        "GPUs saved",
        "$/h saved",
        "attainment",
        "hit rate",
        "prefill FLOPs saved",
        "TTFT mean",
        "GPU-s busy",
    ]
    rows = []
    for point in (found.zero, *found.points):
        s = point.summary or {}
        flops = s["prefill_flops_saved"] / s["prefill_flops"] if s.get("prefill_flops") else None
        rows.append(
            [
                "on" if point.cached else "off",
                text.count(point.kv_blocks),
                f"{point.kv_gib:.3g}",
                f"> {found.most} replicas" if point.gpus is None else text.count(point.gpus),
                text.count(_saved(found.zero.gpus, point.gpus)),
                text.usd(_saved(found.zero.usd_per_hour, point.usd_per_hour)),
                text.percent(s.get("attainment")),
                text.percent(s.get("prefix_hit_rate")),
                text.percent(flops),
                text.milliseconds(s.get("mean_ttft_ms")),
                text.count(s.get("gpu_busy_s")),
            ]
        )
    told = (
        f"fewest GPUs that meet {text.percent(found.target)}, found by simulation, one run each (a sketch: kvcast plan"
        " settles it); saved against the cache off in the most memory:"
    )
    return "\n".join([told, text.table(header, rows), "", f"verdict: {verdict(found)}"])
