"""Limits, target, price on the page: the verdict changes at once, no simulation is started, the link holds it."""

import json

import pytest

from kvcast import text
from kvcast.store.runs import load_run
from kvcast.studies.judged_anew import judged_anew
from sim.scenario import SloClass, SloConfig
from tests.ui.conftest import Session
from tests.ui.test_shell import linked, params


@pytest.fixture
def session(folder):
    return Session()


def verdict(session):
    at = session.at
    return next(
        e.value.replace("\\", "") for kind in (at.success, at.error, at.warning) for e in kind if "2 × H200" in e.value
    )


def set_(session, key, value):
    session.at.number_input(key=f"judged.{key}").set_value(value)
    return session.settle(session.at.run())


def test_another_limit_is_another_verdict_without_a_run(session, folder):
    job, jobs = session.at.session_state.job, set(folder.glob("*.toml"))
    assert "Meets the target." in verdict(session)
    set_(session, "slo.chat.ttft", 40.0)
    set_(session, "price", 2.0)
    assert "Misses the target." in verdict(session)
    asked = SloConfig(attainment=0.95, classes={"chat": SloClass(0.04, 0.03), "coding-agent": SloClass(2.0, 0.03)})
    expected = judged_anew(load_run(job.folder), asked, 2.0).summary
    assert session.numbers()["Within limits"] == text.percent(expected["attainment"])
    assert session.numbers()["Cost / M tokens"] == text.usd(expected["cost"]["usd_per_million_output_tokens"])
    assert "settings have changed" not in session.words(), "nothing is left to run"
    assert "a search over simulations" in session.words(), "but the plan is another question"
    assert set(folder.glob("*.toml")) == jobs, "nothing was started"
    assert session.at.session_state.job is job
    assert session.at.number_input(key="slo.chat.ttft").value == 40, "the sidebar says the same"
    session.at.number_input(key="target").set_value(60.0)
    session.settle(session.at.run())
    assert session.at.number_input(key="judged.target").value == 60
    assert "Meets the target." in verdict(session)


def test_an_emptied_field_is_no_limit(session):
    """In the sidebar and above the verdict: not what it was, nor the least that it may be."""
    set_(session, "slo.chat.ttft", None)
    assert session.at.number_input(key="slo.chat.ttft").value is None
    session.at.number_input(key="slo.chat.tpot").set_value(None)
    session.at.number_input(key="price").set_value(None)
    session.settle(session.at.run())
    assert session.at.number_input(key="judged.price").value is None
    assert params(session) | {"job": ""} == {"slo.classes.chat": "", "cost.gpu_hour_usd": "", "job": ""}


def test_the_link_holds_what_it_is_judged_by(session, folder):
    set_(session, "target", 99.95)
    found = params(session)
    assert found == {"slo.attainment": "0.9995", "job": session.at.session_state.job.key}
    again = linked(**found)
    assert verdict(again) == verdict(session)
    assert "settings have changed" not in again.words()


def test_other_settings_are_judged_too_and_still_to_be_run(session):
    session.at.number_input(key="replicas").set_value(3).run()
    set_(session, "slo.chat.ttft", 40.0)
    assert "Misses the target. 2 × H200" in verdict(session).replace("**", "")
    assert "settings have changed" in session.words()
    session.at.selectbox(key="workload").set_value("chat").run()
    assert "Meets the target." in verdict(session), "limits of another workload are not of this run"
    assert not [n for n in session.at.number_input if str(n.key).startswith("judged.")]


def test_what_is_taken_away_says_what_the_page_says(session):
    from kvcast.pages import judging, results

    state = set_(session, "slo.chat.ttft", 40.0).at.session_state
    run = load_run(state.job.folder)
    asked = SloConfig(attainment=0.95, classes={"chat": SloClass(0.04, 0.03), "coding-agent": SloClass(2.0, 0.03)})
    scenario = judging.under(None, judging.scenario_of(state.job.scenario_toml))
    assert scenario.slo.classes["chat"].ttft_s == 0.5, "asked for nothing, it stays as it was"
    found = judged_anew(run, asked, 4.0)
    rows = results.as_csv(found.tables["requests"]).decode().splitlines()
    column = rows[0].split(",").index('"good"')
    assert sum(row.split(",")[column] == "true" for row in rows[1:]) == int(found.tables["requests"]["good"].sum())
    assert json.loads(text.to_json(found.summary))["attainment"] == found.summary["attainment"]
