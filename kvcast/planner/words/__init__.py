"""A plan in words: the verdict in a sentence, then short tables. Reads the document only, so that what is printed is
what is kept.

>>> print(as_text(plan("examples/demo.toml")))
"""

from __future__ import annotations

from typing import Any

from kvcast import text
from kvcast.planner.words.beyond import advice, binding, command_of, launch, launched, made_of, more, reach
from kvcast.planner.words.fewer import KINDS, fewer, sentences
from kvcast.planner.words.fleets import candidates, size
from kvcast.planner.words.obstacles import layouts, why
from kvcast.planner.words.phrases import NAMES, burst, larger, limits, load, number, share
from kvcast.planner.words.sentence import FLAT, SEVERAL, closest, lives_on_its_cache, plateau, verdict

__all__ = [
    "FLAT",
    "NAMES",
    "SEVERAL",
    "as_text",
    "burst",
    "closest",
    "command_of",
    "larger",
    "limits",
    "lives_on_its_cache",
    "load",
    "number",
    "plateau",
    "sentences",
    "share",
    "size",
    "verdict",
    "why",
]


def as_text(made: dict[str, Any]) -> str:
    parts = [
        verdict(made),
        why(made),
        layouts(made),
        *(f"caution: {line}" for line in made["caution"]),
        size(made),
        candidates(made),
        reach(made),
        binding(made),
        *(fewer(made, key) for key in KINDS),
        advice(made),
        more(made),
        launch(made),
        launched(made),
        made_of(made),
    ]
    tables = (
        candidates(made),
        layouts(made),
        launch(made),
        *(fewer(made, key) for key in KINDS),
    )  # too wide for a page, and of no use when broken
    return "\n\n".join(part if part in tables else text.wrapped(part) for part in parts if part)
