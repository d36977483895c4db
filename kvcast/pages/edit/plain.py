"""Names on a page are plain text: they come from mixes, traces, links, and Streamlit reads Markdown in every label."""

from __future__ import annotations

import re

JOINER = "\N{WORD JOINER}"
ADDRESS = re.compile(r"\b(https?|ftp|mailto|xmpp)(?=\\?:)|\bwww(?=\.)|[\w.+-](?=@)", re.IGNORECASE)


def plain(told: str) -> str:
    """The words with nothing that Markdown would act on. Addresses become links even in escaped text, so they get a
    joiner of no width where one would be recognised. A hyphen within a word means nothing to it, and is left as it
    is: a screen reader reads out what is escaped."""
    escaped = re.sub(r"([\\`*_{}\[\]()#+!|<>$~:]|(?<!\w)-|-(?!\w))", r"\\\1", told)
    return ADDRESS.sub(lambda found: found[0] + JOINER, escaped)
