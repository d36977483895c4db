"""Step times with speculative decoding: the model verifies every draft in one pass, and the drafter makes the next.

The one idea: n decodes that verify k drafted tokens each are n sequences of k + 1 rows. Dense operators and the LM head
work on n (k + 1) rows; attention reads each context once, as in a plain decode of n (CurveStepTime.verify). Drafting
adds, of a step with n decodes, p prompt tokens and s sequences that sample:

    ngram       nothing
    eagle, mtp  k passes of one layer like the model's mean layer, each with the LM head: the first over all n (k + 1) +
                p tokens of the step, the others over the s sequences
    draft       the same k passes of the draft model, priced by its own operators
    draft_ms    instead of any of these, so long in every step in which anybody samples

A pass of a layer has no host time of its own; one of a draft model has its profile's. Rows of one request beyond the
first add no time to attention: right as long as reading the context is what it takes (not for latent attention on few
GPUs, whose queries are many)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from calibrate.step import MEASURED, StepTime
from calibrate.steptime import Pass

Chunks = Sequence[tuple[int, int]]


class Verifier(StepTime, Protocol):
    """A source that can price a step whose decodes have several rows."""

    def verify(
        self, chunks: Chunks, n_decode: int, sum_context: int, max_context: int, n_sampled: int, drafted: int
    ) -> tuple[Pass, int]: ...


class Drafter(Protocol):
    """What makes the drafts."""

    def first(
        self, chunks: Chunks, n: int, sum_context: int, max_context: int, sampling: int, drafted: int
    ) -> tuple[float, int]:
        """Seconds and coverage of its pass over all tokens of the step, and of the first drafted token."""
        ...

    def next(self, n: int, sum_context: int, max_context: int) -> tuple[float, int]:
        """The same of a pass for one more token of n sequences."""
        ...


class Layer:
    """EAGLE, MTP: one layer like the model's mean one, and its LM head."""

    def __init__(self, model: Verifier, layers: int) -> None:
        self._model = model
        self._layers = layers

    def first(
        self, chunks: Chunks, n: int, sum_context: int, max_context: int, sampling: int, drafted: int
    ) -> tuple[float, int]:
        whole, cover = self._model.verify(chunks, n, sum_context, max_context, sampling, drafted)
        return (whole.dense_s + whole.attention_s) / self._layers + whole.sampling_s, cover

    def next(self, n: int, sum_context: int, max_context: int) -> tuple[float, int]:
        return self.first((), n, sum_context, max_context, n, 0)


class Model:
    """A smaller model."""

    def __init__(self, model: Verifier) -> None:
        self._model = model

    def first(
        self, chunks: Chunks, n: int, sum_context: int, max_context: int, sampling: int, drafted: int
    ) -> tuple[float, int]:
        whole, cover = self._model.verify(chunks, n, sum_context, max_context, sampling, drafted)
        return sum(whole), cover

    def next(self, n: int, sum_context: int, max_context: int) -> tuple[float, int]:
        return self._model.step((), n, sum_context, max_context, n)


class SpeculativeStepTime:
    """StepTime of a scheduler that counts decodes in rows (sim.vllm.speculative): n_decode is n (k + 1)."""

    def __init__(
        self, model: Verifier, tokens: int, drafter: Drafter | None = None, draft_s: float | None = None
    ) -> None:
        """tokens: k. drafter: None drafts at no cost. draft_s: seconds a step drafts, instead."""
        self._model = model
        self._tokens = tokens
        self._drafter = drafter if draft_s is None else None
        self._draft_s = draft_s or 0.0

    def step(
        self, chunks: Chunks, n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code of a step; sum_context and max_context are of the sequences, each counted once."""
        rows, n = n_decode, -(-n_decode // (1 + self._tokens))  # fewer rows than these only where the budget ends
        whole, cover = self._model.verify(chunks, n, sum_context, max_context, n_sampled, rows - n)
        draft_s, draft_cover = self._draft(chunks, n, sum_context, max_context, n + n_sampled - rows, rows - n)
        return sum(whole) + draft_s, max(cover, draft_cover)

    def _draft(
        self, chunks: Chunks, n: int, sum_context: int, max_context: int, sampling: int, drafted: int
    ) -> tuple[float, int]:
        if self._drafter is None:
            return (self._draft_s if sampling else 0.0), MEASURED
        seconds, cover = self._drafter.first(chunks, n, sum_context, max_context, sampling, drafted)
        for i in range(1, self._tokens if sampling else 1):
            more, covered = self._drafter.next(sampling, sum_context + i * sampling, max_context + i)
            seconds, cover = seconds + more, max(cover, covered)
        return seconds, cover

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps one by one: no schedule has two alike."""
        n = -(-n_decode // (1 + self._tokens))
        steps = [self.step((), n_decode, sum_context + i * n, max_context + i, n_decode) for i in range(k)]
        return np.array([s for s, _ in steps]), np.array([c for _, c in steps], np.int8)
