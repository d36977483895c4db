"""Replicas that are not alike behind one router: worlds by hand, theory, and that pools which are alike are one fleet.

python -m pytest tests/test_mixed_fleets.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.fleet.mixed import Kind, Mixed
from sim.fleet.router import ROUTERS, Router
from sim.recording import COMPLETED, KV_TOO_SMALL, TOO_LONG, Recording
from sim.scenario import ClientConfig, EngineParams
from sim.simulate import run
from tests.test_engine import same
from tests.test_theory import SERVER, TOKEN_S, PerToken, exponential_tokens
from tests.test_tiers import families
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.columns import Workload
from workloads.errors import InputError

ONE = EngineParams(kv_blocks=1000, block_size=4, max_num_batched_tokens=64, max_num_seqs=1, async_scheduling=False)
PARAMS = EngineParams(kv_blocks=60, block_size=4, max_num_batched_tokens=64)


class Slower:
    """Every step takes `times` as long."""

    def __init__(self, steps, times: float) -> None:
        self._steps, self._times = steps, times

    def step(self, *shape):
        seconds, code = self._steps.step(*shape)
        return seconds * self._times, code

    def decode_stretch(self, *shape):
        seconds, codes = self._steps.decode_stretch(*shape)
        return seconds * self._times, codes


def fleet(workload: Workload, kinds: list[Kind], asks=None, **options) -> Recording:
    mixed = Mixed(kinds, None if asks is None else np.array(asks))
    return run(workload, kinds[0].params, kinds[0].step_time, replicas=mixed.replicas, mixed=mixed, **options)


def of_classes(class_id: list[int], **columns) -> dict:
    return {"class_id": np.array(class_id, np.int16), "class_names": ("a", "b"), **columns}


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("router", "finish_s", "replica"),
    [("round-robin", [0.5, 1.4, 1.3, 2.4], [0, 1, 0, 1]), ("least-loaded", [0.5, 1.4, 1.3, 1.8], [0, 1, 0, 0])],
)
def test_one_of_two_replicas_is_twice_as_fast(router: str, finish_s: list[float], replica: list[int]) -> None:
    """One request at a time, a step of half a second or of one, four requests 0.4 s apart. The fourth, at 1.2 s, finds
    one request on either replica: in turn it is the slow one's, which is free at 1.4 s, and by load (a tie) the fast
    one's, which is free at 1.3 s."""
    kinds = [Kind("fast", 1, ONE, Slower(UnitSteps(), 0.5)), Kind("slow", 1, ONE, UnitSteps())]
    r = fleet(plain([0.0, 0.4, 0.8, 1.2], [8] * 4, [1] * 4), kinds, router=router)
    assert r.replica.tolist() == replica
    np.testing.assert_allclose(r.finish_s, finish_s)


def test_a_request_goes_where_it_fits() -> None:
    """The small pool holds 8 blocks of 4 tokens and takes no more than 24 together; the large one 100 and 200."""
    small, large = replace(ONE, kv_blocks=8, max_model_len=24), replace(ONE, kv_blocks=50, max_model_len=300)
    kinds = [Kind("small", 2, small, UnitSteps()), Kind("large", 1, large, UnitSteps())]
    r = fleet(plain([0.0, 10.0, 20.0, 30.0, 40.0], [20, 40, 20, 250, 400], [1] * 5), kinds)
    assert r.replica.tolist() == [0, 2, 1, -1, -1]
    assert r.status.tolist() == [COMPLETED, COMPLETED, COMPLETED, KV_TOO_SMALL, TOO_LONG]
    assert r.kv_blocks_of.tolist() == [8, 8, 50]


@pytest.mark.parametrize("router", ["round-robin", "least-loaded", "session-hash", "llm-d-approx"])
def test_a_class_stays_in_the_pools_that_it_asks_for(router: str) -> None:
    """a goes to the second pool only, b anywhere; each list of replicas has its own turn."""
    kinds = [Kind("x", 1, ONE, UnitSteps()), Kind("y", 2, ONE, UnitSteps())]
    w = plain([10.0 * i for i in range(12)], [8] * 12, [1] * 12, **of_classes([0, 1] * 6))
    r = fleet(w, kinds, [[False, True], [True, True]], router=router)
    assert (r.status == COMPLETED).all()
    assert (r.replica[::2] >= 1).all()
    if router == "round-robin":
        assert r.replica.tolist() == [1, 0, 2, 1, 1, 2, 2, 0, 1, 1, 2, 2]


def test_nothing_is_shared_between_models() -> None:
    """Class b's prompt was computed for class a by another model: neither a hit there nor one that a common cache had
    given; between kinds of one model it is the latter."""
    w = replace(families([(0, 16), (0, 16)], gap_s=10.0), **of_classes([0, 1]))
    for word, ceiling in (("other", 0), ("same", 12)):
        kinds = [Kind("x", 1, ONE, UnitSteps(), "same"), Kind("y", 1, ONE, UnitSteps(), word)]
        r = fleet(w, kinds, [[True, False], [False, True]])
        assert r.hit_tokens.tolist() == [0, 0]
        assert r.ceiling_replica_tokens.tolist() == [0, 0]
        assert r.ceiling_fleet_tokens.tolist() == [0, ceiling]


def test_memory_in_use_is_a_share_of_ones_own() -> None:
    """llm-d's kv score: both replicas run one request of 10 blocks, of 20 and of 40; the third goes to the larger."""
    kinds = [
        Kind("x", 1, replace(ONE, kv_blocks=20), UnitSteps()),
        Kind("y", 1, replace(ONE, kv_blocks=40), UnitSteps()),
    ]
    for seed in range(4):  # the first two are ties, at random
        w = plain([0.0, 2.5, 5.0], [40, 40, 4], [30, 30, 1])
        r = fleet(w, kinds, router="llm-d-precise", seed=seed)
        assert sorted(r.replica[:2].tolist()) == [0, 1]
        assert r.replica[2] == 1


# -- theory ------------------------------------------------------------------------------------------------------------


class FastestFirst(Router):
    """To the faster of two idle servers, else to who is free first: one queue for both, first come first served."""

    def __init__(self, rng, workload) -> None:
        super().__init__(rng, workload)
        self.free_s = [0.0, 0.0]

    def choose(self, request, replicas):
        now_s = replicas[0].now_s
        place = min((0, 1), key=lambda i: (max(self.free_s[i], now_s), i))
        work_s = TOKEN_S * float(self.workload.prompt_tokens[request]) * TIMES[place]
        self.free_s[place] = max(self.free_s[place], now_s) + work_s
        return replicas[place]


TIMES = (1.0, 2.5)
"""Mean service times of the two servers, seconds."""


def unequal_servers(rate: float, router: str, seed: int, n: int = 2_500) -> tuple[np.ndarray, np.ndarray]:
    """Seconds each request waits and stays, after a warm-up."""
    gaps = np.random.default_rng([seed, 1]).exponential(1 / rate, n)
    tokens = exponential_tokens(n, seed)
    work = replace(plain(gaps.cumsum(), tokens, [1] * n))
    r = fleet(work, [Kind(str(t), 1, SERVER, Slower(PerToken(), t)) for t in TIMES], router=router, seed=seed)
    return (r.admit_s - r.arrival_s)[n // 10 :], (r.finish_s - r.arrival_s)[n // 10 :]


def test_mm2_with_unequal_servers_fastest_first(monkeypatch) -> None:
    """Gumbel (1960): states 0, only the fast or only the slow one busy, and n >= 2 with p(n) = p(2) r^(n-2), r = rate /
    (m1 + m2), from the balance of each; the mean number that waits is p(2) r / (1 - r)^2, and by Little their wait."""
    monkeypatch.setitem(ROUTERS, "fastest-first", FastestFirst)
    rate, (m1, m2) = 1.0, (1 / t for t in TIMES)
    r = rate / (m1 + m2)
    slow = m1 / (rate + m2)  # of p(2): left by the slow one's end and by arrivals, entered when the fast one ends
    fast = (slow * m2 + m2) / rate  # balances {0, fast} | rest: rate x fast = m2 (slow + p2)
    idle = (m1 * fast + m2 * slow) / rate
    p2 = 1 / (idle + fast + slow + 1 / (1 - r))
    theory = p2 * r / (1 - r) ** 2 / rate
    means = [unequal_servers(rate, "fastest-first", seed)[0].mean() for seed in range(8)]
    half_width = 3.499 * np.std(means, ddof=1) / np.sqrt(len(means))  # Student's t, 7 degrees of freedom, 99 %
    assert abs(np.mean(means) - theory) < half_width
    assert half_width < 0.25 * theory


def test_random_routing_makes_two_mm1() -> None:
    """Half of the arrivals each: E[T] = the mean of 1 / (m - rate / 2)."""
    rate = 0.5
    theory = np.mean([1 / (1 / t - rate / 2) for t in TIMES])
    means = [unequal_servers(rate, "random", seed)[1].mean() for seed in range(8)]
    half_width = 3.499 * np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - theory) < half_width
    assert half_width < 0.25 * theory


# -- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", list(ROUTERS))
def test_pools_that_are_alike_are_one_fleet(router: str) -> None:
    w = random_workload(3, closed=True)
    one = run(w, PARAMS, LinearSteps(), replicas=3, router=router)
    two = fleet(w, [Kind("a", 1, PARAMS, LinearSteps()), Kind("b", 2, PARAMS, LinearSteps())], router=router)
    assert two.kv_blocks_each == (60, 60, 60)
    same(one, replace(two, kv_blocks_each=()))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    router=st.sampled_from(["round-robin", "least-loaded", "llm-d-approx", "dynamo-kv", "session-affinity"]),
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(12, 80), st.integers(1, 8)), min_size=2, max_size=3),
    pinned=st.booleans(),
    clients=st.booleans(),
)
def test_random_fleets_lose_nothing(seed, router, sizes, pinned, clients) -> None:
    """Every request has one fate, on a replica that may have it; every prompt token is computed or hit where it ran;
    and stepping one by one is the same."""
    w = replace(random_workload(seed, closed=seed % 2 == 0), **of_classes([i % 2 for i in range(60)]))
    kinds = [
        Kind(str(k), n, replace(PARAMS, kv_blocks=blocks, max_num_seqs=seqs), Slower(LinearSteps(), 1 + k))
        for k, (n, blocks, seqs) in enumerate(sizes)
    ]
    asks = [[True] * len(kinds), [k == 1 or not pinned for k in range(len(kinds))]]
    options = {"router": router, "client": ClientConfig(timeout_s=2.0, retries=1) if clients else None}
    r = fleet(w, kinds, asks, **options)
    same(r, fleet(w, kinds, asks, fast_forward=False, **options))
    pool = np.repeat(np.arange(len(kinds)), [kind.replicas for kind in kinds])
    routed = r.replica >= 0
    assert np.array(asks)[w.class_id[routed], pool[r.replica[routed]]].all()
    tokens = w.prompt_tokens + w.output_tokens
    room = np.array([kind.params.kv_blocks * 4 for kind in kinds])
    assert (tokens[routed] - 1 <= room[pool[r.replica[routed]]]).all()
    done = r.status == COMPLETED
    assert done[routed].all() or clients
    if not clients:
        for i, steps in enumerate(r.steps):
            mine = r.replica == i
            if not r.preemptions[mine].any():
                assert steps.prefill_tokens.sum() == (w.prompt_tokens - r.hit_tokens)[mine].sum()
    fits = np.array([[(t - 1 <= b) for b in room] for t in tokens]) & np.array(asks)[w.class_id]
    never = ~fits.any(axis=1) & ~np.isnan(r.arrival_s)
    assert np.isin(r.status[never], [KV_TOO_SMALL, TOO_LONG, 5]).all()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"semantics": "sglang"}, "another engine"),
        ({"block_size": 8}, "blocks of 8 tokens"),
        ({"frontend_s": 0.1}, "a front end"),
        ({"caching": False}, "prefix caching"),
    ],
)
def test_kinds_that_one_recording_cannot_hold_are_refused(other: dict, what: str) -> None:
    kinds = [Kind("x", 1, PARAMS, UnitSteps()), Kind("y", 1, replace(PARAMS, **other), UnitSteps())]
    with pytest.raises(InputError, match=rf"\[pool.y\].*{what}.* than in pool 'x': not simulated together"):
        fleet(random_workload(1), kinds)
