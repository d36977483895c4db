"""The load generators of vLLM and SGLang: which question their flags ask, and which tool a command starts.

The one idea: a reader takes the flags that say who comes when and how long everything is, and what is left over is
listed. Rules are those of vLLM 0.33 (vllm bench serve, once benchmark_serving.py) and SGLang 0.5.23
(sglang.bench_serving).

    >>> read_benchmark("python -m sglang.bench_serving --dataset-name random --random-input 1024").layers
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from kvcast.benchmarks import other_tools
from kvcast.benchmarks.question import Question, around, fixed, up_to
from kvcast.benchmarks.words import Given, quantity
from kvcast.planner.flag_names import kinds
from kvcast.planner.starts import commands
from workloads.errors import InputError
from workloads.readers.measured import measured

VLLM, SGLANG = "vllm bench serve", "sglang.bench_serving"
WITHOUT_EFFECT = re.compile(
    r"--(label|backend|endpoint.*|base-url|host|port|header|tokenizer.*|disable-tqdm|save-.*|append-result|metadata"
    r"|result-.*|percentile-metrics|metric-percentiles|goodput|request-id-prefix|served-model-name|ready-check-.*|tag"
    r"|insecure|plot-.*|timeline-.*|trust-remote-code|profile.*|output-file|output-details|print-requests"
    r"|cache-report|skip-tokenizer-init|no-stream|temperature|top-[pk]|min-p|flush-cache.*|gsp-fast-prepare"
    r"|fake-prefill|logprobs|extra-body|extra-request-body)"
)
"""Flags that change neither lengths nor arrivals."""
CONTENT = "its lengths are in texts that a tokenizer has to count"


def read_benchmark(command: str, result: str | Path | None = None) -> Question:
    """The question of one benchmark's command. result: what it measured, which also has the lengths of data sets that
    are texts. InputError for a command of none, and for a data set whose lengths are nowhere."""
    for _, words in commands(command):
        found = _tool(words)
        if found is not None:
            read, after = found
            question = read(words[after:], None if result is None else str(result))
            question.result = None if result is None else str(result)
            return question
    raise InputError(
        f"import-bench {command.strip()[:60]!r}: expected vllm bench serve, benchmark_serving.py, python -m"
        " sglang.bench_serving, guidellm benchmark, aiperf profile or genai-perf profile"
    )


Reader = Callable[[list[str], str | None], Question]


def _tool(words: list[str]) -> tuple[Reader, int] | None:
    """(the reader of a command, where its flags begin)."""
    for i, word in enumerate(words):
        program = word.rsplit("/", 1)[-1]
        following = words[i + 1 : i + 3]
        if program == "vllm" and following == ["bench", "serve"]:
            return _vllm, i + 3
        if program == "vllm" and following[:1] == ["bench"]:
            raise InputError(f"vllm bench {' '.join(following[1:])}: expected vllm bench serve, a load on a server")
        if program == "benchmark_serving.py":
            return _vllm, i + 1
        if word in ("sglang.bench_serving", "sglang.benchmark.serving") or program == "bench_serving.py":
            return _sglang, i + 1
        if program == "guidellm" and following[:1] == ["benchmark"]:
            return other_tools.guidellm, i + 2 + (following[1:] == ["run"])
        if program in ("aiperf", "genai-perf") and following[:1] == ["profile"]:
            return (other_tools.aiperf if program == "aiperf" else other_tools.genai_perf), i + 2
    return None


# -- vllm bench serve --------------------------------------------------------------------------------------------------


def _vllm(words: list[str], result: str | None) -> Question:
    given = Given(VLLM, words, tuple(kinds("vllm-bench")))
    name = given.text("--dataset-name") or "random"
    question = Question(VLLM, name, given.whole("--num-prompts", default=1000), seed=given.whole("--seed"))
    question.model = given.text("--model")
    _vllm_arrivals(question, given)
    data = {
        "random": _vllm_random,
        "prefix_repetition": _prefix_repetition,
        "sonnet": _sonnet,
        "burstgpt": _burstgpt,
        "timed_trace": _timed_trace,
    }
    if result is None or name in ("random", "prefix_repetition", "timed_trace"):
        data.get(name, _texts)(question, given)
        if name == "random":
            _older_ratio(question, given, result)
    else:
        _from_result(question, given, result)
    if not given.has("--ignore-eos") and not question.trace:
        question.notes.append("without --ignore-eos a model may end answers before the lengths that are simulated")
    warm = given.whole("--num-warmups")
    if warm:
        question.notes.append(f"{warm} warm-ups before the clock starts: they leave the first prompt in the cache")
    question.not_taken = given.rest(WITHOUT_EFFECT)
    return question


def _vllm_arrivals(question: Question, given: Given) -> None:
    rate = given.number("--request-rate", default=math.inf, unlimited=True)
    burstiness = given.number("--burstiness", default=1.0, unlimited=True) or 1.0
    question.rate = None if rate is None or math.isinf(rate) else rate
    if question.rate == 0:
        raise InputError(f"{VLLM}: --request-rate 0, expected a rate above 0 or inf")
    question.concurrency = given.whole("--max-concurrency") or None
    question.arrival = _gaps(burstiness) | {"exact": True}
    ramp = given.text("--ramp-up-strategy")
    if ramp is not None:
        first, last = given.number("--ramp-up-start-rps"), given.number("--ramp-up-end-rps")
        if not first or not last:
            raise InputError(f"{VLLM}: --ramp-up-strategy {ramp}, expected --ramp-up-start-rps and -end-rps with it")
        question.rate = first
        question.arrival = _gaps(burstiness) | {"ramp_to": last, "ramp": ramp}
    elif question.rate is None and burstiness != 1.0:
        question.notes.append("--burstiness says nothing where all requests are sent at once")


def _gaps(shape: float) -> dict[str, object]:
    """Gamma gaps of this shape: a coefficient of variation of shape ** -1/2."""
    if shape == 1.0:
        return {}
    return {"kind": "gamma", "cv": 0.01 if math.isinf(shape) else min(max(shape**-0.5, 0.01), 100.0)}


def _vllm_random(question: Question, given: Given) -> None:
    length = given.whole("--random-input-len", "--input-len", default=1024)
    answer = given.whole("--random-output-len", "--output-len", default=128)
    asked = given.text("--random-range-ratio")
    ratios = _ratios(asked)
    prefix = given.whole("--random-prefix-len")
    question.layers = [_layer("prefix", "global", fixed(prefix))] if prefix else []
    question.layers.append(_layer("prompt", "dynamic", around(length, ratios[0])))
    question.output = around(answer, ratios[1])


def _older_ratio(question: Question, given: Given, result: str | None) -> None:
    """What --random-range-ratio meant: the prompts that were measured say it, else it is said how it was read."""
    ratio = _ratios(given.text("--random-range-ratio"))
    if not any(ratio):
        return
    length = given.whole("--random-input-len", "--input-len", default=1024)
    answer = given.whole("--random-output-len", "--output-len", default=128)
    older = (up_to(length, ratio[0]), up_to(answer, ratio[1]))
    summary = {} if result is None or (truth := measured(result)) is None else truth.summary
    if summary.get("completed") and "total_input_tokens" in summary:
        mean = summary["total_input_tokens"] / summary["completed"] - given.whole("--random-prefix-len")
        if abs(mean - length * (1 + ratio[0]) / 2) < abs(mean - length):
            question.layers[-1]["tokens"], question.output = older
            rule = "length x r to length, as before vLLM 0.9"
        else:
            rule = "length x (1 - r) to length x (1 + r)"
        question.notes.append(f"--random-range-ratio: {rule}: the {mean:,.0f} prompt tokens measured say so")
        return
    question.notes.append(
        "--random-range-ratio r is read as vLLM has it since 0.9, length x (1 - r) to length x (1 + r); before it, and"
        " in copies of the older script, it is length x r to length: --result tells which"
    )


def _ratios(asked: str | None) -> tuple[float, float]:
    """One number for both, or JSON with input and output."""
    try:
        given = json.loads(asked or "0")
    except (ValueError, RecursionError):
        given = asked
    both = [given.get(name, 0) if isinstance(given, dict) else given for name in ("input", "output")]
    return quantity("--random-range-ratio", both[0]), quantity("--random-range-ratio", both[1])


def _layer(name: str, scope: str, tokens: dict, **more: object) -> dict:
    return {"name": name, "scope": scope, "tokens": tokens, **more}


def _prefix_repetition(question: Question, given: Given) -> None:
    prefixes = given.whole("--prefix-repetition-num-prefixes", default=10)
    asked = question.requests or 0
    if not 0 < prefixes <= asked:
        raise InputError(f"{VLLM}: {prefixes} prefixes for {asked} prompts, expected 1 prompt for each at least")
    question.requests = asked // prefixes * prefixes
    question.layers = [
        _layer("prefix", "project", fixed(given.whole("--prefix-repetition-prefix-len", default=256)), items=prefixes),
        _layer("suffix", "dynamic", fixed(given.whole("--prefix-repetition-suffix-len", default=256))),
    ]
    question.output = fixed(given.whole("--prefix-repetition-output-len", "--output-len", default=128))
    question.notes.append(
        f"each request draws one of the {prefixes} prefixes; the benchmark gives every prefix the same number of them"
    )
    if question.requests != asked:
        question.notes.append(f"{question.requests} requests: {asked} in equal parts for {prefixes} prefixes")
    if given.has("--disable-shuffle"):
        question.notes.append("--disable-shuffle sends a prefix's requests one after another; here they come mixed")


def _sonnet(question: Question, given: Given) -> None:
    length = given.whole("--sonnet-input-len", "--input-len", default=550)
    prefix = given.whole("--sonnet-prefix-len", default=200)
    question.layers = [
        _layer("prefix", "global", fixed(prefix)),
        _layer("lines", "dynamic", fixed(max(length - prefix, 1))),
    ]
    question.output = fixed(given.whole("--sonnet-output-len", "--output-len", default=150))
    given.has("--dataset-path")
    question.notes.append("the poem's lines come to about these lengths; lines that repeat beyond the prefix are not")


def _burstgpt(question: Question, given: Given) -> None:
    path = given.text("--dataset-path")
    if path is None or question.rate is not None:
        _texts(question, given)
    question.trace = {"trace": _beside(path), "format": "burstgpt"}
    question.notes.append("the first rows of the file, where the benchmark draws rows of GPT-4 at random")


def _timed_trace(question: Question, given: Given) -> None:
    path = given.text("--dataset-path")
    if path is None:
        raise InputError(f"{VLLM}: --dataset-name timed_trace, expected --dataset-path with it")
    question.trace, question.rate, question.arrival = {"trace": _beside(path)}, 1.0, {}
    given.has("--self-timed")
    question.notes.append("requests come at the trace's own times")


def _beside(path: str | None) -> str:
    return os.path.abspath(str(path)) if path else ""


def _texts(question: Question, given: Given) -> None:
    if question.name == "burstgpt":
        raise InputError(
            f"{given.tool}: --dataset-name burstgpt draws rows of BurstGPT by its seed; expected --result with the file"
            " of a run that saved every request, or a scenario with [workload] trace = that file"
        )
    raise InputError(
        f"{given.tool}: --dataset-name {question.name}, {CONTENT}; expected --result with the file of a run that saved"
        " every request (--save-detailed, --output-details), whose lengths are then taken"
    )


def _from_result(question: Question, given: Given, result: str) -> None:
    """The lengths of a run that was measured, request by request."""
    question.trace = {"trace": _beside(result)}
    for name in ("--dataset-path", "--sharegpt-output-len", "--custom-output-len", "--hf-output-len", "--output-len"):
        given.has(name)
    given.of("--sonnet-")
    given.of("--hf-")
    if question.rate is not None and question.concurrency is None:
        question.trace["loop"] = "open"  # at the times that the file has
    question.notes.append(
        f"lengths of {question.name} are those of the measured run; which prompts begin alike is in no such file, so"
        " the prefix cache finds nothing"
    )


# -- sglang.bench_serving ----------------------------------------------------------------------------------------------


def _sglang(words: list[str], result: str | None) -> Question:
    given = Given(SGLANG, words, tuple(kinds("sglang-bench")))
    name = given.text("--dataset-name") or "sharegpt"
    question = Question(SGLANG, name, given.whole("--num-prompts", default=1000), seed=given.whole("--seed", default=1))
    question.model = given.text("--model")
    rate = given.number("--request-rate", default=math.inf, unlimited=True)
    question.rate = None if rate is None or math.isinf(rate) else rate
    if question.rate == 0:
        raise InputError(f"{SGLANG}: --request-rate 0, expected a rate above 0 or inf")
    question.concurrency = given.whole("--max-concurrency") or None
    if name in ("random", "random-ids"):
        _sglang_random(question, given)
    elif name == "generated-shared-prefix":
        _shared_prefix(question, given)
    elif name == "mooncake" and given.text("--dataset-path"):
        _mooncake(question, given)
    elif result is not None:
        _from_result(question, given, result)
    else:
        _texts(question, given)
    if given.has("--disable-ignore-eos"):
        question.notes.append("--disable-ignore-eos: a model may end answers before the lengths that are simulated")
    warm = given.whole("--warmup-requests", default=1)
    if warm:
        question.notes.append(f"{warm} warm-up before the clock starts, which leaves the first prompt in the cache")
    question.not_taken = given.rest(WITHOUT_EFFECT)
    return question


def _sglang_random(question: Question, given: Given) -> None:
    ratio = given.number("--random-range-ratio", default=0.0) or 0.0
    length = given.whole("--random-input-len", default=1024)
    answer = given.whole("--random-output-len", default=1024)
    question.layers = [_layer("prompt", "dynamic", up_to(length, ratio))]
    question.output = up_to(answer, ratio)
    given.has("--dataset-path")
    if question.name == "random":
        question.notes.append("prompts are pieces of ShareGPT: that some begin alike is not simulated")


def _shared_prefix(question: Question, given: Given) -> None:
    groups = given.whole("--gsp-num-groups", default=64)
    each = given.whole("--gsp-prompts-per-group", default=16)
    turns = given.whole("--gsp-num-turns", default=1)
    ratio = given.number("--gsp-range-ratio", default=1.0)
    ratio = 1.0 if ratio is None else ratio
    zipf = given.number("--gsp-zipf-alpha", default=0.0) or 0.0
    given.text("--gsp-group-distribution")
    system = up_to(given.whole("--gsp-system-prompt-len", default=2048), ratio)
    said = up_to(given.whole("--gsp-question-len", default=128), ratio)
    more = {"zipf": zipf} if zipf else {}
    question.layers = [
        _layer("system prompt", "project", system, items=groups, **more),
        _layer("question", "dynamic", said),
    ]
    question.output = up_to(given.whole("--gsp-output-len", default=256), ratio)
    question.requests = groups * each * turns
    if turns > 1:
        question.turns, question.turn_input, question.think = fixed(turns), said, fixed(0)
    if not zipf:
        question.notes.append(
            f"each session draws one of the {groups} system prompts; the benchmark gives every one {each} of them"
        )
    if given.has("--gsp-ordered"):
        question.notes.append("--gsp-ordered sends a group's requests one after another; here they come mixed")


def _mooncake(question: Question, given: Given) -> None:
    slower = given.number("--mooncake-slowdown-factor", default=1.0) or 1.0
    question.trace = {"trace": _beside(given.text("--dataset-path")), "format": "mooncake", "rate_scale": 1 / slower}
    question.rate = 1.0
    if given.whole("--mooncake-num-rounds", default=1) > 1:
        question.not_taken.append("--mooncake-num-rounds")
    question.notes.append("requests come at the trace's own times")
