"""What of [lora] makes no sense with the rest of a scenario.

>>> list(lora_problems(scenario))
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.scenario import Scenario
from sim.sections.lora import LoraConfig


def lora_problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value that contradicts another."""
    from sim.engines import ENGINES, having

    lora, engine, ranks = scenario.lora, scenario.engine, scenario.hardware.attention_dp
    known = ENGINES.get(engine.semantics)
    if lora == LoraConfig():
        return
    for wrong, what in (
        (
            known is not None and not known.has_lora,
            f"[engine] semantics = {engine.semantics!r}: expected {having('has_lora')!r}",
        ),
        (ranks > 1, f"[hardware] attention_dp = {ranks}: expected 1"),
    ):
        if wrong:
            yield f"[lora] with {what}, adapters are not simulated with it"
    if lora.adapter_mib and not engine.max_loras:
        yield f"[lora] adapter_mib = {lora.adapter_mib:g}: expected engine.max_loras with it, its slots (vLLM's own: 1)"
    if 0 < lora.max_cpu_loras < engine.max_loras:
        yield (
            f"[lora] max_cpu_loras = {lora.max_cpu_loras}: expected at least engine.max_loras = {engine.max_loras}, as"
            " vLLM asks for"
        )
