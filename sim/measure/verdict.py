"""Does a fleet meet its target? One rule and three words: meets, misses, not shown.

The one idea: a share of requests that were simulated is a sample, so it has an interval, and only the interval decides:
all of it at or above the target meets, all of it below misses, else it is not shown. Every class of requests must meet
its own target.

Requests are not independent: a queue makes neighbours late together, and a bad quarter of an hour may not be in the
sample at all. So the interval is the widest of four: the spread of independent runs, the spread of a few batches longer
than a busy period, Wilson's for independent requests, and what so few bad episodes allow. docs/coverage.md says how
often it holds the truth.

    >>> interval([good_of_seed_0, good_of_seed_1], 0.95).low
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sim.measure.quantiles import chi2, two_sided_normal, two_sided_t
from sim.recording import COMPLETED
from sim.scenario import SloClass, SloConfig
from workloads.columns import Workload
from workloads.config import POOLED

MEETS, MISSES, NOT_SHOWN = "meets", "misses", "not shown"
UNSTABLE, INTERVAL, NOBODY = "unstable", "only the interval", "no request arrived"
LIMITS = ("ttft_s", "tpot_s", "e2e_s")
CONFIDENCE = 0.95
BATCHES = (20, 10, 5)
"""In all. Whether 20 outlast a busy period cannot be seen in so few: stopping there when neighbours are not alike held
the long run's value near saturation in 250 of 290 runs, the widest of the three in 266 (docs/coverage.md)."""
PER_BATCH = 10
SEVERAL = 3
"""Runs whose own spread says something: of two, Student's t has one degree of freedom and is 13 wide."""
FEW = 5
"""Fewer runs with a miss, or bad episodes, say nothing about how good the fleet is at most."""


@dataclass(frozen=True)
class Interval:
    """A share and the ends of its interval."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """The longer side."""
        return max(self.mean - self.low, self.high - self.mean)


def interval(good: Sequence[np.ndarray], confidence: float = CONFIDENCE) -> Interval | None:
    """good: bool, per independent run, in order of arrival. None when nothing arrived.

    Half-widths in logits around the pooled share p, t(n - 1) s / (sqrt(n) p (1 - p)) by the delta method, from the n
    runs and from 20, 10 and 5 batches in all; never narrower than Wilson's; open at the top where bad episodes are few
    (`_episodes`)."""
    whole = np.concatenate([np.asarray(one, float) for one in good])
    n = len(whole)
    if not n:
        return None
    p = float(whole.mean())
    low, high = wilson(float(whole.sum()), n, confidence)
    runs = [np.asarray(one, float) for one in good if len(one)]
    half = max(
        _logit_half([float(one.mean()) for one in runs], p, confidence) if len(runs) >= SEVERAL else 0.0,
        _batch_half(runs, p, confidence),
    )
    low, high = min(low, _shifted(p, -half)), max(high, _shifted(p, half))
    episodes, with_miss = _episodes(runs), sum(bool((one == 0).any()) for one in runs)
    if episodes < FEW or (len(runs) > 1 and with_miss < min(FEW, len(runs))):
        low, high = min(low, _few(n - float(whole.sum()), episodes, n, confidence)), 1.0
    return Interval(p, max(0.0, min(low, p)), min(1.0, max(high, p)))


def _logit_half(shares: Sequence[float], p: float, confidence: float) -> float:
    n = len(shares)
    if n < 2 or not 0 < p < 1:
        return 0.0
    return two_sided_t(n, confidence) * float(np.std(shares, ddof=1)) / (math.sqrt(n) * p * (1 - p))


def _batch_half(runs: Sequence[np.ndarray], p: float, confidence: float) -> float:
    """The widest from 20, 10 and 5 equal batches in all, no fewer than one a run: none of them says whether it outlasts
    a busy period."""
    half = 0.0
    for each in sorted({max(batches // len(runs), 1) for batches in BATCHES}):
        if all(len(one) >= each * PER_BATCH for one in runs):
            half = max(
                half,
                _logit_half([float(part.mean()) for one in runs for part in np.array_split(one, each)], p, confidence),
            )
    return half


def _episodes(runs: Sequence[np.ndarray]) -> float:
    """How many bad episodes the misses amount to: (sum m)^2 / sum m^2 of the misses m in 20 batches of every run
    (Kish)."""
    missed = np.concatenate([[len(part) - part.sum() for part in np.array_split(one, BATCHES[0])] for one in runs])
    squares = float(missed @ missed)
    return float(missed.sum()) ** 2 / squares if squares else 0.0


def _few(missed: float, episodes: float, n: int, confidence: float) -> float:
    """Lower end from few episodes of missed / episodes misses each, whose number is Poisson."""
    each = missed / episodes if episodes else 1.0
    return 1 - each * chi2((1 + confidence) / 2, 2 * (episodes + 1)) / 2 / n


def _shifted(p: float, logits: float) -> float:
    if not 0 < p < 1:
        return p
    return 1 / (1 + math.exp(-(math.log(p / (1 - p)) + logits))) if abs(logits) < 500 else float(logits > 0)


def wilson(good: float, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share of n independent trials."""
    z = two_sided_normal(confidence)
    share, z2 = good / n, z * z / n
    centre, half = (share + z2 / 2) / (1 + z2), math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return centre - half, centre + half


def requests_needed(target: float, confidence: float) -> int:
    """The fewest requests that can show `target`: all of them good, Wilson's lower end is n / (n + z^2)."""
    return math.ceil(two_sided_normal(confidence) ** 2 * target / (1 - target)) if target < 1 else 0


# -- the verdict -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassVerdict:
    """One class of requests against its target."""

    name: str
    target: float
    requests: int
    attainment: Interval | None
    verdict: str
    worst: str | None  #: the limit that the most of its requests missed; None when none was missed

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "attainment": None if self.attainment is None else asdict(self.attainment)}


@dataclass(frozen=True)
class Verdict:
    word: str
    reason: str  #: what failed, in a word or two: a limit, UNSTABLE, INTERVAL or NOBODY; empty when it meets
    failed: str  #: the class that failed; empty when there is one class, or none failed
    classes: tuple[ClassVerdict, ...]

    def as_document(self) -> dict[str, Any]:
        return {
            "word": self.word,
            "reason": self.reason,
            "class": self.failed,
            "classes": [one.as_document() for one in self.classes],
        }


@dataclass(frozen=True)
class Sample:
    """The window's requests of one run in order of arrival. classes: (name, limits) by class_id."""

    classes: Sequence[tuple[str, SloClass]]
    columns: Mapping[str, np.ndarray]  #: class_id, good, completed, ttft_s, tpot_s, e2e_s


def named_limits(workload: Workload, limits: Sequence[tuple[str, SloClass]]) -> list[tuple[str, SloClass]]:
    """(name, limits) of every workload class, of sim.measure.metrics.limits_of."""
    return [(name, one) for name, (_, one) in zip(workload.class_names, limits, strict=True)]


def sample_of(
    columns: Mapping[str, np.ndarray],
    arrival_s: np.ndarray,
    inside: np.ndarray,
    classes: Sequence[tuple[str, SloClass]],
) -> Sample:
    """The requests `inside` (bool [n]) of one run's columns [n]."""
    rows = in_order(arrival_s, inside)
    return Sample(classes, {name: columns[name][rows] for name in ("class_id", "good", "completed", *LIMITS)})


def in_order(arrival_s: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """int32 [m]: the requests `inside` (bool [n]) by their arrival [n]."""
    rows = np.flatnonzero(inside).astype(np.int32)
    return rows[np.argsort(arrival_s[rows], kind="stable")]


def sample_in(requests: Mapping[str, np.ndarray], classes: Sequence[tuple[str, SloClass]]) -> Sample:
    """The window's requests of a Report's `requests`, or of a requests.parquet."""
    columns = {
        "class_id": requests["class_id"].astype(np.int64),
        "good": requests["good"].astype(bool),
        "completed": requests["status"] == COMPLETED,
    }
    return sample_of(
        columns | {name: requests[name] for name in LIMITS},
        requests["arrival_s"],
        requests["in_window"].astype(bool),
        classes,
    )


def groups(classes: Sequence[tuple[str, SloClass]], slo: SloConfig) -> list[tuple[str, float, list[int]]]:
    """(name, target, class ids) of whoever must reach a target. Classes without a limit are nobody's to fail."""
    target = slo.attainment or 0.0
    limited = [i for i, (_, limits) in enumerate(classes) if any(getattr(limits, name) is not None for name in LIMITS)]
    if slo.attained_by == POOLED:
        return [(POOLED, target, limited)]
    return [(classes[i][0], target if (own := classes[i][1].attainment) is None else own, [i]) for i in limited]


def judge(samples: Sequence[Sample], slo: SloConfig, stable: bool | None, confidence: float = CONFIDENCE) -> Verdict:
    """The verdict over independent runs of one scenario, whose [slo] has a target."""
    rows = tuple(
        _class_verdict(name, target, [_of(sample, members) for sample in samples], confidence)
        for name, target, members in groups(samples[0].classes, slo)
    )
    return _together(rows, stable)


def all_stable(answers: Sequence[bool | None]) -> bool | None:
    """Over independent runs. Half must drown: the test calls one in a hundred unstable that is not."""
    if 2 * answers.count(False) >= len(answers):
        return False
    return True if answers.count(True) == len(answers) else None


def _of(sample: Sample, members: Sequence[int]) -> dict[str, np.ndarray]:
    """The members' requests, and whether each was within each limit."""
    class_id, completed = sample.columns["class_id"], sample.columns["completed"]
    mine = np.isin(class_id, members) if len(members) < len(sample.classes) else slice(None)
    within = {}
    for limit in LIMITS:
        most = np.array(
            [np.inf if getattr(limits, limit) is None else getattr(limits, limit) for _, limits in sample.classes]
        )
        within[limit] = (completed & ~(sample.columns[limit] > most[class_id]))[mine]
    return {"good": sample.columns["good"][mine], **within}


def _class_verdict(name: str, target: float, runs: Sequence[dict[str, np.ndarray]], confidence: float) -> ClassVerdict:
    found = interval([run["good"] for run in runs], confidence)
    requests = sum(len(run["good"]) for run in runs)
    missed = {limit: sum(int((~run[limit]).sum()) for run in runs) for limit in LIMITS}
    worst = max(LIMITS, key=lambda limit: missed[limit])
    return ClassVerdict(name, target, requests, found, word(found, target), worst if missed[worst] else None)


def word(found: Interval | None, target: float) -> str:
    """A target of 1 can never be shown, only not be missed."""
    if found is None:
        return NOT_SHOWN
    if found.low >= target or found.mean == target == 1:
        return MEETS
    return MISSES if found.high < target else NOT_SHOWN


def _together(rows: tuple[ClassVerdict, ...], stable: bool | None) -> Verdict:
    told = len(rows) > 1
    if stable is False:
        worst = min(rows, key=_margin, default=None)
        return Verdict(
            MISSES,
            UNSTABLE if worst is None or worst.verdict == MEETS or worst.worst is None else worst.worst,
            worst.name if worst and told and worst.verdict != MEETS else "",
            rows,
        )
    if not rows:
        return Verdict(NOT_SHOWN, NOBODY, "", rows)
    for failing in (MISSES, NOT_SHOWN):
        failed = [row for row in rows if row.verdict == failing]
        if failed:
            worst = min(failed, key=_margin)
            return Verdict(failing, _reason(worst), worst.name if told else "", rows)
    return Verdict(MEETS, "", "", rows)


def _margin(row: ClassVerdict) -> float:
    return -math.inf if row.attainment is None else row.attainment.mean - row.target


def _reason(row: ClassVerdict) -> str:
    if row.attainment is None:
        return NOBODY
    if row.verdict == NOT_SHOWN and row.attainment.mean >= row.target:
        return INTERVAL
    return row.worst or INTERVAL
