"""Compile the simulation loop: python -m tools.fast (`make fast`), about a minute; `kvcast --version` says what runs.

The one idea: the loop's data structures have types and are compiled by mypyc; its processes and step times lean on
SimPy and numpy and are compiled by Cython, as the Python they are. Both are built from copies of the sources, in a
folder of their own (.fast); an unfinished build is never used (kvcast.compiled).

    python -m tools.fast            build, unless the build at hand is current
    python -m tools.fast --clean    back to pure Python
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from kvcast.compiled import FOLDER, MADE, ROOT, hashes

MYPYC = (
    "sim/request.py",
    "sim/decodes.py",
    "sim/step_record.py",
    "sim/step_times.py",
    "sim/packed_rows.py",
    "sim/log.py",
    "sim/vllm/stretches.py",
    "sim/vllm/admission.py",
    "sim/vllm/preemption.py",
    "sim/vllm/in_flight.py",
    "sim/vllm/waiting.py",
    "sim/vllm/scheduler.py",
    "sim/kvcache/base.py",
    "sim/kvcache/release_order.py",
    "sim/kvcache/ceilings.py",
    "sim/kvcache/chains.py",
    "sim/kvcache/ranked.py",
    "sim/kvcache/saved.py",
)
CYTHON = (
    "sim/fleet/replica.py",
    "sim/fleet/cluster.py",
    "sim/fleet/clock.py",
    "sim/fleet/router.py",
    "calibrate/steptime.py",
)
OPEN = re.compile(r"(?m)^class \w+(?!.*(?:NamedTuple|Protocol))")
"""Classes of the first: Python may extend them."""
TOPS = ("sim", "calibrate", "workloads")
"""What mypyc reads to know the types."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fast", description=__doc__.splitlines()[0])
    parser.add_argument("--clean", action="store_true", help="remove the build: pure Python again")
    parser.add_argument("--step", choices=("mypyc", "cython"), help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.clean:
        shutil.rmtree(FOLDER, ignore_errors=True)
    elif asked.step:
        {"mypyc": _mypyc, "cython": _cython}[asked.step]()
    else:
        return build()
    return 0


def build() -> int:
    """Make FOLDER anew, its record last; 1 where a compiler fails."""
    sources = hashes([str(file.relative_to(ROOT)) for top in TOPS for file in sorted((ROOT / top).rglob("*.py"))])
    if (FOLDER / MADE).is_file() and json.loads((FOLDER / MADE).read_text())["sources"] == sources:
        print(f"{FOLDER.name}: current")
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    _copy(FOLDER / "sources")
    for step in ("mypyc", "cython"):
        log = FOLDER / f"{step}.log"
        with log.open("w") as out:
            command = [sys.executable, "-m", "tools.fast", "--step", step]
            code = subprocess.call(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        if code:
            print(f"{step} failed: the last of {log.relative_to(ROOT)} is\n{_last(log)}", file=sys.stderr)
            return 1
    modules = {_name(source): _built(source) for source in (*MYPYC, *CYTHON)}
    made = {"suffix": EXTENSION_SUFFIXES[0], "sources": sources, "modules": modules}
    (FOLDER / MADE).write_text(json.dumps(made, indent=1))
    print(f"{len(modules)} modules compiled into {FOLDER.name}; kvcast uses them while their sources stay as they are")
    return 0


def _copy(into: Path) -> None:
    """The sources, with the classes that others extend said to be so."""
    for top in TOPS:
        for file in (ROOT / top).rglob("*.py"):
            copy = into / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    for source in MYPYC:
        text = (into / source).read_text()
        opened = OPEN.sub(r"@mypyc_attr(allow_interpreted_subclasses=True)\n\g<0>", text)
        if opened != text:
            future = "from __future__ import annotations"
            (into / source).write_text(opened.replace(future, f"{future}; from mypy_extensions import mypyc_attr", 1))


def _mypyc() -> None:
    from mypyc.build import mypycify

    os.chdir(FOLDER / "sources")
    flags = ["--ignore-missing-imports", "--follow-imports=silent", "--python-version=3.11"]
    _build(mypycify([*flags, *MYPYC], opt_level="2", target_dir=str(FOLDER / "c")))


def _cython() -> None:
    from Cython.Build import cythonize

    os.chdir(FOLDER / "sources")
    directives = {"annotation_typing": False, "binding": True}
    extensions = cythonize(CYTHON, language_level=3, build_dir=str(FOLDER / "c"), compiler_directives=directives)
    for extension in extensions:
        extension.sources = [str(Path(source).resolve()) for source in extension.sources]
    _build(extensions)


def _build(extensions: list) -> None:
    from setuptools import setup

    os.chdir(FOLDER)  # away from this project's own pyproject.toml
    built = ["build_ext", "--build-lib", str(FOLDER), "--build-temp", str(FOLDER / "objects")]
    setup(name="fast", ext_modules=extensions, script_args=built)


def _name(source: str) -> str:
    return source.removesuffix(".py").replace("/", ".")


def _built(source: str) -> str:
    file = source.removesuffix(".py") + EXTENSION_SUFFIXES[0]
    if not (FOLDER / file).is_file():
        raise FileNotFoundError(FOLDER / file)
    return file


def _last(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:])


if __name__ == "__main__":
    raise SystemExit(main())
