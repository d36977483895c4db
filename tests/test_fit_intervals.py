"""Intervals of a fit hold what they are of: a world of formulas, whose requests share spells of noise that the fit does
not know, many times over. Simulated servers are in benchmarks/bench_fit_server.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from scipy.signal import lfilter

from kvcast.fitted.estimate import Fit, estimate
from kvcast.fitted.likeness import Cells
from kvcast.fitted.parameters import CONSTANT, DENSE, HOST_STEP, PROMPT_TOKEN

WORLD = (DENSE, HOST_STEP, CONSTANT, PROMPT_TOKEN)
START = np.array([0.0, 0.6, 0.0, 0.0])
LOADS = (6, 48)  #: requests in flight


class Requests(SimpleNamespace):
    def __len__(self):
        return 200


def times(axis, prompt, batch, noise):
    """Seconds of every request whose steps take so much more or less than usual."""
    dense, host_s, front_s = np.exp(axis[0]), axis[1] / 1e3, axis[2] / 1e3 + axis[3] / 1e6 * prompt
    tpot_s = (dense * (6e-3 + 5e-5 * batch) + host_s) * np.exp(noise)
    ttft_s = front_s + (dense * prompt * 2.5e-5 + 3 * host_s) * np.exp(2 * noise)
    return {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": ttft_s + 100 * tpot_s}


def spells(rng, n, share, memory):
    return share * lfilter([np.sqrt(1 - memory**2)], [1.0, -memory], rng.standard_normal(n + 50))[50:]


def found(seed):
    """(z of every interval: 1 is its end, kept keys)."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform([-0.2, 0.5, 4.0, 2.0], [0.2, 2.5, 25.0, 10.0])
    prompts = [np.clip(rng.lognormal(np.log(800), 0.7, 200), 8, 8000) for _ in LOADS]
    runs = [
        Requests(truth=SimpleNamespace(prompt_tokens=prompt), measured=times(truth, prompt, batch, noise))
        for prompt, batch in zip(prompts, LOADS, strict=True)
        for noise in [spells(rng, 200, 0.02, 0.85)]
    ]
    cells = Cells(runs, [np.ones(200, bool)] * len(runs))

    def simulate(values, luck):
        axis = [p.onto(values[p.key]) if p.key in values else x for p, x in zip(WORLD, START, strict=True)]
        own = np.random.default_rng([luck, 9])
        pairs = zip(prompts, LOADS, strict=True)
        return cells.residuals([times(axis, prompt, batch, spells(own, 200, 0.004, 0.0)) for prompt, batch in pairs])

    result = estimate(Fit(WORLD, START, cells, simulate))
    at = {p.key: x for p, x in zip(WORLD, truth, strict=True)}
    return [
        (x - at[p.key]) / half for p, x, half in zip(result.kept, result.axis, result.half, strict=True)
    ], result.kept


def test_intervals_hold_the_truth_where_neighbours_share_their_noise():
    ends = np.concatenate([found(seed)[0] for seed in range(25)])
    assert len(ends) > 60
    assert np.mean(np.abs(ends) <= 1) >= 0.87  # measured 0.89 of 100 seeds; 0.80 with blocks left out one by one
    assert np.mean(np.abs(ends)) > 0.3  # and are not as wide as can be
    for side in (ends, -ends):
        assert np.mean(side > 1) < 0.1
