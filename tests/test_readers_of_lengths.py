"""Sources of arrivals and lengths without shared text: ServeGen client pools, Vidur and splitwise CSV."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_readers import complaint, write
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.load import load
from workloads.readers import read, servegen, sniff
from workloads.readers.servegen import _arrivals, _Pattern

NOTHING_KNOWN = "the hit rate is 0 because no prefix identity was recorded"
ONE = {"0": {"input_tokens": "{100: 0.25, 200: 0.75}", "output_tokens": "{7: 1.0}"}}
STEADY = "0,2.0,1,Gamma,1,0.5\n600,4.0,1,Gamma,1,0.25\n1200,0,0,,0,0\n"


def pool(folder: Path, clients: dict[int, tuple[str, dict | None]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (trace, dataset) in clients.items():
        (folder / f"chunk-{number}-trace.csv").write_text(trace)
        if dataset is not None:
            (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
    return folder


def archive(path: Path, *folders: Path) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in folders:
            tar.add(folder, arcname=f"data/{folder.name}")
    path.write_bytes(lzma.compress(buffer.getvalue()))
    return path


# -- ServeGen ----------------------------------------------------------------------------------------------------------


def test_a_pool_is_drawn_at_its_rates_and_lengths(tmp_path: Path) -> None:
    folder = pool(tmp_path / "pool", {3: (STEADY, ONE), 10: (STEADY.replace("2.0", "0.5"), ONE)})
    workload = read(folder, seed=4)
    workload.check()
    assert workload.arrival_s.tolist() == sorted(workload.arrival_s.tolist())
    assert workload.arrival_s[-1] < 1200
    assert workload.tenant_names == ("client 3", "client 10")
    first = np.bincount(workload.tenant_id[workload.arrival_s < 600])
    assert first == pytest.approx([1200, 300], abs=4 * 1200**0.5)
    assert set(workload.prompt_tokens.tolist()) == {100, 200}
    assert (workload.prompt_tokens == 200).mean() == pytest.approx(0.75, abs=0.03)
    assert set(workload.output_tokens.tolist()) == {7}
    assert not workload.prefix_identity
    assert any(NOTHING_KNOWN in note for note in workload.notes)
    assert workload.notes[0] == "format: servegen because it is a folder of chunk-*-trace.csv"
    assert (
        workload.notes[1]
        == f"requests drawn {len(workload)} = requests {len(workload)}, from 2 clients' distributions, seed 4, up to"
        " 1800 s of 0 to 1800 s"
    )


def test_slices_other_clients_and_limits_leave_the_draws_as_they_were(tmp_path: Path) -> None:
    both = {1: (STEADY, ONE), 2: (STEADY, ONE)}
    whole = read(pool(tmp_path / "both", both))
    alone = read(pool(tmp_path / "one", {1: both[1]}))
    assert alone.arrival_s.tolist() == whole.arrival_s[whole.tenant_id == 0].tolist()
    late = whole.arrival_s >= 650
    part = read(tmp_path / "both", start_s=650)
    assert (part.arrival_s.tolist(), part.prompt_tokens.tolist()) == (
        whole.arrival_s[late].tolist(),
        whole.prompt_tokens[late].tolist(),
    )
    assert read(tmp_path / "both", requests=10).arrival_s.tolist() == whole.arrival_s[whole.arrival_s < 600].tolist()
    assert read(tmp_path / "both", seed=1).arrival_s.tolist() != whole.arrival_s.tolist()


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.17), ("Gamma", 3.0), ("Weibull", 0.5), ("Weibull", 2.0)])
def test_bursty_clients_keep_their_mean_rate(family: str, shape: float) -> None:
    """A renewal process that starts with a whole gap would have (CV^2 - 1) / 2 arrivals too many: 2.4 of 12 at shape
    0.17."""
    rng = np.random.default_rng(5)
    counts = np.array([len(_arrivals(_Pattern(family, shape, 0.02), 600.0, rng)) for _ in range(4000)])
    assert counts.mean() == pytest.approx(12, abs=4 * counts.std() / 4000**0.5)
    gaps = _Pattern(family, shape, 0.02).gaps(200_000, rng)
    assert gaps.mean() == pytest.approx(50, rel=0.05)


def test_lengths_of_an_empty_stretch_come_from_the_one_before(tmp_path: Path) -> None:
    dataset = {
        "0": {"input_tokens": "{50: 1}", "output_tokens": "{5: 1}"},
        "600": {"input_tokens": "{}", "output_tokens": "{}"},
    }
    assert set(read(pool(tmp_path / "p", {1: (STEADY, dataset)})).prompt_tokens.tolist()) == {50}


def test_images_are_prompt_tokens_and_empty_answers_are_skipped(tmp_path: Path) -> None:
    dataset = {
        "0": {
            "text_tokens": "{10: 1}",
            "image_count": "{2: 1}",
            "image_tokens": "{300: 1}",
            "output_tokens": "{0: 0.5, 9: 0.5}",
        }
    }
    workload = read(pool(tmp_path / "p", {1: (STEADY, dataset)}))
    assert set(workload.prompt_tokens.tolist()) == {610}
    drawn, kept = (
        int(workload.notes[1].split(word)[1].split()[0].strip(",")) for word in ("requests drawn ", "= requests ")
    )
    assert kept == len(workload)
    assert drawn - kept == int(workload.notes[1].split(" + ")[1].split()[0]) > 1000


def test_clients_without_lengths_are_left_out_loudly(tmp_path: Path) -> None:
    workload = read(pool(tmp_path / "p", {1: (STEADY, ONE), 2: (STEADY, None)}))
    assert "1 of 2 clients have no lengths and are left out, with their 50.0 % of the requests" in workload.notes
    assert workload.tenant_names == ("client 1",)


def test_an_archive_of_one_pool_and_of_several(tmp_path: Path) -> None:
    a, b = pool(tmp_path / "a", {1: (STEADY, ONE)}), pool(tmp_path / "b", {1: (STEADY.replace("2.0", "9.0"), ONE)})
    one, two = archive(tmp_path / "one.tar.xz", a), archive(tmp_path / "two.tar.xz", a, b)
    assert sniff(one) == ("servegen", "it is a tar archive of chunk-*-trace.csv and chunk-*-dataset.json")
    assert read(one).arrival_s.tolist() == read(a).arrival_s.tolist()
    assert complaint(two) == "FILE: folders of clients: a, b; expected one, or its name in [workload] folder"
    assert (
        complaint(two, folder="c")
        == "FILE: folders of clients: a, b; expected one, or its name in [workload] folder (folder = 'c')"
    )
    assert (
        load(WorkloadConfig(trace=str(two), folder="b", end_s=600)).arrival_s.tolist()
        == read(b, end_s=600).arrival_s.tolist()
    )


def lengths(**tables: Any) -> dict:
    return {"0": {**ONE["0"], **tables}}


@pytest.mark.parametrize(
    ("trace", "dataset", "line"),
    [
        (
            "0,1,1,Gamma,1\n",
            ONE,
            "chunk-1-trace.csv, row 1: 5 fields, expected start_s, rate, cv, family, shape, scale",
        ),
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", ONE, "chunk-1-trace.csv, row 2: start_s = '0', expected a time after 0"),
        ("0,-1,1,Gamma,1,1\n", ONE, "chunk-1-trace.csv, row 1: rate = '-1', expected a number from 0 to 1e+06"),
        (
            "0,1,1,Pareto,1,1\n",
            ONE,
            "chunk-1-trace.csv, row 1: family = 'Pareto', expected Gamma, Weibull, or nothing for an idle window",
        ),
        ("0,1,1,Gamma,nan,1\n", ONE, "chunk-1-trace.csv, row 1: shape = 'nan', expected a number from 0.01 to 1e+09"),
        (
            STEADY,
            lengths(input_tokens="__import__('os')"),
            """chunk-1-dataset.json: 0.input_tokens = "__import__('os')", expected the text of a table {tokens: share, ...}""",  # noqa: E501
        ),
        (
            STEADY,
            lengths(input_tokens={"5": 1}),
            "chunk-1-dataset.json: 0.input_tokens = {'5': 1}, expected the text of a table {tokens: share, ...}",
        ),
        (
            STEADY,
            lengths(input_tokens="{5: 1: 2}"),
            "chunk-1-dataset.json, 0: input_tokens = '{5: 1: 2}', expected the text of a table {tokens: share, ...}",
        ),
        (
            STEADY,
            lengths(input_tokens="{1.5: 1}"),
            "chunk-1-dataset.json, 0: input_tokens = 1.5, expected whole numbers from 0 to 1000000000",
        ),
        (
            STEADY,
            lengths(input_tokens="{5: 0.5}"),
            (
                "chunk-1-dataset.json, 0: input_tokens = 'shares that sum to 0.5', expected shares of at least 0 that"
                " sum to 1"
            ),
        ),
        (
            STEADY,
            lengths(image_count="{101: 1}", image_tokens="{9: 1}"),
            "chunk-1-dataset.json, 0: image_count = 101.0, expected whole numbers from 0 to 100",
        ),
        (
            STEADY,
            {"0": {"output_tokens": "{1: 1}"}},
            (
                "chunk-1-dataset.json: 0 = {'output_tokens': '{1: 1}'}, expected output_tokens and input_tokens (or"
                " text_tokens)"
            ),
        ),
        (STEADY, {"noon": ONE["0"]}, "chunk-1-dataset.json: start_s = 'noon', expected a number from 0 to 1e+09"),
    ],
)
def test_what_is_wrong_in_a_pool_is_one_line(tmp_path: Path, trace: str, dataset: dict, line: str) -> None:
    assert complaint(pool(tmp_path / "p", {1: (trace, dataset)})) == f"FILE, {line}"


def test_a_pool_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pool(tmp_path / "p", {1: (STEADY, ONE)})
    assert (
        complaint(folder, start_s=5000.0)
        == "FILE: no request arrives from 5000 s to the end, expected a part of 0 to 1800 s"
    )
    monkeypatch.setattr(servegen, "MAX_REQUESTS", 2000)
    assert (
        complaint(folder)
        == "FILE: more than 2,000 requests by 1200 s of 0 to 1800 s, expected a slice of at most that: [workload] end_s"
        " or requests"
    )
    monkeypatch.setattr(servegen, "MAX_BYTES", 100)
    assert complaint(folder) == "FILE: more than 0 GiB of client files, expected at most that"


def test_the_recorded_pools(data_dir: Path) -> None:
    """Counts and percentiles as in the published files: 1.38 million requests a day; input 208 (p90 2,092), output 792
    (3,432)."""
    path = data_dir / "traces" / "servegen" / "servegen_deepseek-r1_mm-image.tar.xz"
    workload = read(path, folder="deepseek-r1")
    workload.check()
    assert len(workload) == pytest.approx(1_383_669, rel=0.02)
    assert np.percentile(workload.prompt_tokens, [50, 90]) == pytest.approx([208, 2092], rel=0.02)
    assert np.percentile(workload.output_tokens, [50, 90, 99]) == pytest.approx([792, 3432, 12_607], rel=0.02)
    assert complaint(path).startswith("FILE: folders of clients: deepseek-r1, mm-image; expected one")


# -- Vidur -------------------------------------------------------------------------------------------------------------

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"


def test_vidur_reads_times_and_lengths(tmp_path: Path) -> None:
    workload = read(write(tmp_path / "v.csv", HEADER, "1.5,100,10", "2.25,30,0", "4,7,1"))
    workload.check()
    assert workload.arrival_s.tolist() == [0, 2.5]
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([100, 7], [10, 1])
    assert workload.notes[0] == "format: vidur because its header has num_prefill_tokens, num_decode_tokens, arrived_at"
    assert "rows read 3 = requests 2 + skipped 1 (zero output: 1)" in workload.notes
    assert any(NOTHING_KNOWN in note for note in workload.notes)


def test_vidur_lengths_without_times_arrive_at_a_rate_that_is_stated(tmp_path: Path) -> None:
    path = write(
        tmp_path / "v.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", *["20,5,25,4"] * 4000
    )
    assumed = load(WorkloadConfig(trace=str(path)), seed=3)
    assert assumed.arrival_s[-1] == pytest.approx(4000, rel=0.1)
    assert any(
        "arrive as a Poisson process, 1 a second (assumed: set [workload] rate, or rate_scale), seed 3" in note
        for note in assumed.notes
    )
    asked = load(WorkloadConfig(trace=str(path), rate=8.0), seed=3)
    assert asked.arrival_s.tolist() == pytest.approx((assumed.arrival_s / 8).tolist())
    assert any("a Poisson process, 8 a second, seed 3" in note for note in asked.notes)
    assert load(WorkloadConfig(trace=str(path), rate=8.0), seed=4).arrival_s[0] != asked.arrival_s[0]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("1,2", "FILE, row 2: 2 fields, expected 3"),
        ("1,0,5", "FILE, row 2: num_prefill_tokens = '0', expected a whole number of at least 1"),
        ("1,5,2.5", "FILE, row 2: num_decode_tokens = '2.5', expected a whole number of at least 1"),
        ("-1,5,5", "FILE, row 2: arrived_at = '-1', expected a finite number of at least 0"),
    ],
)
def test_vidur_names_row_and_field(tmp_path: Path, row: str, line: str) -> None:
    assert complaint(write(tmp_path / "v.csv", HEADER, row)) == line


def test_vidur_lengths_recorded(data_dir: Path) -> None:
    workload = read(data_dir / "traces" / "vidur" / "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv")
    assert len(workload) == 28_257
    assert np.percentile(workload.prompt_tokens, [50, 90]).tolist() == [2730, 3702]


# -- splitwise ---------------------------------------------------------------------------------------------------------

SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"


def test_splitwise_reads_requests_by_application(tmp_path: Path) -> None:
    workload = read(
        write(
            tmp_path / "s.csv", SPLITWISE, "0,2,0,1,1,4096,32", "1,2,1,3.5,1,2048,8", "2,0,0,4,1,9,9", "3,2,0,5,1,9,0"
        )
    )
    workload.check()
    assert workload.arrival_s.tolist() == [0, 2.5]
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([4096, 2048], [32, 8])
    assert [workload.class_names[c] for c in workload.class_id] == ["application 0", "application 1"]
    assert workload.notes[0] == "format: splitwise because its header has arrival_timestamp, prompt_size, token_size"
    assert (
        "rows read 4 = requests 2 + skipped 2 (request_type other than 2, not a generation: 1, zero output: 1)"
        in workload.notes
    )
    assert any(NOTHING_KNOWN in note for note in workload.notes)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("0,2,0,1,4,9,9", "FILE, row 2: batch_size = '4', expected 1: one request a row"),
        (
            "0,2,0,soon,1,9,9",
            "FILE, row 2: arrival_timestamp = 'soon', expected a finite number of at least 0, or a time"
            " like 2023-11-16 18:17:03.9799600",
        ),
        ("0,2,0,1,1,x,9", "FILE, row 2: prompt_size = 'x', expected a whole number of at least 1"),
    ],
)
def test_splitwise_names_row_and_field(tmp_path: Path, row: str, line: str) -> None:
    assert complaint(write(tmp_path / "s.csv", SPLITWISE, row)) == line


# -- the [workload] section --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"rate": 2.0}, "rate = 2.0, expected rate_scale for a trace that has times"),
        ({"folder": "a"}, "folder = 'a', expected none: only ServeGen archives have folders of clients"),
    ],
)
def test_keys_that_a_trace_with_times_has_no_use_for(tmp_path: Path, wrong: dict, line: str) -> None:
    path = write(tmp_path / "s.csv", SPLITWISE, "0,2,0,1,1,9,9")
    with pytest.raises(InputError) as problem:
        load(WorkloadConfig(trace=str(path), **wrong))
    assert line in str(problem.value)
    vidur = write(tmp_path / "v.csv", HEADER, "1,5,5")
    with pytest.raises(
        InputError,
        match=r"\[workload\] rate = 2.0, expected none: the file has times \(arrived_at\); rate_scale makes it faster",
    ):
        load(WorkloadConfig(trace=str(vidur), rate=2.0))
