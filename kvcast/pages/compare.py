"""The Compare page: variants of the scenario on show, or the pinned baseline against it, side by side on the same
requests.

The one idea: a difference is told with its 95 % interval, and one that may be chance is "no difference shown".

    show(page)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.config import scenario_from_doc
from kvcast.figures.comparison import name_of
from kvcast.pages import address, kept, shell
from kvcast.pages.edit import inputs, variants
from kvcast.pages.results import MARK, mark_of_share, plain, plot
from kvcast.pages.shell import Page, of_a_run
from kvcast.present.comparison import (
    as_csv,
    chance,
    difference_rows,
    extrapolated,
    settings_rows,
    shown_keys,
    turned,
    value_rows,
)
from kvcast.present.html_comparison import of_comparison
from kvcast.present.terms import TERMS
from kvcast.present.verdict import fleet_of
from kvcast.store.runs import Run
from kvcast.studies import compare, differences, named_variants
from workloads.errors import InputError

Document = Mapping[str, Any]
AXES_AT_ONCE = 3
FEW = 4
PINNED, VARY, KEPT = "The pinned baseline", "Variants of this run", "Kept variants"


@of_a_run
def show(page: Page, run: Run) -> None:
    st.markdown(plain(f"{run.summary['name']} on {fleet_of(run.summary)}, against:"))
    kept.offer(page.shown_toml)
    choices = [
        *([KEPT] if len(kept.all_()) > 1 else []),
        VARY,
        *([PINNED] if page.baseline is not None and page.baseline.folder != run.folder else []),
    ]
    choice = (
        st.segmented_control(
            "Against", choices, default=choices[0], required=True, key="compare.against", label_visibility="collapsed"
        )
        if len(choices) > 1
        else VARY
    )
    if choice == KEPT:
        found: Document | None = _kept(page)
    elif choice == PINNED and page.baseline is not None:
        found = of_runs(page.baseline, run)
    else:
        found = _varied(page, run)
    if found is not None:
        _answer(found)


def of_runs(first: Run, second: Run) -> dict[str, Any]:
    """The document of a comparison of two run folders: `kvcast compare`'s own, of runs that are there already."""
    both = [(label, run) for label, run in (("baseline", first), ("this run", second))]
    return compare.as_document(
        [
            compare.Result(
                compare.Variant((label,), ("run",), run.scenario), run.summary, compare.kept(run.tables["requests"])
            )
            for label, run in both
        ]
    )


def _kept(page: Page) -> Document | None:
    """The kept variants, on the same requests."""
    named = kept.told()
    seeds = _seeds(st)
    label = f"Compare {', '.join(kept.all_())} ({len(named) * seeds} simulations)"
    command = ("compare", *(("--seeds", str(seeds)) if seeds > 1 else ()))
    asked = replace(page, shown_toml=named_variants.dumps(named))
    job = shell.result(asked, st.container(), *command, label=label)
    return None if job is None else job.document()


def _seeds(place: Any) -> int:
    return int(
        place.number_input(
            "Seeds",
            1,
            variants.MOST_SEEDS,
            1,
            key="compare.seeds",
            persist_state="session",
            help="repeat with other arrivals: seeds are independent, so their interval is the safer one",
        )
    )


def _varied(page: Page, run: Run) -> Document | None:
    """Ask what to vary, and simulate it."""
    try:
        command = _ask(page, run)
    except InputError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return None
    if not command:
        st.caption("Choose at least one other value. What this run has is always the first variant.")
        return None
    job = shell.result(page, st.container(), *command, label=f"Compare ({variants.count_of(command)} simulations)")
    return None if job is None else job.document()


def _ask(page: Page, run: Run) -> tuple[str, ...]:
    scenario = scenario_from_doc(tomllib.loads(page.shown_toml))
    left, right = st.columns([3, 1])
    axes = variants.axes_of(scenario)
    address.chosen("compare.keys", list(axes))
    keys = left.multiselect(
        "Vary",
        list(axes),
        [next(iter(axes))],
        format_func=lambda key: axes[key].label,
        max_selections=AXES_AT_ONCE,
        key="compare.keys",
        persist_state="session",
    )
    seeds = _seeds(right)
    chosen: dict[str, list[str]] = {}
    for place, key in zip(st.columns(max(len(keys), 1)), keys, strict=False):
        axis = axes[key]
        base = (
            scenario if variants.own(scenario, key) is not None else run.scenario
        )  # what fits, what the engine's default is: the run knows
        mine = variants.written(variants.own(base, key))
        if axis.least is not None:
            words = place.text_input(
                f"{axis.label if key in variants.BY_KEY else plain(axis.label)}: beside {mine}",
                _suggestion(key, mine),
                key=f"compare.{key}",
                persist_state="session",
                placeholder="1, 2, 4",
            )
            chosen[key] = variants.numbers(axis, words)
        else:
            values = variants.options(base, key, inputs.policies())
            chosen[key] = place.multiselect(
                f"{axis.label}: beside {mine}", values, values[:1], key=f"compare.{key}", persist_state="session"
            )
    return variants.command(run.scenario, chosen, seeds)


def _suggestion(key: str, mine: str) -> str:
    """Values worth a look beside the scenario's own."""
    value = float(mine)
    around = (value + 1, 2 * value) if key.endswith(".replicas") else (value / 2, value * 2)
    return ", ".join(
        dict.fromkeys(f"{v:g}" if v < 1 or v != int(v) else str(int(v)) for v in around if v != value and v > 0)
    )


# -- the answer --------------------------------------------------------------------------------------------------------


def _answer(found: Document) -> None:
    first = name_of(found["variants"][0]["variant"])
    if rows := settings_rows(found):
        st.header("What differs")
        st.dataframe(rows, hide_index=True, width="stretch")
    st.header(f"Against {plain(first)}", help=plain(f"{TERMS['change']} Method: {found['method']}."))
    rows = difference_rows(found)
    st.dataframe(turned(rows) if len(rows) <= FEW else rows, hide_index=True, width="stretch")
    st.caption(plain(f"{found['method'][:1].upper()}{found['method'][1:]}. {chance(found)}"))
    keys = [key for key in differences.VALUES if key in (shown := shown_keys(found))]
    if keys:
        heading = {key: differences.VALUES[key][0] for key in keys}
        key = st.segmented_control(
            "Plot",
            keys,
            default=shown[0],
            required=True,
            format_func=heading.__getitem__,
            key="compare.plot",
            label_visibility="collapsed",
        )
        plot(st.container(), figures.differences(found, key if key in keys else shown[0]), TERMS["change"])
    st.header("Values")
    st.dataframe(value_rows(found), hide_index=True, width="stretch")
    if any(mark_of_share(extrapolated(variant)) for variant in found["variants"]):
        st.caption(plain(f"{MARK} {TERMS['extrapolated']}"))
    for one in found.get("does_not_fit", ()):
        st.caption(plain(f"{name_of(one['variant'])} does not fit: {one['why']}"))
    left, middle, right = st.columns(3)
    middle.download_button(
        "comparison.html",
        lambda: of_comparison(found),
        "comparison.html",
        "text/html",
        on_click="ignore",
        width="stretch",
        key="compare.html",
    )
    left.download_button(
        "comparison.csv",
        lambda: as_csv(found),
        "comparison.csv",
        "text/csv",
        on_click="ignore",
        width="stretch",
        key="compare.csv",
    )
    right.download_button(
        "comparison.json",
        lambda: text.to_json(
            {**found, "variants": [{k: v for k, v in row.items() if k != "summaries"} for row in found["variants"]]}
        ),
        "comparison.json",
        "application/json",
        on_click="ignore",
        width="stretch",
        key="compare.json",
    )
