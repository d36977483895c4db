"""The beginning of a file, as sniffing sees it through whatever packs it: the fields of its first row.

>>> head = Head(Path("trace.jsonl.gz")); head.container, sorted(head.keys)
('gzip of JSON lines', ['hash_ids', 'input_length', 'output_length', 'timestamp'])
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from workloads.errors import InputError
from workloads.readers.container import DELIMITERS, JSON_ARRAY, PARQUET, column_names, first_line, look
from workloads.readers.records import parquet_source
from workloads.readers.values import NOT_JSON, trace_file


class Head:
    """First bytes of `path`, unpacked. `keys` are the first JSON object's field names (and, for a table, its columns),
    `columns` the names of a table; `first` is that object, {} where it is none or longer than the head."""

    def __init__(self, path: Path) -> None:
        self.path = trace_file(path)
        self.is_folder = path.is_dir()
        self.contents = look(self.path)
        self.bytes = self.contents.head
        self.container = self.contents.words
        self.first: dict[str, Any] = {}
        self.keys: set[str] = set()
        self.columns: list[str] = []
        kind, text = self.contents.kind, self.bytes.decode("utf-8-sig", errors="replace").lstrip()
        if kind == PARQUET:
            self.columns = self._parquet_names()
        elif kind in DELIMITERS:
            self.columns = column_names(first_line(text), kind)
        elif kind:
            self.first = self._first_object(text[1:].lstrip() if kind == JSON_ARRAY else text)
            self.keys = set(self.first) or set(re.findall(r'"([^"\\]{1,80})"\s*:', text))
        self.keys = self.keys or set(self.columns)

    @staticmethod
    def _first_object(text: str) -> dict[str, Any]:
        try:
            value = json.JSONDecoder().raw_decode(text)[0]
        except NOT_JSON:
            return {}
        return value if type(value) is dict else {}

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

    def describe(self) -> str:
        if self.is_folder:
            return "a folder without session files"
        if self.columns:
            return f"{self.container} with the columns " + ", ".join(self.columns)[:120]
        if self.keys:
            return f"{self.container} with the fields " + ", ".join(sorted(self.keys)[:10])
        return "neither JSON nor a table"
