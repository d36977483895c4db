"""The question first: how many GPUs do so many users need, or how many users do so many GPUs serve?

The one idea: a planner's few words become a scenario, and a plan of it becomes a card, in users, GPUs and money.

    >>> from kvcast import ask
    >>> ask(use="coding-agent", users=300, model="llama-3.3-70b", weights="fp8", price=3.5)["answer"]["gpus"]
"""

from __future__ import annotations

from kvcast.asking.answering import ask
from kvcast.asking.question import Question

__all__ = ["Question", "ask"]
