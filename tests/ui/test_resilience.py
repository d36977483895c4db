"""The Resilience page: a shock that is set is run and told, and the questions are asked of the fleet without it."""

import pytest

from kvcast.pages import resilience
from kvcast.pages.edit import settings
from kvcast.present import resilience_text
from kvcast.scenario.toml import dumps
from tests.test_shocks import NARROW, document
from tests.ui.conftest import Session

ROW = {"level": 1.0, "way": "up", "attainment": 0.99, "hit_rate": 0.9, "waiting": 0.1}
MADE = {
    "burst": {"lasts_s": 600.0, "size": 2.0},
    "within_s": 1800.0,
    "regime": "metastable",
    "sweep": [ROW, {**ROW, "level": 2.0}, {**ROW, "way": "down", "attainment": 0.1}],
    "collapse": [
        {
            "level": 1.0,
            "hours": 2.0,
            "runs": 3,
            "collapsed": 0,
            "mean_low_s": 5000.0,
            "mean_s": None,
            "mean_high_s": None,
        }
    ],
    "shocks": [{"kind": "burst", "size": 2.0, "lasts_s": 600.0, "back_s": [60.0, None, 120.0]}],
    "remedies": {
        "level": 1.0,
        "rows": [
            {
                "change": "sequences at once 8",
                "back": 2,
                "back_s": [1.0, 2.0, None],
                "slowest_s": 2.0,
                "turned_away": 0.25,
                "costs": "free",
            }
        ],
    },
}


def test_each_question_leaves_the_others_out():
    assert resilience.command("sweep") == ("resilience", "--no-collapse", "--no-shocks", "--no-remedies", "--json")
    assert "--no-shocks" not in resilience.command("collapse", "shocks")


def test_rows_say_what_the_text_says():
    (shock,) = resilience.as_rows(resilience_text.SHOCK_COLUMNS, resilience_text.shock_rows(MADE))
    assert shock["seeds"] == "2 of 3"
    (change,) = resilience.as_rows(resilience_text.REMEDY_COLUMNS, resilience_text.remedy_rows(MADE["remedies"]))
    assert (change["seeds"], change["turned away"]) == ("2 of 3", "25.0 %")
    assert "depends on where it came from" in resilience_text.states(MADE["sweep"])
    assert resilience_text.regime(MADE).startswith("at its own load METASTABLE")


@pytest.fixture
def narrow(monkeypatch):
    """The page begins with a small fleet instead of the bundled example."""
    from kvcast.config import scenario_from_doc

    doc = {**document(engine=NARROW), "run": {}, "plan": {"recover_within_s": 120.0}}
    small = scenario_from_doc({**doc, "name": "narrow"})
    monkeypatch.setattr(settings.demo_module, "scenario", lambda: small)
    settings.demo.clear()
    yield small
    settings.demo.clear()


def test_a_shock_is_set_run_and_told(folder, narrow):
    session = Session("resilience")
    assert "Nothing happens to the fleet" in session.words()
    assert "Run without" not in session.buttons()
    session.press("Run with this shock")
    words = session.words()
    assert "burst" in session.at.session_state.job.scenario_toml
    assert "back at the target" in words
    assert "expected a time within the window" not in words  # the sidebar's own look at what fits has no shock
    assert "settings have changed" not in words
    assert "Run without" in session.buttons()
    assert "Raise the load in steps, then lower it" in session.buttons()  # asked without the shock
    session.press("Run without")
    assert "[[shock]]" not in session.at.session_state.job.scenario_toml
    assert "Nothing happens to the fleet" in session.words()
    assert dumps(narrow).count("[[shock]]") == 0
