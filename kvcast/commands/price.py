"""What the same requests would cost on a hosted API that sells prompt caching, beside your own GPUs.

The bill is split into uncached input, cache writes, cache reads and output, for every retention in the price file,
without caching, and with the ceiling (entries that never lapse and cost nothing to write). Prices are your input: start
from examples/prices.toml, whose numbers are examples. A scenario is simulated: the API gets its requests at the times
they arrived there, and the cost of its GPUs stands beside the bill. A trace or bundled mix is priced at its own times,
without a run.

  kvcast price examples/demo.toml --prices examples/prices.toml
  kvcast price conversation_trace.jsonl --prices my_prices.toml --json
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.commands import no_trace_options, of_trace, trace_options

if TYPE_CHECKING:
    import numpy as np

    from kvcast.api import Result
    from kvcast.studies.api_price import Bill, Prices, Retention
    from workloads.columns import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="a scenario (.toml), which is simulated; a trace; or a bundled mix"
    )
    parser.add_argument(
        "--prices",
        metavar="PRICES.toml",
        required=True,
        help="what the API charges and caches; see examples/prices.toml",
    )
    parser.add_argument(
        "--set",
        metavar="a.b=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="change one key of the scenario; may be repeated",
    )
    trace_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


@dataclass(frozen=True)
class Asked:
    """The requests to price: which of them count (bool [n]), when they were sent, and the run they come from, if
    any."""

    workload: Workload
    at_s: np.ndarray  #: float64 [n]
    counted: np.ndarray
    times: str  #: where at_s comes from, in words
    result: Result | None = None


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.present.price_text import as_text
    from kvcast.studies.api_price import NO_CACHING, Retention, price
    from kvcast.studies.price_list import CEILING, read_prices

    asked = _scenario(args) if args.file.endswith(".toml") else _trace(args)
    name, prices, sold = read_prices(
        args.prices, is_mix=asked.workload.hash_block_tokens is None and len(asked.workload.layer_names) > 1
    )
    bills = {
        r.name: price(asked.workload, asked.at_s, prices, r)
        for r in (NO_CACHING, *sold, Retention(CEILING, float("inf"), 1.0))
    }
    document = _document(asked, bills, name, prices, sold)
    print(text.to_json(document) if args.json else as_text(document))
    return 0


# -- what is priced ----------------------------------------------------------------------------------------------------


def _scenario(args: argparse.Namespace) -> Asked:
    from kvcast import api, config, text
    from sim.recording import COMPLETED

    no_trace_options(args.file, args)
    scenario = config.load_scenario(args.file, args.overrides)
    with config.naming(args.file):
        prepared = api.prepare(scenario)
        text.progress(f"simulating {len(prepared.workload):,} requests")
        result = api.run(prepared)
    requests = result.report.requests
    counted = requests["in_window"] & (requests["status"] == COMPLETED)
    return Asked(prepared.workload, requests["arrival_s"], counted, "arrivals of the simulated run", result)


def _trace(args: argparse.Namespace) -> Asked:
    import numpy as np

    from kvcast import api
    from workloads.config import WorkloadConfig
    from workloads.errors import InputError
    from workloads.toml import list_presets
    from workloads.transform import in_time_order, nominal_start_s

    if args.overrides:
        raise InputError(f"--set {args.overrides[0]}: expected a scenario (.toml) with it, but {args.file} is none")
    is_preset = args.file in list_presets() and not Path(args.file).exists()
    if is_preset:
        no_trace_options(args.file, args)
    workload = api.load_workload(WorkloadConfig(preset=args.file) if is_preset else of_trace(args.file, args))
    workload, how = in_time_order(workload)
    return Asked(workload, nominal_start_s(workload), np.ones(len(workload), bool), f"requests {how}")


# -- results -----------------------------------------------------------------------------------------------------------


def _document(asked: Asked, bills: dict[str, Bill], name: str, prices: Prices, sold: list[Retention]) -> dict[str, Any]:
    import numpy as np

    workload, counted = asked.workload, asked.counted
    session = workload.column("session_id")[counted]
    class_id = workload.column("class_id")
    prompt = int(workload.prompt_tokens[counted].sum())
    rows = []
    for retention, bill in bills.items():
        total = bill.total_usd[counted]
        per_session = (
            np.bincount(np.unique(session, return_inverse=True)[1], weights=total) if len(session) else np.zeros(0)
        )
        rows.append(
            {
                "retention": retention,
                "usd": {key: float(column[counted].sum()) for key, column in bill.usd.items()},
                "total_usd": float(total.sum()),
                "tokens": {
                    "uncached": int(bill.uncached_tokens[counted].sum()),
                    "write": int(bill.write_tokens[counted].sum()),
                    "read": int(bill.hit_tokens[counted].sum()),
                    "output": int(bill.output_tokens[counted].sum()),
                },
                "hit_rate": float(bill.hit_tokens[counted].sum()) / prompt if prompt else None,
                "usd_per_request": float(total.mean()) if len(total) else None,
                "usd_per_session": (
                    {
                        "mean": float(per_session.mean()),
                        **{f"p{p}": float(np.percentile(per_session, p)) for p in (50, 90, 99)},
                    }
                    if len(per_session)
                    else None
                ),
                "classes": {
                    label: _class_row(workload, bill, counted & (class_id == c))
                    for c, label in enumerate(workload.class_names)
                },
            }
        )
    return {
        "prices": {
            "name": name,
            **{f.name: getattr(prices, f.name) for f in fields(prices)},
            "retention": [vars(r) for r in sold],
        },
        "workload": workload.source,
        "times": asked.times,
        "prefix_identity": workload.prefix_identity,
        "requests": int(counted.sum()),
        "requests_not_priced": len(workload) - int(counted.sum()),
        "sessions": len(set(session.tolist())),
        "prompt_tokens": prompt,
        "bills": rows,
        "own_gpus": _own(asked, rows),
    }


def _class_row(workload: Workload, bill: Bill, rows: np.ndarray) -> dict[str, Any]:
    prompt = int(workload.prompt_tokens[rows].sum())
    return {
        "requests": int(rows.sum()),
        "total_usd": float(bill.total_usd[rows].sum()),
        "hit_rate": float(bill.hit_tokens[rows].sum()) / prompt if prompt else None,
    }


def _own(asked: Asked, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The simulated fleet's cost, and the GPU price at which it would equal each bill."""
    if asked.result is None:
        return None
    summary = asked.result.report.summary
    hours, bill = summary["gpu_hours"], summary["cost"].get("at_offered") or summary["cost"]
    return {
        "gpu_hours": hours,
        "gpu_hour_usd": summary["cost"]["gpu_hour_usd"],
        "usd": summary["cost"]["usd"],
        **{key: bill[key] for key in (f"usd_per_million_{tokens}_tokens" for tokens in ("input", "output", "total"))},
        "offered_per_s": summary["offered_per_s"],
        "gpus": summary["replicas"] * summary["gpus_per_replica"],
        "prefix_hit_rate": summary["prefix_hit_rate"],
        "attainment": summary["attainment"],
        "stable": summary["stable"],
        "completed": summary["completed"],
        "arrived": summary["arrived"],
        "break_even_gpu_hour_usd": {row["retention"]: row["total_usd"] / hours if hours else None for row in rows},
    }
