"""Simulate a scenario and say how much of what any eviction could have hit its cache did hit.

"This schedule" is the best eviction given the run's own admissions and pinned blocks; "this order" bounds every run
that admits each replica's requests in the same order, so policies are compared by it; a ceiling is a cache that never
evicts. The clairvoyant is a policy that knows the future, not a bound. All admitted requests count, warm-up included.

  kvcast optimum examples/demo.toml
  kvcast optimum examples/demo.toml --policy lru,lfu,clairvoyant --set engine.kv_blocks=4000 --depth-weight 0.0167
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument(
        "--policy", metavar="P,...", help="eviction policies, separated by commas (default: the scenario's)"
    )
    parser.add_argument(
        "--depth-weight",
        metavar="W",
        type=float,
        help=(
            "bound prefill work as well: extra cost of a token per 512 tokens before it, relative to the first"
            " (Llama-3.1-8B: 1/60 = 0.0167)"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from sim.engines import engine_of, having
    from workloads.errors import InputError

    scenario = config.load_scenario(args.scenario, args.overrides)
    rows, workload = [], None
    with config.naming(args.scenario):
        if not engine_of(scenario.engine).has_optimum:
            raise InputError(
                f"[engine] semantics = {scenario.engine.semantics!r}: expected {having('has_optimum')}, whose block"
                " cache the optimum of a run is defined for"
            )
        if not scenario.cache.enabled:
            raise InputError("[cache] enabled = false: expected the prefix cache on, nothing is evicted without it")
        for policy in (args.policy or scenario.cache.policy).split(","):
            prepared = api.prepare(replace(scenario, cache=replace(scenario.cache, policy=policy.strip())), workload)
            workload = prepared.workload
            text.progress(f"simulating {len(workload):,} requests under {policy}")
            rows.append(_row(policy, prepared, args.depth_weight))
    print(text.to_json(rows) if args.json else "\n\n".join(_lines(row) for row in rows))
    return 0


def _row(policy: str, prepared: Any, depth_weight: float | None) -> dict[str, Any]:
    from kvcast import api
    from sim.optimum.schedule import order_optimum, schedule_optimum, schedule_work, split_evicted

    rec = api.record(prepared, record_cache=True)
    workload, engine = prepared.workload, prepared.scenario.engine
    admitted = rec.admit_s == rec.admit_s
    prompt = int(workload.prompt_tokens[admitted].sum())
    best = schedule_optimum(workload, rec)
    in_order = engine.scheduler_policy == "fcfs" and not engine.long_prefill_token_threshold
    order = order_optimum(workload, rec) if in_order else None
    split = split_evicted(rec.hit_tokens, best.hit_tokens, rec.ceiling_replica_tokens)
    hit = int(rec.hit_tokens.sum())
    return {
        "policy": policy,
        "block_size": rec.block_size,
        "kv_blocks": rec.kv_blocks,
        "replicas": len(rec.steps),
        "prompt_tokens": prompt,
        "hit_tokens": hit,
        "schedule_optimum_tokens": best.bound_tokens,
        "schedule_optimum_share": best.share(hit),
        "schedule_checkpoints": best.checkpoints,
        "order_optimum_tokens": None if order is None else order.bound_tokens,
        "order_optimum_share": (
            "not valid here: prompts may be allocated after the next admission" if order is None else order.share(hit)
        ),
        "ceiling_replica_tokens": int(rec.ceiling_replica_tokens.sum()),
        "ceiling_fleet_tokens": int(rec.ceiling_fleet_tokens.sum()),
        "evicted_policy_tokens": int(split.policy.sum()),
        "evicted_memory_tokens": int(split.memory.sum()),
        "gave_up_tokens": int(split.gave_up.sum()),
        "prefill_work_share": None if depth_weight is None else schedule_work(workload, rec, depth_weight).share(),
    }


def _lines(row: dict[str, Any]) -> str:
    from kvcast import text

    def rate(tokens: int | None) -> str:
        return text.UNKNOWN if tokens is None or not row["prompt_tokens"] else f"{tokens / row['prompt_tokens']:.4f}"

    cells = [
        ["hit", "", rate(row["hit_tokens"])],
        [
            "optimum for this schedule",
            f"proven by {row['schedule_checkpoints']} checkpoints",
            rate(row["schedule_optimum_tokens"]),
        ],
        ["optimum for this order", "any schedule with it", rate(row["order_optimum_tokens"])],
        ["ceiling, this routing", "caches that never evict", rate(row["ceiling_replica_tokens"])],
        ["ceiling, fleet", "one cache that never evicts", rate(row["ceiling_fleet_tokens"])],
        ["evicted, policy's choice", "the optimum kept them", rate(row["evicted_policy_tokens"])],
        ["evicted, too little memory", "the optimum lost them too", rate(row["evicted_memory_tokens"])],
        ["hit, given up by the optimum", "optimum - hit = policy's choice - this", rate(row["gave_up_tokens"])],
    ]
    title = (
        f"{row['policy']}: {row['replicas']} x {row['kv_blocks']:,} blocks of {row['block_size']} tokens,"
        f" {row['prompt_tokens']:,} prompt tokens, the warm-up's among them"
    )
    shares = [row["schedule_optimum_share"], row["order_optimum_share"], row["prefill_work_share"]]
    return "\n".join(
        [
            title,
            text.table(["share of prompt tokens", "which", "rate"], cells, left=2),
            *(f"hits: {share}" for share in shares[:2]),
            *(f"saved: {s}" for s in shares[2:] if s),
        ]
    )
