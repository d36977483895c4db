"""Shocks: what they add to a workload and do to a fleet, what is told of them, and plans that ask for recovery."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import bench_recovering_plans
from benchmarks import bench_resilience as toy
from kvcast import api, text
from kvcast.config import scenario_from_doc
from kvcast.planner import plan
from kvcast.planner.recovery import Recovery, with_burst
from kvcast.planner.resilience import _exponential, _rank, following, not_used, resilience
from kvcast.planner.trials import AfterShock
from kvcast.present import resilience_text
from kvcast.scenario.toml import dumps
from sim.measure.regime import of_run, of_runs
from sim.measure.shocks import recovered_s
from sim.scenario import Shock
from tests.plan_cases import CHAT
from workloads import mix
from workloads.config import Dist, Layer, MixClass, Surge, WorkloadConfig
from workloads.errors import InputError

MIX = WorkloadConfig(
    class_=(
        MixClass(
            name="chat",
            rate=2.0,
            turns=Dist(kind="geometric", mean=3, high=6),
            think=Dist(kind="exponential", mean=5),
            layers=(
                Layer("system", "global", Dist(value=500)),
                Layer("project", "project", Dist(kind="uniform", low=100, high=900), items=20, zipf=1.0),
                Layer("own", "session", Dist(value=64)),
                Layer("message", "dynamic", Dist(value=50)),
            ),
            output=Dist(kind="uniform", low=5, high=50),
            tenants=3,
            isolation=True,
        ),
        MixClass(name="batch", rate=0.5, layers=(Layer("job", "dynamic", Dist(value=300)),), output=Dist(value=20)),
    ),
    duration_s=400.0,
)


def prompts(workload) -> list[tuple]:
    """Every request with the texts of its path, in order."""
    content, parent = workload.tree.content, workload.tree.parent
    scopes = np.array(workload.layer_scopes)[workload.tree.layer]

    def path(leaf: int) -> tuple:
        found = []
        while parent[leaf] >= 0:
            found.append((int(scopes[leaf]), int(workload.tree.end[leaf])))
            leaf = int(parent[leaf])
        return tuple(found)

    assert content is not None
    columns = (workload.column(n) for n in ("class_id", "tenant_id", "prompt_tokens", "output_tokens", "delay_s"))
    rows = zip(*columns, workload.leaf, np.nan_to_num(workload.arrival_s, nan=-1.0), strict=True)
    return sorted((c, t, p, o, d, at, path(leaf)) for c, t, p, o, d, leaf, at in rows)


def test_a_burst_adds_sessions_and_leaves_the_others_as_they_were():
    calm = mix.build(MIX, 3)
    burst = mix.build(replace(MIX, surge=(Surge("shock 1", 100.0, 50.0, more=3.0),)), 3)
    more = prompts(burst)
    for row in prompts(calm):
        more.remove(row)  # ValueError where the calm run's request is not among them
    assert len(more) == len(burst) - len(calm)
    starts = [row[5] for row in more if row[5] >= 0]
    assert min(starts) >= 100
    assert max(starts) < 150
    assert 260 < len(starts) < 490  # 3 x 2.5 sessions a second for 50 s: 375, 6 standard deviations
    assert burst.class_names == calm.class_names
    assert burst.tenant_names == calm.tenant_names


def test_a_burst_reads_the_mixs_own_texts():
    burst = mix.build(replace(MIX, surge=(Surge("shock 1", 100.0, 50.0, more=3.0, of="chat"),)), 3)
    tree = burst.tree
    system = np.flatnonzero((tree.parent >= 0) & (tree.end == 500))
    assert len(system) == 3  # one a tenant: nobody's burst has a system prompt of its own
    calm = mix.build(MIX, 3)
    project = lambda w: np.unique(w.tree.end[w.tree.parent >= 0][np.isin(w.tree.parent[w.tree.parent >= 0], system)])  # noqa: E731
    assert set(project(calm)) <= set(project(burst))
    assert len(np.unique(burst.column("class_id"), return_counts=True)[1]) == 2


def test_two_sessions_of_a_burst_share_no_session_text():
    """Numbered from 0 like the mix's own, they must not be taken for those."""
    w = mix.build(replace(MIX, surge=(Surge("shock 1", 0.0, 400.0, more=1.0),)), 3)
    own = np.flatnonzero(np.array(w.layer_scopes)[w.tree.layer] == 3)  # session
    rows = np.flatnonzero((w.column("class_id") == 0) & (w.column("turn") == 0))
    calm = mix.build(MIX, 3)
    first = np.flatnonzero((calm.column("class_id") == 0) & (calm.column("turn") == 0))
    texts = len(np.unique(w.tree.content[own]))
    assert texts > 1.5 * len(np.unique(calm.tree.content[np.array(calm.layer_scopes)[calm.tree.layer] == 3]))
    assert len(rows) > 1.7 * len(first)


def document(**sections) -> dict:
    chat = {**CHAT, "rate": 1.0, "think": {"value": 20.0}}
    return {
        "workload": {"class": [chat]},
        "run": {"warmup_s": 100.0, "duration_s": 700.0},
        "model": {"name": "tiny"},
        "hardware": {"profile": "roofline:h200"},
        "engine": {"step_overhead_ms": 5.0, "kv_blocks": 20_000, "max_model_len": 16384, **sections.pop("engine", {})},
        "slo": {"ttft_s": 0.5, "attainment": 0.9},
        **sections,
    }


NARROW = {"step_overhead_ms": 20.0, "max_num_seqs": 20}
"""About 1.5 times the load at most: a search for its capacity is short."""


def run(**sections):
    return api.run(api.prepare(scenario_from_doc(document(**sections))))


def test_steps_of_a_slow_replica_take_so_many_times_as_long():
    calm = run(engine={"step_overhead_ms": 0.0})
    slow = run(
        engine={"step_overhead_ms": 0.0}, shock=[{"kind": "slow-replica", "at_s": 50, "duration_s": 200, "size": 4}]
    )
    steps = slow.report.steps[0]
    begins = steps.end_s - steps.duration_s
    inside, outside = (begins > 151) & (steps.end_s < 349), (steps.end_s < 149) | (begins > 360)
    each = calm.report.steps[0].duration_s
    assert steps.duration_s[inside].min() >= 4 * each.min() * (1 - 1e-9)
    assert steps.duration_s[outside].min() == pytest.approx(each.min())
    assert steps.duration_s[outside].mean() == pytest.approx(each.mean(), rel=0.3)


def test_a_replica_goes_down_and_comes_back_cold():
    calm = run(cluster={"replicas": 2})
    down = run(
        cluster={"replicas": 2}, shock=[{"kind": "replica-down", "at_s": 100, "duration_s": 200, "load_s": 30.0}]
    )
    steps = down.report.steps[1]
    ends = steps.end_s
    assert not ((ends > 200.0) & (ends < 430.0)).any()
    assert (ends > 430.0).any()
    assert (down.report.requests["status"] == 0).all() == (calm.report.requests["status"] == 0).all()
    columns, routed = down.report.requests, down.report.requests["replica"] == 1
    back = np.flatnonzero(routed & (columns["admit_s"] > 430))
    assert columns["hit_tokens"][back[np.argmin(columns["admit_s"][back])]] == 0  # the first one it takes: cold


def test_a_lost_cache_is_missed_at_once():
    lost = run(shock=[{"kind": "cache-lost", "at_s": 300, "duration_s": 0}])
    calm = run()
    columns, steady = lost.report.requests, calm.report.requests
    soon = (columns["arrival_s"] > 400) & (columns["arrival_s"] < 430) & (columns["turn"] > 0)
    before = (columns["arrival_s"] > 100) & (columns["finish_s"] < 400)
    assert np.array_equal(columns["hit_tokens"][before], steady["hit_tokens"][before])
    assert columns["hit_tokens"][soon].sum() < steady["hit_tokens"][soon].sum()


def test_jobs_of_a_storm_are_not_judged():
    storm = run(shock=[{"kind": "long-prompts", "at_s": 100, "duration_s": 100, "size": 8000, "rate": 0.2}])
    classes = storm.report.classes
    assert set(classes) == {"chat", "long prompts (shock 1)"}
    verdict = storm.report.summary["verdict"]
    assert [one["name"] for one in verdict["classes"]] == ["chat"]


def test_a_scenario_with_shocks_is_the_same_when_written_and_read():
    import tomllib

    asked = scenario_from_doc(document(shock=[{"kind": "burst", "at_s": 10.0}, {"kind": "long-prompts"}]))
    resolved = api.resolve(asked).scenario
    again = scenario_from_doc(tomllib.loads(dumps(resolved)))
    assert again == resolved
    assert api.resolve(again).scenario == resolved


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"shock": [{"kind": "flood"}]}, "one of burst"),
        ({"shock": [{"kind": "burst", "size": 1.0}]}, "above 1"),
        ({"shock": [{"kind": "burst", "of": "chatt"}]}, "expected one of chat"),
        ({"shock": [{"at_s": 3.0}]}, "kind is missing"),
        ({"shock": [{"kind": "burst", "at_s": -1.0}]}, "0 or more"),
        ({"shock": [{"kind": "replica-down", "replicas": 0}]}, "1 or more"),
        ({"shock": [{"kind": "replica-down", "size": 7.0}]}, "has no such key"),
        ({"shock": [{"kind": "burst", "at_s": 1000.0}]}, "within the window"),
    ],
)
def test_a_wrong_shock_is_one_line(section, what):
    with pytest.raises(InputError, match=what):
        api.prepare(scenario_from_doc(document(**section)))


def test_a_trace_has_no_burst(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n' * 3)
    doc = {**document(shock=[{"kind": "burst"}]), "workload": {"trace": str(trace), "format": "mooncake"}, "run": {}}
    with pytest.raises(InputError, match="expected a mix"):
        api.prepare(scenario_from_doc(doc))


def test_recovery_is_the_first_minute_from_which_the_target_is_attained_for_good():
    arrival_s = np.arange(0, 4000, 2.0)
    good = np.ones(len(arrival_s), bool)
    good[(arrival_s >= 1000) & (arrival_s < 1500)] = False
    columns = {"arrival_s": arrival_s, "good": good, "class_id": np.zeros(len(arrival_s), int)}
    targets = [("chat", 0.9, [0])]
    # from 1,480 s on 10 of 300 in ten minutes are bad, which the target takes; from 1,420 s on 40 were
    assert recovered_s(columns, targets, stop_s=1000.0, end_s=4000.0) == 480.0
    good[(arrival_s >= 2500)] = False  # it falls again, and stays down
    assert recovered_s(columns, targets, stop_s=1000.0, end_s=4000.0) is None
    assert recovered_s(columns, targets, stop_s=3500.0, end_s=4000.0) is None  # not seen for ten minutes
    # over what is left a little less than the target is chance: 110 of 1,260 would be enough, 130 are not beyond it
    good[:] = True
    good[(arrival_s >= 1000) & (arrival_s < 1500)] = False
    good[np.flatnonzero(arrival_s >= 2500)[:120]] = False
    assert recovered_s(columns, targets, stop_s=1000.0, end_s=4000.0) == 480.0
    good[np.flatnonzero(arrival_s >= 2500)[:200]] = False  # but this is not, before the bad stretch is over
    assert recovered_s(columns, targets, stop_s=1000.0, end_s=4000.0) > 1000.0


def test_a_plan_asks_for_recovery_and_measures_headroom_to_it():
    doc = document(plan={"burst_size": 3.0, "burst_s": 60.0, "recover_within_s": 120.0}, engine=NARROW)
    options = dict.fromkeys(("binding", "advice", "n_plus_1", "model_error", "undisturbed"), False)
    made = plan(scenario_from_doc(doc), most=4, seeds=2, growth=None, **options)
    recovery, capacity = made["recovery"], made["capacity"]
    assert made["answer"]["feasible"]
    assert recovery["recovers"]
    assert len(recovery["recovered_s"]) == 2
    assert recovery["recoverable_per_s"] <= capacity["slo_capacity_per_s"]
    assert recovery["headroom"] == pytest.approx(1 - capacity["offered_rate_per_s"] / recovery["recoverable_per_s"])
    assert "meets and recovers" in made["verdict"]
    assert made["answer"]["regime"] == "stable"
    told = "all that it holds" if recovery["recoverable_per_s"] == capacity["slo_capacity_per_s"] else "metastable"
    assert told in made["verdict"]
    off = {**options, "capacity": False}
    off = plan(scenario_from_doc({**doc, "plan": {"recover": False}}), most=4, seeds=2, growth=None, **off)
    assert off["recovery"] is None
    assert off["answer"]["replicas"] <= made["answer"]["replicas"]


def test_a_fleet_that_does_not_come_back_is_no_answer():
    """A burst that no fleet of this size survives: it holds its load and misses."""
    doc = document(plan={"burst_size": 60.0, "burst_s": 120.0, "recover_within_s": 1.0})
    options = dict.fromkeys(("capacity", "binding", "advice", "n_plus_1", "model_error", "undisturbed"), False)
    made = plan(scenario_from_doc(doc), most=1, seeds=1, growth=None, **options)
    assert not made["answer"]["feasible"]
    assert made["answer"]["reason"] == "does not recover"
    assert made["recovery"]["holds_replicas"] == 1
    assert made["recovery"]["recovered_s"] == [None]
    assert made["answer"]["regime"] == "metastable"
    assert "is metastable: it holds its load until disturbed and misses" in made["verdict"]
    (row,) = made["candidates"]
    assert row["verdict"] == "holds"
    assert row["rejected_by"] == "does not recover"


def test_seeds_are_asked_at_once_after_the_first_and_the_last_goes_on_to_the_end():
    class Asked:
        seeds = (0, 1, 2, 3, 4)

        def __init__(self, *backs: float | None):
            self.backs, self.runs = backs, []

        def after_shocks(self, runs):
            assert all(scenario.shock for scenario, _, _ in runs)
            self.runs.append([(seed, to_the_end) for _, seed, to_the_end in runs])
            return [AfterShock(self.backs[seed], 0.0) for _, seed, _ in runs]

    scenario = scenario_from_doc(document())
    for backs, times in (((7.0, None, 9.0), [7.0, None, 9.0]), ((None, 1.0, 1.0), [None])):
        trials = Asked(*backs)
        assert Recovery(SimpleNamespace(trials=trials)).times_s(scenario) == times
        assert trials.runs == [[(0, False)], [(1, False), (2, True)]][: len(times)]


def test_stopping_once_it_is_back_changes_no_answer():
    """sim.fleet.back against the same run to its end."""
    from kvcast.planner.trials import Trials
    from kvcast.store.simulations import Lab
    from sim.measure.metrics import limits_of
    from sim.measure.shocks import told
    from sim.measure.sketch import sketch
    from sim.measure.verdict import named_limits

    doc = document(plan={"burst_size": 4.0, "burst_s": 60.0, "recover_within_s": 300.0}, engine=NARROW)
    shocked = api.resolve(with_burst(api.windowed(scenario_from_doc(doc)))).scenario
    with tempfile.TemporaryDirectory() as folder, Trials(Lab(Path(folder)), [0], 0.95) as trials:
        stopped = trials.back_s(shocked, 0)
    prepared = api.prepare(shocked)
    columns, _ = sketch(api.record(prepared), prepared.workload, shocked, None)
    limits = named_limits(prepared.workload, limits_of(prepared.workload, shocked.slo))
    (whole,) = told(shocked, columns, limits, shocked.run.duration_s)
    assert stopped is not None
    assert whole["recovered_s"] is not None
    assert abs(stopped - whole["recovered_s"]) <= 90.0  # a look is not at whole minutes
    assert whole["recovered_s"] > 0  # the burst does hurt: else this would show nothing


def test_a_fleet_that_cannot_be_back_in_time_is_given_up():
    """sim.fleet.back: the run ends before its window, the answer is that of the whole run."""
    from kvcast.planner.trials import Trials
    from kvcast.store.simulations import Lab

    doc = document(plan={"burst_size": 16.0, "burst_s": 120.0, "recover_within_s": 640.0}, engine=NARROW)
    shocked = api.resolve(with_burst(api.windowed(scenario_from_doc(doc)))).scenario
    with tempfile.TemporaryDirectory() as folder, Trials(Lab(Path(folder)), [0], 0.95) as trials:
        assert trials.back_s(shocked, 0) is None
        ((stopped, outcome),) = [(one.stopped, one) for one in trials._outcomes.values()]
        assert stopped["back_s"] is None
        assert stopped["stopped_s"] < shocked.run.duration_s - 300.0
        assert trials.back_s(shocked, 0, to_the_end=True) is None
        assert trials.simulated == 2
        assert outcome.task.what_if == "until back"


def test_resilience_tells_branches_collapses_shocks_and_remedies(tmp_path):
    scenario = scenario_from_doc({**document(engine={**NARROW, "max_num_seqs": 10}), "run": {}, "name": "narrow"})
    options = {"seeds": 1, "hours": 0.35, "levels": (0.5, 1.0, 2.0)}
    made = resilience(scenario, tmp_path, remedies=False, **options)
    up, down = ({r["level"]: r for r in made["sweep"] if r["way"] == way} for way in ("up", "down"))
    assert list(up) == [0.5, 1.0, 2.0]
    assert list(down) == [1.0, 0.5]
    assert up[2.0]["waiting"] > 10 * up[0.5]["waiting"]
    assert up[0.5]["attainment"] > 0.9 > up[2.0]["attainment"]
    assert [row["level"] for row in made["collapse"]] == [1.0, 1.25]
    assert {row["kind"] for row in made["shocks"]} == {"burst", "cache-lost", "slow-replica", "long-prompts"}
    told = resilience_text.as_text(made)
    assert made["regime"] is None or f"at its own load {made['regime'].upper()}" in told
    assert "load up and down" in told
    assert "by itself" in told
    assert "<table" not in resilience_text.as_html(made)
    again = resilience(scenario, tmp_path, remedies=False, **options)
    assert text.to_json(again) == text.to_json(made)  # kept runs, to the same byte


def row(at_s, lasts_s, held, back_s, seen_s=1800.0):
    return {"at_s": at_s, "lasts_s": lasts_s, "held_before": held, "recovered_s": back_s, "seen_s": seen_s}


@pytest.mark.parametrize(
    ("stable", "shocks", "word"),
    [
        (False, [], "unstable"),
        (True, [], None),  # nothing happened: it may be either
        (True, [row(600, 600, True, 300.0)], "stable"),
        (True, [row(600, 600, True, None)], "metastable"),  # whatever its queue does
        (False, [row(600, 600, True, None)], "metastable"),
        (True, [row(600, 600, False, 300.0)], "unstable"),
        (True, [row(600, 600, True, None, seen_s=900.0)], None),  # not seen for as long as it is given
        (True, [row(600, 600, True, None, seen_s=1790.0)], "metastable"),  # all but part of a minute
        # the first to begin says whether it held, the last to end whether it is back
        (True, [row(900, 60, False, None), row(0, 1200, True, 60.0)], "stable"),
        (True, [row(0, 60, True, None), row(900, 60, False, 0.0)], "stable"),
    ],
)
def test_regime_of_a_run(stable, shocks, word):
    assert of_run(stable, shocks, within_s=1800.0) == word


def test_a_run_that_fell_by_itself_is_unstable_or_metastable():
    assert of_run(False, [], 1800.0, fell={"at_s": 100.0}) is None


def test_regime_of_independent_runs():
    assert of_runs(0, 3, 3, [0.0, 60.0, 0.0]) == "stable"
    assert of_runs(0, 3, 3, [0.0, None, 0.0]) == "metastable"
    assert of_runs(1, 2, 3, [0.0, 0.0, 0.0]) == "metastable"
    assert of_runs(2, 1, 3, [0.0, 0.0, 0.0]) == "unstable"
    assert of_runs(0, 0, 3, [None, None, None]) is None  # misses its limits without a queue
    assert of_runs(0, 3, 3, None) is None


def test_the_toy_world_is_metastable_between_its_folds():
    """Theory: at load 12 a burst of twice the load that lasts 52 s is survived, one of 240 s is not; at load 5, below
    the lower fold (6.25/s), every burst is."""

    def regime(load, burst_s):
        scenario = toy.Toy().scenario(load, 300.0 + burst_s + 1500.0)
        burst = Shock("burst", 300.0, burst_s, 2.0)
        slo = replace(scenario.slo, ttft_s=1.5, attainment=0.9)
        within = replace(scenario.plan, recover_within_s=900.0)
        return api.run(api.prepare(replace(scenario, shock=(burst,), slo=slo, plan=within))).report.summary

    found = regime(12.0, 240.0)
    assert found["regime"] == "metastable"
    assert found["shocks"][0]["held_before"]
    assert regime(12.0, 15.0)["regime"] == "stable"
    assert regime(5.0, 240.0)["regime"] == "stable"


def test_collapse_times_are_exponential():
    low, high = _exponential(4, 4000.0)
    assert low < 1000 < high
    assert _exponential(0, 4000.0) == (pytest.approx(4000 / 3.689, rel=1e-3), None)  # -ln 0.025


def test_remedies_are_ranked_by_the_seeds_they_bring_back():
    rows = [
        {"back": 1, "costs": "free", "slowest_s": 5.0, "turned_away": 0.0},
        {"back": 3, "costs": "hardware", "slowest_s": 1.0, "turned_away": 0.0},
        {"back": 3, "costs": "quality", "slowest_s": 7.0, "turned_away": 0.3},
        {"back": 3, "costs": "quality", "slowest_s": 8.0, "turned_away": 0.1},
        {"back": 3, "costs": "free", "slowest_s": 9.0, "turned_away": 0.0},
    ]
    assert [r["slowest_s"] for r in sorted(rows, key=_rank)] == [9.0, 8.0, 7.0, 1.0, 5.0]


def test_a_queue_limit_turns_some_away_and_brings_the_fleet_back(tmp_path):
    """What the remedies are ranked by: the fleet that keeps a short queue is back, and who was refused is counted."""
    from kvcast.planner.trials import Trials
    from kvcast.store.simulations import Lab
    from kvcast.studies.levers import OVERLOAD, changes

    doc = document(plan={"burst_size": 12.0, "burst_s": 120.0, "recover_within_s": 120.0}, engine=NARROW)
    calm = api.windowed(scenario_from_doc(doc))
    (short,) = [one for one in changes(OVERLOAD, calm) if one.sets == ("engine.max_num_queued_reqs=64",)]
    short = replace(short.scenario, engine=replace(short.scenario.engine, max_num_queued_reqs=25))
    with Trials(Lab(tmp_path), [0], 0.95) as trials:
        waits = trials.after_shock(with_burst(calm), 0)
        refuses = [trials.after_shock(with_burst(short), 0, to_the_end) for to_the_end in (False, True)]
    assert waits == (None, 0.0)
    assert all(one.back_s is not None and 0.05 < one.turned_away < 0.8 for one in refuses)
    assert refuses[0].turned_away > refuses[1].turned_away  # more arrivals are counted to the end, none refused


def test_resilience_asks_for_something_and_says_what_it_does_not_use(tmp_path):
    scenario = scenario_from_doc({**document(), "run": {"horizon_s": 50.0, "duration_s": 500.0}})
    nothing = dict.fromkeys(("sweep", "collapse", "shocks", "remedies"), False)
    with pytest.raises(InputError, match="nothing is asked"):
        resilience(scenario, tmp_path, **nothing)
    assert not_used(scenario) == ["run.duration_s = 500", "run.horizon_s = 50"]
    assert following(scenario, [1.0]).run.horizon_s is None  # which would cut the sweep


def test_a_days_bursts_leave_time_to_come_back():
    for seed in range(20):
        found = bench_recovering_plans.bursts(seed, 86_400.0)
        assert len(found) == 12
        for i, one in enumerate(found):
            assert 7200 * i <= one.at_s <= one.at_s + one.duration_s + 1800 + 600 <= 7200 * (i + 1)
            assert 1.2 <= one.size <= 2.0
            assert 300 <= one.duration_s <= 600
    assert bench_recovering_plans.bursts(0, 7200.0) != bench_recovering_plans.bursts(1, 7200.0)


def test_the_toy_world_has_the_theorys_two_branches():
    """benchmarks/bench_resilience.py has the whole of it: folds, and the bursts that are survived."""
    server = toy.Toy(4)
    for load, lasts_s in ((8.0, 500.0), (13.0, 700.0)):
        wait_s, hit = toy.upper(server.scenario(load, lasts_s))
        expected_s, expected_hit = server.theory(load)
        assert hit == pytest.approx(expected_hit, abs=0.008)
        assert wait_s == pytest.approx(expected_s, rel=0.1)
    served, grows, hit = toy.lower(toy.Toy(), 12.0, seed=0)
    assert served == pytest.approx(toy.COLD, rel=0.001)
    assert grows == pytest.approx(toy.growth_per_s(12.0), rel=0.05)
    assert hit == 0


def test_the_toy_worlds_theory():
    for scale, fold in ((1, 14.13), (16, 14.77), (10**9, 15.01)):  # without noise X s(h(X, 0)) = 1
        assert toy.Toy(scale).fold() == pytest.approx(fold, abs=0.01)
    assert [toy.between_s(load) for load in (8, 10, 12, 13, 14)] == pytest.approx([25.9, 15.1, 7.8, 4.8, 2.3], abs=0.05)
    assert toy.between_s(6.26) == pytest.approx(toy.SESSIONS / 6.26, rel=0.01)  # nothing hits beyond C / X
    assert toy.growth_per_s(6.2) == pytest.approx(0, abs=1e-6)


def test_the_toy_world_has_one_branch_where_nothing_is_cached_or_everything():
    """A burst of three times the load for two minutes, and the wait a quarter of an hour later."""
    for load, room, cached in ((4.0, 1.0, False), (16.0, 100.0, True)):
        scenario = toy.Toy().scenario(load, 1500.0, room=room, cached=cached)
        peak_s, last_s = toy.peak_and_last_s(toy.with_burst(scenario, 120.0, 3.0))
        assert peak_s > 10
        assert last_s == pytest.approx(toy.peak_and_last_s(scenario)[1], rel=0.3)
        assert last_s < 1


@pytest.mark.parametrize(
    "engine",
    [{}, {"async_scheduling": False}, {"semantics": "sglang"}, {"semantics": "trtllm"}],
    ids=["vllm", "synchronous", "sglang", "trtllm"],
)
def test_a_slow_replica_is_the_same_stepped_and_fast_forwarded(engine):
    for seed in range(3):
        doc = document(
            shock=[{"kind": "slow-replica", "at_s": 5.3, "duration_s": 31.7, "size": 3}],
            run={"warmup_s": 10.0, "duration_s": 90.0},
            engine=engine,
        )
        prepared = api.prepare(scenario_from_doc({**doc, "seed": seed}))
        fast, stepped = (api.record(prepared, fast_forward=on) for on in (True, False))
        np.testing.assert_allclose(fast.finish_s, stepped.finish_s, rtol=1e-9)


def test_shocks_that_overlap_leave_each_other_as_they_are():
    def tpot(*shocks):
        report = run(engine={"step_overhead_ms": 0.0}, shock=list(shocks)).report
        columns = report.requests
        inside = (columns["arrival_s"] > 130) & (columns["finish_s"] < 200)
        return float(np.nanmean(columns["tpot_s"][inside]))

    long = {"kind": "slow-replica", "at_s": 0, "duration_s": 100, "size": 4}
    short = {"kind": "slow-replica", "at_s": 0, "duration_s": 10, "size": 4}
    assert tpot(long, short) == pytest.approx(tpot(long), rel=0.02)
    down = run(
        cluster={"replicas": 2},
        shock=[
            {"kind": "replica-down", "at_s": 100, "duration_s": 200, "load_s": 0.0},
            {"kind": "replica-down", "at_s": 110, "duration_s": 10, "load_s": 0.0},
            {"kind": "cache-lost", "at_s": 150, "duration_s": 0},
        ],
    )
    ends = down.report.steps[1].end_s
    assert not ((ends > 200.0) & (ends < 400.0)).any()
