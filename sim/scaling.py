"""How many replicas a rule asks for: pure functions on numbers, and the named rules that real autoscalers come with.

The one idea: every rule is Kubernetes' formula, ceil(n x metric / target), over another metric, followed by the same
two brakes: the highest of the last minutes on the way down (the lowest on the way up), and at most so many at once.

    >>> by_ratio(4, total=96.0, target=16.0, tolerance=0.1)
    6

Values of the named rules: FLEET facts of 2026 (Kubernetes HPA v2, llm-d, vLLM production-stack, Ray Serve, Knative).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

METRICS = ("requests", "running", "waiting", "kv", "tokens", "ttft")
MOST_PERCENT = 1e9
"""No limit."""


class Rule(NamedTuple):
    """What an autoscaler looks at and how it acts; keys of [autoscale] by the same names."""

    metric: str  #: one of METRICS, a replica
    target: float | None = None
    period_s: float = 15.0
    scrape_s: float = 15.0
    lookback_s: float = 0.0
    tolerance: float = 0.1
    up_wait_s: float = 0.0
    down_wait_s: float = 300.0
    up_percent: float = 100.0
    up_replicas: int = 4
    down_replicas: int | None = None
    panic_s: float = 0.0  #: knative: length of the window that makes it panic


RULES: dict[str, Rule] = {
    "hpa": Rule("requests"),
    "llm-d": Rule("running", 16.0),
    "llm-d-tokens": Rule("tokens", 0.8),
    "production-stack": Rule("waiting", 5.0, down_wait_s=360.0),
    "ray-serve": Rule(
        "requests",
        2.0,
        period_s=10.0,
        scrape_s=10.0,
        lookback_s=30.0,
        tolerance=0.0,
        up_wait_s=30.0,
        down_wait_s=600.0,
        up_percent=MOST_PERCENT,
    ),
    "knative": Rule(
        "requests",
        70.0,
        period_s=2.0,
        scrape_s=1.0,
        lookback_s=60.0,
        tolerance=0.0,
        down_wait_s=0.0,
        up_percent=MOST_PERCENT,
        panic_s=6.0,
    ),
    "slo": Rule("ttft", lookback_s=60.0, down_replicas=1),
}
"""Of each named rule what the scenario leaves open. hpa has no target, slo's is [slo] ttft_s."""
TOKENS_WAIT_S = 1.5
"""llm-d-tokens: seconds in which the backlog of prompt tokens is to be computed."""
PANIC = 2.0
"""knative: times the wanted number, asked for over the short window, from which on it only grows."""
ROUNDING = 1e-9


def by_ratio(n: int, total: float, target: float, tolerance: float) -> int:
    """Replicas that bring a metric to its target: ceil(n x (total / n) / target), or n where the ratio is within
    `tolerance` of 1. n: replicas wanted so far, at least 1; total: the metric summed over all replicas."""
    ratio = total / (n * target)
    return n if abs(ratio - 1) <= tolerance + ROUNDING else math.ceil(n * ratio - ROUNDING)


def by_tokens(backlog_tokens: float, tokens_per_s: float, kv_total: float, kv_target: float) -> int:
    """Replicas that compute the waiting prompt tokens in TOKENS_WAIT_S and hold the KV in use: the larger of the two.
    kv_total: replicas' worth of KV memory in use; kv_target: the share of it that is to be."""
    compute = math.ceil(backlog_tokens / tokens_per_s / TOKENS_WAIT_S - ROUNDING)
    return max(compute, math.ceil(kv_total / kv_target - ROUNDING))


def stabilised(asked: Sequence[tuple[float, int]], now_s: float, n: int, up_s: float, down_s: float) -> int:
    """n, moved up to the lowest number asked for in the last up_s, or down to the highest in the last down_s. asked:
    (time, replicas), the newest last and at now_s."""
    newest = asked[-1][1]
    up = min((many for at_s, many in asked if at_s > now_s - up_s), default=newest)
    down = max((many for at_s, many in asked if at_s > now_s - down_s), default=newest)
    return min(max(n, up), down) if up <= down else newest


def limited(n: int, asked: int, up_percent: float, up_replicas: int, down_replicas: int | None) -> int:
    """At most n x up_percent or up_replicas more (the larger), at most down_replicas fewer."""
    if asked > n:
        return min(asked, max(math.ceil(n * (1 + up_percent / 100) - ROUNDING), n + up_replicas))
    return max(asked, n - down_replicas) if down_replicas is not None else asked


def scheduled(times_s: Sequence[float], replicas: Sequence[int], cycle_s: float, clock_s: float) -> int:
    """What a table says at a time of its clock: the row whose time came last; before the first, the last row of the
    cycle before."""
    return replicas[bisect_right(times_s, clock_s % cycle_s) - 1]


def next_change_s(times_s: Sequence[float], cycle_s: float, clock_s: float) -> float:
    """Seconds until the next row's time."""
    within = clock_s % cycle_s
    after = bisect_right(times_s, within)
    return (times_s[after] if after < len(times_s) else cycle_s + times_s[0]) - within


class Seen(NamedTuple):
    """What the metrics of the replicas say at one moment, summed over them; requests that no replica has wait too."""

    at_s: float
    running: int
    waiting: int
    kv: float  #: shares of KV memory in use, a replica's being 1 at most
    backlog_tokens: int  #: of prompts that wait

    def of(self, metric: str) -> float:
        return {"running": self.running, "waiting": self.waiting, "kv": self.kv}.get(
            metric, self.running + self.waiting
        )


class Scaler:
    """How many replicas a rule wants, from what it sees. Mutates only what it has asked for before."""

    def __init__(
        self, rule: Rule, least: int, most: int, begins: int | None = None, tokens_per_s: float = math.nan
    ) -> None:
        """begins: with how many, `most` by default, which count as asked for at time 0. tokens_per_s: prefill of one
        replica, for llm-d-tokens."""
        assert rule.target is not None
        self.rule, self.least, self.most, self.target = rule, least, most, rule.target
        self.wanted = most if begins is None else begins
        self._tokens_per_s = tokens_per_s
        self._asked = [(0.0, self.wanted)]
        self._panicked_s = -math.inf

    def decide(self, now_s: float, seen: Sequence[Seen], ttft_s: float = 0.0) -> int:
        """Replicas wanted from now on (mutates). seen: of the look-back, the newest last; none changes nothing."""
        if not seen:
            return self.wanted
        rule, asked = self.rule, self._asks(seen, ttft_s)
        if rule.panic_s:
            asked = self._panics(now_s, seen, asked)
        longest_s = max(rule.up_wait_s, rule.down_wait_s)
        self._asked = [one for one in self._asked if one[0] > now_s - longest_s] + [(now_s, asked)]
        n = stabilised(self._asked, now_s, self.wanted, rule.up_wait_s, rule.down_wait_s)
        n = limited(self.wanted, n, rule.up_percent, rule.up_replicas, rule.down_replicas)
        n = min(max(n, self.least), self.most)
        if n < self.wanted and rule.down_replicas is not None:
            self._asked = [(now_s, n)]  # what was asked for before was of another fleet
        self.wanted = n
        return n

    def _asks(self, seen: Sequence[Seen], ttft_s: float) -> int:
        rule, n = self.rule, self.wanted
        if rule.metric == "tokens":
            return by_tokens(seen[-1].backlog_tokens, self._tokens_per_s, seen[-1].kv, self.target)
        if rule.metric == "ttft":
            return by_ratio(n, n * ttft_s, self.target, rule.tolerance)
        mean = sum(one.of(rule.metric) for one in seen) / len(seen)
        return by_ratio(n, mean, self.target, rule.tolerance)

    def _panics(self, now_s: float, seen: Sequence[Seen], asked: int) -> int:
        """Over the short window it asks for PANIC times as many: until a look-back later it only grows."""
        soon = self._asks([one for one in seen if one.at_s > seen[-1].at_s - self.rule.panic_s], 0.0)
        if soon >= PANIC * self.wanted:
            self._panicked_s = now_s
        return max(asked, soon, self.wanted) if now_s - self._panicked_s < self.rule.lookback_s else asked
