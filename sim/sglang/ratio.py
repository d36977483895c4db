"""SGLang's `new_token_ratio`: the share of the tokens running requests may still generate that admission reserves.

It starts at 0.7 x conservativeness, falls by a fixed step in every decode step to 0.14 of that, and after a retraction
is set to what the requests that stay have used so far. Falls are applied when somebody asks, one by one: the float is
the engine's own."""

from __future__ import annotations

from sim.scenario import EngineParams


class NewTokenRatio:
    def __init__(self, params: EngineParams) -> None:
        self._ratio = min(params.init_new_token_ratio * params.schedule_conservativeness, 1.0)
        self._least = self._ratio * params.min_new_token_ratio_factor
        self._step = (self._ratio - self._least) / params.new_token_ratio_decay_steps
        self._pending = 0

    def decay(self, steps: int) -> None:
        """That many decode steps without a retraction."""
        self._pending += steps

    def set_after_retraction(self, sampled: int, allowed: int, ahead: int) -> None:
        """`sampled` and `allowed` output tokens of those that stay, and tokens looked `ahead` for them."""
        self._ratio = min(1.0, (sampled + ahead) / (allowed + 1))
        self._pending = 0

    def value(self) -> float:
        for _ in range(self._pending):
            if self._ratio == self._least:
                break
            self._ratio = max(self._ratio - self._step, self._least)
        self._pending = 0
        return self._ratio

    def saved(self) -> list[float]:
        return [self._ratio, self._pending]

    def restore(self, kept: list[float]) -> None:
        self._ratio, self._pending = kept[0], int(kept[1])
