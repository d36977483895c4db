"""The Calibration page: what the step times are made of, how well they predict what was measured, and where this run
leaves that range.

The one idea: everything is recomputed from the profile's own points and the run on show; the accuracy statement quotes
limits that `kvcast validate` enforces.

    show(page)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import streamlit as st

from kvcast import figures, text
from kvcast.jobs.runner import ROOT
from kvcast.pages.results import mark_of, plain, plot
from kvcast.pages.shell import Page, of_a_run
from kvcast.present.profile_diff import STEPS
from kvcast.present.profile_report import calibration_lines, is_calibrated
from kvcast.present.terms import TERMS
from kvcast.present.verdict import model_of
from kvcast.present.verdict_text import EXTRAPOLATED_LIMIT
from kvcast.store.runs import Run
from kvcast.trust import accuracy, pooled, step_fit

if TYPE_CHECKING:
    from calibrate.profile import DeviceProfile

Document = Mapping[str, Any]
NOBODY = "no other"


@dataclass(frozen=True)
class Basis:
    """A run's profile, its points read back, with what they predict."""

    profile: DeviceProfile
    step_time: Any  #: calibrate.latency.StepTime
    left_out: list[step_fit.Step]
    memory: dict[str, float]  #: GiB of one GPU by use
    kv_tokens: int  #: of a replica


@of_a_run
def show(page: Page, run: Run) -> None:
    _sentence(run)
    pools = run.summary.get("pools") or ()
    pool = _chosen(pools) if pools else None
    basis = basis_of(str(run.folder), run.info["written_at"], pool, run)
    if pool is None:
        _cards(run, basis)
        _coverage(run, basis)
    else:
        plot(st.container(), figures.coverage(run.summary), TERMS["coverage"])
        run = of_pool(run, pool)
    _fit(basis)
    _accuracy(run)
    _curves(basis)
    _memory(run, basis)
    _provenance(run, basis)


def _chosen(pools: Sequence[Document]) -> int:
    """Which pool of the fleet is told of."""
    names = [pool["pool"] for pool in pools]
    st.caption("Step times, fit and memory are of one pool; the share in the measured range is of the whole fleet.")
    key = "calibration.pool"
    if st.session_state.get(key) not in range(len(names)):
        st.session_state[key] = 0
    return int(
        st.segmented_control(
            "Pool",
            range(len(names)),
            format_func=lambda i: plain(names[i]),
            key=key,
            required=True,
            label_visibility="collapsed",
        )
        or 0
    )


def of_pool(run: Run, pool: int) -> Run:
    """The run with the scenario, the KV memory and the evidence of one of its pools in place of the fleet's."""
    from kvcast import api
    from kvcast.trust.evidence import speaks_for

    kind, row = api.resolve(run.scenario).kinds[pool], run.summary["pools"][pool]
    own = {
        **{key: row[key] for key in ("kv_blocks", "kv_usage_peak")},
        "kv_arithmetic": pooled.lines_of_pool(run.summary, pool),
        "profile_provenance": kind.profile.describe(),
        "measured_servers": speaks_for(kind).as_document(),
    }
    return replace(run, scenario=kind.scenario, summary={**run.summary, **own})


@st.cache_resource(max_entries=8, show_spinner=False)
def basis_of(folder: str, written_at: str, pool: int | None, _run: Run) -> Basis:
    """pool: whose, of a fleet with pools."""
    from kvcast import api

    resolved = api.resolve(_run.scenario)
    if pool is not None:
        resolved, _run = resolved.kinds[pool], of_pool(_run, pool)
    return Basis(
        resolved.profile,
        resolved.step_time(),
        step_fit.left_out(resolved.profile),
        memory_of(resolved, _run.summary),
        resolved.memory.tokens(_run.summary["kv_blocks"]),
    )


def memory_of(resolved: Any, s: Document) -> dict[str, float]:
    """GiB of one GPU by use; KV in use is the fullest replica's peak."""
    from calibrate.memory import GIB

    whole = resolved.profile.memory_gib
    kv = s["kv_blocks"] * resolved.memory.block_bytes / GIB
    used = kv * (s["kv_usage_peak"] or 0.0)
    parts = {
        "weights": resolved.memory.weights / GIB,
        "overhead": resolved.memory.overhead / GIB,
        "KV in use, peak": used,
        "KV, cached or free": kv - used,
    }
    rest = whole - sum(parts.values())
    outside = min(max(rest, 0.0), whole * (1 - resolved.scenario.engine.gpu_memory_utilization))
    return parts | {"left to others by the memory share": outside, "unused": max(rest - outside, 0.0)}


# -- the verdict on the profile ----------------------------------------------------------------------------------------


def _sentence(run: Run) -> None:
    s = run.summary
    profile, outside = s["profile_provenance"], s["coverage"]["extrapolated"]
    told = f"**{plain(profile['id'])}**: {plain(profile['label'])}."
    if profile["kind"] == "roofline":
        st.warning(
            f"{told} Nothing was measured: compare variants with it, do not quote its latencies.",
            icon=":material/warning:",
        )
    elif outside > EXTRAPOLATED_LIMIT:
        st.warning(
            f"{told} {plain(text.percent(outside))} of this run's simulated time lies outside the range the profile was"
            " made from.",
            icon=":material/warning:",
        )
    else:
        st.success(
            f"{told} {plain(text.percent(1 - outside))} of this run's simulated time lies inside the range the profile"
            " was made from.",
            icon=":material/check_circle:",
        )


def _cards(run: Run, basis: Basis) -> None:
    s, profile = run.summary, basis.profile
    fit = step_fit.summary(basis.left_out)
    st.caption(
        plain(
            f"{profile.device['name']}, {profile.memory_gib:g}"
            f" GiB{f', {profile.tensor_parallel} GPUs a replica' if profile.tensor_parallel > 1 else ''};"
            f" {model_of(run.scenario)}, {profile.dtype} weights, {run.scenario.model.kv_dtype} KV; hash"
            f" {s['profile_hash'].removeprefix('sha256:')[:12]}"
        ),
        help=plain(TERMS["profile"]),
    )
    places = st.columns(3)
    _card(
        places[0],
        "In measured range",
        text.percent(1 - s["coverage"]["extrapolated"]) + mark_of(s),
        TERMS["coverage"],
        f"{text.percent(s['coverage']['measured'])} on a point, {text.percent(s['coverage']['interpolated'])} between"
        " points",
    )
    worst = max((row["mean"] for row in fit.values()), default=None)
    told = (
        ", ".join(f"{kind} {text.percent(row['mean'])}" for kind, row in fit.items())
        or "nothing measured to compare with"
    )
    _card(places[1], "Error between points", text.percent(worst), TERMS["left_out"], f"on average: {told}")
    _card(
        places[2],
        "KV tokens a replica",
        text.count(basis.kv_tokens),
        TERMS["kv_arithmetic"],
        f"{text.count(s['kv_blocks'])} blocks of {s['block_size']}",
    )


def _card(place: Any, label: str, value: str, help_text: str, below: str) -> None:
    with place.container(border=True, gap="xxsmall", height="stretch"):
        st.metric(label, value, help=plain(help_text))
        st.caption(plain(below))


# -- the range and the fit ---------------------------------------------------------------------------------------------


def _coverage(run: Run, basis: Basis) -> None:
    s = run.summary
    left, right = st.columns([2, 3])
    plot(left, figures.coverage(s), TERMS["coverage"])
    for name, meaning in accuracy.MEANING.items():
        left.caption(f"**{name}**: {plain(meaning)}")
    if basis.profile.kind == "tables":
        requests = run.tables["requests"]
        longest = (
            int((requests["prompt_tokens"] + requests["output_tokens"]).max()) if len(requests["prompt_tokens"]) else 0
        )
        plot(right, figures.covered(basis.profile.points, s, run.tables["timeline"], longest), TERMS["covered"])
    else:
        right.caption("A roofline has no measured range: every step is computed from the datasheet.")


def _fit(basis: Basis) -> None:
    if not basis.left_out:
        return
    left, right = st.columns(2)
    plot(left, figures.predicted_against_measured(basis.left_out), TERMS["left_out"])
    plot(right, figures.residuals(basis.left_out), TERMS["left_out"])
    told = "; ".join(
        f"{kind}: {row['points']} steps, {text.percent(row['mean'])} on average, {text.percent(row['worst'])} at worst"
        for kind, row in step_fit.summary(basis.left_out).items()
    )
    st.caption(
        plain(
            f"{told}. Each point was left out and predicted from half of the others, so a simulation, which has them"
            " all, errs less."
        )
    )


def _curves(basis: Basis) -> None:
    if basis.profile.kind != "tables":
        return
    left, right = st.columns(2)
    plot(left, figures.decode_curves(basis.step_time, basis.profile.points), TERMS["step_time"])
    plot(right, figures.prefill_curve(basis.step_time, basis.profile.points), TERMS["step_time"])


def _accuracy(run: Run) -> None:
    s = run.summary
    st.header("How accurate is this?", help=plain(TERMS["accuracy"]))
    for line in accuracy.statement(s["profile_provenance"], s["coverage"], s.get("measured_servers")):
        st.markdown(f"- {plain(line)}")
    with st.expander("Every comparison with recorded truth (docs/validation.md)"):
        st.markdown(validation_table())


@st.cache_data(show_spinner=False)
def validation_table() -> str:
    """The table of docs/validation.md, its links as plain words."""
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(rows))


# -- memory and provenance ---------------------------------------------------------------------------------------------


def _memory(run: Run, basis: Basis) -> None:
    st.header("KV memory of a replica", help=plain(TERMS["kv_arithmetic"]))
    plot(st.container(), figures.gpu_memory(basis.memory), TERMS["kv_arithmetic"])
    s = run.summary
    st.code("\n".join(s["kv_arithmetic"]) or f"{s['kv_blocks']:,} blocks, as given", language=None, wrap_lines=True)


def _provenance(run: Run, basis: Basis) -> None:
    st.header("Where the numbers come from")
    if evidence := run.summary.get("measured_servers"):  # a folder of an older kvcast has none
        st.markdown(plain(evidence["words"]))
    profile = basis.profile
    rows = [
        {"": key.replace("_", " "), "provenance": str(value)}
        for key, value in profile.provenance.items()
        if not isinstance(value, list)
    ]
    st.dataframe([*rows, {"": "content hash", "provenance": profile.content_hash}], hide_index=True, width="stretch")
    for key, value in profile.provenance.items():
        for line in value if isinstance(value, list) else ():
            st.caption(f"{plain(key)}: {plain(str(line))}")
    if is_calibrated(profile):
        st.code("\n".join(calibration_lines(profile)), language=None, wrap_lines=True)
    st.code(f"kvcast profile show {run.scenario.hardware.profile.rsplit('/', 1)[-1]}", language="bash")
    others = alike(profile)
    if not others:
        return
    other = st.selectbox(
        "Compare its step times with another profile of this model",
        [NOBODY, *others],
        key="calibration.other",
        persist_state="session",
    )
    if other != NOBODY:
        st.dataframe(beside(profile, other), hide_index=True, width="stretch")


@st.cache_data(show_spinner=False)
def _alike(model: str, identity: str) -> list[str]:
    from calibrate.profile import fitting

    return [one.id for one in fitting(model=model) if one.id != identity]


def alike(profile: DeviceProfile) -> list[str]:
    """Bundled profiles of the same model."""
    return [] if profile.model is None else _alike(profile.model, profile.id)


def beside(profile: DeviceProfile, other: str) -> list[dict[str, str]]:
    """Whole steps of two profiles of one model, each at its own width."""
    from calibrate.latency import step_time
    from calibrate.models import resolve_model
    from calibrate.profile import bundled_profile

    them = bundled_profile(other)
    model = resolve_model(str(profile.model))
    mine, theirs = (step_time(p, model, p.dtype, p.tensor_parallel) for p in (profile, them))
    rows = []
    for name, shape in STEPS:
        a, b = mine.step(*shape)[0], theirs.step(*shape)[0]
        rows.append(
            {"step": name, profile.id: text.seconds(a), other: text.seconds(b), "change": f"{100 * (b / a - 1):+.0f} %"}
        )
    return rows
