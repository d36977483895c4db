"""Host time: part of every step, by engine and scheduling mode, once and never twice, and what it is said to be."""

from dataclasses import replace

import pytest

from calibrate.host import BY_MODE, NONE, HostTime, contained
from calibrate.latency import step_time
from calibrate.models import resolve_model
from calibrate.profile import bundled_profile, bundled_profiles
from calibrate.resolve import resolve_profile
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.present import summary_text
from sim.engines import ENGINES

LLAMA = resolve_model("llama-3.1-8b")
KINDS = ["h200-llama-3.1-8b-aic", "atlas:h200", "roofline:h200"]
ASYNC = BY_MODE["async"]


def resolved(profile: str = KINDS[0], **engine):
    document = {"workload": {"preset": "chat", "requests": 5}, "hardware": {"profile": profile}, "engine": engine}
    return api.resolve(scenario_from_doc(document))


def times(profile: str, host: HostTime):
    return step_time(resolve_profile(profile, LLAMA), LLAMA, host=host)


@pytest.mark.parametrize("profile", KINDS)
def test_a_step_takes_a_constant_and_a_time_per_sequence_more(profile):
    quiet, busy = times(profile, NONE), times(profile, HostTime(2e-3, 15e-6))
    for n in (1, 16, 200):
        shape = ([], n, n * 1000, 1000, n)
        assert busy.step(*shape)[0] - quiet.step(*shape)[0] == pytest.approx(2e-3 + n * 15e-6)
        stretch = busy.decode_stretch(*shape[1:4], 4)[0].tolist()
        assert stretch == [busy.step([], n, n * (1000 + i), 1000 + i, n)[0] for i in range(4)]
    mixed = ([(512, 0), (1, 99), (40, 2000)], 3, 900, 400, 5)
    assert busy.step(*mixed)[0] - quiet.step(*mixed)[0] == pytest.approx(2e-3 + 6 * 15e-6)


@pytest.mark.parametrize("profile", KINDS[:2])
def test_kernels_launched_one_by_one_have_a_floor_a_layer(profile):
    slow, quiet = times(profile, HostTime(layer_s=1e-3)), times(profile, NONE)
    floor = 32 * 1e-3
    assert slow.step([(16, 0)], 0, 0, 0, 1)[0] == pytest.approx(floor), "graphs are not captured for it"
    assert slow.step([(16, 0)], 8, 800, 100, 9)[0] == pytest.approx(floor), "nor for a mixed step"
    for captured in (([], 8, 800, 100, 8), ([(1, 50)], 8, 800, 100, 9), ([(16384, 0)], 0, 0, 0, 1)):
        assert slow.step(*captured)[0] == quiet.step(*captured)[0]
    assert slow.step([(16384, 0)], 0, 0, 0, 1)[0] > floor


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        ({"async_scheduling": True}, "async"),
        ({"async_scheduling": False}, "sync"),
        ({"semantics": "sglang"}, "async"),
        ({"semantics": "sglang", "overlap_schedule": False}, "sync"),
        ({"semantics": "trtllm"}, "async"),
        ({"semantics": "trtllm", "overlap_scheduler": False}, "sync"),
    ],
)
def test_it_is_on_by_engine_and_scheduling_mode(engine, mode):
    one = resolved(**engine)
    host = BY_MODE[mode]
    assert one.host == replace(host, layers=0)
    assert one.scenario.engine.host_step_ms == pytest.approx({"async": 0.6, "sync": 2.0}[mode])
    assert one.step_time().step([], 4, 4000, 1000, 4) == times(KINDS[0], host).step([], 4, 4000, 1000, 4)
    assert f"{host.step_s * 1e3:g} ms a step, 15 us a sequence" in one.host_line
    assert ENGINES[one.scenario.engine.semantics].title in one.host_line


def test_its_keys_replace_it_and_nought_means_none():
    none = resolved(host_step_ms=0.0, host_sequence_us=0.0, launch_layer_us=0.0)
    assert none.host == NONE
    assert none.host_line.endswith("(given)")
    some = resolved(host_sequence_us=40.0, async_scheduling=True)
    assert some.host == HostTime(ASYNC.step_s, 40e-6, ASYNC.layer_s)


def test_every_run_prints_it():
    document = {"workload": {"preset": "chat", "requests": 5}, "engine": {"async_scheduling": True}}
    run = api.run(api.prepare(scenario_from_doc(document)))
    said = " ".join(summary_text.describe(run).split())
    assert "host time: 0.6 ms a step, 15 us a sequence; in a prefill 60 us a layer at least" in said
    document = api.as_document(run)
    assert (document["engine"]["host_step_ms"], document["engine"]["host_sequence_us"]) == (0.6, 15.0)
    assert "scheduled while the step before runs" in document["engine_origins"]["host_step_ms"]


def test_no_bundled_profile_holds_any():
    for name in bundled_profiles():
        assert contained(bundled_profile(name)) == ""
    assert contained(resolve_profile("atlas:h200", LLAMA)) == ""


def test_a_profile_measured_with_its_host_is_not_charged_twice(tmp_path):
    from calibrate.profile import save_profile

    bundled = bundled_profile(KINDS[0])
    measured = replace(bundled, points={**bundled.points, "step_overhead_us": 900.0})
    save_profile(measured, tmp_path / "own.json")
    one = resolved(str(tmp_path / "own.json"))
    assert one.host == NONE
    assert "none added: measured in the profile's own steps" in one.host_line
    plus = resolved(str(tmp_path / "own.json"), host_step_ms=1.0)
    assert plus.host.step_s == pytest.approx(1e-3), "whoever says so has it on top"


def test_every_plan_prints_it():
    from kvcast import plan
    from tests.plan_cases import ALONE

    workload = {"requests": 40, "class": [{"name": "c", "rate": 5.0, "layers": [], "output": {"value": 8}}]}
    workload["class"][0]["layers"] = [{"name": "m", "scope": "dynamic", "tokens": {"value": 100}}]
    document = {"workload": workload, "slo": {"attainment": 0.5, "ttft_s": 5.0}, "run": {"warmup_s": 0.0}}
    made = plan(scenario_from_doc({**document, "engine": {"async_scheduling": True}}), most=1, **ALONE)
    assert any(note.startswith("host time: 0.6 ms a step, 15 us a sequence") for note in made["notes"])


def test_a_folder_of_layers_timed_inside_an_engine_is_not_charged_again(data_dir):
    folder = data_dir / "measured/rtx4090_llama-3.1-8b/kernels"
    one = resolved(str(folder), async_scheduling=True)
    assert one.host == NONE
    assert "none added: layers timed inside the engine" in one.host_line
