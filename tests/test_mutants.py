"""The table of planted faults keeps up with the code (`make mutants` plants them), and what counts as noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import KILLED, ROOT, SURVIVED, WRONG, Mutant, judge

TABLE = mutants.load()


@pytest.mark.parametrize("mutant", TABLE, ids=lambda m: m.name)
def test_every_fault_can_be_planted_and_its_tests_are_there(mutant: Mutant) -> None:
    mutant.planted()
    assert mutant.old != mutant.new
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert not name or re.search(rf"^def {name.partition('[')[0]}\(", (ROOT / file).read_text("utf-8"), re.M), test


def test_no_fault_is_there_twice() -> None:
    assert len({m.name for m in TABLE}) == len({(m.file, m.old, m.new) for m in TABLE}) == len(TABLE)


def test_a_text_that_is_not_there_once_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    for old, times in (("= 1", 2), ("z", 0)):
        with pytest.raises(ValueError, match=rf"{times} times in a\.py, expected once"):
            Mutant("m", "a.py", old, "", ()).planted(tmp_path)
    assert Mutant("m", "a.py", "x = 1", "x = 2", ()).planted(tmp_path) == "x = 2\ny = 1\n"
    with pytest.raises(SyntaxError):
        Mutant("m", "a.py", "x = 1", "x =", ()).planted(tmp_path)


@pytest.mark.parametrize(
    ("code", "said", "word"),
    [
        (0, "1 passed", SURVIVED),
        (0, "1 skipped", SURVIVED),
        (1, "FAILED tests/test_a.py::test_b - assert 1 == 2", KILLED),
        (1, "FAILED tests/test_a.py::test_b[a - b] - IndexError: list index out of range", KILLED),
        (1, "FAILED tests/test_a.py::test_b - NameError: name 'np' is not defined", WRONG),
        (1, "ERROR tests/test_a.py - ImportError: cannot import name 'x'", WRONG),
        (1, "FAILED tests/test_a.py::test_b - assert 0\nERROR tests/test_a.py::test_c - KeyError: 1", WRONG),
        (2, "ERROR tests/test_a.py", WRONG),
        (4, "ERROR: not found: tests/test_a.py::test_b", WRONG),
        (5, "no tests ran", WRONG),
    ],
)
def test_only_a_failed_test_notices(code: int, said: str, word: str) -> None:
    assert judge(code, f"...\n{said}\n").word == word


def test_a_fault_is_gone_from_the_copy_afterwards_and_never_in_the_tree(tmp_path: Path) -> None:
    mutant = TABLE[0]
    before = (ROOT / mutant.file).read_bytes()
    copy = tmp_path / mutant.file
    copy.parent.mkdir()
    copy.write_bytes(before)
    with mutants.planted(mutant, tmp_path):
        assert copy.read_text("utf-8") == mutant.planted()
        assert (ROOT / mutant.file).read_bytes() == before
    assert copy.read_bytes() == before
