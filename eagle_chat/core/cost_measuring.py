"""Measures what drafting and verifying cost on this machine: once, remembered in the cache folder.

The figures are of a target with its head, at a class of context length.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from eagle_chat.core import machine, masks
from eagle_chat.core.children import BestChildren
from eagle_chat.core.costs import CostTable
from eagle_chat.core.drafting import grow
from eagle_chat.core.growth import DraftInput, Growth
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
CHILDREN = 4
"""Children a node in the drafts that are timed."""


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
            target, head = self._target, self._head
            self._tables[context] = machine.once(
                _key(target, head, context),
                CostTable.from_json,
                lambda: measure(target, head, context),
                CostTable.as_json,
            )
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
    return f"costs 6 {where} {target.name} {shape} {drafts} context {context}"


@torch.inference_mode()
def measure(target: Target, head: DraftHead, context: int, clock: Callable[[], float] = time.perf_counter) -> CostTable:
    """Measure on caches of `context` tokens whose content does not matter. The least of a few rounds counts, because
    other work on the machine can only add; sizes take turns, so that a slow moment hits all of them."""
    context = max(min(context, target.context_limit - SIZES[-1]), 1)
    bench = CostBench(target, head, context, clock)
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


class CostBench:
    """The forwards that are timed, on caches that stay as they are."""

    def __init__(self, target: Target, head: DraftHead, context: int, clock: Callable[[], float]) -> None:
        self.target, self.head, self.context, self.clock = target, head, context, clock
        self.children = min(CHILDREN, head.spec.draft_vocab_size)
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
        """Seconds from the target's features to a draft of one level, after a step of the target: the head's weights
        have to be fetched anew then."""
        self.verify(1)
        start = self.clock()
        growth = self._growth()
        growth.add_all(self.children)
        growth.values()
        growth.tree(self.children - 1).read()
        return self.clock() - start

    def level(self, rows: int) -> float:
        """Seconds of a further level that runs so many nodes."""
        growth = self._growth()
        growth.add_all(min(rows, self.head.spec.draft_vocab_size))
        growth.values()
        start = self.clock()
        growth.run_best(rows)
        growth.add_all(self.children)
        growth.values()
        seconds = self.clock() - start
        growth.tree(kept=1)  # frees what is staged
        return seconds

    def _growth(self) -> Growth:
        """A draft to be, from features of as many tokens as a cycle commits."""
        head, cache = self.head, self.head_cache
        tokens = torch.zeros(FED, dtype=torch.int64, device=head.device)
        positions = torch.arange(FED, device=head.device) + self.context
        seen = masks.causal_matrix(FED).to(head.device)
        hidden = head(tokens, head.fuse(self.features), positions, seen, cache)
        cache.truncate(self.context)
        return grow(head, DraftInput(hidden[-1:], 0, self.context, cache, room=2), BestChildren())
