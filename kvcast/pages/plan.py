"""The Plan page: can this fleet carry the load, what are the fewest GPUs that can, and what is each number made of?

The one idea: the verdict first, in a sentence for the fleet on show and one for the plan; then four numbers, then
plots, then the tables behind them.

    show(page)
"""

from __future__ import annotations

import functools
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.config import override, scenario_from_doc
from kvcast.jobs import demo
from kvcast.jobs.runner import Job, Runner
from kvcast.pages import answer, results, shell
from kvcast.pages.edit import inputs, settings
from kvcast.pages.results import plain
from kvcast.pages.shell import Page, of_a_run
from kvcast.planner import Options
from kvcast.planner.load import closed_load, unit_of
from kvcast.present.terms import TERMS
from kvcast.present.verdict import MET, OPEN, Verdict, planned, verdict
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from sim.scenario import Scenario
from workloads.errors import InputError
from workloads.mix import resolve

Document = Mapping[str, Any]
Axes = Mapping[str, Sequence[Any]]
FIND, REACH = "Find the fewest GPUs", "How far does this fleet reach?"
SEEDS = (1, 3, 5, 10)
DEFAULT_SEEDS = Options().seeds
AFFINITY = "session-affinity"
WIDER = (1, 2, 4, 8)
"""GPUs a replica to try when no fleet of the given ones will do."""
LOST_TO_ROUTING = 0.05
"""Share of the prompt tokens that are cached on another replica, from which it is said to matter."""


@of_a_run
def show(page: Page, run: Run) -> None:
    apply = functools.partial(apply_change, page)
    st.markdown(plain(question(run)))
    results.box(verdict(run.summary, run.scenario))
    job = _plan(page, run)
    found = job.document() if job else None
    _pin(page, run, results.numbers(run, page.baseline))
    if found:
        answer.classes(found)
        answer.why(found)
        answer.plots(found)
        answer.advice(found, apply)
    results.plots(run)
    if found:
        answer.candidates(found)
        answer.growth(found)
        answer.spare(found)
        answer.launch(found)
    results.tables(run)
    with st.expander("What the numbers rest on"):
        results.assumptions(run)
    st.subheader("Take it away")
    results.reproduce(run, page.shown_toml)
    if job:
        _plan_files(job)


def question(run: Run) -> str:
    s, scenario = run.summary, run.scenario
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    return (
        f"{s['name']}: {_load(s, scenario)} of {scenario.model.name}, {scenario.cluster.router} router, {cache},"
        f" {s['engine_semantics']}, seed {s['seed']}"
    )


def _load(s: Document, scenario: Scenario) -> str:
    """What is offered, and the requests of the window that is judged."""
    closed, window = closed_load(scenario), s["window"]
    if closed is not None:
        offered = f"{closed:,} {unit_of(scenario)}"
    else:
        offered = "one burst" if s["offered_per_s"] is None else f"{s['offered_per_s']:.3g} requests/s"
    warmed = f" after {text.minutes(window['start_s'])} of warm-up" if window["start_s"] else ""
    return f"{offered} ({text.count(s['arrived'])} came in {text.minutes(s['duration'])}{warmed})"


# -- the plan ----------------------------------------------------------------------------------------------------------


def _plan(page: Page, run: Run) -> Job | None:
    """The plan's sentence, or the button that asks for it; what is asked and what may vary stand beside."""
    if run.scenario.slo.attainment is None or run.summary["attainment"] is None:
        st.caption(plain(f"{FIND}: set limits and a target in the sidebar, and run."))
        return None
    sentence, below = st.container(), st.container(horizontal=True, vertical_alignment="center")
    with below.popover(
        "What may vary, seeds",
        help=(
            "what a plan may choose beside the number of replicas, and over how many independent runs it settles its"
            " answer"
        ),
    ):
        fixed = (
            st.segmented_control(
                "Question",
                (FIND, REACH),
                default=FIND,
                key="plan.question",
                label_visibility="collapsed",
                persist_state="session",
            )
            == REACH
        )
        axes = {} if fixed else _ask_axes(_scenario(page.shown_toml))
        seeds = (
            st.segmented_control(
                "Seeds",
                SEEDS,
                default=DEFAULT_SEEDS,
                key="plan.seeds",
                persist_state="session",
                help=(
                    "independent runs that settle the answer, and once more as many where those leave it open; 1: a"
                    " sketch"
                ),
            )
            or DEFAULT_SEEDS
        )
    start = page.shown_toml if fixed else start_of(page.shown_toml, axes)
    job = shell.result(
        replace(page, shown_toml=start),
        below.container(width="stretch"),
        *command(axes, seeds, fixed),
        label=REACH if fixed else FIND,
    )
    if job is None:
        return None
    found = job.document()
    other = winner(page, found)
    results.box(_told(found, other is not None, fixed), sentence)
    if fixed:
        return job
    if other is not None:
        below.button(
            "Use this fleet",
            key="plan.use",
            on_click=use,
            args=(page, other, axes),
            help="set the sidebar to the plan's answer and run it",
        )
    if not found["answer"]["feasible"]:
        _infeasible(page, run, axes, seeds, below)
    return job


def _told(found: Document, another: bool, fixed: bool) -> Verdict:
    told = planned(found)
    if fixed:
        return replace(
            told,
            headline={MET: "This fleet is enough:", OPEN: "This fleet is not shown to be enough:"}.get(
                told.state, "This fleet is too small:"
            ),
        )
    return told if another or told.state != MET else replace(told, headline="This is the fewest:")


def _infeasible(page: Page, run: Run, axes: Axes, seeds: int, place: Any) -> None:
    """Why more replicas may not help, and what may: fewer, wider ones, or sessions that stay where their history is
    cached."""
    label = wider(run)
    if label is not None and "hardware.tensor_parallel" not in axes:
        place.button(
            "Try wider replicas",
            key="plan.wider",
            on_click=plan_also,
            args=(page, seeds),
            kwargs={"gpus": (label,), "widths": WIDER},
            help=plain(f"plan again with {', '.join(map(str, WIDER))} GPUs a replica, their step times from {label}"),
        )
    if has_turns(run) and run.scenario.cluster.router != AFFINITY and "cluster.router" not in axes:
        place.button(
            "Keep sessions on their replica",
            key="plan.affinity",
            on_click=plan_also,
            args=(page, seeds),
            kwargs={"routers": (AFFINITY,)},
            help=plain(
                f"plan again with the router {AFFINITY} too: a session's later requests go where its history is cached"
            ),
        )
    s = run.summary
    hit, ceiling = s["prefix_hit_rate"], s["reuse_ceiling_fleet"]
    if hit is not None and ceiling is not None and ceiling - hit > LOST_TO_ROUTING:
        st.caption(
            plain(
                f"{text.percent(hit)} of the prompt tokens came from the cache, {text.percent(ceiling)} would with one"
                " endless cache for the fleet: each replica computes what another has cached, so more replicas may not"
                " help; fewer, wider ones share more."
            )
        )


def wider(run: Run) -> str | None:
    """The label of the roofline of the run's GPU, whose width is free; None where there is none for its model and
    dtype."""
    from calibrate.sources.roofline import GPUS

    device, model = run.summary["profile_provenance"]["device"]["name"], run.scenario.model
    profiles = [f"roofline:{name}" for name, spec in GPUS.items() if spec.name == device]
    return next(
        (
            label
            for label, (profile, dtype, _) in settings.hardware(model.name).items()
            if profile in profiles and dtype == model.dtype
        ),
        None,
    )


def has_turns(run: Run) -> bool:
    """Whether a session of the run has more than one request."""
    return bool((run.tables["sessions"]["requests"] > 1).any())


def plan_also(page: Page, seeds: int = DEFAULT_SEEDS, **more: Sequence[Any]) -> None:
    """Let the plan choose among more (gpus: labels, widths, routers) as well, and ask for it."""
    state, scenario = st.session_state, _scenario(page.shown_toml)
    for name, values in more.items():
        state[f"plan.{name}"] = [*dict.fromkeys([*(state.get(f"plan.{name}") or ()), *values])]
    gpus, chosen = (
        settings.hardware(scenario.model.name),
        {name: state.get(f"plan.{name}") or () for name in ("gpus", "widths", "policies", "routers")},
    )
    axes = axes_of(
        scenario,
        [gpus[label] for label in chosen["gpus"] if label in gpus],
        chosen["widths"],
        chosen["policies"],
        chosen["routers"],
    )
    try:
        page.runner.submit(start_of(page.shown_toml, axes), *command(axes, seeds))
    except InputError as error:
        st.toast(plain(str(error)))


def _ask_axes(scenario: Scenario) -> Axes:
    """Draw the choices. What the scenario has is always among them, so an empty choice leaves it as it is."""
    from sim.fleet.router import ROUTERS

    gpus = {
        label: found
        for label, found in settings.hardware(scenario.model.name).items()
        if found[1] == scenario.model.dtype
    }
    kept: Any = {"persist_state": "session", "placeholder": "as it is"}
    chosen = st.multiselect(
        "GPUs",
        list(gpus),
        key="plan.gpus",
        help="profiles of this model, measured or roofline, beside the sidebar's",
        **kept,
    )
    widths = st.pills(
        "GPUs each",
        inputs.WIDTHS,
        selection_mode="multi",
        key="plan.widths",
        persist_state="session",
        help="of roofline GPUs; a measured profile has its own",
    )
    policies = st.multiselect("Prefix cache", inputs.policies(), key="plan.policies", **kept)
    routers = st.multiselect("Router", list(ROUTERS), key="plan.routers", **kept)
    return axes_of(scenario, [gpus[label] for label in chosen if label in gpus], widths, policies, routers)


def axes_of(
    scenario: Scenario,
    gpus: Sequence[tuple[str, str, int]],
    widths: Sequence[int],
    policies: Sequence[str],
    routers: Sequence[str],
) -> Axes:
    """Key -> values, for each key with more than one: the chosen ones and the scenario's own, sorted, so that the
    plan's answer, once it is the scenario, asks for the same plan."""
    hardware = scenario.hardware
    fixed = [width for profile, _, width in gpus if not profile.startswith("roofline:")]
    free = (
        widths if any(p.startswith("roofline:") for p in (hardware.profile, *(profile for profile, *_ in gpus))) else ()
    )
    values: dict[str, set[Any]] = {
        "hardware.profile": {hardware.profile, *(profile for profile, *_ in gpus)},
        "hardware.tensor_parallel": {hardware.tensor_parallel, *fixed, *free},
        "cache.policy": {scenario.cache.policy, *policies} if scenario.cache.enabled else set(),
        "cluster.router": {scenario.cluster.router, *routers},
    }
    return {key: sorted(found) for key, found in values.items() if len(found) > 1}


def command(axes: Axes, seeds: int = DEFAULT_SEEDS, fixed: bool = False) -> tuple[str, ...]:
    varied = (word for key, values in axes.items() for word in ("--vary", f"{key}={','.join(map(str, values))}"))
    return (
        "plan",
        *varied,
        *(("--seeds", str(seeds)) if seeds != DEFAULT_SEEDS else ()),
        *(("--fixed",) if fixed else ()),
    )


def start_of(scenario_toml: str, axes: Axes) -> str:
    """The scenario that a plan begins with: whatever it may choose itself has one and the same value, so it is found
    again from its own answer."""
    return dumps(
        _scenario(scenario_toml, ["cluster.replicas=1", *(f"{key}={values[0]}" for key, values in axes.items())])
    )


def prepare(runner: Runner) -> Job:
    """The bundled example's plan, in the background: it takes a minute, and the first page shows how far it is."""
    return runner.submit(start_of(dumps(demo.scenario()), {}), *command({}))


def winner(page: Page, plan: Document) -> Scenario | None:
    """The scenario on show with the plan's answer; None when there is none, or when it is the one on show. The plan's
    own scenario has its window in numbers."""
    answered = plan["answer"]
    if not answered["feasible"]:
        return None
    found = _scenario(
        page.shown_toml,
        [f"cluster.replicas={answered['replicas']}", *(f"{key}={value}" for key, value in answered["values"].items())],
    )
    return None if found == _scenario(page.shown_toml) else found


def _scenario(toml: str, settings: Sequence[str] = ()) -> Scenario:
    return scenario_from_doc(override(tomllib.loads(toml), settings))


def apply_change(page: Page, change: Document) -> None:
    """Make the sidebar say the scenario on show with a change of the plan's advice, and run it."""
    try:
        adopt(page, _with_classes_of(_scenario(page.shown_toml, change["set"]), _scenario(change["scenario"])))
    except InputError as error:
        st.toast(plain(str(error)))


def _with_classes_of(scenario: Scenario, changed: Scenario) -> Scenario:
    """A preset's classes have no key to set: where the change has others, its mix."""
    if scenario.workload.trace is not None:
        return scenario
    mine, theirs = resolve(scenario.workload), resolve(changed.workload)
    return (
        scenario
        if mine.class_ == theirs.class_
        else replace(scenario, workload=replace(mine, preset=None, class_=theirs.class_))
    )


def use(page: Page, scenario: Scenario, axes: Axes) -> None:
    """Adopt the plan's answer; the choices stay what they were, so the plan stays in sight."""
    profiles = axes.get("hardware.profile", ())
    labels = [label for label, (profile, *_) in settings.hardware(scenario.model.name).items() if profile in profiles]
    kept = {
        "gpus": labels,
        "widths": axes.get("hardware.tensor_parallel", ()),
        "policies": axes.get("cache.policy", ()),
        "routers": axes.get("cluster.router", ()),
    }
    for name, values in kept.items():
        st.session_state[f"plan.{name}"] = [*values]
    adopt(page, scenario)


def adopt(page: Page, scenario: Scenario) -> None:
    settings.adopt(scenario, scenario.workload.trace or "")
    shell.start(page.runner, inputs.Asked(scenario).toml)


# -- the baseline ------------------------------------------------------------------------------------------------------


def _pin(page: Page, run: Run, place: Any) -> None:
    """Pin the run on show, or say what is pinned and let it go."""
    state = st.session_state
    with place:
        if page.baseline is not None:
            s = page.baseline.summary
            words = (
                "this run"
                if page.baseline.folder == run.folder
                else (
                    f"{s['name']}, {results.fleet_of(s)}, {page.baseline.scenario.cache.policy},"
                    f" {page.baseline.scenario.cluster.router}"
                )
            )
            st.caption(plain(f"Baseline: {words}"), width="content")
            st.button("Unpin", key="plan.unpin", on_click=lambda: state.update(pinned=None), type="tertiary")
        if page.baseline is None or page.baseline.folder != run.folder:
            st.button(
                "Pin as baseline" if page.baseline is None else "Pin this run instead",
                key="plan.pin",
                on_click=lambda: state.update(pinned=state["job"]),
                type="tertiary",
                icon=":material/push_pin:",
                help=plain(TERMS["change"]),
            )


def command_line(asked: Sequence[str]) -> str:
    """The command that finds this plan from the scenario on show."""
    return shlex.join(["kvcast", "plan", "scenario.toml", *asked[1:], "--out", "my-plan"])


def _plan_files(job: Job) -> None:
    found = job.document()
    st.code(command_line(job.command), language="bash", wrap_lines=True)
    files: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("plan.json", "application/json", lambda: text.to_json(portable(found))),
        ("candidates.csv", "text/csv", lambda: candidates_csv(found)),
        ("plan.html", "text/html", lambda: as_html(job)),
    )
    for place, (name, mime, content) in zip(st.columns(len(files)), files, strict=True):
        place.download_button(name, content, name, mime, on_click="ignore", width="stretch", key=f"plan.{name}")


def portable(plan: Document) -> Document:
    """The plan without paths of the server."""
    advice = plan["advice"] and [{**row, "scenario": results.portable(row["scenario"])} for row in plan["advice"]]
    return {**plan, "scenario": results.portable(plan["scenario"]), "advice": advice}


def as_html(job: Job) -> str:
    """The page that `kvcast report` writes of a plan: with what its answer rests on where the runs were kept."""
    from kvcast.present.html_report import of_folder, of_plan

    return of_folder(job.folder) if (job.folder / "plan.json").is_file() else of_plan(job.document())


def candidates_csv(plan: Document) -> str:
    """The table of candidates with its numbers as numbers."""
    import csv
    import io

    keys = (
        "label",
        "replicas",
        "gpus",
        "usd_per_hour",
        "verdict",
        "rejected_by",
        "class",
        "runs",
        "reason",
        "stable",
        "extrapolated",
        "ttft_ms_p99",
        "tpot_ms_p99",
        "run",
    )
    rows = [
        {
            **{key: c[key] for key in keys},
            **{f"attainment_{end}": c["attainment"][end] for end in ("mean", "low", "high")},
        }
        for c in plan["candidates"]
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["label"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
