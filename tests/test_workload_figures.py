"""Figures of a workload before it is simulated."""

import numpy as np
import pytest

from kvcast.figures.workload import BINS, arrivals, prompt_layers
from kvcast.pages.edit import layers, preview
from workloads.clock import earliest_s
from workloads.mix import build, ending
from workloads.toml import load_preset


def test_a_bar_is_the_prompt_in_order_with_what_is_lost_hatched():
    config = layers.moved(load_preset("demo"), "coding-agent", 3, -1)
    parts = layers.parts(layers.of(config, "coding-agent"))
    figure = prompt_layers({"as ordered": parts}, {"as ordered": 15000.0})
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.x[0] for bar in bars] == [part.tokens for part in parts]
    assert [bar.base[0] for bar in bars] == [sum(p.tokens for p in parts[:i]) for i in range(len(parts))]
    assert [bar.marker.pattern.shape for bar in bars] == ["", "", "", "/", "/", ""], (
        "repository and history stand behind the task"
    )
    assert figure.data[-1].x[0] == 15000.0
    assert len({trace.name for trace in figure.data if trace.showlegend}) == 5, "each meaning once"


def test_two_orders_share_a_legend():
    parts = layers.parts(load_preset("chat").class_[0])
    figure = prompt_layers({"a": parts, "b": parts})
    assert sum(bool(trace.showlegend) for trace in figure.data) == 1


def test_arrivals_are_rates_that_sum_to_the_arrivals():
    times = {"a": np.linspace(0, 100, 1000), "b": np.array([])}
    figure = arrivals(times)
    width_s = 100 / BINS
    assert np.isclose(sum(figure.data[0].y) * width_s, 1000)
    assert len(figure.data[0].x) == BINS
    assert arrivals({}).data == ()


def test_the_preview_is_what_the_run_draws():
    config = load_preset("demo")
    sessions, requests = preview.arrivals(config, True), preview.arrivals(config, False)
    drawn = build(config, seed=0)
    assert sum(map(len, requests.values())) == len(drawn)
    assert sum(map(len, sessions.values())) == (drawn.column("turn") == 0).sum()
    assert max(t.max() for t in requests.values()) == pytest.approx(earliest_s(drawn).max())
    assert all(len(sessions[name]) < len(requests[name]) for name in requests)
    assert max(t.max() for t in sessions.values()) < ending(config).duration_s
