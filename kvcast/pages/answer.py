"""What a plan found: plots, candidates with the reason each was rejected, advice to apply, growth, one replica down,
launch flags.

The one idea: everything is the document of `kvcast plan`; a part that was not asked for is not drawn.

    classes(plan); why(plan); plots(plan); advice(plan, apply); candidates(plan); growth(plan); spare(plan);
    launch(plan)
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.figures.comparison import name_of
from kvcast.pages.results import MARK, mark_of_share, plain, plot, verdict_rows
from kvcast.planner import words
from kvcast.planner.words import beyond
from kvcast.present.terms import TERMS
from kvcast.present.verdict import deciding, layout_rows, share_of, why_not

Document = Mapping[str, Any]
Apply = Callable[[Document], None]
"""Makes the sidebar say the scenario with this change and runs it."""


def classes(plan: Document) -> None:
    """What each class attains on the fleet that the answer rests on."""
    one = deciding(plan)
    if one is None or not one["classes"]:
        return
    runs = "one run" if one["runs"] == 1 else f"{one['runs']} independent runs"
    st.header(
        plain(f"Every class on {one['replicas']} {'replica' if one['replicas'] == 1 else 'replicas'}"),
        help=TERMS["verdict"],
    )
    st.dataframe(verdict_rows(one["classes"]), hide_index=True, width="stretch")
    st.caption(plain(f"Over {runs}."))


def why(plan: Document) -> None:
    """Where no fleet will do: what stands in the way, the nearest limits within reach, other GPUs and widths."""
    if plan["why"] is None:
        return
    heading, *lines = words.why(dict(plan)).splitlines()
    st.header(plain(f"{heading[:1].upper()}{heading[1:].rstrip(':')}"))
    st.markdown("\n".join(f"- {plain(line.removeprefix('- '))}" for line in lines))
    if rows := layout_rows(plan):
        st.dataframe(rows, hide_index=True, width="stretch")


def plots(plan: Document) -> None:
    parts = []
    if plan["rates"]:
        parts += [
            (figures.goodput_by_rate(plan), f"{TERMS['goodput']} {TERMS['headroom']}", ""),
            (figures.latency_by_rate(plan), TERMS["latency_by_rate"], _unsteady(plan)),
        ]
    if (priced := figures.candidates(plan)).data:  # without a latency of any, the frame would be empty
        parts.append((priced, TERMS["candidates"], ""))
    if plan["binding"] and plan["binding"]["changes"]:
        parts.append((figures.binding(plan), TERMS["binding"], plan["binding"]["words"]))
    for i in range(0, len(parts), 2):
        for place, (figure, term, caption) in zip(st.columns(2), parts[i : i + 2], strict=False):
            plot(place, figure, term, caption)


def _unsteady(plan: Document) -> str:
    first = min((row["load"] for row in plan["rates"] if row["stable"] is False), default=None)
    return (
        "" if first is None else f"Unstable from {words.load(first, plan['capacity']['unit'])} on: no latency is drawn."
    )


def advice(plan: Document, apply: Apply) -> None:
    """Each change with a button that makes it."""
    if plan["advice"] is None:
        return
    st.header("What helps most", help=TERMS["advice"])
    if not plan["advice"]:
        st.caption(
            "None of the changes that were simulated brings a smaller fleet back soon after the burst."
            if words.larger(dict(plan))
            else "None of the changes that were simulated lets this fleet hold more, or a smaller one hold this load."
        )
    for i, change in enumerate(plan["advice"]):
        told, button = st.columns([5, 1], vertical_alignment="center")
        told.markdown(f"**{i + 1}.** {plain(change['words'][:1].upper() + change['words'][1:])}")
        button.button(
            "Apply",
            key=f"plan.apply.{i}",
            on_click=apply,
            args=(change,),
            width="stretch",
            help=plain(f"make this change and run it: {', '.join(change['set']) or change['change']}"),
        )
    for line in words.sentences(dict(plan)):
        st.caption(plain(f"{line[:1].upper()}{line[1:]}."))


# -- tables ------------------------------------------------------------------------------------------------------------


def candidates(plan: Document) -> None:
    st.header(f"Candidates ({len(plan['candidates'])})", help=plain(f"{TERMS['plan']} {TERMS['attainment']}"))
    rows = candidate_rows(plan)
    st.dataframe(
        rows,
        hide_index=True,
        width="stretch",
        height=min(420, 38 + 35 * len(rows)),
        column_config={"why not": st.column_config.TextColumn(width="medium")},
    )
    if any(mark_of_share(c["extrapolated"]) for c in plan["candidates"]):
        st.caption(plain(f"{MARK} {TERMS['extrapolated']}"))


def candidate_rows(plan: Document) -> list[dict[str, str]]:
    """One row a candidate, the plan's own first, then by cost."""
    answer = plan["answer"]

    def order(c: Document) -> tuple:
        chosen = answer["feasible"] and (c["label"], c["replicas"]) == (answer["label"], answer["replicas"])
        return (not chosen, c["verdict"] != "meets", c["usd_per_hour"] or 0.0, c["gpus"] or 0, c["replicas"] or 0)

    limited = [key for key in words.NAMES if any(c["per_slo"][key] is not None for c in plan["candidates"])]
    return [_row(c, limited) for c in sorted(plan["candidates"], key=order)]


def _row(c: Document, limited: Sequence[str]) -> dict[str, str]:
    mark = mark_of_share(c["extrapolated"])
    found = c["attainment"]
    share = (
        f"{share_of(found)}{mark}"
        if found["mean"] is not None
        else f"below {text.percent(found['high'])}"
        if found["high"] is not None
        else text.UNKNOWN
    )
    known = {
        name: None if c["stable"] is False else c[key]
        for name, key in (("TTFT", "ttft_ms_p99"), ("TPOT", "tpot_ms_p99"))
    }
    latency = {
        f"{name} p99": text.milliseconds(value) + (mark if value is not None else "") for name, value in known.items()
    }
    return {
        "verdict": c["verdict"],
        "why not": c["reason"] or why_not(c),
        "candidate": name_of(c["values"]) if c["values"] else c["label"],
        "replicas": text.count(c["replicas"]),
        "GPUs": text.count(c["gpus"]),
        "an hour": text.usd(c["usd_per_hour"]),
        "runs": text.count(c["runs"]),
        "within limits (95 %)": share,
        **{f"within {words.NAMES[key]}": text.percent(c["per_slo"][key]) for key in limited},
        **latency,
    }


def growth(plan: Document) -> None:
    """How many GPUs when the load grows, as it is and with the best advice."""
    if not plan["growth"]:
        return
    st.header("When the load grows", help=TERMS["growth"])
    left, right = st.columns(2, vertical_alignment="center")
    plot(left, figures.growth(plan), TERMS["growth"])
    right.dataframe(growth_rows(plan), hide_index=True, width="stretch")
    advised = plan["growth"][0]["advised"]
    if plan.get("recovery") is not None:
        right.caption("Undisturbed: no burst is asked of the fleets at larger loads, as it is of the answer.")
    if advised:
        right.caption(plain(f"With advice: {advised['change']}."))


def growth_rows(plan: Document) -> list[dict[str, str]]:
    return [
        {
            "load": f"{row['factor']:g} ×",
            **_size(row),
            **(
                {
                    "with advice": text.count(row["advised"]["replicas"]),
                    "its GPUs": text.count(row["advised"]["gpus"]),
                    "its price": text.usd(row["advised"]["usd_per_hour"]),
                }
                if row["advised"]
                else {}
            ),
        }
        for row in plan["growth"]
    ]


def _size(row: Document) -> dict[str, str]:
    return {
        "replicas": text.count(row["replicas"]),
        "GPUs": text.count(row["gpus"]),
        "an hour": text.usd(row["usd_per_hour"]),
    }


def spare(plan: Document) -> None:
    """The plan with one replica down."""
    found = plan["n_plus_1"]
    if not found:
        return
    st.header("One replica down", help=TERMS["n_plus_1"])
    share, survives = (
        found["attainment_one_down"],
        (
            f"{text.count(found['replicas'])} replicas survive the loss of one"
            if found["replicas"]
            else "no fleet that was looked at survives the loss of one"
        ),
    )
    told = (
        "With one replica down nothing is left"
        if share is None
        else f"With one replica down {text.percent(share)} of requests are within their limits"
        + (", undisturbed" if plan.get("recovery") is not None else "")
    )
    if found["enough"]:
        st.success(plain(f"{told}: enough."), icon=":material/check_circle:")
    else:
        st.warning(plain(f"{told}: {survives}."), icon=":material/warning:")
    if itself := beyond.failure(dict(plan)):
        st.caption(plain(f"{itself[:1].upper()}{itself[1:]}."))


def launch(plan: Document) -> None:
    """The engine's command line of the winning plan."""
    found = plan["answer"]["launch"]
    if found is not None:
        _, command = words.command_of(found)
        st.header("Start each replica with")
        st.code(shlex.join(command), language="bash", wrap_lines=True)
        st.caption(plain("; ".join([found["words"], *found["notes"]])))
