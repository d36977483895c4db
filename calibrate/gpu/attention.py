"""Whose attention a calibration times: kvcast's own kernels, torch's, FlashInfer's or vLLM's.

The one idea: whoever it is gets the same paged cache and block tables and answers with calls that take no argument, so
that all planning lies before the clock. kvcast's kernels are the default and the reference; a package is imported only
when it is asked for.

    python -m calibrate.gpu.measure --model tiny --device cpu --operators attention --attention torch --out points.jsonl
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from calibrate.gpu.backend import TorchBackend
from workloads.errors import InputError

Call = Callable[[], Any]
WORKSPACE_BYTES = 128 * 2**20
PACKAGES = {"flashinfer": "flashinfer-python", "vllm": "vllm"}


class Attention(Protocol):
    """Calls of one shape, one for each of the block tables that take turns.

    q [tokens or sequences, heads, d]; k_cache and v_cache [blocks, block, kv_heads, d]; a table [sequences, blocks]."""

    name: str

    def about(self) -> str:
        """Package and version."""
        ...

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], new: Sequence[int], cached: Sequence[int]
    ) -> list[Call]:
        """Causal attention of packed queries over each sequence's cached and new keys."""
        ...

    def decode(self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], contexts: Sequence[int]) -> list[Call]:
        """One query a sequence over its context, its own key included."""
        ...


def attention_for(name: str, backend: TorchBackend, device: str) -> Attention:
    """By name; InputError for a package that is not installed."""
    if name == "kvcast":
        return OwnAttention(backend)
    if name == "torch":
        return TorchAttention()
    try:
        module = importlib.import_module(name)
    except ImportError as e:
        raise InputError(
            f"--attention {name}: the package {PACKAGES[name]} cannot be imported ({e}); install it, or take kvcast"
        ) from None
    return FlashInferAttention(module, device) if name == "flashinfer" else VllmAttention(module)


class OwnAttention:
    """The backend's: Triton kernels on a GPU, plain torch elsewhere."""

    name = "kvcast"

    def __init__(self, backend: TorchBackend):
        self.backend = backend

    def about(self) -> str:
        return f"kvcast ({self.backend.name})"

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], new: Sequence[int], cached: Sequence[int]
    ) -> list[Call]:
        work = self.backend.prefill_work(new, cached, q.shape[1], k.shape[2], q.shape[2])
        return [partial(self.backend.prefill_attention, q, k, v, table, work) for table in tables]

    def decode(self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], contexts: Sequence[int]) -> list[Call]:
        work = self.backend.decode_work(contexts, q.shape[1], k.shape[2], q.shape[2])
        return [partial(self.backend.decode_attention, q, k, v, table, work) for table in tables]


class TorchAttention:
    """scaled_dot_product_attention, sequence by sequence over keys gathered beforehand: torch reads no paged cache, so
    the gathering is not timed and large batches pay a launch a sequence."""

    name = "torch"

    def about(self) -> str:
        return f"torch {torch.__version__} (scaled_dot_product_attention)"

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], new: Sequence[int], cached: Sequence[int]
    ) -> list[Call]:
        lengths = [n + c for n, c in zip(new, cached, strict=True)]
        return [partial(_each, _with_masks(_split(q, new), _gathered(k, v, table, lengths))) for table in tables]

    def decode(self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], contexts: Sequence[int]) -> list[Call]:
        ones = [1] * len(contexts)
        if len(set(contexts)) > 1:
            return [partial(_each, _with_masks(_split(q, ones), _gathered(k, v, table, contexts))) for table in tables]
        queries = q.unsqueeze(2)
        stacked = [_stacked(_gathered(k, v, table, contexts)) for table in tables]
        return [partial(_sdpa, queries, keys, values, None) for keys, values in stacked]


def _split(q: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """[heads, n, d] of every sequence."""
    return [part.transpose(0, 1).unsqueeze(0).contiguous() for part in q.split(list(counts))]


def _gathered(k: Tensor, v: Tensor, table: Tensor, lengths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, kv_heads, tokens, d] of every sequence."""
    found = []
    for row, length in zip(table, lengths, strict=True):
        blocks = row[: -(-length // k.shape[1])].long()
        pair = tuple(c[blocks].flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0).contiguous() for c in (k, v))
        found.append((pair[0], pair[1]))
    return found


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([k for k, _ in pairs]), torch.cat([v for _, v in pairs])


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """[batch, heads, new, d]."""
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def _mask(q: Tensor, k: Tensor) -> Any:
    """New queries are the last of the keys; one sees them all. (torch.nn.attention loads triton, which decides then
    whether it interprets.)"""
    if q.shape[2] == 1:
        return None
    return importlib.import_module("torch.nn.attention.bias").causal_lower_right(q.shape[2], k.shape[2])


def _each(parts: list[tuple[Tensor, Tensor, Tensor, Any]]) -> list[Tensor]:
    return [_sdpa(*part) for part in parts]


def _with_masks(queries: list[Tensor], pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor, Tensor, Any]]:
    return [(q, k, v, _mask(q, k)) for q, (k, v) in zip(queries, pairs, strict=True)]


class FlashInferAttention:
    """FlashInfer's paged wrappers, planned before the clock; the float workspace is shared, as calls follow each
    other."""

    name = "flashinfer"

    def __init__(self, module: Any, device: str):
        self.module, self.device = module, device
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def about(self) -> str:
        return f"flashinfer {self.module.__version__}"

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], new: Sequence[int], cached: Sequence[int]
    ) -> list[Call]:
        lengths = [n + c for n, c in zip(new, cached, strict=True)]
        starts = _starts(new, self.device)
        calls: list[Call] = []
        for table in tables:
            wrapper = self.module.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD")
            pages = _pages(table, lengths, k.shape[1], self.device)
            shape = (q.shape[1], k.shape[2], q.shape[2], k.shape[1])
            wrapper.plan(starts, *pages, *shape, causal=True, q_data_type=q.dtype, kv_data_type=k.dtype)
            calls.append(partial(wrapper.run, q, (k, v)))
        return calls

    def decode(self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], contexts: Sequence[int]) -> list[Call]:
        calls: list[Call] = []
        for table in tables:
            wrapper = self.module.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD")
            pages = _pages(table, contexts, k.shape[1], self.device)
            shape = (q.shape[1], k.shape[2], q.shape[2], k.shape[1])
            wrapper.plan(*pages, *shape, q_data_type=q.dtype, kv_data_type=k.dtype)
            calls.append(partial(wrapper.run, q, (k, v)))
        return calls


def _starts(counts: Sequence[int], device: str) -> Tensor:
    """Where every sequence begins, and the end: int32 [sequences + 1]."""
    ends = torch.tensor(list(counts), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return torch.cat([torch.zeros(1, dtype=torch.int32), ends]).to(device)


def _pages(table: Tensor, lengths: Sequence[int], block: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """(starts, pages, tokens in the last page) of the sequences of a block table, without padding."""
    counts = [-(-length // block) for length in lengths]
    pages = torch.cat([row[:count] for row, count in zip(table, counts, strict=True)]).to(torch.int32)
    last = torch.tensor([(length - 1) % block + 1 for length in lengths], dtype=torch.int32, device=device)
    return _starts(counts, device), pages, last


class VllmAttention:
    """The FlashAttention that vLLM bundles, on its block tables."""

    name = "vllm"

    def __init__(self, module: Any):
        self.version = str(module.__version__)
        try:
            self.call = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
        except (ImportError, AttributeError) as e:
            raise InputError(
                f"--attention vllm: vLLM {self.version} has no vllm_flash_attn.flash_attn_varlen_func ({e}); expected a"
                " build with FlashAttention"
            ) from None

    def about(self) -> str:
        return f"vllm {self.version} (vllm_flash_attn)"

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], new: Sequence[int], cached: Sequence[int]
    ) -> list[Call]:
        return self._calls(q, k, v, tables, new, [n + c for n, c in zip(new, cached, strict=True)])

    def decode(self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], contexts: Sequence[int]) -> list[Call]:
        return self._calls(q, k, v, tables, [1] * len(contexts), contexts)

    def _calls(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Sequence[Tensor], new: Sequence[int], lengths: Sequence[int]
    ) -> list[Call]:
        device = str(q.device)
        known = {
            "cu_seqlens_q": _starts(new, device),
            "max_seqlen_q": max(new),
            "seqused_k": torch.tensor(list(lengths), dtype=torch.int32, device=device),
            "max_seqlen_k": max(lengths),
            "causal": True,
        }
        return [partial(self.call, q=q, k=k, v=v, block_table=table, **known) for table in tables]
