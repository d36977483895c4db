"""Arrival processes and distributions against their theory, with fixed seeds and 5-sigma limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from workloads import dists
from workloads.arrivals import check, first, until
from workloads.config import Arrival, Dist
from workloads.dists import stream
from workloads.errors import InputError

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
