"""What happens to a fleet for a while: the [[shock]] tables."""

from __future__ import annotations

from dataclasses import dataclass, fields

from workloads.limits import FROM_SECOND_0, MAX_COUNT, MAX_REPLICAS, RATE, above_0, from_1, key

BURST, CACHE_LOST, REPLICA_DOWN, SLOW, LONG_PROMPTS, ROLLING, SPOT = SHOCKS = (
    "burst",
    "cache-lost",
    "replica-down",
    "slow-replica",
    "long-prompts",
    "rolling-restart",
    "spot-loss",
)


@dataclass(frozen=True)
class Shock:
    """What happens to a fleet for a while."""

    kind: str = key(
        help="burst (size times the load), cache-lost (every replica starts again, empty), replica-down (down, and back"
        " cold), slow-replica (steps take size times as long), long-prompts (a tenant's jobs of size tokens),"
        " rolling-restart (one after the other drains and starts again, cold), or spot-loss (replicas are taken away at"
        " random)",
        choices=SHOCKS,
    )
    at_s: float = key(0.0, "when it begins, seconds after the warm-up", FROM_SECOND_0)
    duration_s: float = key(
        600.0,
        "how long it lasts; of cache-lost how long a start takes; of rolling-restart all replicas together",
        FROM_SECOND_0,
    )
    size: float | None = key(
        None,
        "burst: times the load (2); slow-replica: times the step time (3); long-prompts: tokens of a prompt (100,000)",
        above_0(MAX_COUNT),
    )
    replicas: int = key(
        1, "replica-down and slow-replica: how many, the last ones; all where there are fewer", from_1(MAX_REPLICAS)
    )
    load_s: float = key(
        60.0,
        "replica-down, rolling-restart and spot-loss: seconds from a start until it takes requests, cold; with"
        " [autoscale] its start_s",
        FROM_SECOND_0,
    )
    rate: float = key(0.1, "long-prompts: jobs a second", RATE)
    losses_per_hour: float = key(1.0, "spot-loss: of each replica that is up, a Poisson process", above_0(3600))
    notice_s: float = key(
        30.0,
        "rolling-restart and spot-loss: for so long it drains, then what it has begins again elsewhere; 0: a failure",
        FROM_SECOND_0,
    )
    away_s: float = key(600.0, "spot-loss: seconds from its end until another one in its place starts", FROM_SECOND_0)
    of: str = key("", "burst: the class of the mix that comes more often; empty: all of them")

    def unread(self) -> str:
        """A key that is given and that this kind has not; "" where there is none."""
        own = {
            BURST: ("size", "of"),
            CACHE_LOST: (),
            REPLICA_DOWN: ("replicas", "load_s"),
            SLOW: ("size", "replicas"),
            LONG_PROMPTS: ("size", "rate"),
            ROLLING: ("load_s", "notice_s"),
            SPOT: ("load_s", "losses_per_hour", "notice_s", "away_s"),
        }[self.kind]
        always = ("kind", "at_s", "duration_s")
        others = (f for f in fields(self) if f.name not in (*always, *own))
        return next((f.name for f in others if getattr(self, f.name) != f.default), "")

    @property
    def how_much(self) -> float:
        """Its size, or the default of its kind."""
        return {BURST: 2.0, SLOW: 3.0, LONG_PROMPTS: 100_000.0}.get(self.kind, 0.0) if self.size is None else self.size
