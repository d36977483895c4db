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

if TYPE_CHECKING:
    import numpy as np

    from kvcast.api import Result
    from kvcast.studies.api_price import Bill, Prices, Retention
    from workloads.columns import Workload

TRACE_BREAKPOINT_TOKENS = 128
CEILING = "ceiling"


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
    parser.add_argument("--format", metavar="F", help="the trace's format (default: recognised from the content)")
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
    from kvcast.studies.api_price import NO_CACHING, Retention, price

    asked = _scenario(args) if args.file.endswith(".toml") else _trace(args)
    name, prices, sold = read_prices(
        args.prices, is_mix=asked.workload.hash_block_tokens is None and len(asked.workload.layer_names) > 1
    )
    bills = {
        r.name: price(asked.workload, asked.at_s, prices, r)
        for r in (NO_CACHING, *sold, Retention(CEILING, float("inf"), 1.0))
    }
    document = _document(asked, bills, name, prices, sold)
    print(text.to_json(document) if args.json else _as_text(document))
    return 0


# -- what is priced ----------------------------------------------------------------------------------------------------


def _scenario(args: argparse.Namespace) -> Asked:
    from kvcast import api, config, text
    from sim.recording import COMPLETED

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
    workload = api.load_workload(
        WorkloadConfig(preset=args.file) if is_preset else WorkloadConfig(trace=args.file, format=args.format)
    )
    workload, how = in_time_order(workload)
    return Asked(workload, nominal_start_s(workload), np.ones(len(workload), bool), f"requests {how}")


# -- the price file ----------------------------------------------------------------------------------------------------

_NUMBERS = {
    "input_usd_per_mtok": 0.0,
    "output_usd_per_mtok": 0.0,
    "read_multiplier": 0.0,
    "minimum_tokens": 0,
    "max_breakpoints": 1,
    "seconds": 0.0,
    "write_multiplier": 0.0,
}
"""Key -> the least value that makes sense."""
_MOST = 1e9
"""Of every number but seconds: a retention may be endless."""


def read_prices(path: str, is_mix: bool) -> tuple[str, Prices, list[Retention]]:
    """(name, prices, retentions) of a price file. Raises InputError naming file, key, value and what was expected."""
    from kvcast.config import read_toml, shallow
    from kvcast.scenario.checks import check_text
    from kvcast.studies.api_price import Prices
    from workloads.errors import InputError

    table = read_toml(path)
    with shallow(path):
        check_text(table, path)
    name, sold = str(table.pop("name", "unnamed")), table.pop("retention", None)
    if table.get("breakpoints", "auto") == "auto":
        table["breakpoints"] = "layers" if is_mix else TRACE_BREAKPOINT_TOKENS
    if table["breakpoints"] != "layers" and (type(table["breakpoints"]) is not int or table["breakpoints"] < 1):
        raise InputError(
            f"{path}: breakpoints = {table['breakpoints']!r}, expected 'auto', 'layers' or a number of tokens of at"
            " least 1"
        )
    if type(table.get("prompt_end", True)) is not bool:
        raise InputError(f"{path}: prompt_end = {table['prompt_end']!r}, expected true or false")
    prices = _checked(path, "", table, Prices)
    if not isinstance(sold, list) or not sold:
        raise InputError(
            f"{path}: [[retention]] is missing, expected at least one table with name, seconds and write_multiplier"
        )
    return name, prices, _retentions(path, sold)


def _retentions(path: str, sold: list[Any]) -> list[Retention]:
    """Every [[retention]]; each is a column of the bill under its own name."""
    from kvcast.studies.api_price import NO_CACHING, Retention
    from workloads.errors import InputError

    found: list[Retention] = []
    taken = {NO_CACHING.name, CEILING}
    for entry in sold:
        if not isinstance(entry, dict):
            raise InputError(
                f"{path}: [[retention]] {entry!r}, expected a table with name, seconds and write_multiplier"
            )
        found.append(_checked(path, "[[retention]] ", entry, Retention))
        name = found[-1].name
        if not isinstance(name, str) or not name or name in taken:
            raise InputError(
                f"{path}: [[retention]] name = {name!r}, expected a name that no other column of the bill has"
            )
        taken.add(name)
    return found


def _checked(path: str, where: str, table: dict[str, Any], kind: type) -> Any:
    """kind(**table) after looking at every key."""
    from dataclasses import MISSING
    from difflib import get_close_matches
    from math import inf

    from workloads.errors import InputError

    known = {f.name: f for f in fields(kind)}
    for key, value in table.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(known)
            raise InputError(f"{path}: {where}{key} is no key of a price file, {hint}")
        low, most = _NUMBERS.get(key), inf if key == "seconds" else _MOST
        whole = isinstance(low, int)
        if low is not None and (
            isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= most
        ):
            above = "" if most == inf else f" and at most {most:g}"
            raise InputError(
                f"{path}: {where}{key} = {value!r}, expected a {'whole ' if whole else ''}number of at least"
                f" {low:g}{above}"
            )
    for key, f in known.items():
        if key not in table and f.default is MISSING:
            raise InputError(f"{path}: {where}{key} is missing, expected a value")
    return kind(**table)


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
        "gpus": summary["replicas"] * summary["tensor_parallel"],
        "prefix_hit_rate": summary["prefix_hit_rate"],
        "attainment": summary["attainment"],
        "stable": summary["stable"],
        "completed": summary["completed"],
        "arrived": summary["arrived"],
        "break_even_gpu_hour_usd": {row["retention"]: row["total_usd"] / hours if hours else None for row in rows},
    }


def _as_text(document: dict[str, Any]) -> str:
    from kvcast import text

    bills, prices = document["bills"], document["prices"]
    header = ["", *(row["retention"] for row in bills)]
    cells = [
        [label, *(text.usd(row["usd"][key]) for row in bills)]
        for key, label in (
            ("uncached", "uncached input"),
            ("write", "cache writes"),
            ("read", "cache reads"),
            ("output", "output"),
        )
    ]
    cells.append(["total", *(text.usd(row["total_usd"]) for row in bills)])
    cells.append(["tokens read", *(text.count(row["tokens"]["read"]) for row in bills)])
    cells.append(["share of prompt tokens", *(text.percent(row["hit_rate"]) for row in bills)])
    cells.append(["a request", *(text.usd(row["usd_per_request"]) for row in bills)])
    for stat in ("mean", "p50", "p99"):
        cells.append(
            [
                f"a session, {stat}",
                *(text.usd(row["usd_per_session"] and row["usd_per_session"][stat]) for row in bills),
            ]
        )
    classes = list(bills[0]["classes"])
    if len(classes) > 1:
        cells += [
            [f"class {name}", *(text.usd(row["classes"][name]["total_usd"]) for row in bills)] for name in classes
        ]
    own = document["own_gpus"]
    if own:
        cells.append(
            ["equal to a GPU-hour at", *(text.usd(own["break_even_gpu_hour_usd"][row["retention"]]) for row in bills)]
        )
    where = (
        "layer ends" + (" and prompt ends" if prices["prompt_end"] else "")
        if prices["breakpoints"] == "layers"
        else f"every {prices['breakpoints']} tokens"
    )
    lines = [
        (
            f"{document['requests']:,} requests of {document['sessions']:,} sessions, {document['prompt_tokens']:,}"
            f" prompt tokens; times: {document['times']}"
        ),
        f"prices: {prices['name']} (an input, not a fact): input ${prices['input_usd_per_mtok']:g}, output"
        f" ${prices['output_usd_per_mtok']:g} per million tokens, reads x {prices['read_multiplier']:g}; "
        + f"cached from {prices['minimum_tokens']:,} tokens at {where}",
        "",
        text.table(header, cells),
        "",
    ]
    if not document["prefix_identity"]:
        lines.append("the workload says nothing about shared text: no reads, because it is unknown")
    if document["requests_not_priced"]:
        lines.append(
            f"{document['requests_not_priced']:,} requests are not priced: outside the window or not completed"
        )
    return "\n".join(
        [*lines, *_own_lines(own), "ceiling: entries never lapse and cost nothing to write; a bound, not an offer"]
    )


def _own_lines(own: dict[str, Any] | None) -> list[str]:
    from kvcast import text

    if own is None:
        return []
    paid = (
        f"{text.usd(own['usd'])} at ${own['gpu_hour_usd']:g} a GPU-hour, {text.per_million(own, 'usd', text.usd)}"
        if own["usd"] is not None
        else "no price given (set cost.gpu_hour_usd)"
    )
    load = "" if own["offered_per_s"] is None else f" at {own['offered_per_s']:.3g} requests/s offered"
    lines = [
        f"own GPUs: {own['gpus']} for {own['gpu_hours']:.3g} GPU-hours{load}, {paid}; hit rate"
        f" {text.percent(own['prefix_hit_rate'])}, attainment {text.percent(own['attainment'])}"
    ]
    if own["stable"] is False:
        lines.append(
            "the fleet is overloaded: the API serves these requests, the fleet did not in time, so the costs are not of"
            " the same service"
        )
    if own["completed"] < own["arrived"]:
        lines.append(
            f"the fleet completed {own['completed']:,} of {own['arrived']:,} arrivals; only those are in the API's bill"
        )
    return [*lines, "the API's model is another one: the same tokens are not the same answers"]
