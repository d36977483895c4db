"""A workload as a file that a serving benchmark sends, and the command that sends it.

The one idea: a tool takes arrival times, a number of sessions at once, or sessions whose turns follow their answers;
what it takes is written, and everything else is said once.

    >>> sent = write(workload, "vllm", Path("S.jsonl"), Target("meta-llama/Llama-3.1-8B"), block_tokens=16)
    >>> print(sent.command)

Formats from the tools' sources: vLLM's `custom` dataset, and `timed_trace` by its options (datasets.py of 0.19 to 0.33,
and a test of block texts), SGLang 0.5.23's `openai` dataset, aiperf 0.13.0's Mooncake loader with `payload` rows,
guidellm 0.8.1's `mooncake` data and `json_file`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workloads.columns import Workload
from workloads.convert import milliseconds, row_before, to_mooncake, write_rows
from workloads.errors import InputError
from workloads.prompt_ids import CHARACTERS_PER_TOKEN, HIGHEST_ID, LOWEST_ID, Prompts, Words, repeated_answers

URL = "http://localhost:8000"


class Target(NamedTuple):
    """Who is asked."""

    model: str  #: as the server calls it
    url: str = URL
    tokenizer: Any = None  #: of the `tokenizers` package, for tools that send text


class Sent(NamedTuple):
    """What was written, and what the tool makes of it."""

    command: str
    says: tuple[str, ...]
    cannot: tuple[str, ...]  #: what the file or the tool cannot express


def paced_by(workload: Workload) -> str:
    """What decides when requests are sent: "times", "places" (so many requests at once), or "answers" of others."""
    if (workload.column("after") >= 0).any():
        return "answers"
    if workload.concurrency is None:
        return "times"
    return "answers" if workload.paced or workload.turnaround_s else "places"


def takes(tool: str, workload: Workload) -> bool:
    """Whether the tool can send it in its own order; else the caller gives times instead, those of a simulation."""
    follows = workload.column("after") >= 0
    if tool == "aiperf":
        own = workload.column("after") == row_before(workload)
        return bool(own[follows].all()) and not workload.paced and not workload.turnaround_s
    if tool == "mooncake":
        return bool((row_before(workload)[follows] >= 0).all()) and workload.concurrency is None
    return paced_by(workload) != "answers"


def write(workload: Workload, tool: str, path: Path, target: Target, block_tokens: int) -> Sent:
    """Write `path` for one of `TOOLS`. InputError for a path that cannot be written, and where `takes` says no."""
    if not takes(tool, workload):
        raise InputError(f"{path}: requests wait for answers as {tool} cannot send them, expected times for them")
    if path.suffix != ".jsonl":  # the tools go by it
        raise InputError(f"{path}: expected a name that ends in .jsonl, by which {tool} knows the format")
    sent = TOOLS[tool](workload, path, target, block_tokens)
    return sent._replace(cannot=(*sent.cannot, *_in_no_tool(workload)))


# ---- tools ----


def _mooncake(workload: Workload, path: Path, target: Target, block_tokens: int) -> Sent:
    says, *lost = to_mooncake(workload, path, block_tokens)
    return Sent(f"kvcast workload describe {path} --block-tokens {block_tokens}", (says,), tuple(lost))


def _vllm(workload: Workload, path: Path, target: Target, block_tokens: int) -> Sent:
    common: list[object] = [
        "vllm",
        "bench",
        "serve",
        "--backend",
        "vllm",
        "--base-url",
        target.url,
        "--endpoint",
        "/v1/completions",
    ]
    common += ["--model", target.model, "--dataset-path", path, "--num-prompts", len(workload), "--no-oversample"]
    common += ["--disable-shuffle", "--ignore-eos", "--save-result", "--save-detailed"]
    if paced_by(workload) == "times":
        says, cannot = _blocks(workload, path, block_tokens)
        common += ["--dataset-name", "timed_trace", "--self-timed", "--timed-trace-sec-multiplier", "0.001"]
        common += ["--timed-trace-chunk-hash-size", block_tokens]
        made = "the tool makes the texts of blocks up: prompts may be some tokens off after it decoded them"
        return Sent(f"PYTHONHASHSEED=0 {_line(common)}", says, (*cannot, made))
    says, cannot = _texts(workload, path, target, lambda text, output: {"prompt": text, "output_tokens": output})
    common += ["--dataset-name", "custom", "--custom-output-len", -1, "--skip-chat-template"]
    return Sent(_line([*common, "--max-concurrency", workload.concurrency]), says, cannot)


def _sglang(workload: Workload, path: Path, target: Target, block_tokens: int) -> Sent:
    def row(text: str, output: int) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": output}

    says, cannot = _texts(workload, path, target, row)
    words: list[object] = [
        "python",
        "-m",
        "sglang.bench_serving",
        "--backend",
        "sglang-oai-chat",
        "--base-url",
        target.url,
    ]
    words += ["--model", target.model, "--dataset-name", "openai", "--dataset-path", path]
    words += ["--num-prompts", len(workload), "--output-details", "--cache-report"]
    chat = "the chat template adds its tokens to every prompt"
    if paced_by(workload) == "places":
        return Sent(_line([*words, "--max-concurrency", workload.concurrency]), says, (*cannot, chat))
    last_s = float(np.nanmax(workload.arrival_s))
    rate = ["--request-rate", f"{len(workload) / last_s:.6g}"] if last_s > 0 else []
    times = "arrival times: rows of this data set have none, so they come as a Poisson process of the same mean rate"
    return Sent(_line([*words, *rate]), says, (*cannot, chat, times))


def _aiperf(workload: Workload, path: Path, target: Target, block_tokens: int) -> Sent:
    prompts = Prompts(workload, HIGHEST_ID - LOWEST_ID + 1)
    write_rows(path, _payloads(workload, prompts, target.model))
    words: list[object] = [
        "aiperf",
        "profile",
        "--model",
        target.model,
        "--tokenizer",
        target.model,
        "--url",
        target.url,
    ]
    words += ["--endpoint-type", "completions", "--streaming", "--use-server-token-count", "--input-file", path]
    words += ["--custom-dataset-type", "mooncake_trace"]
    if workload.concurrency is None:
        words += ["--fixed-schedule"]
    else:
        words += ["--no-fixed-schedule", "--concurrency", workload.concurrency]
        words += ["--num-conversations", len(np.unique(workload.column("session_id")))]
    says = f"wrote {len(workload)} requests to {path.name}: token ids {LOWEST_ID} to {HIGHEST_ID}, as long as simulated"
    return Sent(_line(words), (says,), _crowded(prompts))


def _guidellm(workload: Workload, path: Path, target: Target, block_tokens: int) -> Sent:
    server = f"kind=openai_http,target={target.url},model={target.model},request_format=/v1/completions"
    words: list[object] = ["guidellm", "run", "--backend", server]
    if paced_by(workload) == "times":
        says, cannot = _blocks(workload, path, block_tokens)
        data = f"kind=mooncake,source.kind=json_file,source.path={path},time_scale=0.001"
        words += ["--data", f"{data},hash_id_block_size={block_tokens}", "--profile", "kind=replay"]
        made = "the tool makes the texts of blocks up: prompts may be some tokens off after it decoded them"
        return Sent(_line(words), says, (*cannot, made))
    says, cannot = _texts(workload, path, target, lambda text, output: {"prompt": text, "output_tokens_count": output})
    words += ["--data", f"kind=json_file,path={path}", "--profile", f"kind=concurrent,streams={workload.concurrency}"]
    words += ["--constraint", f"kind=max_requests,count={len(workload)}"]
    return Sent(_line(words), says, cannot)


TOOLS: dict[str, Callable[[Workload, Path, Target, int], Sent]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "aiperf": _aiperf,
    "guidellm": _guidellm,
    "mooncake": _mooncake,
}
"""Tool -> its writer."""


# ---- rows ----


def _blocks(workload: Workload, path: Path, block_tokens: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Times, lengths and ids of blocks, as Mooncake's rows."""
    says, *lost = to_mooncake(workload, path, block_tokens)
    return (says,), tuple(lost)


def _texts(
    workload: Workload, path: Path, target: Target, row: Callable[[str, int], dict[str, Any]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A text and a number of tokens to answer a row."""
    words = Words(target.tokenizer)
    prompts = Prompts(workload, len(words.words))
    output = workload.output_tokens.tolist()
    write_rows(path, (row(words.text(prompts.of(r)), output[r]) for r in range(len(workload))))
    counted = (
        f"words of {CHARACTERS_PER_TOKEN} characters, taken to be a token each; --tokenizer FILE makes that exact"
        if target.tokenizer is None
        else "as many tokens as simulated, counted by the tokenizer prompt by prompt"
    )
    begin = "a server that puts a token before every text (BOS) has one more a prompt"
    return (f"wrote {len(workload)} requests to {path.name}: {counted}",), (begin, *_crowded(prompts))


def _payloads(workload: Workload, prompts: Prompts, model: str) -> Iterator[dict[str, Any]]:
    """Requests as they are sent, with times in ms: a row with a delay follows its session's row before it."""
    after, delay_s = workload.column("after"), workload.column("delay_s")
    sessions, timed = workload.column("session_id"), workload.concurrency is None
    many = len(np.unique(sessions)) < len(workload)
    for r in range(len(workload)):
        output = int(workload.output_tokens[r])
        row: dict[str, Any] = {"session_id": str(sessions[r])} if many else {}
        if after[r] >= 0:
            row["delay"] = milliseconds(delay_s[r])
        elif timed:
            row["timestamp"] = milliseconds(workload.arrival_s[r])
        payload = {
            "model": model,
            "prompt": (prompts.of(r) + LOWEST_ID).tolist(),
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield row | {"output_length": output, "payload": payload}


# ---- what is said ----


def _line(words: Sequence[object]) -> str:
    return shlex.join(map(str, words))


def _crowded(prompts: Prompts) -> tuple[str, ...]:
    if not prompts.crowded:
        return ()
    return (
        f"{prompts.crowded} texts begin with a token that another text in their place begins with: those prompts share"
        f" a token or two more than simulated ({prompts.symbols} first tokens are told apart)",
    )


def _in_no_tool(workload: Workload) -> tuple[str, ...]:
    lost = []
    if tokens := repeated_answers(workload):
        share = tokens / int(workload.prompt_tokens.sum())
        lost.append(
            f"{tokens:,} prompt tokens ({share:.1%}) repeat earlier answers: a server that answered something else has"
            " to compute them, where kvcast may hit them"
        )
    if np.any(workload.tree.parent[1:] < 0):
        lost.append("tenants that share nothing are sent as other texts, not with a cache salt")
    if not workload.prefix_identity:
        lost.append("the source says nothing about shared text: all prompts are different texts")
    for name, what in (("priority", "priorities"), ("lora", "adapters")):
        column = getattr(workload, name)
        if column is not None and np.any(column != column[0]):
            lost.append(f"{what}: no row has them")
    return tuple(lost)
