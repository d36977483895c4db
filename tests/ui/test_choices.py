"""Model, precision, GPU, layout and price in the sidebar: each by itself, and what a choice takes away is said."""

from __future__ import annotations

import json

import pytest

from kvcast.pages.edit import choices
from sim.scenario import CostConfig
from tests.ui.conftest import Session


@pytest.fixture(scope="module")
def session(folder):
    return Session()


def choose(session, key, value):
    session.at = session.at.selectbox(key=key).set_value(value).run()
    assert not session.at.exception
    return session.words()


def test_every_model_and_gpu_can_be_chosen():
    names, known = choices.models(), choices.gpus()
    assert {"gpt-oss-120b", "hf:Qwen/Qwen3-32B-FP8", choices.CONFIG} <= set(names)
    assert {"h100", "b300", "rtx-4090", "mi300x"} <= set(known)
    assert known["h200"] == "H200-SXM, 140 GiB"
    assert known["mi300x"].endswith("(data sheet, ±30 %)")
    assert next(f.name for f in choices.layout()) == "tensor_parallel"
    atlas = ["atlas:h200", "atlas:h200:sglang", "atlas:h200:trtllm"]
    assert choices.profiles_of("h200")[-4:] == [*atlas, "roofline:h200"]


def test_one_price_is_the_gpus_own_and_several_are_a_list():
    assert choices.cost_of({"h200": 4.0}, "h200") == CostConfig(4.0)
    assert choices.cost_of({}, "h200") == CostConfig()
    assert choices.cost_of({"h200": 4.0, "b200": 6.0}, "b200") == CostConfig(prices={"b200": 6.0, "h200": 4.0})
    assert choices.cost_of({"h200": 4.0}, "b200") == CostConfig(prices={"h200": 4.0}), "none for the B200"


def test_a_choice_leaves_the_others_and_says_what_it_takes_away(session):
    state = session.at.session_state
    words = choose(session, "model", "gpt-oss-20b")
    assert (state["gpu"], state["layout.tensor_parallel"], state["price"]) == ("h200", 1, 4.0)
    assert "h200-llama-3.1-8b-aic is of another model" in words
    assert "atlas:h200: measured operators, each expected within" in words
    words = choose(session, "gpu", "b200")
    assert (state["model"], state["price"]) == ("gpt-oss-20b", None)
    assert "no price for b200 yet" in words
    assert "is of another model" not in words, "that was said of the choice before"
    words = choose(session, "model", "llama-3.1-405b")
    assert "does not fit B200 at tensor_parallel 1: it fits at tensor_parallel 8" in words
    assert state["gpu"] == "b200"
    choose(session, "gpu", "h200")
    assert state["price"] == 4.0, "the price that was given for it"


def test_a_config_of_ones_own_is_uploaded_and_run(session):
    config = json.dumps({"model_type": "qwen2", "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32000})
    whole = {**json.loads(config), "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4}
    whole["max_position_embeddings"] = 8192
    words = choose(session, "model", choices.CONFIG)
    assert "upload a config.json in the sidebar" in session.at.error[0].value
    for content, says in (
        (config, "field num_hidden_layers is missing"),
        (json.dumps(whole), ": measured operators, each expected within"),
    ):
        session.at.file_uploader(key="model.upload").set_value(("config.json", content.encode(), "application/json"))
        session.at = session.at.run()
        words = session.words()
        assert says in words
        assert "/uploads/" not in words, "no path of the server"
    words = session.press("Run").words()
    assert " of config.json, round-robin router" in words, "and of no model that it is not"
    assert "/uploads/" not in words


def test_prices_are_one_list_that_the_plan_asks_for_by_gpu(session):
    state = session.at.session_state
    choose(session, "model", "llama-3.1-8b")
    session.at = session.at.multiselect(key="plan.gpus").set_value(["b200"]).run()
    assert session.at.number_input(key="plan.price.h200").value == state["price"] == 4.0
    session.at = session.at.number_input(key="plan.price.b200").set_value(6.0).run()
    session.at = session.at.number_input(key="plan.price.h200").set_value(3.5).run()
    assert not session.at.exception
    assert (state["prices"], state["price"]) == ({"b200": 6.0, "h200": 3.5}, 3.5)
    asked = [b.key for b in session.at.button if (b.key or "").startswith("start Find")]
    assert asked == ["start Find the fewest GPUs plan --vary hardware.gpu=b200,h200"]
