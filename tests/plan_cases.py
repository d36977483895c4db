"""A small chat mix to plan for, with its cases, and the fewest replicas by brute force."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from kvcast import api
from kvcast.config import scenario_from_doc
from sim.measure.sketch import sketch
from sim.measure.verdict import judge, sample_of
from sim.recording import COMPLETED
from sim.scenario import SloClass

SEEDS = 3
ALONE = {
    "seeds": SEEDS,
    "capacity": False,
    "binding": False,
    "advice": False,
    "growth": None,
    "n_plus_1": False,
    "model_error": False,
    "undisturbed": False,
    "recover": False,
}
"""Only the fewest replicas."""
CHAT = {
    "name": "chat",
    "rate": 5.0,
    "turns": {"kind": "geometric", "mean": 3, "high": 6},
    "think": {"value": 4.0},
    "layers": [
        {"name": "system", "scope": "global", "tokens": {"value": 800}},
        {
            "name": "message",
            "scope": "dynamic",
            "tokens": {"kind": "lognormal", "median": 600, "p90": 3000, "high": 9000},
        },
    ],
    "turn_input": {"value": 200},
    "output": {"kind": "lognormal", "median": 150, "p90": 400, "high": 900},
}


def document(**sections) -> dict:
    doc = {
        "name": "chat",
        "workload": {"duration_s": 90.0, "class": [CHAT]},
        "run": {"warmup_s": 40.0, "duration_s": 90.0},
        "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.95},
        "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
        "cost": {"gpu_hour_usd": 1.5},
        "plan": {"recover": False},  # tests/test_shocks.py asks for that
    }
    for name, values in sections.items():
        doc[name] = (
            {key: value for key, value in {**doc.get(name, {}), **values}.items() if value is not None}
            if isinstance(values, dict)
            else values
        )
    return doc


def scenario(**sections):
    return scenario_from_doc(document(**sections))


def settled(asked, n: int, seeds: int) -> str:
    """The word for n replicas, from runs of `seeds` seeds and, where they leave it open, as many again."""
    fleet = replace(asked, cluster=replace(asked.cluster, replicas=n))
    samples, drowning = [], 0
    for i in range(2 * seeds):
        prepared = api.prepare(replace(fleet, seed=asked.seed + i))
        columns, summary = sketch(api.record(prepared), prepared.workload, prepared.scenario, None)
        names = [
            (name, SloClass(asked.slo.ttft_s, asked.slo.tpot_s, asked.slo.e2e_s))
            for name in prepared.workload.class_names
        ]
        samples.append(
            sample_of(
                {**columns, "completed": columns["status"] == COMPLETED},
                columns["arrival_s"],
                columns["in_window"],
                names,
            )
        )
        drowning += summary["stable"] is False
        if i == seeds - 1 and (word := judge(samples, asked.slo, 2 * drowning < seeds, 0.975).word) != "not shown":
            return word
    return judge(samples, asked.slo, drowning < seeds, 0.975).word


def brute_force(made, most: int, seeds: int = SEEDS) -> int | None:
    """The fewest replicas of a plan's scenario: every count simulated to its end, one after the other."""
    asked = scenario_from_doc(tomllib.loads(made["scenario"]))
    return next((n for n in range(1, most + 1) if settled(asked, n, seeds) == "meets"), None)


FEWER = {"rate_scale": 0.6}
"""Of the sessions: brute force costs as the square of the load."""
CASES = {
    "sessions": {"workload": FEWER},
    "an open loop": {"workload": {**FEWER, "loop": "open"}},
    "sessions at once": {
        "workload": {"loop": "concurrency", "concurrency": 60, "requests": 700, "duration_s": None},
        "run": {"warmup_s": None, "duration_s": None},
    },
    "little memory": {"engine": {"kv_blocks": 2500}, "cluster": {"router": "least-loaded"}, "workload": FEWER},
    "SGLang": {"engine": {"semantics": "sglang", "block_size": 1}, "workload": FEWER},
    "E2E only, from a ramp of its own": {
        "slo": {"ttft_s": None, "tpot_s": None, "e2e_s": 10.0},
        "workload": {**FEWER, "duration_s": 40.0, "class": [{**CHAT, "output": {"value": 150}}]},
        "run": {"warmup_s": None, "duration_s": None},
    },
    "no cache": {"cache": {"enabled": False}, "cluster": {"router": "random"}, "workload": FEWER},
}
