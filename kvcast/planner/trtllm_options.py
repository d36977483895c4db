"""The options file of trtllm-serve (`--config`, once `--extra_llm_api_options`) as flags, and the other way round.

The one idea: an option inside a section is a flag with a dot, `--kv_cache_config.tokens_per_block 32`, so that one
table reads both. Of YAML only what such files use is read: `key: value`, sections by indentation, and JSON.

    >>> flags_of("kv_cache_config:\\n  tokens_per_block: 64")
    [('--kv-cache-config.tokens-per-block', '64')]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.scenario import Scenario

FILES = ("--config", "--extra-llm-api-options")


def expanded(
    flags: list[tuple[str, str | None]], notes: list[str], folder: Path = Path()
) -> list[tuple[str, str | None]]:
    """The flags, each file of options replaced by what is in it (it comes last: the file overwrites the command)."""
    plain = [one for one in flags if one[0] not in FILES]
    for flag, name in flags:
        if flag not in FILES or name is None:
            continue
        try:
            plain += flags_of((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            notes.append(f"{name}: this options file is not here, what it sets is not taken over")
    return plain


def flags_of(content: str) -> list[tuple[str, str | None]]:
    """(flag, value) of every option."""
    try:
        return list(_of_json(json.loads(content), ""))
    except (ValueError, RecursionError):
        return list(_of_yaml(content))


def _of_json(tree: Any, above: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _of_json(value, f"{above}.{name}" if above else str(name))
    else:
        yield _flag(above), tree if isinstance(tree, str) else json.dumps(tree)


def _of_yaml(content: str) -> Iterator[tuple[str, str]]:
    sections: list[tuple[int, str]] = []
    for line in content.splitlines():
        text = line.split(" #")[0].strip()
        if not text or text.startswith("#") or text == "---":
            continue
        indent = len(line) - len(line.lstrip())
        while sections and indent <= sections[-1][0]:
            sections.pop()
        name, _, value = text.partition(":")
        path = ".".join([*(section for _, section in sections), name.strip()])
        if value.strip():
            yield _flag(path), value.strip().strip("\"'")
        else:
            sections.append((indent, name.strip()))


def _flag(path: str) -> str:
    return f"--{path.replace('_', '-')}"


def options_of(given: Scenario) -> dict[str, Any]:
    """What a resolved scenario sets that trtllm-serve has no flag for."""
    e, reuse = given.engine, given.cache.enabled
    blocks = {"tokens_per_block": e.block_size, "enable_block_reuse": reuse, "enable_partial_reuse": False}
    blocks |= {"max_tokens": (e.kv_blocks or 0) * e.block_size}
    waits = {
        key: getattr(e, key)
        for key in ("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio")
        if e.batch_wait_timeout_iters
    }
    return {
        "kv_cache_config": blocks | ({"dtype": "fp8"} if given.model.kv_dtype == "fp8" else {}),
        "scheduler_config": {"capacity_scheduler_policy": e.capacity_policy.upper().replace("-", "_")},
        "enable_chunked_prefill": e.chunked_context,
        "disable_overlap_scheduler": not e.overlap_scheduler,
        **({"enable_attention_dp": True} if given.hardware.attention_dp > 1 else {}),
        **waits,
    }
