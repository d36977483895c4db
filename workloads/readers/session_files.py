"""Session documents, wherever they are: a folder, an archive, or one file that holds one, many a line, or an array.

The one idea: whoever reads sessions gets (name, bytes) of each, one at a time and none beyond a session's size.

    >>> for name, content in sessions(Path("cc_traces.jsonl.gz")): ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from workloads.errors import InputError
from workloads.readers.archive import MAX_DOCUMENT, documents, is_archive
from workloads.readers.container import JSON_ARRAY, JSON_LINES, look, unpacked
from workloads.readers.records import records


def sessions(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every session: of a folder or an archive; of a file, packed or not, that is one session, has
    one a line, or is an array of them."""
    contents = look(path)
    if path.is_dir() or is_archive(path) or not (contents.packed or contents.kind in (JSON_LINES, JSON_ARRAY)):
        yield from documents(path, ".json")
        return
    if contents.kind == JSON_ARRAY:
        yield from ((f"row {i}", json.dumps(row).encode()) for i, row in records(path, contents))
        return
    with unpacked(path) as file:
        first = file.readline(MAX_DOCUMENT + 1)
        rest = file.read(MAX_DOCUMENT + 1) if contents.kind != JSON_LINES else file.readline(MAX_DOCUMENT + 1)
        if contents.kind != JSON_LINES or not rest.strip():
            yield path.name, first + rest
            return
        yield "row 1", first
        number = 2
        while rest:
            if len(rest) > MAX_DOCUMENT:
                raise InputError(f"{path}, row {number}: more than {MAX_DOCUMENT >> 20} MiB, expected a session")
            if rest.strip():
                yield f"row {number}", rest
            rest, number = file.readline(MAX_DOCUMENT + 1), number + 1
