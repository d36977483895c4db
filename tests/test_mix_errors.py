"""Impossible mixes: one line naming class, field, value and what was expected."""
from dataclasses import replace

import pytest

from tests.test_mix import fixed, layer, mix, one_class
from workloads.config import Arrival, Dist
from workloads.errors import InputError
from workloads.mix import build
from workloads.toml import parse_workload


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": (layer("a", "global"), layer("b", "global"), layer("c", "globl"))}, "[[workload.class]] 'a': layers[2].scope = 'globl', expected one of global, project, session, dynamic (did you mean global?)"),
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
        ({"turns": fixed(3), "think": fixed(1), "layers": (layer("s", "global"),)}, "no final dynamic layer, expected turn_input"),
        ({"turns": fixed(3), "tool_share": 1.0}, "tool_share = 1 needs tool_gap"),
        ({"arrival": Arrival(kind="gamma", cv=0)}, "arrival.cv = 0, expected a finite number above 0"),
        ({"arrival": Arrival(kind="trace")}, "arrival.times_s = [], expected numbers for trace"),
        ({"layers": (layer("s", "global", items=4),)}, "layers[0]: items and zipf are for scope project"),
        ({"layers": (layer("s", "project", items=0),)}, "layers[0].items = 0, expected 1 to"),
        ({"layers": (layer("s", "global", timestamp_s=1e-9),)}, "layers[0].timestamp_s = 1e-09, expected 0 (never) or at least"),
        ({"layers": (layer("s", "dynamic", redeploy_s=4),)}, "layers[0].redeploy_s has no effect on a dynamic layer"),
        ({"layers": (layer("s", "session", share="x"),)}, "layers[0].share = 'x' is for scopes global and project"),
        ({"output": Dist(kind="lognormal", median=100, sigma=50)}, "output: this lognormal reaches"),
        ({"tenants": 0}, "tenants = 0, expected at least 1"),
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
        ({"requests": None}, "needs duration_s or requests"),
        ({"rate": 3.0}, "rate = 3 has no effect: no class has a share"),
        ({"class_": ()}, "is not a mix"),
        ({"preset": "chat"}, "has preset and class, expected exactly one of"),
        ({"trace": "x.jsonl"}, "has trace and class, expected exactly one of"),
        ({"sample": 0.5}, "sample = 0.5 is for traces"),
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
        ({"clas": []}, "[workload]: unknown key 'clas' (did you mean class?)"),
        ({"class": [{"name": "chat", "layers": [{"token": {}}]}]}, "[[workload.class]] 'chat': layers[0]: unknown key 'token' (did you mean tokens?)"),
        ({"class": [{"name": "chat", "output": {"value": "many"}}]}, "[[workload.class]] 'chat': output.value = 'many', expected a number"),
        ({"class": [{"layers": 3}]}, "[[workload.class]] number 1: layers = 3, expected a list"),
        ({"requests": 1.5}, "[workload] requests = 1.5, expected a whole number"),
    ],
)
def test_tables_are_read_strictly(table, message):
    with pytest.raises(InputError) as error:
        parse_workload(table)
    assert message in str(error.value)


