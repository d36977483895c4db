"""LoRA adapters: slots, host memory, what a step waits, their KV memory, and the router that knows where they are."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.per_token import PerToken
from kvcast import api
from kvcast.config import scenario_from_doc
from sim.fleet.routers.adapters import LoraAffinity
from sim.scenario import EngineParams
from sim.sections.lora import Adapters, LoraConfig, adapters_of
from sim.simulate import run
from sim.vllm.adapters import Resident
from tests.plan_cases import CHAT, document
from tests.test_engine import same
from tests.worlds import LinearSteps, UnitSteps, plain
from workloads.errors import InputError

TWO = Adapters(load_s=0.25, disk_s=2.0, slots=1, in_host=2)


def test_an_adapter_comes_from_disk_once_and_from_host_memory_while_it_stays_there() -> None:
    """One slot, two in host memory. A from disk; B from disk, into A's slot; A from host memory; C from disk, for which
    B leaves host memory; B from disk again."""
    resident = Resident(TWO)
    a, b, c = range(3)
    assert [resident.use(one, {one}) for one in (a, a, b, a, c, b)] == [2.25, 0.0, 2.25, 0.25, 2.25, 2.25]
    assert (resident.loads, resident.disk_loads) == (5, 4)


def test_a_slot_is_taken_from_the_least_recently_used_that_nobody_runs_with() -> None:
    resident = Resident(Adapters(1.0, 0.0, 2, 0))
    resident.use(0, {0})
    resident.use(1, {0, 1})
    assert resident.use(2, {0, 2}) == 1.0
    assert list(resident.slots) == [0, 2], "0 is older, and runs"
    resident.touch(0)
    resident.use(3, {3})
    assert list(resident.slots) == [0, 3]


def test_bytes_over_bandwidth() -> None:
    assert adapters_of(LoraConfig(), 4) is None
    made = adapters_of(LoraConfig(adapter_mib=200.0, host_gb_per_s=20.0, max_cpu_loras=9, disk_gb_per_s=2.0), 4)
    assert made is not None
    assert (made.load_s, made.disk_s) == pytest.approx((200 * 2**20 / 20e9, 200 * 2**20 / 2e9))
    assert made[2:] == (4, 9)


def engine(**keys) -> EngineParams:
    given = {"kv_blocks": 1000, "block_size": 4, "max_num_seqs": 8, "async_scheduling": False, "max_loras": 1}
    return EngineParams(**{**given, **keys})


def test_the_step_that_a_request_joins_waits_for_its_adapter_by_hand() -> None:
    """Steps of one second. A's first token after 2.25 + 1 s; B, whose adapter finds no slot, when A has ended, at
    4.25 s, after 2.25 + 1 more; A's adapter is then in host memory."""
    w = plain([0.0, 0.5, 0.6], [4, 4, 4], [2, 1, 1], lora=np.array([0, 1, 0], np.int32))
    found = run(w, engine(adapters=TWO), UnitSteps())
    assert found.first_token_s.tolist() == [3.25, 7.5, 4.25]
    none = run(w, engine(), UnitSteps())
    assert none.first_token_s.tolist() == [1.0, 3.0, 2.0]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 3),
    in_host=st.integers(0, 3),
    asynchronous=st.booleans(),
    order=st.sampled_from(["fcfs", "priority", "vtc"]),
    seqs=st.integers(1, 6),
)
def test_stretches_are_steps_and_nobody_waits_less_with_adapters(
    seed, slots, in_host, asynchronous, order, seqs
) -> None:
    rng = np.random.default_rng(seed)
    n = 30
    lora = rng.integers(-1, 5, n).astype(np.int32)
    w = plain(np.sort(rng.uniform(0, 3, n)), rng.integers(1, 30, n), rng.integers(1, 20, n), lora=lora)
    keys = {"max_loras": slots, "async_scheduling": asynchronous, "scheduler_policy": order, "max_num_seqs": seqs}
    p = engine(adapters=Adapters(0.125, 0.5, slots, in_host and max(in_host, slots)), **keys)
    fast = run(w, p, LinearSteps())
    log: list = []
    same(fast, run(w, p, LinearSteps(), fast_forward=False))
    run(w, p, LinearSteps(), step_log=log)
    for _, _, scheduled, *_ in log:
        assert len({int(lora[r]) for r, _ in scheduled} - {-1}) <= slots
    used = {int(one) for one in lora} - {-1}
    assert fast.end_s >= run(w, engine(**keys), LinearSteps()).end_s
    assert sum(float(s.duration_s.sum()) for s in fast.steps) >= len(used) * 0.125


def test_what_each_token_costs_is_added_to_every_step() -> None:
    base, more = LinearSteps(), PerToken(LinearSteps(), 0.5)
    shape = ([(3, 0), (2, 8)], 4, 40, 12, 6)
    assert more.step(*shape)[0] == base.step(*shape)[0] + 0.5 * 9
    np.testing.assert_array_equal(
        more.decode_stretch(4, 40, 12, 3)[0], base.decode_stretch(4, 40, 12, 3)[0] + np.full(3, 2.0)
    )


def mixed(**sections):
    classes = [{**CHAT, "name": name, "rate": 1.0, "lora": lora} for name, lora in (("a", "x"), ("b", "x"), ("c", ""))]
    classes.append({**CHAT, "name": "d", "rate": 1.0, "lora": "tenant", "tenants": 2})
    workload = {"duration_s": 30.0, "class": classes}
    return document(workload=workload, run={"warmup_s": 5.0, "duration_s": 30.0}, **sections)


def test_classes_name_an_adapter_or_give_each_tenant_one_and_share_nothing_across() -> None:
    prepared = api.prepare(scenario_from_doc(mixed(engine={"max_loras": 2})))
    w = prepared.workload
    lora, cls = w.column("lora"), [w.class_names[c] for c in w.column("class_id")]
    by_class = {name: {int(one) for one, c in zip(lora, cls, strict=True) if c == name} for name in "abcd"}
    assert by_class["a"] == by_class["b"] == {0}
    assert by_class["c"] == {-1}
    assert len(by_class["d"]) == 2
    assert not by_class["d"] & {0, -1}
    root = w.leaf.copy()
    while (up := w.tree.parent[root] >= 0).any():
        root[up] = w.tree.parent[root[up]]
    assert len(set(zip(root.tolist(), lora.tolist(), strict=True))) == len(set(root.tolist())) == 4


def test_slots_take_kv_memory() -> None:
    plain_blocks = api.resolve(scenario_from_doc(mixed(engine={"max_loras": 4}))).scenario.engine.kv_blocks
    with_slots = api.resolve(scenario_from_doc(mixed(engine={"max_loras": 4}, lora={"adapter_mib": 512.0})))
    block = with_slots.rank_kv_bytes * with_slots.scenario.engine.block_size
    assert plain_blocks - with_slots.scenario.engine.kv_blocks == pytest.approx(4 * 512 * 2**20 / block, abs=1)
    assert with_slots.params.adapters is not None
    assert "LoRA slots" in " ".join(with_slots.kv_lines)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"lora": {"adapter_mib": 10.0}}, "expected engine.max_loras with it"),
        ({"lora": {"adapter_mib": 1.0, "max_cpu_loras": 1}, "engine": {"max_loras": 2}}, "expected at least"),
        ({"lora": {"adapter_mib": 1.0, "disk_gb_per_s": 1e-320}, "engine": {"max_loras": 2}}, "from 1e-09 to 1e"),
        ({"lora": {"token_us": 1.0}, "engine": {"semantics": "sglang"}}, "expected 'vllm'"),
    ],
)
def test_what_contradicts_is_one_line(sections, says) -> None:
    with pytest.raises(InputError, match=says):
        scenario_from_doc(mixed(**sections))


def test_isolation_beside_adapters_is_refused() -> None:
    doc = mixed()
    doc["workload"]["class"][2]["isolation"] = True
    with pytest.raises(InputError, match="isolation = true beside a class with lora"):
        api.prepare(scenario_from_doc(doc))


# -- the router --------------------------------------------------------------------------------------------------------


def test_the_gateways_scores_by_hand() -> None:
    """Of three replicas of two slots: adapter 7 runs on the first, waits on the second; the third has two others."""
    w = plain([0.0] * 6, [4] * 6, [2] * 6, lora=np.array([7, 7, 7, 8, 9, -1], np.int32))
    admit_s = [0.0, math.nan, math.nan, 0.0, math.nan, math.nan]
    log = SimpleNamespace(admit_s=admit_s)
    replicas = [SimpleNamespace(index=i, now_s=0.0, waiting=0, kv_usage=0.0, max_loras=2, log=log) for i in range(3)]
    router = LoraAffinity(np.random.default_rng(0), w)
    for request, place in ((0, 0), (1, 1), (3, 2), (4, 2)):
        router._at[request] = place
        router._sent.setdefault(place, {})[request] = None

    def lora(request: int) -> list[float]:
        router._seen_s = -math.inf
        return [score - 2.0 for score in router.scores(request, replicas)]

    assert lora(2) == pytest.approx([1.0, 0.8, 0.0]), "who waits has room beside it"
    replicas[1].max_loras = 1
    assert lora(2) == pytest.approx([1.0, 0.6, 0.0])
    assert lora(5) == pytest.approx([0.8, 0.0, 0.0])
    assert router.choose(2, replicas) is replicas[0]
    router.finished(2, replicas[0])
    router.finished(0, replicas[0])
    assert lora(2)[0] == pytest.approx(0.8)
    replicas[2].max_loras = 0
    assert lora(2)[2] == pytest.approx(0.8), "any number"


def test_adapters_stay_where_they_are_with_the_router_that_knows() -> None:
    rng = np.random.default_rng(1)
    n = 400
    lora = rng.integers(0, 8, n).astype(np.int32)
    w = plain(np.sort(rng.uniform(0, 30, n)), [20] * n, [80] * n, lora=lora)
    p = engine(max_loras=2, adapters=Adapters(0.5, 0.0, 2, 0), max_num_seqs=16)
    ttft = {
        router: float(np.mean(found.first_token_s - w.arrival_s))
        for router in ("round-robin", "lora-affinity")
        for found in [run(w, p, LinearSteps(), replicas=4, router=router, seed=3)]
    }
    assert ttft["lora-affinity"] < 0.4 * ttft["round-robin"]
