"""Another simulator's results: the set of `kvcast validate aisimulate`, its step times, and what would go unnoticed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_peers, peer_work
from benchmarks.peer_processes import AISimulate
from kvcast.validation import aisimulate
from kvcast.validation.aisimulate import BLOCK, Case, PeerStepTime, Recorded, Request, compare_world
from sim.simulate import run

WORLDS = {case.name: (case, requests) for case, requests in Recorded().worlds()}


def test_worlds_pass_and_all_kinds_are_there():
    outcome = aisimulate.score_worlds(Recorded())
    assert outcome.passed, outcome.lines
    plain, short, sglang = (outcome.figures[kind] for kind in KINDS)
    for exact in (plain, sglang):
        assert exact["equal"] == exact["hits_equal"] == exact["requests"] >= 200
    assert short["worlds"] >= 5
    assert short["hits_equal"] == short["requests"]
    assert short["worst"] < 0.01


KINDS = ("vLLM's rules", "vLLM's rules, with preemption", "SGLang's rules")


@pytest.mark.parametrize(
    ("key", "value"), [("kv_blocks", 40), ("max_num_seqs", 2), ("max_num_batched_tokens", 48), ("caching", False)]
)
def test_another_setting_is_noticed(key, value):
    case, requests = WORLDS["vllm-0"]
    assert getattr(case, key) != value
    assert not compare_world(replace(case, **{key: value}), requests)["fine"]


def test_one_time_or_hit_that_differs_is_noticed():
    case, requests = WORLDS["vllm-0"]
    late = replace(requests[7], last_token_ms=requests[7].last_token_ms + 0.002)
    hit = replace(requests[7], hit_tokens=requests[7].hit_tokens + BLOCK)
    assert compare_world(case, requests)["fine"]
    for other in (late, hit):
        assert not compare_world(case, [*requests[:7], other, *requests[8:]])["fine"]


def test_a_preemption_more_or_less_is_noticed():
    case, requests = next(pair for pair in WORLDS.values() if any(r.readmissions for r in pair[1]))
    i = next(i for i, r in enumerate(requests) if r.readmissions)
    fewer = replace(requests[i], readmissions=requests[i].readmissions - 1)
    assert compare_world(case, requests)["fine"]
    assert not compare_world(case, [*requests[:i], fewer, *requests[i + 1 :]])["fine"]


def test_what_differs_comes_after_a_recomputed_prompt():
    """The peer prices a preempted request's second prefill otherwise. Up to the first one, all is equal."""
    seen = 0
    for case, requests in WORLDS.values():
        if not any(request.readmissions for request in requests):
            continue
        workload = workload_of(requests)
        log: list[tuple] = []
        recording = run(workload, case.params, case.step_time(), replicas=case.replicas, step_log=log)
        again_ms = first_again_ms(log)
        for theirs, ours in (("first_token_ms", recording.first_token_s), ("last_token_ms", recording.finish_s)):
            both = np.array([[getattr(request, theirs) for request in requests], 1e3 * ours])
            apart = np.abs(both[0] - both[1]) > aisimulate.EQUAL_MS
            assert (both[:, apart] > again_ms).all(), case.name
            seen += int((~apart & (both[0] <= again_ms)).sum())
    assert seen > 100


def workload_of(requests):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.jsonl"
        aisimulate.write_trace(requests, path)
        return aisimulate.read_trace(path)


def first_again_ms(log):
    """When the first step begins that has a request which was preempted before."""
    preempted: set[int] = set()
    for _, start_s, scheduled, now_preempted, *_ in sorted(log, key=lambda row: row[1]):
        if preempted & {request for request, _ in scheduled}:
            return 1e3 * start_s
        preempted |= set(now_preempted)
    raise AssertionError("nobody came back")


def test_two_requests_by_hand():
    """The peer's own answer on two rows: a prompt of 1,000 tokens, and another of which 512 are cached by then, whose
    prefill shares a step with a decode."""
    requests = [Request("hand", 0, 1008, 5, 1, 32), Request("hand", 10, 1008, 5, 1, 32)]
    kv = 16384 * 64
    case = Case("hand", kv // BLOCK)
    first = 4.209989e-07 * 1008**2 + 1.518344e-02 * 1008 + 16.50142
    share = 1009 / kv
    second = first + 4.209989e-07 * 496**2 + 1.518344e-02 * 496 + 16.50142 - 25.74 * share**2 + 54.01 * share + 5.74
    said = [replace(requests[0], first_token_ms=first), replace(requests[1], first_token_ms=second, hit_tokens=512)]
    found = compare_world(case, said)
    assert found["hits_equal"] == 2
    assert abs(found["errors"]["ttft_ms"]) < 1e-6


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("context", [1000, 29_900])  # the second is beyond the memory at its end
def test_a_stretch_is_its_steps(ones, context):
    times = PeerStepTime(30_000, ones)
    seconds, codes = times.decode_stretch(7, context, 300, 50)
    alone = [times.step([], 7, context + 7 * i, 300 + i, 7) for i in range(50)]
    assert list(zip(seconds.tolist(), codes.tolist(), strict=True)) == alone
    beyond = times.step([], 7, 10**6, 300, 7)[0]  # contexts that the memory cannot hold count as all of it
    assert beyond == pytest.approx(0.03401)
    assert times.decode_stretch(7, 10**6, 300, 2)[0].tolist() == [beyond, beyond]


def test_where_one_token_is_a_decode():
    chunk, decode = PeerStepTime(30_000).step([(1, 99)], 0, 0, 0, 1), PeerStepTime(30_000).step([], 1, 100, 100, 1)
    assert PeerStepTime(30_000, True).step([(1, 99)], 0, 0, 0, 1) == decode != chunk


def test_a_trace_off_by_more_than_its_limit_fails(monkeypatch, tmp_path):
    """The bookkeeping alone, on two requests and figures made up."""
    (tmp_path / "traces" / "mooncake").mkdir(parents=True)
    path = tmp_path / "traces" / "mooncake" / "t.jsonl"
    aisimulate.write_trace([Request("t", 0, 512, 3, 0, 0), Request("t", 5, 512, 3, 0, 0)], path)
    told = {"name": "two", "kv_blocks": 1000}
    workload = aisimulate.read_trace(path, BLOCK)
    true = aisimulate.trace_figures(Case.of(told).simulate(workload), workload)
    monkeypatch.setattr(aisimulate, "TRACE_BLOCK", BLOCK)

    def passed(**other):
        recorded = Recorded()
        recorded.told = {"source": {"trace": "t.jsonl"}, "trace": [told | true | other]}
        return aisimulate.score_traces(recorded, tmp_path).passed

    assert passed()
    assert not passed(e2e_ms=true["e2e_ms"] * 1.02)
    assert not passed(preemptions=1)
    assert passed(router="dynamo-kv", e2e_ms=true["e2e_ms"] * 1.02)  # it draws: 3 %
    assert np.isfinite(list(true.values())).all()


def test_a_case_is_the_peers_configuration():
    case = Case("p/d", 100, replicas=5, prefill_replicas=2, gb_per_s=25.0, max_num_batched_tokens=512)
    job = AISimulate("python").job(case, Path("trace.jsonl"), BLOCK, each=True)
    assert job["options"] == {"router_mode": "round_robin", "num_prefill_workers": 2, "num_decode_workers": 3}
    prefill = job["engines"]["prefill_engine_args"]
    told = {key: prefill[key] for key in ("num_gpu_blocks", "max_num_batched_tokens", "kv_transfer_bandwidth")}
    assert told == {"num_gpu_blocks": 100, "max_num_batched_tokens": 512, "kv_transfer_bandwidth": 25.0}
    routed = AISimulate("python").job(
        Case("kv", 100, replicas=3, router="dynamo-kv"), Path("trace.jsonl"), BLOCK, each=True
    )
    assert routed["options"] == {"router_mode": "kv_router", "num_workers": 3}


def test_a_page_is_filled_between_its_marks():
    page = "by hand\n<!-- times -->\nold\n<!-- /times -->\nby hand too\n"
    assert bench_peers.filled(page, "times", ["a", "b"]) == page.replace("old\n", "a\nb\n")


def test_one_request_that_differs_from_vidurs_is_counted(monkeypatch):
    monkeypatch.setattr(peer_work, "REQUESTS", 20)
    ours = peer_work.simulate()
    said = {"first_s": [1e-3 * ms for ms in ours["first"]], "last_s": [1e-3 * ms for ms in ours["last"]]}
    assert peer_work.compared(ours, said)["equal"] == 20
    said["last_s"][3] += 2e-6
    assert peer_work.compared(ours, said)["equal"] == 19
