"""The answer and its bill, and the table of candidates.

>>> print(size(plan("examples/demo.toml")))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.planner.words.phrases import DOES_NOT_FIT, NAMES, gpus, interval_share, replicas, split

ROWS = 24  #: candidates printed at most


def size(made: dict[str, Any]) -> str:
    answer = made["answer"]
    if answer["replicas"] is None:
        return ""
    usd = "" if answer["usd_per_hour"] is None else f", {text.usd(answer['usd_per_hour'])} an hour"
    label = "" if not answer["values"] else f" ({answer['label']})"
    lines = [
        f"{answer['replicas']} {replicas(answer['replicas'])}{label}, {gpus(answer['gpus'])},"
        f" {answer['gpu_hours_per_day']:,.0f} GPU-hours a day{usd}, router {answer['router']}"
    ]
    if answer["usd_per_request"] is not None:
        million = ", ".join(
            f"{text.usd(answer[f'usd_per_million_{kind}_tokens'])} {kind}" for kind in ("input", "output", "total")
        )
        lines.append(
            f"at the offered {answer['offered_per_s']:.3g} requests/s: {text.usd(answer['usd_per_month'])} a month,"
            f" {text.usd(answer['usd_per_request'])} a request; per million tokens {million} (one bill, three ways)"
        )
    if made["period"] is not None:
        lines.append(
            f"over the whole period of {made['period']['period_s'] / 3600:g} hours:"
            f" {interval_share(made['period']['attainment'])} (one run)"
        )
    return "\n".join([*lines, *_by_seed(answer["by_seed"])])


def _by_seed(found: dict[str, int] | None) -> list[str]:
    """How often the answer changes with the seed."""
    if found is None:
        return []
    if found["same"] == found["runs"]:
        return [f"every one of {found['runs']} seeds says so by itself: this fleet attains, one replica less does not"]
    others = [
        f"{found[key]} would do with {words}"
        for key, words in (("fewer", "a replica less"), ("more", "no fewer than a replica more"))
        if found[key]
    ]
    return [
        f"the answer changes with the seed: of {found['runs']} independent runs {found['same']} say so by themselves,"
        f" {', '.join(others)}"
    ]


def candidates(made: dict[str, Any]) -> str:
    rows = made["candidates"]
    varied = bool(rows and rows[0]["values"])
    shown = (
        rows
        if len(rows) <= ROWS
        else sorted(rows, key=lambda row: (row["verdict"] != "meets", row["gpus"] or 1e9))[:ROWS]
    )
    cells = []
    for row in shown:
        attainment = row["attainment"]
        share = (
            interval_share(attainment)
            if attainment["mean"] is not None
            else f"below {text.percent(attainment['high'])}"
            if attainment["high"] is not None
            else text.UNKNOWN
        )
        why = _refusal(row) or _because(row)
        mark = "*" if (row["extrapolated"] or 0.0) >= 0.01 else ""
        cells.append(
            [
                *([_label(row)] if varied else []),
                row["verdict"] + mark,
                _short(why),
                text.count(row["replicas"]) + split(row),
                text.count(row["gpus"]),
                text.usd(row["usd_per_hour"]),
                text.count(row["runs"] or None),
                share,
                text.milliseconds(row["ttft_ms_p99"]),
                text.milliseconds(row["tpot_ms_p99"]),
            ]
        )
        cells += [
            [
                *([""] if varied else []),
                "",
                f"  {each['name']}: {each['verdict']}",
                "",
                "",
                "",
                "",
                interval_share(each["attainment"]),
                "",
                "",
            ]
            for each in row["classes"]
            if len(row["classes"]) > 1 and each["attainment"]
        ]
    header = [
        *(["combination"] if varied else []),
        "verdict",
        "because of",
        "replicas",
        "GPUs",
        "$/h",
        "runs",
        "attainment",
        "TTFT p99",
        "TPOT p99",
    ]
    lines = [text.table(header, cells, left=3 if varied else 2)]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} more in plan.json and with --json")
    if any(cell[1 if varied else 0].endswith("*") for cell in cells):
        lines.append("*: 1 % or more of the simulated time rests on extrapolated step times")
    rejected = ", ".join(f"{NAMES.get(key, key)} {n}" for key, n in made["rejected_by"].items() if n)
    return "\n".join([*lines, *([f"not chosen: {rejected}"] if rejected else [])])


def _because(row: dict[str, Any]) -> str:
    """What a fleet failed by, and which class."""
    reason = NAMES.get(row["rejected_by"], row["rejected_by"]) if row["rejected_by"] else ""
    return f"{row['class']}: {reason}" if row["class"] else reason


def _label(row: dict[str, Any]) -> str:
    """The values without the sections of their keys."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in row["values"].items())


def _refusal(row: dict[str, Any]) -> str | None:
    """Why it was not simulated: of what does not fit, where it would."""
    reason: str | None = row["reason"]
    if reason is None or row["verdict"] != DOES_NOT_FIT:
        return reason
    where = reason.rpartition("; ")[2] if "; " in reason else reason
    return where.partition(", with KV")[0]


def _short(words: str) -> str:
    return words if len(words) <= 48 else f"{words[:45]}..."
