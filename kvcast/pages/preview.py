"""What a mix will send, from the run's own draws: when it arrives, and how much of it is too long for the model.

The one idea: the first requests of the run are generated as the run generates them, so nothing is estimated.

    >>> too_long(load_preset("coding-agent"), load_scenario("examples/demo.toml"))
"""
from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from kvcast import api, text
from kvcast.pages import layers
from sim.scenario import Scenario
from workloads.columns import Workload
from workloads.config import WorkloadConfig
from workloads.errors import InputError

PREVIEW = 20_000
"""Requests that are drawn at most."""
NOTABLE = 0.01
"""Share of a class's requests that are longer than the context, from which it is said."""


@functools.lru_cache(maxsize=32)
def _sample(config: WorkloadConfig) -> Workload:
    """The run's own draws, its first PREVIEW requests."""
    from workloads.mix import build

    return build(replace(config, requests=min(config.requests or PREVIEW, PREVIEW)), seed=0)


def too_long(config: WorkloadConfig, scenario: Scenario | None) -> list[str]:
    """For each class of which a notable share is longer than the model's context, or what of it fits in the KV memory: how many of its requests."""
    if scenario is None:
        return []
    try:
        resolved = api.resolve(scenario)
        workload = _sample(config)
    except InputError:
        return []  # said where the mistake is
    context, cls, told = resolved.scenario.engine.max_model_len or 0, workload.column("class_id"), []
    limit, instead = f"{scenario.model.name}'s context of {context:,} tokens", "a model with a longer context"
    if resolved.lowered:
        limit, instead = f"the KV memory of {context:,} tokens, less than {scenario.model.name}'s context of {resolved.model.max_context:,}", "more KV memory for a replica"
    for i, c in enumerate(config.class_):
        mine = cls == i
        share = float((workload.prompt_tokens[mine] + workload.output_tokens[mine] > context).mean()) if mine.any() else 0.0
        if share >= NOTABLE:
            told.append(
                f"{c.name}: {text.percent(share)} of the requests of this mix do not fit {limit} (the average prompt has {sum(part.tokens for part in layers.parts(c)):,.0f}): "
                f"they are rejected, end their session or never come, so a run serves a lighter load than the mix says. Shorten the prompts or the sessions, or choose {instead}."
            )
    return told


@functools.lru_cache(maxsize=32)
def arrivals(config: WorkloadConfig, sessions: bool) -> dict[str, np.ndarray]:
    """Nominal times of requests (or of sessions' first ones) by class, seconds: the run's own draws, its first PREVIEW requests."""
    from workloads.limits import earliest_s

    workload = _sample(config)
    at_s, first = earliest_s(workload), workload.column("turn") == 0
    cls = workload.column("class_id")
    return {c.name: at_s[(cls == i) & (first | (not sessions))] for i, c in enumerate(config.class_)}
