"""vllm-rtx-pro-6000: the same 300 requests on vLLM 0.19 and an RTX PRO 6000 (`vllm_rtx4090` has the rules).

This card's memory holds them all, so it tests step times more than admission.

    $ kvcast validate vllm-rtx-pro-6000
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvcast.validation import Outcome
from kvcast.validation.vllm_rtx4090 import score


def run(data_dir: Path, **_: Any) -> Outcome:
    return score(data_dir, "vllm-rtx-pro-6000", "rtxpro6000_llama-3.1-8b")
