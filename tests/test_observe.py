"""kvcast observe: pages of our own, in the shape of vLLM's and SGLang's, from files and from a local server."""

from __future__ import annotations

import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvcast.api import load_workload
from kvcast.cli import main
from kvcast.config import load_scenario
from kvcast.observed import page as pages
from kvcast.observed import parsed, seen, watch
from kvcast.observed.assumed import points
from kvcast.observed.counted import Lengths
from kvcast.observed.server import address, fetch
from workloads.errors import InputError
from workloads.reuse import infinite_cache

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def histogram(name: str, labels: str, counts: dict[str, int], total: int) -> str:
    up_to, lines = 0, []
    for end, count in {**counts, "+Inf": 0}.items():
        up_to += count
        lines.append(f'{name}_bucket{{{labels},le="{end}"}} {up_to}.0')
    return "\n".join(
        [f"# TYPE {name} histogram", *lines, f"{name}_count{{{labels}}} {up_to}", f"{name}_sum{{{labels}}} {total}"]
    )


def vllm(n: int = 0, running: int = 0, hits: float = 0.4, old: bool = False, more: str = "") -> str:
    """A page after n x 4 requests; V1's names, or those of its first releases (`old`)."""
    labels = f'engine="0",model_name="{MODEL}"'
    cache, usage = ("gpu_prefix_cache", "gpu_cache_usage_perc") if old else ("prefix_cache", "kv_cache_usage_perc")
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{{{labels}}} {running}.0
vllm:num_requests_waiting{{{labels}}} 0.0
vllm:{usage}{{{labels}}} 0.25
vllm:request_success_total{{finished_reason="stop",{labels}}} {n * 3}
vllm:request_success_total{{finished_reason="length",{labels}}} {n} 1700000000000
vllm:{cache}_queries_total{{{labels}}} {n * 3200}
vllm:{cache}_hits_total{{{labels}}} {n * 3200 * hits:.0f}
vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="27000"}} 1.0
{histogram("vllm:request_prompt_tokens", labels, {"500.0": n, "1000.0": 2 * n, "2000.0": n}, 3200 * n)}
{histogram("vllm:request_generation_tokens", labels, {"100.0": 2 * n, "200.0": 2 * n}, 400 * n)}
{more}
"""


def sglang(n: int, running: int = 0, lengths: bool = True) -> str:
    labels = f'engine_type="unified",model_name="{MODEL}",tp_rank="0"'
    page = f"""sglang:num_running_reqs{{{labels}}} {running}
sglang:num_queue_reqs{{{labels}}} 0
sglang:token_usage{{{labels}}} 0.5
sglang:max_total_num_tokens{{{labels}}} 430000
sglang:page_size{{{labels}}} 64
sglang:num_requests_total{{{labels},is_streaming="true"}} {n * 3}
sglang:num_requests_total{{{labels},is_streaming="false"}} {n}
sglang:prompt_tokens_total{{{labels}}} {n * 3200}
sglang:generation_tokens_total{{{labels}}} {n * 400}
sglang:cached_tokens_total{{{labels},cache_source="device"}} {n * 1000}
sglang:cached_tokens_total{{{labels},cache_source="host"}} {n * 600}
"""
    if not lengths:
        return page
    return (
        page
        + histogram("sglang:prompt_tokens_histogram", labels, {"500.0": n, "1000.0": 2 * n, "2000.0": n}, 3200 * n)
        + "\n"
        + histogram("sglang:generation_tokens_histogram", labels, {"100.0": 2 * n, "200.0": 2 * n}, 400 * n)
    )


# ---- pages ----


@pytest.mark.parametrize("old", [False, True])
def test_two_pages_of_vllm_are_a_rate_lengths_and_a_hit_rate(old: bool) -> None:
    before, after = (parsed(text, "p") for text in (vllm(100, 3, old=old), vllm(160, 9, old=old)))
    found = seen([(0.0, before), (60.0, after)])
    assert (found.finished, found.arrived, found.rate) == (240, 246, 4.1)
    assert found.hit_rate == pytest.approx(0.4, abs=1e-4)
    assert (found.running, found.waiting, found.usage) == (6, 0, 0.25)
    assert (found.block_size, found.kv_blocks, found.replicas, found.prefix_caching) == (16, 27000, 1, True)
    assert found.prompts == Lengths((0, 500, 1000, 2000), (500, 1000, 2000, float("inf")), (60, 120, 60, 0), 800)
    assert found.answers.mean == 100


def test_sglang_says_it_by_other_names() -> None:
    found = seen([(0.0, parsed(sglang(10), "p")), (30.0, parsed(sglang(40), "p"))])
    assert (found.finished, found.rate, found.hit_rate) == (120, 4, 0.5)
    assert (found.block_size, found.kv_blocks) == (64, 6718)
    assert found.prompts.requests == (30, 60, 30, 0)
    bare = seen([(0.0, parsed(sglang(10, lengths=False), "p")), (30.0, parsed(sglang(40, lengths=False), "p"))])
    assert bare.prompts == Lengths((), (), (), 800)
    assert points(bare.prompts, "prompts")[0] == [(800, 1.0, "all")]


def test_v0_has_a_gauge_of_the_hit_rate_and_no_engine_label() -> None:
    text = vllm(5).replace('engine="0",', "")
    text = "\n".join(line for line in text.splitlines() if "prefix_cache_" not in line)
    found = seen([(0.0, parsed(f"{text}\nvllm:gpu_prefix_cache_hit_rate 0.31", "p"))], 10.0)
    assert (found.hit_rate, found.finished, found.replicas) == (0.31, 20, 1)
    assert any("V0's gauge" in note for note in found.notes)


def test_several_engines_are_replicas_and_are_summed() -> None:
    text = vllm(10) + vllm(20).replace('engine="0"', 'engine="1"')
    found = seen([(0.0, parsed(text, "p"))], 10.0)
    assert (found.replicas, found.finished, found.kv_blocks) == (2, 120, 27000)
    assert found.prompts.requests == (30, 60, 30, 0)


def test_the_place_in_a_bucket_is_where_the_recorded_mean_is() -> None:
    found, notes = points(Lengths((0, 500, 1000), (500, 1000, float("inf")), (1, 2, 1), 800), "prompts")
    assert sum(tokens * share for tokens, share, _ in found) == pytest.approx(800, abs=0.5)
    assert [tokens for tokens, _, _ in found] == [240, 740, 1480], "0.48 of each bucket, the last up to 2000"
    assert any("25.0% are longer than 1,000 tokens" in note for note in notes)
    outside, notes = points(Lengths((0, 500), (500, 1000), (1, 1), 2000), "prompts")
    assert [tokens for tokens, _, _ in outside] == [500, 1000]
    assert any("is outside the buckets" in note for note in notes)


# ---- the scenario ----


@pytest.mark.parametrize("hits", [0.0, 0.4, 0.9])
def test_the_scenario_has_the_rate_the_lengths_and_the_hit_rate_that_were_seen(tmp_path: Path, hits: float) -> None:
    (tmp_path / "a.txt").write_text(vllm(100, hits=hits))
    (tmp_path / "b.txt").write_text(vllm(200, hits=hits))
    out = tmp_path / "S.toml"
    asked = ["observe", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--seconds", "100", "--out", str(out)]
    assert main([*asked, "--set", "hardware.gpu=h200", "--set", "workload.requests=4000"]) == 0
    document = tomllib.loads(out.read_text())
    assert document["engine"] == {"semantics": "vllm", "block_size": 16, "kv_blocks": 27000}
    assert document["workload"]["rate"] == 4
    scenario = load_scenario(out)
    assert (scenario.model.name, scenario.hardware.gpu) == ("llama-3.1-8b", "h200")
    workload = load_workload(scenario.workload, 1)
    assert workload.prompt_tokens.mean() == pytest.approx(800, rel=0.02)
    assert workload.output_tokens.mean() == pytest.approx(100, rel=0.03)
    hit = infinite_cache(workload, 16).hit_tokens.sum() / workload.prompt_tokens.sum()
    assert hit == pytest.approx(hits, abs=0.005)
    text = out.read_text()
    for said in (
        "# not on the page: the GPU",
        "# seen in 100.0 s: 400 requests finished",
        "# assumed: requests come as",
    ):
        assert said in text


# ---- a server ----


@contextmanager
def serving(*answers: object) -> Iterator[tuple[str, list[str]]]:
    """(URL, paths asked for) of a local server that gives these in turn, the last one for ever: a page, a (status,
    headers, body), or a function of the handler."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            if callable(answer):
                answer(self)
                return
            status, headers, body = (200, {}, answer.encode()) if isinstance(answer, str) else answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_is_watched_and_only_its_metrics_are_asked_for(capsys) -> None:
    with serving(vllm(10), vllm(12), vllm(60)) as (url, asked):
        assert main(["observe", url, "--for", "0.2s", "--set", "hardware.gpu=h200"]) == 0
    assert set(asked) == {"/metrics"}
    assert 2 <= len(asked) <= 21
    assert "200 requests finished" in capsys.readouterr().out


def test_a_server_that_restarts_meanwhile_is_one_line() -> None:
    with (
        serving(vllm(10), vllm(2)) as (url, _),
        pytest.raises(InputError, match="fell from 40 to 8: the server restarted"),
    ):
        seen(watch(url, 0.1))


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        try:
            handler.wfile.write(b"vllm:x 1\n")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.02)


def nothing(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.4)


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"vllm:x 1\n" * 10_000)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((302, {"Location": "http://elsewhere.invalid/metrics"}, b""), "redirects to http://elsewhere.invalid/metrics"),
        ((404, {}, b""), "HTTP 404, expected a metrics page"),
        ("<html>\n<body>hi</body>", "no metrics page"),
        ("", "no metrics page"),
        ("go_goroutines 12\n", "1 metrics, none begins with vllm: or sglang:"),
        ("vllm:a 1\nvllm:b one\n", "line 2: 'vllm:b one'"),
        (drip, "not whole after 0.2 s"),
        (nothing, "expected a server that answers"),
        (endless, "more than 1 MiB"),
    ],
)
def test_whatever_a_server_answers_ends_in_one_line(monkeypatch, answer: object, line: str) -> None:
    monkeypatch.setattr("kvcast.observed.server.MAX_BYTES", 1 << 20)
    monkeypatch.setattr(pages, "MAX_BYTES", 1 << 20)
    with serving(answer) as (url, _), pytest.raises(InputError) as said:
        fetch(address(url), 0.2)
    assert line in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "url", ["http://", "ftp://host/metrics", "http://user:pw@host/", "http://host:99999", "http://[x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="expected a server such as"):
        address(url)


def test_a_path_of_the_users_is_kept() -> None:
    assert address("http://h:1") == "http://h:1/metrics"
    assert address("https://h/proxy/metrics?x=1") == "https://h/proxy/metrics?x=1"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('vllm:num_requests_waiting{engine="1"} NaN', "vllm:num_requests_running{'engine'"),
        ('vllm:request_prompt_tokens_bucket{le="wide"} 1', "le = 'wide', expected a number"),
        ('vllm:num_requests_running{model_name="other"} 1', "2 models"),
    ],
)
def test_values_that_are_none_are_one_line(more: str, line: str) -> None:
    if "NaN" in more:
        more = 'vllm:num_requests_running{engine="1"} NaN'
    with pytest.raises(InputError) as said:
        seen([(0.0, parsed(vllm(9, more=more), "p"))], 10.0)
    assert line in str(said.value)


def test_a_server_without_load_and_pages_without_a_time_are_refused(tmp_path: Path, capsys) -> None:
    with pytest.raises(InputError, match="no request finished in 60 s"):
        seen([(0.0, parsed(vllm(5), "p")), (60.0, parsed(vllm(5), "p"))])
    (tmp_path / "a.txt").write_text(vllm(5))
    assert main(["observe", str(tmp_path / "a.txt")]) == 2
    assert "expected a URL (http://...), or one or two saved pages and --seconds" in capsys.readouterr().err
    assert main(["observe", str(tmp_path / "none.txt"), "--seconds", "5m"]) == 2
    assert "No such file" in capsys.readouterr().err
