"""The Life page: one prompt, step by step, through an inference engine, for whoever has not seen one before.

The one idea: three prompts of a textbook share text and are shown at once, on this scenario's GPU, in blocks of 1 and
of 16 tokens; any request of the run on show is told the same way. The steps are those of `kvcast explain --life`.

    show(page)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import api, figures
from kvcast.config import scenario_from_doc
from kvcast.pages import judging, shell
from kvcast.pages.results import plain, plot
from kvcast.pages.shell import Page
from kvcast.present import life_text
from kvcast.present.terms import TERMS
from kvcast.store.runs import Run
from kvcast.studies import one_life
from workloads.errors import InputError

Document = Mapping[str, Any]
TEXTBOOK, OF_RUN = "Three prompts of a textbook", "A request of this run"
BLOCKS = (1, 16)
LABEL = "Show its life"


def show(page: Page) -> None:
    st.markdown(
        "A request waits in a *queue*, takes from the *prefix cache* what earlier requests have computed, computes the"
        " rest of its prompt (*prefill*), and writes its answer token by token (*decode*). All of its text stays in *KV"
        " memory* meanwhile."
    )
    which = st.segmented_control(
        "Requests", [TEXTBOOK, OF_RUN], default=TEXTBOOK, key="life.which", required=True, label_visibility="collapsed"
    )
    if which == OF_RUN:
        _of_the_run(page)
    else:
        _of_the_textbook(page)


# -- the textbook ------------------------------------------------------------------------------------------------------


def _of_the_textbook(page: Page) -> None:
    if not page.shown_toml:
        st.info("The first run is being simulated.", icon=":material/hourglass_empty:")
        return
    st.markdown(
        f"**A** is a system prompt of {one_life.SYSTEM:,} tokens and {one_life.PYTHON:,} of Python; **B** the same"
        f" system prompt and {one_life.JAVASCRIPT:,} of JavaScript; **C** all of A and a question of"
        f" {one_life.QUESTION}. They come one after another to a replica of {_whose(page.shown_toml)}."
    )
    try:
        found = {block: lives_of(page.shown_toml, block) for block in BLOCKS}
    except InputError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    rows = [
        {"blocks of": f"{block} token{'s' * (block > 1)}", **{life["class"]: new_of(life) for life in lives}}
        for block, lives in found.items()
    ]
    st.markdown("**New tokens: what each has to compute** :gray[the rest comes from the prefix cache]")
    st.dataframe(rows, hide_index=True, width="stretch")
    left, right = st.columns(2)
    block = left.segmented_control(
        "Block size (tokens)", BLOCKS, default=BLOCKS[-1], key="life.block", required=True, help=TERMS["block"]
    )
    name = right.segmented_control("Prompt", list(one_life.TEXTBOOK), default="C", key="life.prompt", required=True)
    lives = found[block or BLOCKS[-1]]
    plot(st.container(), figures.life_prompts(lives), TERMS["life_prompts"])
    _one(next(life for life in lives if life["class"] == (name or "C")))


def _whose(scenario_toml: str) -> str:
    """Whose replica tells: of a fleet with pools one of the first."""
    pools = judging.scenario_of(scenario_toml).pool
    return f"the pool {plain(pools[0].name)}" if pools else "this scenario"


def new_of(life: Document) -> str:
    return f"{life['new_tokens']:,}" if life["steps"] else life["status"].replace("_", " ")


@st.cache_data(max_entries=32, show_spinner=False)
def lives_of(scenario_toml: str, block_size: int) -> list[dict[str, Any]]:
    """A, B and C on a replica of the scenario, in blocks of this size. Raises InputError where an engine has no such
    blocks."""
    scenario = scenario_from_doc(tomllib.loads(scenario_toml), "the run on show")
    engine = scenario.engine
    other = engine.block_size not in (None, block_size)
    engine = replace(engine, block_size=block_size, kv_blocks=None if other else engine.kv_blocks)
    return one_life.of_textbook(api.resolve(replace(scenario, engine=engine)).each[0])


# -- the run's own -----------------------------------------------------------------------------------------------------


@shell.of_a_run
def _of_the_run(page: Page, run: Run) -> None:
    count = len(run.tables["requests"]["request"])
    if not count:
        st.info("No request arrived in this run.", icon=":material/info:")
        return
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    slowest = run.aggregates["slowest"]
    first = int(slowest[0]["request"]) if slowest else 0
    number = left.number_input(
        "Request",
        0,
        count - 1,
        first,
        key=f"life.request {run.folder.name}",
        help="the first shown has the slowest TTFT",
    )
    job = shell.result(page, right, "explain", "--life", str(number), label=LABEL)
    if job is not None:
        (life,) = job.document()["lives"]
        plot(st.container(), figures.life_prompts([life]), TERMS["life_prompts"])
        _one(life)


# -- one life ----------------------------------------------------------------------------------------------------------


def _one(life: Document) -> None:
    st.markdown(f"**{plain(life_text.headline(dict(life)))}**")
    steps: Sequence[Document] = life["steps"]
    if not steps:
        st.info(f"It never reached an engine: {life['status'].replace('_', ' ')}.", icon=":material/info:")
        return
    key = f"life.step {life['class']} {life['request']} {life['block_size']}"
    at = min(st.session_state.get(key, 0), len(steps) - 1)
    back, on, place = st.columns([1, 1, 6], vertical_alignment="center")
    back.button("Back", key=f"{key} back", disabled=at == 0, on_click=_go, args=(key, at - 1), width="stretch")
    on.button(
        "Next", key=f"{key} next", disabled=at == len(steps) - 1, on_click=_go, args=(key, at + 1), width="stretch"
    )
    step = dict(steps[at])
    place.markdown(
        f"**Step {at + 1} of {len(steps)}, {life_text.NAMES[step['what']]}**: {plain(life_text.says(dict(life), step))}"
    )
    plot(st.container(), figures.life_memory(life, at), TERMS["life_memory"])
    with st.expander("All steps"):
        for i, one in enumerate(steps, 1):
            st.markdown(f"{i}. *{life_text.NAMES[one['what']]}*: {plain(life_text.says(dict(life), dict(one)))}")


def _go(key: str, at: int) -> None:
    st.session_state[key] = at
