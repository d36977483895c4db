"""The beginning of a file, as sniffing sees it: the keys of a first JSON object or the names of a CSV header."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from workloads.errors import InputError
from workloads.readers.values import NOT_JSON, trace_file

HEAD_BYTES = 1 << 16


class Head:
    """First bytes of `path`. `keys` are the first JSON line's field names, `columns` a CSV header's; one of them is
    empty."""

    def __init__(self, path: Path) -> None:
        self.path = trace_file(path)
        self.is_folder = path.is_dir()
        self.bytes = b"" if self.is_folder else self._first_bytes()
        self.keys: set[str] = set()
        self.columns: list[str] = []
        first = re.split(rb"[\r\n]", self.bytes, maxsplit=1)[0].decode("utf-8-sig", errors="replace").strip()
        if first.startswith("{"):
            self.keys = self._json_keys(first)
        elif "," in first and "\0" not in first:
            self.columns = self._csv_names(first)

    def _first_bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as problem:
            raise InputError(
                f"{self.path}: {(problem.strerror or 'cannot be read').lower()}, expected a trace file"
            ) from None
        if not head.strip():
            raise InputError(f"{self.path}: the file is empty, expected a trace")
        return head

    def _json_keys(self, line: str) -> set[str]:
        """Field names of the first line; of a line too long (or cut) to parse, every name that occurs in the head."""
        try:
            return set(json.loads(line))
        except NOT_JSON:
            return set(re.findall(r'"(\w+)"\s*:', self.bytes.decode("utf-8", errors="replace")))

    @staticmethod
    def _csv_names(line: str) -> list[str]:
        try:
            return [name.strip() for name in next(csv.reader([line]))]
        except csv.Error:
            return []

    def describe(self) -> str:
        if self.is_folder:
            return "a folder without session files"
        if self.keys:
            return "JSON with the fields " + ", ".join(sorted(self.keys)[:10])
        if self.columns:
            return "a table with the columns " + ", ".join(self.columns)[:120]
        return "neither JSON nor a table"
