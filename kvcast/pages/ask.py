"""The page that opens first: how many GPUs do so many users need, or how many users do so many GPUs serve?

The one idea: the form is a question of `kvcast ask`, its job is that command, and the page shows the card as it comes:
a bound by arithmetic at once, fleets as they are judged, the headline, the rest. Its address is the question.

    show(pages)
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.asking import bound, words
from kvcast.asking.card import first
from kvcast.asking.question import Asked, Question
from kvcast.config import scenario_from_doc
from kvcast.jobs import allowed, example, link
from kvcast.jobs.runner import Job, Runner, without_paths
from kvcast.pages import address, ask_card, ask_form, ask_words, results, share, shell
from kvcast.pages.ask_words import Words
from kvcast.pages.edit import settings
from kvcast.pages.results import plain
from workloads.errors import InputError

FOLDS: Mapping[str, tuple[str, str, str]] = {
    "What your users would feel": (
        *("Plan", "Run it and look"),
        "one run of this fleet: its latencies, over time and by class",
    ),
    "Is the cache worth it": (
        *("Cache", "Look at its cache"),
        "what was hit, of what could be, and what the memory is worth in GPUs",
    ),
    "Prompt order": ("Workload", "Look at its prompts", "the layers of a prompt, and what their order costs"),
    "All settings": ("Plan", "Open them all", "every setting of the scenario underneath, and other pages on it"),
}
"""Title -> the page it opens, the button, and what is there."""
LINK = "ask.link"
ELSEWHERE = "The run that this link names is not on this server, or no longer; below is the example."
CHANGED = "The question has changed since this answer"


def show(pages: Mapping[str, Any], came_from: str) -> None:
    """pages: the navigation's, by name. came_from: the name of the page drawn before this one."""
    st.html(shell.LAYOUT)
    runner = shell.the_runner()
    _place(str(runner.root))
    _open(runner, came_from)
    state = st.session_state
    top = st.container(horizontal=True, horizontal_alignment="distribute")
    asked, pressed = ask_form.draw(runner, top)
    problem, question = "", None
    try:
        question = ask_form.checked(asked)
        found = _bound(question)
    except InputError as error:
        problem, found = str(error), None
    if pressed or asked != state["ask.words"]:
        state["ask.of_link"] = ""  # what was wrong with the address is of no use any more
    state["ask.words"], state["ask.kept"] = asked, ask_form.held()
    if question is not None and pressed:
        start(runner, asked)
    _settle(runner, asked if question is not None else {})
    _share(runner, asked, top, pages)
    if problem:
        st.error(plain(problem), icon=":material/error:")
    elif told := state["ask.of_link"] or state["ask.problem"]:
        st.error(plain(told), icon=":material/error:")
    pending: Job | None = state["ask.pending"]
    shown: Job | None = state["ask.shown"]
    if pending is not None:
        shell.until_done(pending, lambda: _stream(runner, pending))
    else:
        if found is not None and (shown is None or shown.command != _command(asked)):
            _first(found)
        if shown is not None:
            _answer(runner, shown, asked, pages)


@st.cache_resource
def _place(root: str) -> None:
    """The example's answer, once, with the server's first session."""
    example.place(shell.the_runner())


# -- questions and jobs ------------------------------------------------------------------------------------------------


def _command(asked: Words) -> tuple[str, ...]:
    return ("ask", *ask_words.argv(asked))


def _open(runner: Runner, came_from: str) -> None:
    """A new session, and one whose address was changed by the browser, asks what its address says."""
    state, params = st.session_state, st.query_params.to_dict()
    if "ask.words" not in state:
        state.update({"ask.words": {}, "ask.pending": None, "ask.shown": None, "ask.problem": "", "ask.of_link": ""})
    elif not (
        address.gone_back(state.get("ask.kept", {}), LINK)
        if came_from == "Ask"
        else params not in ({}, state.get(LINK))
    ):
        if came_from != "Ask" or "ask.use" not in state:  # Streamlit forgets the fields of a page that is not drawn
            ask_form.adopt(state["ask.words"])
        return
    named = params.pop(link.JOB, "")
    job = runner.find_asked(named)
    state["ask.problem"], state["ask.of_link"] = "", ELSEWHERE if named and job is None and not params else ""
    try:
        asked = {**params} if params else dict(example.QUESTION)
        ask_words.question(asked, ask_form.inputs.policies(), allowed.models())
        ask_form.adopt(asked)
    except (InputError, ValueError) as error:
        state["ask.of_link"], asked = str(error), dict(example.QUESTION)
        ask_form.adopt(asked)
    state["ask.words"], state["ask.pending"] = asked, None
    state["ask.shown"] = job if job is not None and job.done else None
    if job is not None and job.running:
        state["ask.pending"] = job


def start(runner: Runner, asked: Words) -> None:
    """Ask, in this session; the last answer stays known until this one is there."""
    state = st.session_state
    state["ask.problem"] = ""
    try:
        state["ask.pending"] = runner.ask(ask_words.argv(asked))
    except InputError as error:
        state["ask.problem"] = str(error)


def _settle(runner: Runner, asked: Words) -> None:
    """Put a finished answer on show, keep the one line of a failed one, and find the one that is there already."""
    state = st.session_state
    pending: Job | None = state["ask.pending"]
    if pending is not None and not pending.running:
        state["ask.pending"] = None
        if pending.done:
            state["ask.shown"] = pending
        else:
            state["ask.problem"] = pending.failure()
    if state["ask.pending"] is None and asked and (job := runner.asked(ask_words.argv(asked))) is not None:
        if job.running:
            state["ask.pending"] = job
        elif job.done:
            state["ask.shown"], state["ask.problem"] = job, ""


def _share(runner: Runner, asked: Words, place: Any, pages: Mapping[str, Any]) -> None:
    """The address is the question, and names the answer on show where that is of another one. A scenario that is
    loaded opens with all its settings."""
    state = st.session_state
    params = ask_words.query(asked, example.QUESTION)
    for job in (state["ask.pending"], state["ask.shown"]):
        if job is not None and job.command != _command(asked):
            params[link.JOB] = job.key
            break
    address.written(params, LINK)
    with place.popover(share.LABEL):
        share.runs()
        share.link_to("to this question", params)
        share.command("the same card", without_paths(ask_words.command(asked), runner.root))
        share.load("ask.scenario", lambda problem: state.update({"ask.of_link": problem, "ask.loaded": not problem}))
    if state.pop("ask.loaded", False):
        shell.fresh()
        st.switch_page(pages["Plan"])


@st.cache_data(max_entries=64, show_spinner=False)
def _bound(question: Question) -> dict[str, Any]:
    """The first bound of the question, by arithmetic. Raises InputError for what cannot run."""
    asking = Asked(question)
    found = bound.bounds(asking)
    return first(asking, found, bound.chosen(asking, found))


# -- what is shown -----------------------------------------------------------------------------------------------------


def _stream(runner: Runner, job: Job) -> None:
    """Progress, Cancel, and what is known so far."""
    told = job.told
    shell.progress(runner, job)
    cards = [one["card"] for one in told if "card" in one]
    if cards:
        ask_card.show(_without_paths(runner, cards[-1]), _apply_in(runner), settled=False)
        return
    for one in told:
        if one["stage"] == "bound":
            _first(one["first"])
    ask_card.candidates(told)


def _first(found: Mapping[str, Any]) -> None:
    """The first bound: what arithmetic says before anything is simulated."""
    about, *rest = words.first(dict(found)).split("; ", 1)
    st.markdown(f"**{plain(about[:1].upper() + about[1:])}**" + "".join(f"  \n:small[{plain(one)}]" for one in rest))


def _answer(runner: Runner, job: Job, asked: Words, pages: Mapping[str, Any]) -> None:
    card = _without_paths(runner, job.document())
    if job.command != _command(asked):
        told, back = st.columns([5, 1], vertical_alignment="center")
        told.info(f"{CHANGED}, which is of: {plain(_said(runner, job))}", icon=":material/edit:")
        if back.button("Back to it", width="stretch", on_click=_return_to, args=(job,), key="ask.back"):
            st.rerun()
    ask_card.show(card, _apply_in(runner), settled=True)
    if example.PREPARED in card:
        _prepared(runner, job, card[example.PREPARED])
    _folds(runner, job, card, pages)


def _prepared(runner: Runner, job: Job, about: Mapping[str, Any]) -> None:
    """Who made an answer that was not made here."""
    told, button = st.columns([5, 1], vertical_alignment="center")
    told.caption(
        plain(f"Prepared with kvcast {about['version']} on {about['on']}; every other question is computed here.")
    )
    if button.button("Compute it here", width="stretch", key="ask.here", help="minutes of simulation"):
        st.session_state["ask.pending"], st.session_state["ask.shown"] = example.again(runner, job), None
        st.rerun()


def _said(runner: Runner, job: Job) -> str:
    return without_paths(ask_words.command(ask_words.words_of(job.command[1:])), runner.root)


def _without_paths(runner: Runner, card: Mapping[str, Any]) -> dict[str, Any]:
    """The card with an uploaded config.json by its file's name."""
    shown: dict[str, Any] = json.loads(without_paths(json.dumps(card), runner.root))
    return shown


def _return_to(job: Job) -> None:
    _adopt(ask_words.words_of(job.command[1:]))


def _adopt(asked: Words) -> None:
    st.session_state["ask.words"] = dict(asked)
    ask_form.adopt(asked)


def _apply_in(runner: Runner) -> ask_card.Apply:
    def apply(flags: Any, changed: Any) -> None:
        """Ask again with a way out, or with what helps."""
        state = st.session_state
        shown: Job | None = state["ask.pending"] or state["ask.shown"]
        assert shown is not None
        asked = ask_words.applied(ask_words.words_of(shown.command[1:]), flags, changed)
        try:
            ask_form.adopt(asked)
        except InputError as error:
            state["ask.problem"] = str(error)
            return
        state["ask.words"] = asked
        start(runner, asked)

    return apply


def _folds(runner: Runner, job: Job, card: Mapping[str, Any], pages: Mapping[str, Any]) -> None:
    for title, (page, label, told) in FOLDS.items():
        with st.expander(title):
            line, button = st.columns([5, 1], vertical_alignment="center")
            line.markdown(plain(f"{told[:1].upper()}{told[1:]}.") + _more(title, card))
            if button.button(label, key=f"ask.fold.{title}", width="stretch"):
                _look(job.document())
                st.switch_page(pages[page])
    with st.expander("Where the numbers come from"):
        _sources(runner, job, card)


def _more(title: str, card: Mapping[str, Any]) -> str:
    """What the card itself says about it."""
    if title == "What your users would feel":
        rows = [row for row in card["plan"]["candidates"] if row["replicas"] == card["answer"]["replicas"]]
        rows = [row for row in rows if row["gpus"] == card["answer"]["gpus"] and row["ttft_ms_p99"] is not None]
        if rows:
            ttft, tpot = (text.milliseconds(rows[0][f"{name}_ms_p99"]) for name in ("ttft", "tpot"))
            return plain(
                f" On this fleet one request in a hundred waits longer than {ttft} for its first token, or than"
            ) + plain(f" {tpot} for each one after it.")
    if title == "Is the cache worth it" and not card["sharing_known"]:
        return plain(" The source of this use says nothing about shared text: only the system prompt can hit here.")
    return ""


def _look(card: Mapping[str, Any]) -> None:
    """The answer's fleet in the sidebar of the other pages, which run it."""
    shell.fresh()
    settings.adopt(scenario_from_doc(tomllib.loads(card["plan"]["scenario"]), "the answer"))


def _sources(runner: Runner, job: Job, card: Mapping[str, Any]) -> None:
    document = dict(card)
    asked = card["question"]
    lines = [
        *words.taken(document),
        f"{asked['title']}: {asked['source']}",
        f"step times: {card['basis']['profile']} ({words.basis(document)})",
        words.again(document),
    ]
    st.markdown("\n".join(f"- {plain(line)}" for line in lines))
    st.code(_said(runner, job), language="bash", wrap_lines=True)
    left, right = st.columns(2)
    left.download_button(
        "card.json", text.to_json(card), "card.json", "application/json", on_click="ignore", width="stretch"
    )
    right.download_button(
        "scenario.toml",
        results.portable(card["scenario"]),
        "scenario.toml",
        "application/toml",
        on_click="ignore",
        width="stretch",
        key="ask.toml",
    )
