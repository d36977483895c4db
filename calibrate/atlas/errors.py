"""The error that a price states, by operator, type and distance from the nearest measured shape.

The one idea: found by leaving measured shapes out (calibrate.atlas.heldout), kept in errors.json beside the atlas
files, looked up by whoever prices.

    python -c "from calibrate.atlas.errors import stated_error as f; print(f('h200', ['vllm'], 'gemm', 'fp8', 0.5))"
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

ERRORS = Path(__file__).parent / "errors.json"


@lru_cache(maxsize=1)
def _stated() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ERRORS.read_text(encoding="utf-8"))
    return found


def stated_error(gpu: str, backends: Sequence[str], operator: str, dtype: str, octaves: float) -> float | None:
    """Mean error expected of an operator `octaves` from the nearest measured shape, of the first backend that has it;
    of the type that errs most where this one was not left out. None where nothing was."""
    for backend in backends:
        by_type = _stated().get(gpu, {}).get(f"{backend}/{operator}")
        if by_type:
            rows = np.array([by_type[dtype]]) if dtype in by_type else map(np.array, by_type.values())
            return max(float(np.interp(octaves, row[:, 0], row[:, 1])) for row in rows)
    return None
