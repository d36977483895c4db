"""A run judged anew: the whole summary of a new run with those limits and that price, without one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kvcast import cli, text
from kvcast.config import load_scenario
from kvcast.pages import results
from kvcast.store.runs import load_run
from kvcast.studies.judged_anew import judged_anew
from sim.scenario import SloClass, SloConfig
from workloads.errors import InputError

MIX = """
[workload]
preset = "demo"
duration_s = 120.0
[run]
warmup_s = 30.0
[slo]
ttft_s = 1.0
attainment = 0.9
[slo.classes.chat]
ttft_s = 0.5
tpot_s = 0.03
[cost]
gpu_hour_usd = 4.0
"""
UNASKED = '[workload]\npreset = "chat"\nduration_s = 60.0\n[run]\nwarmup_s = 0.0\n'
OVERLOADED = MIX.replace("duration_s = 120.0", "duration_s = 60.0\nrate_scale = 6.0")
SHOCKED = (
    MIX
    + '[[shock]]\nkind = "long-prompts"\nat_s = 30.0\nduration_s = 20.0\n[[shock]]\nkind = "cache-lost"\nat_s = 40.0\n'
)
POOLS = (
    MIX.replace("duration_s = 120.0", "duration_s = 60.0").replace("[cost]\ngpu_hour_usd = 4.0\n", "")
    + """
[[pool]]
name = "new"
hardware = { gpu = "h200" }
gpu_hour_usd = 4.0
[[pool]]
name = "old"
hardware = { gpu = "a100" }
gpu_hour_usd = 1.0
"""
)
TRACE = """
[workload]
trace = "{folder}/trace.jsonl"
[slo]
e2e_s = 5.0
attainment = 0.5
"""


def run_of(folder, toml, name, slo=None, usd=None):
    """The run folder of a scenario; with slo, of the scenario with those limits and that price instead."""
    path = folder / f"{name}.toml"
    path.write_text(toml.replace("{folder}", str(folder)))
    scenario = load_scenario(path)
    if slo is not None:
        from kvcast.scenario.toml import dumps

        path.write_text(dumps(replace(scenario, slo=slo, cost=replace(scenario.cost, gpu_hour_usd=usd))))
    assert cli.main(["run", str(path), "--out", str(folder / name)]) == 0
    return load_run(folder / name)


def as_kept(document):
    return json.loads(text.to_json(document))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("anew")
    rows = [
        {
            "timestamp": 150 * i,
            "input_length": 900 + 40 * (i % 3),
            "output_length": 20 + i % 5,
            "hash_ids": [i % 3, 9 + i],
        }
        for i in range(80)
    ]
    (path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def once(folder, toml):
    """The run of a scenario, simulated for the first test that asks."""
    name = f"run {(MIX, OVERLOADED, SHOCKED, TRACE, POOLS).index(toml)}"
    return load_run(folder / name) if (folder / name).exists() else run_of(folder, toml, name)


STRICT = SloConfig(ttft_s=0.06, tpot_s=0.02, attainment=0.99)
BY_CLASS = SloConfig(
    attainment=0.5, attained_by="pooled", classes={"coding-agent": SloClass(ttft_s=0.2, attainment=0.8)}
)


@pytest.mark.parametrize(
    ("toml", "slo", "usd"),
    [
        (MIX, STRICT, 2.5),
        (MIX, BY_CLASS, None),
        (MIX, SloConfig(ttft_s=0.5), 4.0),  # no target, no verdict
        (MIX, SloConfig(attainment=0.9), 4.0),  # no limit
        (OVERLOADED, SloConfig(ttft_s=2.0, attainment=0.5), 1.0),
        (SHOCKED, SloConfig(ttft_s=0.2, attainment=0.8), 4.0),
        (TRACE, SloConfig(ttft_s=0.05, attainment=0.9), 3.0),
        (POOLS, STRICT, 2.5),  # the mean of its pools' prices
    ],
)
def test_it_is_what_a_new_run_says(folder, toml, slo, usd):
    run, new = once(folder, toml), run_of(folder, toml, "new", slo, usd)

    found = judged_anew(run, slo, usd)
    assert as_kept(found.summary) == {**new.summary, "name": run.summary["name"]}
    assert found.scenario == replace(new.scenario, name=run.scenario.name)
    assert as_kept(found.aggregates) == new.aggregates
    ours, theirs = found.tables["requests"], new.tables["requests"]
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)
    assert all(np.array_equal(ours[name], theirs[name], equal_nan=ours[name].dtype.kind == "f") for name in ours)
    assert as_kept(run.summary) != as_kept(found.summary)
    if toml != SHOCKED:  # when a shock is over, limits decide
        of_run, of_found = (results._measured.__wrapped__("", one) for one in (run, found))  # kept for all limits
        assert {term: one.to_json() for term, one in of_run.items()} == {
            term: one.to_json() for term, one in of_found.items()
        }


def test_what_nobody_simulated_is_not_known(tmp_path):
    """A run without a target has no runs at slower and faster steps: a verdict, and no word about the model's error."""
    run, slo = run_of(tmp_path, UNASKED, "run"), SloConfig(ttft_s=0.5, attainment=0.9)
    new, found = run_of(tmp_path, UNASKED, "new", slo, 2.0), judged_anew(run, slo, 2.0)
    assert new.summary["model_error"] is not None
    assert as_kept(found.summary) == {**new.summary, "model_error": None}
    # a run of an earlier version has no twins at all
    bare = judged_anew(replace(new, tables={k: v for k, v in new.tables.items() if k != "twins"}), STRICT, 2.0)
    assert bare.summary["model_error"] is None
    assert bare.summary["cache_worth"]["attainment"]["off"] is None
    assert bare.summary["verdict"] == judged_anew(new, STRICT, 2.0).summary["verdict"]


def test_limits_of_nobody_are_refused_as_a_run_refuses_them(folder):
    with pytest.raises(
        InputError, match=r"^\[slo.classes.chats\] applies to no request: .*there are: chat, coding-agent"
    ):
        judged_anew(once(folder, MIX), SloConfig(classes={"chats": SloClass(ttft_s=1.0)}), None)


def test_pools_have_one_price_each(folder):
    with pytest.raises(InputError, match=r"^\[\[pool\]\]: a price of 3.0 for all GPUs"):
        judged_anew(once(folder, POOLS), STRICT, 3.0)
