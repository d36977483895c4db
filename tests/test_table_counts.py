"""What the columns of other people's logs count: cached tokens beside the input, thoughts beside the output, runs that
sum the runs inside them, gaps instead of times. Rows of our own in the shapes that the tools document."""

from __future__ import annotations

import json

import pytest

from workloads.errors import InputError
from workloads.readers import read
from workloads.readers.runs import sums_of_others


def _lines(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "prompt", "output"),
    [
        # Bedrock's invocation log: its input is what the cache did not serve
        (
            {
                "input": {"inputTokenCount": 400, "cacheReadInputTokenCount": 1000, "cacheWriteInputTokenCount": 20},
                "output": {"outputTokenCount": 60},
            },
            1420,
            60,
        ),
        # Claude Code's telemetry
        ({"input_tokens": 7, "output_tokens": 9, "cache_read_tokens": 5, "cache_creation_tokens": 0}, 12, 9),
        # nobody documents these, but more came from the cache than the input has
        ({"tokens": {"input": 10, "output": 30, "cache": {"read": 5000, "write": 700}}}, 5710, 30),
        # the same names where they may be within the input
        ({"tokens": {"input": 6000, "output": 30, "cache": {"read": 5000, "write": 700}}}, 6000, 30),
        # Gemini: thoughts are beyond the candidates, the cached content is within the prompt
        (
            {
                "promptTokenCount": 100,
                "cachedContentTokenCount": 90,
                "candidatesTokenCount": 20,
                "thoughtsTokenCount": 300,
            },
            100,
            320,
        ),
        ({"tokens": {"input": 8000, "output": 30, "cached": 10, "thoughts": 100, "total": 8130}}, 8000, 130),
        # OpenAI: reasoning and cached tokens are within
        (
            {
                "usage": {
                    "prompt_tokens": 900,
                    "completion_tokens": 40,
                    "prompt_tokens_details": {"cached_tokens": 512},
                    "completion_tokens_details": {"reasoning_tokens": 30},
                }
            },
            900,
            40,
        ),
        ({"prompt_eval_count": 46, "eval_count": 113, "prompt_eval_duration": 1160282000}, 46, 113),
        ({"number_input_tokens": 550, "number_output_tokens": 150, "number_total_tokens": 700}, 550, 150),
    ],
)
def test_what_is_beyond_a_count_is_added_and_what_is_within_is_not(tmp_path, row, prompt, output):
    w = read(_lines(tmp_path, [{"timestamp": "2026-01-01T00:00:00Z", **row}] * 2))
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([prompt] * 2, [output] * 2)


def test_cached_tokens_that_may_be_within_are_said(tmp_path):
    row = {"timestamp": 0, "input_tokens": 60, "output_tokens": 3, "cache_read_tokens": 50, "cache_write_tokens": 7}
    w = read(_lines(tmp_path, [row, row | {"timestamp": 5}]))
    assert w.prompt_tokens.tolist() == [60, 60]
    assert "cache_read_tokens and cache_write_tokens: taken to be within input_tokens" in " ".join(w.notes)


def test_a_total_that_is_more_than_input_and_output_is_said(tmp_path):
    rows = [{"timestamp": i, "prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 1452} for i in range(3)]
    notes = " ".join(read(_lines(tmp_path, rows)).notes)
    assert "total_tokens is not input + output in 3 of the first 3 rows (row 1: 900 + 40 against 1,452)" in notes
    for row in rows:
        row["total_tokens"] = 940
    assert "total_tokens" not in " ".join(read(_lines(tmp_path, rows)).notes)


def _runs(kinds):
    """A chain of two calls and a tool, twice."""
    rows = []
    for trace in ("a", "b"):
        for name, parent, kind, prompt, output in (
            ("chain", None, "chain", 1100, 90),
            ("one", f"{trace}chain", "llm", 500, 40),
            ("tool", f"{trace}chain", "tool", 0, 0),
            ("two", f"{trace}chain", "llm", 600, 50),
        ):
            row = {"id": trace + name, "parent_run_id": parent, "start_time": f"2026-01-01T00:00:0{len(rows)}Z"}
            rows.append(
                row | {"prompt_tokens": prompt, "completion_tokens": output} | ({"run_type": kind} if kinds else {})
            )
    return rows


@pytest.mark.parametrize("kinds", [True, False], ids=["run_type", "sums"])
def test_a_chain_is_not_counted_beside_its_calls(tmp_path, kinds):
    w = read(_lines(tmp_path, _runs(kinds)))
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([500, 600] * 2, [40, 50] * 2)
    reason = "run_type = chain: 2" if kinds else "sums of the rows that name them as parent_run_id: 2"
    assert reason in " ".join(w.notes)


def test_a_thread_is_no_sum():
    """A message follows its parent; it does not hold it."""
    assert sums_of_others(["a", "b", "c"], [None, "a", "b"], [10, 25, 45], [5, 5, 5]) == [False, False, False]
    assert sums_of_others(["a", "b"], ["", "a"], [10, 10], [5, 6]) == [False, False]


def test_gaps_between_rows_are_times(tmp_path):
    """Of a row that is skipped too; in the unit at the end of the name."""
    rows = [{"inter_arrival_time_ms": gap, "input_tokens": 10, "output_tokens": 2} for gap in (None, 500, 500, 250)]
    rows[2]["output_tokens"] = 0
    w = read(_lines(tmp_path, rows))
    assert w.arrival_s.tolist() == [0.0, 0.5, 1.25]
    rows[1]["inter_arrival_time_ms"] = "soon"
    with pytest.raises(InputError, match=r"row 2: inter_arrival_time_ms = "):
        read(_lines(tmp_path, rows))


def test_an_empty_first_row_does_not_hide_a_column(tmp_path):
    path = tmp_path / "spans.csv"
    path.write_text("start_time,llm.token_count.prompt,llm.token_count.completion\n0,,\n1,70,7\n3,80,8\n")
    w = read(path)
    assert w.prompt_tokens.tolist() == [70, 80]


def test_messages_called_input_beside_their_output_length_are_read(tmp_path):
    """LMCache's agentic traces: the whole conversation so far and how long its answer was. With counts of their own
    such messages are left alone."""
    ask = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "q" * 80}]
    more = [*ask, {"role": "assistant", "content": "a" * 40}, {"role": "user", "content": "r" * 40}]
    rows = [
        {"session_id": "x", "model": "m", "input": said, "output_length": out} for said, out in ((ask, 59), (more, 70))
    ]
    w = read(_lines(tmp_path, rows))
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == (
        [132, 160],
        [59, 70],
    )  # 4 for each message and the answer's
    rows = [{"input": ask, "prompt_tokens": 900, "completion_tokens": 40}] * 2
    assert read(_lines(tmp_path, rows)).prompt_tokens.tolist() == [900, 900]


def test_answers_of_an_api_are_requests_and_no_conversation(tmp_path):
    """What Anthropic's API returned, a row each; beside a question the same rows are one."""
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 900, "output_tokens": 20}
    row = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x" * 400}], "usage": usage}
    w = read(_lines(tmp_path, [row, row, row]))
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([915] * 3, [20] * 3)
    asked = [{"role": "user", "content": "q" * 80}, row]
    assert "conversations: 1 with 2 messages" in " ".join(read(_lines(tmp_path, asked)).notes)


@pytest.mark.parametrize(
    "texts",
    [
        {"messages": [{"role": "user", "content": "q" * 400}, {"role": "assistant", "content": "a"}]},
        {"prompt": "q" * 400, "response": "a"},
    ],
    ids=["messages", "prompt"],
)
def test_counts_in_the_row_beside_texts_are_believed(tmp_path, texts):
    rows = [texts | {"prompt_tokens": 230, "completion_tokens": 21}] * 2
    w = read(_lines(tmp_path, rows))
    assert (w.prompt_tokens.tolist(), w.output_tokens.tolist()) == ([230, 230], [21, 21])
    one = read(_lines(tmp_path, [texts | {"completion_tokens": 21}] * 2))
    assert one.prompt_tokens.tolist() == [108, 108], "one count alone is not a row's usage"
