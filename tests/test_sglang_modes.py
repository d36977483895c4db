"""SGLang's overlap schedule and mixed chunk by hand (docs/sglang.md): what a plan does not know yet, who rides along.

The recorded cases of both, and random ones against a second implementation, are in test_sglang.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcast.validation import engine_cases
from sim.scenario import EngineParams
from sim.sglang.radix import RadixCache
from sim.sglang.waiting import DECODE, Waiting
from sim.simulate import run as simulate
from tests import fuzz
from tests.test_sglang import case_of, hits, play, request
from tests.worlds import UnitSteps, plain
from workloads.errors import InputError
from workloads.readers.engine_case import to_workload

OVERLAP, MIXED = {"overlap": True}, {"mixed_chunk": True}


def scheduled(rows: list[tuple]) -> list[tuple]:
    """(start, P or D, [(request, tokens)]) of each step."""
    return [tuple(row[:3]) for row in rows]


# ---- overlap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "found"), [({}, [0, 40, 40]), (OVERLAP, [0, 0, 40])])
def test_a_prompt_can_be_hit_once_the_result_of_its_prefill_is_read(config, found):
    same = [request(step, (1, 40), (2 + step, 5)) for step in range(3)]
    assert hits(*same, **config) == found


def test_memory_of_who_has_finished_comes_back_a_step_later():
    """One at a time fits. Both need three steps; the second waits for the first one's last, and with overlap for the
    pass after it, in which nothing can run."""
    two = [request(0, (1, 50), out=3), request(0, (2, 50), out=3)]
    plain_loop = [(0, "P", [(0, 50)]), (1, "D", [(0, 1)]), (2, "D", [(0, 1)]), (3, "P", [(1, 50)])]
    for config in ({}, OVERLAP):
        _, rows = play(*two, capacity_tokens=60, **config)
        assert scheduled(rows)[:4] == plain_loop


def test_a_third_request_learns_a_step_later_that_there_is_room():
    """Two at a time; the short one ends in step 1. The plain loop admits the third in step 2; with overlap step 2 is a
    decode, of the long one alone, and the third comes in step 3."""
    three = [request(0, (1, 20), out=2), request(0, (2, 20), out=9), request(0, (3, 20), out=2)]
    assert scheduled(play(*three, max_running=2)[1])[1:4] == [
        (1, "D", [(0, 1), (1, 1)]),
        (2, "P", [(2, 20)]),
        (3, "D", [(1, 1), (2, 1)]),
    ]
    rec, rows = play(*three, max_running=2, **OVERLAP)
    assert scheduled(rows)[1:4] == [(1, "D", [(0, 1), (1, 1)]), (2, "D", [(1, 1)]), (3, "P", [(2, 20)])]
    assert rec.finish_s.tolist()[0] == 2  # its client has the last token at the end of step 1 all the same


def test_one_output_is_no_decode():
    rec, rows = play(request(0, (1, 20)), request(1, (2, 20), out=2), **OVERLAP)
    assert scheduled(rows) == [(0, "P", [(0, 20)]), (1, "P", [(1, 20)]), (2, "D", [(1, 1)])]
    assert rec.first_token_s.tolist() == [1, 2]
    assert rec.finish_s.tolist() == [1, 3]


def test_a_retracted_request_loses_the_output_in_flight():
    """41 tokens of memory, almost nothing reserved: both decode until the pool is full; the later one goes, its
    newest output with it, and is computed again up to the one before."""
    two = [request(0, (1, 15), out=9), request(1, (2, 15), out=9)]
    lost = {}
    for overlap in (False, True):
        rec, rows = play(*two, capacity_tokens=41, conservativeness=0.0, overlap=overlap)
        (step,) = [row[0] for row in rows if row[3]]
        decodes = sum((1, 1) in row[2] for row in rows if row[0] < step)
        again = next(n for row in rows if row[0] > step for r, n in row[2] if r == 1)
        outputs = 1 + decodes  # of its prefill and each decode before it was retracted
        known = 15 + outputs - overlap
        lost[overlap] = again - (known - rec.readmission_hit_tokens[1])
        assert rec.preemptions.tolist() == [0, 1]
    assert lost == {False: 0, True: 0}


def test_an_arrival_waits_for_the_step_in_progress_and_the_one_decided_already():
    """At 1.5 step [1, 2) is in progress and [2, 3) is decided: prefilled from 3 to 4, by the plain loop from 2."""
    workload = plain([0.0, 1.5], [10, 10], [8, 2])
    params = EngineParams(kv_blocks=100, block_size=4, semantics="sglang")
    for overlap, first_token_s in ((True, 4), (False, 3)):
        rec = simulate(workload, replace(params, overlap_schedule=overlap), UnitSteps())
        assert rec.first_token_s.tolist() == [1, first_token_s]
        assert rec.finish_s.tolist() == [9, first_token_s + 1]


# ---- mixed chunk ----------------------------------------------------------------------------------------------------


def test_decodes_ride_along_in_a_prefill():
    """Newest first in the batch, and one token each of the budget."""
    requests = [request(0, (1, 10), out=6), request(1, (2, 10), out=4), request(2, (3, 30), out=1)]
    rec, rows = play(*requests, chunked_prefill_size=16, **MIXED)
    assert scheduled(rows) == [
        (0, "P", [(0, 10)]),
        (1, "P", [(1, 10), (0, 1)]),
        (2, "P", [(2, 14), (1, 1), (0, 1)]),
        (3, "P", [(2, 14), (1, 1), (0, 1)]),
        (4, "P", [(2, 2), (1, 1), (0, 1)]),
        (5, "D", [(0, 1)]),
    ]
    assert rec.finish_s.tolist() == [6, 5, 5]
    assert rec.steps[0].n_decode.tolist() == [0, 1, 2, 2, 2, 1]


def test_without_chunks_there_is_nothing_to_mix():
    requests = [request(0, (1, 10), out=6), request(1, (2, 10), out=4)]
    whole = {"chunked_prefill_size": 0}
    assert play(*requests, **whole, **MIXED)[1] == play(*requests, **whole)[1]


def test_decodes_that_take_the_whole_budget_keep_the_queue_out():
    requests = [*[request(0, (1 + i, 2), out=5) for i in range(4)], request(1, (9, 2), out=1)]
    _, rows = play(*requests, chunked_prefill_size=4, **MIXED)
    first_of_last = next(row for row in rows if 4 in dict(row[2]))
    assert all(len(row[2]) < 5 for row in rows if row[0] < first_of_last[0])
    assert ("D", 4) in [(row[1], len(row[2])) for row in rows]


def test_decodes_sit_out_a_mixed_step_when_the_prefill_took_their_pages():
    prompts, outputs = [1, 6, 1, 16, 2, 8], [16, 14, 14, 16, 15, 1]
    requests = [
        request(int(i == 4), (1, prompt), out=out, priority=priority)
        for i, (prompt, out, priority) in enumerate(zip(prompts, outputs, [0, 0, 0, 1, 2, 0], strict=True))
    ]
    config = {"page_size": 15, "capacity_tokens": 120, "conservativeness": 0.05, "clip_max_new_tokens": 8}
    case = case_of(*requests, **config, **MIXED, priority_scheduling=True)
    assert fuzz.run_reference(case).sat_out == 1
    assert fuzz.first_difference(case) == ""
    _, rows = play(*requests, **config, **MIXED, priority_scheduling=True)
    assert scheduled(rows)[-2:] == [(15, "P", [(5, 8)]), (16, "D", [(2, 1), (4, 1), (3, 1), (0, 1)])]


def test_a_chunk_that_must_go_on_and_finds_no_memory_is_the_end_of_sglang():
    requests = [request(0, (1, 1), out=5), request(0, (2, 1), out=5), request(0, (3, 15))]
    config = {"capacity_tokens": 22, "chunked_prefill_size": 6, "conservativeness": 0.0}
    assert fuzz.run_reference(case_of(*requests, **config, **MIXED)).out_of_memory
    with pytest.raises(InputError, match=r"mixed_chunk = true: .*Prefill out of memory.* expected false"):
        play(*requests, **config, **MIXED)
    assert len(play(*requests, **config)[1])  # the plain loop lets its decodes wait


# ---- both -----------------------------------------------------------------------------------------------------------


def test_who_ends_does_not_ride_along():
    requests = [request(0, (1, 10), out=2), request(0, (2, 10), out=9), request(2, (3, 10), out=1)]
    _, rows = play(*requests, **OVERLAP, **MIXED)
    assert scheduled(rows)[:3] == [
        (0, "P", [(0, 10), (1, 10)]),
        (1, "D", [(0, 1), (1, 1)]),
        (2, "P", [(2, 10), (1, 1)]),
    ]


def test_every_recorded_case_of_the_modes_with_fast_forward(data_dir):
    """What a stretch must not step over shows in the request that it holds up."""
    folder = data_dir / "engine_modes"
    cases = [engine_cases.read_case(path) for path in sorted(folder.glob("*.json"))]
    cases = [case for case in cases if case["engine"] == "sglang"]
    assert len(cases) >= 44
    for case in cases:
        workload, params = to_workload(case)
        rec = simulate(workload, EngineParams(**params), engine_cases.UnitStep())
        want = {r["id"]: (r["retractions"], r["finish_step"] + 1) for r in case["expected"]["requests"]}
        got = np.stack([rec.preemptions, rec.finish_s], axis=1).tolist()
        assert [tuple(row) for row in got] == [want[i] for i in sorted(want)], case["case"]


# ---- looking for new requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "joins"), [(1, 3), (4, 5), (10, 11)])
def test_new_requests_are_looked_for_every_so_many_decodes(interval, joins):
    """The first is taken at once by an idle engine; after its prefill (1,000) everybody looks, then every so many
    decodes. The second comes in step 2."""
    rows = scheduled(play(request(0, (1, 20), out=40), request(2.5, (2, 20), out=2), recv_interval=interval)[1])
    assert next(start for start, kind, pairs in rows if pairs[0][0] == 1 and kind == "P") == joins
    assert rows[1][1] == "D"


def test_a_prefill_looks_and_an_idle_engine_looks_at_once():
    """The second comes while the first is computed and is in the next step; the third finds an idle engine."""
    three = [request(0, (1, 20), out=3), request(0.5, (2, 20), out=3), request(50.5, (3, 20), out=1)]
    rows = scheduled(play(*three, recv_interval=1000)[1])
    assert [(start, pairs[0][0]) for start, kind, pairs in rows if kind == "P"] == [(0, 0), (1, 1), (50.5, 2)]


def test_who_comes_unread_is_load_and_can_leave():
    waiting = Waiting(RadixCache(9, "lru", 0, {}, True), 1, "fcfs", False, False, lambda i: i, None, 3)
    for request_id in (4, 5):
        waiting.come(request_id)
    waiting.look(DECODE)
    assert (len(waiting), waiting.ids(), list(waiting.queue)) == (2, [4, 5], [])
    assert waiting.decodes_until_look() == 2
    assert (waiting.cancel(4), waiting.ids()) == (4, [5])
    waiting.look(DECODE)
    assert list(waiting.queue) == []
    waiting.look(DECODE)
    assert list(waiting.queue) == [5]
