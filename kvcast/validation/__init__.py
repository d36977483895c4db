"""Comparisons with recorded truth, recomputed from scratch by `kvcast validate`.

Every set is a module here with `run(data_dir, **options) -> Outcome`.

    >>> from kvcast import validation
    >>> validation.run("golden-cache", Path("reference-data")).passed
    True
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from workloads.errors import InputError

SETS = (
    "golden-cache",
    "golden-optimum",
    "vllm-counters",
    "vllm-rtx4090",
    "roofline",
    "engine-cases",
    "fit",
    "passes",
    "kv-capacity",
    "aisimulate",
)
ASKED_FOR = ("vllm-rtx-pro-6000", "atlas", "engine", "silicon")
"""Sets that run only when named: the first and silicon state goals that are not all met, atlas takes long, engine
compares something of the user's own."""
OWN_DATA = ("atlas", "engine", "silicon")
"""Sets that read nothing of the folder of recorded data."""


@dataclass(frozen=True)
class Outcome:
    """What one comparison found."""

    name: str
    passed: bool
    lines: list[str]  #: for people, the verdict last
    figures: dict[str, Any] = field(default_factory=dict)  #: the same for --json


def chosen(names: Sequence[str]) -> list[str]:
    """The named sets, all of them when none is named; InputError for an unknown one."""
    for name in names:
        known = (*SETS, *ASKED_FOR)
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise InputError(
                f"validate: no set {name!r}, expected one of {', '.join(known)}"
                + (f" (did you mean {close[0]}?)" if close else "")
            )
    return list(names) or list(SETS)


def everything() -> list[str]:
    """Every set but the user's own recording."""
    return [name for name in (*SETS, *ASKED_FOR) if name != "engine"]


def data_dir(given: Path | None, name: str, options: dict[str, Any]) -> Path | None:
    """The folder of recorded data: --data, else $KVCAST_DATA; None where a set has its own folder (engine-cases
    --cases, engine --record)."""
    if given is None and ((name == "engine-cases" and options.get("cases")) or name in OWN_DATA):
        return None
    folder = given or (Path(os.environ["KVCAST_DATA"]) if os.environ.get("KVCAST_DATA") else None)
    if folder is None:
        raise InputError(
            f"validate {name}: no recorded data, expected --data DIR or the environment variable KVCAST_DATA"
        )
    return required(folder)


def required(path: Path) -> Path:
    """`path`, or InputError when it is not there."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder, expected recorded data there")
    return path


def run(name: str, data_dir: Path | None, **options: Any) -> Outcome:
    """Recompute one set; its module is imported only now."""
    return import_module(f"kvcast.validation.{name.replace('-', '_')}").run(data_dir, **options)
