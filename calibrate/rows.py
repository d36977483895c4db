"""Operator rows: one time a row, by the operator's shape, the same rows whoever measured them.

The one idea: a row knows its operator, its shape and its time, and nothing of a model; so rows of one's own, of another
project's profiler and of the atlas add up to any model whose shapes lie among them. A folder of one's own holds a CSV
file an operator, with the columns of the atlas, and operators.json: device, and kernels, version and date by operator.

    python -c "from calibrate.rows import read_rows; from pathlib import Path; print(*read_rows(Path('mine')).lines(),
    sep='\\n')"
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from workloads.errors import InputError
from workloads.files import replacing
from workloads.limits import Limit
from workloads.table import TEXT, WHOLE, Kind, number, read_table

HEADER = "operators.json"
SCHEMA = 1
HEADS = ("kv_cache_dtype", "window_size", "head_dim", "num_key_value_heads", "num_heads")
SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("gemm_dtype", "n", "k"),
    "prefill": HEADS,
    "decode": HEADS,
    "mixed": HEADS,
    "moe": ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"),
    "all_reduce": ("num_gpus",),
    "elementwise": ("name", "bytes_per_token"),
    "host": (),
}
"""Operator -> the columns that name a kernel's shape, as in the atlas. bytes_per_token: what ELEMENTWISE counts."""
AXES: dict[str, tuple[str, ...]] = {
    "gemm": ("m",),
    "prefill": ("batch_size", "isl", "step"),
    "decode": ("batch_size", "step", "longest"),
    "mixed": ("isl", "step", "batch_size", "decode_step"),
    "moe": ("num_tokens",),
    "all_reduce": ("message_size",),
    "elementwise": ("num_tokens",),
    "host": ("sequences",),
}
"""Operator -> the columns it runs along. step: tokens in the KV cache before the call, so a decode attends to step + 1;
longest: the same of the longest sequence of the batch; message_size: 16-bit elements."""
ELEMENTWISE = {"embedding": 2, "norm": 8, "silu_mul": 6, "relu2": 4}
"""Bytes of a token per element of an operator's width, as the atlas counts them; of the others what they move."""
TEXTS = ("gemm_dtype", "moe_dtype", "kv_cache_dtype", "name")
TIME = Kind(number, Limit(1e-6, 1e12, ""), "microseconds above zero")


@dataclass(frozen=True)
class OperatorRows:
    """The rows of one operator. about: kernels, version, date, source and whatever else says where they come from."""

    rows: tuple[dict[str, Any], ...] = field(repr=False)
    about: Mapping[str, str]


@dataclass(frozen=True)
class Rows:
    """Everything measured on one device. name: of the folder; device: {"name", "memory_gib", ..}; gpu: the atlas it
    lies over, None where there is none; rehearsal: why these times say nothing about a GPU, "" when they do; host:
    microseconds a step, a sequence and a layer's launches, where measured; form: how decode attention of unequal
    contexts goes, fitted ("overhead_us", "longest_us", "mb_us", "sequence_us") or as a share of the way to the longest
    ("skew")."""

    name: str
    device: Mapping[str, Any]
    gpu: str | None
    operators: Mapping[str, OperatorRows]
    rehearsal: str = ""
    host: Mapping[str, float] = field(default_factory=dict)
    form: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    host_inside: str = ""  #: what host time the rows themselves hold, in words

    @property
    def content_hash(self) -> str:
        """sha256 of the rows: equal hashes mean equal numbers."""
        rows = {operator: found.rows for operator, found in self.operators.items()}
        text = json.dumps([rows, dict(self.host), dict(self.form)], sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def lines(self) -> list[str]:
        """For people: what was measured, with what, when."""
        head = [
            f"{self.name}: {self.device['name']}" + (f", over atlas:{self.gpu}" if self.gpu else ", no atlas below")
        ]
        head += [f"NOT A MEASUREMENT OF A GPU: {self.rehearsal}"] if self.rehearsal else []
        return [*head, *(_line(operator, found) for operator, found in self.operators.items()), *self.notes]


def _line(operator: str, found: OperatorRows) -> str:
    shapes = {tuple(row[c] for c in SHAPES[operator]) for row in found.rows}
    about = ", ".join(found.about[k] for k in ("kernels", "version", "date") if found.about.get(k))
    return f"{operator}: {len(found.rows)} rows of {len(shapes)} shapes ({about})"


def once(operator: str, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The rows in order, the median where a shape was measured more than once. Times are rounded to six digits."""
    columns = (*SHAPES[operator], *AXES[operator])
    times: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        times.setdefault(tuple(row[c] for c in columns), []).append(row["us"])
    return tuple(
        {**dict(zip(columns, key, strict=True)), "us": float(f"{median(us):.6g}")} for key, us in sorted(times.items())
    )


def write_rows(rows: Rows, folder: Path) -> list[Path]:
    """Writes the folder, the header last: a reader sees a whole set or, while it is written, none."""
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / HEADER
    tables = {folder / f"{name}.csv": _table(name, found.rows) for name, found in rows.operators.items()}
    document = {
        "schema": SCHEMA,
        "kind": "kvcast operator rows",
        "device": dict(rows.device),
        "gpu": rows.gpu,
        "rehearsal": rows.rehearsal,
        "host": dict(rows.host),
        "form": dict(rows.form),
        "notes": list(rows.notes),
        "operators": {name: dict(found.about) for name, found in rows.operators.items()},
    }
    with contextlib.ExitStack() as last_first:  # so that the header takes its name when the tables have theirs
        parts = {path: last_first.enter_context(replacing(path)) for path in (header, *tables)}
        for path, text in {header: json.dumps(document, indent=1) + "\n", **tables}.items():
            parts[path].write_text(text, encoding="utf-8")
        header.unlink(missing_ok=True)
        for operator in SHAPES.keys() - rows.operators.keys():
            (folder / f"{operator}.csv").unlink(missing_ok=True)
    return [*tables, header]


def _table(operator: str, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = (*SHAPES[operator], *AXES[operator], "us")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[c] for c in columns] for row in rows)
    return text.getvalue()


def is_rows(folder: Path) -> bool:
    """Whether a folder holds operator rows."""
    return (folder / HEADER).is_file()


def read_rows(folder: Path) -> Rows:
    """Reads a folder; InputError names file, row, field and what was expected."""
    header = _header(folder / HEADER)
    operators = {
        name: OperatorRows(once(name, _read_table(folder / f"{name}.csv", name)), about)
        for name, about in header["operators"].items()
    }
    return Rows(
        name=folder.resolve().name,
        device=header["device"],
        gpu=header["gpu"],
        operators=operators,
        rehearsal=header["rehearsal"],
        host=header["host"],
        form=header["form"],
        notes=tuple(header["notes"]),
    )


MAY_BE_0 = ("window_size", "step", "decode_step", "longest", "bytes_per_token")
ABOVE_0 = WHOLE._replace(limit=Limit(1, 2**40, ""), words="a whole number from 1 to 2^40")
FROM_0 = WHOLE._replace(limit=Limit(0, 2**40, ""), words="a whole number from 0 to 2^40")


def _read_table(path: Path, operator: str) -> list[dict[str, Any]]:
    columns = (*SHAPES[operator], *AXES[operator])
    kinds = {c: TEXT if c in TEXTS else FROM_0 if c in MAY_BE_0 else ABOVE_0 for c in columns}
    return read_table(path, {**kinds, "us": TIME})


HOST = ("step_us", "sequence_us", "launch_us_per_layer")
FORM = ("overhead_us", "longest_us", "mb_us", "sequence_us")
"""Microseconds of the engine's host, and of decode attention over unequal contexts; all of them where there is one, but
for launch_us_per_layer."""


def _check_times(path: Path, header: Mapping[str, Any]) -> None:
    """Raise InputError for host or form times that are not what they are called."""
    for part, names, optional in (("host", HOST, HOST[2:]), ("form", FORM, ())):
        given = header[part]
        if part == "form" and set(given) == {"skew"} and isinstance(given["skew"], dict | list):
            continue
        wrong = [name for name in given if name not in names]
        lacking = [name for name in names if given and name not in given and name not in optional]
        if wrong or lacking:
            raise InputError(f"{path}: field {part} has {', '.join(given)}; expected {', '.join(names)}")
        for name, value in given.items():
            if type(value) not in (int, float) or not 0 <= value < 1e12:
                raise InputError(f"{path}: field {part}.{name} is {value!r}; expected microseconds, 0 or more")


_FIELDS: dict[str, tuple[type, ...]] = {
    "device": (dict,),
    "gpu": (str, type(None)),
    "rehearsal": (str,),
    "host": (dict,),
    "form": (dict,),
    "notes": (list,),
    "operators": (dict,),
}


def _header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(f"{path}: not the header of a folder of operator rows ({e})") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else type(header).__name__
        raise InputError(f"{path}: field schema is {found!r}; expected {SCHEMA}, kvcast operator rows")
    for name, types in _FIELDS.items():
        if not isinstance(header.get(name, 0), types):
            raise InputError(f"{path}: field {name} is {header.get(name)!r}; expected {types[0].__name__}")
    _check_times(path, header)
    memory = header["device"].get("memory_gib")
    if not isinstance(memory, int | float) or not memory > 0 or not isinstance(header["device"].get("name"), str):
        raise InputError(f"{path}: field device is {header['device']!r}; expected a name and memory_gib above zero")
    for name, about in header["operators"].items():
        if name not in SHAPES:
            raise InputError(f"{path}: operator {name!r}: expected one of {', '.join(SHAPES)}")
        if not isinstance(about, dict):
            raise InputError(f"{path}: operators.{name} is {about!r}; expected kernels, version and date")
    if not header["operators"]:
        raise InputError(f"{path}: field operators is empty; expected at least one of {', '.join(SHAPES)}")
    return header
