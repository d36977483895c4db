"""A replica's API server: what a request waits for before its engine sees it, and a token after the engine has made it.

The one idea: it is a queue of its own, first come first served. A request takes a turn of 1 / rate seconds of one of
`workers` servers, and reaches the engine a constant and so much a prompt token after its turn has begun; every step's
output tokens take their seconds of all servers. So a burst reaches the engine no faster than the rate, whatever the
GPU, and streams that emit faster than the servers can send delay each other and every arrival.

    >>> reaches_s = front.receives(now_s, prompt_tokens)
"""

from __future__ import annotations

from sim.scenario import EngineParams


class FrontEnd:
    """The servers of one replica. Calls come in order of time."""

    def __init__(self, params: EngineParams) -> None:
        self._constant_s = params.frontend_s
        self._prompt_token_s = params.frontend_us_per_prompt_token / 1e6
        rate = params.frontend_requests_per_s
        self._turn_s = 1 / rate if rate is not None else 0.0
        self._free_s = [0.0] * params.frontend_workers  # when each server is idle
        self._output_token_s = params.frontend_us_per_output_token / 1e6 / params.frontend_workers
        self.delays_outputs = self._output_token_s > 0

    @classmethod
    def of(cls, params: EngineParams) -> FrontEnd | None:
        """The one that these keys describe; None when none of them takes any time."""
        some = (
            params.frontend_s,
            params.frontend_us_per_prompt_token,
            params.frontend_us_per_output_token,
            params.frontend_requests_per_s,
        )
        return cls(params) if any(some) else None

    def receives(self, now_s: float, prompt_tokens: int) -> float:
        """A request has come (mutates): when it reaches the engine."""
        free_s = self._free_s
        first = min(range(len(free_s)), key=free_s.__getitem__) if len(free_s) > 1 else 0
        begins_s = max(now_s, free_s[first])
        free_s[first] = begins_s + self._turn_s
        return begins_s + (self._constant_s + prompt_tokens * self._prompt_token_s)

    def sends(self, end_s: float, tokens: int) -> float:
        """A step has ended with so many output tokens, dealt evenly to the servers (mutates): when the last of them
        leaves."""
        share_s, free_s = tokens * self._output_token_s, self._free_s
        for server, until_s in enumerate(free_s):
            free_s[server] = max(end_s, until_s) + share_s
        return max(free_s)


def alone_s(params: EngineParams, prompt_tokens: float) -> tuple[float, float]:
    """Seconds in front of the engine and behind it, of a request, or its token, that meets nobody else."""
    before_s = params.frontend_s + prompt_tokens * (params.frontend_us_per_prompt_token / 1e6)
    return before_s, params.frontend_us_per_output_token / 1e6 / params.frontend_workers
