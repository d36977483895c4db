"""Random cases with SGLang's semantics: the per-token reference and the real simulator must agree in everything.

    python -m tests.fuzz --engine sglang --ops 1000000

Every step (schedule, retractions, evicted, available, evictable and protected tokens, waiting), every request, the
final tree to the last tick of SGLang's logical clock, and every time to the last bit, stepping and with fast-forward.
An operation is a look-up of a waiting request, a token taken for KV, or one request scheduled in one step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

from sim import sglang
from sim.recording import STATUS, Recording
from tests import fuzz_cases
from tests import reference_radix as radix
from tests import reference_sglang as reference
from tests.fuzz_cases import Case
from workloads.errors import InputError

POLICIES = ("lru", "lfu", "slru", "fifo", "filo", "mru", "priority")


def random_case(seed: int, index: int, policies: tuple[str, ...] = POLICIES) -> Case:
    """One adversarial case: small pools, shared and repeated prompts, outputs asked for before they exist."""
    rng = random.Random(f"sglang {seed}/{index}")
    if rng.random() < 0.1:
        return _contest(rng, f"random sglang {seed}/{index}", policies)
    page = rng.choice([1, 1, 1, 2, 3, 4, 8, 16, rng.randint(1, 16)])
    n = rng.randint(2, 6) if rng.random() < 0.3 else rng.randint(4, 30)
    unit = rng.choice([1, page, page, 2 * page, 12, 40])
    lengths = [max(1, unit * rng.randint(1, 6) + rng.choice([0, 0, 0, 1, -1, rng.randint(0, page)])) for _ in range(6)]
    requests: list[Case] = []
    for _ in range(n):
        output = rng.choice([1, 1, 2, page, rng.randint(1, 3 * page), rng.randint(1, 24), rng.randint(1, 60)])
        requests.append({"segments": fuzz_cases.segments(rng, requests, lengths), "max_tokens": output})
    if rng.random() < 0.04:  # longer than the simulator plans ahead
        rng.choice(requests)["max_tokens"] = rng.randint(500, 1400)
    fuzz_cases.set_arrivals(rng, requests)
    fuzz_cases.set_identities(rng, requests)
    if rng.random() < 0.3:  # clients allow more than they get
        for r in requests:
            r["asked"] = r["max_tokens"] + rng.choice([0, rng.randint(0, 60)])
    sizes = [sum(s[2] for s in r["segments"]) + r["max_tokens"] for r in requests]
    return {
        "schema": "kvoracle/1",
        "case": f"random sglang {seed}/{index}",
        "engine": "sglang",
        "timed": rng.random() < 0.5,
        "config": _config(rng, page, sizes) | {"eviction_policy": rng.choice(policies)},
        "requests": requests,
    }


def _contest(rng: random.Random, name: str, policies: tuple[str, ...]) -> Case:
    """Many answers to one prompt, admitted at once and too long for the pool: several are retracted in a step."""
    page, n = rng.choice([1, 2, 4, 16]), rng.randint(4, 16)
    prompt = page * rng.randint(1, 6) + rng.choice([0, 0, 1])
    requests = [
        {
            "id": i,
            "arrival_step": rng.choice([0, 0, 1, 4]),
            "segments": [["s", 1, prompt]],
            "max_tokens": rng.randint(2 * page, 40 + 2 * page),
            "priority": i % 3,
        }
        for i in range(n)
    ]
    longest = max(r["max_tokens"] for r in requests)
    config = _config(rng, page, [prompt + longest]) | {
        "capacity_tokens": page * ((prompt + longest) // page + 2 + rng.randint(0, n)),
        "max_running": 64,
        "conservativeness": rng.choice([0.0, 0.05]),
        "retract_decode_steps": rng.choice([20, 1, 0]),
        "eviction_policy": rng.choice(policies),
        "max_context": 1000,
    }
    return {
        "schema": "kvoracle/1",
        "case": name,
        "engine": "sglang",
        "timed": rng.random() < 0.5,
        "config": config,
        "requests": requests,
    }


def _config(rng: random.Random, page: int, sizes: list[int]) -> Case:
    largest = max(sizes) // page + 2  # pages that just hold the largest request
    slack = rng.choice([0, 0, 1, 2, largest, largest, 3 * largest, 20 * largest])
    order = rng.choice(["fcfs", "fcfs", "fcfs", "lpm", "lof", "dfs-weight"])
    return {
        "page_size": page,
        "capacity_tokens": page * max(2, largest // 2 if rng.random() < 0.08 else largest + rng.randint(0, slack)),
        "max_context": sorted(sizes)[len(sizes) // 2] if rng.random() < 0.05 else max(sizes) + rng.choice([0, 1000]),
        "chunked_prefill_size": rng.choice(
            [0, page * rng.randint(1, 8), page * rng.randint(4, 12) + rng.randint(0, page), 2048, 2048]
        ),
        "max_prefill_tokens": rng.choice([16384, 16384, rng.randint(1, 60)]),
        "max_running": rng.choice([rng.randint(1, 4), rng.randint(2, 10), 64]),
        "schedule_policy": order,
        "priority_scheduling": order in ("fcfs", "lof") and rng.random() < 0.3,
        "retraction_policy": rng.choice(["length", "length", "priority"]),
        "conservativeness": rng.choice([1.0, 0.3, 0.05, 0.0, 1.9]),
        "ratio_decay_steps": rng.choice([600, 7]),
        "retract_decode_steps": rng.choice([20, 3, 1]),
        "clip_max_new_tokens": rng.choice([4096, 4096, 8]),
        "disable_cache": rng.random() < 0.07,
        "use_priority": rng.random() < 0.8,
        "overlap": (overlap := rng.random() < 0.6),
        "calls_ahead": overlap and rng.random() < 0.5,
        "mixed_chunk": rng.random() < 0.4,
        "recv_interval": rng.choice([1, 1, 1, 2, 5, 30, 1500]),
    }


def operations(engine: reference.Engine) -> int:
    return engine.lookups + engine.taken + sum(len(step.scheduled) for step in engine.steps)


def does_not_stop(runs: Iterable[Callable[[], Any]]) -> Iterator[str]:
    """Runs that should find no memory for a chunk that must go on, and find it, in words."""
    for run in runs:
        try:
            run()
        except InputError as error:
            if "out of memory" in str(error):
                continue
        yield "a chunk finds memory that the reference does not"


def differences(
    engine: reference.Engine, rec: Recording, log: list[tuple] | None, tree: list[list] | None
) -> Iterator[str]:
    """Reference against one run of the simulator, in words."""
    yield from _steps(engine, log)
    yield from _requests(engine, rec)
    yield from _totals(engine, rec)
    if tree is not None and engine.caching and tree != (want := _reference_tree(engine)):
        first = next(
            (pair for pair in zip(want, tree, strict=False) if pair[0] != pair[1]), ("rows", len(want), len(tree))
        )
        yield f"final tree: {first}"


def _steps(engine: reference.Engine, log: list[tuple] | None) -> Iterator[str]:
    if log is None:
        return
    for step, (_, start_s, kind, scheduled, retracted, *counts) in zip(engine.steps, log, strict=False):
        got = [start_s, kind, [list(pair) for pair in scheduled], list(retracted), *counts]
        if got != step.row():
            yield f"step {step.start}: reference {step.row()}, simulator {got}"
            return
    if len(log) != len(engine.steps):
        yield f"reference has {len(engine.steps)} steps, simulator {len(log)}"


def _requests(engine: reference.Engine, rec: Recording) -> Iterator[str]:
    for row, r in enumerate(engine.requests):
        status = STATUS[int(rec.status[row])]
        if r.rejected:
            if not status.startswith("rejected"):
                yield f"request {row}: reference refuses it, simulator: {status}"
            continue
        want = {
            "status": "completed",
            "hit_tokens": r.cached[0],
            "readmission_hit_tokens": sum(r.cached[1:]),
            "ceiling_replica_tokens": r.ceiling,
            "ceiling_fleet_tokens": r.ceiling,
            "preemptions": r.retractions,
            "admit_s": r.admit_s,
            "first_token_s": r.first_token_s,
            "finish_s": r.finish_s,
            "prefill_chunks": r.chunks,
            "recomputed_tokens": r.recomputed,
            "preempted_s": r.preempted_s,
            "first_step": r.token_steps[0],
            "last_step": r.token_steps[-1],
        }
        got = {name: getattr(rec, name)[row].item() for name in want} | {"status": status}
        for name in want:
            if got[name] != want[name]:
                yield f"request {row}: {name}: reference {want[name]!r}, simulator {got[name]!r}"


def _totals(engine: reference.Engine, rec: Recording) -> Iterator[str]:
    if rec.evicted_blocks * engine.page != engine.tree.evicted:
        yield f"evicted tokens: reference {engine.tree.evicted}, simulator {rec.evicted_blocks * engine.page}"
    gaps = sorted(zip(rec.gaps_request.tolist(), rec.gaps_from_step.tolist(), rec.gaps_to_step.tolist(), strict=True))
    if gaps != engine.gaps():
        yield f"gaps: reference {engine.gaps()}, simulator {gaps}"
    steps = rec.steps[0]
    columns = {
        "end_s": [s.end for s in engine.steps],
        "duration_s": [s.end - s.start for s in engine.steps],
        "n_decode": [s.n_decode for s in engine.steps],
        "prefill_tokens": [s.prefill_tokens for s in engine.steps],
    }
    for name, want in columns.items():
        if getattr(steps, name).tolist() != want:
            yield f"steps.{name}: reference {want}, simulator {getattr(steps, name).tolist()}"


def _reference_tree(engine: reference.Engine) -> list[list]:
    return [[parent, tokens, *rest] for parent, tokens, _, *rest in engine.final_tree()[1:]]


def _checked(scheduler: sglang.SGLangScheduler, call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any) -> Any:
        found = call(*args)
        scheduler.check()
        return found

    return checked


class watched:  # noqa: N801
    """Within it every scheduler is kept, and checked after each plan and at the end of each step."""

    def __enter__(self) -> list[sglang.SGLangScheduler]:
        found: list[sglang.SGLangScheduler] = []
        make = sglang.SGLangScheduler

        def keep(*args: Any) -> sglang.SGLangScheduler:
            scheduler = make(*args)
            for name in ("schedule", "complete"):
                setattr(scheduler, name, _checked(scheduler, getattr(scheduler, name)))
            found.append(scheduler)
            return scheduler

        self._patch = patch.object(sglang, "SGLangScheduler", keep)
        self._patch.start()
        return found

    def __exit__(self, *error: object) -> None:
        self._patch.stop()


# ---- planted faults -------------------------------------------------------------------------------------------------


def _insert_without_hits(
    tree: radix.Radix, space: radix.Namespace, tokens: list[int], priority: int, inserted: int
) -> int:
    return _insert(tree, space, tokens, priority, reference.UNLIMITED)


def _insert_counting_again(
    tree: radix.Radix, space: radix.Namespace, tokens: list[int], priority: int, inserted: int
) -> int:
    return _insert(tree, space, tokens, priority, 0)


def _split_as_old(tree: radix.Radix, space: radix.Namespace, node: radix.Node, at: int) -> radix.Node:
    upper = _split(tree, space, node, at)
    upper.creation = node.creation
    return upper


def _look_up_whole(engine: reference.Engine, r: reference.Request) -> tuple[radix.Node, int]:
    known = r.known
    if not engine.caching or engine.page == 1:
        return _look_up(engine, r)
    return (
        engine.tree.match(r.space, r.tokens[:known])
        if known % engine.page == 0 and known > engine.page
        else _look_up(engine, r)
    )


def _match_untouched(tree: radix.Radix, space: radix.Namespace, tokens: list[int]) -> tuple[radix.Node, int]:
    before = {node: node.access for node in tree.nodes()}
    found = _match(tree, space, tokens)
    for node, access in before.items():
        node.access = access
    return found


def _refresh_nothing(engine: reference.Engine) -> None:
    engine.passes += 1


def _drop_into_cache(engine: reference.Engine, r: reference.Request) -> None:
    if engine.caching:
        engine.checkpoint(r, r.computed)
    _drop(engine, r)


def _decode_clearing_the_flag(engine: reference.Engine, step: reference.Step) -> bool:
    engine.full = False
    return _start_decode(engine, step)


def _requeue_first(engine: reference.Engine, retracted: list[reference.Request]) -> None:
    engine.waiting[:0] = retracted


def _order_of_admission(engine: reference.Engine, order: list[reference.Request]) -> list[reference.Request]:
    return [r for r in engine.running if r in order]


def _nobody_postponed(engine: reference.Engine) -> tuple[list, set]:
    return _match_waiting(engine)[0], set()


def _leave_and_retract(engine: reference.Engine) -> bool:
    _leave_out(engine)
    return False


def _leave_quietly(engine: reference.Engine) -> bool:
    full = engine.full
    found = _leave_out(engine)
    engine.full = full
    return found


def _read_at_once(engine: reference.Engine, step: reference.Step) -> bool:
    """The result of the step before is known to the plan, and only then."""
    before, engine.unread = engine.unread, None
    if before is not None:
        engine.read(before)
    return _plan(engine, step)


def _mix_in_front(engine: reference.Engine, step: reference.Step) -> None:
    _mix(engine, step)
    step.rows.sort(key=lambda row: not row.decode)


def _ride_for_free(adder: reference.Adder, engine: reference.Engine) -> None:
    _adder(adder, engine)
    adder.reserved_total -= engine.riders()
    adder.reserved_now -= engine.riders()


_leave_out, _plan, _mix = reference.Engine.leave_out, reference.Engine.plan, reference.Engine.mix
_adder = reference.Adder.__init__
_insert, _split, _match = radix.Radix.insert, radix.Radix.split, radix.Radix.match
_look_up, _drop, _start_decode = reference.Engine.look_up, reference.Engine.drop, reference.Engine.start_decode
_match_waiting = reference.Engine.match_waiting

FAULTS: dict[str, tuple[type, str, Any]] = {
    "hits never counted": (radix.Radix, "insert", _insert_without_hits),
    "hits counted at every insertion": (radix.Radix, "insert", _insert_counting_again),
    "an upper part as old as the lower": (radix.Radix, "split", _split_as_old),
    "look-up may cover the whole prompt": (reference.Engine, "look_up", _look_up_whole),
    "look-ups do not touch": (radix.Radix, "match", _match_untouched),
    "prefixes of the waiting not touched": (reference.Engine, "refresh", _refresh_nothing),
    "output not split from its prompt": (reference.Engine, "raise_prompt", lambda engine, r, whole: None),
    "retracted KV stays in the cache": (reference.Engine, "drop", _drop_into_cache),
    "retracted to the front of waiting": (reference.Engine, "requeue", _requeue_first),
    "running order unchanged by a retraction": (reference.Engine, "order_after_retraction", _order_of_admission),
    "ratio unchanged by a retraction": (reference.Engine, "ratio_after_retraction", lambda engine, order: engine.ratio),
    "a rejected head tried again after every decode": (reference.Engine, "start_decode", _decode_clearing_the_flag),
    "decode evicts only what it needs": (reference.Engine, "asked_for_decode", reference.Engine.needed_for_decode),
    "retraction when a page for everybody is not there": (
        reference.Engine,
        "needed_for_decode",
        reference.Engine.asked_for_decode,
    ),
    "nobody postponed in a batch": (reference.Engine, "match_waiting", _nobody_postponed),
    "retraction though somebody ends": (reference.Engine, "leave_out", _leave_and_retract),
    "who is left out does not clear the flag": (reference.Engine, "leave_out", _leave_quietly),
    "overlap knows the last result": (reference.Engine, "plan", _read_at_once),
    "arrivals are seen at once": (reference.Engine, "seen_until", lambda engine: engine.now),
    "riders need no budget": (reference.Engine, "riders", lambda engine: 0),
    "riders need no memory": (reference.Adder, "__init__", _ride_for_free),
    "decodes before prefills in a mixed batch": (reference.Engine, "mix", _mix_in_front),
}
"""Planted in the reference, so that a change inside the simulator cannot disarm them."""
