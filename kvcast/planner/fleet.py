"""The cheapest fleet: for every combination the fewest replicas that meet the target, and the cheapest of them all.

The one idea: attainment rises with replicas, so each combination is a bisection over single runs; the most promising
one goes ahead, the others are only asked whether they do with less than the best fleet so far, and those that cost the
same are then compared by attainment. The one that is chosen is then settled over independent runs, and so is the fleet
with a replica less.

    fleet = Fleet(trials, combinations, most=64); fleet.search(); fleet.settle()
    fleet.winner, fleet.judged[fleet.winner, fleet.replicas]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from calibrate.memory import DoesNotFitError
from kvcast.planner.candidates import Combination
from kvcast.planner.sampled import sampled
from kvcast.planner.trials import CANNOT_RUN, CONFIRM, DOES_NOT_FIT, MEETS, MISSES, Judged, Trial, Trials
from kvcast.planner.words import plateau
from kvcast.studies.search import Found, fewest, scan, together
from kvcast.studies.work import guess_replicas
from workloads.errors import InputError

WAVE = 8
"""Combinations searched at once: more would ask all of them for what the first ones make needless, fewer would leave
processes idle."""
TIES = 150_000
"""Requests that fleets of the same cost are simulated for, to see which attains most: so a plan of few combinations
compares all of them, and one of a hundred those that came closest to doing with less."""
MISSED = 3
"""Samples of a fleet that all miss, where one that is shown to meet would be missed by one in four or fewer."""
DEARER, AS_DEAR = "dearer than the best fleet", "at best as dear as the best fleet, not compared with it (--every does)"


class Fleet:
    """Positions of combinations are their places in `combinations`; those that cannot run are left out of the
    search."""

    def __init__(
        self,
        trials: Trials,
        combinations: Sequence[Combination],
        most: int,
        every: bool = False,
        on_judged: Callable[[int, int], None] = lambda i, n: None,
    ) -> None:
        """every: find the fewest replicas of every combination, also where they cannot be cheaper than the best.
        on_judged(combination, replicas): is told of each fleet that was judged, and again when it is settled."""
        self.trials, self.combinations, self.most, self.every = trials, combinations, most, every
        self._on_judged = on_judged
        self.reasons: dict[int, tuple[str, str]] = {}  #: of combinations that cannot run: the verdict, and why
        for i, one in enumerate(combinations):
            if one.scenario is None:
                self.reasons[i] = CANNOT_RUN, one.reason
            elif (refused := trials.refusal(one.with_replicas(1))) is not None:
                self.reasons[i] = DOES_NOT_FIT if isinstance(refused, DoesNotFitError) else CANNOT_RUN, str(refused)
        self.runnable = [i for i in range(len(combinations)) if i not in self.reasons]
        self.judged: dict[tuple[int, int], Judged] = {}
        self.settled: dict[tuple[int, int], Judged] = {}  #: those of `judged` that were settled over independent runs
        self.found: dict[int, Found] = {}
        self.flat: dict[int, tuple[int, int]] = {}  #: of combinations that larger fleets of bring nothing: from, to
        self.winner: int | None = None
        self.notes: list[str] = []
        self._priced = all(combinations[i].usd_per_gpu_hour is not None for i in self.runnable)

    def refused(self) -> InputError:
        """When no combination can run: why the first of them cannot, and how many there are."""
        _, why = self.reasons[0]
        several = len(self.reasons) > 1
        return InputError(f"none of {len(self.reasons)} combinations can run; the first: {why}" if several else why)

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
    def search(self, on_part: Callable[[int, int], None] = lambda part, parts: None) -> None:
        """on_part(which, of how many) is told before each part of the search."""
        if not self.runnable:
            return
        guesses = {i: self._guess(i) for i in self.runnable}
        first, *rest = sorted(self.runnable, key=lambda i: self.cost(i, guesses[i]))
        waves = [rest[i : i + WAVE] for i in range(0, len(rest), WAVE)]
        on_part(0, len(waves) + 2)
        self._run({first: guesses[first]})
        known = self.found[first].fewest or guesses[first]
        for part, wave in enumerate(waves, start=1):
            on_part(part, len(waves) + 2)
            self._run({i: max(round(guesses[i] * known / guesses[first]), 1) for i in wave})
        on_part(len(waves) + 1, len(waves) + 2)
        self._compare_ties()
        self._choose()
        if self.winner is not None:
            self._check_neighbours(self.winner)

    def judge_fixed(self) -> None:
        """No search: every combination with the replicas it has; the winner meets the target, or comes closest to
        it."""
        sizes = {i: self._scenario_replicas(i) for i in self.runnable}
        if len(sizes) > 1:
            self._judge({i: [n] for i, n in sizes.items()})
        self.found = {i: Found(n, n) for i, n in sizes.items()}
        ranked = (
            self.runnable if len(sizes) == 1 else sorted(self.runnable, key=lambda i: self._rank_fixed(i, sizes[i]))
        )
        self.winner = ranked[-1] if ranked else None
        if self.winner is not None:
            self._settle_one(self.winner, sizes[self.winner], full=True)

    def judge(self, i: int, ns: Sequence[int], full: bool = False) -> list[Judged]:
        """Fleets of one combination by one run each, also for questions beyond the search."""
        return self.trials.judge([self._trial(i, n, full=full) for n in ns])

    def whole(self, i: int, n: int, full: bool = False) -> Trial:
        """What a fleet is settled by: all of it in the whole window."""
        return Trial(self.combinations[i].with_replicas(n), full=full, keep=True)

    def _trial(self, i: int, n: int, full: bool = False) -> Trial:
        return sampled(replace(self.whole(i, n, full), keep=len(self.combinations) == 1))

    def answer_with(self, i: int, n: int) -> None:
        """Take this fleet for the answer, settled; a larger one where it does not meet and one does."""
        self.winner, self.found[i] = i, Found(n, n)
        while not self._settled(i, self.replicas).meets:
            larger = self._next_larger(i, self.replicas)
            if larger.fewest is None:
                return
            self.found[i] = larger

    def _settled(self, i: int, n: int) -> Judged:
        return self.settled.get((i, n)) or self._settle_one(i, n)

    # -- the answer, settled ----------------------------------------------------------------------------------------
    def holds(self, i: int, n: int) -> bool:
        """Whether a fleet that the search found attains its target whole and in another seed's run too: as sure as a
        plan is of a load that its fleet holds (kvcast.planner.load), where the fleet is not the answer."""
        seed = self.trials.seeds[:CONFIRM][-1]
        (one,) = self.trials.judge([self.whole(i, n)], seed)
        if one.attains:
            self.judged[i, n] = one
            self._on_judged(i, n)
        return one.attains

    def settle(self) -> None:
        """Settle the chosen fleet; where it does not meet, the next larger one or what is now cheapest; where it does,
        one replica less."""
        while self.winner is not None:
            i, n = self.winner, self.replicas
            if (i, n) not in self.settled:
                self._settle_one(i, n)
            if not self.settled[i, n].meets:
                self.found[i] = self._next_larger(i, n)
                self._choose()
            elif n > 1 and not self._too_few(i, n - 1) and self._settled(i, n - 1).meets:
                self.found[i] = Found(n - 1, n - 1)
            else:
                return

    def _too_few(self, i: int, n: int) -> bool:
        """Whether samples of the fleet miss on every one of MISSED seeds: then it need not be settled."""
        trial = self._trial(i, n)
        if trial.share is None or (i, n) in self.settled:
            return False
        missed = self.trials.missed(trial, MISSED)
        if missed is None:
            return False
        self.judged[i, n] = missed
        self._on_judged(i, n)
        return True

    def _settle_one(self, i: int, n: int, full: bool = False) -> Judged:
        one = self.judged[i, n] = self.settled[i, n] = self.trials.settle(self.whole(i, n, full))
        self._on_judged(i, n)
        return one

    def _next_larger(self, i: int, n: int) -> Found:
        """The fewest replicas above n that attain the target in one run. Every fleet that was settled and does not meet
        doubles the stride to the next, until the settled ones no longer attain more."""
        unmet = {m: one for (j, m), one in self.settled.items() if j == i and not one.meets}
        if (flat := plateau({m: one.margin for m, one in unmet.items()})) is not None:
            self.flat[i] = flat
            return Found(None, n + 1, given_up=True)
        if n >= self.most:
            return Found(None, self.most + 1)
        least = min(n + 2 ** (len(unmet) - 1), self.most)

        def answers(asked: dict[int, list[int]]) -> dict[int, list[bool]]:
            return {key: [m >= least and self._judge({i: [m]})[i][0] for m in ns] for key, ns in asked.items()}

        return together({i: fewest(least, self.most)}, answers)[i]

    def by_seed(self) -> dict[str, int] | None:
        """How many of the answer's runs say so by themselves, how many would do with a replica less, how many ask for
        more; of the seeds that both fleets were run with.

        None where there is one run, or the fleet with a replica less was not settled.
        """
        one = self.answer
        if one is None or self.winner is None or len(one.attained) < 2:
            return None
        less = self.settled.get((self.winner, self.replicas - 1))
        if less is None and self.replicas > 1:
            return None
        fewer = less.attained if less is not None else (False,) * len(one.attained)
        both = list(zip(one.attained, fewer, strict=False))
        return {
            "runs": len(both),
            "same": sum(a and not b for a, b in both),
            "fewer": sum(b for _, b in both),
            "more": sum(not a and not b for a, b in both),
        }

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

    def _best_cost(self) -> float:
        return min((self.cost(i, n) for (i, n), one in self.judged.items() if one.attains), default=math.inf)

    def _run(self, guesses: dict[int, int]) -> None:
        def worth(i: int) -> bool | object:
            return (lambda n: True) if self.every else (lambda n: self.cost(i, n) < self._best_cost() * (1 - 1e-9))

        searches = {i: fewest(guess, self.most, worth(i)) for i, guess in guesses.items()}  # type: ignore[arg-type]
        self.found |= together(searches, self._judge)

    def _compare_ties(self) -> None:
        """Simulate those that were given up because they can only be as dear as the best, closest first, for TIES
        requests."""
        best = self._best_cost()
        ties = [
            i
            for i, one in self.found.items()
            if one.given_up and one.at_least <= self.most and math.isclose(self.cost(i, one.at_least), best)
        ]
        left, chosen = TIES, []
        for i in sorted(ties, key=self._closeness, reverse=True):
            left -= self._requests(i)
            if left < 0:
                break
            chosen.append(i)
        if len(chosen) < len(ties):
            self.notes.append(
                f"{len(ties) - len(chosen)} combinations may do at the same cost and were not compared with the best:"
                " --every compares all"
            )
        answers = self._judge({i: [self.found[i].at_least] for i in chosen})
        for i in chosen:
            n = self.found[i].at_least
            self.found[i] = Found(n, n) if answers[i][0] else Found(None, n + 1, given_up=True)

    def _closeness(self, i: int) -> tuple[float, float]:
        """How close the largest cheaper fleet of a combination came to the target: how long it could go on, then what
        it attained."""
        one = self.judged.get((i, self.found[i].at_least - 1))
        return (0.0, 0.0) if one is None else (one.served, one.attainment.low if one.attainment else 0.0)

    def _requests(self, i: int) -> int:
        return len(self.trials.workload(self.combinations[i].with_replicas(1)))

    def why_given_up(self, i: int) -> str | None:
        """Of a combination whose fewest replicas were not looked for to the end."""
        one = self.found[i]
        if not one.given_up:
            return None
        if i in self.flat:
            first, last = self.flat[i]
            return f"attainment does not rise from {first} to {last} replicas, settled: no larger fleet was"
        as_dear = math.isclose(self.cost(i, one.at_least), self._best_cost())
        return f"{one.at_least} replicas or more: {AS_DEAR if as_dear else DEARER}"

    def _judge(self, asked: dict[int, list[int]]) -> dict[int, list[bool]]:
        places = [(i, n) for i, ns in asked.items() for n in ns]
        new = [place for place in places if place not in self.judged]
        judged = self.trials.judge([self._trial(i, n) for i, n in new])
        self.judged |= dict(zip(new, judged, strict=True))
        for place in new:
            self._on_judged(*place)
        return {i: [self.judged[i, n].attains for n in ns] for i, ns in asked.items()}

    def _choose(self) -> None:
        def rank(i: int) -> tuple[float, int, int, float]:
            n = self.found[i].fewest or 0
            attainment = self.judged[i, n].attainment
            return self.cost(i, n), n * self.combinations[i].gpus_per_replica, n, -attainment.low if attainment else 0.0

        self.winner = min((i for i, one in self.found.items() if one.fewest is not None), key=rank, default=None)

    def _sure(self, i: int, n: int) -> bool:
        """Whether a run says what it says with its whole interval: a sample of the fleet may be off by a replica."""
        one = self.judged[i, n]
        return one.trial.share is None or (one.verdict == (MEETS if one.attains else MISSES))

    def _check_neighbours(self, i: int) -> None:
        """One more replica must meet, two fewer must miss; where not, every smaller fleet is simulated."""
        n = self.replicas
        beyond = {m for m in (n - 2, n + 1) if 1 <= m <= self.most}
        answers = dict(zip(sorted(beyond), self._judge({i: sorted(beyond)})[i], strict=True))
        wrong = [m for m, meets in answers.items() if meets != (m > n) and self._sure(i, m)]
        if not wrong:
            return
        told = " and ".join(f"{m} replicas {'meet' if answers[m] else 'miss'}" for m in wrong)
        self.notes.append(
            f"attainment does not rise steadily with replicas here ({n} meet, yet {told}): every smaller fleet was"
            " simulated"
        )
        self.found |= together({i: scan(n)}, self._judge)
