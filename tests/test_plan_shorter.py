"""A plan's window: the same steady state as every other command's, for fewer requests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kvcast import api
from kvcast.planner.cautions import _too_short
from kvcast.planner.disturbed import n_plus_1
from kvcast.planner.load import with_load
from kvcast.planner.options import Options
from kvcast.planner.sampled import sampled
from kvcast.planner.shorter import MUCH, shorter
from kvcast.planner.trials import Trial
from kvcast.studies.windows import together
from kvcast.studies.work import guess_replicas
from sim.measure.verdict import Interval
from sim.scenario import BURST, Shock
from tests.plan_cases import scenario
from workloads import mix
from workloads.clock import earliest_s
from workloads.errors import InputError
from workloads.steady import fill_s, requests_per_s, session_s

TALK = {
    "name": "talk",
    "rate": 4.0,
    "layers": [{"name": "system", "scope": "global", "tokens": {"value": 500}}],
    "turns": {"kind": "geometric", "mean": 8, "high": 40},
    "think": {"kind": "lognormal", "median": 20, "p90": 120, "high": 1800},
    "turn_input": {"value": 60},
    "output": {"value": 20},
}


def asked(**sections):
    ours = {"class": [TALK], "duration_s": None, **sections.pop("workload", {})}
    run = {"warmup_s": None, "duration_s": None, **sections.pop("run", {})}
    one = scenario(workload=ours, run=run, **sections)
    return replace(one, cluster=replace(one.cluster, replicas=3, router="session-affinity"))


def cut(one):
    (whole,) = together([one])
    return whole, shorter([whole], [one])[0]


def in_progress(one, at_s: float) -> int:
    """Sessions that have begun by a time and have a request after it."""
    workload = api.load_workload(one.workload, 0)
    at, session = earliest_s(workload), workload.session_id
    first, last = np.full(session.max() + 1, np.inf), np.zeros(session.max() + 1)
    np.minimum.at(first, session, at)
    np.maximum.at(last, session, at)
    return int(((first < at_s) & (last >= at_s)).sum())


def test_as_many_sessions_are_in_progress_when_the_window_opens():
    whole, one = cut(asked())
    begins_s = whole.run.warmup_s
    assert one.run.warmup_s == begins_s
    assert begins_s / 2 < one.workload.skip_ended_s < begins_s
    assert in_progress(one, begins_s) == in_progress(whole, begins_s) > 100
    came = [earliest_s(api.load_workload(replace(x.workload, duration_s=one.run.duration_s), 0)) for x in (whole, one)]
    np.testing.assert_array_equal(*(at[at >= one.workload.skip_ended_s] for at in came))
    assert len(came[1]) < 0.75 * len(came[0])


def test_a_plans_own_window_is_not_called_short():
    _, one = cut(asked())
    assert not _too_short(one)
    ends_s = one.run.warmup_s + 0.4 * (one.run.duration_s - one.run.warmup_s)
    assert "is watched for" in _too_short(replace(one, run=replace(one.run, duration_s=ends_s)))[0]


def test_one_replica_down_is_told_of_the_fleet_that_was_settled():
    """A sample of it may say that it attains what it was settled to miss."""
    share = {True: Interval(0.948, 0.94, 0.955), False: Interval(0.96, 0.95, 0.97)}
    row = SimpleNamespace(trial=Trial(asked()), attainment=None, verdict="misses", meets=False, attains=False)
    found = SimpleNamespace(winner=0, replicas=6, answer=SimpleNamespace(meets=True))
    found.settled = found.judged = {(0, 5): row}
    found.judge = lambda i, ns, full: [SimpleNamespace(attainment=share[False], attains=True)]
    found.trials = SimpleNamespace(judge=lambda ones: [SimpleNamespace(attainment=share[ones[0].full], attains=False)])
    told = n_plus_1(found, Options())
    assert (told["attainment_one_down"], told["verdict"], told["replicas"]) == (0.948, "misses", 7)


def test_what_is_simulated_in_full_fills_the_memory_and_is_a_session():
    for blocks in (2000, 60_000):
        _, one = cut(asked(engine={"kv_blocks": blocks}))
        config = mix.resolve(one.workload)
        needed_s = fill_s(config, 3 * 16 * blocks, 1), session_s(config.class_[0])
        assert (needed_s[0] > needed_s[1]) == (blocks == 60_000)
        assert one.run.warmup_s - one.workload.skip_ended_s == pytest.approx(max(needed_s), abs=1)


def test_the_window_has_so_many_requests_and_a_session():
    whole, one = cut(asked())
    config = mix.resolve(one.workload)
    lasts_s = one.run.duration_s - one.run.warmup_s
    assert lasts_s < whole.run.duration_s - whole.run.warmup_s
    assert lasts_s == pytest.approx(max(MUCH / requests_per_s(config), session_s(config.class_[0])), rel=0.01)


@pytest.mark.parametrize(
    "given",
    [
        asked(run={"warmup_s": 900.0, "duration_s": 1800.0}),
        asked(workload={"rate_scale": 0.1}, engine={"kv_blocks": 2000}),
        asked(workload={"class": [{**TALK, "arrival": {"kind": "diurnal", "curve": [1, 2], "period_s": 7200}}]}),
    ],
    ids=["a warm-up of its own", "a short warm-up", "follows the clock"],
)
def test_what_is_short_or_asked_for_stays(given):
    whole, one = cut(given)
    assert one == whole


@pytest.mark.parametrize("sections", [{"workload": {"duration_s": 4000.0}}, {"run": {"duration_s": 4000.0}}])
def test_a_window_that_was_asked_for_stays(sections):
    _, one = cut(asked(**sections))
    assert one.run.duration_s - one.run.warmup_s == pytest.approx(4000.0)
    assert one.workload.skip_ended_s > 0


def test_a_shock_is_watched_to_its_end():
    given = replace(asked(), shock=(Shock(BURST, 300.0, 600.0, 2.0),))
    whole, one = cut(given)
    assert one.run == whole.run


def test_what_is_made_of_it_skips_as_long_before_its_window():
    _, one = cut(asked())
    full_s = one.run.warmup_s - one.workload.skip_ended_s
    for made in (sampled(Trial(one)).scenario, with_load(one, 1.5)):
        assert made.run.warmup_s - made.workload.skip_ended_s == pytest.approx(full_s)
    assert sampled(Trial(one)).scenario.run == one.run


def test_a_window_that_lacks_sessions_is_refused():
    _, one = cut(asked())
    with pytest.raises(InputError, match=r"skip_ended_s = \d+, expected at most \[run\] warmup_s = 300"):
        api.resolve(replace(one, run=replace(one.run, warmup_s=300.0)))


def test_the_work_alone_asks_for_as_many():
    whole, one = cut(asked(workload={"class": [{**TALK, "output": {"value": 2000}, "rate": 2.0}]}))
    guesses = [guess_replicas(x, api.load_workload(x.workload, 0)) for x in (whole, one)]
    assert guesses[0] > 10
    assert guesses[1] == pytest.approx(guesses[0], rel=0.25)
