"""One window for variants that are to be compared.

>>> base, off = together([scenario, replace(scenario, cache=replace(scenario.cache, enabled=False))])
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcast import api
from kvcast.scenario.steady import begins_early, begun
from sim.scenario import Scenario


def together(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Variants to be compared, each with its window, and all mixes with the longest warm-up and window among them, so
    that those of one mix serve the same requests."""
    cut = [api.windowed(scenario) for scenario in scenarios]
    ours = [i for i, scenario in enumerate(scenarios) if begins_early(scenario)]
    ramp_s = max((cut[i].run.warmup_s or 0.0 for i in ours), default=0.0)
    lasts_s = max(((cut[i].run.duration_s or 0.0) - (cut[i].run.warmup_s or 0.0) for i in ours), default=0.0)
    return [begun(scenarios[i], ramp_s, lasts_s) if i in ours else one for i, one in enumerate(cut)]
