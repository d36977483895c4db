"""+20 % of the interconnect and of host time: which part of a step they shorten, and why they cannot be tried."""

from __future__ import annotations

import pytest

from calibrate.faster import ALL_REDUCES, HOST, INTERCONNECT, compared, faster, has_host_time
from calibrate.latency import step_time
from calibrate.models import resolve_model
from calibrate.resolve import resolve_profile
from kvcast import api, plan
from kvcast.config import scenario_from_doc
from kvcast.planner.binds import _resources
from kvcast.planner.trials import Trial
from workloads.errors import InputError

MODEL = resolve_model("llama-3.1-70b")


def scenario(
    profile: str = "h200-llama-3.1-8b-aic",
    model: str = "llama-3.1-8b",
    width: int = 1,
    requests: int = 300,
    prompt: int = 500,
    **sections,
):
    chat = {
        "name": "chat",
        "rate": 2.0,
        "output": {"value": 40},
        "layers": [{"name": "m", "scope": "dynamic", "tokens": {"value": prompt}}],
    }
    return scenario_from_doc(
        {
            "workload": {"requests": requests, "class": [chat]},
            "model": {"name": model},
            "hardware": {"profile": profile, "tensor_parallel": width},
            "slo": {"attainment": 0.95, "tpot_s": 0.05},
            "run": {"warmup_s": 0.0},
            **sections,
        }
    )


def asked(which: str, *args, **sections) -> Trial | str:
    return dict(_resources(scenario(*args, **sections)))[which]


@pytest.mark.parametrize("name", ["h100-llama-3.1-70b-tp8-aic", "h200-llama-3.1-70b-tp4-aic"])
def test_a_faster_interconnect_takes_a_sixth_off_the_all_reduces_and_nothing_else(name):
    tp = int(name.split("tp")[1][0])
    profile = resolve_profile(name, MODEL, "bf16", tp)
    resolved = api.resolve(scenario(name, "llama-3.1-70b", tp, engine={"launch_layer_us": 0.0}))
    base = resolved.step_time()
    plus = faster(base, profile, MODEL, "bf16", INTERCONNECT, resolved.host)
    reduces = [op for op in profile.points["dense"] if op["name"] in ALL_REDUCES]
    assert len(reduces) == 3
    for tokens in (8, 2048):  # measured points of all three
        us = sum(op["us"][op["tokens"].index(tokens)] * op["repeat"] for op in reduces)
        for shape in (([], tokens, 1000 * tokens, 1000, tokens), ([(tokens, 0)], 0, 0, 0, 1)):
            before, after = base.step(*shape)[0], plus.step(*shape)[0]
            assert before - after == pytest.approx(us * 1e-6 * (1 - 1 / 1.2), rel=0.1), "dips of the sum are levelled"
    stretch = plus.decode_stretch(8, 8000, 1000, 5)[0]
    assert stretch.tolist() == [plus.step([], 8, 8000 + 8 * i, 1000 + i, 8)[0] for i in range(5)]


def test_where_no_all_reduce_is_known_the_reason_is():
    assert asked(INTERCONNECT) == "one GPU a replica: nothing to connect"
    assert asked(INTERCONNECT, "roofline:h200", "llama-3.1-70b", 4).what_if == INTERCONNECT
    assert asked(INTERCONNECT, "h200-llama-3.1-70b-tp4-aic", "llama-3.1-70b", 4).what_if == INTERCONNECT
    profile = resolve_profile("h200-llama-3.1-70b-tp4-aic", MODEL, "bf16", 4)
    profile.points["dense"] = [op for op in profile.points["dense"] if op["name"] not in ALL_REDUCES]
    with pytest.raises(InputError, match="holds no all-reduce"):
        compared(profile, "bf16", INTERCONNECT)


def test_host_time_is_the_engines_and_the_profiles():
    none = {"host_step_ms": 0.0, "host_sequence_us": 0.0, "launch_layer_us": 0.0}
    assert asked(HOST, engine=none).startswith("no host time in this scenario: host_step_ms, host_sequence_us,")
    engine = asked(HOST, engine={"async_scheduling": True}).scenario.engine
    assert (engine.host_step_ms, engine.host_sequence_us, engine.launch_layer_us) == pytest.approx((0.5, 12.5, 50.0))
    trial = asked(HOST, engine={"step_overhead_ms": 1.2, "frontend_ms": 6.0})
    assert (trial.what_if, trial.scenario.engine.step_overhead_ms, trial.scenario.engine.frontend_ms) == (
        "",
        pytest.approx(1.0),
        pytest.approx(5.0),
    )
    assert asked(HOST, "roofline:h200").what_if == "", "no profile but a measured one contains any"


def test_host_time_within_step_times():
    resolved = api.resolve(scenario())
    tables, base = resolved.profile, resolved.step_time()
    assert not has_host_time(tables)
    tables.points["step_overhead_us"] = 120.0
    tables.points["per_sequence"].append(
        {"name": "host_per_sequence", "repeat": 1, "rows": [1, 100], "us": [12.0, 1200.0]}
    )
    plus = faster(base, tables, resolved.model, "bf16", HOST)
    own = step_time(tables, resolved.model)
    before, after = own.step([], 32, 32_000, 1000, 32)[0], plus.now.step([], 32, 32_000, 1000, 32)[0]
    assert before == after
    assert after - plus.then.step([], 32, 32_000, 1000, 32)[0] == pytest.approx((120 + 32 * 12) * 1e-6 / 6, rel=1e-6)
    _, then = compared(tables, "bf16", HOST)
    assert then.points["step_overhead_us"] == pytest.approx(100.0)
    assert then.points["per_sequence"][-1]["us"] == pytest.approx([10.0, 1000.0])
    assert then.points["per_sequence"][:-1] == tables.points["per_sequence"][:-1]


def test_a_slow_host_binds():
    """Of a step of 45 ms the host takes 40, and eight sequences run at once."""
    slow = scenario(
        engine={"step_overhead_ms": 40.0, "max_num_seqs": 8},
        requests=400,
        prompt=20,
        slo={"attainment": 0.9, "ttft_s": 1.0},
    )
    made = plan(slow, most=8, advice=False, growth=None, n_plus_1=False, seeds=1)
    gains = {row["resource"]: row["gain"] for row in made["binding"]["changes"]}
    assert list(gains) == [
        "compute",
        "memory bandwidth",
        "interconnect",
        "host time",
        "KV capacity",
        "replicas",
        "routing",
    ]
    assert gains["host time"] > 2 * max(gains["compute"], gains["memory bandwidth"], gains["KV capacity"])
    assert made["binding"]["resource"] == "host time"
    assert "a 20 % faster host raises attainment" in made["binding"]["words"]
    assert {row["resource"] for row in made["binding"]["changes"] if row["estimate"]} == {"compute", "memory bandwidth"}
