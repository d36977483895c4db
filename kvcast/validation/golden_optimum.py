"""golden-optimum: the most hits any eviction can have on the public Mooncake traces, counted by others block by block.

Exact hit counts and ratios under two capacity rules and two counting rules, each proven again by its certificate; then
the bound on prefill work saved, whose proved gap must be at most 1 % at depth weight 1/60 from 1,000 blocks on.

    $ kvcast validate golden-optimum
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvcast.validation import Outcome, required
from workloads.columns import Workload
from workloads.config import WorkloadConfig

CAPACITIES = (200, 1_000, 3_000, 10_000, 30_000, 100_000)
ALL_IDS = {
    ("conversation", "bypass"): (None, 55_019, 84_953, 105_710, 105_710, 105_710),
    ("conversation", "must-insert"): (15_387, 51_705, 84_121, 105_710, 105_710, 105_710),
    ("synthetic", "bypass"): (None, 33_728, 54_438, 75_316, 77_953, 77_953),
    ("synthetic", "must-insert"): (9_099, 32_803, 54_085, 75_241, 77_953, 77_953),
}
"""Recorded hit blocks of 512 tokens by capacity in blocks (None: not recorded)."""
FULL_BLOCKS = {
    ("conversation", "bypass"): (None, 0.1945, 0.3003, 0.3736, 0.3736, 0.3736),
    ("conversation", "must-insert"): (None, 0.1828, 0.2974, 0.3736, 0.3736, 0.3736),
    ("synthetic", "bypass"): (None, 0.2820, 0.4552, 0.6293, 0.6512, 0.6512),
    ("synthetic", "must-insert"): (None, 0.2744, 0.4522, 0.6287, 0.6512, 0.6512),
}
"""Recorded hit tokens / prompt tokens at 16-token blocks, at the same memory."""
MOST_GAP = 0.01
DEPTH_WEIGHT = 1 / 60


def run(data_dir: Path, **_: Any) -> Outcome:
    from kvcast.api import load_workload

    lines, wrong, total, worst = [], 0, 0, 0.0
    for trace in ("conversation", "synthetic"):
        path = required(data_dir / "traces" / "mooncake" / f"{trace}_trace.jsonl")
        workload = load_workload(WorkloadConfig(trace=str(path), format="mooncake"))
        for label, recorded, found in _compared(trace, workload):
            pairs = [(a, b) for a, b in zip(recorded, found, strict=True) if a is not None]
            different = sum(f"{a:.4f}" != f"{b:.4f}" for a, b in pairs)
            wrong, total = wrong + different, total + len(pairs)
            lines.append(
                f"{label}: {' '.join(f'{b:.4g}' if b < 1 else f'{b:,}' for b in found)}"
                + (f"  recorded {recorded}" if different else "")
            )
        gaps, text = _gaps(workload)
        worst = max(worst, *gaps)
        lines.append(f"{trace} prefill work, must-insert, depth weight 1/60: {text}")
    lines.append(
        f"{total} figures, {wrong} differ from the recorded ones; largest proved gap of prefill work {worst:.2%} (at"
        f" most {MOST_GAP:.0%})"
    )
    return Outcome(
        "golden-optimum",
        wrong == 0 and worst <= MOST_GAP,
        lines,
        {"figures": total, "different": wrong, "largest_gap": worst},
    )


def _compared(trace: str, workload: Workload) -> list[tuple[str, tuple[float | None, ...], list[float]]]:
    from sim.optimum.curve import optimum_curve

    rows: list[tuple[str, tuple[float | None, ...], list[float]]] = []
    for capacity_rule in ("bypass", "must-insert"):
        ids = optimum_curve(workload, CAPACITIES, "all-ids", 512, capacity_rule)
        rows.append(
            (
                f"{trace} {capacity_rule} all-ids, hit blocks",
                ALL_IDS[trace, capacity_rule],
                [row["hit_blocks"] for row in ids],
            )
        )
        full = optimum_curve(workload, [32 * c for c in CAPACITIES], "full-blocks", 16, capacity_rule)
        rows.append(
            (
                f"{trace} {capacity_rule} full-blocks 16, hit rate",
                FULL_BLOCKS[trace, capacity_rule],
                [row["hit_ratio_tokens"] for row in full],
            )
        )
    return rows


def _gaps(workload: Workload) -> tuple[list[float], str]:
    from sim.optimum.curve import WORK, optimum_curve

    curve = optimum_curve(workload, [1_000, 3_000, 10_000, None], "all-ids", 512, "must-insert", DEPTH_WEIGHT)
    rows = [row for row in curve if row["objective"] == WORK]
    ceiling = rows[-1]["work_ratio"]
    text = "; ".join(
        f"C {row['capacity_blocks']:,} bound {row['work_ratio'] / ceiling:.3f} of the ceiling, gap"
        f" {row['proved_gap']:.2%}"
        for row in rows[:-1]
    )
    return [row["proved_gap"] for row in rows], text
