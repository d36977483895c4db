"""The waiting queue that is fair to tenants: a virtual token counter each, the least served tenant first (VTC: Sheng et
al., "Fairness in Serving Large Language Models", OSDI 2024, algorithms 2 and 4). An experiment that vLLM has not.

The one idea: a tenant's counter grows by what it is served (INPUT a prompt token at admission, OUTPUT a generated one),
divided by its weight. A tenant that had nobody waiting begins no lower than those that wait, so that nobody saves up
for later. Two tenants who both wait all the while then differ by at most 2 max(INPUT x the longest prompt, OUTPUT x the
tokens that the KV memory holds), over the smaller weight.

Counters are brought up to date when somebody may be admitted: nobody asks for them otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sim.request import Request
from sim.tenants import INPUT, OUTPUT
from sim.vllm.waiting import FcfsQueue


class FairQueue:
    """Requests wait in their tenant's own queue, first come first served; preempted and skipped ones at its head."""

    def __init__(self, build: Callable[[int], Request], tenant: Sequence[int], weights: Sequence[float]) -> None:
        """tenant: of each request, by its id; weights: of each tenant."""
        self.counters = [0.0] * len(weights)
        self._build, self._tenant, self._weights = build, tenant, weights
        self._queues: dict[int, FcfsQueue] = {}  # of tenants with anybody waiting
        self._returned: list[int] = []  # of them, those that had nobody, since counters were last brought up to date
        self._left: int | None = None  # the last tenant whose queue became empty
        self._counted: dict[Request, int] = {}  # outputs of admitted requests that their tenant's counter has

    # -- counters ----------------------------------------------------------------------------------------------------
    def bring_up_to_date(self, running: Iterable[Request], steps: int) -> None:
        """Count what the running requests have generated after so many steps, then lift who has come back."""
        for r in running:
            self.served(r, r.output if r.finished else steps - r.base - r.prompt + 1 if r.decoding else r.generated)
        for tenant in self._returned:
            self._lift(tenant)
        self._returned.clear()

    def _lift(self, tenant: int) -> None:
        pending = self._returned[self._returned.index(tenant) :]
        there = [self.counters[other] for other in self._queues if other not in pending]
        least = min(there) if there else 0.0 if self._left is None else self.counters[self._left]
        self.counters[tenant] = max(self.counters[tenant], least)

    def admitted(self, r: Request) -> None:
        """It has a place in the batch: its prompt counts, once however often it is preempted."""
        if r not in self._counted:
            self._counted[r] = r.generated
            self._add(r, INPUT * r.prompt)

    def served(self, r: Request, outputs: int) -> None:
        """It has generated so many tokens by now."""
        before = self._counted.get(r, outputs)
        if outputs > before:
            self._counted[r] = outputs
            self._add(r, OUTPUT * (outputs - before))

    def left(self, r: Request, outputs: int) -> None:
        """It has ended with so many tokens."""
        self.served(r, outputs)
        self._counted.pop(r, None)

    def _add(self, r: Request, service: float) -> None:
        tenant = self._tenant[r.id]
        self.counters[tenant] += service / self._weights[tenant]

    # -- queue -------------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, request: int) -> bool:
        """Queue a new arrival; whoever it is may be the next."""
        tenant = self._tenant[request]
        if tenant not in self._queues:
            self._returned.append(tenant)
        self._own(tenant).add(request)
        return True

    def _own(self, tenant: int) -> FcfsQueue:
        return self._queues.setdefault(tenant, FcfsQueue(self._build))

    def head(self) -> Request:
        """The first of the least served tenant; of equals of the one whose queue is the oldest."""
        return self._queues[min(self._queues, key=self.counters.__getitem__)].head()

    def pop(self) -> Request:
        r = self.head()
        tenant = self._tenant[r.id]
        self._queues[tenant].pop()
        self._forget_if_empty(tenant)
        return r

    def _forget_if_empty(self, tenant: int) -> None:
        if not len(self._queues[tenant]):
            del self._queues[tenant]
            self._left = tenant
            if tenant in self._returned:
                self._returned.remove(tenant)

    def first(self, n: int) -> list[Request]:
        """n requests, tenant by tenant, the least served first."""
        found: list[Request] = []
        for tenant in sorted(self._queues, key=self.counters.__getitem__):
            found += self._queues[tenant].first(n - len(found))
        return found

    def ids(self) -> list[int]:
        """Everybody in it, tenant by tenant."""
        return [request for queue in self._queues.values() for request in queue.ids()]

    def put_back(self, request: Request) -> None:
        """A preempted or skipped request goes to its tenant's front, which has not been away."""
        self._own(self._tenant[request.id]).put_back(request)

    def remove(self, request: Request) -> None:
        """It has finished after all: its last output was in flight when it was preempted."""
        tenant = self._tenant[request.id]
        self._queues[tenant].remove(request)
        self._forget_if_empty(tenant)

    def cancel(self, request: int) -> Request | None:
        """A request leaves, by its id; None when it is not here."""
        tenant = self._tenant[request]
        found = self._queues[tenant].cancel(request) if tenant in self._queues else None
        if found is not None:
            self._forget_if_empty(tenant)
        return found
