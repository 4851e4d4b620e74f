"""What a forward of the target costs by the number of nodes, measured once per engine."""

from __future__ import annotations

import statistics
import time

import torch

from eagle_chat.core import masks
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.policies import expected_tokens
from eagle_chat.core.target import Target

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 60)
REPEATS = 5
CONTEXT = 128
"""Tokens before the nodes, as in a short chat."""


class NodeCosts:
    """Seconds per target forward by nodes. The first question measures, later ones remember."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seconds: dict[int, float] = {}

    def choose_nodes(self, most: int) -> int:
        """The number of nodes up to `most` with the most expected tokens per second, by `expected_tokens`."""
        sizes = [size for size in SIZES if size < most] + [most]
        self._measure([size for size in sizes if size not in self.seconds])
        return max(sizes, key=lambda size: expected_tokens(size) / self.seconds[size])

    @torch.inference_mode()
    def _measure(self, sizes: list[int]) -> None:
        """Interleaved, so that a slow moment of the machine hits all sizes; the median of each counts."""
        limit = self._target.context_limit
        cache = self._target.new_cache(min(CONTEXT, limit) + max(sizes, default=0))
        context = max(min(CONTEXT, limit - max(sizes, default=0)), 1)
        ids = torch.zeros(context, dtype=torch.int64)
        self._target.forward(ids, torch.arange(context), masks.causal_matrix(context), cache, last_only=True)
        cache.commit(list(range(context)))
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for repeat in range(REPEATS + 1):
            for size in sizes:
                start = time.perf_counter()
                self._run(size, context, cache)
                if repeat > 0:  # the first round warms up
                    times[size].append(time.perf_counter() - start)
        self.seconds |= {size: statistics.median(taken) for size, taken in times.items()}

    def _run(self, size: int, context: int, cache: TreeCache) -> None:
        positions = torch.full((size,), context)
        output = self._target.forward(
            torch.zeros(size, dtype=torch.int64), positions, torch.eye(size, dtype=torch.bool), cache
        )
        float(output.logits[0, 0])  # waits for an accelerator
        cache.truncate(context)
