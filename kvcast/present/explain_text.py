"""What `kvcast explain` found, in words: where the tokens went, by class, tenant and scope, and what each change did.

>>> print(describe(explain.explain(load_scenario("examples/demo.toml"))))
"""

from __future__ import annotations

from typing import Any

from kvcast import text

TENANTS = 5  #: how many are listed, those with the most prompt tokens

MEANING = {
    "partial_block": "beyond the last full block, or the prompt's last token",
    "in_flight": "another request was still computing them",
    "other_replica": "cached on a replica this request was not sent to",
    "window": "seen here, but layers with a window or a state had not kept what it needs",
    "evicted_policy": "evicted, the optimum of this schedule kept them",
    "evicted_memory": "evicted, too little memory even for the optimum",
    "evicted": "evicted",
    "cache_off": "seen before, but the cache is off",
    "other_tenant": "the same text under another tenant's salt",
    "changed_earlier": "the same text, but the prompt differs before it",
    "cold": "never seen before",
}
"""Cause -> what it means, in the order in which a token is asked (docs/metrics.md)."""


def describe(found: dict[str, Any]) -> str:
    prompt = found["prompt_tokens"]

    def row(name: str, count: int | None, meaning: str) -> list[str]:
        share = text.UNKNOWN if count is None or not prompt else text.percent(count / prompt)
        return [name, meaning, "not determinable" if count is None else text.count(count), share]

    rows = [row("hit", found["prefix_hit_tokens"], "served from the cache")]
    rows += [
        row(cause, found["miss_tokens"][cause], MEANING[cause]) for cause in MEANING if cause in found["miss_tokens"]
    ]
    if found["shared_partial_block_tokens"]:
        rows.append(row("(of partial_block)", found["shared_partial_block_tokens"], "shared, but not as a whole block"))
    if found["evicted_split"]:
        rows.append(
            row(
                "(of the hits)",
                found["evicted_split"]["given_up"],
                "hit, though the optimum of this schedule gave them up",
            )
        )
    lines = [
        f"where {prompt:,} prompt tokens went ({found['counting_rule']}; block size {found['block_size']})",
        text.table(["fate", "meaning", "tokens", "share"], rows, left=2),
    ]
    lines += [table for key, rows in found["by"].items() if len(rows) > 1 for table in ("", _by_table(key, rows))]
    if not found["prefix_identity"]:
        lines.append(
            "the workload says nothing about shared text: nothing can be recovered, because nothing is known to be"
            " shared"
        )
    elif not found["causes"]:
        lines.append("no missed token has a cause that a change of the scenario is known to recover")
    for number, cause in enumerate(found["causes"], 1):
        lines += [
            "",
            (
                f"{number}. {cause['cause']}: {cause['tokens']:,} tokens, {text.percent(cause['tokens'] / prompt)} of"
                " the prompts"
            ),
            _change_table(found["before"], cause["changes"]),
        ]
        lines += [f"{change['change']}: {change['verdict']}{_and(change)}" for change in cause["changes"]]
    if found["causes"]:
        lines += [
            "",
            (
                f"each change simulated alone, on the same requests, seed {found['seed']}; kvcast compare --seeds gives"
                " intervals"
            ),
        ]
    left = [f"{cause} ({found['miss_tokens'][cause]:,})" for cause in found["not_recoverable"]]
    return "\n".join([*lines, *([f"no change known for: {', '.join(left)}"] if left else [])])


def _by_table(key: str, rows: dict[str, dict[str, int]]) -> str:
    """Shares of the prompt tokens of each class, tenant or scope, most tokens first."""
    largest = sorted(rows, key=lambda name: -sum(rows[name].values()))[: TENANTS if key == "tenant" else None]
    fates = [fate for fate in next(iter(rows.values())) if any(rows[name][fate] for name in largest)]
    cells = [
        [
            name or "(none)",
            text.scaled(total := sum(rows[name].values())),
            *(text.percent(rows[name][fate] / total if total else None) for fate in fates),
        ]
        for name in largest
    ]
    left_out = f"\n({len(rows) - len(largest)} more with fewer tokens)" if len(rows) > len(largest) else ""
    return text.table([key, "tokens", *fates], cells) + left_out


def _change_table(before: dict[str, Any], changes: list[dict[str, Any]]) -> str:
    stable = {None: "?", True: "yes", False: "NO"}

    def row(label: str, recovered: str, f: dict[str, Any]) -> list[str]:
        return [
            label,
            recovered,
            text.percent(f["prefix_hit_rate"]),
            text.milliseconds(f["mean_ttft_ms"]),
            text.milliseconds(f["p99_ttft_ms"]),
            text.percent(f["attainment"]),
            stable[f["stable"]],
            f"{f['gpu_hours']:.3g}",
        ]

    rows = [row("as it is", "", before)] + [
        row(c["change"], f"{c['recovered_tokens']:+,}", c["after"]) for c in changes if c["after"]
    ]
    return text.table(
        ["change", "hit tokens", "hit rate", "TTFT mean", "TTFT p99", "attainment", "stable", "GPU-hours"], rows
    )


def _and(change: dict[str, Any]) -> str:
    asks = f"; it asks for: {change['asks_for']}" if change["asks_for"] else ""
    return asks + (f"; {change['note']}" if change.get("note") else "")
