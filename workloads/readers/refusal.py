"""What a file is that no reader knows, and what to do about it, in one line.

The one idea: whoever is refused holds something; saying what it is helps more than saying what it is not.

    >>> refusal(Head(Path("engine.log")))
    'a log of vLLM, which holds no requests; kvcast profile kv-log reads its KV cache, kvcast plan --from-log its flags'
"""

from __future__ import annotations

import math
import re
from typing import Any

from workloads.readers.container import JSON_ARRAY, JSON_LINES, JSON_OBJECT, MAGIC, PARQUET, packed_name
from workloads.readers.head import Head
from workloads.readers.paths import flat, lists_of_objects
from workloads.readers.units import wall_clock_ns
from workloads.readers.values import number

MAPPING = "[workload.columns] (--columns) input, output and time"
SHOWN = 12  #: names


def refusal(head: Head) -> str:
    """What the file is, and what to do; no line break."""
    if head.is_folder:
        return _folder(head)
    text = head.bytes.decode("utf-8-sig", errors="replace")
    if head.contents.kind in (JSON_LINES, JSON_ARRAY, JSON_OBJECT):
        return _rows(head)
    if head.columns:
        return _table(head, "" if head.contents.kind == PARQUET else _known_text(text))
    what = packed_name(head.bytes) or _binary(head.bytes) or _text(text)
    return f"{head.contents.packed} of {what}" if head.contents.packed else what


def _folder(head: Head) -> str:
    names = sorted(file.name for file in head.path.iterdir())
    if not names:
        return "an empty folder, expected a trace"
    return f"a folder with {_listed(names, 4)}, none of which is a session of a trace; name the file that is the trace"


# ---- rows ----

_DOCUMENTS: tuple[tuple[set[str], str], ...] = (
    ({"architectures", "hidden_size"}, "a model's config.json, which [model] config takes; expected a trace"),
    ({"model_type", "hidden_size"}, "a model's config.json, which [model] config takes; expected a trace"),
    ({"added_tokens", "model"}, "a tokenizer, expected a trace"),
    ({"cells", "nbformat"}, "a notebook, expected a trace"),
)
_TEXTS = {"messages", "conversations", "conversation", "mapping", "prompt", "chat_messages", "text", "content"}


def _rows(head: Head) -> str:
    for keys, what in _DOCUMENTS:
        if keys <= head.keys and len(head.rows) == 1:
            return what
    fields = flat(head.rows) or dict.fromkeys(sorted(head.keys))
    alone = len(head.rows) == 1 and head.contents.kind != JSON_ARRAY
    container = "one JSON object" if alone else head.container
    if not fields:
        return f"{container} without a field, expected rows with tokens of input and output"
    what = f"{container} with the fields {_listed(list(fields), SHOWN)}"
    if lists := lists_of_objects(head.rows[0]) if alone else {}:
        return (
            f"{what}; say with [workload.columns] rows which list holds the requests ({_listed(list(lists), 4)}), and"
            " with input, output and time which field is what"
        )
    if alone:
        return f"{what}: a summary or settings rather than requests, expected one row a request"
    return f"{what}: {_advice(head, fields)}"


def _table(head: Head, known: str) -> str:
    """known: what else the text may be, whose commas only look like those of a table."""
    fields = flat(head.rows) or dict.fromkeys(head.columns)
    if all(not math.isnan(number(name)) or wall_clock_ns(name) is not None for name in head.columns):
        return f"{head.container} without a header (its first line is values); add a line with the names of its columns"
    if known and not _counts(fields):
        return f"{head.contents.packed} of {known}" if head.contents.packed else known
    return f"{head.container} with the columns {_listed(head.columns, SHOWN)}: {_advice(head, fields)}"


def _advice(head: Head, fields: dict[str, Any]) -> str:
    if len(_counts(fields)) >= 2 or not head.rows:
        return f"no known format; say with {MAPPING} which of them is what"
    if _TEXTS & {name.rpartition(".")[2] for name in fields}:
        return "texts without counts of tokens, expected counts of input and output"
    return "no counts of tokens among them, expected whole numbers of input and output"


def _counts(fields: dict[str, Any]) -> list[str]:
    return [name for name, value in fields.items() if number(value) % 1 == 0]


def _listed(names: list[str], most: int) -> str:
    shown = ", ".join(name[:40] for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


# ---- what holds no rows ----


def _binary(head: bytes) -> str:
    for begins, what in MAGIC:
        if head.startswith(begins):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive; give its name the end .tar, .tar.gz or .tar.xz if it holds a trace's files, or unpack it"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "text in UTF-16; save it as UTF-8"
    return "binary data of no known kind, expected a trace" if b"\0" in head[:4096] else ""


def _text(text: str) -> str:
    if re.match(r"\s*\[\s*([\]\[\"{\d.,+-]|null|true|false)", text) and not _known_text(text):
        return "a JSON array that holds no objects, expected one object a request"
    return _known_text(text) or "text that is neither JSON nor a table with a header, expected a trace"


def _known_text(text: str) -> str:
    begin = text.lstrip()[:2000]
    if launched := _launched(text, begin):
        return launched
    return next(
        (what for pattern, what in _KINDS_OF_TEXT if re.search(pattern, text if what[:5] == "a log" else begin)), ""
    )


def _launched(text: str, begin: str) -> str:
    """What starts an engine, which names it as its log does; "" for anything else."""
    if _LOGGED.search(begin):
        return ""
    if _MANIFEST.search(begin) and _ENGINE.search(text):
        return "a manifest that starts an engine, which holds no requests; kvcast plan --from-launch FILE reads it"
    if _LAUNCH.search(begin):
        return "an engine's launch command, which holds no requests; kvcast plan --from-launch FILE reads it"
    return ""


_LOGGED = re.compile(r"\b(INFO|WARNING|ERROR)\b[ :]+[\d\[(]|(?m:^\[?\d{4}-\d\d-\d\d)|server_args=")
_MANIFEST = re.compile(
    r"(?m)^\s*(- )?(services|kind|containers|image|replicaCount|servingEngineSpec|modelSpec|apiVersion)\s*:(\s|$)"
)
_ENGINE = re.compile(r"(?i)vllm|sglang|trtllm")
_LAUNCH = re.compile(
    r"\bvllm serve\s|\bvllm\.entrypoints\.|\bsglang\.launch_server\b|\bsglang serve\s|\btrtllm-serve\s"
    r"|\bdocker run\b[\s\S]*(vllm-openai|sglang)"
)

_KINDS_OF_TEXT = (
    (r"^# (HELP|TYPE) ", "metrics of Prometheus, which are sums over requests; expected one row a request"),
    (
        r"(?i)vllm|GPU KV cache size|EngineCore|V1 LLM engine",
        "a log of vLLM, which holds no requests; kvcast profile kv-log reads its KV cache, kvcast plan --from-log its"
        " flags",
    ),
    (
        r"(?i)sglang|max_total_num_tokens|server_args=",
        "a log of SGLang, which holds no requests; kvcast profile kv-log reads its KV cache, kvcast plan --from-log its"
        " flags",
    ),
    (r"^#", "lines that begin with #; remove them if a table follows"),
    (r"(?i)^<!doctype html|^<html", "a web page; download the file itself"),
    (r"^<\?xml|^<[a-zA-Z][^>]*>", "XML; expected JSON, a table or Parquet"),
    (r"^version https://git-lfs", "a pointer to a file in Git LFS; fetch the file itself (git lfs pull)"),
    (r"(?m)^\[[\w.\"-]+\]\s*$", "a TOML file; a scenario's name ends in .toml"),
    (r"(?m)^(---|\w[\w-]*:)\s*($|\S)", "YAML; expected JSON, a table or Parquet"),
    (r"^\[[A-Za-z]+\] ", "a text log, expected one row a request"),
    (r"(?m)^(\[?\d{4}-\d\d-\d\d|\[?(INFO|DEBUG|WARNING|ERROR)\b)", "a text log, expected one row a request"),
)
