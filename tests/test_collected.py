"""A field's values come back as they were put in, however they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.readers import collected
from workloads.readers.collected import Collected
from workloads.readers.hash_ids import HashIds

VALUES = [3, 0.5, "7", None, True, 2**70, -1, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("at_once", [False, True])
def test_values_come_back_as_they_were(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "CHUNK_ROWS", 3)
    for n in range(len(VALUES) + 1):
        values = Collected()
        if at_once:
            values.extend(VALUES[: n // 2])
            values.extend(VALUES[n // 2 : n])
        else:
            for value in VALUES[:n]:
                values.append(value)
        assert len(values) == n
        assert [(type(v), v) for v in values] == [(type(v), v) for v in VALUES[:n]]
        assert [(type(values[i]), values[i]) for i in range(n)] == [(type(v), v) for v in VALUES[:n]]
        assert values[1:4] == VALUES[1:4][: max(n - 1, 0)]
        assert (values.integers() is None) == (n > 1)
    with pytest.raises(IndexError):
        values[len(VALUES)]


@pytest.mark.parametrize("n", [0, 1, 3, 4])
def test_whole_numbers_are_a_column(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "CHUNK_ROWS", 3)
    values = Collected()
    for i in range(n):
        values.append(2**40 + i)
    found = values.integers()
    assert found is not None
    assert (found.dtype, found.tolist()) == (np.int64, [2**40 + i for i in range(n)])


@pytest.mark.parametrize(
    ("rows", "width"), [([[0, 2**31 - 1], []], 4), ([[0], [2**31]], 8), ([[5], [2**63 + 1, 6]], 8), ([[], []], 8)]
)
def test_ids_are_as_wide_as_the_widest(rows: list[list[int]], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.readers.hash_ids.CHUNK_IDS", 1)
    ids = HashIds()
    assert all(ids.add(row) for row in rows)
    columns = ids.columns()
    assert columns is not None
    assert columns[0].itemsize == width
    assert [int(i) % 2**64 for i in columns[0]] == [i for row in rows for i in row]
    assert columns[1].tolist() == [0, len(rows[0]), len(rows[0]) + len(rows[1])]
