"""Measured requests beside the same requests simulated, as a few numbers that a fit can make small.

The one idea: requests are replayed as they were sent, so request r is the same one on both sides. They are taken
together in blocks of neighbours, each block's short and long prompts apart; of every cell the logarithm of simulated
over measured seconds is one residual a metric. A block is what chance may exchange, single requests are not: whom a
step just misses is luck.

    >>> cells = Cells([run], FIT)
    >>> cells.residuals([run.simulated(resolved)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvcast.fitted.runs import METRICS, ServerRun

FIT, TEST = 0, 1
BLOCKS = 40  #: of a run at most
FEWEST = 8  #: requests of a block
SPELL, SPELLS = 3, 8
"""Blocks in a row that chance may move as one, for their requests are in flight together and share its slow steps;
fewer of them where there would be fewer spells than this."""
FLOOR = 0.004
"""Spread of residuals below which nothing is believed: of simulated over measured seconds, a share."""


def blocks_of(n: int) -> np.ndarray:
    """int64 [n]: the block of every request."""
    return np.arange(n) // max(FEWEST, -(-n // BLOCKS))


def halves(runs: Sequence[ServerRun]) -> list[np.ndarray]:
    """bool [n] a run: who is fitted. Of three runs or more every second one is held out whole, of fewer every second
    block."""
    if len(runs) > 2:
        order = sorted(range(len(runs)), key=lambda i: runs[i].in_flight)
        return [np.full(len(run), order.index(i) % 2 == 0) for i, run in enumerate(runs)]
    return [blocks_of(len(run)) % 2 == 0 for run in runs]


class Cells:
    """The cells of the requests that are `chosen`; residual k is of a `spell[k]` of time and has a noise `group[k]`."""

    def __init__(self, runs: Sequence[ServerRun], chosen: Sequence[np.ndarray]) -> None:
        self._parts: list[tuple[int, str, np.ndarray, np.ndarray, np.ndarray]] = []
        groups, spells, weights = [], [], []
        fitted = sum(len(np.unique(blocks_of(len(run))[mine])) for run, mine in zip(runs, chosen, strict=True))
        together = min(max(fitted // SPELLS, 1), SPELL)
        self.names: list[tuple[int, str]] = []  # of groups
        first = 0
        for i, (run, mine) in enumerate(zip(runs, chosen, strict=True)):
            block, longer = blocks_of(len(run)), run.truth.prompt_tokens > np.median(run.truth.prompt_tokens)
            for metric in METRICS:
                measured = run.measured[metric]
                known = mine & np.isfinite(measured) & (measured > 0)
                if not known.any():
                    continue
                _, cell = np.unique(2 * block[known] + longer[known], return_inverse=True)
                n = np.bincount(cell)
                of_block = np.zeros(len(n), np.int64)
                of_block[cell] = block[known]
                self._parts.append((i, metric, known, cell, np.bincount(cell, measured[known])))
                groups.append(np.full(len(n), len(self.names)))
                self.names.append((i, metric))
                order = np.unique(of_block, return_inverse=True)[1]  # among those that are fitted
                spells.append(first + order // together)
                weights.append(n / n.mean())
            first += len(mine)
        self.group, self.weight = np.concatenate(groups), np.concatenate(weights)
        self.spell = np.unique(np.concatenate(spells), return_inverse=True)[1]

    def residuals(self, simulated: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
        """float64 [residuals]; simulated: seconds of every request by metric, a run each."""
        found = []
        for i, metric, known, cell, measured in self._parts:
            seconds = np.bincount(cell, np.nan_to_num(simulated[i][metric][known]))
            found.append(np.log(np.maximum(seconds, 1e-9) / measured))
        return np.concatenate(found)

    def spread(self, residuals: np.ndarray) -> np.ndarray:
        """float64 [residuals]: the root mean square of each one's group, FLOOR at least."""
        total = np.bincount(self.group, self.weight * residuals**2) / np.bincount(self.group, self.weight)
        return np.sqrt(total + FLOOR**2)[self.group]

    def together(self, luck: np.ndarray) -> np.ndarray:
        """float64 [residuals]: how many residuals of its group chance moves as one, 1 at least. luck: float64 [runs,
        residuals]."""
        n = np.bincount(self.group)
        means = np.stack([np.bincount(self.group, one) / n for one in luck])
        each = np.bincount(self.group, np.mean(luck**2, axis=0)) / n
        return np.maximum(n * np.mean(means**2, axis=0) / np.maximum(each, 1e-12), 1.0)[self.group]

    def loss(self, residuals: np.ndarray) -> float:
        """Minus the log-likelihood with each group's own unknown noise, up to a constant."""
        return float(np.sum(self.weight * np.log(self.spread(residuals))))
