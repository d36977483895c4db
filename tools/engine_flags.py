"""Names of the launch flags of vLLM and SGLang, and of the load generators of both, from their own sources:
kvcast/planner/engine_flags.json.

The one idea: a flag is a literal of `add_argument`, or a field of a class that the engine makes its arguments of; the
sources are parsed, never run. Only names are kept, and how many words follow each: none (a switch), one, or a list.

    python -m tools.engine_flags vllm=0.33.0:FOLDER vllm=0.19.0:FOLDER sglang=0.5.23:FOLDER > engine_flags.json

FOLDER holds the unpacked package of that version. The newest of an engine comes first: what only older versions have is
kept apart, because an abbreviation is resolved among the flags of one version.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SWITCH, ONE, LIST = "switch", "one", "list"
SOURCES = {
    "vllm": ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/common/cli_args.py"),
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/*.py"),
    "vllm-bench": ("vllm/benchmarks/serve.py", "vllm/benchmarks/datasets.py", "vllm/benchmarks/datasets/*.py"),
    "sglang-bench": ("sglang/bench_serving.py", "sglang/benchmark/serving.py"),
}
FIELDS = {"vllm": ("FrontendArgs", "BaseFrontendArgs")}
"""Classes whose every field is a flag, beside those of SGLang that are annotated with a help text."""
TYPES = {"vllm": ("vllm/config.py", "vllm/config/*.py")}
"""Where the fields are declared that an `add_argument` names by `**kwargs["field"]`."""


def flags_of(engine: str, folder: Path) -> dict[str, str]:
    """Flag -> kind, of the unpacked package of one version."""
    declared = dict(_declared(_trees(folder, TYPES.get(engine, ()))))
    found: dict[str, str] = {}
    for tree in _trees(folder, SOURCES[engine]):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                found |= _of_call(node, declared)
            elif isinstance(node, ast.ClassDef):
                found |= dict(_of_class(node, node.name in FIELDS.get(engine, ())))
    return found


def _trees(folder: Path, patterns: tuple[str, ...]) -> Iterator[ast.Module]:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _declared(trees: Iterator[ast.Module]) -> Iterator[tuple[str, str]]:
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, _kind(ast.unparse(node.annotation))


def _kind(annotation: str) -> str:
    words = annotation.replace("[", " ").replace("]", " ").replace("|", " ").replace(",", " ").split()
    if "bool" in words:
        return ONE if "str" in words else SWITCH
    return LIST if {"list", "List", "set", "tuple"} & set(words) and "dict" not in words else ONE


def _of_call(node: ast.Call, declared: dict[str, str]) -> dict[str, str]:
    """The flags of one add_argument."""
    names = [
        a.value
        for a in node.args
        if isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value.startswith("-")
    ]
    kind = ONE
    for keyword in node.keywords:
        value = ast.unparse(keyword.value)
        if keyword.arg == "action" and any(word in value for word in ("store_true", "StoreTrue", "BooleanOptional")):
            kind = SWITCH
            names += [f"--no-{name[2:]}" for name in names if "BooleanOptional" in value and name.startswith("--")]
        elif keyword.arg == "nargs":
            kind = LIST if value in ("'*'", "'+'") else kind
        elif keyword.arg is None and (field := re.search(r"\['(\w+)'\]", value)):
            kind = declared.get(field[1], ONE)
            names += [f"--no-{name[2:]}" for name in names if kind == SWITCH and name.startswith("--")]
    return dict.fromkeys(names, kind)


def _of_class(node: ast.ClassDef, every_field: bool) -> Iterator[tuple[str, str]]:
    """The flags of a class of arguments: plain fields, or SGLang's `name: A[type, help or Arg(...)]`."""
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        note = line.annotation
        flag = f"--{line.target.id.replace('_', '-')}"
        if every_field:
            kind = _kind(ast.unparse(note))
            yield flag, kind
            if kind == SWITCH:
                yield f"--no-{flag[2:]}", kind
        elif isinstance(note, ast.Subscript) and getattr(note.value, "id", "") == "A":
            yield from _annotated(flag, note)


def _annotated(flag: str, note: ast.Subscript) -> Iterator[tuple[str, str]]:
    parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else []
    told = {k.arg: k.value for part in parts if isinstance(part, ast.Call) for k in part.keywords}
    if len(parts) < 2 or "no_cli" in told:
        return
    kind = _kind(ast.unparse(parts[0]))
    if kind == LIST and "nargs" not in told:
        kind = ONE
    if "action" in told:
        action = ast.unparse(told["action"])
        kind = SWITCH if "True" in action or "Boolean" in action else LIST if "nargs" in ast.unparse(note) else ONE
    named = told.get("cli_name")
    names = [str(named.value) if isinstance(named, ast.Constant) else flag]
    others = told.get("aliases")
    names += [str(one.value) for one in getattr(others, "elts", []) if isinstance(one, ast.Constant)]
    if "BooleanOptional" in ast.unparse(note):
        names += [f"--no-{name[2:]}" for name in names]
    yield from ((name, kind) for name in names)


def document(asked: list[str]) -> dict[str, dict[str, object]]:
    """{engine: {"versions": newest first, "newest": {kind: flags}, "older": {kind: flags}}}."""
    versions: dict[str, list[str]] = {}
    known: dict[str, list[dict[str, str]]] = {}
    for one in asked:
        engine, _, rest = one.partition("=")
        version, _, folder = rest.partition(":")
        flags = flags_of(engine, Path(folder))
        versions.setdefault(engine, []).append(version)
        if engine in known:
            known[engine][1] |= {flag: kind for flag, kind in flags.items() if flag not in known[engine][0]}
        else:
            known[engine] = [flags, {}]
    return {
        engine: {"versions": versions[engine], "newest": _by_kind(newest), "older": _by_kind(older)}
        for engine, (newest, older) in known.items()
    }


def _by_kind(flags: dict[str, str]) -> dict[str, list[str]]:
    return {kind: sorted(flag for flag, its in flags.items() if its == kind) for kind in (SWITCH, ONE, LIST)}


if __name__ == "__main__":
    print(json.dumps(document(sys.argv[1:]), indent=1))
