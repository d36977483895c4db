"""The command line: what it prints, what it exits with, and that bad input is one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvcast.cli import main

ROOT = Path(__file__).resolve().parent.parent
SMALL = """
name = "small"
[workload]
rate = 4
duration_s = 20
[[workload.class]]
name = "chat"
share = 1.0
turns = { value = 3 }
turn_input = { value = 50 }
think = { kind = "exponential", mean = 2 }
output = { kind = "uniform", low = 5, high = 40 }
layers = [
  { name = "system", scope = "global", tokens = { value = 300 } },
  { name = "user", scope = "dynamic", tokens = { kind = "uniform", low = 20, high = 200 } },
]
[run]
warmup_s = 0
[engine]
kv_blocks = 2000
[slo]
ttft_s = 1.0
[cost]
gpu_hour_usd = 2.5
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def kvcast(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user runs it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-m", "kvcast", *arguments], capture_output=True, text=True, env=env, cwd=ROOT
    )


# -- run ---------------------------------------------------------------------------------------------------------------


def test_run_prints_the_verdict_and_what_the_cache_saved_side_by_side(small, capsys):
    assert main(["run", small, "--set", "slo.attainment=0.9"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    out = " ".join(out.split())  # a long line is wrapped anywhere
    for part in (
        "MEETS the target: 100.0 %",
        "prefix hit rate",
        "ceiling",
        "block size 16",
        "prefill tokens",
        "prefill FLOPs",
        "mean TTFT",
        "GPU-hours",
        "extrapolated",
        "max_num_seqs 1,024 (vLLM's default on H200-SXM)",
        "kv_blocks 2,000 (given)",
        "$2.50 a GPU-hour",
    ):
        assert part in out, part


def test_a_bill_without_a_price_names_its_unit(small, tmp_path, capsys):
    unpriced = tmp_path / "unpriced.toml"
    unpriced.write_text(SMALL.replace("gpu_hour_usd = 2.5", ""))
    assert main(["run", str(unpriced), "--no-baseline"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"[\d.]+ GPU-hours, [\d.]+ GPU-hours per million output tokens, [\d.]+ input", out)


def test_json_is_one_document_and_nothing_else(small, capsys):
    assert main(["run", small, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["completed"] == document["arrived"] > 0
    assert document["prefix_hit_tokens"] + sum(document["miss_tokens"].values()) == document["prompt_tokens"]
    worth = document["cache_worth"]
    assert worth["twin"]
    assert worth["mean_ttft_ms"]["off"] > worth["mean_ttft_ms"]["on"]
    assert 0 < worth["prefill_flops_saved_share"] != worth["prefill_tokens_saved_share"] < 1


def test_run_writes_a_folder_that_says_the_same(small, tmp_path, capsys):
    assert main(["run", small, "--json", "--out", str(tmp_path / "runs" / "one")]) == 0
    assert json.loads((tmp_path / "runs" / "one" / "summary.json").read_text()) == json.loads(capsys.readouterr().out)


def test_no_baseline_leaves_time_saved_out(small, capsys):
    assert main(["run", small, "--json", "--no-baseline"]) == 0
    assert set(json.loads(capsys.readouterr().out)["cache_worth"]) == {
        "prefill_tokens_saved",
        "prefill_tokens_saved_share",
        "prefill_flops_saved",
        "prefill_flops_saved_share",
        "twin",
    }


def test_check_exits_with_1_only_for_a_missed_target(small, capsys):
    assert main(["run", small, "--check", "--set", "slo.attainment=0.9"]) == 0
    capsys.readouterr()
    missed = ["run", small, "--set", "slo.ttft_s=0.001", "--set", "slo.attainment=0.9"]
    assert main(missed) == 0
    assert "MISSES the target" in capsys.readouterr().out
    assert main([*missed, "--check"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["run", small, "--check"]) == 2
    assert "[slo] attainment is missing" in capsys.readouterr().err


def test_a_horizon_leaves_requests_unfinished_and_counts_them(small, capsys):
    assert main(["run", small, "--json", "--horizon", "5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["completed"] + document["unfinished"] == document["arrived"]
    assert document["not_arrived"] > 0


def test_runs_in_other_processes_are_the_same_bytes(small, tmp_path):
    """Whatever order Python's hashes come in: `run.json` alone says when and where."""
    for hash_seed in ("1", "2"):
        done = kvcast(
            "run", small, "--set", "cache.policy=lfu", "--out", str(tmp_path / hash_seed), PYTHONHASHSEED=hash_seed
        )
        assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "1").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "2").iterdir())
    for name in names:
        if name != "run.json":
            assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


# -- compare -----------------------------------------------------------------------------------------------------------


def test_compare_pairs_variants_on_the_same_arrivals(small, capsys):
    assert (
        main(
            [
                "compare",
                small,
                "--vary",
                "cache.enabled=true,false",
                "--vary",
                "cluster.replicas=1,2",
                "--seeds",
                "2",
                "--json",
            ]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["variants"]
    assert [row["variant"] for row in rows] == [
        {"cache.enabled": on, "cluster.replicas": n} for on in ("true", "false") for n in ("1", "2")
    ]
    assert len({tuple(s["prompt_tokens"] for s in row["summaries"]) for row in rows}) == 1
    assert rows[0]["mean_ttft_ms_vs_first"] == 0
    by_hand = [
        c["mean_ttft_ms"] - a["mean_ttft_ms"] for a, c in zip(rows[0]["summaries"], rows[2]["summaries"], strict=True)
    ]
    assert rows[2]["mean_ttft_ms_vs_first"] == pytest.approx(sum(by_hand) / 2)
    assert rows[2]["mean_ttft_ms_vs_first"] > 0


def test_compare_gives_the_same_whatever_the_number_of_processes(small, capsys):
    command = ["compare", small, "--vary", "cache.policy=lru,lfu", "--vary", "engine.kv_blocks=200,400,2000"]
    assert main(command) == 0
    one = capsys.readouterr().out
    assert main([*command, "--jobs", "2"]) == 0
    assert capsys.readouterr().out == one
    assert one.splitlines()[0].split()[:4] == ["cache.policy", "engine.kv_blocks", "verdict", "attainment"]


def test_compare_names_the_class_that_failed(tmp_path, capsys):
    """As `run` does: the attainment beside it is of all classes."""
    two = tmp_path / "two.toml"
    head, body = SMALL.split("[[workload.class]]")
    table, rest = body.split("[run]")
    half = table.replace("share = 1.0", "share = 0.5")
    classes = [half.replace('"chat"', f'"{name}"\nslo_class = "{name}"') for name in ("chat", "deep")]
    limits = "attainment = 0.9\n[slo.classes.chat]\nttft_s = 1.0\n[slo.classes.deep]\nttft_s = 1e-6\n"
    rest = rest.replace("ttft_s = 1.0\n", limits)
    two.write_text(head + "".join(f"[[workload.class]]{one}" for one in classes) + "[run]" + rest)
    assert main(["compare", str(two), "--vary", "cache.policy=lru"]) == 0
    assert re.search(r"^lru +misses \(deep\) ", capsys.readouterr().out, re.M)


# -- other commands ----------------------------------------------------------------------------------------------------


def test_cache_replays_a_trace_without_time(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": t, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for t, ids in enumerate([[1, 2], [1, 3], [1, 2], [4, 5], [1, 2]])
    ]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    assert (
        main(
            [
                "cache",
                str(trace),
                "--format",
                "mooncake",
                "--policy",
                "lru,fifo",
                "--capacity-blocks",
                "2,unlimited",
                "--rule",
                "all-ids",
            ]
        )
        == 0
    )
    found = {(r["policy"], r["capacity_blocks"]): r["hit_ratio_blocks"] for r in json.loads(capsys.readouterr().out)}
    # Room for two blocks is one prompt: block 1 is hit by the second and the third prompt (0 + 1 + 1 + 0 + 0 of 10).
    assert found == {("lru", 2): 0.2, ("lru", None): 0.5, ("fifo", 2): 0.2, ("fifo", None): 0.5}


def test_workload_describe_and_convert(small, tmp_path, capsys):
    assert main(["workload", "describe", small, "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["reuse"]["block_size"] == 16
    curve = described["hit_rate_by_capacity"]
    assert curve["lru"] == sorted(curve["lru"])
    assert 0 < curve["lru"][-1] <= described["reuse"]["reuse_ceiling"]
    assert main(["workload", "convert", small, "--out", str(tmp_path / "small.jsonl")]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {described['requests']} requests")
    assert (
        main(
            ["workload", "describe", str(tmp_path / "small.jsonl"), "--block-size", "16", "--capacity-blocks", "10,100"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert f"requests: {described['requests']}" in out
    assert "lru: 10 blocks" in out


def test_a_trace_without_prefix_identity_hits_nothing_and_says_why(tmp_path, capsys):
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,400,10\n2023-11-16"
        " 18:15:50.0000000,400,10\n"
    )
    assert main(["workload", "describe", str(trace)]) == 0
    assert "nothing is known to be shared" in capsys.readouterr().out
    assert main(["cache", str(trace), "--block-size", "16"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["hit_tokens"] == 0
    assert "says nothing about shared text" in err


def test_profile_show_prints_the_kv_arithmetic(capsys):
    for model, gib in (("llama-2-7b", "488 GiB"), ("llama-3.1-8b", "122 GiB")):
        assert main(["profile", "show", "--model", model, "--context", "1000000"]) == 0
        assert gib in capsys.readouterr().out
    assert main(["profile", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "h200-llama-3.1-8b-aic" in [p["id"] for p in listed["profiles"]]
    assert main(["profile", "show", "h200-llama-3.1-8b-aic"]) == 0
    assert "content hash: sha256:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["golden-cache", "vllm-counters", "vllm-rtx4090"])
def test_validate_reproduces_recorded_truth(name, data_dir, capsys):
    assert main(["validate", name, "--data", str(data_dir), "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    assert (outcome["name"], outcome["passed"]) == (name, True)
    assert outcome["figures"]


def test_a_failed_validation_exits_with_1(data_dir, monkeypatch, capsys):
    from kvcast.validation import vllm_counters

    monkeypatch.setitem(vllm_counters.RECORDED, 1, [(82_645, 21_263)])
    assert main(["validate", "vllm-counters", "--data", str(data_dir)]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_the_demo_tells_what_the_cache_is_worth(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for part in (
        "verdict: with the prefix cache 1 replica meets the target; without it not even 2 replicas do",
        "offered 5.49 requests/s (nominal)",
        "what the cache saved",
        "ceiling",
        "GPU-hours",
        "open the dashboard",
    ):
        assert part in out, part
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/summary.json"))]
    assert len(summaries) == 6
    keep_up = [s for s in summaries if s["verdict"]["word"] == "meets"]
    assert len(keep_up) == 2
    assert all(s["coverage"]["extrapolated"] < 0.2 for s in keep_up), "what drowns is beyond what was measured"
    assert len({(s["window"]["start_s"], s["window"]["end_s"], s["offered_per_s"]) for s in summaries}) == 1, (
        "all serve the same requests"
    )


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "none.toml"], "none.toml: no such file"),
        (
            ["run", "{small}", "--set", "engine.blok_size=3"],
            "[engine] has no key 'blok_size' (did you mean block_size?)",
        ),
        (["run", "{small}", "--set", "cache.policy=lruu"], "did you mean lru?"),
        (["run", "{small}", "--set", "hardware.profile=h200-llama-3.1-8b"], "did you mean h200-llama-3.1-8b-aic?"),
        (["run", "{small}", "--set", "model.name=llama-3.1-9b"], "did you mean llama-3.1-8b?"),
        (["run", "{small}", "--set", "model.name=qwen3-32b"], "these fit: "),
        (["run", "{small}", "--set", "workload.class.chat.output.kind=lognromal"], "lognormal"),
        (["run", "{small}", "--horizon", "-1"], "[run] horizon_s = -1.0: expected above 0"),
        (
            ["run", "{small}", "--set", "run.warmup_s=1e6"],
            "[run] warmup_s = 1e+06: expected a time before the run ends",
        ),
        (
            ["run", "{small}", "--set", "run.warmup_s=9", "--set", "run.duration_s=9"],
            "[run] duration_s = 9.0: expected a time after warmup_s",
        ),
        (["run", "{small}", "--out", "{small}"], "is a file; expected a folder to write"),
        (["compare", "{small}", "--vary", "cache.policy"], "expected section.key=value"),
        (["compare", "{small}", "--vary", "cache.policy=lru,lru"], "a value is there twice"),
        (["compare", "{small}", "--vary", "seed=1,2"], "use --seeds"),
        (["compare", "{small}", "--vary", "cache.policy=lru", "--jobs", "0"], "--jobs 0: expected 1 or more"),
        (["cache", "none.jsonl"], "none.jsonl: no such file"),
        (["cache", "{small}", "--capacity-blocks", "many"], "--capacity-blocks many: expected a number of blocks"),
        (["cache", "{trace}", "--policy", "lri"], "did you mean lru?"),
        (["cache", "{trace}", "--format", "moncake"], "mooncake"),
        (["cache", "{cut}", "--format", "mooncake"], "row 2"),
        (["profile", "show"], "expected a PROFILE, or --model M"),
        (["profile", "show", "h300"], "is not bundled"),
        (["run", "{small}", "--set", "hardware.profile=roofline-h200"], "expected roofline:GPU with one of h100, h200"),
        (["workload", "describe", "none.jsonl"], "none.jsonl: no such file"),
        (
            ["workload", "describe", "{trace}", "--capacity-blocks", "x"],
            "--capacity-blocks x: expected numbers of blocks",
        ),
        (["workload", "convert", "{trace}", "--out", "no/such/folder/x.jsonl"], "no/such/folder/x.jsonl"),
        (["run", "{small}", "--set", "slo.classes.gold.ttft_s=1"], "[slo.classes.gold] applies to no request"),
        (["validate", "golden"], "did you mean golden-cache?"),
        (["validate", "golden-cache", "--data", "nowhere"], "nowhere"),
        (["rnu"], "did you mean run?"),
        (["run", "{small}", "--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, expected, small, tmp_path, capsys, monkeypatch):
    trace, cut = tmp_path / "trace.jsonl", tmp_path / "cut.jsonl"
    row = json.dumps({"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]})
    trace.write_text(row)
    cut.write_text(f"{row}\n{row[:20]}")
    monkeypatch.chdir(tmp_path)
    names = {"{small}": small, "{trace}": str(trace), "{cut}": str(cut)}
    try:
        code = main([names.get(a, a) for a in arguments])
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert expected in err


def test_nothing_is_written_for_bad_input(small, tmp_path, capsys):
    assert main(["run", small, "--set", "cache.policy=none", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_validate_without_data_says_how_to_name_it():
    done = kvcast("validate", "golden-cache", KVCAST_DATA="")
    assert done.returncode == 2
    assert "KVCAST_DATA" in done.stderr
    assert "Traceback" not in done.stderr


# -- what it imports ---------------------------------------------------------------------------------------------------


def test_another_kernels_package_is_one_clear_line(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").touch()
    code = "import sys; from kvcast.cli import main; sys.exit(main(['profile', 'list']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "another package named kernels" in done.stderr
    assert str(tmp_path) in done.stderr


def test_help_of_every_command_is_there():
    for command in ("run", "compare", "cache", "workload", "profile", "validate", "demo", "dashboard"):
        done = kvcast(command, "--help")
        assert done.returncode == 0
        assert "usage: kvcast" in done.stdout


def test_keys_lists_every_key(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "--keys"])
    assert stop.value.code == 0
    assert "kv_blocks: KV blocks per replica" in capsys.readouterr().out


def test_simulating_imports_nothing_heavy(tmp_path):
    """`sim.simulate` and what it reaches know no torch, plots, files or data frames."""
    code = """
import sys
import numpy as np
from sim.simulate import run
from sim.measure.report import build_report
from sim.scenario import EngineParams, Scenario
from calibrate.latency import load_step_time
from workloads.config import WorkloadConfig
from workloads.load import load
from workloads.toml import load_preset
config = WorkloadConfig(preset="demo", requests=50)
workload = load(config, 0)
recording = run(workload, EngineParams(kv_blocks=5000), load_step_time("h200-llama-3.1-8b-aic"), replicas=2, router="least-loaded")
build_report(recording, workload, Scenario(config))
heavy = {"torch", "triton", "plotly", "streamlit", "pyarrow", "pandas", "pydantic", "scipy", "matplotlib", "joblib"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


def test_importing_kvcast_costs_nothing():
    code = "import sys, kvcast; print(sorted({'numpy', 'pydantic', 'sim', 'workloads'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
