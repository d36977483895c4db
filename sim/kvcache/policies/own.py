"""A user's own policy, watched: what it does wrong is one line that names its class and the method.

The one idea: the class is derived from once more, with every hook inside a try. The engine's own policies are not
watched and cost nothing; what a heap finds out later, keys that do not compare, is caught where it is found
(`unordered`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Set as AbstractSet
from heapq import heappop
from operator import index
from typing import Any

from sim.endless import Endless
from sim.kvcache.policies.base import Policy, Run
from sim.own import blamed, called
from workloads.errors import InputError


class Watched:
    """Marks the classes derived here."""

    VICTIM: Callable[..., Any]  #: the class's own `victim`, without the try


def watched(kind: type[Policy]) -> type[Policy]:
    """`kind` with hooks that raise InputError for whatever goes wrong in them, sys.exit() included."""
    checks: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(("on_insert", "on_hit", "on_first_release", "on_release"), _comparable_state),
        **dict.fromkeys(("on_admit", "on_evict", "spare"), lambda answer, *_: answer),
        "after_hits": _comparable,
        "key": _key,
        "group": _group,
        "victim": _victim,
        "span": _whole,
        "split": _whole,
        "second_chance": _yes_or_no,
    }
    hooks = {
        name: _guarded(kind, name, checked)
        for name, checked in checks.items()
        if name == "spare" or getattr(kind, name) is not getattr(Policy, name)  # the cache asks what a class has itself
    }
    made: type[Policy] = type(
        kind.__name__,
        (kind, Watched),
        {**hooks, "__init__": _guarded_init(kind), "__module__": kind.__module__, "VICTIM": kind.victim},
    )
    return made


def unordered(policy: Policy, error: Exception) -> Exception:
    """What to raise when keys of leaves could not be compared: `error` itself unless the policy is a user's own."""
    if isinstance(error, InputError) or not isinstance(policy, Watched):
        return error
    return InputError(f"cache.policy {type(policy).__name__}: key: {error}; expected keys that compare with each other")


def untied(policy: Policy, heap: list[tuple[Any, int, Any]], chosen: Any) -> None:
    """Raise InputError when the leaf that a user's own policy chose and the next of its group have equal keys: what
    goes first would then rest on the order in which a heap happens to hold them. Entries are (key, number, node)."""
    if not isinstance(policy, Watched):
        return
    while heap and heap[0][2].entry != heap[0][1]:
        heappop(heap)
    if heap and heap[0][0] == chosen:
        raise InputError(
            f"cache.policy {type(policy).__name__}: key returned {chosen!r} for two leaves, expected keys that put any"
            " two in order: end it with run.released, which no two leaves share"
        )


def steady(policy: Policy, run: Run, most: int) -> int:
    """How many of a chosen leaf's deepest blocks may go at once with the same result as one by one: at most `most`.

    All of them unless the policy is a user's own and its answers depend on where the run ends: then as long as the
    leaf, one block shorter each time, would be chosen again."""
    if most <= 1 or not isinstance(policy, Watched):
        return most
    left: Any = _Shrinking(run)
    own_victim = policy.VICTIM is not Policy.victim
    group, key = policy.group(left), policy.key(left)
    policy.second_chance(left)
    for gone in range(1, most if left.asked else 0):
        left.shrink()
        after = policy.key(left)
        try:
            stays = bool(after == key if own_victim else after <= key)
        except (TypeError, ValueError) as error:
            raise unordered(policy, error) from None
        if not stays or policy.group(left) != group or policy.second_chance(left):
            return gone
    return most


class _Shrinking:
    """A leaf as a policy sees it, but it can lose its deepest block, and notes whether anybody asks where it ends."""

    def __init__(self, run: Run) -> None:
        self.node_id, self.lo, self.released, self.state = run.node_id, run.lo, run.released, run.state
        self._hi = run.hi
        self.asked = False

    @property
    def hi(self) -> int:
        self.asked = True
        return self._hi

    def __len__(self) -> int:
        return self.hi - self.lo

    def shrink(self) -> None:
        self._hi -= 1


def _guarded(kind: type[Policy], name: str, checked: Callable[..., Any]) -> Callable[..., Any]:
    """The hook; `checked(answer, *arguments)` gives the answer back or raises ValueError or TypeError."""
    hook = getattr(kind, name)

    @functools.wraps(hook)
    def guarded(self: Policy, *given: Any) -> Any:
        try:
            return checked(called(hook, self, *given), *given)
        except (Exception, SystemExit, Endless) as error:
            raise _blamed(kind, name, error) from error

    return guarded


def _guarded_init(kind: type[Policy]) -> Callable[..., None]:
    @functools.wraps(kind.__init__)
    def guarded(self: Policy, *given: Any, **params: Any) -> None:
        try:
            called(lambda: kind.__init__(self, *given, **params))
            if not hasattr(self, "world"):
                raise ValueError("expected it to call super().__init__(world)")
        except (Exception, SystemExit, Endless) as error:
            raise _blamed(kind, "__init__", error) from error

    return guarded


def _blamed(kind: type[Policy], name: str, error: BaseException) -> BaseException:
    return blamed(f"cache.policy {kind.__name__}: {name}", error, __file__)


# -- what an answer must be
# ---------------------------------------------------------------------------------------------


def _key(answer: Any, run: Run) -> Any:
    for part in _parts(answer):
        if part != part:
            raise ValueError(f"returned {answer!r}, expected no NaN in a key")
        if not _ordered(part):
            raise TypeError(f"returned {answer!r}, expected what < puts in order, such as (run.released,)")
    return answer


def _parts(key: Any) -> Iterator[Any]:
    """What a key compares by: itself, or what is in it, since a tuple that equals another never compares its parts."""
    if isinstance(key, tuple | list):
        for part in key:
            yield from _parts(part)
    else:
        yield key


def _ordered(part: Any) -> bool:
    """Whether parts like this have an order: None has none, and < on sets is none."""
    try:
        return not (part < part or isinstance(part, AbstractSet))
    except TypeError:
        return False


def _yes_or_no(answer: Any, run: Run) -> bool:
    if answer is None:
        raise TypeError("returned None, expected True or False")
    return bool(answer)


def _group(answer: Any, run: Run) -> Any:
    if answer is None or not isinstance(answer, Hashable):
        raise TypeError(f"returned {answer!r}, expected something hashable")
    hash(answer)
    return answer


def _victim(answer: Any, heads: Any) -> Any:
    if answer not in heads:
        raise ValueError(f"returned {answer!r}, expected one of the groups {', '.join(map(repr, heads))}")
    return answer


def _whole(answer: Any, *_: Any) -> int:
    try:
        return index(answer)
    except TypeError:
        raise TypeError(f"returned {answer!r}, expected a whole number") from None


def _comparable_state(answer: Any, run: Run, *_: Any) -> Any:
    _compares("left", run.state)
    return answer


def _comparable(answer: Any, *_: Any) -> Any:
    _compares("returned", answer)
    return answer


def _compares(how: str, state: Any) -> None:
    try:
        bool(state == state)
    except Exception:
        raise TypeError(f"{how} state {state!r}, expected one that compares with ==") from None
