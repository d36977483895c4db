"""Models by name or by config.json.

The one idea: a bundled model is a small config.json with the fields that are used, and the Hugging Face names under
which it, or a quantized form of it, is published. `calibrate.model_config` says what the fields mean.

    python -c "from calibrate.models import resolve_model; print(resolve_model('hf:Qwen/Qwen3-32B-FP8').quantization)"
"""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrate.model_config import model_from_config
from calibrate.model_spec import DTYPE_BYTES, ModelSpec, dtype_bytes, flops, windowed_pairs
from workloads.errors import InputError

__all__ = [
    "DTYPE_BYTES",
    "ModelSpec",
    "bundled_models",
    "dtype_bytes",
    "flops",
    "hugging_face_names",
    "is_published",
    "known_as",
    "load_model",
    "model_from_config",
    "published_names",
    "published_of",
    "resolve_model",
    "source_of",
    "windowed_pairs",
]

BUNDLED = Path(__file__).parent / "models"
BESIDE: dict[str, dict[str, Any]] = {
    "quant_config.json": {"quant_method": "awq"},
    "quantize_config.json": {"quant_method": "gptq"},
    "hf_quant_config.json": {},
}
"""Files beside a config.json that say a quantization which it does not: AutoAWQ's, AutoGPTQ's and modelopt's."""
WEIGHTS = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
PREFIX = "hf:"
"""Before a Hugging Face name, organisation included."""


@functools.cache
def _bundled() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in BUNDLED.glob("*.json")))


def bundled_models() -> list[str]:
    """Names of the models that ship with kvcast."""
    return list(_bundled())


def resolve_model(name_or_path: str) -> ModelSpec:
    """A bundled model by its own or its Hugging Face name, or else a config.json (or its folder) by path."""
    path = Path(name_or_path)
    known = _bundled_name(name_or_path) in _bundled() or name_or_path.startswith(PREFIX)
    if not known and (path.suffix == ".json" or path.exists()):
        return load_model_at(path)
    return bundled_model(name_or_path)


@functools.lru_cache(maxsize=128)
def bundled_model(name: str) -> ModelSpec:
    """A bundled model by name (case and a leading organisation are ignored), or by the name of a published checkpoint
    of it, which then brings its quantization."""
    published = name.removeprefix(PREFIX)
    key = _bundled_name(published)
    if key in _bundled() and not (name.startswith(PREFIX) and published.lower() in hugging_face_names()):
        return load_model(BUNDLED / f"{key}.json")
    if published.lower() in hugging_face_names():
        key, own = hugging_face_names()[published.lower()]
        return model_from_config({**_config(BUNDLED / f"{key}.json"), **own}, key, name)
    near = difflib.get_close_matches(key, _bundled(), n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(
        f"model {name!r} is not bundled{hint} (bundled: {', '.join(_bundled())}; or the path of a config.json)"
    )


def is_published(name: str) -> bool:
    """Whether it is a bundled model's own name, or hf: with the name of a published checkpoint of one."""
    return name in _bundled() or (name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() in hugging_face_names())


def _bundled_name(name: str) -> str:
    return name.split("/")[-1].lower().removeprefix(PREFIX).removeprefix("meta-").replace("_", "-")


@functools.cache
def hugging_face_names() -> dict[str, tuple[str, dict[str, Any]]]:
    """Published name in lower case -> (bundled model, the fields in which its config.json is another)."""
    return {published.lower(): (key, own) for published, key, own in _published()}


def published_names() -> list[str]:
    """Published names as they are written, of all bundled models."""
    return sorted((published for published, _, _ in _published()), key=str.lower)


def source_of(name: str) -> str:
    """What the shapes of a bundled model were held against."""
    return str(_config(BUNDLED / f"{name}.json")["source"])


def published_of(name: str) -> list[str]:
    """Published names of a bundled model, those that are it field by field first."""
    found = [(bool(own), published) for published, key, own in _published() if key == name]
    return [published for _, published in sorted(found, key=lambda one: one[0])]


def _published() -> list[tuple[str, str, dict[str, Any]]]:
    """A file's "hf": a name with null, with the quantization_config of that checkpoint, or with any fields of it."""
    found = []
    for key in _bundled():
        for published, given in _config(BUNDLED / f"{key}.json").get("hf", {}).items():
            own = given or {}
            quantized = "quant_method" in own or "quant_algo" in own
            found.append((published, key, {"quantization_config": own} if quantized else own))
    return found


def load_model_at(path: Path) -> ModelSpec:
    """ModelSpec from a config.json, or from the folder that holds it."""
    return load_model(path / "config.json" if path.is_dir() else path)


def known_as(model: ModelSpec) -> str:
    """Name of the bundled model that has these shapes (a fine-tune's step times are its base model's), else the model's
    own name."""
    if model.name in _bundled():
        return model.name
    for name in _bundled():
        bundled = bundled_model(name)
        same = {"name": name, "max_context": bundled.max_context, "quantization": bundled.quantization}
        if replace(model, **same) == bundled:  # type: ignore[arg-type]
            return name
    return model.name


def load_model(path: Path) -> ModelSpec:
    """ModelSpec from a Hugging Face config.json; the quantization may stand in a file beside it (`BESIDE`). InputError
    names the file and the field that is missing or not understood."""
    config = _config(path)
    before = path.name.removesuffix("config.json")  # NAME_config.json lies beside NAME_hf_quant_config.json
    for name, own in BESIDE.items() if before != path.name and "quantization_config" not in config else ():
        if (beside := path.with_name(before + name)).is_file():
            config = {**config, "quantization_config": own | _config(beside)}
    return model_from_config(
        config, name=path.parent.name if path.name == "config.json" else path.stem, where=str(path)
    )


def _config(path: Path) -> dict[str, Any]:
    if path.suffix in WEIGHTS:
        raise InputError(
            f"{path}: a file of weights; expected the config.json of its model, with model.dtype and"
            " hardware.weights_gib where a quantization is not in it"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot read the model config ({e.strerror})") from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: not a JSON model config ({e})") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object with the keys of a Hugging Face config.json")
    return config
