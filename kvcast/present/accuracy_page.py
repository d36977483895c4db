"""docs/accuracy.md: the silicon rows' scores as a page, with its one figure.

The one idea: the page is made of the figures of one run of `kvcast validate silicon` and of the committed rules, so
nobody types a number.

    kvcast validate silicon --jobs 2 --write docs/accuracy.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast.figures.errors import within
from kvcast.figures.svg import as_svg
from kvcast.validation.silicon_rules import Rules, rules
from workloads.files import replace_file

METRICS = ("ttft", "tpot")
HEAD = "| | n | TTFT mean | median | bias | TPOT mean | median | bias | KV binds |"
RULE = "|---|---|---|---|---|---|---|---|---|"


def write(path: Path, figures: Mapping[str, Any]) -> list[Path]:
    """Write the page, and its figure beside it; the files written."""
    picture = path.with_suffix(".svg")
    replace_file(picture, (as_svg(within(_curves(figures["scored"])), "accuracy") + "\n").encode())
    replace_file(path, page(figures, picture.name, rules()).encode())
    return [path, picture]


def _curves(scored: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    kinds = {"dense": False, "mixtures of experts": True}
    return {
        f"{kind} {metric.upper()}": found
        for kind, moe in kinds.items()
        for metric in METRICS
        if (found := [row[f"{metric}_error"] for row in scored if row["moe"] == moe])
    }


def page(figures: Mapping[str, Any], picture: str, file: Rules) -> str:
    """The page's text."""
    left = figures["not_scored"]
    parts = [
        "# Accuracy on runs that others measured",
        "",
        "Made by `kvcast validate silicon --write docs/accuracy.md`, of the closed-loop measurements in"
        " aiconfigurator-core 0.12 (`silicon_sample.csv`, Apache-2.0; install the package, or name the file with"
        " `--data`). Each row is a scenario made by rule from what is known of its protocol"
        " ([silicon.toml](../kvcast/validation/silicon.toml)); no parameter was fitted to the rows, but two faults of"
        " the tables were found on them and mended (below). Errors are of the means, simulated over measured; bias is"
        " their signed mean, above 0 where kvcast is slower.",
        "",
        f"{figures['rows']:,} rows are scored. Not scored, all others of the file:",
        "",
        *(f"- {count:,}: {why}" for why, count in left.items()),
        "",
        f"![Share of rows by error]({picture})",
        "",
        "## Named groups",
        "",
        HEAD.replace("| n |", "| n | goal, vendor |"),
        RULE + "---|",
        *(_row(name, found, _goal(found, file.vendor(name))) for name, found in figures["groups"].items()),
        "",
        "Goal and vendor: TTFT / TPOT mean, %. The vendor's are of aiconfigurator's own estimator on the same rows, as"
        " once worked out beside kvcast; this command does not recompute them. *KV binds*: rows whose places with whole"
        " prompts and answers need more KV than the replica has.",
        "",
        "## What the residuals say",
        "",
        *(f"- **{one['of']}**: {one['why']}" for one in file.findings),
        "",
        "## By model, GPU and backend",
        "",
        HEAD,
        RULE,
        *(_row(name, found) for name, found in figures["by_model_gpu_backend"].items()),
        "",
    ]
    return "\n".join(parts)


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
