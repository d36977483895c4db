"""A scenario fitted to a server: known parameters come back, what data leave open is refused, half is held out; and the
one parameter by which a simulation differs from what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.bench_fit_server import recorded
from benchmarks.simulated_server import load, measure
from calibrate.factors import Factors, factored
from calibrate.latency import step_time
from calibrate.models import resolve_model
from calibrate.resolve import resolve_profile
from kvcast import api
from kvcast.cli import main
from kvcast.config import apply_overrides, load_scenario, scenario_from_doc
from kvcast.fitted import read_run
from kvcast.fitted.difference import candidates
from kvcast.fitted.likeness import Cells, halves
from kvcast.fitted.parameters import PARAMETERS, RATE
from workloads.errors import InputError

PROFILE = "h200-llama-3.1-8b-aic"
SETS = [f"hardware.profile={PROFILE}", "engine.kv_blocks=20000", "engine.max_model_len=16384"]


def server(**engine):
    engine = {"kv_blocks": 20000, "max_model_len": 16384} | engine
    workload = {"preset": "chat", "rate": 1.0, "duration_s": 60.0}
    return scenario_from_doc({"workload": workload, "hardware": {"profile": PROFILE}, "engine": engine})


def result(folder, truth, workload, name="R", seed=0, **changes):
    path = folder / f"{name}.json"
    path.write_text(json.dumps(measure(server(), truth, workload, seed) | changes))
    return path


# -- factors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [PROFILE, "atlas:h100", "roofline:l40s"])
@pytest.mark.parametrize("shape", [([], 32, 65536, 4096, 32), ([(2000, 100)], 8, 16000, 2500, 9)])
def test_two_factors_share_a_step_between_them(spec, shape):
    model = resolve_model("llama-3.1-8b")
    profile = resolve_profile(spec, model)
    plain, both, dense, attention = (
        step_time(profile, model, factors=Factors(*pair)).step(*shape)[0] for pair in ((1, 1), (2, 2), (2, 1), (1, 2))
    )
    assert both == pytest.approx(2 * plain)
    assert dense + attention == pytest.approx(3 * plain)
    assert plain < attention < dense  # of an 8B model everything else is more than attention
    assert factored(profile, Factors()) is profile


def test_host_time_in_a_profile_is_no_operator():
    profile = resolve_profile(PROFILE, resolve_model("llama-3.1-8b"))
    host = {"name": "host_per_sequence", "repeat": 1, "rows": [1, 2], "us": [5.0, 6.0]}
    points = profile.points | {"per_sequence": [*profile.points["per_sequence"], host]}
    scaled = factored(type(profile)(**vars(profile) | {"points": points}), Factors(3.0, 1.0)).points["per_sequence"]
    assert scaled[-1] == host
    assert scaled[0]["repeat"] == 3 * points["per_sequence"][0]["repeat"]


def test_factors_stay_with_the_gpu_that_they_were_fitted_to():
    fitted = {"hardware": {"gpu": "h200", "dense_factor": 1.1, "attention_factor": 0.9}, "workload": {"preset": "chat"}}
    assert apply_overrides(fitted, ["hardware.gpu=h200", "engine.kv_blocks=9"])["hardware"] == fitted["hardware"]
    assert apply_overrides(fitted, ["hardware.gpu=b200"])["hardware"] == {"gpu": "b200"}
    kept = apply_overrides(fitted, ["hardware.tensor_parallel=2", "hardware.dense_factor=1.3"])["hardware"]
    assert kept == {"gpu": "h200", "tensor_parallel": 2, "dense_factor": 1.3}


# -- the load of a result ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_an_answer_that_was_complete_before_it_began_is_refused(tmp_path, seconds):
    given = result(tmp_path, {}, load(20, seed=1, places=8), latencies=[seconds] * 20)
    with pytest.raises(InputError, match=rf"R\.json, request 1: end-to-end time {seconds:g} s, expected more than 0"):
        read_run(given)


def test_a_fixed_number_in_flight_is_replayed_as_one_and_recorded_times_as_they_are(tmp_path):
    closed = read_run(result(tmp_path, {}, load(64, seed=1, places=8)))
    assert (closed.workload.concurrency, closed.workload.turnaround_s) == (8, pytest.approx(0, abs=2e-3))
    sent = load(64, seed=1, rate=5.0)
    path = result(tmp_path, {}, sent, "paced")
    document = json.loads(path.read_text())
    for name in ("input_lens", "output_lens", "start_times", "ttfts", "latencies"):
        document[name].reverse()  # as a tool may write them
    path.write_text(json.dumps(document))
    paced = read_run(path)
    assert paced.workload.concurrency is None
    assert paced.workload.arrival_s == pytest.approx(sent.arrival_s - sent.arrival_s[0])
    assert (paced.workload.prompt_tokens == sent.prompt_tokens).all()


def of_sglang(document):
    itls = [[(e2e - ttft) / max(n - 1, 1)] * (n - 1) for _, e2e, ttft, _, n in requests(document)]
    kept = ("completed", "total_input_tokens", "request_throughput", "duration", "max_concurrency", "request_rate")
    lists = ("input_lens", "output_lens", "ttfts", "errors")
    return {"backend": "sglang", "total_throughput": 9.0, "mean_e2e_latency_ms": 75.0, "itls": itls} | {
        name: document[name] for name in kept + lists
    }


def of_guidellm(document):
    rows = [
        {
            "request_start_time": start,
            "request_latency": e2e,
            "time_to_first_token_ms": 1e3 * ttft,
            "input_metrics": {"total_tokens": prompt},
            "output_metrics": {"total_tokens": output},
        }
        for start, e2e, ttft, prompt, output in requests(document)
    ]
    runs = [
        {"config": {"strategy": {"type_": kind, "streams": 8}}, "requests": {"successful": rows[:n]}}
        for kind, n in (("synchronous", 3), ("concurrent", len(rows)))
    ]
    return {"metadata": {"guidellm_version": "0.8.1"}, "config": {}, "benchmarks": runs}


def of_aiperf(document):
    return [
        {
            "metadata": {"request_start_ns": int(1e9 * start), "benchmark_phase": "profiling", "was_cancelled": False},
            "metrics": {
                "request_latency": {"value": 1e3 * e2e, "unit": "ms"},
                "time_to_first_token": {"value": 1e3 * ttft, "unit": "ms"},
                "input_sequence_length": {"value": prompt, "unit": "tokens"},
                "output_sequence_length": {"value": output, "unit": "tokens"},
            },
            "error": None,
        }
        for start, e2e, ttft, prompt, output in requests(document)
    ]


def requests(document):
    names = ("start_times", "latencies", "ttfts", "input_lens", "output_lens")
    return zip(*(document[name] for name in names), strict=True)


def test_results_of_every_tool_are_one_load(tmp_path):
    document = measure(server(), {}, load(64, seed=1, places=8), 0)
    files = {"r.jsonl": [of_sglang(document)], "b.json": of_guidellm(document), "p.jsonl": of_aiperf(document)}
    (tmp_path / "vllm.json").write_text(json.dumps(document))
    theirs = read_run(tmp_path / "vllm.json")
    for name, content in files.items():
        lines = [json.dumps(one) for one in content] if name.endswith("jsonl") else [json.dumps(content)]
        (tmp_path / name).write_text("\n".join(lines))
        run = read_run(tmp_path / name, run="concurrent 8" if name == "b.json" else None)
        assert run.workload.concurrency == 8
        assert run.measured["e2e_s"] == pytest.approx(theirs.measured["e2e_s"], abs=1e-5)
        mine, other = (one.simulated(api.resolve(server()))["e2e_s"].mean() for one in (run, theirs))
        assert mine == pytest.approx(other, rel=0.01)


def test_an_open_loop_without_its_rate_is_none_that_waits(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        "\n".join(json.dumps(one) for one in of_aiperf(measure(server(), {}, load(64, seed=1, rate=9.0), 0)))
    )
    assert read_run(path).workload.concurrency is None


def test_prefixes_are_taken_of_a_trace_with_the_same_requests_only(tmp_path):
    path, sent = result(tmp_path, {}, load(64, seed=1, rate=5.0)), load(64, seed=1, rate=5.0)
    own = api.replace(sent, prefix_identity=True, arrival_s=sent.arrival_s + 3)
    taken = read_run(path, own).workload
    assert taken.prefix_identity
    assert taken.arrival_s[0] == 0  # but sent when the result says
    assert not read_run(path, load(64, seed=2, rate=5.0)).workload.prefix_identity


def test_every_second_block_is_held_out_and_of_three_runs_one_whole(tmp_path):
    runs = [read_run(result(tmp_path, {}, load(64, seed=1, rate=r), f"r{r:g}")) for r in (9.0, 1.0, 4.0)]
    alone = halves(runs[:1])[0]
    assert alone.reshape(8, 8).tolist() == [[i % 2 == 0] * 8 for i in range(8)]
    assert [bool(mine.all()) for mine in halves(runs)] == [True, True, False]  # the one between the other two
    cells = Cells(runs[:1], [alone])
    twice = [{metric: 2 * seconds for metric, seconds in runs[0].measured.items()}]
    assert cells.residuals(twice) == pytest.approx(np.full(len(cells.group), np.log(2)))
    assert cells.spell.max() + 1 == 4


def test_a_rate_of_a_front_end_is_no_limit_where_its_turn_takes_no_time():
    assert (RATE.at(0.0), RATE.at(2.0), RATE.onto(None), RATE.onto(500.0)) == (None, 500.0, 0.0, 2.0)
    for p in PARAMETERS:
        value = p.value(api.resolve(server()).scenario)
        assert p.at(p.onto(value)) == pytest.approx(value) if value else p.at(p.onto(value)) == value


# -- the fit -----------------------------------------------------------------------------------------------------------

TRUTH = {"hardware.dense_factor": 1.2, "engine.host_step_ms": 3.0, "engine.frontend_ms": 15.0}


def test_known_parameters_come_back_and_the_file_says_where_from(tmp_path, capsys):
    loads = {"one": load(64, seed=3, rate=4.0), "two": load(64, seed=4, places=16)}
    paths = [str(result(tmp_path, TRUTH, one, name, seed=5)) for name, one in loads.items()]
    out = tmp_path / "fitted.toml"
    sets = [word for one in SETS for word in ("--set", one)]
    assert main(["fit-server", *paths, *sets, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["key"]: row for row in found["parameters"]}
    for key, truth in TRUTH.items():
        assert rows[key]["value"] == pytest.approx(truth, rel=0.05)
        assert rows[key]["low"] <= truth <= rows[key]["high"]
    assert found["refused"]["engine.kv_blocks"] == "given by the scenario"
    assert found["refused"]["engine.frontend_requests_per_s"]
    means = [row for row in found["held_out"] if row["stat"] == "mean"]
    assert all(abs(row["after"]) < 0.03 < abs(row["before"]) for row in means)
    assert [run["fitted"] for run in found["runs"]] == [32, 32]
    written = load_scenario(out)
    assert written.hardware.dense_factor == rows["hardware.dense_factor"]["value"]
    assert written.engine.frontend_ms == rows["engine.frontend_ms"]["value"]
    text = out.read_text()
    assert found["runs"][0]["sha256"] in text
    assert "not fitted: engine.kv_blocks: given by the scenario" in text


@pytest.mark.parametrize(("card", "engine"), [("rtxpro6000", {"max_num_seqs": 128})])
def test_a_recorded_run_is_met_on_the_half_that_was_not_fitted(data_dir, card, engine):
    fitted = recorded(card, engine, data_dir / "measured", in_time=False)
    limits = {"ttft_s": 0.05, "tpot_s": 0.02, "e2e_s": 0.02}
    for row in fitted.document()["held_out"]:
        if row["stat"] == "mean":
            assert abs(row["after"]) < limits[row["metric"]]
    assert fitted.improves
    assert "engine's own clock" in fitted.found.refused["engine.frontend_ms"]


# -- the difference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "value"), [("hardware.dense_factor", 1.3), ("engine.kv_blocks", 1200)])
def test_the_one_parameter_that_is_otherwise_is_named(tmp_path, key, value):
    run = read_run(result(tmp_path, {key: value}, load(64, seed=6, rate=12.0), seed=1))
    rows, by_chance, _ = candidates(api.resolve(server()), [run])
    assert not by_chance
    assert rows[0]["key"] == key
    assert rows[0]["removes"] > 0.8
    assert rows[0]["to"] == pytest.approx(value, rel=0.15)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_fitted_is_one_line(tmp_path, capsys):
    few = result(tmp_path, {}, load(40, seed=1, rate=5.0), "few")
    aggregates = tmp_path / "aggregates.json"
    aggregates.write_text(
        json.dumps({"completed": 9, "total_input_tokens": 99, "request_throughput": 1, "duration": 9})
    )
    untimed = result(tmp_path, {}, load(80, seed=1, rate=5.0), "untimed", start_times=None)
    sets = [word for one in SETS for word in ("--set", one)]
    for arguments, line in (
        ([str(few), *sets], "40 requests with times, expected at least 64"),
        ([str(few)], "no GPU is named"),
        ([str(aggregates), *sets], "aggregates only"),
        ([str(untimed), *sets], "neither times of sending nor a number in flight"),
        ([str(tmp_path / "none.json"), *sets], "none.json"),
    ):
        assert main(["fit-server", *arguments]) == 2
        error = capsys.readouterr().err.splitlines()
        assert line in error[-1]
    long = result(tmp_path, {}, load(80, seed=1, rate=5.0, prompt=4000.0), "long")
    with pytest.raises(InputError, match="get no answer in the simulation"):
        read_run(long).simulated(api.resolve(server(max_model_len=2000)))
