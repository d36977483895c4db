"""A benchmark's command as a scenario: each tool's own lengths and arrivals; and a run held against its result."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest

from kvcast.benchmarks import as_toml, document_of, read_benchmark
from kvcast.benchmarks.against import compare, read_truth
from kvcast.cli import main
from kvcast.config import scenario_from_doc
from workloads import mix
from workloads.errors import InputError

VLLM = "vllm bench serve --ignore-eos"
SGLANG = "python3 -m sglang.bench_serving --backend sglang"


def question(command, result=None):
    return read_benchmark(command, result)


def drawn(command):
    """The mix that a command comes to, generated."""
    return mix.build(scenario_from_doc(document_of(question(command))).workload, 0)


@pytest.mark.parametrize(
    ("command", "prompt", "output"),
    [
        (f"{VLLM} --random-input-len 1000 --random-output-len 100 --random-range-ratio 0.25", (750, 1250), (75, 125)),
        (f"{VLLM} --random-input 1000 --random-output 100", (1000, 1000), (100, 100)),
        (f'{VLLM} --random-range-ratio \'{{"input": 0.5, "output": 0}}\'', (512, 1536), (128, 128)),
        (f"{SGLANG} --dataset-name random --random-input 1000 --random-output 100", (1, 1000), (1, 100)),
        (f"{SGLANG} --dataset-name random-ids --random-range-ratio 0.5", (512, 1024), (512, 1024)),
        (f"{SGLANG} --dataset-name random --random-range-ratio 1", (1024, 1024), (1024, 1024)),
    ],
)
def test_lengths_are_every_whole_number_of_each_tools_own_range(command, prompt, output):
    workload = drawn(f"{command} --num-prompts 4000")
    assert len(workload) == 4000
    for tokens, (low, high) in ((workload.prompt_tokens, prompt), (workload.output_tokens, output)):
        assert low <= tokens.min() <= low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) <= tokens.max() <= high
        assert tokens.mean() == pytest.approx((low + high) / 2, rel=0.03)


def test_everybody_at_once_a_rate_and_a_cap_are_three_loads():
    at_once = document_of(question(f"{VLLM} --num-prompts 64"))["workload"]
    assert (at_once["loop"], at_once["concurrency"], at_once["requests"]) == ("concurrency", 64, 64)
    capped = document_of(question(f"{VLLM} --num-prompts 64 --max-concurrency 8"))["workload"]
    assert (capped["concurrency"], "paced" in capped) == (8, False)
    both = document_of(question(f"{VLLM} --num-prompts 64 --max-concurrency 8 --request-rate 2"))["workload"]
    assert (both["concurrency"], both["paced"], both["class"][0]["rate"]) == (8, True, 2.0)
    rate = drawn(f"{VLLM} --num-prompts 64 --request-rate 2")
    assert rate.arrival_s[-1] == pytest.approx(32.0)  # vLLM stretches its gaps to requests / rate
    assert drawn(f"{SGLANG} --dataset-name random --request-rate 2 --num-prompts 64").arrival_s[-1] != 32.0


def test_burstiness_is_the_shape_of_the_gaps():
    workload = drawn(f"{VLLM} --request-rate 10 --burstiness 0.25 --num-prompts 20000")
    gaps = np.diff(workload.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)  # 1 / sqrt(0.25)
    even = np.diff(drawn(f"{VLLM} --request-rate 10 --burstiness inf --num-prompts 200").arrival_s)
    assert even.std() / even.mean() < 0.02
    ramp = drawn(
        f"{VLLM} --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 9 --num-prompts 4000"
    ).arrival_s
    assert ramp[-1] == pytest.approx(4000 * np.log(9) / 8, rel=0.05)  # the mean of 1 / rate from 1 to 9


def test_prefixes_are_shared_as_the_data_sets_share_them():
    one = drawn(f"{VLLM} --random-prefix-len 256 --random-input-len 64 --num-prompts 100")
    assert set(one.prompt_tokens) == {320}
    assert one.tree.end.max() == 256
    many = question(f"{VLLM} --dataset-name prefix_repetition --prefix-repetition-num-prefixes 7 --num-prompts 100")
    assert many.requests == 98
    assert many.layers[0] == {"name": "prefix", "scope": "project", "tokens": {"value": 256.0}, "items": 7}
    groups = question(f"{SGLANG} --dataset-name generated-shared-prefix --gsp-num-groups 4 --gsp-num-turns 3")
    assert (groups.requests, groups.turns, groups.layers[0]["items"]) == (4 * 16 * 3, {"value": 3.0}, 4)


GUIDELLM = "guidellm benchmark --target http://localhost:8000 --data prompt_tokens=256,output_tokens=128"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (f"{GUIDELLM} --rate-type concurrent --rate 8 --max-requests 100", {"concurrency": 8, "requests": 100}),
        (f"{GUIDELLM} --profile synchronous --max-requests 10", {"concurrency": 1, "requests": 10}),
        (f"{GUIDELLM} --profile throughput --max-requests 10", {"concurrency": 10, "requests": 10}),
        (f"{GUIDELLM} --rate-type poisson --rate 5 --max-seconds 30", {"duration_s": 30.0}),
        (
            "guidellm benchmark run --profile kind=constant,rate=4 --constraint kind=max_requests,count=50"
            ' --data \'{"prompt_tokens": 256, "output_tokens": 128}\'',
            {"requests": 50},
        ),
        ("aiperf profile -m m --concurrency 16 --isl 1000 --osl 200 --request-count 320", {"concurrency": 16}),
        ("genai-perf profile -m m --request-rate 4 --isl 100 --osl 10 --request-count 50", {"requests": 50}),
    ],
)
def test_the_other_tools_loads(command, keys):
    document = document_of(question(command))
    assert keys.items() <= document["workload"].items()
    scenario_from_doc(tomllib.loads(as_toml(question(command))))


def test_normal_lengths_keep_their_mean_and_spread_and_few_prompts_come_again():
    workload = drawn("aiperf profile --concurrency 4 --isl 1000 --isl-stddev 100 --osl 50 --request-count 90")
    assert workload.prompt_tokens.mean() == pytest.approx(1000, rel=0.05)
    assert workload.prompt_tokens.std() == pytest.approx(100, rel=0.3)
    assert len(workload) == 90
    data = "prompt_tokens=256,prompt_tokens_min=200,prompt_tokens_max=300,output_tokens=64,output_tokens_stdev=9"
    guided = question(f"guidellm benchmark --rate-type poisson --rate 2 --max-requests 9 --data {data}")
    assert guided.layers[0]["tokens"] == {"kind": "uniform", "low": 199.5, "high": 300.5}
    assert np.mean(guided.output["values"]) == pytest.approx(64, abs=0.5)
    for command, scope, items in (
        ("aiperf profile --request-count 320 --num-dataset-entries 10", "project", 10),
        ("aiperf profile --request-count 320", "dynamic", None),  # as many as requests
        ("genai-perf profile --request-count 320", "project", 100),
        ("genai-perf profile --request-count 80", "dynamic", None),
    ):
        layer = question(f"{command} --concurrency 4 --isl 1000").layers[0]
        assert (layer["scope"], layer.get("items")) == (scope, items)
    sessions = question("aiperf profile --concurrency 4 --num-conversations 20 --conversation-turn-mean 3")
    assert (sessions.requests, sessions.turns) == (60, {"value": 3.0})


def test_what_is_not_taken_over_is_listed_once_and_secrets_are_not():
    asked = question(f"{VLLM} --lora-modules a b --header x=secret --save-result --port 8000 --use-beam-search")
    assert asked.not_taken == ["--lora-modules a b", "--use-beam-search"]
    assert "secret" not in as_toml(asked)
    assert as_toml(asked).count("--use-beam-search") == 1
    assert any("--ignore-eos" in note for note in question("vllm bench serve").notes)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm bench serve --dataset-name sharegpt --dataset-path x.json", "its lengths are in texts"),
        (SGLANG, "--dataset-name sharegpt"),
        ("vllm bench throughput --model x", "expected vllm bench serve"),
        ("vllm serve x", "import-bench 'vllm serve x': expected"),
        (f"{VLLM} --request-rate fast", "--request-rate 'fast', expected a number"),
        (f"{VLLM} --random-range-ratio 1.5", "--random-range-ratio 1.5: expected 0 to below 1"),
        (f"{VLLM} --random 5", "--random is short for"),
        (f"{GUIDELLM} --rate-type sweep --max-seconds 10", "is several benchmarks"),
        (f"{GUIDELLM} --rate-type poisson --rate 1 2 3 --max-seconds 10", "with 3 rates is several"),
        (f"{VLLM} --num-prompts 0", "requests = 0: expected 1 or more"),
        ("aiperf profile --input-file x.jsonl --concurrency 2", "its lengths are in no command"),
    ],
)
def test_what_cannot_be_taken_is_one_line(command, said):
    with pytest.raises(InputError, match=said) as refused:
        document_of(question(command))
    assert "\n" not in str(refused.value)


def test_what_the_range_ratio_meant_is_told_by_the_prompts_measured(tmp_path):
    command = "python benchmarks/benchmark_serving.py --random-input-len 1000 --random-range-ratio 0.8 --num-prompts 20"
    assert any("--result tells which" in note for note in question(command).notes)
    for tokens, low, high in (
        (20 * 900, 799.5, 1000.5),
        (20 * 1000, 198.5, 1800.5),
    ):  # 1000 x (1 - 0.8) is a little below 200, in vLLM too
        asked = question(command, result(tmp_path, total_input_tokens=tokens))
        assert (asked.layers[0]["tokens"]["low"], asked.layers[0]["tokens"]["high"]) == (low, high)
        assert not any("tells which" in note for note in asked.notes)


# -- a run against its result ------------------------------------------------------------------------------------------


def result(tmp_path, **more):
    """The file of `vllm bench serve --save-result` without --save-detailed."""
    file = tmp_path / "result.json"
    file.write_text(
        json.dumps(
            {"date": "20261101-101010", "backend": "vllm", "model_id": "m", "num_prompts": 20, "duration": 10.0}
            | {"completed": 20, "total_input_tokens": 20 * 512, "total_output_tokens": 20 * 16}
            | {"request_throughput": 2.0, "output_throughput": 32.0, "total_token_throughput": 1056.0}
            | {"mean_ttft_ms": 40.0, "median_ttft_ms": 38.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 8.0}
            | more
        )
    )
    return file


def test_a_run_is_held_against_the_aggregates_of_a_result(tmp_path, capsys):
    measured, scenario = result(tmp_path), tmp_path / "S.toml"
    command = "vllm bench serve --random-input-len 512 --random-output-len 16 --num-prompts 20 --request-rate 2"
    launch = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64"
    argv = ["import-bench", command, "--from-launch", launch, "--set", "hardware.profile=roofline:h200"]
    assert main([*argv, "--result", str(measured), "--out", str(scenario)]) == 0
    assert "without --ignore-eos" in capsys.readouterr().err
    assert "max_num_seqs = 64" in scenario.read_text()
    out = tmp_path / "run"
    flags = ["--no-baseline", "--no-model-error", "--out", str(out)]
    assert main(["run", str(scenario), "--against", str(measured), *flags]) == 0
    printed = capsys.readouterr().out
    assert "TTFT median, ms" in printed
    compared = json.loads((out / "summary.json").read_text())["measured"]
    rows = {row["metric"]: row for row in compared["rows"]}
    assert (rows["median_ttft_ms"]["measured"], rows["completed"]["error"]) == (38.0, 0.0)
    ours = rows["median_ttft_ms"]
    assert ours["error"] == pytest.approx(ours["simulated"] / 38.0 - 1)
    assert "median_itl_ms" not in rows  # not measured
    assert rows["duration"]["simulated"] == pytest.approx(10.0, rel=0.1)
    assert [note[:20] for note in compared["notes"]] == ["measured at a client"]
    assert main(["report", str(out), "--html", str(tmp_path / "r.html")]) == 0
    assert "Measured and simulated" in (tmp_path / "r.html").read_text()


def test_another_load_is_said_and_a_file_without_times_is_one_line(tmp_path, capsys):
    import kvcast

    command = "vllm bench serve --random-input-len 512 --random-output-len 16 --num-prompts 20 --request-rate 2"
    document = document_of(question(command)) | {"hardware": {"profile": "roofline:h200"}}
    report = kvcast.simulate(scenario_from_doc(document))
    notes = compare(read_truth(result(tmp_path, total_output_tokens=200, failed=3)), report)["notes"]
    assert notes[0].startswith("another load: output tokens differ by 60.0 %")
    assert notes[1].startswith("3 requests of the benchmark failed")
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [1]}\n')
    with pytest.raises(InputError, match="holds no measured times"):
        read_truth(trace)


@pytest.mark.parametrize(
    ("card", "engine", "limits"),
    [
        ("rtx4090", {"kv_blocks": 2588, "max_num_seqs": 256, "max_model_len": 32768}, {"ttft": 0.02, "tpot": 0.02}),
        ("rtxpro6000", {"max_num_seqs": 128}, {"ttft": 0.11, "tpot": 0.03}),
    ],
)
def test_real_runs_of_vllm_are_met(data_dir, card, engine, limits):
    """300 ShareGPT requests on vLLM 0.19; the 4090's TTFT is a queue of a minute, within 1.5 %."""
    import kvcast

    folder = data_dir / "measured" / f"{card}_llama-3.1-8b"
    document = {
        "workload": {"trace": str(data_dir / "measured" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")},
        "hardware": {"profile": str(folder / "kernels")},
        "engine": {"max_num_batched_tokens": 2048, **engine},
    }
    report = kvcast.simulate(scenario_from_doc(document))
    compared = compare(read_truth(folder / "vllm_run" / "requests.jsonl"), report)
    rows = {row["metric"]: row for row in compared["rows"]}
    for key, limit in limits.items():
        for stat in ("mean", "median", "p99"):
            assert abs(rows[f"{stat}_{key}_ms"]["error"]) < limit
    assert rows["total_output_tokens"]["error"] == 0
    assert any("engine's own clock" in note for note in compared["notes"])


ODD = ("", "0", "-1", "inf", "nan", "1e400", "abc", "{}", "9" * 40, "x" * 300, "'{\"a\": null}'", "\x00", "a=b", "[1,")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_stands_in_a_command_it_is_read_or_refused_in_one_line(seed):
    from kvcast.planner.flag_names import kinds
    from kvcast.planner.launch import read_command

    rng = np.random.default_rng(seed)
    other = ("--profile", "--rate", "--data", "--max-requests", "--max-seconds", "--concurrency", "--isl", "--turns")
    starts = [
        ("vllm serve m", tuple(kinds("vllm")), read_command),
        ("python -m sglang.launch_server", tuple(kinds("sglang")), read_command),
        ("vllm bench serve", tuple(kinds("vllm-bench")), lambda c: as_toml(question(c))),
        ("python -m sglang.bench_serving", tuple(kinds("sglang-bench")), lambda c: as_toml(question(c))),
        ("guidellm benchmark", other, lambda c: as_toml(question(c))),
        ("aiperf profile", other, lambda c: as_toml(question(c))),
    ]
    for _ in range(150):
        start, flags, read = starts[rng.integers(len(starts))]
        words = " ".join(f"{rng.choice(flags)} {rng.choice(ODD)}" for _ in range(rng.integers(1, 6)))
        try:
            read(f"{start} {words}")
        except InputError as refused:
            assert "\n" not in str(refused)  # noqa: PT017


@pytest.mark.parametrize(
    "command",
    [
        "vllm bench serve --model m --dataset-name burstgpt --dataset-path BurstGPT.csv --request-rate 5",
        "aiperf profile -m m --custom-dataset-type mooncake_trace --input-file trace.jsonl --fixed-schedule",
    ],
)
def test_a_file_that_is_a_trace_itself_is_not_called_text(command):
    with pytest.raises(InputError, match=r"a scenario with \[workload\] trace = that file") as refused:
        read_benchmark(command)
    assert "tokenizer" not in str(refused.value)
