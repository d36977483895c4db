"""An autoscaler that looks every 15 s how many requests are on each replica: python examples/autoscaler.py"""

from dataclasses import replace

from kvcast import load_scenario, simulate
from workloads.config import Arrival
from workloads.mix import resolve

DEMO = ["cluster.router=least-loaded", "workload.rate_scale=2", "run.warmup_s=0", "run.duration_s=900"]
RUSH = Arrival("diurnal", curve=(1, 2, 6, 12, 6, 2, 1, 1), period_s=900)  # three times the mean rate at its peak


def autoscaler(fleet):
    for spare in fleet.replicas[1:]:
        spare.drain()  # nothing is on them yet: down at once
    while True:
        yield fleet.sleep(15)
        serving, down = fleet.taking, [replica for replica in fleet.replicas if replica.state == "down"]
        on_each = sum(replica.running + replica.waiting for replica in serving) / len(serving)
        if on_each > 12 and down:
            down[0].start(load_s=60)  # billed from now on, though its weights take a minute to load
        elif on_each < 5 and len(serving) > 1:
            serving[-1].drain()


def main() -> None:
    for n, processes in ((2, []), (6, []), (6, [autoscaler])):
        scenario = load_scenario("examples/demo.toml", [*DEMO, f"cluster.replicas={n}"])
        classes = tuple(replace(one, arrival=RUSH) for one in resolve(scenario.workload).class_)
        scenario = replace(scenario, workload=replace(scenario.workload, preset=None, class_=classes))
        s = simulate(scenario, processes=processes).summary
        print(
            f"{s.get('replicas_held', n):.1f} of {n} replicas: ${s['cost']['usd']:.2f}, TTFT mean"
            f" {s['mean_ttft_ms']:,.0f} ms, attainment {s['attainment']:.1%}"
        )


if __name__ == "__main__":
    main()
