"""The answer that the first page opens with: the example question's card, kept in a file that comes with kvcast.

The one idea: it takes minutes of simulation and is the same for everybody, so it is asked once, by
`python -m tools.first_answer`, and placed where this server's own job would put it. It says when and by which version
it was made; `tests/test_first_answer.py` simulates a piece of it again.

    >>> place(Runner(Path("runs/dashboard")))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcast.jobs.runner import Job, Runner, asked_in, key_of
from workloads.files import replace_file

FILE = Path(__file__).with_name("example.json")
QUESTION = {
    "use": "coding-agent",
    "users": "300",
    "system": "16000",
    "model": "hf:meta-llama/Llama-3.3-70B-Instruct",
    "weights": "fp8",
    "gpu": "h200",
    "price": "3.5",
    "ttft": "1s",
    "tpot": "50ms",
    "for": "95%",
}
"""The question that the page opens with: flags of `kvcast ask`."""
PREPARED = "prepared"
"""Key of a card that was not made here: who made it when, and of which words."""


def kept() -> dict[str, Any] | None:
    """The card, with what `tools.first_answer` says of it; None where kvcast came without it."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else None


def place(runner: Runner) -> Job | None:
    """The kept answer as a job of this server, unless that has one of its own."""
    found = kept()
    if found is None:
        return None
    words = found[PREPARED]["words"]
    text = asked_in(words)
    job = Job(runner.root / key_of(text, ("ask", *words)), ("ask", *words))
    if not job.answered:
        job.file(".toml").write_text(text, encoding="utf-8")
        replace_file(job.file(".json"), json.dumps(found).encode())
    return job


def again(runner: Runner, job: Job) -> Job:
    """The same question, computed here: the kept answer makes room."""
    job.file(".json").unlink(missing_ok=True)
    return runner.ask(job.command[1:])
