"""Results of `vllm bench serve --save-result --save-detailed` and of SGLang's `bench_serving --output-details`.

The one idea: both are one object a run with a list a field (`input_lens`, `output_lens`, `ttfts`, `itls`, `errors`,
and in newer ones of vLLM `start_times` and `latencies`), whose i-th entries are request i. vLLM writes a run a file,
or adds one to it (`--append-result`); SGLang always adds a line. A failed request has an error, or no output. Times
are seconds of the client's own clock (`time.perf_counter`), which counts from no date.

Held against the writers' sources: vLLM's benchmarks/serve.py before and after start_times and latencies, SGLang's
bench_serving.py and benchmark/serving.py (`--cache-report` adds `cached_tokens`).

    >>> from workloads.readers import bench_serving
    >>> workload = bench_serving.VLLM.read("vllm-2.0qps-concurrency8-Llama-3.1-8B-20261101.json")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from workloads.errors import InputError
from workloads.readers.calls import FAILED, Call, CallLog, NoRequestsError, Record, Timing
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.values import as_float, number, short

LISTS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "cached_tokens", "errors")
"""What is read of a request, by the names of the lists; the texts among the others are not."""
RUN = ("completed", "total_input_tokens", "request_throughput", "duration")
"""Fields of every run, with and without its requests."""
SENDING = ("request_rate", "burstiness")
"""Fields of a run that say how it sent, which a file without times is best replayed by."""
ALIASES = {"total_throughput": "total_token_throughput"} | {
    f"{statistic}_e2e_latency_ms": f"{statistic}_e2el_ms" for statistic in ("mean", "median", "std", "p90", "p99")
}
"""What SGLang calls the aggregates that vLLM has too."""


def _is_sglang(names: set[str]) -> bool:
    return "total_throughput" in names or "total_output_tokens_retokenized" in names


def _recognised(sglang: bool) -> Callable[[Head], str | None]:
    def recognised(head: Head) -> str | None:
        if _is_sglang(head.keys) != sglang:
            return None
        found = next((names for names in (RUN, LISTS[:2]) if set(names) <= head.keys), None)
        return found and f"its object has {', '.join((*found, *(['total_throughput'] if sglang else [])))}"

    return recognised


def _run(rows: Rows) -> Record:
    """The one run of a file."""
    runs = rows.objects()
    if len(runs) > 1:
        raise InputError(f"{rows.path}: {len(runs)} runs, each with a clock of its own, expected one: keep one of them")
    return runs[0]


def _requests(rows: Rows, flag: str) -> Iterator[Record]:
    """One record a request: its entries of the lists, by the lists' names."""
    run = _run(rows)
    lists = {name: run[name] for name in LISTS if run.get(name) is not None}
    if "input_lens" in lists and "output_lens" not in lists:
        raise NoRequestsError(f"{rows.path}: no output_lens: a benchmark of embeddings, which generates nothing")
    if "input_lens" not in lists:
        raise NoRequestsError(
            f"{rows.path}: no input_lens: a result of aggregates only, which is no trace; the benchmark writes a row a"
            f" request with {flag}"
        )
    for name, values in lists.items():
        if type(values) is not list:
            rows.fail(name, values, "a list of one entry a request", 1)
        if len(values) != len(lists["input_lens"]):
            rows.fail(name, f"{len(values)} entries", f"{len(lists['input_lens'])}, as many as input_lens", 1)
    limit = run.get("max_concurrency")
    if type(limit) is int:
        rows.note(
            f"max_concurrency = {limit}: a request waited until one before it had ended, so the times of sending are"
            f" those of the measured server; loop = 'concurrency' with concurrency = {limit} asks the same of another"
        )
    elif "start_times" not in lists:
        said = {name: run.get(name) for name in SENDING if type(run.get(name)) in (int, float, str)}
        rows.note(
            f"the benchmark sent them at {', '.join(f'{name} = {short(v)}' for name, v in said.items()) or 'once'}"
        )
    return rows.each([dict(zip(lists, entry, strict=True)) for entry in zip(*lists.values(), strict=True)], "request")


def _call(record: Record) -> Call | str:
    if record.get("errors"):
        return FAILED
    return Call(
        record["input_lens"], record["output_lens"], record.get("start_times"), cached=record.get("cached_tokens")
    )


def _timing(record: Record) -> Timing:
    """TTFT and gaps as recorded; their sum is the time to the end where there are no `latencies`. A client that does
    not stream writes a TTFT of 0."""
    ttft, e2e, gaps = record.get("ttfts"), record.get("latencies"), record.get("itls")
    gaps = gaps if type(gaps) is list else []
    if ttft is None or (number(ttft) == 0 and not gaps):
        return Timing(e2e_s=e2e)
    if e2e is None and (gaps or number(record["output_lens"]) == 1):
        e2e = sum(as_float(number(time)) for time in (ttft, *gaps))
    return Timing(ttft, e2e, gaps_s=gaps)


def _summary(rows: Rows) -> dict[str, float]:
    run = _run(rows)
    return {ALIASES.get(name, name): value for name, value in run.items() if type(value) in (int, float)}


def _log(sglang: bool, flag: str) -> CallLog:
    return CallLog(
        names=Call("input_lens", "output_lens", "start_times"),
        recognised=_recognised(sglang),
        records=partial(_requests, flag=flag),
        call=_call,
        unit="s",
        why="the benchmark's perf_counter, in seconds from no date",
        timing=_timing,
        summary=_summary,
        notes=("input_lens are the benchmark's own counts: a chat template's tokens are not among them",),
    )


VLLM = _log(sglang=False, flag="--save-detailed beside --save-result")
SGLANG = _log(sglang=True, flag="--output-details")
