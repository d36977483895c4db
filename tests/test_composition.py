"""calibrate.gpu.composition: every operator of a forward pass is in the sum, as often as it runs, timed in turn with
the whole pass."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.conftest import require_kernel_tools

require_kernel_tools(__name__)

import torch  # noqa: E402

from calibrate.gpu import composition  # noqa: E402
from calibrate.gpu.attention import OwnAttention  # noqa: E402
from calibrate.gpu.backend import TorchBackend  # noqa: E402
from calibrate.gpu.devices import CpuCalibration  # noqa: E402
from calibrate.models import resolve_model  # noqa: E402

DENSE = replace(resolve_model("tiny"), layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=97)
MOE = replace(DENSE, name="moe", experts=4, experts_per_token=2, expert_intermediate=48, moe_layers=2, qk_norm=True)
MIXES = (
    {"chunks": [], "contexts": [20, 9]},
    {"chunks": [[33, 0]], "contexts": []},
    {"chunks": [[20, 40]], "contexts": [30] * 3},
)
OPERATORS = (
    "embedding",
    "rms_norm",
    "linear",
    "head_norm",
    "rope_kv_write",
    "prefill_attention",
    "decode_attention",
    "silu_mul",
    "experts",
    "sample",
)


class Counting(TorchBackend):
    """Notes what is called, with the shapes of its tensors."""

    def __init__(self):
        self.calls, self.inside = [], []

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in OPERATORS:
            return found

        def noted(*args):
            if name != "silu_mul" or "experts" not in self.inside:
                self.calls.append((name, *(tuple(a.shape) for a in args[: 2 if name == "linear" else 1])))
            self.inside.append(name)
            result = found(*args)
            self.inside.pop()
            return result

        return noted


class Scripted(CpuCalibration):
    """Runs every call once and says it took what the script says; notes which were whole passes."""

    def __init__(self, model, whole=(), part=()):
        super().__init__(model, "fp32", sweep=False)
        self.backend = Counting()
        self.attention = OwnAttention(self.backend)
        self.whole, self.part, self.order, self.seen = whole, part, [], []

    def one(self, call):
        passes = getattr(call, "func", None) is not None and call.func.__name__ == "forward"
        round_ = sum(self.order) - (0 if passes else 1)
        self.order.append(passes)
        self.backend.calls.clear()
        call()
        self.seen.append((passes, Counter(self.backend.calls)))
        script = self.whole if passes else self.part
        return script[round_ % len(script)]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "experts"])
def test_the_operators_that_are_summed_are_those_of_the_forward_pass(model):
    for mix in MIXES:
        device = Scripted(model, (1.0,), (1.0,))
        composition.compare(device, model, [mix], rounds=1)
        whole = [calls for passes, calls in device.seen if passes]
        parts = [calls for passes, calls in device.seen if not passes]
        assert len(whole) == 2
        half = parts[: len(parts) // 2]
        assert sum(half, Counter()) == whole[0], mix


def test_every_round_times_the_pass_and_then_its_operators_and_medians_are_compared():
    """Rounds 1 to 3 of a drifting machine; round 0 warms up and is thrown away."""
    device = Scripted(DENSE, whole=(9000.0, 100.0, 300.0, 200.0), part=(9000.0, 2.0, 6.0, 4.0))
    [(whole_s, parts_s)] = composition.compare(device, DENSE, [MIXES[2]], rounds=3)
    operators = sum(repeat for _, repeat in composition.step_points(DENSE, MIXES[2]))
    assert device.order == ([True] + [False] * operators) * 4, "in turn, so that drift hits both alike"
    assert whole_s == pytest.approx(200e-6)
    assert parts_s == pytest.approx(operators * 4e-6)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.09, 0), (0.85, 1), (1.25, 1)])
def test_the_verdict_is_that_of_the_timings(factor, code, monkeypatch, capsys):
    monkeypatch.setattr(composition, "resolve_model", lambda name: DENSE)
    monkeypatch.setattr(composition, "CpuCalibration", lambda model, dtype, sweep: None)
    monkeypatch.setattr(composition, "compare", lambda device, model: [(0.01, 0.01 * factor)] * len(composition.SHAPES))
    assert composition.main(["--runs", "1"]) == code
    printed = capsys.readouterr().out
    assert f"mean error {100 * abs(factor - 1):.1f} %" in printed
    assert printed.count("operators") == len(composition.SHAPES)
    assert ("FAILED" in printed) == bool(code)
