"""A bill for prompt caching in words: the table by retention, and what your own GPUs cost beside it.

>>> print(as_text(document))
"""

from __future__ import annotations

from typing import Any

from kvcast import text


def as_text(document: dict[str, Any]) -> str:
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
