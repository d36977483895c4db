"""CSV tables, column by column: which columns a file has, what each holds, and the one line about a value that is none.

The one idea: a table is a dict of columns, name -> `Kind`; a kind turns a field's text into a value, or says what was
expected. What is wrong names file, row, column, value and expectation.

    >>> read_table(Path("dense.csv"), {"layer": TEXT, "tokens": WHOLE, "time_us": NUMBER})
    [{"layer": "embedding", "tokens": 1, "time_us": 7.5}, ...]
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from workloads.errors import InputError
from workloads.limits import Limit

MAX_FIELD = 16 << 20  #: characters of one field
MAX_BLANK = 10**6  #: empty lines in a row
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Kind(NamedTuple):
    """What a column holds."""

    parse: Callable[[str], Any]  #: NaN for a text that is no number, None for one that is nothing
    limit: Limit | None = None  #: of the parsed number
    words: str = ""  #: what an error line expects
    optional: bool = False  #: the column may be missing, and a field blank: both are None

    def value(self, text: str) -> Any:
        """The field's value; ValueError when it is not of this kind."""
        if self.optional and not text.strip():
            return None
        value = self.parse(text)
        if value is None or (self.limit and value not in self.limit):
            raise ValueError(self.words)
        return value


def number(text: str) -> int | float:
    """The number that a text is; NaN for anything else, also for what Python takes for one (1_000, nan, Arabic
    digits)."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text) if len(text) < 40 else math.inf
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _whole(text: str) -> int | float:
    value = number(text)
    return int(value) if math.isfinite(value) and value == int(value) else math.nan


FINITE = Limit(0, math.nextafter(math.inf, 0), "a number of zero or more")
TEXT = Kind(str.strip)
NUMBER = Kind(number, FINITE, FINITE.words)
WHOLE = Kind(_whole, FINITE, "a whole number of zero or more")
FLAG = Kind(lambda text: {"true": True, "false": False}.get(text.strip().lower()), None, "True or False")


def maybe(kind: Kind) -> Kind:
    """The same for a column that may be missing, or blank in a row."""
    return kind._replace(optional=True)


def read_table(path: Path, columns: Mapping[str, Kind]) -> list[dict[str, Any]]:
    """The rows of a CSV file, by column; a missing optional value is None."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise InputError(f"{path}: cannot read ({e.strerror}); expected a table (CSV)") from None
    needed = [name for name, kind in columns.items() if not kind.optional]
    rows = [
        {name: _field(path, row, name, kind, texts) for name, kind in columns.items()}
        for row, texts in records(content, path, needed)
    ]
    if not rows:
        raise InputError(f"{path}: no rows; expected at least one")
    return rows


def _field(path: Path, row: int, name: str, kind: Kind, texts: Mapping[str, str]) -> Any:
    try:
        return kind.value(texts.get(name, ""))
    except ValueError as expected:
        raise InputError(f"{path}, row {row}: {name} = {texts[name][:60]!r}, expected {expected}") from None


def records(content: bytes, path: Path, needed: Collection[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(file row, field by column) of every data row; blank lines end nothing and count as nothing."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(
            f"{path}: not text ({problem.reason} at byte {problem.start}), expected CSV with columns"
            f" {', '.join(needed)}"
        ) from None
    return records_of(io.StringIO(text, newline=""), path, needed)


def records_of(
    text: TextIO, path: Path, needed: Collection[str], delimiter: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """The same of a stream (newline="", so that line ends stay as they are) as it is read."""
    expected = f" with columns {', '.join(needed)}" if needed else ""
    lines = _lines(text, path, delimiter, expected)
    header = [name.strip() for name in next((values for _, values in lines if values), [])]
    if not header:
        raise InputError(f"{path}: the file is empty, expected CSV{expected}")
    for name in needed:
        if name not in header:
            among = ", ".join(map(repr, header))[:200]
            raise InputError(f"{path}, row 1: no column {name!r} among {among}, expected {', '.join(needed)}")
    for i, name in enumerate(header):
        if name and name in header[:i]:
            raise InputError(f"{path}, row 1: column {name!r} comes twice, expected every column once")
    full = 0
    for row, values in lines:
        if not values and row - full > MAX_BLANK:
            raise InputError(f"{path}, row {full + 1}: {MAX_BLANK:,} empty lines, expected rows")
        full = row if values else full
        if values and len(values) != len(header):
            raise InputError(f"{path}, row {row}: {len(values)} fields, expected {len(header)}")
        if values:
            yield row, dict(zip(header, values, strict=True))


def _lines(text: TextIO, path: Path, delimiter: str, expected: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of fields, lines ended by LF, CR LF or CR, with the line where each begins."""
    csv.field_size_limit(MAX_FIELD)  # of the process: the module has no other way
    lines = csv.reader(text, delimiter=delimiter)
    while True:
        row = lines.line_num + 1
        try:
            values = next(lines)
        except StopIteration:
            return
        except csv.Error as problem:
            raise InputError(f"{path}, row {row}: not a row of CSV ({problem})") from None
        except UnicodeDecodeError as problem:
            raise InputError(f"{path}: not UTF-8 ({problem.reason} near row {row}), expected CSV{expected}") from None
        yield row, values
