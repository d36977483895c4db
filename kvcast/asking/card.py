"""The card: what a plan found, in users, GPUs and money. One JSON-able document; every key is always there.

The one idea: a plan speaks of requests a second, and a planner of users. Both are the same load, so every load of the
plan is told as users by one factor, the question's own.

    >>> card(asking, bounds, widths, rate, scenario, [], plan, options)["gives_way"]
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import api
from kvcast.asking.bound import Bound
from kvcast.asking.question import Asked
from kvcast.planner import Options
from kvcast.planner.binds import RECOVERY as BOUND_BY_RECOVERY
from kvcast.planner.document import scenario_of
from kvcast.planner.words.phrases import RECOVERY
from kvcast.present.verdict import deciding
from kvcast.scenario.gpu_prices import gpu_of
from kvcast.scenario.toml import dumps
from sim.measure.money import HOURS_A_MONTH
from sim.scenario import Scenario
from workloads import dists

MUCH = 0.05
"""Of the simulated time on step times beyond what was measured: from here on it is what the answer rests on."""
MARGIN = 1.1
"""Times the least limit that one run met: its share is exactly the target, and a verdict wants the interval above."""


def first(asking: Asked, found: Sequence[Bound], widths: Sequence[Bound]) -> dict[str, Any]:
    """What is known before anything is simulated."""
    best = widths[0]
    return {
        "gpus": best.gpus,
        "width": best.width,
        "widths": [one.width for one in widths],
        "does_not_fit": [one.width for one in found if one.reason],
        "users_a_replica": best.replica_users,
        "cold_share": best.cold_share,
        "warm_share": best.warm_share,
        "cold_prompt_tokens": best.cold_prompt_tokens,
        "cold_ttft_s": best.cold_ttft_s,
        "reach_ttft_s": best.reach_ttft_s,
        "ttft_s": asking.slo.ttft_s,
        "possible": best.warm_share >= asking.question.share,
        "share": asking.question.share,
    }


def card(
    asking: Asked,
    found: Sequence[Bound],
    widths: Sequence[Bound],
    rate: float,
    scenario: Scenario,
    varied: Sequence[str],
    plan: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """rate: sessions of the mix a second that the plan is for; varied: its --vary; options: as ask() was given them."""
    users = asking.users(rate)
    return {
        "asked": "gpus" if asking.question.gpus is None else "users",
        "question": question_of(asking),
        "taken": taken(asking),
        "load": load_of(asking, rate),
        "first": first(asking, found, widths),
        "answer": answer_of(plan, users),
        "basis": basis_of(plan),
        "gives_way": gives_way(plan, users),
        "loads": loads(plan, users),
        "one_down": plan["n_plus_1"],
        "without_cache": plan["without_cache"],
        "helps": helps(plan, users),
        "needs": needs(asking, plan),
        "way_out": way_out(asking, plan),
        "sharing_known": asking.use.known,
        "scenario": dumps(scenario),
        "command": command_of(varied, plan, options, asking.question.gpus is not None),
        "plan": plan,
    }


def question_of(asking: Asked) -> dict[str, Any]:
    """Every value of the question, whoever chose it."""
    c, asked, slo = asking.sized.mix.class_[0], asking.question, asking.slo
    model = asking.scenario(1.0).model
    return {
        "use": asked.use,
        "title": asking.use.title,
        "source": asking.use.source,
        "system": round(sum(dists.moments(one.tokens)[0] for one in c.layers if one.scope == "global")),
        "new_tokens": _median(c.turn_input or c.layers[-1].tokens),
        "answer": _median(c.output),
        "turns": asking.sized.turns,
        "context": asking.sized.context,
        "compacted_at": asking.sized.compacted_at,
        "model": model.config or model.name,
        "weights": model.dtype,
        "kv": model.kv_dtype,
        "gpu": asked.gpu,
        "price": asked.price,
        "prices": dict(asked.prices),
        "ttft_s": slo.ttft_s,
        "tpot_s": slo.tpot_s,
        "share": asked.share,
        "router": asking.router,
    }


def _median(dist: Any) -> int:
    return round(float(dists.quantile(dist, np.array([0.5]))[0]))


def taken(asking: Asked) -> list[str]:
    """Names of the question's values that nobody gave."""
    asked = asking.question
    limits = ["ttft_s", "tpot_s"] if asked.ttft_s is None and asked.tpot_s is None else []
    names = ("use", "system", "new_tokens", "answer", "model", "weights", "kv", "gpu", "price", "share", "router")
    default = type(asked)(users=1)
    return [name for name in names if getattr(asked, name) == getattr(default, name)] + limits


def load_of(asking: Asked, rate: float) -> dict[str, Any]:
    sized = asking.sized
    return {
        "users": asking.users(rate),
        "sessions_per_s": rate / sized.parts,
        "requests_per_s": rate * sized.turns,
        "user_s": sized.user_s * sized.parts,
        "requests_per_session": sized.turns * sized.parts,
        "hours": asking.question.hours if asking.question.sessions_a_day is not None else None,
    }


def answer_of(plan: dict[str, Any], users: float) -> dict[str, Any]:
    """The fleet, or where none meets the one that came closest."""
    answer = plan["answer"]
    one = answer if answer["replicas"] else plan["why"] or deciding(plan)
    month = answer["usd_per_month"] if answer["feasible"] else None
    gpus = one and one["gpus"]
    each = gpus // one["replicas"] if one else None
    return {
        "feasible": answer["feasible"],
        "word": answer["word"] or "misses",
        "reason": answer["reason"],
        "users": users,
        "gpus": gpus,
        "replicas": one and one["replicas"],
        "gpus_per_replica": each,
        "device": plan["device"],
        "attainment": one and one["attainment"],
        "runs": answer["runs"] or 1,
        "recovers": bool(plan["recovery"] and plan["recovery"]["recovers"]),
        "usd_per_month": month,
        "usd_per_month_per_replica": month and month / answer["replicas"],
        "usd_per_user": month and month / users,
        "usd_per_year": month and 12 * month,
        "usd_per_million_input_tokens": answer["usd_per_million_input_tokens"],
        "usd_per_million_output_tokens": answer["usd_per_million_output_tokens"],
        "usd_per_million_total_tokens": answer["usd_per_million_total_tokens"],
    }


def basis_of(plan: dict[str, Any]) -> dict[str, Any]:
    """What the step times rest on. word: data sheet, extrapolated, interpolated, or None of nothing that was run."""
    profile = api.resolve(scenario_of(plan["scenario"])).profile
    row = deciding(plan)
    beyond = row["extrapolated"] if row else None
    word = "data sheet" if profile.kind == "roofline" else "extrapolated" if (beyond or 0.0) >= MUCH else "interpolated"
    return {"word": word, "profile": profile.id, "kind": profile.kind, "extrapolated": beyond}


def gives_way(plan: dict[str, Any], users: float) -> dict[str, Any] | None:
    """What binds first and at how many users, and from how many on this fleet is no answer any more."""
    capacity, binding, recovery = plan["capacity"], plan["binding"], plan["recovery"]
    if capacity is None or not capacity["slo_capacity_per_s"] or not plan["answer"]["feasible"]:
        return None
    held, breaks = capacity["slo_capacity_per_s"], capacity["breaks_at_per_s"]
    recovers = recovery["recoverable_per_s"] if recovery else None
    enough = min(held, recovers) if recovers else held
    by_recovery, resource = bool(recovers and recovers < held), binding and binding["resource"]
    if by_recovery and (breaks is None or resource == BOUND_BY_RECOVERY):
        breaks, resource = recovers, binding and BOUND_BY_RECOVERY  # a burst is too much long before the load is
    return {
        "resource": resource,
        "rivals": (binding and binding.get("rivals")) or [],
        "words": binding and binding["words"],
        "users": None if breaks is None else _users(plan, breaks, users),
        "next_gpu_users": _users(plan, enough, users),
        "because": "recovery" if by_recovery else "load",
        "at_least": breaks is None,
    }


def _users(plan: dict[str, Any], load: float, users: float) -> int:
    """A load of the plan in users; whole, and never more than there are."""
    return math.floor(users * load / plan["capacity"]["offered_rate_per_s"] + 1e-9)


def loads(plan: dict[str, Any], users: float) -> list[dict[str, Any]]:
    """The loads that the answer's fleet was simulated at, in users, and the share within the limits at each."""
    if plan["capacity"] is None:
        return []
    factor = users / plan["capacity"]["offered_rate_per_s"]
    names = ("attainment", "attainment_low", "attainment_high", "stable")
    return [{"users": row["load"] * factor, **{name: row[name] for name in names}} for row in plan["rates"] or ()]


def helps(plan: dict[str, Any], users: float) -> list[dict[str, Any]]:
    """The plan's advice in GPUs where it saves any, and in users that the same fleet then holds."""
    rows = []
    for one in plan["advice"] or ():
        before, after = one["before"], one["after"]
        saved = before["gpus"] - after["gpus"] if before["gpus"] and after["gpus"] else 0
        more = _users(plan, after["capacity"], users) if after["capacity"] else None
        rows.append(
            {
                "change": one["change"],
                "gpus": -max(saved, 0),
                "users": more,
                "costs": one["costs"],
                "asks_for": one.get("asks_for"),
                "set": one["set"],
            }
        )
    return rows


def needs(asking: Asked, plan: dict[str, Any]) -> list[str]:
    """What the answer takes for granted of the deployment."""
    answer = plan["answer"]
    if not answer["replicas"] or answer["replicas"] == 1 or answer["router"] != "session-affinity":
        return []
    return ["a router that keeps a session on its replica (--router round-robin asks without one)"]


def way_out(asking: Asked, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """What would make an answer of a question without one, each with the flags to ask it; from the plan's `why`."""
    why, answer = plan["why"], plan["answer"]
    if answer["feasible"]:
        return []
    rows: list[dict[str, Any]] = []
    if answer["reason"] == RECOVERY:
        rows.append(
            {"kind": "recovery", "flags": ["--no-recover"], "gpus": answer["gpus"], **_cost(asking, answer["gpus"])}
        )
    if why is None:
        return rows
    for one in why["nearest"]:
        if one["needs_s"] is not None and one["limit"] in ("ttft_s", "tpot_s"):
            value = _up(MARGIN * one["needs_s"])
            gpus = one["replicas"] * why["gpus"] // why["replicas"]
            flags = _limits(asking, one["limit"], value)
            found = {"limit": one["limit"], "value": value, "gpus": gpus}
            rows.append({"kind": "limit", **found, **_cost(asking, gpus), "flags": flags})
    for kind in ("wider", "gpu"):
        able = [row for row in why["layouts"] if row["attains"] and (row["gpu"] == plan["device"]) == (kind == "wider")]
        if able:
            rows.append(_layout(kind, min(able, key=lambda row: row["gpus"]), asking))
    return rows


def _cost(asking: Asked, gpus: int | None, gpu: str | None = None) -> dict[str, float | None]:
    """A month of so many GPUs, the question's own or another whose price was said."""
    price = asking.price_of(gpu or asking.question.gpu)
    return {"usd_per_month": None if price is None or gpus is None else price * gpus * HOURS_A_MONTH}


def _layout(kind: str, row: dict[str, Any], asking: Asked) -> dict[str, Any]:
    gpu = _gpu(asking, row["profile"])
    flags = ([] if gpu == asking.question.gpu else ["--gpu", gpu]) + ["--tp", str(row["tensor_parallel"])]
    return {
        "kind": kind,
        "device": row["gpu"],
        "replicas": row["replicas"],
        "gpus": row["gpus"],
        "gpus_per_replica": row["tensor_parallel"],
        **_cost(asking, row["gpus"], gpu),
        "flags": flags,
    }


def _gpu(asking: Asked, profile: str) -> str:
    """The GPU of a profile, as --gpu takes it."""
    plain = asking.scenario(1.0)
    return gpu_of(replace(plain, hardware=replace(plain.hardware, gpu=None, profile=profile))) or asking.question.gpu


def _limits(asking: Asked, limit: str, value: float) -> list[str]:
    """Both limits as flags: one given alone would drop the other."""
    slo = asking.slo
    given = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, limit: value}
    return [
        word for name, s in given.items() if s is not None for word in (f"--{name.removesuffix('_s')}", f"{s:.6g}s")
    ]


def _up(value: float) -> float:
    """Two significant digits that the value is within."""
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    return math.ceil(value * 10**digits - 1e-9) / 10**digits


def command_of(varied: Sequence[str], plan: dict[str, Any], options: dict[str, Any], fixed: bool) -> str:
    """The plan that answers the same, from the folder's scenario.toml."""
    words = ["kvcast", "plan", "scenario.toml", *(word for one in varied for word in ("--vary", one)), "--no-growth"]
    words += ["--fixed"] if fixed else []
    words += ["--seeds", str(options["seeds"])] if options["seeds"] != Options.seeds else []
    words += ["--max-replicas", str(options["most"])] if options["most"] != Options.most else []
    words += [] if options["recover"] else ["--no-recover"]
    return shlex.join(words)
