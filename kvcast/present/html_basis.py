"""What a page's numbers rest on, where they come from, and what its words mean; of a run and of a plan.

>>> assumptions(run)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvcast import text
from kvcast.present import html_page, verdict
from kvcast.present.cache_text import fates
from kvcast.present.summary_text import limits
from kvcast.present.terms import TERMS
from kvcast.scenario.steady import is_mix
from kvcast.scenario.toml import dumps
from kvcast.store.runs import Run
from kvcast.trust import accuracy
from sim.scenario import Scenario

Document = Mapping[str, Any]
GLOSSARY = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("Within limits (attainment)", "attainment"),
    ("Meets, misses, not shown", "verdict"),
    ("Interval", "interval"),
    ("Hit rate", "hit_rate"),
    ("Ceiling", "ceiling"),
    ("KV in use", "kv"),
    ("GPU-hours", "gpu_hours"),
    ("Cost", "cost"),
    ("Unstable, backlog growth", "backlog"),
    ("Throughput", "throughput"),
    ("Causes of missed tokens", "causes"),
    ("Preemptions", "preemptions"),
    ("Extrapolated", "extrapolated"),
)


# -- what it rests on --------------------------------------------------------------------------------------------------


def assumptions(run: Run) -> list[str]:
    s, scenario = run.summary, run.scenario
    cache = f"prefix cache {scenario.cache.policy}" if scenario.cache.enabled else "prefix cache off"
    told = [
        ("workload", s["workload"]),
        ("requests", f"{text.count(s['arrived'])} arrived: {fates(dict(s), is_mix(scenario))}"),
        ("limits", limits(scenario.slo)),
        ("model", f"{verdict.model_of(scenario)}, weights {scenario.model.dtype}, KV {scenario.model.kv_dtype}"),
        ("fleet", f"{verdict.fleet_of(s)}, {scenario.cluster.router} routing, {cache}"),
        ("engine", s["engine_semantics"]),
        ("seed", str(s["seed"])),
        *(
            (
                key.replace("_", " "),
                f"{value:,} ({s['engine_origins'].get(key, 'given')})" if isinstance(value, int) else str(value),
            )
            for key, value in s["engine"].items()
        ),
    ]
    return [
        html_page.section(
            "Assumptions",
            html_page.table(("", "this run"), told, words=True),
            "<h3>KV memory of a replica</h3>",
            html_page.code("\n".join(s["kv_arithmetic"]) or f"{s['kv_blocks']:,} blocks, as given"),
            "<h3>Notes</h3>",
            html_page.lines(s["notes"]),
        )
    ]


def provenance(s: Document, scenario: Scenario, command: str) -> list[str]:
    profile = s["profile_provenance"]
    rows = [("profile", f"{profile['id']}: {profile['label']}"), ("content hash", profile["content_hash"])]
    rows += [
        (key.replace("_", " "), " ".join(value) if isinstance(value, list) else str(value))
        for key, value in profile["provenance"].items()
    ]
    return [
        html_page.section(
            "Step times: where they come from, how accurate they are",
            html_page.table(("", "provenance"), rows, words=True),
            html_page.lines(accuracy.statement(profile, s["coverage"], s.get("measured_servers"))),
        ),
        html_page.section("Glossary", html_page.glossary((label, TERMS[key]) for label, key in GLOSSARY)),
        html_page.section(
            "Reproduce",
            html_page.code(command),
            html_page.paragraph("with this as scenario.toml:"),
            html_page.code(portable(dumps(scenario))),
        ),
    ]


def portable(scenario_toml: str) -> str:
    """The scenario with files named by their last part: a page travels, this machine's folders do not."""
    return re.sub(r'^((?:trace|config|profile) = ").*/([^/"]+")$', r"\1\2", scenario_toml.strip(), flags=re.MULTILINE)
