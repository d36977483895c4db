"""The engines by name: `engine.semantics` chooses one. Here the choice is made, once.

The one idea: nothing else asks for an engine's name. Another engine is a package with its Scheduler and its ENGINE, a
row here, and its keys in the config; its launch flags are the planner's (kvcast.planner.flags).
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from sim import sglang, trtllm, vllm
from sim.engine import Engine
from sim.scenario import ClientConfig, EngineConfig, EngineParams
from workloads.errors import InputError

ENGINES: dict[str, Engine] = {"vllm": vllm.ENGINE, "sglang": sglang.ENGINE, "trtllm": trtllm.ENGINE}


def engine_of(keys: EngineConfig | EngineParams) -> Engine:
    """The engine that they are for. Raises InputError for one that does not exist."""
    if keys.semantics not in ENGINES:
        close = get_close_matches(keys.semantics, ENGINES, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"[engine] semantics = {keys.semantics!r}: expected {' or '.join(ENGINES)}{hint}")
    return ENGINES[keys.semantics]


def client_problems(client: ClientConfig, keys: EngineConfig | EngineParams) -> Iterator[str]:
    """A line for what an engine, or its front end, has no rule for."""
    if client.gives_up and not engine_of(keys).has_cancel:
        yield (
            f"[client] timeouts with [engine] semantics = {keys.semantics!r}: expected semantics ="
            f" {having('has_cancel')} with them"
        )
    if client.gives_up and keys.frontend_us_per_output_token:
        yield (
            "[client] timeouts with [engine] frontend_us_per_output_token: expected one of them, who gives up on tokens"
            " that are on their way is not simulated"
        )


def having(what: str) -> str:
    """The names of the engines that have something, such as "has_tiers", for a message."""
    return " or ".join(name for name, engine in ENGINES.items() if getattr(engine, what))
