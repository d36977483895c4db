"""Hold the bundled models against published config.json files.

The one idea: every file is read as a user's would be, and compared field by field with the bundled model of its name.
The folder is that of aiconfigurator-core: ORG--NAME_config.json, and ORG--NAME_hf_quant_config.json where there is one.

    python -m tools.check_shapes .venv/lib/python3.11/site-packages/aiconfigurator_core/model_configs
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from calibrate.models import PREFIX, bundled_model, known_as, model_from_config
from workloads.errors import InputError

CONFIG, QUANTIZED = "_config.json", "_hf_quant_config.json"


def lines(folder: Path) -> list[str]:
    """One a published checkpoint: equal, which fields differ, refused and why, or not bundled."""
    files = sorted(path for path in folder.glob(f"*{CONFIG}") if not path.name.endswith(QUANTIZED))
    return [f"{name}: {_against_bundled(name, path)}" for path in files for name in [_name(path)]]


def _name(path: Path) -> str:
    return path.name.removesuffix(CONFIG).replace("--", "/")


def _against_bundled(name: str, path: Path) -> str:
    try:
        read = model_from_config(_config(path), "read", path.name)
    except InputError as error:
        return f"refused ({str(error)[:120]})"
    try:
        bundled = bundled_model(PREFIX + name)
    except InputError:
        same = known_as(read)
        return f"not bundled, {'of a shape of its own' if same == 'read' else f'the shape of {same}'}"
    differ = [f.name for f in fields(read) if f.name != "name" and getattr(read, f.name) != getattr(bundled, f.name)]
    return f"DIFFERS in {', '.join(differ)}" if differ else f"equal to {bundled.name}"


def _config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(path.read_text())
    beside = path.with_name(path.name.replace(CONFIG, QUANTIZED))
    if "quantization_config" not in config and beside.is_file():
        config["quantization_config"] = json.loads(beside.read_text())
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    found = lines(parser.parse_args().folder)
    print("\n".join(found))
    raise SystemExit(any(": DIFFERS" in line for line in found))
