"""Workload -> Workload: slices, samples, jitter, speed-up and closed loops, keeping sessions whole and links valid.

The one idea: a request that lost the one which released it starts when it would have: at its own recorded time if it
has one, else it takes the place of what it waited for.

    >>> half = sample_sessions(workload, share=0.5, seed=1)
"""

from __future__ import annotations

from dataclasses import fields, replace
from heapq import heapreplace

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError

NOMINAL_TOKEN_S = 0.02  #: only for putting requests in order without a simulation; simulated times come from the engine
MANY_TIED = 0.1  #: share of arrivals at another one's time from which on a recording's ticks are looked for
FEWEST_GAPS = 20  #: fewer say nothing about a clock
WOBBLE = 0.01  #: of a tick; Mooncake's of 3 s are 2,999 to 3,001 ms
LONGEST_TICK_S = 60.0  #: what comes together every few minutes is a batch, not a coarse clock
ORDERS = ("time", "file")
"""In which a replay without time takes requests: by the time they would start, or row by row, which for a trace of
sessions is one session after another."""


def _stream(seed: int, name: str) -> np.random.Generator:
    """A random stream of its own for every use, so that one more use changes nothing elsewhere."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))


def picked(workload: Workload, order: np.ndarray) -> Workload:
    """The requests `order` (int64 row numbers), in that order, all columns and `after` renumbered (-1 where it is
    gone)."""
    n = len(workload)
    columns = {
        f.name: getattr(workload, f.name)[order]
        for f in fields(workload)
        if isinstance(getattr(workload, f.name), np.ndarray)
    }
    if workload.after is not None:
        new = np.full(n + 1, -1, np.int64)  # the last entry is what -1 looks up
        new[order] = np.arange(len(order))
        columns["after"] = new[columns["after"]]
    return replace(workload, **columns)


def kept(workload: Workload, keep: np.ndarray, what: str) -> Workload:
    """The requests where `keep` (bool [n]) holds. One whose releasing request is gone waits for that one's releaser,
    or, when none is left, arrives when the first of the chain would have."""
    if not keep.any():
        raise InputError(f"{what}: no request is left of {len(workload)}, expected at least one")
    workload = replace(workload, arrival_s=workload.arrival_s.copy())
    if workload.after is not None:
        after, arrival_s = workload.after.copy(), workload.arrival_s
        for r in range(len(workload)):  # after[r] < r: what r waits for is already settled
            gone = after[r]
            if gone >= 0 and not keep[gone]:
                after[r] = after[gone]
                if after[r] < 0:
                    arrival_s[r] = arrival_s[gone]
        workload = replace(workload, after=after, arrival_s=arrival_s)
    result = picked(workload, np.flatnonzero(keep))
    return result.with_notes(f"{what}: {len(result)} of {len(workload)} requests kept")


def time_slice(workload: Workload, start_s: float, end_s: float | None) -> Workload:
    """Requests (and, in a closed loop, whole sessions) that arrive in [start_s, end_s), times counted from start_s."""
    start = _start_times(workload)
    keep = (start >= start_s) & (start < (np.inf if end_s is None else end_s))
    result = kept(workload, keep, f"slice [{start_s:g}, {'end' if end_s is None else format(end_s, 'g')}) s")
    return replace(result, arrival_s=result.arrival_s - start_s)


def _start_times(workload: Workload) -> np.ndarray:
    """float64 [n]: a request's arrival, or the one of the request at the head of its chain."""
    start = workload.arrival_s.copy()
    if workload.after is not None:
        for r in np.flatnonzero(workload.after >= 0):
            start[r] = start[workload.after[r]]
    return start


def in_time_order(workload: Workload) -> tuple[Workload, str]:
    """(the workload with rows by start time, how that time was found). Sessions are generated or recorded one after the
    other, but run side by side: a cache sees them interleaved."""
    rows, how = order_taken(workload, "time")
    return picked(workload, rows), how


def order_taken(workload: Workload, order: str) -> tuple[np.ndarray, str]:
    """(row numbers in the order a replay takes them, int64 [n]; that order in words). order: one of ORDERS."""
    if order not in ORDERS:
        raise InputError(f"order = {order!r}, expected one of {', '.join(ORDERS)}")
    if order == "file" or (workload.concurrency is None and workload.after is None and is_untimed(workload)):
        return np.arange(len(workload)), "in the order of the file"
    rows = np.argsort(nominal_start_s(workload), kind="stable")
    if workload.concurrency is None and workload.after is None:
        return rows, "by arrival"
    return rows, f"by nominal start ({_starts(workload)}, delays and {NOMINAL_TOKEN_S:g} s an output token)"


def is_untimed(workload: Workload) -> bool:
    """Whether nothing says when the first requests arrive."""
    return bool(np.isnan(workload.arrival_s[workload.column("after") < 0]).all())


def _starts(workload: Workload) -> str:
    if workload.concurrency is not None:
        return f"{workload.concurrency} sessions at once"
    heads = workload.arrival_s[workload.column("after") < 0]
    if len(heads) > 1 and (is_untimed(workload) or np.ptp(heads) == 0):
        return f"all {len(heads):,} sessions at once, which users or concurrency in a scenario would spread"
    return "recorded starts"


def nominal_start_s(workload: Workload) -> np.ndarray:
    """float64 [n], seconds: recorded arrivals, and after an answer its nominal length plus the delay. At a fixed
    concurrency sessions begin in the order of their first rows, each when an earlier one leaves its place."""
    if workload.concurrency is None and workload.after is None:
        return workload.arrival_s
    recorded_s = np.zeros(len(workload)) if is_untimed(workload) else workload.arrival_s
    start = recorded_s.tolist() if workload.concurrency is None else _since_session_s(workload).tolist()
    took_s = workload.output_tokens * NOMINAL_TOKEN_S
    took = took_s.tolist()
    after, delay_s = workload.column("after").tolist(), workload.column("delay_s").tolist()
    for r, before in enumerate(after):
        if before >= 0:
            start[r] = start[before] + took[before] + delay_s[r]
    if workload.concurrency is None:
        return np.array(start)
    session, lasts_s = session_by_first_row(workload), np.zeros(len(workload))
    np.maximum.at(lasts_s, session, start + took_s)
    return start + _begin_s(lasts_s, workload.concurrency)[session]


def _since_session_s(workload: Workload) -> np.ndarray:
    """float64 [n]: recorded arrivals from that of the session's first row on; 0 where there are none."""
    _, first_row, number = np.unique(workload.column("session_id"), return_index=True, return_inverse=True)
    return np.maximum(np.nan_to_num(workload.arrival_s - workload.arrival_s[first_row][number], nan=0.0), 0.0)


def _begin_s(lasts_s: np.ndarray, places: int) -> np.ndarray:
    """float64: when each session begins, `places` of them active at once, each lasting lasts_s."""
    free = [0.0] * places
    begin = []
    for lasts in lasts_s.tolist():
        begin.append(free[0])
        heapreplace(free, free[0] + lasts)
    return np.array(begin)


def session_by_first_row(workload: Workload) -> np.ndarray:
    """int64 [n]: every request's session, numbered in the order of their first rows."""
    _, first_row, number = np.unique(workload.column("session_id"), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_row, kind="stable"), kind="stable")[number]


def sample_sessions(workload: Workload, share: float, seed: int) -> Workload:
    """About this share of the sessions, whole; at least one."""
    names, session = np.unique(workload.column("session_id"), return_inverse=True)
    draw = _stream(seed, "sample").random(len(names))
    chosen = draw < share
    chosen[draw.argmin()] = True
    return kept(workload, chosen[session], f"sample {share:g} of the sessions ({int(chosen.sum())} of {len(names)})")


def jittered(workload: Workload, quantum_s: float, seed: int) -> Workload:
    """Recorded arrivals moved by a uniform draw in [0, quantum_s); ties keep file order and sessions their own
    order."""
    arrival_s = workload.arrival_s.copy()
    timed = np.flatnonzero(np.isfinite(arrival_s))
    recorded, session = arrival_s[timed], workload.column("session_id")[timed]
    draw = _ascending(_stream(seed, "jitter").random(len(timed)) * quantum_s, recorded, np.arange(len(timed)))
    in_time = np.argsort(np.argsort(recorded, kind="stable"), kind="stable")
    arrival_s[timed] = _ascending(recorded + draw, session, in_time)
    return replace(workload, arrival_s=arrival_s).with_notes(f"jitter: arrivals moved by up to {quantum_s:g} s")


def tick_s(workload: Workload) -> float:
    """The tick of the clock that recorded the arrivals, in seconds: 0 where none is to be seen, or hardly any are tied.

    As often as arrivals are tied, the next different time is one tick away: so short gaps are of one tick, and nearly
    all must be multiples of it."""
    times_s, tied = np.unique(np.round(workload.arrival_s[np.isfinite(workload.arrival_s)], 6), return_counts=True)
    gaps_s = np.diff(times_s)
    if len(gaps_s) < FEWEST_GAPS or tied[tied > 1].sum() < MANY_TIED * tied.sum():
        return 0.0
    short = np.quantile(gaps_s, MANY_TIED / 2, method="lower")
    tick = round(float(np.median(gaps_s[np.abs(gaps_s - short) <= WOBBLE * short])), 6)
    regular = np.abs(gaps_s - tick * np.maximum(np.rint(gaps_s / tick), 1)) <= WOBBLE * tick
    return tick if tick <= LONGEST_TICK_S and regular.mean() >= 0.95 else 0.0


def _ascending(values: np.ndarray, group: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """The values of each group dealt anew so that they ascend with `rank`."""
    dealt = np.empty_like(values)
    dealt[np.lexsort((rank, group))] = values[np.lexsort((values, group))]
    return dealt


def scaled(workload: Workload, rate_scale: float) -> Workload:
    """Recorded arrivals this many times faster; think and tool times stay what they are."""
    recorded = workload.arrival_s[np.isfinite(workload.arrival_s)]
    if len(recorded) > 1 and np.ptp(recorded) == 0:
        raise InputError(
            f"[workload] rate_scale = {rate_scale:g}, expected arrivals at different times, but all {len(recorded)} are"
            f" at {recorded[0]:g} s; use users or concurrency"
        )
    what = "" if workload.after is None else " (recorded arrivals only; think times stay)"
    return replace(workload, arrival_s=workload.arrival_s / rate_scale).with_notes(
        f"rate_scale: arrivals {rate_scale:g} times faster{what}"
    )


def open_loop(workload: Workload) -> Workload:
    """Recorded times only; refused where a request has none."""
    if np.any(~np.isfinite(workload.arrival_s)):
        r = int(np.flatnonzero(~np.isfinite(workload.arrival_s))[0])
        raise InputError(
            f"[workload] loop = 'open', expected a recorded arrival for every request, but request {r} has only a delay"
            " after another one"
        )
    return replace(workload, after=None, delay_s=None)


def with_concurrency(workload: Workload, sessions: int) -> Workload:
    """Closed loop: this many sessions active at once, whenever they arrived."""
    return replace(workload, concurrency=sessions).with_notes(
        f"loop: {sessions} sessions active at once; recorded arrivals only order them"
    )


def with_turnaround(workload: Workload, seconds: float) -> Workload:
    """Every request that follows an answer comes so much later; at a fixed concurrency every next session too."""
    follows = workload.column("after") >= 0
    if workload.concurrency is None and not follows.any():
        raise InputError(
            f"[workload] turnaround_s = {seconds:g}, expected requests that wait for an answer: sessions of several"
            " turns, or a fixed concurrency"
        )
    return replace(workload, delay_s=workload.column("delay_s") + seconds * follows, turnaround_s=seconds).with_notes(
        f"turnaround: {seconds:g} s of a client between an answer and its next request"
    )


def in_turns_for_users(workload: Workload, users: int) -> Workload:
    """Whole sessions dealt to users in file order, each to the user whose recorded work ends first; a user's next
    session follows the last request of the one before. Rows are ordered session by session."""
    if workload.session_id is None or workload.after is None:
        raise InputError(f"[workload] users = {users}, expected a trace of sessions with think times")
    rank = session_by_first_row(workload)
    result = picked(workload, np.lexsort((np.arange(len(workload)), rank)))
    rank = np.sort(rank)
    begins = np.flatnonzero(np.diff(rank, prepend=-1))
    ends = np.append(begins[1:], len(rank)) - 1
    assert result.after is not None
    after, delay_s = result.after.copy(), result.column("delay_s").copy()
    arrival_s = result.arrival_s.copy()
    busy_until, last = np.zeros(min(users, len(begins))), np.full(min(users, len(begins)), -1, np.int64)
    for begin, end in zip(begins, ends, strict=True):
        user = int(busy_until.argmin())
        rows = np.arange(begin, end + 1)
        heads = rows[after[rows] < 0]
        if last[user] >= 0:
            delay_s[heads] = arrival_s[heads] - arrival_s[heads].min()
            after[heads], arrival_s[heads] = last[user], np.nan
        else:
            arrival_s[heads] -= arrival_s[heads].min()
        busy_until[user] += delay_s[rows].sum() + result.output_tokens[rows].sum() * NOMINAL_TOKEN_S
        last[user] = end
    return replace(result, after=after, delay_s=delay_s, arrival_s=arrival_s).with_notes(
        f"users: {len(begins)} sessions run one after another by {users} users, dealt in file order to whoever is free"
        f" first by think times and {NOMINAL_TOKEN_S:g} s a token"
    )
