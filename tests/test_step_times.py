"""Packed step times are the same to the last bit, wherever they are asked for."""

from array import array
from dataclasses import replace
from math import nextafter

import numpy as np
import pytest

import sim.log
from kvcast import api, load_scenario
from sim import packed_rows
from sim.recording import StepsByStretch
from sim.step_times import BLOCK, StepTimes


@pytest.mark.parametrize("kind", ["linear", "random", "jumps", "equal", "neighbours", "from zero"])
def test_what_comes_back_is_what_was_told(kind: str) -> None:
    rng, n = np.random.default_rng(5), 3 * BLOCK + 17
    gaps_s = {
        "linear": 0.01 + 1e-7 * np.arange(n),
        "random": rng.exponential(0.02, n),
        "jumps": np.where(rng.random(n) < 0.01, 1e7, 0.01),
        "equal": np.zeros(n),
        "neighbours": np.full(n, nextafter(1.0, 2.0) - 1.0),
        "from zero": np.append(0.0, np.full(n - 1, 0.01)),
    }[kind]
    ends_s = np.cumsum(gaps_s) + (kind == "neighbours")
    codes = rng.integers(0, 3, n).astype(np.int8)
    times = StepTimes(packs=True)
    for at in range(0, n, 301):
        times.extend(array("d", ends_s[at : at + 301]), codes[at : at + 301].tobytes())
        newest = min(at + 301, n) - 1
        assert len(times) == newest + 1
        assert times.end_s(newest) == ends_s[newest]
    assert times.ends_s().tobytes() == ends_s.tobytes()
    assert times.codes().tolist() == codes.tolist()
    assert [times.end_s(step) for step in (0, BLOCK - 1, BLOCK, n - 1)] == ends_s[[0, BLOCK - 1, BLOCK, n - 1]].tolist()


def test_a_parabola_takes_less_than_a_byte_a_step() -> None:
    n = 4 * BLOCK
    ends_s = np.cumsum(0.01 + 1e-7 * np.arange(n))
    times = StepTimes(packs=True)
    times.extend(array("d", ends_s), bytes(n))
    assert sum(len(block) for block in times._blocks) < n


@pytest.mark.parametrize("packs", [False, True])
def test_rows_come_back_as_they_were_added(packs: bool) -> None:
    rng, n = np.random.default_rng(2), 3 * packed_rows.BLOCK + 5
    wanted = np.column_stack([rng.exponential(1.0, n).cumsum(), rng.integers(0, 2**53, n), np.full(n, -0.0)])
    rows = packed_rows.Rows(3, packs)
    assert (len(rows), rows.last(1), rows.column(0).tolist()) == (0, 0.0, [])
    for i, row in enumerate(wanted.tolist()):
        rows.add(*row)
        assert (len(rows), rows.last(0)) == (i + 1, row[0])
    assert all(rows.column(i).tobytes() == wanted[:, i].tobytes() for i in range(3))
    assert bool(rows._blocks[0]) == packs


def test_a_run_says_the_same_with_its_times_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("examples/demo.toml")
    scenario = replace(scenario, run=replace(scenario.run, warmup_s=60.0, duration_s=360.0))
    summaries = []
    for packs_from in (1 << 62, 0):
        monkeypatch.setattr(sim.log, "PACKS_FROM", packs_from)
        prepared = api.prepare(scenario)
        recording = api.record(prepared)
        assert isinstance(recording.steps[0], StepsByStretch)
        assert bool(recording.steps[0]._times._blocks) == (packs_from == 0)
        summaries.append(api.measure(prepared, recording).report.summary)
    assert summaries[0] == summaries[1]
