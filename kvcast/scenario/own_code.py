"""A user's own policy (module:Class) and router, with the modules of theirs that they import, as their files are now.

The one idea: Python imports a module once, but a policy is edited between two sweeps of one session. So before a result
is named by the sources, every module whose source is not the one that was run last is run again, those it imports
first.

    >>> read_again("my_policy:LongPromptsFirst")    # the new class is in place, and this names it
    >>> read_again("lru")
    ''
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from kvcast.scenario.user_modules import file_of, globals_of, imported_by
from sim.endless import Endless
from sim.own import called
from sim.scenario import Scenario
from workloads.errors import InputError

RAN = "__kvcast_ran__"
"""In a user's module: hash of the source that made what is in it."""
SESSION = "__main__"
ONLY_HERE = "other processes cannot see a class of a notebook, session or script; expected it in a module"


def read_again(policy: str) -> str:
    """A hash of the sources of a policy and of the user's modules it needs, which are in place afterwards; "" for the
    engine's policies. Raises InputError for a policy that cannot be imported."""
    from sim.kvcache.policies import find

    return _read_again(policy, find, f"[cache] policy = {policy!r}")


def _read_again(name: str, find: Callable[[str], type], what: str) -> str:
    module, colon, _ = name.partition(":")
    if not colon:
        return ""
    found = _sources(module, find(name), what)
    find(name)  # the class may be gone
    return found


def router_read_again(router: str) -> str:
    """The same of a router, one that somebody entered in `sim.fleet.router.ROUTERS` included."""
    from sim.fleet.router import ROUTERS, find

    if router not in ROUTERS:
        return _read_again(router, find, f"[cluster] router = {router!r}")
    made = ROUTERS[router]
    found = _sources(made.__module__, made, f"[cluster] router = {router!r}")
    if ROUTERS[router] is made and "." not in made.__qualname__:  # its module did not enter it anew
        ROUTERS[router] = getattr(sys.modules[made.__module__], made.__qualname__, made)
    return found


def check_importable(scenario: Scenario, workers: str) -> None:
    """Raise InputError where other processes, `workers` in words, would look for a class that only this session has."""
    from sim.fleet.router import ROUTERS

    router = scenario.cluster.router
    for section, key, name in (("cache", "policy", scenario.cache.policy), ("cluster", "router", router)):
        if name.startswith(f"{SESSION}:"):
            raise InputError(
                f"[{section}] {key} = {name!r} with {workers}: {ONLY_HERE}, such as my_{key}.py with {key} ="
                f" 'my_{key}:{name.partition(':')[2]}'"
            )
    if router in ROUTERS and ROUTERS[router].__module__ == SESSION:
        raise InputError(f"[cluster] router = {router!r} with {workers}: {ONLY_HERE}")


def _sources(module: str, of: type, what: str) -> str:
    """Run again what was edited; a hash of all of it, "" when none of it is the user's."""
    loaded = sys.modules[module]
    typed = file_of(module) is None  # into a session: what is there is what was typed
    files = globals_of(loaded) if typed else imported_by(module)
    hashes = [(name, _hash(file.read_bytes())) for name, file in files.items()]
    _run_again({name: file for name, file in files.items() if name != SESSION and name in sys.modules}, what)
    if typed:
        hashes.append((module, _hash(_source(of, what).encode())))
    return _hash(repr(hashes).encode()) if hashes else ""


def _run_again(files: dict[str, Path], what: str) -> None:
    """From the first edited module on: those behind it may hold something of it."""
    edited = False
    for name, file in files.items():
        source = file.read_bytes()
        module = sys.modules[name]
        edited = edited or vars(module).get(RAN) != _hash(source)
        if edited:
            _run(module, file, source, what)


def _run(module: ModuleType, file: Path, source: bytes, what: str) -> None:
    try:  # importlib.reload would take bytecode that tells edits apart by the second
        called(exec, compile(source, file, "exec"), vars(module))
    except (Exception, SystemExit, Endless) as error:
        raise InputError(f"{what}: {file}: {type(error).__name__}: {error}") from None
    vars(module)[RAN] = _hash(source)


def _source(of: type, what: str) -> str:
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        raise InputError(
            f"{what}: what was typed into a session has no source to name a result by; expected the class in a module,"
            " such as my_policy.py"
        ) from None


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()
