"""KV blocks from the start-up log of a real engine: the truth that the memory arithmetic only estimates.

The one idea: an engine prints its cache once at start-up. vLLM: "GPU KV cache size: 486,800 tokens" (before 2025-02 "#
GPU blocks: 30425"); SGLang: "KV Cache is allocated. #tokens: 439452" and "max_total_num_tokens=439452". Tokens are
divided by the block size.

    kvcast profile kv-log server.log
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from workloads.errors import InputError

VLLM_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
VLLM_BLOCKS = re.compile(r"# (?:GPU|CUDA) blocks: (\d+)")
SGLANG_TOKENS = re.compile(r"(?:KV Cache is allocated\. .*?#tokens: |max_total_num_tokens=)(\d+)")
BLOCK_SIZE = re.compile(r"(?:block_size|page_size)['\"]?\s*[=:]\s*(\d+)")
DEFAULT_BLOCK = {"vllm": 16, "sglang": 1}


@dataclass(frozen=True)
class KvLog:
    """What a log says of the KV cache."""

    engine: str  #: vllm or sglang
    blocks: int
    block_size: int
    line: int  #: of the log
    assumed_block_size: bool  #: the log does not say; the engine's default

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_size


def read_kv_log(path: Path, block_size: int | None = None) -> KvLog:
    """The last cache that the log reports (an engine restarted in one log counts as its last start).

    block_size: when the log does not name it; else the engine's default (vLLM 16, SGLang 1). InputError without such a
    line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise InputError(f"{path}: cannot read ({e.strerror}); expected the start-up log of vLLM or SGLang") from None
    found: tuple[str, int, bool, int] | None = None  # engine, count, in blocks, line
    named: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        size = BLOCK_SIZE.search(line)
        named = int(size[1]) if size else named
        for engine, pattern, in_blocks in (
            ("vllm", VLLM_TOKENS, False),
            ("vllm", VLLM_BLOCKS, True),
            ("sglang", SGLANG_TOKENS, False),
        ):
            match = pattern.search(line)
            if match:
                found = (engine, int(match[1].replace(",", "")), in_blocks, number)
    if found is None:
        raise InputError(
            f"{path}: no line with a KV cache size; expected 'GPU KV cache size: N tokens', '# GPU blocks: N' (vLLM) or"
            " '#tokens: N' (SGLang)"
        )
    engine, count, in_blocks, number = found
    size_used = block_size or named or DEFAULT_BLOCK[engine]
    blocks = count if in_blocks else count // size_used
    if blocks < 1:
        raise InputError(f"{path}, line {number}: {count} tokens are less than one block of {size_used}")
    return KvLog(engine, blocks, size_used, number, block_size is None and named is None)


def log_lines(log: KvLog) -> list[str]:
    """For people: what to put into a scenario."""
    assumed = f" (the log does not name a block size: {log.engine}'s default)" if log.assumed_block_size else ""
    return [
        (
            f"{log.engine}: {log.blocks:,} blocks of {log.block_size} tokens = {log.tokens:,} tokens{assumed}, line"
            f" {log.line} of the log"
        ),
        f"--set engine.kv_blocks={log.blocks} --set engine.block_size={log.block_size}",
    ]
