"""Searches that ask for simulations and are told the answers, so that many of them share one pool of processes.

The one idea: a search is a generator; it yields the points it wants judged and gets a bool for each. `together` runs
any number of them in lockstep, a round of simulations at a time: what is simulated does not depend on the number of
processes.

    >>> together({"a": fewest(3, 64)}, lambda asked: {key: [n >= 5 for n in ns] for key, ns in asked.items()})
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
Search = Generator[list[int], list[bool], "Found"]


@dataclass(frozen=True)
class Found:
    """fewest: the smallest n that meets, whose neighbour n - 1 was judged and misses (or is 0); None if none was found.
    at_least: nothing below it meets. given_up: the search ended because even `at_least` is not worth it."""

    fewest: int | None
    at_least: int
    given_up: bool = False


def fewest(guess: int, most: int, worth: Callable[[int], bool] = lambda n: True, stride: int = 1) -> Search:
    """The smallest n of 1..most that meets, when all above a meeting n meet: gallop away from the guess, then bisect.

    worth(n): whether an answer of n would still matter, as all below it do; asked again before every round. stride: of
    the first gallop."""
    short, enough, n = 0, 0, min(max(guess, 1), most)
    while True:
        if not worth(short + 1):
            return Found(None, short + 1, given_up=True)
        while not worth(n):  # the largest that is: when it misses, the search is over
            n -= 1
        if (yield [n])[0]:
            enough = n
        else:
            short = n
        if enough and enough - short == 1:
            return Found(enough, enough)
        if short == most:
            return Found(None, most + 1)
        if enough and short:
            n = (short + enough) // 2
        else:
            n = max(enough - stride, 1) if enough else min(short + stride, most)
            stride *= 2


def scan(last: int) -> Search:
    """The smallest n of 1..last that meets, whatever its neighbours do: all are judged."""
    answers = yield list(range(1, last + 1))
    first = next((n for n, meets in enumerate(answers, 1) if meets), None)
    return Found(first, first or last + 1)


def together(searches: dict[K, Search], judge: Callable[[dict[K, list[int]]], dict[K, list[bool]]]) -> dict[K, Found]:
    """Run the searches to their ends; judge is given all that is asked in a round and returns the answers."""
    found: dict[K, Found] = {}
    asked: dict[K, list[int]] = {}

    def go_on(key: K, answers: list[bool] | None) -> None:
        try:
            asked[key] = searches[key].send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            found[key] = end.value

    for key in searches:
        go_on(key, None)
    while asked:
        answers, asked = judge(asked), {}
        for key, told in answers.items():
            go_on(key, told)
    return {key: found[key] for key in searches}
