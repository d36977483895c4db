"""What a server says of itself while it works: its hit rate, and how long an output token takes at which batch.

The one idea: two pages a moment apart say how many requests ran and how long their tokens took, two of a simulation
say the same, so both are one curve by one rule, without a clock in common. A log line of the engine says it too: so
many running, so many tokens a second.

    >>> watched = scraped(Path("pages.om"))
    >>> curve(watched.spans)[0]
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from kvcast.observed.counted import NAMES
from kvcast.observed.page import Page, saved, series
from workloads.errors import InputError

MOST = 1200  #: pages that are read
LEAST_SPANS = 3  #: of a row of the curve
GAPS = {
    "vllm": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "sglang": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
}
"""Histograms of the time between two output tokens, the newest name first."""
VLLM_LINE = re.compile(
    r"generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs, Waiting: (\d+) reqs"
    r"(?:.*?[Pp]refix cache hit rate: (?:GPU: )?([\d.]+) ?%)?"
)
SGLANG_LINE = re.compile(
    r"Decode batch.*?#running-req: (\d+).*?gen throughput \(token/s\): ([\d.]+)(?:.*?#queue-req: (\d+))?"
)
SGLANG_PREFILL = re.compile(r"Prefill batch.*?#new-token: (\d+).*?#cached-token: (\d+)")
TIME = re.compile(r"(\d\d):(\d\d):(\d\d)")
"""Of vLLM's and SGLang's own logs, a line every 10 s and one every 40 decode steps."""


class Span(NamedTuple):
    """What happened between two moments, of one engine on average."""

    seconds: float
    running: float  #: requests in the batch, the mean of both ends
    waiting: float
    tokens: float  #: output tokens
    gaps: float = 0.0  #: times between two output tokens: how many
    gaps_s: float = 0.0  #: and their sum


@dataclass(frozen=True)
class Watched:
    """A server for some time."""

    source: str
    spans: Sequence[Span]
    hit_rate: float | None  #: share of looked-up prompt tokens
    finished: float | None  #: requests

    @property
    def every_s(self) -> float:
        """Median length of a span."""
        lengths = sorted(span.seconds for span in self.spans)
        return lengths[len(lengths) // 2]

    @property
    def by_gaps(self) -> bool:
        """Whether the engine recorded the times between tokens."""
        return any(span.gaps for span in self.spans)


def scraped(path: Path) -> Watched:
    """Of pages over time: one OpenMetrics text with timestamps, or a folder of pages each named after its second.
    Raises InputError for what is neither."""
    pages = _folder(path) if path.is_dir() else series(path, MOST) if path.is_file() else None
    if pages is None:
        raise InputError(f"--scrapes {path}: not found, expected pages over time")
    return watched(pages, str(path))


def _folder(path: Path) -> list[tuple[float, Page]]:
    found = []
    for one in path.iterdir():
        try:
            found.append((float(one.stem if one.suffix in (".txt", ".prom") else one.name), one))
        except ValueError:
            raise InputError(
                f"--scrapes {one}: expected a page named after its second, such as 1795000000.txt"
            ) from None
    if not 2 <= len(found) <= MOST:
        raise InputError(f"--scrapes {path}: {len(found)} pages, expected 2 to {MOST}")
    return [(at_s, saved(one)) for at_s, one in sorted(found)]


def watched(pages: Sequence[tuple[float, Page]], source: str) -> Watched:
    """Of pages at their seconds, in order. Raises InputError where a counter falls."""
    first, last = pages[0][1], pages[-1][1]
    names = NAMES[last.engine]
    looked_up, hit = _grown(first, last, names.looked_up), _grown(first, last, names.hit)
    return Watched(
        source,
        [_span(*pair) for pair in pairwise(pages)],
        hit / looked_up if 0 <= hit <= looked_up and looked_up > 0 else None,
        _grown(first, last, names.finished),
    )


def _span(one: tuple[float, Page], two: tuple[float, Page]) -> Span:
    (began_s, before), (ended_s, after) = one, two
    names, engines = NAMES[after.engine], max(len(after.labels(NAMES[after.engine].replica)), 1)
    gaps = next((name for name in GAPS[after.engine] if after.has(f"{name}_count")), GAPS[after.engine][0])
    ends = [[page.total(*those) for page in (before, after)] for those in (names.running, names.waiting)]
    running = min(ends[0]) and sum(ends[0]) / 2  # idle at one end: no batch of this span
    return Span(
        ended_s - began_s,
        running / engines,
        sum(ends[1]) / 2 / engines,
        _grown(before, after, (names.answer_tokens,)) / engines,
        _grown(before, after, (f"{gaps}_count",)),
        _grown(before, after, (f"{gaps}_sum",)),
    )


def _grown(before: Page, after: Page, names: tuple[str, ...]) -> float:
    grown = after.total(*names) - before.total(*names)
    if grown < 0:
        raise InputError(f"{after.source}: {names[0]} falls: the server restarted in between, expected one run of it")
    return grown


def logged(path: Path) -> Watched | None:
    """Of the lines that vLLM and SGLang log of their load; None of a log without."""
    text = path.read_text(encoding="utf-8", errors="replace")
    rows, at_s, shares, new, cached = list[tuple[float, float, float]](), list[float](), list[float](), 0, 0
    for line in text.splitlines():
        if found := VLLM_LINE.search(line):
            rows.append((float(found[2]), float(found[3]), float(found[1])))
            shares += [float(found[4]) / 100] if found[4] else []
        elif found := SGLANG_LINE.search(line):
            rows.append((float(found[1]), float(found[3] or 0), float(found[2])))
        else:
            if found := SGLANG_PREFILL.search(line):
                new, cached = new + int(found[1]), cached + int(found[2])
            continue
        clock = TIME.search(line)
        at_s.append(sum(int(n) * unit for n, unit in zip(clock.groups(), (3600, 60, 1), strict=True)) if clock else 0.0)
    if not rows:
        return None
    steps = sorted(then - now for now, then in pairwise(at_s) if then > now)
    every_s = max(float(steps[len(steps) // 2]), 1.0) if steps else 10.0
    spans = [
        Span(every_s, (a[0] + b[0]) / 2 if a[0] and b[0] else 0.0, b[1], b[2] * every_s) for a, b in pairwise(rows)
    ]
    hit_rate = cached / (new + cached) if new + cached else shares[-1] if shares else None
    return Watched(str(path), spans, hit_rate, None)


def curve(spans: Sequence[Span], by_gaps: bool = True) -> dict[int, tuple[float, float, float]]:
    """{k: (requests running, requests waiting, seconds of an output token)} of the spans in which 2^k to 2^(k+1)
    requests ran, where there are LEAST_SPANS of them. by_gaps: by the times between tokens, else by requests running
    over tokens a second."""
    rows: dict[int, list[Span]] = {}
    for span in spans:
        if span.running >= 1 and span.tokens > 0:
            rows.setdefault(int(math.log2(span.running)), []).append(span)
    found = {}
    for k, mine in sorted(rows.items()):
        tokens = math.fsum(span.gaps if by_gaps else span.tokens for span in mine)
        if len(mine) < LEAST_SPANS or tokens <= 0:
            continue
        seconds = math.fsum(span.gaps_s if by_gaps else span.running * span.seconds for span in mine)
        lasted = math.fsum(span.seconds for span in mine)
        running, waiting = (
            math.fsum(getattr(s, name) * s.seconds for s in mine) / lasted for name in ("running", "waiting")
        )
        found[k] = (running, waiting, seconds / tokens)
    return found
