"""The Cache page: what was hit and missed, what would bring the misses back, how far another policy or more memory
would get.

The one idea: what the run on show did stands there at once; what needs more simulation is asked for by a button, runs
as a command of its own, and every change it finds can be applied and is then run.

    show(page)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.pages import apply, shell
from kvcast.pages.edit import inputs
from kvcast.pages.results import plain, plot
from kvcast.pages.shell import Page, of_a_run
from kvcast.present.terms import TERMS
from kvcast.store.runs import Run
from sim.measure.mixed import kv_blocks_of_fleet

Document = Mapping[str, Any]
POLICIES = ("lru", "s3fifo", "gdsf")
"""Compared at first, beside the run's own."""
WORDS = {"evicted_policy": "evicted, the policy's choice", "evicted_memory": "evicted, too little memory"}
EVERYWHERE = "all classes"


@of_a_run
def show(page: Page, run: Run) -> None:
    s = run.summary
    if not s["prefix_identity"]:
        st.warning(
            "This workload says nothing about shared text, so every hit rate is 0 because it is unknown. Choose a mix"
            " with shared layers, or a trace with block hashes.",
            icon=":material/help:",
        )
        return
    st.markdown(f"**{plain(sentence(s))}**", help=plain(f"{TERMS['hit_rate']} {TERMS['ceiling']}"))
    _where(run)
    _recover(page, run)
    _capacity(page, run)
    _worth(page, run)
    _order(run)


def sentence(s: Document) -> str:
    """What was hit, of what could be, and where the most of the rest went."""
    ceiling, fleet = s["reuse_ceiling_replica"], s["reuse_ceiling_fleet"]
    told = f"{text.percent(s['prefix_hit_rate'])} of the prompt tokens came from the cache"
    if ceiling:
        told += (
            f", {text.percent(s['prefix_hit_rate'] / ceiling, 0)} of what endless memory with this routing would give"
            f" ({text.percent(ceiling)})"
        )
    if fleet and ceiling is not None and fleet - ceiling > 0.005:
        told += f"; one cache for the fleet could give {text.percent(fleet)}"
    misses = sorted(((tokens, cause) for cause, tokens in s["miss_tokens"].items() if tokens), reverse=True)[:2]
    if misses and s["prompt_tokens"]:
        told += ". Most of the rest: " + ", ".join(
            f"{words_of(cause)} {text.percent(tokens / s['prompt_tokens'])}" for tokens, cause in misses
        )
    return f"{told}."


# -- what happened -----------------------------------------------------------------------------------------------------


def _where(run: Run) -> None:
    s = run.summary
    left, right = st.columns(2)
    plot(
        left,
        figures.miss_causes(s),
        TERMS["causes"],
        f"Counting rule: {s['counting_rule']}; block size {s['block_size']}.",
    )
    plot(right, figures.marked(figures.misses_over_time(run.tables["timeline"]), s), TERMS["causes"])
    left, right = st.columns(2)
    place = right.container()  # above the choice it depends on
    chosen = (
        right.selectbox("Class", [EVERYWHERE, *s["classes"]], key="cache.class")
        if len(s["classes"]) > 1
        else EVERYWHERE
    )
    plot(place, figures.tokens_by_scope(run.tables["cache"], None if chosen == EVERYWHERE else chosen), TERMS["scope"])
    plot(left, figures.marked(figures.hit_rate(s, run.tables["timeline"]), s), TERMS["hit_rate"])
    left.caption(plain(f"Ceiling: {TERMS['ceiling']}"))


# -- what would bring the misses back ----------------------------------------------------------------------------------


def _recover(page: Page, run: Run) -> None:
    st.header("What would recover the missed tokens", help=plain(TERMS["explain"]))
    job = shell.result(page, st.container(), "explain", label="Simulate the changes that could")
    if job is None:
        return
    found = job.document()
    if not found["causes"]:
        st.info(
            "No missed token has a cause that a change of the scenario is known to recover.",
            icon=":material/check_circle:",
        )
    for i, cause in enumerate(found["causes"]):
        share = text.percent(cause["tokens"] / found["prompt_tokens"]) if found["prompt_tokens"] else text.UNKNOWN
        helping = [change for change in cause["changes"] if change["helps"]]
        best = f"best: {helping[0]['change']}" if helping else "no change tried here helps"
        with st.expander(
            plain(f"{words_of(cause['cause'])}: {text.count(cause['tokens'])} tokens, {share} of the prompts; {best}"),
            expanded=i == 0,
        ):
            _changes(page, found["before"], cause)
    left = [
        f"{words_of(name)} {text.percent((found['miss_tokens'][name] or 0) / found['prompt_tokens'])}"
        for name in found["not_recoverable"]
    ]
    if left:
        st.caption(plain(f"No change known for: {', '.join(left)}."))


def _changes(page: Page, before: Document, cause: Document) -> None:
    """Every change beside the run as it is; those that help can be applied."""
    header = ("change", "hit tokens", "hit rate", "TTFT p99", "within limits", "GPU-hours", "")
    widths = (4, 1.6, 1.4, 1.4, 1.4, 1.4, 2)
    for place, name in zip(st.columns(widths), header, strict=True):
        place.caption(name)
    for place, words in zip(st.columns(widths), ("as it is", "", *_figures(before)), strict=False):
        place.markdown(f":gray[{plain(words)}]")
    for number, change in enumerate(cause["changes"]):
        places = st.columns(widths, vertical_alignment="center")
        places[0].markdown(
            plain(change["change"]),
            help=plain(
                ". ".join(
                    filter(
                        None,
                        (
                            change["verdict"],
                            change["asks_for"] and f"It asks for: {change['asks_for']}",
                            change.get("note"),
                        ),
                    )
                )
            ),
        )
        if change["after"] is None:
            places[1].caption(plain(change["verdict"]))
            continue
        for place, words in zip(
            places[1:],
            (
                f"{'+' if change['recovered_tokens'] >= 0 else '−'}{text.scaled(abs(change['recovered_tokens']))}".strip(),  # noqa: E501
                *_figures(change["after"]),
            ),
            strict=False,
        ):
            place.markdown(plain(words))
        if change["helps"]:
            key = f"cache.apply.{cause['cause']}.{number}"
            places[-1].button(
                "Apply",
                key=key,
                on_click=apply.apply_change,
                args=(page, change),
                type="tertiary",
                icon=":material/check:",
                help="set the sidebar to this change and run it",
            )
        else:
            places[-1].caption("does not help")


def _figures(f: Document) -> tuple[str, str, str, str]:
    unstable = f["stable"] is False
    return (
        text.percent(f["prefix_hit_rate"]),
        "unstable" if unstable else text.milliseconds(f["p99_ttft_ms"]),
        text.percent(f["attainment"]),
        f"{f['gpu_hours']:.3g}",
    )


def words_of(cause: str) -> str:
    from kvcast.figures.cache import CAUSES

    return WORDS.get(cause) or (CAUSES[cause][0] if cause in CAUSES else cause.replace("_", " "))


# -- more memory, another policy ---------------------------------------------------------------------------------------


def _capacity(page: Page, run: Run) -> None:
    st.header("Hit rate against memory, by policy", help=plain(TERMS["replay"]))
    known = [name for name in inputs.policies() if name != "clairvoyant"]
    start = [name for name in dict.fromkeys((run.scenario.cache.policy, *POLICIES)) if name in known]
    chosen: Sequence[str] = (
        st.multiselect(
            "Policies", known, default=start, key="cache.policies", persist_state="session", max_selections=6
        )
        or start
    )
    command = (
        "cache",
        "--rule",
        "leaf-first",
        "--policy",
        ",".join([*sorted(chosen), "optimal"]),
        "--capacity-blocks",
        "auto",
    )
    job = shell.result(page, st.container(), *command, label="Replay the requests through caches of many sizes")
    if job is None:
        return
    rows: Any = job.document()
    plot(
        st.container(),
        figures.hit_by_capacity(rows, block_bytes(run), marks_of(run)),
        TERMS["replay"],
        reading(rows, run),
    )


def block_bytes(run: Run) -> float:
    """KV of one block on all GPUs of a replica."""
    from kvcast import api

    resolved = api.resolve(run.scenario)
    return resolved.rank_kv_bytes * run.summary["block_size"]


def marks_of(run: Run) -> dict[str, int]:
    s = run.summary
    one = {"one replica": s["kv_blocks"]}
    return one if s["replicas"] == 1 else one | {f"{s['replicas']} replicas": kv_blocks_of_fleet(s)}


def reading(rows: Sequence[Document], run: Run) -> str:
    """What the curves say at the run's own size, and what they leave out."""
    blocks = run.summary["kv_blocks"]
    at = {
        row["policy"]: row
        for row in sorted(
            (r for r in rows if r["capacity_blocks"] is not None and r["capacity_blocks"] <= blocks),
            key=lambda r: r["capacity_blocks"],
        )
    }
    told = ""
    if at:
        size = max(row["capacity_blocks"] for row in at.values())
        shares = ", ".join(
            f"{'the optimum' if name == 'optimal' else name} {text.percent(row['hit_ratio_tokens'])}"
            for name, row in sorted(at.items(), key=lambda pair: -pair[1]["hit_ratio_tokens"])
        )
        told = f"With {text.count(size)} blocks, the largest size here that one replica has: {shares}. "
    return (
        f"{told}One cache serves the requests one by one, {rows[0]['order']}, without time: nothing is in flight,"
        " nobody waits, and memory in use by running requests is not taken from it."
    )


# -- what the memory is worth ------------------------------------------------------------------------------------------


def _worth(page: Page, run: Run) -> None:
    st.header("What cache memory is worth", help=plain(TERMS["value"]))
    if run.scenario.slo.attainment is None or run.summary["attainment"] is None:
        st.caption("Equal attainment needs limits and a target: set them in the sidebar, and run.")
        return
    job = shell.result(page, st.container(), "value", label="Find the GPUs for each size of KV memory")
    if job is None:
        return
    found = job.document()
    left, right = st.columns(2)
    plot(left, figures.value_of_memory(found), TERMS["value"])
    right.markdown(f"**{plain(found['verdict'][:1].upper() + found['verdict'][1:])}.**")
    rows = [
        {
            "cache": "on" if row["cache"] else "off",
            "KV GiB/GPU": f"{row['kv_gib_per_gpu']:.3g}",
            "GPUs": text.count(row["gpus"]),
            "saved": text.count(row["gpus_saved"]),
            "hit rate": text.percent(row["prefix_hit_rate"]),
            "TTFT mean": text.milliseconds(row["mean_ttft_ms"]),
        }
        for row in found["points"]
    ]
    right.dataframe(rows, hide_index=True, width="stretch")


# -- prompt order ------------------------------------------------------------------------------------------------------


def _order(run: Run) -> None:
    """For a mix: what the order of each class's layers costs."""
    if run.scenario.workload.trace is not None:
        return
    st.header("What the order of the prompt costs", help=plain(TERMS["order"]))
    found = order_costs(inputs.Asked(run.scenario).toml)
    rows = [
        {
            "class": row["class"],
            "order": " › ".join(row["order"]),
            "best order": " › ".join(row["best_order"]) if row["best_order"] != row["order"] else "the same",
            "prompt tokens a request": round(row["prompt_tokens_per_request"]),
            "reusable": round(row["reusable_tokens_per_request"]),
            "lost by the order": round(row["lost_tokens_per_request"]),
        }
        for row in found
    ]
    st.dataframe(
        rows,
        hide_index=True,
        width="stretch",
        column_config={
            name: st.column_config.NumberColumn(format="localized")
            for name in ("prompt tokens a request", "reusable", "lost by the order")
        },
    )
    for row in found:
        if row["best_order"] != row["order"] or row["lost_before_history_tokens_per_request"]:
            st.text("\n".join(row["lines"][1:]))


@st.cache_data(max_entries=32, show_spinner=False)
def order_costs(scenario_toml: str) -> list[dict[str, Any]]:
    """`order_cost` of every class whose prompt has more than one layer, from small samples."""
    import tomllib

    from kvcast.config import scenario_from_doc
    from workloads.estimate import order_cost
    from workloads.mix import resolve

    mix = resolve(scenario_from_doc(tomllib.loads(scenario_toml)).workload)
    return [order_cost(c, requests=500) for c in mix.class_ if len(c.layers) > 1]
