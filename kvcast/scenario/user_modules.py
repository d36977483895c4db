"""The modules of a user's that a module imports, and those that they import: what decides a result beside the
simulator.

The one idea: imports are read from the source, not from what happens to be loaded, for `from helper import WEIGHT`
leaves no trace in a module. Python's own modules, installed packages and the simulator's are nobody's edits. What is
imported under a name made while running, and files that are only read, are not seen.

    >>> list(imported_by("my_policy"))
    ['my_helper', 'my_policy']
"""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

OURS = ("calibrate", "kernels", "kvcast", "sim", "workloads")
INSTALLED = {"site-packages", "dist-packages"}


def imported_by(module: str) -> dict[str, Path]:
    """Name -> source file of every user's module that this one imports, each after those it imports itself, and then of
    this one, wherever it is from. Empty for a module of the simulator, or one without a file."""
    found: dict[str, Path] = {}
    file = file_of(module)
    if file is not None and not _is_under(file, _our_folders()):
        _visit(module, file, found, {module})
    return found


def globals_of(module: ModuleType) -> dict[str, Path]:
    """The same of a module that has no file, from what its globals are or were defined in."""
    names = {
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in vars(module).values()
    }
    found: dict[str, Path] = {}
    for name in sorted(name for name in names if isinstance(name, str) and name != module.__name__):
        file = file_of(name)
        if file is not None and _is_users(file):
            _visit(name, file, found, set(found) | {name})
    return found


def file_of(name: str) -> Path | None:
    """The source file of a module, without running anything."""
    loaded = sys.modules.get(name)
    spec = None if loaded is not None else _spec(name)
    file = getattr(loaded, "__file__", None) if loaded is not None else spec and spec.origin
    return Path(file) if file and file.endswith(".py") and Path(file).is_file() else None


def _spec(name: str) -> ModuleSpec | None:
    spec, folders = None, None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), folders)
        if spec is None:
            return None
        folders = spec.submodule_search_locations or []
    return spec


def _visit(name: str, file: Path, found: dict[str, Path], seen: set[str]) -> None:
    for imported in _imports(file.read_bytes(), name, file.name == "__init__.py"):
        if imported in seen:
            continue
        seen.add(imported)
        its_file = file_of(imported)
        if its_file is not None and _is_users(its_file):
            _visit(imported, its_file, found, seen)
    found[name] = file


@functools.cache
def _imports(source: bytes, name: str, is_package: bool) -> tuple[str, ...]:
    """Every name that may be a module and is imported anywhere in the source, its packages before it; the module's own
    packages too."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # said when it is run
        return ()
    package = name if is_package else name.rpartition(".")[0]
    names = list(_packages(name))[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [part for alias in node.names for part in _packages(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names += [*_packages(base), *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    return tuple(dict.fromkeys(names))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    try:
        return resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
    except ImportError:  # beyond the top package: said when it is run
        return ""


def _packages(name: str) -> Iterator[str]:
    """a, a.b, a.b.c of a.b.c."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _is_users(file: Path) -> bool:
    resolved = file.resolve()
    return not INSTALLED & set(resolved.parts) and not _is_under(file, (*_our_folders(), *_python_folders()))


def _is_under(file: Path, folders: tuple[Path, ...]) -> bool:
    return any(file.resolve().is_relative_to(folder) for folder in folders)


@functools.cache
def _our_folders() -> tuple[Path, ...]:
    root = Path(__file__).resolve().parents[2]
    return tuple(root / name for name in OURS)


@functools.cache
def _python_folders() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
