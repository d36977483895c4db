"""KV blocks from the start-up log of a real engine: the truth that the memory arithmetic only estimates.

The one idea: an engine prints its cache once at start-up. vLLM: "GPU KV cache size: 486,800 tokens" (before 2025-02 "#
GPU blocks: 30425"); SGLang: "KV Cache is allocated. #tokens: 439452" and "max_total_num_tokens=439452". Tokens are
divided by the block size. vLLM counts every layer as if it kept every token; where layers with a window or a state keep
less, "Maximum concurrency for 32,768 tokens per request: 33.04x" says how many tokens hold. Several engines in one log
(EngineCore_DP0, EngineCore_DP1) are as many replicas.

    kvcast profile kv-log server.log
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from workloads.errors import InputError

VLLM_TOKENS = re.compile(r"GPU(?: \+ \w+)* KV cache size: ([\d,]+) tokens")
VLLM_BLOCKS = re.compile(r"# (?:GPU|CUDA) blocks: (\d+)")
TRTLLM_TOKENS = re.compile(r"max tokens in paged KV cache \((\d+)\)")
SGLANG_TOKENS = re.compile(r"(?:KV Cache is allocated\. .*?#tokens: |max_total_num_tokens=)(\d+)")
CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: (\d+(?:\.\d+)?)x")
BLOCK_SIZE = re.compile(
    r"(?:(?<![\w-])(?:block_size|page_size)['\"]?\s*[=:]\s*|Setting attention block size to |Block size is set to "
    r"|Setting kv cache block size to |[Tt]okens per block(?:: |=))([1-9]\d{0,8})"
)
ENGINE = re.compile(r"EngineCore(?:Actor)?_(?:DP)?(\d+)|\[\d{4}-\d\d-\d\d [^\]]*?\bDP(\d+)\b")
HYBRID = 1.02
"""More tokens than this share of the printed ones hold at once: some layers keep less than every token."""
DEFAULT_BLOCK = {"vllm": 16, "sglang": 1, "trtllm": 32}


@dataclass(frozen=True)
class KvLog:
    """What a log says of the KV cache of one replica."""

    engine: str  #: vllm, sglang or trtllm
    blocks: int
    block_size: int
    line: int  #: of the log
    assumed_block_size: bool  #: the log does not say; the engine's default
    replicas: tuple[int, ...] = ()  #: tokens of each engine in the log, when it has several
    printed: int = 0  #: tokens that a hybrid model's engine prints, fewer than hold
    concurrency: tuple[int, float] | None = None  #: of a hybrid model: tokens of a request, and how many of those hold
    ragged: int = 0  #: tokens that the engine prints, where they are no multiple of the assumed block size

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_size


@dataclass(frozen=True)
class _Found:
    engine: str
    count: int
    in_blocks: bool
    line: int
    concurrency: tuple[int, float] | None = None

    def tokens(self, block_size: int) -> int:
        return self.count * block_size if self.in_blocks else self.count

    def holds(self, block_size: int) -> int:
        """Tokens that hold at once, those of requests of full length where that is more than the printed ones."""
        printed = self.tokens(block_size)
        if self.concurrency is None:
            return printed
        length, times = self.concurrency
        return int(length * times) if length * times > HYBRID * printed else printed


def read_kv_log(path: Path, block_size: int | None = None) -> KvLog:
    """The last cache that each engine in the log reports (one restarted in one log counts as its last start); of
    several engines the smallest.

    block_size: when the log does not name it; else the engine's default (vLLM 16, SGLang 1). InputError without such a
    line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise InputError(f"{path}: cannot read ({e.strerror}); expected the start-up log of an engine") from None
    found, named = _search(text)
    if not found:
        raise InputError(
            f"{path}: no line with a KV cache size; expected 'GPU KV cache size: N tokens', '# GPU blocks: N' (vLLM),"
            " '#tokens: N' (SGLang) or 'max tokens in paged KV cache (N)' (TensorRT-LLM)"
        )
    size = block_size or named or DEFAULT_BLOCK[found[0].engine]
    least = min(found, key=lambda one: one.holds(size))
    tokens, printed = least.holds(size), least.tokens(size)
    if tokens < size:
        raise InputError(f"{path}, line {least.line}: {tokens} tokens are less than one block of {size}")
    return KvLog(
        least.engine,
        tokens // size,
        size,
        least.line,
        block_size is None and named is None,
        tuple(one.holds(size) for one in found) if len(found) > 1 else (),
        printed if tokens > printed else 0,
        least.concurrency if tokens > printed else None,
        tokens if block_size is None and named is None and tokens % size and tokens == printed else 0,
    )


PATTERNS = (
    ("vllm", VLLM_TOKENS, False),
    ("vllm", VLLM_BLOCKS, True),
    ("sglang", SGLANG_TOKENS, False),
    ("trtllm", TRTLLM_TOKENS, False),
)


def _search(text: str) -> tuple[list[_Found], int | None]:
    """What each engine says last, in the order of their numbers, and the block size that is named.

    Lines one after another are of the ranks of one engine, whose least size it uses."""
    found: dict[str, _Found] = {}
    named: int | None = None
    last, rank = "", False  # the engine of the line before, if that told a size; whether a rank with less spoke before
    for number, line in enumerate(text.splitlines(), 1):
        size = BLOCK_SIZE.search(line)
        named = int(size[1]) if size else named
        labelled = ENGINE.search(line)
        label = (labelled[1] or labelled[2]) if labelled else ""
        told = next(((engine, m, blocks) for engine, pattern, blocks in PATTERNS if (m := pattern.search(line))), None)
        many = CONCURRENCY.search(line)
        if told:
            new = _Found(told[0], int(told[1][1].replace(",", "")), told[2], number)
            rank = f"{label} {told[0]}" == last and found[label].count < new.count
            found[label] = found[label] if rank else new
        if many and label in found and not rank:
            found[label] = replace(found[label], concurrency=(int(many[1].replace(",", "")), float(many[2])))
        last = f"{label} {told[0]}" if told else last if CONCURRENCY.search(line) else ""
    return [found[label] for label in sorted(found, key=lambda label: int(label or -1))], named


def log_lines(log: KvLog) -> list[str]:
    """For people: what to put into a scenario."""
    assumed = f" (the log does not name a block size: {log.engine}'s default)" if log.assumed_block_size else ""
    lines = [
        (
            f"{log.engine}: {log.blocks:,} blocks of {log.block_size} tokens = {log.tokens:,} tokens{assumed}, line"
            f" {log.line} of the log"
        ),
        f"--set engine.kv_blocks={log.blocks} --set engine.block_size={log.block_size}"
        + (f" --set cluster.replicas={len(log.replicas)}" if log.replicas else ""),
    ]
    if log.concurrency is not None:
        length, times = log.concurrency
        lines.append(
            f"hybrid: the {log.printed:,} tokens printed count every layer as if it kept every token; {times:g} x"
            f" {length:,} = {int(length * times):,} tokens hold"
        )
    if log.ragged:
        lines.append(
            f"{log.ragged:,} tokens are no multiple of {log.block_size}: the engine's blocks are of another size, as of"
            " hybrid models; --block-size or engine.block_size says it"
        )
    if log.replicas:
        sizes = ", ".join(f"{tokens:,}" for tokens in log.replicas)
        lines.append(f"{len(log.replicas)} engines, as many replicas: {sizes} tokens; the smallest is taken for all")
    return lines
