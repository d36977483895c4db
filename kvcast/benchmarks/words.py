"""The flags of a benchmark's command: what a reader asked for is taken, the rest is listed.

>>> given = Given("vllm bench serve", ["--request-rate", "4"], ("--request-rate",))
>>> given.number("--request-rate")
4.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from workloads.errors import InputError


class Given:
    """The flags of one command. Every look-up marks its flag as taken."""

    def __init__(self, tool: str, words: Sequence[str], known: Sequence[str] = ()) -> None:
        """known: flags of the tool, among which a shortened one is looked up as argparse does."""
        self.tool = tool
        self._known = known
        self._values: dict[str, list[str]] = {}
        self._taken: set[str] = set()
        name = ""
        for word in words:
            if re.match(r"^--?[A-Za-z]", word):
                flag, separator, value = word.partition("=")
                name = self._whole(flag.replace("_", "-") if flag.startswith("--") else flag)
                self._values[name] = [value] if separator else []
            else:
                self._values.setdefault(name, []).append(word)

    def _whole(self, flag: str) -> str:
        if not flag.startswith("--") or flag in self._known:
            return flag
        longer = [known for known in self._known if known.startswith(flag)]
        if len(longer) > 1:
            raise InputError(f"{self.tool}: {flag} is short for {', '.join(longer)}; expected the whole name of one")
        return longer[0] if longer else flag

    def has(self, *names: str) -> bool:
        found = [name for name in names if name in self._values]
        self._taken.update(found)
        return bool(found)

    def text(self, *names: str) -> str | None:
        """The value of the first of these flags that is given."""
        for name in names:
            if self.has(name):
                if not self._values[name]:
                    raise InputError(f"{self.tool}: {name} has no value")
                return " ".join(self._values[name])
        return None

    def number(self, *names: str, default: float | None = None, unlimited: bool = False) -> float | None:
        """As text, a number of 0 or more; inf is one where that has a meaning."""
        value = self.text(*names)
        return default if value is None else quantity(f"{self.tool}: {names[0]}", value, unlimited)

    def whole(self, *names: str, default: int = 0) -> int:
        number = self.number(*names, default=float(default))
        if number is None or not number.is_integer():
            raise InputError(f"{self.tool}: {names[0]} {number}, expected a whole number")
        return int(number)

    def of(self, prefix: str) -> list[str]:
        """The flags that begin so, taken."""
        found = [name for name in self._values if name.startswith(prefix)]
        self._taken.update(found)
        return found

    def rest(self, without_effect: re.Pattern[str]) -> list[str]:
        """What nobody asked for, as it was written; flags that change nothing of the load are left out, and no value of
        a secret is shown."""
        left = [name for name in self._values if name and name not in self._taken]
        return [
            name if SECRET.search(name) or not self._values[name] else f"{name} {' '.join(self._values[name])}"
            for name in left
            if not without_effect.fullmatch(name)
        ]


def quantity(where: str, value: object, unlimited: bool = False) -> float:
    """A number of 0 or more that is no absurdity, or inf; InputError naming where it stands."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not (0 <= number <= MOST or (unlimited and number == math.inf)):
        raise InputError(f"{where} {str(value)[:40]!r}, expected a number from 0 to {MOST:g}{', or inf' * unlimited}")
    return number


MOST = 1e9
SECRET = re.compile(r"key|token$|header|password|url")
