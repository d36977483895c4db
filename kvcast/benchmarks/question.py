"""What a benchmark asks, whatever tool asks it, as the tables and the text of a scenario file.

The one idea: a load is who comes when (a rate, a cap of requests in flight, or everybody at once) and how long their
prompts and answers are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from kvcast.config import scenario_from_doc
from workloads.errors import InputError

QUANTILES = 50  #: of a normal distribution, which a mix has not


@dataclass
class Question:
    """A benchmark's load. Lengths are `Dist` tables of a scenario; rate None: nobody waits for a time."""

    tool: str
    name: str  #: of its class: the dataset
    requests: int | None = None
    layers: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=lambda: {"value": 128})
    turns: dict[str, Any] | None = None  #: requests of a session; None: one
    turn_input: dict[str, Any] | None = None
    think: dict[str, Any] | None = None
    rate: float | None = None
    arrival: dict[str, Any] = field(default_factory=dict)
    concurrency: int | None = None
    duration_s: float | None = None
    seed: int = 0
    model: str | None = None
    trace: dict[str, Any] = field(default_factory=dict)  #: keys of [workload], instead of layers and output
    result: str | None = None  #: what was measured
    not_taken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def says(self) -> list[str]:
        """For people: what is not in the scenario, and what must be known to read it."""
        named = [f"not taken over: {', '.join(self.not_taken)}"] if self.not_taken else []
        return named + self.notes


# -- lengths -----------------------------------------------------------------------------------------------------------


def fixed(tokens: float) -> dict[str, Any]:
    return {"value": float(tokens)}


def between(low: int, high: int) -> dict[str, Any]:
    """Every whole number from low to high alike: a mix rounds to the nearest."""
    low, high = max(low, 1), max(high, 1)
    return fixed(low) if low == high else {"kind": "uniform", "low": max(low - 0.5, 1.0), "high": high + 0.5}


def around(length: int, ratio: float) -> dict[str, Any]:
    """vLLM's and aiperf's: from length x (1 - ratio), down, to length x (1 + ratio), up."""
    if not 0 <= ratio < 1:
        raise InputError(f"--random-range-ratio {ratio:g}: expected 0 to below 1")
    return between(math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio)))


def up_to(length: int, ratio: float) -> dict[str, Any]:
    """SGLang's, and vLLM's before 0.8: from length x ratio to length."""
    if not 0 <= ratio <= 1:
        raise InputError(f"--random-range-ratio {ratio:g}: expected 0 to 1")
    return between(max(int(length * ratio), 1), length)


def normal(mean: float, sd: float, low: float = 1.0, high: float = math.inf) -> dict[str, Any]:
    """A normal distribution with its ends cut to low and high, as equally likely values."""
    if not sd:
        return fixed(min(max(mean, low), high))
    drawn = [NormalDist(mean, sd).inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES)]
    return {"kind": "empirical", "values": [float(round(min(max(x, low), high))) for x in drawn]}


# -- the scenario ------------------------------------------------------------------------------------------------------


def document_of(question: Question) -> dict[str, Any]:
    """The scenario's tables; InputError where they make none."""
    document: dict[str, Any] = {"name": f"{question.tool}: {question.name}", "seed": question.seed}
    document["run"] = {"warmup_s": 0.0}
    closed = question.rate is None
    workload = {**_arrivals(question), **question.trace}
    if question.duration_s is not None:
        if closed or question.requests is not None:
            document["run"]["duration_s"] = question.duration_s
        else:
            workload["duration_s"] = question.duration_s
    if not question.trace:
        workload["class"] = [_class(question)]
    document["workload"] = workload
    if question.model:
        document["model"] = _model(question)
    scenario_from_doc(document, f"the scenario of {question.tool}")
    return document


def _model(question: Question) -> dict[str, str]:
    """The [model] table of the name that the command has."""
    from kvcast.planner.flags import model_keys

    try:
        return dict(one.removeprefix("model.").split("=", 1) for one in model_keys(str(question.model)))
    except (ValueError, OSError):
        raise InputError(
            f"{question.tool}: --model {str(question.model)[:60]!r}: expected the name of a model"
        ) from None


def _arrivals(question: Question) -> dict[str, Any]:
    n = question.requests
    keys: dict[str, Any] = {}
    if question.rate is None:
        at_once = question.concurrency or n
        if at_once is None:
            raise InputError(f"{question.tool}: expected a number of requests, a rate or a concurrency")
        keys = {"loop": "concurrency", "concurrency": at_once if n is None else min(at_once, n)}
        n = n if n is not None else _enough(question, at_once)
    elif question.concurrency is not None:
        keys = {"loop": "concurrency", "concurrency": question.concurrency, "paced": True}
    return {**({} if n is None else {"requests": n}), **keys}


def _enough(question: Question, at_once: int) -> int:
    """Sessions that a closed loop of some seconds cannot get through: no answer is quicker than 2 ms a token."""
    least_s = max(0.05, 0.002 * float(question.output.get("value", 1)))
    return min(math.ceil(at_once * (question.duration_s or 60.0) / least_s), 500_000)


def _class(question: Question) -> dict[str, Any]:
    table: dict[str, Any] = {"name": question.name}
    table |= {"share": 1.0} if question.rate is None else {"rate": question.rate}
    if question.arrival and question.rate is not None:
        table["arrival"] = question.arrival
    table |= {"layers": question.layers, "output": question.output}
    for name in ("turns", "turn_input", "think"):
        if getattr(question, name) is not None:
            table[name] = getattr(question, name)
    return table


def as_toml(question: Question, document: dict[str, Any] | None = None) -> str:
    """The scenario file, with what is not in it as comments."""
    document = document_of(question) if document is None else document
    lines = [f"# {line}" for line in question.says()]
    if question.result:
        lines.append(f"# measured: kvcast run THIS.toml --against {question.result}")
    text = "\n".join(lines) + "\n" if lines else ""
    text += "".join(f"{name} = {_value(value)}\n" for name, value in document.items() if not isinstance(value, dict))
    for name, table in document.items():
        if isinstance(table, dict) and name != "workload":
            text += _table(name, table)
    text += _table("workload", {k: v for k, v in document["workload"].items() if k != "class"})
    for one in document["workload"].get("class", []):
        text += _table("workload.class", one, "[[{}]]")
    return text


def _table(name: str, table: dict[str, Any], form: str = "[{}]") -> str:
    plain = {k: v for k, v in table.items() if not _is_tables(v)}
    below = "".join(_table(f"{name}.{k}", v) for k, v in table.items() if _is_tables(v))
    return f"\n{form.format(name)}\n" + "".join(f"{k} = {_value(v)}\n" for k, v in plain.items()) + below


def _is_tables(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(inner, dict) for inner in value.values())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return json.dumps(value) if not isinstance(value, str) else json.dumps(value, ensure_ascii=False)
