"""Arrival processes and distributions against their theory, with fixed seeds and 5-sigma limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from workloads import dists
from workloads.arrivals import check, first, until
from workloads.config import Arrival, Demand, Dist, Layer, MixClass, WorkloadConfig
from workloads.demand import SINE, WORKING_DAY, recorded, with_curve
from workloads.dists import stream
from workloads.errors import InputError
from workloads.mix import build, resolve
from workloads.steady import requests_per_s

ON_OFF = Arrival(kind="onoff", on_s=20.0, off_s=45.0)
DIURNAL = Arrival(kind="diurnal", curve=(1.0, 3.0, 0.0, 4.0), period_s=1000.0)
PROCESSES = [Arrival(), Arrival(kind="gamma", cv=0.5), Arrival(kind="gamma", cv=3.0), ON_OFF, DIURNAL]
RATE = 2.6


def dispersion(a: Arrival) -> float:
    """Variance over mean of long counts: 1 for (modulated by a fixed curve) Poisson, cv^2 for a renewal process."""
    if a.kind == "gamma":
        return a.cv**2
    if a.kind == "onoff":  # interrupted Poisson: 1 + 2 lambda s_on / (s_on + s_off)^2 with s = 1 / mean length
        burst_rate = RATE * (a.on_s + a.off_s) / a.on_s
        return 1 + 2 * burst_rate / a.on_s / (1 / a.on_s + 1 / a.off_s) ** 2
    return 1.0


@pytest.mark.parametrize("a", PROCESSES, ids=lambda a: f"{a.kind}-{a.cv:g}")
def test_the_long_run_rate_is_the_rate(a):
    span = 40_000.0  # whole diurnal periods
    n = len(until(a, RATE, span, lambda: stream(1, "rate")))
    assert abs(n - RATE * span) < 5 * math.sqrt(dispersion(a) * RATE * span)


@pytest.mark.parametrize("a", [p for p in PROCESSES if p.kind != "diurnal"], ids=lambda a: f"{a.kind}-{a.cv:g}")
def test_the_gaps_have_their_coefficient_of_variation(a):
    found = []
    for i in range(30):  # the limit comes from the spread over independent streams
        gaps = np.diff(first(a, RATE, 20_000, stream(i, "cv")))
        found.append(gaps.std() / gaps.mean())
    assert abs(np.mean(found) - math.sqrt(dispersion(a))) < 5 * np.std(found) / math.sqrt(30) + 0.005


def test_poisson_gaps_are_exponential():
    gaps = np.diff(first(Arrival(), RATE, 20_000, stream(0, "ks")))
    assert stats.kstest(gaps, "expon", args=(0, 1 / RATE)).pvalue > 1e-3


def test_on_off_starts_in_its_steady_state():
    counts = [len(until(ON_OFF, RATE, 10.0, lambda i=i: stream(i, "start"))) for i in range(3000)]
    assert abs(np.mean(counts) - RATE * 10) < 5 * np.std(counts) / math.sqrt(3000)


def test_diurnal_slots_follow_the_curve():
    times = until(DIURNAL, RATE, 40_000.0, lambda: stream(0, "slots"))
    slots = np.bincount((times % 1000.0 // 250.0).astype(int), minlength=4)
    expected = RATE * 40_000.0 * np.array([1, 3, 0, 4]) / 8
    assert slots[2] == 0
    assert np.all(np.abs(slots - expected) <= 5 * np.sqrt(expected))


@pytest.mark.parametrize("a", PROCESSES, ids=lambda a: f"{a.kind}-{a.cv:g}")
def test_a_longer_run_starts_with_the_shorter(a):
    short, long = (until(a, RATE, span, lambda: stream(0, "x")) for span in (300.0, 3000.0))
    assert np.array_equal(long[: len(short)], short)
    assert long[len(short)] >= 300.0
    assert np.all(np.diff(long) >= 0)


def test_another_rate_stretches_the_same_poisson_arrivals():
    one, two = (first(Arrival(), rate, 50, stream(0, "x")) for rate in (1.0, 2.0))
    assert np.allclose(one, 2 * two)


def test_trace_times_are_kept_and_sped_up():
    a = Arrival(kind="trace", times_s=(3.0, 1.0, 2.0, 9.0))
    assert until(a, 1.0, 5.0, lambda: stream(0, "x")).tolist() == [1.0, 2.0, 3.0]
    assert until(a, 2.0, 5.0, lambda: stream(0, "x")).tolist() == [0.5, 1.0, 1.5, 4.5]


def test_streams_depend_on_seed_and_name_only():
    draws = {
        key: stream(seed, *names).random()
        for key, seed, names in (("a", 0, ("a", "x")), ("b", 0, ("b", "x")), ("c", 1, ("a", "x")))
    }
    assert len(set(draws.values())) == 3
    assert stream(0, "a", "x").random() == draws["a"]


# ---- distributions

DISTS = {
    "fixed": (Dist(value=7), 7.0),
    "lognormal by p90": (
        Dist(kind="lognormal", median=100, p90=300),
        100 * math.exp((math.log(3) / 1.2815515655446004) ** 2 / 2),
    ),
    "lognormal by sigma": (Dist(kind="lognormal", median=100, sigma=0.7), 100 * math.exp(0.245)),
    "lognormal by mean": (Dist(kind="lognormal", median=100, mean=150), 150.0),
    "exponential": (Dist(kind="exponential", mean=50), 50.0),
    "uniform": (Dist(kind="uniform", low=10, high=30), 20.0),
    "geometric": (Dist(kind="geometric", mean=4), 4.0),
    "empirical": (Dist(kind="empirical", values=(1, 10), weights=(3, 1)), 3.25),
}


@pytest.mark.parametrize(("dist", "mean"), DISTS.values(), ids=DISTS)
def test_means(dist, mean):
    n = 40_000
    x = dists.sample(dist, n, stream(0, "mean"))
    assert abs(x.mean() - mean) <= 5 * x.std() / math.sqrt(n)
    assert dists.moments(dist, whole=False)[0] == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(("dist", "mean"), DISTS.values(), ids=DISTS)
def test_samples_follow_the_quantiles(dist, mean):
    n, u = 40_000, np.array([0.1, 0.5, 0.9])
    x = dists.sample(dist, n, stream(0, "quantile"))
    q = dists.quantile(dist, u)
    slack = 5 * np.sqrt(u * (1 - u) / n)
    assert np.all((x[:, None] <= q * (1 + 1e-12)).mean(axis=0) >= u - slack)
    assert np.all((x[:, None] < q * (1 - 1e-12)).mean(axis=0) <= u + slack)


def test_lognormal_keeps_median_and_p90():
    q = dists.quantile(Dist(kind="lognormal", median=1020, p90=2735), np.array([0.5, 0.9]))
    assert q == pytest.approx([1020, 2735])


def test_clips_and_whole_numbers():
    x = dists.counts(Dist(kind="lognormal", median=10, sigma=3.0, low=2, high=50), 5000, stream(0, "clip"))
    assert x.dtype == np.int64
    assert (x.min(), x.max()) == (2, 50)
    assert dists.counts(Dist(value=0), 3, stream(0, "one")).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("dist", "limit", "can"),
    [
        (Dist(value=1), 1, False),
        (Dist(value=2), 1, True),
        (Dist(kind="geometric", mean=1), 1, False),
        (Dist(kind="geometric", mean=2), 1, True),
        (Dist(kind="lognormal", median=1, sigma=1, high=1.4), 1, False),
    ],
)
def test_can_exceed(dist, limit, can):
    assert dists.can_exceed(dist, limit) is can
    assert (dists.counts(dist, 2000, stream(0, "x")).max() > limit) == can


def test_seconds_may_be_zero_but_not_negative():
    dists.check(Dist(value=0.0), "think")
    with pytest.raises(InputError, match=r"think.mean = -1, expected at least 0"):
        dists.check(replace(Dist(kind="exponential"), mean=-1), "think")


@pytest.mark.parametrize(
    ("arrival", "line"),
    [
        (Arrival(kind="gamma", cv=1e-200), "a.cv = 1e-200, expected a number from 0.01 to 100"),
        (Arrival(kind="gamma", cv=1e200), "a.cv = 1e+200, expected a number from 0.01 to 100"),
        (Arrival(kind="gamma", cv=math.nan), "a.cv = nan, expected a number from 0.01 to 100"),
        (Arrival(kind="onoff", on_s=1e-300, off_s=1.0), "a.on_s = 1e-300, expected a number from 0.001 to 1e+09"),
        (Arrival(kind="onoff", on_s=1.0, off_s=math.inf), "a.off_s = inf, expected a number from 0.001 to 1e+09"),
        (
            Arrival(kind="diurnal", curve=(1.0,), period_s=1e300),
            "a.period_s = 1e+300, expected a number from 0.001 to 1e+09",
        ),
        (Arrival(kind="diurnal", curve=(1.0, math.inf)), "a.curve[1] = inf, expected a number from 0 to 1e+09"),
        (Arrival(kind="diurnal", curve=(1e308, 1e308)), "a.curve[0] = 1e+308, expected a number from 0 to 1e+09"),
        (Arrival(kind="trace", times_s=(0.0, 1.7e9)), "a.times_s[1] = 1700000000.0, expected a number from 0 to 1e+09"),
    ],
)
def test_extremes_that_no_process_reaches(arrival, line):
    with pytest.raises(InputError) as problem:
        check(arrival, "a")
    assert str(problem.value) == line


@pytest.mark.parametrize(
    "arrival",
    [
        Arrival(kind="gamma", cv=0.01),
        Arrival(kind="gamma", cv=100.0),
        Arrival(kind="onoff", on_s=1e-3, off_s=1e9),
        Arrival(kind="onoff", on_s=1e9, off_s=1e-3),
        Arrival(kind="diurnal", curve=(0.0, 1e9), period_s=1e-3),
    ],
)
def test_the_bounds_themselves_give_arrivals(arrival):
    check(arrival, "a")
    times = first(arrival, RATE, 1000, stream(0, "x"))
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0).all()


def test_an_on_off_process_does_not_switch_forever():
    flicker = Arrival(kind="onoff", on_s=1e-3, off_s=1e-3)
    assert len(first(flicker, 10.0, 10_000, stream(0, "x"))) == 10_000  # half a million bursts
    with pytest.raises(InputError, match="bursts for 1000000 arrivals, expected at most 1,000,000"):
        first(flicker, 10.0, 1_000_000, stream(0, "x"))


def test_more_arrivals_than_memory_holds():
    for rate, end_s in ((1e9, 1e9), (math.inf, 1.0), (1.0, math.inf)):
        with pytest.raises(InputError, match="sessions, expected at most 100,000,000"):
            until(Arrival(), rate, end_s, lambda: stream(0, "x"))


# ---- a demand over time


def demand(**given):
    return WorkloadConfig(class_=(CHAT,), demand=Demand(**given))


CHAT = MixClass(name="chat", rate=2.0, layers=(Layer(name="q", tokens=Dist(value=10)),), output=Dist(value=3))


def test_a_demand_moves_each_session_and_leaves_it_as_it_is():
    """With the load doubled in the first half of every 100 s and none in the second, what came by 2 t comes by t."""
    steady, moved = (
        build(replace(WorkloadConfig(class_=(CHAT,)), duration_s=200.0, demand=one), 3)
        for one in (None, Demand(factors=(2.0, 0.0), period_s=100.0))
    )
    at_s = steady.arrival_s
    expected = np.where(at_s < 100, at_s / 2, 100 + (at_s - 100) / 2)
    assert moved.arrival_s == pytest.approx(expected)
    assert len(moved) == len(steady) > 300
    assert not ((moved.arrival_s % 100) > 50).any()


@pytest.mark.parametrize("kind", ["gamma", "onoff"])
def test_bursts_run_by_the_demand_too(kind):
    arrival = Arrival(kind=kind, cv=2.0, on_s=5.0, off_s=5.0) if kind == "onoff" else Arrival(kind=kind, cv=2.0)
    plain = until(arrival, 2.0, 400.0, lambda: stream(0, "x"))
    curved = until(replace(arrival, curve=(1.5, 0.5), period_s=200.0), 2.0, 400.0, lambda: stream(0, "x"))
    operational = np.interp(curved, [0, 100, 200, 300, 400], [0, 150, 200, 350, 400])
    n = min(len(plain), len(curved))
    assert n > 100
    assert operational[:n] == pytest.approx(plain[:n])


def test_a_recorded_curve_of_uneven_times_is_exact(tmp_path):
    path = tmp_path / "demand.csv"
    path.write_text("time_s,factor\n0,1\n60,3\n90,0.5\n")
    assert recorded(path) == ((1.0, 1.0, 3.0, 0.5), 120.0)
    assert recorded(path, 150.0) == ((1.0, 1.0, 3.0, 0.5, 0.5), 150.0)
    config = demand(file=str(path))
    assert with_curve(config).demand == Demand(factors=(1.0, 1.0, 3.0, 0.5), period_s=120.0)
    assert resolve(config) == resolve(with_curve(config))
    assert requests_per_s(resolve(config)) == pytest.approx(2.0 * 5.5 / 4)  # the mean of its factors


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("0,1\n60,-3\n", "row 3: factor = '-3', expected times the load, 0 to 1e+06"),
        ("5,1\n60,3\n", "row 2: time_s = 5, expected 0"),
        ("0,1\n60,3\n60,2\n", "row 4: time_s = 60, expected a time after 60"),
        ("0,1\n", "one row, expected two at least"),
        ("0,0\n60,0\n", "every factor is 0"),
        ("0,1\n0.001,1\n1000,1\n", "1,999,999 slots, expected at most 100,000"),
    ],
)
def test_a_wrong_curve_is_one_line(tmp_path, rows, says):
    path = tmp_path / "demand.csv"
    path.write_text("time_s,factor\n" + rows)
    with pytest.raises(InputError) as error:
        resolve(demand(file=str(path)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_demand_that_makes_no_sense_is_refused():
    for config, says in (
        (demand(), "none of shape, file and factors: expected exactly one"),
        (demand(shape="sine", factors=(1.0,)), "shape and factors: expected exactly one"),
        (demand(factors=(1.0, -1.0)), "factors[1] = -1.0: expected times the load"),
        (demand(factors=(0.0,)), "sum to 0, expected at most 100,000, one of them above 0"),
        (replace(demand(shape="sine"), class_=(replace(CHAT, arrival=DIURNAL),)), "has times of its own"),
        (replace(demand(shape="sine"), concurrency=3), "with a concurrency"),
    ):
        with pytest.raises(InputError) as error:
            resolve(config)
        assert says in str(error.value)
    assert np.mean(WORKING_DAY) == pytest.approx(1) == pytest.approx(np.mean(SINE))
