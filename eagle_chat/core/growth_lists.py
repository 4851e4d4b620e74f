"""A draft that grows on a CPU: in lists, because for a handful of nodes every operation on a tensor costs more than all
of them do here, most of all after a step of the target has thrown everything else out of the caches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eagle_chat.core.children import BestChildren, ChildRule
from eagle_chat.core.growth import DraftInput, Growth
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.tree import DraftTree, Drawn


class GrowthInLists(Growth):
    """See `Growth`.

    `_drawn`: all nodes; `_starts`: where in it each level begins. `_rows`: for each node of the newest level its
    parent among the nodes run last, of which `_run` are the node ids, `_hidden` [R, H] the outputs, and `_seen` by row
    which staged entries each of them sees.
    """

    def __init__(self, head: DraftHead, start: DraftInput, rule: ChildRule) -> None:
        super().__init__(head, start, rule)
        self._drafter = head.drafter()
        self._drawn = Drawn([], [], [], [], [], [])
        self._starts: list[int] = []
        self._rows: list[int] = []
        self._run, self._hidden = [0], start.hidden
        self._members = [0]
        self._seen: list[list[bool]] = [[]]
        self._laws: list[tuple[list[int], Tensor]] = []

    @property
    def depth(self) -> int:
        """See `Growth`."""
        return len(self._starts)

    def add(self, parents: list[int], ranks: list[int]) -> None:
        """See `Growth`."""
        row = {member: index for index, member in enumerate(self._members)}
        self._append([row[parent] for parent in parents], ranks, max(ranks) + 1)

    def add_all(self, top_k: int) -> None:
        """See `Growth`."""
        rows = [row for row in range(len(self._run)) for _ in range(top_k)]
        self._append(rows, list(range(top_k)) * len(self._run), top_k)

    def _append(self, rows: list[int], ranks: list[int], count: int) -> None:
        ids, log_q, chances = self._children(count)
        adjusted = chances
        if self._rule.calibration is not None:
            adjusted = [self._rule.calibration.adjusted(row) for row in chances]
        drawn, nodes = self._drawn, self._run
        before = [drawn.values[node - 1] if node else 0.0 for node in nodes]
        self._starts.append(len(drawn.tokens))
        self._rows = rows
        for row, rank in zip(rows, ranks, strict=True):
            drawn.tokens.append(ids[row][rank])
            drawn.parents.append(nodes[row])
            drawn.log_q.append(log_q[row][rank])
            drawn.values.append(before[row] + adjusted[row][rank])
            drawn.ranks.append(rank)
            drawn.chances.append(chances[row][rank])

    def _children(self, count: int) -> tuple[list[list[int]], list[list[float]], list[list[float]]]:
        """Of the nodes run last the first `count` children: target ids, log q and chances, [R][count]."""
        if isinstance(self._rule, BestChildren):
            tokens, log_q = self._drafter.best(self._hidden, count)
            return tokens, log_q, log_q
        logits = self._drafter.logits(self._hidden).float()  # [R, Vd]
        position = self._start.position + self.depth + 1
        children = self._rule.choose(logits, count, position, self._head.draft_ids)
        if children.law is not None:
            self._laws.append((self._run, children.law))
        return self._head.target_ids(children.ids).tolist(), children.log_q.tolist(), children.chances.tolist()

    def values(self) -> list[list[float]]:
        """See `Growth`."""
        ends = [*self._starts[1:], len(self._drawn.tokens)]
        chances = [math.exp(value) for value in self._drawn.values]
        return [chances[start:end] for start, end in zip(self._starts, ends, strict=True)]

    def run_best(self, count: int) -> None:
        """See `Growth`."""
        newest = self._drawn.values[self._starts[-1] :]
        self.run(_best(newest, count))

    def run(self, members: list[int]) -> None:
        """See `Growth`."""
        first, count = self._starts[-1], len(members)
        rows = [self._rows[member] for member in members]
        seen = [self._seen[row] + [own == place for own in range(count)] for place, row in enumerate(rows)]
        is_chain = count == 1 and len(seen[0]) == self.depth
        self._hidden = self._drafter.run(
            [self._drawn.tokens[first + member] for member in members],
            self._hidden,
            rows,
            [self._start.position - 1 + self.depth] * count,
            None if is_chain else torch.tensor(seen),
            self._start.cache,
        )
        self._run = [first + member + 1 for member in members]
        self._members, self._seen = members, seen

    def tree(self, kept: int | None) -> DraftTree:
        """See `Growth`."""
        self._start.cache.truncate(self._start.cache.length)
        if not self._starts:
            return DraftTree.of_root(self._start.root)
        count = len(self._drawn.tokens)
        order = list(range(count)) if kept is None else sorted(_best(self._drawn.values, kept))
        return self._assemble(order, self._drawn, self._laws)


def _best(values: list[float], count: int) -> list[int]:
    """Places of the `count` highest values, highest first and of equals the first."""
    return sorted(range(len(values)), key=values.__getitem__, reverse=True)[:count]
