"""The Compare page: variants of the scenario on show, or the pinned baseline against it, side by side on the same
requests.

The one idea: a difference is told with its 95 % interval, and one that may be chance is "no difference shown".

    show(page)
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.config import scenario_from_doc
from kvcast.figures.comparison import name_of
from kvcast.pages import shell
from kvcast.pages.edit import inputs, variants
from kvcast.pages.results import MARK, mark_of_share, plain, plot
from kvcast.pages.shell import Page, of_a_run
from kvcast.present.terms import TERMS
from kvcast.present.verdict import fleet_of
from kvcast.store.runs import Run
from kvcast.studies import compare, differences
from workloads.errors import InputError

Document = Mapping[str, Any]
DEFAULT_AXIS = "cluster.replicas"
AXES_AT_ONCE = 3
FEW = 4
PINNED, VARY = "The pinned baseline", "Variants of this run"


@of_a_run
def show(page: Page, run: Run) -> None:
    st.markdown(plain(f"{run.summary['name']} on {fleet_of(run.summary)}, against:"))
    choices = [VARY, PINNED] if page.baseline is not None and page.baseline.folder != run.folder else [VARY]
    choice = (
        st.segmented_control(
            "Against", choices, default=VARY, required=True, key="compare.against", label_visibility="collapsed"
        )
        if len(choices) > 1
        else VARY
    )
    if choice == PINNED and page.baseline is not None:
        found: Document | None = of_runs(page.baseline, run)
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
    keys = left.multiselect(
        "Vary",
        list(variants.BY_KEY),
        [DEFAULT_AXIS],
        format_func=lambda key: variants.BY_KEY[key].label,
        max_selections=AXES_AT_ONCE,
        key="compare.keys",
        persist_state="session",
    )
    seeds = int(
        right.number_input(
            "Seeds",
            1,
            variants.MOST_SEEDS,
            1,
            key="compare.seeds",
            persist_state="session",
            help="repeat with other arrivals: seeds are independent, so their interval is the safer one",
        )
    )
    chosen: dict[str, list[str]] = {}
    for place, key in zip(st.columns(max(len(keys), 1)), keys, strict=False):
        axis = variants.BY_KEY[key]
        base = (
            scenario if variants.own(scenario, key) is not None else run.scenario
        )  # what fits, what the engine's default is: the run knows
        mine = variants.written(variants.own(base, key))
        if axis.least is not None:
            words = place.text_input(
                f"{axis.label}: beside {mine}",
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
    around = (value + 1, 2 * value) if key == "cluster.replicas" else (value / 2, value * 2)
    return ", ".join(
        dict.fromkeys(f"{v:g}" if v < 1 or v != int(v) else str(int(v)) for v in around if v != value and v > 0)
    )


# -- the answer --------------------------------------------------------------------------------------------------------


def _answer(found: Document) -> None:
    first = name_of(found["variants"][0]["variant"])
    st.header(f"Against {plain(first)}", help=plain(f"{TERMS['change']} Method: {found['method']}."))
    rows = difference_rows(found)
    st.dataframe(turned(rows) if len(rows) <= FEW else rows, hide_index=True, width="stretch")
    st.caption(plain(f"{found['method'][:1].upper()}{found['method'][1:]}. {_chance(found)}"))
    keys = [
        key
        for key in differences.VALUES
        if any((v["vs_first"].get(key) or {}).get("difference") is not None for v in found["variants"][1:])
    ]
    if keys:
        heading = {key: differences.VALUES[key][0] for key in keys}
        shown = next(
            (key for key in keys if any((v["vs_first"].get(key) or {}).get("shown") for v in found["variants"][1:])),
            keys[0],
        )
        key = st.segmented_control(
            "Plot",
            keys,
            default=shown,
            required=True,
            format_func=heading.__getitem__,
            key="compare.plot",
            label_visibility="collapsed",
        )
        plot(st.container(), figures.differences(found, key if key in keys else shown), TERMS["change"])
    st.header("Values")
    st.dataframe(value_rows(found), hide_index=True, width="stretch")
    if any(mark_of_share(_extrapolated(variant)) for variant in found["variants"]):
        st.caption(plain(f"{MARK} {TERMS['extrapolated']}"))
    for one in found.get("does_not_fit", ()):
        st.caption(plain(f"{name_of(one['variant'])} does not fit: {one['why']}"))
    left, right = st.columns(2)
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


def _chance(found: Document) -> str:
    """Intervals are many: some miss the truth."""
    count = sum(d["interval_95"] is not None for v in found["variants"][1:] for d in v["vs_first"].values())
    return (
        f"Each interval holds the truth 95 times in 100: of these {count}, {0.05 * count:.1f} are expected to miss."
        if count > 1
        else ""
    )


def difference_rows(found: Document) -> list[dict[str, str]]:
    """A row a variant but the first: each difference with its interval, or that none is shown, or why there is none."""
    rows = []
    for variant in found["variants"][1:]:
        row = {"variant": name_of(variant["variant"])}
        for key, (heading, tell, good) in differences.VALUES.items():
            row[heading] = _cell(variant["vs_first"].get(key), tell, good)
        rows.append({**row, "stable": _stable(variant)})
    return [{key: value for key, value in row.items() if any(r[key] for r in rows)} for row in rows]


def turned(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """A row a value and a column a variant: for a few variants this is the table that fits a page."""
    return [{"": key, **{row["variant"]: row[key] for row in rows}} for key in rows[0] if key != "variant"]


def _cell(d: Document | None, tell: Any, good: str) -> str:
    if d is None or d["difference"] is None:
        return "" if d is None or d["note"] in ("no price", "undefined") else d["note"]
    signed = f"{'+' if d['difference'] >= 0 else '−'}{tell(abs(d['difference']))}"
    if d["interval_95"] is None:
        return f"{signed} (no interval: {d['note']})"
    if not d["shown"]:
        return "no difference shown"
    return (
        f"{signed} ± {tell(d['interval_95'])}, {'better' if (d['difference'] > 0) == (good == 'higher') else 'worse'}"
    )


def value_rows(found: Document) -> list[dict[str, str]]:
    """A row a variant: its values, with intervals over seeds where there are several."""
    rows = []
    for variant in found["variants"]:
        steady = _stable(variant) != "NO"
        row = {"variant": name_of(variant["variant"])}
        for key, (heading, tell) in compare.COLUMNS.items():
            half = variant[f"{key}_interval_95"]
            value = tell(variant[key]) if half is None else f"{tell(variant[key])} ± {tell(half)}"
            row[heading] = value if steady or not key.endswith("_ms") else text.UNKNOWN
        share = _extrapolated(variant)
        rows.append({**row, "stable": _stable(variant), "extrapolated": f"{text.percent(share)}{mark_of_share(share)}"})
    return rows


def _extrapolated(variant: Document) -> float:
    """The largest share of simulated time, over the variant's seeds, outside what the profile was made from."""
    return max(s["coverage"]["extrapolated"] for s in variant["summaries"])


def _stable(variant: Document) -> str:
    answers = {None: "?", True: "yes", False: "NO"}
    return "/".join(dict.fromkeys(answers[s.get("stable")] for s in variant["summaries"]))


def as_csv(found: Document) -> str:
    """Numbers as numbers: values, differences to the first variant, half-widths of their intervals."""
    rows = [
        {
            **variant["variant"],
            **{column: variant[column] for key in compare.COLUMNS for column in (key, f"{key}_interval_95")},
            **{
                f"{key}_{part}": d[part]
                for key, d in variant["vs_first"].items()
                for part in ("difference", "interval_95", "shown")
            },
            "stable": _stable(variant),
            "extrapolated": _extrapolated(variant),
        }
        for variant in found["variants"]
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
