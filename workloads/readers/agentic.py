"""What a row of a Mooncake trace says of the requests it waits for, in both versions of Dynamo's agentic rows.

The one idea: whatever the fields are called, they come to names, seconds, and whether the other must be complete or
only sent (`waits.Wait`).

    name, waits = Dependencies(rows).of({"request_id": "b", "wait_for": ["a"], "delay": 100, "tool_wait_ms": 50})
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workloads.limits import MAX_SECONDS, WITHIN
from workloads.readers.common import Rows
from workloads.readers.units import PER_SECOND
from workloads.readers.values import as_float, number
from workloads.readers.waits import Wait, Waits

DELAY = ("delay", "delay_ms")
MS = 1000
"""Ticks of a second in the format's times."""


def first(record: dict[str, Any], names: Sequence[str]) -> Any:
    """The value under the first of these names that the row has, null counting as none."""
    return next((record[name] for name in names if record.get(name) is not None), None)


@dataclass
class Dependencies:
    """The waits of all rows, in file order."""

    rows: Rows
    graph: Waits = field(default_factory=Waits)
    floors: int = 0  #: requests that wait for others and may not begin before a time either

    def of(self, record: dict[str, Any]) -> tuple[str | None, list[Wait]]:
        """(the request's name, what it waits for)."""
        name, rows = record.get("request_id"), self.rows
        if name is not None and type(name) is not str and type(name) is not int:
            rows.fail("request_id", name, "text or a whole number")
        name = None if name is None else str(name)
        if record.get("dependencies"):
            waits = self._dependencies(record["dependencies"])
        elif record.get("wait_for"):
            names = self._list("wait_for", record["wait_for"])
            delay_s = self.seconds(record, DELAY) + self.seconds(record, ("tool_wait_ms",))
            waits = [Wait(str(other), delay_s) for other in names]
        else:
            return name, []
        if name is None:
            rows.fail("request_id", name, f"a name: the row has {self.graph.field_name}")
        if any(wait.name == name for wait in waits):
            rows.fail(self.graph.field_name, name, "other requests than itself")
        self.floors += record.get("not_before_ms") is not None
        return name, waits

    def _dependencies(self, listed: Any) -> list[Wait]:
        waits = []
        for one in self._list("dependencies", listed):
            if type(one) is not dict or one.get("trigger") not in ("completion", "dispatch"):
                self.rows.fail("dependencies", one, "request_id, delay_ms and a trigger, completion or dispatch")
            name = self._list("dependencies", [one.get("request_id")])[0]
            waits.append(Wait(str(name), self.seconds(one, ("delay_ms",)), one["trigger"] == "dispatch"))
        return waits

    def _list(self, name: str, listed: Any) -> list[Any]:
        if type(listed) is not list or any(type(one) not in (str, int, dict) for one in listed):
            self.rows.fail(name, listed, "a list of request ids")
        return listed

    def seconds(self, record: dict[str, Any], names: tuple[str, ...]) -> float:
        """A time that the row gives under one of these names; 0 without one."""
        value = first(record, names)
        if value is None:
            return 0.0
        name = next(n for n in names if record.get(n) is not None)
        own = name.endswith("_ms") or not self.rows.timestamp_unit
        seconds = as_float(number(value)) / (MS if own else PER_SECOND[self.rows.timestamp_unit])
        if not 0 <= seconds <= MAX_SECONDS:
            self.rows.fail(name, value, WITHIN if seconds > 0 else "a finite number of at least 0")
        return seconds
