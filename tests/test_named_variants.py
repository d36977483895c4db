"""Named variants: whole scenarios side by side, as files, as one file, in a link, as one page."""

import contextlib
import io
import json
from dataclasses import replace

import pytest

from kvcast import cli
from kvcast.config import load_scenario
from kvcast.jobs import demo, link
from kvcast.studies import named_variants
from workloads.errors import InputError
from workloads.mix import resolve

SMALL = """
[workload]
preset = "demo"
duration_s = 100.0
[run]
warmup_s = 20.0
[slo]
ttft_s = 0.2
attainment = 0.9
[cost]
gpu_hour_usd = 4.0
"""
OTHER = SMALL.replace("= 4.0", "= 2.0").replace("[slo]", '[cluster]\nreplicas = 3\n[hardware]\ngpu = "h100"\n[slo]')


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    (folder / "two.toml").write_text(SMALL)
    (folder / "three-h100.toml").write_text(OTHER)
    return folder


def compared(*argv):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["compare", *map(str, argv), "--json"]) == 0
    return json.loads(out.getvalue())


def test_two_files_are_two_variants_on_the_same_requests(files, tmp_path):
    page = tmp_path / "both.html"
    found = compared(files / "two.toml", files / "three-h100.toml", "--html", page)
    assert [one["variant"] for one in found["variants"]] == [{"variant": "two"}, {"variant": "three-h100"}]
    assert found["settings"]["cluster.replicas"] == ["1", "3"]
    assert found["settings"]["hardware.gpu"] == ["", "h100"]
    told = found["variants"][1]["vs_first"]
    assert told["prefix_hit_rate"]["interval_95"] is not None, "paired: the requests are the same"
    a, b = (one["summaries"][0] for one in found["variants"])
    assert a["arrived"] == b["arrived"]
    # each at its own price
    usd = told["usd_per_request"]
    assert usd["difference"] == pytest.approx(b["cost"]["usd_per_request"] - a["cost"]["usd_per_request"])
    assert a["cost"]["gpu_hour_usd"] == 4.0
    assert b["cost"]["gpu_hour_usd"] == 2.0
    assert 0 < usd["interval_95"] < abs(usd["difference"])
    words = page.read_text()
    assert "<script" not in words
    for said in ("cluster.replicas", "three-h100", "h100", "Against two", "TTFT mean"):
        assert said in words


def test_one_file_holds_them_all(files, tmp_path):
    named = named_variants.read([files / "two.toml", files / "three-h100.toml"])
    base = demo.scenario()
    named |= {'D: my "own" mix': replace(base, workload=replace(resolve(base.workload), preset=None))}
    (tmp_path / "variants.toml").write_text(named_variants.dumps(named))
    assert named_variants.read([tmp_path / "variants.toml"]) == named
    assert [one.scenario.seed for one in named_variants.variants(named, 2)] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("names", "more", "line"),
    [
        (["two.toml"], [], "two.toml: 1 to compare, expected 2 to 24"),
        (["two.toml", "two.toml"], [], "a second variant 'two'; expected every name once"),
        (["two.toml", "three-h100.toml"], ["--vary", "cluster.replicas=1,2"], "--vary with 2 scenario files"),
    ],
)
def test_what_is_no_comparison_is_one_line(files, capsys, names, more, line):
    assert cli.main(["compare", *(str(files / name) for name in names), *more]) == 2
    told = capsys.readouterr().err.strip()
    assert line in told
    assert "\n" not in told


def test_a_bad_variant_is_named(tmp_path, capsys):
    (tmp_path / "v.toml").write_text("[variant.A.workload]\npreset='chat'\n[variant.B.cluster]\nreplicas = 0\n")
    assert cli.main(["compare", str(tmp_path / "v.toml")]) == 2
    assert "[variant.B]" in capsys.readouterr().err


# -- links -------------------------------------------------------------------------------------------------------------


def test_variants_travel_in_a_link():
    base = demo.scenario()
    named = {"A": base, "C": load_scenario("examples/demo.toml", ["cluster.replicas=3", "hardware.gpu=b200"])}
    packed = link.packed_variants(named, base)
    assert len(packed) < 200
    assert link.variants_of(packed, base, ["lru"]) == named


@pytest.mark.parametrize(
    ("packed", "line"),
    [
        ("AAAA", "cut short or changed"),
        (link._packed("[1]"), "cut short or changed"),
        (link._packed('{"A": 3}'), "cut short or changed"),
        (link._packed('{"../x": {}}'), "expected names among A"),
        (link._packed('{"A": {"workload.trace": "/etc/passwd"}}'), "a page reads no files"),
    ],
)
def test_a_changed_link_is_one_line(packed, line):
    with pytest.raises(InputError, match=line):
        link.variants_of(packed, demo.scenario(), ["lru"])


def test_changes_say_what_was_and_what_is():
    base = demo.scenario()
    other = load_scenario("examples/demo.toml", ["cluster.replicas=3", "cache.policy=lfu", "slo.ttft_s=1"])
    assert link.changes(other, base) == [
        ("cache.policy", "lru", "lfu"),
        ("cluster.replicas", "2", "3"),
        ("slo.ttft_s", "none", "1.0"),
    ]
    edited = replace(base, workload=replace(resolve(base.workload), preset=None))
    assert link.changes(edited, base) == [("workload", "", "edited")]
