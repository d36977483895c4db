"""A device profile from a folder of operator tables in LLMServingSim's profiler layout.

The one idea: their tables are times of one layer, so the layers of the model multiply them; embedding, final norm, LM
head and sampler run once a step. Files: dense.csv (layer, tokens, time_us), attention.csv (prefill_chunk, kv_prefill,
n_decode, kv_decode, time_us), per_sequence.csv (layer, sequences, time_us), skew.csv (unequal contexts, optional) and
meta.yaml.

    kvcast run scenario.toml --set hardware.profile=path/to/kernels
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.models import ModelSpec, bundled_models, hugging_face_names, resolve_model
from calibrate.profile import DeviceProfile
from calibrate.sources.roofline import GPUS
from workloads.errors import InputError
from workloads.table import NUMBER, TEXT, WHOLE, maybe, read_table

ONCE = {"embedding", "final_layernorm"}
TWICE = {"layernorm"}
"""Once a step, and twice in every layer (before attention and before the feed-forward part)."""

HOST_INSIDE = "layers timed inside the engine, launches and sampler with them"
"""A recorded vLLM run of such a card takes as long as its tables (`kvcast validate vllm-rtx4090`: +1 %); with 0.6 ms a
step and 15 us a sequence more it would take 5 % longer."""
KINDS = {"mla": "latent attention", "linear": "linear attention", "window": "sliding windows", "none": "layers without"}
UNDERSTOOD = {
    "qkv_proj": "gemm",
    "o_proj": "gemm",
    "gate_up_proj": "gemm",
    "down_proj": "gemm",
    "embedding": "embedding",
    "layernorm": "norm",
    "final_layernorm": "",
    "act_fn": "silu_mul",
    "rotary_emb": "rope_kv_write",
    "qk_norm": "qk_norm",
}
"""Layers of dense.csv -> the operator they are, "" for one that is another's twin. Attention writes the KV cache."""


Tables = tuple[int, Path]
"""(tensor-parallel width, folder) of one set of CSV files."""


def is_profiler_folder(folder: Path) -> bool:
    """Whether a folder, or the one above it, says with a meta.yaml that a profiler wrote it."""
    return (folder / "meta.yaml").is_file() or ((folder / "dense.csv").is_file() and _meta_path(folder).is_file())


def tables_of(folder: Path) -> list[Tables]:
    """The sets of tables in a folder: itself, or its tp1, tp2, .. as published."""
    if (folder / "dense.csv").is_file() or (folder / "attention.csv").is_file():
        return [(_width(folder), folder)]
    found = [(_width(part), part) for part in sorted(folder.glob("tp*")) if part.is_dir()]
    return sorted(found) or [(1, folder)]


def _width(folder: Path) -> int:
    digits = folder.name.removeprefix("tp")
    return int(digits) if folder.name.startswith("tp") and digits.isdigit() and int(digits) else 1


def _meta_path(folder: Path) -> Path:
    """meta.yaml lies beside the tables or, as published, one level up."""
    own = folder / "meta.yaml"
    return own if own.is_file() or not (folder.parent / "meta.yaml").is_file() else folder.parent / "meta.yaml"


@dataclass(frozen=True)
class Meta:
    """What meta.yaml says: whose tables, of which model in which types."""

    path: Path
    fields: dict[str, str]
    model: ModelSpec
    weights: str
    cache: str

    @classmethod
    def read(cls, folder: Path) -> Meta:
        """Of the folder, or of the one above. InputError names the field that is not understood."""
        path = _meta_path(folder)
        fields = _read_meta(path)
        return cls(path, fields, _model(fields, path), *_types(fields, path))

    @property
    def gpu(self) -> str:
        return self.fields.get("gpu", "unknown GPU")

    @property
    def kernels(self) -> str:
        return f"vLLM {self.fields.get('vllm_version', '?')}"

    @property
    def date(self) -> str:
        return self.fields.get("profiled_at", "unknown")


def profile_from_folder(folder: Path) -> DeviceProfile:
    """The tables of a model at one width as its profile; InputError names file, row and field, or the operator that
    the model needs and the tables lack."""
    (tp, folder), meta = tables_of(folder)[0], Meta.read(folder)
    model = meta.model
    attention = AttentionTable(folder / "attention.csv", model.layers)
    dense = operators(folder / "dense.csv", "tokens", "tokens", model.layers)
    per_sequence = operators(folder / "per_sequence.csv", "sequences", "rows", 0)
    check_complete(folder, model, dense, per_sequence, (folder / "moe.csv").is_file())
    points: dict[str, Any] = {
        "dense": [*dense, *_experts(folder / "moe.csv", model)],
        "per_sequence": per_sequence,
        "prefill_attention": attention.prefill(),
        "decode_attention": attention.decode(),
        "mixed_attention": attention.mixed(),
        "step_overhead_us": 0.0,
        "host_inside": HOST_INSIDE,
    }
    if (folder / "skew.csv").exists():
        points["skew"] = skew_of(folder / "skew.csv")
    return DeviceProfile(
        id=f"{folder.parent.name}/{folder.name}" if folder.name == "kernels" else folder.name,
        kind="tables",
        label=f"operator tables of {meta.gpu}, {meta.kernels}, not measured by kvcast",
        device={"name": meta.gpu, "memory_gib": memory_gib(meta.gpu, meta.path)},
        model=model.name,
        dtype=meta.weights,
        kv_dtype=meta.cache,
        tensor_parallel=tp,
        points=points,
        provenance={
            "source": "LLMServingSim profiler tables",
            "licence": "see the folder's origin",
            "version": meta.kernels,
            "date": meta.date,
            "kernels": meta.kernels,
            "notes": [],
        },
    )


def check_complete(
    folder: Path, model: ModelSpec, dense: list[dict[str, Any]], sampled: list[dict[str, Any]], experts: bool
) -> None:
    """InputError for an operator of the model that no table has, and for one that is not understood: either would be a
    wrong time without a word."""
    have = {o["name"] for o in dense}
    needed = ["qkv_proj", "o_proj"]
    for group in model.layer_groups:
        if group.attention.kind != "full":
            kind = KINDS.get(group.attention.kind, group.attention.kind)
            raise InputError(
                f"{folder}: {model.name} has {kind}; expected a model of full attention over KV heads (attention.csv"
                " holds one table for all layers)"
            )
        needed += ["gate_up_proj", "down_proj"] if group.mlp.kind == "dense" else []
    lacking = [f"{name} in dense.csv" for name in dict.fromkeys(needed) if name not in have]
    lacking += ["lm_head in per_sequence.csv"] if "lm_head" not in {o["name"] for o in sampled} else []
    if any(group.mlp.kind == "moe" for group in model.layer_groups) and not experts:
        lacking.append("the experts (moe.csv)")
    if lacking:
        raise InputError(f"{folder}: {model.name} needs {', '.join(lacking)}; a step without is far too fast")
    unknown = sorted(have - UNDERSTOOD.keys())
    if unknown:
        raise InputError(
            f"{folder / 'dense.csv'}: layer {unknown[0]!r} is not understood; expected {', '.join(UNDERSTOOD)}"
        )


def _experts(path: Path, model: ModelSpec) -> list[dict[str, Any]]:
    """The routed experts and their router of all layers that have them, as one operator by tokens; [] for a dense
    model."""
    found = []
    for group in model.layer_groups:
        if group.mlp.kind == "moe":
            us = expert_times(path, group.mlp.experts, group.mlp.topk)[1]
            at = sorted(us)
            us_at = [us[n] for n in at]
            found.append({"name": "moe", "repeat": group.count, "basis": "measured", "tokens": at, "us": us_at})
    return found


def expert_times(path: Path, experts: int, topk: int) -> dict[int, dict[int, float]]:
    """GPUs that share the experts -> tokens -> microseconds, at as many activated experts as an even routing reaches,
    between the measured numbers of them."""
    by_ep: dict[int, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_table(path, {"ep": maybe(WHOLE), "tokens": WHOLE, "activated_experts": WHOLE, "time_us": NUMBER}):
        by_ep[row["ep"] or 1][row["tokens"]][row["activated_experts"]] = row["time_us"]
    if 1 not in by_ep:
        raise InputError(f"{path}: no row with ep = 1; expected all experts on one GPU")
    found: dict[int, dict[int, float]] = {}
    for ep, by_tokens in by_ep.items():
        found[ep] = {}
        for tokens, us in by_tokens.items():
            reached = experts / ep * (1.0 - (1.0 - topk / experts) ** tokens)
            at = sorted(us)
            found[ep][tokens] = float(np.interp(reached, at, [us[x] for x in at]))
    return found


# ---- meta.yaml -------------------------------------------------------------------------------------------------------


def _read_meta(path: Path) -> dict[str, str]:
    """The scalar `key: value` lines of meta.yaml, nested keys by their last name; the first mention of a key wins."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError(
            f"{path}: cannot read ({e.strerror}); expected a folder of operator tables with meta.yaml"
        ) from None
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        if colon and value.strip():
            found.setdefault(key.strip(), value.strip().strip("'\""))
    return found


def _model(meta: dict[str, str], path: Path) -> ModelSpec:
    name = meta.get("model", "")
    short = re.sub(r"(-instruct|-chat|-hf|-\d{4})+$", "", name.split("/")[-1].lower().removeprefix("meta-"))
    for known in (f"hf:{name}", name.split("/")[-1].lower().removeprefix("meta-"), short):
        if known in bundled_models() or known[3:].lower() in hugging_face_names():
            return resolve_model(known)
    raise InputError(f"{path}: field model is {meta.get('model')!r}; expected one of {', '.join(bundled_models())}")


def _types(meta: dict[str, str], path: Path) -> tuple[str, str]:
    """(weights, KV cache) of a variant such as bf16, fp8 or bf16-kvfp8; a cache that is not named is the engine's
    automatic one."""
    variant = meta.get("variant", "bf16")
    weights, _, cache = variant.partition("-kv")
    if weights not in ("bf16", "fp16", "fp8") or cache not in ("", "bf16", "fp16", "fp8"):
        raise InputError(f"{path}: field variant is {variant!r}; expected bf16, fp16 or fp8, and -kvfp8 after it")
    return weights, cache or ("bf16" if weights == "fp8" else weights)


def memory_gib(gpu: str, meta: Path) -> float:
    plain = gpu.lower().replace("-", " ")
    for key, spec in GPUS.items():
        if key.replace("-", " ") in plain:
            return spec.memory_gib
    raise InputError(f"{meta}: field gpu is {gpu!r}; expected one of {', '.join(GPUS)} (its memory must be known)")


def operators(path: Path, axis: str, name: str, layers: int) -> list[dict[str, Any]]:
    """One entry per operator; layers = 0 for tables whose operators run once a step."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for row in read_table(path, {"layer": TEXT, axis: WHOLE, "time_us": NUMBER}):
        series[row["layer"]][row[axis]] = row["time_us"]
    operators = []
    for layer, points in series.items():
        repeat = 1 if layers == 0 or layer in ONCE else 2 * layers if layer in TWICE else layers
        at = sorted(points)
        operators.append(
            {"name": layer, "repeat": repeat, "basis": "measured", name: at, "us": [points[x] for x in at]}
        )
    return operators


class AttentionTable:
    """attention.csv as three tables: prefill alone, decode alone, both in one call."""

    COLUMNS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")

    def __init__(self, path: Path, layers: int):
        self.layers = layers
        kinds = {**dict.fromkeys(self.COLUMNS, WHOLE), "time_us": NUMBER}
        rows = read_table(path, {**kinds, "layer": maybe(TEXT), "decode_q_len": maybe(WHOLE)})
        for layer in {row["layer"] or "attention" for row in rows} - {"attention"}:
            raise InputError(f"{path}: layer {layer!r} is not understood; expected attention alone")
        rows = [row for row in rows if row["decode_q_len"] in (None, 1)]  # more: speculative decoding
        self.us: dict[tuple[int, ...], float] = {tuple(row[c] for c in self.COLUMNS): row["time_us"] for row in rows}
        self.path = path

    def prefill(self) -> dict[str, Any]:
        keys = [k for k in self.us if k[0] and not k[2]]
        return self._grid(keys, ("new", "cached"), (0, 1), lambda n, c: (n, c, 0, 0))

    def decode(self) -> dict[str, Any]:
        keys = [k for k in self.us if not k[0] and k[2]]
        return self._grid(keys, ("batch", "context"), (2, 3), lambda b, c: (0, 0, b, c))

    def mixed(self) -> dict[str, Any]:
        keys = [k for k in self.us if k[0] and k[2]]
        return self._grid(keys, ("new", "cached", "batch", "context"), (0, 1, 2, 3), lambda *key: key)

    def _grid(self, keys: list[Any], names: tuple[str, ...], columns: tuple[int, ...], place: Any) -> dict[str, Any]:
        """Nested lists over the sorted values of the axes, null where a point was not measured."""
        if not keys:
            raise InputError(f"{self.path}: no rows with {' and '.join(names)}; expected measured attention times")
        axes = [sorted({k[c] for k in keys}) for c in columns]

        def nest(prefix: tuple[int, ...]) -> Any:
            if len(prefix) == len(axes):
                return self.us.get(place(*prefix))
            return [nest((*prefix, value)) for value in axes[len(prefix)]]

        return {"repeat": self.layers, **dict(zip(names, axes, strict=True)), "us": nest(()), "basis": "measured"}


def skew_of(path: Path) -> dict[str, Any]:
    """alpha: the share of the way from t(mean context) to t(longest context), least squares of the relative error.

    Pure decode has one alpha. Per batch size it jumps with the waves of the kernel (RTX 4090: 0.03 at 16 sequences,
    0.15 at 32, 0.08 at 64), which says nothing about the sizes between; the recorded batches are the worst case of one
    length four times the rest. A mixed call does not split long contexts, so its alpha falls steadily with the batch
    size and is kept by size."""
    times = ("t_mean_us", "t_max_us", "t_skew_us")
    pure: list[tuple[float, ...]] = []
    mixed: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for row in read_table(path, {"regime": TEXT, "n": WHOLE, **dict.fromkeys(times, NUMBER)}):
        (pure if row["regime"] == "pure" else mixed[row["n"]]).append(tuple(row[c] for c in times))
    if not pure:
        raise InputError(f"{path}: no row with regime pure; expected unequal contexts of decode batches")
    alpha = _alpha(np.array(pure))
    skew: dict[str, Any] = {"batch": [1, 2], "alpha": [alpha, alpha]}
    if len(mixed) >= 2:
        skew["mixed_batch"] = sorted(mixed)
        skew["mixed_alpha"] = [_alpha(np.array(mixed[n])) for n in sorted(mixed)]
    return skew


def _alpha(rows: np.ndarray) -> float:
    """Weighted least squares of (t_skew - t_mean) / t_skew on (t_max - t_mean) / t_skew, kept within 0 and 1. rows: [n,
    3]."""
    mean, top, skewed = rows.T
    x, y = (top - mean) / skewed, (skewed - mean) / skewed
    return float(min(max((x * y).sum() / max((x * x).sum(), 1e-12), 0.0), 1.0))
