"""Impossible mixes: one line naming class, field, value and what was expected."""

from dataclasses import replace

import pytest

from tests.test_mix import fixed, layer, mix, one_class
from workloads.config import Arrival, Dist, WorkloadConfig
from workloads.errors import InputError
from workloads.mix import build
from workloads.toml import read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layers": (layer("a", "global"), layer("b", "global"), layer("c", "globl"))},
            (
                "[[workload.class]] 'a': layers[2].scope = 'globl', expected one of global, project, session, dynamic"
                " (did you mean global?)"
            ),
        ),
        ({"name": " "}, "number 1: name = ' ', expected a label that no other class has"),
        ({"name": "a\u200b"}, "number 1: name = 'a\\u200b', expected a label"),
        ({"name": "pooled"}, "number 1: name = 'pooled', expected another label: it is what verdicts call"),
        ({"layers": (layer(" s", "global"),)}, "layers[0].name = ' s', expected a label that no other layer"),
        ({"layers": ()}, "[[workload.class]] 'a': needs at least one"),
        ({"share": 1.0}, "exactly one of share"),
        ({"rate": float("nan")}, "'a': rate = nan, expected a finite number above 0"),
        ({"rate": -1.0}, "'a': rate = -1.0, expected"),
        ({"output": Dist(kind="lognormal", median=10)}, "'a': output: lognormal needs exactly one of p90, sigma, mean"),
        ({"output": Dist(kind="lognormal", median=10, p90=5)}, "'a': output.p90 = 5, expected at least the median, 10"),
        ({"output": Dist(kind="fixed", value=-5)}, "'a': output.value = -5, expected at least 0"),
        ({"output": Dist(kind="fixed", value=float("nan"))}, "output.value = nan, expected a finite number"),
        ({"output": Dist(kind="gausian", value=1)}, "output.kind = 'gausian', expected one of"),
        ({"output": Dist(kind="uniform", low=9, high=2)}, "output.low = 9, expected at most high = 2"),
        ({"output": Dist(kind="fixed", value=3, p90=4)}, "output.p90 has no meaning for fixed"),
        ({"output": Dist(kind="empirical", values=(1, 2), weights=(1,))}, "output.weights has 1 entries"),
        ({"turns": fixed(3)}, "several turns, expected think"),
        ({"turns": fixed(0)}, "turns.value = 0, expected at least 1"),
        (
            {"turns": fixed(3), "think": fixed(1), "layers": (layer("s", "global"),)},
            "no final dynamic layer, expected turn_input",
        ),
        ({"turns": fixed(3), "tool_share": 1.0}, "tool_share = 1 needs tool_gap"),
        ({"arrival": Arrival(kind="gamma", cv=0)}, "arrival.cv = 0, expected a number from 0.01 to 100"),
        ({"arrival": Arrival(kind="trace")}, "arrival.times_s = [], expected numbers for trace"),
        ({"layers": (layer("s", "global", items=4),)}, "layers[0]: items and zipf are for scope project"),
        ({"layers": (layer("s", "project", items=0),)}, "layers[0].items = 0, expected 1 to"),
        (
            {"layers": (layer("s", "global", timestamp_s=1e-9),)},
            "layers[0].timestamp_s = 1e-09, expected 0 (never) or at least",
        ),
        ({"layers": (layer("s", "dynamic", redeploy_s=4),)}, "layers[0].redeploy_s has no effect on a dynamic layer"),
        ({"layers": (layer("s", "session", share="x"),)}, "layers[0].share = 'x' is for scopes global and project"),
        ({"output": Dist(kind="lognormal", median=100, sigma=50)}, "output: this lognormal reaches"),
        ({"tenants": 0}, "tenants = 0, expected at least 1"),
        ({"tenants": 10**12}, "tenants: 1,000,000,000,000 in all classes together, expected at most 1,000,000"),
        ({"priority": 3 * 10**9}, "priority = 3000000000, expected -1e+09 to 1e+09"),
        ({"turns": fixed(1e9), "think": fixed(1)}, "turns: this fixed reaches 1e+09, expected at most 100000"),
        ({"rate": 1e-300}, "rate = 1e-300, expected 1e-09 to 1e+09"),
        ({"rate": 1e300}, "rate = 1e+300, expected 1e-09 to 1e+09"),
        (
            {"layers": (layer("s", "global", shuffle=10**22), layer("m", "dynamic"))},
            "layers[0].shuffle = 10000000000000000000000, expected at most 1e+09",
        ),
        (
            {"layers": (layer("s", "project", items=5, zipf=1e3), layer("m", "dynamic"))},
            "layers[0].zipf = 1000.0, expected at most 20",
        ),
        (
            {"layers": (layer("s", "global", redeploy_s=1e300), layer("m", "dynamic"))},
            "layers[0].redeploy_s = 1e+300, expected at most 1e+09",
        ),
        (
            {"layers": tuple(layer(str(i), "dynamic") for i in range(10_001))},
            "layers: 10,001 in all classes together, expected at most 10,000",
        ),
        (
            {"output": Dist("empirical", values=(1.0, 2e9), weights=(1.0, 0.0))},
            "output.values[1] = 2000000000.0, expected at most 1e+09",
        ),
    ],
)
def test_bad_classes_are_named(change, message):
    with pytest.raises(InputError) as error:
        build(mix(replace(one_class(layer("s", "global"), layer("m", "dynamic")), **change)), seed=0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {
                "requests": None,
                "class_": (
                    replace(
                        one_class(layer("m", "dynamic")),
                        arrival=Arrival(kind="trace", times_s=(0.0,)),
                        rate=None,
                        share=None,
                    ),
                ),
            },
            "needs duration_s or requests",
        ),
        ({"requests": 10**9}, "has about 1e+09 requests, expected at most 100,000,000"),
        ({"requests": None, "duration_s": 1e9}, "requests, expected at most 100,000,000"),
        ({"rate": 3.0}, "rate = 3 has no effect: no class has a share"),
        ({"class_": ()}, "is not a mix"),
        ({"preset": "chat"}, "has preset and class, expected exactly one of"),
        ({"trace": "x.jsonl"}, "has trace and class, expected exactly one of"),
        ({"sample": 0.5}, "sample = 0.5 is for traces"),
        (
            {"skip_ended_s": 5.0, "loop": "concurrency", "concurrency": 2},
            "skip_ended_s = 5, expected 0 with a concurrency",
        ),
        ({"loop": "closed"}, "loop = 'closed', expected one of"),
        ({"loop": "concurrency"}, "expected both"),
        ({"duration_s": 1e-9, "requests": None}, "no session starts"),
        ({"preset": "chatt", "class_": ()}, "did you mean chat?"),
    ],
)
def test_bad_mixes_are_named(change, message):
    with pytest.raises(InputError, match=None) as error:
        build(replace(mix(one_class(layer("m", "dynamic"))), **change), seed=0)
    assert message in str(error.value)


def test_a_clock_needs_a_rate():
    c = replace(one_class(layer("s", "global", redeploy_s=60), layer("m", "dynamic")), rate=None, share=1.0)
    with pytest.raises(InputError, match=r"change with the clock need \[workload\] rate"):
        build(mix(c, concurrency=4), seed=0)
    build(mix(c, concurrency=4, rate=1.0), seed=0)


def test_two_classes_that_disagree_on_a_shared_text():
    a = one_class(layer("p", "global", 400, share="policy"), name="a")
    b = one_class(layer("p", "global", 500, share="policy"), name="b")
    with pytest.raises(InputError, match="'b': layer 'p' shares 'policy' with 'a' but tokens differs"):
        build(mix(a, b), seed=0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"clas": []}, "[workload] has no key 'clas' (did you mean class?)"),
        (
            {"class": [{"name": "chat", "layers": [{"token": {}}]}]},
            "[workload.class.chat.layers.0] has no key 'token' (did you mean tokens?)",
        ),
        (
            {"class": [{"name": "chat", "output": {"value": "many"}}]},
            '[workload.class.chat.output] value = "many": expected a number',
        ),
        ({"class": [{"layers": 3}]}, "[workload.class.0] layers = 3: expected an array"),
        ({"requests": 1.5}, "[workload] requests = 1.5: expected an integer"),
        ({"requests": True, "rat": 2, "clas": []}, "[workload] has no key 'rat' (did you mean rate?) (and 2 more)"),
    ],
)
def test_tables_are_read_strictly(table, message):
    with pytest.raises(InputError) as error:
        read(WorkloadConfig, table, "mix.toml", "workload")
    assert str(error.value) == f"mix.toml: {message}"


def test_a_mix_stays_within_a_clock_that_floats_resolve():
    turn = {"turns": fixed(5), "think": fixed(0.9e9), "turn_input": fixed(3)}
    late = mix(one_class(layer("m", "dynamic"), **turn))
    with pytest.raises(InputError, match=r"a request would arrive after .* s, expected at most 1e\+09 s"):
        build(late, seed=0)
    slow = replace(one_class(layer("m", "dynamic")), rate=1e-9)
    for requests in (2, 60):
        with pytest.raises(InputError, match=r"expected at most 1e\+09 s"):
            build(mix(slow, requests=requests), seed=0)


def test_a_rate_of_almost_nothing_is_refused_at_once():
    with pytest.raises(InputError, match="rate = 1e-300, expected"):
        build(mix(replace(one_class(layer("m", "dynamic")), rate=1e-300)), seed=0)
