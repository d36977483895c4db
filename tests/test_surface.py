"""What `from kvcast import ...` offers: every name is there, and a type checker is told where it really is."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kvcast

ROOT = Path(__file__).resolve().parent.parent


def test_the_names_are_sorted_and_listed_once():
    assert kvcast.__all__ == sorted(set(kvcast.__all__))
    assert set(kvcast.__all__) == set(kvcast._PUBLIC)
    assert set(kvcast.__all__) < set(dir(kvcast))


@pytest.mark.parametrize("name", kvcast.__all__)
def test_every_name_can_be_imported(name):
    assert getattr(kvcast, name) is getattr(import_module(kvcast._PUBLIC[name]), name)


def test_a_type_checker_reads_the_names_where_they_are_looked_up():
    """The imports under TYPE_CHECKING and the table of names say the same."""
    tree = ast.parse((ROOT / "kvcast" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == kvcast._PUBLIC


def test_a_wrong_name_is_answered_with_the_right_ones():
    with pytest.raises(AttributeError, match=r"kvcast has no 'simulat'; it has .*simulate"):
        kvcast.simulat  # noqa: B018


def test_importing_kvcast_loads_nothing_of_it():
    code = "import sys, kvcast; print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'sim', 'calibrate')])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_package_says_that_it_is_typed():
    for package in ("kernels", "calibrate", "workloads", "sim", "kvcast"):
        assert (ROOT / package / "py.typed").is_file()


def test_compare_is_the_document_that_the_command_prints(tmp_path, capsys):
    import json

    from kvcast.cli import main

    example, short = str(ROOT / "examples" / "demo.toml"), ["workload.duration_s=20", "run.warmup_s=0"]
    made = kvcast.compare(example, {"cache.policy": ["lru", "fifo"]}, overrides=short)
    sets = [word for one in short for word in ("--set", one)]
    assert main(["compare", example, *sets, "--vary", "cache.policy=lru,fifo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(made))


def test_the_api_page_is_current():
    """python -m tools.api_page > docs/api.md"""
    from tools.api_page import page

    assert (ROOT / "docs" / "api.md").read_text() == page()
