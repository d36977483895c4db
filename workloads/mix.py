"""A mix of workload classes -> Workload: sessions arrive, take turns, and read prompts made of layers.

The one idea: everything is drawn as columns from streams named after the class and the layer, so another class, a
longer run or another rate leaves the rest of the draws as they were.

    >>> build(load_preset("chat"), seed=0)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from workloads import arrivals, dists, steady
from workloads.check import check, class_rates, loop_of
from workloads.columns import SCOPES, Workload
from workloads.config import TENANT, MixClass, WorkloadConfig
from workloads.demand import applied
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, WITHIN
from workloads.prompt import Parts, Texts, TreeBuilder, Use
from workloads.surges import Extra, all_classes, extras
from workloads.toml import list_presets, load_preset
from workloads.transform import NOMINAL_TOKEN_S

__all__ = ["build", "list_presets", "load_preset", "resolve"]


@functools.lru_cache(maxsize=256)
def resolve(config: WorkloadConfig) -> WorkloadConfig:
    """The mix itself: its tables, with its demand in the classes' arrivals. Raises InputError if impossible."""
    config = applied(tables(config))
    check(config)
    return config


def tables(config: WorkloadConfig) -> WorkloadConfig:
    """A preset's tables with every field that `config` sets on top, or its own; a demand stays what it is. Raises
    InputError."""
    given = [n for n, v in (("preset", config.preset), ("trace", config.trace), ("class", config.class_)) if v]
    if len(given) > 1:
        raise InputError(f"[workload] has {' and '.join(given)}, expected exactly one of preset, trace and class")
    if config.preset is None:
        return config
    default = WorkloadConfig()
    changed = {
        f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != getattr(default, f.name)
    }
    return replace(load_preset(config.preset), **changed)


def ending(config: WorkloadConfig, token_s: float = NOMINAL_TOKEN_S) -> WorkloadConfig:
    """A resolved mix that says where it ends: where nothing says so, after as long as it takes to judge it. token_s: an
    output token's time."""
    if config.duration_s is not None or config.requests is not None:
        return config
    if config.concurrency is not None:
        return replace(config, requests=steady.closed_requests(config))
    if not steady.stationary(config):
        raise InputError(
            "[workload] needs duration_s or requests (or both) to say where a mix with recorded arrivals ends"
        )
    return replace(config, duration_s=steady.window_s(config, token_s))


def build(config: WorkloadConfig, seed: int) -> Workload:
    """Generate the mix. Rows are in order of nominal time: a session's start plus its think times and tool gaps.

    Texts that change with the clock (redeploy_s, timestamp_s) follow the nominal time, since a closed loop's real
    times are not known before the run; answers count as instantaneous there.
    """
    config = ending(resolve(config))
    cast = _Cast.of(config)
    sessions, requests = _drawn(config, cast, seed)
    return _workload(config, cast, sessions, requests, seed)


def nominal(config: WorkloadConfig, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(class, turn, nominal time in seconds), [n] each, of every request of `build`, without the cost of its text."""
    config = ending(resolve(config))
    cast = _Cast.of(config)
    sessions, requests = _drawn(config, cast, seed)
    return cast.owner[sessions.cls[requests.session]], requests.turn, requests.clock_s


_Columns = TypeVar("_Columns", "_Sessions", "_Requests")


@dataclass(frozen=True)
class _Cast:
    """Whose sessions are drawn: the mix's classes, then those of its surges."""

    classes: tuple[MixClass, ...]
    extras: tuple[Extra, ...]
    owner: np.ndarray  #: int16 [classes], the class of the mix, or the storm, that each counts as

    @classmethod
    def of(cls, config: WorkloadConfig) -> _Cast:
        more = tuple(extras(config))
        own = range(len(config.class_))
        owner = np.array([*own, *(one.owner for one in more)], np.int16)
        return cls(config.class_ + tuple(one.mix_class for one in more), more, owner)

    def texts_of(self, place: int) -> str:
        """The class that owns the global and project texts of the class at this place: a burst's are the mix's."""
        own = len(self.classes) - len(self.extras)
        return self.classes[self.owner[place] if self.owner[place] < own else place].name


@dataclass(frozen=True)
class _Sessions:
    """Columns [n_sessions] in order of start."""

    cls: np.ndarray  #: int16, class
    number: np.ndarray  #: int64, 0, 1, ... within the class
    start_s: np.ndarray
    turns: np.ndarray  #: int64, >= 1


def _sessions(config: WorkloadConfig, cast: _Cast, seed: int) -> _Sessions:
    """The mix's sessions, and those of its surges among them."""
    own = _own_sessions(config, seed)
    if not cast.extras:
        return own
    parts = [own]
    for place, extra in enumerate(cast.extras, len(config.class_)):
        start_s = extra.starts_s(seed)
        if config.duration_s is not None:
            start_s = start_s[start_s < config.duration_s]
        n = len(start_s)
        turns = dists.counts(extra.mix_class.turns, n, dists.stream(seed, extra.mix_class.name, "turns"))
        parts.append(_Sessions(np.full(n, place, np.int16), np.arange(n), start_s, turns))
    joined = [_joined([getattr(part, f.name) for part in parts]) for f in fields(_Sessions)]
    order = np.argsort(joined[2], kind="stable")
    return _Sessions(*(column[order] for column in joined))


def _own_sessions(config: WorkloadConfig, seed: int) -> _Sessions:
    """Sessions that start within duration_s, cut after the one in which the number of requests reaches `requests`."""
    rates = class_rates(config)
    expected = sum(
        r * dists.moments(c.turns)[0] for c, r in zip(config.class_, rates, strict=True) if c.arrival.kind != "trace"
    )
    span = config.duration_s if config.duration_s is not None else math.inf
    if config.requests is not None and expected > 0:
        span = min(span, 1.05 * config.requests / expected + 1 / expected)
    while True:
        sessions = _starting_within(config, rates, span, seed)
        total = np.cumsum(sessions.turns)
        enough = config.requests is not None and len(total) and total[-1] >= config.requests
        if enough or span == math.inf or span == config.duration_s or expected == 0:
            break
        span = min(1.5 * span, config.duration_s if config.duration_s is not None else math.inf)
    if not len(total):
        raise InputError(
            f"[workload] duration_s = {config.duration_s}: no session starts before it ends; raise the rate or the"
            " duration"
        )
    keep = int((total < (config.requests or math.inf)).sum()) + 1
    start_s = sessions.start_s[:keep]
    if len(rates) == 1:
        start_s = arrivals.paced(config.class_[0].arrival, rates[0], start_s)
    return _Sessions(sessions.cls[:keep], sessions.number[:keep], start_s, sessions.turns[:keep])


def _starting_within(config: WorkloadConfig, rates: list[float], span: float, seed: int) -> _Sessions:
    starts, turns = [], []
    for c, rate in zip(config.class_, rates, strict=True):
        begun_s = (
            arrivals.until(c.arrival, rate, config.start_s + span, lambda c=c: dists.stream(seed, c.name, "arrivals"))
            - config.start_s
        )
        starts.append(begun_s[begun_s >= 0])
        turns.append(dists.counts(c.turns, len(starts[-1]), dists.stream(seed, c.name, "turns")))
    sizes = [len(s) for s in starts]
    cls = np.repeat(np.arange(len(sizes), dtype=np.int16), sizes)
    number = np.concatenate([np.arange(n) for n in sizes])
    start_s = np.concatenate(starts)
    if len(sizes) == 1:  # in order already
        return _Sessions(cls, number, start_s, turns[0])
    order = np.argsort(start_s, kind="stable")
    return _Sessions(cls[order], number[order], start_s[order], np.concatenate(turns)[order])


@dataclass(frozen=True)
class _Requests:
    """Columns [n], session by session in turn order."""

    session: np.ndarray  #: int64, row of _Sessions
    turn: np.ndarray  #: int64
    delay_s: np.ndarray  #: float64, think time or tool gap before a later turn
    clock_s: np.ndarray  #: float64, nominal time
    message: np.ndarray  #: int64, new input tokens of the turn; 0 for a first turn without a final dynamic layer
    output: np.ndarray  #: int64


def _drawn(config: WorkloadConfig, cast: _Cast, seed: int) -> tuple[_Sessions, _Requests]:
    """The sessions and their requests, but for sessions that are over before skip_ended_s."""
    sessions = _sessions(config, cast, seed)
    requests = _requests(cast.classes, sessions, seed)
    if not config.skip_ended_s:
        return sessions, requests
    kept = requests.clock_s[np.cumsum(sessions.turns) - 1] >= config.skip_ended_s  # of its last request
    if not kept.any():
        raise InputError(
            f"[workload] skip_ended_s = {config.skip_ended_s:g}: every session is over by then, expected a time within"
            " the workload"
        )
    rows = kept[requests.session]
    numbered = replace(requests, session=(np.cumsum(kept) - 1)[requests.session])
    return _only(sessions, kept), _only(numbered, rows)


def _only(columns: _Columns, rows: np.ndarray) -> _Columns:
    return replace(columns, **{f.name: getattr(columns, f.name)[rows] for f in fields(columns)})


def _rows_by_class(cls: np.ndarray, n_classes: int) -> list[np.ndarray]:
    return [np.flatnonzero(cls == i) for i in range(n_classes)]


def _requests(classes: tuple[MixClass, ...], sessions: _Sessions, seed: int) -> _Requests:
    session = np.repeat(np.arange(len(sessions.turns)), sessions.turns)
    first = np.cumsum(sessions.turns) - sessions.turns  # row of every session's first request
    turn = np.arange(len(session)) - first[session]
    delay_s, message, output = (
        np.zeros(len(session)),
        np.zeros(len(session), np.int64),
        np.zeros(len(session), np.int64),
    )
    clock_s = sessions.start_s[session]
    for c, rows in zip(classes, _rows_by_class(sessions.cls[session], len(classes)), strict=True):
        later = turn[rows] > 0
        output[rows] = dists.counts(c.output, len(rows), dists.stream(seed, c.name, "output"))
        message[rows] = _new_input(c, later, seed)
        if later.any():
            delay_s[rows[later]] = _delays(c, int(later.sum()), seed)
            waited = np.cumsum(
                delay_s[rows]
            )  # a first turn waits 0: a session's own waiting is the difference to its first row
            clock_s[rows] += waited - waited[np.arange(len(rows)) - turn[rows]]
    if not clock_s.max() <= MAX_SECONDS:
        raise InputError(
            f"[workload]: a request would arrive after {clock_s.max():.4g} s, expected {WITHIN}; check rates, think and"
            " tool_gap"
        )
    return _Requests(session, turn, delay_s, clock_s, message, output)


def _new_input(c: MixClass, later: np.ndarray, seed: int) -> np.ndarray:
    """Tokens of each request's own message: the final dynamic layer at first, turn_input in later turns."""
    tokens = np.zeros(len(later), np.int64)
    message = Parts.of(c).message
    if message is not None:
        tokens[~later] = dists.counts(
            message.tokens, int((~later).sum()), dists.stream(seed, c.name, message.name, "tokens")
        )
    if later.any():
        dist = c.turn_input or message.tokens  # type: ignore[union-attr]  # check() saw to it
        tokens[later] = dists.counts(dist, int(later.sum()), dists.stream(seed, c.name, "turn_input"))
    return tokens


def _delays(c: MixClass, n: int, seed: int) -> np.ndarray:
    is_tool = dists.stream(seed, c.name, "tool or think").random(n) < c.tool_share
    delay_s = np.zeros(n)
    for dist, chosen, name in ((c.think, ~is_tool, "think"), (c.tool_gap, is_tool, "tool_gap")):
        if chosen.any():
            assert dist is not None  # check() saw to it
            delay_s[chosen] = dists.sample(dist, int(chosen.sum()), dists.stream(seed, c.name, name))
    return delay_s


@dataclass
class _Names:
    """Layer names and scope codes, numbered as they come."""

    names: list[str] = field(default_factory=list)
    scopes: list[int] = field(default_factory=list)

    def add(self, name: str, scope: str) -> int:
        self.names.append(name)
        self.scopes.append(SCOPES.index(scope))
        return len(self.names) - 1


def _workload(config: WorkloadConfig, cast: _Cast, sessions: _Sessions, requests: _Requests, seed: int) -> Workload:
    drawn, number = sessions.cls[requests.session], sessions.number[requests.session]
    rows = _rows_by_class(drawn, len(cast.classes))
    classes, cls = all_classes(config), cast.owner[drawn]  # that requests count as
    tenant, tenant_names, salt = _tenants(classes, cls, number)
    lora = _adapters(classes, cls, tenant)
    builder, texts, names = TreeBuilder(salt if lora is None else lora + 1), Texts(seed), _Names()
    for level_rows, text in _levels(cast, rows, number, requests.clock_s, texts, names):
        builder.extend(level_rows, text, texts)
    n = len(cls)
    history, tail_layer, private = np.zeros(n, np.int16), np.zeros(n, np.int16), np.zeros(n, np.int64)
    for c, r in zip(cast.classes, rows, strict=True):
        parts = Parts.of(c)
        for layer in parts.private:
            private[r] += dists.counts(layer.tokens, len(r), dists.stream(seed, c.name, layer.name, "tokens"))
        history[r] = names.add(f"{c.name}/history", "session")
        tail_layer[r] = names.add(f"{c.name}/{parts.message.name if parts.message else 'new input'}", "dynamic")
    said = requests.message + requests.output
    before = np.cumsum(said) - said
    history_tokens = before - before[np.arange(n) - requests.turn]
    prompt = builder.end[builder.node] + private + history_tokens + requests.message
    leaf = builder.histories(requests.turn, said, history, first_content=len(texts.tokens))
    workload = Workload(
        tree=builder.tree(any(c.isolation for c in classes)),
        arrival_s=requests.clock_s,
        prompt_tokens=prompt,
        output_tokens=requests.output,
        leaf=leaf,
        class_id=cls if len(classes) > 1 else None,
        tenant_id=tenant,
        lora=lora,
        priority=np.array([c.priority for c in classes], np.int32)[cls] if any(c.priority for c in classes) else None,
        tail_layer=tail_layer,
        class_names=tuple(c.name for c in classes),
        class_slo=tuple(c.slo_class for c in classes),
        tenant_names=tenant_names,
        layer_names=tuple(names.names),
        layer_scopes=tuple(names.scopes),
        source=f"mix of {', '.join(c.name for c in classes)}"
        + (f" (preset {config.preset})" if config.preset else "")
        + f", seed {seed}",
        notes=_notes(config, cast, sessions, cls),
    )
    return _in_time_order(workload, requests, loop_of(config), config.concurrency)


def _levels(
    cast: _Cast, rows: list[np.ndarray], number: np.ndarray, clock_s: np.ndarray, texts: Texts, names: _Names
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every level of the prompts: the requests that have a layer there, and its text id for each."""
    groups: dict[tuple[str, str], list[tuple[int, Use]]] = {}
    for place, (c, r) in enumerate(zip(cast.classes, rows, strict=True)):
        for level, layer in enumerate(Parts.of(c).shared if len(r) else ()):
            own = c.name if layer.scope in ("session", "dynamic") else cast.texts_of(place)
            key = ("share", layer.share) if layer.share else (own, layer.name)
            groups.setdefault(key, []).append((level, Use(c.name, layer, r, number[r], clock_s[r])))
    levels: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (owner, name), members in groups.items():
        layer_id = names.add(name if owner == "share" else f"{owner}/{name}", members[0][1].layer.scope)
        ids = texts.add([use for _, use in members], layer_id)
        for (level, use), text in zip(members, ids, strict=True):
            levels.setdefault(level, []).append((use.rows, text))
    return [
        (_joined([r for r, _ in levels[level]]), _joined([t for _, t in levels[level]])) for level in sorted(levels)
    ]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _tenants(
    classes: tuple[MixClass, ...], cls: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray | None, tuple[str, ...], np.ndarray]:
    """Tenant ids, their names, and the salt of every request: 0, or its tenant's own where tenants are isolated."""
    per_class = np.array([c.tenants for c in classes])
    tenant = ((np.cumsum(per_class) - per_class)[cls] + number % per_class[cls]).astype(np.int32)
    salt = np.where(np.array([c.isolation for c in classes])[cls], tenant + 1, 0)
    if per_class.max() == 1:
        return None, ("",), salt
    return tenant, tuple(f"{c.name}/{i}" for c in classes for i in range(c.tenants)), salt


def _adapters(classes: tuple[MixClass, ...], cls: np.ndarray, tenant: np.ndarray | None) -> np.ndarray | None:
    """int32 [n]: the adapter of every request, -1 of those without; None where nobody has one."""
    names = sorted({c.lora for c in classes} - {"", TENANT})
    own = np.array([names.index(c.lora) if c.lora in names else -1 for c in classes], np.int32)[cls]
    each = np.array([c.lora == TENANT for c in classes])
    if not names and not each.any():
        return None
    of_tenant = len(names) + (cls if tenant is None else tenant)
    return np.where(each[cls], of_tenant, own).astype(np.int32)


def _notes(config: WorkloadConfig, cast: _Cast, sessions: _Sessions, cls: np.ndarray) -> tuple[str, ...]:
    lines, owner = [], cast.owner[sessions.cls]
    for i, c in enumerate(all_classes(config)):
        lines.append(f"{c.name}: {int((owner == i).sum()):,} sessions, {int((cls == i).sum()):,} requests, generated")
    for place, extra in enumerate(cast.extras, len(config.class_)):
        lines.append(
            f"[[shock]]: {int((sessions.cls == place).sum()):,} sessions more of"
            f" {all_classes(config)[extra.owner].name} from {extra.begins_s:g} s on, for {extra.lasts_s:g} s"
        )
    if config.requests is not None and len(cls) < config.requests:
        lines.append(
            f"{len(cls):,} requests, fewer than the {config.requests:,} asked for: the sessions or the duration ended"
            " first"
        )
    if loop_of(config) == "open" and any(dists.can_exceed(c.turns, 1) for c in config.class_):
        lines.append(
            "open loop: later turns arrive at their session's start plus think times, as if every answer took no time"
        )
    return tuple(lines)


def _in_time_order(workload: Workload, requests: _Requests, loop: str, concurrency: int | None) -> Workload:
    """Rows sorted by nominal time, and the links between turns where the loop is closed."""
    if not requests.turn.any():
        return replace(workload, concurrency=concurrency)
    order = np.argsort(requests.clock_s, kind="stable")
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    moved: dict[str, Any] = {
        f.name: v[order] for f in fields(workload) if isinstance(v := getattr(workload, f.name), np.ndarray)
    }
    moved |= {"session_id": requests.session[order], "turn": requests.turn[order].astype(np.int32)}
    if loop != "open":
        later = requests.turn > 0
        moved["arrival_s"] = np.where(later, np.nan, requests.clock_s)[order]
        moved["after"] = np.where(later, np.append(-1, row[:-1]), -1)[order]
        moved["delay_s"] = requests.delay_s[order]
    return replace(workload, concurrency=concurrency, **moved)
