"""What the answers to three questions cost: simulations and CPU seconds to the headline and to the whole card.

The questions are whole ones, in whole windows: 300 coding agents on a 70B model, eight GPUs for a chat, 200 people who
ask about long documents. One process, so that its CPU time is all there is.

    python benchmarks/bench_ask.py            all three
    python benchmarks/bench_ask.py agent      one of agent, gpus, rag
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from kvcast import ask
from kvcast.asking import words

ON_H200: dict[str, Any] = {"gpu": "h200", "price": 3.5}
QUESTIONS: dict[str, dict[str, Any]] = {
    "agent": {
        **ON_H200,
        **{"use": "coding-agent", "users": 300, "system": 16_000, "model": "llama-3.3-70b", "weights": "fp8"},
        **{"ttft_s": 1.0, "tpot_s": 0.05},
    },
    "gpus": {**ON_H200, "use": "chat", "gpus": 8, "model": "qwen3-32b"},
    "rag": {**ON_H200, "use": "rag", "users": 200},
}


def measured(question: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds from the question to each stage, fleets that were judged, and the card."""
    began_s, at_s, judged = time.process_time(), {}, 0

    def tell(document: dict[str, Any]) -> None:
        nonlocal judged
        judged += document["stage"] == "candidate"
        at_s[document["stage"]] = time.process_time() - began_s

    card = ask(**question, tell=tell)
    return {"at_s": at_s, "judged": judged, "card": card}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], default=list(QUESTIONS))
    for name in parser.parse_args().questions or QUESTIONS:
        found = measured(QUESTIONS[name])
        at_s, card = found["at_s"], found["card"]
        print(f"{name}: {words.title(card)}\n{words.answer(card)}")
        print(
            f"bound {at_s['bound']:.1f}, headline {at_s['headline']:.1f}, reach {at_s['reach']:.1f}, whole"
            f" {at_s['done']:.1f} CPU-s; {found['judged']} fleets judged, {card['plan']['simulations']['distinct']}"
            " simulations of the plan\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
