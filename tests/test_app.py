"""The dashboard: its pure parts directly, its flows through Streamlit's AppTest."""
import json
import math
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from kvcast import cli
from kvcast.pages import inputs, mix, results, runner, terms
from kvcast.runs import load_run
from workloads.config import Dist
from workloads.errors import InputError
from workloads.toml import list_presets, load_preset

ROOT = Path(__file__).parent.parent
APP = ROOT / "app.py"
SMALL = "name = 'small'\n[workload]\npreset = 'demo'\nduration_s = 20.0\n"
TRACE = "".join(
    json.dumps({"timestamp": 100 * i, "input_length": 900 + i, "output_length": 20, "hash_ids": [i % 3, 10 + i]}) + "\n" for i in range(60)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the dashboard keeps its runs, for every test of this module."""
    path = tmp_path_factory.mktemp("dashboard")
    os.environ["KVCAST_RUNS"] = str(path)
    yield path
    del os.environ["KVCAST_RUNS"]


@pytest.fixture
def app(folder):
    return opened()


def opened():
    """A session whose first run is there."""
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    return settled(at)


def settled(at):
    """The page once the run it waits for has ended; a browser polls, a test waits."""
    if at.session_state.pending is not None:
        at.session_state.pending.wait()
        at.run()
    assert not at.exception
    return at


def go(at, page):
    """Choose a page of the navigation."""
    at._page_hash = calc_hash(page)
    return at.run()


@pytest.fixture(scope="module")
def small(folder):
    """A finished small run."""
    job = runner.Runner(folder).submit(SMALL)
    job.wait()
    return load_run(job.folder)


def metrics(at):
    return {m.label: m.value for m in at.metric}


def words(at):
    """Everything a reader of the page can see."""
    kinds = (at.markdown, at.caption, at.text, at.success, at.error, at.warning, at.info, at.code)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def press_run(at):
    next(b for b in at.button if b.label == "Run").click()
    return settled(at.run())


# -- flows -------------------------------------------------------------------------------------------------------------


def test_changed_settings_say_so_until_they_are_run(app):
    app.number_input(key="replicas").set_value(1).run()
    assert "have changed" in app.info[0].value
    assert "2 × H200" in app.success[0].value.replace("\\", ""), "the old answer stays, whole"
    press_run(app)
    assert not app.info
    assert "1 × H200" in app.success[0].value.replace("\\", "")


def test_a_limit_of_the_engine_is_one_line_and_leaves_the_answer(app):
    app.number_input(key="kv_blocks").set_value(1).run()
    press_run(app)
    assert not app.exception
    # every request is rejected as too large for one block: an answer, not an error
    assert "Misses the target" in app.error[0].value
    assert metrics(app)["Within limits"] == "0.0 %"


def test_a_bad_trace_is_one_clear_line(app, folder):
    bad = TRACE.replace('"input_length": 905', '"input_length": -5')
    app.selectbox(key="workload").set_value(inputs.TRACE).run()
    assert "upload a trace" in app.error[0].value
    go(app, "workload")
    app.file_uploader(key="trace").set_value(("../bad trace.jsonl", bad.encode(), "application/json")).run()
    [line] = [e.value.replace("\\", "") for e in app.error]
    assert line.endswith("bad_trace.jsonl, row 6: input_length = -5, expected a whole number of at least 1")
    assert str(folder) not in words(app)
    press_run(app)
    assert len(app.error) == 1, "nothing was run"
    assert app.number_input(key="replicas").value == 2, "the other inputs stay"


def test_a_good_trace_is_reported_simulated_and_reproducible(app, folder, tmp_path, capsys):
    app.selectbox(key="workload").set_value(inputs.TRACE).run()
    go(app, "workload")
    app.file_uploader(key="trace").set_value(("good.jsonl", TRACE.encode(), "application/json")).run()
    assert "rows read 60 = requests 60 + skipped 0" in words(app)
    press_run(app)
    assert not app.exception
    assert not app.error
    assert "No limits are set" in app.info[0].value.replace("\\", ""), "a trace starts without limits"
    assert str(folder) not in words(app)
    # the scenario that the page hands out, beside the trace, gives the same bytes
    (tmp_path / "scenario.toml").write_text(results.portable(app.session_state.job.scenario_toml))
    (tmp_path / "good.jsonl").write_text(TRACE)
    assert cli.main(["run", str(tmp_path / "scenario.toml"), "--out", str(tmp_path / "again")]) == 0
    capsys.readouterr()
    assert (tmp_path / "again" / "summary.json").read_bytes() == (app.session_state.job.folder / "summary.json").read_bytes()


def test_an_overloaded_fleet_is_unstable_and_shows_no_percentiles(app):
    app.selectbox(key="workload").set_value("chat").run()
    app.number_input(key="requests-chat").set_value(1500).run()
    app.number_input(key="rate_scale").set_value(40.0).run()
    app.number_input(key="replicas").set_value(1).run()
    app.number_input(key="max_num_seqs").set_value(16).run()
    press_run(app)
    assert "Unstable" in app.error[0].value
    assert "Backlog growth (requests/s)" in metrics(app)
    assert not any(label.startswith(("TTFT", "TPOT")) for label in metrics(app))


@pytest.mark.parametrize("name", ["demo", "tool-agent-api"])
def test_an_untouched_preset_stays_a_preset(app, name):
    app.selectbox(key="workload").set_value(name).run()
    press_run(app)
    assert tomllib.loads(app.session_state.job.scenario_toml)["workload"].get("preset") == name


def test_a_second_session_finds_the_first_ones_run(app, folder):
    before = set(folder.glob("*/run.json"))
    again = opened()
    assert metrics(again) == metrics(app)
    assert set(folder.glob("*/run.json")) == before


# -- the mix -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_presets())
def test_untouched_tables_give_the_preset_back(name):
    preset = load_preset(name)
    edited = mix.from_rows(preset, json.loads(json.dumps(mix.class_rows(preset))), json.loads(json.dumps(mix.layer_rows(preset))))
    assert [replace(c, share=None, rate=None) for c in edited.class_] == [replace(c, share=None, rate=None) for c in preset.class_]
    assert sum(c.rate for c in edited.class_) == pytest.approx(preset.rate or sum(c.rate for c in preset.class_))


@pytest.mark.parametrize(("text", "dist"), [
    ("1200", Dist(value=1200.0)), ("16k", Dist(value=16000.0)), ("1,200", Dist(value=1200.0)), ("129 p90 424 max 1000", Dist(kind="lognormal", median=129.0, p90=424.0, high=1000.0)),
    ("lognormal 129 sigma 0.9", Dist(kind="lognormal", median=129.0, sigma=0.9)), ("geometric 4 max 12", Dist(kind="geometric", mean=4.0, high=12.0)),
    ("uniform 3 to 50", Dist(kind="uniform", low=3.0, high=50.0)), ("exponential 1.5", Dist(kind="exponential", mean=1.5)),
    ("empirical 2000:3 8000:1 max 5000", Dist(kind="empirical", values=(2000.0, 8000.0), weights=(3.0, 1.0), high=5000.0)),
])  # fmt: skip
def test_a_distribution_is_a_short_text(text, dist):
    assert mix.parse_dist(text) == dist
    assert mix.parse_dist(mix.dist_text(dist)) == dist


@pytest.mark.parametrize("text", ["", "many", "12 p90", "12 p90 x", "12 p99 40", "-5", "nan", "1e999", "empirical 3", "empirical 1:2:3", "12 p90 20 p90 30", "geometric"])
def test_an_unreadable_distribution_is_one_line_with_the_grammar(text):
    with pytest.raises(InputError, match="expected a distribution") as error:
        mix.parse_dist(text, "classes, row 1: turns")
    assert str(error.value).startswith("classes, row 1: turns")
    assert "\n" not in str(error.value)


def test_editing_adds_a_class_and_keeps_what_the_tables_do_not_show():
    preset = load_preset("tool-agent-api")
    classes, layers = mix.class_rows(preset), mix.layer_rows(preset)
    classes[0]["rate"], classes[0]["slo_class"] = 9.0, "fast"
    classes.append({"name": "new", "rate": 0.5, "turns": "2", "think": "10", "output": "100", "tenants": math.nan, "isolation": None})
    layers.append({"class": "new", "name": "text", "scope": None, "tokens": "500", "items": None, "zipf": math.nan})
    edited = mix.from_rows(preset, classes, layers)
    assert edited.class_[0].rate == 9.0
    assert edited.class_[0].slo_class == "fast"
    assert edited.class_[0].arrival == preset.class_[0].arrival, "bursts are not in the table"
    new = edited.class_[-1]
    assert (new.name, new.turns, new.layers[0].scope, new.tenants) == ("new", Dist(value=2.0), "dynamic", 1)


def test_edits_that_make_no_sense_are_one_line():
    preset = load_preset("demo")
    classes, layers = mix.class_rows(preset), mix.layer_rows(preset)
    for changed, message in (({"rate": None}, "sessions/s is empty"), ({"output": ""}, "output"), ({"name": " "}, "class is empty")):
        with pytest.raises(InputError, match=message):
            mix.from_rows(preset, [{**classes[0], **changed}, *classes[1:]], [] if "name" in changed else layers)
    with pytest.raises(InputError, match="class = 'chat', expected one of coding-agent"):
        mix.from_rows(preset, classes[1:], layers)


# -- runs and uploads --------------------------------------------------------------------------------------------------


def test_equal_scenarios_share_a_run_and_a_failed_one_says_why(small, folder):
    again = runner.Runner(folder).submit(SMALL)
    assert again.done
    assert again.thread is None or not again.running
    job = runner.Runner(folder).submit(SMALL.replace("demo", "dmeo"))
    job.wait()
    assert not job.done
    assert job.failure().startswith("[workload] preset = 'dmeo', expected one of")
    assert not job.folder.exists(), "nothing half-written"


def test_cancel_stops_the_process(folder):
    shared = runner.Runner(folder)
    job = shared.submit(SMALL.replace("20.0", "20000.0"))
    assert job.running
    shared.cancel(job)
    job.wait()
    assert (job.done, job.failure()) == (False, runner.CANCELLED)


def test_uploads_stay_in_their_folder_and_within_bounds(folder):
    shared = runner.Runner(folder)
    for name in ("../../up.jsonl", "/etc/up.jsonl", "a/../b.jsonl", ".hidden.jsonl", "x" * 300 + ".jsonl", "a\nb.jsonl"):
        path = shared.keep_upload(name, b"{}")
        assert path.resolve().is_relative_to((folder / "uploads").resolve())
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", path.name)
    with pytest.raises(InputError, match="expected a name that ends in"):
        shared.keep_upload("run.py", b"print()")
    with pytest.raises(InputError, match="at most 64 MiB"):
        shared.keep_upload("big.jsonl", bytes(runner.UPLOAD_LIMIT_BYTES + 1))


def test_no_path_of_the_server_leaves_in_the_scenario():
    toml = '[workload]\ntrace = "/srv/runs/uploads/abc/my trace.jsonl"\nformat = "mooncake"\n'
    assert results.portable(toml) == '[workload]\ntrace = "my trace.jsonl"\nformat = "mooncake"\n'


def test_names_cannot_act_as_markdown():
    assert results.plain("![x](http://a.b) <b> $1") == r"\!\[x\]\(http\://a.b\) \<b\> \$1"


def test_nothing_is_sent_or_evaluated():
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert settings["browser"]["gatherUsageStats"] is False
    assert settings["server"]["maxUploadSize"] << 20 == runner.UPLOAD_LIMIT_BYTES
    for path in [APP, *(ROOT / "kvcast" / "pages").glob("*.py")]:
        source = path.read_text()
        for word in ("unsafe_allow_html", "eval(", "exec(", "pickle", "http://", "https://", "page_icon"):  # a material page icon is fetched from outside
            assert word not in source, (path, word)


def test_every_definition_is_used():
    source = "".join(path.read_text() for path in (ROOT / "kvcast" / "pages").glob("*.py") if path.name != "terms.py")
    for name in terms.TERMS:
        assert re.search(rf"['\"]{name}['\"]", source), name
