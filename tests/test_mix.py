"""Layered mixes against a plain reference: prompts spelled out as text labels, sharing found by comparing prefixes."""

import time
from dataclasses import replace

import numpy as np
import pytest

from workloads.clock import earliest_s
from workloads.columns import SCOPES, Workload
from workloads.config import Arrival, Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.estimate import after_history, before_history, estimate, order_cost, reusable_tokens
from workloads.mix import build
from workloads.prompt import _pairs


def fixed(value: float) -> Dist:
    return Dist(value=value)


def layer(name: str, scope: str, tokens: float = 100, **more) -> Layer:
    return Layer(name=name, scope=scope, tokens=fixed(tokens), **more)


def one_class(*layers: Layer, name: str = "a", **more) -> MixClass:
    return MixClass(name=name, rate=1.0, layers=layers, output=fixed(10), **more)


def mix(*classes: MixClass, requests: int = 60, **more) -> WorkloadConfig:
    return WorkloadConfig(class_=classes, requests=requests, **more)


def path(w: Workload, row: int) -> list[int]:
    return chain(w, int(w.leaf[row]))


def chain(w: Workload, node: int) -> list[int]:
    """Root to node."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = int(w.tree.parent[node])
    return nodes[::-1]


def shared(w: Workload, a: int, b: int) -> int:
    """Tokens of the common prefix of two requests' paths (prompt and output)."""
    common = [x for x, y in zip(path(w, a), path(w, b), strict=False) if x == y]
    return int(w.tree.end[common[-1]]) if common else 0


# ---- what each scope shares


def test_scopes_share_what_they_say():
    c = one_class(
        layer("tools", "global", 1000),
        layer("repo", "project", 300, items=3),
        layer("files", "session", 50),
        layer("msg", "dynamic", 7),
    )
    w = build(mix(replace(c, turns=fixed(2), think=fixed(5), turn_input=fixed(20))), seed=3)
    w.check()
    repo = [w.tree.content[path(w, r)[2]] for r in range(len(w))]
    assert len(set(repo)) == 3
    for a in range(len(w)):
        for b in range(a):
            same_session = w.session_id[a] == w.session_id[b]
            want = 1367 if same_session else 1300 if repo[a] == repo[b] else 1000  # 1350 of layers + 7 in + 10 out
            assert shared(w, a, b) == want
    assert set(w.prompt_tokens[w.turn == 0]) == {1357}
    assert set(w.prompt_tokens[w.turn == 1]) == {1387}  # 1367 + 20


def test_single_turn_sessions_keep_what_nobody_shares_out_of_the_tree():
    w = build(
        mix(one_class(layer("tools", "global", 1000), layer("files", "session", 50), layer("msg", "dynamic", 7))),
        seed=0,
    )
    assert len(w.tree) == 2
    assert set(w.prompt_tokens) == {1057}


def test_a_dynamic_layer_first_leaves_no_hit_after_it():
    good = one_class(
        layer("tools", "global", 1000),
        layer("rag", "dynamic", 200),
        layer("msg", "dynamic", 7),
        turns=fixed(4),
        think=fixed(1),
    )
    bad = replace(good, layers=(good.layers[1], good.layers[0], good.layers[2]))
    assert reusable_tokens(build(mix(bad), seed=0)).sum() == 0
    hit = reusable_tokens(build(mix(good), seed=0))
    assert hit[0] == 0
    assert set(hit[1:]) == {1000}  # the history stands behind the dynamic snippet: never reused


def test_text_after_a_change_keeps_its_content_so_the_report_can_name_the_cause():
    c = one_class(
        layer("clock", "dynamic", 8),
        layer("tools", "global", 1000),
        layer("msg", "dynamic", 7),
        turns=fixed(3),
        think=fixed(1),
    )
    w = build(mix(c), seed=0)
    tools = [path(w, r)[2] for r in range(len(w))]
    assert len(set(tools)) == len(w)
    assert len(set(w.tree.content[tools])) == 1
    r = int(np.flatnonzero(w.turn == 2)[0])
    before = int(np.flatnonzero((w.session_id == w.session_id[r]) & (w.turn == 1))[0])
    pieces = [[w.tree.content[n] for n in path(w, x)[3:]] for x in (before, r)]
    assert pieces[1] == pieces[0] != []  # turn 2 repeats both earlier exchanges, on another path


@pytest.mark.parametrize("seed", range(30))
def test_random_mixes_against_prompts_written_out(seed):
    """Every request's prompt as a list of (text, tokens), built the slow way; shared tokens must be the common
    prefix."""
    rng = np.random.default_rng(seed)
    scopes = [str(s) for s in rng.choice(["global", "project", "session", "dynamic"], size=rng.integers(1, 5))]
    layers = tuple(
        Layer(
            name=f"l{i}",
            scope=s,
            tokens=Dist(kind="uniform", low=5, high=90),
            items=3 if s == "project" else 1,
            timestamp_s=float(s == "global" and rng.random() < 0.4) * 40,
        )
        for i, s in enumerate(scopes)
    )
    c = one_class(
        *layers,
        turns=Dist(kind="uniform", low=1, high=5),
        think=fixed(10),
        turn_input=Dist(kind="uniform", low=1, high=30),
        isolation=bool(rng.random() < 0.3),
        tenants=2,
    )
    w = build(mix(c, loop="open"), seed=seed)
    w.check()
    final = scopes[-1] == "dynamic"
    head = layers[:-1] if final else layers
    prompts, said = [], {}
    for r in range(len(w)):
        session, turn = int(w.session_id[r]), int(w.turn[r])
        ids = {"global": 0, "session": session, "dynamic": r}
        nodes = path(w, r)
        prompt = [("salt", int(w.tenant_id[r]) if c.isolation else 0)]
        for i, x in enumerate(head):
            text = (
                i,
                ids.get(x.scope, int(w.tree.content[nodes[1 + i]])),
                int(w.arrival_s[r] // 40) if x.timestamp_s else 0,
            )
            prompt += [text] * int(w.tree.end[nodes[1 + i]] - w.tree.end[nodes[i]])
        fixed_part = len(prompt) - 1
        for t in range(turn):
            prompt += said[session, t]
        mine = int(w.prompt_tokens[r]) - (len(prompt) - 1)
        assert mine >= (1 if final or turn else 0)
        said[session, turn] = [(session, turn, "said")] * (mine + int(w.output_tokens[r]))
        prompts.append(prompt + said[session, turn])
        assert fixed_part == w.tree.end[nodes[len(head)]]
    if c.isolation:  # one twin for each distinct path without its salt, and it is a node with that path
        twins: dict[tuple, set[int]] = {}
        for r in range(len(w)):
            nodes = path(w, r)
            for i, node in enumerate(nodes):
                twins.setdefault(tuple(w.tree.content[nodes[: i + 1]]), set()).add(int(w.tree.twin[node]))
        assert all(len(t) == 1 for t in twins.values())
        assert all(tuple(w.tree.content[chain(w, *t)]) == key for key, t in twins.items())
    for a in range(0, len(w), 2):
        for b in range(a):
            common = next(
                (i for i, (x, y) in enumerate(zip(prompts[a], prompts[b], strict=False)) if x != y),
                min(len(prompts[a]), len(prompts[b])),
            )
            assert shared(w, a, b) == max(common - 1, 0)


# ---- churn


def test_redeploy_changes_the_text_and_breaks_running_sessions():
    c = one_class(
        layer("system", "global", 500, redeploy_s=100.0), layer("msg", "dynamic", 7), turns=fixed(6), think=fixed(30)
    )
    w = build(mix(c, requests=300), seed=1)
    system = np.array([path(w, r)[1] for r in range(len(w))])
    nominal = build(mix(c, requests=300, loop="open"), seed=1).arrival_s
    version = np.floor(nominal / 100)
    for v in np.unique(version):
        assert len(set(system[version == v])) == 1
    assert len(set(system)) == len(set(version)) > 2
    crossed = [r for r in range(len(w)) if w.turn[r] > 0 and version[r] != version[w.after[r]]]
    assert crossed
    assert all(shared(w, r, int(w.after[r])) == 0 for r in crossed)


def test_redeployed_text_has_its_own_length_a_timestamp_does_not():
    dist = Dist(kind="uniform", low=100, high=1000)
    for churn, lengths in (("redeploy_s", 11), ("timestamp_s", 1)):
        c = one_class(Layer(name="s", scope="global", tokens=dist, **{churn: 10.0}), layer("msg", "dynamic", 7))
        w = build(mix(c, requests=None, duration_s=109.0), seed=0)
        assert len(w.tree) == 1 + 11  # every period of 10 s saw an arrival
        assert len(set(w.tree.end[1:])) >= 0.8 * lengths
        assert (len(set(w.tree.end[1:])) == 1) == (lengths == 1)


def test_shuffled_tools_give_n_orders_of_one_length():
    c = one_class(
        Layer(name="tools", scope="global", tokens=Dist(kind="uniform", low=100, high=1000), shuffle=4),
        layer("msg", "dynamic", 7),
    )
    w = build(mix(c, requests=400), seed=0)
    assert len(w.tree) == 1 + 4
    assert len(set(w.tree.end[1:])) == 1


# ---- popularity, sharing between classes, tenants


def test_zipf_popularity_follows_the_law():
    n, items, s = 40_000, 20, 1.1
    w = build(
        mix(one_class(layer("doc", "project", 100, items=items, zipf=s), layer("m", "dynamic", 5)), requests=n), seed=0
    )
    seen = np.bincount(w.tree.content[w.leaf], minlength=items)
    p = np.arange(1, items + 1) ** -s
    p /= p.sum()
    assert np.all(np.abs(seen - n * p) < 5 * np.sqrt(n * p * (1 - p)))


def test_shared_layers_are_one_text_for_two_classes():
    policy = layer("policy", "global", 400, share="policy")
    a = one_class(policy, layer("m", "dynamic", 5), name="a")
    b = one_class(replace(policy, name="rules"), layer("x", "global", 50), layer("m", "dynamic", 5), name="b")
    w = build(mix(a, b), seed=0)
    first = {path(w, r)[1] for r in range(len(w))}
    assert len(first) == 1
    assert {w.layer_names[w.tree.layer[n]] for n in first} == {"policy"}


def test_isolated_tenants_share_nothing_and_twins_say_what_they_would_have():
    c = one_class(
        layer("tools", "global", 400), layer("repo", "project", 50, items=2), layer("m", "dynamic", 5), tenants=3
    )
    open_, isolated = (build(mix(replace(c, isolation=i), requests=200), seed=0) for i in (False, True))
    assert len(open_.tree) == 1 + 1 + 2
    assert len(isolated.tree) == 3 * 4
    assert np.array_equal(np.bincount(isolated.tenant_id), [67, 67, 66])
    for a, b in ((0, 1), (0, 3), (5, 7)):
        if isolated.tenant_id[a] != isolated.tenant_id[b]:
            assert shared(isolated, a, b) == 0
    twin = isolated.tree.twin
    assert len(set(twin)) == 4
    for r in range(200):  # the same path in the shared tree and in the twins
        assert [isolated.tree.end[n] for n in twin[path(isolated, r)]] == [open_.tree.end[n] for n in path(open_, r)]
    assert len(set(twin[isolated.leaf])) == len(set(open_.leaf)) == 2


# ---- sessions and loops


def chatty(**more) -> MixClass:
    return one_class(
        layer("s", "global", 90),
        layer("m", "dynamic", 5),
        turns=Dist(kind="geometric", mean=4.0),
        think=Dist(kind="exponential", mean=20.0),
        **more,
    )


def test_closed_loop_links_turns_and_open_loop_has_times():
    closed, open_ = build(mix(chatty(), requests=500), seed=0), build(mix(chatty(), requests=500, loop="open"), seed=0)
    later = closed.turn > 0
    assert np.array_equal(np.isnan(closed.arrival_s), later)
    assert np.array_equal(closed.after >= 0, later)
    assert np.all(closed.session_id[closed.after[later]] == closed.session_id[later])
    assert np.all(closed.turn[closed.after[later]] == closed.turn[later] - 1)
    assert np.all(np.diff(open_.arrival_s) >= 0)
    gaps = open_.arrival_s[later] - open_.arrival_s[closed.after[later]]
    assert np.allclose(gaps, closed.delay_s[later])
    assert open_.after is None


def test_history_grows_by_what_was_said():
    w = build(mix(chatty(), requests=500), seed=0)
    later = np.flatnonzero(w.turn > 0)
    grown = w.prompt_tokens[later] - w.prompt_tokens[w.after[later]]
    assert np.array_equal(grown, w.output_tokens[w.after[later]] + 5)
    for r in later[:50]:  # the answer is on the path of the next turn
        before = int(w.after[r])
        assert shared(w, int(r), before) == w.prompt_tokens[before] + w.output_tokens[before]


def test_fixed_concurrency():
    w = build(mix(chatty(), requests=100, concurrency=8), seed=0)
    assert w.concurrency == 8
    shares = build(
        WorkloadConfig(
            class_=tuple(replace(chatty(), name=n, rate=None, share=s) for n, s in (("a", 1.0), ("b", 3.0))),
            requests=4000,
            concurrency=8,
        ),
        seed=0,
    )
    first = shares.class_id[shares.turn == 0]
    assert abs(first.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / len(first))


def test_tool_share_of_the_gaps():
    c = replace(chatty(), think=fixed(100.0), tool_gap=fixed(2.0), tool_share=0.7)
    w = build(mix(c, requests=4000), seed=0)
    gaps = w.delay_s[w.turn > 0]
    assert set(gaps) == {2.0, 100.0}
    assert abs((gaps == 2.0).mean() - 0.7) < 5 * np.sqrt(0.7 * 0.3 / len(gaps))


def test_bounds():
    assert len(build(mix(one_class(layer("m", "dynamic")), requests=77), seed=0)) == 77
    w = build(mix(chatty(), requests=200), seed=0)
    sessions = np.bincount(w.session_id)
    assert 200 <= len(w) < 200 + sessions.max()  # whole sessions
    assert build(mix(chatty(), requests=None, duration_s=50.0, loop="open"), seed=0).arrival_s[0] < 50
    both = build(mix(chatty(), requests=10_000, duration_s=50.0), seed=0)
    assert len(both) < 10_000
    assert any("fewer than" in note for note in both.notes)


def test_a_class_without_arrivals_stays_in_the_mix():
    policy = layer("policy", "global", 400, share="policy")
    a, b = (
        replace(one_class(policy, layer("m", "dynamic", 5), name=n), rate=None, share=s)
        for n, s in (("a", 1.0), ("b", 0.0))
    )
    for arrival in (Arrival(), Arrival(kind="gamma", cv=2.0)):
        w = build(mix(a, replace(b, arrival=arrival), rate=2.0, requests=50), seed=0)
        w.check()
        assert len(w) == 50
        assert w.class_names == ("a", "b")
        assert not w.class_id.any()


# ---- reproducibility


def columns(w: Workload) -> dict[str, np.ndarray]:
    return {k: v for k, v in vars(w).items() if isinstance(v, np.ndarray)} | {
        f"tree.{k}": v for k, v in vars(w.tree).items() if v is not None
    }


def test_same_seed_same_bytes_and_another_seed_is_another_mix():
    a, b, other = (build(mix(chatty(), requests=300), seed=s) for s in (5, 5, 6))
    assert {k: v.tobytes() for k, v in columns(a).items()} == {k: v.tobytes() for k, v in columns(b).items()}
    assert a.prompt_tokens.tobytes() != other.prompt_tokens.tobytes()


def test_adding_a_class_changes_no_other():
    c = replace(
        chatty(),
        layers=(
            layer("s", "global", 90),
            Layer(name="p", scope="project", items=9, tokens=Dist(kind="uniform", low=5, high=500)),
            layer("m", "dynamic", 5),
        ),
    )
    alone = build(mix(c, requests=None, duration_s=300.0, loop="open"), seed=0)
    both = build(mix(c, replace(chatty(), name="b"), requests=None, duration_s=300.0, loop="open"), seed=0)
    mine = both.class_id == 0
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "turn"):
        assert np.array_equal(getattr(both, name)[mine], getattr(alone, name))


def test_a_longer_run_starts_with_the_shorter_one():
    short, long = (
        build(mix(one_class(Layer(name="m", tokens=Dist(kind="uniform", low=5, high=500))), requests=n), seed=0)
        for n in (100, 1000)
    )
    assert np.array_equal(long.arrival_s[:100], short.arrival_s)
    assert np.array_equal(long.prompt_tokens[:100], short.prompt_tokens)


# ---- what an order costs


def test_order_cost_and_its_warning():
    good = one_class(
        layer("tools", "global", 1000), layer("repo", "project", 300, items=2), layer("msg", "dynamic", 20)
    )
    assert order_cost(good)["lost_tokens_per_request"] == 0
    bad = replace(good, layers=(layer("clock", "dynamic", 10), *good.layers))
    cost = order_cost(bad)
    assert cost["reusable_tokens_per_request"] == 0
    assert cost["best_order"] == ["tools", "repo", "clock", "msg"]
    assert cost["lost_tokens_per_request"] == pytest.approx(1300, rel=0.02)  # all but the first readers' tokens
    assert "changes what the model reads" in " ".join(cost["lines"])


def test_a_dynamic_layer_before_the_history_costs_the_history_and_the_message_is_the_way_out():
    """Three turns of 30 + 5 tokens behind 100: turn k reads 100 + 10 + 35 (k - 1) + 30, and of that a cache has
    nothing behind the clock; inside the message it has all but the last turn's input of 40."""
    c = one_class(layer("tools", "global", 100), layer("clock", "dynamic", 10), layer("msg", "dynamic", 30))
    c = replace(c, turns=Dist(value=3.0), output=Dist(value=5.0), think=Dist(value=1.0))
    cost = order_cost(c, requests=300)
    assert cost["lost_tokens_per_request"] == 0, "the best order of these layers"
    assert [one.name for one in before_history(c)] == ["clock"]
    moved = after_history(c)
    assert [(one.name, one.tokens.value) for one in moved.layers] == [("tools", 100), ("msg", 40)]
    computed = (40 + 75 + 110) / 3  # behind tools: clock, history, message
    inside = (40 + 40 + 40) / 3  # the message; an answer is in the cache too
    assert cost["lost_before_history_tokens_per_request"] == pytest.approx(computed - inside, abs=2)
    assert "clock" in cost["lines"][-1]
    assert after_history(replace(c, turns=Dist(value=1.0))) is None, "no history"
    assert after_history(moved) is None
    later = after_history(replace(c, turn_input=Dist(value=7.0)))
    assert later.turn_input.value == 17, "later turns bring it too"


def test_estimate_agrees_with_a_generated_mix():
    c = replace(
        chatty(), turn_input=Dist(kind="exponential", mean=40.0), output=Dist(kind="lognormal", median=50, p90=200)
    )
    config = mix(c, requests=60_000)
    w, row = build(config, seed=0), estimate(config)[0]
    assert row["requests_per_session"] == pytest.approx((w.turn >= 0).sum() / (w.turn == 0).sum(), rel=0.02)
    assert row["prompt_tokens"] == pytest.approx(w.prompt_tokens.mean(), rel=0.03)
    assert row["output_tokens"] == pytest.approx(w.output_tokens.mean(), rel=0.02)
    assert row["first_prompt_tokens"] == w.prompt_tokens[w.turn == 0].mean() == 95


# ---- size


def test_a_large_mix_is_fast():
    c = one_class(layer("s", "global", 900), layer("p", "project", 50, items=500, zipf=1.0), layer("m", "dynamic", 5))
    start = time.process_time()
    w = build(mix(c, requests=200_000), seed=0)
    assert time.process_time() - start < 2.0  # about 0.1 s
    assert len(w) == 200_000
    assert len(w.tree) == 502


def test_layer_scopes_are_codes():
    w = build(mix(chatty()), seed=0)
    assert dict(zip(w.layer_names, (SCOPES[s] for s in w.layer_scopes), strict=True)) == {
        "a/s": "global",
        "a/history": "session",
        "a/m": "dynamic",
    }


def test_clock_ticks_times_items_beyond_64_bits_stay_apart():
    """A layer of 10 million documents that is redeployed every millisecond, years from the start."""
    ticks, items = np.array([10**12, 10**12, 10**12 - 1, 5, 10**12]), np.array([9_999_999, 3, 3, 9_999_999, 3])
    ids, of = _pairs(ticks, items)
    assert ids.tolist() == [3, 2, 1, 0, 2]
    assert of.tolist() == [9_999_999, 3, 3, 9_999_999]


def test_a_warm_up_without_the_sessions_that_end_in_it():
    """Those that go on are the same, turn by turn, and so is everything from then on."""
    c = one_class(
        layer("tools", "global"),
        layer("repo", "project", items=3),
        turns=Dist(kind="geometric", mean=6.0, high=30.0),
        think=Dist(kind="exponential", mean=20.0),
        turn_input=Dist(kind="lognormal", median=50.0, p90=200.0),
    )
    whole = WorkloadConfig(class_=(c,), duration_s=900.0)
    skip_s = 600.0
    full, fewer = build(whole, 3), build(replace(whole, skip_ended_s=skip_s), 3)
    at = earliest_s(full)
    last = np.full(full.session_id.max() + 1, -np.inf)
    np.maximum.at(last, full.session_id, at)
    kept = last[full.session_id] >= skip_s
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(earliest_s(fewer), at[kept])
    for column in ("output_tokens", "prompt_tokens", "turn"):
        assert (getattr(fewer, column) == getattr(full, column)[kept]).all()
    assert kept[at >= skip_s].all()
    assert len(np.unique(fewer.session_id)) == fewer.session_id.max() + 1
    with pytest.raises(InputError, match="skip_ended_s = 1e"):
        build(replace(whole, skip_ended_s=1e6), 3)
