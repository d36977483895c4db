"""The engines by name: `engine.semantics` chooses one. Here the choice is made, once."""

from __future__ import annotations

from sim import sglang, vllm
from sim.engine import Engine
from sim.scenario import EngineParams

ENGINES: dict[str, Engine] = {"vllm": vllm.ENGINE, "sglang": sglang.ENGINE}


def engine_of(params: EngineParams) -> Engine:
    return ENGINES[params.semantics]
