"""Statistics of a recording: against brute force on random schedules, and exact on tiny ones."""

from __future__ import annotations

import json
import pickle
from array import array
from dataclasses import replace

import numpy as np
import pytest

from sim.measure import gaps, metrics
from sim.measure.cost import busy_gpu_s
from sim.measure.report import build_report, worth_of
from sim.recording import KV_TOO_SMALL, NOT_ARRIVED, SESSION_TRUNCATED, UNFINISHED, Recording, Samples, Steps
from sim.scenario import CostConfig, HardwareConfig, RunConfig, SloClass, SloConfig
from sim.step_record import StepRecord
from tests.recordings import recording, scenario, steps, workload
from workloads.columns import Workload


def random_run(seed: int, replicas: int = 2, n: int = 40) -> tuple[Recording, Workload, list[list[float]]]:
    """A random schedule with gaps, and the time of every output token of every request."""
    rng = np.random.default_rng(seed)
    all_steps, ends = [], []
    for _ in range(replicas):
        ends.append(np.cumsum(rng.uniform(0.01, 0.05, 200)))
    replica = rng.integers(0, replicas, n)
    first = rng.integers(0, 120, n)
    emitted, gaps = [], []
    for r in range(n):
        at = np.arange(first[r], first[r] + int(rng.integers(1, 60)))
        if len(at) > 6 and rng.random() < 0.5:  # two silent stretches, as two preemptions make
            at = np.concatenate([at[:2], at[2:5] + 3, at[5:] + 9])
            at = np.unique(np.minimum(at, 199))
        emitted.append(at)
        jumps = np.flatnonzero(np.diff(at) > 1)
        gaps += [(r, at[j], at[j + 1]) for j in jumps]
    last = np.array([at[-1] for at in emitted])
    gap_columns = np.array(gaps, np.int64).reshape(-1, 3).T
    for k in range(replicas):
        decodes = np.zeros(200, np.int32)
        prefill = np.zeros(200, np.int32)
        for r in np.flatnonzero(replica == k):
            decodes[emitted[r][1:]] += 1
            prefill[first[r]] += 100
        length = np.diff(np.concatenate([[0.0], ends[k]])) * (decodes + prefill > 0)  # an idle replica makes no step
        all_steps.append(steps(ends[k], length, n_decode=decodes, prefill_tokens=prefill))
    times = [[float(ends[replica[r]][i]) for i in emitted[r]] for r in range(n)]
    step_start = np.array([ends[replica[r]][first[r]] - all_steps[replica[r]].duration_s[first[r]] for r in range(n)])
    rec = recording(
        np.maximum(step_start - rng.uniform(0, 0.5, n), 0),
        all_steps,
        admit_s=step_start,
        first_token_s=np.array([t[0] for t in times]),
        finish_s=np.array([t[-1] for t in times]),
        replica=replica.astype(np.int32),
        first_step=first,
        last_step=last,
        gaps_request=gap_columns[0],
        gaps_from_step=gap_columns[1],
        gaps_to_step=gap_columns[2],
    )
    names = ("chat", "agent")
    work = workload(
        [100] * n,
        [len(t) for t in times],
        class_id=rng.integers(0, 2, n).astype(np.int16),
        class_names=names,
        class_slo=("", ""),
    )
    return rec, work, times


@pytest.mark.parametrize("seed", range(5))
def test_itl_equals_the_pooled_list(seed: int) -> None:
    rec, work, times = random_run(seed)
    report = build_report(rec, work, scenario())
    assert len(rec.gaps_request) > 0
    for name, member in [(None, np.ones(len(work), bool)), ("chat", work.class_id == 0), ("agent", work.class_id == 1)]:
        pooled = 1e3 * np.concatenate([np.diff(t) for r, t in enumerate(times) if member[r]])
        got = report.latency["itl"] if name is None else report.classes[name]["latency_ms"]["itl"]
        assert got["mean"] == pytest.approx(pooled.mean(), rel=1e-12)
        assert got["std"] == pytest.approx(pooled.std(), rel=1e-9)
        for p in metrics.PERCENTILES:
            assert got[f"p{p}"] == pytest.approx(np.percentile(pooled, p), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_throughput_counts_tokens_by_the_clock(seed: int) -> None:
    rec, work, times = random_run(seed)
    end = float(np.median(np.concatenate(times)))
    report = build_report(rec, work, scenario(run=RunConfig(warmup_s=0.3, duration_s=end)))
    emitted = sum(0.3 <= t <= end for request in times for t in request)
    assert report.summary["output_throughput"] * report.summary["duration"] == pytest.approx(emitted)
    assert report.summary["duration"] == pytest.approx(end - 0.3)
    assert report.summary["arrived"] + report.summary["outside_window"] == len(work)


def test_throughput_of_a_drained_run_is_that_of_vllm_bench() -> None:
    rec, work, _ = random_run(1)
    summary = build_report(rec, work, scenario()).summary
    assert summary["duration"] == rec.finish_s.max()
    assert summary["output_throughput"] == pytest.approx(summary["total_output_tokens"] / summary["duration"])
    assert summary["total_token_throughput"] == pytest.approx(
        (summary["total_input_tokens"] + summary["total_output_tokens"]) / rec.finish_s.max()
    )


def test_weighted_percentiles_equal_numpy_on_the_expanded_list() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 2, 7, 50):
        values = rng.exponential(size=size) * 10.0 ** rng.integers(-3, 3, size)
        counts = rng.integers(0, 4, size)
        counts[0] += 1
        expanded = np.repeat(values, counts)
        assert gaps.described(lambda parts=[(values, counts[None])]: parts, 1)[0] == pytest.approx(
            metrics.describe(expanded), rel=1e-9, abs=1e-12
        )


def two_requests() -> tuple[Recording, Workload]:
    """Request 0: arrives 0, tokens at 1, 2, 3. Request 1: arrives 0.5, its only token at 2."""
    ends = np.array([1.0, 2.0, 3.0])
    run = steps(ends, n_decode=np.array([0, 1, 1], np.int32), prefill_tokens=np.array([10, 30, 0], np.int32))
    rec = recording(
        [0.0, 0.5],
        [run],
        admit_s=[0.0, 1.0],
        first_token_s=[1.0, 2.0],
        finish_s=[3.0, 2.0],
        first_step=[0, 1],
        last_step=[2, 1],
    )
    return rec, workload([10, 30], [3, 1])


def test_definitions_on_two_requests() -> None:
    rec, work = two_requests()
    report = build_report(rec, work, scenario())
    assert report.requests["ttft_s"].tolist() == [1.0, 1.5]
    assert report.requests["e2e_s"].tolist() == [3.0, 1.5]
    assert report.requests["queue_s"].tolist() == [0.0, 0.5]
    assert report.requests["tpot_s"][0] == 1.0
    assert np.isnan(report.requests["tpot_s"][1])
    assert report.summary["mean_tpot_ms"] == 1000.0
    assert report.summary["single_token_outputs"] == 1
    assert report.summary["mean_itl_ms"] == 1000.0
    assert report.summary["median_ttft_ms"] == report.summary["p50_ttft_ms"] == 1250.0
    json.dumps(report.summary, allow_nan=False)


def test_no_slo_no_attainment_and_a_single_token_meets_tpot() -> None:
    rec, work = two_requests()
    plain = build_report(rec, work, scenario())
    assert plain.summary["attainment"] is None
    assert plain.summary["request_goodput"] is None
    assert "good" not in plain.requests
    tight = build_report(rec, work, scenario(slo=SloConfig(tpot_s=0.5)))
    assert tight.requests["good"].tolist() == [False, True]
    assert tight.summary["attainment"] == 0.5
    assert tight.summary["request_goodput"] == pytest.approx(1 / 3)


def test_slo_per_class_and_the_default_for_the_others() -> None:
    rec, work = two_requests()
    work = replace(
        work, class_id=np.array([0, 1], np.int16), class_names=("chat", "batch"), class_slo=("fast", "unnamed")
    )
    slo = SloConfig(e2e_s=1.0, classes={"fast": SloClass(ttft_s=1.0)})
    report = build_report(rec, work, scenario(slo=slo))
    assert report.requests["good"].tolist() == [True, False]  # a class with limits of its own does not inherit e2e_s
    assert report.slo_classes["fast"]["attainment"] == 1.0
    assert report.slo_classes[""]["attainment"] == 0.0
    assert report.classes["batch"]["slo_class"] == ""
    assert any("unnamed" in note for note in report.notes)


def test_nothing_is_dropped_and_the_unfinished_are_not_good() -> None:
    rec, work = two_requests()
    nan, more = np.nan, 4
    work = workload([10, 30] + [5] * more, [3, 1] + [2] * more)
    status = np.array([0, 0, UNFINISHED, KV_TOO_SMALL, SESSION_TRUNCATED, NOT_ARRIVED], np.int8)
    rec = recording(
        [0, 0.5, 1, 1, nan, nan],
        rec.steps,
        admit_s=[0, 1, nan, nan, nan, nan],
        first_token_s=[1, 2, nan, nan, nan, nan],
        finish_s=[3, 2, nan, nan, nan, nan],
        first_step=[0, 1, -1, -1, -1, -1],
        last_step=[2, 1, -1, -1, -1, -1],
        status=status,
        replica=np.array([0, 0, 0, -1, -1, -1], np.int32),
    )
    s = build_report(rec, work, scenario(slo=SloConfig(ttft_s=10.0))).summary
    assert (s["arrived"], s["completed"], s["unfinished"], s["session_truncated"], s["aborted"], s["not_arrived"]) == (
        5,
        2,
        1,
        1,
        0,
        1,
    )
    assert s["rejected"] == {"too_long": 0, "kv_too_small": 1, "queue_full": 0, "shed": 0}
    assert (
        s["completed"] + s["unfinished"] + s["session_truncated"] + s["aborted"] + sum(s["rejected"].values())
        == s["arrived"]
    )
    assert s["attainment"] == pytest.approx(2 / 5)
    assert s["censored"] is True
    assert s["prompt_tokens"] == 40  # the never admitted are in no hit rate


def test_a_horizon_after_the_last_finish_adds_no_time() -> None:
    rec, work = two_requests()
    summary = build_report(replace(rec, end_s=1000.0), work, scenario()).summary
    assert summary["duration"] == 3.0
    cut = replace(rec, end_s=1000.0, status=np.array([0, UNFINISHED], np.int8), finish_s=np.array([3.0, np.nan]))
    assert build_report(cut, work, scenario()).summary["duration"] == 1000.0


def test_an_empty_window_is_refused() -> None:
    rec, work = two_requests()
    with pytest.raises(ValueError, match="warmup_s = 5 leaves nothing"):
        build_report(rec, work, scenario(run=RunConfig(warmup_s=5.0)))


@pytest.mark.parametrize("seed", range(3))
def test_gpu_seconds_sum_to_busy_time_and_cost_to_the_bill(seed: int) -> None:
    rec, work, _ = random_run(seed)
    shares = busy_gpu_s(rec, work.prompt_tokens, gpus_per_replica=2)
    assert shares.sum() == pytest.approx(2 * sum(s.duration_s.sum() for s in rec.steps))
    assert (shares >= 0).all()
    report = build_report(
        rec, work, scenario(hardware=HardwareConfig(tensor_parallel=2), cost=CostConfig(gpu_hour_usd=3.0))
    )
    hours = 2 * 2 * rec.finish_s.max() / 3600
    assert report.summary["gpu_hours"] == pytest.approx(hours)
    cost = report.summary["cost"]
    assert cost["usd"] == pytest.approx(3 * hours)
    tokens = {
        "input": int(work.prompt_tokens.sum()),
        "output": int(work.output_tokens.sum()),
    }  # everything is served in the window
    for name, count in {**tokens, "total": sum(tokens.values())}.items():
        assert cost[f"usd_per_million_{name}_tokens"] == pytest.approx(3 * hours / count * 1e6), name
        assert cost[f"gpu_hours_per_million_{name}_tokens"] == pytest.approx(hours / count * 1e6), name
    assert report.requests["gpu_hours"].sum() == pytest.approx(hours)
    assert report.sessions["gpu_hours"].sum() == pytest.approx(hours)
    assert sum(c["gpu_hours"] for c in report.classes.values()) == pytest.approx(hours)
    assert build_report(rec, work, scenario()).summary["cost"]["usd"] is None


def test_gpu_seconds_of_two_requests() -> None:
    rec, work = two_requests()
    # step 0: 10 prefill tokens of request 0; step 1: 1 decode and 30 prefill tokens; step 2: one decode
    assert busy_gpu_s(rec, work.prompt_tokens, 1) == pytest.approx([1 + 1 / 31 + 1, 30 / 31])


def test_states_are_time_weighted() -> None:
    rec, work = two_requests()
    states = Samples(
        np.array([0.0, 1.0, 2.0]),
        np.array([10, 50, 0]),
        np.array([0, 0, 30]),
        np.array([1, 2, 0], np.int32),
        np.array([0, 1, 0], np.int32),
    )
    report = build_report(replace(rec, samples=[states]), work, scenario())
    assert report.summary["kv_usage_mean"] == pytest.approx((10 + 50 + 0) / 3 / 100)
    assert report.summary["kv_usage_peak"] == 0.5
    assert report.summary["kv_cached_idle_mean"] == pytest.approx(0.1)
    assert report.summary["running_mean"] == pytest.approx(1.0)
    assert report.timeline["blocks_free"][-1] == 70
    assert np.nansum(report.timeline["prompt_tokens"]) == 40


def test_coverage_is_a_share_of_busy_time() -> None:
    rec, work = two_requests()
    run = replace(rec.steps[0], duration_s=np.array([1.0, 0.5, 0.5]), coverage=np.array([0, 1, 2], np.int8))
    summary = build_report(replace(rec, steps=[run]), work, scenario()).summary
    assert summary["coverage"] == {"measured": 0.5, "interpolated": 0.25, "extrapolated": 0.25}
    assert summary["busy_share"] == pytest.approx(2 / 3)
    assert summary["decode_batch_mean"] == pytest.approx(0.5)


def test_the_worth_of_a_cache_is_four_numbers() -> None:
    rec, work = two_requests()

    def flops(new: np.ndarray, cached: np.ndarray) -> np.ndarray:
        return new * (2.0 * cached + new)

    on = replace(
        rec,
        hit_tokens=np.array([0, 16]),
        ceiling_replica_tokens=np.array([0, 16]),
        ceiling_fleet_tokens=np.array([0, 16]),
    )
    off = replace(rec, first_token_s=np.array([1.0, 2.5]), finish_s=np.array([3.0, 2.5]))
    worth = worth_of(
        build_report(on, work, scenario(), prefill_flops=flops),
        build_report(off, work, scenario(), prefill_flops=flops),
    )
    assert worth["prefill_tokens_saved"] == 16
    assert worth["prefill_tokens_saved_share"] == pytest.approx(16 / 40)
    assert worth["prefill_flops_saved_share"] == pytest.approx(16 * 16 / (10 * 10 + 30 * 30))
    assert worth["p50_ttft_ms"] == {"off": 1500.0, "on": 1250.0, "saved_share": pytest.approx(1 / 6)}
    assert worth["cost_usd"] == {"off": None, "on": None, "saved_share": None}
    alone = worth_of(build_report(on, work, scenario()))
    assert alone["prefill_flops_saved"] is None
    assert "p50_ttft_ms" not in alone


def test_a_step_over_the_window_edge_counts_with_its_part_inside():
    """Steps [0, 4], [4, 8] and, after a pause, [20, 30]; the window holds 2 + 4 + 5 seconds of them."""
    column = np.array([1, 1, 1], np.int32)
    three = Steps(
        np.array([4.0, 8.0, 30.0]), np.array([4.0, 4.0, 10.0]), np.array([0, 1, 2], np.int8), column, column * 0
    )
    shares = metrics.step_shares([three], metrics.Window(2.0, 25.0, 25.0, False))
    assert shares["busy_s"] == 11.0
    assert shares["extrapolated"] == pytest.approx(5 / 11)
    assert metrics.step_shares([three], metrics.Window(9.0, 19.0, 19.0, False))["busy_s"] == 0.0


def test_gaps_in_parts_are_described_as_the_whole() -> None:
    """Two groups, parts of seven, one of zeros, one that only one group has: the same percentiles, mean and deviation
    but for rounding."""
    rng = np.random.default_rng(3)
    values, counts = rng.exponential(0.02, 500), rng.integers(0, 9, (2, 500)).astype(float)
    values[:20], counts[0, 100:200] = 0.0, 0.0
    whole = gaps.described(lambda: [(values, counts)], 2)
    pieces = gaps.described(lambda: [(values[i : i + 7], counts[:, i : i + 7]) for i in range(0, 500, 7)], 2)
    for one, other, count in zip(whole, pieces, counts, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
        assert one == pytest.approx(metrics.describe(np.repeat(values, count.astype(int))), rel=1e-9)


def test_columns_by_stretch_are_those_of_the_steps() -> None:
    """Two stretches, 3 and 1 steps, with a second without work between them."""
    record = StepRecord()
    record.stretch(1.0, array("d", (1.5, 2.5, 3.0)), bytes((0, 1, 2)), [(4, 0)], 2, 10, 2)
    record.stretch(4.0, array("d", (4.25,)), bytes((1,)), [], 1, 20, 1)
    got = record.steps()
    assert got.duration_s.tolist() == [0.5, 1.0, 0.5, 0.25]
    assert got.n_decode.tolist() == [2, 2, 2, 1]
    assert got.prefill_tokens.tolist() == [4, 4, 4, 0]
    assert got.coverage.tolist() == [0, 1, 2, 1]
    copy = pickle.loads(pickle.dumps(got))
    assert copy.duration_s.tolist() == got.duration_s.tolist()
    assert copy.work == got.work
