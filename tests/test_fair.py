"""The least served tenant first (VTC): counters by hand, and the bound of its theorem on random worlds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvcast import api
from kvcast.config import scenario_from_doc
from sim.measure.fairness import fairness, service
from sim.measure.metrics import Window
from sim.scenario import EngineParams
from sim.simulate import run
from sim.tenants import INPUT, OUTPUT, weights_of
from sim.vllm.fair import FairQueue
from tests.plan_cases import CHAT, document
from tests.test_engine import same
from tests.worlds import UnitSteps, plain
from workloads.columns import Workload
from workloads.errors import InputError


def world(arrival_s, prompt, output, tenant) -> Workload:
    """Requests that share nothing."""
    names = tuple(f"chat/{i}" for i in range(max(tenant) + 1))
    return plain(arrival_s, prompt, output, tenant_id=np.asarray(tenant, np.int32), tenant_names=names)


def params(policy="vtc", **keys) -> EngineParams:
    given = {"kv_blocks": 1000, "block_size": 4, "max_num_seqs": 1, "async_scheduling": False, "caching": False}
    return EngineParams(scheduler_policy=policy, **{**given, **keys})


def order(w: Workload, p: EngineParams) -> list[int]:
    return np.argsort(run(w, p, UnitSteps()).admit_s, kind="stable").tolist()


def test_the_least_served_tenant_goes_first_by_hand() -> None:
    """One place. Of A's four requests of 10 + 5 tokens each counts 20, of B's two of 30 + 5 each 40: A, then B (0
    against 20), A (20 against 40), either (40 each: B's is the older of them), A, A."""
    w = world([0.0] * 6, [10, 10, 10, 10, 30, 30], [5] * 6, [0, 0, 0, 0, 1, 1])
    assert order(w, params("fcfs")) == [0, 1, 2, 3, 4, 5]
    assert order(w, params()) == [0, 4, 1, 2, 5, 3]


def test_a_weight_is_a_share() -> None:
    """B of weight 4 pays a quarter: 10 for each of its requests, and is served two for each of A's."""
    w = world([0.0] * 6, [10, 10, 10, 10, 30, 30], [5] * 6, [0, 0, 0, 0, 1, 1])
    assert order(w, params(tenant_weights={"chat/1": 4.0})) == [0, 4, 5, 1, 2, 3]
    assert order(w, params(tenant_weights={"chat": 4.0})) == order(w, params())


class Waiting:
    """A request of ten tokens."""

    prompt, generated, finished = 10, 0, False

    def __init__(self, id: int) -> None:
        self.id = id


def queue(tenant, weights) -> FairQueue:
    return FairQueue(Waiting, tenant, weights)  # type: ignore[arg-type]


def test_who_was_away_begins_no_lower_than_those_that_wait_and_no_higher() -> None:
    waiting = queue([0, 0, 1, 2, 2], [1.0, 1.0, 1.0])
    waiting.add(0)
    waiting.add(1)
    first = waiting.pop()
    waiting.admitted(first)
    waiting.served(first, 7)
    assert waiting.counters == [10 * INPUT + 7 * OUTPUT, 0.0, 0.0]
    waiting.add(2)
    waiting.bring_up_to_date((), 0)
    assert waiting.counters[1] == waiting.counters[0], "lifted to the least of those that wait"
    waiting.served(first, 9)
    waiting.served(first, 9)
    waiting.add(3)
    waiting.bring_up_to_date((), 0)
    assert waiting.counters == [28.0, 24.0, 24.0]
    assert waiting.pop().id == 2
    waiting.put_back(Waiting(2))  # type: ignore[arg-type]
    waiting.bring_up_to_date((), 0)
    assert waiting.counters[1] == 24.0, "who is put back has not been away"
    assert [waiting.pop().id for _ in range(len(waiting))] == [3, 2, 1]


def test_into_an_empty_queue_a_tenant_comes_back_no_lower_than_who_left_it_last() -> None:
    waiting = queue([0, 1, 0], [1.0, 1.0])
    waiting.add(0)
    waiting.admitted(waiting.pop())
    waiting.add(1)
    waiting.bring_up_to_date((), 0)
    assert waiting.counters == [10.0, 10.0]
    again = waiting.pop()
    waiting.admitted(again)
    waiting.admitted(again)
    assert waiting.counters == [10.0, 20.0], "a prompt counts once, however often it is preempted"
    waiting.add(2)
    assert waiting.cancel(2).id == 2  # type: ignore[union-attr]
    waiting.bring_up_to_date((), 0)
    assert (len(waiting), waiting.cancel(2), waiting.counters) == (0, None, [10.0, 20.0])


def test_weights_go_by_tenant_then_by_class_and_a_name_that_is_neither_is_refused() -> None:
    assert weights_of(("a/0", "a/1", "b/0"), {"a": 2.0, "a/1": 3.0}) == [2.0, 3.0, 1.0]
    with pytest.raises(InputError, match=r"\[engine\] tenant_weights: 'aa' is no tenant of the workload"):
        weights_of(("a/0", "b/0"), {"aa": 2.0})
    with pytest.raises(InputError, match="'' is no tenant"):
        weights_of(("a", "b"), {"": 2.0})
    for keys, says in (
        ({"tenant_weights": {"a": 0.0}}, "expected above 0"),
        ({"tenant_weights": {"a": 1e-300}}, "expected above 0, from 1e-09 to 1e"),
        ({"tenant_weights": {"a": 1e300}}, "expected above 0, from 1e-09 to 1e"),
        ({"policy": "fcfs"}, "expected 'vtc'"),
    ):
        with pytest.raises(InputError, match=says):
            run(world([0.0], [4], [2], [0]), params(**{"tenant_weights": {"a": 2.0}, **keys}), UnitSteps())


def random_world(seed: int, tenants: int, spread_s: float) -> Workload:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 60))
    tenant = np.sort(rng.integers(0, tenants, n)) if rng.random() < 0.5 else rng.integers(0, tenants, n)
    return world(np.sort(rng.uniform(0, spread_s, n)), rng.integers(1, 40, n), rng.integers(1, 30, n), tenant)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    seqs=st.integers(1, 6),
    spread_s=st.sampled_from([0.0, 60.0]),
    budget=st.sampled_from([16, 64]),
    blocks=st.sampled_from([20, 1000]),
    asynchronous=st.booleans(),
)
def test_alone_a_tenant_is_served_first_come_first_served(seed, seqs, spread_s, budget, blocks, asynchronous) -> None:
    w = random_world(seed, 1, spread_s)
    keys = {"max_num_seqs": seqs, "max_num_batched_tokens": budget, "kv_blocks": blocks}
    keys["async_scheduling"] = asynchronous
    same(run(w, params(**keys), UnitSteps()), run(w, params("fcfs", **keys), UnitSteps()))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    seqs=st.integers(1, 8),
    blocks=st.sampled_from([40, 60, 400]),
    spread_s=st.sampled_from([0.0, 0.0, 40.0]),
    weight=st.sampled_from([1.0, 1.0, 3.0]),
)
def test_two_tenants_who_both_wait_are_served_alike_within_the_published_bound(
    seed, seqs, blocks, spread_s, weight
) -> None:
    """Between any two moments of a time in which both always have somebody waiting (theorem 4.4; with weights 4.4's
    counters). Where nobody is preempted, which the algorithm has not."""
    w = random_world(seed, 2, spread_s)
    assume(len(w.tenant_names) == 2)  # all may be of one
    p = params(max_num_seqs=seqs, kv_blocks=blocks, tenant_weights={"chat/0": weight})
    log: list = []
    found = run(w, p, UnitSteps(), step_log=log)
    if found.preemptions.any():
        return
    weights = (weight, 1.0)
    bound = 2 * max(INPUT * int(w.prompt_tokens.max()), OUTPUT * blocks * p.block_size) / min(weights)
    tenant, computed, difference, since = w.column("tenant_id"), np.zeros(len(w), np.int64), 0.0, None
    for _, start_s, scheduled, *_ in log:
        waiting = (w.arrival_s <= start_s) & (found.admit_s > start_s)
        for request, tokens in scheduled:
            served = INPUT * w.prompt_tokens[request] * (computed[request] == 0)
            computed[request] += tokens
            served += OUTPUT * (computed[request] >= w.prompt_tokens[request])
            difference += (1 - 2 * tenant[request]) * served / weights[tenant[request]]
        if len(set(tenant[waiting])) < 2:
            since = None
            continue
        since = (difference, difference) if since is None else (min(since[0], difference), max(since[1], difference))
        assert since[1] - since[0] <= bound


def test_first_come_first_served_breaks_the_bound() -> None:
    """So that the property says something: A's hundred requests before B's."""
    n = 100
    w = world([0.0] * (2 * n), [20] * 2 * n, [10] * 2 * n, [0] * n + [1] * n)
    p = params("fcfs", max_num_seqs=2, kv_blocks=20)
    admitted = np.argsort(run(w, p, UnitSteps()).admit_s, kind="stable")[:n]
    served = (20 * INPUT + 10 * OUTPUT) * (w.column("tenant_id")[admitted] == 0).sum()
    assert served > 2 * max(INPUT * 20, OUTPUT * 20 * 4)
    fair = np.argsort(run(w, params(max_num_seqs=2, kv_blocks=20), UnitSteps()).admit_s, kind="stable")[:n]
    assert abs((w.column("tenant_id")[fair] == 0).sum() - n / 2) <= 2


def test_what_tenants_were_served_is_counted_while_requests_still_come() -> None:
    """A's twenty requests at time 0 and B's at 1, one place: what A has by the last arrival B has with vtc too."""
    n = 20
    w = plain(
        [0.0] * n + [1.0] * (n - 1) + [60.0],
        [10] * 2 * n,
        [5] * 2 * n,
        tenant_id=np.repeat([0, 1], n).astype(np.int32),
        tenant_names=("a/0", "b/0"),
    )
    found = {}
    for policy in ("fcfs", "vtc"):
        rec = run(w, params(policy), UnitSteps())
        made, rows = fairness(rec, w, Window(0.0, 200.0, 60.0, True), np.ones(2))
        found[policy] = made["jain"]
        served = [rows[name]["service"] for name in ("a/0", "b/0")]
        assert made["jain"] == pytest.approx(sum(served) ** 2 / (2 * (served[0] ** 2 + served[1] ** 2)))
        assert rows["a/0"]["service_share"] + rows["b/0"]["service_share"] == pytest.approx(1.0)
        whole = service(rec, w, 0.0, rec.end_s)
        assert whole.tolist() == [10 * INPUT + 5 * OUTPUT] * (2 * n), "in the end everybody has what they asked for"
    assert found["fcfs"] == pytest.approx(0.5, abs=0.05)
    assert found["vtc"] > 0.97


def test_without_tenants_the_classes_are_fair_to_each_other() -> None:
    w = plain(
        [0.0] * 6,
        [10, 10, 10, 10, 30, 30],
        [5] * 6,
        class_id=np.array([0, 0, 0, 0, 1, 1], np.int16),
        class_names=("a", "b"),
        class_slo=("", ""),
    )
    assert order(w, params()) == [0, 4, 1, 2, 5, 3]
    assert order(w, params(tenant_weights={"b": 4.0})) == [0, 4, 5, 1, 2, 3]
    doc = {**two_classes(), "engine": {"scheduler_policy": "vtc", "tenant_weights": {"greedy": 0.5}}}
    told = api.simulate(scenario_from_doc(doc)).summary["fairness"]
    assert told["tenants"] == 2
    assert sum(told["service_share"].values()) == pytest.approx(1.0)
    assert "fairness" not in api.simulate(scenario_from_doc(two_classes())).summary


def two_classes() -> dict:
    classes = [{**CHAT, "name": name, "rate": 0.5} for name in ("greedy", "modest")]
    return document(workload={"duration_s": 30.0, "class": classes}, run={"warmup_s": 5.0, "duration_s": 30.0})
