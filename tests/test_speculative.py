"""Speculative decoding: exact worlds for acceptance 0 and 1, the closed form between them, conservation, its cost."""

import json
import re
import shlex
import tomllib
from dataclasses import replace
from itertools import accumulate
from operator import mul
from pathlib import Path

import numpy as np
import pytest

from calibrate.latency import load_step_time
from calibrate.models import resolve_model
from calibrate.speculative import Layer, SpeculativeStepTime
from kvcast import Scenario, WorkloadConfig, simulate
from kvcast.config import scenario_from_doc
from kvcast.planner.command import launch_of
from kvcast.planner.launch import read_command
from kvcast.scenario.resolve import resolve
from kvcast.scenario.toml import dumps
from kvcast.validation import engine_cases
from sim.measure import gaps, metrics
from sim.measure.cost import busy_gpu_s
from sim.recording import COMPLETED
from sim.scenario import EngineConfig, EngineParams, HardwareConfig, RunConfig, Speculation, SpeculativeConfig
from sim.simulate import run
from sim.vllm.acceptance import Acceptances, expected_tokens
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.errors import InputError

SYNC = {"async_scheduling": False, "block_size": 4}


def params(acceptance, method="eagle", **keys) -> EngineParams:
    return EngineParams(
        kv_blocks=keys.pop("kv_blocks", 10_000), **{**SYNC, **keys}, speculative=Speculation(method, acceptance)
    )


def emptied(fleet) -> list:
    return [(r.scheduler.cache.free, r.scheduler.cache.total, len(r.scheduler.running)) for r in fleet]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_acceptance_0_is_the_plain_schedule_with_dearer_steps(asynchronous):
    work = random_workload(3, rate=2000.0)
    given = params((0.0, 0.5), method="mtp", async_scheduling=asynchronous, calls_ahead=False)
    plainly = run(work, replace(given, speculative=None), UnitSteps())
    drafted = run(work, given, UnitSteps())
    for column in ("first_step", "last_step", "hit_tokens", "finish_s", "prefill_chunks"):
        assert np.array_equal(getattr(drafted, column), getattr(plainly, column)), column
    before, now = plainly.steps[0], drafted.steps[0]
    padded = (
        before.prefill_tokens.sum() - now.prefill_tokens.sum()
    )  # prompts of which one token is missing get all rows
    assert now.n_decode.sum() == 3 * (before.n_decode.sum() + padded)
    assert drafted.verified.acceptance_length == 1.0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("output", [1, 2, 5, 8, 9, 20])
def test_acceptance_1_gives_every_drafted_token(output, asynchronous):
    given = params((1.0, 1.0, 1.0), async_scheduling=asynchronous)
    rec = run(plain([0.0], [10], [output]), given, UnitSteps())
    steps = -(-(output - 1) // 4)  # the prefill gives the first
    assert rec.last_step[0] == steps
    ghost = asynchronous and output > 2  # decided before anybody knew that it had ended
    assert rec.steps[0].n_decode.tolist() == [0] + [4] * (steps + ghost)
    assert rec.verified.emitted[0].tolist()[: steps + 1] == [1] + [min(4, output - 1 - 4 * i) for i in range(steps)]
    assert rec.verified.emitted[0].sum() == output


def test_the_draws_have_the_distribution_and_depend_on_nothing_but_request_and_token():
    shares, n = (0.8, 0.6, 0.5), 200_000
    draws = Acceptances(shares, seed=7)
    counts = np.bincount([draws.accepted(r, t) for r in range(400) for t in range(500)], minlength=4)
    at_least = [1.0, *accumulate(shares, mul), 0.0]
    expected = -np.diff(at_least)
    assert np.abs(counts / n - expected).max() < 5 * np.sqrt(0.25 / n)
    assert expected_tokens(shares) == pytest.approx(1 + 0.8 + 0.48 + 0.24)
    assert expected_tokens(shares) == pytest.approx(1 + (counts * np.arange(4)).sum() / n, abs=0.01)
    again = Acceptances(shares, seed=7)
    assert [again.accepted(9, t) for t in (5, 3, 4)] == [draws.accepted(9, t) for t in (5, 3, 4)]
    other = Acceptances(shares, seed=8)
    assert [other.accepted(9, t) for t in range(50)] != [draws.accepted(9, t) for t in range(50)]


def test_a_request_accepts_the_same_whatever_the_schedule():
    work = random_workload(5, n=40)
    given = params((0.7, 0.7))
    alone = run(work, replace(given, max_num_seqs=1), UnitSteps()).verified
    together = run(work, replace(given, async_scheduling=True), LinearSteps(), replicas=2).verified
    assert (alone.drafts, alone.accepted) == (together.drafts, together.accepted)
    assert (
        run(work, given, LinearSteps()).finish_s.tolist()
        == run(work, given, LinearSteps(), fast_forward=False).finish_s.tolist()
    )


def test_tpot_at_low_load_is_the_step_time_over_the_expected_tokens():
    shares, n = (0.8, 0.7, 0.6), 60
    work = plain(np.arange(n) * 1000.0, [64] * n, [601] * n)
    rec = run(work, params(shares), UnitSteps())
    tpot = metrics.per_request(rec, work)["tpot_s"]
    assert tpot.mean() == pytest.approx(1 / expected_tokens(shares), rel=0.01)
    assert rec.verified.acceptance_length == pytest.approx(expected_tokens(shares), rel=0.01)
    owed = busy_gpu_s(rec, work.prompt_tokens, 1)  # nothing else runs: a request pays for its own steps
    assert owed == pytest.approx(rec.finish_s - rec.arrival_s, abs=0.5)
    (itl,) = gaps.describe(rec, [rec.status == COMPLETED])
    assert itl["mean"] == itl["p99"] == 1e3  # the tokens of a step come as one: one gap, as vllm bench serve has it


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "keys", [{}, {"scheduler_policy": "priority"}, {"preemption_victim": "lcf"}, {"policy": "lfu"}, {"caching": False}]
)
def test_all_tokens_come_and_all_memory_comes_back_through_preemptions(keys, asynchronous):
    work = random_workload(11, n=80, closed=True, rate=500.0)
    ends: list = []
    given = params(
        (0.6, 0.5, 0.9),
        kv_blocks=90,
        max_model_len=300,
        max_num_batched_tokens=48,
        async_scheduling=asynchronous,
        **keys,
    )
    rows: list = []
    rec = run(work, given, LinearSteps(), on_end=lambda fleet: ends.extend(emptied(fleet)), step_log=rows)
    done = rec.status == COMPLETED
    assert done.sum() > 60
    assert rec.preemptions.sum() > 0
    assert sum(e.sum() for e in rec.verified.emitted) == work.output_tokens[done].sum()
    assert ends == [(90, 90, 0)]
    assert max(sum(n for _, n in row[2]) for row in rows) <= 48
    window, _ = metrics.window_of(rec, 0.0, None)
    assert metrics.tokens_emitted(rec, window) == work.output_tokens[done].sum()


def test_blocks_are_held_for_every_verified_token_and_the_drafters_beyond():
    """Prompt 8, blocks of 4: the first verification reaches 8 + 4 tokens, an eagle drafter's slots 3 more."""
    for method, held in (("eagle", 4), ("ngram", 3)):
        rows: list = []
        run(plain([0.0], [8], [3]), params((0.0,) * 3, method=method), UnitSteps(), step_log=rows)
        assert 10_000 - rows[1][6] == held


def test_recorded_cases_of_vllm_are_replayed_step_by_step():
    """vLLM 0.33.0's own scheduler with made-up drafts: tools/record_engine_cases.py."""
    found = engine_cases.run(None, Path(__file__).parent / "recorded" / "speculative")
    assert (found.passed, found.figures["cases"], found.figures["requests"]) == (True, 8, 240), found


def test_the_budget_counts_every_verified_token():
    rec = run(plain([0.0] * 5, [4] * 5, [9] * 5), params((0.0, 0.0), max_num_batched_tokens=20), UnitSteps())
    assert rec.steps[0].n_decode.max() == 15
    rec = run(plain([0.0] * 5, [4] * 5, [9] * 5), params((1.0, 1.0), max_num_batched_tokens=10), UnitSteps())
    steps = rec.steps[0]
    assert (steps.n_decode + steps.prefill_tokens).max() == 10


def seconds(acceptance, batch, **keys):
    """Of a batch that decodes 80 tokens each, on one H200."""
    model = load_step_time("h200-llama-3.1-8b-aic")
    work = plain([0.0] * batch, [16] * batch, [81] * batch)
    if acceptance is None:
        return run(work, replace(params((0.5,), max_num_seqs=batch), speculative=None), model).end_s
    step_time = SpeculativeStepTime(model, len(acceptance), keys.pop("drafter", None), **keys)
    return run(work, params(acceptance, "ngram", max_num_seqs=batch), step_time).end_s


def test_drafts_pay_at_low_load_and_cost_where_batches_are_bound_by_computing():
    shares = (0.6, 0.5, 0.4)
    gain = {batch: seconds(None, batch) / seconds(shares, batch) for batch in (1, 512)}
    assert gain[1] > 1.6  # of 2.02 tokens a verification
    assert gain[512] < 0.9


def test_a_step_is_a_pass_over_every_row_that_reads_each_context_once():
    model = load_step_time("roofline:h200")
    n, k, context = 256, 3, 2000  # bound by computing
    plainly, verified = model.parts([], n, n * context, context, n), n * (k + 1)
    step_s, _ = SpeculativeStepTime(model, k).step([], verified, n * context, context, verified)
    rows = model.parts([], verified, 0, 1, verified)
    assert step_s == pytest.approx(rows["dense"] + rows["sampling"] + plainly["attention"] + plainly["overhead"])
    assert (
        SpeculativeStepTime(model, k, draft_s=0.002).step([], verified, n * context, context, verified)[0]
        == step_s + 0.002
    )
    layer = SpeculativeStepTime(model, k, Layer(model, 32)).step([], verified, n * context, context, verified)[0]
    later = [model.parts([], n, n * (context + i), context + i, n) for i in (1, 2)]
    first = (rows["dense"] + plainly["attention"]) / 32 + plainly["sampling"]
    others = sum((one["dense"] + one["attention"]) / 32 + one["sampling"] for one in later)
    assert layer - step_s == pytest.approx(first + others)
    draft = SpeculativeStepTime(model, k, load_step_time("roofline:h200", "llama-3.2-1b"))
    assert draft.step([], verified, n * context, context, verified)[0] > step_s
    assert draft.step([(512, 0)], 0, 0, 0, 0)[0] > model.step([(512, 0)], 0, 0, 0, 0)[0]  # it computes the prompt too


def scenario(**keys):
    return Scenario(
        workload=WorkloadConfig(preset="chat", rate=2.0, duration_s=20.0),
        run=RunConfig(warmup_s=5.0),
        speculative=SpeculativeConfig(**{"method": "eagle", "tokens": 3, "acceptance": 0.7, **keys}),
    )


def test_a_scenario_reports_its_mean_acceptance_length_and_writes_the_flag(tmp_path):
    given = scenario(acceptance=(0.7, 0.6, 0.5))
    assert scenario_from_doc(tomllib.loads(dumps(given)), "same") == given
    s = simulate(given).summary
    assert s["speculation"]["mean_acceptance_length"] == pytest.approx(expected_tokens((0.7, 0.6, 0.5)), rel=0.04)
    assert s["mean_itl_ms"] > 1.5 * s["mean_tpot_ms"]
    assert s["completed"] == s["arrived"] > 0
    assert s["mfu"] is None
    argv = launch_of(given)["vllm"]
    config = argv[argv.index("--speculative-config") + 1]
    assert json.loads(config) == {"method": "eagle", "model": "DRAFTER", "num_speculative_tokens": 3}
    launch = read_command(shlex.join(argv))
    assert {"speculative.method=eagle", "speculative.tokens=3"} <= set(launch.sets)
    draft = json.dumps({"model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 2})
    assert "speculative.draft_model=llama-3.2-1b" in read_command(f"vllm serve x --speculative-config '{draft}'").sets
    other = """vllm serve x --speculative-config '{"method": "medusa"}'"""
    assert read_command(other).not_modelled == ['--speculative-config {"method": "medusa"}']


def test_a_drafter_takes_memory_from_the_cache():
    blocks = [resolve(scenario(**keys)).scenario.engine.kv_blocks for keys in ({}, {"method": "ngram"})]
    drafter = resolve(scenario(method="draft", draft_model="llama-3.2-1b"))
    model, draft = resolve_model("llama-3.1-8b"), resolve_model("llama-3.2-1b")
    assert drafter.memory.weights == model.weight_bytes("bf16") + draft.weight_bytes("bf16")
    assert drafter.memory.bytes_per_token == model.kv_bytes_per_token("bf16") + draft.kv_bytes_per_token("bf16")
    assert drafter.scenario.engine.kv_blocks < blocks[0] < blocks[1]
    assert blocks[1] == resolve(replace(scenario(), speculative=SpeculativeConfig())).scenario.engine.kv_blocks


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"acceptance": ()}, "acceptance is missing"),
        ({"acceptance": (0.5,)}, "acceptance has 1 numbers"),
        ({"acceptance": (0.5, 0.5, 1.5)}, "at position 3"),
        ({"acceptance": 1.5}, "acceptance = 1.5"),
        ({"tokens": None}, "tokens is missing"),
        ({"method": "draft"}, "draft_model is missing"),
        ({"method": "draft", "draft_model": "llama"}, "expected a bundled model"),
        ({"draft_model": "llama-3.2-1b"}, "expected method = 'draft'"),
        ({"method": None}, "expected method with it"),
        ({"method": "medusa"}, "expected one of ngram"),
    ],
)
def test_what_makes_no_sense_is_one_line(keys, line):
    with pytest.raises(InputError, match=re.escape(line)):
        resolve(scenario(**keys))


@pytest.mark.parametrize("key", ["attention_dp", "pipeline_parallel"])
def test_layouts_that_it_is_not_simulated_with_are_refused_by_name(key):
    with pytest.raises(InputError, match=rf"method = 'eagle' with \[hardware\] {key} = 2"):
        resolve(replace(scenario(), hardware=HardwareConfig(**{key: 2})))


@pytest.mark.parametrize("keys", [{"semantics": "sglang"}, {"semantics": "trtllm"}])
def test_engines_without_it_refuse_it_by_name(keys):
    with pytest.raises(InputError, match=r"\[speculative\] method = 'eagle' with"):
        resolve(replace(scenario(), engine=EngineConfig(**keys)))
    with pytest.raises(InputError, match=r"\[speculative\] method = 'eagle' with"):
        run(plain([0.0], [8], [3]), params((0.5,), **keys), UnitSteps())


@pytest.mark.parametrize("keys", [{"policy": "clairvoyant"}, {"prefill_schedule_interval": 2}])
def test_what_is_not_simulated_together_is_refused_by_name(keys):
    with pytest.raises(InputError, match=r"\[speculative\] with .*not simulated together"):
        run(plain([0.0], [8], [3]), params((0.5,), **keys), UnitSteps())
