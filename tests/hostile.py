"""Bad input to every command: each case ends with exit code 0, 1 or 2 in one line, and leaves nothing half-written.

    python -m tests.hostile                  # every case, about 5 CPU-minutes: `make hostile`
    python -m tests.hostile --only flags     # the cases of one kind, or whose line has the text
    python -m tests.hostile --list           # the command lines

The one idea: the cases are generated from what the house says of itself (the fields of a scenario, the flags of the
parsers, the files of a run), so a new key, flag or file is attacked without a line here. Every case runs in a forked
child with limits on memory, processor time, the size of a file and the time by the clock.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvcast.cli import main as kvcast
from kvcast.commands import dashboard
from tests.hostile_cases import cases
from tests.hostile_world import Case, make_world

WALL_S, CPU_S, MEMORY_BYTES, FILE_BYTES = 120.0, 20, 3 << 30, 64 << 20
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Ending:
    code: int | None  #: None: it had to be stopped
    out: str
    err: str
    left: frozenset[str]  #: files and folders that were not there before


def attack(case: Case, world: Path) -> Ending:
    """Run one case in a child that starts in its own copy of the world."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        place = Path(name)
        shutil.copytree(world, place / "w", symlinks=True)
        if case.prepare is not None:
            case.prepare(place / "w")
        before = _names(place / "w")
        pid = os.fork()
        if pid == 0:
            _child(case, place)
        code = _wait(pid)
        out, err = ((place / stream).read_bytes().decode("utf-8", "surrogateescape") for stream in ("out", "err"))
        return Ending(code, out, err, frozenset(_names(place / "w") - before))


def _names(folder: Path) -> set[str]:
    return {os.fsencode(path.relative_to(folder)).decode("utf-8", "replace") for path in folder.rglob("*")}


def _child(case: Case, place: Path) -> None:
    """The command, as a shell would start it; does not return."""
    code = 99
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(place / stream, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8") for number in (1, 2))  # noqa: SIM115
        os.chdir(place / "w")
        for what, limit in (
            (resource.RLIMIT_CPU, CPU_S),
            (resource.RLIMIT_FSIZE, case.file_bytes or FILE_BYTES),
            (resource.RLIMIT_AS, _address_space() + MEMORY_BYTES),
        ):
            resource.setrlimit(what, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as CPython does at start
        os.environ["KVCAST_RUNS"] = str(place / "dashboard")
        dashboard.subprocess.call = lambda *_, **__: 0  # up to the server, which would stay
        try:
            code = kvcast(case.argv)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _wait(pid: int) -> int | None:
    deadline = time.monotonic() + WALL_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def faults(case: Case, end: Ending) -> Iterator[str]:
    """What is wrong with how a case ended."""
    said = end.err.splitlines()
    if end.code is None:
        yield f"no end within {WALL_S:.0f} s"
    elif end.code not in case.codes:
        yield f"exit code {end.code}, expected {' or '.join(map(str, sorted(case.codes)))}"
    if case.argv[:1] == ["ask"]:  # which tells what it knows so far
        said = said[-1:]
    if end.code == 2 and len(said) != 1:
        yield f"{len(said)} lines on stderr, expected 1"
    for name, text in (("stdout", end.out), ("stderr", end.err)):
        if found := CONTROL.search(text):
            yield f"{name} has {found.group()!r}"
    if case.file_bytes and end.code == 2:
        named = rf"kvcast: (\S*/)?{Path(case.argv[-1]).stem}\b.*: File too large"
        if not re.search(named, end.err):
            yield "a full disk whose file and reason are not said"
    if end.code not in (0, 1) and end.left and not case.keeps:
        yield f"left {sorted(end.left)[:3]}"
    if half := [name for name in end.left if re.search(r"\.(part|new|old|tmp)$", name)]:
        yield f"half-written {half[0]}"


def run(chosen: list[Case], world: Path, say: bool = True) -> dict[str, list[tuple[Case, Ending]]]:
    """Kind of fault -> the cases that have it."""
    found: dict[str, list[tuple[Case, Ending]]] = collections.defaultdict(list)
    for case in chosen:
        end = attack(case, world)
        for fault in faults(case, end):
            found[fault].append((case, end))
            if say:
                print(f"{case.line()}\n    {fault}: {end.err.strip()[-300:]!r}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--slow", action="store_true", help="say which cases took longest")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        world = make_world(Path(name) / "world")
        chosen = [case for case in cases(world, args.seed) if args.only in case.line()]
        if args.sample:
            chosen = random.Random(args.seed).sample(chosen, args.sample)
        if args.list:
            print("\n".join(case.line() for case in chosen))
            return 0
        found = run(chosen, world)
    kinds = collections.Counter(case.kind for case in chosen)
    bad = {id(case) for pairs in found.values() for case, _ in pairs}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(chosen):,} cases ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}): {len(bad)} bad,"
        f" {used.ru_utime + used.ru_stime:.0f} CPU-seconds"
    )
    for fault, pairs in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"  {len(pairs):4d}  {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
