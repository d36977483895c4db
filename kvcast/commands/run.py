"""Simulate one scenario and say whether it meets its targets.

The scenario is a TOML file (examples/*.toml; unknown keys are errors). A mix is judged in steady state
(docs/steady.md). The same scenario is simulated a second time with the prefix cache off, on the same arrivals, to say
what the cache is worth; --no-baseline leaves that out.

  kvcast run examples/demo.toml
  kvcast run examples/demo.toml --set cluster.replicas=4 --set cache.policy=lfu --out runs/four
  kvcast run S.toml --set run.duration_s=600 --save-cache warm.npz && kvcast run S.toml --warm-cache warm.npz
  kvcast run examples/demo.toml --set slo.ttft_s=0.5 --set slo.attainment=0.95 --check
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.commands import output, price_list, source

if TYPE_CHECKING:
    from kvcast.api import Prepared, Result
    from kvcast.trust.model_error import Scaled
    from sim.scenario import Scenario

NOT_MET = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scenario_arguments(parser)
    parser.add_argument(
        "--out", metavar="DIR", type=output, help="write a run folder: scenario, summary, requests as Parquet"
    )
    parser.add_argument(
        "--optimum",
        action="store_true",
        help=(
            "find the best eviction for this schedule too, and split evicted tokens into the policy's choice and too"
            " little memory"
        ),
    )
    parser.add_argument(
        "--steps",
        action="store_true",
        help="write steps.parquet into the run folder: every engine step, its time and shape",
    )
    parser.add_argument(
        "--access-log",
        action="store_true",
        help=(
            "write access.parquet into the run folder: every run of prompt tokens looked up in a cache, and when it is"
            " next asked for"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 0 when the target of [slo] is met, with 1 when it is missed or that it is met is not shown",
    )
    parser.add_argument(
        "--no-model-error", action="store_true", help="do not simulate again at slower and faster step times"
    )
    parser.add_argument("--no-baseline", action="store_true", help="do not simulate again with the prefix cache off")
    parser.add_argument(
        "--save-cache",
        metavar="FILE",
        type=output,
        help="keep the prefix caches as they are once all arrivals up to run.duration_s are served",
    )
    parser.add_argument(
        "--warm-cache",
        metavar="FILE",
        type=output,
        help="begin with saved caches and serve what arrives after them (no run without cache beside it)",
    )
    parser.add_argument(
        "--against",
        metavar="RESULT",
        type=Path,
        help="what a benchmark measured of this load: each of its figures beside the simulated one (docs/import.md)",
    )
    parser.add_argument(
        "--against-run", metavar="NAME", help="which one of a result with several (guidellm's strategies)"
    )
    parser.add_argument(
        "--horizon", metavar="SECONDS", help="stop the clock here, whatever is unfinished (run.horizon_s)"
    )


class PrintKeys(argparse.Action):
    """--keys: every key of a scenario file, and no run."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from kvcast.scenario.reference import as_text

        print(as_text())
        parser.exit()


def add_scenario_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    told = "the scenario file, or two and more" if several else "the scenario file"
    parser.add_argument("scenario", metavar="SCENARIO.toml", type=source, nargs="+" if several else None, help=told)
    parser.add_argument(
        "--keys",
        action=PrintKeys,
        nargs=0,
        help="list every key of a scenario file with its default and meaning, and exit",
    )
    parser.add_argument(
        "--set",
        metavar="a.b=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help=(
            "change one key, such as engine.kv_blocks=5000 or workload.class.chat.rate=2; a.b= removes it; may be"
            " repeated"
        ),
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        action="append",
        type=price_list,
        dest="overrides",
        help="what a GPU costs an hour, by GPU: a TOML file with a line such as h200 = 3.5 for each (cost.prices)",
    )


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from kvcast.store import runs
    from workloads.errors import InputError

    overrides = args.overrides + ([] if args.horizon is None else [f"run.horizon_s={args.horizon or repr('')}"])
    scenario = config.load_scenario(args.scenario, overrides)
    for flag, asked in (("--access-log", args.access_log), ("--steps", args.steps)):
        if asked and not args.out:
            raise InputError(f"{flag}: expected --out with it, the run folder to write to")
    if args.out:
        runs.check_replaceable(args.out)
    truth = _truth(args)
    with config.naming(args.scenario):
        if args.check:
            _check_target(scenario)
        if args.optimum:
            _check_optimum(args, scenario)
        if args.save_cache or args.warm_cache:
            _check_window(scenario, "--save-cache" if args.save_cache else "--warm-cache")
        text.progress("loading the workload")
        prepared = api.prepare(scenario)
        prepared, caches = _caches(args, prepared)
        result, baseline, ends = _simulated(args, prepared, caches)
    text.clear_clock()
    if truth is not None:
        from kvcast.benchmarks.against import compare

        engine = scenario.engine
        front_end = bool(engine.frontend_ms or engine.frontend_us_per_prompt_token or engine.frontend_requests_per_s)
        result.report.summary["measured"] = compare(truth, result.report, str(args.against), front_end)
    if args.out:
        runs.save_run(
            args.out,
            result,
            baseline,
            steps=args.steps,
            access_of=prepared.workload if args.access_log else None,
            twins=ends.columns if ends is not None else None,
        )
    if args.json:
        print(text.to_json(api.as_document(result, baseline)))
    else:
        from kvcast.present import summary_text

        print(summary_text.describe(result, baseline))
        if args.out:
            print(f"\nrun folder: {args.out}")
    return _verdict(result) if args.check else 0


def _simulated(
    args: argparse.Namespace, prepared: Prepared, caches: dict[str, Any]
) -> tuple[Result, Result | None, Scaled | None]:
    """The run, the one with the prefix cache off, and those at other step times; None for what was not asked for."""
    from contextlib import nullcontext
    from dataclasses import replace

    from kvcast import api, text
    from kvcast.pools.beside import beside, copies, cores_free
    from kvcast.studies import own_cost
    from kvcast.trust.model_error import judged, scaled

    scenario, baseline, ends = prepared.scenario, None, None
    again = scenario.cache.enabled and not args.no_baseline and not args.warm_cache
    if (cost := own_cost.check_memory(prepared)) is not None:
        text.progress(own_cost.words(cost))
    text.progress(f"simulating {len(prepared.workload):,} requests{', and again with the prefix cache off' * again}")
    off = api.without_cache(prepared)
    many = {} if cost is None else {"copies": copies(cores_free())}  # of a small run they cost more than they bring
    twin = lambda: replace(api.run(off, **many).report, steps=[])  # noqa: E731
    # A large run has the memory of one.
    with beside(twin) if again and cost is None else nullcontext(twin) as without_cache:
        result = api.run(prepared, on_clock=text.clock("simulating", 0, 1), record_cache=args.optimum, **caches, **many)
        if result.report.summary["verdict"] is not None and not args.no_model_error:
            text.progress("simulating again at slower and faster step times")
            ends = scaled(prepared, **{key: value for key, value in caches.items() if key == "warm"})
            result.report.summary["model_error"] = judged(ends, api.class_limits(prepared), scenario.slo)
        if again:
            text.progress("waiting for the run with the prefix cache off")
            baseline = api.Result(off.resolved, without_cache())
    return result, baseline, ends


def _truth(args: argparse.Namespace) -> Any:
    """What the file of --against measured; None without it."""
    if args.against is None:
        return None
    from kvcast.benchmarks.against import read_truth

    return read_truth(args.against, args.against_run)


def _caches(args: argparse.Namespace, prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """The run as --warm-cache begins it, and what the simulation is given to begin and end with."""
    if not (args.warm_cache or args.save_cache):
        return prepared, {}
    from kvcast.store import caches

    options: dict[str, Any] = {}
    if args.warm_cache:
        prepared, options["warm"] = caches.begin(args.warm_cache, prepared)
    if args.save_cache:
        options["on_end"] = caches.saver(args.save_cache, prepared)
    return prepared, options


def _check_optimum(args: argparse.Namespace, scenario: Scenario) -> None:
    """The simulation itself refuses it with SGLang's semantics and with cache tiers."""
    from workloads.errors import InputError

    if not scenario.cache.enabled:
        raise InputError(
            "[cache] enabled = false with --optimum: expected the prefix cache on, nothing is evicted without it"
        )
    if args.warm_cache:
        raise InputError("--optimum with --warm-cache: expected one of them, an optimum begins with an empty cache")


def _check_window(scenario: Scenario, flag: str) -> None:
    """A mix's own warm-up moves its window with what is asked for, and the run that saves a cache would have other
    requests than the one it warms."""
    from kvcast.scenario.steady import begins_early
    from workloads.errors import InputError

    if begins_early(scenario):
        raise InputError(
            f"[run] warmup_s is not set with {flag}: expected a number, such as --set run.warmup_s=0, and"
            " workload.duration_s: the saved cache is the warm-up, and both runs need the same requests"
        )


def _check_target(scenario: Scenario) -> None:
    from workloads.errors import InputError

    if scenario.slo.attainment is None:
        raise InputError("[slo] attainment is missing: --check needs a target, such as --set slo.attainment=0.95")
    limits: list[Any] = [scenario.slo, *scenario.slo.classes.values()]
    if all(value is None for one in limits for value in (one.ttft_s, one.tpot_s, one.e2e_s)):
        raise InputError(
            "[slo] has an attainment target and no limit to attain: --check needs one, such as --set slo.ttft_s=1"
        )


def _verdict(result: Result) -> int:
    """The exit code of --check: 0 meets, 1 misses or not shown. Nothing arrived, nothing shown."""
    from kvcast.present import summary_text
    from sim.measure.verdict import MEETS

    judged = result.report.summary["verdict"]
    if judged["word"] == MEETS:
        return 0
    print(f"kvcast: {summary_text.headline(judged, result.report.summary['attainment'])}", file=sys.stderr)
    return NOT_MET
