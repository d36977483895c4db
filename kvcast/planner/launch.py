"""Launch commands of vLLM, SGLang and TensorRT-LLM, and start-up logs of the first two, read into scenario keys.

The one idea: every flag ends up in exactly one of four lists: set (a scenario key), no effect (on timing and cache),
not modelled (it changes results and kvcast does not simulate it) or unknown. Nothing is dropped without being named.

    >>> read_command("vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --enforce-eager").sets
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrate.kv_groups import blocks_of
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.planner.flag_layouts import settled
from kvcast.planner.flags import (
    NO_EFFECT,
    NO_VALUE,
    NOT_MODELLED,
    READ,
    SGLANG,
    SGLANG_OFF,
    SWITCHES,
    TOKENS,
    TRTLLM,
    VLLM,
)
from kvcast.planner.trtllm_options import expanded
from kvcast.scenario.fitting import fitting_profile
from workloads.errors import InputError


@dataclass
class Launch:
    """A launch command, read. sets: scenario keys as --set takes them, in the order of the command."""

    engine: str
    sets: list[str] = field(default_factory=list)
    no_effect: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    logged_tokens: int = 0  #: KV tokens that a log prints; engine.kv_blocks among the sets is of one KV group

    def as_document(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "set": self.sets,
            "no_effect": self.no_effect,
            "not_modelled": self.not_modelled,
            "unknown": self.unknown,
            "notes": self.notes,
        }

    def cautions(self) -> list[str]:
        told = (
            ("that kvcast does not simulate, results differ by what they do", self.not_modelled),
            ("that kvcast does not know, not taken over", self.unknown),
        )
        return [f"launch flags {what}: {', '.join(flags)}" for what, flags in told if flags]

    def fit(self, doc: dict, source: str) -> None:
        """Take a profile of the scenario's GPU that fits the command's model and width, and say how the log's KV cache
        compares.

        doc: the scenario's tables with this command's sets applied.
        """
        scenario = scenario_from_doc(doc, source)
        profile = fitting_profile(scenario)
        if profile is not None:
            self.sets.append(f"hardware.profile={profile}")
            self.notes.append(
                f"profile {profile} instead of {scenario.hardware.profile}, which is for another model or width"
            )
            scenario = replace(scenario, hardware=replace(scenario.hardware, profile=profile))
        logged, size = scenario.engine.kv_blocks, scenario.engine.block_size
        if logged is not None:
            free = replace(scenario, engine=replace(scenario.engine, kv_blocks=None, max_model_len=None))
            try:
                resolved = api.resolve(free)
            except InputError:
                return
            ours = resolved.scenario.engine.kv_blocks or 0
            if self.logged_tokens and (groups := resolved.params.kv_groups):
                logged = blocks_of(groups, self.logged_tokens)
                self.sets = [one for one in self.sets if not one.startswith("engine.kv_blocks=")]
                self.sets.append(f"engine.kv_blocks={logged}")
            self.notes.append(
                f"KV blocks of {size} tokens: {logged:,} given, kvcast's own arithmetic says {ours:,}"
                f" ({100 * (ours / logged - 1):+.1f} %); those given are used"
            )


# -- a command ---------------------------------------------------------------------------------------------------------


def read_command(command: str) -> Launch:
    """A `vllm serve ...`, `python -m sglang.launch_server ...` or `trtllm-serve ...` command line. Raises InputError
    for anything else."""
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=False)
    except ValueError as error:
        raise InputError(f"--from-launch: not a command line ({str(error).lower()})") from None
    words = words[: next((i for i, word in enumerate(words) if SHELL.match(word)), len(words))]
    for i, word in enumerate(words):
        if (word == "vllm" or word.endswith("/vllm")) and words[i + 1 : i + 2] == ["serve"]:
            return _read(VLLM, words[i + 2 :])
        if word.startswith("vllm.entrypoints") or word.partition(":")[0].endswith(
            "/vllm-openai"
        ):  # a module, or its container
            return _read(VLLM, words[i + 1 :])
        if word.startswith(("sglang.launch_server", "sglang_router.launch_server")):
            return _read(SGLANG, words[i + 1 :])
        if word == "sglang" and words[i + 1 : i + 2] == ["serve"]:
            return _read(SGLANG, words[i + 2 :])
        if word == "trtllm-serve" or word.endswith("/trtllm-serve"):
            return _read(TRTLLM, words[i + 1 + (words[i + 1 : i + 2] == ["serve"]) :])
    raise InputError(
        f"--from-launch {command.strip()[:60]!r}: expected 'vllm serve MODEL ...', 'python -m sglang.launch_server"
        " --model-path MODEL ...' or 'trtllm-serve MODEL ...'"
    )


OWN_BLOCK = {SGLANG: 1, TRTLLM: 32}
"""Tokens of a block where the engine's default is not kvcast's."""
SHELL = re.compile(r"^(\|\|?|&&?|;|\d?[<>].*|&>.*|#.*)$")
"""A word with which a shell ends the command."""


def _read(engine: str, words: Sequence[str]) -> Launch:
    notes: list[str] = []
    flags = _flags(engine, words)
    launch = _sorted(engine, expanded(flags, notes) if engine == TRTLLM else flags)
    launch.notes += notes
    if engine == TRTLLM:
        launch.notes.append("TensorRT-LLM's rules are unverified: no recorded case of the engine checks them")
    return launch


def _flags(engine: str, words: Sequence[str]) -> list[tuple[str, str | None]]:
    """(flag, value or None). A word that is no flag is the value of the one before it; where that has its value, or
    takes none, it is vLLM's or TensorRT-LLM's MODEL, and only then does it go on with a list."""
    flags: list[tuple[str, str | None]] = []
    model = engine == SGLANG
    for word in words:
        if re.match(r"^--?[A-Za-z]", word):
            name, separator, value = word.partition("=")
            flags.append(
                (
                    name if name.startswith("-") and not name.startswith("--") else name.replace("_", "-"),
                    value if separator else None,
                )
            )
            continue
        name, before = flags[-1] if flags else ("", None)
        full = (
            not flags
            or (before is not None and name in READ[engine])
            or (name in NO_VALUE and word.lower() not in ("true", "false"))
        )
        if full and not model:
            flags.append(("--model", word))
            model = True
        elif full:
            flags.append((word, None))
        else:
            flags[-1] = (name, word if before is None else f"{before} {word}")
    return flags


def _sorted(engine: str, flags: Iterable[tuple[str, str | None]]) -> Launch:
    launch = Launch(engine, [f"engine.semantics={engine}"])
    if engine in OWN_BLOCK:
        launch.sets.append(f"engine.block_size={OWN_BLOCK[engine]}")  # a flag below replaces it
    for flag, value in flags:
        shown = flag if value is None else f"{flag} {value}"
        reader = READ[engine].get(flag)
        if reader is not None and (value is not None or flag in SWITCHES):
            try:
                found = reader((value or "true").lower() if flag in SWITCHES else str(value))
                launch.sets += found
                if not found:
                    launch.no_effect.append(shown)
            except ValueError:
                launch.not_modelled.append(shown)
        elif flag in NOT_MODELLED:
            launch.not_modelled.append(shown)
        elif flag in NO_EFFECT or (flag.startswith("--no-") and f"--{flag[5:]}" in NO_EFFECT | NOT_MODELLED):
            launch.no_effect.append(shown)
        else:
            launch.unknown.append(shown)
    launch.sets, not_modelled = settled(engine, launch.sets)
    launch.not_modelled += not_modelled
    if "model.dtype=fp8" in launch.sets:  # --dtype is then what the activations are in
        launch.sets = [one for one in launch.sets if not one.startswith("model.dtype=") or one == "model.dtype=fp8"]
    page = next(
        (int(one.partition("=")[2]) for one in reversed(launch.sets) if one.startswith("engine.block_size=")), 16
    )
    launch.sets = [
        f"engine.kv_blocks={int(one.partition('=')[2]) // page}" if one.startswith(f"{TOKENS}=") else one
        for one in launch.sets
    ]
    return launch


# -- a log -------------------------------------------------------------------------------------------------------------

VLLM_ARGUMENTS = re.compile(r"non-default args: (\{.*?\})\s*$", re.MULTILINE)
SGLANG_ARGUMENTS = re.compile(r"server_args=(ServerArgs\(.*\))\s*$", re.MULTILINE)


def read_log(path: Path) -> Launch:
    """The launch arguments that a start-up log prints, and its KV cache. The last start in the log counts."""
    from calibrate.kv_logs import log_lines, read_kv_log

    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"--from-log {path}: cannot be read ({error.strerror}); expected the start-up log of vLLM or SGLang"
        ) from None
    kv, why = None, ""
    try:
        kv = read_kv_log(path)
    except InputError as error:
        why = str(error)
    launch = _arguments(content)
    if launch is None and kv is None:
        raise InputError(
            f"--from-log {path}: neither launch arguments ('non-default args: {{...}}' of vLLM,"
            " 'server_args=ServerArgs(...)' of SGLang) nor a KV cache size in it"
        )
    if launch is None and kv is not None:
        launch = Launch(
            kv.engine,
            [f"engine.semantics={kv.engine}"],
            notes=["the log does not show the launch arguments: only its KV cache is taken over"],
        )
    assert launch is not None
    if kv is None:
        launch.notes.append(why)
        return launch
    named = next((one for one in reversed(launch.sets) if one.startswith("engine.block_size=")), None)
    size = int(named.partition("=")[2]) if named else kv.block_size
    launch.sets += ([] if named else [f"engine.block_size={size}"]) + [f"engine.kv_blocks={kv.tokens // size}"]
    launch.logged_tokens = kv.printed or kv.tokens
    ranks = any(one.startswith("hardware.attention_dp=") for one in launch.sets)  # then its engines are one replica's
    launch.sets += [f"cluster.replicas={len(kv.replicas)}"] if kv.replicas and not ranks else []
    launch.notes += log_lines(kv)[2:]
    return launch


def _arguments(content: str) -> Launch | None:
    vllm, sglang = (list(pattern.finditer(content)) for pattern in (VLLM_ARGUMENTS, SGLANG_ARGUMENTS))
    if vllm and (not sglang or vllm[-1].start() > sglang[-1].start()):
        launch = _sorted(VLLM, _as_flags(_dictionary(vllm[-1][1]).items(), every_false=True))
        if not launch.sets[1:] and not launch.unknown:
            launch.notes.append("the launch arguments in the log could not be read: only its KV cache is taken over")
        return launch
    if sglang:
        launch = _sorted(SGLANG, [one for one in _as_flags(_call(sglang[-1][1])) if _told(*one)])
        launch.notes.append(
            "SGLang's log prints every argument, defaults too: of those that kvcast does not simulate, the switched on"
            " are listed"
        )
        return launch
    return None


def _told(flag: str, value: str | None) -> bool:
    """Whether an argument of SGLang's log says something: it is read, or it switches on what is not simulated."""
    on = value is None or flag == "--speculative-algorithm" or value != SGLANG_OFF.get(flag, value)
    off = value is not None and value == SGLANG_OFF.get(flag)
    return (flag in READ[SGLANG] and not off) or (flag in NOT_MODELLED and on)


def _as_flags(arguments: Iterable[tuple[str, Any]], every_false: bool = False) -> list[tuple[str, str | None]]:
    """Arguments as flags; what is None was not given, and what is False neither, unless only what differs from the
    defaults is printed."""
    flags: list[tuple[str, str | None]] = []
    for name, value in arguments:
        flag = f"--{name.replace('_', '-')}"
        if value is None or name == "model_tag" or (value is False and not every_false):
            continue
        if value is False:
            flags.append((f"--no-{flag[2:]}", None))
        else:
            flags.append((flag, None if value is True else str(value)))
    return flags


def _dictionary(source: str) -> dict[str, Any]:
    """The literal values of a printed dict; an object's own print is kept as text. Nothing is evaluated."""
    node = _parsed(source)
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return {str(key.value): _literal(value) for key, value in pairs if isinstance(key, ast.Constant)}


def _call(source: str) -> list[tuple[str, Any]]:
    """The arguments of a printed call; when an object's print is among them, those that are plain."""
    node = _parsed(source)
    if isinstance(node, ast.Call):
        return [(keyword.arg, _literal(keyword.value)) for keyword in node.keywords if keyword.arg]
    plain = re.findall(r"(?<=[(\s])(\w+)=('[^']*'|-?[\d.]+|True|False|None)(?=[,)])", source)
    return [(name, ast.literal_eval(value)) for name, value in plain]


def _parsed(source: str) -> ast.expr | None:
    """The expression, if need be with prints such as <Mode.NONE: 0> as texts; None when it is none."""
    for text in (source, re.sub(r"<[^<>]*>", lambda found: repr(found[0]), source)):
        try:
            return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return ast.unparse(node)
