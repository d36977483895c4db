"""A request's life in words, for whoever has not seen an inference engine before.

>>> print(describe(one_life.of_textbook(prepared)))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcast import text
from kvcast.present.explain_text import MEANING

NAMES = {
    "frontend": "front end",
    "queued": "queue",
    "loading": "loading",
    "cache": "prefix cache",
    "prefill": "prefill",
    "token": "a token",
    "decode": "decode",
    "preempted": "preempted",
    "done": "done",
}
"""What a step is called."""


def describe(lives: Sequence[dict[str, Any]]) -> str:
    """Each request: what it is, and its steps."""
    return "\n\n".join("\n".join([headline(life), "", *_steps(life)]) for life in lives)


def headline(life: dict[str, Any]) -> str:
    """A request in a line: tokens it has to compute, and what it waited for."""
    told = (
        f"request {life['request']} ({life['class']}): {life['prompt_tokens']:,} prompt tokens,"
        f" {life['hit_tokens']:,} from the cache, {life['new_tokens']:,} new (blocks of {life['block_size']});"
        f" {life['output_tokens']:,} output tokens"
    )
    if life["ttft_s"] is None:
        return f"{told}; {life['status'].replace('_', ' ')}"
    tpot = f", TPOT {text.seconds(life['tpot_s'])}" if life["tpot_s"] is not None else ""
    return f"{told}; TTFT {text.seconds(life['ttft_s'])}{tpot}"


def says(life: dict[str, Any], step: dict[str, Any]) -> str:
    """A step in a sentence or two."""
    return WORDS[step["what"]](life, step)


def _steps(life: dict[str, Any]) -> list[str]:
    if not life["steps"]:
        return [f"  It never reached an engine: {life['status'].replace('_', ' ')}."]
    return [
        f"  {text.seconds(step['start_s']):>8}  {NAMES[step['what']]:<12}  {says(life, step)}" for step in life["steps"]
    ]


def _spent(step: dict[str, Any]) -> str:
    return text.seconds(step["end_s"] - step["start_s"])


def _frontend(_: dict[str, Any], step: dict[str, Any]) -> str:
    return f"The server's front end reads the text and makes tokens of it: {_spent(step)}."


def _loading(_: dict[str, Any], step: dict[str, Any]) -> str:
    return f"Blocks that had been moved out of GPU memory are loaded back: {_spent(step)}."


def _queued(life: dict[str, Any], step: dict[str, Any]) -> str:
    if step["end_s"] - step["start_s"] < 1e-9:
        return "It does not wait: the next step of the engine takes it."
    return (
        f"It waits {_spent(step)} for a place in the batch of replica {life['replica']}: the step in progress must end,"
        " and those before it come first."
    )


def _cache(life: dict[str, Any], _: dict[str, Any]) -> str:
    prompt, hit, block, before = (life[key] for key in ("prompt_tokens", "hit_tokens", "block_size", "before"))
    if before is None:
        return f"No earlier request on this replica begins alike: all {prompt:,} tokens are new."
    told = f"Its first {before['tokens']:,} tokens are also those of request {before['request']} ({before['class']})."
    if not hit:
        return f"{told} None of them comes from the cache: {_why(life)}."
    told += (
        f" {hit:,} tokens come from the cache, {hit // block:,} whole blocks of {block}: {prompt - hit:,} are left to"
        " compute."
    )
    beyond = before["tokens"] - hit
    if 0 < beyond < block:
        return f"{told} The {beyond:,} beyond the last whole block are computed again."
    return f"{told} Of these: {_why(life)}." if beyond >= block else told


def _why(life: dict[str, Any]) -> str:
    """Where the missed tokens that some request had computed went."""
    named = {cause: n for cause, n in life["missed"].items() if cause != "cold"} or life["missed"]
    return ", ".join(f"{tokens:,} {MEANING[cause]}" for cause, tokens in named.items())


def _held(life: dict[str, Any], step: dict[str, Any]) -> str:
    return f"{step['kv_tokens']:,} tokens, {step['kv_blocks']:,} blocks of {life['block_size']}"


def _prefill(life: dict[str, Any], step: dict[str, Any]) -> str:
    what = "What the preemption lost is computed again" if step["again"] else "Prefill"
    how = f"in {step['chunks']} chunks" if step["chunks"] > 1 else "in one step"
    rest = f". {step['left']:,} are left for the next step" if step["left"] else ""
    return (
        f"{what}: {step['tokens']:,} tokens {how}. Their keys and values are in KV memory: {_held(life, step)}{rest}."
    )


def _token(life: dict[str, Any], step: dict[str, Any]) -> str:
    if step["again"]:
        return "The same step gives the next token of the answer."
    return f"The last prefill step gives the first token of the answer: TTFT {text.seconds(life['ttft_s'])}."


def _decode(life: dict[str, Any], step: dict[str, Any]) -> str:
    seconds = step["end_s"] - step["start_s"]
    each = f", {text.seconds(seconds / step['tokens'])} each" if step["tokens"] else ""
    return (
        f"Decode: each step gives every request of the batch its next token, here {step['tokens']:,}{each}. Each adds"
        f" its keys and values: {_held(life, step)}."
    )


def _preempted(life: dict[str, Any], step: dict[str, Any]) -> str:
    blocks = -(-step["lost"] // life["block_size"])
    return (
        f"Preempted: KV memory is full, and its {blocks:,} blocks may go to other requests. It waits {_spent(step)} to"
        " come back."
    )


def _done(life: dict[str, Any], step: dict[str, Any]) -> str:
    again, full = life["again"], step["kept"] // life["block_size"]
    told = f"Done, {text.seconds(life['e2e_s'])} after it came."
    told += f" Its {full:,} full blocks stay in the cache until others need the memory."
    if again is None:
        return f"{told} No later request begins alike."
    return (
        f"{told} Most of it is asked for again by request {again['request']} ({again['class']}), admitted"
        f" {text.seconds(again['seconds'])} after this one on replica {again['replica']}: {again['tokens']:,} tokens"
        f" are the same, and {again['hit_tokens']:,} of that prompt came from the cache."
    )


WORDS = {
    "frontend": _frontend,
    "queued": _queued,
    "loading": _loading,
    "cache": _cache,
    "prefill": _prefill,
    "token": _token,
    "decode": _decode,
    "preempted": _preempted,
    "done": _done,
}
