"""Any table in any container: the same rows are the same workload, and a mapping says which field is what."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_readers import complaint, write
from workloads.columns import Workload
from workloads.config import Columns, WorkloadConfig
from workloads.errors import InputError
from workloads.load import load
from workloads.readers import container, read, records, sniff

MAP = {"time": "startTime", "input": "usage.prompt_tokens", "output": "usage.completion_tokens"}


def same(a: Workload, b: Workload) -> bool:
    """Whether two workloads hold the same bytes; where they were read from and the notes may differ."""
    for f in fields(Workload):
        ours, theirs = getattr(a, f.name), getattr(b, f.name)
        if f.name in ("source", "notes"):
            continue
        if f.name == "tree":
            if any(getattr(ours, c).tobytes() != getattr(theirs, c).tobytes() for c in ("parent", "end", "layer")):
                return False
        elif isinstance(ours, np.ndarray):
            if ours.dtype != theirs.dtype or ours.tobytes() != theirs.tobytes():
                return False
        elif ours != theirs:
            return False
    return True


# ---- containers ----


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows: list[dict], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow([json.dumps(v) if isinstance(v, list | dict) else v for v in (row[k] for k in rows[0])])
    return b"\xef\xbb\xbf" + text.getvalue().encode()


def parquet(rows: list[dict]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._trace", "x")
        archive.writestr("folder/trace", content)
    return out.getvalue()


def zstd(content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as file:
        file.write(content)
    return out.getvalue().to_pybytes()


CONTAINERS: dict[str, Callable[[list[dict]], bytes]] = {
    "lines": lines,
    "lines with blank ones": lambda rows: b"\n" + lines(rows).replace(b"\n", b"\r\n\r\n"),
    "array": lambda rows: json.dumps(rows).encode(),
    "indented array": lambda rows: b"\xef\xbb\xbf" + json.dumps(rows, indent=1).encode(),
    "indented objects": lambda rows: "\n".join(json.dumps(row, indent=2) for row in rows).encode(),
    "comma": table,
    "tabs": lambda rows: table(rows, "\t"),
    "semicolons": lambda rows: table(rows, ";"),
    "parquet": parquet,
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "zip": zipped,
    "zstd": zstd,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
MOONCAKE = [
    {"timestamp": 500 * i, "input_length": 700 + i, "output_length": 5 + i, "hash_ids": [1, 2 + i % 2]}
    for i in range(9)
]


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("held", CONTAINERS)
def test_a_trace_reads_the_same_whatever_holds_it(tmp_path: Path, held: str, packed: str) -> None:
    plain = read(write(tmp_path / "plain.jsonl", *MOONCAKE))
    path = tmp_path / "trace.bin"
    path.write_bytes(PACKED[packed](CONTAINERS[held](MOONCAKE)))
    workload = read(path)
    assert sniff(path)[0] == "mooncake"
    assert same(workload, plain)
    if packed != "plain":
        assert any(note.startswith(f"packed: {packed} of ") for note in workload.notes)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 10**6),
            "in": st.integers(1, 5000),
            "out": st.integers(0, 300),
            "who": st.sampled_from(["a", "b c", "ü;,\t", "1"]),
            "blocks": st.lists(st.integers(0, 2**63 - 1), max_size=3),
        }
    ).map(lambda row: {**row, "in": len(row["blocks"]) * 16 + row["in"] % 16 if row["blocks"] else row["in"]}),
    min_size=1,
    max_size=20,
).filter(lambda rows: any(row["out"] for row in rows) and all(row["in"] for row in rows))


@settings(deadline=None, max_examples=20)
@given(ROWS, st.sampled_from(sorted(CONTAINERS)), st.sampled_from(sorted(PACKED)))
def test_a_renamed_reheld_and_repacked_table_is_byte_identical(tmp_path_factory, rows, held: str, packed: str) -> None:
    folder = tmp_path_factory.mktemp("t")
    named = {"time": "at", "input": "in", "output": "out", "session": "who", "class": "who", "tenant": "who"}
    named |= {"prefix_ids": "blocks", "block_tokens": 16}
    ours = read(write(folder / "a.jsonl", *rows), columns=named, timestamp_unit="ms")
    ours.check()
    new = {"at": "meta time", "in": "n_in", "out": "n.out", "who": "user-id", "blocks": "ids"}
    path = folder / "other"
    path.write_bytes(PACKED[packed](CONTAINERS[held]([{new[k]: v for k, v in row.items()} for row in rows])))
    theirs = read(path, columns={key: new.get(name, name) for key, name in named.items()}, timestamp_unit="ms")
    assert same(ours, theirs)


def test_the_hash_is_of_what_is_packed(tmp_path: Path) -> None:
    import hashlib

    sources = [f"t (sha256 {hashlib.sha256(lines(MOONCAKE)).hexdigest()})"]
    for name, pack in PACKED.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "t").write_bytes(pack(lines(MOONCAKE)))
        sources.append(read(tmp_path / name / "t").source)
    assert len(set(sources)) == 1


def test_parquet_holds_times_decimals_and_nested_fields(tmp_path: Path) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    at = [datetime(2026, 6, 23, 6, 5, s, 250_000, tzinfo=UTC) for s in (0, 2)]
    columns = {
        "when": pa.array(at, pa.timestamp("us", tz="Europe/Paris")),
        "model": pa.array(["m", "m"]).dictionary_encode(),
        "usage": pa.array([{"input_tokens": 7, "output_tokens": 2}, {"input_tokens": 9, "output_tokens": None}]),
        "two": pa.array([Decimal("2.00"), Decimal("2.00")]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    named = {"time": "when", "input": "usage.input_tokens", "output": "usage.output_tokens", "class": "model"}
    workload = read(tmp_path / "t.parquet", columns=named)
    assert workload.prompt_tokens.tolist() == [7]
    assert "rows read 2 = requests 1 + skipped 1 (no output tokens: 1)" in workload.notes
    assert workload.class_names == ("m",)
    rounded = read(tmp_path / "t.parquet", columns={"time": "when", "input": "usage.input_tokens", "output": "two"})
    assert rounded.arrival_s.tolist() == [0, 2]
    assert rounded.output_tokens.tolist() == [2, 2]


# ---- mapping ----

NESTED = [
    {
        "startTime": f"2026-06-23T06:05:0{i}.5+00:00",
        "usage": {"prompt_tokens": 100 + i, "completion_tokens": 10},
        "spans": [{"gen_ai.session": f"s{i % 2}"}],
        "key": {"team": "red" if i else None},
    }
    for i in range(4)
]


def test_dotted_paths_lead_into_objects_lists_and_dotted_keys(tmp_path: Path) -> None:
    columns = MAP | {"session": "spans[0].gen_ai.session", "tenant": "key.team", "class": "spans.0.gen_ai.session"}
    workload = read(write(tmp_path / "t.jsonl", *NESTED), columns=columns)
    workload.check()
    assert workload.arrival_s.tolist() == [0, 1, 2, 3]
    assert workload.prompt_tokens.tolist() == [100, 101, 102, 103]
    assert workload.session_id.tolist() == [0, 1, 0, 1]
    assert workload.class_names == ("s0", "s1")
    assert workload.tenant_names == ("", "red")
    assert workload.tenant_id.tolist() == [0, 1, 1, 1]
    assert not workload.prefix_identity
    assert "format: table because columns were named" in workload.notes
    assert any("usage.prompt_tokens" in note and note.startswith("columns: ") for note in workload.notes)


def test_a_scenario_and_the_command_line_take_the_same_mapping(tmp_path: Path, capsys) -> None:
    from kvcast.cli import main

    path = write(tmp_path / "t.jsonl", *NESTED)
    (tmp_path / "s.toml").write_text(
        '[workload]\ntrace = "t.jsonl"\n[workload.columns]\ntime = "startTime"\ninput = "usage.prompt_tokens"\n'
        'output = "usage.completion_tokens"\nclass = "spans.0.gen_ai.session"\n[model]\nname = "llama-3.1-8b"\n'
    )
    asked = ",".join(f"{key}={name}" for key, name in (MAP | {"class": "spans.0.gen_ai.session"}).items())
    outputs = []
    for command in ([str(path), "--columns", asked], [str(tmp_path / "s.toml")]):
        assert main(["workload", "describe", *command, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        outputs.append({key: document[key] for key in ("requests", "prompt_tokens", "arrivals", "classes")})
    assert outputs[0] == outputs[1]
    assert outputs[0]["arrivals"]["rate_per_s"] == 1
    assert sorted(outputs[0]["classes"]) == ["s0", "s1"]
    assert main(["workload", "describe", str(tmp_path / "s.toml"), "--columns", asked]) == 2
    assert "expected a trace file with it" in capsys.readouterr().err
    assert main(["workload", "describe", str(path), "--columns", "inptu=a"]) == 2
    assert "[workload.columns] has no key 'inptu' (did you mean input?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            {"input": "usage.prompt_token", "output": "usage.completion_tokens"},
            "FILE: [workload.columns] input = 'usage.prompt_token': no row has it (did you mean usage.prompt_tokens?),"
            " expected one of startTime, usage.prompt_tokens, usage.completion_tokens, spans, key.team",
        ),
        (
            MAP | {"session": "user"},
            "FILE: [workload.columns] session = 'user': no row has it, expected one of startTime, usage.prompt_tokens,"
            " usage.completion_tokens, spans, key.team",
        ),
        (
            {"input": "usage.prompt_tokens"},
            "FILE: [workload.columns] output is missing, expected the name of the column with output tokens among"
            " startTime, usage.prompt_tokens, usage.completion_tokens, spans, key.team",
        ),
        (MAP | {"input": ""}, "FILE: columns.input = '', expected the name of a column"),
        (MAP | {"class": "spans"}, "FILE, row 1: spans = [{'gen_ai.session': 's0'}], expected a name"),
        (
            MAP | {"output": "startTime"},
            "FILE, row 1: startTime = '2026-06-23T06:05:00.5+00:00', expected a whole number",
        ),
    ],
)
def test_a_mapping_that_names_what_is_not_there(tmp_path: Path, columns: dict, line: str) -> None:
    assert complaint(write(tmp_path / "t.jsonl", *NESTED), columns=columns).startswith(line)


IDS = [{"n": 1000, "out": 5, "ids": list(range(8))}, {"n": 1200, "out": 5, "ids": [*range(7), 100, 101, 102]}]


def test_prefix_ids_name_blocks_of_a_size(tmp_path: Path) -> None:
    """Seven blocks of 128 are shared: 896 of 2,200 tokens."""
    path = write(tmp_path / "t.jsonl", *IDS)
    named = {"input": "n", "output": "out", "prefix_ids": "ids"}
    for workload in (read(path, columns=named | {"block_tokens": 128}), read(path, columns=named, block_tokens=128)):
        assert workload.tree.end[workload.leaf].tolist() == [896, 896]
        assert (workload.hash_block_tokens, workload.prefix_identity) == (128, True)
    would = "; blocks of 128 would cover all rows: set block_tokens = 128"
    assert complaint(path, columns=named) == (
        f"FILE: block_tokens is missing, expected how many tokens one of ids names{would}"
    )
    assert complaint(path, columns=named | {"block_tokens": 512}) == (
        f"FILE, row 1: ids = '8 ids', expected 2 ids of 512 tokens to cover n = 1000{would}"
    )


# ---- what needs no mapping ----


@pytest.mark.parametrize(
    "row",
    [
        {"ts": "2026-06-23T06:05:00Z", "prompt_tokens": 7, "completion_tokens": 2},
        {"time": 1.5, "input": 7, "output": 2},
        {"Arrival Time (s)": 1.5, "Input Tokens": 7, "Output Tokens": 2},
        {"createdAt": "2026-06-23T06:05:00Z", "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}},
        {"timestamp_ms": 1500, "ISL": 7, "OSL": 2},
        {
            "@timestamp": "2026-06-23T06:05:00Z",
            "num_prefill_tokens.": 1,
            "attributes": {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 2},
        },
        {"start": 0, "promptTokens": "7", "completionTokens": "2"},
        {"request_time": 5, "prompt_len": 7, "output_len": 2, "prompt": "how long is a text"},
    ],
)
def test_the_usual_names_need_no_mapping(tmp_path: Path, row: dict) -> None:
    workload = read(write(tmp_path / "t.jsonl", row, row))
    assert workload.prompt_tokens.tolist() in ([7, 7], [1, 1])
    assert workload.output_tokens.tolist() == [2, 2]
    assert workload.arrival_s.tolist() == [0, 0]
    assert workload.notes[0].startswith("format: table because its rows have time = ")


def test_rows_in_a_list_of_one_object_and_in_columns(tmp_path: Path) -> None:
    rows = [{"ts": "2026-06-23T06:05:00Z", "prompt_tokens": 7, "completion_tokens": 2 + i} for i in range(3)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    by_row = {name: {str(i): v for i, v in enumerate(values)} for name, values in columns.items()}
    split = {"columns": list(columns), "index": [0, 1, 2], "data": [list(row.values()) for row in rows]}
    plain = read(write(tmp_path / "plain.jsonl", *rows))
    for document in ({"meta": {"n": 3}, "page": {"items": rows}}, columns, by_row, split):
        for indent in (None, 1):
            (tmp_path / "t.json").write_text(json.dumps(document, indent=indent))
            assert same(read(tmp_path / "t.json"), plain), document
    (tmp_path / "two.json").write_text(json.dumps({"a": rows, "b": rows[:1]}))
    assert "say with [workload.columns] rows which list holds the requests (a, b)" in complaint(tmp_path / "two.json")
    named = read(tmp_path / "two.json", columns={"rows": "b", "input": "prompt_tokens", "output": "completion_tokens"})
    assert len(named) == 1


def test_rows_that_are_no_requests_are_skipped_with_their_reason(tmp_path: Path) -> None:
    row = {"ts": "2026-06-23T06:05:00Z", "prompt_tokens": 7, "completion_tokens": 2, "error": ""}
    odd = [{"success": False}, {"status_code": 500}, {"status": "Error"}, {"error": "x"}, {"completion_tokens": 0}]
    odd += [
        {"completion_tokens": None},
        {"prompt_tokens": 0},
        {"status": "200"},
        {"status": "success", "success": "true"},
    ]
    workload = read(write(tmp_path / "t.jsonl", row, *[row | more for more in odd]))
    assert len(workload) == 3
    why = "error is set: 1, no output tokens: 1, status = Error: 1, status_code = 500: 1, success = false: 1"
    assert f"rows read 10 = requests 3 + skipped 7 ({why}, zero input: 1, zero output: 1)" in workload.notes


def test_rows_without_a_time_among_others_are_no_requests(tmp_path: Path) -> None:
    rows = [{"ts": t, "n": 20 + i, "m": 2, "ids": [1, i]} for i, t in enumerate([None, "2026-06-23T06:05:00Z", ""])]
    rows.append(rows[1] | {"ts": "2026-06-23T06:05:02Z"})
    named = {"input": "n", "output": "m", "prefix_ids": "ids", "block_tokens": 16}
    workload = read(write(tmp_path / "t.jsonl", *rows), columns=named)  # its time is called as times are
    workload.check()
    assert workload.arrival_s.tolist() == [0, 2]
    assert workload.tree.end[workload.leaf].tolist() == [21, 21]
    assert "rows read 4 = requests 2 + skipped 2 (no time: 2)" in workload.notes
    assert "columns: time = ts, input = n, output = m, prefix_ids = ids" in workload.notes


def test_tokens_beyond_a_providers_cache_are_not_the_whole_prompt(tmp_path: Path) -> None:
    usage = {
        "input_tokens": 7,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": None,
        "output_tokens": 3,
    }
    path = write(tmp_path / "t.jsonl", *[{"ts": "2026-06-23T06:05:00Z", "usage": usage}] * 2)
    assert read(path).prompt_tokens.tolist() == [1007, 1007]
    named = {"input": "usage.input_tokens", "output": "usage.output_tokens"}
    alone = read(path, columns=named)
    assert alone.prompt_tokens.tolist() == [7, 7]
    assert any("usage.cache_read_input_tokens" in note and "not counted in input" in note for note in alone.notes)
    both = read(path, columns=named | {"input": "usage.input_tokens + usage.cache_read_input_tokens"})
    assert both.prompt_tokens.tolist() == [1007, 1007]


def test_block_ids_that_no_mapping_names_are_said(tmp_path: Path) -> None:
    row = {"ts": "2026-06-23T06:05:00Z", "prompt_tokens": 20, "completion_tokens": 2, "block_hashes": [1, 2]}
    notes = read(write(tmp_path / "t.jsonl", row, row)).notes
    assert "block_hashes: not read; [workload.columns] prefix_ids and block_tokens make it shared text" in notes


def test_what_tables_of_others_look_like(tmp_path: Path) -> None:
    """Empty lines before the header, bars, texts of 200,000 characters, missing values of pandas, separators."""
    head, row = "arrival_s|input|output|prompt", "0.5|100|10|" + "x" * 200_000
    workload = read(write(tmp_path / "t.csv", "", head, row, "1.5|nan|5|", "2.5|7||", "", "3.0|9.0|1|"))
    assert workload.prompt_tokens.tolist() == [100, 9]
    assert workload.arrival_s.tolist() == [0, 2.5]
    assert complaint(write(tmp_path / "u.csv", "time,input,output", '0.5,"1,000",10')) == (
        "FILE, row 2: input = '1,000', expected a whole number of at least 1"
    )
    assert complaint(write(tmp_path / "c.csv", "# exported", "time,input,output")) == (
        "FILE: lines that begin with #; remove them if a table follows"
    )


def test_sums_over_requests_are_not_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path / "u.csv",
        "date_time,input_tokens,output_tokens,num_model_requests",
        "2026-06-23 00:00:00,90000,800,12",
    )
    assert (
        complaint(path)
        == "FILE, row 2: num_model_requests = '12', expected 1: a row that is one request, not the sum of several"
    )


def test_a_column_named_for_times_that_holds_none_is_no_file_without_times(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "timestamp,input,output", "23.6.2026,5,5")
    assert "timestamp = '23.6.2026', expected a finite number" in complaint(path)


def test_decimal_commas_belong_to_semicolons(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "arrival_s;input;output", "0,25;7;2", "1,75;7;2")
    assert read(path).arrival_s.tolist() == [0, 1.5]


def test_a_mapping_is_for_traces_only_and_for_tables() -> None:
    mapping = Columns(input="a", output="b")
    with pytest.raises(InputError, match=r"columns = .* is for traces and has no meaning for a mix"):
        load(WorkloadConfig(preset="chat", columns=mapping))
    with pytest.raises(
        InputError, match=r"\[workload\] columns = .*, expected none: the format azure knows its columns"
    ):
        load(WorkloadConfig(trace="t.csv", format="azure", columns=mapping))
    with pytest.raises(InputError, match=r"\[workload.columns\] block_tokens = 0, expected 1 or more"):
        load(WorkloadConfig(trace="t.csv", columns=Columns(input="a", output="b", block_tokens=0)))


# ---- hostile containers ----


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines beyond 200 times the packed size, one line beyond all rows, and empty lines without end."""
    monkeypatch.setattr(container, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(records, "MAX_ROW", 4 << 20)
    monkeypatch.setattr(records, "MAX_BLANK", 1000)
    monkeypatch.setattr("workloads.table.MAX_BLANK", 1000)
    for pack in ("gzip", "zip", "xz", "zstd", "bzip2"):
        path = tmp_path / pack
        path.write_bytes(PACKED[pack](lines(MOONCAKE) + lines(MOONCAKE[:1]) * 80_000))
        assert complaint(path).endswith("200 times its size, which no trace does; unpack it first if it is one")
    (tmp_path / "one").write_bytes(lines(MOONCAKE) + b"x" * (5 << 20))
    assert complaint(tmp_path / "one") == "FILE, row 10: more than 4 MiB, expected a row of at most that"
    (tmp_path / "lines").write_bytes(lines(MOONCAKE) + b"\n" * 1100)
    assert complaint(tmp_path / "lines") == "FILE, row 10: 1,000 empty lines, expected rows"
    (tmp_path / "s.csv").write_bytes(table(MOONCAKE) + b"\n" * 1100)
    assert complaint(tmp_path / "s.csv") == "FILE, row 11: 1,000 empty lines, expected rows"


@pytest.mark.parametrize("held", ["lines", "array", "indented objects"])
def test_a_row_has_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    monkeypatch.setattr(records, "MAX_ROW", 1 << 20)
    monkeypatch.setattr(records, "CHUNK", 1 << 16)
    path = tmp_path / "t"
    path.write_bytes(CONTAINERS[held]([MOONCAKE[0], {**MOONCAKE[1], "prompt": "x" * (8 << 20)}]))
    assert complaint(path, format="mooncake") == "FILE, row 2: more than 1 MiB, expected a row of at most that"


def test_a_large_row_is_read_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK", 100)
    rows = [{**row, "prompt": 'é\\"[{' * 300} for row in MOONCAKE]
    for held in ("array", "indented array", "indented objects"):
        (tmp_path / held).write_bytes(CONTAINERS[held](rows))
        assert same(read(tmp_path / held), read(write(tmp_path / "t.jsonl", *rows)))


@pytest.mark.parametrize("packed", [name for name in PACKED if name != "plain"])
def test_packed_files_cut_anywhere_are_refused(tmp_path: Path, packed: str) -> None:
    whole = PACKED[packed](lines(MOONCAKE * 50))
    for size in (7, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path = tmp_path / "t"
        path.write_bytes(whole[:size])
        assert complaint(path).startswith(f"FILE: not a whole {packed} file (")


def test_zip_archives_of_other_things(tmp_path: Path) -> None:
    def archive(*names: str) -> Path:
        with zipfile.ZipFile(tmp_path / "t.zip", "w") as file:
            for name in names:
                file.writestr(name, lines(MOONCAKE))
        return tmp_path / "t.zip"

    assert complaint(archive("a.jsonl", "b.jsonl")) == (
        "FILE: a zip archive of 2 files ('a.jsonl, b.jsonl'), expected one; unpack it and name the trace in it"
    )
    assert complaint(archive()) == "FILE: a zip archive of 0 files, expected one; unpack it and name the trace in it"
    assert complaint(archive("xl/workbook.xml", "x")) == "FILE: a spreadsheet (Excel); save the sheet as CSV"
    assert len(read(archive("../../etc/passwd"))) == 9  # a name in it leads nowhere: nothing is written


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'[{"timestamp": 0}, ]', "FILE, row 2: not a whole JSON object (column 20): ']', expected one object a line"),
        (b'[{"timestamp": 0}', "FILE, row 2: the end of the file, expected ']' of a JSON array of objects"),
        (b'[{"timestamp": 0} {"timestamp": 1}]', "FILE, row 2: '{\"timestamp\": 1}]', expected ',' of a JSON array of"),
        (b'[{"output_length": 0}] x', "FILE: data after the JSON array, expected one array of objects"),
        (b'[{"output_length": 0}, 5]', "FILE, row 2: 5, expected a JSON object"),
        (b'[{"a": "\xff"}]', "FILE: not UTF-8, expected JSON text"),
        (b'[{"a": ' + b"[" * 100_000, "FILE, row 1: not a whole JSON object (nested too deeply): "),
    ],
)
def test_arrays_that_are_none(tmp_path: Path, content: bytes, line: str) -> None:
    (tmp_path / "t.json").write_bytes(content)
    problem = complaint(tmp_path / "t.json", columns={"input": "output_length", "output": "output_length"})
    assert problem.startswith(line)


def test_parquet_that_is_cut_or_of_other_types(tmp_path: Path) -> None:
    whole = parquet(MOONCAKE)
    for size in (4, 100, len(whole) - 1):
        (tmp_path / "t").write_bytes(whole[:size])
        assert complaint(tmp_path / "t").startswith("FILE: not a whole Parquet file (")
    rows = [{**row, "input_length": [1]} for row in MOONCAKE]
    (tmp_path / "u").write_bytes(parquet(rows))
    assert complaint(tmp_path / "u") == "FILE, row 1: input_length = [1], expected a whole number of at least 1"
    (tmp_path / "v").write_bytes(parquet([{**row, "timestamp": True} for row in MOONCAKE]))
    assert complaint(tmp_path / "v") == "FILE, row 1: timestamp = True, expected a finite number of at least 0"


SNIPS = [
    b"NaN",
    b"-1",
    b"1e400",
    b"null",
    b"true",
    b'"',
    b"[",
    b"]",
    b"{",
    b",",
    b"\n",
    b"\0",
    b"\xff",
    b"9" * 50,
    b"\x1b[2J",
]


def test_damage_ends_in_requests_or_in_one_line(tmp_path: Path) -> None:
    """Files of every container, each damaged in a place or two, some packed and damaged again."""
    rng, path, read_ones, said = random.Random(0), tmp_path / "t", 0, []
    whole = [held(rows) for held in CONTAINERS.values() for rows in (MOONCAKE, NESTED[1:])]
    for _ in range(250):
        content = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 6)] = rng.choice(SNIPS)
        packed = bytearray(PACKED[rng.choice(list(PACKED))](bytes(content)))
        packed[rng.randrange(len(packed))] ^= rng.choice([0, 0, 0, 1])
        path.write_bytes(packed)
        try:
            read_ones += len(read(path, **rng.choice([{}, {"columns": MAP}]))) > 0
        except InputError as problem:
            said.append(str(problem))
    assert read_ones > 5
    assert not [line for line in said if len(line.splitlines()) != 1 or "\x1b" in line]


def test_kinds_of_files_by_their_first_bytes() -> None:
    assert container.kind_of(b'{"a": 1}\n{"a": 2}\n') == container.JSON_LINES
    assert container.kind_of(b'{\n "a": 1\n}\n') == container.JSON_OBJECT
    assert container.kind_of(b'\xef\xbb\xbf [\n{"a": 1}]') == container.JSON_ARRAY
    assert container.kind_of(b"a;b,c;d\n") == container.SEMICOLONS
    assert container.kind_of(b"a\tb\n") == container.TSV
    assert container.kind_of(b"alone\n1\n") == ""
