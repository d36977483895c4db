"""From names to things: the profile that a scenario names, and what its engine takes on that GPU.

The one idea: this stands above every source of a profile, so that a source knows profiles and no profile knows its
sources.

    python -c "from calibrate.models import resolve_model as m; from calibrate.resolve import resolve_profile as p;
    print(p('roofline:l40s', m('llama-3.1-8b')).label)"
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

from calibrate.atlas.own import own_profile
from calibrate.atlas.own_tables import gpu_of
from calibrate.atlas.steps import atlas_profile, unpriced
from calibrate.atlas.tables import bundled_gpus, load, spec_of
from calibrate.layout import Layout, as_layout
from calibrate.models import ModelSpec, known_as
from calibrate.profile import DeviceProfile, alike, bundled_profile, bundled_profiles, fitting, load_profile
from calibrate.rows import is_rows, read_rows
from calibrate.sources.folder import profile_from_folder
from calibrate.sources.folder_rows import rows_from_folder
from calibrate.sources.roofline import GPUS, gpu_key, roofline_profile
from calibrate.sources.vidur import profile_from_vidur, rows_from_vidur
from workloads.errors import InputError


def resolve_profile(
    spec: str,
    model: ModelSpec,
    dtype: str = "bf16",
    tp: int | Layout = 1,
    kv_dtype: str | None = None,
    link: str | None = None,
) -> DeviceProfile:
    """The profile a scenario names: a bundled id, a profile file, a folder of operator rows or tables, atlas:GPU,
    or roofline:GPU.

    model: the scenario's ModelSpec. A profile of another model, precision or width is an InputError that lists those
    that fit; a roofline is used only when it is asked for. kv_dtype: checked when given (attention over an fp8 cache
    takes other times). tp: a tensor-parallel width or a whole layout; only an atlas prices more than a width. link:
    between the GPUs of a replica, where their own is not meant; measured all-reduces are of their own."""
    layout = as_layout(tp)
    if spec.startswith("atlas:"):
        return atlas_profile(spec.removeprefix("atlas:"), model, dtype, layout, kv_dtype, link)
    if not layout.plain:
        raise InputError(f"profile {spec!r} has no times for {layout}; expected atlas:GPU, which prices it")
    tp = layout.tensor_parallel
    if spec.startswith("roofline:"):
        return roofline_profile(spec.removeprefix("roofline:"), dtype, tp, kv_dtype, link)
    if link is not None and tp > 1:
        raise InputError(
            f"[hardware] link = {link!r}: profile {spec!r} holds the all-reduces of its own GPUs; expected atlas:GPU or"
            " roofline:GPU with it"
        )
    if Path(spec).is_dir() and spec not in bundled_profiles():
        return _folder(Path(spec), model, dtype, tp, kv_dtype)
    profile = _find(spec)
    name = known_as(model)
    if not profile.fits(name, dtype, tp):
        have = f"{profile.model} {profile.dtype} tensor_parallel {profile.tensor_parallel}"
        raise InputError(
            f"profile {spec!r} is for {have}; the scenario has {model.name} {dtype} tensor_parallel {tp};"
            f" {_that_fit(profile, name, dtype, tp, kv_dtype)}"
        )
    if kv_dtype is not None and not alike(profile.kv_dtype, kv_dtype):
        raise InputError(
            f"profile {spec!r} was made with a {profile.kv_dtype} KV cache; the scenario's kv_dtype is {kv_dtype}"
            f" ({_any(profile)} takes any)"
        )
    return profile


def known_gpus() -> list[str]:
    """GPUs of which anything is known: measured operators, or a data sheet."""
    return sorted({*GPUS, *bundled_gpus()})


def gpu_name(gpu: str) -> str:
    """A GPU's name as `known_gpus` has it: H200_SXM is h200."""
    return gpu.lower().replace("_", "-").removesuffix("-sxm")


def measured_with(spec: str) -> str:
    """The model that a folder was measured with; llama-3.1-8b for what was measured with none."""
    path = Path(spec)
    if not path.is_dir():
        return "llama-3.1-8b"
    if is_rows(path):
        about = [found.about for found in read_rows(path).operators.values()]
        return next((a["measured_model"] for a in about if "measured_model" in a), "llama-3.1-8b")
    profile = profile_from_vidur(path) if (path / "mlp.csv").is_file() else profile_from_folder(path)
    return str(profile.model)


def profile_of_gpu(
    gpu: str, model: ModelSpec, dtype: str = "bf16", tp: int | Layout = 1, kv_dtype: str = "bf16", backend: str = "vllm"
) -> str:
    """The best that is known of a GPU for a model: the bundled profile measured with it (vLLM's kernels), else its
    atlas, with the kernels of the engine (backend) where it has them and vLLM's where not, else roofline:GPU.
    InputError for a GPU of which nothing is known."""
    key, known = gpu_name(gpu), known_gpus()
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"[hardware] gpu = {gpu!r}: expected one of {', '.join(known)}{hint}")
    priced = key in bundled_gpus() and (key not in GPUS or not unpriced(model, dtype, kv_dtype))
    kernels = backend if backend != "vllm" and priced and backend in load(key).backends else "vllm"
    for one in fitting(None, known_as(model), dtype, tp, kv_dtype) if kernels == "vllm" else ():
        if gpu_key(str(one.device["name"])) == key:
            return one.id
    if priced:
        return spec_of(key, kernels)
    return f"roofline:{key}"


def _folder(path: Path, model: ModelSpec, dtype: str, tp: int, kv_dtype: str | None) -> DeviceProfile:
    """Operator rows of one's own, or another project's tables: of its own model on one GPU as they are, else as rows.
    Rows lie over the atlas of their GPU."""
    if is_rows(path):
        return own_profile(read_rows(path), model, dtype, tp, kv_dtype)
    vidur = (path / "mlp.csv").is_file()
    if tp == 1:
        profile = profile_from_vidur(path) if vidur else profile_from_folder(path)
        if profile.fits(known_as(model), dtype, tp) and (kv_dtype is None or alike(profile.kv_dtype, kv_dtype)):
            return profile
    rows = rows_from_vidur(path) if vidur else rows_from_folder(path)
    return own_profile(replace(rows, gpu=gpu_of(str(rows.device["name"]))), model, dtype, tp, kv_dtype)


def _find(spec: str) -> DeviceProfile:
    path, names = Path(spec), bundled_profiles()
    if spec in names:
        return bundled_profile(spec)
    if path.suffix == ".json" or path.exists():
        return load_profile(path)
    if path.is_absolute():
        raise InputError(
            f"{path}: no such file or folder; expected a profile, a folder of operator tables, or the name of a bundled"
            " profile"
        )
    if spec.startswith("roofline"):
        raise InputError(
            f"profile {spec!r} is not bundled; expected roofline:GPU with one of {', '.join(GPUS)} (kvcast profile"
            " list)"
        )
    near = difflib.get_close_matches(spec, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(
        f"profile {spec!r} is not bundled{hint} (bundled: {', '.join(names) or 'none'}; or a profile file, a folder of"
        " operator tables, atlas:GPU, roofline:GPU; or hardware.gpu = GPU instead)"
    )


def _that_fit(profile: DeviceProfile, model: str, dtype: str, tp: int, kv_dtype: str | None) -> str:
    found = [one.id for one in fitting(None, model, dtype, tp, kv_dtype)]
    return f"these fit: {', '.join([_any(profile), *found])}" if found else f"{_any(profile)} takes any model"


def _any(profile: DeviceProfile) -> str:
    """What to write for the same GPU and any model, precision and width."""
    device = str(profile.device["name"])
    names = {str(load(gpu).header["name"]): gpu for gpu in bundled_gpus()}
    gpu = names.get(device, "GPU")
    return f"hardware.gpu = {gpu!r} (atlas:{gpu}, its measured operators; roofline:{gpu} where it has none)"


def engine_defaults(profile: DeviceProfile) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) that vLLM 0.33's API server takes on this GPU.

    160 GiB or more: 16,384 and 1,024; 70 GiB or more and not an A100: 8,192 and 1,024; else 2,048 and 256.
    """
    if profile.memory_gib >= 160:
        return 16384, 1024
    if profile.memory_gib >= 70 and "a100" not in str(profile.device["name"]).lower():
        return 8192, 1024
    return 2048, 256
