"""Figures of a run: pure functions from its document and tables to plotly figures.

The one idea: a figure is drawn from what a run folder holds (`summary.json`'s document and the columns of its tables), so
a page, a report and a script draw the same thing; every trace is an aggregate of at most about a thousand points.

    >>> from kvcast import figures, load_run
    >>> run = load_run("runs/demo/2-replicas-lru")
    >>> figures.latency_cdf(run.summary, run.tables["requests"], "ttft").show()

A report that was never saved: `figures.queue(report.timeline)`, `figures.latency_cdf(api.as_document(result), report.requests, "ttft")`.
`style` has the colours; `latency`, `cache` and `timeline` the figures.
"""
from kvcast.figures.cache import hit_rate, kv_occupancy, miss_causes
from kvcast.figures.latency import latency_cdf
from kvcast.figures.timeline import lives_of, queue, request_life

__all__ = ["hit_rate", "kv_occupancy", "latency_cdf", "lives_of", "miss_causes", "queue", "request_life"]
