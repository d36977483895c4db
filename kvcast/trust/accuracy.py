"""How far a run's step times can be trusted, in words: what the profile was held against, and what it was not.

The one idea: the statement follows from the kind of profile and the run's own coverage, and quotes the limits that
`kvcast validate` enforces, so it cannot promise more than is tested.

    >>> print("\\n".join(statement(run.summary["profile_provenance"], run.summary["coverage"])))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcast import text

MEANING = {
    "measured": "every part of the step lies on a point that was measured",
    "interpolated": "between points that were measured: the usual case",
    "extrapolated": (
        "outside the batches, contexts or lengths that the profile was made from; treat what rests on it with care"
    ),
}
"""Of the coverage of simulated time."""


def statement(
    profile: Mapping[str, Any], coverage: Mapping[str, float] | None = None, servers: Mapping[str, Any] | None = None
) -> list[str]:
    """Lines about a profile (`DeviceProfile.describe()`) and, of a run, the share of simulated time by what it rests
    on, and the measured servers nearest to it (`kvcast.trust.evidence`)."""
    lines = [_kind(profile, servers)]
    if coverage is not None:
        shares = ", ".join(f"{text.percent(coverage[key])} {key}" for key in MEANING)
        lines.append(f"Of the simulated time, {shares}.")
    if servers is not None:
        lines.append(f"{servers['words'][:1].upper()}{servers['words'][1:]}.")
    lines.append(_whole())
    lines.append(
        "Not modelled: network between client and engine, tokenizer time (unless engine.frontend_ms is set), other"
        " users of the GPU, failures."
    )
    return lines


def _kind(profile: Mapping[str, Any], servers: Mapping[str, Any] | None) -> str:
    from kvcast.validation import fit, passes, roofline

    if profile["kind"] == "roofline":
        return (
            "Nothing was measured for this profile: step times follow from datasheet figures. On the GPUs that"
            f" somebody measured, the same model is within {roofline.LIMIT:.0%} on average by GPU and phase; single"
            " steps are up to twice off (kvcast validate roofline). Compare variants with it; do not quote its"
            " latencies."
        )
    if profile["kind"] == "atlas":
        return (
            "Step times are added up from operators that others measured on this GPU, at the model's shapes or between"
            " their neighbours; points.rests_on states the expected error of each (kvcast validate atlas), and whole"
            f" passes are within {passes.MEAN:.0%} on average of the tables' own (kvcast validate passes)."
            + (" This model was not compared with an engine running on this GPU." if not _compared(servers) else "")
        )
    if "measured by kvcast calibrate" in str(profile["label"]):
        return (
            "Step times were measured with kvcast's own kernels on this GPU; the Calibration page and kvcast profile"
            " show give the held-out error of every operator."
        )
    return (
        "Step times are interpolated between operator times that others measured (the provenance names them). Where"
        " every second point was left out and predicted, whole prefill steps were within"
        f" {fit.LIMITS['whole prefill']:.0%} and whole decode steps within {fit.LIMITS['whole decode step']:.0%} on"
        " average (H200, Llama-3.1-8B; kvcast validate fit). This profile was not compared with an engine running on"
        " this GPU."
    )


def _compared(servers: Mapping[str, Any] | None) -> bool:
    """Whether measured servers of the run's own model, GPU and engine are known."""
    return servers is not None and servers["nearness"] == "model"


def _whole() -> str:
    from kvcast.validation import vllm_rtx4090

    return (
        "Request by request the whole simulator was compared with two recorded runs of vLLM, each with its card's own"
        " kernel tables: on an RTX 4090, overloaded and preempting, mean TTFT, TPOT and E2E are held to within"
        f" {vllm_rtx4090.LIMIT:.0%} (kvcast validate vllm-rtx4090); on an RTX PRO 6000 TTFT is beyond that (kvcast"
        " validate vllm-rtx-pro-6000). The engine's scheduling and cache rules are equal step by step to recorded"
        " cases. docs/accuracy.md has every comparison."
    )
