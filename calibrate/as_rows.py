"""Measured points of a calibration as operator rows: what a folder of one's own holds.

The one idea: a point is a row already, under the atlas's names; only what a call moves a token is worked out here.
Nothing is fitted into the rows: a hole stays a hole, and whoever prices them says what stands in for it.

    kvcast calibrate --model llama-3.1-8b --device cuda --out mine
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from calibrate.assemble import Calibration
from calibrate.rows import ELEMENTWISE, OperatorRows, Rows, once

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
"""What all but the points that say otherwise are in."""
REHEARSALS = {"fake": "the times of a fake device are known formulas", "cpu": "a rehearsal on a CPU"}


def as_rows(calibration: Calibration, name: str, gpu: str | None) -> Rows:
    """The rows of a points file. gpu: the atlas they lie over."""
    header = calibration.header
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in calibration.rows:
        operator, row = _row(point["op"], point["shape"], header)
        if operator and point["value"] > 0:
            found[operator].append({**row, "us": point["value"]})
    about = _about(calibration)
    return Rows(
        name=name,
        device=header["device"],
        gpu=gpu,
        operators={
            operator: OperatorRows(once(operator, rows), _about_operator(operator, about, header))
            for operator, rows in sorted(found.items())
        },
        rehearsal=_rehearsal(header["device"]["name"]),
        host=_host(calibration),
        form=_form(calibration),
        notes=(*calibration.drifts(), *calibration.failures()),
    )


def _row(op: str, s: Mapping[str, int], header: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(operator, its columns), ("", {}) for a point that is no operator of a step."""
    weights = cache = DTYPES.get(header["dtype"], header["dtype"])
    if op == "gemm":
        return op, {"gemm_dtype": "fp8" if s.get("fp8") else weights, "n": s["n"], "k": s["k"], "m": s["m"]}
    if op in ("prefill", "decode", "mixed"):
        heads = {
            "kv_cache_dtype": cache,
            "window_size": s.get("window", 0),
            "head_dim": s["head_dim"],
            "num_key_value_heads": s["kv_heads"],
            "num_heads": s["heads"],
        }
        return op, heads | _along(op, s)
    if op == "moe":
        shape = {"hidden_size": s["hidden"], "inter_size": s["width"], "topk": s["top_k"], "num_experts": s["experts"]}
        return op, {"moe_dtype": weights, **shape, "moe_tp_size": 1, "moe_ep_size": 1, "num_tokens": s["tokens"]}
    if op == "all_reduce":
        return op, {"num_gpus": s["gpus"], "message_size": s["elements"]}
    if op in _MOVED:
        kind, per_token = _MOVED[op]
        tokens = s["rows"] if op == "sample" else s["tokens"]
        return "elementwise", {"name": kind, "bytes_per_token": per_token(s), "num_tokens": tokens}
    return ("host", {"sequences": s["seqs"]}) if op == "host" else ("", {})


def _along(op: str, s: Mapping[str, int]) -> dict[str, int]:
    if op == "prefill":
        return {"batch_size": s.get("seqs", 1), "isl": s["new"], "step": s["cached"]}
    if op == "decode":
        return {"batch_size": s["batch"], "step": s["context"] - 1, "longest": s.get("longest", s["context"]) - 1}
    return {"isl": s["new"], "step": s["cached"], "batch_size": s["batch"], "decode_step": s["context"] - 1}


_MOVED: dict[str, tuple[str, Any]] = {
    "embedding": ("embedding", lambda s: ELEMENTWISE["embedding"] * s["hidden"]),
    "rms_norm": ("norm", lambda s: ELEMENTWISE["norm"] * s["hidden"]),
    "silu_mul": ("silu_mul", lambda s: ELEMENTWISE["silu_mul"] * s["width"]),
    "rope_kv_write": ("rope_kv_write", lambda s: (4 * s["heads"] + 8 * s["kv_heads"]) * s["head_dim"]),
    "qk_norm": ("qk_norm", lambda s: 4 * (s["heads"] + s["kv_heads"]) * s["head_dim"]),
    "sample": ("sample", lambda s: 2 * s["vocab"]),
}


def _about(calibration: Calibration) -> dict[str, str]:
    header = calibration.header
    device = header["device"]
    versions = [f"{k} {device[k]}" for k in ("driver", "cuda", "torch", "triton") if device.get(k)]
    return {
        "kernels": header["kernels"],
        "version": ", ".join(versions) or "unknown",
        "date": str(calibration.sessions[0].get("at", "unknown")),
        "source": "kvcast calibrate",
        "measured_model": header["model"],
        "dtype": header["dtype"],
    }


def _about_operator(operator: str, about: Mapping[str, str], header: Mapping[str, Any]) -> dict[str, str]:
    more = {"router": "included"} if operator == "moe" else {}
    return {**about, **more, "kernels": header.get("kernels_by_operator", {}).get(operator, about["kernels"])}


def _rehearsal(device: str) -> str:
    kind = "fake" if device.startswith("fake") else "cpu" if device.startswith("CPU") else ""
    return REHEARSALS.get(kind, "")


def _host(calibration: Calibration) -> dict[str, float]:
    """Microseconds of the host a step and a sequence, and of launching a layer kernel by kernel."""
    found: dict[str, float] = {}
    form = calibration.common.get("host")
    if form is not None:
        found |= {"step_us": form.overhead_us, "sequence_us": form.memory["seqs"]}
    launch, layers = calibration.single("launch"), calibration.header["config"]["layers"]
    return found | ({"launch_us_per_layer": launch / layers} if launch else {})


def _form(calibration: Calibration) -> dict[str, float]:
    """Decode attention by the sum of contexts, the longest one and the sequences."""
    form = calibration.common.get("decode")
    if form is None:
        return {}
    return {
        "overhead_us": form.overhead_us,
        "longest_us": form.compute["longest"],
        "mb_us": form.memory["mb"],
        "sequence_us": form.memory["seqs"],
    }
