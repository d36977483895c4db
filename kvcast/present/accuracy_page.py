"""docs/accuracy.md, the page of truth: every set of `kvcast validate`, what it came to, and what it rests on.

The one idea: a table of the sets as they came out of one command, and of what was fitted on each and seen of it
(kvcast/validation/sets.toml); a set without data, or that was not run, stands there as that.

    kvcast validate --all --jobs 2 --write docs/accuracy.md --table kvcast/trust/evidence.json
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast import validation
from kvcast.present import silicon_section
from kvcast.present.silicon_section import METRICS
from kvcast.trust import evidence
from kvcast.validation import Outcome
from kvcast.validation.silicon_rules import rules
from workloads.files import replace_file

SETS = Path(validation.__file__).parent / "sets.toml"
SILICON = "silicon"
HEAD = ("| set | held against | of | came out | fitted on it | seen in development |", "|---|---|---|---|---|---|")
LONGEST = 400
"""Characters of a headline."""


def write(path: Path, outcomes: Sequence[Outcome], missing: Mapping[str, str]) -> list[Path]:
    """Write the page, and the figure beside it where there is one; the files written. missing: sets without data."""
    written = [path]
    silicon = next((one for one in outcomes if one.name == SILICON), None)
    if silicon is not None:
        written.append(path.with_suffix(".svg"))
        replace_file(written[1], silicon_section.picture(silicon.figures))
    replace_file(path, page(outcomes, missing, path.with_suffix(".svg").name).encode())
    return written


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write what a run's report looks up (kvcast.trust.evidence)."""
    rows = [row for one in outcomes if one.name == SILICON for row in evidence.rows_of(one.figures["scored"], SILICON)]
    replace_file(path, evidence.as_file(rows))


def page(outcomes: Sequence[Outcome], missing: Mapping[str, str], picture: str) -> str:
    """The page's text."""
    told = tomllib.loads(SETS.read_text(encoding="utf-8"))
    by_name = {one.name: one for one in outcomes}
    silicon = by_name.get(SILICON)
    parts = [
        "# Accuracy: what was held against what",
        "",
        "Made by `kvcast validate --all --write docs/accuracy.md --table kvcast/trust/evidence.json`; `kvcast validate"
        " SET` recomputes one of them ([what each compares](validation.md)). A run's own report names the measured"
        " servers nearest to it, and how far off they came out.",
        "",
        badge(outcomes),
        "",
        *HEAD,
        *(_set(name, one, by_name.get(name), missing.get(name, "")) for name, one in told.items()),
        "",
    ]
    return "\n".join(parts + (silicon_section.section(silicon.figures, picture, rules()) if silicon else []))


def badge(outcomes: Sequence[Outcome]) -> str:
    """The page in a sentence."""
    passed = [one.name for one in outcomes if one.passed]
    missed = [one.name for one in outcomes if not one.passed]
    words = [f"**{len(passed)} of {len(outcomes)} sets pass**" + (f" (not: {', '.join(missed)})" if missed else "")]
    silicon = next((one for one in outcomes if one.name == SILICON), None)
    for name in ("dense, protocol known", "mixtures of experts, protocol known"):
        if silicon is not None and (found := silicon.figures["groups"].get(name)):
            errors = " / ".join(f"{100 * found[m]['mean']:.0f} %" for m in METRICS)
            words.append(f"{found['n']:,} measured runs of {name.split(',')[0]}: mean TTFT / TPOT {errors} off")
    return "; ".join(words) + "."


def _set(name: str, about: Mapping[str, Any], outcome: Outcome | None, why: str) -> str:
    if outcome is not None:
        came = f"{'passed' if outcome.passed else '**missed**'}: {headline(outcome, about['headline'])}"
    else:
        came = f"**no data**: {why}" if why else "**not run** for this page"
    cells = (f"`{name}`", about["truth"], about["about"], came, about["fitted"], about["seen"])
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def headline(outcome: Outcome, which: str) -> str:
    """What of an outcome stands in the table: its last line, its lines with a limit, its means, or its groups."""
    if which == "mean":
        rows = {key: row for key, row in outcome.figures.items() if key.startswith("mean_")}
        words = [f"{key[5:-2].upper()} {100 * row['relative_error']:+.1f} %" for key, row in rows.items()]
        return f"means {', '.join(words)}"
    if which == "goals":
        means = {name: [100 * found[m]["mean"] for m in METRICS] for name, found in outcome.figures["groups"].items()}
        return "; ".join(f"{name} {ttft:.1f} / {tpot:.1f}" for name, (ttft, tpot) in means.items())
    if which == "held out":
        return "; ".join(line for line in outcome.lines if "limit" in line)
    last = outcome.lines[-1]
    return last if len(last) <= LONGEST else last[:LONGEST].rsplit(", ", 1)[0] + ", ..."
