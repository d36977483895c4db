"""Which file a scenario means: one rule for every key that may name one.

The one idea: a path in a scenario file is taken from that file's folder, a path in `--set` from the current one, and
both become absolute at once, so that nothing later finds another file of the same name. A path that begins with a
$VARIABLE or ~ is expanded when it is read. `hardware.profile` is the name of a bundled profile first.

    >>> absolute({"workload": {"trace": "t.jsonl"}}, Path("runs"))["workload"]["trace"]
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sim.scenario import Scenario
from workloads.demand import with_curve


def absolute(doc: dict, base: Path) -> dict:
    """The same tables (changed in place), with the paths in them that are relative taken from `base`."""
    for section, name, take in (
        ("workload", "trace", _path),
        ("workload", "tokenizer", _path),
        ("model", "config", _path),
        ("hardware", "profile", _profile),
        ("disaggregation", "prefill_profile", _profile),
    ):
        table = doc.get(section)
        if isinstance(table, dict) and isinstance(table.get(name), str) and table[name]:
            table[name] = take(table[name], base)
    pools = doc.get("pool")
    for pool in pools if isinstance(pools, list) else ():
        if isinstance(pool, dict):
            absolute({name: pool.get(name) for name in ("hardware", "model")}, base)
    workload = doc.get("workload")
    demand = workload.get("demand") if isinstance(workload, dict) else None
    if isinstance(demand, dict) and isinstance(demand.get("file"), str) and demand["file"]:
        demand["file"] = _path(demand["file"], base)
    return doc


def absolute_scenario(scenario: Scenario, base: Path) -> Scenario:
    """The scenario with its relative paths taken from `base`, and what its demand's file says in the file's place."""
    workload, model, hardware = scenario.workload, scenario.model, scenario.hardware
    pools, kinds = scenario.disaggregation, scenario.pool
    if pools.prefill_profile:
        pools = replace(pools, prefill_profile=_profile(pools.prefill_profile, base))
    if workload.trace:
        workload = replace(workload, trace=_path(workload.trace, base))
    if workload.tokenizer:
        workload = replace(workload, tokenizer=_path(workload.tokenizer, base))
    if workload.demand is not None and workload.demand.file is not None:
        file = _path(workload.demand.file, base)
        workload = with_curve(replace(workload, demand=replace(workload.demand, file=file)))
    if model.config:
        model = replace(model, config=_path(model.config, base))
    for i, kind in enumerate(kinds):
        own = absolute({"hardware": {**kind.hardware}, "model": {**kind.model}}, base)
        kinds = (*kinds[:i], replace(kind, **own), *kinds[i + 1 :])
    return replace(
        scenario,
        pool=kinds,
        workload=workload,
        model=model,
        hardware=replace(hardware, profile=_profile(hardware.profile, base)),
        disaggregation=pools,
    )


def _path(text: str, base: Path) -> str:
    return text if text.startswith(("$", "~")) else os.path.abspath(base / text)


def _profile(text: str, base: Path) -> str:
    """A name stays a name; anything that is a file or folder, here or beside the scenario, or looks like one, is a
    path."""
    from calibrate.profile import bundled_profiles

    if text.startswith(("roofline:", "atlas:")) or text in bundled_profiles():
        return text
    is_path = "/" in text or text.endswith(".json") or (base / text).exists() or Path(text).exists()
    return os.path.abspath(base / text) if is_path else text
