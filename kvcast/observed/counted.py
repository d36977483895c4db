"""What two pages, some seconds apart, say of the load between them.

Names are those of vLLM's V1 engine (0.8 to 0.33), of its V0 engine, and of SGLang (0.4 to 0.5.23), from their sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcast.observed.page import Page
from workloads.errors import InputError


class Names(NamedTuple):
    """What an engine calls things; several where its versions differ, the newest first."""

    finished: tuple[str, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    prompts: str  #: histogram of prompt tokens of finished requests
    answers: str
    prompt_tokens: str  #: their sum, counted also where the histogram is off
    answer_tokens: str
    looked_up: tuple[str, ...]  #: prompt tokens that were looked up in the prefix cache
    hit: tuple[str, ...]
    usage: tuple[str, ...]  #: share of the KV memory in use
    replica: str  #: label that tells engines of one server apart


NAMES = {
    "vllm": Names(
        ("vllm:request_success_total",),
        ("vllm:num_requests_running",),
        ("vllm:num_requests_waiting",),
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "engine",
    ),
    "sglang": Names(
        ("sglang:num_requests_total",),
        ("sglang:num_running_reqs",),
        ("sglang:num_queue_reqs",),
        "sglang:prompt_tokens_histogram",
        "sglang:generation_tokens_histogram",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
        ("sglang:prompt_tokens_total",),
        ("sglang:cached_tokens_total",),
        ("sglang:token_usage",),
        "dp_rank",
    ),
}


class Lengths(NamedTuple):
    """Tokens of requests by bucket."""

    low: tuple[float, ...]  #: a bucket holds what is longer than this...
    high: tuple[float, ...]  #: ...and no longer than this; inf for the last
    requests: tuple[float, ...]
    mean: float | None  #: of all, as recorded


@dataclass
class Seen:
    """The load of one server."""

    engine: str
    source: str
    seconds: float
    model: str
    finished: int
    arrived: float  #: finished, and what is in the system more at the end than at the beginning
    prompts: Lengths
    answers: Lengths
    hit_rate: float | None  #: share of looked-up prompt tokens
    running: float  #: mean over the pages
    waiting: float
    usage: float | None
    replicas: int = 1
    block_size: int | None = None
    kv_blocks: int | None = None  #: of one replica
    prefix_caching: bool | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.arrived / self.seconds


def seen(pages: Sequence[tuple[float, Page]], seconds: float | None = None, model: str = "") -> Seen:
    """Of pages at their seconds, in order, the first and the last for what is counted. One page: everything since its
    server started, `seconds` ago. Raises InputError where they do not say it."""
    last_s, after = pages[-1]
    before = pages[0][1] if len(pages) > 1 else Page(after.source, after.engine)
    seconds = last_s - pages[0][0] if seconds is None else seconds
    names = NAMES[after.engine]
    if before.engine != after.engine:
        raise InputError(f"{before.source}: {before.engine}, but {after.source}: {after.engine}; expected one server's")
    model = _model(after, model)
    finished = _grown(before, after, names.finished)
    inside = [page.total(*names.running) + page.total(*names.waiting) for page in (before, after)]
    if finished < 1:
        raise InputError(
            f"{after.source}: no request finished in {seconds:g} s, expected a server with load, or longer"
        )
    looked_up, hit = _grown(before, after, names.looked_up), _grown(before, after, names.hit)
    found = Seen(
        after.engine,
        after.source,
        seconds,
        model,
        round(finished),
        max(finished + inside[1] - inside[0], 0.0),
        _lengths(before, after, names.prompts, names.prompt_tokens, finished),
        _lengths(before, after, names.answers, names.answer_tokens, finished),
        hit / looked_up if looked_up > 0 and hit <= looked_up else None,
        _mean([page.total(*names.running) for _, page in pages]),
        _mean([page.total(*names.waiting) for _, page in pages]),
        _mean([u for _, page in pages for name in names.usage for u in page.values(name)[-1:]]) or None,
        replicas=max(len(after.labels(names.replica)), 1),
    )
    if found.arrived <= 0:
        raise InputError(
            f"{after.source}: {finished:g} requests finished and {inside[0]:g} were there before: none came"
        )
    _memory(after, found)
    if found.hit_rate is None and (gauge := after.values("vllm:gpu_prefix_cache_hit_rate")) and gauge[-1] >= 0:
        found.hit_rate = min(gauge[-1], 1.0)
        found.notes.append("the hit rate is vLLM V0's gauge, of blocks since the server started")
    return found


def _model(page: Page, asked: str) -> str:
    served = page.labels("model_name")
    if asked and asked not in served:
        raise InputError(f"{page.source}: no model {asked!r}, expected one of {', '.join(served) or 'none named'}")
    if len(served) > 1 and not asked:
        raise InputError(
            f"{page.source}: {len(served)} models ({', '.join(served[:5])}), expected one: its own server's page"
        )
    return asked or next(iter(served), "")


def _grown(before: Page, after: Page, names: tuple[str, ...]) -> float:
    """By how much a counter grew."""
    low, high = before.total(*names), after.total(*names)
    if high < low:
        raise InputError(
            f"{after.source}: {names[0]} fell from {low:g} to {high:g}: the server restarted in between, or the pages"
            " are of two; expected to observe again"
        )
    return high - low


def _lengths(before: Page, after: Page, name: str, tokens: str, finished: float) -> Lengths:
    """The histogram; the mean alone where the server keeps none."""
    low, high = before.buckets(name), after.buckets(name)
    n, total = _grown(before, after, (f"{name}_count",)), _grown(before, after, (f"{name}_sum",))
    if n <= 0:
        mean = _grown(before, after, (tokens,)) / finished
        if mean <= 0:
            raise InputError(f"{after.source}: neither {name}_bucket nor {tokens} counts anything, expected lengths")
        return Lengths((), (), (), mean)
    ends = list(high)
    up_to = [high[end] - low.get(end, 0.0) for end in ends]
    counts = [here - there for here, there in zip(up_to, [0.0, *up_to], strict=False)]
    if not counts or min(counts) < 0 or sum(counts) <= 0:
        raise InputError(f"{after.source}: {name}_bucket does not grow with le, expected a histogram; observe again")
    return Lengths((0.0, *ends[:-1]), tuple(ends), tuple(counts), total / n)


def _memory(page: Page, found: Seen) -> None:
    """Block size and KV blocks, of whatever says them."""
    if page.engine == "sglang":
        size, tokens = page.values("sglang:page_size"), page.values("sglang:max_total_num_tokens")
        found.block_size = int(size[-1]) if size and size[-1] >= 1 else None
        if tokens and tokens[0] >= 1:
            found.kv_blocks = int(tokens[0]) // (found.block_size or 1)
        return
    told = [labels for labels, _ in page.samples.get("vllm:cache_config_info", ())]
    sizes, blocks = (_whole([one.get(name, "") for one in told]) for name in ("block_size", "num_gpu_blocks"))
    found.block_size, found.kv_blocks = sizes, blocks
    caching = {one.get("enable_prefix_caching") for one in told} & {"True", "False"}
    found.prefix_caching = caching == {"True"} if len(caching) == 1 else None


def _whole(texts: list[str]) -> int | None:
    """The least of the numbers among them."""
    numbers = [int(text) for text in texts if text.isdecimal() and len(text) < 13 and int(text) > 0]
    return min(numbers, default=None)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
