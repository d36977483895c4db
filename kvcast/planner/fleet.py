"""The cheapest fleet: for every combination the fewest replicas that meet the target, and the cheapest of them all.

The one idea: attainment rises with replicas, so each combination is a bisection; all bisections advance together, the first
combination ahead, so that the others start from what it learned and end once they can only be dearer.

    fleet = Fleet(trials, combinations, most=64); fleet.search()
    fleet.winner, fleet.judged[fleet.winner, fleet.replicas]
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from kvcast.planner.candidates import Combination, guess_replicas
from kvcast.planner.search import Found, fewest, scan, together
from kvcast.planner.trials import Judged, Trial, Trials


class Fleet:
    """Positions of combinations are their places in `combinations`; those that cannot run are left out of the search."""

    def __init__(self, trials: Trials, combinations: Sequence[Combination], most: int, every: bool = False) -> None:
        """every: find the fewest replicas of every combination, also where they can only be dearer than the best."""
        self.trials, self.combinations, self.most, self.every = trials, combinations, most, every
        self.reasons = {i: one.reason or trials.cannot_run(one.with_replicas(1)) for i, one in enumerate(combinations) if one.scenario is None or trials.cannot_run(one.with_replicas(1))}
        self.runnable = [i for i in range(len(combinations)) if i not in self.reasons]
        self.judged: dict[tuple[int, int], Judged] = {}
        self.found: dict[int, Found] = {}
        self.winner: int | None = None
        self.notes: list[str] = []
        self._priced = all(combinations[i].usd_per_gpu_hour is not None for i in self.runnable)

    @property
    def replicas(self) -> int:
        assert self.winner is not None
        return self.found[self.winner].fewest or self.most

    @property
    def answer(self) -> Judged | None:
        return None if self.winner is None else self.judged[self.winner, self.replicas]

    def cost(self, i: int, n: int) -> float:
        one = self.combinations[i]
        return one.cost(n) if self._priced else n * one.gpus_per_replica

    # -- the search -------------------------------------------------------------------------------------------------
    def search(self) -> None:
        if not self.runnable:
            return
        guesses = {i: self._guess(i) for i in self.runnable}
        first = self.runnable[0]
        self._run({first: guesses[first]})
        known = self.found[first].fewest or guesses[first]
        rest = {i: round(guess * known / guesses[first]) for i, guess in guesses.items() if i != first}
        self._run({i: self._affordable(i, guess) for i, guess in rest.items()})
        self._choose()
        if self.winner is not None:
            self._check_neighbours(self.winner)

    def judge_fixed(self) -> None:
        """No search: every combination with the replicas it has; the winner meets the target, or comes closest to it."""
        sizes = {i: self._scenario_replicas(i) for i in self.runnable}
        self._judge({i: [n] for i, n in sizes.items()})
        self.found = {i: Found(n, n) for i, n in sizes.items()}
        self.winner = max(self.runnable, key=lambda i: self._rank_fixed(i, sizes[i]), default=None)

    def judge(self, i: int, ns: Sequence[int], full: bool = False) -> list[Judged]:
        """Fleets of one combination, also for questions beyond the search."""
        return self.trials.judge([Trial(self.combinations[i].with_replicas(n), full=full) for n in ns])

    def _scenario_replicas(self, i: int) -> int:
        scenario = self.combinations[i].scenario
        assert scenario is not None
        return scenario.cluster.replicas

    def _rank_fixed(self, i: int, n: int) -> tuple[bool, float, float]:
        one = self.judged[i, n]
        return one.meets, -self.cost(i, n) if one.meets else 0.0, one.attainment.low if one.attainment else 0.0

    def _guess(self, i: int) -> int:
        scenario = self.combinations[i].with_replicas(1)
        return min(guess_replicas(scenario, self.trials.workload(scenario)), self.most)

    def _affordable(self, i: int, guess: int) -> int:
        """A start no dearer than the best fleet so far: if that misses, nothing cheaper of this combination meets."""
        best = self._best_cost()
        if self.every or best == math.inf:
            return max(guess, 1)
        return max(min(guess, int(best / self.cost(i, 1) + 1e-9)), 1)

    def _best_cost(self) -> float:
        return min((self.cost(i, n) for (i, n), one in self.judged.items() if one.meets), default=math.inf)

    def _run(self, guesses: dict[int, int]) -> None:
        def worth(i: int) -> bool | object:
            return (lambda n: True) if self.every else (lambda n: self.cost(i, n) <= self._best_cost())

        searches = {i: fewest(guess, self.most, worth(i)) for i, guess in guesses.items()}  # type: ignore[arg-type]
        self.found |= together(searches, self._judge)

    def _judge(self, asked: dict[int, list[int]]) -> dict[int, list[bool]]:
        places = [(i, n) for i, ns in asked.items() for n in ns]
        new = [place for place in places if place not in self.judged]
        judged = self.trials.judge([Trial(self.combinations[i].with_replicas(n)) for i, n in new])
        self.judged |= dict(zip(new, judged, strict=True))
        return {i: [self.judged[i, n].meets for n in ns] for i, ns in asked.items()}

    def _choose(self) -> None:
        def rank(i: int) -> tuple[float, int, int, float]:
            n = self.found[i].fewest or 0
            attainment = self.judged[i, n].attainment
            return self.cost(i, n), n * self.combinations[i].gpus_per_replica, n, -attainment.low if attainment else 0.0

        self.winner = min((i for i, one in self.found.items() if one.fewest is not None), key=rank, default=None)

    def _check_neighbours(self, i: int) -> None:
        """One more replica must meet, two fewer must miss; where not, every smaller fleet is simulated."""
        n = self.replicas
        beyond = {m for m in (n - 2, n + 1) if 1 <= m <= self.most}
        answers = dict(zip(sorted(beyond), self._judge({i: sorted(beyond)})[i], strict=True))
        wrong = [m for m, meets in answers.items() if meets != (m > n)]
        if not wrong:
            return
        told = " and ".join(f"{m} replicas {'meet' if answers[m] else 'miss'}" for m in wrong)
        self.notes.append(f"attainment does not rise steadily with replicas here ({n} meet, yet {told}): every smaller fleet was simulated")
        self.found |= together({i: scan(n)}, self._judge)
