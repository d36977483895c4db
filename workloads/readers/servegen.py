"""ServeGen client pools: per client a rate, a gap distribution and length distributions for every window of time.

The one idea: the files hold distributions, not requests, so requests are drawn: each window of each client is a
stationary renewal process of its own (Gamma or Weibull gaps at the recorded rate) with its own random stream, so that a
slice of the time, or a pool with one client more, holds the same requests where they overlap.

    >>> from workloads.readers import servegen
    # or a folder of chunk-*-trace.csv, chunk-*-dataset.json
    >>> workload = servegen.read("deepseek-r1.tar.xz", end_s=3600, seed=0)

What the files do not say is decided here: prompt and answer lengths are drawn independently of each other (their
correlation is not in the files); the first gap of a window is the rest of one that began before it, which keeps the
mean rate exact for bursty clients. Clients become tenants that share nothing."""

from __future__ import annotations

import bisect
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from workloads.columns import Workload
from workloads.dists import stream
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, MAX_TOKENS
from workloads.readers.archive import documents, first_names, is_archive
from workloads.readers.common import NO_IDENTITY, Rows, nothing_shared
from workloads.readers.head import Head
from workloads.readers.values import NOT_JSON, number, short, why_not_json

MAX_REQUESTS = 10_000_000
MOST = {"count": 100, "tokens": 1_000_000}  #: images, or the like, of one request, and tokens of one of them
MAX_BYTES = 1 << 30  #: of all client files
SUFFIXES = ("-trace.csv", "-dataset.json")
PROMPT_PARTS = ("input_tokens", "text_tokens")
COUNTED_PARTS = ("image", "audio", "video")  #: NAME_count pieces of NAME_tokens each
COUNTED = tuple(f"{part}_{what}" for part in COUNTED_PARTS for what in ("count", "tokens"))
_NAME = re.compile(r"chunk-(\d{1,9})-(trace\.csv|dataset\.json)$", re.ASCII)
_TABLE = re.compile(r"\{[\d\s.,:eE+-]*\}", re.ASCII)
_ENTRY = re.compile(r"\d")
TABLE = "the text of a table {tokens: share, ...}"


def looks_like(head: Head) -> str | None:
    if head.is_folder:
        return (
            "it is a folder of chunk-*-trace.csv"
            if any(_NAME.search(file.name) for file in head.path.iterdir())
            else None
        )
    if is_archive(head.path) and any(_NAME.search(name) for name in first_names(head.path)):
        return "it is a tar archive of chunk-*-trace.csv and chunk-*-dataset.json"
    return None


def read(
    path: str | Path,
    folder: str | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> Workload:
    """Requests drawn from the clients of one pool, by arrival; times count from the pool's second 0.

    folder: the pool's folder in the archive, where there are several. Only windows that touch [start_s, end_s) are
    drawn, up to the one in which the `requests`-th request comes."""
    rows = Rows(path)
    pool = _Pool(rows, folder)
    window, drawn, skipped = _draw(pool, start_s, math.inf if end_s is None else end_s, requests, seed)
    order = np.argsort(drawn["arrival_s"], kind="stable")
    columns = {name: column[order] for name, column in drawn.items()}
    n = len(order)
    if not n:
        raise InputError(
            f"{rows.path}: no request arrives from {start_s:g} s to {'the end' if end_s is None else f'{end_s:g} s'},"
            f" expected a part of {pool.span()}"
        )
    why = f" + {skipped} skipped for a prompt or answer of 0 tokens" if skipped else ""
    tree, leaf = nothing_shared(n)
    return Workload(
        tree=tree,
        arrival_s=columns["arrival_s"],
        prompt_tokens=columns["prompt"],
        output_tokens=columns["output"],
        leaf=leaf,
        tenant_id=columns["client"].astype(np.int32),
        tenant_names=tuple(f"client {client.number}" for client in pool.clients),
        prefix_identity=False,
        source=rows.source(),
        notes=(
            (
                f"requests drawn {n + skipped} = requests {n}{why}, from {len(pool.clients)} clients' distributions,"
                f" seed {seed}, up to {window:g} s of {pool.span()}"
            ),
            *rows.notes,
            "time unit: windows of the clients' files in s (the format's documentation)",
            "clients are tenants; prompt and answer lengths are drawn independently of each other",
            NO_IDENTITY,
        ),
    )


def _draw(
    pool: _Pool, start_s: float, end_s: float, limit: int | None, seed: int
) -> tuple[float, dict[str, np.ndarray], int]:
    """(end of the last window drawn, columns of the requests, how many had no prompt or no answer)."""
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    count = skipped = 0
    until = 0.0
    for at, length in pool.windows(start_s, end_s):
        until = at + length
        for index, client in enumerate(pool.clients):
            pattern = client.patterns.get(at)
            if pattern is None:
                continue
            rng = stream(seed, str(client.number), format(at, "g"))
            arrival_s = at + _arrivals(pattern, length, rng)
            prompt, output = pool.lengths(client, at).draw(len(arrival_s), rng)
            kept = (prompt > 0) & (output > 0) & (arrival_s >= start_s) & (arrival_s < end_s)
            skipped += int(((prompt < 1) | (output < 1)).sum())
            count += int(kept.sum())
            if count > MAX_REQUESTS:
                raise InputError(
                    f"{pool.rows.path}: more than {MAX_REQUESTS:,} requests by {until:g} s of {pool.span()}, expected a"
                    " slice of at most that: [workload] end_s or requests"
                )
            for name, column in (
                ("arrival_s", arrival_s),
                ("prompt", prompt),
                ("output", output),
                ("client", np.full(len(prompt), index)),
            ):
                parts[name].append(column[kept])
        if limit is not None and count >= limit:
            break
    empty = {"arrival_s": np.zeros(0), **{name: np.zeros(0, np.int64) for name in ("prompt", "output", "client")}}
    return until, {name: np.concatenate(parts[name]) if parts[name] else empty[name] for name in empty}, skipped


# -- one client --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pattern:
    """Gaps of a window: a family's shape, with the mean that the recorded rate asks for."""

    family: str  #: Gamma or Weibull
    shape: float
    rate: float  #: requests per second

    @property
    def scale(self) -> float:
        return 1 / (self.rate * (self.shape if self.family == "Gamma" else math.gamma(1 + 1 / self.shape)))

    def gaps(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self.scale * (rng.gamma(self.shape, size=n) if self.family == "Gamma" else rng.weibull(self.shape, n))

    def rest_of_one(self, rng: np.random.Generator) -> float:
        """What is left of the gap that a moment falls into: a uniform part of a gap drawn in proportion to its
        length."""
        whole = (
            rng.gamma(self.shape + 1) if self.family == "Gamma" else rng.gamma(1 + 1 / self.shape) ** (1 / self.shape)
        )
        return self.scale * whole * rng.random()


def _arrivals(pattern: _Pattern, length_s: float, rng: np.random.Generator) -> np.ndarray:
    """Times of a stationary renewal process in [0, length_s), float64; their mean number is exactly rate x length_s."""
    mean = pattern.rate * length_s
    times = np.array([pattern.rest_of_one(rng)])
    while times[-1] < length_s:
        more = pattern.gaps(int(mean + 4 * math.sqrt(mean)) + 8, rng)
        times = np.append(times, times[-1] + np.cumsum(more))
        if len(times) > MAX_REQUESTS + mean:
            break
    return times[: int(np.searchsorted(times, length_s))]


@dataclass(frozen=True)
class _Table:
    """A distribution of whole numbers, as the file tabulates it."""

    values: np.ndarray  #: int64
    up_to: np.ndarray  #: float64, cumulative share

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self.values[np.minimum(np.searchsorted(self.up_to, rng.random(n), side="right"), len(self.values) - 1)]


@dataclass(frozen=True)
class _Lengths:
    """Length distributions of one stretch of a client's time, by field of the file."""

    tables: dict[str, _Table]

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(prompt, output) int64 [n]; images, audio and video count as prompt tokens."""
        text = next(name for name in PROMPT_PARTS if name in self.tables)
        prompt, output = self.tables[text].draw(n, rng), self.tables["output_tokens"].draw(n, rng)
        for name in COUNTED_PARTS:
            if {f"{name}_count", f"{name}_tokens"} <= self.tables.keys():
                pieces = self.tables[f"{name}_count"].draw(n, rng)
                owner = np.repeat(np.arange(n), pieces)
                prompt = prompt + np.bincount(owner, self.tables[f"{name}_tokens"].draw(len(owner), rng), n).astype(
                    np.int64
                )
        return prompt, output


@dataclass
class _Client:
    number: int
    patterns: dict[float, _Pattern] = field(
        default_factory=dict
    )  #: by start of the window; none where the client is idle
    starts: list[float] = field(default_factory=list)  #: of its windows, ascending
    dataset: str = ""  #: name of the file with its lengths
    tables: dict[float, dict[str, str]] = field(
        default_factory=dict
    )  #: field -> table, by start of a stretch (longer than a window)


# -- the files ---------------------------------------------------------------------------------------------------------


class _Pool:
    """The clients of one folder, in order of their numbers."""

    def __init__(self, rows: Rows, folder: str | None) -> None:
        self.rows = rows
        clients = [self._client(number, files) for number, files in sorted(self._files(folder).items())]
        self.clients = [client for client in clients if client.tables]
        without = [client for client in clients if client.patterns and not client.tables]
        self._lengths: dict[tuple[int, float], _Lengths] = {}
        if not self.clients:
            raise InputError(
                f"{rows.path}: no client has both a trace and lengths, expected chunk-N-trace.csv with"
                " chunk-N-dataset.json"
            )
        if without:
            left_out, all_of = (sum(p.rate for c in group for p in c.patterns.values()) for group in (without, clients))
            rows.note(
                f"{len(without)} of {len(clients)} clients have no lengths and are left out, with their"
                f" {100 * left_out / all_of:.1f} % of the requests"
            )
        self.starts = sorted({start for client in self.clients for start in client.starts})

    def lengths(self, client: _Client, at: float) -> _Lengths:
        """Of the client's stretch that holds `at`; where that one is empty, of the nearest one before it, else after
        it."""
        starts = sorted(client.tables)
        start = starts[max(bisect.bisect_right(starts, at) - 1, 0)]
        key = client.number, start
        if key not in self._lengths:  # parsed when needed: a day of a large pool has tens of millions of numbers
            self._lengths[key] = _Lengths(
                {
                    name: self._table(f"{client.dataset}, {start:g}", name, text)
                    for name, text in client.tables[start].items()
                }
            )
        return self._lengths[key]

    def windows(self, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
        """(start, length) of every window that touches [start_s, end_s); the last is as long as the one before it."""
        for i, at in enumerate(self.starts):
            length = self._length(i)
            if at + length > start_s and at < end_s:
                yield at, length

    def _length(self, i: int) -> float:
        later = min(i + 1, len(self.starts) - 1)
        return self.starts[later] - self.starts[later - 1] if later else 600.0

    def span(self) -> str:
        return f"{self.starts[0]:g} to {self.starts[-1] + self._length(len(self.starts) - 1):g} s"

    def _files(self, folder: str | None) -> dict[int, dict[str, tuple[str, bytes]]]:
        """client -> {kind: (name, content)} of the one folder that is asked for, or there."""
        found: dict[str, dict[int, dict[str, tuple[str, bytes]]]] = {}
        total = 0
        for name, content in documents(self.rows.path, SUFFIXES):
            match = _NAME.search(name)
            above = name.rpartition("/")[0]
            if match is None or (folder is not None and above.rpartition("/")[2] != folder):
                found.setdefault(above, {})  # named in the message below
                continue
            total += len(content)
            if total > MAX_BYTES:
                raise InputError(
                    f"{self.rows.path}: more than {MAX_BYTES >> 30} GiB of client files, expected at most that"
                )
            found.setdefault(above, {}).setdefault(int(match[1]), {})[match[2]] = name, self.rows.hashed(content)
        pools = [clients for clients in found.values() if clients]
        if len(pools) != 1:
            names = ", ".join(sorted(name.rpartition("/")[2] for name in found)) or "none"
            raise InputError(
                f"{self.rows.path}: folders of clients: {short(names)[1:-1]}; expected one, or its name in [workload]"
                " folder" + ("" if folder is None else f" (folder = {folder!r})")
            )
        return pools[0]

    def _client(self, number: int, files: dict[str, tuple[str, bytes]]) -> _Client:
        client = _Client(number)
        if "trace.csv" in files:
            self._trace(client, *files["trace.csv"])
        if "dataset.json" in files:
            self._dataset(client, *files["dataset.json"])
        return client

    def _trace(self, client: _Client, name: str, content: bytes) -> None:
        """Rows start_s, rate, cv, family, shape, scale without a header; no family: idle."""
        for row, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), 1):
            if not line.strip():
                continue
            fields = line.split(",")
            if len(fields) != 6:
                raise InputError(
                    f"{self.rows.path}, {name}, row {row}: {len(fields)} fields, expected start_s, rate, cv, family,"
                    " shape, scale"
                )
            start = self._number(name, row, "start_s", fields[0], 0, MAX_SECONDS)
            if client.starts and not start > client.starts[-1]:
                self._fail(name, row, "start_s", fields[0], f"a time after {client.starts[-1]:g}")
            client.starts.append(start)
            rate = self._number(name, row, "rate", fields[1], 0, 1e6)
            if not fields[3].strip() or rate == 0:
                continue
            if fields[3].strip() not in ("Gamma", "Weibull"):
                self._fail(name, row, "family", fields[3], "Gamma, Weibull, or nothing for an idle window")
            client.patterns[start] = _Pattern(
                fields[3].strip(), self._number(name, row, "shape", fields[4], 0.01, 1e9), rate
            )

    def _dataset(self, client: _Client, name: str, content: bytes) -> None:
        """{start_s: {field: "{tokens: share}"}}, whose tables are the text of a Python dict."""
        try:
            document = json.loads(content)
        except NOT_JSON as problem:
            raise InputError(f"{self.rows.path}, {name}: not JSON ({why_not_json(problem)})") from None
        if type(document) is not dict:
            raise InputError(
                f"{self.rows.path}, {name}: {short(document)}, expected an object of length distributions by time"
            )
        for at, fields in document.items():
            start = self._number(name, None, "start_s", at, 0, MAX_SECONDS)
            if type(fields) is not dict or "output_tokens" not in fields or not set(PROMPT_PARTS) & fields.keys():
                self._fail(name, None, at, fields, "output_tokens and input_tokens (or text_tokens)")
            tables = {key: fields[key] for key in ("output_tokens", *PROMPT_PARTS, *COUNTED) if key in fields}
            for key, text in tables.items():
                if type(text) is not str or not _TABLE.fullmatch(text):
                    self._fail(name, None, f"{at}.{key}", text, TABLE)
            if all(_ENTRY.search(text) for text in tables.values()):  # else nothing was seen in that stretch
                client.tables[start] = tables
        client.dataset = name

    def _table(self, where: str, key: str, text: str) -> _Table:
        pairs = [pair.split(":") for pair in text[1:-1].split(",") if pair.strip()]
        numbers = np.array([number(part) for pair in pairs for part in pair], float)
        if len(numbers) != 2 * len(pairs) or not np.isfinite(numbers).all():
            self._fail(where, None, key, text, TABLE)
        values, share = numbers[::2], numbers[1::2]
        most = MOST[key.rpartition("_")[2]] if key in COUNTED else MAX_TOKENS
        wrong = ~((values >= 0) & (values <= most) & (values == np.floor(values)))
        if wrong.any():
            self._fail(where, None, key, values[wrong][0].item(), f"whole numbers from 0 to {most}")
        if (share < 0).any() or not abs(share.sum() - 1) < 0.01:
            self._fail(where, None, key, f"shares that sum to {share.sum():.4g}", "shares of at least 0 that sum to 1")
        return _Table(values.astype(np.int64), np.cumsum(share) / share.sum())

    def _number(self, name: str, row: int | None, key: str, text: str, low: float, high: float) -> float:
        value = number(text)
        if not low <= value <= high:
            self._fail(name, row, key, text, f"a number from {low:g} to {high:g}")
        return float(value)

    def _fail(self, name: str, row: int | None, key: str, value: Any, expected: str) -> NoReturn:
        raise InputError(
            f"{self.rows.path}, {name}{'' if row is None else f', row {row}'}: {key} = {short(value)}, expected"
            f" {expected}"
        )
