"""The first bound, before anything is simulated: what the work alone asks for, and what a request takes by itself.

The one idea: on an idle replica a request takes the sum of its own steps (sim.alone), and no fleet serves it faster;
full steps alone say about how many GPUs the work needs, and a session in progress how much KV memory. Both say which
widths are worth a simulation.

    >>> bounds(Asked(Question(users=300)))[0].gpus
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from calibrate.memory import WIDTHS
from kvcast import api
from kvcast.asking.question import Asked
from kvcast.studies.work import seconds_of_work
from sim.alone import alone
from workloads import mix
from workloads.errors import InputError
from workloads.estimate import reusable_tokens

SAMPLE = 400  #: requests
MOST_WIDTHS, NEAR = 3, 1.6
"""Widths that are simulated, and how many times the GPUs of the best one they may need by this arithmetic."""
RESIDENT = 3.0
"""Of the KV memory that every session in progress needs, the part without which caches hold little: a third."""


@dataclass(frozen=True)
class Bound:
    """What arithmetic says of one width. gpus: about so many for the work and the KV memory of the load; None where the
    question has no load. replica_users: users whose work one replica does."""

    width: int
    reason: str = ""  #: why it cannot run; "" where it can
    gpus: int | None = None
    replica_users: float = 0.0
    cold_share: float = 0.0  #: of requests within the limits alone, with nothing cached
    warm_share: float = 0.0  #: and with all that can be reused
    cold_prompt_tokens: int = 0  #: of the median session's first prompt
    cold_ttft_s: float = 0.0
    reach_ttft_s: float | None = None  #: the least TTFT limit that the target share is within alone, cached


def bounds(asked: Asked) -> list[Bound]:
    """A bound for every width asked for (else 1, 2, 4 and 8)."""
    sample = mix.build(replace(asked.sized.mix, requests=SAMPLE), 0)
    return [_bound(asked, width, sample) for width in asked.question.tp or WIDTHS]


def _bound(asked: Asked, width: int, sample: mix.Workload) -> Bound:
    try:
        prepared = api.prepare(asked.scenario(1.0, width), sample)
    except InputError as error:
        return Bound(width, reason=str(error))
    params, slo = prepared.resolved.params, asked.slo
    reusable = reusable_tokens(sample) // params.block_size * params.block_size
    cold, warm = (alone(sample, params, prepared.step_time, cached) for cached in (np.zeros_like(reusable), reusable))
    user_s = asked.sized.user_s
    per_user = seconds_of_work(prepared) / len(sample) * asked.sized.turns / user_s  # replicas
    kv_per_user = float((sample.prompt_tokens + sample.output_tokens).mean()) / RESIDENT / params.kv_tokens
    each = 1 / max(per_user, kv_per_user if asked.sized.turns > 1 else 0.0, 1e-12)
    first = np.flatnonzero(sample.column("turn") == 0)
    middle = first[np.argsort(sample.prompt_tokens[first], kind="stable")[len(first) // 2]]
    return Bound(
        width,
        gpus=_gpus(asked, each, width),
        replica_users=each,
        cold_share=_within(cold, slo.ttft_s, slo.tpot_s),
        warm_share=_within(warm, slo.ttft_s, slo.tpot_s),
        cold_prompt_tokens=int(sample.prompt_tokens[middle]),
        cold_ttft_s=float(cold["ttft_s"][middle]),
        reach_ttft_s=_reach(warm["ttft_s"], asked.question.share),
    )


def _gpus(asked: Asked, replica_users: float, width: int) -> int | None:
    if asked.question.gpus is not None:
        return None
    return width * max(1, math.ceil(asked.users(asked.rate) / replica_users))


def _within(times: dict[str, np.ndarray], ttft_s: float | None, tpot_s: float | None) -> float:
    good = times["ttft_s"] <= (math.inf if ttft_s is None else ttft_s)
    good &= ~(times["tpot_s"] > (math.inf if tpot_s is None else tpot_s))  # no TPOT of a single token
    return float(np.mean(good & np.isfinite(times["ttft_s"])))


def _reach(ttft_s: np.ndarray, share: float) -> float | None:
    found = float(np.quantile(ttft_s, share, method="higher"))
    return found if math.isfinite(found) else None


def chosen(asked: Asked, found: list[Bound]) -> list[Bound]:
    """The widths to simulate, best first. InputError when the model runs on none of them."""
    fits = [one for one in found if not one.reason]
    gpus = asked.question.gpus
    if gpus is not None:
        fits = [one for one in fits if gpus % one.width == 0] or [one for one in fits if one.width <= gpus]
    if not fits:
        reasons = [one.reason for one in found if one.reason]
        raise InputError(
            f"--gpus {gpus}: the model needs {min(one.width for one in found if not one.reason)} a replica"
            if not reasons or len(reasons) < len(found)
            else reasons[-1]
        )
    if asked.question.tp:
        return fits
    able = [one for one in fits if one.warm_share >= asked.question.share] or [
        max(fits, key=lambda one: one.warm_share)
    ]
    best = min(map(_score, able))
    return sorted((one for one in able if _score(one) <= NEAR * best), key=_score)[:MOST_WIDTHS]


def _score(one: Bound) -> float:
    """GPUs a user."""
    return one.gpus if one.gpus is not None else one.width / one.replica_users
