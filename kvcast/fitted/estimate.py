"""Parameters of a server from measured requests: Gauss-Newton on what a simulation of the same requests gives.

The one idea: simulate, move each parameter a little and simulate again, solve for the change that makes the residuals
small, repeat. A parameter is kept only when the interval that the data give it is narrower than what one believed
before (`Parameter.wide`); the others stay as they are, each with its reason. Intervals are bootstrapped over blocks of
requests, with Student's t of the blocks that are left; they hold for the model as it is.

    >>> found = estimate(problem)
    >>> found.values["hardware.dense_factor"], found.interval("hardware.dense_factor")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from kvcast.fitted.likeness import Cells
from kvcast.fitted.parameters import Parameter

ITERATIONS, ROUNDS, HALVINGS = 8, 3, 4
RESAMPLES, CONFIDENCE = 400, 0.95
FARTHEST = 8.0
"""Steps of a parameter that are taken at once."""
SAME = 0.05
"""A change below this share of every parameter's step is none."""
DECIDED = 0.5
"""Share of what was plausible unmeasured to which an interval must narrow it."""
DEAD = 0.3
"""Sum of squares below which a parameter's whole width moves nothing, in spreads of the residuals."""

Simulate = Callable[[dict[str, Any]], np.ndarray]
"""Residuals at values of keys, float64 [residuals]."""


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


@dataclass
class Fit:
    """A search. start: where the scenario stands on every parameter's axis."""

    parameters: tuple[Parameter, ...]
    start: np.ndarray
    cells: Cells
    simulate: Simulate
    simulations: int = field(default=0, init=False)

    def residuals(self, kept: Sequence[int], axis: np.ndarray) -> np.ndarray:
        self.simulations += 1
        return self.simulate({self.parameters[k].key: self.parameters[k].at(axis[k]) for k in kept})

    def jacobian(self, kept: Sequence[int], axis: np.ndarray) -> np.ndarray:
        """float64 [residuals, kept]: change of the residuals a step of each parameter."""
        every = sorted({*kept, *self._moved(axis)})
        columns = []
        for k in kept:
            low, high = axis.copy(), axis.copy()
            low[k] = max(axis[k] - self.parameters[k].step, self.parameters[k].least)
            high[k] = low[k] + 2 * self.parameters[k].step
            columns.append((self.residuals(every, high) - self.residuals(every, low)) / 2)
        return np.stack(columns, axis=1)

    def search(self, kept: Sequence[int], axis: np.ndarray) -> np.ndarray:
        """The place of the axis with the least loss that Gauss-Newton finds from here."""
        steps = np.array([p.step for p in self.parameters])
        every = sorted({*kept, *self._moved(axis)})
        here = self.residuals(every, axis)
        for _ in range(ITERATIONS):
            jacobian, weight = self.jacobian(kept, axis), self._weight(here)
            change = np.clip(self._change(kept, axis, jacobian, here, weight), -FARTHEST, FARTHEST)
            for halving in range(HALVINGS):
                there = self._inside(axis + change * steps / 2**halving)
                new = self.residuals(every, there)
                if self.cells.loss(new) < self.cells.loss(here):
                    break
            else:
                return axis
            moved = np.abs(there - axis) / steps
            axis, here = there, new
            if moved.max() < SAME:
                break
        return axis

    def _change(
        self, kept: Sequence[int], axis: np.ndarray, jacobian: np.ndarray, here: np.ndarray, weight: np.ndarray
    ) -> np.ndarray:
        """float64 [parameters] in steps: the Gauss-Newton step of those that it does not lead below their least."""
        steps, least = (np.array([getattr(p, name) for p in self.parameters]) for name in ("step", "least"))
        free, change = list(range(len(kept))), np.zeros(len(axis))
        while free:
            change[:] = 0.0
            some = jacobian[:, free]
            normal = some.T @ (weight[:, None] * some)
            damped = normal + 1e-6 * np.diag(np.diag(normal) + 1e-9)
            change[[kept[j] for j in free]] = -np.linalg.solve(damped, some.T @ (weight * here))
            held = [j for j in free if axis[kept[j]] <= least[kept[j]] and change[kept[j]] * steps[kept[j]] < 0]
            if not held:
                break
            free = [j for j in free if j not in held]
        return change

    def _inside(self, axis: np.ndarray) -> np.ndarray:
        return np.maximum(axis, [p.least for p in self.parameters])

    def _weight(self, residuals: np.ndarray) -> np.ndarray:
        return self.cells.weight / self.cells.spread(residuals) ** 2

    def decided(self, open_: Sequence[int], axis: np.ndarray) -> tuple[list[int], dict[int, str]]:
        """(parameters that the data decide, why each of the others is not), of those that are open, here."""
        here = self.residuals(self._moved(axis), axis)
        jacobian = np.zeros((len(here), len(axis)))
        jacobian[:, open_] = self.jacobian(open_, axis)
        wide = np.array([p.wide / p.step for p in self.parameters])
        left, why = list(open_), {}
        while left:
            weight = self._weight(_without(jacobian[:, left], here, self.cells.weight))
            power = np.sum(weight[:, None] * (jacobian * wide) ** 2, axis=0)
            dead = [k for k in left if power[k] < DEAD]
            half = np.full(len(left), np.inf) if dead else self._half_widths(jacobian[:, left], here, weight)
            worst = dead[0] if dead else left[int(np.argmax(half / wide[left]))]
            if not dead and half[left.index(worst)] <= DECIDED * wide[worst]:
                break
            why[worst] = NO_EFFECT if dead else self._why(jacobian, worst, left, weight, float(half[left.index(worst)]))
            left.remove(worst)
        return left, why

    def half_widths(self, kept: Sequence[int], axis: np.ndarray) -> np.ndarray:
        """float64 [kept] on their axes, of the intervals here."""
        jacobian, here = self.jacobian(kept, axis), self.residuals(self._moved(axis), axis)
        return self._half_widths(jacobian, here, self._weight(here)) * np.array([self.parameters[k].step for k in kept])

    def _moved(self, axis: np.ndarray) -> list[int]:
        return [int(k) for k in np.flatnonzero(axis != self.start)]

    def _half_widths(self, jacobian: np.ndarray, residuals: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """float64 [columns] in steps: bootstrapped over blocks at the linear model, with Student's t."""
        clusters, n = self.cells.clusters, jacobian.shape[1]
        left_over = clusters - n
        if left_over < 2:
            return np.full(n, np.inf)
        rest = _without(jacobian, residuals, weight)
        drawn = np.random.default_rng(0).multinomial(clusters, np.full(clusters, 1 / clusters), RESAMPLES)
        found = []
        for times in drawn:
            w = weight * times[self.cells.cluster]
            normal = jacobian.T @ (w[:, None] * jacobian)
            found.append(np.linalg.lstsq(normal, jacobian.T @ (w * rest), rcond=1e-10)[0])
        few = np.sqrt(clusters / left_over)  # residuals are smaller than errors where parameters follow them
        return np.std(found, axis=0) * few * stats.t.ppf(0.5 + CONFIDENCE / 2, left_over)

    def _why(self, jacobian: np.ndarray, k: int, left: list[int], weight: np.ndarray, half: float) -> str:
        """Why the data leave a parameter open, with the one that does the same."""
        root = np.sqrt(weight)
        column = root * jacobian[:, k]
        alike = {j: _cosine(column, root * jacobian[:, j]) for j in left if j != k}
        p = self.parameters[k]
        reason = f"its interval would be +-{half * p.step / p.wide:.1f} times what is plausible unmeasured"
        if alike:
            twin = max(alike, key=lambda j: alike[j])
            if alike[twin] > 0.9:
                return f"{reason}; it moves the same figures as {self.parameters[twin].key} ({alike[twin]:.3f} alike)"
        return reason


NO_EFFECT = "no measured time depends on it in this load"
BELOW = "the data would have it lower than can be"


def _without(jacobian: np.ndarray, residuals: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The residuals that no change of the parameters takes away."""
    root = np.sqrt(weight)
    best = np.linalg.lstsq(root[:, None] * jacobian, root * residuals, rcond=1e-10)[0]
    return residuals - jacobian @ best


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size else 0.0


def estimate(fit: Fit) -> Estimate:
    """Ask which parameters the data decide, fit those, and ask again where they have led."""
    axis, kept, pinned = fit.start.copy(), None, set()  # type: ignore[var-annotated]
    for _ in range(ROUNDS):
        open_ = [k for k in range(len(axis)) if k not in pinned]
        now, why = fit.decided(open_, axis)
        if now == kept:
            break
        axis = np.array([x if k in now or k in pinned else fit.start[k] for k, x in enumerate(axis)])
        axis = fit.search(now, axis) if now else axis
        at_least = {k for k in now if axis[k] <= fit.parameters[k].least}
        pinned, kept = pinned | at_least, [k for k in now if k not in at_least]
    kept = kept or []
    refused = {fit.parameters[k].key: reason for k, reason in why.items() if k not in kept}
    refused |= {fit.parameters[k].key: BELOW for k in pinned}
    at = {p.key: p.at(x) for p, x, was in zip(fit.parameters, axis, fit.start, strict=True) if x != was}
    half = fit.half_widths(kept, axis) if kept else np.empty(0)
    chosen = tuple(fit.parameters[k] for k in kept)
    values = {p.key: p.at(axis[k]) for k, p in zip(kept, chosen, strict=True)}
    return Estimate(chosen, axis[kept], half, {**at, **values}, refused, fit.simulations)
