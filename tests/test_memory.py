"""KV capacity against public vLLM logs, and its arithmetic in words."""

import csv
import statistics

import pytest

from calibrate.memory import KvCapacity, context_lines, explicit_blocks_warning, kv_capacity, longest_context
from calibrate.models import ModelSpec, resolve_model
from calibrate.profile import DeviceProfile, resolve_profile
from calibrate.sources.roofline import roofline_profile
from workloads.errors import InputError

GIB = 2**30


def card(memory_gib: float, tp: int = 1) -> DeviceProfile:
    return DeviceProfile(
        "t", "roofline", "t", {"name": "card", "memory_gib": memory_gib}, None, "bf16", "bf16", tp, {}, {}
    )


def logged(row: dict) -> tuple[float, float]:
    """(our KV GiB per rank with the log's own weights, the log's KV GiB): isolates the overhead constant."""
    free = float(row["gpu_memory_utilization"]) * float(row["gpu_total_GiB"]) - float(row["weights_GiB_per_rank"]) - 1.5
    return free, float(row["kv_GiB_per_rank"])


def test_overhead_constant_on_public_logs(data_dir):
    with (data_dir / "measured/kv_capacity/kv_capacity.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    error = {i: abs(ours / log - 1) for i, (ours, log) in enumerate(map(logged, rows))}
    assert len(rows) == 22
    assert statistics.median(error.values()) <= 0.021
    h100_dense = [i for i, r in enumerate(rows) if r["source"].startswith("blis") and "16E" not in r["model"]]
    assert len(h100_dense) == 7
    assert max(error[i] for i in h100_dense) <= 0.022
    quantised_moe = [
        i for i, r in enumerate(rows) if r["dtype"] == "8-bit" and r["model"] in ("Scout-17B-16E", "Qwen3-235B-A22B")
    ]
    assert min(error[i] for i in quantised_moe) > 0.5, "the documented failure: an overhead of 8.5 GiB, not 1.5"


@pytest.mark.parametrize(
    ("model", "gib", "tp", "kv_tokens", "within"),
    [
        ("llama-2-7b", 79.19, 1, 119408, 0.022),
        ("llama-3.1-70b", 79.19, 4, 486800, 0.022),
        ("mixtral-8x7b", 79.19, 2, 440176, 0.023),
        ("llama-3.1-8b", 47.41, 1, 216720, 0.022),
        ("llama-3.1-8b", 47.41, 2, 554704, 0.022),
        ("qwen3-32b", 79.19, 2, 307328, 0.05),
    ],
)
def test_tokens_from_the_shapes_alone(model, gib, tp, kv_tokens, within):
    capacity = kv_capacity(card(gib, tp), resolve_model(model), "bf16", "bf16", tp, 0.9, 2048, 16)
    assert capacity.tokens == pytest.approx(kv_tokens, rel=within)


def test_capacity_is_the_arithmetic_it_prints():
    model = resolve_model("llama-3.1-8b")
    capacity = kv_capacity(resolve_profile("h200-llama-3.1-8b-aic", model), model, "bf16", "bf16", 1, 0.92, 8192, 16)
    free = 0.92 * 139.81 * GIB - model.weight_bytes("bf16") - 1.5 * GIB
    assert capacity.blocks == int(free // (16 * 131072))
    assert capacity.tokens == capacity.blocks * 16
    assert capacity.lines[0].startswith("0.92 x 139.81 GiB (H200-SXM) = 128.63 GiB")
    assert capacity.lines[-1] == f"= {capacity.blocks:,} blocks of 16 tokens = {capacity.tokens:,} tokens"


def test_a_million_tokens():
    assert context_lines(resolve_model("llama-2-7b"), 10**6)[1] == "1,000,000 tokens: 488 GiB"
    assert context_lines(resolve_model("llama-3.1-8b"), 10**6)[:2] == [
        "2 x 32 layers x 8 KV heads x 128 x 2 B = 131,072 B a token",
        "1,000,000 tokens: 122 GiB",
    ]
    assert "beyond the model's own context" in context_lines(resolve_model("llama-2-7b"), 10**6)[2]


def test_what_does_not_fit_is_said_with_its_arithmetic():
    model = resolve_model("llama-3.1-70b")
    with pytest.raises(InputError, match=r"does not fit H100-SXM-80GB at tensor_parallel 1: .*GiB weights"):
        kv_capacity(roofline_profile("h100"), model, "bf16", "bf16", 1, 0.92, 8192, 16)
    assert longest_context(roofline_profile("h100"), model, "bf16", "bf16", 1) == 0
    with pytest.raises(InputError, match="expected a share above 0"):
        kv_capacity(roofline_profile("h100"), model, "bf16", "bf16", 1, 1.2, 8192, 16)


def test_cautions_where_the_constant_fails():
    def cautions(gpu: str, name: str, dtype: str, tokens: int) -> str:
        model: ModelSpec = resolve_model(name)
        return " ".join(
            x
            for x in kv_capacity(roofline_profile(gpu, dtype), model, dtype, "bf16", 1, 0.92, tokens, 16).lines
            if x.startswith("caution")
        )

    assert cautions("h200", "llama-3.1-8b", "bf16", 8192) == ""
    assert "8.5 GiB" in cautions("h200", "qwen3-30b-a3b", "fp8", 8192)
    assert "32,768 batched tokens" in cautions("h200", "llama-3.1-8b", "bf16", 32768)
    assert "small card" in cautions("rtx-4090", "llama-3.1-8b", "bf16", 2048)


def test_explicit_blocks_are_kept_and_warned_about():
    capacity = KvCapacity(1000, 16000, ())
    assert explicit_blocks_warning(1000, capacity) is None
    assert (
        explicit_blocks_warning(1500, capacity)
        == "engine.kv_blocks = 1,500 is 50% more than the 1,000 that fit by the arithmetic; kept as given"
    )
