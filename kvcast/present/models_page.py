"""docs/models.md: the bundled models with their sizes, made by `kvcast profile models --markdown > docs/models.md`."""

from __future__ import annotations

from typing import Any

GIB = 2**30
DTYPES = ("bf16", "fp8", "nvfp4")
KINDS = {"full": "full", "window": "window", "chunked": "chunked", "mla": "MLA", "linear": "linear", "none": ""}
HEADER = """# Models

Made by `kvcast profile models --markdown > docs/models.md`; a test holds the page against the code.

Name one of these (`model.name = "qwen3-32b"`), a checkpoint of one as Hugging Face publishes it
(`model.name = "hf:Qwen/Qwen3-32B-FP8"`, which brings its quantization), or any other model of these families by path
(`model.config = "config.json"` or its folder). Shapes are facts of the public config.json files; each was held against
the published number of parameters (`tests/test_models.py`), and most field by field against the file itself
([below](#what-the-shapes-were-held-against)). Of a multimodal model the text part counts.

*KV*: bytes a token takes in bf16 over all layers, as vLLM counts them (a window or chunk limits what one sequence
keeps; a state is what one sequence takes in linear-attention layers whatever its length). *Weights*: GiB over all GPUs
when everything but embeddings, LM head, routers and norms is in that type; *as published* where a checkpoint's own
quantization leaves parts alone.
"""
FOOTER = """
## Precision

| in config.json | type | left in 16 bits |
|---|---|---|
| `quant_method` fp8, fbgemm_fp8 | fp8 (fp8_block with `weight_block_size`) | what it lists |
| compressed-tensors, or `compression_config` | fp8, int8, int4, nvfp4, mxfp4 by each group's `targets` | `ignore` |
| awq, gptq (and marlin forms) | int4 or int8, scales and zero points counted | what it lists, and gptq's `dynamic` |
| auto-round, bitsandbytes, torchao, quark | int4, int8, fp8 or mxfp4, scales counted | what they list |
| mxfp4 | experts at 4.25 bits | everything else |
| modelopt (or `hf_quant_config.json` beside it) | fp8, fp8_block, nvfp4 (4.5 bits), int4; by layer | what it lists |

Names, wildcards and regular expressions are held against a model's modules layer by layer, so that a part of which
three layers of 48 stay in 16 bits weighs what it weighs; a part counts as left alone in a layer when one of its
matrices is. Weights of 4 or 8 bits without such activations (`input_activations` null, W4A16_NVFP4, bitsandbytes) and
int8 are computed on 16-bit units. What is not understood (GGUF, aqlm, hqq, 2:4 sparsity) is refused with what says
it instead: a copy of the file without that field, `model.dtype` and `hardware.weights_gib`.

Embeddings, routers and norms stay in 16 bits, the LM head too unless it is named. The KV type is the checkpoint's
where it carries scales for it (`kv_cache_scheme`, `kv_cache_quant_algo`), else bf16; `model.kv_dtype` decides.
`model.dtype` names a type for all weights of an unquantized model.

## Families understood

{families}.
Anything else is refused in one line that names the field or the family. A rope scaling by a factor (yarn, linear,
dynamic) lengthens the context as vLLM derives it; layers for speculation (MTP) are not loaded and not counted.

## What the shapes were held against

Each file in `calibrate/models/` says its `source`; `python -m tools.check_shapes FOLDER` compares a folder of
config.json files again.

{sources}
"""


def rows() -> list[dict[str, Any]]:
    """One a bundled model: sizes in bytes, weights by type over all GPUs."""
    from calibrate.models import bundled_models, hugging_face_names, resolve_model

    published: dict[str, list[str]] = {}
    for name, (key, _) in hugging_face_names().items():
        published.setdefault(key, []).append(name)
    found = []
    for name in bundled_models():
        model = resolve_model(name)
        own = model.quantization
        found.append(
            {
                "name": name,
                "parameters": model.parameters,
                "active_parameters": model.active_parameters,
                "max_context": model.max_context,
                "layers": _layers(model),
                "kv_bytes_per_token_bf16": model.kv_bytes_per_token("bf16"),
                "state_bytes": model.state_bytes(),
                "weight_bytes": {
                    dtype: model.weight_bytes(dtype) for dtype in DTYPES if dtype != "bf16" or own is None
                },
                "own": None if own is None else {"dtype": own.name, "weight_bytes": model.weight_bytes("bf16")},
                "published_as": published.get(name, []),
            }
        )
    return found


def _layers(model: Any) -> str:
    """Layers by kind of attention, and how many hold experts: "18 window 128 + 18 full, experts 4/128"."""
    counts: dict[str, int] = {}
    for group in model.layer_groups:
        a = group.attention
        kind = KINDS[a.kind] + (f" {a.window}" if a.window else "") + (" sparse" if a.index_topk else "")
        if kind:
            counts[kind] = counts.get(kind, 0) + group.count
    words = " + ".join(f"{count} {kind}" for kind, count in counts.items())
    if not model.experts:
        return words
    some = "" if model.moe_layers == model.layers else f" in {model.moe_layers}"
    return f"{words}; experts {model.experts_per_token}/{model.experts}{some}"


def table(found: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["name"],
            f"{row['parameters'] / 1e9:.2f} B",
            f"{row['active_parameters'] / 1e9:.2f} B",
            f"{row['max_context']:,}",
            row["layers"],
            f"{row['kv_bytes_per_token_bf16']:,}"
            + (f" + {row['state_bytes'] / 2**20:.0f} MiB state" if row["state_bytes"] else ""),
            *(_gib(row["weight_bytes"].get(dtype)) for dtype in DTYPES),
            f"{row['own']['dtype']} {_gib(row['own']['weight_bytes'])}" if row["own"] else "",
        ]
        for row in found
    ]


COLUMNS = ["model", "parameters", "active", "context", "layers", "KV B/token", *DTYPES, "as published"]


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"


def as_markdown() -> str:
    """The whole page."""
    from kvcast.present import model_matrix

    on = model_matrix.gpus()
    matrix = model_matrix.as_markdown(model_matrix.rows(bundled(), on), on)
    return shapes() + matrix + "\n"


def bundled() -> list[str]:
    """The models of the page."""
    from calibrate.models import bundled_models

    return [name for name in bundled_models() if name != "tiny"]


def shapes() -> str:
    """The page without the table of GPUs, which takes seconds."""
    from calibrate.model_config import UNDERSTOOD

    found = [row for row in rows() if row["name"] != "tiny"]
    lines = [HEADER, "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in table(found)]
    return "\n".join(lines) + "\n" + FOOTER.format(families=", ".join(UNDERSTOOD), sources=_sources())


def _sources() -> str:
    from calibrate.models import source_of

    held: dict[str, list[str]] = {}
    for name in bundled():
        held.setdefault(source_of(name), []).append(name)
    return "\n".join(f"- {source}: {', '.join(names)}." for source, names in held.items())
