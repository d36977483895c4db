"""Meets, misses, not shown: intervals of tiny worlds worked out by hand, and how often they hold the truth where it is
known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter
from scipy.stats import norm

from sim.measure.quantiles import chi2, two_sided_normal, two_sided_t
from sim.measure.verdict import (
    INTERVAL,
    MEETS,
    MISSES,
    NOBODY,
    NOT_SHOWN,
    POOLED,
    UNSTABLE,
    Interval,
    Sample,
    interval,
    judge,
    wilson,
    word,
)
from sim.scenario import SloClass, SloConfig

Z2 = 1.959964**2
CHI2_975 = {2: 7.377759, 4: 11.143287}
"""By degrees of freedom."""
T_975 = {4: 2.776445}


def runs(*shares: float, n: int = 90) -> list[np.ndarray]:
    """Runs of n requests whose misses are spread evenly."""
    return [np.diff(np.floor(np.arange(n + 1) * share + 1e-9)) > 0 for share in shares]


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def found(good: list[np.ndarray], confidence: float = 0.95) -> Interval:
    one = interval(good, confidence)
    assert one is not None
    return one


# -- the interval ------------------------------------------------------------------------------------------------------


def test_nothing_arrived() -> None:
    assert interval([np.zeros(0, bool)]) is None
    assert interval([np.zeros(0, bool), np.ones(3, bool)]) == interval([np.ones(3, bool)])


def test_all_good_is_wilsons_and_open_at_the_top() -> None:
    one = found(runs(1.0, 1.0, 1.0, 1.0, 1.0, n=1000))
    assert (one.mean, one.high) == (1.0, 1.0)
    assert one.low == pytest.approx(5000 / (5000 + Z2), abs=1e-9)


def test_none_good() -> None:
    one = found(runs(0.0, n=1000))
    assert (one.low, one.mean) == (0.0, 0.0)
    assert one.high == pytest.approx(Z2 / (1000 + Z2), abs=1e-9)


def test_a_single_miss_is_one_batch_of_five() -> None:
    good = np.ones(1000, bool)
    good[500] = False
    one = found([good])
    spread = 0.005 / math.sqrt(5)  # of 4 batches of 1 and one of 0.995
    half = T_975[4] * spread / math.sqrt(5) / (0.999 * 0.001)
    assert logit(one.low) == pytest.approx(logit(0.999) - half, abs=1e-5)
    assert one.high == 1.0  # one episode says nothing about how good it can be


def test_a_miss_in_few_requests_is_a_poisson_episode() -> None:
    one = found([np.array([True] * 39 + [False])])  # too short for batches
    assert one.low == pytest.approx(min(1 - CHI2_975[4] / 2 / 40, wilson(39, 40, 0.95)[0]), abs=1e-6)
    assert one.high == 1.0


def test_one_bad_episode_weighs_as_one() -> None:
    good = np.ones(1000, bool)
    good[500:550] = False  # a batch of 20: had there been 5.6 of them, it would be a day like any other
    assert found([good]).low <= 1 - 50 * CHI2_975[4] / 2 / 1000 + 1e-6
    assert found([good]).high == 1.0


def test_three_runs_are_three_observations_in_logits() -> None:
    one = found(runs(0.8, 0.9, 0.966667))
    shares = np.array([72, 81, 87]) / 90
    p = float(shares.mean())
    half = 4.302653 * float(shares.std(ddof=1)) / math.sqrt(3) / (p * (1 - p))
    assert one.mean == pytest.approx(p)
    assert logit(one.low) == pytest.approx(logit(p) - half, abs=1e-4)
    assert logit(one.high) == pytest.approx(logit(p) + half, abs=1e-4)


def test_a_second_run_does_not_make_the_first_one_less_sure() -> None:
    """Of two runs Student's t is 13 wide: their batches decide."""
    both, alone = found(runs(0.99, 0.995, n=2000)), found(runs(0.9925, n=2000))
    assert both.half < 2 * alone.half
    assert both.low > 0.95


def test_identical_runs_leave_what_their_requests_say() -> None:
    one = found(runs(0.9, 0.9, 0.9, 0.9, 0.9))
    assert (one.low, one.high) == pytest.approx(wilson(405, 450, 0.95))


def test_runs_without_a_miss_leave_the_top_open() -> None:
    four_of_five = runs(0.9, 0.9, 0.9, 0.9, 1.0, n=200)
    assert found(four_of_five).high == 1.0
    assert found(runs(0.9, 0.9, 0.9, 0.9, 0.995, n=200)).high < 1.0


@pytest.mark.parametrize("seed", range(20))
def test_never_narrower_than_wilson(seed: int) -> None:
    draw = np.random.default_rng(seed)
    good = [draw.random(int(draw.integers(1, 600))) < draw.uniform(0.5, 1) for _ in range(draw.integers(1, 12))]
    low, high = wilson(sum(int(one.sum()) for one in good), sum(map(len, good)), 0.95)
    one = found(good)
    assert 0 <= one.low <= max(low, 0) + 1e-12
    assert min(high, 1) - 1e-12 <= one.high <= 1
    assert one.low <= one.mean <= one.high


def test_surer_is_wider() -> None:
    good = runs(0.9, 0.93, 0.95, 0.92, 0.9, n=1000)
    assert found(good, 0.975).low < found(good, 0.95).low
    assert found(good, 0.975).high > found(good, 0.95).high


def test_batches_see_what_a_run_hides() -> None:
    good = np.ones(4000, bool)
    good[np.arange(4000) // 200 % 4 == 3] = False  # 5 of 20 batches are bad throughout
    assert found([good]).low < wilson(3000, 4000, 0.95)[0] - 0.1


def correlated(seed: int, share: float, count: int, n: int = 4000, memory: float = 0.995) -> list[np.ndarray]:
    """Independent runs of a stationary process, good with this share: an AR(1) below a level, as long queues leave
    behind."""
    draw = np.random.default_rng(seed)
    noise = draw.standard_normal((count, n)) * math.sqrt(1 - memory**2)
    noise[:, 0] = draw.standard_normal(count)
    return list(lfilter([1.0], [1.0, -memory], noise, axis=1) < norm.ppf(share))


@pytest.mark.parametrize("share", [0.9, 0.95, 0.98])
def test_it_holds_the_truth_where_wilson_does_not(share: float) -> None:
    plans = [correlated(seed, share, 5) for seed in range(40)]
    held = sum(one.low <= share <= one.high for one in map(found, plans))
    independent = [wilson(float(np.sum(plan)), sum(map(len, plan)), 0.95) for plan in plans]
    assert held >= 36
    assert sum(low <= share <= high for low, high in independent) <= 20


# -- the word ----------------------------------------------------------------------------------------------------------


def test_a_higher_target_is_never_easier() -> None:
    order = [MEETS, NOT_SHOWN, MISSES]
    one = Interval(0.95, 0.93, 0.96)
    words = [word(one, target) for target in np.linspace(0.9, 1.0, 101)]
    assert [order.index(each) for each in words] == sorted(order.index(each) for each in words)
    assert set(words) == set(order)
    assert (word(one, 0.93), word(one, 0.96), word(None, 0.5)) == (MEETS, NOT_SHOWN, NOT_SHOWN)


def test_a_target_of_all_can_only_be_missed() -> None:
    assert word(Interval(1.0, 0.99, 1.0), 1.0) == MEETS
    assert word(Interval(0.999, 0.99, 1.0), 1.0) == NOT_SHOWN
    assert word(Interval(0.9, 0.8, 0.95), 1.0) == MISSES


# -- the verdict -------------------------------------------------------------------------------------------------------

LIMITS = SloClass(ttft_s=1.0, tpot_s=0.1)


def sample(*good: np.ndarray, limits: SloClass = LIMITS, late: str = "ttft_s") -> Sample:
    """One run; by class whether each of its requests met its limits, the others being late by `late` alone."""
    class_id = np.concatenate([np.full(len(one), i) for i, one in enumerate(good)]).astype(np.int64)
    met = np.concatenate(good).astype(bool)
    columns = {
        "class_id": class_id,
        "good": met,
        "completed": np.ones(len(met), bool),
        "ttft_s": np.full(len(met), 0.5),
        "tpot_s": np.full(len(met), 0.05),
        "e2e_s": np.full(len(met), 5.0),
    }
    columns[late] = np.where(met, columns[late], 100.0)
    return Sample([(f"class {i}", limits) for i in range(len(good))], columns)


def share(good: float, n: int) -> np.ndarray:
    return runs(good, n=n)[0]


SLO = SloConfig(attainment=0.95)


def test_every_class_must_reach_the_target() -> None:
    verdict = judge([sample(share(1.0, 9600), share(0.0, 400))], SLO, True)
    assert (verdict.word, verdict.failed, verdict.reason) == (MISSES, "class 1", "ttft_s")
    assert [(row.verdict, row.requests) for row in verdict.classes] == [(MEETS, 9600), (MISSES, 400)]
    assert verdict.classes[0].worst is None


def test_pooled_only_when_asked_for() -> None:
    verdict = judge([sample(share(1.0, 9600), share(0.0, 400))], replace(SLO, attained_by=POOLED), True)
    assert [row.name for row in verdict.classes] == [POOLED]
    assert verdict.classes[0].attainment is not None
    assert verdict.classes[0].attainment.mean == pytest.approx(0.96)
    assert verdict.failed == ""


def test_a_class_has_its_own_target() -> None:
    half = sample(share(1.0, 1000), share(0.5, 1000))
    lenient = replace(half, classes=[("class 0", LIMITS), ("class 1", replace(LIMITS, attainment=0.3))])
    assert judge([half], SLO, True).word == MISSES
    verdict = judge([lenient], SLO, True)
    assert verdict.word == MEETS
    assert [row.target for row in verdict.classes] == [0.95, 0.3]


def test_a_class_without_limits_cannot_fail() -> None:
    mixed = sample(share(1.0, 1000), share(0.0, 1000))
    verdict = judge([replace(mixed, classes=[("class 0", LIMITS), ("class 1", SloClass())])], SLO, True)
    assert verdict.word == MEETS
    assert [row.name for row in verdict.classes] == ["class 0"]


def test_the_limit_that_most_missed_is_the_reason() -> None:
    assert judge([sample(share(0.5, 1000), late="tpot_s")], SLO, True).reason == "tpot_s"
    assert judge([sample(share(0.5, 1000))], SLO, True).reason == "ttft_s"
    e2e = SloClass(ttft_s=1.0, e2e_s=10.0)
    assert judge([sample(share(0.5, 1000), limits=e2e, late="e2e_s")], SLO, True).reason == "e2e_s"


def test_what_was_never_answered_missed_every_limit() -> None:
    lost = sample(share(0.5, 1000))
    lost.columns["completed"][:] = lost.columns["good"]
    lost.columns["ttft_s"][~lost.columns["good"]] = np.nan
    row = judge([lost], SLO, True).classes[0]
    assert (row.worst, row.verdict) == ("ttft_s", MISSES)


def test_not_shown_says_what_is_missing() -> None:
    above = judge([sample(share(0.96, 200))], SLO, True)
    below = judge([sample(share(0.94, 200))], SLO, True)
    assert (above.word, above.reason) == (NOT_SHOWN, INTERVAL)
    assert (below.word, below.reason) == (NOT_SHOWN, "ttft_s")
    nobody = judge([sample(share(1.0, 1000), share(1.0, 0))], SLO, True)
    assert (nobody.word, nobody.reason, nobody.failed) == (NOT_SHOWN, NOBODY, "class 1")


def test_a_miss_weighs_more_than_what_is_not_shown() -> None:
    verdict = judge([sample(share(0.96, 200), share(0.5, 1000))], SLO, True)
    assert (verdict.word, verdict.failed) == (MISSES, "class 1")


def test_an_unstable_fleet_misses_whatever_its_share() -> None:
    good = judge([sample(share(1.0, 1000))], SLO, False)
    assert (good.word, good.reason) == (MISSES, UNSTABLE)
    late = judge([sample(share(1.0, 1000), share(0.5, 1000))], SLO, False)
    assert (late.word, late.reason, late.failed) == (MISSES, "ttft_s", "class 1")
    assert judge([sample(share(1.0, 1000))], SLO, None).word == MEETS


def test_runs_are_judged_together() -> None:
    five = [sample(share(good, 500)) for good in (0.97, 0.98, 0.975, 0.98, 0.97)]
    verdict = judge(five, SLO, True)
    assert verdict.classes[0].requests == 2500
    assert verdict.classes[0].attainment == interval([share(good, 500) for good in (0.97, 0.98, 0.975, 0.98, 0.97)])


def test_a_document_has_everything() -> None:
    made = judge([sample(share(0.5, 1000))], SLO, True).as_document()
    assert made["word"] == MISSES
    assert made["classes"][0]["attainment"]["mean"] == 0.5
    assert set(made) == {"word", "reason", "class", "classes"}


# -- quantiles ---------------------------------------------------------------------------------------------------------


def test_quantiles_are_those_of_scipy_stats_to_the_bit() -> None:
    for confidence in (0.5, 0.9, 0.95, 0.99, 0.999):
        at = (1 + confidence) / 2
        assert two_sided_normal(confidence) == stats.norm.ppf(at)
        assert [two_sided_t(n, confidence) for n in range(2, 60)] == stats.t.ppf(at, np.arange(1, 59)).tolist()
        freedom = [*range(1, 60), 2.5, 7.25, 1000]
        assert [chi2(at, k) for k in freedom] == stats.chi2.ppf(at, freedom).tolist()
    assert math.isnan(two_sided_t(1, 0.95))
