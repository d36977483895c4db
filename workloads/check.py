"""What a mix may not be: each impossible setting is one line naming the class, the field and what was expected.

>>> check(WorkloadConfig(class_=(MixClass(name="chat"),)))
"""

from __future__ import annotations

import math
from dataclasses import fields

from workloads import arrivals, dists
from workloads.columns import SCOPES
from workloads.config import POOLED, Layer, MixClass, WorkloadConfig
from workloads.dists import expected, one_of
from workloads.errors import InputError
from workloads.limits import check_values

TRACE_ONLY = (
    "format",
    "timestamp_unit",
    "columns",
    "folder",
    "end_s",
    "sample",
    "jitter_s",
    "users",
    "think",
    "think_scale",
    "share_tools",
    "tokenizer",
    "chars_per_token",
    "message_tokens",
    "first_turn_only",
    "answer_tokens",
)
MAX_ITEMS = 10_000_000
MAX_CLASSES, MAX_LAYERS = 1000, 10_000  # class and layer numbers are 16 bits
MAX_TENANTS = 1_000_000  # of all classes together: each has a name and a row in the report
MAX_TURNS = 100_000
MAX_REQUESTS = 100_000_000  # about 20 GB of columns
LEAST, MOST = 1e-9, 1e9  # rates and shares; counts and seconds up to MOST


def loop_of(config: WorkloadConfig) -> str:
    """open, sessions or concurrency; auto is concurrency when that is set, else sessions."""
    if config.loop != "auto":
        return config.loop
    return "sessions" if config.concurrency is None else "concurrency"


def class_rates(config: WorkloadConfig) -> list[float]:
    """Session arrivals per second of every class, rate_scale included; of a class with trace times, their speed-up."""
    total = (
        config.rate if config.rate is not None else 1.0
    )  # only a fixed concurrency has no rate: then only the mix counts
    shares = sum(c.share or 0 for c in config.class_)
    rates = []
    for c in config.class_:
        own = 1.0 if c.arrival.kind == "trace" else c.rate
        rates.append((own if own is not None else total * (c.share or 0) / shares) * config.rate_scale)
    return rates


def check(config: WorkloadConfig) -> None:
    """Raise InputError for the first thing that makes the mix impossible."""
    if not config.class_:
        raise InputError("[workload] is not a mix: it has no [[workload.class]] table and names no preset")
    default = WorkloadConfig()
    for name in TRACE_ONLY:
        if getattr(config, name) != getattr(default, name):
            raise InputError(
                f"[workload] {name} = {getattr(config, name)!r} is for traces and has no meaning for a mix"
            )
    _check_bounds(config)
    if len(config.class_) > MAX_CLASSES:
        raise InputError(f"[workload] has {len(config.class_):,} classes, expected at most {MAX_CLASSES:,}")
    names = [c.name for c in config.class_]
    for i, c in enumerate(config.class_):
        where = f"[[workload.class]] number {i + 1}: name"
        if not _is_label(c.name) or names.index(c.name) != i:
            raise expected(where, c.name, "a label that no other class has")
        if c.name == POOLED:
            raise expected(where, c.name, "another label: it is what verdicts call all classes together")
        _check_class(c, f"[[workload.class]] {c.name!r}:", config)
    _check_rates(config)
    _check_pace(config)
    _check_shared_texts(config)
    _check_sizes(config)


def _is_label(name: str) -> bool:
    """Whether a name can be seen, and told from another by looking at it."""
    return name.isprintable() and name == name.strip() != ""


def _positive(where: str, value: float | None, least: float = 0.0) -> None:
    if value is not None and not 0 < value < math.inf:
        raise expected(where, value, "a finite number above 0")
    if value is not None and not least <= value <= MOST:
        raise expected(where, value, f"{least:g} to {MOST:g}")


def _check_bounds(config: WorkloadConfig) -> None:
    check_values(config, "[workload]")
    if (loop_of(config) == "concurrency") != (config.concurrency is not None):
        raise InputError(
            f"[workload] loop = {config.loop!r} with concurrency = {config.concurrency}, expected both loop ="
            ' "concurrency" and its number, or neither'
        )
    if config.paced and config.concurrency is None:
        raise InputError('[workload] paced = true, expected it with loop = "concurrency" and its number')
    if config.concurrency is not None and config.duration_s is not None and config.requests is None:
        raise InputError(
            '[workload] needs requests with loop = "concurrency": a fixed concurrency has no arrival times for'
            " duration_s to bound"
        )
    if config.skip_ended_s and config.concurrency is not None:
        raise InputError(
            f"[workload] skip_ended_s = {config.skip_ended_s:g}, expected 0 with a concurrency: when its sessions are"
            " over is not known before the run"
        )
    if config.start_s and not any(c.arrival.curve for c in config.class_):
        raise InputError(
            f"[workload] start_s = {config.start_s:g}, expected it with a mix in which a class follows the clock"
            " (arrival.curve, or [workload.demand]), or a trace"
        )


def _check_pace(config: WorkloadConfig) -> None:
    for c in config.class_:
        asked = [*(["exact"] if c.arrival.exact else []), *(["ramp_to"] if c.arrival.ramp_to is not None else [])]
        if not asked:
            continue
        where = f"[[workload.class]] {c.name!r}: arrival.{asked[0]}"
        if len(config.class_) > 1 or config.requests is None or config.duration_s is not None:
            raise InputError(f"{where} is for a mix of one class that ends after [workload] requests, not duration_s")
        if c.arrival.kind not in ("poisson", "gamma") or c.arrival.curve or len(asked) > 1:
            raise InputError(f"{where} is for poisson or gamma arrivals, and not for exact and ramp_to together")


def _check_rates(config: WorkloadConfig) -> None:
    with_share = [c for c in config.class_ if c.share is not None]
    if config.rate is not None and not with_share:
        raise InputError(
            f"[workload] rate = {config.rate:g} has no effect: no class has a share (rate_scale speeds up every class)"
        )
    if with_share and config.rate is None and config.concurrency is None:
        raise InputError(
            f"[[workload.class]] {with_share[0].name!r}: share = {with_share[0].share:g} needs [workload] rate, the"
            " session arrivals per second over all classes"
        )
    for c in with_share:
        if config.rate is None and any(layer.redeploy_s or layer.timestamp_s for layer in c.layers):
            raise InputError(
                f"[[workload.class]] {c.name!r}: texts that change with the clock need [workload] rate, which sets the"
                " nominal times"
            )
    if with_share and sum(c.share or 0 for c in with_share) <= 0:
        raise expected(
            f"[[workload.class]] {with_share[0].name!r}: share",
            with_share[0].share,
            "at least one class with a share above 0",
        )


def _check_class(c: MixClass, where: str, config: WorkloadConfig) -> None:
    arrivals.check(c.arrival, f"{where} arrival")
    given = [n for n in ("share", "rate") if getattr(c, n) is not None]
    if c.arrival.kind == "trace":
        if given:
            raise InputError(f'{where} {given[0]} has no meaning with arrival.kind = "trace", whose times_s say it all')
    elif len(given) != 1:
        raise InputError(
            f"{where} expected exactly one of share (with [workload] rate) and rate, got"
            f" {' and '.join(given) or 'neither'}"
        )
    if c.share is not None and not (math.isfinite(c.share) and c.share >= 0):
        raise expected(f"{where} share", c.share, "a finite number of at least 0")
    if c.share:
        _positive(f"{where} share", c.share, LEAST)
    _positive(f"{where} rate", c.rate, LEAST)
    if not c.layers:
        raise InputError(f"{where} needs at least one [[workload.class.layers]] table")
    names = [layer.name for layer in c.layers]
    for i, layer in enumerate(c.layers):
        if not _is_label(layer.name) or names.index(layer.name) != i:
            raise expected(f"{where} layers[{i}].name", layer.name, "a label that no other layer of the class has")
        _check_layer(layer, f"{where} layers[{i}]")
    _check_turns(c, where)
    if c.tenants < 1:
        raise expected(f"{where} tenants", c.tenants, "at least 1")
    if abs(c.priority) > MOST:
        raise expected(f"{where} priority", c.priority, f"-{MOST:g} to {MOST:g}")


def _check_layer(layer: Layer, where: str) -> None:
    one_of(f"{where}.scope", layer.scope, SCOPES[1:])
    dists.check(layer.tokens, f"{where}.tokens")
    if layer.scope != "project" and (layer.items != 1 or layer.zipf != 0):
        raise InputError(f"{where}: items and zipf are for scope project, the scope is {layer.scope}")
    if not 1 <= layer.items <= MAX_ITEMS:
        raise expected(f"{where}.items", layer.items, f"1 to {MAX_ITEMS:,}")
    for name in ("zipf", "shuffle", "redeploy_s", "timestamp_s"):
        value = getattr(layer, name)
        if not 0 <= value < math.inf:
            raise expected(f"{where}.{name}", value, "a finite number of at least 0")
        most = 20 if name == "zipf" else MOST
        if value > most:
            raise expected(f"{where}.{name}", value, f"at most {most:g}")
        if name.endswith("_s") and 0 < value < 1e-3:
            raise expected(f"{where}.{name}", value, "0 (never) or at least 0.001 s")
        if value and name != "zipf" and layer.scope == "dynamic":
            raise InputError(f"{where}.{name} has no effect on a dynamic layer, which is never the same twice")
    if layer.share and layer.scope not in ("global", "project"):
        raise InputError(
            f"{where}.share = {layer.share!r} is for scopes global and project, the scope is {layer.scope}"
        )


def _check_sizes(config: WorkloadConfig) -> None:
    """Refuse what would fill the memory or never end, before anything is drawn."""
    isolated = [c.name for c in config.class_ if c.isolation]
    if isolated and any(c.lora for c in config.class_):
        raise InputError(
            f"[[workload.class]] {isolated[0]} isolation = true beside a class with lora: expected one of them,"
            " requests of different adapters share nothing anyway"
        )
    for what, total, most in (
        ("layers", sum(len(c.layers) for c in config.class_), MAX_LAYERS),
        ("tenants", sum(c.tenants for c in config.class_), MAX_TENANTS),
    ):
        if total > most:
            raise InputError(f"[[workload.class]] {what}: {total:,} in all classes together, expected at most {most:,}")
    rates = class_rates(config)
    turns = [dists.moments(c.turns)[0] for c in config.class_]
    per_s = sum(rate * n for c, rate, n in zip(config.class_, rates, turns, strict=True) if c.arrival.kind != "trace")
    span_s = min(config.duration_s or math.inf, (config.requests or math.inf) / per_s if per_s else math.inf)
    if not math.isfinite(span_s):
        span_s = 0.0  # recorded times alone
    if span_s > MOST:
        raise InputError(
            f"[workload] requests = {config.requests:,}: they take {span_s:.3g} s at this rate, expected at most"
            f" {MOST:g} s"
        )
    if span_s * per_s > MAX_REQUESTS:
        raise InputError(
            f"[workload] has about {span_s * per_s:.3g} requests, expected at most {MAX_REQUESTS:,}: set requests, a"
            " shorter duration_s or a lower rate"
        )


def _check_turns(c: MixClass, where: str) -> None:
    dists.check(c.output, f"{where} output")
    dists.check(c.turns, f"{where} turns", lowest=1, highest=MAX_TURNS)
    for name in ("turn_input", "think", "tool_gap"):
        if getattr(c, name) is not None:
            dists.check(getattr(c, name), f"{where} {name}")
    if not 0 <= c.tool_share <= 1:
        raise expected(f"{where} tool_share", c.tool_share, "a share from 0 to 1")
    if not dists.can_exceed(c.turns, 1):
        return
    if c.turn_input is None and c.layers[-1].scope != "dynamic":
        raise InputError(f"{where} sessions have several turns and no final dynamic layer, expected turn_input")
    if c.tool_share < 1 and c.think is None:
        raise InputError(
            f"{where} sessions have several turns, expected think (seconds between an answer and the next request)"
        )
    if c.tool_share > 0 and c.tool_gap is None:
        raise InputError(f"{where} tool_share = {c.tool_share:g} needs tool_gap")


def _check_shared_texts(config: WorkloadConfig) -> None:
    """Layers that share their texts must agree on everything but their popularity."""
    seen: dict[str, tuple[str, Layer]] = {}
    for c in config.class_:
        for layer in c.layers:
            if not layer.share:
                continue
            owner, other = seen.setdefault(layer.share, (c.name, layer))
            for f in fields(layer):
                if f.name not in ("name", "zipf") and getattr(layer, f.name) != getattr(other, f.name):
                    raise InputError(
                        f"[[workload.class]] {c.name!r}: layer {layer.name!r} shares {layer.share!r} with {owner!r} but"
                        f" {f.name} differs: {getattr(layer, f.name)!r}, expected {getattr(other, f.name)!r}"
                    )
