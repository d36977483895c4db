"""What is judged: a mix in steady state, a trace as a whole; and the three words with their reasons, wherever they are
said."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import api, load_scenario
from kvcast.cli import main
from kvcast.config import load_doc, scenario_from_doc
from kvcast.present import summary_text
from kvcast.scenario import steady
from kvcast.studies import compare
from kvcast.studies.windows import together
from sim.measure.verdict import all_stable
from workloads import mix
from workloads import steady as lengths
from workloads.toml import list_presets, load_preset

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.toml"
ONE = ["cluster.replicas=1"]
FIXED = {
    "workload": {
        "rate": 10.0,
        "class": [
            {
                "name": "c",
                "share": 1.0,
                "layers": [{"name": "m", "scope": "dynamic", "tokens": {"value": 100}}],
                "output": {"value": 10},
            }
        ],
    },
    "slo": {"ttft_s": 1.0, "attainment": 0.9},
}
TWO = {**FIXED["workload"]["class"][0], "name": "slow", "share": 0.05, "output": {"value": 400}, "slo_class": "slow"}  # type: ignore[index]


def doc(**sections):
    return {**FIXED, **sections}


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_the_demos_lengths_are_five_sessions_and_twenty_minutes():
    demo = load_preset("demo")
    longest = max(lengths.session_s(c) for c in demo.class_)
    assert lengths.ramp_s(demo) == pytest.approx(5 * longest)
    assert lengths.window_s(demo) == max(1200, np.ceil(10 * longest))
    assert lengths.requests_per_s(demo) == pytest.approx(5.49, abs=0.005)


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_says_how_long_it_is_judged(name):
    preset = load_preset(name)
    assert (preset.requests, preset.duration_s) == (None, None)
    assert lengths.window_s(preset) * lengths.requests_per_s(preset) > 4_000


def test_the_window_is_in_numbers_and_resolving_again_changes_nothing():
    once = api.windowed(load_scenario(DEMO, ONE))
    run = once.run
    assert 0 < run.warmup_s < run.duration_s == once.workload.duration_s
    assert run.duration_s - run.warmup_s == pytest.approx(max(1200, 2 * run.warmup_s), abs=1)
    assert api.windowed(once) == once


@pytest.mark.parametrize(
    ("sections", "window"),
    [
        ({"run": {"warmup_s": 0}}, (0.0, 500.0)),  # 5,000 single turns, from an empty fleet
        ({"run": {"warmup_s": 7}}, (7.0, 507.0)),
        ({"run": {"warmup_s": 0}, "workload": {**FIXED["workload"], "duration_s": 60}}, (0.0, None)),
        ({"run": {"duration_s": 90}}, (None, 90.0)),
        ({"workload": {**FIXED["workload"], "requests": 900}}, (None, 90.0)),
    ],
)
def test_what_is_said_is_kept(sections, window):
    """(begin, length) of the window; None: whatever it takes, or the end of the run."""
    run = api.windowed(scenario_from_doc(doc(**sections), "s")).run
    begins_s, lasts_s = window
    assert begins_s is None or run.warmup_s == begins_s
    if lasts_s is None:
        assert run.duration_s is None
    else:
        end_s = lasts_s if begins_s is not None else run.warmup_s + lasts_s
        assert run.duration_s == pytest.approx(end_s)
    assert begins_s is not None or run.warmup_s > 0


def test_a_trace_is_judged_whole(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        "".join(
            json.dumps({"timestamp": 500 * i, "input_length": 100, "output_length": 5, "hash_ids": [i]}) + "\n"
            for i in range(41)
        )
    )
    asked = scenario_from_doc({"workload": {"trace": str(tmp_path / "t.jsonl")}}, "s")
    assert api.windowed(asked).run.warmup_s == 0
    summary = api.simulate(asked).summary
    assert summary["arrived"] == 41
    assert summary["offered_per_s"] == pytest.approx(41 / 20), "the trace's mean rate"


def test_variants_get_the_longest_window_of_all():
    small, large = (
        load_scenario(DEMO, [f"cluster.replicas={n}"]) for n in (1, 2)
    )  # twice the memory takes twice as long to fill
    apart, (a, b) = [api.windowed(one) for one in (small, large)], together([small, large])
    assert apart[0].run.warmup_s < apart[1].run.warmup_s
    assert a.run == b.run == apart[1].run
    assert a.workload == b.workload


def test_sessions_are_in_progress_when_the_window_opens():
    """As many requests come in the first minutes of the window as in the last ones, which an empty fleet does not
    see."""
    report = api.simulate(load_scenario(DEMO, ONE))
    columns, window = report.requests, report.summary["window"]
    at_s = columns["arrival_s"][columns["in_window"]]
    early = int((at_s < window["start_s"] + 300).sum())
    late = int((at_s > window["end_s"] - 300).sum())
    assert early == pytest.approx(300 * 5.49, rel=0.15)
    assert late == pytest.approx(300 * 5.49, rel=0.15)
    assert report.summary["offered_per_s"] == pytest.approx(5.49, abs=0.005)


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "word", "reason", "code"),
    [
        (["slo.ttft_s=1"], "meets", "", 0),
        (["slo.ttft_s=0.001"], "misses", "ttft_s", 1),
        (["slo.ttft_s=1", "slo.attainment=0.9999"], "not shown", "only the interval", 1),
    ],
)
def test_one_rule_and_three_words(tmp_path, capsys, limits, word, reason, code):
    from kvcast.scenario.toml import dumps

    (tmp_path / "s.toml").write_text(dumps(scenario_from_doc(doc(run={"warmup_s": 5, "duration_s": 65}), "s")))
    flags = [part for one in limits for part in ("--set", one)]
    assert main(["run", str(tmp_path / "s.toml"), "--no-baseline", "--check", "--json", *flags]) == code
    out, err = capsys.readouterr()
    judged = json.loads(out)["verdict"]
    assert (judged["word"], judged["reason"]) == (word, reason)
    told = {
        "meets": "",
        "misses": "kvcast: MISSES the target: most often TTFT",
        "not shown": "kvcast: NOT SHOWN that it meets the target: only the interval",
    }[word]
    assert err.startswith(told)
    assert err.count("\n") == (code > 0)


def test_a_class_that_is_sacrificed_is_named_with_its_limit():
    """A twentieth of the requests has a limit on E2E that its answers of 400 tokens cannot keep: pooled 95 % are within
    limits."""
    classes = [FIXED["workload"]["class"][0], TWO]  # type: ignore[index]
    sacrificed = doc(
        workload={**FIXED["workload"], "class": classes},
        run={"warmup_s": 5, "duration_s": 605},
        slo={"ttft_s": 1.0, "attainment": 0.9, "classes": {"slow": {"e2e_s": 0.1}}},
    )
    result = api.run(api.prepare(scenario_from_doc(sacrificed, "s")))
    told = summary_text.verdict(result)
    assert result.report.summary["attainment"] > 0.9
    assert told.startswith("MISSES the target: slow, most often E2E: 0.0 % (95 % interval 0.0 to ")
    rows = {line.split()[0]: line.split()[1:] for line in told.splitlines()[3:5]}
    assert rows["c"][0] == "meets"
    assert rows["slow"][:2] == ["misses", "E2E"]
    pooled = api.run(
        api.prepare(scenario_from_doc({**sacrificed, "slo": {**sacrificed["slo"], "attained_by": "pooled"}}, "s"))
    )
    assert summary_text.verdict(pooled).startswith("MEETS the target: ")


def test_a_run_says_what_it_is_judged_on_and_that_it_is_a_sketch(capsys):
    assert main(["run", str(DEMO), "--no-baseline", *(part for one in ONE for part in ("--set", one))]) == 0
    out = capsys.readouterr().out
    window = api.windowed(load_scenario(DEMO, ONE)).run
    for part in (
        "MEETS the target: every class reaches its target",
        f"offered 5.49 requests/s (nominal), judged from {window.warmup_s:,.0f} to {window.duration_s:,.0f} s after a",
        "one run: a sketch; kvcast plan --fixed settles it over independent runs",
        "more came before it, in the warm-up",
        "would come after it (sessions go on)",
    ):
        assert part in out, part
    assert "never arrived" not in out


# -- unstable runs -----------------------------------------------------------------------------------------------------


def test_an_unstable_mix_has_means_and_no_percentiles():
    result = api.run(
        api.prepare(
            scenario_from_doc(
                doc(
                    workload={**FIXED["workload"], "rate": 400.0},
                    engine={"max_num_seqs": 1},
                    run={"warmup_s": 0, "duration_s": 20},
                ),
                "s",
            )
        )
    )
    s = result.report.summary
    assert (s["stable"], s["latency_of"]) == (False, "means only")
    for name in ("ttft", "tpot", "itl", "e2el", "queue"):
        assert s[f"mean_{name}_ms"] == result.report.latency[name]["mean"] is not None
        assert {s[f"{stat}_{name}_ms"] for stat in ("median", "std", "p50", "p90", "p95", "p99")} == {None}
    told = summary_text.latency_table(result)
    assert "no latency percentiles" in told
    assert f"TTFT {s['mean_ttft_ms'] / 1e3:.2f} s"[:7] in told


def test_a_trace_that_ends_overloaded_has_percentiles_that_are_marked(tmp_path):
    rows = [{"timestamp": i, "input_length": 500, "output_length": 50, "hash_ids": [i]} for i in range(2000)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = api.run(
        api.prepare(
            scenario_from_doc({"workload": {"trace": str(tmp_path / "t.jsonl")}, "engine": {"max_num_seqs": 4}}, "s")
        )
    )
    s = result.report.summary
    assert (s["stable"], s["latency_of"]) == (False, "overloaded trace")
    assert s["p99_ttft_ms"] == result.report.latency["ttft"]["p99"] > s["mean_ttft_ms"] > 1000
    assert "ends with a growing backlog" in summary_text.latency_table(result)
    assert any("growing backlog" in note for note in result.report.notes)


# -- comparisons -------------------------------------------------------------------------------------------------------


def test_half_of_the_runs_must_drown():
    assert all_stable([True, True]) is True
    assert all_stable([True, False, True]) is None
    assert all_stable([True, False]) is False
    assert all_stable([True, None]) is None


def test_a_comparison_serves_the_same_requests_in_one_window_and_says_the_words():
    results = compare.simulate_all(
        compare.variants(load_doc(DEMO, [*ONE, "run.duration_s=120"]), ["engine.kv_blocks=3000,57000"], seeds=2)
    )
    assert len({r.variant.scenario.run for r in results}) == 1
    first, second = ([r for r in results if r.variant.scenario.seed == seed] for seed in (0, 1))
    for pair in (first, second):
        assert np.array_equal(pair[0].requests["prompt_tokens"], pair[1].requests["prompt_tokens"])
    document = compare.as_document(results)
    assert document["drawn"] is True
    by_seed = [r.summary["verdict"]["classes"][0]["requests"] for r in results if r.variant.label == ("57000",)]
    row = document["variants"][1]
    assert row["verdict"]["classes"][0]["requests"] == sum(by_seed), "judged over both seeds together"
    assert f" {row['verdict']['word']} " in compare.as_table(results)


def test_seeds_of_something_that_draws_nothing_are_one_run(data_dir, monkeypatch):
    monkeypatch.setenv("KVCAST_DATA", str(data_dir))
    asked = load_doc(DEMO.parent / "mooncake.toml", ["workload.requests=300"])
    five = compare.simulate_all(compare.variants(asked, ["cluster.replicas=4,8"], seeds=5))
    assert len(five) == 2, "one run of each"
    document, one = (
        compare.as_document(five),
        compare.as_document(compare.simulate_all(compare.variants(asked, ["cluster.replicas=4,8"]))),
    )
    assert document["drawn"] is False
    assert {**document, "drawn": True} == one
    assert compare.NOT_DRAWN in compare.as_table(five)
    assert compare.simulate_all(compare.variants(asked, ["cluster.router=round-robin,random"], seeds=2))[
        -1
    ].variant.drawn, "a router that draws"


def test_equal_runs_are_found_when_nobody_knew_that_they_draw_nothing():
    results = compare.simulate_all(
        compare.variants(doc(run={"warmup_s": 0, "duration_s": 20}), ["engine.max_loras=0,7"])
    )
    twice = results + [replace(one, summary={**one.summary, "seed": 1}) for one in results]
    found = compare.as_document(twice)
    assert [row["seeds"] for row in found["variants"]] == [[0], [0]]
    assert found["drawn"] is False


def test_a_saved_cache_needs_a_window_that_does_not_move(tmp_path, capsys):
    asked = ["run", str(DEMO), "--no-baseline", "--set", "run.duration_s=60"]
    for flag in ("--save-cache", "--warm-cache"):
        assert main([*asked, flag, str(tmp_path / "warm.npz")]) == 2
        assert f"[run] warmup_s is not set with {flag}" in capsys.readouterr().err
    fixed = [*asked[:3], "--json", "--set", "run.warmup_s=0", "--set", "workload.duration_s=120"]
    assert main([*fixed, "--set", "run.duration_s=60", "--save-cache", str(tmp_path / "warm.npz")]) == 0
    capsys.readouterr()
    assert main([*fixed, "--warm-cache", str(tmp_path / "warm.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["window"]["start_s"] == 60


def test_curves_of_different_periods_are_together_again_after_their_common_one():
    """A window opens at the clock's time that is asked for, in every class, however long the warm-up; the busiest
    stretch may lie in a later period."""

    def one(name: str, rate: float, curve: list, period_s: float) -> dict:
        return {
            "name": name,
            "rate": rate,
            "output": {"value": 10},
            "layers": [{"name": "m", "tokens": {"value": 100}}],
            "arrival": {"kind": "diurnal", "curve": curve, "period_s": period_s},
        }

    doc = {
        "workload": {"class": [one("a", 2.0, [1, 3], 10_000.0), one("b", 1.0, [1, 1, 8], 7000.0)]},
        "hardware": {"profile": "h200-llama-3.1-8b-aic"},
    }
    asked = scenario_from_doc(doc)
    config = mix.resolve(asked.workload)
    assert lengths.common_period_s(config) == 70_000.0
    at_s = lengths.busiest(config, 3600.0)
    grid = max(lengths.offered_per_s(config, at, at + 3600.0) for at in range(0, 70_000, 100))
    assert lengths.offered_per_s(config, at_s, at_s + 3600.0) >= grid - 1e-9
    for ramp_s in (0.0, 2000.0, 15_000.0):
        hour = steady.worst_hour(asked, ramp_s)
        begins_s = hour.workload.start_s + ramp_s
        assert lengths.offered_per_s(mix.resolve(hour.workload), begins_s, begins_s + 3600.0) == pytest.approx(
            lengths.offered_per_s(config, at_s, at_s + 3600.0)
        )


def test_a_window_may_be_longer_than_it_need_be():
    doc = {"workload": {"preset": "chat"}, "run": {"duration_s": 12_000.0}}
    run = api.windowed(scenario_from_doc(doc)).run
    assert run.duration_s - run.warmup_s == 12_000.0


def test_a_window_in_which_nothing_came_is_not_shown():
    doc = {"workload": {"preset": "chat", "duration_s": 0.001}, "slo": {"ttft_s": 1.0, "attainment": 0.9}}
    summary = api.simulate(scenario_from_doc(doc)).summary
    assert summary["arrived"] == 0
    assert (summary["verdict"]["word"], summary["verdict"]["reason"]) == ("not shown", "no request arrived")
