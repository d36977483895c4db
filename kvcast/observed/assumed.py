"""A scenario of what was seen, and of what must be assumed because a metrics page does not say it.

The one idea: a bucket of prompt lengths is a class. Its prompts are as long as one place in the bucket, the same place
in all buckets, at which their mean is the recorded one; and they begin with one text of their class, long enough that
a cache that keeps it hits the recorded share of the tokens.
"""

from __future__ import annotations

import math
from typing import Any

from kvcast.benchmarks.question import Question, as_toml
from kvcast.config import override, scenario_from_doc
from kvcast.observed.counted import Lengths, Seen
from kvcast.observed.series import SIMULATED
from workloads.errors import InputError

NOT_SAID = (
    "not on the page: the GPU and how many; the engine's version and flags; sessions and think times;"
    " which prompts share text; how arrivals bunch; whether long prompts get long answers"
)


def as_scenario(seen: Seen, overrides: list[str] | None = None) -> str:
    """The scenario as a TOML file that begins with what was seen and what was assumed. InputError where the overrides
    make none."""
    document, notes = document_of(seen)
    document = override(document, overrides or [])
    if not {"gpu", "profile"} & set(document.get("hardware", {})):
        notes.append("hardware.gpu is not set: kvcast's default profile would be simulated; --set hardware.gpu=h200")
    scenario_from_doc(document, "the observed scenario")
    question = Question("kvcast observe", seen.source, notes=notes)
    return as_toml(question, document)


def document_of(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """(the scenario's tables, what to know of them)."""
    prompts, prompt_notes = points(seen.prompts, "prompts")
    answers, answer_notes = points(seen.answers, "answers")
    block = seen.block_size or (1 if seen.engine == "sglang" else 16)
    classes, hit = _classes(prompts, seen.hit_rate or 0.0, block)
    values, weights = [float(tokens) for tokens, _, _ in answers], [weight for _, weight, _ in answers]
    output = {"value": values[0]} if len(values) == 1 else {"kind": "empirical", "values": values, "weights": weights}
    for one in classes:
        one["output"] = output
    engine: dict[str, Any] = {"semantics": seen.engine, "block_size": block}
    if seen.kv_blocks:
        engine["kv_blocks"] = seen.kv_blocks
    document: dict[str, Any] = {
        "name": f"observed: {seen.source}",
        **_model(seen),
        "engine": engine,
        **({"cluster": {"replicas": seen.replicas}} if seen.replicas > 1 else {}),
        **({"cache": {"enabled": False}} if seen.prefix_caching is False else {}),
        "workload": {"rate": float(f"{seen.rate:.6g}"), "class": classes},
    }
    return document, [*_seen_notes(seen), *prompt_notes, *answer_notes, *_assumptions(seen, hit), *seen.notes]


def points(lengths: Lengths, what: str) -> tuple[list[tuple[int, float, str]], list[str]]:
    """((tokens, share, name of the bucket) of every bucket with requests; what to know).

    A bucket (low, high] stands at low + p (high - low), p in (0, 1] the same for all: the recorded mean decides it."""
    if not lengths.requests:
        mean = lengths.mean or 1.0
        return [(max(round(mean), 1), 1.0, "all")], [
            f"{what}: the server keeps no histogram, all are as long as their mean, {mean:,.1f} tokens"
        ]
    total, notes, rows = math.fsum(lengths.requests), list[str](), []
    for low, high, count in zip(lengths.low, lengths.high, lengths.requests, strict=True):
        if count > 0:
            if math.isinf(high):
                notes.append(
                    f"{what}: {count / total:.1%} are longer than {low:,.0f} tokens, taken as up to twice that"
                )
            rows.append((low, 2 * max(low, 1.0) if math.isinf(high) else high, count / total))
    least, widths = math.fsum(low * w for low, _, w in rows), math.fsum((high - low) * w for low, high, w in rows)
    place = 0.5 if lengths.mean is None else (lengths.mean - least) / widths
    if not 0 <= place <= 1:
        notes.append(f"{what}: the recorded mean, {lengths.mean:,.1f}, is outside the buckets; their ends are taken")
    place = min(max(place, 0.0), 1.0)
    found = [
        (max(round(low + place * (high - low)), 1), weight, f"{low:.0f} to {high:.0f}") for low, high, weight in rows
    ]
    wide = max((high / low for low, high, _ in rows if low > 0), default=0.0)
    notes.append(
        f"{what}: {len(found)} buckets, each as one length"
        + (f"; a request may be up to {wide:.2g} times another of its bucket" if wide else "")
    )
    return found, notes


def _classes(prompts: list[tuple[int, float, str]], hit_rate: float, block: int) -> tuple[list[dict[str, Any]], float]:
    """(a class of each bucket; the share of prompt tokens that an unlimited cache hits: whole blocks, not the last
    token)."""
    classes, hits = [], 0.0
    total = math.fsum(tokens * share for tokens, share, _ in prompts)
    owed = 0.0  #: hits that rounding to blocks has taken from classes so far
    for tokens, share, name in prompts:
        wanted = hit_rate * tokens + owed / share
        shared = min(round(wanted / block), (tokens - 1) // block) * block
        owed = (wanted - shared) * share
        hits += shared * share
        layers = [{"name": "shared", "scope": "global", "tokens": {"value": float(shared)}}] if shared else []
        layers.append({"name": "own", "scope": "dynamic", "tokens": {"value": float(tokens - shared)}})
        classes.append({"name": f"prompts of {name}", "share": float(f"{share:.6g}"), "layers": layers})
    return classes, hits / total


def _model(seen: Seen) -> dict[str, Any]:
    """The [model] table of the served name, none where it is no name of a model."""
    from kvcast.planner.flags import model_keys

    try:
        return {
            "model": dict(
                one.removeprefix("model.").split("=", 1) for one in model_keys(seen.model.removesuffix(SIMULATED))
            )
        }
    except (ValueError, OSError, InputError):
        seen.notes.append(f"the served name {seen.model!r} names no model; --set model.name=...")
        return {}


def _seen_notes(seen: Seen) -> list[str]:
    spread = 1 / math.sqrt(seen.finished)
    return [
        f"seen in {seen.seconds:,.1f} s: {seen.finished} requests finished, {seen.arrived:g} came: {seen.rate:.4g}/s,"
        f" give or take {spread:.0%} (one standard deviation, were they a Poisson process)",
        f"seen: {seen.running:.1f} running and {seen.waiting:.1f} waiting on average"
        + ("" if seen.usage is None else f", {seen.usage:.1%} of the KV memory in use"),
        "seen: hit rate "
        + ("unknown, none is assumed" if seen.hit_rate is None else f"{seen.hit_rate:.2%} of the prompt tokens"),
        NOT_SAID,
    ]


def _assumptions(seen: Seen, hit: float) -> list[str]:
    lines = ["assumed: requests come as a Poisson process and are sessions of one; answers do not depend on prompts"]
    if seen.hit_rate:
        lines.append(
            f"assumed: all prompts of a bucket begin with one text, which makes {hit:.2%} of the tokens hits of a cache"
            " that keeps it; where the real ones are histories of sessions, more memory helps the server and not this"
        )
    if seen.kv_blocks is None:
        lines.append("assumed: KV blocks from kvcast's arithmetic, the page does not say them")
    return lines
