"""Whether what lies in a folder is what was written there: size and CRC-32 of every file, kept by the file that is
written last.

    >>> files = of(folder)                    # {"summary.json": [8123, 3735928559], ...}
    >>> broken(folder, files)
    'summary.json: 4,061 bytes where 8,123 were written'
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


def of(folder: Path) -> dict[str, list[int]]:
    """Name -> [bytes, CRC-32] of every file in a folder."""
    return {path.name: [path.stat().st_size, crc(path)] for path in sorted(folder.iterdir()) if path.is_file()}


def crc(path: Path) -> int:
    """CRC-32 of a file's content."""
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def broken(folder: Path, files: Mapping[str, Sequence[int]], read: Collection[str] | None = None) -> str | None:
    """What is wrong with the first file that is not as it was written, or None. read: those whose content is looked at
    (None: all); of the others the size alone."""
    for name, (size, expected) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        found = path.stat().st_size
        if found != size:
            return f"{name}: {found:,} bytes where {size:,} were written"
        if (read is None or name in read) and crc(path) != expected:
            return f"{name}: not the content that was written"
    return None


def listed(document: Any) -> dict[str, list[int]] | None:
    """The files that a document lists, None where it lists none in this form."""
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, dict):
        return None
    alright = all(
        isinstance(one, list) and len(one) == 2 and all(type(value) is int for value in one) for one in files.values()
    )
    return files if alright else None
