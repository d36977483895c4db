"""A comparison as one HTML page.

>>> of_comparison(json.loads(compare_json))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcast import figures
from kvcast.figures.comparison import name_of
from kvcast.present import html_page
from kvcast.present.comparison import chance, difference_rows, settings_rows, shown_keys, turned, value_rows
from kvcast.present.terms import TERMS
from kvcast.studies import scaled

Document = Mapping[str, Any]
PLOTTED = 6


def of_comparison(found: Document) -> str:
    """What the variants are, what each value differs by, the values themselves, and how sure that is."""
    names = [name_of(variant["variant"]) for variant in found["variants"]]
    rows = difference_rows(found)
    method = f"{found['method'][:1].upper()}{found['method'][1:]}. {chance(found)}"
    parts = [
        html_page.heading(f"{len(names)} variants, against {names[0]}", "simulated on the same arrivals, not measured"),
        html_page.section("What differs", _table(settings_rows(found))),
        html_page.section(
            f"Against {names[0]}", _table(turned(rows)) if rows else "", html_page.paragraph(method, soft=True)
        ),
        html_page.figures(
            html_page.figure(figures.differences(dict(found), key), f"difference-{key}", TERMS["change"])
            for key in shown_keys(found)[:PLOTTED]
        ),
        html_page.section("Values", _table(value_rows(found))),
        *_fleets(found, names),
        html_page.section(
            "Does not fit",
            html_page.lines(f"{name_of(one['variant'])}: {one['why']}" for one in found.get("does_not_fit", ())),
        ),
        html_page.glossary([("change", TERMS["change"]), ("verdict", TERMS["verdict"])]),
    ]
    return html_page.page(f"{' / '.join(names)} - kvcast compare", parts)


def _fleets(found: Document, names: Sequence[str]) -> list[str]:
    """What fleets that change have held, where there are any."""
    rows = scaled.rows_of([variant["summaries"] for variant in found["variants"]])
    told = [[name, *row] for name, row in zip(names, rows, strict=False)]
    if not told:
        return []
    table = html_page.table(("variant", *scaled.HEADER), told)
    return [html_page.section("Fleets over time", table, html_page.paragraph(f"{scaled.TOLD}.", soft=True))]


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return html_page.table(list(rows[0]), [list(row.values()) for row in rows], words=True) if rows else ""
