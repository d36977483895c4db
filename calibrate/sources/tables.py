"""Step times from tables of operator times.

The one idea: linear interpolation between measured points (not in log space, which erred 12-14 % against 2-4 % on
public H200 points), and beyond them the FLOP or byte form that the operator follows, anchored at the last points
measured. All tokens of a step share one pass of the dense operators; attention is added per kind of work.

Layout of `points` (all times in microseconds, one number times `repeat` per step):
  dense              [{"name", "repeat", "tokens": [..], "us": [..]}]       by tokens in the step
  per_sequence       [{"name", "repeat", "rows": [..], "us": [..]}]         by sampled rows (LM head, sampler)
  prefill_attention  {"repeat", "new", "cached", "us": [[..]], "max_kv", "max_pairs"}   new x cached, one sequence; null
  where not measured
                     "launch_us": constant of a call, paid once by all that runs in it (default: the least time at these
                     cached tokens)
                     with "form" {"overhead_us", "pair_us", "token_us", "kv_us"}, several sequences add up as the fitted
                     form of one call does
  decode_attention   {"repeat", "batch", "context", "us": [[..]]}           batch x context, null where not measured
  all_ranks          optional, as dense: by the tokens of all attention data-parallel ranks (`lock_step`)
  mixed_attention    optional {"repeat", "new", "cached", "batch", "context", "us": nested} both kinds in one kernel
                     call
  launch_floor_us    optional: a step with prefill chunks takes at least this and the overhead (its kernels are launched
                     one by one)
  skew               optional {"batch", "alpha", "mixed_batch", "mixed_alpha"}   share of the way from mean to longest
                     context that
                     unequal contexts cost, pure decode and mixed. Without it a batch never takes less than its longest
                     sequence alone.
  unequal            optional, instead of skew {"overhead_us", "longest_us", "token_us", "sequence_us"}: the fitted form
                     of decode attention; unequal
                     contexts cost what it takes at this longest context over what it takes at equal ones
  cover              optional: least coverage code of any step
Points that a fitted form supplied stand beyond what was measured: "measured_to" (dense, per_sequence),
"measured_context" (decode, per batch size), "max_new", "max_kv" and "max_pairs" (prefill) say where that begins."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from calibrate.host import NONE, HostTime
from calibrate.sources.mixed import MixedTable, complete_grid
from calibrate.step import EXTRAPOLATED, INTERPOLATED, MEASURED
from calibrate.steptime import CurveStepTime, DecodeCurve, Line, Unequal

US = 1e-6


class TableStepTime(CurveStepTime):
    """StepTime over operator tables; see the module docstring for `points`."""

    def __init__(self, points: dict[str, Any], overhead_s: float = 0.0, host: HostTime = NONE, kv_token_s: float = 0.0):
        """kv_token_s: least seconds of one more token of context beyond the measured ones."""
        self._dense_line = sum_of_lines(points["dense"], "tokens")
        self._sampling_line = sum_of_lines(points["per_sequence"], "rows")
        self._unequal = points.get("unequal")
        self._decode = DecodeTable(points["decode_attention"], self._unequal, kv_token_s)
        self._prefill = PrefillTable(points["prefill_attention"], self._decode)
        skew = None if "unequal" in points else points.get("skew")
        self._skew = Line.through(skew["batch"], skew["alpha"], last_slope=0.0) if skew else None
        self._mixed_skew = (
            Line.through(skew["mixed_batch"], skew["mixed_alpha"], last_slope=0.0)
            if skew and "mixed_alpha" in skew
            else self._skew
        )
        mixed = points.get("mixed_attention")
        self._mixed = MixedTable(mixed, self._prefill, self._decode) if mixed else None
        longest = None if skew else self._decode.line(1)[0]
        overhead = points.get("step_overhead_us", 0.0) * US + overhead_s
        super().__init__(overhead, longest, self._decode.longest_measured, host)
        self.launch_floor_s = max(self.launch_floor_s, points.get("launch_floor_us", 0.0) * US)
        self._cover = points.get("cover", MEASURED)
        self._call_s = min(self._prefill.launch.at(0), self._decode.call_s)
        self._dense_to, self._sampling_to = (
            measured_to(points["dense"], "tokens"),
            measured_to(points["per_sequence"], "rows"),
        )

    def _dense(self, tokens: int) -> tuple[float, int]:
        seconds, cover = look_up(self._dense_line, tokens, self._dense_to)
        return seconds, max(cover, self._cover)

    def _sampling(self, rows: int) -> tuple[float, int]:
        return look_up(self._sampling_line, rows, self._sampling_to) if rows else (0.0, MEASURED)

    def _decode_curve(self, n: int) -> DecodeCurve:
        constant_s, cover = self._constant(n)
        line, max_sum = self._decode.line(n)
        min_sum = float(n * self._decode.shortest)
        if self._unequal is not None and n > 1:
            return DecodeCurve(constant_s, line, max_sum, cover, min_sum, form=unequal_form(self._unequal, n))
        skew = self._skew.at(n) if self._skew and n > 1 else 0.0
        return DecodeCurve(constant_s, line, max_sum, cover, min_sum, skew)

    def _prefill_attention(self, chunks: Sequence[tuple[int, int]]) -> tuple[float, int]:
        table = self._prefill
        seconds, cover = table.one(*chunks[0]) if len(chunks) == 1 else table.batch(chunks)
        if table.measured:
            return seconds, cover
        return max(seconds, self._reading(chunks, 0, 0, 0)), cover

    def _reading(self, chunks: Sequence[tuple[int, int]], n: int, total: int, longest: int) -> float:
        """Decode attention with every chunk as one more decode: what reading all KV of a call once takes."""
        for new, cached in chunks:
            context = new + cached
            total += context
            if context > longest:
                longest = context
        n += len(chunks)
        line = (self._curves.get(n) or self._curve(n)).attention
        i = bisect_right(line.knots, total) - 1
        seconds = line.values[i] + (total - line.knots[i]) * line.slopes[i]
        if n > 1 and self._longest is not None:
            seconds = max(seconds, self._longest.at(longest))
        return seconds

    def _mixed_attention(
        self, chunks: Sequence[tuple[int, int]], n: int, total: int, longest: int
    ) -> tuple[float, int]:
        """Prefill and decode attention of one step: one call, its constant paid once and all KV read once; or the mixed
        table's multiple of the sum where one was measured."""
        table = self._prefill
        prefill_s, cover = table.one(*chunks[0]) if len(chunks) == 1 else table.batch(chunks)
        curve = self._curves.get(n) or self._curve(n)
        if self._mixed is None:
            decode_s, decode_cover = self._decode_attention(curve, n, total, longest)
            seconds = max(prefill_s + decode_s - self._call_s, prefill_s, decode_s)
            if not table.measured:
                seconds = max(seconds, self._reading(chunks, n, total, longest))
            return seconds, max(cover, decode_cover)
        if curve.form is not None:
            ratios, inside = self._mixed.ratios(chunks, n, (total / n,))
            decode_s, decode_cover = self._decode_attention(curve, n, total, longest)
            return ratios[0] * (prefill_s + decode_s), max(cover, decode_cover) if inside else EXTRAPOLATED
        unequal = self._mixed_skew is not None and longest * n > total
        ratios, inside = self._mixed.ratios(chunks, n, (total / n, longest) if unequal else (total / n,))
        seconds = ratios[0] * (prefill_s + curve.attention.at(total))
        if self._mixed_skew is not None and unequal:
            top = ratios[1] * (prefill_s + curve.attention.at(longest * n))
            seconds += self._mixed_skew.at(n) * max(top - seconds, 0.0)
        inside = inside and total <= curve.max_sum and longest <= self._max_context
        return seconds, max(cover, curve.coverage) if inside else EXTRAPOLATED


def unequal_form(u: dict[str, float], n: int) -> Unequal:
    """The fitted form of decode attention for a batch of n."""
    return Unequal(u["overhead_us"], u["longest_us"], u["token_us"], u["sequence_us"] * n)


def never_falling(line: Line) -> Line:
    """The line with dips of noise levelled, so that a longer sequence never has a lower floor."""
    return Line.through(line.knots, np.maximum.accumulate(line.values).tolist(), last_slope=line.slopes[-1])


def rising(lines: list[Line]) -> list[Line]:
    """The lines, none below the one before it: where noise lets one be, both are levelled there."""
    knots = sorted({x for line in lines for x in line.knots})
    grid = [[line.at(x) for x in knots] for line in lines]
    ends = [line.slopes[-1] for line in lines]
    if all(a <= b for low, high in pairwise(grid) for a, b in zip(low, high, strict=True)) and ends == sorted(ends):
        return lines
    columns = [levelled(column) for column in zip(*grid, strict=True)]
    rows = zip(*columns, strict=True)
    return [Line.through(knots, row, last_slope=end) for row, end in zip(rows, levelled(ends), strict=True)]


def sum_of_lines(operators: Sequence[dict[str, Any]], axis: str) -> Line:
    """One line for operators that run one after the other: linear interpolation of each, summed on the union of their
    points; where noise lets the sum fall it is levelled, as more tokens are never less work."""
    knots = sorted({float(x) for op in operators for x in op[axis]})
    total, beyond = np.zeros(len(knots)), 0.0
    for op in operators:
        slope, scale = last_slope(op[axis], op["us"]), op["repeat"] * US
        line = Line.through(op[axis], op["us"], slope)
        total += np.array([line.at(x) for x in knots]) * scale
        beyond += slope * scale
    return Line.through(knots, levelled(total.tolist()), beyond)


def last_slope(x: Sequence[float], us: Sequence[float]) -> float:
    """How an operator goes on beyond its points: as over their last quarter or their last half, whichever is steeper,
    never falling. Between the last two of a fine grid lies noise: 16 tokens apart it made a prefill of twice the
    longest step 38 % too short."""
    if len(x) < 2:
        return 0.0
    starts = [max(bisect_right(x, share * x[-1]) - 1, 0) for share in (0.75, 0.5)]
    return max(0.0, *((us[-1] - us[i]) / (x[-1] - x[i]) for i in starts))


def levelled(values: Sequence[float]) -> list[float]:
    """The nearest values that never fall: neighbours that do are replaced by their mean (isotonic regression)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, m), (high, n) = pools.pop(), pools.pop()
            pools.append(((low * m + high * n) / (m + n), m + n))
    return [mean for mean, count in pools for _ in range(count)]


def measured_to(operators: Sequence[dict[str, Any]], axis: str) -> float:
    """Where measured points end: the last point of any operator, or the first end that one states."""
    stated = [op["measured_to"] for op in operators if "measured_to" in op]
    return min(stated) if stated else max(op[axis][-1] for op in operators)


def look_up(line: Line, x: int, measured_to: float) -> tuple[float, int]:
    """Value and coverage code of a line at x."""
    i = bisect_right(line.knots, x) - 1
    if x == line.knots[i]:
        return line.values[i], MEASURED if x <= measured_to else EXTRAPOLATED
    cover = EXTRAPOLATED if x > measured_to else INTERPOLATED
    return line.values[i] + (x - line.knots[i]) * line.slopes[i], cover


class DecodeTable:
    """Decode attention by batch size and mean context, dips of noise along both levelled.

    Between two measured batch sizes the time is interpolated at equal context; beyond the longest context measured for
    a batch it grows with the slope of the last points (bytes of KV); beyond the largest batch it grows in proportion.
    Below the shortest it follows the fitted form, or the slope of the first points down to a call's constant.
    """

    def __init__(self, table: dict[str, Any], form: dict[str, float] | None = None, kv_token_s: float = 0.0):
        """form: below the shortest context. kv_token_s: least seconds of one more token of one context beyond the
        longest."""
        self.batches = [int(b) for b in table["batch"]]
        scale = table["repeat"] * US
        self.lines: list[Line] = []
        self.limits: list[float] = []
        self.shortest = float(table["context"][0])
        self.call_s = next(us for us in table["us"][0] if us is not None) * scale
        for batch, row in zip(self.batches, table["us"], strict=True):
            measured = [(float(c), us * scale) for c, us in zip(table["context"], row, strict=True) if us is not None]
            points = [*self._below(measured, batch, form), *measured]
            line = never_falling(Line.through([c for c, _ in points], [s for _, s in points]))
            slopes = [*line.slopes[:-1], max(line.slopes[-1], batch * kv_token_s)]
            self.lines.append(Line(line.knots, line.values, slopes))
            self.limits.append(measured[-1][0])
        self.lines = rising(self.lines)
        self.limits = [float(limit) for limit in table.get("measured_context", self.limits)]
        sums = [b * limit for b, limit in zip(self.batches, self.limits, strict=True)]
        self._sum_limit = Line.through(self.batches, sums, last_slope=0.0)
        self.longest_measured = max(self.limits)

    def line(self, n: int) -> tuple[Line, float]:
        """Attention seconds of n sequences as a line in the sum of their contexts, and the largest sum measured points
        span."""
        i = bisect_right(self.batches, n) - 1
        if i < 0:
            return self._by_sum(self.lines[0], n, 1.0), 0.0
        if i == len(self.batches) - 1:
            inside = n == self.batches[i]
            return self._by_sum(self.lines[i], n, n / self.batches[i]), n * self.limits[i] if inside else 0.0
        low, high = self.lines[i], self.lines[i + 1]
        weight = (n - self.batches[i]) / (self.batches[i + 1] - self.batches[i])
        if weight == 0:
            return self._by_sum(low, n, 1.0), self._sum_limit.at(n)
        contexts = sorted({*low.knots, *high.knots})
        seconds = [low.at(c) + (high.at(c) - low.at(c)) * weight for c in contexts]
        slope = low.slopes[-1] + (high.slopes[-1] - low.slopes[-1]) * weight
        limit = self._sum_limit.at(n) if self.limits[i + 1] else 0.0
        return self._by_sum(Line.through(contexts, seconds, last_slope=slope), n, 1.0), limit

    def _below(
        self, measured: list[tuple[float, float]], batch: int, form: dict[str, float] | None
    ) -> list[tuple[float, float]]:
        """Points below the shortest measured context, ascending."""
        context, seconds = measured[0]
        if form is not None:
            at = unequal_form(form, batch)
            down = [context / 2**i for i in range(1, math.ceil(math.log2(context)) + 1)]
            return [(c, seconds * at.us(batch * c, c) / at.us(batch * context, context)) for c in reversed(down)]
        slope = (measured[1][1] - seconds) / (measured[1][0] - context) if len(measured) > 1 else 0.0
        floor = min(self.call_s, seconds)
        reach = context - (seconds - floor) / slope if slope > 0 else context
        return [(reach, floor)] if 0 < reach < context else [(0.0, seconds - slope * context)] if slope > 0 else []

    @staticmethod
    def _by_sum(line: Line, n: int, scale: float) -> Line:
        return Line([x * n for x in line.knots], [v * scale for v in line.values], [s * scale / n for s in line.slopes])


class PrefillTable:
    """Prefill attention by new and cached tokens of one sequence, and how several chunks of a step add up.

    Inside the grid bilinear; outside the time of the nearest grid point grows with the number of causal pairs (FLOPs).
    A chunk never takes less than one decode over the same context, which is one pass over the same KV, unless the table
    says that prefixes were measured ("prefix_measured"); nor does a longer prefix or chunk ever make it cheaper."""

    def __init__(self, table: dict[str, Any], decode: DecodeTable):
        (self.new, self.cached), us = complete_grid([table["new"], table["cached"]], table["us"])
        scale = table["repeat"] * US
        self.measured = bool(table.get("prefix_measured"))
        seconds = us * scale
        if not self.measured:
            alone = decode.line(1)[0]
            seconds = np.maximum(seconds, [[alone.at(n + c) for c in self.cached] for n in self.new])
            seconds = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
        self.seconds: list[list[float]] = seconds.tolist()
        self._form = (
            tuple(table["form"][k] * scale for k in ("overhead_us", "pair_us", "token_us", "kv_us"))
            if "form" in table
            else None
        )
        self.max_new = table.get("max_new", self.new[-1])
        self.max_kv = table.get("max_kv", self.new[-1] + self.cached[-1])
        self.max_pairs = table.get("max_pairs", causal_pairs(self.new[-1], self.cached[-1]))
        starts = [table.get("launch_us", float(us[0][i])) * scale for i in range(2)]
        self.launch = Line.through(self.cached[:2], starts, last_slope=0.0)

    def batch(self, chunks: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """Seconds and coverage of all chunks of a step in one kernel call: they pay the launch once, the work of each
        adds.

        Against aiconfigurator-core's own batched prefill (2 to 64 prompts of 16 to 2,048 tokens on H100, H200 and A100)
        whole steps err 0.9 to 1.4 % on average and 5 % at most; the attention of many short prompts alone is up to
        twice off, while a plain sum of parts would be up to 40 times too long."""
        if len(chunks) == 1:
            return self.one(*chunks[0])
        if self._form is not None:
            return self._together(chunks)
        launch_s = work_s = 0.0
        cover = MEASURED
        for new, cached in chunks:
            seconds, covered = self.one(new, cached)
            floor = min(self.launch.at(cached), seconds)
            launch_s = max(launch_s, floor)
            work_s += seconds - floor
            cover = max(cover, covered, INTERPOLATED)
        return launch_s + work_s, cover

    def _together(self, chunks: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """The fitted form of all work in one call, times what the chunks apart took over their forms apart."""
        pairs = tokens = kv = apart_s = formed_s = 0.0
        cover = INTERPOLATED
        for new, cached in chunks:
            seconds, covered = self.one(new, cached)
            work = (causal_pairs(new, cached), new, new + cached)
            apart_s, formed_s, cover = apart_s + seconds, formed_s + self._formed(*work), max(cover, covered)
            pairs, tokens, kv = pairs + work[0], tokens + work[1], kv + work[2]
        return self._formed(pairs, tokens, kv) * (apart_s / formed_s), cover

    def _formed(self, pairs: float, tokens: float, kv: float) -> float:
        overhead, per_pair, per_token, per_kv = self._form  # type: ignore[misc]
        compute, memory = per_pair * pairs + per_token * tokens, per_kv * kv
        return overhead + math.sqrt(compute * compute + memory * memory)

    def one(self, new: int, cached: int) -> tuple[float, int]:
        """Seconds and coverage of one chunk of `new` tokens over `cached` ones."""
        pairs = new * (cached + (new + 1) * 0.5)
        outside = new > self.max_new or new + cached > self.max_kv or pairs > self.max_pairs
        news, prefixes = self.new, self.cached
        n = new if new < news[-1] else news[-1]
        c = cached if cached < prefixes[-1] else prefixes[-1]
        i = bisect_right(news, n, 1, len(news) - 1) - 1
        j = bisect_right(prefixes, c, 1, len(prefixes) - 1) - 1
        wn = (n - news[i]) / (news[i + 1] - news[i]) if n > news[i] else 0.0
        wc = (c - prefixes[j]) / (prefixes[j + 1] - prefixes[j])
        low, high = self.seconds[i], self.seconds[i + 1]
        at_low, at_high = low[j] + (low[j + 1] - low[j]) * wc, high[j] + (high[j + 1] - high[j]) * wc
        seconds = at_low + (at_high - at_low) * wn
        if n != new or c != cached:
            seconds = seconds * pairs / (n * (c + (n + 1) * 0.5))
        if outside:
            return seconds, EXTRAPOLATED
        return seconds, MEASURED if (wn == 0 or wn == 1) and (wc == 0 or wc == 1) and cached == 0 else INTERPOLATED


def causal_pairs(new: int, cached: int) -> float:
    """(query, key) pairs of a chunk: every new token sees the cached ones and the new ones up to itself."""
    return new * (cached + (new + 1) * 0.5)


def check_points(points: dict[str, Any], where: str) -> list[str]:
    """Problems that would make the tables unusable, one line each: missing parts, axes out of order, times below
    zero."""
    problems = [
        f"{where}: points.{part} is missing"
        for part in ("dense", "per_sequence", "prefill_attention", "decode_attention")
        if not points.get(part)
    ]
    if problems:
        return problems
    for part, axis in (("dense", "tokens"), ("per_sequence", "rows")):
        for op in points[part]:
            if len(op[axis]) != len(op["us"]) or any(b <= a for a, b in pairwise(op[axis])):
                problems.append(
                    f"{where}: points.{part}.{op.get('name')}: expected as many times as {axis}, {axis} ascending"
                )
            elif not all(_is_time(us) for us in op["us"]):
                problems.append(f"{where}: points.{part}.{op.get('name')}: expected times of zero or more")
    for part, rows, columns in (("prefill_attention", "new", "cached"), ("decode_attention", "batch", "context")):
        table = points[part]
        for axis in (rows, columns):
            if len(table[axis]) < 2 or any(b <= a for a, b in pairwise(table[axis])):
                problems.append(f"{where}: points.{part}.{axis}: expected two or more values, ascending")
        if any(us is not None and not _is_time(us) for row in table["us"] for us in row):
            problems.append(f"{where}: points.{part}.us: expected times of zero or more")
        if len(table["us"]) != len(table[rows]) or any(len(row) != len(table[columns]) for row in table["us"]):
            problems.append(
                f"{where}: points.{part}.us: expected {len(table[rows])} rows of {len(table[columns])} times"
            )
    return problems


def _is_time(us: Any) -> bool:
    return isinstance(us, (int, float)) and not isinstance(us, bool) and 0 <= us < float("inf")
