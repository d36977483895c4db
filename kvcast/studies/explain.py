"""Where missed prompt tokens went, and what would bring them back, shown by simulating it.

The one idea: a cause of missed tokens suggests changes to the scenario; each is simulated on the same requests, and
only what the second run did counts as recovered. A change that does not help is reported as such.

    >>> found = explain(load_scenario("examples/demo.toml"))
    >>> print(explain_text.describe(found))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcast import api, text
from sim.engines import engine_of
from sim.kvcache.policies import find
from sim.scenario import Scenario
from workloads.errors import InputError

if TYPE_CHECKING:
    from sim.measure.report import Report

CAUSES = 3  #: how many recoverable causes are followed up
LEAST_SHARE = 0.01
"""A change that recovers less than this share of a cause's tokens does not help."""


@dataclass(frozen=True)
class Change:
    """One thing to do differently."""

    words: str
    scenario: Scenario
    price: str = ""  #: what it asks for that the simulation does not charge


# -- changes -----------------------------------------------------------------------------------------------------------


def changes_for(cause: str, scenario: Scenario, policies: Sequence[str] | None = None) -> list[Change]:
    """What could recover a cause's tokens; `scenario` is resolved (nothing left open). Empty: nothing known would."""
    return _CHANGES.get(cause, lambda *_: [])(scenario, policies or engine_of(scenario.engine).try_policies)


def _section(scenario: Scenario, name: str, **values: Any) -> Scenario:
    return replace(scenario, **{name: replace(getattr(scenario, name), **values)})


def _smaller_blocks(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    old = scenario.engine.block_size
    if old == 1:
        return []
    new = max(1, old // 4)
    blocks = (scenario.engine.kv_blocks or 0) * old // new
    changed = _section(scenario, "engine", block_size=new, kv_blocks=blocks)
    return [
        Change(
            f"block size {old} -> {new}, the same memory in {blocks:,} blocks",
            changed,
            "the engine and its attention kernels must support it",
        )
    ]


def _another_router(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    from sim.fleet.router import ROUTERS

    old = scenario.cluster.router
    return [
        Change(f"router {old} -> {new}", _section(scenario, "cluster", router=new)) for new in ROUTERS if new != old
    ]


def _another_policy(scenario: Scenario, policies: Sequence[str]) -> list[Change]:
    old = scenario.cache.policy
    return [
        Change(f"eviction policy {old} -> {new}", _section(scenario, "cache", policy=new, policy_params={}))
        for new in policies
        if new != old
    ]


def _more_memory(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    blocks, replicas = scenario.engine.kv_blocks or 0, scenario.cluster.replicas
    return [
        Change(
            f"KV memory {blocks:,} -> {2 * blocks:,} blocks a replica",
            _section(scenario, "engine", kv_blocks=2 * blocks),
            "that memory: a larger GPU, more GPUs a replica, or a smaller KV type",
        ),
        Change(
            f"replicas {replicas} -> {2 * replicas}",
            _section(scenario, "cluster", replicas=2 * replicas),
            "twice the GPUs",
        ),
    ]


def _larger_tiers(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    tiers = scenario.cache.tiers

    def twice(size: Any) -> Any:
        return None if size is None else 2 * size

    def larger(i: int) -> Scenario:
        grown = replace(
            tiers[i], capacity_gib=twice(tiers[i].capacity_gib), capacity_blocks=twice(tiers[i].capacity_blocks)
        )
        return _section(scenario, "cache", tiers=(*tiers[:i], grown, *tiers[i + 1 :]))

    return [Change(f"cache tier {tier.name} twice as large", larger(i), "that memory") for i, tier in enumerate(tiers)]


def _cache_on(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    return [Change("turn the prefix cache on", _section(scenario, "cache", enabled=True))]


def _same_salt(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    def shared(c: Any) -> Any:
        return replace(c, isolation=False)

    return [
        Change("one cache salt for all tenants", changed, "tenants can tell from latency what others sent")
        for changed in with_classes(scenario, shared)
    ]


def _steadier_prompts(scenario: Scenario, _: Sequence[str]) -> list[Change]:
    from workloads.estimate import WARNING, best_order

    def ordered(c: Any) -> Any:
        return replace(c, layers=best_order(c.layers))

    def steady(c: Any) -> Any:
        return replace(
            c, layers=tuple(replace(layer, shuffle=0, redeploy_s=0.0, timestamp_s=0.0) for layer in c.layers)
        )

    steps: list[tuple[str, Callable[[Any], Any]]] = [
        ("prompt layers in the order global, project, session, dynamic", ordered),
        ("no layer that shuffles, is redeployed or holds the time", steady),
        ("both: layers in that order, and none that changes", lambda c: ordered(steady(c))),
    ]
    found = [Change(words, changed, WARNING) for words, step in steps for changed in with_classes(scenario, step)]
    return found if len(found) == len(steps) else found[:1]  # only one of the two changes anything: so would both


def with_classes(scenario: Scenario, step: Callable[[Any], Any]) -> list[Scenario]:
    """[the scenario with every class of its mix changed], or [] for a trace and where nothing changes."""
    from workloads.mix import resolve

    if scenario.workload.trace is not None:
        return []
    mix = resolve(scenario.workload)
    changed = replace(mix, preset=None, class_=tuple(step(c) for c in mix.class_))
    return [] if changed.class_ == mix.class_ else [replace(scenario, workload=changed)]


_CHANGES: dict[str, Callable[[Scenario, Sequence[str]], list[Change]]] = {
    "partial_block": _smaller_blocks,
    "other_replica": _another_router,
    "evicted_policy": _another_policy,
    "evicted_memory": _more_memory,
    "evicted": lambda *given: _another_policy(*given) + _larger_tiers(*given) + _more_memory(*given),
    "cache_off": _cache_on,
    "other_tenant": _same_salt,
    "changed_earlier": _steadier_prompts,
}


# -- the search --------------------------------------------------------------------------------------------------------


def explain(scenario: Scenario, policies: Sequence[str] | None = None, causes: int = CAUSES) -> dict[str, Any]:
    """Simulate, split the misses, and simulate every change for the largest recoverable causes. JSON-able.

    Raises InputError for a scenario that cannot run and for a policy in `policies` that its engine does not have.
    """
    for name in policies or ():
        engine_of(scenario.engine).check_policy(name, {})
        find(name)  # clairvoyant can be simulated, and is no advice
    prepared = api.prepare(scenario)
    result = api.run(
        prepared,
        record_cache=_has_optimum(prepared.scenario),
        on_clock=text.clock(f"simulating {len(prepared.workload):,} requests", 0, 1 + causes),
    )
    resolved, summary = _reopened(result.scenario, scenario), result.report.summary
    tokens = missed(summary)
    recoverable = sorted(
        (c for c in tokens if tokens[c] and changes_for(c, resolved, policies)), key=lambda c: -(tokens[c] or 0)
    )
    followed = []
    chosen = recoverable[:causes]
    for i, cause in enumerate(chosen, start=1):  # a part of the progress each
        changes = changes_for(cause, resolved, policies)
        parts = (1 + len(chosen)) * len(changes)
        tried = [
            _verified(change, cause, int(tokens[cause] or 0), result, prepared, (i * len(changes) + j, parts))
            for j, change in enumerate(changes)
        ]
        tried.sort(key=lambda row: -row["recovered_tokens"])
        followed.append({"cause": cause, "tokens": tokens[cause], "changes": tried})
    return {
        "name": scenario.name,
        "before": _figures(summary),
        "prompt_tokens": summary["prompt_tokens"],
        "prefix_hit_tokens": summary["prefix_hit_tokens"],
        "miss_tokens": tokens,
        "shared_partial_block_tokens": summary["shared_partial_block_tokens"],
        "evicted_split": summary["evicted_split"],
        "by": breakdown(result.report),
        "not_recoverable": [c for c in tokens if tokens[c] and c not in recoverable],
        "causes": followed,
        "prefix_identity": summary["prefix_identity"],
        "block_size": summary["block_size"],
        "counting_rule": summary["counting_rule"],
        "seed": summary["seed"],
        "profile": summary["profile"],
        "profile_hash": summary["profile_hash"],
        "workload": summary["workload"],
    }


def _reopened(resolved: Scenario, given: Scenario) -> Scenario:
    """With max_model_len as it was given: with more memory a longer one may fit, with other blocks a shorter one."""
    return replace(resolved, engine=replace(resolved.engine, max_model_len=given.engine.max_model_len))


def _has_optimum(scenario: Scenario) -> bool:
    return engine_of(scenario.engine).has_optimum and scenario.cache.enabled and not scenario.cache.tiers


def missed(row: dict[str, Any]) -> dict[str, int | None]:
    """Missed tokens by cause of a summary, or of a row of its classes or tenants; evicted ones split by the optimum
    where there is one."""
    tokens: dict[str, int | None] = dict(row["miss_tokens"])
    split = row["evicted_split"]
    if split is None:
        return tokens
    parts = {f"evicted_{part}": split[part] for part in ("policy", "memory")}
    return {
        key: value
        for cause, count in tokens.items()
        for key, value in (parts.items() if cause == "evicted" else [(cause, count)])
    }


def breakdown(report: Report) -> dict[str, dict[str, dict[str, int]]]:
    """{"class" | "tenant" | "scope": {name: {"hit" and each cause: tokens}}}, of the window; tenants only where there
    are several."""
    cache = report.cache
    fates = ["hit", *missed(report.summary)]

    def sums(column: str) -> dict[str, dict[str, int]]:
        names = dict.fromkeys(cache[column])
        return {
            str(name): {
                fate: int(cache["tokens"][(cache[column] == name) & (cache["fate"] == fate)].sum()) for fate in fates
            }
            for name in names
        }

    tenants = {
        name: {"hit": row["prefix_hit_tokens"], **{fate: count or 0 for fate, count in missed(row).items()}}
        for name, row in report.tenants.items()
    }
    return {"class": sums("class"), "tenant": tenants, "scope": sums("scope")}


def _verified(
    change: Change, cause: str, cause_tokens: int, before: api.Result, prepared: api.Prepared, part: tuple[int, int]
) -> dict[str, Any]:
    """Simulate the change: figures after it, and in words whether it helps. part: (which, of how many) of the progress
    it is."""
    row: dict[str, Any] = {"change": change.words, "asks_for": change.price, "recovered_tokens": 0, "after": None}
    same = change.scenario.workload == before.scenario.workload
    try:
        report = api.run(
            api.prepare(change.scenario, prepared.workload if same else None),
            on_clock=text.clock(f"simulating: {change.words}", *part),
        ).report
    except InputError as error:
        return row | {"helps": False, "verdict": f"cannot be simulated: {error}"}
    old, after = before.report.summary, report.summary
    recovered = _recovered(before.report, report) if same else after["prefix_hit_tokens"] - old["prefix_hit_tokens"]
    row |= {"recovered_tokens": recovered, "after": _figures(after)}
    if not same and after["prompt_tokens"] != old["prompt_tokens"]:
        row["note"] = (
            f"prompt tokens of the window changed from {old['prompt_tokens']:,} to {after['prompt_tokens']:,}: compare"
            " rates"
        )
    return row | dict(zip(("helps", "verdict"), _verdict(recovered, cause_tokens, old, after), strict=True))


def _recovered(before: Report, after: Report) -> int:
    """Hit tokens more, of the requests that are in the window of both runs: where an answer comes sooner, so does the
    next turn."""
    both = before.requests["in_window"] & after.requests["in_window"]
    return int(after.requests["hit_tokens"][both].sum(dtype=int)) - int(
        before.requests["hit_tokens"][both].sum(dtype=int)
    )


def _verdict(recovered: int, cause_tokens: int, old: dict[str, Any], after: dict[str, Any]) -> tuple[bool, str]:
    """(whether the change helps, why in words): it must bring back tokens, and make nobody wait longer for it."""
    both = None not in (old["mean_ttft_ms"], after["mean_ttft_ms"]) and False not in (old["stable"], after["stable"])
    if recovered < LEAST_SHARE * cause_tokens:
        gained = (
            f"loses {-recovered:,} tokens"
            if recovered < 0
            else f"recovers {recovered:,} tokens, less than {LEAST_SHARE:.0%} of the cause"
        )
        sooner = ", though mean TTFT falls" if both and after["mean_ttft_ms"] < old["mean_ttft_ms"] else ""
        return False, f"does not help: {gained}{sooner}"
    gained = (
        f"recovers {recovered:,} tokens"
        f" ({f'{recovered / cause_tokens:.0%} of the cause' if recovered <= cause_tokens else 'more than the cause alone'})"  # noqa: E501
    )
    if old["stable"] is not False and after["stable"] is False:
        return False, f"does not help: {gained}, but the fleet becomes unstable"
    if old["stable"] is False:
        return True, f"helps: {gained}" + (
            "; the fleet is still unstable, so what it does for TTFT is unknown"
            if after["stable"] is False
            else "; the fleet is no longer unstable"
        )
    if both and after["mean_ttft_ms"] >= old["mean_ttft_ms"]:
        return False, f"does not help: {gained}, but mean TTFT does not fall"
    if None not in (old["attainment"], after["attainment"]) and after["attainment"] < old["attainment"]:
        return False, f"does not help: {gained}, but attainment falls"
    return True, f"helps: {gained}"


def _figures(summary: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "prefix_hit_rate",
        "prefix_hit_tokens",
        "mean_ttft_ms",
        "p99_ttft_ms",
        "attainment",
        "stable",
        "gpu_hours",
        "preemptions",
    )
    return {key: summary[key] for key in keys}
