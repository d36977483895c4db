"""What all pages share: runs that never block, links, scenario files, sessions side by side."""

import json
import os
import tomllib
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from streamlit.testing.v1 import AppTest

from kvcast.config import load_scenario
from kvcast.jobs import allowed, demo, opened
from kvcast.pages import ask, plan, shell
from kvcast.pages.edit import inputs
from kvcast.scenario.toml import dumps
from kvcast.store.runs import load_run
from tests.ui.conftest import APP, Session
from workloads.toml import list_presets, load_preset

LONG = (
    'name = "long"\n[workload]\npreset = "demo"\nduration_s = 20000.0\n[slo]\nttft_s = 0.5\n[cost]\ngpu_hour_usd ='
    " 4.0\n"
)


@pytest.fixture
def session(folder):
    return Session()


def linked(**params):
    """A session that was opened from a link."""
    found = Session.__new__(Session)
    at = AppTest.from_file(str(APP), default_timeout=60)
    for key, value in params.items():
        at.query_params[key] = value
    return found.settle(at.run())


def params(session):
    return {key: value if isinstance(value, str) else value[0] for key, value in session.at.query_params.items()}


def load(session, content, name="scenario.toml"):
    session.at.file_uploader(key="scenario.upload").set_value((name, content, "application/toml"))
    return session.settle(session.at.run())


def shared():
    return shell.runner_of(os.environ["KVCAST_RUNS"])


# -- runs
# ----------------------------------------------------------------------------------------------------------------


def test_what_the_page_asks_first_is_what_the_server_prepared(session):
    assert session.at.session_state.job.scenario_toml == dumps(demo.scenario())
    assert demo.prepare(shared()).key == session.at.session_state.job.key
    planned = plan.prepare(shared())  # takes a minute: what matters is that the page finds it, and its Cancel
    at = Session().at
    assert at.button(key=f"cancel {planned.key}").label == "Cancel"
    assert "Find the fewest GPUs" not in [b.label for b in at.button]
    shared().cancel(planned)
    planned.wait()


def test_changed_settings_say_so_until_they_are_run(session):
    session.at.number_input(key="replicas").set_value(1).run()
    assert "The settings have changed since this run" in session.words()
    assert "2 × H200" in session.words(), "the old answer stays, whole"
    session.press("Run")
    assert "settings have changed" not in session.words()
    assert "1 × H200" in session.words()


def test_a_reload_in_the_middle_of_a_run_follows_it(folder):
    shown = demo.prepare(shared())
    link_ = {"workload.duration_s": "20000.0", "job": shown.key}
    at = AppTest.from_file(str(APP), default_timeout=60)
    at.query_params.update(link_)
    at.run()
    assert at.session_state.pending is None
    assert at.session_state.job.key == shown.key, "nobody has asked for this run yet"
    next(b for b in at.button if b.label == "Run").click()
    running = at.run().session_state.pending
    again = AppTest.from_file(str(APP), default_timeout=60)
    again.query_params.update(link_)
    again.run()
    assert again.session_state.pending is running
    assert again.session_state.job.key == shown.key
    shared().cancel(running)
    running.wait()


def test_a_run_in_progress_shows_how_far_it_is_and_is_cancelled(session):
    before = session.at.session_state.job
    load(session, LONG.encode())
    next(b for b in session.at.button if b.label == "Run").click()
    at = session.at.run()
    job = at.session_state.pending
    assert job.running
    assert "2 × H200" in session.words(), "the page does not wait"
    assert at.session_state.job is before
    at.button(key=f"cancel {job.key}").click().run()
    job.wait()
    session.settle(at.run())
    assert at.session_state.job is before
    words = session.words()
    assert "Cancelled. The results below are of the last finished run." in words
    assert "Changed: workload edited, cluster.replicas 2 → 1" in words


def test_a_limit_of_the_engine_is_an_answer(session):
    session.at.number_input(key="kv_blocks").set_value(1).run()
    session.press("Run")
    assert "0.0 %" in session.words(), "every request is rejected as too large"


def test_a_failed_run_is_one_clear_line_over_the_last_answer(session):
    session.at.selectbox(key="gpu").set_value("h100").run()
    session.at.selectbox(key="model").set_value("llama-3.1-70b").run()
    assert "does not fit H100-SXM-80GB" in session.words(), "said beside the choice, before anything runs"
    session.press("Run")
    [line] = [e.value.replace("\\", "") for e in session.at.error]
    assert "llama-3.1-70b in bf16 does not fit H100-SXM-80GB at tensor_parallel 1" in line
    assert "\n" not in line
    assert "2 × H200" in session.words()


def test_pages_numbers_are_the_summarys(session):
    document = json.loads((session.at.session_state.job.folder / "summary.json").read_text())
    assert document == load_run(session.at.session_state.job.folder).summary
    assert any(f"{100 * document['attainment']:.1f} %" in value for value in session.numbers().values())


def test_limits_are_called_as_the_classes_are(session):
    """Those of every bundled mix, and those of an SLO class that is called otherwise."""
    for name in list_presets():
        assert all(c.slo_class in ("", c.name) for c in load_preset(name).class_), name
    labels = [field.label.replace("\\", "") for field in session.at.number_input]
    assert {"TTFT all", "TTFT chat", "TTFT coding-agent", "TPOT coding-agent"} <= set(labels)
    mix = session.at.session_state["workload.mix"]
    chat, agent = mix.class_
    session.at.session_state["workload.mix"] = replace(mix, class_=(chat, replace(agent, slo_class="slow")))
    session.settle(session.at.run())
    assert "TTFT coding-agent" in [field.label.replace("\\", "") for field in session.at.number_input]
    session.at.session_state["workload.mix"] = mix
    session.settle(session.at.run())


def test_a_run_of_the_command_line_opens_as_it_is(session, folder, monkeypatch):
    """Its scenario.toml has every default written out, which is no change of settings; another replica is one."""
    ran = session.at.session_state.job.folder
    keys = opened.opened(shell.runner_of(str(folder)), [ran])
    monkeypatch.setenv(opened.RUNS, json.dumps(keys))
    other = linked(job=keys[str(ran)])
    assert other.at.session_state.job.key == keys[str(ran)] != ran.name
    assert other.numbers() == session.numbers()
    assert f"(/?job={keys[str(ran)]})" in other.words()
    assert "The settings have changed" not in other.words()
    other.at.number_input(key="replicas").set_value(3).run()
    assert "The settings have changed" in other.words()


def test_sessions_share_a_run_and_nothing_else(session, folder):
    before = set(folder.glob("*/run.json"))
    other = Session()
    assert set(folder.glob("*/run.json")) == before
    other.at.number_input(key="replicas").set_value(3).run()
    other.press("Run")
    session.settle(session.at.run())
    assert session.at.number_input(key="replicas").value == 2
    assert "2 × H200" in session.words()
    assert "3 × H200" in other.words()


# -- links
# ---------------------------------------------------------------------------------------------------------------


def test_the_address_is_a_link_to_the_settings(session):
    assert params(session) == {}, "the demo needs none"
    session.at.number_input(key="replicas").set_value(3).run()
    session.at.selectbox(key="policy").set_value("lfu").run()
    session.at.number_input(key="slo.chat.ttft").set_value(400.0).run()
    session.press("Run")
    found = params(session)
    assert found == {"cluster.replicas": "3", "cache.policy": "lfu", "slo.classes.chat.ttft_s": "0.4"}
    assert urlencode(found) in session.words()
    other = linked(**found)
    assert other.at.number_input(key="replicas").value == 3
    assert other.at.session_state.job.key == session.at.session_state.job.key, "the same run"
    assert not other.at.info


def test_a_reload_finds_the_run_on_show_though_the_settings_have_moved_on(session):
    session.at.number_input(key="replicas").set_value(4).run()
    found = params(session)
    assert found == {"cluster.replicas": "4", "job": session.at.session_state.job.key}
    again = linked(**found)
    assert again.at.session_state.job.key == session.at.session_state.job.key
    assert again.at.number_input(key="replicas").value == 4
    assert "settings have changed" in again.words()


def test_the_examples_settings_beside_another_run_survive_a_reload(session):
    session.at.number_input(key="replicas").set_value(1).run()
    session.press("Run")
    session.at.number_input(key="replicas").set_value(2).run()
    found = params(session)
    assert found == {"seed": "0", "job": session.at.session_state.job.key}, "a job alone would mean its settings"
    assert linked(**found).at.number_input(key="replicas").value == 2


def test_what_one_session_cancels_is_no_error_of_another(session):
    plan_ = plan.prepare(shared())
    session.settle(session.at.run())
    session.at.button(key=f"cancel {plan_.key}").click()
    session.settle(session.at.run())
    assert "Cancelled: “Find the fewest GPUs” has no answer yet." in session.words()
    other = Session()
    assert not other.at.error
    assert "Find the fewest GPUs" in other.buttons()


def test_a_reload_finds_a_run_in_progress(session):
    job = shared().submit(LONG)
    at = AppTest.from_file(str(APP), default_timeout=60)
    at.query_params["job"] = job.key
    at.run()
    assert not at.exception
    assert at.session_state.pending is job
    shared().cancel(job)
    job.wait()


def test_an_edited_mix_travels_in_the_link(folder):
    page = Session("workload")
    next(b for b in page.at.button if b.key and b.key.endswith("chat.1.up")).click().run()
    page.press("Run")
    [packed] = params(page)
    assert packed == "scenario"
    other = linked(**params(page))
    assert [layer.name for layer in other.at.session_state["workload.mix"].class_[0].layers] == ["message", "system"]
    assert other.at.session_state.job.key == page.at.session_state.job.key


@pytest.mark.parametrize(
    ("link", "line"),
    [
        ({"cluster.replicas": "none"}, "replicas"),
        ({"cache.policy": "os:path"}, "own classes are named where the dashboard is started"),
        ({"workload.trace": "/etc/passwd"}, "a page reads no files"),
        ({"scenario": "AAAA"}, "cut short or changed"),
        ({"model.name": "../../x"}, "expected one of codellama-34b"),
        ({"hardware.profile": "roofline:h200", "hardware.tensor_parallel": "3"}, "tensor_parallel 3"),
        ({"xss": "<script>"}, "is no setting"),
    ],
)
def test_a_bad_link_is_one_line_over_the_example(folder, link, line):
    page = linked(**link)
    [shown] = [e.value.replace("\\", "") for e in page.at.error]
    assert line in shown
    assert "\n" not in shown


def test_a_link_that_names_another_model_keeps_the_gpu_and_says_what_is_lost(folder):
    page = linked(**{"model.name": "qwen3-8b"})
    assert not page.at.error
    run = load_run(page.at.session_state.job.folder).scenario
    assert (run.model.name, run.hardware.profile) == ("qwen3-8b", "atlas:h200")
    assert "h200-llama-3.1-8b-aic is of another model" in page.words()


@pytest.mark.parametrize("key", ["0" * 24, "../../etc/passwd", "%2e%2e"])
def test_a_link_to_no_run_of_this_server_says_so_and_settings_are_run_here(folder, key):
    at = AppTest.from_file(str(APP), default_timeout=60)
    at.query_params["job"] = key
    at.run()
    assert not at.exception
    assert [e.value.replace("\\", "") for e in at.error] == [ask.ELSEWHERE]
    page = linked(job=key, seed="0")
    assert not page.at.error
    assert page.at.session_state.job.done


# -- scenario files
# ------------------------------------------------------------------------------------------------------


def test_an_uploaded_scenario_becomes_the_settings_and_keeps_what_has_no_widget(session):
    scenario = load_scenario(
        "examples/demo.toml",
        ["name=mine", "run.warmup_s=15", "cluster.replicas=3", "workload.duration_s=100", "slo.e2e_s=60", "seed=5"],
    )
    load(session, dumps(scenario).encode())
    assert session.at.number_input(key="replicas").value == 3
    session.press("Run")
    run = load_run(session.at.session_state.job.folder)
    assert (run.scenario.seed, run.scenario.run.warmup_s, run.scenario.slo.e2e_s) == (5, 15.0, 60.0)
    assert run.summary["attainment"] is not None


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"nonsense", "not valid TOML"),
        (b"[workload]\ntrace = '/etc/passwd'\n", "a page reads no files"),
        (b"[workload]\npreset = 'demo'\n[cache]\npolicy = 'evil:Policy'\n", "own classes"),
        (b"[workload]\npreset = 'demo'\n[cluster]\nreplicas = 0\n", "replicas = 0"),
    ],
)
def test_a_bad_scenario_file_is_one_line_and_changes_nothing(session, content, line):
    load(session, content, "../bad.toml")
    [shown] = [e.value.replace("\\", "") for e in session.at.error]
    assert line in shown
    assert session.at.number_input(key="replicas").value == 2
    assert session.at.session_state.job.scenario_toml == dumps(demo.scenario())


def test_the_settings_can_be_taken_along(session):
    session.at.number_input(key="replicas").set_value(3).run()
    assert "kvcast run examples/demo.toml --set cluster.replicas=3 --out my-run" in session.words()


# -- the sidebar
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "tool-agent-api"])
def test_an_untouched_preset_stays_a_preset(session, name):
    session.at.selectbox(key="workload").set_value(name).run()
    session.press("Run")
    assert tomllib.loads(session.at.session_state.job.scenario_toml)["workload"].get("preset") == name


def test_another_workload_starts_without_limits_and_the_demo_with_its_own(session):
    session.at.selectbox(key="workload").set_value("chat").run()
    assert session.at.number_input(key="target").value is None
    assert session.at.number_input(key="slo..ttft").value is None
    session.at.selectbox(key="workload").set_value("demo").run()
    assert session.at.number_input(key="target").value == 95
    assert session.at.number_input(key="slo.chat.ttft").value == 500


def test_own_policies_are_offered_only_when_the_server_names_them(folder, monkeypatch):
    assert "examples.my_policy:LongPromptsFirst" not in inputs.policies()
    monkeypatch.setenv(allowed.POLICIES, "examples.my_policy:LongPromptsFirst")
    assert inputs.policies()[-1] == "examples.my_policy:LongPromptsFirst"


def test_a_run_that_ends_while_the_page_is_drawn_is_drawn_anew(monkeypatch):
    """The page saw it running and is about to draw its progress: without a poll that progress would stand for ever."""
    polls, drawn, anew = [], [], []
    monkeypatch.setattr(
        shell.st, "fragment", lambda run_every=None: lambda part: polls.append((run_every, part)) or part
    )
    monkeypatch.setattr(shell.st, "rerun", lambda: anew.append(True))
    monkeypatch.setattr(shell, "progress", lambda runner, job: drawn.append(job))
    ended = SimpleNamespace(running=False)
    shell.follow(None, ended)
    ((every_s, part),) = polls
    assert (every_s, drawn, anew) == (shell.POLL_S, [ended], [])
    part()
    assert anew == [True]
