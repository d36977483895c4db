"""A mix as a table people edit, and back: one row a class (`layers` edits their prompts).

The one idea: a distribution is a short text that reads as it is said ("129 p90 424 max 1000"), so a table cell holds
any of them; a row edits what it shows and keeps what it does not show from the class it came from.

    >>> from kvcast.pages import mix
    >>> mix.dist_text(mix.parse_dist("16k"))
    '16000'
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from workloads.check import class_rates
from workloads.config import Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.steady import session_s

Row = dict[str, Any]
GRAMMAR = (
    '"1200" fixed; "129 p90 424" lognormal by median and 90th percentile (or "129 sigma 0.9"); "geometric 4";'
    ' "exponential 10"; "uniform 3 to 50"; "empirical 2000:3 8000:1" values with weights. Add "min 10" or "max 1000" to'
    ' clip; "16k" is 16000.'
)
WORDS = {"p90": "p90", "sigma": "sigma", "mean": "mean", "min": "low", "max": "high", "to": "high"}
NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+))?(k?)$")


def dist_text(dist: Dist | None) -> str:
    """The distribution as a cell's text; `parse_dist` reads it back."""
    if dist is None:
        return ""
    if dist.kind == "fixed":
        return _number_text(dist.value)
    if dist.kind == "uniform":
        return f"uniform {_number_text(dist.low)} to {_number_text(dist.high)}"
    if dist.kind == "empirical":
        weights = dist.weights or (1.0,) * len(dist.values)
        words = [
            "empirical",
            *(f"{_number_text(v)}:{_number_text(w)}" for v, w in zip(dist.values, weights, strict=True)),
        ]
    elif dist.kind == "lognormal":
        words = [
            _number_text(dist.median),
            *(
                f"{name} {_number_text(getattr(dist, name))}"
                for name in ("p90", "sigma", "mean")
                if getattr(dist, name) is not None
            ),
        ]
    else:
        words = [dist.kind, _number_text(dist.mean)]
    clips = [
        f"{word} {_number_text(value)}" for word, value in (("min", dist.low), ("max", dist.high)) if value is not None
    ]
    return " ".join(words + clips)


def parse_dist(text: str, where: str = "cell") -> Dist:
    """The distribution that a cell's text says. Raises InputError with the grammar."""
    words = text.replace(",", "").lower().split()
    if not words:
        raise InputError(f"{where} is empty, expected a distribution: {GRAMMAR}")
    kind = (
        words.pop(0) if words[0] in ("fixed", "lognormal", "geometric", "exponential", "uniform", "empirical") else ""
    )
    if kind == "empirical":
        return _empirical(words, text, where)
    first = _number(words.pop(0), text, where) if words else None
    if first is None:
        raise _unreadable(text, where)
    named = _named(words, text, where)
    if kind == "uniform":
        return Dist(kind="uniform", low=first, **named)
    if kind in ("geometric", "exponential"):
        return Dist(kind=kind, mean=first, **named)
    if kind == "fixed" or (not kind and not named):
        return Dist(kind="fixed", value=first, **named)
    return Dist(kind="lognormal", median=first, **named)


def _named(words: list[str], text: str, where: str) -> dict[str, Any]:
    """{"p90": 424.0, "high": 1000.0} from ["p90", "424", "max", "1000"]."""
    if len(words) % 2:
        raise _unreadable(text, where)
    named: dict[str, Any] = {}
    for word, value in zip(words[::2], words[1::2], strict=True):
        if word not in WORDS or WORDS[word] in named:
            raise _unreadable(text, where)
        named[WORDS[word]] = _number(value, text, where)
    return named


def _empirical(words: list[str], text: str, where: str) -> Dist:
    pairs, clips = [w for w in words if ":" in w], [w for w in words if ":" not in w]
    if not pairs or any(w.count(":") != 1 for w in pairs):
        raise _unreadable(text, where)
    values, weights = zip(*(tuple(_number(part, text, where) for part in w.split(":")) for w in pairs), strict=True)
    return Dist(kind="empirical", values=values, weights=weights, **_named(clips, text, where))


def number(text: str, where: str) -> float:
    """The number a cell's text says: 16000, 16,000 or 16k. Raises InputError."""
    match = NUMBER.match(text.replace(",", "").strip().lower())
    if not match:
        raise InputError(f"{where} = {text!r}, expected a number such as 16000 or 16k")
    return _number(match[0], text, where)


def _number(word: str, text: str, where: str) -> float:
    match = NUMBER.match(word)
    if not match:
        raise _unreadable(text, where)
    value = float(f"{match[1]}e{match[2] or 0}") * (1000 if match[3] else 1)
    if not math.isfinite(value):
        raise _unreadable(text, where)
    return value


def _unreadable(text: str, where: str) -> InputError:
    return InputError(f"{where} = {text!r}, expected a distribution: {GRAMMAR}")


def _number_text(value: float | None) -> str:
    """The shortest text that reads back as the same number."""
    if value is None:
        return "?"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


# -- the table
# ------------------------------------------------------------------------------------------------------------

CLASS_COLUMNS = {  # column: (label, help)
    "name": ("class", "a label, unique in the mix"),
    "rate": ("sessions/s", "session arrivals per second; a session is one or more requests (turns)"),
    "turns": ("turns", "requests in a session. " + GRAMMAR),
    "think": ("think time (s)", "seconds between an answer and the user's next request. " + GRAMMAR),
    "turn_input": ("input per turn (tokens)", "new user or tool tokens of every turn after the first. " + GRAMMAR),
    "output": ("output (tokens)", "output tokens of each request. " + GRAMMAR),
    "tool_share": (
        "tool loop share",
        "share of the later turns that follow a tool's run instead of a person's thinking, 0 to 1",
    ),
    "tool_gap": ("tool time (s)", "seconds between an answer and the agent's next request. " + GRAMMAR),
    "tenants": ("tenants", "number of tenants the sessions are spread over, evenly"),
    "isolation": ("isolated", "tenants share no cached prefix (a cache salt each)"),
    "slo_class": ("SLO class", "which row of the limits applies; empty: the limits for everyone"),
}
DIST_FIELDS = ("turns", "think", "tool_gap", "turn_input", "output")


def class_rows(config: WorkloadConfig) -> list[Row]:
    """One row a class. A share is shown as the sessions per second it stands for (rate_scale 1)."""
    rates = class_rates(replace(config, rate_scale=1.0))
    rows = []
    for c, rate in zip(config.class_, rates, strict=True):
        row: Row = {name: getattr(c, name) for name in CLASS_COLUMNS if name not in ("rate", *DIST_FIELDS)}
        row |= {name: dist_text(getattr(c, name)) for name in DIST_FIELDS}
        row["rate"] = float(f"{rate:.12g}")  # a table's number survives its way to the browser and back
        rows.append({name: row[name] for name in CLASS_COLUMNS})
    return rows


def edited(config: WorkloadConfig, edits: Mapping[str, Any]) -> WorkloadConfig:
    """The mix after the edits of its table, in the form of st.data_editor's state: edited_rows {row: {column: value}},
    added_rows and deleted_rows. A new class starts with what its row does not say as `new_class` has it. Raises
    InputError."""
    rows = class_rows(config)
    classes = []
    for i, (row, c) in enumerate(zip(rows, config.class_, strict=True)):
        changes = edits.get("edited_rows", {}).get(i, edits.get("edited_rows", {}).get(str(i), {}))
        if i not in edits.get("deleted_rows", ()):
            classes.append(_class({**row, **changes}, i, c) if changes else c)
    for row in edits.get("added_rows", ()):
        fresh = new_class([c.name for c in classes])
        shown = class_rows(replace(config, class_=(fresh,), rate=None))[0]
        classes.append(_class({**shown, **{k: v for k, v in row.items() if not _empty(v)}}, len(classes), fresh))
    if not classes:
        raise InputError("the mix has no class left, expected at least one")
    return with_classes(config, classes)


def with_classes(config: WorkloadConfig, classes: Sequence[MixClass]) -> WorkloadConfig:
    """The mix of these classes; once one of them has a rate of its own, every share becomes one."""
    if all(c.rate is None for c in classes):
        return replace(config, preset=None, class_=tuple(classes))
    before = dict(zip(config.class_, class_rates(replace(config, rate_scale=1.0)), strict=True))
    fixed = [
        c if c.rate is not None or c.arrival.kind == "trace" else replace(c, share=None, rate=before[c])
        for c in classes
    ]
    return replace(config, preset=None, class_=tuple(fixed), rate=None)


def new_class(names: Sequence[str]) -> MixClass:
    """A class to start from: one request a session, a system prompt that all share, a message of its own."""
    layers = (
        Layer(name="system", scope="global", tokens=Dist(value=1000.0)),
        Layer(name="message", tokens=Dist(value=500.0)),
    )
    return MixClass(name=unused("new class", names), rate=1.0, layers=layers, output=Dist(value=200.0))


def with_preset(config: WorkloadConfig, preset: WorkloadConfig) -> WorkloadConfig:
    """The mix with a preset's classes beside its own, at the preset's rates, under names of their own."""
    classes = list(config.class_)
    for c, rate in zip(preset.class_, class_rates(preset), strict=True):
        label = unused(c.name, [each.name for each in classes])
        classes.append(replace(c, name=label, share=None, rate=None if c.arrival.kind == "trace" else rate))
    return with_classes(config, classes)


def with_class(config: WorkloadConfig, name: str, **values: Any) -> WorkloadConfig:
    """The mix with other values for one class."""
    return with_classes(config, [replace(c, **values) if c.name == name else c for c in config.class_])


def unused(name: str, names: Sequence[str]) -> str:
    """The name, with a number behind it when it is taken."""
    return next(label for label in (name, *(f"{name} {i}" for i in range(2, len(names) + 3))) if label not in names)


def for_users(config: WorkloadConfig, name: str, users: float) -> WorkloadConfig:
    """The mix in which this many sessions of a class are in progress at once, on average (Little's law: rate = users /
    length)."""
    c = next(c for c in config.class_ if c.name == name)
    return with_class(config, name, share=None, rate=float(f"{users / session_s(c):.6g}"))


def users(config: WorkloadConfig, name: str) -> float:
    """Sessions of a class in progress at once, on average."""
    rates = class_rates(replace(config, rate_scale=1.0))
    return next(rate * session_s(c) for c, rate in zip(config.class_, rates, strict=True) if c.name == name)


def _class(row: Mapping[str, Any], i: int, base: MixClass) -> MixClass:
    name = str(row.get("name") or "").strip()
    where = f"classes, row {i + 1}: "
    if not name:
        raise InputError(f"{where}class is empty, expected a label")
    values: dict[str, Any] = {"name": name, "share": None, "rate": _rate(row, base, where)}
    for key in DIST_FIELDS:
        cell = row.get(key)
        if not _empty(cell):
            values[key] = parse_dist(str(cell), f"{where}{CLASS_COLUMNS[key][0]}")
        elif key in ("turns", "output"):
            raise InputError(f"{where}{CLASS_COLUMNS[key][0]} is empty, expected a distribution: {GRAMMAR}")
        else:
            values[key] = None
    values |= {
        key: _cell(row, key, default)
        for key, default in (("tool_share", 0.0), ("tenants", 1), ("isolation", False), ("slo_class", ""))
    }
    return replace(base, **values)


def _rate(row: Mapping[str, Any], base: MixClass, where: str) -> float | None:
    if base.arrival.kind == "trace":
        return None
    if _empty(row.get("rate")):
        raise InputError(f"{where}sessions/s is empty, expected a number above 0")
    return float(row["rate"])


def _cell(row: Mapping[str, Any], key: str, default: Any) -> Any:
    """The cell's value in the default's type; the default where it is empty."""
    return default if _empty(row.get(key)) else type(default)(row[key])


def _empty(value: Any) -> bool:
    """Whether a cell holds nothing: None, an empty text, or the NaN that a new row brings."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


def same(a: WorkloadConfig, b: WorkloadConfig) -> bool:
    """Whether two mixes are the same but for where they come from."""
    return all(getattr(a, f.name) == getattr(b, f.name) for f in fields(WorkloadConfig) if f.name != "preset")
