"""Where missed prompt tokens went, and what would bring them back, shown by simulating it.

The one idea: a cause of missed tokens suggests changes to the scenario; each is simulated on the same requests, and
only what the second run did counts as recovered. A change that does not help is reported as such.

    >>> found = explain(load_scenario("examples/demo.toml"))
    >>> print(explain_text.describe(found))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcast import api, text
from kvcast.scenario.toml import dumps
from kvcast.studies.change import Change
from kvcast.studies.levers import changes
from sim.engines import engine_of
from sim.kvcache.policies import find
from sim.scenario import Scenario
from workloads.errors import InputError

if TYPE_CHECKING:
    from sim.measure.report import Report

CAUSES = 3  #: how many recoverable causes are followed up
LEAST_SHARE = 0.01
"""A change that recovers less than this share of a cause's tokens does not help."""


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
        record_cache=_has_optimum(prepared.scenario, bool(prepared.resolved.params.kv_groups)),
        on_clock=text.clock(f"simulating {len(prepared.workload):,} requests", 0, 1 + causes),
    )
    resolved, summary = _reopened(result.scenario, scenario), result.report.summary
    tokens = missed(summary)
    fixes = {cause: changes(cause, resolved, resolved, policies) for cause in tokens if tokens[cause]}
    recoverable = sorted((cause for cause in fixes if fixes[cause]), key=lambda cause: -(tokens[cause] or 0))
    followed = []
    chosen = recoverable[:causes]
    for i, cause in enumerate(chosen, start=1):  # a part of the progress each
        parts = (1 + len(chosen)) * len(fixes[cause])
        tried = [
            _verified(change, cause, int(tokens[cause] or 0), result, prepared, (i * len(fixes[cause]) + j, parts))
            for j, change in enumerate(fixes[cause])
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


def _has_optimum(scenario: Scenario, hybrid: bool) -> bool:
    one_cache = scenario.hardware.attention_dp == 1 and not scenario.cache.tiers and not hybrid
    one_cache &= not (scenario.autoscale.scales or scenario.shock)  # replicas that start again, empty
    return engine_of(scenario.engine).has_optimum and scenario.cache.enabled and one_cache


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
    row: dict[str, Any] = {
        "change": change.words,
        "set": list(change.sets),
        "asks_for": change.asks_for,
        "costs": change.costs,
        "scenario": dumps(change.scenario),
        "recovered_tokens": 0,
        "after": None,
    }
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
