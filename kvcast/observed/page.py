"""A metrics page: Prometheus' text format 0.0.4, of which samples are read and comments are not; and pages over time,
an OpenMetrics text with timestamps, as `kvcast export --grafana` writes it.

>>> parsed('vllm:num_requests_running{model_name="m",engine="0"} 3', "saved.txt").total("vllm:num_requests_running")
3.0
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from workloads.errors import InputError, on_one_line

MAX_BYTES = 8 << 20  #: of one page; a server's is some hundred KB
SERIES_BYTES = 2 << 30  #: of pages over time
MOST_PAGES = 21  #: of them that are read: the first, the last and between them
END_MARK = b"# EOF"
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+(?:\.\d+)?)?")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"[, ]*')
ENGINES = ("vllm", "sglang")


@dataclass
class Page:
    """The samples of one page, by name: (labels, value)."""

    source: str  #: where it is from, for messages
    engine: str = ""  #: "vllm" or "sglang"
    samples: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=lambda: defaultdict(list))

    def has(self, name: str) -> bool:
        return name in self.samples

    def total(self, *names: str) -> float:
        """The sum over all label sets of the first of the names that the page has; 0.0 for none. Raises InputError for
        a value that is no finite number."""
        found = next((self.samples[name] for name in names if name in self.samples), [])
        for labels, value in found:
            if not math.isfinite(value):
                raise InputError(f"{self.source}: {names[0]}{labels or ''} = {value}, expected a finite number")
        return math.fsum(value for _, value in found)

    def values(self, name: str) -> list[float]:
        """The distinct values of a name, ascending."""
        return sorted({value for _, value in self.samples.get(name, ()) if math.isfinite(value)})

    def labels(self, label: str) -> list[str]:
        """The distinct values of a label in the engine's own samples."""
        own = (labels for name, found in self.samples.items() if name.startswith(self.engine) for labels, _ in found)
        return sorted({labels[label] for labels in own if label in labels})

    def buckets(self, name: str) -> dict[float, float]:
        """Upper end of each bucket of a histogram -> observations up to it, over all label sets."""
        counts: dict[float, float] = defaultdict(float)
        for labels, value in self.samples.get(f"{name}_bucket", ()):
            try:
                counts[float(labels["le"])] += value
            except (KeyError, ValueError):
                raise InputError(
                    f"{self.source}: {name}_bucket with le = {labels.get('le', 'none')!r}, expected a number"
                ) from None
        if any(not math.isfinite(value) or value < 0 for value in counts.values()) or any(map(math.isnan, counts)):
            raise InputError(f"{self.source}: {name}_bucket: expected finite counts of at least 0")
        return dict(sorted(counts.items()))


def parsed(text: str, source: str) -> Page:
    """The page. Raises InputError for a text that is no metrics page, or one of another program."""
    page, bad, told = Page(source), "", set[tuple[str, str]]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = SAMPLE.fullmatch(line)
        value = _number(found[3]) if found else None
        if found is None or value is None:
            bad = bad or f"line {number}: {on_one_line(line[:60])!r}"
            continue
        if (one := (found[1], found[2] or "")) in told:
            raise InputError(
                f"{source}, line {number}: {on_one_line(line[:60])!r} a second time, expected one moment of one server"
            )
        told.add(one)
        page.samples[found[1]].append((_labels(found[2] or ""), value))
    page.engine = next((name for name in ENGINES if any(key.startswith(f"{name}:") for key in page.samples)), "")
    if not page.engine and (bad or not page.samples):
        raise InputError(f"{source}: no metrics page ({bad or 'no line of it is a sample'}), expected Prometheus' text")
    if not page.engine:
        raise InputError(
            f"{source}: {len(page.samples)} metrics, none begins with vllm: or sglang:, expected the engine's own"
            " /metrics (SGLang has one with --enable-metrics)"
        )
    if bad:
        raise InputError(f"{source}, {bad}: expected a sample such as vllm:num_requests_running 3")
    page.samples = dict(page.samples)
    return page


def saved(path: Path) -> Page:
    """A page from a file."""
    if path.exists() and not path.is_file():  # a pipe may never answer
        raise InputError(f"{path}: not a regular file, expected a saved metrics page")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}, expected a saved metrics page") from None
    return parsed(decoded(content, str(path)), str(path))


def is_series(path: Path) -> bool:
    """Whether a file holds pages over time: OpenMetrics' end mark, and a sample with a timestamp."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = next((line for line in file if line.strip() and not line.startswith(b"#")), b"")
        file.seek(max(path.stat().st_size - 64, 0))
        return file.read().rstrip().endswith(END_MARK) and _stamp(head) is not None


def series(path: Path, most: int = MOST_PAGES) -> list[tuple[float, Page]]:
    """(seconds, page) of at most so many moments, in order. Raises InputError for a line that is no sample with a
    timestamp, or for fewer than two moments."""
    if path.stat().st_size > SERIES_BYTES:
        raise InputError(f"{path}: more than {SERIES_BYTES >> 30} GiB, expected metrics pages over time")
    moments: set[float] = set()
    for number, line in _samples(path):
        stamp = _stamp(line)
        if stamp is None:
            raise InputError(f"{path}, line {number}: expected a sample with a timestamp, as those before it")
        moments.add(stamp)
    if len(moments) < 2:
        raise InputError(f"{path}: all samples of one moment, expected pages over time")
    every = sorted(moments)
    step = (len(every) - 1) / (min(most, len(every)) - 1)
    kept: dict[float, list[str]] = {every[round(i * step)]: [] for i in range(min(most, len(every)))}
    for _, line in _samples(path):
        if (lines := kept.get(_stamp(line) or 0.0)) is not None:
            lines.append(line.decode("utf-8", "replace"))
    return [(at_s, parsed("".join(lines), str(path))) for at_s, lines in kept.items()]


def paged(lines: Iterable[str], source: str) -> list[tuple[float, Page]]:
    """The same of lines that are at hand, all of them."""
    kept: dict[float, list[str]] = defaultdict(list)
    for line in lines:
        if not line.startswith("#"):
            kept[_stamp(line.encode()) or 0.0].append(line)
    return [(at_s, parsed("\n".join(kept[at_s]), source)) for at_s in sorted(kept)]


def _samples(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from ((n, line) for n, line in enumerate(file, 1) if line.strip() and not line.startswith(b"#"))


def _stamp(line: bytes) -> float | None:
    """The timestamp that ends a sample: a third word after its name and labels."""
    words = line[line.rfind(b"}") + 1 :].split() if b"}" in line else line.split()[1:]
    if len(words) != 2:
        return None
    value = _number(words[1].decode("ascii", "replace"))
    return value if value is not None and math.isfinite(value) else None


def decoded(content: bytes, source: str) -> str:
    if len(content) > MAX_BYTES:
        raise InputError(f"{source}: more than {MAX_BYTES >> 20} MiB, expected a metrics page")
    return content.decode("utf-8", "replace")


def _labels(text: str) -> dict[str, str]:
    return {name: value.replace('\\"', '"').replace("\\\\", "\\") for name, value in LABEL.findall(text)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
