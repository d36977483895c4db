"""The first page: from the question's form to its card, as `kvcast ask` answers it, and every way on from there."""

from __future__ import annotations

import json
import math
import os
import re

import pytest
from streamlit.testing.v1 import AppTest

from kvcast import ask, figures, text
from kvcast.asking import words as card_words
from kvcast.asking.question import question_of
from kvcast.jobs import example
from kvcast.jobs.runner import Job, asked_in, key_of
from kvcast.pages import ask as page
from kvcast.pages import ask_folds, ask_form, ask_words, shell
from kvcast.pages.edit import layers
from tests.ui.conftest import APP
from workloads.errors import InputError

SMALL = {
    "use": "chat",
    "users": "60",
    "model": "llama-3.1-8b",
    "weights": "bf16",
    "gpu": "l4",
    "tp": "1",
    "price": "0.8",
    "ttft": "3s",
    "tpot": "100ms",
    "for": "95%",
    "set": "run.warmup_s=120\nrun.duration_s=420\nworkload.duration_s=420",
    "seeds": "2",
    "no-recover": "yes",
}


class Asking:
    """A reader of the first page."""

    def __init__(self, **words: str) -> None:
        self.at = AppTest.from_file(str(APP), default_timeout=60)
        self.at.query_params.update(words)
        self.run()

    def run(self):
        self.at.run()
        assert not self.at.exception
        return self

    def press(self, label):
        next(b for b in self.at.button if b.label == label).click()
        return self.run()

    def answered(self):
        """Once the job that it waits for has ended; a browser polls, a test waits."""
        self.at.session_state["ask.pending"].wait()
        return self.run()

    def opened(self, *titles):
        """The page with these folds open."""
        for title in titles:
            self.at.session_state[f"ask.open.{title}"] = True
        return self.run()

    def link(self):
        return {key: value if isinstance(value, str) else value[0] for key, value in self.at.query_params.items()}

    def field(self, name):
        return self.at.session_state[f"ask.{name}"]

    def set(self, kind, name, value):
        getattr(self.at, kind)(key=f"ask.{name}").set_value(value)
        return self.run()

    def words(self):
        at = self.at
        kinds = (at.markdown, at.caption, at.header, at.error, at.warning, at.info, at.code)
        return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")

    def numbers(self):
        return {m.label: m.value for m in self.at.metric}


@pytest.fixture(scope="module")
def small(folder):
    """The small question, asked by a press on the page and answered."""
    asking = Asking(**SMALL)
    assert "First bound" in asking.words(), "arithmetic says something before anything is simulated"
    return asking.press("How many GPUs?").answered()


def test_the_page_opens_on_the_example_with_nothing_in_its_address(folder, monkeypatch):
    monkeypatch.setattr(example, "kept", lambda: None)
    asking = Asking()
    assert asking.link() == {}
    assert (asking.field("use"), asking.field("amount"), asking.field("system")) == ("coding-agent", 300.0, 16000)
    assert (asking.field("ttft"), asking.field("tpot"), asking.field("price")) == (1.0, 50.0, 3.5)
    assert "First bound" in asking.words()
    assert not asking.at.sidebar.button, "the settings are folded away"


def test_the_card_is_the_command_lines(small):
    card = small.at.session_state["ask.shown"].document()
    again = ask(question_of(ask_words.parsed(SMALL)), seeds=2, recover=False)
    for part in (card, again):
        part["plan"].pop("simulations")
        for row in part["plan"]["candidates"]:
            row.pop("run")
        part["plan"]["answer"].pop("run")
        for row in part["plan"]["rates"]:
            row.pop("run")
    assert card == text.plain(again)
    found = card["answer"]
    assert small.numbers() == {
        "Fleet": f"{found['gpus']} × L4",
        "A month": f"${found['usd_per_month']:,.0f}",
        "A user and month": text.usd(found["usd_per_user"]),
        "Within limits": text.percent(found["attainment"]["mean"]),
    }
    words = small.words()
    assert f"Next GPU needed above {card['gives_way']['next_gpu_users']} users" in words
    assert "One replica down" in words
    assert "no step time was measured on this GPU" in words, "a caution stands beside the answer"


def test_the_address_is_the_question_and_finds_its_answer(small):
    assert small.link() == SMALL
    again = Asking(**small.link())
    assert again.numbers() == small.numbers()


def test_after_a_change_the_page_says_whose_answer_it_shows(small):
    asking = Asking(**SMALL).set("number_input", "amount", 61.0)
    words = asking.words()
    assert "The question has changed since this answer" in words
    assert "--users=60" in words, "the words that it is the answer to"
    assert asking.link()["job"] == small.at.session_state["ask.shown"].key
    again = Asking(**asking.link())
    assert again.numbers() == small.numbers()
    assert again.field("amount") == 61.0
    back = again.press("Back to it")
    assert back.link() == SMALL
    assert "has changed" not in back.words()


def test_a_question_is_found_by_a_reload_cancelled_and_the_old_answer_stays(small):
    asking = Asking(**SMALL)
    long = asking.set("text_area", "set", "run.warmup_s=100000\nrun.duration_s=400000\nworkload.duration_s=400000")
    long.press("How many GPUs?")
    job = long.at.session_state["ask.pending"]
    again = Asking(**long.link())
    assert again.at.session_state["ask.pending"] is job, "a reload follows the running question"
    assert "Cancel" in [b.label for b in again.at.button]
    long.press("Cancel")
    assert not job.running
    assert "cancelled" in long.words()
    assert long.numbers() == small.numbers()
    assert "The question has changed since this answer" in long.words()


def ended(small, stages, **words):
    """A question that was ended after these stages of the small one's."""
    asked = {**SMALL, **words}
    given = ask_words.argv(asked)
    job = Job(shared().root / key_of(asked_in(given), ("ask", *given)), ("ask", *given))
    told = [one for one in small.at.session_state["ask.shown"].told if one["stage"] in stages]
    told.append({"stage": "ended", "why": "stopped after 900 s: started again, it goes on"})
    job.file(".toml").write_text(asked_in(given))
    job.file(".told").write_text("".join(f"{json.dumps(one)}\n" for one in told))
    return asked, job


def test_a_question_that_was_ended_keeps_its_headline(small):
    words, job = ended(small, ("bound", "candidate", "headline"), users="59")
    asking = Asking(**words)
    assert asking.numbers() == small.numbers()
    said = asking.words()
    assert "Stopped after 900 s. Below is what it had found by then; **How many GPUs?** goes on" in said
    assert "what gives way first and what would help was not looked at" in said
    assert "What helps" not in said
    assert "First bound" not in said
    changed = asking.set("number_input", "amount", 58.0)
    assert "The question has changed since this answer" in changed.words()
    assert changed.link()["job"] == job.key
    assert Asking(**changed.link()).numbers() == small.numbers(), "a reload finds it"
    job.delete()


def test_a_question_that_was_ended_before_its_headline_keeps_its_fleets(small):
    words, job = ended(small, ("bound", "candidate"), users="57")
    asking = Asking(**words)
    assert "Stopped after 900 s. Below is what it had found by then" in asking.words()
    assert re.search(r"60 users on \d GPUs?: (misses|meets)", asking.words())
    assert not asking.numbers()
    assert not Asking(**{**SMALL, "users": "56"}).at.warning
    job.delete()


def test_until_what_binds_is_known_nothing_is_said_of_it(small):
    (reach,) = (one["card"] for one in small.at.session_state["ask.shown"].told if one["stage"] == "reach")
    (line,) = card_words.gives_way(reach)
    assert line.startswith(f"Gives way at {reach['gives_way']['users']} users. Next GPU needed above")
    (line,) = card_words.gives_way(small.at.session_state["ask.shown"].document())
    assert line.startswith("Gives way first: ")


def test_the_folds_show_what_the_answer_computed(small):
    asking = Asking(**SMALL)
    assert "What users wait for" not in asking.words()
    asking.opened("What your users would feel", "Is the cache worth it", "Prompt order")
    card = small.at.session_state["ask.shown"].document()
    said = asking.words()
    (row,) = [
        row for row in card["plan"]["candidates"] if row["replicas"] == card["answer"]["replicas"] and row["runs"] > 1
    ]
    assert f"waits longer than {text.milliseconds(row['ttft_ms_p99'])} for its first token" in said
    for name in ("What users wait for", "What a prompt is made of"):
        assert f"**{name}**" in said
    tables = [table.value for table in asking.at.dataframe]
    (table,) = [one for one in tables if "prefix cache" in one]
    assert list(table["prefix cache"]) == ["on", "off"]
    assert table["within limits (95 %)"][0].startswith(text.percent(card["answer"]["attainment"]["mean"]))
    assert table["within limits (95 %)"][1].startswith(text.percent(card["without_cache"]["attainment"]["mean"]))
    figure = figures.latency_by_users(card)
    load = {trace.name: trace.x[0] for trace in figure.data if trace.name.startswith("your load")}
    assert load == {"your load 60": pytest.approx(60.0)}
    ttft = next(trace for trace in figure.data if trace.name == "TTFT p99")
    rows = sorted(card["plan"]["rates"], key=lambda one: one["load"])
    assert ttft.x == pytest.approx(sorted(one["users"] for one in card["loads"]))
    assert list(ttft.y) == pytest.approx(
        [row["ttft_ms_p99"] if row["stable"] is not False else math.nan for row in rows], nan_ok=True
    )
    parts = layers.parts(ask_folds._class_of(card["scenario"]))
    assert f"Of the average prompt's {sum(p.tokens for p in parts):,.0f} tokens" in said


def test_a_way_out_is_one_press(folder):
    asking = Asking(**{**SMALL, "ttft": "0.3s", "max-replicas": "2"})
    asking.press("How many GPUs?").answered()
    card = asking.at.session_state["ask.shown"].document()
    assert not card["answer"]["feasible"]
    assert card["way_out"]
    words = asking.words()
    assert "NO FLEET MEETS THIS" in words
    first = card["way_out"][0]
    asking.press("Ask for this")
    job = asking.at.session_state["ask.pending"]
    assert set(first["flags"][1::2]) <= {word.partition("=")[2] for word in job.command}
    shared().cancel(job)
    job.wait()


def shared():
    return shell.runner_of(os.environ["KVCAST_RUNS"])


def test_no_choice_moves_another(folder):
    asking = Asking(**{**SMALL, "price": "b200=6,l4=0.8"})

    def fields():
        names = ("use", "model", "weights", "kv", "gpu", "tp", "price", "ttft", "tpot", "amount", "system")
        return {name: asking.field(name) for name in names}

    before = fields()
    for name, value in (("model", "qwen3-32b"), ("weights", "fp8"), ("kv", "fp8"), ("tp", "2")):
        asking.set("selectbox", name, value)
        before[name] = value
        assert fields() == before, name
    asking.set("selectbox", "gpu", "b200")
    assert fields() == {**before, "gpu": "b200", "price": 6.0}, "a price stays with its GPU"
    assert asking.link()["price"] == "b200=6,l4=0.8"
    asking.set("selectbox", "use", "rag")
    assert (asking.field("ttft"), asking.field("model")) == (3.0, "qwen3-32b")
    assert "Sizes and limits are now the usual ones of" in asking.words()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"users": "many"}, "--users: invalid float value: 'many'"),
        ({"use": "caht", "users": "3"}, "--use caht: expected one of .*did you mean chat"),
        ({"users": "3", "model": "/etc/passwd"}, r"\[model\] name = '/etc/passwd', expected"),
        ({"users": "3", "model": "/tmp/config.json"}, r"\[model\] config = '/tmp/config.json', expected"),
        ({"users": "3", "router": "os:system"}, r"\[cluster\] router = 'os:system', expected"),
        ({"users": "3", "set": "cache.policy=antigravity:X"}, r"\[cache\] policy = 'antigravity:X', expected"),
        ({"users": "3", "set": "workload.trace=/etc/passwd"}, r"\[workload\] trace = .*expected"),
        ({"users": "3", "gpu": "atlas:/tmp"}, r"\[hardware\] gpu = 'atlas:/tmp', expected"),
        ({"users": "3", "out": "/tmp/x"}, "'out' is no part of a question"),
    ],
)
def test_a_link_that_cannot_be_asked_is_one_line(words, line):
    with pytest.raises(InputError, match=line):
        ask_words.question(words, ("lru",))


def test_a_bad_link_opens_the_example_and_says_why_beside_its_answer(small, monkeypatch):
    card = small.at.session_state["ask.shown"].document()
    about = {"version": "0", "on": "2026-01-01", "words": ask_words.argv(example.QUESTION)}
    monkeypatch.setattr(example, "kept", lambda: {**card, example.PREPARED: about})
    placed = example.place(shared())
    asking = Asking(users="3", router="os:system")
    assert asking.field("amount") == 300.0
    assert "Prepared with kvcast 0" in asking.words()
    (error,) = asking.at.error
    assert "router = 'os:system', expected one of" in error.value.replace("\\", "")
    assert not asking.set("number_input", "amount", 301.0).at.error
    placed.delete()


def test_words_are_flags_and_flags_are_words():
    words = {**SMALL, "set": "run.seed=3\ncache.policy=lfu"}
    assert ask_words.words_of(ask_words.argv(words)) == words
    assert "--no-recover" in ask_words.argv(words)
    assert "--set=cache.policy=lfu" in ask_words.argv(words)


def test_an_advice_takes_its_field_and_a_limit_comes_alone():
    found = ask_words.applied(SMALL, ["--ttft", "4s"], ["model.kv_dtype=fp8", "cache.policy=lfu", "run.warmup_s=9"])
    assert (found["ttft"], found["kv"]) == ("4s", "fp8")
    assert "tpot" not in found, "the way out's flags are the whole of the limits"
    assert found["set"].splitlines() == [
        "run.duration_s=420",
        "workload.duration_s=420",
        "cache.policy=lfu",
        "run.warmup_s=9",
    ]
    assert ask_words.applied(SMALL, ["--gpu", "b200", "--tp", "8"])["tpot"] == "100ms"


def test_a_scenario_is_loaded_from_the_first_page_too(folder):
    asking = Asking(**SMALL)
    assert "kvcast ask --use=chat --users=60" in asking.words()
    for content, says in ((b"nonsense", "not valid TOML"), (b"[workload]\npreset = 'rag'\n", None)):
        asking.at.file_uploader(key="ask.scenario").set_value(("s.toml", content, "application/toml"))
        asking.run()
        errors = [e.value for e in asking.at.error]
        assert (says is None) == (not errors), errors
        assert says is None or says in errors[0]
    assert asking.at.session_state["workload"] == "rag"
    assert asking.at.session_state["page"] == "Plan", "all its settings are there"


def test_an_uploaded_model_goes_by_its_files_name(folder):
    path = shared().keep_upload("config.json", b"{}")
    card = {"question": {"model": str(path)}, "command": f"kvcast plan --set model.config={path}"}
    expected = {"question": {"model": "config.json"}, "command": "kvcast plan --set model.config=config.json"}
    assert page._without_paths(shared(), card) == expected


def test_every_use_has_its_usual_sizes():
    for use in ask_form.USES:
        assert all(size >= 0 for size in ask_form.usual_sizes(use).values()), use
    assert ask_form.usual_sizes("chat") == {"system": 1200, "input": 100, "output": 129}
