"""Which measured servers speak for a run, and how far off the simulation of them was.

The one idea: `kvcast validate --all --table kvcast/trust/evidence.json` keeps, by GPU, model and engine, how far off
the means of measured closed-loop runs came out whose protocol is known; a run is given the nearest of them (this model
on this GPU, else its family, else its kind, else its kind on other GPUs with this engine), or is told that none is.

    >>> speaks_for(api.resolve(scenario)).words
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast import text
from workloads.errors import InputError

if TYPE_CHECKING:
    from kvcast.scenario.resolve import Resolved

FILE = Path(__file__).parent / "evidence.json"
METRICS = ("ttft", "tpot")
FEW = 5
"""Runs below which the words say how few they are."""
NEARNESS = {
    "model": "of this model on this GPU and engine",
    "family": "of its family on this GPU and engine, none of this model",
    "kind": "of other {kind} on this GPU and engine, none of its family",
    "engine": "of {kind} on other GPUs with this engine, none on this GPU",
}


@dataclass(frozen=True)
class Measured:
    """Runs of one model on one GPU with one engine, and the errors of their simulated means."""

    set: str  #: of kvcast validate
    gpu: str
    model: str
    moe: bool
    engine: str
    runs: int
    ttft_error: float  #: mean of the absolute relative errors, simulated over measured minus 1
    ttft_bias: float  #: mean of the signed ones
    tpot_error: float
    tpot_bias: float

    @property
    def family(self) -> str:
        return family(self.model)


@dataclass(frozen=True)
class Evidence:
    """The nearest measured runs; nearness "" and no errors where there are none."""

    nearness: str
    runs: int
    of: tuple[str, ...]  #: model on GPU, the most runs first
    kind: str
    sets: tuple[str, ...]
    ttft: Mapping[str, float]  #: error and bias
    tpot: Mapping[str, float]
    own_tables: str  #: the run's step times where they are none of the atlas's, which those runs were simulated with

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "words": self.words}

    @property
    def words(self) -> str:
        """One or two sentences for a run's report."""
        if not self.nearness:
            return f"measured servers: none of {self.kind} with this engine, so nothing says how far off the whole is"
        parts = [f"mean {m.upper()} {_off(getattr(self, m))}" for m in METRICS]
        few = "only " if self.runs < FEW else ""
        where = NEARNESS[self.nearness].format(kind=self.kind)
        named = "" if self.nearness == "model" else f" ({', '.join(self.of[:3])}{', ...' if len(self.of) > 3 else ''})"
        tables = f"; they were simulated with the atlas, this run with {self.own_tables}" if self.own_tables else ""
        return (
            f"measured servers: over {few}{text.count(self.runs)} runs {where}{named}, {' and '.join(parts)}"
            f" (kvcast validate {' '.join(self.sets)}){tables}"
        )


def _off(found: Mapping[str, float]) -> str:
    side = "longer" if found["bias"] > 0 else "shorter"
    return f"was {100 * found['error']:.0f} % off ({abs(100 * found['bias']):.0f} % {side} than measured on average)"


def family(model: str) -> str:
    """The maker's name for its line: the letters that a model's name begins with, of hf:ORG/NAME those of NAME."""
    found = re.match(r"[a-z]+", model.rsplit("/", 1)[-1].lower())
    return found[0] if found else model


def speaks_for(resolved: Resolved) -> Evidence:
    """The measured runs nearest to a resolved scenario."""
    from calibrate.sources.roofline import gpu_key

    profile = resolved.profile
    try:
        gpu = gpu_key(str(profile.device["name"]))
    except InputError:
        gpu = str(profile.device["name"])
    own = "" if "rests_on" in profile.points else profile.id
    engine = resolved.scenario.engine.semantics
    return nearest(table(), gpu, resolved.model.name, bool(resolved.model.experts), engine, own)


def nearest(rows: Sequence[Measured], gpu: str, model: str, moe: bool, engine: str, own_tables: str = "") -> Evidence:
    """The rows of the first level of NEARNESS that has any, their errors weighted by runs."""
    alike = [row for row in rows if row.engine == engine and row.moe == moe]
    here = [row for row in alike if row.gpu == gpu]
    levels = {
        "model": [row for row in here if row.model == plain(model)],
        "family": [row for row in here if row.family == family(model)],
        "kind": here,
        "engine": alike,
    }
    kind = "mixtures of experts" if moe else "dense models"
    nearness = next((level for level, found in levels.items() if found), "")
    found = sorted(levels.get(nearness, []), key=lambda row: -row.runs)
    return Evidence(
        nearness,
        sum(row.runs for row in found),
        tuple(f"{row.model} on {row.gpu}" for row in found),
        kind,
        tuple(sorted({row.set for row in found})),
        _errors(found, "ttft"),
        _errors(found, "tpot"),
        own_tables if found else "",
    )


def plain(model: str) -> str:
    """A model's name without organisation, precision and tuning: of hf:Qwen/Qwen3-32B-FP8 qwen3-32b."""
    name = model.rsplit("/", 1)[-1].lower()
    return re.sub(r"(-(fp8|fp4|nvfp4|bf16|instruct|dynamic))+$", "", name)


def _errors(rows: Sequence[Measured], metric: str) -> dict[str, float]:
    """error and bias over all runs of some rows; empty without any."""
    runs = sum(row.runs for row in rows)
    return {
        side: sum(row.runs * float(getattr(row, f"{metric}_{side}")) for row in rows) / runs
        for side in ("error", "bias")
        if runs
    }


@functools.cache
def table(path: Path = FILE) -> tuple[Measured, ...]:
    """The committed table."""
    return tuple(Measured(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"])


def rows_of(scored: Sequence[Mapping[str, Any]], name: str) -> list[Measured]:
    """The table's rows of a set's scored runs (as silicon's figures have them): those whose protocol is known."""
    groups: dict[tuple[str, str, str, bool], list[Mapping[str, Any]]] = {}
    for one in scored:
        if one["known"]:
            groups.setdefault((one["gpu"], one["model"], one["backend"], one["moe"]), []).append(one)
    made = []
    for (gpu, model, engine, moe), runs in sorted(groups.items()):
        of = {
            f"{m}_{side}": round(sum(size(run[f"{m}_error"]) for run in runs) / len(runs), 3)
            for m in METRICS
            for side, size in (("error", abs), ("bias", float))
        }
        made.append(Measured(name, gpu, model, moe, engine, len(runs), **of))
    return made


def as_file(rows: Sequence[Measured]) -> bytes:
    """The table as it is committed."""
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows)
    return (
        f'{{"made_by": "kvcast validate --all --table kvcast/trust/evidence.json", "rows": [\n{lines}\n]}}\n'.encode()
    )
