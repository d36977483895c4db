"""Random cases against the per-block reference (the long form: `python -m tests.fuzz --ops 1000000`), and planted
faults.

python -m pytest tests/test_fuzz.py
"""

import pytest

from tests import fuzz


def report(case: fuzz.Case | None) -> str:
    """The shrunk case and what differs in it, when there is one."""
    if case is None:
        return ""
    small = fuzz.shrink(case, fuzz.differs)
    return f"{fuzz.first_difference(small)}\n{fuzz.json.dumps(small)}"


def test_simulator_equals_the_reference():
    done, cases, failing = fuzz.fuzz(50_000, seed=0)
    assert failing is None, report(failing)
    assert done >= 50_000
    assert cases > 100


def test_lfu_equals_the_reference():
    done, cases, failing = fuzz.fuzz(20_000, seed=0, policies=("lfu",))
    assert failing is None, report(failing)
    assert done >= 20_000
    assert cases > 50


def test_fleets_and_closed_loops_fast_forward_as_they_step():
    for index in range(300):
        case = fuzz.random_case(7, index, policies=("lru", "lfu"))
        assert fuzz.fleet_difference(case, seed=index) == "", fuzz.json.dumps(case)


RARE = {351: "a victim gives back a chunk of this very step", 840: "an idle block goes, and a pinned copy is hit"}
"""Random case of seed 0 -> what only it and few others of thousands show."""


@pytest.mark.parametrize("index", RARE, ids=RARE.get)
def test_what_random_cases_rarely_reach(index):
    assert fuzz.first_difference(fuzz.random_case(0, index)) == ""


def test_random_cases_reach_the_corners():
    """A random test proves nothing about what it never does."""
    seen = set()
    for index in range(300):
        case = fuzz.random_case(0, index)
        engine = fuzz.run_reference(case)
        segments = [(r, s) for r in case["requests"] for s in r["segments"]]
        finish = {r.id: r.finish_s for r in engine.requests}
        admit = {r.id: r.admit_s for r in engine.requests}
        seen |= {
            name
            for name, happened in {
                "hit": any(r.cached and r.cached[0] for r in engine.requests),
                "evicted": engine.pool.evicted,
                "preempted": any(s.preempted for s in engine.steps),
                "several preempted in a step": any(len(s.preempted) > 1 for s in engine.steps),
                "priority preemption": engine.by_priority and any(s.preempted for s in engine.steps),
                "hit after a preemption": any(sum(r.cached[1:]) for r in engine.requests),
                "refused": any(r.rejected for r in engine.requests),
                "output asked for before it exists": any(
                    s[0] == "o" and admit[r["id"]] < finish.get(s[1], 0) for r, s in segments
                ),
                "timed": case["timed"],
                "caching off": not engine.caching,
                "no reservation": not engine.reserve_full,
                "watermark": engine.watermark,
                "threshold": engine.threshold,
                "lora limit": engine.max_loras,
                "salt": any("cache_salt" in r for r in case["requests"]),
                "lora": any("lora" in r for r in case["requests"]),
                "block of one token": engine.block_size == 1,
                "prompt of whole blocks": any(r.prompt % engine.block_size == 0 for r in engine.requests),
                "asynchronous": engine.asynchronous and any(s.preempted for s in engine.steps),
                "finished after a preemption": any(
                    r.finish_s >= 0 and r.preempted_at > r.finish_start >= 0 for r in engine.requests
                ),
                "least computed preempted": engine.least_computed and any(s.preempted for s in engine.steps),
                "fair share": engine.fair_share and engine.threshold,
                "fewer run than have places": engine.max_active < engine.max_num_seqs,
                "prompts deferred": engine.interval > 1,
                "two copies of a hash": any(len(copies) > 1 for copies in engine.pool.cached.values()),
            }.items()
            if happened
        }
    assert len(seen) == 25, seen


@pytest.mark.parametrize("fault", fuzz.FAULTS)
def test_planted_faults_are_noticed(fault):
    assert fuzz.cases_until_noticed(fault) is not None


def test_shrinking_keeps_the_failure_and_drops_the_rest():
    def fails(case: fuzz.Case) -> bool:
        return any(s[2] >= 7 for r in case["requests"] for s in r["segments"])

    case = next(c for c in (fuzz.random_case(3, i) for i in range(100)) if fails(c))
    small = fuzz.shrink(case, fails)
    assert [r["segments"][0][2] for r in small["requests"]] == [7]
    assert len(small["requests"][0]["segments"]) == 1
    assert small["requests"][0]["max_tokens"] == 1
