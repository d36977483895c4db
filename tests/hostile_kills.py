"""Kills at random moments: nothing that was finished is lost, the same command goes on, and no leftovers stay.

    python -m tests.hostile_kills                    # 24 of each command
    python -m tests.hostile_kills --kills 3 --only sweep

The one idea: the command runs once undisturbed; then, in another folder, it is killed again and again at a random
share of the processor time that it took, in whatever state the last one left the folder. Whatever run folder is whole
after a kill must still be there, byte for byte, after the next; in the end the command runs to its end, and the folder
is as the undisturbed one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from kvcast.cli import main as kvcast
from tests.hostile_world import PLAIN, SCENARIO, STEADY

COMMANDS = {
    "run": ["run", "S.toml", *PLAIN, "--steps", "--access-log", "--no-model-error", "--out", "out"],
    "sweep": ["sweep", "S.toml", *PLAIN, "--vary", "cache.policy=lru,lfu,fifo", "--seeds", "2", "--out", "out"],
    "plan": [
        *("plan", "S.toml", *PLAIN, "--max-replicas", "2", "--seeds", "2"),
        *("--no-growth", "--no-recover", "--out", "out"),
    ],
    "calibrate": ["calibrate", "--device", "fake", "--resume", "--out", "out"],
    "calibrate-profile": ["calibrate", "--device", "fake", "--resume", "--out", "out/p.json"],
    "resilience": [
        *("resilience", "R.toml", "--seeds", "1", "--hours", "0.01"),
        *("--no-sweep", "--no-remedies", "--out", "out"),
    ],
    "ask": [
        *("ask", "--use", "batch", "--rps", "1", "--set", "run.duration_s=20", "--set", "run.warmup_s=0"),
        *("--seeds", "2", "--no-recover", "--max-replicas", "2", "--jobs", "1", "--out", "out"),
    ],
}
VARY = {"run.json", "plan.json", "ran.json", "resilience.json", "points.jsonl", "p.points.jsonl", "operators.json"}
VARY |= {"p.json", "p.html"}
"""Files that say when and how often something was simulated or measured."""


def child(argv: list[str], place: Path) -> int:
    """Start the command in its own session; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setsid()
        os.chdir(place)
        log = os.open(place / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8") for number in (1, 2))  # noqa: SIM115
        code = kvcast(argv)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def to_the_end(argv: list[str], place: Path) -> float:
    """CPU seconds that the command takes. AssertionError with what it said when it fails; 1 is an answer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, status = os.waitpid(child(argv, place), 0)
    assert os.waitstatus_to_exitcode(status) in (0, 1), (argv, (place / "said").read_text(errors="replace")[-500:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def killed(argv: list[str], place: Path, after_s: float) -> bool:
    """Whether the command was killed once it had used so much processor time; it may have ended before."""
    pid = child(argv, place)
    while True:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if ended:
            return False
        if _cpu_s(pid) >= after_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        time.sleep(0.001)


def _cpu_s(group: int) -> float:
    """CPU seconds of a process and of its children so far."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group:
                total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def whole(folder: Path) -> dict[str, bytes]:
    """What was finished below a folder: the runs and sketches, by what says their answers, and the measured points."""
    found = {}
    for path in folder.rglob("*"):
        run = path.name == "summary.json" and (path.parent / "run.json").exists()
        if run or path.name in ("sketch.json", "stopped.json"):
            found[str(path.relative_to(folder))] = path.read_bytes()
        elif path.name.endswith("points.jsonl"):
            found[str(path.relative_to(folder))] = b"".join(path.read_bytes().splitlines(keepends=True)[:-1])
    return found


def lost(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """What was finished and is not any more. A folder that is being replaced has another name for a moment."""
    there = set(after.values())
    return [
        path
        for path, content in before.items()
        if content not in there and not after.get(path, b"").startswith(content)
    ]


def listing(folder: Path) -> dict[str, bytes | None]:
    """Every file that must be equal after equal commands, with its bytes; of those that vary, that it is there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): None if p.name in VARY else p.read_bytes() for p in files}


def attack(name: str, kills: int, rng: random.Random) -> tuple[int, list[str]]:
    """Kills that hit one command before its end, and what was wrong after them."""
    argv, wrong, hits = COMMANDS[name], [], 0
    with tempfile.TemporaryDirectory(prefix="kills-") as top:
        calm, rough = Path(top) / "calm", Path(top) / "rough"
        for place in (calm, rough):
            place.mkdir()
            (place / "S.toml").write_text(SCENARIO)
            (place / "R.toml").write_text(STEADY)
        took_s = to_the_end(argv, calm)
        expected = listing(calm / "out")
        kept: dict[str, bytes] = {}
        while hits < kills:
            if killed(argv, rough, rng.uniform(0, took_s)):
                hits += 1
            else:  # it came to its end between two kills
                shutil.rmtree(rough / "out", ignore_errors=True)
                kept = {}
                continue
            found = whole(rough)
            wrong += [f"kill {hits}: {path} was there, and is gone or different" for path in lost(kept, found)[:1]]
            kept = found
        try:
            to_the_end(argv, rough)
        except AssertionError as error:
            return hits, [*wrong, str(error)]
        there = listing(rough / "out")
        wrong += [
            f"{path}: missing or different in the end" for path in expected if there.get(path, b"") != expected[path]
        ]
        wrong += [f"{path}: left over" for path in there if path not in expected]
        wrong += [
            f"{path.name}: left over"
            for path in rough.iterdir()
            if path.name not in ("S.toml", "R.toml", "out", "said")
        ]
    return hits, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=COMMANDS)
    args = parser.parse_args()
    failed = False
    for name in [args.only] if args.only else COMMANDS:
        hits, wrong = attack(name, args.kills, random.Random(args.seed))
        failed |= bool(wrong)
        print(f"{name}: {hits} kills, {len(wrong)} faults", *wrong[:10], sep="\n  ", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
