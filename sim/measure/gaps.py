"""Inter-token latency: the pooled gaps between consecutive output tokens, described without listing them.

The one idea: a request emits one token at the end of every step from its first to its last (with SGLang's semantics, of
every step that decodes). So the pooled gaps are those between step ends, each as often as requests span it (a
difference array and a cumsum), plus the few that the recording lists. One replica at a time: a histogram over the
leading bits finds the few values around each wanted rank, so percentiles equal `numpy.percentile` of the pooled list,
and no array is longer than one replica's steps.

    >>> of_every_group, = [describe(rec, [rec.status == COMPLETED])]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from sim.measure.metrics import PERCENTILES, dot, emitting_steps, named
from sim.recording import Recording, by_replica

Parts = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Gives values (float64 [m], at least 0) and how often each group has them (float64 [groups, m], whole numbers), part
by part; called once for each pass."""
KEPT = 1 << 20
"""Gaps of a recording that are kept between the passes rather than made again."""
LEADING = 40
"""Bits of a double that a bucket does not tell apart: buckets are 2**-12 of their value wide, or less."""


def describe(rec: Recording, groups: Sequence[np.ndarray], scale: float = 1e3) -> list[dict[str, float | None]]:
    """mean, median, std and p50 to p99 of the gaps (in ms) of each group's requests.

    groups: bool [n requests] each; only requests with a last step may be in one."""
    if sum(len(steps) for steps in rec.steps) <= KEPT:
        kept = list(parts(rec, groups, scale))
        return described(lambda: kept, len(groups))
    return described(lambda: parts(rec, groups, scale), len(groups))


def pooled(rec: Recording, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All gaps in seconds, and how often the group's requests had each: float64 [m] both."""
    values, counts = zip(*parts(rec, [group], 1.0), strict=True)
    return np.concatenate(values), np.concatenate(counts, axis=1)[0]


def events(rec: Recording, group: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each replica, float64 [m] each: when the later token of a gap was there, its seconds, and how many requests of
    the group had it."""
    listed = by_replica(np.where(group[rec.gaps_request], rec.replica[rec.gaps_request], -1), len(rec.steps))
    for replica, (values, counts) in enumerate(parts(rec, [group], 1.0)):
        told_s, emitting = rec.told_s(replica), emitting_steps(rec, replica)
        ends_s = told_s if emitting is None else told_s[emitting]
        yield np.concatenate([ends_s[1:], told_s[rec.gaps_to_step[listed[replica]]]]), values, counts[0]


def parts(rec: Recording, groups: Sequence[np.ndarray], scale: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The gaps of one replica after the other."""
    anyone = np.logical_or.reduce(groups)
    requests = by_replica(np.where(anyone, rec.replica, -1), len(rec.steps))
    listed = by_replica(np.where(anyone[rec.gaps_request], rec.replica[rec.gaps_request], -1), len(rec.steps))
    for replica, (members, gaps) in enumerate(zip(requests, listed, strict=True)):
        told_s, emitting = rec.told_s(replica), emitting_steps(rec, replica)
        from_step, to_step = rec.gaps_from_step[gaps], rec.gaps_to_step[gaps]
        ends_s = told_s if emitting is None else told_s[emitting]
        steps = max(len(ends_s) - 1, 0)
        values = np.empty(steps + len(gaps))
        np.subtract(ends_s[1:], ends_s[:-1], out=values[:steps])
        np.subtract(told_s[to_step], told_s[from_step], out=values[steps:])
        values *= scale
        counts = np.zeros((len(groups), len(values)))
        begin, end, leave, back = (
            step if emitting is None else np.searchsorted(emitting, step)  # or the next in which decodes emit
            for step in (rec.first_step[members], rec.last_step[members], from_step, to_step)
        )
        for group, count in zip(groups, counts, strict=True):
            inside, count[steps:] = group[members], group[rec.gaps_request[gaps]]
            here = count[:steps]
            if not steps:
                continue
            _spanned(here, begin[inside], end[inside], 1.0)
            _spanned(here, leave[count[steps:] > 0], back[count[steps:] > 0], -1.0)
            np.cumsum(here, out=here)
        yield values, counts


def described(parts: Parts, groups: int) -> list[dict[str, float | None]]:
    """`metrics.describe` of the list that holds every value as often as its count says, for each group."""
    histograms = [_Histogram() for _ in range(groups)]
    for values, counts in parts():
        buckets = _buckets(values)
        for histogram, count in zip(histograms, counts, strict=True):
            histogram.add(buckets, values, count)
    for histogram in histograms:
        histogram.close()
    for values, counts in parts():
        buckets = _buckets(values)
        for histogram, count in zip(histograms, counts, strict=True):
            histogram.look_again(buckets, values, count)
    return [histogram.described() for histogram in histograms]


class _Histogram:
    """Counts by bucket in a first pass, the values of the buckets that hold wanted ranks in a second."""

    def __init__(self) -> None:
        self.n, self.total, self.squares = 0.0, 0.0, 0.0
        self.lowest = 0  #: bucket of counts[0]
        self.counts = np.zeros(0)
        self.near: list[np.ndarray] = []
        self.near_counts: list[np.ndarray] = []

    def add(self, buckets: np.ndarray, values: np.ndarray, counts: np.ndarray) -> None:
        if not counts.any():
            return
        self.n += float(counts.sum())
        self.total += dot(values, counts)
        low, high = int(buckets.min()), int(buckets.max())
        self._reach(low, high)
        self.counts[low - self.lowest : high + 1 - self.lowest] += np.bincount(buckets - low, weights=counts)

    def _reach(self, low: int, high: int) -> None:
        if not len(self.counts):
            self.lowest = low
        before, behind = max(self.lowest - low, 0), max(high + 1 - self.lowest - len(self.counts), 0)
        if before or behind:
            self.counts, self.lowest = np.pad(self.counts, (before, behind)), self.lowest - before

    def close(self) -> None:
        """Between the passes: the ranks that are wanted and the buckets that hold them."""
        if not self.n:
            return
        self.mean = self.total / self.n
        self.place = np.array(PERCENTILES) / 100 * (self.n - 1)
        below = self.counts.cumsum()
        rank = np.floor(self.place)
        self.ranks = np.concatenate([rank, np.minimum(rank + 1, self.n - 1)])
        holds = np.searchsorted(below, self.ranks, side="right")
        self.wanted = np.zeros(len(self.counts), bool)
        self.wanted[holds] = True
        self.left_out = np.where(self.wanted, 0, self.counts).cumsum()[holds]

    def look_again(self, buckets: np.ndarray, values: np.ndarray, counts: np.ndarray) -> None:
        if not counts.any():
            return
        deviation = values - self.mean
        self.squares += dot(deviation * deviation, counts)
        keep = np.flatnonzero((counts > 0) & self.wanted[np.clip(buckets - self.lowest, 0, len(self.wanted) - 1)])
        self.near.append(values[keep])
        self.near_counts.append(counts[keep])

    def described(self) -> dict[str, float | None]:
        if not self.n:
            return named(None, None, None)
        near, counts = np.concatenate(self.near), np.concatenate(self.near_counts)
        order = np.argsort(near)
        place = np.searchsorted(counts[order].cumsum(), self.ranks - self.left_out, side="right")
        lower, upper = np.split(near[order][place], 2)
        percentiles = lower + (upper - lower) * (self.place - np.floor(self.place))
        return named(self.mean, float(np.sqrt(self.squares / self.n)), percentiles)


def _buckets(values: np.ndarray) -> np.ndarray:
    """int64 [m] that never decreases with the value (at least 0): the leading bits of a double."""
    return (values + 0.0).view(np.int64) >> LEADING  # + 0.0: a negative zero has its sign bit set


def _spanned(here: np.ndarray, first: np.ndarray, last: np.ndarray, by: float) -> None:
    """Add to here [n] how the number of [first, last] that hold both step i and i + 1 differs from i - 1, times
    `by`."""
    np.add.at(here, first[first < len(here)], by)
    np.add.at(here, last[last < len(here)], -by)
