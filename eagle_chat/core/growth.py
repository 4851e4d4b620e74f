"""A draft while it grows, level by level: what policies ask of it, whatever it is kept in.

What the head has run stays staged in its cache, each node seeing the prefix and its own ancestors; at the end the
cache goes back to the prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.calibration import Calibration
from eagle_chat.core.children import ChildRule
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.pace import Pace
from eagle_chat.core.tree import DraftTree, Drawn, Proposal, UnreadTree


@dataclass(frozen=True)
class DraftInput:
    """Where a draft starts. `hidden` [1, H]: the head's output that predicts the first drafted token. `root`: newest
    committed token, at absolute position `position`. `room`: most tokens that may follow it on one path. `pace` and
    `calibration`: what the answer has shown so far, for policies that go by it."""

    hidden: Tensor
    root: int
    position: int
    cache: TreeCache
    room: int
    pace: Pace | None = None
    calibration: Calibration | None = None


class Growth(ABC):
    """A draft so far. Node ids count from the root (0) in the order drafted; a node's value is the log of its chance
    to be accepted, as the head and the calibration see it."""

    def __init__(self, head: DraftHead, start: DraftInput, rule: ChildRule) -> None:
        self._head, self._start, self._rule = head, start, rule

    @property
    @abstractmethod
    def depth(self) -> int:
        """Levels drafted."""

    @abstractmethod
    def add(self, parents: list[int], ranks: list[int]) -> None:
        """A level with one node for each (place of the parent within its level, rank among its children)."""

    @abstractmethod
    def add_all(self, top_k: int) -> None:
        """A level with the best `top_k` children of every node run last."""

    @abstractmethod
    def values(self) -> list[list[float]]:
        """The chance of every node drafted so far to be accepted, as its value says, by level."""

    @abstractmethod
    def run_best(self, count: int) -> None:
        """Run the `count` most valuable nodes of the newest level through the head."""

    @abstractmethod
    def run(self, members: list[int]) -> None:
        """Run these nodes of the newest level (places within it) through the head."""

    @abstractmethod
    def tree(self, kept: int | None) -> DraftTree | UnreadTree:
        """Rerank: the best `kept` nodes of all by value (None: every node). Frees what the head had staged.

        A child's value is never above its parent's, and the sort is stable in drafting order, so a tie goes to the
        shallower, earlier node and no node is kept without its parent.
        """

    def _assemble(self, order: list[int], drawn: Drawn, laws: list[tuple[list[int], Tensor]]) -> DraftTree:
        """The tree of the drawn nodes `order`, ascending from 0. `laws`: of which nodes (ids) the children were sampled
        from which law."""
        slot = {0: 0} | {node + 1: place for place, node in enumerate(order, start=1)}
        drawn.slots.extend(slot.get(node + 1, -1) for node in range(len(drawn.tokens)))
        ids = self._head.draft_ids
        return DraftTree(
            tokens=[self._start.root, *(drawn.tokens[node] for node in order)],
            parents=[-1, *(slot[drawn.parents[node]] for node in order)],
            scores=[0.0, *(drawn.values[node] for node in order)],
            proposals={
                slot[node]: Proposal(row, ids)
                for run_ids, law in laws
                for node, row in zip(run_ids, law, strict=True)
                if node in slot
            },
            drawn=drawn,
        )
