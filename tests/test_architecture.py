"""The house keeps its order: no circle of imports, hidden ones included, no arrow against the rows of rooms, and a
simulation that loads nothing heavy.

The rows are in tools/import_graph.py, which also draws the picture.
"""

from pathlib import Path

import pytest

from tools.import_graph import (
    ROOMS,
    Arrow,
    arrows,
    between_rooms,
    cycles,
    inner,
    loaded,
    modules,
    picture,
    placed,
    summary,
)

ROOT = Path(__file__).resolve().parent.parent
KNOWN_BY = {
    "kernels": set(),
    "workloads": set(),
    "calibrate": {"kernels"},
    "sim": {"calibrate", "workloads"},
    "kvcast": {"calibrate", "workloads", "sim"},
}
"""Folder -> the folders that it may import from."""
SHARED = {"workloads.errors", "workloads.files", "workloads.limits", "workloads.table"}
"""InputError is one class for everybody, or no caller could catch it, one reader takes every CSV table, and files are
written whole in one way; they lie where most use them, in modules that know no workload and import only each other. So
calibrate may name these."""
UPWARDS: dict[tuple[str, str], str] = {}
"""Arrows against the rows that are there for a reason. One that is gone must go from here too."""
HEAVY = {"torch", "triton", "plotly", "streamlit", "pyarrow"}


@pytest.fixture(scope="module")
def ours():
    return modules(ROOT)


@pytest.fixture(scope="module")
def found(ours):
    return arrows(ours)


def test_nothing_imports_itself_in_a_circle(ours, found):
    assert cycles(inner(found, ours)) == []


def test_the_folders_know_what_lies_below_them(ours, found):
    def wrong(arrow):
        a, b = (name.partition(".")[0] for name in arrow[:2])
        return (
            arrow.target in ours
            and a != b
            and b not in KNOWN_BY[a]
            and not (a == "calibrate" and arrow.target in SHARED)
        )

    assert [f"{a.source}:{a.line} imports {a.target}" for a in found if wrong(a)] == []
    assert not [a for a in found if a.source in SHARED and a.target in ours.keys() - SHARED]


def test_no_arrow_goes_up(ours, found):
    row = {name: i for i, names in enumerate(ROOMS) for name in names}
    room = placed(ours)
    up = {
        (a.source, a.target): f"{a.source}:{a.line} imports {a.target}, of {room[a.target]}"
        for a in found
        if a.target in room
        and room[a.source] != room[a.target]
        and row[room[a.source]] <= row[room[a.target]]
        and a.target not in SHARED
    }
    assert [words for pair, words in up.items() if pair not in UPWARDS] == []
    assert [pair for pair in UPWARDS if pair not in up] == [], "no longer there"


def test_a_simulation_loads_nothing_heavy(ours, found):
    assert HEAVY & set(loaded(found, ours, "calibrate.gpu.bench")), "the tool sees torch where it is"
    columns = [a for a in found if a.source == "sim.measure.columns" and a.target in HEAVY]
    assert [(a.target, a.later) for a in columns] == [("pyarrow", True)], "who asks for a table has it"
    rest = [a for a in found if a not in columns]
    assert {p: by for p, by in loaded(rest, ours, "sim.simulate").items() if p in HEAVY} == {}


def test_every_room_is_there(ours):
    assert {name for row in ROOMS for name in row} == set(placed(ours).values())


# -- the tool ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path):
    """Three modules: one imports another in a function, and is imported by it for its type checker alone."""
    files = {
        "sim/__init__.py": "",
        "sim/log.py": "def f():\n    from sim import scenario\n    import numpy.random\n",
        "sim/scenario.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sim.log import f\n",
        "sim/simulate.py": "import sim.log\nfrom sim.scenario import x\n",
    }
    (tmp_path / "sim").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_an_arrow_is_an_import_that_runs_sooner_or_later(house):
    assert [a for a in arrows(modules(house)) if a.target != "typing"] == [
        Arrow("sim.log", "sim.scenario", 2, True),
        Arrow("sim.log", "numpy", 3, True),
        Arrow("sim.simulate", "sim.log", 1, False),
        Arrow("sim.simulate", "sim.scenario", 2, False),
    ]


def test_a_circle_through_a_function_is_a_circle(house):
    (house / "sim/scenario.py").write_text("def g():\n    import sim.log\n")
    ours = modules(house)
    assert cycles(inner(arrows(ours), ours)) == [["sim.log", "sim.scenario"]]
    assert "1 cycles\n  cycle: sim.log, sim.scenario" in summary(arrows(ours), ours)


def test_what_a_module_loads_is_found_through_others(house):
    ours = modules(house)
    assert loaded(arrows(ours), ours, "sim.simulate")["numpy"] == "sim.log"


def test_the_picture_counts_pairs_of_modules(house):
    ours = modules(house)
    counts = between_rooms(arrows(ours), placed(ours))
    assert counts == {("sim", "sim.scenario"): 1, ("sim.simulate", "sim"): 1, ("sim.simulate", "sim.scenario"): 1}
    assert "sim.simulate          -> sim.scenario 1, sim 1" in picture(counts)
