"""A benchmark's arrivals: gaps stretched to the rate, a rate that grows, a rate beside a cap of requests in flight."""

from __future__ import annotations

import numpy as np
import pytest

import kvcast
from kvcast.config import scenario_from_doc
from workloads import mix
from workloads.arrivals import paced
from workloads.config import Arrival
from workloads.errors import InputError


def doc(**workload):
    one = {"name": "a", "rate": 4.0, "layers": [{"name": "question", "tokens": {"value": 64}}], "output": {"value": 8}}
    one |= workload.pop("of", {})
    return {
        "workload": {"requests": 50, "class": [one], **workload},
        "run": {"warmup_s": 0.0},
        "hardware": {"profile": "roofline:h200"},
    }


def times(document):
    return mix.build(scenario_from_doc(document).workload, 0).arrival_s


def test_exact_gaps_end_where_the_rate_says_and_keep_their_shape():
    drawn, exact = times(doc()), times(doc(of={"arrival": {"exact": True}}))
    assert exact[-1] == pytest.approx(50 / 4.0)
    assert drawn[-1] != pytest.approx(50 / 4.0)
    np.testing.assert_allclose(exact / exact[-1], drawn / drawn[-1])


def test_a_rate_that_grows_is_what_vllms_ramp_up_is():
    """Session i of 5 at 1 + i requests/s (linear) and at 5 ** (i / 4) (exponential); gaps of 1 s at first."""
    even = np.arange(1.0, 6.0)
    np.testing.assert_allclose(
        np.diff(paced(Arrival(ramp_to=5.0), 1.0, even), prepend=0.0), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    )
    np.testing.assert_allclose(
        np.diff(paced(Arrival(ramp_to=5.0, ramp="exponential"), 1.0, even), prepend=0.0), 5 ** (-even / 4) * 5**0.25
    )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (doc(paced=True), "paced = true, expected it with loop"),
        (
            doc(duration_s=9.0, of={"arrival": {"exact": True}}),
            "arrival.exact is for a mix of one class that ends after",
        ),
        (doc(of={"arrival": {"exact": True, "ramp_to": 3.0}}), "not for exact and ramp_to together"),
    ],
)
def test_what_makes_no_sense_is_one_line(document, said):
    with pytest.raises(InputError, match=said):
        kvcast.simulate(scenario_from_doc(document))


def test_a_cap_holds_requests_back_and_a_slow_rate_leaves_places_empty():
    def begun(**workload):
        return kvcast.simulate(scenario_from_doc(doc(**workload))).requests["arrival_s"]

    arrival = times(doc())
    np.testing.assert_allclose(begun(loop="concurrency", concurrency=50, paced=True), arrival)
    one = begun(loop="concurrency", concurrency=1, paced=True, of={"output": {"value": 200}})
    assert (one >= arrival - 1e-9).all()
    assert one[-1] > arrival[-1] + 1  # an answer takes longer than a gap
    assert begun(loop="concurrency", concurrency=1)[0] == 0.0
