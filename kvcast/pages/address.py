"""What the browser's address holds beside the settings: what is asked of them, what runs, what is compared.

The one idea: a reload, the browser's Back and another reader's browser all begin with the address, so whatever a page
asks (plan or reach, seeds, what may vary, the run in progress, the baseline, named variants) stands in it, as far as it
is not what a page begins with.

    take(runner, params); params |= given()
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvcast.jobs import link
from kvcast.jobs.runner import Runner
from kvcast.pages.edit import inputs, settings, variants
from kvcast.planner import Options
from workloads.errors import InputError

RUNNING, BASELINE, VARIANTS = "running", "baseline", "variants"
FIND, REACH = "Find the fewest GPUs", "How far does this fleet reach?"
MODES = {"find": FIND, "reach": REACH}
MODE, SEEDS = "plan.question", "plan.seeds"
LISTS = (*(f"plan.{name}" for name in variants.PLANNED), "compare.keys")
NUMBERS = {SEEDS: Options().seeds, "compare.seeds": 1}
"""Session key and parameter -> what a page begins with."""
LIMIT = 400
"""Characters of one value."""
RACE_S = 1.5
"""A request that left the browser within this time of a new address may still carry the one before."""


def take(runner: Runner, params: dict[str, str]) -> None:
    """Move what is ours from the parameters into the session. What is none of a page's choices, the page drops."""
    state = st.session_state
    for key, job in ((RUNNING, "pending"), (BASELINE, "pinned")):
        found = runner.find(params.pop(key, ""))
        if found is not None and (found.running or found.done):
            state[job] = found
    if (mode := MODES.get(params.pop(MODE, ""))) is not None:
        state[MODE] = mode
    if packed := params.pop(VARIANTS, ""):
        try:
            state[VARIANTS] = link.variants_of(packed, settings.demo(), inputs.policies())
        except InputError as error:
            state["problem"] = str(error)
    for key in LISTS:
        if words := params.pop(key, "")[:LIMIT]:
            state[key] = words.split(",")
    for key in NUMBERS:
        if (word := params.pop(key, "")[:LIMIT]).isdigit():
            state[key] = int(word)


def given() -> dict[str, str]:
    """The parameters of what the session asks now."""
    state = st.session_state
    jobs = ((RUNNING, state["pending"]), (BASELINE, state["pinned"]))
    found = {key: job.key for key, job in jobs if job is not None}
    if kept := state.get(VARIANTS):
        with contextlib.suppress(InputError):  # of an uploaded trace, or too many: the Compare page says so
            found[VARIANTS] = link.packed_variants(kept, settings.demo())
    if state.get(MODE) == REACH:
        found[MODE] = "reach"
    for key in LISTS:
        if words := [variants.written(value) for value in state.get(key) or ()]:
            found[key] = ",".join(words)
    found |= {key: str(state[key]) for key, first in NUMBERS.items() if state.get(key) not in (None, first)}
    if found.get("compare.keys") == variants.FIRST:
        del found["compare.keys"]
    return found


def chosen(key: str, options: list[Any]) -> None:
    """Make a list that the session holds, as the address may have written it, one of these options; before the widget
    of this key is drawn."""
    if given_ := st.session_state.get(key):
        st.session_state[key] = [value for value in options if value in given_ or variants.written(value) in given_]


# -- Back --------------------------------------------------------------------------------------------------------------


def written(params: Mapping[str, str], name: str = "address") -> None:
    """Keep the browser's address at these parameters. name: the session key that remembers them; the first page has one
    of its own."""
    state, new = st.session_state, st.query_params.to_dict() != params
    if new:
        st.query_params.from_dict(params)
    if state.get(name) != params:
        state[name] = dict(params)
        if new or f"{name}.at_s" not in state:  # what the browser has said itself, no request of it is late with
            state[f"{name}.at_s"] = time.monotonic()


def gone_back(kept: Mapping[str, Any], name: str = "address") -> bool:
    """Whether the browser has another address than the page wrote, and nobody has touched anything: its Back or
    Forward. A request that was on its way when the page wrote is none. kept: what the fields held then."""
    state = st.session_state
    if name not in state or st.query_params.to_dict() == state[name]:
        return False
    touched = any(state.get(key) != value for key, value in kept.items() if key in state)
    return not touched and time.monotonic() - state[f"{name}.at_s"] > RACE_S
