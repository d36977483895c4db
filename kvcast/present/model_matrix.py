"""Which model runs on which GPU, in how small a layout, and what its step times there rest on.

The one idea: of a model and a GPU two questions are asked before any simulation: does it fit one node, and was what it
does there measured. A cell answers both.

>>> cell("gpt-oss-120b", "h200")
Cell(width=1, word='interpolated', error=0.029...)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workloads.errors import InputError

MEASURED, INTERPOLATED, IN_PART, ROOFLINE = "measured", "interpolated", "part formula", "roofline"
DOES_NOT_FIT, NO_PRICE = "does not fit", "no step times"
WORDS = (MEASURED, INTERPOLATED, IN_PART, ROOFLINE, NO_PRICE, DOES_NOT_FIT)
CONTEXT = 8192
"""Tokens of one request that the KV memory must hold beside the weights (the model's context where that is shorter)."""
HEADER = """
## Which GPU holds which model

Made by `kvcast profile models --matrix --markdown` (`--dtype fp8` for another type of unquantized weights). A cell is
the fewest GPUs of a node of 8 (tensor parallel 1, 2, 4, 8) that hold the weights, as published, and one request of
8,192 tokens; then what a step's time rests on there, and the largest expected error of one of its operators
([profiles](profiles.md)). *measured*: every operator at a shape that was measured. *interpolated*: some between
measured shapes. *part formula*: some beyond what was measured, or by FLOPs and bytes. *roofline*: the data sheet alone.
*no*: eight GPUs do not hold it.
"""


@dataclass(frozen=True)
class Cell:
    """width: the fewest GPUs of one node (1, 2, 4, 8) that hold the model; None: eight do not. word: what its step
    times rest on there. error: the largest expected error of one of its operators as a share; None where none is
    stated."""

    width: int | None
    word: str
    error: float | None = None

    @property
    def text(self) -> str:
        if self.width is None:
            return "no"
        error = f" {100 * self.error:.0f} %" if self.error else ""
        return f"{self.width}: {self.word}{error}"


def gpus() -> list[str]:
    """The GPUs with measured operators, smallest memory first."""
    from calibrate.atlas.tables import bundled_gpus, load

    return sorted(bundled_gpus(), key=lambda gpu: float(load(gpu).header["memory_gib"]))


def cell(name: str, gpu: str, dtype: str = "bf16") -> Cell:
    """A bundled (or hf:) model on a GPU by name. dtype: of an unquantized model's weights; a checkpoint's own
    quantization stays."""
    from calibrate.memory import GpuMemory, wider
    from calibrate.models import resolve_model
    from calibrate.resolve import profile_of_gpu, resolve_profile
    from calibrate.sources.roofline import GPUS, roofline_profile

    model = resolve_model(name)
    weights, kv = model.weight_dtype(dtype), model.kv_dtype(dtype)
    device: Any = roofline_profile(gpu) if gpu in GPUS else _device(gpu)
    one = GpuMemory(device, model, weights, kv, 1, 0.92, 16)
    request = min(CONTEXT, model.max_context)
    width = 1 if one.runs_at(1) and one.blocks(request) * 16 >= request else None
    if width is None and (found := wider(one, request)) is not None:
        width = found[0]
    if width is None:
        return Cell(None, DOES_NOT_FIT)
    try:
        profile = resolve_profile(profile_of_gpu(gpu, model, weights, width, kv), model, weights, width, kv)
    except InputError:
        return Cell(width, NO_PRICE)
    return Cell(width, *_rests_on(profile))


def _device(gpu: str) -> Any:
    """A GPU's memory alone, where there is no data sheet of it: any bundled model's profile has it."""
    from calibrate.atlas.steps import atlas_profile
    from calibrate.models import resolve_model

    return atlas_profile(gpu, resolve_model("llama-3.1-8b"))


def _rests_on(profile: Any) -> tuple[str, float | None]:
    """The word and the error of the operator that is known least. Norms, activations and the embedding are bandwidth
    formulas in every profile and are not asked."""
    if profile.kind == "roofline":
        return ROOFLINE, None
    operators = [one for one in profile.points.get("rests_on", ()) if "share of bandwidth" not in one["basis"]]
    if not operators:  # a profile of the whole model, as its package answers
        return MEASURED, None
    errors = max(float(one["error"]) for one in operators)
    words = {one["coverage"] for one in operators}
    word = IN_PART if "extrapolated" in words else INTERPOLATED if "interpolated" in words else MEASURED
    return word, errors


def rows(names: Sequence[str], on: Sequence[str], dtype: str = "bf16") -> list[dict[str, Any]]:
    """A row a model: the type of its weights, and a cell a GPU."""
    from calibrate.models import resolve_model

    return [
        {
            "model": name,
            "weights": resolve_model(name).precision(resolve_model(name).weight_dtype(dtype)).name,
            "cells": {gpu: cell(name, gpu, dtype) for gpu in on},
        }
        for name in names
    ]


def table(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[row["model"], row["weights"], *(one.text for one in row["cells"].values())] for row in found]


def columns(on: Sequence[str]) -> list[str]:
    return ["model", "weights", *on]


def as_markdown(found: Sequence[dict[str, Any]], on: Sequence[str]) -> str:
    """The section of docs/models.md."""
    words = [one.word for row in found for one in row["cells"].values()]
    told = ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)
    head = ["| " + " | ".join(columns(on)) + " |", "|" + "---|" * (len(on) + 2)]
    return "\n".join(
        [HEADER, f"Cells: {told}.", "", *head, *("| " + " | ".join(cells) + " |" for cells in table(found))]
    )
