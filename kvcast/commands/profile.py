"""Device profiles and models: what is bundled, what a profile rests on, and what fits on its GPU.

kvcast profile list
kvcast profile models
kvcast profile show h200-llama-3.1-8b-aic
kvcast profile show --model llama-2-7b --context 1000000
kvcast profile show h200-llama-3.1-8b-aic --model llama-3.1-8b --context 1000000
kvcast profile show atlas:h200 --model deepseek-v3 --dtype fp8_block --attention-dp 8 --expert-parallel
kvcast profile show profile.json --html profile.html
kvcast profile show mine --model qwen3-8b
kvcast profile diff monday.json friday.json
kvcast profile diff mine atlas:h200 --model qwen3-8b
kvcast profile kv-log vllm.log
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.commands import block_size, gpus, output, tokens

if TYPE_CHECKING:
    from calibrate.layout import Layout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="GPUs, and what is known of each")
    models = actions.add_parser("models", help="bundled models: layers, KV bytes, weights by precision")
    models.add_argument("--markdown", action="store_true", help="as the page docs/models.md")
    models.add_argument(
        "--matrix",
        action="store_true",
        help="which GPU holds which model, in how many GPUs, and what its times rest on",
    )
    models.add_argument("--dtype", default="bf16", help="of unquantized weights in the matrix (default bf16)")
    show = actions.add_parser("show", help="one profile, or the KV arithmetic of a model")
    show.add_argument("profile", metavar="PROFILE", nargs="?", help=ANY)
    show.add_argument(
        "--context", metavar="TOKENS", type=tokens, help="show the KV cache one sequence of this length takes"
    )
    show.add_argument(
        "--html", metavar="FILE", type=output, help="write measured-against-fitted plots of a calibrated profile"
    )
    diff = actions.add_parser("diff", help="what moved between two profiles, by operator and by step")
    diff.add_argument("a", metavar="A", help=ANY)
    diff.add_argument("b", metavar="B", help="the same")
    for command in (show, diff):
        _add_model(command)
    log = actions.add_parser("kv-log", help="KV blocks from the start-up log of vLLM or SGLang")
    log.add_argument("log", metavar="LOG", type=Path)
    log.add_argument(
        "--block-size",
        metavar="N",
        type=block_size,
        default=None,
        help="tokens per block, when the log does not say (default: vLLM 16, SGLang 1)",
    )
    for command in (listing, models, show, diff, log):
        command.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


ANY = "bundled name, profile file, folder of operator rows or tables, atlas:GPU, or roofline:GPU"


def _add_model(command: argparse.ArgumentParser) -> None:
    """What a profile that fits any model is asked about."""
    command.add_argument("--model", metavar="M", help="bundled model name or path of a Hugging Face config.json")
    command.add_argument(
        "--dtype",
        default=None,
        help="weights: bf16, fp16, fp8, int4, mxfp4, nvfp4 (default bf16, or what the checkpoint is quantized to)",
    )
    command.add_argument(
        "--kv-dtype", default=None, help="KV cache: bf16, fp16 or fp8 (default: as the weights, bf16 for fp8)"
    )
    command.add_argument(
        "--tensor-parallel",
        metavar="N",
        type=gpus,
        default=None,
        help="GPUs that split every layer (default: the profile's, else 1)",
    )
    for flag, about in (
        ("--attention-dp", "attention data-parallel ranks of a replica (default 1)"),
        ("--pipeline-parallel", "pipeline stages of a replica (default 1)"),
    ):
        command.add_argument(flag, metavar="N", type=gpus, default=1, help=about)
    command.add_argument("--expert-parallel", action="store_true", help="whole experts on each GPU")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.present import gpu_list

    actions = {
        "list": lambda _: gpu_list.document(),
        "models": _models,
        "show": _show,
        "diff": _diff,
        "kv-log": _kv_log,
    }
    document = actions[args.action](args)
    if args.json:
        print(text.to_json(document))
    else:
        print(gpu_list.as_text(document) if args.action == "list" else "\n".join(document["lines"]))
    return 0


# -- lists -------------------------------------------------------------------------------------------------------------


def _models(args: argparse.Namespace) -> dict[str, Any]:
    from kvcast import text
    from kvcast.present import model_matrix, models_page

    if args.matrix:
        on = model_matrix.gpus()
        found = model_matrix.rows(models_page.bundled(), on, args.dtype)
        lines = (
            model_matrix.as_markdown(found, on).splitlines()
            if args.markdown
            else [text.table(model_matrix.columns(on), model_matrix.table(found), left=len(on) + 2)]
        )
        return {"matrix": [_as_json(row) for row in found], "lines": lines}
    if args.markdown:
        return {"lines": models_page.as_markdown().splitlines()}
    rows = models_page.rows()
    return {"models": rows, "lines": [text.table(models_page.COLUMNS, models_page.table(rows), left=1)]}


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    return {**row, "cells": {gpu: asdict(one) for gpu, one in row["cells"].items()}}


# -- show --------------------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> dict[str, Any]:
    from calibrate.models import known_as, resolve_model
    from workloads.errors import InputError

    if not args.profile and not args.model:
        raise InputError("profile show: expected a PROFILE, or --model M")
    profile = _profile(args)
    if args.html is not None:
        _write_html(profile, args.html)
    name = args.model or (profile.model if profile else None)
    if name is None:
        return {"profile": profile.describe(), "lines": _profile_lines(profile)}
    model = resolve_model(name)
    tp = _layout(args, profile.tensor_parallel if profile else 1)
    if profile is None and not tp.plain:
        raise InputError(f"profile show: expected a PROFILE with {tp}, such as atlas:h200")
    asked = args.dtype or "bf16"
    kv_dtype = args.kv_dtype or (profile.kv_dtype if profile is not None else model.kv_dtype(asked))
    if profile is not None and not profile.fits(known_as(model), profile.dtype, tp):
        raise InputError(f"profile {profile.id!r} is for {profile.model} {profile.layout}; asked for {model.name} {tp}")
    dtype = model.weight_dtype(asked) if profile is None else profile.dtype
    return _fit(model, profile, dtype, kv_dtype, tp, args.context)


def _layout(args: argparse.Namespace, tensor_parallel: int) -> Layout:
    from calibrate.layout import Layout

    width = args.tensor_parallel or tensor_parallel
    return Layout(width, args.pipeline_parallel, args.attention_dp, args.expert_parallel)


def _profile(args: argparse.Namespace) -> Any:
    return None if args.profile is None else _resolved(args.profile, args)


def _fixed(spec: str) -> Any:
    """The profile of a spec that is of one model, None for one that prices any."""
    from calibrate.profile import bundled_profile, bundled_profiles, load_profile

    if spec in bundled_profiles():
        return bundled_profile(spec)
    return load_profile(Path(spec)) if spec.endswith(".json") else None


def _resolved(spec: str, args: argparse.Namespace, like: Any = None) -> Any:
    """The profile of a spec for the model, types and width that are asked for; what is not asked for is as in the
    profile `like`, else what the spec was measured with."""
    from calibrate.models import resolve_model
    from calibrate.resolve import measured_with, resolve_profile

    fixed = _fixed(spec)
    if fixed is not None:
        return fixed
    model = resolve_model(args.model or (like and like.model) or measured_with(spec))
    asked = args.dtype or (like.dtype if like else "bf16")
    dtype, kv_dtype = model.weight_dtype(asked), args.kv_dtype or (like.kv_dtype if like else model.kv_dtype(asked))
    return resolve_profile(spec, model, dtype, _layout(args, like.tensor_parallel if like else 1), kv_dtype)


def _profile_lines(profile: Any) -> list[str]:
    from kvcast.present.profile_report import calibration_lines, is_calibrated

    described = profile.describe()
    lines = [f"{profile.id}: {profile.label}", f"GPU: {profile.device['name']}, {profile.memory_gib:g} GiB"]
    lines.append(f"model: {profile.model or 'any'}, {profile.dtype} weights, {profile.kv_dtype} KV, {profile.layout}")
    for key, value in described["provenance"].items():
        lines += [f"{key}: {item}" for item in (value if isinstance(value, list) else [value])]
    lines.append(f"content hash: {described['content_hash']}")
    lines.append(f"host time: {_host_words(profile)}")
    if "rests_on" in profile.points:
        lines += ["", *_rests_on(profile.points["rests_on"])]
    if is_calibrated(profile):
        lines += ["", *calibration_lines(profile)]
    return lines


def _host_words(profile: Any) -> str:
    from calibrate.host import BY_MODE, MODES, contained

    if inside := contained(profile):
        return f"{inside}; a run adds none"
    added = "; ".join(f"{MODES[mode]}: {host.words}" for mode, host in BY_MODE.items())
    return f"none in these times; a run adds the engine's. {added[0].upper()}{added[1:]}"


def _rests_on(operators: list[dict[str, Any]]) -> list[str]:
    """What each operator's time rests on, and how far it is expected to be off."""
    from kvcast import text

    calls: dict[tuple[str, ...], int] = {}  # groups of layers share operators
    for o in operators:
        key = (o["name"], o["coverage"], text.percent(o["error"]) if o["error"] else "-", o["basis"])
        calls[key] = calls.get(key, 0) + o["repeat"]
    rows = [[name, str(n), *others] for (name, *others), n in calls.items()]
    return [text.table(["operator", "calls", "", "expected error", "rests on"], rows, left=5)]


def _write_html(profile: Any, path: Path) -> None:
    from kvcast.present.profile_report import is_calibrated, write_html
    from workloads.errors import InputError

    if profile is None or not is_calibrated(profile):
        raise InputError(
            "profile show --html: expected a profile of kvcast calibrate; others keep no raw points to plot"
        )
    write_html(profile, path)


# -- diff and logs -----------------------------------------------------------------------------------------------------


def _diff(args: argparse.Namespace) -> dict[str, Any]:
    from calibrate.models import resolve_model
    from kvcast.present.profile_diff import diff, diff_lines

    like = _fixed(args.a) or _fixed(args.b)
    a = _resolved(args.a, args, like)
    b = _resolved(args.b, args, like or a)
    name = args.model or a.model or b.model
    model = resolve_model(name) if name and b.model in (None, a.model or b.model) else None
    changes = diff(a, b, model)
    return {"a": a.describe(), "b": b.describe(), **changes, "lines": diff_lines(a, b, changes)}


def _kv_log(args: argparse.Namespace) -> dict[str, Any]:
    from calibrate.kv_logs import log_lines, read_kv_log

    log = read_kv_log(args.log, args.block_size)
    return {
        "engine": log.engine,
        "kv_blocks": log.blocks,
        "block_size": log.block_size,
        "kv_tokens": log.tokens,
        "line": log.line,
        "replicas": list(log.replicas) or [log.tokens],
        "printed_tokens": log.printed or log.tokens,
        "lines": log_lines(log),
    }


def _fit(model: Any, profile: Any, dtype: str, kv_dtype: str, layout: Layout, context: int | None) -> dict[str, Any]:
    """The KV arithmetic of one model, and on which GPUs a context fits."""
    from calibrate.memory import context_lines, kv_capacity, kv_formula

    lines = [] if profile is None else [*_profile_lines(profile), ""]
    lines.append(
        f"{model.name}: {model.parameters / 1e9:.2f} B parameters, context {model.max_context:,}, KV in {kv_dtype}"
    )
    document: dict[str, Any] = {
        "model": model.name,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "tensor_parallel": layout.tensor_parallel,
        "layout": layout.as_document(),
        "kv_bytes_per_token": model.kv_bytes_per_token(kv_dtype, layout),
        "weight_bytes": model.weight_bytes(dtype, layout),
    }
    if context is not None:
        width = layout.tensor_parallel
        document["context"], document["context_kv_bytes"] = context, model.kv_bytes(context, kv_dtype, width)
        lines += context_lines(model, context, kv_dtype, width)
    else:
        lines.append(f"KV: {kv_formula(model, kv_dtype, layout)}")
    if profile is not None:
        document["profile"] = profile.describe()
        capacity = kv_capacity(profile, model, dtype, kv_dtype, layout, 0.92, 0, 16)
        document["kv_tokens"] = capacity.tokens
        lines += ["", *capacity.lines]
        if context is not None:
            lines.append(_how_many(capacity.tokens, context))
    else:
        fits = _what_fits(model, dtype, kv_dtype, context)
        document["fits"] = fits
        lines += ["", _fits_table(fits, context)]
    return {**document, "lines": lines}


def _how_many(tokens: int, context: int) -> str:
    n = tokens // context
    return (
        f"{n:,} sequence{'' if n == 1 else 's'} of {context:,} tokens fit at once"
        if n
        else f"not one sequence of {context:,} tokens fits"
    )


def _what_fits(model: Any, dtype: str, kv_dtype: str, context: int | None) -> list[dict[str, Any]]:
    """KV tokens on every GPU of a bundled profile, at 1 to 8 GPUs per replica."""
    from calibrate.memory import WIDTHS, longest_context
    from calibrate.profile import fitting

    devices = {one.device["name"]: one for one in fitting()}
    rows = []
    for device, profile in devices.items():
        for tp in WIDTHS:
            tokens = longest_context(profile, model, dtype, kv_dtype, tp)
            rows.append(
                {
                    "gpu": device,
                    "tensor_parallel": tp,
                    "kv_tokens": tokens,
                    "fits": None if context is None else tokens >= context,
                }
            )
    return rows


def _fits_table(rows: list[dict[str, Any]], context: int | None) -> str:
    from kvcast import text

    header = ["GPU", "TP", "KV tokens that fit"] + ([] if context is None else [f"one sequence of {context:,}"])
    cells = []
    for row in rows:
        cells.append(
            [
                row["gpu"],
                str(row["tensor_parallel"]),
                text.count(row["kv_tokens"]) if row["kv_tokens"] else "weights do not fit",
            ]
        )
        if context is not None:
            cells[-1].append("fits" if row["fits"] else "does not fit")
    return text.table(header, cells)
