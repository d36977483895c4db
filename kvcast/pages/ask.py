"""The page that opens first: how many GPUs do so many users need, or how many users do so many GPUs serve?

The one idea: the form is a question of `kvcast ask`, its job is that command, and the page shows the card as it comes:
a bound by arithmetic at once, fleets as they are judged, the headline, the rest. Its address is the question.

    show(pages)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvcast.asking import bound, words
from kvcast.asking.card import first
from kvcast.asking.question import Asked, Question
from kvcast.jobs import allowed, example, link
from kvcast.jobs.runner import Job, Runner, without_paths
from kvcast.pages import address, ask_card, ask_folds, ask_form, ask_words, share, shell
from kvcast.pages.ask_words import Words
from kvcast.pages.results import plain
from kvcast.planner.progress import CANDIDATE
from workloads.errors import InputError

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
        if (ended := state["ask.ended"]) is not None:
            _ended(ended)
            ask_card.candidates(ended.told)
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
        state.update(
            {
                "ask.words": {},
                "ask.pending": None,
                "ask.shown": None,
                "ask.ended": None,
                "ask.problem": "",
                "ask.of_link": "",
            }
        )
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
    state["ask.shown"] = job if job is not None and _found(job) is not None else None
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
    """Put a finished answer on show, or what an ended one had found; keep the one line of a failed one, and find the
    one that is there already."""
    state = st.session_state
    pending: Job | None = state["ask.pending"]
    state["ask.ended"] = None
    if pending is not None and not pending.running:
        state["ask.pending"] = None
        if not _on_show(pending):
            state["ask.problem"] = pending.failure()
    if state["ask.pending"] is None and asked and (job := runner.asked(ask_words.argv(asked))) is not None:
        if job.running:
            state["ask.pending"] = job
        else:
            _on_show(job)


def _on_show(job: Job) -> bool:
    """Show what the job has: its card, as far as it came, or the fleets that were judged; False when it has nothing."""
    state = st.session_state
    if _found(job) is not None:
        state["ask.shown"], state["ask.problem"] = job, ""
        return True
    if job.ended and any(one["stage"] == CANDIDATE for one in job.told):
        state["ask.ended"], state["ask.problem"] = job, ""
        return True
    return False


def _found(job: Job) -> dict[str, Any] | None:
    """The job's card; of one that was ended, as far as it came."""
    return job.document() if job.done else _card_of(job.told) if job.ended else None


def _card_of(told: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last card that was told."""
    return next((one["card"] for one in reversed(told) if "card" in one), None)


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
    if (found := _card_of(told)) is not None:
        ask_card.show(_without_paths(runner, found), _apply_in(runner), ask_card.LOOKED_AT_NOW)
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
    raw = _found(job)
    assert raw is not None
    card = _without_paths(runner, raw)
    if job.ended:
        _ended(job)
    if job.command != _command(asked):
        told, back = st.columns([5, 1], vertical_alignment="center")
        told.info(f"{CHANGED}, which is of: {plain(_said(runner, job))}", icon=":material/edit:")
        if back.button("Back to it", width="stretch", on_click=_return_to, args=(job,), key="ask.back"):
            st.rerun()
    ask_card.show(card, _apply_in(runner), ask_card.NOT_LOOKED_AT if job.ended else "")
    if example.PREPARED in card:
        _prepared(runner, job, card[example.PREPARED])
    ask_folds.draw(card, raw, _said(runner, job), pages)


def _ended(job: Job) -> None:
    """Of a question that came to no end: why, and how it goes on."""
    why = job.ended.partition(":")[0]
    go = ask_form.GO[ask_form.REACH if any(one.startswith("--gpus") for one in job.command) else ask_form.NEED]
    st.warning(
        f"{plain(why[:1].upper() + why[1:])}. Below is what it had found by then; **{go}** goes on from what it has"
        " simulated.",
        icon=":material/warning:",
    )


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
