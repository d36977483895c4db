"""Traces that are cut, mixed up, absurd or hostile: one clear line each, and the right numbers beside it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import time
from pathlib import Path

import pytest

from tests.test_prefix_tree import shared_by_tree
from tests.test_readers import ROW, complaint, session, turn, write
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.load import load
from workloads.readers import archive, read, sniff
from workloads.readers.engine_case import read_case
from workloads.readers.hash_ids import CHUNK_IDS

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens\n"
TOKENS = {"input_tok_ids": [5, 6], "output_toks": 2, "arrival_time_ns": 0}


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---- times ----


def test_clocks_since_1970_keep_their_last_digits(tmp_path: Path) -> None:
    """Nanoseconds since 1970 are beyond 2^53: as floats these three would be at 0, 0 and 256 ns."""
    start = 1_700_000_000_000_000_001
    workload = read(write(tmp_path / "t.jsonl", *[{**TOKENS, "arrival_time_ns": start + ns} for ns in (100, 0, 250)]))
    assert workload.arrival_s.tolist() == [1e-7, 0, 2.5e-7]
    assert read(
        write(tmp_path / "m.jsonl", {**ROW, "timestamp": 1_700_000_000_001}, {**ROW, "timestamp": 1_700_000_000_000})
    ).arrival_s.tolist() == [0.001, 0]
    late = text(tmp_path / "b.csv", BURST + "9007199254740993,m,5,5\n9007199254740992,m,5,5\n")
    assert read(late).arrival_s.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [ROW, {**ROW, "timestamp": 10**12 + 1}],
            (
                "FILE, row 2: timestamp = 1000000000001, expected at most 1e+09 s (32 years) after the earliest time in"
                " the file"
            ),
        ),
        (
            [{**ROW, "timestamp": 1e17}] * 2,
            "FILE, row 1: timestamp = 1e+17, expected a time that a float resolves, at most 1e+13",
        ),
        (
            [ROW, {**ROW, "timestamp": 10**400}],
            f"FILE, row 2: timestamp = 1{'0' * 56}..., expected a finite number of at least 0",
        ),
        (
            [{**ROW, "session_id": "a"}, {**ROW, "session_id": "a", "delay": 1e13}],
            "FILE, row 2: delay = 10000000000000.0, expected at most 1e+09 s (32 years)",
        ),
        (
            [TOKENS, {**TOKENS, "arrival_time_ns": 1.7e18}],
            (
                "FILE, row 2: arrival_time_ns = 1.7e+18, expected at most 1e+09 s (32 years) after the earliest time in"
                " the file"
            ),
        ),
    ],
)
def test_times_that_a_float_clock_cannot_hold(tmp_path: Path, rows: list[dict], line: str) -> None:
    assert complaint(write(tmp_path / "t.jsonl", *rows)) == line


def test_a_second_before_the_limit_is_read(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.jsonl", ROW, {**ROW, "timestamp": 10**12})).arrival_s.tolist() == [0, 1e9]


def test_tables_with_times_too_far_apart(tmp_path: Path) -> None:
    wall = text(tmp_path / "a.csv", AZURE + "0001-01-01 00:00:00,5,5\n2023-11-16 18:17:03,5,5\n")
    assert (
        complaint(wall)
        == "FILE, row 3: TIMESTAMP = '2023-11-16 18:17:03', expected at most 1e+09 s (32 years) after the earliest time"
        " in the file"
    )
    burst = text(tmp_path / "b.csv", BURST + "5,m,5,5\n1e10,m,5,5\n")
    assert (
        complaint(burst)
        == "FILE, row 3: Timestamp = '1e10', expected at most 1e+09 s (32 years) after the earliest time in the file"
    )


def test_weka_times_of_a_clock_count_from_the_first(tmp_path: Path) -> None:
    turns = [turn(0, 12, 2, [1, 2, 3]), turn(5.5, 16, 2, [1, 2, 3, 4], think=1)]
    shifted = [{**t, "t": t["t"] + 1_700_000_000} for t in turns]
    ours, theirs = (
        read(write(tmp_path / f"{i}.json", session(*r)), think="original") for i, r in enumerate((turns, shifted))
    )
    assert ours.arrival_s.tolist() == theirs.arrival_s.tolist() == [0, 5.5]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"t": 1e14}, "t = 100000000000000.0, expected at most 1e+09 s (32 years) after the session's first request"),
        ({"t": 10**400}, f"t = 1{'0' * 56}..., expected at most 1e+09 s (32 years) after the session's first request"),
        ({"think_time": 1e14}, "think_time = 100000000000000.0, expected at most 1e+09 s (32 years)"),
        ({"api_time": 2 * 10**9}, "api_time = 2000000000, expected at most 1e+09 s (32 years)"),
        ({"out": 2**63}, "out = 9223372036854775808, expected at most 1000000000"),
        ({"in": 10**30}, "in = 1000000000000000000000000000000, expected at most 1000000000"),
    ],
)
def test_weka_numbers_beyond_all_reason(tmp_path: Path, change: dict, line: str) -> None:
    document = session(turn(0, 12, 2, [1, 2, 3]), {**turn(1, 12, 2, [1, 2, 3]), **change})
    assert complaint(write(tmp_path / "s.json", document), format="weka") == f"FILE, request 2: {line}"


@pytest.mark.parametrize("shape", [{"rate_scale": 1e-9}, {"jitter_s": 1e9, "rate_scale": 0.5}])
def test_shaping_does_not_lead_beyond_the_clock(tmp_path: Path, shape: dict) -> None:
    trace = write(tmp_path / "t.jsonl", ROW, {**ROW, "timestamp": 5000})
    with pytest.raises(InputError, match=r"would arrive after .* s, expected at most 1e\+09 s"):
        load(WorkloadConfig(trace=str(trace), **shape))


def test_think_times_add_up_along_a_session(tmp_path: Path) -> None:
    turns = [turn(i, 12, 2, [1, 2, 3], think=0.4e9) for i in range(4)]
    two = write(tmp_path / "two.json", session(*turns[:3]))
    assert load(WorkloadConfig(trace=str(two))).delay_s.tolist() == [0, 0.4e9, 0.4e9]
    with pytest.raises(InputError, match=r"request 3 would arrive after 1\.2e\+09 s"):
        load(WorkloadConfig(trace=str(write(tmp_path / "three.json", session(*turns)))))


# ---- block ids ----

MIXED = "expected a whole number from 0 to 2^64 - 1 like the ids before it: a file has ids of one type"


def test_text_ids_and_numbers_do_not_meet_in_one_weka_file(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", session(turn(0, 12, 2, [0, 1, 2]), turn(1, 12, 2, ["a", "b", "c"])))
    assert complaint(path, format="weka") == f"FILE, request 2: hash_ids[0] = 'a', {MIXED}"
    named = read(write(tmp_path / "n.json", session(turn(0, 12, 2, ["a", "b", "c"]), turn(1, 12, 2, ["a", "b", "x"]))))
    assert shared_by_tree(named.tree, named.leaf, 0, 1) == 8


ROWS = -(-CHUNK_IDS // 3)  #: of two ids each that are one chunk


@pytest.mark.parametrize("before", [1, ROWS - 1, ROWS, ROWS + 1])
def test_text_ids_and_numbers_do_not_meet_across_chunks(tmp_path: Path, before: int) -> None:
    rows = [json.dumps({**ROW, "hash_ids": [2 * i, 2 * i + 1]}) for i in range(before)]
    path = write(tmp_path / "t.jsonl", *rows, {**ROW, "hash_ids": [before, "x"]}, ROW)
    assert complaint(path) == f"FILE, row {before + 1}: hash_ids[1] = 'x', {MIXED}"


def test_the_first_list_without_ids_decides_nothing(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl", {**ROW, "hash_ids": []}, {**ROW, "hash_ids": ["a", "b"]}, {**ROW, "hash_ids": [1, 2]}
    )
    assert (
        complaint(path)
        == "FILE, row 3: hash_ids[0] = 1, expected text like the ids before it: a file has ids of one type"
    )


@pytest.mark.parametrize(("ids", "place"), [([True, False], 0), ([1, True], 1)])
def test_true_is_no_block_id(tmp_path: Path, ids: list, place: int) -> None:
    assert (
        complaint(write(tmp_path / "t.jsonl", ROW, {**ROW, "hash_ids": ids}))
        == f"FILE, row 2: hash_ids[{place}] = True, {MIXED}"
    )
    first = complaint(write(tmp_path / "f.jsonl", {**ROW, "hash_ids": [True, False]}))
    assert (
        first
        == "FILE, row 1: hash_ids = [True, False], expected a list of block ids: whole numbers from 0 to 2^64 - 1, or"
        " text"
    )


def test_the_bad_id_of_a_long_list_is_shown(tmp_path: Path) -> None:
    ids = [*range(90), -7, *range(9)]
    assert (
        complaint(write(tmp_path / "t.jsonl", {**ROW, "input_length": 51200, "hash_ids": ids}))
        == "FILE, row 1: hash_ids[90] = -7, expected a whole number from 0 to 2^64 - 1 like the ids before it: a file"
        " has ids of one type"
    )


def test_weka_ids_are_read_as_written_whatever_they_look_like(tmp_path: Path) -> None:
    """Text ids with brackets; a key in escapes; single ids that look like what a list is replaced by inside the
    reader."""
    brackets = session(turn(0, 12, 2, ["a]", "b[", "c"]), turn(1, 12, 2, ["a]", "b[", "d"]))
    workload = read(write(tmp_path / "b.json", brackets))
    assert shared_by_tree(workload.tree, workload.leaf, 0, 1) == 8
    plain = json.dumps(session(turn(0, 4, 1, [7]), turn(1, 4, 1, [0]), turn(2, 4, 1, [7]), tools=0, system=0))
    escaped = read(text(tmp_path / "e.json", plain.replace('"hash_ids": [0]', '"hash\\u005fids": [0]')))
    assert [shared_by_tree(escaped.tree, escaped.leaf, 0, i) for i in (1, 2)] == [0, 4]
    assert "hash_ids = [-1], expected a list of block ids" in complaint(
        text(tmp_path / "n.json", plain.replace("[0]", "[-1]"))
    )
    comma = (
        '{"block_size": 4, "requests": [{"t": 0, "in": 4, "out": 1, "hash_ids": [7]}, {"t": 1, "in": 4, "out": 1,'
        ' "hash_ids": [7,]}]}'
    )
    assert "not a whole JSON document" in complaint(text(tmp_path / "d.json", comma), format="weka")


# ---- numbers ----


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1_000", "a whole number of at least 1"),
        ("٣", "a whole number of at least 1"),
        ("nan", "a whole number of at least 1"),
        ("0x10", "a whole number of at least 1"),
        ("", "a whole number of at least 1"),
        ("9007199254740993", "at most 1000000000"),
        ("9" * 5000, "at most 1000000000"),
    ],
)
def test_what_is_no_count_in_a_table(tmp_path: Path, value: str, expected: str) -> None:
    line = complaint(text(tmp_path / "t.csv", f"{AZURE}2023-11-16 18:17:03,{value},1\n"))
    assert line.startswith("FILE, row 2: ContextTokens = ")
    assert line.endswith(f"expected {expected}")


def test_counts_may_be_written_as_decimals(tmp_path: Path) -> None:
    assert read(text(tmp_path / "t.csv", f"{AZURE}2023-11-16 18:17:03, 472.0 ,1e2\n")).prompt_tokens.tolist() == [472]


@pytest.mark.parametrize("zero", ["0", "00", "0.0", " 0 ", "-0"])
def test_a_zero_output_is_skipped_however_it_is_written(tmp_path: Path, zero: str) -> None:
    for name, content in (
        ("a", f"{AZURE}2023-11-16 18:17:03,5,{zero}\n2023-11-16 18:17:03,5,5\n"),
        ("b", f"{BURST}1,m,5,{zero}\n1,m,5,5\n"),
    ):
        assert (
            "rows read 2 = requests 1 + skipped 1 (zero output: 1)"
            in read(text(tmp_path / f"{name}.csv", content)).notes
        )
    assert "output_length = False" in complaint(write(tmp_path / "f.jsonl", {**ROW, "output_length": False}))


@pytest.mark.parametrize("ids", [[-1], [5, 2**63], [10**30]])
def test_token_ids_out_of_range(tmp_path: Path, ids: list[int]) -> None:
    line = complaint(write(tmp_path / "t.jsonl", TOKENS, {**TOKENS, "input_tok_ids": ids}))
    assert line == f"FILE, row 2: input_tok_ids = {ids[-1]}, expected token ids from 0 to 2^63 - 1"


# ---- tables ----


def test_columns_that_come_twice(tmp_path: Path) -> None:
    path = text(
        tmp_path / "t.csv", "TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,6,7\n"
    )
    assert complaint(path) == "FILE, row 1: column 'ContextTokens' comes twice, expected every column once"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_any_system(tmp_path: Path, end: str) -> None:
    path = text(tmp_path / "t.csv", (AZURE + "2023-11-16 18:17:03,5,1\n2023-11-16 18:17:04,x,1\n").replace("\n", end))
    assert sniff(path)[0] == "azure"
    assert complaint(path) == "FILE, row 3: ContextTokens = 'x', expected a whole number of at least 1"


def test_a_row_is_named_by_the_line_it_begins_on(tmp_path: Path) -> None:
    path = text(tmp_path / "t.csv", AZURE + '"2023-11-16 18:17:03\n",5,1\n"2023-11-16 18:17:03\n",5\n')
    assert complaint(path) == "FILE, row 4: 2 fields, expected 3"


def test_a_field_of_200_000_characters(tmp_path: Path) -> None:
    path = text(tmp_path / "t.csv", f'{AZURE}2023-11-16 18:17:03,5,1\n"{"a" * 200_000}",1,1\n')
    assert len(complaint(path)) < 200
    path = text(tmp_path / "u.csv", f'{AZURE}2023-11-16 18:17:03,5,1\n"{"a" * (17 << 20)}",1,1\n')
    assert complaint(path) == "FILE, row 3: not a row of CSV (field larger than field limit (16777216))"


def test_thousands_of_models_become_one_class(tmp_path: Path) -> None:
    rows = [f"{i},m{i % 39_000},5,5\n" for i in range(40_000)]
    path = text(tmp_path / "t.csv", BURST + "".join(rows))
    start = time.process_time()
    workload = read(path)
    assert time.process_time() - start < 3  # 0.15 s; looking every class up in a list took 8 s
    assert len(workload.class_names) == 1000
    assert workload.class_names[workload.class_id[39_500]] == "m500"  # among those with two requests
    assert workload.class_names[workload.class_id[20_000]] == "other"
    assert "models: 39000 distinct ones, the 38001 with the fewest requests are the class 'other'" in workload.notes
    few = read(text(tmp_path / "f.csv", BURST + "".join(f"{i},m{i:04},5,5\n" for i in range(1000))))
    assert few.class_id.tolist() == list(range(1000))


# ---- JSON ----

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 5000


@pytest.mark.parametrize(("value", "why"), [(DEEP, "nested too deeply"), (DIGITS, "a number of thousands of digits")])
def test_json_that_no_parser_takes(tmp_path: Path, value: str, why: str) -> None:
    line = complaint(text(tmp_path / "t.jsonl", f'{json.dumps(ROW)}\n{{"timestamp": {value}}}\n'))
    assert line.startswith(f"FILE, row 2: not a whole JSON object ({why}): ")
    assert len(line) < 250
    for document in (
        f'{{"block_size": 64, "requests": {value}}}',
        f'{{"block_size": 64, "requests": [{{"hash_ids": [{value}]}}]}}',
    ):
        assert (
            complaint(text(tmp_path / "s.json", document), format="weka")
            == f"FILE: not a whole JSON document ({why}), expected a session"
        )
    line = complaint(text(tmp_path / "head.jsonl", f'{{"timestamp": {value}}}\n'))
    assert line.startswith(f"FILE, row 1: not a whole JSON object ({why}): ")
    with pytest.raises(InputError, match=f"case.json: not readable as JSON .{why}"):
        read_case(text(tmp_path / "case.json", value))


def test_a_deep_value_is_shown_short(tmp_path: Path) -> None:
    nested: list = []
    for _ in range(900):
        nested = [nested]
    assert len(complaint(write(tmp_path / "t.jsonl", {**ROW, "input_length": nested}))) < 150


def test_session_ids_are_text_or_numbers(tmp_path: Path) -> None:
    assert (
        complaint(write(tmp_path / "t.jsonl", {**ROW, "session_id": {"a": 1}}))
        == "FILE, row 1: session_id = {'a': 1}, expected text or a whole number"
    )
    workload = read(write(tmp_path / "u.jsonl", *[{**ROW, "session_id": name} for name in (1, "1", "row 3", None, 1)]))
    assert workload.session_id.tolist() == [0, 1, 2, 3, 0]


# ---- Weka documents ----

AGENT = {
    "type": "subagent",
    "t": 2.5,
    "duration_ms": 500,
    "models": ["s"],
    "tool_tokens": 4,
    "system_tokens": 0,
    "requests": [turn(0, 8, 1, [5, 6])],
}


@pytest.mark.parametrize("value", [-1, 1.5, "5", [1], {}, True, 10**30])
@pytest.mark.parametrize("field", ["tool_tokens", "system_tokens"])
def test_weka_standard_token_counts(tmp_path: Path, field: str, value: object) -> None:
    main = {**session(turn(0, 12, 2, [1, 2, 3])), field: value}
    wanted = "at most 1000000000" if value == 10**30 else "a whole number of at least 0"
    assert complaint(write(tmp_path / "s.json", main), format="weka") == f"FILE: {field} = {value!r}, expected {wanted}"
    agent = session(turn(0, 12, 2, [1, 2, 3]), {**AGENT, field: value})
    assert (
        complaint(write(tmp_path / "a.json", agent), format="weka")
        == f"FILE, request 2: {field} = {value!r}, expected {wanted}"
    )


@pytest.mark.parametrize("models", [5, {"a": 1}, {}, [{}], [5], True])
def test_weka_models_are_names(tmp_path: Path, models: object) -> None:
    document = {**session(turn(0, 12, 2, [1, 2, 3])), "models": models}
    assert (
        complaint(write(tmp_path / "s.json", document), format="weka")
        == f"FILE: models = {models!r}, expected a list of names"
    )


def test_weka_sessions_of_models_with_one_first_letter_share_nothing(tmp_path: Path) -> None:
    for i, models in enumerate(("mini", "max", ["mini"], None)):
        write(tmp_path / f"{i}.json", {**session(turn(0, 12, 2, [1, 2, 3])), "models": models})
    workload = read(tmp_path, share_tools=True)
    assert [shared_by_tree(workload.tree, workload.leaf, 0, i) for i in (1, 2, 3)] == [0, 12, 0]


@pytest.mark.parametrize("requests", [5, "ab", {}])
def test_weka_sub_agents_have_a_list_of_requests(tmp_path: Path, requests: object) -> None:
    document = session(turn(0, 12, 2, [1, 2, 3]), {**AGENT, "requests": requests})
    assert (
        complaint(write(tmp_path / "s.json", document), format="weka")
        == f"FILE, request 2: requests = {requests!r}, expected a list of requests"
    )


def test_weka_files_without_requests(tmp_path: Path) -> None:
    assert complaint(write(tmp_path / "s.json", session())) == "FILE: the file holds no requests, expected at least one"


# ---- folders and archives ----


def packed(mode: str = "w", *members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in members or (("a.json", json.dumps(session(turn(0, 12, 2, [1, 2, 3]))).encode()),):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2"])
@pytest.mark.parametrize("compress", [bytes, lzma.compress, gzip.compress, bz2.compress])
def test_archives_cut_anywhere_are_refused(tmp_path: Path, suffix: str, compress) -> None:
    content = compress(packed())
    path = text(tmp_path / f"t{suffix}", content)
    assert read(path).prompt_tokens.tolist() == [12]  # whatever the name says
    for cut in (1, 10, len(content) // 2):
        if compress is bytes and cut == len(content) // 2:
            cut = len(content) - 1024  # the end of the member's last block: tarfile itself takes that for the end
        assert complaint(text(path, content[:-cut])).startswith("FILE: not a whole tar archive (")


def test_what_follows_an_archive_is_not_ignored(tmp_path: Path) -> None:
    big = ("pad.txt", b"\1" * 200_000)
    assert (
        complaint(text(tmp_path / "t.tar", packed() + packed("w", big)))
        == "FILE: data after the end of the tar archive, expected one archive"
    )


def test_archives_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = text(tmp_path / "b.tar.xz", lzma.compress(packed("w", ("a.json", bytes(65 << 20))), preset=0))
    assert bomb.stat().st_size < 100_000
    start = time.process_time()
    assert complaint(bomb) == f"FILE, a.json: {65 << 20} bytes, expected a session of at most 64 MiB"
    assert time.process_time() - start < 2
    monkeypatch.setattr(archive, "MAX_UNPACKED", 4 << 20)
    other = text(tmp_path / "o.tar.xz", lzma.compress(packed("w", ("a.txt", bytes(5 << 20))), preset=0))
    assert complaint(other) == "FILE: unpacks to more than 0 GiB, expected session files"


def test_a_header_of_an_archive_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_DOCUMENT", 1 << 20)
    long_name = "n" * (3 << 20) + ".json"
    assert (
        complaint(text(tmp_path / "t.tar", packed("w", (long_name, b"{}"))))
        == "FILE: unpacks to more than 1 MiB in one header, expected session files"
    )


def test_folder_entries_that_are_no_files(tmp_path: Path) -> None:
    write(tmp_path / "a.json", session(turn(0, 12, 2, [1, 2, 3])))
    (tmp_path / "b.json").mkdir()
    assert complaint(tmp_path) == "FILE/b.json: not a file, expected a session"
    (tmp_path / "b.json").rmdir()
    (tmp_path / "b.json").symlink_to(tmp_path / "nowhere")
    assert complaint(tmp_path) == "FILE/b.json: a link to nothing, expected a session"
    (tmp_path / "b.json").unlink()
    assert len(read(tmp_path)) == 1


def test_paths_that_are_no_traces(tmp_path: Path) -> None:
    assert complaint(tmp_path, format="mooncake") == "FILE: is a directory, expected a trace file"
    assert complaint(tmp_path, format="azure") == "FILE: is a directory, expected a trace file"
    os.mkfifo(tmp_path / "pipe")
    for format in (None, "mooncake", "weka"):
        assert complaint(tmp_path / "pipe", format=format) == "FILE: neither a file nor a folder, expected a trace"
    with pytest.raises(InputError, match="no such file"):
        read("a\0b")
    with pytest.raises(InputError, match="no such file"):
        read("x" * 5000)


def test_a_trace_is_named_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.jsonl", {**ROW, "input_length": 0})
    monkeypatch.chdir(tmp_path)
    for typed in ("t.jsonl", str(tmp_path / "t.jsonl")):  # a scenario's path is absolute by the time it is read
        with pytest.raises(InputError, match=r"^t\.jsonl, row 1"):
            load(WorkloadConfig(trace=typed))
    with pytest.raises(InputError, match="determine home"):
        load(WorkloadConfig(trace="~nobody-of-that-name/t.jsonl"))


def test_reading_stays_fast(data_dir: Path) -> None:
    """Bounds three times what was measured, so that only another order of growth fails."""
    start = time.process_time()
    assert len(read(data_dir / "traces/mooncake/conversation_trace.jsonl")) == 12031
    assert time.process_time() - start < 0.45


def test_engine_cases_cut_short_or_swollen(tmp_path: Path) -> None:
    whole = lzma.compress(b'{"schema": "kvoracle/1"}')
    for content, why in (
        (whole[:-9], "not a whole .xz file"),
        (b"no", "not a whole .xz file"),
        (lzma.compress(b" " * (65 << 20), preset=0), "more than 64 MiB unpacked"),
    ):
        with pytest.raises(InputError, match=why):
            read_case(text(tmp_path / "case.xz", content))


# ---- names ----


def test_a_name_in_a_trace_that_commands_a_terminal(tmp_path: Path) -> None:
    trace = text(tmp_path / "b.csv", BURST + "0,m\x1b[31m,5,5\n1,m,5,5\n")
    with pytest.raises(InputError) as problem:
        load(WorkloadConfig(trace=str(trace)))
    assert (
        str(problem.value)
        == r"[workload] trace: the class name 'm\x1b[31m', expected text without control characters, not '\x1b'"
    )


def test_a_class_of_a_trace_with_the_name_of_all_classes(tmp_path: Path) -> None:
    trace = text(tmp_path / "b.csv", BURST + "0,pooled,5,5\n1,m,5,5\n")
    with pytest.raises(InputError, match="trace: a class named 'pooled', expected another name"):
        load(WorkloadConfig(trace=str(trace)))
