"""Where a command line or a shell script starts an engine, whatever stands in front of it.

The one idea: an engine's start is a list of words, the environment in front of it, how many GPUs its container has and
how many of it run.

    >>> next(in_shell("MODEL=Qwen/Qwen3-8B\\nvllm serve $MODEL -tp 2 2>&1 | tee log")).words
    ['Qwen/Qwen3-8B', '-tp', '2']
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvcast.planner.flag_names import SGLANG, TRTLLM, VLLM
from workloads.errors import InputError


@dataclass(frozen=True)
class Start:
    """One start of an engine."""

    engine: str
    words: list[str]  #: after the command's own: flags, values and vLLM's or TensorRT-LLM's MODEL
    env: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None  #: of its container
    replicas: int | None = None
    where: str = ""  #: of a manifest: which container
    folder: Path = Path()  #: its files of options lie here
    image: str = ""  #: of its container, with the tag


ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
OPERATORS = "();<>|&\n"
VLLM_IMAGE = re.compile(r"(.*/)?vllm-openai[^/:@]*([:@].*)?")
ENGINE_IMAGE = re.compile(r"(.*/)?(vllm-openai[^/:@]*|sglang):[^/@]+(@.*)?")
SHELLS = re.compile(r"(.*/)?(ba|da|z|)sh")


def in_shell(text: str, folder: Path = Path(), given: dict[str, str] | None = None) -> Iterator[Start]:
    """The starts in a command line or a script."""
    for env, words in commands(text, given):
        for start in in_words(words, folder, env):
            yield replace(start, env={**env, **start.env})


def commands(text: str, given: dict[str, str] | None = None) -> Iterator[tuple[dict[str, str], list[str]]]:
    """(variables set by then, words) of each command of a script; variables that it sets itself are filled in."""
    known = dict(given or {})
    for words in _commands(text):
        env, rest = _assignments([filled(word, known) for word in words])
        if rest:
            yield {**known, **env}, rest
        else:
            known |= env


def in_words(words: Sequence[str], folder: Path = Path(), known: dict[str, str] | None = None) -> Iterator[Start]:
    """The start in one command's words, whatever stands in front of it (docker run, srun, nohup, bash -c)."""
    found = _engine(words)
    if found is None:
        yield from _inner_shell(words, folder, known or {})
        return
    engine, at, after = found
    env, gpus = _container(words[:at])
    image = next((word for word in words[: at + 1] if ENGINE_IMAGE.fullmatch(word)), "")
    yield Start(engine, list(words[after:]), env, gpus, folder=folder, image=image)


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command, as a shell splits them."""
    text = re.sub(r"\\[ \t]*\r?\n", " ", text.replace("\r\n", "\n"))
    text = INSTRUCTION.sub(_instructed, text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    skipping = False  # a comment, to the end of its line
    try:
        for word in lexer:
            if set(word) <= set(OPERATORS):
                ends = not skipping or "\n" in word
                skipping = skipping and "\n" not in word
                if ends and words:
                    yield _without_descriptor(words, word)
                    words = []
            elif word.startswith("#"):
                skipping = True
            elif not skipping:
                words.append(word)
    except ValueError as error:
        raise InputError(f"--from-launch: not a command line ({str(error).lower()})") from None
    if words:
        yield words


INSTRUCTION = re.compile(r"^[ \t]*(?:ExecStart=|CMD |ENTRYPOINT )[ \t]*(\[.*\])?", re.MULTILINE)
"""What a unit file and a Dockerfile have in front of a command; the latter's may be a JSON list."""


def _instructed(found: re.Match[str]) -> str:
    try:
        return shlex.join(map(str, json.loads(found[1]))) if found[1] else ""
    except (ValueError, RecursionError):
        return found[1]


def _without_descriptor(words: list[str], operator: str) -> list[str]:
    """`2>&1` leaves its 2 behind."""
    return words[:-1] if operator.startswith((">", "<")) and words[-1].isdigit() and len(words[-1]) == 1 else words


def filled(word: str, known: dict[str, str]) -> str:
    """With the variables that the text itself sets, and the defaults of those it does not."""

    def value(found: re.Match[str]) -> str:
        name, default = found["plain"] or found["name"] or found["kubernetes"], found["default"]
        return known.get(name, found[0] if default is None else default)

    return VARIABLE.sub(value, word)


VARIABLE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?::?-(?P<default>[^}]*))?\}|\((?P<kubernetes>[A-Za-z_]\w*)\))"
)


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(variables set in front of a command, the command)."""
    rest = list(words)
    env: dict[str, str] = {}
    while rest and (rest[0] in ("export", "env", "declare", "local") or ASSIGNED.fullmatch(rest[0])):
        name, separator, value = rest.pop(0).partition("=")
        if separator:
            env[name] = value
    return env, rest


def _engine(words: Sequence[str]) -> tuple[str, int, int] | None:
    """(engine, where its command begins, where its arguments begin); a container's own entry point only where no
    command is named."""
    for i, word in enumerate(words):
        after = _named(word, words[i + 1 : i + 2])
        if after is not None:
            return after[0], i, i + 1 + after[1]
    entry = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--entrypoint"), None)
    if entry is not None and "serve" in words[entry:]:
        program = words[entry].partition("=")[2] or words[entry + 1]
        named = _named(program, ["serve"])
        serve = list(words).index("serve", entry)
        return (named[0], entry, serve + 1) if named else None
    for i, word in enumerate(words):
        if (
            VLLM_IMAGE.fullmatch(word)
            and {"run", "create"} & set(words[:i])
            and not any(SHELLS.fullmatch(other) for other in words)
        ):
            return VLLM, i, i + 1
    return None


DYNAMO = {"dynamo.vllm": VLLM, "dynamo.sglang": SGLANG, "dynamo.trtllm": TRTLLM}


def _named(word: str, following: Sequence[str]) -> tuple[str, int] | None:
    """(engine, how many words beside this name it) of a word that starts an engine."""
    serves = [*following][:1] == ["serve"]
    program = word.rsplit("/", 1)[-1]
    if program == "vllm" and serves and ":" not in word:
        return VLLM, 1
    if word.startswith("vllm.entrypoints") and "bench" not in word:
        return VLLM, int(serves)
    if word.startswith(("sglang.launch_server", "sglang_router.launch_server")):
        return SGLANG, 0
    if word in DYNAMO:
        return DYNAMO[word], 0
    if program == "sglang" and serves:
        return SGLANG, 1
    if program == "trtllm-serve":
        return TRTLLM, int(serves)
    return None


def _inner_shell(words: Sequence[str], folder: Path, known: dict[str, str]) -> Iterator[Start]:
    """Of `bash -c TEXT`, the text's."""
    for i, word in enumerate(words):
        if not SHELLS.fullmatch(word):
            continue
        for j in range(i + 1, len(words) - 1):
            if re.fullmatch(r"-[a-z]*c", words[j]):
                env, gpus = _container(words[:i])
                for start in in_shell(words[j + 1], folder, {**known, **env}):
                    image = next((word for word in words[:i] if ENGINE_IMAGE.fullmatch(word)), "")
                    yield replace(start, env={**env, **start.env}, gpus=start.gpus or gpus, image=start.image or image)
                return


def _container(words: Sequence[str]) -> tuple[dict[str, str], int | None]:
    """(environment, GPUs) of `docker run -e A=B --gpus N`."""
    env: dict[str, str] = {}
    gpus: int | None = None
    for i, word in enumerate(words):
        flag, separator, value = word.partition("=")
        value = value if separator else next(iter(words[i + 1 : i + 2]), "")
        if flag in ("-e", "--env") and "=" in value:
            name, _, told = value.partition("=")
            env[name] = told
        elif flag == "--gpus":
            gpus = devices(value)
    return env, gpus


def devices(value: str) -> int | None:
    """GPUs that `--gpus` or CUDA_VISIBLE_DEVICES names: a count, a list of devices; None for all."""
    plain = value.strip("'\"").removeprefix("device=").removeprefix("count=")
    if "=" in value and plain.isdigit() and "device" not in value:
        return int(plain)
    names = [name for name in plain.split(",") if name.strip()]
    if "device" not in value and len(names) == 1 and plain.isdigit():
        return int(plain)
    return len(names) if names and all(re.fullmatch(r"\s*(\d+|GPU-.*)\s*", name) for name in names) else None
