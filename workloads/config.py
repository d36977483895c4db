"""The [workload] section: a preset, a trace, or [[workload.class]] tables; exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _f(default: Any, help: str) -> Any:
    """A field with a help text."""
    if isinstance(default, (dict, list, tuple)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Dist:
    """A distribution of token counts or seconds. Exactly the fields its kind names may be set."""

    kind: str = _f(
        "fixed",
        "fixed (value), lognormal (median, and sigma or p90), exponential (mean), uniform (low, high), geometric"
        " (mean), or empirical (values, weights)",
    )
    value: float | None = _f(None, "the value, for fixed")
    mean: float | None = _f(None, "the mean, for exponential and geometric; or of a lognormal with median")
    median: float | None = _f(None, "the median, for lognormal")
    p90: float | None = _f(None, "the 90th percentile, for lognormal, instead of sigma")
    sigma: float | None = _f(None, "standard deviation of the log, for lognormal")
    low: float | None = _f(None, "smallest value: uniform, or a clip of any kind")
    high: float | None = _f(None, "largest value: uniform, or a clip of any kind")
    values: tuple[float, ...] = _f((), "values, for empirical")
    weights: tuple[float, ...] = _f((), "weights of the values, for empirical; default: equal")


@dataclass(frozen=True)
class Arrival:
    kind: str = _f("poisson", "poisson, gamma (cv), onoff (on_s, off_s), diurnal (curve, period_s), or trace (times_s)")
    cv: float = _f(1.0, "coefficient of variation of the gaps, for gamma")
    on_s: float = _f(0.0, "mean length of a burst, for onoff")
    off_s: float = _f(0.0, "mean silence between bursts, for onoff")
    curve: tuple[float, ...] = _f((), "relative rate over one period, for diurnal")
    period_s: float = _f(86400.0, "length of the diurnal period")
    times_s: tuple[float, ...] = _f((), "arrival times of sessions, for trace")


@dataclass(frozen=True)
class Layer:
    """One layer of a prompt, in the order the model reads them."""

    name: str = _f("", "a label, unique in its class")
    scope: str = _f("dynamic", "global (same for everyone), project, session, or dynamic (never the same twice)")
    tokens: Dist = field(default_factory=Dist, metadata={"help": "length in tokens; drawn once per distinct text"})
    items: int = _f(1, "number of distinct projects or documents, for scope project")
    zipf: float = _f(0.0, "popularity exponent over the items; 0: all alike")
    share: str = _f("", "texts of layers with the same share name are the same text in every class")
    shuffle: int = _f(0, "the layer's pieces come in one of this many orders, drawn per session (tool order shuffled)")
    redeploy_s: float = _f(0.0, "the text changes every this many seconds (prompt redeployed); 0: never")
    timestamp_s: float = _f(
        0.0, "the text holds a timestamp of this granularity: it changes every so many seconds of the clock"
    )


@dataclass(frozen=True)
class MixClass:
    name: str = _f("", "a label, unique in the mix")
    share: float | None = _f(None, "share of session arrivals, relative to the other classes")
    rate: float | None = _f(None, "session arrivals per second, instead of share")
    arrival: Arrival = field(default_factory=Arrival, metadata={"help": "arrival process of the class's sessions"})
    layers: tuple[Layer, ...] = _f((), "the prompt's layers, in order")
    output: Dist = field(default_factory=Dist, metadata={"help": "output tokens of each request"})
    turns: Dist = field(default_factory=lambda: Dist(value=1), metadata={"help": "requests in a session"})
    turn_input: Dist | None = field(
        default=None, metadata={"help": "new user or tool tokens of every turn after the first"}
    )
    think: Dist | None = field(default=None, metadata={"help": "seconds between an answer and the user's next request"})
    tool_gap: Dist | None = field(
        default=None, metadata={"help": "seconds between an answer and the next request of an agent's tool loop"}
    )
    tool_share: float = _f(0.0, "share of the later turns that follow a tool gap instead of think time")
    tenants: int = _f(1, "number of tenants the sessions are spread over, evenly")
    isolation: bool = _f(False, "tenants share nothing (a cache salt each)")
    priority: int = _f(0, "scheduler priority, lower is served earlier")
    slo_class: str = _f("", "which [slo.classes] limits apply; empty: the default ones")


@dataclass(frozen=True)
class WorkloadConfig:
    preset: str | None = _f(None, "a bundled mix (workloads/presets)")
    trace: str | None = _f(None, "a trace file; ${KVCAST_DATA} is expanded")
    format: str | None = _f(None, "the trace's format; default: recognised from its content, with the reason stated")
    class_: tuple[MixClass, ...] = _f((), "[[workload.class]] tables")
    folder: str | None = _f(None, "ServeGen archives: the folder of clients to take, where there are several")
    rate: float | None = _f(
        None,
        "session arrivals per second over all classes (mixes with shares); requests per second of a file of lengths"
        " without times",
    )
    duration_s: float | None = _f(
        None, "mixes: sessions arrive during this many seconds; default: long enough to judge (docs/steady.md)"
    )
    requests: int | None = _f(None, "mixes: stop after about this many requests; traces: the first so many")
    rate_scale: float = _f(
        1.0, "arrivals this many times faster; a trace recorded in coarse ticks is then spread over them"
    )
    start_s: float = _f(
        0.0, "traces: first second of the slice; mixes that follow the clock: its time when the first sessions arrive"
    )
    end_s: float | None = _f(None, "traces: last second of the slice")
    sample: float = _f(1.0, "traces: share of the sessions kept, whole sessions")
    jitter_s: float = _f(0.0, "traces: spread tied arrivals uniformly over this quantum of recorded time")
    loop: str = _f("auto", "open (recorded times), sessions (next turn = completion + think time), or concurrency")
    concurrency: int | None = _f(None, "sessions active at once, for loop = concurrency")
    users: int | None = _f(
        None, "session traces: merge the sessions for this many users, each running one after another"
    )
    think: str = _f(
        "think-only", "session traces: delay between turns: think-only, original (recorded times), or scaled"
    )
    think_scale: float = _f(1.0, "factor on think times, for think = scaled")
    share_tools: bool = _f(False, "Weka: sessions of one model share their tool and system tokens")
