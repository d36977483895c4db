"""Rows of files that hold what people said: an error names file, row and field, and never shows the text.

>>> rows = PrivateRows("conversations.jsonl")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

from workloads.errors import InputError
from workloads.readers.common import Rows
from workloads.readers.records import Taken


class PrivateRows(Rows):
    def records(self, needed: tuple[str, ...] = (), taken: Taken = None) -> Iterator[dict[str, Any]]:
        try:
            yield from super().records(needed, taken)
        except InputError as problem:
            raise InputError(without_text(str(problem))) from None

    def fail(self, field: str, value: Any, expected: str, row: int | None = None) -> NoReturn:
        if isinstance(value, (str, list, dict)):
            value = {str: "a text", list: "a list", dict: "an object"}[type(value)]
        super().fail(field, value, expected, row)


def without_text(line: str) -> str:
    """An error line without what it quotes from the file."""
    return re.sub(r"(?s): (['\"]|\{|\[).*, expected", " (its text is not shown), expected", line)
