"""How long a mix needs until its load is there, and how long it is then watched.

The one idea: until the first sessions end, the number in progress only grows, so a run that begins with an empty fleet
is judged on a lighter load than the mix says. Sessions therefore begin before the measured window, a ramp's length, and
the window is long enough for what is judged. docs/steady.md says why these lengths.

    >>> ramp_s(load_preset("demo")), window_s(load_preset("demo"))
"""

from __future__ import annotations

import math

import numpy as np

from workloads import dists
from workloads.check import class_rates, loop_of
from workloads.config import MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.transform import NOMINAL_TOKEN_S

SESSIONS, ANSWERS, FILLS = 5, 10, 3
"""A ramp is this many mean sessions of the longest class, this many long answers, and fills the KV memory this
often."""
LEAST_S = 1200.0  #: of a window with sessions
SINGLE_TURNS = 5000  #: requests of a window without
SMALLEST = 100  #: requests of the smallest class: fewer cannot show 95 %
BURSTS = 50  #: bursts and silences of an on/off process
MOST = (
    20_000  #: requests; a longer window or filling is cut to the time they take, and to no less than LONGEST sessions
)
LONGEST = 2
MAX_COMMON_S = 1e8  #: three years
CLOSED = 20  #: sessions one after another of each slot of a fixed concurrency


def session_s(c: MixClass, token_s: float = NOMINAL_TOKEN_S) -> float:
    """Mean seconds from a session's first request to its last answer: waiting between turns, and token_s for every
    output token."""
    turns, output = dists.moments(c.turns)[0], dists.moments(c.output)[0]
    think = dists.moments(c.think, whole=False)[0] if c.think else 0.0
    tool = dists.moments(c.tool_gap, whole=False)[0] if c.tool_gap else 0.0
    return (turns - 1) * (c.tool_share * tool + (1 - c.tool_share) * think) + turns * output * token_s


def stationary(config: WorkloadConfig) -> bool:
    """Whether a resolved mix goes on for ever at rates that are known: not at a fixed concurrency, not with recorded
    times or a rate that grows."""
    steady = all(c.arrival.kind != "trace" and c.arrival.ramp_to is None for c in config.class_)
    return steady and loop_of(config) != "concurrency"


def requests_per_s(config: WorkloadConfig) -> float:
    """Requests a second once a stationary mix's load is there, rate_scale included; of a clock's curve the mean over
    its period."""
    return sum(rates_by_class(config))


def rates_by_class(config: WorkloadConfig) -> list[float]:
    """`requests_per_s` of every class."""
    return [rate * dists.moments(c.turns)[0] for rate, c in zip(class_rates(config), config.class_, strict=True)]


def offered_per_s(config: WorkloadConfig, start_s: float, end_s: float) -> float:
    """Nominal requests a second between two times of the mix's clock; where nothing follows the clock,
    `requests_per_s`.

    Sessions count where they begin: a curve's slots are long against them.
    """
    return sum(
        rate * clock_share(c, start_s, end_s) for rate, c in zip(rates_by_class(config), config.class_, strict=True)
    )


def clock_share(c: MixClass, start_s: float, end_s: float) -> float:
    """The mean of a class's curve between two times, over its mean."""
    if not c.arrival.curve or end_s <= start_s:
        return 1.0
    curve, period_s = np.array(c.arrival.curve, float), c.arrival.period_s
    by = np.concatenate([[0.0], np.cumsum(curve / curve.sum())])

    def expected(t_s: float) -> float:
        periods, rest = divmod(t_s, period_s)
        return periods + float(np.interp(rest, np.linspace(0, period_s, len(by)), by))

    return (expected(end_s) - expected(start_s)) * period_s / (end_s - start_s)


def period_s(config: WorkloadConfig) -> float:
    """The longest period that a class follows; 0 when none follows the clock."""
    return max((c.arrival.period_s for c in config.class_ if c.arrival.curve), default=0.0)


def common_period_s(config: WorkloadConfig) -> float:
    """After how long all curves are together where they were; the least common multiple of their periods, in
    milliseconds.

    Raises InputError where that is longer than any run.
    """
    periods = [c.arrival.period_s for c in config.class_ if c.arrival.curve]
    whole_s = math.lcm(*(max(round(1000 * one), 1) for one in periods)) / 1000 if periods else 0.0
    if whole_s > MAX_COMMON_S:
        raise InputError(
            f"[[workload.class]] arrival.period_s = {', '.join(f'{one:g}' for one in periods)}: expected periods that"
            f" are together again within {MAX_COMMON_S:g} s, these are after {whole_s:.3g} s"
        )
    return whole_s


def busiest(config: WorkloadConfig, length_s: float) -> float:
    """Second of the common period at which the stretch of length_s with the most requests begins."""
    whole_s = common_period_s(config)
    slots = np.unique(
        np.concatenate(
            [np.arange(0, whole_s, c.arrival.period_s / len(c.arrival.curve)) for c in config.class_ if c.arrival.curve]
        )
    )
    starts = np.unique(np.round(np.concatenate([slots, slots - length_s]) % whole_s, 6))
    return float(max(starts, key=lambda at: offered_per_s(config, at, at + length_s)))


def ramp_s(config: WorkloadConfig, token_s: float = NOMINAL_TOKEN_S) -> float:
    """Seconds until as many sessions are in progress as ever: five mean sessions of the longest class, ten long
    answers."""
    classes = _arriving(config)
    answers = max(float(dists.quantile(c.output, np.array([0.99]))[0]) for c in classes) * token_s
    return max(SESSIONS * max(session_s(c, token_s) for c in classes), ANSWERS * answers)


def fill_s(config: WorkloadConfig, kv_tokens: float, fills: int = FILLS) -> float:
    """Seconds in which the mix writes so many times kv_tokens of KV that no request before had: what a cache holds is
    settled some of them later, and what an LRU cache holds after one.

    At most the time of MOST requests: a fleet that large for its load never fills.
    """
    written = sum(rate * _new_tokens(c) for rate, c in zip(class_rates(config), config.class_, strict=True))
    longest = MOST / requests_per_s(config)
    return min(fills * kv_tokens / written, longest) if written else longest


def _new_tokens(c: MixClass) -> float:
    """Mean tokens of a session that only it has, prompts and answers."""
    turns = dists.moments(c.turns)[0]
    own = {"session": 1.0, "dynamic": turns}
    last = c.layers[-1]
    layers = sum(
        own.get(layer.scope, 0.0) * dists.moments(layer.tokens)[0]
        for layer in c.layers
        if layer is not last or layer.scope != "dynamic"
    )
    message = dists.moments(last.tokens)[0] if last.scope == "dynamic" else 0.0
    later = dists.moments(c.turn_input)[0] if c.turn_input else message
    return layers + message + (turns - 1) * later + turns * dists.moments(c.output)[0]


def window_s(config: WorkloadConfig, token_s: float = NOMINAL_TOKEN_S) -> float:
    """Seconds that a mix is watched when nobody says how long: long enough for its sessions, bursts, smallest class and
    period."""
    classes, rate = _arriving(config), requests_per_s(config)
    sessions = any(dists.can_exceed(c.turns, 1) for c in classes)
    wanted = max(2 * ramp_s(config, token_s), LEAST_S) if sessions else SINGLE_TURNS / rate
    most = max(MOST / rate, LONGEST * max(session_s(c, token_s) for c in classes))
    return float(math.ceil(max(min(max(wanted, rarest_s(config)), most), period_s(config))))


def rarest_s(config: WorkloadConfig) -> float:
    """Seconds in which enough of what is rare comes: requests of the smallest class, bursts and silences."""
    bursts = (BURSTS * (c.arrival.on_s + c.arrival.off_s) for c in _arriving(config) if c.arrival.kind == "onoff")
    return max(SMALLEST / min(r for r in rates_by_class(config) if r > 0), *bursts, 0.0)


def closed_requests(config: WorkloadConfig) -> int:
    """Requests of a fixed concurrency when nobody says how many."""
    rates = class_rates(config)
    turns = sum(r * dists.moments(c.turns)[0] for r, c in zip(rates, config.class_, strict=True)) / (sum(rates) or 1.0)
    slots, each = (
        config.concurrency or 1,
        [r * dists.moments(c.turns)[0] for r, c in zip(rates, config.class_, strict=True) if r > 0],
    )
    smallest = 2 * SMALLEST * sum(each) / min(each)  # about half of all are in the window
    return math.ceil(max(slots * turns * CLOSED, min(smallest, MOST)))


def _arriving(config: WorkloadConfig) -> list[MixClass]:
    return [c for c, rate in zip(config.class_, class_rates(config), strict=True) if rate > 0]
