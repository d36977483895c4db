"""What happened in a window: every queue, prefill chunk, decode and preemption of the requests in it, simulated again.

Seconds are the run's own: a mix's warm-up comes first (kvcast run says from when to when it is judged). The requests
that were preempted, then those that waited longest for their first token, are kept (--most); --trace writes them for
chrome://tracing or Perfetto.

  kvcast timeline examples/demo.toml --window 600,630
  kvcast timeline examples/demo.toml --window 600,630 --trace trace.json
"""

from __future__ import annotations

import argparse
import json

from kvcast.commands import output, whole_number


def window(value: str) -> tuple[float, float]:
    """The value of --window."""
    try:
        start_s, end_s = (float(part) for part in value.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r}: expected START,END in seconds of the run") from None
    if not 0 <= start_s < end_s <= 1e9:
        raise argparse.ArgumentTypeError(f"{value!r}: expected 0 <= START < END, in seconds of the run")
    return start_s, end_s


def most(value: str) -> int:
    """The value of --most."""
    return whole_number(value, 1, 1000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument(
        "--window", metavar="START,END", type=window, required=True, help="seconds of the run, its warm-up included"
    )
    parser.add_argument("--most", metavar="N", type=most, default=30, help="requests shown at most (default 30)")
    parser.add_argument("--trace", metavar="FILE", type=output, help="write them in Chrome's Trace Event Format")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from kvcast.studies import request_lives

    start_s, end_s = args.window
    scenario = config.load_scenario(args.scenario, args.overrides)
    with config.naming(args.scenario):
        text.progress("loading the workload")
        found = request_lives.exact(api.prepare(scenario), start_s, end_s, args.most)
    text.clear_clock()
    shown = request_lives.from_document(found)
    if args.trace:
        from workloads.files import replace_file

        replace_file(args.trace, (json.dumps(request_lives.chrome_trace(shown, found["shocks"])) + "\n").encode())
    print(text.to_json(found) if args.json else as_text(found, shown))
    return 0


def as_text(found: dict, shown: list) -> str:
    from kvcast import text

    def spent(life: object, what: str) -> str:
        seconds = sum(stop - start for name, start, stop, _ in life.phases if name == what)  # type: ignore[attr-defined]
        return text.seconds(seconds) if seconds else ""

    rows = [
        [
            f"#{life.request}",
            life.class_name,
            str(life.replica),
            text.count(life.prompt_tokens),
            text.count(life.hit_tokens),
            text.count(life.output_tokens),
            f"{life.phases[0][1]:.3f}",
            *(spent(life, what) for what in ("frontend", "queued", "loading", "prefill", "decode", "preempted")),
            str(sum(name == "prefill" and tokens > 0 for name, _, _, tokens in life.phases)),
        ]
        for life in shown
    ]
    start, end = found["window"]
    header = [
        "request",
        "class",
        "replica",
        "prompt",
        "hit",
        "output",
        "arrival (s)",
        "front end",
        "queued",
        "loading",
        "prefill",
        "decode",
        "preempted",
        "chunks",
    ]
    shocks = "".join(
        f"{one['kind']} from {one['start_s']:g} to {one['end_s']:g} s (a [[shock]] of the scenario)\n"
        for one in found["shocks"]
    )
    return (
        f"{shocks}{found['present']:,} requests in the system between {start:g} and {end:g} s, {len(shown)} shown\n"
        + text.table(header, rows, left=2)
    )
