"""What people call a request's time, tokens and session in tables of their own.

The one idea: a name counts without its case, dots and underscores, and a nested field by its last part; a count must
hold numbers, so that a column of texts called "input" is none.

    >>> recognised({"ts": "2026-06-23T06:05:00Z", "usage.prompt_tokens": 7, "usage.completion_tokens": 2})
    {'time': 'ts', 'input': 'usage.prompt_tokens', 'output': 'usage.completion_tokens'}
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.readers.paths import getter
from workloads.readers.units import wall_clock_ns
from workloads.readers.values import as_float, number

TIME = (
    *("arrivaltime", "arrivaltimestamp", "arrivedat", "arrival", "requesttime", "requesttimestamp", "requeststart"),
    *("requeststarttime", "starttime", "starttimestamp", "startedat", "start", "submittime", "submittedat", "sentat"),
    *("sendtime", "timestamp", "time", "ts", "datetime", "createdat", "createdtime", "created", "receivedat", "date"),
    *("eventtime", "begin", "begintime", "t"),
)
INPUT = (
    *("inputtokens", "prompttokens", "inputlength", "promptlength", "inputlen", "promptlen", "inputtokencount"),
    *("prompttokencount", "numinputtokens", "numprompttokens", "numprefilltokens", "prefilltokens", "contexttokens"),
    *("contextlength", "requesttokens", "inputtoks", "prompttoks", "inputsize", "promptsize", "inputsequencelength"),
    *("isl", "tokensin", "intokens", "tokensinput", "tokensprompt", "ninput", "nprompt", "numberinputtokens"),
    *("promptevalcount", "requestnumprefilltokens", "input", "prompt", "in"),
)
OUTPUT = (
    *("outputtokens", "completiontokens", "outputlength", "completionlength", "outputlen", "completionlen"),
    *("outputtokencount", "completiontokencount", "numoutputtokens", "numcompletiontokens", "numdecodetokens"),
    *("decodetokens", "generatedtokens", "numgeneratedtokens", "generationtokens", "responsetokens", "outputtoks"),
    *("completiontoks", "responselength", "outputsize", "outputsequencelength", "osl", "tokensout", "outtokens"),
    *("tokensoutput", "tokenscompletion", "noutput", "ncompletion", "candidatestokencount", "numberoutputtokens"),
    *("evalcount", "requestnumdecodetokens", "output", "completion", "response", "out"),
)
SESSION = ("sessionid", "conversationid", "threadid", "session", "conversation")
SEVERAL = (
    "requests",
    "numrequests",
    "nummodelrequests",
    "requestcount",
    "nrequests",
    "totalrequests",
    "numcalls",
    "calls",
)
"""Counts of requests: a row with more than one is a sum, not a request."""
BEYOND_INPUT = {
    "inputtokens": ("cachereadinputtokens", "cachecreationinputtokens", "cachewriteinputtokens"),
    "inputtokencount": ("cachereadinputtokencount", "cachewriteinputtokencount"),
    "prompttokencount": ("tooluseprompttokencount",),
}
"""Counts that an input of this name leaves out: Anthropic's and Bedrock's input is what their cache did not serve,
Gemini's is without the results of its tools."""
ANTHROPIC = "cachecreationtokens"  #: as Claude Code's telemetry and the reports made of its logs call what is written
CACHED = (
    *("cachereadtokens", ANTHROPIC, "cachewritetokens", "cacheread", "cachewrite", "cachereads", "cachewrites"),
    *("cachecreation", *BEYOND_INPUT["inputtokens"], *BEYOND_INPUT["inputtokencount"]),
)
BEYOND_OUTPUT = {"candidatestokencount": ("thoughtstokencount",), "output": ("thoughts",)}
"""Gemini's answer is without its thoughts; elsewhere reasoning is within the output."""
TOTAL = ("total", "totaltokens", "totaltokencount", "tokenstotal")
GAP = ("interarrivaltime", "interarrival", "interarrivaldelay", "requestinterarrivaldelay", "iat")
CLASS = ("class", "requestclass", "model", "modelname", "modelid")
_DIGITS = re.compile(r"\d{1,3}([,'\u00a0 .]\d{3})+")
_SAYS_TIME = re.compile(r"(?i)time(?!out)|^ts$|^date$")
UNIT_END = re.compile(
    r"(s|sec|secs|second|seconds|ms|millis|milliseconds|us|micros|microseconds|ns|nanos|nanoseconds)$"
)


def recognised(fields: Mapping[str, Any], rows: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    """Key of [workload.columns] -> the field (of `fields`, name -> an example) that is called so; {} unless there are
    input and output. rows: some of the file's, which may show that counts beside the input are beyond it."""
    found = {
        "time": _first(fields, TIME, _is_time),
        "input": _first(fields, INPUT, _is_count),
        "output": _first(fields, OUTPUT, _is_count),
        "session": _first(fields, SESSION, _is_name),
        "class": _first(fields, CLASS, _is_name),
    }
    named = {key: name for key, name in found.items() if name}
    if "input" in named:
        named["input"] = " + ".join([named["input"], *uncounted(fields, named["input"], rows)])
    if "output" in named:
        named["output"] = " + ".join([named["output"], *_documented(fields, named["output"], BEYOND_OUTPUT)])
    return named if {"input", "output"} <= named.keys() else {}


def gap_in(fields: Mapping[str, Any]) -> str:
    """The field that holds how long after the row before a request came; "" without one."""
    return _first(fields, GAP, lambda value: True)  # the reader says what is wrong with it


def total_in(fields: Mapping[str, Any], name: str) -> str:
    """The field beside `name` that is called a total; "" without one."""
    return next((field for field, part in _beside(fields, name) if part in TOTAL), "")


def time_in(fields: Mapping[str, Any]) -> dict[str, str]:
    """{"time": the field that is called so}, {} without one: for a mapping that names the tokens only."""
    name = _first(fields, TIME, _is_time)
    return {"time": name} if name else {}


def sums(row: Mapping[str, Any]) -> str:
    """The field by which a row stands for several requests; "" for one that is a request."""
    for name in row:
        if _plain(name) in SEVERAL and number(row[name]) > 1:
            return name
    return ""


def uncounted(fields: Mapping[str, Any], name: str, rows: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Fields beside `name` with prompt tokens that it does not count: by what their writer documents, or because more
    tokens came from the cache than it has in one of the rows."""
    documented, cached = _documented(fields, name, BEYOND_INPUT), cached_beside(fields, name)
    if documented or not cached:
        return documented
    get, parts = getter(name), [getter(field) for field in cached]
    more = any(as_float(number(part(row))) > as_float(number(get(row))) for row in rows for part in parts)
    telemetry = any(_plain(field).endswith(ANTHROPIC) for field in cached) and _plain(name).endswith("inputtokens")
    return cached if more or telemetry else []


def cached_beside(fields: Mapping[str, Any], name: str) -> list[str]:
    """Fields beside `name` that count tokens of a provider's cache; none beside a sum, which says itself."""
    if " + " in name:
        return []
    return [field for field, part in _beside(fields, name) if part in CACHED and _is_number(fields[field])]


def _documented(fields: Mapping[str, Any], name: str, beyond: Mapping[str, tuple[str, ...]]) -> list[str]:
    parts = beyond.get(_plain(name.rpartition(".")[2]), ())
    own = [(field, part) for field, part in _beside(fields, name) if "." not in field[len(_table(name)) :]]
    return [field for spelled in parts for field, part in own if part == spelled]


def _beside(fields: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    """(field, the rest of its name as it is spelled) of what the table of `name` holds."""
    before = _table(name)
    return [(one, _plain(one[len(before) :])) for one in fields if one.startswith(before) and one != name]


def _table(name: str) -> str:
    return name[: name.rfind(".") + 1]


def is_ids(name: str) -> bool:
    """Whether a field is called as lists of block ids are, which only a mapping makes shared text."""
    return _plain(name) in ("hashids", "prefixids", "blockids", "blockhashes", "prefixhashes")


def _first(fields: Mapping[str, Any], spellings: tuple[str, ...], fits: Any) -> str:
    """The field with the earliest spelling; of several the one that is nested least."""
    best, rank = "", (len(spellings), 0)
    for name, example in fields.items():
        if not fits(example) and not (spellings is TIME and _SAYS_TIME.search(name)):  # the reader says what is wrong
            continue
        for part in {_plain(name), _plain(name.rpartition(".")[2])}:
            for spelled in (part, UNIT_END.sub("", part) if spellings in (TIME, GAP) else part):
                if spelled in spellings:
                    mine = (spellings.index(spelled), name.count("."))
                    best, rank = (name, mine) if mine < rank else (best, rank)
    return best


@functools.lru_cache(4096)
def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _is_number(value: Any) -> bool:
    return value is None or not math.isnan(as_float(number(value)))


def _is_count(value: Any) -> bool:
    """Whether it is a number, or a text that means one ("1,000"): the reader says what is wrong with it."""
    return _is_number(value) or (type(value) is str and bool(_DIGITS.fullmatch(value)))


def _is_time(value: Any) -> bool:
    return _is_number(value) or wall_clock_ns(value) is not None


def _is_name(value: Any) -> bool:
    return value is None or type(value) in (str, int)
