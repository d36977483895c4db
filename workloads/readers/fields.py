"""Checked fields of one entry of a document that is no table: each is what it should be, or one clear line says what is
not.

The one idea: whoever walks the document says where it is (`where` and `row`), so every check is a single call.

    class _Reader(Fields): ...; self.row = "4.1"; prompt = self.integer(entry, "in", low=1)
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, MAX_TOKENS, WITHIN
from workloads.readers.values import short


class Fields:
    """Where the reading of a document is, and the checks of what is found there."""

    where = ""  #: the file, and the document in it
    row = ""  #: which request; "" for the document itself

    def finite(self, entry: dict[str, Any], field_name: str) -> int | float:
        value = entry.get(field_name)
        if (type(value) is not int and type(value) is not float) or not 0 <= value < np.inf:
            self.fail(field_name, value, "a finite number of at least 0")
        return value

    def duration_s(self, entry: dict[str, Any], field_name: str, per_second: float = 1) -> float:
        """Seconds that something took."""
        value = self.finite(entry, field_name)
        if value > MAX_SECONDS * per_second:
            self.fail(field_name, value, WITHIN)
        return value / per_second

    def integer(self, entry: dict[str, Any], field_name: str, low: int) -> int:
        value = entry.get(field_name)
        if type(value) is not int or value < low:
            self.fail(field_name, value, f"a whole number of at least {low}")
        if value > MAX_TOKENS:
            self.fail(field_name, value, f"at most {MAX_TOKENS}")
        return value

    def fail(self, field_name: str, value: Any, expected: str) -> NoReturn:
        where = f"{self.where}, request {self.row}" if self.row else self.where
        raise InputError(f"{where}: {field_name} = {short(value)}, expected {expected}")
