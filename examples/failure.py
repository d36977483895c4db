"""A replica of two fails at 120 s for two minutes: what its users, and those of the other one, notice.

$ python examples/failure.py
"""

from __future__ import annotations

import numpy as np

from kvcast import load_scenario, simulate

DEMO = ["cluster.router=session-affinity", "workload.rate_scale=3", "run.warmup_s=0", "run.duration_s=480"]


def failure(fleet):
    yield fleet.sleep(120)
    fleet.replicas[0].fail()  # its requests begin again on the other one
    yield fleet.sleep(90)
    fleet.replicas[0].start(load_s=30)  # the weights take 30 s to load; its cache is empty


def main() -> None:
    for name, processes in (("nothing fails", []), ("one of two fails", [failure])):
        report = simulate(load_scenario("examples/demo.toml", DEMO), processes=processes)
        s, requests = report.summary, report.requests
        print(
            f"{name}: {s['completed']} of {s['arrived']} completed, {s.get('retries', 0)} had to begin again,"
            f" attainment {s['attainment']:.1%}, {s['gpu_hours'] * 60:.0f} GPU-minutes"
        )
        for start_s in range(0, 480, 120):
            here = (requests["arrival_s"] >= start_s) & (requests["arrival_s"] < start_s + 120)
            waited = np.percentile(requests["ttft_s"][here], 95) * 1e3
            hit = requests["hit_tokens"][here].sum() / requests["prompt_tokens"][here].sum()
            print(f"  {start_s:3} to {start_s + 120} s: 95 % of TTFTs within {waited:5.0f} ms, {hit:.0%} hit")


if __name__ == "__main__":
    main()
