"""Logs of gateways, tracing and other simulators, read without a mapping: rows of our own in each documented shape."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_bench_results import lines, same, saved, truth
from tests.test_prefix_tree import shared_by_tree
from tests.test_readers import complaint, write
from workloads.readers import read
from workloads.readers.measured import measured
from workloads.transform import with_concurrency


def table(path: Path, *rows: dict[str, Any]) -> Path:
    """A CSV of rows, objects as JSON within a field and None as nothing."""
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({n: json.dumps(v) if isinstance(v, dict) else v for n, v in row.items()})
    return path


# ---- LiteLLM ----


def spend(second: float, **changed: Any) -> dict[str, Any]:
    return {
        "request_id": "chatcmpl-1",
        "call_type": "acompletion",
        "spend": 0.0001,
        "prompt_tokens": 1000,
        "completion_tokens": 101,
        "startTime": f"2026-06-23T06:05:{second:09.6f}+00:00",
        "completionStartTime": f"2026-06-23T06:05:{second + 0.25:09.6f}+00:00",
        "endTime": f"2026-06-23T06:05:{second + 1.25:09.6f}+00:00",
        "model": "gpt",
        "model_group": "",
        "metadata": {},
        "cache_hit": "False",
        "status": "success",
        "session_id": "",
    } | changed


CACHED = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 512}}}
SPENT = (
    spend(2, metadata=CACHED),
    spend(1.147785, model_group="small", completionStartTime="2026-06-23T06:05:02.397785+00:00"),
    spend(3, status="", metadata={"status": "failure"}),
    spend(3, call_type="aembedding", completion_tokens=0),
    spend(3, cache_hit="True"),
    spend(3, completion_tokens=0),
)


@pytest.mark.parametrize("form", ["csv", "json", "pages", "jsonl", "text"])
def test_litellm_spend_logs(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"spend.{form}"
    if form == "csv":
        table(path, *SPENT)
    elif form == "json":
        saved(path, SPENT, indent=1)
    elif form == "pages":
        saved(path, {"data": SPENT, "total": 6, "page": 1})
    elif form == "jsonl":
        write(path, *SPENT)
    else:
        write(path, *[row | {"metadata": json.dumps(row["metadata"]), "prompt_tokens": "1000"} for row in SPENT])
    workload = read(path)
    workload.check()
    assert "format: litellm because" in workload.notes[0]
    assert workload.prompt_tokens.tolist() == [1000, 1000]
    assert workload.arrival_s.tolist() == [0.852215, 0.0]
    assert [workload.class_names[i] for i in workload.column("class_id")] == ["gpt", "small"]
    reasons = "LiteLLM's own cache answered it, and no model: 1, it failed: 1, its call_type is no generation: 1"
    assert f"rows read 6 = requests 2 + skipped 4 ({reasons}, zero output: 1)" in workload.notes
    assert "the provider served 512 of 1,000 prompt tokens (51.2%) from its cache" in lines(path)
    assert "the hit rate is 0" in lines(path)
    found = truth(path)
    assert same(found.ttft_s, [0.25, np.nan])
    assert same(found.e2e_s, [1.25, 1.25])
    assert same(found.tpot_s, [0.01, np.nan])


def test_dates_of_other_zones(tmp_path: Path) -> None:
    times = ("2026-06-23 08:05:00+02:00", "2026-06-23T06:05:01.5Z", "2026-06-23 06:05:00.25")
    assert read(table(tmp_path / "s.csv", *[spend(0, startTime=time) for time in times])).arrival_s.tolist() == [
        0.0,
        1.5,
        0.25,
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"startTime": None}, "row 3: startTime = "),
        ({"startTime": "yesterday"}, "row 3: startTime = 'yesterday', expected"),
        ({"startTime": "2026-13-23T06:05:00Z"}, "row 3: startTime = '2026-13-23T06:05:00Z', expected"),
        ({"prompt_tokens": -5}, "row 3: prompt_tokens = '-5', expected a whole number of at least 1"),
        ({"completion_tokens": "many"}, "row 3: completion_tokens = 'many', expected a whole number"),
    ],
)
def test_damaged_spend_logs(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in complaint(table(tmp_path / "s.csv", spend(1), spend(2) | change))


def test_numbers_for_dates_are_a_question(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", spend(1, startTime=1_750_000_000_500), spend(1, startTime=1_750_000_000_000))
    assert complaint(path).endswith("expected a date with a time, or timestamp_unit = s, ms, us or ns")
    assert read(path, timestamp_unit="ms").arrival_s.tolist() == [0.5, 0.0]


# ---- Langfuse ----


def generation(second: float, details: dict[str, Any] | None, **changed: Any) -> dict[str, Any]:
    return {
        "id": "o",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": f"2026-06-23T06:05:{second:06.3f}Z",
        "completionStartTime": f"2026-06-23T06:05:{second + 0.5:06.3f}Z",
        "endTime": f"2026-06-23T06:05:{second + 2.5:06.3f}Z",
        "model": "m",
        "level": "DEFAULT",
        "input": "a secret",
        "usageDetails": details,
    } | changed


PARTS = {"input": 100, "input_cached_tokens": 50, "output": 20, "output_reasoning_tokens": 5, "total": 175}
OBSERVED = (
    generation(1.5, PARTS),
    generation(0, {"input": 1000, "output": 20, "cache_read_input_tokens": 800, "total": 1020}, model="n"),
    generation(2, PARTS, type="SPAN"),
    generation(2, PARTS, level="ERROR"),
    generation(2, {}),
)
SNAKE = {
    "traceId": "trace_id",
    "startTime": "start_time",
    "completionStartTime": "completion_start_time",
    "endTime": "end_time",
    "usageDetails": "usage_details",
    "model": "provided_model_name",
}


@pytest.mark.parametrize("form", ["pages", "json", "jsonl", "csv", "snake", "traces"])
def test_langfuse_observations(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"o.{form}"
    if form == "pages":
        saved(path, {"data": OBSERVED, "meta": {"page": 1}})
    elif form == "json":
        saved(path, OBSERVED, indent=2)
    elif form == "jsonl":
        write(path, *OBSERVED)
    elif form == "csv":
        table(path, *OBSERVED)
    elif form == "snake":
        write(path, *[{SNAKE.get(name, name): value for name, value in row.items()} for row in OBSERVED])
    else:
        saved(path, [{"id": "t", "timestamp": "x", "observations": OBSERVED}])
    workload = read(path)
    workload.check()
    assert "format: langfuse because" in workload.notes[0]
    assert workload.prompt_tokens.tolist() == [150, 1000]
    assert workload.output_tokens.tolist() == [25, 20]
    assert workload.arrival_s.tolist() == [1.5, 0.0]
    assert workload.class_names == ("m", "n")
    assert "it failed: 1, it is no generation: 1, no output tokens recorded: 1" in workload.notes[1]
    assert "the provider served 850 of 1,150 prompt tokens" in lines(path)
    assert "secret" not in repr(workload)
    found = truth(path)
    assert same(found.ttft_s, [0.5, 0.5])
    assert same(found.tpot_s, [2 / 24, 2 / 19])


def test_langfuse_maps_of_clickhouse(tmp_path: Path) -> None:
    row = generation(1, None, usageDetails="{'input':100,'input_cached_tokens':50,'output':20,'total':170}")
    assert read(table(tmp_path / "o.csv", row)).prompt_tokens.tolist() == [150]


def test_langfuse_without_a_total_adds_its_parts(tmp_path: Path) -> None:
    """So does Langfuse; and older observations have `usage` alone."""
    parts = {"input": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output": 2}
    rows = generation(0, parts), generation(1, None, usage={"input": 7, "output": 3, "unit": "TOKENS"})
    workload = read(write(tmp_path / "o.jsonl", *rows))
    assert workload.prompt_tokens.tolist() == [105, 7]
    assert workload.output_tokens.tolist() == [2, 3]
    assert "the provider served 90 of 105" in "\n".join(workload.notes)


# ---- OpenTelemetry ----

START = 1_756_800_000_000_000_000


def otlp_value(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def span(number: int, parent: str, second: float, **attributes: Any) -> dict[str, Any]:
    return {
        "traceId": "t",
        "spanId": f"s{number}",
        "parentSpanId": parent,
        "name": "chat",
        "startTimeUnixNano": str(START + int(second * 1e9)),
        "endTimeUnixNano": str(START + int((second + 2) * 1e9)),
        "attributes": {f"gen_ai.{name}".replace("__", "."): value for name, value in attributes.items()},
        "status": {},
    }


SPANS = (
    span(0, "", 0, operation__name="invoke_agent", usage__input_tokens=999, usage__output_tokens=99),
    span(
        1,
        "s0",
        1.5,
        operation__name="chat",
        request__model="m",
        usage__input_tokens=400,
        usage__output_tokens=41,
        usage__cache_read__input_tokens=256,
    ),
    span(2, "s1", 1.6, usage__prompt_tokens=400, usage__completion_tokens=41),
    span(
        3,
        "s0",
        1,
        usage__prompt_tokens=500,
        usage__completion_tokens=51,
        latency__time_to_first_token=0.5,
        latency__e2e=1.0,
    ),
    span(4, "s0", 6, operation__name="chat", usage__input_tokens=5, usage__output_tokens=5) | {"status": {"code": 2}},
    span(5, "s0", 6, operation__name="embeddings", usage__input_tokens=5),
    span(6, "s0", 7, operation__name="execute_tool"),
)


def otlp(spans: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    told = [s | {"attributes": [{"key": k, "value": otlp_value(v)} for k, v in s["attributes"].items()]} for s in spans]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": told}]}]}


@pytest.mark.parametrize("form", ["document", "lines", "spans", "span lines", "console"])
def test_opentelemetry_genai_spans(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t.json"
    if form == "document":
        saved(path, otlp(SPANS), indent=2)
    elif form == "lines":
        write(path, otlp(SPANS[:3]), otlp(SPANS[3:]))
    elif form == "spans":
        saved(path, {"spans": SPANS})
    elif form == "span lines":
        write(path, *SPANS)
    else:
        saved(path, [console(s) for s in SPANS], indent=4)
    workload = read(path)
    workload.check()
    assert "format: otel because" in workload.notes[0]
    assert workload.prompt_tokens.tolist() == [400, 500]
    assert workload.output_tokens.tolist() == [41, 51]
    assert workload.arrival_s.tolist() == [0.5, 0.0]
    assert workload.class_names == ("all", "m")
    assert workload.column("session_id").tolist() == [0, 0]
    reasons = "it failed: 1, it is inside another inference span, the same request: 1, it is no inference span: 3"
    assert f"rows read 7 = requests 2 + skipped 5 ({reasons})" in workload.notes
    assert "the provider served 256 of 400" in lines(path)
    found = truth(path)
    assert same(found.ttft_s, [np.nan, 0.5])
    assert same(found.e2e_s, [2.0, 1.0])
    assert same(found.tpot_s, [np.nan, 0.01])


def console(told: dict[str, Any]) -> dict[str, Any]:
    """A span as the console exporter of Python writes it: dates, a context, a parent."""
    since = int(told["startTimeUnixNano"]) - START
    return {
        "name": told["name"],
        "context": {"trace_id": "0x1", "span_id": told["spanId"]},
        "parent_id": told["parentSpanId"] or None,
        "start_time": f"2026-06-23T06:05:{since / 1e9:09.6f}Z",
        "end_time": f"2026-06-23T06:05:{since / 1e9 + 2:09.6f}Z",
        "status": {"status_code": "ERROR" if told["status"] else "UNSET"},
        "attributes": told["attributes"],
    }


def test_spans_without_an_inference_are_no_trace(tmp_path: Path) -> None:
    line = complaint(write(tmp_path / "t.jsonl", otlp((SPANS[0], SPANS[6]))))
    assert line.endswith("all 2 rows were skipped (it is no inference span: 2), expected at least one request")
    assert "the file holds no rows" in complaint(write(tmp_path / "e.jsonl", {"resourceSpans": []}))


def test_a_span_around_inference_spans_adds_them_up(tmp_path: Path) -> None:
    """As an agent's run that names no operation; an engine's span inside a client's that does is the same request."""
    calls = [
        span(i, "s0", i, operation__name="chat", usage__input_tokens=10 * i, usage__output_tokens=i) for i in (1, 2)
    ]
    path = write(tmp_path / "t.jsonl", span(0, "", 0, usage__input_tokens=30, usage__output_tokens=3), *calls)
    assert read(path).prompt_tokens.tolist() == [10, 20]
    assert "it adds up the inference spans inside it: 1" in lines(path)


def test_tempo_answers_in_batches(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.json", {"batches": otlp(SPANS)["resourceSpans"]})
    assert read(path).prompt_tokens.tolist() == [400, 500]


def test_a_circle_of_spans_ends(tmp_path: Path) -> None:
    one, two = (span(i, f"s{1 - i}", i, usage__input_tokens=5, usage__output_tokens=5) for i in (0, 1))
    assert "it adds up the inference spans inside it: 2" in complaint(write(tmp_path / "t.jsonl", one, two))


# ---- OpenAI batch ----


def test_openai_batch_output(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 22, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 11}}
    path = write(
        tmp_path / "out.jsonl",
        {"custom_id": "a", "response": {"status_code": 200, "body": {"model": "m", "usage": usage}}, "error": None},
        {
            "custom_id": "b",
            "response": {"status_code": 200, "body": {"usage": {"input_tokens": 9, "output_tokens": 5}}},
        },
        {"custom_id": "c", "response": {"status_code": 500, "body": {}}, "error": None},
        {"custom_id": "d", "response": None, "error": {"code": "batch_expired"}},
    )
    workload = read(path)
    assert workload.prompt_tokens.tolist() == [22, 9]
    assert workload.class_names == ("all", "m")
    assert np.isnan(workload.arrival_s).all()
    assert "(it failed: 2)" in workload.notes[1]
    assert "served 11 of 22" in lines(path)
    with_concurrency(workload, 1).check()
    assert measured(path) is None


def test_anthropic_batch_results(tmp_path: Path) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 7}
    path = write(
        tmp_path / "results.jsonl",
        {"custom_id": "a", "result": {"type": "succeeded", "message": {"model": "m", "usage": usage}}},
        {"custom_id": "b", "result": {"type": "errored", "error": {"type": "error"}}},
    )
    workload = read(path)
    assert workload.prompt_tokens.tolist() == [105]
    assert workload.output_tokens.tolist() == [7]
    odd = {"custom_id": "c", "result": {"type": "succeeded", "message": {"usage": "a secret"}}}
    assert "no output tokens recorded: 1" in complaint(write(tmp_path / "odd.jsonl", odd))
    assert "served 90 of 105" in lines(path)


def test_openai_batch_input_is_read_as_conversations(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 9}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    workload = read(write(tmp_path / "in.jsonl", row))
    assert "format: messages because" in workload.notes[0]
    assert workload.output_tokens.tolist() == [9]
    line = complaint(write(tmp_path / "e.jsonl", row | {"body": {"input": ["a secret"]}}))
    assert "texts without token counts" in line
    assert "secret" not in line


def test_rows_that_are_none_show_no_text(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps(OBSERVED[0]) + '\n{"input": "a secret", oops}\n')
    assert "secret" not in complaint(path)


# ---- BLIS ----


def traced(number: int, arrival_us: int, **changed: Any) -> dict[str, Any]:
    return {
        "request_id": number,
        "client_id": "c",
        "slo_class": "standard",
        "session_id": "",
        "round_index": 0,
        "prefix_group": "",
        "prefix_length": 0,
        "input_tokens": 100,
        "output_tokens": 11,
        "server_input_tokens": 0,
        "arrival_time_us": arrival_us,
        "send_time_us": arrival_us,
        "first_chunk_time_us": 0,
        "last_chunk_time_us": 0,
        "status": "ok",
    } | changed


def test_blis_prefix_groups_are_shared_text(tmp_path: Path) -> None:
    path = table(
        tmp_path / "trace.csv",
        traced(0, 0, prefix_group="g", prefix_length=64, first_chunk_time_us=50_000, last_chunk_time_us=150_000),
        traced(1, 1_500_000, prefix_group="g", prefix_length=64, input_tokens=200, slo_class="batch"),
        traced(2, 2_000_000, server_input_tokens=110),
        traced(3, 2_000_000, status="error"),
    )
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [164, 264, 110]
    assert workload.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert workload.class_names == ("batch", "standard")
    assert workload.prefix_identity
    assert shared_by_tree(workload.tree, workload.leaf, 0, 1) == 64
    assert shared_by_tree(workload.tree, workload.leaf, 0, 2) == 0
    assert "(it failed: 1)" in workload.notes[1]
    assert same(truth(path).ttft_s, [0.05, np.nan, np.nan])
    assert same(truth(path).tpot_s, [0.01, np.nan, np.nan])


def test_a_header_of_blis_names_the_csv(tmp_path: Path) -> None:
    (tmp_path / "trace.yaml").write_text("trace_version: 3\ntime_unit: microseconds\n")
    assert "its requests are in the CSV beside it" in complaint(tmp_path / "trace.yaml")


def test_blis_sessions_that_accumulate(tmp_path: Path) -> None:
    path = table(
        tmp_path / "trace.csv",
        traced(0, 0, session_id="s", prefix_group="g", prefix_length=64),
        traced(1, 10, session_id="s", round_index=1, prefix_group="g", prefix_length=64, input_tokens=40),
    )
    assert read(path).prompt_tokens.tolist() == [164, 104]
    assert "no header: neither trace.yaml nor header.yaml is there" in lines(path)
    (tmp_path / "trace.yaml").write_text("trace_version: 3\nsession_context_growth: accumulate\n")
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [164, 64 + 100 + 11 + 40]
    assert shared_by_tree(workload.tree, workload.leaf, 0, 1) == 64 + 100 + 11
    (tmp_path / "trace.yaml").write_text("session_context_growth: Accumulate\n")
    assert "session_context_growth = 'Accumulate', expected accumulate or none" in complaint_of(path)


def test_damaged_prefix_lengths(tmp_path: Path) -> None:
    for value in (-5, "many", "9" * 50):
        path = table(tmp_path / "t.csv", traced(0, 0, prefix_group="g", prefix_length=value))
        assert f"row 2: prefix_length = '{str(value)[:20]}" in complaint(path)


def complaint_of(path: Path) -> str:
    with pytest.raises(ValueError, match="session_context_growth") as problem:
        read(path)
    return str(problem.value)


# ---- LLMServingSim ----


def test_llmservingsim_requests(tmp_path: Path) -> None:
    rows = ({"input_toks": 5, "output_toks": 3, "arrival_time_ns": 1_004_059_740},)
    rows += (
        {"input_toks": 7, "output_toks": 0, "arrival_time_ns": 0},
        {"input_toks": 6, "output_toks": 4, "arrival_time_ns": 4_059_740},
    )
    for path in (write(tmp_path / "r.jsonl", *rows), tmp_path / "r.tsv"):
        if path.suffix == ".tsv":
            path.write_text(
                "\n".join(
                    ["input_toks\toutput_toks\tarrival_time_ns", *["\t".join(map(str, r.values())) for r in rows]]
                )
            )
        workload = read(path)
        workload.check()
        assert workload.prompt_tokens.tolist() == [5, 6]
        assert workload.arrival_s.tolist() == [1.0, 0.0]
        assert "skipped 1 (zero output: 1)" in workload.notes[1]
        assert not workload.prefix_identity


def test_llmservingsim_sessions_are_closed_loops(tmp_path: Path) -> None:
    chain = [
        {"input_toks": 2, "output_toks": 3, "tool_duration_ns": 1_500_000_000, "input_tok_ids": [8, 9]},
        {"input_toks": 3, "output_toks": 4, "tool_duration_ns": 0, "input_tok_ids": [8, 9, 7]},
    ]
    single = {"input_toks": 1, "output_toks": 2, "arrival_time_ns": 2_000_000_000, "input_tok_ids": [8]}
    path = write(tmp_path / "a.jsonl", {"session_id": "s", "arrival_time_ns": 10**9, "sub_requests": chain}, single)
    workload = read(path)
    workload.check()
    assert workload.column("after").tolist() == [-1, 0, -1]
    assert workload.column("delay_s").tolist() == [0.0, 1.5, 0.0]
    assert same(workload.arrival_s, [0.0, np.nan, 1.0])
    assert workload.column("session_id").tolist() == [0, 0, 1]
    assert shared_by_tree(workload.tree, workload.leaf, 0, 1) == 2
    assert workload.prefix_identity
    assert "sub_requests = [], expected a list of at least one request" in complaint(
        write(tmp_path / "b.jsonl", {"arrival_time_ns": 1, "sub_requests": []})
    )
    assert "input_tok_ids = [8], expected a list of 2 token ids" in complaint(
        write(tmp_path / "c.jsonl", {"arrival_time_ns": 1, "sub_requests": [chain[0] | {"input_tok_ids": [8]}]})
    )
