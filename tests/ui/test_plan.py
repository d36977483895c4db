"""The Plan page: its words and numbers directly, its flows through AppTest on a plan made by hand and on a real one."""

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.csv
import pytest

from kvcast import api
from kvcast.jobs import runner
from kvcast.pages import address, answer, apply, compare, plan_files, plan_question, results, shell
from kvcast.pages.edit import inputs, settings
from kvcast.planner import words
from kvcast.present import numbers, verdict
from kvcast.store.runs import load_run
from kvcast.studies.prompt_levers import with_classes
from sim.scenario import CostConfig, HardwareConfig, Scenario, SloConfig
from tests.ui import plans
from tests.ui.conftest import Session
from workloads.config import WorkloadConfig

SMALL = (
    "name = 'small'\n[workload]\npreset = 'demo'\nduration_s = 250.0\n[slo]\nttft_s = 0.1\nattainment ="
    " 0.9\n[cost]\ngpu_hour_usd = 4.0\n"
)


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
    toml = plan_question.start_of(inputs.Asked(settings.demo()).toml, {})
    document = {**plans.plan(), "scenario": inputs.Asked(settings.demo()).toml}
    key = runner.key_of(toml, ("plan",))
    (folder / f"{key}.json").write_text(json.dumps(document))
    (folder / f"{key}.toml").write_text(toml)
    return document


# -- the verdict -------------------------------------------------------------------------------------------------------


def judged(word, reason="", failed="", *rows):
    return {"word": word, "reason": reason, "class": failed, "classes": list(rows)}


def only(mean, low, high, word, worst=None, name="chat", target=0.95):
    return {
        "name": name,
        "target": target,
        "requests": 1000,
        "attainment": {"mean": mean, "low": low, "high": high},
        "verdict": word,
        "worst": worst,
    }


UNLIMITED = Scenario(WorkloadConfig(preset="demo"))
LIMITED = replace(UNLIMITED, slo=SloConfig(ttft_s=0.5, tpot_s=0.04))


def test_the_verdict_has_the_words_of_the_run(small):
    told = verdict.verdict(small.summary, small.scenario)
    assert (small.summary["verdict"]["word"], told.state) in (
        ("meets", verdict.MET),
        ("misses", verdict.MISSED),
        ("not shown", verdict.OPEN),
    )
    assert told.reasons[-1] == "one run: a sketch; a plan settles it over independent runs"
    recorded = verdict.verdict(small.summary, replace(small.scenario, workload=WorkloadConfig(trace="t.jsonl")))
    assert recorded.reasons[-1].startswith("one run of a recorded trace: its interval comes from batches")


def test_verdict_of_each_state(small):
    s = {**small.summary, "stable": True, "stable_reason": "it is"}
    met = verdict.verdict(
        {**s, "verdict": judged("meets", "", "", only(0.96, 0.957, 0.963, "meets", "ttft_s"))}, LIMITED
    )
    assert (met.state, met.headline) == (verdict.MET, "Meets the target.")
    assert (
        met.sentence
        == "1 × H200-SXM: 96.0 % (95.7 to 96.3 %) of requests within TTFT <= 500 ms and TPOT <= 40.0 ms, target 95 %."
    )
    assert not met.caution
    missed = verdict.verdict(
        {**s, "verdict": judged("misses", "ttft_s", "", only(0.9, 0.88, 0.92, "misses", "ttft_s"))}, LIMITED
    )
    assert (missed.state, missed.headline) == (verdict.MISSED, "Misses the target.")
    assert missed.sentence.endswith("target 95 %; TTFT is missed most often.")
    open_ = verdict.verdict(
        {**s, "verdict": judged("not shown", "only the interval", "", only(0.96, 0.93, 0.99, "not shown", "ttft_s"))},
        LIMITED,
    )
    assert (open_.state, open_.headline) == (verdict.OPEN, "Not shown.")
    assert open_.sentence.endswith("target 95 %; the interval holds the target, so one run does not tell.")
    nobody = verdict.verdict(
        {
            **s,
            "verdict": judged(
                "not shown",
                "no request arrived",
                "premium",
                {**only(0, 0, 0, "not shown", name="premium"), "attainment": None},
                only(1.0, 0.99, 1.0, "meets"),
            ),
        },
        LIMITED,
    )
    assert nobody.sentence.startswith("1 × H200-SXM: premium -, chat 100.0 % (99.0 to 100.0 %) of requests within")
    assert nobody.sentence.endswith("target 95 %; premium: no request arrived in the window.")
    assert verdict.verdict({**s, "verdict": None, "attainment_target": None}, LIMITED).headline == "No target is set."
    assert "set a limit" in verdict.verdict({**s, "verdict": None, "attainment": None}, UNLIMITED).sentence


def test_the_class_that_fails_is_named_and_every_class_is_there(small):
    s = {
        **small.summary,
        "stable": True,
        "attainment": 0.96,
        "verdict": judged(
            "misses",
            "ttft_s",
            "premium",
            only(0.9999, 0.999, 1.0, "meets"),
            only(0.0, 0.0, 0.01, "misses", "ttft_s", "premium", 0.99),
        ),
    }
    told = verdict.verdict(s, LIMITED)
    assert (
        told.sentence
        == "1 × H200-SXM: chat 100.0 % (99.9 to 100.0 %), premium 0.0 % (0.0 to 1.0 %) of requests within TTFT <= 500"
        " ms and TPOT <= 40.0 ms, targets: chat 95 %, premium 99 %; premium: TTFT is missed most often."
    )
    assert [(row["class"], row["verdict"], row["target"]) for row in results.verdict_rows(s["verdict"]["classes"])] == [
        ("chat", "meets", "95 %"),
        ("premium", "misses", "99 %"),
    ]
    pooled = verdict.verdict(
        {**s, "verdict": judged("meets", "", "", only(0.96, 0.955, 0.97, "meets", name="pooled"))}, LIMITED
    )
    assert pooled.reasons[0] == "all classes together, as [slo] attained_by asks"


def test_unstable_is_a_reason_to_miss(small):
    s = {
        **small.summary,
        "stable": False,
        "stable_reason": "it grows",
        "backlog_growth_per_s": 1.234,
        "backlog_growth_tokens_per_s": 56789.0,
        "attainment": 0.99,
        "verdict": judged("misses", "unstable", "", only(0.99, 0.98, 1.0, "meets")),
    }
    told = verdict.verdict(s, LIMITED)
    assert (told.state, told.headline) == (verdict.MISSED, "Misses the target."), "whatever its attainment"
    assert "cannot keep up: the backlog grows by +1.23 requests/s (+56,789 tokens/s)" in told.sentence
    assert told.reasons[0].startswith(
        "until the end of this run 99.0 % (98.0 to 100.0 %) of requests within TTFT <= 500 ms"
    )
    assert verdict.verdict({**s, "verdict": None}, UNLIMITED).headline == "Unstable."


def test_doubtful_numbers_carry_their_caution(small):
    s = {
        **small.summary,
        "coverage": {"measured": 0.0, "interpolated": 0.5, "extrapolated": 0.5},
        "censored": True,
        "arrived": 10,
        "completed": 8,
    }
    caution = verdict.verdict(s, UNLIMITED).caution
    assert "50.0 % of simulated time is extrapolated" in caution
    assert "2 of 10 arrivals did not complete" in caution
    assert "never came" not in verdict.verdict({**s, "not_arrived": 7}, UNLIMITED).caution, (
        "later turns of sessions that the end of the window cut"
    )
    lost = verdict.verdict({**s, "not_arrived": 7, "session_truncated": 3, "lost_with_session": 5}, UNLIMITED).caution
    assert (
        "3 requests were longer than the context or the KV memory and ended their sessions, so 5 more never came"
        in lost
    )
    full = {**s, "rejected": {**s["rejected"], "queue_full": 4}}
    assert "4 requests were refused because the queue was full (HTTP 503) and ended" in (
        verdict.verdict(full, UNLIMITED).caution
    )
    roofline = {**s, "profile_provenance": {**s["profile_provenance"], "kind": "roofline"}}
    assert "roofline" in verdict.verdict(roofline, UNLIMITED).caution
    assert results.mark_of(s)
    assert not results.mark_of(small.summary)


def test_the_plans_sentence_is_the_command_lines():
    told = verdict.planned(plans.plan())
    assert told.sentence == words.verdict(plans.plan()).replace("+-", "±").replace(" x ", " × ") + "."
    assert told.sentence.startswith(
        "2 × H200-SXM meets: chat 99.9 % ± 0.2 %, coding-agent 100.0 % ± 0.2 % of requests within their limits (chat:"
        " TTFT <= 500 ms"
    )
    assert "(5 runs); model error, of one run: 99.2 % with step times 10.0 % longer" in told.sentence
    assert told.sentence.endswith(
        "binding: compute; headroom 60 % (58 % surely): holds up to 7.4 requests/s; next: router round-robin ->"
        " session-affinity."
    )
    assert told.reasons == (
        "2 replicas (cache.policy=lru), 2 GPUs, 48 GPU-hours a day, $8.00 an hour, router round-robin",
        (
            "at the offered 3 requests/s: $5,840.00 a month, $0.00074 a request; per million tokens $0.20 input, $2.00"
            " output, $0.18 total (one bill, three ways)"
        ),
        (
            "the answer changes with the seed: of 5 independent runs 4 say so by themselves, 1 would do with a replica"
            " less"
        ),
        f"at 95 % confidence: {plans.PLAN['method']}",
        "5 candidates, not chosen: TTFT 1, unstable 1; 35 simulations, 6 of them stopped early",
    )


def test_a_plan_that_found_nothing_says_what_stood_in_the_way():
    nothing = {**plans.PLAN["answer"], "feasible": False, "gpus": None, "replicas": None}
    told = verdict.planned(plans.plan(answer=nothing, candidates=plans.PLAN["candidates"][:1]))
    assert told.state == verdict.MISSED
    assert "not even 1 replica meets" in told.sentence
    assert "not chosen: TTFT 1" in told.reasons[0]
    told = verdict.planned(
        plans.plan(
            answer=nothing,
            candidates=[{**plans.PLAN["candidates"][0], "verdict": "not shown", "rejected_by": "only the interval"}],
        )
    )
    assert (told.state, told.headline) == (verdict.OPEN, "No fleet is shown to meet the target:")


def test_why_nothing_meets_it_is_the_command_lines_and_other_layouts_are_a_table(monkeypatch):
    said = []
    monkeypatch.setattr(answer.st, "markdown", said.append)
    found = plans.plan(why=plans.WHY)
    answer.why(found)
    [told] = said
    assert [line.removeprefix("- ") for line in told.replace("\\", "").splitlines()] == [
        line.removeprefix("- ") for line in words.why(found).splitlines()[1:]
    ]
    assert "95 % would be at TTFT <= 8.07 s" in told.replace("\\", "")
    assert [
        (row["GPUs each"], row["within limits, one run"], row["verdict"]) for row in verdict.layout_rows(found)
    ] == [("4", "99.0 % (98.8 to 99.2 %)", "meets"), ("1", "-", "no run")]
    assert verdict.layout_rows(plans.plan()) == []


def test_the_plan_has_a_row_for_each_class_of_the_fleet_it_rests_on():
    one = verdict.deciding(plans.plan())
    assert (one["replicas"], one["runs"]) == (2, 5)
    assert [row["class"] for row in results.verdict_rows(one["classes"])] == ["chat", "coding-agent"]
    fixed = plans.plan(answer={**plans.PLAN["answer"], "feasible": False, "replicas": 1, "gpus": 1})
    assert verdict.deciding(fixed)["replicas"] == 1
    nothing = plans.plan(answer={**plans.PLAN["answer"], "feasible": False, "replicas": None})
    assert verdict.deciding(nothing)["replicas"] == 3, "what came closest, in its worst class"


def test_growth_has_the_advised_fleet_beside_it():
    assert answer.growth_rows(plans.plan())[1] == {
        "load": "3 ×",
        "replicas": "7",
        "GPUs": "7",
        "an hour": "$28.00",
        "with advice": "5",
        "its GPUs": "5",
        "its price": "$20.00",
    }
    alone = answer.growth_rows(
        plans.plan(
            growth=[
                {**row, "advised": None, "replicas": None, "gpus": None, "usd_per_hour": None}
                for row in plans.PLAN["growth"]
            ]
        )
    )
    assert alone[0] == {"load": "2 ×", "replicas": "-", "GPUs": "-", "an hour": "-"}


def test_where_more_replicas_bring_nothing_the_sentence_says_so():
    def told(shares):
        rows = [plans.candidate("as it is", {}, n, mean, 1900.0, "misses", "ttft_s") for n, mean in shares.items()]
        return verdict.planned(
            plans.plan(answer={**plans.PLAN["answer"], "feasible": False, "gpus": None}, candidates=rows)
        ).sentence

    assert "25 to 64 replicas attain the same, so more of them bring nothing" in told(
        {2: 0.4, 25: 0.916, 40: 0.918, 64: 0.916}
    )
    assert "bring nothing" not in told({25: 0.916, 40: 0.93, 64: 0.94})
    assert "bring nothing" not in told({62: 0.916, 63: 0.916, 64: 0.916}), "too near each other to tell"


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_four_numbers_are_the_summarys(small):
    s, found = small.summary, numbers.four(small)
    assert [n.value for n in found] == [
        f"{100 * s['attainment']:.1f} %",
        results.text.milliseconds(s["p99_ttft_ms"]),
        results.text.milliseconds(s["p99_tpot_ms"]),
        f"${s['cost']['usd_per_million_output_tokens']:.2f}",
    ]
    assert all("95 %" in n.interval or "no interval" in n.interval for n in found)
    assert not any(n.change for n in found)


@pytest.mark.parametrize(
    ("kind", "key"), [(numbers.ATTAINMENT, "attainment"), (numbers.TTFT, "p99_ttft_ms"), (numbers.TPOT, "p99_tpot_ms")]
)
def test_an_interval_is_centred_on_the_number_it_belongs_to(small, kind, key):
    assert numbers.interval(small, kind).mean == pytest.approx(small.summary[key])


def test_the_cost_of_the_requests_is_the_fleets(small):
    """But for tokens that the window's requests emit after it, and others' in it."""
    assert numbers.interval(small, numbers.GPU_HOURS).mean == pytest.approx(
        small.summary["cost"]["gpu_hours_per_million_output_tokens"], rel=0.03
    )


def test_a_change_is_paired_and_only_told_when_it_is_shown(shared, small):
    same = numbers.four(small, small)
    assert {n.change for n in same} == {"no change"}
    off = simulated(shared, SMALL + "[cache]\nenabled = false\n")
    by_label = {n.label: n for n in numbers.four(off, small)}
    ttft = by_label["TTFT, p99"]
    assert ttft.better is False
    assert ttft.change.startswith("+")
    a, b = (run.summary["p99_ttft_ms"] for run in (off, small))
    assert ttft.change.split(" ±")[0] == f"+{results.text.milliseconds(a - b)}"
    assert numbers.four(small, off)[1].better is True
    told = compare.of_runs(small, off)["variants"][1]["vs_first"][
        "p99_ttft_ms"
    ]  # the Compare page and `kvcast compare` say the same
    assert (
        ttft.change
        == f"+{results.text.milliseconds(told['difference'])} ± {results.text.milliseconds(told['interval_95'])}"
    )
    other = simulated(shared, "seed = 1\n" + SMALL)
    assert all("other requests" in n.change or "not comparable" in n.change for n in numbers.four(other, small))


def test_runs_of_other_windows_are_paired_on_what_both_judge(shared):
    longer = SMALL.replace("duration_s = 250.0", "duration_s = 900.0")
    one, two = (simulated(shared, f"{longer}[cluster]\nreplicas = {n}\n") for n in (1, 2))
    mine, theirs = (run.tables["requests"] for run in (two, one))
    assert two.summary["window"]["start_s"] > one.summary["window"]["start_s"], "twice the memory takes longer to fill"
    tpot = numbers.four(two, one)[2]
    n = numbers._shared(mine, theirs)
    both = [i for i in range(n) if mine["in_window"][i] and theirs["in_window"][i]]
    assert tpot.change.endswith(f"(the {len(both):,} requests that both judge)")
    a, b = (np.nanpercentile(requests["tpot_s"][both], 99) * 1e3 for requests in (mine, theirs))
    assert tpot.change.split(" ±")[0] == f"−{results.text.milliseconds(b - a)}"
    assert tpot.better is True


def test_an_unstable_run_has_a_growth_and_no_latency(small):
    run = type(small)(
        small.folder, small.scenario, {**small.summary, "stable": False}, small.info, small.aggregates, small.tables
    )
    labels = [n.label for n in numbers.four(run, small)]
    assert labels == ["Within limits", "Backlog growth (requests/s)", "Backlog growth (tokens/s)", "Cost / M tokens"]
    assert numbers.four(run, small)[0].change == "not comparable"


# -- what may vary -----------------------------------------------------------------------------------------------------


def test_nothing_chosen_plans_the_scenario_as_it_is():
    assert plan_question.command(plan_question.axes_of(settings.demo(), {})) == ("plan",)


def test_choices_are_axes_with_the_scenarios_own_value_among_them():
    chosen = {"gpus": ["h100"], "widths": [1, 2], "policies": ["lfu"], "routers": ["round-robin"], "dtypes": ["fp8"]}
    assert plan_question.command(plan_question.axes_of(settings.demo(), chosen)) == (
        "plan",
        "--vary",
        "hardware.gpu=h100,h200",
        "--vary",
        "hardware.tensor_parallel=1,2",
        "--vary",
        "model.dtype=bf16,fp8",
        "--vary",
        "cache.policy=lfu,lru",
    )
    wider = plan_question.axes_of(settings.demo(), {"widths": [2]})
    assert wider == {"hardware.gpu": ["h200"], "hardware.tensor_parallel": [1, 2]}, "no profile has two widths"
    named = replace(settings.demo(), hardware=HardwareConfig(gpu="h200"))
    assert plan_question.axes_of(named, {"widths": [2]}) == {"hardware.tensor_parallel": [1, 2]}


def test_a_plan_over_several_gpus_takes_the_price_list_with_it():
    toml = inputs.Asked(settings.demo()).toml
    axes = {"hardware.gpu": ["b200", "h200"]}
    start = plan_question.with_settings(plan_question.start_of(toml, axes, {"h200": 4.0, "b200": 6.0}))
    assert (start.hardware.gpu, start.cost) == ("b200", CostConfig(prices={"b200": 6.0, "h200": 4.0}))
    assert plan_question.with_settings(plan_question.start_of(toml, {}, {"h200": 4.0})).cost == settings.demo().cost


def test_the_gpu_by_name_is_the_fleet_on_show_where_it_brings_its_profile():
    toml = inputs.Asked(settings.demo()).toml
    page = SimpleNamespace(shown_toml=toml)
    answer_of = {"feasible": True, "replicas": 2, "values": {"hardware.gpu": "h200", "hardware.tensor_parallel": "1"}}
    document = {"answer": answer_of, "scenario": toml}
    assert plan_question.winner(page, document) is None, "h200 brings the profile that the demo has"
    other = plan_question.winner(page, {**document, "answer": {**answer_of, "values": {"hardware.gpu": "b200"}}})
    assert (other.hardware.gpu, other.cluster.replicas) == ("b200", 2)


def test_a_plan_is_found_again_from_its_own_answer():
    axes = {"cache.policy": ["lfu", "lru"]}
    toml = inputs.Asked(settings.demo()).toml
    answered = results.text and plan_question.with_settings(toml, ["cache.policy=lfu", "cluster.replicas=7"])
    assert plan_question.start_of(inputs.Asked(answered).toml, axes) == plan_question.start_of(toml, axes)


def test_a_change_without_keys_to_set_is_applied_from_its_scenario(shared, monkeypatch):
    shown, adopted = inputs.Asked(settings.demo()).toml, []
    monkeypatch.setattr(apply, "adopt", lambda page, scenario: adopted.append(scenario))
    page = shell.Page(shared, inputs.Asked(settings.demo()), shown, shown, None, None)
    windowed = api.windowed(plan_question.with_settings(shown))
    reordered = with_classes(windowed, lambda c: replace(c, layers=tuple(reversed(c.layers))))
    for sets, scenario in (([], reordered), (["cluster.replicas=5"], windowed), (["cache.policy=lfu"], reordered)):
        apply.apply_change(page, {"set": sets, "scenario": inputs.Asked(scenario).toml})
    assert [(one.cluster.replicas, one.cache.policy) for one in adopted] == [(2, "lru"), (5, "lru"), (2, "lfu")]
    assert [one.workload.class_ == reordered.workload.class_ for one in adopted] == [True, False, True]
    assert all(one.workload.duration_s is None and one.run.warmup_s is None for one in adopted), (
        "the plan's window is not the reader's"
    )


def test_nothing_leaves_with_a_path_of_the_server():
    toml = '[workload]\ntrace = "/srv/secret/trace.csv"\n'
    found = plan_files.portable(plans.plan(scenario=toml, advice=[{**plans.PLAN["advice"][0], "scenario": toml}]))
    assert "secret" not in json.dumps(found)


def test_candidates_are_a_table_with_the_reason_of_each():
    rows = answer.candidate_rows(plans.plan())
    assert (rows[0]["verdict"], rows[0]["replicas"]) == ("meets", "2"), "the plan's own first"
    assert {row["why not"] for row in rows if row["verdict"] == "misses"} == {"chat: TTFT", "unstable"}
    assert next(row for row in rows if row["why not"] == "unstable")["TTFT p99"] == "-"
    assert {row["runs"] for row in rows} == {"1", "5"}
    cut = answer.candidate_rows(
        plans.plan(
            candidates=[{**plans.PLAN["candidates"][0], "verdict": "not shown", "rejected_by": "only the interval"}]
        )
    )
    assert cut[0]["why not"] == "chat: its interval holds the target"
    assert [results.MARK in row["within limits (95 %)"] for row in rows] == [
        "lfu" in row["candidate"] for row in rows
    ], "extrapolated numbers are marked"
    assert all(list(row) == list(rows[0]) for row in rows), "a column for each limit, whoever was judged by it"
    table = pyarrow.csv.read_csv(io.BytesIO(plan_files.candidates_csv(plans.plan()).encode()))
    assert table["replicas"].to_pylist() == [c["replicas"] for c in plans.PLAN["candidates"]]
    assert table["attainment_low"].to_pylist()[0] == pytest.approx(0.908)


# -- to take away ------------------------------------------------------------------------------------------------------


def test_requests_as_csv_hold_every_row(small):
    table = pyarrow.csv.read_csv(io.BytesIO(results.as_csv(small.tables["requests"])))
    assert table.num_rows == len(small.tables["requests"]["request"])
    assert np.nansum(table["hit_tokens"].to_numpy()) == small.tables["requests"]["hit_tokens"].sum()


# -- flows -------------------------------------------------------------------------------------------------------------


def test_first_open_has_the_verdict_numbers_and_the_way_to_a_plan(folder):
    session = Session()
    assert "Meets the target." in session.words()
    assert re.search(
        r"2 × H200-SXM: chat 99\.\d % \([\d.]+ to [\d.]+ %\), coding-agent .* of requests within their limits \(chat:"
        r" TTFT <= 500 ms",
        session.words(),
    )
    assert "demo: chat + coding agent: 5.49 requests/s" in session.words(), "the nominal load"
    run = load_run(session.at.session_state.job.folder)
    s, shown = run.summary, session.numbers()
    assert shown == {
        "Within limits": f"{100 * s['attainment']:.1f} %",
        "TTFT, p99": results.text.milliseconds(s["p99_ttft_ms"]),
        "TPOT, p99": results.text.milliseconds(s["p99_tpot_ms"]),
        "Cost / M tokens": f"${s['cost']['usd_per_million_output_tokens']:.2f}",
    }
    assert all(m.help for m in session.at.metric)
    assert s["counting_rule"] in session.words()


def test_a_plan_is_shown_with_advice_that_can_be_applied(demo_plan):
    session = Session()
    words = session.words()
    assert "This is the fewest: 2 × H200-SXM meets: chat 99.9 %" in words.replace("**", "")
    assert "headroom 60 % (58 % surely): holds up to 7.4 requests/s" in words
    assert address.FIND not in session.buttons()
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in words
    assert "3 replicas survive the loss of one" in words
    assert {f"plan.{name}" for name in ("plan.json", "candidates.csv", "plan.html")} <= {
        button.key for button in session.at.get("download_button")
    }
    assert "holds 8.8 requests/s instead of 7.4 requests/s" in words
    assert "Every class on 2 replicas" in words
    assert "Over 5 independent runs." in words
    assert "With advice: router round-robin -> session-affinity." in words
    session.at.number_input(key="replicas").set_value(3).run()
    session.press("Run")
    assert "3 × H200-SXM" in session.words()
    assert "The fleet on show: 3 × H200-SXM" in session.words(), "each fleet's figures under a heading of their own"
    assert "How far the plan's fleet of 2 replicas reaches" in session.words()
    assert "Use this fleet" in session.buttons(), "the plan stays in sight of another fleet"
    assert "Fewest GPUs: 2 × H200-SXM" in session.words().replace("**", "")
    session.press("Use this fleet")
    assert session.at.session_state["replicas"] == 2
    assert "Use this fleet" not in session.buttons()
    session.at.button(key="plan.apply.0").click()
    session.settle(session.at.run())
    assert session.at.session_state["router"] == "session-affinity"


def test_a_pinned_run_is_the_baseline_of_the_next(demo_plan):
    session = Session().press("Pin as baseline")
    assert "Baseline: this run" in session.words()
    session.at.number_input(key="replicas").set_value(1).run()
    session.press("Run")
    assert "vs baseline" in session.words()
    assert re.search(r":red\[\+[\d.]+ ms ± [\d.]+ ms \(the [\d,]+ requests that both judge\)\]", session.words()), (
        "TPOT of one GPU is shown to be worse"
    )
    session.press("Unpin")
    assert "vs baseline" not in session.words()


def test_a_plan_found_by_the_command_line(folder):
    session = Session()
    session.at.number_input(key="rate_scale").set_value(0.5).run()
    session.press("Run").press(address.FIND)
    shown = session.at.session_state.job
    job = shell.runner_of(str(shown.folder.parent)).existing(plan_question.start_of(shown.scenario_toml, {}), "plan")
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
    start = plan_question.start_of(toml, {})
    document = plans.plan()
    key = runner.key_of(start, ("plan",))
    (folder / f"{key}.json").write_text(
        json.dumps({**document, "scenario": toml, "answer": {**document["answer"], "feasible": False}})
    )
    (folder / f"{key}.toml").write_text(start)
    page.settle(page.at.run())
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.Runner, "submit", lambda self, *words: asked.append(words))
        next(b for b in page.at.button if b.label == "Try wider replicas").click()
        page.at.run()
    [(_, *words)] = asked
    assert words == ["plan", "--vary", "hardware.gpu=h200", "--vary", "hardware.tensor_parallel=1,2,4,8"]
    assert page.at.session_state["plan.widths"] == [1, 2, 4, 8]
    page.at.session_state["plan.widths"] = []
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


def test_growth_names_its_advice_where_the_plan_has_none(monkeypatch):
    """One replica has nothing to route: a larger fleet is advised a router that the plan's own advice has not."""
    said = []
    monkeypatch.setattr(answer, "plot", lambda *words: None)
    monkeypatch.setattr(answer, "plain", lambda words: said.append(words) or words)
    found = plans.plan(advice=[])
    answer.growth(found)
    assert said == [f"With advice: {found['growth'][0]['advised']['change']}."]


def test_the_plan_has_a_command_line():
    asked = plan_question.command({"cache.policy": ["lfu", "lru"]}, 3)
    assert (
        plan_question.command_line(asked)
        == "kvcast plan scenario.toml --vary cache.policy=lfu,lru --seeds 3 --out my-plan"
    )
    assert plan_question.command({}, 1, fixed=True) == ("plan", "--seeds", "1", "--fixed")
    assert plan_question.command({}) == ("plan",), "the command's own number of runs"


def test_the_question_may_be_how_far_this_fleet_reaches_and_the_seeds_are_chosen(folder):
    toml = inputs.Asked(settings.demo()).toml
    key = runner.key_of(toml, ("plan", "--seeds", "3", "--fixed"))
    (folder / f"{key}.json").write_text(json.dumps({**plans.plan(), "scenario": toml, "growth": None}))
    (folder / f"{key}.toml").write_text(toml)
    session = Session()
    session.at.session_state["plan.seeds"] = 3
    session.settle(session.at.run())
    assert any(button.key == f"start {address.FIND} plan --seeds 3" for button in session.at.button)
    session.at.session_state["plan.question"] = address.REACH
    session.settle(session.at.run())
    assert "This fleet is enough: 2 × H200-SXM meets: chat 99.9 %" in session.words().replace("**", "")
    assert "kvcast plan scenario.toml --seeds 3 --fixed --out my-plan" in session.words()
    assert "Use this fleet" not in session.buttons()
