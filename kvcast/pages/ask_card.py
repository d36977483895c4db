"""The answer of the first page: the card of `kvcast ask`, its headline first, with a button for every way on.

The one idea: everything is a value of the card's document or a line that a terminal shows of it; what is not known yet
is not drawn.

    show(card, apply)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from kvcast import figures, text
from kvcast.asking import words
from kvcast.pages.results import plain, plot
from kvcast.planner.words import phrases
from kvcast.present.terms import TERMS

Document = Mapping[str, Any]
Apply = Callable[[Sequence[str], Sequence[str]], None]
"""Asks again with flags and settings."""
STATES = {  # word of an answer -> how it looks
    "meets": ("green", ":material/check_circle:"),
    "misses": ("red", ":material/cancel:"),
}


LOOKED_AT_NOW, NOT_LOOKED_AT = "is looked at now", "was not looked at"
"""What a card lacks that is not settled: it is still to come, or its question was ended."""


def show(card: Document, apply: Apply, lacking: str = "") -> None:
    """lacking: what is with that which is not known; empty of a whole card."""
    st.header(plain(words.title(dict(card))))
    _headline(card)
    _lines(card, lacking)
    _cautions(card)
    _helps(card, apply)
    _way_out(card, apply, lacking)
    _plots(card)


def _headline(card: Document) -> None:
    """Fleet, money and verdict: three numbers and a word."""
    found, asked = card["answer"], card["question"]
    if found["replicas"] is None:
        st.error(plain(f"No fleet was found: {card['plan']['verdict']}"), icon=":material/cancel:")
        return
    if not found["feasible"]:
        st.error(plain(words.answer(dict(card))), icon=":material/cancel:")
        return
    word = "meets" if found["recovers"] else found["word"]
    colour, icon = STATES.get(word, ("orange", ":material/help:"))
    fleet, month, user, within = _places()
    size = f"{found['gpus']} × {found['device']}"
    if card["asked"] == "users":
        _number(fleet, "Users at once", f"{found['users']:,.0f}", f"on {size}, {_layout(found)}")
    else:
        _number(fleet, "Fleet", size, f"{_layout(found)}, for {found['users']:,.0f} users")
    if found["usd_per_month"] is None:
        _number(month, "Cost", "no price", "give the price of a GPU-hour above")
    else:
        _number(month, "A month", _dollars(found["usd_per_month"]), f"{_dollars(found['usd_per_year'])} a year")
        _number(user, "A user and month", text.usd(found["usd_per_user"]), _tokens(found))
    attained = found["attainment"]
    interval = (
        f"{100 * attained['low']:.1f} to {100 * attained['high']:.1f} %, {phrases.share(asked['share'])} asked for"
    )
    _number(within, "Within limits", text.percent(attained["mean"]), interval)
    verb = "Meets, and recovers from a burst." if found["recovers"] else f"{found['word'].capitalize()}."
    runs = "one run" if found["runs"] == 1 else f"{found['runs']} independent runs"
    limits = " and ".join(f"{name} ≤ {text.seconds(asked[key])}" for key, name in words.NAMES.items() if asked.get(key))
    basis = words.basis(dict(card)).replace("+- ", "±")
    told = plain(f"{limits}, over {runs}; {basis}.")
    st.markdown(f":{colour}[{icon} **{plain(verb)}**] {told}")


def _places() -> list[Any]:
    """Four in a row, or two where the page is narrow."""
    left, right = (column.container(horizontal=True, height="stretch") for column in st.columns(2))
    return [left, left, right, right]


def _number(place: Any, label: str, value: str, below: str) -> None:
    with place.container(border=True, width="stretch", height="stretch", gap="xxsmall"):
        st.metric(label, value)
        st.caption(plain(below))


def _layout(found: Document) -> str:
    n, each = found["replicas"], found["gpus_per_replica"]
    return f"{n} {'replica' if n == 1 else 'replicas'}" + (f" of {each} GPUs" if each > 1 else "")


def _dollars(usd: float) -> str:
    return f"${usd:,.0f}" if usd >= 1000 else text.usd(usd)


def _tokens(found: Document) -> str:
    """One bill over input, output and all tokens."""
    given, output, total = (text.usd(found[f"usd_per_million_{kind}_tokens"]) for kind in ("input", "output", "total"))
    return f"per million tokens: {given} input, {output} output, {total} all"


def _lines(card: Document, lacking: str) -> None:
    document = dict(card)
    lines = [
        *words.gives_way(document),
        *words.one_down(document),
        *words.without_cache(document),
        *words.needs(document),
    ]
    load = card["load"]
    more = (
        f"{load['users']:,.4g} users at once are {86_400 * load['sessions_per_s']:,.0f} sessions in 24 hours at this"
        f" pace, {load['requests_per_s']:.3g} requests a second."
    )
    rows = [*lines, more] if card["answer"]["feasible"] else lines
    if rows:
        st.markdown("\n".join(f"- {plain(line)}" for line in rows))
    if lacking and card["answer"]["feasible"]:
        rest = "what would help" if card["gives_way"] else "what gives way first and what would help"
        st.caption(f"The fleet and its verdict are settled; {rest} {lacking}.")


def _cautions(card: Document) -> None:
    """What makes the answer doubtful, beside it and not in a fold."""
    lines = []
    for line in words.cautions(dict(card)):
        kind, _, told = line.partition(": ")
        icon = ":orange[:material/warning:]" if kind == "caution" else ":material/info:"
        lines.append(f":small[{icon} {plain(_sentence(told))}]")
    if lines:
        st.markdown("  \n".join(lines))


def _sentence(told: str) -> str:
    """Begun with a capital, unless its first word is a name, as roofline:l4."""
    return told[:1].upper() + told[1:] if told.split(" ", 1)[0].isalpha() else told


def _helps(card: Document, apply: Apply) -> None:
    rows = card["helps"]
    if not rows:
        for line in words.helps(dict(card)):
            st.caption(plain(line))
        return
    st.markdown(f"**What helps** :gray[{words.helps_by(dict(card))}]")
    for i, row in enumerate(rows):
        _row(f"help {i}", words.help_line(row), "Apply", (), row["set"], apply)


def _way_out(card: Document, apply: Apply, lacking: str) -> None:
    if card["answer"]["feasible"]:
        return
    if lacking:
        st.caption(f"No fleet meets this; what would {lacking}.")
        return
    rows = card["way_out"]
    st.markdown("**Ways out** :gray[one run each; a press asks for it]" if rows else plain(words.way_out(dict(card))))
    for i, row in enumerate(rows):
        _row(f"way {i}", words.way_line(row), "Ask for this", row["flags"], (), apply)


def _row(key: str, line: str, label: str, flags: Sequence[str], settings: Sequence[str], apply: Apply) -> None:
    told, button = st.columns([6, 1], vertical_alignment="center")
    told.markdown(plain(_sentence(line)))
    if (flags or settings) and button.button(
        label, key=f"ask.{key}", on_click=apply, args=(flags, settings), width="stretch", help=plain(line)
    ):
        st.rerun()


def _plots(card: Document) -> None:
    parts = []
    if card["loads"]:
        parts.append((figures.within_limits_by_users(card), TERMS["users_served"]))
    if sum(row["attainment"]["high"] is not None for row in card["plan"]["candidates"]) > 1:
        parts.append((figures.shares_by_cost(card["plan"]), TERMS["fleets_tried"]))
    if parts:
        for place, (figure, term) in zip(st.columns(len(parts)), parts, strict=True):
            plot(place, figure, term)


def candidates(told: Sequence[Document]) -> None:
    """The fleets that were judged so far, the last ones first."""
    rows = [one for one in told if one["stage"] == "candidate"]
    if rows:
        st.markdown("\n".join(f"- {plain(words.candidate(dict(one)).strip())}" for one in rows[-6:][::-1]))
