"""Random cases for every eviction policy: runs of blocks against single blocks, and stepping against fast-forward.

    python -m tests.fuzz_policies --ops 1000000 --seed 0                # all policies in turn; exit 1 at the first
                                                                        difference
    python -m tests.fuzz_policies --ops 50000 --policies arc,s3fifo

The per-block reference is tests.reference_cache for policies that are a sort key, tests.reference_policies and
tests.reference_queues for others. For all but random it is also the simulator itself where nothing can be handled as a
run: on the same workload with a tree cut into single blocks, each a node of its own. An operation is a request
scheduled in a step, or a block taken."""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from typing import Any
from unittest.mock import patch

import numpy as np

from sim.kvcache.policies import POLICIES
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from tests import fuzz, reference_cache, reference_policies, reference_queues, reference_vllm
from tests.fuzz_cases import random_case
from workloads.columns import PrefixTree, Workload
from workloads.readers.engine_case import to_workload

SINGLE = tuple(name for name in POLICIES if name != "random")
"""Policies that treat the blocks of a run one by one; random takes a leaf as a whole."""
POOLS: dict[str, Any] = reference_policies.POOLS | reference_queues.POOLS
FAULTS = reference_policies.FAULTS | reference_queues.FAULTS
REFERENCES = tuple(
    name for name in POLICIES if name == "lru" or name in reference_cache.RankedPool.KEYS or name in POOLS
)
"""Policies with a per-block reference."""


def by_blocks(workload: Workload, block: int) -> Workload:
    """The same requests on a tree whose nodes own at most one block each: no run can hide a block from a policy."""
    tree = workload.tree
    parent: list[int] = []
    end: list[int] = []
    last: dict[int, int] = {}  # node -> its deepest piece
    for node, above in enumerate(tree.parent.tolist()):
        start, stop = (0 if above < 0 else int(tree.end[above])), int(tree.end[node])
        at = -1 if above < 0 else last[above]
        for cut in [*range((start // block + 1) * block, stop, block), stop]:
            parent.append(at)
            end.append(cut)
            at = len(parent) - 1
        last[node] = at
    cut_tree = PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16))
    result = dataclasses.replace(
        workload, tree=cut_tree, leaf=np.array([last[leaf] for leaf in workload.leaf.tolist()], np.int32)
    )
    result.check()
    return result


def nodes_alone() -> Any:
    """Context manager: no two tree nodes are one chain."""
    return patch(
        "sim.kvcache.chains.first_of_chain", lambda workload, block_size: np.arange(len(workload.tree), dtype=np.int32)
    )


def with_classes(workload: Workload, rng: random.Random) -> Workload:
    """Three classes and three tenants, for the policies that tell them apart."""
    n = len(workload)
    return dataclasses.replace(
        workload,
        class_id=np.array(rng.choices(range(3), k=n), np.int16),
        tenant_id=np.array(rng.choices(range(3), k=n), np.int32),
        class_names=("a", "b", "c"),
        class_slo=("", "", ""),
        tenant_names=("x", "y", "z"),
    )


def params_of(policy: str, rng: random.Random, block: int) -> dict[str, Any]:
    """Parameters with which tiny worlds reach what the policy is about."""
    return {
        "ttl": {"ttl_s": rng.choice([0.05, 0.3, 2.0]), "classes": {"b": rng.choice([0.0, 1.0, 9.0])}},
        "tlru": {"threshold_tokens": block * rng.randint(0, 6), "next_prompt_tokens": rng.randint(0, 2 * block)},
        "gdsf": {"depth_tokens": float(rng.choice([block, 5 * block, 1000]))},
        "quota": {"shares": {"x": rng.choice([0.0, 0.2, 0.5])}},
        "s3fifo": {
            "small_share": rng.choice([0.0, 0.1, 0.4]),
            "main_uses": rng.randint(1, 2),
            "start_up": rng.choice(["paper", "libcachesim"]),
        },
        "wtinylfu": {"window_share": rng.choice([0.01, 0.2, 0.5]), "sample": rng.randint(1, 4)},
        "slru": {"protected_uses": rng.randint(2, 3)},
        "lruk": {"k": rng.randint(1, 3)},
    }.get(policy, {})


def case_of(policy: str, seed: int, index: int) -> tuple[fuzz.Case, Workload, EngineParams]:
    """A random case, with classes and tenants in the workload, and the policy in the engine."""
    case = fuzz.timed(random_case(seed, index) | {"timed": True})
    rng = random.Random(f"policies {seed}/{index}")
    workload, config = to_workload(case)
    workload = with_classes(workload, rng)
    params = params_of(policy, rng, case["config"]["block_size"])
    return case, workload, EngineParams(**(config | {"policy": policy, "policy_params": params}))


def difference(policy: str, seed: int, index: int) -> tuple[str, int]:
    """(the first difference of a case or nothing, operations)."""
    case, workload, params = case_of(policy, seed, index)
    log: list[tuple] = []
    stepped = simulate(workload, params, fuzz.LinearTime(), seed=seed, fast_forward=False, step_log=log)
    forwarded = simulate(workload, params, fuzz.LinearTime(), seed=seed)
    found = next(fuzz.unequal(stepped, forwarded), "")
    if not found and policy in SINGLE:
        with nodes_alone():
            single = simulate(by_blocks(workload, params.block_size), params, fuzz.LinearTime(), seed=seed)
        found = (
            next(fuzz.unequal(forwarded, single), "")
            .replace("stepping", "runs")
            .replace("fast-forward", "single blocks")
        )
    if not found and policy in REFERENCES:
        found = next(fuzz.vllm_differences(run_reference(policy, case, workload, params), stepped, log), "")
    return found, sum(len(row[2]) + row[4] for row in log)


def run_reference(policy: str, case: fuzz.Case, workload: Workload, params: EngineParams) -> reference_vllm.Engine:
    """The per-block engine with the policy's per-block reference."""
    engine = reference_vllm.Engine(case, fuzz.LinearTime(), check=True)
    engine.pool = make_pool(policy, workload, params)
    engine.pool.keys = [r.keys for r in engine.requests]
    return engine.run()


def make_pool(policy: str, workload: Workload, params: EngineParams) -> Any:
    if policy == "lru":
        return reference_cache.FreeListPool(params.kv_blocks)
    if policy in reference_cache.RankedPool.KEYS:
        given = dict(params.policy_params)
        if "depth_tokens" in given:
            given["block_cost"] = params.block_size / given["depth_tokens"]
        return reference_cache.RankedPool(params.kv_blocks, policy, given)
    columns = {name: workload.column(name).tolist() for name in ("class_id", "tenant_id", "priority")}
    about = reference_policies.About(
        params.block_size,
        class_names=workload.class_names,
        tenant_names=workload.tenant_names,
        **columns,
        prompt=workload.prompt_tokens.tolist(),
        output=workload.output_tokens.tolist(),
        params=params.policy_params,
    )
    return POOLS[policy](params.kv_blocks, about)


def cases_until_noticed(fault: str, seed: int = 0, limit: int = 1500) -> int | None:
    """Number of random cases until a fault planted in the reference shows; None when it never did."""
    policy, target, name, faulty = FAULTS[fault]
    for index in range(limit):
        case, workload, params = case_of(policy, seed, index)
        with patch.object(target, name, faulty):
            engine = run_reference(policy, case, workload, params)
        log: list[tuple] = []
        recording = simulate(workload, params, fuzz.LinearTime(), seed=seed, step_log=log)
        if next(fuzz.vllm_differences(engine, recording, log), ""):
            return index + 1
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description="random cases of every eviction policy: runs against single blocks, stepping against fast-forward"
    )
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", default=",".join(POLICIES), help="separated by commas (default: all)")
    args = parser.parse_args()
    policies = args.policies.split(",")
    done = index = 0
    while done < args.ops:
        policy = policies[index % len(policies)]
        found, operations = difference(policy, args.seed, index)
        done, index = done + operations, index + 1
        if found:
            print(f"{policy}, case {args.seed}/{index - 1}: {found}", file=sys.stderr)
            return 1
    print(f"{done} operations in {index} random cases of {len(policies)} policies: no difference", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
