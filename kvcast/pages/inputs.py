"""The questions: workload, mix, model, GPU, fleet, cache, limits, price. Widgets in, a checked Scenario out.

The one idea: every widget's default comes from the bundled demo scenario and every help text from the schema, so the page
has no settings of its own; an empty limit is no limit.
"""
from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import streamlit as st

from kvcast import text
from kvcast.config import load_scenario, scenario_from_doc
from kvcast.pages import mix
from kvcast.pages.runner import ROOT, UPLOAD_LIMIT_BYTES, UPLOAD_TYPES, Runner
from kvcast.toml import dumps
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, HardwareConfig, ModelConfig, Scenario, SloClass, SloConfig
from workloads.config import WorkloadConfig
from workloads.errors import InputError

DEMO = "demo"
UPLOAD = "upload a trace"
EVERYONE = "everyone"
CACHE_OFF = "off"


@dataclass(frozen=True)
class Asked:
    """What the widgets say: a scenario, or the one line about what is wrong with them."""

    scenario: Scenario | None
    problem: str = ""

    @property
    def toml(self) -> str:
        return "" if self.scenario is None else dumps(self.scenario)


@st.cache_data
def demo() -> Scenario:
    """The bundled example, which the first open shows."""
    return load_scenario(ROOT / "examples" / "demo.toml")


def hint(cls: type, name: str) -> str:
    """The schema's help text of a field."""
    return next(f.metadata["help"] for f in fields(cls) if f.name == name)


def ask(runner: Runner, mix_tab: Any) -> Asked:
    """Draw every input and check what they say; a workload that cannot be used leaves the other inputs in place."""
    problem = ""
    try:
        st.session_state.chosen = _workload(runner, mix_tab)
    except InputError as error:
        problem = str(error)
        mix_tab.text(problem)  # where it can be mended; the answer's tab shows it too
    chosen = st.session_state.get("chosen", Chosen(demo().workload, ""))
    with st.sidebar:
        scenario = replace(demo(), workload=chosen.workload, name=chosen.name, **_system())
        scenario = replace(scenario, slo=_slo(chosen), cost=_cost())
    try:
        return Asked(None, problem) if problem else Asked(_checked(scenario))
    except InputError as error:
        return Asked(None, str(error).removeprefix("settings: "))


def _checked(scenario: Scenario) -> Scenario:
    """The scenario, as the command line would read it from a file."""
    import tomllib

    from workloads.check import check

    if scenario.workload.class_:
        check(scenario.workload)
    return scenario_from_doc(tomllib.loads(dumps(scenario)), "settings")


# -- workload ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """What is to be served."""

    workload: WorkloadConfig
    name: str  #: the run's label
    slo_names: tuple[str, ...] = ()  #: SLO classes that the mix names
    is_demo: bool = False  #: the demo's own limits are the starting point; everything else starts without any


def _workload(runner: Runner, mix_tab: Any) -> Chosen:
    from workloads.toml import list_presets, load_preset

    with st.sidebar:
        names = [DEMO, *(name for name in list_presets() if name != DEMO)]
        choice = st.selectbox("Workload", [*names, UPLOAD], key="workload", help="a bundled mix (edit it in the second tab), or a trace of yours")
        upload = _upload() if choice == UPLOAD else None
        scale = st.number_input("Load (× the workload's own rate)", 0.01, 1000.0, 1.0, 0.1, key="rate_scale", help=hint(WorkloadConfig, "rate_scale"))
    with mix_tab:
        if choice == UPLOAD:
            return Chosen(replace(_trace(runner, upload), rate_scale=scale), "uploaded trace")
        preset = load_preset(choice)
        edited = _edit(choice, preset)
        st.caption("What the mix asks for (means, before simulating):")
        _estimate(replace(edited, rate_scale=scale))
    slo_names = tuple(dict.fromkeys(c.slo_class for c in edited.class_ if c.slo_class))
    if mix.same(edited, preset):
        return Chosen(WorkloadConfig(preset=choice, rate_scale=scale), demo().name if choice == DEMO else choice, slo_names, choice == DEMO)
    return Chosen(replace(edited, rate_scale=scale), f"{choice}, edited", slo_names, choice == DEMO)


def _upload() -> Any:
    return st.file_uploader(
        "Trace file", key="trace", type=[suffix.rsplit(".", 1)[-1] for suffix in UPLOAD_TYPES],
        help=f"Mooncake JSONL, Weka sessions (JSON, .tar.xz), Azure or BurstGPT CSV, token ids; at most {UPLOAD_LIMIT_BYTES >> 20} MiB. The format is recognised from the content.",
    )  # fmt: skip


def _trace(runner: Runner, upload: Any) -> WorkloadConfig:
    """The uploaded trace, after showing its reading report. Raises InputError with the reader's line."""
    if upload is None:
        raise InputError("choose a trace file in the sidebar, or a bundled mix")
    path = runner.keep_upload(upload.name, upload.getvalue())
    document = _described(runner, str(path))
    st.subheader("Reading report")
    for line in document["notes"]:
        st.text(line)
    rows = [
        {"": name, **{stat: text.count(row[stat]) for stat in ("mean", "p50", "p90", "p99", "max")}}
        for name, row in (("prompt tokens", document["prompt_tokens"]), ("output tokens", document["output_tokens"]))
    ]
    st.dataframe(rows, hide_index=True, width="stretch")
    reuse = document["reuse"]
    st.caption(
        f"{text.count(document['requests'])} requests; reusable prefix {text.percent(reuse['reuse_ceiling'])} of the prompt tokens "
        f"(block size {reuse['block_size']}; {reuse['counting_rule']})"
        if reuse["prefix_identity"]
        else f"{text.count(document['requests'])} requests; the trace says nothing about shared text, so every hit rate will be 0 because it is unknown"
    )
    return WorkloadConfig(trace=str(path))


@st.cache_data(show_spinner="reading the trace")
def _described(_runner: Runner, path: str) -> dict:
    return _runner.describe(Path(path))


def _edit(name: str, preset: WorkloadConfig) -> WorkloadConfig:
    """The mix's tables, editable. Their keys hold the preset's name, so that choosing another starts afresh."""
    st.markdown("**Classes**: a class is a kind of session. Add a row for a new one, and its prompt layers below.")
    classes = _table(mix.class_rows(preset), f"classes-{name}", mix.CLASS_COLUMNS, {
        "rate": st.column_config.NumberColumn(format="%.4g", min_value=0.0), "tool_share": st.column_config.NumberColumn(min_value=0.0, max_value=1.0),
        "tenants": st.column_config.NumberColumn(min_value=1, step=1), "isolation": st.column_config.CheckboxColumn(),
    })  # fmt: skip
    st.markdown("**Prompt layers**, in the order the model reads them. Only what comes before the first changed token can be reused.")
    layers = _table(mix.layer_rows(preset), f"layers-{name}", mix.LAYER_COLUMNS, {
        "scope": st.column_config.SelectboxColumn(options=list(mix.LAYER_SCOPES), required=True),
        "items": st.column_config.NumberColumn(min_value=1, step=1), "zipf": st.column_config.NumberColumn(min_value=0.0),
    })  # fmt: skip
    left, right = st.columns(2)
    requests = left.number_input("Stop after about this many requests", 1, 1_000_000, preset.requests, key=f"requests-{name}", help=hint(WorkloadConfig, "requests"), placeholder="no bound")
    duration = right.number_input("Sessions arrive during (s)", 1.0, None, preset.duration_s, key=f"duration-{name}", help=hint(WorkloadConfig, "duration_s"), placeholder="no bound")
    edited = mix.from_rows(preset, classes, layers)
    if mix.same(mix.from_rows(preset, mix.class_rows(preset), mix.layer_rows(preset)), edited):
        edited = replace(preset, preset=None)  # untouched tables: shares stay shares
    return replace(edited, requests=requests, duration_s=duration)


def _table(rows: list[mix.Row], key: str, columns: Mapping[str, tuple[str, str]], kinds: Mapping[str, Any]) -> list[mix.Row]:
    config: dict[str, Any] = {}
    for name, (label, help_text) in columns.items():
        config[name] = dict(kinds.get(name) or st.column_config.TextColumn())
        config[name] |= {"label": label, "help": help_text}
    edited = st.data_editor(_frame(rows), key=key, num_rows="dynamic", hide_index=True, column_config=config, width="stretch")
    return json.loads(edited.to_json(orient="records", double_precision=15))


def _frame(rows: list[mix.Row]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)


def _estimate(config: WorkloadConfig) -> None:
    from workloads.estimate import estimate

    rows = estimate(config)
    total = sum(row["sessions_per_s"] or 0 for row in rows)
    shown = [
        {
            "class": row["class"], "share of sessions": text.percent(row["sessions_per_s"] / total) if row["sessions_per_s"] and total else "",
            "sessions/s": row["sessions_per_s"], "requests/s": row["requests_per_s"], "turns": row["requests_per_session"],
            "first prompt": row["first_prompt_tokens"], "shared layers": row["layer_tokens"], "prompt": row["prompt_tokens"], "output": row["output_tokens"],
        }
        for row in rows
    ]  # fmt: skip
    numbers = {name: st.column_config.NumberColumn(format=form) for name, form in (
        ("sessions/s", "%.3g"), ("requests/s", "%.3g"), ("turns", "%.3g"), ("first prompt", "%.0f"), ("shared layers", "%.0f"), ("prompt", "%.0f"), ("output", "%.0f"))}
    st.dataframe(shown, hide_index=True, width="stretch", column_config=numbers)


# -- system ------------------------------------------------------------------------------------------------------------


def _system() -> dict[str, Any]:
    """The [model], [hardware], [cluster], [cache] and [engine] sections."""
    from calibrate.models import bundled_models
    from sim.router import ROUTERS
    from sim.simulate import POLICY_NAMES

    start = demo()
    models = bundled_models()
    model = st.selectbox("Model", models, models.index(start.model.name), key="model", help=hint(ModelConfig, "name"))
    options = _hardware(model)
    profile, dtype, tensor_parallel = options[st.selectbox("GPU and profile", list(options), key=f"hardware-{model}", help=hint(HardwareConfig, "profile"))]
    left, right = st.columns(2)
    replicas = left.number_input("Replicas", 1, 512, start.cluster.replicas, key="replicas", help=hint(ClusterConfig, "replicas"))
    if profile.startswith("roofline:"):
        widths = (1, 2, 4, 8)
        tensor_parallel = right.selectbox("GPUs each", widths, key="tensor_parallel", help=hint(HardwareConfig, "tensor_parallel"))
    else:
        right.number_input("GPUs each", value=tensor_parallel, disabled=True, help="fixed by the profile")
    policies = [*POLICY_NAMES, CACHE_OFF]
    policy = st.selectbox("Prefix cache", policies, policies.index(start.cache.policy), key="policy", help=f"{hint(CacheConfig, 'policy')}; off: no prefix caching")
    router = st.selectbox("Router", list(ROUTERS), list(ROUTERS).index(start.cluster.router), key="router", help=hint(ClusterConfig, "router"))
    with st.expander("Engine"):
        left, right = st.columns(2)
        block_size = left.number_input("Block size (tokens)", 1, 4096, start.engine.block_size, key="block_size", help=hint(EngineConfig, "block_size"))
        kv_blocks = right.number_input("KV blocks each", 1, None, None, key="kv_blocks", help=hint(EngineConfig, "kv_blocks"), placeholder="what fits")
        num_seqs = left.number_input("Max sequences", 1, None, None, key="max_num_seqs", help=hint(EngineConfig, "max_num_seqs"), placeholder="engine's")
        batched = right.number_input("Tokens per step", 1, None, None, key="max_num_batched_tokens", help=hint(EngineConfig, "max_num_batched_tokens"), placeholder="engine's")
    return {
        "model": replace(start.model, name=model, dtype=dtype),
        "hardware": HardwareConfig(profile, tensor_parallel),
        "cluster": replace(start.cluster, replicas=replicas, router=router),
        "cache": replace(start.cache, enabled=policy != CACHE_OFF, policy=start.cache.policy if policy == CACHE_OFF else policy),
        "engine": replace(start.engine, block_size=block_size, kv_blocks=kv_blocks, max_num_seqs=num_seqs, max_num_batched_tokens=batched),
    }


@st.cache_data
def _hardware(model: str) -> dict[str, tuple[str, str, int]]:
    """Label -> (profile, dtype, tensor parallel): the bundled profiles of the model, the demo's first, then the rooflines."""
    from calibrate.profile import BUNDLED, bundled_profiles, load_profile
    from calibrate.sources.roofline import GPUS

    profiles = [p for p in (load_profile(BUNDLED / f"{name}.json") for name in bundled_profiles()) if p.model in (None, model)]
    profiles.sort(key=lambda p: (p.id != demo().hardware.profile, p.id))
    measured = {f"{p.tensor_parallel} × {p.device['name']} ({p.id})": (p.id, p.dtype, p.tensor_parallel) for p in profiles}
    return measured | {f"{spec.name} (roofline, ±30 %)": (f"roofline:{name}", "bf16", 1) for name, spec in GPUS.items()}


def _slo(chosen: Chosen) -> SloConfig:
    """The [slo] section: a row for everyone and one for each SLO class of the mix; an empty cell is no limit."""
    given = demo().slo if chosen.is_demo else SloConfig()
    rows = [{"who": EVERYONE, **_limit_row(SloClass(given.ttft_s, given.tpot_s, given.e2e_s))}]
    rows += [{"who": n, **_limit_row(given.classes.get(n, SloClass()))} for n in chosen.slo_names]
    st.markdown("**Limits**, ms (empty: no limit)", help="a request is good when it meets every limit of its SLO class; a class without limits of its own has those of everyone")
    number = functools.partial(st.column_config.NumberColumn, format="%g", min_value=0.0, width=75)
    edited = st.data_editor(_frame(rows), key=f"slo-{chosen.is_demo}-{'-'.join(chosen.slo_names)}", hide_index=True, width="stretch", disabled=["who"], column_config={
        "who": st.column_config.TextColumn("SLO class", width=80),
        "ttft": number("TTFT", help=hint(SloConfig, "ttft_s")),
        "tpot": number("TPOT", help=hint(SloConfig, "tpot_s")),
    })  # fmt: skip
    limits = {row["who"]: SloClass(_seconds(row["ttft"]), _seconds(row["tpot"])) for row in json.loads(edited.to_json(orient="records"))}
    everyone = limits.pop(EVERYONE)
    target = st.number_input("Target (% of requests)", 0.1, 100.0, None if given.attainment is None else 100 * given.attainment, 1.0, key=f"target-{chosen.is_demo}", help=hint(SloConfig, "attainment"), placeholder="no target")
    classes = {who: limit for who, limit in limits.items() if any(v is not None for v in asdict(limit).values())}
    return SloConfig(everyone.ttft_s, everyone.tpot_s, None, None if target is None else round(target / 100, 6), classes)


def _limit_row(limit: SloClass) -> dict[str, float | None]:
    return {"ttft": None if limit.ttft_s is None else limit.ttft_s * 1e3, "tpot": None if limit.tpot_s is None else limit.tpot_s * 1e3}


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1e3, 9)


def _cost() -> Any:
    price = st.number_input("Price of a GPU-hour ($)", 0.0, None, demo().cost.gpu_hour_usd, 0.1, key="price", help="yours; empty: GPU-hours only", placeholder="no price")
    return replace(demo().cost, gpu_hour_usd=price)
