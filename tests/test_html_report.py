"""The HTML report: what a run folder says, in a page that fetches nothing, runs nothing and is the same every time."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from kvcast import cli, figures, load_run, text
from kvcast.figures.svg import as_svg
from kvcast.pages import results
from kvcast.present import verdict
from kvcast.present.html_report import of_folder, of_plan, of_run
from tests.ui.plans import PLAN

EVIL = "<img src=x onerror=alert(1)>"
SCENARIO = f"""
name = 'a "run" & <b>bold</b>'
[workload]
duration_s = 200.0
[[workload.class]]
name = "{EVIL}"
rate = 3.0
output = {{ value = 20 }}
layers = [{{ name = "</script><script>alert(2)</script>", scope = "global", tokens = {{ value = 600 }} }}, {{ name = "q", tokens = {{ value = 100 }} }}]
[[workload.class]]
name = "other"
rate = 1.0
output = {{ value = 30 }}
layers = [{{ name = "q", tokens = {{ value = 200 }} }}]
[model]
name = "llama-3.1-8b"
[hardware]
profile = "h200-llama-3.1-8b-aic"
[run]
warmup_s = 0.0
[slo]
ttft_s = 0.5
attainment = 0.95
"""  # noqa: E501


class Page(HTMLParser):
    """Every tag of a page, and its text; complains about tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    (path / "s.toml").write_text(SCENARIO)
    assert cli.main(["run", str(path / "s.toml"), "--out", str(path / "run")]) == 0
    return path / "run"


def test_the_page_says_what_the_run_folder_says(folder: Path) -> None:
    run = load_run(folder)
    s = run.summary
    words = Page(of_run(run)).text
    for told in (
        "Meets the target.",
        text.percent(s["attainment"]),
        text.milliseconds(s["p99_ttft_ms"]),
        text.milliseconds(s["p99_tpot_ms"]),
        text.percent(s["prefix_hit_rate"]),
        "Verdict by class",
        *(verdict.share_of(row["attainment"]) for row in s["verdict"]["classes"]),
        s["profile_hash"],
        s["engine_semantics"],
        f"{text.percent(s['coverage']['extrapolated'])} extrapolated",
        "Glossary",
        *s["notes"],
        *s["kv_arithmetic"],
        s["profile_provenance"]["provenance"]["source"],
    ):
        assert told in words, told
    assert "ttft_s = 0.5" in words  # the scenario, to run it again
    assert str(folder.parent) not in words


def test_the_same_folder_gives_the_same_bytes(folder: Path) -> None:
    assert of_folder(folder) == of_folder(folder) == results.as_html(load_run(folder))


def test_nothing_is_run_or_fetched_and_names_stay_text(folder: Path) -> None:
    page = of_folder(folder)
    parsed = Page(page)
    assert EVIL in parsed.text  # said, as text
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "img", "iframe", "link", "object", "embed", "a", "form", "b onerror"}
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")], tag
    assert "default-src 'none'" in next(a["content"] for tag, a in parsed.tags if a.get("http-equiv"))
    assert "url(" not in re.sub(r"url\(#clip-[a-z]+\)", "", page)
    assert "@import" not in page
    assert len(page) < 400_000


def test_an_unstable_run_has_a_growth_and_no_percentiles(folder: Path) -> None:
    run = load_run(folder)
    s = run.summary | {
        "verdict": run.summary["verdict"] | {"word": "misses", "reason": "unstable"},
        "stable": False,
        "stable_reason": "work in system grew",
        "backlog_growth_per_s": 1.25,
        "backlog_growth_tokens_per_s": 900.0,
    }
    s |= {key: None for key in s if re.match(r"(mean|median|std|p\d\d)_.*_ms$", key)}
    words = Page(of_run(replace(run, summary=s))).text
    assert "Misses the target." in words
    assert "cannot keep up: the backlog grows by +1.25 requests/s" in words
    assert "+1.25" in words
    assert "Backlog growth (requests/s)" in words
    assert words.count("TTFT, p99") == 1  # beside the run without a cache alone, with its caution
    assert "Unstable: these distributions only say how long this run was." in words


def test_every_verdict_has_a_colour_and_its_words(folder: Path) -> None:
    run = load_run(folder)
    for word, state, headline in (
        ("meets", "met", "Meets the target."),
        ("misses", "missed", "Misses the target."),
        ("not shown", "not-shown", "Not shown."),
    ):
        page = of_run(replace(run, summary=run.summary | {"verdict": run.summary["verdict"] | {"word": word}}))
        assert f'<div class="banner {state}"><strong>{headline}</strong>' in page
        assert f".banner.{state}{{border-left-color" in page
    assert "Verdict by class" not in of_run(replace(run, summary=run.summary | {"verdict": None}))


def test_extrapolated_numbers_carry_a_mark(folder: Path) -> None:
    run = load_run(folder)
    s = run.summary | {"coverage": {"measured": 0.0, "interpolated": 0.4, "extrapolated": 0.6}}
    words = Page(of_run(replace(run, summary=s))).text
    assert f"{text.percent(s['attainment'])} †" in words
    assert "60.0 % of simulated time is extrapolated" in words


def test_a_workload_without_shared_text_says_so(folder: Path) -> None:
    run = load_run(folder)
    words = Page(of_run(replace(run, summary=run.summary | {"prefix_identity": False}))).text
    assert "every hit rate is 0 because it is unknown" in words
    assert words.count("unknown") - Page(of_run(run)).text.count("unknown") == 1 + len(run.summary["classes"])
    row = {"class": "other", "hit rate (block 16)": "unknown", "ceiling": "unknown"}
    assert row.items() <= results.class_rows(run.summary | {"prefix_identity": False})[1].items()
    assert results.class_rows(run.summary)[0]["hit rate (block 16)"].endswith(" %")
    assert "Where the prompt tokens went" not in words


def test_many_classes_are_cut_to_the_largest(folder: Path) -> None:
    run = load_run(folder)
    row = run.summary["classes"]["other"]
    s = run.summary | {"classes": run.summary["classes"] | {f"class {i}": row | {"arrived": i} for i in range(40)}}
    words = Page(of_run(replace(run, summary=s))).text
    assert "and 30 classes with fewer requests" in words
    assert "class 39" in words
    assert "class 3\n" not in words


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_its_document_says(tmp_path: Path) -> None:
    plan = copy.deepcopy(PLAN)
    plan["name"] = EVIL
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    page = of_folder(tmp_path)
    assert page == of_folder(tmp_path)
    parsed = Page(page)
    words = parsed.text
    for told in (
        "2 × H200-SXM",
        "99.9 %",
        "7.4 requests/s",
        "headroom 60 %",
        "holds 8.8 requests/s instead of 7.4",
        "vllm serve",
        "3 times the load",
        "with the first advice: replicas",
        "not chosen: TTFT 1",
        "91.0 %",
        "coding-agent",
        "chat: TTFT",
        "5 independent runs",
        "the router is yours to run",
        EVIL,
        figures.goodput_by_rate(PLAN).layout.title.text,
    ):
        assert told.lower() in words.lower(), told
    assert not {"script", "img"} & {tag for tag, _ in parsed.tags}


def test_a_plan_without_an_answer_or_optional_parts(tmp_path: Path) -> None:
    plan = copy.deepcopy(PLAN)
    plan["answer"] |= {
        "feasible": False,
        "replicas": None,
        "gpus": None,
        "usd_per_hour": None,
        "attainment": None,
        "launch": None,
        "run": None,
    }
    plan |= {
        "capacity": None,
        "rates": None,
        "knee_per_s": None,
        "binding": None,
        "advice": None,
        "growth": None,
        "n_plus_1": None,
    }
    words = Page(of_plan(plan)).text
    assert verdict.planned(plan).headline in words
    assert figures.goodput_by_rate(PLAN).layout.title.text not in words


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_explains_what_is_no_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "r.html"
    assert cli.main(["report", str(folder), "--html", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == of_folder(folder)
    capsys.readouterr()
    for wrong, line in (
        (tmp_path / "none", "no such folder; expected one that kvcast run --out or kvcast plan --out wrote"),
        (out, "not a folder; expected"),
        (tmp_path, "run.json: no such file or directory; expected a run folder"),
    ):
        assert cli.main(["report", str(wrong), "--html", str(tmp_path / "x.html")]) == 2
        assert line in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{")
    assert cli.main(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 2
    assert "plan.json: not JSON" in capsys.readouterr().err


# -- figures as SVG ----------------------------------------------------------------------------------------------------


def path_points(svg: str, marker: str) -> list[list[tuple[float, float]]]:
    """Pen strokes of the path whose stroke has this colour."""
    d = next(m[1] for m in re.finditer(r'<path d="([^"]*)" fill="none" stroke="([^"]*)"', svg) if m[2] == marker)
    return [[tuple(map(float, point.split())) for point in stroke.split("L")] for stroke in d.split("M")[1:]]  # type: ignore[misc]


def line(x: list, y: list, **more: object) -> go.Figure:
    figure = go.Figure(go.Scatter(x=x, y=y, mode="lines", line={"color": "#123456"}, name="a", **more))
    return figure.update_layout(title={"text": "T"})


def test_a_line_goes_through_its_points_with_gaps() -> None:
    svg = as_svg(line([0, 1, 2, 3, 4], [0, 10, None, 5, 10]).update_yaxes(range=[0, 10]), "t")
    first, second = path_points(svg, "#123456")
    assert (len(first), len(second)) == (2, 2)
    assert first[0][1] > first[1][1] == second[1][1]  # 10 is higher than 0: y grows downwards
    assert second[0][1] == pytest.approx((first[0][1] + first[1][1]) / 2, abs=0.1)
    assert second[1][0] - second[0][0] == pytest.approx(first[1][0] - first[0][0], abs=0.1)


def test_a_log_axis_spaces_decades_alike() -> None:
    svg = as_svg(line([1, 10, 100, 0], [1, 2, 3, 4]).update_xaxes(type="log"), "t")
    ((a, b, c),) = path_points(svg, "#123456")  # zero has no place
    assert b[0] - a[0] == pytest.approx(c[0] - b[0], abs=0.1)


def test_markers_without_a_colour_are_seen() -> None:
    figure = go.Figure(
        go.Scatter(x=[2, 3, 40], y=[1, 2, 3], mode="markers", error_x={"type": "data", "array": [1, 1, 1]})
    ).update_xaxes(type="log")
    svg = as_svg(figure, "t")
    assert "None" not in svg
    assert len(re.findall(r'<path d="M[^"]*" fill="#0072B2"', svg)) == 3
    assert ">10<" in svg
    assert ">20<" in svg


def test_stacked_bars_end_where_their_sum_does() -> None:
    figure = go.Figure(
        [
            go.Bar(y=["p", "q"], x=[30, 0], orientation="h", name="a", marker={"color": "#000001"}),
            go.Bar(y=["p", "q"], x=[70, 50], orientation="h", name="b", marker={"color": "#000002"}),
        ]
    )
    svg = as_svg(figure.update_layout(barmode="stack", title={"text": "T"}).update_xaxes(range=[0, 100]), "t")
    rects = [
        tuple(map(float, m.groups()))
        for m in re.finditer(
            r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="#00000[12]"><title>', svg
        )
    ]
    (x1, y1, w1, _), (x2, y2, w2, _), (x3, y3, w3, _), (x4, y4, w4, _) = rects
    assert (y1, y2) == (y3, y4)
    assert y1 > y2  # the first category is at the bottom, as plotly has it
    assert x3 == pytest.approx(x1 + w1, abs=0.2)
    assert (w3 / w1, w2) == (pytest.approx(70 / 30, abs=0.02), 0)
    assert x4 == x2
    assert w4 == pytest.approx((w1 + w3) / 2, abs=0.2)


def test_every_word_of_a_figure_is_escaped() -> None:
    figure = (
        line([1, 2], [1, 2])
        .add_trace(go.Bar(x=[EVIL], y=[1], name=EVIL))
        .update_layout(title={"text": EVIL})
        .update_xaxes(title=EVIL)
    )
    Page(as_svg(figure, "t"))
    assert "<img" not in as_svg(figure, "t")


def test_every_figure_of_a_run_and_a_plan_can_be_drawn(folder: Path) -> None:
    run = load_run(folder)
    s, drawn, timeline = run.summary, run.aggregates, run.tables["timeline"]
    all_of_them = [
        figures.latency_cdf(s, drawn, "ttft"),
        figures.kv_occupancy(s, timeline),
        figures.hit_rate(s, timeline),
        figures.queue(timeline),
        figures.miss_causes(s),
        figures.replica_load(s, run.tables["requests"]),
        figures.request_life(figures.lives_of(s, drawn)),
        figures.goodput_by_rate(PLAN),
        figures.latency_by_rate(PLAN),
        figures.candidates(PLAN),
        figures.binding(PLAN),
        figures.growth(PLAN),
    ]
    for figure in all_of_them:
        svg = as_svg(figure, "t")
        Page(svg)
        assert "nan" not in svg
        assert "inf" not in svg
        assert svg == as_svg(figure, "t")
        numbers = np.array([float(v) for v in re.findall(r'[MLxy]="?(-?[\d.]+)', svg)])
        assert len(numbers) > 10
