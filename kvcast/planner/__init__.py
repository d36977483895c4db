"""The fleet a workload needs: fewest GPUs that meet the SLOs, how far they reach, what binds them, what to change.

The one idea: nothing is computed from averages; every fleet, load and change that the plan speaks of was simulated on
the same requests and is a folder under DIR/runs, so the same command after a kill goes on, and a number can be looked
into.

    >>> from kvcast import plan
    >>> plan("examples/demo.toml", ["hardware.tensor_parallel=1,2"], out="plans/demo")["answer"]
"""

from __future__ import annotations

from kvcast.planner.options import Options, check_slo
from kvcast.planner.planning import plan

__all__ = ["Options", "check_slo", "plan"]
