"""What a mix will send, from the run's own draws: when it arrives, how long it is judged, and how much of it is too
long for the model.

The one idea: requests are generated as the run generates them, from the scenario with its window in numbers, so nothing
is estimated.

    >>> resolved = api.resolve(load_scenario("examples/demo.toml")).scenario
    >>> judged(resolved), arrivals(resolved.workload, sessions=True, seed=resolved.seed)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvcast import api, text
from kvcast.pages.edit import layers
from kvcast.present.verdict import model_of
from kvcast.scenario import mixed
from kvcast.scenario.resolve import Resolved
from kvcast.scenario.steady import clock_note, nominal_per_s
from sim.scenario import Scenario
from workloads import mix
from workloads.columns import Workload
from workloads.config import WorkloadConfig
from workloads.errors import InputError

SAMPLE = 20_000
"""Requests at most whose length is looked at."""
NOTABLE = 0.01
"""Share of a class's requests that are longer than the context, from which it is said."""


@functools.lru_cache(maxsize=32)
def _sample(config: WorkloadConfig) -> Workload:
    """The run's own draws, its first SAMPLE requests."""
    return mix.build(replace(config, requests=min(config.requests or SAMPLE, SAMPLE)), seed=0)


def too_long(config: WorkloadConfig, scenario: Scenario | None) -> list[str]:
    """For each class of which a notable share is longer than the model's context, or what of it fits in the KV memory:
    how many of its requests."""
    if scenario is None:
        return []
    try:
        resolved = api.resolve(scenario)
        workload = _sample(config)
    except InputError:
        return []  # said where the mistake is
    cls, told = workload.column("class_id"), []
    asks = mixed.asked(resolved.scenario, workload.class_names) if resolved.kinds else []
    for i, c in enumerate(config.class_):
        mine = cls == i
        kinds = [one for one, open_ in zip(resolved.each, asks[i], strict=True) if open_] if asks else [resolved]
        context, limit, instead = _longest(kinds)
        share = (
            float((workload.prompt_tokens[mine] + workload.output_tokens[mine] > context).mean()) if mine.any() else 0.0
        )
        if share >= NOTABLE:
            told.append(
                f"{c.name}: {text.percent(share)} of the requests of this mix do not fit {limit} (the average prompt"
                f" has {sum(part.tokens for part in layers.parts(c)):,.0f}): they are rejected, end their session or"
                " never come, so a run serves a lighter load than the mix says. Shorten the prompts or the sessions,"
                f" or choose {instead}."
            )
    return told


def _longest(kinds: Sequence[Resolved]) -> tuple[int, str, str]:
    """(tokens, what bounds them, what would help) of the replicas that take the longest sequences."""
    roomiest = max(kinds, key=lambda one: one.scenario.engine.max_model_len or 0)
    context, model = roomiest.scenario.engine.max_model_len or 0, model_of(roomiest.scenario)
    if not roomiest.lowered:
        return context, f"{model}'s context of {context:,} tokens", "a model with a longer context"
    limit = f"the KV memory of {context:,} tokens, less than {model}'s context of {roomiest.model.max_context:,}"
    return context, limit, "more KV memory for a replica"


@functools.lru_cache(maxsize=32)
def arrivals(config: WorkloadConfig, sessions: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Nominal times of the run's requests (or of its sessions' first ones) by class, seconds of the run's clock.

    config: the run's, its end in numbers where its window is.
    """
    cls, turn, at_s = mix.nominal(config, seed)
    return {c.name: at_s[(cls == i) & ((turn == 0) | (not sessions))] for i, c in enumerate(mix.resolve(config).class_)}


def judged(scenario: Scenario) -> str:
    """What a run of a resolved mix offers, and what of it is judged, in a line."""
    if scenario.workload.concurrency is not None:
        return (
            f"{scenario.workload.concurrency:,} sessions at once, about"
            f" {text.count(mix.ending(mix.resolve(scenario.workload)).requests)} requests in all."
        )
    offered, warmup_s = nominal_per_s(scenario), scenario.run.warmup_s or 0.0
    ends = [end for end in (scenario.run.duration_s, scenario.workload.duration_s) if end is not None]
    told = [f"{offered:.3g} requests/s once the load is there"] if offered is not None else []
    told += (
        [f"sessions begin {text.minutes(warmup_s)} before what is judged"]
        if warmup_s
        else ["judged from the first arrival on"]
    )
    if ends:
        lasts_s = min(ends) - warmup_s
        about = f", about {text.count(offered * lasts_s)} requests" if offered is not None else ""
        told.append(f"judged for {text.minutes(lasts_s)}{about}")
    elif scenario.workload.requests is not None:
        told.append(f"ends after about {text.count(scenario.workload.requests)} requests")
    return f"{'; '.join([*told, *filter(None, [clock_note(scenario)])])}."
