"""The [workload] section: a preset, a trace, or [[workload.class]] tables; exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.limits import (
    COUNT,
    FASTEST,
    FROM_SECOND_0,
    MAX_BLOCK_SIZE,
    RATE,
    SECONDS,
    SHARE,
    Limit,
    from_0,
    from_1,
    key,
)

CHARACTERS = Limit(0.1, 100, "0.1 to 100")
MARKERS = Limit(1, 1000, "1 to 1,000")
MAX_FACTOR = 1e6  #: of a demand
POOLED = "pooled"
"""What verdicts call all classes together, so no class's name."""


@dataclass(frozen=True)
class Dist:
    """A distribution of token counts or seconds. Exactly the fields its kind names may be set."""

    kind: str = key(
        "fixed",
        "fixed (value), lognormal (median, and sigma or p90), exponential (mean), uniform (low, high), geometric"
        " (mean), or empirical (values, weights)",
    )
    value: float | None = key(None, "the value, for fixed")
    mean: float | None = key(None, "the mean, for exponential and geometric; or of a lognormal with median")
    median: float | None = key(None, "the median, for lognormal")
    p90: float | None = key(None, "the 90th percentile, for lognormal, instead of sigma")
    sigma: float | None = key(None, "standard deviation of the log, for lognormal")
    low: float | None = key(None, "smallest value: uniform, or a clip of any kind")
    high: float | None = key(None, "largest value: uniform, or a clip of any kind")
    values: tuple[float, ...] = key((), "values, for empirical")
    weights: tuple[float, ...] = key((), "weights of the values, for empirical; default: equal")


@dataclass(frozen=True)
class Arrival:
    kind: str = key(
        "poisson", "poisson, gamma (cv), onoff (on_s, off_s), diurnal (curve, period_s), or trace (times_s)"
    )
    cv: float = key(1.0, "coefficient of variation of the gaps, for gamma")
    on_s: float = key(0.0, "mean length of a burst, for onoff")
    off_s: float = key(0.0, "mean silence between bursts, for onoff")
    curve: tuple[float, ...] = key(
        (), "relative rate over one period, for diurnal; with gamma and onoff their time runs by it"
    )
    period_s: float = key(86400.0, "length of the curve's period")
    times_s: tuple[float, ...] = key((), "arrival times of sessions, for trace")
    exact: bool = key(
        False,
        "stretch the gaps so that the last of the mix's requests sessions comes after requests / rate seconds, as"
        " vLLM's benchmark does (a mix of one class)",
    )
    ramp_to: float | None = key(
        None,
        "the rate grows from the class's own to this one over the mix's requests sessions, as a benchmark's ramp-up (a"
        " mix of one class)",
        RATE,
    )
    ramp: str = key("linear", "how it grows", choices=("linear", "exponential"))


@dataclass(frozen=True)
class Layer:
    """One layer of a prompt, in the order the model reads them."""

    name: str = key("", "a label, unique in its class")
    scope: str = key("dynamic", "global (same for everyone), project, session, or dynamic (never the same twice)")
    tokens: Dist = key(Dist(), "length in tokens; drawn once per distinct text")
    items: int = key(1, "number of distinct projects or documents, for scope project")
    zipf: float = key(0.0, "popularity exponent over the items; 0: all alike")
    share: str = key("", "texts of layers with the same share name are the same text in every class")
    shuffle: int = key(0, "the layer's pieces come in one of this many orders, drawn per session (tool order shuffled)")
    redeploy_s: float = key(0.0, "the text changes every this many seconds (prompt redeployed); 0: never")
    timestamp_s: float = key(
        0.0, "the text holds a timestamp of this granularity: it changes every so many seconds of the clock"
    )


TENANT = "tenant"  #: a class's `lora`: one of each tenant's own


@dataclass(frozen=True)
class MixClass:
    name: str = key("", "a label, unique in the mix")
    share: float | None = key(None, "share of session arrivals, relative to the other classes")
    rate: float | None = key(None, "session arrivals per second, instead of share")
    arrival: Arrival = key(Arrival(), "arrival process of the class's sessions")
    layers: tuple[Layer, ...] = key((), "the prompt's layers, in order")
    output: Dist = key(Dist(), "output tokens of each request")
    turns: Dist = key(Dist(value=1), "requests in a session")
    turn_input: Dist | None = key(None, "new user or tool tokens of every turn after the first")
    think: Dist | None = key(None, "seconds between an answer and the user's next request")
    tool_gap: Dist | None = key(None, "seconds between an answer and the next request of an agent's tool loop")
    tool_share: float = key(0.0, "share of the later turns that follow a tool gap instead of think time")
    tenants: int = key(1, "number of tenants the sessions are spread over, evenly")
    isolation: bool = key(False, "tenants share nothing (a cache salt each)")
    lora: str = key(
        "",
        "the LoRA adapter of its requests, by name; tenant: each tenant has its own. Requests of different adapters"
        " share no cached prefix",
    )
    priority: int = key(0, "scheduler priority, lower is served earlier")
    model: str = key("", "the model that it asks for: only [[pool]] tables with this one serve it; empty: any")
    pool: str = key("", "the [[pool]] that serves it, by name; empty: any")
    slo_class: str = key("", "which [slo.classes] limits apply; empty: the default ones")


@dataclass(frozen=True)
class Surge:
    """Sessions more for a while, beside those of a mix: what a [[shock]] of load is once the run's window is known."""

    name: str = key("", "a label, unique among them")
    begins_s: float = key(0.0, "when they begin to arrive, seconds of the run")
    lasts_s: float = key(0.0, "for how long they arrive")
    more: float = key(0.0, "how many more sessions of the mix, as a share of its own: 1 is twice the load")
    of: str = key("", "the class that they are of; empty: all of them")
    storm: MixClass | None = key(None, "or sessions of this class, which the mix has not")


@dataclass(frozen=True)
class Demand:
    """The load over time. Exactly one of shape, file and factors."""

    shape: str | None = key(
        None,
        "a named day of mean 1: working-day (its peak, 2.66 times the mean, measured; its shape judged) or sine (0.5 to"
        " 1.5 times, highest at noon)",
        choices=("working-day", "sine"),
    )
    file: str | None = key(
        None, "a recorded curve, CSV with columns time_s (from 0) and factor; a factor holds until the next row's time"
    )
    factors: tuple[float, ...] = key((), "times the load, in slots of equal length over period_s")
    period_s: float | None = key(
        None,
        "after how long it repeats; default: a day, or where a file ends, its last row being as long as the one before",
        SECONDS,
    )


@dataclass(frozen=True)
class Columns:
    """Which field of a trace's rows is what. Dotted paths lead into nested objects (`usage.prompt_tokens`, `a.0.b`)."""

    time: str | None = key(None, "when a request arrived: a number (see timestamp_unit), or a date and time")
    input: str | None = key(None, "tokens of the whole prompt")
    output: str | None = key(None, "tokens of the answer")
    session: str | None = key(None, "what the requests of one conversation have in common")
    class_: str | None = key(None, "requests of one value are a class")
    tenant: str | None = key(None, "requests of one value are a tenant's")
    prefix_ids: str | None = key(None, "a list of ids of the blocks the prompt begins with, each of the whole prefix")
    block_tokens: int | None = key(None, "tokens that one of the prefix_ids names", from_1(MAX_BLOCK_SIZE))
    rows: str | None = key(None, "the list of rows, in a file that is one JSON object")


@dataclass(frozen=True)
class WorkloadConfig:
    preset: str | None = key(None, "a bundled mix (workloads/presets)")
    trace: str | None = key(None, "a trace file; ${KVCAST_DATA} is expanded")
    format: str | None = key(None, "the trace's format; default: recognised from its content, with the reason stated")
    timestamp_unit: str | None = key(
        None,
        "traces: unit of the file's times; default: the format's own, which every reading states",
        choices=("s", "ms", "us", "ns"),
    )
    columns: Columns | None = key(None, "[workload.columns]: which field of a trace's rows is what")
    class_: tuple[MixClass, ...] = key((), "[[workload.class]] tables")
    folder: str | None = key(None, "ServeGen archives: the folder of clients to take, where there are several")
    rate: float | None = key(
        None,
        "session arrivals per second over all classes (mixes with shares); requests per second of a file of lengths"
        " without times",
        RATE,
    )
    duration_s: float | None = key(
        None, "mixes: sessions arrive during this many seconds; default: long enough to judge (docs/steady.md)", SECONDS
    )
    skip_ended_s: float = key(
        0.0,
        "mixes: sessions that are over before this second are left out (by their think times alone): a warm-up then"
        " simulates those that go on after it, not all that ever were",
        FROM_SECOND_0,
    )
    requests: int | None = key(None, "mixes: stop after about this many requests; traces: the first so many", COUNT)
    rate_scale: float = key(
        1.0, "arrivals this many times faster; a trace recorded in coarse ticks is then spread over them", RATE
    )
    start_s: float = key(
        0.0,
        "traces: first second of the slice; mixes that follow the clock: its time when the first sessions arrive",
        FROM_SECOND_0,
    )
    end_s: float | None = key(None, "traces: last second of the slice", SECONDS)
    sample: float = key(1.0, "traces: share of the sessions kept, whole sessions", SHARE)
    jitter_s: float = key(
        0.0, "traces: spread tied arrivals uniformly over this quantum of recorded time", FROM_SECOND_0
    )
    loop: str = key(
        "auto",
        "open (recorded times), sessions (next turn = completion + think time), or concurrency",
        choices=("auto", "open", "sessions", "concurrency"),
    )
    concurrency: int | None = key(None, "sessions active at once, for loop = concurrency", COUNT)
    paced: bool = key(
        False,
        "loop = concurrency: a session also waits for its own arrival, so that rate and concurrency both limit (a"
        " benchmark's --request-rate with --max-concurrency)",
    )
    turnaround_s: float = key(
        0.0,
        "closed loops: seconds that a client takes between an answer and its next request, on top of think times and"
        " tool gaps, and between two sessions of a fixed concurrency",
        FROM_SECOND_0,
    )
    users: int | None = key(
        None, "session traces: merge the sessions for this many users, each running one after another", COUNT
    )
    think: str = key(
        "think-only",
        "session traces: delay between turns: think-only, original (recorded times), or scaled",
        choices=("think-only", "original", "scaled"),
    )
    think_scale: float = key(1.0, "factor on think times, for think = scaled", from_0(FASTEST))
    share_tools: bool = key(
        False,
        "Weka: sessions of one model share their tool and system tokens; agent logs: what the provider's cache served"
        " to first calls",
    )
    block_tokens: int | None = key(
        None, "traces of block ids: tokens that an id stands for; default: the format's own (512, or 16)", COUNT
    )
    turns: str | None = key(
        None,
        "Mooncake sessions: a row's input is the whole prompt, or (delta) what is new in the turn; default: as the rows"
        " say, or asked for where they can mean either",
        choices=("whole", "delta"),
    )
    demand: Demand | None = key(None, "[workload.demand]: a mix's load over time, times its rate")
    surge: tuple[Surge, ...] = key((), "made from [[shock]] tables of load: set those instead")
    tokenizer: str | None = key(
        None, "conversations: a local tokenizer.json that counts their tokens; default: chars_per_token"
    )
    chars_per_token: float = key(4.0, "conversations without a tokenizer: characters of a token", CHARACTERS)
    message_tokens: int = key(4, "conversations: tokens of the role markers of a message", MARKERS)
    first_turn_only: bool = key(False, "conversations: the first question and answer of each, alone")
    answer_tokens: int | None = key(
        None, "conversations: output tokens of requests without an answer; default: their max_tokens", COUNT
    )
