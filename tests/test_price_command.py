"""kvcast price: the bill of a trace by hand, a scenario beside its GPUs, and price files that are refused in one
line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcast.cli import main
from tests.test_cli import SMALL

PRICES = Path(__file__).resolve().parent.parent / "examples/prices.toml"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Blocks of 512 tokens: A B C, then A B C D after 100 s, again 301 s after that, and 600 tokens that nobody
    caches."""
    rows = [(0, 1536, [1, 2, 3]), (100, 2048, [1, 2, 3, 4]), (401, 2048, [1, 2, 3, 4]), (402, 600, [9, 8])]
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": t * 1000, "input_length": n, "output_length": 10, "hash_ids": ids}) + "\n"
            for t, n, ids in rows
        )
    )
    return str(path)


def test_the_bill_of_a_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["price", trace, "--prices", str(PRICES), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    bills = {row["retention"]: row for row in document["bills"]}
    assert bills["5 minutes"]["tokens"] == {"uncached": 600, "write": 1536 + 512 + 2048, "read": 1536, "output": 40}
    assert bills["1 hour"]["tokens"] == {"uncached": 600, "write": 2048, "read": 1536 + 2048, "output": 40}
    assert bills["5 minutes"]["total_usd"] == pytest.approx((600 * 3 + 4096 * 3.75 + 1536 * 0.3 + 40 * 15) / 1e6)
    assert bills["1 hour"]["total_usd"] == pytest.approx((600 * 3 + 2048 * 6 + 3584 * 0.3 + 40 * 15) / 1e6)
    assert bills["no caching"]["total_usd"] == pytest.approx((6232 * 3 + 40 * 15) / 1e6)
    assert bills["ceiling"]["total_usd"] == pytest.approx((600 * 3 + 2048 * 3 + 3584 * 0.3 + 40 * 15) / 1e6)
    assert document["own_gpus"] is None


def test_a_scenario_is_priced_beside_its_own_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES.read_text().replace("minimum_tokens = 1024", "minimum_tokens = 300"))
    assert main(["price", str(path), "--prices", str(prices), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    own, bills = document["own_gpus"], {row["retention"]: row for row in document["bills"]}
    assert own["usd"] == pytest.approx(own["gpu_hours"] * 2.5)
    for name, row in bills.items():
        assert sum(row["usd"].values()) == pytest.approx(row["total_usd"])
        assert own["break_even_gpu_hour_usd"][name] * own["gpu_hours"] == pytest.approx(row["total_usd"])
        assert row["tokens"]["uncached"] + row["tokens"]["write"] + row["tokens"]["read"] == document["prompt_tokens"]
        assert row["usd_per_session"]["mean"] * document["sessions"] == pytest.approx(row["total_usd"])
    assert bills["no caching"]["total_usd"] > bills["5 minutes"]["total_usd"] > bills["ceiling"]["total_usd"]
    assert main(["price", str(path), "--prices", str(prices)]) == 0
    out = capsys.readouterr().out
    views = [own[f"usd_per_million_{tokens}_tokens"] for tokens in ("input", "output", "total")]
    assert 1 / views[2] == pytest.approx(1 / views[0] + 1 / views[1])  # one bill over the tokens of each, and of both
    for part in (
        "per million output tokens",
        "an input, not a fact",
        "cache writes",
        "own GPUs: 1 for",
        "$2.5 a GPU-hour",
        "equal to a GPU-hour at",
        "layer ends and prompt ends",
    ):
        assert part in out, part


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "input_usd_per_mtok = 3.0",
            "input_usd = 3.0",
            "input_usd is no key of a price file, did you mean input_usd_per_mtok?",
        ),
        (
            "minimum_tokens = 1024",
            "minimum_tokens = 10.5",
            "minimum_tokens = 10.5, expected a whole number of at least 0",
        ),
        ("read_multiplier = 0.1", "read_multiplier = -1", "read_multiplier = -1, expected a number of at least 0"),
        ("read_multiplier = 0.1", "", "read_multiplier is missing, expected a value"),
        ("seconds = 300 ", 'seconds = "long" ', "[[retention]] seconds = 'long', expected a number of at least 0"),
        (
            'breakpoints = "auto"',
            "breakpoints = 0",
            "breakpoints = 0, expected 'auto', 'layers' or a number of tokens of at least 1",
        ),
        (
            "input_usd_per_mtok = 3.0",
            "input_usd_per_mtok = inf",
            "input_usd_per_mtok = inf, expected a number of at least 0 and at most 1e+09",
        ),
        (
            "output_usd_per_mtok = 15.0",
            "output_usd_per_mtok = nan",
            "output_usd_per_mtok = nan, expected a number of at least 0",
        ),
        (
            "write_multiplier = 2.0",
            "write_multiplier = 1e300",
            "write_multiplier = 1e+300, expected a number of at least 0 and at most 1e+09",
        ),
        (
            'name = "1 hour"',
            'name = "5 minutes"',
            "[[retention]] name = '5 minutes', expected a name that no other column of the bill has",
        ),
        (
            'name = "1 hour"',
            'name = "ceiling"',
            "[[retention]] name = 'ceiling', expected a name that no other column of the bill has",
        ),
        ('name = "1 hour"', "name = 1", "[[retention]] name = 1, expected a name"),
        (
            'name = "1 hour"',
            'name = "1\\nhour"',
            "retention[1].name = '1\\nhour': expected text without control characters, not '\\n'",
        ),
        ("[[retention]]", "[[sold]]", "[[retention]] is missing, expected at least one table"),
    ],
)
def test_a_bad_price_file_is_one_line(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, line: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        PRICES.read_text().replace(old, new) if new != "[[sold]]" else PRICES.read_text().split("[[retention]]")[0]
    )
    assert main(["price", trace, "--prices", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert line in err
