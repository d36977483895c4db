"""What happened in a window of a run: the lives of its requests, who waited and ran on each replica, and where to look.

The one idea: a run folder has every request's arrival, admission, first token and end, which is a life in whole phases;
the same scenario simulated again up to the window's end has every prefill chunk and interruption (`exact`). Both are
`Life`s, so they are drawn, and written as a Chrome trace, alike.

    >>> shown = coarse(run.tables["requests"], list(run.summary["classes"]), chosen(run.tables["requests"], 10.0, 30.0))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcast import text
from sim.measure.shocks import span_s
from sim.recording import COMPLETED, UNFINISHED

if TYPE_CHECKING:
    from kvcast.api import Prepared
    from sim.scenario import Shock

MOST = 30  #: requests drawn
BINS = 200  #: of a window
SHOCKED = -2  #: the process of shocks in a Chrome trace; -1 has requests that no replica has taken
Columns = Mapping[str, np.ndarray]
Phase = tuple[str, float, float, int]  #: what, from and to in seconds of the run, tokens


@dataclass(frozen=True)
class Life:
    """One request."""

    request: int
    class_name: str
    replica: int
    prompt_tokens: int
    hit_tokens: int
    output_tokens: int
    preemptions: int
    phases: tuple[Phase, ...]  #: in order of time


@dataclass(frozen=True)
class Jump:
    """A place worth looking at."""

    label: str
    words: str  #: what is there
    start_s: float
    end_s: float


# -- which requests, and where -----------------------------------------------------------------------------------------


def ends(requests: Columns) -> np.ndarray:
    """float64 [n]: when each request left, infinity for one that had not when the run ended, its arrival for one turned
    away."""
    finish_s = requests["finish_s"]
    return np.where(
        np.isnan(finish_s), np.where(requests["status"] == UNFINISHED, np.inf, requests["arrival_s"]), finish_s
    )


def present(requests: Columns, start_s: float, end_s: float) -> np.ndarray:
    """Ids of the requests that were in the system at some moment of [start_s, end_s]; those turned away were not."""
    arrived = requests["arrival_s"]
    return np.flatnonzero((arrived <= end_s) & (ends(requests) >= start_s) & (ends(requests) > arrived))


def chosen(requests: Columns, start_s: float, end_s: float, most: int = MOST) -> np.ndarray:
    """At most `most` of those present, by arrival: the ones that were preempted, then those that waited longest for a
    first token."""
    ids = present(requests, start_s, end_s)
    ttft_s = np.nan_to_num(requests["ttft_s"][ids], nan=np.inf)
    worst = ids[np.lexsort((ids, -ttft_s, -(requests["preemptions"][ids] > 0).astype(int)))[:most]]
    return worst[np.lexsort((worst, requests["arrival_s"][worst]))]


def jumps(requests: Columns, end_s: float) -> list[Jump]:
    """The slowest first token, the first request that was preempted, and the moment with the most requests waiting."""
    found = []
    done = np.flatnonzero(requests["status"] == COMPLETED)
    if len(done):
        worst = int(done[np.argmax(requests["ttft_s"][done])])
        found.append(
            _around(
                requests,
                "Slowest first token",
                f"request {worst}, TTFT {text.seconds(float(requests['ttft_s'][worst]))}",
                worst,
                end_s,
            )
        )
    preempted = np.flatnonzero(requests["preemptions"] > 0)
    if len(preempted):
        first = int(preempted[np.argmin(requests["admit_s"][preempted])])
        found.append(
            _around(
                requests,
                "First preemption",
                f"request {first}, preempted {int(requests['preemptions'][first])} times",
                first,
                end_s,
            )
        )
    t_s = np.linspace(0.0, end_s, 2000)
    waiting = _waiting(requests, t_s)
    if waiting.max(initial=0) > 0:
        at = float(t_s[int(waiting.argmax())])
        found.append(
            Jump(
                "Longest queue",
                f"{int(waiting.max()):,} requests waiting at {at:,.1f} s",
                max(at - 15.0, 0.0),
                min(at + 15.0, end_s),
            )
        )
    return found


def _around(requests: Columns, label: str, words: str, request: int, end_s: float) -> Jump:
    start, stop = float(requests["arrival_s"][request]), float(min(ends(requests)[request], end_s))
    room = max(0.25 * (stop - start), 1.0)
    return Jump(label, words, max(start - room, 0.0), min(stop + room, end_s))


# -- how many ----------------------------------------------------------------------------------------------------------


def counts(requests: Columns, replicas: int, start_s: float, end_s: float) -> dict[str, np.ndarray]:
    """At BINS moments of the window: "t_s", "waiting" [BINS], "running" [replicas, BINS]. Time spent preempted counts
    as running."""
    t_s = np.linspace(start_s, end_s, BINS)
    admitted = ~np.isnan(requests["admit_s"])
    replica = requests["replica"][admitted]
    running = _by(requests["admit_s"][admitted], t_s, replica, replicas) - _by(
        ends(requests)[admitted], t_s, replica, replicas
    )
    return {"t_s": t_s, "waiting": _waiting(requests, t_s), "running": running}


def _waiting(requests: Columns, t_s: np.ndarray) -> np.ndarray:
    admitted = ~np.isnan(requests["admit_s"])
    never = ~admitted & (requests["status"] == UNFINISHED)
    arrived = admitted | never
    return _by(requests["arrival_s"][arrived], t_s)[0] - _by(requests["admit_s"][admitted], t_s)[0]


def _by(times: np.ndarray, t_s: np.ndarray, group: np.ndarray | int = 0, groups: int = 1) -> np.ndarray:
    """int64 [groups, len(t_s)]: how many of each group's times have come at each moment (ascending)."""
    room = len(t_s) + 1  # the last place is for what comes later
    place = np.searchsorted(t_s, times, side="left") + room * np.asarray(group, np.int64)
    return np.bincount(place, minlength=groups * room).reshape(groups, room)[:, :-1].cumsum(axis=1)


# -- lives -------------------------------------------------------------------------------------------------------------


def coarse(requests: Columns, class_names: Sequence[str], ids: Iterable[int]) -> list[Life]:
    """From the requests table: prefill is first schedule to first token, a preemption's time is drawn at the end of the
    decode."""
    names = (
        "class_id",
        "replica",
        "prompt_tokens",
        "hit_tokens",
        "output_tokens",
        "preemptions",
        "arrival_s",
        "admit_s",
        "first_token_s",
        "finish_s",
        "preempted_s",
        "recomputed_tokens",
        *(name for name in ("load_s", "frontend_s") if name in requests),
    )
    columns = {name: requests[name] for name in names}
    return [_coarse_one(int(r), {name: column[r] for name, column in columns.items()}, class_names) for r in ids]


def _coarse_one(request: int, row: Mapping[str, Any], class_names: Sequence[str]) -> Life:
    arrival, admit, first, finish = (float(row[name]) for name in ("arrival_s", "admit_s", "first_token_s", "finish_s"))
    start = admit + float(row.get("load_s", 0.0))
    queued = arrival + float(row.get("frontend_s", 0.0))
    back = finish - float(row["preempted_s"])
    phases = [
        ("frontend", arrival, queued, 0),
        ("queued", queued, admit, 0),
        ("loading", admit, start, 0),
        ("prefill", start, first, int(row["prompt_tokens"] - row["hit_tokens"])),
        ("decode", first, back, int(row["output_tokens"])),
        ("preempted", back, finish, int(row["recomputed_tokens"])),
    ]
    return Life(
        request,
        str(class_names[int(row["class_id"])]),
        int(row["replica"]),
        int(row["prompt_tokens"]),
        int(row["hit_tokens"]),
        int(row["output_tokens"]),
        int(row["preemptions"]),
        tuple(p for p in phases if p[2] > p[1]),
    )


def exact(prepared: Prepared, start_s: float, end_s: float, most: int = MOST) -> dict[str, Any]:
    """Simulate up to the window's end with every chunk and interruption recorded. JSON-able: "window", "present",
    "lives".

    What was still in the system then is cut at the window's end.
    """
    from kvcast import api

    run = replace(prepared.scenario.run, horizon_s=min(end_s, prepared.scenario.run.horizon_s or end_s))
    resolved = replace(prepared.resolved, scenario=replace(prepared.scenario, run=run))
    recording = api.record(
        replace(prepared, resolved=resolved), record_life=True, on_clock=text.clock("simulating", 0, 1)
    )
    workload = prepared.workload
    columns = {
        "arrival_s": recording.arrival_s,
        "admit_s": recording.admit_s,
        "finish_s": recording.finish_s,
        "status": recording.status,
        "preemptions": recording.preemptions,
        "ttft_s": recording.first_token_s - recording.arrival_s,
    }
    assert recording.life is not None
    class_id = workload.column("class_id")
    shown = [
        Life(
            int(r),
            workload.class_names[class_id[r]],
            int(recording.replica[r]),
            int(workload.prompt_tokens[r]),
            int(recording.hit_tokens[r]),
            int(workload.output_tokens[r]),
            int(recording.preemptions[r]),
            _until(recording.life[r], float(recording.arrival_s[r]), float(recording.finish_s[r]), end_s),
        )
        for r in chosen(columns, start_s, end_s, most)
    ]
    begins_s = prepared.scenario.run.warmup_s or 0.0
    return {
        "window": [start_s, end_s],
        "shocks": shocks_in([_spanned(one, begins_s) for one in prepared.scenario.shock], start_s, end_s),
        "present": len(present(columns, start_s, end_s)),
        "lives": [asdict(life) for life in shown],
    }


def _until(phases: Sequence[tuple], arrival_s: float, finish_s: float, end_s: float) -> tuple[Phase, ...]:
    """The phases of a life; of one that had not ended, what it was doing goes on to the end (of no chunk: 0 tokens)."""
    told = [
        (str(what), float(start), min(float(stop), end_s), int(tokens))
        for what, start, stop, tokens in phases
        if start < end_s
    ]
    if not np.isnan(finish_s):
        return tuple(told)
    at = max((stop for _, _, stop, _ in told), default=arrival_s)
    doing = "queued" if not told else told[-1][0] if told[-1][0] in ("decode", "preempted") else "prefill"
    return (*told, (doing, at, end_s, 0)) if at < end_s else tuple(told)


def from_document(document: Mapping[str, Any]) -> list[Life]:
    """The lives of `exact`'s document."""
    return [
        Life(**{**row, "phases": tuple((str(p[0]), float(p[1]), float(p[2]), int(p[3])) for p in row["phases"])})
        for row in document["lives"]
    ]


def shocks_of(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """kind, start_s and end_s of a run's shocks, seconds of the run."""
    begins_s = summary["window"]["start_s"]
    starts = [(row, begins_s + row["at_s"]) for row in summary.get("shocks", ())]
    return [{"kind": row["kind"], "start_s": at_s, "end_s": at_s + row["lasts_s"]} for row, at_s in starts]


def shocks_in(shocks: Sequence[Mapping[str, Any]], start_s: float, end_s: float) -> list[dict[str, Any]]:
    """Those that touch a window."""
    return [dict(one) for one in shocks if one["start_s"] < end_s and one["end_s"] >= start_s]


def _spanned(shock: Shock, begins_s: float) -> dict[str, Any]:
    start_s, end_s = span_s(shock, begins_s)
    return {"kind": shock.kind, "start_s": start_s, "end_s": end_s}


def chrome_trace(lives: Sequence[Life], shocks: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The lives in the Trace Event Format that chrome://tracing and Perfetto open: a process a replica, a row a
    request, microseconds. shocks: kind, start_s, end_s, in a process of their own."""
    events: list[dict[str, Any]] = _shock_events(shocks)
    for replica in sorted({life.replica for life in lives}):
        events.append(
            {
                "name": "process_name",
                "ph": "M",
                "pid": replica,
                "tid": 0,
                "args": {"name": f"replica {replica}" if replica >= 0 else "waiting"},
            }
        )
    for life in lives:
        events.append(
            {
                "name": "thread_name",
                "ph": "M",
                "pid": life.replica,
                "tid": life.request,
                "args": {"name": f"#{life.request} {life.class_name}"},
            }
        )
        for what, start, stop, tokens in life.phases:
            events.append(
                {
                    "name": what,
                    "cat": "request",
                    "ph": "X",
                    "pid": life.replica,
                    "tid": life.request,
                    "ts": round(1e6 * start, 3),
                    "dur": round(1e6 * (stop - start), 3),
                    "args": {"tokens": tokens},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _shock_events(shocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    where = {"pid": SHOCKED, "tid": 0}
    named = {"name": "process_name", "ph": "M", **where, "args": {"name": "shocks"}}
    spans = [
        {
            "name": one["kind"],
            "cat": "shock",
            "ph": "X",
            **where,
            "ts": round(1e6 * one["start_s"], 3),
            "dur": round(1e6 * (one["end_s"] - one["start_s"]), 3),
        }
        for one in shocks
    ]
    return [named, *spans] if spans else []
