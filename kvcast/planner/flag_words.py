"""The words of a launch command as flags with values, as the engine's own parser takes them.

The one idea: a word is a flag, the value of the one before it, or the model; a flag has its whole name, keys with dots
are one JSON value, and a file of options stands in front of the command.

    >>> flags_of("vllm", ["m", "--max-num-se", "8"])
    [('--model', 'm'), ('--max-num-seqs', '8')]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvcast.planner.flag_names import SGLANG, SWITCH, TRTLLM, kind_of, kinds, spelled, whole
from kvcast.planner.flags import JSON_KEYS, READ
from kvcast.planner.manifests import documents

CONFIG_FLAG = "--config"


def flags_of(engine: str, words: Sequence[str]) -> list[tuple[str, str | None]]:
    """(flag, value or None), each flag by its whole name, keys of one JSON value together.

    A word that is no flag is the value of the one before it; where that has its value, or takes none, it is vLLM's or
    TensorRT-LLM's MODEL, and only then does it go on with a list."""
    flags: list[tuple[str, str | None]] = []
    model = engine == SGLANG
    for word in words:
        if re.match(r"^--?[A-Za-z]", word):
            flags.append(_flag(engine, word))
            continue
        name, before = flags[-1] if flags else ("", None)
        kind = kind_of(engine, name.partition(".")[0])
        full = (
            not flags
            or (before is not None and (name in READ[engine] or kind == "one"))
            or (kind == SWITCH and word.lower() not in ("true", "false"))
        )
        if full and not model:
            flags.append(("--model", word))
            model = True
        elif full:
            flags.append((word, None))
        else:
            flags[-1] = (name, word if before is None else f"{before} {word}")
    return _joined(flags) if engine != TRTLLM else flags


def _flag(engine: str, word: str) -> tuple[str, str | None]:
    """A flag's whole name, and the value that is part of its word."""
    name, separator, value = word.partition("=")
    if engine == TRTLLM:
        return (name.replace("_", "-") if name.startswith("--") else name), (value if separator else None)
    short = re.fullmatch(r"-O(\d)", name)
    if short:
        return "-O", short[1]
    base, dot, keys = spelled(name).partition(".")
    return whole(engine, base) + dot + keys, (value if separator else None)


def _joined(flags: Sequence[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """`--speculative-config.method ngram`, `--spec-method ngram` and `--speculative-config '{...}'` as one JSON."""
    trees: dict[str, dict[str, Any]] = {}
    kept: list[tuple[str, str | None]] = []
    for name, value in flags:
        base, dot, keys = JSON_KEYS.get(name, name).partition(".")
        base = JSON_KEYS.get(base, base)
        if not dot or value is None:
            tree = _object(value) if base in JSON_KEYS.values() else None
            if tree is None:
                kept.append((name, value))
                continue
            trees.setdefault(base, {}).update(tree)
        else:
            table = trees.setdefault(base, {})
            *above, last = keys.removesuffix("+").split(".")
            for key in above:
                table = table.setdefault(key, {})
            table[last] = value.split(",") if keys.endswith("+") else _literal_of(value)
        if (base, "") not in kept:
            kept.append((base, ""))
    return [(name, json.dumps(trees[name])) if value == "" and name in trees else (name, value) for name, value in kept]


def _object(value: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(value or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _literal_of(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def with_file(
    engine: str, flags: list[tuple[str, str | None]], notes: list[str], folder: Path
) -> list[tuple[str, str | None]]:
    """The flags with those of the file that --config names in front: what the command says wins."""
    name = next((value for flag, value in flags if flag == CONFIG_FLAG), None)
    if name is None:
        return flags
    plain = [one for one in flags if one[0] != CONFIG_FLAG]
    try:
        content = (folder / name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        notes.append(f"{name}: this options file is not here, what it sets is not taken over")
        return plain
    return _joined([*(one for table in documents(content) for one in _of_table(engine, table)), *plain])


def _of_table(engine: str, table: Any) -> Iterable[tuple[str, str | None]]:
    for name, value in (table if isinstance(table, dict) else {}).items():
        flag = whole(engine, spelled(f"--{name}"))
        if value is True:
            yield flag, None
        elif value is False:
            if f"--no-{flag[2:]}" in kinds(engine):
                yield f"--no-{flag[2:]}", None
        elif isinstance(value, list):
            yield flag, " ".join(map(str, value))
        elif value is not None:
            yield flag, json.dumps(value) if isinstance(value, dict) else str(value)
