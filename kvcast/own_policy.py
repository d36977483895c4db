"""A user's own policy, module:Class, as its file is now.

The one idea: Python imports a module once, but a policy is edited between two sweeps of one session. So before a result is
named by the policy's source, the source is run again if it is not the one that was run last.

    >>> read_again("my_policy:LongPromptsFirst")    # the new class is in place, and this names it
    >>> read_again("lru")
    ''
"""
from __future__ import annotations

import hashlib
import inspect
import sys
from pathlib import Path

from workloads.errors import InputError

RAN = "__kvcast_ran__"
"""In a policy's module: hash of the source that made what is in it."""


def read_again(policy: str) -> str:
    """A hash of the source of a policy's own module, which is in place afterwards; "" for the engine's policies.

    The module's own file only: what it imports is not read again. Raises InputError for a policy that cannot be imported.
    """
    from sim.kvcache.policies import find

    name, colon, _ = policy.partition(":")
    if not colon:
        return ""
    found = find(policy)
    module = sys.modules[name]
    file = inspect.getsourcefile(module) if getattr(module, "__file__", None) else None
    if file is None:  # typed into a session: what is there is what was typed
        return _hash(_source(found, policy).encode())
    source = Path(file).read_bytes()
    if vars(module).get(RAN) != _hash(source) and name != "__main__":
        try:  # importlib.reload would take bytecode that tells edits apart by the second
            exec(compile(source, file, "exec"), vars(module))
        except (Exception, SystemExit) as error:
            raise InputError(f"[cache] policy = {policy!r}: {file}: {type(error).__name__}: {error}") from None
        vars(module)[RAN] = _hash(source)
        find(policy)  # the class may be gone
    return _hash(source)


def _source(of: type, policy: str) -> str:
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        raise InputError(f"[cache] policy = {policy!r}: its source is not known; expected a class in a file") from None


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()
