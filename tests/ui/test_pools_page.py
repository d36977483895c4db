"""A fleet of different GPUs on the pages: its fields, what is shown of it, the cheapest mix.

python -m pytest tests/ui/test_pools_page.py
"""

import tomllib

import pytest

from kvcast.config import load_scenario
from kvcast.jobs import link
from kvcast.pages import mixes, shell
from kvcast.pages.edit import inputs, pools, settings
from kvcast.scenario.toml import dumps
from sim.scenario import PoolConfig
from tests.ui.conftest import Session


@pytest.fixture
def page(folder):
    return Session()


def key(page, i, field):
    return f"pool.{page.at.session_state[pools.VERSION]}.{i}.{field}"


def set_(page, kind, i, field, value):
    getattr(page.at, kind)(key=key(page, i, field)).set_value(value)
    return page.settle(page.at.run())


def labels(page):
    return [field.label for field in (*page.at.number_input, *page.at.selectbox)]


def test_a_fleet_becomes_one_of_pools_and_back(page):
    """Each field is the scenario's; what was of one GPU stays with it, a price with its GPU."""
    page.at.number_input(key="kv_blocks").set_value(9000).run()
    page.press(pools.ADD)
    assert "Step times" not in [expander.label for expander in page.at.expander]
    assert "KV blocks each" not in labels(page)
    set_(page, "selectbox", 1, "gpu", "a100")
    set_(page, "text_input", 1, "name", "h200")
    assert page.words().count("expected a name of its own for each pool") == 2, "at the place, and above the page"
    set_(page, "text_input", 1, "name", "old")
    set_(page, "number_input", 1, "replicas", 3)
    set_(page, "number_input", 1, "price", 1.5)
    set_(page, "selectbox", 1, "tensor_parallel", 2)
    assert not page.at.error
    shown = link.scenario_of(dict(page.at.query_params), settings.demo(), inputs.policies())
    assert shown.pool == (
        PoolConfig("h200", 2, {"profile": "h200-llama-3.1-8b-aic"}, engine={"kv_blocks": 9000}),
        PoolConfig("old", 3, {"gpu": "a100", "tensor_parallel": 2}),
    )
    assert shown.cost.prices == {"h200": 4.0, "a100": 1.5}
    assert (shown.cluster.replicas, shown.engine.kv_blocks) == (1, None)
    set_(page, "number_input", 1, "price", None)
    assert page.at.number_input(key=key(page, 1, "price")).value is None
    assert link.scenario_of(dict(page.at.query_params), settings.demo(), inputs.policies()).cost.prices == {"h200": 4.0}
    set_(page, "number_input", 1, "price", 1.6)
    assert page.at.number_input(key=key(page, 1, "price")).value == 1.6
    set_(page, "selectbox", 1, "gpu", "l4")
    assert "llama-3.1-8b in bf16 does not fit" not in page.words()
    set_(page, "selectbox", 1, "tensor_parallel", 1)
    assert page.at.number_input(key=key(page, 1, "price")).value is None, "nobody's price is another card's"
    page.at.button(key=key(page, 0, "remove")).click()
    page.settle(page.at.run())
    state = page.at.session_state
    assert (state[pools.POOLS], state["gpu"], state["replicas"], state["price"]) == ((), "l4", 3, None)
    assert state["kv_blocks"] is None


MIXED = ["workload.requests=150", "run.warmup_s=1", "slo.ttft_s=5", "slo.tpot_s=0.2"]


def test_what_is_shown_is_of_all_pools(page):
    given = load_scenario("examples/mixed_fleet.toml", MIXED)
    page.at.file_uploader(key="scenario.upload").set_value(("s.toml", dumps(given).encode(), "application/toml"))
    page.settle(page.at.run())
    assert page.at.session_state[pools.POOLS] == given.pool
    assert page.at.number_input(key="slo.chat.ttft").value is None, "the example's limits are not this scenario's"
    page.press("Run")
    job = page.at.session_state.job
    assert tomllib.loads(job.scenario_toml)["pool"] == tomllib.loads(dumps(given))["pool"]
    s = shell.loaded(job).summary
    blocks = sum(row["kv_blocks"] * row["replicas"] for row in s["pools"])
    words = page.words()
    assert f"KV cache: {blocks:,} blocks of 16 tokens" in words
    assert "1 × H200-SXM + 2 × A100-SXM4-80GB" in words
    assert [row["pool"] for row in page.at.dataframe[2].value.to_dict("records")] == ["new", "old"]
    assert not [label for label in labels(page) if "USD" in label], "pools have a price each"
    cost = page.numbers()["Cost / M tokens"]
    page.at.number_input(key="judged.target").set_value(50.0).run()
    page.settle(page.at.run())
    assert page.numbers()["Cost / M tokens"] == cost, "a limit moves no price"

    page.press(mixes.LABEL)
    for one in shell.the_runner()._jobs.values():
        one.wait()
    page.settle(page.at.run())
    assert page.at.dataframe[0].value["mix"].tolist()[0] == "1 old"
    assert "the cheapest mix that meets the target" in page.words()
    assert "Use this mix" in page.buttons()

    page.go("cache")
    assert page.words().count(shell.OF_ALIKE) == 3
    page.go("calibration")
    blocks_of = [f"{row['kv_blocks']:,} blocks of 16" for row in s["pools"]]
    assert blocks_of[0] in page.words()
    page.at.session_state["calibration.pool"] = 1
    page.settle(page.at.run())
    assert blocks_of[1] in page.words()
    assert "a100-llama-3.1-8b-aic" in page.words()
