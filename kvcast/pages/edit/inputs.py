"""The sidebar: workload, model, GPU, fleet, cache, limits, price. Widgets in, a checked Scenario out.

The one idea: the session holds a scenario (kvcast.pages.edit.settings); a widget shows one of its keys and changes that
key, with the schema's text as help, so what has no widget (tiers, a warm-up) stays as it was given and the page has no
settings of its own. An empty limit is no limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from kvcast.config import scenario_from_doc
from kvcast.jobs import allowed, link
from kvcast.jobs.runner import UPLOAD_LIMIT_BYTES, UPLOAD_TYPES, Job, Runner
from kvcast.pages.edit import choices, pools, scaling
from kvcast.pages.edit.plain import plain
from kvcast.pages.edit.settings import (
    CACHE_OFF,
    DEMO,
    ENGINE,
    TRACE,
    UPLOAD,
    demo,
    limits_of,
    mix_is,
    mix_of,
    to_ms,
    to_s,
)
from kvcast.pages.edit.widgets import about, hint, number, select
from kvcast.scenario.toml import dumps
from sim.scenario import CacheConfig, ClusterConfig, CostConfig, EngineConfig, Scenario, SloClass, SloConfig
from workloads.config import WorkloadConfig
from workloads.errors import InputError

READING = "the trace is being read"


@dataclass(frozen=True)
class Asked:
    """What the widgets say: a scenario, or the one line about what is wrong with them."""

    scenario: Scenario | None
    problem: str = ""

    @property
    def toml(self) -> str:
        return "" if self.scenario is None else dumps(self.scenario)


# -- asking
# --------------------------------------------------------------------------------------------------------------


def ask(runner: Runner) -> Asked:
    """Draw every input and check what they say."""
    state = st.session_state
    for key, value in state.get("kept", {}).items():
        if key not in state:  # Streamlit forgets a widget whose page changed before the browser had told its value
            state[key] = value
    asked = _asked(runner)
    state["kept"] = {key: state[key] for key in _keys() if key in state}
    return asked


def _keys() -> list[str]:
    """The session's keys that the sidebar's widgets hold."""
    limits = [str(key) for key in st.session_state if str(key).startswith("slo.")]
    return [
        "workload",
        "rate_scale",
        "replicas",
        "policy",
        "router",
        "target",
        *choices.keys(),
        *ENGINE,
        *scaling.KEYS,
        *limits,
    ]


def _asked(runner: Runner) -> Asked:
    base: Scenario = st.session_state["base"]
    _workload_choice(runner)
    workload, name = workload_asked(base)
    slo, cost = _slo(base, slo_names())
    sections, standing = _system(base, runner)
    scenario = replace(base, name=name, slo=slo, cost=cost, **sections)
    try:
        for problem in ("workload.problem", scaling.PROBLEM):
            if st.session_state[problem]:
                raise InputError(st.session_state[problem])
        if workload is None:
            raise InputError("upload a trace in the sidebar, or choose a bundled mix")
        _check_read(runner)
        if choices.missing():
            raise InputError("upload a config.json in the sidebar, or choose a bundled model")
        asked = _checked(replace(scenario, workload=workload))
        if standing is not None:
            choices.tell(asked, standing)
        return Asked(asked)
    except InputError as error:
        return Asked(None, str(error).removeprefix("settings: "))


def workload_asked(base: Scenario) -> tuple[WorkloadConfig | None, str]:
    """The [workload] section that the widgets say, and the run's label; None while a trace is to be uploaded."""
    choice, scale = st.session_state["workload"], float(st.session_state["rate_scale"])
    if choice == TRACE:
        path = st.session_state["workload.trace"]
        kept = base.workload if base.workload.trace else WorkloadConfig()
        name = allowed.trace_name(path) or "uploaded trace"
        return (replace(kept, trace=path, rate_scale=scale) if path else None), name
    if mix_is(st.session_state["workload.mix"], choice):
        asked, name = WorkloadConfig(preset=choice, rate_scale=scale), demo().name if choice == DEMO else choice
    else:
        asked, name = replace(st.session_state["workload.mix"], rate_scale=scale), f"{choice}, edited"
    return asked, base.name if asked == base.workload and base.name else name


def slo_names() -> list[str]:
    """SLO classes that the mix names."""
    if st.session_state["workload"] == TRACE:
        return []
    return list(dict.fromkeys(c.slo_class for c in st.session_state["workload.mix"].class_ if c.slo_class))


def limited(slo_class: str) -> str:
    """Whom the limits of an SLO class are for, by the names that the mix's table has."""
    classes = st.session_state["workload.mix"].class_ if st.session_state["workload"] != TRACE else ()
    return ", ".join(c.name for c in classes if c.slo_class == slo_class) or slo_class


def reading(runner: Runner, path: str) -> Job:
    """The job that reads an uploaded trace: `kvcast workload describe`, whose document is the reading report."""
    asked = dumps(Scenario(WorkloadConfig(trace=path))), "workload", "describe"
    return runner.existing(*asked) or runner.submit(*asked)


def _check_read(runner: Runner) -> None:
    """Raise InputError unless the trace, where there is one, has been read."""
    if st.session_state["workload"] != TRACE:
        return
    job = reading(runner, st.session_state["workload.trace"])
    if job.running:
        raise InputError(READING)
    if not job.done:
        raise InputError(job.failure())


def check_mix(config: WorkloadConfig) -> None:
    """Raise InputError when the mix cannot be simulated."""
    _checked(replace(demo(), workload=config, slo=SloConfig()))


def _checked(scenario: Scenario) -> Scenario:
    """The scenario, as the command line would read it from a file."""
    import tomllib

    from workloads.mix import resolve

    if scenario.workload.class_:
        resolve(scenario.workload)
    doc = tomllib.loads(dumps(scenario))
    ours = {"workload": "trace", "model": "config"}  # uploaded, or named where the dashboard was started
    strict = {
        section: {key: value for key, value in table.items() if key != ours.get(section)}
        if isinstance(table, dict)
        else table
        for section, table in doc.items()
    }
    link.harmless(strict, "settings", policies())
    return scenario_from_doc(doc, "settings")


def _workload_choice(runner: Runner) -> None:
    from workloads.toml import list_presets

    names = [DEMO, *(name for name in list_presets() if name != DEMO), TRACE]
    choice = select(
        st,
        "Workload",
        names,
        "workload",
        on_change=_another_workload,
        help="a bundled mix, which the Workload page edits, or a trace of yours",
    )
    if choice == TRACE:
        _trace_choice(runner)
    number(
        st,
        "Load (× the workload's own rate)",
        0.01,
        1000.0,
        "rate_scale",
        step=0.1,
        help=hint(WorkloadConfig, "rate_scale"),
    )


def _trace_choice(runner: Runner) -> None:
    """The server's own traces by name, where it has any, or an upload."""
    named = allowed.traces()
    told = "named where the dashboard was started, of any size; or a file of yours"
    options = [UPLOAD, *named]
    if named and select(st, "Trace", options, "workload.named", on_change=_named, help=told) != UPLOAD:
        return
    st.file_uploader(
        "Trace file",
        key="trace",
        type=[suffix.rsplit(".", 1)[-1] for suffix in UPLOAD_TYPES],
        on_change=_uploaded,
        args=(runner,),
        max_upload_size=UPLOAD_LIMIT_BYTES >> 20,
        help=(
            "Mooncake JSONL, Weka sessions, ServeGen clients (JSON, .tar.xz), Azure, BurstGPT, Vidur or splitwise CSV,"
            f" token ids; at most {UPLOAD_LIMIT_BYTES >> 20} MiB. The format is recognised from the content."
        ),
    )


def _named() -> None:
    state = st.session_state
    state["workload.trace"], state["workload.problem"] = allowed.traces().get(state["workload.named"], ""), ""


def _uploaded(runner: Runner) -> None:
    """Keep the uploaded trace and start reading it; none when it was taken away."""
    state = st.session_state
    upload, state["workload.problem"], state["workload.trace"] = state["trace"], "", ""
    if upload is None:
        return
    try:
        state["workload.trace"] = str(runner.keep_upload(upload.name, upload.getvalue()))
        reading(runner, state["workload.trace"])
    except InputError as error:
        state["workload.problem"] = str(error)


def _another_workload() -> None:
    """A preset starts with its own mix, and the demo with its limits; whatever else, limits are asked for afresh."""
    from workloads.toml import load_preset

    choice = st.session_state["workload"]
    if choice != TRACE:
        mix_of(load_preset(choice))
        st.session_state["workload"] = choice
    slo = demo().slo if choice == DEMO else SloConfig()
    for name in [key for key in st.session_state if str(key).startswith("slo.")]:
        st.session_state[name] = None
    for name, limit in limits_of(slo):
        st.session_state[f"slo.{name}.ttft"], st.session_state[f"slo.{name}.tpot"] = (
            to_ms(limit.ttft_s),
            to_ms(limit.tpot_s),
        )
    st.session_state["target"] = None if slo.attainment is None else 100 * slo.attainment
    st.session_state["base"] = replace(st.session_state["base"], slo=slo, workload=WorkloadConfig(preset=DEMO))


def _system(base: Scenario, runner: Runner) -> tuple[dict[str, Any], Any]:
    """The [model], [hardware], [[pool]], [cluster], [cache] and [engine] sections, and where to say what they rest
    on; None where pools say so themselves."""
    from sim.fleet.router import ROUTERS

    mixed = st.session_state[pools.POOLS]
    given = replace(base, model=choices.model(base, runner), pool=mixed)
    hardware, standing = (base.hardware, None) if mixed else choices.hardware(given)
    left, right = (None, st) if mixed else st.columns([5, 6], gap="xsmall")
    replicas = (
        number(left, "Replicas", 1, 512, "replicas", help=hint(ClusterConfig, "replicas"))
        if left is not None
        else pools.cluster_replicas(base)
    )
    place = st.container()  # above the router: it is drawn below, when the engine is known
    router = select(right, "Router", list(ROUTERS), "router", help=hint(ClusterConfig, "router"))
    policy = select(
        st,
        "Prefix cache",
        [*policies(), CACHE_OFF],
        "policy",
        help=f"{hint(CacheConfig, 'policy')}; off: no prefix caching",
    )
    sections: dict[str, Any] = {
        "model": given.model,
        "hardware": hardware,
        "pool": mixed,
        "cluster": replace(base.cluster, replicas=replicas, router=router),
        "cache": _cache(base.cache, policy),
        "engine": replace(base.engine, **_engine(bool(mixed))),
    }
    with place:
        sections["autoscale"] = scaling.draw(base)
        (pools.draw if mixed else pools.offer)(replace(base, **sections, cost=choices.cost_of_pools(base)))
    return sections, standing


def policies() -> list[str]:
    """Ids of the policies a page may use: the bundled ones, and own ones named where the dashboard was started."""
    from sim.simulate import POLICY_NAMES

    return [*POLICY_NAMES, *allowed.policies()]


def _cache(base: CacheConfig, policy: str) -> CacheConfig:
    if policy == CACHE_OFF:
        return replace(base, enabled=False, tiers=())
    return replace(base, enabled=True, policy=policy, policy_params=base.policy_params if policy == base.policy else {})


def _engine(mixed: bool) -> dict[str, Any]:
    """mixed: of pools, whose KV blocks are each GPU's own."""
    with st.expander("Engine"):
        places = st.columns(2)
        values: dict[str, Any] = {}
        shown = {name: told for name, told in ENGINE.items() if not (mixed and name == "kv_blocks")}
        for i, (name, (label, empty)) in enumerate(shown.items()):
            limit, default = about(EngineConfig, name)["limit"], getattr(EngineConfig, name)
            kind, step = (float, 0.01) if isinstance(default, float) else (int, 1)
            values[name] = number(
                places[i % 2],
                label,
                kind(limit.low),
                kind(limit.high),
                name,
                step=step,
                help=hint(EngineConfig, name),
                placeholder=empty or "",
            )
        return {name: value for name, value in values.items() if value is not None or ENGINE[name][1]}


def _slo(given: Scenario, names: list[str]) -> tuple[SloConfig, CostConfig]:
    """The [slo] and [cost] sections: a row for everyone and one for each SLO class of the mix; an empty field is no
    limit."""
    st.markdown(
        "**Limits** (ms; empty: none)",
        help=(
            "A request is good when it meets every limit of its SLO class; a class without limits of its own has those"
            " of everyone."
        ),
    )
    base, limits = given.slo, {}
    for name in ["", *names]:
        left, right = st.columns(2)
        who = f" {limited(name)}" if name else " all" if names else ""
        values = []
        for place, metric in ((left, "ttft"), (right, "tpot")):
            key = f"slo.{name}.{metric}"
            st.session_state.setdefault(key, None)
            values.append(
                to_s(
                    number(
                        place,
                        plain(f"{metric.upper()}{who}"),
                        0.001,
                        None,
                        key,
                        step=10.0,
                        format="%g",
                        help=hint(SloConfig, f"{metric}_s"),
                        placeholder="none",
                    )
                )
            )
        before = base.classes.get(name, SloClass()) if name else base
        limits[name] = SloClass(values[0], values[1], before.e2e_s, before.attainment if name else None)
    everyone = limits.pop("")
    left, right = st.columns(2)
    target = number(
        left, "Target (%)", 0.1, 100.0, "target", step=1.0, help=hint(SloConfig, "attainment"), placeholder="none"
    )
    cost = choices.cost_of_pools(given) if st.session_state[pools.POOLS] else choices.cost(right)
    held = [
        f"{name or 'all'} {limit.e2e_s:g} s"
        for name, limit in {"": everyone, **limits}.items()
        if limit.e2e_s is not None
    ]
    if held:
        st.caption(plain(f"End-to-end limits of the scenario: {', '.join(held)}"))
    slo = SloConfig(
        everyone.ttft_s,
        everyone.tpot_s,
        everyone.e2e_s,
        None if target is None else round(target / 100, 8),
        base.attained_by,
        {name: limit for name, limit in limits.items() if limit != SloClass()},
    )
    return slo, cost
