"""The target's step against the pure sum of its matrix products, and where a cycle's time goes.

python bench/fast_path.py [--base NAME] [--dtype float32] [--threads N] [--context 200] [--repeats 15]

Everything is measured in interleaved rounds, and ratios are medians over rounds, because a machine that others use
changes its mind from second to second.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core import masks
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.cost_measuring import CostBench
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed
from eagle_chat.core.fast_layers import FastLayer, Norm, attend, folded_mask, gated
from eagle_chat.core.fast_target import FastTarget
from eagle_chat.core.target import Target

WALL = time.perf_counter
"""Itself, also while `clock` stands in its place."""
ROWS = (1, 8, 16, 24)
TREES = {"plain": TreeConfig("none"), "8 nodes": TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)}


def clock() -> float:
    """Seconds. With one thread those of its processor time, which leaves out when other programs had the processor."""
    return time.thread_time() if torch.get_num_threads() == 1 else WALL()


def rounds(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every call, one after the other in each round; the first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            start = clock()
            call()
            if repeat > 0:
                taken[name].append(clock() - start)
    return taken


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the rounds of above / below."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def filled_cache(target: Target, context: int) -> TreeCache:
    """A cache with `context` committed tokens."""
    cache = target.new_cache(context + 64)
    ids = torch.arange(context) % target.vocab_size
    target.forward(ids, torch.arange(context), masks.causal_matrix(context), cache, last_only=True)
    cache.commit(list(range(context)))
    return cache


def step(target: Target, cache: TreeCache, rows: int) -> Callable[[], None]:
    """One forward over `rows` tokens of a chain, taken back afterwards."""
    tokens, positions = torch.arange(rows) + 5, torch.arange(rows) + cache.length
    among = masks.causal_matrix(rows)

    def run() -> None:
        target.forward(tokens, positions, among, cache)
        cache.truncate(cache.length)

    return run


def products(fast: FastTarget, rows: int) -> Callable[[], None]:
    """All matrix products of a forward in their order and layouts, and nothing else."""
    parts = [(layer._qkv, layer._out, layer._gate_up, layer._down) for layer in fast._layers]  # noqa: SLF001
    flat = [matrix for four in parts for matrix in four] + [fast.lm_head]
    inputs = {size: torch.randn(rows, size) for size in {_inputs(matrix) for matrix in flat}}
    work = [(matrix, inputs[_inputs(matrix)]) for matrix in flat]

    def run() -> None:
        for matrix, x in work:
            matrix(x)

    return run


def _inputs(matrix: Any) -> int:
    return matrix.shape[1]


def small_parts(target: Target, fast: FastTarget, cache: TreeCache, rows: int) -> dict[str, Callable[[], Any]]:
    """What a layer does besides its products, each by itself."""
    layer: FastLayer = fast._layers[0]  # noqa: SLF001
    norm: Norm = fast._norm  # noqa: SLF001
    heads, kv_heads, size = layer.num_heads, layer.num_kv_heads, layer.head_dim
    hidden = torch.randn(rows, target.hidden_size)
    qkv = torch.randn(rows, heads + 2 * kv_heads, size)
    rotation = fast.rope.at(torch.arange(rows))
    among, positions = masks.causal_matrix(rows), torch.arange(rows) + cache.length
    mask = target._mask(among, positions, cache.length, torch.float32)  # noqa: SLF001
    folded = folded_mask(mask, layer.group)  # type: ignore[arg-type]
    both = torch.randn(rows, 2 * target.config.intermediate_size)
    new = qkv[:, heads:].view(rows, 2, kv_heads, size).permute(1, 2, 0, 3)
    entry = cache.tree_layers[0]
    keys, values = entry.append(new)
    return {
        "2 norms": lambda: (norm(hidden), norm(hidden)),
        "rotation": lambda: rotation.apply_(qkv, heads + kv_heads),
        "cache": lambda: entry.append(new),
        "attention": lambda: attend(qkv[:, :heads], keys, values, folded, 0.1),
        "activation": lambda: gated(both),
    }


@torch.inference_mode()
def table(general: Target, target: Target, context: int, repeats: int) -> None:
    """Print step, products and their ratio for every number of rows."""
    fast = target._fast_path()  # noqa: SLF001
    assert fast is not None
    cache, other = filled_cache(target, context), filled_cache(general, context)
    print(f"\n{'rows':>4} {'general':>9} {'fast':>9} {'products':>9} {'fast/products':>14} {'general/fast':>13}")
    for rows in ROWS:
        calls = {
            "general": step(general, other, rows),
            "fast": step(target, cache, rows),
            "products": products(fast, rows),
        }
        taken = rounds(calls, repeats)
        milliseconds = " ".join(f"{1e3 * statistics.median(taken[name]):6.1f} ms" for name in calls)
        gap = ratio(taken["fast"], taken["products"])
        print(f"{rows:>4} {milliseconds} {gap:>14.3f} {ratio(taken['general'], taken['fast']):>13.2f}", flush=True)
    print("\nbesides the products, microseconds a layer")
    for rows in ROWS:
        taken = rounds(small_parts(target, fast, cache, rows), 10 * repeats)
        print(f"{rows:>4} rows: " + ", ".join(f"{k} {1e6 * statistics.median(v):.0f}" for k, v in taken.items()))


@torch.inference_mode()
def draft_level(engine: Engine, context: int, repeats: int) -> None:
    """Print what a draft costs: up to its first level, and for each further one, as shares of a plain step."""
    head, target = engine.head, engine.target
    if head is None:
        return
    bench = CostBench(target, head, context, clock)
    print(f"\nhead, bookkeeping included: {head.spec.architecture}, Vd {head.spec.draft_vocab_size}, 4 children a node")
    calls = {"plain": lambda: bench.verify(1), "first level": bench.first} | {
        f"further level, {rows} nodes": functools.partial(bench.level, rows) for rows in (1, 4, 10)
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            taken[name].append(call())
    for name in list(calls)[1:]:
        share = ratio(taken[name], taken["plain"])
        print(f"  {name}: {1e3 * statistics.median(taken[name]):.2f} ms, {share:.1%} of a plain step")


def profile(engine: Engine, label: str, cycles: int) -> None:
    """Print the stages of a cycle, medians in milliseconds, for a plain step and for the default tree."""
    for name, tree in TREES.items():
        if engine.head is None and name != "plain":
            continue
        rows: list[dict[str, float]] = []
        sampling = SamplingConfig(max_new_tokens=1000, ignore_stop_ids=True)
        stream = engine.stream([{"role": "user", "content": "Tell me of the sea. " * 30}], sampling=sampling, tree=tree)
        with mock.patch("time.perf_counter", clock):
            for event in stream:
                if isinstance(event, Committed) and event.cycle > 3:
                    rows.append(event.seconds)
                if len(rows) == cycles:
                    break
        stages = {stage: 1e3 * statistics.median(row[stage] for row in rows) for stage in rows[0]}
        print(f"{label}, {name}: " + ", ".join(f"{stage} {value:.2f}" for stage, value in stages.items() if value))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    base = {"base": options.base} if options.base else {}
    slow, quick = (load_engine(dtype=options.dtype, **base) for _ in range(2))
    slow.target = Target(slow.target.model, "general path", fast=False)
    about = quick.describe()
    print(f"{about['target']}, {about['dtype']}, {torch.get_num_threads()} threads, context {options.context}")
    start = clock()
    fast = quick.target._fast_path()  # noqa: SLF001
    if fast is None:
        raise SystemExit("this target is not known to the fast path")
    print(f"start-up: fast path made in {clock() - start:.2f} s (run again: with the remembered plans)")
    print(fast.describe())
    table(slow.target, quick.target, options.context, options.repeats)
    draft_level(quick, options.context, options.repeats)
    print("\nstages of a cycle, medians in ms")
    for label, engine in {"general": slow, "fast": quick}.items():
        profile(engine, label, options.repeats)


if __name__ == "__main__":
    main()
