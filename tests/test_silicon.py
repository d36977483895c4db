"""validate silicon: a table in the package's shape becomes rows or reasons, rows become scenarios by rule, and scores
are what the simulation says. No figure here is a measurement: the rows are made up."""

import csv
import json

import pytest

from kvcast import cli
from kvcast.present import accuracy_page
from kvcast.validation import silicon
from kvcast.validation.silicon_rows import NEEDED, find, layout, read
from kvcast.validation.silicon_rules import matches, number, rules
from workloads.errors import InputError

INFERENCEX = "source_file=2026-04-06.csv; silicon_concurrency={}; measured=2025-10-29"
NVIDIA = "source_file=/x/aic-auto-gap-analysis/data/h100_sxm/x.csv; silicon_concurrency={}"
LINE = {
    "id": "a",
    "silicon_data_source": INFERENCEX.format(4),
    "backend": "vllm",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h200_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "256",
    "osl": "32",
    "gemm_quant_mode": "fp8",
    "backend_version": "0.10.2",
    "batch_size": "4",
    "tp_size": "4",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_tp_size": "4",
    "moe_ep_size": "1",
    "silicon_ttft_ms": "50",
    "silicon_tpot_ms": "10",
}


def table(folder, *changes, columns=NEEDED):
    path = folder / "silicon_sample.csv"
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, columns, extrasaction="ignore")
        writer.writeheader()
        for i, change in enumerate(changes):
            writer.writerow({**LINE, "id": f"r{i}", "silicon_ttft_ms": str(50 + i), **change})
    return path


def row(folder, **change):
    (one,), _ = read(table(folder, change), rules().models)
    return rules().told(one)


# -- reading


def test_every_line_is_a_row_or_has_its_reason(tmp_path):
    changes = [
        {},
        {"mode": "disagg"},
        {"model_path": "nobody/Nothing"},
        {"tp_size": "72", "moe_tp_size": "72"},
        {"pp_size": "2"},
        {"silicon_ttft_ms": "50"},  # the first once more
        {"backend": "trtllm"},
    ]
    rows, unread = read(table(tmp_path, *changes), rules().models)
    assert len(rows) + len(unread) == len(changes)
    assert [one.id for one in rows] == ["r0", "r6"]
    assert {one.id: one.why for one in unread} == {
        "r1": "prefill and decode on different replicas",
        "r2": "no model nobody/Nothing here",
        "r3": "more than 8 GPUs",
        "r4": "a pipeline",
        "r5": "the same measurement again",
    }


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ("8 1 8 1", (8, 1, False)),
        ("4 1 1 4", (4, 1, True)),
        ("16 1 4 4", (4, 1, True)),  # one width in another
        ("64 1 8 8", (8, 1, True)),
        ("1 64 8 8", (1, 8, True)),
        ("4 4 1 16", (1, 4, True)),
        ("1 8 1 8", (1, 8, True)),
        ("1  2 1", (1, 2, False)),  # NVIDIA's: dp is what the experts have more
        ("2  1 2", (2, 1, True)),
        ("2  1 0", (2, 1, False)),
    ],
)
def test_layouts(widths, expected):
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    assert layout(dict(zip(names, widths.split(" "), strict=True))) == expected


def test_whose_protocol_and_how_many_places(tmp_path):
    assert row(tmp_path).source == "inferencex"
    assert row(tmp_path, silicon_data_source=NVIDIA.format(16)).concurrency == 16
    fleet = row(tmp_path, silicon_data_source=NVIDIA.format(64) + "; gtl_job_id=1", batch_size="3")
    assert (fleet.source, fleet.concurrency, fleet.known) == ("dynamo", 12, False)  # 3 a GPU on 4
    assert row(tmp_path, silicon_data_source="db-dump", batch_size="7").concurrency == 7


def test_an_export_that_differs_in_the_last_digit_is_the_same_measurement(tmp_path):
    twice = [{"silicon_ttft_ms": "15.821505026388827"}, {"silicon_ttft_ms": "15.821505026388829"}]
    rows, unread = read(table(tmp_path, *twice, {"silicon_ttft_ms": "15.8216"}), rules().models)
    assert ([one.id for one in rows], [one.id for one in unread]) == (["r0", "r2"], ["r1"])


def test_speculative_runs_are_known_by_day_and_image(tmp_path):
    mtp = {"model_path": "deepseek-ai/DeepSeek-R1", "backend": "trtllm", "system": "b200_sxm"}
    for change, known in (
        ({"silicon_data_source": "measured=2026-01-14T22:26:21Z"}, False),
        ({"backend_version": "1.2.0rc6.post3"}, False),
        ({"silicon_data_source": "measured=2026-01-28T06:18:44Z"}, True),
        ({"silicon_data_source": "measured=2026-01-14T22:26:21Z", "backend": "sglang"}, True),
    ):
        assert row(tmp_path, **{**mtp, **change}).known is known


def test_halves_share_the_rows_and_are_the_same_every_time(outcome):
    found, _ = outcome
    for group, both in found.figures["halves"].items():
        assert sum(half["n"] for half in both.values()) == found.figures["groups"][group]["n"]
    scored = {one["id"]: one["held_back"] for one in found.figures["scored"]}
    assert set(scored.values()) == {True, False}


def test_bad_tables_are_one_line(tmp_path):
    with pytest.raises(InputError, match=r"row 2: isl = 'many'"):
        read(table(tmp_path, {"isl": "many"}), rules().models)
    with pytest.raises(InputError, match=r"silicon_tpot_ms = '-1': expected milliseconds above 0"):
        read(table(tmp_path, {"silicon_tpot_ms": "-1"}), rules().models)
    with pytest.raises(InputError, match=r"no column silicon_tpot_ms"):
        read(table(tmp_path, {}, columns=NEEDED[:-1]), rules().models)
    path = table(tmp_path, {})
    whole = path.read_bytes()
    for damaged, words in ((whole[:-9], "row 2: 19 fields expected"), (whole + b"\xff\xfe", "no table of text")):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=words):
            read(path, rules().models)
    with pytest.raises(InputError, match="--sample 0: expected 1 or more"):
        silicon.sampled([1], 0)
    with pytest.raises(InputError, match=r"no silicon_sample\.csv there"):
        find(tmp_path / "nowhere")
    assert find(tmp_path) == tmp_path / "silicon_sample.csv"


# -- rules


def test_inferencex_vllm(tmp_path):
    scenario = rules().scenario(row(tmp_path, isl="1024", osl="8192"))
    assert scenario["workload"] == {
        "loop": "concurrency",
        "concurrency": 4,
        "requests": 40,
        "turnaround_s": 0.002,
        "rate": 1e6,
        "duration_s": 1e6,
        "class": [
            {
                "name": "client",
                "share": 1.0,
                "layers": [{"name": "prompt", "tokens": {"kind": "uniform", "low": 819, "high": 1024}}],
                "output": {"kind": "uniform", "low": 6553, "high": 8192},
            }
        ],
    }
    assert scenario["model"] == {"name": "llama-3.1-70b", "dtype": "fp8", "kv_dtype": "fp8"}
    assert scenario["cache"] == {"enabled": False}
    engine = scenario["engine"]
    assert (engine["max_num_batched_tokens"], engine["max_num_seqs"], engine["async_scheduling"]) == (8192, 4, True)
    assert engine["gpu_memory_utilization"] == 0.9
    blackwell = rules().scenario(row(tmp_path, system="b200_sxm", precision="fp4"))
    assert (blackwell["engine"]["max_num_seqs"], blackwell["model"]["dtype"]) == (512, "nvfp4")


def test_tensorrt_llm_waits_for_a_batch_only_at_1k_below_8_gpus(tmp_path):
    small = {"backend": "trtllm", "isl": "1024", "osl": "1024"}
    engine = rules().scenario(row(tmp_path, **small))["engine"]
    assert (engine["batch_wait_timeout_iters"], engine["batch_wait_max_tokens_ratio"]) == (20, 0.9)
    assert (engine["max_num_batched_tokens"], engine["capacity_policy"]) == (16384, "guaranteed-no-evict")
    for other in ({"tp_size": "8", "moe_tp_size": "8"}, {"osl": "8192"}):
        assert "batch_wait_timeout_iters" not in rules().scenario(row(tmp_path, **{**small, **other}))["engine"]


@pytest.mark.parametrize(
    ("backend", "prompts", "key", "tokens"),
    [
        ("vllm", 10, "max_num_batched_tokens", 8 + 2048 + 1500),
        ("trtllm", 20, "max_num_batched_tokens", 8 + 2048 + 1500),
        ("sglang", 20, "max_prefill_tokens", 2048 + 1500),
    ],
)
def test_nvidias_own_runs(tmp_path, backend, prompts, key, tokens):
    one = row(
        tmp_path,
        silicon_data_source=NVIDIA.format(8),
        backend=backend,
        model_path="Qwen/Qwen3-32B",
        precision="",
        gemm_quant_mode="",
        isl="2048",
    )
    scenario = rules().scenario(one)
    assert scenario["workload"]["requests"] == 8 * prompts
    assert scenario["workload"]["class"][0]["output"] == {"kind": "fixed", "value": 32}
    assert scenario["engine"][key] == tokens
    assert scenario["engine"].get("async_scheduling", False) is False
    assert "dtype" not in scenario["model"], "16 bits"


def test_sums_of_a_rows_own(tmp_path):
    one = row(tmp_path, isl="1000")
    assert number({"isl": 2, "plus": 5}, one) == 2005
    assert number({"isl": 1, "concurrency": 1, "plus": 64, "multiple_of": 64}, one) == 1088
    assert number({"isl": 1, "at_least": 8192}, one) == 8192
    assert number(7, one) == 7
    assert matches({"tp": [1, 4], "moe": False}, one)
    assert not matches({"tp": [1, 4], "gpu": "b200"}, one)


def test_rules_with_a_mistake_are_refused(tmp_path):
    path = tmp_path / "silicon.toml"
    text = '[models]\n[[rule]]\nwhen = {WHEN}\n[[group]]\nname = "g"\nwhen = {}\n[[unknown]]\nwhen = {}\nwhy = ""\n'
    path.write_text(text.replace("WHEN", "color = 1"))
    with pytest.raises(ValueError, match="color"):
        rules(path)


def test_unknown_protocols_stay_in_every_other_group(tmp_path):
    one = row(tmp_path, model_path="meta-llama/Llama-3.1-8B-Instruct", precision="fp8", tp_size="1", moe_tp_size="1")
    assert not one.known
    assert [group.name for group in rules().groups if group.holds(one)] == ["dense"]


# -- scores


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("silicon")
    huge = {"model_path": "deepseek-ai/DeepSeek-R1", "backend": "sglang", "tp_size": "1", "moe_tp_size": "1"}
    path = table(folder, {}, {"isl": "512"}, {"backend": "trtllm"}, huge, {"mode": "disagg"})
    return silicon.run(path), path


def test_scores_are_simulated_over_measured(outcome):
    found, _ = outcome
    scored = {one["id"]: one for one in found.figures["scored"]}
    assert sorted(scored) == ["r0", "r1", "r2"]
    for one in scored.values():
        for metric in ("ttft", "tpot"):
            assert one[f"{metric}_error"] == pytest.approx(one[f"simulated_{metric}_s"] / one[f"{metric}_s"] - 1)
    assert scored["r1"]["simulated_ttft_s"] > scored["r0"]["simulated_ttft_s"] > 0, "twice the prompt"
    group = found.figures["groups"]["Llama-70B on Hopper"]
    errors = [one["ttft_error"] for one in scored.values()]
    assert group["n"] == 3
    assert group["ttft"]["bias"] == pytest.approx(sum(errors) / 3)
    assert group["ttft"]["mean"] == pytest.approx(sum(map(abs, errors)) / 3)
    assert group["ttft"]["median"] == pytest.approx(sorted(map(abs, errors))[1])
    assert scored["r0"]["kv_share"] < 0.01
    assert found.passed == all(
        one[metric]["mean"] <= limit
        for one in found.figures["groups"].values()
        for metric, limit in one["goal"].items()
    )


def test_what_does_not_fit_is_counted(outcome):
    found, _ = outcome
    assert [one["id"] for one in found.figures["refused"]] == ["r3"]
    assert sum(found.figures["not_scored"].values()) == 2
    assert any("does not fit" in why for why in found.figures["not_scored"])
    assert found.lines[0] == "3 rows scored, 2 not:"


def test_a_sample_is_the_same_every_time():
    assert silicon.sampled(range(50), 5) == silicon.sampled(range(50), 5) != list(range(5))
    assert silicon.sampled([3, 1], 7) == [3, 1]


def test_the_page_says_what_the_figures_say(outcome, tmp_path):
    found, _ = outcome
    written = accuracy_page.write(tmp_path / "accuracy.md", [found], {})
    text, picture = (path.read_text(encoding="utf-8") for path in written)
    mean = found.figures["groups"]["Llama-70B on Hopper"]["ttft"]["mean"]
    assert "| Llama-70B on Hopper | 3 | 10 / 8 " in text
    assert f" {100 * mean:.1f} |" in text
    assert "3 rows are scored" in text
    assert "- 1: prefill and decode on different replicas" in text
    held = found.figures["halves"]["Llama-70B on Hopper"]["held_back"]
    assert f"| {held['n']} | {100 * held['ttft']['mean']:.1f} |" in text
    assert picture.startswith("<svg")
    assert "dense TTFT (3)" in picture


def test_the_command_line(outcome, capsys):
    _, path = outcome
    code = cli.main(["validate", "silicon", "--data", str(path), "--sample", "1", "--json"])
    (document,) = json.loads(capsys.readouterr().out)
    assert document["name"] == "silicon"
    assert document["figures"]["rows"] + len(document["figures"]["refused"]) == 1
    assert code == (0 if document["passed"] else 1)
    assert cli.main(["validate", "silicon", "--data", str(path.parent / "none")]) == 2
