"""How large a time or a count may be, and the check that a workload's clock stays where floats resolve it.

The one idea: simulated time is a float in seconds. Up to 1e9 s (32 years) neighbouring floats are 0.1 microseconds
apart; from about 1e14 s on they are further apart than a decode step, which would then take no time.

    >>> check_clock(workload)
"""

from __future__ import annotations

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError

MAX_SECONDS = 1e9  #: the latest time of a run, and the longest wait
MAX_TOKENS = 1_000_000_000  #: of one prompt or answer
WITHIN = f"at most {MAX_SECONDS:g} s (32 years)"


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
    concurrency."""
    starts = np.zeros(len(workload)) if workload.concurrency is not None else workload.arrival_s
    if workload.after is None:
        return starts
    before = workload.after
    at = np.where(before < 0, starts, workload.column("delay_s"))
    while (waits := before >= 0).any():  # every pass doubles the length of the chains that are added up
        at = at + np.where(waits, at[before], 0.0)
        before = np.where(waits, before[before], -1)
    return at
