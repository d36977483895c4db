"""A device profile as a person judges it: what was measured, and how well the fits predict it.

The one idea: everything is recomputed from the points in the profile; nothing is taken on trust from its label.

    kvcast profile show profile.json --html profile.html
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.forms import AXES, Form, kernel_of
from calibrate.operators import ELEMENT_BYTES, Point, features
from calibrate.profile import DeviceProfile
from kvcast import text

GIB = 2**30
GOOD, POOR = 0.05, 0.10


def is_calibrated(profile: DeviceProfile) -> bool:
    """Whether the profile keeps its raw points and fits."""
    return "forms" in profile.points and "raw" in profile.points


def calibration_lines(profile: DeviceProfile) -> list[str]:
    """Fits with their errors, spread of the samples, memory, and what is not a measurement."""
    forms, raw = profile.points["forms"], profile.points["raw"]
    rows = []
    for f in forms:
        name = f["op"] + "".join(f" {k}={v}" for k, v in f["kernel"].items())
        parameters = (
            ", ".join(f"{k} {v:.4g}" for k, v in Form.from_json(f).described().items())
            if f["op"] != "activation"
            else ""
        )
        rows.append(
            [
                name,
                str(f["points"]),
                text.percent(f["held_out"]),
                text.percent(f["held_out_interpolation"]),
                _verdict(f),
                parameters,
            ]
        )
    times = [r for r in raw if r[0] in AXES and r[2] > 0]
    spread = float(np.median([r[3] / r[2] for r in times]))
    lines = [f"{len(raw)} points; half of them repeat within {100 * spread:.1f} % (inter-quartile range)", ""]
    lines += [text.table(["operator", "points", "form", "between", "", "fitted parameters"], rows), ""]
    lines.append(
        "form: error of the fitted form on points left out of it; between: of linear interpolation between points,"
        " which is what a simulation does inside the grid"
    )
    lines += _not_measured(profile)
    return lines + _memory_lines(profile)


def _verdict(f: dict[str, Any]) -> str:
    errors = [e for e in (f["held_out"], f["held_out_interpolation"]) if e is not None]
    if not errors:
        return "too few points"
    return "good" if min(errors) <= GOOD else "fair" if min(errors) <= POOR else "POOR"


def _not_measured(profile: DeviceProfile) -> list[str]:
    points = profile.points
    operators = [*points["dense"], *points.get("all_ranks", ()), *points["per_sequence"]]
    operators += [points["prefill_attention"], points["decode_attention"]]
    other = [
        f"{o.get('name', 'attention')}: {o['basis']}" for o in operators if o.get("basis", "measured") != "measured"
    ]
    decode, prefill = points["decode_attention"], points["prefill_attention"]
    reach = [
        f"{b} sequences to {c:,.0f} tokens"
        for b, c in zip(decode["batch"], decode["measured_context"], strict=True)
        if c
    ]
    return [
        f"measured prefill attention: up to {prefill['max_new']:,} new tokens, {prefill['max_kv']:,} tokens in all",
        "measured decode attention: " + ", ".join(reach),
        "beyond that every step is marked extrapolated",
        *(f"NOT MEASURED {line}" for line in other),
    ]


def _memory_lines(profile: DeviceProfile) -> list[str]:
    memory = profile.points["memory"]
    lines = [
        f"activations at {n:,} tokens a step: {b / GIB:.3f} GiB"
        for n, b in list(zip(memory["activation_tokens"], memory["activation_bytes"], strict=True))[-1:]
    ]
    if memory["kv_blocks"]:
        lines.append(
            f"KV blocks really allocated beside the weights: {memory['kv_blocks']:,.0f} of {memory['kv_block_size']}"
            " tokens (before activations)"
        )
    return lines


# ---- measured against fitted, as a page --------------------------------------------------------------------------


def write_html(profile: DeviceProfile, path: Path) -> None:
    """One self-contained page: the lines above and a plot per operator."""
    from kvcast.present import html_page
    from workloads.files import replace_file

    drawn = (html_page.figure(figure, f"operator-{i}") for i, figure in enumerate(figures(profile)))
    page = html_page.page(
        profile.id,
        [
            html_page.heading(profile.id, f"{profile.label}; {profile.content_hash}"),
            html_page.section("What was measured", html_page.code("\n".join(calibration_lines(profile)))),
            html_page.section("Fitted against measured, by operator", html_page.figures(drawn)),
        ],
    )
    replace_file(path, page.encode())  # a reader sees the old page or the whole new one


def figures(profile: DeviceProfile) -> list[Any]:
    """A log-log plot of measured against fitted time for every fitted operator, spread as error bars."""
    import plotly.graph_objects as go

    by_kernel: dict[str, list[tuple[float, float, float, str]]] = defaultdict(list)
    forms = {(f["op"], tuple(sorted(f["kernel"].items()))): f for f in profile.points["forms"]}
    size = ELEMENT_BYTES[profile.dtype]
    for op, shape, us, iqr in profile.points["raw"]:
        f = forms.get((op, kernel_of(op, shape))) if op in AXES else None
        if f is not None and op != "activation":
            name = op + "".join(f" {k}={v}" for k, v in f["kernel"].items())
            at = ", ".join(f"{k} {shape[k]}" for k in AXES[op] if k in shape)
            by_kernel[name].append((us, Form.from_json(f).us(features(Point(op, shape), size)), iqr, at))
    plots = []
    for name, rows in by_kernel.items():
        measured, fitted = [row[0] for row in rows], [row[1] for row in rows]
        ends = [min(measured), max(measured)]
        figure = go.Figure(
            [
                go.Scatter(
                    x=measured,
                    y=fitted,
                    mode="markers",
                    text=[row[3] for row in rows],
                    error_x={"type": "data", "array": [row[2] / 2 for row in rows]},
                    name="points",
                    hovertemplate="%{text}<br>measured %{x:.1f} us<br>fitted %{y:.1f} us",
                ),
                go.Scatter(x=ends, y=ends, mode="lines", name="equal", line={"dash": "dot"}),
            ]
        )
        figure.update_layout(
            title=name,
            height=420,
            xaxis={"type": "log", "title": "measured, us"},
            yaxis={"type": "log", "title": "fitted, us"},
            showlegend=False,
        )
        plots.append(figure)
    return plots
