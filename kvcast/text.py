"""Plain-text output: numbers as people read them, and tables whose columns line up."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.errors import on_one_line

UNKNOWN = "-"
NO_FLEET = 1
"""Exit code of `kvcast plan` whose answer is that no fleet it looked at meets the target."""


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(value: float | None, digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %"


def hit_rate(value: float | None, known: bool) -> str:
    """known: whether the workload says which text is shared; without that nothing hits, and that says nothing."""
    return percent(value) if known else "unknown"


def seconds(value: float | None) -> str:
    """Three significant digits in the unit people use: 4.21 ms, 1.32 s."""
    if value is None:
        return UNKNOWN
    return f"{_significant(value * 1e3)} ms" if abs(value) < 1 else f"{_significant(value)} s"


def minutes(value: float | None) -> str:
    """A stretch of a run as people say it: 90 s, 20 min, 24 h."""
    if value is None:
        return UNKNOWN
    size, unit = (3600, "h") if abs(value) >= 2 * 3600 else (60, "min") if abs(value) >= 120 else (1, "s")
    return f"{value / size:.3g} {unit}"


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else seconds(value / 1e3)


def _significant(value: float) -> str:
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def usd(value: float | None) -> str:
    return (
        UNKNOWN
        if value is None
        else f"${value:,.2f}"
        if abs(value) >= 0.1 or value == 0
        else "$" + f"{float(f'{value:.3g}'):.12f}".rstrip("0")
    )


NUMBER = re.compile(r"(?P<sign>[+−-]?)(?P<usd>\$?)(?P<whole>[\d,]+)\.?(?P<digits>\d*)(?P<unit>\D*)")


def plus_minus(told: str, half: float, show: Callable[[float], str]) -> str:
    """ "$0.28 ± $0.01": a value as told with half of its interval, which has no more decimals than the value:
    "$0.28 ± $0.00000551" tells of a precision that nobody asked for. Rounded up, lest it be 0."""
    value, other = NUMBER.fullmatch(told), NUMBER.fullmatch(show(half))
    if value is None or other is None or value["unit"] != other["unit"]:
        return f"{told} ± {show(half)}"
    digits = len(value["digits"])
    if len(other["digits"]) <= digits:
        return f"{told} ± {show(half)}"
    shown = float(f"{other['whole']}.{other['digits']}".replace(",", ""))
    return f"{told} ± {other['usd']}{math.ceil(shown * 10**digits) / 10**digits:,.{digits}f}{other['unit']}"


def hours(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def per_million(cost: Mapping[str, Any], unit: str, show: Callable[[float | None], str]) -> str:
    """A bill over output, input and all tokens. cost: has UNIT_per_million_output_tokens and the other two, unknown in
    old runs."""
    output, given, total = (
        show(cost.get(f"{unit}_per_million_{tokens}_tokens")) for tokens in ("output", "input", "total")
    )
    named = " GPU-hours" if unit == "gpu_hours" else ""  # money brings its sign
    return f"{output}{named} per million output tokens, {given} input, {total} all (one bill, three views)"


def scaled(value: float | None) -> str:
    """1.23e15 as 1.23 P."""
    if value is None:
        return UNKNOWN
    for factor, prefix in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.2f}{prefix}"
    return f"{value:.0f} "


def wrapped(block: str, width: int = 100) -> str:
    """Lines longer than `width` go on below, indented; tables are expected to fit."""
    return "\n".join(
        (
            line
            if len(line) <= width
            else textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        )
        for line in block.splitlines()
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns lined up: the first `left` to the left, the others to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *[line(row) for row in cells[1:]]])


def to_json(value: Any) -> str:
    """One JSON document; what is not a number (NaN) or not finite is null."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The value with numpy scalars as Python's and non-finite floats as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# -- terminals ---------------------------------------------------------------------------------------------------------

_COMMANDS = {
    "stdout": re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"),
    "stderr": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029]|\x1b(?!\\[K)"),
}
"""What no line of ours has; progress on stderr is written over."""


class Harmless:
    """A stream that commands no terminal, whatever a file, a class or a model in it is called: control characters are
    written out, as JSON does."""

    def __init__(self, stream: Any, kind: str) -> None:
        self._stream, self._commands = stream, _COMMANDS[kind]

    def write(self, words: str) -> int:
        self._stream.write(self._commands.sub(lambda found: f"\\u{ord(found[0]):04x}", words))
        return len(words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# -- progress ----------------------------------------------------------------------------------------------------------

PROGRESS_FILE = "KVCAST_PROGRESS"
"""Environment variable: the file that whoever waits for this command reads its progress from."""
TOLD_FILE = "KVCAST_TOLD"
"""Environment variable: the file to which a command adds what it knows so far, one JSON document a line."""
TELL_EVERY_S = 0.2
BEGAN_S = time.monotonic()
"""When this command began: it loads this module first."""
PARENT = os.getppid()


def progress(words: str) -> None:
    """Say what is being done: a line on stderr when someone is watching, and in the progress file."""
    if sys.stderr.isatty():
        print(f"\033[K{words}", file=sys.stderr, flush=True)
    if path := os.environ.get(PROGRESS_FILE):
        _tell(Path(path), words, _told(Path(path)).get("done", 0.0))


def tell(document: dict[str, Any]) -> None:
    """Add a document to the file of whoever waits for this command, in one piece."""
    if path := os.environ.get(TOLD_FILE):
        with contextlib.suppress(OSError), Path(path).open("a", encoding="utf-8") as out:
            out.write(json.dumps(plain(document), ensure_ascii=False, allow_nan=False) + "\n")


def note(words: str) -> None:
    """Say what is no result and not to be missed: one line on stderr, whoever watches."""
    clear_clock()
    print(f"kvcast: {on_one_line(words)}", file=sys.stderr, flush=True)


def progress_share(done: float, total: float, words: str) -> None:
    """How much is done, of the whole command: a line that is written over, and in the progress file. At most 5 times a
    second."""
    share = min(max(done / total, 0.0), 1.0) if total else 0.0
    path = os.environ.get(PROGRESS_FILE)
    told = _told(Path(path)) if path else {}
    share = max(share, told.get("done", 0.0))  # whoever watches sees it go on, whatever is found to be left
    if sys.stderr.isatty():
        left_s = time_left_s(share)
        left = (
            f", about {f'{left_s / 60:.0f} min' if left_s >= 120 else f'{left_s:.0f} s'} left"
            if left_s is not None
            else ""
        )
        print(f"\r\033[K{100 * share:.0f} %  {words}{left}\r", end="", file=sys.stderr, flush=True)
    if path and (share == 1 or time.time() - told.get("at_s", 0.0) >= TELL_EVERY_S):
        _tell(Path(path), words, share)


def time_left_s(share: float) -> float | None:
    """Seconds this command will still take when it goes on as it did; None while too little is done to tell."""
    return (time.monotonic() - BEGAN_S) * (1 - share) / share if share >= 0.03 else None


def clock(words: str = "simulating", part: int = 0, parts: int = 1) -> Callable[[float, float], None] | None:
    """A simulation's `on_clock` that tells its share of the command, of which it is one of `parts` and begins now; None
    when nobody is watching."""
    if not (sys.stderr.isatty() or os.environ.get(PROGRESS_FILE)):
        return None
    progress_share(part, parts, words)
    return lambda now_s, share: progress_share(part + share, parts, f"{words}, {now_s:,.0f} s of simulated time")


def clear_clock() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _told(path: Path) -> dict[str, Any]:
    """What the progress file says so far."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _tell(path: Path, words: str, share: float) -> None:
    """Replace the progress file. Progress that cannot be told is no reason to stop; that nobody waits for it any more
    is one."""
    if os.getppid() != PARENT:
        raise KeyboardInterrupt
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        partial.write_text(
            json.dumps({"done": share, "left_s": time_left_s(share), "says": words, "at_s": time.time()}),
            encoding="utf-8",
        )
        os.replace(partial, path)
