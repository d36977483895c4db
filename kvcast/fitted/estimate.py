"""Parameters of a server from measured requests: a straight-line model of what a simulation of the same requests gives,
solved, and made anew where the solution leads.

The one idea: whom a request meets in its steps decides its times, so one simulation more or less says little. Runs
with uneven steps give the usual residuals and what chance does to them (`kvcast.fitted.luck`); a design of runs, each
of which moves all parameters at once, up in one half of the runs and down in the other, gives what each parameter does.
A parameter is kept only when the interval that the data give it is narrower than what was plausible before
(`Parameter.wide`), and a mechanism that the scenario has off only when its interval excludes that; the others stay as
they are, each with its reason. An interval is the sum (of squares) of three: what chance does to a whole run, as loud
as the residuals are; with each spell of neighbouring blocks left out in turn, what the model leaves unexplained; and
what it makes up for where parameters that were not kept are otherwise. It holds for the model as it is.

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

HALF_RUNS = 16  #: of a design; the other half mirrors them, so that curvature is in no parameter's effect
USUAL_RUNS = 12  #: at the place itself
ROUNDS = 3  #: of a design and a solution
POLISHES = 2  #: solutions with the last slopes
FARTHEST = 6.0  #: steps of a parameter that are taken at once
CONFIDENCE = 0.95
DECIDED = 1.0
"""Share of what was plausible unmeasured below which an interval must stay."""
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

    def look(self, axis: np.ndarray) -> Local:
        """The straight-line model around a place."""
        step = np.array([p.step for p in self.parameters])
        here = self.usual_runs(axis)
        half = hadamard(HALF_RUNS)[:, 1 : 1 + len(axis)]
        signs = np.concatenate([half, -half])
        middle = np.maximum(axis, np.array([p.least for p in self.parameters]) + step)
        places = [middle + sign * step for sign in signs]
        runs = np.stack([self.simulate(self.values(place), USUAL_RUNS + i) for i, place in enumerate(places)])
        usual = here.mean(axis=0)
        slopes, chance = (signs.T @ runs).T / len(signs), here.var(axis=0, ddof=1) / len(signs)
        return Local(self, axis, step, usual, slopes, chance, here - usual, len(here) + len(runs))


@dataclass(frozen=True)
class Local:
    """usual: float64 [residuals] at the place; slopes: float64 [residuals, parameters], change a step; chance: float64
    [residuals], the variance of a slope; luck: float64 [runs, residuals], what chance did."""

    fit: Fit
    axis: np.ndarray
    step: np.ndarray
    usual: np.ndarray
    slopes: np.ndarray
    chance: np.ndarray
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

    def half_widths(self, kept: Sequence[int], weight: np.ndarray, slack: dict[int, float]) -> np.ndarray:
        """float64 [kept], in steps of the design. slack: of parameters that are not kept, how far each may be from
        where it stays, which those that are kept make up for."""
        some, n = self.slopes[:, kept], len(self.luck)
        normal = some.T @ (weight[:, None] * some)
        by_chance = float(weight @ self.chance)
        normal -= by_chance * np.eye(len(kept))  # what chance adds to it, by way of the slopes
        if np.linalg.eigvalsh(normal)[0] <= by_chance:
            return np.full(len(kept), np.inf)
        moved = np.linalg.solve(normal, (some * weight[:, None]).T @ (self.luck * self._louder(some, weight)).T)
        by_luck = np.sqrt(np.sum(moved**2, axis=1) / (n - 1) * (1 + 1 / n)) * _t(n - 1)
        reach = self.slopes[:, list(slack)] * list(slack.values())
        made_up = np.linalg.solve(normal, (some * weight[:, None]).T @ reach)
        return np.sqrt(by_luck**2 + self._by_spells(some, weight) ** 2 + np.sum(made_up**2, axis=1))

    def _louder(self, some: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """float64 [residuals]: how many times as large as in the simulated runs chance is in the measured one, 1 at
        least, by what is left unexplained of a group."""
        spread, usual_chance = self.fit.cells.spread, np.sqrt(np.mean(self.luck**2, axis=0))
        rest = self.usual - some @ _least_squares(some, self.usual, weight)
        return np.maximum(spread(rest) / spread(usual_chance), 1.0)

    def _by_spells(self, some: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """By the jackknife: what leaving each spell out does."""
        spell, n = self.fit.cells.spell, some.shape[1]
        spells = int(spell.max()) + 1
        if spells < 3:
            return np.full(n, np.inf)
        rest = self.usual - some @ _least_squares(some, self.usual, weight)
        found = np.array([_least_squares(some, rest, weight * (spell != out)) for out in range(spells)])
        return np.std(found, axis=0) * np.sqrt(spells - 1) * _t(max(spells - n, 2))

    def decided(self) -> tuple[list[int], dict[int, str], dict[int, float]]:
        """(parameters that the data decide, why each of the others is not, how far those may be from where they stay,
        in steps)."""
        wide = np.array([p.wide for p in self.fit.parameters]) / self.step
        left, why, slack = list(range(len(wide))), dict[int, str](), dict[int, float]()
        while left:
            weight = self.weight(left)
            power = np.sum(weight[:, None] * (self.slopes * wide) ** 2, axis=0)
            dead = [k for k in left if power[k] < DEAD]
            if dead:
                why |= dict.fromkeys(dead, NO_EFFECT)
                left = [k for k in left if k not in dead]
                continue
            half = self.half_widths(left, weight, slack)
            worst = self._worst(left, weight, half / wide[left])
            open_ = float(half[left.index(worst)] / wide[worst])
            if open_ <= DECIDED:
                break
            why[worst] = self._why(worst, left, weight, open_)
            slack[worst] = float(wide[worst])
            left.remove(worst)
        return left, why, slack

    def _worst(self, left: list[int], weight: np.ndarray, open_: np.ndarray) -> int:
        """The parameter that is most open; of slopes that chance does not tell apart, the one that the others say."""
        if np.isfinite(open_).all():
            return left[int(np.argmax(open_))]
        wide = np.array([p.wide for p in self.fit.parameters]) / self.step
        columns = np.sqrt(weight)[:, None] * self.slopes[:, left] * wide[left]
        weakest = np.linalg.eigh(columns.T @ columns)[1][:, 0]
        return left[int(np.argmax(np.abs(weakest)))]

    def _why(self, k: int, left: list[int], weight: np.ndarray, open_: float) -> str:
        """Why the data leave a parameter open, with the one that does the same."""
        reason = f"its interval would be +-{open_:.1f} times what is plausible unmeasured"
        if not np.isfinite(open_):
            reason = "what it does is not told apart from what the others do"
        root = np.sqrt(weight)
        columns = root[:, None] * self.slopes
        alike = {j: _cosine(columns[:, k], columns[:, j]) for j in left if j != k}
        twin = max(alike, key=lambda j: alike[j], default=k)
        if twin == k or alike[twin] < 0.8:
            return reason
        return f"{reason}; it moves the same figures as {self.fit.parameters[twin].key} (cosine {alike[twin]:.3f})"

    def solved(self, kept: Sequence[int]) -> tuple[np.ndarray, set[int]]:
        """(place of every parameter, those of the kept that would go below their least). The others are where the
        scenario has them."""
        fit, least = self.fit, np.array([p.least for p in self.fit.parameters])
        weight, below = self.weight(kept), set[int]()
        while True:
            free = [k for k in kept if k not in below]
            axis = fit.start.copy()
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

    def left_out(self, kept: Sequence[int], slack: dict[int, float]) -> dict[int, float]:
        """The slack of every parameter that is not kept: of one that ended at its least, or is taken to be off, what
        the data leave it, were it free."""
        weight = self.weight(kept)
        more = dict(slack)
        for k, p in enumerate(self.fit.parameters):
            if (
                k not in kept
                and k not in slack
                and np.sum(weight * (self.slopes[:, k] * p.wide / self.step[k]) ** 2) >= DEAD
            ):
                half = self.half_widths([*kept, k], weight, {})[-1]
                more[k] = min(float(half), p.wide / float(self.step[k]))
        return more

    def solved_without_idle(
        self, kept: Sequence[int], slack: dict[int, float]
    ) -> tuple[np.ndarray, list[int], dict[int, str]]:
        """(place, what is found, why the others of the kept are not): without mechanisms that the scenario has off and
        that the data do not show to be on, whose slack is what they may be."""
        kept, why = list(kept), dict[int, str]()
        while True:
            axis, below = self.solved(kept)
            free = [k for k in kept if k not in below]
            if not free:
                return axis, free, why | dict.fromkeys(below, BELOW)
            half = self.half_widths(free, self.weight(free), slack)
            least = np.array([p.least for p in self.fit.parameters])
            off = {
                k: (float(axis[k] - least[k]) / self.step[k], float(h))
                for k, h in zip(free, half, strict=True)
                if self.fit.start[k] == least[k]
            }
            idle = min(off, key=lambda k: off[k][0] / off[k][1], default=-1)
            if not off or off[idle][0] > off[idle][1]:
                return axis, free, why | dict.fromkeys(below, BELOW)
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
    """Look, decide which parameters the data decide, solve, and look again from there; then solve again where that has
    led."""
    axis, simulations = fit.start, 0
    for _ in range(ROUNDS):
        local = fit.look(axis)
        simulations += local.simulations
        decided, why, slack = local.decided()
        axis, kept, more = local.solved_without_idle(decided, slack)
    for _ in range(POLISHES):  # whom to keep was decided where the slopes are known
        local = local.moved_to(axis)
        simulations += local.simulations
        axis, below = local.solved(kept)
        kept = [k for k in kept if k not in below]
        more |= dict.fromkeys(below, BELOW)
    half = np.empty(0)
    if kept:
        wide = np.array([fit.parameters[k].wide for k in kept])
        half = local.half_widths(kept, local.weight(kept), local.left_out(kept, slack)) * local.step[kept]
        half = np.minimum(half, wide)
    refused = {fit.parameters[k].key: reason for k, reason in (why | more).items()}
    chosen = tuple(fit.parameters[k] for k in kept)
    values = {p.key: p.at(x) for p, x in zip(chosen, axis[kept], strict=True)}
    return Estimate(chosen, axis[kept], half, {**fit.values(axis), **values}, refused, simulations)
