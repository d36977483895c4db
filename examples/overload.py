"""An overload and what is done about it: clients that give up and try again, limits, and who is refused first.

    python examples/overload.py

The demo's mix on one H200, twice its load for ten minutes; every row is the same arrivals.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvcast import load_scenario, simulate
from sim.scenario import ClientConfig, Shock

DEMO = load_scenario(Path(__file__).parent / "demo.toml")
BASE = replace(
    DEMO,
    cluster=replace(DEMO.cluster, replicas=1),
    run=replace(DEMO.run, warmup_s=600.0, duration_s=600.0 + 2400.0),
    shock=(Shock("burst", at_s=300.0, duration_s=600.0, size=2.0),),
)
PATIENT = ClientConfig()
GIVES_UP = ClientConfig(timeout_s=60.0, first_token_timeout_s=10.0)
AT_ONCE = replace(GIVES_UP, retries=5, backoff_s=0.0)
SOON = replace(GIVES_UP, retries=5)  # pauses of 0.5 to 8 s
LATE = replace(GIVES_UP, retries=5, backoff_s=30.0, max_backoff_s=300.0)
ROWS = (
    ("clients wait", PATIENT, {}, {}),
    ("they give up (first token 10 s, answer 60 s)", GIVES_UP, {}, {}),
    ("and try again, 5 times at once", AT_ONCE, {}, {}),
    ("and try again, 5 times after 0.5 to 8 s", SOON, {}, {}),
    ("and try again, 5 times after 30 to 300 s", LATE, {}, {}),
    ("they wait; max_num_queued_reqs = 64", PATIENT, {"max_num_queued_reqs": 64}, {}),
    ("they try again after 0.5 to 8 s; max_num_queued_reqs = 64", SOON, {"max_num_queued_reqs": 64}, {}),
    ("they wait; shed_over = 4", PATIENT, {}, {"shed_over": 4}),
    ("they wait; shed_over = 4, sessions_first", PATIENT, {}, {"shed_over": 4, "sessions_first": True}),
)


def main() -> None:
    print("| | attained | completed | attempts / request | wasted | p95 TTFT of the served, s | back after, min |")
    print("|---|---|---|---|---|---|---|")
    for name, client, engine, cluster in ROWS:
        s = simulate(
            replace(
                BASE, client=client, engine=replace(BASE.engine, **engine), cluster=replace(BASE.cluster, **cluster)
            )
        )
        told, ttft = s.summary, s.latency["ttft"]["p95"]
        clients, back_s = told.get("clients"), told["shocks"][0]["recovered_s"]
        attempts, wasted = (
            (1.0, 0.0) if clients is None else (clients["attempts"] / told["arrived"], clients["wasted_share"])
        )
        back = "never" if back_s is None else f"{back_s / 60:.0f}"
        print(
            f"| {name} | {told['attainment']:.1%} | {told['completed'] / told['arrived']:.1%} | {attempts:.2f} |"
            f" {wasted:.1%} | {'-' if ttft is None else format(ttft / 1e3, '.2f')} | {back} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
