"""Is a quantised target faster or slower than the same one unquantised? Both in memory, their forwards in turn."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from eagle_chat.core import masks
from eagle_chat.core.config import DtypeName, LoadConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.memory import available
from eagle_chat.core.policies import CPU_TREE
from eagle_chat.core.quantization import bits
from eagle_chat.core.target import Target

if TYPE_CHECKING:
    from eagle_chat.core.cache import TreeCache
    from eagle_chat.core.engine import Engine

CONTEXT = 64
"""Tokens before the measured ones, as in a short chat."""
REPEATS = 5
USUAL_NODES = CPU_TREE.total_tokens or 1
ROOM = 1.1
"""The unquantised target is loaded where this many times its weights are free."""

Load = Callable[[LoadConfig], "Engine"]


def compare(engine: Engine, config: LoadConfig, nodes: int, load: Load) -> dict[str, Any]:
    """The quantised target of `engine`, loaded by `config`, against the unquantised one.

    `rows`: for a plain step and a tree of `nodes` (of `USUAL_NODES` where trees are chosen by cost), seconds of both
    and how many times as fast the quantised one is.
    `reason`: why there are no rows, where there are none.
    """
    target = engine.target
    dtype = str(target.dtype).removeprefix("torch.")
    result: dict[str, Any] = {"bits": bits(target.model), "unquantised": dtype, "rows": [], "reason": None}
    needed, (free, _) = target.model.num_parameters() * target.dtype.itemsize, available(target.device, spread=False)
    if needed * ROOM > free:
        result["reason"] = f"the unquantised target needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} are free"
        return result
    name: DtypeName = dtype  # type: ignore[assignment]  # one of the names that a target can be loaded in
    whole = dataclasses.replace(config, load_in_4bit=False, load_in_8bit=False, draft="none", dtype=name)
    try:
        other = load(whole).target
    except EagleChatError as error:
        result["reason"] = f"the unquantised target could not be loaded: {error}"
        return result
    for size in dict.fromkeys((1, nodes if nodes > 0 else USUAL_NODES)):
        own, base = interleaved((target, other), size)
        result["rows"].append({"nodes": size, "seconds": own, "unquantised_seconds": base, "speedup": base / own})
    return result


@torch.inference_mode()
def interleaved(targets: Sequence[Target], nodes: int) -> list[float]:
    """Median seconds of a forward of `nodes` tokens for each target, in turn, so that a slow moment hits all."""
    caches = [_filled(target, nodes) for target in targets]
    taken: list[list[float]] = [[] for _ in targets]
    for repeat in range(REPEATS + 1):
        for index, (target, cache) in enumerate(zip(targets, caches, strict=True)):
            start = time.perf_counter()
            tokens = torch.zeros(nodes, dtype=torch.int64)
            output = target.forward(tokens, tokens + cache.length, torch.eye(nodes, dtype=torch.bool), cache)
            float(output.logits[0, 0])  # waits for an accelerator
            if repeat > 0:  # the first round warms up
                taken[index].append(time.perf_counter() - start)
            cache.truncate(cache.length)
    return [statistics.median(seconds) for seconds in taken]


def _filled(target: Target, nodes: int) -> TreeCache:
    count = max(min(CONTEXT, target.context_limit - nodes), 1)
    cache = target.new_cache(count + nodes)
    target.forward(torch.zeros(count, dtype=torch.int64), torch.arange(count), masks.causal_matrix(count), cache)
    cache.commit(list(range(count)))
    return cache


def quantisation_line(result: dict[str, Any]) -> str:
    """The result for people, in one sentence."""
    start = f"{result['bits']}-bit against {result['unquantised']}"
    if result["reason"] is not None:
        return f"{start}: not compared, {result['reason']}"
    parts = [
        f"a forward of {row['nodes']} {'token' if row['nodes'] == 1 else 'tokens'} is {_times(row['speedup'])} "
        f"({1000 * row['seconds']:.1f} ms, unquantised {1000 * row['unquantised_seconds']:.1f})"
        for row in result["rows"]
    ]
    return f"{start}: {'; '.join(parts)}"


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times as fast" if speedup >= 1.0 else f"{1 / speedup:.2f} times slower"
