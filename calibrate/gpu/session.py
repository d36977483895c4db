"""One measuring session over a plan: what happens at each point, whatever the device does, and the check for drift at
its end.

The one idea: a point ends as a row, with its time or with why it has none, and only a device that answers no more, a
person or a disk that takes no more rows ends the session. So no single point can keep the others from being measured,
now or at --resume.

    python -m calibrate.gpu.measure --model tiny --device fake --out points.jsonl
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from calibrate.operators import Point

LOST = "device lost"
INTERRUPTED = "interrupted"
MESSAGE = 300
"""Characters kept of an error's text."""


class OutOfMemoryError(Exception):
    """A point that does not fit on the device; the run goes on."""


class DeviceLostError(Exception):
    """The device answers no more; what was measured stays and the run ends."""


class Device(Protocol):
    """Something whose operators can be timed."""

    def about(self) -> dict[str, Any]:
        """name, memory_gib, and whatever identifies drivers and libraries."""
        ...

    def kernels(self) -> str:
        """Names the kernels and their configuration: points of other kernels are not added to."""
        ...

    def clocks(self) -> dict[str, float]:
        """Clock rates and temperature now; empty where there is nothing to read."""
        ...

    def measure(self, point: Point) -> list[float]:
        """Samples of a point in its unit. Raises OutOfMemoryError, DeviceLostError, or anything else that is wrong with
        this point only."""
        ...


class Log:
    """Appends JSON lines; each is on disk when `write` returns."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> Log:
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class Session:
    """One run over the plan; `known` (rows by key, of earlier sessions too) gains every row."""

    def __init__(self, device: Device, log: Log, known: dict[str, dict[str, Any]], clock: Callable[[], float]):
        self.device, self.log, self.known, self.clock = device, log, known, clock

    def run(self, points: Sequence[Point], stop_s: float, after: Callable[[], Any]) -> str:
        """Why it stopped, "" when every point is there."""
        for point in points:
            if point.key in self.known:
                continue
            if self.clock() >= stop_s:
                return "budget spent"
            try:
                self._one(point)
                after()
            except DeviceLostError as e:
                return _lost(point, e)
            except KeyboardInterrupt:
                return INTERRUPTED
        return ""

    def _one(self, point: Point) -> None:
        start_s = self.clock()
        row: dict[str, Any] = {"op": point.op, "shape": point.shape, "unit": point.unit}
        samples, error = self._samples(point)
        if error:
            row["error"] = error
        else:
            row |= {
                "value": _digits(statistics.median(samples)),
                "iqr": _digits(spread(samples)),
                "samples": len(samples),
            }
        row["took_s"] = round(self.clock() - start_s, 4)
        self.log.write(row)
        self.known[point.key] = row

    def _samples(self, point: Point) -> tuple[list[float], str]:
        """(sorted samples, "") or ([], what went wrong at this point)."""
        try:
            return sorted(self.device.measure(point)), ""
        except (DeviceLostError, OSError, ImportError):  # of the machine, not of the point
            raise
        except OutOfMemoryError as e:
            return [], f"out of memory: {e}"
        except (
            Exception
        ) as e:  # a kernel that does not compile or launch at this shape, whatever its library calls that
            return [], " ".join(f"{type(e).__name__}: {e}".split())[:MESSAGE]

    def drift(self, points: Sequence[Point]) -> tuple[dict[str, float], str]:
        """(relative change of every anchor since it was first measured, in whichever session; why it stopped or "")."""
        changes: dict[str, float] = {}
        for point in points:
            first = self.known.get(point.key, {}).get("value")
            if not first:
                continue
            try:
                samples, error = self._samples(point)
            except DeviceLostError as e:
                return changes, _lost(point, e)
            except KeyboardInterrupt:
                return changes, INTERRUPTED
            if error:
                print(
                    f"anchor {point.key} could not be measured again ({error}): its drift is not known", file=sys.stderr
                )
            else:
                changes[point.key] = round(statistics.median(samples) / first - 1, 4)
        return changes, ""


def _lost(point: Point, error: DeviceLostError) -> str:
    print(f"device lost at {point.key}: {error}", file=sys.stderr)
    return LOST


def spread(samples: Sequence[float]) -> float:
    """Inter-quartile range of sorted samples."""
    n = len(samples)
    return samples[(3 * n) // 4 if n > 1 else 0] - samples[n // 4]


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
