"""The page's question as the words of `kvcast ask`: what the form says, what a link carries, what the job is given.

The one idea: one table, flag -> text, which the command line's own parser reads, so that page, link and terminal ask
the same thing and say the same about what cannot be asked.

    >>> argv({"use": "chat", "users": "300"})
    ('--use=chat', '--users=300')
"""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kvcast import ask_flags
from kvcast.asking.question import Question, model_named, question_of
from kvcast.config import apply_overrides
from kvcast.jobs import link
from workloads.errors import InputError

Words = Mapping[str, str]
"""Flag without its dashes -> its text; --set's several ones stand one a line."""
SET, SWITCHES = "set", ("no-recover",)
LOADS = ("users", "sessions-a-day", "rps")
NAMES = (
    *("use", *LOADS, "hours", "gpus", "system", "input", "output"),
    *("model", "weights", "kv", "gpu", "tp", "price", "router", "ttft", "tpot", "for"),
    *(SET, "seeds", "max-replicas", *SWITCHES),
)
FIELDS = {
    "model.dtype": "weights",
    "model.kv_dtype": "kv",
    "hardware.gpu": "gpu",
    "hardware.tensor_parallel": "tp",
    "cluster.router": "router",
}
"""Keys of a scenario that the question has a flag for."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(message.removeprefix("argument "))


@functools.cache
def _parser() -> _Parser:
    parser = _Parser(prog="kvcast ask", add_help=False, allow_abbrev=False)
    ask_flags.add_arguments(parser)
    return parser


def argv(words: Words) -> tuple[str, ...]:
    """What stands behind `kvcast ask`."""
    found: list[str] = []
    for name in NAMES:
        if name in words:
            values = words[name].splitlines() if name == SET else [words[name]]
            found += [f"--{name}"] if name in SWITCHES else [f"--{name}={value}" for value in values if value.strip()]
    return tuple(found)


def command(words: Words) -> str:
    """The line for a terminal."""
    return shlex.join(["kvcast", "ask", *argv(words)])


def words_of(given: Sequence[str]) -> dict[str, str]:
    """The words of flags, written `--name=value` or `--name value`."""
    found: dict[str, str] = {}
    flat = [part for one in given for part in (one.split("=", 1) if one.startswith("--") else [one])]
    while flat:
        name = flat.pop(0).removeprefix("--")
        value = "yes" if name in SWITCHES else flat.pop(0)
        found[name] = f"{found[name]}\n{value}" if name == SET and SET in found else value
    return found


def applied(words: Words, given: Sequence[str] = (), settings: Sequence[str] = ()) -> dict[str, str]:
    """The question with a way out's flags, or with an advice's settings: where it has a flag for a key, that."""
    found = {**words, **words_of(given)}
    if any(flag in ("--ttft", "--tpot") for flag in given):  # they come together: one given alone drops the other
        found = {name: text for name, text in found.items() if name not in ("ttft", "tpot") or f"--{name}" in given}
    for one in settings:
        key, _, value = one.partition("=")
        if key in FIELDS:
            found[FIELDS[key]] = value
        else:
            kept = [line for line in found.get(SET, "").splitlines() if line.partition("=")[0] != key]
            found[SET] = "\n".join([*kept, one])
    return found


def parsed(words: Words) -> argparse.Namespace:
    """The flags' values. Raises InputError with one line."""
    return _parser().parse_args(list(argv(words)))


def question(words: Words, policies: Sequence[str], files: Collection[str] = ()) -> Question:
    """The question, checked. files: config.json files that the page may name. Raises InputError with one line, also for
    what a page may not use, before anything looks at that."""
    if unknown := [name for name in words if name not in NAMES]:
        raise InputError(f"link: {unknown[0][:60]!r} is no part of a question, expected one of {', '.join(NAMES)}")
    given = parsed(words)
    named = {} if given.model in files else model_named(given.model)
    doc: dict[str, Any] = {"hardware": {"gpu": given.gpu}, "model": named}
    if given.router is not None:
        doc["cluster"] = {"router": given.router}
    link.harmless(doc, "link", policies)
    short = [one for one in given.settings if one.partition("=")[0].count(".") < 2]  # a class's keys name no file
    link.harmless(apply_overrides({}, short), "link", policies)
    return question_of(given)


# -- links -------------------------------------------------------------------------------------------------------------


def query(words: Words, default: Words) -> dict[str, str]:
    """The parameters of a link: the whole question, and nothing for the one that the page opens with. A file of the
    server has no place in it."""
    if dict(words) == dict(default):
        return {}
    return {
        name: words[name] for name in NAMES if name in words and not (name == "model" and "/uploads/" in words[name])
    }


def is_question(params: Mapping[str, str]) -> bool:
    """Whether a link's parameters are a question's, and not a scenario's."""
    return all(name in NAMES or name == link.JOB for name in params)
