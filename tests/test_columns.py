"""Columns of many requests in little memory: the same report whatever the block, the same files whatever the group.

python -m pytest tests/test_columns.py
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvcast import api, scenario_from_doc
from kvcast.store import aggregates, parquet
from sim import paths
from sim.measure import columns
from sim.measure.columns import Columns, dense, minus, part_of, summed_by
from sim.measure.report import Report

LAYERS = [
    {"name": "system", "scope": "project", "tokens": {"value": 900}, "items": 4, "zipf": 0.8},
    {"name": "message", "scope": "dynamic", "tokens": {"kind": "exponential", "mean": 300}},
]
CLASSES = [
    {
        "name": name,
        "turns": {"kind": "geometric", "mean": 3, "high": 9},
        "think": {"kind": "exponential", "mean": 5},
        "output": {"kind": "exponential", "mean": 40},
        "layers": LAYERS,
        **more,
    }
    for name, more in (("chat", {"share": 0.7}), ("bot", {"share": 0.3, "isolation": True, "tenants": 3}))
]


def report() -> Report:
    return api.simulate(
        scenario_from_doc(
            {
                "workload": {"rate": 3, "requests": 150, "class": CLASSES},
                "model": {"name": "llama-3.1-8b"},
                "hardware": {"profile": "h200-llama-3.1-8b-aic"},
                "engine": {"kv_blocks": 400, "max_model_len": 4096},
                "cluster": {"replicas": 2, "router": "session-affinity"},
                "slo": {"ttft_s": 0.2, "tpot_s": 0.05, "attainment": 0.9},
                "run": {"warmup_s": 3},
            },
            "blocks",
        )
    )


def told(one: Report) -> dict[str, object]:
    """All of it, with arrays as bytes."""
    tables = {name: getattr(one, name) for name in ("requests", "sessions", "timeline", "cache")}
    bytes_of = {
        f"{table} {name}": (str(column.dtype), column.tolist() if column.dtype == object else column.tobytes())
        for table, of in tables.items()
        for name, column in of.items()
    }
    documents = ("summary", "latency", "classes", "slo_classes", "tenants", "notes")
    return {**{name: repr(getattr(one, name)) for name in documents}, **bytes_of, "drawn": repr(aggregates.of(one))}


def test_a_report_is_the_same_whatever_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report()
    assert whole.summary["miss_tokens"]["evicted"] > 0
    assert whole.summary["miss_tokens"]["other_replica"] > 0
    assert len(whole.tenants) > 1
    monkeypatch.setattr(columns, "BLOCK", 7)
    monkeypatch.setattr(paths, "AT_ONCE", 3)
    in_blocks = told(report())
    for name, value in told(whole).items():
        assert in_blocks[name] == value, name
    some = slice(20, 61)
    for name, column in part_of(whole.requests, some).items():
        assert column.tobytes() == whole.requests[name][some].tobytes(), name


def test_columns_are_made_when_asked_for_and_travel_without_what_they_are_made_of() -> None:
    a, b = np.arange(6.0), np.array([0.5, 0, 0, np.nan, 1, 2])
    table = Columns({"a": a, "apart": partial(minus, a, b)})
    assert (list(table), len(table), "b" in table) == (["a", "apart"], 2, False)
    assert table["a"].base is a
    a[1] = 9.0
    assert table["apart"].tolist()[:3] == [-0.5, 9.0, 2.0]
    for some in (slice(1, 3), slice(4, 99), slice(0, 0)):
        assert table.part(some)["apart"].tolist() == table["apart"][some].tolist()
        assert part_of(dict(table), some)["a"].tolist() == part_of(table, some)["a"].tolist()
    again = pickle.loads(pickle.dumps(table))
    assert all(isinstance(column, np.ndarray) for column in again.given().values())
    assert np.array_equal(again["apart"], table["apart"], equal_nan=True)
    with pytest.raises(KeyError):
        table["b"]


def test_numbers_to_count_by() -> None:
    near, far = np.array([3, 0, 3, 7]), np.array([10**12, -5, 10**12, 40])
    assert dense(near).tolist() == near.tolist()
    assert dense(far).tolist() == [2, 0, 2, 1]
    assert dense(np.empty(0, np.int64)).tolist() == []


def test_sums_by_group_leave_out_those_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 2)
    assert summed_by(np.array([1, -1, 0, 1, 3]), np.array([5, 100, 2, 2**52, 1]), 4).tolist() == [2, 5 + 2**52, 0, 1]


@pytest.mark.parametrize("rows", [0, 5, 64, 199])
def test_a_table_in_row_groups_is_the_file_of_the_table_at_once(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP", 64)
    a, words = np.arange(rows) % 7, np.array(["few", "many"], dtype=object)[np.arange(rows) % 2]
    table = Columns({"a": a, "word": words, "half": lambda part: a[part] / 2})
    parquet.write(tmp_path / "groups.parquet", table)
    arrays = {"a": pa.array(a), "word": pa.array(words, pa.string()), "half": pa.array(a / 2)}
    pq.write_table(pa.table(arrays), tmp_path / "once.parquet", compression="zstd", row_group_size=64)
    assert (tmp_path / "groups.parquet").read_bytes() == (tmp_path / "once.parquet").read_bytes()


def test_columns_are_a_table_to_pyarrow_and_say_what_they_are() -> None:
    """Report.requests as tables: whole, with every column made, and never names taken for rows."""
    made = Columns({"a": np.arange(3), "b": partial(minus, np.arange(3.0), np.ones(3))})
    table = pa.table(made)
    assert table.to_pydict() == {"a": [0, 1, 2], "b": [-1.0, 0.0, 1.0]}
    assert table.schema.types == [pa.int64(), pa.float64()]
    assert repr(made) == "Columns(3 rows: a, b)"
    assert repr(Columns({})) == "Columns(0 rows: )"
    assert pd.DataFrame(dict(made)).to_dict("list") == table.to_pydict()
    with pytest.raises(TypeError, match=r"expected one of them, columns\[name\], or dict\(columns\)"):
        pd.DataFrame(made)
    requests = report().requests
    assert pa.table(requests).column_names == list(requests)
    assert repr(requests).startswith(f"Columns({len(requests['status']):,} rows: ")
