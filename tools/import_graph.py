"""The import graph: which room imports from which, what runs in a circle, what goes up.

The one idea: an arrow is an import anywhere in a module. One inside a function only comes later, and a circle that it
hides is a circle; one under TYPE_CHECKING never runs, and is none.

    python -m tools.import_graph         # of this checkout
    python -m tools.import_graph DIR     # of another one, whatever its rooms are
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HOUSES = ("kernels", "workloads", "calibrate", "sim", "kvcast")
ROOMS = (
    ("kernels",),
    ("workloads",),
    ("workloads.readers",),
    ("workloads.load",),
    ("calibrate",),
    ("calibrate.sources", "calibrate.gpu"),
    ("calibrate.atlas",),
    ("calibrate.resolve", "calibrate.utilization"),
    ("calibrate.latency", "calibrate.memory"),
    ("calibrate.faster",),
    ("sim.step_times", "sim.packed_rows"),
    ("sim.recording", "sim.paths", "sim.endless"),
    ("sim.own", "sim.tenants"),
    ("sim.kvcache.policies",),
    ("sim.fleet.routers",),
    ("sim.fleet.router", "sim.scaling"),
    ("sim.sections",),
    ("sim.scenario",),
    ("sim.kvcache",),
    ("sim.kvcache.groups",),
    ("sim.optimum",),
    ("sim.measure", "sim"),
    ("sim.vllm", "sim.sglang"),
    ("sim.trtllm",),
    ("sim.engines",),
    ("sim.alone",),
    ("sim.fleet",),
    ("sim.simulate",),
    ("kvcast",),
    ("kvcast.pools",),
    ("kvcast.scenario",),
    ("kvcast.config",),
    ("kvcast.trust.evidence",),
    ("kvcast.trust.pooled",),
    ("kvcast.api",),
    ("kvcast.store", "kvcast.validation"),
    ("kvcast.trust",),
    ("kvcast.studies",),
    ("kvcast.planner.flag_names",),
    ("kvcast.planner.flags",),
    ("kvcast.planner.words",),
    ("kvcast.planner", "kvcast.figures"),
    ("kvcast.benchmarks",),
    ("kvcast.observed",),
    ("kvcast.fitted",),
    ("kvcast.present",),
    ("kvcast.asking",),
    ("kvcast.jobs",),
    ("kvcast.pages.mix",),
    ("kvcast.pages.edit",),
    ("kvcast.pages", "kvcast.commands"),
    ("kvcast.cli",),
    ("kvcast.__main__",),
)
"""The rooms, lowest first: a module is named here itself, or lies in the folder that is. Arrows point to rows above
(here: earlier), never to later ones or across a row."""


class Arrow(NamedTuple):
    """An import. target: a module of ours, or a package of somebody else by its first name."""

    source: str
    target: str
    line: int
    later: bool  #: inside a function


def modules(root: Path) -> dict[str, Path]:
    """Every module of the five folders by its dotted name; a package's is its __init__.py."""
    files = (file for house in HOUSES for file in sorted((root / house).rglob("*.py")))
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def arrows(ours: Mapping[str, Path]) -> list[Arrow]:
    """Every import that ever runs."""
    found = []
    for module, file in ours.items():
        for node, later in _imports(ast.parse(file.read_text(encoding="utf-8"))):
            found += [Arrow(module, t, node.lineno, later) for t in _targets(node, ours) if t != module]
    return found


def _imports(node: ast.AST, later: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """(import statement, whether it stands in a function), without what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, later
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imports(other, later)
        else:
            yield from _imports(child, later or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _targets(node: ast.Import | ast.ImportFrom, ours: Mapping[str, Path]) -> set[str]:
    """`from a.b import c` is of the module a.b.c where there is one, else of a.b."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif node.level:
        raise ValueError(f"a relative import of {node.module}, line {node.lineno}: expected the whole name")
    else:
        whole = {f"{node.module}.{alias.name}" for alias in node.names}
        names = {name if name in ours else str(node.module) for name in whole}
    return {name if name in ours else name.partition(".")[0] for name in names}


def inner(found: Iterable[Arrow], ours: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports."""
    graph: dict[str, set[str]] = {module: set() for module in ours}
    for arrow in found:
        if arrow.target in ours:
            graph[arrow.source].add(arrow.target)
    return graph


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of two or more that reach each other, sorted."""
    reach = {one: reachable(graph, one) for one in graph}
    rings = {frozenset(o for o in reach[one] if one in reach.get(o, ())) for one in graph if one in reach[one]}
    return sorted(sorted(ring) for ring in rings)


def reachable(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """What an arrow or several lead to; `start` itself only round a circle."""
    seen: set[str] = set()
    todo = [*graph[start]]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += graph.get(one, ())
    return seen


def loaded(found: Sequence[Arrow], ours: Mapping[str, Path], start: str) -> dict[str, str]:
    """Package of somebody else -> the module that imports it, for all that importing and using `start` may load."""
    graph = inner(found, ours)
    for name in list(graph):  # a module loads the packages that it lies in
        graph[name] |= {p for p in (name.rpartition(".")[0],) if p in ours}
    within = reachable(graph, start) | {start}
    return {a.target: a.source for a in found if a.source in within and a.target not in ours}


# -- rooms -------------------------------------------------------------------------------------------------------------


def placed(ours: Mapping[str, Path]) -> dict[str, str]:
    """Module -> its room. KeyError names a module that lies in none."""
    names = {name for row in ROOMS for name in row}
    room = {m: next((n for n in (m, m.rpartition(".")[0]) if n in names), "") for m in ours}
    lost = [module for module, name in room.items() if not name]
    if lost:
        raise KeyError(f"{', '.join(lost)}: in no room; name it, or its folder, in ROOMS of tools/import_graph.py")
    return room


def folders(ours: Mapping[str, Path]) -> dict[str, str]:
    """Module -> its folder: the rooms of a house whose rooms nobody has named."""
    return {m: m if file.name == "__init__.py" else m.rpartition(".")[0] for m, file in ours.items()}


def between_rooms(found: Iterable[Arrow], room: Mapping[str, str]) -> Counter[tuple[str, str]]:
    """(room, room it imports from) -> pairs of modules."""
    pairs = {(a.source, a.target) for a in found if a.target in room}
    return Counter((room[a], room[b]) for a, b in pairs if room[a] != room[b])


def picture(counts: Mapping[tuple[str, str], int]) -> str:
    """A line per room, lowest first: what it imports from, and in how many pairs of modules."""
    order = [name for row in ROOMS for name in row]
    targets: dict[str, list[str]] = defaultdict(list)
    for a, b in sorted(counts, key=lambda pair: order.index(pair[1])):
        targets[a].append(f"{b} {counts[a, b]}")
    lines = []
    for name in order:
        one = f"{name:<22}-> {', '.join(targets[name])}" if targets[name] else name
        lines.append(textwrap.fill(one, 118, subsequent_indent=" " * 25))
    return "\n".join(lines)


def summary(found: Sequence[Arrow], ours: Mapping[str, Path]) -> str:
    """Counts in one line, and every cycle of modules in one more."""
    own = {(a.source, a.target): a.later for a in found if a.target in ours}
    rings = cycles(inner(found, ours))
    text = (
        f"{len(ours)} modules, {len(own)} arrows between them, {sum(own.values())} of them inside functions,"
        f" {len(rings)} cycles"
    )
    return "\n".join([text, *(f"  cycle: {', '.join(ring)}" for ring in rings)])


def main(argv: Sequence[str]) -> None:
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    ours = modules(root)
    found = arrows(ours)
    room = folders(ours) if argv else placed(ours)
    counts = between_rooms(found, room)
    if not argv:
        print(picture(counts), end="\n\n")
    print(f"{len(set(room.values()))} rooms, {len(counts)} arrows between them; {summary(found, ours)}")


if __name__ == "__main__":
    main(sys.argv[1:])
