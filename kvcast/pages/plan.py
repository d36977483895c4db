"""The Plan page: can this fleet carry the load, what are the fewest GPUs that can, and what is each number made of?

The one idea: the verdict first, in a sentence for the fleet on show and one for the plan; then four numbers, then plots,
then the tables behind them.

    show(page)
"""
from __future__ import annotations

import functools
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.config import override, scenario_from_doc
from kvcast.pages import answer, inputs, results, shell
from kvcast.pages.results import plain
from kvcast.pages.shell import Page
from kvcast.pages.terms import TERMS
from kvcast.pages.verdict import planned, verdict
from kvcast.runs import Run
from kvcast.toml import dumps
from sim.scenario import Scenario
from workloads.errors import InputError

Document = Mapping[str, Any]
Axes = Mapping[str, Sequence[Any]]
FIND = "Find the fewest GPUs"
WIDER = (1, 2, 4, 8)
"""GPUs a replica to try when no fleet of the given ones will do."""
LOST_TO_ROUTING = 0.05
"""Share of the prompt tokens that are cached on another replica, from which it is said to matter."""


def show(page: Page) -> None:
    run = page.run
    if run is None:
        st.info("The first run is being simulated.", icon=":material/hourglass_empty:")
        return
    apply = functools.partial(apply_settings, page)
    st.markdown(plain(question(run)))
    results.box(verdict(run.summary, run.scenario.slo, results.attained_ends(run)))
    found = _plan(page, run)
    _pin(page, run, results.numbers(run, page.baseline))
    if found:
        answer.plots(found)
        answer.advice(found, apply)
    results.plots(run)
    if found:
        answer.candidates(found)
        answer.growth(found)
        answer.launch(found)
    results.tables(run)
    with st.expander("What the numbers rest on"):
        results.assumptions(run)
    st.subheader("Take it away")
    results.reproduce(run, page.shown_toml)
    if found:
        _plan_files(page, found)


def question(run: Run) -> str:
    s, scenario = run.summary, run.scenario
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    arriving_s = s["window"]["last_arrival_s"] - s["window"]["start_s"]  # without the tail in which the last ones are served
    rate = f"{s['arrived'] / arriving_s:.3g} requests/s" if arriving_s > 0 else "one burst"
    return f"{s['name']}: {rate} ({text.count(s['arrived'])} requests) of {scenario.model.name}, {scenario.cluster.router} router, {cache}, {s['engine_semantics']}, seed {s['seed']}"


# -- the plan ----------------------------------------------------------------------------------------------------------


def _plan(page: Page, run: Run) -> Document | None:
    """The plan's sentence, or the button that asks for it; what may vary stands beside."""
    if run.scenario.slo.attainment is None or run.summary["attainment"] is None:
        st.caption(plain(f"{FIND}: set limits and a target in the sidebar, and run."))
        return None
    sentence, below = st.container(), st.container(horizontal=True, vertical_alignment="center")
    with below.popover("What may vary", help="what a plan may choose beside the number of replicas"):
        axes = _ask_axes(_scenario(page.shown_toml))
    job = shell.result(replace(page, shown_toml=start_of(page.shown_toml, axes)), below.container(width="stretch"), *command(axes), label=FIND)
    if job is None:
        return None
    found = job.document()
    other = winner(page, found)
    told = planned(found)
    results.box(told if other or not found["answer"]["feasible"] else replace(told, headline="This is the fewest:"), sentence)
    if other is not None:
        below.button("Use this fleet", key="plan.use", on_click=use, args=(page, other, axes), help="set the sidebar to the plan's answer and run it")
    if not found["answer"]["feasible"]:
        _infeasible(page, run, axes, below)
    return found


def _infeasible(page: Page, run: Run, axes: Axes, place: Any) -> None:
    """Why more replicas may not help, and what may: fewer, wider ones."""
    label = wider(run)
    if label is not None and "hardware.tensor_parallel" not in axes:
        place.button("Try wider replicas", key="plan.wider", on_click=widen, args=(page, label), help=plain(f"plan again with {', '.join(map(str, WIDER))} GPUs a replica, their step times from {label}"))
    s = run.summary
    hit, ceiling = s["prefix_hit_rate"], s["reuse_ceiling_fleet"]
    if hit is not None and ceiling is not None and ceiling - hit > LOST_TO_ROUTING:
        st.caption(plain(
            f"{text.percent(hit)} of the prompt tokens came from the cache, {text.percent(ceiling)} would with one endless cache for the fleet: each replica computes what another has cached, "
            "so more replicas may not help; fewer, wider ones share more."
        ))  # fmt: skip


def wider(run: Run) -> str | None:
    """The label of the roofline of the run's GPU, whose width is free; None where there is none for its model and dtype."""
    from calibrate.sources.roofline import GPUS

    device, model = run.summary["profile_provenance"]["device"]["name"], run.scenario.model
    profiles = [f"roofline:{name}" for name, spec in GPUS.items() if spec.name == device]
    return next((label for label, (profile, dtype, _) in inputs.hardware(model.name).items() if profile in profiles and dtype == model.dtype), None)


def widen(page: Page, label: str) -> None:
    """Let the plan choose the GPUs of a replica too, and ask for it."""
    state, scenario = st.session_state, _scenario(page.shown_toml)
    state["plan.gpus"], state["plan.widths"] = [*dict.fromkeys([*state.get("plan.gpus", ()), label])], [*WIDER]
    gpus = inputs.hardware(scenario.model.name)
    axes = axes_of(scenario, [gpus[label] for label in state["plan.gpus"] if label in gpus], WIDER, state.get("plan.policies", ()), state.get("plan.routers", ()))
    try:
        page.runner.submit(start_of(page.shown_toml, axes), *command(axes))
    except InputError as error:
        st.toast(plain(str(error)))


def _ask_axes(scenario: Scenario) -> Axes:
    """Draw the choices. What the scenario has is always among them, so an empty choice leaves it as it is."""
    from sim.router import ROUTERS

    gpus = {label: found for label, found in inputs.hardware(scenario.model.name).items() if found[1] == scenario.model.dtype}
    kept: Any = {"persist_state": "session", "placeholder": "as it is"}
    chosen = st.multiselect("GPUs", list(gpus), key="plan.gpus", help="profiles of this model, measured or roofline, beside the sidebar's", **kept)
    widths = st.pills("GPUs each", inputs.WIDTHS, selection_mode="multi", key="plan.widths", persist_state="session", help="of roofline GPUs; a measured profile has its own")
    policies = st.multiselect("Prefix cache", inputs.policies(), key="plan.policies", **kept)
    routers = st.multiselect("Router", list(ROUTERS), key="plan.routers", **kept)
    return axes_of(scenario, [gpus[label] for label in chosen if label in gpus], widths, policies, routers)


def axes_of(scenario: Scenario, gpus: Sequence[tuple[str, str, int]], widths: Sequence[int], policies: Sequence[str], routers: Sequence[str]) -> Axes:
    """Key -> values, for each key with more than one: the chosen ones and the scenario's own, sorted, so that the plan's answer, once it is the scenario, asks for the same plan."""
    hardware = scenario.hardware
    fixed = [width for profile, _, width in gpus if not profile.startswith("roofline:")]
    free = widths if any(p.startswith("roofline:") for p in (hardware.profile, *(profile for profile, *_ in gpus))) else ()
    values: dict[str, set[Any]] = {
        "hardware.profile": {hardware.profile, *(profile for profile, *_ in gpus)}, "hardware.tensor_parallel": {hardware.tensor_parallel, *fixed, *free},
        "cache.policy": {scenario.cache.policy, *policies} if scenario.cache.enabled else set(), "cluster.router": {scenario.cluster.router, *routers},
    }  # fmt: skip
    return {key: sorted(found) for key, found in values.items() if len(found) > 1}


def command(axes: Axes) -> tuple[str, ...]:
    return ("plan", *(word for key, values in axes.items() for word in ("--vary", f"{key}={','.join(map(str, values))}")))


def start_of(scenario_toml: str, axes: Axes) -> str:
    """The scenario that a plan begins with: whatever it may choose itself has one and the same value, so it is found again from its own answer."""
    return dumps(_scenario(scenario_toml, ["cluster.replicas=1", *(f"{key}={values[0]}" for key, values in axes.items())]))


def winner(page: Page, plan: Document) -> Scenario | None:
    """The plan's answer as a scenario; None when there is none, or when it is the one on show."""
    if not plan["answer"]["feasible"]:
        return None
    found = _scenario(plan["scenario"])
    return None if found == _scenario(page.shown_toml) else found


def _scenario(toml: str, settings: Sequence[str] = ()) -> Scenario:
    return scenario_from_doc(override(tomllib.loads(toml), settings))


def apply_settings(page: Page, settings: Sequence[str]) -> None:
    """Make the sidebar say the scenario on show with these key=value settings, and run it."""
    try:
        adopt(page, _scenario(page.shown_toml, settings))
    except InputError as error:
        st.toast(plain(str(error)))


def use(page: Page, scenario: Scenario, axes: Axes) -> None:
    """Adopt the plan's answer; the choices stay what they were, so the plan stays in sight."""
    profiles = axes.get("hardware.profile", ())
    labels = [label for label, (profile, *_) in inputs.hardware(scenario.model.name).items() if profile in profiles]
    kept = {"gpus": labels, "widths": axes.get("hardware.tensor_parallel", ()), "policies": axes.get("cache.policy", ()), "routers": axes.get("cluster.router", ())}
    for name, values in kept.items():
        st.session_state[f"plan.{name}"] = [*values]
    adopt(page, scenario)


def adopt(page: Page, scenario: Scenario) -> None:
    inputs.adopt(scenario, scenario.workload.trace or "")
    shell.start(page.runner, inputs.Asked(scenario).toml)


# -- the baseline ------------------------------------------------------------------------------------------------------


def _pin(page: Page, run: Run, place: Any) -> None:
    """Pin the run on show, or say what is pinned and let it go."""
    state = st.session_state
    with place:
        if page.baseline is not None:
            s = page.baseline.summary
            words = "this run" if page.baseline.folder == run.folder else f"{s['name']}, {results.fleet_of(s)}, {page.baseline.scenario.cache.policy}, {page.baseline.scenario.cluster.router}"
            st.caption(plain(f"Baseline: {words}"), width="content")
            st.button("Unpin", key="plan.unpin", on_click=lambda: state.update(pinned=None), type="tertiary")
        if page.baseline is None or page.baseline.folder != run.folder:
            st.button("Pin as baseline" if page.baseline is None else "Pin this run instead", key="plan.pin", on_click=lambda: state.update(pinned=state["job"]), type="tertiary", icon=":material/push_pin:", help=plain(TERMS["change"]))


def command_line(plan: Document) -> str:
    """The command that finds this plan from the scenario on show."""
    axes: dict[str, list[Any]] = {}
    for candidate in plan["candidates"]:
        for key, value in candidate["values"].items():
            axes.setdefault(key, []).append(value)
    return shlex.join(["kvcast", "plan", "scenario.toml", *command({key: sorted(set(values)) for key, values in axes.items()})[1:], "--out", "my-plan"])


def _plan_files(page: Page, found: Document) -> None:
    st.code(command_line(found), language="bash", wrap_lines=True)
    left, right = st.columns(2)
    left.download_button("plan.json", lambda: text.to_json({**found, "scenario": results.portable(found["scenario"])}), "plan.json", "application/json", on_click="ignore", width="stretch", key="plan.plan.json")
    right.download_button("candidates.csv", lambda: candidates_csv(found), "candidates.csv", "text/csv", on_click="ignore", width="stretch", key="plan.candidates.csv")


def candidates_csv(plan: Document) -> str:
    """The table of candidates with its numbers as numbers."""
    import csv
    import io

    rows = [
        {
            **{key: c[key] for key in ("label", "replicas", "gpus", "usd_per_hour", "verdict", "rejected_by", "reason", "stable", "extrapolated", "ttft_ms_p99", "tpot_ms_p99", "run")},
            **{f"attainment_{end}": (c["attainment"] or {}).get(end) for end in ("mean", "low", "high")},
        }
        for c in plan["candidates"]
    ]  # fmt: skip
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["label"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
