"""Workloads and sums whose last digit does not depend on numpy's version: the values here are those of numpy 1.26.4 and
2.4.6 alike, whose own exp, log1p, power and sum differ.

python -m pytest tests/test_portable.py
"""

from __future__ import annotations

import ast
import hashlib
import math
import platform
from pathlib import Path

import numpy as np
import pytest

from workloads import portable
from workloads.arrivals import first, paced
from workloads.config import Arrival, Dist
from workloads.dists import sample, stream

ROOT = Path(__file__).resolve().parent.parent
KNOWN = {  # of one seed, with glibc's exp and log: another C library may differ in the last place
    "poisson": "1f3bf839a08462af",
    "gamma": "5c45962b2601a8fb",
    "onoff": "88913f861fcaea21",
    "diurnal": "a2b87202cb021cd1",
    "ramp": "de7fb94a91f5bac5",
    "lognormal": "129d0aa99edaeb6b",
    "exponential": "1ab9ba9dbe07e05a",
    "geometric": "e65e3a39a774367b",
}
ARRIVALS = {
    "poisson": Arrival(),
    "gamma": Arrival(kind="gamma", cv=2.0),
    "onoff": Arrival(kind="onoff", on_s=5.0, off_s=20.0),
    "diurnal": Arrival(kind="diurnal", period_s=100.0, curve=(1.0, 3.0, 0.5)),
    "ramp": Arrival(ramp_to=9.0, ramp="exponential"),
}
DISTS = {
    "lognormal": Dist(kind="lognormal", median=100.0, p90=300.0),
    "exponential": Dist(kind="exponential", mean=5.0),
    "geometric": Dist(kind="geometric", mean=4.0),
}
VARYING = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power"}
"""Functions of numpy that differ with its version."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the last place is that of another C library's exp")
@pytest.mark.parametrize("kind", KNOWN)
def test_the_bytes_of_what_is_drawn(kind: str) -> None:
    if kind in ARRIVALS:
        arrival = ARRIVALS[kind]
        drawn = paced(arrival, 3.0, first(arrival, 3.0, 20_000, stream(0, "chat", "arrivals")))
    else:
        drawn = sample(DISTS[kind], 20_000, stream(0, "x"))
    assert hashlib.sha256(drawn.tobytes()).hexdigest()[:16] == KNOWN[kind]


def test_sums_are_added_in_one_order() -> None:
    numbers = np.random.Generator(np.random.PCG64(5)).random(100_000)
    assert portable.total(numbers).hex() == "0x1.871f0accf125cp+15"  # numpy's own: ...5c before 2.3, ...5d since
    assert portable.std(numbers).hex() == "0x1.27b71e567cee0p-2"
    assert portable.mean(numbers) == pytest.approx(numbers.mean(), rel=1e-14)
    assert portable.total(np.zeros(0)) == 0.0
    assert portable.total(np.array([1, 2, 3])) == 6.0


def test_functions_are_those_of_the_c_library() -> None:
    x = stream(0, "b").random(1000) * 20 - 10
    assert portable.exp(x).tolist() == [math.exp(v) for v in x.tolist()]
    assert portable.exp(np.array([-1e9, 800.0, np.inf])).tolist() == [0.0, np.inf, np.inf]
    assert portable.log1p(np.abs(x)).tolist() == [math.log1p(abs(v)) for v in x.tolist()]
    assert portable.power(np.arange(1, 4), -0.5).tolist() == [1.0, 2**-0.5, 3**-0.5]
    assert portable.power(4.0, np.array([0.0, 0.5, 1.0])).tolist() == [1.0, 2.0, 4.0]


def test_nothing_on_the_way_to_a_run_uses_those_of_numpy() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: np.{node.attr}"
        for folder in ("workloads", "sim")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
        if node.attr in VARYING
    ]
    assert found == []
