"""The compiled core, where `make fast` has made one: modules of the simulation loop, built by mypyc and Cython.

The one idea: pure Python is the truth and the fallback. What is compiled is taken only whole, only from sources that
are the ones at hand to the byte, and only before any of them has been imported; KVCAST_PURE=1 leaves it out.

    >>> compiled.use()
    'pure Python'
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".fast"
MADE = "made.json"
"""In FOLDER: the files of the build, by module; and the hashes of all sources that it was made of, by path."""
COMPILED, PURE, STALE = "compiled core", "pure Python", "pure Python: the compiled core is of other sources, make fast"


def use(folder: Path = FOLDER) -> str:
    """Import compiled modules from now on, if they are there and current; says what is used."""
    if not (folder / MADE).is_file() or os.environ.get("KVCAST_PURE", "0") not in ("", "0"):
        return PURE
    made = json.loads((folder / MADE).read_text())
    if made["suffix"] != EXTENSION_SUFFIXES[0] or made["sources"] != hashes(made["sources"]):
        return STALE
    if any(name in sys.modules for name in made["modules"]):
        return PURE  # one half of each would not fit together
    sys.path.append(str(folder))  # what the modules of one build share
    sys.meta_path.insert(0, _Finder({name: folder / file for name, file in made["modules"].items()}))
    return COMPILED


def hashes(sources: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of each source, a path below the repository; of one that is not there, nothing."""
    files = {name: ROOT / name for name in sources}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file.is_file()}


class _Finder:
    """Finds the modules of a build before Python looks for their sources."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
