"""SGLang's running batch: who has its prompt behind it, in the batch's order.

The one idea: its requests advance together, one token in every step that holds decodes, so sim.decodes keeps them as
aggregates over the count of those steps. Who has sampled its last output decodes no more (`ended`), and stays a member
until the engine has read that.

With the overlap schedule a plan knows the outputs of all steps but the one in flight: `unread` and `fresh` say whose
newest output it has not seen."""

from __future__ import annotations

from collections.abc import Iterator

from sim.decodes import Decodes
from sim.sglang.node import RadixRequest


class RunningBatch:
    """Members by place; `merge` and `remove` come in pairs."""

    def __init__(self, block_size: int, clip: int) -> None:
        self.members: dict[RadixRequest, None] = {}  # in order
        self.decodes: Decodes[RadixRequest] = Decodes(block_size)  # of them, those that go on
        self.ended: list[RadixRequest] = []  # and those that do not
        self.steps = 0  # in which they decoded
        self.unread = False  # the newest output of every member
        self.fresh: set[RadixRequest] = set()  # members by the present plan; where theirs is unread if not every one's
        self._clip = clip  # most tokens to come of one request that admission looks at
        self._clipped = 0  # members that asked for more
        self._sum_longest = 0  # of longest_step over the members
        self._last = self._first = 0  # places given out, behind and in front

    # -- members ----------------------------------------------------------------------------------------------------
    def merge(self, requests: list[RadixRequest], in_front: bool) -> None:
        """Those prefilled by the step before become members."""
        if in_front:
            self._first -= len(requests)
            self.members = dict.fromkeys(requests) | self.members
        else:
            self.members |= dict.fromkeys(requests)
        for place, r in enumerate(requests, self._first if in_front else self._last):
            r.order = place
            r.base = self.steps - r.computed
            self._sum_longest += r.longest_step
            self._clipped += r.asked > self._clip
            if r.finished:
                self.ended.append(r)
            else:
                r.decoding = True
                self.decodes.join(r, r.base)
        if not in_front:
            self._last += len(requests)

    def remove(self, r: RadixRequest) -> None:
        """r is a member no more."""
        del self.members[r]
        self._sum_longest -= r.longest_step
        self._clipped -= r.asked > self._clip
        if r.decoding:
            self._stop(r)
        else:
            self.ended.remove(r)

    def leave_out(self) -> None:
        """Who has ended is a member no more."""
        for r in list(self.ended):
            self.remove(r)

    def rearrange(self, order: list[RadixRequest]) -> None:
        """The batch is what is left of it, in this order."""
        self.members = dict.fromkeys(order)
        for place, r in enumerate(order, self._last):
            r.order = place
        self._last += len(order)

    # -- steps ------------------------------------------------------------------------------------------------------
    def pages(self) -> int:
        """Pages the next token of everybody needs."""
        return self.decodes.blocks_at(self.steps)

    def end_step(self) -> list[RadixRequest]:
        """A step of decodes is over; who has sampled its last output in it, in order."""
        ended = self.decodes.finishing.pop(self.steps, [])
        if ended:
            ended.sort(key=lambda r: r.order)
            for r in ended:
                self._stop(r)
            self.ended += ended
        return ended

    def _stop(self, r: RadixRequest) -> None:
        self.decodes.leave(r)
        r.computed = self.computed(r)
        r.decoding = False

    # -- what a plan knows of them ----------------------------------------------------------------------------------
    def computed(self, r: RadixRequest) -> int:
        """Tokens of any running request whose KV exists."""
        return self.steps - r.base if r.decoding else r.computed

    def unread_outputs(self, r: RadixRequest) -> int:
        return int(self.unread or r in self.fresh)

    def outputs(self, r: RadixRequest) -> int:
        """Outputs of a member so far that have been read."""
        return self.steps - r.base - r.prompt + 1 - self.unread_outputs(r)

    def each_to_come(self) -> Iterator[int]:
        """Tokens that each may still generate, as far as admission looks."""
        unread, fresh, steps, clip = self.unread, self.fresh, self.steps, self._clip
        return (min(r.longest_step - steps + (unread or r in fresh), clip) for r in self.members)

    def to_come(self) -> int:
        """Their sum."""
        if self._clipped:
            return sum(self.each_to_come())
        members = len(self.members)
        return self._sum_longest - members * self.steps + (members if self.unread else len(self.fresh))
