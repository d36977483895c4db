"""Documents of a trace that is many files: a folder of them, a tar archive that is streamed, or one file alone.

The one idea: an archive is read to its very end, so one that was cut short is noticed, and no further than a trace can
reasonably go, so a small file cannot unpack to more than memory holds.

    >>> for name, content in documents(Path("traces_710.tar.xz"), ".json"): ...
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from workloads.errors import InputError

ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2")
MAX_DOCUMENT = 64 << 20  #: bytes of one document
MAX_UNPACKED = 4 << 30  #: bytes of a whole archive
_BLOCK = 512  #: of tar


def is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVES)


_BROKEN = (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error)


def documents(path: Path, suffixes: str | tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every document that ends in (one of) `suffixes`; of `path` itself where it is neither folder
    nor archive."""
    if path.is_dir():
        for file in sorted(file for file in path.iterdir() if file.name.endswith(suffixes)):
            yield file.name, _content(file)
    elif is_archive(path):
        try:
            yield from _members(path, suffixes)
        except _BROKEN as problem:
            raise InputError(f"{path}: not a whole tar archive ({problem}), expected session files") from None
    else:
        yield path.name, _content(path)


def first_names(path: Path, count: int = 4) -> list[str]:
    """Names of the first files of an archive; fewer (and no complaint yet) where it is damaged."""
    names: list[str] = []
    with (
        contextlib.suppress(InputError, *_BROKEN),
        path.open("rb") as file,
        tarfile.open(fileobj=cast(BinaryIO, _Unpacked(path, file)), mode="r|") as archive,
    ):
        names += (member.name for member in itertools.islice((m for m in archive if m.isfile()), count))
    return names


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise InputError(
            f"{file}: {'a link to nothing' if file.is_symlink() and not file.exists() else 'not a file'}, expected a"
            " session"
        )
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_DOCUMENT + 1)
    except OSError as problem:
        raise InputError(f"{file}: {(problem.strerror or 'cannot be read').lower()}, expected a session") from None
    if len(content) > MAX_DOCUMENT:
        raise InputError(f"{file}: more than {MAX_DOCUMENT >> 20} MiB, expected a session of at most that")
    return content


def _members(path: Path, suffixes: str | tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        unpacked = _Unpacked(path, file)
        with tarfile.open(fileobj=cast(BinaryIO, unpacked), mode="r|", bufsize=1 << 16) as archive:
            for member in archive:
                unpacked.allowed = (
                    unpacked.total + member.size + MAX_DOCUMENT
                )  # until the next header: this member, and headers of it
                if not (member.isfile() and member.name.endswith(suffixes)):
                    continue
                if member.size > MAX_DOCUMENT:
                    raise InputError(
                        f"{path}, {member.name}: {member.size} bytes, expected a session of at most"
                        f" {MAX_DOCUMENT >> 20} MiB"
                    )
                content = archive.extractfile(member)
                assert content is not None  # it is a file
                yield member.name, content.read()
            unpacked.drain()


class _Unpacked:
    """The bytes of an archive after decompression, counted."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        magic = file.read(6)
        file.seek(0)
        if magic == b"\xfd7zXZ\0":
            file = cast(BinaryIO, lzma.LZMAFile(file))  # noqa: SIM115  it holds nothing but `file`, which the caller closes
        elif magic[:2] == b"\x1f\x8b":
            file = cast(BinaryIO, gzip.GzipFile(fileobj=file))
        elif magic[:3] == b"BZh":
            file = cast(BinaryIO, bz2.BZ2File(file))
        self._file = file
        self._path, self.total, self.allowed, self._end = path, 0, MAX_DOCUMENT, b""

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.total += len(data)
        self._end = (self._end + data)[-_BLOCK:]
        if self.total > min(self.allowed, MAX_UNPACKED):
            limit = (
                f"{MAX_UNPACKED >> 30} GiB" if self.total > MAX_UNPACKED else f"{MAX_DOCUMENT >> 20} MiB in one header"
            )
            raise InputError(f"{self._path}: unpacks to more than {limit}, expected session files")
        return data

    def drain(self) -> None:
        """Read to the end; InputError unless the archive ends there with empty blocks, as every whole one does."""
        while data := self.read(1 << 16):
            self.allowed = self.total + MAX_DOCUMENT
            if data.strip(b"\0"):
                raise InputError(f"{self._path}: data after the end of the tar archive, expected one archive")
        if self.total % _BLOCK or self._end.strip(b"\0"):
            raise InputError(
                f"{self._path}: not a whole tar archive (it ends without empty blocks), expected session files"
            )
