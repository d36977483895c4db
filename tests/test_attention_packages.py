"""Whose attention a calibration times: every choice computes what the plain torch reference does, on the same paged
cache. FlashInfer and vLLM are stood in for by modules of their documented interface, computed by torch: what is tested
is that pages, starts and lengths are theirs; that the packages themselves agree waits for a GPU (docs/gpu-todo.md)."""

import json
import subprocess
import sys
from types import ModuleType

import pytest

from tests.conftest import require_kernel_tools

require_kernel_tools(__name__)

import torch  # noqa: E402

from calibrate.gpu import attention, collective  # noqa: E402
from calibrate.gpu.attention import attention_for  # noqa: E402
from calibrate.gpu.backend import TorchBackend  # noqa: E402
from calibrate.gpu.devices import CpuCalibration  # noqa: E402
from calibrate.models import resolve_model  # noqa: E402
from calibrate.operators import Point  # noqa: E402
from kvcast.cli import main  # noqa: E402
from workloads.errors import InputError  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 16, 4


def cache(lengths, copies=2):
    """(keys, values, block tables in shuffled order) with NaN in every page that no sequence has."""
    counts = [-(-n // BLOCK) for n in lengths]
    random = torch.Generator().manual_seed(7)
    order = torch.randperm(sum(counts) * copies + 3, generator=random).to(torch.int32)
    shape = (len(order), BLOCK, KV_HEADS, DIM)
    k, v = (torch.full(shape, float("nan"), dtype=torch.float64) for _ in range(2))
    tables, first = [], 0
    for _ in range(copies):
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for row, count in enumerate(counts):
            table[row, :count] = order[first : first + count]
            first += count
            for x in (k, v):
                blocks = table[row, :count].long()
                x[blocks] = torch.randn(count, *shape[1:], dtype=torch.float64, generator=random)
        tables.append(table)
    return k, v, tables


def reference(q, k, v, table, new, lengths):
    """Causal attention in fp64, a query and a head at a time."""
    out, start = [], 0
    for row, (n, length) in enumerate(zip(new, lengths, strict=True)):
        keys, values = (x[table[row].long()].flatten(0, 1)[:length] for x in (k, v))
        for i in range(n):
            seen = length - n + i + 1
            for head in range(HEADS):
                kv = head // (HEADS // KV_HEADS)
                weights = (keys[:seen, kv] @ q[start + i, head] * DIM**-0.5).softmax(0)
                out.append(weights @ values[:seen, kv])
        start += n
    return torch.stack(out).view(-1, HEADS, DIM)


def paged(q, k, v, starts, page_starts, pages, last):
    """What a paged wrapper computes from its own description of the pages."""
    new = (starts[1:] - starts[:-1]).tolist()
    counts = (page_starts[1:] - page_starts[:-1]).tolist()
    lengths = [(count - 1) * BLOCK + tail for count, tail in zip(counts, last.tolist(), strict=True)]
    table = torch.zeros(len(new), max(counts), dtype=torch.int32)
    for row, count in enumerate(counts):
        table[row, :count] = pages[page_starts[row] : page_starts[row] + count]
    return reference(q, k, v, table, new, lengths)


def flashinfer():
    """FlashInfer's interface: plan(..), then run(q, (k, v))."""

    class Prefill:
        def __init__(self, workspace, layout):
            assert (workspace.dtype, layout) == (torch.uint8, "NHD")

        def plan(
            self, starts, page_starts, pages, last, heads, kv_heads, dim, page, *, causal, q_data_type, kv_data_type
        ):
            assert (heads, kv_heads, dim, page, causal) == (HEADS, KV_HEADS, DIM, BLOCK, True)
            assert starts.dtype == page_starts.dtype == pages.dtype == last.dtype == torch.int32
            self.known = (starts, page_starts, pages, last)

        def run(self, q, kv):
            return paged(q, *kv, *self.known)

    class Decode(Prefill):
        def plan(self, page_starts, pages, last, heads, kv_heads, dim, page, *, q_data_type, kv_data_type):
            starts = torch.arange(len(last) + 1, dtype=torch.int32)
            types = {"q_data_type": q_data_type, "kv_data_type": kv_data_type}
            super().plan(starts, page_starts, pages, last, heads, kv_heads, dim, page, causal=True, **types)

    module = ModuleType("flashinfer")
    module.__version__ = "0.0"
    module.BatchPrefillWithPagedKVCacheWrapper, module.BatchDecodeWithPagedKVCacheWrapper = Prefill, Decode
    return {"flashinfer": module}


def vllm():
    """The FlashAttention in vLLM: sequences by cu_seqlens_q and seqused_k over a block table."""

    def flash_attn_varlen_func(q, k, v, *, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, causal, block_table):
        new = (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).tolist()
        assert causal
        assert (max_seqlen_q, max_seqlen_k) == (max(new), int(seqused_k.max()))
        return reference(q, k, v, block_table, new, seqused_k.tolist())

    package, inner = ModuleType("vllm"), ModuleType("vllm.vllm_flash_attn")
    package.__version__ = "0.0"
    inner.flash_attn_varlen_func = flash_attn_varlen_func
    return {"vllm": package, "vllm.vllm_flash_attn": inner}


def chosen(name, monkeypatch):
    for key, module in {**flashinfer(), **vllm()}.items():
        monkeypatch.setitem(sys.modules, key, module)
    monkeypatch.setattr(attention, "WORKSPACE_BYTES", 16)
    return attention_for(name, TorchBackend(), "cpu")


def rows(found):
    """[tokens, heads, d] of whatever shape a choice answers in."""
    if isinstance(found, list):
        return torch.cat([part[0].transpose(0, 1) for part in found])
    return found[:, :, 0] if found.dim() == 4 else found


@pytest.mark.parametrize("name", ["kvcast", "torch", "flashinfer", "vllm"])
def test_every_choice_computes_the_reference(name, monkeypatch):
    who = chosen(name, monkeypatch)
    new, cached = [5, 1, 9], [0, 10, 7]
    k, v, tables = cache([n + c for n, c in zip(new, cached, strict=True)])
    q = torch.randn(sum(new), HEADS, DIM, dtype=torch.float64)
    for call, table in zip(who.prefill(q, k, v, tables, new, cached), tables, strict=True):
        truth = reference(q, k, v, table, new, [n + c for n, c in zip(new, cached, strict=True)])
        assert torch.allclose(rows(call()), truth, atol=1e-12)
    for contexts in ([7, 7, 7], [3, 17, 8]):
        k, v, tables = cache(contexts)
        q = torch.randn(3, HEADS, DIM, dtype=torch.float64)
        for call, table in zip(who.decode(q, k, v, tables, contexts), tables, strict=True):
            assert torch.allclose(rows(call()), reference(q, k, v, table, [1, 1, 1], contexts), atol=1e-12)


def test_a_package_that_is_not_there_is_one_line(capsys, tmp_path):
    with pytest.raises(InputError, match=r"--attention flashinfer: the package flashinfer-python cannot be imported"):
        attention_for("flashinfer", TorchBackend(), "cpu")
    common = ["calibrate", "--model", "tiny", "--device", "cpu", "--attention", "vllm"]
    assert main([*common, "--out", str(tmp_path / "mine")]) == 2
    error = capsys.readouterr().err
    assert "--attention vllm: the package vllm cannot be imported" in error
    assert error.count("\n") == 1


def test_packages_are_imported_only_when_asked_for():
    code = (
        "import sys; from calibrate.gpu.measure import open_device; from calibrate.models import resolve_model as m;"
        "open_device('cpu', m('tiny'), 'bf16'); print([n for n in ('vllm', 'flashinfer') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_kernels_name_the_package(monkeypatch):
    chosen("vllm", monkeypatch)
    device = CpuCalibration(resolve_model("tiny"), "bf16", attention="vllm")
    assert "attention of vllm 0.0 (vllm_flash_attn)" in device.kernels()
    assert "attention of" not in CpuCalibration(resolve_model("tiny"), "bf16").kernels()


def test_fp8_products_are_those_of_the_rounded_inputs():
    device = CpuCalibration(resolve_model("tiny"), "fp8")
    (call, *_) = device.calls(Point("gemm", {"m": 16, "n": 32, "k": 64, "fp8": 1}))
    x, w = call.args[:2]
    assert x.dtype == w.dtype == torch.float8_e4m3fn
    assert torch.allclose(call().float(), x.float() @ w.float(), atol=0.02)


def test_a_rehearsal_on_the_cpu_writes_rows_that_say_so(tmp_path, capsys):
    out = tmp_path / "mine"
    common = ["calibrate", "--model", "tiny", "--device", "cpu", "--operators", "gemm,elementwise,attention"]
    assert main([*common, "--budget-s", "4", "--attention", "torch", "--out", str(out)]) == 0
    assert "NOT A MEASUREMENT OF A GPU: a rehearsal on a CPU" in capsys.readouterr().out
    header = json.loads((out / "operators.json").read_text())
    assert header["gpu"] is None
    assert "scaled_dot_product_attention" in header["operators"]["decode"]["kernels"]
    assert main(["profile", "show", str(out), "--model", "tiny"]) == 0
    assert "NOT A MEASUREMENT OF A GPU" in capsys.readouterr().out


def test_all_reduces_are_timed_by_ranks_together():
    """Over gloo between two processes: a rehearsal of the way, the time says nothing."""
    ranks = collective.Ranks("cpu", 2)
    try:
        samples = ranks.measure(1000)
        assert len(samples) == collective.REPLAYS
        assert min(samples) > 0
    finally:
        ranks.close()
    assert not any(process.is_alive() for process in ranks._processes)
