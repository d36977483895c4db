"""What a router is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from sim.fleet.replica import Replica
    from workloads.columns import Workload


class Router:
    """Chooses a replica for each request. One of your own: `cluster.router = "module:Class"` (docs/fleet.md).

    Requests are numbers, rows of the workload. Of a replica a router may read `index`, `load_tokens()`, `running`,
    `waiting`, `kv_usage`, `now_s`, `state` and `takes`."""

    draws = False  #: whether its choices depend on the seed
    reads_caches = False  #: whether it asks replicas what they hold (Engine.has_oracle)
    any_list = False  #: whether `choose` may be given other replicas each time: what it keeps is of single ones

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        """rng: the routing stream of the run's seed, the only randomness to use. workload: the columns of all requests;
        what a front end cannot know (output_tokens, later arrivals) is there too."""
        self.rng = rng
        self.workload = workload
        self.session = workload.column("session_id").data  #: of each request; one without a session is its own

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        """The replica that serves a request, one of `replicas`: those that take any now, in their order, at least
        one."""
        raise NotImplementedError("every router has its own")

    def matches(self, request: int, replicas: Sequence[Replica]) -> list[int]:
        """Tokens of its prompt that each replica holds, as far as is known: of those that look for prefixes."""
        raise NotImplementedError("this router looks for no prefixes")

    def finished(self, request: int, replica: Replica) -> None:
        """A request has sampled its last token there, or its client has given it up."""

    def resized(self, replicas: Sequence[Replica]) -> None:
        """These take requests from now on: one has failed, drained or started. What a failed one had comes to `choose`
        again."""

    def resumed(self, routed: int) -> None:
        """The run begins with caches that so many requests have left behind."""
