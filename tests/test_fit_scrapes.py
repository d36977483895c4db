"""What a server says of itself beside a fit: pages over time and log lines are one curve, the hit rate is a load."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.bench_fit_server import CARDS, recorded_run
from benchmarks.simulated_server import load, result, served
from kvcast import api
from kvcast.cli import main
from kvcast.fitted import Fitted, held, read_run
from kvcast.observed import logged, scraped
from kvcast.observed.series import Labels, openmetrics, scrapes
from kvcast.observed.watched import Span, curve
from sim.measure.metrics import run_end_s
from tests.test_fit_server import SETS, server
from workloads.columns import PrefixTree
from workloads.errors import InputError

TRUTH = {"hardware.dense_factor": 1.2, "engine.host_step_ms": 3.0}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """(result, its pages) of a server whose every second prompt begins with one text of 512 tokens."""
    folder, own = tmp_path_factory.mktemp("scrapes"), load(96, seed=3, rate=8.0, prompt=1500.0)
    tree = PrefixTree(np.array([-1, 0], np.int32), np.array([0, 512]), np.zeros(2, np.int16))
    leaf = ((np.arange(96) % 2 == 0) & (own.prompt_tokens > 512)).astype(np.int32)
    own = replace(own, tree=tree, leaf=leaf, prefix_identity=True)
    rec = served(server(), TRUTH, own, seed=5)
    (folder / "R.json").write_text(json.dumps(result(rec, own, seed=5)))
    labels = Labels("llama-3.1-8b", rec.block_size, True)
    lines = openmetrics(rec, own, labels, scrapes(run_end_s(rec), 0.5), 1000.0)
    (folder / "pages.om").write_text("\n".join(lines) + "\n")
    return folder, rec, own


def fitted(folder, capsys, *more):
    sets = [word for one in SETS for word in ("--set", one)]
    assert main(["fit-server", str(folder / "R.json"), *sets, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_hit_rate_that_was_seen_is_the_load_and_the_curve_is_met(watched, capsys):
    folder, rec, own = watched
    found = fitted(folder, capsys, "--scrapes", str(folder / "pages.om"))
    rate = rec.hit_tokens.sum() / own.prompt_tokens.sum()
    hits = found["watched"]["hit_rate"]
    assert hits["measured"] == pytest.approx(rate)
    assert hits["simulated"] == pytest.approx(rate, rel=0.05)
    assert len(found["watched"]["curve"]) >= 2
    for row in found["watched"]["curve"]:
        assert abs(row["after"]) < 0.08 < 0.25 < abs(row["before"])
    assert abs(found["watched"]["curve"][-1]["after"]) < 0.02
    assert found["watched"]["notes"] == []


def test_pages_of_another_load_are_said(watched):
    folder, _, _ = watched
    run, seen = read_run(folder / "R.json"), replace(scraped(folder / "pages.om"), finished=200.0)
    nothing = Fitted(api.resolve(server()), [run], [], SimpleNamespace(values={}), [], [], (0.0, 0.0))
    assert held(nothing, seen)["notes"] == [
        "200 requests finished meanwhile, the results hold 96: another load is in it"
    ]


def test_a_folder_of_pages_is_the_same_as_one_file(watched, tmp_path):
    folder, _, _ = watched
    pages: dict[str, list[str]] = {}
    for line in (folder / "pages.om").read_text().splitlines():
        if not line.startswith("#"):
            sample, _, stamp = line.rpartition(" ")
            pages.setdefault(stamp, []).append(sample)
    for stamp, lines in pages.items():
        (tmp_path / f"{stamp}.txt").write_text("\n".join(lines) + "\n")
    assert scraped(tmp_path).spans == scraped(folder / "pages.om").spans
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"notes\.txt: expected a page named after its second"):
        scraped(tmp_path)
    with pytest.raises(InputError, match=r"none\.om: not found"):
        scraped(tmp_path / "none.om")


def test_a_curve_is_of_batches_with_several_spans():
    spans = [
        *[Span(1.0, 5.0, 0.0, 400.0, 390.0, 4.0)] * 2,
        Span(3.0, 7.0, 2.0, 600.0, 610.0, 12.0),
        *[Span(1.0, 9.0, 0.0, 100.0, 100.0, 9.0)] * 2,  # 8 to 16: two spans only
        *[Span(1.0, 0.0, 0.0, 100.0, 100.0, 9.0)] * 5,  # idle at one end
    ]
    assert curve(spans) == {2: (6.2, 1.2, pytest.approx(20 / 1390))}
    assert curve(spans, by_gaps=False)[2][2] == pytest.approx(31 / 1400)


VLLM = (
    "(APIServer pid=1) INFO 09-02 13:08:{:02d} [loggers.py:123] Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg"
    " generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: 3 reqs, GPU KV cache usage: 3.5%, Prefix cache"
    " hit rate: {:.1f}%\n"
)
SGLANG = (
    "[2026-03-14 04:59:{:02d}] Prefill batch, #new-seq: 1, #new-token: 300, #cached-token: 100, token usage: 0.00\n"
    "[2026-03-14 04:59:{:02d}] Decode batch, #running-req: 20, #token: 64, token usage: 0.14, cuda graph: True, gen"
    " throughput (token/s): 1000.00, #queue-req: 6, \n"
)


def test_log_lines_of_the_engines_are_spans_too(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("".join(VLLM.format(10 * i, 400.0, 8 + i % 2, 10.0 * i) for i in range(5)))
    seen = logged(log)
    assert (seen.every_s, seen.hit_rate, seen.by_gaps, len(seen.spans)) == (10.0, 0.4, False, 4)
    assert seen.spans[0] == Span(10.0, 8.5, 3.0, 4000.0)
    assert curve(seen.spans, seen.by_gaps) == {3: (8.5, 3.0, pytest.approx(8.5 / 400))}
    log.write_text("".join(SGLANG.format(2 * i, 2 * i) for i in range(5)))
    seen = logged(log)
    assert (seen.every_s, seen.hit_rate) == (2.0, 0.25)
    assert curve(seen.spans, seen.by_gaps) == {4: (20.0, 6.0, pytest.approx(0.02))}
    log.write_text("INFO nothing of it\n")
    assert logged(log) is None


@pytest.mark.parametrize("card", ["rtx4090", "rtxpro6000"])
def test_the_curve_of_a_recorded_server_is_met_where_it_worked_most(data_dir, tmp_path, card):
    """vLLM's own figures of every second, as its log says them; nothing is fitted."""
    ticks = list(csv.DictReader((data_dir / "measured" / f"{card}_llama-3.1-8b/vllm_run/timeseries.csv").open()))
    log = tmp_path / "server.log"
    log.write_text(
        "".join(
            f"INFO 00:{int(float(t['t'])) // 60:02d}:{int(float(t['t'])) % 60:02d} Avg generation throughput:"
            f" {t['gen_throughput']} tokens/s, Running: {t['running']} reqs, Waiting: {t['waiting']} reqs\n"
            for t in ticks
        )
    )
    resolved, run = recorded_run(card, CARDS[card], data_dir / "measured")
    nothing = Fitted(resolved, [run], [], SimpleNamespace(values={}), [], [], (0.0, 0.0))
    rows = held(nothing, logged(log))["curve"]
    busiest = max(rows, key=lambda row: row["waiting"])
    assert abs(busiest["after"]) < 0.05
