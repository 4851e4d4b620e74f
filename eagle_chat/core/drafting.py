"""Draft policies: how a head's predictions become a tree. Which children a node gets is the rule's matter."""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle_chat.core.children import BestChildren, ChildRule, ranked
from eagle_chat.core.growth import DraftInput, Growth
from eagle_chat.core.growth_lists import GrowthInLists
from eagle_chat.core.growth_tensors import GrowthInTensors
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.transfer import runs_apart
from eagle_chat.core.tree import DraftTree, StaticLevel, UnreadTree, static_levels


def grow(head: DraftHead, start: DraftInput, rule: ChildRule) -> Growth:
    """A draft that begins: where the device runs beside the host, it stays there."""
    apart = runs_apart(start.hidden.device)
    return GrowthInTensors(head, start, rule) if apart else GrowthInLists(head, start, rule)


@dataclass(frozen=True)
class NoDraft:
    """Plain decoding: the tree is its root."""

    name: str = "none"
    max_nodes: int = 1
    max_staged: int = 0
    samples_children: bool = False

    def draft(self, head: DraftHead, start: DraftInput, rule: ChildRule | None = None) -> DraftTree | UnreadTree:
        """One node."""
        return DraftTree.of_root(start.root)


@dataclass(frozen=True)
class StaticTree:
    """A fixed tree of child ranks (EAGLE-1); a chain is one of them."""

    paths: tuple[tuple[int, ...], ...]
    name: str = "static"
    samples_children: bool = True
    levels: list[StaticLevel] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", static_levels(self.paths))

    @property
    def max_nodes(self) -> int:
        """Nodes of a full tree, root included."""
        return 1 + len(self.paths)

    @property
    def max_staged(self) -> int:
        """Most entries that lie in the head's cache behind the prefix during a draft."""
        return len(self.paths)

    def draft(self, head: DraftHead, start: DraftInput, rule: ChildRule | None = None) -> DraftTree | UnreadTree:
        """Every node of the fixed tree, cut to the room left."""
        growth = grow(head, start, rule or BestChildren())
        levels = self.levels[: start.room]
        for index, level in enumerate(levels):
            if index > 0:
                growth.run(sorted(set(level.parents)))
            growth.add(level.parents, level.ranks)
        return growth.tree(kept=None)


@dataclass(frozen=True)
class DynamicTree:
    """Expand the most valuable nodes, then keep the most valuable of all (EAGLE-2, arXiv 2406.16858, section 4)."""

    depth: int
    top_k: int
    total_tokens: int
    name: str = "dynamic"
    samples_children: bool = False

    @property
    def max_nodes(self) -> int:
        """Nodes sent to the target, root included."""
        return self.total_tokens

    @property
    def max_staged(self) -> int:
        """Most entries that lie in the head's cache behind the prefix during a draft."""
        return self.top_k * (self.depth - 1)

    def draft(self, head: DraftHead, start: DraftInput, rule: ChildRule | None = None) -> DraftTree | UnreadTree:
        """Expand `depth` levels (fewer where the room ends), rerank, keep the best `total_tokens - 1`."""
        growth = grow(head, start, ranked(rule))
        depth = min(self.depth, start.room)
        for level in range(depth):
            if level > 0:
                growth.run_best(self.top_k)
            growth.add_all(self.top_k)
        return growth.tree(kept=self.total_tokens - 1)
