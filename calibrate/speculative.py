"""Step times with speculative decoding: the model verifies every draft in one pass, and the drafter makes the next.

The one idea: n decodes that verify k drafted tokens each are n sequences of k + 1 rows. Dense operators and the LM head
work on n (k + 1) rows; attention reads each context once, as in a plain decode of n (CurveStepTime.step, `drafted`).
Drafting adds, of a step with n decodes, p prompt tokens and s sequences that sample:

    ngram       nothing
    eagle, mtp  k passes of one layer like the model's mean layer, each with the LM head: the first over all n (k + 1) +
                p tokens of the step, the others over the s sequences
    draft       the same k passes of the draft model, priced by its own operators
    draft_ms    instead of any of these, so long in every step in which anybody samples

A drafting pass has no host time of its own, it is a part of the step; that of a draft model has what its profile says
every step takes. Rows of one request beyond the
first add no time to attention: right as long as reading the context is what it takes (not for latent attention on few
GPUs, whose queries are many).

    >>> SpeculativeStepTime(load_step_time("h200-llama-3.1-8b-aic"), 3).step([], 32 * 4, 65536, 4096, 32 * 4)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

Chunks = Sequence[tuple[int, int]]


class Verifier(Protocol):
    """A source that can price a step whose decodes have several rows: calibrate.steptime.CurveStepTime."""

    def step(
        self, chunks: Chunks, n_decode: int, sum_context: int, max_context: int, n_sampled: int, drafted: int = 0
    ) -> tuple[float, int]: ...

    def parts(
        self, chunks: Chunks, n_decode: int, sum_context: int, max_context: int, n_sampled: int, drafted: int = 0
    ) -> dict[str, float]: ...


class Layer:
    """What EAGLE and MTP draft with: one layer like the model's mean one, and its LM head. A pass is priced as the
    model's `step`."""

    def __init__(self, model: Verifier, layers: int) -> None:
        self._model = model
        self._layers = layers

    def step(
        self, chunks: Chunks, n_decode: int, sum_context: int, max_context: int, n_sampled: int, drafted: int = 0
    ) -> tuple[float, int]:
        """Seconds and coverage code of one pass."""
        shape = (chunks, n_decode, sum_context, max_context, n_sampled, drafted)
        parts = self._model.parts(*shape)
        seconds = (parts["dense"] + parts["attention"]) / self._layers + parts["sampling"]
        return seconds, self._model.step(*shape)[1]


class SpeculativeStepTime:
    """StepTime of a scheduler that counts decodes in rows (sim.vllm.speculative): n_decode is n (k + 1)."""

    def __init__(
        self, model: Verifier, tokens: int, drafter: Layer | Verifier | None = None, draft_s: float | None = None
    ) -> None:
        """tokens: k. drafter: None drafts at no cost. draft_s: seconds that a step drafts, instead of the drafter's."""
        self._model = model
        self._tokens = tokens
        self._drafter = drafter if draft_s is None else None
        self._draft_s = draft_s or 0.0

    def step(
        self, chunks: Chunks, n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code of a step; sum_context and max_context are of the sequences, each counted once."""
        rows, n = n_decode, -(-n_decode // (1 + self._tokens))  # fewer rows than these only where the budget ends
        seconds, cover = self._model.step(chunks, n, sum_context, max_context, n_sampled, rows - n)
        sampling = n + n_sampled - rows  # sequences
        if self._drafter is None:
            return seconds + (self._draft_s if sampling else 0.0), cover
        draft_s, covered = self._drafter.step(chunks, n, sum_context, max_context, sampling, rows - n)
        seconds, cover = seconds + draft_s, max(cover, covered)
        for i in range(1, self._tokens if sampling else 1):
            contexts = (sum_context + i * sampling, max(max_context + i, 1))
            draft_s, covered = self._drafter.step((), sampling, *contexts, sampling)
            seconds, cover = seconds + draft_s, max(cover, covered)
        return seconds, cover

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Step by step: no schedule has two alike."""
        n = -(-n_decode // (1 + self._tokens))
        steps = [self.step((), n_decode, sum_context + i * n, max_context + i, n_decode) for i in range(k)]
        return np.array([s for s, _ in steps]), np.array([c for _, c in steps], np.int8)
