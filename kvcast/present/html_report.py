"""A run, or a plan, as one self-contained HTML page: verdict, numbers, plots, assumptions, provenance, glossary.

The one idea: everything is read from the run folder (or plan.json), with the words and figures of the dashboard, so the
page, the dashboard and summary.json cannot disagree; the same folder gives the same bytes.

    >>> Path("report.html").write_text(of_folder(Path("runs/demo")), encoding="utf-8")
"""

from __future__ import annotations

import json
from pathlib import Path

from kvcast.present.html_basis import Document
from kvcast.present.html_plan import of_plan
from kvcast.present.html_run import of_run
from kvcast.store.runs import Run, load_run
from workloads.errors import InputError

__all__ = ["of_folder", "of_plan", "of_run"]


def of_folder(folder: Path) -> str:
    """The page of a run folder or of a plan's folder. Raises InputError where it is neither."""
    if (folder / "plan.json").is_file():
        try:
            plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as problem:
            raise InputError(f"{folder / 'plan.json'}: not JSON: {problem}") from None
        if not isinstance(plan, dict) or missing(plan):
            raise InputError(f"{folder / 'plan.json'}: no plan of this version of kvcast; give its command again")
        return of_plan(plan, _answer_run(folder, plan))
    return of_run(load_run(folder))


def missing(plan: Document) -> set[str]:
    """What a plan's page is made of and is not there."""
    return {"answer", "candidates", "method", "verdict", "advice", "growth", "capacity"} - set(plan)


def _answer_run(folder: Path, plan: Document) -> Run | None:
    """The run of the plan's answer, where the plan kept it."""
    name = (plan.get("answer") or {}).get("run")
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    for place in (folder / name, folder / "runs" / name):
        if (place / "run.json").is_file():
            return load_run(place)
    return None
