"""What `kvcast profile list` prints: GPUs and what is known of each.

The one idea: a GPU by name is what a reader looks for; whole-model profiles, measured operators and a data sheet are
three things known of it, and `hardware.gpu` takes the best of them.

>>> print(as_text(document()))
"""

from __future__ import annotations

from typing import Any

GROUPS = (
    ("gemm", ("gemm",)),
    ("attention", ("prefill", "decode")),
    ("MLA", ("mla_prefill", "mla_decode")),
    ("sparse", ("sparse_prefill", "sparse_decode")),
    ("linear", ("gdn",)),
    ("experts", ("moe",)),
    ("all-reduce", ("all_reduce",)),
    ("all-to-all", ("all_to_all",)),
)
"""Operators by the word that stands for them; any other goes by its own name."""
TYPES = {
    "bfloat16": "bf16",
    "int4_wo": "int4",
    "int8_wo": "int8",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4/8",
}


def document() -> dict[str, Any]:
    """Every GPU that is known, every bundled profile, atlas and model."""
    from calibrate.atlas.tables import about, bundled_gpus, load
    from calibrate.models import bundled_models, resolve_model
    from calibrate.profile import fitting
    from calibrate.resolve import known_gpus
    from calibrate.sources.roofline import GPUS

    profiles = [one.describe() for one in fitting()]
    atlases = {gpu: about(load(gpu)) for gpu in bundled_gpus()}
    models = [
        {
            "name": name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "max_context": model.max_context,
            "kv_bytes_per_token_bf16": model.kv_bytes_per_token("bf16"),
        }
        for name, model in ((name, resolve_model(name)) for name in bundled_models())
    ]
    gpus = []
    for gpu in known_gpus():
        atlas = atlases.get(gpu)
        name, memory = (atlas["name"], atlas["memory_gib"]) if atlas else (GPUS[gpu].name, GPUS[gpu].memory_gib)
        gpus.append(
            {
                "gpu": gpu,
                "name": name,
                "memory_gib": memory,
                "engines": atlas["engines"] if atlas else [],
                "weights": atlas["weights"] if atlas else [],
                "operators": atlas["operators"] if atlas else [],
                "rows": atlas["rows"] if atlas else 0,
                "profiles": [one["id"] for one in profiles if one["device"]["name"] == name],
                "basis": "measured operators" if atlas else "data sheet, +-30 %",
                "data_sheet": gpu in GPUS,
            }
        )
    return {"gpus": gpus, "profiles": profiles, "atlas": list(atlases.values()), "models": models}


def as_text(found: dict[str, Any]) -> str:
    from kvcast import text

    gpus = sorted(found["gpus"], key=lambda one: (-len(one["operators"]), -one["memory_gib"]))
    cells = [
        [
            one["gpu"],
            f"{one['memory_gib']:.0f} GiB",
            one["basis"],
            f"{one['rows'] / 1e3:,.0f} k" if one["rows"] else text.UNKNOWN,
            ", ".join(one["engines"]) or text.UNKNOWN,
            _words(one["operators"]) or text.UNKNOWN,
            ", ".join(TYPES.get(kind, kind) for kind in one["weights"]) or text.UNKNOWN,
            str(len(one["profiles"]) or text.UNKNOWN),
        ]
        for one in gpus
    ]
    header = ["GPU", "memory", "basis", "rows", "kernels of", "operators", "weights measured", "profiles"]
    made: dict[tuple[str, str, str], list[str]] = {}
    for one in found["profiles"]:
        made.setdefault((str(one["model"]), one["dtype"], str(one["tensor_parallel"])), []).append(one["id"])
    whole = [[*key, ", ".join(ids)] for key, ids in sorted(made.items())]
    return "\n\n".join(
        [
            text.table(header, cells, left=len(header) - 1),
            "hardware.gpu = NAME takes the best that is known of that GPU for the model, its precision and width: a\n"
            "profile below, else its measured operators (atlas:NAME), else its data sheet (roofline:NAME).",
            text.table(
                ["model", "dtype", "TP", "profiles, exported for the whole model (hardware.profile)"], whole, left=4
            ),
            f"{len(found['models']) - 1} bundled models and a toy: kvcast profile models; which GPU holds which:"
            " kvcast profile models --matrix",
        ]
    )


def _words(operators: list[str]) -> str:
    """gemm, attention, ... for the tables that an atlas has whole."""
    known = {name for _, names in GROUPS for name in names} | {"mamba2"}  # of which only the convolution
    words = [word for word, names in GROUPS if set(names) <= set(operators)]
    return ", ".join([*words, *(name for name in operators if name not in known)])
