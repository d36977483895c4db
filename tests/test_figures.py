"""Figures of a tiny run: what they draw adds up, and stays small however long the run was."""
import numpy as np
import pytest

from kvcast import api, figures, runs
from kvcast.config import scenario_from_doc
from kvcast.figures import cache, latency

DOC = {
    "name": "tiny",
    "workload": {"preset": "demo", "duration_s": 40.0},
    "cluster": {"replicas": 2},
    "slo": {"ttft_s": 1.0, "attainment": 0.9, "classes": {"chat": {"ttft_s": 0.5, "tpot_s": 0.03}}},
}


@pytest.fixture(scope="module")
def result():
    return api.run(api.prepare(scenario_from_doc(DOC)), record_life=True)


@pytest.fixture(scope="module")
def document(result):
    return api.as_document(result)


def all_figures(document, requests, timeline):
    return [
        figures.latency_cdf(document, requests, "ttft"), figures.latency_cdf(document, requests, "tpot"), figures.kv_occupancy(document, timeline),
        figures.hit_rate(document, timeline), figures.queue(timeline), figures.miss_causes(document), figures.request_life(figures.lives_of(document, requests)),
    ]  # fmt: skip


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def test_traces_are_aggregates_with_units_in_the_axis_titles(result, document):
    for figure in all_figures(document, result.report.requests, result.report.timeline):
        assert figure.data
        assert all(len(t.x) <= 1000 for t in figure.data)
        titles = f"{figure.layout.xaxis.title.text} {figure.layout.yaxis.title.text}"
        assert any(unit in titles for unit in ("(ms", "(s)", "(%)")), titles
        assert figure.layout.title.text
        assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)", "the theme owns the background"


def test_a_run_folder_draws_the_same_figures_as_its_report(result, document, tmp_path):
    run = runs.load_run(runs.save_run(tmp_path / "run", result))
    ours = all_figures(document, result.report.requests, result.report.timeline)
    theirs = all_figures(run.summary, run.tables["requests"], run.tables["timeline"])
    assert [f.to_json() for f in theirs] == [f.to_json() for f in ours]


def test_cdf_says_how_many_requests_meet_a_limit(result, document):
    requests, figure = result.report.requests, figures.latency_cdf(document, result.report.requests, "ttft")
    for i, name in enumerate(document["classes"]):
        mine = requests["ttft_s"][requests["in_window"] & (requests["status"] == 0) & (requests["class_id"] == i)] * 1e3
        line = trace(figure, name)
        assert line.y[-1] == 100
        assert line.x[-1] == mine.max()
        for x, y in zip(line.x, line.y, strict=True):
            assert (mine <= x).mean() * 100 >= y - 1e-9
    assert trace(figure, "limit chat: 500 ms").x == (500.0, 500.0)
    assert trace(figure, "limit others: 1.00 s").x == (1000.0, 1000.0)


def test_cdf_of_a_million_requests_is_small_and_right():
    values = np.sort(np.random.default_rng(0).lognormal(size=1_000_000))
    x, y = latency._cdf(values)
    assert len(x) <= latency.CURVE_POINTS
    assert y[-1] == 100
    assert x[-1] == values[-1]
    for p in (1, 50, 90, 99, 99.9):
        assert np.interp(p, y, x) == pytest.approx(np.percentile(values, p), rel=0.02)


def test_cdf_leaves_out_single_token_outputs_and_unfinished_requests(document):
    requests = {
        "in_window": np.array([True, True, True, False]), "status": np.array([0, 0, 1, 0]), "class_id": np.zeros(4, int), "tpot_s": np.array([0.01, np.nan, 0.02, 0.03]),
    }  # fmt: skip
    line = figures.latency_cdf(document, requests, "tpot").data[0]
    assert list(line.x) == [10.0]


def test_kv_parts_fill_the_cache(result, document):
    figure = figures.kv_occupancy(document, result.report.timeline)
    np.testing.assert_allclose(sum(np.asarray(t.y) for t in figure.data), 100.0)
    assert trace(figure, "in use").customdata.max() > 0


def test_binned_hit_rates_add_up_to_the_whole(result, document):
    timeline = result.report.timeline
    y = np.asarray(trace(figures.hit_rate(document, timeline), "hit rate").y)
    tokens = np.array([piece.sum() for piece in np.array_split(timeline["prompt_tokens"], cache.BINS)])
    assert np.nansum(y * tokens) / tokens.sum() / 100 == pytest.approx(document["prefix_hit_rate"], abs=1e-9)
    ceiling = np.asarray(trace(figures.hit_rate(document, timeline), "ceiling, replica").y)
    assert (y <= ceiling + 1e-9)[~np.isnan(y)].all()


def test_every_bar_of_the_miss_causes_is_whole(document):
    figure = figures.miss_causes(document)
    total = np.sum([t.x for t in figure.data], axis=0)
    np.testing.assert_allclose(total, 100.0)
    assert figure.data[0].y == ("coding-agent", "chat", "all")
    assert trace(figure, "hit").customdata[-1] == document["prefix_hit_tokens"]


def test_every_cause_of_the_report_has_a_look(document):
    assert set(document["miss_tokens"]) == set(cache.CAUSES)


def test_lives_last_from_arrival_to_the_last_token(result, document):
    requests = result.report.requests
    coarse = figures.lives_of(document, requests, count=3)
    slowest = requests["ttft_s"][[int(label.split()[0].removeprefix("#")) for label, _ in coarse]]
    assert slowest[0] == requests["ttft_s"][requests["status"] == 0].max()
    for rows in (coarse, [(f"#{r}", life) for r, life in enumerate(result.report.life[:5])]):
        figure = figures.request_life(rows)
        for label, _ in rows:
            r = int(label.split()[0].removeprefix("#"))
            drawn = [(b, b + x) for t in figure.data for y, b, x in zip(t.y, t.base, t.x, strict=True) if y == label]
            assert max(end for _, end in drawn) == pytest.approx(requests["e2e_s"][r])
            assert sum(end - start for start, end in drawn) == pytest.approx(requests["e2e_s"][r])


def test_preempted_time_is_drawn(document):
    requests = {name: np.array([value]) for name, value in {
        "in_window": True, "status": 0, "class_id": 0, "ttft_s": 1.0, "prompt_tokens": 100, "hit_tokens": 64, "output_tokens": 5, "recomputed_tokens": 40,
        "preempted_s": 0.5, "arrival_s": 1.0, "admit_s": 1.5, "first_token_s": 2.0, "finish_s": 4.0}.items()}  # fmt: skip
    [(label, life)] = figures.lives_of(document, requests)
    assert label == "#0 chat"
    assert life == [("queued", 1.0, 1.5, 0), ("prefill", 1.5, 2.0, 36), ("decode", 2.0, 3.5, 5), ("preempted", 3.5, 4.0, 40)]


def test_figures_of_a_run_in_which_nothing_completed(document):
    nothing = {name: np.zeros(0, bool if name == "in_window" else float) for name in ("in_window", "status", "class_id", "ttft_s", "tpot_s")}
    figure = figures.latency_cdf(document, nothing, "ttft")
    assert [t.name for t in figure.data] == ["limit chat: 500 ms", "limit others: 1.00 s"]
    empty = {key: 0 if key == "prefix_hit_tokens" else value for key, value in document.items()} | {"prompt_tokens": 0, "miss_tokens": {}, "classes": {}}
    assert len(figures.miss_causes(empty).data) == 0
