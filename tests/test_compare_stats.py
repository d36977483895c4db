"""Intervals hold the truth as often as they say, on noise whose truth is known, and a change that changes nothing shows
nothing."""

import numpy as np
import pytest
from scipy.signal import lfilter

from kvcast import text
from kvcast.config import load_doc
from kvcast.studies import compare, intervals
from kvcast.studies.differences import value

RUNS = 400


def ar1(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """A stationary AR(1) series of mean 0 and variance 1."""
    noise = rng.standard_normal(n) * np.sqrt(1 - rho * rho)
    noise[0] = rng.standard_normal()
    return lfilter([1.0], [1.0, -rho], noise)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.97])
def test_batch_means_hold_the_mean_of_correlated_noise(rho):
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(RUNS):
        series = 3.0 + ar1(rng, 6000, rho)
        found = intervals.paired(lambda rows, s=series: float(s[rows].mean()), len(series))
        held += abs(found.mean - 3.0) <= found.half
    assert held / RUNS >= 0.90
    assert held / RUNS < 1.0  # an interval that always holds is too wide to say anything


def test_independent_observations_taken_for_granted_would_not_hold_it():
    """The test above can fail: the textbook interval of independent requests misses most of the time."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(RUNS):
        series = ar1(rng, 6000, 0.9)
        held += abs(series.mean()) <= 1.96 * series.std() / np.sqrt(len(series))
    assert held / RUNS < 0.5


def test_a_ratio_and_a_percentile_are_held_too():
    rng = np.random.default_rng(6)
    held = {"ratio": 0, "p99": 0}
    p99 = np.exp(2.3263478740408408)
    for _ in range(RUNS):
        prompt = rng.lognormal(6, 1, 4000)
        hit = prompt * np.clip(0.5 + 0.2 * ar1(rng, 4000, 0.8), 0, 1)  # symmetric around one half whatever the prompt
        found = intervals.paired(lambda rows, h=hit, p=prompt: float(h[rows].sum() / p[rows].sum()), 4000)
        held["ratio"] += abs(found.mean - 0.5) <= found.half
        tail = np.exp(ar1(rng, 4000, 0.5))
        found = intervals.paired(lambda rows, v=tail: float(np.percentile(v[rows], 99)), 4000, 100)
        held["p99"] += abs(found.mean - p99) <= found.half
    assert held["ratio"] / RUNS >= 0.90
    assert held["p99"] / RUNS >= 0.90


def test_replications_are_students_t():
    found = intervals.replications([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(3.182446 * np.std([1, 2, 3, 4], ddof=1) / 2, rel=1e-6)
    assert found.shown is True
    assert intervals.replications([-1.0, 2.0, -3.0, 4.0]).shown is False
    assert intervals.replications([1.0, 1.1, 0.9]).batches == 3
    assert intervals.replications([1.0, None]).mean is None
    assert intervals.replications([1.0]).shown is None


def test_few_requests_have_no_interval():
    found = intervals.paired(lambda rows: float(len(rows)), 49)
    assert found.half is None
    assert found.note == "fewer than 50 requests"
    assert intervals.paired(lambda rows: 1.0, 50).batches == 5


def test_drift_that_no_batch_length_hides_is_said():
    drift = np.linspace(-1.0, 1.0, 1000)
    assert "use --seeds" in intervals.paired(lambda rows: float(drift[rows].mean()), 1000).note


# -- on runs -----------------------------------------------------------------------------------------------------------

SMALL = """
[workload]
rate = 4.0
duration_s = 60.0
[[workload.class]]
name = "chat"
share = 1.0
layers = [{name = "system", scope = "project", items = 40, tokens = {value = 400}}, {name = "user", tokens = {kind = "uniform", low = 50, high = 500}}]
output = {kind = "uniform", low = 5, high = 30}
[engine]
kv_blocks = 400
[slo]
ttft_s = 1.0
"""  # noqa: E501


@pytest.fixture
def doc(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return load_doc(tmp_path / "small.toml")


def test_a_change_that_changes_nothing_shows_nothing(doc):
    """No request waits for an adapter slot here: another max_loras is the same engine."""
    results = compare.simulate_all(compare.variants(doc, ["engine.max_loras=0,7"]))
    _, other = compare.as_document(results)["variants"]
    for key in intervals.STATISTICS:
        assert other["vs_first"][key]["difference"] == 0, key
        assert other["vs_first"][key]["shown"] is not True, key
    assert "no difference shown" in compare.as_table(results)


def test_a_cache_that_is_off_is_shown(doc):
    results = compare.simulate_all(compare.variants({**doc, "run": {"warmup_s": 0.0}}, ["cache.enabled=true,false"]))
    document = compare.as_document(results)
    hit = document["variants"][1]["vs_first"]["prefix_hit_rate"]
    assert hit["shown"] is True
    assert hit["difference"] < 0
    assert hit["observations"] in (20, 10, 5)
    assert document["method"] == "one seed: batch means of the same requests in order of arrival"
    assert "batch" in compare.as_table(results)


def test_a_stated_warm_up_is_the_rule_and_seeds_replace_batches(doc):
    stated = compare.as_document(
        compare.simulate_all(compare.variants({**doc, "run": {"warmup_s": 10.0}}, ["cache.policy=lru,lfu"]))
    )
    assert "run.warmup_s" in stated["method"]
    seeds = compare.as_document(compare.simulate_all(compare.variants(doc, ["cache.policy=lru,lfu"], seeds=3)))
    assert seeds["method"].startswith("3 seeds")
    assert seeds["variants"][1]["vs_first"]["mean_ttft_ms"]["observations"] == 3


@pytest.mark.parametrize("extra", [{}, {"run": {"warmup_s": 10.0, "duration_s": 40.0}}])
def test_one_answer_for_a_pair_whatever_else_is_compared(doc, extra):
    """The text, both places of the JSON and the values side by side give the same difference, with lfu alone as in a
    grid.

    A cold cache warms up here: a cut found over all variants would change lfu's answer as soon as `cache.enabled=false`
    is added."""
    results = compare.simulate_all(
        compare.variants({**doc, **extra}, ["cache.policy=lru,lfu,mru", "cache.enabled=true,false"])
    )
    first, lfu = results[0], results[2]
    assert lfu.variant.label == ("lfu", "true")
    grid, pair = compare.as_document(results)["variants"], compare.as_document([first, lfu])["variants"]
    assert grid[2]["vs_first"] == pair[1]["vs_first"]
    for variant in grid[1:]:
        for key, told in variant["vs_first"].items():
            if key in compare.COLUMNS:
                assert (variant[f"{key}_vs_first"], variant[f"{key}_vs_first_interval_95"]) == (
                    told["difference"],
                    told["interval_95"],
                ), key
            if told["difference"] is not None:
                assert told["difference"] == value(variant["summaries"][0], key) - value(first.summary, key), key
    mean = pair[1]["vs_first"]["mean_ttft_ms"]
    low, high = (text.milliseconds(mean["difference"] + sign * mean["interval_95"]) for sign in (-1, 1))
    (row,) = (line for line in compare.as_table([first, lfu]).splitlines() if " TTFT mean  " in line and " to " in line)
    assert f" {text.milliseconds(mean['difference'])} " in row
    assert f"{low} to {high}" in row


def test_other_requests_are_not_paired(doc):
    results = compare.simulate_all(compare.variants(doc, ["workload.rate=4,2"]))
    other = compare.as_document(results)["variants"][1]["vs_first"]["mean_ttft_ms"]
    assert other["shown"] is None
    assert "other requests" in other["note"]


@pytest.mark.parametrize(
    ("value", "half", "show", "told"),
    [
        (0.28, 5.51e-6, text.usd, "$0.28 ± $0.01"),
        (0.0123, 0.00051, text.usd, "$0.0123 ± $0.0006"),
        (1234.5, 12.345, text.usd, "$1,234.50 ± $12.35"),
        (0.5, 0.0, text.usd, "$0.50 ± $0.00"),
        (1.3, 0.004, text.seconds, "1.30 s ± 4.00 ms"),
        (1e-4, 4e-6, text.seconds, "0.100 ms ± 0.004 ms"),
        (0.1897, 0.004955, lambda x: f"{x:.4g}", "0.1897 ± 0.0050"),
    ],
)
def test_half_of_an_interval_has_no_more_decimals_than_its_value(value, half, show, told):
    assert text.plus_minus(show(value), half, show) == told
