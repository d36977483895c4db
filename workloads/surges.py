"""The classes that a mix has for a while only: a burst of its own sessions, or a storm of others.

The one idea: a surge is classes with streams of their own beside those of the mix, so that what the mix itself draws,
arrivals, texts and answers, is the same with and without. Sessions of a burst are of the mix's classes: they read the
same global and project texts and count as that class.

    >>> extras(replace(config, surge=(Surge("burst", 600, 600, more=1.0),)))
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from workloads import arrivals, dists
from workloads.check import class_rates, loop_of
from workloads.config import Arrival, MixClass, Surge, WorkloadConfig
from workloads.errors import InputError, did_you_mean
from workloads.steady import clock_share


@dataclass(frozen=True)
class Extra:
    """A class of a surge. owner: the position of the class that its requests count as."""

    mix_class: MixClass
    rate: float  #: session arrivals per second while it lasts
    owner: int
    begins_s: float
    lasts_s: float

    def starts_s(self, seed: int) -> np.ndarray:
        """When its sessions start, float64, seconds of the run: Poisson."""
        name = self.mix_class.name
        within_s = arrivals.until(Arrival(), self.rate, self.lasts_s, lambda: dists.stream(seed, name, "arrivals"))
        return self.begins_s + within_s


def all_classes(config: WorkloadConfig) -> tuple[MixClass, ...]:
    """The classes that requests may count as: the mix's, and those of storms."""
    return config.class_ + tuple(surge.storm for surge in config.surge if surge.storm is not None)


def extras(config: WorkloadConfig) -> list[Extra]:
    """The classes of all surges of a resolved mix. Raises InputError for one that the mix cannot have."""
    found: list[Extra] = []
    storms = len(config.class_)
    for surge in config.surge:
        _check(surge, config)
        if surge.storm is not None:
            found.append(Extra(surge.storm, surge.storm.rate or 0.0, storms, surge.begins_s, surge.lasts_s))
            storms += 1
            continue
        begins_s = config.start_s + surge.begins_s
        for owner, (c, rate) in enumerate(zip(config.class_, class_rates(config), strict=True)):
            if surge.of in ("", c.name):
                more = surge.more * rate * clock_share(c, begins_s, begins_s + surge.lasts_s)
                twin = replace(c, name=f"{c.name}+{surge.name}")
                found.append(Extra(twin, more, owner, surge.begins_s, surge.lasts_s))
    return [one for one in found if one.rate > 0]


def _check(surge: Surge, config: WorkloadConfig) -> None:
    names = [c.name for c in config.class_]
    if loop_of(config) == "concurrency":
        raise InputError(f"[[shock]] {surge.name}: expected a mix whose sessions arrive at a rate, not a concurrency")
    if surge.of and surge.of not in names:
        raise InputError(
            f"[[shock]] {surge.name}: class = {surge.of!r}, expected one of {', '.join(names)}"
            f"{did_you_mean(surge.of, names)}"
        )
    recorded = [c.name for c in config.class_ if c.arrival.kind == "trace" and surge.of in ("", c.name)]
    if recorded and surge.storm is None:
        raise InputError(
            f"[[shock]] {surge.name}: class {recorded[0]!r} arrives at recorded times, expected a class with a rate"
        )
