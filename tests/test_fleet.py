"""Replicas that fail, drain and start while a run goes on: tiny worlds by hand, then random ones.

python -m pytest tests/test_fleet.py
"""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from sim.measure.report import build_report
from sim.recording import ABORTED, COMPLETED, NOT_ARRIVED, UNFINISHED, Recording
from sim.scenario import ClusterConfig, CostConfig, EngineParams, HardwareConfig, RunConfig, TierParams
from sim.simulate import run
from tests.recordings import scenario
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces

FOUR = plain([0, 0, 0, 0], [4, 4, 4, 4], [6, 6, 6, 6])
"""Two for each of two replicas: alone on one they prefill in the step that ends at 1 and finish at 6."""


def params(semantics: str = "vllm", **given) -> EngineParams:
    """Synchronous, so that what a world's steps hold can be read off its arrivals."""
    world = {"kv_blocks": 100, "block_size": 4, "semantics": semantics, "async_scheduling": False}
    return EngineParams(**{**world, **given})


def at(*acts):
    """A process that does each of (seconds, what of the fleet) at its time."""

    def process(fleet):
        for time_s, act in acts:
            yield fleet.sleep(time_s - fleet.now_s)
            act(fleet)

    return process


def fails(index: int, retried: bool = True):
    return lambda fleet: fleet.replicas[index].fail(retried)


def drains(index: int):
    return lambda fleet: fleet.replicas[index].drain()


def starts(index: int, load_s: float = 0.0):
    return lambda fleet: fleet.replicas[index].start(load_s)


def polls(fleet):
    while True:
        yield fleet.sleep(0.7)


# -- a failure -------------------------------------------------------------------------------------------------------


def test_a_failure_by_hand_asynchronous() -> None:
    """The same failure at 2.5: the step [3, 4) was decided at 2, so the two begin again in [4, 5)."""
    rec = run(FOUR, params(async_scheduling=True), UnitSteps(), replicas=2, processes=[at((2.5, fails(0)))])
    assert rec.first_token_s.tolist() == [5, 1, 5, 1]
    assert rec.finish_s.tolist() == [10, 6, 10, 6]
    assert (rec.replica.tolist(), rec.retries.tolist()) == ([1, 1, 1, 1], [1, 0, 1, 0])


@pytest.mark.parametrize(("semantics", "others_s"), [("vllm", 6.0), ("sglang", 7.0)])
def test_a_failure_by_hand(semantics: str, others_s: float) -> None:
    """At 2.5 the first replica's two lose two tokens each; they are prefilled on the other one in the step from 3 to 4,
    which holds up SGLang's decodes, and finish at 9. The failed replica holds its GPUs again from 5.5 on."""
    process = at((2.5, fails(0)), (5.5, starts(0, load_s=2)))
    plain_loop = replace(params(semantics), overlap_schedule=False)
    rec = run(FOUR, plain_loop, UnitSteps(), replicas=2, processes=[process], record_life=True)
    assert rec.status.tolist() == [COMPLETED] * 4
    assert rec.first_token_s.tolist() == [4, 1, 4, 1]
    assert rec.finish_s.tolist() == [9, others_s, 9, others_s]
    assert (rec.replica.tolist(), rec.retries.tolist()) == ([1, 1, 1, 1], [1, 0, 1, 0])
    assert rec.held_s == [[(0, 2.5), (5.5, 9)], [(0, 9)]]
    assert [steps.end_s.tolist() for steps in rec.steps] == [[1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert rec.life[0] == [("queued", 0, 3, 0), ("prefill", 3, 4, 4), ("decode", 4, 9, 0)]
    assert rec.preemptions.sum() == rec.recomputed_tokens.sum() == 0

    told = scenario(hardware=HardwareConfig(tensor_parallel=2), cost=CostConfig(gpu_hour_usd=3.0))
    report = build_report(rec, FOUR, told)
    summary = report.summary
    replica_s = 2.5 + 3.5 + 9
    assert summary["gpu_hours"] == pytest.approx(2 * replica_s / 3600, rel=1e-15)
    assert summary["cost"]["usd"] == pytest.approx(3 * 2 * replica_s / 3600, rel=1e-15)
    assert report.requests["gpu_hours"].sum() == pytest.approx(2 * replica_s / 3600)
    assert summary["busy_share"] == pytest.approx((2 + 9) / replica_s)
    assert (summary["replicas"], summary["replicas_held"]) == (2, pytest.approx(replica_s / 9))
    assert (summary["retries"], report.requests["retries"].tolist()) == (2, [1, 0, 1, 0])
    assert (summary["arrived"], summary["completed"], summary["aborted"], summary["unfinished"]) == (4, 4, 0, 0)
    held = dict(zip(report.timeline["t_s"].tolist(), report.timeline["replicas_held"].tolist(), strict=True))
    assert {held[t] for t in held if t < 2.5} == {2}
    assert {held[t] for t in held if 2.5 < t < 5.5} == {1}
    assert {held[t] for t in held if t > 5.5} == {2}
    assert (report.timeline["blocks_free"] <= 100 * report.timeline["replicas_held"]).all()
    assert any("2 times a request lost all" in note for note in report.notes)


def test_work_that_a_failure_lost_is_nobodys() -> None:
    """A request that the failed replica had finished, or another there later, does not pay for those sent elsewhere."""
    work = plain([0, 0, 0, 8], [4, 4, 4, 4], [2, 2, 30, 2])
    process = at((6.5, fails(0)), (7, starts(0)))
    rec = run(work, params(max_num_seqs=2), UnitSteps(), replicas=2, processes=[process])
    assert rec.replica.tolist() == [0, 1, 1, 0]
    assert (rec.retries.tolist(), rec.finish_s[[0, 3]].tolist()) == ([0, 0, 1, 0], [2, 10])
    hours = build_report(rec, work, scenario()).requests["gpu_hours"]
    # busy: request 0 half of two steps (1 s), 3 two steps (2 s), 1 two steps, 2 thirty: the bill is shared by that
    assert hours / hours[0] == pytest.approx([1, 2, 30, 2])
    assert hours.sum() == pytest.approx((6.5 + (rec.end_s - 7) + rec.end_s) / 3600)


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_what_is_not_retried_is_aborted(semantics: str) -> None:
    rec = run(FOUR, params(semantics), UnitSteps(), replicas=2, processes=[at((2.5, fails(0, retried=False)))])
    assert rec.status.tolist() == [ABORTED, COMPLETED, ABORTED, COMPLETED]
    assert (rec.finish_s[[1, 3]].tolist(), rec.retries.tolist()) == ([6, 6], [0] * 4)
    summary = build_report(rec, FOUR, scenario()).summary
    assert (summary["arrived"], summary["completed"], summary["aborted"]) == (4, 2, 2)
    assert summary["gpu_hours"] == pytest.approx((2.5 + 6) / 3600, rel=1e-15)


def test_a_session_ends_with_its_aborted_turn_and_its_slot_goes_on() -> None:
    work = plain(
        [np.nan] * 3, [4] * 3, [6] * 3, session_id=np.array([0, 0, 1]), after=np.array([-1, 0, -1]), concurrency=1
    )
    rec = run(work, params(), UnitSteps(), processes=[at((2.5, fails(0, retried=False)), (3, starts(0)))])
    assert rec.status.tolist() == [ABORTED, NOT_ARRIVED, COMPLETED]
    assert (rec.arrival_s[2], rec.finish_s[2]) == (2.5, 9)


def test_requests_in_a_front_end_go_elsewhere_too() -> None:
    """They are with the replica for 3 s before they count; the failure at 2.5 sends them through the other's."""
    rec = run(FOUR, params(frontend_s=3.0), UnitSteps(), replicas=2, processes=[at((2.5, fails(0)))])
    assert (rec.replica.tolist(), rec.retries.tolist()) == ([1, 1, 1, 1], [1, 0, 1, 0])
    assert rec.admit_s.tolist() == [6, 3, 6, 3]
    assert rec.finish_s.tolist() == [12, 9, 12, 9]


def test_a_process_acts_before_what_happens_at_the_same_time() -> None:
    """The step that ends at 6 would finish two: the replica fails first. What arrives at 6 finds it gone."""
    work = plain([0, 0, 6], [4] * 3, [6] * 3)
    rec = run(work, params(), UnitSteps(), replicas=2, processes=[at((6, fails(0)))])
    assert rec.replica.tolist() == [1, 1, 1]
    assert rec.finish_s.tolist() == [12, 6, 12]


def test_the_cache_is_empty_when_it_starts_again() -> None:
    """Four times one prompt: 7 of its 8 blocks are hit, but not after the failure, which counts as lost from there."""
    tree, leaf = from_pieces([[("p", 0, 32)]] * 4)
    for semantics, hit, replicas in (("vllm", 28, 1), ("sglang", 28, 1), ("vllm", 28, 2)):
        work = replace(plain([0, 10, 20, 30], [32] * 4, [2] * 4), tree=tree, leaf=leaf)
        life = at((15, fails(0)), (16, starts(0)))
        asked = params(semantics)
        rec = run(
            work, asked, UnitSteps(), replicas=replicas, processes=[life, at((0, drains(replicas - 1)), (0, starts(0)))]
        )
        assert rec.hit_tokens.tolist() == [0, hit, 0, hit]
        causes = build_report(rec, work, scenario()).requests
        assert causes["miss_evicted_tokens"].tolist() == [0, 0, hit, 0]
        assert causes["miss_other_replica_tokens"].sum() == 0


def test_what_a_failure_cut_short_was_never_anywhere() -> None:
    """A prompt of 100 tokens in ten steps; in the first of them the replica fails. Its two blocks of that step are all
    that anybody can have entered."""
    tree, leaf = from_pieces([[("p", 0, 100)]] * 2)
    work = replace(plain([0, 20], [101] * 2, [2] * 2), tree=tree, leaf=leaf)
    asked = params(block_size=5, max_num_batched_tokens=10)
    rec = run(work, asked, UnitSteps(), replicas=2, processes=[at((0.5, fails(0, retried=False)))])
    assert (rec.replica[1], rec.ceiling_fleet_tokens[1]) == (1, 10)


# -- draining and starting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_replica_that_drains_finishes_its_own(asynchronous: bool) -> None:
    """Two of four go to each; one drains from 2.5 on and is down at 6, when its last token is out."""
    work = plain([0, 0, 0, 0, 3, 4], [4] * 6, [6] * 6)
    asked = params(async_scheduling=asynchronous)
    rec = run(work, asked, UnitSteps(), replicas=2, processes=[at((2.5, drains(0)))])
    assert rec.replica.tolist() == [0, 1, 0, 1, 1, 1]
    assert rec.finish_s[:4].tolist() == [6] * 4
    assert rec.held_s == [[(0, 6)], [(0, rec.end_s)]]
    assert rec.retries.sum() == 0
    assert rec.samples[0].blocks_cached_idle[-1] == rec.samples[0].blocks_in_use[-1] == 0


def test_draining_waits_for_the_front_end_and_may_be_called_off() -> None:
    rec = run(FOUR, params(frontend_s=3.0), UnitSteps(), replicas=2, processes=[at((1, drains(0)))])
    assert (rec.finish_s.tolist(), rec.held_s[0]) == ([9] * 4, [(0, 9)])
    work = plain([0, 0, 0, 0, 3, 4], [4] * 6, [6] * 6)
    rec = run(work, params(), UnitSteps(), replicas=2, processes=[at((1, drains(0)), (2, starts(0, load_s=50)))])
    assert (rec.replica.tolist(), rec.held_s[0]) == ([0, 1, 0, 1, 0, 1], [(0, rec.end_s)])


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_requests_wait_in_the_front_while_nobody_takes_any(semantics: str) -> None:
    """Down from 2.5 to 4, then 2 s to load: both begin again at 6, beside the one that came at 5."""
    work = plain([0, 0, 5], [4] * 3, [6] * 3)
    seen = []
    process = at((2.5, fails(0)), (4, starts(0, 2.0)), (5.5, lambda fleet: seen.append((fleet.waiting, *fleet.taking))))
    rec = run(work, params(semantics), UnitSteps(), processes=[process])
    assert seen == [(3,)]
    assert rec.first_token_s.tolist() == [7] * 3
    assert rec.finish_s.tolist() == [12] * 3
    assert rec.held_s == [[(0, 2.5), (4, 12)]]
    assert np.all(rec.retries == [1, 1, 0])


def test_an_autoscaler_by_hand() -> None:
    """A request a second, each 2 s of the only place of a replica: at 3 two wait, and the second replica is loaded
    until 5. It then takes what arrives while it has less to do; nobody waits longer than 4 s."""
    n = 9
    work = plain(np.arange(n), [4] * n, [2] * n)

    def scaler(fleet):
        spare = fleet.replicas[1]
        spare.drain()  # nobody is there yet: it is down at once
        while True:
            yield fleet.sleep(1)
            if spare.state == "down" and fleet.replicas[0].waiting >= 1:
                spare.start(load_s=2)

    rec = run(work, params(max_num_seqs=1), UnitSteps(), replicas=2, router="least-loaded", processes=[scaler])
    # at 2 nobody waits: request 1 came at 1, begins at 2; at 3 request 2 waits, so the spare starts and takes from 5 on
    assert rec.held_s == [[(0, rec.end_s)], [(3, rec.end_s)]] or rec.held_s[1][0][0] == 2
    assert rec.replica.tolist()[:4] == [0] * 4
    assert set(rec.replica.tolist()[5:]) == {0, 1}
    assert rec.status.tolist() == [COMPLETED] * n
    alone = run(work, params(max_num_seqs=1), UnitSteps())
    assert rec.finish_s.max() < alone.finish_s.max() == 18


# -- when a run ends -------------------------------------------------------------------------------------------------


def test_a_process_that_never_ends_keeps_no_run_alive() -> None:
    plainly, beside = (run(FOUR, params(), UnitSteps(), replicas=2, processes=p) for p in ((), (polls, polls)))
    assert beside.end_s == plainly.end_s == 6
    assert np.array_equal(beside.finish_s, plainly.finish_s)
    assert beside.held_s == [[(0, 6)], [(0, 6)]]


def test_a_fleet_that_never_comes_back_leaves_requests_unfinished() -> None:
    """A day after the last of its work a run ends, or at its horizon, or with the last process."""
    for processes, horizon_s, end_s in (
        ([at((2.5, fails(0)))], None, 2.5),
        ([at((2.5, fails(0))), polls], 100.0, 100.0),
        ([at((2.5, fails(0))), polls], None, 86_400.0),
    ):
        rec = run(plain([0, 0, 4], [4] * 3, [6] * 3), params(), UnitSteps(), processes=processes, horizon_s=horizon_s)
        assert rec.status.tolist() == [UNFINISHED] * 3
        assert rec.end_s == pytest.approx(max(end_s, 4.0), abs=5)
        assert rec.held_s == [[(0, 2.5)]]
        if horizon_s is not None:
            assert rec.end_s == horizon_s


def test_a_horizon_is_never_passed() -> None:
    """A cut stretch leaves an event behind that nobody waits for: the one after it is beyond the horizon."""
    work = plain([0, 2.2, 50], [4] * 3, [30, 4, 4])
    for horizon_s in (2.0, 20.0, 40.0):
        rec = run(work, params(), UnitSteps(), processes=[polls], horizon_s=horizon_s)
        assert rec.end_s == horizon_s
        assert rec.arrival_s[~np.isnan(rec.arrival_s)].max() <= horizon_s


def test_a_replica_may_come_and_go_in_one_instant() -> None:
    """Nothing is served twice, whatever is called in whatever order: four begin again at 2.5."""

    def juggles(fleet):
        for replica in fleet.replicas:
            replica.drain()
            replica.start()
            replica.drain()
            replica.start(load_s=1)
            replica.drain()
            replica.start()
        yield fleet.sleep(2.5)
        for _ in range(3):
            fleet.replicas[0].fail()
            fleet.replicas[0].start()

    rec = run(FOUR, params(), UnitSteps(), processes=[juggles])
    assert rec.finish_s.tolist() == [8.5] * 4
    assert rec.held_s == [[(0, 2.5), (2.5, 8.5)]]
    assert rec.steps[0].end_s.tolist() == [1, 2, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]


# -- random worlds ---------------------------------------------------------------------------------------------------

TIER = TierParams("host", 200, 64, 1e6, write="write-through")
ENGINES = {
    "vllm": {"max_num_batched_tokens": 40},
    "by priority": {"scheduler_policy": "priority", "max_num_batched_tokens": 40},
    "asynchronous": {"async_scheduling": True},
    "ranked": {"policy": "arc"},
    "tiers": {"tiers": (TIER,)},
    "sglang": {"semantics": "sglang"},
    "behind a front end": {"max_num_batched_tokens": 40, "frontend_s": 0.3},
}


def shaken(seed: int):
    def process(fleet):
        drawn = random.Random(seed)
        while True:
            yield fleet.sleep(drawn.expovariate(30.0))
            replica = drawn.choice(fleet.replicas)
            act = drawn.choice(["fail", "abort", "drain", "start", "start", "start"])
            if act == "start":
                replica.start(drawn.choice([0, 0.1]))
            elif act == "drain":
                replica.drain()
            else:
                replica.fail(retried=act == "fail")
            assert fleet.waiting == 0 or not fleet.taking
            assert all(r.load_tokens() == r.running == r.waiting == 0 for r in fleet.replicas if r.state == "down")

    return process


def same(a: Recording, b: Recording) -> None:
    for f in fields(Recording):
        one, other = getattr(a, f.name), getattr(b, f.name)
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), f.name
    assert (a.held_s, a.end_s, a.evicted_blocks) == (b.held_s, b.end_s, b.evicted_blocks)
    for one, other in zip(a.steps, b.steps, strict=True):
        assert np.array_equal(one.end_s, other.end_s)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_request_is_lost_and_every_run_is_the_same_again(engine: str) -> None:
    """Stepping or not, twice the same; and each request has one fate, each step one time, each cause its tokens."""
    failed = aborted = evicted = 0
    for seed in range(10):
        work = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed // 5])
        asked = EngineParams(kv_blocks=40, block_size=4, max_num_seqs=8, **ENGINES[engine])
        router = ("least-loaded", "session-affinity", "round-robin")[seed % 3]
        given = {"replicas": 3, "router": router, "horizon_s": 600.0}
        rec, again, stepped = (
            run(work, asked, LinearSteps(), **given, processes=[shaken(seed)], fast_forward=fast)
            for fast in (True, True, False)
        )
        same(rec, again)
        same(rec, stepped)
        assert np.isin(rec.status[~np.isnan(rec.finish_s)], COMPLETED).all()
        assert (rec.finish_s > rec.arrival_s)[rec.status == COMPLETED].all()
        assert not (rec.status == UNFINISHED).any()
        summary = build_report(
            rec, work, scenario(cluster=ClusterConfig(replicas=3), run=RunConfig(warmup_s=0.0))
        ).summary
        fates = sum(summary[fate] for fate in ("completed", "aborted", "unfinished", "session_truncated"))
        assert fates + sum(summary["rejected"].values()) == summary["arrived"] == (rec.status != NOT_ARRIVED).sum()
        for spans, steps in zip(rec.held_s, rec.steps, strict=True):
            assert all(a < b for span in spans for a, b in [span])
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
            in_a_span = [any(a < end_s <= b for a, b in spans) for end_s in steps.end_s.tolist()]
            assert all(in_a_span)
        failed, aborted = failed + int(rec.retries.sum()), aborted + summary["aborted"]
        evicted += rec.evicted_blocks
    assert failed > 20
    assert aborted > 5
    assert evicted > 0


def test_what_earlier_engines_did_is_counted() -> None:
    """One prompt after the other in a memory that holds one: half of what is evicted is before the failure."""
    work = plain(np.arange(0, 60, 10.0), [40] * 6, [2] * 6)
    asked = params(kv_blocks=12, tiers=(replace(TIER, write="on-evict"),))
    rec, whole = (
        run(work, asked, UnitSteps(), processes=processes) for processes in ([at((25, fails(0)), (26, starts(0)))], [])
    )
    lost = whole.evicted_blocks - rec.evicted_blocks
    assert 0 < lost < 12  # what the failed one held
    assert rec.tiers[0].written_blocks == rec.evicted_blocks
    assert 0 < rec.tiers[0].stored_blocks < rec.tiers[0].written_blocks
    down = run(work, asked, UnitSteps(), processes=[at((25, fails(0)), (26, starts(0)), (50.5, drains(0)))])
    assert (down.tiers[0].stored_blocks, down.tiers[0].written_blocks) == (0, rec.tiers[0].written_blocks)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "says"),
    [
        (at((0, lambda fleet: fleet.sleep(-1))), "a process sleeps -1 s: expected a number of at least 0"),
        (at((0, lambda fleet: fleet.sleep(float("nan")))), "a process sleeps nan s"),
        (at((0, lambda fleet: fleet.sleep("1"))), "a process sleeps '1' s"),
        (at((1, fails(0)), (2, starts(0, -5))), "replica 0 starts after -5 s"),
        (3, "process 3: expected a generator function of one argument, the fleet"),
        (lambda fleet: None, "expected a generator function"),
    ],
)
def test_a_wrong_process_is_one_line(process, says: str) -> None:
    with pytest.raises(InputError) as error:
        run(FOUR, params(), UnitSteps(), processes=[process])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_what_has_no_meaning_with_processes_is_refused() -> None:
    for given, options in (({"policy": "clairvoyant"}, {}), ({}, {"record_cache": True})):
        with pytest.raises(InputError, match=r"^processes \(.*\) with .*; expected a run without$"):
            run(FOUR, params(**given), UnitSteps(), processes=[polls], **options)
