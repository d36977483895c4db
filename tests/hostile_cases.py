"""The cases of tests.hostile: what is done to the files of a small world, and to the commands that read them.

>>> [case.line() for case in cases(make_world(Path("world")), seed=0)][:3]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from kvcast.cli import COMMANDS, build_parser
from kvcast.scenario.checks import ENDLESS
from sim.scenario import Scenario
from tests.hostile_world import MEASURED, METRICS, PLAIN, QUICK, SCENARIO, TRACE, Case


def cases(world: Path, seed: int) -> list[Case]:
    """Every case, the same ones for the same seed."""
    rng = random.Random(seed)
    return [*of_keys(rng), *of_texts(rng), *of_flags(rng), *of_paths(rng), *of_folders(world, rng), *of_lines(rng)]


# -- keys of a scenario ------------------------------------------------------------------------------------------------

VALUES = (
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e308",
    "1e-320",
    "1e400",
    "-0.5",
    "100000000000000000000000",
    "9" * 5000,
    "'text'",
    "''",
    "true",
    "[]",
    "[1, 'a', {}]",
    "{}",
    "{a = 1}",
    "1979-05-27",
    r'"\u001b[31mred"',
    r'"a\u0000b"',
    r'"two\nlines"',
    "'../../..'",
    "'" + "x" * 3000 + "'",
    "'os:system'",
)
NEVER = {"nan", "inf", "-inf", "1e400", "[1, 'a', {}]", *(value for value in VALUES if value.startswith('"'))}
"""What no key may be."""
TABLES = {"class": "0", "layers": "0", "shock": "0", "tiers": "0", "classes": "a"}
"""Keys that hold several tables, and which one of them is attacked."""
BRIEF = ["--hours", "0.01", "--seeds", "1", "--no-sweep", "--no-collapse", "--no-remedies"]
AGAINST = ["explain", "S.toml", *PLAIN, "--against", "R.json"]
FIT = ["fit-server", "R.json", "--set", "hardware.gpu=h200", "--set", "engine.kv_blocks=2000"]
READS_PAGE = ["observe", "page.txt", "--seconds", "60", "--set", "hardware.gpu=h200"]
READS_SERIES = ["observe", "M.om", "--set", "hardware.gpu=h200"]
ASKS = [*("ask", "--use", "batch", "--rps", "1", "--set", "run.duration_s=5", "--set", "run.warmup_s=0")]
ASKS += ["--jobs", "1", "--seeds", "2", "--no-recover", "--max-replicas", "2"]
DASHBOARD = ["dashboard", "--headless", "--port", "8765"]
ON_A_SCENARIO = [
    ["run", "S.toml", "--no-baseline", "--no-model-error"],
    ["run", "S.toml", "--no-baseline", "--no-model-error", "--json", "--out", "r"],
    ["estimate", "S.toml"],
    ["compare", "S.toml", "--vary", "cluster.router=round-robin,random"],
    ["sweep", "S.toml", "--vary", "engine.kv_blocks=1000,2000", "--out", "s"],
    ["plan", "S.toml", *QUICK],
    ["resilience", "R.toml", *BRIEF],
    ["value", "S.toml"],
    ["optimum", "S.toml"],
    ["explain", "S.toml"],
    ["explain", "S.toml", "--life", "slowest"],
    ["explain", "S.toml", "--life", "textbook"],
    AGAINST,
    FIT,
]


def of_keys(rng: random.Random) -> Iterator[Case]:
    """Wrong values for every key, through one command after the other; most of them with `run`, the quickest."""
    for key in sorted(set(_keys(Scenario, ""))):
        for value in rng.sample(VALUES, 5):
            base = ON_A_SCENARIO[0] if rng.random() < 0.7 else rng.choice(ON_A_SCENARIO)
            endless = key.endswith(ENDLESS) and value in ("inf", "1e400")
            codes = frozenset({2} if value in NEVER and not endless else {0, 1, 2})
            yield Case("keys", [*base, "--set", f"{key}={value}"], codes=codes)
    for section in ("", "run.", "workload.", "workload.class.a.", "cache.tiers.0.", "slo.classes.a.", "shock.0."):
        yield Case("keys", ["run", "S.toml", "--set", f"{section}no_such_key=1"], codes=frozenset({2}))


def _keys(cls: type, at: str) -> Iterator[str]:
    """The dotted keys of a dataclass, down to those of the tables in it."""
    for f in fields(cls):
        name = f.name.rstrip("_")
        yield at + name
        for inner in _dataclasses(typing.get_type_hints(cls)[f.name]):
            if at.count(".") < 5:
                yield from _keys(inner, f"{at}{name}.{TABLES[name] + '.' if name in TABLES else ''}")


def _dataclasses(kind: Any) -> Iterator[type]:
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
    for inner in typing.get_args(kind):
        yield from _dataclasses(inner)


# -- texts of files ----------------------------------------------------------------------------------------------------


def of_texts(rng: random.Random) -> Iterator[Case]:
    """Files that are nearly right, and files that are nothing of the kind."""
    for name, argv in READERS:
        for how, content in _spoiled(TEXTS.get(name, "one line\n"), rng):
            yield Case("texts", argv, _writes(name, content), how)
    for line in PRICES:
        yield Case("texts", ["run", "S.toml", "--prices", "P.toml"], _writes("P.toml", line.encode()), line[:40])
        yield Case("texts", ["price", "T.jsonl", "--prices", "A.toml"], _writes("A.toml", line.encode()), line[:40])
    for field in ("timestamp", "input_length", "output_length", "hash_ids"):
        for value in (
            "NaN",
            "-1",
            "1e400",
            "1" * 30,
            '"x"',
            "null",
            "true",
            "[]",
            "{}",
            '[{"a": 1}]',
            "[-1]",
            '["\\u001b[2J"]',
        ):
            rows = [
                f'{{"timestamp": 1, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2], "{field}": {value}}}'
            ]
            command = rng.choice([["workload", "describe", "T.jsonl"], ["cache", "T.jsonl"], ["price", "T.jsonl"]])
            yield Case("texts", command, _writes("T.jsonl", "\n".join(rows * 2).encode()), f"{field} = {value}")
    for field in MEASURED:
        for value in rng.sample(MEASURED_VALUES, 6):
            result = json.dumps({**MEASURED, field: "@"}).replace('"@"', value)
            yield Case("texts", rng.choice([AGAINST, FIT]), _writes("R.json", result.encode()), f"{field} = {value}")
    for series in ("num_requests_running", "cache_config_info", "prompt_tokens_bucket", "prompt_tokens_sum", "success"):
        for value in ("NaN", "-1", "+Inf", "1e400", "9" * 5000, "x", "", "1 2 3"):
            page = re.sub(rf"({series}.*) \S+$", rf"\1 {value}", METRICS, count=1, flags=re.MULTILINE)
            assert page != METRICS, series
            yield Case("texts", READS_PAGE, _writes("page.txt", page.encode()), f"{series} {value:.40}")


TEXTS = {
    "S.toml": SCENARIO,
    "T.jsonl": TRACE,
    "P.toml": "h200 = 3.5\n",
    "R.json": json.dumps(MEASURED),
    "page.txt": METRICS,
}
MEASURED_VALUES = (
    *("NaN", "-1", "0", "1e400", "9" * 30, '"x"', "null", "true", "[]", "{}", "[1]", '["\\u001b[2J"]', "[[1]]"),
    *(f"[{', '.join([item] * 80)}]" for item in ("NaN", "-1", "0", "1e300", "null", '"x"', "1.5", "1e-320", "[]")),
    f"[{', '.join(['1'] * 79)}]",
)
READERS = [
    ("S.toml", ["run", "S.toml"]),
    ("S.toml", ["workload", "describe", "S.toml"]),
    ("S.toml", ["cache", "S.toml"]),
    ("P.toml", ["run", "S.toml", "--prices", "P.toml"]),
    ("P.toml", ["price", "T.jsonl", "--prices", "P.toml"]),
    ("T.jsonl", ["cache", "T.jsonl"]),
    ("launch.sh", ["plan", "S.toml", "--from-launch", "launch.sh", *QUICK]),
    ("vllm.log", ["profile", "kv-log", "vllm.log"]),
    ("vllm.log", ["plan", "S.toml", "--from-log", "vllm.log", *QUICK]),
    ("bench.sh", ["import-bench", "bench.sh"]),
    ("config.json", ["profile", "show", "--model", "config.json"]),
    ("profile.json", ["profile", "show", "profile.json"]),
    ("points.jsonl", ["calibrate", "--points", "points.jsonl", "--out", "o"]),
    ("warm.npz", ["run", "S.toml", *PLAIN, "--warm-cache", "warm.npz"]),
    ("result.json", ["run", "S.toml", "--no-baseline", "--against", "result.json"]),
    ("tok.json", ["workload", "describe", "T.jsonl", "--tokenizer", "tok.json"]),
    ("R.json", AGAINST),
    ("R.json", FIT),
    ("vllm.log", [*FIT, "--log", "vllm.log"]),
    ("page.txt", READS_PAGE),
    ("after.txt", ["observe", "page.txt", "after.txt", "--seconds", "60", "--set", "hardware.gpu=h200"]),
    ("M.om", READS_SERIES),
    ("config.json", [*ASKS, "--model", "config.json"]),
    ("run/run.json", ["export", "run", "--grafana", "x.om"]),
    ("run/scenario.toml", [*DASHBOARD, "run"]),
]
PRICES = (
    "",
    "h200 = nan",
    "h200 = inf",
    "h200 = -1",
    "h200 = 1e300",
    "h200 = '3'",
    "h200 = true",
    "h200 = []",
    "h999 = 3",
    "[h200]\na = 1",
    "h200 = 3\nh200 = 4",
    '"\\u001b[31m" = 3',
    "[[api]]\nname = 'x'\ninput = nan\noutput = 1",
    "[[api]]\nname = 'x'\ninput = -1\noutput = 1",
    "[[api]]\nname = 'x'\ninput = inf\noutput = 1",
    "[[api]]\nname = 'x'\ninput = 1e300\noutput = 1",
    '[[api]]\nname = "\\u001b[31m"\ninput = 1\noutput = 1',
)


def _spoiled(text: str, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    whole = text.encode()
    yield "empty", b""
    yield "half", whole[: len(whole) // 2]
    yield "zeros", bytes(len(whole))
    yield "noise", rng.randbytes(500)
    yield "not UTF-8", b"\xff\xfe" + whole
    yield "UTF-16", text.encode("utf-16")
    yield "escape", b"\x1b]0;owned\x07\x1b[2J" + whole
    yield (
        "escape within",
        whole.replace(b"small", b"\\u001b[2J").replace(b"timestamp", b"\\u001b[2J").replace(b"h200", b'"\\u009b2J"'),
    )
    yield "nested", b"a = " + b"[" * 5000 + b"]" * 5000
    yield "nested JSON", b'{"a": ' * 5000 + b"1" + b"}" * 5000
    yield "a list", b"[1, 2]"
    yield "null", b"null"
    yield "an object", b'{"nan": NaN, "x": {"y": [1e999]}}'
    yield "twice", whole + whole
    yield "long number", whole + b"\n" + b"9" * 5000 + b"\n"
    yield "JSON rows", b'{"op": "header", "schema": 2, "n": ' + b"9" * 5000 + b'}\n[1]\n{"shape": 3}\n'


def _writes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


# -- flags -------------------------------------------------------------------------------------------------------------

FLAG_VALUES = (
    "nan",
    "inf",
    "-1",
    "0",
    "1e999",
    "99999999999999999999",
    "9" * 5000,
    "",
    " ",
    ",",
    "a,,b",
    "1,1",
    "0.5",
    "x=",
    "=x",
    "text",
    "\x1b[31mred",
    "two\nlines",
    "/dev/null",
    "/",
    "caf\udce9",
    "a.b=1",
)
BASES = {
    "run": ["run", "S.toml", "--no-baseline", "--no-model-error"],
    "import-bench": ["import-bench", "vllm bench serve --dataset-name random --request-rate 3 --num-prompts 10"],
    "estimate": ["estimate", "S.toml"],
    "compare": ["compare", "S.toml", "--vary", "cache.policy=lru,lfu"],
    "sweep": ["sweep", "S.toml", "--vary", "cache.policy=lru,lfu", "--out", "s"],
    "plan": ["plan", "S.toml", "--max-replicas", "2", "--seeds", "2"],
    "resilience": ["resilience", "R.toml", *BRIEF],
    "value": ["value", "S.toml", "--most", "2"],
    "cache": ["cache", "T.jsonl", "--json"],
    "optimum": ["optimum", "S.toml", "--set", "cache.tiers=", "--set", "shock="],
    "explain": ["explain", "run"],
    "timeline": ["timeline", "S.toml", "--window", "0,1"],
    "report": ["report", "run", "--html", "x.html"],
    "price": ["price", "T.jsonl"],
    "replay": ["replay", "S.toml", "--for", "vllm", "--out", "v.jsonl", "--model", "m"],
    "workload describe": ["workload", "describe", "T.jsonl"],
    "workload convert": ["workload", "convert", "T.jsonl", "--out", "o.jsonl"],
    "profile list": ["profile", "list"],
    "profile models": ["profile", "models"],
    "profile show": ["profile", "show", "--model", "llama-3.1-8b"],
    "profile diff": ["profile", "diff", "h200", "h100"],
    "profile kv-log": ["profile", "kv-log", "vllm.log"],
    "calibrate": ["calibrate", "--points", "none.jsonl", "--out", "o"],
    "validate": ["validate", "no-such-set"],
    "doctor": ["doctor", "run"],
    "demo": ["demo", "--replicas", "0"],
    "dashboard": [*DASHBOARD, "run"],
    "ask": ASKS,
    "export": ["export", "run", "--grafana", "x.om"],
    "fit-server": FIT,
    "observe": READS_SERIES,
}


def of_flags(rng: random.Random) -> Iterator[Case]:
    """Every flag that takes a value, with values it does not take."""
    for name, parser in _parsers(build_parser(), ""):
        for action in parser._actions:
            if not action.option_strings or action.nargs == 0:
                continue
            for value in rng.sample(FLAG_VALUES, 5):
                yield Case("flags", [*BASES.get(name, name.split()), f"{max(action.option_strings, key=len)}={value}"])
        yield Case("flags", [*BASES.get(name, name.split()), "--no-such-flag"], codes=frozenset({2}))
        yield (
            Case(
                "flags",
                name.split(),
                codes=frozenset({0, 1, 2})
                if name in ("validate", "profile list", "profile models")
                else frozenset({2}),
            )
            if name not in ("demo", "dashboard", "validate", "calibrate")
            else Case("flags", ["nothing"], codes=frozenset({2}))
        )


def _parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    if below is None:
        yield name, parser
        return
    for inner, made in below.choices.items():
        yield from _parsers(made, f"{name} {inner}".strip())


# -- paths -------------------------------------------------------------------------------------------------------------


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "fifo")


def _loop(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")


def _dangling(folder: Path) -> None:
    (folder / "dangling").symlink_to("nowhere")


def _odd(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for content in (folder / "S.toml", folder / "T.jsonl"):
            (folder / (name + content.suffix)).write_bytes(content.read_bytes())
        (folder / name).write_bytes(b"\x00 nothing")

    return prepare


PATHS: dict[str, Callable[[Path], None] | None] = {
    "fifo": _fifo,
    "/dev/zero": None,
    "/dev/null": None,
    "/dev/full": None,
    ".": None,
    "run": None,
    "nowhere": None,
    "nowhere/x": None,
    "S.toml/x": None,
    "loop": _loop,
    "dangling": _dangling,
    "x" * 300: None,
    "red\x1b[31m": _odd("red\x1b[31m"),
    "red\x1b[31m.toml": _odd("red\x1b[31m"),
    "caf\udce9": _odd("caf\udce9"),
    "caf\udce9.toml": _odd("caf\udce9"),
    "two\nlines.jsonl": _odd("two\nlines"),
    "\u202egnp.toml": _odd("\u202egnp"),
}
READS = [
    ["run", "@"],
    ["run", "S.toml", "--prices", "@"],
    ["run", "S.toml", "--no-baseline", "--warm-cache", "@"],
    ["run", "S.toml", "--no-baseline", "--against", "@"],
    ["run", "S.toml", "--set", "workload.trace=@", "--set", "workload.class="],
    ["run", "S.toml", "--no-baseline", "--set", "model.config=@"],
    ["run", "S.toml", "--no-baseline", "--set", "hardware.profile=@"],
    ["estimate", "@"],
    ["compare", "@", "--vary", "cache.policy=lru,lfu"],
    ["sweep", "@", "--vary", "cache.policy=lru,lfu", "--out", "s"],
    ["plan", "@", *QUICK],
    ["plan", "S.toml", "--from-launch", "@", *QUICK],
    ["plan", "S.toml", "--from-log", "@", *QUICK],
    ["resilience", "@"],
    ["value", "@"],
    ["cache", "@"],
    ["optimum", "@"],
    ["explain", "@"],
    ["timeline", "@", "--window", "0,1"],
    ["report", "@", "--html", "x.html"],
    ["price", "@"],
    ["price", "T.jsonl", "--prices", "@"],
    ["workload", "describe", "@"],
    ["workload", "describe", "T.jsonl", "--tokenizer", "@"],
    ["workload", "convert", "@", "--out", "o.jsonl"],
    ["profile", "show", "@"],
    ["profile", "show", "--model", "@"],
    ["profile", "diff", "h200", "@"],
    ["profile", "kv-log", "@"],
    ["calibrate", "--points", "@", "--out", "o"],
    ["validate", "engine-cases", "--cases", "@"],
    ["validate", "--data", "@"],
    ["doctor", "@"],
    ["import-bench", "@"],
    ["replay", "S.toml", "--for", "vllm", "--model", "m", "--out", "v.jsonl", "--tokenizer", "@"],
    ["import-bench", "vllm bench serve --dataset-name random", "--result", "@"],
    ["explain", "S.toml", *PLAIN, "--against", "@"],
    ["explain", "run", "--life", "@"],
    ["export", "@", "--grafana", "x.om"],
    ["fit-server", "@", *FIT[2:]],
    [*FIT, "--log", "@"],
    [*FIT, "--scenario", "@"],
    ["observe", "@", "--seconds", "60"],
    [*DASHBOARD, "@"],
    [*DASHBOARD, "run", "--model", "@"],
    ["validate", "engine", "--record", "@"],
    [*ASKS, "--model", "@"],
    ["compare", "S.toml", "@"],
]
WRITES = [
    ["run", "S.toml", "--no-baseline", "--no-model-error", "--out", "@"],
    ["run", "S.toml", "--no-baseline", *PLAIN, "--save-cache", "@"],
    ["sweep", "S.toml", "--vary", "cache.policy=lru,lfu", "--out", "@"],
    ["report", "run", "--html", "@"],
    ["timeline", "S.toml", "--window", "0,1", "--trace", "@"],
    ["workload", "convert", "T.jsonl", "--out", "@"],
    ["calibrate", "--points", "none.jsonl", "--out", "@"],
    ["import-bench", "vllm bench serve --dataset-name random --request-rate 3", "--out", "@"],
    ["replay", "S.toml", "--for", "vllm", "--model", "m", "--out", "@"],
    ["export", "run", "--grafana", "@"],
    [*FIT, "--out", "@"],
    [*READS_SERIES, "--out", "@"],
    [*ASKS, "--out", "@"],
]


def of_paths(rng: random.Random) -> Iterator[Case]:
    """Names of what cannot be read or written, wherever a name is taken."""
    for argv in READS:
        for path in ["fifo", *rng.sample(sorted(set(PATHS) - {"fifo"}), 7)]:
            yield Case("paths", [word.replace("@", path) for word in argv], PATHS[path])
    for argv in WRITES:
        for path, prepare in PATHS.items():
            if path != "/dev/zero":
                yield Case("paths", [word.replace("@", path) for word in argv], prepare)


# -- folders -----------------------------------------------------------------------------------------------------------


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _other(path: Path) -> None:
    path.write_text('{"format": 2, "files": {"summary.json": [-1, null]}, "a": [1, {"b": null}]}')


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "half": _half,
    "zeros": _zeros,
    "gone": Path.unlink,
    "a folder": _as_folder,
    "a pipe": _as_fifo,
    "other JSON": _other,
}
ON_FOLDERS = {
    "run": [
        ["report", "run", "--html", "x.html"],
        ["explain", "run"],
        ["explain", "run", "--life", "slowest"],
        ["doctor", "run"],
        ["export", "run", "--grafana", "x.om"],
        [*DASHBOARD, "run"],
    ],
    "sweep": [
        ["sweep", "S.toml", "--vary", "cache.policy=lru,lfu", "--out", "sweep"],
        ["doctor", "sweep"],
        ["report", "sweep", "--html", "x.html"],
    ],
}


def of_folders(world: Path, rng: random.Random) -> Iterator[Case]:
    """What was written, damaged by hand, file by file."""
    for folder, commands in ON_FOLDERS.items():
        for path in sorted(path.relative_to(world) for path in (world / folder).rglob("*") if path.is_file()):
            for how, damage in rng.sample(sorted(DAMAGE.items()), 3):
                yield Case("folders", rng.choice(commands), _damages(path, damage), f"{path}: {how}")


def _damages(path: Path, damage: Callable[[Path], Any]) -> Callable[[Path], object]:
    return lambda folder: damage(folder / path)


# -- whole lines -------------------------------------------------------------------------------------------------------


def of_lines(rng: random.Random) -> Iterator[Case]:
    """Commands that are wrong as a whole."""
    wrong = frozenset({2})
    many = ",".join(map(str, range(1, 201)))
    grid: Sequence[str] = [
        f"{key}={many}" for key in ("engine.kv_blocks", "engine.max_num_seqs", "cluster.replicas", "seed")
    ]
    for command, more in (("compare", []), ("sweep", ["--out", "s"])):
        vary = [word for axis in grid[:3] for word in ("--vary", axis)]
        yield Case("lines", [command, "S.toml", *vary, "--seeds", "5", *more], codes=wrong, how="40 million variants")
    for argv in (
        [],
        ["nothing"],
        ["Run"],
        ["run"],
        ["run", ""],
        ["run", "S.toml", "S.toml"],
        ["--no"],
        ["\x1b[2J"],
        ["run\udce9"],
    ):
        yield Case("lines", argv, codes=wrong)
    for argv in FILLING:
        sizes = ((200, {2}), (1000, {0, 2}), (5000, {0, 2}))
        for size, codes in sizes[argv[0] in ("ask", "fit-server") :]:  # what the one tells is a file too
            keeps = argv[0] in ("ask", "sweep", "plan", "resilience", "calibrate")
            yield Case("lines", argv, None, f"a disk full at {size}", frozenset(codes), size, keeps)
    for command in COMMANDS:
        yield Case("lines", [command, "--help"], codes=frozenset({0}))


FILLING = [
    ["run", "S.toml", "--no-baseline", "--no-model-error", "--out", "r"],
    [*("run", "S.toml", "--no-baseline", "--set", "cache.tiers=", "--set", "shock="), "--save-cache", "w.npz"],
    ["sweep", "S.toml", "--vary", "cache.policy=lru,lfu", "--out", "s"],
    ["plan", "S.toml", *QUICK, *PLAIN, "--no-growth", "--no-recover", "--out", "p"],
    ["resilience", "R.toml", *BRIEF, "--out", "v"],
    ["calibrate", "--device", "fake", "--out", "c"],
    ["calibrate", "--device", "fake", "--out", "c.json"],
    ["calibrate", "--points", "measured/points.jsonl", "--out", "c.json"],
    ["calibrate", "--points", "measured/points.jsonl", "--out", "c"],
    ["report", "run", "--html", "x.html"],
    ["timeline", "S.toml", "--window", "0,3", "--most", "60", "--trace", "t.json"],
    ["workload", "convert", "T.jsonl", "--out", "o.jsonl"],
    ["import-bench", "vllm bench serve --dataset-name random --request-rate 3", "--out", "b.toml"],
    ["replay", "S.toml", "--for", "vllm", "--model", "m", "--out", "v.jsonl"],
    ["export", "run", "--grafana", "x.om"],
    [*FIT, "--out", "f.toml"],
    [*READS_SERIES, "--out", "o.toml"],
    [*ASKS, "--out", "a"],
]
