"""A load over the day and a fleet that follows it, on the pages: their fields, and what is shown of them.

python -m pytest tests/ui/test_day_page.py
"""

from dataclasses import replace

import pytest

from kvcast.config import load_scenario
from kvcast.figures import workload as figures
from kvcast.jobs import link
from kvcast.pages import workload_demand
from kvcast.pages.edit import inputs, scaling, settings
from kvcast.scenario.toml import dumps
from tests.ui.conftest import Session
from workloads.config import Demand, WorkloadConfig
from workloads.errors import InputError
from workloads.mix import resolve


@pytest.fixture
def page(folder):
    return Session("workload")


def asked(page):
    return link.scenario_of(dict(page.at.query_params), settings.demo(), inputs.policies())


def field(page, name):
    return f"workload.demand.{page.at.session_state['workload.version']}.{name}"


def set_(page, kind, key, value):
    getattr(page.at, kind)(key=key).set_value(value)
    return page.settle(page.at.run())


def load(page, *sets):
    given = load_scenario("examples/day.toml", sets)
    page.at.file_uploader(key="scenario.upload").set_value(("s.toml", dumps(given).encode(), "application/toml"))
    page.settle(page.at.run())
    return given


def test_a_loaded_day_is_the_same_load(page):
    """Its factors' mean too: with a rate of 1 they are sessions per second."""
    given = load(page, "workload.demand.shape=", "workload.demand.factors=[2, 6, 4, 0]", "workload.duration_s=600")
    found = asked(page)
    assert resolve(found.workload) == replace(resolve(given.workload), preset=None)
    assert resolve(found.workload).rate_scale == 3.0
    assert found.workload.demand == given.workload.demand, "and stays a demand, in words and in the file"
    assert (found.autoscale, found.cluster) == (given.autoscale, given.cluster)
    assert "Peak: 6 times the mix's own rate, 18 sessions/s, from 6:00 to 12:00. Least: 0 times" in page.words()
    assert "Mean: 3 times" in page.words()
    page.go("plan")
    set_(page, "selectbox", "autoscale.rule", "llm-d")
    assert page.at.number_input(key="autoscale.target").placeholder == "16", "another rule has its own target"
    assert asked(page).autoscale.target is None
    set_(page, "selectbox", "autoscale.rule", "hpa")
    assert page.words().count("[autoscale] rule = 'hpa': expected a target with it") == 2
    assert "Autoscale: hpa" in [expander.label for expander in page.at.expander]


def test_a_day_and_a_schedule_are_entered(page):
    set_(page, "selectbox", field(page, "kind"), "working-day")
    set_(page, "number_input", field(page, "start"), 8.0)
    length = f"workload.duration_s.{page.at.session_state['workload.version']}"
    set_(page, "number_input", length, 600.0)
    assert "Peak: 2.66 times" in page.words()
    assert "from hour 8" in page.words()
    set_(page, "selectbox", field(page, "kind"), workload_demand.OWN)
    hours = asked(page).workload.demand.factors
    assert len(hours) == 24
    after = workload_demand.edited(
        WorkloadConfig(demand=Demand(factors=hours)), {"edited_rows": {"10": {"times": 5.0}}}
    )
    assert after.demand.factors == (*hours[:10], 5.0, *hours[11:])
    set_(page, "selectbox", "autoscale.rule", "schedule")
    set_(page, "text_input", "autoscale.times", "0:00 1, 8.5 2")
    assert page.words().count("schedule: '8.5 2', expected a time and a number of replicas") == 2
    set_(page, "text_input", "autoscale.times", "0:00 1, 8:05 2")
    found = asked(page)
    assert (found.autoscale.times_s, found.autoscale.replicas) == ((0.0, 29100.0), (1, 2))
    assert (found.workload.start_s, found.workload.duration_s) == (28800.0, 600.0)
    page.press("Run")
    page.go("plan")
    assert "a plan looks for a fleet that does not change" in page.words()
    assert "up to 2 × H200-SXM" in page.words()


def test_schedules_are_read_as_they_are_written():
    assert (
        scaling.written((0.0, 24900.0, 24930.0, 90000.5), (1, 2, 3, 4)) == "0:00 1, 6:55 2, 6:55:30 3, 25:00:00.500 4"
    )
    assert scaling.read("0:00 1, 6:55 2, 6:55:30 3, 25:00:00.500 4") == ((0.0, 24900.0, 24930.0, 90000.5), (1, 2, 3, 4))
    for wrong in ("", "0:00", "0:60 1", "0:00 one", "0:00 1 2"):
        with pytest.raises(InputError, match=r"^schedule: .*expected"):
            scaling.read(wrong)


def test_a_window_that_goes_over_midnight_is_drawn_in_two_parts():
    figure = figures.demand((1.0, 2.0), 86400.0, (79200.0, 93600.0))
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(22.0, 24.0), (0.0, 2.0)]
    assert list(figure.data[0].x) == [0.0, 12.0, 24.0]
