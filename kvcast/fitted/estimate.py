"""Parameters of a server from measured requests: a straight-line model of what a simulation of the same requests gives,
solved, and made anew where the solution leads.

The one idea: whom a request meets in its steps decides its times, so one simulation more or less says little. Runs
with uneven steps give the usual residuals and what chance does to them (`kvcast.fitted.luck`); a design of runs, each
of which moves all parameters at once, up in one half of the runs and down in the other, gives what each parameter does.
A parameter is kept only when the interval that the data give it is half as wide as what was plausible before
(`Parameter.wide`), and a mechanism that the scenario has off only when its interval excludes that; the others stay as
they are, each with its reason. An interval is the wider of two: what chance does to a whole run, and, of blocks of
requests resampled, what the model leaves unexplained. It holds for the model as it is.

    >>> found = estimate(Fit(parameters, start, cells, simulate))
    >>> found.values["hardware.dense_factor"], found.interval("hardware.dense_factor")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.linalg import hadamard

from kvcast.fitted.likeness import Cells
from kvcast.fitted.parameters import Parameter

USUAL_RUNS = 12  #: at the place itself
SIZES = (1.0, 1.0, 0.5)  #: of a design, in steps, a round each
POLISHES = 2  #: solutions with the last slopes
FARTHEST = 6.0  #: steps of a parameter that are taken at once
RESAMPLES, CONFIDENCE = 400, 0.95
DECIDED = 0.5
"""Share of what was plausible unmeasured to which an interval must narrow it."""
DEAD = 0.3
"""Sum of squares below which a parameter's whole width moves nothing, in spreads of the residuals."""
NO_EFFECT = "no measured time depends on it in this load"
IDLE = "its interval reaches down to none of it"
BELOW = "the data would have it lower than can be"

Simulate = Callable[[dict[str, Any], int], np.ndarray]
"""Residuals at values of keys, float64 [residuals], of a run whose steps are uneven in the way of a number."""


@dataclass(frozen=True)
class Estimate:
    """What was found. axis, half: place and half width of the interval of every kept parameter, on its axis."""

    kept: tuple[Parameter, ...]
    axis: np.ndarray
    half: np.ndarray
    values: dict[str, Any]  #: key -> value, of the kept, and of those that ended at their least
    refused: dict[str, str]  #: key -> why it is not estimated
    simulations: int

    def interval(self, key: str) -> tuple[Any, Any]:
        """The key's values at both ends, the lower place of the axis first."""
        i = [p.key for p in self.kept].index(key)
        p = self.kept[i]
        return p.at(self.axis[i] - self.half[i]), p.at(self.axis[i] + self.half[i])


@dataclass(frozen=True)
class Fit:
    """A question. start: where the scenario stands on every parameter's axis."""

    parameters: tuple[Parameter, ...]
    start: np.ndarray
    cells: Cells
    simulate: Simulate

    def values(self, axis: np.ndarray) -> dict[str, Any]:
        """Keys that are not as the scenario has them."""
        moved = zip(self.parameters, axis, self.start, strict=True)
        return {p.key: p.at(x) for p, x, was in moved if x != was}

    def usual_runs(self, axis: np.ndarray) -> np.ndarray:
        """float64 [runs, residuals], at a place."""
        return np.stack([self.simulate(self.values(axis), i) for i in range(USUAL_RUNS)])

    def look(self, axis: np.ndarray, size: float, open_: Sequence[int]) -> Local:
        """The straight-line model around a place, of what is still open."""
        step = size * np.array([p.step for p in self.parameters])
        least = np.array([p.least for p in self.parameters])
        here = self.usual_runs(axis)
        half = hadamard(8 if len(open_) < 8 else 16)[:, 1 : 1 + len(open_)]
        signs = np.concatenate([half, -half])
        middle = axis.copy()
        middle[open_] = np.maximum(axis, least + step)[open_]
        runs = []
        for i, sign in enumerate(signs):
            place = middle.copy()
            place[open_] += sign * step[open_]
            runs.append(self.simulate(self.values(place), USUAL_RUNS + i))
        slopes = np.zeros((here.shape[1], len(axis)))
        slopes[:, open_] = (signs.T @ np.stack(runs)).T / len(signs)
        usual = here.mean(axis=0)
        return Local(self, list(open_), axis, step, usual, slopes, here - usual, len(here) + len(runs))


@dataclass(frozen=True)
class Local:
    """usual: float64 [residuals] at the place; slopes: float64 [residuals, parameters], change a step; luck: float64
    [runs, residuals], what chance did."""

    fit: Fit
    open_: list[int]
    axis: np.ndarray
    step: np.ndarray
    usual: np.ndarray
    slopes: np.ndarray
    luck: np.ndarray
    simulations: int

    def moved_to(self, axis: np.ndarray) -> Local:
        """The same slopes at another place, near by."""
        here = self.fit.usual_runs(axis)
        usual = here.mean(axis=0)
        return replace(self, axis=axis, usual=usual, luck=here - usual, simulations=len(here))

    def weight(self, kept: Sequence[int]) -> np.ndarray:
        """float64 [residuals]: one over the square of what remains of a group, less where chance moves all of a group
        together."""
        cells = self.fit.cells
        rest = self.usual - self.slopes[:, kept] @ _least_squares(self.slopes[:, kept], self.usual, cells.weight)
        return cells.weight / cells.spread(rest) ** 2 / cells.together(self.luck)

    def half_widths(self, kept: Sequence[int], weight: np.ndarray) -> np.ndarray:
        """float64 [kept], in steps of the design."""
        some = self.slopes[:, kept]
        moved = _least_squares(some, self.luck.T, weight)
        n = len(self.luck)
        by_luck = np.sqrt(np.sum(moved**2, axis=1) / (n - 1) * (1 + 1 / n)) * _t(n - 1)
        return np.maximum(by_luck, self._by_blocks(some, weight))

    def _by_blocks(self, some: np.ndarray, weight: np.ndarray) -> np.ndarray:
        cells, n = self.fit.cells, some.shape[1]
        left_over = cells.clusters - n
        if left_over < 2:
            return np.full(n, np.inf)
        rest = self.usual - some @ _least_squares(some, self.usual, weight)
        drawn = np.random.default_rng(0).multinomial(
            cells.clusters, np.full(cells.clusters, 1 / cells.clusters), RESAMPLES
        )
        found = [_least_squares(some, rest, weight * times[cells.cluster]) for times in drawn]
        few = np.sqrt(cells.clusters / left_over)  # residuals are smaller than errors where parameters follow them
        return np.std(found, axis=0) * few * _t(left_over)

    def decided(self) -> tuple[list[int], dict[int, str]]:
        """(parameters that the data decide, why each of the others is not), of the open ones."""
        wide = np.array([p.wide for p in self.fit.parameters]) / self.step
        left: list[int] = list(self.open_)
        why: dict[int, str] = {}
        while left:
            weight = self.weight(left)
            power = np.sum(weight[:, None] * (self.slopes * wide) ** 2, axis=0)
            dead = [k for k in left if power[k] < DEAD]
            half = np.full(len(left), np.inf) if dead else self.half_widths(left, weight)
            worst = dead[0] if dead else left[int(np.argmax(half / wide[left]))]
            open_ = float(half[left.index(worst)] / wide[worst])
            if open_ <= DECIDED:
                break
            why[worst] = NO_EFFECT if dead else self._why(worst, left, weight, open_)
            left.remove(worst)
        return left, why

    def _why(self, k: int, left: list[int], weight: np.ndarray, open_: float) -> str:
        """Why the data leave a parameter open, with the one that does the same."""
        reason = f"its interval would be +-{open_:.1f} times what is plausible unmeasured"
        root = np.sqrt(weight)
        columns = root[:, None] * self.slopes
        alike = {j: _cosine(columns[:, k], columns[:, j]) for j in left if j != k}
        twin = max(alike, key=lambda j: alike[j], default=k)
        if twin == k or alike[twin] < 0.8:
            return reason
        return f"{reason}; it moves the same figures as {self.fit.parameters[twin].key} (cosine {alike[twin]:.3f})"

    def solved(self, kept: Sequence[int]) -> tuple[np.ndarray, set[int]]:
        """(place of every parameter, those of the kept that would go below their least). Open ones that are not kept
        are where the scenario has them."""
        fit, least = self.fit, np.array([p.least for p in self.fit.parameters])
        weight, below = self.weight(kept), set[int]()
        while True:
            free = [k for k in kept if k not in below]
            axis = self.axis.copy()
            axis[self.open_] = fit.start[self.open_]
            axis[list(below)] = least[list(below)]
            fixed = [k for k in range(len(axis)) if k not in free]
            away = (axis - self.axis) / self.step
            rest = self.usual + self.slopes[:, fixed] @ away[fixed]
            change = -_least_squares(self.slopes[:, free], rest, weight)
            axis[free] = self.axis[free] + np.clip(change, -FARTHEST, FARTHEST) * self.step[free]
            beyond = {k for k in free if axis[k] < least[k]}
            if not beyond:
                return axis, below
            below |= beyond

    def solved_without_idle(self, kept: Sequence[int], why: dict[int, str]) -> tuple[np.ndarray, dict[int, str]]:
        """(place, why parameters are not among the found): without mechanisms that the scenario has off and that the
        data do not show to be on."""
        why, kept = dict(why), list(kept)
        while True:
            axis, below = self.solved(kept)
            free = [k for k in kept if k not in below]
            half = self.half_widths(free, self.weight(free)) * self.step[free] if free else np.empty(0)
            off = {
                k: float(axis[k] - self.fit.parameters[k].least) / h
                for k, h in zip(free, half, strict=True)
                if self.fit.start[k] == self.fit.parameters[k].least
            }
            idle = min(off, key=lambda k: off[k], default=-1)
            if not off or off[idle] > 1:
                return axis, {**why, **dict.fromkeys(below, BELOW)}
            kept.remove(idle)
            why[idle] = IDLE


def _least_squares(columns: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """float64 [columns] or [columns, targets]: least weighted squares of target - columns x."""
    return np.linalg.lstsq(
        columns.T @ (weight[:, None] * columns), (columns * weight[:, None]).T @ target, rcond=1e-10
    )[0]


def _t(freedom: int) -> float:
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size else 0.0


def estimate(fit: Fit) -> Estimate:
    """Look, decide which parameters the data decide, solve, and look again from there; who is refused from the second
    look on is out. Then solve again where that has led."""
    axis, open_, refused, simulations = fit.start, list(range(len(fit.start))), dict[str, str](), 0
    for turn, size in enumerate(SIZES):
        local = fit.look(axis, size, open_)
        simulations += local.simulations
        kept, why = local.decided()
        axis, why = local.solved_without_idle(kept, why)
        if turn:
            open_ = [k for k in kept if k not in why]
            refused |= {fit.parameters[k].key: reason for k, reason in why.items()}
    for _ in range(POLISHES):
        local = local.moved_to(axis)
        simulations += local.simulations
        axis, why = local.solved_without_idle(open_, {})
        open_ = [k for k in open_ if k not in why]
        refused |= {fit.parameters[k].key: reason for k, reason in why.items()}
    half = local.half_widths(open_, local.weight(open_)) * local.step[open_] if open_ else np.empty(0)
    chosen = tuple(fit.parameters[k] for k in open_)
    values = {p.key: p.at(x) for p, x in zip(chosen, axis[open_], strict=True)}
    return Estimate(chosen, axis[open_], half, {**fit.values(axis), **values}, refused, simulations)
