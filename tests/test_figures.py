"""Figures of a tiny run: what they draw adds up, and stays small however long the run was."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from kvcast import api, figures
from kvcast.config import scenario_from_doc
from kvcast.figures import cache, style
from kvcast.figures.alternative import in_words
from kvcast.figures.workload import arrivals
from kvcast.figures.workload import prompt_layers as figure_of_prompts
from kvcast.pages.edit.layers import Part
from kvcast.store import aggregates, runs
from sim.scenario import Scenario, SloClass, SloConfig
from tests.ui.plans import plan
from workloads.config import WorkloadConfig
from workloads.toml import load_preset

DOC = {
    "name": "tiny",
    "workload": {"preset": "demo", "duration_s": 40.0},
    "run": {"warmup_s": 0.0},
    "cluster": {"replicas": 2},
    "slo": {"ttft_s": 1.0, "attainment": 0.9, "classes": {"chat": {"ttft_s": 0.5, "tpot_s": 0.03}}},
}


@pytest.fixture(scope="module")
def result():
    return api.run(api.prepare(scenario_from_doc(DOC)), record_life=True)


@pytest.fixture(scope="module")
def document(result):
    return api.as_document(result)


@pytest.fixture(scope="module")
def drawn(result):
    return aggregates.of(result.report)


def all_figures(document, drawn, requests, timeline):
    return [
        figures.latency_cdf(document, drawn, "ttft"),
        figures.latency_cdf(document, drawn, "tpot"),
        figures.latency_over_time(requests, "ttft"),
        figures.latency_over_time(requests, "tpot"),
        figures.kv_occupancy(document, timeline),
        figures.hit_rate(document, timeline),
        figures.queue(timeline),
        figures.miss_causes(document),
        figures.request_life(figures.lives_of(document, drawn)),
        figures.replica_load(document, requests),
    ]


def plan_figures(document):
    return [
        figures.goodput_by_rate(document),
        figures.latency_by_rate(document),
        figures.candidates(document),
        figures.binding(document),
    ]


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def test_traces_are_aggregates_with_units_in_the_axis_titles(result, document, drawn):
    for figure in all_figures(document, drawn, result.report.requests, result.report.timeline) + plan_figures(plan()):
        assert figure.data
        assert all(len(t.x) <= 1000 for t in figure.data)
        titles = f"{figure.layout.xaxis.title.text} {figure.layout.yaxis.title.text}"
        assert any(unit in titles for unit in ("(ms", "(s)", "%)", "/s)")), titles
        assert figure.layout.title.text
        assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)", "the theme owns the background"


def test_a_run_folder_draws_the_same_figures_as_its_report(result, document, drawn, tmp_path):
    run = runs.load_run(runs.save_run(tmp_path / "run", result))
    ours = all_figures(document, drawn, result.report.requests, result.report.timeline)
    theirs = all_figures(run.summary, run.aggregates, run.tables["requests"], run.tables["timeline"])
    assert [f.to_json() for f in theirs] == [f.to_json() for f in ours]


def test_cdf_says_how_many_requests_meet_a_limit(result, document, drawn):
    requests, figure = result.report.requests, figures.latency_cdf(document, drawn, "ttft")
    for i, name in enumerate(document["classes"]):
        mine = requests["ttft_s"][requests["in_window"] & (requests["status"] == 0) & (requests["class_id"] == i)] * 1e3
        line = trace(figure, name)
        assert line.y[-1] == 100
        assert line.x[-1] == mine.max()
        for x, y in zip(line.x, line.y, strict=True):
            assert (mine <= x).mean() * 100 >= y - 1e-9
    assert trace(figure, "limit chat: 500 ms").x == (500.0, 500.0)
    assert trace(figure, "limit others: 1.00 s").x == (1000.0, 1000.0)


def test_a_curve_of_a_million_requests_is_small_and_right():
    values = np.random.default_rng(0).lognormal(size=1_000_000)
    curve = aggregates.curve(values)
    x, y = curve["ms"], curve["percent"]
    assert len(x) <= aggregates.CURVE_POINTS
    assert (y[-1], x[-1]) == (100, values.max())
    for p in (1, 50, 90, 99, 99.9):
        assert np.interp(p, y, x) == pytest.approx(np.percentile(values, p), rel=0.02)


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


def test_a_class_named_all_is_not_the_fleet(document):
    classes = dict(zip(("all", "all classes"), document["classes"].values(), strict=True))
    figure = figures.miss_causes({**document, "classes": classes})
    assert figure.data[0].y == ("all classes", "all", "all classes classes")
    np.testing.assert_allclose(np.sum([t.x for t in figure.data], axis=0), 100.0)


def test_every_cause_of_the_report_has_a_look(document):
    assert set(document["miss_tokens"]) == set(cache.CAUSES)


@pytest.mark.parametrize("name", ["<b>bold</b>", "&lt;i", "%{nothing}", "<a href='http://elsewhere'>x</a>"])
def test_no_name_is_acted_on(name):
    """plotly reads tags, entities and templates in every text; a class is named by whoever wrote the mix."""
    mix = load_preset("demo").class_
    config = WorkloadConfig(
        duration_s=20.0, class_=tuple(replace(c, name=f"{name} {i}", slo_class=name) for i, c in enumerate(mix))
    )
    scenario = Scenario(workload=config, slo=SloConfig(ttft_s=1.0, classes={name: SloClass(ttft_s=0.5)}))
    result = api.run(api.prepare(scenario), record_life=True)
    document, drawn = api.as_document(result), aggregates.of(result.report)
    shown = [
        *all_figures(document, drawn, result.report.requests, result.report.timeline),
        figure_of_prompts({"as ordered": [Part(name, "global", 10.0, True)]}),
        arrivals({name: np.arange(9.0)}),
    ]
    for figure in shown:
        assert name not in figure.to_json().replace("\\u003c", "<").replace("\\u003e", ">").replace("\\u0026", "&")
    assert style.literal(name).replace("\u200b", "") == name
    assert style.literal("TTFT < 1 s & 99 %") == "TTFT < 1 s & 99 %"


def test_lives_last_from_arrival_to_the_last_token(result, document, drawn):
    requests = result.report.requests
    coarse = figures.lives_of(document, drawn, count=3)
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
    row = {
        "request": 0,
        "class_id": 0,
        "prompt_tokens": 100,
        "hit_tokens": 64,
        "output_tokens": 5,
        "recomputed_tokens": 40,
        "preempted_s": 0.5,
        "arrival_s": 1.0,
        "admit_s": 1.5,
        "first_token_s": 2.0,
        "finish_s": 4.0,
    }
    [(label, life)] = figures.lives_of(document, {"slowest": [row]})
    assert label == "#0 chat"
    assert life == [
        ("queued", 1.0, 1.5, 0),
        ("prefill", 1.5, 2.0, 36),
        ("decode", 2.0, 3.5, 5),
        ("preempted", 3.5, 4.0, 40),
    ]


def test_figures_of_a_run_in_which_nothing_completed(document):
    figure = figures.latency_cdf(document, {"latency_ms": {"ttft": {}}}, "ttft")
    assert [t.name for t in figure.data] == ["limit chat: 500 ms", "limit others: 1.00 s"]
    empty = {key: 0 if key == "prefix_hit_tokens" else value for key, value in document.items()} | {
        "prompt_tokens": 0,
        "miss_tokens": {},
        "classes": {},
    }
    assert len(figures.miss_causes(empty).data) == 0


# -- plans and comparisons ---------------------------------------------------------------------------------------------


def test_goodput_is_below_the_diagonal_and_its_marks_stand_at_the_plans_rates():
    document = plan()
    figure = figures.goodput_by_rate(document)
    line = trace(figure, "goodput")
    assert (np.asarray(line.y) <= np.asarray(line.x) + 1e-9).all()
    assert line.marker.symbol == ("circle",) * 5 + ("x",), "the last rate is unstable"
    assert [trace(figure, name).x for name in ("your load 3", "knee 8.1", "SLO capacity 7.4")] == [
        (3.0, 3.0),
        (8.1, 8.1),
        (7.4, 7.4),
    ]
    [band] = figure.layout.shapes
    assert (band.x0, band.x1) == (7.2, 7.6)
    unknown = figures.goodput_by_rate({**document, "capacity": None, "knee_per_s": None})
    assert [t.name for t in unknown.data] == ["all requests good", "95 % interval", "goodput"]


def test_a_load_in_users_has_users_on_its_axis_and_no_knee():
    document = plan()
    figure = figures.goodput_by_rate(
        {
            **document,
            "capacity": {**document["capacity"], "unit": "users"},
            "rates": [{**row, "load": 100 * row["rate_per_s"]} for row in document["rates"]],
        }
    )
    assert figure.layout.xaxis.title.text == "offered load (users)"
    assert trace(figure, "goodput").x[0] == 150.0
    assert trace(figure, "all requests good").y[1] == 1.5
    assert not any(t.name.startswith("knee") for t in figure.data)


def test_a_limit_is_called_as_the_classes_it_is_for():
    limits = {"ttft_s": 0.5, "tpot_s": None, "e2e_s": None}
    document = {
        "classes": {"chat": {"slo_class": ""}, "coding-agent": {"slo_class": "agent"}, "batch": {"slo_class": "agent"}},
        "slo_classes": {"": {"limits": limits}, "agent": {"limits": {**limits, "ttft_s": 2.0}}},
    }
    figure = figures.latency_cdf(document, {"latency_ms": {"ttft": {}}}, "ttft")
    assert [line.meta for line in figure.data] == ["limit others: 500 ms", "limit coding-agent, batch: 2.00 s"]


def test_an_unstable_rate_has_no_latency_and_every_limit_has_a_line():
    figure = figures.latency_by_rate(plan())
    assert np.isnan(trace(figure, "TTFT p99").y[-1])
    assert trace(figure, "TTFT p99").y[1] == 390.0
    assert [(t.name, t.y[0]) for t in figure.data if "limit" in t.name] == [
        ("TTFT limit chat: 500 ms", 500.0),
        ("TPOT limit chat, agent: 30.0 ms", 30.0),
        ("TTFT limit agent: 2.00 s", 2000.0),
    ]


def test_candidates_show_the_plan_and_the_front_of_those_that_meet():
    document = plan()
    figure = figures.candidates(document)
    assert len(trace(figure, "meets").x) == 3
    assert list(zip(trace(figure, "Pareto front").x, trace(figure, "Pareto front").y, strict=True)) == [
        (240.0, 12.0),
        (395.0, 8.0),
    ]
    assert (trace(figure, "the plan").x, trace(figure, "the plan").y) == ((395.0,), (8.0,))
    assert [t.name for t in figure.data] == ["Pareto front", "meets", "misses", "the plan"]
    assert len(trace(figure, "misses").x) == 1, "an unstable one's latency says how long its run was"
    doubtful = plan(candidates=[{**c, "verdict": "not shown"} for c in document["candidates"]])
    assert [t.name for t in figures.candidates(doubtful).data] == ["not shown", "the plan"]
    free = plan(candidates=[{**c, "usd_per_hour": None} for c in document["candidates"]])
    assert "GPUs" in figures.candidates(free).layout.yaxis.title.text
    assert trace(figures.candidates(free), "the plan").y == (2,)
    lost = plan(answer={**document["answer"], "feasible": False})
    assert "the plan" not in [t.name for t in figures.candidates(lost).data]


def test_every_fleet_that_was_tried_has_its_share_and_one_ended_early_its_upper_end():
    document = plan()
    early = {"mean": None, "low": None, "high": 0.93}
    first, *others = document["candidates"]
    document = plan(candidates=[{**first, "attainment": early, "usd_per_hour": 4.0}, *others])
    figure = figures.shares_by_cost(document)
    assert (trace(figure, "ended early: at most this").x, trace(figure, "ended early: at most this").y) == (
        (2920.0,),
        (93.0,),
    )
    shown = [c for c in others if c["verdict"] == "meets"]
    assert trace(figure, "meets").x == tuple(730.0 * c["usd_per_hour"] for c in shown)
    assert trace(figure, "meets").y == tuple(100 * c["attainment"]["mean"] for c in shown)
    assert trace(figure, "meets").error_y.array == pytest.approx(
        [100 * (c["attainment"]["high"] - c["attainment"]["mean"]) for c in shown]
    )
    assert (trace(figure, "the answer").x, trace(figure, "the answer").y) == ((5840.0,), trace(figure, "meets").y[:1])
    assert trace(figure, "95 % asked for").y == (95.0, 95.0)
    free = plan(candidates=[{**c, "usd_per_hour": None} for c in document["candidates"]])
    assert trace(figures.shares_by_cost(free), "the answer").x == (2,)


def test_growth_has_the_advised_fleet_beside_it():
    document = plan()
    figure = figures.growth(document)
    assert trace(figure, "in step with the load").y == (2.0, 4.0, 6.0)
    assert (trace(figure, "as it is").x, trace(figure, "as it is").y) == ((1.0, 2.0, 3.0), (2, 4.0, 7.0))
    assert trace(figure, "with the first advice").y == (2, 3.0, 5.0)
    routed = [{**row, "advised": {**row["advised"], "change": "another router"}} for row in document["growth"]]
    for advice in (document["advice"], []):
        unlike = figures.growth(plan(growth=routed, advice=advice))
        assert trace(unlike, "with another router").y == (2, 3.0, 5.0), "no advice of the fleet as it is"
    alone = figures.growth(plan(growth=[{**row, "advised": None, "gpus": None} for row in document["growth"]]))
    assert [t.name for t in alone.data] == ["in step with the load", "as it is"]
    assert np.isnan(trace(alone, "as it is").y[1:]).all(), "no fleet that was looked at"


def test_what_a_run_does_not_judge_is_in_grey():
    figure = arrivals({"chat": np.array([1.0, 50.0, 90.0, 130.0])}, "sessions", warmup_s=40.0, end_s=100.0)
    [grey] = figure.layout.shapes
    assert (grey.x0, grey.x1) == (0, 40.0)
    assert figure.layout.xaxis.range == (0, 100.0), "what would come after the end never comes"
    assert not arrivals({"chat": np.arange(9.0)}).layout.shapes


def test_what_binds_is_told_apart():
    [bars] = figures.binding(plan()).data
    assert bars.y[-1] == "compute (estimate)", "the most helpful one on top"
    assert [y for y in bars.y if "estimate" not in y] == ["KV capacity", "replicas"]
    assert bars.x[-1] == pytest.approx(3.5)
    assert len(bars.y) == 4, "routing was not simulated"
    assert bars.error_x.array[-1] == pytest.approx(1.0)
    assert len(set(bars.marker.color)) == 2
    assert bars.marker.color.count(bars.marker.color[-1]) == 1


def test_replica_load_adds_up_to_the_runs_tokens(result, document):
    figure = figures.replica_load(document, result.report.requests)
    seconds = document["window"]["end_s"] - document["window"]["start_s"]
    total = {t.name: sum(t.y) * seconds for t in figure.data}
    assert total["prompt, from cache: no load"] == pytest.approx(document["prefix_hit_tokens"])
    assert total["output"] == pytest.approx(document["total_output_tokens"])
    assert total["prompt, computed"] == pytest.approx(document["prompt_tokens"] - document["prefix_hit_tokens"])
    assert "times the mean" in figure.layout.title.text


def test_a_difference_is_better_worse_or_not_shown():
    def row(difference, half):
        return {
            "difference": difference,
            "interval_95": half,
            "shown": None if half is None else abs(difference) > half,
            "observations": 20,
            "note": "",
        }

    keys = [
        ("lru", row(0.0, 0.0)),
        ("lfu", row(-30.0, 10.0)),
        ("fifo", row(4.0, 9.0)),
        ("mru", row(80.0, 20.0)),
        ("slru", row(2.0, None)),
        ("sieve", row(None, None)),
    ]
    figure = figures.differences(
        {"variants": [{"variant": {"cache.policy": name}, "vs_first": {"p99_ttft_ms": d}} for name, d in keys]},
        "p99_ttft_ms",
    )
    assert {t.name: t.y for t in figure.data} == {
        "better": ("policy lfu",),
        "worse": ("policy mru",),
        "no difference shown": ("policy fifo",),
        "no interval": ("policy slru",),
    }
    assert trace(figure, "better").error_x.array == (10.0,)


@pytest.mark.parametrize(("low", "high"), [(394.0, 398.4), (240.0, 600.0), (1.0, 1.0), (5.0, 9000.0), (1e-3, 50.0)])
def test_a_log_axis_has_some_ticks_and_not_many(low, high):
    ticks = style.log_ticks(low, high)
    assert 2 <= sum(low / 1.3 <= t <= high * 1.3 for t in ticks) <= 16
    assert ticks == sorted(set(ticks))


def test_percentiles_over_time_are_those_of_the_requests_of_each_interval():
    at_s = np.arange(200.0) + 1
    slow = np.where(at_s <= 100, 0.1, 0.3)
    requests = {
        "ttft_s": np.append(slow, [9.0, np.nan]),
        "first_token_s": np.append(at_s, [150.0, np.nan]),
        "status": np.append(np.zeros(200, int), [2, 0]),  # the slow one did not complete, the last one has no token
    }
    figure = figures.latency_over_time(requests, "ttft")
    assert figure.layout.title.text == "Time To First Token Latency"
    assert [trace.name for trace in figure.data] == ["P99", "P90", "P50", "Mean"]
    for trace in figure.data:
        assert list(trace.x) == [50, 150], "two intervals of 100 requests"
        assert list(trace.y) == pytest.approx([100, 300])
    assert in_words(figure) == (
        "Time To First Token Latency over time: P99 at most 300 ms, P90 at most 300 ms, P50 at most 300 ms."
    )
    nobody = {key: column[:0] for key, column in requests.items()}
    assert "no request" in in_words(figures.latency_over_time(nobody, "ttft"))


def test_a_figure_is_told_in_a_sentence_of_its_own(result, document, drawn):
    of_run = all_figures(document, drawn, result.report.requests, result.report.timeline)
    told = [in_words(figure) for figure in of_run + plan_figures(plan())]
    assert len(set(told)) == len(told)
    assert all(one.endswith(".") and "nothing to draw" not in one for one in told)
    distribution = next(one for one in told if one.startswith("TTFT distribution"))
    assert "half of the requests of" in distribution


def test_the_sentence_of_a_line_says_its_ends_and_its_peak():
    figure = go.Figure(go.Scatter(x=[0, 1, 2], y=[1.0, 5.0, 2.0], name="waiting"))
    figure.update_layout(title="Queue", xaxis_title="time (s)", yaxis_title="requests")
    assert in_words(figure) == "Queue, requests against time (s): waiting from 1 to 2, at most 5."
    assert in_words(go.Figure()) == "Plot: nothing to draw."


def test_a_long_class_name_is_short_in_the_legend_and_whole_in_hover_and_sentence():
    names = [f"customer-support-conversations-{i}" for i in range(6)]
    document = {
        "classes": {name: {"slo_class": name} for name in names},
        "slo_classes": {name: {"limits": {"ttft_s": 0.5 + i}} for i, name in enumerate(names)},
    }
    curves = {name: {"ms": [10.0, 20.0], "percent": [50.0, 100.0]} for name in names}
    figure = figures.latency_cdf(document, {"latency_ms": {"ttft": curves}}, "ttft")
    shown = [t.name for t in figure.data]
    assert max(map(len, shown)) <= style.LEGEND_CHARACTERS
    assert len(set(shown)) == len(shown), "its end tells one from the other"
    assert all(name in t.hovertemplate for name, t in zip(names, figure.data, strict=False))
    assert all(name in in_words(figure) for name in names)
    one = {name: curves[name] for name in names[:1]}
    few = figures.latency_cdf(document | {"slo_classes": {}}, {"latency_ms": {"ttft": one}}, "ttft")
    assert few.layout.height < figure.layout.height, "the plot does not shrink under its legend"
