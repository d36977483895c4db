"""DeviceProfile: one GPU, one model, one precision, one tensor-parallel width, as the raw points of its operators.

The one idea: a profile is a JSON file that carries where its numbers come from and a hash of the points themselves,
so a result can name exactly what it rests on. How points become step times is `calibrate.sources`.

    python -c "from calibrate.profile import bundled_profiles; print(bundled_profiles())"
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrate.layout import Layout, as_layout
from workloads.errors import InputError
from workloads.files import replace_file

BUNDLED = Path(__file__).parent / "profiles"
SCHEMA = 1
KINDS = ("tables", "roofline", "atlas")
_TEXT = ("id", "kind", "label", "dtype", "kv_dtype")


@dataclass(frozen=True)
class DeviceProfile:
    """What the step-time function is built from.

    id: name used in scenarios. kind: "tables", "roofline" or "atlas" (tables priced for the model from a GPU's
    operators). label: one line for reports. device: {"name", "memory_gib"}. model: a bundled model's name (None: any
    model, roofline only). provenance: source, licence, version, date, kernels, notes. points: raw points (tables) or
    assumed efficiencies (roofline), in microseconds; layout in docs/profiles.md."""

    id: str
    kind: str
    label: str
    device: dict[str, Any]
    model: str | None
    dtype: str
    kv_dtype: str
    tensor_parallel: int
    provenance: dict[str, Any]
    points: dict[str, Any] = field(repr=False)
    spread: Layout | None = None  #: None: tensor parallel only

    @property
    def layout(self) -> Layout:
        """Of the replica that its steps are of."""
        return self.spread or Layout(self.tensor_parallel)

    @property
    def memory_gib(self) -> float:
        """Memory of one GPU as the driver reports it, GiB."""
        return float(self.device["memory_gib"])

    @property
    def content_hash(self) -> str:
        """sha256 over the canonical JSON of the points: equal hashes mean equal numbers."""
        canonical = json.dumps(self.points, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Everything but the points, for reports and `kvcast profile show`."""
        return {
            "id": self.id,
            "kind": self.kind,
            "label": self.label,
            "device": self.device,
            "model": self.model,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "tensor_parallel": self.tensor_parallel,
            **({} if self.spread is None else {"spread": self.spread.as_document()}),
            "provenance": self.provenance,
            "content_hash": self.content_hash,
        }

    def fits(self, model: str, dtype: str, tp: int | Layout) -> bool:
        """Whether the profile is of this model, precision and layout (a roofline without a model fits any; fp16 runs as
        bf16 does)."""
        return self.model in (None, model) and alike(self.dtype, dtype) and self.layout == as_layout(tp)


_REQUIRED = [name for name in DeviceProfile.__dataclass_fields__ if name != "spread"]


def alike(a: str, b: str) -> bool:
    """Whether two types have the same speed and size: bf16 and fp16 do."""
    return a == b or {a, b} == {"bf16", "fp16"}


def save_profile(profile: DeviceProfile, path: Path) -> None:
    """Writes the profile atomically: a reader sees the old file or the whole new one."""
    document = {"schema": SCHEMA, **profile.describe(), "points": profile.points}
    replace_file(path, (json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode())


def load_profile(path: Path) -> DeviceProfile:
    """Reads and checks a profile; InputError names the file, the field and what was expected."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda text: _not_finite(path, text))
    except OSError as e:
        raise InputError(f"{path}: cannot read the profile ({e.strerror})") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: not a JSON profile ({e})") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InputError(f"{path}: field schema is {found!r}; expected {SCHEMA}, a kvcast device profile")
    _check(document, path)
    spread = Layout(**document["spread"]) if document.get("spread") else None
    profile = DeviceProfile(**{name: document[name] for name in _REQUIRED}, spread=spread)
    if document.get("content_hash") not in (None, profile.content_hash):
        raise InputError(
            f"{path}: field content_hash does not match the points; expected {profile.content_hash} (edited by hand?)"
        )
    return profile


def _not_finite(path: Path, text: str) -> float:
    raise InputError(f"{path}: holds {text}; expected finite numbers")


def _check(document: dict[str, Any], path: Path) -> None:
    for name in _REQUIRED:
        if name not in document:
            raise InputError(f"{path}: field {name} is missing from the profile")
    for name in _TEXT:
        if not isinstance(document[name], str):
            raise InputError(f"{path}: field {name} is {document[name]!r}; expected text")
    if document["kind"] not in KINDS:
        raise InputError(f"{path}: field kind is {document['kind']!r}; expected one of {', '.join(KINDS)}")
    memory = document["device"].get("memory_gib") if isinstance(document["device"], dict) else None
    if not isinstance(memory, (int, float)) or isinstance(memory, bool) or not memory > 0:
        raise InputError(f"{path}: field device.memory_gib is {memory!r}; expected GiB above zero")
    tp = document["tensor_parallel"]
    if not isinstance(tp, int) or isinstance(tp, bool) or tp < 1:
        raise InputError(f"{path}: field tensor_parallel is {tp!r}; expected a whole number of GPUs, 1 or more")
    for name in ("points", "provenance"):
        if not isinstance(document[name], dict):
            raise InputError(f"{path}: field {name} is {type(document[name]).__name__}; expected an object")


def bundled_profiles() -> list[str]:
    """Ids of the profiles that ship with kvcast."""
    return sorted(p.stem for p in BUNDLED.glob("*.json"))


def bundled_profile(name: str) -> DeviceProfile:
    """A profile that ships with kvcast, by its id."""
    return load_profile(BUNDLED / f"{name}.json")


def fitting(
    device: str | None = None,
    model: str | None = None,
    dtype: str | None = None,
    tp: int | Layout | None = None,
    kv_dtype: str | None = None,
) -> list[DeviceProfile]:
    """The bundled profiles in order of their ids, those of a device, model, precision, width and KV type where it is
    given.

    model: as `known_as` says it."""
    return [
        one
        for one in map(bundled_profile, bundled_profiles())
        if device in (None, one.device["name"])
        and one.fits(model or str(one.model), dtype or one.dtype, tp or one.layout)
        and (kv_dtype is None or alike(one.kv_dtype, kv_dtype))
    ]
