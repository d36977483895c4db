"""Links and uploaded scenarios: there and back, as strict as a file, and harmless to the server."""

import base64
import sys
import zlib
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

import pytest

from kvcast import cli
from kvcast.config import load_scenario
from kvcast.jobs import link
from kvcast.scenario.toml import dumps
from workloads.errors import InputError
from workloads.mix import resolve

POLICIES = ["lru", "lfu", "s3fifo"]


@pytest.fixture(scope="module")
def base():
    return load_scenario("examples/demo.toml")


def changed(*overrides):
    return load_scenario("examples/demo.toml", overrides)


def back(base, scenario):
    """Through the browser's address."""
    return link.scenario_of(
        dict(parse_qsl(urlencode(link.query(scenario, base)), keep_blank_values=True)), base, POLICIES
    )


def test_the_demo_needs_no_parameters(base):
    assert link.query(base, base) == {}
    assert link.scenario_of({}, base, POLICIES) == base


def test_settings_are_short_readable_and_survive(base):
    scenario = changed(
        "workload.preset=rag",
        "cluster.replicas=4",
        "cache.policy=lfu",
        "slo.classes=",
        "slo.ttft_s=1",
        "hardware.profile=roofline:h100",
        "run.warmup_s=20",
        "seed=7",
    )
    params = link.query(scenario, base)
    assert params["workload.preset"] == "rag"
    assert params["cluster.replicas"] == "4"
    assert len(urlencode(params)) < 250
    assert back(base, scenario) == replace(scenario, name=""), "another workload does not keep the demo's name"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.name=hf:Qwen/Qwen3-32B-FP8", "hardware.gpu=h100"], ["model.name", "hardware.gpu"]),
        (["hardware.profile=atlas:b200:sglang", "model.name=gpt-oss-120b"], ["model.name", "hardware.profile"]),
        (["hardware.gpu=mi300x", "hardware.tensor_parallel=8"], ["hardware.tensor_parallel", "hardware.gpu"]),
        (["cost.prices={h200 = 3.5}", "cost.gpu_hour_usd="], ["cost.gpu_hour_usd", "cost.prices.h200"]),
        (
            ["model.dtype=fp8", "model.kv_dtype=fp8", "hardware.gpu=h200"],
            ["model.dtype", "model.kv_dtype", "hardware.gpu"],
        ),
    ],
)
def test_a_link_carries_names_of_models_and_gpus(base, overrides, expected):
    scenario = changed(*overrides)
    assert sorted(link.query(scenario, base)) == sorted(expected)
    assert back(base, scenario) == scenario
    assert "/" not in link.query(scenario, base).get("hardware.profile", "")


def test_a_link_carries_no_config_of_ones_own(base):
    with pytest.raises(InputError, match=r"uploaded config\.json, which a link cannot carry"):
        link.query(replace(base, model=replace(base.model, config="/srv/config.json")), base)


def test_a_key_that_goes_away_goes_away(base):
    for override in ("slo.attainment=", "cost.gpu_hour_usd=", "slo.classes.chat.ttft_s=", "slo.classes="):
        scenario = changed(override)
        assert back(base, scenario) == scenario, override


def test_a_mix_of_ones_own_goes_compressed_or_is_said_not_to_fit(base):
    mix = replace(base, workload=replace(resolve(base.workload), preset=None))
    params = link.query(mix, base)
    assert list(params) == [link.PACKED]
    assert back(base, mix) == mix
    many = tuple(
        replace(c, name=f"{c.name} {base64.b32encode(zlib.crc32(str(i).encode()).to_bytes(4, 'big')).decode()}")
        for i in range(400)
        for c in mix.workload.class_
    )
    with pytest.raises(InputError, match="does not fit in a link"):
        link.query(replace(mix, workload=replace(mix.workload, class_=many)), base)
    with pytest.raises(InputError, match="uploaded trace"):
        link.query(replace(base, workload=replace(base.workload, preset=None, trace="/srv/t.jsonl")), base)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"cluster.replicas": "-1"}, r"link: \[cluster\] replicas = -1: expected"),
        ({"cluster.replica": "1"}, "did you mean replicas"),
        ({"nonsense": "1"}, "'nonsense' is no setting"),
        ({"engine": "3"}, "engine = 3: expected a table"),
        ({"workload.trace": "/etc/passwd"}, "a page reads no files"),
        ({"model.config": "/etc/passwd"}, "a page reads no files"),
        ({"hardware.profile": "/tmp/p.json"}, "expected a bundled profile, atlas:GPU or roofline:GPU"),
        ({"hardware.profile": "../p"}, "expected a bundled profile"),
        ({"workload.demand.file": "/etc/passwd"}, r"\[workload.demand\] file = '/etc/passwd'.*a page reads no files"),
        ({"hardware.profile": "atlas:../../p"}, "expected a bundled profile"),
        ({"hardware.profile": "atlas:h300"}, "expected a bundled profile"),
        ({"hardware.gpu": "/tmp/h200"}, "expected one of a10, a100, "),
        ({"model.name": "/tmp/config.json"}, "expected one of codellama-34b"),
        ({"model.name": "hf:nobody/nothing"}, "or hf:ORG/NAME of a published checkpoint of one"),
        ({"workload.preset": "../../etc"}, "expected one of"),
        ({"cache.policy": "clairvoyance"}, "expected one of lru, lfu, s3fifo"),
        ({"scenario": "not base64!"}, "cut short or changed"),
        ({"scenario": "AAAA"}, "cut short or changed"),
        ({"workload.rate_scale": "9" * 7000}, "is no setting"),
        ({"slo.ttft_s": "[" * 3000}, "expected|nested"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_a_bad_link_is_one_clear_line(base, params, line):
    with pytest.raises(InputError, match=line) as error:
        link.scenario_of(params, base, POLICIES)
    assert "\n" not in str(error.value)


def test_a_link_never_imports_what_it_names(base, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    packed = base64.urlsafe_b64encode(
        zlib.compress(b'[workload]\npreset = "demo"\n[cache]\npolicy = "evil:Policy"\n')
    ).decode()
    for params in ({"cache.policy": "evil:Policy"}, {"scenario": packed}):
        with pytest.raises(InputError, match="own classes are named where the dashboard is started"):
            link.scenario_of(params, base, POLICIES)
    file = b'[workload]\npreset = "demo"\n[cluster]\nrouter = "evil:Router"\n'
    packed = base64.urlsafe_b64encode(zlib.compress(file)).decode()
    for read in (
        lambda: link.scenario_of({"cluster.router": "evil:Router"}, base, POLICIES),
        lambda: link.scenario_of({"scenario": packed}, base, POLICIES),
        lambda: link.scenario_in(file, "s.toml", POLICIES),
    ):
        with pytest.raises(InputError, match=r"\[cluster\] router = 'evil:Router'.* a page runs no code of yours"):
            read()
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ("[disaggregation]\nprefill_replicas = 1\nprefill_router = 'evil:Router'", "a page runs no code of yours"),
        ("[disaggregation]\nprefill_replicas = 1\nprefill_router = [1]", "a page runs no code of yours"),
        ("[cluster]\nrouter = [1]", "a page runs no code of yours"),
        ("[disaggregation]\nprefill_replicas = 1\nprefill_profile = '/etc/passwd'", "expected a bundled profile"),
        ("[workload.demand]\nfile = '/etc/passwd'", "a page reads no files of the server"),
        (
            "[[pool]]\nname = 'a'\nhardware = { profile = '/etc/passwd' }",
            r"\[pool.a\] hardware.profile = '/etc/passwd'",
        ),
        (
            "[[pool]]\nname = 'a'\nmodel = { config = '/etc/passwd' }",
            r"\[pool.a\] model.config = '/etc/passwd', .*no files",
        ),
        ("[[pool]]\nname = 'a'\nmodel = { name = '/tmp/m' }", r"\[pool.a\] model.name = '/tmp/m'"),
        ("[[pool]]\nhardware = { gpu = '/tmp/h200' }", r"\[pool.0\] hardware.gpu = '/tmp/h200'"),
        ("[pool]\nname = 'a'\nhardware = { profile = '/etc/passwd' }", "pool"),
    ],
)
def test_no_section_names_a_file_or_code(base, tmp_path, monkeypatch, tables, line):
    """Sections that came later are as harmless as the first: nothing is imported, and no row of a file is in a line."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    content = f"workload.preset = 'demo'\n{tables}\n".encode()
    packed = base64.urlsafe_b64encode(zlib.compress(content)).decode()
    for read in (
        lambda: link.scenario_in(content, "s.toml", POLICIES),
        lambda: link.scenario_of({"scenario": packed}, base, POLICIES),
    ):
        with pytest.raises(InputError, match=line) as said:
            read()
        assert "root:" not in str(said.value)
    assert "evil" not in sys.modules


def test_a_link_cannot_expand_without_bound(base):
    bomb = base64.urlsafe_b64encode(zlib.compress(b"#" * (200 << 20), 9)).decode()
    with pytest.raises(InputError, match="more than 256 KiB"):
        link.scenario_of({"scenario": bomb}, base, POLICIES)


def test_an_uploaded_scenario_is_read_as_a_file_is(base):
    scenario = changed("cluster.replicas=3", "name=mine")
    assert link.scenario_in(b"\xef\xbb\xbf" + dumps(scenario).encode(), "s.toml", POLICIES) == scenario
    for content, line in (
        (b"\xff\xfe", "not valid TOML"),
        (b"a = ", "not valid TOML"),
        (b"[workload]\ntrace = 'x.jsonl'\n", "upload the trace itself"),
        (b"x = 1\n", "workload is missing|no key"),
        (b"[workload]\npreset = 'demo'\n" + b"#" * (300 << 10), "more than 256 KiB"),
        (b"x = " + b"[" * 100_000, "nested too deeply|not valid"),
        (b"x = " + b"9" * 5000, "not valid TOML|no key|missing"),
        (b"[workload]\nrequests = 10\n[[workload.class]]\nname = 'a'\nrate = 1.0\n", "needs at least one"),
    ):
        with pytest.raises(InputError, match=line) as error:
            link.scenario_in(content, "s.toml", POLICIES)
        assert str(error.value).startswith("s.toml: ")
        assert "\n" not in str(error.value)


def test_the_command_line_says_the_same(base, tmp_path, capsys, monkeypatch):
    import shlex

    scenario = changed(
        "workload.duration_s=20", "cluster.replicas=3", "slo.classes=", "slo.ttft_s=0.5", "name=it's mine"
    )
    words = shlex.split(link.command(scenario, base))
    assert words[:2] == ["kvcast", "run"]
    words[-1] = str(tmp_path / "a")
    assert cli.main([*words[1:], "--no-baseline"]) == 0
    (tmp_path / "scenario.toml").write_text(dumps(scenario))
    assert cli.main(["run", str(tmp_path / "scenario.toml"), "--out", str(tmp_path / "b"), "--no-baseline"]) == 0
    capsys.readouterr()
    assert (tmp_path / "a" / "summary.json").read_bytes() == (tmp_path / "b" / "summary.json").read_bytes()
    mix = replace(base, workload=replace(resolve(base.workload), preset=None))
    assert link.command(mix, base) == "kvcast run scenario.toml --out my-run"
