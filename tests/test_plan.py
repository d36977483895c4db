"""kvcast plan: the fewest replicas are what brute force finds."""

from __future__ import annotations

import pytest

from kvcast import plan
from tests.plan_cases import ALONE, CASES, brute_force, scenario


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_what_brute_force_finds(case):
    made = plan(scenario(**CASES[case]), most=12, **ALONE)
    assert made["answer"]["replicas"] == brute_force(made, 12) > 1
    answer = made["answer"]
    assert answer["word"] == "meets"
    below = [row for row in made["candidates"] if row["replicas"] == answer["replicas"] - 1]
    assert below
    assert below[0]["verdict"] != "meets"
