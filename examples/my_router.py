"""A router of your own: copy this file, rename the class, change the rule.

The rule here: a session's requests go where its number says, so that its history is cached there and no router has to
remember anything. sim/fleet/router.py describes what a router is given; docs/fleet.md has the rules.

    $ python examples/my_router.py
    $ cd examples && kvcast run demo.toml --set cluster.replicas=4 --set cluster.router=my_router:BySession
"""

from __future__ import annotations

from dataclasses import replace

from kvcast import Router, load_scenario, simulate

DEMO = ["cluster.replicas=4", "workload.rate_scale=4", "run.warmup_s=60", "run.duration_s=300"]


class BySession(Router):
    """The replica that a session's number falls on: all of its requests, as long as the fleet stays as it is."""

    def choose(self, request, replicas):
        return replicas[self.session[request] % len(replicas)]


def main() -> None:
    scenario = load_scenario("examples/demo.toml", DEMO)
    for router in ("round-robin", "least-loaded", "session-affinity", BySession):
        cluster = replace(scenario.cluster, router=router)
        s = simulate(replace(scenario, cluster=cluster)).summary
        print(
            f"{cluster.router}: hit rate {s['prefix_hit_rate']:.1%}, TTFT mean {s['mean_ttft_ms']:.0f} ms, p99"
            f" {s['p99_ttft_ms']:.0f} ms"
        )


if __name__ == "__main__":
    main()
