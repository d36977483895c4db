"""`kvcast compare` as a function: variants of a scenario on the same requests.

>>> compare("examples/demo.toml", {"cache.policy": ["lru", "lfu"]})["variants"][1]["vs_first"]["mean_ttft_ms"]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcast.pools import Jobs
from kvcast.studies.compare import as_document, simulate_all, that_fit, variants
from kvcast.studies.sweeps import Vary, axes_of, doc_of
from sim.scenario import Scenario


def compare(
    scenario: str | Path | Scenario, vary: Vary, *, seeds: int = 1, jobs: Jobs = 1, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Simulate every combination of `vary` ({"a.b": [v1, v2]} or ["a.b=v1,v2"]) for each seed, in `jobs` processes
    or on the workers of `kvcast.workers`: the document that `kvcast compare --json` prints. A variant that does not fit
    is a row of "does_not_fit". Nothing is kept; `sweep` keeps every run.

    Raises InputError for anything wrong in the scenario or the grid."""
    source = "scenario" if isinstance(scenario, Scenario) else str(scenario)
    fit, refused = that_fit(variants(doc_of(scenario, overrides), axes_of(vary), seeds, source))
    return as_document(simulate_all(fit, jobs), refused)
