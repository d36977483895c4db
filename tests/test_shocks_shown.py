"""What is shown of a shock: in compare, on the timeline, in the report and in plots over time."""

from __future__ import annotations

import json

import pytest

from kvcast import api, figures
from kvcast.cli import main
from kvcast.config import scenario_from_doc
from kvcast.present import verdict
from kvcast.present.html_run import of_run
from kvcast.scenario.toml import dumps
from kvcast.store.runs import load_run, save_run
from kvcast.studies import shocked
from tests.test_shocks import document

SHOCKS = [
    {"kind": "slow-replica", "at_s": 100, "duration_s": 60, "size": 3},
    {"kind": "cache-lost", "at_s": 200, "duration_s": 5},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shocked") / "run"
    asked = document(shock=SHOCKS, run={"warmup_s": 100.0, "duration_s": 1100.0}, plan={"recover_within_s": 120.0})
    save_run(folder, api.run(api.prepare(scenario_from_doc(asked))))
    return load_run(folder)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        dumps(
            scenario_from_doc(
                {
                    "workload": {
                        "class": [
                            {
                                "name": "chat",
                                "rate": 1.0,
                                "layers": [{"name": "system", "scope": "global", "tokens": {"value": 100}}],
                                "output": {"value": 10},
                            }
                        ]
                    },
                    "run": {"warmup_s": 20.0, "duration_s": 720.0},
                    "model": {"name": "tiny"},
                    "hardware": {"profile": "roofline:h200"},
                    "slo": {"ttft_s": 0.5, "attainment": 0.9},
                    "shock": [{"kind": "slow-replica", "at_s": 10.0, "duration_s": 20.0, "size": 2.0}],
                }
            )
        )
    )
    return path


def test_a_run_marks_its_shocks_and_when_it_was_back(run):
    shocks = run.summary["shocks"]
    assert run.summary["regime"] == "stable"
    figure = figures.marked(figures.queue(run.tables["timeline"]), run.summary)
    words = [one.text for one in figure.layout.annotations]
    assert words.count("back") == 2
    assert [w for w in words if w in ("slow-replica", "cache-lost")] == ["slow-replica", "cache-lost"]
    starts = [s.x0 for s in figure.layout.shapes if s.type == "line" and s.line.dash is None]
    assert starts == [200.0, 300.0]  # after the warm-up
    backs = [s.x0 for s in figure.layout.shapes if s.line.dash == "dash"]
    assert backs == [260.0 + shocks[0]["recovered_s"], 300.0 + shocks[1]["recovered_s"]]
    bands = [(s.x0, s.x1) for s in figure.layout.shapes if s.type == "rect"]
    assert bands == [(0, 100.0), (200.0, 260.0)]  # the warm-up; a lost cache has no duration


def test_the_report_has_a_table_of_its_shocks(run):
    page = of_run(run)
    assert "Shocks" in page
    assert "slow-replica x 3 at 100 s" in page
    assert "Orange: shocks" in page
    assert verdict.verdict(run.summary, run.scenario).headline != "Metastable."
    held = {**run.summary, "regime": "metastable"}
    assert verdict.verdict(held, run.scenario).headline == "Metastable."


def test_compare_tells_each_variants_shocks(file, capsys):
    assert main(["compare", str(file), "--vary", "engine.max_num_seqs=8,16", "--seeds", "2"]) == 0
    told = capsys.readouterr().out
    assert "shocks: attainment before, during and after" in told
    rows = [line for line in told.splitlines() if "slow-replica x 2 at 10" in line]
    assert len(rows) == 2
    assert all("2 of 2" in row for row in rows)


def test_a_variants_shocks_are_means_over_its_seeds():
    phase = {"requests": 10, "attainment": 0.5, "hit_rate": 0.2, "waiting": 4.0}
    row = {"kind": "burst", "at_s": 60.0, "lasts_s": 60.0, "size": 2.0, "before": phase, "during": phase}
    one = {**row, "after": phase, "recovered_s": 120.0, "seen_s": 900.0, "missed": 10}
    better = {**phase, "hit_rate": 0.4, "attainment": 1.0}
    other = {**row, "after": better, "recovered_s": None, "seen_s": 900.0, "missed": 30}
    (cells,) = shocked.compared([{"shocks": [one]}, {"shocks": [other]}])
    told = dict(zip(shocked.COMPARED, cells, strict=True))
    assert told["after"] == "75.0 %"
    assert told["hit rate"] == "30.0 %"
    assert (told["back"], told["slowest"], told["missed"]) == ("1 of 2", "120 s", "20")
    assert shocked.back(other) == "burst at 60.0 s: not back at the target within the run (900 s after it)"
    assert shocked.stable_word({"regime": "metastable", "shocks": [one], "stable": True}) == "METASTABLE"
    assert shocked.stable_word({"regime": None, "stable": False}) == "NO"


def test_a_window_that_ends_too_soon_shows_nothing_about_its_shock():
    phase = {"requests": 10, "attainment": 1.0, "hit_rate": 0.2, "waiting": 4.0}
    row = {"kind": "burst", "at_s": 60.0, "size": 2.0, **dict.fromkeys(shocked.PHASES, phase), "missed": 0}
    unseen, seen = ({**row, "recovered_s": back_s, "seen_s": 0.0} for back_s in (None, 0.0))
    assert "cannot be seen: the window ends less than 600 s after it" in shocked.back(unseen)
    assert shocked.back(seen).startswith("burst at 60.0 s: back at the target at once")
    places = [[{"shocks": [one]} for one in rows] for rows in ((unseen, unseen), (unseen, seen))]
    assert [shocked.compared(one)[0][shocked.COMPARED.index("back")] for one in places] == ["not seen", "1 of 1"]


def test_the_timeline_names_a_shock_in_its_window(file, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert main(["timeline", str(file), "--window", "25,35", "--trace", str(trace)]) == 0
    assert "slow-replica from 30 to 50 s" in capsys.readouterr().out
    (event,) = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "shock"]
    assert (event["ts"], event["dur"]) == (30e6, 20e6)
    assert main(["timeline", str(file), "--window", "51,60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shocks"] == []


def test_a_variant_that_does_not_fit_is_a_row(tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text(
        dumps(
            scenario_from_doc(
                {
                    "workload": {
                        "requests": 20,
                        "class": [
                            {
                                "name": "chat",
                                "rate": 1.0,
                                "layers": [{"name": "system", "scope": "global", "tokens": {"value": 100}}],
                                "output": {"value": 10},
                            }
                        ],
                    },
                    "model": {"name": "llama-3.1-70b"},
                    "hardware": {"profile": "roofline:h200", "tensor_parallel": 2},
                }
            )
        )
    )
    asked = ["--vary", "hardware.tensor_parallel=2,1", "--seeds", "1"]
    assert main(["compare", str(path), *asked]) == 0
    told = capsys.readouterr().out
    assert "\n1: does not fit: " in told
    assert [line.split()[:4] for line in told.splitlines() if line.startswith("1  ")] == [["1", "does", "not", "fit"]]
    assert main(["compare", str(path), *asked, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["does_not_fit"]
    assert row["variant"] == {"hardware.tensor_parallel": "1"}
    assert main(["sweep", str(path), *asked, "--out", str(tmp_path / "sweep")]) == 0
    assert "\n1: does not fit: " in capsys.readouterr().out
    assert main(["compare", str(path), "--vary", "hardware.tensor_parallel=1"]) == 2  # none is left
