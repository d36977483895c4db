"""Classes by their id: those of the simulator from a table, a user's own by "module:Class", as Python would import it
now.

The one idea: whatever a user's class does wrong is one line that names it and the method. So is a call that does not
end, and what it prints goes to stderr, never among results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from sim import endless
from workloads.errors import InputError

T = TypeVar("T")


def name_of(given: Any, base: type, known: Mapping[str, type], key: str) -> str:
    """The id of what a scenario's `key` was given, a name or a class: module:Class for a user's own. Raises InputError
    for anything else."""
    if isinstance(given, str):
        return given
    if not (isinstance(given, type) and issubclass(given, base)):
        raise InputError(
            f"{key} = {given!r}: expected a name, module:Class, or a class derived from {public_name(base)}"
        )
    if "<locals>" in given.__qualname__:
        raise InputError(
            f"{key} = {given.__qualname__}: a class made inside a function has no name to be found by; expected one at"
            " the top of a module"
        )
    return next((name for name, one in known.items() if one is given), f"{given.__module__}:{given.__qualname__}")


def find(given: Any, base: type[T], known: Mapping[str, type[T]], key: str) -> type[T]:
    """The class of an id, or of "module:Class" for a user's own. Raises InputError."""
    name = name_of(given, base, known, key)
    if name in known:
        return known[name]
    if ":" not in name:
        close = get_close_matches(name, known, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"{key} = {name!r}: expected one of {', '.join(known)}, or module:Class for your own{hint}")
    return own_class(name, base, f"{key} = {name!r}")


def own_class(name: str, base: type[T], what: str) -> type[T]:
    """The class, which must derive from `base`. Raises InputError that begins with `what`."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(called(import_module, module), attribute)
    except (Exception, SystemExit, endless.Endless) as error:  # a user's module may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
        raise InputError(f"{what}: {kind}{error}; expected module:Class that Python can import") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{what}: expected a class derived from {public_name(base)}")
    return found


def called(does: Callable[..., T], *given: Any) -> T:
    """does(*given), somebody's own code: prints to stderr; raises endless.Endless where it does not end."""
    out, sys.stdout = sys.stdout, sys.stderr
    outer = endless.begin()
    try:
        return does(*given)
    finally:
        endless.end(outer)
        sys.stdout = out


def public_name(base: type) -> str:
    """Where a user imports it from."""
    return f"{base.__module__.removesuffix('.base')}.{base.__name__}"


def blamed(what: str, error: BaseException, checks: str) -> BaseException:
    """One line that begins with `what`, the class and its method; what was blamed already, and what is no fault of the
    class, stays what it is. checks: the file whose own ValueError or TypeError says all there is to say."""
    if isinstance(error, InputError | MemoryError):
        return error
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    file = Path(at.tb_frame.f_code.co_filename) if at is not None else Path(checks)
    where = "" if at is None or file == Path(checks) else f" ({file.name}, line {at.tb_lineno})"
    said = " ".join(str(error).split())
    told = (
        said
        if not where and isinstance(error, ValueError | TypeError)
        else f"raised {type(error).__name__}{f': {said}' if said else ''}"
    )
    return InputError(f"{what}: {told}{where}")
