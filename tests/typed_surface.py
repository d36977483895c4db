"""The public names as a type checker sees them: `make lint` reads this file with mypy --strict; nothing runs it.

A name without a type is Any there, and every line below would then pass for anything: so each says what it expects.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import kvcast
from calibrate.step import StepTime
from kvcast.api import Resolved
from kvcast.store.runs import Run as StoredRun
from kvcast.studies.sweeps import Sweep
from sim.kvcache.rows import ReplayResult
from sim.measure.report import Report
from sim.optimum.lru_curve import LruCurve
from sim.recording import Recording

scenario: kvcast.Scenario = kvcast.load_scenario("examples/demo.toml", ["cluster.replicas=2"])
assert_type(kvcast.scenario_from_doc({}), kvcast.Scenario)
assert_type(kvcast.together([scenario]), list[kvcast.Scenario])
assert_type(kvcast.resolve(scenario), Resolved)
assert_type(kvcast.compare(scenario, {"cache.policy": ["lru", "lfu"]}, seeds=2), dict[str, Any])
assert_type(kvcast.sweep(scenario, ["cache.policy=lru,lfu"], "runs/sweep"), Sweep)
assert_type(kvcast.plan(scenario, seeds=1), dict[str, Any])
assert_type(kvcast.load_run(Path("runs/demo")), StoredRun)
report = kvcast.simulate(scenario)
assert_type(report, kvcast.Report)
assert_type(report.requests["ttft_s"], np.ndarray)

tree, leaf = kvcast.from_pieces([[("system", 0, 2000)]])
assert_type(tree, kvcast.PrefixTree)
workload = kvcast.Workload(tree, np.zeros(1), np.full(1, 2000), np.ones(1, np.int64), leaf=leaf)
step_time: kvcast.StepTime = kvcast.load_step_time("roofline:l40s")
assert_type(step_time, StepTime)
recording = kvcast.run(workload, kvcast.EngineParams(kv_blocks=1000), step_time)
assert_type(recording, Recording)
assert_type(kvcast.build_report(recording, workload, scenario), Report)
assert_type(kvcast.replay(workload, "lru", None, "full-blocks", 16), ReplayResult)
assert_type(kvcast.leaf_first(workload, "lfu", 100, 16), ReplayResult)
assert_type(kvcast.hit_rate_curve(workload, [10, None], "lru", "full-blocks", 16), list[dict[str, Any]])
assert_type(kvcast.lru_curve(workload, "full-blocks", 16), LruCurve)
assert_type(kvcast.order_optimum(workload, recording).bound_tokens, int)


class Mine(kvcast.Policy):
    def __init__(self, world: kvcast.World) -> None:
        super().__init__(world)
        assert_type(world.workload, kvcast.Workload)

    def key(self, run: kvcast.Run) -> Any:
        return run.released


def choose(router: kvcast.Router, problem: kvcast.InputError) -> kvcast.WorkloadConfig:
    raise problem
