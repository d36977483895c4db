"""What the Compare page may vary: a short list of keys that mean something to a planner, and the command that compares
them.

The one idea: a choice is a key and at most a few values, checked here, and the scenario's own value is always the first
variant, the one that all others are compared with.

    >>> command(scenario, {"cluster.replicas": [1, 4]}, seeds=3)
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcast.pages.edit import choices
from kvcast.scenario.gpu_prices import gpu_of
from sim.scenario import DTYPES, Scenario
from workloads.errors import InputError

MOST = 24
"""Variants of a comparison, at most: more is a sweep's work."""
MOST_SEEDS = 20


@dataclass(frozen=True)
class Axis:
    key: str
    label: str
    least: float | None = None  #: None: one of the options; else numbers from here on
    whole: bool = True


AXES = (
    Axis("cluster.replicas", "Replicas", 1),
    Axis("cache.policy", "Prefix cache policy"),
    Axis("cache.enabled", "Prefix cache on or off"),
    Axis("cluster.router", "Router"),
    Axis("hardware.gpu", "GPU"),
    Axis("hardware.tensor_parallel", "Tensor parallel", 1),
    Axis("model.dtype", "Weights"),
    Axis("workload.rate_scale", "Load (× the workload's own rate)", 0.01, whole=False),
    Axis("engine.kv_blocks", "KV blocks of a replica", 1),
    Axis("engine.block_size", "Block size (tokens)", 1),
    Axis("engine.max_num_seqs", "Max sequences", 1),
    Axis("engine.max_num_batched_tokens", "Tokens per step", 1),
)
BY_KEY = {axis.key: axis for axis in AXES}
FIRST = "cluster.replicas"
"""What the Compare page varies first."""
PLANNED = {
    "gpus": "hardware.gpu",
    "widths": "hardware.tensor_parallel",
    **{f.name: f"hardware.{f.name}" for f in choices.layout() if f.name != "tensor_parallel"},
    "dtypes": "model.dtype",
    "kv_dtypes": "model.kv_dtype",
    "policies": "cache.policy",
    "routers": "cluster.router",
}
"""What a plan may vary -> the key; the layout's other keys go by their own names."""


OF_ALL_POOLS = (
    "cache.policy",
    "cache.enabled",
    "cluster.router",
    "model.dtype",
    "workload.rate_scale",
    "engine.block_size",
)
"""What all pools of a fleet have alike."""


def axes_of(scenario: Scenario) -> dict[str, Axis]:
    """What may vary, by key: of a fleet with pools their replicas, and what all have alike."""
    if not scenario.pool:
        return BY_KEY
    named = [Axis(f"pool.{pool.name}.replicas", f"Replicas of {pool.name}", 1) for pool in scenario.pool]
    return {axis.key: axis for axis in (*named, *(BY_KEY[key] for key in OF_ALL_POOLS))}


def own(scenario: Scenario, key: str) -> Any:
    """The scenario's value of the key; of its GPU the name, whatever it is given by."""
    if key.startswith("pool."):
        return next(pool.replicas for pool in scenario.pool if key == f"pool.{pool.name}.replicas")
    if key == "hardware.gpu":
        return gpu_of(scenario)
    section, name = key.split(".")
    return getattr(getattr(scenario, section), name)


def options(scenario: Scenario, key: str, policies: Sequence[str]) -> list[str]:
    """The values of an axis that has options, without the scenario's own."""
    from calibrate.resolve import known_gpus
    from sim.fleet.router import ROUTERS

    known: dict[str, list[str]] = {
        "cache.policy": [*policies],
        "cache.enabled": ["true", "false"],
        "cluster.router": list(ROUTERS),
        "hardware.gpu": known_gpus(),
        "model.dtype": [*DTYPES],
    }
    return [value for value in known[key] if value != written(own(scenario, key))]


def written(value: Any) -> str:
    """A value as a scenario file writes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def numbers(axis: Axis, words: str) -> list[str]:
    """ "1, 2, 4" as values. Raises InputError with the field and what was expected."""
    assert axis.least is not None
    found = []
    for word in re.split(r"[,;\s]+", words.strip()) if words.strip() else []:
        try:
            value = float(word.replace("_", ""))
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < axis.least or (axis.whole and value != int(value)):
            raise InputError(
                f"{axis.label}: {word!r}, expected {'whole ' if axis.whole else ''}numbers of at least {axis.least:g},"
                " such as 1, 2, 4"
            )
        found.append(str(int(value)) if axis.whole else f"{value:g}")
    return found


def command(scenario: Scenario, chosen: Mapping[str, Sequence[str]], seeds: int) -> tuple[str, ...]:
    """ "compare" with a --vary for each key that has another value than the scenario's own. Raises InputError for too
    many."""
    words, count = [], 1
    for key, values in chosen.items():
        mine = written(own(scenario, key))
        every = list(dict.fromkeys([mine, *values]))
        if len(every) > 1:
            words += ["--vary", f"{key}={','.join(every)}"]
            count *= len(every)
    varied = {word.partition("=")[0] for word in words[1::2]}
    if (
        not scenario.pool
        and varied & {"hardware.tensor_parallel", "model.dtype"}
        and "hardware.gpu" not in varied
        and gpu_of(scenario)
    ):
        words += ["--vary", f"hardware.gpu={gpu_of(scenario)}"]  # no profile is of several widths or precisions
    if count > MOST:
        raise InputError(f"{count} variants, expected at most {MOST}: choose fewer values, or use kvcast sweep")
    return ("compare", *words, *(["--seeds", str(seeds)] if seeds > 1 else [])) if words else ()


def count_of(command: Sequence[str]) -> int:
    """Simulations that a command asks for."""
    axes = [word for before, word in itertools.pairwise(command) if before == "--vary"]
    seeds = int(command[command.index("--seeds") + 1]) if "--seeds" in command else 1
    return math.prod(len(axis.partition("=")[2].split(",")) for axis in axes) * seeds
