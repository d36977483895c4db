"""A user's own policy that does something wrong: one line that names its class and the method, and exit code 2.

python -m pytest tests/test_own_policies.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcast.cli import main
from sim import endless
from sim.kvcache.leaf_first import leaf_first
from sim.kvcache.policies import POLICIES, Policy, Run, World, find, make
from sim.kvcache.policies.own import Watched, steady, watched
from sim.scenario import EngineParams
from sim.simulate import run
from tests.worlds import LinearSteps, random_workload
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces

WORKLOAD = random_workload(5)
WRONG = {
    "init": (
        "    def __init__(self, world):\n        raise KeyError('x')",
        "__init__: raised KeyError: 'x' (own_wrong.py, line 5)",
    ),
    "no_super": (
        "    def __init__(self, world):\n        pass",
        "__init__: expected it to call super().__init__(world)",
    ),
    "value": (
        "    def __init__(self, world):\n        raise ValueError('k = 0')",
        "__init__: raised ValueError: k = 0 (own_wrong.py, line 5)",
    ),
    "admit": ("    def on_admit(self, request):\n        request.nothing", "on_admit: raised AttributeError: "),
    "insert": (
        "    def on_insert(self, run, request):\n        1 / 0",
        "on_insert: raised ZeroDivisionError: division by zero (own_wrong.py, line 5)",
    ),
    "release": ("    def on_release(self, run, request):\n        {}[run.lo]", "on_release: raised KeyError: "),
    "arity": ("    def on_release(self, run):\n        pass", "on_release: "),
    "state": (
        "    def on_insert(self, run, request):\n        import numpy\n        run.state = numpy.zeros(2)",
        "on_insert: left state array([0., 0.]), expected one that compares with ==",
    ),
    "exit": (
        "    def key(self, run):\n        import sys\n        sys.exit(0)",
        "key: raised SystemExit: 0 (own_wrong.py, line 6)",
    ),
    "nan": ("    def key(self, run):\n        return float('nan'), run.released", "key: returned (nan, "),
    "mixed": (
        "    def key(self, run):\n        return ('a' if run.released % 2 else 1,)",
        "key: '<' not supported between instances of ",
    ),
    "no return": (
        "    def key(self, run):\n        run.released",
        "key: returned None, expected what < puts in order, such as (run.released,)",
    ),
    "none in it": ("    def key(self, run):\n        return None, run.released", "key: returned (None, "),
    "listed": ("    def key(self, run):\n        return [{}, run.released]", "key: returned [{}, "),
    "set": ("    def key(self, run):\n        return {run.released}, 0", "key: returned ({"),
    "array": ("    def key(self, run):\n        import numpy\n        return numpy.zeros(2)", "key: "),
    "no group": ("    def group(self, run):\n        pass", "group: returned None, expected something hashable"),
    "no chance": (
        "    def second_chance(self, run):\n        pass",
        "second_chance: returned None, expected True or False",
    ),
    "group": ("    def group(self, run):\n        return [1]", "group: returned [1], expected something hashable"),
    "groups": ("    def group(self, run):\n        return ([],)", "group: unhashable type: 'list'"),
    "victim": (
        "    def victim(self, heads):\n        return 'nobody'",
        "victim: returned 'nobody', expected one of the groups 0",
    ),
    "evict": (
        "    def on_evict(self, run, n):\n        raise RuntimeError('two\\nlines')",
        "on_evict: raised RuntimeError: two lines (own_wrong.py, line 5)",
    ),
    "chance": ("    def second_chance(self, run):\n        return True", "spare: raised NotImplementedError"),
}
VLLM_ONLY = {
    "mixed by depth": ("    def key(self, run):\n        return ('a' if run.hi % 2 else 1, run.released)", "key: '<"),
    "span": ("    def span(self, run):\n        return 1.5", "span: returned 1.5, expected a whole number"),
    "split": (
        "    def split(self, node_id, lo, hi, request):\n        return None",
        "split: returned None, expected a whole number",
    ),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a policy Mine whose class body is given, and forgets it after the test."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(body: str) -> str:
        (tmp_path / "own_wrong.py").write_text(
            f"from sim.kvcache.policies import Policy\n\nclass Mine(Policy):\n{body}\n"
        )
        return "own_wrong:Mine"

    yield write
    sys.modules.pop("own_wrong", None)


@pytest.mark.parametrize(
    ("semantics", "wrong"), [(s, w) for s in ("vllm", "sglang") for w in WRONG] + [("vllm", w) for w in VLLM_ONLY]
)
def test_what_is_wrong_names_the_class_and_the_method(own, semantics: str, wrong: str) -> None:
    body, line = (WRONG | VLLM_ONLY)[wrong]
    longest = int((WORKLOAD.prompt_tokens + WORKLOAD.output_tokens).max())
    params = EngineParams(
        kv_blocks=longest // 4 + 8, block_size=4, semantics=semantics, policy=own(body), max_model_len=4 * longest
    )
    with pytest.raises(InputError) as error:
        run(WORKLOAD, params, LinearSteps())
    assert str(error.value).startswith(f"cache.policy Mine: {line}")
    assert "\n" not in str(error.value)


class Deepest(Policy):
    """The deepest block of all leaves goes first, ties by the oldest release: a leaf that loses a block stands
    elsewhere."""

    def key(self, run: Run) -> tuple:
        return -run.hi, run.released


class Longest(Policy):
    def key(self, run: Run) -> tuple:
        return -(run.hi // 3), run.released, -run.hi


class Pages(Policy):
    """Whole pages of four blocks are kept longer."""

    def key(self, run: Run) -> tuple:
        return run.hi % 4 == 0, run.released, -run.hi


class Heads(Policy):
    """What is beyond the fifth block goes before any prompt's head, and of each the newest."""

    def group(self, run: Run) -> bool:
        return run.hi <= 5

    def key(self, run: Run) -> tuple:
        return (-run.released,)

    def victim(self, heads: Mapping[bool, Any]) -> bool:
        return min(heads)


class InTurns(Policy):
    """Of the shortest leaves of two halves of the tree the longer one."""

    def group(self, run: Run) -> int:
        return run.node_id % 2

    def key(self, run: Run) -> tuple:
        return run.hi, run.released

    def victim(self, heads: Mapping[int, Any]) -> int:
        return max(heads, key=heads.__getitem__)


class OddOnesStay(Policy):
    """A leaf with an odd end is spared once: the newest goes first among those not spared."""

    def on_insert(self, run: Run, request: Any) -> None:
        run.state = 0

    def key(self, run: Run) -> tuple:
        return run.state, -run.released

    def second_chance(self, run: Run) -> bool:
        return run.hi % 2 == 1 and run.state == 0

    def spare(self, runs: list[Run]) -> None:
        runs[0].state = 1


def one_by_one(kind: type[Policy]) -> type[Policy]:
    return type(f"{kind.__name__}OneByOne", (kind,), {"span": lambda self, run: 1, "__module__": __name__})


DEPENDENT = (Deepest, Longest, Pages, Heads, InTurns, OddOnesStay)
for kind in DEPENDENT:
    globals()[f"{kind.__name__}OneByOne"] = one_by_one(kind)


def test_a_key_that_changes_with_every_block_is_asked_for_every_block() -> None:
    """Prompts of 10, 8 and 4 blocks in room for 18: the 4 come from the ends at 10, 9, 8 and 8 again. Then both come
    back."""
    prompts = [[("a", 0, 160)], [("b", 0, 128)], [("c", 0, 64)], [("a", 0, 160)], [("b", 0, 128)]]
    tree, leaf = from_pieces(prompts)
    tokens = np.array([pieces[0][2] for pieces in prompts])
    workload = Workload(
        tree=tree, leaf=leaf, arrival_s=np.arange(5.0), prompt_tokens=tokens, output_tokens=np.ones(5, np.int64)
    )
    assert leaf_first(workload, f"{__name__}:Deepest", capacity_blocks=18, block_size=16).depth_blocks.tolist() == [
        0,
        0,
        0,
        7,
        4,
    ]


@pytest.mark.parametrize("kind", DEPENDENT)
def test_answers_that_depend_on_where_a_run_ends_are_exact(kind: type[Policy]) -> None:
    """As with span = 1: a whole run is taken only while the leaf would be chosen again."""
    taken = 0
    for seed in range(12):
        workload = random_workload(seed, rate=60.0)
        longest = int((workload.prompt_tokens + workload.output_tokens).max())
        params = EngineParams(kv_blocks=longest // 4 + 8, block_size=4, max_model_len=4 * longest)
        whole, single = (
            run(workload, replace(params, policy=f"{__name__}:{kind.__name__}{end}"), LinearSteps())
            for end in ("", "OneByOne")
        )
        assert whole.hit_tokens.tolist() == single.hit_tokens.tolist()
        assert np.array_equal(whole.finish_s, single.finish_s, equal_nan=True)
        taken += whole.evicted_blocks
    assert taken > 300


def test_a_leaf_whose_answers_do_not_depend_on_its_end_goes_whole() -> None:
    asked = 0

    class Oldest(Policy):
        def key(self, run: Run) -> tuple:
            nonlocal asked
            asked += 1
            return (run.released,)

    policy = watched(Oldest)(World(WORKLOAD, 10, 4))
    assert steady(policy, Run(0, 0, 1000, released=1), 1000) == 1000
    assert asked == 1


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
def test_two_leaves_with_equal_keys_are_refused_where_it_would_matter(own, semantics: str) -> None:
    longest = int((WORKLOAD.prompt_tokens + WORKLOAD.output_tokens).max())
    for body, ends in (("return 1", True), ("return 1, run.released", False)):
        params = EngineParams(
            kv_blocks=longest // 4 + 8,
            block_size=4,
            semantics=semantics,
            policy=own(f"    def key(self, run):\n        {body}"),
            max_model_len=4 * longest,
        )
        if ends:
            with pytest.raises(InputError, match=r"^cache.policy Mine: key returned 1 for two leaves, expected"):
                run(WORKLOAD, params, LinearSteps())
        else:
            run(WORKLOAD, params, LinearSteps())
        sys.modules.pop("own_wrong", None)


LOOPS = """    def key(self, run):
        while True:
            try:
                pass
            except Exception:
                pass"""


def test_a_call_without_end_is_ended(own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endless, "CALL_CPU_S", 0.5)
    monkeypatch.setattr(endless, "LOOK_S", 0.1)
    for body, says in ((LOOPS, "key: raised Endless: one call took 0.5 s"), ("    while True: pass", "one call took")):
        with pytest.raises(InputError, match=says):
            run(WORKLOAD, EngineParams(kv_blocks=200, block_size=4, policy=own(body)), LinearSteps())
        sys.modules.pop("own_wrong", None)


def test_what_it_prints_is_not_among_results(own, capsys: pytest.CaptureFixture) -> None:
    mine = own("    print('made')\n    def on_admit(self, request):\n        print('admitted')")
    run(WORKLOAD, EngineParams(kv_blocks=20000, block_size=4, policy=mine), LinearSteps())
    out, err = capsys.readouterr()
    assert not out
    assert err.count("made") == 1
    assert err.count("admitted") == len(WORKLOAD)


def test_exit_code_and_one_line(own, capsys: pytest.CaptureFixture) -> None:
    command = [
        "run",
        "examples/demo.toml",
        "--no-baseline",
        "--set",
        "workload.duration_s=20",
        "--set",
        "engine.kv_blocks=20000",
        "--set",
    ]
    assert main([*command, f"cache.policy={own(WRONG['exit'][0])}"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].endswith("cache.policy Mine: key: raised SystemExit: 0 (own_wrong.py, line 6)")


def test_a_module_that_exits_and_names_that_are_none(own, tmp_path: Path) -> None:
    own("    import sys\n    sys.exit(3)")
    for name, says in (
        ("own_wrong:Mine", "SystemExit: 3"),
        ("..:X", "'..:X'"),
        (":X", "Empty module name"),
        ("x:", "No module named 'x'"),
    ):
        with pytest.raises(InputError) as error:
            find(name)
        assert says in str(error.value)
        assert "\n" not in str(error.value)
    assert main(["run", "examples/demo.toml", "--set", "cache.policy=..:X"]) == 2


def test_only_a_users_own_policy_is_watched(own) -> None:
    world = World(WORKLOAD, 10, 4)
    assert not any(isinstance(make(name, world), Watched) for name in POLICIES)
    mine = make(own("    pass"), world)
    assert isinstance(mine, Watched)
    assert type(mine).__name__ == "Mine"
    assert isinstance(mine, Policy)
