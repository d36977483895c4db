"""What a fleet is for: six uses, each a mix of one class, sized to a model's context.

The one idea: a use says how its users behave (turns, pauses, new tokens) and is made to fit whatever model is chosen.
A session whose history would outgrow the context is compacted, as agents do: it ends there and goes on as another
session, which begins with the same layers and, in the place of the task, a summary.

    >>> sized(USES["coding-agent"], context=131_072).mix.class_[0].turns
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from workloads import dists
from workloads.config import Arrival, Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.steady import session_s
from workloads.toml import load_preset

SURE = 2.33
"""Standard deviations of a session's length that stay free in the context: one session in a hundred outgrows it."""
PARTS, ENOUGH = (4, 8), 4
"""A single text (a repository, a task, an answer) of a session is cut at a fourth of what the shared head leaves of the
context, or at an eighth where fewer turns than ENOUGH would fit; without sessions only at the context itself."""


@dataclass(frozen=True)
class Use:
    """How one kind of user asks. context: tokens that a session grows to at most, whatever the model takes.

    pause_s: mean seconds between two sessions of a user who is at work; known: whether its source says what is shared.
    """

    name: str
    title: str
    source: str
    class_: MixClass
    context: int
    pause_s: float
    known: bool
    ttft_s: float = 1.0
    tpot_s: float | None = 0.05


def _preset(preset: str, **changed: object) -> MixClass:
    """A class of a bundled mix, at a steady rate: a plan is for the hour in which so many are at work."""
    return replace(load_preset(preset).class_[0], arrival=Arrival(), share=1.0, rate=None, slo_class="", **changed)  # type: ignore[arg-type]


def _lognormal(median: float, p90: float, high: float) -> Dist:
    return Dist(kind="lognormal", median=median, p90=p90, high=high)


CHAT = _preset("demo", turns=Dist(kind="geometric", mean=4.0, high=30.0), think=_lognormal(60.0, 240.0, 900.0))
TOOL_AGENT = _preset(
    "tool-agent-api",
    name="tool-agent",
    turns=Dist(kind="geometric", mean=5.0, high=30.0),
    tool_share=1.0,
    tool_gap=_lognormal(3.0, 15.0, 120.0),
    turn_input=_lognormal(300.0, 1300.0, 8000.0),
    output=_lognormal(100.0, 400.0, 2000.0),
)

USES = {
    one.name: one
    for one in (
        Use(
            "chat",
            "chat, several turns",
            "preset demo's chat (answers from the Azure trace); turns, pauses and a shared system prompt are judged",
            CHAT,
            32_768,
            0.0,
            True,
        ),
        Use(
            "coding-agent",
            "coding agent",
            "preset coding-agent (710 recorded sessions); compaction at the model's context",
            _preset("coding-agent"),
            200_000,
            0.0,
            True,
        ),
        Use(
            "rag",
            "questions about long documents",
            "preset rag (synthetic); a question every minute of a user is judged",
            _preset("rag"),
            98_304,
            60.0,
            True,
            ttft_s=3.0,
        ),
        Use(
            "batch",
            "batch summarisation",
            "preset batch-summarisation (28,257 papers); a user is a worker with one document at a time",
            _preset("batch-summarisation"),
            16_384,
            0.0,
            False,
            ttft_s=30.0,
            tpot_s=None,
        ),
        Use(
            "tool-agent",
            "agent that calls tools",
            "prompt sizes of preset tool-agent-api; turns, answers and the pauses of tools are judged",
            TOOL_AGENT,
            32_768,
            0.0,
            True,
        ),
        Use(
            "reasoning",
            "reasoning, long answers",
            "preset reasoning (DeepSeek-R1 clients), at a steady rate; a question every two minutes is judged",
            _preset("reasoning"),
            65_536,
            120.0,
            False,
            ttft_s=2.0,
        ),
    )
}


@dataclass(frozen=True)
class Sized:
    """A use as a mix: rates are in sessions of the mix, of which a user's session has `parts` where it is compacted."""

    use: Use
    mix: WorkloadConfig  #: of one class, at one session a second
    context: int  #: tokens that a request of it has at most
    parts: float
    compacted_at: int | None  #: turns of a part; None: no session comes so far

    @property
    def user_s(self) -> float:
        """Seconds of one user's time that a session of the mix takes, the pause after it included."""
        c = self.mix.class_[0]
        return session_s(c) + self.use.pause_s + (1 - 1 / self.parts) * _gap_s(c)

    @property
    def turns(self) -> float:
        """Requests of a session of the mix, on average."""
        return dists.moments(self.mix.class_[0].turns)[0]


def sized(
    use: Use, context: int, system: int | None = None, new_tokens: int | None = None, answer: int | None = None
) -> Sized:
    """The use for a model of this context, in tokens. system: of the prompt's head that everybody shares; new_tokens
    and answer: medians, whose spread keeps its shape. Raises InputError where not even one turn fits."""
    context = min(context, use.context)
    c = _asked(use.class_, system, new_tokens, answer)
    head = sum(dists.moments(layer.tokens)[0] for layer in c.layers if layer.scope == "global")
    room = int(context - head)
    several = dists.can_exceed(c.turns, 1)
    tries = [
        (one, _turns_that_fit(one, context))
        for one in (_cut(c, room // part) for part in (PARTS if several else (1, *PARTS)) if room >= part)
    ]
    fitting = [one for one in tries if one[1] >= (ENOUGH if several else 1)] or [one for one in tries[-1:] if one[1]]
    if not fitting:
        raise InputError(
            f"--use {use.name}: {head:,.0f} tokens of system prompt and tools and a turn do not fit in a context of"
            f" {context:,} tokens; expected a model with a longer one, or a smaller --system"
        )
    c, parts, cut = _compacted(*fitting[0])
    return Sized(use, WorkloadConfig(rate=1.0, class_=(c,)), context, parts, cut)


def _asked(c: MixClass, system: int | None, new_tokens: int | None, answer: int | None) -> MixClass:
    if system is not None:
        head = (Layer(name="system", scope="global", tokens=Dist(value=float(system))),) if system else ()
        c = replace(c, layers=(*head, *(layer for layer in c.layers if layer.scope != "global")))
    if answer is not None:
        c = replace(c, output=_of_median(c.output, answer))
    if new_tokens is None:
        return c
    if c.turn_input is not None:
        return replace(c, turn_input=_of_median(c.turn_input, new_tokens))
    *before, message = c.layers
    return replace(c, layers=(*before, replace(message, tokens=_of_median(message.tokens, new_tokens))))


def _of_median(dist: Dist, median: float) -> Dist:
    """The same shape at another median."""
    return _scaled(dist, median / float(dists.quantile(dist, np.array([0.5]))[0]))


def _scaled(dist: Dist, factor: float) -> Dist:
    names = ("value", "mean", "median", "p90", "low", "high")
    changed = {name: value * factor for name in names if (value := getattr(dist, name)) is not None}
    return replace(dist, **changed, values=tuple(value * factor for value in dist.values))


def _at_most(dist: Dist, high: int) -> Dist:
    """Cut at so many tokens where it reaches beyond."""
    if not dists.can_exceed(dist, high):
        return dist
    if dist.kind == "fixed":
        return replace(dist, value=float(high))
    low = None if dist.low is None else min(dist.low, float(high))
    return replace(dist, high=float(high), low=low)


def _cut(c: MixClass, most: int) -> MixClass:
    """No text but the shared head is longer than `most` tokens."""
    layers = (one if one.scope == "global" else replace(one, tokens=_at_most(one.tokens, most)) for one in c.layers)
    turn_input = c.turn_input and _at_most(c.turn_input, most)
    return replace(c, output=_at_most(c.output, most), turn_input=turn_input, layers=tuple(layers))


def _turns_that_fit(c: MixClass, context: int) -> int:
    """Turns after which a session's history has room for no other, in all but a hundredth of the sessions."""
    opening, spread = _sum([layer.tokens for layer in c.layers])
    more, more_spread = _sum([c.output, *([c.turn_input] if c.turn_input else [])])
    first, first_spread = _sum([c.output])
    fits = 0
    while fits < 10_000:
        n = fits  # later turns than the first
        mean = opening + first + n * more
        if mean + SURE * math.sqrt(spread + first_spread + n * more_spread) > context:
            break
        fits += 1
        if not dists.can_exceed(c.turns, fits):
            break
    return fits


def _sum(parts: list[Dist]) -> tuple[float, float]:
    """Mean and variance of a sum of independent token counts."""
    means, squares = zip(*(dists.moments(one) for one in parts), strict=True) if parts else ((), ())
    return sum(means), sum(square - mean * mean for mean, square in zip(means, squares, strict=True))


def _compacted(c: MixClass, fits: int) -> tuple[MixClass, float, int | None]:
    """The class with sessions of at most `fits` turns; how many of them one session becomes, on average."""
    if not dists.can_exceed(c.turns, fits):
        return c, 1.0, None
    turns = np.maximum(1, np.rint(dists.quantile(c.turns, (np.arange(4000) + 0.5) / 4000))).astype(int)
    whole, rest = np.divmod(turns, fits)
    lengths = np.concatenate([np.full(whole.sum(), fits), rest[rest > 0]])
    values, count = np.unique(lengths, return_counts=True)
    shares = tuple(round(float(one), 6) for one in count / len(lengths))
    dist = Dist(kind="empirical", values=tuple(float(value) for value in values), weights=shares)
    return replace(c, turns=dist), len(lengths) / len(turns), fits


def _gap_s(c: MixClass) -> float:
    """Mean seconds between an answer and the session's next request."""
    think = dists.moments(c.think, whole=False)[0] if c.think else 0.0
    tool = dists.moments(c.tool_gap, whole=False)[0] if c.tool_gap else 0.0
    return c.tool_share * tool + (1 - c.tool_share) * think
