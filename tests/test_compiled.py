"""The compiled core is used whole, current and first, or not at all. `make test-fast` builds one and compares."""

import json
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import kvcast
from kvcast import compiled
from tools import fast

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "sim/request.py"


def made(folder: Path, **changes) -> Path:
    """A build that says it has one module, which nothing has imported."""
    record = {"suffix": EXTENSION_SUFFIXES[0], "sources": compiled.hashes([SOURCE]), "modules": {"sim.nobody": "x.so"}}
    (folder / compiled.MADE).write_text(json.dumps(record | changes))
    return folder


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv("KVCAST_PURE", raising=False)


def test_a_current_build_is_found_before_the_sources(tmp_path):
    assert compiled.use(made(tmp_path)) == compiled.COMPILED
    spec = sys.meta_path[0].find_spec("sim.nobody")
    assert spec.origin == str(tmp_path / "x.so")
    assert sys.meta_path[0].find_spec("sim.request") is None


@pytest.mark.parametrize(
    "changes", [{"sources": {SOURCE: "0" * 64}}, {"sources": {"sim/gone.py": ""}}, {"suffix": ".x"}]
)
def test_a_build_of_other_sources_is_left_out_and_said(tmp_path, changes):
    before = list(sys.meta_path)
    assert compiled.use(made(tmp_path, **changes)) == compiled.STALE
    assert sys.meta_path == before


def test_no_build_one_that_is_not_wanted_and_one_too_late_are_pure_python(tmp_path, monkeypatch):
    assert compiled.use(tmp_path) == compiled.PURE
    assert compiled.use(made(tmp_path, modules={"json": "x.so"})) == compiled.PURE, "it has been imported"
    monkeypatch.setenv("KVCAST_PURE", "1")
    assert compiled.use(made(tmp_path)) == compiled.PURE


def test_what_is_compiled_is_there_and_the_version_says_what_is_used():
    assert set(compiled.hashes([*fast.MYPYC, *fast.CYTHON])) == {*fast.MYPYC, *fast.CYTHON}
    for name in fast.OPEN:
        assert any(f"\nclass {name}" in (ROOT / source).read_text() for source in fast.MYPYC), name
    said = subprocess.run([sys.executable, "-m", "kvcast", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert said.stdout == f"kvcast {kvcast.__version__} ({kvcast.core})\n"
