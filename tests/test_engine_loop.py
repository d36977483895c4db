"""The real engine: paging, prefix reuse, chunking and preemption change no token; its scheduler is the simulator's,
step by step."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import require_kernel_tools

require_kernel_tools(__name__)

import torch  # noqa: E402

from calibrate.gpu.backend import TorchBackend  # noqa: E402
from calibrate.gpu.decoder import Decoder  # noqa: E402
from calibrate.gpu.devices import CpuCalibration  # noqa: E402
from calibrate.gpu.engine import BusyClock, Engine, build, example_arrivals, main, replay, warm_up  # noqa: E402
from calibrate.gpu.live_bytes import peak_bytes  # noqa: E402
from calibrate.gpu.mixes import example_mixes, record, shape_of, time_mix  # noqa: E402
from calibrate.gpu.paging import BlockPool, chained_hashes  # noqa: E402
from calibrate.gpu.serving import Limits, Request  # noqa: E402
from calibrate.latency import step_time  # noqa: E402
from calibrate.models import resolve_model  # noqa: E402
from calibrate.operators import Point  # noqa: E402
from calibrate.profile import load_profile  # noqa: E402
from kvcast import validation  # noqa: E402
from kvcast.validation.engine import recorded  # noqa: E402
from sim.scenario import EngineParams  # noqa: E402
from sim.simulate import run as simulate  # noqa: E402
from tests.worlds import UnitSteps  # noqa: E402
from workloads.columns import Workload  # noqa: E402
from workloads.errors import InputError  # noqa: E402
from workloads.prefix_tree import from_token_ids  # noqa: E402

ROOT = Path(__file__).parent.parent
MODEL = replace(resolve_model("tiny"), layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=97)
MOE = replace(MODEL, name="moe", experts=4, experts_per_token=2, expert_intermediate=48, moe_layers=2, qk_norm=True)
ROOMY = Limits(kv_blocks=400, block_size=16, max_num_seqs=16, max_num_batched_tokens=4096, caching=False)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def requests(seed=0, count=12):
    """Prompts that share a prefix, of lengths around block borders, all at once."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 97, 70).tolist()
    lengths = [1, 15, 16, 17, 31, 33, 64, 90]
    return [
        (
            shared[: int(rng.integers(0, 3)) * 32] + rng.integers(0, 97, lengths[i % 8]).tolist(),
            int(rng.integers(1, 40)),
        )
        for i in range(count)
    ]


def serve(limits, wanted, dtype=torch.float64, model=MODEL):
    """Tokens and logits of every request under these limits."""
    engine = Engine(
        Decoder(model, TorchBackend(), "cpu", dtype, limits.kv_blocks, limits.block_size, seed=1, max_positions=300),
        limits,
    )
    served = [Request(i, list(prompt), n) for i, (prompt, n) in enumerate(wanted)]
    for r in served:
        engine.scheduler.submit(r)
    logits = [[] for _ in served]
    steps = []
    with torch.inference_mode():
        while engine.scheduler.busy:
            step, sampled, _, rows = engine.step()
            engine.scheduler.pool.check()
            steps.append(step)
            for r, row in zip(sampled, rows, strict=True):
                logits[r.id].append(row)
    return served, logits, steps


CASES = {
    "chunked": replace(ROOMY, max_num_batched_tokens=24),
    "small blocks": replace(ROOMY, block_size=4, kv_blocks=1600),
    "prefix reuse": replace(ROOMY, caching=True),
    "prefix reuse, chunked, one at a time": replace(ROOMY, caching=True, max_num_batched_tokens=40, max_num_seqs=1),
    "preempted": replace(ROOMY, kv_blocks=14, max_num_batched_tokens=64),
    "preempted, prefix reuse": replace(ROOMY, kv_blocks=14, caching=True, max_num_batched_tokens=50),
}


@pytest.mark.parametrize("model", [MODEL, MOE], ids=["dense", "experts"])
def test_paging_reuse_chunking_and_preemption_change_no_token_in_fp64(model):
    wanted = requests()
    alone, _, _ = serve(ROOMY, wanted, model=model)
    seen = {"preempted": 0, "hit": 0}
    for name, limits in CASES.items():
        served, _, steps = serve(limits, wanted, model=model)
        assert [r.output for r in served] == [r.output for r in alone], name
        assert [len(r.output) for r in served] == [n for _, n in wanted]
        seen["preempted"] += sum(len(s.preempted) for s in steps)
        seen["hit"] += sum(r.hit_tokens for r in served)
    assert seen["preempted"] >= 3
    assert seen["hit"] > 100


def test_fp32_logits_agree_and_tokens_where_they_are_not_close():
    wanted = requests(seed=4)
    alone, logits, _ = serve(ROOMY, wanted, torch.float32)
    compared = 0
    for name, limits in CASES.items():
        served, others, _ = serve(limits, wanted, torch.float32)
        for a, b, rows_a, rows_b in zip(alone, served, logits, others, strict=True):
            for x, y, row_a, row_b in zip(a.output, b.output, rows_a, rows_b, strict=True):
                assert float((row_a - row_b).abs().max()) <= 1e-4, name
                top = row_a.topk(2).values
                if x != y:  # from here on the two have different histories
                    assert float(top[0] - top[1]) <= 1e-3, name
                    break
                compared += 1
    assert compared > 500


def test_a_forward_pass_is_the_textbook_transformer():
    """One prompt against attention written out over the whole sequence, without pages or chunks."""
    prompt = np.random.default_rng(3).integers(0, 97, 37).tolist()
    engine = Engine(
        Decoder(MODEL, TorchBackend(), "cpu", torch.float64, 8, 16, seed=1, max_positions=100),
        replace(ROOMY, kv_blocks=8),
    )
    engine.scheduler.submit(Request(0, prompt, 1))
    with torch.inference_mode():
        _, _, _, logits = engine.step()
        assert torch.allclose(logits[0], textbook(engine.decoder, prompt), atol=1e-10)


def textbook(d, prompt):
    m, n = d.model, len(prompt)
    norm = lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()  # noqa: E731  (weights are one)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(0, m.head_dim, 2, dtype=torch.float64) / m.head_dim
    )

    def rotated(x):
        a, b = x[..., : m.head_dim // 2], x[..., m.head_dim // 2 :]
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    x = d.embedding[torch.tensor(prompt)]
    for layer in d.layers:
        qkv = (norm(x) @ layer.qkv.T).view(n, -1, m.head_dim)
        q, k, v = (
            rotated(qkv[:, : m.heads]),
            rotated(qkv[:, m.heads : m.heads + m.kv_heads]),
            qkv[:, m.heads + m.kv_heads :],
        )
        k, v = (t.repeat_interleave(m.heads // m.kv_heads, 1) for t in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / m.head_dim**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        x = x + torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1) @ layer.out.T
        gate, up = (norm(x) @ layer.gate_up.T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ layer.down.T
    return norm(x)[-1] @ d.head.T


@pytest.mark.parametrize(
    "limits",
    [
        CASES["preempted, prefix reuse"],
        replace(CASES["chunked"], caching=True),
        replace(ROOMY, kv_blocks=40, caching=True, max_num_seqs=5, max_num_batched_tokens=100),
    ],
)
def test_the_engine_takes_the_simulators_steps(limits):
    """All requests at once, every step a second: shapes, preemptions and hits of the two must agree one by one."""
    wanted = requests(seed=2, count=16)
    served, _, steps = serve(limits, wanted)
    prompts = [np.array(p, np.int64) for p, _ in wanted]
    tree, leaf = from_token_ids(prompts)
    workload = Workload(
        tree, np.zeros(len(wanted)), np.array([len(p) for p in prompts]), np.array([n for _, n in wanted]), leaf
    )
    params = EngineParams(
        kv_blocks=limits.kv_blocks,
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        caching=True,
        async_scheduling=False,  # as the loop schedules: between steps
    )
    shapes = []

    class Noted(UnitSteps):
        def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
            shapes.append((list(chunks), n_decode, sum_context, max_context, n_sampled))
            return 1.0, 0

    recording = simulate(workload, params, Noted(), fast_forward=False)
    # the engine's shapes are known after the step: its `known` has moved on by the sampled token
    ours = [([(new, first) for _, first, new in s.chunks], len(s.decodes)) for s in steps]
    assert ours == [(chunks, n) for chunks, n, _, _, _ in shapes]
    assert [r.hit_tokens for r in served] == recording.hit_tokens.tolist()
    assert [r.preemptions for r in served] == recording.preemptions.tolist()


def test_a_recording_is_a_workload_and_can_be_compared(tmp_path, capsys):
    folder = tmp_path / "recording"
    arguments = [
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--out",
        str(folder),
        "--requests",
        "10",
        "--rate",
        "30",
        "--system-tokens",
        "64",
        "--own-tokens",
        "5",
        "40",
        "--output-tokens",
        "2",
        "9",
        "--kv-blocks",
        "64",
        "--max-num-batched-tokens",
        "128",
        "--clock",
        "busy",
    ]
    assert main(arguments) == 0
    assert "10 requests" in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert all(len(r["token_s"]) == r["output_toks"] and sorted(r["token_s"]) == r["token_s"] for r in rows)
    assert all(r["token_s"][0] > r["arrival_s"] for r in rows)
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert sum(s["sampled"] for s in steps) == sum(r["output_toks"] for r in rows)
    truth = recorded(folder / "requests.jsonl")
    assert truth["hit_tokens"].max() == 64
    limits = Limits(256, 16, 16, 128)
    assert record(build(resolve_model("tiny"), "cpu", "fp32", limits), example_mixes(5, 4096, 128, 16), folder) == 5
    subprocess.run(
        [
            sys.executable,
            "-m",
            "kvcast",
            "calibrate",
            "--model",
            "tiny",
            "--device",
            "fake",
            "--out",
            str(folder / "profile.json"),
        ],
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "dtype": "bf16"}))  # the fake device's
    outcome = validation.run("engine", None, record=folder)
    assert not outcome.passed, "a fake GPU's profile is not this CPU's"
    assert outcome.figures["iterations"]["count"] == 5
    assert outcome.figures["hit_tokens"]["recorded"] == outcome.figures["hit_tokens"]["simulated"] > 0
    assert outcome.figures["iterations"]["bias"] < -0.5
    assert any("5 mixes compared; expected at least 20" in line for line in outcome.lines)
    own_times_as_measured(folder, 19)
    assert not validation.run("engine", None, record=folder / "mixes").passed, "19 perfect mixes are too few"
    own_times_as_measured(folder, 20)
    enough = validation.run("engine", None, record=folder / "mixes")
    assert enough.passed
    assert "iterations: 20 mixes compared" in enough.lines
    (folder / "iterations.jsonl").unlink()
    assert (
        "iterations: 0 mixes compared; expected at least 20 (python -m calibrate.gpu.mixes --out FOLDER): FAILED"
        in validation.run("engine", None, record=folder).lines
    )
    with pytest.raises(InputError, match="expected --record FOLDER"):
        validation.run("engine", None)


def own_times_as_measured(folder, count):
    """folder/mixes: `count` mixes whose recorded times are those of the profile itself."""
    (folder / "mixes").mkdir(exist_ok=True)
    for name in ("meta.json", "profile.json"):
        (folder / "mixes" / name).write_text((folder / name).read_text())
    steps = step_time(load_profile(folder / "profile.json"), resolve_model("tiny"), "bf16")
    shapes = [shape_of(m) for m in example_mixes(count, 4096, 128, 16)]
    rows = [
        {
            **s,
            "seconds": [
                steps.step(
                    [tuple(c) for c in s["chunks"]], s["n_decode"], s["sum_context"], s["max_context"], s["sampled"]
                )[0]
            ],
        }
        for s in shapes
    ]
    (folder / "mixes" / "iterations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_replay_waits_for_arrivals_and_skips_idle_time_on_the_busy_clock():
    engine = Engine(
        Decoder(MODEL, TorchBackend(), "cpu", torch.float32, 32, 16, max_positions=100), replace(ROOMY, kv_blocks=32)
    )
    clock = BusyClock()
    with torch.inference_mode():
        out = replay(
            engine, [{"arrival_s": t, "prompt": [1, 2, 3], "max_tokens": 2} for t in (0.0, 500.0)], clock, clock.sleep
        )
    assert [r["token_s"][0] - r["arrival_s"] < 1.0 for r in out["requests"]] == [True, True]
    assert out["steps"][-1]["end_s"] >= 500.0


def test_example_arrivals_and_mixes_are_seeded():
    assert example_arrivals(5, 2.0, 97, 20, (3, 9), (2, 5), seed=1) == example_arrivals(
        5, 2.0, 97, 20, (3, 9), (2, 5), seed=1
    )
    mixes = example_mixes(25, 8192, 512, 48)
    assert mixes == example_mixes(25, 8192, 512, 48)
    shapes = [shape_of(m) for m in mixes]
    assert sum(1 for s in shapes if s["chunks"] and s["n_decode"]) == 8
    assert all(sum(n for n, _ in s["chunks"]) + s["n_decode"] <= 512 for s in shapes)


def test_mixes_attend_random_keys_and_values_and_compute_random_tokens():
    """Steps of chosen shapes must not run over a cache that nothing ever wrote, nor send every token to the same
    expert."""
    limits = replace(ROOMY, max_num_seqs=8)
    engine = Engine(
        Decoder(MODEL, TorchBackend(), "cpu", torch.float32, limits.kv_blocks, 16, max_positions=2000), limits
    )
    seen, forward = [], engine.decoder.forward

    def noted(batch):
        for table, tokens in zip(
            batch.tables,
            [n + c for n, c in zip(batch.new, batch.cached, strict=True)] + list(batch.contexts),
            strict=True,
        ):
            for cache in (*engine.decoder.k_cache, *engine.decoder.v_cache):
                attended = cache[table.long()].flatten(0, 1)[:tokens]
                assert bool(attended.ne(0).all()), "zeros in the cache"
                assert tokens < 3 or 0.8 < float(attended.std()) < 1.2
        seen.append(batch.ids.tolist())
        return forward(batch)

    engine.forward = noted
    with torch.inference_mode():
        for mix in (
            {"chunks": [[40, 100], [7, 0]], "contexts": [200, 3, 90]},
            {"chunks": [], "contexts": [40, 300, 70, 20]},
        ):
            time_mix(engine, mix, lambda: 0.0, 2)
    assert [len(ids) for ids in seen] == [50, 50, 4, 4]
    assert seen[0] == seen[1]
    assert all(len(set(ids)) > len(ids) / 2 for ids in seen)


def test_the_block_pool_evicts_in_release_order_and_partial_blocks_first():
    pool = BlockPool(4)
    a = pool.take(3)
    hashes = chained_hashes(list(range(32)), 16)
    for block, h in zip(a[:2], hashes, strict=True):
        pool.enter(block, h)
    pool.release(a)  # the third is partial: reused first
    assert pool.take(2) == [a[2], 3]
    assert pool.lookup(hashes) == a[:2]
    assert pool.take(1) == [a[1]], "the deepest block of a chain goes first"
    assert pool.lookup(hashes) == [a[0]]
    pool.check()
    with pytest.raises(ValueError, match="take 2 blocks: 1 are free"):
        pool.take(2)


def test_a_request_larger_than_the_cache_is_refused():
    engine = Engine(Decoder(MODEL, TorchBackend(), "cpu", torch.float32, 4, 16), replace(ROOMY, kv_blocks=4))
    with pytest.raises(ValueError, match="need 7 blocks; the cache has 4"):
        engine.scheduler.submit(Request(0, [1] * 100, 8))


def test_peak_bytes_counts_what_is_alive_at_once():
    x = torch.ones(1000)

    def chain():
        y = x
        for _ in range(10):
            y = y + 1
        return y

    assert peak_bytes(chain) == 2 * 4000, "the input is not counted; two results live side by side"


def test_the_triton_backend_computes_what_the_torch_backend_does():
    """In the interpreter, in a process of its own: interpreting or compiling is decided at import."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.triton_backend_check"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same tokens") == 4
    assert "13 operators of calibration ran" in done.stdout
    assert "host time of 10 decode steps holds plan and load" in done.stdout


def test_the_hosts_time_of_a_step_is_that_of_the_engines_own_code_path():
    """Whatever planning a decode takes is in it: 3 ms are planted."""
    device = CpuCalibration(MODEL, "fp32", sweep=False)
    plain = device.backend.decode_work

    def slow(*args, **options):
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        return plain(*args, **options)

    device.backend.decode_work = slow
    assert min(device.measure(Point("host", {"seqs": 5}))) >= 3000


def test_warming_up_leaves_an_empty_cache_and_takes_any_token():
    engine = Engine(
        Decoder(MODEL, TorchBackend(), "cpu", torch.float32, 32, 16, max_positions=100),
        replace(ROOMY, kv_blocks=32, caching=True),
    )
    warm_up(engine, [{"arrival_s": 3.0, "prompt": [96, 0, 96] * 11, "max_tokens": 5}])
    assert engine.scheduler.pool.free == 32
    assert engine.scheduler.pool.lookup(chained_hashes([96, 0, 96] * 11, 16)) == []
