"""Planted faults: each changes one expression in a copy of the tree, and the tests nearest to it must fail.

The one idea: a test is worth what it notices. tests/mutants.toml says of every fault which file it is in, what becomes
of which text, and who must notice; a fault that nobody notices is a test to write. The working tree is only read, so
whatever stops a run leaves nothing behind.

    python -m tests.mutants                 # all of them, and those of the references (tests.fuzz, tests.fuzz_policies)
    python -m tests.mutants --only budget   # whose names or files contain it
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
COPIED = ("app.py", "benchmarks", "docs", "examples", "pyproject.toml", "tests", "tools")
PACKAGES = ("calibrate", "kernels", "kvcast", "sim", "workloads")
LIMIT_S = 120.0
KILLED, SURVIVED, WRONG, NOT_RUN = "killed", "SURVIVED", "WRONG REASON", "NOT RUN"
NO_REASON = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError")
"""Errors of a fault that is badly written: whatever a test says of it, it says nothing about the test."""


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` becomes `new` in `file`, and of `tests` (pytest's node ids) at least one must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def needs_triton(self) -> bool:
        return any(test.startswith("tests/kernels/") for test in self.tests)

    def planted(self, root: Path = ROOT) -> str:
        """The file's text with the fault. Raises ValueError where it cannot be planted."""
        source = (root / self.file).read_text(encoding="utf-8")
        if (times := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is {times} times in {self.file}, expected once")
        faulty = source.replace(self.old, self.new)
        compile(faulty, self.file, "exec")
        return faulty


@dataclass(frozen=True)
class Outcome:
    word: str
    why: str  #: the test that noticed, or what went wrong


def load() -> list[Mutant]:
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def interpreters() -> dict[bool, str | None]:
    """needs_triton -> the python that runs such tests: this one, or that of `make test-kernels` where it was made."""
    made = sorted(ROOT.glob(".venv-kernels-*/.installed"))
    return {False: sys.executable, True: str(made[-1].parent / "bin" / "python") if made else None}


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-mutants-") as folder:
        for name in (*PACKAGES, *COPIED):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, folder)
        yield Path(folder)


@contextmanager
def planted(mutant: Mutant, tree: Path) -> Iterator[None]:
    """The copy with the fault. Its time is one that no compiled file has, so that none is taken for it."""
    faulty, path = mutant.planted(tree), tree / mutant.file
    path.write_text(faulty, encoding="utf-8")
    os.utime(path, (1, 1))
    try:
        yield
    finally:
        shutil.copy2(ROOT / mutant.file, path)


def pytest_in(tree: Path, python: str, tests: tuple[str, ...], limit_s: float = LIMIT_S) -> Outcome:
    """Run tests in the copy until one fails."""
    command = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=line"]
    env = {**os.environ, "COLUMNS": "400", "OPENBLAS_NUM_THREADS": "1", "KVCAST_KERNELS": ""}
    try:
        done = subprocess.run(
            [*command, "-x", "-rfE", *tests], cwd=tree, env=env, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return Outcome(WRONG, f"no end after {limit_s:g} s")
    return judge(done.returncode, done.stdout + done.stderr)


def judge(code: int, said: str) -> Outcome:
    """What pytest's exit code and short summary mean: a failed test kills, an error outside of one says nothing."""
    failed = re.findall(r"^FAILED (\S.*?)(?: - (.*))?$", said, re.MULTILINE)
    errors = re.findall(r"^ERROR .*$", said, re.MULTILINE)
    if code == 0:
        return Outcome(SURVIVED, said.strip().splitlines()[-1] if said.strip() else "")
    if code != 1 or errors or not failed:
        return Outcome(WRONG, errors[0] if errors else said.strip()[-200:])
    test, reason = failed[0]
    return Outcome(WRONG if reason.startswith(NO_REASON) else KILLED, f"{test} - {reason}" if reason else test)


def run(mutants: list[Mutant]) -> list[Outcome]:
    """Each in turn, after all their tests have passed without any fault."""
    pythons, outcomes = interpreters(), []
    with copy_of_the_tree() as tree:
        for needs_triton, python in pythons.items():
            tests = tuple(dict.fromkeys(t for m in mutants if m.needs_triton == needs_triton for t in m.tests))
            if tests and python is not None and (told := pytest_in(tree, python, tests, limit_s=600)).word != SURVIVED:
                raise SystemExit(f"the tests fail without any fault: {told.why}")
        for mutant in mutants:
            python = pythons[mutant.needs_triton]
            if python is None:
                outcomes.append(Outcome(NOT_RUN, "no .venv-kernels-*: `make test-kernels` makes one"))
            else:
                with planted(mutant, tree):
                    outcomes.append(pytest_in(tree, python, mutant.tests))
            tell(mutant.name, outcomes[-1])
    return outcomes


def of_the_references() -> list[Outcome]:
    """The faults planted in the per-block references, each noticed by random cases."""
    from tests import fuzz, fuzz_policies, fuzz_sglang

    outcomes = []
    harnesses: tuple[tuple[dict, Callable[[str], int | None]], ...] = (
        (fuzz.FAULTS | fuzz_sglang.FAULTS, fuzz.cases_until_noticed),
        (fuzz_policies.FAULTS, fuzz_policies.cases_until_noticed),
    )
    for faults, cases_until_noticed in harnesses:
        for fault in faults:
            cases = cases_until_noticed(fault)
            outcomes.append(Outcome(SURVIVED, "") if cases is None else Outcome(KILLED, f"random case {cases}"))
            tell(f"reference: {fault}", outcomes[-1])
    return outcomes


def tell(name: str, outcome: Outcome) -> None:
    print(f"{outcome.word:<12} {name:<72} {outcome.why[:150]}", flush=True)


def cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name or file contains this text")
    parser.add_argument("--list", action="store_true", help="print them and plant none")
    args = parser.parse_args()
    mutants = [m for m in load() if args.only in m.name or args.only in m.file]
    if args.list:
        print("\n".join(f"{m.file:<36} {m.name}" for m in mutants))
        return 0
    for mutant in mutants:
        mutant.planted()
    began_s = time.monotonic()
    outcomes = run(mutants) + ([] if args.only else of_the_references())
    count = {word: sum(o.word == word for o in outcomes) for word in (KILLED, SURVIVED, WRONG, NOT_RUN)}
    print(
        f"{count[KILLED]} of {len(outcomes)} faults were noticed, {count[SURVIVED]} survived, {count[WRONG]} failed for"
        f" another reason; {cpu_s():.0f} s of CPU time, {time.monotonic() - began_s:.0f} s in all"
    )
    if count[NOT_RUN]:
        print(f"WARNING: {count[NOT_RUN]} faults in kernels were NOT planted: `make test-kernels` makes what runs them")
    return int(count[SURVIVED] + count[WRONG] > 0 or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
