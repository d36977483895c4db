"""The dashboard as a whole: what its source may not do, and how it is started. Flows are in tests/ui."""

import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvcast import cli
from kvcast.commands import dashboard
from kvcast.jobs import allowed, runner
from kvcast.pages import results
from kvcast.present import terms

ROOT = Path(__file__).parent.parent
ROOMS = ("pages", "present", "jobs")
PAGES = [ROOT / "app.py", *(path for room in ROOMS for path in (ROOT / "kvcast" / room).rglob("*.py"))]


def test_no_path_of_the_server_leaves_in_the_scenario():
    toml = '[workload]\ntrace = "/srv/runs/uploads/abc/my trace.jsonl"\nformat = "mooncake"\n'
    assert results.portable(toml) == '[workload]\ntrace = "my trace.jsonl"\nformat = "mooncake"\n'


def test_names_cannot_act_as_markdown():
    told = results.plain("![x](http://a.b) <b> $1 www.c.d e@f.g")
    shown = r"\!\[x\]\(http@\://a.b\) \<b\> \$1 www@.c.d e@@f.g"  # @: of no width, where an address would be linked
    assert told.replace("\N{WORD JOINER}", "@") == shown


def test_nothing_is_sent_or_evaluated():
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert settings["browser"]["gatherUsageStats"] is False
    assert settings["server"]["maxUploadSize"] << 20 == runner.UPLOAD_LIMIT_BYTES
    for path in PAGES:
        source = path.read_text()
        for word in (
            "unsafe_allow_html",
            "eval(",
            "exec(",
            "pickle",
            "http://",
            "https://",
            "page_icon",
        ):  # a material page icon is fetched from outside
            assert word not in source, (path, word)


def test_the_entry_only_lays_out():
    assert len((ROOT / "app.py").read_text().splitlines()) < 60
    out = subprocess.run(
        [sys.executable, "-c", "import sys, kvcast.jobs.runner, kvcast.jobs.link; print('streamlit' in sys.modules)"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert out.stdout.strip() == "False", "the parts that the command line uses need no streamlit"


def test_every_definition_is_used():
    readers = [path for path in PAGES if path.name != "terms.py"]
    source = "".join(path.read_text() for path in readers)
    for name in terms.TERMS:
        assert re.search(rf"['\"]{name}['\"]", source), name


def started(monkeypatch, *words):
    """What `kvcast dashboard` would start: (argv, environment); no server, no runs."""
    found = []
    monkeypatch.setattr(dashboard.subprocess, "call", lambda argv, env: found.append((argv, env)) or 0)
    monkeypatch.setattr("kvcast.jobs.demo.prepare", lambda _: None)
    monkeypatch.setattr(dashboard, "check_free", lambda address, port: None)
    assert cli.main(["dashboard", *words]) == 0
    return found[0]


def test_the_server_is_private_and_silent_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("KVCAST_RUNS", str(tmp_path))
    argv, env = started(monkeypatch, "--headless")
    first = argv.index("run") + 2
    flags = dict(zip(argv[first::2], argv[first + 1 :: 2], strict=True))
    assert flags["--server.address"] == "localhost"
    assert flags["--browser.gatherUsageStats"] == "false"
    assert flags["--client.showErrorDetails"] == "none"
    assert env[allowed.POLICIES] == ""


def test_own_policies_are_checked_before_the_server_starts(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KVCAST_RUNS", str(tmp_path))
    _, env = started(monkeypatch, "--policy", "examples.my_policy:LongPromptsFirst")
    assert env[allowed.POLICIES] == "examples.my_policy:LongPromptsFirst"
    for policy in ("lru", "nothing.here:Policy", "os:path"):
        assert cli.main(["dashboard", "--policy", policy]) == 2
        assert "\n" not in capsys.readouterr().err.strip()


def test_own_traces_are_named_and_can_be_read(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KVCAST_RUNS", str(tmp_path / "runs"))
    (tmp_path / "t.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    _, env = started(monkeypatch, "--trace", "day=t.jsonl")
    assert json.loads(env[allowed.TRACES]) == {"day": str(tmp_path / "t.jsonl")}
    for given in (["t.jsonl"], ["=t.jsonl"], ["a/b=t.jsonl"], ["a=t.jsonl", "a=t.jsonl"], ["day="], ["day=nowhere"]):
        assert cli.main(["dashboard", *(word for one in given for word in ("--trace", one))]) == 2
        assert f"kvcast: --trace {given[-1]}: " in capsys.readouterr().err


def test_a_taken_port_is_said_before_the_example_is_simulated(monkeypatch, capsys):
    monkeypatch.setattr("kvcast.jobs.demo.prepare", lambda _: pytest.fail("simulated first"))
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["dashboard", "--port", str(port)]) == 2
    assert (
        f"--port {port}: localhost cannot be listened on (Address already in use); expected a free port"
        in capsys.readouterr().err
    )
    dashboard.check_free("localhost", port)


@pytest.mark.parametrize("port", ["0", "70000", "x"])
def test_a_port_is_a_port(port, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["dashboard", "--port", port])
    assert error.value.code == 2
