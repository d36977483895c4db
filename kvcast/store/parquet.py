"""Tables on disk: numpy columns to Parquet and back, one column at a time.

The one idea: nothing in a file depends on when or where it was written, so equal runs are equal bytes; and a column
that nobody asks for is never read.

    >>> write(Path("t.parquet"), {"x": np.arange(3)}); Table(Path("t.parquet"))["x"]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.measure.columns import part_of
from workloads.errors import InputError

ROW_GROUP = 1 << 20


class Table(Mapping[str, np.ndarray]):
    """The columns of a file, each read when it is first asked for. Raises InputError when it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: list[str] = self._reading(lambda pq, file: pq.read_schema(file).names)
        self._columns: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            if name not in self._names:
                raise KeyError(name)
            self._columns[name] = self._reading(lambda pq, file: _numpy(pq.read_table(file, columns=[name])[name]))
        return self._columns[name]

    def check(self) -> None:
        """Read it all, at once, and keep nothing."""
        self._reading(lambda pq, file: pq.read_table(file).validate())

    def _reading(self, read: Callable[[Any, Any], Any]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self.path.open("rb") as file:  # arrow opens no name that is not UTF-8
                return read(pq, file)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{self.path}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _numpy(column: Any) -> np.ndarray:
    import pyarrow as pa

    return (column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column).to_numpy()


def write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """A table, a row group at a time. Columns of objects are text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def arrow(column: np.ndarray) -> pa.Array:
        return pa.array(column, pa.string() if column.dtype == object else None)

    rows = len(next(iter(columns.values()), ()))
    with contextlib.ExitStack() as opened:
        writer = None
        for at in range(0, max(rows, 1), ROW_GROUP):
            part = part_of(columns, slice(at, at + ROW_GROUP))
            table = pa.table({name: arrow(column) for name, column in part.items()})
            if writer is None:
                file = opened.enter_context(path.open("wb"))
                writer = opened.enter_context(pq.ParquetWriter(file, table.schema, compression="zstd"))
            writer.write_table(table)


def write_batches(path: Path, batches: Iterable[Mapping[str, np.ndarray]], words: Mapping[str, Sequence[str]]) -> None:
    """A table of any length, a row group a batch. words: what the codes of a column stand for; it becomes text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    meaning = {name: pa.array(list(known), pa.string()) for name, known in words.items()}

    def arrow(name: str, column: np.ndarray) -> pa.Array:
        return (
            pa.DictionaryArray.from_arrays(pa.array(column, pa.int32()), meaning[name])
            if name in meaning
            else pa.array(column)
        )

    with contextlib.ExitStack() as opened:
        writer = None
        for batch in batches:
            table = pa.table({name: arrow(name, column) for name, column in batch.items()})
            if writer is None:
                file = opened.enter_context(path.open("wb"))
                writer = opened.enter_context(pq.ParquetWriter(file, table.schema, compression="zstd"))
            writer.write_table(table)
