"""Rows of a file as dicts, whatever holds them: JSON lines, a JSON array, objects one after another, a table, Parquet.

The one idea: a row streams by as (number, dict); what is wrong with it names file, row and what was expected, and no
row, however it is packed, may be larger than memory bears.

    >>> for number, row in records(Path("trace.csv.gz")): ...
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from workloads.errors import InputError
from workloads.readers import container
from workloads.readers.container import MAX_IN_MEMORY, Contents, unpacked
from workloads.readers.values import NOT_JSON, short, why_not_json
from workloads.table import MAX_BLANK, records_of

MAX_ROW = 64 << 20  #: bytes of one row
CHUNK = 1 << 20
BATCH_ROWS = 4096  #: of Parquet, in memory at a time

_SPACE = re.compile(r"[ \t\r\n]+")
_DECIMAL = re.compile(r"\s*[+-]?\d+,\d+\s*", re.ASCII)

Row = tuple[int, dict[str, Any]]
Seen = Callable[[Any], None] | None
Taken = Callable[[bytes, int], int] | None
"""(whole lines, how many are before them) -> how many rows they are, taken as they are, or 0: row by row then."""


def records(
    path: Path, contents: Contents, needed: Collection[str] = (), seen: Seen = None, taken: Taken = None
) -> Iterator[Row]:
    """(number, fields) of every row: its line, or in a JSON array and in Parquet its place, from 1. Texts of a table
    that are JSON lists or objects are read as such. `needed`: columns that a table must have. `taken`: who takes JSON
    lines first, many at once; those that it takes are not among the rows."""
    if contents.kind == container.PARQUET:
        yield from _parquet(path, contents, needed, seen)
        return
    with unpacked(path, seen) as file:
        if contents.kind in container.DELIMITERS:
            plain = _nested_or_decimal if contents.kind == container.SEMICOLONS else _nested
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            for number, row in records_of(text, path, needed, container.DELIMITERS[contents.kind]):
                yield number, {name: plain(value) for name, value in row.items()}
            text.detach()
        elif contents.kind in (container.JSON_ARRAY, container.JSON_OBJECT):
            yield from _objects(file, path, contents.kind == container.JSON_ARRAY)
        else:
            yield from _json_lines(file, path) if taken is None else _lines_left(file, path, taken)


def document(path: Path, seen: Seen = None) -> Any:
    """The one JSON value that a file holds."""
    content = _whole(path, seen)
    try:
        return json.loads(content)
    except NOT_JSON as problem:
        raise InputError(
            f"{path}: not a whole JSON document ({why_not_json(problem)}), expected one JSON object"
        ) from None


def objects(path: Path, seen: Seen = None) -> list[dict[str, Any]]:
    """The JSON objects that a file holds, one after another, on a line each or on many."""
    content = _whole(path, seen)
    try:
        text, found = content.decode("utf-8-sig"), []
        scan, space = json.JSONDecoder().raw_decode, re.compile(r"\s*").match
        at = space(text).end()  # type: ignore[union-attr]  # it matches anything
        while at < len(text):
            value, at = scan(text, at)
            found.append(value)
            at = space(text, at).end()  # type: ignore[union-attr]
    except NOT_JSON as problem:
        raise InputError(f"{path}: not a whole JSON object ({why_not_json(problem)}), expected one or more") from None
    for number, value in enumerate(found, 1):
        if type(value) is not dict:
            raise InputError(f"{path}, object {number}: {short(value)}, expected a JSON object")
    return found


def _whole(path: Path, seen: Seen) -> bytes:
    with unpacked(path, seen) as file:
        content = file.read(MAX_IN_MEMORY + 1)
    if len(content) > MAX_IN_MEMORY:
        raise InputError(f"{path}: more than {MAX_IN_MEMORY >> 20} MiB, expected a JSON document of at most that")
    return content


def _nested(text: str) -> Any:
    """A list or an object where a field's text is one in JSON, else the text."""
    if text[:1] not in ("[", "{"):
        return text
    try:
        return json.loads(text)
    except NOT_JSON:
        return text


def _nested_or_decimal(text: str) -> Any:
    """The same where fields are parted by semicolons, since numbers have decimal commas."""
    return text.replace(",", ".") if _DECIMAL.fullmatch(text) else _nested(text)


# ---- JSON ----


def _lines_left(file: BinaryIO, path: Path, taken: Callable[[bytes, int], int]) -> Iterator[Row]:
    """The rows of all lines but those that are taken."""
    number = full = 0
    while lines := file.read(CHUNK) + file.readline(MAX_ROW + 1):
        if count := taken(lines, number):
            number = full = number + count
        else:
            number, full = yield from _json_lines(io.BytesIO(lines), path, number, full)


def _json_lines(file: BinaryIO, path: Path, number: int = 0, full: int = 0) -> Generator[Row, None, tuple[int, int]]:
    """The rows of lines behind `number` others, of which the last that was not blank is `full`; returns both anew."""
    loads = json.loads
    while text := file.readline(MAX_ROW + 1):
        number += 1
        if text.isspace():
            if number - full > MAX_BLANK:
                raise InputError(f"{path}, row {full + 1}: {MAX_BLANK:,} empty lines, expected rows")
            continue
        full = number
        if len(text) > MAX_ROW:
            _too_long(path, number)
        try:
            row = loads(text)
        except NOT_JSON as problem:
            _not_json(path, number, text, problem)
        if type(row) is not dict:
            raise InputError(f"{path}, row {number}: {short(row)}, expected a JSON object")
        yield number, row
    return number, full


def _objects(file: BinaryIO, path: Path, in_array: bool) -> Iterator[Row]:
    """Objects of an array, or one after another, decoded as they stream by."""
    text, scan = _Text(file, path), json.JSONDecoder().raw_decode
    if in_array:
        text.take("[")
    number = 0
    while text.more() and not (in_array and text.at("]")):
        number += 1
        if in_array and number > 1:
            text.take(",", number)
        yield number, text.value(scan, number)
    if in_array:
        text.take("]", number + 1)
        if text.more():
            raise InputError(f"{path}: data after the JSON array, expected one array of objects")


class _Text:
    """A window on the text of a stream that moves forward and grows only while one value needs it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._ended = "", 0, False

    def _grow(self, size: int) -> None:
        data = self._file.read(size)
        self._ended = len(data) < size
        try:
            self._text, self._at = self._text[self._at :] + self._decode(data, self._ended), 0
        except UnicodeDecodeError:
            raise InputError(f"{self._path}: not UTF-8, expected JSON text") from None

    def more(self) -> bool:
        """Whether anything but space is left; stands on it then."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at < len(self._text) or self._ended:
                return self._at < len(self._text)
            self._grow(CHUNK)

    def at(self, sign: str) -> bool:
        return self._text.startswith(sign, self._at)

    def take(self, sign: str, number: int = 1) -> None:
        if not (self.more() and self.at(sign)):
            found = short(self._text[self._at : self._at + 40]) if self.more() else "the end of the file"
            raise InputError(f"{self._path}, row {number}: {found}, expected {sign!r} of a JSON array of objects")
        self._at += 1
        self.more()

    def value(self, scan: Callable[[str, int], tuple[Any, int]], number: int) -> dict[str, Any]:
        size = CHUNK
        while True:
            try:
                row, self._at = scan(self._text, self._at)
                break
            except NOT_JSON as problem:
                left = len(self._text) - self._at
                if self._ended or not self._cut(problem):
                    _not_json(self._path, number, self._text[self._at : self._at + 200].encode(), problem)
                if left > MAX_ROW:
                    _too_long(self._path, number)
                self._grow(size)
                size *= 2
        if type(row) is not dict:
            raise InputError(f"{self._path}, row {number}: {short(row)}, expected a JSON object")
        return row

    def _cut(self, problem: Exception) -> bool:
        """Whether it may only be the end of the window that is wrong."""
        if not isinstance(problem, json.JSONDecodeError):
            return False
        return problem.pos > len(self._text) - 16 or problem.msg.startswith("Unterminated string")


def _not_json(path: Path, number: int, text: bytes, problem: Exception) -> NoReturn:
    if b"\0" in text[:1000]:
        raise InputError(f"{path}, row {number}: binary data, expected one JSON object a line") from None
    raise InputError(
        f"{path}, row {number}: not a whole JSON object ({why_not_json(problem)}):"
        f" {short(text[:200].decode(errors='replace'))}, expected one object a line"
    ) from None


def _too_long(path: Path, number: int) -> NoReturn:
    raise InputError(f"{path}, row {number}: more than {MAX_ROW >> 20} MiB, expected a row of at most that") from None


# ---- Parquet ----


def _parquet(path: Path, contents: Contents, needed: Collection[str], seen: Seen) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(parquet_source(path, contents.packed, seen), pre_buffer=False)
        names = table.schema_arrow.names
        for name in needed:
            if name not in names:
                among = ", ".join(map(repr, names))[:200]
                raise InputError(f"{path}: no column {name!r} among {among}, expected {', '.join(needed)}")
        number = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS):
            columns = {name: _plain(batch.column(i)) for i, name in enumerate(names)}
            for values in zip(*columns.values(), strict=True):
                number += 1
                yield number, {name: v for name, v in zip(columns, values, strict=True) if v is not None}
    except (pa.ArrowException, OSError, ValueError) as problem:
        if isinstance(problem, InputError):
            raise
        why = str(problem).splitlines()[0][:100]
        raise InputError(f"{path}: not a whole Parquet file ({why}), expected a trace") from None


def parquet_source(path: Path, packed: str, seen: Seen = None) -> Any:
    """What pyarrow opens: the file, or its unpacked bytes."""
    with unpacked(path, seen) as file:
        if not packed:
            while seen and file.read(CHUNK):
                pass
            return path.open("rb")  # arrow opens no name that is not UTF-8
        content = file.read(MAX_IN_MEMORY + 1)
    if len(content) > MAX_IN_MEMORY:
        raise InputError(f"{path}: unpacks to more than {MAX_IN_MEMORY >> 20} MiB; unpack this Parquet file first")
    return io.BytesIO(content)


def _plain(column: Any) -> list[Any]:
    """A column's values as JSON would have them: times as text in UTC, decimals as numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_timestamp(kind):
        column = pc.cast(pc.cast(column, pa.timestamp(kind.unit)), pa.string())
    elif pa.types.is_decimal(kind):
        column = pc.cast(column, pa.float64())
    return list(column.to_pylist())
