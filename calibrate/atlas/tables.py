"""The atlas file of one GPU: tables of measured operator times, packed small and read without pyarrow.

The one idea: a table is rows of shapes (`keys`, one column a field), each with a dense grid of times over one or two
run axes. Times are float16 milliseconds (steps of 0.1 %), held as differences along the last axis, which zip well; NaN
is what was never measured or was dropped. The header says where each table comes from and what was changed in it.

    python -c "from calibrate.atlas.tables import load; print(*load('h200').describe(), sep='\\n')"
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import InputError

BUNDLED = Path(__file__).parent
SCHEMA = 1
MS = 1e-3
PRICED = (
    *("gemm", "prefill", "decode", "moe", "mla_prefill", "mla_decode", "sparse_prefill", "sparse_decode"),
    *("gdn", "mamba2", "all_reduce", "all_to_all"),
)
"""Operators that are taken from a file; the others (kda) are kept for what comes."""


@dataclass(frozen=True)
class Table:
    """One operator of one backend. keys: int64 [rows, columns]; a text column holds indices into its `labels`.
    seconds: float64 [rows, *axes], NaN where nothing was measured."""

    name: str
    columns: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]
    axes: tuple[tuple[str, np.ndarray], ...]
    keys: np.ndarray = field(repr=False)
    seconds: np.ndarray = field(repr=False)

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column, ascending."""
        found = np.unique(self.keys[:, self.columns.index(column)]).tolist()
        return [self.labels[column][i] for i in found] if column in self.labels else found

    def where(self, **fixed: Any) -> Table:
        """The rows with these values, without those columns; no row where a value is not among the measured ones."""
        keep = np.ones(len(self.keys), dtype=bool)
        for column, value in fixed.items():
            if column in self.labels:
                value = self.labels[column].index(value) if value in self.labels[column] else -1
            keep &= self.keys[:, self.columns.index(column)] == value
        rest = [i for i, column in enumerate(self.columns) if column not in fixed]
        columns = tuple(self.columns[i] for i in rest)
        return Table(self.name, columns, self.labels, self.axes, self.keys[keep][:, rest], self.seconds[keep])

    def among(self, keep: Callable[[np.ndarray], np.ndarray]) -> Table:
        """The rows that a function of the keys picks."""
        rows = keep(self.keys)
        return replace(self, keys=self.keys[rows], seconds=self.seconds[rows])

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Atlas:
    """Everything measured on one GPU. header: name, memory, peaks, sources; arrays: the packed tables."""

    gpu: str
    header: Mapping[str, Any]
    content_hash: str
    _arrays: Mapping[str, np.ndarray] = field(repr=False)

    def table(self, backend: str, operator: str) -> Table | None:
        """The table of an operator, None where the backend has none on this GPU."""
        name = f"{backend}/{operator}"
        return self._tables.get(name) or self._unpack(name)

    @cached_property
    def _tables(self) -> dict[str, Table]:
        return {}

    def _unpack(self, name: str) -> Table | None:
        about = self.header["tables"].get(name)
        if about is None:
            return None
        axes = tuple((axis, self._arrays[f"{name}/{axis}"].astype(np.int64)) for axis in about["axes"])
        keys = self._arrays[f"{name}/keys"].astype(np.int64).T
        table = Table(
            name,
            tuple(about["columns"]),
            {column: tuple(labels) for column, labels in about["labels"].items()},
            axes,
            keys,
            unpack(self._arrays[f"{name}/ms"]) * MS,
        )
        self._tables[name] = table
        return table

    @property
    def backends(self) -> list[str]:
        """Those with matrix multiplies of their own, in the order in which one stands in for another: vLLM's first."""
        found = (name.removesuffix("/gemm") for name in self.header["tables"] if name.endswith("/gemm"))
        return sorted(found, key=lambda name: (name != "vllm", name))

    def describe(self) -> list[str]:
        """One line per table: rows, version, dtypes, what was changed."""
        return [
            f"{name}: {about['rows']:,} rows, {about['version']}"
            + "".join(
                f", {column} {'/'.join(labels)}" for column, labels in about["labels"].items() if "dtype" in column
            )
            + f"; {about['dropped']} dropped (beat the hardware), {about['levelled']} levelled"
            + (f", {about['untuned']} shapes left out (slower than in pieces)" if "untuned" in about else "")
            for name, about in sorted(self.header["tables"].items())
        ] + [f"{name}: refused, {why}" for name, why in sorted(self.header.get("refused", {}).items())]


def about(atlas: Atlas) -> dict[str, Any]:
    """What a GPU's atlas holds, for lists of profiles."""
    tables = atlas.header["tables"]
    weights = {w for name, t in tables.items() if name.endswith(("/gemm", "/moe")) for w in _weights(t)}
    return {
        "profile": f"atlas:{atlas.gpu}",
        "name": atlas.header["name"],
        "memory_gib": atlas.header["memory_gib"],
        "engines": [tables[f"{backend}/gemm"]["version"] for backend in atlas.backends],
        "weights": sorted(weights),
        "operators": sorted({name.split("/")[1] for name in tables} & set(PRICED)),
        "rows": sum(t["rows"] for t in tables.values()),
        "content_hash": atlas.content_hash,
    }


def _weights(table: Mapping[str, Any]) -> list[str]:
    return [
        text
        for column in ("gemm_dtype", "moe_dtype")
        for text in [*table["labels"].get(column, ()), *filter(None, [table["constant"].get(column)])]
    ]


def pack(ms: np.ndarray) -> np.ndarray:
    """Milliseconds as wrapping uint16 differences of float16 bit patterns along the last axis."""
    bits = ms.astype(np.float16).view(np.uint16)
    return np.diff(bits, axis=-1, prepend=np.zeros((*bits.shape[:-1], 1), np.uint16)).astype(np.uint16)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Inverse of `pack`, float64."""
    return np.cumsum(packed, axis=-1, dtype=np.uint16).view(np.float16).astype(np.float64)


def content_hash(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> str:
    """sha256 over the arrays and the header: equal hashes mean equal numbers from equal sources."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return "sha256:" + digest.hexdigest()


def save(path: Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Writes the file; the same tables give the same bytes."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    with path.open("wb") as f:
        stored: dict[str, Any] = {"header": np.frombuffer(text.encode(), np.uint8), **dict(sorted(arrays.items()))}
        np.savez_compressed(f, **stored)


def spec_of(gpu: str, backend: str) -> str:
    """What names these kernels of a GPU in hardware.profile: vLLM's go without saying."""
    return f"atlas:{gpu}" if backend == "vllm" else f"atlas:{gpu}:{backend}"


def bundled_gpus() -> list[str]:
    """GPUs that have an atlas."""
    return sorted(p.stem for p in BUNDLED.glob("*.npz"))


@lru_cache(maxsize=4)
def load(gpu: str) -> Atlas:
    """The atlas of a GPU by name (h200, b200, ...). InputError for a GPU without one."""
    key = gpu.lower().replace("_", "-").removesuffix("-sxm")
    if key not in bundled_gpus():
        near = difflib.get_close_matches(key, bundled_gpus(), n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"GPU {gpu!r} has no operator atlas{hint} (bundled: {', '.join(bundled_gpus())})")
    return load_file(BUNDLED / f"{key}.npz")


def load_file(path: Path) -> Atlas:
    """Reads an atlas file; InputError when it is not one."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        header = json.loads(arrays.pop("header").tobytes())
    except (OSError, ValueError, KeyError) as e:
        raise InputError(f"{path}: not an atlas file ({e})") from None
    if header.get("schema") != SCHEMA:
        raise InputError(f"{path}: field schema is {header.get('schema')!r}; expected {SCHEMA}, a kvcast atlas")
    return Atlas(path.stem, header, content_hash(arrays, header), arrays)
