"""guidellm (0.3 to 0.8), aiperf (0.13) and genai-perf: which question their flags ask.

>>> guidellm(["--rate-type", "poisson", "--rate", "5", "--data", "prompt_tokens=256,output_tokens=128"], None).rate
5.0
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from kvcast.benchmarks.question import Question, around, between, fixed, normal, up_to
from kvcast.benchmarks.words import Given, quantity
from workloads.errors import InputError

GUIDELLM, AIPERF, GENAI_PERF = "guidellm benchmark", "aiperf profile", "genai-perf profile"
WITHOUT_EFFECT = re.compile(
    r"--(target|backend.*|processor.*|tokenizer.*|output-.*|outputs|disable-.*|display-.*|label|push-to-hub"
    r"|hub-.*|sample-requests|request-(type|formatter-kwargs|timeout-seconds|id-.*)|metrics|seed-.*|model-selection-.*"
    r"|endpoint.*|custom-endpoint|streaming|url.*|artifact-dir|checkpoint-dir|generate-plots|profile-export.*|verbose"
    r"|log-level|ui.*|header|extra-inputs|stability-percentage|grpc-method|service-kind|use-.*|export-.*|otel-.*"
    r"|mlflow-.*|wandb-.*|gpu-telemetry|no-gpu-telemetry|server-metrics.*|no-server-metrics|goodput|api-key|slice-.*"
    r"|auto-plot|transport.*|connection-.*|network-.*|wait-for-.*|data-num-workers|dataloader-kwargs)|-[uvm]"
)


# -- guidellm ----------------------------------------------------------------------------------------------------------


def guidellm(words: list[str], result: str | None) -> Question:
    given = Given(GUIDELLM, words)
    profile = _table(given.text("--profile", "--rate-type") or "sweep", "kind")
    kind = str(profile.get("kind", ""))
    rates = _numbers(given.text("--rate") or profile.get("rate", profile.get("streams")))
    data = _table(given.text("--data") or "", "name")
    question = Question(
        GUIDELLM, "synthetic", _limit(given, "max_requests"), seed=given.whole("--random-seed", "--seed")
    )
    question.model = given.text("--model")
    seconds = _limit(given, "max_seconds") or _limit(given, "max_duration")
    question.duration_s = None if seconds is None else float(seconds)
    if kind in ("sweep", "knee", "goodput", "replay") or len(rates) > 1:
        raise InputError(
            f"{GUIDELLM}: --profile {kind} with {len(rates)} rates is several benchmarks; expected one strategy and one"
            " rate, such as --profile constant --rate 4"
        )
    if "prompt_tokens" not in data and result is None:
        raise InputError(
            f"{GUIDELLM}: --data without prompt_tokens: its lengths are in texts; expected --result with it"
        )
    _strategy(question, kind, rates)
    if "prompt_tokens" in data:
        _synthetic(question, data)
    else:
        question.trace = {"trace": str(result)}
    for cut in ("--warmup", "--warmup-percent", "--cooldown", "--cooldown-percent"):
        if given.has(cut):
            question.notes.append(f"{cut}: guidellm leaves these requests out of its figures; here all are counted")
    question.not_taken = given.rest(WITHOUT_EFFECT)
    return question


def _strategy(question: Question, kind: str, rates: list[float]) -> None:
    if kind == "synchronous":
        question.concurrency = 1
    elif kind == "concurrent":
        question.concurrency = int(_one(rates, kind))
    elif kind == "throughput":
        question.concurrency = int(rates[0]) if rates else None
    elif kind in ("constant", "poisson", "async"):
        question.rate = _one(rates, kind)
        question.arrival = {"kind": "gamma", "cv": 0.01} if kind == "constant" else {}
    else:
        raise InputError(
            f"{GUIDELLM}: --profile {kind!r}, expected synchronous, concurrent, throughput, constant or poisson"
        )
    if question.requests is None and question.duration_s is None:
        raise InputError(f"{GUIDELLM}: expected --max-requests or --max-seconds, which say where it ends")


def _one(rates: list[float], kind: str) -> float:
    if len(rates) != 1 or not rates[0] > 0:
        raise InputError(f"{GUIDELLM}: --rate-type {kind} needs one --rate above 0")
    return rates[0]


def _synthetic(question: Question, data: dict[str, Any]) -> None:
    def amount(name: str, default: float = 0.0) -> float:
        return quantity(f"{GUIDELLM}: --data {name}", data.get(name) or default)

    def lengths(name: str) -> dict[str, Any]:
        mean, sd = amount(name), amount(f"{name}_stdev", 0)
        low, high = (data.get(f"{name}_{end}") and amount(f"{name}_{end}") for end in ("min", "max"))
        if not sd:  # every whole number between the ends that are given
            return between(*(int(mean if end is None else end) for end in (low, high)))
        ends = (max(1.0, mean - 5 * sd) if low is None else low, mean + 5 * sd if high is None else high)
        return normal(mean, sd, *ends)

    prefix = data.get("prefix_tokens")
    question.layers = []
    if prefix:
        count = int(amount("prefix_count") or amount("num_prefixes", 1))
        shared = {"scope": "global"} if count == 1 else {"scope": "project", "items": count}
        question.layers.append({"name": "prefix", "tokens": fixed(amount("prefix_tokens")), **shared})
    question.layers.append({"name": "prompt", "scope": "dynamic", "tokens": lengths("prompt_tokens")})
    question.output = lengths("output_tokens") if "output_tokens" in data else fixed(128)
    turns = int(amount("turns", 1))
    if turns > 1:
        question.turns, question.turn_input = fixed(turns), lengths("prompt_tokens")
        question.think = fixed(amount("delay"))
    taken = ("kind", "name", "prompt_tokens", "output_tokens", "prefix_tokens", "prefix_count", "num_prefixes", "turns")
    left = [
        k for k in data if k not in (*taken, "delay") and not re.fullmatch(r"(prompt|output)_tokens_(stdev|min|max)", k)
    ]
    if left:
        question.notes.append(f"--data: not taken over: {', '.join(left)}")


def _table(text: str, alone: str) -> dict[str, Any]:
    """JSON, `a=1,b=2`, or one word, which is the value of `alone`."""
    try:
        found = json.loads(text)
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        return found if isinstance(found, dict) else {alone: text}
    except (ValueError, RecursionError):
        pairs = [part.partition("=") for part in text.split(",")]
        return {k.strip(): v.strip() for k, s, v in pairs if s} if "=" in text else {alone: text}


def _numbers(value: Any) -> list[float]:
    if value is None:
        return []
    words = value if isinstance(value, list) else re.split(r"[,\s\[\]]+", str(value))
    return [quantity(f"{GUIDELLM}: --rate", word) for word in words if word != ""]


def _limit(given: Given, name: str) -> int | None:
    """--max-requests N, or --constraint kind=max_requests,count=N."""
    number = given.number(f"--{name.replace('_', '-')}")
    constraint = _table(given.text("--constraint", "--constraints") or "", "kind")
    if number is None and constraint.get("kind") == name:
        counts = _numbers(constraint.get("count", constraint.get("duration", constraint.get("seconds"))))
        number = counts[0] if counts else None
    return None if number is None else int(number)


# -- aiperf and genai-perf ---------------------------------------------------------------------------------------------


def aiperf(words: list[str], result: str | None) -> Question:
    return _nvidia(AIPERF, words, result, "poisson")


def genai_perf(words: list[str], result: str | None) -> Question:
    return _nvidia(GENAI_PERF, words, result, "constant")


def _nvidia(tool: str, words: list[str], result: str | None, pattern: str) -> Question:
    given = Given(tool, words)
    question = Question(tool, "synthetic", seed=given.whole("--random-seed"))
    question.model = given.text("--model", "-m", "--model-names")
    question.concurrency = given.whole("--concurrency") or None
    question.rate = given.number("--request-rate")
    _nvidia_arrivals(question, given, pattern)
    count = given.whole("--request-count", "--num-requests") or None
    seconds = given.number("--benchmark-duration")
    interval = given.number("--measurement-interval", "-p")
    question.duration_s = seconds if seconds is not None else interval / 1e3 if interval else None
    sessions = given.whole("--num-sessions", "--num-conversations", "--conversation-num") or None
    turns = given.number("--session-turns-mean", "--conversation-turn-mean", default=1.0) or 1.0
    entries = given.whole("--num-dataset-entries", "--num-prompts") or sessions
    if entries is None:
        entries = count if tool == AIPERF and count is not None else 100
    if count is None and sessions is not None:
        count = math.ceil(sessions * turns)
    if count is None and question.duration_s is None:
        count = max(10, 2 * (question.concurrency or 1))
        question.notes.append(f"no --request-count: {count} requests, as {tool.split()[0]} takes by itself")
    question.requests = count
    _nvidia_data(question, given, result, entries, turns)
    if given.has("--warmup-request-count", "--num-warmup-requests", "--warmup-duration"):
        question.notes.append("warm-up requests come before the clock starts and are not simulated")
    question.not_taken = given.rest(WITHOUT_EFFECT)
    return question


def _nvidia_arrivals(question: Question, given: Given, pattern: str) -> None:
    pattern = given.text("--arrival-pattern", "--request-rate-mode") or pattern
    shape = given.number("--arrival-smoothness", "--vllm-burstiness", default=1.0) or 1.0
    if question.rate is None:
        question.concurrency = question.concurrency or 1
    elif pattern == "constant":
        question.arrival = {"kind": "gamma", "cv": 0.01}
    elif pattern == "gamma" and shape != 1.0:
        question.arrival = {"kind": "gamma", "cv": min(max(shape**-0.5, 0.01), 100.0)}


def _nvidia_data(question: Question, given: Given, result: str | None, entries: int, turns: float) -> None:
    """entries: prompts that differ; both tools send them again from the first on."""
    path = given.text("--input-file", "--public-dataset")
    if path is not None and result is None:
        raise InputError(
            f"{question.tool}: {path}: its lengths are in no command; expected --result with them, or a scenario with"
            " [workload] trace = that file where it is a trace (Mooncake's, texts, ...)"
        )
    if path is not None:
        question.trace = {"trace": str(result)}
        return
    length = given.number("--synthetic-input-tokens-mean", "--isl", "--prompt-input-tokens-mean", default=550.0) or 0.0
    answer = given.number("--output-tokens-mean", "--osl", "--prompt-output-tokens-mean")
    spread = given.number(
        "--synthetic-input-tokens-stddev", "--isl-stddev", "--prompt-input-tokens-stddev", default=0.0
    )
    spreads = (spread or 0.0, given.number("--output-tokens-stddev", "--osl-stddev", default=0.0) or 0.0)
    prompt, question.output = _lengths(question, given, length, answer, spreads)
    question.layers = _prefixes(given)
    if turns > 1:
        sd = given.number("--session-turns-stddev", "--conversation-turn-stddev", default=0.0) or 0.0
        delay_ms = given.number("--session-turn-delay-mean", "--conversation-turn-delay-mean", default=0.0) or 0.0
        question.turns, question.turn_input, question.think = normal(turns, sd), prompt, fixed(delay_ms / 1e3)
    if turns == 1 and entries < (question.requests or math.inf):
        question.layers.append({"name": "prompt", "scope": "project", "tokens": prompt, "items": entries})
        question.notes.append(
            f"{entries} different prompts, sent again and again: here each request draws one, there they come in turn"
        )
    else:
        question.layers.append({"name": "prompt", "scope": "dynamic", "tokens": prompt})


def _lengths(
    question: Question, given: Given, length: float, answer: float | None, spreads: tuple[float, float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    ratio = given.text("--random-range-ratio")
    if answer is None:
        question.notes.append("no --osl: answers end where the model ends them; 128 tokens are simulated")
        answer = 128.0
    if ratio is None:
        return normal(length, spreads[0]), normal(answer, spreads[1])
    style = up_to if given.text("--random-corpus-style") == "sglang" else around
    table = _table(ratio, "both")
    asked = [table.get(name, table.get("both", 0.0)) for name in ("input", "output")]
    both = [quantity("--random-range-ratio", one) for one in asked]
    return style(int(length), both[0]), style(int(answer), both[1])


def _prefixes(given: Given) -> list[dict[str, Any]]:
    """The shared system prompt, and the pool of prefixes of which each request has one."""
    layers: list[dict[str, Any]] = []
    system = given.whole("--shared-system-prompt-length")
    if system:
        layers.append({"name": "system prompt", "scope": "global", "tokens": fixed(system)})
    count = given.whole("--num-prefix-prompts", "--prompt-prefix-pool-size", "--prefix-prompt-pool-size")
    length = given.whole("--prefix-prompt-length", "--prompt-prefix-length", default=100 if count else 0)
    if count and length:
        layers.append({"name": "prefix", "scope": "project", "tokens": fixed(length), "items": count})
    context = given.whole("--user-context-prompt-length")
    if context:
        layers.append({"name": "user context", "scope": "session", "tokens": fixed(context)})
    return layers
