"""The Workload page: edit the mix and see at once what it does; or read what an uploaded trace holds.

The one idea: the session holds one mix, and every widget's callback replaces it by the mix after one edit (`mix`,
`layers`), so whatever is drawn below is the edited mix, and a bad edit is one line that leaves the mix as it was.

    show(page)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import api, text
from kvcast.figures.workload import arrivals, prompt_layers
from kvcast.pages import estimated, mix
from kvcast.pages.edit import inputs, layers, preview, settings
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from sim.scenario import Scenario
from workloads import dists
from workloads.config import Arrival, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError

WORKING_DAY = (
    0.2,
    0.15,
    0.1,
    0.1,
    0.1,
    0.15,
    0.25,
    0.5,
    1.1,
    2.0,
    2.66,
    2.3,
    1.4,
    1.6,
    2.2,
    2.3,
    1.9,
    1.4,
    1.0,
    0.8,
    0.7,
    0.5,
    0.35,
    0.24,
)
"""The curve of the preset "reasoning", an hour each."""
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
ARRIVALS = {
    "poisson": "independent",
    "gamma": "bursty or even",
    "onoff": "bursts, silences",
    "diurnal": "a day's curve",
    "trace": "recorded times",
}


def show(page: Page) -> None:
    if st.session_state["workload"] == settings.TRACE:
        estimated.trace(page)
        return
    estimated.show(page)
    config: WorkloadConfig = st.session_state["workload.mix"]
    resolved = _resolved(page)
    _classes(config)
    _length(config, resolved)
    for words in preview.too_long(config, page.asked.scenario):
        st.warning(plain(words), icon=":material/warning:")
    _one_class(config)
    _arrivals(config, resolved)


def _resolved(page: Page) -> Scenario | None:
    """What the run will be, its window in numbers; None while the settings are no scenario."""
    try:
        return None if page.asked.scenario is None else api.resolve(page.asked.scenario).scenario
    except InputError:
        return None  # said where the run is asked for


def edit(
    change: Callable[..., WorkloadConfig], *args: Any, redraw: str = "table", key: str = "", **values: Any
) -> None:
    """Replace the mix by `change(mix, ...)`; a widget's callback. redraw: table, or layers too, whose widgets then
    start afresh.

    key: the widget's. One that was drawn for an earlier mix, and whose browser is late to tell its value, changes
    nothing."""
    state = st.session_state
    counter = "workload.layers" if key.startswith("workload.layer.") else "workload.version"
    if key and key.split(".")[2] != str(state[counter]):
        return
    try:
        after = change(state["workload.mix"], *args, **values)
        inputs.check_mix(after)
    except InputError as error:
        state["workload.problem"] = str(error).removeprefix("settings: ")
        return
    state["workload.mix"], state["workload.problem"] = after, ""
    state["workload.version"] += 1
    state["workload.layers"] += redraw == "layers"


# -- the classes
# -----------------------------------------------------------------------------------------------------------


def _classes(config: WorkloadConfig) -> None:
    state = st.session_state
    key = f"workload.table.{state['workload.version']}"
    head, add = st.columns([3, 1], vertical_alignment="bottom")
    head.markdown(
        "**Classes** :gray[a class is a kind of session; double-click a cell to change it, add or delete rows]"
    )
    with add.popover("Add a preset", width="stretch"):
        _add_preset()
    kinds: dict[str, Any] = {
        "rate": st.column_config.NumberColumn(format="%.4g", min_value=0.0),
        "tool_share": st.column_config.NumberColumn(min_value=0.0, max_value=1.0),
        "tenants": st.column_config.NumberColumn(min_value=1, step=1),
        "isolation": st.column_config.CheckboxColumn(),
    }
    columns: dict[str, Any] = {}
    for name, (label, help_text) in mix.CLASS_COLUMNS.items():
        columns[name] = dict(kinds.get(name) or st.column_config.TextColumn()) | {"label": label, "help": help_text}
    st.data_editor(
        _frame(mix.class_rows(config)),
        key=key,
        num_rows="dynamic",
        hide_index=True,
        column_config=columns,
        width="stretch",
        on_change=_table_edited,
        args=(key,),
    )


def _length(config: WorkloadConfig, resolved: Scenario | None) -> None:
    """How long the mix is watched, in requests or seconds; empty: as long as it takes to judge it. Under it, what that
    is."""
    left, right = st.columns(2)
    for place, name, label, least in (
        (left, "requests", "Length (requests, about)", 1),
        (right, "duration_s", "Length (s)", 1.0),
    ):
        key = f"workload.{name}.{st.session_state['workload.version']}"
        place.number_input(
            label,
            least,
            None,
            getattr(config, name),
            key=key,
            help=f"{WORDS['length']} {_capital(inputs.hint(WorkloadConfig, name))}.",
            placeholder="long enough to judge",
            on_change=lambda name=name, key=key: edit(_bounded, name, st.session_state[key], key=key),
        )
    if resolved is not None:
        st.caption(plain(_capital(preview.judged(resolved))), help=WORDS["judged"])


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _table_edited(key: str) -> None:
    """The class table's callback: its edits, as the editor's state has them."""
    edit(mix.edited, st.session_state[key], redraw="layers", key=key)


def _bounded(config: WorkloadConfig, name: str, value: Any) -> WorkloadConfig:
    return replace(config, **{name: value})


def _add_preset() -> None:
    from workloads.toml import list_presets, load_preset

    name = st.selectbox(
        "Preset", list_presets(), key="workload.add", help="its classes, beside those that are there, at its own rate"
    )
    st.button(
        "Add its classes", on_click=lambda: edit(mix.with_preset, load_preset(name), redraw="layers"), width="stretch"
    )


def _frame(rows: list[mix.Row]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)


# -- one class: its prompt, its arrivals
# -----------------------------------------------------------------------------------


def _one_class(config: WorkloadConfig) -> None:
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
    st.plotly_chart(
        _bare(prompt_layers(bars, marks)), width="stretch", config={"displayModeBar": False}, key="workload.bars"
    )
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
    for i, layer in enumerate(c.layers):
        _layer(c, i, layer)
    if first := layers.first_turn_only(c):
        st.caption(
            plain(
                f"{first}: in a session's first request only; its later turns bring the table's input per turn instead."
            )
        )
    _more(config, c)


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


def _more(config: WorkloadConfig, c: MixClass) -> None:
    """Add a layer; how many users the class stands for."""
    add, users, _ = st.columns([1, 1, 1], vertical_alignment="bottom")
    with add.popover("Add a layer", width="stretch"):
        scope = st.selectbox("Scope", layers.SCOPE_NAMES, key="workload.add.scope", help=inputs.hint(Layer, "scope"))
        tokens = st.number_input("Tokens", 1, 10_000_000, 1000, key="workload.add.tokens")
        st.button(
            "Add", on_click=lambda: edit(layers.added, c.name, scope, float(tokens), redraw="layers"), width="stretch"
        )
    if c.arrival.kind != "trace" and config.concurrency is None and dists.can_exceed(c.turns, 1):
        key = f"workload.users.{st.session_state['workload.version']}.{c.name}"
        users.number_input(
            f"{c.name}: users at once (about)",
            0.01,
            1e6,
            round(mix.users(config, c.name), 2),
            key=key,
            help=WORDS["users"],
            on_change=lambda: edit(mix.for_users, c.name, st.session_state[key], key=key),
        )


# -- arrivals
# --------------------------------------------------------------------------------------------------------------


def _arrivals(config: WorkloadConfig, resolved: Scenario | None) -> None:
    c = layers.of(config, st.session_state["workload.class"])
    st.markdown("**Arrivals** :gray[of sessions; what is drawn is what the run will see]")
    left, right = st.columns([2, 3])
    with left:
        _arrival(c)
    with right:
        _drawn(resolved)


def _drawn(resolved: Scenario | None) -> None:
    """The run's arrivals, with the part that is not judged."""
    if resolved is None:
        return
    if resolved.workload.concurrency is not None:
        st.caption(
            "At a fixed concurrency a session begins when another one ends: there are no arrival times before the run."
        )
        return
    what = (
        st.segmented_control(
            "Count",
            ["requests", "sessions"],
            default="requests",
            key="workload.count",
            required=True,
            label_visibility="collapsed",
        )
        or "requests"
    )
    drawn = preview.arrivals(resolved.workload, what == "sessions", resolved.seed)
    st.plotly_chart(
        _bare(arrivals(drawn, what, resolved.run.warmup_s or 0.0, resolved.run.duration_s)),
        width="stretch",
        config={"displayModeBar": False},
        key="workload.arrivals",
    )
    if what != "sessions":
        st.caption("Later turns at their session's start plus think times, as if answers took no time.")


def _arrival(c: MixClass) -> None:
    key = f"workload.arrival.{st.session_state['workload.version']}.{c.name}"
    kinds = [kind for kind in ARRIVALS if kind != "trace" or c.arrival.kind == "trace"]

    def set_(**values: Any) -> None:
        edit(_with_arrival, c.name, values, key=key)

    st.selectbox(
        f"{c.name} arrives as",
        kinds,
        kinds.index(c.arrival.kind),
        key=f"{key}.kind",
        format_func=lambda kind: f"{kind}: {ARRIVALS[kind]}",
        on_change=lambda: edit(_as_kind, c.name, st.session_state[f"{key}.kind"], key=key),
    )
    fields = {
        "gamma": (("cv", "CV of the gaps"),),
        "onoff": (("on_s", "burst, mean (s)"), ("off_s", "silence, mean (s)")),
        "diurnal": (("period_s", "period (s)"),),
    }
    for name, label in fields.get(c.arrival.kind, ()):
        st.number_input(
            label,
            0.001,
            1e9,
            float(getattr(c.arrival, name)),
            key=f"{key}.{name}",
            help=inputs.hint(Arrival, name),
            on_change=lambda name=name: set_(**{name: st.session_state[f"{key}.{name}"]}),
        )
    if c.arrival.kind == "diurnal":
        st.text_input(
            "relative rate over one period",
            " ".join(f"{v:g}" for v in c.arrival.curve),
            key=f"{key}.curve",
            help=inputs.hint(Arrival, "curve"),
            on_change=lambda: edit(_with_curve, c.name, st.session_state[f"{key}.curve"], key=key),
        )


def _with_arrival(config: WorkloadConfig, name: str, values: dict[str, Any]) -> WorkloadConfig:
    return mix.with_class(config, name, arrival=replace(layers.of(config, name).arrival, **values))


def _as_kind(config: WorkloadConfig, name: str, kind: str) -> WorkloadConfig:
    starts: dict[str, dict[str, Any]] = {
        "gamma": {"cv": 2.0},
        "onoff": {"on_s": 20.0, "off_s": 40.0},
        "diurnal": {"curve": WORKING_DAY},
    }
    return mix.with_class(config, name, arrival=Arrival(kind=kind, **starts.get(kind, {})))


def _with_curve(config: WorkloadConfig, name: str, cell: str) -> WorkloadConfig:
    try:
        curve = tuple(float(word) for word in cell.replace(",", " ").split())
    except ValueError:
        raise InputError(f"{name}: curve = {cell[:60]!r}, expected numbers separated by spaces") from None
    return _with_arrival(config, name, {"curve": curve})


def _bare(figure: Any) -> Any:
    """The figure under a heading of the page's own."""
    return figure.update_layout(title=None, margin={"t": 30})
