"""Bad input: one clear line naming file, row, field, value and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class InputError(ValueError):
    """Raised for anything a user can fix in a file, a scenario or a flag; the command line exits with 2."""


def unprintable(text: str) -> str:
    """The first character that breaks a line or commands a terminal, "" without one."""
    found = _CONTROL.search(text)
    return found.group() if found else ""


def on_one_line(text: str) -> str:
    """The text with such characters written out: a file's name, or what somebody typed, may have them."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def hint(name: str, known: Iterable[str], what: str = "known") -> str:
    """ " (did you mean lru?)", or the list of what is known."""
    known = list(known)
    return did_you_mean(name, known) or f" ({what}: {', '.join(sorted(known))})"


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """ " (did you mean lru?)", "" when nothing known is like it."""
    close = get_close_matches(str(value), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
