"""Figures: pure functions from documents and tables to plotly figures.

The one idea: a figure is drawn from what a run folder holds (`summary.json`'s document and the columns of its tables),
or from the document of a command (`plan`, `compare`), so a page, a report and a script draw the same thing; every trace
is an aggregate of at most about a thousand points, however long the run was.

    >>> from kvcast import figures, load_run
    >>> run = load_run("runs/demo/2-replicas-lru")
    >>> figures.latency_cdf(run.summary, run.aggregates, "ttft").show()

A report that was never saved: `figures.queue(report.timeline)`, `figures.latency_cdf(api.as_document(result),
aggregates.of(report), "ttft")`. `style` has the colours, one per meaning; `latency`, `capacity`, `replicas`, `cache`,
`calibration`, `comparison` and `timeline` have the figures."""

from kvcast.figures.cache import (
    hit_by_capacity,
    hit_rate,
    kv_occupancy,
    miss_causes,
    misses_over_time,
    tokens_by_scope,
    value_of_memory,
)
from kvcast.figures.calibration import (
    coverage,
    covered,
    decode_curves,
    gpu_memory,
    predicted_against_measured,
    prefill_curve,
    residuals,
)
from kvcast.figures.capacity import goodput_by_rate, latency_by_rate
from kvcast.figures.comparison import differences
from kvcast.figures.latency import latency_cdf
from kvcast.figures.latency_time import latency_over_time
from kvcast.figures.life import life_memory, life_prompts
from kvcast.figures.plan_candidates import candidates, shares_by_cost
from kvcast.figures.plan_growth import binding, growth
from kvcast.figures.replicas import replica_load, replicas_over_time
from kvcast.figures.resilience import branches
from kvcast.figures.style import marked
from kvcast.figures.timeline import PHASES, by_replica, in_system, lives, lives_of, queue, request_life, window_of
from kvcast.figures.users import latency_by_users, within_limits_by_users
from kvcast.figures.workload import arrivals, prompt_layers

__all__ = [
    "PHASES",
    "arrivals",
    "binding",
    "branches",
    "by_replica",
    "candidates",
    "coverage",
    "covered",
    "decode_curves",
    "differences",
    "goodput_by_rate",
    "gpu_memory",
    "growth",
    "hit_by_capacity",
    "hit_rate",
    "in_system",
    "kv_occupancy",
    "latency_by_rate",
    "latency_by_users",
    "latency_cdf",
    "latency_over_time",
    "life_memory",
    "life_prompts",
    "lives",
    "lives_of",
    "marked",
    "miss_causes",
    "misses_over_time",
    "predicted_against_measured",
    "prefill_curve",
    "prompt_layers",
    "queue",
    "replica_load",
    "replicas_over_time",
    "request_life",
    "residuals",
    "shares_by_cost",
    "tokens_by_scope",
    "value_of_memory",
    "window_of",
    "within_limits_by_users",
]
