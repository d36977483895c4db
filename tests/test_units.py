"""Units of recorded times: stated on every read, asked where something speaks against them, never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_readers import complaint, write
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.load import load
from workloads.readers import read
from workloads.readers.units import wall_clock_ns

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NAMES = {"input_length": 2000, "output_length": 150}


def mooncake(path: Path, times: list) -> Path:
    return write(path, *[{"timestamp": t, **NAMES} for t in times])


def unit_note(workload) -> str:
    return next(note for note in workload.notes if note.startswith("time unit: "))


# ---- stated ----


def test_every_recorded_trace_reads_unasked_and_states_its_unit(data_dir: Path) -> None:
    for path, line in (
        ("mooncake/conversation_trace.jsonl", "timestamp in ms (the format's documentation): 3.4 requests/s over 3,53"),
        ("mooncake/synthetic_trace.jsonl", "timestamp in ms (the format's documentation): "),
        ("azure/AzureLLMInferenceTrace_code.csv", "TIMESTAMP is a time of day (its text): 2.57 requests/s over 3,4"),
        ("burstgpt/BurstGPT_1_first400.csv", "Timestamp in s (the format's documentation): "),
    ):
        assert line in unit_note(read(data_dir / "traces" / path)), path
    ids = read(data_dir / "measured/sharegpt-llama-3.1-8b-300-sps10.jsonl")
    assert "arrival_time_ns in ns (its name): 10.3 requests/s" in unit_note(ids)


CHAT = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1, "hash_ids": [1]}
ROUND = {"session_id": "a", "round_index": 0, "input_tokens_total": 9, "prefix_tokens": 0, "newly_append_tokens": 9}
EVENT = {"event_type": "user_message", "timestamp": "2026-06-23T06:05:00Z"}
SESSION = {"block_size": 64, "requests": [{"t": 0.5, "in": 10, "out": 5, "hash_ids": []}]}
OF_ONE_UNIT = [
    ("weka", SESSION, "t, api_time and think_time in s, duration_ms in ms (the format's documentation)"),
    ("tracelab", {**ROUND, "output_tokens": 3, "timing_events": [EVENT]}, "timestamp is a time of day (its text)"),
]


def test_bailian_states_seconds_and_takes_another_unit(tmp_path: Path) -> None:
    rows = [{**CHAT, "chat_id": i, "timestamp": 0.5 * i, "input_length": 16, "output_length": 5} for i in range(1, 20)]
    path = write(tmp_path / "b.jsonl", *rows)
    assert unit_note(read(path)) == "time unit: timestamp in s (the format's documentation): 2 requests/s over 9 s"
    assert load(WorkloadConfig(trace=str(path), timestamp_unit="ms")).arrival_s[-1] == pytest.approx(0.009)
    dates = write(tmp_path / "d.jsonl", *[{**row, "timestamp": 1.7e12 + row["timestamp"]} for row in rows])
    assert "as ms since 1970" in complaint(dates)


@pytest.mark.parametrize(("format", "row", "line"), OF_ONE_UNIT)
def test_formats_of_one_unit_state_it_and_refuse_another(tmp_path: Path, format: str, row: dict, line: str) -> None:
    path = write(tmp_path / "t.jsonl", row)
    workload = read(path)
    assert workload.notes[0].startswith(f"format: {format}")
    assert line in unit_note(workload)
    with pytest.raises(InputError, match=f"expected none: the format {format} has times of one unit only"):
        load(WorkloadConfig(trace=str(path), timestamp_unit="ms"))


@pytest.mark.parametrize("time", ["06/23/2026 10:00", "23/06/2026", "06-07-2026 10:00:00"])
def test_a_date_whose_month_is_not_sure_is_refused(tmp_path: Path, time: str) -> None:
    path = write(tmp_path / "t.jsonl", {"ts": time, "prompt_tokens": 5, "completion_tokens": 2})
    assert f"row 1: ts = {time!r}, expected " in complaint(path)


def test_the_unit_that_was_set_is_taken_without_a_question(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", [0.25 * i for i in range(400)])
    workload = read(path, timestamp_unit="s")
    assert workload.arrival_s.tolist() == [0.25 * i for i in range(400)]
    assert unit_note(workload) == "time unit: timestamp in s (timestamp_unit): 4 requests/s over 99.8 s"
    loaded = load(WorkloadConfig(trace=str(path), timestamp_unit="ms"))
    assert loaded.arrival_s[-1] == pytest.approx(0.09975)


def test_nanoseconds_as_text_are_those_since_1970(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", [str(1_700_000_000_000_000_001 + i * 500_000_000) for i in range(4)])
    workload = read(path)
    assert workload.arrival_s.tolist() == [0, 0.5, 1, 1.5]
    assert "timestamp in ns (texts of 19 digits are nanoseconds since 1970)" in unit_note(workload)


def test_a_unit_has_no_meaning_for_times_of_day_or_for_formats_of_one_unit(tmp_path: Path, data_dir: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"ts": "2026-06-23T06:05:00Z", "prompt_tokens": 5, "completion_tokens": 2})
    assert (
        complaint(path, timestamp_unit="ms")
        == "FILE, row 1: [workload] timestamp_unit = 'ms', expected none: ts = '2026-06-23T06:05:00Z' is a time of day"
    )
    azure = data_dir / "traces/azure/AzureLLMInferenceTrace_code.csv"
    with pytest.raises(InputError, match="expected none: the format azure has times of one unit only"):
        load(WorkloadConfig(trace=str(azure), timestamp_unit="s"))


# ---- asked ----


@pytest.mark.parametrize(
    ("times", "line"),
    [
        (  # seconds with fractions
            [0.93 + 0.5 * i for i in range(400)],
            "FILE: timestamp as ms (the format's documentation): 2,000 requests/s over 0.2 s, but 0.93 is no whole"
            " number of ms; as s: 2 requests/s over 200 s; set [workload] timestamp_unit (--timestamp-unit) to 'ms' or"
            " 's'",
        ),
        (  # whole seconds, many
            [i // 2 for i in range(5000)],
            "FILE: timestamp as ms (the format's documentation): 2,000 requests/s over 2.5 s, but no server sees as"
            " many; as s: 2 requests/s over 2,499 s; set [workload] timestamp_unit (--timestamp-unit) to 'ms' or 's'",
        ),
        (  # whole seconds, few
            [3 * i for i in range(20)],
            "FILE: timestamp as ms (the format's documentation): 333 requests/s over 0.057 s, but that is less than a"
            " second; as s: 0.333 requests/s over 57 s; set [workload] timestamp_unit (--timestamp-unit) to 'ms' or"
            " 's'",
        ),
        (  # seconds since 1970
            [1_767_225_600 + i for i in range(50)],
            "FILE: timestamp as ms (the format's documentation): 1,000 requests/s over 0.049 s, but 1767225600 is"
            " 2026-01-01 as s since 1970; as s: 1 requests/s over 49 s; set [workload] timestamp_unit"
            " (--timestamp-unit) to 'ms' or 's'",
        ),
        (  # microseconds since 1970, two rows
            [1_767_225_600_000_000, 1_767_225_601_000_000],
            "FILE: timestamp as ms (the format's documentation): 0.001 requests/s over 1,000 s, but 1.7672256e+15"
            " is 2026-01-01 as us since 1970; as us: 1 requests/s over 1 s; set [workload] timestamp_unit"
            " (--timestamp-unit) to 'ms' or 'us'",
        ),
        (  # nanoseconds from 0
            [i * 10**9 for i in range(100)],
            "FILE: timestamp as ms (the format's documentation): 1e-06 requests/s over 99,000,000 s, but no trace is as"
            " long; as ns: 1 requests/s over 99 s; set [workload] timestamp_unit (--timestamp-unit) to 'ms' or 'ns'",
        ),
    ],
)
def test_what_speaks_against_a_unit_is_a_question_with_both_readings(tmp_path: Path, times: list, line: str) -> None:
    path = mooncake(tmp_path / "t.jsonl", times)
    assert complaint(path) == line
    unit = line.rpartition("or '")[2].rstrip("'")
    expected = np.array([(t - times[0]) / PER_SECOND[unit] for t in times])
    assert read(path, timestamp_unit=unit).arrival_s == pytest.approx(expected, abs=1e-9)


def test_milliseconds_in_a_format_of_seconds_are_asked(tmp_path: Path) -> None:
    rows = "".join(f"{i * 500},m,100,10\n" for i in range(1000))
    path = tmp_path / "b.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens\n" + rows)
    line = complaint(path)
    assert (
        "Timestamp as s (the format's documentation): 0.002 requests/s over 499,500 s, but no server has as few" in line
    )
    assert "as ms: 2 requests/s over 500 s" in line


def test_what_no_unit_explains_better_is_read(tmp_path: Path) -> None:
    """All at once, a few, milliseconds since 1970, fractions of whole milliseconds: none of them is in doubt."""
    for times in ([5] * 50, [0, 1, 2], [1_767_225_600_000 + 20 * i for i in range(100)], [0.0, 1000.0, 2000.0]):
        assert len(read(mooncake(tmp_path / "t.jsonl", times))) == len(times)


# ---- tables without a documentation ----


def table(path: Path, times: list, name: str = "time") -> Path:
    return write(path, *[{name: t, "input": 100, "output": 10} for t in times])


def test_a_tables_times_are_seconds_where_nothing_else_fits(tmp_path: Path) -> None:
    for times in ([0.93 + 0.5 * i for i in range(100)], [2 * i for i in range(100)], [0, 1, 2, 5]):
        workload = read(table(tmp_path / "t.jsonl", times))
        assert workload.arrival_s == pytest.approx(np.array(times) - times[0])
        assert unit_note(workload).startswith("time unit: time in s (as a table's times are unless it says otherwise)")


@pytest.mark.parametrize("times", [[100 * i for i in range(1000)], [2 * i for i in range(1800)]])
def test_a_tables_times_that_fit_two_units_are_asked(tmp_path: Path, times: list) -> None:
    """10 requests/s as ms or one in 100 s; 500 requests/s as ms or one in 2 s: the numbers alone do not say."""
    line = complaint(table(tmp_path / "t.jsonl", times))
    assert "but it does not say so and ms is as likely; as ms: " in line
    assert "set [workload] timestamp_unit" in line


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("arrival_s", "s"),
        ("timestamp_ms", "ms"),
        ("start_time_us", "us"),
        ("arrival_time_ns", "ns"),
        ("time_seconds", "s"),
    ],
)
def test_a_tables_column_may_name_its_unit(tmp_path: Path, name: str, unit: str) -> None:
    times = [i * PER_SECOND[unit] // 4 * 4 for i in range(100)] if unit != "s" else [0.5 * i for i in range(100)]
    workload = read(table(tmp_path / "t.jsonl", times, name))
    assert workload.arrival_s == pytest.approx(np.array(times) / PER_SECOND[unit])
    assert unit_note(workload).startswith(f"time unit: {name} in {unit} (its name)")


@pytest.mark.parametrize("unit", list(PER_SECOND))
def test_a_tables_dates_since_1970_are_of_one_unit_only(tmp_path: Path, unit: str) -> None:
    start = 1_767_225_600 * PER_SECOND[unit]
    workload = read(table(tmp_path / "t.jsonl", [start + i * PER_SECOND[unit] for i in range(50)]))
    assert workload.arrival_s.tolist() == list(range(50))
    assert f"time in {unit} (they are dates of 2026 in no other unit)" in unit_note(workload)


# ---- times of day ----


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01 00:00:01", 1),
        ("1970-01-01T00:00:01Z", 1),
        ("1970-01-01T00:00:01.5+00:00", 1.5),
        ("1970-01-01T02:00:01+02:00", 1),
        ("1969-12-31T19:00:01-0500", 1),
        ("1970-01-01T05:30:01+05:30", 1),
        ("1970-01-01 00:00:01 UTC", 1),
        ("1970-01-01T00:00:01,25Z", 1.25),
        ("1970-01-01 00:00:01.0000001", 1.0000001),
    ],
)
def test_times_of_day_with_zones(text: str, seconds: float) -> None:
    assert wall_clock_ns(text) == round(seconds * 1e9)


@pytest.mark.parametrize(
    "text", ["", "1970-01-01", "00:00:01", "1970-13-01 00:00:01", "1/2/1970 00:00:01", 5, None, "now"]
)
def test_what_is_no_time_of_day(text: object) -> None:
    assert wall_clock_ns(text) is None


def test_zones_that_change_within_a_file_do_not_move_a_request(tmp_path: Path) -> None:
    rows = ["2026-10-25T02:59:59+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T01:00:01.250Z"]
    workload = read(table(tmp_path / "t.jsonl", rows))
    assert workload.arrival_s.tolist() == [0, 1, 2.25]


def test_a_time_among_numbers_is_named(tmp_path: Path) -> None:
    assert (
        complaint(table(tmp_path / "t.jsonl", ["2026-10-25T02:59:59Z", 5]))
        == "FILE, row 2: time = 5, expected a time like 2023-11-16 18:17:03.9799600"
    )
    assert (
        complaint(table(tmp_path / "u.jsonl", [5, "soon"]))
        == "FILE, row 2: time = 'soon', expected a finite number of at least 0, or a time like 2023-11-16"
        " 18:17:03.9799600"
    )


# ---- the same trace in another unit ----


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=30), st.sampled_from([("ms", 1), ("us", 1000), ("ns", 10**6)])
)
def test_a_trace_in_another_unit_is_the_same_workload(tmp_path_factory, times: list[int], other) -> None:
    folder, (unit, factor) = tmp_path_factory.mktemp("t"), other
    ours = read(mooncake(folder / "a.jsonl", times), timestamp_unit="ms")
    theirs = read(mooncake(folder / "b.jsonl", [t * factor for t in times]), timestamp_unit=unit)
    assert ours.arrival_s.tobytes() == theirs.arrival_s.tobytes()


# ---- without times ----


def test_rows_without_times_run_at_a_concurrency_or_a_rate_only(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *[{**NAMES, "hash_ids": [0, 1, 2, i + 9]} for i in range(200)])
    with pytest.raises(
        InputError, match=r"t.jsonl holds no times, expected .*: loop = \"concurrency\" with concurrency = N"
    ):
        load(WorkloadConfig(trace=str(path)))
    closed = load(WorkloadConfig(trace=str(path), loop="concurrency", concurrency=4))
    closed.check()
    assert (len(closed), closed.concurrency) == (200, 4)
    drawn = load(WorkloadConfig(trace=str(path), rate=2.0), seed=3)
    drawn.check()
    assert drawn.arrival_s[-1] == pytest.approx(100, rel=0.25)
    assert "rate: requests arrive as a Poisson process, 2 a second, seed 3, in file order" in drawn.notes
    assert load(WorkloadConfig(trace=str(path), rate=2.0), seed=4).arrival_s[-1] != drawn.arrival_s[-1]
    with pytest.raises(InputError, match="start_s, end_s: expected none of them, since the trace has no times"):
        load(WorkloadConfig(trace=str(path), rate=2.0, end_s=5))


def test_turns_without_times_follow_each_other(tmp_path: Path) -> None:
    rows = [{"session_id": s, **NAMES} for s in ("a", "b", "a", "a", "b")]
    trace = str(write(tmp_path / "t.jsonl", *rows))
    workload = load(WorkloadConfig(trace=trace, turns="whole", loop="concurrency", concurrency=1))
    workload.check()
    assert workload.column("after").tolist() == [-1, -1, 0, 2, 1]
    assert workload.column("turn").tolist() == [0, 0, 1, 2, 1]


def test_describe_counts_a_trace_without_times(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from kvcast.cli import main

    path = write(tmp_path / "t.jsonl", *[{**NAMES, "hash_ids": [0, 1, 2, 3]} for _ in range(3)])
    assert main(["workload", "describe", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["arrivals"] == {"loop": "none: the source holds no times", "recorded": 0}
    assert document["reuse"]["reuse_ceiling"] == pytest.approx(2 * 1536 / 6000)


def test_a_question_is_exit_code_2_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from kvcast.cli import main

    path = mooncake(tmp_path / "t.jsonl", [0.5 * i for i in range(400)])
    assert main(["workload", "describe", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["workload", "describe", str(path), "--timestamp-unit", "s"]) == 0
    assert "rate_per_s 2," in capsys.readouterr().out
