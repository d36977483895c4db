"""kvcast explain --life: a request step by step, held to the textbook's numbers and to what every life adds up to."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from kvcast import api
from kvcast.cli import main
from kvcast.config import load_scenario
from kvcast.present import life_text
from kvcast.studies import one_life
from sim.recording import COMPLETED
from workloads.columns import Workload
from workloads.prefix_tree import from_pieces

TIGHT = ("run.duration_s=12", "run.warmup_s=0", "engine.kv_blocks=1500", "workload.rate_scale=4.0")


@pytest.mark.parametrize(
    ("block", "new", "cached"),
    [
        (1, [7000, 3000, 150], "7,000 tokens come from the cache, 7,000 whole blocks of 1: 150 are left to compute."),
        (
            16,
            [7000, 3000, 158],
            "Its first 7,000 tokens are also those of request 0 (A). 6,992 tokens come from the cache, 437 whole blocks"
            " of 16: 158 are left to compute. The 8 beyond the last whole block are computed again.",
        ),
        (128, [7000, 3080, 238], "54 whole blocks of 128: 238 are left to compute. The 88 beyond the last"),
    ],
)
def test_the_textbook_step_by_step(block, new, cached):
    a, b, c = one_life.of_textbook(api.resolve(load_scenario("examples/demo.toml", [f"engine.block_size={block}"])))
    assert [life["new_tokens"] for life in (a, b, c)] == new
    assert [piece["name"] for piece in c["pieces"]] == ["system", "python", "question"]
    assert [piece["tokens"] for piece in c["pieces"]] == [2000, 5000, 150]
    assert sum(piece["hit_tokens"] for piece in c["pieces"]) == 7150 - new[2]
    steps = {step["what"]: step for step in c["steps"]}
    assert list(steps) == ["queued", "cache", "prefill", "token", "decode", "done"]
    assert steps["prefill"]["tokens"] == new[2]
    assert steps["prefill"]["kv_blocks"] == -(-7150 // block)
    assert steps["decode"]["tokens"] == one_life.ANSWER - 1
    assert cached in life_text.says(c, steps["cache"])
    assert a["before"] is None
    assert (a["again"]["class"], a["again"]["tokens"], a["again"]["seconds"]) == ("C", 7000, pytest.approx(120))
    assert (b["before"]["class"], b["before"]["tokens"]) == ("A", 2000)
    assert b["again"]["tokens"] == 2000
    assert c["again"] is None


def added_up(life):
    """What holds for every life that came to its end."""
    steps, new = life["steps"], life["new_tokens"]
    assert sum(piece["tokens"] for piece in life["pieces"]) == life["prompt_tokens"]
    assert sum(piece["hit_tokens"] for piece in life["pieces"]) == life["hit_tokens"]
    assert sum(life["missed"].values()) == new == life["prompt_tokens"] - life["hit_tokens"]
    assert sum(step["tokens"] for step in steps if step["what"] == "prefill" and not step["again"]) == new
    assert sum(step["tokens"] for step in steps if step["what"] in ("token", "decode")) == life["output_tokens"]
    assert steps[0]["start_s"] == 0
    assert steps[-1]["end_s"] == pytest.approx(life["e2e_s"])
    assert steps[-1]["kept"] == life["prompt_tokens"] + life["output_tokens"] - 1
    for before, step in itertools.pairwise(steps):
        assert step["start_s"] == pytest.approx(before["end_s"], abs=0.2), "no more than steps that skipped it between"
        assert step["start_s"] >= before["start_s"]
        assert step["kv_blocks"] * life["block_size"] >= step["kv_tokens"]
    told = 0
    for step in steps:
        if step["what"] == "prefill" and not step["left"]:
            assert step["kv_tokens"] == life["prompt_tokens"] + told, "the prompt, and the answer so far"
        told += step["tokens"] if step["what"] in ("token", "decode") else 0
        assert life_text.says(life, step).endswith(".")


@pytest.mark.parametrize(
    "more",
    [(), ("engine.semantics=sglang", "engine.kv_blocks=3000"), ("engine.frontend_us_per_prompt_token=2",)],
    ids=["vllm", "sglang", "front-end"],
)
def test_every_life_adds_up(more):
    prepared = api.prepare(load_scenario("examples/demo.toml", [*TIGHT, *more]))
    rec = api.record(prepared, record_life=True)
    done = np.flatnonzero(rec.status == COMPLETED)
    found = one_life.lives(rec, prepared.workload, done)
    for life in found:
        added_up(life)
    assert any(life["hit_tokens"] for life in found)
    assert any(step["what"] == "prefill" and step["left"] for life in found for step in life["steps"]), "chunks"
    if not more:
        out = [life for life in found if any(step["what"] == "preempted" for step in life["steps"])]
        assert len(out) == (rec.preemptions[done] > 0).sum() > 0
        again = [step for life in out for step in life["steps"] if step["what"] == "prefill" and step["again"]]
        assert sum(step["tokens"] for step in again) >= rec.recomputed_tokens[done].sum() > 0
    json.dumps(found)


def test_text_in_common_piece_by_piece():
    pieces = [list(one_life.TEXTBOOK[name]) for name in "ACBAC"]
    pieces += [[("question", 0, 7)], [("system", 0, 2000), ("python", 0, 3), ("question", 0, 150)]]
    tree, leaf = from_pieces(pieces)
    tokens = np.array([sum(n for *_, n in prompt) for prompt in pieces])
    ones = np.ones(len(pieces), int)
    workload = Workload(tree=tree, leaf=leaf, arrival_s=ones * 0.0, output_tokens=ones, prompt_tokens=tokens)
    found = [one_life._in_common(workload, row).tolist() for row in range(len(pieces))]
    assert found == [
        [7000, 7000, 2000, 7000, 7000, 0, 2003],
        [7000, 7150, 2000, 7000, 7150, 0, 2003],
        [2000, 2000, 2000, 2000, 2000, 0, 2000],
        [7000, 7000, 2000, 7000, 7000, 0, 2003],
        [7000, 7150, 2000, 7000, 7150, 0, 2003],
        [0, 0, 0, 0, 0, 0, 0],
        [2003, 2003, 2000, 2003, 2003, 0, 2003],
    ]


def test_the_command(capsys):
    asked = ["explain", "examples/demo.toml", "--set", "run.duration_s=5", "--set", "run.warmup_s=0"]
    assert main([*asked, "--life", "slowest,0", "--json"]) == 0
    slowest, first = json.loads(capsys.readouterr().out)["lives"]
    assert first["request"] == 0
    assert slowest["ttft_s"] >= first["ttft_s"]
    assert main([*asked, "--life", "textbook"]) == 0
    told = capsys.readouterr().out
    assert "request 2 (C): 7,150 prompt tokens, 6,992 from the cache, 158 new (blocks of 16)" in told
    for wrong in ("0,me", "99999999", "-1", ""):
        assert main([*asked, f"--life={wrong}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "expected textbook, slowest, or a request's number from 0 to" in line
