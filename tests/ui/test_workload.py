"""The Workload page: every edit moves the estimate, and a bad one is a line that leaves the mix as it was."""

import io
import json
import os
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from kvcast import api, cli
from kvcast.config import scenario_from_doc
from kvcast.jobs import allowed, link, runner
from kvcast.pages import mix, results, shell, workload
from kvcast.pages.edit import inputs, layers, preview, settings
from tests.ui.conftest import Session
from workloads.clock import earliest_s
from workloads.config import Dist, Layer, MixClass
from workloads.errors import InputError
from workloads.toml import load_preset

TRACE = "".join(
    json.dumps({"timestamp": 100 * i, "input_length": 900 + i, "output_length": 20, "hash_ids": [i % 3, 10 + i]}) + "\n"
    for i in range(60)
)


class Editor(Session):
    """A reader who edits the mix."""

    def __init__(self):
        super().__init__("workload")
        self.estimated()

    def estimated(self):
        """The page once its estimate is there."""
        self.at.session_state["workload.estimating"].wait()
        self.at.run()
        assert not self.at.exception
        return self.numbers()

    def button(self, key):
        return next(b for b in self.at.button if b.key and b.key.startswith("workload.layer.") and b.key.endswith(key))

    def number(self, key):
        return next(n for n in self.at.number_input if n.key and n.key.endswith(key))

    def cell(self, key):
        return next(t for t in self.at.text_input if t.key and t.key.endswith(key))

    def mix(self):
        return self.at.session_state["workload.mix"]

    def layers(self, i=0):
        return [layer.name for layer in self.mix().class_[i].layers]


@pytest.fixture
def page(folder):
    return Editor()


def test_it_opens_with_the_demo_and_its_estimate(page):
    found = page.at.session_state["workload.estimating"].document()
    assert page.numbers()["Goodput"].startswith(f"{found['goodput_per_s']:.3g}/s")
    assert page.numbers()["TTFT, p99"].startswith(results.text.milliseconds(found["p99_ttft_ms"]))
    assert all(m.help for m in page.at.metric)
    assert f"2,000 of {found['requests']:,} requests" in page.words()
    assert "An unlimited cache reuses" in page.words()
    assert not page.at.info, "nothing has changed"


def test_an_estimate_on_extrapolated_step_times_is_marked(page):
    page.at.session_state["workload.estimate"] = {**page.at.session_state["workload.estimate"], "extrapolated": 0.0}
    page.at.run()
    plain = page.numbers()
    assert not any(results.MARK in value for value in plain.values())
    page.at.session_state["workload.estimate"] = {**page.at.session_state["workload.estimate"], "extrapolated": 0.5}
    page.at.run()
    hit_rate = {"Hit rate": plain["Hit rate"]}
    assert page.numbers() == {label: f"{value} {results.MARK}" for label, value in plain.items()} | hit_rate


def test_a_bad_order_costs_and_the_best_one_is_one_press(page):
    before = page.estimated()
    page.button("chat.1.up").click().run()
    assert page.layers() == ["message", "system"]
    assert "This order costs up to" in page.words()
    after = page.estimated()
    assert float(after["Hit rate"].split()[0]) < float(before["Hit rate"].split()[0]) - 20
    assert any(m.delta == f"last run: {before['Hit rate']}" for m in page.at.metric)
    assert "settings have changed" in page.words()
    page.at.button(key="workload.best").click().run()
    assert page.layers() == ["system", "message"]
    assert page.estimated() == before
    assert "settings have changed" not in page.words(), "it is the preset again"


def test_layers_are_resized_marked_dynamic_added_and_removed(page):
    reused = page.words()
    page.cell("chat.0.mean").set_value("16k").run()
    assert page.mix().class_[0].layers[0].tokens.value == 16000
    assert page.words() != reused
    scope = next(s for s in page.at.selectbox if s.key and s.key.endswith("chat.0.scope"))
    scope.set_value("dynamic").run()
    assert "reuses **0** of" in page.words()
    next(b for b in page.at.button if b.label == "Add").click().run()
    assert page.layers() == ["global", "system", "message"]
    page.button("chat.1.remove").click().run()
    assert page.layers() == ["global", "message"]
    assert not page.at.exception


def test_a_timestamp_before_the_history_says_what_it_costs_and_how_to_get_behind_it(page):
    page.at.segmented_control(key="workload.class").set_value("coding-agent").run()
    assert not any(b.key == "workload.after_history" for b in page.at.button)
    # both in one pass, as a press that ends an entry: the callback reads what the fields hold
    page.at.selectbox(key="workload.add.scope").set_value("dynamic")
    page.at.number_input(key="workload.add.tokens").set_value(20)
    next(b for b in page.at.button if b.label == "Add").click().run()
    assert page.layers(1)[-2:] == ["extra", "task"]
    assert page.mix().class_[1].layers[-2].tokens == Dist(value=20.0)
    assert "extra, new in every request, stands before the history: **8,0" in page.words()
    page.at.button(key="workload.after_history").click().run()
    assert "extra" not in page.layers(1)
    assert "stands before the history" not in page.words()


def test_prompts_longer_than_the_models_context_are_said_to_be(page):
    assert not any("context" in w.value for w in page.at.warning)
    agent = scenario_from_doc(
        {
            "workload": {"preset": "coding-agent"},
            "model": {"name": "llama-3.1-8b"},
            "hardware": {"profile": "h200-llama-3.1-8b-aic"},
        }
    )
    [line] = preview.too_long(agent_mix := load_preset("coding-agent"), agent)
    assert line.startswith("coding-agent: 45.9 %")
    assert "llama-3.1-8b's context of 131,072 tokens (the average prompt has 172,073)" in line
    short = replace(agent_mix, class_=tuple(replace(c, turns=Dist(value=2.0)) for c in agent_mix.class_))
    assert preview.too_long(short, agent) == preview.too_long(agent_mix, None) == []
    page.cell("chat.0.mean").set_value("140,000").run()
    assert any("chat: 100.0 % of the requests" in w.value.replace("\\", "") for w in page.at.warning)


def test_what_the_bar_and_the_sentence_count_is_said(page):
    assert "The bar adds up each layer's mean" in page.words()
    assert (
        layers.first_turn_only(
            MixClass(name="a", layers=(Layer(name="message"),), turns=Dist(value=2), turn_input=Dist(value=9))
        )
        == "message"
    )
    assert (
        layers.first_turn_only(
            MixClass(name="a", layers=(Layer(name="message"),), turns=Dist(value=1), turn_input=Dist(value=9))
        )
        == ""
    )
    assert layers.first_turn_only(MixClass(name="a", layers=(Layer(name="message"),), turns=Dist(value=2))) == ""


def test_a_length_that_cannot_be_read_is_one_line_and_changes_nothing(page):
    before = page.mix()
    cell = next(t for t in page.at.text_input if t.key and t.key.endswith("chat.1.tokens"))
    cell.set_value("a lot").run()
    [line] = [e.value.replace("\\", "") for e in page.at.error]
    assert line.startswith("message: tokens = 'a lot', expected a distribution")
    assert page.mix() == before
    page.cell("chat.1.mean").set_value("16 k tokens").run()
    [line] = [e.value.replace("\\", "") for e in page.at.error]
    assert line == "message: mean tokens = '16 k tokens', expected a number such as 16000 or 16k"
    assert page.mix() == before
    next(t for t in page.at.text_input if t.key and t.key.endswith("chat.1.tokens")).set_value("800").run()
    assert not page.at.error


def test_a_cell_of_the_table_changes_the_class_and_a_bad_one_nothing(page, monkeypatch):
    state = {key: page.at.session_state[key] for key in ("workload.mix", "workload.version", "workload.problem")}
    monkeypatch.setattr(workload.st, "session_state", state)  # AppTest has no data editor
    state["workload.layers"] = 0
    table = f"workload.table.{state['workload.version']}"
    state[table] = {"edited_rows": {0: {"rate": 2.5, "output": "99"}}, "added_rows": [], "deleted_rows": [1]}
    workload._table_edited(table)
    assert [(c.name, c.rate, c.output.value) for c in state["workload.mix"].class_] == [("chat", 2.5, 99.0)]
    before = state["workload.mix"]
    workload._table_edited(table)
    assert state["workload.mix"] is before, "a table of an earlier mix says nothing of this one"
    table = f"workload.table.{state['workload.version']}"
    state[table] = {"edited_rows": {0: {"turns": "0"}}, "added_rows": [], "deleted_rows": []}
    workload._table_edited(table)
    assert state["workload.mix"] is before
    assert "turns" in state["workload.problem"]


def test_users_set_the_rate_and_load_moves_the_estimate(page):
    page.at.segmented_control(key="workload.class").set_value("coding-agent").run()
    page.number("coding-agent").set_value(40.0).run()
    assert page.mix().class_[1].rate > 3 * 0.07
    before = page.estimated()
    page.at.number_input(key="rate_scale").set_value(50.0).run()
    page.estimated()
    assert "Overloaded" in page.words()
    assert "TTFT, p99" in before
    assert not page.numbers(), "no numbers of a fleet that cannot keep up"


def test_a_mix_without_a_length_is_judged_for_long_enough_and_says_how_long(page):
    assert [n.value for n in page.at.number_input if n.label.startswith("Length")] == [None, None]
    run = api.resolve(settings.demo()).scenario.run
    assert (
        f"5.49 requests/s once the load is there; sessions begin {run.warmup_s / 60:.3g} min before what is judged;"
        " judged for 20 min, about 6,584 requests." in page.words()
    )
    next(n for n in page.at.number_input if n.label == "Length (s)").set_value(600.0).run()
    assert page.mix().duration_s == 600.0
    assert "judged for 10 min, about 3,292 requests." in page.words()
    page.at.number_input(key="rate_scale").set_value(2.0).run()
    assert "11 requests/s once the load is there" in page.words()
    assert not any("Arrivals end" in w.value for w in page.at.warning)


@pytest.mark.parametrize(
    "workload",
    [
        {"preset": "demo", "rate_scale": 1.5},
        {"preset": "demo", "duration_s": 300.0},
        {"preset": "coding-agent", "requests": 4000},
        {"preset": "reasoning", "duration_s": 7200.0},
        {
            "class": [
                {
                    "name": name,
                    "rate": 0.1,
                    "output": {"value": 9},
                    "layers": [{"name": "q", "tokens": {"value": 99}}],
                    **arrival,
                }
                for name, arrival in (
                    ("steady", {}),
                    ("day", {"arrival": {"kind": "diurnal", "period_s": 600.0, "curve": [1.0, 3.0]}}),
                )
            ]
        },
    ],
)
def test_the_preview_draws_what_the_run_sees(workload):
    """Every request and every session at its nominal time, on the run's clock, warm-up included."""
    run = api.prepare(scenario_from_doc({"seed": 3, "workload": workload}))
    cls, at_s, first = run.workload.column("class_id"), earliest_s(run.workload), run.workload.column("turn") == 0
    for sessions in (True, False):
        drawn = preview.arrivals(run.scenario.workload, sessions, run.scenario.seed)
        assert list(drawn) == list(run.workload.class_names)
        for i, times in enumerate(drawn.values()):
            np.testing.assert_allclose(np.sort(times), np.sort(at_s[(cls == i) & (first | (not sessions))]), rtol=1e-12)


def test_a_preview_is_not_cut_where_a_sample_of_lengths_is():
    """Of 41,000 requests of 300 users the first 20,000 were drawn: 302 sessions to 105.5 min."""
    mine = replace(mix.for_users(load_preset("coding-agent"), "coding-agent", 300.0), requests=41_000)
    drawn = preview.arrivals(mine, True)["coding-agent"]
    assert (len(drawn), round(drawn.max() / 60, 1)) == (585, 206.2)


def test_a_mix_that_is_judged_from_the_start_or_at_a_concurrency_says_so():
    def told(**sections):
        return preview.judged(api.resolve(scenario_from_doc({"workload": {"preset": "chat"}} | sections)).scenario)

    assert (
        told(run={"warmup_s": 0.0})
        == "5.5 requests/s once the load is there; judged from the first arrival on; judged for 15.2 min, about 5,005"
        " requests."
    )
    assert told(workload={"preset": "chat", "loop": "concurrency", "concurrency": 8}).startswith(
        "8 sessions at once, about "
    )


def test_arrivals_are_shaped_and_previewed(page):
    kind = next(s for s in page.at.selectbox if s.key and s.key.endswith("chat.kind"))
    kind.set_value("onoff").run()
    page.number("chat.on_s").set_value(5.0).run()
    assert (page.mix().class_[0].arrival.kind, page.mix().class_[0].arrival.on_s) == ("onoff", 5.0)
    next(s for s in page.at.selectbox if s.key and s.key.endswith("chat.kind")).set_value("diurnal").run()
    next(t for t in page.at.text_input if t.key and t.key.endswith("chat.curve")).set_value("1 2 x").run()
    assert "expected numbers separated by spaces" in page.at.error[0].value.replace("\\", "")
    assert not page.at.exception


def test_a_field_of_an_earlier_mix_that_tells_its_value_late_changes_nothing(page, monkeypatch):
    state = {"workload.mix": page.mix(), "workload.version": 5, "workload.layers": 3, "workload.problem": ""}
    monkeypatch.setattr(workload.st, "session_state", state)
    for key in ("workload.duration_s.4", "workload.layer.2.chat.0"):
        workload.edit(workload._bounded, "duration_s", 9.0, key=key)
        assert state["workload.mix"] is page.mix()
    workload.edit(workload._bounded, "duration_s", 9.0, key="workload.duration_s.5")
    assert state["workload.mix"].duration_s == 9.0


def test_a_preset_joins_the_mix(page):
    page.at.selectbox(key="workload.add").set_value("rag").run()
    next(b for b in page.at.button if b.label == "Add its classes").click().run()
    assert [c.name for c in page.mix().class_] == ["chat", "coding-agent", "rag"]
    page.estimated()
    page.press("Run")
    assert not page.at.error
    assert set(page.at.session_state.job.document()["classes"]) == {"chat", "coding-agent", "rag"}


def test_the_mix_and_the_settings_live_through_a_change_of_pages(page):
    page.button("chat.1.up").click().run()
    page.at.number_input(key="replicas").set_value(3).run()
    page.go("plan")
    assert page.at.number_input(key="replicas").value == 3
    page.go("workload")
    assert page.layers() == ["message", "system"]


# -- traces
# --------------------------------------------------------------------------------------------------------------


def upload(page, name, content):
    page.at.selectbox(key="workload").set_value(settings.TRACE).run()
    page.at.file_uploader(key="trace").set_value((name, content, "application/octet-stream")).run()
    if page.at.session_state["workload.trace"]:
        inputs.reading(shell.runner_of(os.environ["KVCAST_RUNS"]), page.at.session_state["workload.trace"]).wait()
    page.at.run()
    assert not page.at.exception
    return page


def test_a_bad_trace_is_one_clear_line(page, folder):
    page.at.selectbox(key="workload").set_value(settings.TRACE).run()
    assert "upload a trace in the sidebar" in page.words()
    upload(page, "../bad trace.jsonl", TRACE.replace('"input_length": 905', '"input_length": -5').encode())
    [line] = [e.value.replace("\\", "") for e in page.at.error]
    assert line.endswith("bad_trace.jsonl, row 6: input_length = -5, expected a whole number of at least 1")
    assert str(folder) not in page.words()
    page.press("Run")
    assert len(page.at.error) == 1, "nothing was run"
    assert page.at.number_input(key="replicas").value == 2, "the other inputs stay"


def test_a_good_trace_is_reported_simulated_and_reproducible(page, folder, tmp_path, capsys):
    upload(page, "good.jsonl", TRACE.encode())
    assert "rows read 60 = requests 60 + skipped 0" in page.words()
    page.press("Run")
    assert not page.at.error
    assert page.at.session_state.job.document()["attainment"] is None, "a trace starts without limits"
    page.go("plan")
    assert str(folder) not in page.words()
    # the scenario that the page hands out, beside the trace, gives the same bytes
    (tmp_path / "scenario.toml").write_text(results.portable(page.at.session_state.job.scenario_toml))
    (tmp_path / "good.jsonl").write_text(TRACE)
    assert cli.main(["run", str(tmp_path / "scenario.toml"), "--out", str(tmp_path / "again")]) == 0
    capsys.readouterr()
    assert (tmp_path / "again" / "summary.json").read_bytes() == (
        page.at.session_state.job.folder / "summary.json"
    ).read_bytes()


def test_a_trace_that_the_server_was_started_with(page, folder, tmp_path, monkeypatch):
    """Chosen by its name, in the link by its name, and read anew when the file is another one."""
    file = tmp_path / "secret" / "day.jsonl"
    file.parent.mkdir()
    file.write_text(TRACE)
    monkeypatch.setenv(allowed.TRACES, json.dumps(allowed.named_traces([f"production={file}"])))
    page.at.selectbox(key="workload").set_value(settings.TRACE).run()
    page.at.selectbox(key="workload.named").set_value("production").run()
    inputs.reading(shell.runner_of(os.environ["KVCAST_RUNS"]), str(file)).wait()
    page.at.run()
    page.press("Run")
    assert page.at.session_state.job.document()["arrived"] == 60
    assert str(file.parent) not in page.words()
    params = {key: "".join(value) for key, value in page.at.query_params.items() if "." in key}
    assert params["workload.trace"] == "production"
    assert link.scenario_of(params, settings.demo(), ["lru"]).workload.trace == str(file)
    key = page.at.session_state.job.key
    file.write_text(TRACE * 2)
    assert runner.key_of(page.at.session_state.job.scenario_toml, ("run",)) != key
    for params in ({"workload.tokenizer": str(file)}, {"workload.trace": str(file)}, {"workload.trace": "[1]"}):
        with pytest.raises(InputError, match="a page reads no files of the server"):
            link.scenario_of({"workload.trace": "production", **params}, settings.demo(), ["lru"])


def archive(*members, kind="w:xz"):
    """A tar archive of (name, content) pairs."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=kind) as tar:
        for member, content in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def test_a_hostile_archive_writes_nowhere_and_ends_in_one_line(page, folder):
    outside = folder.parent / "escaped.json"
    link = tarfile.TarInfo("a.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for content in (
        archive(("../../../escaped.json", b"{}"), (str(outside), b"{}")),
        archive((link, b"")),
        archive(("a.json", b"[" * 100_000)),
        b"\xfd7zXZ\0 not really",
        archive(("bomb.json", bytes(80 << 20))),
    ):
        page = upload(page, "sessions.tar.xz", content)
        [line] = [e.value for e in page.at.error]
        assert "sessions.tar.xz" in line.replace("\\", "")
        assert "stopped unexpectedly" not in line
        assert str(folder) not in line.replace("\\", "")
    assert not outside.exists()
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {"uploads"} | {
        path.name for path in folder.iterdir() if runner.KEY.fullmatch(path.name)
    }
