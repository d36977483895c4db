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

from calibrate.atlas.shapes import FORM_ERROR

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


BATCH, CONTEXT, PROMPT = 32, 4096, 2048
"""The usual steps: decodes of a batch, and one prompt."""


def by_phase(points: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """{prefill and decode: (expected error of a usual step, the operator that contributes most to it)} of an atlas'
    tables: the errors of the operators by their share of the time, as if all had the same sign."""
    return {kind: _weighted(points, kind) for kind in ("prefill", "decode")}


def _weighted(points: dict[str, Any], kind: str) -> tuple[float, str]:
    errors: dict[str, float] = {}
    for one in points["rests_on"]:
        name = kind if one["name"].endswith(f"_{kind}") else one["name"]
        errors[name] = max(errors.get(name, 0.0), one["error"])
    tokens, rows = (BATCH, BATCH) if kind == "decode" else (PROMPT, 1)
    spent = {op["name"]: op["repeat"] * np.interp(tokens, op["tokens"], op["us"]) for op in points["dense"]}
    spent |= {op["name"]: op["repeat"] * np.interp(rows, op["rows"], op["us"]) for op in points["per_sequence"]}
    table = points[f"{kind}_attention"]
    if kind == "decode":
        by_batch = [np.interp(CONTEXT, table["context"], row) for row in table["us"]]
        spent[kind] = table["repeat"] * np.interp(BATCH, table["batch"], by_batch)
    else:
        spent[kind] = table["repeat"] * np.interp(PROMPT, table["new"], [row[0] for row in table["us"]])
    total = sum(spent.values())
    parts = {name: float(us / total * errors.get(name, FORM_ERROR)) for name, us in spent.items()}
    return sum(parts.values()), max(parts, key=lambda name: parts[name])
