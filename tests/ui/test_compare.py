"""The Compare page: what may vary, what a difference says, and the flow through AppTest on real runs."""

import csv
import io
import json

import pytest

from kvcast import cli
from kvcast.jobs import runner
from kvcast.pages import compare
from kvcast.pages.edit import inputs, settings, variants
from kvcast.present import comparison
from kvcast.store.runs import load_run
from tests.ui.conftest import Session
from workloads.errors import InputError

SMALL = "name = 'small'\n[workload]\npreset = 'demo'\nduration_s = 250.0\n[slo]\nttft_s = 0.1\nattainment = 0.9\n"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """A real comparison: policies and the cache off."""
    path = tmp_path_factory.mktemp("compare") / "small.toml"
    path.write_text(SMALL)
    return run_json(
        "compare", str(path), "--vary", "cache.enabled=true,false", "--vary", "cache.policy=lru,lfu", "--json"
    )


def run_json(*argv):
    import contextlib

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main([*argv]) == 0
    return json.loads(out.getvalue())


# -- what may vary -----------------------------------------------------------------------------------------------------


def test_the_scenarios_own_value_is_the_first_variant():
    command = variants.command(
        settings.demo(), {"cluster.replicas": ["4", "2", "1"], "cache.policy": ["lfu"], "cluster.router": []}, 3
    )
    assert command == ("compare", "--vary", "cluster.replicas=2,4,1", "--vary", "cache.policy=lru,lfu", "--seeds", "3")
    assert variants.count_of(command) == 18
    assert variants.command(settings.demo(), {"cluster.replicas": ["2"]}, 1) == (), "nothing to compare"


def test_too_many_variants_are_refused():
    with pytest.raises(InputError, match="26 variants, expected at most 24"):
        variants.command(settings.demo(), {"cluster.replicas": [str(n) for n in range(3, 28)]}, 1)


@pytest.mark.parametrize(
    ("words", "expected"), [("1, 2;4", ["1", "2", "4"]), ("", []), ("1_000", ["1000"]), ("8 16", ["8", "16"])]
)
def test_numbers_are_read(words, expected):
    assert variants.numbers(variants.BY_KEY["cluster.replicas"], words) == expected


@pytest.mark.parametrize("words", ["0", "1.5", "many", "nan", "-2", "1e999", "/etc/passwd"])
def test_a_number_that_is_none_is_one_line(words):
    with pytest.raises(InputError, match=r"^Replicas: .*, expected whole numbers of at least 1"):
        variants.numbers(variants.BY_KEY["cluster.replicas"], words)


def test_every_axis_is_a_key_of_a_scenario():
    for axis in variants.AXES:
        variants.own(settings.demo(), axis.key)
        if axis.least is None:
            values = variants.options(settings.demo(), axis.key, inputs.policies())
            assert values
            assert variants.written(variants.own(settings.demo(), axis.key)) not in values


# -- the answer --------------------------------------------------------------------------------------------------------


def test_a_row_a_variant_and_a_verdict_a_value(document):
    rows = comparison.difference_rows(document)
    assert [row["variant"] for row in rows] == [
        "enabled true, policy lfu",
        "enabled false, policy lru",
        "enabled false, policy lfu",
    ]
    off = rows[1]
    assert off["TTFT mean"].startswith("+")
    assert off["TTFT mean"].endswith("worse")
    assert "±" in off["TTFT mean"]
    assert off["attainment"].startswith("−")
    same = document["variants"][1]["vs_first"]
    for heading, key in (("attainment", "attainment"), ("TPOT mean", "mean_tpot_ms")):
        assert (rows[0][heading] == "no difference shown") == (same[key]["shown"] is False)
    assert "cost/request" not in rows[0], "no price, no column"


def test_a_difference_without_an_interval_says_why():
    tell = "{:.1f} ms".format
    assert (
        comparison.cell({"difference": 3.0, "interval_95": None, "shown": None, "note": "one seed"}, tell, "lower")
        == "+3.0 ms (no interval: one seed)"
    )
    assert (
        comparison.cell({"difference": None, "interval_95": None, "shown": None, "note": "unstable"}, tell, "lower")
        == "unstable"
    )
    assert (
        comparison.cell({"difference": -3.0, "interval_95": 1.0, "shown": True, "note": ""}, tell, "lower")
        == "−3.0 ms ± 1.0 ms, better"
    )


def test_an_unstable_variant_shows_no_latency(document):
    broken = {
        **document,
        "variants": [{**document["variants"][0], "summaries": [{"stable": False, "coverage": {"extrapolated": 0.25}}]}],
    }
    [row] = comparison.value_rows(broken)
    assert row["extrapolated"] == "25.0 % †"
    assert row["TTFT p99"] == "-"
    assert row["stable"] == "NO"
    assert row["attainment"] != "-"


def test_the_table_downloads_as_numbers(document):
    rows = list(csv.DictReader(io.StringIO(comparison.as_csv(document))))
    assert [row["cache.policy"] for row in rows] == ["lru", "lfu", "lru", "lfu"]
    assert (
        float(rows[2]["mean_ttft_ms_difference"]) == document["variants"][2]["vs_first"]["mean_ttft_ms"]["difference"]
    )


def test_two_runs_compare_as_the_command_would(folder, document):
    shared = runner.Runner(folder)
    jobs = [shared.submit(SMALL + extra) for extra in ("", "[cache]\nenabled = false\n")]
    for job in jobs:
        job.wait()
    found = compare.of_runs(*(load_run(job.folder) for job in jobs))
    assert found["variants"][1]["vs_first"] == document["variants"][2]["vs_first"]


# -- flows -------------------------------------------------------------------------------------------------------------


def test_vary_and_compare(folder):
    session = Session("compare")
    assert "Compare (3 simulations)" in session.buttons()
    session.at.text_input(key="compare.cluster.replicas").set_value("one").run()
    assert "expected whole numbers of at least 1" in session.words()
    session.at.text_input(key="compare.cluster.replicas").set_value("1").run()
    session.press("Compare (2 simulations)")
    shown = session.at.session_state.job
    from kvcast.pages import shell

    job = shell.runner_of(str(shown.folder.parent)).existing(
        shown.scenario_toml, "compare", "--vary", "cluster.replicas=2,1"
    )
    job.wait()
    assert job.done, job.failure()
    session.settle(session.at.run())
    assert "Against replicas 2" in session.words()
    table = session.at.dataframe[0].value
    assert "worse" in dict(zip(table[""], table["replicas 1"], strict=True))["TPOT mean"]
    assert "are expected to miss" in session.words()


def test_the_pinned_baseline_is_compared_without_another_run(folder):
    session = Session().press("Pin as baseline")
    session.at.selectbox(key="policy").set_value("lfu").run()
    session.press("Run")
    from streamlit.util import calc_hash

    session.at._page_hash = calc_hash("compare")
    session.settle(session.at.run())
    session.at.segmented_control(key="compare.against").set_value(compare.PINNED)
    session.settle(session.at.run())
    assert "Against baseline" in session.words()
    assert list(session.at.dataframe[0].value) == ["", "this run"]


def test_kept_variants_are_compared_and_travel_in_the_link(folder):
    from kvcast.pages import shell
    from tests.ui.test_shell import linked, params

    session = Session().press("Keep as A")
    assert "Kept as A" in session.words()
    session.at.selectbox(key="gpu").set_value("h100").run()
    session.at.number_input(key="replicas").set_value(1).run()
    session.press("Run").press("Keep as B")
    found = params(session)
    assert "variants" in found
    session.go("compare")
    assert "B: 1 × h100" in session.words()
    label = next(one for one in session.buttons() if one.startswith("Compare A, B (2 simulations)"))
    next(b for b in session.at.button if b.label == label).click()
    session.at.run()
    job = next(one for one in shell.runner_of(str(folder))._jobs.values() if "[variant." in one.scenario_toml)
    job.wait()
    assert job.done, job.failure()
    session.settle(session.at.run())
    assert "Against A: 2 × h200" in session.words()
    what = session.at.dataframe[0].value
    assert {"cluster.replicas", "hardware.gpu"} <= set(what["setting"])
    again = linked(**found)
    assert again.at.session_state["variants"] == session.at.session_state["variants"]
    session.press("Drop")
    assert list(session.at.session_state["variants"]) == ["B"]
