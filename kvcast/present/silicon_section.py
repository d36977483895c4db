"""The silicon rows' scores as a section of docs/accuracy.md, with their figure.

The one idea: the section is made of the figures of one run of `kvcast validate silicon` and of the committed rules, so
nobody types a number.

    >>> "\n".join(section(outcome.figures, "accuracy.svg", rules()))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcast.figures.errors import within
from kvcast.figures.svg import as_svg
from kvcast.validation.silicon_rules import Rules

METRICS = ("ttft", "tpot")
HEAD = "| | n | TTFT mean | median | bias | TPOT mean | median | bias | KV binds |"
RULE = "|---|---|---|---|---|---|---|---|---|"
HALVES = (
    "| | n looked at | TTFT mean | bias | TPOT mean | bias | n held back | TTFT mean | bias | TPOT mean | bias |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def picture(figures: Mapping[str, Any]) -> bytes:
    """The share of rows by error, as SVG."""
    return (as_svg(within(_curves(figures["scored"])), "accuracy") + "\n").encode()


def _curves(scored: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    kinds = {"dense": False, "mixtures of experts": True}
    return {
        f"{kind} {metric.upper()}": found
        for kind, moe in kinds.items()
        for metric in METRICS
        if (found := [row[f"{metric}_error"] for row in scored if row["moe"] == moe])
    }


def section(figures: Mapping[str, Any], picture: str, file: Rules) -> list[str]:
    """Its lines."""
    left = figures["not_scored"]
    return [
        "## Runs that others measured",
        "",
        "`kvcast validate silicon`: the closed-loop measurements in aiconfigurator-core 0.12 (`silicon_sample.csv`,"
        " Apache-2.0; install the package, or name the file with `--data`). Each row is a scenario made by rule from"
        " what is known of its protocol ([silicon.toml](../kvcast/validation/silicon.toml)); no parameter was fitted to"
        " the rows, but faults of the tables and of the rules were found on them (below). Errors are of the means,"
        " simulated over measured; bias is their signed mean, above 0 where kvcast is slower.",
        "",
        f"{figures['rows']:,} rows are scored. Not scored, all others of the file:",
        "",
        *(f"- {count:,}: {why}" for why, count in left.items()),
        "",
        f"![Share of rows by error]({picture})",
        "",
        "### Named groups",
        "",
        HEAD.replace("| n |", "| n | goal, vendor |"),
        RULE + "---|",
        *(_row(name, found, _goal(found, file.vendor(name))) for name, found in figures["groups"].items()),
        "",
        "Goal and vendor: TTFT / TPOT mean, %. The vendor's are of aiconfigurator's own estimator on the same rows, as"
        " once worked out beside kvcast; this command does not recompute them. *KV binds*: rows whose places with whole"
        " prompts and answers need more KV than the replica has.",
        "",
        "### The half that is only scored",
        "",
        "Rows are dealt by the hash of their id. Since 30 November 2026 only the first half is looked at, row by row,"
        " in looking for mechanisms; the other is scored when the page is made. (All had been seen before. The"
        " same deployment measured twice can stand in both.)",
        "",
        *HALVES,
        *(_halves(name, both) for name, both in figures["halves"].items()),
        "",
        "### What the residuals say",
        "",
        *(f"- **{one['of']}**: {one['why']}" for one in file.findings),
        "",
        "### By model, GPU and backend",
        "",
        HEAD,
        RULE,
        *(_row(name, found) for name, found in figures["by_model_gpu_backend"].items()),
        "",
    ]


def _halves(name: str, both: Mapping[str, Any]) -> str:
    cells = []
    for half in ("looked_at", "held_back"):
        found = both.get(half)
        if found is None:
            cells += ["0", *["-"] * 4]
            continue
        cells.append(f"{found['n']:,}")
        for metric in METRICS:
            cells += [f"{100 * found[metric]['mean']:.1f}", f"{100 * found[metric]['bias']:+.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


def _row(name: str, found: Mapping[str, Any], goal: str | None = None) -> str:
    cells = [f"{found['n']:,}"] + ([] if goal is None else [goal])
    for metric in METRICS:
        one = found[metric]
        cells += [f"{100 * one['mean']:.1f}", f"{100 * one['median']:.1f}", f"{100 * one['bias']:+.1f}"]
    return f"| {name} | {' | '.join(cells)} | {found['kv_binding']} |"


def _goal(found: Mapping[str, Any], vendor: Mapping[str, float]) -> str:
    goal = found["goal"]
    words = []
    if goal:
        met = all(found[metric]["mean"] <= goal[metric] for metric in METRICS)
        words.append(f"{_pair(goal)} {'met' if met else '**missed**'}")
    return "; ".join(words + ([f"vendor {_pair(vendor)}"] if vendor else [])) or "-"


def _pair(errors: Mapping[str, float]) -> str:
    return " / ".join(f"{100 * errors[metric]:g}" for metric in METRICS)
