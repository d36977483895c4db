"""Fleets that change over time: the rules by tables, tiny worlds by hand, and no request lost whatever happens.

python -m pytest tests/test_autoscale.py
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.figures import replicas_over_time
from kvcast.figures.svg import as_svg
from kvcast.planner import plan
from kvcast.planner.disturbed import failure
from kvcast.planner.options import Options
from kvcast.planner.trials import Trials
from kvcast.planner.words.beyond import failure as failure_words
from kvcast.present import summary_text
from kvcast.present.html_comparison import of_comparison
from kvcast.scenario.autoscale import warm_note
from kvcast.scenario.toml import dumps
from kvcast.store.simulations import Lab
from kvcast.studies import compare
from kvcast.studies.explain import explain
from sim.fleet.autoscaler import autoscaler
from sim.fleet.shocks import processes_of
from sim.measure.report import build_report
from sim.recording import COMPLETED, KV_TOO_SMALL, NOT_ARRIVED, UNFINISHED
from sim.scaling import RULES, Scaler, Seen, by_ratio, by_tokens, limited, next_change_s, scheduled, stabilised
from sim.scenario import AutoscaleConfig, ClientConfig, ClusterConfig, EngineParams, RunConfig, Shock
from sim.simulate import run
from tests.plan_cases import CHAT
from tests.recordings import scenario
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError

# -- the rules, on numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "total", "target", "wanted"),
    [
        (4, 64, 16, 4),  # at the target
        (4, 70.4, 16, 4),  # 10 % above: within the tolerance
        (4, 70.5, 16, 5),
        (4, 57.6, 16, 4),  # 10 % below
        (4, 57.5, 16, 4),  # beyond it, but ceil(3.59) is 4
        (4, 48, 16, 3),
        (4, 0, 16, 0),  # the fewest are the caller's
        (1, 160, 16, 10),
        (3, 9 * 0.1, 0.3, 3),  # 0.9 / 0.3 is above 3 in floating point
    ],
)
def test_the_formula_of_kubernetes(n, total, target, wanted):
    assert by_ratio(n, total, target, 0.1) == wanted


def test_token_aware():
    """ceil(backlog / v / 1.5 s) = ceil(100,000 / 15,928 / 1.5) = 5, ceil(2.5 / 0.8) = 4."""
    assert by_tokens(100_000, 15_928, 2.5, 0.8) == 5
    assert by_tokens(0, 15_928, 2.5, 0.8) == 4
    assert by_tokens(0, 15_928, 0.0, 0.8) == 0


def test_down_by_the_highest_and_up_by_the_lowest_of_their_windows():
    asked = [(0.0, 9), (15.0, 4), (300.0, 2)]
    assert stabilised(asked, 300.0, 9, 0.0, 300.0) == 4  # that of 0 s is 300 s old
    assert stabilised(asked, 299.9, 9, 0.0, 300.0) == 9
    assert stabilised([(0.0, 1), (30.0, 5), (60.0, 7)], 60.0, 2, 31.0, 300.0) == 5
    assert stabilised([(30.0, 5), (60.0, 7)], 60.0, 2, 0.0, 0.0) == 7
    assert stabilised([(0.0, 1), (60.0, 7)], 60.0, 2, 100.0, 100.0) == 2  # neither is sure


def test_at_most_double_or_four_more_at_once():
    assert [limited(n, 100, 100.0, 4, None) for n in (1, 3, 4, 5, 10)] == [5, 7, 8, 10, 20]
    assert limited(10, 13, 100.0, 4, None) == 13
    assert limited(10, 1, 100.0, 4, None) == 1
    assert limited(10, 1, 100.0, 4, 2) == 8


def test_a_schedule():
    times_s, counts = (0.0, 3600.0, 7200.0), (2, 8, 3)
    at = (0.0, 3599.9, 3600.0, 7200.0, 86_399.0, 86_400.0, 90_000.0, -1.0)
    assert [scheduled(times_s, counts, 86_400.0, t) for t in at] == [2, 2, 8, 3, 3, 2, 8, 3]
    assert [next_change_s(times_s, 86_400.0, t) for t in (0.0, 3000.0, 7200.0)] == [3600.0, 600.0, 79_200.0]
    assert scheduled((60.0,), (5,), 100.0, 0.0) == 5  # before the first row: the last one of the cycle before


def seen(at_s, requests, running=None):
    running = requests if running is None else running
    return Seen(at_s, running, requests - running, 0.0, 0)


def wanted(rule, rows, least=1, most=100, begins=None, **given):
    """What a named rule wants at each (time, requests in all) it sees, of replicas that begin with `begins`."""
    scaler = Scaler(AutoscaleConfig(rule=rule, **given).as_rule(), least, most, begins or least)
    back_s = scaler.rule.lookback_s
    history = [seen(at_s, n) for at_s, n in rows]
    return [
        scaler.decide(one.at_s, [old for old in history[: i + 1] if old.at_s > one.at_s - back_s] or [one])
        for i, one in enumerate(history)
    ]


def test_hpa_goes_up_at_once_and_down_after_five_minutes():
    rows = [(15.0 * i, 160 if i < 4 else 16) for i in range(1, 30)]
    found = wanted("hpa", rows, target=16.0)
    assert found[:3] == [5, 10, 10]  # four more than one, then double
    down = next(i for i, n in enumerate(found) if n < 10 and i > 1)
    assert rows[down][0] == 45.0 + 300.0
    assert found[-1] == 1


def test_llm_d_counts_what_runs():
    scaler = Scaler(RULES["llm-d"], 1, 9, 2)
    assert scaler.decide(15.0, [seen(15.0, 500, running=33)]) == 2  # 33 / 32: within 10 %
    assert scaler.decide(30.0, [seen(30.0, 500, running=48)]) == 3


def test_production_stack_counts_what_waits():
    scaler = Scaler(RULES["production-stack"], 1, 9, 1)
    assert scaler.decide(15.0, [seen(15.0, 500, running=495)]) == 1
    assert scaler.decide(30.0, [seen(30.0, 500, running=489)]) == 3  # ceil(11 / 5)
    found = [scaler.decide(t, [seen(t, 10)]) for t in (45.0, 389.0, 390.0)]  # nobody waits
    assert found == [3, 3, 1]


def test_ray_serve_waits_thirty_seconds_up_and_ten_minutes_down():
    rows = [(10.0 * i, 2 if i < 3 else 20 if i < 12 else 0) for i in range(1, 90)]
    found = dict(zip([t for t, _ in rows], wanted("ray-serve", rows), strict=True))
    # means over 30 s: 2, 2, 8, 14, 20, ...: ceil(8 / 2) = 4 from 30 s on is the lowest of 30 s at 50 s
    assert [found[t] for t in (20.0, 30.0, 40.0, 50.0, 60.0, 70.0)] == [1, 1, 1, 4, 7, 10]
    assert found[700.0] == 10
    assert found[720.0] < 10


def test_knative_panics():
    """70 a replica, and from 60 s on 150 at once: over 6 s that is twice what is wanted: it only grows for a minute."""
    rows = [(float(t), 60 if t < 60 else 150 if t < 70 else 0) for t in range(1, 200)]
    found = dict(zip([t for t, _ in rows], wanted("knative", rows), strict=True))
    assert [found[t] for t in (59.0, 60.0)] == [1, 2]  # (5 x 60 + 150) / 6 = 75 asks for 2, twice 1
    assert [found[t] for t in (61.0, 64.0, 65.0)] == [2, 2, 3]  # (60 + 5 x 150) / 6 = 135, then 150
    assert found[119.0] == 3
    assert found[120.0] == 1  # 9 x 150 / 60 = 22.5 over the last minute


def test_slo_follows_the_ttft_and_goes_down_one_by_one():
    scaler = Scaler(RULES["slo"]._replace(target=1.0, down_wait_s=0.0), 1, 20, 4)
    one = [seen(0.0, 1)]
    assert [scaler.decide(15.0 * i, one, ttft_s) for i, ttft_s in enumerate((1.05, 1.5, 0.2, 0.2, 30.0))] == [
        4,
        6,
        5,
        4,
        8,
    ]


def test_slo_takes_one_every_five_minutes():
    scaler = Scaler(RULES["slo"]._replace(target=1.0), 1, 20, 4)
    found = [scaler.decide(15.0 * i, [seen(0.0, 1)], 0.1) for i in range(1, 62)]
    assert [15.0 * (found.index(n) + 1) for n in (4, 3, 2, 1)] == [15.0, 300.0, 600.0, 900.0]


# -- tiny worlds by hand ---------------------------------------------------------------------------------------------

ONE_AT_A_TIME = EngineParams(kv_blocks=100, block_size=4, max_num_seqs=1, async_scheduling=False)


def scaled(rule, **given):
    return AutoscaleConfig(rule=rule, **{"start_s": 2.0, "period_s": 1.0, "scrape_s": 1.0, **given})


def test_a_fleet_that_scales_by_hand() -> None:
    """Two seconds of a place each: at 5 s two requests are there, so a second replica starts, and takes what comes from
    7 s on. At 11 s there are still two, so 14 s is the first second of which the last three have not asked for two."""
    work = plain([0, 4, 4.5, 5.5, 6, 7.5, 8, 30], [4] * 8, [2] * 8)
    config = scaled("hpa", target=1.0, tolerance=0.0, down_wait_s=3.0, up_percent=0.0, up_replicas=1)
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=2, router="least-loaded", processes=[autoscaler(config)])
    assert rec.status.tolist() == [COMPLETED] * 8
    first, second = rec.held_s
    assert first == [(0, 32)]
    assert second == [(0, 3), (5, 14)]  # both were wanted at 0 s, and for three seconds more
    assert rec.replica.tolist() == [0, 0, 0, 0, 0, 1, 1, 0]
    assert rec.finish_s.tolist() == [2, 6, 8, 10, 12, 9.5, 11.5, 32]


def test_metrics_are_as_old_as_they_are() -> None:
    """The same with metrics 3 s old: what a decision sees at 8 s is what was there at 5 s."""
    work = plain([0, 4, 4.5, 5.5, 6, 7.5, 8, 30], [4] * 8, [2] * 8)
    config = scaled("hpa", target=1.0, tolerance=0.0, down_wait_s=3.0, up_percent=0.0, up_replicas=1, delay_s=3.0)
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=2, router="least-loaded", processes=[autoscaler(config)])
    assert rec.held_s[1][0] == (0, 4)  # the first look, of 1 s, is seen at 4 s
    assert rec.held_s[1][1][0] == 8


def test_a_schedule_by_hand() -> None:
    """Two replicas until 10 s, one until 20 s of a clock that shows 5 s at the start."""
    config = AutoscaleConfig(rule="schedule", times_s=(0.0, 10.0), replicas=(2, 1), cycle_s=20.0, start_s=1.0)
    work = plain(np.arange(0, 40, 2.0), [4] * 20, [1] * 20)
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=3, processes=[autoscaler(config, clock_s=5.0)])
    assert rec.held_s[2] == []
    assert rec.held_s[0] == [(0, rec.end_s)]
    assert np.array(rec.held_s[1]) == pytest.approx(np.array([(0, 5), (15, 25), (35, rec.end_s)]), abs=1e-5)
    assert (rec.status == COMPLETED).all()


@pytest.mark.parametrize("rule", ["knative", "slo", "schedule"])
def test_a_fleet_that_may_not_shrink_is_the_static_one(rule: str) -> None:
    work = random_workload(5, closed=True)
    params = EngineParams(kv_blocks=40, block_size=4, max_num_seqs=8)
    config = AutoscaleConfig(rule=rule, target=1.0, min_replicas=3, times_s=(0.0, 0.3), replicas=(3, 3), start_s=1.0)
    static, scales = (
        run(work, params, LinearSteps(), replicas=3, router="least-loaded", processes=processes)
        for processes in ((), [autoscaler(config)])
    )
    assert np.array_equal(static.finish_s, scales.finish_s, equal_nan=True)
    assert scales.held_s == [[(0, scales.end_s)]] * 3
    assert scales.end_s == static.end_s


@pytest.mark.parametrize(("grace_s", "finish_s", "retries"), [(None, 20, 0), (6.0, 27, 1)])
def test_what_drains_is_served_or_begins_again(grace_s, finish_s, retries) -> None:
    """A request of 20 s on the second replica, which is not wanted from 1 s on: after 6 s it begins again at 7 s."""
    config = AutoscaleConfig(
        rule="schedule", times_s=(0.0, 1.0), replicas=(2, 1), cycle_s=1000.0, start_s=1.0, grace_s=grace_s
    )
    work = plain([0, 0], [4, 4], [2, 20])
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=2, processes=[autoscaler(config)])
    assert rec.finish_s[1] == pytest.approx(finish_s, abs=1)
    assert rec.retries.tolist() == [0, retries]
    assert rec.held_s[1][0][1] == pytest.approx(20 if grace_s is None else 7, abs=1e-5)


def test_a_grace_is_of_its_own_drain() -> None:
    """The second replica drains from 1 s on, is called off at 3 s, and drains again from 4 s: with a grace of 5 s what
    runs there ends at 9 s, not at 6 s."""
    config = AutoscaleConfig(
        rule="schedule", times_s=(0.0, 1.0, 3.0, 4.0), replicas=(2, 1, 2, 1), cycle_s=1000.0, grace_s=5.0
    )

    def called_off(fleet):
        yield fleet.sleep(2.5)
        fleet.replicas[1].start()

    work = plain([0, 0], [4, 4], [2, 20])
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=2, processes=[autoscaler(config), called_off])
    assert rec.held_s[1] == [(0, pytest.approx(9, abs=1e-5))]
    assert rec.retries.tolist() == [0, 1]


def test_a_lost_replica_is_replaced_where_one_is_free() -> None:
    """Of three places one is wanted: where the first fails the second starts at once, and then the third."""
    config = AutoscaleConfig(rule="schedule", times_s=(0.0,), replicas=(1,), cycle_s=1000.0, start_s=2.0)
    work = plain([0, 3, 40], [4] * 3, [2, 4, 2])
    for places in (1, 3):  # the shock has all of them: nothing starts until it is over
        down = Shock("replica-down", 3.5, 30.0, replicas=places, load_s=1.0)
        processes = [autoscaler(config), *processes_of([down], 0.0)]
        rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=places, processes=processes)
        assert rec.held_s == [[(0, 3.5), (33.5, rec.end_s)], [], []][:places]
        assert rec.first_token_s[1] == 33.5 + 2 + 1
    lost = [Shock("spot-loss", 0.0, 10.0, losses_per_hour=3600.0, notice_s=0.0, away_s=1000.0)]
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=3, processes=[autoscaler(config), *processes_of(lost, 0.0, 1)])
    assert sum(bool(spans) for spans in rec.held_s) > 1
    starts, ends = (sorted(span[i] for spans in rec.held_s for span in spans if span[0] < 900) for i in (0, 1))
    assert starts[1:] == ends[:-1]  # one goes, the next comes
    assert len(starts) == 3


def test_a_place_that_was_still_drained_starts_when_it_is_free() -> None:
    """Two replicas are wanted again from 3 s on, while the second is busy until 20 s: it starts at 20 s."""
    config = AutoscaleConfig(
        rule="schedule", times_s=(0.0, 1.0, 3.0), replicas=(2, 1, 2), cycle_s=1000.0, start_s=2.0, grace_s=50.0
    )
    lost = [Shock("spot-loss", 22.5, 0.5, losses_per_hour=3600.0, notice_s=60.0)]
    work = plain([0, 0, 22, 22, 90], [4] * 5, [2, 20, 40, 40, 1])
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=2, processes=[autoscaler(config), *processes_of(lost, 0.0, 9)])
    assert rec.held_s[1][:2] == [(0, 20), (20, pytest.approx(62, abs=1))]
    assert rec.retries.tolist() == [0] * 5  # the grace of the first drain, which ended at 51 s, is not the second's


def test_who_is_turned_away_waits_for_no_first_token() -> None:
    """A prompt of 1,000 tokens, which no replica can hold, at 5 s: not a request that has waited for minutes."""
    config = scaled("slo", target=5.0, lookback_s=100.0, down_wait_s=1.0)
    work = plain([0, 5, 60], [4, 1000, 4], [2, 2, 2])
    rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=2, processes=[autoscaler(config)])
    assert rec.status.tolist() == [COMPLETED, KV_TOO_SMALL, COMPLETED]
    assert rec.held_s == [[(0, 62)], [(0, 1)]]


def test_a_shock_of_a_fleet_that_scales_hits_what_is_there() -> None:
    """One of three places is wanted: it is that one that fails, the next starts at once."""
    config = AutoscaleConfig(rule="schedule", times_s=(0.0,), replicas=(1,), cycle_s=1000.0, start_s=2.0)
    work = plain([0, 3, 40], [4] * 3, [2, 4, 2])
    for kind, finish_s in (("replica-down", 3.5 + 2 + 4), ("slow-replica", 4 + 3 * 3)):
        shocks = processes_of([Shock(kind, 3.5, 30.0)], 0.0)
        rec = run(work, ONE_AT_A_TIME, UnitSteps(), replicas=3, processes=[autoscaler(config), *shocks])
        assert rec.finish_s.tolist() == [2, finish_s, 42]


# -- shocks that take a fleet apart ----------------------------------------------------------------------------------


def test_a_rolling_restart_by_hand() -> None:
    """Two replicas, 20 s: the first drains at 10 s, has served at 12 s what it has, loads until 15 s; the second at 20
    s has a request of 30 s, which begins again on the first after the notice of 4 s."""
    shock = Shock("rolling-restart", 10.0, 20.0, notice_s=4.0, load_s=3.0)
    work = plain([8.5, 8.5, 11.0, 16.0], [4] * 4, [3, 30, 5, 2])
    params = EngineParams(kv_blocks=100, block_size=4, max_num_seqs=4, async_scheduling=False)
    rec = run(work, params, UnitSteps(), replicas=2, processes=processes_of([shock], 0.0))
    assert rec.replica.tolist() == [0, 0, 1, 1]
    assert rec.retries.tolist() == [0, 1, 0, 0]
    assert rec.finish_s[0] == 11.5
    assert rec.held_s[0] == [(0, 11.5), (11.5, rec.end_s)]
    assert rec.held_s[1] == [(0, 24.0), (24.0, rec.end_s)]
    assert rec.first_token_s[3] > 16
    assert (rec.status == COMPLETED).all()


def test_spot_losses_come_at_their_rate_and_leave_in_their_notice() -> None:
    """Four replicas for two hours at one loss an hour each while they are up: with 100 s away and 20 s to load
    4 x 2 / (1 + 120 / 3600) are expected."""
    shock = Shock("spot-loss", 0.0, 7200.0, notice_s=30.0, away_s=100.0, load_s=20.0)
    work = plain(np.arange(0, 7200, 20.0), [4] * 360, [10] * 360)
    params = EngineParams(kv_blocks=100, block_size=4, max_num_seqs=4, async_scheduling=False)
    found, retries = [], 0
    for seed in range(8):
        rec = run(work, params, UnitSteps(), replicas=4, processes=processes_of([shock], 0.0, seed))
        found.append(sum(len(spans) - 1 for spans in rec.held_s))
        retries += int(rec.retries.sum())
        assert (rec.status == COMPLETED).all()
        for spans in rec.held_s:
            assert all(start - end >= 100.0 - 1e-9 for (_, end), (start, _) in pairwise(spans))
    expected = 8 * 8 / (1 + 150 / 3600)
    assert abs(sum(found) - expected) < 3 * np.sqrt(expected)
    assert retries == 0  # 10 s of answer fit in the notice
    hard = Shock("spot-loss", 0.0, 7200.0, notice_s=0.0, losses_per_hour=20.0, away_s=10.0, load_s=0.0)
    rec = run(work, params, UnitSteps(), replicas=4, processes=processes_of([hard], 0.0, 0))
    assert rec.retries.sum() > 5


# -- no request is lost ----------------------------------------------------------------------------------------------


def world(seed: int):
    """A random fleet that scales, loses replicas, restarts in turn, with clients that give up and try again."""
    rng = np.random.default_rng(seed)
    rule = str(rng.choice(["hpa", "llm-d", "production-stack", "ray-serve", "knative", "slo", "schedule"]))
    config = AutoscaleConfig(
        rule=rule,
        target=None if rule == "schedule" else float(rng.choice([0.05, 1.0, 3.0])),
        period_s=0.1 + 0.3 * float(rng.random()),
        scrape_s=0.1 + 0.3 * float(rng.random()),
        delay_s=float(rng.choice([0.0, 0.3])),
        down_wait_s=float(rng.choice([0.0, 0.5])),
        start_s=float(rng.choice([0.0, 0.4])),
        grace_s=[None, 0.0, 0.2][rng.integers(3)],
        times_s=(0.0, 0.7, 1.1),
        replicas=(1, 4, 2),
        cycle_s=1.5,
    )
    shocks = [
        Shock("spot-loss", 0.2, 5.0, losses_per_hour=2000.0, notice_s=0.1, away_s=0.3, load_s=0.1),
        Shock("rolling-restart", 0.5, 2.0, notice_s=0.1, load_s=0.1),
        Shock("replica-down", 1.0, 0.5, replicas=int(rng.integers(1, 5)), load_s=0.1),
        Shock("cache-lost", 1.5, 0.1),
    ]
    taken = [one for one in shocks if rng.random() < 0.6]
    client = ClientConfig(timeout_s=float(rng.choice([0.3, 2.0])), retries=2, backoff_s=0.1)
    return config, taken, client if rng.random() < 0.5 else None


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_no_request_is_lost_whatever_comes_together(semantics: str) -> None:
    retried = gone = 0
    for seed in range(24):
        config, shocks, client = world(seed)
        work = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed % 3 // 2])
        params = EngineParams(kv_blocks=40, block_size=4, max_num_seqs=8, semantics=semantics)
        rec = run(
            work,
            params,
            LinearSteps(),
            replicas=4,
            router=("least-loaded", "session-affinity", "round-robin")[seed % 3],
            horizon_s=300.0,
            client=client,
            processes=[autoscaler(config), *processes_of(shocks, 0.0, seed)],
        )
        told = scenario(cluster=ClusterConfig(replicas=4), run=RunConfig(warmup_s=0.0))
        summary = build_report(rec, work, told).summary
        fates = sum(summary[fate] for fate in ("completed", "aborted", "abandoned", "unfinished", "session_truncated"))
        assert fates + sum(summary["rejected"].values()) == summary["arrived"] == (rec.status != NOT_ARRIVED).sum()
        assert not (rec.status == UNFINISHED).any()
        assert (rec.finish_s > rec.arrival_s)[rec.status == COMPLETED].all()
        for spans, steps in zip(rec.held_s, rec.steps, strict=True):
            assert all(a <= b for span in spans for a, b in [span])
            assert all(one[1] <= two[0] for one, two in pairwise(spans))
            assert all(any(a < end_s <= b for a, b in spans) for end_s in steps.end_s.tolist())
        retried, gone = retried + int(rec.retries.sum()), gone + summary["abandoned"]
    assert retried > 50
    assert gone > 0


# -- scenarios -------------------------------------------------------------------------------------------------------

DOC = {
    "workload": {"preset": "chat", "rate": 2.0, "duration_s": 200.0, "demand": {"factors": [1, 3], "period_s": 200}},
    "run": {"warmup_s": 0.0},
    "cluster": {"replicas": 3},
    "slo": {"ttft_s": 2.0},
}


def doc(**given):
    return {**DOC, "autoscale": given}


def test_a_scenario_is_resolved_to_the_last_key() -> None:
    found = api.resolve(scenario_from_doc(doc(rule="llm-d"))).scenario.autoscale
    assert (found.metric, found.target, found.period_s, found.down_wait_s) == ("running", 16.0, 15.0, 300.0)
    assert found.start_s == pytest.approx(146 + 16.06 / 0.5, abs=0.1)  # 8.03 G parameters of two bytes
    assert api.resolve(scenario_from_doc(doc(rule="slo"))).scenario.autoscale.target == 2.0
    assert "go down after 315 s" in warm_note(replace(scenario_from_doc(DOC), autoscale=found))
    long = {**doc(rule="llm-d"), "run": {"warmup_s": 316.0}}
    assert warm_note(api.resolve(scenario_from_doc(long)).scenario) == ""
    assert api.resolve(scenario_from_doc(doc(rule="hpa", target=3, start_s=9))).scenario.autoscale.start_s == 9


def test_a_scenario_of_it_is_a_file_that_loads_as_it_is() -> None:
    shock = {"kind": "spot-loss", "losses_per_hour": 2.0, "notice_s": 10.0}
    one = scenario_from_doc({**doc(rule="schedule", times_s=[0, 60], replicas=[1, 2]), "shock": [shock]})
    for given in (one, api.resolve(one).scenario):
        assert scenario_from_doc(tomllib.loads(dumps(given))) == given


def test_a_month_is_told_of_a_whole_period_only() -> None:
    """The demand repeats after 300 s: a fleet that follows it costs in half of them what it does not all month."""
    for lasts_s, known in ((300.0, True), (150.0, False)):
        workload = {**SMALL["workload"], "demand": {"factors": [1, 2], "period_s": 300}, "duration_s": 60 + lasts_s}
        for rule in ("none", "schedule"):
            given = {**SMALL, "workload": workload, "autoscale": {**SMALL["autoscale"], "rule": rule, "cycle_s": 300}}
            found = api.simulate(scenario_from_doc(given)).summary["cost"]["at_offered"]
            assert (found["usd_per_month"] is not None) == (known or rule == "none")
            assert found["usd_per_request"] > 0


@pytest.mark.parametrize(
    ("replicas", "cycle_s", "month"), [([2, 1], 300.0, True), ([2, 1], 301.0, False), ([1, 1], 1e5, True)]
)
def test_a_month_is_told_of_a_whole_schedule_only(replicas, cycle_s, month) -> None:
    """A window of 300 s of a steady load shows what a schedule of 300 s costs, and of a longer one a part."""
    own = {"rule": "schedule", "times_s": [0, 100], "replicas": replicas, "cycle_s": cycle_s, "grace_s": 0.0}
    given = {**SMALL, "workload": {**SMALL["workload"], "duration_s": 360.0}, "autoscale": own}
    found = api.simulate(scenario_from_doc(given)).summary
    assert (found["cost"]["at_offered"]["usd_per_month"] is not None) == month


def test_a_month_is_not_told_of_a_window_with_a_loss() -> None:
    given = {**SMALL, "autoscale": {"rule": "none"}, "shock": [{"kind": "replica-down", "duration_s": 100.0}]}
    found = api.simulate(scenario_from_doc(given)).summary
    assert found["replicas_held"] < SMALL["cluster"]["replicas"]
    assert found["cost"]["at_offered"]["usd_per_month"] is None
    calm = api.simulate(scenario_from_doc({**given, "shock": []})).summary["cost"]["at_offered"]
    assert found["cost"]["at_offered"]["usd_per_request"] == calm["usd_per_request"], "the whole fleet is paid for"


def test_what_a_fleet_that_scales_costs_is_not_told_of_a_window_with_a_loss() -> None:
    own = {**SMALL["autoscale"], "rule": "schedule"}
    given = {**SMALL, "autoscale": own, "shock": [{"kind": "replica-down", "duration_s": 100.0}]}
    assert set(api.simulate(scenario_from_doc(given)).summary["cost"]["at_offered"].values()) == {None}


def test_a_fleet_that_scales_or_fails_is_explained_without_an_optimum() -> None:
    lost = {**SMALL, "autoscale": {"rule": "none"}, "shock": [{"kind": "replica-down", "duration_s": 100.0}]}
    for given in ({**SMALL, "autoscale": {**SMALL["autoscale"], "rule": "schedule"}}, lost):
        found = explain(scenario_from_doc(given), causes=0)
        assert found["evicted_split"] is None
        assert found["prompt_tokens"] > found["prefix_hit_tokens"] > 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rule": "hpa"}, "[autoscale] rule = 'hpa': expected a target with it"),
        ({"rule": "hpb"}, "rule = 'hpb': expected one of"),
        ({"rule": "llm-d", "min_replicas": 4}, "min_replicas = 4: expected at most cluster.replicas = 3"),
        ({"rule": "llm-d-tokens"}, "expected prefill_tokens_per_s with it"),
        ({"rule": "schedule"}, "with 0 times_s and 0 replicas"),
        ({"rule": "schedule", "times_s": [0, 0], "replicas": [1, 2]}, "times_s[1] = 0: expected a time after 0"),
        ({"rule": "schedule", "times_s": [0, 90000], "replicas": [1, 2]}, "cycle_s = 86400: expected a time after"),
        ({"rule": "schedule", "times_s": [0], "replicas": [4]}, "replicas[0] = 4: expected 1 to cluster.replicas = 3"),
        ({"rule": "llm-d", "period_s": 0.0}, "period_s = 0.0: expected 0.1 to 86,400"),
        (
            {"rule": "schedule", "times_s": [0], "replicas": [1], "cycle_s": 1e-6},
            "cycle_s = 1e-06: expected 1 to 1e+09",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(given, says) -> None:
    with pytest.raises(InputError) as error:
        api.resolve(scenario_from_doc(doc(**given)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rolling_restart_needs_its_time() -> None:
    shock = {"kind": "rolling-restart", "duration_s": 200}
    with pytest.raises(InputError, match=r"duration_s = 200: expected at least 270, 3 replicas"):
        scenario_from_doc({**DOC, "shock": [shock]})


# -- what is told of it ----------------------------------------------------------------------------------------------

SMALL = {
    "workload": {"class": [{**CHAT, "rate": 1.0}], "duration_s": 300.0},
    "run": {"warmup_s": 60.0},
    "model": {"name": "tiny"},
    "hardware": {"profile": "roofline:h200"},
    "engine": {"step_overhead_ms": 5.0, "kv_blocks": 20_000, "max_model_len": 16384},
    "cluster": {"replicas": 2},
    "slo": {"ttft_s": 0.5, "attainment": 0.9},
    "cost": {"gpu_hour_usd": 2.0},
    "autoscale": {"times_s": [0, 120, 180], "replicas": [2, 1, 2], "start_s": 10.0},
}


def test_fleets_over_time_side_by_side() -> None:
    """240 s are judged: all of them two replicas, or one from 120 to 180 s after the warm-up, and what it drains."""
    found = compare.simulate_all(compare.variants(SMALL, ["autoscale.rule=none,schedule"]))
    static, scheduled_ = (one.summary for one in found)
    assert "fleet" not in static
    fleet = scheduled_["fleet"]
    assert (fleet["rule"], fleet["fewest"], fleet["most"], fleet["starts"]) == ("schedule", 1, 2, 1)
    window_h = (scheduled_["window"]["end_s"] - scheduled_["window"]["start_s"]) / 3600
    assert fleet["gpu_hours_all"] == pytest.approx(2 * window_h)
    assert fleet["gpu_hours"] == pytest.approx(scheduled_["gpu_hours"], rel=1e-12)
    assert fleet["gpu_hours"] == pytest.approx(2 * window_h - 60 / 3600, abs=10 / 3600)
    assert scheduled_["cost"]["usd"] == pytest.approx(2.0 * fleet["gpu_hours"])
    table = compare.as_table(found)
    assert "fleets over time" in table
    page = of_comparison(compare.as_document(found))
    assert "Fleets over time" in page
    assert f"{scheduled_['cost']['usd']:.2f}" in page
    (row,) = [line.split() for line in table.splitlines() if line.startswith("schedule") and " 1 " in line]
    assert row[2:5] == ["1", "2", "1"]


def test_a_run_says_what_it_held() -> None:
    given = scenario_from_doc({**SMALL, "autoscale": {**SMALL["autoscale"], "rule": "schedule"}})
    result = api.run(api.prepare(given))
    figure = replicas_over_time(result.report.timeline)
    assert max(figure.data[0].y) == max(figure.data[1].y) == 2
    assert min(figure.data[0].y) == 1
    assert as_svg(figure, "fleet").count("<path") + as_svg(figure, "fleet").count("<polyline") >= 2
    told = summary_text.describe(result)
    assert "held (1 to 2, schedule)" in told
    assert "% of all replicas'" in told
    assert "scaling: schedule, 2 from 0 s, 1 from 120 s, 2 from 180 s; at most 2 replicas" in told.replace(
        "\n    ", " "
    )


def test_a_plan_says_what_a_failure_does_and_refuses_what_scales(tmp_path) -> None:
    doc = {**SMALL, "autoscale": {"start_s": 20.0}, "plan": {"recover_within_s": 60.0}, "cluster": {"replicas": 2}}
    one = api.windowed(scenario_from_doc(doc))
    with Trials(Lab(tmp_path), [0], 0.95) as trials:
        fleet = SimpleNamespace(
            winner=0, trials=trials, answer=SimpleNamespace(meets=True, trial=SimpleNamespace(scenario=one))
        )
        told = failure(fleet, Options())
        assert failure(fleet, Options(recover=False)) is None
        alone = replace(one, cluster=replace(one.cluster, replicas=1))
        fleet.answer.trial.scenario = alone
        assert failure(fleet, Options()) is None
    assert told["down_s"] == 20.0
    assert told["attainment_before"] > 0.9
    assert told["recovered_s"] is None or told["recovered_s"] <= 600
    words = failure_words({"failure": told})
    assert "one replica fails, and is back, cold, after 20.0 s" in words
    assert failure_words({}) == ""
    with pytest.raises(InputError, match=r"rule = 'slo': a plan looks for a fleet that does not change"):
        plan(scenario_from_doc({**SMALL, "autoscale": {"rule": "slo"}}))


def test_a_clock_that_is_stopped_beside_processes_stands_where_it_was() -> None:
    """It went on to the horizon, and every step under way was taken for done."""
    from simpy.core import StopSimulation

    from sim.fleet.clock import Clock

    def stop(request: int) -> None:
        raise StopSimulation(None)

    clock = Clock()
    clock.call_at(3.0, 0, stop)
    clock.run_beside(10.0, lambda: False)
    assert clock.now == 3.0
