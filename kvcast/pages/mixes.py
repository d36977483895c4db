"""The Plan page of a fleet with pools: the cheapest mix of them that meets the target.

The one idea: `kvcast plan` with plan.pools, whose document is the table; a pool's replicas are the most of it.

    plan_of(page, run)
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.jobs.runner import OF_POOLS
from kvcast.pages import results, shell
from kvcast.pages.apply import adopt
from kvcast.pages.judging import scenario_of
from kvcast.pages.plan_question import ask_seeds
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from kvcast.planner import Options
from kvcast.planner.mixed import NOT_ASKED, beside, in_words, table_of
from kvcast.present.verdict import MET, MISSED, Verdict
from kvcast.scenario.toml import dumps
from sim.scenario import Scenario

Document = Mapping[str, Any]
LABEL = "Find the cheapest mix"
MOST = 64
"""Replicas of a pool that the page offers to look at."""


def plan_of(page: Page) -> None:
    """The cheapest mix, or the button that asks for it."""
    scenario = scenario_of(page.shown_toml)
    sentence, below = st.container(), st.container(horizontal=True, vertical_alignment="center")
    with below.popover("How many at most, seeds", help="all mixes of as many are tried, from the cheapest on"):
        most = {pool.name: _most(pool.name, pool.replicas) for pool in scenario.pool}
        seeds = ask_seeds()
    sets = [f"pool.{pool.name}.replicas={n}" for pool in scenario.pool if (n := most[pool.name]) != pool.replicas]
    asked = [word for one in sets for word in ("--set", one)]
    command = ("plan", *OF_POOLS, *asked, *(("--seeds", str(seeds)) if seeds != Options().seeds else ()))
    start = replace(page, shown_toml=dumps(replace(scenario, cluster=replace(scenario.cluster, replicas=1))))
    job = shell.result(start, below.container(width="stretch"), *command, label=LABEL)
    if job is None:
        return
    found = job.document()
    results.box(told(found), sentence)
    for line in beside(found):
        sentence.markdown(f":orange[:material/warning:] {plain(line[:1].upper() + line[1:])}.")
    header, rows = table_of(found)
    st.dataframe([dict(zip(header, row, strict=True)) for row in rows], hide_index=True, width="stretch")
    st.caption(plain(f"{text.count(found['simulations'])} simulations; {NOT_ASKED}."))
    st.code(shlex.join(["kvcast", "plan", "scenario.toml", *job.command[1:]]), language="bash", wrap_lines=True)
    if found["answer"]["feasible"] and (other := _with(scenario, found["answer"]["replicas"])).pool != scenario.pool:
        told_of = "set the sidebar to this mix and run it"
        below.button("Use this mix", key="plan.use", on_click=adopt, args=(page, other), help=told_of)


def _most(name: str, replicas: int) -> int:
    key = f"plan.most.{name}"
    label = plain(f"{name}, at most")
    return int(st.number_input(label, 1, max(MOST, replicas), replicas, key=key, persist_state="session"))


def _with(scenario: Scenario, replicas: Mapping[str, int]) -> Scenario:
    """With so many replicas of each pool; without those that have none."""
    pools = tuple(replace(pool, replicas=n) for pool in scenario.pool if (n := replicas[pool.name]))
    return replace(scenario, pool=pools, cluster=replace(scenario.cluster, replicas=1))


def told(found: Document) -> Verdict:
    """The plan's answer as the box shows it."""
    if found["answer"]["feasible"]:
        return Verdict(MET, "This mix is enough:", in_words(found))
    return Verdict(MISSED, "No mix is enough:", in_words(found))
