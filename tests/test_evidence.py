"""Which measured servers speak for a run (kvcast.trust.evidence), and the page of truth. No figure is a measurement."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvcast import api, cli, validation
from kvcast.config import scenario_from_doc
from kvcast.present import accuracy_page, summary_text
from kvcast.trust import accuracy, evidence
from kvcast.trust.evidence import Measured, nearest
from kvcast.validation import Outcome
from workloads.errors import InputError

ONE = Measured("silicon", "h200", "llama-3.1-70b", False, "vllm", 30, 0.10, -0.10, 0.04, 0.01)
ROWS = (
    ONE,
    replace(ONE, model="llama-3.1-8b", runs=10, ttft_error=0.30, ttft_bias=0.30),
    replace(ONE, model="qwen3-32b", runs=4),
    replace(ONE, gpu="h100", model="qwen3-32b", runs=7),
    replace(ONE, model="gpt-oss-120b", moe=True, runs=9),
    replace(ONE, engine="sglang", gpu="b200", runs=2),
)


@pytest.mark.parametrize(
    ("asked", "nearness", "runs", "of"),
    [
        (("h200", "llama-3.1-70b", False, "vllm"), "model", 30, "llama-3.1-70b on h200"),
        (("h200", "hf:meta-llama/Llama-3.1-70B-Instruct-FP8", False, "vllm"), "model", 30, "llama-3.1-70b on h200"),
        (("h200", "llama-3.3-70b", False, "vllm"), "family", 40, "llama-3.1-70b on h200"),
        (("h200", "mistral-7b", False, "vllm"), "kind", 44, "llama-3.1-70b on h200"),
        (("b200", "llama-3.1-70b", False, "vllm"), "engine", 51, "llama-3.1-70b on h200"),
        (("h200", "gpt-oss-20b", True, "vllm"), "family", 9, "gpt-oss-120b on h200"),
        (("h200", "mixtral-8x7b", True, "sglang"), "", 0, None),
    ],
)
def test_the_nearest_measured_runs_speak(asked, nearness, runs, of):
    found = nearest(ROWS, *asked)
    assert (found.nearness, found.runs, next(iter(found.of), None)) == (nearness, runs, of)
    assert bool(found.ttft) == bool(nearness)


def test_errors_are_weighted_by_runs_and_said_with_their_side():
    found = nearest(ROWS, "h200", "llama-3.3-70b", False, "vllm")
    assert found.ttft == pytest.approx({"error": (30 * 0.1 + 10 * 0.3) / 40, "bias": (30 * -0.1 + 10 * 0.3) / 40})
    assert "mean TTFT was 15 % off (0 % shorter" in found.words
    assert "over 40 runs of its family on this GPU and engine, none of this model" in found.words
    few = nearest(ROWS, "b200", "llama-3.1-70b", False, "sglang", "roofline")
    assert "over only 2 runs of this model" in few.words
    assert few.words.endswith("they were simulated with the atlas, this run with roofline")
    assert "nothing says how far off" in nearest((), "h200", "llama-3.1-8b", False, "vllm").words


def test_only_runs_of_a_known_protocol_are_kept():
    base = {"gpu": "h200", "model": "llama-3.1-70b", "backend": "vllm", "moe": False, "known": True}
    scored = [
        base | {"ttft_error": -0.1, "tpot_error": 0.2},
        base | {"ttft_error": 0.3, "tpot_error": 0.2},
        base | {"known": False, "ttft_error": 9.0, "tpot_error": 9.0},
    ]
    (row,) = evidence.rows_of(scored, "silicon")
    assert (row.runs, row.ttft_error, row.ttft_bias, row.tpot_error) == (2, 0.2, 0.1, 0.2)
    document = json.loads(evidence.as_file([row]))
    assert Measured(**document["rows"][0]) == row


def test_the_committed_table_is_read():
    assert all(row.runs > 0 and row.ttft_error >= abs(row.ttft_bias) for row in evidence.table())


def test_a_run_says_who_speaks_for_it(monkeypatch):
    monkeypatch.setattr(evidence, "table", lambda: ROWS)
    doc = {
        "hardware": {"gpu": "h200", "tensor_parallel": 2},
        "model": {"name": "llama-3.1-70b", "dtype": "fp8"},
        "workload": {"preset": "chat", "duration_s": 5.0, "rate": 1.0},
    }
    result = api.run(api.prepare(scenario_from_doc(doc)))
    told = api.as_document(result)["measured_servers"]
    assert (told["nearness"], told["runs"], told["sets"], told["own_tables"]) == ("model", 30, ("silicon",), "")
    assert told["words"] in " ".join(summary_text.describe(result).split())


def test_the_statement_of_accuracy_names_them_and_claims_no_less_and_no_more():
    atlas = {"kind": "atlas", "label": "x"}
    own = nearest(ROWS, "h200", "llama-3.1-70b", False, "vllm").as_document()
    other = nearest(ROWS, "h200", "mistral-7b", False, "vllm").as_document()
    without, with_own, with_other = (" ".join(accuracy.statement(atlas, None, one)) for one in (None, own, other))
    claim = "This model was not compared with an engine running on this GPU."
    assert (claim in without, claim in with_own, claim in with_other) == (True, False, True)
    assert "Measured servers: over 30 runs of this model" in with_own


# -- the page of truth


def test_every_set_has_its_lines_and_every_line_its_set():
    told = accuracy_page.tomllib.loads(accuracy_page.SETS.read_text(encoding="utf-8"))
    assert set(told) == {*validation.SETS, *validation.ASKED_FOR}
    assert set(validation.everything()) == set(told) - {"engine"}
    assert all(set(one) == {"truth", "about", "fitted", "seen", "headline"} for one in told.values())


def test_the_page_names_what_passed_what_missed_what_has_no_data_and_what_was_not_run():
    means = {"mean_ttft_s": {"relative_error": -0.0591}, "mean_tpot_s": {"relative_error": 0.01}}
    outcomes = [
        Outcome("engine-cases", True, ["...", "180 cases | no mismatch"]),
        Outcome("vllm-rtx-pro-6000", False, ["TTFT ..."], means),
    ]
    text = accuracy_page.page(outcomes, {"vllm-counters": "no recorded data"}, "x.svg")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert "| passed: 180 cases   no mismatch |" in rows["engine-cases"]
    assert "**missed**: means TTFT -5.9 %, TPOT +1.0 %" in rows["vllm-rtx-pro-6000"]
    assert "**no data**: no recorded data" in rows["vllm-counters"]
    assert "**not run**" in rows["silicon"]
    assert {line.count("|") for line in rows.values()} == {7}
    assert "**1 of 2 sets pass** (not: vllm-rtx-pro-6000)" in text


def test_all_goes_on_without_data_and_says_so(monkeypatch, capsys, tmp_path):
    def run(name, data, **_):
        if name == "fit":
            raise InputError("fit: no folder")
        return Outcome(name, True, ["fine"])

    monkeypatch.setattr(validation, "run", run)
    monkeypatch.setattr(validation, "everything", lambda: ["fit", "atlas"])
    page = tmp_path / "accuracy.md"
    assert cli.main(["validate", "--all", "--data", str(tmp_path), "--write", str(page)]) == 1
    assert "fit: NO DATA\n  fit: no folder" in capsys.readouterr().out
    assert "| `fit` |" in page.read_text()
    assert "**no data**: fit: no folder" in page.read_text()
    assert cli.main(["validate", "fit", "--data", str(tmp_path)]) == 2
    assert cli.main(["validate", "--all", "fit"]) == 2
