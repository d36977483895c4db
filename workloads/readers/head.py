"""The beginning of a file, as sniffing sees it through whatever packs it: the fields of its first row.

>>> head = Head(Path("trace.jsonl.gz")); head.container, sorted(head.keys)
('gzip of JSON lines', ['hash_ids', 'input_length', 'output_length', 'timestamp'])
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

from workloads.errors import InputError
from workloads.readers.container import DELIMITERS, PARQUET, column_names, first_line, look
from workloads.readers.records import parquet_source, records
from workloads.readers.values import trace_file

SAMPLE = 20  #: rows


class Head:
    """The beginning of `path`, unpacked. `rows` are its first rows (as far as they can be read: `problem` says why no
    further), `keys` the names of their fields, `columns` those of a table."""

    def __init__(self, path: Path) -> None:
        self.path = trace_file(path)
        self.is_folder = path.is_dir()
        self.contents = look(self.path)
        self.bytes = self.contents.head
        self.container = self.contents.words
        self.columns: list[str] = []
        kind, text = self.contents.kind, self.bytes.decode("utf-8-sig", errors="replace").lstrip()
        if kind == PARQUET:
            self.columns = self._parquet_names()
        elif kind in DELIMITERS:
            self.columns = column_names(first_line(text), kind)
        self.problem: InputError | None = None
        self.rows = self._first_rows() if kind else []
        self.keys = set(self.columns).union(*self.rows)
        if kind and not self.keys:
            self.keys = set(re.findall(r'"([^"\\]{1,80})"\s*:', text))

    @property
    def first(self) -> dict[str, Any]:
        """The first row; {} where it cannot be read."""
        return self.rows[0] if self.rows else {}

    def _first_rows(self) -> list[dict[str, Any]]:
        rows = []
        try:
            for _, row in itertools.islice(records(self.path, self.contents), SAMPLE):
                rows.append(row)
        except InputError as problem:
            self.problem = problem
        return rows

    def _parquet_names(self) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(parquet_source(self.path, self.contents.packed)).names)
        except (pa.ArrowException, OSError, ValueError) as problem:
            if isinstance(problem, InputError):
                raise
            why = str(problem).splitlines()[0][:100]
            raise InputError(f"{self.path}: not a whole Parquet file ({why}), expected a trace") from None
