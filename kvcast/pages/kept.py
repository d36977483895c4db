"""Variants that the reader keeps: what is on show as A, B, C..., whatever it is, to be compared side by side.

The one idea: a kept variant is a whole scenario, so any setting may differ, model and GPU included; the address holds
them, and `kvcast compare variants.toml` says the same.

    offer(page.shown_toml); told()
"""

from __future__ import annotations

import streamlit as st

from kvcast.jobs import link
from kvcast.pages.address import VARIANTS
from kvcast.pages.edit import settings
from kvcast.pages.edit.plain import plain
from kvcast.pages.judging import scenario_of
from kvcast.present.verdict import model_of
from kvcast.scenario.gpu_prices import gpu_of
from kvcast.studies import named_variants
from sim.scenario import Scenario
from workloads.errors import InputError

DIFFER_TOLD = 4


def all_() -> dict[str, Scenario]:
    """Letter -> scenario, in the order they were kept."""
    return dict(st.session_state.get(VARIANTS) or {})


def told() -> dict[str, Scenario]:
    """The same by a name that says the fleet."""
    return {f"{letter}: {fleet_of(one)}": one for letter, one in all_().items()}


def fleet_of(scenario: Scenario) -> str:
    if scenario.pool:
        return " + ".join(f"{pool.replicas} × {pool.name}" for pool in scenario.pool)
    return f"{scenario.cluster.replicas} × {gpu_of(scenario) or scenario.hardware.profile}"


def button(toml: str) -> None:
    """Keep the run on show."""
    kept = all_()
    scenario = scenario_of(toml)
    mine = next((letter for letter, one in kept.items() if one == scenario), None)
    if mine is not None:
        st.caption(f"Kept as {mine}", width="content")
    elif len(kept) < len(link.LETTERS):
        letter = next(one for one in link.LETTERS if one not in kept)
        st.button(
            f"Keep as {letter}",
            key="variants.keep",
            type="tertiary",
            icon=":material/bookmark_add:",
            help="to compare it on the Compare page with others that differ in whatever you like, model and GPU too",
            on_click=lambda: st.session_state.update({VARIANTS: {**kept, letter: scenario}}),
        )


def offer(toml: str) -> None:
    """The kept variants, what each has that the first has not, and the button that keeps the one on show."""
    kept = all_()
    first = next(iter(kept.values()), None)
    for letter, scenario in kept.items():
        row = st.container(horizontal=True, vertical_alignment="center", gap="small")
        row.markdown(
            plain(f"{letter}: {fleet_of(scenario)}, {model_of(scenario)}{_differs(scenario, first)}"), width="content"
        )
        row.button(
            "Show",
            key=f"variants.show.{letter}",
            type="tertiary",
            on_click=_show,
            args=(scenario,),
            help="its settings",
        )
        row.button("Drop", key=f"variants.drop.{letter}", type="tertiary", on_click=_drop, args=(letter,))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        button(toml)
        if len(kept) > 1:
            st.download_button(
                "variants.toml",
                named_variants.dumps(kept),
                "variants.toml",
                "application/toml",
                on_click="ignore",
                type="tertiary",
                key="variants.toml",
                help="kvcast compare variants.toml says the same",
            )
    try:
        link.packed_variants(kept, settings.demo())
    except InputError as error:
        st.caption(plain(f"Not in the link: {error}"))


def _differs(scenario: Scenario, first: Scenario | None) -> str:
    if first is None or scenario is first:
        return ""
    found = link.changes(scenario, first)
    words = [f"{key} {now}" for key, _, now in found[:DIFFER_TOLD]]
    more = len(found) - len(words)
    return f" ({', '.join(words)}{f' and {more} more' if more else ''})"


def _show(scenario: Scenario) -> None:
    settings.adopt(scenario, scenario.workload.trace or "")


def _drop(letter: str) -> None:
    st.session_state[VARIANTS] = {name: one for name, one in all_().items() if name != letter}
