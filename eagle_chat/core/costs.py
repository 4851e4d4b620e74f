"""What drafting and verifying cost on this machine: measured once, remembered in the cache folder.

The figures are of a target with its head, at a class of context length, by number of nodes or rows.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from eagle_chat.core import machine, masks
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Nodes of a tree that are measured; between them costs are interpolated."""
ROWS = (1, 4, 10)
"""Nodes of a draft level that are measured."""
ROUNDS = 5
TOO_DEAR = 5.0
"""Trees that cost more than this many plain steps are not considered: no draft is accepted that far."""
CONTEXTS = (128, 512, 2048, 8192, 32768)
"""Context classes: the tokens before the nodes at which the costs of shorter contexts are measured."""
FED = 2
"""Committed tokens that the head takes in before a draft, about those of one cycle."""


@dataclass(frozen=True)
class CostTable:
    """Seconds, by measured size. `verify`: a forward of the target by nodes; 1 is a plain step. `first`: what a draft
    costs up to its first level. `level`: a further level, by nodes that the head runs."""

    verify: dict[int, float]
    first: float
    level: dict[int, float]

    @property
    def most_nodes(self) -> int:
        """The largest tree that was measured."""
        return max(self.verify)

    @cached_property
    def verify_by_nodes(self) -> list[float]:
        """Entry N: seconds for N nodes, N up to `most_nodes`; never falling, because measurements scatter."""
        seconds = [0.0]
        for nodes in range(1, self.most_nodes + 1):
            seconds.append(max(seconds[-1], _between(self.verify, nodes)))
        return seconds

    @cached_property
    def cheapest_node(self) -> float:
        """The least seconds that a node costs beside others, over all sizes of a tree."""
        seconds = self.verify_by_nodes
        costs = [(seconds[nodes] - seconds[1]) / (nodes - 1) for nodes in range(2, len(seconds))]
        return min(costs, default=0.0)

    def level_seconds(self, rows: int) -> float:
        """A further level for which the head runs so many nodes."""
        return _between(self.level, rows)

    def note(self) -> str:
        """The figures in a sentence for people."""
        steps = ", ".join(f"{nodes}: {1e3 * seconds:.1f}" for nodes, seconds in self.verify.items())
        level = 1e3 * self.level_seconds(4)
        return f"chosen by measurement, cycle by cycle: ms by nodes verified {steps}; a draft level {level:.1f} ms"

    def as_json(self) -> dict[str, Any]:
        """The table as JSON-ready values."""
        return {"verify": _named(self.verify), "first": self.first, "level": _named(self.level)}

    @classmethod
    def from_json(cls, value: Any) -> CostTable | None:
        """The table that `as_json` described; None where the value is none (a damaged memory)."""
        try:
            verify, level = _numbered(value["verify"]), _numbered(value["level"])
            table = cls(verify, float(value["first"]), level)
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        return table if 1 in verify and level and min(*verify.values(), *level.values(), table.first) > 0 else None


CostsOf = Callable[[int], CostTable]
"""The cost table for a context of so many tokens."""


def _named(values: dict[int, float]) -> dict[str, float]:
    return {str(size): seconds for size, seconds in values.items()}


def _numbered(values: dict[str, Any]) -> dict[int, float]:
    return {int(size): float(seconds) for size, seconds in values.items()}


def _between(measured: dict[int, float], size: int) -> float:
    """Linear between the measured sizes, level outside them."""
    sizes = sorted(measured)
    right = bisect.bisect_left(sizes, size)
    if right == len(sizes) or right == 0:
        return measured[sizes[min(right, len(sizes) - 1)]]
    low, high = sizes[right - 1], sizes[right]
    share = (size - low) / (high - low)
    return measured[low] + share * (measured[high] - measured[low])


def context_class(num_tokens: int) -> int:
    """The context length that stands for `num_tokens`."""
    return next((context for context in CONTEXTS if num_tokens <= context), CONTEXTS[-1])


class Costs:
    """The cost tables of one engine. The first question measures, later ones and later programs remember."""

    def __init__(self, target: Target, head: DraftHead | None) -> None:
        self._target, self._head = target, head
        self._tables: dict[int, CostTable] = {}

    def table(self, num_tokens: int) -> CostTable:
        """The costs at a context of `num_tokens`."""
        assert self._head is not None, "without a head there is no draft to measure"
        context = context_class(num_tokens)
        if context not in self._tables:
            key = _key(self._target, self._head, context)
            table = CostTable.from_json(machine.recall(key))
            if table is None:
                watch = machine.Watch()
                table = measure(self._target, self._head, context)
                if watch.undisturbed():
                    machine.remember(key, table.as_json())
            self._tables[context] = table
        return self._tables[context]


@torch.inference_mode()  # outside of which a head has no fast path
def _key(target: Target, head: DraftHead, context: int) -> str:
    """What a table belongs to: machine, device, dtype, attention, target, head, context."""
    spec = head.spec
    shape = f"{target.num_layers}x{target.hidden_size}x{target.vocab_size}"
    kind = target.config._attn_implementation  # noqa: SLF001  no public getter exists
    drafts = f"{spec.architecture} {spec.num_layers}x{spec.hidden_size}x{spec.draft_vocab_size}"
    fast = head.fast_path()
    drafts += " int8" if fast is not None and fast.is_rounded else ""
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else str(target.device)
    where = f"{machine.machine_key()} {device} {str(target.dtype).removeprefix('torch.')} {kind}"
    return f"costs 3 {where} {target.name} {shape} {drafts} context {context}"


@torch.inference_mode()
def measure(target: Target, head: DraftHead, context: int, clock: Callable[[], float] = time.perf_counter) -> CostTable:
    """Measure on caches of `context` tokens whose content does not matter. The least of a few rounds counts, because
    other work on the machine can only add; sizes take turns, so that a slow moment hits all of them."""
    context = max(min(context, target.context_limit - SIZES[-1]), 1)
    bench = _Bench(target, head, context, clock)
    verify = {size: bench.verify(size) for size in SIZES[:1]}
    for size in SIZES[1:]:
        if size + context > target.context_limit or verify[max(verify)] > TOO_DEAR * verify[1]:
            break
        verify[size] = bench.verify(size)
    rows = [count for count in ROWS if count <= target.context_limit]
    first, level = bench.first(), {count: bench.level(count) for count in rows}
    for _ in range(ROUNDS - 1):
        verify = {size: min(seconds, bench.verify(size)) for size, seconds in verify.items()}
        first, level = (
            min(first, bench.first()),
            {count: min(best, bench.level(count)) for count, best in level.items()},
        )
    return CostTable(verify, first, level)


class _Bench:
    """The forwards that are timed, on caches that stay as they are."""

    def __init__(self, target: Target, head: DraftHead, context: int, clock: Callable[[], float]) -> None:
        self.target, self.head, self.context, self.clock = target, head, context, clock
        self.target_cache = target.new_cache(context + SIZES[-1])
        self.head_cache = head.new_cache(context + SIZES[-1])
        self._fill()
        self.features = torch.zeros(FED, head.spec.feature_size, dtype=target.dtype, device=head.device)
        for _ in range(2):  # warms up
            self.verify(1)
            self.first()
            self.level(1)

    def _fill(self) -> None:
        """Caches as long as the context: one forward makes the buffers, whose other entries only need to be finite."""
        target, head = self.target, self.head
        one = torch.zeros(1, dtype=torch.int64)
        output = target.forward(one, one, masks.causal_matrix(1), self.target_cache, head.spec.taps)
        assert output.features is not None
        head(one.to(head.device), head.fuse(output.features), one.to(head.device), None, self.head_cache)
        for cache in (self.target_cache, self.head_cache):
            for layer in cache.tree_layers:
                assert layer.keys is not None and layer.values is not None
                layer.keys.zero_()
                layer.values.zero_()
            cache.length = cache.filled = self.context

    def verify(self, nodes: int) -> float:
        """Seconds of a target forward over so many nodes."""
        start = self.clock()
        output = self.target.forward(
            torch.zeros(nodes, dtype=torch.int64),
            torch.full((nodes,), self.context),
            torch.eye(nodes, dtype=torch.bool),
            self.target_cache,
            self.head.spec.taps,
        )
        float(output.logits[0, 0])  # waits for an accelerator
        self.target_cache.truncate(self.context)
        return self.clock() - start

    def first(self) -> float:
        """Seconds from the target's features to the children of the root."""
        start = self.clock()
        self._level(self.head.fuse(self.features), logits_of=1)
        return self.clock() - start

    def level(self, rows: int) -> float:
        """Seconds from drafted nodes to their children."""
        hidden = torch.zeros(rows, self.head.spec.hidden_size, dtype=self.features.dtype, device=self.head.device)
        start = self.clock()
        self._level(hidden, logits_of=rows)
        return self.clock() - start

    def _level(self, hidden: torch.Tensor, logits_of: int) -> None:
        rows, device = hidden.shape[0], self.head.device
        tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        seen = torch.eye(rows, dtype=torch.bool, device=device)
        output = self.head(tokens, hidden, torch.full((rows,), self.context, device=device), seen, self.head_cache)
        logits = self.head.logits(output[-logits_of:]).float()
        float(logits.log_softmax(dim=-1).topk(min(4, logits.shape[-1])).values[0, 0])
        self.head_cache.truncate(self.context)
