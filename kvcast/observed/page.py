"""A metrics page: Prometheus' text format 0.0.4, of which samples are read and comments are not.

>>> parsed('vllm:num_requests_running{model_name="m",engine="0"} 3', "saved.txt").total("vllm:num_requests_running")
3.0
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from workloads.errors import InputError, on_one_line

MAX_BYTES = 8 << 20  #: of one page; a server's is some hundred KB
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?")
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
    page, bad = Page(source), ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = SAMPLE.fullmatch(line)
        value = _number(found[3]) if found else None
        if found is None or value is None:
            bad = bad or f"line {number}: {on_one_line(line[:60])!r}"
            continue
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
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}, expected a saved metrics page") from None
    return parsed(decoded(content, str(path)), str(path))


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
