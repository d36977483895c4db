"""Prefill and decode on different replicas: tiny worlds with every time known, theory, and that nothing is lost.

python -m pytest tests/test_pools.py
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import bench_disaggregation
from kvcast import api
from kvcast.config import apply_overrides, scenario_from_doc
from kvcast.planner.candidates import combinations, fleet_of
from kvcast.planner.command import launch_of
from kvcast.planner.words.phrases import split
from kvcast.present import summary_text
from kvcast.scenario import disaggregation
from sim.fleet.pools import Pools
from sim.fleet.replica import Replica
from sim.fleet.transfer import Link
from sim.measure import metrics, pools
from sim.measure.report import build_report
from sim.recording import COMPLETED, KV_TOO_SMALL, TOO_LONG, Handed, Recording
from sim.scenario import EngineParams, Scenario, TierParams
from sim.simulate import run
from tests.test_engine import same
from tests.test_tiers import families
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.columns import Workload
from workloads.errors import InputError

LINK = Link(block_bytes=10, layers=2, prefill_bytes_s=100.0, decode_bytes_s=100.0)
PARAMS = EngineParams(kv_blocks=1000, block_size=4, max_num_batched_tokens=64)


def in_pools(workload: Workload, params: EngineParams = PARAMS, link: Link = LINK, **more) -> Recording:
    """One replica that prefills and one that decodes, a second a step, unless said otherwise."""
    asked: dict[str, Any] = {"replicas": 2, "prefills": 1, "steps": UnitSteps(), "prefill": params} | more
    own = {name: asked.pop(name) for name in ("decode_first", "local_below", "handoff_s") if name in asked}
    made = Pools(asked.pop("prefills"), asked.pop("prefill"), asked["steps"], "round-robin", link, **own)
    return run(workload, params, asked.pop("steps"), pools=made, **asked)


def handed(r: Recording) -> Handed:
    assert r.handed is not None
    return r.handed


# -- one request -------------------------------------------------------------------------------------------------------


def test_a_request_is_computed_read_and_decoded() -> None:
    """100 tokens are two steps of 64; 25 blocks of 10 bytes then take 25 x 2 descriptors of 10 ms, 2.5 s of a NIC and
    0.25 s of latency; the last prompt token is computed again with the first output, and two more follow."""
    link = replace(LINK, latency_s=0.25, descriptor_s=0.01)
    r = in_pools(plain([0.0], [100], [3]), link=link)
    went = handed(r)
    assert (went.prefilled_s[0], went.read_s[0], went.ready_s[0]) == (2.0, 2.0, 5.25)
    assert (r.admit_s[0], r.first_token_s[0], r.finish_s[0]) == (0.0, 6.25, 8.25)
    assert (went.prefill_replica[0], went.decode_replica[0], r.replica[0]) == (0, 1, 1)
    assert [s.prefill_tokens.tolist() for s in r.steps] == [[64, 36], [1, 0, 0]]
    assert [s.n_decode.tolist() for s in r.steps] == [[0, 0], [0, 1, 1]]
    assert (went.read_blocks[0], went.nic_busy_s.tolist()) == (25, [2.5, 3.0])


def test_blocks_are_kept_until_they_are_read_and_held_from_when_the_read_begins() -> None:
    r = in_pools(plain([0.0], [100], [3]))  # read from 2 to 4.5 s, decoded from there to 7.5 s
    prefill, decode = ([(float(t), int(n)) for t, n in zip(s.t_s, s.blocks_in_use, strict=True)] for s in r.samples)
    assert prefill == [(0.0, 16), (2.0, 25), (4.5, 0)] or prefill[-2:] == [(2.0, 25), (4.5, 0)]
    assert decode[0] == (2.0, 25)
    assert decode[-1] == (7.5, 0)


def test_the_slower_of_two_nics_is_the_read() -> None:
    """8 blocks of 10 bytes at 100 bytes/s and 40 bytes/s."""
    for fast, slow in ((100.0, 40.0), (40.0, 100.0)):
        r = in_pools(plain([0.0], [32], [1]), link=replace(LINK, prefill_bytes_s=fast, decode_bytes_s=slow))
        assert handed(r).ready_s[0] == 1.0 + 80 / 40


def test_the_hand_over_takes_its_time() -> None:
    assert handed(in_pools(plain([0.0], [32], [1]), handoff_s=0.5)).read_s[0] == 1.5


def test_layerwise_only_what_the_prefill_did_not_cover_is_left() -> None:
    """Four layers. 64 tokens a second; a prompt of 32 reads for 0.8 s, of which 0.2 s is the last layer; at a tenth of
    the bandwidth 8 s, of which the prefill's one second is over."""
    link = replace(LINK, layers=4, layerwise=True)
    assert handed(in_pools(plain([0.0], [32], [1]), link=link)).ready_s[0] == pytest.approx(1.2)
    slow = replace(link, prefill_bytes_s=10.0, decode_bytes_s=10.0)
    assert handed(in_pools(plain([0.0], [32], [1]), link=slow)).ready_s[0] == 8.0


# -- several -----------------------------------------------------------------------------------------------------------


def test_reads_queue_on_a_shared_nic() -> None:
    """Two prefill replicas end at 1 s; the decode replica's NIC takes one after the other, 0.8 s each."""
    r = in_pools(plain([0.0, 0.0], [32, 32], [2, 2]), replicas=3, prefills=2)
    assert handed(r).prefill_replica.tolist() == [0, 1]
    np.testing.assert_allclose(handed(r).ready_s, [1.8, 2.6])
    assert r.first_token_s.tolist() == [2.8, 3.8]  # the second finds a step under way
    r = in_pools(plain([0.0, 0.0], [32, 32], [2, 2]), link=replace(LINK, decode_bytes_s=1e9), replicas=3)
    assert handed(r).decode_replica.tolist() == [1, 2]
    np.testing.assert_allclose(handed(r).ready_s, [1.8, 2.6])  # and so does that of one prefill replica


def test_hits_of_the_decode_replica_are_not_read() -> None:
    """Three blocks of four are those of the request before; the fourth, whose last token must be computed, is read."""
    w = families([(0, 16), (0, 16), (1, 16)], gap_s=10.0, output=2)
    r = in_pools(w)
    assert handed(r).read_blocks.tolist() == [4, 1, 4]
    assert handed(r).decode_hit_tokens.tolist() == [0, 12, 0]
    assert r.hit_tokens.tolist() == [0, 12, 0]  # and the prefill replica has its own
    np.testing.assert_allclose(handed(r).ready_s - handed(r).read_s, [0.4, 0.1, 0.4])


def test_a_request_without_memory_to_decode_in_waits_and_its_prefill_waits_with_its_blocks() -> None:
    """Both pools hold one of these prompts: 0 decodes until 8 s and prompt 1 is computed only when 0 is read (3 s);
    1 is read when 0 has ended, and only then has 2 memory."""
    params = replace(PARAMS, kv_blocks=12, max_num_batched_tokens=64, async_scheduling=False)
    w = plain([0.0, 0.0, 0.0], [40, 40, 40], [6, 1, 1])
    r = in_pools(w, params)
    assert handed(r).read_s.tolist() == [1.0, 8.0, 10.0]
    assert r.admit_s.tolist() == [0.0, 2.0, 9.0]
    assert r.finish_s.tolist() == [8.0, 10.0, 12.0]
    assert handed(r).waited_s.tolist() == [0.0, 5.0, 0.0]
    assert metrics.per_request(r, w)["queue_s"].tolist() == [0.0, 7.0, 9.0]


def test_few_uncached_tokens_are_computed_where_they_are_decoded() -> None:
    """The second prompt lacks 4 tokens of 16 on the decode replica: 5 is enough to stay there, 4 is not."""
    w = families([(0, 16), (0, 16)], gap_s=10.0, output=2)
    for below, replicas in ((5, [0, -1]), (4, [0, 0])):
        r = in_pools(w, local_below=below)
        assert handed(r).prefill_replica.tolist() == replicas
        assert r.hit_tokens.tolist() == [0, 12]
    assert in_pools(w, local_below=5).first_token_s[1] == 11.0  # nothing is read
    assert (handed(in_pools(w, local_below=17)).prefill_replica == -1).all()


def test_the_decode_replica_is_chosen_at_arrival_or_after_the_prefill() -> None:
    """Two replicas decode, the one with fewer tokens is chosen. 0 arrives first and is long: 1 and 2 arrive meanwhile,
    when nobody has anything yet, or are handed over when 0 lies on replica 1."""
    w = plain([0.0, 0.1], [64, 32], [5, 1])
    for first, replicas in ((True, [1, 1]), (False, [1, 2])):
        r = in_pools(w, replicas=3, router="least-loaded", decode_first=first)
        assert handed(r).decode_replica.tolist() == replicas


def test_a_tie_of_both_pools_is_decided_as_the_step_that_ends_with_it() -> None:
    """At 2 s the first prompt's last read ends and the decode replica's step too: it is in the next one."""
    r = in_pools(plain([0.0, 1.0], [40, 40], [9, 2]))  # reads from 1 to 2 s and from 2 to 3 s
    assert r.first_token_s.tolist() == [3.0, 4.0]


# -- theory, and whatever happens --------------------------------------------------------------------------------------


class Rate:
    """Steps take their prefill tokens over so many a second, and nothing else."""

    def __init__(self, tokens_per_s: float) -> None:
        self.tokens_per_s = tokens_per_s

    def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
        return (sum(new for new, _ in chunks) / self.tokens_per_s if chunks else 1e-6), 0

    def decode_stretch(self, n_decode, sum_context, max_context, k):
        return np.full(k, 1e-6), np.zeros(k, np.int8)


def lindley(arrival_s: np.ndarray, service_s: float) -> np.ndarray:
    """When a server, first come first served, is done with each of them: each starts at its arrival, or at the end of
    the one before."""
    k = np.arange(len(arrival_s))
    return np.maximum.accumulate(arrival_s - k * service_s) + (k + 1) * service_s


def test_a_prefill_pool_is_as_many_queues_of_one_server() -> None:
    """45 requests/s of 5,000 tokens on 8 replicas of 33,821 tokens/s (load 0.83), dealt at random: each replica is a
    queue with one server, and those have M/D/1's mean time of 0.51 s to the end of the prefill."""
    n, service_s, rng = 3000, 5000 / 33_821, np.random.default_rng(3)
    arrival_s = np.cumsum(rng.exponential(1 / 45, n))
    params = EngineParams(kv_blocks=100_000, block_size=1000, max_num_batched_tokens=5000, async_scheduling=False)
    made = Pools(8, params, Rate(33_821), "random", replace(LINK, block_bytes=0), decode_first=False)
    r = run(plain(arrival_s, np.full(n, 5000), np.ones(n)), params, Rate(33_821), replicas=9, pools=made)
    assert (r.status == COMPLETED).all()
    for replica in range(8):
        mine = handed(r).prefill_replica == replica
        np.testing.assert_allclose(handed(r).prefilled_s[mine], lindley(arrival_s[mine], service_s))
    load = 45 / 8 * service_s
    theory_s = service_s * (1 + load / (2 * (1 - load)))
    assert theory_s == pytest.approx(0.51, abs=0.005)
    arrival_s = np.cumsum(rng.exponential(8 / 45, 1_000_000))
    assert (lindley(arrival_s, service_s) - arrival_s).mean() == pytest.approx(theory_s, rel=0.01)


def worlds() -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 300),
            "closed": st.booleans(),
            "prefills": st.integers(1, 2),
            "decodes": st.integers(1, 2),
            "spare": st.sampled_from([0, 8, 200]),
            "budget": st.sampled_from([16, 48, 256]),
            "seqs": st.sampled_from([2, 8]),
            "bandwidth": st.sampled_from([2e2, 2e3, 1e6]),
            "below": st.sampled_from([0, 0, 12]),
            "ahead": st.booleans(),
            "reserve": st.booleans(),
            "layerwise": st.booleans(),
            "policy": st.sampled_from(["lru", "lfu"]),
            "order": st.sampled_from(["fcfs", "priority"]),
        }
    )


def world(asked: dict, **more) -> Recording:
    w = random_workload(asked["seed"], closed=asked["closed"])
    params = EngineParams(
        kv_blocks=int(-(-(w.prompt_tokens + w.output_tokens).max() // 4)) + asked["spare"],
        block_size=4,
        max_num_batched_tokens=asked["budget"],
        max_num_seqs=asked["seqs"],
        async_scheduling=asked["ahead"],
        reserve_full_isl=asked["reserve"],
        policy=asked["policy"],
        scheduler_policy=asked["order"],
    )
    link = Link(10, 2, asked["bandwidth"], asked["bandwidth"] / 2, 0.001, 1e-4, asked["layerwise"])
    sizes = {"replicas": asked["prefills"] + asked["decodes"], "prefills": asked["prefills"]}
    return in_pools(
        w,
        params,
        link,
        steps=LinearSteps(),
        router="least-loaded",
        local_below=asked["below"],
        decode_first=bool(asked["below"]) or asked["seed"] % 2 == 0,
        prefill=replace(params, max_num_batched_tokens=2 * asked["budget"]),
        **sizes,
        **more,
    )


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_nothing_is_lost_and_stepping_is_the_same(asked: dict) -> None:
    left: list[Replica] = []
    r = world(asked, on_end=left.extend, record_life=True)
    w = random_workload(asked["seed"], closed=asked["closed"])
    assert (r.status == COMPLETED).all()
    went = handed(r).prefill_replica >= 0
    for replica in left:  # every block is free, or cached and nobody's
        cache = replica.scheduler.cache
        assert cache.blank + cache.idle == cache.total
        assert not getattr(replica.scheduler, "kept", None)
    times = [r.arrival_s, r.admit_s, handed(r).prefilled_s, handed(r).read_s, handed(r).ready_s, handed(r).placed_s]
    for before, after in zip(times, [*times[1:], r.first_token_s], strict=True):
        assert (before[went] <= after[went]).all()
    assert r.life is not None
    for life, finish_s in zip(r.life, r.finish_s, strict=True):  # without a hole
        assert (life[0][0], life[-1][2]) == ("queued", finish_s)
        assert all(a[2] == b[1] for a, b in pairwise(life) if a[0] != "prefill")
    blocks = -(-w.prompt_tokens // 4)
    np.testing.assert_array_equal((handed(r).read_blocks + handed(r).decode_hit_tokens // 4)[went], blocks[went])
    assert (handed(r).read_blocks[~went] == 0).all()
    computed = sum(int(s.prefill_tokens.sum()) for s in r.steps)
    once = int((w.prompt_tokens - r.hit_tokens).sum() + went.sum())
    assert computed == once or r.preemptions.any()
    assert sum(int(s.n_decode.sum()) for s in r.steps) == int(w.output_tokens.sum()) - len(w) or r.preemptions.any()
    if asked["below"]:  # what a prompt would find of an answer under way is looked up by stretches, not steps
        return
    slow = world(asked, fast_forward=False, record_life=True)
    same(r, slow)
    for name in ("prefill_replica", "prefilled_s", "read_s", "ready_s", "placed_s", "read_blocks", "nic_busy_s"):
        np.testing.assert_array_equal(getattr(handed(r), name), getattr(handed(slow), name), err_msg=name)


def test_what_the_prefill_replica_cannot_serve_is_turned_away() -> None:
    w = plain([0.0, 0.0], [32, 48], [1, 1])
    for prefill, status in (
        (replace(PARAMS, kv_blocks=10), KV_TOO_SMALL),
        (replace(PARAMS, max_model_len=40), TOO_LONG),
    ):
        assert in_pools(w, prefill=prefill).status.tolist() == [COMPLETED, status]


def test_who_waits_for_a_place_has_it_when_one_ends() -> None:
    """Two places on the decode replica, which knows a step later who has ended."""
    asked: dict[str, Any] = {
        "seed": 117,
        "closed": False,
        "prefills": 1,
        "decodes": 1,
        "spare": 200,
        "budget": 48,
        "seqs": 2,
    }
    asked |= {"bandwidth": 1e6, "below": 0, "ahead": True, "reserve": True, "layerwise": False}
    asked |= {"policy": "lru", "order": "priority"}
    same(world(asked), world(asked, fast_forward=False))


@pytest.mark.parametrize(
    ("params", "more", "line"),
    [
        (PARAMS, {"prefills": 2}, "expected fewer than cluster.replicas = 2"),
        (replace(PARAMS, semantics="sglang"), {}, "expected semantics = 'vllm'"),
        (replace(PARAMS, tiers=(TierParams("dram", 9, 1.0),)), {}, "with cache tiers"),
        (replace(PARAMS, max_num_queued_reqs=3), {}, "with replicas that refuse"),
        (PARAMS, {"shed_over": 3}, r"with \[cluster\] shed_over"),
        (PARAMS, {"prefill": replace(PARAMS, block_size=8)}, "blocks are read one to one"),
    ],
)
def test_what_is_not_simulated_is_refused(params: EngineParams, more: dict, line: str) -> None:
    with pytest.raises(InputError, match=line):
        in_pools(plain([0.0], [32], [1]), params, **more)


# -- the report, and a scenario ----------------------------------------------------------------------------------------


def scenario(*overrides: str) -> Scenario:
    doc = {
        "workload": {"preset": "chat", "requests": 60},
        "run": {"warmup_s": 0.0},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"gpu": "h200"},
    }
    return scenario_from_doc(apply_overrides(doc, overrides))


SPLIT = ("cluster.replicas=3", "disaggregation.prefill_replicas=1", "cluster.router=least-loaded")


def test_time_to_first_token_and_gpu_time_are_the_sums_of_both_pools() -> None:
    asked = {"seed": 5, "closed": True, "prefills": 1, "decodes": 2, "spare": 8, "budget": 48, "seqs": 8} | {
        "bandwidth": 2e3, "below": 12, "ahead": True, "reserve": True, "layerwise": False, "policy": "lru",
        "order": "fcfs",
    }  # fmt: skip
    r, w = world(asked), random_workload(5, closed=True)
    report = build_report(r, w, scenario(*SPLIT, "disaggregation.prefill_tensor_parallel=2"))
    went = handed(r).prefill_replica >= 0
    assert 0 < went.sum() < len(w)
    whole = np.sum(list(pools.parts_s(r).values()), axis=0)
    np.testing.assert_allclose(whole[went], (r.first_token_s - r.arrival_s)[went])
    steps_s = [float(s.duration_s.sum()) for s in r.steps]
    busy_s = 2 * steps_s[0] + steps_s[1] + steps_s[2]  # the prefill replica has two GPUs
    assert report.summary["gpu_busy_s"] == pytest.approx(busy_s)
    assert pools.gpu_seconds(r, w.prompt_tokens - r.hit_tokens, scenario(
        *SPLIT, "disaggregation.prefill_tensor_parallel=2"
    )).sum() == pytest.approx(busy_s)  # fmt: skip
    found = report.summary["disaggregation"]
    assert report.summary["gpu_hours"] == pytest.approx(4 * report.summary["duration"] / 3600)
    assert (found["handed_over"], found["computed_where_decoded"]) == (went.sum(), (~went).sum())
    assert [(p["pool"], p["replicas"], p["gpus_per_replica"]) for p in found["pools"]] == [
        ("prefill", 1, 2), ("decode", 2, 1),
    ]  # fmt: skip
    assert found["read_bytes"] == 10 * int(handed(r).read_blocks.sum())
    assert "balance" not in report.summary


def test_waits_for_the_decode_pool_are_queueing_and_an_overload_of_either_pool_is_one() -> None:
    """Prompts come one a second; a decode replica that takes three seconds for each, or a prefill replica that does,
    falls behind for ever."""
    n = 600
    slow = {"decode": (32, 3), "prefill": (160, 1)}
    for prompt, output in slow.values():
        w = plain(np.arange(n, dtype=float), np.full(n, prompt), np.full(n, output))
        params = replace(PARAMS, kv_blocks=41, max_num_batched_tokens=64, max_num_seqs=1)
        r = in_pools(w, params, replace(LINK, block_bytes=0))
        report = build_report(r, w, scenario("cluster.replicas=2", "disaggregation.prefill_replicas=1"))
        assert report.summary["stable"] is False
        assert report.summary["mean_queue_ms"] > 0.8 * report.summary["mean_ttft_ms"]


def test_a_scenario_has_two_pools() -> None:
    """Eight GPUs: two replicas prefill on two each with their own budget; 131,072 bytes a token, 50 GB/s a GPU."""
    given = scenario(
        "cluster.replicas=6", "disaggregation.prefill_replicas=2", "disaggregation.prefill_tensor_parallel=2",
        "disaggregation.prefill_max_num_batched_tokens=16384",
    )  # fmt: skip
    prepared = api.prepare(given)
    made = disaggregation.pools_of(prepared.resolved)
    assert made is not None
    link = made.link
    assert (link.block_bytes, link.layers, link.prefill_bytes_s, link.decode_bytes_s) == (16 * 131_072, 32, 1e11, 5e10)
    assert (made.params.max_num_batched_tokens, prepared.resolved.params.max_num_batched_tokens) == (16_384, 8192)
    assert made.params.kv_blocks > 2 * prepared.resolved.params.kv_blocks  # both hold the weights once
    assert (prepared.scenario.gpus, prepared.scenario.gpus_per_replica) == (8, 8 / 6)
    again = api.prepare(prepared.scenario)  # as a run's folder has it
    assert disaggregation.pools_of(again.resolved) == replace(made, step_time=ANY)
    r, slow = api.record(prepared), api.record(api.at_step_times(prepared, 3.0))
    result = api.measure(prepared, r)
    assert result.report.summary["completed"] == 60
    assert "2 prefill, 4 decode" in summary_text.describe(result)
    first, longer = (float((handed(one).prefilled_s - one.admit_s).min()) for one in (r, slow))
    assert longer == pytest.approx(3 * first)  # steps of both pools are
    off = api.without_cache(prepared).resolved
    assert off.prefill is not None
    assert [one.params.caching for one in (off, off.prefill)] == [False, False]  # the twin has a cache in neither


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("disaggregation.prefill_replicas=3", "expected fewer than cluster.replicas = 3, the others decode"),
        ("disaggregation.prefill_router=fastest", r"\[disaggregation\] prefill_router = 'fastest'"),
        ("engine.semantics=sglang", "expected semantics = 'vllm' with it"),
        ("client.retries=2", r"with \[client\] timeouts or retries"),
        ("disaggregation.bandwidth_gb_per_s=0", r"bandwidth_gb_per_s = 0.0: expected"),
        ("hardware.attention_dp=2", r"with \[hardware\] attention_dp = 2"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_one_line(more: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        scenario(*SPLIT, more)


def test_few_tokens_stay_only_where_a_replica_is_chosen_to_ask() -> None:
    with pytest.raises(InputError, match="expected 'at-arrival', it asks the chosen decode replica"):
        scenario(*SPLIT, "disaggregation.local_below=9", "disaggregation.decode_chosen=after-prefill")


def test_the_best_ratio_is_where_theory_has_it() -> None:
    """4,000 tokens in and 120 out on eight H200: prefill binds up to 5:3, the decode replicas' NICs from 6:2 on."""
    prefill_per_s, batch_per_s, nic_per_s = bench_disaggregation.theory(4000, 120)
    assert nic_per_s < batch_per_s
    said = {p: min(p * prefill_per_s, (8 - p) * nic_per_s) for p in (4, 5, 6)}
    found = {p: bench_disaggregation.simulated(p, 4000, 120)["requests_per_s"] for p in said}
    assert bench_disaggregation.best(found) == bench_disaggregation.best(said) == 5
    for p, rate in said.items():
        assert found[p] == pytest.approx(rate, rel=0.02)


# -- a plan ------------------------------------------------------------------------------------------------------------


def test_fleets_of_a_plan_keep_their_ratio() -> None:
    given = scenario("cluster.replicas=4", "disaggregation.prefill_replicas=1")
    sizes = {n: fleet_of(given, n).disaggregation.prefill_replicas for n in (1, 2, 3, 6, 8, 10)}
    assert sizes == {1: 0, 2: 1, 3: 1, 6: 2, 8: 2, 10: 2}
    assert fleet_of(fleet_of(given, 8), 8) == fleet_of(given, 8)
    assert [split({"replicas": n, "prefill_replicas": p}) for n, p in sizes.items()][:2] == [
        "", " (1 prefill, 1 decode)",
    ]  # fmt: skip


def test_replicas_of_a_plan_are_of_one_kind() -> None:
    pools = {"prefill_replicas": 1}
    doc = {"workload": {"preset": "chat"}, "cluster": {"replicas": 4}, "disaggregation": pools}
    found = combinations(doc, ["disaggregation.prefill_tensor_parallel=1,2"])
    assert [one.scenario is None for one in found] == [False, True]
    assert "whose replicas are all of one kind" in found[1].reason


def test_a_plan_in_pools_is_launched_with_a_connector() -> None:
    launch = launch_of(scenario("cluster.replicas=5", "disaggregation.prefill_replicas=2"))
    assert launch is not None
    assert "--kv-transfer-config" in launch["vllm"]
    assert launch["words"] == "2 of these to prefill and 3 to decode, behind a proxy that sends to both"
    assert "--kv-transfer-config" not in (launch_of(scenario()) or {})["vllm"]
