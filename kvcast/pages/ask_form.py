"""The question's form: use, load, model, precision, GPU, layout, price and limits, each a field of its own.

The one idea: the fields say the words of `kvcast ask` (kvcast.pages.ask_words) and nothing else; an empty size is the
use's own, which stands in the empty field.

    >>> adopt({"use": "chat", "users": "300"}); words = draw(runner, st)
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from calibrate.memory import WIDTHS
from kvcast.asking.question import Asked, model_named
from kvcast.asking.uses import USES
from kvcast.jobs import allowed
from kvcast.jobs.runner import Runner
from kvcast.pages.ask_words import LOADS, SET, Words, parsed, question
from kvcast.pages.edit import choices, inputs
from kvcast.pages.edit.widgets import number, optional, select
from kvcast.planner import Options
from sim.scenario import DTYPES, KV_DTYPES
from workloads.errors import InputError

NEED, REACH = "How many GPUs do I need?", "How far do my GPUs reach?"
GO = {NEED: "How many GPUs?", REACH: "How many users?"}
LOAD_NAMES = dict(zip(LOADS, ("users at once", "sessions a day", "requests a second"), strict=True))
SIZES = {"system": "System prompt + tools", "input": "New tokens a turn", "output": "Answer"}
FORM = "ask-form"
SMALL = (
    "<style>@media (max-width: 640px) {"
    f" .st-key-{FORM} .stColumn:has(.stNumberInput) {{ flex: 1 1 calc(50% - 1rem); min-width: calc(50% - 1rem); }}"
    " .stMain [data-testid=stButtonGroup] button { padding: 0 0.5rem; font-size: 0.8rem; } }</style>"
)
"""On a small screen two numbers stand side by side, and both questions can be read."""
DEFAULT, ANY_WIDTH = "default", "those that may do"
DAY_HOURS = 8.0
FIELDS = (
    *("mode", "use", "load", "amount", "gpus", *SIZES, "model", "weights", "kv", "gpu", "price", "tp"),
    *("ttft", "tpot", "for", "hours", "router", "seeds", "most", "recover", SET),
)
"""The fields' keys, as `key` has them."""


def key(name: str) -> str:
    return f"ask.{name}"


def adopt(words: Words) -> None:
    """Make the fields say the words. Raises InputError for what they cannot say."""
    state = st.session_state
    given = parsed(words)
    state[key("mode")] = NEED if given.gpus is None else REACH
    state[key("use")] = given.use
    load = next((name for name in LOADS if name in words), LOADS[0])
    state[key("load")], state[key("amount")] = load, float(words.get(load, 300))
    state[key("gpus")] = given.gpus or 8
    for name in SIZES:
        state[key(name)] = getattr(given, name)
    _adopt_model(given.model)
    state[key("weights")], state[key("kv")] = given.weights, given.kv or DEFAULT
    state[key("gpu")] = choices.gpu_named(given.gpu)
    state[key("prices")] = {choices.gpu_named(gpu or given.gpu): usd for gpu, usd in given.price.items()}
    state[key("price")] = state[key("prices")].get(state[key("gpu")])
    state[key("tp")] = ",".join(map(str, given.tp)) or ANY_WIDTH
    use = USES[given.use]
    limits = (given.ttft, given.tpot) if given.ttft or given.tpot else (use.ttft_s, use.tpot_s)
    state[key("ttft")], state[key("tpot")] = limits[0], None if limits[1] is None else round(1e3 * limits[1], 6)
    state[key("for")] = round(100 * given.share, 6)
    state[key("hours")], state[key("router")] = given.hours, given.router or DEFAULT
    state[key("seeds")], state[key("most")] = given.seeds, given.max_replicas
    state[key("recover")] = not given.no_recover
    state[key(SET)] = words.get(SET, "")
    state[key("note")] = ""


def held() -> dict[str, Any]:
    """What the fields hold, and that the button is not pressed: what differs next time was touched."""
    state = st.session_state
    return {name: state[name] for name in map(key, FIELDS) if name in state} | {key("go"): False}


def _adopt_model(model: str) -> None:
    """A config.json by its path, or a name as the list has it."""
    state = st.session_state
    state[key("config")] = ""
    if model in allowed.models():
        state[key("model")] = model
    elif "config" in (found := model_named(model)):
        state[key("model")], state[key("config")] = choices.CONFIG, model
    else:
        known = {name.lower(): name for name in choices.models()}
        state[key("model")] = known.get(found["name"].lower(), choices.CONFIG)


def draw(runner: Runner, top: Any) -> tuple[dict[str, str], bool]:
    """Draw every field, the first one in the row `top`; what they say, and whether the button was pressed."""
    st.html(SMALL)
    state = st.session_state
    mode = (
        top.segmented_control(
            "Question", [NEED, REACH], key=key("mode"), required=True, label_visibility="collapsed", width="content"
        )
        or NEED
    )
    use = USES[state[key("use")]]
    with st.container(key=FORM):
        words = _who(mode, use)
        words |= _what(runner)
        pressed, limits = _within(mode)
    words |= limits
    if state[key("note")]:
        st.caption(f":orange[{state[key('note')]}]")
    words |= _more(mode)
    return {name: text for name, text in words.items() if text}, pressed


def _who(mode: str, use: Any) -> dict[str, str]:
    """Use, load and sizes."""
    places = st.columns([2, 1.75, 1.2, 1.55, 1.42, 0.8], vertical_alignment="bottom")  # nothing is cut at 1024 px
    name = select(
        places[0],
        "Use case",
        list(USES),
        key("use"),
        format_func=lambda one: USES[one].title,
        on_change=_another_use,
        help="how its users behave: turns, pauses, sizes; each has its source, told with the answer",
    )
    words = {"use": name}
    if mode == NEED:
        load = select(places[1], "Load in", list(LOADS), key("load"), format_func=LOAD_NAMES.get, help=AT_ONCE)
        amount = number(places[2], LOAD_NAMES[load].capitalize(), 0.0, None, key("amount"), step=10.0, format="%g")
        words[load] = told(amount)
    else:
        words["gpus"] = told(number(places[1], "My GPUs", 1, 100_000, key("gpus"), help="of the kind chosen below"))
    usual = usual_sizes(name)
    for place, (size, label) in zip(places[3:], SIZES.items(), strict=True):
        least = 0 if size == "system" else 1
        value = number(
            place, label, least, None, key(size), step=100, placeholder=f"{usual[size]:,}", help=SIZE_HELP[size]
        )
        words[size] = told(value)
    return words


AT_ONCE = (
    "users at once have a session in progress, thinking included; sessions a day come evenly in its hours of"
    " work, which are under More"
)
SIZE_HELP = {
    "system": "tokens that all prompts begin with; empty: the use's own",
    "input": "tokens that a user or a tool adds in a turn, the median; empty: the use's own",
    "output": "tokens of an answer, the median; empty: the use's own",
}


@st.cache_data
def usual_sizes(use: str) -> dict[str, int]:
    """What an empty field means."""
    from kvcast.asking.card import question_of
    from kvcast.asking.question import Question

    found = question_of(Asked(Question(use=use, users=1)))
    return {"system": found["system"], "input": found["new_tokens"], "output": found["answer"]}


def _another_use() -> None:
    """Sizes and limits are the use's: both stand in the fields, and that they moved is said. Nothing else moves."""
    state = st.session_state
    use = USES[state[key("use")]]
    for name in SIZES:
        state[key(name)] = None
    state[key("ttft")], state[key("tpot")] = use.ttft_s, None if use.tpot_s is None else round(1e3 * use.tpot_s, 6)
    state[key("note")] = f"Sizes and limits are now the usual ones of: {use.title}."


def _what(runner: Runner) -> dict[str, str]:
    """Model, precision, GPU and price; none of them changes another, but a price stays with its GPU."""
    state, known = st.session_state, choices.gpus()
    places = st.columns([2.3, 0.9, 0.95, 2, 1.15], vertical_alignment="bottom")
    model = select(places[0], "Model", choices.models(), key("model"), help="type to search published checkpoints")
    weights = select(places[1], "Weights", list(DTYPES), key("weights"))
    kv = select(places[2], "KV cache", [DEFAULT, *KV_DTYPES], key("kv"), help="default: what the weights come with")
    gpu = select(places[3], "GPU", list(known), key("gpu"), format_func=known.get, on_change=_another_gpu)
    price = number(
        places[4],
        f"$ an hour, {gpu}",
        0.0,
        None,
        key("price"),
        step=0.1,
        placeholder="none",
        help="yours, of one GPU; kvcast has no prices. It stays with its GPU; those of others are under More.",
    )
    state[key("priced")] = gpu
    listed = {name: usd for name, usd in state[key("prices")].items() if name != gpu}
    state[key("prices")] = listed if price is None else {**listed, gpu: price}
    if model == choices.CONFIG:
        _config(runner)
        model = state[key("config")]
    return {"model": model, "weights": weights, "kv": "" if kv == DEFAULT else kv, "gpu": gpu}


def _config(runner: Runner) -> None:
    """The upload of a config.json."""
    state = st.session_state

    def uploaded() -> None:
        upload, state[key("config")] = state[key("upload")], ""
        if upload is not None:
            state[key("config")] = str(runner.keep_upload("config.json", upload.getvalue()))

    st.file_uploader("config.json", "json", key=key("upload"), on_change=uploaded, max_upload_size=1)


def _another_gpu() -> None:
    state = st.session_state
    state[key("price")] = state[key("prices")].get(state[key("gpu")])
    state[key("note")] = "" if state[key("price")] is not None else f"No price for {state[key('gpu')]} yet: no cost."


def _within(mode: str) -> tuple[bool, dict[str, str]]:
    """GPUs a replica, limits, and the button."""
    *places, last = st.columns([1.25, 1.25, 1.5, 1.1, 1.2], vertical_alignment="bottom")
    widths = dict.fromkeys([ANY_WIDTH, *map(str, WIDTHS), st.session_state[key("tp")]])
    tp = select(places[0], "GPUs a replica", list(widths), key("tp"), help="tensor parallel")
    ttft = number(
        places[1], "First token within (s)", 0.001, None, key("ttft"), step=0.1, format="%g", placeholder="no limit"
    )
    tpot = number(
        places[2], "Then each token within (ms)", 0.01, None, key("tpot"), step=5.0, format="%g", placeholder="no limit"
    )
    share = number(places[3], "For % of requests", 0.1, 100.0, key("for"), step=1.0, format="%g")
    pressed = last.button(GO[mode], type="primary", width="stretch", key=key("go"))
    return pressed, {
        "tp": "" if tp == ANY_WIDTH else tp,
        "ttft": f"{told(ttft)}s" if ttft is not None else "",
        "tpot": f"{told(tpot)}ms" if tpot is not None else "",
        "for": f"{told(share)}%",
    }


def _more(mode: str) -> dict[str, str]:
    """What is rarely asked: prices of other GPUs, router, hours, any key of the scenario, how much is simulated."""
    from sim.fleet.router import ROUTERS

    state, words = st.session_state, {}
    with st.expander("More: prices of other GPUs, router, hours of work, any key of the scenario, runs"):
        places = st.columns(4, vertical_alignment="bottom")
        others = state[key("prices")]
        added = places[0].selectbox(
            "Price of another GPU", [g for g in choices.gpus() if g != state[key("gpu")]], key=key("other")
        )
        mine = key(f"usd {added}")
        held = state.get(mine, others.get(added))
        usd = optional(places[1], f"$ an hour of {added}", 0.0, None, held, mine, step=0.1, placeholder="none")
        kept = {name: value for name, value in others.items() if name != added}
        state[key("prices")] = kept if usd is None else {**kept, added: usd}
        router = select(places[2], "Router", [DEFAULT, *ROUTERS], key("router"), help=ROUTER_HELP)
        words["router"] = "" if router == DEFAULT else router
        hours = number(places[3], "Hours of work a day", 0.1, 24.0, key("hours"), step=1.0, format="%g")
        if mode == NEED and state[key("load")] == "sessions-a-day" and hours != DAY_HOURS:
            words["hours"] = told(hours)
        wide, runs, most, back = st.columns([3, 1, 1, 1.4], vertical_alignment="bottom")
        words[SET] = wide.text_area(
            "Any other key of the scenario, one a line", key=key(SET), height=68, placeholder=EG
        )
        seeds = number(runs, "Runs of the answer", 1, 1000, key("seeds"), help="independent ones")
        words["seeds"] = "" if seeds == Options.seeds else told(seeds)
        largest = number(most, "Most replicas", 1, 10_000, key("most"))
        words["max-replicas"] = "" if largest == Options.most else told(largest)
        recover = back.checkbox("must come back from a burst", state[key("recover")], key=key("recover"))
        words["no-recover"] = "" if recover else "yes"
    prices = state[key("prices")]
    own = state[key("gpu")]
    words["price"] = (
        told(prices[own])
        if set(prices) == {own}
        else ",".join(f"{gpu}={told(usd)}" for gpu, usd in sorted(prices.items()))
    )
    return words


ROUTER_HELP = "default: session-affinity where there are sessions, else round-robin"
EG = "cache.policy=lfu"


def told(value: float | None) -> str:
    """A number as a flag has it."""
    return "" if value is None else f"{value:.12g}"


def checked(words: Words) -> Any:
    """The question that the fields ask. Raises InputError with one line."""
    state = st.session_state
    if not words.get("model"):
        raise InputError("upload a config.json, or choose a model by its name")
    if not (words.get("ttft") or words.get("tpot")):
        raise InputError("expected a limit: First token within, or Then each token within")
    files = [*allowed.models(), *([state[key("config")]] if state[key("config")] else [])]
    return question(words, inputs.policies(), files)
