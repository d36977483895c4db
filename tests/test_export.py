"""kvcast export --grafana: a run as the series of a vLLM server, held to OpenMetrics' rules, to the run's own tables,
and read back by kvcast observe."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest

from kvcast import api
from kvcast.cli import main
from kvcast.commands import export
from kvcast.config import scenario_from_doc
from kvcast.observed import is_series, parsed, seen, series
from kvcast.observed.page import MOST_PAGES
from kvcast.observed.series import TOKEN_S, Events, Labels, _histogram, _one_two_five, _summed, openmetrics, scrapes
from kvcast.store.runs import load_run
from sim.recording import COMPLETED
from workloads.errors import InputError

SETS = ["run.duration_s=40", "run.warmup_s=0", "cluster.replicas=2", "workload.rate_scale=2.0"]
KIND = {"gauge": ("",), "info": ("_info",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(run, its series)."""
    folder = tmp_path_factory.mktemp("export")
    sets = [part for change in SETS for part in ("--set", change)]
    assert main(["run", "examples/demo.toml", *sets, "--no-baseline", "--steps", "--out", str(folder / "run")]) == 0
    out = folder / "run.om"
    start = ["--start", "2026-11-30T09:00:00Z", "--every", "5s"]
    assert main(["export", str(folder / "run"), "--grafana", str(out), *start]) == 0
    return load_run(folder / "run"), out


def checked(text):
    """{sample name: {labels: [(timestamp, value)]}} of an OpenMetrics text; asserts what its standard asks."""
    assert text.endswith("\n# EOF\n")
    assert "\n\n" not in text
    family, kind, families, found, last = "", "", set(), defaultdict(lambda: defaultdict(list)), (None, -np.inf)
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in families, "a family in two places"
            assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", family)
            families.add(family)
            last = (None, -np.inf)
            continue
        if line.startswith("# HELP "):
            assert line.split(" ")[2] == family
            continue
        name, label, value, stamp = re.fullmatch(r"(\S+?)\{(.*)\} (\S+) (\d+\.\d{3})", line).groups()
        assert name.removeprefix(family) in KIND[kind], line
        series_of = re.sub(r',?le="[^"]*"', "", label)
        if last[0] == series_of:
            assert float(stamp) >= last[1], "the points of a metric in order of time"
        last = (series_of, float(stamp))
        found[name][label].append((float(stamp), float(value)))
    for name, labelled in found.items():
        for label, points in labelled.items():
            stamps, values = zip(*points, strict=True)
            assert len(set(stamps)) == len(stamps), "a sample twice"
            if name.endswith(("_total", "_bucket", "_count", "_sum")):
                assert list(values) == sorted(values), f"{name}{{{label}}} falls"
    return found


def in_one_line(capsys):
    (line,) = capsys.readouterr().err.splitlines()
    return line


def grid(found, name, engine):
    """(ends of the buckets, float64 [scrapes, buckets]) of a histogram."""
    mine = {label: points for label, points in found[f"{name}_bucket"].items() if f'engine="{engine}"' in label}
    ends = [float(re.search(r'le="(.*?)"', label)[1]) for label in mine]
    assert ends == sorted(ends)
    assert ends[-1] == np.inf
    return ends, np.array([[value for _, value in points] for points in mine.values()]).T


def test_the_text_keeps_the_rules(made):
    found = checked(made[1].read_text())
    for name in [name.removesuffix("_bucket") for name in found if name.endswith("_bucket")]:
        for engine in (0, 1):
            _, up_to = grid(found, name, engine)
            assert (np.diff(up_to, axis=1) >= 0).all()
            counts = [v for label, p in found[f"{name}_count"].items() if f'engine="{engine}"' in label for _, v in p]
            assert up_to[:, -1].tolist() == counts
    first = next(iter(found["vllm:num_requests_running"].values()))
    assert datetime.fromtimestamp(first[0][0], UTC).isoformat() == "2026-11-30T09:00:00+00:00"
    assert np.diff([stamp for stamp, _ in first]).tolist() == [5.0] * (len(first) - 1)


def test_every_moment_is_the_runs_own(made):
    """Counts by replica at every scrape, from the requests table; states from who is admitted and not yet gone."""
    run, out = made
    found, table = checked(out.read_text()), run.tables["requests"]
    assert (table["preemptions"] == 0).all(), "else running is not who is admitted and not yet gone"
    done = table["status"] == COMPLETED
    for engine in (0, 1):
        mine = done & (table["replica"] == engine)

        def of(name, engine=engine):
            (points,) = [p for label, p in found[name].items() if f'engine="{engine}"' in label]
            return np.array(points).T

        at_s = of("vllm:num_requests_running")[0] - datetime(2026, 11, 30, 9, tzinfo=UTC).timestamp()
        seen_at = table["first_token_s"][mine][None, :] <= at_s[:, None]
        gone = table["finish_s"][mine][None, :] <= at_s[:, None]
        running = (table["admit_s"][mine][None, :] <= at_s[:, None]) & ~gone
        waiting = (table["arrival_s"][mine][None, :] <= at_s[:, None]) & ~gone & ~running
        assert of("vllm:num_requests_running")[1].tolist() == running.sum(axis=1).tolist()
        assert of("vllm:num_requests_waiting")[1].tolist() == waiting.sum(axis=1).tolist()
        assert of("vllm:request_success_total")[1].tolist() == gone.sum(axis=1).tolist()
        assert of("vllm:prompt_tokens_total")[1].tolist() == (seen_at * table["prompt_tokens"][mine]).sum(1).tolist()
        assert of("vllm:time_to_first_token_seconds_sum")[1] == pytest.approx((seen_at * table["ttft_s"][mine]).sum(1))
        for name, moment, column in (
            ("time_to_first_token_seconds", seen_at, "ttft_s"),
            ("e2e_request_latency_seconds", gone, "e2e_s"),
            ("request_queue_time_seconds", gone, "queue_s"),
            ("request_time_per_output_token_seconds", gone, "tpot_s"),
            ("request_prompt_tokens", gone, "prompt_tokens"),
        ):
            ends, up_to = grid(found, f"vllm:{name}", engine)
            below = table[column][mine][:, None] <= np.array(ends)[None, :]
            assert up_to.tolist() == (moment.astype(int) @ below.astype(int)).tolist(), name
        assert of("vllm:prefix_cache_hits_total")[1][-1] == table["hit_tokens"][mine].sum()
        assert of("vllm:generation_tokens_total")[1][-1] == table["output_tokens"][mine].sum()
        gaps = of("vllm:inter_token_latency_seconds_count")[1]
        assert gaps[-1] == (table["output_tokens"][mine] - 1).sum()
        spans = (table["finish_s"] - table["first_token_s"])[mine].sum()
        assert of("vllm:inter_token_latency_seconds_sum")[1][-1] == pytest.approx(spans)
        tokens = of("vllm:generation_tokens_total")[1]
        assert (tokens == gaps + seen_at.sum(axis=1)).all(), "a token is a first one or ends a gap"
        steps = run.tables["steps"]
        ends_s = steps["end_s"][steps["replica"] == engine]
        first_s, last_s = table["first_token_s"][mine], table["finish_s"][mine]
        for t, count in zip(at_s, gaps, strict=True):  # nobody skips a step here: each gives a token to all who decode
            until = np.searchsorted(ends_s, np.minimum(last_s, t), side="right")
            assert count == np.maximum(until - np.searchsorted(ends_s, first_s, side="right"), 0).sum()
        usage = of("vllm:kv_cache_usage_perc")[1]
        assert usage.max() < 1
        assert (usage > 0).tolist() == (running.sum(axis=1) > 0).tolist()


def test_the_p99_of_gaps_lies_in_its_bucket(made):
    run, out = made
    found = checked(out.read_text())
    up_to = sum(grid(found, "vllm:inter_token_latency_seconds", engine)[1][-1] for engine in (0, 1))
    bucket = int(np.searchsorted(up_to, 0.99 * up_to[-1]))
    low, high = ([0.0, *TOKEN_S][bucket], [*TOKEN_S, np.inf][bucket])
    assert low <= run.summary["p99_itl_ms"] / 1e3 <= high


def test_observe_reads_it_back(made, capsys):
    run, out = made
    assert is_series(out)
    pages = series(out)
    assert len(pages) == min(MOST_PAGES, 1 + round((pages[-1][0] - pages[0][0]) / 5))
    found, table = seen(pages), run.tables["requests"]
    done = table["status"] == COMPLETED
    assert found.finished == done.sum()
    assert (found.replicas, found.block_size, found.prefix_caching) == (2, run.summary["block_size"], True)
    assert found.kv_blocks == run.summary["kv_blocks"]
    came = ~np.isnan(table["admit_s"])
    assert found.hit_rate == pytest.approx(table["hit_tokens"][came].sum() / table["prompt_tokens"][came].sum())
    assert found.prompts.mean == pytest.approx(table["prompt_tokens"][done].mean())
    assert found.answers.mean == pytest.approx(table["output_tokens"][done].mean())
    capsys.readouterr()
    assert main(["observe", str(out), "--set", "hardware.gpu=h200"]) == 0
    told = tomllib.loads(capsys.readouterr().out)
    assert told["model"]["name"] == run.scenario.model.name
    assert told["cluster"]["replicas"] == 2
    assert main(["observe", str(out), "--seconds", "5"]) == 2
    assert "pages over time say when they are of" in in_one_line(capsys)


def test_an_event_counts_from_the_scrape_that_sees_it_on():
    at_s = scrapes(20.0, 10.0)
    assert at_s.tolist() == [0.0, 10.0, 20.0]
    assert scrapes(20.1, 10.0).tolist() == [0.0, 10.0, 20.0, 30.0]
    events = Events(np.array([0.0, 10.0, 10.1]), np.array([1.0, 2.0, 3.0]))
    assert _summed(events, at_s, whole=True).tolist() == [1, 3, 6]
    twice = Events(events.at_s, events.value, np.array([2.0, 1.0, 3.0]))
    lines = list(_histogram("h", 'e="0"', (1.0, 2.5), twice, at_s, ["0", "10", "20"]))
    assert [line for line in lines if line.endswith(" 20")] == [
        'h_bucket{e="0",le="1.0"} 2 20',
        'h_bucket{e="0",le="2.5"} 3 20',
        'h_bucket{e="0",le="+Inf"} 6 20',
        'h_count{e="0"} 6 20',
        'h_sum{e="0"} 13.0 20',
    ]
    assert 'h_bucket{e="0",le="2.5"} 3 10' in lines
    assert 'h_bucket{e="0",le="2.5"} 2 0' in lines
    assert _one_two_five(20) == [1, 2, 5, 10, 20]
    assert _one_two_five(21) == [1, 2, 5, 10, 20, 50]


def test_what_it_refuses(made, tmp_path, capsys):
    run, _ = made
    asked = ["export", str(run.folder), "--grafana", str(tmp_path / "x")]
    assert main([*asked, "--every", "0.1s", "--start", "1999-01-01"]) == 0, "a coarse run has few scrapes"
    assert export.moment("2026-11-30T10:00:00+01:00") == export.moment("2026-11-30T09:00:00") == 1796029200
    with pytest.raises(SystemExit):
        main([*asked, "--start", "noon"])
    assert "noon: expected a time such as 2026-11-30T09:00:00Z" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--grafana", str(tmp_path / "y")]) == 2
    assert "expected a run folder" in in_one_line(capsys)
    other = SimpleNamespace(finish_s=run.tables["requests"]["finish_s"] + 1.0)
    with pytest.raises(InputError, match="simulated again it is another run"):
        export._check_same(run.folder, run, other)
    with pytest.raises(InputError, match=r"line 2: .* a second time, expected one moment of one server"):
        parsed('vllm:x{a="1"} 1 100\nvllm:x{a="1"} 2 200\n', "two")
    bad = tmp_path / "bad.om"
    bad.write_text('# TYPE vllm:x gauge\nvllm:x{a="1"} 1 100.000\nvllm:x{a="1"} 1\n# EOF\n')
    with pytest.raises(InputError, match="line 3: expected a sample with a timestamp"):
        series(bad)
    bad.write_text('vllm:x{a="1"} 1 100.000\n# EOF\n')
    with pytest.raises(InputError, match="all samples of one moment"):
        series(bad)


def test_each_engine_has_its_own_memory():
    """A replica that prefills has other KV blocks than those that decode: its share in use is of its own."""
    given = {
        "workload": {"preset": "chat", "requests": 40},
        "run": {"warmup_s": 0.0},
        "hardware": {"gpu": "h200"},
        "cluster": {"replicas": 2},
        "disaggregation": {"prefill_replicas": 1, "prefill_tensor_parallel": 2},
    }
    prepared = api.prepare(scenario_from_doc(given))
    rec = api.record(prepared)
    at_s = np.arange(0.0, rec.end_s, 0.5)
    lines = list(openmetrics(rec, prepared.workload, Labels("m", rec.block_size, True), at_s, 0.0))
    assert len(set(rec.kv_blocks_of.tolist())) == 2
    for replica, (samples, blocks) in enumerate(zip(rec.samples, rec.kv_blocks_of.tolist(), strict=True)):
        assert any(f'num_gpu_blocks="{blocks}",engine="{replica}"' in line for line in lines)
        usage = [line for line in lines if line.startswith(f'vllm:kv_cache_usage_perc{{engine="{replica}"')]
        most = max(float(line.split()[1]) for line in usage)
        place = np.searchsorted(samples.t_s, at_s, side="right") - 1
        assert most == pytest.approx(samples.blocks_in_use[place[place >= 0]].max() / blocks)
