"""What a file is before any format: packed or plain, and then rows of JSON, a table, or Parquet.

The one idea: the first bytes decide, never the name, and every unpacked byte is counted, so that a small file cannot
unpack to more than a trace is.

    >>> contents = look(Path("trace.jsonl.gz")); contents.packed, contents.kind
    ('gzip', 'JSON lines')
    >>> with unpacked(Path("trace.jsonl.gz")) as file: file.readline()
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from workloads.errors import InputError
from workloads.readers.archive import is_archive
from workloads.readers.values import NOT_JSON

HEAD_BYTES = 1 << 16
MAX_UNPACKED = 16 << 30  #: bytes of a packed file's contents
MAX_RATIO, FREE_BYTES = 200, 64 << 20  #: times its packed size, beyond the first 64 MiB: traces pack 5 to 50 times
MAX_IN_MEMORY = 512 << 20  #: bytes of a file that must be whole to be read: packed Parquet, one JSON object

JSON_LINES, JSON_ARRAY, JSON_OBJECT = "JSON lines", "a JSON array", "one JSON object"
CSV, TSV, SEMICOLONS, PARQUET = "a CSV table", "a table with tabs", "a table with semicolons", "Parquet"
BARS = "a table with vertical bars"
DELIMITERS = {CSV: ",", TSV: "\t", SEMICOLONS: ";", BARS: "|"}
BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError, ValueError)
"""What unpacking a damaged file raises."""


MAGIC = (
    (b"%PDF", "a PDF document, expected a trace"),
    (b"\x89PNG", "a picture, expected a trace"),
    (b"\xff\xd8\xff", "a picture, expected a trace"),
    (b"SQLite format 3", "an SQLite database; export the table of requests as CSV"),
    (b"\x93NUMPY", "a numpy array; save the requests as CSV, JSON lines or Parquet"),
    (b"\x80\x04", "a Python pickle, which is not opened; save the requests as CSV, JSON lines or Parquet"),
    (b"\x80\x05", "a Python pickle, which is not opened; save the requests as CSV, JSON lines or Parquet"),
    (b"\x89HDF", "an HDF5 file; save the requests as CSV, JSON lines or Parquet"),
    (b"ARROW1", "an Arrow (Feather) file; save it as Parquet"),
    (b"FEA1", "a Feather file; save it as Parquet"),
    (b"Obj\x01", "an Avro file; save it as Parquet"),
    (b"ORC", "an ORC file; save it as Parquet"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it"),
    (b"Rar!", "a RAR archive; unpack it"),
    (b"\x04\x22\x4d\x18", "an lz4 file; unpack it"),
    (b"\xd0\xcf\x11\xe0", "a spreadsheet or document of Office before 2007; save the table as CSV"),
    (b"\x7fELF", "a program, expected a trace"),
)
"""(first bytes, what such a file is and what to do) of what holds no rows that are read."""
_IN_ZIP = (
    ("xl/workbook.xml", "a spreadsheet (Excel); save the sheet as CSV"),
    ("word/document.xml", "a Word document, expected a trace"),
    ("mimetype", "an OpenDocument file; save the sheet as CSV"),
    (".npy", "arrays of numpy; save the requests as CSV, JSON lines or Parquet"),
    ("data.pkl", "a checkpoint of torch, expected a trace"),
)
_PACKED = (
    ("gzip", b"\x1f\x8b"),
    ("zstd", b"\x28\xb5\x2f\xfd"),
    ("zip", b"PK\x03\x04"),
    ("zip", b"PK\x05\x06"),
    ("bzip2", b"BZh"),
    ("xz", b"\xfd7zXZ\0"),
)


@dataclass(frozen=True)
class Contents:
    """The beginning of a file."""

    packed: str  #: "gzip", "zstd", "zip", "bzip2", "xz"; "" for a plain file
    head: bytes  #: of what it holds, unpacked; "" of a folder and of a tar archive
    kind: str  #: one of the kinds above; "" where it is none

    @property
    def words(self) -> str:
        """ "gzip of JSON lines", or the kind alone."""
        return f"{self.packed} of {self.kind}" if self.packed and self.kind else self.packed or self.kind


def look(path: Path) -> Contents:
    """What a file is by its first bytes; InputError when it cannot be read or is empty."""
    if path.is_dir() or is_archive(path):
        return Contents("", b"", "")
    with unpacked(path) as file:
        head = file.read(HEAD_BYTES)
    if not head.strip():
        raise InputError(f"{path}: the file is empty, expected a trace")
    return Contents(packed_by(path), head, kind_of(head))


def kind_of(head: bytes) -> str:
    """The kind of a file that begins so; "" where it is none that holds rows."""
    if head[:4] == b"PAR1":
        return PARQUET
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    if text.startswith("[") and text[1:].lstrip()[:1] in ("{", "]", ""):
        return JSON_ARRAY
    line = first_line(text)
    if text.startswith("{"):
        return (
            JSON_OBJECT if line.rstrip()[-1] in "{[," and len(line) < len(text) and not _is_json(line) else JSON_LINES
        )
    if "\0" in text or text[:1] in ("[", "<"):
        return ""
    most = max(DELIMITERS, key=lambda kind: len(column_names(line, kind)))
    return most if len(column_names(line, most)) > 1 else ""


def first_line(text: str) -> str:
    return re.split(r"[\r\n]", text, maxsplit=1)[0]


def column_names(line: str, kind: str) -> list[str]:
    """The names in a table's first line."""
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=DELIMITERS[kind]), [])]
    except csv.Error:
        return []


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except NOT_JSON:
        return False
    return True


# ---- unpacking ----


def packed_by(path: Path) -> str:
    """What packed the file, by its first bytes; "" for none."""
    with _opened(path) as file:
        magic = file.read(6)
    return next((name for name, begins in _PACKED if magic.startswith(begins)), "")


def packed_name(head: bytes) -> str:
    """What is packed once more in what was unpacked; "" for nothing."""
    name = next((name for name, begins in _PACKED if head.startswith(begins)), "")
    return f"{name}, packed twice; unpack it" if name else ""


@contextlib.contextmanager
def unpacked(path: Path, seen: Callable[[Any], None] | None = None) -> Iterator[BinaryIO]:
    """The file's contents as a stream, unpacked within bounds; `seen` is handed every byte that was read."""
    packed = packed_by(path)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(path))
        if packed:
            with _damage(path, packed):
                file = stack.enter_context(_UNPACK[packed](path, file))
        yield stack.enter_context(io.BufferedReader(_Counted(path, packed, file, seen), 1 << 20))


class _Counted(io.RawIOBase):
    """Hands bytes on, counts them, and turns whatever a damaged file raises into one line."""

    def __init__(self, path: Path, packed: str, file: BinaryIO, seen: Callable[[Any], None] | None) -> None:
        self._path, self._packed, self._file, self._seen = path, packed, file, seen
        self._total = 0
        self._most = min(MAX_UNPACKED, FREE_BYTES + MAX_RATIO * path.stat().st_size) if packed else 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._packed:
            with _damage(self._path, self._packed):
                data = self._file.read(len(buffer))
            count = len(data)
            buffer[:count] = data
        else:
            count = self._file.readinto(buffer)  # type: ignore[attr-defined]  # a file has it
        self._total += count
        if self._packed and self._total > self._most:
            raise InputError(
                f"{self._path}: unpacks to more than {self._most >> 20:,} MiB, {MAX_RATIO} times its size, which no"
                " trace does; unpack it first if it is one"
            )
        if self._seen:
            self._seen(buffer[:count])
        return count


@contextlib.contextmanager
def _damage(path: Path, packed: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except BROKEN as problem:
        why = "it is cut short" if isinstance(problem, EOFError) else str(problem).splitlines()[0][:100]
        raise InputError(f"{path}: not a whole {packed} file ({why}), expected a trace") from None


def _zip_member(path: Path, file: BinaryIO) -> BinaryIO:
    """The one file in a zip archive; what systems add beside it counts as nothing."""
    archive = zipfile.ZipFile(file)
    hidden = re.compile(r"(^|/)(__MACOSX/|\.[^./])")
    members = [m for m in archive.infolist() if not m.is_dir() and not hidden.search(m.filename)]
    for part, what in _IN_ZIP:
        if any(m.filename.endswith(part) for m in members):
            raise InputError(f"{path}: {what}")
    if len(members) != 1:
        names = ", ".join(m.filename for m in members[:4]) + (", ..." if len(members) > 4 else "")
        raise InputError(
            f"{path}: a zip archive of {len(members)} files{f' ({names!r})' if names else ''}, expected one; unpack it"
            " and name the trace in it"
        )
    if members[0].flag_bits & 1:
        raise InputError(f"{path}: a zip archive with a password, expected one that can be read; unpack it first")
    return cast(BinaryIO, archive.open(members[0]))


def _zstd(_path: Path, file: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"))


_UNPACK: dict[str, Callable[[Path, BinaryIO], BinaryIO]] = {
    "gzip": lambda _path, file: cast(BinaryIO, gzip.GzipFile(fileobj=file)),
    "zstd": _zstd,
    "zip": _zip_member,
    "bzip2": lambda _path, file: cast(BinaryIO, bz2.BZ2File(file)),
    "xz": lambda _path, file: cast(BinaryIO, lzma.LZMAFile(file)),  # noqa: SIM115  its caller closes it
}


def _opened(path: Path) -> BinaryIO:
    try:
        return cast(BinaryIO, path.open("rb", buffering=0))
    except OSError as problem:
        raise InputError(f"{path}: {(problem.strerror or 'cannot be read').lower()}, expected a trace file") from None
