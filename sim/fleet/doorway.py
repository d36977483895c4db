"""What a server turns away with HTTP 503 because too much is on it already: vLLM's max_num_queued_reqs and
max_num_queued_tokens.

The one idea: the server counts what it has passed on to its engine and not yet had an answer from, not what the engine
has done with it. So a prompt counts whole until its first token, whatever of it is cached or computed already, and the
request that asks does not count: a limit turns away those that come once it is reached.
"""

from __future__ import annotations

from sim.log import RequestLog
from sim.scenario import EngineParams


class Doorway:
    """Of one replica. Both limits are None where there is none."""

    def __init__(self, params: EngineParams, log: RequestLog) -> None:
        self._most_requests = params.max_num_queued_reqs
        self._most_tokens = params.max_num_queued_tokens
        self._log = log
        self._in_prefill: list[int] = []  # requests let in that had sampled nothing when last looked at

    def refuses(self, on_it: int) -> bool:
        """Whether a request that comes now is turned away; on_it: requests that wait and run."""
        if self._most_requests is not None and on_it >= self._most_requests:
            return True
        if self._most_tokens is None:
            return False
        first_step, prompt = self._log.first_step, self._log.prompt
        self._in_prefill = [request for request in self._in_prefill if first_step[request] < 0]
        return sum(prompt[request] for request in self._in_prefill) >= self._most_tokens

    def left(self, request: int) -> None:
        """One that was let in is gone before its first token."""
        if request in self._in_prefill:
            self._in_prefill.remove(request)

    def let_in(self, request: int) -> None:
        if self._most_tokens is not None:
            self._in_prefill.append(request)
