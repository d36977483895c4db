"""TensorRT-LLM's semantics (sim.trtllm): exact tiny worlds by hand, and what must hold in random ones. None of it was
checked against the engine itself."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.memory import capacity
from kvcast import api
from kvcast.config import apply_overrides, load_scenario, scenario_from_doc
from kvcast.planner import plan
from kvcast.planner.command import launch_of
from kvcast.planner.launch import read_command
from sim.recording import COMPLETED, TOO_LONG
from sim.scenario import EngineParams, Scenario
from sim.simulate import run
from sim.trtllm.scheduler import TrtllmScheduler
from tests.fuzz import unequal
from tests.plan_cases import ALONE, scenario
from tests.test_engine import textbook
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload
from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError

UTILIZATION = {"capacity_policy": "max-utilization"}


def params(kv_blocks: int, **keys: object) -> EngineParams:
    """Blocks of four tokens, every result known at once."""
    given = {"block_size": 4, "overlap_scheduler": False, "max_num_seqs": 8} | keys
    return EngineParams(kv_blocks=kv_blocks, semantics="trtllm", **given)  # type: ignore[arg-type]


def shared(*prompts: tuple[int, int], output: int = 8, arrival_s: float = 0.0) -> Workload:
    """Prompts of (tokens, of them the same start)."""
    together = min(same for _, same in prompts)
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, together], np.int64), np.zeros(2, np.int16))
    tokens = np.array([n for n, _ in prompts], np.int64)
    n = len(prompts)
    return Workload(tree, np.full(n, arrival_s), tokens, np.full(n, output, np.int64), np.ones(n, np.int32))


# -- capacity ----------------------------------------------------------------------------------------------------------

FOUR = plain([0, 0, 0, 0], [4, 4, 4, 3], [8, 12, 8, 1])
"""Of three, four, three blocks and one, with their last token."""


def test_the_guarantee_admits_whom_it_can_serve_to_the_last_token() -> None:
    """Eight blocks: the first two take seven, the third waits for the first, and the fourth behind the third."""
    rec = run(FOUR, params(8), UnitSteps())
    assert rec.admit_s.tolist() == [0, 0, 8, 8]
    assert rec.finish_s.tolist() == [8, 12, 16, 9]
    assert rec.preemptions.sum() == 0


def test_with_overlap_what_is_freed_is_there_a_step_later() -> None:
    """The step from 8 to 9 is decided before anybody knows that the first one has finished."""
    rec = run(FOUR, params(8, overlap_scheduler=True), UnitSteps())
    assert rec.admit_s.tolist() == [0, 0, 9, 9]
    assert rec.finish_s.tolist() == [8, 12, 17, 10]


def test_an_engine_that_would_idle_looks_at_its_results_first() -> None:
    rec = run(plain([0, 0], [4, 4], [8, 8]), params(5, overlap_scheduler=True), UnitSteps())
    assert rec.admit_s.tolist() == [0, 8]


def test_the_guarantee_is_for_the_tokens_asked_for() -> None:
    """Each makes two tokens and may make eight: the second waits as if it would."""
    work = plain([0, 0], [4, 4], [2, 2], max_tokens=np.array([8, 8]))
    assert run(work, params(5), UnitSteps()).admit_s.tolist() == [0, 2]
    assert run(work, params(6), UnitSteps()).admit_s.tolist() == [0, 0]


def test_maximum_utilization_pauses_the_last_one_and_takes_it_up_again() -> None:
    """Five blocks for two that come to need six. At 5 s each holds two and the first wants a third. The second is
    paused with five of its tokens, waits for the first, and finds its eight computed tokens again."""
    rec = run(plain([0, 0], [4, 4], [8, 8]), params(5, **UTILIZATION), UnitSteps())
    assert rec.preemptions.tolist() == [0, 1]
    assert rec.finish_s.tolist() == [8, 11]
    assert rec.readmission_hit_tokens.tolist() == [0, 8]
    assert rec.recomputed_tokens.tolist() == [0, 0]
    assert rec.preempted_s.tolist() == [0, 3]
    assert (rec.gaps_from_step.tolist(), rec.gaps_to_step.tolist()) == ([4], [8])


def test_it_is_the_last_one_that_makes_room_for_those_before_it() -> None:
    """Three with two blocks each want a third, and one is free: the first takes it, the third goes for the second."""
    rec = run(plain([0, 0, 0], [4, 4, 4], [8, 8, 8]), params(7, **UTILIZATION), UnitSteps())
    assert rec.preemptions.tolist() == [0, 0, 1]
    assert rec.finish_s.tolist() == [8, 8, 11]


def test_a_long_prompt_is_not_made_room_for_by_those_before_it() -> None:
    """Two that decode have four blocks of eight and take two more when a prompt of three comes: it waits, and nobody
    is paused for it."""
    rec = run(plain([0, 0, 1], [8, 8, 12], [6, 6, 1]), params(8, **UTILIZATION), UnitSteps())
    assert rec.admit_s.tolist() == [0, 0, 6]
    assert rec.preemptions.sum() == 0


# -- tokens of a step --------------------------------------------------------------------------------------------------


def test_prompts_are_whole_unless_told_otherwise() -> None:
    """Ten tokens a step: 6, then 6 beside a decode. A prompt of twelve is refused."""
    rec = run(plain([0, 0, 0], [6, 6, 12], [3, 3, 3]), params(50, max_num_batched_tokens=10), UnitSteps())
    assert rec.admit_s[:2].tolist() == [0, 1]
    assert rec.status[2] == TOO_LONG


def test_chunks_end_with_a_block() -> None:
    """Six tokens and a chunk of four beside them; the last two with the first one's decode; twelve as 8 and 4."""
    log: list[tuple] = []
    keys = {"chunked_context": True, "max_num_batched_tokens": 10}
    run(plain([0, 0, 1], [6, 6, 12], [2, 1, 1]), params(50, **keys), UnitSteps(), step_log=log)
    assert [row[2] for row in log] == [[(0, 6), (1, 4)], [(0, 1), (1, 2), (2, 4)], [(2, 8)]]
    log.clear()
    run(plain([0, 0], [4, 30], [9, 1]), params(50, **keys), UnitSteps(), step_log=log)
    assert [dict(row[2])[1] for row in log[:5]] == [4, 8, 8, 8, 2]


def test_prompts_wait_beside_decodes_for_more_of_them() -> None:
    """Three steps, or until twenty tokens of forty are there: with the third prompt they are."""
    keys = {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5, "max_num_batched_tokens": 40}
    few = run(plain([0, 1], [4, 4], [9, 1]), params(50, **keys), UnitSteps())
    more = run(plain([0, 1, 2], [4, 4, 15], [9, 1, 1]), params(50, **keys), UnitSteps())
    alone = run(plain([0, 1], [4, 4], [9, 1]), params(50, **(keys | {"batch_wait_timeout_iters": 0})), UnitSteps())
    assert few.admit_s.tolist() == [0, 4]
    assert alone.admit_s.tolist() == [0, 1]
    assert more.admit_s.tolist() == [0, 2, 2]


# -- reuse -------------------------------------------------------------------------------------------------------------


def test_a_prompt_waits_for_the_blocks_that_another_one_computes() -> None:
    """The same eight tokens twice: the second comes after the first has stored them, and hits all but the last block.
    Another prompt goes before it."""
    work = shared((8, 8), (8, 8))
    rec = run(work, params(50), UnitSteps())
    assert (rec.admit_s.tolist(), rec.hit_tokens.tolist()) == ([0, 1], [0, 4])


def test_with_overlap_it_waits_for_the_computation_and_not_for_the_storing() -> None:
    """When the second step is decided the first prompt is computed, and not stored yet."""
    rec = run(shared((8, 8), (8, 8)), params(50, overlap_scheduler=True), UnitSteps())
    assert (rec.admit_s.tolist(), rec.hit_tokens.tolist()) == ([0, 1], [0, 0])


@pytest.mark.parametrize(("block", "new"), [(1, [7000, 3000, 150]), (16, [7000, 3000, 158]), (32, [7000, 3016, 174])])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_textbook_example(block: int, new: list[int], at_once: bool) -> None:
    """Three prompts one after another; all at once it is the same, since each waits for what the first computes."""
    work = textbook()
    work = work if not at_once else Workload(work.tree, np.zeros(3), *_rest(work))
    keys = {"block_size": block, "max_num_batched_tokens": 16384}
    rec = run(work, params(100_000 // block, **keys), UnitSteps())
    assert (work.prompt_tokens - rec.hit_tokens).tolist() == new


def _rest(work: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return work.prompt_tokens, work.output_tokens, work.leaf


def test_outputs_are_stored_when_a_request_ends() -> None:
    """A second turn hits what the first computed: 8 + 7 of its 8 outputs, so three blocks of four."""
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 16], np.int64), np.zeros(2, np.int16))
    work = Workload(tree, np.array([0.0, 20]), np.array([8, 20]), np.array([8, 1]), np.array([1, 1], np.int32))
    assert run(work, params(50), UnitSteps()).hit_tokens.tolist() == [0, 12]
    early = Workload(tree, np.array([0.0, 6]), *_rest(work))
    assert run(early, params(50), UnitSteps()).hit_tokens.tolist() == [0, 8]


# -- random worlds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed-no-evict", "max-utilization"])
def test_random_worlds(policy: str, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stepping or not the same; after every step the counts agree; without preemption every token is computed once;
    the guarantee never preempts."""
    complete, steps = TrtllmScheduler.complete, 0

    def checked(scheduler: TrtllmScheduler) -> list[int]:
        nonlocal steps
        done, steps = complete(scheduler), steps + 1
        scheduler.check()
        scheduler.cache.check()  # type: ignore[attr-defined]
        return done

    monkeypatch.setattr(TrtllmScheduler, "complete", checked)
    paused = hits = served = 0
    for seed in range(24):
        work = random_workload(seed, closed=seed % 2 == 1, rate=(20.0, 200.0)[seed // 2 % 2])
        cut = seed % 3 == 0
        keys = {"capacity_policy": policy, "overlap_scheduler": overlap, "chunked_context": cut}
        keys |= {"max_num_batched_tokens": 40 if cut else 140, "policy": "lfu" if seed % 4 == 3 else "lru"}
        keys |= {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5} if seed % 5 == 0 else {}
        engine, given = params(40, **keys), {"replicas": 1 + seed % 2, "seed": seed}
        log: list[tuple] = []
        one = run(work, engine, LinearSteps(), step_log=log, **given)
        assert next(unequal(one, run(work, engine, LinearSteps(), **given)), "") == ""
        paused, hits = paused + int(one.preemptions.sum()), hits + int(one.hit_tokens.sum())
        done = one.status == COMPLETED
        served += int(done.sum())
        needed = (work.prompt_tokens - one.hit_tokens + work.output_tokens - 1)[done].sum()
        again = one.preemptions[done].sum()
        computed = sum(tokens for row in log for _, tokens in row[2])
        assert computed == needed if not again else computed >= needed
    assert steps > 2000
    assert served > 800
    assert hits > 1000
    assert (paused > 20) == (policy == "max-utilization")


def test_without_a_cache_nothing_is_hit_and_nobody_waits_for_it() -> None:
    rec = run(shared((8, 8), (8, 8)), params(50, caching=False), UnitSteps())
    assert (rec.admit_s.tolist(), rec.hit_tokens.tolist()) == ([0, 0], [0, 0])


# -- the front door ----------------------------------------------------------------------------------------------------


def demo(**engine: object) -> Scenario:
    keys = {"semantics": "trtllm", "block_size": 32, "chunked_context": True} | engine
    return load_scenario("examples/demo.toml", [f"engine.{key}={str(value).lower()}" for key, value in keys.items()])


def test_a_report_says_that_it_is_unverified_and_its_tokens_add_up() -> None:
    report = api.simulate(demo())
    summary = report.summary
    assert summary["engine_semantics"] == "trtllm-1.x (unverified)"
    assert any("no recorded case of the engine checks them" in note for note in report.notes)
    assert summary["prefix_hit_tokens"] + sum(summary["miss_tokens"].values()) == summary["prompt_tokens"]
    assert summary["prefix_hit_rate"] > 0.2


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"max_num_batched_tokens": 16, "max_num_seqs": 4}, "at least block_size = 32"),
        ({"max_num_batched_tokens": 512, "max_num_seqs": 1024}, "at least max_num_seqs = 1024, a token each"),
        ({"capacity_policy": "max-utilisation"}, "max-utilization"),
    ],
)
def test_what_contradicts_is_refused(keys: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        api.resolve(demo(**keys))


def test_its_keys_are_only_its_own() -> None:
    doc = {"workload": {"preset": "chat"}, "engine": {"capacity_policy": "max-utilization"}}
    with pytest.raises(InputError, match="only semantics = 'trtllm' has it"):
        api.resolve(scenario_from_doc(doc))


def test_defaults_are_those_of_its_server() -> None:
    resolved = api.resolve(demo())
    assert (resolved.scenario.engine.max_num_batched_tokens, resolved.scenario.engine.max_num_seqs) == (8192, 2048)
    assert "TensorRT-LLM's default" in resolved.origins["max_num_seqs"]


def test_a_written_command_reads_back_as_the_same_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command and options file together hold every key of the engine."""
    monkeypatch.chdir(tmp_path)
    keys = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 20_000, "kv_blocks": 3000}
    keys |= {"capacity_policy": "max-utilization", "overlap_scheduler": False, "chunked_context": True}
    keys |= {"batch_wait_timeout_iters": 5, "batch_wait_max_tokens_ratio": 0.25, "block_size": 64}
    doc = {"workload": {"preset": "chat"}, "engine": {"semantics": "trtllm", **keys}}
    launch = launch_of(scenario_from_doc(doc))
    assert launch is not None
    assert launch["vllm"] is launch["sglang"] is None
    note = next(note for note in launch["notes"] if note.startswith("trtllm.json"))
    (tmp_path / "trtllm.json").write_text(note[note.index("{") :])
    read = read_command(shlex.join(launch["trtllm"]))
    again = scenario_from_doc(apply_overrides({"workload": {"preset": "chat"}}, read.sets))
    assert {key: getattr(again.engine, key) for key in keys} == keys
    assert (again.engine.semantics, again.model.name) == ("trtllm", "llama-3.1-8b")
    assert (read.unknown, read.not_modelled) == ([], [])
    assert any("unverified" in note for note in read.notes + launch["notes"])


def test_a_command_of_the_server_is_read_with_its_own_defaults(tmp_path: Path) -> None:
    """YAML as it is written by hand; blocks of 32 tokens where nobody says otherwise."""
    options = tmp_path / "extra.yaml"
    options.write_text(
        "# notes\nkv_cache_config:\n  enable_block_reuse: false  # off\n  enable_partial_reuse: true\n"
        "enable_chunked_prefill: true\nscheduler_config:\n  capacity_scheduler_policy: 'STATIC_BATCH'\nfoo: 1\n"
    )
    command = "trtllm-serve serve Qwen/Qwen3-8B --tp_size 2 --kv_cache_free_gpu_memory_fraction 0.9 --config"
    read = read_command(f"{command} {options}")
    assert read.sets[:2] == ["engine.semantics=trtllm", "engine.block_size=32"]
    assert {"model.name=qwen3-8b", "hardware.tensor_parallel=2", "cache.enabled=false"} < set(read.sets)
    assert {"engine.chunked_context=true", "engine.gpu_memory_utilization=0.9"} < set(read.sets)
    assert read.unknown == ["--foo 1"]
    assert [flag.split()[0] for flag in read.not_modelled] == [
        "--kv-cache-config.enable-partial-reuse",
        "--scheduler-config.capacity-scheduler-policy",
    ]
    missing = read_command("/opt/bin/trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options nowhere.yaml")
    assert "nowhere.yaml: this options file is not here, what it sets is not taken over" in missing.notes


def test_kv_takes_its_share_of_what_weights_and_overhead_leave() -> None:
    """TensorRT-LLM: (memory - peak) x free_gpu_memory_fraction. So it starts with a share that the weights alone
    exceed, and half the share is half the KV."""
    memory = api.resolve(scenario(engine={"semantics": "trtllm", "gpu_memory_utilization": 0.1})).memory
    rest = memory.profile.memory_gib * 2**30 - memory.weights - memory.overhead
    assert memory.weights > 0.1 * memory.profile.memory_gib * 2**30
    assert memory.free == pytest.approx(0.1 * rest)
    assert replace(memory, utilization=0.05).free == pytest.approx(0.05 * rest)
    assert replace(memory, utilization=0.9, of_the_rest=False).free == pytest.approx(
        rest - 0.1 * memory.profile.memory_gib * 2**30
    )
    assert "x 0.1 = " in "\n".join(capacity(memory).lines)
    assert replace(memory, weights_gib=1000.0).free < 0, "weights that do not fit are no smaller lack of room"


def test_a_fleet_and_a_plan_of_it() -> None:
    """Routers, a failure, and a plan that finds a fleet for it and says how it is started."""
    work = random_workload(3, rate=200.0)
    for router in ("session-affinity", "least-loaded", "round-robin"):
        assert (run(work, params(60), LinearSteps(), replicas=3, router=router).status == COMPLETED).sum() > 30
    lost = run(work, params(60), LinearSteps(), replicas=2, processes=[_fails_once])
    assert lost.retries is not None
    assert lost.retries.sum() > 0
    assert (lost.status == COMPLETED).sum() > 30
    made = plan(scenario(engine={"semantics": "trtllm", "block_size": 32, "chunked_context": True}), most=8, **ALONE)
    assert any("trtllm-1.x (unverified): no recorded case" in line for line in made["caution"])
    assert made["answer"]["launch"]["trtllm"][0] == "trtllm-serve"


def _fails_once(fleet: object):
    yield fleet.sleep(0.05)  # type: ignore[attr-defined]
    fleet.replicas[0].fail()  # type: ignore[attr-defined]
