"""The bundled presets against percentiles of their sources (docs/workloads.md has the table)."""

from dataclasses import replace

import numpy as np
import pytest

from workloads.columns import Workload
from workloads.config import WorkloadConfig
from workloads.estimate import estimate, reusable_tokens
from workloads.mix import build, list_presets, load_preset
from workloads.toml import PRESETS

SOURCES = {
    "chat": {"prompt": {50: 1020, 90: 2735}, "output": {50: 129, 90: 424}, "reusable": 0.0},
    "long-context-chat": {"prompt": {50: 6900, 90: 27_000, 99: 85_000}, "output": {50: 350, 90: 597}, "reusable": 0.37},
    "coding-agent": {"output": {50: 216, 90: 898}, "first": 24_000, "last": 134_000, "turns": 45, "reusable": 0.96},
    "code-completion": {"prompt": {50: 1469, 90: 5188, 100: 7437}, "output": {50: 13, 90: 55}, "reusable": 0.0},
    "rag": {"mean_prompt": 15_000, "mean_output": 500},
    "reasoning": {"prompt": {50: 208, 90: 2092}, "output": {50: 792, 90: 3432, 99: 12_607}, "reusable": 0.0},
    "batch-summarisation": {"prompt": {50: 2730, 90: 3702}, "output": {50: 167, 90: 372}, "reusable": 0.02},
    "tool-agent-api": {"reusable": 0.59},
}


def of_sessions(w: Workload, which: str) -> np.ndarray:
    """Prompt tokens of every session's first or last request, or its number of requests."""
    session, turn = w.column("session_id"), w.column("turn")
    order = np.lexsort((turn, session))
    last = order[np.append(np.diff(session[order]) != 0, True)]
    return {"first": w.prompt_tokens[turn == 0], "last": w.prompt_tokens[last], "turns": turn[last] + 1}[which]


@pytest.mark.parametrize("name", SOURCES)
def test_presets_look_like_their_sources(name):
    source = SOURCES[name]
    w = build(replace(load_preset(name), requests=20_000), seed=0)
    w.check()
    for column in ("prompt", "output"):
        for percent, value in source.get(column, {}).items():
            assert np.percentile(getattr(w, f"{column}_tokens"), percent) == pytest.approx(
                value, rel=0.05 if percent <= 90 else 0.15
            ), (column, percent)
    for which in {"first", "last", "turns"} & set(source):  # some 300 sessions
        assert np.median(of_sessions(w, which)) == pytest.approx(source[which], rel=0.12)
    row = estimate(load_preset(name))[0]
    for mean in {"prompt", "output"}:
        if f"mean_{mean}" in source:
            assert row[f"{mean}_tokens"] == pytest.approx(source[f"mean_{mean}"], rel=0.03)
    if "reusable" in source:
        assert reusable_tokens(w).sum() / w.prompt_tokens.sum() == pytest.approx(source["reusable"], abs=0.03)


def test_every_preset_loads_builds_and_names_its_source():
    assert set(list_presets()) == {*SOURCES, "demo"}
    for name in list_presets():
        text = (PRESETS / f"{name}.toml").read_text()
        assert text.startswith("#")
        assert "Judged:" in text
        w = build(WorkloadConfig(preset=name, requests=100), seed=1)
        assert len(w) >= 100


def test_the_demo_fits_its_promise():
    w = build(load_preset("demo"), seed=0)
    assert 5000 <= len(w) <= 10_000  # long enough to judge, a second to simulate
    assert np.percentile(w.prompt_tokens, 99) < 50_000
    assert w.prompt_tokens.max() < 100_000


def test_a_scenario_can_change_a_preset():
    w = build(WorkloadConfig(preset="chat", rate=11.0, requests=2000), seed=0)
    slow = build(WorkloadConfig(preset="chat", requests=2000), seed=0)
    assert w.arrival_s * 2 == pytest.approx(slow.arrival_s)
    assert np.array_equal(w.prompt_tokens, slow.prompt_tokens)
