"""The draft tree: what a policy proposes and the target verifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.errors import UserError


@dataclass(frozen=True)
class Proposal:
    """The distribution from which the children of one node were sampled without replacement, in order.

    `ids` [Vd]: target ids of its entries, or None where entry i is target id i. `log_q` [Vd]: log-probabilities.
    """

    log_q: Tensor
    ids: Tensor | None


@dataclass(frozen=True)
class Drawn:
    """Every node a policy considered, kept or not, in the order drafted. `slots[i]`: row in the tree, or -1.
    `chances[i]`: log of the chance that the target chooses it after its parent, before recalibration."""

    tokens: list[int]
    parents: list[int]
    log_q: list[float]
    values: list[float]
    ranks: list[int]
    slots: list[int]
    chances: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class DraftTree:
    """N nodes, the root (the newest committed token) first, every parent before its children.

    `tokens` [N] target ids, `parents` [N] with `parents[0] = -1`, `scores` [N] log of the product of the head's
    probabilities from the root. Children of a node stand in the order in which the head ranked (or sampled) them.
    `proposals`: by node, where children were sampled; empty where they are a deterministic choice.
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]
    proposals: dict[int, Proposal] = field(default_factory=dict)
    drawn: Drawn | None = None

    @classmethod
    def of_root(cls, token: int) -> DraftTree:
        """The tree of plain decoding: one node."""
        return cls([token], [-1], [0.0])

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return max(self.depths())

    def depths(self) -> list[int]:
        """Depth of each node, [N]."""
        return masks.depths(self.parents)

    def children(self) -> list[list[int]]:
        """Children of each node in drafting order, [N] lists."""
        result: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                result[parent].append(node)
        return result

    def visibility(self) -> Tensor:
        """Ancestor matrix, bool [N, N]."""
        return masks.ancestor_matrix(self.parents)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens and depths [N] and the ancestor matrix [N, N], for the target."""
        return torch.tensor(self.tokens), torch.tensor(self.depths()), self.visibility()

    def read(self) -> DraftTree:
        """Itself; see `UnreadTree`."""
        return self

    def read_beside(self, numbers: Tensor) -> list[list[int]]:
        """`numbers` [n, N] as lists; see `UnreadTree`."""
        rows: list[list[int]] = numbers.tolist()
        return rows


class UnreadTree:
    """A draft tree whose nodes the host has not seen: the target can run on it, and the device is waited for only once
    there is something to decide.

    `inputs` as in `DraftTree`, on the device; none of its nodes is deeper than `depth`. `packed` [n] holds what
    `finish` makes the tree from, once it is read.
    """

    def __init__(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        depth: int,
        packed: Tensor,
        finish: Callable[[list[float]], DraftTree],
    ) -> None:
        self._inputs, self.depth, self._packed, self._finish = inputs, depth, packed, finish
        self._tree: DraftTree | None = None

    def __len__(self) -> int:
        return self._inputs[0].shape[0]

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """See `DraftTree`."""
        return self._inputs

    def read(self) -> DraftTree:
        """The tree. Waits for the device the first time."""
        if self._tree is None:
            self._tree = self._finish(self._packed.tolist())
        return self._tree

    def read_beside(self, numbers: Tensor) -> list[list[int]]:
        """Integers [n, N] as lists, and the tree, read at the same time."""
        count = self._packed.shape[0]
        # float64 holds every token id exactly.
        found = torch.cat((self._packed, numbers.flatten().to(self._packed))).tolist()
        self._tree = self._finish(found[:count])
        width = numbers.shape[1]
        return [[int(value) for value in found[at : at + width]] for at in range(count, len(found), width)]


STATIC_PATHS: tuple[tuple[int, ...], ...] = (
    (0,), (1,), (2,), (3,),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
    (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0),
    (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2),
    (0, 0, 0, 0, 0), (0, 0, 0, 0, 1),
)  # fmt: skip
"""The published static tree of EAGLE-1 (25 nodes and the root), as child ranks from the root."""


def chain_paths(depth: int) -> tuple[tuple[int, ...], ...]:
    """Paths of a chain of `depth` drafted tokens."""
    return tuple((0,) * length for length in range(1, depth + 1))


def check_paths(paths: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The paths sorted by length, then rank; UserError where they are no tree, with the reason."""
    if not paths:
        raise UserError("a static tree needs at least one path, found none: give paths such as [0] [0,0]")
    if any(not path or any(rank < 0 for rank in path) for path in paths):
        raise UserError("every path must hold child ranks of 0 or more: change the empty or negative one")
    known = set(paths)
    if len(known) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UserError(f"a static tree has every path once, found {list(twice)} twice: remove one")
    for path in sorted(paths):
        if len(path) > 1 and path[:-1] not in known:
            raise UserError(f"path {list(path)} needs its parent {list(path[:-1])} in the tree: add it")
        elder = (*path[:-1], path[-1] - 1)
        if path[-1] > 0 and elder not in known:
            raise UserError(f"path {list(path)} needs the better-ranked sibling {list(elder)} in the tree: add it")
    return tuple(sorted(paths, key=lambda path: (len(path), path)))


@dataclass(frozen=True)
class StaticLevel:
    """One level of a static tree. `parents` [n]: for each node, which node of the level before it hangs on;
    `ranks` [n]: its place among that parent's children."""

    parents: list[int]
    ranks: list[int]


def static_levels(paths: tuple[tuple[int, ...], ...]) -> list[StaticLevel]:
    """The tree level by level; UserError as `check_paths`."""
    ordered = check_paths(paths)
    levels: list[StaticLevel] = []
    previous: dict[tuple[int, ...], int] = {(): 0}
    for depth in range(1, len(ordered[-1]) + 1):
        members = [path for path in ordered if len(path) == depth]
        levels.append(StaticLevel([previous[p[:-1]] for p in members], [p[-1] for p in members]))
        previous = {path: index for index, path in enumerate(members)}
    return levels
