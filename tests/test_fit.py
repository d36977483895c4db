"""The fitted forms: known parameters come back, held-out errors mean what they say, measured H200 kernels are within
the limits."""

import numpy as np
import pytest

from calibrate.fit import FOLDS, Sample, fit_form, fit_operators, held_out_error, interpolation_error
from calibrate.forms import AXES, TERMS, Form
from calibrate.operators import Point, features
from kvcast import validation

HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 128}


def sample(op, shape, us):
    return Sample(shape, features(Point(op, shape), 2), us)


def test_a_form_by_hand():
    form = Form(5.0, {"gflop": 3.0}, {"mb": 2.0})
    assert form.us({"gflop": 1.0, "mb": 2.0}) == 5.0 + 5.0
    assert form.described() == {"overhead_us": 5.0, "tflops": pytest.approx(1000 / 3), "tb_per_s": 0.5}
    assert Form.from_json(form.to_json()) == form


def test_every_fitted_operator_has_axes_and_at_most_four_parameters():
    for op, (compute, memory) in TERMS.items():
        if op != "copy":
            assert AXES[op], op
        assert 1 + len(compute) + len(memory) <= 4, op


def test_exact_points_give_exact_parameters():
    truth = Form(7.0, {"gflop": 1.5}, {"mb": 0.3})
    shapes = [
        {"m": m, "n": n, "k": k}
        for n, k in ((4096, 4096), (1024, 4096), (4096, 11008))
        for m in (1, 4, 16, 64, 256, 1024, 4096)
    ]
    fitted = fit_operators({"gemm": [sample("gemm", s, truth.us(features(Point("gemm", s), 2))) for s in shapes]})
    assert len(fitted) == 3
    for f in fitted:
        assert f.form.overhead_us == pytest.approx(7.0, rel=1e-3)
        assert f.form.compute["gflop"] == pytest.approx(1.5, rel=1e-3)
        assert f.form.memory["mb"] == pytest.approx(0.3, rel=1e-3)
        assert f.held_out < 1e-3


def test_one_outlier_does_not_pull_the_form():
    truth = Form(10.0, {"longest": 0.001}, {"mb": 0.25, "seqs": 0.1})
    rows = []
    for batch in (1, 2, 8, 32, 128):
        for context in (64, 512, 4096, 32768):
            s = {**HEADS, "batch": batch, "context": context, "longest": context}
            rows.append(sample("decode", s, truth.us(features(Point("decode", s), 2))))
    rows[7] = Sample(rows[7].shape, rows[7].features, rows[7].value * 3)
    form = fit_form("decode", rows)
    assert form.memory["mb"] == pytest.approx(0.25, rel=0.02)


def test_a_held_out_error_sees_what_the_form_cannot_say():
    """A staircase: neighbours agree with each other, no smooth form does."""
    rows = [
        sample("gemm", {"m": m, "n": 1024, "k": 1024}, 10.0 if m < 100 else 40.0)
        for m in (1, 2, 4, 8, 16, 32, 64, 99, 100, 200, 300, 400)
    ]
    (fitted,) = fit_operators({"gemm": rows})
    assert fitted.held_out > 0.1


def test_no_point_is_judged_by_a_form_that_has_seen_it(monkeypatch):
    """A form that knows the points it was fitted to by heart and takes twice as long for every other."""

    class ByHeart:
        def __init__(self, rows):
            self.known = {r.features["gflop"]: r.value for r in rows}

        def us(self, features):
            return self.known.get(features["gflop"], 2 * features["gflop"])

    monkeypatch.setattr("calibrate.fit.fit_form", lambda op, rows, prior=None, start=None: ByHeart(rows))
    rows = [Sample({"m": m, "n": 1, "k": 1}, {"gflop": float(m)}, float(m)) for m in range(1, 18)]
    assert held_out_error("gemm", rows, Form(0.0, {}, {})) == 1.0
    assert held_out_error("gemm", rows[: FOLDS + 1], Form(0.0, {}, {})) is None


def test_the_error_between_points_is_the_error_of_linear_interpolation():
    rows = [sample("gemm", {"m": m, "n": 64, "k": 64}, us) for m, us in ((1, 10.0), (3, 25.0), (5, 30.0))]
    assert interpolation_error("gemm", rows) == pytest.approx(abs(20 / 25 - 1))


def test_forms_never_fall_when_work_grows():
    rng = np.random.default_rng(0)
    for op, shape, axis in (
        ("gemm", {"m": 1, "n": 512, "k": 512}, "m"),
        ("prefill", {**HEADS, "new": 1, "cached": 700, "seqs": 1}, "new"),
        ("prefill", {**HEADS, "new": 64, "cached": 1, "seqs": 1}, "cached"),
    ):
        compute, memory = TERMS[op]
        form = Form(
            float(rng.random()), {f: float(rng.random()) for f in compute}, {f: float(rng.random()) for f in memory}
        )
        us = [form.us(features(Point(op, {**shape, axis: x}), 2)) for x in (1, 10, 100, 1000, 10_000)]
        assert us == sorted(us)


def test_held_out_errors_on_measured_h200_kernels_and_whole_steps(data_dir):
    outcome = validation.run("fit", data_dir)
    print("\n".join(outcome.lines))
    held = outcome.figures["held_out"]
    assert held["gemm"] <= 0.08
    assert held["prefill attention"] <= 0.10
    assert held["decode attention"] <= 0.10
    assert held["whole prefill"] <= 0.04
    assert held["whole decode step"] <= 0.06
    assert outcome.passed
