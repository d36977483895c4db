"""Commands of several simulations tell what share of the whole is done: it never goes back, and it ends at the end."""

import json

import pytest

from kvcast import text
from kvcast.studies import compare, explain
from sim.scenario import CacheConfig, ClusterConfig
from tests.test_explain import DOCUMENT, SYSTEM, scenario

DOC = {
    "workload": {
        "rate": 20.0,
        "requests": 400,
        "class": [
            {
                "name": "c",
                "share": 1.0,
                "layers": [{"name": "message", "scope": "dynamic", "tokens": {"value": 200}}],
                "output": {"value": 20},
            }
        ],
    }
}


@pytest.fixture
def told(monkeypatch, tmp_path):
    shares: list[float] = []
    monkeypatch.setenv(text.PROGRESS_FILE, str(tmp_path / "progress"))
    monkeypatch.setattr(text, "progress_share", lambda done, total, words: shares.append(done / total))
    return shares


@pytest.mark.parametrize("jobs", [1, 2])
def test_comparisons_and_what_they_find_does_not_depend_on_the_processes(told, jobs):
    results = compare.simulate_all(compare.variants(DOC, ["cache.policy=lru,lfu"], seeds=2), jobs)
    assert [(r.variant.label, r.variant.scenario.seed) for r in results] == [
        (("lru",), 0),
        (("lfu",), 0),
        (("lru",), 1),
        (("lfu",), 1),
    ]
    assert [r.summary["seed"] for r in results] == [0, 0, 1, 1]
    assert told == sorted(told)
    assert {0.25, 0.5, 0.75} <= set(told)


def test_explanations(told):
    found = explain.explain(
        scenario(SYSTEM, DOCUMENT, cluster=ClusterConfig(replicas=2), cache=CacheConfig(policy="lfu"))
    )
    assert sum(len(cause["changes"]) for cause in found["causes"]) > 2
    assert told == sorted(told)
    assert told[0] < 0.5
    assert told[-1] > 0.6, "the last of three parts has begun"


def test_a_share_that_turns_out_smaller_is_not_taken_back(monkeypatch, tmp_path):
    """Whoever polls the file sees it go on."""
    file = tmp_path / "progress"
    monkeypatch.setenv(text.PROGRESS_FILE, str(file))
    monkeypatch.setattr(text, "TELL_EVERY_S", 0.0)
    seen = []
    for done in (0.2, 0.6, 0.3, 0.55, 0.7):
        text.progress_share(done, 1.0, f"at {done}")
        seen.append(json.loads(file.read_text()))
    assert [one["done"] for one in seen] == [0.2, 0.6, 0.6, 0.6, 0.7]
    assert [one["says"] for one in seen] == ["at 0.2", "at 0.6", "at 0.3", "at 0.55", "at 0.7"]
