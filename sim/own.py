"""A user's own class by "module:Class", as Python would import it now."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from workloads.errors import InputError

T = TypeVar("T")


def own_class(name: str, base: type[T], what: str) -> type[T]:
    """The class, which must derive from `base`. Raises InputError that begins with `what`."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
        raise InputError(f"{what}: {kind}{error}; expected module:Class that Python can import") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{what}: expected a class derived from {public_name(base)}")
    return found


def public_name(base: type) -> str:
    """Where a user imports it from."""
    return f"{base.__module__.removesuffix('.base')}.{base.__name__}"
