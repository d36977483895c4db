"""The Timeline and Life pages: windows, jumps, lives; counted against the tables and against a simulation chunk by
chunk."""

import json

import numpy as np
import pytest

from kvcast import api, cli, figures
from kvcast.config import load_scenario
from kvcast.pages import life as life_page
from kvcast.pages import shell, timeline
from kvcast.scenario.toml import dumps
from kvcast.store.runs import load_run
from kvcast.studies import request_lives
from sim.recording import COMPLETED, TOO_LONG, UNFINISHED
from tests.ui.conftest import Session

TIGHT = ["run.duration_s=60", "cluster.replicas=2", "engine.kv_blocks=1500", "workload.rate_scale=2.0"]


@pytest.fixture(scope="module")
def tight(tmp_path_factory):
    """A run whose memory is too small for it: requests wait and are preempted."""
    folder = tmp_path_factory.mktemp("tight") / "run"
    sets = [part for change in TIGHT for part in ("--set", change)]
    assert cli.main(["run", "examples/demo.toml", *sets, "--no-baseline", "--out", str(folder)]) == 0
    return load_run(folder)


def table(*rows):
    """Requests: (arrival, admit, first, finish, status, preemptions, replica)."""
    names = ("arrival_s", "admit_s", "first_token_s", "finish_s", "status", "preemptions", "replica")
    columns = {name: np.array([row[i] for row in rows], float) for i, name in enumerate(names)}
    columns |= {name: columns[name].astype(int) for name in ("status", "preemptions", "replica")}
    return columns | {"ttft_s": columns["first_token_s"] - columns["arrival_s"]}


NAN = float("nan")
FOUR = table(
    (0.0, 1.0, 2.0, 5.0, COMPLETED, 0, 0),
    (1.0, 3.0, 9.0, 10.0, COMPLETED, 2, 1),
    (4.0, NAN, NAN, NAN, UNFINISHED, 0, 0),
    (4.5, NAN, NAN, NAN, TOO_LONG, 0, 0),
)


def test_who_was_there_and_how_many():
    assert request_lives.present(FOUR, 0.0, 20.0).tolist() == [0, 1, 2], (
        "one that was turned away was never in the system"
    )
    assert request_lives.present(FOUR, 6.0, 7.0).tolist() == [1, 2]
    assert request_lives.present(FOUR, 0.0, 0.5).tolist() == [0]
    assert request_lives.chosen(FOUR, 0.0, 20.0, most=1).tolist() == [1], "preempted ones first"
    counts = request_lives.counts(FOUR, 2, 0.0, 19.9)
    at = {t: int(np.searchsorted(counts["t_s"], t)) for t in (0.55, 2.05, 4.05, 7.05, 12.05)}
    assert [int(counts["waiting"][i]) for i in at.values()] == [1, 1, 1, 1, 1]
    assert [counts["running"][:, i].tolist() for i in at.values()] == [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]


def test_where_to_jump():
    slowest, first, queue = request_lives.jumps(FOUR, 20.0)
    assert (slowest.label, slowest.words) == ("Slowest first token", "request 1, TTFT 8.00 s")
    assert slowest.start_s <= 1.0
    assert slowest.end_s >= 10.0
    assert (first.label, first.words) == ("First preemption", "request 1, preempted 2 times")
    assert queue.label == "Longest queue"
    assert queue.words.startswith("1 requests waiting at ")
    calm = table((0.0, 0.0, 2.0, 5.0, COMPLETED, 0, 0))
    assert [jump.label for jump in request_lives.jumps(calm, 10.0)] == ["Slowest first token"]


def test_coarse_lives_end_where_the_request_does(tight):
    requests = tight.tables["requests"]
    ids = request_lives.chosen(requests, 0.0, 60.0)
    assert requests["preemptions"][ids].any()
    for life in request_lives.coarse(requests, list(tight.summary["classes"]), ids):
        assert life.phases[0][1] == requests["arrival_s"][life.request]
        assert life.phases[-1][2] == pytest.approx(requests["finish_s"][life.request])
        assert all(a[2] == pytest.approx(b[1]) for a, b in zip(life.phases, life.phases[1:], strict=False)), "no gaps"


def test_exact_lives_agree_with_the_run(tight):
    """The same window simulated again: the same admissions, first tokens and preemptions, in chunks."""
    requests = tight.tables["requests"]
    prepared = api.prepare(load_scenario("examples/demo.toml", TIGHT))
    found = request_lives.exact(prepared, 5.0, 25.0)
    assert found["present"] == len(request_lives.present(requests, 5.0, 25.0))
    shown = request_lives.from_document(json.loads(json.dumps(found)))
    assert shown
    for life in shown:
        r = life.request
        assert life.phases[0][1] == requests["arrival_s"][r]
        assert all(start < stop <= 25.0 for _, start, stop, _ in life.phases if stop > start)
        if requests["finish_s"][r] < 25.0:
            assert life.phases[-1][2] == requests["finish_s"][r]
            assert life.preemptions == requests["preemptions"][r]
            assert sum(what == "preempted" for what, *_ in life.phases) >= (life.preemptions > 0)
            computed = sum(tokens for what, _, _, tokens in life.phases if what == "prefill")
            assert computed >= life.prompt_tokens - life.hit_tokens
            if not life.preemptions:
                assert computed == life.prompt_tokens - life.hit_tokens
        else:
            assert life.phases[-1][2] == 25.0, "still there: cut at the end of the window"
    assert any(life.preemptions for life in shown)
    assert any(sum(what == "prefill" for what, *_ in life.phases) > 1 for life in shown), "chunks"


def spent(life, end_s):
    """What each request did until then: seconds and prefill chunks of every phase."""
    found = {}
    for what, start, stop, tokens in life.phases:
        if start < min(stop, end_s):
            seconds, chunks = found.get(what, (0.0, 0))
            found[what] = seconds + min(stop, end_s) - start, chunks + (tokens > 0)
    return {what: (round(seconds, 9), chunks) for what, (seconds, chunks) in found.items()}


@pytest.mark.parametrize(
    ("semantics", "blocks", "inside"),
    [
        ("vllm", 700, ("prefill", "first", "decode", "preempted", "recompute")),
        ("sglang", 2500, ("prefill", "first", "decode")),
    ],
)
def test_a_cut_life_is_the_whole_one_until_then(semantics, blocks, inside):
    """Cut in a prefill chunk, a decode, a preemption and what is computed again after it: the phases are those of the
    life that goes on."""
    sets = [*TIGHT, f"engine.semantics={semantics}", f"engine.kv_blocks={blocks}"]
    prepared = api.prepare(load_scenario("examples/demo.toml", sets))
    whole = {life.request: life for life in request_lives.from_document(request_lives.exact(prepared, 0, 30, 10_000))}
    cuts = {}  # what the request is in the middle of -> (when, which)
    for life in whole.values():
        for before, (what, start, stop, _) in zip([("", 0, 0, 0), *life.phases], life.phases, strict=False):
            doing = "recompute" if before[0] == "preempted" and what == "prefill" else what
            if start < stop < 30:
                cuts.setdefault(doing, []).append((start + 0.4 * (stop - start), life.request))
            if what == "decode" and start + 0.0005 < min(stop, 30):
                cuts.setdefault("first", []).append((start + 0.0005, life.request))  # its step after the prefill
    for doing in inside:
        for end_s, request in cuts[doing][:: max(len(cuts[doing]) // 3, 1)][:4]:
            found = request_lives.from_document(request_lives.exact(prepared, 0, end_s, 10_000))
            for life in found:
                assert spent(life, end_s) == spent(whole[life.request], end_s), (doing, end_s, life.request)
            (cut,) = (life for life in found if life.request == request)
            assert cut.phases[-1][0] == {"recompute": "prefill", "first": "decode"}.get(doing, doing)
            assert cut.phases[-1][2] == end_s


def test_a_chrome_trace_has_a_row_a_request(tight):
    requests = tight.tables["requests"]
    shown = request_lives.coarse(requests, list(tight.summary["classes"]), request_lives.chosen(requests, 5.0, 25.0, 5))
    trace = request_lives.chrome_trace(shown)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == sum(len(life.phases) for life in shown)
    life = shown[0]
    mine = [event for event in spans if event["tid"] == life.request]
    assert mine[0]["ts"] == pytest.approx(1e6 * life.phases[0][1], abs=0.001)
    assert sum(event["dur"] for event in mine) == pytest.approx(
        1e6 * (life.phases[-1][2] - life.phases[0][1]), abs=0.01
    )
    assert {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"} <= {
        "replica 0",
        "replica 1",
    }


def test_figures_of_a_window(tight):
    requests = tight.tables["requests"]
    counts = request_lives.counts(requests, 2, 5.0, 25.0)
    running, waiting = figures.in_system(counts).data
    assert list(running.y) == counts["running"].sum(axis=0).tolist()
    assert list(waiting.y) == counts["waiting"].tolist()
    (heat,) = figures.by_replica(counts).data
    assert np.asarray(heat.z).shape == (2, request_lives.BINS)
    shown = request_lives.coarse(requests, list(tight.summary["classes"]), request_lives.chosen(requests, 5.0, 25.0))
    figure = figures.lives(shown, 5.0, 25.0)
    assert {trace.name for trace in figure.data} == {"queued", "prefill", "decode", "preempted"}
    assert figure.layout.xaxis.range == (5.0, 25.0)
    assert all(base < 25.0 for trace in figure.data for base in trace.base)
    around = figures.window_of(tight.tables["timeline"], 5.0, 25.0)
    assert around["t_s"][0] <= 5.0
    assert around["t_s"][-1] >= 25.0


def test_windows_stay_in_the_run():
    assert timeline._inside(-5.0, 5.0, 100.0) == (0.0, 10.0)
    assert timeline._inside(95.0, 115.0, 100.0) == (80.0, 100.0)
    assert timeline._inside(-50.0, 500.0, 100.0) == (0.0, 100.0)
    assert timeline._inside(5.0, 4.0, 100.0) == pytest.approx((5.0, 5.1))


def test_the_page_opens_at_the_slowest_request_and_moves(folder):
    session = Session("timeline")
    run = load_run(session.at.session_state.job.folder)
    requests = run.tables["requests"]
    worst = int(np.nanargmax(requests["ttft_s"]))
    state = session.at.session_state
    assert state["timeline.from"] <= requests["arrival_s"][worst]
    assert state["timeline.to"] >= requests["finish_s"][worst]
    assert f"request {worst}, " in session.words()
    assert "No request was preempted in this run." in session.words()
    assert "First preemption" not in session.buttons()
    rows = next(frame.value for frame in session.at.dataframe if "request" in frame.value.columns)
    assert worst in list(rows["request"])
    before = session.at.session_state["timeline.from"]
    session.at.button(key="timeline.chevron_right").click()
    session.settle(session.at.run())
    assert session.at.session_state["timeline.from"] > before
    session.press("Longest queue")
    assert (
        f"{len(request_lives.present(requests, state['timeline.from'], state['timeline.to'])):,} requests were in the"
        " system" in session.words()
    )


def test_a_window_is_simulated_again_on_request(folder):
    session = Session("timeline")
    state = session.at.session_state
    start_s, stop_s = state["timeline.from"], state["timeline.to"]
    assert "From the run folder" in session.words()
    session.press(timeline.LABEL)
    job = shell.runner_of(str(folder)).existing(
        state["job"].scenario_toml, "timeline", "--window", f"{start_s:.3f},{stop_s:.3f}"
    )
    job.wait()
    assert job.done, job.failure()
    session.settle(session.at.run())
    assert "Simulated again, chunk by chunk." in session.words()
    assert timeline.LABEL not in session.buttons()


def test_the_command_shows_a_window(capsys, tmp_path):
    out = tmp_path / "trace.json"
    assert (
        cli.main(
            [
                "timeline",
                "examples/demo.toml",
                "--set",
                "run.duration_s=20",
                "--window",
                "5,10",
                "--most",
                "3",
                "--trace",
                str(out),
            ]
        )
        == 0
    )
    assert "requests in the system between 5 and 10 s, 3 shown" in capsys.readouterr().out
    assert json.loads(out.read_text())["traceEvents"]
    with pytest.raises(SystemExit):
        cli.main(["timeline", "examples/demo.toml", "--window", "10,5"])
    assert "expected 0 <= START < END" in capsys.readouterr().err


# -- the Life page -----------------------------------------------------------------------------------------------------


def test_the_textbook_is_there_at_once_and_walks(folder):
    session = Session("life")
    table = next(frame.value for frame in session.at.dataframe if "blocks of" in frame.value.columns)
    assert table.to_numpy().tolist() == [["1 token", "7,000", "3,000", "150"], ["16 tokens", "7,000", "3,000", "158"]]
    assert "request 2 (C): 7,150 prompt tokens, 6,992 from the cache, 158 new (blocks of 16)" in session.words()
    assert "Step 1 of 6, queue" in session.words()
    session.press("Next")
    assert "Step 2 of 6, prefix cache" in session.words()
    assert "The 8 beyond the last whole block are computed again." in session.words()
    session.press("Back")
    assert "Step 1 of 6, queue" in session.words()


def test_the_life_of_a_request_of_the_run(folder):
    session = Session("life")
    session.at.session_state["life.which"] = life_page.OF_RUN
    session.settle(session.at.run())
    run = load_run(session.at.session_state.job.folder)
    worst = int(run.aggregates["slowest"][0]["request"])
    session.press(life_page.LABEL)
    job = next(job for job in shell.runner_of(str(folder))._jobs.values() if job.command[:2] == ("explain", "--life"))
    assert job.command[2] == str(worst)
    job.wait()
    assert job.done, job.failure()
    session.settle(session.at.run())
    row = run.tables["requests"]
    told = f"request {worst} ({list(run.summary['classes'])[row['class_id'][worst]]}): {row['prompt_tokens'][worst]:,}"
    assert told in session.words()


def test_figures_of_a_life_say_what_they_show():
    lives = life_page.lives_of(dumps(load_scenario("examples/demo.toml")), 16)
    prompts = figures.life_prompts(lives)
    assert sum(np.sum(bar.x) for bar in prompts.data) == 7000 + 5000 + 7150
    cached = sum(np.sum(bar.x) for bar in prompts.data if bar.name == "from the cache")
    assert cached == 2000 + 6992
    assert "C: 7,150 tokens, 6,992 from the cache, 158 computed" in prompts.layout.meta
    memory = figures.life_memory(lives[2], at=2)
    assert [line.name for line in memory.data] == ["prefill", "decode", "from the cache"]
    assert list(memory.data[0].y) == [6992, 7150]
    assert memory.layout.meta.startswith("KV memory of the request over time: 6,992 tokens at 0 ms, 7,150 tokens at")
