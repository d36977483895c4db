"""Where missed prompt tokens went, and what would bring them back, shown by simulating it.

The one idea: a cause of missed tokens suggests changes to the scenario; each is simulated on the same requests, and only what
the second run did counts as recovered. A change that does not help is reported as such.

    >>> found = explain(load_scenario("examples/demo.toml"))
    >>> print(as_text(found))
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvcast import api, text
from sim.kvcache.policies import find
from sim.scenario import Scenario
from workloads.errors import InputError

CAUSES = 3  #: how many recoverable causes are followed up
POLICIES = ("lru", "lfu", "s3fifo", "gdsf")
"""Policies tried in place of the scenario's; --policy names others."""
LEAST_SHARE = 0.01
"""A change that recovers less than this share of a cause's tokens does not help."""

MEANING = {
    "partial_block": "beyond the last full block, or the prompt's last token",
    "in_flight": "another request was still computing them",
    "other_replica": "cached on a replica this request was not sent to",
    "evicted_policy": "evicted, the optimum of this schedule kept them",
    "evicted_memory": "evicted, too little memory even for the optimum",
    "evicted": "evicted",
    "cache_off": "seen before, but the cache is off",
    "other_tenant": "the same text under another tenant's salt",
    "changed_earlier": "the same text, but the prompt differs before it",
    "cold": "never seen before",
}
"""Cause -> what it means, in the order in which a token is asked (docs/metrics.md)."""


@dataclass(frozen=True)
class Change:
    """One thing to do differently."""

    words: str
    scenario: Scenario
    price: str = ""  #: what it asks for that the simulation does not charge


# -- changes -----------------------------------------------------------------------------------------------------------


def changes_for(cause: str, scenario: Scenario, policies: Sequence[str] = POLICIES) -> list[Change]:
    """What could recover a cause's tokens; `scenario` is resolved (nothing left open). Empty: nothing known would."""
    return _CHANGES.get(cause, lambda *_: [])(scenario, policies)


def _section(scenario: Scenario, name: str, **values: Any) -> Scenario:
    return replace(scenario, **{name: replace(getattr(scenario, name), **values)})


def _smaller_blocks(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    old = scenario.engine.block_size
    if old == 1:
        return []
    new = max(1, old // 4)
    blocks = (scenario.engine.kv_blocks or 0) * old // new
    changed = _section(scenario, "engine", block_size=new, kv_blocks=blocks)
    return [Change(f"block size {old} -> {new}, the same memory in {blocks:,} blocks", changed, "the engine and its attention kernels must support it")]


def _another_router(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    from sim.router import ROUTERS

    old = scenario.cluster.router
    return [Change(f"router {old} -> {new}", _section(scenario, "cluster", router=new)) for new in ROUTERS if new != old]


def _another_policy(scenario: Scenario, policies: Sequence[str]) -> list[Change]:
    old = scenario.cache.policy
    return [Change(f"eviction policy {old} -> {new}", _section(scenario, "cache", policy=new, policy_params={})) for new in policies if new != old]


def _more_memory(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    blocks, replicas = scenario.engine.kv_blocks or 0, scenario.cluster.replicas
    return [
        Change(f"KV memory {blocks:,} -> {2 * blocks:,} blocks a replica", _section(scenario, "engine", kv_blocks=2 * blocks), "that memory: a larger GPU, more GPUs a replica, or a smaller KV type"),
        Change(f"replicas {replicas} -> {2 * replicas}", _section(scenario, "cluster", replicas=2 * replicas), "twice the GPUs"),
    ]  # fmt: skip


def _cache_on(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    return [Change("turn the prefix cache on", _section(scenario, "cache", enabled=True))]


def _same_salt(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    def shared(c: Any) -> Any:
        return replace(c, isolation=False)

    return [Change("one cache salt for all tenants", changed, "tenants can tell from latency what others sent") for changed in _with_classes(scenario, shared)]


def _steadier_prompts(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    from workloads.estimate import WARNING, best_order

    def ordered(c: Any) -> Any:
        return replace(c, layers=best_order(c.layers))

    def steady(c: Any) -> Any:
        return replace(c, layers=tuple(replace(layer, shuffle=0, redeploy_s=0.0, timestamp_s=0.0) for layer in c.layers))

    steps: list[tuple[str, Callable[[Any], Any]]] = [
        ("prompt layers in the order global, project, session, dynamic", ordered),
        ("no layer that shuffles, is redeployed or holds the time", steady),
        ("both: layers in that order, and none that changes", lambda c: ordered(steady(c))),
    ]
    found = [Change(words, changed, WARNING) for words, step in steps for changed in _with_classes(scenario, step)]
    return found if len(found) == len(steps) else found[:1]  # only one of the two changes anything: so would both


def _with_classes(scenario: Scenario, step: Callable[[Any], Any]) -> list[Scenario]:
    """[the scenario with every class of its mix changed], or [] for a trace and where nothing changes."""
    from workloads.mix import resolve

    if scenario.workload.trace is not None:
        return []
    mix = resolve(scenario.workload)
    changed = replace(mix, preset=None, class_=tuple(step(c) for c in mix.class_))
    return [] if changed.class_ == mix.class_ else [replace(scenario, workload=changed)]


_CHANGES: dict[str, Callable[[Scenario, Sequence[str]], list[Change]]] = {
    "partial_block": _smaller_blocks, "other_replica": _another_router, "evicted_policy": _another_policy, "evicted_memory": _more_memory,
    "evicted": lambda scenario, policies: _another_policy(scenario, policies) + _more_memory(scenario, policies),
    "cache_off": _cache_on, "other_tenant": _same_salt, "changed_earlier": _steadier_prompts,
}  # fmt: skip


# -- the search --------------------------------------------------------------------------------------------------------


def explain(scenario: Scenario, policies: Sequence[str] = POLICIES, causes: int = CAUSES) -> dict[str, Any]:
    """Simulate, split the misses, and simulate every change for the largest recoverable causes. JSON-able.

    Raises InputError for a scenario that cannot run and for a policy in `policies` that does not exist.
    """
    for name in policies:
        find(name)
    prepared = api.prepare(scenario)
    text.progress(f"simulating {len(prepared.workload):,} requests")
    result = api.run(prepared)
    resolved, summary = result.scenario, result.report.summary
    tokens = split_misses(prepared, result)
    recoverable = sorted((c for c in tokens if tokens[c] and changes_for(c, resolved, policies)), key=lambda c: -(tokens[c] or 0))
    followed = []
    for cause in recoverable[:causes]:
        tried = [_verified(change, cause, int(tokens[cause] or 0), result, prepared) for change in changes_for(cause, resolved, policies)]
        tried.sort(key=lambda row: -row["recovered_tokens"])
        followed.append({"cause": cause, "tokens": tokens[cause], "changes": tried})
    return {
        "name": scenario.name, "before": _figures(summary), "prompt_tokens": summary["prompt_tokens"], "prefix_hit_tokens": summary["prefix_hit_tokens"],
        "miss_tokens": tokens, "not_recoverable": [c for c in tokens if tokens[c] and c not in recoverable], "causes": followed,
        "prefix_identity": summary["prefix_identity"], "block_size": summary["block_size"], "counting_rule": summary["counting_rule"],
        "seed": summary["seed"], "profile": summary["profile"], "profile_hash": summary["profile_hash"], "workload": summary["workload"],
    }  # fmt: skip


def split_misses(prepared: api.Prepared, result: api.Result) -> dict[str, int | None]:
    """Missed tokens by cause; hit + these = prompt tokens. Evicted ones are split by the optimum where that is defined."""
    tokens: dict[str, int | None] = dict(result.report.summary["miss_tokens"])
    if not tokens["evicted"] or result.scenario.engine.semantics != "vllm":
        return tokens
    from sim.optimum.schedule import schedule_optimum, split_evicted

    text.progress("simulating again for the optimum of the schedule")
    rec = api.record(prepared, record_cache=True)  # the same run: the simulation is deterministic
    split = split_evicted(rec.hit_tokens, schedule_optimum(prepared.workload, rec).hit_tokens, rec.ceiling_replica_tokens)
    requests = result.report.requests
    counted = requests["in_window"] & ~np.isnan(requests["admit_s"])
    parts = {"evicted_policy": int(split.policy[counted].sum()), "evicted_memory": int(split.memory[counted].sum())}
    if sum(parts.values()) != tokens["evicted"]:
        raise AssertionError(f"evicted tokens: {tokens['evicted']} in the report, split into {parts}")
    return {key: value for cause, count in tokens.items() for key, value in (parts.items() if cause == "evicted" else [(cause, count)])}


def _verified(change: Change, cause: str, cause_tokens: int, before: api.Result, prepared: api.Prepared) -> dict[str, Any]:
    """Simulate the change: figures after it, and in words whether it helps."""
    text.progress(f"simulating: {change.words}")
    row: dict[str, Any] = {"change": change.words, "asks_for": change.price, "recovered_tokens": 0, "after": None}
    same = change.scenario.workload == before.scenario.workload
    try:
        after = api.run(api.prepare(change.scenario, prepared.workload if same else None)).report.summary
    except InputError as error:
        return row | {"helps": False, "verdict": f"cannot be simulated: {error}"}
    old = before.report.summary
    recovered = after["prefix_hit_tokens"] - old["prefix_hit_tokens"]
    row |= {"recovered_tokens": recovered, "after": _figures(after)}
    if after["prompt_tokens"] != old["prompt_tokens"]:
        row["note"] = f"prompt tokens of the window changed from {old['prompt_tokens']:,} to {after['prompt_tokens']:,}: compare rates"
    return row | dict(zip(("helps", "verdict"), _verdict(recovered, cause_tokens, old, after), strict=True))


def _verdict(recovered: int, cause_tokens: int, old: dict[str, Any], after: dict[str, Any]) -> tuple[bool, str]:
    """(whether the change helps, why in words): it must bring back tokens, and make nobody wait longer for it."""
    both = None not in (old["mean_ttft_ms"], after["mean_ttft_ms"])
    if recovered < LEAST_SHARE * cause_tokens:
        gained = f"loses {-recovered:,} tokens" if recovered < 0 else f"recovers {recovered:,} tokens, less than {LEAST_SHARE:.0%} of the cause"
        sooner = ", though mean TTFT falls" if both and after["mean_ttft_ms"] < old["mean_ttft_ms"] else ""
        return False, f"does not help: {gained}{sooner}"
    gained = f"recovers {recovered:,} tokens ({f'{recovered / cause_tokens:.0%} of the cause' if recovered <= cause_tokens else 'more than the cause alone'})"
    if old["stable"] is not False and after["stable"] is False:
        return False, f"does not help: {gained}, but the fleet becomes unstable"
    if old["stable"] is False:
        return True, f"helps: {gained}" + ("; the fleet is still unstable, so what it does for TTFT is unknown" if after["stable"] is False else "; the fleet is no longer unstable")
    if both and after["mean_ttft_ms"] >= old["mean_ttft_ms"]:
        return False, f"does not help: {gained}, but mean TTFT does not fall"
    if None not in (old["attainment"], after["attainment"]) and after["attainment"] < old["attainment"]:
        return False, f"does not help: {gained}, but attainment falls"
    return True, f"helps: {gained}"


def _figures(summary: dict[str, Any]) -> dict[str, Any]:
    keys = ("prefix_hit_rate", "prefix_hit_tokens", "mean_ttft_ms", "p99_ttft_ms", "attainment", "stable", "gpu_hours", "preemptions")
    return {key: summary[key] for key in keys}


# -- words -------------------------------------------------------------------------------------------------------------


def as_text(found: dict[str, Any]) -> str:
    prompt = found["prompt_tokens"]

    def row(name: str, count: int | None, meaning: str) -> list[str]:
        share = text.UNKNOWN if count is None or not prompt else text.percent(count / prompt)
        return [name, meaning, "not determinable" if count is None else text.count(count), share]

    rows = [row("hit", found["prefix_hit_tokens"], "served from the cache")]
    rows += [row(cause, found["miss_tokens"][cause], MEANING[cause]) for cause in MEANING if cause in found["miss_tokens"]]
    lines = [f"where {prompt:,} prompt tokens went ({found['counting_rule']}; block size {found['block_size']})", text.table(["fate", "meaning", "tokens", "share"], rows, left=2)]
    if not found["prefix_identity"]:
        lines.append("the workload says nothing about shared text: nothing can be recovered, because nothing is known to be shared")
    elif not found["causes"]:
        lines.append("no missed token has a cause that a change of the scenario is known to recover")
    for number, cause in enumerate(found["causes"], 1):
        lines += ["", f"{number}. {cause['cause']}: {cause['tokens']:,} tokens, {text.percent(cause['tokens'] / prompt)} of the prompts", _change_table(found["before"], cause["changes"])]
        lines += [f"{change['change']}: {change['verdict']}{_and(change)}" for change in cause["changes"]]
    if found["causes"]:
        lines += ["", f"each change simulated alone, on the same requests, seed {found['seed']}; kvcast compare --seeds gives intervals"]
    left = [f"{cause} ({found['miss_tokens'][cause]:,})" for cause in found["not_recoverable"]]
    return "\n".join([*lines, *([f"no change known for: {', '.join(left)}"] if left else [])])


def _change_table(before: dict[str, Any], changes: list[dict[str, Any]]) -> str:
    stable = {None: "?", True: "yes", False: "NO"}

    def row(label: str, recovered: str, f: dict[str, Any]) -> list[str]:
        return [label, recovered, text.percent(f["prefix_hit_rate"]), text.milliseconds(f["mean_ttft_ms"]), text.milliseconds(f["p99_ttft_ms"]),
                text.percent(f["attainment"]), stable[f["stable"]], f"{f['gpu_hours']:.3g}"]  # fmt: skip

    rows = [row("as it is", "", before)] + [row(c["change"], f"{c['recovered_tokens']:+,}", c["after"]) for c in changes if c["after"]]
    return text.table(["change", "hit tokens", "hit rate", "TTFT mean", "TTFT p99", "attainment", "stable", "GPU-hours"], rows)


def _and(change: dict[str, Any]) -> str:
    asks = f"; it asks for: {change['asks_for']}" if change["asks_for"] else ""
    return asks + (f"; {change['note']}" if change.get("note") else "")
