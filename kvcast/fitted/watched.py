"""A fit held against what the server said of itself meanwhile: its hit rate, and how long an output token took at
which batch.

The one idea: the fit has seen a client's times only. The same pages, made of the simulated runs, are read by the same
rule; where they say another time at some batch, the step-time curve is otherwise, whatever the means say.

    >>> held(fitted, scraped(Path("pages.om")))["curve"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast.fitted.parameters import with_values
from kvcast.fitted.server import Fitted
from kvcast.observed.page import paged
from kvcast.observed.series import Labels, openmetrics, scrapes
from kvcast.observed.watched import Span, Watched, curve, watched
from sim.measure.metrics import run_end_s

OTHER_LOAD = 0.05
"""Share of requests more or fewer than the results hold from which on the server had another load as well."""


def held(fitted: Fitted, seen: Watched) -> dict[str, Any]:
    """JSON-able: "source", "hit_rate" (measured, and simulated with what was fitted), "curve" (rows: requests running
    and waiting, seconds of an output token measured, and the errors before and after), "notes"."""
    measured = curve(seen.spans, seen.by_gaps)
    (before, _), (after, hit_rate) = (_simulated(fitted, values, seen) for values in ({}, fitted.found.values))
    rows = [
        {
            "running": running,
            "waiting": waiting,
            "measured_s": seconds,
            "before": before[k][2] / seconds - 1,
            "after": after[k][2] / seconds - 1,
        }
        for k, (running, waiting, seconds) in measured.items()
        if k in before and k in after
    ]
    n = sum(map(len, fitted.runs))
    notes = [] if rows else ["no batch of it was simulated as well"]
    if seen.finished is not None and abs(seen.finished / n - 1) > OTHER_LOAD:
        notes.append(f"{seen.finished:,.0f} requests finished meanwhile, the results hold {n:,}: another load is in it")
    return {
        "source": seen.source,
        "every_s": seen.every_s,
        "by_gaps": seen.by_gaps,
        "hit_rate": {"measured": seen.hit_rate, "simulated": hit_rate},
        "curve": rows,
        "notes": notes,
    }


def _simulated(
    fitted: Fitted, values: Mapping[str, Any], seen: Watched
) -> tuple[dict[int, tuple[float, float, float]], float]:
    """(curve, hit rate) of all runs, seen as often as the server was."""
    resolved = replace(fitted.resolved, scenario=with_values(fitted.resolved.scenario, values))
    spans, hits, prompts = list[Span](), 0.0, 0.0
    for run in fitted.runs:
        rec = run.recording(resolved)
        labels = Labels("", rec.block_size, True)
        at_s = scrapes(run_end_s(rec), seen.every_s)
        spans += watched(paged(openmetrics(rec, run.workload, labels, at_s, 0.0), run.name), run.name).spans
        admitted = ~np.isnan(rec.admit_s)
        hits += float(rec.hit_tokens[admitted].sum())
        prompts += float(run.workload.prompt_tokens[admitted].sum())
    return curve(spans, seen.by_gaps), hits / prompts if prompts else 0.0
