"""The shared half of every step-time source: how a step's parts add up, and decode as a piecewise-linear curve.

The one idea: for a fixed number of decoding sequences everything but attention is a constant and attention is
piecewise linear in the sum of the contexts. That curve is built once per batch size and kept, so a step is a
dictionary look-up, a bisection and a multiply-add, and the same multiply-add on a numpy array gives a whole
stretch of steps to the last bit.

    python -c "from calibrate.latency import load_step_time as f; print(f('h200-llama-3.1-8b-aic').step([], 32, 65536,
    4096, 32))"
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrate.host import NONE, HostTime
from calibrate.step import EXTRAPOLATED, INTERPOLATED, MEASURED

MAX_CURVES = 4096
"""Decode curves kept per object; a batch size beyond that rebuilds the cache from empty. So for dense passes by their
tokens."""


@dataclass(frozen=True, slots=True)
class Line:
    """A piecewise-linear function of one variable: knots ascending, value and slope at each, the last slope going
    on."""

    knots: list[float]
    values: list[float]
    slopes: list[float]
    rising_from: float = field(init=False, compare=False)
    """Never falls from here on: of ascending points beyond it the first is the lowest and the last the highest."""
    _arrays: tuple[np.ndarray, np.ndarray, np.ndarray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_arrays", (np.array(self.knots), np.array(self.values), np.array(self.slopes)))
        falling = [self.knots[i + 1] for i, slope in enumerate(self.slopes[:-1]) if slope < 0]
        object.__setattr__(self, "rising_from", falling[-1] if falling else 0.0)

    @classmethod
    def through(cls, knots: Sequence[float], values: Sequence[float], last_slope: float | None = None) -> Line:
        """Linear between the points; below the first it stays level, beyond the last it keeps the last slope (never
        falling)."""
        x, y = [float(v) for v in knots], [float(v) for v in values]
        slopes = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
        beyond = last_slope if last_slope is not None else (slopes[-1] if slopes else 0.0)
        slopes.append(max(beyond, 0.0))
        if x[0] > 0:
            x, y, slopes = [0.0, *x], [y[0], *y], [0.0, *slopes]
        return cls(x, y, slopes)

    def at(self, x: float) -> float:
        i = bisect_right(self.knots, x) - 1
        return self.values[i] + (x - self.knots[i]) * self.slopes[i]

    def at_many(self, x: np.ndarray) -> np.ndarray:
        """`at` for an ascending int64 array; the same operations on every element."""
        first, last = bisect_right(self.knots, int(x[0])) - 1, bisect_right(self.knots, int(x[-1])) - 1
        if first == last:
            return self.values[first] + (x - self.knots[first]) * self.slopes[first]
        knots, values, slopes = self._arrays
        i = knots.searchsorted(x, side="right") - 1
        return values[i] + (x - knots[i]) * slopes[i]


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """A decode batch of one size: a constant, attention by sum of contexts, and up to where the source vouches for
    it."""

    constant_s: float
    attention: Line
    max_sum: float
    coverage: int
    min_sum: float = 0.0
    """Sum of contexts below which the shortest measured context lies: the operator's form from there down."""
    skew: float = 0.0
    """Share of the way from the mean-context time to the longest-context time that unequal contexts cost."""
    form: Unequal | None = None
    """Instead of `skew`: how much longer a fitted form takes than at equal contexts."""


@dataclass(frozen=True, slots=True)
class Unequal:
    """overhead + sqrt((longest x L)^2 + (token x sum + constant)^2) of a decode batch; sqrt is exact on scalars and
    arrays alike."""

    overhead: float
    longest: float
    token: float
    constant: float

    def us(self, total: float, longest: float) -> float:
        """Microseconds at a sum of contexts and a longest one."""
        memory, top = self.token * total + self.constant, self.longest * longest
        return self.overhead + math.sqrt(top * top + memory * memory)

    def ratio(self, sqrt: Any, n: int, total: Any, longest: Any) -> Any:
        """Time at this longest context over the time with all contexts equal."""
        memory = self.token * total + self.constant
        top, mean = self.longest * longest, self.longest * (total / n)
        return (self.overhead + sqrt(top * top + memory * memory)) / (
            self.overhead + sqrt(mean * mean + memory * memory)
        )


class CurveStepTime:
    """Adds the parts of a step. A source says what the parts are:

    _dense(tokens), _sampling(rows) -> (seconds, coverage), _decode_curve(n) -> DecodeCurve,
    _prefill_attention(chunks) -> (seconds, coverage), and optionally _mixed_attention for steps that hold both.

    All state but what it keeps of curves and dense passes is fixed at construction; replicas may share one object.
    """

    def __init__(self, overhead_s: float, longest: Line | None, max_context: float, host: HostTime = NONE):
        """overhead_s: of every step, beside the host's time. longest: attention time of one sequence alone by context,
        never falling, a floor under a batch that holds one very long sequence (None: no such floor). max_context:
        longest context the source vouches for."""
        self.overhead_s = overhead_s + host.step_s
        self.sequence_s = host.sequence_s
        self.launch_floor_s = host.prefill_s  #: least time of the kernels of a step with prefill chunks
        self._longest = longest
        self._max_context = max_context
        self._curves: dict[int, DecodeCurve] = {}
        self._passes: dict[int, tuple[float, int]] = {}

    # ---- what a source defines -------------------------------------------------------------------------------

    def _dense(self, tokens: int) -> tuple[float, int]:
        raise NotImplementedError

    def _sampling(self, rows: int) -> tuple[float, int]:
        raise NotImplementedError

    def _decode_curve(self, n: int) -> DecodeCurve:
        raise NotImplementedError

    def _prefill_attention(self, chunks: Sequence[tuple[int, int]]) -> tuple[float, int]:
        raise NotImplementedError

    def _mixed_attention(
        self, chunks: Sequence[tuple[int, int]], n: int, total: int, longest: int
    ) -> tuple[float, int]:
        """Attention of a step with prefill chunks and decodes; here the sum of the two."""
        prefill_s, prefill_cover = self._prefill_attention(chunks)
        curve = self._curve(n)
        attention_s, cover = self._decode_attention(curve, n, total, longest)
        return prefill_s + attention_s, max(prefill_cover, cover)

    # ---- StepTime --------------------------------------------------------------------------------------------

    def step(
        self,
        chunks: Sequence[tuple[int, int]],
        n_decode: int,
        sum_context: int,
        max_context: int,
        n_sampled: int,
        drafted: int = 0,
    ) -> tuple[float, int]:
        """Seconds and coverage code of one step; see `StepTime.step`.

        drafted: tokens that the decodes verify beside their own, in all; n_sampled counts their rows. They share the
        reading of their sequence's context, which is what decode attention takes (calibrate.speculative)."""
        tokens, ones = n_decode + drafted, False
        for new, _ in chunks:
            tokens += new
            if new == 1:
                ones = True
        if ones:  # one token over a context is a decode to every engine's kernel
            contexts = [cached + 1 for new, cached in chunks if new == 1]
            chunks = [chunk for chunk in chunks if chunk[0] > 1]
            n_decode += len(contexts)
            sum_context += sum(contexts)
            max_context = max(max_context, *contexts)
        if not chunks:
            if n_decode == 0:
                return self.overhead_s, MEASURED
            if n_sampled == n_decode == tokens:
                curve = self._curves.get(n_decode) or self._curve(n_decode)
                attention_s, cover = self._decode_attention(curve, n_decode, sum_context, max_context)
                return curve.constant_s + attention_s, cover
        dense_s, dense_cover = self._passes.get(tokens) or self._pass(tokens)
        sampling_s, sampling_cover = self._sampling(n_sampled)
        if not chunks:
            attention_s, cover = self._decode_attention(self._curve(n_decode), n_decode, sum_context, max_context)
        elif n_decode:
            attention_s, cover = self._mixed_attention(chunks, n_decode, sum_context, max_context)
        else:
            attention_s, cover = self._prefill_attention(chunks)
        seconds = dense_s + sampling_s + attention_s
        if chunks and seconds < self.launch_floor_s:
            seconds = self.launch_floor_s
        seconds += self.overhead_s + (n_decode + len(chunks)) * self.sequence_s
        return seconds, max(dense_cover, sampling_cover, cover)

    def parts(
        self,
        chunks: Sequence[tuple[int, int]],
        n_decode: int,
        sum_context: int,
        max_context: int,
        n_sampled: int,
        drafted: int = 0,
    ) -> dict[str, float]:
        """Seconds of a step by part; their sum is `step`'s unless launching takes longer. Chunks of two tokens or
        more."""
        attention = 0.0
        if chunks and n_decode:
            attention = self._mixed_attention(chunks, n_decode, sum_context, max_context)[0]
        elif chunks:
            attention = self._prefill_attention(chunks)[0]
        elif n_decode:
            attention = self._decode_attention(self._curve(n_decode), n_decode, sum_context, max_context)[0]
        return {
            "dense": self._dense(n_decode + drafted + sum(new for new, _ in chunks))[0],
            "attention": attention,
            "sampling": self._sampling(n_sampled)[0],
            "overhead": self.overhead_s,
        }

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and coverage codes of k pure-decode steps; see `StepTime.decode_stretch`."""
        curve = self._curves.get(n_decode) or self._curve(n_decode)
        total = np.arange(sum_context, sum_context + k * n_decode, n_decode)
        attention = curve.attention.at_many(total)
        last_sum, last_longest = sum_context + (k - 1) * n_decode, max_context + k - 1
        if curve.form is not None:
            attention = attention * curve.form.ratio(np.sqrt, n_decode, total, np.arange(max_context, max_context + k))
        elif curve.skew and max_context * n_decode > sum_context:
            top = curve.attention.at_many(np.arange(max_context, max_context + k) * n_decode)
            attention = attention + curve.skew * np.maximum(top - attention, 0.0)
        if (
            self._longest is not None
            and n_decode > 1
            and not self._floor_is_idle(curve, sum_context, attention, last_longest)
        ):
            attention = np.maximum(attention, self._longest.at_many(np.arange(max_context, max_context + k)))
        covers = np.full(k, curve.coverage, dtype=np.int8)
        if last_sum > curve.max_sum or last_longest > self._max_context or sum_context < curve.min_sum:
            outside = (total > curve.max_sum) | (np.arange(max_context, max_context + k) > self._max_context)
            outside |= total < curve.min_sum
            covers[outside] = EXTRAPOLATED
        return curve.constant_s + attention, covers

    def _floor_is_idle(self, curve: DecodeCurve, total: int, attention: np.ndarray, last_longest: int) -> bool:
        """Whether the longest sequence alone stays below the batch all through a stretch (with room for rounding)."""
        assert self._longest is not None
        return total >= curve.attention.rising_from and self._longest.at(last_longest) * 1.000001 < attention[0]

    # ---- decode ----------------------------------------------------------------------------------------------

    def _decode_attention(self, curve: DecodeCurve, n: int, total: int, longest: int) -> tuple[float, int]:
        line = curve.attention
        i = bisect_right(line.knots, total) - 1
        attention = line.values[i] + (total - line.knots[i]) * line.slopes[i]
        if curve.form is not None:
            attention = attention * curve.form.ratio(math.sqrt, n, total, longest)
        elif curve.skew and longest * n > total:
            attention = attention + curve.skew * max(line.at(longest * n) - attention, 0.0)
        if self._longest is not None and n > 1:
            attention = max(attention, self._longest.at(longest))
        outside = total > curve.max_sum or longest > self._max_context or total < curve.min_sum
        return attention, EXTRAPOLATED if outside else curve.coverage

    def _curve(self, n: int) -> DecodeCurve:
        """The curve of a batch of n, built on first use."""
        curve = self._curves.get(n)
        if curve is None:
            if len(self._curves) >= MAX_CURVES:
                self._curves.clear()
            curve = self._curves[n] = self._decode_curve(n)
        return curve

    def _pass(self, tokens: int) -> tuple[float, int]:
        """The dense pass of so many tokens, kept."""
        if len(self._passes) >= MAX_CURVES:
            self._passes.clear()
        found = self._passes[tokens] = self._dense(tokens)
        return found

    def _constant(self, n: int) -> tuple[float, int]:
        """Host time, one dense pass and sampling of a pure-decode step of n sequences."""
        dense_s, dense_cover = self._dense(n)
        sampling_s, sampling_cover = self._sampling(n)
        return self.overhead_s + n * self.sequence_s + dense_s + sampling_s, max(
            dense_cover, sampling_cover, INTERPOLATED
        )
