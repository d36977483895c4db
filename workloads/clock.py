"""A workload's clock stays where floats resolve it.

The one idea: what the recorded and generated times alone say is checked before anything runs.

    >>> check_clock(workload)
"""

from __future__ import annotations

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, WITHIN
from workloads.transform import is_untimed


def check_clock(workload: Workload) -> Workload:
    """The workload itself; InputError for the first request that the recorded or generated times alone put beyond 1e9
    s."""
    at = earliest_s(workload)
    bad = np.flatnonzero(~(at <= MAX_SECONDS))
    if len(bad):
        raise InputError(
            f"[workload]: request {bad[0]} would arrive after {at[bad[0]]:.4g} s, expected {WITHIN}; check rates,"
            " delays and their scale factors"
        )
    return workload


def earliest_s(workload: Workload) -> np.ndarray:
    """float64 [n], seconds: when each request would arrive if every answer took no time; from 0 at fixed
    concurrency and where no times are known."""
    ignored = workload.concurrency is not None or is_untimed(workload)
    starts = np.zeros(len(workload)) if ignored else workload.arrival_s
    if workload.after is None:
        return starts
    before = workload.after
    at = np.where(before < 0, starts, workload.column("delay_s"))
    while (waits := before >= 0).any():  # every pass doubles the length of the chains that are added up
        at = at + np.where(waits, at[before], 0.0)
        before = np.where(waits, before[before], -1)
    return at
