"""A hash of the code that is installed here: what decides a result, and what a worker must have too.

>>> code_hash("calibrate", "sim", "workloads")
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

DECIDES = ("calibrate", "sim", "workloads")
"""Packages that a result comes from."""


@functools.cache
def code_hash(*packages: str) -> str:
    """Of every module and table of these packages, 64 hexadecimal digits; looked at once by each process."""
    digest = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        assert spec is not None, package
        for root in sorted(map(Path, spec.submodule_search_locations or ())):
            for path in _code(root):
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def everything() -> str:
    """Of all that a worker runs: who makes a task and who takes it must be the same kvcast."""
    return code_hash(*DECIDES, "kvcast")


def _code(root: Path) -> Iterator[Path]:
    return iter(sorted(p for kind in ("*.py", "*.toml") for p in root.rglob(kind)))
