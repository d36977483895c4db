"""Editing a mix: cells, the class table, prompt layers; every edit is a function from one mix to the next."""

import json
from dataclasses import replace

import pytest

from kvcast.pages import mix
from kvcast.pages.edit import layers
from workloads import dists, steady
from workloads.check import class_rates
from workloads.config import Arrival, Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.estimate import estimate
from workloads.mix import resolve
from workloads.toml import list_presets, load_preset

# -- cells
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dist"),
    [
        ("1200", Dist(value=1200.0)),
        ("16k", Dist(value=16000.0)),
        ("1,200", Dist(value=1200.0)),
        ("129 p90 424 max 1000", Dist(kind="lognormal", median=129.0, p90=424.0, high=1000.0)),
        ("lognormal 129 sigma 0.9", Dist(kind="lognormal", median=129.0, sigma=0.9)),
        ("geometric 4 max 12", Dist(kind="geometric", mean=4.0, high=12.0)),
        ("uniform 3 to 50", Dist(kind="uniform", low=3.0, high=50.0)),
        ("exponential 1.5", Dist(kind="exponential", mean=1.5)),
        (
            "empirical 2000:3 8000:1 max 5000",
            Dist(kind="empirical", values=(2000.0, 8000.0), weights=(3.0, 1.0), high=5000.0),
        ),
    ],
)
def test_a_distribution_is_a_short_text(text, dist):
    assert mix.parse_dist(text) == dist
    assert mix.parse_dist(mix.dist_text(dist)) == dist


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "12 p90",
        "12 p90 x",
        "12 p99 40",
        "-5",
        "nan",
        "1e999",
        "empirical 3",
        "empirical 1:2:3",
        "12 p90 20 p90 30",
        "geometric",
    ],
)
def test_an_unreadable_distribution_is_one_line_with_the_grammar(text):
    with pytest.raises(InputError, match="expected a distribution") as error:
        mix.parse_dist(text, "classes, row 1: turns")
    assert str(error.value).startswith("classes, row 1: turns")
    assert "\n" not in str(error.value)


# -- the table
# -----------------------------------------------------------------------------------------------------------


def edit(config, **edits):
    """The edits as the browser sends them."""
    return mix.edited(config, json.loads(json.dumps(edits)))


@pytest.mark.parametrize("name", list_presets())
def test_no_edits_leave_the_preset_as_it_is(name):
    preset = load_preset(name)
    assert mix.same(edit(preset), preset)
    assert len(mix.class_rows(preset)) == len(preset.class_)


@pytest.mark.parametrize("name", list_presets())
def test_a_cell_changes_what_it_shows_and_nothing_else(name):
    preset = load_preset(name)
    after = edit(preset, edited_rows={"0": {"output": "77"}})
    assert after.class_[0] == replace(preset.class_[0], output=Dist(value=77.0), share=None, rate=after.class_[0].rate)
    assert class_rates(after) == pytest.approx(class_rates(preset)), "a share has become the rate it stood for"
    resolve(after)


def test_rows_come_and_go():
    preset = load_preset("tool-agent-api")
    after = edit(
        preset,
        deleted_rows=[1],
        added_rows=[{"name": "new", "rate": 0.5, "turns": "2", "think": "10", "turn_input": "50", "tenants": None}, {}],
    )
    assert [c.name for c in after.class_] == ["long-tools", "other", "new", "new class"]
    new = after.class_[2]
    assert (new.rate, new.turns, new.tenants) == (0.5, Dist(value=2.0), 1)
    assert [layer.scope for layer in new.layers] == ["global", "dynamic"], "a class starts with a prompt"
    resolve(after)
    with pytest.raises(InputError, match="no class left"):
        edit(load_preset("chat"), deleted_rows=[0])


def test_edits_that_make_no_sense_are_one_line():
    preset = load_preset("demo")
    for cells, message in (
        ({"rate": None}, "row 2: sessions/s is empty"),
        ({"output": ""}, "output"),
        ({"name": " "}, "class is empty"),
        ({"turns": "many"}, "expected a distribution"),
    ):
        with pytest.raises(InputError, match=message):
            edit(preset, edited_rows={"1": cells})


def test_a_preset_joins_at_its_own_rate_under_a_name_of_its_own():
    chat = load_preset("chat")
    both = mix.with_preset(chat, chat)
    assert [c.name for c in both.class_] == ["chat", "chat 2"]
    assert class_rates(both) == pytest.approx([5.5, 5.5])
    resolve(both)


def test_users_and_rate_are_littles_law():
    agent = load_preset("coding-agent")
    users = mix.users(agent, "coding-agent")
    assert users == pytest.approx(0.02 * steady.session_s(agent.class_[0]))
    after = mix.for_users(agent, "coding-agent", 300)
    assert mix.users(after, "coding-agent") == pytest.approx(300, rel=1e-4)
    assert after.class_[0].rate == pytest.approx(0.02 * 300 / users, rel=1e-4)
    single = MixClass(name="a", rate=2.0, layers=(Layer(name="m", tokens=Dist(value=10)),), output=Dist(value=100))
    assert steady.session_s(single) == pytest.approx(100 * steady.NOMINAL_TOKEN_S), "one request: its answer alone"


# -- layers
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_presets())
def test_parts_sum_to_the_mean_prompt(name):
    config = load_preset(name)
    for c, row in zip(config.class_, estimate(config), strict=True):
        assert sum(part.tokens for part in layers.parts(c)) == pytest.approx(row["prompt_tokens"])


def agent():
    return load_preset("demo")


def names(config, cls="coding-agent"):
    return [layer.name for layer in layers.of(config, cls).layers]


def test_what_comes_before_the_first_changed_text_is_reusable():
    def reusable(config):
        return [part.name for part in layers.parts(layers.of(config, "coding-agent")) if part.reusable]

    assert reusable(agent()) == ["tools", "system", "repository", "history"]
    assert reusable(layers.changed(agent(), "coding-agent", 1, scope="dynamic")) == ["tools"]
    assert reusable(layers.moved(agent(), "coding-agent", 3, -3)) == [], "the task first: all behind it is lost"


def test_an_order_costs_what_it_loses_and_the_best_one_brings_it_back():
    before = layers.cost(layers.of(agent(), "coding-agent"))
    assert before["lost_tokens_per_request"] == 0
    worse = layers.moved(agent(), "coding-agent", 3, -3)
    assert names(worse) == ["task", "tools", "system", "repository"]
    cost = layers.cost(layers.of(worse, "coding-agent"))
    assert cost["reusable_tokens_per_request"] < 0.2 * before["reusable_tokens_per_request"]
    assert cost["lost_tokens_per_request"] == pytest.approx(
        cost["best_reusable_tokens_per_request"] - cost["reusable_tokens_per_request"]
    )
    assert names(layers.in_best_order(worse, "coding-agent")) == names(agent())


def test_layers_move_one_place_and_stop_at_the_ends():
    assert names(layers.moved(agent(), "coding-agent", 0, 1)) == ["system", "tools", "repository", "task"]
    assert names(layers.moved(agent(), "coding-agent", 0, -1)) == names(agent())
    assert names(layers.moved(agent(), "coding-agent", 3, 5)) == names(agent())
    assert names(layers.moved(agent(), "coding-agent", 0, 1), "chat") == ["system", "message"], "other classes stay"


@pytest.mark.parametrize(
    "dist",
    [
        Dist(value=100.0),
        Dist(kind="lognormal", median=3000.0, p90=6000.0, high=12000.0),
        Dist(kind="uniform", low=10.0, high=30.0),
        Dist(kind="geometric", mean=9.0),
        Dist(kind="empirical", values=(10.0, 90.0), weights=(1.0, 3.0)),
        Dist(kind="lognormal", median=50.0, sigma=0.7),
    ],
)
def test_resizing_keeps_the_shape(dist):
    resized = dists.scaled(dist, 5000.0)
    assert dists.moments(resized)[0] == pytest.approx(5000, rel=0.01)
    assert resized.kind == dist.kind
    spread = [m2 / m1**2 for m1, m2 in (dists.moments(dist, whole=False), dists.moments(resized, whole=False))]
    assert spread[0] == pytest.approx(spread[1], rel=0.07), "a geometric one to its last whole token"


def test_a_scope_takes_with_it_what_only_it_has():
    config = layers.changed(agent(), "coding-agent", 2, scope="session")
    assert layers.of(config, "coding-agent").layers[2] == replace(
        layers.of(agent(), "coding-agent").layers[2], scope="session", items=1, zipf=0.0
    )
    churned = layers.changed(agent(), "coding-agent", 0, redeploy_s=60.0, shuffle=3, share="t")
    assert layers.of(layers.changed(churned, "coding-agent", 0, scope="dynamic"), "coding-agent").layers[0] == Layer(
        name="tools", scope="dynamic", tokens=Dist(value=12200.0)
    )
    resolve(config)


def test_a_layer_is_renamed():
    assert names(layers.changed(agent(), "coding-agent", 0, name="skills")) == [
        "skills",
        "system",
        "repository",
        "task",
    ]


def test_layers_are_added_behind_their_scope_and_removed():
    more = layers.added(agent(), "coding-agent", "global", 700.0)
    assert names(more) == ["tools", "system", "global", "repository", "task"]
    assert names(layers.added(more, "coding-agent", "global", 700.0)) == [
        "tools",
        "system",
        "global",
        "global 2",
        "repository",
        "task",
    ]
    assert names(layers.added(agent(), "coding-agent", "dynamic", 10.0)) == [
        "tools",
        "system",
        "repository",
        "extra",
        "task",
    ]
    assert names(layers.without(more, "coding-agent", 2)) == names(agent())
    lone = WorkloadConfig(class_=(MixClass(name="a", rate=1.0, layers=(Layer(name="m"),)),), requests=10)
    with pytest.raises(InputError, match="only layer"):
        layers.without(lone, "a", 0)


def test_arrivals_change_alone():
    after = mix.with_class(load_preset("chat"), "chat", arrival=Arrival(kind="onoff", on_s=5.0, off_s=10.0))
    assert after.class_[0] == replace(load_preset("chat").class_[0], arrival=after.class_[0].arrival)
    assert after.rate == 5.5
