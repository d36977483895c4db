"""What a plan found: plots, candidates with the reason each was rejected, advice to apply, growth, one replica down, launch flags.

The one idea: everything is the document of `kvcast plan`; a part that was not asked for is not drawn.

    plots(plan); advice(plan, apply); candidates(plan); growth(plan); launch(plan)
"""
from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.pages.results import MARK, plain, plot
from kvcast.pages.terms import TERMS
from kvcast.summary_text import EXTRAPOLATED_LIMIT

Document = Mapping[str, Any]
LIMITED = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
Apply = Callable[[Sequence[str]], None]
"""Makes the sidebar say these key=value settings and runs them."""


def plots(plan: Document) -> None:
    parts = []
    if plan["rates"]:
        parts += [(figures.goodput_by_rate(plan), f"{TERMS['goodput']} {TERMS['headroom']}", ""), (figures.latency_by_rate(plan), TERMS["latency_by_rate"], _unsteady(plan))]
    parts.append((figures.candidates(plan), TERMS["candidates"], ""))
    if plan["binding"]:
        parts.append((figures.binding(plan), TERMS["binding"], plan["binding"]["words"]))
    for i in range(0, len(parts), 2):
        for place, (figure, term, caption) in zip(st.columns(2), parts[i : i + 2], strict=False):
            plot(place, figure, term, caption)


def _unsteady(plan: Document) -> str:
    first = min((row["rate_per_s"] for row in plan["rates"] if row["stable"] is False), default=None)
    return "" if first is None else f"Unstable from {first:.3g} requests/s on: no latency is drawn."


def advice(plan: Document, apply: Apply) -> None:
    """Each change with a button that makes it."""
    if not plan["advice"]:
        return
    st.subheader("What helps most", help=TERMS["advice"])
    for i, change in enumerate(plan["advice"]):
        words, button = st.columns([5, 1], vertical_alignment="center")
        words.markdown(f"**{i + 1}.** {plain(change['words'])} :small[:gray[{plain(', '.join(change['set']))}]]")
        button.button("Apply", key=f"plan.apply.{i}", on_click=apply, args=(change["set"],), width="stretch", help="set the sidebar to this and run it")


# -- tables ------------------------------------------------------------------------------------------------------------


def candidates(plan: Document) -> None:
    st.subheader(f"Candidates ({len(plan['candidates'])})", help=plain(f"{TERMS['plan']} {TERMS['attainment']}"))
    rows = candidate_rows(plan)
    st.dataframe(rows, hide_index=True, width="stretch", height=min(420, 38 + 35 * len(rows)))
    if any(c["extrapolated"] and c["extrapolated"] > EXTRAPOLATED_LIMIT for c in plan["candidates"]):
        st.caption(plain(f"{MARK} {TERMS['extrapolated']}"))


def candidate_rows(plan: Document) -> list[dict[str, str]]:
    """One row a candidate, the plan's own first, then by cost."""
    answer = plan["answer"]

    def order(c: Document) -> tuple:
        chosen = answer["feasible"] and (c["label"], c["replicas"]) == (answer["label"], answer["replicas"])
        return (not chosen, c["verdict"] != "meets", c["usd_per_hour"] or 0.0, c["gpus"] or 0, c["replicas"] or 0)

    return [_row(c) for c in sorted(plan["candidates"], key=order)]


def _row(c: Document) -> dict[str, str]:
    mark = f" {MARK}" if c["extrapolated"] and c["extrapolated"] > EXTRAPOLATED_LIMIT else ""
    found = c["attainment"]
    share = text.UNKNOWN if not found else f"{text.percent(found['mean'])} ({text.percent(found['low'])} to {text.percent(found['high'])})"
    steady = c["stable"] is not False
    return {
        "verdict": c["verdict"], "candidate": c["label"] or "as asked", "replicas": text.count(c["replicas"]), "GPUs": text.count(c["gpus"]), "an hour": text.usd(c["usd_per_hour"]),
        "within limits (95 %)": share + (mark if found else ""),
        **{f"within {name}": text.percent((c["per_slo"] or {}).get(key)) for key, name in LIMITED.items() if (c["per_slo"] or {}).get(key) is not None},
        "TTFT p99": text.milliseconds(c["ttft_ms_p99"]) + mark if steady and c["ttft_ms_p99"] is not None else text.UNKNOWN,
        "TPOT p99": text.milliseconds(c["tpot_ms_p99"]) + mark if steady and c["tpot_ms_p99"] is not None else text.UNKNOWN,
        "why not": c["reason"] or "",
    }  # fmt: skip


def growth(plan: Document) -> None:
    """How many GPUs at 1, 2, 3 times the load, and with one replica down."""
    left, right = st.columns(2)
    if plan["growth"]:
        left.subheader("When the load grows", help=TERMS["growth"])
        rows = [{"load": f"{row['factor']:g} ×", "replicas": text.count(row["replicas"]), "GPUs": text.count(row["gpus"]), "an hour": text.usd(row["usd_per_hour"])} for row in plan["growth"]]
        left.dataframe(rows, hide_index=True, width="stretch")
    spare = plan["n_plus_1"]
    if spare:
        right.subheader("One replica down", help=TERMS["n_plus_1"])
        share = text.percent(spare["attainment_one_down"])
        if spare["enough"]:
            right.success(plain(f"{share} of requests are within their limits with one replica down: enough."), icon=":material/check_circle:")
        else:
            right.warning(plain(f"{share} of requests are within their limits with one replica down: {text.count(spare['replicas'])} replicas survive the loss of one."), icon=":material/warning:")


def launch(plan: Document) -> None:
    """The engine's command line of the winning plan."""
    commands = {name: argv for name, argv in (plan["answer"].get("launch") or {}).items() if argv}
    if not commands:
        return
    st.subheader("Start each replica with")
    for name, argv in commands.items():
        st.caption(plain(name))
        st.code(argv if isinstance(argv, str) else shlex.join(argv), language="bash", wrap_lines=True)
