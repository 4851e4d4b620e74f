"""Steps of fixed shape, recorded once as CUDA graphs and replayed, for the target's forward and the head's levels.

A forward of a large model is hundreds of small kernels, and a GPU finishes many of them before the host has asked for
the next. A graph asks for all at once. For that nothing may change but the values in buffers made once: the rows are
padded to a power of two, keys and values go to places that a tensor names, and attention goes over the cache's whole
capacity, masked. The models are those of transformers, untouched, so what cannot be captured (a model that looks at
its own numbers on the host, a quantised product that does) is found by trying: then, and where the first replay does
not give what an ordinary forward gives, the ordinary forward is what runs, here and from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.errors import first_line
from eagle_chat.core.transfer import pinned

MOST_ROWS = 256
"""Longer forwards are prompts: there a graph gains nothing."""
WARM_UPS = 2
"""Runs before a capture: libraries choose kernels and allocate in their first ones."""
TOLERANCE = 0.05
"""Most that a fixed step may differ from the ordinary one, as a share of the largest value: the order of additions
over a padded cache is another one, and a wrong mask or position changes much more."""

Run = Callable[..., tuple[Tensor, ...]]


def bucket(count: int) -> int:
    """The rows of the step that takes `count` of them: the next power of two."""
    return 1 << max(count - 1, 0).bit_length()


class FixedStep:
    """`run` over buffers of fixed shapes: as a CUDA graph, or as it is where there are none."""

    def __init__(self, run: Run, shapes: Sequence[Sequence[int]], values: Sequence[Tensor], device: torch.device):
        """`shapes` of the buffers, `values` for the first run, which give their dtypes."""
        self._buffers = [
            torch.zeros(*shape, dtype=value.dtype, device=device) for shape, value in zip(shapes, values, strict=True)
        ]
        self._fill(values)
        self._run = run
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for it
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._run(*self._buffers)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads (a page, a server) may use the device meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._outputs = self._run(*self._buffers)

    def _fill(self, values: Sequence[Tensor]) -> None:
        for buffer, value in zip(self._buffers, values, strict=True):
            if buffer.shape != value.shape:
                buffer.zero_()
            buffer[tuple(slice(size) for size in value.shape)].copy_(pinned(value, buffer.device), non_blocking=True)

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What `run` gives for these values, padded with zeros. Overwritten by the next call where it is a graph."""
        self._fill(values)
        if self._graph is None:
            return self._run(*self._buffers)
        self._graph.replay()
        return self._outputs


class Steps:
    """The fixed steps of one model. They belong to a cache's buffers, so each cache keeps its own."""

    def __init__(self, wanted: bool | None = None) -> None:
        """`wanted`: None for on CUDA alone; True to run with fixed shapes anywhere, uncaptured."""
        self._wanted = wanted
        self.refused: str | None = None
        """Why this model runs without; None while it does not."""

    def suit(self, rows: int, cache: TreeCache, device: torch.device) -> bool:
        """Whether a forward of `rows` over this cache can be a fixed step."""
        wanted = device.type == "cuda" if self._wanted is None else self._wanted
        if not wanted or self.refused is not None or rows > MOST_ROWS or not torch.is_inference_mode_enabled():
            return False
        return all(layer.is_initialized for layer in cache.tree_layers)

    def run(
        self,
        cache: TreeCache,
        key: tuple[object, ...],
        run: Run,
        shapes: Sequence[Sequence[int]],
        values: Sequence[Tensor],
        ordinary: Callable[[], tuple[Tensor, ...]],
        rows: int,
        device: torch.device,
    ) -> tuple[Tensor, ...]:
        """The first `rows` of each output. `ordinary` gives the same without fixed shapes: what a new step is held
        against, and what counts until it has been."""
        known = cache.steps.get(key)
        if isinstance(known, FixedStep):
            return tuple(output[:rows] for output in known(values))
        try:
            step = FixedStep(run, shapes, values, device)
            found = step(values)
        except (RuntimeError, NotImplementedError) as error:
            cache.slots = None
            self.refused = first_line(error)
            return ordinary()
        expected = ordinary()  # after the trial, so that what it leaves in the cache is what counts
        if all(_agree(mine[:rows], right) for mine, right in zip(found, expected, strict=True)):
            cache.steps[key] = step
        elif all(bool(right.isfinite().all()) for right in expected):  # a broken target proves nothing
            self.refused = "a captured step did not give what an ordinary one gives"
        return expected


def _agree(found: Tensor, expected: Tensor) -> bool:
    largest = float(expected.float().abs().max())
    return bool((found.float() - expected.float()).abs().max() <= TOLERANCE * max(largest, 1e-6))


class Stepping(Protocol):
    """A model whose forwards may be fixed steps."""

    steps: Steps


def notes(**parts: Stepping | None) -> list[str]:
    """What people should know where the device could be faster but for a model; by the part's name."""
    refused = {name: part.steps.refused for name, part in parts.items() if part is not None}
    text = "runs without CUDA graphs, which is slower"
    return [f"the {name} {text} ({reason})" for name, reason in refused.items() if reason]
