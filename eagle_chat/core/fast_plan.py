"""Which layout a model's matrices get: measured by shape, remembered with the other facts about this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from eagle_chat.core import machine
from eagle_chat.core.fast_linear import (
    COUNTS,
    LAYOUTS,
    Layout,
    Matrix,
    Plan,
    Times,
    available_memory,
    choose,
    layouts,
)

REPEATS = 3
HOPELESS = 4.0
"""A layout whose first product takes this many times the best one's is not measured further: without instructions for
bfloat16, one by columns takes seconds."""
CHANCES = 2
"""Further first products of a layout that looks hopeless."""
WORKING_SET = 48 * 2**20
"""Bytes that are gone through for each figure: more than a cache holds, because a model's weights are not cached."""
TYPICAL = 0.03
"""Size of a weight: how short it can be kept depends on it."""
WHOLE = 256
"""Rows of a part are a multiple of this, so that it can have every layout that the whole can."""
SMALL = 8 * 2**20
"""Bytes of weights below which nothing is measured: they lie in the cache, and every layout will do."""
KERNELS = 2
"""Counts the kinds of panels that our own kernels have had."""
SHARE_OF_MEMORY = 4
"""Second copies are made where all weights are at most this part (a quarter) of the memory that is free."""


class Planner:
    """Plans for the matrices of one model, whose weights take `num_bytes` in all."""

    def __init__(self, num_bytes: int) -> None:
        self.is_small = num_bytes <= SMALL
        self._two_copies = num_bytes * SHARE_OF_MEMORY <= available_memory()
        self._known: dict[tuple[int, int, torch.dtype], Plan] = {}

    def plan(self, shape: tuple[int, int], dtype: torch.dtype) -> Plan:
        """The plan for a weight [N, K]."""
        if self.is_small:
            return Plan()
        key = (*shape, dtype)
        if key not in self._known:
            self._known[key] = choose(_times(shape, dtype), self._two_copies)
        return self._known[key]


def _times(shape: tuple[int, int], dtype: torch.dtype) -> Times:
    def as_json(times: Times) -> dict[str, dict[Layout, float]]:
        return {str(count): dict(by_layout) for count, by_layout in times.items()}

    return machine.once(_key(shape, dtype), _parsed, lambda: measure(shape, dtype), as_json)


def _key(shape: tuple[int, int], dtype: torch.dtype) -> str:
    """What was measured of fewer layouts, or of other kernels, is of no use."""
    layouts_now = f"{'/'.join(LAYOUTS)} {KERNELS}"
    return f"{machine.machine_key()} {layouts_now} {shape[0]}x{shape[1]} {str(dtype).removeprefix('torch.')}"


def _parsed(value: object) -> Times | None:
    """What was remembered, or None where it is not of the expected form."""
    try:
        found = {count: {name: float(value[str(count)][name]) for name in value[str(count)]} for count in COUNTS}  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None
    known = all(times and set(times) <= set(LAYOUTS) and min(times.values()) > 0 for times in found.values())
    return found if known else None


@torch.inference_mode()
def measure(shape: tuple[int, int], dtype: torch.dtype) -> Times:
    """Seconds of one product by rows multiplied and by layout, interleaved, over weights that are not cached."""
    columns = shape[1]
    rows = shape[0]
    if rows * columns * dtype.itemsize > WORKING_SET:  # of an LM head a part is enough, in whole panels as it is
        rows = max(WHOLE, WORKING_SET // (dtype.itemsize * columns) // WHOLE * WHOLE)
    count = max(1, WORKING_SET // (dtype.itemsize * rows * columns))
    base = (torch.randn(rows, columns) * TYPICAL).to(dtype)
    sets = {name: [Matrix(base.clone(), None, Plan(name, name)) for _ in range(count)] for name in layouts(base)}
    inputs = {size: torch.ones(size, columns) for size in COUNTS}
    scale = shape[0] / rows
    taken = {size: _first(sets, x) for size, x in inputs.items()}
    hopeful = {size: _hopeful(first) for size, first in taken.items()}
    for size, names in hopeful.items():
        taken[size] |= {name: [] for name in names}
    for _ in range(REPEATS):
        for size, names in hopeful.items():
            for name in names:
                taken[size][name] += _seconds(sets[name], inputs[size])
    return {
        size: {layout: scale * _undisturbed(values) for layout, values in by_layout.items()}
        for size, by_layout in taken.items()
    }


def _first(sets: Mapping[Layout, list[Matrix]], x: Tensor) -> dict[Layout, list[float]]:
    """The least of the first products of each layout, the very first of which also warms up. Who looks hopeless has
    other chances: it may have been another program."""
    found = {name: _seconds(matrices[:1], x) for name, matrices in sets.items()}
    for _ in range(CHANCES):
        for name in set(found) - set(_hopeful(found)):
            found[name] = [min(*found[name], *_seconds(sets[name][:1], x))]
    return found


def _hopeful(first: Mapping[Layout, list[float]]) -> list[Layout]:
    best = min(seconds for (seconds,) in first.values())
    return [name for name, (seconds,) in first.items() if seconds <= HOPELESS * best]


def _undisturbed(seconds: list[float]) -> float:
    """What a product takes while nothing else runs: other programs make some take much longer, so neither the mean
    nor the median would do on a busy machine; the very least might have been lucky."""
    return sorted(seconds)[len(seconds) // 4]


def _seconds(matrices: list[Matrix], x: Tensor) -> list[float]:
    """Of a product with each."""
    # The processor time of a single thread does not count the moments in which other programs had the processor.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = [clock()]
    for matrix in matrices:
        matrix(x)
        times.append(clock())
    return [after - before for before, after in itertools.pairwise(times)]


def best_dtype(shape: tuple[int, int], num_rows: int, fast: bool) -> torch.dtype:
    """bfloat16 or float32, whichever this machine is faster with for a weight [N, K] and up to `num_rows` tokens a
    forward: a draft that is chosen by cost has plain steps and small trees too, so single rows count in any case.
    `fast`: in any layout; otherwise by rows, as models without a fast path keep their weights."""
    dtypes = (torch.bfloat16, torch.float32)
    counts = COUNTS[:1] if num_rows == 1 else COUNTS
    times = {dtype: _times(shape, dtype) for dtype in dtypes}
    seconds = {
        dtype: [min(known[count].values()) if fast else known[count]["rows"] for count in counts]
        for dtype, known in times.items()
    }
    best = [min(both) for both in zip(*seconds.values(), strict=True)]
    return min(dtypes, key=lambda dtype: sum(one / least for one, least in zip(seconds[dtype], best, strict=True)))
