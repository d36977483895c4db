"""A fleet whose size follows a schedule or metrics: the [autoscale] section."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.scaling import METRICS, MOST_PERCENT, RULES, Rule
from workloads.limits import FROM_SECOND_0, GB_PER_S, MAX_REPLICAS, MAX_SECONDS, Limit, above_0, from_0, from_1, key

SCALING_S = Limit(0.1, 86400, "0.1 to 86,400")
CYCLE_S = Limit(1, MAX_SECONDS, f"1 to {MAX_SECONDS:g}")
NEVER_SCALES, SCHEDULE = "none", "schedule"


@dataclass(frozen=True)
class AutoscaleConfig:
    rule: str = key(
        NEVER_SCALES,
        "none (all replicas, always), schedule (a table of times and replicas), or what scales by metrics, with the"
        " defaults of: hpa (Kubernetes; give it a target), llm-d, llm-d-tokens, production-stack, ray-serve, knative,"
        " slo (TTFT; its target is [slo] ttft_s)",
        choices=(NEVER_SCALES, SCHEDULE, *RULES),
    )
    metric: str | None = key(
        None,
        "what is held against the target, a replica: requests (running and waiting), running, waiting, kv (share of KV"
        " memory in use), tokens (llm-d's token-aware rule), ttft (seconds); default: the rule's",
        choices=METRICS,
    )
    target: float | None = key(None, "its target; default: the rule's", above_0(1e9))
    min_replicas: int = key(1, "fewest replicas; the most are cluster.replicas", from_1(MAX_REPLICAS))
    period_s: float | None = key(None, "seconds between two decisions (15)", SCALING_S)
    scrape_s: float | None = key(None, "seconds between two looks at the metrics (15)", SCALING_S)
    delay_s: float = key(0.0, "how old metrics are when a decision sees them, seconds", FROM_SECOND_0)
    lookback_s: float | None = key(None, "metrics are means over as long; 0: the last look (0)", FROM_SECOND_0)
    tolerance: float | None = key(
        None, "nothing changes while metric / target is so close to 1 (0.1)", Limit(0, 1, "0 to 1")
    )
    up_wait_s: float | None = key(None, "up to the lowest number asked for in so many seconds (0)", FROM_SECOND_0)
    down_wait_s: float | None = key(
        None, "down to the highest number asked for in so many seconds (300)", FROM_SECOND_0
    )
    up_percent: float | None = key(
        None, "at most so many per cent more a decision, or up_replicas (100)", from_0(MOST_PERCENT)
    )
    up_replicas: int | None = key(None, "at most so many more a decision, or up_percent (4)", from_1(MAX_REPLICAS))
    down_replicas: int | None = key(None, "at most so many fewer, and then none for down_wait_s", from_1(MAX_REPLICAS))
    prefill_tokens_per_s: float | None = key(
        None, "metric tokens: prompt tokens a second of one replica, computed alone", above_0(1e9)
    )
    start_s: float | None = key(
        None,
        "seconds from the start of a replica until it takes requests; default: boot_s and its weights at load_gb_per_s",
        FROM_SECOND_0,
    )
    boot_s: float = key(
        146.0,
        "of a start: process, imports, initialisation and graphs (146: Qwen3-32B, vLLM, one H100; without image pull"
        " and node)",
        FROM_SECOND_0,
    )
    load_gb_per_s: float = key(
        0.5, "of a start: GB (1e9 bytes) of weights a second (0.5: the same measurement, 65.5 GB in 130 s)", GB_PER_S
    )
    grace_s: float | None = key(
        None,
        "a replica that is too much drains for at most so long, then its requests begin again elsewhere; default: until"
        " they are served",
        FROM_SECOND_0,
    )
    times_s: tuple[float, ...] = key(
        (),
        "schedule: when a number begins, seconds of the clock that the mix follows, else after the warm-up; ascending"
        " from 0",
    )
    replicas: tuple[int, ...] = key((), "schedule: the number from each of times_s on")
    cycle_s: float = key(86400.0, "schedule: after how long it repeats", CYCLE_S)

    @property
    def scales(self) -> bool:
        return self.rule != NEVER_SCALES

    def as_rule(self) -> Rule:
        """The named rule with what is set of it."""
        given = {name: value for name in Rule._fields if (value := getattr(self, name, None)) is not None}
        return RULES[self.rule]._replace(**given)

    def filled(self) -> AutoscaleConfig:
        """With the named rule's value of every key that is left open."""
        if self.rule not in RULES:
            return self
        own = {name: value for name, value in self.as_rule()._asdict().items() if hasattr(self, name)}
        return replace(self, **own)
