"""The life of a request, step by step: its wait, what the prefix cache gave it, its prefill chunks, its answer, the KV
memory it held, and who read its text again.

The one idea: everything is read from one simulation with every chunk recorded; a step is a moment of it or a stretch,
in numbers of that run. `kvcast.present.life_text` says each in a sentence.

    >>> recording = api.record(prepared, record_life=True)
    >>> lives(recording, prepared.workload, [17])[0]["steps"]

Three prompts of a textbook show what block size does: A is a system prompt of 2,000 tokens and 5,000 of Python, B the
same system prompt and 3,000 of JavaScript, C all of A and a question of 150. They have to compute 7,000, 3,000 and 150
tokens in blocks of one token, and 158 for C in blocks of 16: 7,000 is no whole number of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcast import text
from sim.measure.causes import Causes, miss_causes
from sim.measure.metrics import per_request
from sim.recording import COMPLETED, STATUS, Recording
from workloads.columns import SCOPES, Workload
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces

if TYPE_CHECKING:
    from kvcast.api import Prepared, Resolved

SYSTEM, PYTHON, JAVASCRIPT, QUESTION = 2000, 5000, 3000, 150
TEXTBOOK = {
    "A": (("system", 0, SYSTEM), ("python", 0, PYTHON)),
    "B": (("system", 0, SYSTEM), ("javascript", 0, JAVASCRIPT)),
    "C": (("system", 0, SYSTEM), ("python", 0, PYTHON), ("question", 0, QUESTION)),
}
ANSWER = 50  #: output tokens of each
APART_S = 60.0
MOST_CHUNKS = 8
"""Prefill chunks that are told one by one; more are told together."""


def textbook(answer: int = ANSWER, apart_s: float = APART_S) -> Workload:
    """A, B and C, one after another."""
    pieces = [list(prompt) for prompt in TEXTBOOK.values()]
    tree, leaf = from_pieces(pieces)
    names = tuple(dict.fromkeys(name for prompt in pieces for name, *_ in prompt))
    layer = np.zeros(len(tree), np.int16)
    workload = Workload(
        tree=replace(tree, layer=layer),
        leaf=leaf,
        arrival_s=np.arange(3) * apart_s,
        output_tokens=np.full(3, answer),
        prompt_tokens=np.array([sum(tokens for *_, tokens in prompt) for prompt in pieces]),
        class_id=np.arange(3, dtype=np.int16),
        class_names=tuple(TEXTBOOK),
        class_slo=("",) * 3,
        tail_layer=np.array([names.index(prompt[-1][0]) for prompt in pieces], np.int16),
        layer_names=names,
        layer_scopes=tuple(SCOPES.index("global") for _ in names),
        source="the textbook's A, B and C",
    )
    for row, prompt in enumerate(pieces):
        ends = np.cumsum([tokens for *_, tokens in prompt])
        for node in _path(workload, row)[1:]:
            layer[node] = names.index(prompt[int(np.searchsorted(ends, tree.end[node]))][0])
    return workload


def of_textbook(resolved: Resolved) -> list[dict[str, Any]]:
    """The lives of A, B and C on a replica of the scenario, alone."""
    from sim import simulate

    workload, scenario = textbook(), resolved.scenario
    rec = simulate.run(workload, resolved.params, resolved.engine_step_time(), seed=scenario.seed, record_life=True)
    return lives(rec, workload, range(3), scenario.cache.enabled)


def of_requests(prepared: Prepared, asked: Sequence[str]) -> list[dict[str, Any]]:
    """The lives of requests of a scenario: numbers, or "slowest", the highest TTFT. Simulates all of it once."""
    from kvcast import api

    rec = api.record(prepared, record_life=True, on_clock=text.clock("simulating", 0, 1))
    rows = [_row(rec, one) for one in asked]
    return lives(rec, prepared.workload, rows, prepared.scenario.cache.enabled)


def _row(rec: Recording, asked: str) -> int:
    count = len(rec.status)
    if asked == "slowest":
        done = np.flatnonzero(rec.status == COMPLETED)
        if not len(done):
            raise InputError("--life slowest: no request completed, expected a number of one")
        return int(done[np.argmax((rec.first_token_s - rec.arrival_s)[done])])
    if not asked.isdecimal() or len(asked) > 12 or int(asked) >= count:
        raise InputError(
            f"--life {asked[:40]}: expected textbook, slowest, or a request's number from 0 to {count - 1:,}"
        )
    return int(asked)


def lives(rec: Recording, workload: Workload, rows: Sequence[int], caching: bool = True) -> list[dict[str, Any]]:
    """A JSON-able document for each of the requests; rec: with `life` recorded."""
    none = np.empty(0, np.int64)
    causes = miss_causes(rec, workload, none, none, 1, caching)
    times = per_request(rec, workload)
    return [_document(rec, workload, int(row), causes, times) for row in rows]


def _document(
    rec: Recording, workload: Workload, row: int, causes: Causes, times: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    assert rec.life is not None
    prompt, hit = int(workload.prompt_tokens[row]), int(rec.hit_tokens[row])
    admitted = not np.isnan(rec.admit_s[row])
    found: dict[str, Any] = {
        "request": row,
        "class": workload.class_names[workload.column("class_id")[row]],
        "status": STATUS[rec.status[row]],
        "replica": int(rec.replica[row]),
        "block_size": rec.block_size,
        "kv_blocks": rec.kv_blocks,
        "prompt_tokens": prompt,
        "hit_tokens": hit if admitted else 0,
        "new_tokens": prompt - hit if admitted else 0,
        "output_tokens": int(workload.output_tokens[row]),
        "arrival_s": float(rec.arrival_s[row]),
        **{name: _known(float(column[row])) for name, column in times.items()},
        "pieces": _pieces(workload, row, hit if admitted else 0),
        "missed": {cause: int(column[row]) for cause, column in causes.tokens.items() if column[row]},
        "before": _met(rec, workload, row, after=False) if admitted else None,
        "again": _met(rec, workload, row, after=True) if admitted else None,
    }
    steps = _steps(rec, found, list(rec.life[row]))
    return {**found, "steps": steps, "most_kv_tokens": max((step["kv_tokens"] for step in steps), default=0)}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# -- the text ----------------------------------------------------------------------------------------------------------


def _path(workload: Workload, row: int) -> list[int]:
    """The nodes of a request's path, from its root down."""
    node, nodes = int(workload.leaf[row]), []
    while node >= 0:
        nodes.append(node)
        node = int(workload.tree.parent[node])
    return nodes[::-1]


def _pieces(workload: Workload, row: int, hit: int) -> list[dict[str, Any]]:
    """The prompt in the order in which the model reads it: layers, and how much of each came from the cache."""
    tree, prompt = workload.tree, int(workload.prompt_tokens[row])
    spans, at = [], 0
    for node in _path(workload, row)[1:]:
        end = min(int(tree.end[node]), prompt)
        spans.append((int(tree.layer[node]), at, end))
        at = end
    spans.append((int(workload.column("tail_layer")[row]), at, prompt))
    found: list[dict[str, Any]] = []
    for layer, start, end in spans:
        if end <= start:
            continue
        name, cached = workload.layer_names[layer], max(min(hit, end) - start, 0)
        if found and found[-1]["name"] == name:
            found[-1]["tokens"] += end - start
            found[-1]["hit_tokens"] += cached
        else:
            scope = SCOPES[workload.layer_scopes[layer]]
            found.append({"name": name, "scope": scope, "tokens": end - start, "hit_tokens": cached})
    return found


def _met(rec: Recording, workload: Workload, row: int, after: bool) -> dict[str, Any] | None:
    """Who has most text in common with a request from its beginning on: of those admitted earlier to its replica the
    last, or (after) of those admitted later to any replica the first. None: nobody has any."""
    shared = _in_common(workload, row)
    if after:
        shared = np.minimum(shared, workload.prompt_tokens)  # what it asks for is its prompt
        others = (rec.admit_s > rec.admit_s[row]) & (shared > 0)
    else:
        shared = np.minimum(shared, workload.prompt_tokens[row])
        same = rec.replica == rec.replica[row]
        others = (rec.admit_s <= rec.admit_s[row]) & same & (shared > 0)
    others[row] = False
    if not others.any():
        return None
    rows = np.flatnonzero(others)
    near = np.abs(rec.admit_s[rows] - rec.admit_s[row])
    best = rows[np.lexsort((rows, near, -shared[rows]))[0]]
    return {
        "request": int(best),
        "class": workload.class_names[workload.column("class_id")[best]],
        "tokens": int(shared[best]),
        "hit_tokens": int(rec.hit_tokens[best]),
        "replica": int(rec.replica[best]),
        "seconds": float(abs(rec.admit_s[best] - rec.admit_s[row])),
    }


def _in_common(workload: Workload, row: int) -> np.ndarray:
    """int64 [n]: tokens of the request's text, its answer included, with which every other one's text begins; without
    what nobody shares."""
    tree, mine = workload.tree, _path(workload, row)
    on_path = np.full(len(tree), -1)
    on_path[mine] = np.arange(len(mine))
    node = workload.leaf.astype(np.int64)
    active = np.flatnonzero((on_path[node] < 0) & (tree.parent[node] >= 0))
    while len(active):
        up = tree.parent[node[active]]
        node[active] = up
        active = active[(on_path[up] < 0) & (tree.parent[up] >= 0)]
    return np.where(on_path[node] >= 0, tree.end[node], 0)


# -- the steps ---------------------------------------------------------------------------------------------------------


def _steps(rec: Recording, found: dict[str, Any], phases: list[tuple]) -> list[dict[str, Any]]:
    """What happens, in order: "what", "start_s" and "end_s" since the arrival, tokens computed or emitted, KV tokens
    and blocks held at its end. A chunk says how many it stands for and what is left, a preemption what it lost, the end
    what stays."""
    if not phases:
        return []
    arrival_s, block = found["arrival_s"], found["block_size"]
    steps: list[dict[str, Any]] = []

    def step(what: str, start_s: float, end_s: float, tokens: int, held: int, **more: int | bool) -> None:
        steps.append(
            {
                "what": what,
                "start_s": float(start_s) - arrival_s,
                "end_s": float(end_s) - arrival_s,
                "tokens": int(tokens),
                "kv_tokens": int(held),
                "kv_blocks": math.ceil(held / block),
                **more,
            }
        )

    emitted, held, looked_up = 0, 0, False
    emissions, groups = _emissions(rec, found, phases), _grouped(phases)
    for i, group in enumerate(groups):
        what, start_s, end_s = group[0][0], float(group[0][1]), float(group[-1][2])
        if what == "prefill":
            goal, again = found["prompt_tokens"] + emitted, emitted > 0
            if not looked_up:
                looked_up, held = True, found["hit_tokens"]
                step("cache", start_s, start_s, held, held)
            held = goal - sum(tokens for *_, tokens in group) if again else held
            for start, end, tokens, chunks in _chunks(group):
                held += tokens
                step(what, start, end, tokens, held, chunks=chunks, left=goal - held, again=again)
            if held >= goal and (i + 1 < len(groups) or found["status"] == "completed"):
                emitted += 1
                step("token", end_s, end_s, 1, held, again=again)
        elif what == "decode":
            emitted += emissions[i]
            held = found["prompt_tokens"] + emitted - 1
            step(what, start_s, end_s, emissions[i], held)
        elif what == "preempted":
            step(what, start_s, end_s, 0, 0, lost=held)
            held = 0
        else:
            step(what, start_s, end_s, 0, 0)
    if found["status"] == "completed":
        step("done", groups[-1][-1][2], groups[-1][-1][2], 0, 0, kept=held)
    return steps


def _grouped(phases: list[tuple]) -> list[list[tuple]]:
    """Prefill chunks that follow on each other together."""
    groups: list[list[tuple]] = []
    for phase in phases:
        if groups and phase[0] == "prefill" == groups[-1][0][0]:
            groups[-1].append(phase)
        else:
            groups.append([phase])
    return groups


def _chunks(group: list[tuple]) -> list[tuple[float, float, int, int]]:
    """(from, to, tokens, how many chunks) of a prefill's chunks: each, or all together where they are many."""
    if len(group) <= MOST_CHUNKS:
        return [(float(start), float(end), int(tokens), 1) for _, start, end, tokens in group]
    return [(float(group[0][1]), float(group[-1][2]), sum(int(p[3]) for p in group), len(group))]


def _emissions(rec: Recording, found: dict[str, Any], phases: list[tuple]) -> dict[int, int]:
    """Output tokens of each decode stretch, by its place among the groups: the steps in it that emit; where a step
    emits several (speculation), shared out by their number."""
    groups = _grouped(phases)
    told_s = rec.told_s(found["replica"])
    steps = rec.steps[found["replica"]]
    if rec.prefill_pauses:
        told_s = told_s[steps.n_decode > 0]
    stretches = {i: group[0] for i, group in enumerate(groups) if group[0][0] == "decode"}
    counts = {
        i: int(np.searchsorted(told_s, p[2], side="right") - np.searchsorted(told_s, p[1], side="right"))
        for i, p in stretches.items()
    }
    prefills = sum(group[0][0] == "prefill" for group in groups)
    wanted, counted = found["output_tokens"] - prefills, sum(counts.values())
    if found["status"] != "completed" or not counted or wanted == counted:
        return counts
    shared = {i: wanted * count // counted for i, count in counts.items()}
    last = max(shared)
    return {**shared, last: shared[last] + wanted - sum(shared.values())}
