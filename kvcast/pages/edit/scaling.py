"""The [autoscale] section in the sidebar: a rule, its target, the fewest replicas, what a start takes, or a schedule.

The one idea: the few keys that a planner sets; every other one stays as the scenario has it, and an empty field is the
rule's own value.

    config = draw(base)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from kvcast.pages.edit.plain import plain
from kvcast.pages.edit.widgets import about, hint, number, select
from sim.scaling import RULES
from sim.scenario import NEVER_SCALES, SCHEDULE, AutoscaleConfig, Scenario
from workloads.errors import InputError

RULE, TARGET, FEWEST, START, TIMES, PROBLEM = (
    f"autoscale.{name}" for name in ("rule", "target", "min_replicas", "start_s", "times", "problem")
)
KEYS = (RULE, TARGET, FEWEST, START, TIMES)
TIME = re.compile(r"(\d{1,5}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?")
A_DAY = "0:00 1, 8:00 2, 18:00 1"
METRICS = {
    "requests": "requests in flight",
    "running": "requests running",
    "waiting": "requests waiting",
    "kv": "share of KV memory in use",
    "tokens": "share of KV memory in use",
    "ttft": "seconds to the first token",
}


def adopt(scenario: Scenario) -> None:
    """Make the fields say what the scenario says."""
    state, given = st.session_state, scenario.autoscale
    state[RULE], state[TARGET], state[FEWEST], state[START] = (
        given.rule,
        given.target,
        given.min_replicas,
        given.start_s,
    )
    state[TIMES], state[PROBLEM] = written(given.times_s, given.replicas), ""


def draw(base: Scenario) -> AutoscaleConfig:
    """The section that the fields say."""
    state = st.session_state
    rule = state[RULE]
    with st.expander("Autoscale" if rule == NEVER_SCALES else f"Autoscale: {rule}"):
        choices = about(AutoscaleConfig, "rule")["choices"]
        rule = str(select(st, "Rule", choices, RULE, help=hint(AutoscaleConfig, "rule"), on_change=_another))
        state[PROBLEM] = ""
        if rule == NEVER_SCALES:
            return replace(base.autoscale, rule=rule)
        st.caption("Replicas, above, are the most; all are up when the run begins.")
        fewest = _number("Fewest replicas", FEWEST, "min_replicas", None)
        start = _number("Seconds of a start", START, "start_s", "146 and its weights")
        found = replace(base.autoscale, rule=rule, min_replicas=fewest, start_s=start)
        return _schedule(found) if rule == SCHEDULE else _target(base, found)


def _another() -> None:
    """Another rule has its own target, and a schedule something to begin with."""
    state = st.session_state
    state[TARGET] = None
    if state[RULE] == SCHEDULE and not state[TIMES]:
        state[TIMES] = A_DAY


def _number(label: str, key: str, name: str, empty: str | None) -> Any:
    limit = about(AutoscaleConfig, name)["limit"]
    kind = int if name == "min_replicas" else float
    look: dict[str, Any] = {"format": "%g"} if kind is float else {}
    return number(
        st,
        label,
        kind(limit.low),
        kind(limit.high),
        key,
        help=hint(AutoscaleConfig, name),
        placeholder=empty or "",
        **look,
    )


def _target(base: Scenario, given: AutoscaleConfig) -> AutoscaleConfig:
    own = RULES[given.rule]
    metric = given.metric or own.metric
    default = own.target if metric == own.metric else None
    placeholder = f"{default:g}" if default is not None else "the TTFT limit" if metric == "ttft" else "yours"
    target = number(
        st,
        f"Target, {METRICS[metric]} a replica",
        1e-6,
        1e9,
        TARGET,
        help=hint(AutoscaleConfig, "target"),
        placeholder=placeholder,
        format="%g",
    )
    if target is None and default is None and metric != "ttft":
        _wrong(f"[autoscale] rule = {given.rule!r}: expected a target with it")
    if metric == "tokens" and given.prefill_tokens_per_s is None:
        _wrong(f"[autoscale] rule = {given.rule!r}: expected prefill_tokens_per_s, a key of the scenario file")
    return replace(given, target=target)


def _schedule(given: AutoscaleConfig) -> AutoscaleConfig:
    words = st.text_input(
        "From when how many",
        st.session_state[TIMES],
        key=TIMES,
        help=plain(f"{hint(AutoscaleConfig, 'times_s')}; {hint(AutoscaleConfig, 'replicas')}. Such as {A_DAY}"),
    )
    try:
        times_s, replicas = read(words)
    except InputError as error:
        _wrong(str(error))
        return given
    return replace(given, times_s=times_s, replicas=replicas)


def _wrong(line: str) -> None:
    """Say it here, and above the page."""
    st.session_state[PROBLEM] = line
    st.caption(f":red[{plain(line)}]")


# -- a schedule as text ------------------------------------------------------------------------------------------------


def written(times_s: Sequence[float], replicas: Sequence[int]) -> str:
    """ "0:00 1, 6:55 2" of seconds and replicas."""
    return ", ".join(f"{_clock(at_s)} {n}" for at_s, n in zip(times_s, replicas, strict=False))


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(at_s, 60)
    hours, minutes = divmod(int(minutes), 60)
    whole = seconds == int(seconds)
    return f"{hours}:{minutes:02d}" + ("" if not seconds else f":{seconds:02.0f}" if whole else f":{seconds:06.3f}")


def read(words: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """(seconds, replicas) of "0:00 1, 6:55 2". Raises InputError with the part that is none."""
    rows = []
    for part in filter(None, (part.strip() for part in words.split(","))):
        time, _, many = part.partition(" ")
        found = TIME.fullmatch(time)
        if found is None or not many.strip().isdecimal():
            raise InputError(f"schedule: {part[:60]!r}, expected a time and a number of replicas, such as {A_DAY}")
        hours, minutes, seconds = found.groups()
        rows.append((int(hours) * 3600.0 + int(minutes) * 60.0 + float(seconds or 0), int(many)))
    if not rows:
        raise InputError(f"schedule: nothing, expected times and numbers of replicas, such as {A_DAY}")
    return tuple(at_s for at_s, _ in rows), tuple(n for _, n in rows)
