"""The seam of an engine: what its scheduler answers, one table of names, and a third engine as one row of it.

python -m pytest tests/test_engines.py
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pytest

from kvcast import Scenario, WorkloadConfig, api, simulate
from kvcast.planner.command import launch_of
from sim.engine import Cache, Scheduler
from sim.engines import ENGINES, engine_of, having
from sim.scenario import EngineConfig, EngineParams
from sim.simulate import run
from tests.worlds import LinearSteps, random_workload
from workloads.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def members(protocol: type[Protocol]) -> set[str]:
    return {*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))}


@pytest.mark.parametrize("semantics", ENGINES)
def test_a_scheduler_has_all_that_the_protocol_names(semantics: str) -> None:
    replicas: list = []
    run(random_workload(0), EngineParams(kv_blocks=100, semantics=semantics), LinearSteps(), on_end=replicas.extend)
    scheduler = replicas[0].scheduler
    assert {"submit", "schedule", "saved", "chunks", "waiting_tokens"} < members(Scheduler)
    assert [name for name in members(Scheduler) if not hasattr(scheduler, name)] == []
    assert [name for name in members(Cache) if not hasattr(scheduler.cache, name)] == []


def test_outside_the_engines_a_name_is_only_in_tables() -> None:
    """Choices and keys of the config; what engines and their tools say and are sent: launch flags, logs, manifests,
    benchmarks, metrics; and recorded cases."""
    name, compared = re.compile(r"""["'](vllm|sglang)["']"""), re.compile(r"semantics (==|!=|in \()")
    files = [file for top in ("sim", "kvcast") for file in sorted((ROOT / top).rglob("*.py"))]
    said = {
        str(file.relative_to(ROOT))
        for file in files
        if name.search(file.read_text()) and file.parent.name != "sglang" and "roofline" not in file.name
    }
    assert said == {
        "kvcast/benchmarks/other_tools.py",
        "kvcast/benchmarks/tools.py",
        "kvcast/commands/replay.py",
        "kvcast/observed/assumed.py",
        "kvcast/observed/counted.py",
        "kvcast/observed/page.py",
        "kvcast/observed/watched.py",
        "kvcast/planner/command.py",
        "kvcast/planner/flag_names.py",
        "kvcast/planner/flag_words.py",
        "kvcast/planner/flags.py",
        "kvcast/planner/manifests.py",
        "kvcast/planner/starts.py",
        "kvcast/validation/aisimulate.py",
        "kvcast/validation/atlas.py",
        "kvcast/validation/engine_cases.py",
        "kvcast/validation/fit.py",
        "kvcast/validation/passes.py",
        "sim/engines.py",
        "sim/scenario.py",
    }
    assert [str(file) for file in files if compared.search(file.read_text())] == []


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"semantics = 'vlm': expected vllm or sglang or trtllm \(did you mean vllm\?\)"
    ):
        run(random_workload(0), EngineParams(kv_blocks=100, semantics="vlm"), LinearSteps())
    with pytest.raises(InputError, match=r"no key 'k' for clairvoyant here"):
        engine_of(EngineParams(kv_blocks=1)).check_policy("clairvoyant", {"k": 2})
    assert having("has_tiers") == having("has_optimum") == "vllm"


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> str:
    """vLLM's rules under another name, without tiers: a row, its choice, and a key that it has too."""
    row = replace(ENGINES["vllm"], title="Third", version="third-1.0", has_tiers=False, whole_context=False)
    monkeypatch.setitem(ENGINES, "third", row)
    for f, about in (("semantics", {"choices": tuple(ENGINES)}), ("scheduler_policy", {"engines": ("vllm", "third")})):
        declared = EngineConfig.__dataclass_fields__[f]
        monkeypatch.setattr(declared, "metadata", MappingProxyType({**declared.metadata, **about}))
    return "third"


def test_a_third_engine_is_a_row_of_the_table(third: str) -> None:
    workload = random_workload(3, rate=50.0)
    first, other = (
        run(workload, EngineParams(kv_blocks=40, block_size=4, semantics=name), LinearSteps(), replicas=2)
        for name in ("vllm", third)
    )
    assert first.engine_semantics == "vllm-0.33.0"
    assert other.engine_semantics == "third-1.0"
    assert np.array_equal(first.finish_s, other.finish_s, equal_nan=True)
    assert first.preemptions.sum() > 0


def test_a_third_engine_runs_from_a_scenario(third: str) -> None:
    workload = WorkloadConfig(preset="demo", requests=30)
    scenario = Scenario(workload, engine=EngineConfig(semantics=third, scheduler_policy="priority"))
    assert simulate(scenario).summary["engine_semantics"] == "third-1.0"
    resolved = api.resolve(scenario)
    assert resolved.origins["max_num_seqs"].startswith("Third's default on")
    assert launch_of(scenario) is None  # no flags of it are known
    for keys, line in (
        ({"watermark": 0.1}, r"watermark = 0.1: only semantics = 'vllm' has it"),
        ({"schedule_policy": "lpm"}, r"schedule_policy = 'lpm': only semantics = 'sglang' has it"),
    ):
        with pytest.raises(InputError, match=line):
            api.resolve(replace(scenario, engine=replace(scenario.engine, **keys)))
    shared = replace(scenario.engine, semantics="sglang")
    with pytest.raises(InputError, match=r"scheduler_policy = 'priority': only semantics = 'vllm' or 'third' has it"):
        api.resolve(replace(scenario, engine=shared))
