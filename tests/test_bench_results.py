"""Results of benchmarks: read as traces without a mapping, and what they measured; rows of our own in each shape."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_prefix_tree import shared_by_tree
from tests.test_readers import complaint, write
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.load import load
from workloads.readers import read
from workloads.readers.measured import Measured, measured

RUN = {
    "date": "20261101-101010",
    "backend": "vllm",
    "num_prompts": 3,
    "request_rate": "inf",
    "max_concurrency": None,
    "duration": 4.1,
    "completed": 2,
    "total_input_tokens": 300,
    "request_throughput": 0.5,
    "total_token_throughput": 80.0,
    "mean_ttft_ms": 50.0,
    "p99_ttft_ms": 60.0,
}
DETAILS = {
    "input_lens": [100, 200, 7],
    "output_lens": [3, 1, 0],
    "ttfts": [0.05, 0.06, 0.0],
    "itls": [[0.01, 0.03], [], []],
    "start_times": [812.25, 811.75, 812.5],
    "generated_texts": ["a secret", "b", ""],
    "errors": ["", "", "Traceback: a secret"],
}
SGLANG = {**RUN, "total_throughput": 80.0, "mean_e2e_latency_ms": 75.0}
OLDER = {name: values for name, values in DETAILS.items() if name != "start_times"}


def saved(path: Path, document: Any, indent: int | None = None) -> Path:
    path.write_text(json.dumps(document, indent=indent))
    return path


def lines(path: Path) -> str:
    return "\n".join(read(path).notes)


def truth(path: Path, **options: Any) -> Measured:
    found = measured(path, **options)
    assert found is not None
    return found


def same(found: np.ndarray, expected: list[float]) -> bool:
    return np.allclose(found, expected, rtol=1e-12, atol=0, equal_nan=True)


# ---- vLLM and SGLang ----


@pytest.mark.parametrize("indent", [None, 2])
def test_vllm_bench_serve(tmp_path: Path, indent: int | None) -> None:
    path = saved(tmp_path / "r.json", RUN | DETAILS, indent)
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [100, 200]
    assert workload.output_tokens.tolist() == [3, 1]
    assert workload.arrival_s.tolist() == [0.5, 0.0]
    assert not workload.prefix_identity
    assert "rows read 3 = requests 2 + skipped 1 (it failed: 1)" in workload.notes
    assert "start_times in s (the benchmark's perf_counter" in lines(path)
    assert "secret" not in repr(workload)


def test_what_vllm_measured(tmp_path: Path) -> None:
    found = truth(saved(tmp_path / "r.json", RUN | DETAILS))
    assert found.format == "vllm-bench"
    assert same(found.start_s, [0.5, 0.0])
    assert same(found.ttft_s, [0.05, 0.06])
    assert same(found.e2e_s, [0.09, 0.06])
    assert same(found.tpot_s, [0.02, np.nan])
    assert same(found.itl_s, [0.01, 0.03])
    assert (found.failed, found.summary["p99_ttft_ms"], "request_rate" in found.summary) == (1, 60.0, False)


def test_lists_alone_are_enough(tmp_path: Path) -> None:
    workload = read(saved(tmp_path / "r.json", {name: DETAILS[name] for name in ("input_lens", "output_lens")}))
    assert workload.prompt_tokens.tolist() == [100, 200]
    assert "skipped 1 (zero output: 1)" in workload.notes[1]


def test_what_newer_results_hold(tmp_path: Path) -> None:
    """vLLM's own latencies, SGLang's cached tokens, and a limit that makes the times of sending the server's."""
    newer = {"latencies": [0.5, 0.75, 0.0], "max_concurrency": 2}
    path = saved(tmp_path / "r.json", RUN | DETAILS | newer)
    assert same(truth(path).e2e_s, [0.5, 0.75])
    assert same(truth(path).tpot_s, [0.225, np.nan])
    assert "max_concurrency = 2: a request waited until one before it had ended" in lines(path)
    path = write(tmp_path / "s.jsonl", SGLANG | OLDER | {"cached_tokens": [64, 0, 0]})
    assert "the provider served 64 of 300 prompt tokens" in lines(path)
    embeddings = {name: DETAILS[name] for name in ("input_lens", "errors")}
    assert complaint(saved(tmp_path / "e.json", RUN | embeddings)).endswith("which generates nothing")


def test_a_result_without_rows_names_the_flag_and_keeps_its_aggregates(tmp_path: Path) -> None:
    path = saved(tmp_path / "r.json", RUN, indent=1)
    assert complaint(path).endswith("the benchmark writes a row a request with --save-detailed beside --save-result")
    found = truth(path)
    assert (len(found.output_tokens), found.summary["mean_ttft_ms"]) == (0, 50.0)
    assert "--output-details" in complaint(write(tmp_path / "s.jsonl", SGLANG))
    assert truth(tmp_path / "s.jsonl").summary["mean_e2el_ms"] == 75.0


def test_sglang_bench_serving(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", SGLANG | OLDER)
    workload = read(path)
    assert "format: sglang-bench because" in workload.notes[0]
    assert workload.prompt_tokens.tolist() == [100, 200]
    assert np.isnan(workload.arrival_s).all()
    assert "the file holds no times" in lines(path)
    assert "the benchmark sent them at request_rate = 'inf'" in lines(path)
    assert same(truth(path).ttft_s, [0.05, 0.06])
    assert np.isnan(truth(path).start_s).all()
    path = write(tmp_path / "two.jsonl", SGLANG | OLDER, SGLANG | OLDER)
    assert complaint(path) == "FILE: 2 runs, each with a clock of its own, expected one: keep one of them"


def test_lengths_without_times_need_a_rate_or_a_concurrency(tmp_path: Path) -> None:
    path = saved(tmp_path / "r.json", RUN | OLDER)
    with pytest.raises(InputError, match="holds no times"):
        load(WorkloadConfig(trace=str(path)))
    assert len(load(WorkloadConfig(trace=str(path), loop="concurrency", concurrency=1))) == 2
    assert np.isfinite(load(WorkloadConfig(trace=str(path), rate=2.0)).arrival_s).all()


def test_all_at_once_is_no_question_of_units(tmp_path: Path) -> None:
    """At an infinite request rate, a benchmark sends a thousand requests in milliseconds."""
    n = 1000
    details = {"input_lens": [9] * n, "output_lens": [2] * n, "start_times": [5 + i * 1e-5 for i in range(n)]}
    assert read(saved(tmp_path / "r.json", RUN | details)).arrival_s[-1] == pytest.approx(0.00999)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_lens": [3, 1]}, "row 1: output_lens = '2 entries', expected 3, as many as input_lens"),
        ({"input_lens": None}, "no input_lens: a result of aggregates only"),
        ({"output_lens": None}, "no output_lens: a benchmark of embeddings"),
        ({"input_lens": 3}, "row 1: input_lens = 3, expected a list of one entry a request"),
        ({"itls": {}}, "row 1: itls = {}, expected a list of one entry a request"),
        ({"input_lens": [100, True, 7]}, "row 2: input_lens = True, expected a whole number of at least 1"),
        ({"input_lens": [100, "2e9", 7]}, "row 2: input_lens = '2e9', expected at most 1000000000"),
        ({"output_lens": [1.5, 1, 0]}, "row 1: output_lens = 1.5, expected a whole number of at least 1"),
        ({"start_times": [1.0, -1.0, 2.0]}, "row 2: start_times = -1.0, expected a finite number of at least 0"),
        ({"errors": ["x", "x", "x"]}, "all 3 rows were skipped (it failed: 3)"),
    ],
)
def test_damaged_results(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in complaint(saved(tmp_path / "r.json", RUN | DETAILS | change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ttfts": ["soon", 1, 1]}, "row 1: ttft_s = 'soon', expected seconds of 0 or more"),
        ({"ttfts": [-1, 1, 1]}, "row 1: ttft_s = -1, expected seconds"),
        ({"itls": [[1, float("nan")], [], []]}, "row 1: e2e_s = nan, expected seconds"),
    ],
)
def test_damaged_measurements(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = saved(tmp_path / "r.json", RUN | DETAILS | change)
    with pytest.raises(InputError) as problem:
        measured(path)
    assert words in str(problem.value)


def test_without_streaming_there_is_no_ttft(tmp_path: Path) -> None:
    found = truth(saved(tmp_path / "r.json", RUN | DETAILS | {"ttfts": [0.0] * 3, "itls": [[]] * 3}))
    assert np.isnan(found.ttft_s).all()
    assert np.isnan(found.e2e_s).all()
    assert not len(found.itl_s)


def test_packed_results_are_the_same(tmp_path: Path) -> None:
    plain = read(saved(tmp_path / "r.json", RUN | DETAILS))
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(json.dumps(RUN | DETAILS).encode()))
    assert read(tmp_path / "r.json.gz").arrival_s.tolist() == plain.arrival_s.tolist()


# ---- guidellm ----

OLD = {
    "args": {"strategy": {"type_": "constant", "rate": 2.0}},
    "request_totals": {"successful": 2, "errored": 1, "incomplete": 1, "total": 4},
    "requests": {
        "successful": [
            {
                "prompt": "a secret",
                "prompt_tokens": 100,
                "output_tokens": 11,
                "start_time": 1700000001.5,
                "end_time": 1700000002.5,
                "request_latency": 1.0,
                "time_to_first_token_ms": 200.0,
                "inter_token_latency_ms": 80.0,
            },
            {"prompt_tokens": 300, "output_tokens": 20, "start_time": 1700000001.0, "end_time": 1700000003.0},
        ],
        "errored": [{"prompt_tokens": 5, "output_tokens": None, "error": "x", "start_time": 1700000002.0}],
        "incomplete": [{"prompt_tokens": 5, "output_tokens": 1, "error": "x", "start_time": 1700000002.0}],
    },
}
NEW = {
    "config": {"strategy": {"type_": "synchronous"}},
    "requests": {
        "successful": [
            {
                "info": {"conversation_id": "c", "timings": {"request_start": 1700000010.0}},
                "input_metrics": {"text_tokens": 300, "total_tokens": 300, "cached_tokens": 96},
                "output_metrics": {"total_tokens": 30},
                "request_start_time": 1700000010.0,
                "request_latency": 2.0,
                "time_to_first_token_ms": 100.0,
            }
        ],
        "errored": [],
        "incomplete": None,
    },
}


def test_guidellm_until_0_3(tmp_path: Path) -> None:
    path = saved(tmp_path / "benchmarks.json", {"benchmarks": [OLD]}, indent=1)
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [100, 300]
    assert workload.arrival_s.tolist() == [0.5, 0.0]
    assert workload.class_names == ("constant 2",)
    reasons = "it failed: 1, it was cut off at the end of its benchmark: 1"
    assert f"rows read 4 = requests 2 + skipped 2 ({reasons})" in workload.notes
    found = truth(path)
    assert same(found.ttft_s, [0.2, np.nan])
    assert same(found.tpot_s, [0.08, np.nan])
    assert same(found.e2e_s, [1.0, 2.0])


def test_guidellm_since_0_4(tmp_path: Path) -> None:
    document = {"metadata": {"guidellm_version": "0.8.1"}, "config": {}, "benchmarks": [NEW, OLD]}
    path = saved(tmp_path / "benchmarks.json", document)
    workload = read(path)
    assert workload.prompt_tokens.tolist() == [300, 100, 300]
    assert workload.arrival_s.tolist() == [9.0, 0.5, 0.0]
    assert [workload.class_names[i] for i in workload.column("class_id")] == ["synchronous", *["constant 2"] * 2]
    assert "'synchronous': a request waited until one before it had ended" in lines(path)
    assert "the provider served 96 of 300 prompt tokens (32.0%) from its cache" in lines(path)
    with pytest.raises(InputError, match="2 runs, expected the name of one: 'synchronous', 'constant 2'"):
        measured(path)
    found = truth(path, run="synchronous")
    assert same(found.tpot_s, [1.9 / 29])
    assert len(truth(path, run="constant 2").output_tokens) == 2


def test_a_sample_of_requests_is_no_trace(tmp_path: Path) -> None:
    sample = OLD | {"request_totals": {"successful": 300}}
    assert "holds a sample of 2 of its 300 successful requests" in complaint(
        saved(tmp_path / "b.json", {"benchmarks": [sample]})
    )


@pytest.mark.parametrize(
    ("benchmarks", "words"),
    [
        ([], "its benchmarks hold no requests"),
        ([{"config": {"strategy": {}}, "requests": {"successful": {}}}], "its benchmarks hold no requests"),
        ([NEW | {"requests": {"successful": ["a"]}}], "expected an object"),
        ([NEW | {"requests": {"successful": 5}}], "requests.successful = 5, expected a list"),
        ([NEW | {"requests": {"successful": [{"prompt_tokens": None, "output_tokens": 3}]}}], "no prompt tokens"),
    ],
)
def test_damaged_guidellm(tmp_path: Path, benchmarks: list[Any], words: str) -> None:
    document = {"metadata": {"guidellm_version": "0.8.1"}, "config": {}, "benchmarks": benchmarks}
    assert words in complaint(saved(tmp_path / "b.json", document))


# ---- aiperf ----


def record(start_ns: int, phase: str = "profiling", **changed: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "session_num": 0,
            "x_correlation_id": "c",
            "request_start_ns": start_ns,
            "benchmark_phase": phase,
            "was_cancelled": False,
        },
        "metrics": {
            "request_latency": {"value": 1.0, "unit": "sec"},
            "time_to_first_token": {"value": 50.0, "unit": "ms"},
            "inter_token_latency": {"value": 9500.0, "unit": "us"},
            "inter_chunk_latency": {"value": [9.0, 10.0], "unit": "ms"},
            "usage_prompt_tokens": {"value": 510, "unit": "tokens"},
            "usage_prompt_cache_read_tokens": {"value": 255, "unit": "tokens"},
            "input_sequence_length": {"value": 500, "unit": "tokens"},
            "output_sequence_length": {"value": 101, "unit": "tokens"},
        },
        "error": None,
    } | changed


def test_aiperf_records(tmp_path: Path) -> None:
    start = 1_756_800_000_000_000_000
    path = write(
        tmp_path / "profile_export.jsonl",
        record(start - 10**9, phase="warmup"),
        record(start + 500_000_000),
        record(start),
        record(start, metrics={}, error={"code": 500, "message": "a secret"}),
    )
    workload = read(path)
    workload.check()
    assert workload.arrival_s.tolist() == [0.5, 0.0]
    assert workload.output_tokens.tolist() == [101, 101]
    assert workload.column("session_id").tolist() == [0, 0]
    assert "(it failed: 1, it was of the warm-up: 1)" in workload.notes[1]
    assert "the server counted 1,020 prompt tokens where the benchmark counted 1,000" in lines(path)
    assert "the provider served 510 of 1,020 prompt tokens (50.0%) from its cache" in lines(path)
    found = truth(path)
    assert same(found.itl_s, [0.009, 0.01] * 2)
    assert same(found.ttft_s, [0.05] * 2)
    assert same(found.tpot_s, [0.0095] * 2)
    assert same(found.e2e_s, [1.0] * 2)
    assert found.failed == 1


def test_aiperf_aggregates_name_the_file_with_rows(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "profile_export_aiperf.json",
        {
            "request_throughput": {"unit": "requests/sec", "avg": 2.5},
            "request_latency": {"unit": "ms", "avg": 1000.0, "p50": 900.0, "p99": 2000.0},
            "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 49.0, "p99": 80.0},
        },
        indent=2,
    )
    assert "the requests are in profile_export.jsonl" in complaint(path)
    (tmp_path / "profile_export_aiperf.csv").write_text("Metric,avg,min,max\nTime to First Token (ms),55.71,51,62\n")
    assert "the requests are in profile_export.jsonl" in complaint(tmp_path / "profile_export_aiperf.csv")
    assert truth(path).summary["p99_e2el_ms"] == 2000.0


def test_a_long_configuration_before_the_benchmarks(tmp_path: Path) -> None:
    """A real file's benchmarks begin beyond what sniffing sees."""
    document = {"metadata": {"guidellm_version": "0.8.1"}, "config": {"x": "y" * 100_000}, "benchmarks": [NEW]}
    assert read(saved(tmp_path / "b.json", document)).prompt_tokens.tolist() == [300]


def test_inputs_of_aiperf_are_texts(tmp_path: Path) -> None:
    """Two turns of a session: the second prompt begins with the first."""
    told = [{"role": "user", "content": "a secret word or two, said at some length"}]
    more = [*told, {"role": "user", "content": "and a little more"}]
    payloads = [{"messages": messages, "stream": True, "max_tokens": 5} for messages in (told, more)]
    inputs = {"data": [{"session_id": "s", "payloads": payloads}, {"session_id": "t", "payloads": payloads[:1]}]}
    path = saved(tmp_path / "inputs.json", inputs, indent=1)
    workload = read(path, answer_tokens=7)
    assert "format: aiperf-inputs because" in workload.notes[0]
    assert workload.output_tokens.tolist() == [7, 7, 7]
    assert workload.prompt_tokens[0] == workload.prompt_tokens[2] < workload.prompt_tokens[1]
    role_of_answer = 4  # message_tokens: where one prompt asks for its answer, the other has a message more
    assert shared_by_tree(workload.tree, workload.leaf, 0, 1) == workload.prompt_tokens[0] - role_of_answer
    assert np.isnan(workload.arrival_s).all()
    assert "secret" not in repr(workload)
    assert read(path).output_tokens.tolist() == [5, 5, 5]
    line = complaint(saved(path, {"data": [{"session_id": "s", "payloads": "a secret"}]}))
    assert "payloads = 'a text', expected a list of requests" in line


# ---- inference-perf ----


def lifecycle(start: float, info: dict[str, Any], error: Any = None) -> dict[str, Any]:
    return {
        "start_time": start,
        "end_time": start + 2,
        "request": "a secret",
        "response": "b",
        "info": info,
        "error": error,
    }


def test_inference_perf(tmp_path: Path) -> None:
    newer = {
        "request_metrics": {"text": {"input_tokens": 100}},
        "response_metrics": {
            "output_tokens": 3,
            "output_token_times": [1000.75, 1001.0, 1001.5],
            "server_usage": {"prompt_tokens_details": {"cached_tokens": 64}},
        },
    }
    older = {"input_tokens": 10, "output_tokens": 2, "output_token_times": []}
    path = saved(
        tmp_path / "per_request_lifecycle_metrics.json",
        [lifecycle(1000.5, newer), lifecycle(1000.0, older), lifecycle(1001.0, older, {"error_type": "T"})],
    )
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [100, 10]
    assert workload.arrival_s.tolist() == [0.5, 0.0]
    assert "served 64 of 100" in lines(path)
    found = truth(path)
    assert same(found.ttft_s, [0.25, np.nan])
    assert same(found.itl_s, [0.25, 0.5])
    assert same(found.e2e_s, [2.0, 2.0])


def test_aggregates_of_inference_perf(tmp_path: Path) -> None:
    latency = {"time_to_first_token": {"mean": 0.05, "median": 0.04, "p99": 0.2}, "request_latency": {"p50": 1.5}}
    report = {
        "load_summary": {"count": 9, "send_duration": 4.5},
        "successes": {"count": 8, "latency": latency, "throughput": {"requests_per_sec": 2.0}},
        "failures": {"count": 1},
    }
    path = saved(tmp_path / "summary_lifecycle_metrics.json", report, 1)
    assert "the requests are in per_request_lifecycle_metrics.json" in complaint(path)
    assert truth(path).summary == {
        "duration": 4.5,
        "completed": 8,
        "failed": 1,
        "request_throughput": 2.0,
        "mean_ttft_ms": 50.0,
        "median_ttft_ms": 40.0,
        "p99_ttft_ms": 200.0,
        "median_e2el_ms": 1500.0,
    }


def test_a_trace_measures_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]})
    assert measured(path) is None
