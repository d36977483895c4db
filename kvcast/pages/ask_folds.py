"""What is folded under the first page's answer: what users feel, the cache, the prompt, the sources, every setting.

The one idea: each has one picture or table and a sentence, from what the answer has computed already, and beside it the
page that looks closer, which opens on the scenario of the answer's fleet.

    draw(card, job.document(), command, pages)
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.asking import words
from kvcast.config import scenario_from_doc
from kvcast.pages import results, shell
from kvcast.pages.edit import layers, settings
from kvcast.pages.results import plain, plot
from kvcast.planner.words import phrases
from kvcast.present.terms import TERMS
from kvcast.present.verdict import share_of
from workloads.config import MixClass

Document = Mapping[str, Any]
SOURCES = "Where the numbers come from"


def draw(card: Document, raw: Document, command: str, pages: Mapping[str, Any]) -> None:
    """card: as it may be shown; raw: with the server's own paths. command: the question for a terminal."""
    for title, (page, label, told, part) in FOLDS.items():
        if (fold := _fold(title)).open:
            with fold:
                line, button = st.columns([5, 1], vertical_alignment="center")
                line.markdown(plain(" ".join(part(card)) or f"{told[:1].upper()}{told[1:]}."))
                if button.button(label, key=f"ask.fold.{title}", width="stretch", help=told):
                    _look(raw)
                    st.switch_page(pages[page])
                if title in PICTURES:
                    PICTURES[title](card)
    if (fold := _fold(SOURCES)).open:
        with fold:
            _sources(card, command)


def _fold(title: str) -> Any:
    """What is closed is not drawn: the page is there the sooner."""
    return st.expander(title, key=f"ask.open.{title}", on_change="rerun")


def _look(card: Document) -> None:
    """The answer's fleet in the sidebar of the other pages, which run it."""
    shell.fresh()
    settings.adopt(scenario_from_doc(tomllib.loads(card["plan"]["scenario"]), "the answer"))


# -- what users would feel ---------------------------------------------------------------------------------------------


def _felt(card: Document) -> list[str]:
    row = _settled(card)
    if row is None or row["ttft_ms_p99"] is None:
        return []
    ttft, tpot = (text.milliseconds(row[f"{name}_ms_p99"]) for name in ("ttft", "tpot"))
    later = "" if row["tpot_ms_p99"] is None else f", or than {tpot} for each one after it"
    return [f"On this fleet one request in a hundred waits longer than {ttft} for its first token{later}."]


def _settled(card: Document) -> Document | None:
    """The candidate that the answer is."""
    rows = [
        row
        for row in card["plan"]["candidates"]
        if (row["replicas"], row["gpus"]) == (card["answer"]["replicas"], card["answer"]["gpus"])
    ]
    return rows[-1] if rows else None


def _latency(card: Document) -> None:
    if card["loads"]:
        plot(st, figures.latency_by_users(card), TERMS["latency_by_rate"])


# -- the cache ---------------------------------------------------------------------------------------------------------


def _worth(card: Document) -> list[str]:
    unknown = (
        []
        if card["sharing_known"]
        else ["The source of this use says nothing about shared text: only the system prompt can hit here."]
    )
    return [*words.without_cache(dict(card)), *unknown]


def _with_and_without(card: Document) -> None:
    """The answer's fleet with its prefix cache and without one."""
    without, row = card["without_cache"], _settled(card)
    if without is None or row is None:
        return
    st.dataframe(
        [_cache_row("on", card["answer"]["runs"], row), _cache_row("off", 1, without)], hide_index=True, width="stretch"
    )


def _cache_row(name: str, runs: int, found: Document) -> dict[str, str]:
    attained = found["attainment"]
    ended = f"below {text.percent(attained['high'])}, ended early" if attained["high"] is not None else text.UNKNOWN
    return {
        "prefix cache": name,
        "within limits (95 %)": ended if attained["mean"] is None else share_of(attained),
        "TTFT p99": text.milliseconds(found["ttft_ms_p99"]),
        "TPOT p99": text.milliseconds(found["tpot_ms_p99"]),
        "runs": text.count(runs),
    }


# -- the prompt --------------------------------------------------------------------------------------------------------


@st.cache_data(max_entries=64, show_spinner=False)
def _class_of(scenario_toml: str) -> MixClass:
    """The question's one class of sessions."""
    return scenario_from_doc(tomllib.loads(scenario_toml), "the answer").workload.class_[0]


def _order(card: Document) -> list[str]:
    parts = layers.parts(_class_of(card["scenario"]))
    whole = sum(part.tokens for part in parts)
    known = sum(part.tokens for part in parts if part.reusable)
    behind = sum(part.tokens for part in parts if not part.reusable and part.scope != "dynamic")
    told = f"Of the average prompt's {whole:,.0f} tokens an earlier request may have left {known:,.0f} in the cache"
    lost = f", and {behind:,.0f} could be there if they stood before the first text that changes" if behind >= 1 else ""
    return [f"{told}{lost}."]


def _layers(card: Document) -> None:
    plot(st, figures.prompt_layers({"as sent": layers.parts(_class_of(card["scenario"]))}), TERMS["prompt_layers"])


# -- sources -----------------------------------------------------------------------------------------------------------


def _sources(card: Document, command: str) -> None:
    document, asked = dict(card), card["question"]
    lines = [
        *words.taken(document),
        f"{asked['title']}: {asked['source']}",
        f"step times: {card['basis']['profile']} ({words.basis(document)})",
        *_model_error(card),
        words.again(document),
    ]
    st.markdown("\n".join(f"- {plain(line.replace('+- ', '± '))}" for line in lines))
    st.code(command, language="bash", wrap_lines=True)
    left, right = st.columns(2)
    left.download_button(
        "card.json", text.to_json(card), "card.json", "application/json", on_click="ignore", width="stretch"
    )
    right.download_button(
        "scenario.toml",
        results.portable(card["scenario"]),
        "scenario.toml",
        "application/toml",
        on_click="ignore",
        width="stretch",
        key="ask.toml",
    )


def _model_error(card: Document) -> list[str]:
    """What becomes of the answer when the step times are off by their own error."""
    found = card["plan"]["model_error"]
    if not found:
        return []
    told = [
        f"{phrases.interval_share(found[side]['attainment'])} within the limits with step times"
        f" {text.percent(found['share'])} {word}"
        for side, word in (("slower", "longer"), ("faster", "shorter"))
        if found[side] and found[side]["attainment"]["mean"] is not None
    ]
    return [f"their error, {found['source']}: {' and '.join(told)} (one run each)"] if told else []


Told = Callable[[Document], list[str]]
FOLDS: Mapping[str, tuple[str, str, str, Told]] = {
    "What your users would feel": (
        *("Plan", "Run it and look"),
        "one run of this fleet: its latencies, over time and by class",
        _felt,
    ),
    "Is the cache worth it": (
        *("Cache", "Look at its cache"),
        "what was hit, of what could be, and what the memory is worth in GPUs",
        _worth,
    ),
    "Prompt order": ("Workload", "Look at its prompts", "the layers of a prompt, and what their order costs", _order),
    "All settings": (
        *("Plan", "Open them all"),
        "every setting of the scenario underneath, and other pages on it",
        lambda card: [],
    ),
}
"""Title -> the page it opens, the button, what is there, and what the card itself says about it."""
PICTURES: Mapping[str, Callable[[Document], None]] = {
    "What your users would feel": _latency,
    "Is the cache worth it": _with_and_without,
    "Prompt order": _layers,
}
