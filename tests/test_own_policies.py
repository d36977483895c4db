"""A user's own policy that does something wrong: one line that names its class and the method, and exit code 2.

    python -m pytest tests/test_own_policies.py
"""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvcast.cli import main
from sim.kvcache.policies import POLICIES, Policy, World, find, make
from sim.kvcache.policies.own import Watched
from sim.scenario import EngineParams
from sim.simulate import run
from tests.worlds import LinearSteps, random_workload
from workloads.errors import InputError

WORKLOAD = random_workload(5)
WRONG = {
    "init": ("    def __init__(self, world):\n        raise KeyError('x')", "__init__: raised KeyError: 'x' (own_wrong.py, line 5)"),
    "no_super": ("    def __init__(self, world):\n        pass", "__init__: expected it to call super().__init__(world)"),
    "value": ("    def __init__(self, world):\n        raise ValueError('k = 0')", "__init__: raised ValueError: k = 0 (own_wrong.py, line 5)"),
    "admit": ("    def on_admit(self, request):\n        request.nothing", "on_admit: raised AttributeError: "),
    "insert": ("    def on_insert(self, run, request):\n        1 / 0", "on_insert: raised ZeroDivisionError: division by zero (own_wrong.py, line 5)"),
    "release": ("    def on_release(self, run, request):\n        {}[run.lo]", "on_release: raised KeyError: "),
    "arity": ("    def on_release(self, run):\n        pass", "on_release: "),
    "state": ("    def on_insert(self, run, request):\n        import numpy\n        run.state = numpy.zeros(2)", "on_insert: left state array([0., 0.]), expected one that compares with =="),
    "exit": ("    def key(self, run):\n        import sys\n        sys.exit(0)", "key: raised SystemExit: 0 (own_wrong.py, line 6)"),
    "nan": ("    def key(self, run):\n        return float('nan'), run.released", "key: returned (nan, "),
    "mixed": ("    def key(self, run):\n        return ('a' if run.released % 2 else 1,)", "key: '<' not supported between instances of "),
    "group": ("    def group(self, run):\n        return [1]", "group: returned [1], expected something hashable"),
    "groups": ("    def group(self, run):\n        return ([],)", "group: unhashable type: 'list'"),
    "victim": ("    def victim(self, heads):\n        return 'nobody'", "victim: returned 'nobody', expected one of the groups 0"),
    "evict": ("    def on_evict(self, run, n):\n        raise RuntimeError('two\\nlines')", "on_evict: raised RuntimeError: two lines (own_wrong.py, line 5)"),
    "chance": ("    def second_chance(self, run):\n        return True", "spare: raised NotImplementedError"),
}
VLLM_ONLY = {
    "span": ("    def span(self, run):\n        return 1.5", "span: returned 1.5, expected a whole number"),
    "split": ("    def split(self, node_id, lo, hi, request):\n        return None", "split: returned None, expected a whole number"),
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a policy Mine whose class body is given, and forgets it after the test."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(body: str) -> str:
        (tmp_path / "own_wrong.py").write_text(f"from sim.kvcache.policies import Policy\n\nclass Mine(Policy):\n{body}\n")
        return "own_wrong:Mine"

    yield write
    sys.modules.pop("own_wrong", None)


@pytest.mark.parametrize(("semantics", "wrong"), [(s, w) for s in ("vllm", "sglang") for w in WRONG] + [("vllm", w) for w in VLLM_ONLY])
def test_what_is_wrong_names_the_class_and_the_method(own, semantics: str, wrong: str) -> None:
    body, line = (WRONG | VLLM_ONLY)[wrong]
    longest = int((WORKLOAD.prompt_tokens + WORKLOAD.output_tokens).max())
    params = EngineParams(kv_blocks=longest // 4 + 8, block_size=4, semantics=semantics, policy=own(body), max_model_len=4 * longest)
    with pytest.raises(InputError) as error:
        run(WORKLOAD, params, LinearSteps())
    assert str(error.value).startswith(f"cache.policy Mine: {line}")
    assert "\n" not in str(error.value)


def test_exit_code_and_one_line(own, capsys: pytest.CaptureFixture) -> None:
    command = ["run", "examples/demo.toml", "--no-baseline", "--set", "workload.duration_s=20", "--set", "engine.kv_blocks=20000", "--set"]
    assert main([*command, f"cache.policy={own(WRONG['exit'][0])}"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].endswith("cache.policy Mine: key: raised SystemExit: 0 (own_wrong.py, line 6)")


def test_a_module_that_exits_and_names_that_are_none(own, tmp_path: Path) -> None:
    own("    import sys\n    sys.exit(3)")
    for name, says in (("own_wrong:Mine", "SystemExit: 3"), ("..:X", "'..:X'"), (":X", "Empty module name"), ("x:", "No module named 'x'")):
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
