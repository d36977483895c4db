"""The Plan page: its words and numbers directly, its flows through AppTest on a plan made by hand and on a real one."""
import io
import json
import re

import numpy as np
import pyarrow.csv
import pytest

from kvcast import intervals, ready
from kvcast.config import scenario_from_doc
from kvcast.pages import answer, compare, inputs, numbers, plan, results, runner, settings, shell, verdict
from kvcast.planner import words
from kvcast.runs import load_run
from sim.scenario import SloConfig
from tests.ui import plans
from tests.ui.conftest import Session

SMALL = "name = 'small'\n[workload]\npreset = 'demo'\nduration_s = 250.0\n[slo]\nttft_s = 0.1\nattainment = 0.9\n[cost]\ngpu_hour_usd = 4.0\n"


@pytest.fixture(scope="module")
def shared(folder):
    return runner.Runner(folder)


def simulated(shared, toml):
    job = shared.submit(toml)
    job.wait()
    assert job.done, job.failure()
    return load_run(job.folder)


@pytest.fixture(scope="module")
def small(shared):
    return simulated(shared, SMALL)


@pytest.fixture(scope="module")
def demo_plan(folder):
    """The hand-made plan as the answer to the demo's question."""
    toml = plan.start_of(inputs.Asked(settings.demo()).toml, {})
    document = {**plans.plan(), "scenario": inputs.Asked(settings.demo()).toml}
    key = runner.key_of(toml, ("plan",))
    (folder / f"{key}.json").write_text(json.dumps(document))
    (folder / f"{key}.toml").write_text(toml)
    return document


# -- the verdict -------------------------------------------------------------------------------------------------------


def test_verdict_of_each_state(small):
    s = {**small.summary, "stable": True, "stable_reason": "it is"}
    met = verdict.verdict({**s, "attainment": 0.96, "attainment_target": 0.95}, SloConfig(ttft_s=0.5, tpot_s=0.04), (0.957, 0.963))
    assert (met.state, met.headline) == (verdict.MET, "Meets the target.")
    assert met.sentence == "1 × H200-SXM: 96.0 % ± 0.3 % of requests meet TTFT <= 500 ms and TPOT <= 40.0 ms (target 95 %)."
    assert not met.caution
    missed = verdict.verdict({**s, "attainment": 0.94, "attainment_target": 0.95}, SloConfig(ttft_s=0.5), (0.93, 0.955))
    assert missed.state == verdict.MISSED
    assert "the target lies within the interval, 93.0 % to 95.5 %" in missed.caution
    assert verdict.verdict({**s, "attainment": 0.94, "attainment_target": None}, SloConfig(ttft_s=0.5)).state == verdict.UNKNOWN
    assert "set a limit" in verdict.verdict({**s, "attainment": None, "attainment_target": None}, SloConfig()).sentence
    unstable = verdict.verdict({**s, "stable": False, "backlog_growth_per_s": 1.234, "backlog_growth_tokens_per_s": 56789.0, "attainment": 0.99, "attainment_target": 0.95}, SloConfig())
    assert (unstable.state, unstable.headline) == (verdict.UNSTABLE, "Unstable."), "whatever its attainment"
    assert "+1.23 requests/s (+56,789 tokens/s)" in unstable.sentence


def test_doubtful_numbers_carry_their_caution(small):
    s = {**small.summary, "coverage": {"measured": 0.0, "interpolated": 0.5, "extrapolated": 0.5}, "censored": True, "arrived": 10, "completed": 8}
    caution = verdict.verdict(s, SloConfig()).caution
    assert "50.0 % of simulated time is extrapolated" in caution
    assert "2 of 10 arrivals did not complete" in caution
    assert "7 more requests never arrived" in verdict.verdict({**s, "not_arrived": 7}, SloConfig()).caution
    roofline = {**s, "profile_provenance": {**s["profile_provenance"], "kind": "roofline"}}
    assert "roofline" in verdict.verdict(roofline, SloConfig()).caution
    assert results.mark_of(s)
    assert not results.mark_of(small.summary)


def test_a_run_shorter_than_its_sessions_is_not_taken_for_its_load():
    agent = scenario_from_doc({"workload": {"preset": "coding-agent"}})
    (line,) = ready.unready(agent)
    assert line.startswith("coding-agent: Arrivals end after 125 min, before the load is there")
    assert ready.unready(scenario_from_doc({"workload": {"preset": "coding-agent", "requests": 17_000}})) == []
    assert ready.unready(settings.demo()) == ready.unready(scenario_from_doc({"workload": {"trace": "t.jsonl"}})) == []


def test_a_share_is_told_with_the_longer_side_of_its_interval():
    assert verdict._share(0.992, (0.989, 0.995)) == "99.2 % ± 0.3 %"
    assert verdict._share(0.9997, (0.9992, 1.0)) == "100.0 % ± 0.05 %"
    assert verdict._share(0.5, None) == "50.0 %"


def test_the_plans_sentence_is_the_command_lines():
    told = verdict.planned(plans.plan())
    assert told.sentence == words.verdict(plans.plan()).replace("+-", "±").replace(" x ", " × ") + "."
    assert told.sentence.startswith("2 × H200-SXM: 99.9 % ± 0.2 % of requests meet their limits (chat: TTFT <= 500 ms")
    assert told.sentence.endswith("binding: compute; headroom 60 %, breaks at 7.4 requests/s; next: router = prefix-aware.")
    assert told.reasons[0] == "48 GPU-hours a day, $8.00 an hour; cache.policy=lru"
    assert told.reasons[1] == "5 candidates on the same arrivals, 3 seeds, rejected by TTFT 2; 35 simulations, 6 of them stopped early"


def test_a_plan_that_found_nothing_says_what_stood_in_the_way():
    told = verdict.planned(plans.plan(answer={**plans.PLAN["answer"], "feasible": False, "gpus": None}))
    assert told.state == verdict.MISSED
    assert "not even 3 replicas meet" in told.sentence
    assert "rejected by TTFT 2" in told.reasons[0]


def test_where_more_replicas_bring_nothing_the_sentence_says_so():
    def told(shares):
        rows = [plans.candidate("as it is", {}, n, mean, 1900.0, "misses", "ttft_s") for n, mean in shares.items()]
        return verdict.planned(plans.plan(answer={**plans.PLAN["answer"], "feasible": False, "gpus": None}, candidates=rows)).sentence

    assert "25 to 64 replicas attain the same, so more of them bring nothing" in told({2: 0.4, 25: 0.916, 40: 0.918, 64: 0.916})
    assert "bring nothing" not in told({25: 0.916, 40: 0.93, 64: 0.94})
    assert "bring nothing" not in told({62: 0.916, 63: 0.916, 64: 0.916}), "too near each other to tell"


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_four_numbers_are_the_summarys(small):
    s, found = small.summary, numbers.four(small)
    assert [n.value for n in found] == [f"{100 * s['attainment']:.1f} %", results.text.milliseconds(s["p99_ttft_ms"]), results.text.milliseconds(s["p99_tpot_ms"]), f"${s['cost']['usd_per_million_output_tokens']:.2f}"]
    assert all("95 %" in n.interval or "no interval" in n.interval for n in found)
    assert not any(n.change for n in found)


@pytest.mark.parametrize(("kind", "key"), [(numbers.ATTAINMENT, "attainment"), (numbers.TTFT, "p99_ttft_ms"), (numbers.TPOT, "p99_tpot_ms")])
def test_an_interval_is_centred_on_the_number_it_belongs_to(small, kind, key):
    assert numbers.interval(small, kind).mean == pytest.approx(small.summary[key])


def test_the_cost_of_the_requests_is_the_fleets(small):
    assert numbers.interval(small, numbers.GPU_HOURS).mean == pytest.approx(small.summary["cost"]["gpu_hours_per_million_output_tokens"])


def test_a_change_is_paired_and_only_told_when_it_is_shown(shared, small):
    same = numbers.four(small, small)
    assert {n.change for n in same} == {"no change"}
    off = simulated(shared, SMALL + "[cache]\nenabled = false\n")
    by_label = {n.label: n for n in numbers.four(off, small)}
    ttft = by_label["TTFT, p99"]
    assert ttft.better is False
    assert ttft.change.startswith("+")
    rows = intervals.arrival_order([off.tables["requests"], small.tables["requests"]])
    a, b = (np.percentile(run.tables["requests"]["ttft_s"][rows], 99) * 1e3 for run in (off, small))
    assert ttft.change.split(" ±")[0] == f"+{results.text.milliseconds(a - b)}"
    assert numbers.four(small, off)[1].better is True
    told = compare.of_runs(small, off)["variants"][1]["vs_first"]["p99_ttft_ms"]  # the Compare page and `kvcast compare` say the same
    assert ttft.change == f"+{results.text.milliseconds(told['difference'])} ± {results.text.milliseconds(told['interval_95'])}"
    other = simulated(shared, "seed = 1\n" + SMALL)
    assert all("other requests" in n.change or "not comparable" in n.change for n in numbers.four(other, small))


def test_an_unstable_run_has_a_growth_and_no_latency(small):
    run = type(small)(small.folder, small.scenario, {**small.summary, "stable": False}, small.info, small.aggregates, small.tables)
    labels = [n.label for n in numbers.four(run, small)]
    assert labels == ["Within limits", "Backlog growth (requests/s)", "Backlog growth (tokens/s)", "Cost / M tokens"]
    assert numbers.four(run, small)[0].change == "not comparable"


# -- what may vary -----------------------------------------------------------------------------------------------------


def test_nothing_chosen_plans_the_scenario_as_it_is():
    assert plan.command(plan.axes_of(settings.demo(), [], [], [], [])) == ("plan",)


def test_choices_are_axes_with_the_scenarios_own_value_among_them():
    axes = plan.axes_of(settings.demo(), [("roofline:H100-SXM", "bf16", 1)], [1, 2], ["lfu"], ["round-robin"])
    own = settings.demo().hardware.profile
    assert plan.command(axes) == ("plan", "--vary", f"hardware.profile={own},roofline:H100-SXM", "--vary", "hardware.tensor_parallel=1,2", "--vary", "cache.policy=lfu,lru")
    measured = plan.axes_of(settings.demo(), [("measured-4", "bf16", 4)], [1, 2, 8], [], [])
    assert measured["hardware.tensor_parallel"] == [1, 4], "a measured profile has its own width"


def test_a_plan_is_found_again_from_its_own_answer():
    axes = {"cache.policy": ["lfu", "lru"]}
    toml = inputs.Asked(settings.demo()).toml
    answered = results.text and plan._scenario(toml, ["cache.policy=lfu", "cluster.replicas=7"])
    assert plan.start_of(inputs.Asked(answered).toml, axes) == plan.start_of(toml, axes)


def test_a_change_without_keys_to_set_is_applied_from_its_scenario(shared, monkeypatch):
    shown, adopted = inputs.Asked(settings.demo()).toml, []
    monkeypatch.setattr(plan, "adopt", lambda page, scenario: adopted.append(scenario))
    page = shell.Page(shared, inputs.Asked(settings.demo()), shown, None, None)
    reordered = plan._scenario(shown, ["workload.preset=", "workload.rate=9", 'workload.class=[{name = "other", rate = 1.0}]', "cluster.replicas=7"])
    plan.apply_change(page, {"set": [], "scenario": inputs.Asked(reordered).toml})
    plan.apply_change(page, {"set": ["cluster.replicas=5"], "scenario": ""})
    assert [one.cluster.replicas for one in adopted] == [plan._scenario(shown).cluster.replicas, 5]
    assert [one.workload == reordered.workload for one in adopted] == [True, False]


def test_nothing_leaves_with_a_path_of_the_server():
    toml = '[workload]\ntrace = "/srv/secret/trace.csv"\n'
    found = plan.portable(plans.plan(scenario=toml, advice=[{**plans.PLAN["advice"][0], "scenario": toml}]))
    assert "secret" not in json.dumps(found)


def test_candidates_are_a_table_with_the_reason_of_each():
    rows = answer.candidate_rows(plans.plan())
    assert (rows[0]["verdict"], rows[0]["replicas"]) == ("meets", "2"), "the plan's own first"
    missed = next(row for row in rows if row["verdict"] == "misses")
    assert missed["why not"] == "91.0 % of requests within limits, 95.0 % wanted"
    unstable = next(row for row in rows if row["verdict"] == "unstable")
    assert unstable["TTFT p99"] == "-"
    assert [results.MARK in row["within limits (95 %)"] for row in rows] == ["lfu" in row["candidate"] for row in rows], "extrapolated numbers are marked"
    assert all(list(row) == list(rows[0]) for row in rows), "a column for each limit, whoever was judged by it"
    table = pyarrow.csv.read_csv(io.BytesIO(plan.candidates_csv(plans.plan()).encode()))
    assert table["replicas"].to_pylist() == [c["replicas"] for c in plans.PLAN["candidates"]]
    assert table["attainment_low"].to_pylist()[0] == pytest.approx(0.908)


# -- to take away ------------------------------------------------------------------------------------------------------


def test_requests_as_csv_hold_every_row(small):
    table = pyarrow.csv.read_csv(io.BytesIO(results.as_csv(small.folder / "requests.parquet")))
    assert table.num_rows == len(small.tables["requests"]["request"])
    assert np.nansum(table["hit_tokens"].to_numpy()) == small.tables["requests"]["hit_tokens"].sum()


# -- flows -------------------------------------------------------------------------------------------------------------


def test_first_open_has_the_verdict_numbers_and_the_way_to_a_plan(folder):
    session = Session()
    assert "Meets the target." in session.words()
    assert re.search(r"2 × H200-SXM: 99\.9 % .* of requests meet their limits \(chat: TTFT <= 500 ms", session.words())
    run = load_run(session.at.session_state.job.folder)
    s, shown = run.summary, session.numbers()
    assert shown == {"Within limits": f"{100 * s['attainment']:.1f} %", "TTFT, p99": f"{s['p99_ttft_ms']:.0f} ms", "TPOT, p99": f"{s['p99_tpot_ms']:.2f} ms", "Cost / M tokens": f"${s['cost']['usd_per_million_output_tokens']:.2f}"}
    assert all(m.help for m in session.at.metric)
    assert s["counting_rule"] in session.words()


def test_a_plan_is_shown_with_advice_that_can_be_applied(demo_plan):
    session = Session()
    words = session.words()
    assert "This is the fewest: 2 × H200-SXM: 99.9 %" in words.replace("**", "")
    assert "headroom 60 %, breaks at 7.4 requests/s" in words
    assert plan.FIND not in session.buttons()
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in words
    assert "3 replicas survive the loss of one" in words
    assert {f"plan.{name}" for name in ("plan.json", "candidates.csv", "plan.html")} <= {button.key for button in session.at.get("download_button")}
    session.at.button(key="plan.apply.1").click()
    session.settle(session.at.run())
    assert session.at.session_state["replicas"] == 3
    assert "3 × H200-SXM" in session.words()
    assert "Use this fleet" in session.buttons(), "the plan stays in sight of another fleet"
    assert "Fewest GPUs: 2 × H200-SXM" in session.words().replace("**", "")
    session.press("Use this fleet")
    assert session.at.session_state["replicas"] == 2
    assert "Use this fleet" not in session.buttons()


def test_a_pinned_run_is_the_baseline_of_the_next(demo_plan):
    session = Session().press("Pin as baseline")
    assert "Baseline: this run" in session.words()
    session.at.number_input(key="replicas").set_value(1).run()
    session.press("Run")
    assert "vs baseline" in session.words()
    assert re.search(r":red\[\+[\d.]+ ms ± [\d.]+ ms\]", session.words()), "TPOT of one GPU is shown to be worse"
    session.press("Unpin")
    assert "vs baseline" not in session.words()


def test_a_plan_found_by_the_command_line(folder):
    session = Session()
    session.at.number_input(key="rate_scale").set_value(0.5).run()
    session.press("Run").press(plan.FIND)
    shown = session.at.session_state.job
    job = shell.runner_of(str(shown.folder.parent)).existing(plan.start_of(shown.scenario_toml, {}), "plan")
    job.wait()
    assert job.done, job.failure()
    session.settle(session.at.run())
    found = job.document()
    assert found["answer"]["feasible"]
    assert f"Fewest GPUs: {found['answer']['replicas']} × H200-SXM" in session.words().replace("**", "")


def test_where_no_fleet_will_do_wider_replicas_are_a_press_away(folder):
    page = Session()
    page.at.number_input(key="target").set_value(99.99)
    page.press("Run")
    toml = page.at.session_state.job.scenario_toml
    start = plan.start_of(toml, {})
    document = plans.plan()
    key = runner.key_of(start, ("plan",))
    (folder / f"{key}.json").write_text(json.dumps({**document, "scenario": toml, "answer": {**document["answer"], "feasible": False}}))
    (folder / f"{key}.toml").write_text(start)
    page.settle(page.at.run())
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.Runner, "submit", lambda self, *words: asked.append(words))
        next(b for b in page.at.button if b.label == "Try wider replicas").click()
        page.at.run()
    [(_, *words)] = asked
    assert words == ["plan", "--vary", "hardware.profile=h200-llama-3.1-8b-aic,roofline:h200", "--vary", "hardware.tensor_parallel=1,2,4,8"]
    assert page.at.session_state["plan.widths"] == [1, 2, 4, 8]
    page.at.session_state["plan.gpus"], page.at.session_state["plan.widths"] = [], []
    page.settle(page.at.run())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.Runner, "submit", lambda self, *words: asked.append(words))
        next(b for b in page.at.button if b.label == "Keep sessions on their replica").click()
        page.at.run()
    assert asked[-1][1:] == ("plan", "--vary", "cluster.router=round-robin,session-affinity")


def test_candidates_without_coordinates_are_not_drawn(monkeypatch):
    drawn = []
    monkeypatch.setattr(answer, "plot", lambda place, figure, *words: drawn.append(figure.layout.title.text))
    found = plans.plan()
    answer.plots(found)
    assert len(drawn) == 4
    drawn.clear()
    answer.plots({**found, "candidates": [{**row, "ttft_ms_p99": None} for row in found["candidates"]]})
    assert len(drawn) == 3
    assert not any("Candidates" in title for title in drawn)


def test_the_plan_has_a_command_line():
    asked = plan.command({"cache.policy": ["lfu", "lru"]}, 3)
    assert plan.command_line(asked) == "kvcast plan scenario.toml --vary cache.policy=lfu,lru --seeds 3 --out my-plan"
    assert plan.command({}, 1, fixed=True) == ("plan", "--fixed")


def test_the_question_may_be_how_far_this_fleet_reaches_and_the_seeds_are_chosen(folder):
    toml = inputs.Asked(settings.demo()).toml
    key = runner.key_of(toml, ("plan", "--seeds", "3", "--fixed"))
    (folder / f"{key}.json").write_text(json.dumps({**plans.plan(), "scenario": toml, "growth": None}))
    (folder / f"{key}.toml").write_text(toml)
    session = Session()
    session.at.session_state["plan.seeds"] = 3
    session.settle(session.at.run())
    assert any(button.key == f"start {plan.FIND} plan --seeds 3" for button in session.at.button)
    session.at.session_state["plan.question"] = plan.REACH
    session.settle(session.at.run())
    assert "This fleet: 2 × H200-SXM: 99.9 %" in session.words().replace("**", "")
    assert "kvcast plan scenario.toml --seeds 3 --fixed --out my-plan" in session.words()
    assert "Use this fleet" not in session.buttons()
