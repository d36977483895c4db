"""The tables of a comparison: what a difference says, a row a variant, numbers to take away.

The one idea: a difference is told with its 95 % interval, and one that may be chance is "no difference shown".

    >>> difference_rows(json.loads(compare_json))
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from kvcast import text
from kvcast.figures.comparison import name_of
from kvcast.present.numbers import mark_of_share
from kvcast.studies import compare, differences

Document = Mapping[str, Any]


def chance(found: Document) -> str:
    """Intervals are many: some miss the truth."""
    count = sum(d["interval_95"] is not None for v in found["variants"][1:] for d in v["vs_first"].values())
    return (
        f"Each interval holds the truth 95 times in 100: of these {count}, {0.05 * count:.1f} are expected to miss."
        if count > 1
        else ""
    )


def difference_rows(found: Document) -> list[dict[str, str]]:
    """A row a variant but the first: each difference with its interval, or that none is shown, or why there is none."""
    rows = []
    for variant in found["variants"][1:]:
        row = {"variant": name_of(variant["variant"])}
        for key, (heading, tell, good) in differences.VALUES.items():
            row[heading] = cell(variant["vs_first"].get(key), tell, good)
        rows.append({**row, "stable": stable(variant)})
    return [{key: value for key, value in row.items() if any(r[key] for r in rows)} for row in rows]


def turned(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """A row a value and a column a variant: for a few variants this is the table that fits a page."""
    return [{"": key, **{row["variant"]: row[key] for row in rows}} for key in rows[0] if key != "variant"]


def cell(d: Document | None, tell: Any, good: str) -> str:
    if d is None or d["difference"] is None:
        return "" if d is None or d["note"] in ("no price", "undefined") else d["note"]
    signed = f"{'+' if d['difference'] >= 0 else '−'}{tell(abs(d['difference']))}"
    if d["interval_95"] is None:
        return f"{signed} (no interval: {d['note']})"
    if not d["shown"]:
        return "no difference shown"
    judged = "better" if (d["difference"] > 0) == (good == "higher") else "worse"
    return f"{text.plus_minus(signed, d['interval_95'], tell)}, {judged}"


def value_rows(found: Document) -> list[dict[str, str]]:
    """A row a variant: its values, with intervals over seeds where there are several."""
    rows = []
    for variant in found["variants"]:
        steady = stable(variant) != "NO"
        row = {"variant": name_of(variant["variant"])}
        for key, (heading, tell) in compare.COLUMNS.items():
            half = variant[f"{key}_interval_95"]
            value = tell(variant[key]) if half is None else text.plus_minus(tell(variant[key]), half, tell)
            row[heading] = value if steady or not key.endswith("_ms") else text.UNKNOWN
        share = extrapolated(variant)
        rows.append({**row, "stable": stable(variant), "extrapolated": f"{text.percent(share)}{mark_of_share(share)}"})
    return rows


def extrapolated(variant: Document) -> float:
    """The largest share of simulated time, over the variant's seeds, outside what the profile was made from."""
    return max(s["coverage"]["extrapolated"] for s in variant["summaries"])


def stable(variant: Document) -> str:
    answers = {None: "?", True: "yes", False: "NO"}
    return "/".join(dict.fromkeys(answers[s.get("stable")] for s in variant["summaries"]))


def as_csv(found: Document) -> str:
    """Numbers as numbers: values, differences to the first variant, half-widths of their intervals."""
    rows = [
        {
            **variant["variant"],
            **{column: variant[column] for key in compare.COLUMNS for column in (key, f"{key}_interval_95")},
            **{
                f"{key}_{part}": d[part]
                for key, d in variant["vs_first"].items()
                for part in ("difference", "interval_95", "shown")
            },
            "stable": stable(variant),
            "extrapolated": extrapolated(variant),
        }
        for variant in found["variants"]
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def settings_rows(found: Document) -> list[dict[str, str]]:
    """A row a setting in which named variants differ, a column a variant; none where the varied keys say it."""
    names = [name_of(variant["variant"]) for variant in found["variants"]]
    named = [*names, *(name_of(one["variant"]) for one in found.get("does_not_fit", ()))]
    order = {name: i for i, name in enumerate(found.get("names", named))}
    return [
        {"setting": key, **{name: row[order[name]] for name in named}}
        for key, row in (found.get("settings") or {}).items()
    ]


def shown_keys(found: Document) -> list[str]:
    """The values in which any variant has a difference, those with one that is shown first."""
    told = {
        key: [row for v in found["variants"][1:] if (row := v["vs_first"].get(key)) and row["difference"] is not None]
        for key in differences.VALUES
    }
    return sorted((key for key in told if told[key]), key=lambda key: not any(row["shown"] for row in told[key]))
