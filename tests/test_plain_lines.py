"""Rows that are taken many at once are those that are read one by one: the same columns, trees and refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers import mooncake, records
from workloads.readers.plain_lines import PlainLines

NAMES = ("timestamp", "input_length", "output_length", "hash_ids")
LINES = PlainLines(NAMES, listed="hash_ids")


def rows(rng: random.Random, n: int, names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    """Requests with prompts of blocks of 16 tokens that begin alike, some without an answer."""
    found = []
    for i in range(n):
        ids = [*range(rng.randrange(4)), *(100 * i + j + 10 ** rng.randrange(9) for j in range(1, rng.randrange(2, 5)))]
        row = {
            "timestamp": 1000 * i + rng.randrange(3),
            "input_length": 16 * len(ids) - rng.randrange(16),
            "output_length": rng.randrange(9),
            "hash_ids": ids,
        }
        found.append({name: row[name] for name in names})
    return found


def text(found: list[dict[str, Any]], compact: bool = False) -> bytes:
    separators = (",", ":") if compact else None
    return b"".join(json.dumps(row, separators=separators).encode() + b"\n" for row in found)


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1], (*NAMES[1:], NAMES[0])])
@pytest.mark.parametrize("compact", [False, True])
def test_columns_are_what_json_says(names: tuple[str, ...], compact: bool) -> None:
    found = rows(random.Random(1), 50, names)
    lines = text(found, compact)
    for whole in (lines, lines[:-1]):
        plain = LINES.read(whole)
        assert plain is not None
        for name in NAMES[:3]:
            assert plain.columns[name].tolist() == [row[name] for row in found]
        assert plain.columns["hash_ids"].tolist() == [i for row in found for i in row["hash_ids"]]
        assert plain.counts.tolist() == [len(row["hash_ids"]) for row in found]


GOOD = '{"timestamp": 1, "input_length": 20, "output_length": 3, "hash_ids": [10, 0]}'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[10, 0]", "[10, 00]"),  # no JSON: json.loads says so
        ("[10, 0]", "[10, 01]"),
        ("20", "020"),
        ("[10, 0]", "[10, ]"),
        ("[10, 0]", "[, 10]"),
        ("[10, 0]", "[10, , 0]"),
        ("[10, 0]", "[10 0]"),
        ("[10, 0]", "[1, 0 0]"),
        ("1, ", ", 1"),
        (": 1,", ": ,1 "),
        ("[10, 0]", "5[, 0]"),
        ("timestamp", "time1stamp"),
        (': 1, "input', ': , "in1put'),
        ("[10, 0]", "[10, 0]7"),
        ("}", "} 1"),
        ("}", "}}"),
        ("}", ""),
        ("[10, 0]", "[10, 0"),
        ("[10, 0]", "[]"),  # JSON, and read by it
        ("[10, 0]", "[-10, 0]"),
        ("[10, 0]", "[10.5, 0]"),
        ("[10, 0]", "[1e1, 0]"),
        ("[10, 0]", f"[{2**63 - 1}, 0]"),
        ("[10, 0]", f"[{2**64}, 0]"),
        ("[10, 0]", f"[{10**30}, 0]"),
        ("[10, 0]", '["10", 0]'),
        ("[10, 0]", "null"),
        ("[10, 0]", "10"),
        ("20", '"20"'),
        ('"output_length": 3, ', ""),
        ('"output_length"', '"timestamp"'),
        ("3, ", '3, "session_id": 4, '),
        ("{", " {"),
        ("{", "\ufeff{"),
        ("{", ""),
    ],
)
def test_what_is_no_plain_row_is_left(old: str, new: str) -> None:
    assert old in GOOD
    bad = GOOD.replace(old, new, 1)
    assert LINES.read(GOOD.encode()) is not None
    assert LINES.read(bad.encode()) is None
    assert LINES.read(f"{GOOD}\n{bad}\n{GOOD}".encode()) is None


def same(path: Path, one_by_one: Callable[[], None]) -> bool:
    """Whether the file can be read; it is found the same one by one, or refused in the same words."""

    def outcome() -> Workload | str:
        try:
            return mooncake.read(path, block_tokens=16)
        except InputError as refusal:
            return str(refusal)

    many = outcome()
    one_by_one()
    one = outcome()
    if isinstance(many, str) or isinstance(one, str):
        assert many == one
        return False
    for name, a, b in [
        *((f.name, getattr(many, f.name), getattr(one, f.name)) for f in fields(Workload) if f.name != "tree"),
        *((f.name, getattr(many.tree, f.name), getattr(one.tree, f.name)) for f in fields(many.tree)),
    ]:
        assert type(a) is type(b), name
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), name
        else:
            assert a == b, name
    return True


ODD = [
    *(b"", b" ", b"nonsense", b"null", b"[]", b'{"a": 1}'),
    *(b'{"timestamp": 1.5, "input_length": 3, "output_length": 1, "hash_ids": [4]}',) * 2,
    b'{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": ["x"]}',
    b'{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [4], "session_id": "s"}',
    b'{"created_time": 1, "input_length": 3, "output_length": 1, "hash_ids": [4]}',
    b'{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [18446744073709551615]}',
    b'{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [4, 5, 6]}',
]


@pytest.mark.parametrize("seed", range(40))
def test_a_file_is_read_the_same_in_any_parts(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    path = tmp_path / "trace.jsonl"
    found = text(rows(rng, 40), compact=rng.random() < 0.3).splitlines(keepends=True)
    for _ in range(rng.randrange(3) if seed > 3 else 0):
        at = rng.randrange(1, 40)
        if rng.random() < 0.5:
            found[at] = rng.choice(ODD) + b"\n"
        else:  # a byte more, or another
            where = rng.randrange(len(found[at]) - 1)
            found[at] = (
                found[at][:where] + bytes([rng.choice(b'0123 ,[]{}":-')]) + found[at][where + rng.randrange(2) :]
            )
    path.write_bytes(b"".join(found))
    monkeypatch.setattr(records, "CHUNK", rng.choice([1, 300, 1000, 1 << 20]))
    taken = []
    read = PlainLines.read

    def watched(self: PlainLines, lines: bytes) -> Any:
        taken.append(read(self, lines) is not None)
        return read(self, lines)

    monkeypatch.setattr(PlainLines, "read", watched)
    readable = same(path, lambda: monkeypatch.setattr(PlainLines, "read", lambda _self, _lines: None))
    assert any(taken) or seed > 3
    assert readable or seed > 3
