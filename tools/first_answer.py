"""Make kvcast/jobs/example.json: the answer that the dashboard's first page opens with.

  python -m tools.first_answer --out runs/first-answer     minutes of CPU; stopped and given again, it goes on
  python -m tools.first_answer --check                     does the kept answer still hold? one short run
  python -m tools.first_answer --advice                    do the smaller fleets that it advises? two minutes

To be run again when tests/test_first_answer.py says that the code's numbers have moved.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import kvcast
from kvcast import api, ask, text
from kvcast.asking import words
from kvcast.asking.question import question_of
from kvcast.commands.ask import jobs
from kvcast.config import override, scenario_from_doc
from kvcast.jobs import example
from kvcast.pages import ask_words
from kvcast.planner.candidates import fleet_of
from kvcast.planner.document import scenario_of
from kvcast.planner.recovery import SEEDS, with_burst
from kvcast.planner.trials import Trial, Trials
from kvcast.store.simulations import Lab
from sim.scenario import ClusterConfig

PIECE = ("run.warmup_s=300", "run.duration_s=900", "workload.duration_s=900", "workload.skip_ended_s=0")
"""Of the answer's run: long enough for hundreds of requests, short enough for a test."""
MEASURED = ("completed", "attainment", "p99_ttft_ms", "p99_tpot_ms", "prefix_hit_rate", "output_throughput")


def piece_of(card: dict[str, Any]) -> dict[str, Any]:
    """A short run of one replica of the answer, at that replica's load."""
    n = card["answer"]["replicas"]
    found = scenario_from_doc(override(tomllib.loads(card["plan"]["scenario"]), PIECE))
    workload = replace(found.workload, rate=None if found.workload.rate is None else found.workload.rate / n)
    one = replace(found, workload=workload, cluster=ClusterConfig(replicas=1, router=found.cluster.router))
    document = api.as_document(api.run(api.prepare(one)))
    return {key: document[key] for key in MEASURED}


def made(out: Path) -> dict[str, Any]:
    given = ask_words.argv(example.QUESTION)
    question = question_of(ask_words.parsed(example.QUESTION))
    card = ask(question, out=out, jobs=jobs(), tell=lambda document: print(words.told(document), flush=True))
    about = {"version": kvcast.__version__, "on": datetime.date.today().isoformat(), "words": list(given)}
    return {**_without_folders(card), example.PREPARED: {**about, "piece": piece_of(card)}}


def settle_advice(card: dict[str, Any]) -> None:
    """Every fleet that its advice needs and one replica less, judged as the answer was: bursts and independent runs."""
    seeds = card["plan"]["seeds"]
    with tempfile.TemporaryDirectory() as folder, Trials(Lab(Path(folder)), seeds, 0.95, jobs()) as trials:
        for row in card["plan"]["advice"]:
            n = row["after"]["replicas"]
            for replicas in (n - 1, n):
                fleet = fleet_of(scenario_of(row["scenario"]), replicas)
                back = [trials.back_s(with_burst(fleet), seed, seed == seeds[SEEDS - 1]) for seed in seeds[:SEEDS]]
                one = trials.settle(Trial(fleet))
                share = "" if one.attainment is None else f" {text.percent(one.attainment.mean)}"
                told = ", ".join("not back" if at is None else f"back after {text.seconds(at)}" for at in back)
                print(f"{row['change']}, {replicas} replicas: {one.verdict}{share}; {told}", flush=True)


def _without_folders(value: Any, key: str = "") -> Any:
    """The same document without the runs' folders, which nobody else has."""
    if key == "run":
        return None
    if isinstance(value, dict):
        return {name: _without_folders(inner, name) for name, inner in value.items()}
    return [_without_folders(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/first-answer"))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--advice", action="store_true")
    args = parser.parse_args()
    kept = example.kept()
    if args.advice:
        if kept is None:
            raise SystemExit("first_answer: there is no answer yet: make it first")
        return settle_advice(kept)
    if args.check:
        now = None if kept is None else text.plain(piece_of(kept))
        same = kept is not None and now == kept[example.PREPARED]["piece"]
        raise SystemExit(0 if same else f"first_answer: {json.dumps(now)}: make it again")
    example.FILE.write_text(json.dumps(text.plain(made(args.out)), indent=1) + "\n", encoding="utf-8")
    print(f"{example.FILE.name}: {example.FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
