"""A result is named by all the code that made it: a user's policy or router, and the modules of theirs that these
import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvcast import InputError, load_scenario, simulate, sweep
from kvcast.scenario.user_modules import imported_by
from kvcast.store.simulations import Lab
from sim.fleet.router import ROUTERS
from sim.fleet.routers.load import LeastLoaded, RoundRobin
from sim.kvcache.leaf_first import leaf_first
from sim.kvcache.policies import POLICIES, Policy, name_of
from tests.test_sweep import SMALL
from tests.worlds import random_workload

ROOT = Path(__file__).resolve().parent.parent
POLICY = (
    "from sim.kvcache.policies import Policy\n{imports}\nclass Mine(Policy):\n    def key(self, run):\n        return"
    " ({sign} * run.released,)\n"
)
IMPORTS = {  # how the policy comes by a sign -> what it imports, and how it reads it
    "name": ("from {own}_parts.deep.signs import SIGN", "SIGN"),
    "module": ("import {own}_parts.deep.signs", "{own}_parts.deep.signs.SIGN"),
    "submodule": ("from {own}_parts.deep import signs", "signs.SIGN"),
    "of another": ("from {own}_parts.between import SIGN", "SIGN"),
}


class OfThisModule(Policy):
    """A user's class in a module that others can import."""

    def key(self, run):
        return (run.released,)


@pytest.fixture
def scenario(tmp_path: Path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL.format(rate=4.0, duration_s=20.0))
    return load_scenario(path)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Writes a policy that gets its sign from a module of a package beside it, and forgets both after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"own_{abs(hash(request.node.name)) % 10**8}"
    deep = tmp_path / f"{name}_parts" / "deep"
    deep.mkdir(parents=True)
    for folder in (deep.parent, deep):
        (folder / "__init__.py").write_text("")
    (deep.parent / "between.py").write_text("import json, numpy\nfrom .deep import signs as s\nSIGN = s.SIGN\n")

    def write(sign: int, how: str = "name") -> str:
        (deep / "signs.py").write_text(f"SIGN = {sign:+d}\n")  # the same size and, as likely as not, the same second
        imports, read = (part.format(own=name) for part in IMPORTS[how])
        (tmp_path / f"{name}.py").write_text(POLICY.format(imports=imports, sign=read))
        return name

    yield write
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


@pytest.mark.parametrize(("how", "jobs"), [*((how, 1) for how in IMPORTS), ("of another", 2)])
def test_an_edited_module_that_the_policy_imports_is_another_policy(
    own, scenario, tmp_path: Path, how: str, jobs: int
) -> None:
    """LRU turned into MRU two imports away: nothing stale is reused, and what runs is what the files say."""
    vary, hits = {"engine.kv_blocks": [400, 500]}, {}
    for kind, sign in (("ttl", 1), ("mru", -1)):  # one retention: ttl is LRU
        name = own(sign, how)
        vary["cache.policy"] = [f"{name}:Mine"]
        done = sweep(scenario, vary, tmp_path / "s", jobs=jobs)
        assert done.reused == 0
        assert sweep(scenario, vary, tmp_path / "s", jobs=jobs).reused == 2
        hits[kind] = done.table["prefix_hit_tokens"].tolist()
        assert (
            hits[kind]
            == sweep(scenario, {**vary, "cache.policy": [kind]}, tmp_path / "s").table["prefix_hit_tokens"].tolist()
        )
    assert hits["ttl"] != hits["mru"]


def test_the_users_modules_come_before_what_imports_them(own, tmp_path: Path) -> None:
    name = own(1, "of another")
    parts = f"{name}_parts"
    assert list(imported_by(name)) == [parts, f"{parts}.deep", f"{parts}.deep.signs", f"{parts}.between", name]
    (tmp_path / parts / "deep" / "signs.py").write_text(
        f"def later():\n    from ..between import SIGN\n    import {name}\n"
    )  # a circle
    assert set(imported_by(name)) == {parts, f"{parts}.deep", f"{parts}.deep.signs", f"{parts}.between", name}
    assert imported_by("sim.kvcache.policies.sieve") == {} == imported_by("no_such_module")
    assert list(imported_by("numpy")) == ["numpy"]  # named itself, it counts


def test_what_a_plan_keeps_is_named_by_it_too(own, scenario, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    runs = [
        lab.task(replace(scenario, cache=replace(scenario.cache, policy=f"{own(sign)}:Mine"))).run
        for sign in (1, -1, 1)
    ]
    assert runs[0] == runs[2] != runs[1]


def test_a_helper_that_cannot_be_run_is_one_line(own, scenario, tmp_path: Path) -> None:
    name = own(1)
    vary = {"cache.policy": [f"{name}:Mine"]}
    sweep(scenario, vary, tmp_path / "s")
    (tmp_path / f"{name}_parts" / "deep" / "signs.py").write_text("SIGN = 1 / 0\n")
    with pytest.raises(
        InputError, match=r"^\[cache\] policy = '.*:Mine': .*signs\.py: ZeroDivisionError: division by zero$"
    ):
        sweep(scenario, vary, tmp_path / "s")


# -- routers -----------------------------------------------------------------------------------------------------------

ROUTER = """
from sim.fleet.routers.load import {kind}

class Mine({kind}):
    pass
"""


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("entered", [True, False])
def test_an_edited_router_is_another_router(
    scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, entered: bool
) -> None:
    """Entered in ROUTERS under a name, or found as module:Class, which derives from one of a module that it imports."""
    import importlib

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(ROUTERS, "mine", object)
    name = f"own_router_{jobs}{entered}"
    file = tmp_path / f"{name}{'' if entered else '_base'}.py"
    if not entered:
        (tmp_path / f"{name}.py").write_text(f"from {name}_base import Mine as Base\nclass Mine(Base): pass\n")
    router = "mine" if entered else f"{name}:Mine"
    fleet = replace(scenario, cluster=replace(scenario.cluster, replicas=3))
    waits = {}
    for kind, known in ((RoundRobin, "round-robin"), (LeastLoaded, "least-loaded")):
        file.write_text(ROUTER.format(kind=kind.__name__))
        if entered:
            ROUTERS["mine"] = importlib.import_module(name).Mine
        vary = {"cluster.router": [router], "engine.kv_blocks": [400, 500]}
        done = sweep(fleet, vary, tmp_path / "s", jobs=jobs)
        assert done.reused == 0
        assert sweep(fleet, vary, tmp_path / "s", jobs=jobs).reused == 2
        waits[known] = done.table["mean_ttft_ms"].tolist()
        assert (
            waits[known]
            == sweep(fleet, {**vary, "cluster.router": [known]}, tmp_path / "s").table["mean_ttft_ms"].tolist()
        )
    assert waits["round-robin"] != waits["least-loaded"]


# -- classes in place of names -----------------------------------------------------------------------------------------


def test_a_class_stands_for_its_name(scenario, tmp_path: Path) -> None:
    name = f"{__name__}:OfThisModule"
    given = replace(scenario.cache, policy=OfThisModule)
    assert given == replace(scenario.cache, policy=name)
    assert [name_of(kind) for kind in POLICIES.values()] == list(POLICIES)
    as_class, as_name = (
        simulate(replace(scenario, cache=replace(scenario.cache, policy=p))).summary for p in (OfThisModule, name)
    )
    assert as_class["prefix_hit_tokens"] == as_name["prefix_hit_tokens"] > 0
    done = sweep(replace(scenario, cache=given), {"cache.policy": [OfThisModule, "lru"]}, tmp_path / "s")
    assert done.table["cache.policy"].tolist() == [name, "lru"]
    workload = random_workload(3)
    found = leaf_first(workload, OfThisModule, 60, 4)
    assert (found.policy, found.hit_blocks) == (name, leaf_first(workload, "ttl", 60, 4).hit_blocks)


def test_a_class_that_has_no_name_is_one_line(scenario) -> None:
    class Inside(Policy):
        pass

    for policy, says in (
        (Inside, "a class made inside a function has no name"),
        (int, "expected a name, module:Class, or a class derived"),
        (3, "expected a name"),
    ):
        for use in (
            lambda p=policy: replace(scenario.cache, policy=p),
            lambda p=policy: leaf_first(random_workload(3), p, 60, 4),
        ):
            with pytest.raises(InputError, match=says):
                use()


SESSION = """
import sys
from kvcast import InputError, load_scenario, simulate, sweep
from sim.kvcache.policies import Policy
class Mine(Policy):
    def key(self, run): return (run.released,)

scenario = load_scenario({scenario!r}, ["cache.policy=__main__:Mine"])
print("alone", simulate(scenario).summary["prefix_hit_tokens"] > 0)
for jobs in (1, 2):
    try: print("swept", sweep(scenario, {{"engine.kv_blocks": [400, 500]}}, {out!r} + str(jobs), jobs=jobs).reused)
    except InputError as error: print(error)

"""


@pytest.mark.parametrize("typed", [True, False])
def test_a_class_that_only_this_session_has(scenario, tmp_path: Path, typed: bool) -> None:
    """Typed into a session nothing names its results; in a script one process may simulate it, others cannot see it."""
    text = SESSION.format(scenario=str(tmp_path / "small.toml"), out=str(tmp_path / "s"))
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, "-" if typed else str(script)],
        input=text if typed else None,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    alone, one, two = done.stdout.splitlines()
    assert alone == "alone True"
    said = "[cache] policy = '__main__:Mine'"
    if typed:
        assert (
            one
            == two
            == f"{said}: what was typed into a session has no source to name a result by; expected the class in a"
            " module, such as my_policy.py"
        )
    else:
        assert one == "swept 0"
        assert (
            two
            == f"{said} with 2 jobs: other processes cannot see a class of a notebook, session or script; expected it"
            " in a module, such as my_policy.py with policy = 'my_policy:Mine'"
        )
