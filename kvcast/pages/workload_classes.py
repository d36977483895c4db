"""The Workload page's one class: its prompt, layer by layer, its turns and its output.

>>> one_class(config)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.figures.workload import prompt_layers
from kvcast.pages import mix
from kvcast.pages.edit import inputs, layers
from kvcast.pages.edit.chart import draw
from kvcast.pages.edit.mix_edit import edit
from kvcast.pages.results import plain
from workloads import dists
from workloads.config import Layer, MixClass, WorkloadConfig
from workloads.estimate import before_history

WORDS = {
    "order": (
        "Both orders are generated with the same texts and lengths and read by a cache that never forgets. An order"
        " that reads what most requests share first lets the cache reuse more. It also changes what the model reads,"
        " and with it the answers: compare quality before adopting an order."
    ),
    "users": (
        "Sessions in progress at once, on average: session arrivals per second x the mean length of a session (Little's"
        " law), its waiting times and 20 ms for each output token. Setting it sets the class's sessions/s."
    ),
    "length": (
        "How much of the mix is judged; both empty: long enough for its sessions, its bursts and its smallest class."
    ),
    "judged": (
        "Until the first sessions end, the number in progress only grows: a fleet judged then is judged on a lighter"
        " load than the mix says. So sessions begin long before what is judged, and caches are warm. The run's clock"
        " starts with them."
    ),
}


def one_class(config: WorkloadConfig) -> None:
    names = [c.name for c in config.class_]
    if st.session_state.get("workload.class") not in names:
        st.session_state["workload.class"] = names[0]
    st.markdown(
        "**Prompt layers** :gray[in the order the model reads them; only what comes before the first changed text can"
        " be reused]"
    )
    chosen = (
        st.segmented_control(
            "Class",
            names,
            format_func=plain,
            default=st.session_state["workload.class"],
            key="workload.class",
            required=True,
            label_visibility="collapsed",
        )
        if len(names) > 1
        else names[0]
    )
    c = layers.of(config, chosen or names[0])
    cost = layers.cost(c)
    best = replace(c, layers=layers.best_order(c.layers))
    bars, marks = {"as ordered": layers.parts(c)}, {"as ordered": cost["reusable_tokens_per_request"]}
    if best != c:
        bars["widest first"], marks["widest first"] = layers.parts(best), cost["best_reusable_tokens_per_request"]
    if (inside := layers.after_history(c)) is not None:
        bars["after the history"] = layers.parts(inside)
        marks["after the history"] = cost["after_history_reusable_tokens_per_request"]
    draw(st, prompt_layers(bars, marks), key="workload.bars")
    st.caption(
        f"The bar adds up each layer's mean for an average turn; the sentence counts {text.count(layers.GENERATED)}"
        " generated requests: their totals differ where few long sessions weigh much."
    )
    reused, prompt, lost = (
        cost["reusable_tokens_per_request"],
        cost["prompt_tokens_per_request"],
        cost["lost_tokens_per_request"],
    )
    share = f" ({text.percent(reused / prompt)})" if prompt else ""
    said = f"An unlimited cache reuses **{text.count(reused)}** of {text.count(prompt)} prompt tokens a request{share}."
    if best == c:
        st.markdown(said, help=plain(WORDS["order"]))
    else:
        left, right = st.columns([4, 1], vertical_alignment="center")
        left.markdown(
            f"{said} This order costs up to **{text.count(max(lost, 0.0))}** tokens of prefill a request.",
            help=plain(WORDS["order"]),
        )
        right.button(
            "Widest first",
            key="workload.best",
            on_click=edit,
            args=(layers.in_best_order, c.name),
            kwargs={"redraw": "layers"},
            width="stretch",
            help=plain(WORDS["order"]),
        )
    if inside is not None:
        _after_history(c, cost["lost_before_history_tokens_per_request"])
    for i, layer in enumerate(c.layers):
        _layer(c, i, layer)
    if first := layers.first_turn_only(c):
        st.caption(
            plain(
                f"{first}: in a session's first request only; its later turns bring the table's input per turn instead."
            )
        )
    _more(config, c)


def _after_history(c: MixClass, lost: float) -> None:
    """What a text that is new in every request costs before the history, and the way out."""
    names = ", ".join(layer.name for layer in before_history(c))
    left, right = st.columns([4, 1], vertical_alignment="center")
    left.markdown(
        f"{plain(names)}, new in every request, stands before the history: **{text.count(lost)}** tokens more are"
        " computed a request than after the history, inside the message.",
        help=plain(WORDS["order"]),
    )
    right.button(
        "After the history",
        key="workload.after_history",
        on_click=edit,
        args=(layers.in_message, c.name),
        kwargs={"redraw": "layers"},
        width="stretch",
        help="each message grows by these tokens, its length keeps its shape, and later turns read them as history",
    )


def _layer(c: MixClass, i: int, layer: Layer) -> None:
    """One layer's row: up, down, name, scope, length, the rest, and remove."""
    key = f"workload.layer.{st.session_state['workload.layers']}.{c.name}.{i}"
    up, down, name, scope, tokens, more, remove = st.columns(
        [0.75, 0.75, 2.1, 1.8, 1.9, 1.3, 0.75], vertical_alignment="bottom", gap="xsmall"
    )
    first: dict[str, Any] = {"label_visibility": "visible" if i == 0 else "collapsed"}

    def set_(field: str, read: Callable[[Any], Any] = lambda v: v, redraw: str = "table") -> Callable[[], None]:
        return lambda: edit(_set, c.name, i, field, read, st.session_state[f"{key}.{field}"], redraw=redraw, key=key)

    up.button(
        "↑",
        key=f"{key}.up",
        disabled=i == 0,
        on_click=edit,
        args=(layers.moved, c.name, i, -1),
        kwargs={"redraw": "layers"},
        width="stretch",
        help="earlier",
    )
    down.button(
        "↓",
        key=f"{key}.down",
        disabled=i == len(c.layers) - 1,
        on_click=edit,
        args=(layers.moved, c.name, i, 1),
        kwargs={"redraw": "layers"},
        width="stretch",
        help="later",
    )
    name.text_input("layer", layer.name, key=f"{key}.name", on_change=set_("name", str.strip), **first)
    scope.selectbox(
        "scope",
        layers.SCOPE_NAMES,
        layers.SCOPE_NAMES.index(layer.scope),
        key=f"{key}.scope",
        on_change=set_("scope", redraw="layers"),
        help=inputs.hint(Layer, "scope"),
        **first,
    )
    mean = f"{round(dists.moments(layer.tokens)[0]):,}"
    tokens.text_input(
        "mean tokens",
        mean,
        key=f"{key}.mean",
        on_change=lambda: edit(_resized, c.name, i, st.session_state[f"{key}.mean"], key=key),
        help="16k is 16,000; the distribution keeps its shape, its own text is under More",
        **first,
    )
    with more.popover("More", width="stretch"):
        st.text_input(
            "length in tokens",
            mix.dist_text(layer.tokens),
            key=f"{key}.tokens",
            on_change=set_("tokens", functools.partial(mix.parse_dist, where=f"{layer.name}: tokens"), "layers"),
            help=mix.GRAMMAR,
        )
        if layer.scope == "project":
            st.number_input(
                "distinct projects",
                1,
                10_000_000,
                layer.items,
                key=f"{key}.items",
                on_change=set_("items"),
                help=inputs.hint(Layer, "items"),
            )
            st.number_input(
                "Zipf exponent",
                0.0,
                20.0,
                layer.zipf,
                0.1,
                key=f"{key}.zipf",
                on_change=set_("zipf"),
                help=inputs.hint(Layer, "zipf"),
            )
        if layer.scope != "dynamic":
            st.number_input(
                "redeployed every (s)",
                0.0,
                1e9,
                layer.redeploy_s,
                key=f"{key}.redeploy_s",
                on_change=set_("redeploy_s"),
                help=inputs.hint(Layer, "redeploy_s"),
            )
            st.number_input(
                "timestamp of (s)",
                0.0,
                1e9,
                layer.timestamp_s,
                key=f"{key}.timestamp_s",
                on_change=set_("timestamp_s"),
                help=inputs.hint(Layer, "timestamp_s"),
            )
            st.number_input(
                "shuffled into",
                0,
                1000,
                layer.shuffle,
                key=f"{key}.shuffle",
                on_change=set_("shuffle"),
                help=inputs.hint(Layer, "shuffle"),
            )
    remove.button(
        "✕",
        key=f"{key}.remove",
        disabled=len(c.layers) == 1,
        on_click=edit,
        args=(layers.without, c.name, i),
        kwargs={"redraw": "layers"},
        width="stretch",
        help="remove",
    )


def _set(
    config: WorkloadConfig, name: str, i: int, field: str, read: Callable[[Any], Any], value: Any
) -> WorkloadConfig:
    return layers.changed(config, name, i, **{field: read(value)})


def _resized(config: WorkloadConfig, name: str, i: int, cell: str) -> WorkloadConfig:
    return layers.resized(config, name, i, mix.number(cell, f"{layers.of(config, name).layers[i].name}: mean tokens"))


def _added(name: str) -> None:
    """What the fields hold now: a press that ends an entry comes before the page is drawn with it."""
    state = st.session_state
    edit(layers.added, name, state["workload.add.scope"], float(state["workload.add.tokens"]), redraw="layers")


def _more(config: WorkloadConfig, c: MixClass) -> None:
    """Add a layer; how many users the class stands for."""
    add, users, _ = st.columns([1, 1, 1], vertical_alignment="bottom")
    with add.popover("Add a layer", width="stretch"):
        st.selectbox("Scope", layers.SCOPE_NAMES, key="workload.add.scope", help=inputs.hint(Layer, "scope"))
        st.number_input("Tokens", 1, 10_000_000, 1000, key="workload.add.tokens")
        st.button("Add", on_click=_added, args=(c.name,), width="stretch")
    if c.arrival.kind != "trace" and config.concurrency is None and dists.can_exceed(c.turns, 1):
        key = f"workload.users.{st.session_state['workload.version']}.{c.name}"
        users.number_input(
            plain(f"{c.name}: users at once (about)"),
            0.01,
            1e6,
            round(mix.users(config, c.name), 2),
            key=key,
            help=WORDS["users"],
            on_change=lambda: edit(mix.for_users, c.name, st.session_state[key], key=key),
        )
