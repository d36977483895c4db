"""Attention, rotary embedding and expert GEMMs in Triton, each beside a plain torch reference in fp64.

    from kernels import plan_prefill, prefill_attention, Work

Importing this package needs neither torch nor triton nor a GPU; the first use of a kernel imports them and says in one
line what is missing. Planning (how a batch is cut into work) is numpy only."""

from importlib import import_module
from typing import Any

_HOME = {
    "prefill_attention": "prefill",
    "plan_prefill": "plan",
    "decode_attention": "decode",
    "plan_decode": "plan",
    "Plan": "plan",
    "Work": "attention",
    "rope_and_write": "rope",
    "grouped_gemm": "moe",
    "Config": "configs",
    "config_for": "configs",
    "check_on_device": "checks",
    "rates_on_device": "rates",
}
__all__ = list(_HOME)


class KernelsUnavailableError(ImportError):
    """torch or triton is missing; the message is the one line a person needs."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kernels' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(f"kernels.{_HOME[name]}"), name)
