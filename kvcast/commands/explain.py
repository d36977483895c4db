"""Where missed prompt tokens went, the three largest recoverable causes, and what would recover them, simulated.

Takes a run folder (kvcast run --out) or a scenario. Every cause suggests changes: prompt order or churn, more KV or
replicas, another policy, another router, smaller blocks, one salt for all tenants, the cache turned on. Each is
simulated on the same requests; hits, TTFT and attainment before and after are printed, and a change that does not help
is said not to.

With --against it says instead why the simulation differs from what a benchmark measured of the same requests: in which
part of their time, and which one parameter would remove most of the difference (docs/fit-server.md).

--life tells one request's life instead, step by step: a request's number, slowest, or textbook (three prompts that
share text, on a replica of the scenario).

  kvcast explain runs/a
  kvcast explain S.toml --against R.json
  kvcast explain runs/a --life slowest
  kvcast explain examples/demo.toml --life textbook --set engine.block_size=1
  kvcast explain examples/demo.toml --set engine.kv_blocks=4000 --policy lfu,s3fifo,arc
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.scenario import Scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_or_scenario", metavar="RUN_OR_SCENARIO", help="a run folder, or a scenario file (.toml)")
    parser.add_argument(
        "--set",
        metavar="a.b=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="change one key first; may be repeated",
    )
    parser.add_argument(
        "--policy",
        metavar="P,...",
        help="eviction policies to try (default lru,lfu,s3fifo,gdsf; lru,lfu,slru,fifo with SGLang's semantics)",
    )
    parser.add_argument(
        "--against", metavar="RESULT", type=Path, help="what a benchmark measured, request by request, of this server"
    )
    parser.add_argument(
        "--against-run", metavar="NAME", help="which one of a result with several (guidellm's strategies)"
    )
    parser.add_argument(
        "--life",
        metavar="REQUEST,...",
        help="tell what happened to these requests: numbers, slowest, or textbook for the textbook's A, B and C",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import config, text
    from kvcast.present import explain_text
    from kvcast.studies import explain

    scenario, recorded = _scenario(Path(args.run_or_scenario), args.overrides)
    if args.against is not None:
        return _against(args, scenario)
    if args.life is not None:
        return _lives(args, scenario)
    policies = tuple(name.strip() for name in args.policy.split(",")) if args.policy else None
    with config.naming(args.run_or_scenario):
        found = explain.explain(scenario, policies)
    differs = [
        key
        for key in ("prompt_tokens", "prefix_hit_tokens")
        if recorded is not None and recorded.get(key) != found[key]
    ]
    if recorded is not None:
        found["reproduces_run"] = not differs
    text.clear_clock()
    print(text.to_json(found) if args.json else text.wrapped(explain_text.describe(found), 140))
    if differs and recorded is not None and not args.json:
        was = ", ".join(f"{key} {recorded.get(key):,} then, {found[key]:,} now" for key in differs)
        print(
            f"caution: the run folder's own figures differ ({was}): another version of kvcast, of the profile or of the"
            " trace"
        )
    return 0


def _against(args: argparse.Namespace, scenario: Scenario) -> int:
    from kvcast import api, config, text
    from kvcast.fitted import difference, read_run
    from kvcast.present import difference_text
    from workloads.errors import InputError

    if args.policy:
        raise InputError("--policy with --against: expected one of them, a measured run has its own policy")
    with config.naming(args.run_or_scenario):
        resolved = api.resolve(scenario)
        trace = scenario.workload.trace is not None
        own = api.load_workload(scenario.workload, scenario.seed, untimed=True) if trace else None
    run = read_run(args.against, own, args.against_run)
    text.progress(f"simulating {len(run):,} requests at other values of each parameter")
    found = difference(resolved, [run])
    text.clear_clock()
    print(text.to_json(found) if args.json else difference_text.describe(found))
    return 0


def _lives(args: argparse.Namespace, scenario: Scenario) -> int:
    from kvcast import api, config, text
    from kvcast.present import life_text
    from kvcast.studies import one_life

    with config.naming(args.run_or_scenario):
        if args.life == "textbook":
            found = one_life.of_textbook(api.resolve(scenario))
        else:
            found = one_life.of_requests(api.prepare(scenario), [part.strip() for part in args.life.split(",")])
    text.clear_clock()
    print(text.to_json({"lives": found}) if args.json else text.wrapped(life_text.describe(found), 140))
    return 0


def _scenario(path: Path, overrides: list[str]) -> tuple[Scenario, dict | None]:
    """(scenario, what a run folder recorded; None for a scenario file and when keys are overridden)."""
    from kvcast import config
    from kvcast.store import runs
    from workloads.errors import InputError

    if not path.is_dir():
        return config.load_scenario(path, overrides), None
    if not (path / "run.json").is_file():
        raise InputError(f"{path}: no run.json in it, expected a run folder (kvcast run --out) or a scenario file")
    if overrides:
        return config.load_scenario(path / "scenario.toml", overrides), None
    run = runs.load_run(path)
    return run.scenario, run.summary
