"""What no reader knows is refused by saying what it is and what to do, in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.test_readers import complaint
from workloads.readers import FORMATS

LOG = (
    "INFO 11-01 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.11) with config: model='x', seed=0, dtype=bf16\n"
)
READS_LOGS = "which holds no requests; kvcast profile kv-log reads its KV cache, kvcast plan --from-log its flags"
NAME_COLUMNS = "say with [workload.columns] (--columns) input, output and time which of them is what"

FILES: dict[str, tuple[bytes | str, str]] = {
    "vllm.log": (LOG + "INFO GPU KV cache size: 12,345 tokens\n", f"a log of vLLM, {READS_LOGS}"),
    "sglang.log": ("[2026-01-01 10:00:00] server_args=ServerArgs(a=1, b=2)\n", f"a log of SGLang, {READS_LOGS}"),
    "echoed.log": (f"+ vllm serve x --port 1\n{LOG}", f"a log of vLLM, {READS_LOGS}"),
    "compose.yml": (
        "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: [--model, Qwen/Qwen3-8B]\n",
        "a manifest that starts an engine, which holds no requests; kvcast plan --from-launch FILE reads it",
    ),
    "web.yml": ("services:\n  a:\n    image: nginx\n", "YAML; expected JSON, a table or Parquet"),
    "serve.sh": (
        "#!/bin/sh\nexec vllm serve Qwen/Qwen3-8B -tp 2\n",
        "an engine's launch command, which holds no requests; kvcast plan --from-launch FILE reads it",
    ),
    "sglang.txt": ("python -m sglang.launch_server --model-path x\n", "an engine's launch command, which holds no"),
    "other.log": ("2026-01-01 12:00:00,123 something, other\n", "a text log, expected one row a request"),
    "gin.log": ('[GIN] 2026/01/01 - 10:00:01 | 200 | 2.1s | POST "/api/chat"\n', "a text log, expected one row a"),
    "metrics": ("# HELP vllm:x y\n# TYPE vllm:x counter\n", "metrics of Prometheus, which are sums over requests;"),
    "page.html": ("<!DOCTYPE html>\n<html>", "a web page; download the file itself"),
    "a.xml": ("<?xml version='1.0'?><a/>", "XML; expected JSON, a table or Parquet"),
    "s.conf": ("name = 'x'\n[workload]\ntrace = 'a'\n", "a TOML file; a scenario's name ends in .toml"),
    "y.yaml": ("model: x\nseed: 3\n", "YAML; expected JSON, a table or Parquet"),
    "lfs.csv": ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer to a file in Git LFS; fetch"),
    "one.txt": ("hello world\n", "text that is neither JSON nor a table with a header, expected a trace"),
    "u.csv": ("time,input,output\n1,2,3\n".encode("utf-16"), "text in UTF-16; save it as UTF-8"),
    "p.pdf": (b"%PDF-1.7\n\0", "a PDF document, expected a trace"),
    "p.pkl": (b"\x80\x04\x95\0\0", "a Python pickle, which is not opened; save the requests as CSV, JSON lines or"),
    "d.db": (b"SQLite format 3\0\0", "an SQLite database; export the table of requests as CSV"),
    "x.bin": (bytes(range(256)), "binary data of no known kind, expected a trace"),
    "twice.gz": (gzip.compress(gzip.compress(b"a,b\n" * 9)), "gzip of gzip, packed twice; unpack it"),
    "log.gz": (gzip.compress(LOG.encode()), f"gzip of a log of vLLM, {READS_LOGS}"),
    "numbers.json": ("[1, 2, 3]", "a JSON array that holds no objects, expected one object a request"),
    "empty.json": ("[]", "a JSON array without a field, expected rows with tokens of input and output"),
    "summary.json": (
        '{"date": "x", "mean_ttft_ms": 5.5}',
        "one JSON object with the fields date, mean_ttft_ms: a summary or settings rather than requests, expected one",
    ),
    "config.json": (
        json.dumps({"architectures": ["L"], "hidden_size": 5}, indent=1),
        "a model's config.json, which [model] config takes; expected a trace",
    ),
    "own.csv": (
        "when,tokens_a,tokens_b\n1,2,3\n",
        f"a CSV table with the columns when, tokens_a, tokens_b: no known format; {NAME_COLUMNS}",
    ),
    "own.jsonl": (
        '{"a": {"b": 1}, "c": 2}\n{"a": {"b": 3}, "c": 4}\n',
        f"JSON lines with the fields a.b, c: no known format; {NAME_COLUMNS}",
    ),
    "words.csv": (
        "name,city\nA,B\n",
        "a CSV table with the columns name, city: no counts of tokens among them, expected whole numbers of input and",
    ),
    "values.csv": ("1,2,3\n4,5,6\n", "a CSV table without a header (its first line is values); add a line with the"),
    "values2.csv": ("2026-01-01 10:00:00,2,3\n", "a CSV table without a header (its first line is values); add"),
    "wide.csv": (
        ",".join(f"c{i}" for i in range(30)) + "\n" + ",".join("7" * 30) + "\n",
        f"a CSV table with the columns {', '.join(f'c{i}' for i in range(12))} and 18 more: no known format;",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_refusal_says_what_the_file_is(tmp_path: Path, name: str) -> None:
    content, line = FILES[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = complaint(path)
    assert said.startswith(f"FILE: {line}")
    assert len(said) < 300
    assert "name one of" not in said
    assert "servegen" not in said, "naming a format is no advice where none fits"


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert complaint(tmp_path / "results") == "FILE: an empty folder, expected a trace"
    for name in ("a.txt", "b.txt"):
        (tmp_path / "results" / name).write_text("x")
    assert complaint(tmp_path / "results") == (
        "FILE: a folder with a.txt, b.txt, none of which is a session of a trace; name the file that is the trace"
    )


def test_nothing_of_a_text_is_shown(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"note": "my secret"}\n{"note": "my secret"}\n')
    assert "secret" not in complaint(tmp_path / "c.jsonl")


def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    line = complaint(path, format="moncake")
    assert line == f"FILE: format 'moncake' is unknown, expected {', '.join(FORMATS)}; did you mean 'mooncake'?"
