"""Tiny worlds for tests: step times with known formulas and random workloads on a prefix tree."""

from __future__ import annotations

import numpy as np

from workloads.columns import PrefixTree, Workload


class UnitSteps:
    """Every step takes one second: a step's start time is its number."""

    def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
        return 1.0, 0

    def decode_stretch(self, n_decode, sum_context, max_context, k):
        return np.ones(k), np.zeros(k, np.int8)


class LinearSteps:
    """seconds = overhead + per sequence + per context token + longest context + per new token (dearer when deep)."""

    def __init__(
        self,
        overhead_s: float = 0.004,
        decode_s: float = 4e-5,
        context_s: float = 2.9e-8,
        longest_s: float = 1e-9,
        prefill_s: float = 2e-5,
        deep_s: float = 1e-10,
    ):
        self.terms = (overhead_s, decode_s, context_s, longest_s, prefill_s, deep_s)

    def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
        overhead, decode, context, longest, prefill, deep = self.terms
        seconds = overhead + decode * n_decode + context * sum_context + longest * max_context
        for new, cached in chunks:
            seconds += new * (prefill + deep * cached)
        return seconds, 1 if sum_context > 5000 else 0

    def decode_stretch(self, n_decode, sum_context, max_context, k):
        overhead, decode, context, longest, _, _ = self.terms
        i = np.arange(k)
        contexts = sum_context + i * n_decode
        return overhead + decode * n_decode + context * contexts + longest * (max_context + i), (
            contexts > 5000
        ).astype(np.int8)


def plain(arrival_s, prompt, output, **columns) -> Workload:
    """Requests that share nothing."""
    root = PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16))
    return Workload(
        root,
        np.asarray(arrival_s, float),
        np.asarray(prompt, np.int64),
        np.asarray(output, np.int64),
        np.zeros(len(prompt), np.int32),
        **columns,
    )


def random_workload(seed: int, n: int = 60, closed: bool = False, longest: int = 60, rate: float = 20.0) -> Workload:
    """Random tree, requests whose paths end anywhere in it, some with shared answers; half of them chained when
    `closed`."""
    rng = np.random.default_rng(seed)
    parent, end = [-1, -1], [0, 0]
    for i in range(2, 40):
        p = int(rng.integers(max(0, i - 8), i))
        parent.append(p)
        end.append(end[p] + int(rng.integers(1, longest // 2)))
    leaf = rng.integers(0, 40, n)
    leaf_end = np.array(end)[leaf]
    inside = rng.random(n) < 0.3  # the answer is part of the shared path
    shared_output = np.minimum(rng.integers(1, 20, n), np.maximum(leaf_end - 1, 1))
    prompt = np.where(inside & (leaf_end > 1), leaf_end - shared_output, leaf_end + rng.integers(1, longest, n))
    output = np.where(inside & (leaf_end > 1), shared_output + rng.integers(0, 3, n), rng.integers(1, 25, n))
    arrival_s = np.cumsum(rng.exponential(1 / rate, n)) * (rng.random(n) < 0.8)
    arrival_s = np.sort(np.round(arrival_s, 2))
    after, delay = np.full(n, -1, np.int64), np.zeros(n)
    session = np.arange(n)
    if closed:
        for i in range(1, n):
            if rng.random() < 0.5:
                after[i] = int(rng.integers(max(0, i - 10), i))
                session[i] = session[after[i]] if rng.random() < 0.8 else i
                delay[i] = float(np.round(rng.exponential(0.05), 3))
        arrival_s = np.where(after >= 0, np.nan, arrival_s)
    tree = PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(40, np.int16))
    workload = Workload(
        tree,
        arrival_s,
        prompt.astype(np.int64),
        output.astype(np.int64),
        leaf.astype(np.int32),
        priority=rng.integers(0, 3, n).astype(np.int32),
        session_id=session,
        after=after,
        delay_s=delay,
    )
    workload.check()
    return workload
