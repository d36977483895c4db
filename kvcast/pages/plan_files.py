"""What a plan can be taken away as: its command, its document, its candidates as a table, its page.

>>> candidates_csv(plan)
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from kvcast import text
from kvcast.jobs.runner import Job
from kvcast.pages import results
from kvcast.pages.plan_question import Document, command_line


def plan_files(job: Job) -> None:
    found = job.document()
    st.code(command_line(job.command), language="bash", wrap_lines=True)
    files: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("plan.json", "application/json", lambda: text.to_json(portable(found))),
        ("candidates.csv", "text/csv", lambda: candidates_csv(found)),
        ("plan.html", "text/html", lambda: as_html(job)),
    )
    for place, (name, mime, content) in zip(st.columns(len(files)), files, strict=True):
        place.download_button(name, content, name, mime, on_click="ignore", width="stretch", key=f"plan.{name}")


def portable(plan: Document) -> Document:
    """The plan without paths of the server."""
    advice = plan["advice"] and [{**row, "scenario": results.portable(row["scenario"])} for row in plan["advice"]]
    return {**plan, "scenario": results.portable(plan["scenario"]), "advice": advice}


def as_html(job: Job) -> str:
    """The page that `kvcast report` writes of a plan: with what its answer rests on where the runs were kept."""
    from kvcast.present.html_report import of_folder, of_plan

    return of_folder(job.folder) if (job.folder / "plan.json").is_file() else of_plan(job.document())


def candidates_csv(plan: Document) -> str:
    """The table of candidates with its numbers as numbers."""
    import csv
    import io

    keys = (
        "label",
        "replicas",
        "gpus",
        "usd_per_hour",
        "verdict",
        "rejected_by",
        "class",
        "runs",
        "reason",
        "stable",
        "extrapolated",
        "ttft_ms_p99",
        "tpot_ms_p99",
        "run",
    )
    rows = [
        {
            **{key: c[key] for key in keys},
            **{f"attainment_{end}": c["attainment"][end] for end in ("mean", "low", "high")},
        }
        for c in plan["candidates"]
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["label"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
